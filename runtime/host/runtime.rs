//! Opens a state directory, and starts and stops the pipeline on it.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use effectd_actors::approvals::slack;
use effectd_actors::execution::log;
use effectd_actors::limits::{KEY_CHANGE_WAIT_MAX, STOP_MAX};
use effectd_actors::services::webhooks;
use effectd_actors::settings::PluginSettings;
use effectd_actors::{
    Answer, Caches, Incoming, Metrics, Pipeline, Services, ServicesBuilder, Settings, Withdrawal,
};
use effectd_bus::{Blobs, Progress, Store, StoreError, embedded};
use effectd_contracts::{ActionId, ActionRequest, Digest, Failure, KeyEntry, Origin, Principal};
use effectd_gateway::{Gateway, GatewayError, SharedSettings, Stage};
use effectd_policy::dir::DirStamp;
use effectd_policy::{Change, Decider, Overlay, Policy, Preset, Source};
use effectd_sandbox::Sandbox;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinHandle;

use super::file_inspector::WorkspaceInspector;
use super::jobs::{self, Jobs};
use super::policy_queries::plain_text;
use super::policy_reload::{self, FilesStatus, is_of_files};
use crate::desktop::NotificationWorker;
use crate::error::Error;
use crate::settings::config::{Config, JobSettings};
use crate::state::State;
use crate::state::id;
use crate::state::keys;
use crate::state::policy_store;
use crate::state::spaces::{self, Roots};
use crate::tool_registry;

/// How often a stop checks whether the sandbox is gone.
const STOP_CHECK: Duration = Duration::from_millis(2);
/// An opening that replays this many blocks of the journal logs how far it has come. After a crash there are fewer.
const LOGGED_BLOCKS_MIN: u64 = 20_000;

pub struct Runtime {
    opened: Arc<OpenState>,
    pipeline: Arc<Pipeline>,
    principal: Principal,
    interactive: bool,
    stop_grace: Duration,
    policy_watch: JoinHandle<()>,
    notifications: NotificationWorker,
    /// Set by the first [`Runtime::wind_down`]: whether everything was finished.
    wound_down: OnceCell<bool>,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("state", self.state()).finish_non_exhaustive()
    }
}

/// A submitted action, for tests.
#[derive(Debug)]
pub struct Ticket<'a> {
    runtime: &'a Runtime,
    action_id: ActionId,
}

impl Ticket<'_> {
    pub fn action_id(&self) -> &ActionId {
        &self.action_id
    }

    pub async fn receipt(&self) -> Result<Answer, Failure> {
        self.runtime.pipeline.wait(&self.action_id).await
    }
}

impl Runtime {
    /// Starts a runtime and continues the actions that an earlier one left on the bus. The sandbox is tested first: if this
    /// machine cannot confine tools, nothing is created or changed.
    pub async fn start(config: Config) -> Result<Self, Error> {
        let (principal, stop_grace) = (config.principal.clone(), config.stop_grace);
        let (interactive, desktop) = (config.interactive, config.desktop);
        let opened = Arc::new(OpenState::open(config, Depth::Sandbox)?);
        let services = &opened.services;
        let policy_watch = tokio::spawn(policy_reload::watch(
            opened.state.clone(),
            Arc::downgrade(services),
            opened.roots.clone(),
            opened.files_status.clone(),
            opened.files_seen.clone(),
        ));
        let pipeline = Arc::new(Pipeline::start(services.clone()).await?);
        let notifications = NotificationWorker::start(services, desktop);
        Ok(Self {
            opened,
            pipeline,
            principal,
            interactive,
            stop_grace,
            policy_watch,
            notifications,
            wound_down: OnceCell::new(),
        })
    }

    /// Cancels an action that has not started. Callers that wait for the action get its receipt.
    pub async fn cancel(&self, action: &ActionId) -> Result<Withdrawal, Failure> {
        let by = Decider::local(self.principal.clone(), true);
        self.pipeline.cancel(action, &by).await
    }

    /// Carries out a request. Waits for its receipt, or until the action awaits an approval.
    pub async fn exec(&self, request: ActionRequest) -> Answer {
        self.pipeline.exec(self.incoming(request)).await
    }

