//! Reaches effectd: the daemon if one runs, otherwise the same routes in this process, and never without saying so.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::{ActionId, ActionRequest};
use effectd_gateway::client::{Client, ClientError, Told};
use effectd_gateway::problem::Problem;
use effectd_gateway::server::Stage;
use effectd_gateway::views::State as Standing;
use effectd_gateway::{Dial, Gateway};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::told::exit_of_problem;
use super::{Common, complain};
use crate::config::{Config, STATE_DEFAULT, STATE_VARIABLE};
use crate::error::Error;
use crate::exit::Exit;
use crate::runtime::{Depth, Opened, Runtime};
use crate::serve::SERVE_STATE_DEFAULT;
use crate::settings::{Settings, SettingsError, default_socket};
use crate::state::State;

/// Where a daemon that the service manager runs listens, as the unit in `docs/deploy` has it.
const SYSTEM_SOCKET: &str = "/run/effectd/effectd.sock";
/// The pause before a daemon that is not there is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Longer than anything takes: a bound so that instants can be added up.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(30 * 86_400);
/// How long one request waits; whoever wants to wait longer asks again.
const WAIT_STEP: Duration = Duration::from_secs(60);

/// Why a command cannot do what it is for.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error(transparent)]
    Client(ClientError),
    #[error(transparent)]
    Runtime(#[from] Error),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("{}", said(.0))]
    Refused(Box<Problem>),
}

impl From<ClientError> for Trouble {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(problem) => Trouble::Refused(problem),
            error @ (ClientError::NoDaemon(_)
            | ClientError::NotPermitted(_)
            | ClientError::Broken(_)
            | ClientError::Failed(_)
            | ClientError::Strange(_)) => Trouble::Client(error),
        }
    }
}

fn said(problem: &Problem) -> String {
    let change = problem.change.as_ref();
    let change = change
        .map(|change| format!("; {}", change.what))
        .unwrap_or_default();
    format!("{}: {}{change}", problem.code, problem.detail)
}

impl Trouble {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Trouble::Client(ClientError::NoDaemon(_) | ClientError::Broken(_)) => Exit::TryAgain,
            Trouble::Client(ClientError::NotPermitted(_) | ClientError::Strange(_)) => Exit::Unavailable,
            Trouble::Client(ClientError::Failed(_)) => Exit::Failed,
            Trouble::Client(ClientError::Refused(problem)) => exit_of_problem(problem),
            Trouble::Runtime(error) => error.exit(),
            Trouble::Settings(_) => Exit::Usage,
            Trouble::Refused(problem) => exit_of_problem(problem),
        }
    }
}

