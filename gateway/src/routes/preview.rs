//! What would come of a request, before anybody makes it.

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use effectd_actors::preview::foresee;
use effectd_contracts::ActionRequest;

use super::json;
use crate::extract::App;
use crate::peer::Peer;
use crate::problem::Problem;
use crate::views::approvals::PreviewView;

/// Tell what would come of a request
///
/// It is judged as yours, and if the policy would not refuse it, its tool runs on a copy of what it may touch, in a sandbox
/// that can change nothing. Nothing is done, and nothing is recorded.
#[utoipa::path(
    post,
    path = "/v1/preview",
    tag = "actions",
    request_body(content = ref("#/components/schemas/ActionRequest"), content_type = "application/json"),
    responses(
        (status = 200, description = "The policy's word, and what would change", body = PreviewView),
        (status = 400, description = "It is no request", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such tool", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now; Retry-After says when", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn preview(State(desk): App, peer: Peer, body: Body) -> Result<Response, Problem> {
    let body = desk.budget.read(body, desk.settings().body_time_max).await?;
    let request = ActionRequest::parse(&body.bytes).map_err(|failure| Problem::failed(&failure))?;
    let _turn = desk.preview_turn()?;
    let foresight = foresee(desk.parts(), &request, &peer.principal).await;
    let foresight = foresight.map_err(|failure| Problem::failed(&failure))?;
    Ok(json(StatusCode::OK, &PreviewView::of(&request, foresight)))
}
