//! What must not go while somebody needs it: an undo keeps what it replaces, and that may be as much as the whole quota.

use std::sync::Arc;

use effectd_contracts::SpaceId;
use parking_lot::Mutex;

use super::{BlobError, Blobs, Known, Shelf, check_name, sealed_bytes};

/// Blobs that stay where they are until this is dropped.
pub struct Pins {
    blobs: Arc<Blobs>,
    known: Arc<Mutex<Known>>,
    names: Vec<String>,
}

impl std::fmt::Debug for Pins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pins").field(&self.names.len()).finish()
    }
}

impl Blobs {
    /// Pins those of the blobs that are there. They count as stored now, so that a restart does not find them the oldest.
    pub fn pin<'n>(
        self: &Arc<Self>,
        shelf: Shelf,
        space: &SpaceId,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<Pins, BlobError> {
        let mut pins = Pins {
            blobs: self.clone(),
            known: self.shelf(&self.folder(shelf, space))?,
            names: Vec::new(),
        };
        {
            let mut known = pins.known.lock();
            for name in names {
                check_name(name)?;
                let Some(bytes) = known.by_name.get(name).map(|entry| entry.bytes) else {
                    continue;
                };
                // What all together pin is bounded, too: whoever comes late takes its chance, as if nothing could be pinned.
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
        // Only by what is too much now, not for something that comes. Best effort: the next blob makes room, too.
        let _ = self.blobs.keep_to_quota(&mut known);
    }
}
