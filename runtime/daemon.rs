//! The daemon: a runtime that serves the gateway's socket until a signal stops it.

pub(crate) mod service_manager;
pub(crate) mod signals;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use effectd_actors::metrics::IN_FLIGHT;
use effectd_gateway::metrics::{BACKLOG, CONNECTIONS, REQUESTS_TOTAL};
use effectd_gateway::socket::make_private;
use effectd_gateway::{Readiness, Scrape, SharedSettings, Socket, Stage, Tcp};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::error::{AtPath, Error, chain};
use crate::host::runtime::Runtime;
use crate::settings::config::Config;
use crate::settings::{Settings, default_socket};
use crate::telemetry::LogDial;
use service_manager::ServiceManager;
use signals::{SignalEvent, Signals};

/// The default state directory of `effectd serve`.
pub(crate) const SERVE_STATE_DEFAULT: &str = "/var/lib/effectd";
/// How often the start checks whether the daemon can accept work.
const READY_CHECK: Duration = Duration::from_millis(5);
/// How often a daemon that stops when idle looks whether it is, at most.
const IDLE_CHECK: Duration = Duration::from_secs(5);

/// Where the log of a daemon is that `effectd mcp` has started.
pub(crate) const LOG: &str = "run/daemon.log";
const LOG_BYTES_MAX: u64 = 1_048_576;

/// Reads the settings again, for a reload.
pub(crate) type ReadSettings = Box<dyn Fn() -> Result<Settings, String> + Send + Sync>;

/// Serves until a signal arrives, the pipeline gives up, or the daemon has been idle for `idle_exit`.
pub(crate) async fn serve(
    mut config: Config,
    settings: Settings,
    log: LogDial,
    read_settings: ReadSettings,
    idle_exit: Option<Duration>,
) -> Result<(), Error> {
    // Listen before anything starts, so that no signal is missed.
    let mut signals = Signals::listen_with_reload()?;
    settings.apply(&mut config);
    let state = config.state.clone();
    let runtime = tokio::select! {
        biased;
        () = signals.stop() => return Ok(()),
        runtime = Runtime::start(config) => Arc::new(runtime?),
    };
    let mut daemon = Daemon::open(runtime, &state, settings, log, read_settings).await?;
    let ended = daemon.run(&mut signals, &state, idle_exit).await;
    daemon.close(&mut signals).await;
    ended
}

struct Daemon {
    runtime: Arc<Runtime>,
    settings: Settings,
    dial: SharedSettings,
    log: LogDial,
    read_settings: ReadSettings,
    vitals: Readiness,
    stage: watch::Sender<Stage>,
    gateway: JoinHandle<()>,
    jobs: JoinHandle<()>,
    socket: PathBuf,
    /// Where it listens on the network.
    url: Option<String>,
    service_manager: ServiceManager,
}

impl Daemon {
    async fn open(
        runtime: Arc<Runtime>,
        state: &Path,
        settings: Settings,
        log: LogDial,
        read_settings: ReadSettings,
    ) -> Result<Self, Error> {
        let path = std::path::absolute(settings.socket(state)).unwrap_or_else(|_| settings.socket(state));
        if let Some(folder) = default_socket(state).parent() {
            make_private(folder).at(folder)?;
        }
        let socket = Socket::bind(&path, settings.socket_mode())?;
        let scrape = match settings.values().telemetry_listen {
            Some(address) => Some(Scrape::bind(address).await?),
            None => None,
        };
        let tcp = Tcp::bind(&settings.values().door).await?;
        let url = tcp.as_ref().map(|tcp| tcp.url().to_owned());
        let (stage, open) = watch::channel(Stage::Open);
        let dial = SharedSettings::new(door(&settings));
        let gateway = runtime.gateway(dial.clone(), open)?;
        runtime.start_webhooks().await;
        let jobs = runtime.start_jobs(&settings.values().jobs)?;
        Ok(Self {
            runtime,
            jobs,
            vitals: gateway.readiness(),
            settings,
            dial,
            log,
            read_settings,
            stage,
            gateway: tokio::spawn(gateway.serve(socket, scrape, tcp)),
            socket: path,
            url,
            service_manager: ServiceManager::from_environment(),
        })
    }

