//! The writer: the one thread that appends blocks.
#![expect(clippy::disallowed_methods, reason = "measures the disk")]

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Instant;

use super::queue::{Job, Reply};
use super::recover::recover;
use super::{Shared, dead_letter_files};
use crate::commands::Batch;
use crate::error::StoreError;
use crate::failpoint;
use crate::journal::block::Builder;
use crate::names::TopicName;
use crate::reads::Reader;
use crate::state::replay::JournalTip;
use crate::state::{BlockChanges, State, When};

pub(super) fn spawn(shared: Arc<Shared>, tip: JournalTip) -> Result<JoinHandle<()>, StoreError> {
    let writer = Writer {
        shared,
        tip: Some(tip),
        flusher: None,
        letter_files: None,
        operations: 0,
        spare: Vec::new(),
    };
    super::spawn("store-writer", move || writer.run())
}

struct Writer {
    shared: Arc<Shared>,
    /// `None` after an error, until the store is reopened.
    tip: Option<JournalTip>,
    /// The thread that flushes the index.
    flusher: Option<JoinHandle<()>>,
    /// The thread that writes the files of dead letters.
    letter_files: Option<JoinHandle<()>>,
    /// Operations of the current block.
    operations: usize,
    /// The buffer of the last block, for the next.
    spare: Vec<u8>,
}

impl Writer {
    fn run(mut self) {
        if let Err(error) = self.ensure_open() {
            tracing::warn!(%error, "a thread of the store could not be started; the first write tries again");
        }
        while let Some(jobs) = self.shared.queue.take() {
            // The delay of a link is deliberate, and no latency of the store.
            let urgent = jobs.iter().filter(|job| !job.can_wait);
            let since: Vec<Instant> = urgent.map(|job| job.since).collect();
            self.operations = jobs.len();
            self.write_block(jobs);
            let meters = &self.shared.meters;
            meters.operations.inc_by(self.operations as u64);
            let now = Instant::now();
            since.iter().for_each(|since| meters.wait.observe(now.duration_since(*since).as_secs_f64()));
            meters.queued.set(i64::try_from(self.shared.queue.len()).unwrap_or(i64::MAX));
        }
        self.finish();
    }

    /// One block: decide, make durable, make visible, answer.
    fn write_block(&mut self, jobs: Vec<Job>) {
        if let Err(error) = self.ensure_open() {
            self.shared.note_damage(self.shared.reader().journal.first(), Some(&error));
            return refuse(jobs, &error);
        }
        let Some(mut tip) = self.tip.take() else {
            return;
        };
        let reader = self.shared.reader();
        let written = catch_unwind(AssertUnwindSafe(|| self.write(&mut tip, &reader, jobs)));
        match written {
            Ok((replies, Ok(()))) => {
                self.tip = Some(tip);
                answer(replies, &Ok(()));
            }
            Ok((replies, Err(error))) => {
                tracing::error!(%error, "a block could not be written; the store will be reopened");
                self.abandon();
                answer(replies, &Err(error));
            }
            // The dropped promises have answered the callers.
            Err(_) => {
                tracing::error!("the writer panicked; the store will be reopened");
                self.abandon();
            }
        }
    }

    fn write(
        &mut self,
        tip: &mut JournalTip,
        reader: &Arc<Reader>,
        jobs: Vec<Job>,
    ) -> (Vec<Reply>, Result<(), StoreError>) {
        let (now_ms, first) = (self.shared.now_ms(), reader.journal.first());
        let at_ms = now_ms.max(tip.at_ms);
        let when = When { at_ms, now_ms, now: self.shared.clock.monotonic(), replay: false };
        let spare = std::mem::take(&mut self.spare);
        let mut block = Builder::reusing(spare, tip.seq + 1, tip.checksum, at_ms);
        block.reserve(jobs.iter().map(|job| job.bytes).sum());
        let mut batch = Batch {
            reader,
            clock: self.shared.clock.as_ref(),
            state: &mut tip.state,
            block,
            changes: BlockChanges::default(),
            when,
            receipts: BTreeMap::new(),
            tainted: false,
            damage: None,
            refusal: self.shared.check_refusal(),
        };
        let mut replies = Vec::with_capacity(jobs.len());
        for job in jobs {
            replies.push(job.work.run(&mut batch));
        }
        let Batch { block, mut changes, tainted, damage, .. } = batch;
        self.shared.note_damage(first, damage.as_ref());
        if tainted {
            let error = StoreError::unavailable("an operation failed halfway; its block was discarded");
            return (replies, Err(error));
        }
        if block.is_empty() {
            // Retention removes entries from the index without writing a record.
            if !changes.index.is_empty() {
                reader.index.apply(changes.index, 0);
            }
            if tip.seq > 0 {
                freeze_if_large(reader, tip);
            }
            return (replies, Ok(()));
        }
        tip.state.end_block(block.seq(), at_ms, &mut changes);
        let result = self.append(reader, tip, block);
        let shown = result.and_then(|bytes| self.show(reader, tip, changes, bytes));
        (replies, shown)
    }

