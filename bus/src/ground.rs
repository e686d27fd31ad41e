//! What a shortened journal stands on.
//!
//! When old blocks are let go, what they said that still matters must not go with them. A ground is what followed from
//! all blocks before a certain one: the working state, and those entries of the index that outlive the blocks. It is made
//! by the fold, like everything else, so a journal on its ground says exactly what the longer journal said, without what
//! has expired. What lies *in* the old blocks and is still alive was written forward before; the ground may still name its
//! old place, which the journal corrects further on.
//!
//! | | |
//! |---|---|
//! | text | `effectd ground 1` |
//! | number | the first block that stands on it |
//! | 4 bytes | checksum of the block before that |
//! | number | that block's time |
//! | bytes | the working state after it, as a snapshot |
//! | number | how many entries of the index follow |
//! | each | key, 0 for a value or 1 for members, and the bytes |
//! | 4 bytes | CRC-32 of all before |

use crate::codec::{Malformed, Reader, put_bytes, put_i64, put_str, put_u64};
use crate::error::StoreError;
use crate::fold::Fold;
use crate::journal::{ADVICE, Journal};
use crate::keys::{self, Dimension};
use crate::table::{Cell, Layer};

const MARK: &str = "effectd ground 1";

/// What the blocks from a certain one on stand on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ground {
    /// The first block that stands on it.
    pub first: u64,
    /// Checksum of the block before.
    pub checksum: u32,
    /// Time of the block before.
    pub at_ms: i64,
    /// The working state after the block before.
    pub snapshot: Vec<u8>,
    /// The index after the block before, save what went with the blocks.
    pub index: Layer,
}

impl Ground {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_str(&mut out, MARK);
        put_u64(&mut out, self.first);
        out.extend_from_slice(&self.checksum.to_be_bytes());
        put_i64(&mut out, self.at_ms);
        put_bytes(&mut out, &self.snapshot);
        let live = || {
            let cells = self.index.cells().iter();
            cells.filter_map(|(key, cell)| match cell {
                Cell::Put(value) => Some((key, 0, value)),
                Cell::Union(value) => Some((key, 1, value)),
                Cell::Delete => None,
            })
        };
        put_u64(&mut out, live().count() as u64);
        for (key, kind, value) in live() {
            put_bytes(&mut out, key);
            out.push(kind);
            put_bytes(&mut out, value);
        }
        let own = crc32fast::hash(&out);
        out.extend_from_slice(&own.to_be_bytes());
        out
    }

    /// Reads its bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (bytes, own) = bytes
            .split_last_chunk::<4>()
            .ok_or(Malformed("a ground that is too short"))?;
        if crc32fast::hash(bytes).to_be_bytes() != *own {
            return Err(Malformed("a ground whose checksum does not fit"));
        }
        let mut reader = Reader::new(bytes, 0);
        if reader.text()? != MARK {
            return Err(Malformed("a ground of another format"));
        }
        let mut ground = Ground {
            first: reader.u64()?,
            checksum: u32::from_be_bytes(reader.array()?),
            at_ms: reader.i64()?,
            snapshot: reader.bytes()?.to_vec(),
            index: Layer::default(),
        };
        for _ in 0..reader.count()? {
            let key = reader.bytes()?.to_vec();
            let members = reader.flag()?;
            let value = reader.bytes()?.to_vec();
            let cell = if members {
                Cell::Union(value)
            } else {
                Cell::Put(value)
            };
            ground.index.set(key, cell);
        }
        reader.end()?;
        Ok(ground)
    }

    /// What a journal stands on; `None` if it has its first block still.
    pub(crate) fn of(journal: &dyn Journal) -> Result<Option<Self>, StoreError> {
        let Some(bytes) = journal.ground()? else {
            return Ok(None);
        };
        let damaged = |what: &str| StoreError::Damaged {
            what: format!("what the journal stands on: {what}"),
            advice: ADVICE,
        };
        let ground = Ground::decode(&bytes).map_err(|Malformed(what)| damaged(what))?;
        if ground.first != journal.first() {
            return Err(damaged("it is of another block"));
        }
        Ok(Some(ground))
    }
}

/// Divides an index, as it followed from the blocks that are let go, into what outlives them and what goes with them.
/// Members of a bucket go when all numbers that it can ever hold have gone.
pub(crate) fn divide(fold: &Fold, mut index: Layer, first: u64) -> (Layer, Vec<(Vec<u8>, Cell)>) {
    let dead: Vec<Vec<u8>> = index
        .cells()
        .iter()
        .filter(|(key, cell)| !outlives(fold, &index, key, cell))
        .map(|(key, _)| key.clone())
        .collect();
    let dead = dead.into_iter().filter_map(|key| {
        let cell = index.take(&key)?;
        (cell != Cell::Delete).then_some((key, cell))
    });
    let dead = dead.collect();
    index.put(keys::cut(), keys::cut_value(first));
    (index, dead)
}

fn outlives(fold: &Fold, index: &Layer, key: &[u8], cell: &Cell) -> bool {
    if *cell == Cell::Delete {
        return false;
    }
    match key.first() {
        // Events, receipts, entries of the log, and what leads to them.
        Some(b'e' | b'i' | b'O' | b'L' | b'R' | b'A' | b'K' | b'b') => false,
        Some(b'x') => {
            let Some(bucket) = key.last_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes)) else {
                return true;
            };
            let (from, end) = (bucket << 8, bucket.saturating_add(1) << 8);
            let dimension = key.get(1).copied();
            if dimension == Some(Dimension::LetterTopic.byte()) {
                end > fold.next_letter || index.has_between(&keys::letter(from), &keys::letter(end))
            } else if dimension == Some(Dimension::Note.byte()) {
                end > fold.log.size()
            } else {
                end > fold.next_ordinal
            }
        }
        // Dead letters, entries, and whatever later versions keep for good.
        Some(_) | None => true,
    }
}
