//! Services of others, as far as effectd uses them: each with a state, a count of its effects, and faults on demand.
//!
//! What the vendor's own client accepts, the fake must be: `.ci/services` runs those clients against `cargo run --example fakes`.
#![allow(clippy::unwrap_used, reason = "only tests and an example use it")]
#![allow(dead_code, unused_imports, reason = "each of the programs uses some of it")]

mod graphql;
mod linear;
mod sentry;
mod slack;

use std::collections::{BTreeMap, VecDeque};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

use super::service::{Asked, Reply, Service};

pub use linear::{ISSUE, Linear, PROJECT, STATE_DONE, TEAM, USER};
pub use sentry::{EVENT, GROUP, ORGANIZATION, SHORT_ID, Sentry};
pub use slack::{CHANNEL, CHANNEL_NAME, Slack};

/// A request, read.
pub struct Request {
    pub method: String,
    /// As it came, without the query.
    pub path: String,
    /// Its segments, decoded.
    pub segments: Vec<String>,
    pub query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    pub body: String,
}

impl Request {
    fn read(head: &str, body: &str) -> Self {
        let mut lines = head.lines();
        let mut words = lines.next().unwrap().split(' ');
        let (method, target) = (words.next().unwrap().to_owned(), words.next().unwrap());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let headers = lines.filter_map(|line| line.split_once(':'));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
        Self {
            method,
            path: path.to_owned(),
            segments: path
                .split('/')
                .filter(|part| !part.is_empty())
                .map(|part| decoded(part, false))
                .collect(),
            query: pairs(query),
            headers: headers.collect(),
            body: body.to_owned(),
        }
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    fn is_json(&self) -> bool {
        self.header("content-type").starts_with("application/json")
    }
}

/// Names and values of a query or a form, decoded.
fn pairs(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (decoded(name, true), decoded(value, true))).collect()
}

fn decoded(text: &str, is_form: bool) -> String {
    let (bytes, mut found, mut at) = (text.as_bytes(), Vec::new(), 0);
    while let Some(&byte) = bytes.get(at) {
        let digits = (byte == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        found.push(match (escaped, byte) {
            (Some(escaped), _) => escaped,
            (None, b'+') if is_form => b' ',
            (None, byte) => byte,
        });
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8(found).unwrap()
}

/// What goes wrong with one request.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// The effect happens, and the connection is closed without an answer.
    Lost,
    /// The effect happens, and the answer breaks off.
    Truncated,
    /// The effect happens, and the answer is a page for people.
    WrongType,
    /// The effect happens, and no answer comes.
    Slow,
    /// The effect happens, and the status is 500.
    Broken,
    /// The connection is closed without an answer, and the effect happens so many milliseconds later.
    Late(u32),
    /// No effect, and the connection is closed without an answer.
    Dropped,
    /// No effect: 429, to be asked again after so many seconds.
    Later(u32),
    /// No effect, and this status.
    Status(u16),
    /// No effect: a redirect to another place.
    Redirect,
    /// No effect: status 200, and this code of the service.
    Refused(String),
}

/// `lost`, `later:2`, `status:503`, `refused:channel_not_found`.
impl FromStr for Fault {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (word, value) = text.split_once(':').unwrap_or((text, ""));
        let number = || value.parse::<u32>().map_err(|_| format!("{text} needs a number"));
        Ok(match word {
            "lost" => Self::Lost,
            "truncated" => Self::Truncated,
            "wrong_type" => Self::WrongType,
            "slow" => Self::Slow,
            "broken" => Self::Broken,
            "late" => Self::Late(number()?),
            "dropped" => Self::Dropped,
            "later" => Self::Later(number()?),
            "status" => Self::Status(u16::try_from(number()?).map_err(|error| error.to_string())?),
            "redirect" => Self::Redirect,
            "refused" => Self::Refused(value.to_owned()),
            _ => return Err(format!("{text} is no fault")),
        })
    }
}

/// The part of a fake that knows its service.
pub trait Vendor: Send + 'static {
    /// Answers a request, and says whether it had an effect.
    fn answer(&mut self, request: &Request) -> (Reply, bool);
    /// How the service refuses with status 200.
    fn refusal(&self, code: &str) -> Reply;
    /// Its state, for people.
    fn state(&self) -> Value;
}

