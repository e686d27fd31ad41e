//! One call in one child: send the request, read the answer, kill the process tree, and wait until no process of it can run.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, Shutdown, send, shutdown};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::cache::Fillable;
use super::cgroup::Cgroups;
use super::isolation;
use super::outcome::Cause;
use super::pool::{InFlight, Pool, ReadyChild};
use super::reap::Reply;
use crate::call::{Call, Denial, DenialSource, Denials};
use crate::confine::profile::{Ceilings, OnDenied, Profile};
use crate::confine::syscalls;
use crate::drill::Drill;
use crate::error::SandboxError;
use crate::limits::{DENIALS_MAX, PIECE_BYTES_MAX, REAP_TIME_MAX};
use crate::side_channel::{Outward, Piece, SideChannel};
use crate::sys::{process, seccomp};
use crate::wire::{self, HEADER_BYTES, Kind, NOTES_BYTES_MAX, Orders, parse_header, piece_head};

/// Makes the call in this single-use child. A drill, if there is one, replaces the request.
pub(crate) async fn run(
    in_flight: InFlight,
    mut child: ReadyChild,
    call: &Call,
    drill: Option<Drill>,
    side_channel: SideChannel,
) -> Result<Reply, SandboxError> {
    let pool = in_flight.pool();
    let ceilings = isolation::ceilings(pool, call);
    if let Some(slot) = &mut child.cgroup {
        slot.limit(ceilings.memory_bytes, ceilings.processes)
            .map_err(SandboxError::io("bounding a child's memory"))?;
    }
    let frame = frame(call, &ceilings, pool.cgroups.as_deref(), drill)?;
    let fillable = Fillable::of(call.view.as_ref(), ceilings.written_bytes)?;
    let begun = Instant::now();
    let mut denials = Denials::default();
    let output_max = ceilings.output_bytes as usize;
    let deadline = begun + call.timeout;
    let limit = async {
        tokio::select! {
            () = tokio::time::sleep_until(deadline) => Cause::TimedOut,
            cause = fillable.overflow() => cause,
        }
    };
    let mut cause = exchange(pool, &child, &frame, side_channel, limit, output_max, &mut denials).await?;
    // Filling a disk takes less time than passes between two checks. Now nothing of the call runs any more.
    if matches!(cause, Cause::Replied(_))
        && let Some(full) = fillable.overflowed().await
    {
        cause = full;
    }
    Ok(Reply {
        child,
        tool_id: call.tool_id.clone(),
        trace_id: call.trace_id.clone(),
        ceilings,
        cause,
        denials,
        begun,
        in_flight,
    })
}

/// The frame with the request for the child.
fn frame(
    call: &Call,
    ceilings: &Ceilings,
    cgroups: Option<&Cgroups>,
    drill: Option<Drill>,
) -> Result<Vec<u8>, SandboxError> {
    let orders = Orders {
        ceilings: *ceilings,
        narrowing: call.effective_narrowing(),
        timeout_ms: call.timeout.as_millis() as u64,
        memory_by_process: cgroups.is_none(),
        processes_by_cgroup: cgroups.is_some_and(Cgroups::counts_processes),
        drill,
    };
    let orders = serde_json::to_vec(&orders).map_err(|error| SandboxError::Refused(error.to_string()))?;
    Ok(wire::frame(Kind::Request, &orders, &call.request))
}

/// Sends the request, waits for the answer, a limit or another end, kills the tree, and waits until no process of it can run.
async fn exchange(
    pool: &Pool,
    child: &ReadyChild,
    frame: &[u8],
    mut side_channel: SideChannel,
    limit: impl Future<Output = Cause>,
    output_max: usize,
    denials: &mut Denials,
) -> Result<Cause, SandboxError> {
    // Send first: the child works while the rest is prepared here. A dead child is noticed when the channel is read.
    let sent = send(child.channel.as_raw_fd(), frame, SEND_FLAGS);
    let frame = &frame[sent.unwrap_or(0)..];
    let mut reported = Vec::new();
    let interest = if frame.is_empty() && side_channel.inward.is_none() {
        Interest::READABLE
    } else {
        Interest::READABLE | Interest::WRITABLE
    };
    let channel = watched(&child.channel, interest)?;
    let listener = watched(&child.listener, Interest::READABLE)?;
    let cause = tokio::select! {
        biased;
        cause = answer_refused_calls(&pool.profile, &listener, denials) => cause,
        cause = receive(&channel, output_max, &mut reported, side_channel.outward.as_mut()) => cause,
        never = send_all(&channel, frame, &mut side_channel.inward) => match never {},
        cause = limit => cause,
    };
    let _gone = process::kill(child.pidfd.as_fd());
    for denial in reported {
        denials.add(denial);
    }
    wait_until_dead(pool, &listener).await;
    Ok(cause)
}

