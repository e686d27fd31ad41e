//! Blocks in sled: each in chunks small enough that sled keeps them in its log.
//!
//! A chunk's key is the block's number and the chunk's, big-endian; its value is a CRC-32 of key, count and bytes, the
//! count of the block's chunks, and the bytes. A block is there when all of its chunks are.
//!
//! sled keeps up to sixteen neighbours in a page and writes the page anew whenever it divides one: growing at its end, a
//! journal of large blocks is written four times over. So keys are made some blocks ahead, with empty values, while
//! dividing their pages costs nothing; a chunk then replaces an empty value, and only the chunk is written. An empty
//! value is no chunk.
//!
//! sled gives no room back to the disk. So when at least a third of the blocks of a database are gone, those that are
//! left are written forward into a new one: most of them by the thread that stages the new ground, those that were written
//! meanwhile by the writer when it shortens the journal. A database lies in `<first block>.db`. The rename that puts the
//! ground in force puts the database of the same block in force: the latest one that does not begin after the ground.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::guard::{bounded, guarded};
use super::{EmbeddedConfig, grounds, released, remove, sync_tree};
use crate::codec::Span;
use crate::error::StoreError;
use crate::failpoint;
use crate::journal::{ADVICE, Journal, missing};
use crate::limits::CHUNK_BYTES_MAX;
use crate::vault::keyring::{failed, private_dir, sync_dir};

/// Fixed when a database is made, and large enough for a page of chunks.
const SEGMENT_BYTES: usize = 2 << 20;
const CHUNK_HEADER_BYTES: usize = 6;
/// Blocks below this size are not worth keys made ahead: a page of them is small.
const AHEAD_BLOCK_BYTES_MIN: usize = 4 << 10;
/// Keys that are made ahead at once, and how many of them are left when more are made: enough that the page which still
/// divides, the last one, has only empty values.
const AHEAD_KEYS: u64 = 128;
const AHEAD_KEYS_MIN: u64 = 40;
/// Chunks of a block that keys are made ahead for. Blocks with more are rare, and only cost more.
const AHEAD_PARTS_MAX: u64 = 8;

/// How much of a journal sled reads in a second at the very least, on a slow disk.
const OPEN_BYTES_PER_SECOND: u64 = 16 << 20;

/// What makes a block durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// `fdatasync` after every block.
    #[default]
    Synced,
    /// Nothing, so that it does not survive power loss: for a copy that is synced as a whole at its end, and for the test that
    /// shows why.
    Unsynced,
}

pub(super) fn directory(state: &Path) -> PathBuf {
    state.join("journal").join("sled")
}

/// The file with the blocks of each database, the latest last.
pub(super) fn files(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut all = grounds::all(directory, DATABASE)?;
    all.sort_unstable();
    let file = |begin| grounds::path(directory, begin, DATABASE).join("db");
    Ok(all.into_iter().map(file).collect())
}

const DATABASE: &str = "db";

pub(crate) struct SledJournal {
    directory: PathBuf,
    config: EmbeddedConfig,
    /// The first block that counts.
    first: AtomicU64,
    /// The last block; 0 while there is none.
    last: AtomicU64,
    database: RwLock<Arc<Database>>,
    /// A database that begins with a block whose ground is staged, and the first block that is not in it yet.
    forward: Mutex<Option<(Database, u64)>>,
}

struct Database {
    path: PathBuf,
    /// The first block when it was made.
    begin: u64,
    db: sled::Db,
    file: File,
    durability: Durability,
    ahead: Mutex<Ahead>,
    /// Where a chunk is put together, kept so that its memory is used again.
    scratch: Mutex<Vec<u8>>,
}

/// Which keys were made ahead.
#[derive(Default)]
struct Ahead {
    /// Those of the blocks before this one.
    until: u64,
    /// Most chunks of a block since keys were last made.
    parts: u64,
}

