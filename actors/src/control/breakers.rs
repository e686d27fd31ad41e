//! All breakers, by key. A tool has one, which all subjects share. A key that a request names adds one of its subject's own: it
//! protects the subject's calls, and shuts no tool for anybody else.
//!
//! Open breakers are stored, so that a restart does not send calls to a tool that was just found broken. A breaker is written
//! when it opens or closes, never by an ordinary call. Counts are not stored: after a restart a closed breaker counts from zero.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Changed, Expect, FamilyName, KvEntry, Store, StoreError, Wait};
use effectd_contracts::limits::ID_BYTES_MAX;
use effectd_contracts::{
    ActionRequest, Clock, Code, Digest, Failure, OrgId, Phase, SubjectId, Timestamp, ToolId,
};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::breaker::{Breaker, BreakerState, Cause, Kept, Report, Rules, Verdict};
use crate::limits::{BREAKERS_MAX, BREAKERS_SUBJECT_MAX};
use crate::metrics::Metrics;
use crate::registry::{CurrentRegistry, Registry};
use crate::stored::{delete, entries, put, read_json, swap_all};

/// All breakers. Clones share them.
#[derive(Clone)]
pub struct Breakers(Arc<Inner>);

struct Inner {
    rules: Rules,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    tools: CurrentRegistry,
    all: Mutex<HashMap<String, Breaker>>,
}

impl std::fmt::Debug for Breakers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Breakers({})", self.lock().len())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// A tool's id, `org:<organisation>/<tool>`, or `<subject>/<qos.circuit_breaker_key>`.
    pub key: String,
    pub state: BreakerState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// The time until the breaker lets a probe through; absent if it is not open, or only a person can close it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    pub calls: u32,
    pub failures: u32,
}

impl View {
    /// A closed breaker that no call has used yet.
    pub fn untouched(key: &str) -> Self {
        Self {
            key: key.to_owned(),
            state: BreakerState::Closed,
            cause: None,
            retry_after_ms: None,
            calls: 0,
            failures: 0,
        }
    }
}

/// A stored breaker.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    cause: Cause,
    /// The end of the cool-down; `None` if a person opened the breaker.
    until: Option<Timestamp>,
    cool_down_ms: u64,
}

/// Lets one call through. Each attempt is reported to the pass; dropping the pass ends the call.
#[derive(Debug)]
pub struct Pass {
    breakers: Breakers,
    key: String,
    generation: u64,
    is_shared: bool,
}

/// The name of a subject's own breaker: `<subject>/<key>`. A part that is too long, or a key with a slash, is replaced by its
/// digest, so that the name is no longer than an id, and what stands before its last slash tells the subjects apart.
fn own_name(subject: &SubjectId, key: &str) -> String {
    let short = |text: &str| text.len() < ID_BYTES_MAX / 2;
    let part = |text: &str, is_plain: bool| {
        if is_plain { text.to_owned() } else { Digest::of(text.as_bytes()).to_string() }
    };
    let subject = part(subject.as_str(), short(subject.as_str()));
    format!("{subject}/{}", part(key, short(key) && !key.contains('/')))
}

/// Whose breaker this is; `None` for a tool's.
fn owner(name: &str) -> Option<&str> {
    name.rsplit_once('/').map(|(owner, _)| owner)
}

fn family() -> Result<FamilyName, StoreError> {
    FamilyName::new("breakers")
}

