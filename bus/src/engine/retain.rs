//! Retention: what has expired is let go of, and the disk gets its room back.
//!
//! One turn, in the caller's thread, and only small operations at the writer's desk:
//!
//! 1. Expired dead letters are ended, and it is written down from where on receipts and events are kept. From then on
//!    nobody sees what is older. Before the next step, the caller signs a head that says from where on the log is kept.
//! 2. The oldest blocks in which nothing is kept are folded again, which gives the *ground* that the others stand on
//!    without them. It is made ready beside the journal.
//! 3. What is alive and lies in those blocks is written forward: dead letters, entries, open intents, unsettled events.
//! 4. What leads to those blocks is taken out of the index, after a note in the index that this is being done.
//! 5. When the index is on disk, the ground is put in force and the blocks go.
//!
//! A crash before 4 has reached the disk leaves everything as it was; one after it is made good when the store is opened.

use std::sync::Arc;
use std::time::{Duration, Instant};

use effectd_contracts::Timestamp;

use super::log::kept_from;
use super::queries::receipts_total;
use super::reads::{decode_run, first_run, span_of};
use super::recover::{Dead, refold};
use super::{LocalStore, Served, Shared, timestamp};
use crate::desk::{Desk, index_damaged};
use crate::error::StoreError;
use crate::failpoint;
use crate::fold::{Fold, When};
use crate::ground::Ground;
use crate::keys;
use crate::limits::{RETAIN_BATCH, RETAIN_FLUSH_MAX, RETAIN_STEP_BYTES};
use crate::names::TopicName;
use crate::record::ExpiredRecord;
use crate::types::retention::{Keep, Retained, Retention};

/// Where everything begins from now on.
struct Plan {
    receipts: (u64, u64),
    topics: Vec<(TopicName, u64, u64, bool)>,
}

/// How far the turns of this process have come. What is alive is written forward to the journal's end, so without a goal
/// that stays where it is they would follow what they write for ever.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reached {
    /// Blocks from this one on stay for now.
    goal: u64,
    /// The last block when the last turn ended.
    end: u64,
}

impl Reached {
    /// Sets the goal anew if there is a reason to: something has expired, or as much was written since the last turn as
    /// the turns had written forward, so that what lives is not written again for little.
    fn aim(&mut self, last: u64, has_expired: bool) {
        let since = last.saturating_sub(self.end);
        if has_expired || self.goal == 0 || since > self.end.saturating_sub(self.goal) {
            self.goal = last;
        }
    }
}

fn last_block(served: &Served) -> Result<u64, StoreError> {
    Ok(served.journal.bounds()?.map_or(1, |(_, last)| last))
}

impl Shared {
    /// The first number that is kept of a kind of things.
    fn keep_from(
        &self,
        served: &Served,
        key: impl Fn(u64) -> Vec<u8>,
        (begin, end): (u64, u64),
        keep: Keep,
    ) -> Result<u64, StoreError> {
        let mut from = begin;
        if let Some(since) = keep.age.and_then(|age| self.before(age)) {
            let young = |run: &keys::Run| run.at_ms >= since;
            from = from.max(first_run(served, &key, begin..end, young)?);
        }
        if let Some(bytes) = keep.bytes {
            let last = served.table.view(None).previous(&key(begin), &key(end))?;
            let last = decode_run(last).map_err(|error| index_damaged(&error))?;
            let all = last.map_or(0, |(_, run)| run.after());
            let fits = |run: &keys::Run| all - run.before.min(all) <= bytes;
            from = from.max(first_run(served, &key, begin..end, fits)?);
        }
        Ok(from)
    }

    /// The moment so long ago, in milliseconds.
    fn before(&self, age: Duration) -> Option<i64> {
        let age = i64::try_from(age.as_millis()).ok()?;
        self.now_ms().checked_sub(age)
    }