impl SledJournal {
    /// Opens the journal, or says that it cannot be opened, in a time that is bounded by its size.
    pub(crate) fn open(config: &EmbeddedConfig) -> Result<Self, StoreError> {
        let directory = directory(&config.state);
        private_dir(&directory)?;
        let sizes = files(&directory)?
            .into_iter()
            .filter_map(|file| std::fs::metadata(file).ok());
        let bytes: u64 = sizes.map(|metadata| metadata.len()).sum();
        let max = config.journal_open_max + Duration::from_secs(bytes / OPEN_BYTES_PER_SECOND);
        let config = config.clone();
        bounded("opening the journal", max, move || {
            Self::open_now(directory, config)
        })
    }

    fn open_now(directory: PathBuf, config: EmbeddedConfig) -> Result<Self, StoreError> {
        failpoint::hit("journal.opening");
        let first = grounds::in_force(&directory)?.unwrap_or(1);
        let all = grounds::all(&directory, DATABASE)?;
        let begin = all.iter().copied().filter(|begin| *begin <= first).max();
        let begin = match begin {
            Some(begin) => begin,
            None if all.is_empty() => first,
            None => return Err(missing(first)),
        };
        let database = Database::open(&directory, begin, &config)?;
        // Only whoever has the one in force open knows that nobody writes to the others.
        drop_others(&directory, begin)?;
        let last = database.find_last()?;
        database.sync()?;
        sync_dir(&database.path)?;
        sync_dir(&directory)?;
        sync_dir(&config.state.join("journal"))?;
        sync_dir(&config.state)?;
        let last = database.drop_torn_tail(last)?;
        let journal = SledJournal {
            first: AtomicU64::new(first),
            last: AtomicU64::new(last),
            database: RwLock::new(Arc::new(database)),
            forward: Mutex::default(),
            directory,
            config,
        };
        // What was let go when the process ended, and is still there.
        journal.drop_before(first)?;
        grounds::tidy(&journal.directory, first)?;
        Ok(journal)
    }

    fn database(&self) -> Arc<Database> {
        self.database.read().clone()
    }

    /// Whether at least a third of the database's blocks are gone when the journal begins with this one. So a block that goes
    /// costs at most two that are written again.
    fn is_worth_a_new_database(&self, seq: u64) -> bool {
        let left = (self.last.load(Ordering::Acquire) + 1).saturating_sub(seq);
        (seq - self.database().begin) * 2 >= left
    }

    /// Whether a second database would take the room in which work that was begun is recorded.
    fn has_no_room_for_another(&self) -> bool {
        let size = std::fs::metadata(self.database().path.join("db")).map_or(0, |file| file.len());
        let needed = self.config.disk_free_bytes_min.saturating_add(size);
        super::refusal(&self.config.state, needed).is_some()
    }

    /// Writes the blocks that a new database does not have yet into it.
    fn write_forward(&self, (new, next): &mut (Database, u64)) -> Result<(), StoreError> {
        while *next <= self.last.load(Ordering::Acquire) {
            new.put(*next, &self.block(*next)?)?;
            *next += 1;
        }
        new.sync()
    }

    /// Removes the blocks before this one, which count no longer.
    fn drop_before(&self, seq: u64) -> Result<(), StoreError> {
        let database = self.database();
        while let Some((first, last)) = self.bounds()?
            && first < seq
        {
            database.remove(first)?;
            if first == last {
                self.last.store(0, Ordering::Release);
            }
        }
        database.sync()
    }
}

/// Removes every database but one: they were not finished, or are no longer used.
fn drop_others(directory: &Path, used: u64) -> Result<(), StoreError> {
    for begin in grounds::all(directory, DATABASE)? {
        if begin != used {
            remove(&grounds::path(directory, begin, DATABASE))?;
        }
    }
    Ok(())
}

impl Database {
    fn open(directory: &Path, begin: u64, config: &EmbeddedConfig) -> Result<Self, StoreError> {
        let path = grounds::path(directory, begin, DATABASE);
        let is_new = !path.exists();
        private_dir(&path)?;
        let db = guarded("opening the journal", || {
            sled::Config::default()
                .path(&path)
                .segment_size(SEGMENT_BYTES)
                .cache_capacity(config.journal_cache_bytes)
                .mode(sled::Mode::HighThroughput)
                .flush_every_ms(None)
                .open()
        })?;
        if is_new {
            sync_tree(&path)?;
            sync_dir(directory)?;
        }
        Ok(Database {
            begin,
            db,
            file: File::open(path.join("db")).map_err(|error| failed(&path, &error))?,
            path,
            durability: config.durability,
            ahead: Mutex::default(),
            scratch: Mutex::default(),
        })
    }

