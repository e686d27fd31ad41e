//! How much: what one subject may use within a window, in calls, in processor time and in money.
//!
//! An action reserves before it starts, and settles with what it really used when it has run. All its tries count against the
//! one reservation. What is refused on its way, answered from an earlier receipt, or lost with a worker gives its reservation
//! back. What was settled is kept in the Store, so that a restart does not refill anybody's budget; what was only reserved
//! is not, and is reserved anew by whoever takes the action up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Change, EntryChange, Expect, FamilyName, NewBody, Store, StoreError, Swap};
use effectd_contracts::{Clock, Digest, SubjectId, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::rates::Throttled;
use crate::limits::BUDGETS_MAX;

/// What one subject may use within a window. Nothing is limited unless somebody says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// See [`crate::limits::BUDGET_WINDOW`].
    pub window: Duration,
    pub calls_max: Option<u64>,
    /// Processor time that they may use together, in milliseconds.
    pub cpu_ms_max: Option<u64>,
    /// What they may cost together, by the prices that tools declare, in millionths of the operator's currency.
    pub cost_micros_max: Option<u64>,
}

/// What an action may use at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Most {
    pub cpu: Duration,
    /// The price of one run.
    pub price_micros: u64,
    pub tries: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            window: crate::limits::BUDGET_WINDOW,
            calls_max: None,
            cpu_ms_max: None,
            cost_micros_max: None,
        }
    }
}

/// Everybody's budget. Clones share them.
#[derive(Clone)]
pub struct Budgets(Arc<Inner>);

struct Inner {
    rules: Rules,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    all: Mutex<HashMap<SubjectId, Account>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Settled {
    start: Timestamp,
    calls: u64,
    cpu_ms: u64,
    #[serde(default)]
    cost_micros: u64,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    settled: Settled,
    reserved_calls: u64,
    reserved_cpu_ms: u64,
    reserved_cost_micros: u64,
}

/// What an action has reserved; given back when it is dropped unsettled.
#[derive(Debug)]
pub struct Reservation {
    budgets: Budgets,
    subject: SubjectId,
    cpu_ms: u64,
    cost_micros: u64,
    price_micros: u64,
    /// Processor time in milliseconds, and money.
    used: Option<(u64, u64)>,
}

impl std::fmt::Debug for Budgets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Budgets({})", self.lock().len())
    }
}

fn family() -> Result<FamilyName, StoreError> {
    FamilyName::new("budgets")
}

/// Subjects may be longer than a key.
fn key(subject: &SubjectId) -> String {
    format!("sha256:{}", Digest::of(subject.as_str().as_bytes()).hex())
}

