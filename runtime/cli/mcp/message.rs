//! Messages of JSON-RPC: what a bridge has to know of them, and how a stream of events carries them.

use effectd_gateway::client::ClientError;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// The newest revision of MCP: each request says its version, and nobody shakes hands.
pub(super) const MODERN: &str = "2026-07-28";
/// Earlier revisions, which begin with `initialize`, the newest first.
pub(super) const LEGACY: [&str; 2] = ["2025-11-25", "2025-06-18"];
/// Where a modern request says its version.
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";

pub(super) const PARSE_ERROR: i32 = -32_700;
pub(super) const INVALID_REQUEST: i32 = -32_600;
pub(super) const INTERNAL_ERROR: i32 = -32_603;

/// The longest answer, and the longest event of a stream.
const ANSWER_BYTES_MAX: usize = 16 * 1_048_576;

/// A message from an agent.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) bytes: Bytes,
    /// Of a request; a notification has none.
    pub(super) id: Option<Value>,
    /// Empty if the message is an answer.
    pub(super) method: String,
    /// The version that a modern request says.
    version: Option<String>,
    /// What a modern request is about.
    name: Option<String>,
    /// The id of the request that the agent no longer wants.
    pub(super) cancels: Option<Value>,
}

impl Message {
    /// The error is an answer.
    pub(super) fn parse(line: Vec<u8>) -> Result<Self, Value> {
        let value: Value = serde_json::from_slice(&line).map_err(|error| {
            failure(&Value::Null, PARSE_ERROR, &format!("this is not JSON: {error}"), None)
        })?;
        if !value.is_object() {
            let why = "a message is one JSON object; batches are no longer part of MCP";
            return Err(failure(&Value::Null, INVALID_REQUEST, why, None));
        }
        let text = |at: Option<&Value>| at.and_then(Value::as_str).map(str::to_owned);
        let params = &value["params"];
        let method = text(value.get("method")).unwrap_or_default();
        let name = match method.as_str() {
            "resources/read" => "uri",
            "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
            _ => "name",
        };
        Ok(Self {
            id: value.get("id").filter(|_| !method.is_empty()).cloned(),
            version: text(params["_meta"].get(VERSION)),
            name: text(params.get(name)),
            cancels: params.get("requestId").filter(|_| method == "notifications/cancelled").cloned(),
            method,
            bytes: line.into(),
        })
    }

    /// A modern request of this program's own.
    pub(super) fn request(method: &str, mut params: Value) -> Result<Self, ClientError> {
        params["_meta"] = json!({
            VERSION: MODERN,
            "io.modelcontextprotocol/clientInfo": { "name": "effectd", "version": env!("CARGO_PKG_VERSION") },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        Self::parse(message.to_string().into_bytes())
            .map_err(|answer| ClientError::Strange(answer.to_string()))
    }

    pub(super) fn is_modern(&self) -> bool {
        self.version.is_some()
    }

    /// The headers that go with it over HTTP. A legacy message needs none: the daemon treats all legacy versions alike.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        let mut put = |name: &'static str, value: Option<&str>| {
            // A value that is none of a header is left out, and the daemon says that it is missing.
            if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        // Says that changes of the list of tools reach the agent.
        put("effectd-transport", Some("stdio"));
        if self.is_modern() {
            put("mcp-protocol-version", self.version.as_deref());
            put("mcp-method", Some(&self.method));
            put("mcp-name", self.name.as_deref());
        }
        headers
    }
}

/// An answer that says why there is no result.
pub(super) fn failure(id: &Value, code: i32, message: &str, data: Option<Value>) -> Value {
    let mut error = json!({ "code": code, "message": message });
    if let Some(data) = data {
        error["data"] = data;
    }
    json!({ "jsonrpc": "2.0", "id": id, "error": error })
}

/// Messages for the agent, each one line.
pub(super) type Lines = mpsc::Sender<Vec<u8>>;

/// Sends a message to the agent; one that is gone needs none.
pub(super) async fn say(lines: &Lines, message: Vec<u8>) {
    let _ = lines.send(one_line(message)).await;
}

/// A message on one line: between the tokens of JSON, a line break is a blank.
fn one_line(mut message: Vec<u8>) -> Vec<u8> {
    for byte in &mut message {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    message.push(b'\n');
    message
}

/// Takes the data of events out of a stream (`text/event-stream`), or keeps an answer that is none.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The line that has no end yet.
    line: Vec<u8>,
    /// The data of the event that has no end yet.
    data: Vec<u8>,
}

impl Events {
    pub(super) fn keep(&mut self, piece: &[u8]) -> Result<(), ClientError> {
        self.line.extend_from_slice(piece);
        if self.line.len() + self.data.len() > ANSWER_BYTES_MAX {
            let why = format!("an answer is longer than {ANSWER_BYTES_MAX} bytes");
            return Err(ClientError::Strange(why));
        }
        Ok(())
    }

