//! The hashes of the Merkle log: a leaf for every intent, receipt and note, and the nodes above them.
//!
//! They follow from the journal, so no action waits for them: they stay in memory until the index is flushed, and are
//! then appended to files, which remain when the journal drops old blocks. The file `level-<n>` holds the hashes of all
//! complete subtrees of `256^n` entries, 32 bytes each, so a proof reads a few hashes of each level.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use effectd_contracts::merkle::{self, Subtrees};
use effectd_contracts::{Digest, IntentEntry, LogEntry};
use parking_lot::RwLock;

use crate::error::StoreError;
use crate::files::{file_name, io_error, private, private_dir, sync_dir};
use crate::journal::record::{ClaimRecord, Logged, Record};

/// The files hold every eighth level of the tree.
const LEVEL_BITS: u32 = 8;
const HASH_BYTES: u64 = 32;
/// Entries that are copied at once: whole subtrees, so that no node is hashed twice.
const COPIED_AT_ONCE: usize = 1 << (2 * LEVEL_BITS);
/// Enough for any log.
const LEVELS: u32 = u64::BITS / LEVEL_BITS;

/// The leaf that a record of this block adds to the log, if any.
pub(crate) fn leaf_of(record: &Record, block: &[u8]) -> Option<Digest> {
    match record.logged()? {
        Logged::Intent(claim) => Some(merkle::leaf(&intent_bytes(claim))),
        Logged::Body(span) => span.of(block).map(merkle::leaf),
    }
}

pub(crate) fn intent_bytes(claim: &ClaimRecord) -> Vec<u8> {
    let entry = IntentEntry::new(claim.action_id.clone(), &claim.action_digest, claim.space.clone());
    LogEntry::Intent(entry).bytes()
}

pub(crate) struct MerkleLog {
    files: Option<Files>,
    /// The hashes of a log in memory, which the next store on the same memory finds.
    kept: Kept,
    recent: RwLock<Recent>,
}

/// The hashes of a log in memory, which outlive their blocks as files do.
pub(crate) type Kept = Arc<RwLock<Vec<Digest>>>;

/// Leaves that are not in the files yet.
#[derive(Default)]
struct Recent {
    first: u64,
    hashes: Vec<Digest>,
}

impl MerkleLog {
    /// A log in memory that continues an earlier one.
    pub(crate) fn in_memory(kept: Kept) -> Self {
        MerkleLog { files: None, kept, recent: RwLock::default() }
    }

    /// The log in a directory, which is created if it does not exist.
    pub(crate) fn open(dir: &Path) -> Result<Self, StoreError> {
        private_dir(dir)?;
        Ok(MerkleLog {
            files: Some(Files { dir: dir.to_owned(), levels: RwLock::default() }),
            kept: Kept::default(),
            recent: RwLock::default(),
        })
    }

