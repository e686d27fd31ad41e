//! Asks for an exchange over the side channel, and waits for its answer. The child opens no socket and names no host.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use effectd_contracts::exchange::{EXCHANGE_STREAM, FrameReader};
use effectd_contracts::limits::EXCHANGE_ANSWER_BYTES_MAX;
use effectd_contracts::{
    Code, Compensation, Exchange, ExchangeAnswer, ExchangeFault, ExchangeReply, Failure, Method, Phase,
    ProbeVerdict, Repeat, RiskLevel, SideEffect, ToolCall, ToolId, ToolSpec, Undoes, json,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::params::{self, TypedTool};
use crate::workspace::Workspace;

/// How long a call of a service's tool may take.
pub(crate) const SERVICE_TIMEOUT_MS: u64 = 30_000;

/// How far a service's clock may be behind this one, in seconds.
pub(crate) const SKEW_S: i64 = 300;
/// How long an effect may take to show after its answer was lost.
const SHOWS_AFTER: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 3 });

/// Longest piece of a side channel.
const PIECE_BYTES: usize = 65_536;

/// The connection of a tool: its source.
pub(crate) fn connection_of(tool: &ToolId) -> String {
    tool.source().to_owned()
}

/// Makes one exchange. The failure tells people why there is no answer; effectd itself knows what has left.
pub(crate) fn exchange(workspace: &Workspace<'_>, asked: &Exchange) -> Result<ExchangeAnswer, Failure> {
    let failed = |code, why: String| Failure::new(code, Phase::Dispatch, why);
    let broken = |error: io::Error| {
        failed(Code::ToolFailed, format!("effectd cannot be asked for the request: {error}"))
    };
    let frame = asked.to_frame().map_err(|error| broken(error.into()))?;
    let channel = workspace.side_channel();
    for piece in frame.chunks(PIECE_BYTES) {
        channel.send_piece(EXCHANGE_STREAM, piece).map_err(broken)?;
    }
    let mut reader = FrameReader::of_replies();
    let reply = loop {
        let piece = channel.receive_piece().map_err(broken)?;
        let found = reader.add(&piece).map_err(|why| broken(io::Error::other(why)))?;
        if let Some((lengths, rest)) = found {
            break ExchangeReply::from_frame(lengths, rest);
        }
        if piece.is_empty() {
            return Err(broken(io::ErrorKind::UnexpectedEof.into()));
        }
    };
    match reply {
        Some(ExchangeReply::Answered(answer)) => Ok(answer),
        Some(ExchangeReply::Failed(failure)) => {
            let is_late = failure.fault == ExchangeFault::Busy;
            Err(failed(if is_late { Code::ToolBusy } else { Code::ToolFailed }, failure.message))
        }
        None => Err(broken(io::ErrorKind::InvalidData.into())),
    }
}

/// A request with a document of JSON.
pub(crate) fn json_request(connection: &str, method: Method, path: &str, body: &Value) -> Exchange {
    let headers = vec![("content-type".to_owned(), "application/json; charset=utf-8".to_owned())];
    Exchange { headers, body: body.to_string().into_bytes(), ..Exchange::new(connection, method, path) }
}

/// Refuses parameters from which no request can be made.
pub(crate) fn check(exchange: &Exchange) -> Result<(), Failure> {
    exchange.check().map_err(|why| params::invalid("", why))
}

/// A failure that a service told about. Of its words, only a short code is repeated: the others may quote the parameters.
pub(crate) fn refused(service: &str, code: &str) -> Failure {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || " _-.'".contains(c);
    let code =
        if code.is_empty() || code.len() > 64 || !code.chars().all(is_plain) { "unknown" } else { code };
    Failure::new(Code::ServiceRefused, Phase::Dispatch, format!("{service} API Error: {code}"))
}

/// The failure of a service that asks to be asked later, or has a fault of its own: it has not done what it was asked, or nobody knows.
pub(crate) fn fault(service: &str, answer: &ExchangeAnswer) -> Option<Failure> {
    let code = match answer.status {
        429 | 503 => Code::ToolBusy,
        500.. => Code::ToolFailed,
        _ => return None,
    };
    Some(Failure { code, retryable: code.retryable(), ..refused(service, reason(answer.status)) })
}

/// The failure of an answer that is not what the service's interface promises.
pub(crate) fn unreadable(service: &str) -> Failure {
    Failure::new(Code::ToolFailed, Phase::Dispatch, format!("the answer of {service} cannot be read"))
}

/// The body of an answer, as the service promises it.
pub(crate) fn read<T: DeserializeOwned>(service: &str, answer: &ExchangeAnswer) -> Result<T, Failure> {
    json::parse_reply(&answer.body, EXCHANGE_ANSWER_BYTES_MAX).map_err(|_| unreadable(service))
}

/// The text of a status, as HTTP has it.
pub(crate) fn reason(status: u16) -> &'static str {
    match status {
        300..=399 => "Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        410 => "Gone",
        413 => "Content Too Large",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "unexpected status",
    }
}

/// The spec of a tool that reads from a service.
pub(crate) fn reads<T: TypedTool>(cap: &str, result: Value) -> ToolSpec {
    ToolSpec {
        caps_required: params::caps([cap]),
        side_effects: BTreeSet::from([SideEffect::NetworkCall]),
        timeout_ms: SERVICE_TIMEOUT_MS,
        ..params::reads::<T>(&[], result)
    }
}

/// The spec of a tool that changes something at a service.
pub(crate) fn writes<T: TypedTool>(cap: &str, repeat: Repeat, result: Value) -> ToolSpec {
    ToolSpec {
        risk_level: Some(RiskLevel::Write),
        compensation: Compensation::Declared,
        repeat,
        ..reads::<T>(cap, result)
    }
}

/// The mark of the action's effect.
pub(crate) fn mark(call: &ToolCall) -> &str {
    call.mark.as_ref().map_or("", |mark| mark.id.as_str())
}

/// Looks again after a while before it says that nothing happened: a request whose answer was lost may still be on its way.
pub(crate) fn look_twice(look: impl Fn() -> ProbeVerdict) -> ProbeVerdict {
    match look() {
        ProbeVerdict::NotDone => {
            std::thread::sleep(SHOWS_AFTER);
            look()
        }
        verdict @ (ProbeVerdict::Done | ProbeVerdict::CannotSay) => verdict,
    }
}

/// The action that an undo makes up for.
pub(crate) fn undone(call: &ToolCall) -> Result<&Undoes, Failure> {
    let missing = || Failure::new(Code::UndoGone, Phase::Dispatch, "effectd has not said what to undo");
    call.undoes.as_deref().ok_or_else(missing)
}

/// Text of at most so many bytes, and whether it was cut.
pub(crate) fn cut(mut text: String, bytes_max: usize) -> (String, bool) {
    let is_long = text.len() > bytes_max;
    text.truncate(text.floor_char_boundary(bytes_max));
    (text, is_long)
}