/// Waits until no process of the killed tree can run any more. The kernel reports that: a filter's listener hangs up
/// when the last process with the filter is exiting and cannot return to its own code. Every process of the tree
/// inherits the filter, and none can remove it. If that takes longer than `REAP_TIME_MAX`, the zygote is killed, and the
/// tree with it.
async fn wait_until_dead(pool: &Pool, listener: &Watched<'_>) {
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

pub(super) type Watched<'a> = AsyncFd<BorrowedFd<'a>>;

pub(super) fn watched(fd: &OwnedFd, interest: Interest) -> Result<Watched<'_>, SandboxError> {
    #[allow(unsafe_code, reason = "tokio asks for the promise that the descriptor stays open")]
    // SAFETY: the descriptor is borrowed for as long as the registration lives, so it stays open and means the same file.
    let registered = unsafe { AsyncFd::register_with_interest(fd.as_fd(), interest) };
    registered.map_err(|error| SandboxError::io("watching a child")(error.into_parts().1))
}

/// Reads until the child has answered, and passes on the pieces that come before the answer.
async fn receive(
    channel: &Watched<'_>,
    output_max: usize,
    reported: &mut Vec<Denial>,
    mut outward: Option<&mut Outward>,
) -> Cause {
    let (kind, length) = loop {
        let mut head = Vec::with_capacity(HEADER_BYTES);
        if read_exactly(channel, &mut head, HEADER_BYTES).await.is_err() {
            // Fewer bytes than a header are not an answer.
            return if head.is_empty() { Cause::Silent } else { Cause::Garbage };
        }
        let parsed = head.first_chunk::<HEADER_BYTES>().and_then(parse_header);
        match (parsed, &mut outward) {
            (Some((Kind::Piece, length)), Some(outward)) => {
                if let Some(cause) = take_piece(channel, outward, length).await {
                    return cause;
                }
            }
            (Some((Kind::Piece, _)), None) | (None, _) => return Cause::Garbage,
            (Some(head), _) => break head,
        }
    };
    if length > output_max.saturating_add(NOTES_BYTES_MAX) {
        return Cause::OutputLimit;
    }
    let mut payload = Vec::new();
    if read_exactly(channel, &mut payload, length).await.is_err() {
        return Cause::Silent;
    }
    Cause::of_frame(kind, &payload, output_max, reported)
}

/// Reads one piece after its header, and passes it on; `Some` if the piece ends the call.
async fn take_piece(channel: &Watched<'_>, outward: &mut Outward, length: usize) -> Option<Cause> {
    if !(1..=1 + PIECE_BYTES_MAX).contains(&length) {
        return Some(Cause::Garbage);
    }
    let Some(left) = outward.bytes_max.checked_sub((HEADER_BYTES + length) as u64) else {
        return Some(Cause::OutputLimit);
    };
    outward.bytes_max = left;
    let mut bytes = Vec::with_capacity(length);
    if read_exactly(channel, &mut bytes, length).await.is_err() {
        return Some(Cause::Silent);
    }
    let stream = bytes.remove(0);
    let _receiver_gone = outward.to.send(Piece { stream, bytes }).await;
    // A child that only sends must not keep this task from its deadline.
    tokio::task::yield_now().await;
    None
}

/// Sends the request and the pieces after it, and never returns: [`receive`] decides how the call ends.
async fn send_all(
    channel: &Watched<'_>,
    frame: &[u8],
    inward: &mut Option<mpsc::Receiver<Vec<u8>>>,
) -> Infallible {
    let sending = async {
        write_all(channel, frame).await?;
        let Some(inward) = inward else { return Ok(()) };
        while let Some(bytes) = inward.recv().await {
            for chunk in wire::chunks(&bytes) {
                write_all(channel, &piece_head(0, chunk.len())).await?;
                write_all(channel, chunk).await?;
            }
        }
        io::Result::Ok(shutdown(channel.as_raw_fd(), Shutdown::Write)?)
    };
    // A child that reads no more has answered or died; `receive` finds out which.
    let _child_gone = sending.await;
    std::future::pending().await
}

const SEND_FLAGS: MsgFlags = MsgFlags::MSG_NOSIGNAL.union(MsgFlags::MSG_DONTWAIT);

async fn write_all(channel: &Watched<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut guard = channel.writable().await?;
        match guard.try_io(|fd| Ok(send(fd.as_raw_fd(), bytes, SEND_FLAGS)?)) {
            Ok(count) => bytes = &bytes[count?..],
            Err(_would_block) => {}
        }
    }
    Ok(())
}

/// Reads exactly `length` bytes; memory grows with the received bytes, not with the announced length.
pub(super) async fn read_exactly(channel: &Watched<'_>, into: &mut Vec<u8>, length: usize) -> io::Result<()> {
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

/// Answers refused system calls until one of them ends the call. It never returns if the filter's last process is gone:
/// [`receive`] then finds out how the call ended.
async fn answer_refused_calls(profile: &Profile, listener: &Watched<'_>, denials: &mut Denials) -> Cause {
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
        // Probes do not count as denials, but their number is bounded, too.
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
        // A program that makes banned calls all the time must not keep this task from its deadline.
        tokio::task::yield_now().await;
    }
    std::future::pending().await
}

/// The events of a descriptor right now. A read of the listener would block if the caller of a refused call is gone.
fn events_now(fd: &impl AsFd) -> PollFlags {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::ZERO) {
        Ok(_) => fds[0].revents().unwrap_or(PollFlags::POLLERR),
        Err(_) => PollFlags::empty(),
    }
}
