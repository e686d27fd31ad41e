//! Previews: what a request would change, before it is made.

use axum::extract::State;
use effectd_actors::preview::foresee;
use serde::Deserialize;

use super::sessions;
use crate::app::AppState;
use crate::extract::{Json, Payload, Query, Reply};
use crate::peer::Peer;
use crate::problem::Problems;
use crate::views::approvals::PreviewView;

/// Where the action would come from.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PreviewQuery {
    /// The session that it would belong to; the subject and the space must be the session's.
    session: Option<String>,
}

/// Preview a request
///
/// The policy decides with you as the principal, and with the connections of the session. Unless it refuses, the tool runs on a copy of the files that it may change, in a
/// sandbox that can change nothing else. Nothing is recorded.
#[utoipa::path(post, path = "/v1/preview", tag = "actions",
    params(PreviewQuery),
    request_body(content = ref("#/components/schemas/ActionRequest"), content_type = "application/json"),
    responses((status = 200, description = "The policy's verdict, and what would change", body = PreviewView), Problems<400, 404, 503>))]
pub(crate) async fn preview(
    State(app): AppState,
    peer: Peer,
    Query(query): Query<PreviewQuery>,
    body: Payload,
) -> Reply<PreviewView> {
    let (request, _, _share) = app.action_request(body).await?;
    sessions::check_reach(&app, &peer, &request)?;
    let origin = sessions::origin(&app, &peer, query.session.as_deref(), &request.action_id)?;
    let _permit = app.preview_permit()?;
    let foresight = foresee(app.services(), &request, (&peer.principal, &origin)).await?;
    Ok(Json(PreviewView::of(&request, foresight)))
}