    /// Handles signals and reports health to the service manager. Returns at a signal to stop, or after `idle_exit`; fails if the
    /// pipeline gives up.
    async fn run(
        &mut self,
        signals: &mut Signals,
        state: &Path,
        idle_exit: Option<Duration>,
    ) -> Result<(), Error> {
        let (runtime, vitals) = (self.runtime.clone(), self.vitals.clone());
        let look = || {
            // Only a daemon that `effectd mcp` has started has one.
            let _ = bound_log(state);
            activity(runtime.metrics())
        };
        let mut idle = std::pin::pin!(idle(idle_exit, look));
        let mut broken = std::pin::pin!(runtime.pipeline().fatal());
        let mut ready = std::pin::pin!(ready(&vitals));
        let mut is_ready = false;
        // Without a watchdog, a check every hour is enough.
        let every = self.service_manager.watchdog_every().unwrap_or(Duration::from_secs(3_600));
        let mut beat = interval_at(Instant::now() + every, every);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                event = signals.next() => match event {
                    SignalEvent::Stop => return Ok(()),
                    SignalEvent::Reload => self.reload().await,
                },
                reason = &mut broken => return Err(Error::Broken(reason)),
                () = &mut idle => {
                    tracing::info!("nobody needs this daemon any more");
                    return Ok(());
                }
                () = &mut ready, if !is_ready => {
                    is_ready = true;
                    tracing::info!(socket = %self.socket.display(), "ready");
                    if let Some(url) = &self.url {
                        // For scripts that let the kernel choose the port; nobody has to read it.
                        let _ = writeln!(std::io::stdout(), "listening on {url}");
                    }
                    self.service_manager.ready(&format!("listening on {}", self.socket.display()));
                }
                _ = beat.tick() => match self.vitals.unhealthy() {
                    None => self.service_manager.alive(),
                    // The daemon sends no sign of life, so the service manager restarts it.
                    Some(trouble) => {
                        tracing::error!(trouble, "the daemon is unhealthy");
                        self.service_manager.status(trouble);
                    }
                },
            }
        }
    }

    /// Applies a changed policy and changed settings, and logs which settings need a restart.
    async fn reload(&mut self) {
        let runtime = self.runtime.clone();
        match tokio::task::spawn_blocking(move || runtime.reload_policy()).await {
            Ok(Ok(digest)) => tracing::info!(policy = %digest, "the policy was reloaded"),
            Ok(Err(error)) => {
                tracing::error!(error = chain(&error), "the policy cannot be used; the current one stays");
            }
            Err(error) => tracing::error!(%error, "the policy could not be reloaded"),
        }
        match (self.read_settings)() {
            Ok(now) => self.take_over(&now),
            Err(error) => tracing::error!(error, "the settings cannot be used; the current ones stay"),
        }
    }

    fn take_over(&mut self, now: &Settings) {
        let changes = self.settings.take_over(now);
        if !changes.taken.is_empty() {
            self.dial.set(door(&self.settings));
            if let Err(error) = self.log.turn(&self.settings.values().log_level) {
                tracing::error!(error, "log.level cannot be used; the current level stays");
            }
            tracing::info!(keys = changes.taken.join(", "), "these settings are in force now");
        }
        if !changes.left.is_empty() {
            tracing::warn!(
                keys = changes.left.join(", "),
                "these settings have changed; they need a restart to take effect"
            );
        }
    }

    /// Stops: accepts no new connections, finishes running actions, and answers waiting clients.
    async fn close(self, signals: &mut Signals) {
        self.service_manager.stopping();
        tracing::info!("stopping; a second signal stops at once");
        self.stage.send_replace(Stage::Closing);
        self.jobs.abort();
        let finished = self.runtime.wind_down(signals.stop()).await;
        self.stage.send_replace(Stage::Closed);
        if let Err(error) = self.gateway.await {
            tracing::error!(%error, "the gateway did not close cleanly");
        }
        match Arc::try_unwrap(self.runtime) {
            Ok(runtime) => drop(runtime.stop().await),
            // A policy reload still waits for the disk; the process ends without waiting for it.
            Err(_) => tracing::warn!("the runtime is still in use"),
        }
        tracing::info!(finished, "stopped");
    }
}

