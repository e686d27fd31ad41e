//! Blocks: the unit of durability.
//!
//! A block holds the records of all operations that the writer took from its queue at once. It has the checksum of the
//! block before it, so a block that is missing, changed or out of order breaks the chain.
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | `efjb` |
//! | 4 | format, [`FORMAT`] |
//! | 5..8 | zero |
//! | 8..16 | number of the block, counted from 1 |
//! | 16..20 | checksum of the block before; 0 for the first |
//! | 20..28 | wall time in milliseconds, never less than that of the block before |
//! | 28..32 | number of records |
//! | 32..36 | bytes of records |
//! | 36..40 | CRC-32 of bytes 0..36 and of the records |
//! | 40.. | the records, each after its length in four bytes |
//!
//! Numbers of fixed size are big-endian.

use super::record::Record;
use crate::codec::{Malformed, Span, fixed};
use crate::error::StoreError;

/// The format of journal, index and keys together. A store of another format does not open.
pub const FORMAT: u8 = 3;
/// Bytes before the first record.
pub const HEADER_BYTES: usize = 40;
const LENGTH_BYTES: usize = 4;
/// Largest buffer that is kept for the next block.
const SPARE_BYTES_MAX: usize = 2 << 20;
pub(crate) const MAGIC: &[u8; 4] = b"efjb";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Its number, counted from 1.
    pub seq: u64,
    /// Checksum of the block before.
    pub previous: u32,
    /// When it was written, in milliseconds since 1970.
    pub at_ms: i64,
    pub records: u32,
    pub checksum: u32,
}

/// A block that is being filled.
#[derive(Debug)]
pub struct Builder {
    seq: u64,
    previous: u32,
    at_ms: i64,
    records: u32,
    bytes: Vec<u8>,
}

#[expect(clippy::cast_possible_truncation, reason = "operations and blocks are bounded far below 4 GiB")]
impl Builder {
    pub fn new(seq: u64, previous: u32, at_ms: i64) -> Self {
        Builder { seq, previous, at_ms, records: 0, bytes: vec![0; HEADER_BYTES] }
    }

    /// An empty block in the buffer of an earlier one.
    pub fn reusing(mut spare: Vec<u8>, seq: u64, previous: u32, at_ms: i64) -> Self {
        spare.clear();
        if spare.capacity() > SPARE_BYTES_MAX {
            spare = Vec::new();
        }
        spare.resize(HEADER_BYTES, 0);
        Builder { bytes: spare, ..Builder::new(seq, previous, at_ms) }
    }

