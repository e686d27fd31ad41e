//! Actions, for planners: submit, execute and wait, show, wait, withdraw.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use effectd_actors::operator::withdraw::{Withdrawal, withdraw};
use effectd_actors::{Answer, Done, Held, Incoming};
use effectd_contracts::ActionId;
use serde::Deserialize;

use super::{sessions, traced};
use crate::app::{App, AppState, Found};
use crate::body::BodyShare;
use crate::extract::{Json, Path, Payload, Query, Reply, integer, json, json_holding, whole};
use crate::headers::{self, AnswerTrace};
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::actions::{ActionView, ended, unknown, withdrawal};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubmitQuery {
    wait: Option<String>,
    session: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitQuery {
    #[serde(default, deserialize_with = "integer")]
    timeout_ms: Option<u64>,
}

/// Submit an action, or execute it and wait
///
/// Without `wait`, the answer comes when the decision is durable: from then on it will run or be refused, also after a crash.
/// With `wait`, the answer comes with the receipt; if the time is over before, or an approval is needed first, the decision is
/// durable and goes on. Repeating the request is harmless. Over the network, the answer's `action_id` is yours with your session or
/// principal before it, and other routes take both.
#[utoipa::path(post, path = "/v1/actions", tag = "actions",
    params(
        ("wait" = Option<String>, Query, description = "Wait for the receipt: empty or `true` for the maximum time, or milliseconds"),
        ("session" = Option<String>, Query, description = "The session that it belongs to; the subject and the space must be the session's"),
        ("Idempotency-Key" = Option<String>, Header, description = "The same as `idempotency_key` in the body"),
        ("Effectd-Interactive" = Option<String>, Header, description = "`true` if a person waits at a terminal: an approval is then expected within minutes"),
        ("traceparent" = Option<String>, Header, description = "W3C trace context: the action becomes a child of this span, unless the body names another trace; the answer's `traceparent` is the action's own span"),
        ("tracestate" = Option<String>, Header, description = "W3C trace context: copied to receipt, event and answer"),
    ),
    request_body(content = ref("#/components/schemas/ActionRequest"), content_type = "application/json"),
    responses(
        (status = 200, description = "It was done, now or before, with this receipt", body = ActionView),
        (status = 202, description = "It is durable, and in flight or waiting for an approval", body = ActionView),
        Problems<400, 403, 404, 409, 413, 429, 502, 503>,
        Problems<410, 422, 500>,
    )
)]
pub(crate) async fn submit(
    State(app): AppState,
    peer: Peer,
    Query(query): Query<SubmitQuery>,
    headers: HeaderMap,
    body: Payload,
) -> Result<Response, Problem> {
    let wait = query.wait.as_deref().map(wait_ms).transpose()?;
    let _waiting = wait.map(|_| app.wait_slot(&peer)).transpose()?;
    let (mut request, bytes, share) = app.action_request(body).await?;
    // From now on, the bounds of waiting requests and of the backlog count it.
    drop(share);
    let trace = headers::apply(&headers, &mut request)?;
    let trace = AnswerTrace::of_request(&request, trace);
    sessions::check_reach(&app, &peer, &request)?;
    let origin = sessions::origin(&app, &peer, query.session.as_deref(), &request.action_id)?;
    let incoming = Incoming {
        request: Arc::new(request),
        principal: peer.principal.clone(),
        origin,
        contract: None,
        interactive: headers::interactive(&headers),
    };
    let action = incoming.request.action_id.clone();
    let reached = match wait {
        None => accept(&app, &peer, incoming, bytes).await,
        Some(asked_ms) => execute(&app, &peer, incoming, bytes, app.wait_time(asked_ms)).await,
    };
    let response = match reached {
        Ok(Reached::Done(done)) => answered(action, app.with_result(done, &peer).await),
        Ok(Reached::Held(held)) => Ok(accepted(ActionView::held(action, &held))),
        Ok(Reached::Accepted) => Ok(accepted(ActionView::accepted(action))),
        Err(problem) => Err(problem),
    };
    Ok(traced(trace, response))
}

