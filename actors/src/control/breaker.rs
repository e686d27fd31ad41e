//! One circuit breaker: a tool that keeps failing is left alone for a while, instead of being tried by everybody in turn.
//!
//! Closed, it counts. It opens after so many failures in a row, or when too large a share of the calls within a window has
//! failed. Open, it refuses everything until its cool-down is over; then a few probes are let through. If they succeed it is
//! released step by step: twice as many calls at once after each step that went well. A failure on the way opens it again,
//! for longer.

use std::time::Duration;

use effectd_contracts::{Code, Monotonic};
use serde::{Deserialize, Serialize};

use crate::limits;

/// When breakers open, and how they close again.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// See [`limits::BREAKER_FAILURES_MAX`].
    pub failures_max: u32,
    /// See [`limits::BREAKER_ERROR_SHARE_MAX`].
    pub error_share_max: f64,
    /// See [`limits::BREAKER_CALLS_MIN`].
    pub calls_min: u32,
    /// See [`limits::BREAKER_WINDOW`].
    pub window: Duration,
    /// See [`limits::BREAKER_COOL_DOWN`].
    pub cool_down: Duration,
    /// See [`limits::BREAKER_COOL_DOWN_MAX`].
    pub cool_down_max: Duration,
    /// See [`limits::BREAKER_PROBES`].
    pub probes: u32,
    /// See [`limits::BREAKER_RELEASE_MAX`].
    pub release_max: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            failures_max: limits::BREAKER_FAILURES_MAX,
            error_share_max: limits::BREAKER_ERROR_SHARE_MAX,
            calls_min: limits::BREAKER_CALLS_MIN,
            window: limits::BREAKER_WINDOW,
            cool_down: limits::BREAKER_COOL_DOWN,
            cool_down_max: limits::BREAKER_COOL_DOWN_MAX,
            probes: limits::BREAKER_PROBES,
            release_max: limits::BREAKER_RELEASE_MAX,
        }
    }
}

/// How a breaker stands, for people and programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Everything passes.
    Closed,
    /// Nothing passes.
    Open,
    /// A few calls pass, to see whether it works again.
    HalfOpen,
    /// It works again, and more and more calls pass.
    Releasing,
}

impl Standing {
    /// All of them.
    pub const ALL: [Standing; 4] = [
        Standing::Closed,
        Standing::Open,
        Standing::HalfOpen,
        Standing::Releasing,
    ];

    /// The wire form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Standing::Closed => "closed",
            Standing::Open => "open",
            Standing::HalfOpen => "half_open",
            Standing::Releasing => "releasing",
        }
    }
}

/// Why a breaker is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// So many failures in a row.
    Failures,
    /// Too large a share of failures.
    ErrorShare,
    /// It was tried again, and failed again.
    Probe,
    /// A person opened it, and a person must close it.
    Operator,
}

impl Cause {
    /// The wire form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Cause::Failures => "failures",
            Cause::ErrorShare => "error_share",
            Cause::Probe => "probe",
            Cause::Operator => "operator",
        }
    }
}

/// Whether a failure says something about the tool. What only says that this request could not be done must not take the
/// tool away from everybody else: a planner that writes outside of its space would close the files for all.
pub const fn counts(code: Code) -> bool {
    match code {
        Code::TimedOut
        | Code::CpuLimit
        | Code::MemoryLimit
        | Code::ProcessLimit
        | Code::SyscallDenied
        | Code::SandboxFailed
        | Code::ToolBusy
        | Code::ResultInvalid => true,
        Code::Malformed
        | Code::ParamsInvalid
        | Code::UnknownTool
        | Code::ActionConflict
        | Code::PolicyDenied
        | Code::SafetyQuarantined
        | Code::HumanDenied
        | Code::ApprovalExpired
        | Code::NetworkNotWhitelisted
        | Code::ToolDisabled
        | Code::RateLimited
        | Code::PendingLimit
        | Code::Overloaded
        | Code::ShuttingDown
        | Code::BreakerOpen
        | Code::IdempotencyConflict
        | Code::OutputLimit
        | Code::FileLimit
        | Code::PathDenied
        | Code::PermissionDenied
        | Code::FileNotFound
        | Code::FileExists
        | Code::NotAFile
        | Code::NotAFolder
        | Code::NotText
        | Code::StateChanged
        | Code::DiskFull
        | Code::UndoGone
        | Code::NetworkDenied
        | Code::SandboxUnavailable
        | Code::ToolFailed
        | Code::OutcomeUnknown
        | Code::Reverted
        | Code::Cancelled
        | Code::StoreUnavailable
        | Code::Internal => false,
    }
}

