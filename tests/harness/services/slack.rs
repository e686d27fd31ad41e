//! Slack: messages of one channel, by its methods beneath `/api`, as JSON or as a form.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::{Fake, Reply, Request, Vendor, pairs};

pub const CHANNEL: &str = "C0123456789";
pub const CHANNEL_NAME: &str = "general";
const BOT: &str = "B0123456789";

pub struct Slack {
    token: String,
    /// What the token may do; tests take scopes away.
    pub scopes: Vec<&'static str>,
    messages: Vec<Value>,
    /// What only one user saw.
    pub whispers: Vec<(String, String)>,
    /// How many were ever posted.
    posted: usize,
}

impl Slack {
    pub fn start(token: &str) -> Fake<Self> {
        let scopes = vec!["chat:write", "channels:history"];
        Fake::new(Self {
            token: token.to_owned(),
            scopes,
            messages: Vec::new(),
            whispers: Vec::new(),
            posted: 0,
        })
    }

    pub fn messages(&self) -> Vec<&Value> {
        self.messages.iter().collect()
    }

    fn call(&mut self, method: &str, given: &Map<String, Value>) -> Result<(Value, bool), Value> {
        let text = |name: &str| given.get(name).and_then(Value::as_str).unwrap_or_default();
        let needs = |scope: &'static str| match self.scopes.contains(&scope) {
            true => Ok(()),
            false => {
                Err(json!({ "error": "missing_scope", "needed": scope, "provided": self.scopes.join(",") }))
            }
        };
        let error = |code: &str| json!({ "error": code });
        // A name is enough to post, and nowhere else.
        let channel = |or_name: bool| {
            let named = text("channel").trim_start_matches('#');
            (named == CHANNEL || or_name && named == CHANNEL_NAME)
                .then_some(CHANNEL)
                .ok_or_else(|| error("channel_not_found"))
        };
        let at = |ts: &str| {
            self.messages.iter().position(|known| known["ts"] == ts).ok_or_else(|| error("message_not_found"))
        };
        match method {
            "auth.test" => {
                let who = json!({ "url": "https://acme.slack.com/", "team": "Acme", "user": "effectd", "team_id": "T0123456789",
                    "user_id": "U0123456789", "bot_id": BOT });
                Ok((who, false))
            }
            "chat.postMessage" => {
                needs("chat:write")?;
                channel(true)?;
                let has_blocks = given.get("blocks").is_some_and(|blocks| !blocks.is_null());
                if text("text").is_empty() && !has_blocks {
                    return Err(error("no_text"));
                }
                if text("text").len() > 40_000 {
                    return Err(error("msg_too_long"));
                }
                self.posted += 1;
                let mut message = json!({ "type": "message", "bot_id": BOT, "user": "U0123456789", "team": "T0123456789",
                    "app_id": "A0123456789", "text": text("text"), "ts": self.now() });
                for name in ["metadata", "blocks", "thread_ts"] {
                    if let Some(value) = given.get(name).filter(|value| !value.is_null()) {
                        message[name] = parsed(value);
                    }
                }
                let metadata = &message["metadata"];
                let is_whole = metadata["event_type"].is_string() && metadata["event_payload"].is_object();
                if !metadata.is_null() && !is_whole {
                    return Err(error("invalid_metadata_format"));
                }
                self.messages.push(message.clone());
                Ok((json!({ "channel": CHANNEL, "ts": message["ts"], "message": message }), true))
            }
            "chat.postEphemeral" => {
                needs("chat:write")?;
                channel(true)?;
                if text("user").is_empty() {
                    return Err(error("no_user"));
                }
                let (user, text) = (text("user").to_owned(), text("text").to_owned());
                self.whispers.push((user, text));
                Ok((json!({ "message_ts": self.now() }), true))
            }
            "chat.update" => {
                needs("chat:write")?;
                channel(false)?;
                let at = at(text("ts"))?;
                for name in ["text", "blocks", "metadata"] {
                    if let Some(value) = given.get(name) {
                        self.messages[at][name] = parsed(value);
                    }
                }
                let message = &self.messages[at];
                Ok((
                    json!({ "channel": CHANNEL, "ts": message["ts"], "text": message["text"], "message": message }),
                    true,
                ))
            }
            "chat.delete" => {
                needs("chat:write")?;
                channel(false)?;
                let gone = self.messages.remove(at(text("ts"))?);
                Ok((json!({ "channel": CHANNEL, "ts": gone["ts"] }), true))
            }
            "conversations.history" | "conversations.replies" => {
                needs("channels:history")?;
                channel(false)?;
                let thread = (method == "conversations.replies").then(|| text("ts"));
                Ok((self.page(given, thread), false))
            }
            _ => Err(error("unknown_method")),
        }
    }

    /// The newest first; a page has at most `limit`.
    fn page(&self, given: &Map<String, Value>, thread: Option<&str>) -> Value {
        let value = |name: &str| {
            let value =
                given.get(name).map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            value.unwrap_or_default()
        };
        let seconds = |text: &str| text.parse::<f64>().unwrap_or(0.0);
        let (oldest, latest) = (seconds(&value("oldest")), seconds(&value("latest")));
        let is_wanted = |message: &&Value| {
            let in_thread = message["thread_ts"].as_str();
            let is_there = match thread {
                Some(ts) => in_thread == Some(ts) || message["ts"] == ts,
                None => in_thread.is_none(),
            };
            let ts = seconds(message["ts"].as_str().unwrap());
            is_there && ts > oldest && (latest == 0.0 || ts < latest)
        };
        let shown = |message: &Value| {
            let mut message = message.clone();
            if !["true", "1"].contains(&value("include_all_metadata").as_str()) {
                message.as_object_mut().unwrap().remove("metadata");
            }
            message
        };
        let all: Vec<_> = self.messages.iter().rev().filter(is_wanted).map(shown).collect();
        let from = value("cursor").parse().unwrap_or(0);
        let limit = value("limit").parse().unwrap_or(100);
        let page: Vec<_> = all.iter().skip(from).take(limit).cloned().collect();
        let next = from + page.len();
        let has_more = next < all.len();
        let cursor = if has_more { next.to_string() } else { String::new() };
        json!({ "messages": page, "has_more": has_more, "response_metadata": { "next_cursor": cursor } })
    }

    fn now(&self) -> String {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        format!("{seconds}.{:06}", self.posted)
    }
}

