//! Rates per tool, subject, space and principal, by governor. They are in memory: a restart resets them. [`super::sessions`] has
//! the counts that must survive a restart.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::{ActionRequest, Clock, Code, Failure, Phase, Principal};
use governor::clock::Clock as GovernorClock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::state::keyed::{DashMapStateStore, ShrinkableKeyedStateStore};
use governor::{Quota, RateLimiter};
use parking_lot::Mutex;

use crate::limits::RATE_KEYS_MAX;

/// Each rate bounds the burst as well: as many actions as it allows in a second may come at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Actions a second with one tool.
    pub tool: Option<NonZeroU32>,
    /// Actions a second on behalf of one subject.
    pub subject: Option<NonZeroU32>,
    /// Actions a second in one space.
    pub space: Option<NonZeroU32>,
    /// Actions a second asked for by one principal.
    pub principal: Option<NonZeroU32>,
}

impl Rules {
    pub const UNLIMITED: Self = Self { tool: None, subject: None, space: None, principal: None };
}

impl Default for Rules {
    /// A planner that thinks asks for a few actions a second, and a user runs a few planners: together they stay far below 200. Only
    /// a loop that is faster than its rate is stopped; for a loop that waits for each answer, an operator sets a budget. What
    /// several users share allows at least twice as much, so that one principal alone never uses it up.
    fn default() -> Self {
        Self {
            tool: NonZeroU32::new(1_000),
            subject: NonZeroU32::new(400),
            space: NonZeroU32::new(1_000),
            principal: NonZeroU32::new(200),
        }
    }
}

/// Which limit was reached, and when to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttled {
    /// The kind of limit: `tool`, `subject`, `space`, `principal`, `session`, `budget`, `address` or `token`.
    pub what: &'static str,
    /// The limit and its unit.
    pub allowed: (u64, &'static str),
    pub after: Duration,
}

impl Throttled {
    /// Whether the limit is the subject's own, so that it holds for all its users.
    pub fn is_subjects(&self) -> bool {
        matches!(self.what, "subject" | "budget")
    }

    pub fn failure(&self) -> Failure {
        let (most, unit) = self.allowed;
        let message = format!(
            "the {} has reached its rate limit: {most} {unit}, 0 left; retry in {} ms",
            self.what,
            self.after.as_millis().max(1)
        );
        Failure::new(Code::RateLimited, Phase::Accept, message).retry_after(self.after)
    }
}

/// Our clock in governor's form.
struct Ticks(Arc<dyn Clock>);

impl GovernorClock for Ticks {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.monotonic().since_start()
    }
}

/// The states of [`RATE_KEYS_MAX`] keys. At the bound, a known key keeps its own state, and new keys share that of the empty key.
#[derive(Default)]
struct States(DashMapStateStore<String>);

impl StateStore for States {
    type Key = String;

    fn measure_and_replace<T, F, E>(&self, key: &String, measure: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let shared = String::new();
        let has_own = self.0.contains_key(key) || self.0.len() < RATE_KEYS_MAX;
        self.0.measure_and_replace(if has_own { key } else { &shared }, measure)
    }
}

impl ShrinkableKeyedStateStore<String> for States {
    fn retain_recent(&self, drop_below: Nanos) {
        self.0.retain_recent(drop_below);
    }

