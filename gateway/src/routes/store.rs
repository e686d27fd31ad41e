//! The store, for operators: what is in it, its events, letting go of what is kept no longer, and erasing subjects.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use effectd_actors::{Store, TopicName, Watch, retention};
use effectd_contracts::json as strict;
use serde::Deserialize;

use super::artifacts::Pieces;
use super::operations::to_its_end;
use super::{json, operators};
use crate::desk::{Desk, unavailable};
use crate::extract::{App, Operator, Path, Query};
use crate::limits::CHANGE_BYTES_MAX;
use crate::operations;
use crate::problem::{Kind, Problem};
use crate::replay;
use crate::server::Stage;
use crate::upkeep::{self, EraseBody, ErasedView, EventList, RetainedView, StoreView};

/// Where to read on.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct From {
    /// The first event: `start` (the first that is kept), `end`, an offset, a time (`2026-01-01T00:00:00Z`), or how long ago
    /// (`2h`).
    from: Option<String>,
    /// If there are none, wait so long for one.
    wait_ms: Option<u64>,
}

/// Whether anything is done.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Preview {
    /// Only say what would be done.
    pub(super) preview: bool,
}

/// What is in the store
#[utoipa::path(
    get,
    path = "/v1/store",
    tag = "store",
    responses(
        (status = 200, description = "Counted", body = StoreView),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn stats(State(desk): App, _: Operator) -> Result<Response, Problem> {
    operators::with_parts(&desk, |parts| upkeep::stats(&*parts.store)).await
}

/// Events of a topic, in order
///
/// What is sealed is not opened: such an event has no body here. To follow what comes, pass `next` as `from`, with `wait_ms`.
#[utoipa::path(
    get,
    path = "/v1/store/topics/{topic}",
    tag = "store",
    params(("topic" = String, Path, description = "Its name"), From),
    responses(
        (status = 200, description = "Some of them, and where to go on", body = EventList),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
        (status = 410, description = "No longer kept; says where the topic begins now", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn events(
    State(desk): App,
    _: Operator,
    Path(topic): Path<String>,
    Query(query): Query<From>,
) -> Result<Response, Problem> {
    let mut from = query.from.unwrap_or_else(|| "start".to_owned());
    let wait = desk.wait_time(Some(query.wait_ms.unwrap_or(0)));
    let end = tokio::time::Instant::now() + wait;
    let (store, mut stage) = (desk.parts().store.clone(), desk.stage.clone());
    loop {
        // Taken before the look: nothing that comes after it is missed.
        let mut news = watch(&*store, &topic)?;
        let list = page(&desk, topic.clone(), from).await?;
        if !list.events.is_empty() || tokio::time::Instant::now() >= end {
            return Ok(json(StatusCode::OK, &list));
        }
        tokio::select! {
            biased;
            _ = stage.wait_for(|stage| *stage != Stage::Open) => return Ok(json(StatusCode::OK, &list)),
            changed = news.changed() => changed.map_err(|error| unavailable(&error))?,
            () = tokio::time::sleep_until(end) => return Ok(json(StatusCode::OK, &list)),
        }
        from = list.next.to_string();
    }
}

fn watch(store: &dyn Store, topic: &str) -> Result<Watch, Problem> {
    let watch = TopicName::new(topic).and_then(|topic| store.watch(&topic));
    watch.map_err(|error| operators::refused(&error))
}

async fn page(desk: &Arc<Desk>, topic: String, from: String) -> Result<EventList, Problem> {
    let host = desk.host.clone();
    operators::working(desk, move || {
        let parts = host.parts();
        let events = replay::place(&from, parts.clock.now())
            .and_then(|place| replay::offset_of(&*parts.store, &topic, place))
            .and_then(|from| upkeep::events(&*parts.store, &topic, from));
        events.map_err(|error| operators::refused(&error))
    })
    .await
}

/// The journal itself, for a backup
///
/// Every block that is durable now, as the module `journal` of the crate `effectd-bus` says. What is sealed stays sealed. If old blocks
/// are let go meanwhile, the answer breaks off, and is to be asked for again.
#[utoipa::path(
    get,
    path = "/v1/store/journal",
    tag = "store",
    responses(
        (status = 200, description = "The bytes", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn journal(State(desk): App, _: Operator) -> Result<Response, Problem> {
    let host = desk.host.clone();
    let mut reader = operators::working(&desk, move || {
        let reader = host.parts().store.read_journal();
        reader.map_err(|error| operators::refused(&error))
    })
    .await?;
    Ok(Pieces::of(None, move || reader.piece()))
}

/// Let go of what is kept no longer
///
/// One turn of bounded work; the answer says whether there is more. The daemon does this by itself every hour.
#[utoipa::path(
    post,
    path = "/v1/store/retain",
    tag = "store",
    params(Preview),
    responses(
        (status = 200, description = "What went, or would go", body = RetainedView),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn retain(
    State(desk): App,
    Operator(peer): Operator,
    Query(Preview { preview }): Query<Preview>,
) -> Result<Response, Problem> {
    if preview {
        return operators::with_parts(&desk, move |parts| {
            retention::preview(parts).map(RetainedView::would)
        })
        .await;
    }
    let told = to_its_end(&desk, &peer, operations::retain).await?;
    Ok(json(StatusCode::OK, &told))
}

/// Erase subjects
///
/// Afterwards no key opens what was sealed for them until now; receipts, signatures and proofs stay. One attempt of bounded
/// patience: while something is under way, the answer says so, and is to be asked for again with its `begun` and `swept`.
#[utoipa::path(
    post,
    path = "/v1/store/erase",
    tag = "store",
    request_body(content = EraseBody, content_type = "application/json"),
    responses(
        (status = 200, description = "What went, or would go, or has to end first", body = ErasedView),
        (status = 400, description = "Not subjects", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn erase(
    State(desk): App,
    Operator(peer): Operator,
    body: Body,
) -> Result<Response, Problem> {
    let body = desk.budget.read(body, desk.settings().body_time_max).await?;
    let body: EraseBody = strict::parse(&body.bytes, CHANGE_BYTES_MAX)
        .map_err(|error| Problem::of(Kind::QueryInvalid, error.to_string()))?;
    let told = to_its_end(&desk, &peer, move |parts, by| operations::erase(parts, body, by)).await?;
    Ok(json(StatusCode::OK, &told))
}