/// How far an action has come when its request is answered.
pub(crate) enum Reached {
    Done(Done),
    Held(Held),
    /// It is durable.
    Accepted,
}

async fn accept(app: &App, peer: &Peer, incoming: Incoming, bytes: u64) -> Result<Reached, Problem> {
    let action = incoming.request.action_id.clone();
    app.check_backlog(&peer.principal, bytes).map_err(|problem| problem.about(&action))?;
    let placed = app.pipeline()?.submit_offset(incoming).await;
    let placed = placed.map_err(|failure| Problem::failed(&failure).about(&action))?;
    if let Some(offset) = placed {
        app.health.accepted(offset, bytes, &peer.principal);
    }
    // An action that has ended already is answered with its receipt, which is for who asked for it.
    let done = app.receipt_of(&action).ok().flatten();
    let done = done.filter(|done| done.receipt.principal == peer.principal);
    Ok(done.map_or(Reached::Accepted, Reached::Done))
}

/// Executes an action, and waits for it. If the time is over first, it is durable and goes on.
pub(crate) async fn execute(
    app: &App,
    peer: &Peer,
    incoming: Incoming,
    bytes: u64,
    wait: Duration,
) -> Result<Reached, Problem> {
    let action = incoming.request.action_id.clone();
    let _share = app.waiting_share(peer, bytes).map_err(|busy| busy.about(&action))?;
    match tokio::time::timeout(wait, app.pipeline()?.exec(incoming.clone())).await {
        Ok(Answer::Done(done)) => Ok(Reached::Done(done)),
        Ok(Answer::Held(held)) => Ok(Reached::Held(held)),
        Ok(Answer::Refused(failure)) => Err(Problem::failed(&failure).about(&action)),
        // The action may still run, but only a published decision survives a crash: publish it before answering.
        Err(_) => accept(app, peer, incoming, bytes).await,
    }
}

/// Where an action is
///
/// The status is 200 also for an action that was refused or failed: see `outcome` and `receipt`.
#[utoipa::path(get, path = "/v1/actions/{id}", tag = "actions",
    responses((status = 200, description = "The action", body = ActionView), Problems<404, 503>))]
pub(crate) async fn show(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let (action, found) = app.find_meant(&action_id(id)?, &peer).await?;
    match found {
        Found::Done(done, share) => Ok(described(action, done, share)),
        Found::Accepted => Ok(Json(ActionView::accepted(action)).into_response()),
        Found::Held(held) => Ok(Json(ActionView::held(action, &held)).into_response()),
        Found::Unknown => Err(unknown(&action)),
    }
}

