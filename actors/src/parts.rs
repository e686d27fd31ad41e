//! What all stages use.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Blobs, Store};
use effectd_contracts::{Clock, Failure, SpaceId};
use effectd_policy::Policy;
use effectd_sandbox::{Sandbox, SpaceRoot};
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::answers::Answers;
use crate::at_work::AtWork;
use crate::control::Control;
use crate::decisions::AtDoor;
use crate::held;
use crate::identity::Identity;
use crate::leases::Leases;
use crate::metrics::Metrics;
use crate::operations::Acting;
use crate::preimage::Witness;
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
    pub store: Arc<dyn Store>,
    pub registry: Arc<Registry>,
    pub sandbox: Arc<Sandbox>,
    pub clock: Arc<dyn Clock>,
    pub identity: Arc<Identity>,
    pub space_roots: SpaceRoots,
    pub weights: Weights,
    pub metrics: Metrics,
    /// How long a delivery is held before it goes to someone else, see [`crate::limits::LEASE_TTL`]. A stage that does not
    /// get on for this long loses what it has in hand.
    pub lease_ttl: Duration,
    pub settings: Settings,
    /// Who looks at files before and after.
    pub witness: Arc<dyn Witness>,
    /// What effects replaced, and what tools said at length.
    pub blobs: Arc<Blobs>,
    pub answers: Answers,
    pub control: Control,
    policy: RwLock<Arc<Policy>>,
    pub(crate) running: Running,
    pub(crate) leases: Leases,
    /// Who is at work where.
    pub(crate) at_work: AtWork,
    /// One at a time changes what waits for people.
    pub(crate) held: held::Turn,
    pub(crate) recent: Recent,
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

/// What the embedder brings; [`Parts`] is made from it.
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
            leases: Leases::default(),
            at_work: AtWork::default(),
            held: held::Turn::default(),
            recent: Recent::default(),
            review: review::Held::default(),
            at_door: AtDoor::default(),
            acting: Acting::default(),
            halt: watch::Sender::new(false),
        })
    }

    /// Whether somebody looks at what tools do beyond what they declare: then everybody must say where they are at work.
    pub(crate) fn overreach_matters(&self) -> bool {
        let foreign = || self.registry.iter().any(|entry| entry.source() != Source::Core);
        self.settings.scan_core_entries_max > 0 || foreign()
    }

    pub fn policy(&self) -> Arc<Policy> {
        self.policy.read().clone()
    }

    /// Puts another policy in force, for all actions that reach the gate from now on.
    pub fn set_policy(&self, policy: Arc<Policy>) {
        *self.policy.write() = policy;
    }
}
