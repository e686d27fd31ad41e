//! All breakers, by key. The key is the tool's id, unless the request names another.
//!
//! What is open is kept in the Store, so that a restart does not send everybody at a tool that was just found broken. It is
//! written when a breaker opens or closes, never on the way of an ordinary call. Counts are not kept: a breaker that was
//! closed begins with a clean slate.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{
    Change, Changed, Entry, EntryChange, Expect, FamilyName, NewBody, Store, StoreError, Swap, Wait,
};
use effectd_contracts::{ActionRequest, Clock, Failure, Timestamp, ToolId};
use effectd_contracts::{Code, Phase};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::breaker::{Breaker, Cause, Kept, Report, Rules, Standing, Verdict};
use crate::limits::BREAKERS_MAX;
use crate::metrics::Metrics;
use crate::registry::Registry;

/// All breakers. Clones share them.
#[derive(Clone)]
pub struct Breakers(Arc<Inner>);

struct Inner {
    rules: Rules,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    tools: Arc<Registry>,
    all: Mutex<HashMap<String, Breaker>>,
}

impl std::fmt::Debug for Breakers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Breakers({})", self.lock().len())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Its key: a tool's id, or what requests name in `qos.circuit_breaker_key`.
    pub key: String,
    pub state: Standing,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// When it lets a probe through; not there if it is not open, or a person must close it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Calls within the window.
    pub calls: u32,
    pub failures: u32,
}

impl View {
    /// A breaker that no call went through yet: closed.
    pub fn untouched(key: &str) -> Self {
        Self {
            key: key.to_owned(),
            state: Standing::Closed,
            cause: None,
            retry_after_ms: None,
            calls: 0,
            failures: 0,
        }
    }
}

/// What the Store holds of a breaker that is not closed.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    cause: Cause,
    /// When its cool-down is over; none if a person opened it.
    until: Option<Timestamp>,
    cool_down_ms: u64,
}

/// What one call passes through. It must be told what each try came to; dropped, the call is over.
#[derive(Debug)]
pub struct Pass {
    breakers: Breakers,
    key: String,
    generation: u64,
}

pub fn key_of(request: &ActionRequest) -> &str {
    let named = request.qos.circuit_breaker_key.as_deref();
    named.unwrap_or(request.tool_id.as_str())
}

fn family() -> Result<FamilyName, StoreError> {
    FamilyName::new("breakers")
}

