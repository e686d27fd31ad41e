//! Verification of an open store: state and index are what the journal says.

use std::collections::BTreeSet;

use super::LocalStore;
use crate::commands::Batch;
use crate::error::StoreError;
use crate::index::memtable::{Cell, Memtable};
use crate::state::When;
use crate::state::checkpoint::index_first;
use crate::state::replay::replay;
use crate::wait::Wait;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Audit {
    /// Number of the last block. Checksums and order of all kept blocks were checked.
    pub blocks: u64,
    /// Index entries that were compared.
    pub entries: u64,
}

impl LocalStore {
    /// Replays the whole journal with all checksums, and compares the result with the state and the index, byte for byte.
    /// Takes memory for the whole index, and blocks the writer.
    pub fn audit(&self) -> Wait<Audit> {
        self.submit(0, |batch| audit(batch))
    }
}

fn audit(batch: &Batch<'_>) -> Result<Audit, StoreError> {
    if !batch.block.is_empty() {
        // The journal does not have the other operations of this block yet.
        return Err(StoreError::unavailable("the store was written during the audit; try again"));
    }
    let journal = batch.reader.journal.as_ref();
    if index_first(batch.reader.index.view(None))? != journal.first() {
        return Err(StoreError::unavailable("old blocks are being dropped; try again"));
    }
    let when = When { replay: true, ..batch.when };
    let (tip, index) = replay(journal, u64::MAX, when)?;
    if tip.state.snapshot(tip.seq) != batch.state.snapshot(tip.seq) {
        return Err(differs("the working state"));
    }
    let entries = compare(batch, &index)?;
    Ok(Audit { blocks: tip.seq, entries })
}

fn compare(batch: &Batch<'_>, expected: &Memtable) -> Result<u64, StoreError> {
    let view = batch.view();
    let mut live = BTreeSet::new();
    for (key, cell) in expected.cells() {
        let found = view.get(key)?;
        let is_same = match cell {
            Cell::Put(value) | Cell::Union(value) => found.as_ref() == Some(value),
            Cell::Delete => found.is_none(),
        };
        if !is_same {
            return Err(differs("an entry of the index"));
        }
        if found.is_some() {
            live.insert(key.as_slice());
        }
    }
    for found in view.scan(Vec::new(), &[0xff]) {
        if !live.contains(found?.0.as_slice()) {
            return Err(differs("an entry of the index without a record"));
        }
    }
    Ok(live.len() as u64)
}

fn differs(what: &str) -> StoreError {
    StoreError::damaged(format!("{what} differs from the journal"))
}
