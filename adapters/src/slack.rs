//! Slack: messages to channels.
//!
//! A message has the mark of its action in its metadata, which nobody sees in the channel. By that a probe finds a message whose answer
//! was lost, if the token may read the channel's history; if it may not, nobody knows.

use effectd_contracts::{EffectMark, Exchange, ExchangeAnswer, Method, ToolCall};
use serde_json::Map;

use crate::Service;
use crate::exchange::{
    SKEW_S, check, connection_of, exchange, fault, json_request, look_twice, read, reason, refused, undone,
    unreadable, writes,
};
use crate::prelude::*;

pub(crate) const SERVICE: Service =
    Service { source: "slack", tools: &[&SendMessage, &Undo], guide: include_str!("guides/slack.md") };

const NAME: &str = "Slack";
/// The type of the metadata that effectd gives a message.
const EVENT: &str = "effectd_action";
/// Messages of one page of a history, and the most pages that a probe reads.
const PAGE: usize = 200;
const PAGES_MAX: usize = 8;

/// What Slack answered. It refuses with status 200, by a code.
fn answered(answer: &ExchangeAnswer) -> Result<Map<String, Value>, Failure> {
    if let Some(fault) = fault(NAME, answer) {
        return Err(fault);
    }
    if !(200..300).contains(&answer.status) {
        return Err(refused(NAME, reason(answer.status)));
    }
    let answer: Map<String, Value> = read(NAME, answer)?;
    if answer.get("ok") == Some(&Value::Bool(true)) {
        return Ok(answer);
    }
    // Slack says of these that a part may have been done: https://docs.slack.dev/reference/methods/chat.postMessage#errors
    const OPEN: [&str; 4] = ["fatal_error", "internal_error", "request_timeout", "service_unavailable"];
    let word = answer.get("error").and_then(Value::as_str).ok_or_else(|| unreadable(NAME))?;
    let failure = refused(NAME, word);
    Err(match word {
        "ratelimited" | "rate_limited" => {
            Failure { code: Code::ToolBusy, retryable: Code::ToolBusy.retryable(), ..failure }
        }
        word if OPEN.contains(&word) => Failure { code: Code::ToolFailed, ..failure },
        _ => failure,
    })
}

/// `slack.send_message`.
#[derive(Debug, Clone, Copy)]
pub struct SendMessage;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The channel, by its id such as C0123456789. A name works, but then a lost answer cannot be looked into.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    channel: String,
    /// The message, in Slack's Markdown.
    #[schemars(length(min = 1, max = 40_000), extend("x-pii" = "required"))]
    text: String,
    /// The message to answer in its thread, by its ts.
    #[schemars(regex(pattern = r"^[0-9]{1,16}\.[0-9]{1,9}$"), extend("x-public" = true, "x-resource" = true))]
    thread_ts: Option<String>,
}

impl Params {
    fn exchange(&self, connection: &str, mark: Option<&EffectMark>) -> Exchange {
        let mut body = json!({ "channel": self.channel, "text": self.text });
        if let Some(thread) = &self.thread_ts {
            body["thread_ts"] = json!(thread);
        }
        if let Some(mark) = mark {
            body["metadata"] = json!({ "event_type": EVENT, "event_payload": { "id": mark.id } });
        }
        json_request(connection, Method::Post, "/api/chat.postMessage", &body)
    }
}

impl TypedTool for SendMessage {
    const ID: &'static str = "slack.send_message";
    const DESCRIPTION: &'static str = "Sends a message to a channel of Slack, or into a thread. People read it at once; an undo deletes it, \
        but they may have read it. Use it to tell people something.";
    const ALIASES: &'static [&'static str] = &["slack.post_message"];
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let public = || json!({ "type": "string", "x-public": true });
        let result = json!({ "channel": public(), "ts": public(), "dry_run": flag() });
        writes::<Self>("slack.write", Repeat::Probe, result)
    }

    fn example(&self) -> Value {
        json!({ "channel": "C0123456789", "text": "The export works again." })
    }

    fn check(&self, params: &Params) -> Result<(), Failure> {
        check(&params.exchange("", None))
    }

    fn exchange(&self, call: &Call<'_, Params>) -> Option<Exchange> {
        Some(call.params.exchange(&connection_of(&call.tool_id), call.mark.as_ref()))
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let asked = TypedTool::exchange(self, call).ok_or_else(|| unreadable(NAME))?;
        let answer = answered(&exchange(workspace, &asked)?)?;
        let told = |name: &str| answer.get(name).and_then(Value::as_str).ok_or_else(|| unreadable(NAME));
        Ok(ToolOutput::new(json!({ "channel": told("channel")?, "ts": told("ts")? }), Some(1.0)))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({})))
    }

    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ProbeVerdict, Failure> {
        let Params { channel, thread_ts, .. } = &call.params;
        let Some(mark) = &call.mark else { return Ok(ProbeVerdict::CannotSay) };
        Ok(look_twice(|| match find(workspace, call, mark, (channel, thread_ts.as_deref())) {
            Ok(Some(_)) => ProbeVerdict::Done,
            Ok(None) => ProbeVerdict::NotDone,
            Err(_) => ProbeVerdict::CannotSay,
        }))
    }
}

