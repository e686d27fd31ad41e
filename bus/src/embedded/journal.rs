//! Blocks in sled: each in chunks small enough that sled keeps them in its log.
//!
//! A chunk's key is the block's number and the chunk's, big-endian; its value is a CRC-32 of key, count and bytes, the
//! count of the block's chunks, and the bytes. A block is there when all of its chunks are.
//!
//! sled keeps up to sixteen neighbours in a page and writes the page anew whenever it divides one: growing at its end, a
//! journal of large blocks is written four times over. So keys are made some blocks ahead, with empty values, while
//! dividing their pages costs nothing; a chunk then replaces an empty value, and only the chunk is written. An empty
//! value is no chunk.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::guard::{bounded, guarded};
use super::{EmbeddedConfig, grounds};
use crate::codec::Span;
use crate::error::StoreError;
use crate::failpoint;
use crate::journal::{ADVICE, Journal, missing};
use crate::limits::CHUNK_BYTES_MAX;
use crate::vault::keyring::{failed, sync_dir};

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
    /// Only sled's own flush, which does not survive power loss. For the test that shows it.
    #[cfg(feature = "failpoints")]
    FlushedOnly,
}

pub(crate) struct SledJournal {
    directory: PathBuf,
    /// The first block that counts.
    first: AtomicU64,
    db: sled::Db,
    file: File,
    durability: Durability,
    /// The last block; 0 while there is none.
    last: AtomicU64,
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
        let file = config.state.join("journal").join("db");
        let bytes = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
        let max = config.journal_open_max + Duration::from_secs(bytes / OPEN_BYTES_PER_SECOND);
        let config = config.clone();
        bounded("opening the journal", max, move || Self::open_now(&config))
    }

    fn open_now(config: &EmbeddedConfig) -> Result<Self, StoreError> {
        failpoint::hit("journal.opening");
        let path = config.state.join("journal");
        let db = guarded("opening the journal", || {
            sled::Config::default()
                .path(&path)
                .segment_size(SEGMENT_BYTES)
                .cache_capacity(config.journal_cache_bytes)
                .mode(sled::Mode::HighThroughput)
                .flush_every_ms(None)
                .open()
        })?;
        let file = File::open(path.join("db")).map_err(|error| failed(&path, &error))?;
        let first = grounds::in_force(&path)?.unwrap_or(1);
        let journal = SledJournal {
            directory: path.clone(),
            first: AtomicU64::new(first),
            db,
            file,
            durability: config.durability,
            last: AtomicU64::new(0),
            ahead: Mutex::default(),
            scratch: Mutex::default(),
        };
        journal.find_last()?;
        journal.sync()?;
        sync_dir(&path)?;
        sync_dir(&config.state)?;
        journal.drop_torn_tail()?;
        // What was let go when the process ended, and is still there.
        journal.drop_before(first)?;
        grounds::tidy(&path, first)?;
        Ok(journal)
    }

    fn sync(&self) -> Result<(), StoreError> {
        guarded("flushing the journal", || self.db.flush())?;
        failpoint::hit("journal.after_flush");
        match self.durability {
            Durability::Synced => self
                .file
                .sync_data()
                .map_err(|error| failed("the journal's sync".as_ref(), &error)),
            #[cfg(feature = "failpoints")]
            Durability::FlushedOnly => Ok(()),
        }
    }

    /// Finds the last block, which empty values may follow.
    fn find_last(&self) -> Result<(), StoreError> {
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
        let last = last.map(|key| seq_of(&key)).transpose()?.unwrap_or(0);
        self.last.store(last, Ordering::Release);
        Ok(())
    }

    /// Makes keys for the blocks after this one, as many chunks each as blocks have had of late.
    fn make_ahead(&self, seq: u64, parts: u16) -> Result<(), StoreError> {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Removes the chunks of a block that was not finished when the process died; nobody was told of it.
    fn drop_torn_tail(&self) -> Result<(), StoreError> {
        let Some((_, last)) = self.bounds()? else {
            return Ok(());
        };
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
            return Ok(());
        }
        for (key, _) in keys.iter().rev() {
            guarded("removing an unfinished block", || self.db.remove(key))?;
        }
        self.find_last()?;
        self.sync()
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
}

impl Journal for SledJournal {
    fn append(&self, seq: u64, block: &[u8]) -> Result<(), StoreError> {
        let chunks = block.chunks(CHUNK_BYTES_MAX);
        let parts = u16::try_from(chunks.len()).map_err(|_| StoreError::TooLarge {
            what: "block",
            size: block.len(),
            max: CHUNK_BYTES_MAX * usize::from(u16::MAX),
        })?;
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
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
        self.last.store(seq, Ordering::Release);
        if block.len() >= AHEAD_BLOCK_BYTES_MIN {
            self.make_ahead(seq, parts)?;
        }
        failpoint::hit("journal.after_insert");
        self.sync()
    }