    fn sync(&self) -> Result<(), StoreError> {
        guarded("flushing the journal", || self.db.flush())?;
        failpoint::hit("journal.after_flush");
        match self.durability {
            Durability::Synced => self
                .file
                .sync_data()
                .map_err(|error| failed("the journal's sync".as_ref(), &error)),
            Durability::Unsynced => Ok(()),
        }
    }

    /// The last block, which empty values may follow; 0 if there is none.
    fn find_last(&self) -> Result<u64, StoreError> {
        let last = guarded("reading the journal", || {
            let mut items = self.db.iter().rev();
            items
                .find_map(|item| match item {
                    Ok((_, value)) if value.is_empty() => None,
                    Ok((key, _)) => Some(Ok(key)),
                    Err(error) => Some(Err(error)),
                })
                .transpose()
        })?;
        Ok(last.map(|key| seq_of(&key)).transpose()?.unwrap_or(0))
    }

    /// The first block, by the last one.
    fn bounds(&self, last: u64) -> Result<Option<(u64, u64)>, StoreError> {
        if last == 0 {
            return Ok(None);
        }
        match guarded("reading the journal", || self.db.first())? {
            Some((key, value)) if !value.is_empty() => Ok(Some((seq_of(&key)?, last))),
            // A block that is there has its first chunk, so only keys after the last block are empty.
            Some((key, _)) => Err(missing(seq_of(&key)?)),
            None => Ok(None),
        }
    }

    /// Makes keys for the blocks after this one, as many chunks each as blocks have had of late.
    fn make_ahead(&self, seq: u64, parts: u16) -> Result<(), StoreError> {
        let mut ahead = self.ahead.lock();
        let parts = u64::from(parts).min(AHEAD_PARTS_MAX);
        ahead.parts = ahead.parts.max(parts);
        if ahead.until > seq + AHEAD_KEYS_MIN.div_ceil(ahead.parts) {
            return Ok(());
        }
        let until = seq + 1 + AHEAD_KEYS.div_ceil(ahead.parts);
        for next in ahead.until.max(seq + 1)..until {
            for part in 0..ahead.parts as u16 {
                guarded("writing the journal", || {
                    self.db.insert(chunk_key(next, part), &[])
                })?;
            }
        }
        *ahead = Ahead { until, parts };
        Ok(())
    }

    /// Removes the chunks of a block that was not finished when the process died, and was answered to nobody. The last block then.
    fn drop_torn_tail(&self, last: u64) -> Result<u64, StoreError> {
        if self.bounds(last)?.is_none() {
            return Ok(last);
        }
        let keys = guarded("reading the journal", || {
            self.db
                .scan_prefix(last.to_be_bytes())
                .map(|item| item.map(|(key, value)| (key, value.len())))
                .collect()
        });
        let mut keys: Vec<(sled::IVec, usize)> = keys?;
        keys.retain(|(_, len)| *len > 0);
        let first = self.chunk(last, 0);
        let parts = match first {
            Ok(chunk) => usize::from(parts_of(&chunk)),
            // A damaged last block is not a torn one: sled never shows half a value.
            Err(error) if keys.first().is_some_and(|(key, _)| key.ends_with(&[0, 0])) => return Err(error),
            Err(_) => usize::MAX,
        };
        if keys.len() == parts {
            return Ok(last);
        }
        for (key, _) in keys.iter().rev() {
            guarded("removing an unfinished block", || self.db.remove(key))?;
        }
        self.sync()?;
        self.find_last()
    }

