//! Groups that replay a topic, for learners.

use axum::extract::State;
use axum::response::Response;
use effectd_contracts::Operation;
use serde::Deserialize;

use super::{operations, operators};
use crate::extract::{App, Operator, Path, Query};
use crate::problem::Problem;
use crate::replay::{self, GroupView, Moved};

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
    State(desk): App,
    _: Operator,
    Path(topic): Path<String>,
) -> Result<Response, Problem> {
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
    State(desk): App,
    _: Operator,
    Path((topic, group)): Path<(String, String)>,
) -> Result<Response, Problem> {
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
    State(desk): App,
    Operator(peer): Operator,
    Path((topic, group)): Path<(String, String)>,
    Query(To { to }): Query<To>,
) -> Result<Response, Problem> {
    let (at, named) = (topic.clone(), group.clone());
    let now = operators::working(&desk, {
        let host = desk.host.clone();
        move || {
            let standing = replay::standing(&*host.parts().store, &at, &named);
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
