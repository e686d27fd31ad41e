//! Blocks in sled: each in chunks small enough that sled keeps them in its log.
//!
//! A chunk's key is the block's number and the chunk's, big-endian; its value is a CRC-32 of key, count and bytes, the
//! count of the block's chunks, and the bytes. A block is there when all of its chunks are.

use std::fs::File;

use super::EmbeddedConfig;
use super::guard::guarded;
use crate::codec::Span;
use crate::error::StoreError;
use crate::failpoint;
use crate::journal::{ADVICE, Journal, missing};
use crate::limits::CHUNK_BYTES_MAX;
use crate::vault::keyring::{failed, sync_dir};

/// Fixed when a database is made, and large enough for a page of chunks.
const SEGMENT_BYTES: usize = 2 << 20;
const CHUNK_HEADER_BYTES: usize = 6;

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
    db: sled::Db,
    file: File,
    durability: Durability,
}

impl SledJournal {
    pub(crate) fn open(config: &EmbeddedConfig) -> Result<Self, StoreError> {
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
        let journal = SledJournal {
            db,
            file,
            durability: config.durability,
        };
        journal.sync()?;
        sync_dir(&path)?;
        sync_dir(&config.state)?;
        journal.drop_torn_tail()?;
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
        let keys: Vec<(sled::IVec, usize)> = keys?;
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
        self.sync()
    }

    /// One chunk, checked.
    fn chunk(&self, seq: u64, part: u16) -> Result<sled::IVec, StoreError> {
        let key = chunk_key(seq, part);
        let found = guarded("reading the journal", || self.db.get(key))?;
        let value = found.ok_or_else(|| missing(seq))?;
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
        for (part, bytes) in (0..).zip(chunks) {
            let key = chunk_key(seq, part);
            let mut value = Vec::with_capacity(CHUNK_HEADER_BYTES + bytes.len());
            value.extend_from_slice(&[0; 4]);
            value.extend_from_slice(&parts.to_be_bytes());
            value.extend_from_slice(bytes);
            let checksum = checksum(&key, &value[4..]);
            value[..4].copy_from_slice(&checksum.to_be_bytes());
            guarded("writing the journal", || self.db.insert(key, value))?;
        }
        failpoint::hit("journal.after_insert");
        self.sync()
    }

    fn bounds(&self) -> Result<Option<(u64, u64)>, StoreError> {
        let first = guarded("reading the journal", || self.db.first())?;
        let last = guarded("reading the journal", || self.db.last())?;
        match (first, last) {
            (Some((first, _)), Some((last, _))) => Ok(Some((seq_of(&first)?, seq_of(&last)?))),
            (None | Some(_), None | Some(_)) => Ok(None),
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

    fn truncate_before(&self, seq: u64) -> Result<(), StoreError> {
        while let Some((first, _)) = self.bounds()?
            && first < seq
        {
            let keys: Vec<sled::IVec> = guarded("shortening the journal", || {
                self.db.scan_prefix(first.to_be_bytes()).keys().collect()
            })?;
            // The last chunk first, so that a crash in between leaves a block that is seen to be incomplete.
            for key in keys.iter().rev() {
                guarded("shortening the journal", || self.db.remove(key))?;
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
