//! Retention: expired data is removed, and the disk gets its space back.
//!
//! It runs in the caller's thread, with only small operations in the writer:
//!
//! 1. Expired dead letters are purged, and the first kept receipts and events are recorded. From then on nobody sees
//!    older ones. Before the next step, the caller signs a head that states the first kept entry of the log.
//! 2. The oldest blocks in which nothing is kept are replayed; the result is staged as the journal's new *checkpoint*.
//! 3. Live records in those blocks are relocated to the journal's end: dead letters, entries, open intents,
//!    unacknowledged events.
//! 4. Index entries that point to those blocks are removed, after a mark in the index.
//! 5. When the index is flushed, the checkpoint is activated and the blocks are dropped.
//!
//! After a crash before step 4 is on disk, no block is lost and a later run tries again; after that, opening finishes it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use effectd_contracts::Timestamp;

use super::{LocalStore, Shared};
use crate::commands::{Batch, Relocated};
use crate::error::StoreError;
use crate::failpoint;
use crate::index::schema::{self, BlockSpans};
use crate::journal::record::ExpiredRecord;
use crate::limits::{RETAIN_BATCH, RETAIN_FLUSH_MAX, RETAIN_STEP_BYTES};
use crate::names::TopicName;
use crate::reads::{Reader, timestamp};
use crate::state::checkpoint::{Checkpoint, Removed};
use crate::state::replay::checkpoint_before;
use crate::state::{State, When};
use crate::types::retention::{Keep, Retained, Retention};

/// What is kept from now on.
struct Plan {
    /// The first kept receipt: before this run, and after it.
    receipts: (u64, u64),
    topics: Vec<TopicPlan>,
}

struct TopicPlan {
    name: TopicName,
    /// The first kept event: before this run, and after it.
    begin: (u64, u64),
    keeps_unacknowledged: bool,
}

/// The progress of retention in this process. Retention moves live records to the end of the journal, so it needs a fixed
/// goal: without one it would move the same records forever.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Progress {
    /// Blocks from this one on are not dropped until the goal moves.
    goal: u64,
    /// The last block when the last step ended.
    end: u64,
}

impl Progress {
    /// Moves the goal to the last block if something has expired, or if more blocks were written since the last step than
    /// between the goal and that step: otherwise live records would be relocated again to free little.
    fn aim(&mut self, last: u64, has_expired: bool) {
        let since = last.saturating_sub(self.end);
        if has_expired || self.goal == 0 || since > self.end.saturating_sub(self.goal) {
            self.goal = last;
        }
    }
}

fn last_block(reader: &Reader) -> Result<u64, StoreError> {
    Ok(reader.journal.bounds()?.map_or(1, |(_, last)| last))
}

impl Shared {
    /// The first receipt or event that is kept.
    fn keep_from(
        &self,
        reader: &Reader,
        key: impl Fn(u64) -> Vec<u8>,
        (begin, end): (u64, u64),
        keep: Keep,
    ) -> Result<u64, StoreError> {
        let mut from = begin;
        if let Some(since) = keep.age.and_then(|age| self.before(age)) {
            let is_young = |spans: &BlockSpans| spans.at_ms >= since;
            from = from.max(reader.first_where(&key, begin..end, is_young)?);
        }
        if let Some(bytes) = keep.bytes {
            let last = reader.last_spans(&key(begin), &key(end))?;
            let all = last.map_or(0, |(_, spans)| spans.after());
            let fits = |spans: &BlockSpans| all - spans.before.min(all) <= bytes;
            from = from.max(reader.first_where(&key, begin..end, fits)?);
        }
        Ok(from)
    }

    /// The time `age` ago, in milliseconds.
    fn before(&self, age: Duration) -> Option<i64> {
        self.now_ms().checked_sub(i64::try_from(age.as_millis()).ok()?)
    }

