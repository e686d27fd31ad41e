//! How an action ends.

use effectd_contracts::{ActionId, Digest};

use super::Desk;
use super::groups::letter_context;
use super::topics::index_damaged;
use crate::codec::Hash16;
use crate::error::StoreError;
use crate::fingerprint::fingerprint;
use crate::keys::{self, ReceiptAt};
use crate::names::TopicName;
use crate::record::{EventRecord, LetterRecord, ReceiptRecord, Record};
use crate::types::claims::Fence;
use crate::types::groups::LeaseId;
use crate::types::letters::NewLetter;
use crate::types::receipts::Committed;
use crate::vault::Kind;

/// A completion with its events sealed and its hashes taken.
pub(crate) struct DraftCompletion {
    /// With the ordinal still to be decided.
    pub(crate) receipt: ReceiptRecord,
    pub(crate) leaf: Digest,
    pub(crate) events: Vec<(TopicName, EventRecord)>,
    pub(crate) fence: Option<Fence>,
    pub(crate) leases: Vec<LeaseId>,
    pub(crate) letter: Option<NewLetter>,
    /// What the key depends on, and with it all that it lies beneath.
    pub(crate) depends: Vec<Hash16>,
    pub(crate) above: Vec<Hash16>,
    pub(crate) disturbed: Vec<Hash16>,
    pub(crate) links: Vec<(ActionId, Digest, Vec<LeaseId>)>,
}

