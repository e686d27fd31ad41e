//! The way to the daemon: finds or starts it, and passes messages on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use effectd_gateway::client::{Client, ClientError, percent_encoded};
use hyper::header::CONTENT_TYPE;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::message::{Events, INTERNAL_ERROR, Lines, Message, failure, say};
use super::start::{Ended, Starting};
use super::{Place, Project, no_policy};
use crate::cli::backend::{client_of, daemon_client};
use crate::cli::{CliError, Common};
use crate::error::{Error, chain};
use crate::exit::Exit;
use crate::state::State;

/// How long a daemon may take to start: on a slow disk it replays some of its journal.
const START_TIME_MAX: Duration = Duration::from_secs(30);
/// The pause between two looks whether it answers.
const START_CHECK: Duration = Duration::from_millis(10);
/// The pause before another start, if somebody else has the state: a daemon that answers soon, or a command that ends soon.
const IN_USE_PAUSE: Duration = Duration::from_millis(500);
/// Connections that wait for the next message: agents ask one thing at a time, or a few.
const IDLE_CLIENTS_MAX: usize = 4;

/// A daemon, perhaps one that does not run yet.
pub(super) struct Link {
    common: Common,
    /// The state of the project; `None` if the command line or the environment names a socket, whose daemon is not ours to start.
    state: Option<PathBuf>,
    project: PathBuf,
    /// The route for this agent.
    path: String,
    idle: Mutex<Vec<Client>>,
    /// Held while one of us starts the daemon.
    starting: tokio::sync::Mutex<()>,
}

impl Link {
    pub(super) fn of(common: &Common, project: &Project, place: &Place) -> Result<Self, CliError> {
        let mut common = common.clone();
        let by_socket = common.settings(None)?.names_socket();
        if !by_socket {
            common.state = Some(project.state(&common)?);
        }
        let query = place.named().map(|(name, value)| format!("&{name}={}", percent_encoded(&value)));
        Ok(Self {
            path: format!("/mcp{}", query.collect::<String>().replacen('&', "?", 1)),
            state: common.state.clone().filter(|_| !by_socket),
            common,
            project: project.folder.clone(),
            idle: Mutex::default(),
            starting: tokio::sync::Mutex::default(),
        })
    }

    fn client(&self) -> Result<Client, CliError> {
        match &self.state {
            Some(state) => client_of(&self.common, state),
            None => daemon_client(&self.common),
        }
    }

