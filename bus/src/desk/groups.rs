//! Leases and how they end.

use std::borrow::Cow;
use std::time::Duration;

use super::Desk;
use crate::engine::timestamp;
use crate::error::StoreError;
use crate::fingerprint::fingerprint;
use crate::fold::LeaseOf;
use crate::fold::groups::{Group, Hold, Pending};
use crate::limits::{GROUPS_MAX, LETTER_TRIES_MAX};
use crate::names::{GroupName, TopicName};
use crate::record::{Ending, LeasedRecord, LetterRecord, Payload, Record, SettledRecord};
use crate::types::events::Body;
use crate::types::groups::{Exhausted, GroupInfo, GroupOptions, LeaseId, SeekTo, Settled, Settlement};
use crate::types::letters::Try;
use crate::vault::Kind;

/// A delivery that was granted; the event itself is read when the grant is durable.
pub(crate) struct Grant {
    pub(crate) lease_id: LeaseId,
    pub(crate) offset: u64,
    pub(crate) delivery_count: u32,
    pub(crate) exhausted: bool,
}

impl Desk<'_> {
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
            if !self.bury_if_exhausted(topic, name, offset)? {
                offsets.push(offset);
            }
        }
        let end = self.fold.end(topic);
        let fresh = self.group(&key).fresh(end, max - offsets.len());
        offsets.extend(fresh);
        let grants = self.grant(topic, name, &offsets, ttl)?;
        let next_due = self.group(&key).next_due().map(|due| due.since(now));
        Ok((grants, next_due))
    }

    /// Lends these events, which the caller knows to be due.
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
        let grants: Vec<(u64, u64)> = offsets.iter().copied().zip(self.fold.next_lease..).collect();
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let leased = LeasedRecord {
            topic: topic.clone(),
            group: group.clone(),
            ttl_ms,
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

    /// How a group stands; one that nobody has named yet stands at the start. Asking makes no group: only records do.
    fn group(&self, key: &(TopicName, GroupName)) -> Cow<'_, Group> {
        let known = self.fold.groups.get(key).map(Cow::Borrowed);
        known.unwrap_or_else(|| Cow::Owned(Group::starting(self.fold.begin(&key.0))))
    }

    /// Tells a group that was left behind that what it has still to settle is no longer kept: it is not skipped silently.
    fn check_kept(&self, key: &(TopicName, GroupName)) -> Result<(), StoreError> {
        let Some(topic) = self.fold.topics.get(&key.0) else {
            return Ok(());
        };
        if topic.keeps_unsettled || self.group(key).committed() >= topic.begin {
            return Ok(());
        }
        Err(StoreError::Dropped {
            topic: key.0.clone(),
            begins: topic.begin,
        })
    }

    /// Whether the group exists or may be made.
    pub(crate) fn check_group(&self, topic: &TopicName, group: &GroupName) -> Result<(), StoreError> {
        let known = self.fold.groups.contains_key(&(topic.clone(), group.clone()));
        if !known && self.fold.groups.len() >= GROUPS_MAX {
            return Err(StoreError::TooLarge {
                what: "number of groups",
                size: GROUPS_MAX + 1,
                max: GROUPS_MAX,
            });
        }
        Ok(())
    }

    /// Sets an event aside if its deliveries are used up and the group does not want to end it itself.
    fn bury_if_exhausted(
        &mut self,
        topic: &TopicName,
        name: &GroupName,
        offset: u64,
    ) -> Result<bool, StoreError> {
        let group = self.group(&(topic.clone(), name.clone()));
        let count = group.pending().get(&offset).map_or(0, |pending| pending.count);
        let buried =
            count >= group.options.deliveries_max && group.options.exhausted == Exhausted::DeadLetter;
        if buried {
            let detail = format!("delivered {count} times and never settled");
            self.bury(topic, name, offset, "deliveries_exhausted", &detail)?;
        }
        Ok(buried)
    }

    /// Makes an event that was delivered a dead letter.
    fn bury(
        &mut self,
        topic: &TopicName,
        group: &GroupName,
        offset: u64,
        code: &str,
        detail: &str,
    ) -> Result<u64, StoreError> {
        let event = self.shared.read_event(self.served, topic, offset)?;
        let (attempts, mut tries) = {
            let group = self.group(&(topic.clone(), group.clone()));
            let attempts = group.pending().get(&offset).map_or(0, |p| p.count);
            (attempts, self.tries(&group, offset)?)
        };
        tries.push(Try {
            at: timestamp(self.when.at_ms),
            error: detail.to_owned(),
        });
        let letter = self.fold.next_letter;
        let context = letter_context(letter, event.action_id.as_ref().map(|id| id.as_str()));
        let payload = match &event.body {
            Body::Clear(bytes) | Body::Opened(bytes) => self.seal(Kind::Letter, &context, bytes)?,
            Body::Shredded => super::clear(Vec::new()),
        };
        let record = LetterRecord {
            letter,
            topic: topic.clone(),
            delivery: Some((group.clone(), offset)),
            receipt_id: None,
            action_id: event.action_id,
            code: code.to_owned(),
            fingerprint: fingerprint(code, detail),
            attempts,
            detail: self.seal(Kind::Detail, &context, detail.as_bytes())?,
            payload,
            tries: self.seal_tries(&context, &tries)?,
        };
        self.emit(Record::Lettered(record))?;
        self.finish(&(topic.clone(), group.clone(), offset))?;
        Ok(letter)
    }

    /// What went wrong with an event before, as far as it can still be read.
    fn tries(&self, group: &Group, offset: u64) -> Result<Vec<Try>, StoreError> {
        let first = self.served.journal.first();
        let tried = group.tried().get(&offset).into_iter().flatten();
        tried
            .map(|tried| {
                let place = tried.detail.place;
                // What was let go is told without words; what is of this very block cannot be read yet.
                let error = if (first..self.block.seq()).contains(&place.seq) {
                    let body = self
                        .shared
                        .read_body(self.served, tried.detail, Kind::Detail, "nack")?;
                    String::from_utf8_lossy(body.bytes().unwrap_or_default()).into_owned()
                } else {
                    String::new()
                };
                let at = timestamp(tried.at_ms);
                Ok(Try { at, error })
            })
            .collect()
    }

    /// Seals the attempts of a letter, the last of them if they are many.
    pub(crate) fn seal_tries(&self, context: &str, tries: &[Try]) -> Result<Option<Payload>, StoreError> {
        if tries.is_empty() {
            return Ok(None);
        }
        let last = &tries[tries.len().saturating_sub(LETTER_TRIES_MAX)..];
        let bytes = serde_json::to_vec(last).map_err(|error| StoreError::Invalid(error.to_string()))?;
        self.seal(Kind::Tries, context, &bytes).map(Some)
    }

    pub(crate) fn finish(&mut self, (topic, group, offset): &LeaseOf) -> Result<(), StoreError> {
        let (topic, group, offset) = (topic.clone(), group.clone(), *offset);
        self.emit(Record::Settled(SettledRecord {
            topic,
            group,
            offset,
            how: Ending::Done,
        }))
    }

    /// What a lease is of, if it is still held.
    pub(crate) fn held(&self, lease: LeaseId) -> Result<LeaseOf, StoreError> {
        self.fold
            .leases
            .get(&lease.0)
            .cloned()
            .ok_or(StoreError::LeaseLost)
    }

    /// Ends a delivery. `detail` is the sealed form of what the settlement says.
    pub(crate) fn settle(
        &mut self,
        lease: LeaseId,
        how: &Settlement,
        detail: Option<Payload>,
    ) -> Result<Settled, StoreError> {
        let held = self.held(lease)?;
        let (topic, name, offset) = held.clone();
        let again = |how| {
            Record::Settled(SettledRecord {
                topic: topic.clone(),
                group: name.clone(),
                offset,
                how,
            })
        };
        match how {
            Settlement::Ack => {
                self.finish(&held)?;
                Ok(Settled::Done)
            }
            Settlement::Term { code, detail } => {
                let letter = self.bury(&topic, &name, offset, code, detail)?;
                Ok(Settled::DeadLettered { letter })
            }
            Settlement::Nack { delay, detail: text } => {
                let group = self.group(&(topic.clone(), name.clone()));
                let count = group.pending().get(&offset).map_or(0, |pending| pending.count);
                let spent = count >= group.options.deliveries_max;
                if spent && group.options.exhausted == Exhausted::DeadLetter {
                    let letter = self.bury(&topic, &name, offset, "deliveries_exhausted", text)?;
                    return Ok(Settled::DeadLettered { letter });
                }
                let detail = detail.unwrap_or_else(|| super::clear(Vec::new()));
                self.check_epoch(&detail)?;
                self.emit(again(Ending::Nacked {
                    delay_ms: millis(*delay),
                    detail,
                }))?;
                Ok(Settled::WillRetry)
            }
            Settlement::Defer { delay } => {
                self.emit(again(Ending::Deferred {
                    delay_ms: millis(*delay),
                }))?;
                Ok(Settled::WillRetry)
            }
        }
    }

    /// Holds a delivery for longer; in memory only.
    pub(crate) fn extend(&mut self, lease: LeaseId, ttl: Duration) -> Result<(), StoreError> {
        let (topic, name, offset) = self.held(lease)?;
        let until = self.when.now.plus(ttl);
        let group = self
            .fold
            .groups
            .get_mut(&(topic, name))
            .ok_or(StoreError::LeaseLost)?;
        let count = group.pending().get(&offset).ok_or(StoreError::LeaseLost)?.count;
        group.hold(
            offset,
            Pending {
                count,
                hold: Hold::Leased {
                    lease: lease.0,
                    until,
                },
            },
        );
        Ok(())
    }

    pub(crate) fn configure(
        &mut self,
        topic: &TopicName,
        group: &GroupName,
        options: GroupOptions,
    ) -> Result<(), StoreError> {
        self.check_group(topic, group)?;
        let current = self
            .fold
            .groups
            .get(&(topic.clone(), group.clone()))
            .map(|group| group.options);
        if current == Some(options) {
            return Ok(());
        }
        self.emit(Record::Configured {
            topic: topic.clone(),
            group: group.clone(),
            options,
        })
    }

    pub(crate) fn seek(
        &mut self,
        topic: &TopicName,
        group: &GroupName,
        to: SeekTo,
    ) -> Result<u64, StoreError> {
        self.check_group(topic, group)?;
        let end = self.fold.end(topic);
        let begins = self.fold.begin(topic);
        let offset = match to {
            SeekTo::Start => begins,
            SeekTo::End => end,
            SeekTo::Offset(offset) if offset < begins => {
                return Err(StoreError::Dropped {
                    topic: topic.clone(),
                    begins,
                });
            }
            SeekTo::Offset(offset) => offset.min(end),
            SeekTo::Time(time) => {
                let first = self.fold.first_in_block(topic);
                // Events of this very block are not in the index yet; they carry the block's time.
                let durable_end = first.unwrap_or(end);
                let found = self.shared.offset_at(self.served, topic, durable_end, time)?;
                let in_block = self.block.at_ms() >= time.as_millisecond();
                if found == durable_end && !in_block {
                    end
                } else {
                    found
                }
            }
        };
        self.emit(Record::Sought {
            topic: topic.clone(),
            group: group.clone(),
            offset,
        })?;
        Ok(offset)
    }

    pub(crate) fn group_infos(&self, topic: &TopicName) -> Vec<GroupInfo> {
        let end = self.fold.end(topic);
        let of_topic = self.fold.groups.iter().filter(|((of, _), _)| of == topic);
        of_topic
            .map(|((topic, name), group)| group_info(topic, name, group, end, self.when.now))
            .collect()
    }
}

fn group_info(
    topic: &TopicName,
    name: &GroupName,
    group: &Group,
    end: u64,
    now: effectd_contracts::Monotonic,
) -> GroupInfo {
    let leased = group.pending().values().filter(|pending| match pending.hold {
        Hold::Leased { until, .. } => until > now,
        Hold::Waiting { .. } => false,
    });
    let leased = leased.count() as u64;
    GroupInfo {
        topic: topic.clone(),
        group: name.clone(),
        options: group.options,
        committed: group.committed(),
        settled_ahead: group.done().len() as u64,
        leased,
        waiting: group.pending().len() as u64 - leased,
        undelivered: group.undelivered(end),
        end,
    }
}

/// What a letter's sealed parts are bound to.
pub(crate) fn letter_context(letter: u64, action: Option<&str>) -> String {
    format!("{letter}:{}", action.unwrap_or_default())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
