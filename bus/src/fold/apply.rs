//! One record after another.

use effectd_contracts::{Digest, Monotonic, Status};

use super::groups::{Hold, Pending, Tried};
use super::{Effects, Fold, OpenClaim, When};
use crate::codec::{Malformed, Place, Span};
use crate::keys::{self, Dimension, Disturbance, EntryAt, LetterAt, ReceiptAt, Resolution, Run, Stored};
use crate::names::TopicName;
use crate::record::{
    ClaimRecord, Ending, EventRecord, ExpiredRecord, LeasedRecord, LetterRecord, ReceiptRecord, Record,
    SettledRecord,
};
use crate::table::Cell;

impl Fold {
    /// Applies one record, which adds `leaf` to the log ([`crate::log::leaf_of`]). Fails if it does not follow from those
    /// before it; then the journal is not what was written.
    pub fn apply(
        &mut self,
        place: Place,
        record: &Record,
        leaf: Option<Digest>,
        when: When,
        effects: &mut Effects,
    ) -> Result<(), Malformed> {
        if let Some(leaf) = leaf {
            self.logged(place, leaf, effects);
        }
        match record {
            Record::Published { topic, offset, event } => {
                self.published(place, (topic, *offset), event, effects)
            }
            Record::Leased(leased) => self.leased(leased, when),
            Record::Settled(settled) => self.settled(place, settled, when, effects),
            Record::Lettered(letter) => self.lettered(place, letter, when, effects),
            Record::Claimed(claim) => self.claimed(place, claim, when, effects),
            Record::TakenOver { action, fence } => {
                let (_, mut claim) = self
                    .close_claim(*action)
                    .ok_or(Malformed("a take-over of no claim"))?;
                claim.orphaned = when.replay;
                count(&mut self.next_fence, *fence, "a fence out of order")?;
                self.open_claim(*action, *fence, claim);
                Ok(())
            }
            Record::Completed(receipt) => self.completed(place, receipt, effects),
            Record::Linked {
                action,
                action_digest,
                ordinal,
            } => {
                let resolution = Resolution {
                    ordinal: *ordinal,
                    digest: *action_digest,
                };
                effects.index.put(keys::action(*action), resolution.encode());
                Ok(())
            }
            Record::EntryPut {
                family,
                key,
                version,
                created,
                value,
            } => {
                self.entries += u64::from(*created);
                // Sealing again keeps the version, so that it does not disturb who compares and swaps.
                if *version >= self.next_version {
                    self.next_version = *version + 1;
                }
                let entry = EntryAt {
                    version: *version,
                    value: Stored::of(place.seq, value),
                };
                effects.index.put(keys::entry(family, key), entry.encode());
                Ok(())
            }
            Record::EntryDeleted { family, key } => {
                self.entries = self
                    .entries
                    .checked_sub(1)
                    .ok_or(Malformed("a deletion of no entry"))?;
                effects.index.set(keys::entry(family, key), Cell::Delete);
                Ok(())
            }
            Record::Sought { topic, group, offset } => {
                let leases = self.group_mut(topic, group).seek(*offset);
                for lease in &leases {
                    self.leases.remove(lease);
                }
                effects.news.insert(topic.clone());
                effects.given_back.insert(topic.clone());
                Ok(())
            }
            Record::Configured {
                topic,
                group,
                options,
            } => {
                self.group_mut(topic, group).options = *options;
                Ok(())
            }
            Record::EpochClosed { epoch } => {
                self.closed_epochs.insert(*epoch);
                effects.closed_epochs.push(*epoch);
                for topic in self.topics.values_mut() {
                    topic.sealed.remove(epoch);
                }
                Ok(())
            }
            Record::LetterEnded { letter, reopened } => {
                effects.index.set(keys::letter(*letter), Cell::Delete);
                if let Some(action) = reopened {
                    effects.index.set(keys::action(*action), Cell::Delete);
                }
                effects.letters_ended += 1;
                Ok(())
            }
            Record::Noted { about, .. } => {
                let index = self.log.size() - 1;
                effects.index.post(keys::posting(Dimension::Note, *about, index));
                Ok(())
            }
            Record::Expired(expired) => self.expired(expired, effects),
            Record::EventMoved {
                at_ms,
                topic,
                offset,
                event,
            } => self.event_moved(place, *at_ms, (topic, *offset), event, effects),
            Record::ClaimMoved { fence, intent } => {
                let claim = self
                    .claims
                    .get_mut(fence)
                    .ok_or(Malformed("a move of no claim"))?;
                claim.intent = Stored::of(place.seq, intent);
                Ok(())
            }
            Record::LetterMoved { at_ms, letter } => {
                let moved = letter_at(place, letter, *at_ms);
                effects.index.put(keys::letter(letter.letter), moved.encode());
                Ok(())
            }
            Record::Disturbed { ordinal, resources } => {
                let disturbance = Disturbance {
                    ordinal: *ordinal,
                    fence: self.next_fence,
                };
                for resource in resources {
                    effects.index.put(keys::beneath(*resource), disturbance.encode());
                }
                Ok(())
            }
        }
    }

