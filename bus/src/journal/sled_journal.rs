//! The journal in sled: each block in chunks small enough for sled's log.
//!
//! A chunk's key is the number of the block and of the chunk, big-endian; its value is a CRC-32 of key, count and bytes,
//! the count of the block's chunks, and the bytes. A block exists when all of its chunks do.
//!
//! sled has traps: what its `flush` wrote may not survive power loss, so an `fdatasync` follows; sled may panic or hang on
//! damaged files, so every call is guarded and opening has a deadline; after an error its handle is poisoned, so it is
//! reopened. Its transactions and `flush_async` are not used.
//!
//! sled keeps up to sixteen neighbouring entries in a page and rewrites the page to split it, so large blocks would be
//! written four times. So keys are inserted some blocks ahead, with empty values, when splitting their pages costs almost
//! nothing; a chunk then replaces an empty value. An empty value is not a chunk.
//!
//! sled returns no space to the disk. So when at least a third of the blocks of a database are dropped, or its file has grown
//! by half since it was written, the others are copied into a new database: most by the thread that stages the checkpoint, the rest by the writer when it truncates
//! the journal. A database is in `<first block>.db`. The rename that activates a checkpoint activates its database: the
//! latest one that does not begin after the checkpoint.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::sled_guard::{bounded, guarded};
use super::{Journal, checkpoint_files, missing, state_dir};
use crate::codec::Span;
use crate::config::{Durability, EmbeddedConfig};
use crate::error::StoreError;
use crate::failpoint;
use crate::files::{io_error, numbered, private_dir, remove_dir, sync_dir, sync_tree};
use crate::limits::CHUNK_BYTES_MAX;

/// sled's own segment size, fixed when a database is created; a page of chunks fits.
const SEGMENT_BYTES: usize = 2 << 20;
const CHUNK_HEADER_BYTES: usize = 6;
/// Smaller blocks insert no keys ahead: a page of them is small.
const AHEAD_BLOCK_BYTES_MIN: usize = 4 << 10;
/// Keys that are inserted ahead at once, and how few are left when more are inserted. So the last page, the only one that
/// still splits, has only empty values.
const AHEAD_KEYS: u64 = 128;
const AHEAD_KEYS_MIN: u64 = 40;
/// Most chunks of a block that keys are inserted ahead for. Larger blocks are rare, and merely cost more.
const AHEAD_PARTS_MAX: u64 = 8;

/// Bytes that sled reads in a second at least, on a slow disk.
const OPEN_BYTES_PER_SECOND: u64 = 16 << 20;

/// How long sled's own threads may hold a database after its handle was dropped.
const RELEASE_WAIT: Duration = Duration::from_secs(5);

/// Retries while threads of a dropped handle still hold the database.
#[expect(clippy::disallowed_methods, reason = "how long sled's threads may take to let go")]
pub(crate) fn released<T>(open: impl Fn() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let end = Instant::now() + RELEASE_WAIT;
    loop {
        match open() {
            Err(StoreError::Locked { .. }) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(2))
            }
            other => return other,
        }
    }
}

pub(crate) fn directory(state: &Path) -> PathBuf {
    state.join("journal").join("sled")
}

/// The file of each database, the latest last.
fn files(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let all = numbered(directory, DATABASE)?;
    let file = |begin| checkpoint_files::path(directory, begin, DATABASE).join("db");
    Ok(all.into_iter().map(file).collect())
}

const DATABASE: &str = "db";

pub(crate) struct SledJournal {
    directory: PathBuf,
    config: EmbeddedConfig,
    /// The first block that retention has not dropped.
    first: AtomicU64,
    /// The last block; 0 while there is none.
    last: AtomicU64,
    database: RwLock<Arc<Database>>,
    /// The new database of a staged checkpoint, and the first block that is not in it yet.
    copy: Mutex<Option<(Database, u64)>>,
}

struct Database {
    path: PathBuf,
    /// The first block of the journal when the database was created.
    begin: u64,
    db: sled::Db,
    file: File,
    durability: Durability,
    /// Size of its file when the blocks of another one were copied into it.
    copied_bytes: OnceLock<u64>,
    ahead: Mutex<Ahead>,
    /// The buffer in which chunks are put together.
    scratch: Mutex<Vec<u8>>,
}