impl Breakers {
    /// Takes up what an earlier process has left open. If that cannot be read, all begin closed, and the log says so.
    pub fn load(
        rules: Rules,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        tools: Arc<Registry>,
    ) -> Self {
        let all = stored(&*store).unwrap_or_else(|error| {
            tracing::error!(%error, "the breakers' state cannot be read; all begin closed");
            Vec::new()
        });
        let (now, wall) = (clock.monotonic(), clock.now());
        let kept = all
            .into_iter()
            .filter_map(|entry| Some((read(&entry, wall)?, entry.key)));
        let all = kept
            .map(|(kept, key)| (key, Breaker::kept(&rules, &kept, now)))
            .collect();
        let breakers = Self(Arc::new(Inner {
            rules,
            store,
            clock,
            metrics,
            tools,
            all: Mutex::new(all),
        }));
        breakers.show_all();
        breakers
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Breaker>> {
        self.0.all.lock()
    }

    /// Asks whether a call of this tool may pass. The failure says when to come back.
    pub fn ask(&self, key: &str, tool: &ToolId) -> Result<Pass, Failure> {
        let now = self.0.clock.monotonic();
        let mut all = self.lock();
        // Who names a key of its own does not get round what a person has shut.
        let shut = key != tool.as_str()
            && all
                .get(tool.as_str())
                .is_some_and(|breaker| breaker.cause() == Some(Cause::Operator));
        let key = if shut || !self.make(&mut all, key) {
            tool.as_str()
        } else {
            key
        };
        let fresh = !all.contains_key(key);
        let breaker = all
            .entry(key.to_owned())
            .or_insert_with(|| Breaker::new(&self.0.rules, now));
        let before = breaker.standing(now);
        let verdict = breaker.ask(&self.0.rules, now);
        if fresh || before != breaker.standing(now) || before == Standing::HalfOpen {
            self.show(key, breaker);
        }
        match verdict {
            Verdict::Pass(generation) => Ok(Pass {
                breakers: self.clone(),
                key: key.to_owned(),
                generation,
            }),
            Verdict::Refused(left) => {
                drop(all);
                self.0
                    .metrics
                    .breaker_refusals
                    .with_label_values(&[tool.as_str()])
                    .inc();
                Err(refusal(key, left))
            }
        }
    }

    /// Whether there is, or can be, a breaker of this key. Keys come from outside: there are only so many, and closed ones
    /// make room. The breakers of tools always have room.
    fn make(&self, all: &mut HashMap<String, Breaker>, key: &str) -> bool {
        if all.len() < BREAKERS_MAX || all.contains_key(key) || self.is_tool(key) {
            return true;
        }
        let now = self.0.clock.monotonic();
        let idle = all
            .iter()
            .filter(|(key, breaker)| breaker.standing(now) == Standing::Closed && !self.is_tool(key))
            .min_by_key(|(_, breaker)| breaker.last_used())
            .map(|(key, _)| key.clone());
        idle.is_some_and(|idle| all.remove(&idle).is_some())
    }

    /// All breakers that have been used or opened, by key.
    pub fn list(&self) -> Vec<View> {
        let now = self.0.clock.monotonic();
        let mut views: Vec<_> = self
            .lock()
            .iter_mut()
            .map(|(key, breaker)| {
                let (calls, failures) = breaker.counted(&self.0.rules, now);
                let millis = |left: Duration| u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                View {
                    key: key.clone(),
                    state: breaker.standing(now),
                    cause: breaker.cause(),
                    retry_after_ms: breaker.left(now).map(millis),
                    calls,
                    failures,
                }
            })
            .collect();
        views.sort_by(|left, right| left.key.cmp(&right.key));
        views
    }

    /// One breaker, if it has been used or opened.
    pub fn show_one(&self, key: &str) -> Option<View> {
        self.list().into_iter().find(|view| view.key == key)
    }

    /// A person opens a breaker, until a person closes it. In force at once; answered when it is on disk.
    pub async fn trip(&self, key: &str) -> Result<(), StoreError> {
        self.shut(key)?.await.map(drop)
    }

    /// A person closes a breaker, and what it counted is forgotten. In force at once; answered when it is on disk.
    pub async fn reset(&self, key: &str) -> Result<(), StoreError> {
        self.clear(key)?.await.map(drop)
    }

    fn shut(&self, key: &str) -> Result<Wait<Changed>, StoreError> {
        let now = self.0.clock.monotonic();
        let mut all = self.lock();
        if !self.make(&mut all, key) {
            return Err(StoreError::Overloaded { what: "breakers" });
        }
        let breaker = all
            .entry(key.to_owned())
            .or_insert_with(|| Breaker::new(&self.0.rules, now));
        breaker.trip(now);
        tracing::warn!(key, "an operator opened the breaker");
        let wait = self.keep(key, breaker);
        self.changed(&all, key);
        wait
    }

    fn clear(&self, key: &str) -> Result<Wait<Changed>, StoreError> {
        let now = self.0.clock.monotonic();
        let mut all = self.lock();
        let fresh = Breaker::new(&self.0.rules, now);
        tracing::warn!(key, "an operator closed the breaker");
        let wait = self.keep(key, &fresh);
        if all.contains_key(key) {
            all.insert(key.to_owned(), fresh);
        }
        self.changed(&all, key);
        wait
    }

    /// Writes how a breaker stands. Called with the lock held, so that the Store sees changes in their order.
    fn keep(&self, key: &str, breaker: &Breaker) -> Result<Wait<Changed>, StoreError> {
        let now = self.0.clock.monotonic();
        let change = match (breaker.cause(), breaker.cool_down()) {
            (Some(cause), Some(cool_down)) => {
                let left = breaker.left(now);
                let stored = Stored {
                    cause,
                    until: left.and_then(|left| self.0.clock.now().checked_add(left).ok()),
                    cool_down_ms: u64::try_from(cool_down.as_millis()).unwrap_or(u64::MAX),
                };
                // Plain data with text keys, for which serde_json has no failure.
                EntryChange::Put(NewBody::Clear(serde_json::to_vec(&stored).unwrap_or_default()))
            }
            (Some(_) | None, _) => EntryChange::Delete,
        };
        let swap = Swap {
            family: family()?,
            key: key.to_owned(),
            expect: Expect::Any,
            change,
        };
        Ok(self.0.store.change(Change {
            swaps: vec![swap],
            ..Change::default()
        }))
    }

    fn is_tool(&self, key: &str) -> bool {
        key.parse()
            .is_ok_and(|tool: ToolId| self.0.tools.get(&tool).is_some())
    }

    /// Figures of a breaker that has changed.
    fn changed(&self, all: &HashMap<String, Breaker>, key: &str) {
        let now = self.0.clock.monotonic();
        let metrics = &self.0.metrics;
        if let Some(breaker) = all.get(key) {
            let to = breaker.standing(now).as_str();
            metrics.breaker_changes.with_label_values(&[to]).inc();
            self.show(key, breaker);
        }
        let open = all.values().filter(|breaker| breaker.cause().is_some()).count();
        metrics.breakers_open.set(i64::try_from(open).unwrap_or(i64::MAX));
    }

    /// Only tools have a series of their own: keys from outside must not make labels.
    fn show(&self, key: &str, breaker: &Breaker) {
        if self.is_tool(key) {
            let value = match breaker.standing(self.0.clock.monotonic()) {
                Standing::Closed => 0,
                Standing::HalfOpen | Standing::Releasing => 1,
                Standing::Open => 2,
            };
            let gauge = self.0.metrics.breaker_state.with_label_values(&[key]);
            gauge.set(value);
        }
    }

    fn show_all(&self) {
        let all = self.lock();
        for (key, breaker) in all.iter() {
            self.show(key, breaker);
            tracing::warn!(key, cause = ?breaker.cause(), "a breaker was left open by an earlier run");
        }
        let open = i64::try_from(all.len()).unwrap_or(i64::MAX);
        self.0.metrics.breakers_open.set(open);
    }
}

impl Pass {
    /// Takes in what one try came to. If that opens or closes the breaker, the answer is there when it is on disk; nobody
    /// has to wait for it.
    pub fn report(&self, report: Report) -> Option<Wait<Changed>> {
        let inner = &self.breakers.0;
        let mut all = self.breakers.lock();
        let breaker = all.get_mut(&self.key)?;
        let changed = breaker.report(self.generation, report, &inner.rules, inner.clock.monotonic());
        if !changed {
            return None;
        }
        let (key, cause) = (&self.key, breaker.cause());
        match cause {
            Some(cause) => tracing::warn!(key, ?cause, cool_down = ?breaker.cool_down(), "a breaker opened"),
            None => tracing::info!(key, "a breaker closed"),
        }
        let wait = self.breakers.keep(key, breaker);
        self.breakers.changed(&all, key);
        wait.ok()
    }

