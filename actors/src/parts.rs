//! What all stages use.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use effectd_bus::{Blobs, Store};
use effectd_contracts::{Clock, Failure, SpaceId};
use effectd_policy::Policy;
use effectd_sandbox::{Sandbox, SpaceRoot};
use tokio::sync::watch;

use crate::answers::Answers;
use crate::at_work::AtWork;
use crate::control::Control;
use crate::decisions::AtDoor;
use crate::held;
use crate::identity::Identity;
use crate::keeping::Keepings;
use crate::leases::Leases;
use crate::metrics::Metrics;
use crate::operations::Acting;
use crate::preimage::Witness;
use crate::preview::Turns;
use crate::recent::Recent;
use crate::registry::{Registry, Source};
use crate::review;
use crate::reward::Weights;
use crate::running::Running;
use crate::settings::Settings;

/// Opens the root of a space; what may not be used is refused.
pub type SpaceRoots = Arc<dyn Fn(&SpaceId) -> Result<SpaceRoot, Failure> + Send + Sync>;

/// What all stages use. Made once, shared by all workers.
pub struct Parts {
    /// What is remembered.
    pub store: Arc<dyn Store>,
    /// What can happen.
    pub registry: Arc<Registry>,
    /// Where it happens.
    pub sandbox: Arc<Sandbox>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Who signs.
    pub identity: Arc<Identity>,
    /// Where spaces lie.
    pub space_roots: SpaceRoots,
    /// How rewards are weighted.
    pub weights: Weights,
    /// The pipeline's figures.
    pub metrics: Metrics,
    /// How long a delivery is held before it goes to someone else, see [`crate::limits::LEASE_TTL`]. A stage that does not
    /// get on for this long loses what it has in hand.
    pub lease_ttl: Duration,
    /// What else the operator has set.
    pub settings: Settings,
    /// Who looks at files before and after.
    pub witness: Arc<dyn Witness>,
    /// What effects replaced, and what tools said at length.
    pub blobs: Arc<Blobs>,
    /// Who waits.
    pub answers: Answers,
    /// What keeps it upright under pressure.
    pub control: Control,
    policy: RwLock<Arc<Policy>>,
    pub(crate) running: Running,
    /// Who has left what to be synced.
    pub(crate) keepings: Keepings,
    pub(crate) leases: Leases,
    /// Who is at work where.
    pub(crate) at_work: AtWork,
    /// One at a time changes what waits for people.
    pub(crate) held: held::Turn,
    pub(crate) recent: Recent,
    /// Whose turn it is to be tried out.
    pub(crate) previews: Turns,
    /// How much is held for review.
    pub(crate) review: review::Held,
    /// Who stands at the door with what may not be on disk yet.
    pub(crate) at_door: AtDoor,
    /// What operators are doing right now.
    pub(crate) acting: Acting,
    /// Turned on when the runtime stops and its grace is over: whatever runs is killed.
    pub(crate) halt: watch::Sender<bool>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("answers", &self.answers)
            .finish_non_exhaustive()
    }
}

/// What the embedder brings; see [`Parts`] for the meaning of each.
#[expect(missing_docs, reason = "each field is documented where it ends up, in Parts")]
pub struct Ingredients {
    pub store: Arc<dyn Store>,
    pub registry: Arc<Registry>,
    pub sandbox: Arc<Sandbox>,
    pub clock: Arc<dyn Clock>,
    pub identity: Arc<Identity>,
    pub space_roots: SpaceRoots,
    pub weights: Weights,
    pub metrics: Metrics,
    pub lease_ttl: Duration,
    pub settings: Settings,
    pub witness: Arc<dyn Witness>,
    pub blobs: Arc<Blobs>,
    pub policy: Arc<Policy>,
}

impl std::fmt::Debug for Ingredients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ingredients")
    }
}

impl Parts {
    /// Puts the parts together.
    pub fn new(from: Ingredients) -> Arc<Self> {
        let control = Control::new(
            &from.settings.control,
            from.settings.in_flight_max,
            &from.store,
            &from.clock,
            &from.metrics,
            &from.registry,
        );
        Arc::new(Self {
            control,
            store: from.store,
            registry: from.registry,
            sandbox: from.sandbox,
            clock: from.clock,
            identity: from.identity,
            space_roots: from.space_roots,
            weights: from.weights,
            metrics: from.metrics,
            lease_ttl: from.lease_ttl,
            settings: from.settings,
            witness: from.witness,
            blobs: from.blobs,
            answers: Answers::default(),
            policy: RwLock::new(from.policy),
            running: Running::default(),
            keepings: Keepings::default(),
            leases: Leases::default(),
            at_work: AtWork::default(),
            held: held::Turn::default(),
            recent: Recent::default(),
            previews: Turns::default(),
            review: review::Held::default(),
            at_door: AtDoor::default(),
            acting: Acting::default(),
            halt: watch::Sender::new(false),
        })
    }

    /// Whether somebody looks at what tools do beyond what they declare: then everybody must say where they are at work.
    pub(crate) fn overreach_matters(&self) -> bool {
        let foreign = || self.registry.iter().any(|entry| entry.source() != Source::Core);
        crate::limits::SCAN_CORE_ENTRIES_MAX.get() > 0 || foreign()
    }

    /// The policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another policy in force, for all actions that reach the gate from now on.
    pub fn set_policy(&self, policy: Arc<Policy>) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = policy;
    }
}
