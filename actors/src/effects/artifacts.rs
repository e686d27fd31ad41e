//! Artifacts, found through the receipt that names them: a caller who may see the receipt may read them.

use effectd_bus::{BlobError, BlobKind, BlobReader, Blobs, Cause, Store};
use effectd_contracts::{Code, Failure, Phase, Receipt, SpaceId};
use serde::Serialize;
use serde_json::Value;

use super::quarantine;
use crate::services::files::Files;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArtifactError {
    #[error("the receipt has no such artifact")]
    Unknown,
    #[error("the artifact was removed to make room for newer ones in the space's quota")]
    Gone,
    #[error("the artifact is quarantined; an operator can release it with `effectd artifacts release`")]
    Quarantined,
    #[error(transparent)]
    Unreadable(Cause),
}

/// The ids of the action's artifacts.
pub fn named(receipt: &Receipt) -> Vec<&str> {
    let ids = receipt.outputs.get("artifact_ids").and_then(Value::as_array);
    ids.into_iter().flatten().filter_map(Value::as_str).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Listed<'r> {
    pub artifact_id: &'r str,
    /// The tool's name for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

pub fn listed(receipt: &Receipt) -> Vec<Listed<'_>> {
    let described = receipt.outputs.get("artifacts").and_then(Value::as_array);
    let described = |id: &str| described.into_iter().flatten().find(|one| one["artifact_id"] == id);
    let list = named(receipt).into_iter().map(|artifact_id| Listed {
        artifact_id,
        name: described(artifact_id).and_then(|one| one["name"].as_str()),
        bytes: described(artifact_id).and_then(|one| one["bytes"].as_u64()),
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
    let reader = blobs.reader(BlobKind::Artifacts, &receipt.space_id, name);
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