/// How a call ended, as far as the breaker cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// The tool works.
    Good,
    /// The tool does not.
    Bad,
    /// It says nothing about the tool.
    Silent,
}

/// What a breaker says to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may pass, and must be reported under this generation.
    Pass(u64),
    /// Not now. `None` if only a person can change that.
    Refused(Option<Duration>),
}

#[derive(Debug, Clone, PartialEq)]
enum State {
    Closed {
        in_a_row: u32,
    },
    Open {
        since: Monotonic,
        cool_down: Duration,
        cause: Cause,
    },
    /// `allowed` calls at once; `good` of the present step went well.
    Trying {
        half_open: bool,
        allowed: u32,
        in_flight: u32,
        good: u32,
    },
}

/// Parts of the window: old calls leave it one part at a time.
const PARTS: usize = 10;

/// One breaker.
#[derive(Debug, Clone, PartialEq)]
pub struct Breaker {
    state: State,
    /// Counts changes of state, so that a call from before does not speak about after.
    generation: u64,
    /// The cool-down of the next opening.
    next_cool_down: Duration,
    counts: [(u32, u32); PARTS],
    part: u64,
    last_used: Monotonic,
}

/// What is kept of a breaker that is not simply closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// What is left of its cool-down; `None` if a person opened it.
    pub left: Option<Duration>,
    /// Its whole cool-down.
    pub cool_down: Duration,
    /// Why it opened.
    pub cause: Cause,
}

impl Breaker {
    /// A closed one.
    pub fn new(rules: &Rules, now: Monotonic) -> Self {
        Self {
            state: State::Closed { in_a_row: 0 },
            generation: 0,
            next_cool_down: rules.cool_down,
            counts: [(0, 0); PARTS],
            part: 0,
            last_used: now,
        }
    }

    /// One that an earlier process left open.
    pub fn kept(rules: &Rules, kept: &Kept, now: Monotonic) -> Self {
        let cool_down = kept.cool_down.min(rules.cool_down_max);
        let mut breaker = Self::new(rules, now);
        // What was left then is left now, and never more than the whole.
        let left = kept.left.unwrap_or(cool_down).min(cool_down);
        breaker.state = State::Open {
            since: now,
            cool_down: left,
            cause: kept.cause,
        };
        breaker.next_cool_down = longer(cool_down, rules);
        breaker
    }

    /// How it stands at this moment.
    pub fn standing(&self, now: Monotonic) -> Standing {
        match &self.state {
            State::Closed { .. } => Standing::Closed,
            State::Open { .. } if self.left(now).is_some_and(|left| left.is_zero()) => Standing::HalfOpen,
            State::Open { .. } => Standing::Open,
            State::Trying { half_open: true, .. } => Standing::HalfOpen,
            State::Trying { .. } => Standing::Releasing,
        }
    }

    /// Why it is open, if it is.
    pub fn cause(&self) -> Option<Cause> {
        match &self.state {
            State::Open { cause, .. } => Some(*cause),
            State::Closed { .. } | State::Trying { .. } => None,
        }
    }

