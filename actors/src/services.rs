//! Services: what the stages and the functions below them share. The embedder supplies them; all workers use the same value.
//!
//! Of the folders, this one uses only `control` and `registry`: nothing here uses `Action`.

pub mod answers;
pub mod automations;
pub mod caches;
pub mod callers;
pub mod connections;
pub mod connectors;
pub mod egress;
pub mod files;
pub(crate) mod leases;
pub(crate) mod oauth;
pub(crate) mod overlays;
pub mod plugins;
pub(crate) mod recent_receipts;
pub(crate) mod running;
pub mod sessions;
pub mod shadow;
pub mod signer;
pub(crate) mod slack;
pub(crate) mod stdio;
pub mod tokens;
pub mod webhooks;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Blobs, GroupName, Store, StoreError};
use effectd_contracts::{ActionId, Clock, Failure, OrgId, ReceiptId, SpaceId};
use effectd_policy::Policy;
use effectd_sandbox::{Sandbox, SpaceRoot};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::control::Control;
use crate::limits::INTERRUPTED_MAX;
use crate::metrics::Metrics;
use crate::registry::{CurrentRegistry, Registry, RegistryError};
use crate::settings::Settings;

use answers::Answers;
use caches::Caches;
use callers::Callers;
use connections::Connections;
use egress::Egress;
use files::{FileInspector, Files};
use leases::Leases;
use recent_receipts::Known;
use running::Running;
use shadow::Shadow;
use signer::Identity;
use stdio::Programs;
use webhooks::Webhooks;

/// What no program may have by a policy: the roots of all spaces, the state and the policy itself. No path has a link.
pub type KeptPaths = Arc<dyn Fn(&Policy) -> Vec<PathBuf> + Send + Sync>;

/// Opens the root of a space; fails for a space that may not be used.
pub type SpaceRoots = Arc<dyn Fn(&SpaceId) -> Result<SpaceRoot, Failure> + Send + Sync>;

pub struct Services {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    tools: CurrentRegistry,
    /// Signs receipts, and computes keyed digests.
    pub identity: Arc<Identity>,
    pub metrics: Metrics,
    pub settings: Settings,
    policy: RwLock<Arc<Policy>>,
    /// Signals that a change of the policy, of the registry or by an operator may change who may use which tool. A setting that expires
    /// gives no signal.
    pub tools_changed: watch::Sender<()>,
    /// The candidate policy.
    pub shadow: Shadow,
    pub files: Files,
    pub children: Children,
    pub control: Control,
    pub connections: Connections,
    pub(crate) egress: Arc<Egress>,
    /// The programs of connectors by stdio.
    pub(crate) programs: Programs,
    pub(crate) kept_paths: KeptPaths,
    pub webhooks: Webhooks,
    pub(crate) approvals: Approvals,
    pub(crate) in_flight: InFlight,
}

/// The sandbox, and which actions have a child in it.
pub struct Children {
    pub sandbox: Arc<Sandbox>,
    pub(crate) running: Running,
    /// Set when the runtime stops and the grace has passed: every child is killed.
    pub(crate) halt: watch::Sender<bool>,
}

/// What this process has begun and not ended, and who waits for it.
pub(crate) struct InFlight {
    pub(crate) answers: Answers,
    pub(crate) leases: Leases,
    pub(crate) callers: Callers,
    /// Operations of operators: the sweeper must not finish them. Bounded by the number of callers.
    pub(crate) operations: Mutex<HashSet<ActionId>>,
    pub(crate) interrupted: Interrupted,
}

/// Actions with an open intent whose delivery this process gave back. A deferral does not count as a delivery, so intake could
/// not tell them from new ones. Clones share the set.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupted(Arc<Mutex<HashSet<ActionId>>>);

impl Interrupted {
    /// Forgets everything when full: an id stays if its delivery was lost before it was given back.
    pub(crate) fn add(&self, action: ActionId) {
        let mut ids = self.0.lock();
        if ids.len() >= INTERRUPTED_MAX {
            ids.clear();
        }
        ids.insert(action);
    }

    /// Whether the action is one of them. It is no longer one afterwards.
    pub(crate) fn take(&self, action: &ActionId) -> bool {
        self.0.lock().remove(action)
    }
}

