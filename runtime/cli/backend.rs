//! Through the daemon if one runs; otherwise on the store itself, where that is safe, and never without saying so.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use effectd_actors::{Answer, Done};
use effectd_bus::{Store, embedded};
use effectd_contracts::{ActionId, ActionRequest, Code, Failure, Outcome, Phase, SystemClock, Topic};
use effectd_gateway::limits::SCAN_EVENTS_MAX;
use effectd_gateway::problem::{Kind, Problem};
use effectd_gateway::views::{ActionView, State as Standing, ended};
use tokio::time::Instant;

use super::{Common, complain};
use crate::client::{Client, ClientError, Told};
use crate::config::{Config, STATE_DEFAULT, STATE_VARIABLE};
use crate::error::Error;
use crate::exit::Exit;
use crate::runtime::Runtime;
use crate::serve::SERVE_STATE_DEFAULT;
use crate::settings::{SettingsError, default_socket};
use crate::state::State;

/// Where a daemon that the service manager runs listens, as the unit in `docs/deploy` has it.
const SYSTEM_SOCKET: &str = "/run/effectd/effectd.sock";
/// The pause before a daemon that is not there is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Longer than anything takes: a bound so that instants can be added up.
const WAIT_MAX: Duration = Duration::from_secs(30 * 86_400);
/// How long `run` keeps asking a daemon that is overloaded or about to come back.
const RUN_PATIENCE: Duration = Duration::from_secs(10);
/// How long one request waits; whoever wants to wait longer asks again.
const WAIT_STEP: Duration = Duration::from_secs(60);

/// Why a command cannot do what it is for.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Runtime(#[from] Error),
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

impl Trouble {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Trouble::Client(ClientError::NoDaemon(_) | ClientError::Broken(_)) => Exit::TryAgain,
            Trouble::Client(ClientError::NotPermitted(_) | ClientError::Strange(_)) => Exit::Unavailable,
            Trouble::Runtime(error) => error.exit(),
            Trouble::Settings(_) => Exit::Usage,
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

/// Where the daemon is looked for.
pub(super) fn socket(common: &Common, state: &Path) -> Result<PathBuf, SettingsError> {
    let settings = match common.settings(Some(state)) {
        // A planner need not be able to read the daemon's files.
        Err(SettingsError::File { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            common.settings(None)?
        }
        other => other?,
    };
    let own = default_socket(state);
    let system = Path::new(SYSTEM_SOCKET);
    let nothing_named = !settings.names_socket() && common.state.is_none();
    Ok(if nothing_named && !own.exists() && system.exists() {
        system.to_owned()
    } else {
        settings.socket(state)
    })
}

/// Says that no daemon runs, and what is done instead.
pub(super) fn say_direct(socket: &Path, state: &Path) {
    complain(&format!(
        "no daemon answers on {}; working on the store in {} directly",
        socket.display(),
        state.display()
    ));
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
                State::existing(&state)?;
                say_direct(&socket, &state);
                let mut config = Config::embedded(&state)?;
                config.seed_demo = false;
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
    let (receipt, before, problem) = match told {
        Told::View(view) => (view.receipt, view.already_done, None),
        Told::Problem(problem) => (problem.receipt.clone(), false, Some(problem)),
    };
    if let Some(receipt) = receipt {
        return Answer::Done(Done {
            receipt: Arc::new(*receipt),
            before,
        });
    }
    let (code, message) = problem.map_or((Code::Overloaded, "it has not ended yet".to_owned()), |problem| {
        (problem.code.parse().unwrap_or(Code::Internal), problem.detail)
    });
    Answer::Refused(Failure::new(code, Phase::Accept, message))
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
            Ok(Answer::Refused(failure)) => return Told::Problem(Problem::failed(&failure).about(&action)),
            Err(_) => {}
        }
    }
    match runtime.submit(request.clone()).await {
        Ok(_) => Told::View(ActionView::accepted(action)),
        Err(failure) => Told::Problem(Problem::failed(&failure).about(&action)),
    }
}

/// Waits until an action has ended.
pub(super) async fn wait_for(common: &Common, action: &ActionId, wait: Duration) -> Result<Told, Trouble> {
    let state = client_state(common);
    let socket = socket(common, &state)?;
    let mut client = Client::new(&socket);
    let end = Instant::now() + wait.min(WAIT_MAX);
    loop {
        let step = (end - Instant::now()).min(WAIT_STEP);
        match client.wait(action, step).await {
            Ok(Told::View(view)) if view.state == Standing::Accepted && Instant::now() < end => {}
            Err(ClientError::NoDaemon(_)) => break,
            told => return Ok(told?),
        }
    }
    say_direct(&socket, &state);
    // Nobody but us can end it: the runtime is started here, and carries out what is on its bus.
    let stored = stored(&state, action)?;
    if !matches!(&stored, Told::View(view) if view.state == Standing::Accepted) {
        return Ok(stored);
    }
    let mut config = Config::embedded(&state)?;
    config.seed_demo = false;
    let runtime = Runtime::start(config).await?;
    let told = match tokio::time::timeout_at(end, runtime.pipeline().wait(action)).await {
        Ok(Ok(Answer::Done(done))) => Told::View(ActionView::done(action.clone(), &done)),
        Ok(Ok(Answer::Refused(failure)) | Err(failure)) => {
            Told::Problem(Problem::failed(&failure).about(action))
        }
        Err(_) => stored,
    };
    runtime.stop().await;
    Ok(told)
}

