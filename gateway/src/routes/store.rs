//! The store, for operators: its contents, events and journal, retention, and the erasure of subjects.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use effectd_actors::Services;
use effectd_actors::operator::{replay, retention, store_admin};
use serde::Deserialize;

use super::artifacts::pieces;
use super::operations::{Preview, checked_reason, to_end};
use super::receipts;
use crate::app::{App, AppState};
use crate::extract::{Eraser, Json, Operator, Path, Payload, Query, Reader, Reply, Viewer, integer};
use crate::host::Stage;
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::store::{self as views, EraseBody, ErasedView, EventList, RetainedView, StoreView};

/// Where to begin.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct From {
    /// The first event: `start` (the first that is kept), `end`, an offset, a time (`2026-01-01T00:00:00Z`), or an age (`2h`).
    from: Option<String>,
    /// If there are none, wait this long for one.
    #[serde(deserialize_with = "integer")]
    wait_ms: Option<u64>,
}

/// The contents of the store
#[utoipa::path(get, path = "/v1/store", tag = "store",
    responses((status = 200, description = "Counted", body = StoreView), Problems<403>))]
pub(crate) async fn stats(State(app): AppState, _: Viewer) -> Reply<StoreView> {
    app.store_query(|services| views::stats(&*services.store)).await
}

/// Events of a topic, in order
///
/// Each is a CloudEvent with its `offset`. Sealed events are not opened: they have no `data` here. Learners and tokens read `ACTION_EXECUTED`
/// and `AMENDMENTS`, a token only about actions whose receipts it reads. To follow new events, pass `next` as `from`, with `wait_ms`.
#[utoipa::path(get, path = "/v1/store/topics/{topic}", tag = "store",
    params(From),
    responses((status = 200, description = "A page of them", body = EventList), Problems<400, 403, 404, 410>))]
pub(crate) async fn events(
    State(app): AppState,
    by: Reader,
    Path(topic): Path<String>,
    Query(query): Query<From>,
) -> Reply<EventList> {
    by.check_topic(&topic)?;
    let mut from = query.from.unwrap_or_else(|| "start".to_owned());
    let _waiting = query.wait_ms.map(|_| app.wait_slot(by.peer())).transpose()?;
    let wait = app.wait_time(Some(query.wait_ms.unwrap_or(0)));
    let mut end = std::pin::pin!(tokio::time::sleep(wait));
    let mut stage = app.stage.clone();
    loop {
        // Watch before reading the page, so that no later event is missed.
        let known = replay::known_topic(app.store(), &topic);
        let watch = known.and_then(|topic| app.store().watch(&topic));
        let mut news = watch.map_err(|error| Problem::for_operator(&error))?;
        let list = page(&app, by.peer(), topic.clone(), from).await?;
        let has_more = list.0.next < list.0.end;
        if has_more || !list.0.events.is_empty() || wait.is_zero() {
            return Ok(list);
        }
        tokio::select! {
            biased;
            _ = stage.wait_for(|stage| *stage != Stage::Open) => return Ok(list),
            changed = news.changed() => changed?,
            () = &mut end => return Ok(list),
        }
        from = list.0.next.to_string();
    }
}

async fn page(app: &Arc<App>, peer: &Peer, topic: String, from: String) -> Reply<EventList> {
    let peer = peer.clone();
    let read = move |app: &App| {
        let (services, store) = (app.services(), app.store());
        let from = replay::parse_position(&from, services.clock.now());
        let from = from.and_then(|from| replay::offset_of(store, &topic, from));
        let list = from.and_then(|from| views::events(store, &services.identity.device(), &topic, from));
        let mut list = list.map_err(|error| Problem::for_operator(&error))?;
        if peer.claims().is_some() {
            let mut seen = Vec::new();
            for event in list.events {
                let receipt = event["data"]["receipt_id"].as_str().unwrap_or_default().to_owned();
                match receipts::find(app, &peer, receipt) {
                    Ok(_) => seen.push(event),
                    // The reader goes on after this page, and would miss the event.
                    Err(problem) if problem.retryable => return Err(problem),
                    Err(_) => {}
                }
            }
            list.events = seen;
        }
        Ok(list)
    };
    app.blocking(read).await.map(Json)
}

/// The journal itself, for a backup
///
/// Only for root and the user that the daemon runs as. Every block that is durable now, in the format of the module `journal` of the
/// crate `effectd-bus`. Sealed bytes stay sealed. If retention removes old blocks meanwhile, the answer breaks off; repeat the request.
#[utoipa::path(get, path = "/v1/store/journal", tag = "store",
    responses((status = 200, description = "The bytes", body = Vec<u8>, content_type = "application/octet-stream"), Problems<403>))]
pub(crate) async fn journal(State(app): AppState, peer: Peer) -> Result<Response, Problem> {
    if !peer.operator {
        let why = "only root and the user that the daemon runs as may read the journal";
        return Err(Problem::of(Kind::OperatorsOnly, why));
    }
    let Json(mut reader) = app.store_query(|services| services.store.read_journal()).await?;
    Ok(pieces(None, move || reader.piece()))
}

/// Run retention
///
/// One step of bounded work; the answer says whether there is more. The daemon does this by itself every hour.
#[utoipa::path(post, path = "/v1/store/retain", tag = "store",
    params(Preview),
    responses((status = 200, description = "What it removed, or would remove", body = RetainedView), Problems<403>))]
pub(crate) async fn retain(
    State(app): AppState,
    by: Operator,
    Query(Preview { preview }): Query<Preview>,
) -> Reply<RetainedView> {
    if preview {
        let preview = |services: &Services| {
            retention::preview(&*services.store, &services.settings.retention).map(RetainedView::would)
        };
        return app.store_query(preview).await;
    }
    let retained = to_end(&app, &by.0, store_admin::retain).await?;
    Ok(Json(retained.into()))
}

/// Erase subjects
///
/// Afterwards no key opens what was sealed for them until now; receipts, signatures and proofs stay. While actions are in flight,
/// the erasure is not complete: repeat the request with `begun` and `swept` of the answer. A subject that nothing names is refused.
#[utoipa::path(post, path = "/v1/store/erase", tag = "store",
    request_body(content = EraseBody, content_type = "application/json"),
    responses((status = 200, description = "What it destroyed, or would destroy, or has to end first", body = ErasedView), Problems<400, 403, 404>))]
pub(crate) async fn erase(State(app): AppState, Eraser(by): Eraser, body: Payload) -> Reply<ErasedView> {
    let (body, _share): (EraseBody, _) = app.json_body(body, Kind::QueryInvalid).await?;
    let erasure = body.erasure();
    checked_reason(erasure.reason.clone())?;
    if body.preview {
        return app
            .store_query(move |services| {
                store_admin::preview_erasure(services, &erasure).map(ErasedView::from)
            })
            .await;
    }
    let erased = to_end(&app, &by, |services, by| store_admin::erase(services, erasure, by)).await?;
    Ok(Json(erased.into()))
}
