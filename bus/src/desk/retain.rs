//! Letting go of what is kept no longer, and writing forward what is alive and lies among it.

use super::topics::index_damaged;
use super::{Desk, clear};
use crate::codec::{Place, Span};
use crate::desk::epochs::split_entry;
use crate::engine::Served;
use crate::engine::reads::InRun;
use crate::engine::recover::{Dead, still_says};
use crate::error::StoreError;
use crate::keys::{self, EntryAt, LetterAt, Stored};
use crate::limits::{BLOCK_BYTES_TARGET, CLOSED_EPOCHS_MAX};
use crate::names::TopicName;
use crate::record::{Blob, EventRecord, ExpiredRecord, LetterRecord, Payload, Record};
use crate::table::Cell;

/// What one operation wrote forward, and where the next goes on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Forwarded {
    pub(crate) moved: u64,
    /// `None` when there is no more.
    pub(crate) next: Option<u64>,
}

impl Desk<'_> {
    /// Fails if the store was opened anew since the caller looked at it.
    pub(crate) fn is_still(&self, served: &Served) -> Result<(), StoreError> {
        if std::ptr::eq(self.served, served) {
            return Ok(());
        }
        Err(StoreError::Unavailable {
            reason: "the store was opened anew meanwhile; try again".into(),
        })
    }

    /// Writes that receipts and events before these are kept no longer; whether that says anything new.
    pub(crate) fn expire(&mut self, mut expired: ExpiredRecord) -> Result<bool, StoreError> {
        let fold = &self.fold;
        expired.receipts_begin = expired.receipts_begin.max(fold.receipts_begin);
        expired.topics.retain(|(name, begin, unsettled)| {
            let topic = fold.topics.get(name);
            topic.is_some_and(|topic| *begin > topic.begin || *unsettled != topic.keeps_unsettled)
        });
        expired.epochs_before = self.forgettable()?;
        let nothing = expired.topics.is_empty()
            && expired.receipts_begin == self.fold.receipts_begin
            && (expired.epochs_before == self.fold.epochs_before
                || self.fold.closed_epochs.len() < CLOSED_EPOCHS_MAX);
        if nothing {
            return Ok(false);
        }
        self.emit(Record::Expired(expired))?;
        Ok(true)
    }

    /// The epoch before which every key is gone for certain.
    fn forgettable(&self) -> Result<u32, StoreError> {
        let vault = &self.shared.vault;
        let oldest = vault.epochs().first().copied().unwrap_or(0);
        let before = oldest.max(self.fold.epochs_before);
        for epoch in self.fold.closed_epochs.range(..before) {
            vault.destroy(*epoch)?;
        }
        Ok(before)
    }

    /// Takes entries out of the index that lead to blocks before `first`, if they still do.
    pub(crate) fn take_out(&mut self, first: u64, dead: Dead) -> Result<(), StoreError> {
        let index = keys::cut();
        if self.view().get(&index)?.as_deref() != Some(keys::cut_value(first).as_slice()) {
            self.effects.index.put(index, keys::cut_value(first));
        }
        for (key, cell) in dead {
            if still_says(self.view(), &key, &cell)? {
                self.effects.index.set(key, Cell::Delete);
            }
        }
        Ok(())
    }

    fn is_long(&self) -> bool {
        self.block.len() >= BLOCK_BYTES_TARGET
    }

    /// Writes forward those of these letters and entries that lie in blocks before `first`.
    pub(crate) fn forward(&mut self, first: u64, keys: &[Vec<u8>]) -> Result<Forwarded, StoreError> {
        let mut done = Forwarded::default();
        for (nth, key) in keys.iter().enumerate() {
            if self.is_long() {
                done.next = Some(nth as u64);
                break;
            }
            let Some(value) = self.view().get(key)? else {
                continue;
            };
            let record = match key.first() {
                Some(b'D') => self.moved_letter(first, key, &value)?,
                Some(b'F') => self.moved_entry(first, key, &value)?,
                Some(_) | None => None,
            };
            if let Some(record) = record {
                self.emit(record)?;
                done.moved += 1;
            }
        }
        Ok(done)
    }

    fn moved_entry(&self, first: u64, key: &[u8], value: &[u8]) -> Result<Option<Record>, StoreError> {
        let entry = EntryAt::decode(value).map_err(|error| index_damaged(&error))?;
        if entry.value.place.seq >= first {
            return Ok(None);
        }
        let (family, key) = split_entry(key)?;
        Ok(Some(Record::EntryPut {
            family,
            key,
            version: entry.version,
            created: false,
            value: self.as_it_is(entry.value)?,
        }))
    }

    fn moved_letter(&self, first: u64, key: &[u8], value: &[u8]) -> Result<Option<Record>, StoreError> {
        let at = LetterAt::decode(value).map_err(|error| index_damaged(&error))?;
        let tries = at.tries.map_or(u64::MAX, |tries| tries.place.seq);
        let oldest = at
            .record
            .seq
            .min(at.detail.place.seq)
            .min(at.payload.place.seq)
            .min(tries);
        if oldest >= first {
            return Ok(None);
        }
        let record = self.shared.read_letter_record(self.served, at)?;
        debug_assert_eq!(key, keys::letter(record.letter));
        Ok(Some(Record::LetterMoved {
            at_ms: at.at_ms,
            letter: LetterRecord {
                detail: self.as_it_is(at.detail)?,
                payload: self.as_it_is(at.payload)?,
                tries: at.tries.map(|tries| self.as_it_is(tries)).transpose()?,
                ..record
            },
        }))
    }

    /// Writes forward the open intents that lie in blocks before `first`.
    pub(crate) fn forward_claims(&mut self, first: u64) -> Result<Forwarded, StoreError> {
        let mut done = Forwarded::default();
        let old: Vec<(u64, Stored)> = self
            .fold
            .claims()
            .iter()
            .filter(|(_, claim)| claim.intent.place.seq < first)
            .map(|(fence, claim)| (*fence, claim.intent))
            .collect();
        for (fence, intent) in old {
            if self.is_long() {
                done.next = Some(fence);
                break;
            }
            let intent = self.as_it_is(intent)?;
            self.emit(Record::ClaimMoved { fence, intent })?;
            done.moved += 1;
        }
        Ok(done)
    }

    /// Writes forward the events of a topic, from an offset on and before another, that somebody has still to settle and
    /// that lie in blocks before `first`. All of one run are moved in one operation, and so in one block: a moved event
    /// takes the place of its run in the index, and what is left of the run could not be found any more.
    pub(crate) fn forward_events(
        &mut self,
        topic: &TopicName,
        from: u64,
        end: u64,
        first: u64,
    ) -> Result<Forwarded, StoreError> {
        let mut done = Forwarded::default();
        let open = self.fold.groups_of(topic).map(|group| group.committed()).min();
        let mut begun = None;
        for offset in from.max(open.unwrap_or(0))..end {
            if !self.fold.is_unsettled(topic, offset) {
                continue;
            }
            // What this block has moved already does not show there yet, so the rest of a run is still found.
            let Some(InRun { run, at_ms, place }) = self.shared.place_of(self.served, topic, offset)? else {
                continue;
            };
            if place.seq >= first {
                continue;
            }
            if self.is_long() && begun != Some(run) {
                done.next = Some(offset);
                break;
            }
            begun = Some(run);
            let event = self.shared.read_event_record(self.served, place)?;
            let body = Stored {
                epoch: event.body.epoch,
                place: Place {
                    seq: place.seq,
                    span: event.body.blob.span(),
                },
            };
            let event = EventRecord {
                body: self.as_it_is(body)?,
                ..event
            };
            self.emit(Record::EventMoved {
                at_ms,
                topic: topic.clone(),
                offset,
                event,
            })?;
            done.moved += 1;
        }
        Ok(done)
    }

    /// The bytes of a payload, sealed as they are.
    fn as_it_is(&self, stored: Stored) -> Result<Payload, StoreError> {
        if stored.place.span == Span::default() {
            return Ok(clear(Vec::new()));
        }
        let bytes = self.served.journal.part(stored.place.seq, stored.place.span)?;
        Ok(Payload {
            epoch: stored.epoch,
            blob: Blob::Draft(bytes),
        })
    }

    /// Lets go of the blocks before `first`, to which nothing leads any more.
    pub(crate) fn cut(&mut self, first: u64) -> Result<(), StoreError> {
        self.served.journal.truncate_before(first)
    }
}
