//! The exit codes, which scripts rely on.

use std::process::ExitCode;

use effectd_actors::Answer;
use effectd_contracts::{Code, Outcome};

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: it was done, now or before, or tried out as asked.
    Done,
    /// 1: it failed.
    Failed,
    /// 2: the command or the request makes no sense.
    Usage,
    /// 3: a rule or a person said no.
    Denied,
    /// 4: it waits for a person.
    Held,
    /// 5: its content is held for review.
    Quarantined,
    /// 6: whether it happened cannot be told.
    Unknown,
    /// 69: this host or its state cannot be used.
    Unavailable,
    /// 70: effectd itself broke down; the next start goes on with what is on its bus.
    Broken,
    /// 74: standard output cannot be written, for instance because the disk is full.
    Output,
    /// 75: not now; try again.
    TryAgain,
}

impl Exit {
    /// The number.
    pub const fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Denied => 3,
            Exit::Held => 4,
            Exit::Quarantined => 5,
            Exit::Unknown => 6,
            Exit::Unavailable => 69,
            Exit::Broken => 70,
            Exit::Output => 74,
            Exit::TryAgain => 75,
        }
    }

    /// What an outcome means for scripts. Exhaustive on purpose.
    pub const fn of(outcome: Outcome) -> Self {
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

    /// What an answer means for scripts.
    pub fn of_answer(answer: &Answer) -> Self {
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
