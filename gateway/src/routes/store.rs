//! The store, for operators: what is in it, its events, and letting go of what is kept no longer.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use effectd_actors::{Turn, retention};
use serde::Deserialize;

use super::{operators, query_invalid};
use crate::desk::Desk;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::upkeep::{self, EventList, RetainedView, StoreView};

const WHO: &str = "the store is";

/// Where to read on.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct From {
    /// The first event; without it, the first that is kept.
    from: Option<u64>,
}

/// Whether anything is done.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Preview {
    /// Only say what would be done.
    preview: bool,
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
/// What is sealed is not opened: such an event has no body here.
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
    operators::with_parts(&desk, move |parts| {
        upkeep::events(&*parts.store, &topic, query.from)
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
    let turn = if preview { Turn::Preview } else { Turn::LetGo };
    operators::with_parts(&desk, move |parts| {
        retention::turn(parts, turn).map(RetainedView::from)
    })
    .await
}
