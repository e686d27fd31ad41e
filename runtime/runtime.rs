//! Puts the parts together and takes them apart again.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use effectd_actors::limits::{KEY_CHANGE_WAIT_MAX, STOP_MAX};
use effectd_actors::{Answer, Canceller, Incoming, Ingredients, Metrics, Parts, Pipeline, Withdrawal, log};
use effectd_bus::{Blobs, Store, StoreError, embedded};
use effectd_contracts::{ActionId, ActionRequest, Digest, Failure, KeyEntry, Origin, Principal};
use effectd_gateway::server::Stage;
use effectd_gateway::{Dial, Gateway, GatewayError};
use effectd_policy::{Change, Overlay, Policy, Source};
use effectd_sandbox::Sandbox;
use tokio::sync::{OnceCell, watch};

use crate::config::Config;
use crate::desktop::Broker;
use crate::error::Error;
use crate::keys;
use crate::policy_store;
use crate::reload;
use crate::spaces::{self, Roots};
use crate::state::State;
use crate::tools;
use crate::witness::Eyes;

/// How often is looked whether it has.
const STOP_LOOK: Duration = Duration::from_millis(2);

/// A running runtime.
pub struct Runtime {
    opened: Arc<Opened>,
    pipeline: Arc<Pipeline>,
    principal: Principal,
    interactive: bool,
    stop_grace: Duration,
    watch: tokio::task::JoinHandle<()>,
    broker: Broker,
    /// Whether everything was finished, once it is wound down: what is closed is not closed again.
    wound_down: OnceCell<bool>,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime")
            .field("state", self.state())
            .finish_non_exhaustive()
    }
}

/// A submitted action: something to wait for.
#[derive(Debug)]
pub struct Ticket<'a> {
    runtime: &'a Runtime,
    action_id: ActionId,
}

impl Ticket<'_> {
    /// Which action.
    pub fn action_id(&self) -> &ActionId {
        &self.action_id
    }

    /// Waits for the action's receipt.
    pub async fn receipt(&self) -> Result<Answer, Failure> {
        self.runtime.pipeline.wait(&self.action_id).await
    }
}

impl Runtime {
    /// Starts a runtime, and with it the replay of what an earlier one left on its bus. The host is asked first whether it
    /// can confine tools: if not, nothing is made or changed.
    pub async fn start(config: Config) -> Result<Self, Error> {
        let (principal, stop_grace) = (config.principal.clone(), config.stop_grace);
        let (interactive, desktop) = (config.interactive, config.desktop);
        let opened = Arc::new(Opened::open(config, Depth::Sandbox)?);
        let parts = &opened.parts;
        let watch = tokio::spawn(reload::watch(
            opened.state.clone(),
            Arc::downgrade(parts),
            opened.roots.clone(),
        ));
        let pipeline = Arc::new(Pipeline::start(parts.clone()).await?);
        let broker = Broker::start(parts, desktop);
        Ok(Self {
            opened,
            pipeline,
            principal,
            interactive,
            stop_grace,
            watch,
            broker,
            wound_down: OnceCell::new(),
        })
    }

    /// Withdraws an action that has not started. Whoever waits for it gets the receipt that says so.
    pub async fn cancel(&self, action: &ActionId) -> Result<Withdrawal, Failure> {
        let by = Canceller {
            principal: self.principal.clone(),
            operator: true,
        };
        self.pipeline.cancel(action, &by).await
    }

    /// Has a request carried out, and waits for the answer: its receipt, or that it waits for a person.
    pub async fn exec(&self, request: ActionRequest) -> Answer {
        self.pipeline.exec(self.incoming(request)).await
    }