    /// Makes a block durable; returns its length.
    fn append(&mut self, reader: &Reader, tip: &mut JournalTip, block: Builder) -> Result<usize, StoreError> {
        reader.index.wait_for_room()?;
        let (seq, at_ms, records) = (block.seq(), block.at_ms(), block.records());
        let (bytes, checksum) = block.finish();
        let begun = Instant::now();
        failpoint::hit("writer.before_append");
        reader.journal.append(seq, &bytes)?;
        failpoint::hit("writer.after_append");
        let took = begun.elapsed();
        let meters = &self.shared.meters;
        meters.sync.observe(took.as_secs_f64());
        meters.syncs.inc();
        meters.blocks.inc();
        meters.records.inc_by(u64::from(records));
        meters.journal_bytes.inc_by(bytes.len() as u64);
        meters.batch.observe(self.operations as f64);
        meters.batch_last.store(self.operations as u64, Ordering::Relaxed);
        meters.batch_max.fetch_max(self.operations as u64, Ordering::Relaxed);
        (tip.seq, tip.checksum, tip.at_ms) = (seq, checksum, at_ms);
        let len = bytes.len();
        self.spare = bytes;
        Ok(len)
    }

    /// Makes a durable block visible to readers, and wakes those who wait for it.
    fn show(
        &self,
        reader: &Arc<Reader>,
        tip: &mut JournalTip,
        changes: BlockChanges,
        bytes: usize,
    ) -> Result<(), StoreError> {
        if let Some((first, leaves)) = &changes.leaves {
            reader.index.log().append(*first, leaves)?;
        }
        reader.index.apply(changes.index, bytes);
        freeze_if_large(reader, tip);
        {
            let mut live = reader.live.write();
            for (key, digest, action) in changes.opened {
                live.open_keys.insert(key, (digest, action));
            }
            for key in changes.closed {
                live.open_keys.remove(&key);
            }
            let ended = changes.letters_ended.len() as u64;
            live.letters_ended += ended;
            live.letters = (live.letters + changes.letters_begun).saturating_sub(ended);
            live.quarantined.extend(changes.letters_quarantined);
            for letter in &changes.letters_ended {
                live.quarantined.remove(letter);
            }
            live.letters_end = tip.state.next_letter;
            live.log.clone_from(&tip.state.log);
            live.open_claims = tip.state.claims().len() as u64;
            if changes.expired {
                live.expire(&tip.state);
            }
            for topic in &changes.changed {
                live.ends.insert(topic.clone(), tip.state.end(topic));
            }
        }
        self.destroy(&changes.closed_epochs);
        let meters = &self.shared.meters;
        meters.index_lag.set(i64::try_from(reader.index.lag()).unwrap_or(i64::MAX));
        self.shared.measure();
        if changes.letters_begun > 0 || !changes.letters_ended.is_empty() {
            self.shared.letters.raise();
        }
        self.wake(&tip.state, &changes.changed, &changes.returned);
        failpoint::hit("writer.before_answer");
        Ok(())
    }

    /// Wakes the readers of changed topics, and groups that may have something to lease. An admitted event has its holder
    /// already, and wakes no group.
    fn wake(&self, state: &State, changed: &BTreeSet<TopicName>, returned: &BTreeSet<TopicName>) {
        let signals = self.shared.topic_signals.lock();
        let signals_of = changed.iter().filter_map(|topic| signals.get(topic));
        signals_of.for_each(|signal| signal.raise());
        drop(signals);
        for (key, signal) in &*self.shared.group_signals.lock() {
            let (topic, _) = key;
            // A quick check, which is wrong if all later events are acknowledged: that wakes the group in vain.
            let has_more = || {
                let group = state.groups.get(key);
                group.is_none_or(|group| group.next() < state.end(topic))
            };
            if returned.contains(topic) || changed.contains(topic) && has_more() {
                signal.raise();
            }
        }
    }

    /// Destroys the keys of epochs that are now closed on disk. The next opening repeats what fails here.
    fn destroy(&self, epochs: &[u32]) {
        for epoch in epochs {
            if let Err(error) = self.shared.vault.destroy(*epoch) {
                tracing::error!(epoch, %error, "the key of a closed epoch could not be destroyed yet");
            }
        }
    }

