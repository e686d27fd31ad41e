//! The one thread that writes.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Instant;

use super::queue::{Job, Reply};
use super::recover::{Recovered, WriterState, recover};
use super::{Served, Shared, mirror};
use crate::block::Builder;
use crate::desk::Desk;
use crate::error::StoreError;
use crate::failpoint;
use crate::fold::{Effects, Fold, When};
use crate::keys::Checkpoint;
use crate::names::TopicName;
use crate::table::Vouch;

pub(crate) fn spawn(shared: Arc<Shared>, state: WriterState) -> Result<JoinHandle<()>, StoreError> {
    let writer = Writer {
        shared,
        state: Some(state),
        mover: None,
        mirror: None,
        batch: 0,
        spare: Vec::new(),
    };
    std::thread::Builder::new()
        .name("store-writer".into())
        .spawn(move || writer.run())
        .map_err(|error| StoreError::Unavailable {
            reason: format!("no thread for the writer: {error}"),
        })
}

struct Writer {
    shared: Arc<Shared>,
    /// `None` after an error, until the store is open again.
    state: Option<WriterState>,
    mover: Option<JoinHandle<()>>,
    /// Keeps the files of dead letters.
    mirror: Option<JoinHandle<()>>,
    /// How many are decided together this time.
    batch: usize,
    /// The last block's memory, to be used again.
    spare: Vec<u8>,
}

impl Writer {
    fn run(mut self) {
        if let Err(error) = self.ensure_open() {
            tracing::warn!(%error, "a thread of the store could not be started; it is tried again with the first write");
        }
        while let Some(jobs) = self.shared.queue.take() {
            let since: Vec<Instant> = jobs.iter().map(|job| job.since).collect();
            self.batch = jobs.len();
            self.turn(jobs);
            let meters = &self.shared.meters;
            meters.operations.inc_by(since.len() as u64);
            let now = Instant::now();
            since
                .iter()
                .for_each(|since| meters.wait.observe(now.duration_since(*since).as_secs_f64()));
            meters
                .queued
                .set(i64::try_from(self.shared.queue.len()).unwrap_or(i64::MAX));
        }
        self.finish();
    }

    /// One block: decide, make durable, show, answer.
    fn turn(&mut self, jobs: Vec<Job>) {
        if let Err(error) = self.ensure_open() {
            return refuse(jobs, &error);
        }
        let Some(mut state) = self.state.take() else {
            return;
        };
        let served = self.shared.served();
        let turned = catch_unwind(AssertUnwindSafe(|| self.write(&mut state, &served, jobs)));
        match turned {
            Ok((replies, Ok(()))) => {
                self.state = Some(state);
                answer(replies, &Ok(()));
            }
            Ok((replies, Err(error))) => {
                tracing::error!(%error, "a block could not be written; the store will be opened anew");
                self.abandon();
                answer(replies, &Err(error));
            }
            // The callers were told by their dropped promises.
            Err(_) => {
                tracing::error!("the writer met a panic; the store will be opened anew");
                self.abandon();
            }
        }
    }

    fn write(
        &mut self,
        state: &mut WriterState,
        served: &Arc<Served>,
        jobs: Vec<Job>,
    ) -> (Vec<Reply>, Result<(), StoreError>) {
        let now_ms = self.shared.now_ms();
        let at_ms = now_ms.max(state.last_at_ms);
        let when = When {
            at_ms,
            now_ms,
            now: self.shared.clock.monotonic(),
            replay: false,
        };
        let spare = std::mem::take(&mut self.spare);
        let mut block = Builder::reusing(spare, state.last_seq + 1, state.last_checksum, at_ms);
        block.reserve(jobs.iter().map(|job| job.bytes).sum());
        let mut desk = Desk {
            shared: &self.shared,
            served,
            fold: &mut state.fold,
            block,
            effects: Effects::default(),
            when,
            receipts: BTreeMap::new(),
            tainted: false,
            refusal: self.shared.judge(),
        };
        let mut replies = Vec::with_capacity(jobs.len());
        for job in jobs {
            replies.push(job.work.run(&mut desk));
        }
        let Desk {
            block,
            mut effects,
            tainted,
            ..
        } = desk;
        if tainted {
            let reason = "an operation failed half-way; nothing of its block was kept".into();
            return (replies, Err(StoreError::Unavailable { reason }));
        }
        if block.is_empty() {
            // Old entries that are taken out of the index are no records.
            if !effects.index.is_empty() {
                served.table.show(effects.index, 0);
            }
            if state.last_seq > 0 && served.table.is_ripe() {
                served.table.freeze(vouch(state));
            }
            return (replies, Ok(()));
        }
        state.fold.end_block(block.seq(), at_ms, &mut effects);
        let result = self.append(served, state, block);
        let shown = result.and_then(|bytes| self.show(served, state, effects, bytes));
        (replies, shown)
    }

