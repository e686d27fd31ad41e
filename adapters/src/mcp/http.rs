//! MCP over HTTP, by exchanges: one for each message. The answer is JSON, or a stream of events of which one is the answer.

use effectd_contracts::{Exchange, ExchangeAnswer, Method};
use serde_json::Value;

use super::client::{Dialect, Transport, Trouble, failed};
use super::message::{Message, RpcError, Said, read};
use super::sse::events;
use crate::exchange::exchange;
use crate::workspace::Workspace;

pub(super) struct Http<'a> {
    pub(super) workspace: &'a Workspace<'a>,
    pub(super) connection: String,
    pub(super) path: &'a str,
    pub(super) session: Option<String>,
}

impl Transport for Http<'_> {
    fn send(&mut self, message: &Message<'_>, dialect: &Dialect) -> Result<Value, Trouble> {
        let asked = self.exchange(message, dialect);
        let answer = exchange(self.workspace, &asked)?;
        if answer.status == 404 && self.session.is_some() {
            return Err(Trouble::SessionGone);
        }
        let is_ok = (200..300).contains(&answer.status);
        let Some(id) = message.id else {
            return if is_ok { Ok(Value::Null) } else { Err(Trouble::Status(answer.status)) };
        };
        if *dialect == Dialect::Beginning && is_ok {
            self.session = answer.header("mcp-session-id").map(str::to_owned);
        }
        match answer_to(&answer, id) {
            Some(Ok(result)) if is_ok => Ok(result),
            // Such a status says more than what is in the body, which is for who may ask.
            Some(Err(error)) if !matches!(answer.status, 401 | 403 | 429 | 500..) => Err(Trouble::Rpc(error)),
            _ if !is_ok => Err(Trouble::Status(answer.status)),
            _ => Err(failed(format!(
                "the server answered {} with {} bytes of {}: not in MCP's words, or more of them than are read",
                message.method,
                answer.body.len(),
                super::message::printable(answer.header("content-type").unwrap_or("no content type")),
            ))
            .into()),
        }
    }

    fn begin_anew(&mut self) {
        self.session = None;
    }
}

impl Http<'_> {
    fn exchange(&self, message: &Message<'_>, dialect: &Dialect) -> Exchange {
        let mut headers =
            vec![("accept", "application/json, text/event-stream"), ("content-type", "application/json")];
        if *dialect != Dialect::Beginning {
            headers.push(("mcp-protocol-version", dialect.version()));
        }
        if *dialect == Dialect::Modern {
            headers.push(("mcp-method", message.method));
            headers.extend(message.name.map(|name| ("mcp-name", name)));
            headers.extend(message.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        }
        headers.extend(self.session.iter().map(|session| ("mcp-session-id", session.as_str())));
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let plain = Exchange::new(self.connection.as_str(), Method::Post, self.path);
        Exchange { headers, body: message.to_bytes(), ..plain }
    }
}

/// The answer to the request of this id, if it is there. An error may have no id: the server could not read it.
fn answer_to(answer: &ExchangeAnswer, id: u64) -> Option<Result<Value, RpcError>> {
    let is_stream = answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
    let all = if is_stream { events(&answer.body) } else { vec![answer.body.clone()] };
    all.iter().find_map(|one| match read(one)? {
        Said::Answer(of, said) if of == id || (of.is_null() && said.is_err() && !is_stream) => Some(said),
        Said::Answer(..) | Said::Talks => None,
    })
}
