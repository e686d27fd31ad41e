//! One record after another.

use effectd_contracts::{Digest, Monotonic, Status};

use super::groups::{Hold, Pending};
use super::{Effects, Fold, OpenClaim, When};
use crate::codec::{Malformed, Place, put_u64};
use crate::keys::{self, Dimension, EntryAt, LetterAt, ReceiptAt, Resolution, Run, Stored};
use crate::record::{
    ClaimRecord, Ending, EventRecord, LeasedRecord, LetterRecord, ReceiptRecord, Record, SettledRecord,
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
            Record::Published(event) => self.published(place, event, effects),
            Record::Leased(leased) => self.leased(leased, when),
            Record::Settled(settled) => self.settled(settled, when, effects),
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
                let leases = self
                    .groups
                    .entry((topic.clone(), group.clone()))
                    .or_default()
                    .seek(*offset);
                for lease in &leases {
                    self.leases.remove(lease);
                }
                effects.news.insert(topic.clone());
                Ok(())
            }
            Record::Configured {
                topic,
                group,
                options,
            } => {
                self.groups
                    .entry((topic.clone(), group.clone()))
                    .or_default()
                    .options = *options;
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
            Record::LetterResealed {
                letter,
                at_ms,
                fingerprint,
                record,
                detail,
                payload,
            } => {
                let moved = LetterAt {
                    at_ms: *at_ms,
                    fingerprint: *fingerprint,
                    record: *record,
                    detail: Stored::of(place.seq, detail),
                    payload: Stored::of(place.seq, payload),
                };
                effects.index.put(keys::letter(*letter), moved.encode());
                Ok(())
            }
        }
    }

    /// Ends a block: the places of its events and receipts go into the index.
    pub fn end_block(&mut self, seq: u64, at_ms: i64, effects: &mut Effects) {
        for (topic, (first, spans)) in std::mem::take(&mut self.runs) {
            effects
                .index
                .put(keys::run(&topic, first), Run { at_ms, seq, spans }.encode());
        }
        if let Some((first, spans)) = self.receipt_run.take() {
            effects
                .index
                .put(keys::receipt_run(first), Run { at_ms, seq, spans }.encode());
        }
        if let Some((first, spans)) = self.log_run.take() {
            effects
                .index
                .put(keys::log_run(first), Run { at_ms, seq, spans }.encode());
        }
    }

    /// Adds an entry to the log.
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
        event: &EventRecord,
        effects: &mut Effects,
    ) -> Result<(), Malformed> {
        let topic = self.topics.entry(event.topic.clone()).or_default();
        count(&mut topic.end, event.offset, "an event out of order")?;
        if let Some(epoch) = event.body.epoch {
            topic.sealed.insert(epoch, topic.end);
        }
        let mut offset = Vec::with_capacity(4);
        put_u64(&mut offset, event.offset);
        effects
            .index
            .put(keys::event(&event.topic, &event.event_id), offset);
        let run = self
            .runs
            .entry(event.topic.clone())
            .or_insert_with(|| (event.offset, Vec::new()));
        run.1.push(place.span);
        effects.news.insert(event.topic.clone());
        Ok(())
    }

    fn leased(&mut self, leased: &LeasedRecord, when: When) -> Result<(), Malformed> {
        let end = self.end(&leased.topic);
        let group = self
            .groups
            .entry((leased.topic.clone(), leased.group.clone()))
            .or_default();
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
            Ending::Nacked { delay_ms, .. } => (*delay_ms, pending.count),
            Ending::Deferred { delay_ms } => (*delay_ms, pending.count.saturating_sub(1)),
        };
        let hold = waiting(when, when.at_ms.saturating_add_unsigned(delay_ms), delay_ms);
        group.hold(settled.offset, Pending { count: counted, hold });
        effects.news.insert(settled.topic.clone());
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
        let at = LetterAt {
            at_ms: when.at_ms,
            fingerprint: letter.fingerprint,
            record: place,
            detail: Stored::of(place.seq, &letter.detail),
            payload: Stored::of(place.seq, &letter.payload),
        };
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
        if let Some((_, claim)) = self.close_claim(action) {
            effects.closed.extend(claim.key);
        }
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
        for retired in &receipt.retired {
            index.set(keys::key(*retired), Cell::Delete);
        }
        if let Some(key) = receipt.key {
            index.post(keys::posting(Dimension::Key, key, ordinal));
            if receipt.status == Status::Ok {
                index.put(
                    keys::key(key),
                    Resolution {
                        ordinal,
                        digest: receipt.params_digest,
                    }
                    .encode(),
                );
                for resource in &receipt.resources {
                    index.put(keys::resource(*resource), key.0.to_vec());
                }
            }
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
        self.receipt_run
            .get_or_insert_with(|| (ordinal, Vec::new()))
            .1
            .push(place.span);
        Ok(())
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
