//! Maintenance of a store that no process uses: check, rebuild the index, migrate the journal.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use effectd_contracts::{Clock, SystemClock, merkle};

use super::journal_copy::{self, JournalWriter};
use super::recover::{journal_too_short, rebuild as rebuild_runs};
use super::{Opened, embedded};
use crate::blobs::{BlobError, Blobs, BlobsCheck, BlobsChecked};
use crate::config::{EmbeddedConfig, JournalKind};
use crate::error::{Cause, StoreError};
use crate::failpoint;
use crate::files::{io_error, private_dir, remove_dir, sync_dir};
use crate::index::runs::RunFiles;
use crate::index::{Index, Pair, RunStore, after};
use crate::journal::block::{self, BlockError};
use crate::journal::record::Record;
use crate::journal::state_dir::{lock, lock_journal, write_format};
use crate::journal::{self, Journal};
use crate::merkle_log::{Kept, MerkleLog};
use crate::state::checkpoint::{Checkpoint, index_first};
use crate::state::snapshot;
use crate::store::Store as _;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checked {
    /// Blocks of the journal with the right checksums, in order.
    pub blocks: u64,
    pub records: u64,
    pub bytes: u64,
    /// Entries of the index that agree with the journal.
    pub entries: u64,
    /// Blocks that the index does not have yet. No problem: the next opening applies them.
    pub behind: u64,
    pub problems: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rebuilt {
    pub blocks: u64,
    /// Whether the old index was undamaged and agreed with the journal.
    pub same: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migrated {
    pub blocks: u64,
    /// `false` if the journal was of the wanted kind already.
    pub changed: bool,
}

/// Reads every checksum and the chain of the journal and every chunk of the index, and compares the two. Changes nothing,
/// but finishes an interrupted truncation. Needs disk space for a second index, which it removes.
pub fn check(config: &EmbeddedConfig, clock: &dyn Clock) -> Result<Checked, StoreError> {
    let offline = Offline::open(config)?;
    let mut checked = Checked::default();
    if let Err(error) = offline.check_journal(&mut checked) {
        checked.problems.push(error.to_string());
        return Ok(checked);
    }
    match offline.check_index(clock, &mut checked) {
        Err(error @ StoreError::Damaged { .. }) => checked.problems.push(error.to_string()),
        other => other?,
    }
    Ok(checked)
}

/// Reads and authenticates every blob, and changes nothing. The journal must have been checked.
pub fn check_blobs(config: &EmbeddedConfig, blobs: &Blobs) -> Result<BlobsChecked, StoreError> {
    let offline = Offline::open(config)?;
    let failed = |error: BlobError| StoreError::Unavailable {
        reason: error.to_string(),
        source: Some(Cause::new(error)),
    };
    let mut check = BlobsCheck::begin(blobs).map_err(failed)?;
    offline.each_record(&mut |record, _| {
        if let Record::Claimed(claim) = record {
            check.space(&claim.space);
        } else if let Record::Completed(receipt) = record {
            check.space(&receipt.space_id);
        }
    })?;
    config.progress.at("reading the blobs", 0, 0);
    if check.read().map_err(failed)? {
        offline.each_record(&mut |record, block| {
            if let Record::Completed(receipt) = record {
                check.receipt(receipt.body.span().of(block).unwrap_or_default());
            }
        })?;
    }
    Ok(check.finish())
}

/// Rebuilds the index from the journal, and replaces the old one.
pub fn rebuild(config: &EmbeddedConfig, clock: &dyn Clock) -> Result<Rebuilt, StoreError> {
    let offline = Offline::open(config)?;
    let old = RunFiles::open(&config.state.join("index"), config.index_cache_bytes);
    let known = old.as_ref().ok().and_then(|old| old.applied());
    let beside = offline.new_log()?;
    // The old index may lag behind the journal: it is compared with an index of as many blocks.
    let same = match (&old, known) {
        (Ok(old), Some(applied)) => is_same(old, &*offline.index_until(clock, applied.seq, &beside)?),
        (Ok(_), None) | (Err(_), _) => false,
    };
    drop(old);
    remove_dir(&beside)?;
    // This overwrites hashes of the log with equal ones, and keeps those of dropped blocks.
    let new = offline.index_until(clock, u64::MAX, &config.state.join("log"))?;
    let blocks = new.applied().map_or(0, |applied| applied.seq);
    drop(new);
    offline.swap()?;
    Ok(Rebuilt { blocks, same })
}

/// Copies the journal into one of another kind, compares the two, and switches to the new one. After a crash either the
/// old or the new one is active; the next opening removes the other.
pub fn migrate(config: &EmbeddedConfig, to: JournalKind) -> Result<Migrated, StoreError> {
    let Offline { config, journal, _lock } = Offline::open(config)?;
    let (from, bounds) = (config.journal, journal.bounds()?);
    let blocks = bounds.map_or(0, |(first, last)| last - first + 1);
    if from == to {
        return Ok(Migrated { blocks, changed: false });
    }
    let mut writer = JournalWriter::new(&config, to)?;
    journal_copy::write(journal.clone(), &mut writer)?;
    writer.finish()?;
    failpoint::hit("migrate.written");
    let new = journal::open(&EmbeddedConfig { journal: to, ..config.clone() })?;
    let same = || -> Result<bool, StoreError> {
        let same_ends = new.bounds()? == bounds
            && new.first() == journal.first()
            && new.checkpoint()? == journal.checkpoint()?;
        let mut same = same_ends;
        for seq in bounds.filter(|_| same_ends).map_or(0..0, |(first, last)| first..last + 1) {
            config.progress.at("comparing the journals", seq + 1 - journal.first(), blocks);
            same &= new.block(seq)? == journal.block(seq)?;
        }
        Ok(same)
    };
    if !same()? {
        return Err(StoreError::Damaged {
            what: "the written journal differs from the original".to_owned(),
            advice: "the old journal is still active; try again, if necessary on another disk",
        });
    }
    drop((new, journal));
    write_format(&config.state, to)?;
    failpoint::hit("migrate.in_force");
    remove_dir(&journal::directory(from, &config.state))?;
    Ok(Migrated { blocks, changed: true })
}

struct Offline {
    config: EmbeddedConfig,
    journal: Arc<dyn Journal>,
    _lock: nix::fcntl::Flock<std::fs::File>,
}

impl Offline {
    fn open(config: &EmbeddedConfig) -> Result<Self, StoreError> {
        let path = config.state.join("journal");
        if !path.is_dir() {
            return Err(StoreError::NotFound { what: "a store here" });
        }
        let mut config = config.clone();
        let mut held = lock_journal(&mut config)?;
        private_dir(&config.state.join("index"))?;
        let mut journal = journal::open(&config)?;
        if is_truncating(&config, journal.as_ref()) {
            // An earlier process was truncating the journal. Opening the store finishes that.
            drop((journal, held));
            embedded::open(config.clone(), Arc::new(SystemClock))?.close()?;
            held = lock(&config.state)?;
            journal = journal::open(&config)?;
        }
        Ok(Offline { config, journal, _lock: held })
    }

    fn new_dir(&self) -> PathBuf {
        self.config.state.join("index.new")
    }

    /// Creates a second log with the first one's hashes of dropped blocks. They cannot be rebuilt, but their root must be the
    /// one in the checkpoint.
    fn new_log(&self) -> Result<PathBuf, StoreError> {
        let path = self.config.state.join("log.new");
        remove_dir(&path)?;
        let Some(checkpoint) = Checkpoint::of(self.journal.as_ref())? else {
            return Ok(path);
        };
        let tree = snapshot::log(&checkpoint.snapshot).map_err(|error| Checkpoint::damaged(error.0))?;
        let log = MerkleLog::open(&path)?;
        log.copy(&MerkleLog::open(&self.config.state.join("log"))?, tree.size())?;
        if merkle::frontier(&log, tree.size())? != tree {
            let what = format!("the hashes of the log before entry {} do not match its entries", tree.size());
            return Err(StoreError::damaged(what));
        }
        Ok(path)
    }

    fn check_journal(&self, checked: &mut Checked) -> Result<(), StoreError> {
        let report = self.report()?;
        journal::check(self.journal.as_ref(), &mut |header, bytes| {
            report("checking the journal", header.seq);
            checked.blocks += 1;
            checked.records += u64::from(header.records);
            checked.bytes += bytes.len() as u64;
        })
    }

    /// Reports the block that has been reached.
    fn report(&self) -> Result<impl Fn(&'static str, u64), StoreError> {
        let (first, last) = self.journal.bounds()?.unwrap_or_default();
        let (progress, total) = (self.config.progress.clone(), last + 1 - first);
        Ok(move |what, seq: u64| progress.at(what, (seq + 1).saturating_sub(first), total))
    }

    /// Calls `each` for every record of the journal, with the bytes of its block.
    fn each_record(&self, each: &mut dyn FnMut(&Record, &[u8])) -> Result<(), StoreError> {
        let report = self.report()?;
        self.journal.scan(0, &mut |seq, bytes| {
            report("finding blobs in the journal", seq);
            for record in block::records(bytes) {
                let (_, record) = record.map_err(|error| BlockError::from(error).at(seq))?;
                each(&record, bytes);
            }
            Ok(())
        })
    }

    fn check_index(&self, clock: &dyn Clock, checked: &mut Checked) -> Result<(), StoreError> {
        let old = RunFiles::open(&self.config.state.join("index"), self.config.index_cache_bytes)?;
        let last = self.journal.bounds()?.map_or(0, |(_, last)| last);
        let Some(applied) = old.applied() else {
            checked.behind = last;
            return Ok(());
        };
        old.verify()?;
        checked.behind = last.saturating_sub(applied.seq);
        if applied.seq > last {
            return Err(journal_too_short(last, applied.seq));
        }
        let tree = snapshot::log(&applied.snapshot).map_err(|error| StoreError::index_damaged(error.0))?;
        let beside = self.new_log()?;
        let new = self.index_until(clock, applied.seq, &beside)?;
        self.config.progress.at("comparing the index", 0, 0);
        checked.entries = same_entries(&old, &*new)?;
        let log = MerkleLog::open(&self.config.state.join("log"))?;
        if let Some(index) = log.differs(&MerkleLog::open(&beside)?, tree.size())? {
            let what = format!("the hash of entry {index} of the log, or one above it");
            return Err(StoreError::index_damaged(&what));
        }
        remove_dir(&beside)?;
        let same = new.applied().as_deref() == Some(applied.as_ref());
        drop(new);
        remove_dir(&self.new_dir())?;
        if same {
            Ok(())
        } else {
            Err(StoreError::index_damaged("a working state that differs from the journal"))
        }
    }

    /// Builds a new index of the blocks up to `last`; their hashes are written to the Merkle log in `log`.
    fn index_until(&self, clock: &dyn Clock, last: u64, log: &Path) -> Result<Arc<RunFiles>, StoreError> {
        let dir = self.new_dir();
        remove_dir(&dir)?;
        private_dir(&dir)?;
        let runs = Arc::new(RunFiles::open(&dir, self.config.index_cache_bytes)?);
        let opened = Opened {
            journal: self.journal.clone(),
            runs: Some(runs.clone()),
            log: MerkleLog::open(log)?,
            memtable_entries: self.config.index_memtable_entries,
            progress: self.config.progress.clone(),
        };
        rebuild_runs(opened, last, clock)?;
        Ok(runs)
    }

    /// Replaces the old index with the new one. After a crash in between, the next start rebuilds the index.
    fn swap(&self) -> Result<(), StoreError> {
        let (old, new) = (self.config.state.join("index"), self.new_dir());
        remove_dir(&old)?;
        std::fs::rename(&new, &old).map_err(|error| io_error(&new, error))?;
        sync_dir(&self.config.state)
    }
}

/// Whether the index has the mark of a truncation that the journal has not finished.
fn is_truncating(config: &EmbeddedConfig, journal: &dyn Journal) -> bool {
    let runs = RunFiles::open(&config.state.join("index"), config.index_cache_bytes);
    let log = MerkleLog::in_memory(Kept::default());
    let first =
        runs.and_then(|runs| index_first(Index::new(Some(Arc::new(runs)), log, usize::MAX).view(None)));
    first.is_ok_and(|first| first > journal.first())
}

/// Whether two indexes have the same block, state and entries.
fn is_same(old: &dyn RunStore, new: &dyn RunStore) -> bool {
    old.applied() == new.applied() && same_entries(old, new).is_ok()
}

/// Compares two indexes; returns the number of their entries.
fn same_entries(old: &dyn RunStore, new: &dyn RunStore) -> Result<u64, StoreError> {
    let end = &[0xff];
    let (mut from, mut count) = (Vec::new(), 0);
    loop {
        let (theirs, ours) = (live_from(old, &from, end)?, live_from(new, &from, end)?);
        match (theirs, ours) {
            (None, None) => return Ok(count),
            (Some(theirs), Some(ours)) if theirs == ours => {
                count += 1;
                from = after(theirs.0);
            }
            (None | Some(_), None | Some(_)) => {
                return Err(StoreError::index_damaged("an entry that differs from the journal"));
            }
        }
    }
}

/// The first key from `from` on that is not deleted, and its value.
fn live_from(index: &dyn RunStore, from: &[u8], end: &[u8]) -> Result<Option<Pair>, StoreError> {
    let mut from = from.to_vec();
    while let Some(key) = index.next(&from, end)? {
        if let Some(value) = index.get(&key)? {
            return Ok(Some((key, value)));
        }
        from = after(key);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::index::Applied;
    use crate::index::memtable::Memtable;

    #[test]
    fn indexes_that_differ_in_one_entry_are_not_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let index = |name: &str, value: u8| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            let index = RunFiles::open(&path, 1 << 20).unwrap();
            let mut memtable = Memtable::default();
            (0..100_u8).for_each(|n| memtable.put(vec![n], vec![if n == 50 { value } else { 0 }]));
            let applied = Applied { seq: 1, checksum: 1, snapshot: Vec::new() };
            index.write(&memtable, &applied).unwrap();
            index
        };
        let (one, two, three) = (index("1", 1), index("2", 1), index("3", 2));
        assert_eq!(same_entries(&one, &two), Ok(100));
        assert!(same_entries(&one, &three).is_err());
    }
}