pub struct Inner<V> {
    pub vendor: V,
    pub effects: u64,
    faults: VecDeque<Fault>,
}

/// A service on this machine.
pub struct Fake<V> {
    service: Service,
    inner: Arc<Mutex<Inner<V>>>,
}

impl<V: Vendor> Fake<V> {
    pub fn new(vendor: V) -> Self {
        let inner = Arc::new(Mutex::new(Inner { vendor, effects: 0, faults: VecDeque::new() }));
        let shared = inner.clone();
        let service = Service::with(move |head, body| {
            let request = Request::read(head, body);
            let mut inner = shared.lock().unwrap();
            let Some(Fault::Late(ms)) = inner.faults.front().cloned() else { return inner.answer(&request) };
            inner.faults.pop_front();
            let shared = shared.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(ms.into()));
                shared.lock().unwrap().carry_out(&request);
            });
            Reply::Nothing
        });
        Self { service, inner }
    }

    pub fn port(&self) -> u16 {
        self.service.port
    }

    pub fn inner(&self) -> MutexGuard<'_, Inner<V>> {
        self.inner.lock().unwrap()
    }

    /// What happened because of requests.
    pub fn effects(&self) -> u64 {
        self.inner().effects
    }

    /// Adds a fault: each holds for one request, in order.
    pub fn fault(&self, fault: Fault) {
        self.inner().faults.push_back(fault);
    }

    /// What was asked, in order, without what asked for faults.
    pub fn asked(&self) -> Vec<(Request, Asked)> {
        let all = self.service.all().into_iter().map(|asked| (Request::read(&asked.0, &asked.1), asked));
        all.filter(|(request, _)| !request.path.starts_with("/_fake/")).collect()
    }
}

impl<V: Vendor> Inner<V> {
    pub fn forget_faults(&mut self) {
        self.faults.clear();
    }

    fn answer(&mut self, request: &Request) -> Reply {
        if let Some(verb) = request.path.strip_prefix("/_fake/") {
            return self.control(verb, request);
        }
        match self.faults.pop_front() {
            None => self.carry_out(request),
            Some(Fault::Dropped) => Reply::Nothing,
            Some(Fault::Later(seconds)) => {
                let more = format!("content-type: application/json\r\nretry-after: {seconds}\r\n");
                Reply::Answer(429, more, json!({ "ok": false, "error": "ratelimited" }).to_string())
            }
            Some(Fault::Status(status)) => Reply::json(status, json!({ "detail": "no" }).to_string()),
            Some(Fault::Redirect) => {
                Reply::Answer(302, "location: http://169.254.169.254/\r\n".to_owned(), String::new())
            }
            Some(Fault::Refused(code)) => self.vendor.refusal(&code),
            Some(after) => {
                let reply = self.carry_out(request);
                let Reply::Answer(status, more, body) = reply else { return reply };
                match after {
                    Fault::Truncated => Reply::Half(status, more, body),
                    Fault::WrongType => Reply::Answer(
                        200,
                        "content-type: text/html\r\n".to_owned(),
                        "<h1>It works</h1>".to_owned(),
                    ),
                    Fault::Slow => Reply::Never,
                    Fault::Broken => Reply::json(500, "{}".to_owned()),
                    Fault::Lost
                    | Fault::Late(_)
                    | Fault::Dropped
                    | Fault::Later(_)
                    | Fault::Status(_)
                    | Fault::Redirect
                    | Fault::Refused(_) => Reply::Nothing,
                }
            }
        }
    }

    fn carry_out(&mut self, request: &Request) -> Reply {
        let (reply, is_effect) = self.vendor.answer(request);
        self.effects += u64::from(is_effect);
        reply
    }

    /// `POST /_fake/fault` with `{"fault": "later:2"}`, `GET /_fake/state`.
    fn control(&mut self, verb: &str, request: &Request) -> Reply {
        match verb {
            "fault" => {
                let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
                match body["fault"].as_str().unwrap_or_default().parse() {
                    Ok(fault) => self.faults.push_back(fault),
                    Err(why) => return Reply::json(400, json!({ "error": why }).to_string()),
                }
                Reply::json(200, "{}".to_owned())
            }
            "state" => {
                let state = json!({ "effects": self.effects, "state": self.vendor.state() });
                Reply::json(200, state.to_string())
            }
            _ => Reply::json(404, "{}".to_owned()),
        }
    }
}