    /// Makes a block durable; how many bytes it had.
    fn append(
        &mut self,
        served: &Served,
        state: &mut WriterState,
        block: Builder,
    ) -> Result<usize, StoreError> {
        served.table.wait_room()?;
        let (seq, at_ms, records) = (block.seq(), block.at_ms(), block.records());
        let (bytes, checksum) = block.finish();
        let begun = Instant::now();
        failpoint::hit("writer.before_append");
        served.journal.append(seq, &bytes)?;
        failpoint::hit("writer.after_append");
        let took = begun.elapsed();
        let meters = &self.shared.meters;
        meters.sync.observe(took.as_secs_f64());
        meters.syncs.inc();
        meters.blocks.inc();
        meters.records.inc_by(u64::from(records));
        meters.journal_bytes.inc_by(bytes.len() as u64);
        meters.batch.observe(self.batch as f64);
        meters.batch_last.store(self.batch as u64, Ordering::Relaxed);
        meters.batch_max.fetch_max(self.batch as u64, Ordering::Relaxed);
        state.last_seq = seq;
        state.last_checksum = checksum;
        state.last_at_ms = at_ms;
        let len = bytes.len();
        self.spare = bytes;
        Ok(len)
    }

    /// Lets readers see a durable block, and wakes who waits for it.
    fn show(
        &self,
        served: &Arc<Served>,
        state: &mut WriterState,
        effects: Effects,
        bytes: usize,
    ) -> Result<(), StoreError> {
        if let Some((first, leaves)) = &effects.leaves {
            served.table.log().show(*first, leaves)?;
        }
        served.table.show(effects.index, bytes);
        if served.table.is_ripe() {
            served.table.freeze(vouch(state));
        }
        {
            let mut live = served.live.write();
            for (key, digest, action) in effects.opened {
                live.open_keys.insert(key, (digest, action));
            }
            for key in effects.closed {
                live.open_keys.remove(&key);
            }
            live.letters_ended += effects.letters_ended;
            live.letters = (live.letters + effects.letters_begun).saturating_sub(effects.letters_ended);
            live.log.clone_from(&state.fold.log);
            live.open_claims = state.fold.claims().len() as u64;
            if effects.expired {
                live.expire(&state.fold);
            }
            for topic in &effects.news {
                live.ends.insert(topic.clone(), state.fold.end(topic));
            }
        }
        self.destroy(&effects.closed_epochs);
        let meters = &self.shared.meters;
        meters
            .index_lag
            .set(i64::try_from(served.table.lag()).unwrap_or(i64::MAX));
        self.shared.measure();
        if effects.letters_begun + effects.letters_ended > 0 {
            self.shared.letters.raise();
        }
        self.tell(&state.fold, &effects.news, &effects.given_back);
        failpoint::hit("writer.before_answer");
        Ok(())
    }

    /// Wakes whoever reads a topic with news, and whoever takes for a group for which there may be something. What was admitted
    /// has its holder already, and wakes no group.
    fn tell(&self, fold: &Fold, news: &BTreeSet<TopicName>, given_back: &BTreeSet<TopicName>) {
        let signals = self.shared.signals.lock();
        let told = news.iter().filter_map(|topic| signals.get(topic));
        told.for_each(|signal| signal.raise());
        drop(signals);
        for (key, signal) in &*self.shared.group_signals.lock() {
            let (topic, _) = key;
            // Not counted: much may be settled beyond an event that nobody has.
            let has_more = || {
                let group = fold.groups.get(key);
                group.is_none_or(|group| group.next() < fold.end(topic))
            };
            if given_back.contains(topic) || news.contains(topic) && has_more() {
                signal.raise();
            }
        }
    }

