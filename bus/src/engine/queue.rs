//! The bounded queue in front of the writer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::desk::Desk;
use crate::error::StoreError;
use crate::limits::{
    BLOCK_BYTES_TARGET, BLOCK_OPERATIONS_MAX, LINK_LINGER, QUEUE_BYTES_MAX, QUEUE_OPERATIONS_MAX,
};
use crate::wait::Promise;

/// How long the writer looks for work before it sleeps.
const LOOK_OUT: Duration = Duration::from_micros(15);

/// Tells the caller how it went, once that is certain.
pub(crate) type Reply = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// One operation: decided by the writer at its desk, answered when its block is durable.
pub(crate) struct Job {
    pub(crate) bytes: usize,
    pub(crate) since: Instant,
    /// It waits for company rather than asking for a block of its own.
    pub(crate) patient: bool,
    pub(crate) work: Box<dyn Work>,
}

/// What an operation does when its turn comes.
pub(crate) trait Work: Send {
    /// Decides it. The reply is given when the block is durable, or has failed.
    fn run(self: Box<Self>, desk: &mut Desk<'_>) -> Reply;
    /// Answers it without deciding it.
    fn refuse(self: Box<Self>, error: StoreError);
}

/// An operation that answers a `T`, computed from what was decided when that is durable.
pub(crate) struct Operation<T, D> {
    pub(crate) promise: Promise<T>,
    pub(crate) decide: D,
}

/// What was decided, as an answer for the time when it is durable. It is computed by the thread that waits for it.
pub(crate) type Finish<T> = Box<dyn FnOnce() -> Result<T, StoreError> + Send>;

impl<T, D> Work for Operation<T, D>
where
    T: Send + 'static,
    D: FnOnce(&mut Desk<'_>) -> Result<Finish<T>, StoreError> + Send,
{
    fn run(self: Box<Self>, desk: &mut Desk<'_>) -> Reply {
        let Operation { promise, decide } = *self;
        let before = desk.block.records();
        let decided = decide(desk);
        desk.tainted |= decided.is_err() && desk.block.records() != before;
        Box::new(move |durable| match durable.and(decided) {
            Ok(finish) => promise.finish(finish),
            Err(error) => promise.answer(Err(error)),
        })
    }

    fn refuse(self: Box<Self>, error: StoreError) {
        self.promise.answer(Err(error));
    }
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    bytes: usize,
    patient: usize,
    closed: bool,
    /// How many jobs the writer sleeps for; 0 while it is awake. Waking it for each of a batch would cost more than the
    /// batch.
    wanted: usize,
}

impl State {
    /// Whether the writer sleeps and is to be woken.
    fn is_due(&mut self) -> bool {
        let is_due = self.wanted > 0 && (self.jobs.len() >= self.wanted || self.closed);
        if is_due {
            self.wanted = 0;
        }
        is_due
    }
}

/// The queue.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
    /// How many jobs there are, to be seen without the lock.
    len: AtomicUsize,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the job in, or refuses it.
    pub(crate) fn push(&self, job: Job) -> Result<(), StoreError> {
        let mut state = self.lock();
        if state.closed {
            return Err(StoreError::Closed);
        }
        if state.jobs.len() >= QUEUE_OPERATIONS_MAX.get()
            || state.bytes.saturating_add(job.bytes) > QUEUE_BYTES_MAX.get()
        {
            return Err(StoreError::Overloaded {
                what: "the writer's queue is full",
            });
        }
        state.bytes += job.bytes;
        state.patient += usize::from(job.patient);
        state.jobs.push_back(job);
        self.len.store(state.jobs.len(), Ordering::Release);
        let is_due = state.is_due();
        drop(state);
        if is_due {
            self.filled.notify_one();
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
    }

    /// Waits for work, and takes one block's worth of it. `company` callers were answered together a moment ago and are
    /// likely to come again; waiting for them a little (never longer than `patience`) makes one sync of two. `None` when
    /// the queue is closed and empty.
    pub(crate) fn take(&self, company: usize, patience: Duration, luck: &mut Luck) -> Option<Vec<Job>> {
        if self.len() == 0 && luck.is_tried() {
            luck.note(self.look_out());
        }
        let mut state = self.lock();
        loop {
            if state.jobs.len() > state.patient || (state.closed && !state.jobs.is_empty()) {
                break;
            }
            if state.closed {
                return None;
            }
            state.wanted = state.jobs.len() + 1;
            match state.jobs.front() {
                None => state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(first) => {
                    let left = LINK_LINGER.get().saturating_sub(first.since.elapsed());
                    if left.is_zero() {
                        break;
                    }
                    state = self
                        .filled
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
            }
        }
        let end = Instant::now() + patience;
        while state.jobs.len() < company && !state.closed {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state.wanted = company;
            state = self
                .filled
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.wanted = 0;
        let taken = drain(&mut state);
        self.len.store(state.jobs.len(), Ordering::Release);
        Some(taken)
    }

    /// Looks for work for a moment before sleeping: whoever was just answered often comes again at once, and waking a
    /// sleeper takes longer. Whether work has come.
    fn look_out(&self) -> bool {
        let end = Instant::now() + LOOK_OUT;
        while self.len() == 0 {
            if Instant::now() >= end {
                return false;
            }
            std::hint::spin_loop();
        }
        true
    }
}

/// Whether looking out for work is worth it. In vain it costs more than time: whoever was just answered may wait for this very
/// processor.
#[derive(Debug, Default)]
pub(crate) struct Luck {
    /// How often in a row nothing came.
    missed: u32,
    /// How often it was not tried since.
    passed: u32,
}

impl Luck {
    /// Misses in a row after which it is tried only now and then.
    const MISSED_MAX: u32 = 4;
    /// Turns that are passed over between two tries then.
    const PASSED_MAX: u32 = 15;

    fn is_tried(&mut self) -> bool {
        if self.missed < Self::MISSED_MAX {
            return true;
        }
        self.passed = (self.passed + 1) % (Self::PASSED_MAX + 1);
        self.passed == 0
    }

    fn note(&mut self, came: bool) {
        self.missed = if came { 0 } else { self.missed.saturating_add(1) };
    }
}

fn drain(state: &mut State) -> Vec<Job> {
    let mut taken = Vec::new();
    let mut bytes = 0;
    while let Some(job) = state.jobs.front() {
        if !taken.is_empty()
            && (bytes + job.bytes > BLOCK_BYTES_TARGET || taken.len() >= BLOCK_OPERATIONS_MAX.get())
        {
            break;
        }
        let Some(job) = state.jobs.pop_front() else { break };
        bytes += job.bytes;
        state.bytes -= job.bytes;
        state.patient -= usize::from(job.patient);
        taken.push(job);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_looks_out_only_now_and_then_when_nothing_ever_comes() {
        let mut luck = Luck::default();
        let mut try_for = |turns: u32, came: bool| {
            let tried = (0..turns).filter(|_| {
                let is_tried = luck.is_tried();
                if is_tried {
                    luck.note(came);
                }
                is_tried
            });
            tried.count()
        };
        // Four in a row, and then one in sixteen.
        assert_eq!(try_for(4 + 160, false), 4 + 10);
        // One that succeeds is enough to try again each time.
        assert_eq!(try_for(16, true), 1);
        assert_eq!(try_for(100, true), 100);
    }
}
