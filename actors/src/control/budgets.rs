//! Budgets: what one subject may use within a window, in calls, processor time and money.
//!
//! An action reserves budget before it starts, and is charged what it really used when it has run. All its attempts share one
//! reservation. An action that is refused, answered from an earlier receipt, or lost with a worker gives its reservation back.
//! Spending is stored, so that a restart does not refill a budget; a redelivered action reserves again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Expect, FamilyName, Store, StoreError};
use effectd_contracts::{Clock, Digest, SubjectId, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::rates::Throttled;
use crate::limits::BUDGETS_MAX;
use crate::stored::{delete, entries, put, read_json, swap_all};

/// What one subject may use within a window. Nothing is limited by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// See [`crate::limits::BUDGET_WINDOW`].
    pub window: Duration,
    pub calls_max: Option<u64>,
    /// Processor time in milliseconds.
    pub cpu_ms_max: Option<u64>,
    /// Money by the prices that tools declare, in millionths of the operator's currency.
    pub cost_micros_max: Option<u64>,
}

/// What an action may use at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Most {
    pub cpu: Duration,
    /// The price of one attempt.
    pub price_micros: u64,
    pub tries: u32,
}

/// What a subject may still use; what is not limited is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Left {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
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

/// The budget of a subject that has used some of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub subject: SubjectId,
    pub left: Left,
    /// When its window ends, and the budget is whole again.
    pub until: Timestamp,
}

/// The budgets of all subjects. Clones share them.
#[derive(Clone)]
pub struct Budgets(Arc<Inner>);

struct Inner {
    rules: Rules,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    all: Mutex<HashMap<SubjectId, Account>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Spent {
    start: Timestamp,
    calls: u64,
    cpu_ms: u64,
    #[serde(default)]
    cost_micros: u64,
}

/// [`Spent`], as it is stored. The key is a digest, so the subject is stored as well.
#[derive(Serialize, Deserialize)]
struct Stored {
    subject: Option<SubjectId>,
    #[serde(flatten)]
    spent: Spent,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    spent: Spent,
    reserved_calls: u64,
    reserved_cpu_ms: u64,
    reserved_cost_micros: u64,
}

/// What an action has reserved. Dropped without a charge, all of it is given back.
#[derive(Debug)]
pub struct Reservation {
    budgets: Budgets,
    subject: SubjectId,
    cpu_ms: u64,
    cost_micros: u64,
    price_micros: u64,
    /// The charge: processor time in milliseconds, and money in millionths.
    used: Option<(u64, u64)>,
}

impl std::fmt::Debug for Budgets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Budgets({})", self.lock().len())
    }
}

const PAGE: usize = 500;

fn family() -> Result<FamilyName, StoreError> {
    FamilyName::new("budgets")
}

/// Keyed by digest, since a subject may be longer than a key of the Store.
fn key(subject: &SubjectId) -> String {
    format!("sha256:{}", Digest::of(subject.as_str().as_bytes()).hex())
}

impl Rules {
    pub fn is_in_force(&self) -> bool {
        self.calls_max.is_some() || self.cpu_ms_max.is_some() || self.cost_micros_max.is_some()
    }

    fn left_of(&self, account: &Account) -> Left {
        let left = |most: Option<u64>, used: u64| most.map(|most| most.saturating_sub(used));
        let Account { spent, reserved_calls, reserved_cpu_ms, reserved_cost_micros } = account;
        Left {
            calls: left(self.calls_max, spent.calls + reserved_calls),
            cpu_ms: left(self.cpu_ms_max, spent.cpu_ms + reserved_cpu_ms),
            cost_micros: left(self.cost_micros_max, spent.cost_micros + reserved_cost_micros),
        }
    }

    /// The least of what is left, in millionths of the budget.
    fn share_of(&self, left: &Left) -> u64 {
        let share = |left: Option<u64>, most: Option<u64>| {
            Some(left?.saturating_mul(1_000_000).checked_div(most?).unwrap_or_default())
        };
        let shares = [
            share(left.calls, self.calls_max),
            share(left.cpu_ms, self.cpu_ms_max),
            share(left.cost_micros, self.cost_micros_max),
        ];
        shares.into_iter().flatten().min().unwrap_or(u64::MAX)
    }
}