    /// Puts a request on the bus; the gateway's `backlog_max` does not apply. When this returns, the request is on disk.
    pub async fn submit(&self, request: ActionRequest) -> Result<Ticket<'_>, Failure> {
        let action_id = self.pipeline.submit(self.incoming(request)).await?;
        Ok(Ticket { runtime: self, action_id })
    }

    /// Reads the policy again, puts it in force and returns its digest. A faulty policy is refused and the current one stays. A
    /// space whose path is unchanged keeps its pinned root.
    pub fn reload_policy(&self) -> Result<Digest, Error> {
        self.opened.reload_policy()
    }

    /// Changes the policy in the store, not in its files, and puts it in force. Blocks for one durable write.
    pub fn change_policy(&self, change: Change) -> Result<Digest, Error> {
        self.opened.change_policy(change)
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.opened.services.store
    }

    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    pub fn metrics(&self) -> &prometheus::Registry {
        &self.opened.metrics
    }

    pub(crate) fn state(&self) -> &State {
        &self.opened.state
    }

    /// The gateway to this runtime.
    pub fn gateway(
        &self,
        dial: SharedSettings,
        stage: watch::Receiver<Stage>,
    ) -> Result<Gateway, GatewayError> {
        Gateway::new(self.opened.clone(), Some(self.pipeline.clone()), dial, stage)
    }

    /// Sends events to webhooks until the runtime stops.
    pub(crate) async fn start_webhooks(&self) {
        if let Err(error) = webhooks::start(&self.opened.services, slack::asked).await {
            tracing::error!(%error, "webhooks are not sent until the next start");
        }
    }

    /// Does scheduled jobs until the task is aborted.
    pub(crate) fn start_jobs(&self, settings: &JobSettings) -> Result<JoinHandle<()>, Error> {
        let OpenState { services, state, jobs, .. } = &*self.opened;
        jobs.schedule(settings, &*services.store)?;
        Ok(tokio::spawn(jobs::run(jobs.clone(), Arc::downgrade(services), state.path().to_owned())))
    }

    /// Stops. Running actions are finished within the grace period, or stay on the bus for the next start. Returns whether
    /// everything was finished.
    pub async fn stop(self) -> bool {
        let finished = self.wind_down(std::future::pending()).await;
        let sandbox = Arc::downgrade(&self.pipeline.services().children.sandbox);
        drop(self);
        // The last owner of the sandbox ends its processes. That owner may be an actor that has not ended yet.
        let gone = async {
            while sandbox.strong_count() > 0 {
                tokio::time::sleep(STOP_CHECK).await;
            }
        };
        if tokio::time::timeout(STOP_MAX, gone).await.is_err() {
            tracing::error!("the sandbox did not end in time; it ends with the process");
        }
        finished
    }

    /// The first half of [`Runtime::stop`], while callers still wait for answers: accepts nothing new and finishes running
    /// actions within the grace period, or until `hasten` resolves. Unfinished actions stay on the bus; their callers get
    /// `shutting_down`. Returns whether everything was finished; a second call returns the same.
    pub async fn wind_down(&self, hasten: impl Future<Output = ()>) -> bool {
        *self.wound_down.get_or_init(|| self.close_all(hasten)).await
    }

    async fn close_all(&self, hasten: impl Future<Output = ()>) -> bool {
        self.policy_watch.abort();
        let finished = self.pipeline.stop(self.stop_grace, hasten).await;
        self.notifications.finish(self.stop_grace).await;
        self.pipeline.services().webhooks.stop();
        // A short-lived runtime may end before its sweeper runs, so keys of ended epochs are also destroyed here.
        if let Err(error) = self.store().close_epochs(self.pipeline.services().clock.now()).await {
            tracing::warn!(%error, "ended epoch keys are kept until the next stop");
        }
        let services = self.pipeline.services();
        if let Err(error) = log::head(&*services.store, &services.identity, &*services.clock).await {
            tracing::warn!(%error, "the log ends without a signed head; the next start signs one");
        }
        if let Err(error) = self.store().close() {
            tracing::error!(%error, "the store did not close cleanly");
        }
        finished
    }

    /// Why the pipeline has given up, if it has; then it carries out nothing until a restart.
    pub fn broken(&self) -> Option<String> {
        self.pipeline.broken()
    }

    fn incoming(&self, request: ActionRequest) -> Incoming {
        Incoming {
            request: Arc::new(request),
            principal: self.principal.clone(),
            origin: Origin::Arbiter,
            contract: None,
            interactive: self.interactive,
        }
    }
}

