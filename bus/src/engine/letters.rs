//! Reading dead letters: one, in order, and by what their failures have in common.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::queries::next_posting;
use super::reads::{read_record, unexpected};
use super::{Served, Shared, timestamp};
use crate::codec::{Hash16, Malformed};
use crate::desk::{index_damaged, letter_context};
use crate::error::StoreError;
use crate::keys::{self, Dimension, LetterAt, Stored};
use crate::limits::{LETTER_GROUPS_MAX, PAGE_BYTES_MAX, PAGE_ITEMS_MAX};
use crate::names::TopicName;
use crate::record::{LetterRecord, Record};
use crate::table::Table;
use crate::types::letters::{
    Fingerprint, LetterGroup, LetterOrigin, LetterPage, OTHER_CAUSES, StoredLetter, Try,
};
use crate::vault::Kind;

impl Shared {
    pub(crate) fn read_letter_record(
        &self,
        served: &Served,
        at: LetterAt,
    ) -> Result<LetterRecord, StoreError> {
        match read_record(served, at.record)?.1 {
            Record::Lettered(letter) | Record::LetterMoved { letter, .. } => Ok(letter),
            Record::Published { .. }
            | Record::Leased(_)
            | Record::Settled(_)
            | Record::Claimed(_)
            | Record::TakenOver { .. }
            | Record::Completed(_)
            | Record::Linked { .. }
            | Record::EntryPut { .. }
            | Record::EntryDeleted { .. }
            | Record::Sought { .. }
            | Record::Configured { .. }
            | Record::EpochClosed { .. }
            | Record::LetterEnded { .. }
            | Record::Noted { .. }
            | Record::Expired(_)
            | Record::EventMoved { .. }
            | Record::Disturbed { .. }
            | Record::ClaimMoved { .. } => Err(unexpected(at.record)),
        }
    }

    pub(crate) fn read_letter(&self, letter: u64) -> Result<Option<StoredLetter>, StoreError> {
        let served = self.served();
        served.alive()?;
        let found = served.table.view(None).get(&keys::letter(letter))?;
        found
            .map(|bytes| self.letter(&served, letter, &bytes))
            .transpose()
    }

    fn letter(&self, served: &Served, letter: u64, bytes: &[u8]) -> Result<StoredLetter, StoreError> {
        let at = LetterAt::decode(bytes).map_err(|error| index_damaged(&error))?;
        let record = self.read_letter_record(served, at)?;
        let context = letter_context(letter, record.action_id.as_ref().map(|id| id.as_str()));
        let origin = match (record.delivery, record.receipt_id) {
            (Some((group, offset)), _) => LetterOrigin::Delivery { group, offset },
            (None, Some(receipt_id)) => LetterOrigin::Completion { receipt_id },
            (None, None) => return Err(unexpected(at.record)),
        };
        Ok(StoredLetter {
            letter,
            time: timestamp(at.at_ms),
            topic: record.topic,
            origin,
            action_id: record.action_id,
            code: record.code,
            fingerprint: Fingerprint(at.fingerprint),
            detail: self.read_body(served, at.detail, Kind::Detail, &context)?,
            attempts: record.attempts,
            tries: self.read_tries(served, at.tries, &context)?,
            payload: self.read_body(served, at.payload, Kind::Letter, &context)?,
        })
    }

    /// The attempts of a letter, if they were told and can still be read.
    fn read_tries(
        &self,
        served: &Served,
        stored: Option<Stored>,
        context: &str,
    ) -> Result<Vec<Try>, StoreError> {
        let Some(stored) = stored else {
            return Ok(Vec::new());
        };
        let body = self.read_body(served, stored, Kind::Tries, context)?;
        let damaged = |_| index_damaged(&Malformed("attempts that are none"));
        body.bytes().map_or(Ok(Vec::new()), |bytes| {
            serde_json::from_slice(bytes).map_err(damaged)
        })
    }

