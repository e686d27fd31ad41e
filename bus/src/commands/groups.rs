//! Leases and acknowledgements of consumer groups.

use std::borrow::Cow;
use std::time::Duration;

use super::Batch;
use crate::error::{StoreError, bound};
use crate::fingerprint::fingerprint;
use crate::journal::record::{AcknowledgedRecord, DeadLetterRecord, Ending, LeasedRecord, Payload, Record};
use crate::limits::{GROUPS_MAX, LETTER_TRIES_MAX};
use crate::names::{GroupName, TopicName};
use crate::reads::{letter_context, timestamp};
use crate::state::LeaseOf;
use crate::state::groups::{DeliveryState, Group, Pending};
use crate::types::dead_letters::{DELIVERIES_EXHAUSTED, FailedAttempt};
use crate::types::events::Body;
use crate::types::groups::{
    Acknowledged, Acknowledgement, Exhausted, GroupInfo, GroupOptions, LeaseId, SeekTo,
};
use crate::vault::Kind;

/// A granted lease; the event is read when the grant is durable.
pub(crate) struct Grant {
    pub(crate) lease_id: LeaseId,
    pub(crate) offset: u64,
    pub(crate) delivery_count: u32,
    pub(crate) exhausted: bool,
}

impl Batch<'_> {
    pub(crate) fn lease(
        &mut self,
        topic: &TopicName,
        name: &GroupName,
        max: usize,
        ttl: Duration,
    ) -> Result<(Vec<Grant>, Option<Duration>), StoreError> {
        self.check_group(topic, name)?;
        let key = (topic.clone(), name.clone());
        self.check_kept(&key)?;
        let mut offsets = Vec::new();
        let now = self.when.now;
        for offset in self.group(&key).due(now, max) {
            let delivery = (topic.clone(), name.clone(), offset);
            match self.exhaustion(&delivery) {
                (count, true) => {
                    let detail = format!("delivered {count} times and never settled");
                    self.dead_letter(&delivery, None, (DELIVERIES_EXHAUSTED, &detail))?;
                }
                (_, false) => offsets.push(offset),
            }
        }
        let end = self.state.end(topic);
        let fresh = self.group(&key).fresh(end, max - offsets.len());
        offsets.extend(fresh);
        let grants = self.grant(topic, name, &offsets, ttl)?;
        let next_due = self.group(&key).next_due().map(|due| due.since(now));
        Ok((grants, next_due))
    }

    /// Leases these events, which are due.
    pub(crate) fn grant(
        &mut self,
        topic: &TopicName,
        group: &GroupName,
        offsets: &[u64],
        ttl: Duration,
    ) -> Result<Vec<Grant>, StoreError> {
        if offsets.is_empty() {
            return Ok(Vec::new());
        }
        let grants: Vec<(u64, u64)> = offsets.iter().copied().zip(self.state.next_lease..).collect();
        let leased = LeasedRecord {
            topic: topic.clone(),
            group: group.clone(),
            ttl_ms: millis(ttl),
            grants: grants.clone(),
        };
        self.emit(Record::Leased(leased))?;
        let group = self.group(&(topic.clone(), group.clone()));
        let deliveries_max = group.options.deliveries_max;
        let granted = grants.into_iter().map(|(offset, lease)| {
            let delivery_count = group.pending().get(&offset).map_or(1, |pending| pending.count);
            Grant {
                lease_id: LeaseId(lease),
                offset,
                delivery_count,
                exhausted: delivery_count > deliveries_max,
            }
        });
        Ok(granted.collect())
    }

    /// A group of the state, or a new one that is not in the state yet.
    fn group(&self, key: &(TopicName, GroupName)) -> Cow<'_, Group> {
        let known = self.state.groups.get(key).map(Cow::Borrowed);
        known.unwrap_or_else(|| Cow::Owned(Group::starting(self.state.begin(&key.0))))
    }

    /// Fails if events that the group has not acknowledged are no longer kept: they are not skipped silently.
    fn check_kept(&self, key: &(TopicName, GroupName)) -> Result<(), StoreError> {
        let Some(topic) = self.state.topics.get(&key.0) else {
            return Ok(());
        };
        if topic.keeps_unacknowledged || self.group(key).committed() >= topic.begin {
            return Ok(());
        }
        Err(StoreError::Dropped { topic: key.0.clone(), begins: topic.begin })
    }

    /// Whether the group exists or may be created.
    pub(crate) fn check_group(&self, topic: &TopicName, group: &GroupName) -> Result<(), StoreError> {
        let known = self.state.groups.contains_key(&(topic.clone(), group.clone()));
        if !known && self.state.groups.len() >= GROUPS_MAX {
            return bound("number of groups", GROUPS_MAX + 1, GROUPS_MAX);
        }
        Ok(())
    }

    /// The counted deliveries of an event, and whether the Store dead-letters it if this delivery fails.
    fn exhaustion(&self, (topic, group, offset): &LeaseOf) -> (u32, bool) {
        let group = self.group(&(topic.clone(), group.clone()));
        let count = group.pending().get(offset).map_or(0, |pending| pending.count);
        let GroupOptions { deliveries_max, exhausted } = group.options;
        (count, count >= deliveries_max && exhausted == Exhausted::DeadLetter)
    }

    /// Makes a delivered event a dead letter.
    fn dead_letter(
        &mut self,
        delivery: &LeaseOf,
        tool: Option<&str>,
        (code, detail): (&str, &str),
    ) -> Result<u64, StoreError> {
        let (topic, group, offset) = delivery;
        let event = self.reader.event(topic, *offset, &mut None)?;
        let (attempts, _) = self.exhaustion(delivery);
        let mut failures = self.failures(delivery)?;
        failures.push(FailedAttempt { at: timestamp(self.when.at_ms), error: detail.to_owned() });
        let letter = self.state.next_letter;
        let context = letter_context(letter, event.action_id.as_ref());
        let payload = match &event.body {
            Body::Clear(bytes) | Body::Opened(bytes) => self.seal(Kind::Letter, &context, bytes)?,
            Body::Shredded => Payload::clear(Vec::new()),
        };
        let record = DeadLetterRecord {
            letter,
            topic: topic.clone(),
            delivery: Some((group.clone(), *offset)),
            receipt_id: None,
            action_id: event.action_id,
            code: code.to_owned(),
            fingerprint: fingerprint(tool, code, detail),
            attempts,
            detail: self.seal(Kind::Detail, &context, detail.as_bytes())?,
            payload,
            tries: self.seal_attempts(&context, &failures)?,
        };
        self.emit(Record::DeadLettered(record))?;
        self.end(delivery, Ending::Done)?;
        Ok(letter)
    }

    /// The failures of an event, as far as they can be read.
    fn failures(&self, (topic, group, offset): &LeaseOf) -> Result<Vec<FailedAttempt>, StoreError> {
        let first = self.reader.journal.first();
        let group = self.group(&(topic.clone(), group.clone()));
        let tried = group.tried().get(offset).into_iter().flatten();
        tried
            .map(|tried| {
                let location = tried.detail.location;
                // Neither a dropped block nor the current one can be read.
                let error = if (first..self.block.seq()).contains(&location.seq) {
                    let body = self.reader.body(tried.detail, Kind::Detail, "nack")?;
                    String::from_utf8_lossy(body.bytes().unwrap_or_default()).into_owned()
                } else {
                    String::new()
                };
                let at = timestamp(tried.at_ms);
                Ok(FailedAttempt { at, error })
            })
            .collect()
    }

    /// Seals the last attempts of a dead letter.
    pub(super) fn seal_attempts(
        &self,
        context: &str,
        attempts: &[FailedAttempt],
    ) -> Result<Option<Payload>, StoreError> {
        if attempts.is_empty() {
            return Ok(None);
        }
        let last = &attempts[attempts.len().saturating_sub(LETTER_TRIES_MAX)..];
        #[expect(clippy::expect_used, reason = "text and times always serialise")]
        let bytes = serde_json::to_vec(last).expect("text and times");
        self.seal(Kind::Tries, context, &bytes).map(Some)
    }

    /// Ends a delivery.
    pub(super) fn end(&mut self, (topic, group, offset): &LeaseOf, how: Ending) -> Result<(), StoreError> {
        self.emit(Record::Acknowledged(AcknowledgedRecord {
            topic: topic.clone(),
            group: group.clone(),
            offset: *offset,
            how,
        }))
    }

    /// The delivery of a lease that is still held.
    pub(super) fn held(&self, lease: LeaseId) -> Result<LeaseOf, StoreError> {
        let held = self.state.leases.get(&lease.0);
        held.cloned().ok_or(StoreError::LeaseLost)
    }

    /// Ends the delivery of a lease. `detail` is the sealed detail of a nack.
    pub(crate) fn acknowledge(
        &mut self,
        lease: LeaseId,
        how: &Acknowledgement,
        detail: Option<Payload>,
    ) -> Result<Acknowledged, StoreError> {
        let held = self.held(lease)?;
        match how {
            Acknowledgement::Ack => {
                self.end(&held, Ending::Done)?;
                Ok(Acknowledged::Done)
            }
            Acknowledgement::Term { tool, code, detail } => {
                let letter = self.dead_letter(&held, tool.as_deref(), (code, detail))?;
                Ok(Acknowledged::DeadLettered { letter })
            }
            Acknowledgement::Nack { detail: text, .. } if self.exhaustion(&held).1 => {
                let letter = self.dead_letter(&held, None, (DELIVERIES_EXHAUSTED, text))?;
                Ok(Acknowledged::DeadLettered { letter })
            }
            Acknowledgement::Nack { delay, .. } => {
                let (delay_ms, detail) =
                    (millis(*delay), detail.unwrap_or_else(|| Payload::clear(Vec::new())));
                self.check_epoch(&detail)?;
                self.end(&held, Ending::Nacked { delay_ms, detail })?;
                Ok(Acknowledged::WillRetry)
            }
            Acknowledgement::Defer { delay } => {
                let delay_ms = millis(*delay);
                self.end(&held, Ending::Deferred { delay_ms })?;
                Ok(Acknowledged::WillRetry)
            }
        }
    }

    /// Extends a lease; in memory only.
    pub(crate) fn extend(&mut self, lease: LeaseId, ttl: Duration) -> Result<(), StoreError> {
        let (topic, name, offset) = self.held(lease)?;
        let (lease, until) = (lease.0, self.when.now.plus(ttl));
        let group = self.state.groups.get_mut(&(topic, name)).ok_or(StoreError::LeaseLost)?;
        let count = group.pending().get(&offset).ok_or(StoreError::LeaseLost)?.count;
        let state = DeliveryState::Leased { lease, until };
        group.set(offset, Pending { count, state });
        Ok(())
    }

    pub(crate) fn configure(
        &mut self,
        topic: &TopicName,
        group: &GroupName,
        options: GroupOptions,
    ) -> Result<(), StoreError> {
        self.check_group(topic, group)?;
        let (topic, group) = (topic.clone(), group.clone());
        let key = (topic.clone(), group.clone());
        if self.state.groups.get(&key).is_some_and(|group| group.options == options) {
            return Ok(());
        }
        self.emit(Record::Configured { topic, group, options })
    }

    pub(crate) fn seek(
        &mut self,
        topic: &TopicName,
        group: &GroupName,
        to: SeekTo,
    ) -> Result<u64, StoreError> {
        self.check_group(topic, group)?;
        let end = self.state.end(topic);
        let begins = self.state.begin(topic);
        let offset = match to {
            SeekTo::Start => begins,
            SeekTo::End => end,
            SeekTo::Offset(offset) if offset < begins => {
                return Err(StoreError::Dropped { topic: topic.clone(), begins });
            }
            SeekTo::Offset(offset) => offset.min(end),
            SeekTo::Time(time) => {
                let first = self.state.first_in_block(topic);
                // Events of this block are not in the index yet; they have the block's time.
                let durable_end = first.unwrap_or(end);
                let found = self.reader.offset_at(topic, durable_end, time)?;
                let in_block = self.block.at_ms() >= time.as_millisecond();
                if found == durable_end && !in_block { end } else { found }
            }
        };
        let (topic, group) = (topic.clone(), group.clone());
        self.emit(Record::Sought { topic, group, offset })?;
        Ok(offset)
    }

    /// Removes a group that exists.
    pub(crate) fn remove_group(&mut self, topic: &TopicName, group: &GroupName) -> Result<(), StoreError> {
        let (topic, group) = (topic.clone(), group.clone());
        if !self.state.groups.contains_key(&(topic.clone(), group.clone())) {
            return Ok(());
        }
        self.emit(Record::GroupRemoved { topic, group })
    }

    pub(crate) fn group_infos(&self, topic: &TopicName) -> Vec<GroupInfo> {
        let end = self.state.end(topic);
        let of_topic = self.state.groups.iter().filter(|((of, _), _)| of == topic);
        of_topic.map(|((topic, name), group)| group_info(topic, name, group, end, self.when.now)).collect()
    }
}

fn group_info(
    topic: &TopicName,
    name: &GroupName,
    group: &Group,
    end: u64,
    now: effectd_contracts::Monotonic,
) -> GroupInfo {
    let leased = group.pending().values().filter(|pending| match pending.state {
        DeliveryState::Leased { until, .. } => until > now,
        DeliveryState::Delayed { .. } => false,
    });
    let leased = leased.count() as u64;
    GroupInfo {
        topic: topic.clone(),
        group: name.clone(),
        options: group.options,
        committed: group.committed(),
        acknowledged_ahead: group.done().len() as u64,
        leased,
        waiting: group.pending().len() as u64 - leased,
        undelivered: group.undelivered(end),
        end,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