/// The state directory that a client means: what is named, or the one here, or the machine's.
pub(super) fn client_state(common: &Common) -> PathBuf {
    let variable = || {
        std::env::var_os(STATE_VARIABLE)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let named = common.state.clone().or_else(variable);
    named.unwrap_or_else(|| {
        let here = PathBuf::from(STATE_DEFAULT);
        if here.is_dir() {
            here
        } else {
            PathBuf::from(SERVE_STATE_DEFAULT)
        }
    })
}

/// The settings of the daemon, as far as this user can read them: a planner need not be able to read the daemon's files.
pub(super) fn readable_settings(common: &Common, state: &Path) -> Result<Settings, SettingsError> {
    match common.settings(Some(state)) {
        Err(SettingsError::File { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            common.settings(None)
        }
        other => other,
    }
}

/// Where the daemon is looked for.
pub(super) fn socket(common: &Common, state: &Path) -> Result<PathBuf, SettingsError> {
    let settings = readable_settings(common, state)?;
    let own = default_socket(state);
    let system = Path::new(SYSTEM_SOCKET);
    let nothing_named = !settings.names_socket() && common.state.is_none();
    Ok(if nothing_named && !own.exists() && system.exists() {
        system.to_owned()
    } else {
        settings.socket(state)
    })
}

/// Says that no daemon runs, and what is done instead. Where there is nothing, nothing is said to be worked on; and who has named only
/// a socket is told about that.
pub(super) fn say_direct(common: &Common, socket: &Path, state: &Path) -> Result<(), Trouble> {
    match State::existing(state) {
        Err(Error::NoState(_)) if common.state.is_none() && common.settings(None)?.names_socket() => {
            return Err(ClientError::NoDaemon(socket.to_owned()).into());
        }
        existing => drop(existing?),
    }
    complain(&format!(
        "no daemon answers on {}; working on the store in {} directly",
        socket.display(),
        state.display()
    ));
    Ok(())
}

/// A client, with what answers it if that is in this process.
pub(super) struct Session {
    pub(super) client: Client,
    inside: Option<Inside>,
}

struct Inside {
    host: InsideHost,
    /// Nobody closes these routes but by dropping them.
    _stage: watch::Sender<Stage>,
}

enum InsideHost {
    Opened(Arc<Opened>),
    Running(Arc<Runtime>, JoinHandle<()>),
}

impl Session {
    /// The daemon, or, if none runs, the same routes in this process, on as much of the state as is needed; that is said.
    pub(super) async fn reach(common: &Common, depth: Depth) -> Result<Self, Trouble> {
        let state = client_state(common);
        let socket = socket(common, &state)?;
        let mut client = Client::new(&socket);
        match client.connect().await {
            Err(ClientError::NoDaemon(_)) => {
                say_direct(common, &socket, &state)?;
                Self::alone(common, depth).await
            }
            Err(error) => Err(error.into()),
            Ok(()) => Ok(Self { client, inside: None }),
        }
    }

    pub(super) fn of_daemon(client: Client) -> Self {
        Self { client, inside: None }
    }

    /// The routes in this process, set up as the daemon of this state directory would be.
    pub(super) async fn alone(common: &Common, depth: Depth) -> Result<Self, Trouble> {
        let state = client_state(common);
        let settings = common.settings(Some(&state))?;
        let mut config = Config::embedded(&state)?;
        config.seed_demo = false;
        settings.apply(&mut config);
        Self::inside(config, &settings, depth).await
    }

    pub(super) async fn inside(config: Config, settings: &Settings, depth: Depth) -> Result<Self, Trouble> {
        let (dial, principal) = (
            Dial::new(settings.values().door.clone()),
            config.principal.clone(),
        );
        let (stage, open) = watch::channel(Stage::Open);
        let (gateway, host) = if depth == Depth::Pipeline {
            let runtime = Arc::new(Runtime::start(config).await?);
            let gateway = runtime.gateway(dial, open).map_err(Error::from)?;
            let beat = gateway.beat();
            (gateway, InsideHost::Running(runtime, beat))
        } else {
            let opened = Arc::new(Opened::open(config, depth)?);
            let gateway = Gateway::new(opened.clone(), None, dial, open).map_err(Error::from)?;
            (gateway, InsideHost::Opened(opened))
        };
        Ok(Self {
            client: gateway.client(principal),
            inside: Some(Inside { host, _stage: stage }),
        })
    }

    /// The runtime in this process, if one runs there.
    pub(super) fn runtime(&self) -> Option<Arc<Runtime>> {
        match self.inside.as_ref().map(|inside| &inside.host) {
            Some(InsideHost::Running(runtime, _)) => Some(runtime.clone()),
            Some(InsideHost::Opened(_)) | None => None,
        }
    }

    /// Finishes what is on its way in this process, and closes the store.
    pub(super) async fn close(self) -> Result<(), Trouble> {
        let Self { client, inside } = self;
        drop(client);
        match inside.map(|inside| inside.host) {
            None => {}
            Some(InsideHost::Opened(opened)) => opened.parts.store.close().map_err(Error::from)?,
            Some(InsideHost::Running(runtime, beat)) => {
                beat.abort();
                // An aborted task has let go of the runtime only when it is joined.
                let _ = beat.await;
                let finished = match Arc::try_unwrap(runtime) {
                    Ok(runtime) => runtime.stop().await,
                    Err(runtime) => runtime.wind_down(std::future::pending()).await,
                };
                if !finished {
                    complain(&"not everything is finished; it stays on the bus for the next start");
                }
            }
        }
        Ok(())
    }
}

/// Works with a client of the daemon, or, if none runs, of the same routes in this process.
pub(super) async fn with_client<T>(
    common: &Common,
    depth: Depth,
    work: impl AsyncFnOnce(&mut Client) -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    let mut session = Session::reach(common, depth).await?;
    let done = work(&mut session.client).await;
    let closed = session.close().await;
    let done = done?;
    closed.map(|()| done)
}

/// Whether the routes are in this process: nobody else does anything meanwhile.
pub(super) fn is_alone(client: &Client) -> bool {
    client.socket().is_none()
}

/// Waits on for an action that waits for a person. Nobody can decide while this process has the store.
pub(super) async fn wait_on(client: &mut Client, told: Told, wait: Duration) -> Result<Told, Trouble> {
    let held = match &told {
        Told::View(view) if view.state == Standing::Held && !is_alone(client) => view.action_id.clone(),
        Told::View(_) | Told::Problem(_) => return Ok(told),
    };
    super::told::explain(&told);
    wait_for(client, &held, wait).await
}

/// Waits until an action has ended, or for this long.
pub(super) async fn wait_for(
    client: &mut Client,
    action: &ActionId,
    wait: Duration,
) -> Result<Told, Trouble> {
    let end = Instant::now() + wait.min(WAIT_MAX);
    loop {
        let step = (end - Instant::now()).min(WAIT_STEP);
        let now = client.wait(action, step).await?;
        let open = match &now {
            Told::View(view) if view.state == Standing::Held => !is_alone(client),
            Told::View(view) => view.state == Standing::Accepted,
            Told::Problem(_) => false,
        };
        if !open || Instant::now() >= end {
            return Ok(now);
        }
    }
}

/// Asks until there is an answer that trying again would not change.
pub(super) async fn patiently(
    client: &mut Client,
    request: &ActionRequest,
    wait: Option<Duration>,
    patience: Duration,
) -> Result<Told, ClientError> {
    let begun = Instant::now();
    let end = wait.map(|wait| begun + wait.min(WAIT_MAX));
    loop {
        let step = end.map(|end| (end - Instant::now()).min(WAIT_STEP));
        let told = client.submit(request, step).await;
        let over = end.is_none_or(|end| Instant::now() >= end);
        let pause = match &told {
            // Asking again with the same id goes on waiting.
            Ok(Told::View(view)) if view.state == Standing::Accepted && !over => Duration::ZERO,
            Ok(Told::Problem(problem)) if problem.receipt.is_none() && problem.retry_after_ms.is_some() => {
                Duration::from_millis(problem.retry_after_ms.unwrap_or(0)).min(RETRY_PAUSE * 5)
            }
            Err(error) if error.may_retry() => RETRY_PAUSE,
            Ok(_) | Err(_) => return told,
        };
        if pause > Duration::ZERO && begun.elapsed() + pause > patience {
            return told;
        }
        tokio::time::sleep(pause).await;
    }
}
