//! The pipeline's actors, for operators.

use axum::extract::State;

use crate::app::AppState;
use crate::extract::{Json, Reply, Viewer};
use crate::problem::Problems;
use crate::views::tree::ActorView;

/// The actors under the pipeline's supervisor
#[utoipa::path(get, path = "/v1/tree", tag = "tree",
    responses((status = 200, description = "Stages first, in the order in which an action passes them", body = Vec<ActorView>), Problems<403, 503>))]
pub(crate) async fn show(State(app): AppState, _: Viewer) -> Reply<Vec<ActorView>> {
    let nodes = app.pipeline()?.tree().await;
    Ok(Json(nodes.into_iter().map(ActorView::from).collect()))
}
