//! JSON-RPC, as far as a client needs it. What a server says is bounded, and nothing of it is believed.

use effectd_contracts::json as strict;
use effectd_contracts::limits::EXCHANGE_ANSWER_BYTES_MAX;
use serde_json::{Map, Value, json};

pub(super) const MODERN: &str = "2026-07-28";
/// Longest message of a server's that is shown.
const MESSAGE_CHARS_MAX: usize = 400;

/// What a server says in one message.
#[derive(Debug, PartialEq)]
pub(super) enum Said {
    /// The answer to a request, by its id.
    Answer(Value, Result<Value, RpcError>),
    /// A request of the server's own, or news. Neither gets an answer: the client has said that it can do nothing for a server.
    Talks,
}

/// An error that the server answered with.
#[derive(Debug, PartialEq)]
pub(super) struct RpcError {
    pub(super) number: i64,
    /// Cut, and without hidden characters.
    pub(super) message: String,
    /// Whether it says that the server speaks 2026-07-28.
    pub(super) offers_modern: bool,
}

/// Reads one message; `None` if it is none: a server may write other lines, too.
pub(super) fn read(bytes: &[u8]) -> Option<Said> {
    let mut value: Value = strict::parse_reply(bytes, EXCHANGE_ANSWER_BYTES_MAX).ok()?;
    let message = value.as_object_mut()?;
    if message.contains_key("method") {
        return Some(Said::Talks);
    }
    let id = message.remove("id")?;
    match (message.remove("result"), message.remove("error")) {
        (Some(result), None) => Some(Said::Answer(id, Ok(result))),
        (None, Some(Value::Object(error))) => Some(Said::Answer(id, Err(RpcError::of(&error)))),
        _ => None,
    }
}

impl RpcError {
    fn of(error: &Map<String, Value>) -> Self {
        Self {
            number: error.get("code").and_then(Value::as_i64).unwrap_or_default(),
            message: printable(error.get("message").and_then(Value::as_str).unwrap_or_default()),
            offers_modern: error
                .get("data")
                .and_then(|data| data["supported"].as_array())
                .is_some_and(|versions| versions.iter().any(|version| version == MODERN)),
        }
    }
}

/// Takes a member out of a value, which may be no object at all.
pub(super) fn taken(from: &mut Value, name: &str) -> Value {
    from.get_mut(name).map(Value::take).unwrap_or_default()
}

/// What people may be shown of a text of others.
pub(super) fn printable(text: &str) -> String {
    let line = text.chars().map(|c| if c.is_whitespace() { ' ' } else { c });
    line.filter(|c| !effectd_contracts::connector::has_hidden(c.encode_utf8(&mut [0; 4])))
        .take(MESSAGE_CHARS_MAX)
        .collect()
}

/// A message of ours.
pub(super) struct Message<'a> {
    /// `None`: it wants no answer.
    pub(super) id: Option<u64>,
    pub(super) method: &'a str,
    /// The tool that it is about.
    pub(super) name: Option<&'a str>,
    pub(super) params: Map<String, Value>,
    /// Parameters that go into headers, too, if the transport has some.
    pub(super) headers: Vec<(String, String)>,
}

impl Message<'_> {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut all = json!({ "jsonrpc": "2.0", "method": self.method });
        if let Some(id) = self.id {
            all["id"] = id.into();
        }
        if !self.params.is_empty() {
            all["params"] = Value::Object(self.params.clone());
        }
        all.to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_an_answer_or_talk_or_none() {
        let text = |text: &str| read(text.as_bytes());
        assert_eq!(text(r#"{"id":1,"result":{}}"#), Some(Said::Answer(json!(1), Ok(json!({})))));
        let error = text(r#"{"id":null,"error":{"code":-32601,"message":"no\u202e\nway"}}"#);
        let no_way = RpcError { number: -32_601, message: "no way".to_owned(), offers_modern: false };
        assert_eq!(error, Some(Said::Answer(Value::Null, Err(no_way))));
        assert_eq!(text(r#"{"id":"s","method":"roots/list"}"#), Some(Said::Talks));
        assert_eq!(text(r#"{"method":"notifications/progress"}"#), Some(Said::Talks));
        for none in [
            "",
            "starting up",
            "[]",
            r#"[{"id":1,"result":{}}]"#,
            "{}",
            r#"{"id":1}"#,
            r#"{"result":{}}"#,
            r#"{"id":1,"result":{},"error":{}}"#,
            r#"{"id":1,"error":"x"}"#,
            r#"{"id":1,"id":2,"result":{}}"#,
        ] {
            assert_eq!(text(none), None, "{none}");
        }
        let deep = format!(r#"{{"id":1,"result":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
        assert_eq!(text(&deep), None);
    }
}
