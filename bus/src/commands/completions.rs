//! Completions: how an action ends.

use effectd_contracts::{ActionId, ReceiptId, ToolId};

use super::Batch;
use crate::codec::Hash16;
use crate::error::StoreError;
use crate::fingerprint::fingerprint;
use crate::index::schema::{self, ReceiptAt};
use crate::journal::record::{DeadLetterRecord, Ending, EventRecord, ReceiptRecord, Record};
use crate::names::TopicName;
use crate::reads::receipts::receipt_at;
use crate::reads::{is_invalidated, letter_context};
use crate::state::Derived;
use crate::types::claims::Fence;
use crate::types::dead_letters::NewDeadLetter;
use crate::types::groups::LeaseId;
use crate::types::receipts::{Committed, Link};
use crate::vault::Kind;

/// A completion, sealed and hashed.
pub(crate) struct DraftCompletion {
    /// The writer adds the ordinal.
    pub(crate) receipt: ReceiptRecord,
    pub(crate) derived: Derived,
    pub(crate) events: Vec<(TopicName, EventRecord)>,
    pub(crate) fence: Option<Fence>,
    pub(crate) leases: Vec<LeaseId>,
    pub(crate) letter: Option<NewDeadLetter>,
    /// The resources that the key depends on.
    pub(crate) depends: Vec<Hash16>,
    /// Those resources and their ancestors.
    pub(crate) ancestors: Vec<Hash16>,
    /// Hashes of what the action has invalidated.
    pub(crate) invalidated: Vec<Hash16>,
    pub(crate) links: Vec<Link>,
}

