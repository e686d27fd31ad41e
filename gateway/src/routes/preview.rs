//! Previews: what a request would change, before it is made.

use axum::body::Body;
use axum::extract::State;
use effectd_actors::preview::foresee;

use crate::app::AppState;
use crate::extract::{Json, Reply};
use crate::peer::Peer;
use crate::problem::Problems;
use crate::views::approvals::PreviewView;

/// Preview a request
///
/// The policy decides with you as the principal. Unless it refuses, the tool runs on a copy of the files that it may change, in a
/// sandbox that can change nothing else. Nothing is recorded.
#[utoipa::path(post, path = "/v1/preview", tag = "actions",
    request_body(content = ref("#/components/schemas/ActionRequest"), content_type = "application/json"),
    responses((status = 200, description = "The policy's verdict, and what would change", body = PreviewView), Problems<400, 404, 503>))]
pub(crate) async fn preview(State(app): AppState, peer: Peer, body: Body) -> Reply<PreviewView> {
    let (request, _, _share) = app.action_request(body).await?;
    let _permit = app.preview_permit()?;
    let foresight = foresee(app.services(), &request, &peer.principal).await?;
    Ok(Json(PreviewView::of(&request, foresight)))
}
