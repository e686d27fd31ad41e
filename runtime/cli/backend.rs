//! Connects a command with effectd: with the daemon if one runs, otherwise with the same routes in this process. Says which.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::{ActionId, ActionRequest};
use effectd_gateway::client::{Client, ClientError, ExpectedState};
use effectd_gateway::problem::Problem;
use effectd_gateway::views::State as ActionState;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::action_output::{self, problem_exit};
use super::{ActionReply, Common, Depth, eprint_line};
use crate::daemon::SERVE_STATE_DEFAULT;
use crate::error::{Error, chain};
use crate::exit::Exit;
use crate::host::in_process::{Idle, Running};
use crate::host::runtime::Runtime;
use crate::settings::config::{
    Config, STATE_DEFAULT, installed_state, state_of_environment, state_of_project,
};
use crate::settings::{Settings, SettingsError, default_socket};
use crate::state::{State, id};

/// The socket of a daemon that runs as a service, as the unit in `docs/deploy` names it.
const SYSTEM_SOCKET: &str = "/run/effectd/effectd.sock";
/// The pause before a request to a daemon that does not answer is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The longest wait: longer than any action takes, and short enough to be added to an instant.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(30 * 86_400);
/// How long one request waits; longer waits take several requests.
const WAIT_STEP: Duration = Duration::from_secs(60);
/// The pause before a client tries to connect again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    #[error(transparent)]
    Client(ClientError),
    #[error(transparent)]
    Runtime(#[from] Error),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("{}", action_output::problem_line(.0))]
    Refused(Box<Problem>),
    /// An error with another exit code than its own.
    #[error("{1}")]
    Exiting(Exit, Box<CliError>),
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        if let ClientError::Refused(problem) = error {
            return CliError::Refused(problem);
        }
        CliError::Client(error)
    }
}

impl CliError {
    pub(super) fn request(why: impl Into<String>) -> Self {
        CliError::Runtime(Error::Request(why.into()))
    }

    pub(super) fn exiting(self, exit: Exit) -> Self {
        CliError::Exiting(exit, Box::new(self))
    }

    /// For programs: the problem of the daemon, or an object with the same `code` and `detail`; and the exit code.
    pub(super) fn to_json(&self) -> Value {
        let inner = if let CliError::Exiting(_, error) = self { &**error } else { self };
        let mut value = if let CliError::Refused(problem) = inner {
            json!(problem)
        } else {
            json!({ "code": self.exit().word(), "detail": chain(self) })
        };
        value["exit_code"] = self.exit().code().into();
        value
    }

    pub(super) fn exit(&self) -> Exit {
        match self {
            CliError::Exiting(exit, _) => *exit,
            CliError::Client(
                ClientError::NoDaemon(_) | ClientError::Broken(_) | ClientError::Unreachable { .. },
            ) => Exit::TryAgain,
            CliError::Client(
                ClientError::NotPermitted(_)
                | ClientError::Strange(_)
                | ClientError::Untrusted { .. }
                | ClientError::TokenRefused { .. },
            ) => Exit::Unavailable,
            CliError::Client(ClientError::Failed(_)) => Exit::Failed,
            CliError::Client(ClientError::OtherState { .. }) => Exit::Usage,
            CliError::Client(ClientError::Refused(problem)) | CliError::Refused(problem) => {
                problem_exit(problem)
            }
            CliError::Runtime(error) => error.exit(),
            CliError::Settings(_) => Exit::Usage,
        }
    }

    /// Whether the daemon cannot be reached, perhaps because it restarts.
    pub(super) fn is_disconnect(&self) -> bool {
        matches!(
            self,
            CliError::Client(
                ClientError::NoDaemon(_) | ClientError::Broken(_) | ClientError::Unreachable { .. }
            )
        )
    }
}

/// The state directory that `--state` or the environment names.
pub(super) fn named_state(common: &Common) -> Option<PathBuf> {
    common.state.clone().or_else(state_of_environment)
}

/// The state directory of a command: the named one, or that of the project here, or `.effectd` if it exists here, or that of the
/// project around here, or the daemon's default.
pub(super) fn state_dir_of(common: &Common) -> PathBuf {
    named_state(common).unwrap_or_else(|| {
        let here = PathBuf::from(STATE_DEFAULT);
        // A project's files, which its agent writes, do not choose its state.
        let project = Path::new(".").canonicalize().ok().and_then(|folder| installed_state(&folder));
        let found = project.or_else(|| here.is_dir().then_some(here));
        found
            .or_else(|| state_of_project(Path::new(".")))
            .unwrap_or_else(|| PathBuf::from(SERVE_STATE_DEFAULT))
    })
}