impl Breakers {
    /// Loads the breakers that an earlier process left open. If they cannot be read, all begin closed, and a warning is logged.
    pub fn load(
        rules: Rules,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        tools: CurrentRegistry,
    ) -> Self {
        let all = stored(&*store).unwrap_or_else(|error| {
            tracing::error!(%error, "the breakers' state cannot be read; all begin closed");
            Vec::new()
        });
        let (now, wall) = (clock.monotonic(), clock.now());
        let kept = all.into_iter().filter_map(|entry| Some((read(&entry, wall)?, entry.key)));
        let all = kept.map(|(kept, key)| (key, Breaker::kept(&rules, &kept, now))).collect();
        let breakers = Self(Arc::new(Inner { rules, store, clock, metrics, tools, all: Mutex::new(all) }));
        breakers.show_all();
        breakers
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Breaker>> {
        self.0.all.lock()
    }

    /// Asks the tool's breaker, that of the organisation if organisations reach different services by the tool, and the subject's own if
    /// the request names a key, whether the call may pass. The failure says when to try again.
    pub fn ask(
        &self,
        request: &ActionRequest,
        tool: &ToolId,
        org: Option<&OrgId>,
    ) -> Result<Vec<Pass>, Failure> {
        let shared = self.ask_one(tool.as_str(), tool)?;
        let of_org = org.map(|org| self.ask_one(&format!("org:{org}/{tool}"), tool)).transpose()?.flatten();
        let named = request.qos.circuit_breaker_key.as_deref();
        let own = named.map(|key| self.ask_one(&own_name(&request.subject_id, key), tool));
        Ok([shared, of_org, own.transpose()?.flatten()].into_iter().flatten().collect())
    }

    /// Asks one breaker; `None` if there is no room for it.
    fn ask_one(&self, key: &str, tool: &ToolId) -> Result<Option<Pass>, Failure> {
        let now = self.0.clock.monotonic();
        let mut all = self.lock();
        if !self.make(&mut all, key) {
            return Ok(None);
        }
        let fresh = !all.contains_key(key);
        let breaker = all.entry(key.to_owned()).or_insert_with(|| Breaker::new(&self.0.rules, now));
        let before = breaker.state(now);
        let verdict = breaker.ask(&self.0.rules, now);
        if fresh || before != breaker.state(now) || before == BreakerState::HalfOpen {
            self.show(key, breaker);
        }
        match verdict {
            Verdict::Pass(generation) => {
                let is_shared = key == tool.as_str();
                Ok(Some(Pass { breakers: self.clone(), key: key.to_owned(), generation, is_shared }))
            }
            Verdict::Refused(left) => {
                drop(all);
                self.0.metrics.breaker_refusals.with_label_values(&[tool.as_str()]).inc();
                Err(refusal(key, left))
            }
        }
    }

    /// Makes room for a breaker of this key; `false` if there is none. Requests choose keys, so their number is bounded, in all
    /// and for one subject, and the idlest breaker makes room, a closed one first. The breakers of tools always have room.
    fn make(&self, all: &mut HashMap<String, Breaker>, key: &str) -> bool {
        if all.contains_key(key) || self.is_tool(key) {
            return true;
        }
        let is_owners = |other: &str| owner(key).is_some() && owner(other) == owner(key);
        let crowded = all.keys().filter(|other| is_owners(other)).count() >= BREAKERS_SUBJECT_MAX;
        if !crowded && all.len() < BREAKERS_MAX {
            return true;
        }
        let now = self.0.clock.monotonic();
        let idle = all
            .iter()
            .filter(|(key, _)| !self.is_tool(key) && (!crowded || is_owners(key)))
            .filter(|(_, breaker)| breaker.is_idle(now))
            .min_by_key(|(_, breaker)| (breaker.state(now) != BreakerState::Closed, breaker.last_used()))
            .map(|(key, _)| key.clone());
        let Some((idle, breaker)) = idle.and_then(|idle| all.remove_entry(&idle)) else {
            return false;
        };
        if breaker.state(now) != BreakerState::Closed {
            // Its record is deleted. If that fails, the next start finds it half-open again.
            drop(self.keep(&idle, &Breaker::new(&self.0.rules, now)));
            self.changed(all, &idle);
        }
        true
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
                    state: breaker.state(now),
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

    /// A person opens a breaker, for a while or until a person closes it. In force at once; returns when it is on disk.
    pub async fn trip(&self, key: &str, lasts: Option<Duration>) -> Result<(), StoreError> {
        self.shut(key, lasts)?.await.map(drop)
    }

    /// A person closes a breaker, which forgets its counts. In force at once; returns when it is on disk.
    pub async fn reset(&self, key: &str) -> Result<(), StoreError> {
        self.clear(key)?.await.map(drop)
    }

    /// No bound applies: planners who use it up must not keep an operator from stopping them.
    fn shut(&self, key: &str, lasts: Option<Duration>) -> Result<Wait<Changed>, StoreError> {
        let now = self.0.clock.monotonic();
        let mut all = self.lock();
        let breaker = all.entry(key.to_owned()).or_insert_with(|| Breaker::new(&self.0.rules, now));
        breaker.trip(now, lasts);
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

    /// Stores a breaker. Called with the lock held, so that the Store sees changes in order.
    fn keep(&self, key: &str, breaker: &Breaker) -> Result<Wait<Changed>, StoreError> {
        let now = self.0.clock.monotonic();
        let swap = match (breaker.cause(), breaker.cool_down()) {
            (Some(cause), Some(cool_down)) => {
                let left = breaker.left(now);
                let stored = Stored {
                    cause,
                    until: left.and_then(|left| self.0.clock.now().checked_add(left).ok()),
                    cool_down_ms: u64::try_from(cool_down.as_millis()).unwrap_or(u64::MAX),
                };
                put(family()?, key, Expect::Any, &stored)
            }
            (Some(_) | None, _) => delete(family()?, key, Expect::Any),
        };
        Ok(swap_all(&*self.0.store, vec![swap]))
    }

    fn is_tool(&self, key: &str) -> bool {
        key.parse().is_ok_and(|tool: ToolId| self.0.tools.get().get(&tool).is_some())
    }

    /// Updates the metrics of a breaker that has changed.
    fn changed(&self, all: &HashMap<String, Breaker>, key: &str) {
        let now = self.0.clock.monotonic();
        let metrics = &self.0.metrics;
        if let Some(breaker) = all.get(key) {
            let to = breaker.state(now).as_str();
            metrics.breaker_changes.with_label_values(&[to]).inc();
            self.show(key, breaker);
        }
        self.count(all);
    }

    /// Updates the gauges. A cool-down ends by the clock, without a call.
    pub fn measure(&self) {
        let (all, now) = (self.lock(), self.0.clock.monotonic());
        for (key, breaker) in all.iter().filter(|(_, breaker)| breaker.state(now) != BreakerState::Closed) {
            self.show(key, breaker);
        }
        self.count(&all);
    }

    fn count(&self, all: &HashMap<String, Breaker>) {
        let (now, mut open, mut half_open) = (self.0.clock.monotonic(), 0, 0);
        for breaker in all.values() {
            match breaker.state(now) {
                BreakerState::Closed => {}
                BreakerState::HalfOpen | BreakerState::Releasing => half_open += 1,
                BreakerState::Open => open += 1,
            }
        }
        self.0.metrics.breakers_open.set(open);
        self.0.metrics.breakers_half_open.set(half_open);
    }

    /// Sets the gauge. Only tools have a series: keys that requests choose must not become labels.
    fn show(&self, key: &str, breaker: &Breaker) {
        if self.is_tool(key) {
            let value = match breaker.state(self.0.clock.monotonic()) {
                BreakerState::Closed => 0,
                BreakerState::HalfOpen | BreakerState::Releasing => 1,
                BreakerState::Open => 2,
            };
            let gauge = self.0.metrics.breaker_state.with_label_values(&[key]);
            gauge.set(value);
        }
    }

    /// Removes the series of tools that only the registry before had, and adds those of tools that came back.
    pub(crate) fn registry_changed(&self, before: &Registry) {
        let tools = self.0.tools.get();
        let ids = before.iter().map(|tool| &tool.spec().tool_id);
        let gone: Vec<_> = ids.filter(|id| tools.get(id).is_none()).collect();
        // Series are set with the lock held: from now on, only those of the new registry.
        let all = self.lock();
        for id in gone {
            // There is none for a tool that was never called.
            let _ = self.0.metrics.breaker_state.remove_label_values(&[id.as_str()]);
        }
        for (key, breaker) in all.iter() {
            self.show(key, breaker);
        }
    }

    fn show_all(&self) {
        let all = self.lock();
        for (key, breaker) in all.iter() {
            self.show(key, breaker);
            tracing::warn!(
                key,
                cause = breaker.cause().map(Cause::as_str),
                "a breaker was left open by an earlier run"
            );
        }
        self.count(&all);
    }
}

impl Pass {
    /// Reports one attempt. If that opens or closes the breaker, the returned wait ends when the change is on disk.
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
            Some(cause) => {
                let cool_down_s = breaker.cool_down().map(|time| time.as_secs_f64());
                tracing::warn!(key, cause = cause.as_str(), cool_down_s, "a breaker opened");
            }
            None => tracing::info!(key, "a breaker closed"),
        }
        let wait = self.breakers.keep(key, breaker);
        self.breakers.changed(&all, key);
        wait.ok()
    }

    /// Whether all subjects share the breaker.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Whether the breaker has opened since the call passed.
    pub fn is_open(&self) -> bool {
        let all = self.breakers.lock();
        all.get(&self.key).is_some_and(|breaker| breaker.cause().is_some())
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
        Some(left) => format!("the next call is allowed in {:.1} s", left.as_secs_f64()),
        None => format!("an operator opened it, and `effectd breaker reset {key}` closes it"),
    };
    let message = format!("the circuit breaker {key} is open; {when}");
    let mut failure = Failure::new(Code::BreakerOpen, Phase::Dispatch, message);
    failure.retryable = left.is_some();
    failure
}

/// All of them: those of tools and of operators may exceed the bound.
fn stored(store: &dyn Store) -> Result<Vec<KvEntry>, StoreError> {
    entries(store, &family()?, BREAKERS_MAX).collect()
}

fn read(entry: &KvEntry, now: Timestamp) -> Option<Kept> {
    let Some(stored) = read_json::<Stored>(entry) else {
        tracing::error!(key = entry.key, "a breaker's state cannot be read; it begins closed");
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

    struct Fixture {
        clock: Arc<ManualClock>,
        disk: MemoryDisk,
        store: Arc<dyn Store>,
        breakers: Breakers,
    }

    fn place(clock: Arc<ManualClock>, disk: MemoryDisk) -> Fixture {
        let store: Arc<dyn Store> = Arc::new(memory::open_on(&disk, clock.clone()).unwrap());
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let tools = CurrentRegistry::default();
        let rules = Rules { failures_max: 2, ..Rules::default() };
        let breakers = Breakers::load(rules, store.clone(), clock.clone(), metrics, tools);
        Fixture { clock, disk, store, breakers }
    }

    fn new_place() -> Fixture {
        place(Arc::new(ManualClock::at(Timestamp::from_second(1_000_000).unwrap())), MemoryDisk::default())
    }

    impl Fixture {
        /// The same breakers after a restart.
        fn again(self) -> Fixture {
            let Fixture { clock, disk, store, breakers } = self;
            drop(breakers);
            store.close().unwrap();
            drop(store);
            place(clock, disk)
        }

        fn fail(&self, key: &str) {
            let pass = self.ask(key).unwrap();
            if let Some(wait) = pass.report(Report::Bad) {
                wait.wait().unwrap();
            }
        }

        /// Asks one breaker that has room.
        fn ask(&self, key: &str) -> Result<Pass, Failure> {
            self.breakers.ask_one(key, &tool()).map(Option::unwrap)
        }

        fn state(&self, key: &str) -> Option<BreakerState> {
            self.breakers.show_one(key).map(|view| view.state)
        }
    }

    fn tool() -> ToolId {
        "t.x".parse().unwrap()
    }

    fn request(subject: &str, key: Option<&str>) -> ActionRequest {
        serde_json::from_value(serde_json::json!({
            "action_id": "a-1", "subject_id": subject, "space_id": "shared:s", "tool_id": "t.x", "params": {},
            "qos": { "circuit_breaker_key": key },
        }))
        .unwrap()
    }

    #[test]
    fn keys_are_independent_and_an_open_one_says_when_to_come_back() {
        let place = new_place();
        place.fail("a");
        assert_eq!(place.state("a"), Some(BreakerState::Closed));
        place.fail("a");
        assert_eq!(place.state("a"), Some(BreakerState::Open));
        let refused = place.ask("a").unwrap_err();
        assert_eq!(refused.code, Code::BreakerOpen);
        assert!(refused.retryable && refused.message.contains("in 30.0 s"), "{refused}");
        assert!(place.ask("b").is_ok());
        assert!(place.ask("t.x").is_ok());
    }

    #[test]
    fn what_is_open_stays_open_over_a_restart_for_what_was_left() {
        let place = new_place();
        place.fail("a");
        place.fail("a");
        place.clock.advance(Duration::from_secs(10));
        let place = place.again();
        let view = place.breakers.show_one("a").unwrap();
        assert_eq!((view.state, view.retry_after_ms), (BreakerState::Open, Some(20_000)));
        let gauges = |place: &Fixture| {
            place.breakers.measure();
            let metrics = &place.breakers.0.metrics;
            (metrics.breakers_open.get(), metrics.breakers_half_open.get())
        };
        assert_eq!(gauges(&place), (1, 0));
        place.clock.advance(Duration::from_secs(25));
        assert_eq!(gauges(&place), (0, 1), "nobody has called since");
        let place = place.again();
        assert_eq!((place.state("a"), gauges(&place)), (Some(BreakerState::HalfOpen), (0, 1)));
        place.fail("a");
        let place = place.again();
        assert_eq!(place.breakers.show_one("a").unwrap().cause, Some(Cause::Probe));
    }

    #[test]
    fn an_operators_override_survives_restarts_and_binds_all_keys() {
        let place = new_place();
        place.breakers.shut("t.x", None).unwrap().wait().unwrap();
        let place = place.again();
        place.clock.advance(Duration::from_secs(1_000_000));
        for key in [None, Some("mine"), Some("t.y")] {
            let refused = place.breakers.ask(&request("agent://a", key), &tool(), None).unwrap_err();
            assert!(!refused.retryable && refused.message.contains("breaker reset t.x"), "{refused}");
        }
        place.breakers.clear("t.x").unwrap().wait().unwrap();
        assert!(place.ask("t.x").is_ok());
        let place = place.again();
        assert!(place.ask("t.x").is_ok());
        assert_eq!(stored(&*place.store).unwrap().len(), 0);
    }

    #[test]
    fn a_key_is_its_subjects_own_beside_the_tools_breaker() {
        let place = new_place();
        let ask =
            |subject: &str, key: Option<&str>| place.breakers.ask(&request(subject, key), &tool(), None);
        let fail = |subject: &str, key: &str| {
            for pass in ask(subject, Some(key)).unwrap().iter().filter(|pass| !pass.is_shared()) {
                drop(pass.report(Report::Bad));
            }
        };
        fail("agent://a", "t.x");
        fail("agent://a", "t.x");
        assert!(ask("agent://a", Some("t.x")).is_err(), "its own breaker is open");
        assert_eq!(ask("agent://a", None).unwrap().len(), 1);
        assert_eq!(ask("agent://b", Some("t.x")).unwrap().len(), 2, "another subject has another key");
        fail("agent://a", "b/t.x");
        fail("agent://a", "b/t.x");
        assert!(ask("agent://a/b", Some("t.x")).is_ok(), "no key reaches into another subject's name");
        let long = format!("agent://{}", "a".repeat(ID_BYTES_MAX - 8));
        let long = own_name(&request(&long, None).subject_id, &"k".repeat(ID_BYTES_MAX));
        assert!(long.len() <= ID_BYTES_MAX, "an operator can name it: {long}");
        assert_eq!(place.state("t.x"), Some(BreakerState::Closed), "the tool's breaker has another name");
        place.fail("t.x");
        place.fail("t.x");
        assert!(ask("agent://b", Some("fresh")).is_err(), "no key gets round the tool's breaker");
    }

    #[test]
    fn ordinary_calls_write_nothing() {
        let place = new_place();
        let before = place.store.stats().blocks;
        for _ in 0..100 {
            let pass = place.ask("t.x").unwrap();
            assert!(pass.report(Report::Good).is_none());
        }
        assert_eq!(place.store.stats().blocks, before);
    }

    #[test]
    fn outside_keys_are_bounded_and_open_breakers_are_kept() {
        let place = new_place();
        place.fail("bad");
        place.fail("bad");
        for n in 0..2 * BREAKERS_MAX {
            drop(place.ask(&format!("key-{n}")).unwrap());
        }
        assert_eq!(place.breakers.list().len(), BREAKERS_MAX);
        assert_eq!(place.state("bad"), Some(BreakerState::Open));
    }

    #[test]
    fn one_subject_leaves_room_for_the_keys_of_others() {
        let place = new_place();
        let ask = |subject: &str, key: &str| {
            place.breakers.ask(&request(subject, Some(key)), &tool(), None).unwrap()
        };
        for n in 0..2 * BREAKERS_MAX {
            let passes = ask("agent://a", &format!("key-{}", n / 2));
            for pass in passes.iter().filter(|pass| !pass.is_shared()) {
                drop(pass.report(Report::Bad));
            }
        }
        let open = place.breakers.list().iter().filter(|view| view.state == BreakerState::Open).count();
        assert_eq!(open, BREAKERS_SUBJECT_MAX);
        assert_eq!(ask("agent://a", "more").len(), 1, "the tool's breaker still counts");
        for n in 0..BREAKERS_SUBJECT_MAX {
            assert_eq!(ask("agent://a/b", &format!("key-{n}")).len(), 2, "it has room of its own");
        }
    }

    #[test]
    fn a_breaker_whose_cool_down_is_over_makes_room() {
        let place = new_place();
        let own = |key: &str| format!("agent://a/{key}");
        let keys: Vec<_> = (0..BREAKERS_SUBJECT_MAX).map(|n| format!("key-{n}")).collect();
        let ask = |key: &str| place.breakers.ask(&request("agent://a", Some(key)), &tool(), None).unwrap();
        for key in &keys {
            place.clock.advance(Duration::from_millis(1));
            place.fail(&own(key));
            place.fail(&own(key));
        }
        assert_eq!(ask("more").len(), 1, "all are open");
        place.clock.advance(Duration::from_secs(31));
        assert_eq!(ask("more").len(), 2, "the idlest one makes room");
        assert_eq!(place.state(&own(&keys[0])), None);
        place.fail(&own("more"));
        place.fail(&own("more"));
        let kept = stored(&*place.store).unwrap();
        assert_eq!(kept.len(), BREAKERS_SUBJECT_MAX);
        assert!(kept.iter().all(|entry| entry.key != own(&keys[0])), "its record is deleted");
        let probes: Vec<_> = keys[1..].iter().map(|key| ask(key)).collect();
        assert_eq!(ask("another").len(), 1, "each is open or has a probe in flight");
        drop(probes);
        assert_eq!(ask("another").len(), 2);
    }

    #[test]
    fn an_operators_trip_needs_no_room_and_survives_restarts() {
        let place = new_place();
        for n in 0..BREAKERS_MAX {
            place.breakers.shut(&format!("key-{n}"), None).unwrap().wait().unwrap();
        }
        place.breakers.shut("t.x", None).unwrap().wait().unwrap();
        let place = place.again();
        assert_eq!(place.state("t.x"), Some(BreakerState::Open));
        assert_eq!(place.breakers.list().len(), BREAKERS_MAX + 1);
    }

    #[test]
    fn a_call_that_is_dropped_gives_its_place_back() {
        let place = new_place();
        place.fail("a");
        place.fail("a");
        place.clock.advance(Duration::from_secs(31));
        let probe = place.ask("a").unwrap();
        assert!(place.ask("a").is_err());
        drop(probe);
        assert!(place.ask("a").is_ok());
    }
}
