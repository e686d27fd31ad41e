//! Services: what the stages and the functions below them share. The embedder supplies them; all workers use the same value.
//!
//! Of the folders, this one uses only `control` and `registry`: nothing here uses `Action`.

pub mod answers;
pub mod callers;
pub mod files;
pub(crate) mod leases;
pub(crate) mod recent_receipts;
pub(crate) mod running;
pub mod signer;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Blobs, GroupName, Store, StoreError};
use effectd_contracts::reward::Weights;
use effectd_contracts::{ActionId, Clock, Failure, SpaceId};
use effectd_policy::Policy;
use effectd_sandbox::{Sandbox, SpaceRoot};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::control::Control;
use crate::metrics::Metrics;
use crate::registry::Registry;
use crate::settings::Settings;

use answers::Answers;
use callers::Callers;
use files::{FileInspector, Files};
use leases::Leases;
use recent_receipts::RecentReceipts;
use running::Running;
use signer::Identity;

/// Opens the root of a space; fails for a space that may not be used.
pub type SpaceRoots = Arc<dyn Fn(&SpaceId) -> Result<SpaceRoot, Failure> + Send + Sync>;

pub struct Services {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub registry: Arc<Registry>,
    /// Signs receipts, and computes keyed digests.
    pub identity: Arc<Identity>,
    pub files: Files,
    pub children: Children,
    pub control: Control,
    pub metrics: Metrics,
    pub settings: Settings,
    pub weights: Weights,
    pub answers: Answers,
    policy: RwLock<Arc<Policy>>,
    pub(crate) leases: Leases,
    pub(crate) callers: Callers,
    pub(crate) recent: RecentReceipts,
    /// Serialises changes of holds: people decide slowly, and whoever waits for this lock need not retry. Correctness does not
    /// depend on it: the Store's compare-and-swap decides.
    pub(crate) approvals: tokio::sync::Mutex<()>,
    /// Operations that this process is carrying out: the sweeper must not finish them. Bounded by the number of callers.
    pub(crate) operations: Mutex<HashSet<ActionId>>,
}

/// The sandbox, and which actions have a child in it.
pub struct Children {
    pub sandbox: Arc<Sandbox>,
    pub(crate) running: Running,
    /// Set when the runtime stops and the grace has passed: every child is killed.
    pub(crate) halt: watch::Sender<bool>,
}

impl std::fmt::Debug for Services {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Services").field("answers", &self.answers).finish_non_exhaustive()
    }
}

/// What the embedder supplies.
pub struct ServicesBuilder {
    pub store: Arc<dyn Store>,
    pub registry: Arc<Registry>,
    pub sandbox: Arc<Sandbox>,
    pub clock: Arc<dyn Clock>,
    pub identity: Arc<Identity>,
    pub space_roots: SpaceRoots,
    pub weights: Weights,
    pub metrics: Metrics,
    /// How long a delivery is leased. A stage that takes longer without extending it loses its action.
    pub lease_ttl: Duration,
    pub settings: Settings,
    pub inspector: Arc<dyn FileInspector>,
    pub blobs: Arc<Blobs>,
    pub policy: Arc<Policy>,
}

impl Services {
    pub fn new(from: ServicesBuilder) -> Arc<Self> {
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
            leases: Leases::new(from.store.clone(), from.clock.clone(), from.lease_ttl),
            store: from.store,
            clock: from.clock,
            registry: from.registry,
            identity: from.identity,
            files: Files { roots: from.space_roots, inspector: from.inspector, blobs: from.blobs },
            children: Children {
                sandbox: from.sandbox,
                running: Running::default(),
                halt: watch::Sender::new(false),
            },
            metrics: from.metrics,
            settings: from.settings,
            weights: from.weights,
            answers: Answers::default(),
            policy: RwLock::new(from.policy),
            callers: Callers::default(),
            recent: RecentReceipts::default(),
            approvals: tokio::sync::Mutex::default(),
            operations: Mutex::default(),
        })
    }

    pub fn policy(&self) -> Arc<Policy> {
        self.policy.read().clone()
    }

    /// Puts another policy in force for all actions that have not reached the gate yet.
    pub fn set_policy(&self, policy: Arc<Policy>) {
        *self.policy.write() = policy;
    }
}

/// The consumer group of the pipeline.
pub(crate) fn group() -> Result<GroupName, StoreError> {
    GroupName::new("pipeline")
}
