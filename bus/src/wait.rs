//! The pending answer of a durable operation, for async and for blocking callers.
//!
//! An operation is durable when its `Wait` resolves, not when the call returns. Dropping a `Wait` does not cancel the
//! operation.
//!
//! tokio's `oneshot` does not fit: its `blocking_recv` panics inside an async context, which [`Wait::wait`] cannot
//! rule out.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

use crate::error::StoreError;

/// Reads the answer of a durable operation, in the thread that waits for it.
pub(crate) type Finish<T> = Box<dyn FnOnce() -> Result<T, StoreError> + Send>;

enum Slot<T> {
    /// The task that waits, if one does.
    Pending(Option<Waker>),
    Ready(Result<T, StoreError>),
    /// Durable; the waiting thread reads the answer, so that the writer need not.
    Unread(Finish<T>),
    Taken,
}

struct Shared<T> {
    slot: Mutex<Slot<T>>,
    ready: Condvar,
}

/// A pending answer. Await it, or block on [`Wait::wait`].
#[must_use = "an operation is durable only when its Wait resolves"]
pub struct Wait<T> {
    shared: Arc<Shared<T>>,
}

/// The writer's end of a [`Wait`]. Dropped without an answer, it answers `Unavailable`.
pub(crate) struct Promise<T> {
    shared: Option<Arc<Shared<T>>>,
}

pub(crate) fn promise<T>() -> (Promise<T>, Wait<T>) {
    let shared = Arc::new(Shared { slot: Mutex::new(Slot::Pending(None)), ready: Condvar::new() });
    (Promise { shared: Some(shared.clone()) }, Wait { shared })
}

impl<T> Wait<T> {
    pub(crate) fn ready(answer: Result<T, StoreError>) -> Self {
        Wait { shared: Arc::new(Shared { slot: Mutex::new(Slot::Ready(answer)), ready: Condvar::new() }) }
    }

    /// Blocks this thread until the answer arrives. Async tasks await instead.
    pub fn wait(self) -> Result<T, StoreError> {
        let mut slot = self.shared.slot.lock();
        loop {
            match std::mem::replace(&mut *slot, Slot::Taken) {
                Slot::Ready(answer) => return answer,
                Slot::Unread(finish) => {
                    drop(slot);
                    return finish();
                }
                Slot::Pending(waker) => *slot = Slot::Pending(waker),
                Slot::Taken => return Err(StoreError::Closed),
            }
            self.shared.ready.wait(&mut slot);
        }
    }
}

impl<T> std::fmt::Debug for Wait<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wait")
    }
}

impl<T> Future for Wait<T> {
    type Output = Result<T, StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.shared.slot.lock();
        match std::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Ready(answer) => Poll::Ready(answer),
            Slot::Unread(finish) => {
                drop(slot);
                Poll::Ready(finish())
            }
            Slot::Pending(_) => {
                *slot = Slot::Pending(Some(cx.waker().clone()));
                Poll::Pending
            }
            Slot::Taken => Poll::Ready(Err(StoreError::Closed)),
        }
    }
}

impl<T> Promise<T> {
    pub(crate) fn answer(mut self, answer: Result<T, StoreError>) {
        self.put(Slot::Ready(answer));
    }

    pub(crate) fn finish(mut self, finish: Finish<T>) {
        self.put(Slot::Unread(finish));
    }

    fn put(&mut self, answer: Slot<T>) {
        let Some(shared) = self.shared.take() else { return };
        let before = std::mem::replace(&mut *shared.slot.lock(), answer);
        shared.ready.notify_all();
        if let Slot::Pending(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if self.shared.is_some() {
            let stopped = StoreError::unavailable("the store stopped during the operation");
            self.put(Slot::Ready(Err(stopped)));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_answer_reaches_a_blocked_thread() {
        let (promise, wait) = promise::<u32>();
        let waiter = std::thread::spawn(move || wait.wait());
        promise.answer(Ok(7));
        assert_eq!(waiter.join().unwrap(), Ok(7));
    }

    #[test]
    fn an_answer_wakes_a_task() {
        let (promise, mut wait) = promise::<u32>();
        let woken = Arc::new(Flag::default());
        let waker = Waker::from(woken.clone());
        assert!(Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending());
        promise.answer(Ok(1));
        assert!(woken.0.load(std::sync::atomic::Ordering::SeqCst));
        assert_eq!(Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(1)));
    }

    #[test]
    fn a_dropped_promise_answers_unavailable() {
        let (promise, wait) = promise::<u32>();
        drop(promise);
        assert!(matches!(wait.wait(), Err(StoreError::Unavailable { .. })));
    }

    #[derive(Default)]
    struct Flag(std::sync::atomic::AtomicBool);

    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
}
