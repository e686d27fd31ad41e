//! Streams beside a call: contents that are too long for its request, and artifacts that are too long for its reply.
//!
//! Both are sent in pieces, from or to sealed blobs. An artifact gets a name only after the reply, so the artifacts of a killed
//! run or runtime have none, and are removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use effectd_bus::{BlobError, BlobKind, BlobWriter, Blobs};
use effectd_contracts::{Artifact, Code, Failure, Phase, SpaceId};
use effectd_sandbox::{Outward, Piece};
use tokio::sync::mpsc;

use crate::action::proofs::KeptArtifact;
use crate::limits::{STREAM_BYTES_MAX, STREAM_PIECES_WAITING, STREAMS_MAX};
use crate::services::signer::Identity;

/// Longest name of an artifact that a receipt repeats: a word, not a message.
const NAME_BYTES_MAX: usize = 64;

/// The failure of an action because a blob could not be stored or read.
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

/// The stream of artifacts from a tool, and its receiver.
pub(crate) fn outward() -> (Outward, mpsc::Receiver<Piece>) {
    let (to, pieces) = mpsc::channel(STREAM_PIECES_WAITING);
    let bytes_max = STREAM_BYTES_MAX;
    (Outward { to, bytes_max }, pieces)
}

/// A stream of blobs, one after the other, each ended by an empty piece. It ends early if a blob cannot be read.
pub(crate) fn inward(
    blobs: &Arc<Blobs>,
    shelf: BlobKind,
    space: &SpaceId,
    names: &[String],
) -> mpsc::Receiver<Vec<u8>> {
    let (to, pieces) = mpsc::channel(STREAM_PIECES_WAITING);
    let (blobs, space, names) = (blobs.clone(), space.clone(), names.to_vec());
    let span = tracing::Span::current();
    tokio::task::spawn_blocking(move || {
        for name in names {
            let sent = send(&blobs, shelf, &space, &name, &to);
            if let Err(error) = sent {
                tracing::error!(parent: &span, %error, "a blob could not be sent to a tool");
                return;
            }
        }
    });
    pieces
}

/// Sends one blob; stops if the reader has gone.
fn send(
    blobs: &Blobs,
    shelf: BlobKind,
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

/// The artifacts that a run has sent so far, on disk and without names.
#[derive(Debug, Default)]
pub(crate) struct Outputs(BTreeMap<u8, Result<BlobWriter, BlobError>>);

/// Collects the artifacts of a run. A run without artifacts costs nothing.
pub(crate) async fn collect(mut pieces: mpsc::Receiver<Piece>, blobs: Arc<Blobs>, space: SpaceId) -> Outputs {
    let Some(first) = pieces.recv().await else {
        return Outputs::default();
    };
    let collecting = tokio::task::spawn_blocking(move || {
        let mut outputs = Outputs::default();
        let mut next = Some(first);
        while let Some(piece) = next {
            outputs.add(&blobs, &space, &piece);
            next = pieces.blocking_recv();
        }
        outputs
    });
    collecting.await.unwrap_or_default()
}

impl Outputs {
    /// Adds a piece. If it cannot be stored, the run continues: its effect is already happening.
    fn add(&mut self, blobs: &Arc<Blobs>, space: &SpaceId, piece: &Piece) {
        if !self.0.contains_key(&piece.stream) && self.0.len() >= STREAMS_MAX {
            return;
        }
        let stream = self.0.entry(piece.stream).or_insert_with(|| blobs.writer(BlobKind::Artifacts, space));
        if let Ok(writer) = stream
            && let Err(error) = writer.write(&piece.bytes)
        {
            *stream = Err(error);
        }
    }

    /// Stores the artifacts that the reply names, and drops the others. Fails only for an artifact that must be kept.
    pub(crate) async fn keep(
        mut self,
        identity: &Arc<Identity>,
        named: &[Artifact],
    ) -> Result<Vec<KeptArtifact>, Failure> {
        let mut kept = Vec::new();
        for artifact in named.iter().take(STREAMS_MAX) {
            let stream = self.0.remove(&artifact.stream);
            match finish(identity, stream.unwrap_or(Err(BlobError::Gone)), artifact).await {
                Ok(one) => kept.push(one),
                Err(error) if artifact.must => return Err(failure_of(&error)),
                Err(error) => tracing::warn!(%error, "an artifact is not stored"),
            }
        }
        // Dropping the others removes files, which blocks.
        if !self.0.is_empty() {
            drop(tokio::task::spawn_blocking(move || drop(self)));
        }
        Ok(kept)
    }
}

async fn finish(
    identity: &Arc<Identity>,
    stream: Result<BlobWriter, BlobError>,
    artifact: &Artifact,
) -> Result<KeptArtifact, BlobError> {
    let (writer, identity) = (stream?, identity.clone());
    let bytes = writer.bytes();
    let finishing = tokio::task::spawn_blocking(move || writer.finish(|digest| identity.keyed(digest).hex()));
    let artifact_id = finishing.await.unwrap_or_else(|error| Err(BlobError::disk(error)))?;
    Ok(KeptArtifact { artifact_id, name: plain(&artifact.name), bytes })
}

/// The tool's name for an artifact, if it is a plain word: a receipt must not show what may be a secret.
fn plain(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.len() <= NAME_BYTES_MAX && !name.is_empty() && name.bytes().all(is_plain) {
        name.to_owned()
    } else {
        "artifact".to_owned()
    }
}
