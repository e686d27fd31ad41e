//! Looking after a store that nobody has open: checking it, making its index anew, and saving what can be read of a
//! damaged one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use effectd_contracts::{Clock, SystemClock, merkle};

use super::forward::{self, JournalWriter};
use super::index::FileIndex;
use super::{EmbeddedConfig, JournalKind, lock, prepared, remove, write_format};
use crate::blobs::{BlobError, Blobs, BlobsCheck, BlobsChecked};
use crate::block;
use crate::codec::Span;
use crate::engine::recover::index_first;
use crate::engine::{Medium, Opened, rebuilt};
use crate::error::StoreError;
use crate::failpoint;
use crate::fold::snapshot;
use crate::ground::Ground;
use crate::journal::{Each, Journal};
use crate::log::{Kept, Log};
use crate::record::Record;
use crate::store::Store as _;
use crate::table::{Base, Pair, Table};
use crate::vault::Vault;
use crate::vault::keyring::{failed, private_dir, sync_dir};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checked {
    /// Blocks of the journal, each of which has the right checksums and follows the one before.
    pub blocks: u64,
    pub records: u64,
    pub bytes: u64,
    /// Entries of the index that are what the journal says.
    pub entries: u64,
    /// Blocks that the index does not hold yet. Not a fault: they are taken up when the store is next opened.
    pub behind: u64,
    pub problems: Vec<String>,
}

/// What making the index anew gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rebuilt {
    pub blocks: u64,
    /// Whether the old index was whole and said the same.
    pub same: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migrated {
    pub blocks: u64,
    /// Whether anything was to be done.
    pub changed: bool,
}

/// Reads everything and changes nothing: every checksum and the chain of the journal, every chunk of the index, and that
/// the index says what follows from the journal. Needs room on disk for a second index, which is removed again.
pub fn check(config: &EmbeddedConfig, clock: &dyn Clock) -> Result<Checked, StoreError> {
    let rescue = Rescue::open(config)?;
    let mut checked = Checked::default();
    if let Err(error) = rescue.check_journal(&mut checked) {
        checked.problems.push(error.to_string());
        return Ok(checked);
    }
    match rescue.check_index(clock, &mut checked) {
        Err(error @ StoreError::Damaged { .. }) => checked.problems.push(error.to_string()),
        other => other?,
    }
    Ok(checked)
}

/// Reads and authenticates every blob, and changes nothing. The journal must have been checked.
pub fn check_blobs(config: &EmbeddedConfig, blobs: &Blobs) -> Result<BlobsChecked, StoreError> {
    let rescue = Rescue::open(config)?;
    let failed = |error: BlobError| StoreError::Unavailable {
        reason: error.to_string(),
    };
    let mut check = BlobsCheck::begin(blobs).map_err(failed)?;
    rescue.each_record(&mut |record, _| {
        if let Record::Claimed(claim) = record {
            check.space(&claim.space);
        } else if let Record::Completed(receipt) = record {
            check.space(&receipt.space_id);
        }
    })?;
    if check.read().map_err(failed)? {
        rescue.each_record(&mut |record, block| {
            if let Record::Completed(receipt) = record {
                let Span { at, len } = receipt.body.span();
                let body = block.get(at as usize..at as usize + len as usize);
                check.receipt(body.unwrap_or_default());
            }
        })?;
    }
    Ok(check.finish())
}

/// Makes the index anew from the journal, and puts it in the place of the old one.
pub fn rebuild(config: &EmbeddedConfig, clock: &dyn Clock) -> Result<Rebuilt, StoreError> {
    let rescue = Rescue::open(config)?;
    let old = FileIndex::open_dir(&config.state.join("index"), config.index_cache_bytes);
    let known = old.as_ref().ok().and_then(|old| old.vouched());
    let beside = rescue.new_log()?;
    let new = rescue.index_until(clock, u64::MAX, &beside)?;
    let blocks = new.vouched().map_or(0, |vouch| vouch.checkpoint.seq);
    // The old one may lag behind; what it has must be the same.
    let same = match (&old, known) {
        (Ok(old), Some(vouch)) if vouch.checkpoint.seq == blocks => same_entries(old, new.as_ref()).is_ok(),
        (Ok(old), Some(vouch)) => {
            let then = rescue.index_until(clock, vouch.checkpoint.seq, &beside)?;
            same_entries(old, then.as_ref()).is_ok()
        }
        (Ok(_), None) | (Err(_), _) => false,
    };
    drop((old, new));
    remove(&beside)?;
    // Comparing may have made an index of fewer blocks in the place of the new one. The hashes of the log are written over
    // themselves; those of blocks that the journal has let go stay as they are.
    rescue.index_until(clock, u64::MAX, &config.state.join("log"))?;
    rescue.swap()?;
    Ok(Rebuilt { blocks, same })
}