    fn plan(&self, reader: &Reader, retention: &Retention) -> Result<Plan, StoreError> {
        let begin = reader.live.read().receipts_begin;
        let total = reader.receipts_total()?.max(begin);
        let receipts = self.keep_from(reader, schema::receipts, (begin, total), retention.receipts)?;
        let names: Vec<TopicName> = reader.live.read().ends.keys().cloned().collect();
        let mut topics = Vec::with_capacity(names.len());
        for name in names {
            let kept = retention.of(&name);
            let range = reader.live.read().range(&name);
            let key = |offset| schema::events(&name, offset);
            let from = self.keep_from(reader, key, range, kept.keep)?;
            topics.push(TopicPlan {
                name,
                begin: (range.0, from),
                keeps_unacknowledged: kept.unacknowledged,
            });
        }
        Ok(Plan { receipts: (begin, receipts), topics })
    }

    /// Expired dead letters, at most `max`.
    fn old_letters(&self, reader: &Reader, age: Duration, max: usize) -> Result<Vec<u64>, StoreError> {
        let (mut found, mut from) = (Vec::new(), 0);
        let Some(since) = self.before(age) else {
            return Ok(found);
        };
        while let Some((letter, at)) = reader.next_letter(from)? {
            if at.at_ms >= since || found.len() >= max {
                break;
            }
            found.push(letter);
            from = letter + 1;
        }
        Ok(found)
    }

    /// The block before which one step drops all blocks, and the bytes of these blocks.
    fn step(&self, reader: &Reader, goal: u64, log_before: u64) -> Result<(u64, u64), StoreError> {
        let needed = first_needed(reader, goal, log_before, None)?;
        let (mut until, mut bytes) = (reader.journal.first(), 0);
        while until < needed && bytes < RETAIN_STEP_BYTES {
            bytes += reader.journal.block(until)?.len();
            until += 1;
        }
        Ok((until, bytes as u64))
    }

    /// From when on receipts are kept, if the first kept one is `begin`.
    fn kept_since(
        &self,
        reader: &Reader,
        retention: &Retention,
        begin: u64,
    ) -> Result<Option<Timestamp>, StoreError> {
        if begin > 0 && begin < reader.receipts_total()? {
            return Ok(Some(timestamp(reader.receipt_location(begin)?.0.at_ms)));
        }
        Ok(self.since(retention.receipts.age))
    }

    /// From when on things of at most this age are kept.
    fn since(&self, age: Option<Duration>) -> Option<Timestamp> {
        age.and_then(|age| self.before(age)).map(timestamp)
    }
}

/// The first block in which something is kept, at most `goal`. Expired is what the state says or, with a plan, what the plan
/// says. Log entries from `log_before` on are kept in any case.
fn first_needed(reader: &Reader, goal: u64, log_before: u64, plan: Option<&Plan>) -> Result<u64, StoreError> {
    let mut first = last_block(reader)?.min(goal);
    let mut need = |from: Vec<u8>, end: Vec<u8>| -> Result<(), StoreError> {
        let found = reader.first_spans(&from, &end)?;
        first = first.min(found.map_or(u64::MAX, |(_, spans)| spans.seq));
        Ok(())
    };
    let (receipts, begins): (u64, Vec<(TopicName, u64)>) = match plan {
        Some(plan) => {
            let topics = plan.topics.iter();
            let begins = topics.map(|topic| (topic.name.clone(), topic.begin.1));
            (plan.receipts.1, begins.collect())
        }
        None => {
            let live = reader.live.read();
            let begins = live.ends.keys().map(|name| (name.clone(), live.range(name).0));
            (live.receipts_begin, begins.collect())
        }
    };
    need(schema::receipts(receipts), schema::receipts(u64::MAX))?;
    let log = reader.log_kept_from(receipts)?.min(log_before);
    need(schema::log_entries(log), schema::log_entries(u64::MAX))?;
    for (name, begin) in begins {
        need(schema::events(&name, begin), schema::events(&name, u64::MAX))?;
    }
    Ok(first)
}

