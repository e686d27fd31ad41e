//! The hashes of the log: one for every intent, receipt and note, and those of whole subtrees above them.
//!
//! They follow from the journal, so that nothing is written for them while an action waits: they are held in memory until
//! the index takes up the blocks that they are of, and are put into files of their own then. There they stay when the
//! journal lets old blocks go. A file `level-<n>` holds the hashes of all complete subtrees of `256^n` entries, 32 bytes
//! each, so that a proof reads a few hashes of each level, however long the log is.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use effectd_contracts::merkle::{self, Subtrees};
use effectd_contracts::{Digest, IntentEntry, LogEntry};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::StoreError;
use crate::journal::ADVICE;
use crate::record::{ClaimRecord, Record};
use crate::vault::keyring::{failed, name, private_dir, sync_dir};

/// A file of a level holds every eighth level of the tree.
const LEVEL_BITS: u32 = 8;
const HASH_BYTES: u64 = 32;
/// Entries that are copied in one piece: whole subtrees, so that none is made twice.
const TAKEN_AT_ONCE: usize = 1 << (2 * LEVEL_BITS);
/// No log is so long that it needs more.
const LEVELS: u32 = u64::BITS / LEVEL_BITS;

/// The hash of what a record adds to the log; `None` if that is nothing. `block` holds the record's block.
pub fn leaf_of(record: &Record, block: &[u8]) -> Option<Digest> {
    let blob = match record {
        Record::Claimed(claim) => return Some(merkle::leaf(&intent_bytes(claim))),
        Record::Completed(receipt) => &receipt.body,
        Record::Noted { body, .. } => body,
        Record::Published { .. }
        | Record::Leased(_)
        | Record::Settled(_)
        | Record::Lettered(_)
        | Record::TakenOver { .. }
        | Record::Linked { .. }
        | Record::EntryPut { .. }
        | Record::EntryDeleted { .. }
        | Record::Sought { .. }
        | Record::Configured { .. }
        | Record::EpochClosed { .. }
        | Record::LetterEnded { .. }
        | Record::Expired(_)
        | Record::EventMoved { .. }
        | Record::Disturbed { .. }
        | Record::ClaimMoved { .. }
        | Record::LetterMoved { .. } => return None,
    };
    let span = blob.span();
    let range = span.at as usize..span.at as usize + span.len as usize;
    block.get(range).map(merkle::leaf)
}

pub(crate) fn intent_bytes(claim: &ClaimRecord) -> Vec<u8> {
    let entry = IntentEntry::new(claim.action_id.clone(), &claim.action_digest, claim.space.clone());
    LogEntry::Intent(entry).bytes()
}

pub(crate) struct Log {
    files: Option<Files>,
    /// What a log in memory leaves behind for the next one, in the place of files.
    kept: Kept,
    recent: RwLock<Recent>,
}

/// The hashes of a log in memory, which outlive the blocks that they are of, as files do.
pub(crate) type Kept = Arc<RwLock<Vec<Digest>>>;

/// Hashes of entries that are not in the files yet.
#[derive(Default)]
struct Recent {
    first: u64,
    hashes: Vec<Digest>,
}

impl Log {
    /// A log in memory, which goes on with what another one left behind.
    pub(crate) fn in_memory(kept: Kept) -> Self {
        Log {
            files: None,
            kept,
            recent: RwLock::default(),
        }
    }