impl Budgets {
    pub fn new(rules: Rules, store: &Arc<dyn Store>, clock: &Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner { rules, store: store.clone(), clock: clock.clone(), all: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SubjectId, Account>> {
        self.0.all.lock()
    }

    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    /// The subjects that have used some of their budget within its window, who has the least left first.
    pub fn list(&self) -> Result<Vec<Standing>, StoreError> {
        let (rules, now) = (&self.0.rules, self.0.clock.now());
        if !rules.is_in_force() {
            return Ok(Vec::new());
        }
        let mut accounts = HashMap::new();
        for entry in entries(&*self.0.store, &family()?, PAGE) {
            if let Some(Stored { subject: Some(subject), spent }) = read_json(&entry?) {
                accounts.insert(subject, Account::of(spent));
            }
        }
        // What is in memory is newer, and has the reservations.
        accounts.extend(self.lock().iter().map(|(subject, account)| (subject.clone(), *account)));
        let used = accounts.into_iter().filter_map(|(subject, account)| {
            let ends_in = self.left(&account.spent, now);
            let until = now.checked_add(ends_in).ok().filter(|_| !ends_in.is_zero())?;
            Some(Standing { subject, left: rules.left_of(&account), until })
        });
        let mut used: Vec<_> = used.collect();
        used.sort_by_cached_key(|each| (rules.share_of(&each.left), each.subject.to_string()));
        Ok(used)
    }

    /// What a subject may still use in its window; `None` if no budget is limited.
    pub fn left_of(&self, subject: &SubjectId) -> Option<Left> {
        let (rules, now) = (&self.0.rules, self.0.clock.now());
        if !rules.is_in_force() {
            return None;
        }
        let known = self.lock().get(subject).copied();
        let mut account = known.unwrap_or_else(|| self.found(subject, now));
        if self.left(&account.spent, now).is_zero() {
            account.spent = fresh(now);
        }
        Some(rules.left_of(&account))
    }

    /// Reserves one call that uses at most this much; `None` if no budget is limited.
    pub fn reserve(&self, subject: &SubjectId, most: Most) -> Result<Option<Reservation>, Throttled> {
        self.reserve_first(subject, most, 1)
    }

    /// [`Budgets::reserve`] for the first of several calls, all of which must fit unless the budget is whole; for the others
    /// (`calls` is 0), also if nothing is left.
    pub(crate) fn reserve_first(
        &self,
        subject: &SubjectId,
        most: Most,
        calls: u64,
    ) -> Result<Option<Reservation>, Throttled> {
        let in_any_case = calls == 0;
        let rules = &self.0.rules;
        if !rules.is_in_force() {
            return Ok(None);
        }
        let now = self.0.clock.now();
        let mut all = self.lock();
        if all.len() >= BUDGETS_MAX && !all.contains_key(subject) {
            self.forget(&mut all, now);
        }
        let account = all.entry(subject.clone()).or_insert_with(|| self.found(subject, now));
        if self.left(&account.spent, now).is_zero() {
            account.spent = fresh(now);
        }
        let after = self.left(&account.spent, now);
        let throttled = |unit, most: u64| Throttled { what: "budget", allowed: (most, unit), after };
        if let Some(most) = rules.calls_max
            && !in_any_case
        {
            let used = account.spent.calls + account.reserved_calls;
            if used >= most || used > 0 && used.saturating_add(calls) > most {
                return Err(throttled("calls in its window", most));
            }
        }
        let mut cpu_ms = 0;
        if let Some(limit) = rules.cpu_ms_max {
            let used = account.spent.cpu_ms + account.reserved_cpu_ms;
            if used >= limit && !in_any_case {
                return Err(throttled("ms of processor time in its window", limit));
            }
            // The last action may reserve less than its maximum, which it will rarely use.
            cpu_ms = u64::try_from(most.cpu.as_millis()).unwrap_or(u64::MAX).min(limit.saturating_sub(used));
        }
        let mut cost_micros = 0;
        if let (Some(limit), true) = (rules.cost_micros_max, most.price_micros > 0) {
            let left = limit.saturating_sub(account.spent.cost_micros + account.reserved_cost_micros);
            // Every attempt costs its price, so one must fit; retries are rare.
            if left < most.price_micros && !in_any_case {
                return Err(throttled("millionths in its window", limit));
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

    /// The stored account of a subject. If the Store fails, the subject gets a fresh account.
    fn found(&self, subject: &SubjectId, now: Timestamp) -> Account {
        let entry = family().and_then(|family| self.0.store.entry(&family, &key(subject)));
        let entry = entry.unwrap_or_else(|error| {
            tracing::warn!(%error, "a budget cannot be read; it starts from zero");
            None
        });
        Account::of(entry.as_ref().and_then(read_json).unwrap_or_else(|| fresh(now)))
    }

    fn left(&self, spent: &Spent, now: Timestamp) -> Duration {
        // A window that begins in the future was written before the wall clock was set back: it has ended.
        if spent.start > now {
            return Duration::ZERO;
        }
        let window = self.0.rules.window;
        let age: Duration = now.duration_since(spent.start).try_into().unwrap_or(window);
        window.saturating_sub(age)
    }

    /// Removes accounts whose window has ended and that have no reservation.
    fn forget(&self, all: &mut HashMap<SubjectId, Account>, now: Timestamp) {
        all.retain(|_, account| account.reserved_calls > 0 || !self.left(&account.spent, now).is_zero());
    }

    /// Removes accounts whose window has ended, also from the Store.
    pub async fn sweep(&self) -> Result<(), StoreError> {
        let now = self.0.clock.now();
        self.forget(&mut self.lock(), now);
        for entry in entries(&*self.0.store, &family()?, PAGE) {
            let entry = entry?;
            if read_json(&entry).is_some_and(|spent| !self.left(&spent, now).is_zero()) {
                continue;
            }
            let delete = delete(family()?, entry.key, Expect::Version(entry.version));
            match swap_all(&*self.0.store, vec![delete]).await {
                // A new window has just begun for this subject.
                Ok(_) | Err(StoreError::VersionMismatch { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Account {
    fn of(spent: Spent) -> Self {
        Self { spent, reserved_calls: 0, reserved_cpu_ms: 0, reserved_cost_micros: 0 }
    }
}

fn fresh(start: Timestamp) -> Spent {
    Spent { start, calls: 0, cpu_ms: 0, cost_micros: 0 }
}

impl Reservation {
    /// Sets what all attempts together used.
    pub fn charge(&mut self, cpu: Duration, tries: u32) {
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
            let spent = &mut account.spent;
            spent.calls += 1;
            spent.cpu_ms = spent.cpu_ms.saturating_add(cpu_ms);
            spent.cost_micros = spent.cost_micros.saturating_add(cost_micros);
            // Not awaited: it goes into the next block. The lock is held, so that the Store sees the counts in order. The
            // family's name is a valid constant.
            let stored = Stored { subject: Some(self.subject.clone()), spent: *spent };
            let put = family().map(|family| put(family, key(&self.subject), Expect::Any, &stored));
            drop(swap_all(&*self.budgets.0.store, put.into_iter().collect()));
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
    const LITTLE: Most = Most { cpu: SECOND, price_micros: 0, tries: 1 };

    struct Fixture {
        clock: Arc<ManualClock>,
        store: Arc<dyn Store>,
    }

    impl Fixture {
        fn new() -> Self {
            let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_000_000).unwrap()));
            let store: Arc<dyn Store> = Arc::new(memory::open(clock.clone()).unwrap());
            Self { clock, store }
        }

        /// Waits until all earlier writes are in the Store.
        fn flush(&self) {
            let put = put(FamilyName::new("flush").unwrap(), "k", Expect::Any, &());
            swap_all(&*self.store, vec![put]).wait().unwrap();
        }

        fn budgets(&self, calls_max: Option<u64>, cpu_ms_max: Option<u64>) -> Budgets {
            let rules =
                Rules { window: Duration::from_secs(3_600), calls_max, cpu_ms_max, cost_micros_max: None };
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
        reserved.charge(cpu, 1);
        Ok(())
    }

    #[test]
    fn the_calls_of_a_batch_fit_or_have_a_whole_budget() {
        let place = Fixture::new();
        let budgets = place.budgets(Some(5), None);
        let all = |calls: u64| {
            let first = budgets.reserve_first(&planner(), LITTLE, calls)?;
            let others = (1..calls).map(|_| budgets.reserve_first(&planner(), LITTLE, 0));
            [Ok(first)].into_iter().chain(others).collect::<Result<Vec<_>, Throttled>>()
        };
        let three = all(3).unwrap();
        assert!(all(3).is_err(), "two are left");
        let two = all(2).unwrap();
        drop((three, two));
        assert_eq!(all(9).unwrap().len(), 9, "larger than the budget, and nothing else counts");
    }

    #[test]
    fn money_is_reserved_for_all_attempts_and_charged_for_each_made() {
        let place = Fixture::new();
        let budgets = place.by(Rules { cost_micros_max: Some(1_000), ..Rules::default() });
        let dear = Most { price_micros: 300, tries: 3, ..LITTLE };
        assert_eq!(place.budgets(None, None).left_of(&planner()), None);
        let mut first = budgets.reserve(&planner(), dear).unwrap().unwrap();
        let left = Left { calls: None, cpu_ms: None, cost_micros: Some(100) };
        assert_eq!(budgets.left_of(&planner()), Some(left));
        // 900 are reserved, and the rest is not enough for one attempt.
        let spent = budgets.reserve(&planner(), dear).unwrap_err();
        assert_eq!((spent.what, spent.allowed.0), ("budget", 1_000));
        assert!(budgets.reserve(&planner(), LITTLE).is_ok(), "what is free goes on");
        first.charge(SECOND, 2);
        drop(first);
        let second = budgets.reserve(&planner(), dear).unwrap().unwrap();
        assert!(budgets.reserve(&planner(), dear).is_err());
        // The second action did not run.
        drop(second);
        place.flush();
        let next = place.by(Rules { cost_micros_max: Some(1_000), ..Rules::default() });
        let mut third = next.reserve(&planner(), dear).unwrap().unwrap();
        third.charge(SECOND, 1);
        drop(third);
        assert!(next.reserve(&planner(), dear).is_err(), "900 of 1,000 were spent");
        place.clock.advance(crate::limits::BUDGET_WINDOW);
        assert!(next.reserve(&planner(), dear).is_ok());
    }

    #[test]
    fn who_has_the_least_left_is_first_also_after_a_restart() {
        let place = Fixture::new();
        let rules = Rules { calls_max: Some(10), cpu_ms_max: Some(4_000), ..Rules::default() };
        let budgets = place.by(rules);
        let [busy, dear] =
            ["agent://busy", "agent://dear"].map(|subject| subject.parse::<SubjectId>().unwrap());
        let spend = |subject: &SubjectId, cpu| {
            let mut reserved = budgets.reserve(subject, LITTLE).unwrap().unwrap();
            reserved.charge(cpu, 1);
        };
        (0..3).for_each(|_| spend(&busy, Duration::ZERO));
        spend(&dear, 3 * SECOND);
        let until = place.clock.now().checked_add(crate::limits::BUDGET_WINDOW).unwrap();
        let standing = |subject: &SubjectId, calls, cpu_ms| {
            let left = Left { calls: Some(calls), cpu_ms: Some(cpu_ms), cost_micros: None };
            Standing { subject: subject.clone(), left, until }
        };
        let expected = [standing(&dear, 9, 1_000), standing(&busy, 7, 4_000)];
        assert_eq!(budgets.list().unwrap(), expected);
        place.flush();
        assert_eq!(place.by(rules).list().unwrap(), expected);
        assert_eq!(place.by(Rules::default()).list().unwrap(), []);
        let _running = budgets.reserve(&planner(), LITTLE).unwrap();
        assert_eq!(budgets.list().unwrap()[2], standing(&planner(), 9, 3_000));
        place.clock.advance(crate::limits::BUDGET_WINDOW);
        assert_eq!(budgets.list().unwrap(), []);
    }

    #[test]
    fn what_is_reserved_counts_until_it_is_charged_or_given_back() {
        let place = Fixture::new();
        let budgets = place.budgets(Some(2), None);
        let first = budgets.reserve(&planner(), LITTLE).unwrap();
        let second = budgets.reserve(&planner(), LITTLE).unwrap();
        let spent = budgets.reserve(&planner(), LITTLE).unwrap_err();
        assert_eq!((spent.what, spent.after), ("budget", Duration::from_secs(3_600)));
        assert!(budgets.reserve(&"agent://other".parse().unwrap(), LITTLE).is_ok());
        // The second action did not run.
        drop(second);
        assert_eq!(run(&budgets, SECOND), Ok(()));
        drop(first);
        assert_eq!(run(&budgets, SECOND), Ok(()));
        assert!(run(&budgets, SECOND).is_err());
        place.clock.advance(Duration::from_secs(3_600));
        assert_eq!(run(&budgets, SECOND), Ok(()));
    }

    #[test]
    fn processor_time_is_charged_as_used() {
        let place = Fixture::new();
        let budgets = place.budgets(None, Some(1_500));
        let first = budgets.reserve(&planner(), LITTLE).unwrap();
        let second = budgets.reserve(&planner(), LITTLE).unwrap();
        assert!(budgets.reserve(&planner(), LITTLE).is_err(), "all of it is reserved");
        drop((first, second));
        for _ in 0..10 {
            assert_eq!(run(&budgets, Duration::from_millis(150)), Ok(()));
        }
        assert!(run(&budgets, SECOND).is_err());
    }

    #[test]
    fn what_was_spent_outlives_the_process_and_old_windows_go() {
        let place = Fixture::new();
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
        let budgets = Fixture::new().budgets(None, None);
        assert!(budgets.reserve(&planner(), LITTLE).unwrap().is_none());
        assert!(budgets.lock().is_empty());
    }
}