/// A form has JSON as text.
fn parsed(value: &Value) -> Value {
    let text = value.as_str().filter(|text| text.starts_with(['{', '[']));
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_else(|| value.clone())
}

impl Vendor for Slack {
    fn answer(&mut self, request: &Request) -> (Reply, bool) {
        let mut given: Map<String, Value> =
            request.query.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        if request.method == "POST" {
            let body: Map<String, Value> = match request.is_json() {
                true => serde_json::from_str(&request.body).unwrap_or_default(),
                false => pairs(&request.body).into_iter().map(|(name, value)| (name, json!(value))).collect(),
            };
            given.extend(body);
        }
        let refused = |error: Value| {
            let mut error = error;
            error["ok"] = json!(false);
            (Reply::json(200, error.to_string()), false)
        };
        let who = request.header("authorization");
        let Some(method) = request.path.strip_prefix("/api/") else {
            return (Reply::json(404, "{}".to_owned()), false);
        };
        if who.is_empty() {
            return refused(json!({ "error": "not_authed" }));
        }
        if who != format!("Bearer {}", self.token) {
            return refused(json!({ "error": "invalid_auth" }));
        }
        match self.call(method, &given) {
            Ok((mut answer, is_effect)) => {
                answer["ok"] = json!(true);
                (Reply::json(200, answer.to_string()), is_effect)
            }
            Err(error) => refused(error),
        }
    }

    fn refusal(&self, code: &str) -> Reply {
        Reply::json(200, json!({ "ok": false, "error": code }).to_string())
    }

    fn state(&self) -> Value {
        json!({ "messages": self.messages })
    }
}
