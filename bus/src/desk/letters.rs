//! What becomes of dead letters.

use super::Desk;
use super::topics::index_damaged;
use crate::error::StoreError;
use crate::keys::{self, LetterAt};
use crate::record::{EventRecord, LetterRecord, Record};
use crate::types::letters::Requeued;

impl Desk<'_> {
    /// Publishes a dead letter again, on its topic, as an event that the caller made of it. Its action may have another
    /// receipt from then on; the failing one stays, under its id.
    pub(crate) fn requeue(&mut self, letter: u64, event: EventRecord) -> Result<Requeued, StoreError> {
        let Some(record) = self.letter_record(letter)? else {
            return if letter < self.fold.next_letter {
                Ok(Requeued::Gone)
            } else {
                Err(StoreError::NotFound {
                    what: "the dead letter",
                })
            };
        };
        self.admit_new_work()?;
        self.check_epoch(&event.body)?;
        if event.action_id != record.action_id {
            return Err(StoreError::Conflict {
                what: "the dead letter's action",
            });
        }
        let reopened = self.reopened(&record)?;
        if let Some(offset) = self.published_at(&record.topic, &event.event_id)? {
            return Err(StoreError::Invalid(format!(
                "the event of a requeued letter is new, and this one has offset {offset}"
            )));
        }
        let offset = self.append(&record.topic, event)?.offset;
        self.emit(Record::LetterEnded { letter, reopened })?;
        Ok(Requeued::Published { offset })
    }

    /// Forgets dead letters; how many there were.
    pub(crate) fn purge(&mut self, letters: &[u64]) -> Result<u64, StoreError> {
        let mut purged = 0;
        for letter in letters {
            if self.view().get(&keys::letter(*letter))?.is_some() {
                self.emit(Record::LetterEnded {
                    letter: *letter,
                    reopened: None,
                })?;
                purged += 1;
            }
        }
        Ok(purged)
    }

    fn letter_record(&self, letter: u64) -> Result<Option<LetterRecord>, StoreError> {
        let Some(bytes) = self.view().get(&keys::letter(letter))? else {
            return Ok(None);
        };
        let at = LetterAt::decode(&bytes).map_err(|error| index_damaged(&error))?;
        if at.record.seq == self.block.seq() {
            // Of this very block, which cannot be read yet.
            return Err(StoreError::Unavailable {
                reason: "the dead letter was set aside in this moment; try again".into(),
            });
        }
        self.shared.read_letter_record(self.served, at).map(Some)
    }

    /// The action that a requeue opens again. One that has ended otherwise since, or is under way, is not.
    fn reopened(&self, record: &LetterRecord) -> Result<Option<crate::codec::Hash16>, StoreError> {
        let Some(action_id) = &record.action_id else {
            return Ok(None);
        };
        let action = keys::action_hash(action_id.as_str());
        if self.fold.claim_of(action).is_some() {
            return Err(StoreError::StaleFence {
                action_id: action_id.clone(),
            });
        }
        let Some(known) = self.resolution(&keys::action(action))? else {
            return Ok(None);
        };
        let receipt_id = self.receipt_id_of(known.ordinal)?;
        if record.receipt_id.as_ref() != Some(&receipt_id) {
            return Err(StoreError::AlreadyReceipted {
                action_id: action_id.clone(),
                receipt_id,
            });
        }
        Ok(Some(action))
    }
}
