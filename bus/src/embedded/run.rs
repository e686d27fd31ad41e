//! Runs: what the index is kept in. A run is a layer, or several merged, in the order of its keys, and never changes.
//!
//! One database key for every index entry would cost a page update each, at a random place. A run's entries lie in
//! chunks instead, thousands of entries in a few dozen inserts, one after the other. What finds an entry (the first key
//! of every chunk, and a filter of all keys) is the run's head, and is held in memory.
//!
//! | database key | value |
//! |---|---|
//! | `p` run, chunk | CRC-32 of key and rest, count, where each entry begins, the entries |
//! | `h` run, part | part of the head: count of entries, first keys, last key, filter, CRC-32 |
//!
//! Run and chunk are big-endian, of eight and four bytes; counts and beginnings in a chunk of two, big-endian.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use super::filter::{self, Filter};
use super::guard::guarded;
use crate::codec::{Malformed, Reader, put_bytes, put_u64};
use crate::error::StoreError;
use crate::limits::CHUNK_BYTES_MAX;
use crate::table::Cell;

/// Bytes after which a chunk is closed: a question reads one chunk, an insert writes one.
const CHUNK_BYTES: usize = 8 << 10;
/// Chunks that are kept in memory after they were read: about 4 MiB.
const RECENT_CHUNKS_MAX: usize = 512;
const DELETE: u8 = 0;
const PUT: u8 = 1;
const UNION: u8 = 2;

/// A run's head.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) id: u64,
    pub(crate) entries: u64,
    /// How many parts the head has on disk.
    pub(crate) parts: u32,
    /// It was there when the database was last made durable, so nothing of it can be missing.
    pub(crate) synced: AtomicBool,
    firsts: Vec<Vec<u8>>,
    last: Vec<u8>,
    filter: Filter,
}

pub(super) fn chunk_key(tag: u8, run: u64, chunk: u32) -> [u8; 13] {
    let mut key = [tag; 13];
    key[1..9].copy_from_slice(&run.to_be_bytes());
    key[9..].copy_from_slice(&chunk.to_be_bytes());
    key
}

/// An index that cannot be read. Whoever opens it makes it anew.
pub(super) fn damaged(what: &str) -> StoreError {
    StoreError::Damaged {
        what: format!("the index: {what}"),
        advice: "Stop effectd and move the directory `index` away; it is made anew from the journal.",
    }
}

pub(super) fn malformed(error: Malformed) -> StoreError {
    damaged(error.0)
}

fn checksum(key: &[u8], rest: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(rest);
    hasher.finalize().to_be_bytes()
}

/// Chunks that were read of late. A search for neighbours asks every run, mostly at the same few places.
pub(crate) struct Chunks {
    pub(super) db: sled::Db,
    recent: Mutex<HashMap<(u64, u32), Chunk>>,
}

impl Chunks {
    pub(super) fn new(db: sled::Db) -> Self {
        Chunks {
            db,
            recent: Mutex::default(),
        }
    }

    fn get(&self, run: u64, chunk: u32) -> Result<Chunk, StoreError> {
        let recent = || self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = recent().get(&(run, chunk)) {
            return Ok(found.clone());
        }
        let found = Chunk::read(&self.db, run, chunk)?;
        let mut recent = recent();
        if recent.len() >= RECENT_CHUNKS_MAX {
            recent.clear();
        }
        recent.insert((run, chunk), found.clone());
        Ok(found)
    }
}

/// A chunk that was read and checked.
#[derive(Clone)]
pub(crate) struct Chunk {
    bytes: sled::IVec,
    pub(crate) count: usize,
}

impl Chunk {
    pub(super) fn read(db: &sled::Db, run: u64, chunk: u32) -> Result<Self, StoreError> {
        let key = chunk_key(b'p', run, chunk);
        let bytes = guarded("reading the index", || db.get(key))?
            .ok_or_else(|| damaged("a chunk that should be there is not"))?;
        if bytes.len() < 6 || bytes[..4] != checksum(&key, &bytes[4..]) {
            return Err(damaged("a chunk whose checksum does not fit"));
        }
        let count = usize::from(u16::from_be_bytes([bytes[4], bytes[5]]));
        if count == 0 || bytes.len() < 6 + count * 2 {
            return Err(damaged("a chunk that is too short"));
        }
        Ok(Chunk { bytes, count })
    }