    /// Reopens the store after an error or damage of the index, and starts its threads.
    fn ensure_open(&mut self) -> Result<(), StoreError> {
        if self.tip.is_some() && self.shared.reader().index.is_corrupt() {
            tracing::error!("the index is damaged; it is rebuilt from the journal");
            self.abandon();
        }
        if self.tip.is_none() {
            let shared = &self.shared;
            let opened = catch_unwind(AssertUnwindSafe(|| {
                recover(shared.medium.as_ref(), shared.clock.as_ref(), &shared.vault)
            }));
            let panicked = |_| Err(StoreError::unavailable("the engine panicked while opening"));
            let (reader, tip) = opened.unwrap_or_else(panicked)?;
            // A new value, so that the files of dead letters are rewritten.
            let mut live = reader.live.write();
            live.letters_ended = (shared.meters.reopens.get() + 1) << 32;
            drop(live);
            *shared.reader.write() = Arc::new(reader);
            shared.meters.reopens.inc();
            shared.measure();
            shared.letters.raise();
            self.tip = Some(tip);
        }
        if self.letter_files.is_none()
            && let Some(dir) = self.shared.medium.letter_files()
        {
            self.letter_files = Some(dead_letter_files::spawn(self.shared.clone(), dir)?);
        }
        if self.flusher.is_none() {
            let reader = self.shared.reader();
            self.flusher = Some(super::spawn("store-index", move || reader.index.flush_loop())?);
        }
        Ok(())
    }

    /// Closes everything, so that it can be reopened.
    fn abandon(&mut self) {
        self.tip = None;
        let reader = self.shared.reader();
        reader.index.stop();
        if let Some(flusher) = self.flusher.take() {
            let _ = flusher.join();
        }
        reader.index.close_runs();
        let reopening = StoreError::unavailable("the store is being reopened after an error");
        *self.shared.reader.write() = Arc::new(self.shared.dead_reader(reopening));
    }

    /// Flushes the index, so that the next opening is quick.
    fn finish(mut self) {
        self.shared.letters.close();
        if let Some(letter_files) = self.letter_files.take() {
            let _ = letter_files.join();
        }
        let reader = self.shared.reader();
        reader.index.stop();
        if let Some(flusher) = self.flusher.take() {
            let _ = flusher.join();
        }
        if let Some(tip) = &self.tip
            && reader.index.lag() > 0
            && !reader.index.has_failed()
        {
            freeze(&reader, tip);
            if let Err(error) = reader.index.flush_frozen() {
                tracing::warn!(%error, "the index was not flushed; the next start does it");
            }
        }
        drop(reader);
        *self.shared.reader.write() = Arc::new(self.shared.dead_reader(StoreError::Closed));
        self.shared.medium.release();
    }
}

fn freeze(reader: &Reader, tip: &JournalTip) {
    let (applied, log_size) = tip.applied();
    reader.index.freeze(applied, log_size);
}

fn freeze_if_large(reader: &Reader, tip: &JournalTip) {
    if reader.index.should_flush() {
        freeze(reader, tip);
    }
}

fn answer(replies: Vec<Reply>, result: &Result<(), StoreError>) {
    for reply in replies {
        reply(result.clone());
    }
}

fn refuse(jobs: Vec<Job>, error: &StoreError) {
    for job in jobs {
        job.work.refuse(error.clone());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use effectd_contracts::{Digest, Status, SystemClock};

    use crate::store::Store;
    use crate::testing::values::{action, claim, completion, receipt_id};
    use crate::types::claims::ClaimAnswer;
    use crate::types::receipts::Link;

    #[test]
    fn the_delay_of_a_link_is_no_latency_of_the_store() {
        let store = crate::memory::open(Arc::new(SystemClock)).unwrap();
        let shared = store.shared().clone();
        let first = claim("a", "k", "p");
        let ClaimAnswer::New { fence } = store.claim(first.clone()).wait().unwrap() else {
            panic!("the claim is not granted")
        };
        store.commit(completion(&first, Status::Ok, Some(fence))).wait().unwrap();
        let link = Link {
            action_id: action("b"),
            action_digest: Digest::of(b"b p"),
            receipt_id: receipt_id("receipt-a"),
            leases: Vec::new(),
        };
        store.link(link).wait().unwrap();
        // The writer counts after it answers, so it ends first.
        drop(store);
        assert_eq!((shared.meters.operations.get(), shared.meters.wait.get_sample_count()), (3, 2));
    }
}
