//! Artifacts, found through the receipt that names them: a caller who may see the receipt may read them.

use effectd_bus::{BlobError, BlobKind, BlobReader, Blobs, Cause, Store};
use effectd_contracts::{Code, Effects, Failure, FileState, PathState, Phase, Receipt, SpaceId};
use serde::Serialize;
use serde_json::Value;

use super::{quarantine, undo};
use crate::services::files::Files;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArtifactError {
    #[error("the receipt has no such artifact")]
    Unknown,
    #[error(
        "the artifact is no longer stored: newer ones needed the room, its session was deleted, or its subject erased"
    )]
    Gone,
    #[error("the artifact is quarantined; an operator can release it with `effectd artifacts release`")]
    Quarantined,
    #[error(transparent)]
    Unreadable(Cause),
}

/// The ids of the action's artifacts: what the tool put out, and the pre-images of what it replaced.
pub fn named(receipt: &Receipt) -> Vec<&str> {
    let ids = receipt.outputs.get("artifact_ids").and_then(Value::as_array);
    ids.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The ids of what the tool put out.
pub fn put_out(receipt: &Receipt) -> Vec<&str> {
    named(receipt).into_iter().filter(|id| !is_preimage(receipt, id)).collect()
}

/// Whether an artifact is only the pre-image of a path that the action changed. Who may write a path may not always read it.
pub fn is_preimage(receipt: &Receipt, id: &str) -> bool {
    described(receipt, id).is_none() && preimage(receipt, id).is_some()
}

fn preimage<'r>(receipt: &'r Receipt, id: &str) -> Option<(&'r str, &'r FileState)> {
    let Effects::Observed(observed) = &receipt.effects else {
        return None;
    };
    observed.changes.iter().find_map(|change| match &change.before {
        PathState::File(was) if undo::blob_name(was) == id => Some((change.path.as_str(), was)),
        PathState::File(_) | PathState::Absent | PathState::Folder | PathState::Other => None,
    })
}

fn described<'r>(receipt: &'r Receipt, id: &str) -> Option<&'r Value> {
    let described = receipt.outputs.get("artifacts").and_then(Value::as_array);
    described.into_iter().flatten().find(|one| one["artifact_id"] == id)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Listed<'r> {
    pub artifact_id: &'r str,
    /// The tool's name for it; for a pre-image, its path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

pub fn listed(receipt: &Receipt) -> Vec<Listed<'_>> {
    let list = named(receipt).into_iter().map(|artifact_id| match described(receipt, artifact_id) {
        Some(one) => Listed { artifact_id, name: one["name"].as_str(), bytes: one["bytes"].as_u64() },
        None => {
            let (name, bytes) = preimage(receipt, artifact_id).map(|(path, was)| (path, was.bytes)).unzip();
            Listed { artifact_id, name, bytes }
        }
    });
    list.collect()
}

/// Opens an artifact that the receipt names. Opening and reading block.
pub fn open(
    store: &dyn Store,
    blobs: &Blobs,
    receipt: &Receipt,
    name: &str,
) -> Result<ArtifactReader, ArtifactError> {
    if !named(receipt).contains(&name) {
        return Err(ArtifactError::Unknown);
    }
    check_free(store, name)?;
    let kind = if is_preimage(receipt, name) { BlobKind::Preimages } else { BlobKind::Artifacts };
    let reader = blobs.reader(kind, &receipt.space_id, name);
    reader.map(ArtifactReader).map_err(ArtifactError::from)
}

/// Refuses a quarantined artifact, and any artifact if the quarantine cannot be read.
fn check_free(store: &dyn Store, id: &str) -> Result<(), ArtifactError> {
    match quarantine::is_quarantined(store, id) {
        Ok(false) => Ok(()),
        Ok(true) => Err(ArtifactError::Quarantined),
        Err(error) => Err(ArtifactError::Unreadable(Cause::new(error))),
    }
}

/// Refuses to send a tool an artifact that is quarantined or missing in the space.
pub(crate) fn check_for_tool(files: &Files, space: &SpaceId, id: &str) -> Result<(), Failure> {
    let refused = |code, error: &ArtifactError| Failure::new(code, Phase::Sandbox, error.to_string());
    check_free(&*files.store, id).map_err(|error| {
        let code = match error {
            ArtifactError::Quarantined => Code::SafetyQuarantined,
            ArtifactError::Unknown | ArtifactError::Gone | ArtifactError::Unreadable(_) => {
                Code::StoreUnavailable
            }
        };
        refused(code, &error)
    })?;
    if files.blobs.has(BlobKind::Artifacts, space, id) {
        return Ok(());
    }
    let why =
        "this space does not have this artifact, or no longer has it; receipts name the artifacts of a space";
    Err(Failure::new(Code::FileNotFound, Phase::Sandbox, why))
}

/// Reads an artifact in pieces.
#[derive(Debug)]
pub struct ArtifactReader(BlobReader);

impl ArtifactReader {
    /// The length of the whole artifact.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// The next piece; `None` at the end of the artifact.
    pub fn piece(&mut self) -> Result<Option<Vec<u8>>, ArtifactError> {
        Ok(self.0.piece()?)
    }
}

impl From<BlobError> for ArtifactError {
    fn from(error: BlobError) -> Self {
        match error {
            BlobError::Gone => ArtifactError::Gone,
            BlobError::Name(_) => ArtifactError::Unknown,
            BlobError::Disk(_) | BlobError::Full | BlobError::TooLarge { .. } | BlobError::Damaged => {
                ArtifactError::Unreadable(Cause::new(error))
            }
        }
    }
}