    fn entry(&self, nth: usize) -> Result<Reader<'_>, StoreError> {
        let at = 6 + nth * 2;
        let start = usize::from(u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]));
        let entry = self.bytes.get(6 + self.count * 2 + start..);
        Ok(Reader::new(
            entry.ok_or_else(|| damaged("an entry outside its chunk"))?,
            0,
        ))
    }

    /// Where an entry's key lies.
    pub(crate) fn key_range(&self, nth: usize) -> Result<Range<usize>, StoreError> {
        let mut reader = self.entry(nth)?;
        let start = self.bytes.len() - reader.left();
        let span = reader.span().map_err(malformed)?;
        let start = start + span.at as usize;
        Ok(start..start + span.len as usize)
    }

    /// A key, by its range.
    pub(crate) fn at(&self, key: &Range<usize>) -> &[u8] {
        &self.bytes[key.clone()]
    }

    /// A whole entry as it was written, and whether it says that its key is gone.
    fn raw(&self, nth: usize, key: &Range<usize>) -> Result<(&[u8], bool), StoreError> {
        let start = self.bytes.len() - self.entry(nth)?.left();
        let end = if nth + 1 < self.count {
            self.bytes.len() - self.entry(nth + 1)?.left()
        } else {
            self.bytes.len()
        };
        let raw = self.bytes.get(start..end).filter(|_| key.end < end);
        let raw = raw.ok_or_else(|| damaged("an entry outside its chunk"))?;
        Ok((raw, self.bytes[key.end] == DELETE))
    }

    pub(crate) fn key(&self, nth: usize) -> Result<&[u8], StoreError> {
        self.entry(nth)?.bytes().map_err(malformed)
    }

    pub(crate) fn cell(&self, nth: usize) -> Result<Cell, StoreError> {
        let mut reader = self.entry(nth)?;
        reader.bytes().map_err(malformed)?;
        match reader.u8().map_err(malformed)? {
            DELETE => Ok(Cell::Delete),
            PUT => Ok(Cell::Put(reader.bytes().map_err(malformed)?.to_vec())),
            UNION => Ok(Cell::Union(reader.bytes().map_err(malformed)?.to_vec())),
            3..=u8::MAX => Err(damaged("an entry of no known kind")),
        }
    }

    /// How many keys are before this one.
    fn before(&self, key: &[u8]) -> Result<usize, StoreError> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.key(middle)? < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

impl Run {
    pub(crate) fn chunks(&self) -> u32 {
        self.firsts.len() as u32
    }

    /// The chunk that has the key, if any has; `None` for a key before all.
    fn chunk_of(&self, key: &[u8]) -> Option<u32> {
        let after = self.firsts.partition_point(|first| first.as_slice() <= key);
        after.checked_sub(1).map(|chunk| chunk as u32)
    }

    /// What the run says about a key.
    pub(crate) fn get(&self, chunks: &Chunks, key: &[u8], hash: u64) -> Result<Option<Cell>, StoreError> {
        if key > self.last.as_slice() || !self.filter.may_have(hash) {
            return Ok(None);
        }
        let Some(chunk) = self.chunk_of(key) else {
            return Ok(None);
        };
        let chunk = chunks.get(self.id, chunk)?;
        let nth = chunk.before(key)?;
        if nth < chunk.count && chunk.key(nth)? == key {
            return chunk.cell(nth).map(Some);
        }
        Ok(None)
    }

    /// The first key from `from` on and before `end`.
    pub(crate) fn next(
        &self,
        chunks: &Chunks,
        from: &[u8],
        end: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        if from > self.last.as_slice() {
            return Ok(None);
        }
        let found = match self.chunk_of(from) {
            None => self.firsts.first().cloned(),
            Some(number) => {
                let chunk = chunks.get(self.id, number)?;
                let nth = chunk.before(from)?;
                if nth < chunk.count {
                    Some(chunk.key(nth)?.to_vec())
                } else {
                    self.firsts.get(number as usize + 1).cloned()
                }
            }
        };
        Ok(found.filter(|key| key.as_slice() < end))
    }

