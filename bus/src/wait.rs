//! The answer to a durable operation, for callers with and without an executor.
//!
//! An operation is durable when its `Wait` is answered, not when the call returns. Dropping a `Wait` does not take the
//! operation back.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

use crate::engine::Finish;
use crate::error::StoreError;

enum Slot<T> {
    Pending(Waiter),
    Ready(Result<T, StoreError>),
    /// Certain, but still to be read; done by whoever waits, so that the writer can go on.
    Unread(Finish<T>),
    Taken,
}

enum Waiter {
    Nobody,
    Thread,
    Task(Waker),
}

struct Shared<T> {
    slot: Mutex<Slot<T>>,
    ready: Condvar,
}

/// An answer that is still to come. Await it, or block on [`Wait::wait`].
#[must_use = "an operation is durable only when its Wait is answered"]
pub struct Wait<T> {
    shared: Arc<Shared<T>>,
}

/// The other end of a [`Wait`]. Dropped without an answer, it answers `Unavailable`.
pub(crate) struct Promise<T> {
    shared: Option<Arc<Shared<T>>>,
}

pub(crate) fn promise<T>() -> (Promise<T>, Wait<T>) {
    let shared = Arc::new(Shared {
        slot: Mutex::new(Slot::Pending(Waiter::Nobody)),
        ready: Condvar::new(),
    });
    (
        Promise {
            shared: Some(shared.clone()),
        },
        Wait { shared },
    )
}

impl<T> Wait<T> {
    pub(crate) fn ready(answer: Result<T, StoreError>) -> Self {
        Wait {
            shared: Arc::new(Shared {
                slot: Mutex::new(Slot::Ready(answer)),
                ready: Condvar::new(),
            }),
        }
    }

    /// Blocks this thread until the answer is there. Not for async tasks: they await.
    pub fn wait(self) -> Result<T, StoreError> {
        let mut slot = self.shared.slot.lock();
        loop {
            match std::mem::replace(&mut *slot, Slot::Taken) {
                Slot::Ready(answer) => return answer,
                Slot::Unread(finish) => {
                    drop(slot);
                    return finish();
                }
                Slot::Pending(_) => *slot = Slot::Pending(Waiter::Thread),
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
                *slot = Slot::Pending(Waiter::Task(cx.waker().clone()));
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
        match before {
            Slot::Pending(Waiter::Thread) => {
                shared.ready.notify_all();
            }
            Slot::Pending(Waiter::Task(waker)) => waker.wake(),
            Slot::Pending(Waiter::Nobody) | Slot::Ready(_) | Slot::Unread(_) | Slot::Taken => {}
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        let reason = "the store stopped in the middle of it".into();
        self.put(Slot::Ready(Err(StoreError::Unavailable { reason })));
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
        assert!(
            Pin::new(&mut wait)
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        promise.answer(Ok(1));
        assert!(woken.0.load(std::sync::atomic::Ordering::SeqCst));
        assert_eq!(
            Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)),
            Poll::Ready(Ok(1))
        );
    }

    #[test]
    fn a_forgotten_promise_is_told_as_unknown() {
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