    /// One chunk, checked.
    fn chunk(&self, seq: u64, part: u16) -> Result<sled::IVec, StoreError> {
        let key = chunk_key(seq, part);
        let found = guarded("reading the journal", || self.db.get(key))?;
        let value = found
            .filter(|value| !value.is_empty())
            .ok_or_else(|| missing(seq))?;
        if value.len() < CHUNK_HEADER_BYTES || value[..4] != checksum(&key, &value[4..]).to_be_bytes() {
            let what = format!("chunk {part} of block {seq} has a checksum that does not fit");
            return Err(StoreError::Damaged { what, advice: ADVICE });
        }
        Ok(value)
    }

    /// Writes a block. It is durable after the next sync.
    fn put(&self, seq: u64, block: &[u8]) -> Result<(), StoreError> {
        let chunks = block.chunks(CHUNK_BYTES_MAX);
        let parts = u16::try_from(chunks.len()).map_err(|_| StoreError::TooLarge {
            what: "block",
            size: block.len(),
            max: CHUNK_BYTES_MAX * usize::from(u16::MAX),
        })?;
        let mut scratch = self.scratch.lock();
        for (part, bytes) in (0..).zip(chunks) {
            let key = chunk_key(seq, part);
            let value = &mut *scratch;
            value.clear();
            value.extend_from_slice(&[0; 4]);
            value.extend_from_slice(&parts.to_be_bytes());
            value.extend_from_slice(bytes);
            let checksum = checksum(&key, &value[4..]);
            value[..4].copy_from_slice(&checksum.to_be_bytes());
            guarded("writing the journal", || self.db.insert(key, value.as_slice()))?;
        }
        drop(scratch);
        if block.len() >= AHEAD_BLOCK_BYTES_MIN {
            self.make_ahead(seq, parts)?;
        }
        Ok(())
    }

    fn remove(&self, seq: u64) -> Result<(), StoreError> {
        let keys: Vec<sled::IVec> = guarded("shortening the journal", || {
            self.db.scan_prefix(seq.to_be_bytes()).keys().collect()
        })?;
        // The last chunk first, so that a crash in between leaves a block that is seen to be incomplete.
        for key in keys.iter().rev() {
            guarded("shortening the journal", || self.db.remove(key))?;
        }
        Ok(())
    }
}

impl Journal for SledJournal {
    fn append(&self, seq: u64, block: &[u8]) -> Result<(), StoreError> {
        let database = self.database();
        database.put(seq, block)?;
        failpoint::hit("journal.after_insert");
        database.sync()?;
        self.last.store(seq, Ordering::Release);
        Ok(())
    }

    fn bounds(&self) -> Result<Option<(u64, u64)>, StoreError> {
        self.database().bounds(self.last.load(Ordering::Acquire))
    }

    fn block(&self, seq: u64) -> Result<Vec<u8>, StoreError> {
        let database = self.database();
        let first = database.chunk(seq, 0)?;
        let parts = parts_of(&first);
        let mut block = first[CHUNK_HEADER_BYTES..].to_vec();
        for part in 1..parts {
            block.extend_from_slice(&database.chunk(seq, part)?[CHUNK_HEADER_BYTES..]);
        }
        Ok(block)
    }

    fn part(&self, seq: u64, span: Span) -> Result<Vec<u8>, StoreError> {
        let database = self.database();
        let (start, end) = (span.at as usize, span.at as usize + span.len as usize);
        let mut out = Vec::with_capacity(span.len as usize);
        let mut at = start;
        while at < end {
            let part = u16::try_from(at / CHUNK_BYTES_MAX).map_err(|_| missing(seq))?;
            let chunk = database.chunk(seq, part)?;
            let base = usize::from(part) * CHUNK_BYTES_MAX;
            let bytes = &chunk[CHUNK_HEADER_BYTES..];
            let more = bytes
                .get(at - base..(end - base).min(bytes.len()))
                .filter(|more| !more.is_empty());
            let more = more.ok_or_else(|| missing(seq))?;
            out.extend_from_slice(more);
            at += more.len();
        }
        Ok(out)
    }

    fn first(&self) -> u64 {
        self.first.load(Ordering::Acquire)
    }

    fn ground(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let first = self.first();
        (first > 1)
            .then(|| grounds::read(&self.directory, first))
            .transpose()
    }

