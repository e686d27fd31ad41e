//! Session windows: how many actions a session may ask for in a minute. The Store counts, so that all processes on one Store
//! share the count and a restart does not reset it.
//!
//! If the Store cannot count, the action passes, and a warning and a metric say so: this limit must not stop everybody.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Expect, FamilyName, Store, StoreError};
use effectd_contracts::{Clock, Digest, Timestamp};
use prometheus::IntCounter;
use serde::{Deserialize, Serialize};

use super::rates::Throttled;
use crate::limits::{SESSION_TRIES, SESSION_WINDOW};
use crate::stored::{delete, entries, put, read_json, swap_all};

pub struct Sessions {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    /// Most actions within a window.
    most: u32,
    /// Actions that passed uncounted.
    uncounted: IntCounter,
}

#[derive(Debug, Serialize, Deserialize)]
struct Window {
    start: Timestamp,
    count: u32,
}

/// Session ids longer than this enter the key as a digest.
const PLAIN_BYTES_MAX: usize = 256;
const PAGE: usize = 500;

fn family() -> Result<FamilyName, StoreError> {
    FamilyName::new("session-windows")
}

fn key(session: &str) -> String {
    if session.len() <= PLAIN_BYTES_MAX {
        format!("ratelimit:actions:{session}")
    } else {
        format!("ratelimit:actions:sha256:{}", Digest::of(session.as_bytes()).hex())
    }
}

fn left_of(window: &Window, now: Timestamp) -> Duration {
    // A window that begins in the future was written before the wall clock was set back: it has ended.
    if window.start > now {
        return Duration::ZERO;
    }
    let age: Duration = now.duration_since(window.start).try_into().unwrap_or(SESSION_WINDOW);
    SESSION_WINDOW.saturating_sub(age)
}

impl Sessions {
    pub fn new(store: &Arc<dyn Store>, clock: &Arc<dyn Clock>, most: u32, uncounted: &IntCounter) -> Self {
        Self { store: store.clone(), clock: clock.clone(), most, uncounted: uncounted.clone() }
    }

    pub async fn count(&self, session: &str) -> Result<(), Throttled> {
        self.count_all(session, 1).await
    }

    /// Counts several actions at once. They are admitted together, or not at all; more than a window allows, if nothing else was.
    pub async fn count_all(&self, session: &str, actions: u32) -> Result<(), Throttled> {
        match self.counted(session, actions).await {
            Ok(answer) => answer,
            Err(error) => {
                self.uncounted.inc();
                tracing::warn!(%error, "a session's actions cannot be counted; this one is admitted");
                Ok(())
            }
        }
    }

    async fn counted(&self, session: &str, actions: u32) -> Result<Result<(), Throttled>, StoreError> {
        let key = key(session);
        for _ in 1..SESSION_TRIES {
            match self.try_count(&key, actions).await {
                // Another task counted at the same time: try again.
                Err(StoreError::VersionMismatch { .. }) => {}
                answer => return answer,
            }
        }
        self.try_count(&key, actions).await
    }

    async fn try_count(&self, key: &str, actions: u32) -> Result<Result<(), Throttled>, StoreError> {
        let now = self.clock.now();
        let entry = self.store.entry(&family()?, key)?;
        let window =
            entry.as_ref().and_then(read_json::<Window>).filter(|window| !left_of(window, now).is_zero());
        let next = match window {
            Some(window) if window.count.saturating_add(actions) > self.most => {
                return Ok(Err(Throttled {
                    what: "session",
                    allowed: (self.most.into(), "a minute"),
                    after: left_of(&window, now),
                }));
            }
            Some(window) => Window { count: window.count.saturating_add(actions), ..window },
            None => Window { start: now, count: actions },
        };
        let expect = entry.map_or(Expect::Absent, |entry| Expect::Version(entry.version));
        let put = put(family()?, key, expect, &next);
        swap_all(&*self.store, vec![put]).await?;
        Ok(Ok(()))
    }

