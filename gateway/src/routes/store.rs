//! The store, for operators: what is in it, its events, letting go of what is kept no longer, and erasing subjects.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use effectd_actors::{Store, TopicName, Watch, retention};
use effectd_contracts::json as strict;
use serde::Deserialize;

use super::operations::to_its_end;
use super::{json, operators, query_invalid};
use crate::desk::{Desk, unavailable};
use crate::limits::CHANGE_BYTES_MAX;
use crate::operations;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::replay;
use crate::server::Stage;
use crate::upkeep::{self, EraseBody, ErasedView, EventList, RetainedView, StoreView};

const WHO: &str = "the store is";

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
pub(crate) async fn stats(
    State(desk): State<Arc<Desk>>,
    Extension(peer): Extension<Peer>,
) -> Result<Response, Problem> {
    operators::only(&peer, WHO)?;
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
    State(desk): State<Arc<Desk>>,
    Extension(peer): Extension<Peer>,
    topic: Result<Path<String>, PathRejection>,
    query: Result<Query<From>, QueryRejection>,
) -> Result<Response, Problem> {
    operators::only(&peer, WHO)?;
    let Path(topic) = topic.map_err(|error| Problem::of(Kind::NoSuchPath, error.body_text()))?;
    let Query(query) = query.map_err(|error| query_invalid(&error))?;
    let mut from = query.from.unwrap_or_else(|| "start".to_owned());
    let wait = desk.wait_time(Some(query.wait_ms.unwrap_or(0)));
    let end = tokio::time::Instant::now() + wait;
    let (store, mut stage) = (desk.pipeline().parts().store.clone(), desk.stage.clone());
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
        let parts = host.pipeline().parts();
        let events = replay::place(&from, parts.clock.now())
            .and_then(|place| replay::offset_of(&*parts.store, &topic, place))
            .and_then(|from| upkeep::events(&*parts.store, &topic, Some(from)));
        events.map_err(|error| operators::refused(&error))
    })
    .await
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
    State(desk): State<Arc<Desk>>,
    Extension(peer): Extension<Peer>,
    query: Result<Query<Preview>, QueryRejection>,
) -> Result<Response, Problem> {
    operators::only(&peer, WHO)?;
    let Query(Preview { preview }) = query.map_err(|error| query_invalid(&error))?;
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
    State(desk): State<Arc<Desk>>,
    Extension(peer): Extension<Peer>,
    body: Body,
) -> Result<Response, Problem> {
    operators::only(&peer, WHO)?;
    let body = desk.budget.read(body, desk.settings().body_time_max).await?;
    let body: EraseBody = strict::parse(&body.bytes, CHANGE_BYTES_MAX.get())
        .map_err(|error| Problem::of(Kind::QueryInvalid, error.to_string()))?;
    let told = to_its_end(&desk, &peer, move |parts, by| operations::erase(parts, body, by)).await?;
    Ok(json(StatusCode::OK, &told))
}