    fn plan(&self, served: &Served, retention: &Retention) -> Result<Plan, StoreError> {
        let begin = served.live().receipts_begin;
        let total = receipts_total(served)?.max(begin);
        let receipts = self.keep_from(served, keys::receipt_run, (begin, total), retention.receipts)?;
        let names: Vec<TopicName> = served.live().ends.keys().cloned().collect();
        let mut topics = Vec::with_capacity(names.len());
        for name in names {
            let kept = retention.of(&name);
            let span = span_of(served, &name);
            let key = |offset| keys::run(&name, offset);
            let from = self.keep_from(served, key, span, kept.keep)?;
            topics.push((name, span.0, from, kept.unsettled));
        }
        Ok(Plan {
            receipts: (begin, receipts),
            topics,
        })
    }

    /// Dead letters that were set aside too long ago, at most so many.
    fn old_letters(&self, served: &Served, age: Duration, max: usize) -> Result<Vec<u64>, StoreError> {
        let (mut found, mut from) = (Vec::new(), 0);
        let Some(since) = self.before(age) else {
            return Ok(found);
        };
        while let Some((letter, at)) = self.next_letter_at(served, from)? {
            if at.at_ms >= since || found.len() >= max {
                break;
            }
            found.push(letter);
            from = letter + 1;
        }
        Ok(found)
    }

    /// The first block in which something is kept, at most the goal: with what has expired so far, or would by a plan. Entries
    /// of the log from `log_before` on are kept in any case.
    fn first_needed(
        &self,
        served: &Served,
        goal: u64,
        log_before: u64,
        plan: Option<&Plan>,
    ) -> Result<u64, StoreError> {
        let mut first = last_block(served)?.min(goal);
        let mut need = |from: Vec<u8>, end: Vec<u8>| -> Result<(), StoreError> {
            let found = served.table.view(None).next(&from, &end)?;
            let run = decode_run(found).map_err(|error| index_damaged(&error))?;
            first = first.min(run.map_or(u64::MAX, |(_, run)| run.seq));
            Ok(())
        };
        let receipts = plan.map_or_else(|| served.live().receipts_begin, |plan| plan.receipts.1);
        need(keys::receipt_run(receipts), keys::receipt_run(u64::MAX))?;
        let log = kept_from(served, receipts)?.min(log_before);
        need(keys::log_run(log), keys::log_run(u64::MAX))?;
        let begins: Vec<(TopicName, u64)> = match plan {
            Some(plan) => {
                let topics = plan.topics.iter();
                topics.map(|(name, _, from, _)| (name.clone(), *from)).collect()
            }
            None => {
                let names: Vec<TopicName> = served.live().ends.keys().cloned().collect();
                let begin = |name: TopicName| {
                    let (begin, _) = span_of(served, &name);
                    (name, begin)
                };
                names.into_iter().map(begin).collect()
            }
        };
        for (name, begin) in begins {
            need(keys::run(&name, begin), keys::run(&name, u64::MAX))?;
        }
        Ok(first)
    }

    /// How far one turn goes, and how many bytes that is.
    fn step(&self, served: &Served, goal: u64, log_before: u64) -> Result<(u64, u64), StoreError> {
        let needed = self.first_needed(served, goal, log_before, None)?;
        let (mut until, mut bytes) = (served.journal.first(), 0);
        while until < needed && bytes < RETAIN_STEP_BYTES {
            bytes += served.journal.block(until)?.len();
            until += 1;
        }
        Ok((until, bytes as u64))
    }

    fn kept_since(&self, served: &Served, retention: &Retention) -> Result<Option<Timestamp>, StoreError> {
        let begin = served.live().receipts_begin;
        if begin > 0 && begin < receipts_total(served)? {
            return Ok(Some(self.read_receipt(served, begin)?.stored_at));
        }
        let age = retention.receipts.age;
        Ok(age.and_then(|age| self.before(age)).map(timestamp))
    }
}

impl LocalStore {
    pub(super) fn preview(&self, retention: &Retention) -> Result<Retained, StoreError> {
        let shared = self.shared();
        // Nothing goes while it is counted.
        let turns = shared.retaining.lock();
        let served = shared.served();
        served.alive()?;
        let plan = shared.plan(&served, retention)?;
        let letters = match retention.letters {
            Some(age) => shared.old_letters(&served, age, usize::MAX)?.len() as u64,
            None => 0,
        };
        let mut told = Retained {
            letters,
            since: shared.kept_since(&served, retention)?,
            ..plan.told()
        };
        let mut reached = *turns;
        reached.aim(last_block(&served)?, told.has_expired());
        let (begin, end) = (
            served.journal.first(),
            shared.first_needed(&served, reached.goal, u64::MAX, Some(&plan))?,
        );
        told.blocks = end.saturating_sub(begin);
        for seq in begin..end {
            told.bytes += served.journal.block(seq)?.len() as u64;
        }
        drop(turns);
        Ok(told)
    }

