//! One call: hand over the request, listen, and see to it that everything is dead before anybody is answered.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Instant;

use effectd_contracts::Code;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::call::{Answer, Call, Denial, DenialSource, Usage};
use crate::cgroup::{Cgroups, Seen, Slot};
use crate::drill::Drill;
use crate::ending::{Cause, Facts, classify};
use crate::error::SandboxError;
use crate::isolation;
use crate::limits::{DENIAL_TEXT_BYTES_MAX, DENIALS_MAX, DENIALS_NAMED_MAX, REAP_TIME_MAX};
use crate::pool::{Pool, Ready};
use crate::profile::{Ceilings, OnDenied, Profile};
use crate::sys::process::{self, Ended};
use crate::sys::seccomp;
use crate::syscalls;
use crate::wire::{
    ENDED_BYTES, HEADER_BYTES, Kind, Orders, SetupFailure, header, join, parse_header, split, unpack_ended,
};

/// Room beside the answer for the child's own list of refused paths.
const NOTES_BYTES_MAX: usize = DENIALS_NAMED_MAX * (DENIAL_TEXT_BYTES_MAX * 6 + 128) + 64;

/// Makes the call in this child, which is used up by it. A drill, if there is one, takes the place of the request.
pub(crate) async fn run(
    pool: &Pool,
    mut child: Ready,
    call: &Call,
    drill: Option<Drill>,
) -> Result<Answer, SandboxError> {
    let ceilings = isolation::ceilings(pool, &call.limits);
    if let Some(slot) = &mut child.cgroup {
        slot.limit(ceilings.memory_bytes, ceilings.processes)
            .map_err(SandboxError::io("bounding a child's memory"))?;
    }
    let frame = frame(call, &ceilings, pool.cgroups.as_deref(), drill)?;
    let begun = Instant::now();
    let mut denials = Denials::default();
    let cause = converse(pool, &child, call, &frame, &ceilings, &mut denials).await?;
    let _gone = process::kill(child.pidfd.as_fd());
    // While the kernel takes the tree down, there is time to read what its group has seen.
    let early = matches!(cause, Cause::Replied(_)).then(|| seen(&child));
    let ended = reaped(pool, &child).await;
    let wall = begun.elapsed();
    let seen = early.unwrap_or_else(|| seen(&child));

    let facts = Facts {
        ended,
        oom_kills: seen.oom_kills,
        fork_refusals: seen.fork_refusals,
        cpu_limit_ms: ceilings.cpu_ms,
    };
    if let (Some(slot), Some(_)) = (child.cgroup.take(), ended) {
        slot.recycle();
    }
    denials.count_unanswered(&cause, &facts);
    let usage = usage(ended.unwrap_or_default(), seen.peak_bytes, wall);
    let wrote_too_much = usage.bytes_written > ceilings.written_bytes;
    let replied = matches!(cause, Cause::Replied(_));
    let cause = if replied && wrote_too_much {
        Cause::WroteTooMuch
    } else {
        cause
    };
    denials.log(call);
    let (ending, denials) = (classify(cause, &facts), denials.0);
    Ok(Answer {
        ending,
        usage,
        isolation: pool.isolation(&ceilings),
        denials,
    })
}

fn seen(child: &Ready) -> Seen {
    child.cgroup.as_ref().map(Slot::seen).unwrap_or_default()
}

/// The one message into the child.
fn frame(
    call: &Call,
    ceilings: &Ceilings,
    cgroups: Option<&Cgroups>,
    drill: Option<Drill>,
) -> Result<Vec<u8>, SandboxError> {
    let timeout_ms = call.timeout.as_millis() as u64;
    let narrowing = call.effective_narrowing();
    let orders = Orders {
        ceilings: *ceilings,
        narrowing,
        timeout_ms,
        memory_by_process: cgroups.is_none(),
        processes_by_cgroup: cgroups.is_some_and(Cgroups::counts_processes),
        drill,
    };
    let orders = serde_json::to_vec(&orders).map_err(|error| SandboxError::Refused(error.to_string()))?;
    let payload = join(&orders, &call.request);
    let mut frame = header(Kind::Request, payload.len()).to_vec();
    frame.extend_from_slice(&payload);
    Ok(frame)
}

fn usage(ended: Ended, peak_bytes: Option<u64>, wall: std::time::Duration) -> Usage {
    Usage {
        cpu_user_us: ended.user_us,
        cpu_system_us: ended.system_us,
        // What a child held before it was put into its group is not in the group's count.
        peak_memory_bytes: peak_bytes.unwrap_or(0).max(ended.resident_max_kib * 1_024),
        bytes_written: ended.blocks_written * 512,
        wall,
    }
}

