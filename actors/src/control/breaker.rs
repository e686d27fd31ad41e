//! One circuit breaker: a tool that keeps failing is not called for a while.
//!
//! Closed, it counts. It opens after some failures in a row, or when too large a share of the calls within a window has failed.
//! Open, it refuses every call until its cool-down has passed; then, half open, it lets a few probes through. If they succeed, it
//! releases calls step by step: twice as many at once after each good step. A failure opens it again, for longer.

use std::time::Duration;

use effectd_contracts::{Code, Monotonic, wire_enum};
use serde::{Deserialize, Serialize};

use crate::limits;

#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Failures in a row that open a breaker: fewer may be chance, and people would notice more before the breaker does.
    pub failures_max: u32,
    /// Share of failed calls within the window that opens a breaker: a tool that fails every second time is broken.
    pub error_share_max: f64,
    /// Fewest calls within the window for which the share of failures counts.
    pub calls_min: u32,
    /// The window over which the share of failures is measured.
    pub window: Duration,
    /// How long a breaker stays open the first time.
    pub cool_down: Duration,
    /// The longest cool-down: it doubles each time, up to this.
    pub cool_down_max: Duration,
    /// Probes that a half-open breaker lets through at once.
    pub probes: u32,
    /// Calls at once in the last step of the release, after which the breaker closes. By default, six steps lead from 1 to 32.
    pub release_max: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            failures_max: 5,
            error_share_max: 0.5,
            calls_min: 20,
            window: Duration::from_secs(60),
            cool_down: Duration::from_secs(30),
            cool_down_max: Duration::from_secs(600),
            probes: 1,
            release_max: 32,
        }
    }
}

wire_enum! {
    pub enum BreakerState {
        Closed = "closed",
        Open = "open",
        /// A few probes pass.
        HalfOpen = "half_open",
        /// More and more calls pass.
        Releasing = "releasing",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    Failures,
    ErrorShare,
    /// A probe or another call of the release failed.
    Probe,
    /// A person opened it, and a person must close it.
    Operator,
    /// A person opened it for a while.
    OperatorFor,
}

impl Cause {
    pub const fn as_str(self) -> &'static str {
        match self {
            Cause::Failures => "failures",
            Cause::ErrorShare => "error_share",
            Cause::Probe => "probe",
            Cause::Operator | Cause::OperatorFor => "operator",
        }
    }
}

/// Whether a failure counts against the tool. A failure that only the request caused does not: otherwise a planner that writes
/// outside of its space could shut the tool off for everybody.
pub const fn counts(code: Code) -> bool {
    match code {
        Code::TimedOut
        | Code::CpuLimit
        | Code::MemoryLimit
        | Code::ProcessLimit
        | Code::SyscallDenied
        | Code::SandboxFailed
        | Code::ToolBusy
        | Code::EgressFailed
        | Code::ResultInvalid => true,
        Code::Malformed
        | Code::ParamsInvalid
        | Code::UnknownTool
        | Code::SessionUnknown
        | Code::ActionConflict
        | Code::PolicyDenied
        | Code::SafetyQuarantined
        | Code::HumanDenied
        | Code::ApprovalExpired
        | Code::NetworkNotWhitelisted
        | Code::ToolDisabled
        | Code::ToolDrifted
        | Code::PluginCodeDisabled
        | Code::InterpreterMissing
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
        | Code::ArchiveInvalid
        | Code::EffectsUndeclared
        | Code::StateChanged
        | Code::DiskFull
        | Code::UndoGone
        | Code::ResultGone
        | Code::NetworkDenied
        | Code::ConnectionMissing
        | Code::SecretMissing
        | Code::EgressRefused
        | Code::ServiceRefused
        | Code::SandboxUnavailable
        | Code::ToolFailed
        | Code::ScopeDenied
        | Code::VerificationFailed
        | Code::RollbackFailed
        | Code::OutcomeUnknown
        | Code::NotStarted
        | Code::BatchRolledBack
        | Code::BatchIncomplete
        | Code::Cancelled
        | Code::StoreUnavailable
        | Code::Internal => false,
    }
}

/// The outcome of a call, as the breaker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    Good,
    Bad,
    /// The outcome says nothing about the tool.
    Silent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The call passes, and reports under this generation.
    Pass(u64),
    /// The call is refused for this long; `None` if only a person can close the breaker.
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
    /// Lets `allowed` calls through at once; `good` calls of this step have succeeded.
    Trying {
        half_open: bool,
        allowed: u32,
        in_flight: u32,
        good: u32,
    },
}

/// Parts of the window: old calls leave it one part at a time.
const PARTS: usize = 10;

#[derive(Debug, Clone, PartialEq)]
pub struct Breaker {
    state: State,
    /// Counts changes of state: a report from before a change still counts in the window, but cannot change the state.
    generation: u64,
    /// The cool-down if the breaker opens again.
    next_cool_down: Duration,
    counts: [(u32, u32); PARTS],
    part: u64,
    last_used: Monotonic,
}

/// A stored breaker that is not closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// What was left of the cool-down; `None` if a person opened the breaker.
    pub left: Option<Duration>,
    pub cool_down: Duration,
    pub cause: Cause,
}

impl Breaker {
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

