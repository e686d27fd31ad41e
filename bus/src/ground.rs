//! What a shortened journal stands on.
//!
//! When old blocks are let go, what they said that still matters must not go with them. A ground is what followed from
//! all blocks before a certain one: the working state, and those entries of the index that outlive the blocks. It is made
//! by the fold, like everything else, so a journal on its ground says exactly what the longer journal said, without what
//! has expired. What lies *in* the old blocks and is still alive was written forward before; the ground may still name its
//! old place, which the journal corrects further on.

use crate::codec::{self, Malformed};
use crate::error::StoreError;
use crate::fold::Fold;
use crate::journal::{ADVICE, Journal};
use crate::keys::{self, Dimension};
use crate::table::{Cell, Layer};

const MARK: &str = "effectd ground 1";

/// An entry of the index: its key, whether it is a set of members, and its value.
type Kept<'a> = (&'a [u8], bool, &'a [u8]);

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
    /// Its bytes, without entries that are gone.
    pub fn encode(&self) -> Vec<u8> {
        let cells = self.index.cells().iter();
        let cells: Vec<Kept<'_>> = cells
            .filter_map(|(key, cell)| match cell {
                Cell::Put(value) => Some((&key[..], false, &value[..])),
                Cell::Union(value) => Some((&key[..], true, &value[..])),
                Cell::Delete => None,
            })
            .collect();
        codec::encode_marked(
            MARK,
            &(self.first, self.checksum, self.at_ms, &self.snapshot, cells),
        )
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (first, checksum, at_ms, snapshot, cells): (_, _, _, &[u8], Vec<Kept<'_>>) =
            codec::decode_marked(MARK, bytes)?;
        let mut index = Layer::default();
        for (key, is_union, value) in cells {
            let cell = if is_union { Cell::Union } else { Cell::Put };
            index.set(key.to_vec(), cell(value.to_vec()));
        }
        Ok(Ground {
            first,
            checksum,
            at_ms,
            snapshot: snapshot.to_vec(),
            index,
        })
    }

    /// What a journal stands on; `None` if it has its first block still.
    pub(crate) fn of(journal: &dyn Journal) -> Result<Option<Self>, StoreError> {
        let Some(bytes) = journal.ground()? else {
            return Ok(None);
        };
        Self::read(&bytes, journal.first()).map(Some)
    }

    pub(crate) fn read(bytes: &[u8], first: u64) -> Result<Self, StoreError> {
        let damaged = |what: &str| StoreError::Damaged {
            what: format!("what the journal stands on: {what}"),
            advice: ADVICE,
        };
        let ground = Ground::decode(bytes).map_err(|Malformed(what)| damaged(what))?;
        if ground.first != first {
            return Err(damaged("it is of another block"));
        }
        Ok(ground)
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