/// Holds and grants in the Store.
pub(crate) struct Approvals {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Serialises changes: people decide slowly, and a task that waits for this lock need not retry. The Store's compare-and-swap
    /// decides between them; who gives up an action that is in no hold needs the lock.
    pub(crate) changes: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Services {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Services").field("answers", &self.in_flight.answers).finish_non_exhaustive()
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
    pub metrics: Metrics,
    /// How long a delivery is leased. A stage that takes longer without extending it loses its action.
    pub lease_ttl: Duration,
    pub settings: Settings,
    pub inspector: Arc<dyn FileInspector>,
    pub blobs: Arc<Blobs>,
    /// The caches of named commands.
    pub caches: Caches,
    pub policy: Arc<Policy>,
    pub egress: Arc<Egress>,
    pub kept_paths: KeptPaths,
}

impl Services {
    pub fn new(from: ServicesBuilder) -> Arc<Self> {
        let ServicesBuilder { store, clock, registry, identity, metrics, settings, .. } = from;
        let tools = CurrentRegistry::new(registry);
        let control =
            Control::new(&settings.control, settings.in_flight_max, &store, &clock, &metrics, &tools);
        let halt = watch::Sender::new(false);
        let services = Arc::new(Self {
            programs: Programs::new(from.sandbox.clone(), halt.subscribe()),
            kept_paths: from.kept_paths,
            policy: RwLock::new(from.policy),
            tools_changed: watch::Sender::new(()),
            shadow: Shadow::new(metrics.shadow_decisions.clone()),
            files: Files {
                roots: from.space_roots,
                inspector: from.inspector,
                blobs: from.blobs,
                caches: from.caches,
                identity: identity.clone(),
                store: store.clone(),
                ignoring: Mutex::default(),
            },
            children: Children { sandbox: from.sandbox, running: Running::default(), halt },
            control,
            connections: Connections::load(&*store),
            webhooks: Webhooks::default(),
            approvals: Approvals {
                store: store.clone(),
                clock: clock.clone(),
                changes: tokio::sync::Mutex::default(),
            },
            in_flight: InFlight {
                answers: Answers::default(),
                leases: Leases::new(store.clone(), clock.clone(), from.lease_ttl),
                callers: Callers::default(),
                operations: Mutex::default(),
                interrupted: Interrupted::default(),
            },
            store,
            clock,
            tools,
            identity,
            metrics,
            settings,
            egress: from.egress,
        });
        services.equip();
        services
    }

    pub fn policy(&self) -> Arc<Policy> {
        self.policy.read().clone()
    }

    pub fn registry(&self) -> Arc<Registry> {
        self.tools.get()
    }

    /// Puts another registry in force for all actions that are not validated yet. It must be built from `base`, the one in force.
    pub fn set_registry(&self, base: &Arc<Registry>, next: Registry) -> Result<(), RegistryError> {
        self.tools.swap(base, Arc::new(next))?;
        self.control.breakers.registry_changed(base);
        self.tools_changed.send_replace(());
        Ok(())
    }

    /// The organisation that a space belongs to now.
    pub(crate) fn org_of(&self, space: &SpaceId) -> Option<OrgId> {
        OrgId::new(self.policy().org_of(space)?).ok()
    }

    /// A receipt and the digest of its request; `None` if it cannot be read.
    pub(crate) fn receipt(&self, id: &ReceiptId) -> Option<Known> {
        if let Some(known) = self.in_flight.answers.recent.get(id) {
            return Some(known);
        }
        let stored = self.store.receipt(id).ok().flatten()?;
        let parsed = stored.parse();
        let parsed = parsed.inspect_err(|error| tracing::error!(%error, "a receipt cannot be read"));
        let receipt = Arc::new(parsed.ok()?);
        self.in_flight.answers.recent.put(&receipt, stored.action_digest);
        Some((receipt, stored.action_digest))
    }

    /// Puts another policy in force for all actions that have not reached the gate yet.
    pub fn set_policy(&self, policy: Arc<Policy>) {
        *self.policy.write() = policy;
        // After it, so that a candidate which starts meanwhile gets this overlay, too.
        self.shadow.lay_over(|| self.policy());
        self.tools_changed.send_replace(());
    }
}

/// The consumer group of the pipeline.
pub(crate) fn group() -> Result<GroupName, StoreError> {
    GroupName::new("pipeline")
}
