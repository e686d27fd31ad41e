//! Proving that what is served is what the journal says.

use std::collections::BTreeSet;

use super::LocalStore;
use super::recover::{fold_journal, index_first};
use crate::desk::Desk;
use crate::error::StoreError;
use crate::fold::When;
use crate::journal::ADVICE;
use crate::table::{Cell, Layer};
use crate::wait::Wait;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Audit {
    /// Blocks whose checksums and order were checked.
    pub blocks: u64,
    /// Index entries that were compared.
    pub entries: u64,
}

impl LocalStore {
    /// Reads the whole journal, checks every checksum and the chain, folds it anew, and compares the result with the
    /// working state and the index, byte for byte. Takes memory for the whole index; nothing else is written meanwhile.
    pub fn audit(&self) -> Wait<Audit> {
        self.submit(0, |desk| desk.audit())
    }
}

impl Desk<'_> {
    fn audit(&mut self) -> Result<Audit, StoreError> {
        if !self.block.is_empty() {
            // Others were decided before in this block, which the journal does not have yet.
            return Err(StoreError::Unavailable {
                reason: "an audit needs a moment without writes; try again".into(),
            });
        }
        if index_first(&self.served.table)? != self.served.journal.first() {
            return Err(StoreError::Unavailable {
                reason: "old blocks are being let go; try again".into(),
            });
        }
        let when = When {
            replay: true,
            ..self.when
        };
        let (fold, index, last) = fold_journal(self.served.journal.as_ref(), when)?;
        if fold.snapshot(last) != self.fold.snapshot(last) {
            return Err(differs("the working state"));
        }
        let entries = self.compare(&index)?;
        Ok(Audit {
            blocks: last,
            entries,
        })
    }

    fn compare(&self, index: &Layer) -> Result<u64, StoreError> {
        let view = self.view();
        let mut live = BTreeSet::new();
        for (key, cell) in index.cells() {
            let served = view.get(key)?;
            let same = match cell {
                Cell::Put(value) | Cell::Union(value) => served.as_ref() == Some(value),
                Cell::Delete => served.is_none(),
            };
            if !same {
                return Err(differs("an entry of the index"));
            }
            if served.is_some() {
                live.insert(key.as_slice());
            }
        }
        let mut from = Vec::new();
        while let Some((key, _)) = view.next(&from, &[0xff])? {
            if !live.contains(key.as_slice()) {
                return Err(differs("an entry of the index that nothing accounts for"));
            }
            from = key;
            from.push(0);
        }
        Ok(live.len() as u64)
    }
}

fn differs(what: &str) -> StoreError {
    StoreError::Damaged {
        what: format!("{what} is not what the journal says"),
        advice: ADVICE,
    }
}
