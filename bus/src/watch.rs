//! Waiting for changes of a topic or a group without polling.
//!
//! Every watched topic and group has a signal: a counter that grows when an event becomes durable or a delivery is
//! returned. A [`Watch`] remembers the count that it saw last, so it misses no change between two calls.
//!
//! tokio's `watch` does not fit: it has no blocking wait with a timeout, which [`Watch::wait_changed`] needs.
#![expect(clippy::disallowed_methods, reason = "a thread waits; no rule depends on it")]

use std::future::poll_fn;
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

/// The counter, and the threads and tasks that wait for it.
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

    /// Sleeps for `time`, or until the signal is closed.
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

/// Reports changes of one topic or group. A watch that is created before a read misses no change after the read.
pub struct Watch {
    signal: Arc<Signal>,
    seen: u64,
}

impl Watch {
    pub(crate) fn new(signal: Arc<Signal>) -> Self {
        let seen = signal.state.lock().version;
        Watch { signal, seen }
    }

    /// Resolves when something changed since the last call, or since the watch was created; `Closed` when the store closes.
    pub async fn changed(&mut self) -> Result<(), StoreError> {
        poll_fn(|cx| self.poll_changed(cx)).await
    }

    fn poll_changed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StoreError>> {
        let mut state = self.signal.state.lock();
        if state.version != self.seen {
            self.seen = state.version;
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

    /// Blocks until something changes, for at most `timeout`; returns whether it did.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_change_between_two_calls_is_not_missed() {
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