/// How an action stands, by the store of a state directory that no daemon uses.
pub(super) fn stored(state: &Path, action: &ActionId) -> Result<Told, Error> {
    let state = State::existing(state)?;
    let store = embedded::open(embedded::EmbeddedConfig::new(state.path()), Arc::new(SystemClock))?;
    if let Some(found) = store.receipt_of(action)? {
        let done = Done {
            receipt: Arc::new(found.parse()?),
            before: true,
        };
        return Ok(Told::View(ActionView::done(action.clone(), &done)));
    }
    let topic = Topic::ActionDecision.into();
    let mut from = store
        .groups(&topic)
        .wait()?
        .iter()
        .map(|group| group.committed)
        .min()
        .unwrap_or(0);
    let end = from + SCAN_EVENTS_MAX as u64;
    while from < end {
        let page = store.read(&topic, from, 500)?;
        if page
            .events
            .iter()
            .any(|event| event.action_id.as_ref() == Some(action))
        {
            return Ok(Told::View(ActionView::accepted(action.clone())));
        }
        if page.events.is_empty() || page.next >= page.end {
            break;
        }
        from = page.next;
    }
    let message = "no action of this id was accepted; submit it, which is harmless if it was";
    Ok(Told::Problem(
        Problem::of(Kind::ActionUnknown, message).about(action),
    ))
}

/// What an answer means for scripts.
pub(super) fn exit_of(told: &Told) -> Exit {
    let code = match told {
        Told::View(view) => return view.outcome.map_or(Exit::Done, Exit::of),
        Told::Problem(problem) => {
            if let Some(receipt) = problem
                .receipt
                .as_ref()
                .filter(|_| problem.code != "already_finished")
            {
                return Exit::of(receipt.outcome);
            }
            problem
        }
    };
    match code.code.parse::<Code>() {
        Ok(Code::StoreUnavailable | Code::SandboxUnavailable) => Exit::Unavailable,
        Ok(Code::Internal) => Exit::Failed,
        Ok(code) => Exit::of(code.outcome()),
        Err(_) => match code.status {
            408 | 429 | 503 => Exit::TryAgain,
            400 | 404 | 405 | 413 => Exit::Usage,
            _ => Exit::Failed,
        },
    }
}

/// What stands in the columns of a table.
pub(super) const COLUMNS: [(&str, usize); 4] =
    [("STATE", 9), ("OUTCOME", 17), ("ACTION", 36), ("RECEIPT", 36)];

/// An answer in those columns.
pub(super) fn cells(told: &Told) -> [String; 4] {
    let word = |outcome: &Outcome| {
        let value = serde_json::to_value(outcome).unwrap_or_default();
        value.as_str().unwrap_or_default().to_owned()
    };
    match told {
        Told::View(view) => {
            let state = match (view.state, view.already_done) {
                (Standing::Accepted, _) => "accepted",
                (Standing::Done, _) => "done",
            };
            let receipt = view
                .receipt
                .as_ref()
                .map(|receipt| receipt.receipt_id.to_string());
            [
                state.to_owned(),
                view.outcome.as_ref().map(word).unwrap_or_default(),
                view.action_id.to_string(),
                receipt.unwrap_or_default(),
            ]
        }
        Told::Problem(problem) => [
            "refused".to_owned(),
            problem.code.clone(),
            problem
                .action_id
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            problem
                .receipt
                .as_ref()
                .map(|receipt| receipt.receipt_id.to_string())
                .unwrap_or_default(),
        ],
    }
}

/// The answer as a value.
pub(super) fn value(told: &Told) -> serde_json::Value {
    // Both are plain data with text keys, for which serde_json has no failure.
    match told {
        Told::View(view) => serde_json::to_value(view),
        Told::Problem(problem) => serde_json::to_value(problem),
    }
    .unwrap_or_default()
}

/// Says why not, and what would have to change.
pub(super) fn explain(told: &Told) {
    if let Told::Problem(problem) = told {
        let change = problem
            .change
            .as_ref()
            .map(|change| format!("; {}", change.what))
            .unwrap_or_default();
        complain(&format!("{}: {}{change}", problem.code, problem.detail));
    }
}