    fn bounds(&self) -> Result<Option<(u64, u64)>, StoreError> {
        let first = guarded("reading the journal", || self.db.first())?;
        let last = self.last.load(Ordering::Acquire);
        match first {
            Some((key, value)) if !value.is_empty() => Ok(Some((seq_of(&key)?, last))),
            // A block that is there has its first chunk, so only keys after the last block are empty.
            Some((key, _)) if last > 0 => Err(missing(seq_of(&key)?)),
            Some(_) | None => Ok(None),
        }
    }

    fn block(&self, seq: u64) -> Result<Vec<u8>, StoreError> {
        let first = self.chunk(seq, 0)?;
        let parts = parts_of(&first);
        let mut block = first[CHUNK_HEADER_BYTES..].to_vec();
        for part in 1..parts {
            block.extend_from_slice(&self.chunk(seq, part)?[CHUNK_HEADER_BYTES..]);
        }
        Ok(block)
    }

    fn part(&self, seq: u64, span: Span) -> Result<Vec<u8>, StoreError> {
        let (start, end) = (span.at as usize, span.at as usize + span.len as usize);
        let mut out = Vec::with_capacity(span.len as usize);
        let mut at = start;
        while at < end {
            let part = u16::try_from(at / CHUNK_BYTES_MAX).map_err(|_| missing(seq))?;
            let chunk = self.chunk(seq, part)?;
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
        grounds::stage(&self.directory, seq, ground)
    }

    fn truncate_before(&self, seq: u64) -> Result<(), StoreError> {
        if seq <= self.first() {
            return Ok(());
        }
        grounds::put_in_force(&self.directory, seq)?;
        failpoint::hit("retain.in_force");
        self.first.store(seq, Ordering::Release);
        self.drop_before(seq)?;
        grounds::tidy(&self.directory, seq)
    }
}

impl SledJournal {
    /// Removes the blocks before this one, which count no longer.
    fn drop_before(&self, seq: u64) -> Result<(), StoreError> {
        while let Some((first, last)) = self.bounds()?
            && first < seq
        {
            let keys: Vec<sled::IVec> = guarded("shortening the journal", || {
                self.db.scan_prefix(first.to_be_bytes()).keys().collect()
            })?;
            // The last chunk first, so that a crash in between leaves a block that is seen to be incomplete.
            for key in keys.iter().rev() {
                guarded("shortening the journal", || self.db.remove(key))?;
            }
            if first == last {
                self.last.store(0, Ordering::Release);
            }
        }
        self.sync()
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

    fn open(state: &std::path::Path) -> SledJournal {
        super::super::released(|| SledJournal::open(&EmbeddedConfig::new(state))).unwrap()
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
        std::fs::create_dir(state.path().join("journal")).unwrap();
        let journal = open(state.path());
        assert_eq!(journal.bounds(), Ok(None));
        (1..=300).for_each(|seq| journal.append(seq, &block(seq)).unwrap());
        assert!(journal.db.last().unwrap().unwrap().1.is_empty());
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
        std::fs::create_dir(state.path().join("journal")).unwrap();
        let journal = open(state.path());
        (1..=40).for_each(|seq| journal.append(seq, &block(seq)).unwrap());
        let second = chunk_key(40, 1);
        assert!(!journal.db.insert(second, &[]).unwrap().unwrap().is_empty());
        drop(journal);
        let journal = open(state.path());
        assert_eq!(journal.bounds(), Ok(Some((1, 39))));
        (40..=60).for_each(|seq| journal.append(seq, &block(seq)).unwrap());
        journal.db.insert(chunk_key(1, 0), &[]).unwrap();
        assert_eq!(journal.bounds(), Err(missing(1)));
    }

    #[test]
    fn a_block_is_written_about_once() {
        let state = tempfile::tempdir().unwrap();
        std::fs::create_dir(state.path().join("journal")).unwrap();
        let journal = open(state.path());
        let block = vec![7; 66_000];
        (1..=400).for_each(|seq| journal.append(seq, &block).unwrap());
        let written = std::fs::metadata(state.path().join("journal/db")).unwrap().len();
        let ratio = written as f64 / (400 * block.len()) as f64;
        assert!(ratio < 1.6, "{ratio}");
    }
}