impl Budgets {
    pub fn new(rules: Rules, store: &Arc<dyn Store>, clock: &Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner {
            rules,
            store: store.clone(),
            clock: clock.clone(),
            all: Mutex::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SubjectId, Account>> {
        self.0.all.lock()
    }

    /// Reserves one call that uses at most this; `None` if nothing is limited.
    pub fn reserve(&self, subject: &SubjectId, most: Most) -> Result<Option<Reservation>, Throttled> {
        let rules = &self.0.rules;
        if rules.calls_max.is_none() && rules.cpu_ms_max.is_none() && rules.cost_micros_max.is_none() {
            return Ok(None);
        }
        let now = self.0.clock.now();
        let mut all = self.lock();
        if all.len() >= BUDGETS_MAX && !all.contains_key(subject) {
            self.forget(&mut all, now);
        }
        let account = all
            .entry(subject.clone())
            .or_insert_with(|| self.found(subject, now));
        if self.left(&account.settled, now).is_zero() {
            account.settled = fresh(now);
        }
        let after = self.left(&account.settled, now);
        let spent = |unit, most: u64| Throttled {
            what: "budget",
            allowed: (most, unit),
            after,
        };
        if let Some(most) = rules.calls_max
            && account.settled.calls + account.reserved_calls >= most
        {
            return Err(spent("calls in its window", most));
        }
        let mut cpu_ms = 0;
        if let Some(limit) = rules.cpu_ms_max {
            let used = account.settled.cpu_ms + account.reserved_cpu_ms;
            if used >= limit {
                return Err(spent("ms of processor time in its window", limit));
            }
            // The last one may reserve what is left: what it may take at most is rarely what it takes.
            cpu_ms = u64::try_from(most.cpu.as_millis())
                .unwrap_or(u64::MAX)
                .min(limit - used);
        }
        let mut cost_micros = 0;
        if let (Some(limit), true) = (rules.cost_micros_max, most.price_micros > 0) {
            let left = limit.saturating_sub(account.settled.cost_micros + account.reserved_cost_micros);
            // Money is spent for certain: one run must fit. That it is tried again is as rare as above.
            if left < most.price_micros {
                return Err(spent("millionths in its window", limit));
            }
            cost_micros = most.price_micros.saturating_mul(most.tries.into()).min(left);
        }
        account.reserved_calls += 1;
        account.reserved_cpu_ms += cpu_ms;
        account.reserved_cost_micros += cost_micros;
        Ok(Some(Reservation {
            budgets: self.clone(),
            subject: subject.clone(),
            cpu_ms,
            cost_micros,
            price_micros: most.price_micros,
            used: None,
        }))
    }

    /// What the Store knows of a subject. A Store that cannot tell does not stop anybody.
    fn found(&self, subject: &SubjectId, now: Timestamp) -> Account {
        let entry = family().and_then(|family| self.0.store.entry(&family, &key(subject)));
        let entry = entry.unwrap_or_else(|error| {
            tracing::warn!(%error, "a budget cannot be read; it begins anew");
            None
        });
        let settled = entry.and_then(|entry| serde_json::from_slice(entry.value.bytes()?).ok());
        Account {
            settled: settled.unwrap_or_else(|| fresh(now)),
            reserved_calls: 0,
            reserved_cpu_ms: 0,
            reserved_cost_micros: 0,
        }
    }

    fn left(&self, settled: &Settled, now: Timestamp) -> Duration {
        // A window that begins in the future was written under another wall clock: it is over.
        if settled.start > now {
            return Duration::ZERO;
        }
        let window = self.0.rules.window;
        let age: Duration = now.duration_since(settled.start).try_into().unwrap_or(window);
        window.saturating_sub(age)
    }

    /// Forgets accounts of windows that are over and in which nothing is reserved.
    fn forget(&self, all: &mut HashMap<SubjectId, Account>, now: Timestamp) {
        all.retain(|_, account| account.reserved_calls > 0 || !self.left(&account.settled, now).is_zero());
    }

    /// Forgets what is over, also in the Store.
    pub async fn sweep(&self) -> Result<(), StoreError> {
        let now = self.0.clock.now();
        self.forget(&mut self.lock(), now);
        let mut after = None::<String>;
        loop {
            let page = self.0.store.entries(&family()?, "", after.as_deref(), 500)?;
            for entry in page.entries {
                let settled = entry.value.bytes().map(serde_json::from_slice::<Settled>);
                if matches!(&settled, Some(Ok(settled)) if !self.left(settled, now).is_zero()) {
                    continue;
                }
                match self
                    .write(entry.key, Expect::Version(entry.version), EntryChange::Delete)?
                    .await
                {
                    // It has just begun anew.
                    Ok(_) | Err(StoreError::VersionMismatch { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            match page.after {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    fn write(
        &self,
        key: String,
        expect: Expect,
        change: EntryChange,
    ) -> Result<effectd_bus::Wait<effectd_bus::Changed>, StoreError> {
        let swap = Swap {
            family: family()?,
            key,
            expect,
            change,
        };
        Ok(self.0.store.change(Change {
            swaps: vec![swap],
            ..Change::default()
        }))
    }
}

fn fresh(start: Timestamp) -> Settled {
    Settled {
        start,
        calls: 0,
        cpu_ms: 0,
        cost_micros: 0,
    }
}

impl Reservation {
    /// The action has run so often, and all its tries together used this much.
    pub fn settle(&mut self, cpu: Duration, tries: u32) {
        let cpu_ms = u64::try_from(cpu.as_millis()).unwrap_or(u64::MAX);
        let cost_micros = self.price_micros.saturating_mul(tries.into());
        self.used = Some((cpu_ms, cost_micros));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut all = self.budgets.lock();
        let Some(account) = all.get_mut(&self.subject) else {
            return;
        };
        account.reserved_calls = account.reserved_calls.saturating_sub(1);
        account.reserved_cpu_ms = account.reserved_cpu_ms.saturating_sub(self.cpu_ms);
        account.reserved_cost_micros = account.reserved_cost_micros.saturating_sub(self.cost_micros);
        if let Some((cpu_ms, cost_micros)) = self.used {
            let settled = &mut account.settled;
            settled.calls += 1;
            settled.cpu_ms = settled.cpu_ms.saturating_add(cpu_ms);
            settled.cost_micros = settled.cost_micros.saturating_add(cost_micros);
            // Plain data with text keys, for which serde_json has no failure.
            let value = NewBody::Clear(serde_json::to_vec(&account.settled).unwrap_or_default());
            // Rides in the next block; with the lock held, so that the Store sees the counts in their order.
            drop(
                self.budgets
                    .write(key(&self.subject), Expect::Any, EntryChange::Put(value)),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use effectd_bus::memory;
    use effectd_contracts::ManualClock;

    const SECOND: Duration = Duration::from_secs(1);
    const LITTLE: Most = Most {
        cpu: SECOND,
        price_micros: 0,
        tries: 1,
    };

    struct Place {
        clock: Arc<ManualClock>,
        store: Arc<dyn Store>,
    }

    impl Place {
        fn new() -> Self {
            let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_000_000).unwrap()));
            let store: Arc<dyn Store> = Arc::new(memory::open(clock.clone()).unwrap());
            Self { clock, store }
        }

        /// Waits until what was written before is there.
        fn flush(&self) {
            self.store
                .change(Change {
                    swaps: vec![Swap {
                        family: FamilyName::new("flush").unwrap(),
                        key: "k".to_owned(),
                        expect: Expect::Any,
                        change: EntryChange::Put(NewBody::Clear(Vec::new())),
                    }],
                    ..Change::default()
                })
                .wait()
                .unwrap();
        }

        fn budgets(&self, calls_max: Option<u64>, cpu_ms_max: Option<u64>) -> Budgets {
            let rules = Rules {
                window: Duration::from_secs(3_600),
                calls_max,
                cpu_ms_max,
                cost_micros_max: None,
            };
            self.by(rules)
        }

        fn by(&self, rules: Rules) -> Budgets {
            let clock: Arc<dyn Clock> = self.clock.clone();
            Budgets::new(rules, &self.store, &clock)
        }
    }

    fn planner() -> SubjectId {
        "agent://planner".parse().unwrap()
    }

    fn run(budgets: &Budgets, cpu: Duration) -> Result<(), Throttled> {
        let mut reserved = budgets.reserve(&planner(), LITTLE)?.unwrap();
        reserved.settle(cpu, 1);
        Ok(())
    }

    #[test]
    fn money_is_reserved_for_all_tries_and_settled_for_those_that_were_made() {
        let place = Place::new();
        let budgets = place.by(Rules {
            cost_micros_max: Some(1_000),
            ..Rules::default()
        });
        let dear = Most {
            price_micros: 300,
            tries: 3,
            ..LITTLE
        };
        let mut first = budgets.reserve(&planner(), dear).unwrap().unwrap();
        // 900 are reserved, and what is left is not enough for one run.
        let spent = budgets.reserve(&planner(), dear).unwrap_err();
        assert_eq!((spent.what, spent.allowed.0), ("budget", 1_000));
        assert!(
            budgets.reserve(&planner(), LITTLE).is_ok(),
            "what is free goes on"
        );
        first.settle(SECOND, 2);
        drop(first);
        let second = budgets.reserve(&planner(), dear).unwrap().unwrap();
        assert!(budgets.reserve(&planner(), dear).is_err());
        // It did not run after all.
        drop(second);
        place.flush();
        let next = place.by(Rules {
            cost_micros_max: Some(1_000),
            ..Rules::default()
        });
        let mut third = next.reserve(&planner(), dear).unwrap().unwrap();
        third.settle(SECOND, 1);
        drop(third);
        assert!(next.reserve(&planner(), dear).is_err(), "900 of 1,000 were spent");
        place.clock.advance(crate::limits::BUDGET_WINDOW);
        assert!(next.reserve(&planner(), dear).is_ok());
    }

    #[test]
    fn what_is_reserved_counts_until_it_is_settled_or_given_back() {
        let place = Place::new();
        let budgets = place.budgets(Some(2), None);
        let first = budgets.reserve(&planner(), LITTLE).unwrap();
        let second = budgets.reserve(&planner(), LITTLE).unwrap();
        let spent = budgets.reserve(&planner(), LITTLE).unwrap_err();
        assert_eq!((spent.what, spent.after), ("budget", Duration::from_secs(3_600)));
        assert!(budgets.reserve(&"agent://other".parse().unwrap(), LITTLE).is_ok());
        // It did not run after all.
        drop(second);
        assert_eq!(run(&budgets, SECOND), Ok(()));
        drop(first);
        assert_eq!(run(&budgets, SECOND), Ok(()));
        assert!(run(&budgets, SECOND).is_err());
        place.clock.advance(Duration::from_secs(3_600));
        assert_eq!(run(&budgets, SECOND), Ok(()));
    }

    #[test]
    fn processor_time_is_settled_with_what_was_used() {
        let place = Place::new();
        let budgets = place.budgets(None, Some(1_500));
        let first = budgets.reserve(&planner(), LITTLE).unwrap();
        let second = budgets.reserve(&planner(), LITTLE).unwrap();
        assert!(
            budgets.reserve(&planner(), LITTLE).is_err(),
            "all of it is reserved"
        );
        drop((first, second));
        for _ in 0..10 {
            assert_eq!(run(&budgets, Duration::from_millis(150)), Ok(()));
        }
        assert!(run(&budgets, SECOND).is_err());
    }

    #[test]
    fn what_was_settled_outlives_the_process_and_what_is_over_is_forgotten() {
        let place = Place::new();
        let budgets = place.budgets(Some(2), None);
        assert_eq!(run(&budgets, SECOND), Ok(()));
        let reserved = budgets.reserve(&planner(), LITTLE).unwrap();
        place.flush();
        let next = place.budgets(Some(2), None);
        assert_eq!(run(&next, SECOND), Ok(()));
        assert!(run(&next, SECOND).is_err());
        drop(reserved);
        place.flush();
        place.clock.advance(Duration::from_secs(3_601));
        let threads = tokio::runtime::Builder::new_current_thread().build().unwrap();
        threads.block_on(next.sweep()).unwrap();
        let left = place.store.entries(&family().unwrap(), "", None, 10).unwrap();
        assert!(left.entries.is_empty() && next.lock().is_empty());
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let budgets = Place::new().budgets(None, None);
        assert!(budgets.reserve(&planner(), LITTLE).unwrap().is_none());
        assert!(budgets.lock().is_empty());
    }
}
