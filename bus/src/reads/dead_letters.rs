//! Reading dead letters: one, a page, and groups by cause.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::{Reader, letter_context, timestamp, unexpected};
use crate::codec::Hash16;
use crate::error::StoreError;
use crate::index::schema::{self, DeadLetterAt, Dimension, Stored};
use crate::journal::record::{DeadLetterRecord, Record};
use crate::limits::{LETTER_GROUPS_MAX, PAGE_BYTES_MAX, PAGE_ITEMS_MAX};
use crate::names::TopicName;
use crate::types::dead_letters::{
    DeadLetter, DeadLetterGroup, DeadLetterOrigin, DeadLetterPage, FailedAttempt, Fingerprint, OTHER_CAUSES,
};
use crate::vault::Kind;

impl Reader {
    pub(crate) fn letter_record(&self, at: DeadLetterAt) -> Result<DeadLetterRecord, StoreError> {
        let (Record::DeadLettered(letter) | Record::DeadLetterMoved { letter, .. }) =
            self.record(at.record)?.1
        else {
            return Err(unexpected(at.record));
        };
        Ok(letter)
    }

    fn letter_at(&self, letter: u64) -> Result<Option<DeadLetterAt>, StoreError> {
        let found = self.view().get(&schema::letter(letter))?;
        found.map(|bytes| DeadLetterAt::decode(&bytes)).transpose()
    }

    pub(crate) fn letter(&self, letter: u64) -> Result<Option<DeadLetter>, StoreError> {
        let Some(at) = self.letter_at(letter)? else {
            return Ok(None);
        };
        let record = self.letter_record(at)?;
        let context = letter_context(letter, record.action_id.as_ref());
        let origin = match (record.delivery, record.receipt_id) {
            (Some((group, offset)), _) => DeadLetterOrigin::Delivery { group, offset },
            (None, Some(receipt_id)) => DeadLetterOrigin::Completion { receipt_id },
            (None, None) => return Err(unexpected(at.record)),
        };
        Ok(Some(DeadLetter {
            letter,
            time: timestamp(at.at_ms),
            topic: record.topic,
            origin,
            action_id: record.action_id,
            code: record.code,
            fingerprint: Fingerprint(at.fingerprint),
            detail: self.body(at.detail, Kind::Detail, &context)?,
            attempts: record.attempts,
            tries: self.attempts(at.tries, &context)?,
            payload: self.body(at.payload, Kind::Letter, &context)?,
        }))
    }

    /// The attempts of a dead letter, if they were recorded and can still be read.
    fn attempts(&self, stored: Option<Stored>, context: &str) -> Result<Vec<FailedAttempt>, StoreError> {
        let Some(stored) = stored else {
            return Ok(Vec::new());
        };
        let body = self.body(stored, Kind::Tries, context)?;
        let damaged = |_| StoreError::damaged("the attempts of a dead letter do not decode");
        body.bytes().map_or(Ok(Vec::new()), |bytes| serde_json::from_slice(bytes).map_err(damaged))
    }

    pub(crate) fn letters(
        &self,
        topic: Option<&TopicName>,
        from: u64,
        max: usize,
    ) -> Result<DeadLetterPage, StoreError> {
        let mut page = DeadLetterPage::default();
        let (mut bytes, mut at) = (0, from);
        while let Some(number) = self.next_letter_of(topic, at)? {
            if page.letters.len() >= max.clamp(1, PAGE_ITEMS_MAX) || bytes >= PAGE_BYTES_MAX {
                page.next = Some(number);
                break;
            }
            if let Some(letter) = self.letter(number)? {
                bytes += letter.payload.bytes().map_or(0, <[u8]>::len);
                page.letters.push(letter);
            }
            at = number + 1;
        }
        Ok(page)
    }

    /// The next dead letter of a topic, or of all. The dead letter may have ended.
    fn next_letter_of(&self, topic: Option<&TopicName>, from: u64) -> Result<Option<u64>, StoreError> {
        match topic {
            Some(topic) => self.next_posting(Dimension::LetterTopic, schema::text_hash(topic.as_str()), from),
            None => Ok(self.next_letter(from)?.map(|(number, _)| number)),
        }
    }