    /// The last key from `start` on, up to and with `to`.
    pub(crate) fn previous(
        &self,
        chunks: &Chunks,
        start: &[u8],
        to: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        if start > self.last.as_slice() {
            return Ok(None);
        }
        let Some(chunk) = self.chunk_of(to) else {
            return Ok(None);
        };
        let chunk = chunks.get(self.id, chunk)?;
        let nth = chunk.before(to)?;
        let nth = if nth < chunk.count && chunk.key(nth)? == to {
            nth
        } else {
            nth - 1
        };
        let key = chunk.key(nth)?;
        Ok((key >= start).then(|| key.to_vec()))
    }

    /// Reads a run's head.
    pub(super) fn open(db: &sled::Db, id: u64, parts: u32, synced: bool) -> Result<Self, StoreError> {
        let mut bytes = Vec::new();
        for part in 0..parts {
            let part = guarded("reading the index", || db.get(chunk_key(b'h', id, part)))?;
            bytes.extend_from_slice(&part.ok_or_else(|| damaged("a run without its head"))?);
        }
        let own = bytes
            .len()
            .checked_sub(4)
            .ok_or_else(|| damaged("a run without its head"))?;
        if bytes[own..] != checksum(&id.to_be_bytes(), &bytes[..own]) {
            return Err(damaged("a run's head whose checksum does not fit"));
        }
        let run = Self::decode(&bytes[..own], id, parts, synced).map_err(malformed)?;
        if !synced {
            (0..run.chunks()).try_for_each(|chunk| Chunk::read(db, id, chunk).map(drop))?;
        }
        Ok(run)
    }

    fn decode(bytes: &[u8], id: u64, parts: u32, synced: bool) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes, 0);
        let entries = reader.u64()?;
        let chunks = reader.count()?;
        let mut firsts = Vec::with_capacity(chunks);
        for _ in 0..chunks {
            firsts.push(reader.bytes()?.to_vec());
        }
        let last = reader.bytes()?.to_vec();
        let filter = Filter::from_bytes(reader.bytes()?.to_vec()).ok_or(Malformed("a filter of no size"))?;
        reader.end()?;
        Ok(Run {
            id,
            entries,
            parts,
            synced: AtomicBool::new(synced),
            firsts,
            last,
            filter,
        })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.firsts.len() * 32 + self.filter.bytes().len() + 64);
        put_u64(&mut out, self.entries);
        put_u64(&mut out, self.firsts.len() as u64);
        for first in &self.firsts {
            put_bytes(&mut out, first);
        }
        put_bytes(&mut out, &self.last);
        put_bytes(&mut out, self.filter.bytes());
        let own = checksum(&self.id.to_be_bytes(), &out);
        out.extend_from_slice(&own);
        out
    }
}

/// A run that is being written. What it has written means nothing until the manifest names the run.
pub(crate) struct Builder {
    run: Run,
    starts: Vec<u8>,
    entries: Vec<u8>,
}

impl Builder {
    /// A run of at most so many entries.
    pub(crate) fn new(id: u64, entries_max: u64) -> Self {
        let run = Run {
            id,
            entries: 0,
            parts: 0,
            synced: AtomicBool::new(false),
            firsts: Vec::new(),
            last: Vec::new(),
            filter: Filter::new(entries_max),
        };
        Builder {
            run,
            starts: Vec::new(),
            entries: Vec::with_capacity(CHUNK_BYTES * 2),
        }
    }

    /// Adds an entry, whose key is greater than those before.
    pub(crate) fn push(&mut self, db: &sled::Db, key: &[u8], cell: &Cell) -> Result<(), StoreError> {
        self.begin(key);
        put_bytes(&mut self.entries, key);
        match cell {
            Cell::Delete => self.entries.push(DELETE),
            Cell::Put(value) => {
                self.entries.push(PUT);
                put_bytes(&mut self.entries, value);
            }
            Cell::Union(members) => {
                self.entries.push(UNION);
                put_bytes(&mut self.entries, members);
            }
        }
        self.end(db, key)
    }

