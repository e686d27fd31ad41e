//! Artifacts: the bytes behind a receipt's `artifact_ids`.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use effectd_actors::effects::artifacts::{self, ArtifactError, ArtifactReader};
use effectd_bus::Cause;
use futures_util::stream::unfold;

use super::receipts;
use crate::app::{App, AppState};
use crate::extract::Path;
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};

/// One artifact of a receipt, byte for byte
#[utoipa::path(get, path = "/v1/receipts/{id}/artifacts/{artifact}", tag = "receipts", operation_id = "artifact",
    responses((status = 200, description = "The bytes", body = Vec<u8>, content_type = "application/octet-stream"), Problems<403, 404>))]
pub(crate) async fn get(
    State(app): AppState,
    peer: Peer,
    Path((id, artifact)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let mut reader = open(&app, &peer, id, artifact).await?;
    let bytes = reader.bytes();
    Ok(pieces(Some(bytes), move || reader.piece()))
}

/// Opens an artifact of a receipt, if this peer may read it.
pub(crate) async fn open(
    app: &Arc<App>,
    peer: &Peer,
    id: String,
    artifact: String,
) -> Result<ArtifactReader, Problem> {
    let receipt = receipts::find(app, peer, id)?;
    // Learners read receipts, not contents.
    if !peer.may_see(&receipt) {
        return Err(Problem::of(Kind::ReceiptUnknown, "no receipt with this id is visible to you"));
    }
    if !peer.operator && artifacts::is_preimage(&receipt, &artifact) {
        let why =
            "only root and the user that the daemon runs as may read a pre-image; `effectd undo` restores it";
        return Err(Problem::of(Kind::OperatorsOnly, why));
    }
    let app = app.clone();
    let opening = tokio::task::spawn_blocking(move || {
        let services = app.services();
        artifacts::open(&*services.store, &services.files.blobs, &receipt, &artifact)
    });
    let opened = opening.await.unwrap_or_else(|error| Err(ArtifactError::Unreadable(Cause::new(error))));
    opened.map_err(|error| {
        let kind = match error {
            ArtifactError::Unknown | ArtifactError::Gone => Kind::ArtifactUnknown,
            ArtifactError::Quarantined => Kind::ArtifactQuarantined,
            ArtifactError::Unreadable(_) => Kind::Internal,
        };
        Problem::of(kind, error.to_string())
    })
}

/// An answer in these pieces, until `piece` returns `None`. Each is read after the client has taken the one before, so that a slow client
/// holds neither memory nor a thread.
pub(super) fn pieces<P, E>(bytes: Option<u64>, piece: P) -> Response
where
    P: FnMut() -> Result<Option<Vec<u8>>, E> + Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    let next = |piece: Option<P>| async move {
        let mut piece = piece?;
        let reading = tokio::task::spawn_blocking(move || (piece().map_err(io::Error::other), piece));
        match reading.await {
            Ok((read, piece)) => read.transpose().map(|read| (read, Some(piece))),
            // The connection breaks off, so the client sees that bytes are missing.
            Err(error) => Some((Err(io::Error::other(error)), None)),
        }
    };
    let body = Body::from_stream(unfold(Some(piece), next));
    let mut response = ([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response();
    if let Some(bytes) = bytes {
        response.headers_mut().insert(header::CONTENT_LENGTH, bytes.into());
    }
    response
}