    fn kept(&self) -> RwLockWriteGuard<'_, Vec<Digest>> {
        self.kept.write()
    }

    /// The log in a directory, which is made if it is not there.
    pub(crate) fn open(dir: &Path) -> Result<Self, StoreError> {
        private_dir(dir)?;
        Ok(Log {
            files: Some(Files {
                dir: dir.to_owned(),
                levels: RwLock::default(),
            }),
            kept: Kept::default(),
            recent: RwLock::default(),
        })
    }

    fn recent(&self) -> RwLockReadGuard<'_, Recent> {
        self.recent.read()
    }

    /// Whether the files hold a log of this size.
    pub(crate) fn holds(&self, size: u64) -> Result<bool, StoreError> {
        let Some(files) = &self.files else {
            return Ok(self.kept().len() as u64 >= size);
        };
        for level in 0..LEVELS {
            let hashes = size >> (level * LEVEL_BITS);
            if hashes > 0 && files.len(level)? < hashes {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Goes on behind so many entries, whose hashes the files hold. What they hold beyond that means nothing.
    pub(crate) fn begin(&self, size: u64) -> Result<(), StoreError> {
        if !self.holds(size)? {
            return Err(StoreError::Damaged {
                what: format!("the hashes of the log end before entry {size}"),
                advice: ADVICE,
            });
        }
        let mut recent = self.recent.write();
        *recent = match &self.files {
            Some(_) => Recent {
                first: size,
                hashes: Vec::new(),
            },
            None => {
                let mut kept = self.kept();
                kept.truncate(usize::try_from(size).unwrap_or(usize::MAX));
                Recent {
                    first: 0,
                    hashes: kept.clone(),
                }
            }
        };
        Ok(())
    }

    /// Adds the hashes of a durable block.
    pub(crate) fn show(&self, first: u64, leaves: &[Digest]) -> Result<(), StoreError> {
        let mut recent = self.recent.write();
        if first != recent.first + recent.hashes.len() as u64 {
            drop(recent);
            self.begin(first)?;
            recent = self.recent.write();
        }
        recent.hashes.extend_from_slice(leaves);
        if self.files.is_none() {
            self.kept().extend_from_slice(leaves);
        }
        Ok(())
    }

    /// Puts the hashes of the first `size` entries into the files, durably.
    pub(crate) fn settle(&self, size: u64) -> Result<(), StoreError> {
        let recent = self.recent();
        let first = recent.first;
        let count = usize::try_from(size.saturating_sub(first))
            .unwrap_or(usize::MAX)
            .min(recent.hashes.len());
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

    /// Takes the first `size` entries of another log over, and makes what stands above them anew.
    pub(crate) fn take_over(&self, other: &Log, size: u64) -> Result<(), StoreError> {
        if let (Some(ours), Some(theirs)) = (&self.files, &other.files) {
            for first in (0..size).step_by(TAKEN_AT_ONCE) {
                let count = (size - first).min(TAKEN_AT_ONCE as u64);
                ours.append(first, &theirs.read(0, first, count)?)?;
            }
        }
        self.begin(size)
    }

    /// The first entry up to `size` whose hash, or one above it, is not what another log has. Only files are compared.
    pub(crate) fn differs(&self, other: &Log, size: u64) -> Result<Option<u64>, StoreError> {
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

    /// Hashes of one level that stand beside each other.
    fn hashes(&self, recent: &Recent, level: u32, first: u64, count: u64) -> Result<Vec<Digest>, StoreError> {
        let in_files = recent.first >> (level * LEVEL_BITS);
        let stored = in_files.saturating_sub(first).min(count);
        let mut hashes = match &self.files {
            Some(files) if stored > 0 => files.read(level, first, stored)?,
            Some(_) | None => Vec::new(),
        };
        for index in first + hashes.len() as u64..first + count {
            let hash = if level == 0 {
                let nth = index
                    .checked_sub(recent.first)
                    .and_then(|nth| usize::try_from(nth).ok());
                nth.and_then(|nth| recent.hashes.get(nth).copied())
                    .ok_or(StoreError::NotFound {
                        what: "the entry of the log",
                    })?
            } else {
                let below = self.hashes(recent, level - 1, index << LEVEL_BITS, 1 << LEVEL_BITS)?;
                united(below)
            };
            hashes.push(hash);
        }
        Ok(hashes)
    }
}

impl Subtrees for Log {
    type Error = StoreError;

    fn subtree(&self, height: u32, index: u64) -> Result<Digest, StoreError> {
        let (level, above) = (height / LEVEL_BITS, height % LEVEL_BITS);
        let recent = self.recent();
        let hashes = self.hashes(&recent, level, index << above, 1 << above)?;
        Ok(united(hashes))
    }
}

fn united(mut hashes: Vec<Digest>) -> Digest {
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

    /// The file of a level; `None` if there is none and none is to be made.
    fn file(&self, level: u32, make: bool) -> Result<Option<Arc<File>>, StoreError> {
        let nth = level as usize;
        let levels = self.levels.read();
        if let Some(Some(file)) = levels.get(nth) {
            return Ok(Some(file.clone()));
        }
        drop(levels);
        let path = self.path(level);
        if !make && !path.exists() {
            return Ok(None);
        }
        let mut options = OpenOptions::new();
        let options = options
            .read(true)
            .write(true)
            .create(make)
            .truncate(false)
            .mode(0o600);
        let file = Arc::new(options.open(&path).map_err(|error| failed(&path, &error))?);
        if make {
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
        let bytes = file
            .metadata()
            .map_err(|error| failed(&self.path(level), &error))?
            .len();
        Ok(bytes / HASH_BYTES)
    }

    fn read(&self, level: u32, first: u64, count: u64) -> Result<Vec<Digest>, StoreError> {
        let missing = || StoreError::Damaged {
            what: format!("{} ends too early", name(&self.path(level))),
            advice: ADVICE,
        };
        let file = self.file(level, false)?.ok_or_else(missing)?;
        let mut bytes = vec![0; usize::try_from(count * HASH_BYTES).map_err(|_| missing())?];
        match file.read_exact_at(&mut bytes, first * HASH_BYTES) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(missing()),
            other => other.map_err(|error| failed(&self.path(level), &error))?,
        }
        Ok(bytes
            .as_chunks::<32>()
            .0
            .iter()
            .map(|hash| Digest::from_bytes(*hash))
            .collect())
    }

    fn write(&self, level: u32, first: u64, hashes: &[Digest]) -> Result<(), StoreError> {
        let Some(file) = self.file(level, true)? else {
            return Ok(());
        };
        let bytes: Vec<u8> = hashes.iter().flat_map(|hash| *hash.as_bytes()).collect();
        file.write_all_at(&bytes, first * HASH_BYTES)
            .and_then(|()| file.sync_data())
            .map_err(|error| failed(&self.path(level), &error))
    }

    /// Writes the hashes of entries, and of every subtree that they complete.
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
                .map(|index| {
                    self.read(level - 1, index << LEVEL_BITS, 1 << LEVEL_BITS)
                        .map(united)
                })
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
        let log = Log::open(dir.path()).unwrap();
        let mut first = 0;
        for (blocks, settle) in [(100, true), (60_000, true), (300, false), (9_600, false)] {
            let leaves: Vec<_> = (first..first + blocks).map(leaf).collect();
            log.show(first, &leaves).unwrap();
            first += blocks;
            if settle {
                log.settle(first).unwrap();
            }
        }
        let frontiers = roots(SIZE);
        let root = frontiers[SIZE as usize].root();
        for index in [0, 255, 256, 60_099, 60_100, 65_535, 65_536, 69_999] {
            let proof = merkle::inclusion(&log, index, SIZE).unwrap();
            assert!(
                merkle::inclusion_holds(index, SIZE, &leaf(index), &proof, &root),
                "{index}"
            );
            assert_eq!(log.hash(index), Ok(leaf(index)));
            let before = &frontiers[index as usize];
            assert_eq!(merkle::frontier(&log, index).unwrap(), *before);
            let proof = merkle::consistency(&log, index, SIZE).unwrap();
            assert!(
                merkle::consistency_holds((index, &before.root()), (SIZE, &root), &proof),
                "{index}"
            );
        }
        assert!(log.hash(SIZE).is_err());
        // Opened anew behind what was settled, with whatever a crash left beyond it.
        let again = Log::open(dir.path()).unwrap();
        assert_eq!((again.holds(60_100), again.holds(60_101)), (Ok(true), Ok(false)));
        again.begin(60_000).unwrap();
        let rest: Vec<_> = (60_000..SIZE).map(leaf).collect();
        again.show(60_000, &rest).unwrap();
        again.settle(SIZE).unwrap();
        assert_eq!(merkle::frontier(&again, SIZE).unwrap(), frontiers[SIZE as usize]);
        std::fs::remove_file(dir.path().join("level-1")).unwrap();
        assert!(Log::open(dir.path()).unwrap().begin(SIZE).is_err());
    }
}
