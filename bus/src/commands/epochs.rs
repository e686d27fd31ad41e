//! Closing sealing epochs.

use std::collections::BTreeSet;

use super::Batch;
use crate::codec::Malformed;
use crate::error::StoreError;
use crate::index::schema::{self, DeadLetterAt, EntryAt, Stored};
use crate::journal::record::{DeadLetterRecord, Payload, Record};
use crate::names::FamilyName;
use crate::reads::{entry_context, letter_context};
use crate::types::events::Body;
use crate::vault::{EpochReport, Kind};

impl Batch<'_> {
    /// Creates the current epoch's key if it does not exist, so that every older epoch can be closed, and closes epochs.
    pub(crate) fn close_epochs_of_now(&mut self, before: u32) -> Result<EpochReport, StoreError> {
        self.vault().seal(self.now(), Kind::Entry, "", b"")?;
        self.close_epochs(before)
    }

    /// Closes the epochs before `before`, except those with actions in progress. Live payloads are sealed again in the
    /// same block. The keys are destroyed when the block is durable.
    fn close_epochs(&mut self, before: u32) -> Result<EpochReport, StoreError> {
        let open = self.vault().epochs();
        // The newest epoch seals new payloads, so it is never closed.
        let newest = open.last().copied().unwrap_or(0);
        let wanted: BTreeSet<u32> =
            open.into_iter().filter(|epoch| *epoch < before && *epoch < newest).collect();
        let busy: BTreeSet<u32> = wanted.iter().copied().filter(|epoch| self.epoch_is_busy(*epoch)).collect();
        let closing: BTreeSet<u32> = wanted.difference(&busy).copied().collect();
        let mut report = EpochReport {
            closed: closing.iter().copied().collect(),
            busy: busy.into_iter().collect(),
            resealed: 0,
        };
        if closing.is_empty() {
            return Ok(report);
        }
        let records = self.reseal(&closing)?;
        report.resealed = records.len() as u64;
        for record in records {
            self.emit(record)?;
        }
        for epoch in closing {
            self.emit(Record::EpochClosed { epoch })?;
        }
        Ok(report)
    }

    /// Whether an open intent is sealed under the epoch, or a group has not committed every event that is. Events of a topic
    /// without a group are never committed.
    fn epoch_is_busy(&self, epoch: u32) -> bool {
        let intents = self.state.claims().values().any(|claim| claim.intent.epoch == Some(epoch));
        let events = self.state.topics.iter().any(|(name, topic)| {
            let Some(end) = topic.sealed.get(&epoch) else {
                return false;
            };
            let mut groups = self.state.groups_of(name).peekable();
            groups.peek().is_none() || groups.any(|group| group.committed() < *end)
        });
        intents || events
    }

    fn reseal(&self, closing: &BTreeSet<u32>) -> Result<Vec<Record>, StoreError> {
        let mut records = self.reseal_entries(closing)?;
        records.extend(self.reseal_letters(closing)?);
        Ok(records)
    }

    fn reseal_entries(&self, closing: &BTreeSet<u32>) -> Result<Vec<Record>, StoreError> {
        let mut records = Vec::new();
        for found in self.view().scan(b"F".to_vec(), b"G") {
            let (key, value) = found?;
            let entry = EntryAt::decode(&value)?;
            if entry.value.epoch.is_some_and(|epoch| closing.contains(&epoch)) {
                let (family, name) = split_entry(&key)?;
                let context = entry_context(&family, &name);
                let value = self.reseal_payload(Kind::Entry, &context, entry.value)?;
                records.push(Record::EntryPut {
                    family,
                    key: name,
                    version: entry.version,
                    created: false,
                    value,
                });
            }
        }
        Ok(records)
    }

    fn reseal_letters(&self, closing: &BTreeSet<u32>) -> Result<Vec<Record>, StoreError> {
        let mut records = Vec::new();
        for found in self.view().scan(schema::letter(0), b"E") {
            let (_, value) = found?;
            let at = DeadLetterAt::decode(&value)?;
            let closes = |stored: Stored| stored.epoch.is_some_and(|epoch| closing.contains(&epoch));
            if closes(at.detail) || closes(at.payload) || at.tries.is_some_and(closes) {
                let record = self.reader.letter_record(at)?;
                let context = letter_context(record.letter, record.action_id.as_ref());
                records.push(Record::DeadLetterMoved {
                    at_ms: at.at_ms,
                    letter: DeadLetterRecord {
                        detail: self.reseal_payload(Kind::Detail, &context, at.detail)?,
                        payload: self.reseal_payload(Kind::Letter, &context, at.payload)?,
                        tries: at
                            .tries
                            .map(|tries| self.reseal_payload(Kind::Tries, &context, tries))
                            .transpose()?,
                        ..record
                    },
                });
            }
        }
        Ok(records)
    }

    fn reseal_payload(&self, kind: Kind, context: &str, stored: Stored) -> Result<Payload, StoreError> {
        if stored.location.seq == self.block.seq() {
            return Err(StoreError::unavailable(
                "a record was stored under an epoch that is ending; try again",
            ));
        }
        match self.reader.body(stored, kind, context)? {
            Body::Clear(bytes) => Ok(Payload::clear(bytes)),
            Body::Opened(bytes) => self.seal(kind, context, &bytes),
            Body::Shredded => Ok(Payload::clear(Vec::new())),
        }
    }
}

/// Splits the index key of an entry into family and key.
pub(super) fn split_entry(key: &[u8]) -> Result<(FamilyName, String), StoreError> {
    let damaged = || schema::malformed(Malformed("a malformed key of a family"));
    let len = usize::from(*key.get(1).ok_or_else(damaged)?);
    let (family, name) = key[2..].split_at_checked(len).ok_or_else(damaged)?;
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| damaged());
    Ok((FamilyName::new(&text(family)?)?, text(name)?))
}
