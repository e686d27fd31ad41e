//! Reading: from the index to the journal to the vault. Readers never wait for the writer.

use effectd_contracts::{EventId, Timestamp};

use super::drafts::hash_lost_with;
use super::{Served, Shared, timestamp};
use crate::block;
use crate::codec::{Malformed, Place, Span};
use crate::desk::{entry_context, index_damaged};
use crate::error::StoreError;
use crate::journal::ADVICE;
use crate::keys::{self, Disturbance, EntryAt, Resolution, Run, Stored};
use crate::limits::{PAGE_BYTES_MAX, PAGE_ITEMS_MAX};
use crate::names::{FamilyName, ResourceName, TopicName};
use crate::record::{EventRecord, Payload, Record};
use crate::types::events::{Body, EventPage, StoredEvent};
use crate::types::families::{self, EntryPage};
use crate::types::receipts::StoredReceipt;
use crate::vault::Kind;

pub(crate) struct InRun {
    /// The first offset of its run.
    pub(crate) run: u64,
    /// When it was first stored.
    pub(crate) at_ms: i64,
    pub(crate) place: Place,
}

impl Shared {
    // ---- events ----

    pub(crate) fn read_page(
        &self,
        topic: &TopicName,
        from: u64,
        max: usize,
    ) -> Result<EventPage, StoreError> {
        let served = self.served();
        served.alive()?;
        let (begin, end) = span_of(&served, topic);
        let mut page = EventPage {
            events: Vec::new(),
            next: from.min(end),
            begin,
            end,
        };
        if page.next < begin {
            // One that somebody has still to settle is kept, alone.
            page.events.push(self.read_event(&served, topic, page.next)?);
            page.next += 1;
            return Ok(page);
        }
        let mut bytes = 0;
        while page.next < end && page.events.len() < max.min(PAGE_ITEMS_MAX) && bytes < PAGE_BYTES_MAX {
            let (first, run) = event_run(&served, topic, page.next)?;
            let skip = usize::try_from(page.next - first).unwrap_or(usize::MAX);
            for span in run.spans.iter().skip(skip) {
                if page.events.len() >= max.min(PAGE_ITEMS_MAX) || bytes >= PAGE_BYTES_MAX {
                    break;
                }
                let event = self.event(&served, &run, *span)?;
                bytes += event.body.bytes().map_or(0, <[u8]>::len);
                page.events.push(event);
                page.next += 1;
            }
        }
        Ok(page)
    }

    pub(crate) fn read_event(
        &self,
        served: &Served,
        topic: &TopicName,
        offset: u64,
    ) -> Result<StoredEvent, StoreError> {
        self.read_event_near(served, topic, offset, &mut None)
    }

    /// Reads an event whose run may be that of the event that was read before: those of one lease often are.
    pub(crate) fn read_event_near(
        &self,
        served: &Served,
        topic: &TopicName,
        offset: u64,
        near: &mut Option<(u64, Run)>,
    ) -> Result<StoredEvent, StoreError> {
        let span_in = |(first, run): &(u64, Run)| {
            let nth = usize::try_from(offset.checked_sub(*first)?).ok()?;
            run.spans.get(nth).copied()
        };
        if near.as_ref().and_then(span_in).is_none() {
            *near = Some(event_run(served, topic, offset)?);
        }
        let found = near.as_ref().and_then(|near| Some((&near.1, span_in(near)?)));
        let (run, span) = found.ok_or_else(|| gap(topic, offset))?;
        self.event(served, run, span)
    }

    /// The record of an event, wherever it was written.
    pub(crate) fn read_event_record(&self, served: &Served, place: Place) -> Result<EventRecord, StoreError> {
        let (Record::Published { event, .. } | Record::EventMoved { event, .. }) =
            read_record(served, place)?.1
        else {
            return Err(unexpected(place));
        };
        Ok(event)
    }

