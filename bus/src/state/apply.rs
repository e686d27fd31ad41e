//! Applying records to the state, one after another.

use effectd_contracts::{Digest, Monotonic, Status};

use super::groups::{DeliveryState, Pending, Tried};
use super::{BlockChanges, Derived, OpenClaim, State, When};
use crate::codec::{Location, Malformed, Span};
use crate::index::memtable::Cell;
use crate::index::schema::{
    self, BlockSpans, DeadLetterAt, Dimension, EntryAt, Invalidation, ListedByBody, ReceiptAt, Resolution,
    Stored,
};
use crate::journal::record::{
    AcknowledgedRecord, ClaimRecord, DeadLetterRecord, Ending, EventRecord, ExpiredRecord, LeasedRecord,
    LostRecord, ReceiptRecord, Record,
};
use crate::limits::LOST_IN_BLOCK_MAX;
use crate::names::TopicName;

impl State {
    /// Applies one record. Fails if it contradicts the records before it; then the journal is damaged.
    pub fn apply(
        &mut self,
        location: Location,
        record: &Record,
        derived: Derived,
        when: When,
        changes: &mut BlockChanges,
    ) -> Result<(), Malformed> {
        if let Some(leaf) = derived.leaf {
            self.logged(location, leaf, changes);
        }
        let index = &mut changes.index;
        match record {
            Record::Published { topic, offset, event } => {
                return self.published(location, (topic, *offset), event, changes);
            }
            Record::Leased(leased) => return self.leased(leased, when),
            Record::Acknowledged(record) => return self.acknowledged(location, record, when, changes),
            Record::DeadLettered(letter) => return self.dead_lettered(location, letter, when, changes),
            Record::Claimed(claim) => return self.claimed(location, claim, when, changes),
            Record::Completed(receipt) => {
                return self.completed(location, receipt, derived.listed, changes);
            }
            Record::Expired(expired) => return self.expired(expired, changes),
            Record::Lost(lost) => return self.lost(location, lost, changes),
            Record::TakenOver { action, fence } => {
                let claim = self.close_claim(*action);
                let (_, mut claim) = claim.ok_or(Malformed("a takeover of a claim that does not exist"))?;
                claim.orphaned = when.replay;
                count(&mut self.next_fence, *fence, "a fence out of order")?;
                self.open_claim(*action, *fence, claim);
            }
            Record::Linked { action, action_digest, ordinal } => {
                let (ordinal, digest) = (*ordinal, *action_digest);
                index.put(schema::action(*action), Resolution { ordinal, digest }.encode());
            }
            Record::EntryPut { family, key, version, created, value } => {
                self.entries += u64::from(*created);
                // Sealing again keeps the version, so that compare-and-swaps do not notice it.
                self.next_version = self.next_version.max(*version + 1);
                let (version, value) = (*version, Stored::of(location.seq, value));
                index.put(schema::entry(family, key), EntryAt { version, value }.encode());
            }
            Record::EntryDeleted { family, key } => {
                // After a salvage the creation may be lost: then it is not counted.
                self.entries = self.entries.saturating_sub(1);
                index.set(schema::entry(family, key), Cell::Delete);
            }
            Record::Sought { topic, group, offset } => {
                for lease in self.group_mut(topic, group).seek(*offset) {
                    self.leases.remove(&lease);
                }
                changes.changed.insert(topic.clone());
                changes.returned.insert(topic.clone());
            }
            Record::GroupRemoved { topic, group } => {
                let removed = self.groups.remove(&(topic.clone(), group.clone()));
                for lease in removed.into_iter().flat_map(|mut group| group.seek(0)) {
                    self.leases.remove(&lease);
                }
            }
            Record::Configured { topic, group, options } => self.group_mut(topic, group).options = *options,
            Record::EpochClosed { epoch } => {
                self.closed_epochs.insert(*epoch);
                changes.closed_epochs.push(*epoch);
                for topic in self.topics.values_mut() {
                    topic.sealed.remove(epoch);
                }
            }
            Record::DeadLetterEnded { letter, reopened } => {
                index.set(schema::letter(*letter), Cell::Delete);
                if let Some(action) = reopened {
                    index.set(schema::action(*action), Cell::Delete);
                }
                changes.letters_ended.push(*letter);
            }
            Record::Noted { about, .. } => {
                index.post(schema::posting(Dimension::Note, *about, self.log.size() - 1));
            }
            Record::EventMoved { at_ms, topic, offset, event } => {
                return self.event_moved(location, *at_ms, (topic, *offset), event, changes);
            }
            Record::ClaimMoved { fence, intent } => {
                let claim = self.claims.get_mut(fence);
                claim.ok_or(Malformed("a move of a claim that does not exist"))?.intent =
                    Stored::of(location.seq, intent);
            }
            Record::DeadLetterMoved { at_ms, letter } => {
                let moved = letter_at(location, letter, *at_ms);
                index.put(schema::letter(letter.letter), moved.encode());
            }
            Record::Invalidated { ordinal, resources } => {
                let (ordinal, fence) = (*ordinal, self.next_fence);
                for resource in resources {
                    let value = Invalidation { ordinal, fence }.encode();
                    index.put(schema::invalidation(*resource), value);
                }
            }
        }
        Ok(())
    }

