//! Puts the parts together and takes them apart again.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use effectd_actors::limits::{KEY_CHANGE_WAIT_MAX, STOP_MAX};
use effectd_actors::withdraw::withdraw;
use effectd_actors::{
    Answer, Canceller, Incoming, Ingredients, Metrics, Parts, Pipeline, Registry, Withdrawal, log,
};
use effectd_bus::limits::BLOB_QUOTA_BYTES;
use effectd_bus::{Blobs, Store, StoreError, embedded};
use effectd_contracts::{ActionId, ActionRequest, Digest, Failure, KeyEntry, Origin, Principal};
use effectd_policy::{Change, Overlay};
use effectd_sandbox::Sandbox;
use tokio::sync::OnceCell;

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
    pipeline: Pipeline,
    store: Arc<dyn Store>,
    metrics: prometheus::Registry,
    principal: Principal,
    interactive: bool,
    state: State,
    roots: Arc<Roots>,
    stop_grace: Duration,
    watch: tokio::task::JoinHandle<()>,
    broker: Broker,
    /// Whether everything was finished, once it is wound down: what is closed is not closed again.
    wound_down: OnceCell<bool>,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime")
            .field("state", &self.state)
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
        let Assembled {
            parts,
            state,
            roots,
            metrics,
        } = assemble(config)?;
        let store = parts.store.clone();
        let watch = tokio::spawn(reload::watch(
            state.clone(),
            Arc::downgrade(&parts),
            roots.clone(),
        ));
        let pipeline = Pipeline::start(parts.clone()).await?;
        let broker = Broker::start(&parts, desktop);
        drop(parts);
        Ok(Self {
            pipeline,
            store,
            metrics,
            principal,
            interactive,
            state,
            roots,
            stop_grace,
            watch,
            broker,
            wound_down: OnceCell::new(),
        })
    }

    /// Withdraws an action on a state directory that nobody else uses, without starting anything that could begin it
    /// meanwhile. Whoever may open the state directory may withdraw everything in it.
    pub async fn cancel_stored(
        config: Config,
        action: &ActionId,
    ) -> Result<Result<Withdrawal, Failure>, Error> {
        let by = Canceller {
            principal: config.principal.clone(),
            operator: true,
        };
        let parts = assemble(config)?.parts;
        let withdrawn = withdraw(&parts, action, &by).await;
        parts.store.close()?;
        Ok(withdrawn)
    }

    /// Works on a state directory that nobody else uses, without starting anything.
    pub async fn on_stored<T>(
        config: Config,
        work: impl AsyncFnOnce(&Arc<Parts>, &State) -> T,
    ) -> Result<T, Error> {
        let Assembled { parts, state, .. } = assemble(config)?;
        let done = work(&parts, &state).await;
        parts.store.close()?;
        Ok(done)
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
        reload::reload(&self.state, self.pipeline.parts(), &self.roots)
    }

    /// Makes a change to the policy beside its files, and puts it in force. Blocks for one durable write.
    pub fn change_policy(&self, change: Change) -> Result<Digest, Error> {
        policy_store::change(&self.state, &*self.store, change)?;
        self.reload_policy()
    }

    /// Makes a new signing key and lets it sign from now on, while everything goes on. Durable when it returns. Carried to
    /// its end also when nobody waits for it any more.
    pub async fn rotate_key(&self) -> Result<KeyEntry, Error> {
        let (parts, state) = (self.pipeline.parts().clone(), self.state.clone());
        tokio::spawn(async move { rotate_key(&parts, &state).await })
            .await
            .map_err(|error| Error::Internal(error.to_string()))?
    }

    /// What is remembered.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The pipeline itself.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The figures, for whoever exports them.
    pub fn metrics(&self) -> &prometheus::Registry {
        &self.metrics
    }

    /// Where everything is kept.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The roots of the spaces.
    pub(crate) fn roots(&self) -> &Roots {
        &self.roots
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
        if tokio::time::timeout(STOP_MAX.get(), gone).await.is_err() {
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
        self.broker.finish().await;
        // A runtime that never lives long enough for the sweeper must not keep the keys of ended hours either.
        if let Err(error) = self.store.close_epochs(self.pipeline.parts().clock.now()).await {
            tracing::warn!(%error, "the keys of ended hours are kept until the next stop");
        }
        if let Err(error) = log::head(self.pipeline.parts()).await {
            tracing::warn!(%error, "the log ends without a signed head; the next start signs one");
        }
        if let Err(error) = self.store.close() {
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

/// Makes a new signing key and lets it sign from now on. Durable when it returns.
pub(crate) async fn rotate_key(parts: &Arc<Parts>, state: &State) -> Result<KeyEntry, Error> {
    let waited = tokio::time::timeout(KEY_CHANGE_WAIT_MAX, parts.identity.changing()).await;
    let changing = waited.map_err(|_| {
        let why = "what the key has signed is not written yet; ask again later";
        Error::Store(StoreError::Unavailable {
            reason: why.to_owned(),
        })
    })?;
    let (store, now, directory) = (parts.store.clone(), parts.clock.now(), state.keys_dir());
    let rotation = tokio::task::spawn_blocking(move || keys::rotate(&directory, &*store, now)).await;
    let rotation = rotation.map_err(|error| Error::Internal(error.to_string()))??;
    changing.set(rotation.key);
    rotation.in_place?;
    Ok(rotation.entry)
}

/// Everything that a pipeline is made of, and nothing that moves yet.
struct Assembled {
    parts: Arc<Parts>,
    state: State,
    roots: Arc<Roots>,
    metrics: prometheus::Registry,
}

fn assemble(config: Config) -> Result<Assembled, Error> {
    let sandbox = Arc::new(Sandbox::start(config.sandbox.of(&config.zygote_exe))?);
    let state = State::prepare(&config.state, config.seed_demo)?;
    // Before the store is opened: a state without a usable policy stays as it is.
    state.load_policy(&Overlay::default())?;
    let metrics = prometheus::Registry::new();
    let store: Arc<dyn Store> = Arc::new(open_store(&state, &config, &metrics)?);
    let roots = Arc::new(Roots::of(&state)?);
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
        blobs: Arc::new(blobs(&state)?),
        policy: Arc::new(policy_store::load(&state, &*store)?),
    });
    drop(space_parts.set(Arc::downgrade(&parts)));
    roots.load(&parts.policy());
    log::enrol(&*parts.store, &parts.identity.key(), parts.clock.now())?;
    Ok(Assembled {
        parts,
        state,
        roots,
        metrics,
    })
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

/// The blobs of a state directory.
pub(crate) fn blobs(state: &State) -> Result<Blobs, Error> {
    let key = keys::blobs(&state.keys_dir())?;
    let blobs = Blobs::new(state.path().join("blobs"), &key, BLOB_QUOTA_BYTES.get());
    // The store is open, and so nobody else uses this state.
    if let Err(error) = blobs.sweep() {
        tracing::warn!(%error, "unfinished blobs are not swept; it is tried again when their space is used");
    }
    Ok(blobs)
}

/// Every tool that effectd brings, with its parameter rules.
pub fn registry() -> Result<Registry, Error> {
    Ok(tools::registry(&[])?)
}
