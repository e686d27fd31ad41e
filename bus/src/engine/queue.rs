//! The bounded queue of the writer.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::commands::Batch;
use crate::error::StoreError;
use crate::limits::{BLOCK_BYTES_TARGET, BLOCK_OPERATIONS_MAX, QUEUE_BYTES_MAX, QUEUE_OPERATIONS_MAX};
use crate::wait::{Finish, Promise};

/// Answers an operation when its block is durable, or has failed.
pub(super) type Reply = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// An operation in the queue.
pub(super) struct Job {
    pub(super) bytes: usize,
    pub(super) since: Instant,
    pub(super) work: Box<dyn Work>,
}

pub(super) trait Work: Send {
    /// Decides the operation.
    fn run(self: Box<Self>, batch: &mut Batch<'_>) -> Reply;
    /// Answers the operation without deciding it.
    fn refuse(self: Box<Self>, error: StoreError);
}

/// An operation with an answer of type `T`.
pub(super) struct Operation<T, D> {
    pub(super) promise: Promise<T>,
    pub(super) decide: D,
}

impl<T, D> Work for Operation<T, D>
where
    T: Send + 'static,
    D: FnOnce(&mut Batch<'_>) -> Result<Finish<T>, StoreError> + Send,
{
    fn run(self: Box<Self>, batch: &mut Batch<'_>) -> Reply {
        let Operation { promise, decide } = *self;
        let before = batch.block.records();
        let decided = decide(batch);
        batch.tainted |= decided.is_err() && batch.block.records() != before;
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
struct Waiting {
    jobs: VecDeque<Job>,
    bytes: usize,
    closed: bool,
}

#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    filled: Condvar,
}

impl Queue {
    pub(super) fn push(&self, job: Job) -> Result<(), StoreError> {
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return Err(StoreError::Closed);
        }
        let bytes = waiting.bytes.saturating_add(job.bytes);
        if waiting.jobs.len() >= QUEUE_OPERATIONS_MAX || bytes > QUEUE_BYTES_MAX {
            return Err(StoreError::Overloaded { what: "the writer's queue is full" });
        }
        waiting.bytes = bytes;
        waiting.jobs.push_back(job);
        // The writer sleeps only while the queue is empty.
        let was_empty = waiting.jobs.len() == 1;
        drop(waiting);
        if was_empty {
            self.filled.notify_one();
        }
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.lock().jobs.len()
    }

    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.filled.notify_all();
    }

    /// Waits for operations, and takes those of one block. `None` when the queue is closed and empty.
    pub(super) fn take(&self) -> Option<Vec<Job>> {
        let mut waiting = self.waiting.lock();
        while waiting.jobs.is_empty() {
            if waiting.closed {
                return None;
            }
            self.filled.wait(&mut waiting);
        }
        Some(drain(&mut waiting))
    }
}

fn drain(waiting: &mut Waiting) -> Vec<Job> {
    let mut taken = Vec::new();
    let mut bytes = 0;
    while let Some(job) = waiting.jobs.front() {
        if !taken.is_empty()
            && (bytes + job.bytes > BLOCK_BYTES_TARGET || taken.len() >= BLOCK_OPERATIONS_MAX)
        {
            break;
        }
        let Some(job) = waiting.jobs.pop_front() else {
            break;
        };
        bytes += job.bytes;
        waiting.bytes -= job.bytes;
        taken.push(job);
    }
    taken
}
