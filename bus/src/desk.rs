//! The writer's desk: where each operation is decided against the working state and becomes records.
//!
//! An operation first checks everything it needs, then writes its records. So a refusal leaves nothing behind, and all
//! records of one operation are in one block.

mod claims;
mod completions;
mod epochs;
mod families;
mod groups;
mod letters;
mod notes;
mod retain;
mod topics;

pub(crate) use claims::{Admittance, DraftClaim, Verdict};
pub(crate) use completions::DraftCompletion;
pub(crate) use epochs::entry_context;
pub(crate) use families::{DraftChange, DraftSwap};
pub(crate) use groups::{Grant, letter_context};
pub(crate) use topics::index_damaged;

use std::collections::BTreeMap;

use effectd_contracts::{Digest, ReceiptId, Timestamp};

use crate::block::Builder;
use crate::codec::Place;
use crate::engine::{Served, Shared};
use crate::error::StoreError;
use crate::fold::{Effects, Fold, When};
use crate::journal::ADVICE;
use crate::record::{Blob, Payload, Record};
use crate::table::View;
use crate::vault::{Kind, Sealed};

/// The block that is being filled, and all that is needed to fill it.
pub(crate) struct Desk<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) served: &'a Served,
    pub(crate) fold: &'a mut Fold,
    pub(crate) block: Builder,
    pub(crate) effects: Effects,
    pub(crate) when: When,
    /// Receipts of this block, which cannot be read yet.
    pub(crate) receipts: BTreeMap<u64, ReceiptId>,
    /// An operation failed after it had written something: the block must not be kept.
    pub(crate) tainted: bool,
    /// Why new work is refused; what ends work already begun is not.
    pub(crate) refusal: Option<StoreError>,
}

impl Desk<'_> {
    /// The index as it will be when this block is durable.
    pub(crate) fn view(&self) -> View<'_> {
        self.served.table.view(Some(&self.effects.index))
    }

    /// Writes a record, and lets it take effect for the operations after this one.
    pub(crate) fn emit(&mut self, record: Record) -> Result<(), StoreError> {
        self.emit_logged(record, None)
    }

    /// Writes a record that adds this to the log. Its hash was taken before, where nobody waits for the writer.
    pub(crate) fn emit_logged(&mut self, mut record: Record, leaf: Option<Digest>) -> Result<(), StoreError> {
        let span = self.block.push(&mut record);
        let place = Place {
            seq: self.block.seq(),
            span,
        };
        self.fold
            .apply(place, &record, leaf, self.when, &mut self.effects)
            .map_err(|error| {
                // A record that we made ourselves and that does not follow is a bug; nothing of this block is kept.
                StoreError::Damaged {
                    what: format!("an operation did not follow from the state: {error}"),
                    advice: ADVICE,
                }
            })
    }

    /// The id of a receipt, which may be of this very block.
    pub(crate) fn receipt_id_of(&self, ordinal: u64) -> Result<ReceiptId, StoreError> {
        match self.receipts.get(&ordinal) {
            Some(id) => Ok(id.clone()),
            None => self
                .shared
                .read_receipt(self.served, ordinal)
                .map(|receipt| receipt.receipt_id),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Refuses new work while the disk has no room for it or cannot be written.
    pub(crate) fn admit_new_work(&self) -> Result<(), StoreError> {
        self.refusal.clone().map_or(Ok(()), Err)
    }

    /// A payload sealed under an epoch that was closed while it waited in the queue could never be opened.
    pub(crate) fn check_epoch(&self, payload: &Payload) -> Result<(), StoreError> {
        match payload.epoch {
            Some(epoch) if self.fold.is_closed(epoch) => Err(StoreError::Unavailable {
                reason: "a sealing epoch ended in this moment; try again".into(),
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Seals text or bytes at the desk itself, for what only the writer knows.
    pub(crate) fn seal(&self, kind: Kind, context: &str, bytes: &[u8]) -> Result<Payload, StoreError> {
        self.shared
            .vault
            .seal(self.now(), kind, context, bytes)
            .map(sealed)
    }
}

pub(crate) fn sealed(Sealed { epoch, bytes }: Sealed) -> Payload {
    Payload {
        epoch: Some(epoch),
        blob: Blob::Draft(bytes),
    }
}

pub(crate) fn clear(bytes: Vec<u8>) -> Payload {
    Payload {
        epoch: None,
        blob: Blob::Draft(bytes),
    }
}
