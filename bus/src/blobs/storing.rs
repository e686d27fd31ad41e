//! A blob between being written and being on disk.

use std::sync::{Arc, Mutex};

use super::known::{Filled, Known};
use super::{BlobError, lock};

/// A blob that is being stored, and for which room was made. Dropped before it is finished, it is given up.
#[derive(Debug)]
#[must_use = "what is not finished is given up"]
pub struct Storing {
    pub(super) shelf: Arc<Mutex<Known>>,
    pub(super) name: String,
    /// What it takes of the quota until it is there.
    pub(super) bytes: u64,
    /// The slot that it was written to; none if it is there already.
    pub(super) filled: Option<Filled>,
}

impl Storing {
    /// There is nothing left to do.
    pub(super) fn done(shelf: Arc<Mutex<Known>>) -> Self {
        Self {
            shelf,
            name: String::new(),
            bytes: 0,
            filled: None,
        }
    }

    /// Whether it is on disk already, so that [`Storing::finish`] does not wait for it: what others have waited for stood for this, too.
    pub fn is_settled(&self) -> bool {
        self.filled.as_ref().is_none_or(Filled::is_settled)
    }

    /// Waits for the disk; the blob is there, and durable, when this returns.
    pub fn finish(mut self) -> Result<(), BlobError> {
        let Some(filled) = self.filled.take() else {
            return Ok(());
        };
        let slot = filled.sync(&self.shelf, &self.name)?;
        self.add(|known, name, bytes| known.add_slot(name, bytes, slot));
        Ok(())
    }

    /// It has its place now, and takes of the quota by its name.
    pub(super) fn add(&mut self, add: impl FnOnce(&mut Known, &str, u64)) {
        let mut known = lock(&self.shelf);
        let bytes = std::mem::take(&mut self.bytes);
        known.coming -= bytes;
        add(&mut known, &self.name, bytes);
    }
}

impl Drop for Storing {
    fn drop(&mut self) {
        if let Some(filled) = self.filled.take() {
            filled.give_up(&self.shelf, &self.name);
        }
        if self.bytes > 0 {
            lock(&self.shelf).coming -= self.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::sealed::sealed_bytes;
    use super::super::{Blobs, Shelf};
    use super::*;

    const NAME: &str = "00000000000000000000000000000000000000000000000000000000000000aa";
    const OTHER: &str = "00000000000000000000000000000000000000000000000000000000000000bb";
    const THIRD: &str = "00000000000000000000000000000000000000000000000000000000000000cc";
    const SHELF: Shelf = Shelf::Preimages;

    #[test]
    fn what_is_begun_is_there_when_it_is_finished_and_not_before() {
        let place = tempfile::tempdir().unwrap();
        let (blobs, space) = (open(&place, 1_000), "shared:household".parse().unwrap());
        let storing = blobs.begin(SHELF, &space, NAME, b"hello").unwrap();
        assert!(!blobs.has(SHELF, &space, NAME));
        assert_eq!(blobs.get(SHELF, &space, NAME), Err(BlobError::Gone));
        storing.finish().unwrap();
        assert_eq!(blobs.get(SHELF, &space, NAME).unwrap(), b"hello");
        // What is there already is only named again.
        blobs
            .begin(SHELF, &space, NAME, b"hello")
            .unwrap()
            .finish()
            .unwrap();
        assert_eq!(blobs.bytes(SHELF, &space).unwrap(), sealed_bytes(5));
        assert_eq!(open(&place, 1_000).get(SHELF, &space, NAME).unwrap(), b"hello");
    }

    #[test]
    fn what_is_given_up_leaves_neither_bytes_nor_a_debt_to_the_quota() {
        let place = tempfile::tempdir().unwrap();
        let (blobs, space) = (open(&place, 1_000), "shared:household".parse().unwrap());
        blobs.put(SHELF, &space, OTHER, &[2; 400]).unwrap();
        for _ in 0..100 {
            drop(blobs.begin(SHELF, &space, NAME, &[1; 400]).unwrap());
        }
        assert_eq!(blobs.get(SHELF, &space, OTHER).unwrap(), [2; 400]);
        assert_eq!(blobs.bytes(SHELF, &space).unwrap(), sealed_bytes(400));
        let again = open(&place, 1_000);
        assert_eq!(again.get(SHELF, &space, NAME), Err(BlobError::Gone));
        assert_eq!(again.bytes(SHELF, &space).unwrap(), sealed_bytes(400));
    }

    #[test]
    fn one_sync_stands_for_all_that_was_written_before_it_began() {
        let place = tempfile::tempdir().unwrap();
        let (blobs, space) = (open(&place, 100_000), "shared:household".parse().unwrap());
        let begin = |name: &str| blobs.begin(SHELF, &space, name, b"content").unwrap();
        let (first, second) = (begin(NAME), begin(OTHER));
        assert!(!first.is_settled() && !second.is_settled());
        first.finish().unwrap();
        let later = begin(THIRD);
        assert!(second.is_settled() && !later.is_settled());
        assert!(!blobs.has(SHELF, &space, OTHER), "nobody has waited for it yet");
        second.finish().unwrap();
        assert!(!later.is_settled(), "what is on disk already takes no other sync");
        drop(later);
        assert!([NAME, OTHER].iter().all(|name| blobs.has(SHELF, &space, name)));
        assert!(!blobs.has(SHELF, &space, THIRD));
        assert!(begin(NAME).is_settled());
    }

    #[test]
    fn room_is_made_for_what_is_on_its_way() {
        let place = tempfile::tempdir().unwrap();
        let (blobs, space) = (open(&place, 1_000), "shared:household".parse().unwrap());
        let storing = blobs.begin(SHELF, &space, NAME, &[1; 900]).unwrap();
        // All that there is room for is on its way.
        let refused = blobs.begin(SHELF, &space, OTHER, &[2; 900]).map(drop);
        assert_eq!(refused, Err(BlobError::Full));
        storing.finish().unwrap();
        blobs.put(SHELF, &space, OTHER, &[2; 900]).unwrap();
        assert!(!blobs.has(SHELF, &space, NAME));
    }

    fn open(place: &tempfile::TempDir, quota: u64) -> Blobs {
        Blobs::new(place.path().join("blobs"), &[7; 32].into(), quota)
    }
}