/// The settings of the daemon. If this user may not read the configuration file, they are without it.
pub(super) fn readable_settings(common: &Common, state: &Path) -> Result<Settings, SettingsError> {
    match common.settings(Some(state)) {
        Err(SettingsError::File { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            common.settings(None)
        }
        other => other,
    }
}

/// A client of the daemon at the named socket or the state directory's. It does not connect yet. If a state is named, or the socket
/// is that of a state, it refuses the daemon of another state.
pub(super) fn client_of(common: &Common, state: &Path) -> Result<Client, CliError> {
    let settings = readable_settings(common, state)?;
    let is_bound = named_state(common).is_some() || settings.is_own_socket();
    let expected = if is_bound { expected(common, state)? } else { None };
    Ok(Client::of_state(settings.socket(state), expected).with_notice(common.notice.clone()))
}

/// What a client compares with the state of its daemon. Users who may not read the state name none.
fn expected(common: &Common, state: &Path) -> Result<Option<ExpectedState>, Error> {
    match id::read(state) {
        Err(Error::State { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            if named_state(common).is_none() {
                return Ok(None);
            }
            let why = format!("you may not read the id of {}; name the socket alone", state.display());
            Err(Error::Request(why))
        }
        id => Ok(Some(ExpectedState { directory: state.to_owned(), id: id? })),
    }
}

/// The client of a command: of the daemon at a URL if the command has one, otherwise [`client_of`] its state or, if that is the
/// default and its own socket is missing, of the system's daemon.
pub(super) fn daemon_client(common: &Common) -> Result<Client, CliError> {
    if let Some(remote) = &common.remote {
        return Ok(Client::remote(remote.clone()).with_notice(common.notice.clone()));
    }
    let (state, system) = (state_dir_of(common), Path::new(SYSTEM_SOCKET));
    let is_default = named_state(common).is_none() && state == Path::new(SERVE_STATE_DEFAULT);
    if is_default
        && !default_socket(&state).exists()
        && system.exists()
        && !readable_settings(common, &state)?.names_socket()
    {
        return Ok(Client::new(system).with_notice(common.notice.clone()));
    }
    client_of(common, &state)
}

/// Says that no daemon runs and that this process works on the store. Fails if there is no state directory.
fn report_in_process(common: &Common, socket: &Path, state: &Path) -> Result<(), CliError> {
    match State::existing(state) {
        Err(Error::NoState(_)) if common.state.is_none() && common.settings(None)?.names_socket() => {
            return Err(ClientError::NoDaemon(socket.to_owned()).into());
        }
        existing => drop(existing?),
    }
    eprint_line(&format!(
        "no daemon answers on {}; working on the store in {} directly, state {}",
        socket.display(),
        state.display(),
        id::read(state)?.as_deref().unwrap_or("not used yet")
    ));
    Ok(())
}

/// A client and, if its server is in this process, the server.
pub(super) struct Session {
    pub(super) client: Client,
    server: Server,
}

enum Server {
    Daemon,
    Idle(Idle),
    Running(Running),
}

impl Session {
    /// A session with the daemon. If none runs, says so and opens the state in this process, as deep as `depth`.
    pub(super) async fn reach(common: &Common, depth: Depth) -> Result<Self, CliError> {
        let state = state_dir_of(common);
        let mut client = daemon_client(common)?;
        match client.connect().await {
            Err(ClientError::NoDaemon(socket)) => {
                report_in_process(common, &socket, &state)?;
                Self::in_process(common, depth).await
            }
            // A daemon that refuses the check of its state is there; the request checks again and reports the refusal.
            Ok(()) | Err(ClientError::Refused(_)) => Ok(Self::of_daemon(client)),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn of_daemon(client: Client) -> Self {
        Self { client, server: Server::Daemon }
    }

    /// A session with this process, which has the settings of the state directory's daemon.
    pub(super) async fn in_process(common: &Common, depth: Depth) -> Result<Self, CliError> {
        let state = state_dir_of(common);
        let settings = common.settings(Some(&state))?;
        let mut config = Config::embedded(&state)?;
        config.seed_demo = false;
        settings.apply(&mut config);
        Self::inside(config, &settings, depth).await
    }

    pub(super) async fn inside(
        mut config: Config,
        settings: &Settings,
        depth: Depth,
    ) -> Result<Self, CliError> {
        config.interactive = std::io::stdin().is_terminal();
        if depth == Depth::Pipeline {
            let (running, client) = Running::start(config, settings).await?;
            let server = Server::Running(running);
            return Ok(Self { client, server });
        }
        let (idle, client) = Idle::open(config, settings, depth)?;
        let server = Server::Idle(idle);
        Ok(Self { client, server })
    }

    /// The runtime in this process, if there is one.
    pub(super) fn runtime(&self) -> Option<Arc<Runtime>> {
        match &self.server {
            Server::Running(running) => Some(running.runtime.clone()),
            Server::Daemon | Server::Idle(_) => None,
        }
    }

    /// Finishes running actions in this process and closes the store.
    pub(super) async fn close(self) -> Result<(), CliError> {
        drop(self.client);
        match self.server {
            Server::Daemon => {}
            Server::Idle(idle) => idle.close()?,
            Server::Running(running) => {
                if !running.stop().await {
                    eprint_line(&"some actions are unfinished; they stay on the bus for the next start");
                }
            }
        }
        Ok(())
    }
}

/// Runs `work` with a client of the daemon, or, if none runs, of this process.
pub(super) async fn with_client<T>(
    common: &Common,
    depth: Depth,
    work: impl AsyncFnOnce(&mut Client) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let mut session = Session::reach(common, depth).await?;
    let done = work(&mut session.client).await;
    let closed = session.close().await;
    let done = done?;
    closed.map(|()| done)
}

/// One GET request.
pub(super) async fn get<T: DeserializeOwned>(
    common: &Common,
    depth: Depth,
    path: &str,
) -> Result<T, CliError> {
    with_client(common, depth, async |client| Ok(client.get(path).await?)).await
}

/// All pages of a list.
pub(super) async fn pages<P: DeserializeOwned, T>(
    common: &Common,
    depth: Depth,
    path: &str,
    split: impl Fn(P) -> (Vec<T>, Option<String>),
) -> Result<Vec<T>, CliError> {
    with_client(common, depth, async |client| Ok(client.pages(path, split).await?)).await
}

/// One POST request with a JSON body.
pub(super) async fn post<T: DeserializeOwned>(
    common: &Common,
    depth: Depth,
    path: &str,
    body: &impl Serialize,
) -> Result<T, CliError> {
    with_client(common, depth, async |client| Ok(client.post(path, body).await?)).await
}

/// Whether the routes are in this process, so that nobody else uses the state.
pub(super) fn is_in_process(client: &Client) -> bool {
    client.is_in_process()
}

/// Waits until a daemon that could not be reached answers again.
pub(super) async fn reconnected(client: &mut Client, error: &CliError) {
    eprint_line(&format!("{error}; waiting for the daemon"));
    // The next request reports a daemon of another state, or one that does not accept the token.
    let is_final = |error: &ClientError| {
        matches!(
            error,
            ClientError::OtherState { .. } | ClientError::Untrusted { .. } | ClientError::TokenRefused { .. }
        )
    };
    while client.is_there().await.is_err_and(|error| !is_final(&error)) {
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

/// If the action awaits approval, waits until it ends. In this process it returns at once: nobody else can open the store.
pub(super) async fn wait_on(
    client: &mut Client,
    reply: ActionReply,
    wait: Duration,
) -> Result<ActionReply, CliError> {
    let held = match &reply {
        ActionReply::View(view) if view.state == ActionState::Held && !is_in_process(client) => {
            view.action_id.clone()
        }
        ActionReply::View(_) | ActionReply::Problem(_) => return Ok(reply),
    };
    action_output::explain(&reply);
    wait_for(client, &held, wait).await
}

/// Waits until an action has ended, or at most for `wait`.
pub(super) async fn wait_for(
    client: &mut Client,
    action: &ActionId,
    wait: Duration,
) -> Result<ActionReply, CliError> {
    let end = Instant::now() + wait.min(WAIT_MAX);
    loop {
        let step = (end - Instant::now()).min(WAIT_STEP);
        let reply = client.wait(action, step).await?;
        let open = match &reply {
            ActionReply::View(view) if view.state == ActionState::Held => !is_in_process(client),
            ActionReply::View(view) => view.state == ActionState::Accepted,
            ActionReply::Problem(_) => false,
        };
        if !open || Instant::now() >= end {
            return Ok(reply);
        }
    }
}

/// Submits a request, and repeats it until the reply is final or `patience` is over.
pub(super) async fn submit_with_retry(
    client: &mut Client,
    request: &ActionRequest,
    wait: Option<Duration>,
    patience: Duration,
) -> Result<ActionReply, ClientError> {
    let begun = Instant::now();
    let end = wait.map(|wait| begun + wait.min(WAIT_MAX));
    loop {
        let step = end.map(|end| (end - Instant::now()).min(WAIT_STEP));
        let reply = client.submit(request, step).await;
        let over = end.is_none_or(|end| Instant::now() >= end);
        let pause = match &reply {
            // Repeating the same id continues the wait.
            Ok(ActionReply::View(view)) if view.state == ActionState::Accepted && !over => Duration::ZERO,
            Ok(ActionReply::Problem(problem)) if problem.receipt.is_none() => match problem.retry_after_ms {
                Some(ms) => Duration::from_millis(ms).min(RETRY_PAUSE * 5),
                None => return reply,
            },
            Err(error) if error.may_retry() => RETRY_PAUSE,
            Ok(_) | Err(_) => return reply,
        };
        if pause > Duration::ZERO && begun.elapsed() + pause > patience {
            return reply;
        }
        tokio::time::sleep(pause).await;
    }
}
