//! Closing sealing epochs.

use std::collections::BTreeSet;

use super::Desk;
use super::groups::letter_context;
use super::topics::index_damaged;
use crate::error::StoreError;
use crate::keys::{self, EntryAt, LetterAt, Stored};
use crate::names::FamilyName;
use crate::record::{LetterRecord, Payload, Record};
use crate::types::events::Body;
use crate::vault::{EpochReport, Kind};

impl Desk<'_> {
    /// Closes epochs once the current one has a key: it has one before older ones lose theirs.
    pub(crate) fn close_epochs_of_now(&mut self, before: u32) -> Result<EpochReport, StoreError> {
        self.shared.vault.seal(self.now(), Kind::Entry, "", b"")?;
        self.close_epochs(before)
    }

    /// Writes that the epochs before `before` are closed, save those that still have actions under way. What is still
    /// alive in them is sealed again in the same block. The keys themselves are destroyed when the block is durable.
    fn close_epochs(&mut self, before: u32) -> Result<EpochReport, StoreError> {
        let open = self.shared.vault.epochs();
        // The newest epoch seals what comes now, so it is never closed.
        let newest = open.last().copied().unwrap_or(0);
        let wanted: BTreeSet<u32> = open
            .into_iter()
            .filter(|epoch| *epoch < before && *epoch < newest)
            .collect();
        let busy: BTreeSet<u32> = wanted
            .iter()
            .copied()
            .filter(|epoch| self.epoch_is_busy(*epoch))
            .collect();
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

    /// Whether an open intent or an event that some group has still to settle is sealed under it. Events that no group
    /// has ever asked for are still to be settled, too.
    fn epoch_is_busy(&self, epoch: u32) -> bool {
        let intents = self
            .fold
            .claims()
            .values()
            .any(|claim| claim.intent.epoch == Some(epoch));
        let events = self.fold.topics.iter().any(|(name, topic)| {
            let Some(end) = topic.sealed.get(&epoch) else {
                return false;
            };
            let mut groups = self
                .fold
                .groups
                .iter()
                .filter(|((of, _), _)| of == name)
                .peekable();
            groups.peek().is_none() || groups.any(|(_, group)| group.committed() < *end)
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
        let mut from = b"F".to_vec();
        while let Some((key, value)) = self.view().next(&from, b"G")? {
            let entry = EntryAt::decode(&value).map_err(|error| index_damaged(&error))?;
            if entry.value.epoch.is_some_and(|epoch| closing.contains(&epoch)) {
                let (family, name) = split_entry(&key)?;
                let context = entry_context(&family, &name);
                let value = self.seal_again(Kind::Entry, &context, entry.value)?;
                records.push(Record::EntryPut {
                    family,
                    key: name,
                    version: entry.version,
                    created: false,
                    value,
                });
            }
            from = key;
            from.push(0);
        }
        Ok(records)
    }

    fn reseal_letters(&self, closing: &BTreeSet<u32>) -> Result<Vec<Record>, StoreError> {
        let mut records = Vec::new();
        let (mut from, end) = (keys::letter(0), b"E");
        while let Some((key, value)) = self.view().next(&from, end)? {
            let at = LetterAt::decode(&value).map_err(|error| index_damaged(&error))?;
            let closes = |stored: Stored| stored.epoch.is_some_and(|epoch| closing.contains(&epoch));
            if closes(at.detail) || closes(at.payload) || at.tries.is_some_and(closes) {
                let letter = u64::from_be_bytes(key[1..].try_into().unwrap_or_default());
                let record = self.shared.read_letter_record(self.served, at)?;
                let context = letter_context(letter, record.action_id.as_ref().map(|id| id.as_str()));
                records.push(Record::LetterMoved {
                    at_ms: at.at_ms,
                    letter: LetterRecord {
                        detail: self.seal_again(Kind::Detail, &context, at.detail)?,
                        payload: self.seal_again(Kind::Letter, &context, at.payload)?,
                        tries: at
                            .tries
                            .map(|tries| self.seal_again(Kind::Tries, &context, tries))
                            .transpose()?,
                        ..record
                    },
                });
            }
            from = key;
            from.push(0);
        }
        Ok(records)
    }

    fn seal_again(&self, kind: Kind, context: &str, stored: Stored) -> Result<Payload, StoreError> {
        if stored.place.seq == self.block.seq() {
            return Err(StoreError::Unavailable {
                reason: "something was stored in this moment under an epoch that ends; try again".into(),
            });
        }
        match self.shared.read_body(self.served, stored, kind, context)? {
            Body::Clear(bytes) => Ok(super::clear(bytes)),
            Body::Opened(bytes) => self.seal(kind, context, &bytes),
            Body::Shredded => Ok(super::clear(Vec::new())),
        }
    }
}

/// What an entry's sealed value is bound to.
pub(crate) fn entry_context(family: &FamilyName, key: &str) -> String {
    format!("{family}/{key}")
}

pub(super) fn split_entry(key: &[u8]) -> Result<(FamilyName, String), StoreError> {
    let damaged = || index_damaged(&crate::codec::Malformed("a family's key that is none"));
    let len = usize::from(*key.get(1).ok_or_else(damaged)?);
    let (family, name) = key[2..].split_at_checked(len).ok_or_else(damaged)?;
    let text = |bytes: &[u8]| {
        std::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| damaged())
    };
    Ok((FamilyName::new(&text(family)?)?, text(name)?))
}
