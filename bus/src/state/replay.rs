//! Replaying the journal: from blocks to the state and the index that follow from them.

use super::checkpoint::{Checkpoint, Removed, divide};
use super::{BlockChanges, Derived, State, When};
use crate::codec::{Location, Malformed};
use crate::error::StoreError;
use crate::index::Applied;
use crate::index::memtable::Memtable;
use crate::journal::Journal;
use crate::journal::block::{self, BlockError};

/// The last block of a journal, and the state after it.
pub(crate) struct JournalTip {
    pub(crate) state: State,
    /// 0 before the first block.
    pub(crate) seq: u64,
    pub(crate) checksum: u32,
    pub(crate) at_ms: i64,
}

impl JournalTip {
    /// A state whose last block was not read yet.
    pub(crate) fn new(state: State) -> Self {
        JournalTip { state, seq: 0, checksum: 0, at_ms: i64::MIN }
    }

    /// The state before the first block of a journal, and its index.
    pub(crate) fn at_start(journal: &dyn Journal, when: When) -> Result<(Self, Memtable), StoreError> {
        Self::after(Checkpoint::of(journal)?, when)
    }

    /// The state and the index of a checkpoint, or of nothing.
    pub(crate) fn after(checkpoint: Option<Checkpoint>, when: When) -> Result<(Self, Memtable), StoreError> {
        let Some(checkpoint) = checkpoint else {
            return Ok((Self::new(State::default()), Memtable::default()));
        };
        let restored = State::restore(&checkpoint.snapshot, when);
        let (_, state) = restored.map_err(|Malformed(what)| Checkpoint::damaged(what))?;
        let tip = JournalTip {
            state,
            seq: checkpoint.first - 1,
            checksum: checkpoint.checksum,
            at_ms: checkpoint.at_ms,
        };
        Ok((tip, checkpoint.index))
    }

    /// Checks that a block follows, and makes it the last one without applying it.
    pub(crate) fn skip(&mut self, seq: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let previous = (self.seq != 0).then_some(self.checksum);
        if self.seq != 0 && seq != self.seq + 1 {
            return Err(BlockError::Damaged("a block that does not follow the one before it").at(seq));
        }
        let header = block::check_next(bytes, seq, previous)?;
        (self.seq, self.checksum, self.at_ms) = (seq, header.checksum, header.at_ms);
        Ok(())
    }

    /// Applies the next block.
    pub(crate) fn apply(&mut self, seq: u64, bytes: &[u8], when: When) -> Result<BlockChanges, StoreError> {
        self.skip(seq, bytes)?;
        let damaged = |error: Malformed| BlockError::from(error).at(seq);
        let at_ms = self.at_ms;
        let mut changes = BlockChanges::default();
        for record in block::records(bytes) {
            let (span, record) = record.map_err(damaged)?;
            let derived = Derived::of(&record, bytes);
            let location = Location { seq, span };
            self.state
                .apply(location, &record, derived, When { at_ms, ..when }, &mut changes)
                .map_err(damaged)?;
        }
        self.state.end_block(seq, at_ms, &mut changes);
        Ok(changes)
    }

    /// What an index holds after this block, and the size of the Merkle log.
    pub(crate) fn applied(&self) -> (Applied, u64) {
        let applied =
            Applied { seq: self.seq, checksum: self.checksum, snapshot: self.state.snapshot(self.seq) };
        (applied, self.state.log.size())
    }
}

/// The state and the index of the blocks before `end`.
pub(crate) fn replay(
    journal: &dyn Journal,
    end: u64,
    when: When,
) -> Result<(JournalTip, Memtable), StoreError> {
    let (mut tip, mut index) = JournalTip::at_start(journal, when)?;
    let last = journal.bounds()?.map_or(0, |(_, last)| last.min(end - 1));
    for seq in journal.first()..=last {
        let changes = tip.apply(seq, &journal.block(seq)?, when)?;
        index.extend(changes.index);
    }
    Ok((tip, index))
}

/// The checkpoint of a journal that begins with block `first`, and the index entries that are removed with earlier blocks.
pub(crate) fn checkpoint_before(
    journal: &dyn Journal,
    first: u64,
    when: When,
) -> Result<(Checkpoint, Vec<Removed>), StoreError> {
    let (tip, index) = replay(journal, first, when)?;
    let (index, removed) = divide(&tip.state, index, first);
    let checkpoint = Checkpoint {
        first,
        checksum: tip.checksum,
        at_ms: tip.at_ms,
        snapshot: tip.state.snapshot(first - 1),
        index,
    };
    Ok((checkpoint, removed))
}
