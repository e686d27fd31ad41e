//! One call: hand over the request, listen, and see to it that nothing can run any more before anybody is answered.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::beside::{self, Beside, Outward};
use crate::call::{Call, Denial, DenialSource};
use crate::cgroup::Cgroups;
use crate::denials::Denials;
use crate::drill::Drill;
use crate::ending::Cause;
use crate::error::SandboxError;
use crate::hear::{NOTES_BYTES_MAX, understand};
use crate::isolation;
use crate::limits::{DENIALS_MAX, REAP_TIME_MAX};
use crate::pool::{InFlight, Pool, Ready};
use crate::profile::{Ceilings, OnDenied, Profile};
use crate::settle::{CallSummary, Reply};
use crate::sys::{process, seccomp};
use crate::syscalls;
use crate::wire::{HEADER_BYTES, Kind, Orders, parse_header};

/// Makes the call in this child, which is used up by it. A drill, if there is one, takes the place of the request.
pub(crate) async fn run(
    in_flight: InFlight,
    mut child: Ready,
    call: &Call,
    drill: Option<Drill>,
    beside: Beside,
) -> Result<Reply, SandboxError> {
    let pool = in_flight.pool();
    let ceilings = isolation::ceilings(pool, &call.limits);
    if let Some(slot) = &mut child.cgroup {
        slot.limit(ceilings.memory_bytes, ceilings.processes)
            .map_err(SandboxError::io("bounding a child's memory"))?;
    }
    let said = Said {
        frame: &frame(call, &ceilings, pool.cgroups.as_deref(), drill)?,
        beside,
        timeout: call.timeout,
        output_max: ceilings.output_bytes as usize,
    };
    let begun = Instant::now();
    let mut denials = Denials::default();
    let cause = converse(pool, &child, said, &mut denials).await?;
    Ok(Reply {
        child,
        call: CallSummary {
            tool_id: call.tool_id.clone(),
            trace_id: call.trace_id.clone(),
        },
        ceilings,
        cause,
        denials,
        begun,
        in_flight,
    })
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
    Ok(crate::wire::frame(Kind::Request, &orders, &call.request))
}

/// What is said to a child, and how much it may say.
struct Said<'a> {
    frame: &'a [u8],
    beside: Beside,
    timeout: Duration,
    output_max: usize,
}

/// Sends the request, listens until the call ends in one of its ways, kills the tree, and waits until nothing of it can run.
async fn converse(
    pool: &Pool,
    child: &Ready,
    said: Said<'_>,
    denials: &mut Denials,
) -> Result<Cause, SandboxError> {
    let Said {
        frame,
        mut beside,
        timeout,
        output_max,
    } = said;
    let deadline = tokio::time::Instant::now() + timeout;
    // The child is on its way before anything else is prepared here.
    // If it has died while it waited, the channel will say so again.
    let sent = send_now(&child.channel, frame).unwrap_or(0);
    let frame = &frame[sent..];
    let mut told = Vec::new();
    let interest = if frame.is_empty() && beside.inward.is_none() {
        Interest::READABLE
    } else {
        Interest::READABLE | Interest::WRITABLE
    };
    let channel = watched(&child.channel, interest)?;
    let listener = watched(&child.listener, Interest::READABLE)?;
    let cause = tokio::select! {
        biased;
        cause = refusals(&pool.profile, &listener, denials) => cause,
        cause = hear(&channel, output_max, &mut told, beside.outward.as_mut()) => cause,
        never = beside::tell(&channel, frame, &mut beside.inward) => match never {},
        () = tokio::time::sleep_until(deadline) => Cause::TimedOut,
    };
    let _gone = process::kill(child.pidfd.as_fd());
    for denial in told {
        denials.add(denial);
    }
    contained(pool, &listener).await;
    Ok(cause)
}

/// Waits until nothing of the killed tree can run any more. The kernel says so itself: a filter's listener hangs up when the
/// last process that has the filter is on its way out, from which there is no return to the process's own code. Every
/// process of the tree has it, by inheritance, and none can shed it. Where the kernel takes longer than it ever should, the
/// zygote is given up, and its end takes the tree along.
async fn contained(pool: &Pool, listener: &Watched<'_>) {
    let hung_up = async {
        loop {
            if events_now(listener.get_ref()).contains(PollFlags::POLLHUP) {
                return;
            }
            match listener.readable().await {
                Ok(mut guard) => guard.clear_ready(),
                Err(_) => return,
            }
        }
    };
    if tokio::time::timeout(REAP_TIME_MAX, hung_up).await.is_err() {
        pool.give_up_zygote();
    }
}

pub(crate) fn watched(
    fd: &OwnedFd,
    interest: Interest,
) -> Result<AsyncFd<std::os::fd::BorrowedFd<'_>>, SandboxError> {
    #[allow(
        unsafe_code,
        reason = "tokio asks for the promise that the descriptor stays open"
    )]
    // SAFETY: the descriptor is borrowed for as long as the registration lives, so it stays open and means the same file.
    let registered = unsafe { AsyncFd::register_with_interest(fd.as_fd(), interest) };
    registered.map_err(|error| SandboxError::io("watching a child")(error.into_parts().1))
}

pub(crate) type Watched<'a> = AsyncFd<std::os::fd::BorrowedFd<'a>>;

/// Listens until the child has answered, and hands on what comes before that.
async fn hear(
    channel: &Watched<'_>,
    output_max: usize,
    told: &mut Vec<Denial>,
    mut outward: Option<&mut Outward>,
) -> Cause {
    let (kind, length) = loop {
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
        match (parsed, &mut outward) {
            (Some((Kind::Piece, length)), Some(outward)) => {
                if let Some(cause) = outward.take(channel, length).await {
                    return cause;
                }
            }
            (Some((Kind::Piece, _)), None) | (None, _) => return Cause::Garbage,
            (Some(said), _) => break said,
        }
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

/// Sends as much as there is room for now.
fn send_now(channel: &impl AsRawFd, bytes: &[u8]) -> io::Result<usize> {
    use nix::sys::socket::{MsgFlags, send};
    match send(
        channel.as_raw_fd(),
        bytes,
        MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
    ) {
        Err(nix::errno::Errno::EAGAIN) => Ok(0),
        sent => Ok(sent?),
    }
}

pub(crate) async fn write_all(channel: &Watched<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut guard = channel.writable().await?;
        let written = guard.try_io(|fd| {
            let flags = nix::sys::socket::MsgFlags::MSG_NOSIGNAL | nix::sys::socket::MsgFlags::MSG_DONTWAIT;
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
pub(crate) async fn read_up_to(channel: &Watched<'_>, into: &mut Vec<u8>, length: usize) -> io::Result<()> {
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
        // Also what is not counted as an attempt has a bound.
        total += 1;
        if !profile.is_probe(number, &refused.arguments) {
            denials.count(code, &what, DenialSource::Kernel);
        }
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
pub(crate) fn events_now(fd: &impl AsFd) -> PollFlags {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::ZERO) {
        Ok(_) => fds[0].revents().unwrap_or(PollFlags::POLLERR),
        Err(_) => PollFlags::empty(),
    }
}
