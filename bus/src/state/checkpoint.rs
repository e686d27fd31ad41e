//! Checkpoints: what a truncated journal begins with.
//!
//! A checkpoint is what follows from all blocks before its first one: the state, and the index entries that outlive those
//! blocks. So a journal with its checkpoint means the same as the complete journal, without what has expired. Live records
//! of the dropped blocks are copied to the end of the journal first; the checkpoint may still name their old locations,
//! which later blocks correct.

use crate::codec::{self, Malformed};
use crate::error::StoreError;
use crate::index::View;
use crate::index::memtable::{Cell, Memtable};
use crate::index::schema::{self, Dimension};
use crate::journal::Journal;
use crate::state::State;

const MARK: &str = "effectd ground 1";

/// An entry of the index: its key, whether it is a set of members, and its value.
type Kept<'a> = (&'a [u8], bool, &'a [u8]);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The first block after the checkpoint.
    pub first: u64,
    /// Checksum of the last dropped block.
    pub checksum: u32,
    /// Time of the last dropped block.
    pub at_ms: i64,
    /// The working state after the last dropped block.
    pub snapshot: Vec<u8>,
    /// The index after the last dropped block, without the entries that are removed with the dropped blocks.
    pub index: Memtable,
}

impl Checkpoint {
    /// Its bytes, without deletions.
    pub fn encode(&self) -> Vec<u8> {
        let cells = self.index.cells().iter();
        let cells: Vec<Kept<'_>> = cells
            .filter_map(|(key, cell)| match cell {
                Cell::Put(value) => Some((&key[..], false, &value[..])),
                Cell::Union(value) => Some((&key[..], true, &value[..])),
                Cell::Delete => None,
            })
            .collect();
        codec::encode_marked(MARK, &(self.first, self.checksum, self.at_ms, &self.snapshot, cells))
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (first, checksum, at_ms, snapshot, cells): (_, _, _, &[u8], Vec<Kept<'_>>) =
            codec::decode_marked(MARK, bytes)?;
        let mut index = Memtable::default();
        for (key, is_union, value) in cells {
            let cell = if is_union { Cell::Union } else { Cell::Put };
            index.set(key.to_vec(), cell(value.to_vec()));
        }
        Ok(Checkpoint { first, checksum, at_ms, snapshot: snapshot.to_vec(), index })
    }

    /// The checkpoint of a journal; `None` if no block was dropped.
    pub(crate) fn of(journal: &dyn Journal) -> Result<Option<Self>, StoreError> {
        let Some(bytes) = journal.checkpoint()? else {
            return Ok(None);
        };
        Self::read(&bytes, journal.first()).map(Some)
    }

    pub(crate) fn read(bytes: &[u8], first: u64) -> Result<Self, StoreError> {
        let checkpoint = Checkpoint::decode(bytes).map_err(|Malformed(what)| Self::damaged(what))?;
        if checkpoint.first != first {
            return Err(Self::damaged("it is of another block"));
        }
        Ok(checkpoint)
    }

    pub(crate) fn damaged(what: &str) -> StoreError {
        StoreError::damaged(format!("the checkpoint of the journal: {what}"))
    }
}

/// An entry that is removed from the index with the blocks that it points to.
pub(crate) type Removed = (Vec<u8>, Cell);

/// Divides the index of the dropped blocks into entries that outlive them and entries that are removed with them. A bucket
/// is removed when all numbers that it can hold have expired.
pub(crate) fn divide(state: &State, mut index: Memtable, first: u64) -> (Memtable, Vec<Removed>) {
    let dead: Vec<Vec<u8>> = index
        .cells()
        .iter()
        .filter(|(key, cell)| !outlives(state, &index, key, cell))
        .map(|(key, _)| key.clone())
        .collect();
    let dead = dead.into_iter().filter_map(|key| {
        let cell = index.take(&key)?;
        (cell != Cell::Delete).then_some((key, cell))
    });
    let dead = dead.collect();
    index.put(schema::cut(), schema::cut_value(first));
    (index, dead)
}

fn outlives(state: &State, index: &Memtable, key: &[u8], cell: &Cell) -> bool {
    if *cell == Cell::Delete {
        return false;
    }
    match key.first() {
        // Events, receipts, entries of the log, and lookups of them.
        Some(b'e' | b'i' | b'O' | b'L' | b'R' | b'A' | b'K' | b'b') => false,
        Some(b'x') => {
            let Some(bucket) = key.last_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes)) else {
                return true;
            };
            let (from, end) = (bucket << 8, bucket.saturating_add(1) << 8);
            let dimension = key.get(1).copied();
            if dimension == Some(Dimension::LetterTopic.byte()) {
                end > state.next_letter || index.has_between(&schema::letter(from), &schema::letter(end))
            } else if dimension == Some(Dimension::Note.byte()) {
                end > state.log.size()
            } else {
                end > state.next_ordinal
            }
        }
        // Dead letters (`D`), family entries (`F`), the mark (`Z`), and unknown tags: a new tag that points into blocks
        // belongs in the list above.
        Some(_) | None => true,
    }
}

/// Whether the index still has the value that dropped blocks gave to a key: later blocks may have replaced it.
pub(crate) fn is_unchanged(view: View<'_>, (key, cell): &Removed) -> Result<bool, StoreError> {
    let found = view.get(key)?;
    Ok(match cell {
        Cell::Put(value) => found.as_ref() == Some(value),
        Cell::Union(_) => found.is_some(),
        Cell::Delete => false,
    })
}

/// The first block whose entries the index has.
pub(crate) fn index_first(view: View<'_>) -> Result<u64, StoreError> {
    let found = view.get(&schema::cut())?;
    let first = found.map(|bytes| codec::decode(&bytes)).transpose();
    Ok(first.map_err(schema::malformed)?.unwrap_or(1))
}
