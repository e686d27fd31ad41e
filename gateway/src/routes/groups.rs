//! Groups that replay a topic, for learners.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use effectd_contracts::Operation;
use serde::Deserialize;

use super::{operations, operators, query_invalid};
use crate::desk::Desk;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::replay::{self, GroupView, Moved};

const WHO: &str = "the events of a topic are about everybody's actions, and are";

/// Where to.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct To {
    /// `start`, `end`, an offset, a time (`2026-01-01T00:00:00Z`), or how long ago (`2h`).
    to: String,
}

/// The groups of a topic, and how far each has come
#[utoipa::path(
    get,
    path = "/v1/store/topics/{topic}/groups",
    tag = "store",
    params(("topic" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "By name", body = Vec<GroupView>),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(
    State(desk): State<Arc<Desk>>,
    Extension(peer): Extension<Peer>,
    topic: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    operators::only(&peer, WHO)?;
    let Path(topic) = topic.map_err(|error| no_path(&error))?;
    operators::with_parts(&desk, move |parts| replay::groups(&*parts.store, &topic)).await
}

/// Where a group stands; a new one stands at the start
#[utoipa::path(
    get,
    path = "/v1/store/topics/{topic}/groups/{group}",
    tag = "store",
    params(
        ("topic" = String, Path, description = "The topic's name"),
        ("group" = String, Path, description = "The group's name"),
    ),
    responses(
        (status = 200, description = "The next event that it reads", body = Moved),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(
    State(desk): State<Arc<Desk>>,
    Extension(peer): Extension<Peer>,
    names: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Problem> {
    operators::only(&peer, WHO)?;
    let Path((topic, group)) = names.map_err(|error| no_path(&error))?;
    operators::with_parts(&desk, move |parts| {
        replay::standing(&*parts.store, &topic, &group)
    })
    .await
}

/// Move a group, and make it if there is none
///
/// A reader does this with the offset behind what it has worked on; whoever wants to read again, with any place. Durable
/// when it is answered. Going back, and to a place that is not named by its offset, is on record.
#[utoipa::path(
    post,
    path = "/v1/store/topics/{topic}/groups/{group}",
    tag = "store",
    params(
        ("topic" = String, Path, description = "The topic's name"),
        ("group" = String, Path, description = "The group's name"),
        To,
    ),
    responses(
        (status = 200, description = "The next event that it reads", body = Moved),
        (status = 400, description = "No such place, or a topic that is not replayed", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn seek(
    State(desk): State<Arc<Desk>>,
    Extension(peer): Extension<Peer>,
    names: Result<Path<(String, String)>, PathRejection>,
    to: Result<Query<To>, QueryRejection>,
) -> Result<Response, Problem> {
    operators::only(&peer, WHO)?;
    let Path((topic, group)) = names.map_err(|error| no_path(&error))?;
    let Query(To { to }) = to.map_err(|error| query_invalid(&error))?;
    let (at, named) = (topic.clone(), group.clone());
    let now = operators::working(&desk, {
        let host = desk.host.clone();
        move || {
            let standing = replay::standing(&*host.pipeline().parts().store, &at, &named);
            standing.map_err(|error| operators::refused(&error))
        }
    })
    .await?;
    if to.parse::<u64>().is_ok_and(|offset| offset >= now.offset) {
        // A reader that has come further.
        return operators::with_parts(&desk, move |parts| {
            let to = replay::place(&to, parts.clock.now())?;
            replay::move_to(&*parts.store, &topic, &group, to)
        })
        .await;
    }
    let (at, named) = (topic.clone(), group.clone());
    operations::done(&desk, &peer, Operation::SeekGroup { topic, group, to }).await?;
    operators::with_parts(&desk, move |parts| replay::standing(&*parts.store, &at, &named)).await
}

fn no_path(error: &PathRejection) -> Problem {
    Problem::of(Kind::NoSuchPath, error.body_text())
}