impl Desk<'_> {
    pub(crate) fn commit(&mut self, draft: DraftCompletion) -> Result<Committed, StoreError> {
        let receipt_id = draft.receipt.receipt_id.clone();
        if let Some(known) = self.receipt_at(receipt_id.as_str())? {
            if known.body != draft.receipt.body_hash {
                return Err(StoreError::Conflict {
                    what: "the receipt id",
                });
            }
            let leases_lost = self.finish_held(&draft.leases)?;
            return Ok(Committed {
                receipt_id,
                duplicate: true,
                offsets: Vec::new(),
                leases_lost,
            });
        }
        self.check_completion(&draft)?;
        let ordinal = self.fold.next_ordinal;
        let overtaken = self.is_overtaken(&draft)?;
        let DraftCompletion {
            receipt,
            leaf,
            events,
            leases,
            letter,
            links,
            depends,
            disturbed,
            ..
        } = draft;
        let attributes = (receipt.action_id.clone(), receipt_id.clone());
        let record = Record::Completed(ReceiptRecord { ordinal, ..receipt });
        self.emit_logged(record, Some(leaf))?;
        if !disturbed.is_empty() {
            self.emit(Record::Disturbed {
                ordinal,
                resources: disturbed,
            })?;
        }
        if overtaken {
            self.emit(Record::Disturbed {
                ordinal: ordinal + 1,
                resources: depends,
            })?;
        }
        self.receipts.insert(ordinal, receipt_id.clone());
        let mut offsets = Vec::with_capacity(events.len());
        for (topic, event) in events {
            offsets.push(self.append(&topic, event)?.offset);
        }
        let mut leases_lost = self.finish_held(&leases)?;
        if let Some(letter) = letter {
            self.bury_completion(letter, attributes)?;
        }
        for (action_id, digest, leases) in links {
            leases_lost.extend(self.link_to(&action_id, digest, ordinal, &leases)?);
        }
        Ok(Committed {
            receipt_id,
            duplicate: false,
            offsets,
            leases_lost,
        })
    }

    /// Resolves an action to a receipt that exists.
    pub(crate) fn link(
        &mut self,
        action_id: &ActionId,
        digest: Digest,
        receipt_id: &str,
        leases: &[LeaseId],
    ) -> Result<(), StoreError> {
        let known = self
            .receipt_at(receipt_id)?
            .ok_or(StoreError::NotFound { what: "the receipt" })?;
        self.check_link(action_id, digest, Some(known.ordinal))?;
        self.link_to(action_id, digest, known.ordinal, leases).map(drop)
    }

    fn link_to(
        &mut self,
        action_id: &ActionId,
        action_digest: Digest,
        ordinal: u64,
        leases: &[LeaseId],
    ) -> Result<Vec<LeaseId>, StoreError> {
        let action = keys::action_hash(action_id.as_str());
        if self.resolution(&keys::action(action))?.is_none() {
            self.emit(Record::Linked {
                action,
                action_digest,
                ordinal,
            })?;
        }
        self.finish_held(leases)
    }

    /// Ends the deliveries that are still held; the fence, not the lease, decides who may commit.
    fn finish_held(&mut self, leases: &[LeaseId]) -> Result<Vec<LeaseId>, StoreError> {
        let mut lost = Vec::new();
        for lease in leases {
            match self.held(*lease) {
                Ok(held) => self.finish(&held)?,
                Err(_) => lost.push(*lease),
            }
        }
        Ok(lost)
    }

    pub(crate) fn receipt_at(&self, id: &str) -> Result<Option<ReceiptAt>, StoreError> {
        let found = self.view().get(&keys::receipt(id))?;
        found
            .map(|bytes| ReceiptAt::decode(&bytes))
            .transpose()
            .map(|found| found.filter(|found| found.ordinal >= self.fold.receipts_begin))
            .map_err(|error| index_damaged(&error))
    }

    fn check_completion(&self, draft: &DraftCompletion) -> Result<(), StoreError> {
        let action_id = &draft.receipt.action_id;
        let action = keys::action_hash(action_id.as_str());
        if let Some(known) = self.resolution(&keys::action(action))? {
            let receipt_id = self.receipt_id_of(known.ordinal)?;
            return Err(StoreError::AlreadyReceipted {
                action_id: action_id.clone(),
                receipt_id,
            });
        }
        match (self.fold.claim_of(action), draft.fence) {
            (None, None) => {}
            (Some((held, claim)), Some(fence)) if held == fence.0 => {
                if claim.action_digest != draft.receipt.action_digest {
                    return Err(StoreError::Conflict {
                        what: "the action id",
                    });
                }
            }
            (None | Some(_), None | Some(_)) => {
                return Err(StoreError::StaleFence {
                    action_id: action_id.clone(),
                });
            }
        }
        for (topic, event) in &draft.events {
            self.check_topic(topic)?;
            self.check_epoch(&event.body)?;
        }
        draft
            .links
            .iter()
            .try_for_each(|(action_id, digest, _)| self.check_link(action_id, *digest, None))
    }

    /// An action may be linked to `ordinal` if nothing is known of it, or exactly that.
    fn check_link(
        &self,
        action_id: &ActionId,
        digest: Digest,
        ordinal: Option<u64>,
    ) -> Result<(), StoreError> {
        let action = keys::action_hash(action_id.as_str());
        if self.fold.claim_of(action).is_some() {
            return Err(StoreError::StaleFence {
                action_id: action_id.clone(),
            });
        }
        match self.resolution(&keys::action(action))? {
            None => Ok(()),
            Some(known) if known.digest != digest => Err(StoreError::Conflict {
                what: "the action id",
            }),
            Some(known) if Some(known.ordinal) == ordinal => Ok(()),
            Some(known) => {
                let receipt_id = self.receipt_id_of(known.ordinal)?;
                Err(StoreError::AlreadyReceipted {
                    action_id: action_id.clone(),
                    receipt_id,
                })
            }
        }
    }

    /// Whether what the action has done may have been carried away before it could commit: something above it was disturbed
    /// while its claim was open. Then its own key is satisfied no longer than that of those before it.
    fn is_overtaken(&self, draft: &DraftCompletion) -> Result<bool, StoreError> {
        let action = keys::action_hash(draft.receipt.action_id.as_str());
        match self.fold.claim_of(action) {
            Some((held, _)) => self.is_disturbed(&draft.above, |since| since.fence > held),
            None => Ok(false),
        }
    }

    fn bury_completion(
        &mut self,
        letter: NewLetter,
        (action_id, receipt_id): (ActionId, effectd_contracts::ReceiptId),
    ) -> Result<(), StoreError> {
        let number = self.fold.next_letter;
        let context = letter_context(number, Some(action_id.as_str()));
        let record = LetterRecord {
            letter: number,
            topic: letter.topic,
            delivery: None,
            receipt_id: Some(receipt_id),
            action_id: Some(action_id),
            fingerprint: fingerprint(&letter.code, &letter.detail),
            code: letter.code,
            attempts: letter.attempts,
            detail: self.seal(Kind::Detail, &context, letter.detail.as_bytes())?,
            payload: self.seal(Kind::Letter, &context, &letter.payload)?,
            tries: self.seal_tries(&context, &letter.tries)?,
        };
        self.emit(Record::Lettered(record))
    }
}