    fn expired(&mut self, expired: &ExpiredRecord, effects: &mut Effects) -> Result<(), Malformed> {
        if expired.receipts_begin > self.next_ordinal {
            return Err(Malformed("an expiry of receipts that are not there"));
        }
        self.receipts_begin = self.receipts_begin.max(expired.receipts_begin);
        for (name, begin, unsettled) in &expired.topics {
            let topic = self
                .topics
                .get_mut(name)
                .ok_or(Malformed("an expiry of no topic"))?;
            if *begin > topic.end {
                return Err(Malformed("an expiry of events that are not there"));
            }
            topic.begin = topic.begin.max(*begin);
            topic.keeps_unsettled = *unsettled;
        }
        self.epochs_before = self.epochs_before.max(expired.epochs_before);
        self.closed_epochs = self.closed_epochs.split_off(&self.epochs_before);
        effects.expired = true;
        Ok(())
    }

    /// From now on the event is found in its new place, alone.
    fn event_moved(
        &mut self,
        place: Place,
        at_ms: i64,
        (name, offset): (&TopicName, u64),
        event: &EventRecord,
        effects: &mut Effects,
    ) -> Result<(), Malformed> {
        let topic = self.topics.get_mut(name).ok_or(Malformed("a move in no topic"))?;
        if offset >= topic.end {
            return Err(Malformed("a move of an event that is not there"));
        }
        if let Some(epoch) = event.body.epoch {
            let end = topic.sealed.entry(epoch).or_default();
            *end = (*end).max(offset + 1);
        }
        let run = Run {
            at_ms,
            seq: place.seq,
            before: 0,
            spans: vec![place.span],
        };
        let index = &mut effects.index;
        index.put(keys::run(name, offset), run.encode());
        index.put(
            keys::event(name, &event.event_id),
            keys::event_value(offset, Some(place.seq)),
        );
        Ok(())
    }

    /// Ends a block: the places of its events and receipts go into the index.
    pub fn end_block(&mut self, seq: u64, at_ms: i64, effects: &mut Effects) {
        let own = |spans: &[Span]| spans.iter().map(|span| u64::from(span.len)).sum::<u64>();
        let run = |spans: Vec<Span>, until: u64| Run {
            at_ms,
            seq,
            before: until.saturating_sub(own(&spans)),
            spans,
        };
        for (topic, (first, spans)) in std::mem::take(&mut self.runs) {
            let until = self.topics.get(&topic).map_or(0, |topic| topic.bytes);
            effects
                .index
                .put(keys::run(&topic, first), run(spans, until).encode());
        }
        if let Some((first, spans)) = self.receipt_run.take() {
            effects
                .index
                .put(keys::receipt_run(first), run(spans, self.receipt_bytes).encode());
        }
        if let Some((first, spans)) = self.log_run.take() {
            effects.index.put(keys::log_run(first), run(spans, 0).encode());
        }
    }