/// Sends the request and listens until one of the ways in which a call can end has come.
async fn converse(
    pool: &Pool,
    child: &Ready,
    call: &Call,
    frame: &[u8],
    ceilings: &Ceilings,
    denials: &mut Denials,
) -> Result<Cause, SandboxError> {
    let channel = watched(&child.channel, Interest::READABLE | Interest::WRITABLE)?;
    let listener = watched(&child.listener, Interest::READABLE)?;
    let mut told = Vec::new();
    let cause = tokio::select! {
        biased;
        cause = refusals(&pool.profile, &listener, denials) => cause,
        cause = exchange(&channel, frame, ceilings.output_bytes as usize, &mut told) => cause,
        () = tokio::time::sleep(call.timeout) => Cause::TimedOut,
    };
    for denial in told {
        denials.add(denial);
    }
    Ok(cause)
}

fn watched(fd: &OwnedFd, interest: Interest) -> Result<AsyncFd<std::os::fd::BorrowedFd<'_>>, SandboxError> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let set = fcntl(fd, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK));
    set.map_err(io::Error::from)
        .map_err(SandboxError::io("watching a child"))?;
    #[allow(
        unsafe_code,
        reason = "tokio asks for the promise that the descriptor stays open"
    )]
    // SAFETY: the descriptor is borrowed for as long as the registration lives, so it stays open and means the same file.
    let registered = unsafe { AsyncFd::register_with_interest(fd.as_fd(), interest) };
    registered.map_err(|error| SandboxError::io("watching a child")(error.into_parts().1))
}

type Watched<'a> = AsyncFd<std::os::fd::BorrowedFd<'a>>;

async fn exchange(channel: &Watched<'_>, frame: &[u8], output_max: usize, told: &mut Vec<Denial>) -> Cause {
    if write_all(channel, frame).await.is_err() {
        return Cause::Silent;
    }
    let mut head = Vec::with_capacity(HEADER_BYTES);
    if read_up_to(channel, &mut head, HEADER_BYTES).await.is_err() {
        // Something that is shorter than a head is no answer either.
        return if head.is_empty() {
            Cause::Silent
        } else {
            Cause::Garbage
        };
    }
    let parsed = head.first_chunk::<HEADER_BYTES>().and_then(parse_header);
    let Some((kind, length)) = parsed else {
        return Cause::Garbage;
    };
    if length > output_max.saturating_add(NOTES_BYTES_MAX) {
        return Cause::OutputLimit;
    }
    let mut payload = Vec::new();
    if read_up_to(channel, &mut payload, length).await.is_err() {
        return Cause::Silent;
    }
    understand(kind, &payload, output_max, told)
}

fn understand(kind: Kind, payload: &[u8], output_max: usize, told: &mut Vec<Denial>) -> Cause {
    match kind {
        Kind::Reply => {
            let Some((notes, answer)) = split(payload) else {
                return Cause::Garbage;
            };
            if answer.len() > output_max {
                return Cause::OutputLimit;
            }
            let Ok(notes) = serde_json::from_slice::<Vec<Denial>>(notes) else {
                return Cause::Garbage;
            };
            // Whatever the child claims, it is the child's own word.
            let notes = notes.into_iter().take(DENIALS_NAMED_MAX);
            told.extend(notes.map(|note| Denial {
                source: DenialSource::Child,
                ..note
            }));
            Cause::Replied(answer.to_vec())
        }
        Kind::Panicked => Cause::Panicked,
        Kind::Unconfined => match serde_json::from_slice::<SetupFailure>(payload) {
            Ok(failure) => Cause::NotNarrowed(format!("{:?}", failure.step)),
            Err(_) => Cause::Garbage,
        },
        Kind::Ready | Kind::Request => Cause::Garbage,
    }
}

async fn write_all(channel: &Watched<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut guard = channel.writable().await?;
        let written = guard.try_io(|fd| {
            let flags = nix::sys::socket::MsgFlags::MSG_NOSIGNAL;
            Ok(nix::sys::socket::send(fd.as_raw_fd(), bytes, flags)?)
        });
        match written {
            Ok(count) => bytes = &bytes[count?..],
            Err(_would_block) => {}
        }
    }
    Ok(())
}

/// Reads exactly `length` bytes; memory grows with what has come, not with what was announced.
async fn read_up_to(channel: &Watched<'_>, into: &mut Vec<u8>, length: usize) -> io::Result<()> {
    const STEP: usize = 64 * 1024;
    let mut buffer = vec![0; length.min(STEP)];
    while into.len() < length {
        let room = (length - into.len()).min(STEP);
        let mut guard = channel.readable().await?;
        match guard.try_io(|fd| Ok(nix::unistd::read(fd.get_ref(), &mut buffer[..room])?)) {
            Ok(Ok(0)) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            Ok(count) => into.extend_from_slice(&buffer[..count?]),
            Err(_would_block) => {}
        }
    }
    Ok(())
}

