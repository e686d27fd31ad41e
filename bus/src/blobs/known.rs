//! What lies on one shelf: which blobs there are, and in which order they go.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

use super::{BlobError, destroy, touch};

#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    age: u64,
    /// How long it is, sealed.
    pub(super) bytes: u64,
}

/// What lies on the shelf of one space, in the order of storing.
#[derive(Debug)]
pub(super) struct Known {
    folder: PathBuf,
    pub(super) by_name: HashMap<String, Entry>,
    by_age: BTreeMap<u64, String>,
    pub(super) bytes: u64,
    /// Bytes that are about to have a name, and for which room was made: those who write at once keep to the quota together.
    pub(super) coming: u64,
    /// Bytes without a name, which come in pieces.
    pub(super) drafted: u64,
    /// What somebody needs, and how many do.
    pub(super) pinned: HashMap<String, usize>,
    /// What an earlier process has left under a name, and may not have written to its end.
    pub(super) unproven: HashSet<String>,
    next: u64,
}

impl Known {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            by_name: HashMap::new(),
            by_age: BTreeMap::new(),
            bytes: 0,
            coming: 0,
            drafted: 0,
            pinned: HashMap::new(),
            unproven: HashSet::new(),
            next: 0,
        }
    }

    /// Takes a blob down as the youngest.
    pub(super) fn add(&mut self, name: &str, bytes: u64) {
        self.forget(name);
        let age = self.next;
        self.by_name.insert(name.to_owned(), Entry { age, bytes });
        self.by_age.insert(age, name.to_owned());
        self.bytes += bytes;
        self.next += 1;
    }

    fn forget(&mut self, name: &str) {
        self.unproven.remove(name);
        if let Some(entry) = self.by_name.remove(name) {
            self.by_age.remove(&entry.age);
            self.bytes -= entry.bytes;
        }
    }

    /// All names, those that were stored longest ago first.
    pub(super) fn names(&self) -> Vec<String> {
        self.by_age.values().cloned().collect()
    }

    /// Makes a blob the youngest, also on disk; `false` if it is not there.
    pub(super) fn renew(&mut self, name: &str) -> bool {
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

    pub(super) fn destroy_oldest(&mut self) -> Result<(), BlobError> {
        let free = |name: &&String| !self.pinned.contains_key(*name);
        let oldest = self.by_age.values().find(free).cloned();
        // All that is there is being written or needed, and there is no room for more beside it.
        self.destroy(&oldest.ok_or(BlobError::Full)?)
    }

    pub(super) fn destroy(&mut self, name: &str) -> Result<(), BlobError> {
        // It is not known before its head goes: if that fails in the middle, it is no blob any more.
        self.forget(name);
        destroy(&self.folder.join(name))
    }
}