    /// The next dead letter of all topics.
    pub(crate) fn next_letter(&self, from: u64) -> Result<Option<(u64, DeadLetterAt)>, StoreError> {
        let Some((key, value)) = self.view().next(&schema::letter(from), b"E")? else {
            return Ok(None);
        };
        let number = key.last_chunk::<8>().map(|number| u64::from_be_bytes(*number));
        let at = DeadLetterAt::decode(&value)?;
        Ok(number.map(|number| (number, at)))
    }

    /// Counts the dead letters by a scan, once for each opening. Dead letters with one cause have one code, so this reads one
    /// record for each of the first [`LETTER_GROUPS_MAX`] causes. What it cannot or does not read counts as not quarantined.
    pub(crate) fn count_letters(&self) -> Result<(u64, HashSet<u64>), StoreError> {
        let (mut count, mut quarantined, mut causes) = (0, HashSet::new(), HashMap::new());
        for found in self.view().scan(schema::letter(0), b"E") {
            let (key, value) = found?;
            count += 1;
            let at = DeadLetterAt::decode(&value)?;
            let full = causes.len() >= LETTER_GROUPS_MAX;
            let is_quarantined = match causes.entry(at.fingerprint) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(_) if full => false,
                Entry::Vacant(new) => {
                    *new.insert(self.letter_record(at).is_ok_and(|letter| letter.is_quarantined()))
                }
            };
            if is_quarantined {
                quarantined.extend(key.last_chunk::<8>().map(|number| u64::from_be_bytes(*number)));
            }
        }
        Ok((count, quarantined))
    }

    pub(crate) fn letter_groups(
        &self,
        topic: Option<&TopicName>,
        takes: Option<&dyn Fn(&DeadLetter) -> bool>,
    ) -> Result<Vec<DeadLetterGroup>, StoreError> {
        let mut groups: HashMap<Hash16, (DeadLetterGroup, DeadLetterAt)> = HashMap::new();
        let mut others = None::<DeadLetterGroup>;
        let mut from = 0;
        while let Some(letter) = self.next_letter_of(topic, from)? {
            from = letter + 1;
            let Some(at) = self.letter_at(letter)? else {
                continue;
            };
            if let Some(takes) = takes
                && !self.letter(letter)?.is_some_and(|letter| takes(&letter))
            {
                continue;
            }
            let one = DeadLetterGroup {
                fingerprint: Fingerprint(at.fingerprint),
                code: String::new(),
                count: 1,
                first: timestamp(at.at_ms),
                last: timestamp(at.at_ms),
                newest: letter,
            };
            let len = groups.len();
            match groups.entry(at.fingerprint) {
                Entry::Occupied(mut known) => {
                    let (group, newest) = known.get_mut();
                    add(group, &one);
                    *newest = at;
                }
                Entry::Vacant(_) if len >= LETTER_GROUPS_MAX => {
                    let others = others.get_or_insert_with(|| DeadLetterGroup {
                        fingerprint: Fingerprint(Hash16([0; 16])),
                        code: OTHER_CAUSES.to_owned(),
                        count: 0,
                        ..one.clone()
                    });
                    add(others, &one);
                }
                Entry::Vacant(new) => drop(new.insert((one, at))),
            }
        }
        let mut named = Vec::with_capacity(groups.len());
        for (mut group, at) in groups.into_values() {
            group.code = self.letter_record(at)?.code;
            named.push(group);
        }
        named.sort_by_key(|group| std::cmp::Reverse((group.count, group.newest)));
        named.extend(others);
        Ok(named)
    }
}

/// Adds a newer dead letter to a group.
fn add(group: &mut DeadLetterGroup, one: &DeadLetterGroup) {
    group.count += 1;
    group.last = group.last.max(one.last);
    group.first = group.first.min(one.first);
    group.newest = one.newest;
}