/// The message with this mark: its `ts`. The error says why the channel cannot be searched back to the time of the action.
fn find(
    workspace: &Workspace<'_>,
    call: &ToolCall,
    mark: &EffectMark,
    (channel, thread): (&str, Option<&str>),
) -> Result<Option<String>, Failure> {
    let mut query: Vec<_> = [
        ("channel", channel.to_owned()),
        ("oldest", (mark.since.as_second() - SKEW_S).to_string()),
        ("limit", PAGE.to_string()),
        ("include_all_metadata", "true".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let path = match thread {
        Some(ts) => {
            query.push(("ts".to_owned(), ts.to_owned()));
            "/api/conversations.replies"
        }
        None => "/api/conversations.history",
    };
    let (own, mut cursor) = (query.len(), String::new());
    for _ in 0..PAGES_MAX {
        query.truncate(own);
        if !cursor.is_empty() {
            query.push(("cursor".to_owned(), std::mem::take(&mut cursor)));
        }
        let asked = Exchange { query: query.clone(), ..Exchange::get(connection_of(&call.tool_id), path) };
        let page = answered(&exchange(workspace, &asked)?)?;
        let messages = page.get("messages").and_then(Value::as_array).ok_or_else(|| unreadable(NAME))?;
        let is_it = |message: &&Value| {
            let metadata = &message["metadata"];
            metadata["event_type"] == EVENT && metadata["event_payload"]["id"] == mark.id.as_str()
        };
        if let Some(ts) = messages.iter().find(is_it).and_then(|message| message["ts"].as_str()) {
            return Ok(Some(ts.to_owned()));
        }
        let next = page.get("response_metadata").and_then(|next| next["next_cursor"].as_str());
        next.unwrap_or_default().clone_into(&mut cursor);
        if cursor.is_empty() {
            // A page that has more without saying where tells nothing about the rest.
            let is_all = page.get("has_more") != Some(&Value::Bool(true));
            return if is_all { Ok(None) } else { Err(unreadable(NAME)) };
        }
    }
    Err(refused(NAME, "too many messages since"))
}

/// `slack.undo`: deletes a message that was sent.
#[derive(Debug, Clone, Copy)]
pub struct Undo;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UndoParams {
    /// The receipt of the action to undo.
    #[schemars(length(min = 1, max = 256), extend("x-public" = true, "x-resource" = true))]
    #[expect(dead_code, reason = "the pipeline looks the receipt up")]
    receipt_id: String,
}

fn deletion(call: &ToolCall, channel: &str, ts: &str) -> Exchange {
    let body = json!({ "channel": channel, "ts": ts });
    json_request(&connection_of(&call.tool_id), Method::Post, "/api/chat.delete", &body)
}

fn field<'c>(of: &'c Map<String, Value>, name: &str) -> Option<&'c str> {
    of.get(name).and_then(Value::as_str)
}

impl TypedTool for Undo {
    const ID: &'static str = "slack.undo";
    const DESCRIPTION: &'static str = "Deletes the message that the action of a receipt sent to Slack. People may have read it. Use it when \
        it was wrong.";
    type Params = UndoParams;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "undone": { "type": "string", "x-public": true }, "already_gone": flag(), "may_have_been_read": flag(),
            "dry_run": flag(),
        });
        writes::<Self>("slack.write", Repeat::Safe, result)
    }

    fn example(&self) -> Value {
        json!({ "receipt_id": "rcpt-01996e5e-0000-7000-8000-000000000000" })
    }

    /// The receipt says which message, unless its answer was lost.
    fn exchange(&self, call: &Call<'_, UndoParams>) -> Option<Exchange> {
        let sent = &call.undoes.as_deref()?.outputs;
        Some(deletion(call, field(sent, "channel")?, field(sent, "ts")?))
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, UndoParams>) -> Result<ToolOutput, Failure> {
        let undoes = undone(call)?;
        let result = |gone| {
            let result =
                json!({ "undone": undoes.tool_id, "already_gone": gone, "may_have_been_read": true });
            Ok(ToolOutput::new(result, Some(1.0)))
        };
        let asked = match TypedTool::exchange(self, call) {
            Some(asked) => asked,
            None => {
                let channel = field(&undoes.inputs, "channel").ok_or_else(|| unreadable(NAME))?;
                let thread = field(&undoes.inputs, "thread_ts");
                match find(workspace, call, &undoes.mark, (channel, thread))? {
                    Some(ts) => deletion(call, channel, &ts),
                    None => return result(true),
                }
            }
        };
        match answered(&exchange(workspace, &asked)?) {
            Ok(_) => result(false),
            Err(failure) if failure.message.ends_with(" message_not_found") => result(true),
            Err(failure) => Err(failure),
        }
    }

    fn dry_run(&self, _: &Workspace<'_>, call: &Call<'_, UndoParams>) -> Result<ToolOutput, Failure> {
        undone(call).map(|_| params::dry(json!({})))
    }
}