/// Writes the journal forward into one of another kind beside it, compares the two, and puts the new one in its place. A crash
/// leaves the old one or the new one in force; what else it leaves is removed by whoever opens the store next.
pub fn migrate(config: &EmbeddedConfig, to: JournalKind) -> Result<Migrated, StoreError> {
    let Rescue {
        config,
        journal,
        _lock,
    } = Rescue::open(config)?;
    let (from, bounds) = (config.journal, journal.bounds()?);
    let blocks = bounds.map_or(0, |(first, last)| last - first + 1);
    if from == to {
        return Ok(Migrated {
            blocks,
            changed: false,
        });
    }
    let mut writer = JournalWriter::new(&config, to)?;
    forward::write(journal.clone(), &mut writer)?;
    writer.finish()?;
    failpoint::hit("migrate.written");
    let new = to.open(&config)?;
    let same = || -> Result<bool, StoreError> {
        let outside =
            new.bounds()? == bounds && new.first() == journal.first() && new.ground()? == journal.ground()?;
        let mut same = outside;
        for seq in bounds
            .filter(|_| outside)
            .map_or(0..0, |(first, last)| first..last + 1)
        {
            same &= new.block(seq)? == journal.block(seq)?;
        }
        Ok(same)
    };
    if !same()? {
        let what = "the journal that was written is not the one that was read".to_owned();
        let advice = "The old one is still in force. Try again, on another disk if need be.";
        return Err(StoreError::Damaged { what, advice });
    }
    drop((new, journal));
    write_format(&config.state, to)?;
    failpoint::hit("migrate.in_force");
    remove(&from.directory(&config.state))?;
    Ok(Migrated {
        blocks,
        changed: true,
    })
}

struct Rescue {
    config: EmbeddedConfig,
    journal: Arc<dyn Journal>,
    _lock: nix::fcntl::Flock<std::fs::File>,
}

impl Rescue {
    fn open(config: &EmbeddedConfig) -> Result<Self, StoreError> {
        let path = config.state.join("journal");
        if !path.is_dir() {
            return Err(StoreError::NotFound { what: "a store here" });
        }
        let mut config = config.clone();
        let mut held = prepared(&mut config)?;
        private_dir(&config.state.join("index"))?;
        let mut journal = config.journal.open(&config)?;
        if is_cut_off(&config, journal.as_ref()) {
            // Old blocks were being let go when the process ended. Opening the store finishes that, as the next start would.
            drop((journal, held));
            super::open(config.clone(), Arc::new(SystemClock))?.close()?;
            held = lock(&config.state)?;
            journal = config.journal.open(&config)?;
        }
        Ok(Rescue {
            config,
            journal,
            _lock: held,
        })
    }

    fn new_dir(&self) -> PathBuf {
        self.config.state.join("index.new")
    }

    /// A second log beside the first, with what it has of blocks that were let go: that cannot be made anew, but it must
    /// lead to the tree that the journal stands on.
    fn new_log(&self) -> Result<PathBuf, StoreError> {
        let path = self.config.state.join("log.new");
        remove(&path)?;
        let Some(ground) = Ground::of(self.journal.as_ref())? else {
            return Ok(path);
        };
        let tree = snapshot::log(&ground.snapshot).map_err(super::chunk::malformed)?;
        let log = Log::open(&path)?;
        log.take_over(&Log::open(&self.config.state.join("log"))?, tree.size())?;
        if merkle::frontier(&log, tree.size())? != tree {
            let what = format!(
                "the hashes of the log before entry {} are not its own",
                tree.size()
            );
            let advice = crate::journal::ADVICE;
            return Err(StoreError::Damaged { what, advice });
        }
        Ok(path)
    }