    /// All that was kept.
    pub(super) fn kept(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.line)
    }

    /// The events that end in this piece.
    pub(super) fn read(&mut self, piece: &[u8]) -> Result<Vec<Vec<u8>>, ClientError> {
        let mut events = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.keep(part)?;
            if self.line.pop_if(|last| *last == b'\n').is_none() {
                break;
            }
            let line = std::mem::take(&mut self.line);
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            if let Some(data) = line.strip_prefix(b"data:") {
                self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
                self.data.push(b'\n');
            } else if line.is_empty() && !self.data.is_empty() {
                events.push(std::mem::take(&mut self.data));
            }
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn headers(message: &Value) -> Vec<(String, String)> {
        let message = Message::parse(message.to_string().into_bytes()).unwrap();
        let headers = message.headers();
        let mut all: Vec<_> = headers
            .iter()
            .filter(|(name, _)| name.as_str().starts_with("mcp-"))
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        all.sort();
        all
    }

    fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn headers_are_those_of_the_era() {
        let version = ("mcp-protocol-version", MODERN);
        let meta = json!({ VERSION: MODERN });
        let call =
            json!({ "id": 1, "method": "tools/call", "params": { "name": "files_list", "_meta": meta } });
        let about = [("mcp-method", "tools/call"), ("mcp-name", "files_list"), version];
        assert_eq!(headers(&call), pairs(&about));
        let read =
            json!({ "id": 1, "method": "resources/read", "params": { "uri": "effectd://a", "_meta": meta } });
        let about = [("mcp-method", "resources/read"), ("mcp-name", "effectd://a"), version];
        assert_eq!(headers(&read), pairs(&about));
        let task = json!({ "id": 1, "method": "tasks/get", "params": { "taskId": "t", "_meta": meta } });
        let about = [("mcp-method", "tasks/get"), ("mcp-name", "t"), version];
        assert_eq!(headers(&task), pairs(&about));
        let legacy = json!({ "id": 1, "method": "tools/call", "params": { "name": "files_list" } });
        assert_eq!(headers(&legacy), pairs(&[]));
        let begin = json!({ "id": 1, "method": "initialize", "params": { "protocolVersion": LEGACY[1] } });
        assert_eq!(headers(&begin), pairs(&[]));
        // A name with a line break would be two headers.
        let evil =
            json!({ "id": 1, "method": "tools/call", "params": { "name": "a\r\nb: c", "_meta": meta } });
        assert_eq!(headers(&evil), pairs(&[("mcp-method", "tools/call"), version]));
    }

    #[test]
    fn what_is_no_message_is_answered_and_an_answer_has_no_answer() {
        for (line, code) in [("nonsense", PARSE_ERROR), ("[1]", INVALID_REQUEST), ("\"a\"", INVALID_REQUEST)]
        {
            let answer = Message::parse(line.as_bytes().to_vec()).unwrap_err();
            assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &Value::Null), "{line}");
        }
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        assert_eq!(Message::parse(deep.into_bytes()).unwrap_err()["error"]["code"], PARSE_ERROR);
        let parsed = |line: &str| Message::parse(line.as_bytes().to_vec()).unwrap();
        assert_eq!(parsed(r#"{"id":"a","method":"ping"}"#).id, Some(json!("a")));
        assert_eq!(parsed(r#"{"method":"notifications/initialized"}"#).id, None);
        assert_eq!(parsed(r#"{"id":1,"result":{}}"#).id, None);
    }

    #[test]
    fn events_are_the_same_in_pieces_of_any_length() {
        let stream =
            b": hello\n\nevent: message\ndata: {\"a\":\ndata: 1}\n\nid: 7\r\ndata:{}\r\n\r\ndata: lost";
        let expected: Vec<&[u8]> = vec![b"{\"a\":\n1}\n", b"{}\n"];
        for length in 1..=stream.len() {
            let mut events = Events::default();
            let found: Vec<_> = stream.chunks(length).flat_map(|piece| events.read(piece).unwrap()).collect();
            assert_eq!(found, expected, "{length}");
        }
        assert_eq!(one_line(expected[0].to_vec()), b"{\"a\": 1} \n");
        let endless = Events::default().read(&vec![b'x'; ANSWER_BYTES_MAX + 1]);
        assert!(matches!(endless, Err(ClientError::Strange(_))), "{endless:?}");
    }
}