/// How much of a state a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Depth {
    /// The store alone: needs no valid policy and no sandbox.
    Store,
    /// The store and a valid policy.
    Policy,
    /// The store, a valid policy and a sandbox.
    Sandbox,
    /// All of these, and a pipeline that carries out the actions on the bus.
    Pipeline,
}

/// A state directory that this process has locked: everything that a pipeline needs, without the pipeline.
pub(crate) struct OpenState {
    pub(crate) services: Arc<Services>,
    pub(crate) state: State,
    pub(crate) state_id: String,
    pub(crate) roots: Arc<Roots>,
    pub(crate) metrics: prometheus::Registry,
    pub(crate) files_status: Arc<FilesStatus>,
    /// The policy's files before they were read: opening the store takes a while, and an edit meanwhile is noticed.
    files_seen: Option<DirStamp>,
    /// What the daemon does by itself; empty in other processes.
    pub(crate) jobs: Arc<Jobs>,
    /// Held while a candidate policy is started or ended, so that the store and the memory have the same one.
    pub(super) candidate_changes: Mutex<()>,
}

impl OpenState {
    pub(crate) fn open(config: Config, depth: Depth) -> Result<Self, Error> {
        let sandbox = config.sandbox.of(&config.zygote_exe);
        let sandbox = Arc::new(if depth >= Depth::Sandbox {
            Sandbox::start(sandbox)?
        } else {
            Sandbox::closed(sandbox)
        });
        let seed = config.seed_demo.then(|| Preset::Household.files());
        let state = State::prepare(&config.state, config.policy_dir.as_deref(), seed)?
            .with_plugins(&config.pipeline.plugins.root)?;
        let registry = Arc::new(tool_registry::registry(config.tools)?);
        // Checked before the store is opened, so that a state without a valid policy stays unchanged.
        let files_seen = policy_reload::stamp(state.policy_dir());
        let must_be_valid = depth >= Depth::Policy && !config.last_good_policy;
        let checked = must_be_valid.then(|| state.load_policy(&Overlay::default(), &registry)).transpose()?;
        // A command that only reads must not create keys in place of lost ones, which opening the store would do.
        let read_only = depth == Depth::Store;
        if read_only && !state.keys_dir().exists() && state.path().join("log").exists() {
            keys::check_signing(&state.keys_dir())?;
        }
        // The store refuses new work below the minimum; commands end before that.
        let reserve = config.store.disk_free_bytes_min.saturating_mul(2);
        let caches = Caches::new(state.caches_dir()).keeping_free(reserve);
        if depth >= Depth::Sandbox {
            // A command may have filled the disk before the power failed. Opening the store needs some space.
            caches.make_room();
        }
        let metrics = prometheus::Registry::new();
        let store: Arc<dyn Store> = Arc::new(open_store(&state, &config, &metrics)?);
        let state_id = id::ensure(state.path())?;
        if read_only && !log::keys(&*store)?.is_empty() {
            keys::check_signing(&state.keys_dir())?;
        }
        let files_status = Arc::new(FilesStatus::default());
        let loaded = match checked {
            Some(policy) => policy_store::overlaid(&policy, &*store),
            None => policy_store::load(&state, &*store, &registry),
        };
        let policy = match loaded {
            // Below the depth of a policy nothing is decided, and another policy does as well.
            Err(error) if is_of_files(&error) && !must_be_valid => {
                let policy = match policy_store::last_good(&state, &*store) {
                    Ok(Some(policy)) => policy,
                    Ok(None) | Err(_) if depth < Depth::Policy => {
                        let overlay = policy_store::overlay(&*store)?;
                        Policy::compile(&Source::new("version = 1", []), &overlay).map_err(Box::new)?
                    }
                    Ok(None) => return Err(error),
                    Err(worse) => return Err(worse),
                };
                let fault = plain_text(&error, &state);
                if depth >= Depth::Policy {
                    tracing::error!(
                        fault,
                        "the policy's files are not in force; the policy last in force goes on"
                    );
                }
                files_status.set(Some(fault));
                policy
            }
            policy => policy?,
        };
        if depth >= Depth::Sandbox {
            policy_store::keep_good(&*store, policy.source());
        }
        let roots = Arc::new(match Roots::of(&state) {
            // No space is opened at this depth.
            Err(Error::State { .. }) if read_only => Roots::without_pins(&state)?,
            roots => roots?,
        });
        let space_services = Arc::new(OnceLock::new());
        let plugins = PluginSettings { root: state.plugins().to_owned(), ..config.pipeline.plugins };
        let services = Services::new(ServicesBuilder {
            store: store.clone(),
            registry,
            sandbox,
            clock: config.clock,
            identity: Arc::new(keys::current(&state.keys_dir(), &*store)?),
            space_roots: spaces::roots(roots.clone(), space_services.clone()),
            metrics: Metrics::register(&metrics).map_err(Error::internal)?,
            lease_ttl: config.lease_ttl,
            settings: Settings { plugins, ..config.pipeline },
            inspector: Arc::new(WorkspaceInspector),
            blobs: Arc::new(blobs(&state, config.store.blob_quota_bytes)?),
            caches,
            policy: Arc::new(policy),
            egress: tool_registry::egress(&config.zygote_exe, config.listens_at),
            kept_paths: {
                let state = state.clone();
                Arc::new(move |policy| state.kept(policy))
            },
        });
        drop(space_services.set(Arc::downgrade(&services)));
        if depth >= Depth::Sandbox {
            roots.load(&services.policy());
        }
        log::enrol(&*services.store, &services.identity.key(), services.clock.now())?;
        let opened = Self {
            services,
            state,
            state_id,
            roots,
            metrics,
            files_status,
            files_seen,
            jobs: Arc::new(Jobs::default()),
            candidate_changes: Mutex::new(()),
        };
        if depth >= Depth::Policy {
            opened.resume_candidate();
        }
        Ok(opened)
    }

