//! The bounded queue in front of the writer.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::desk::Desk;
use crate::error::StoreError;
use crate::limits::{BLOCK_BYTES_TARGET, BLOCK_OPERATIONS_MAX, QUEUE_BYTES_MAX, QUEUE_OPERATIONS_MAX};
use crate::wait::Promise;

/// Tells the caller how it went, once that is certain.
pub(crate) type Reply = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// One operation: decided by the writer at its desk, answered when its block is durable.
pub(crate) struct Job {
    pub(crate) bytes: usize,
    pub(crate) since: Instant,
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
    closed: bool,
}

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
}

impl Queue {
    pub(crate) fn push(&self, job: Job) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(StoreError::Closed);
        }
        if state.jobs.len() >= QUEUE_OPERATIONS_MAX || state.bytes.saturating_add(job.bytes) > QUEUE_BYTES_MAX
        {
            return Err(StoreError::Overloaded {
                what: "the writer's queue is full",
            });
        }
        state.bytes += job.bytes;
        state.jobs.push_back(job);
        // The writer sleeps only while the queue is empty.
        let was_empty = state.jobs.len() == 1;
        drop(state);
        if was_empty {
            self.filled.notify_one();
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().jobs.len()
    }

    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_all();
    }

    /// Waits for work, and takes one block's worth of it. `None` when the queue is closed and empty.
    pub(crate) fn take(&self) -> Option<Vec<Job>> {
        let mut state = self.state.lock();
        while state.jobs.is_empty() {
            if state.closed {
                return None;
            }
            self.filled.wait(&mut state);
        }
        Some(drain(&mut state))
    }
}

fn drain(state: &mut State) -> Vec<Job> {
    let mut taken = Vec::new();
    let mut bytes = 0;
    while let Some(job) = state.jobs.front() {
        if !taken.is_empty()
            && (bytes + job.bytes > BLOCK_BYTES_TARGET || taken.len() >= BLOCK_OPERATIONS_MAX)
        {
            break;
        }
        let Some(job) = state.jobs.pop_front() else { break };
        bytes += job.bytes;
        state.bytes -= job.bytes;
        taken.push(job);
    }
    taken
}