    /// Adds an entry of another run as it is, unless it is a deletion and those need not be kept.
    pub(crate) fn copy(
        &mut self,
        db: &sled::Db,
        chunk: &Chunk,
        nth: usize,
        key: &Range<usize>,
        keep_deleted: bool,
    ) -> Result<(), StoreError> {
        let (raw, is_deleted) = chunk.raw(nth, key)?;
        if is_deleted && !keep_deleted {
            return Ok(());
        }
        self.begin(chunk.at(key));
        self.entries.extend_from_slice(raw);
        self.end(db, chunk.at(key))
    }

    fn begin(&mut self, key: &[u8]) {
        if self.entries.is_empty() {
            self.run.firsts.push(key.to_vec());
        }
        // A chunk is closed long before 64 KiB, so that only the last entry of one can end beyond it.
        self.starts
            .extend_from_slice(&(self.entries.len() as u16).to_be_bytes());
    }

    fn end(&mut self, db: &sled::Db, key: &[u8]) -> Result<(), StoreError> {
        self.run.filter.insert(filter::hash(key));
        self.run.entries += 1;
        self.run.last.clear();
        self.run.last.extend_from_slice(key);
        if self.entries.len() >= CHUNK_BYTES {
            self.close_chunk(db)?;
        }
        Ok(())
    }

    fn close_chunk(&mut self, db: &sled::Db) -> Result<(), StoreError> {
        let key = chunk_key(b'p', self.run.id, self.run.chunks() - 1);
        let value = chunk_bytes(&key, &self.starts, &self.entries);
        guarded("writing the index", || db.insert(key, value))?;
        self.starts.clear();
        self.entries.clear();
        Ok(())
    }

    /// Writes what is left, and the head; `None` if there is nothing in it.
    pub(crate) fn finish(mut self, db: &sled::Db) -> Result<Option<Run>, StoreError> {
        if self.run.entries == 0 {
            return Ok(None);
        }
        if !self.entries.is_empty() {
            self.close_chunk(db)?;
        }
        let head = self.run.encode();
        for (part, bytes) in (0..).zip(head.chunks(CHUNK_BYTES_MAX)) {
            guarded("writing the index", || {
                db.insert(chunk_key(b'h', self.run.id, part), bytes)
            })?;
            self.run.parts = part + 1;
        }
        Ok(Some(self.run))
    }
}

fn chunk_bytes(key: &[u8], starts: &[u8], entries: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(6 + starts.len() + entries.len());
    value.extend_from_slice(&[0; 4]);
    value.extend_from_slice(&((starts.len() / 2) as u16).to_be_bytes());
    value.extend_from_slice(starts);
    value.extend_from_slice(entries);
    let own = checksum(key, &value[4..]);
    value[..4].copy_from_slice(&own);
    value
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use effectd_contracts::digest::hex;

    #[test]
    fn the_bytes_of_chunk_and_head_stay_what_they_are() {
        let db = sled::Config::new().temporary(true).open().unwrap();
        let mut builder = Builder::new(7, 3);
        builder.push(&db, b"a", &Cell::Put(b"one".to_vec())).unwrap();
        builder.push(&db, b"b", &Cell::Delete).unwrap();
        builder.push(&db, b"c", &Cell::Union(vec![1, 2])).unwrap();
        let run = builder.finish(&db).unwrap().unwrap();
        assert_eq!(run.parts, 1);
        let stored = |tag| hex(&db.get(chunk_key(tag, 7, 0)).unwrap().unwrap());
        assert_eq!(
            stored(b'p'),
            "f9a5a8e0000300000007000a016101036f6e65016200016302020102"
        );
        assert_eq!(
            stored(b'h'),
            "03010161016320068000008800000400020201006000049000010000200140002100400820010013e10336"
        );
    }
}
