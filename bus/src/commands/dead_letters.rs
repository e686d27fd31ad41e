//! Requeuing and purging dead letters.

use super::Batch;
use crate::codec::Hash16;
use crate::error::StoreError;
use crate::index::schema::{self, DeadLetterAt};
use crate::journal::record::{DeadLetterRecord, EventRecord, Record};
use crate::types::dead_letters::Requeued;

impl Batch<'_> {
    /// Publishes a dead letter on its topic as a new event. Its action may then have another receipt; the failing receipt
    /// stays.
    pub(crate) fn requeue(&mut self, letter: u64, event: EventRecord) -> Result<Requeued, StoreError> {
        let Some(record) = self.letter_record(letter)? else {
            return if letter < self.state.next_letter {
                Ok(Requeued::Gone)
            } else {
                Err(StoreError::NotFound { what: "the dead letter" })
            };
        };
        self.admit_new_work()?;
        self.check_epoch(&event.body)?;
        if event.action_id != record.action_id {
            return Err(StoreError::Conflict { what: "the dead letter's action" });
        }
        let reopened = self.reopened(&record)?;
        if let Some(offset) = self.published_at(&record.topic, &event.event_id)? {
            return Err(StoreError::Invalid(format!(
                "a requeued dead letter needs a new event, but this one has offset {offset}"
            )));
        }
        let offset = self.append(&record.topic, event)?.offset;
        self.emit(Record::DeadLetterEnded { letter, reopened })?;
        Ok(Requeued::Published { offset })
    }

    /// Deletes dead letters; returns how many there were.
    pub(crate) fn purge(&mut self, letters: &[u64]) -> Result<u64, StoreError> {
        let mut purged = 0;
        for letter in letters {
            if self.view().get(&schema::letter(*letter))?.is_some() {
                self.emit(Record::DeadLetterEnded { letter: *letter, reopened: None })?;
                purged += 1;
            }
        }
        Ok(purged)
    }

    fn letter_record(&self, letter: u64) -> Result<Option<DeadLetterRecord>, StoreError> {
        let Some(bytes) = self.view().get(&schema::letter(letter))? else {
            return Ok(None);
        };
        let at = DeadLetterAt::decode(&bytes)?;
        if at.record.seq == self.block.seq() {
            // The dead letter is in this block, which cannot be read yet.
            return Err(StoreError::unavailable("the dead letter was written at the same time; try again"));
        }
        self.reader.letter_record(at).map(Some)
    }

    /// The action that a requeue reopens. Fails if the action is in progress, or has a receipt other than the dead letter's.
    fn reopened(&self, record: &DeadLetterRecord) -> Result<Option<Hash16>, StoreError> {
        let Some(action_id) = &record.action_id else {
            return Ok(None);
        };
        let action = schema::action_hash(action_id.as_str());
        if self.state.claim_of(action).is_some() {
            return Err(StoreError::StaleFence { action_id: action_id.clone() });
        }
        let Some(known) = self.resolution(&schema::action(action))? else {
            return Ok(None);
        };
        let receipt_id = self.receipt_id_of(known.ordinal)?;
        if record.receipt_id.as_ref() != Some(&receipt_id) {
            return Err(StoreError::AlreadyReceipted { action_id: action_id.clone(), receipt_id });
        }
        Ok(Some(action))
    }
}