    /// Where an event lies; `None` if it is no longer kept.
    pub(crate) fn place_of(
        &self,
        served: &Served,
        topic: &TopicName,
        offset: u64,
    ) -> Result<Option<InRun>, StoreError> {
        let (first, run) = match event_run(served, topic, offset) {
            Err(StoreError::Dropped { .. }) => return Ok(None),
            found => found?,
        };
        let nth = usize::try_from(offset - first).unwrap_or(usize::MAX);
        let span = run.spans.get(nth).copied().ok_or_else(|| gap(topic, offset))?;
        Ok(Some(InRun {
            run: first,
            at_ms: run.at_ms,
            place: Place { seq: run.seq, span },
        }))
    }

    fn event(&self, served: &Served, run: &Run, span: Span) -> Result<StoredEvent, StoreError> {
        let place = Place { seq: run.seq, span };
        let (bytes, record) = read_record(served, place)?;
        let (Record::Published { topic, offset, event }
        | Record::EventMoved {
            topic, offset, event, ..
        }) = record
        else {
            return Err(unexpected(place));
        };
        let EventRecord {
            event_id,
            time_ms,
            trace_id,
            action_id,
            body,
        } = event;
        let context = action_id.as_ref().map_or(event_id.as_str(), |id| id.as_str());
        let body = self.open_body(
            &body,
            part_of(&bytes, span, body.blob.span())?,
            Kind::Event,
            context,
        )?;
        let (time, stored_at) = (timestamp(time_ms), timestamp(run.at_ms));
        Ok(StoredEvent {
            topic,
            offset,
            event_id,
            time,
            stored_at,
            trace_id,
            action_id,
            body,
        })
    }

    /// The first offset before `end` that was stored at the time or later; `end` if there is none.
    pub(crate) fn offset_at(
        &self,
        served: &Served,
        topic: &TopicName,
        end: u64,
        time: Timestamp,
    ) -> Result<u64, StoreError> {
        let wanted = time.as_millisecond();
        let (begin, _) = span_of(served, topic);
        first_run(
            served,
            |offset| keys::run(topic, offset),
            begin..end,
            |run| run.at_ms >= wanted,
        )
    }

    // ---- bodies ----

    pub(crate) fn read_body(
        &self,
        served: &Served,
        stored: Stored,
        kind: Kind,
        context: &str,
    ) -> Result<Body, StoreError> {
        let bytes = served.journal.part(stored.place.seq, stored.place.span)?;
        match stored.epoch {
            None => Ok(Body::Clear(bytes)),
            Some(epoch) => self.open(epoch, kind, context, &bytes),
        }
    }

    fn open_body(
        &self,
        payload: &Payload,
        bytes: &[u8],
        kind: Kind,
        context: &str,
    ) -> Result<Body, StoreError> {
        match payload.epoch {
            None => Ok(Body::Clear(bytes.to_vec())),
            Some(epoch) => self.open(epoch, kind, context, bytes),
        }
    }

    fn open(&self, epoch: u32, kind: Kind, context: &str, bytes: &[u8]) -> Result<Body, StoreError> {
        Ok(self
            .vault
            .open_sealed(epoch, kind, context, bytes)?
            .map_or(Body::Shredded, Body::Opened))
    }

    // ---- receipts ----

    pub(crate) fn read_receipt(&self, served: &Served, ordinal: u64) -> Result<StoredReceipt, StoreError> {
        let (run, span) = receipt_place(served, ordinal)?;
        let place = Place { seq: run.seq, span };
        let (bytes, record) = read_record(served, place)?;
        let Record::Completed(receipt) = record else {
            return Err(unexpected(place));
        };
        Ok(StoredReceipt {
            ordinal,
            stored_at: timestamp(run.at_ms),
            body: part_of(&bytes, span, receipt.body.span())?.to_vec(),
            receipt_id: receipt.receipt_id,
            action_id: receipt.action_id,
            action_digest: receipt.action_digest,
            tool_id: receipt.tool_id,
            subject_id: receipt.subject_id,
            space_id: receipt.space_id,
            status: receipt.status,
            params_digest: receipt.params_digest,
            time: timestamp(receipt.time_ms),
        })
    }