    fn logged(&mut self, place: Place, leaf: Digest, effects: &mut Effects) {
        let index = self.log.size();
        self.log.push(leaf);
        effects
            .leaves
            .get_or_insert_with(|| (index, Vec::new()))
            .1
            .push(leaf);
        self.log_run
            .get_or_insert_with(|| (index, Vec::new()))
            .1
            .push(place.span);
    }

    fn published(
        &mut self,
        place: Place,
        (name, offset): (&TopicName, u64),
        event: &EventRecord,
        effects: &mut Effects,
    ) -> Result<(), Malformed> {
        let topic = self.topics.entry(name.clone()).or_default();
        count(&mut topic.end, offset, "an event out of order")?;
        if let Some(epoch) = event.body.epoch {
            topic.sealed.insert(epoch, topic.end);
        }
        topic.bytes += u64::from(place.span.len);
        effects.index.put(
            keys::event(name, &event.event_id),
            keys::event_value(offset, None),
        );
        let run = self
            .runs
            .entry(name.clone())
            .or_insert_with(|| (offset, Vec::new()));
        run.1.push(place.span);
        effects.news.insert(name.clone());
        Ok(())
    }

    fn leased(&mut self, leased: &LeasedRecord, when: When) -> Result<(), Malformed> {
        let end = self.end(&leased.topic);
        self.group_mut(&leased.topic, &leased.group);
        let key = (leased.topic.clone(), leased.group.clone());
        let group = self
            .groups
            .get_mut(&key)
            .ok_or(Malformed("a lease of no group"))?;
        let ttl = std::time::Duration::from_millis(leased.ttl_ms);
        let until = if when.replay {
            Monotonic::default()
        } else {
            when.now.plus(ttl)
        };
        for (offset, lease) in &leased.grants {
            if *offset >= end || *offset < group.committed() {
                return Err(Malformed("a lease of an event that is not there"));
            }
            if let Some(ended) = group.grant(*offset, *lease, until) {
                self.leases.remove(&ended);
            }
            count(&mut self.next_lease, *lease, "a lease out of order")?;
            if !when.replay {
                self.leases
                    .insert(*lease, (leased.topic.clone(), leased.group.clone(), *offset));
            }
        }
        Ok(())
    }

    fn settled(
        &mut self,
        place: Place,
        settled: &SettledRecord,
        when: When,
        effects: &mut Effects,
    ) -> Result<(), Malformed> {
        let key = (settled.topic.clone(), settled.group.clone());
        let group = self
            .groups
            .get_mut(&key)
            .ok_or(Malformed("an ending in no group"))?;
        let pending = *group
            .pending()
            .get(&settled.offset)
            .ok_or(Malformed("an ending of no delivery"))?;
        if let Hold::Leased { lease, .. } = pending.hold {
            self.leases.remove(&lease);
        }
        let (delay_ms, counted) = match &settled.how {
            Ending::Done => {
                group.finish(settled.offset);
                return Ok(());
            }
            Ending::Nacked { delay_ms, detail } => {
                let detail = Stored::of(place.seq, detail);
                let at_ms = when.at_ms;
                group.note(settled.offset, Tried { at_ms, detail });
                (*delay_ms, pending.count)
            }
            Ending::Deferred { delay_ms } => (*delay_ms, pending.count.saturating_sub(1)),
        };
        let hold = waiting(when, when.at_ms.saturating_add_unsigned(delay_ms), delay_ms);
        group.hold(settled.offset, Pending { count: counted, hold });
        effects.news.insert(settled.topic.clone());
        effects.given_back.insert(settled.topic.clone());
        Ok(())
    }

