//! Artifacts: the bytes behind a receipt's `artifact_ids`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use effectd_actors::effects::artifacts::{self, ArtifactError, ArtifactReader};
use effectd_bus::Cause;
use hyper::body::{Frame, SizeHint};
use tokio::task::JoinHandle;

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
    Ok(Pieces::response(Some(bytes), move || reader.piece()))
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

/// A long body: each piece is read after the client has taken the one before, so that a slow client holds neither memory nor a
/// thread.
pub(super) struct Pieces {
    /// Remaining bytes, if known.
    left: Option<u64>,
    reader: Option<Reader>,
    reading: Option<JoinHandle<(Reader, Piece)>>,
}

type Piece = std::io::Result<Option<Vec<u8>>>;
type Reader = Box<dyn FnMut() -> Piece + Send>;

impl Pieces {
    /// The response with these pieces, until `piece` returns `None`.
    pub(super) fn response<E: std::error::Error + Send + Sync + 'static>(
        left: Option<u64>,
        mut piece: impl FnMut() -> Result<Option<Vec<u8>>, E> + Send + 'static,
    ) -> Response {
        let body = Body::new(Self {
            left,
            reader: Some(Box::new(move || piece().map_err(std::io::Error::other))),
            reading: None,
        });
        ([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response()
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(mut reader) = self.reader.take() {
            self.reading = Some(tokio::task::spawn_blocking(move || {
                let piece = reader();
                (reader, piece)
            }));
        }
        let Some(reading) = &mut self.reading else {
            return Poll::Ready(None);
        };
        let read = ready!(Pin::new(reading).poll(context));
        self.reading = None;
        Poll::Ready(match read {
            Ok((reader, Ok(Some(piece)))) => {
                self.left = self.left.map(|left| left.saturating_sub(piece.len() as u64));
                self.reader = Some(reader);
                Some(Ok(Frame::data(Bytes::from(piece))))
            }
            Ok((_, Ok(None))) => None,
            // The connection breaks off, so the client sees that bytes are missing.
            Ok((_, Err(error))) => Some(Err(error)),
            Err(error) => Some(Err(std::io::Error::other(error))),
        })
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