    /// Puts a request on the bus. When this returns, it is on disk and will be carried out or refused, whatever dies.
    pub async fn submit(&self, request: ActionRequest) -> Result<Ticket<'_>, Failure> {
        let action_id = self.pipeline.submit(self.incoming(request)).await?;
        Ok(Ticket {
            runtime: self,
            action_id,
        })
    }

    /// Reads the policy anew and puts it in force, and answers its digest. A faulty one is refused, and the one in force
    /// stays. Each space keeps its root.
    pub fn reload_policy(&self) -> Result<Digest, Error> {
        self.opened.reload_policy()
    }

    /// Makes a change to the policy beside its files, and puts it in force. Blocks for one durable write.
    pub fn change_policy(&self, change: Change) -> Result<Digest, Error> {
        self.opened.change_policy(change)
    }

    /// What is remembered.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.opened.parts.store
    }

    /// The pipeline itself.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The figures, for whoever exports them.
    pub fn metrics(&self) -> &prometheus::Registry {
        &self.opened.metrics
    }

    /// Where everything is kept.
    pub fn state(&self) -> &State {
        &self.opened.state
    }

    pub(crate) fn gateway(&self, dial: Dial, stage: watch::Receiver<Stage>) -> Result<Gateway, GatewayError> {
        Gateway::new(self.opened.clone(), Some(self.pipeline.clone()), dial, stage)
    }

    /// Stops. What is on its way is finished within the grace, or stays on the bus for the next start. Says whether
    /// everything was finished.
    pub async fn stop(self) -> bool {
        let finished = self.wind_down(std::future::pending()).await;
        let sandbox = Arc::downgrade(&self.pipeline.parts().sandbox);
        drop(self);
        // The last holder of the sandbox ends its processes; actors that are just ending may be that.
        let gone = async {
            while sandbox.strong_count() > 0 {
                tokio::time::sleep(STOP_LOOK).await;
            }
        };
        if tokio::time::timeout(STOP_MAX, gone).await.is_err() {
            tracing::error!("the sandbox did not end in time; it ends with the process");
        }
        finished
    }

    /// The first part of [`Runtime::stop`], for programs that still wait for answers: no new work is taken, what is on its
    /// way is finished within the grace or until `hasten` resolves, and whatever is left stays on the bus. Who waits for
    /// that is told that the runtime is stopping. Says whether everything was finished; asked again, it says the same.
    pub async fn wind_down(&self, hasten: impl Future<Output = ()>) -> bool {
        *self.wound_down.get_or_init(|| self.close_all(hasten)).await
    }

    async fn close_all(&self, hasten: impl Future<Output = ()>) -> bool {
        self.watch.abort();
        let finished = self.pipeline.stop(self.stop_grace, hasten).await;
        self.broker.finish(self.stop_grace).await;
        // A runtime that never lives long enough for the sweeper must not keep the keys of ended hours either.
        if let Err(error) = self.store().close_epochs(self.pipeline.parts().clock.now()).await {
            tracing::warn!(%error, "the keys of ended hours are kept until the next stop");
        }
        if let Err(error) = log::head(self.pipeline.parts()).await {
            tracing::warn!(%error, "the log ends without a signed head; the next start signs one");
        }
        if let Err(error) = self.store().close() {
            tracing::error!(%error, "the store did not close cleanly");
        }
        finished
    }

    /// Why the runtime has given up, if it has. Nothing is carried out any more then: stop, and start anew.
    pub fn broken(&self) -> Option<String> {
        self.pipeline.broken()
    }

    fn incoming(&self, request: ActionRequest) -> Incoming {
        Incoming {
            request: Arc::new(request),
            principal: self.principal.clone(),
            origin: Origin::Arbiter,
            interactive: self.interactive,
        }
    }
}

/// How much of a state is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Depth {
    /// What is remembered: it can be read whatever the policy and the kernel are like.
    Store,
    /// And a policy that can be used.
    Policy,
    /// And a kernel that can confine tools.
    Sandbox,
    /// And a pipeline that carries out what is on the bus.
    Pipeline,
}

/// A state that this process has for itself: everything that a pipeline is made of, and nothing that moves yet.
pub(crate) struct Opened {
    pub(crate) parts: Arc<Parts>,
    pub(crate) state: State,
    pub(crate) roots: Arc<Roots>,
    pub(crate) metrics: prometheus::Registry,
}

