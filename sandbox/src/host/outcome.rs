//! The outcome of a call: how the facts from the runtime and the kernel become one code.

use effectd_contracts::Code;

use crate::call::{Denial, Ending};
use crate::sys::process::Ended;
use crate::wire::{
    EXIT_ABORTED, EXIT_CPU_LIMIT, EXIT_FILE_LIMIT, EXIT_MEMORY_LIMIT, Kind, split, unpack_failure,
    unpack_notes,
};

/// The detail of a call that ended because of a cache, which is emptied before the next call.
pub const CACHE_FULL: &str = "a cache is too large, too deep or cannot be read";

/// Why the exchange with a child is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    Replied(Vec<u8>),
    /// The child made a banned system call, which ends the tool's call.
    Denied {
        code: Code,
        what: String,
    },
    TimedOut,
    /// The child answered, but exceeded its limit of written bytes.
    WroteTooMuch,
    /// A cache of the call is too large, or cannot be read.
    CacheFull,
    /// Little is free on the disk that the view protects.
    DiskFull,
    /// The reply exceeds its size limit.
    OutputLimit,
    /// The child sent bytes that are not a frame, or a frame that is not allowed at this point.
    Garbage,
    Panicked,
    /// The child could not narrow itself to the request.
    NotNarrowed(String),
    /// The channel closed without an answer.
    Silent,
}

impl Cause {
    /// What a whole frame from a child means. The denials that come with an answer are added to `reported`.
    pub(crate) fn of_frame(
        kind: Kind,
        payload: &[u8],
        output_max: usize,
        reported: &mut Vec<Denial>,
    ) -> Self {
        match kind {
            Kind::Reply => {
                let Some((notes, answer)) = split(payload) else {
                    return Cause::Garbage;
                };
                if answer.len() > output_max {
                    return Cause::OutputLimit;
                }
                unpack_notes(notes).map_or(Cause::Garbage, |denials| {
                    reported.extend(denials);
                    Cause::Replied(answer.to_vec())
                })
            }
            Kind::Panicked => Cause::Panicked,
            Kind::Unconfined => unpack_failure(payload)
                .map_or(Cause::Garbage, |failure| Cause::NotNarrowed(format!("{:?}", failure.step))),
            Kind::Ready | Kind::Request | Kind::Piece => Cause::Garbage,
        }
    }
}

/// What the kernel counted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Facts {
    /// How the tree's first process ended; `None` if the zygote died, too, and could not report it.
    pub(crate) ended: Option<Ended>,
    pub(crate) oom_kills: u64,
    pub(crate) fork_refusals: u64,
    pub(crate) cpu_limit_ms: u64,
}

pub(crate) fn classify(cause: Cause, facts: &Facts) -> Ending {
    let (code, detail, started) = match cause {
        Cause::Replied(bytes) => return Ending::Replied(bytes),
        Cause::Denied { code, what } => (code, format!("{what} is banned"), true),
        Cause::TimedOut if facts.fork_refusals > 0 => {
            (Code::ProcessLimit, "it kept starting processes until its deadline".to_owned(), true)
        }
        Cause::TimedOut => (Code::TimedOut, "the deadline passed".to_owned(), true),
        Cause::WroteTooMuch => (Code::FileLimit, "it exceeded its limit of written bytes".to_owned(), true),
        Cause::CacheFull => (Code::FileLimit, CACHE_FULL.to_owned(), true),
        Cause::DiskFull => {
            (Code::DiskFull, "the disk of the state directory is almost full".to_owned(), true)
        }
        Cause::OutputLimit => (Code::OutputLimit, "the reply exceeds its size limit".to_owned(), true),
        Cause::Garbage => (Code::SandboxFailed, "the reply is malformed".to_owned(), true),
        Cause::Panicked => (Code::SandboxFailed, "the tool's code panicked".to_owned(), true),
        Cause::NotNarrowed(why) => {
            (Code::SandboxFailed, format!("not narrowed to the request: {why}"), false)
        }
        Cause::Silent => {
            let (code, detail) = silent(facts);
            (code, detail, true)
        }
    };
    Ending::Killed { code, detail, started }
}

fn silent(facts: &Facts) -> (Code, String) {
    let Some(ended) = facts.ended else {
        return (Code::SandboxFailed, "the zygote ended during the call".to_owned());
    };
    if facts.oom_kills > 0 {
        return (Code::MemoryLimit, "killed for lack of memory".to_owned());
    }
    let cpu_ms = (ended.user_us + ended.system_us) / 1_000;
    if libc::WIFSIGNALED(ended.status) {
        return match libc::WTERMSIG(ended.status) {
            libc::SIGSYS => (Code::SyscallDenied, "a banned system call (SIGSYS)".to_owned()),
            libc::SIGKILL if cpu_ms >= facts.cpu_limit_ms => {
                (Code::CpuLimit, "out of processor time".to_owned())
            }
            signal => (Code::SandboxFailed, format!("ended by signal {signal}")),
        };
    }
    match libc::WEXITSTATUS(ended.status) {
        EXIT_CPU_LIMIT => (Code::CpuLimit, "out of processor time".to_owned()),
        EXIT_FILE_LIMIT => (Code::FileLimit, "a file exceeded its size limit".to_owned()),
        EXIT_MEMORY_LIMIT => (Code::MemoryLimit, "out of address space".to_owned()),
        EXIT_ABORTED => (Code::SandboxFailed, "the tool's code aborted".to_owned()),
        code => (Code::SandboxFailed, format!("ended with status {code} and without a reply")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent_with(status: i32, cpu_us: u64, oom_kills: u64) -> Code {
        let ended = Some(Ended { status, user_us: cpu_us, ..Ended::default() });
        let facts = Facts { ended, oom_kills, cpu_limit_ms: 1_000, fork_refusals: 0 };
        match classify(Cause::Silent, &facts) {
            Ending::Killed { code, .. } => code,
            Ending::Replied(_) => Code::Internal,
        }
    }

    #[test]
    fn each_limit_has_its_own_code() {
        assert_eq!(silent_with(libc::SIGSYS, 0, 0), Code::SyscallDenied);
        assert_eq!(silent_with(libc::SIGKILL, 1_000_000, 0), Code::CpuLimit);
        assert_eq!(silent_with(libc::SIGKILL, 0, 1), Code::MemoryLimit);
        assert_eq!(silent_with(libc::SIGKILL, 0, 0), Code::SandboxFailed, "killed by somebody else");
        assert_eq!(silent_with(EXIT_CPU_LIMIT << 8, 0, 0), Code::CpuLimit);
        assert_eq!(silent_with(EXIT_FILE_LIMIT << 8, 0, 0), Code::FileLimit);
        assert_eq!(silent_with(EXIT_MEMORY_LIMIT << 8, 0, 0), Code::MemoryLimit);
        assert_eq!(silent_with(0, 0, 0), Code::SandboxFailed);
    }

    #[test]
    fn a_dead_zygote_is_a_typed_end() {
        let facts = Facts::default();
        assert!(matches!(classify(Cause::Silent, &facts), Ending::Killed { code: Code::SandboxFailed, .. }));
        let refused = Facts { fork_refusals: 3, ..facts };
        assert!(matches!(
            classify(Cause::TimedOut, &refused),
            Ending::Killed { code: Code::ProcessLimit, .. }
        ));
        assert!(matches!(classify(Cause::TimedOut, &facts), Ending::Killed { code: Code::TimedOut, .. }));
    }
}