/// The keys that were inserted ahead.
#[derive(Default)]
struct Ahead {
    /// Keys of the blocks before this one exist.
    until: u64,
    /// Most chunks of a block since keys were last inserted.
    parts: u64,
}

impl SledJournal {
    /// Opens the journal within a time that depends on its size.
    pub(crate) fn open(config: &EmbeddedConfig) -> Result<Self, StoreError> {
        let directory = directory(&config.state);
        private_dir(&directory)?;
        let sizes = files(&directory)?.into_iter().filter_map(|file| std::fs::metadata(file).ok());
        let bytes: u64 = sizes.map(|metadata| metadata.len()).sum();
        let max = config.journal_open_max + Duration::from_secs(bytes / OPEN_BYTES_PER_SECOND);
        let config = config.clone();
        bounded("opening the journal", max, move || Self::open_now(directory, config))
    }

    fn open_now(directory: PathBuf, config: EmbeddedConfig) -> Result<Self, StoreError> {
        failpoint::hit("journal.opening");
        let first = checkpoint_files::first_block(&directory)?;
        let all = numbered(&directory, DATABASE)?;
        let begin = all.iter().copied().filter(|begin| *begin <= first).max();
        let begin = match begin {
            Some(begin) => begin,
            None if all.is_empty() => first,
            None => return Err(missing(first)),
        };
        let database = Database::open(&directory, begin, &config)?;
        // With the active database open, no other process can write to the others.
        remove_others(&directory, begin)?;
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
            copy: Mutex::default(),
            directory,
            config,
        };
        // Blocks that an earlier process dropped and did not remove.
        journal.remove_before(first)?;
        checkpoint_files::remove_unused(&journal.directory, first)?;
        Ok(journal)
    }

    fn database(&self) -> Arc<Database> {
        self.database.read().clone()
    }

    /// Whether at least a third of the database's blocks are before block `seq`, or its file has grown by half: then at most two
    /// blocks are copied for each dropped or new one. Blocks differ in size, so their number alone does not bound the file.
    fn is_worth_a_new_database(&self, seq: u64) -> bool {
        let left = (self.last.load(Ordering::Acquire) + 1).saturating_sub(seq);
        let database = self.database();
        let has_grown = |copied: &u64| database.file_bytes() * 2 >= copied * 3;
        (seq - database.begin) * 2 >= left || database.copied_bytes.get().is_some_and(has_grown)
    }

    /// Whether a second database would need the space that is reserved for work in progress.
    fn has_no_room_for_another(&self) -> bool {
        let needed = self.config.disk_free_bytes_min.saturating_add(self.database().file_bytes());
        state_dir::refusal(&self.config.state, needed).is_some()
    }

    /// Copies the blocks that a new database lacks.
    fn copy_blocks(&self, (new, next): &mut (Database, u64)) -> Result<(), StoreError> {
        while *next <= self.last.load(Ordering::Acquire) {
            new.put(*next, &self.block(*next)?)?;
            *next += 1;
        }
        new.sync()
    }

    /// Removes the blocks before this one.
    fn remove_before(&self, seq: u64) -> Result<(), StoreError> {
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

/// Removes every database but one.
fn remove_others(directory: &Path, used: u64) -> Result<(), StoreError> {
    for begin in numbered(directory, DATABASE)? {
        if begin != used {
            remove_dir(&checkpoint_files::path(directory, begin, DATABASE))?;
        }
    }
    Ok(())
}

impl Database {
    fn open(directory: &Path, begin: u64, config: &EmbeddedConfig) -> Result<Self, StoreError> {
        let path = checkpoint_files::path(directory, begin, DATABASE);
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
            file: File::open(path.join("db")).map_err(|error| io_error(&path, error))?,
            path,
            durability: config.durability,
            copied_bytes: OnceLock::new(),
            ahead: Mutex::default(),
            scratch: Mutex::default(),
        })
    }

    fn file_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |file| file.len())
    }

    fn sync(&self) -> Result<(), StoreError> {
        guarded("flushing the journal", || self.db.flush())?;
        failpoint::hit("journal.after_flush");
        match self.durability {
            Durability::Synced => {
                self.file.sync_data().map_err(|error| io_error("the journal's sync".as_ref(), error))
            }
            Durability::Unsynced => Ok(()),
        }
    }

    /// The last block; 0 if there is none. Empty values may follow it.
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

    /// The first block, and `last`; `None` if there is no block.
    fn bounds(&self, last: u64) -> Result<Option<(u64, u64)>, StoreError> {
        if last == 0 {
            return Ok(None);
        }
        match guarded("reading the journal", || self.db.first())? {
            Some((key, value)) if !value.is_empty() => Ok(Some((seq_of(&key)?, last))),
            // Every block has its first chunk, so only keys after the last block are empty.
            Some((key, _)) => Err(missing(seq_of(&key)?)),
            None => Ok(None),
        }
    }

    /// Inserts keys for the next blocks, each with as many chunks as recent blocks have.
    fn insert_ahead(&self, seq: u64, parts: u16) -> Result<(), StoreError> {
        let mut ahead = self.ahead.lock();
        let parts = u64::from(parts).min(AHEAD_PARTS_MAX);
        ahead.parts = ahead.parts.max(parts);
        if ahead.until > seq + AHEAD_KEYS_MIN.div_ceil(ahead.parts) {
            return Ok(());
        }
        let until = seq + 1 + AHEAD_KEYS.div_ceil(ahead.parts);
        for next in ahead.until.max(seq + 1)..until {
            for part in 0..ahead.parts as u16 {
                guarded("writing the journal", || self.db.insert(chunk_key(next, part), &[]))?;
            }
        }
        *ahead = Ahead { until, parts };
        Ok(())
    }

    /// Removes an incomplete last block, which was never acknowledged as durable; returns the last complete one.
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
            // A damaged block is not a torn one: sled never returns half a value.
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
        let value = found.filter(|value| !value.is_empty()).ok_or_else(|| missing(seq))?;
        if value.len() < CHUNK_HEADER_BYTES || value[..4] != checksum(&key, &value[4..]).to_be_bytes() {
            let what = format!("chunk {part} of block {seq} has a wrong checksum");
            return Err(StoreError::damaged(what));
        }
        Ok(value)
    }

    /// Writes a block; durable after the next sync.
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
            self.insert_ahead(seq, parts)?;
        }
        Ok(())
    }

    fn remove(&self, seq: u64) -> Result<(), StoreError> {
        let keys: Vec<sled::IVec> =
            guarded("shortening the journal", || self.db.scan_prefix(seq.to_be_bytes()).keys().collect())?;
        // The last chunk first, so that a crash leaves a block that is recognised as incomplete.
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
            let more = bytes.get(at - base..(end - base).min(bytes.len())).filter(|more| !more.is_empty());
            let more = more.ok_or_else(|| missing(seq))?;
            out.extend_from_slice(more);
            at += more.len();
        }
        Ok(out)
    }

    fn first(&self) -> u64 {
        self.first.load(Ordering::Acquire)
    }

    fn checkpoint(&self) -> Result<Option<Vec<u8>>, StoreError> {
        checkpoint_files::read(&self.directory, self.first())
    }

    fn stage(&self, seq: u64, checkpoint: &[u8]) -> Result<(), StoreError> {
        // The database of an earlier attempt must not be used for this checkpoint.
        *self.copy.lock() = None;
        remove_others(&self.directory, self.database().begin)?;
        checkpoint_files::stage(&self.directory, seq, checkpoint)?;
        if !self.is_worth_a_new_database(seq) || self.has_no_room_for_another() {
            return Ok(());
        }
        let made = released(|| Database::open(&self.directory, seq, &self.config)).and_then(|new| {
            let mut copy = (new, seq);
            self.copy_blocks(&mut copy).map(|()| copy)
        });
        match made {
            Ok(copy) => *self.copy.lock() = Some(copy),
            // Without space for a second database, the blocks are removed from this one, which reuses the space.
            Err(StoreError::Full) => remove_others(&self.directory, self.database().begin)?,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn truncate_before(&self, seq: u64) -> Result<(), StoreError> {
        if seq <= self.first() {
            return Ok(());
        }
        let copy = self.copy.lock().take();
        let mut copy = copy.filter(|(new, _)| new.begin == seq);
        if let Some(new) = &mut copy {
            match self.copy_blocks(new) {
                Ok(()) => failpoint::hit("journal.forwarded"),
                Err(StoreError::Full) => {
                    copy = None;
                    remove_others(&self.directory, self.database().begin)?;
                }
                Err(error) => return Err(error),
            }
        }
        checkpoint_files::activate(&self.directory, seq)?;
        failpoint::hit("retain.in_force");
        self.first.store(seq, Ordering::Release);
        match copy {
            Some((new, _)) => {
                if self.last.load(Ordering::Acquire) < seq {
                    self.last.store(0, Ordering::Release);
                }
                let _ = new.copied_bytes.set(new.file_bytes());
                *self.database.write() = Arc::new(new);
                remove_others(&self.directory, seq)?;
            }
            None => self.remove_before(seq)?,
        }
        checkpoint_files::remove_unused(&self.directory, seq)
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
        Some(_) | None => Err(StoreError::damaged("the journal has a key of another kind")),
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
        journal.stage(350, b"checkpoint").unwrap();
        journal.truncate_before(350).unwrap();
        drop(journal);
        let journal = open(state.path());
        assert_eq!(journal.bounds(), Ok(Some((350, 400))));
        assert_eq!(blocks(&journal), (350..=400).collect::<Vec<_>>());
        assert_eq!(journal.checkpoint(), Ok(Some(b"checkpoint".to_vec())));
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
        assert!(!journal.database().db.insert(second, &[]).unwrap().unwrap().is_empty());
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
        // The database of a failed attempt is not used.
        journal.stage(95, b"95").unwrap();
        assert_eq!(names().len(), 2);
        journal.stage(90, b"90").unwrap();
        (101..=105).for_each(|seq| journal.append(seq, &block(seq)).unwrap());
        journal.truncate_before(90).unwrap();
        assert_eq!((journal.database().begin, names().len()), (90, 1));
        assert_eq!(blocks(&journal), (90..=105).collect::<Vec<_>>());
        assert!(names()[0] < full[0], "{:?} of {full:?}", names());
        (106..=110).for_each(|seq| journal.append(seq, &block(seq)).unwrap());
        // A database that was never activated is removed on open.
        journal.stage(108, b"108").unwrap();
        drop(journal);
        let journal = open(state.path());
        assert_eq!((journal.first(), journal.database().begin, names().len()), (90, 90, 1));
        assert_eq!(blocks(&journal), (90..=110).collect::<Vec<_>>());
        // No block is left.
        journal.stage(111, b"111").unwrap();
        journal.truncate_before(111).unwrap();
        assert_eq!((journal.bounds(), journal.database().begin), (Ok(None), 111));
        journal.append(111, &block(111)).unwrap();
        drop(journal);
        assert_eq!(blocks(&open(state.path())), [111]);
    }

    #[test]
    fn a_file_that_has_grown_by_half_is_written_again() {
        let state = tempfile::tempdir().unwrap();
        let journal = open(state.path());
        (1..=100).for_each(|seq| journal.append(seq, &[1; 100]).unwrap());
        journal.stage(90, b"90").unwrap();
        journal.truncate_before(90).unwrap();
        assert_eq!(journal.database().begin, 90);
        let drop_one = |seq| {
            journal.stage(seq, b"one").unwrap();
            journal.truncate_before(seq).unwrap();
            journal.database().begin
        };
        assert_eq!(drop_one(91), 90);
        // A few blocks, and many bytes.
        (101..=103).for_each(|seq| journal.append(seq, &vec![seq as u8; 4 << 20]).unwrap());
        assert_eq!(drop_one(92), 92);
        assert_eq!(journal.bounds(), Ok(Some((92, 103))));
        assert_eq!(journal.block(103).unwrap(), vec![103; 4 << 20]);
        assert_eq!(drop_one(93), 92);
    }
}
