//! Letting go of what is kept no longer: in the store, and with the receipts what lies beside it.

use effectd_bus::{Retained, StoreError, Turn};

use crate::parts::Parts;

/// One turn, of bounded work. Blocks.
pub fn turn(parts: &Parts, turn: Turn) -> Result<Retained, StoreError> {
    let told = parts.store.retain(&parts.settings.retention, turn)?;
    if let (Turn::LetGo, Some(since)) = (turn, told.since) {
        // Blobs are touched whenever a receipt names them, so those that nobody named since then are nobody's.
        match parts.blobs.expire(since) {
            Ok(gone) => tracing::debug!(gone, "blobs of receipts that are kept no longer"),
            Err(error) => tracing::warn!(%error, "blobs of old receipts could not be removed"),
        }
    }
    Ok(told)
}
