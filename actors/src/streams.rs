//! What goes beside a call: contents that are too long for a request, and what tools say at length.
//!
//! Both come and go in pieces, from and to sealed blobs. Nothing of a long output has a name before the tool has answered;
//! what a killed run or a killed runtime has left is removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use effectd_bus::{BlobError, BlobWriter, Blobs, Shelf};
use effectd_contracts::{Artifact, Code, Failure, Phase, SpaceId};
use effectd_sandbox::{Outward, Piece};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::limits::{STREAM_BYTES_MAX, STREAM_PIECES_WAITING, STREAMS_MAX};
use crate::parts::Parts;

/// Longest name of an artifact that a receipt repeats: a word, not a message.
const NAME_BYTES_MAX: usize = 64;

/// Something long that is kept, as the receipt names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeptArtifact {
    /// Under which it is found: the digest of the whole content, under the device's key.
    pub artifact_id: String,
    /// What it is, in the tool's word.
    pub name: String,
    pub bytes: u64,
}

/// Why a blob could not be kept or had, as an action tells it.
pub(crate) fn failure_of(error: &BlobError) -> Failure {
    let code = match error {
        BlobError::Full => Code::DiskFull,
        BlobError::TooLarge { .. } => Code::FileLimit,
        BlobError::Disk(_) | BlobError::Gone | BlobError::Damaged | BlobError::Name(_) => {
            Code::StoreUnavailable
        }
    };
    Failure::new(code, Phase::Sandbox, error.to_string())
}

/// A way for what a tool hands out, and who takes it at the other end.
pub(crate) fn outward() -> (Outward, mpsc::Receiver<Piece>) {
    let (to, pieces) = mpsc::channel(STREAM_PIECES_WAITING);
    let bytes_max = STREAM_BYTES_MAX;
    (Outward { to, bytes_max }, pieces)
}

/// Blobs of a shelf and space, one after the other, each ended by an empty piece. Whoever reads them sees the end early if
/// one cannot be read to its own.
pub(crate) fn inward(
    parts: &Parts,
    shelf: Shelf,
    space: &SpaceId,
    names: &[String],
) -> mpsc::Receiver<Vec<u8>> {
    let (to, pieces) = mpsc::channel(STREAM_PIECES_WAITING);
    let (blobs, space, names) = (parts.blobs.clone(), space.clone(), names.to_vec());
    tokio::task::spawn_blocking(move || {
        for name in names {
            let sent = send(&blobs, shelf, &space, &name, &to);
            if let Err(error) = sent {
                tracing::error!(%error, "what is kept cannot be handed to a tool");
                return;
            }
        }
    });
    pieces
}

/// One blob. A reader that has gone needs no more of it.
fn send(
    blobs: &Blobs,
    shelf: Shelf,
    space: &SpaceId,
    name: &str,
    to: &mpsc::Sender<Vec<u8>>,
) -> Result<(), BlobError> {
    let mut reader = blobs.reader(shelf, space, name)?;
    while let Some(piece) = reader.piece()? {
        if to.blocking_send(piece).is_err() {
            return Ok(());
        }
    }
    let _gone = to.blocking_send(Vec::new());
    Ok(())
}

/// What a run has handed out so far, on disk and without a name.
#[derive(Debug, Default)]
pub(crate) struct Taken(BTreeMap<u8, Result<BlobWriter, BlobError>>);

/// Takes what a run hands out, for as long as it does. A run that says nothing at length costs nothing here.
pub(crate) async fn take(mut pieces: mpsc::Receiver<Piece>, blobs: Arc<Blobs>, space: SpaceId) -> Taken {
    let Some(first) = pieces.recv().await else {
        return Taken::default();
    };
    let taking = tokio::task::spawn_blocking(move || {
        let mut taken = Taken::default();
        let mut next = Some(first);
        while let Some(piece) = next {
            taken.add(&blobs, &space, &piece);
            next = pieces.blocking_recv();
        }
        taken
    });
    taking.await.unwrap_or_default()
}

impl Taken {
    /// The effect is happening: what cannot be kept is missed, and no reason to disturb it.
    fn add(&mut self, blobs: &Arc<Blobs>, space: &SpaceId, piece: &Piece) {
        if !self.0.contains_key(&piece.stream) && self.0.len() >= STREAMS_MAX {
            return;
        }
        let stream = self
            .0
            .entry(piece.stream)
            .or_insert_with(|| blobs.writer(Shelf::Artifacts, space));
        if let Ok(writer) = stream
            && let Err(error) = writer.write(&piece.bytes)
        {
            *stream = Err(error);
        }
    }

    /// Keeps what the answer names, durably, and forgets the rest. Only what the tool's whole effect is must be kept.
    pub(crate) async fn keep(
        mut self,
        parts: &Parts,
        named: &[Artifact],
    ) -> Result<Vec<KeptArtifact>, Failure> {
        let mut kept = Vec::new();
        for artifact in named.iter().take(STREAMS_MAX) {
            let stream = self.0.remove(&artifact.stream);
            match finish(parts, stream.unwrap_or(Err(BlobError::Gone)), artifact).await {
                Ok(one) => kept.push(one),
                Err(error) if artifact.must => return Err(failure_of(&error)),
                Err(error) => tracing::warn!(%error, "a long output is not kept"),
            }
        }
        // Removes files: not for this thread.
        if !self.0.is_empty() {
            drop(tokio::task::spawn_blocking(move || drop(self)));
        }
        Ok(kept)
    }
}

async fn finish(
    parts: &Parts,
    stream: Result<BlobWriter, BlobError>,
    artifact: &Artifact,
) -> Result<KeptArtifact, BlobError> {
    let (writer, identity) = (stream?, parts.identity.clone());
    let bytes = writer.bytes();
    let finishing = tokio::task::spawn_blocking(move || writer.finish(|digest| identity.keyed(digest).hex()));
    let artifact_id = finishing
        .await
        .unwrap_or_else(|error| Err(BlobError::Disk(error.to_string())))?;
    Ok(KeptArtifact {
        artifact_id,
        name: plain(&artifact.name),
        bytes,
    })
}

/// A tool's word for what it said, if it is a plain word: receipts hold nothing in clear that is not known to be harmless.
fn plain(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.len() <= NAME_BYTES_MAX && !name.is_empty() && name.bytes().all(is_plain) {
        name.to_owned()
    } else {
        "artifact".to_owned()
    }
}