    /// What is left of the cool-down; `None` if it is not open, or a person must close it.
    pub fn left(&self, now: Monotonic) -> Option<Duration> {
        match &self.state {
            State::Open {
                cause: Cause::Operator,
                ..
            } => None,
            State::Open { since, cool_down, .. } => Some(cool_down.saturating_sub(now.since(*since))),
            State::Closed { .. } | State::Trying { .. } => None,
        }
    }

    /// The whole cool-down of the opening that it is in.
    pub fn cool_down(&self) -> Option<Duration> {
        match &self.state {
            State::Open { cool_down, .. } => Some(*cool_down),
            State::Closed { .. } | State::Trying { .. } => None,
        }
    }

    /// Calls and failures within the window.
    pub fn counted(&mut self, rules: &Rules, now: Monotonic) -> (u32, u32) {
        self.turn(rules, now);
        let sum = |(calls, bad): (u32, u32), part: &(u32, u32)| (calls + part.0, bad + part.1);
        self.counts.iter().fold((0, 0), sum)
    }

    /// When it was last asked.
    pub fn last_used(&self) -> Monotonic {
        self.last_used
    }

    /// Asks whether a call may pass.
    pub fn ask(&mut self, rules: &Rules, now: Monotonic) -> Verdict {
        self.last_used = now;
        if self.standing(now) == Standing::HalfOpen
            && let State::Open { .. } = self.state
        {
            self.enter(State::Trying {
                half_open: true,
                allowed: rules.probes,
                in_flight: 0,
                good: 0,
            });
        }
        match &mut self.state {
            State::Closed { .. } => Verdict::Pass(self.generation),
            State::Open { .. } => Verdict::Refused(self.left(now)),
            State::Trying {
                allowed, in_flight, ..
            } if *in_flight < *allowed => {
                *in_flight += 1;
                Verdict::Pass(self.generation)
            }
            State::Trying { .. } => Verdict::Refused(Some(limits::BREAKER_TRY_AGAIN)),
        }
    }

    /// Takes in what one try of a call that passed came to. Says whether the breaker has changed what is to be kept.
    pub fn report(&mut self, generation: u64, report: Report, rules: &Rules, now: Monotonic) -> bool {
        let bad = match report {
            Report::Silent => return false,
            Report::Good => false,
            Report::Bad => true,
        };
        self.turn(rules, now);
        let part = &mut self.counts[usize::try_from(self.part).unwrap_or(0) % PARTS];
        *part = (part.0.saturating_add(1), part.1.saturating_add(u32::from(bad)));
        if generation != self.generation {
            return false;
        }
        let (calls, failed) = self.counted(rules, now);
        match (&mut self.state, bad) {
            (State::Closed { in_a_row }, false) => {
                *in_a_row = 0;
                false
            }
            (State::Closed { in_a_row }, true) => {
                *in_a_row += 1;
                if *in_a_row >= rules.failures_max {
                    return self.open(Cause::Failures, rules, now);
                }
                let share = f64::from(failed) / f64::from(calls.max(1));
                if calls >= rules.calls_min && share >= rules.error_share_max {
                    return self.open(Cause::ErrorShare, rules, now);
                }
                false
            }
            (State::Trying { .. }, true) => self.open(Cause::Probe, rules, now),
            (State::Trying { allowed, good, .. }, false) => {
                *good += 1;
                if good < allowed {
                    return false;
                }
                let next = allowed.saturating_mul(2);
                self.release(next, rules)
            }
            (State::Open { .. }, _) => false,
        }
    }

    /// A call that passed is over, however it went.
    pub fn over(&mut self, generation: u64) {
        if generation == self.generation
            && let State::Trying { in_flight, .. } = &mut self.state
        {
            *in_flight = in_flight.saturating_sub(1);
        }
    }

    /// A person opens it, until a person closes it.
    pub fn trip(&mut self, now: Monotonic) {
        self.last_used = now;
        self.enter(State::Open {
            since: now,
            cool_down: Duration::ZERO,
            cause: Cause::Operator,
        });
    }

