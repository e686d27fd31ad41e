//! `effectd actions …`: what an agent does in its session, by the same routes as any other program.

use std::path::Path;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{ActionId, InvocationStatus, SessionId, json};
use effectd_gateway::client::{Client, ClientError, percent_encoded};
use effectd_gateway::views::whoami::WhoamiView;
use hyper::Method;
use hyper::body::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::backend::reconnected;
use super::mutation::unknown_fails;
use super::run::read_bounded;
use super::{
    CliError, Common, Depth, Form, eprint_line, line, print_json, print_one, print_rows, with_client,
};
use crate::exit::Exit;

/// The pause before an invocation that has not ended is asked for again.
const POLL_EVERY: Duration = Duration::from_millis(500);
/// The number of grants in one answer.
const GRANTS_PAGE: usize = 100;

/// List and run the actions of a session, and request grants in it
///
/// For agents: with a sandbox token, the session is the token's own. An action belongs to an integration, which is the source of its
/// tool: the action `write_text` of the integration `files` is the tool `files.write_text`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  effectd actions list --session 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50")]
pub(super) enum ActionsCommand {
    /// List the actions that the session may use, each with its mode
    #[command(
        after_help = "Example:\n  effectd actions list -o json --session 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50"
    )]
    List(InSession),
    /// Print the guide of an integration, in Markdown
    #[command(
        after_help = "Example:\n  effectd actions guide --integration files --session 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50"
    )]
    Guide {
        /// The integration
        #[arg(long, value_name = "NAME")]
        integration: String,
        #[command(flatten)]
        session: InSession,
    },
    /// Run an action, and wait until it has ended
    ///
    /// If a person must decide, this waits for the decision. Prints the result. Exits with 3 if the action is denied or nobody
    /// decides in time, and with 1 if it fails.
    #[command(
        after_help = "Example:\n  effectd actions run --integration files --action list --params '{\"path\": \".\", \"space_id\": \"shared:household\"}' --session 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50"
    )]
    Run(Run),
    /// Request grants: pre-approvals with a budget
    #[command(subcommand)]
    Grant(GrantVerb),
    /// List grants
    #[command(subcommand)]
    Grants(GrantsVerb),
}

#[derive(Debug, clap::Args)]
pub(super) struct InSession {
    /// The session [default: the session of the token]
    #[arg(long, value_name = "SESSION")]
    session: Option<SessionId>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Run {
    /// The integration
    #[arg(long, value_name = "NAME")]
    integration: String,
    /// The action
    #[arg(long, value_name = "NAME")]
    action: String,
    /// The parameters, in JSON; `@FILE` reads a file, `-` standard input
    #[arg(long, value_name = "JSON", default_value = "{}")]
    params: String,
    #[command(flatten)]
    session: InSession,
}

#[derive(Debug, Subcommand)]
pub(super) enum GrantVerb {
    /// Request a grant
    ///
    /// It is in force at once only if it is for one action of this session, and who created the session administers the organisation.
    /// Otherwise an administrator puts it in force.
    #[command(
        after_help = "Example:\n  effectd actions grant request --integration files --action copy --max-calls 5 --session 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50"
    )]
    Request {
        /// The integration; `*` for all
        #[arg(long, value_name = "NAME")]
        integration: String,
        /// The action; `*` for all
        #[arg(long, value_name = "NAME")]
        action: String,
        /// What it covers
        #[arg(long, value_enum, default_value = "session")]
        scope: Scope,
        /// Number of calls [default: any number]
        #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
        max_calls: Option<u32>,
        #[command(flatten)]
        session: InSession,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum GrantsVerb {
    /// List the grants that cover the session
    #[command(
        after_help = "Example:\n  effectd actions grants list -o json --session 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50"
    )]
    List(InSession),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Scope {
    /// This session
    Session,
    /// All sessions of the organisation
    Org,
}

/// A list of actions, or a page of grants.
#[derive(Deserialize)]
struct Rows {
    #[serde(alias = "actions", alias = "grants")]
    rows: Vec<Value>,
}

const ACTIONS: [(&str, usize); 5] =
    [("INTEGRATION", 14), ("ACTION", 20), ("RISK", 6), ("MODE", 17), ("DESCRIPTION", 0)];
const GRANTS: [(&str, usize); 6] =
    [("GRANT", 36), ("STATE", 9), ("INTEGRATION", 14), ("ACTION", 20), ("CALLS", 9), ("FOR", 0)];