impl Opened {
    pub(crate) fn open(config: Config, depth: Depth) -> Result<Self, Error> {
        let sandbox = config.sandbox.of(&config.zygote_exe);
        let sandbox = Arc::new(if depth >= Depth::Sandbox {
            Sandbox::start(sandbox)?
        } else {
            Sandbox::closed(sandbox)
        });
        let state = State::prepare(&config.state, config.seed_demo)?;
        if depth >= Depth::Policy {
            // Before the store is opened: a state without a usable policy stays as it is.
            state.load_policy(&Overlay::default())?;
        }
        // Who only looks makes no keys in place of those that are gone; the store itself would, in a folder without any.
        let looks = depth == Depth::Store;
        if looks && !state.keys_dir().exists() && state.path().join("log").exists() {
            keys::check_signing(&state.keys_dir())?;
        }
        let metrics = prometheus::Registry::new();
        let store: Arc<dyn Store> = Arc::new(open_store(&state, &config, &metrics)?);
        if looks && !log::keys(&*store)?.is_empty() {
            keys::check_signing(&state.keys_dir())?;
        }
        let policy = match policy_store::load(&state, &*store) {
            // Nothing is decided by it.
            Err(Error::Policy(_) | Error::StateInSpace { .. }) if depth < Depth::Policy => {
                Policy::compile(&Source::new("version = 1", []), &Overlay::default()).map_err(Box::new)?
            }
            policy => policy?,
        };
        let roots = Arc::new(match Roots::of(&state) {
            // No space is used.
            Err(Error::State { .. }) if looks => Roots::without_pins(&state)?,
            roots => roots?,
        });
        let space_parts = Arc::new(OnceLock::new());
        let parts = Parts::new(Ingredients {
            store: store.clone(),
            registry: Arc::new(tools::registry(config.tools)?),
            sandbox,
            clock: config.clock,
            identity: Arc::new(keys::current(&state.keys_dir(), &*store)?),
            space_roots: spaces::roots(roots.clone(), space_parts.clone()),
            weights: config.weights,
            metrics: Metrics::register(&metrics).map_err(|error| Error::Internal(error.to_string()))?,
            lease_ttl: config.lease_ttl,
            settings: config.pipeline,
            witness: Arc::new(Eyes),
            blobs: Arc::new(blobs(&state, config.store.blob_quota_bytes)?),
            policy: Arc::new(policy),
        });
        drop(space_parts.set(Arc::downgrade(&parts)));
        if depth >= Depth::Sandbox {
            roots.load(&parts.policy());
        }
        log::enrol(&*parts.store, &parts.identity.key(), parts.clock.now())?;
        Ok(Self {
            parts,
            state,
            roots,
            metrics,
        })
    }

    /// Makes a change to the policy beside its files, and puts it in force.
    pub(crate) fn change_policy(&self, change: Change) -> Result<Digest, Error> {
        policy_store::change(&self.state, &*self.parts.store, change)?;
        self.reload_policy()
    }

    pub(crate) fn reload_policy(&self) -> Result<Digest, Error> {
        reload::reload(&self.state, &self.parts, &self.roots)
    }

    /// Makes a new signing key and lets it sign from now on. Durable when it returns.
    pub(crate) async fn rotate_key(&self) -> Result<KeyEntry, Error> {
        let parts = &self.parts;
        let waited = tokio::time::timeout(KEY_CHANGE_WAIT_MAX, parts.identity.changing()).await;
        let changing = waited.map_err(|_| {
            let why = "what the key has signed is not written yet; ask again later";
            Error::Store(StoreError::Unavailable {
                reason: why.to_owned(),
            })
        })?;
        let (store, now, directory) = (parts.store.clone(), parts.clock.now(), self.state.keys_dir());
        let rotation = tokio::task::spawn_blocking(move || keys::rotate(&directory, &*store, now)).await;
        let rotation = rotation.map_err(|error| Error::Internal(error.to_string()))??;
        changing.set(rotation.key);
        rotation.in_place?;
        Ok(rotation.entry)
    }
}

fn open_store(
    state: &State,
    config: &Config,
    metrics: &prometheus::Registry,
) -> Result<impl Store + use<>, Error> {
    let store = embedded::open(config.store.of(state.path()), config.clock.clone())?;
    let registered = store.register_metrics(metrics);
    registered.map_err(|error| Error::Internal(error.to_string()))?;
    Ok(store)
}

pub(crate) fn blobs(state: &State, quota_bytes: u64) -> Result<Blobs, Error> {
    let key = keys::blobs(&state.keys_dir())?;
    let blobs = Blobs::new(state.path().join("blobs"), &key, quota_bytes);
    // The store is open, and so nobody else uses this state.
    if let Err(error) = blobs.sweep() {
        tracing::warn!(%error, "unfinished blobs are not swept; it is tried again when their space is used");
    }
    Ok(blobs)
}

/// Every tool that effectd brings, with its parameter rules.
pub fn registry() -> Result<effectd_actors::Registry, Error> {
    Ok(tools::registry(&[])?)
}
