//! Rates per tool, subject, space and principal, by governor. They are in memory: a restart resets them. [`super::sessions`] has
//! the counts that must survive a restart.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::{ActionRequest, Clock, Code, Failure, Phase, Principal};
use governor::clock::Clock as GovernorClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};

use crate::limits::RATE_KEYS_MAX;

/// No rate is limited by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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

/// Which limit was reached, and when to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttled {
    /// The kind of limit: `tool`, `subject`, `space`, `principal`, `session` or `budget`.
    pub what: &'static str,
    /// The limit and its unit.
    pub allowed: (u64, &'static str),
    pub after: Duration,
}

impl Throttled {
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

type Limiter = RateLimiter<String, DashMapStateStore<String>, Ticks, NoOpMiddleware<Duration>>;

/// The key of a rate, from an action.
type KeyOf = for<'a> fn(&'a ActionRequest, &'a Principal) -> &'a str;

struct Rate {
    what: &'static str,
    key: KeyOf,
    most: NonZeroU32,
    limiter: Limiter,
    clock: Arc<dyn Clock>,
}

/// The limited rates, the principal's first: an action that it refuses does not count against the subject.
pub struct Rates(Vec<Rate>);

impl Rate {
    fn check(&self, key: &str) -> Result<(), Throttled> {
        if self.limiter.len() >= RATE_KEYS_MAX {
            self.limiter.retain_recent();
        }
        // Beyond the bound, new keys share one rate.
        let key = if self.limiter.len() >= RATE_KEYS_MAX { "" } else { key };
        let answer = self.limiter.check_key(&key.to_owned());
        answer.map(drop).map_err(|not_until| Throttled {
            what: self.what,
            allowed: (self.most.get().into(), "a second"),
            after: not_until.wait_time_from(self.clock.monotonic().since_start()),
        })
    }
}

impl Rates {
    pub fn new(rules: Rules, clock: &Arc<dyn Clock>) -> Self {
        let all: [(&str, Option<NonZeroU32>, KeyOf); 4] = [
            ("principal", rules.principal, |_, principal| principal.as_str()),
            ("subject", rules.subject, |request, _| request.subject_id.as_str()),
            ("space", rules.space, |request, _| request.space_id.as_str()),
            ("tool", rules.tool, |request, _| request.tool_id.as_str()),
        ];
        let limited = all.into_iter().filter_map(|(what, most, key)| {
            let quota = Quota::per_second(most?);
            let limiter = Limiter::new(quota, DashMapStateStore::default(), Ticks(clock.clone()));
            Some(Rate { what, key, most: most?, limiter, clock: clock.clone() })
        });
        Self(limited.collect())
    }

    /// Counts one action. If a rate refuses it, the rates before that one have counted it all the same.
    pub fn count(&self, request: &ActionRequest, principal: &Principal) -> Result<(), Throttled> {
        self.0.iter().try_for_each(|rate| rate.check((rate.key)(request, principal)))
    }

    /// Removes idle keys.
    pub fn sweep(&self) {
        for rate in &self.0 {
            rate.limiter.retain_recent();
            rate.limiter.shrink_to_fit();
        }
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|rate| rate.limiter.len()).sum()
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
        let (clock, subjects) = rates(Rules { subject: two(), ..Rules::default() });
        let asked = request("agent://a", "t.x");
        assert!(subjects.count(&asked, &alice).is_ok() && subjects.count(&asked, &alice).is_ok());
        let refused = subjects.count(&asked, &bob).unwrap_err();
        assert_eq!((refused.what, refused.after), ("subject", Duration::from_millis(500)));
        let failure = refused.failure();
        assert_eq!((failure.code, failure.retry_after_ms), (Code::RateLimited, Some(500)));
        assert!(failure.message.contains("2 a second, 0 left"), "{failure}");
        assert!(subjects.count(&request("agent://b", "t.x"), &alice).is_ok());
        clock.advance(Duration::from_millis(500));
        assert!(subjects.count(&asked, &bob).is_ok());
        for (rules, what) in [
            (Rules { tool: two(), ..Rules::default() }, "tool"),
            (Rules { space: two(), ..Rules::default() }, "space"),
            (Rules { principal: two(), ..Rules::default() }, "principal"),
        ] {
            let (_, rates) = rates(rules);
            let answers: Vec<_> = (0..3).map(|_| rates.count(&asked, &alice)).collect();
            assert_eq!(answers[2].unwrap_err().what, what);
        }
    }

    #[test]
    fn idle_keys_are_forgotten_and_their_number_is_bounded() {
        let alice = Principal::new("user://alice").unwrap();
        let (clock, subjects) = rates(Rules { subject: two(), ..Rules::default() });
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