    /// The first step of a turn; see the module.
    pub(super) fn let_go(&self, retention: &Retention) -> Result<Retained, StoreError> {
        let shared = self.shared();
        let mut reached = shared.retaining.lock();
        let served = shared.served();
        served.alive()?;
        let mut letters = 0;
        if let Some(age) = retention.letters {
            let old = shared.old_letters(&served, age, RETAIN_BATCH)?;
            letters = self.submit(0, move |desk| desk.purge(&old)).wait()?;
        }
        let plan = shared.plan(&served, retention)?;
        let expired = plan.record();
        let has_expired = self.submit(0, move |desk| desk.expire(expired)).wait()?;
        reached.aim(last_block(&served)?, has_expired || letters > 0);
        Ok(Retained {
            letters,
            more: letters >= RETAIN_BATCH as u64,
            since: shared.kept_since(&served, retention)?,
            ..plan.told()
        })
    }

    pub(super) fn drop_old(&self, log_before: u64) -> Result<Retained, StoreError> {
        let shared = self.shared();
        let mut reached = shared.retaining.lock();
        let served = shared.served();
        served.alive()?;
        let mut told = Retained::default();
        self.drop_blocks(&served, reached.goal, log_before, &mut told)?;
        reached.end = last_block(&served)?;
        Ok(told)
    }

    fn drop_blocks(
        &self,
        served: &Arc<Served>,
        goal: u64,
        log_before: u64,
        told: &mut Retained,
    ) -> Result<(), StoreError> {
        let shared = self.shared();
        let before = served.journal.first();
        let (first, bytes) = shared.step(served, goal, log_before)?;
        if first <= before {
            return Ok(());
        }
        let when = When {
            at_ms: 0,
            now_ms: shared.now_ms(),
            now: shared.clock.monotonic(),
            replay: true,
        };
        let (ground, dead) = refold(served.journal.as_ref(), first, when)?;
        served.journal.stage(first, &ground.encode())?;
        failpoint::hit("retain.staged");
        told.moved = self.forward(served, &ground, when)?;
        self.take_out(served, first, dead)?;
        failpoint::hit("retain.taken_out");
        self.flush(served)?;
        failpoint::hit("retain.flushed");
        self.at_desk(served, move |desk| desk.cut(first))?;
        served.table.compact()?;
        told.blocks = first - before;
        told.bytes = bytes;
        told.more |= shared.step(served, goal, log_before)?.0 > first;
        Ok(())
    }

    /// An operation of this turn, refused if the store was opened anew since the turn began.
    fn at_desk<T, D>(&self, served: &Arc<Served>, decide: D) -> Result<T, StoreError>
    where
        T: Send + 'static,
        D: FnOnce(&mut Desk<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let served = served.clone();
        self.submit(0, move |desk| {
            desk.is_still(&served)?;
            decide(desk)
        })
        .wait()
    }

    /// Writes forward what is alive in the blocks before the ground's first; how much it was.
    fn forward(&self, served: &Arc<Served>, ground: &Ground, when: When) -> Result<u64, StoreError> {
        let first = ground.first;
        let mut moved = 0;
        let live = ground.index.cells().keys();
        let live: Vec<Vec<u8>> = live
            .filter(|key| matches!(key.first(), Some(b'D' | b'F')))
            .cloned()
            .collect();
        for keys in live.chunks(RETAIN_BATCH) {
            let mut keys = keys.to_vec();
            while !keys.is_empty() {
                let these = keys.clone();
                let done = self.at_desk(served, move |desk| desk.forward(first, &these))?;
                moved += done.moved;
                keys = done.next.map_or(Vec::new(), |next| {
                    let next = usize::try_from(next).unwrap_or(usize::MAX);
                    keys.split_off(next.min(keys.len()))
                });
            }
        }
        loop {
            let done = self.at_desk(served, move |desk| desk.forward_claims(first))?;
            moved += done.moved;
            if done.next.is_none() {
                break;
            }
        }
        let restored = Fold::restore(&ground.snapshot, when).map_err(|error| index_damaged(&error))?;
        for (name, topic) in restored.1.topics {
            let mut next = Some(0);
            while let Some(from) = next {
                let name = name.clone();
                let done = self.at_desk(served, move |desk| {
                    if desk
                        .fold
                        .topics
                        .get(&name)
                        .is_none_or(|topic| !topic.keeps_unsettled)
                    {
                        return Ok(Default::default());
                    }
                    desk.forward_events(&name, from, topic.end, first)
                })?;
                moved += done.moved;
                next = done.next;
            }
        }
        Ok(moved)
    }

