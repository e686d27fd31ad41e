//! What tools said at length, found again: by the receipt that names it, so that whoever may see the one may have the other.

use effectd_bus::{BlobError, BlobReader, Blobs, Shelf, Store};
use effectd_contracts::{Code, Failure, Phase, Receipt, SpaceId};
use serde::Serialize;
use serde_json::Value;

use crate::parts::Parts;
use crate::quarantine;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArtifactError {
    /// The receipt does not name it.
    #[error("the receipt names no such artifact")]
    Unknown,
    /// It made room for newer ones.
    #[error("the artifact is not kept any more; the space's quota was needed for newer ones")]
    Gone,
    /// An operator has taken it aside.
    #[error(
        "the artifact is quarantined; an operator can hand it out again with `effectd artifacts release`"
    )]
    Quarantined,
    /// It is there, and cannot be read.
    #[error("{0}")]
    Unreadable(String),
}

/// The names of what the action said at length.
pub fn named(receipt: &Receipt) -> Vec<&str> {
    let ids = receipt.outputs.get("artifact_ids").and_then(Value::as_array);
    ids.into_iter().flatten().filter_map(Value::as_str).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Listed<'r> {
    pub artifact_id: &'r str,
    /// What it is, in the tool's word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

pub fn listed(receipt: &Receipt) -> Vec<Listed<'_>> {
    let told = receipt.outputs.get("artifacts").and_then(Value::as_array);
    let told = |id: &str| told.into_iter().flatten().find(|one| one["artifact_id"] == id);
    let list = named(receipt).into_iter().map(|artifact_id| Listed {
        artifact_id,
        name: told(artifact_id).and_then(|one| one["name"].as_str()),
        bytes: told(artifact_id).and_then(|one| one["bytes"].as_u64()),
    });
    list.collect()
}

/// One of them, to be read in pieces. Opening and reading touch a file: not for a thread that belongs to others.
pub fn open(parts: &Parts, receipt: &Receipt, name: &str) -> Result<ArtifactReader, ArtifactError> {
    open_kept(&*parts.store, &parts.blobs, receipt, name)
}

/// [`open`] where no pipeline runs.
pub fn open_kept(
    store: &dyn Store,
    blobs: &Blobs,
    receipt: &Receipt,
    name: &str,
) -> Result<ArtifactReader, ArtifactError> {
    if !named(receipt).contains(&name) {
        return Err(ArtifactError::Unknown);
    }
    check_free(store, name)?;
    let reader = blobs.reader(Shelf::Artifacts, &receipt.space_id, name);
    reader.map(ArtifactReader).map_err(ArtifactError::from)
}

/// Whether an artifact may be handed out. Where that cannot be told, it is not.
fn check_free(store: &dyn Store, id: &str) -> Result<(), ArtifactError> {
    match quarantine::is_quarantined(store, id) {
        Ok(false) => Ok(()),
        Ok(true) => Err(ArtifactError::Quarantined),
        Err(error) => Err(ArtifactError::Unreadable(error.to_string())),
    }
}

/// Whether a tool may be sent this artifact of the space.
pub(crate) fn check_for_tool(parts: &Parts, space: &SpaceId, id: &str) -> Result<(), Failure> {
    let refused = |code, error: &ArtifactError| Failure::new(code, Phase::Sandbox, error.to_string());
    check_free(&*parts.store, id).map_err(|error| {
        let code = match error {
            ArtifactError::Quarantined => Code::SafetyQuarantined,
            ArtifactError::Unknown | ArtifactError::Gone | ArtifactError::Unreadable(_) => {
                Code::StoreUnavailable
            }
        };
        refused(code, &error)
    })?;
    if parts.blobs.has(Shelf::Artifacts, space, id) {
        return Ok(());
    }
    let why = "this space has no such artifact, or not any more; receipts name those that it has";
    Err(Failure::new(Code::FileNotFound, Phase::Sandbox, why))
}

/// An artifact that is being read. However long it is, one piece of it is in memory.
#[derive(Debug)]
pub struct ArtifactReader(BlobReader);

impl ArtifactReader {
    /// How long the whole artifact is.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// The next piece; `None` when all of it was read.
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
                ArtifactError::Unreadable(error.to_string())
            }
        }
    }
}
