//! Circuit breakers, for operators.

use axum::extract::State;
use effectd_actors::control::breakers::View;
use effectd_contracts::Operation;
use effectd_contracts::limits::ID_BYTES_MAX;
use effectd_contracts::text::is_unprintable;

use super::operations;
use crate::app::{App, AppState};
use crate::extract::{Json, Operator, Path, Reply, Viewer};
use crate::problem::{Kind, Problem, Problems};
use crate::views::breakers::BreakerView;

/// All circuit breakers that have been used or opened
#[utoipa::path(get, path = "/v1/breakers", tag = "breakers",
    responses((status = 200, description = "All of them, by key", body = Vec<BreakerView>), Problems<403>))]
pub(crate) async fn list(State(app): AppState, _: Viewer) -> Reply<Vec<BreakerView>> {
    let views = app.services().control.breakers.list();
    Ok(Json(views.into_iter().map(BreakerView::from).collect()))
}

/// One circuit breaker
#[utoipa::path(get, path = "/v1/breakers/{key}", tag = "breakers",
    responses((status = 200, description = "Its state", body = BreakerView), Problems<403, 404>))]
pub(crate) async fn show(State(app): AppState, _: Viewer, Path(key): Path<String>) -> Reply<BreakerView> {
    check_key(&key)?;
    Ok(view(&app, &key))
}

/// The view of a breaker; a breaker without calls is closed.
fn view(app: &App, key: &str) -> Json<BreakerView> {
    let known = app.services().control.breakers.show_one(key);
    Json(known.unwrap_or_else(|| View::untouched(key)).into())
}

/// Open a circuit breaker, until it is reset
#[utoipa::path(post, path = "/v1/breakers/{key}/trip", tag = "breakers",
    responses((status = 200, description = "Open, and durable", body = BreakerView), Problems<403, 404, 502>))]
pub(crate) async fn trip(State(app): AppState, by: Operator, Path(key): Path<String>) -> Reply<BreakerView> {
    check_key(&key)?;
    operations::perform_to_end(&app, &by, Operation::TripBreaker { key: key.clone() }).await?;
    Ok(view(&app, &key))
}

/// Close a circuit breaker and forget what it counted
#[utoipa::path(post, path = "/v1/breakers/{key}/reset", tag = "breakers",
    responses((status = 200, description = "Closed, and durable", body = BreakerView), Problems<403, 404, 502>))]
pub(crate) async fn reset(State(app): AppState, by: Operator, Path(key): Path<String>) -> Reply<BreakerView> {
    check_key(&key)?;
    operations::perform_to_end(&app, &by, Operation::ResetBreaker { key: key.clone() }).await?;
    Ok(view(&app, &key))
}

fn check_key(key: &str) -> Result<(), Problem> {
    if key.is_empty() || key.len() > ID_BYTES_MAX || key.chars().any(is_unprintable) {
        return Err(Problem::of(Kind::BreakerUnknown, "no breaker can have this key"));
    }
    Ok(())
}
