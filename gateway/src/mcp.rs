//! The door for MCP clients: `POST /mcp`, in the dialects of 2026-07-28, 2025-11-25 and 2025-06-18, without the protocol's sessions.
//!
//! A call of a tool is an action like any other, on the way of `/v1/actions`. Here an operator is a planner: nothing at this door
//! decides about an approval, and nobody reads the actions of others.
//!
//! Of rmcp this uses the types alone. Its server writes whole requests and results into the log, and starts tasks that nobody joins.

mod call;
mod caller;
mod era;
mod give_up;
mod held;
mod progress;
mod resources;
mod subscription;
mod tools;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use effectd_contracts::Receipt;
use effectd_contracts::json::parse_value;
use effectd_contracts::limits::{ID_BYTES_MAX, REQUEST_BYTES_MAX};
use rmcp::model::{ErrorCode, ErrorData, RequestMetaObject};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::app::{App, AppState};
use crate::body::BodyBytes;
use crate::extract::{Payload, Query, json as json_response};
use crate::limits::HEADER_BYTES_MAX;
use crate::peer::Peer;
use crate::problem::Problem;
use caller::Place;
use era::Era;

pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new().route("/mcp", post(answer))
}

/// A request or a notification. A notification has no id.
struct Message {
    id: Option<Value>,
    method: String,
    params: Map<String, Value>,
    meta: RequestMetaObject,
}

/// A request, and who sent it how.
struct Asked {
    app: Arc<App>,
    peer: Peer,
    place: Place,
    headers: HeaderMap,
    era: Era,
    params: Map<String, Value>,
    meta: RequestMetaObject,
    /// The size of the body.
    bytes: u64,
}

/// The answer to a request that gets no result.
fn fault(status: StatusCode, id: Option<&Value>, error: &ErrorData) -> Response {
    json_response(status, &json!({ "jsonrpc": "2.0", "id": id, "error": error }))
}

/// What a request still reads of its `_meta` once its dialect is known. A call that waits keeps no more: no bound counts the rest.
fn kept(mut meta: RequestMetaObject) -> RequestMetaObject {
    let read = [call::KEY, call::TOOL_USE, progress::TOKEN, "traceparent"];
    // None of them is an object or a list; who reads it says so.
    let simple = |value: Value| if value.is_object() || value.is_array() { Value::Null } else { value };
    let members = read.into_iter().filter_map(|name| Some((name.to_owned(), simple(meta.remove(name)?))));
    members.collect::<Map<_, _>>().into()
}

/// A body that cannot be read has the headers of its problem: when to come again, and whether the connection closes.
fn unreadable(problem: Problem) -> Response {
    let error = ErrorData::invalid_request(problem.detail.clone(), None);
    let (mut head, _) = problem.into_response().into_parts();
    let (of_error, body) = fault(head.status, None, &error).into_parts();
    head.headers.extend(of_error.headers);
    Response::from_parts(head, body)
}

async fn answer(
    State(app): AppState,
    peer: Peer,
    place: Result<Query<Place>, Problem>,
    headers: HeaderMap,
    body: Payload,
) -> Result<Response, Response> {
    let Query(place) = place.map_err(unreadable)?;
    let is_json = |value: &HeaderValue| value.to_str().is_ok_and(|kind| kind.starts_with("application/json"));
    if !headers.get(header::CONTENT_TYPE).is_some_and(is_json) {
        let error = ErrorData::invalid_request("Content-Type must be application/json", None);
        return Err(fault(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, &error));
    }
    let BodyBytes { bytes: text, share } = app.body(body).await.map_err(unreadable)?;
    let Message { id, method, params, mut meta } = Message::parse(&text)?;
    let bytes = text.len() as u64;
    // A call may wait, and keeps only what was read.
    drop(text);
    let era = Era::of(&headers, id.is_some(), &method, &params, &meta);
    let era = era.map_err(|error| fault(StatusCode::BAD_REQUEST, id.as_ref(), &error))?;
    let Some(id) = id else {
        // Who no longer wants an answer closes its connection: an id alone does not say whose request it is.
        return Ok(StatusCode::ACCEPTED.into_response());
    };
    meta = kept(meta);
    // An operator is a planner here.
    let peer = Peer { operator: false, ..peer };
    let asked = Asked { app, peer, place, headers, era, params, meta, bytes };
    let answered = match method.as_str() {
        "tools/call" => {
            // From now on, the bounds of waiting requests and of the backlog count it.
            drop(share);
            return Ok(progress::answered(id, asked).await);
        }
        "tools/list" => tools::listed(&id, &asked).await,
        "resources/read" => resources::read(&id, &asked).await,
        "subscriptions/listen" if asked.era.is_modern() => subscription::listen(&id, &asked).await,
        _ => asked.result(&method).await.map(|result| asked.era.answer(&id, Ok(result))),
    };
    Ok(answered.unwrap_or_else(|error| asked.era.answer(&id, Err(error))))
}