impl ActionsCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let form = common.output;
        let params = match &self {
            Self::Run(run) => params(&run.params)?,
            Self::List(_) | Self::Guide { .. } | Self::Grant(_) | Self::Grants(_) => Map::new(),
        };
        let done = with_client(common, Depth::Policy, async |client| match &self {
            Self::Run(run) => run.run(client, params, form).await,
            Self::List(session) => list(client, session, form).await,
            Self::Guide { integration, session } => guide(client, session, integration).await,
            Self::Grant(GrantVerb::Request { integration, action, scope, max_calls, session }) => {
                let scope = match scope {
                    Scope::Session => "session",
                    Scope::Org => "org",
                };
                let body = json!({
                    "integration": integration, "action": action, "scope": scope, "maxCalls": max_calls,
                });
                let path = session.path(client, "grants").await?;
                let answer: Value = client.post(&path, &body).await?;
                Ok(print_one(form, &GRANTS, &answer["grant"], grant_cells))
            }
            Self::Grants(GrantsVerb::List(session)) => {
                let path = session.path(client, "grants").await?;
                Ok(print_rows(form, &GRANTS, &all_grants(client, &path).await?, grant_cells))
            }
        });
        done.await.map_err(unknown_fails)
    }
}

impl InSession {
    /// A path of the session's routes.
    async fn path(&self, client: &mut Client, rest: &str) -> Result<String, CliError> {
        let session = match &self.session {
            Some(session) => session.to_string(),
            None => {
                let who: WhoamiView = client.get("/v1/whoami").await?;
                let none = || {
                    CliError::request(format!(
                        "{} has no session of its own; name one with --session",
                        who.principal
                    ))
                };
                who.session.clone().ok_or_else(none)?
            }
        };
        Ok(format!("/{}/actions/{rest}", percent_encoded(&session)))
    }
}

async fn list(client: &mut Client, session: &InSession, form: Form) -> Result<Exit, CliError> {
    let path = session.path(client, "available").await?;
    let Rows { rows } = client.get(&path).await?;
    Ok(print_rows(form, &ACTIONS, &rows, |action| {
        let text = |name| text(action, name);
        let about = match (action["error"].as_str(), action["drifted"] == true) {
            (Some(error), _) => error.to_owned(),
            (None, true) => format!("(changed since its review) {}", text("description")),
            (None, false) => text("description"),
        };
        [text("integration"), text("action"), text("riskLevel"), text("mode"), about]
    }))
}

fn grant_cells(grant: &Value) -> [String; 6] {
    let text = |name| text(grant, name);
    let whom = grant["session_id"]
        .as_str()
        .map_or_else(|| format!("all of {}", text("organization_id")), str::to_owned);
    let most = grant["max_calls"].as_u64().map_or_else(|| "-".to_owned(), |most| most.to_string());
    let calls = format!("{}/{most}", grant["used_calls"]);
    [text("id"), text("state"), text("integration"), text("action"), calls, whom]
}

/// A member that is a text; empty if there is none.
fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

async fn guide(client: &mut Client, session: &InSession, integration: &str) -> Result<Exit, CliError> {
    let path = session.path(client, &format!("guide/{}", percent_encoded(integration))).await?;
    let (status, body) = client.ask(Method::GET, &path, Bytes::new()).await?;
    if status >= 400 {
        return Err(refused(&body));
    }
    line(String::from_utf8_lossy(&body).trim_end());
    Ok(Exit::Done)
}

async fn all_grants(client: &mut Client, path: &str) -> Result<Vec<Value>, CliError> {
    let mut all = Vec::new();
    loop {
        let page = format!("{path}?limit={GRANTS_PAGE}&offset={}", all.len());
        let Rows { rows } = client.get(&page).await?;
        let is_last = rows.len() < GRANTS_PAGE;
        all.extend(rows);
        if is_last {
            return Ok(all);
        }
    }
}