/// Wait until an action has ended
///
/// Answers at once if it has, with the status that the request itself gets: 403 for a refusal, 404 for a missing file. If
/// `timeout_ms` ends first, the answer is 202; repeat the request to wait longer. An action that waits for an approval ends by
/// denial or expiry, or after it has run.
#[utoipa::path(get, path = "/v1/actions/{id}/wait", tag = "actions",
    params(("timeout_ms" = Option<u64>, Query, description = "How long to wait at most")),
    responses(
        (status = 200, description = "It was done", body = ActionView),
        (status = 202, description = "It has not ended yet", body = ActionView),
        Problems<400, 403, 404, 409, 410, 422, 502, 503>,
        Problems<500>,
    )
)]
pub(crate) async fn wait(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<Response, Problem> {
    let (action, found) = app.find_meant(&action_id(id)?, &peer).await?;
    if matches!(found, Found::Unknown) {
        return Err(unknown(&action));
    }
    Ok(match until_ended(&app, &peer, &action, app.wait_time(query.timeout_ms)).await? {
        Found::Done(done, share) => waited(action, done, share),
        Found::Held(held) => accepted(ActionView::held(action, &held)),
        Found::Accepted | Found::Unknown => accepted(ActionView::accepted(action)),
    })
}

/// Waits until an action has ended, and returns where it is then. If the time is over first, it has not ended.
pub(crate) async fn until_ended(
    app: &App,
    peer: &Peer,
    action: &ActionId,
    wait: Duration,
) -> Result<Found, Problem> {
    match app.find(action, peer).await? {
        Found::Done(done, share) => return Ok(Found::Done(done, share)),
        Found::Unknown => return Err(unknown(action)),
        Found::Accepted | Found::Held(_) => {}
    }
    let _waiting = app.wait_slot(peer)?;
    match tokio::time::timeout(wait, app.pipeline()?.wait(action)).await {
        Ok(Ok(Answer::Done(done))) => {
            let (done, share) = app.with_result(done, peer).await.map_err(|busy| busy.about(action))?;
            Ok(Found::Done(done, share))
        }
        Ok(Ok(Answer::Refused(failure)) | Err(failure)) => Err(Problem::failed(&failure).about(action)),
        Ok(Ok(Answer::Held(held))) => Ok(Found::Held(held)),
        Err(_) => app.find(action, peer).await,
    }
}

/// Withdraw an action that has not started
///
/// It ends with a receipt that says `cancelled`, which all who wait for it get. Repeating this is harmless. An action that has
/// begun, or ended otherwise, cannot be withdrawn; the problem says which.
#[utoipa::path(delete, path = "/v1/actions/{id}", tag = "actions",
    responses((status = 200, description = "It is withdrawn, now or before", body = ActionView), Problems<404, 409, 503>))]
pub(crate) async fn cancel(State(app): AppState, peer: Peer, Path(id): Path<String>) -> Reply<ActionView> {
    let (id, by) = (action_id(id)?, peer.decider());
    for action in peer.meant_ids(&id) {
        let withdrawn = match app.pipeline() {
            Ok(pipeline) => pipeline.cancel(&action, &by).await,
            Err(_) => withdraw(app.services(), &action, &by).await,
        };
        let withdrawn = withdrawn.map_err(|failure| Problem::failed(&failure).about(&action))?;
        if !matches!(withdrawn, Withdrawal::Unknown) {
            return withdrawal(&action, withdrawn).map(Json);
        }
    }
    Err(unknown(&id))
}

/// The answer for an action that has ended: the same on every request that asks for it to be carried out.
fn answered(action: ActionId, found: Result<(Done, BodyShare), Problem>) -> Result<Response, Problem> {
    let (done, share) = found.map_err(|busy| busy.about(&action))?;
    let view = ended(action, done).map_err(|problem| *problem)?;
    Ok(json_holding(StatusCode::OK, &view, share))
}

/// [`answered`], with the trace context.
fn waited(action: ActionId, done: Done, share: BodyShare) -> Response {
    traced(AnswerTrace::of_receipt(&done.receipt), answered(action, Ok((done, share))))
}

/// An action that has ended, with its trace context.
fn described(action: ActionId, done: Done, share: BodyShare) -> Response {
    let trace = AnswerTrace::of_receipt(&done.receipt);
    traced(trace, json_holding(StatusCode::OK, &ActionView::done(action, done), share))
}

fn accepted(view: ActionView) -> Response {
    json(StatusCode::ACCEPTED, &view)
}

fn action_id(id: String) -> Result<ActionId, Problem> {
    ActionId::new(id).map_err(|error| Problem::of(Kind::ActionUnknown, error.to_string()))
}

/// `wait`, `wait=true` and `wait=<milliseconds>`.
fn wait_ms(text: &str) -> Result<Option<u64>, Problem> {
    match text {
        "" | "true" => Ok(None),
        number => whole(number).map(Some).ok_or_else(|| {
            Problem::of(Kind::QueryInvalid, "wait must be empty, `true` or a number of milliseconds")
        }),
    }
}