    fn open(&mut self, cause: Cause, rules: &Rules, now: Monotonic) -> bool {
        let cool_down = self.next_cool_down;
        self.next_cool_down = longer(cool_down, rules);
        self.enter(State::Open {
            since: now,
            cool_down,
            cause,
        });
        true
    }

    /// The next step of the release, or its end. Calls of the step before still count: they keep the generation, and the
    /// number in flight goes over.
    fn release(&mut self, next: u32, rules: &Rules) -> bool {
        if next > rules.release_max {
            self.next_cool_down = rules.cool_down;
            self.counts = [(0, 0); PARTS];
            self.enter(State::Closed { in_a_row: 0 });
            return true;
        }
        if let State::Trying {
            half_open,
            allowed,
            good,
            ..
        } = &mut self.state
        {
            (*half_open, *allowed, *good) = (false, next, 0);
        }
        false
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.generation += 1;
    }

    /// Lets the parts of the window go by that are over.
    fn turn(&mut self, rules: &Rules, now: Monotonic) {
        let length = (rules.window / 10).as_millis().max(1);
        let part = u64::try_from(now.since_start().as_millis() / length).unwrap_or(u64::MAX);
        let gone = part.saturating_sub(self.part).min(PARTS as u64);
        for step in 0..gone {
            let index = usize::try_from((part - step) % PARTS as u64).unwrap_or(0);
            self.counts[index] = (0, 0);
        }
        self.part = self.part.max(part);
    }
}