impl Batch<'_> {
    pub(crate) fn commit(&mut self, draft: DraftCompletion) -> Result<Committed, StoreError> {
        let receipt_id = draft.receipt.receipt_id.clone();
        if let Some(known) = self.receipt_at(receipt_id.as_str())? {
            if known.body != draft.receipt.body_hash {
                return Err(StoreError::Conflict { what: "the receipt id" });
            }
            let leases_lost = self.finish_held(&draft.leases)?;
            return Ok(Committed { receipt_id, duplicate: true, offsets: Vec::new(), leases_lost });
        }
        self.check_completion(&draft)?;
        let ordinal = self.state.next_ordinal;
        let overtaken = self.is_overtaken(&draft)?;
        let DraftCompletion { receipt, derived, events, leases, letter, links, depends, invalidated, .. } =
            draft;
        let attributes = (receipt.action_id.clone(), receipt_id.clone(), receipt.tool_id.clone());
        let record = Record::Completed(ReceiptRecord { ordinal, ..receipt });
        self.emit_derived(record, derived)?;
        if !invalidated.is_empty() {
            self.emit(Record::Invalidated { ordinal, resources: invalidated })?;
        }
        if overtaken {
            self.emit(Record::Invalidated { ordinal: ordinal + 1, resources: depends })?;
        }
        self.receipts.insert(ordinal, receipt_id.clone());
        let mut offsets = Vec::with_capacity(events.len());
        for (topic, event) in events {
            offsets.push(self.append(&topic, event)?.offset);
        }
        let mut leases_lost = self.finish_held(&leases)?;
        if let Some(letter) = letter {
            self.dead_letter_completion(letter, attributes)?;
        }
        for link in links {
            leases_lost.extend(self.link_to(&link, ordinal)?);
        }
        Ok(Committed { receipt_id, duplicate: false, offsets, leases_lost })
    }

    /// Resolves an action to an existing receipt.
    pub(crate) fn link(&mut self, link: &Link) -> Result<(), StoreError> {
        let known =
            self.receipt_at(link.receipt_id.as_str())?.ok_or(StoreError::NotFound { what: "the receipt" })?;
        self.check_link(link, Some(known.ordinal))?;
        self.link_to(link, known.ordinal).map(drop)
    }

    fn link_to(&mut self, link: &Link, ordinal: u64) -> Result<Vec<LeaseId>, StoreError> {
        let action = schema::action_hash(link.action_id.as_str());
        if self.resolution(&schema::action(action))?.is_none() {
            self.emit(Record::Linked { action, action_digest: link.action_digest, ordinal })?;
        }
        self.finish_held(&link.leases)
    }

    /// Acknowledges the leases that are still held, and returns the lost ones. A lost lease is not an error: the fence decides who
    /// may commit.
    fn finish_held(&mut self, leases: &[LeaseId]) -> Result<Vec<LeaseId>, StoreError> {
        let mut lost = Vec::new();
        for lease in leases {
            match self.held(*lease) {
                Ok(held) => self.end(&held, Ending::Done)?,
                Err(_) => lost.push(*lease),
            }
        }
        Ok(lost)
    }

    fn receipt_at(&self, id: &str) -> Result<Option<ReceiptAt>, StoreError> {
        receipt_at(self.view(), id, self.state.receipts_begin)
    }

    fn check_completion(&self, draft: &DraftCompletion) -> Result<(), StoreError> {
        let action_id = &draft.receipt.action_id;
        let action = schema::action_hash(action_id.as_str());
        if let Some(known) = self.resolution(&schema::action(action))? {
            let receipt_id = self.receipt_id_of(known.ordinal)?;
            return Err(StoreError::AlreadyReceipted { action_id: action_id.clone(), receipt_id });
        }
        match (self.state.claim_of(action), draft.fence) {
            (None, None) => {}
            (Some((held, claim)), Some(fence)) if held == fence.0 => {
                if claim.action_digest != draft.receipt.action_digest {
                    return Err(StoreError::Conflict { what: "the action id" });
                }
            }
            (None | Some(_), None | Some(_)) => {
                return Err(StoreError::StaleFence { action_id: action_id.clone() });
            }
        }
        for (topic, event) in &draft.events {
            self.check_topic(topic)?;
            self.check_epoch(&event.body)?;
        }
        draft.links.iter().try_for_each(|link| self.check_link(link, None))
    }

    /// Fails if the action is in progress, or has another receipt than `ordinal`.
    fn check_link(&self, link: &Link, ordinal: Option<u64>) -> Result<(), StoreError> {
        let action_id = link.action_id.clone();
        let action = schema::action_hash(action_id.as_str());
        if self.state.claim_of(action).is_some() {
            return Err(StoreError::StaleFence { action_id });
        }
        match self.resolution(&schema::action(action))? {
            None => Ok(()),
            Some(known) if known.digest != link.action_digest => {
                Err(StoreError::Conflict { what: "the action id" })
            }
            Some(known) if Some(known.ordinal) == ordinal => Ok(()),
            Some(known) => Err(StoreError::AlreadyReceipted {
                action_id,
                receipt_id: self.receipt_id_of(known.ordinal)?,
            }),
        }
    }

    /// Whether a resource that the key depends on, or an ancestor of one, was invalidated while the claim was open. Then the
    /// action's effect may already be gone, so its key is invalidated too.
    fn is_overtaken(&self, draft: &DraftCompletion) -> Result<bool, StoreError> {
        let action = schema::action_hash(draft.receipt.action_id.as_str());
        match self.state.claim_of(action) {
            Some((held, _)) => is_invalidated(self.view(), &draft.ancestors, |since| since.fence > held),
            None => Ok(false),
        }
    }

    fn dead_letter_completion(
        &mut self,
        letter: NewDeadLetter,
        (action_id, receipt_id, tool_id): (ActionId, ReceiptId, ToolId),
    ) -> Result<(), StoreError> {
        let number = self.state.next_letter;
        let context = letter_context(number, Some(&action_id));
        let record = DeadLetterRecord {
            letter: number,
            topic: letter.topic,
            delivery: None,
            receipt_id: Some(receipt_id),
            action_id: Some(action_id),
            fingerprint: fingerprint(Some(tool_id.as_str()), &letter.code, &letter.detail),
            code: letter.code,
            attempts: letter.attempts,
            detail: self.seal(Kind::Detail, &context, letter.detail.as_bytes())?,
            payload: self.seal(Kind::Letter, &context, &letter.payload)?,
            tries: self.seal_attempts(&context, &letter.tries)?,
        };
        self.emit(Record::DeadLettered(record))
    }
}
