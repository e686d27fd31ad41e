//! Reading the store: from the index to the journal to the vault. Readers never wait for the writer.

pub(crate) mod dead_letters;
pub(crate) mod log;
pub(crate) mod receipts;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use effectd_contracts::merkle::Frontier;
use effectd_contracts::{ActionId, Digest, EventId, Timestamp};
use parking_lot::RwLock;

use crate::codec::{Hash16, Location, Malformed, Span};
use crate::error::StoreError;
use crate::index::schema::{self, BlockSpans, EntryAt, Invalidation, Stored};
use crate::index::{Index, Pair, View, after};
use crate::journal::Journal;
use crate::journal::record::{EventRecord, Record};
use crate::limits::{PAGE_BYTES_MAX, PAGE_ITEMS_MAX};
use crate::names::{FamilyName, TopicName};
use crate::state::State;
use crate::types::events::{Body, EventPage, StoredEvent};
use crate::types::kv::{KvEntry, KvPage};
use crate::vault::{Kind, Vault};

/// The open store as readers see it. Replaced as a whole when the store is reopened.
pub(crate) struct Reader {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) index: Index,
    pub(crate) vault: Arc<Vault>,
    pub(crate) live: RwLock<Live>,
    /// Why nothing can be read, if that is so.
    pub(crate) dead: Option<StoreError>,
}

/// The part of the state that readers need.
#[derive(Default)]
pub(crate) struct Live {
    /// Claimed keys, with the digest of their parameters.
    pub(crate) open_keys: HashMap<Hash16, (Digest, ActionId)>,
    pub(crate) ends: HashMap<TopicName, u64>,
    /// The first kept events of topics, where that is not 0.
    begins: HashMap<TopicName, u64>,
    pub(crate) receipts_begin: u64,
    /// Grows when a dead letter is requeued or purged; has a new value after the store is reopened.
    pub(crate) letters_ended: u64,
    pub(crate) letters: u64,
    /// The number of the next dead letter.
    pub(crate) letters_end: u64,
    /// The dead letters of quarantined actions. Each subject may have few of them.
    pub(crate) quarantined: HashSet<u64>,
    /// The right edge of the Merkle log.
    pub(crate) log: Frontier,
    pub(crate) open_claims: u64,
}

impl Live {
    pub(crate) fn of(state: &State) -> Self {
        let claims = state.claims().values();
        let open_keys = claims.filter_map(|claim| {
            let open = (claim.params_digest, claim.action_id.clone());
            Some((claim.key?, open))
        });
        let ends = state.topics.iter().map(|(name, topic)| (name.clone(), topic.end));
        let mut live = Live {
            open_keys: open_keys.collect(),
            ends: ends.collect(),
            log: state.log.clone(),
            open_claims: state.claims().len() as u64,
            letters_end: state.next_letter,
            ..Live::default()
        };
        live.expire(state);
        live
    }

    pub(crate) fn expire(&mut self, state: &State) {
        self.receipts_begin = state.receipts_begin;
        let begins = state.topics.iter().filter(|(_, topic)| topic.begin > 0);
        self.begins = begins.map(|(name, topic)| (name.clone(), topic.begin)).collect();
    }

    /// The first kept event of a topic, and its end.
    pub(crate) fn range(&self, topic: &TopicName) -> (u64, u64) {
        let of = |offsets: &HashMap<TopicName, u64>| offsets.get(topic).copied().unwrap_or(0);
        (of(&self.begins), of(&self.ends))
    }
}

/// The location of an event.
pub(crate) struct EventAt {
    /// The first offset of its [`BlockSpans`].
    pub(crate) first: u64,
    /// When it was first stored.
    pub(crate) at_ms: i64,
    pub(crate) location: Location,
}

/// A time in milliseconds since 1970 that was read from disk.
pub(crate) fn timestamp(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap_or_default()
}

/// What a family entry's sealed value is bound to.
pub(crate) fn entry_context(family: &FamilyName, key: &str) -> String {
    format!("{family}/{key}")
}

/// What a dead letter's sealed parts are bound to.
pub(crate) fn letter_context(letter: u64, action: Option<&ActionId>) -> String {
    format!("{letter}:{}", action.map_or("", |id| id.as_str()))
}