fn longer(cool_down: Duration, rules: &Rules) -> Duration {
    cool_down.saturating_mul(2).min(rules.cool_down_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(1_000 + seconds))
    }

    fn rules() -> Rules {
        Rules {
            failures_max: 3,
            error_share_max: 0.5,
            calls_min: 10,
            window: Duration::from_secs(60),
            cool_down: Duration::from_secs(30),
            cool_down_max: Duration::from_secs(100),
            probes: 1,
            release_max: 4,
        }
    }

    fn call(breaker: &mut Breaker, report: Report, now: Monotonic) -> bool {
        let Verdict::Pass(generation) = breaker.ask(&rules(), now) else {
            panic!("refused")
        };
        let changed = breaker.report(generation, report, &rules(), now);
        breaker.over(generation);
        changed
    }

    fn opened(now: Monotonic) -> Breaker {
        let mut breaker = Breaker::new(&rules(), now);
        assert!(!call(&mut breaker, Report::Bad, now));
        assert!(!call(&mut breaker, Report::Bad, now));
        assert!(call(&mut breaker, Report::Bad, now));
        breaker
    }

    #[test]
    fn so_many_failures_in_a_row_open_it_and_one_success_starts_the_count_anew() {
        let mut breaker = Breaker::new(&rules(), at(0));
        for report in [
            Report::Bad,
            Report::Bad,
            Report::Good,
            Report::Bad,
            Report::Silent,
            Report::Bad,
        ] {
            assert!(!call(&mut breaker, report, at(0)));
        }
        assert_eq!(breaker.standing(at(0)), Standing::Closed);
        assert!(call(&mut breaker, Report::Bad, at(0)));
        assert_eq!(breaker.standing(at(0)), Standing::Open);
        assert_eq!(breaker.cause(), Some(Cause::Failures));
        let refused = Verdict::Refused(Some(Duration::from_secs(20)));
        assert_eq!(breaker.ask(&rules(), at(10)), refused);
    }

    #[test]
    fn too_large_a_share_of_failures_within_the_window_opens_it() {
        let mixed = |spread: u64| {
            let mut breaker = Breaker::new(&rules(), at(0));
            (0..5_u64).any(|n| {
                let now = at(n * spread);
                assert!(!call(&mut breaker, Report::Good, now));
                call(&mut breaker, Report::Bad, now)
            })
        };
        assert!(mixed(1), "five of ten within five seconds");
        assert!(!mixed(20), "never more than six calls within a minute");
    }

    #[test]
    fn after_its_cool_down_one_probe_is_let_through_and_closes_it_step_by_step() {
        let mut breaker = opened(at(0));
        assert_eq!(breaker.standing(at(30)), Standing::HalfOpen);
        let Verdict::Pass(probe) = breaker.ask(&rules(), at(30)) else {
            panic!("the probe was refused")
        };
        assert!(matches!(breaker.ask(&rules(), at(30)), Verdict::Refused(Some(_))));
        assert!(!breaker.report(probe, Report::Good, &rules(), at(30)));
        breaker.over(probe);
        assert_eq!(breaker.standing(at(30)), Standing::Releasing);
        let two: Vec<_> = (0..3).map(|_| breaker.ask(&rules(), at(31))).collect();
        assert!(
            matches!(two[..], [Verdict::Pass(_), Verdict::Pass(_), Verdict::Refused(_)]),
            "{two:?}"
        );
        breaker.over(probe);
        breaker.over(probe);
        assert!(!call(&mut breaker, Report::Good, at(32)));
        assert!(!call(&mut breaker, Report::Good, at(32)));
        let closed: Vec<_> = (0..4).map(|_| call(&mut breaker, Report::Good, at(33))).collect();
        assert_eq!(closed, [false, false, false, true]);
        assert_eq!(breaker.standing(at(33)), Standing::Closed);
    }

    #[test]
    fn a_probe_that_fails_opens_it_for_longer_up_to_a_bound() {
        let (mut breaker, mut now) = (opened(at(0)), 0);
        for seconds in [30, 60, 100, 100] {
            assert_eq!(breaker.left(at(now)), Some(Duration::from_secs(seconds)));
            now += seconds;
            assert!(call(&mut breaker, Report::Bad, at(now)));
            assert_eq!(breaker.cause(), Some(Cause::Probe));
        }
    }

    #[test]
    fn a_call_from_before_it_opened_does_not_speak_about_after() {
        let mut breaker = Breaker::new(&rules(), at(0));
        let Verdict::Pass(before) = breaker.ask(&rules(), at(0)) else {
            panic!("refused")
        };
        for _ in 0..3 {
            breaker.report(before, Report::Bad, &rules(), at(0));
        }
        assert!(!breaker.report(before, Report::Good, &rules(), at(1)));
        assert_eq!(breaker.standing(at(1)), Standing::Open);
        let Verdict::Pass(_) = breaker.ask(&rules(), at(30)) else {
            panic!("the probe was refused")
        };
        breaker.over(before);
        assert!(
            matches!(breaker.ask(&rules(), at(30)), Verdict::Refused(_)),
            "the probe's place was not given away"
        );
    }

    #[test]
    fn what_a_person_opened_only_a_person_closes() {
        let mut breaker = Breaker::new(&rules(), at(0));
        breaker.trip(at(0));
        assert_eq!(breaker.ask(&rules(), at(1_000_000)), Verdict::Refused(None));
        assert_eq!(breaker.standing(at(1_000_000)), Standing::Open);
    }

    #[test]
    fn a_kept_breaker_goes_on_with_what_was_left_and_never_with_more() {
        let kept = |left: u64| Kept {
            left: Some(Duration::from_secs(left)),
            cool_down: Duration::from_secs(60),
            cause: Cause::Probe,
        };
        let left = |seconds| Breaker::kept(&rules(), &kept(seconds), at(0)).left(at(0));
        assert_eq!(left(7), Some(Duration::from_secs(7)));
        assert_eq!(
            left(5_000),
            Some(Duration::from_secs(60)),
            "the wall clock was put back"
        );
        assert_eq!(
            Breaker::kept(&rules(), &kept(0), at(0)).standing(at(0)),
            Standing::HalfOpen
        );
    }
}