    /// Destroys the keys of epochs that are now closed on disk, whether or not anyone waits for the report. What fails
    /// here is done again when the store is next opened.
    fn destroy(&self, epochs: &[u32]) {
        for epoch in epochs {
            if let Err(error) = self.shared.vault.destroy(*epoch) {
                tracing::error!(epoch, %error, "the key of a closed epoch could not be destroyed yet");
            }
        }
    }

    /// Opens the store again if the last turn lost it or its index does not check, and sees to it that layers are moved.
    fn ensure_open(&mut self) -> Result<(), StoreError> {
        if self.state.is_some() && self.shared.served().table.is_spoiled() {
            tracing::error!("the index does not check; it is made anew from the journal");
            self.abandon();
        }
        if self.state.is_none() {
            let shared = &self.shared;
            let opened = catch_unwind(AssertUnwindSafe(|| {
                recover(shared.medium.as_ref(), shared.clock.as_ref(), &shared.vault)
            }));
            let panicked = |_| {
                Err(StoreError::Unavailable {
                    reason: "the engine panicked while opening".into(),
                })
            };
            let Recovered { served, state } = opened.unwrap_or_else(panicked)?;
            // Whatever went unseen, the files of dead letters are written anew.
            let mut live = served.live.write();
            live.letters_ended = (shared.meters.reopens.get() + 1) << 32;
            drop(live);
            *shared.served.write() = Arc::new(served);
            shared.meters.reopens.inc();
            shared.measure();
            shared.letters.raise();
            self.state = Some(state);
        }
        if self.mirror.is_none()
            && let Some(dir) = self.shared.medium.letter_files()
        {
            self.mirror = Some(mirror::spawn(self.shared.clone(), dir)?);
        }
        if self.mover.is_none() {
            let served = self.shared.served();
            let thread = std::thread::Builder::new().name("store-index".into());
            let mover = thread.spawn(move || served.table.move_layers());
            self.mover = Some(mover.map_err(|error| StoreError::Unavailable {
                reason: error.to_string(),
            })?);
        }
        Ok(())
    }

    /// Lets go of everything that is open, so that it can be opened anew.
    fn abandon(&mut self) {
        self.state = None;
        let served = self.shared.served();
        served.table.stop();
        if let Some(mover) = self.mover.take() {
            let _ = mover.join();
        }
        served.table.drop_base();
        *self.shared.served.write() = Arc::new(Served::dead(reopening()));
    }

    /// Writes the rest of the index, so that the next open is quick.
    fn finish(mut self) {
        self.shared.letters.close();
        if let Some(mirror) = self.mirror.take() {
            let _ = mirror.join();
        }
        let served = self.shared.served();
        served.table.stop();
        if let Some(mover) = self.mover.take() {
            let _ = mover.join();
        }
        if let Some(state) = &self.state
            && served.table.lag() > 0
            && !served.table.has_failed()
        {
            served.table.freeze(vouch(state));
            if let Err(error) = served.table.move_layer() {
                tracing::warn!(%error, "the rest of the index was not written; the next start does it");
            }
        }
        drop(served);
        *self.shared.served.write() = Arc::new(Served::dead(StoreError::Closed));
        self.shared.medium.release();
    }
}

/// What the index holds when it holds all blocks up to now, and how many entries the log has then.
pub(super) fn vouch(state: &WriterState) -> (Vouch, u64) {
    let vouch = Vouch {
        checkpoint: Checkpoint {
            seq: state.last_seq,
            checksum: state.last_checksum,
        },
        snapshot: state.fold.snapshot(state.last_seq),
    };
    (vouch, state.fold.log.size())
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

fn reopening() -> StoreError {
    StoreError::Unavailable {
        reason: "the store is being opened anew after an error".into(),
    }
}