    fn check_journal(&self, checked: &mut Checked) -> Result<(), StoreError> {
        let mut before = None;
        self.journal.scan(0, &mut |seq, bytes| {
            let header = block::check(bytes).map_err(|error| crate::engine::damaged(seq, &error))?;
            if header.seq != seq || before.is_some_and(|before| before != header.previous) {
                let what = block::BlockError::Damaged("a block that does not follow the one before it");
                return Err(crate::engine::damaged(seq, &what));
            }
            for record in block::records(bytes) {
                record.map_err(|error| crate::engine::damaged(seq, &error.into()))?;
            }
            before = Some(header.checksum);
            checked.blocks += 1;
            checked.records += u64::from(header.records);
            checked.bytes += bytes.len() as u64;
            Ok(())
        })
    }

    /// Goes through the records of the journal, each with the bytes of its block.
    fn each_record(&self, each: &mut dyn FnMut(&Record, &[u8])) -> Result<(), StoreError> {
        self.journal.scan(0, &mut |seq, bytes| {
            for record in block::records(bytes) {
                let (_, record) = record.map_err(|error| crate::engine::damaged(seq, &error.into()))?;
                each(&record, bytes);
            }
            Ok(())
        })
    }

    fn check_index(&self, clock: &dyn Clock, checked: &mut Checked) -> Result<(), StoreError> {
        let old = FileIndex::open_dir(&self.config.state.join("index"), self.config.index_cache_bytes)?;
        let last = self.journal.bounds()?.map_or(0, |(_, last)| last);
        let Some(vouch) = old.vouched() else {
            checked.behind = last;
            return Ok(());
        };
        old.verify()?;
        checked.behind = last.saturating_sub(vouch.checkpoint.seq);
        if vouch.checkpoint.seq > last {
            let what = format!(
                "the journal ends with block {last}, but block {} had been written",
                vouch.checkpoint.seq
            );
            let advice = crate::journal::ADVICE;
            return Err(StoreError::Damaged { what, advice });
        }
        let beside = self.new_log()?;
        let new = self.index_until(clock, vouch.checkpoint.seq, &beside)?;
        checked.entries = same_entries(&old, new.as_ref())?;
        let tree = snapshot::log(&vouch.snapshot).map_err(super::chunk::malformed)?;
        let log = Log::open(&self.config.state.join("log"))?;
        if let Some(index) = log.differs(&Log::open(&beside)?, tree.size())? {
            return Err(super::damaged(&format!(
                "the hash of entry {index} of the log, or one above it"
            )));
        }
        remove(&beside)?;
        let same = new.vouched().as_deref() == Some(vouch.as_ref());
        drop(new);
        remove(&self.new_dir())?;
        if same {
            Ok(())
        } else {
            Err(super::damaged(
                "a working state that is not what the journal says",
            ))
        }
    }

    /// A new index, made from the journal up to a block; the hashes of the log go there.
    fn index_until(&self, clock: &dyn Clock, last: u64, log: &Path) -> Result<Arc<dyn Base>, StoreError> {
        let dir = self.new_dir();
        remove(&dir)?;
        private_dir(&dir)?;
        let index = FileIndex::open_dir(&dir, self.config.index_cache_bytes)?;
        let index: Arc<dyn Base> = Arc::new(index);
        let medium = Anew {
            log: log.to_owned(),
            journal: Arc::new(Until {
                inner: self.journal.clone(),
                last,
            }),
            index: index.clone(),
            gather_entries: self.config.index_gather_entries,
        };
        // Keys are not touched: what is sealed is not opened for an index.
        rebuilt(&medium, clock, &Vault::in_memory())?;
        Ok(index)
    }

    /// Puts the new index in the place of the old. Cut off in between, there is none, and the next start makes one.
    fn swap(&self) -> Result<(), StoreError> {
        let (old, new) = (self.config.state.join("index"), self.new_dir());
        remove(&old)?;
        std::fs::rename(&new, &old).map_err(|error| failed(&new, &error))?;
        sync_dir(&self.config.state)
    }
}

/// Whether the index was told to let go of blocks that are still there.
fn is_cut_off(config: &EmbeddedConfig, journal: &dyn Journal) -> bool {
    let index = FileIndex::open_dir(&config.state.join("index"), config.index_cache_bytes);
    let table =
        index.map(|index| Table::new(Some(Arc::new(index)), Log::in_memory(Kept::default()), usize::MAX));
    table
        .and_then(|table| index_first(&table))
        .is_ok_and(|first| first > journal.first())
}