    /// Whether the breaker has opened meanwhile, so that trying again would be one try too many.
    pub fn is_open(&self) -> bool {
        let all = self.breakers.lock();
        all.get(&self.key)
            .is_some_and(|breaker| breaker.cause().is_some())
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(breaker) = self.breakers.lock().get_mut(&self.key) {
            breaker.over(self.generation);
        }
    }
}

fn refusal(key: &str, left: Option<Duration>) -> Failure {
    let when = match left {
        Some(left) => format!("it is tried again in {:.1} s", left.as_secs_f64()),
        None => format!("an operator opened it, and `effectd breaker reset {key}` closes it"),
    };
    let message = format!("the circuit breaker {key} is open; {when}");
    let mut failure = Failure::new(Code::BreakerOpen, Phase::Dispatch, message);
    failure.retryable = left.is_some();
    failure
}

fn stored(store: &dyn Store) -> Result<Vec<Entry>, StoreError> {
    let (family, mut all, mut after) = (family()?, Vec::new(), None::<String>);
    while all.len() < BREAKERS_MAX {
        let page = store.entries(&family, "", after.as_deref(), BREAKERS_MAX)?;
        all.extend(page.entries);
        match page.after {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    Ok(all)
}

fn read(entry: &Entry, now: Timestamp) -> Option<Kept> {
    let parsed = entry.value.bytes().map(serde_json::from_slice::<Stored>);
    let Some(Ok(stored)) = parsed else {
        tracing::error!(
            key = entry.key,
            "a breaker's state cannot be read; it begins closed"
        );
        return None;
    };
    let left = |until: Timestamp| until.duration_since(now).try_into().unwrap_or(Duration::ZERO);
    Some(Kept {
        left: stored.until.map(left),
        cool_down: Duration::from_millis(stored.cool_down_ms),
        cause: stored.cause,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use effectd_bus::memory::{self, MemoryDisk};
    use effectd_contracts::ManualClock;

    struct Place {
        clock: Arc<ManualClock>,
        disk: MemoryDisk,
        store: Arc<dyn Store>,
        breakers: Breakers,
    }

    fn place(clock: Arc<ManualClock>, disk: MemoryDisk) -> Place {
        let store: Arc<dyn Store> = Arc::new(memory::open_on(&disk, clock.clone()).unwrap());
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let tools = Arc::new(Registry::default());
        let rules = Rules {
            failures_max: 2,
            ..Rules::default()
        };
        let breakers = Breakers::load(rules, store.clone(), clock.clone(), metrics, tools);
        Place {
            clock,
            disk,
            store,
            breakers,
        }
    }

    fn new_place() -> Place {
        place(
            Arc::new(ManualClock::at(Timestamp::from_second(1_000_000).unwrap())),
            MemoryDisk::default(),
        )
    }

    impl Place {
        /// The same after a restart.
        fn again(self) -> Place {
            let Place {
                clock,
                disk,
                store,
                breakers,
            } = self;
            drop(breakers);
            store.close().unwrap();
            drop(store);
            place(clock, disk)
        }

        fn fail(&self, key: &str) {
            let pass = self.breakers.ask(key, &tool()).unwrap();
            if let Some(wait) = pass.report(Report::Bad) {
                wait.wait().unwrap();
            }
        }

        fn state(&self, key: &str) -> Option<Standing> {
            self.breakers.show_one(key).map(|view| view.state)
        }
    }

    fn tool() -> ToolId {
        "t.x".parse().unwrap()
    }

    #[test]
    fn keys_are_independent_and_an_open_one_says_when_to_come_back() {
        let place = new_place();
        place.fail("a");
        assert_eq!(place.state("a"), Some(Standing::Closed));
        place.fail("a");
        assert_eq!(place.state("a"), Some(Standing::Open));
        let refused = place.breakers.ask("a", &tool()).unwrap_err();
        assert_eq!(refused.code, Code::BreakerOpen);
        assert!(
            refused.retryable && refused.message.contains("in 30.0 s"),
            "{refused}"
        );
        assert!(place.breakers.ask("b", &tool()).is_ok());
        assert!(place.breakers.ask("t.x", &tool()).is_ok());
    }

    #[test]
    fn what_is_open_stays_open_over_a_restart_for_what_was_left() {
        let place = new_place();
        place.fail("a");
        place.fail("a");
        place.clock.advance(Duration::from_secs(10));
        let place = place.again();
        let view = place.breakers.show_one("a").unwrap();
        assert_eq!((view.state, view.retry_after_ms), (Standing::Open, Some(20_000)));
        place.clock.advance(Duration::from_secs(25));
        let place = place.again();
        assert_eq!(place.state("a"), Some(Standing::HalfOpen));
        place.fail("a");
        let place = place.again();
        assert_eq!(place.breakers.show_one("a").unwrap().cause, Some(Cause::Probe));
    }

    #[test]
    fn an_operators_word_outlives_the_process_and_binds_those_with_keys_of_their_own() {
        let place = new_place();
        place.breakers.shut("t.x").unwrap().wait().unwrap();
        let place = place.again();
        place.clock.advance(Duration::from_secs(1_000_000));
        for key in ["t.x", "mine"] {
            let refused = place.breakers.ask(key, &tool()).unwrap_err();
            assert!(
                !refused.retryable && refused.message.contains("breaker reset t.x"),
                "{refused}"
            );
        }
        place.breakers.clear("t.x").unwrap().wait().unwrap();
        assert!(place.breakers.ask("t.x", &tool()).is_ok());
        let place = place.again();
        assert!(place.breakers.ask("t.x", &tool()).is_ok());
        assert_eq!(stored(&*place.store).unwrap().len(), 0);
    }

    #[test]
    fn ordinary_calls_write_nothing() {
        let place = new_place();
        let before = place.store.stats().blocks;
        for _ in 0..100 {
            let pass = place.breakers.ask("t.x", &tool()).unwrap();
            assert!(pass.report(Report::Good).is_none());
        }
        assert_eq!(place.store.stats().blocks, before);
    }

    #[test]
    fn keys_from_outside_are_bounded_and_open_ones_are_not_forgotten() {
        let place = new_place();
        place.fail("bad");
        place.fail("bad");
        for n in 0..2 * BREAKERS_MAX {
            drop(place.breakers.ask(&format!("key-{n}"), &tool()).unwrap());
        }
        assert_eq!(place.breakers.list().len(), BREAKERS_MAX);
        assert_eq!(place.state("bad"), Some(Standing::Open));
    }

    #[test]
    fn a_call_that_is_dropped_gives_its_place_back() {
        let place = new_place();
        place.fail("a");
        place.fail("a");
        place.clock.advance(Duration::from_secs(31));
        let probe = place.breakers.ask("a", &tool()).unwrap();
        assert!(place.breakers.ask("a", &tool()).is_err());
        drop(probe);
        assert!(place.breakers.ask("a", &tool()).is_ok());
    }
}
