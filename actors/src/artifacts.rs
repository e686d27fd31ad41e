//! What tools said at length, found again: by the receipt that names it, so that whoever may see the one may have the other.

use effectd_bus::{BlobError, Shelf};
use effectd_contracts::Receipt;
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

/// One of them, whole. It reads a file: not for a thread that belongs to others.
pub fn fetch(parts: &Parts, receipt: &Receipt, name: &str) -> Result<Vec<u8>, ArtifactError> {
    if !named(receipt).contains(&name) {
        return Err(ArtifactError::Unknown);
    }
    let content = parts.blobs.get(Shelf::Artifacts, &receipt.space_id, name);
    content.map_err(|error| match error {
        BlobError::Gone => ArtifactError::Gone,
        BlobError::Name(_) => ArtifactError::Unknown,
        BlobError::Disk(_) | BlobError::Full | BlobError::TooLarge { .. } | BlobError::Damaged => {
            ArtifactError::Unreadable(error.to_string())
        }
    })
}