impl Reader {
    pub(crate) fn alive(&self) -> Result<(), StoreError> {
        self.dead.clone().map_or(Ok(()), Err)
    }

    fn view(&self) -> View<'_> {
        self.index.view(None)
    }

    // ---- records and bodies ----

    fn record(&self, location: Location) -> Result<(Vec<u8>, Record), StoreError> {
        let bytes = self.journal.part(location.seq, location.span)?;
        let record = Record::decode(&bytes, location.span).map_err(|error| {
            StoreError::damaged(format!("block {} of the journal: {error}", location.seq))
        })?;
        Ok((bytes, record))
    }

    pub(crate) fn body(&self, stored: Stored, kind: Kind, context: &str) -> Result<Body, StoreError> {
        let bytes = self.journal.part(stored.location.seq, stored.location.span)?;
        self.open(stored.epoch, kind, context, &bytes)
    }

    fn open(&self, epoch: Option<u32>, kind: Kind, context: &str, bytes: &[u8]) -> Result<Body, StoreError> {
        let Some(epoch) = epoch else {
            return Ok(Body::Clear(bytes.to_vec()));
        };
        let opened = self.vault.open_sealed(epoch, kind, context, bytes)?;
        Ok(opened.map_or(Body::Shredded, Body::Opened))
    }

    /// The first spans with a key in `from..end`, and their first number.
    pub(crate) fn first_spans(
        &self,
        from: &[u8],
        end: &[u8],
    ) -> Result<Option<(u64, BlockSpans)>, StoreError> {
        decode_spans(self.view().next(from, end)?)
    }

    /// The last spans with a key in `start..=to`, and their first number.
    pub(crate) fn last_spans(
        &self,
        start: &[u8],
        to: &[u8],
    ) -> Result<Option<(u64, BlockSpans)>, StoreError> {
        decode_spans(self.view().previous(start, to)?)
    }

    // ---- events ----

    pub(crate) fn events(&self, topic: &TopicName, from: u64, max: usize) -> Result<EventPage, StoreError> {
        let (begin, end) = self.live.read().range(topic);
        let mut page = EventPage { events: Vec::new(), next: from.min(end), begin, end };
        if page.next < begin {
            // An event before `begin` is kept only if it is unacknowledged: it is a page of its own.
            page.events.push(self.event(topic, page.next, &mut None)?);
            page.next += 1;
            return Ok(page);
        }
        let (mut bytes, mut cached) = (0, None);
        while page.next < end && page.events.len() < max.min(PAGE_ITEMS_MAX) && bytes < PAGE_BYTES_MAX {
            let event = self.event(topic, page.next, &mut cached)?;
            bytes += event.body.bytes().map_or(0, <[u8]>::len);
            page.events.push(event);
            page.next += 1;
        }
        Ok(page)
    }

    /// Reads an event. `cached` has the spans of the last read, which neighbours often share.
    pub(crate) fn event(
        &self,
        topic: &TopicName,
        offset: u64,
        cached: &mut Option<(u64, BlockSpans)>,
    ) -> Result<StoredEvent, StoreError> {
        if cached.as_ref().and_then(|group| span_in(group, offset)).is_none() {
            *cached = Some(self.event_spans(topic, offset)?);
        }
        let found = cached.as_ref().and_then(|group| Some((&group.1, span_in(group, offset)?)));
        let (spans, span) = found.ok_or_else(|| not_indexed(topic, offset))?;
        let location = Location { seq: spans.seq, span };
        let (bytes, record) = self.record(location)?;
        let event = event_of(record, topic, offset).ok_or_else(|| unexpected(location))?;
        let context = event.action_id.as_ref();
        let context = context.map_or(event.event_id.as_str(), |id| id.as_str());
        let body = part_of(&bytes, span, event.body.blob.span())?;
        Ok(StoredEvent {
            topic: topic.clone(),
            offset,
            body: self.open(event.body.epoch, Kind::Event, context, body)?,
            event_id: event.event_id,
            time: timestamp(event.time_ms),
            stored_at: timestamp(spans.at_ms),
            trace_id: event.trace_id,
            action_id: event.action_id,
        })
    }

    pub(crate) fn event_record(
        &self,
        topic: &TopicName,
        offset: u64,
        location: Location,
    ) -> Result<EventRecord, StoreError> {
        let (_, record) = self.record(location)?;
        event_of(record, topic, offset).ok_or_else(|| unexpected(location))
    }

    /// The location of an event; `None` if it is no longer kept.
    pub(crate) fn event_at(&self, topic: &TopicName, offset: u64) -> Result<Option<EventAt>, StoreError> {
        let found = match self.event_spans(topic, offset) {
            Err(StoreError::Dropped { .. }) => return Ok(None),
            found => found?,
        };
        let span = span_in(&found, offset).ok_or_else(|| not_indexed(topic, offset))?;
        let (first, spans) = found;
        Ok(Some(EventAt { first, at_ms: spans.at_ms, location: Location { seq: spans.seq, span } }))
    }

    fn event_spans(&self, topic: &TopicName, offset: u64) -> Result<(u64, BlockSpans), StoreError> {
        let found = self.last_spans(&schema::events(topic, 0), &schema::events(topic, offset))?;
        let found = found.filter(|group| span_in(group, offset).is_some());
        found.ok_or_else(|| match self.live.read().range(topic) {
            (begins, _) if offset < begins => StoreError::Dropped { topic: topic.clone(), begins },
            _ => not_indexed(topic, offset),
        })
    }

    /// The first offset before `end` that was stored at the time or later; `end` if there is none.
    pub(crate) fn offset_at(&self, topic: &TopicName, end: u64, time: Timestamp) -> Result<u64, StoreError> {
        let wanted = time.as_millisecond();
        let (begin, _) = self.live.read().range(topic);
        let key = |offset| schema::events(topic, offset);
        self.first_where(key, begin..end, |spans| spans.at_ms >= wanted)
    }

    /// Searches a range for the first number whose spans satisfy `is_wanted`; returns the range's end if there is none. It is
    /// a binary search: all numbers after a match must match, too.
    pub(crate) fn first_where(
        &self,
        key: impl Fn(u64) -> Vec<u8>,
        range: std::ops::Range<u64>,
        is_wanted: impl Fn(&BlockSpans) -> bool,
    ) -> Result<u64, StoreError> {
        let (mut low, mut high) = (range.start, range.end);
        while low < high {
            let found = self.last_spans(&key(low), &key(low + (high - low) / 2))?;
            let Some((first, spans)) = found else {
                // The range begins in the middle of the spans.
                return Ok(low);
            };
            if is_wanted(&spans) {
                high = first;
            } else {
                low = first + spans.spans.len() as u64;
            }
        }
        Ok(low)
    }

    // ---- family entries ----

    pub(crate) fn entry(&self, family: &FamilyName, key: &str) -> Result<Option<KvEntry>, StoreError> {
        let found = self.view().get(&schema::entry(family, key))?;
        found.map(|bytes| self.read_entry(family, key, &bytes)).transpose()
    }

    fn read_entry(&self, family: &FamilyName, key: &str, at: &[u8]) -> Result<KvEntry, StoreError> {
        let EntryAt { version, value } = EntryAt::decode(at)?;
        Ok(KvEntry {
            key: key.to_owned(),
            version,
            value: self.body(value, Kind::Entry, &entry_context(family, key))?,
        })
    }

    pub(crate) fn entries(
        &self,
        family: &FamilyName,
        prefix: &str,
        after_key: Option<&str>,
        max: usize,
    ) -> Result<KvPage, StoreError> {
        let head = schema::family(family).len();
        let start = schema::entry(family, prefix);
        // Keys are UTF-8, in which this byte never occurs.
        let end = [start.as_slice(), &[0xff]].concat();
        let behind = after_key.map(|key| after(schema::entry(family, key)));
        let from = behind.map_or_else(|| start.clone(), |behind| behind.max(start.clone()));
        let mut page = KvPage::default();
        let mut bytes = 0;
        for found in self.view().scan(from, &end) {
            let (key, value) = found?;
            if page.entries.len() >= max.clamp(1, PAGE_ITEMS_MAX) || bytes >= PAGE_BYTES_MAX {
                page.after = page.entries.last().map(|entry| entry.key.clone());
                return Ok(page);
            }
            let name = std::str::from_utf8(&key[head..]);
            let name = name.map_err(|_| schema::malformed(Malformed("an entry's key that is not text")))?;
            let entry = self.read_entry(family, name, &value)?;
            bytes += entry.value.bytes().map_or(0, <[u8]>::len);
            page.entries.push(entry);
        }
        Ok(page)
    }
}

