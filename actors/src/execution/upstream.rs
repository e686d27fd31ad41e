//! Which messages a child may send to an MCP server: greetings, lists, and the one call that was judged. So a child that a server has
//! misled can ask that server for nothing else.

use effectd_contracts::json;
use effectd_contracts::limits::EXCHANGE_BODY_BYTES_MAX;
use serde_json::{Map, Value};

/// The call that the gate judged: the name by which the server knows the tool, and the arguments.
pub(crate) type Judged<'a> = (&'a str, &'a Map<String, Value>);

/// Methods without an effect, by MCP in each of its versions.
const READS: [&str; 5] = ["initialize", "notifications/initialized", "ping", "server/discover", "tools/list"];

/// Longest message without an effect: the mark of a page is the server's own word.
const READ_BYTES_MAX: usize = 65_536;

/// Whether a message is the call, which may have an effect. The error says why it may not leave.
pub(crate) fn is_call(message: &[u8], call: Option<Judged<'_>>) -> Result<bool, String> {
    let size = message.len();
    let message: Map<String, Value> =
        json::parse(message, EXCHANGE_BODY_BYTES_MAX).map_err(|error| error.to_string())?;
    let method = message.get("method").and_then(Value::as_str).unwrap_or_default();
    if READS.contains(&method) {
        return if is_plain(&message, method) && size <= READ_BYTES_MAX {
            Ok(false)
        } else {
            Err(format!("{method} says more than a greeting and a page of a list"))
        };
    }
    let Some((name, arguments)) = call.filter(|_| method == "tools/call") else {
        return Err("a server is greeted and asked for its tools, and nothing else".to_owned());
    };
    let params = message.get("params").and_then(Value::as_object);
    let is_judged = params.is_some_and(|params| {
        let asked = params.get("arguments").and_then(Value::as_object);
        params.get("name").and_then(Value::as_str) == Some(name)
            && asked.map_or(arguments.is_empty(), |asked| asked == arguments)
            && params.keys().all(|member| ["name", "arguments", "_meta"].contains(&member.as_str()))
    });
    if is_judged { Ok(true) } else { Err("this is not the call that was judged".to_owned()) }
}

/// Whether a message without an effect has no room for what a server would like to hear.
fn is_plain(message: &Map<String, Value>, method: &str) -> bool {
    let greeting = ["protocolVersion", "capabilities", "clientInfo"];
    message.get("params").is_none_or(|params| {
        params.as_object().is_some_and(|params| {
            params.iter().all(|(name, value)| match name.as_str() {
                "_meta" => true,
                "cursor" => method == "tools/list" && value.is_string(),
                name => method == "initialize" && greeting.contains(&name),
            })
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn a_child_sends_the_judged_call_and_no_other() {
        let arguments = json!({ "to": "ada", "lines": [1, 2] }).as_object().unwrap().clone();
        let judged = Some(("send", &arguments));
        let is = |message: Value| is_call(message.to_string().as_bytes(), judged);
        for method in READS {
            assert_eq!(is(json!({ "jsonrpc": "2.0", "id": 1, "method": method })), Ok(false), "{method}");
        }
        let call = |params: Value| {
            is(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }))
        };
        assert_eq!(call(json!({ "name": "send", "arguments": arguments, "_meta": { "x": 1 } })), Ok(true));
        for params in [
            json!({ "name": "send_all", "arguments": arguments }),
            json!({ "name": "send", "arguments": { "to": "eve", "lines": [1, 2] } }),
            json!({ "name": "send", "arguments": { "to": "ada", "lines": [1, 2], "bcc": "eve" } }),
            json!({ "name": "send", "arguments": arguments, "inputResponses": [] }),
            json!({ "name": "send" }),
        ] {
            assert!(call(params.clone()).is_err(), "{params}");
        }
        assert_eq!(
            is(json!({ "method": "tools/list", "params": { "cursor": "2", "_meta": {} } })),
            Ok(false)
        );
        for message in [
            json!({ "method": "tools/list", "params": { "cursor": "x".repeat(READ_BYTES_MAX) } }),
            json!({ "method": "tools/list", "params": { "note": "a file" } }),
            json!({ "method": "ping", "params": { "cursor": "a file" } }),
            json!({ "method": "ping", "params": ["a file"] }),
            json!({ "method": "resources/read" }),
            json!({ "id": 1, "result": { "action": "accept" } }),
            json!([{ "method": "tools/list" }]),
        ] {
            assert!(is(message.clone()).is_err(), "{message}");
        }
        let harvest = json!({ "method": "tools/call", "params": { "name": "send" } });
        assert!(is_call(harvest.to_string().as_bytes(), None).is_err(), "a harvest calls nothing");
    }
}
