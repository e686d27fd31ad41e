//! A run: a sorted file of index entries that is written once and never changed.
//!
//! | bytes of the file | |
//! |---|---|
//! | 0..8 | `efrun`, two zeros, format 1 |
//! | then | the chunks |
//! | then | the head: count of entries; of every chunk its length and first key; last key; filter |
//! | last 32 | number of the run, where the head begins (8 each), its length, its CRC-32, `efre`, CRC-32 of these 28 bytes |
//!
//! Numbers at the end are big-endian. The head is held in memory, so a lookup reads at most one chunk.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::bloom::{BloomFilter, Probe};
use super::cache::Cache;
use super::chunk::{Chunk, malformed};
use super::memtable::Cell;
use crate::codec::{self, Malformed, fixed};
use crate::error::StoreError;
use crate::files::io_error;

/// The first bytes of a run; the last one is the format.
pub(super) const BEGINNING: &[u8; 8] = b"efrun\0\0\x01";
const ENDING: &[u8; 4] = b"efre";
pub(super) const FOOTER_BYTES: usize = 32;

/// First keys of chunks, in one buffer: they are many and short.
#[derive(Debug, Default)]
pub(super) struct Firsts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Firsts {
    pub(super) fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, nth: usize) -> Option<&[u8]> {
        let end = *self.ends.get(nth)?;
        let start = nth.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..end])
    }

    /// How many are not greater than this key.
    fn up_to(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.get(middle).is_some_and(|first| first <= key) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// A chunk: its length, and its first key.
type Listed<'a> = (u64, &'a [u8]);

#[derive(Debug, Default)]
pub(super) struct Head {
    pub(super) entries: u64,
    pub(super) firsts: Firsts,
    /// Where each chunk ends in the file.
    pub(super) ends: Vec<u64>,
    pub(super) last: Vec<u8>,
    pub(super) filter: BloomFilter,
}

impl Head {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut start = BEGINNING.len() as u64;
        let ends = self.ends.iter().enumerate();
        let chunks: Vec<Listed<'_>> = ends
            .map(|(nth, end)| {
                let len = end - std::mem::replace(&mut start, *end);
                (len, self.firsts.get(nth).unwrap_or_default())
            })
            .collect();
        codec::encode(&(self.entries, chunks, &self.last, self.filter.bytes()))
    }

    /// Decodes the head, which begins at the offset where the chunks end.
    fn decode(bytes: &[u8], begins_at: u64) -> Result<Self, Malformed> {
        let (entries, chunks, last, filter): (_, Vec<Listed<'_>>, &[u8], &[u8]) = codec::decode(bytes)?;
        let mut firsts = Firsts::default();
        let mut ends = Vec::with_capacity(chunks.len());
        let mut end = BEGINNING.len() as u64;
        for (len, first) in &chunks {
            end = end.checked_add(*len).ok_or(Malformed("a chunk beyond its run"))?;
            ends.push(end);
            firsts.push(first);
        }
        if chunks.is_empty() || end != begins_at {
            return Err(Malformed("chunks that do not fill their run"));
        }
        Ok(Head {
            entries,
            firsts,
            ends,
            last: last.to_vec(),
            filter: BloomFilter::from_bytes(filter.to_vec()).ok_or(Malformed("an empty filter"))?,
        })
    }
}

pub(super) fn footer(id: u64, begins_at: u64, head: &[u8]) -> [u8; FOOTER_BYTES] {
    let mut out = [0; FOOTER_BYTES];
    out[..8].copy_from_slice(&id.to_be_bytes());
    out[8..16].copy_from_slice(&begins_at.to_be_bytes());
    out[16..20].copy_from_slice(&(head.len() as u32).to_be_bytes());
    out[20..24].copy_from_slice(&crc32fast::hash(head).to_be_bytes());
    out[24..28].copy_from_slice(ENDING);
    let own = crc32fast::hash(&out[..28]);
    out[28..].copy_from_slice(&own.to_be_bytes());
    out
}

/// A run's number, and the checksum of its footer, which covers that of its head.
pub(super) type RunName = (u64, u32);

#[derive(Debug)]
pub(crate) struct Run {
    pub(super) name: RunName,
    pub(super) head: Head,
    file: File,
}

impl Run {
    pub(super) fn new(name: RunName, head: Head, file: File) -> Self {
        Run { name, head, file }
    }