impl Asked {
    async fn result(&self, method: &str) -> Result<Value, ErrorData> {
        match method {
            "initialize" if !self.era.is_modern() => Ok(self.era.initialized(&self.headers)),
            "ping" if !self.era.is_modern() => Ok(json!({})),
            "server/discover" if self.era.is_modern() => Ok(era::discovered()),
            "resources/list" => resources::listed(self).await,
            "resources/templates/list" => Ok(resources::templates()),
            "tasks/get" | "tasks/update" | "tasks/cancel" if self.era.is_modern() => {
                self.era.check_tasks()?;
                held::task(self, method).await
            }
            _ => Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "there is no such method", None)),
        }
    }

    /// Whether the caller asked for what this receipt records.
    fn is_own(&self, receipt: &Receipt) -> bool {
        receipt.principal == self.peer.principal
    }

    /// A text parameter.
    fn text(&self, name: &str) -> Result<&str, ErrorData> {
        let text = self.params.get(name).and_then(Value::as_str);
        text.ok_or_else(|| ErrorData::invalid_params(format!("params.{name} must be a text"), None))
    }
}

impl Message {
    /// The error is the answer.
    fn parse(bytes: &[u8]) -> Result<Self, Response> {
        let bad = |id: Option<&Value>, error| fault(StatusCode::BAD_REQUEST, id, &error);
        let parsed = parse_value(bytes, REQUEST_BYTES_MAX);
        let parsed = parsed.map_err(|error| bad(None, ErrorData::parse_error(error.to_string(), None)))?;
        let not = |why: &'static str| bad(None, ErrorData::invalid_request(why, None));
        let Value::Object(mut message) = parsed else {
            return Err(not("send one JSON-RPC message, and no batch"));
        };
        if message.get("jsonrpc") != Some(&json!("2.0")) {
            return Err(not("`jsonrpc` must be \"2.0\""));
        }
        let id = message.remove("id");
        // A stream, and a call that waits, keep these after the share of the body is given back.
        let is_short = |id: &Value| id.as_str().is_some_and(|text| text.len() <= ID_BYTES_MAX);
        if id.as_ref().is_some_and(|id| !is_short(id) && !id.is_i64() && !id.is_u64()) {
            return Err(not("`id` must be a short text or an integer"));
        }
        let Some(Value::String(method)) = message.remove("method") else {
            return Err(not("`method` must be a text; answers are not expected here"));
        };
        let wrong = |why: &'static str| bad(id.as_ref(), ErrorData::invalid_params(why, None));
        let Value::Object(mut params) = message.remove("params").unwrap_or_else(|| json!({})) else {
            return Err(wrong("`params` must be an object"));
        };
        let meta = params.remove("_meta").unwrap_or_else(|| json!({}));
        if meta.to_string().len() > HEADER_BYTES_MAX {
            return Err(wrong("`_meta` is too large"));
        }
        let Value::Object(meta) = meta else {
            return Err(wrong("`_meta` must be an object"));
        };
        Ok(Self { id, method, params, meta: meta.into() })
    }
}

/// A value in JSON. What is sent here is plain data with text keys, for which serde_json has no failure.
fn value(of: impl Serialize) -> Value {
    serde_json::to_value(of).unwrap_or_default()
}

/// The error of a request that is no call of a tool. A retry helps if the daemon is at fault.
impl From<Problem> for ErrorData {
    fn from(problem: Problem) -> Self {
        let code = if problem.status >= 500 { ErrorCode::INTERNAL_ERROR } else { ErrorCode::INVALID_PARAMS };
        Self::new(code, problem.detail, Some(json!({ "code": problem.code })))
    }
}

impl Era {
    fn answer(&self, id: &Value, result: Result<Value, ErrorData>) -> Response {
        let (status, message) = self.message(id, result);
        json_response(status, &message)
    }

    /// The answer to a request. Statuses tell errors from results only in the dialect that has them.
    fn message(&self, id: &Value, result: Result<Value, ErrorData>) -> (StatusCode, Value) {
        let mut message = json!({ "jsonrpc": "2.0", "id": id });
        let status = match &result {
            Err(error) if error.code == ErrorCode::METHOD_NOT_FOUND && self.is_modern() => {
                StatusCode::NOT_FOUND
            }
            Err(error) if error.code == ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY => {
                StatusCode::BAD_REQUEST
            }
            Ok(_) | Err(_) => StatusCode::OK,
        };
        match result {
            Ok(result) => message["result"] = self.dressed(result),
            Err(error) => message["error"] = value(error),
        }
        (status, message)
    }
}