    fn shrink_to_fit(&self) {
        self.0.shrink_to_fit();
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

type Limiter = RateLimiter<String, States, Ticks, NoOpMiddleware<Duration>>;

/// The key of a rate, from an action.
type KeyOf = for<'a> fn(&'a ActionRequest, &'a Principal) -> &'a str;

/// A rate for each of a bounded number of keys.
pub struct Rate {
    what: &'static str,
    most: NonZeroU32,
    limiter: Limiter,
    clock: Arc<dyn Clock>,
    /// When idle keys were last removed because of the bound.
    swept_at: Mutex<Duration>,
}

/// The limited rates, the principal's first: an action that it refuses does not count against the subject.
pub struct Rates {
    asker: Vec<(KeyOf, Rate)>,
    tool: Option<Rate>,
}

impl Rate {
    /// A rate for each `what`, of this many a second.
    pub fn new(what: &'static str, most: NonZeroU32, clock: &Arc<dyn Clock>) -> Self {
        let limiter = Limiter::new(Quota::per_second(most), States::default(), Ticks(clock.clone()));
        Self { what, most, limiter, clock: clock.clone(), swept_at: Mutex::default() }
    }

    /// Counts one.
    pub fn check(&self, key: &str) -> Result<(), Throttled> {
        self.check_all(key, 1)
    }

    /// Counts several at once; of more than the rate ever lets pass together, as many as it does.
    pub(crate) fn check_all(&self, key: &str, count: u32) -> Result<(), Throttled> {
        let count = NonZeroU32::new(count).map_or(NonZeroU32::MIN, |count| count.min(self.most));
        let now = self.clock.monotonic().since_start();
        if self.limiter.len() >= RATE_KEYS_MAX {
            // Looks at all keys once a second: a key becomes idle a second or two after its last use.
            let mut swept_at = self.swept_at.lock();
            if now >= *swept_at + Duration::from_secs(1) {
                *swept_at = now;
                self.limiter.retain_recent();
            }
        }
        // No count is above the capacity.
        let Ok(answer) = self.limiter.check_key_n(&key.to_owned(), count) else { return Ok(()) };
        answer.map(drop).map_err(|not_until| Throttled {
            what: self.what,
            allowed: (self.most.get().into(), "a second"),
            after: not_until.wait_time_from(now),
        })
    }
}

impl Rates {
    pub fn new(rules: Rules, clock: &Arc<dyn Clock>) -> Self {
        let all: [(&str, Option<NonZeroU32>, KeyOf); 3] = [
            ("principal", rules.principal, |_, principal| principal.as_str()),
            ("subject", rules.subject, |request, _| request.subject_id.as_str()),
            ("space", rules.space, |request, _| request.space_id.as_str()),
        ];
        let limited =
            all.into_iter().filter_map(|(what, most, key)| Some((key, Rate::new(what, most?, clock))));
        Self { asker: limited.collect(), tool: rules.tool.map(|most| Rate::new("tool", most, clock)) }
    }

    /// Counts one action. If a rate refuses it, the rates before that one have counted it all the same.
    pub fn count(&self, request: &ActionRequest, principal: &Principal) -> Result<(), Throttled> {
        self.count_all(request, principal, [(request.tool_id.as_str(), 1)])
    }

    /// [`Rates::count`] of several actions that one request asks for, by their tools.
    pub(crate) fn count_all<'t>(
        &self,
        request: &ActionRequest,
        principal: &Principal,
        tools: impl IntoIterator<Item = (&'t str, u32)> + Clone,
    ) -> Result<(), Throttled> {
        let all = tools.clone().into_iter().map(|(_, actions)| actions).sum();
        self.asker.iter().try_for_each(|(key, rate)| rate.check_all(key(request, principal), all))?;
        let Some(rate) = &self.tool else { return Ok(()) };
        tools.into_iter().try_for_each(|(tool, actions)| rate.check_all(tool, actions))
    }

    fn rates(&self) -> impl Iterator<Item = &Rate> {
        self.asker.iter().map(|(_, rate)| rate).chain(&self.tool)
    }

    /// Removes idle keys.
    pub fn sweep(&self) {
        for rate in self.rates() {
            rate.limiter.retain_recent();
            rate.limiter.shrink_to_fit();
        }
    }

    pub fn len(&self) -> usize {
        self.rates().map(|rate| rate.limiter.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use effectd_contracts::{ManualClock, Timestamp};
    use serde_json::json;

    fn request(subject: &str, tool: &str) -> ActionRequest {
        let request = json!({ "action_id": "a", "subject_id": subject, "space_id": "s", "tool_id": tool });
        ActionRequest::parse(request.to_string().as_bytes()).unwrap()
    }

    fn rates(rules: Rules) -> (Arc<ManualClock>, Rates) {
        let clock = Arc::new(ManualClock::at(Timestamp::UNIX_EPOCH));
        let shared: Arc<dyn Clock> = clock.clone();
        (clock, Rates::new(rules, &shared))
    }

    fn two() -> Option<NonZeroU32> {
        NonZeroU32::new(2)
    }

    #[test]
    fn each_kind_is_limited_by_itself_and_says_when_to_come_back() {
        let alice = Principal::new("user://alice").unwrap();
        let bob = Principal::new("user://bob").unwrap();
        let (clock, subjects) = rates(Rules { subject: two(), ..Rules::UNLIMITED });
        let asked = request("agent://a", "t.x");
        assert!(subjects.count(&asked, &alice).is_ok() && subjects.count(&asked, &alice).is_ok());
        let refused = subjects.count(&asked, &bob).unwrap_err();
        assert_eq!((refused.what, refused.after), ("subject", Duration::from_millis(500)));
        assert!(refused.is_subjects());
        let failure = refused.failure();
        assert_eq!((failure.code, failure.retry_after_ms), (Code::RateLimited, Some(500)));
        assert!(failure.message.contains("2 a second, 0 left"), "{failure}");
        assert!(subjects.count(&request("agent://b", "t.x"), &alice).is_ok());
        clock.advance(Duration::from_millis(500));
        assert!(subjects.count(&asked, &bob).is_ok());
        for (rules, what) in [
            (Rules { tool: two(), ..Rules::UNLIMITED }, "tool"),
            (Rules { space: two(), ..Rules::UNLIMITED }, "space"),
            (Rules { principal: two(), ..Rules::UNLIMITED }, "principal"),
        ] {
            let (_, rates) = rates(rules);
            let answers: Vec<_> = (0..3).map(|_| rates.count(&asked, &alice)).collect();
            let refused = answers[2].unwrap_err();
            assert_eq!((refused.what, refused.is_subjects()), (what, false));
        }
    }

    #[test]
    fn a_batch_counts_as_its_items_for_each_of_their_tools() {
        let alice = Principal::new("user://alice").unwrap();
        let four = NonZeroU32::new(4);
        let (clock, rates) = rates(Rules { tool: two(), subject: four, ..Rules::UNLIMITED });
        let asked = request("agent://a", "t.batch");
        let count = |tools: &[(&'static str, u32)]| rates.count_all(&asked, &alice, tools.iter().copied());
        assert!(count(&[("t.x", 2), ("t.y", 1)]).is_ok());
        assert_eq!(count(&[("t.z", 2)]).unwrap_err().what, "subject", "one is left");
        clock.advance(Duration::from_secs(10));
        assert!(count(&[("t.x", 1)]).is_ok());
        assert_eq!(count(&[("t.x", 2)]).unwrap_err().what, "tool");
        clock.advance(Duration::from_secs(10));
        assert!(count(&[("t.x", 60)]).is_ok(), "larger than the rate, and nothing else counts");
        assert!(count(&[("t.y", 1)]).is_err());
    }

    #[test]
    fn a_runaway_meets_the_rates_as_shipped_and_others_do_not() {
        let (clock, shipped) = rates(Rules::default());
        let user = |n: usize| Principal::new(format!("user://{n}")).unwrap();
        let count = |n: usize, subject: &str, space: &str, tool: &str| {
            let asked =
                json!({ "action_id": "a", "subject_id": subject, "space_id": space, "tool_id": tool });
            let asked = ActionRequest::parse(asked.to_string().as_bytes()).unwrap();
            shipped.count(&asked, &user(n)).map_err(|throttled| throttled.what)
        };
        // Users who flood from one moment on, until the first is refused by anything but their own rate.
        let flood = |of: &dyn Fn(usize) -> [String; 3]| {
            clock.advance(Duration::from_secs(10));
            (0..10).find_map(|n| {
                let [subject, space, tool] = of(n);
                let ended = (0..1_000).find_map(|_| count(n, &subject, &space, &tool).err());
                ended.filter(|what| *what != "principal").map(|what| (n, what))
            })
        };
        let own = |n: usize, what: &str| format!("{what}{n}");
        let (who, place, tool) = ("agent://s", "shared:p", "t.x");
        assert_eq!(flood(&|n| [own(n, who), own(n, place), own(n, tool)]), None, "each meets its own rate");
        assert_eq!(flood(&|n| [who.into(), own(n, place), own(n, tool)]), Some((2, "subject")));
        assert_eq!(flood(&|n| [own(n, who), place.into(), own(n, tool)]), Some((5, "space")));
        assert_eq!(flood(&|n| [own(n, who), own(n, place), tool.into()]), Some((5, "tool")));
        // Ten planners of one user, each with ten actions a second, for a minute.
        for _ in 0..600 {
            clock.advance(Duration::from_millis(100));
            for planner in 0..10 {
                assert_eq!(count(0, &own(planner, who), place, tool), Ok(()));
            }
        }
    }

    #[test]
    fn a_known_key_keeps_its_rate_when_keys_run_out() {
        let clock = Arc::new(ManualClock::at(Timestamp::UNIX_EPOCH));
        let shared: Arc<dyn Clock> = clock.clone();
        let rate = Rate::new("address", two().unwrap(), &shared);
        clock.advance(Duration::from_secs(10));
        assert!(rate.check("noisy").is_ok() && rate.check("noisy").is_ok() && rate.check("quiet").is_ok());
        for n in 2..RATE_KEYS_MAX {
            assert_eq!(rate.check(&n.to_string()), Ok(()));
        }
        // New keys share one rate.
        assert!(rate.check("new").is_ok() && rate.check("newer").is_ok());
        assert!(rate.check("newest").is_err());
        assert!(rate.check("noisy").is_err(), "its count is not forgotten");
        assert_eq!(rate.check("quiet"), Ok(()), "nobody else used its rate");
        clock.advance(Duration::from_secs(10));
        assert_eq!((rate.check("newest"), rate.limiter.len()), (Ok(()), 1));
    }

    #[test]
    fn idle_keys_are_forgotten_and_their_number_is_bounded() {
        let alice = Principal::new("user://alice").unwrap();
        let (clock, subjects) = rates(Rules { subject: two(), ..Rules::UNLIMITED });
        for n in 0..RATE_KEYS_MAX + 100 {
            // Subjects beyond the bound share one rate, so some are refused.
            let _ = subjects.count(&request(&format!("agent://{n}"), "t.x"), &alice);
        }
        assert!(subjects.len() <= RATE_KEYS_MAX + 1, "{}", subjects.len());
        clock.advance(Duration::from_secs(60));
        subjects.sweep();
        assert!(subjects.is_empty());
    }
}