    pub(crate) fn read_letters(
        &self,
        topic: Option<&TopicName>,
        from: u64,
        max: usize,
    ) -> Result<LetterPage, StoreError> {
        let served = self.served();
        served.alive()?;
        let mut page = LetterPage::default();
        let mut bytes = 0;
        let mut at = from;
        loop {
            let Some(letter) = next_of(&served, topic, at)? else {
                return Ok(page);
            };
            if page.letters.len() >= max.clamp(1, PAGE_ITEMS_MAX) || bytes >= PAGE_BYTES_MAX {
                page.next = Some(letter);
                return Ok(page);
            }
            let found = served.table.view(None).get(&keys::letter(letter))?;
            if let Some(found) = found {
                let letter = self.letter(&served, letter, &found)?;
                bytes += letter.payload.bytes().map_or(0, <[u8]>::len);
                page.letters.push(letter);
            }
            at = letter + 1;
        }
    }

    pub(crate) fn next_letter_at(
        &self,
        served: &Served,
        from: u64,
    ) -> Result<Option<(u64, LetterAt)>, StoreError> {
        let Some((key, value)) = served.table.view(None).next(&keys::letter(from), b"E")? else {
            return Ok(None);
        };
        let number = key.last_chunk::<8>().map(|number| u64::from_be_bytes(*number));
        let at = LetterAt::decode(&value).map_err(|error| index_damaged(&error))?;
        Ok(number.map(|number| (number, at)))
    }

    pub(crate) fn letter_groups(&self, topic: Option<&TopicName>) -> Result<Vec<LetterGroup>, StoreError> {
        let served = self.served();
        served.alive()?;
        let mut groups: HashMap<Hash16, (LetterGroup, LetterAt)> = HashMap::new();
        let mut others = None::<LetterGroup>;
        let mut at = 0;
        while let Some(letter) = next_of(&served, topic, at)? {
            at = letter + 1;
            let Some(bytes) = served.table.view(None).get(&keys::letter(letter))? else {
                continue;
            };
            let found = LetterAt::decode(&bytes).map_err(|error| index_damaged(&error))?;
            let one = LetterGroup {
                fingerprint: Fingerprint(found.fingerprint),
                code: String::new(),
                count: 1,
                first: timestamp(found.at_ms),
                last: timestamp(found.at_ms),
                newest: letter,
            };
            let len = groups.len();
            match groups.entry(found.fingerprint) {
                Entry::Occupied(mut known) => {
                    let (group, newest) = known.get_mut();
                    add(group, &one);
                    *newest = found;
                }
                Entry::Vacant(_) if len >= LETTER_GROUPS_MAX => {
                    let others = others.get_or_insert_with(|| LetterGroup {
                        fingerprint: Fingerprint(Hash16([0; 16])),
                        code: OTHER_CAUSES.to_owned(),
                        count: 0,
                        ..one.clone()
                    });
                    add(others, &one);
                }
                Entry::Vacant(new) => drop(new.insert((one, found))),
            }
        }
        let mut named = Vec::with_capacity(groups.len());
        for (mut group, at) in groups.into_values() {
            group.code = self.read_letter_record(&served, at)?.code;
            named.push(group);
        }
        named.sort_by_key(|group| std::cmp::Reverse((group.count, group.newest)));
        named.extend(others);
        Ok(named)
    }
}

/// Counts another letter, which is newer, among those of a group.
fn add(group: &mut LetterGroup, one: &LetterGroup) {
    group.count += 1;
    group.last = group.last.max(one.last);
    group.first = group.first.min(one.first);
    group.newest = one.newest;
}

/// How many dead letters there are. All are gone through, which is done once for a store that is opened.
pub(crate) fn count_letters(table: &Table) -> Result<u64, StoreError> {
    let (view, mut from, mut count) = (table.view(None), keys::letter(0), 0);
    while let Some((key, _)) = view.next(&from, b"E")? {
        count += 1;
        // The smallest key that comes after this one.
        from = [&*key, &[0]].concat();
    }
    Ok(count)
}

/// The next letter of a topic, or of all, which may be gone.
fn next_of(served: &Served, topic: Option<&TopicName>, from: u64) -> Result<Option<u64>, StoreError> {
    match topic {
        Some(topic) => {
            let value = keys::text_hash(topic.as_str());
            next_posting(served, Dimension::LetterTopic, value, from)
        }
        None => next_letter(served, from),
    }
}

fn next_letter(served: &Served, from: u64) -> Result<Option<u64>, StoreError> {
    let found = served.table.view(None).next(&keys::letter(from), b"E")?;
    Ok(found.and_then(|(key, _)| key.last_chunk::<8>().map(|number| u64::from_be_bytes(*number))))
}