    /// Opens a run, and checks that the file is complete and has this name.
    pub(super) fn open(path: &Path, name: RunName) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(|error| read_failed(path, error))?;
        let read = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            let result = file.read_exact_at(&mut bytes, at);
            result.map(|()| bytes).map_err(|error| read_failed(path, error))
        };
        let len = file.metadata().map_err(|error| read_failed(path, error))?.len();
        let least = (BEGINNING.len() + FOOTER_BYTES) as u64;
        if len < least || read(0, BEGINNING.len())? != BEGINNING {
            return Err(StoreError::index_damaged("a run without its magic bytes, or of another format"));
        }
        let footer_at = len - FOOTER_BYTES as u64;
        let found = read(footer_at, FOOTER_BYTES)?;
        let (id, begins_at) = (u64::from_be_bytes(fixed(&found, 0)), u64::from_be_bytes(fixed(&found, 8)));
        let head_len = footer_at.checked_sub(begins_at);
        let head_len = head_len.and_then(|len| usize::try_from(len).ok());
        let head = read(begins_at, head_len.ok_or_else(|| StoreError::index_damaged("a truncated run"))?)?;
        let own = u32::from_be_bytes(fixed(&found, 28));
        if footer(id, begins_at, &head)[..] != found[..] || (id, own) != name {
            return Err(StoreError::index_damaged("a run that differs from what was written"));
        }
        let head = Head::decode(&head, begins_at).map_err(malformed)?;
        Ok(Run { name, head, file })
    }

    pub(super) fn id(&self) -> u64 {
        self.name.0
    }

    pub(super) fn chunks(&self) -> u32 {
        self.head.ends.len() as u32
    }

    pub(super) fn read(&self, number: u32) -> Result<Chunk, StoreError> {
        let nth = number as usize;
        let start = nth
            .checked_sub(1)
            .map_or(Some(BEGINNING.len() as u64), |before| self.head.ends.get(before).copied());
        let (Some(start), Some(end)) = (start, self.head.ends.get(nth)) else {
            return Err(StoreError::index_damaged("a missing chunk"));
        };
        let mut bytes = vec![0; (end - start) as usize];
        let read = self.file.read_exact_at(&mut bytes, start);
        read.map_err(|error| read_failed("the index".as_ref(), error))?;
        Chunk::decode((self.id(), number), bytes)
    }

    fn chunk(&self, cache: &Cache, number: u32) -> Result<Chunk, StoreError> {
        let name = (self.id(), number);
        if let Some(found) = cache.get(name) {
            return Ok(found);
        }
        let found = self.read(number)?;
        cache.put(name, &found);
        Ok(found)
    }

    /// The chunk that may have the key; `None` for a key before all chunks.
    fn chunk_of(&self, key: &[u8]) -> Option<u32> {
        let up_to = self.head.firsts.up_to(key);
        up_to.checked_sub(1).map(|chunk| chunk as u32)
    }

    /// Whether the run may have a key; `false` is certain.
    pub(super) fn may_have(&self, probe: &Probe) -> bool {
        self.head.filter.may_have(probe)
    }

    pub(super) fn get(&self, cache: &Cache, key: &[u8]) -> Result<Option<Cell>, StoreError> {
        let Some(chunk) = self.chunk_of(key) else {
            return Ok(None);
        };
        let chunk = self.chunk(cache, chunk)?;
        let nth = chunk.before(key)?;
        if nth < chunk.count && chunk.key(nth)? == key {
            return chunk.cell(nth).map(Some);
        }
        Ok(None)
    }

    /// The first key in `from..end`.
    pub(super) fn next(&self, cache: &Cache, from: &[u8], end: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if from > self.head.last.as_slice() {
            return Ok(None);
        }
        let first_of = |nth: usize| self.head.firsts.get(nth).map(<[u8]>::to_vec);
        let found = match self.chunk_of(from) {
            None => first_of(0),
            Some(number) => {
                let chunk = self.chunk(cache, number)?;
                let nth = chunk.before(from)?;
                if nth < chunk.count { Some(chunk.key(nth)?.to_vec()) } else { first_of(number as usize + 1) }
            }
        };
        Ok(found.filter(|key| key.as_slice() < end))
    }

    /// The last key in `start..=to`.
    pub(super) fn previous(
        &self,
        cache: &Cache,
        start: &[u8],
        to: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        if start > self.head.last.as_slice() {
            return Ok(None);
        }
        let Some(chunk) = self.chunk_of(to) else {
            return Ok(None);
        };
        let chunk = self.chunk(cache, chunk)?;
        let nth = chunk.before(to)?;
        let nth = if nth < chunk.count && chunk.key(nth)? == to {
            nth
        } else {
            nth.checked_sub(1)
                .ok_or_else(|| StoreError::index_damaged("a chunk that begins after its first key"))?
        };
        let key = chunk.key(nth)?;
        Ok((key >= start).then(|| key.to_vec()))
    }
}

/// A file that is missing or too short is damage; other errors are the disk's.
pub(super) fn read_failed(path: &Path, error: std::io::Error) -> StoreError {
    if error.kind() == ErrorKind::NotFound {
        StoreError::index_damaged("a missing file")
    } else if error.kind() == ErrorKind::UnexpectedEof {
        StoreError::index_damaged("a truncated file")
    } else {
        io_error(path, error)
    }
}
