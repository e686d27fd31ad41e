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

#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Failures in a row that open a breaker: fewer are bad luck, more would be noticed by people first.
    pub failures_max: u32,
    /// Share of failed calls within the window that opens a breaker: a tool that fails every second time is broken.
    pub error_share_max: f64,
    /// Calls within the window before their share of failures means anything.
    pub calls_min: u32,
    /// The time over which the share of failures is counted.
    pub window: Duration,
    /// How long a breaker stays open the first time.
    pub cool_down: Duration,
    /// How long it stays open at most, when each try fails again: the time doubles up to this.
    pub cool_down_max: Duration,
    /// Calls let through at once to find out whether it works again.
    pub probes: u32,
    /// Calls at once at the end of a gradual release; beyond it the breaker is closed. From one, six steps lead there.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    Closed,
    Open,
    /// A few calls pass, to see whether it works again.
    HalfOpen,
    /// It works again, and more and more calls pass.
    Releasing,
}

impl Standing {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    Failures,
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
        | Code::ArchiveInvalid
        | Code::EffectsUndeclared
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
    Good,
    /// The tool does not.
    Bad,
    /// It says nothing about the tool.
    Silent,
}

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

    pub fn last_used(&self) -> Monotonic {
        self.last_used
    }

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
mod tests;
