//! Chunks: the part of a run that is read and checked at once.
//!
//! A chunk is its CRC-32 (of run, number and the rest), the count of its entries, their offsets, and the entries: key,
//! kind, value. Count and offsets have two bytes each, big-endian.

use std::ops::Range;
use std::sync::Arc;

use super::memtable::Cell;
use crate::codec::{Malformed, decode_first};
use crate::error::StoreError;

/// Bytes before the first offset.
const FIXED_BYTES: usize = 6;
pub(super) const DELETE: u8 = 0;
pub(super) const PUT: u8 = 1;
pub(super) const UNION: u8 = 2;

pub(super) fn malformed(error: Malformed) -> StoreError {
    StoreError::index_damaged(error.0)
}

fn checksum((run, number): (u64, u32), rest: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&run.to_be_bytes());
    hasher.update(&number.to_be_bytes());
    hasher.update(rest);
    hasher.finalize().to_be_bytes()
}

pub(super) fn encode(name: (u64, u32), starts: &[u8], entries: &[u8], out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&((starts.len() / 2) as u16).to_be_bytes());
    out.extend_from_slice(starts);
    out.extend_from_slice(entries);
    let own = checksum(name, &out[begin + 4..]);
    out[begin..begin + 4].copy_from_slice(&own);
}

/// A checked chunk.
#[derive(Clone)]
pub(crate) struct Chunk {
    bytes: Arc<[u8]>,
    pub(super) count: usize,
}

impl Chunk {
    pub(super) fn decode(name: (u64, u32), bytes: Vec<u8>) -> Result<Self, StoreError> {
        if bytes.len() < FIXED_BYTES || bytes[..4] != checksum(name, &bytes[4..]) {
            return Err(StoreError::index_damaged("a chunk with a wrong checksum"));
        }
        let count = usize::from(u16::from_be_bytes([bytes[4], bytes[5]]));
        if count == 0 || bytes.len() < FIXED_BYTES + count * 2 {
            return Err(StoreError::index_damaged("a chunk that is too short"));
        }
        Ok(Chunk { bytes: bytes.into(), count })
    }

    #[cfg(test)]
    pub(super) fn of(bytes: Vec<u8>, count: usize) -> Self {
        Chunk { bytes: bytes.into(), count }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of the chunk from an entry on.
    fn entry(&self, nth: usize) -> Result<&[u8], StoreError> {
        let at = FIXED_BYTES + nth * 2;
        let start = usize::from(u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]));
        let entry = self.bytes.get(FIXED_BYTES + self.count * 2 + start..);
        entry.ok_or_else(|| StoreError::index_damaged("an entry outside its chunk"))
    }

    fn key_and_rest(&self, nth: usize) -> Result<(&[u8], &[u8]), StoreError> {
        decode_first(self.entry(nth)?).map_err(malformed)
    }

    pub(super) fn key_range(&self, nth: usize) -> Result<Range<usize>, StoreError> {
        let (key, rest) = self.key_and_rest(nth)?;
        let end = self.bytes.len() - rest.len();
        Ok(end - key.len()..end)
    }

    pub(super) fn at(&self, key: &Range<usize>) -> &[u8] {
        &self.bytes[key.clone()]
    }

    /// The bytes of an entry, and whether it is a deletion.
    pub(super) fn raw(&self, nth: usize, key: &Range<usize>) -> Result<(&[u8], bool), StoreError> {
        let start = self.bytes.len() - self.entry(nth)?.len();
        let end = if nth + 1 < self.count {
            self.bytes.len() - self.entry(nth + 1)?.len()
        } else {
            self.bytes.len()
        };
        let raw = self.bytes.get(start..end).filter(|_| key.end < end);
        let raw = raw.ok_or_else(|| StoreError::index_damaged("an entry outside its chunk"))?;
        Ok((raw, self.bytes[key.end] == DELETE))
    }

    pub(super) fn key(&self, nth: usize) -> Result<&[u8], StoreError> {
        Ok(self.key_and_rest(nth)?.0)
    }

    pub(super) fn cell(&self, nth: usize) -> Result<Cell, StoreError> {
        let value = |rest| {
            let (value, _): (&[u8], _) = decode_first(rest).map_err(malformed)?;
            Ok(value.to_vec())
        };
        match self.key_and_rest(nth)?.1.split_first() {
            Some((&DELETE, _)) => Ok(Cell::Delete),
            Some((&PUT, rest)) => value(rest).map(Cell::Put),
            Some((&UNION, rest)) => value(rest).map(Cell::Union),
            Some(_) | None => Err(StoreError::index_damaged("an entry of an unknown kind")),
        }
    }

    /// How many keys are less than this one.
    pub(super) fn before(&self, key: &[u8]) -> Result<usize, StoreError> {
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
