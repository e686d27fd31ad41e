//! The exit codes of the program. Scripts rely on them.

use std::process::ExitCode;

use effectd_actors::Answer;
use effectd_contracts::{Code, Outcome};

/// An exit code of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// 0: done, by this request or an earlier one, or dry-run as requested.
    Done = 0,
    /// 1: failed.
    Failed = 1,
    /// 2: the command or the request is invalid.
    Usage = 2,
    /// 3: denied by the policy or by a person.
    Denied = 3,
    /// 4: held for approval.
    Held = 4,
    /// 5: quarantined.
    Quarantined = 5,
    /// 6: the outcome is unknown.
    Unknown = 6,
    /// 69: this machine or its state cannot be used.
    Unavailable = 69,
    /// 70: effectd itself failed; the next start continues with the actions on the bus.
    Broken = 70,
    /// 74: standard output cannot be written, for example because the disk is full.
    Output = 74,
    /// 75: try again later.
    TryAgain = 75,
}

impl Exit {
    /// The number.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The word, as in the help.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Exit::Done => "done",
            Exit::Failed => "failed",
            Exit::Usage => "usage",
            Exit::Denied => "denied",
            Exit::Held => "held",
            Exit::Quarantined => "quarantined",
            Exit::Unknown => "outcome_unknown",
            Exit::Unavailable => "unavailable",
            Exit::Broken => "broken",
            Exit::Output => "output",
            Exit::TryAgain => "try_again",
        }
    }

    pub(crate) const fn of(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Executed | Outcome::CachedHit | Outcome::DryRun | Outcome::Paused => Exit::Done,
            Outcome::AwaitingApproval | Outcome::Approved | Outcome::Executing => Exit::Held,
            Outcome::DeniedPolicy | Outcome::DeniedHuman | Outcome::Expired | Outcome::Cancelled => {
                Exit::Denied
            }
            Outcome::Quarantined => Exit::Quarantined,
            Outcome::Invalid | Outcome::NotFound => Exit::Usage,
            Outcome::Throttled | Outcome::BreakerOpen => Exit::TryAgain,
            Outcome::Indeterminate => Exit::Unknown,
            Outcome::NotStarted | Outcome::Reverted | Outcome::Failed | Outcome::TimedOut => Exit::Failed,
        }
    }

    pub(crate) fn of_answer(answer: &Answer) -> Self {
        match answer {
            Answer::Done(done) => match done.receipt.error.as_ref().map(|failure| failure.code) {
                Some(Code::SandboxUnavailable) => Exit::Unavailable,
                _ => Exit::of(done.receipt.outcome),
            },
            Answer::Held(_) => Exit::Held,
            Answer::Refused(failure) if failure.code == Code::StoreUnavailable => Exit::Unavailable,
            Answer::Refused(failure) => Exit::of(failure.code.outcome()),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}
