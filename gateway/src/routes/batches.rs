//! Batches: several actions, all or nothing or one after another.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use effectd_actors::Incoming;
use effectd_actors::action::decisions::published;
use effectd_actors::approvals::repository::hold_of;
use effectd_actors::services::sessions::with_space;
use effectd_bus::{Store, StoreError};
use effectd_contracts::batch::is_batch;
use effectd_contracts::{ActionId, BatchRequest, ToolId};
use serde::Deserialize;

use super::actions::{Reached, execute};
use super::{sessions, traced};
use crate::app::{App, AppState, Found};
use crate::body::BodyBytes;
use crate::extract::{Json, Path, Payload, Query, Reply, integer, json};
use crate::headers::{self, AnswerTrace};
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::actions::unknown;
use crate::views::batches::BatchView;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunQuery {
    #[serde(default, deserialize_with = "integer")]
    wait_ms: Option<u64>,
    session: Option<String>,
}

/// Run a batch
///
/// All items are validated, judged and previewed before the first one starts. If one of them is denied, none starts; if one needs a person,
/// a person is asked once about the whole. The status is 200 also for a batch that was refused or undone: see `result`. Repeating the request
/// is harmless. The space is added to the parameters of a tool that takes it.
#[utoipa::path(post, path = "/v1/batches", tag = "batches",
    params(
        ("wait_ms" = Option<u64>, Query, description = "How long to wait at most for its end"),
        ("session" = Option<String>, Query, description = "The session that it belongs to; the subject and the space must be the session's"),
        ("Effectd-Interactive" = Option<String>, Header, description = "`true` if a person waits at a terminal: an approval is then expected within minutes"),
    ),
    request_body(content = ref("#/components/schemas/BatchRequest"), content_type = "application/json"),
    responses(
        (status = 200, description = "It has ended, now or before", body = BatchView),
        (status = 202, description = "It is durable, and in flight or waiting for an approval", body = BatchView),
        Problems<400, 404, 409, 413, 429, 503>,
    )
)]
pub(crate) async fn run(
    State(app): AppState,
    peer: Peer,
    Query(query): Query<RunQuery>,
    headers: HeaderMap,
    body: Payload,
) -> Result<Response, Problem> {
    let _waiting = app.wait_slot(&peer)?;
    let BodyBytes { bytes, share } = app.body(body).await?;
    let mut batch = BatchRequest::parse(&bytes)?;
    let size = bytes.len() as u64;
    drop((bytes, share));
    batch.batch_id = peer.whole_id(&batch.batch_id)?;
    let registry = app.services().registry();
    for item in &mut batch.items {
        if let Some(tool) = registry.get(&item.tool_id) {
            item.params = with_space(&batch.space_id, tool.spec(), std::mem::take(&mut item.params));
        }
    }
    let mut request = batch.into_action();
    let trace = headers::apply(&headers, &mut request)?;
    let trace = AnswerTrace::of_request(&request, trace);
    sessions::check_reach(&app, &peer, &request)?;
    let id = request.action_id.clone();
    let incoming = Incoming {
        request: Arc::new(request),
        principal: peer.principal.clone(),
        origin: sessions::origin(&app, &peer, query.session.as_deref(), &id)?,
        contract: None,
        interactive: headers::interactive(&headers),
    };
    let response = match execute(&app, &peer, incoming, size, app.wait_time(query.wait_ms)).await? {
        Reached::Done(done) => json(StatusCode::OK, &BatchView::done(app.store(), id, done)?),
        Reached::Held(held) => json(StatusCode::ACCEPTED, &BatchView::held(id, &held)),
        Reached::Accepted => json(StatusCode::ACCEPTED, &BatchView::accepted(id)),
    };
    Ok(traced(trace, response))
}

/// Where a batch is
///
/// The status is 200 also for a batch that was refused or undone: see `result`.
#[utoipa::path(get, path = "/v1/batches/{id}", tag = "batches",
    responses((status = 200, description = "The batch", body = BatchView), Problems<404, 503>))]
pub(crate) async fn show(State(app): AppState, peer: Peer, Path(id): Path<String>) -> Reply<BatchView> {
    let id = ActionId::new(id).map_err(|error| Problem::of(Kind::ActionUnknown, error.to_string()))?;
    Ok(Json(found(&app, &peer, &id).await?))
}

async fn found(app: &App, peer: &Peer, id: &ActionId) -> Result<BatchView, Problem> {
    let (id, found) = app.find_meant(id, peer).await?;
    let is_of_batch = match &found {
        Found::Done(done, _) => is_batch(&done.receipt.tool_id),
        // One that is not on disk yet, or has just ended, may be one.
        Found::Held(_) | Found::Accepted => open_tool(app.store(), &id)?.is_none_or(|tool| is_batch(&tool)),
        Found::Unknown => false,
    };
    match found {
        Found::Done(done, _share) if is_of_batch => Ok(BatchView::done(app.store(), id, done)?),
        Found::Held(held) if is_of_batch => Ok(BatchView::held(id, &held)),
        Found::Accepted if is_of_batch => Ok(BatchView::accepted(id)),
        Found::Done(..) | Found::Held(_) | Found::Accepted | Found::Unknown => Err(unknown(&id)),
    }
}

/// The tool of an action that has not ended, by its hold or its decision.
fn open_tool(store: &dyn Store, id: &ActionId) -> Result<Option<ToolId>, StoreError> {
    if let Some(hold) = hold_of(store, id)? {
        return Ok(Some(hold.value.decision.request.tool_id));
    }
    let event = published(store, id)?.and_then(|published| published.event);
    Ok(event.map(|event| event.data.request.tool_id))
}
