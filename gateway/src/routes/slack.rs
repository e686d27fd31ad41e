//! Who the users of Slack are. Operators change it by `/v1/operations`.

use axum::extract::State;
use effectd_actors::approvals::slack;
use effectd_contracts::SlackUser;

use crate::app::AppState;
use crate::extract::{Json, Reply, Viewer};
use crate::problem::Problems;

/// Users of Slack, and the accounts that they are
#[utoipa::path(get, path = "/v1/slack/users", tag = "slack",
    responses((status = 200, description = "All of them, by organisation, workspace and id", body = Vec<serde_json::Value>), Problems<403, 503>))]
pub(crate) async fn users(State(app): AppState, _: Viewer) -> Reply<Vec<SlackUser>> {
    app.blocking(move |app| Ok(slack::users(app.store())?)).await.map(Json)
}
