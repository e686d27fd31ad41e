//! Waiting for news without polling.
//!
//! Every topic has one signal, a number that grows whenever something a consumer may wait for has happened: an event
//! became durable, or a delivery was given back. A [`Watch`] remembers the number it saw last, so that news between two
//! calls is never missed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::StoreError;

#[derive(Default)]
struct State {
    version: u64,
    closed: bool,
    wakers: Vec<Waker>,
}

/// The number that grows, and those who wait for it.
#[derive(Default)]
pub(crate) struct Signal {
    state: Mutex<State>,
    grown: Condvar,
}

impl Signal {
    pub(crate) fn raise(&self) {
        self.change(|state| state.version += 1);
    }

    pub(crate) fn close(&self) {
        self.change(|state| state.closed = true);
    }

    /// Waits for a while, or until it is closed.
    pub(crate) fn pause(&self, time: Duration) {
        let end = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.closed {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.grown.wait_for(&mut state, left);
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let wakers = {
            let mut state = self.state.lock();
            change(&mut state);
            std::mem::take(&mut state.wakers)
        };
        self.grown.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Tells when there is news on one topic. Taken before a read, it misses nothing that comes after the read.
pub struct Watch {
    signal: Arc<Signal>,
    seen: u64,
}

impl Watch {
    pub(crate) fn new(signal: Arc<Signal>) -> Self {
        let seen = signal.state.lock().version;
        Watch { signal, seen }
    }

    /// Resolves when there was news since the last call (or since the watch was taken); `Closed` ends the waiting.
    pub fn changed(&mut self) -> Changed<'_> {
        Changed { watch: self }
    }

    /// Blocks until there is news, at most for `timeout`; says whether there was.
    pub fn wait_changed(&mut self, timeout: Duration) -> Result<bool, StoreError> {
        let end = Instant::now() + timeout;
        let mut state = self.signal.state.lock();
        loop {
            if state.version != self.seen {
                self.seen = state.version;
                return Ok(true);
            }
            if state.closed {
                return Err(StoreError::Closed);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.signal.grown.wait_for(&mut state, left);
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch({})", self.seen)
    }
}

/// The future of [`Watch::changed`].
#[derive(Debug)]
pub struct Changed<'a> {
    watch: &'a mut Watch,
}

impl Future for Changed<'_> {
    type Output = Result<(), StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let watch = &mut *self.watch;
        let mut state = watch.signal.state.lock();
        if state.version != watch.seen {
            watch.seen = state.version;
            return Poll::Ready(Ok(()));
        }
        if state.closed {
            return Poll::Ready(Err(StoreError::Closed));
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn news_between_two_calls_is_not_missed() {
        let signal = Arc::new(Signal::default());
        let mut watch = Watch::new(signal.clone());
        assert_eq!(watch.wait_changed(Duration::ZERO), Ok(false));
        signal.raise();
        signal.raise();
        assert_eq!(watch.wait_changed(Duration::ZERO), Ok(true));
        assert_eq!(watch.wait_changed(Duration::ZERO), Ok(false));
    }

    #[test]
    fn a_closed_store_ends_all_waiting() {
        let signal = Arc::new(Signal::default());
        let mut watch = Watch::new(signal.clone());
        let waiter = std::thread::spawn(move || watch.wait_changed(Duration::from_secs(60)));
        signal.close();
        assert_eq!(waiter.join().unwrap(), Err(StoreError::Closed));
    }
}