    fn stage(&self, seq: u64, ground: &[u8]) -> Result<(), StoreError> {
        // What an earlier turn began must not be taken for the database of this one.
        *self.forward.lock() = None;
        drop_others(&self.directory, self.database().begin)?;
        grounds::stage(&self.directory, seq, ground)?;
        if !self.is_worth_a_new_database(seq) || self.has_no_room_for_another() {
            return Ok(());
        }
        let made = released(|| Database::open(&self.directory, seq, &self.config)).and_then(|new| {
            let mut forward = (new, seq);
            self.write_forward(&mut forward).map(|()| forward)
        });
        match made {
            Ok(forward) => *self.forward.lock() = Some(forward),
            // Without room for a second database, the blocks are removed from the one there is, which uses their room again.
            Err(StoreError::Full) => drop_others(&self.directory, self.database().begin)?,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn truncate_before(&self, seq: u64) -> Result<(), StoreError> {
        if seq <= self.first() {
            return Ok(());
        }
        let forward = self.forward.lock().take();
        let mut forward = forward.filter(|(new, _)| new.begin == seq);
        if let Some(new) = &mut forward {
            match self.write_forward(new) {
                Ok(()) => failpoint::hit("journal.forwarded"),
                Err(StoreError::Full) => {
                    forward = None;
                    drop_others(&self.directory, self.database().begin)?;
                }
                Err(error) => return Err(error),
            }
        }
        grounds::put_in_force(&self.directory, seq)?;
        failpoint::hit("retain.in_force");
        self.first.store(seq, Ordering::Release);
        match forward {
            Some((new, _)) => {
                if self.last.load(Ordering::Acquire) < seq {
                    self.last.store(0, Ordering::Release);
                }
                *self.database.write() = Arc::new(new);
                drop_others(&self.directory, seq)?;
            }
            None => self.drop_before(seq)?,
        }
        grounds::tidy(&self.directory, seq)
    }
}

fn chunk_key(seq: u64, part: u16) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&seq.to_be_bytes());
    key[8..].copy_from_slice(&part.to_be_bytes());
    key
}

fn seq_of(key: &[u8]) -> Result<u64, StoreError> {
    match key.first_chunk::<8>() {
        Some(seq) if key.len() == 10 => Ok(u64::from_be_bytes(*seq)),
        Some(_) | None => Err(StoreError::Damaged {
            what: "the journal has a key that is none of ours".into(),
            advice: ADVICE,
        }),
    }
}

fn parts_of(chunk: &[u8]) -> u16 {
    u16::from_be_bytes([chunk[4], chunk[5]])
}