    /// Goes on after lost records. Lost receipts and log entries get empty spans, so that the numbers stay without gaps.
    fn lost(
        &mut self,
        location: Location,
        lost: &LostRecord,
        changes: &mut BlockChanges,
    ) -> Result<(), Malformed> {
        let nothing = Location { seq: location.seq, span: Span::default() };
        if !lost.leaves.is_empty() {
            let known = self.log.size().checked_sub(lost.log_from);
            let known = known.ok_or(Malformed("lost entries of the log that do not follow the last one"))?;
            for leaf in lost.leaves.iter().skip(usize::try_from(known).unwrap_or(usize::MAX)) {
                self.logged(nothing, Digest::from_bytes(*leaf), changes);
            }
        }
        let ordinal = self.next_ordinal;
        let receipts = usize::try_from(lost.next_ordinal.saturating_sub(ordinal)).unwrap_or(usize::MAX);
        if receipts > LOST_IN_BLOCK_MAX {
            return Err(Malformed("more lost receipts than a block can have"));
        }
        if receipts > 0 {
            let spans = self.receipts.get_or_insert_with(|| (ordinal, Vec::new()));
            spans.1.extend(std::iter::repeat_n(Span::default(), receipts));
            self.next_ordinal = lost.next_ordinal;
        }
        self.next_fence = self.next_fence.max(lost.next_fence);
        self.next_lease = self.next_lease.max(lost.next_lease);
        self.next_letter = self.next_letter.max(lost.next_letter);
        for (topic, group, offset) in &lost.acknowledged {
            self.group_mut(topic, group).finish(*offset);
        }
        for (key, ordinal, digest) in &lost.keys {
            let resolution = Resolution { ordinal: *ordinal, digest: Digest::from_bytes(*digest) };
            changes.index.put(schema::key(*key), resolution.encode());
        }
        Ok(())
    }

    fn expired(&mut self, expired: &ExpiredRecord, changes: &mut BlockChanges) -> Result<(), Malformed> {
        if expired.receipts_begin > self.next_ordinal {
            return Err(Malformed("an expiry of receipts that do not exist"));
        }
        self.receipts_begin = self.receipts_begin.max(expired.receipts_begin);
        for (name, begin, keeps_unacknowledged) in &expired.topics {
            let topic = self.topics.get_mut(name);
            let topic = topic.ok_or(Malformed("an expiry in a topic that does not exist"))?;
            if *begin > topic.end {
                return Err(Malformed("an expiry of events that do not exist"));
            }
            topic.begin = topic.begin.max(*begin);
            topic.keeps_unacknowledged = *keeps_unacknowledged;
        }
        self.epochs_before = self.epochs_before.max(expired.epochs_before);
        self.closed_epochs = self.closed_epochs.split_off(&self.epochs_before);
        changes.expired = true;
        Ok(())
    }

    /// Points the index to the event's new location, in spans of its own.
    fn event_moved(
        &mut self,
        location: Location,
        at_ms: i64,
        (name, offset): (&TopicName, u64),
        event: &EventRecord,
        changes: &mut BlockChanges,
    ) -> Result<(), Malformed> {
        let topic = self.topics.get_mut(name).ok_or(Malformed("a move in a topic that does not exist"))?;
        if offset >= topic.end {
            return Err(Malformed("a move of an event that does not exist"));
        }
        if let Some(epoch) = event.body.epoch {
            let end = topic.sealed.entry(epoch).or_default();
            *end = (*end).max(offset + 1);
        }
        let spans = BlockSpans { at_ms, seq: location.seq, before: 0, spans: vec![location.span] };
        let value = schema::event_value(offset, Some(location.seq));
        changes.index.put(schema::events(name, offset), spans.encode());
        changes.index.put(schema::event(name, &event.event_id), value);
        Ok(())
    }