    fn take_out(&self, served: &Arc<Served>, first: u64, mut dead: Dead) -> Result<(), StoreError> {
        loop {
            let rest = dead.split_off(RETAIN_BATCH.min(dead.len()));
            self.at_desk(served, move |desk| desk.take_out(first, dead))?;
            if rest.is_empty() {
                return Ok(());
            }
            dead = rest;
        }
    }

    /// Waits until everything that was taken out is out on disk, too.
    fn flush(&self, served: &Arc<Served>) -> Result<(), StoreError> {
        let Some(layers) = served.table.gathering() else {
            return Ok(());
        };
        let flushed = self.flush_layers(served, layers);
        if flushed.is_err() {
            served.table.calm();
        }
        flushed
    }

    fn flush_layers(&self, served: &Arc<Served>, layers: u64) -> Result<(), StoreError> {
        let end = Instant::now() + RETAIN_FLUSH_MAX;
        while !served.table.hurry(layers)? {
            // The writer hands a layer over when it has a turn.
            self.at_desk(served, |_| Ok(()))?;
            if Instant::now() > end {
                return Err(StoreError::Unavailable {
                    reason: "the index is too busy to let go of old blocks; try again later".into(),
                });
            }
        }
        Ok(())
    }
}

impl Plan {
    fn record(&self) -> ExpiredRecord {
        let topics = self.topics.iter();
        ExpiredRecord {
            receipts_begin: self.receipts.1,
            epochs_before: 0,
            topics: topics
                .map(|(name, _, from, unsettled)| (name.clone(), *from, *unsettled))
                .collect(),
        }
    }

    fn told(&self) -> Retained {
        let gone = self.topics.iter().filter(|(_, begin, from, _)| from > begin);
        Retained {
            receipts: self.receipts.1 - self.receipts.0,
            events: gone
                .map(|(name, begin, from, _)| (name.clone(), from - begin))
                .collect(),
            ..Retained::default()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;
    use std::sync::Arc;
    use std::time::Duration;

    use effectd_contracts::{ManualClock, Timestamp};

    use crate::conformance::retention::retain_all;
    use crate::conformance::values::{event, topic};
    use crate::error::StoreError;
    use crate::journal::missing;
    use crate::store::Store;
    use crate::types::retention::Retention;

    #[test]
    fn what_failed_while_blocks_went_is_read_again_and_other_damage_is_told_at_once() {
        let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
        let store = crate::memory::open(clock.clone()).unwrap();
        for name in ["1", "2", "3"] {
            store.publish(&topic("t"), vec![event(name)]).wait().unwrap();
        }
        clock.advance(Duration::from_secs(181 * 86_400));
        let tries = Cell::new(0);
        let answer = store.steady(|shared| {
            tries.set(tries.get() + 1);
            let before = shared.served().journal.first();
            if tries.get() > 1 {
                return Ok(tries.get());
            }
            retain_all(&store, &Retention::default());
            assert!(shared.served().journal.first() > before, "nothing went");
            Err(missing(before))
        });
        assert_eq!(answer, Ok(2));
        tries.set(0);
        let answer = store.steady(|_| {
            tries.set(tries.get() + 1);
            Err::<(), StoreError>(missing(1))
        });
        assert_eq!((answer, tries.get()), (Err(missing(1)), 1));
    }
}
