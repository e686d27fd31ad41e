//! `http.<name>.read` and `http.<name>.request`: requests to an operator's own service, over the connection `http.<name>`.
//!
//! The child has no socket: it asks for an exchange over its side channel ([`crate::exchange`]), and effectd knows where the connection
//! leads and who it says it is. Each connection has these two tools under its own name, so that whatever is decided about one service
//! holds for no other.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use effectd_contracts::limits::TOOL_REPLY_BYTES_MAX;
use effectd_contracts::{Exchange, ExchangeAnswer, Method, RiskLevel, SideEffect, ToolId, json as strict};

use crate::exchange::{connection_of, exchange};
use crate::prelude::*;

/// `http.<name>.read`: asks for no effect.
#[derive(Debug, Clone, Copy)]
pub struct Read;

/// `http.<name>.request`: changes something at the service.
#[derive(Debug, Clone, Copy)]
pub struct Request;

/// Room in a reply for all but the body.
const REPLY_HEAD_BYTES: usize = 65_536;
const TIMEOUT_MS: u64 = 30_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadParams {
    /// GET or HEAD. Default: GET.
    #[serde(default)]
    #[schemars(with = "Option<String>", extend("enum" = ["GET", "HEAD"], "x-public" = true))]
    method: Option<Method>,
    /// The path from / on, percent-encoded, without a query. The connection says which paths may be asked.
    #[schemars(length(min = 1, max = 4_096), extend("x-public" = true, "x-pii" = "required"))]
    path: String,
    /// Names and values of the query, not encoded.
    #[serde(default)]
    #[schemars(extend("x-pii" = "required"))]
    query: BTreeMap<String, String>,
    /// Headers, such as accept or if-none-match. The connection adds who asks.
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestParams {
    /// What to do.
    #[schemars(with = "String", extend("enum" = ["POST", "PUT", "PATCH", "DELETE"], "x-public" = true))]
    method: Method,
    /// The path from / on, percent-encoded, without a query. The connection says which paths may be asked.
    #[schemars(length(min = 1, max = 4_096), extend("x-public" = true, "x-pii" = "required"))]
    path: String,
    /// Names and values of the query, not encoded.
    #[serde(default)]
    #[schemars(extend("x-pii" = "required"))]
    query: BTreeMap<String, String>,
    /// Headers, such as content-type or idempotency-key. The connection adds who asks.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// The body as JSON. Without a body, leave out both this and text.
    #[schemars(extend("x-pii" = "required"))]
    json: Option<Value>,
    /// The body as text.
    #[schemars(extend("x-pii" = "required"))]
    text: Option<String>,
}

/// What both tools return.
fn result_schema() -> Value {
    json!({
        "status": { "type": "integer", "minimum": 100, "maximum": 599, "x-public": true },
        "headers": { "type": "object", "additionalProperties": text() },
        "json": {}, "text": text(), "base64": text(), "body_left_out": flag(), "dry_run": flag(),
    })
}

impl TypedTool for Read {
    const ID: &'static str = "http.read";
    const DESCRIPTION: &'static str = "Reads from a service of your organisation, by GET or HEAD. You name the path; \
        the connection knows the host and who asks. A path that may not be asked is refused, and the refusal lists those that may.";
    type Params = ReadParams;

    fn spec(&self) -> ToolSpec {
        ToolSpec {
            caps_required: params::caps(["http.read"]),
            side_effects: BTreeSet::from([SideEffect::NetworkCall]),
            risk_level: Some(RiskLevel::Read),
            timeout_ms: TIMEOUT_MS,
            ..params::reads::<Self>(&[], result_schema())
        }
    }

    fn example(&self) -> Value {
        json!({ "path": "/v1/items/7" })
    }

    fn check(&self, params: &ReadParams) -> Result<(), Failure> {
        if params.method.is_some_and(Method::is_write) {
            return Err(params::invalid("method", "only GET or HEAD"));
        }
        checked(params.exchange(String::new())).map(drop)
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, ReadParams>) -> Result<ToolOutput, Failure> {
        answered(&exchange(workspace, &call.params.exchange(connection_of(&call.tool_id)))?)
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, ReadParams>) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({})))
    }
}

impl ReadParams {
    fn exchange(&self, connection: String) -> Exchange {
        let method = self.method.unwrap_or(Method::Get);
        let (query, headers) = (pairs(&self.query), pairs(&self.headers));
        Exchange { query, headers, ..Exchange::new(connection, method, self.path.as_str()) }
    }
}

