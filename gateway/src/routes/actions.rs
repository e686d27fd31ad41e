//! Planners' verbs: submit, do and wait, look, wait, withdraw.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use effectd_actors::withdraw::withdraw;
use effectd_actors::{Answer, Canceller, Done, Incoming};
use effectd_contracts::{ActionId, ActionRequest, Origin};
use serde::Deserialize;

use super::{json, traced};
use crate::desk::{Desk, Found};
use crate::extract::{App, Path, Query};
use crate::headers::{self, Handed};
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::views::{ActionView, ended, unknown, withdrawal};

/// What may stand behind `/v1/actions?`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubmitQuery {
    wait: Option<String>,
}

/// What may stand behind `/v1/actions/{id}/wait?`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitQuery {
    timeout_ms: Option<u64>,
}

/// Submit a decision, or have it carried out
///
/// Without `wait`, the answer comes when the decision is on disk: from then on it will be carried out or refused, whatever
/// dies. With `wait`, the answer comes with the receipt; if the time is over before, or a person must decide first, the
/// decision is on disk and goes on.
/// Sending the same decision again is harmless.
#[utoipa::path(
    post,
    path = "/v1/actions",
    tag = "actions",
    params(
        ("wait" = Option<String>, Query, description = "Wait for the receipt: nothing or `true` for as long as allowed, or milliseconds"),
        ("Idempotency-Key" = Option<String>, Header, description = "The same as `idempotency_key` in the body"),
        ("Effectd-Interactive" = Option<String>, Header, description = "`true` if somebody sits at a terminal and waits: a person who must be asked is then expected within minutes"),
        ("traceparent" = Option<String>, Header, description = "W3C trace context: the action becomes a child of this span, unless the body names another trace; the answer's `traceparent` is the action's own span"),
        ("tracestate" = Option<String>, Header, description = "W3C trace context: handed on, in receipt, event and answer"),
    ),
    request_body(content = ref("#/components/schemas/ActionRequest"), content_type = "application/json"),
    responses(
        (status = 200, description = "It has ended, now or before, and this is its receipt", body = ActionView),
        (status = 202, description = "It is on disk, and on its way or waiting for a person", body = ActionView),
        (status = 400, description = "The request makes no sense", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "Refused, with the gate and what would have to change", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "No such tool", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The action id or idempotency key stands for something else", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "Larger than a request may be", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "Too often; Retry-After says when", body = Problem, content_type = "application/problem+json"),
        (status = 502, description = "It was tried and failed; the receipt says how", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Overloaded or stopping; Retry-After says when", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn submit(
    State(desk): App,
    peer: Peer,
    Query(query): Query<SubmitQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let wait = query.wait.as_deref().map(wait_ms).transpose()?;
    let body = desk.budget.read(body, desk.settings().body_time_max).await?;
    let mut request = ActionRequest::parse(&body.bytes).map_err(|failure| Problem::failed(&failure))?;
    let bytes = body.bytes.len() as u64;
    drop(body);
    let trace = headers::apply(&headers, &mut request)?;
    let trace = Handed::of_request(&request, trace);
    let incoming = Incoming {
        request: Arc::new(request),
        principal: peer.principal,
        origin: Origin::Arbiter,
        interactive: headers::interactive(&headers),
    };
    let response = match wait {
        None => accept(&desk, incoming, bytes).await,
        Some(asked_ms) => carry_out(&desk, incoming, bytes, asked_ms).await,
    };
    Ok(traced(trace, response))
}

async fn accept(desk: &Desk, incoming: Incoming, bytes: u64) -> Result<Response, Problem> {
    let action = incoming.request.action_id.clone();
    desk.room(bytes).map_err(|problem| problem.about(&action))?;
    let placed = desk.pipeline()?.place(incoming).await;
    let placed = placed.map_err(|failure| Problem::failed(&failure).about(&action))?;
    if let Some(offset) = placed {
        desk.pulse.accepted(offset, bytes);
    }
    // What has ended already says so at once: the planner need not ask again.
    let done = desk.receipt_of(&action).ok().flatten();
    Ok(match done {
        Some(done) => json(StatusCode::OK, &ActionView::done(action, &done)),
        None => json(StatusCode::ACCEPTED, &ActionView::accepted(action)),
    })
}

async fn carry_out(
    desk: &Desk,
    incoming: Incoming,
    bytes: u64,
    asked_ms: Option<u64>,
) -> Result<Response, Problem> {
    let action = incoming.request.action_id.clone();
    let wait = desk.wait_time(asked_ms);
    match tokio::time::timeout(wait, desk.pipeline()?.exec(incoming.clone())).await {
        Ok(Answer::Done(done)) => match ended(action, &done) {
            Ok(view) => Ok(json(StatusCode::OK, &view)),
            Err(problem) => Err(*problem),
        },
        Ok(Answer::Held(held)) => Ok(json(StatusCode::ACCEPTED, &ActionView::held(action, &held))),
        Ok(Answer::Refused(failure)) => Err(Problem::failed(&failure).about(&action)),
        // What was begun goes on by itself, but only what is on the bus survives us: no answer before it is there.
        Err(_) => accept(desk, incoming, bytes).await,
    }
}

/// How an action stands
///
/// The answer describes the action; that it was refused or failed stands in `outcome` and `receipt`.
#[utoipa::path(
    get,
    path = "/v1/actions/{id}",
    tag = "actions",
    params(("id" = String, Path, description = "The action's id, percent-encoded")),
    responses(
        (status = 200, description = "How it stands", body = ActionView),
        (status = 404, description = "No such action of yours", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now; Retry-After says when", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(State(desk): App, peer: Peer, Path(id): Path<String>) -> Result<Response, Problem> {
    let action = action_id(id)?;
    match desk.find(&action, &peer).await? {
        Found::Done(done) => Ok(described(action, &done)),
        Found::Accepted => Ok(json(StatusCode::OK, &ActionView::accepted(action))),
        Found::Held(held) => Ok(json(StatusCode::OK, &ActionView::held(action, &held))),
        Found::Unknown => Err(unknown(&action)),
    }
}

/// Wait until an action has ended
///
/// Answers at once if it has. If the time is over before, the answer is 202, and asking again goes on waiting; what waits
/// for a person ends when somebody has decided, or nobody has in time.
#[utoipa::path(
    get,
    path = "/v1/actions/{id}/wait",
    tag = "actions",
    params(
        ("id" = String, Path, description = "The action's id, percent-encoded"),
        ("timeout_ms" = Option<u64>, Query, description = "How long to wait at most"),
    ),
    responses(
        (status = 200, description = "It has ended", body = ActionView),
        (status = 202, description = "It has not ended yet", body = ActionView),
        (status = 404, description = "No such action of yours", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now; Retry-After says when", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn wait(
    State(desk): App,
    peer: Peer,
    Path(id): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<Response, Problem> {
    let action = action_id(id)?;
    match desk.find(&action, &peer).await? {
        Found::Done(done) => return Ok(described(action, &done)),
        Found::Unknown => return Err(unknown(&action)),
        Found::Accepted | Found::Held(_) => {}
    }
    let wait = desk.wait_time(query.timeout_ms);
    match tokio::time::timeout(wait, desk.pipeline()?.wait(&action)).await {
        Ok(Ok(Answer::Done(done))) => Ok(described(action, &done)),
        Ok(Ok(Answer::Refused(failure)) | Err(failure)) => Err(Problem::failed(&failure).about(&action)),
        Ok(Ok(Answer::Held(held))) => Ok(json(StatusCode::ACCEPTED, &ActionView::held(action, &held))),
        Err(_) => match desk.find(&action, &peer).await? {
            Found::Done(done) => Ok(described(action, &done)),
            Found::Held(held) => Ok(json(StatusCode::ACCEPTED, &ActionView::held(action, &held))),
            Found::Accepted | Found::Unknown => Ok(json(StatusCode::ACCEPTED, &ActionView::accepted(action))),
        },
    }
}

/// Withdraw an action that has not started
///
/// It ends with a receipt that says `cancelled`, and whoever waits for it gets that. Withdrawing it again is harmless. What
/// has ended otherwise, or is on its way, cannot be withdrawn; the answer says which.
#[utoipa::path(
    delete,
    path = "/v1/actions/{id}",
    tag = "actions",
    params(("id" = String, Path, description = "The action's id, percent-encoded")),
    responses(
        (status = 200, description = "It is withdrawn, now or before", body = ActionView),
        (status = 404, description = "No such action of yours", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "It has ended, or is on its way", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now; Retry-After says when", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn cancel(
    State(desk): App,
    peer: Peer,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let action = action_id(id)?;
    let by = Canceller {
        principal: peer.principal,
        operator: peer.operator,
    };
    let withdrawn = match desk.pipeline() {
        Ok(pipeline) => pipeline.cancel(&action, &by).await,
        Err(_) => withdraw(desk.parts(), &action, &by).await,
    };
    let withdrawn = withdrawn.map_err(|failure| Problem::failed(&failure).about(&action))?;
    withdrawal(&action, &withdrawn).map(|view| json(StatusCode::OK, &view))
}

/// An action that has ended, as a thing to look at.
fn described(action: ActionId, done: &Done) -> Response {
    let trace = Handed::of_receipt(&done.receipt);
    traced(trace, json(StatusCode::OK, &ActionView::done(action, done)))
}

fn action_id(id: String) -> Result<ActionId, Problem> {
    ActionId::new(id).map_err(|error| Problem::of(Kind::ActionUnknown, error.to_string()))
}

/// `wait`, `wait=true` and `wait=<milliseconds>`.
fn wait_ms(text: &str) -> Result<Option<u64>, Problem> {
    match text {
        "" | "true" => Ok(None),
        number => number.parse().map(Some).map_err(|_| {
            Problem::of(
                Kind::QueryInvalid,
                "wait must be empty, `true` or a number of milliseconds",
            )
        }),
    }
}
