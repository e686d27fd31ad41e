//! Through the daemon if one runs; otherwise on the store itself, where that is safe, and never without saying so.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use effectd_actors::{Answer, Done, Held};
use effectd_contracts::{ActionRequest, ApprovalId, Code, Failure, Phase};
use effectd_gateway::problem::Problem;
use effectd_gateway::views::{ActionView, HeldView, State as Standing, ended};
use tokio::time::Instant;

use super::stored::direct_config;
use super::told::exit_of_problem;
use super::{Common, complain};
use crate::client::{Client, ClientError, Told};
use crate::config::{STATE_DEFAULT, STATE_VARIABLE};
use crate::error::Error;
use crate::exit::Exit;
use crate::runtime::Runtime;
use crate::serve::SERVE_STATE_DEFAULT;
use crate::settings::{Settings, SettingsError, default_socket};
use crate::state::State;

/// Where a daemon that the service manager runs listens, as the unit in `docs/deploy` has it.
const SYSTEM_SOCKET: &str = "/run/effectd/effectd.sock";
/// The pause before a daemon that is not there is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Longer than anything takes: a bound so that instants can be added up.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(30 * 86_400);
/// How long `run` keeps asking a daemon that is overloaded or about to come back.
const RUN_PATIENCE: Duration = Duration::from_secs(10);
/// How long one request waits; whoever wants to wait longer asks again.
pub(super) const WAIT_STEP: Duration = Duration::from_secs(60);

/// Why a command cannot do what it is for.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Runtime(#[from] Error),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The daemon said no.
    #[error("{}", said(.0))]
    Refused(Box<Problem>),
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

/// Asks the daemon; where none runs, does it directly, and says so.
pub(super) async fn ask_or<T>(
    common: &Common,
    ask: impl AsyncFnOnce(&mut Client) -> Result<T, Trouble>,
    direct: impl AsyncFnOnce(&Path) -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    let state = client_state(common);
    let socket = socket(common, &state)?;
    match ask(&mut Client::new(&socket)).await {
        Err(Trouble::Client(ClientError::NoDaemon(_))) => {
            say_direct(common, &socket, &state)?;
            direct(&state).await
        }
        answer => answer,
    }
}

/// What carries requests out.
pub(super) enum Backend {
    Daemon(PathBuf),
    Direct(Arc<Runtime>),
}

/// One of several hands that a backend has.
pub(super) enum Hand {
    Daemon(Client),
    Direct(Arc<Runtime>),
}

impl Backend {
    /// The daemon, or, if none runs and nobody wants to wait for one, a runtime in this process.
    pub(super) async fn reach(common: &Common, patience: Option<Duration>) -> Result<Self, Trouble> {
        let state = client_state(common);
        let socket = socket(common, &state)?;
        let mut client = Client::new(&socket);
        match client.is_there().await {
            Err(ClientError::NoDaemon(_)) if patience.is_none() => {
                say_direct(common, &socket, &state)?;
                let config = direct_config(common, &state)?;
                Ok(Backend::Direct(Arc::new(Runtime::start(config).await?)))
            }
            Err(error) if !error.may_retry() => Err(error.into()),
            Ok(()) | Err(_) => Ok(Backend::Daemon(socket)),
        }
    }

    pub(super) fn hand(&self) -> Hand {
        match self {
            Backend::Daemon(socket) => Hand::Daemon(Client::new(socket)),
            Backend::Direct(runtime) => Hand::Direct(runtime.clone()),
        }
    }

    /// Finishes what is on its way in this process, if anything is.
    pub(super) async fn close(self) {
        let Backend::Direct(runtime) = self else { return };
        match Arc::try_unwrap(runtime) {
            Ok(runtime) => {
                if !runtime.stop().await {
                    complain(&"not everything is finished; it stays on the bus for the next start");
                }
            }
            // Cannot be: all hands are back.
            Err(runtime) => drop(runtime.wind_down(std::future::pending()).await),
        }
    }
}