    /// Whether the files hold a log of this size.
    pub(crate) fn holds(&self, size: u64) -> Result<bool, StoreError> {
        let Some(files) = &self.files else {
            return Ok(self.kept.write().len() as u64 >= size);
        };
        for level in 0..LEVELS {
            let hashes = size >> (level * LEVEL_BITS);
            if hashes > 0 && files.len(level)? < hashes {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Continues the log after `size` entries. Fails if the files lack hashes of these; ignores hashes of later ones.
    pub(crate) fn begin(&self, size: u64) -> Result<(), StoreError> {
        if !self.holds(size)? {
            let what = format!("the hashes of the log end before entry {size}");
            return Err(StoreError::damaged(what));
        }
        let mut recent = self.recent.write();
        *recent = match &self.files {
            Some(_) => Recent { first: size, hashes: Vec::new() },
            None => {
                let mut kept = self.kept.write();
                kept.truncate(usize::try_from(size).unwrap_or(usize::MAX));
                Recent { first: 0, hashes: kept.clone() }
            }
        };
        Ok(())
    }

    /// Adds the leaves of a durable block.
    pub(crate) fn append(&self, first: u64, leaves: &[Digest]) -> Result<(), StoreError> {
        let mut recent = self.recent.write();
        if first != recent.first + recent.hashes.len() as u64 {
            drop(recent);
            self.begin(first)?;
            recent = self.recent.write();
        }
        recent.hashes.extend_from_slice(leaves);
        if self.files.is_none() {
            self.kept.write().extend_from_slice(leaves);
        }
        Ok(())
    }

    /// Writes the hashes of the first `size` entries to the files, durably.
    pub(crate) fn flush(&self, size: u64) -> Result<(), StoreError> {
        let recent = self.recent.read();
        let first = recent.first;
        let count =
            usize::try_from(size.saturating_sub(first)).unwrap_or(usize::MAX).min(recent.hashes.len());
        let leaves = recent.hashes[..count].to_vec();
        drop(recent);
        let Some(files) = self.files.as_ref().filter(|_| !leaves.is_empty()) else {
            return Ok(());
        };
        files.append(first, &leaves)?;
        let mut recent = self.recent.write();
        if recent.first == first {
            recent.hashes.drain(..count);
            recent.first += count as u64;
        }
        Ok(())
    }

    /// Copies the first `size` entries of another log, and hashes the nodes above them.
    pub(crate) fn copy(&self, other: &MerkleLog, size: u64) -> Result<(), StoreError> {
        if let (Some(ours), Some(theirs)) = (&self.files, &other.files) {
            for first in (0..size).step_by(COPIED_AT_ONCE) {
                let count = (size - first).min(COPIED_AT_ONCE as u64);
                ours.append(first, &theirs.read(0, first, count)?)?;
            }
        }
        self.begin(size)
    }

    /// The leaves in the files from `from` on, up to the first for which `until` holds; `None` if there is none, or the files end.
    pub(crate) fn leaves_until(
        &self,
        from: u64,
        until: impl Fn(u64, &Digest) -> bool,
    ) -> Result<Option<Vec<Digest>>, StoreError> {
        let Some(files) = &self.files else {
            return Ok(None);
        };
        let (end, mut leaves) = (files.len(0)?, Vec::new());
        let mut at = from;
        while at < end {
            for leaf in files.read(0, at, (end - at).min(1 << LEVEL_BITS))? {
                if until(at, &leaf) {
                    return Ok(Some(leaves));
                }
                leaves.push(leaf);
                at += 1;
            }
        }
        Ok(until(at, &merkle::empty_root()).then_some(leaves))
    }

    /// The first entry before `size` whose hash, or that of a node above it, differs from another log. Only files are compared.
    pub(crate) fn differs(&self, other: &MerkleLog, size: u64) -> Result<Option<u64>, StoreError> {
        let (Some(ours), Some(theirs)) = (&self.files, &other.files) else {
            return Ok(None);
        };
        for level in 0..LEVELS {
            let hashes = size >> (level * LEVEL_BITS);
            for first in (0..hashes).step_by(1 << LEVEL_BITS) {
                let count = (hashes - first).min(1 << LEVEL_BITS);
                let (our, their) = (ours.read(level, first, count)?, theirs.read(level, first, count)?);
                if let Some(nth) = our.iter().zip(&their).position(|(our, their)| our != their) {
                    return Ok(Some((first + nth as u64) << (level * LEVEL_BITS)));
                }
            }
        }
        Ok(None)
    }

    pub(crate) fn hash(&self, index: u64) -> Result<Digest, StoreError> {
        self.subtree(0, index)
    }

    /// Neighbouring hashes of one level.
    fn hashes(&self, recent: &Recent, level: u32, first: u64, count: u64) -> Result<Vec<Digest>, StoreError> {
        let in_files = recent.first >> (level * LEVEL_BITS);
        let stored = in_files.saturating_sub(first).min(count);
        let mut hashes = match &self.files {
            Some(files) if stored > 0 => files.read(level, first, stored)?,
            Some(_) | None => Vec::new(),
        };
        for index in first + hashes.len() as u64..first + count {
            let hash = if level == 0 {
                let nth = index.checked_sub(recent.first).and_then(|nth| usize::try_from(nth).ok());
                nth.and_then(|nth| recent.hashes.get(nth).copied())
                    .ok_or(StoreError::NotFound { what: "the entry of the log" })?
            } else {
                let below = self.hashes(recent, level - 1, index << LEVEL_BITS, 1 << LEVEL_BITS)?;
                root_of(below)
            };
            hashes.push(hash);
        }
        Ok(hashes)
    }
}

impl Subtrees for MerkleLog {
    type Error = StoreError;

    fn subtree(&self, height: u32, index: u64) -> Result<Digest, StoreError> {
        let (level, above) = (height / LEVEL_BITS, height % LEVEL_BITS);
        let recent = self.recent.read();
        let hashes = self.hashes(&recent, level, index << above, 1 << above)?;
        Ok(root_of(hashes))
    }
}

fn root_of(mut hashes: Vec<Digest>) -> Digest {
    while hashes.len() > 1 {
        hashes = hashes
            .chunks(2)
            .map(|two| two.get(1).map_or(two[0], |right| merkle::pair(&two[0], right)))
            .collect();
    }
    hashes.first().copied().unwrap_or_else(merkle::empty_root)
}

struct Files {
    dir: PathBuf,
    levels: RwLock<Vec<Option<Arc<File>>>>,
}

impl Files {
    fn path(&self, level: u32) -> PathBuf {
        self.dir.join(format!("level-{level}"))
    }

    /// The file of a level; `None` if it does not exist and is not to be created.
    fn file(&self, level: u32, create: bool) -> Result<Option<Arc<File>>, StoreError> {
        let nth = level as usize;
        let levels = self.levels.read();
        if let Some(Some(file)) = levels.get(nth) {
            return Ok(Some(file.clone()));
        }
        drop(levels);
        let path = self.path(level);
        if !create && !path.exists() {
            return Ok(None);
        }
        let mut options = private();
        let options = options.read(true).write(true).create(create).truncate(false);
        let file = Arc::new(options.open(&path).map_err(|error| io_error(&path, error))?);
        if create {
            sync_dir(&self.dir)?;
        }
        let mut levels = self.levels.write();
        if levels.len() <= nth {
            levels.resize(nth + 1, None);
        }
        levels[nth] = Some(file.clone());
        Ok(Some(file))
    }

    fn len(&self, level: u32) -> Result<u64, StoreError> {
        let Some(file) = self.file(level, false)? else {
            return Ok(0);
        };
        let bytes = file.metadata().map_err(|error| io_error(&self.path(level), error))?.len();
        Ok(bytes / HASH_BYTES)
    }

    fn read(&self, level: u32, first: u64, count: u64) -> Result<Vec<Digest>, StoreError> {
        let missing = || StoreError::damaged(format!("{} ends too early", file_name(&self.path(level))));
        let file = self.file(level, false)?.ok_or_else(missing)?;
        let mut bytes = vec![0; usize::try_from(count * HASH_BYTES).map_err(|_| missing())?];
        match file.read_exact_at(&mut bytes, first * HASH_BYTES) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(missing()),
            other => other.map_err(|error| io_error(&self.path(level), error))?,
        }
        Ok(bytes.as_chunks::<32>().0.iter().map(|hash| Digest::from_bytes(*hash)).collect())
    }

    fn write(&self, level: u32, first: u64, hashes: &[Digest]) -> Result<(), StoreError> {
        let Some(file) = self.file(level, true)? else {
            return Ok(());
        };
        let bytes: Vec<u8> = hashes.iter().flat_map(|hash| *hash.as_bytes()).collect();
        file.write_all_at(&bytes, first * HASH_BYTES)
            .and_then(|()| file.sync_data())
            .map_err(|error| io_error(&self.path(level), error))
    }

    /// Writes leaves, and the nodes of all subtrees that they complete.
    fn append(&self, first: u64, leaves: &[Digest]) -> Result<(), StoreError> {
        self.write(0, first, leaves)?;
        let (mut from, mut to) = (first, first + leaves.len() as u64);
        for level in 1..LEVELS {
            from >>= LEVEL_BITS;
            to >>= LEVEL_BITS;
            if from == to {
                break;
            }
            let whole = (from..to)
                .map(|index| self.read(level - 1, index << LEVEL_BITS, 1 << LEVEL_BITS).map(root_of))
                .collect::<Result<Vec<_>, _>>()?;
            self.write(level, from, &whole)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use effectd_contracts::merkle::Frontier;

    fn leaf(n: u64) -> Digest {
        merkle::leaf(&n.to_be_bytes())
    }

    /// Roots by appending one after another, for comparison.
    fn roots(size: u64) -> Vec<Frontier> {
        let mut all = vec![Frontier::default()];
        for n in 0..size {
            let mut next = all[all.len() - 1].clone();
            next.push(leaf(n));
            all.push(next);
        }
        all
    }

    #[test]
    fn proofs_hold_wherever_the_hashes_are() {
        const SIZE: u64 = 70_000;
        let dir = tempfile::tempdir().unwrap();
        let log = MerkleLog::open(dir.path()).unwrap();
        let mut first = 0;
        for (blocks, flush) in [(100, true), (60_000, true), (300, false), (9_600, false)] {
            let leaves: Vec<_> = (first..first + blocks).map(leaf).collect();
            log.append(first, &leaves).unwrap();
            first += blocks;
            if flush {
                log.flush(first).unwrap();
            }
        }
        let frontiers = roots(SIZE);
        let root = frontiers[SIZE as usize].root();
        for index in [0, 255, 256, 60_099, 60_100, 65_535, 65_536, 69_999] {
            let proof = merkle::inclusion(&log, index, SIZE).unwrap();
            assert!(merkle::inclusion_holds(index, SIZE, &leaf(index), &proof, &root), "{index}");
            assert_eq!(log.hash(index), Ok(leaf(index)));
            let before = &frontiers[index as usize];
            assert_eq!(merkle::frontier(&log, index).unwrap(), *before);
            let proof = merkle::consistency(&log, index, SIZE).unwrap();
            assert!(merkle::consistency_holds((index, &before.root()), (SIZE, &root), &proof), "{index}");
        }
        assert!(log.hash(SIZE).is_err());
        // Reopened before the end of the files, as after a crash.
        let again = MerkleLog::open(dir.path()).unwrap();
        assert_eq!((again.holds(60_100), again.holds(60_101)), (Ok(true), Ok(false)));
        again.begin(60_000).unwrap();
        let rest: Vec<_> = (60_000..SIZE).map(leaf).collect();
        again.append(60_000, &rest).unwrap();
        again.flush(SIZE).unwrap();
        assert_eq!(merkle::frontier(&again, SIZE).unwrap(), frontiers[SIZE as usize]);
        std::fs::remove_file(dir.path().join("level-1")).unwrap();
        assert!(MerkleLog::open(dir.path()).unwrap().begin(SIZE).is_err());
    }
}