/// Answers refused system calls until one of them ends the call. When the filter's last process is gone it never
/// returns: the channel tells how that happened.
async fn refusals(profile: &Profile, listener: &Watched<'_>, denials: &mut Denials) -> Cause {
    let mut total = 0;
    while let Ok(mut guard) = listener.readable().await {
        let events = events_now(listener.get_ref());
        if !events.contains(PollFlags::POLLIN) {
            if events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR) {
                break;
            }
            guard.clear_ready();
            continue;
        }
        let refused = match seccomp::next_refused(listener.get_ref().as_fd()) {
            Ok(Some(refused)) => refused,
            Ok(None) => continue,
            Err(_) => break,
        };
        let number = refused.number.unsigned_abs();
        let (code, what) = (profile.code_of(number), syscalls::name(number));
        denials.count(code, &what, DenialSource::Kernel);
        total += 1;
        match profile.on_denied {
            OnDenied::Errno if total < DENIALS_MAX => {
                seccomp::refuse_with(listener.get_ref().as_fd(), refused, libc::EPERM);
            }
            OnDenied::Errno | OnDenied::Kill => return Cause::Denied { code, what },
        }
        // A program that does nothing but banned calls must not keep this task from its deadline.
        tokio::task::yield_now().await;
    }
    std::future::pending().await
}

/// What the descriptor says right now: taking a refused call that is gone would block.
fn events_now(fd: &impl AsFd) -> PollFlags {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::ZERO) {
        Ok(_) => fds[0].revents().unwrap_or(PollFlags::POLLERR),
        Err(_) => PollFlags::empty(),
    }
}

/// Waits for the zygote's report that the tree, which has been killed, is reaped. `None` means that the zygote died as well,
/// and with it, by the kernel's own rule, the tree.
async fn reaped(pool: &Pool, child: &Ready) -> Option<Ended> {
    let status = watched(&child.status, Interest::READABLE).ok()?;
    let mut report = Vec::with_capacity(ENDED_BYTES);
    let waited = tokio::time::timeout(REAP_TIME_MAX, read_up_to(&status, &mut report, ENDED_BYTES)).await;
    if waited.is_err() {
        pool.give_up_zygote();
    }
    report.first_chunk::<ENDED_BYTES>().map(unpack_ended)
}

/// What was refused, merged and bounded.
#[derive(Default)]
struct Denials(Vec<Denial>);

impl Denials {
    /// What the kernel refused to a part of the tree while the whole still answered.
    fn count_unanswered(&mut self, cause: &Cause, facts: &Facts) {
        let replied = matches!(cause, Cause::Replied(_));
        // The kernel killed at once; it does not say which of the banned calls it was.
        let by_filter =
            |ended: Ended| libc::WIFSIGNALED(ended.status) && libc::WTERMSIG(ended.status) == libc::SIGSYS;
        if matches!(cause, Cause::Silent) && facts.ended.is_some_and(by_filter) {
            self.count(Code::SyscallDenied, "a banned system call", DenialSource::Kernel);
        }
        if replied && facts.oom_kills > 0 {
            self.count(
                Code::MemoryLimit,
                "a process was killed for lack of memory",
                DenialSource::Kernel,
            );
        }
        if facts.fork_refusals > 0 {
            let count = u32::try_from(facts.fork_refusals).unwrap_or(u32::MAX);
            let what = "starting another process".to_owned();
            self.add(Denial {
                code: Code::ProcessLimit,
                what,
                count,
                source: DenialSource::Kernel,
            });
        }
    }

    fn log(&self, call: &Call) {
        for denial in &self.0 {
            tracing::warn!(
                trace_id = call.trace_id.as_str(),
                tool_id = call.tool_id.as_str(),
                code = denial.code.as_str(),
                what = denial.what,
                count = denial.count,
                "refused in the sandbox"
            );
        }
    }

    fn count(&mut self, code: Code, what: &str, source: DenialSource) {
        self.add(Denial {
            code,
            what: what.to_owned(),
            count: 1,
            source,
        });
    }

    fn add(&mut self, denial: Denial) {
        let same = |known: &&mut Denial| {
            known.code == denial.code && known.what == denial.what && known.source == denial.source
        };
        if let Some(known) = self.0.iter_mut().find(same) {
            known.count = known.count.saturating_add(denial.count);
        } else if self.0.len() < DENIALS_NAMED_MAX {
            self.0.push(denial);
        }
    }
}
