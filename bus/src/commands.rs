//! Commands: each operation is checked against the state and becomes records.
//!
//! An operation first checks everything it needs, then emits its records. So a refused operation leaves nothing behind,
//! and all records of one operation are in one block.

mod claims;
mod completions;
mod dead_letters;
pub(crate) mod drafts;
mod epochs;
mod groups;
mod kv;
mod retention;
mod topics;

pub(crate) use claims::{Admittance, ClaimVerdict};
pub(crate) use groups::Grant;
pub(crate) use retention::Relocated;

use std::collections::BTreeMap;

use effectd_contracts::{Clock, Digest, ReceiptId, Timestamp};

use crate::codec::{Hash16, Location};
use crate::error::StoreError;
use crate::index::View;
use crate::journal::block::Builder;
use crate::journal::record::{Blob, Payload, Record};
use crate::reads::Reader;
use crate::state::{BlockChanges, Derived, State, When};
use crate::vault::{Kind, Vault};

/// The operations that become one block.
pub(crate) struct Batch<'a> {
    pub(crate) reader: &'a Reader,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) state: &'a mut State,
    pub(crate) block: Builder,
    pub(crate) changes: BlockChanges,
    pub(crate) when: When,
    /// Receipts of this block, which cannot be read yet.
    pub(crate) receipts: BTreeMap<u64, ReceiptId>,
    /// An operation failed after it had emitted a record: the block must not be written.
    pub(crate) tainted: bool,
    /// The first lasting damage that an operation met.
    pub(crate) damage: Option<StoreError>,
    /// Why new work is refused; work in progress is still recorded.
    pub(crate) refusal: Option<StoreError>,
}

impl Batch<'_> {
    /// The index with the changes of this block.
    pub(crate) fn view(&self) -> View<'_> {
        self.reader.index.view(Some(&self.changes.index))
    }

    /// Emits a record, which later operations see.
    fn emit(&mut self, record: Record) -> Result<(), StoreError> {
        self.emit_derived(record, Derived::default())
    }

    /// Emits a record from whose bodies something follows. The caller's thread has computed that, so that the writer does not.
    fn emit_derived(&mut self, mut record: Record, derived: Derived) -> Result<(), StoreError> {
        let location = Location { span: self.block.push(&mut record), seq: self.block.seq() };
        self.state
            .apply(location, &record, derived, self.when, &mut self.changes)
            // Only a bug emits a record that does not follow from the state; the block is not written.
            .map_err(|error| StoreError::damaged(format!("an operation does not fit the state: {error}")))
    }

    /// The id of a receipt, which may be in this block.
    fn receipt_id_of(&self, ordinal: u64) -> Result<ReceiptId, StoreError> {
        match self.receipts.get(&ordinal) {
            Some(id) => Ok(id.clone()),
            None => self.reader.receipt(ordinal).map(|receipt| receipt.receipt_id),
        }
    }

    pub(crate) fn vault(&self) -> &Vault {
        &self.reader.vault
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Refuses new work while the disk is full or read-only.
    fn admit_new_work(&self) -> Result<(), StoreError> {
        self.refusal.clone().map_or(Ok(()), Err)
    }

    /// Refuses a payload whose epoch was closed while it waited in the queue: it could never be opened.
    fn check_epoch(&self, payload: &Payload) -> Result<(), StoreError> {
        match payload.epoch {
            Some(epoch) if self.state.is_closed(epoch) => {
                Err(StoreError::unavailable("a sealing epoch ended at the same time; try again"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Seals bytes that only the writer knows, such as the attempts of a dead letter.
    fn seal(&self, kind: Kind, context: &str, bytes: &[u8]) -> Result<Payload, StoreError> {
        seal(self.vault(), self.now(), kind, context, bytes)
    }

    /// Adds a note to the Merkle log; returns its index. Like a receipt, a note is accepted while the disk is full: without a
    /// signed head, retention could not free space.
    pub(crate) fn note(&mut self, about: Hash16, body: Vec<u8>, leaf: Digest) -> Result<u64, StoreError> {
        let index = self.state.log.size();
        let body = Blob::Draft(body);
        self.emit_derived(Record::Noted { about, body }, Derived::leaf(leaf))?;
        Ok(index)
    }
}

fn seal(
    vault: &Vault,
    now: Timestamp,
    kind: Kind,
    context: &str,
    bytes: &[u8],
) -> Result<Payload, StoreError> {
    let sealed = vault.seal(now, kind, context, bytes)?;
    Ok(Payload { epoch: Some(sealed.epoch), blob: Blob::Draft(sealed.bytes) })
}