impl LocalStore {
    pub(super) fn preview(&self, retention: &Retention) -> Result<Retained, StoreError> {
        let shared = self.shared();
        // The lock keeps other calls from dropping blocks while they are counted.
        let guard = shared.retention.lock();
        let mut progress = *guard;
        let reader = shared.alive()?;
        let plan = shared.plan(&reader, retention)?;
        let letters = match retention.letters {
            Some(age) => shared.old_letters(&reader, age, usize::MAX)?.len() as u64,
            None => 0,
        };
        let mut report = Retained {
            letters,
            since: shared.kept_since(&reader, retention, plan.receipts.1)?,
            letters_since: shared.since(retention.letters),
            ..plan.report()
        };
        progress.aim(last_block(&reader)?, report.has_expired());
        let begin = reader.journal.first();
        let end = first_needed(&reader, progress.goal, u64::MAX, Some(&plan))?;
        report.blocks = end.saturating_sub(begin);
        for seq in begin..end {
            report.bytes += reader.journal.block(seq)?.len() as u64;
        }
        drop(guard);
        Ok(report)
    }

    /// Step 1 of the module's description.
    pub(super) fn expire(&self, retention: &Retention) -> Result<Retained, StoreError> {
        let shared = self.shared();
        let mut progress = shared.retention.lock();
        let reader = shared.alive()?;
        let mut letters = 0;
        if let Some(age) = retention.letters {
            let old = shared.old_letters(&reader, age, RETAIN_BATCH)?;
            letters = self.submit(0, move |batch| batch.purge(&old)).wait()?;
        }
        let plan = shared.plan(&reader, retention)?;
        let expired = plan.record();
        let has_expired = self.submit(0, move |batch| batch.expire(expired)).wait()?;
        progress.aim(last_block(&reader)?, has_expired || letters > 0);
        Ok(Retained {
            letters,
            more: letters >= RETAIN_BATCH as u64,
            since: shared.kept_since(&reader, retention, plan.receipts.1)?,
            letters_since: shared.since(retention.letters),
            ..plan.report()
        })
    }

    /// Steps 2 to 5 of the module's description.
    pub(super) fn truncate(&self, log_before: u64) -> Result<Retained, StoreError> {
        let shared = self.shared();
        let mut progress = shared.retention.lock();
        let reader = shared.alive()?;
        let report = self.drop_blocks(&reader, progress.goal, log_before)?;
        progress.end = last_block(&reader)?;
        Ok(report)
    }

    fn drop_blocks(&self, reader: &Arc<Reader>, goal: u64, log_before: u64) -> Result<Retained, StoreError> {
        let shared = self.shared();
        let before = reader.journal.first();
        let (first, bytes) = shared.step(reader, goal, log_before)?;
        if first <= before {
            return Ok(Retained::default());
        }
        let when = When { at_ms: 0, now_ms: shared.now_ms(), now: shared.clock.monotonic(), replay: true };
        let (checkpoint, removed) = checkpoint_before(reader.journal.as_ref(), first, when)?;
        reader.journal.stage(first, &checkpoint.encode())?;
        failpoint::hit("retain.staged");
        let moved = self.relocate(reader, &checkpoint, when)?;
        self.remove_from_index(reader, first, removed)?;
        failpoint::hit("retain.taken_out");
        self.flush(reader)?;
        failpoint::hit("retain.flushed");
        self.submit_to(reader, move |batch| batch.truncate(first))?;
        reader.index.compact()?;
        Ok(Retained {
            moved,
            blocks: first - before,
            bytes,
            more: shared.step(reader, goal, log_before)?.0 > first,
            ..Retained::default()
        })
    }

    /// An operation that is refused if the store was reopened since retention began.
    fn submit_to<T, D>(&self, reader: &Arc<Reader>, decide: D) -> Result<T, StoreError>
    where
        T: Send + 'static,
        D: FnOnce(&mut Batch<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let reader = reader.clone();
        self.submit(0, move |batch| {
            batch.check_reader(&reader)?;
            decide(batch)
        })
        .wait()
    }

