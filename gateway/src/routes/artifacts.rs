//! What a tool said at length: the bytes behind a receipt's `artifact_ids`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use effectd_actors::artifacts::{self, ArtifactError};

use super::receipts;
use crate::desk::Desk;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};

/// One artifact of a receipt, byte for byte
#[utoipa::path(
    get,
    path = "/v1/receipts/{id}/artifacts/{artifact}",
    tag = "receipts",
    params(
        ("id" = String, Path, description = "The receipt's id"),
        ("artifact" = String, Path, description = "One of the receipt's `artifact_ids`"),
    ),
    responses(
        (status = 200, description = "The bytes", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 404, description = "No such receipt of yours, or it names no such artifact, or that is not kept any more", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn get(
    State(desk): State<Arc<Desk>>,
    Extension(peer): Extension<Peer>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Problem> {
    let Path((id, artifact)) = path.map_err(|error| Problem::of(Kind::NoSuchPath, error.body_text()))?;
    let receipt = receipts::find(&desk, &peer, Ok(Path(id)))?;
    let reading =
        tokio::task::spawn_blocking(move || artifacts::fetch(desk.pipeline().parts(), &receipt, &artifact));
    let read = reading
        .await
        .unwrap_or_else(|error| Err(ArtifactError::Unreadable(error.to_string())));
    let bytes = read.map_err(|error| {
        let kind = match error {
            ArtifactError::Unknown | ArtifactError::Gone => Kind::ArtifactUnknown,
            ArtifactError::Unreadable(_) => Kind::Internal,
        };
        Problem::of(kind, error.to_string())
    })?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
}
