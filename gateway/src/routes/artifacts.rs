//! What a tool said at length: the bytes behind a receipt's `artifact_ids`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::Extension;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use effectd_actors::artifacts::{self, ArtifactError, ArtifactReader};
use hyper::body::{Frame, SizeHint};
use tokio::task::JoinHandle;

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
        (status = 403, description = "An operator has taken it aside", body = Problem, content_type = "application/problem+json"),
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
    let opening =
        tokio::task::spawn_blocking(move || artifacts::open(desk.pipeline().parts(), &receipt, &artifact));
    let opened = opening
        .await
        .unwrap_or_else(|error| Err(ArtifactError::Unreadable(error.to_string())));
    let reader = opened.map_err(|error| {
        let kind = match error {
            ArtifactError::Unknown | ArtifactError::Gone => Kind::ArtifactUnknown,
            ArtifactError::Quarantined => Kind::ArtifactQuarantined,
            ArtifactError::Unreadable(_) => Kind::Internal,
        };
        Problem::of(kind, error.to_string())
    })?;
    let body = Body::new(Pieces::of(reader));
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response())
}

/// An artifact as the body of an answer: one piece of it is read when the one before has been taken, so that a client that
/// takes its time holds neither memory nor a thread.
struct Pieces {
    left: u64,
    reader: Option<ArtifactReader>,
    reading: Option<Reading>,
}

type Reading = JoinHandle<(ArtifactReader, Result<Option<Vec<u8>>, ArtifactError>)>;

impl Pieces {
    fn of(reader: ArtifactReader) -> Self {
        Self {
            left: reader.bytes(),
            reader: Some(reader),
            reading: None,
        }
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
                let piece = reader.piece();
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
                self.left = self.left.saturating_sub(piece.len() as u64);
                self.reader = Some(reader);
                Some(Ok(Frame::data(Bytes::from(piece))))
            }
            Ok((_, Ok(None))) => None,
            // The connection breaks off, and the client sees that something is missing.
            Ok((_, Err(error))) => Some(Err(std::io::Error::other(error))),
            Err(error) => Some(Err(std::io::Error::other(error))),
        })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