/// The gateway's settings, within the files that this process may open: as many as its user may allow it. The usual limit is far lower,
/// for programs that use `select`; each sandboxed call has its own.
fn door(settings: &Settings) -> effectd_gateway::Settings {
    let door = settings.values().door.clone();
    let Ok((usual, most)) = getrlimit(Resource::RLIMIT_NOFILE) else { return door };
    let raised = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    let files = raised.map_or(usual, |()| most);
    door.within_files(usize::try_from(files).unwrap_or(usize::MAX))
}

/// Resolves when the daemon can accept work.
async fn ready(vitals: &Readiness) {
    while vitals.unhealthy().is_some() {
        tokio::time::sleep(READY_CHECK).await;
    }
}

/// What the daemon has to do.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Activity {
    is_busy: bool,
    /// Requests so far: one may come and go between two looks.
    requests: f64,
}

fn activity(metrics: &prometheus::Registry) -> Activity {
    let families = metrics.gather();
    let sum = |name: &str| -> f64 {
        let family = families.iter().filter(|family| family.name() == name);
        let values = family.flat_map(|family| family.get_metric());
        values.map(|metric| metric.get_gauge().get_value() + metric.get_counter().get_value()).sum()
    };
    let is_busy = [CONNECTIONS, BACKLOG, IN_FLIGHT].iter().any(|name| sum(name) > 0.0);
    Activity { is_busy, requests: sum(REQUESTS_TOTAL) }
}

/// Empties the log if it is too long. Its writers append, so they go on at its beginning.
pub(crate) fn bound_log(state: &Path) -> std::io::Result<()> {
    let log = OpenOptions::new().write(true).open(state.join(LOG))?;
    if log.metadata()?.len() > LOG_BYTES_MAX { log.set_len(0) } else { Ok(()) }
}

/// Resolves when there has been nothing to do for this long; never without a time.
async fn idle(after: Option<Duration>, look: impl Fn() -> Activity) {
    let Some(after) = after else {
        return std::future::pending().await;
    };
    let (mut since, mut requests) = (Instant::now(), 0.0);
    loop {
        tokio::time::sleep((after / 4).min(IDLE_CHECK)).await;
        let now = look();
        if now.is_busy || now.requests > requests {
            (since, requests) = (Instant::now(), now.requests);
        } else if since.elapsed() >= after {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_log_that_is_too_long_begins_again() {
        let state = tempfile::tempdir().unwrap();
        assert!(bound_log(state.path()).is_err(), "there is none");
        std::fs::create_dir(state.path().join("run")).unwrap();
        let file = state.path().join(LOG);
        let mut log = OpenOptions::new().create(true).append(true).open(&file).unwrap();
        log.write_all(&vec![b'x'; 1_048_576]).unwrap();
        bound_log(state.path()).unwrap();
        log.write_all(b"x").unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 1_048_577);
        bound_log(state.path()).unwrap();
        log.write_all(b"on").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"on");
    }

    #[tokio::test]
    async fn a_daemon_is_idle_when_nobody_asked_for_long_enough() {
        // Somebody is connected, then asks something between two looks, then nobody.
        let looks = Cell::new(0_u32);
        let look = || {
            looks.set(looks.get() + 1);
            Activity { is_busy: looks.get() <= 20, requests: f64::from(looks.get().min(40)) }
        };
        idle(Some(Duration::from_millis(8)), look).await;
        // How many looks follow the last request depends on the machine.
        assert!(looks.get() > 40, "{}", looks.get());
    }
}