impl Run {
    async fn run(
        &self,
        client: &mut Client,
        params: Map<String, Value>,
        form: Form,
    ) -> Result<Exit, CliError> {
        let path = self.session.path(client, "").await?;
        let body = json!({ "integration": self.integration, "action": self.action, "params": params });
        let (invoke, body, key) = (format!("{path}invoke"), Bytes::from(body.to_string()), ActionId::fresh());
        let mut asked = client.post_with_key(&invoke, body.clone(), key.as_str()).await;
        // It may have begun: the same key asks for its answer, and nothing is done twice.
        if let Err(error @ ClientError::Broken(_)) = asked {
            reconnected(client, &error.into()).await;
            asked = client.post_with_key(&invoke, body, key.as_str()).await;
        }
        let (status, answer) = asked?;
        // An invocation that is denied or fails has its own status; the others are not one.
        let mut found = match Invocation::read(&answer) {
            Err(_) if status >= 400 => return Err(refused(&answer)),
            found => found?,
        };
        let id = text(&found.value, "id");
        let path = format!("{path}invocations/{}", percent_encoded(&id));
        if found.status == InvocationStatus::Pending {
            let until = text(&found.value, "expires_at");
            eprint_line(&format!("a person must decide before {until}; invocation {id}"));
        }
        loop {
            if let Some(exit) = found.exit() {
                found.print(exit, form);
                return Ok(exit);
            }
            tokio::time::sleep(POLL_EVERY).await;
            match client.ask(Method::GET, &path, Bytes::new()).await {
                Ok((200, answer)) => found = Invocation::read(&answer)?,
                Ok((429 | 503, _)) => {}
                Ok((_, answer)) => return Err(refused(&answer)),
                Err(error) if error.may_retry() => reconnected(client, &error.into()).await,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// An invocation, with its result if it has ended.
struct Invocation {
    status: InvocationStatus,
    value: Value,
}

impl Invocation {
    fn read(answer: &[u8]) -> Result<Self, ClientError> {
        let strange = |error: serde_json::Error| ClientError::Strange(error.to_string());
        let mut answer: Value = serde_json::from_slice(answer).map_err(strange)?;
        let value = answer.get_mut("invocation").map(Value::take).unwrap_or_default();
        let status = InvocationStatus::deserialize(&value["status"]).map_err(strange)?;
        Ok(Self { status, value })
    }

    /// `None` until it has ended.
    fn exit(&self) -> Option<Exit> {
        match self.status {
            InvocationStatus::Pending | InvocationStatus::Approved | InvocationStatus::Executing => None,
            InvocationStatus::Completed => Some(Exit::Done),
            InvocationStatus::Denied | InvocationStatus::Expired => Some(Exit::Denied),
            InvocationStatus::Failed => Some(Exit::Failed),
        }
    }

    fn print(&self, exit: Exit, form: Form) {
        let is_gone = self.value["result_error"].is_object();
        if exit != Exit::Done {
            let words = ["status", "denied_reason", "error"].map(|name| text(&self.value, name));
            let words: Vec<String> = words.into_iter().filter(|word| !word.is_empty()).collect();
            eprint_line(&words.join(": "));
        } else if is_gone {
            let why = text(&self.value["result_error"], "message");
            eprint_line(&format!("it is done, without its result: {why}"));
        }
        if !print_json(form, &self.value) && exit == Exit::Done && !is_gone {
            // Plain data with text keys always serialises.
            line(&serde_json::to_string_pretty(&self.value["result"]).unwrap_or_default());
        }
    }
}

/// The problem in an answer.
pub(super) fn refused(answer: &[u8]) -> CliError {
    match serde_json::from_slice(answer) {
        Ok(problem) => CliError::Refused(Box::new(problem)),
        Err(error) => ClientError::Strange(error.to_string()).into(),
    }
}

fn params(text: &str) -> Result<Map<String, Value>, CliError> {
    object("--params", text)
}

/// The object that a flag gives: JSON, the name of a file after `@`, or `-`.
pub(super) fn object(flag: &str, text: &str) -> Result<Map<String, Value>, CliError> {
    let bytes = match text.strip_prefix('@') {
        Some(file) => read_bounded(Path::new(file)),
        None if text == "-" => read_bounded(Path::new(text)),
        None => Ok(text.as_bytes().to_vec()),
    };
    let bytes = bytes.map_err(|error| CliError::request(format!("{flag} {text} cannot be read: {error}")))?;
    let cannot = |error: json::JsonInvalid| CliError::request(format!("{flag} is not an object: {error}"));
    json::parse(&bytes, REQUEST_BYTES_MAX).map_err(cannot)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn parameters_are_one_object_whatever_is_in_them() {
        let text = "a \"quoted\" \\ line\nand `another` $(one) 'too'";
        let written = json!({ "text": text }).to_string();
        assert_eq!(params(&written).unwrap()["text"], text);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &written).unwrap();
        assert_eq!(params(&format!("@{}", file.path().display())).unwrap()["text"], text);
        for wrong in ["", "[]", "text", "{\"a\": 1, \"a\": 2}", "{} {}", "@no/such/file"] {
            assert!(params(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_an_invocation_is_read_as_one() {
        let read = |answer: Value| Invocation::read(answer.to_string().as_bytes());
        for (status, exit) in [
            ("pending", None),
            ("executing", None),
            ("completed", Some(Exit::Done)),
            ("denied", Some(Exit::Denied)),
            ("expired", Some(Exit::Denied)),
            ("failed", Some(Exit::Failed)),
        ] {
            let found = read(json!({ "invocation": { "id": "s/1", "status": status }, "message": "m" }));
            assert_eq!(found.unwrap().exit(), exit, "{status}");
        }
        for other in [json!({}), json!([]), json!(null), json!({ "code": "not_found", "status": 404 })] {
            assert!(read(other.clone()).is_err(), "{other}");
        }
        assert!(Invocation::read(b"<html>").is_err());
    }
}