    /// A breaker that an earlier process left open.
    pub fn kept(rules: &Rules, kept: &Kept, now: Monotonic) -> Self {
        let cool_down = match kept.cause {
            Cause::OperatorFor => kept.cool_down,
            Cause::Failures | Cause::ErrorShare | Cause::Probe | Cause::Operator => {
                kept.cool_down.min(rules.cool_down_max)
            }
        };
        let mut breaker = Self::new(rules, now);
        // The remaining cool-down continues, and never exceeds a whole one.
        let left = kept.left.unwrap_or(cool_down).min(cool_down);
        breaker.state = State::Open { since: now, cool_down: left, cause: kept.cause };
        breaker.next_cool_down = longer(cool_down, rules);
        breaker
    }

    pub fn state(&self, now: Monotonic) -> BreakerState {
        match &self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { .. } if self.left(now).is_some_and(|left| left.is_zero()) => BreakerState::HalfOpen,
            State::Open { .. } => BreakerState::Open,
            State::Trying { half_open: true, .. } => BreakerState::HalfOpen,
            State::Trying { .. } => BreakerState::Releasing,
        }
    }

    pub fn cause(&self) -> Option<Cause> {
        match &self.state {
            State::Open { cause, .. } => Some(*cause),
            State::Closed { .. } | State::Trying { .. } => None,
        }
    }

    /// What is left of the cool-down; `None` if the breaker is not open, or only a person can close it.
    pub fn left(&self, now: Monotonic) -> Option<Duration> {
        match &self.state {
            State::Open { cause: Cause::Operator, .. } => None,
            State::Open { since, cool_down, .. } => Some(cool_down.saturating_sub(now.since(*since))),
            State::Closed { .. } | State::Trying { .. } => None,
        }
    }

    /// The whole cool-down of the current opening.
    pub fn cool_down(&self) -> Option<Duration> {
        match &self.state {
            State::Open { cool_down, .. } => Some(*cool_down),
            State::Closed { .. } | State::Trying { .. } => None,
        }
    }

    /// Calls and failures within the window.
    pub fn counted(&mut self, rules: &Rules, now: Monotonic) -> (u32, u32) {
        self.advance(rules, now);
        let sum = |(calls, bad): (u32, u32), part: &(u32, u32)| (calls + part.0, bad + part.1);
        self.counts.iter().fold((0, 0), sum)
    }

    pub fn last_used(&self) -> Monotonic {
        self.last_used
    }

    /// Whether it may make room for another: it is closed, or its cool-down is over and no probe is in flight.
    pub fn is_idle(&self, now: Monotonic) -> bool {
        match &self.state {
            State::Closed { .. } => true,
            State::Open { .. } => self.left(now).is_some_and(|left| left.is_zero()),
            State::Trying { in_flight, .. } => *in_flight == 0,
        }
    }

    pub fn ask(&mut self, rules: &Rules, now: Monotonic) -> Verdict {
        self.last_used = now;
        if self.state(now) == BreakerState::HalfOpen
            && let State::Open { .. } = self.state
        {
            self.enter(State::Trying { half_open: true, allowed: rules.probes, in_flight: 0, good: 0 });
        }
        match &mut self.state {
            State::Closed { .. } => Verdict::Pass(self.generation),
            State::Open { .. } => Verdict::Refused(self.left(now)),
            State::Trying { allowed, in_flight, .. } if *in_flight < *allowed => {
                *in_flight += 1;
                Verdict::Pass(self.generation)
            }
            State::Trying { .. } => Verdict::Refused(Some(limits::BREAKER_TRY_AGAIN)),
        }
    }

    /// Reports one attempt of a call that passed. Returns whether the breaker must be stored.
    pub fn report(&mut self, generation: u64, report: Report, rules: &Rules, now: Monotonic) -> bool {
        let bad = match report {
            Report::Silent => return false,
            Report::Good => false,
            Report::Bad => true,
        };
        self.advance(rules, now);
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

    /// Ends a call that passed, whatever its outcome.
    pub fn over(&mut self, generation: u64) {
        if generation == self.generation
            && let State::Trying { in_flight, .. } = &mut self.state
        {
            *in_flight = in_flight.saturating_sub(1);
        }
    }

    /// A person opens the breaker, for a while or until a person closes it.
    pub fn trip(&mut self, now: Monotonic, lasts: Option<Duration>) {
        self.last_used = now;
        let cause = if lasts.is_some() { Cause::OperatorFor } else { Cause::Operator };
        self.enter(State::Open { since: now, cool_down: lasts.unwrap_or_default(), cause });
    }

    fn open(&mut self, cause: Cause, rules: &Rules, now: Monotonic) -> bool {
        let cool_down = self.next_cool_down;
        self.next_cool_down = longer(cool_down, rules);
        self.enter(State::Open { since: now, cool_down, cause });
        true
    }

    /// Starts the next step of the release, or closes. Calls of the previous step still count: the generation stays.
    fn release(&mut self, next: u32, rules: &Rules) -> bool {
        if next > rules.release_max {
            self.next_cool_down = rules.cool_down;
            self.counts = [(0, 0); PARTS];
            self.enter(State::Closed { in_a_row: 0 });
            return true;
        }
        if let State::Trying { half_open, allowed, good, .. } = &mut self.state {
            (*half_open, *allowed, *good) = (false, next, 0);
        }
        false
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.generation += 1;
    }

    /// Clears the parts that have left the window.
    fn advance(&mut self, rules: &Rules, now: Monotonic) {
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
mod tests;
