//! Retention: recording what expires, and relocating live records out of blocks that are dropped.

use super::Batch;
use super::epochs::split_entry;
use crate::codec::Span;
use crate::error::StoreError;
use crate::index::memtable::Cell;
use crate::index::schema::{self, DeadLetterAt, EntryAt, Stored};
use crate::journal::record::{Blob, DeadLetterRecord, EventRecord, ExpiredRecord, Payload, Record};
use crate::limits::{BLOCK_BYTES_TARGET, CLOSED_EPOCHS_MAX};
use crate::names::TopicName;
use crate::reads::{EventAt, Reader};
use crate::state::checkpoint::{Removed, is_unchanged};

/// How many records one operation relocated, and where the next one continues.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Relocated {
    pub(crate) moved: u64,
    /// `None` when all are relocated.
    pub(crate) next: Option<u64>,
}

impl Batch<'_> {
    /// Fails if the store was reopened since the caller took this reader.
    pub(crate) fn check_reader(&self, reader: &Reader) -> Result<(), StoreError> {
        if std::ptr::eq(self.reader, reader) {
            return Ok(());
        }
        Err(StoreError::unavailable("the store was reopened at the same time; try again"))
    }

    /// Records that receipts and events before these numbers have expired; `false` if that was recorded before.
    pub(crate) fn expire(&mut self, mut expired: ExpiredRecord) -> Result<bool, StoreError> {
        let state = &self.state;
        expired.receipts_begin = expired.receipts_begin.max(state.receipts_begin);
        expired.topics.retain(|(name, begin, unacknowledged)| {
            let topic = state.topics.get(name);
            topic.is_some_and(|topic| *begin > topic.begin || *unacknowledged != topic.keeps_unacknowledged)
        });
        expired.epochs_before = self.closed_before()?;
        let nothing = expired.topics.is_empty()
            && expired.receipts_begin == self.state.receipts_begin
            && (expired.epochs_before == self.state.epochs_before
                || self.state.closed_epochs.len() < CLOSED_EPOCHS_MAX);
        if nothing {
            return Ok(false);
        }
        self.emit(Record::Expired(expired))?;
        Ok(true)
    }

    /// Destroys the keys of closed epochs that are older than every open one; returns the oldest that may have one.
    fn closed_before(&self) -> Result<u32, StoreError> {
        let vault = self.vault();
        let oldest = vault.epochs().first().copied().unwrap_or(0);
        let before = oldest.max(self.state.epochs_before);
        for epoch in self.state.closed_epochs.range(..before) {
            vault.destroy(*epoch)?;
        }
        Ok(before)
    }

    /// Removes these index entries, except those that no longer point to blocks before `first`.
    pub(crate) fn remove_from_index(&mut self, first: u64, removed: Vec<Removed>) -> Result<(), StoreError> {
        let cut = schema::cut();
        if self.view().get(&cut)?.as_deref() != Some(schema::cut_value(first).as_slice()) {
            self.changes.index.put(cut, schema::cut_value(first));
        }
        for entry in removed {
            if is_unchanged(self.view(), &entry)? {
                self.changes.index.set(entry.0, Cell::Delete);
            }
        }
        Ok(())
    }

    fn is_long(&self) -> bool {
        self.block.len() >= BLOCK_BYTES_TARGET
    }

    /// Relocates those of these dead letters and entries that are in blocks before `first`.
    pub(crate) fn relocate(&mut self, first: u64, keys: &[Vec<u8>]) -> Result<Relocated, StoreError> {
        let mut done = Relocated::default();
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
        let entry = EntryAt::decode(value)?;
        if entry.value.location.seq >= first {
            return Ok(None);
        }
        let (family, key) = split_entry(key)?;
        Ok(Some(Record::EntryPut {
            family,
            key,
            version: entry.version,
            created: false,
            value: self.copy(entry.value)?,
        }))
    }

    fn moved_letter(&self, first: u64, key: &[u8], value: &[u8]) -> Result<Option<Record>, StoreError> {
        let at = DeadLetterAt::decode(value)?;
        let tries = at.tries.map_or(u64::MAX, |tries| tries.location.seq);
        let oldest = at.record.seq.min(at.detail.location.seq).min(at.payload.location.seq).min(tries);
        if oldest >= first {
            return Ok(None);
        }
        let record = self.reader.letter_record(at)?;
        debug_assert_eq!(key, schema::letter(record.letter));
        Ok(Some(Record::DeadLetterMoved {
            at_ms: at.at_ms,
            letter: DeadLetterRecord {
                detail: self.copy(at.detail)?,
                payload: self.copy(at.payload)?,
                tries: at.tries.map(|tries| self.copy(tries)).transpose()?,
                ..record
            },
        }))
    }

    /// Relocates the open intents in blocks before `first`.
    pub(crate) fn relocate_claims(&mut self, first: u64) -> Result<Relocated, StoreError> {
        let mut done = Relocated::default();
        let old: Vec<(u64, Stored)> = self
            .state
            .claims()
            .iter()
            .filter(|(_, claim)| claim.intent.location.seq < first)
            .map(|(fence, claim)| (*fence, claim.intent))
            .collect();
        for (fence, intent) in old {
            if self.is_long() {
                done.next = Some(fence);
                break;
            }
            let intent = self.copy(intent)?;
            self.emit(Record::ClaimMoved { fence, intent })?;
            done.moved += 1;
        }
        Ok(done)
    }

    /// Relocates the unacknowledged events of a topic in `from..end` that are in blocks before `first`. All events of one
    /// [`BlockSpans`](crate::index::schema::BlockSpans) move in one block: a moved event may replace the spans in the
    /// index, after which the other events of the spans cannot be found.
    pub(crate) fn relocate_events(
        &mut self,
        topic: &TopicName,
        from: u64,
        end: u64,
        first: u64,
    ) -> Result<Relocated, StoreError> {
        let mut done = Relocated::default();
        let open = self.state.groups_of(topic).map(|group| group.committed()).min();
        let mut begun = None;
        for offset in from.max(open.unwrap_or(0))..end {
            if !self.state.is_unacknowledged(topic, offset) {
                continue;
            }
            // Readers do not see the moves of this block yet, so the other events are still found.
            let Some(EventAt { first: spans, at_ms, location }) = self.reader.event_at(topic, offset)? else {
                continue;
            };
            if location.seq >= first {
                continue;
            }
            if self.is_long() && begun != Some(spans) {
                done.next = Some(offset);
                break;
            }
            begun = Some(spans);
            let event = self.reader.event_record(topic, offset, location)?;
            let event = EventRecord { body: self.copy(Stored::of(location.seq, &event.body))?, ..event };
            self.emit(Record::EventMoved { at_ms, topic: topic.clone(), offset, event })?;
            done.moved += 1;
        }
        Ok(done)
    }

    /// The bytes of a payload, still sealed.
    fn copy(&self, stored: Stored) -> Result<Payload, StoreError> {
        if stored.location.span == Span::default() {
            return Ok(Payload::clear(Vec::new()));
        }
        let bytes = self.reader.journal.part(stored.location.seq, stored.location.span)?;
        Ok(Payload { epoch: stored.epoch, blob: Blob::Draft(bytes) })
    }

    /// Drops the blocks before `first`; nothing points to them any more.
    pub(crate) fn truncate(&mut self, first: u64) -> Result<(), StoreError> {
        self.reader.journal.truncate_before(first)
    }
}