    fn lettered(
        &mut self,
        place: Place,
        letter: &LetterRecord,
        when: When,
        effects: &mut Effects,
    ) -> Result<(), Malformed> {
        count(&mut self.next_letter, letter.letter, "a letter out of order")?;
        let at = letter_at(place, letter, when.at_ms);
        effects.index.put(keys::letter(letter.letter), at.encode());
        let topic = keys::text_hash(letter.topic.as_str());
        effects
            .index
            .post(keys::posting(Dimension::LetterTopic, topic, letter.letter));
        effects.letters_begun += 1;
        Ok(())
    }

    fn claimed(
        &mut self,
        place: Place,
        claim: &ClaimRecord,
        when: When,
        effects: &mut Effects,
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
            intent: Stored::of(place.seq, &claim.intent),
        };
        if let Some(key) = open.key {
            effects
                .opened
                .push((key, open.params_digest, open.action_id.clone()));
        }
        self.open_claim(keys::action_hash(claim.action_id.as_str()), claim.fence, open);
        Ok(())
    }

    fn completed(
        &mut self,
        place: Place,
        receipt: &ReceiptRecord,
        effects: &mut Effects,
    ) -> Result<(), Malformed> {
        count(&mut self.next_ordinal, receipt.ordinal, "a receipt out of order")?;
        let ordinal = receipt.ordinal;
        let action = keys::action_hash(receipt.action_id.as_str());
        let asked = self.close_claim(action).and_then(|(_, claim)| claim.key);
        effects.closed.extend(asked);
        let index = &mut effects.index;
        index.put(
            keys::receipt(receipt.receipt_id.as_str()),
            ReceiptAt {
                ordinal,
                body: receipt.body_hash,
            }
            .encode(),
        );
        index.put(
            keys::action(action),
            Resolution {
                ordinal,
                digest: receipt.action_digest,
            }
            .encode(),
        );
        if let Some(satisfied) = asked.filter(|_| receipt.status == Status::Ok) {
            index.put(
                keys::key(satisfied),
                Resolution {
                    ordinal,
                    digest: receipt.params_digest,
                }
                .encode(),
            );
        }
        if let Some(key) = receipt.key {
            index.post(keys::posting(Dimension::Key, key, ordinal));
        }
        index.post(keys::posting(
            Dimension::Tool,
            keys::text_hash(receipt.tool_id.as_str()),
            ordinal,
        ));
        index.post(keys::posting(
            Dimension::Subject,
            keys::text_hash(receipt.subject_id.as_str()),
            ordinal,
        ));
        index.post(keys::posting(
            Dimension::Space,
            keys::text_hash(receipt.space_id.as_str()),
            ordinal,
        ));
        index.post(keys::posting(
            Dimension::Status,
            keys::status_hash(receipt.status),
            ordinal,
        ));
        self.receipt_bytes += u64::from(place.span.len);
        self.receipt_run
            .get_or_insert_with(|| (ordinal, Vec::new()))
            .1
            .push(place.span);
        Ok(())
    }
}

/// Where a letter lies that was written as a whole.
fn letter_at(place: Place, letter: &LetterRecord, at_ms: i64) -> LetterAt {
    LetterAt {
        at_ms,
        fingerprint: letter.fingerprint,
        record: place,
        detail: Stored::of(place.seq, &letter.detail),
        payload: Stored::of(place.seq, &letter.payload),
        tries: letter.tries.as_ref().map(|tries| Stored::of(place.seq, tries)),
    }
}

/// A delay, measured from the block's time for a record of an earlier run, but never longer than was asked for.
pub(super) fn waiting(when: When, until_ms: i64, delay_ms: u64) -> Hold {
    let left_ms = if when.replay {
        u64::try_from(until_ms.saturating_sub(when.now_ms))
            .unwrap_or(0)
            .min(delay_ms)
    } else {
        delay_ms
    };
    let until = when.now.plus(std::time::Duration::from_millis(left_ms));
    Hold::Waiting {
        until,
        until_ms,
        delay_ms,
    }
}

fn count(next: &mut u64, number: u64, what: &'static str) -> Result<(), Malformed> {
    if *next != number {
        return Err(Malformed(what));
    }
    *next += 1;
    Ok(())
}