impl TypedTool for Request {
    const ID: &'static str = "http.request";
    const DESCRIPTION: &'static str = "Changes something at a service of your organisation, by POST, PUT, PATCH or DELETE. You name \
        path and body; the connection knows the host and who asks. A path that may not be asked is refused, and the refusal lists those that may. \
        What has left is never sent again: if no whole answer came, the outcome is unknown.";
    type Params = RequestParams;

    fn spec(&self) -> ToolSpec {
        ToolSpec {
            caps_required: params::caps(["http.request"]),
            side_effects: BTreeSet::from([SideEffect::NetworkCall]),
            risk_level: Some(RiskLevel::Write),
            reversible: false,
            timeout_ms: TIMEOUT_MS,
            ..params::writes::<Self>(&[], result_schema())
        }
    }

    fn example(&self) -> Value {
        json!({ "method": "POST", "path": "/v1/items", "json": { "title": "Milk" } })
    }

    fn check(&self, params: &RequestParams) -> Result<(), Failure> {
        if !params.method.is_write() {
            return Err(params::invalid("method", "GET and HEAD belong to the tool .read"));
        }
        if params.json.is_some() && params.text.is_some() {
            return Err(params::invalid("text", "the body is either json or text"));
        }
        checked(params.exchange(String::new())).map(drop)
    }

    fn exchange(&self, call: &Call<'_, RequestParams>) -> Option<Exchange> {
        Some(call.params.exchange(connection_of(&call.tool_id)))
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, RequestParams>) -> Result<ToolOutput, Failure> {
        answered(&exchange(workspace, &call.params.exchange(connection_of(&call.tool_id)))?)
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, RequestParams>) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({})))
    }
}

impl RequestParams {
    fn exchange(&self, connection: String) -> Exchange {
        let (kind, body) = match (&self.json, &self.text) {
            (Some(json), _) => (Some("application/json"), json.to_string().into_bytes()),
            (None, Some(text)) => (Some("text/plain; charset=utf-8"), text.clone().into_bytes()),
            (None, None) => (None, Vec::new()),
        };
        let mut headers = pairs(&self.headers);
        if let Some(kind) = kind.filter(|_| !self.headers.contains_key("content-type")) {
            headers.push(("content-type".to_owned(), kind.to_owned()));
        }
        let query = pairs(&self.query);
        Exchange { query, headers, body, ..Exchange::new(connection, self.method, self.path.as_str()) }
    }
}

fn pairs(of: &BTreeMap<String, String>) -> Vec<(String, String)> {
    of.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn checked(exchange: Exchange) -> Result<Exchange, Failure> {
    match exchange.check() {
        Ok(()) => Ok(exchange),
        Err(why) => Err(params::invalid("path", why)),
    }
}

/// The result of a whole answer. A service that refuses has answered, so the call is done, with quality 0. One that asks to be
/// asked later, or that has a fault of its own, has not done it: what that means for a write is effectd's decision.
fn answered(answer: &ExchangeAnswer) -> Result<ToolOutput, Failure> {
    let status = answer.status;
    if status == 429 || status >= 500 {
        let code = if matches!(status, 429 | 503) { Code::ToolBusy } else { Code::ToolFailed };
        return Err(Failure::new(
            code,
            Phase::Dispatch,
            format!("the service answered with status {status}"),
        ));
    }
    let headers: BTreeMap<_, _> = answer.headers.iter().cloned().collect();
    let mut result = json!({ "status": status, "headers": headers });
    let is_json = answer.header("content-type").is_some_and(|kind| kind.contains("json"));
    let json =
        is_json.then(|| strict::parse_reply::<Value>(&answer.body, TOOL_REPLY_BYTES_MAX).ok()).flatten();
    let (name, body) = match (json, std::str::from_utf8(&answer.body)) {
        (Some(json), _) => ("json", json),
        (None, Ok(text)) => ("text", Value::from(text)),
        (None, Err(_)) => ("base64", Value::from(STANDARD.encode(&answer.body))),
    };
    if answer.body.is_empty() {
        // Nothing to tell.
    } else if body.to_string().len() > TOOL_REPLY_BYTES_MAX - REPLY_HEAD_BYTES {
        result["body_left_out"] = Value::Bool(true);
    } else {
        result[name] = body;
    }
    Ok(ToolOutput::new(result, Some(if (200..300).contains(&status) { 1.0 } else { 0.0 })))
}

/// The tool that a connection has under this id.
pub(crate) fn tool(id: &ToolId) -> Option<&'static dyn crate::tool::Tool> {
    let is_ours = id.source().strip_prefix(effectd_contracts::access::HTTP_SOURCE).is_some();
    match id.action() {
        "read" if is_ours => Some(&Read),
        "request" if is_ours => Some(&Request),
        _ => None,
    }
}