    /// Reserves memory for this many bytes of records.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    pub fn seq(&self) -> u64 {
        self.seq
    }

    pub fn at_ms(&self) -> i64 {
        self.at_ms
    }

    pub fn records(&self) -> u32 {
        self.records
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The records so far, after an empty header.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Appends a record, whose drafts become spans, and returns its span.
    pub fn push(&mut self, record: &mut Record) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; LENGTH_BYTES]);
        record.encode(&mut self.bytes);
        let len = (self.bytes.len() - start - LENGTH_BYTES) as u32;
        self.bytes[start..start + LENGTH_BYTES].copy_from_slice(&len.to_be_bytes());
        self.records += 1;
        Span { at: (start + LENGTH_BYTES) as u32, len }
    }

    pub fn finish(mut self) -> (Vec<u8>, u32) {
        self.bytes[0..4].copy_from_slice(MAGIC);
        self.bytes[4] = FORMAT;
        self.bytes[8..16].copy_from_slice(&self.seq.to_be_bytes());
        self.bytes[16..20].copy_from_slice(&self.previous.to_be_bytes());
        self.bytes[20..28].copy_from_slice(&self.at_ms.to_be_bytes());
        self.bytes[28..32].copy_from_slice(&self.records.to_be_bytes());
        let len = (self.bytes.len() - HEADER_BYTES) as u32;
        self.bytes[32..36].copy_from_slice(&len.to_be_bytes());
        let checksum = checksum(&self.bytes);
        self.bytes[36..40].copy_from_slice(&checksum.to_be_bytes());
        (self.bytes, checksum)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    #[error("{0}")]
    Damaged(&'static str),
    /// Another version of effectd wrote it.
    #[error("format {0}")]
    Newer(u8),
}

impl BlockError {
    /// The error of block `seq` of the journal.
    pub(crate) fn at(&self, seq: u64) -> StoreError {
        match self {
            BlockError::Newer(found) => {
                StoreError::Format { found: u32::from(*found), known: u32::from(FORMAT) }
            }
            BlockError::Damaged(what) => StoreError::damaged(format!("block {seq} of the journal: {what}")),
        }
    }
}

impl From<Malformed> for BlockError {
    fn from(Malformed(what): Malformed) -> Self {
        BlockError::Damaged(what)
    }
}

/// Checks a whole block and reads its header.
pub fn check(bytes: &[u8]) -> Result<Header, BlockError> {
    if bytes.len() < HEADER_BYTES || &bytes[0..4] != MAGIC {
        return Err(BlockError::Damaged("a block without its magic bytes"));
    }
    // Format 0 does not exist: a header that ends in zeros is damaged.
    if bytes[4] != FORMAT && bytes[4] != 0 {
        return Err(BlockError::Newer(bytes[4]));
    }
    let seq = u64::from_be_bytes(fixed(bytes, 8));
    let previous = u32::from_be_bytes(fixed(bytes, 16));
    let at_ms = i64::from_be_bytes(fixed(bytes, 20));
    let records = u32::from_be_bytes(fixed(bytes, 28));
    let len = u32::from_be_bytes(fixed(bytes, 32));
    let stated = u32::from_be_bytes(fixed(bytes, 36));
    if len as usize != bytes.len() - HEADER_BYTES {
        return Err(BlockError::Damaged("a block of the wrong length"));
    }
    if checksum(bytes) != stated {
        return Err(BlockError::Damaged("a block with a wrong checksum"));
    }
    Ok(Header { seq, previous, at_ms, records, checksum: stated })
}

/// Checks that a block is number `seq` and follows the block with the checksum `previous`.
pub(crate) fn check_next(bytes: &[u8], seq: u64, previous: Option<u32>) -> Result<Header, StoreError> {
    let header = check(bytes).map_err(|error| error.at(seq))?;
    if header.seq != seq || previous.is_some_and(|previous| previous != header.previous) {
        return Err(BlockError::Damaged("a block that does not follow the one before it").at(seq));
    }
    Ok(header)
}

/// The whole block at the beginning of some bytes, and its length.
pub(crate) fn whole_at(bytes: &[u8]) -> Option<(Header, usize)> {
    if !bytes.starts_with(MAGIC) {
        return None;
    }
    let len = u32::from_be_bytes(*bytes.get(32..36)?.first_chunk()?) as usize;
    let whole = HEADER_BYTES.checked_add(len)?;
    let header = check(bytes.get(..whole)?).ok()?;
    Some((header, whole))
}

/// The records of a checked block, each with its span.
pub fn records(bytes: &[u8]) -> impl Iterator<Item = Result<(Span, Record), Malformed>> + '_ {
    let mut at = HEADER_BYTES;
    std::iter::from_fn(move || {
        (at < bytes.len()).then(|| {
            let (span, next) = next_span(bytes, at)?;
            at = next;
            Ok((span, Record::decode(&bytes[span.at as usize..next], span)?))
        })
    })
    .scan(false, |failed, item: Result<_, Malformed>| {
        // Bytes after a record that does not decode have no meaning.
        if *failed {
            return None;
        }
        *failed = item.is_err();
        Some(item)
    })
}

fn next_span(bytes: &[u8], at: usize) -> Result<(Span, usize), Malformed> {
    let too_early = Malformed("a record that ends too early");
    let start = at + LENGTH_BYTES;
    let length = bytes.get(at..start).ok_or(too_early.clone())?;
    let len = u32::from_be_bytes(length.try_into().map_err(|_| too_early.clone())?);
    let end = start + len as usize;
    if end > bytes.len() {
        return Err(too_early);
    }
    let at = u32::try_from(start).map_err(|_| Malformed("a block beyond 4 GiB"))?;
    Ok((Span { at, len }, end))
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..36]);
    hasher.update(&bytes[HEADER_BYTES..]);
    hasher.finalize()
}