    /// Removes windows that have ended. Returns how many.
    pub async fn sweep(&self) -> Result<usize, StoreError> {
        let (now, mut gone) = (self.clock.now(), 0);
        for entry in entries(&*self.store, &family()?, PAGE) {
            let entry = entry?;
            let window = read_json::<Window>(&entry);
            if window.is_some_and(|window| !left_of(&window, now).is_zero()) {
                continue;
            }
            let delete = delete(family()?, entry.key, Expect::Version(entry.version));
            match swap_all(&*self.store, vec![delete]).await {
                Ok(_) => gone += 1,
                // A new window has just begun.
                Err(StoreError::VersionMismatch { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(gone)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use effectd_bus::memory;
    use effectd_contracts::ManualClock;

    fn place(clock: &Arc<ManualClock>) -> (Arc<dyn Store>, impl Fn(u32) -> Sessions) {
        let store: Arc<dyn Store> = Arc::new(memory::open(clock.clone()).unwrap());
        let shared: Arc<dyn Clock> = clock.clone();
        let sessions = {
            let store = store.clone();
            let uncounted = IntCounter::new("uncounted", "uncounted").unwrap();
            move |most| Sessions::new(&store, &shared, most, &uncounted)
        };
        (store, sessions)
    }

    fn clock() -> Arc<ManualClock> {
        Arc::new(ManualClock::at(Timestamp::from_second(1_000_000).unwrap()))
    }

    #[tokio::test]
    async fn instances_over_one_store_share_the_session_count() {
        let clock = clock();
        let (_store, sessions) = place(&clock);
        let (one, other) = (sessions(60), sessions(60));
        for n in 0..60 {
            let instance = if n % 2 == 0 { &one } else { &other };
            assert_eq!(instance.count("s").await, Ok(()), "{n}");
        }
        clock.advance(Duration::from_secs(15));
        for instance in [&one, &other] {
            let refused = instance.count("s").await.unwrap_err();
            assert_eq!((refused.what, refused.after), ("session", Duration::from_secs(45)));
        }
        assert_eq!(one.count("another").await, Ok(()));
        clock.advance(Duration::from_secs(45));
        assert_eq!(one.count("s").await, Ok(()));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn whoever_counts_at_the_same_time_is_counted_once_each() {
        let clock = clock();
        let (_store, sessions) = place(&clock);
        let all = (0..8).map(|_| {
            let one = sessions(10);
            tokio::spawn(async move {
                let (mut passed, mut uncounted) = (0, 0);
                for _ in 0..5 {
                    match one.counted("s", 1).await {
                        Ok(answer) => passed += u32::from(answer.is_ok()),
                        Err(_) => uncounted += 1,
                    }
                }
                (passed, uncounted)
            })
        });
        let (mut passed, mut uncounted) = (0, 0);
        for one in all.collect::<Vec<_>>() {
            let (counted, let_through) = one.await.unwrap();
            passed += counted;
            uncounted += let_through;
        }
        assert!(passed <= 10 && (passed == 10 || uncounted > 0), "{passed}, {uncounted}");
    }

    #[tokio::test]
    async fn a_store_that_cannot_count_lets_through() {
        let clock = clock();
        let (store, sessions) = place(&clock);
        let one = sessions(1);
        store.close().unwrap();
        assert_eq!(one.counted("s", 1).await, Err(StoreError::Closed));
        assert_eq!(one.uncounted.get(), 0);
        assert_eq!(one.count("s").await, Ok(()));
        assert_eq!(one.uncounted.get(), 1);
    }

    #[tokio::test]
    async fn windows_that_are_over_are_removed() {
        let clock = clock();
        let (store, sessions) = place(&clock);
        let one = sessions(5);
        for n in 0..1_200 {
            one.count(&format!("s{n}")).await.unwrap();
        }
        clock.advance(Duration::from_secs(30));
        one.count(&"long".repeat(500)).await.unwrap();
        assert_eq!(one.sweep().await, Ok(0));
        clock.advance(Duration::from_secs(31));
        assert_eq!(one.sweep().await, Ok(1_200));
        let left = store.entries(&family().unwrap(), "", None, 10).unwrap();
        assert_eq!(left.entries.len(), 1);
    }
}