    /// Ends a block: the spans of its events, receipts and log entries go into the index.
    pub fn end_block(&mut self, seq: u64, at_ms: i64, changes: &mut BlockChanges) {
        let index = &mut changes.index;
        let encoded = |spans: Vec<Span>, until: u64| {
            let own: u64 = spans.iter().map(|span| u64::from(span.len)).sum();
            let before = until.saturating_sub(own);
            let spans = BlockSpans { at_ms, seq, before, spans };
            spans.encode()
        };
        for (topic, (first, spans)) in std::mem::take(&mut self.events) {
            let until = self.topics.get(&topic).map_or(0, |topic| topic.bytes);
            index.put(schema::events(&topic, first), encoded(spans, until));
        }
        if let Some((first, spans)) = self.receipts.take() {
            index.put(schema::receipts(first), encoded(spans, self.receipt_bytes));
        }
        if let Some((first, spans)) = self.log_entries.take() {
            index.put(schema::log_entries(first), encoded(spans, 0));
        }
    }

    fn logged(&mut self, location: Location, leaf: Digest, changes: &mut BlockChanges) {
        let index = self.log.size();
        self.log.push(leaf);
        let leaves = changes.leaves.get_or_insert_with(|| (index, Vec::new()));
        leaves.1.push(leaf);
        let entries = self.log_entries.get_or_insert_with(|| (index, Vec::new()));
        entries.1.push(location.span);
    }

    fn published(
        &mut self,
        location: Location,
        (name, offset): (&TopicName, u64),
        event: &EventRecord,
        changes: &mut BlockChanges,
    ) -> Result<(), Malformed> {
        let topic = self.topics.entry(name.clone()).or_default();
        count(&mut topic.end, offset, "an event out of order")?;
        if let Some(epoch) = event.body.epoch {
            topic.sealed.insert(epoch, topic.end);
        }
        topic.bytes += u64::from(location.span.len);
        let value = schema::event_value(offset, None);
        changes.index.put(schema::event(name, &event.event_id), value);
        let events = self.events.entry(name.clone());
        events.or_insert_with(|| (offset, Vec::new())).1.push(location.span);
        changes.changed.insert(name.clone());
        Ok(())
    }

    fn leased(&mut self, leased: &LeasedRecord, when: When) -> Result<(), Malformed> {
        let end = self.end(&leased.topic);
        self.group_mut(&leased.topic, &leased.group);
        let key = (leased.topic.clone(), leased.group.clone());
        let group = self.groups.get_mut(&key);
        let group = group.ok_or(Malformed("a lease of a group that does not exist"))?;
        let ttl = std::time::Duration::from_millis(leased.ttl_ms);
        let until = if when.replay { Monotonic::default() } else { when.now.plus(ttl) };
        for (offset, lease) in &leased.grants {
            if *offset >= end || *offset < group.committed() {
                return Err(Malformed("a lease of an event that does not exist"));
            }
            if let Some(ended) = group.grant(*offset, *lease, until) {
                self.leases.remove(&ended);
            }
            count(&mut self.next_lease, *lease, "a lease out of order")?;
            if !when.replay {
                self.leases.insert(*lease, (leased.topic.clone(), leased.group.clone(), *offset));
            }
        }
        Ok(())
    }

    fn acknowledged(
        &mut self,
        location: Location,
        record: &AcknowledgedRecord,
        when: When,
        changes: &mut BlockChanges,
    ) -> Result<(), Malformed> {
        let key = (record.topic.clone(), record.group.clone());
        let group = self.groups.get_mut(&key);
        let group = group.ok_or(Malformed("an end of a delivery in a group that does not exist"))?;
        let pending = group.pending().get(&record.offset);
        let pending = *pending.ok_or(Malformed("an end of a delivery that does not exist"))?;
        if let DeliveryState::Leased { lease, .. } = pending.state {
            self.leases.remove(&lease);
        }
        let (delay_ms, count) = match &record.how {
            Ending::Done => {
                group.finish(record.offset);
                return Ok(());
            }
            Ending::Nacked { delay_ms, detail } => {
                let detail = Stored::of(location.seq, detail);
                let at_ms = when.at_ms;
                group.record_failure(record.offset, Tried { at_ms, detail });
                (*delay_ms, pending.count)
            }
            Ending::Deferred { delay_ms } => (*delay_ms, pending.count.saturating_sub(1)),
        };
        let state = delayed(when, when.at_ms.saturating_add_unsigned(delay_ms), delay_ms);
        group.set(record.offset, Pending { count, state });
        changes.changed.insert(record.topic.clone());
        changes.returned.insert(record.topic.clone());
        Ok(())
    }