    pub(crate) fn change_policy(&self, change: Change) -> Result<Digest, Error> {
        policy_store::change(&self.state, &*self.services.store, &self.services.registry(), change)?;
        self.reload_policy()
    }

    pub(crate) fn reload_policy(&self) -> Result<Digest, Error> {
        policy_reload::reload(&self.state, &self.services, &self.roots, &self.files_status)
    }

    /// Replaces the signing key. The new key is durable when this returns.
    pub(crate) async fn rotate_key(&self) -> Result<KeyEntry, Error> {
        let services = &self.services;
        let waited = tokio::time::timeout(KEY_CHANGE_WAIT_MAX, services.identity.changing()).await;
        let changing = waited.map_err(|_| {
            let why = "receipts signed by the current key are not written yet; try again later";
            Error::Store(StoreError::unavailable(why))
        })?;
        let (store, now, directory) = (services.store.clone(), services.clock.now(), self.state.keys_dir());
        let rotation = tokio::task::spawn_blocking(move || keys::rotate(&directory, &*store, now)).await;
        let rotation = rotation.map_err(Error::internal)??;
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
    let mut embedded = config.store.of(state.path());
    embedded.progress = logged_progress();
    let store = embedded::open(embedded, config.clock.clone())?;
    store.register_metrics(metrics).map_err(Error::internal)?;
    Ok(store)
}

/// Logs every tenth of an opening that replays much of the journal, as after an upgrade that changed the index.
fn logged_progress() -> Progress {
    let tenth = AtomicU64::new(0);
    Progress::new(move |what, done, total| {
        let reached = if total < LOGGED_BLOCKS_MIN { 0 } else { done * 10 / total };
        if tenth.swap(reached, Ordering::Relaxed) != reached {
            tracing::info!(blocks = done, of = total, "{what}");
        }
    })
}

fn blobs(state: &State, quota_bytes: u64) -> Result<Blobs, Error> {
    let key = keys::blobs(&state.keys_dir())?;
    let blobs = Blobs::new(state.path().join("blobs"), &key, quota_bytes);
    // The open store holds the lock, so no other process is writing these blobs.
    if let Err(error) = blobs.sweep() {
        tracing::warn!(%error, "unfinished blobs could not be removed; effectd tries again when their space is used");
    }
    Ok(blobs)
}
