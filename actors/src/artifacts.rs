//! What tools said at length, found again: by the receipt that names it, so that whoever may see the one may have the other.

use effectd_bus::{BlobError, BlobReader, Shelf};
use effectd_contracts::Receipt;
use serde::Serialize;
use serde_json::Value;

use crate::parts::Parts;

/// Why an artifact is not given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArtifactError {
    /// The receipt does not name it.
    #[error("the receipt names no such artifact")]
    Unknown,
    /// It made room for newer ones.
    #[error("the artifact is not kept any more; the space's quota was needed for newer ones")]
    Gone,
    /// It is there, and cannot be read.
    #[error("{0}")]
    Unreadable(String),
}

/// The names of what the action said at length.
pub fn named(receipt: &Receipt) -> Vec<&str> {
    let ids = receipt.outputs.get("artifact_ids").and_then(Value::as_array);
    ids.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// What a receipt tells about an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Listed<'r> {
    /// Its id.
    pub artifact_id: &'r str,
    /// What it is, in the tool's word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'r str>,
    /// How long it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// What the receipt tells about each of them.
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
    if !named(receipt).contains(&name) {
        return Err(ArtifactError::Unknown);
    }
    let reader = parts.blobs.reader(Shelf::Artifacts, &receipt.space_id, name);
    reader.map(ArtifactReader).map_err(ArtifactError::from)
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
