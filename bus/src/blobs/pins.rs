//! Pins: blobs that must not be evicted, for example while an undo stores as much as the whole quota.

use std::sync::Arc;

use effectd_contracts::SpaceId;
use parking_lot::Mutex;

use super::{BlobCatalog, BlobError, BlobKind, Blobs, check_name, sealed_bytes};

/// Blobs that are not evicted until this is dropped.
pub struct Pins {
    blobs: Arc<Blobs>,
    known: Arc<Mutex<BlobCatalog>>,
    names: Vec<String>,
}

impl std::fmt::Debug for Pins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pins").field(&self.names.len()).finish()
    }
}

impl Blobs {
    /// Pins the blobs that exist, and makes them the newest.
    pub fn pin<'n>(
        self: &Arc<Self>,
        kind: BlobKind,
        space: &SpaceId,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<Pins, BlobError> {
        let mut pins = Pins {
            blobs: self.clone(),
            known: self.catalog(kind, &self.folder(kind, space))?,
            names: Vec::new(),
        };
        {
            let mut known = pins.known.lock();
            for name in names {
                check_name(name)?;
                let Some(bytes) = known.by_name.get(name).map(|entry| entry.bytes) else {
                    continue;
                };
                // All pinned blobs together may take one quota; a blob beyond that stays unpinned.
                let fits = known.pinned.contains_key(name)
                    || known.pinned_bytes() + bytes <= sealed_bytes(self.quota_bytes);
                if fits && known.renew(name) {
                    *known.pinned.entry(name.to_owned()).or_default() += 1;
                    pins.names.push(name.to_owned());
                }
            }
        }
        Ok(pins)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let mut known = self.known.lock();
        for name in &self.names {
            if let Some(count) = known.pinned.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    known.pinned.remove(name);
                }
            }
        }
        // Best effort: storing the next blob evicts too.
        let _ = self.blobs.keep_to_quota(&mut known);
    }
}
