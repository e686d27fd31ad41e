//! The bounded queue of the writer.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::commands::Batch;
use crate::error::StoreError;
use crate::limits::{
    BLOCK_BYTES_TARGET, BLOCK_OPERATIONS_MAX, LINK_DELAY, QUEUE_BYTES_MAX, QUEUE_OPERATIONS_MAX,
};
use crate::wait::{Finish, Promise};

/// Answers an operation when its block is durable, or has failed.
pub(super) type Reply = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// An operation in the queue.
pub(super) struct Job {
    pub(super) bytes: usize,
    pub(super) since: Instant,
    /// Starts no block of its own for [`LINK_DELAY`].
    pub(super) can_wait: bool,
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
        if let Err(error) = &decided {
            batch.tainted |= batch.block.records() != before;
            if batch.damage.is_none() && error.is_lasting_damage() {
                batch.damage = Some(error.clone());
            }
        }
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
    /// Jobs that start a block at once.
    urgent: usize,
    closed: bool,
}

impl Waiting {
    fn is_due(&self) -> bool {
        self.urgent > 0 || self.jobs.len() >= BLOCK_OPERATIONS_MAX
    }
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
        let was_due = waiting.is_due();
        waiting.bytes = bytes;
        waiting.urgent += usize::from(!job.can_wait);
        waiting.jobs.push_back(job);
        // The writer sleeps until a block is due; from the first job on, it knows the latest time.
        let wakes = waiting.jobs.len() == 1 || !was_due && waiting.is_due();
        drop(waiting);
        if wakes {
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
        while !waiting.is_due() {
            match waiting.jobs.front().map(|first| first.since + LINK_DELAY) {
                None if waiting.closed => return None,
                None => self.filled.wait(&mut waiting),
                Some(_) if waiting.closed => break,
                Some(latest) if self.filled.wait_until(&mut waiting, latest).timed_out() => break,
                Some(_) => {}
            }
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
        waiting.urgent -= usize::from(!job.can_wait);
        taken.push(job);
    }
    taken
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;
    use crate::wait::promise;

    const LONG: Duration = Duration::from_secs(60);

    fn job(can_wait: bool, since: Instant) -> Job {
        let (promise, _) = promise::<()>();
        let decide = |_: &mut Batch<'_>| -> Result<Finish<()>, StoreError> { Err(StoreError::Closed) };
        Job { bytes: 1, since, can_wait, work: Box::new(Operation { promise, decide }) }
    }

    /// A link that must not start a block of its own while a test runs.
    fn link() -> Job {
        job(true, Instant::now() + 10 * LONG)
    }

    /// A thread that takes one block and reports how many jobs it has. It has begun to wait when this returns.
    fn taker(queue: &Arc<Queue>) -> Receiver<Option<usize>> {
        let (report, taken) = channel();
        let queue_of_taker = queue.clone();
        std::thread::spawn(move || {
            let jobs = queue_of_taker.take();
            report.send(jobs.map(|jobs| jobs.len()))
        });
        while !queue.filled.notify_one() {
            std::thread::yield_now();
        }
        taken
    }

    #[test]
    fn a_link_alone_waits_for_its_delay() {
        let queue = Arc::new(Queue::default());
        let taken = taker(&queue);
        let since = Instant::now();
        queue.push(job(true, since)).unwrap();
        assert_eq!(taken.recv_timeout(LONG), Ok(Some(1)));
        assert!(since.elapsed() >= LINK_DELAY);
        // The delay of the oldest link counts, and the later ones go with it.
        queue.push(job(true, since)).unwrap();
        queue.push(link()).unwrap();
        assert_eq!(queue.take().map(|jobs| jobs.len()), Some(2));
    }

    #[test]
    fn an_urgent_job_takes_the_waiting_links_along() {
        let queue = Arc::new(Queue::default());
        let taken = taker(&queue);
        queue.push(link()).unwrap();
        queue.push(link()).unwrap();
        queue.push(job(false, Instant::now())).unwrap();
        assert_eq!(taken.recv_timeout(LONG), Ok(Some(3)));
        // The links that come after it wait again.
        queue.push(link()).unwrap();
        assert!(!queue.waiting.lock().is_due());
    }

    #[test]
    fn a_full_block_of_links_is_taken_at_once() {
        let queue = Arc::new(Queue::default());
        let taken = taker(&queue);
        for _ in 1..BLOCK_OPERATIONS_MAX {
            queue.push(link()).unwrap();
        }
        assert_eq!(queue.len(), BLOCK_OPERATIONS_MAX - 1, "one less waits");
        queue.push(link()).unwrap();
        assert_eq!(taken.recv_timeout(LONG), Ok(Some(BLOCK_OPERATIONS_MAX)));
    }

    #[test]
    fn closing_takes_the_waiting_links_and_ends() {
        let queue = Arc::new(Queue::default());
        let taken = taker(&queue);
        queue.push(link()).unwrap();
        queue.close();
        assert_eq!(taken.recv_timeout(LONG), Ok(Some(1)));
        assert!(queue.take().is_none());
        assert_eq!(queue.push(link()), Err(StoreError::Closed));
    }
}