    /// A receipt, or `None` if it was let go while it was looked for.
    pub(crate) fn read_kept(
        &self,
        served: &Served,
        ordinal: u64,
    ) -> Result<Option<StoredReceipt>, StoreError> {
        let is_gone = || ordinal < served.live().receipts_begin;
        if is_gone() {
            return Ok(None);
        }
        match self.read_receipt(served, ordinal) {
            Err(_) if is_gone() => Ok(None),
            other => other.map(Some),
        }
    }

    pub(crate) fn resolved(&self, served: &Served, key: &[u8]) -> Result<Option<Resolution>, StoreError> {
        let found = served.table.view(None).get(key)?;
        found
            .map(|bytes| Resolution::decode(&bytes))
            .transpose()
            .map(|found| found.filter(|found| found.ordinal >= served.live().receipts_begin))
            .map_err(|error| index_damaged(&error))
    }

    /// Whether something that these resources lie beneath was disturbed after a receipt.
    pub(crate) fn is_disturbed(
        &self,
        served: &Served,
        resources: &[ResourceName],
        ordinal: u64,
    ) -> Result<bool, StoreError> {
        for above in hash_lost_with(resources) {
            let found = served.table.view(None).get(&keys::beneath(above))?;
            let since = found.map(|bytes| Disturbance::decode(&bytes)).transpose();
            if since
                .map_err(|error| index_damaged(&error))?
                .is_some_and(|since| since.ordinal > ordinal)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    // ---- families ----

    pub(crate) fn read_entry(
        &self,
        family: &FamilyName,
        key: &str,
    ) -> Result<Option<families::Entry>, StoreError> {
        let served = self.served();
        served.alive()?;
        let found = served.table.view(None).get(&keys::entry(family, key))?;
        found
            .map(|bytes| self.family_entry(&served, family, key, &bytes))
            .transpose()
    }

    fn family_entry(
        &self,
        served: &Served,
        family: &FamilyName,
        key: &str,
        at: &[u8],
    ) -> Result<families::Entry, StoreError> {
        let EntryAt { version, value } = EntryAt::decode(at).map_err(|error| index_damaged(&error))?;
        let value = self.read_body(served, value, Kind::Entry, &entry_context(family, key))?;
        Ok(families::Entry {
            key: key.to_owned(),
            version,
            value,
        })
    }

    pub(crate) fn read_entries(
        &self,
        family: &FamilyName,
        prefix: &str,
        after: Option<&str>,
        max: usize,
    ) -> Result<EntryPage, StoreError> {
        let served = self.served();
        served.alive()?;
        let head = keys::family(family).len();
        let start = keys::entry(family, prefix);
        let mut end = start.clone();
        // Keys are UTF-8, in which this byte never occurs.
        end.push(0xff);
        let mut from = start;
        if let Some(after) = after {
            let mut behind = keys::entry(family, after);
            behind.push(0);
            from = from.max(behind);
        }
        let mut page = EntryPage::default();
        let mut bytes = 0;
        while let Some((key, value)) = served.table.view(None).next(&from, &end)? {
            if page.entries.len() >= max.clamp(1, PAGE_ITEMS_MAX) || bytes >= PAGE_BYTES_MAX {
                page.after = page.entries.last().map(|entry| entry.key.clone());
                return Ok(page);
            }
            let name = std::str::from_utf8(&key[head..]);
            let name = name.map_err(|_| index_damaged(&Malformed("an entry's key that is not text")))?;
            let entry = self.family_entry(&served, family, name, &value)?;
            bytes += entry.value.bytes().map_or(0, <[u8]>::len);
            page.entries.push(entry);
            from = key;
            from.push(0);
        }
        Ok(page)
    }
}

pub(super) fn decode_run(found: Option<(Vec<u8>, Vec<u8>)>) -> Result<Option<(u64, Run)>, Malformed> {
    let Some((key, value)) = found else {
        return Ok(None);
    };
    let first = key
        .last_chunk::<8>()
        .ok_or(Malformed("a run without its first number"))?;
    Ok(Some((u64::from_be_bytes(*first), Run::decode(&value)?)))
}

/// The run that a receipt is in, and its place there.
pub(super) fn receipt_place(served: &Served, ordinal: u64) -> Result<(Run, Span), StoreError> {
    let start = keys::receipt_run(0);
    let found = served
        .table
        .view(None)
        .previous(&start, &keys::receipt_run(ordinal))?;
    let (first, run) = decode_run(found)
        .and_then(|run| run.ok_or(Malformed("a receipt without its place")))
        .map_err(|error| index_damaged(&error))?;
    let span = usize::try_from(ordinal - first)
        .ok()
        .and_then(|nth| run.spans.get(nth).copied());
    let span = span.ok_or_else(|| index_damaged(&Malformed("a receipt without its place")))?;
    Ok((run, span))
}

fn event_run(served: &Served, topic: &TopicName, offset: u64) -> Result<(u64, Run), StoreError> {
    let found = served
        .table
        .view(None)
        .previous(&keys::run(topic, 0), &keys::run(topic, offset))?;
    let run = decode_run(found).map_err(|error| index_damaged(&error))?;
    run.filter(|(first, run)| offset - first < run.spans.len() as u64)
        .ok_or_else(|| match span_of(served, topic) {
            (begins, _) if offset < begins => StoreError::Dropped {
                topic: topic.clone(),
                begins,
            },
            _ => gap(topic, offset),
        })
}

pub(super) fn span_of(served: &Served, topic: &TopicName) -> (u64, u64) {
    let live = served.live();
    (live.begin(topic), live.ends.get(topic).copied().unwrap_or(0))
}

/// The first number in a range whose run is one that is looked for, when all runs after such a one are, too; the range's
/// end if there is none. Found by bisection over the runs.
pub(super) fn first_run(
    served: &Served,
    key: impl Fn(u64) -> Vec<u8>,
    range: std::ops::Range<u64>,
    is_wanted: impl Fn(&Run) -> bool,
) -> Result<u64, StoreError> {
    let (mut low, mut high) = (range.start, range.end);
    while low < high {
        let found = served
            .table
            .view(None)
            .previous(&key(low), &key(low + (high - low) / 2))?;
        let Some((first, run)) = decode_run(found).map_err(|error| index_damaged(&error))? else {
            // Numbers are in the middle of a run that begins before them.
            return Ok(low);
        };
        if is_wanted(&run) {
            high = first;
        } else {
            low = first + run.spans.len() as u64;
        }
    }
    Ok(low)
}

pub(super) fn published_at(
    served: &Served,
    topic: &TopicName,
    id: &EventId,
) -> Result<Option<u64>, StoreError> {
    let found = served.table.view(None).get(&keys::event(topic, id))?;
    let found = found.map(|bytes| keys::read_event_value(&bytes)).transpose();
    let (begin, _) = span_of(served, topic);
    let kept = |(offset, moved): &(u64, bool)| *moved || *offset >= begin;
    let found = found.map_err(|error| index_damaged(&error))?.filter(kept);
    Ok(found.map(|(offset, _)| offset))
}

fn gap(topic: &TopicName, offset: u64) -> StoreError {
    StoreError::Damaged {
        what: format!("event {offset} of {topic} is not in the index"),
        advice: ADVICE,
    }
}

pub(super) fn unexpected(place: Place) -> StoreError {
    StoreError::Damaged {
        what: format!("block {} holds another record than the index says", place.seq),
        advice: ADVICE,
    }
}

pub(super) fn read_record(served: &Served, place: Place) -> Result<(Vec<u8>, Record), StoreError> {
    let bytes = served.journal.part(place.seq, place.span)?;
    let record = block::record(&bytes, place.span).map_err(|error| StoreError::Damaged {
        what: format!("block {} of the journal: {error}", place.seq),
        advice: ADVICE,
    })?;
    Ok((bytes, record))
}

/// A part of a record's bytes, from its place in the block.
pub(super) fn part_of(bytes: &[u8], record: Span, part: Span) -> Result<&[u8], StoreError> {
    let start = part.at.checked_sub(record.at).map(|start| start as usize);
    let range = start.map(|start| start..start + part.len as usize);
    range
        .and_then(|range| bytes.get(range))
        .ok_or_else(|| index_damaged(&Malformed("a body outside its record")))
}