impl Hand {
    /// Submits a decision; with `wait`, until it has ended or that time is over.
    pub(super) async fn submit(
        &mut self,
        request: &ActionRequest,
        wait: Option<Duration>,
        patience: Duration,
    ) -> Result<Told, Trouble> {
        match self {
            Hand::Daemon(client) => Ok(patiently(client, request, wait, patience).await?),
            Hand::Direct(runtime) => Ok(directly(runtime, request, wait).await),
        }
    }
}

impl Hand {
    /// Waits on for an action that waits for a person. Nobody can decide while this process has the store itself.
    pub(super) async fn wait_on(&mut self, told: Told, wait: Duration) -> Result<Told, Trouble> {
        let (Told::View(view), Hand::Daemon(client)) = (&told, &mut *self) else {
            return Ok(told);
        };
        if view.state != Standing::Held {
            return Ok(told);
        }
        super::told::explain(&told);
        let (action, end) = (view.action_id.clone(), Instant::now() + wait.min(WAIT_MAX));
        loop {
            let step = (end - Instant::now()).min(WAIT_STEP);
            let now = client.wait(&action, step).await?;
            let open = matches!(&now, Told::View(view) if view.state != Standing::Done);
            if !open || Instant::now() >= end {
                return Ok(now);
            }
        }
    }
}

/// Has a request carried out by the daemon of this state directory; `None` if there is none.
pub(super) async fn by_daemon(common: &Common, state: &Path, request: &ActionRequest) -> Option<Answer> {
    let settings = common.settings(Some(state)).ok()?;
    let mut client = Client::new(settings.socket(state));
    match client.is_there().await {
        Ok(()) => {}
        Err(ClientError::NoDaemon(_)) => return None,
        Err(error) => return Some(Answer::Refused(unreachable(&error))),
    }
    let told = patiently(&mut client, request, Some(WAIT_MAX), RUN_PATIENCE).await;
    Some(match told {
        Ok(told) => answer_of(told),
        Err(error) => Answer::Refused(unreachable(&error)),
    })
}

fn unreachable(error: &ClientError) -> Failure {
    Failure::new(Code::StoreUnavailable, Phase::Accept, error.to_string())
}

/// What the daemon told, as the pipeline would have.
fn answer_of(told: Told) -> Answer {
    if let Told::View(view) = &told
        && let Some(held) = view.approval.as_ref().and_then(held_of)
    {
        return Answer::Held(held);
    }
    let (receipt, before, result, problem) = match told {
        Told::View(view) => (view.receipt, view.already_done, view.result, None),
        Told::Problem(problem) => (problem.receipt.clone(), false, None, Some(problem)),
    };
    if let Some(receipt) = receipt {
        return Answer::Done(Done {
            receipt: Arc::new(*receipt),
            before,
            result: result.map(Arc::new),
        });
    }
    let (code, message) = problem.map_or((Code::Overloaded, "it has not ended yet".to_owned()), |problem| {
        (problem.code.parse().unwrap_or(Code::Internal), problem.detail)
    });
    Answer::Refused(Failure::new(code, Phase::Accept, message))
}

/// What an action waits for, as the pipeline would have told it.
fn held_of(view: &HeldView) -> Option<Held> {
    Some(Held {
        approval_id: ApprovalId::new(view.approval_id.clone()).ok()?,
        expires_at: view.expires_at.parse().ok()?,
        reasons: view.reasons.clone(),
        joined: view.joined,
    })
}

/// Asks until there is an answer that trying again would not change.
async fn patiently(
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

async fn directly(runtime: &Runtime, request: &ActionRequest, wait: Option<Duration>) -> Told {
    let action = request.action_id.clone();
    if let Some(wait) = wait {
        match tokio::time::timeout(wait, runtime.exec(request.clone())).await {
            Ok(Answer::Done(done)) => {
                return ended(action, &done).map_or_else(|problem| Told::Problem(*problem), Told::View);
            }
            // Nobody can decide while this process has the store.
            Ok(Answer::Held(held)) => return Told::View(ActionView::held(action, &held)),
            Ok(Answer::Refused(failure)) => return Told::Problem(Problem::failed(&failure).about(&action)),
            Err(_) => {}
        }
    }
    match runtime.submit(request.clone()).await {
        Ok(_) => Told::View(ActionView::accepted(action)),
        Err(failure) => Told::Problem(Problem::failed(&failure).about(&action)),
    }
}
