//! The long-running runtime, with its door, until somebody tells it to stop.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use effectd_gateway::server::{Stage, Vitals};
use effectd_gateway::{Dial, Socket};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::config::Config;
use crate::error::Error;
use crate::notify::Notifier;
use crate::runtime::Runtime;
use crate::settings::Settings;
use crate::signals::{Signals, Told};
use crate::telemetry::LogDial;

/// Where `effectd serve` keeps everything, unless another place is named.
pub const SERVE_STATE_DEFAULT: &str = "/var/lib/effectd";
/// How often is looked whether the store has answered for the first time.
const READY_LOOK: Duration = Duration::from_millis(5);

/// Reads the settings anew, for a reload.
pub type Reread = Box<dyn Fn() -> Result<Settings, String> + Send + Sync>;

/// Serves until a signal ends it, or until the runtime itself has given up.
pub async fn serve(
    mut config: Config,
    settings: Settings,
    log: LogDial,
    reread: Reread,
) -> Result<(), Error> {
    // First of all, so that no signal finds us without ears.
    let mut signals = Signals::listen_with_reload()?;
    settings.apply(&mut config);
    let state = config.state.clone();
    let runtime = tokio::select! {
        biased;
        () = signals.stop() => return Ok(()),
        runtime = Runtime::start(config) => Arc::new(runtime?),
    };
    let mut daemon = Daemon::open(runtime, &state, settings, log, reread)?;
    let ended = daemon.watch(&mut signals).await;
    daemon.close(&mut signals).await;
    ended
}

struct Daemon {
    runtime: Arc<Runtime>,
    settings: Settings,
    dial: Dial,
    log: LogDial,
    reread: Reread,
    vitals: Vitals,
    stage: watch::Sender<Stage>,
    door: JoinHandle<()>,
    socket: PathBuf,
    notifier: Notifier,
}

impl Daemon {
    fn open(
        runtime: Arc<Runtime>,
        state: &Path,
        settings: Settings,
        log: LogDial,
        reread: Reread,
    ) -> Result<Self, Error> {
        let path = std::path::absolute(settings.socket(state)).unwrap_or_else(|_| settings.socket(state));
        let socket = Socket::bind(&path, settings.socket_mode())?;
        let (stage, open) = watch::channel(Stage::Open);
        let dial = Dial::new(settings.values().door.clone());
        let gateway = runtime.gateway(dial.clone(), open)?;
        Ok(Self {
            runtime,
            vitals: gateway.vitals(),
            settings,
            dial,
            log,
            reread,
            stage,
            door: tokio::spawn(gateway.serve(socket)),
            socket: path,
            notifier: Notifier::from_environment(),
        })
    }

    /// Looks after everything until it is time to stop.
    async fn watch(&mut self, signals: &mut Signals) -> Result<(), Error> {
        let (runtime, vitals) = (self.runtime.clone(), self.vitals.clone());
        let mut broken = std::pin::pin!(runtime.pipeline().fatal());
        let mut ready = std::pin::pin!(ready(&vitals));
        let mut is_ready = false;
        // Without a watchdog the timer goes off so seldom that it does not matter.
        let every = self
            .notifier
            .watchdog_every()
            .unwrap_or(Duration::from_secs(3_600));
        let mut beat = interval_at(Instant::now() + every, every);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                told = signals.next() => match told {
                    Told::Stop => return Ok(()),
                    Told::Reload => self.reload().await,
                },
                reason = &mut broken => return Err(Error::Broken(reason)),
                () = &mut ready, if !is_ready => {
                    is_ready = true;
                    tracing::info!(socket = %self.socket.display(), "ready");
                    self.notifier.ready(&format!("listening on {}", self.socket.display()));
                }
                _ = beat.tick() => match self.vitals.trouble() {
                    None => self.notifier.alive(),
                    // Not told: the service manager restarts what does not come round.
                    Some(trouble) => {
                        tracing::error!(trouble, "all is not well");
                        self.notifier.status(trouble);
                    }
                },
            }
        }
    }

    /// Takes over what can be taken over while running, and says what cannot.
    async fn reload(&mut self) {
        let runtime = self.runtime.clone();
        match tokio::task::spawn_blocking(move || runtime.reload_policy()).await {
            Ok(Ok(digest)) => tracing::info!(policy = %digest, "the policy was read anew"),
            Ok(Err(error)) => {
                tracing::error!(%error, "the policy cannot be used; the one in force stays");
            }
            Err(error) => tracing::error!(%error, "the policy was not read"),
        }
        match (self.reread)() {
            Ok(now) => self.take_over(&now),
            Err(error) => tracing::error!(error, "the settings cannot be used; those in force stay"),
        }
    }

    fn take_over(&mut self, now: &Settings) {
        let changes = self.settings.take_over(now);
        if !changes.taken.is_empty() {
            self.dial.turn(self.settings.values().door.clone());
            if let Err(error) = self.log.turn(&self.settings.values().log_level) {
                tracing::error!(
                    error,
                    "log.level cannot be used; what was logged before is logged"
                );
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

    /// Lets nobody in, finishes what is on its way, answers who waits, and ends.
    async fn close(self, signals: &mut Signals) {
        self.notifier.stopping();
        tracing::info!("stopping; a second signal stops at once");
        self.stage.send_replace(Stage::Closing);
        let finished = self.runtime.wind_down(signals.stop()).await;
        self.stage.send_replace(Stage::Closed);
        if let Err(error) = self.door.await {
            tracing::error!(%error, "the door did not close properly");
        }
        match Arc::try_unwrap(self.runtime) {
            Ok(runtime) => drop(runtime.stop().await),
            // A reload that hangs in the disk; the process ends without it.
            Err(_) => tracing::warn!("something still holds the runtime"),
        }
        tracing::info!(finished, "stopped");
    }
}

/// Resolves when work can be taken.
async fn ready(vitals: &Vitals) {
    while vitals.trouble().is_some() {
        tokio::time::sleep(READY_LOOK).await;
    }
}