    fn dead_lettered(
        &mut self,
        location: Location,
        letter: &DeadLetterRecord,
        when: When,
        changes: &mut BlockChanges,
    ) -> Result<(), Malformed> {
        count(&mut self.next_letter, letter.letter, "a dead letter out of order")?;
        let at = letter_at(location, letter, when.at_ms);
        changes.index.put(schema::letter(letter.letter), at.encode());
        let topic = schema::text_hash(letter.topic.as_str());
        let posting = schema::posting(Dimension::LetterTopic, topic, letter.letter);
        changes.index.post(posting);
        changes.letters_begun += 1;
        if letter.is_quarantined() {
            changes.letters_quarantined.push(letter.letter);
        }
        Ok(())
    }

    fn claimed(
        &mut self,
        location: Location,
        claim: &ClaimRecord,
        when: When,
        changes: &mut BlockChanges,
    ) -> Result<(), Malformed> {
        count(&mut self.next_fence, claim.fence, "a fence out of order")?;
        let open = OpenClaim {
            action_id: claim.action_id.clone(),
            action_digest: claim.action_digest,
            space: claim.space.clone(),
            key: claim.key,
            params_digest: claim.params_digest,
            resources: claim.resources.clone(),
            since_ms: when.at_ms,
            orphaned: when.replay,
            intent: Stored::of(location.seq, &claim.intent),
        };
        if let Some(key) = open.key {
            let opened = (key, open.params_digest, open.action_id.clone());
            changes.opened.push(opened);
        }
        self.open_claim(schema::action_hash(claim.action_id.as_str()), claim.fence, open);
        Ok(())
    }

    fn completed(
        &mut self,
        location: Location,
        receipt: &ReceiptRecord,
        by_body: ListedByBody,
        changes: &mut BlockChanges,
    ) -> Result<(), Malformed> {
        count(&mut self.next_ordinal, receipt.ordinal, "a receipt out of order")?;
        let ordinal = receipt.ordinal;
        let action = schema::action_hash(receipt.action_id.as_str());
        let asked = self.close_claim(action).and_then(|(_, claim)| claim.key);
        changes.closed.extend(asked);
        let index = &mut changes.index;
        let body = receipt.body_hash;
        let at = ReceiptAt { ordinal, body };
        let resolution = |digest| Resolution { ordinal, digest }.encode();
        index.put(schema::receipt(receipt.receipt_id.as_str()), at.encode());
        index.put(schema::action(action), resolution(receipt.action_digest));
        if let Some(satisfied) = asked.filter(|_| receipt.status == Status::Ok) {
            index.put(schema::key(satisfied), resolution(receipt.params_digest));
        }
        let key = receipt.key.map(|key| (Dimension::Key, key));
        let optional = by_body.into_iter().chain([key]).flatten();
        let tool = receipt.tool_id.as_str();
        let listed = [
            (Dimension::ToolGroup, schema::text_hash(schema::tool_group(tool))),
            (Dimension::Tool, schema::text_hash(tool)),
            (Dimension::Subject, schema::text_hash(receipt.subject_id.as_str())),
            (Dimension::Space, schema::text_hash(receipt.space_id.as_str())),
            (Dimension::Status, schema::status_hash(receipt.status)),
        ];
        for (dimension, value) in listed.into_iter().chain(optional) {
            index.post(schema::posting(dimension, value, ordinal));
        }
        self.receipt_bytes += u64::from(location.span.len);
        let receipts = self.receipts.get_or_insert_with(|| (ordinal, Vec::new()));
        receipts.1.push(location.span);
        Ok(())
    }
}

fn letter_at(location: Location, letter: &DeadLetterRecord, at_ms: i64) -> DeadLetterAt {
    DeadLetterAt {
        at_ms,
        fingerprint: letter.fingerprint,
        record: location,
        detail: Stored::of(location.seq, &letter.detail),
        payload: Stored::of(location.seq, &letter.payload),
        tries: letter.tries.as_ref().map(|tries| Stored::of(location.seq, tries)),
    }
}

/// A delay; after a restart it is measured by the wall clock, but is never longer than requested.
pub(super) fn delayed(when: When, until_ms: i64, delay_ms: u64) -> DeliveryState {
    let left_ms = if when.replay {
        u64::try_from(until_ms.saturating_sub(when.now_ms)).unwrap_or(0).min(delay_ms)
    } else {
        delay_ms
    };
    let until = when.now.plus(std::time::Duration::from_millis(left_ms));
    DeliveryState::Delayed { until, until_ms, delay_ms }
}

fn count(next: &mut u64, number: u64, what: &'static str) -> Result<(), Malformed> {
    if *next != number {
        return Err(Malformed(what));
    }
    *next += 1;
    Ok(())
}