    /// A client of the daemon, which is started if none answers.
    async fn connected(&self) -> Result<Client, CliError> {
        let idle = self.idle.lock().pop();
        let mut client = match idle {
            Some(client) => client,
            None => self.client()?,
        };
        match (client.connect().await, &self.state) {
            (Ok(()), _) => Ok(client),
            (Err(error), Some(state)) if is_absent(&error) => self.started(state).await,
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Starts a daemon and waits until one answers: the state's lock decides whose it is.
    async fn started(&self, state: &Path) -> Result<Client, CliError> {
        // A daemon on an empty state would deny everything and seem to work.
        State::existing(state)?;
        let _one = self.starting.lock().await;
        let end = Instant::now() + START_TIME_MAX;
        let mut starting: Option<Starting> = None;
        loop {
            // A new client each time: a state gets its id when it is first opened.
            let mut client = self.client()?;
            match client.connect().await {
                Ok(()) => {
                    starting.into_iter().for_each(Starting::leave);
                    return Ok(client);
                }
                Err(error) if !is_absent(&error) || Instant::now() >= end => return Err(error.into()),
                Err(_) => {}
            }
            let begun = match &mut starting {
                Some(begun) => begun,
                None => starting.insert(Starting::begin(state)?),
            };
            match begun.ended() {
                None => tokio::time::sleep(START_CHECK).await,
                Some(Ended::InUse) => {
                    tokio::time::sleep(IN_USE_PAUSE).await;
                    starting = None;
                }
                Some(Ended::Failed(why)) => return Err(CliError::request(why).exiting(Exit::Unavailable)),
            }
        }
    }

    /// Passes a message on, and each message of the answer to `lines`. A request always gets an answer.
    pub(super) async fn pass(&self, message: &Message, lines: &Lines) {
        let (Err(error), Some(id)) = (self.send(message, lines).await, &message.id) else { return };
        let answer = if matches!(error, CliError::Runtime(Error::NoState(_))) {
            no_policy::answer(id, message, &self.project)
        } else {
            failure(id, INTERNAL_ERROR, &chain(&error), Some(error.to_json()))
        };
        say(lines, answer.to_string().into_bytes()).await;
    }

    /// The result of a request of this program's own.
    pub(super) async fn ask(&self, method: &str, params: Value) -> Result<Value, CliError> {
        let (lines, mut heard) = mpsc::channel::<Vec<u8>>(1);
        let message = Message::request(method, params)?;
        let send = async {
            let sent = self.send(&message, &lines).await;
            drop(lines);
            sent
        };
        let hear = async {
            let mut answer = Vec::new();
            while let Some(line) = heard.recv().await {
                if is_answer(&line) {
                    answer = line;
                }
            }
            answer
        };
        let (sent, answer) = tokio::join!(send, hear);
        match sent {
            Err(CliError::Runtime(Error::NoState(_))) => {
                return Err(CliError::request(no_policy::advice(&self.project)));
            }
            sent => sent?,
        }
        let mut answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        match answer.get_mut("result") {
            Some(result) => Ok(result.take()),
            None => {
                let why = answer["error"]["message"].as_str().unwrap_or("the answer has no result");
                Err(CliError::request(why).exiting(Exit::Failed))
            }
        }
    }

    /// Hands the messages of `subscriptions/listen` to `lines`, until the daemon ends the stream. Only a request of the agent is worth
    /// the start of a daemon, which a person may have stopped.
    pub(super) async fn listen(&self, lines: Lines) -> Result<(), CliError> {
        if let Some(state) = &self.state {
            State::existing(state)?;
        }
        let wanted = json!({ "notifications": { "toolsListChanged": true } });
        self.exchange(self.client()?, &Message::request("subscriptions/listen", wanted)?, &lines).await
    }

    async fn send(&self, message: &Message, lines: &Lines) -> Result<(), CliError> {
        let sent = self.exchange(self.connected().await?, message, lines).await;
        sent.map_err(|error| lost(message, error))
    }

    async fn exchange(&self, mut client: Client, message: &Message, lines: &Lines) -> Result<(), CliError> {
        let mut answer = client.post_streamed(&self.path, message.bytes.clone(), message.headers()).await?;
        let kind = answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        let (mut events, mut is_answered, mut is_open) = (Events::default(), false, true);
        while is_open {
            let messages = match answer.piece().await {
                Ok(Some(piece)) if is_stream => events.read(&piece)?,
                Ok(Some(piece)) => events.keep(&piece).map(|()| Vec::new())?,
                // There is one answer, and the agent has it.
                Err(error) if !is_answered => return Err(error.into()),
                Ok(None) | Err(_) => {
                    is_open = false;
                    if is_stream { Vec::new() } else { vec![events.kept()] }
                }
            };
            // Nobody waits for an answer to a notification.
            let Some(id) = &message.id else { continue };
            for mut one in messages {
                if answer.status >= 400 {
                    one = refusal(id, answer.status, &one).to_string().into_bytes();
                }
                let is_last = is_answer(&one);
                is_answered |= is_last;
                if is_stream || is_last {
                    say(lines, one).await;
                }
            }
        }
        if !is_answered && message.id.is_some() {
            let why = format!("status {} without an answer", answer.status);
            let error = if is_stream { ClientError::Broken(why) } else { ClientError::Strange(why) };
            return Err(error.into());
        }
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_CLIENTS_MAX {
            idle.push(client);
        }
        Ok(())
    }
}

/// What to say of a call whose answer is lost. Other requests may be repeated, but a call without a key of its own is then another action.
fn lost(message: &Message, error: CliError) -> CliError {
    if let CliError::Client(ClientError::Broken(why)) = &error
        && message.method == "tools/call"
    {
        let why = format!(
            "the connection to the daemon broke: {why}; the call may have been carried out, so look before you repeat it"
        );
        return CliError::request(why).exiting(Exit::Unknown);
    }
    error
}

/// Whether no daemon served this state when it was asked. A state gets its id at its first start: without an expected id, an answer
/// from another state means that a daemon has just started here.
fn is_absent(error: &ClientError) -> bool {
    matches!(error, ClientError::NoDaemon(_))
        || matches!(error, ClientError::OtherState { expected, .. } if expected.id.is_none())
}

/// Whether this is an answer, not a notification.
fn is_answer(message: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Parts {
        method: Option<IgnoredAny>,
        result: Option<IgnoredAny>,
        error: Option<IgnoredAny>,
    }
    let parts = serde_json::from_slice::<Parts>(message);
    parts.is_ok_and(|parts| parts.method.is_none() && (parts.result.is_some() || parts.error.is_some()))
}

/// What the daemon refused, as the answer to this request. It may not have read the request far enough to know its id.
fn refusal(id: &Value, status: u16, body: &[u8]) -> Value {
    let mut said: Value = serde_json::from_slice(body).unwrap_or_default();
    if said["error"].is_object() {
        said["id"] = id.clone();
        return said;
    }
    let why = said["detail"].as_str().map_or_else(|| format!("status {status}"), str::to_owned);
    failure(id, INTERNAL_ERROR, &why, said.is_object().then_some(said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_the_answer_to_its_request() {
        let told =
            json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32_020, "message": "headers" } });
        let answer = refusal(&json!(7), 400, told.to_string().as_bytes());
        assert_eq!((&answer["id"], &answer["error"]), (&json!(7), &told["error"]));
        let problem = json!({ "code": "overloaded", "detail": "too many connections" });
        let answer = refusal(&json!("a"), 503, problem.to_string().as_bytes());
        let error = json!({ "code": INTERNAL_ERROR, "message": "too many connections", "data": problem });
        assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": "a", "error": error }));
        assert_eq!(refusal(&json!(1), 502, b"<html>")["error"]["message"], "status 502");
    }

    #[test]
    fn a_notification_is_no_answer() {
        assert!(is_answer(br#"{"id":1,"result":{}}"#) && is_answer(br#"{"id":null,"error":{"code":1}}"#));
        for other in [r#"{"method":"notifications/progress"}"#, "{}", "", "[]", "<html>"] {
            assert!(!is_answer(other.as_bytes()), "{other}");
        }
    }
}