/// The offset of an event id, if the event is kept.
pub(crate) fn published_at(
    view: View<'_>,
    topic: &TopicName,
    id: &EventId,
    begin: u64,
) -> Result<Option<u64>, StoreError> {
    let Some(bytes) = view.get(&schema::event(topic, id))? else {
        return Ok(None);
    };
    let (offset, moved) = schema::read_event_value(&bytes)?;
    Ok((moved || offset >= begin).then_some(offset))
}

/// Whether one of these resources has an invalidation of this kind.
pub(crate) fn is_invalidated(
    view: View<'_>,
    resources: &[Hash16],
    is_meant: impl Fn(Invalidation) -> bool,
) -> Result<bool, StoreError> {
    for resource in resources {
        if let Some(bytes) = view.get(&schema::invalidation(*resource))?
            && is_meant(Invalidation::decode(&bytes)?)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Spans with their first number, from an entry of the index.
fn decode_spans(found: Option<Pair>) -> Result<Option<(u64, BlockSpans)>, StoreError> {
    let Some((key, value)) = found else {
        return Ok(None);
    };
    let first = key.last_chunk::<8>();
    let first = first.ok_or_else(|| schema::malformed(Malformed("spans without their first number")))?;
    Ok(Some((u64::from_be_bytes(*first), BlockSpans::decode(&value)?)))
}

/// The span of a number.
fn span_in((first, spans): &(u64, BlockSpans), number: u64) -> Option<Span> {
    let nth = usize::try_from(number.checked_sub(*first)?).ok()?;
    spans.spans.get(nth).copied()
}

/// The event of a record, if it is the one at this offset of this topic.
fn event_of(record: Record, topic: &TopicName, offset: u64) -> Option<EventRecord> {
    let (Record::Published { topic: own_topic, offset: own_offset, event }
    | Record::EventMoved { topic: own_topic, offset: own_offset, event, .. }) = record
    else {
        return None;
    };
    (own_topic == *topic && own_offset == offset).then_some(event)
}

fn not_indexed(topic: &TopicName, offset: u64) -> StoreError {
    StoreError::damaged(format!("event {offset} of {topic} is missing from the index"))
}

fn unexpected(location: Location) -> StoreError {
    let what = format!("block {} holds another record than the index says", location.seq);
    StoreError::damaged(what)
}

/// A part of a record's bytes, both given by their spans in the block.
fn part_of(bytes: &[u8], record: Span, part: Span) -> Result<&[u8], StoreError> {
    let at = part.at.checked_sub(record.at);
    at.and_then(|at| Span { at, len: part.len }.of(bytes))
        .ok_or_else(|| schema::malformed(Malformed("a body outside its record")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use effectd_contracts::TraceId;

    use super::*;
    use crate::journal::record::Payload;

    #[test]
    fn an_event_is_served_only_at_its_own_offset() {
        let topic = |name: &str| TopicName::new(name).unwrap();
        let event = EventRecord {
            event_id: EventId::new("event").unwrap(),
            time_ms: 0,
            trace_id: TraceId::new("trace").unwrap(),
            action_id: None,
            body: Payload::clear(Vec::new()),
        };
        let published = Record::Published { topic: topic("work"), offset: 7, event: event.clone() };
        let moved = Record::EventMoved { at_ms: 0, topic: topic("work"), offset: 7, event: event.clone() };
        for record in [published, moved] {
            let find = |name: &str, offset| event_of(record.clone(), &topic(name), offset);
            assert_eq!(find("work", 7), Some(event.clone()));
            assert_eq!((find("work", 8), find("other", 7)), (None, None));
        }
    }
}