fn checksum(key: &[u8], rest: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(rest);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn open(state: &Path) -> SledJournal {
        released(|| SledJournal::open(&EmbeddedConfig::new(state))).unwrap()
    }

    fn block(seq: u64) -> Vec<u8> {
        vec![seq as u8; (seq as usize * 7_919) % 90_000 + 1]
    }

    fn blocks(journal: &SledJournal) -> Vec<u64> {
        let mut seen = Vec::new();
        let mut each = |seq, bytes: &[u8]| {
            assert!(bytes == block(seq), "block {seq}");
            seen.push(seq);
            Ok(())
        };
        journal.scan(0, &mut each).unwrap();
        seen
    }

    #[test]
    fn keys_made_ahead_are_no_blocks() {
        let state = tempfile::tempdir().unwrap();
        let journal = open(state.path());
        assert_eq!(journal.bounds(), Ok(None));
        (1..=300).for_each(|seq| journal.append(seq, &block(seq)).unwrap());
        assert!(journal.database().db.last().unwrap().unwrap().1.is_empty());
        assert_eq!(blocks(&journal), (1..=300).collect::<Vec<_>>());
        assert_eq!(journal.block(301), Err(missing(301)));
        drop(journal);
        let journal = open(state.path());
        (301..=400).for_each(|seq| journal.append(seq, &block(seq)).unwrap());
        journal.stage(350, b"ground").unwrap();
        journal.truncate_before(350).unwrap();
        drop(journal);
        let journal = open(state.path());
        assert_eq!(journal.bounds(), Ok(Some((350, 400))));
        assert_eq!(blocks(&journal), (350..=400).collect::<Vec<_>>());
        assert_eq!(journal.ground(), Ok(Some(b"ground".to_vec())));
        journal.stage(401, b"other").unwrap();
        journal.truncate_before(401).unwrap();
        assert_eq!(journal.bounds(), Ok(None));
        drop(journal);
        assert_eq!(open(state.path()).bounds(), Ok(None));
    }

    #[test]
    fn an_unfinished_block_among_keys_made_ahead_is_dropped() {
        let state = tempfile::tempdir().unwrap();
        let journal = open(state.path());
        (1..=40).for_each(|seq| journal.append(seq, &block(seq)).unwrap());
        let second = chunk_key(40, 1);
        assert!(
            !journal
                .database()
                .db
                .insert(second, &[])
                .unwrap()
                .unwrap()
                .is_empty()
        );
        drop(journal);
        let journal = open(state.path());
        assert_eq!(journal.bounds(), Ok(Some((1, 39))));
        (40..=60).for_each(|seq| journal.append(seq, &block(seq)).unwrap());
        journal.database().db.insert(chunk_key(1, 0), &[]).unwrap();
        assert_eq!(journal.bounds(), Err(missing(1)));
    }

    #[test]
    fn a_block_is_written_about_once() {
        let state = tempfile::tempdir().unwrap();
        let journal = open(state.path());
        let block = vec![7; 66_000];
        (1..=400).for_each(|seq| journal.append(seq, &block).unwrap());
        let written = files(&directory(state.path())).unwrap().pop().unwrap();
        let written = std::fs::metadata(written).unwrap().len();
        let ratio = written as f64 / (400 * block.len()) as f64;
        assert!(ratio < 1.6, "{ratio}");
    }

    #[test]
    fn a_chunk_has_these_bytes() {
        let state = tempfile::tempdir().unwrap();
        let journal = open(state.path());
        let mut block = vec![0; CHUNK_BYTES_MAX];
        block.extend_from_slice(b"end");
        journal.append(258, &block).unwrap();
        let value = journal.database().db.get(b"\0\0\0\0\0\0\x01\x02\0\x01").unwrap();
        assert_eq!(value.unwrap(), b"\x1c\x65\xe1\x54\0\x02end");
    }

    #[test]
    fn what_is_left_goes_into_a_new_database_when_a_third_is_gone() {
        let state = tempfile::tempdir().unwrap();
        let journal = open(state.path());
        (1..=100).for_each(|seq| journal.append(seq, &block(seq)).unwrap());
        let names = || {
            let all = files(&directory(state.path())).unwrap().into_iter();
            all.map(|file| file.metadata().unwrap().len()).collect::<Vec<_>>()
        };
        let full = names();
        journal.stage(20, b"20").unwrap();
        journal.truncate_before(20).unwrap();
        assert_eq!(journal.database().begin, 1);
        // What a turn that failed has left is not used.
        journal.stage(95, b"95").unwrap();
        assert_eq!(names().len(), 2);
        journal.stage(90, b"90").unwrap();
        (101..=105).for_each(|seq| journal.append(seq, &block(seq)).unwrap());
        journal.truncate_before(90).unwrap();
        assert_eq!((journal.database().begin, names().len()), (90, 1));
        assert_eq!(blocks(&journal), (90..=105).collect::<Vec<_>>());
        assert!(names()[0] < full[0], "{:?} of {full:?}", names());
        (106..=110).for_each(|seq| journal.append(seq, &block(seq)).unwrap());
        // One that is not in force when the process ends goes away.
        journal.stage(108, b"108").unwrap();
        drop(journal);
        let journal = open(state.path());
        assert_eq!(
            (journal.first(), journal.database().begin, names().len()),
            (90, 90, 1)
        );
        assert_eq!(blocks(&journal), (90..=110).collect::<Vec<_>>());
        // Nothing is left at all.
        journal.stage(111, b"111").unwrap();
        journal.truncate_before(111).unwrap();
        assert_eq!((journal.bounds(), journal.database().begin), (Ok(None), 111));
        journal.append(111, &block(111)).unwrap();
        drop(journal);
        assert_eq!(blocks(&open(state.path())), [111]);
    }
}