    /// Relocates the live records of the blocks before a checkpoint; returns how many.
    fn relocate(&self, reader: &Arc<Reader>, checkpoint: &Checkpoint, when: When) -> Result<u64, StoreError> {
        let first = checkpoint.first;
        let mut moved = 0;
        let live = checkpoint.index.cells().keys();
        let live: Vec<Vec<u8>> =
            live.filter(|key| matches!(key.first(), Some(b'D' | b'F'))).cloned().collect();
        for keys in live.chunks(RETAIN_BATCH) {
            let mut keys = keys.to_vec();
            while !keys.is_empty() {
                let these = keys.clone();
                let done = self.submit_to(reader, move |batch| batch.relocate(first, &these))?;
                moved += done.moved;
                keys = done.next.map_or(Vec::new(), |next| {
                    let next = usize::try_from(next).unwrap_or(usize::MAX);
                    keys.split_off(next.min(keys.len()))
                });
            }
        }
        loop {
            let done = self.submit_to(reader, move |batch| batch.relocate_claims(first))?;
            moved += done.moved;
            if done.next.is_none() {
                break;
            }
        }
        let restored = State::restore(&checkpoint.snapshot, when);
        let (_, state) = restored.map_err(|error| Checkpoint::damaged(error.0))?;
        for (name, topic) in state.topics {
            let mut next = Some(0);
            while let Some(from) = next {
                let name = name.clone();
                let done = self.submit_to(reader, move |batch| {
                    let topics = &batch.state.topics;
                    if topics.get(&name).is_none_or(|topic| !topic.keeps_unacknowledged) {
                        return Ok(Relocated::default());
                    }
                    batch.relocate_events(&name, from, topic.end, first)
                })?;
                moved += done.moved;
                next = done.next;
            }
        }
        Ok(moved)
    }

    fn remove_from_index(
        &self,
        reader: &Arc<Reader>,
        first: u64,
        mut removed: Vec<Removed>,
    ) -> Result<(), StoreError> {
        loop {
            let rest = removed.split_off(RETAIN_BATCH.min(removed.len()));
            self.submit_to(reader, move |batch| batch.remove_from_index(first, removed))?;
            if rest.is_empty() {
                return Ok(());
            }
            removed = rest;
        }
    }

    /// Waits until the index is flushed.
    fn flush(&self, reader: &Arc<Reader>) -> Result<(), StoreError> {
        let Some(target) = reader.index.flush_target() else {
            return Ok(());
        };
        let flushed = self.flush_until(reader, target);
        if flushed.is_err() {
            reader.index.cancel_flush();
        }
        flushed
    }

    #[expect(clippy::disallowed_methods, reason = "how long the disk may take")]
    fn flush_until(&self, reader: &Arc<Reader>, target: u64) -> Result<(), StoreError> {
        let end = Instant::now() + RETAIN_FLUSH_MAX;
        while !reader.index.request_flush(target)? {
            // The writer freezes the memtable when it takes its next operation: this one.
            self.submit_to(reader, |_| Ok(()))?;
            if Instant::now() > end {
                return Err(StoreError::unavailable(
                    "the index is too busy to drop old blocks; try again later",
                ));
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
                .map(|topic| (topic.name.clone(), topic.begin.1, topic.keeps_unacknowledged))
                .collect(),
        }
    }

    fn report(&self) -> Retained {
        let expired = self.topics.iter().filter(|topic| topic.begin.1 > topic.begin.0);
        Retained {
            receipts: self.receipts.1 - self.receipts.0,
            events: expired.map(|topic| (topic.name.clone(), topic.begin.1 - topic.begin.0)).collect(),
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

    use crate::error::StoreError;
    use crate::journal::missing;
    use crate::store::Store;
    use crate::testing::retention::retain_all;
    use crate::testing::values::{event, topic};
    use crate::types::retention::Retention;

    #[test]
    fn reads_that_race_with_retention_retry_and_damage_is_reported() {
        let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
        let store = crate::memory::open(clock.clone()).unwrap();
        for name in ["1", "2", "3"] {
            store.publish(&topic("t"), vec![event(name)]).wait().unwrap();
        }
        clock.advance(Duration::from_secs(181 * 86_400));
        let tries = Cell::new(0);
        let answer = store.read_with(|reader| {
            tries.set(tries.get() + 1);
            let before = reader.journal.first();
            if tries.get() > 1 {
                return Ok(tries.get());
            }
            retain_all(&store, &Retention::default());
            assert!(reader.journal.first() > before, "nothing went");
            Err(missing(before))
        });
        assert_eq!(answer, Ok(2));
        tries.set(0);
        let answer = store.read_with(|_| {
            tries.set(tries.get() + 1);
            Err::<(), StoreError>(missing(1))
        });
        assert_eq!((answer, tries.get()), (Err(missing(1)), 1));
    }
}