/// Whether two indexes say the same; how many entries they have.
fn same_entries(old: &dyn Base, new: &dyn Base) -> Result<u64, StoreError> {
    let differs = || super::damaged("an entry that is not what the journal says");
    let end = &[0xff];
    let (mut from, mut count) = (Vec::new(), 0);
    loop {
        let (theirs, ours) = (live_from(old, &from, end)?, live_from(new, &from, end)?);
        match (theirs, ours) {
            (None, None) => return Ok(count),
            (Some(theirs), Some(ours)) if theirs == ours => {
                count += 1;
                from = theirs.0;
                from.push(0);
            }
            (None | Some(_), None | Some(_)) => return Err(differs()),
        }
    }
}

/// The first key from `from` on that is not deleted, and its value.
fn live_from(index: &dyn Base, from: &[u8], end: &[u8]) -> Result<Option<Pair>, StoreError> {
    let mut from = from.to_vec();
    while let Some(key) = index.next(&from, end)? {
        if let Some(value) = index.get(&key)? {
            return Ok(Some((key, value)));
        }
        from = key;
        from.push(0);
    }
    Ok(None)
}

/// A journal and a new index beside it.
struct Anew {
    journal: Arc<dyn Journal>,
    log: PathBuf,
    index: Arc<dyn Base>,
    gather_entries: usize,
}

impl Medium for Anew {
    fn open(&self) -> Result<Opened, StoreError> {
        Ok(Opened {
            journal: self.journal.clone(),
            base: Some(self.index.clone()),
            log: Log::open(&self.log)?,
            gather_entries: self.gather_entries,
        })
    }

    fn refusal(&self) -> Option<StoreError> {
        None
    }

    fn letter_files(&self) -> Option<PathBuf> {
        None
    }

    fn release(&self) {}
}

fn read_only() -> StoreError {
    StoreError::Invalid("nothing is written while a store is checked".into())
}

struct Until {
    inner: Arc<dyn Journal>,
    last: u64,
}

impl Journal for Until {
    fn append(&self, _: u64, _: &[u8]) -> Result<(), StoreError> {
        Err(read_only())
    }

    fn bounds(&self) -> Result<Option<(u64, u64)>, StoreError> {
        let bounds = self.inner.bounds()?;
        let bounds = bounds.map(|(first, last)| (first, last.min(self.last)));
        Ok(bounds.filter(|(first, last)| first <= last))
    }

    fn block(&self, seq: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.block(seq)
    }

    fn part(&self, seq: u64, span: Span) -> Result<Vec<u8>, StoreError> {
        self.inner.part(seq, span)
    }

    fn scan(&self, from: u64, each: &mut Each<'_>) -> Result<(), StoreError> {
        self.inner.scan(from, &mut |seq, bytes| {
            if seq > self.last { Ok(()) } else { each(seq, bytes) }
        })
    }

    fn first(&self) -> u64 {
        self.inner.first()
    }

    fn ground(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.ground()
    }

    fn stage(&self, _: u64, _: &[u8]) -> Result<(), StoreError> {
        Err(read_only())
    }

    fn truncate_before(&self, _: u64) -> Result<(), StoreError> {
        Err(read_only())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::keys::Checkpoint;
    use crate::table::{Layer, Vouch};

    #[test]
    fn indexes_that_differ_in_one_entry_are_not_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let index = |name: &str, value: u8| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            let index = FileIndex::open_dir(&path, 1 << 20).unwrap();
            let mut layer = Layer::default();
            (0..100_u8).for_each(|n| layer.put(vec![n], vec![if n == 50 { value } else { 0 }]));
            let vouch = Vouch {
                checkpoint: Checkpoint { seq: 1, checksum: 1 },
                snapshot: crate::fold::Fold::default().snapshot(1),
            };
            index.write(&layer, &vouch).unwrap();
            index
        };
        let (one, two, three) = (index("1", 1), index("2", 1), index("3", 2));
        assert_eq!(same_entries(&one, &two), Ok(100));
        assert!(same_entries(&one, &three).is_err());
    }
}
