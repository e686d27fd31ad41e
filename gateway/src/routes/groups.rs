//! Consumer groups that replay a topic, for learners.

use axum::extract::State;
use effectd_actors::Services;
use effectd_actors::operator::replay;
use effectd_bus::{SeekTo, StoreError};
use effectd_contracts::Operation;
use serde::Deserialize;

use super::operations;
use crate::app::AppState;
use crate::extract::{Json, Path, Query, Reader, Reply};
use crate::problem::{Problem, Problems};
use crate::views::store::{GroupView, Moved};

/// The new position.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct To {
    /// `start`, `end`, an offset, a time (`2026-01-01T00:00:00Z`), or an age (`2h`).
    to: String,
}

/// The consumer groups of a topic, and their positions
#[utoipa::path(get, path = "/v1/store/topics/{topic}/groups", tag = "groups",
    responses((status = 200, description = "By name", body = Vec<GroupView>), Problems<400, 403, 404>))]
pub(crate) async fn list(
    State(app): AppState,
    by: Reader,
    Path(topic): Path<String>,
) -> Reply<Vec<GroupView>> {
    by.check_topic(&topic)?;
    app.store_query(move |services| {
        let mut groups = services.store.groups(&replay::known_topic(&*services.store, &topic)?).wait()?;
        groups.sort_by(|a, b| a.group.as_str().cmp(b.group.as_str()));
        Ok(groups.into_iter().map(GroupView::from).collect())
    })
    .await
}

/// The position of a consumer group; a new one begins at the start
#[utoipa::path(get, path = "/v1/store/topics/{topic}/groups/{group}", tag = "groups",
    responses((status = 200, description = "The next event that it reads", body = Moved), Problems<400, 403, 404>))]
pub(crate) async fn show(
    State(app): AppState,
    by: Reader,
    Path((topic, group)): Path<(String, String)>,
) -> Reply<Moved> {
    by.check_topic(&topic)?;
    app.store_query(move |services| {
        let offset = replay::position(&*services.store, &topic, &group)?;
        Ok(Moved { offset })
    })
    .await
}

/// Move a consumer group, and create it if it is new
///
/// A reader commits the offset after the last event that it has processed; to replay, give any position. Durable when it is
/// answered. If an operator moves a group backwards, or to a position that is not an offset, this leaves a receipt. A learner has up to 8
/// groups for each topic: `u<uid>` and `u<uid>.…`, with its own uid. An account over TCP has another such name, which the answer to a
/// wrong one says.
#[utoipa::path(post, path = "/v1/store/topics/{topic}/groups/{group}", tag = "groups",
    params(To),
    responses((status = 200, description = "The next event that it reads", body = Moved), Problems<400, 403, 404>))]
pub(crate) async fn seek(
    State(app): AppState,
    by: Reader,
    Path((topic, group)): Path<(String, String)>,
    Query(To { to }): Query<To>,
) -> Reply<Moved> {
    by.check_topic(&topic)?;
    let Some(operator) = by.operator() else {
        return app.blocking(move |app| seek_own(app.services(), &by, &topic, &group, &to)).await.map(Json);
    };
    let (at, named, target) = (topic.clone(), group.clone(), to.clone());
    // A reader that moves forward needs no receipt.
    let forward = app.store_query(move |services| {
        let store = &*services.store;
        let now = replay::position(store, &at, &named)?;
        match target.parse::<u64>() {
            Ok(offset) if offset >= now => replay::seek(store, &at, &named, SeekTo::Offset(offset)).map(Some),
            Ok(_) | Err(_) => Ok(None),
        }
    });
    if let Json(Some(offset)) = forward.await? {
        return Ok(Json(Moved { offset }));
    }
    let operation = Operation::SeekGroup { topic: topic.clone(), group: group.clone(), to };
    operations::perform_to_end(&app, &operator, operation).await?;
    show(State(app), by, Path((topic, group))).await
}

/// Moves a learner's own group, in any direction and without a receipt.
fn seek_own(services: &Services, by: &Reader, topic: &str, group: &str, to: &str) -> Result<Moved, Problem> {
    let (store, failed) = (&*services.store, |error: StoreError| Problem::for_operator(&error));
    let known = replay::known_topic(store, topic).and_then(|topic| store.groups(&topic).wait());
    by.check_group(group, known.map_err(failed)?.iter().map(|known| known.group.as_str()))?;
    let to = replay::parse_position(to, services.clock.now());
    let offset = to.and_then(|to| replay::seek(store, topic, group, to)).map_err(failed)?;
    Ok(Moved { offset })
}
