//! The blobs of one folder, in the order in which they are evicted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::MutexGuard;

use super::{BlobError, BlobKind, destroy, touch, touch_durably, unlink};

#[derive(Debug, Clone, Copy)]
pub(super) struct Listed {
    pub(super) age: u64,
    /// Length of the file.
    pub(super) bytes: u64,
}

/// What one owner has in a folder.
#[derive(Debug, Default)]
pub(super) struct Share {
    pub(super) bytes: u64,
    by_age: BTreeMap<u64, String>,
}

impl Share {
    pub(super) fn blobs(&self) -> u64 {
        self.by_age.len() as u64
    }
}

#[derive(Debug)]
pub(super) struct BlobCatalog {
    kind: BlobKind,
    folder: PathBuf,
    pub(super) by_name: HashMap<String, Listed>,
    shares: HashMap<String, Share>,
    pub(super) bytes: u64,
    /// Bytes for which room was made and whose blobs have no name yet, so that concurrent writers keep the quota together.
    pub(super) coming: u64,
    /// The names of blobs that are being written, by the number of each writer. When a blob is destroyed, the writers of its name
    /// leave: afterwards its file may be half of what a later writer creates, and only that one may list it.
    pub(super) writing: HashMap<u64, String>,
    /// Bytes of streamed blobs without a name.
    pub(super) drafted: u64,
    /// Pinned blobs, and how often each is pinned.
    pub(super) pinned: HashMap<String, usize>,
    /// Blobs of an earlier process that were not read yet: they may be incomplete.
    pub(super) unproven: HashSet<String>,
    next: u64,
}

impl BlobCatalog {
    pub(super) fn new(kind: BlobKind, folder: PathBuf) -> Self {
        Self {
            kind,
            folder,
            by_name: HashMap::new(),
            shares: HashMap::new(),
            bytes: 0,
            coming: 0,
            writing: HashMap::new(),
            drafted: 0,
            pinned: HashMap::new(),
            unproven: HashSet::new(),
            next: 0,
        }
    }

    /// Begins to write a blob; returns the writer's number.
    pub(super) fn begin(&mut self, name: &str) -> u64 {
        let writer = self.next;
        self.next += 1;
        self.writing.insert(writer, name.to_owned());
        writer
    }

    /// Adds a blob as the newest.
    pub(super) fn add(&mut self, name: &str, bytes: u64) {
        self.forget(name);
        let age = self.next;
        self.by_name.insert(name.to_owned(), Listed { age, bytes });
        let share = self.shares.entry(self.kind.owner(name).to_owned()).or_default();
        share.bytes += bytes;
        share.by_age.insert(age, name.to_owned());
        self.bytes += bytes;
        self.next += 1;
    }

    fn forget(&mut self, name: &str) {
        self.unproven.remove(name);
        if let Some(entry) = self.by_name.remove(name) {
            self.bytes -= entry.bytes;
            let owner = self.kind.owner(name);
            if let Some(share) = self.shares.get_mut(owner) {
                share.bytes -= entry.bytes;
                share.by_age.remove(&entry.age);
                if share.by_age.is_empty() {
                    self.shares.remove(owner);
                }
            }
        }
    }

    /// Makes a blob the newest, also on disk; `false` if it does not exist.
    pub(super) fn renew(&mut self, name: &str) -> bool {
        self.renew_by(touch, name)
    }

    /// [`BlobCatalog::renew`] for a receipt that is about to name the blob.
    pub(super) fn reuse(&mut self, name: &str) -> bool {
        self.renew_by(touch_durably, name)
    }

    fn renew_by(&mut self, touch: fn(&Path) -> io::Result<()>, name: &str) -> bool {
        let Some(entry) = self.by_name.get(name).copied() else {
            return false;
        };
        let is_there = touch(&self.folder.join(name)).is_ok();
        if is_there {
            self.add(name, entry.bytes);
        }
        is_there
    }

    /// Bytes that count against the quota.
    pub(super) fn counted(&self) -> u64 {
        self.bytes - self.pinned_bytes() + self.coming
    }

    pub(super) fn pinned_bytes(&self) -> u64 {
        let pinned = self.pinned.keys().filter_map(|name| self.by_name.get(name));
        pinned.map(|entry| entry.bytes).sum()
    }

    /// Destroys the oldest blob of the owner who has the most.
    pub(super) fn destroy_oldest(&mut self, most: fn(&Share) -> u64) -> Result<(), BlobError> {
        if !self.kind.is_evicted() {
            return Err(BlobError::Full);
        }
        let largest = self.shares.values().max_by_key(|share| most(share));
        let mut names = largest.into_iter().flat_map(|share| share.by_age.values());
        let oldest = names.find(|name| !self.pinned.contains_key(*name)).cloned();
        // Without an oldest blob, every blob is pinned or still being written.
        let oldest = oldest.ok_or(BlobError::Full)?;
        if self.kind.is_durable() {
            return self.destroy(&oldest);
        }
        // No action waits for a sync because of its result.
        self.forget(&oldest);
        unlink(&self.folder.join(oldest))
    }

    pub(super) fn destroy(&mut self, name: &str) -> Result<(), BlobError> {
        // Leaves the catalog first: a blob with a half-overwritten head cannot be opened.
        self.forget(name);
        self.writing.retain(|_, writing| writing != name);
        destroy(&self.folder.join(name))
    }

    /// Destroys a blob; a result without the lock, so that no action or answer waits for the sync. Only a result's name is never
    /// stored again, so the file of another kind may be a new blob once the lock is free.
    pub(super) fn destroy_one(mut known: MutexGuard<'_, Self>, name: &str) -> Result<(), BlobError> {
        if known.kind.is_durable() {
            return known.destroy(name);
        }
        known.forget(name);
        let path = known.folder.join(name);
        drop(known);
        destroy(&path)
    }
}
