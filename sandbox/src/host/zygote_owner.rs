//! The thread that owns one zygote.
//!
//! It is a thread and not a task, because the kernel kills the zygote when the *thread* that started it ends, and an async
//! runtime ends its threads as it likes.
#![expect(clippy::disallowed_types, reason = "starts the zygote, which is this program")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::SockType;

use super::cgroup::Slot;
use super::pool::{Pool, ReadyChild};
use super::setup_error::explain;
use crate::error::SandboxError;
use crate::limits::{BOOT_TIME_MAX, CHILD_SETUP_TIME_MAX, READY_DECAY, REAP_TIME_MAX};
use crate::sys::{process, socket};
use crate::wire::{
    Booted, CONTROL_BYTES_MAX, CONTROL_CHILD, HEADER_BYTES, Kind, ZYGOTE_ARGUMENT, parse_header,
    unpack_failure,
};

/// Zygotes in a row that may end without delivering a child; then the next start waits until a call wants a child.
const FAILURES_MAX: u32 = 3;

/// Runs until the pool is closed.
pub(crate) fn own_zygote(pool: &Pool, exe: &Path) {
    let mut failures = 0;
    while failures < FAILURES_MAX || pool.wait_until_wanted() {
        match start(pool, exe) {
            Err(error) => {
                tracing::warn!(profile = pool.profile.id.as_str(), %error, "zygote did not start");
                pool.zygote_down();
                pool.fail_waiters(&error);
                // A host that refuses this zygote refuses the next one, too.
                failures = FAILURES_MAX;
            }
            Ok(mut zygote) => {
                let served = zygote.serve(pool);
                let go_on = pool.zygote_down();
                zygote.end();
                if !go_on {
                    return;
                }
                match served {
                    Ok(0) => failures += 1,
                    Ok(_) => failures = 0,
                    Err(error) => {
                        failures = FAILURES_MAX;
                        pool.fail_waiters(&error);
                    }
                }
                tracing::warn!(
                    profile = pool.profile.id.as_str(),
                    failures,
                    "zygote ended; starting another"
                );
                if failures >= FAILURES_MAX {
                    pool.fail_waiters(&SandboxError::Busy("the zygote keeps ending"));
                }
            }
        }
    }
}

struct ZygoteProcess {
    guard: Child,
    /// The pidfd of the zygote, once it has started.
    handle: Option<OwnedFd>,
    control: Arc<OwnedFd>,
}

fn start(pool: &Pool, exe: &Path) -> Result<ZygoteProcess, SandboxError> {
    let (ours, theirs) = socket::pair(SockType::SeqPacket).map_err(SandboxError::io("control socket"))?;
    let guard = Command::new(exe)
        .arg(ZYGOTE_ARGUMENT)
        .env_clear()
        // No arenas: even the smallest is 64 MiB, which a child could use beyond its memory limit.
        .env("MIMALLOC_ARENA_RESERVE", "0")
        .current_dir("/")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(SandboxError::io("starting the zygote"))?;
    let mut zygote = ZygoteProcess { guard, handle: None, control: Arc::new(ours) };
    let started = zygote.boot(pool).and_then(|()| {
        let is_open = pool.zygote_up(Arc::clone(&zygote.control), zygote.guard.id());
        is_open.then_some(()).ok_or(SandboxError::Closed)
    });
    if let Err(error) = started {
        zygote.end();
        return Err(error);
    }
    Ok(zygote)
}

fn readable_within(fd: &OwnedFd, time: Duration) -> io::Result<bool> {
    let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, timeout) {
        Err(nix::errno::Errno::EINTR) => Ok(true),
        polled => Ok(polled? > 0),
    }
}

impl ZygoteProcess {
    fn boot(&mut self, pool: &Pool) -> Result<(), SandboxError> {
        let failed = SandboxError::io("starting the zygote");
        let not_ours = || SandboxError::Unavailable {
            what: "the zygote did not answer".to_owned(),
            fix: "the program given as zygote_exe must call effectd_sandbox::init first in main".to_owned(),
        };
        let order =
            serde_json::to_vec(&pool.boot).map_err(|error| SandboxError::Refused(error.to_string()))?;
        if order.len() > CONTROL_BYTES_MAX {
            return Err(SandboxError::Refused("the profile is too large".to_owned()));
        }
        let root = pool.root.as_fd().as_raw_fd();
        socket::send(self.control.as_fd(), &order, &[root]).map_err(|_| not_ours())?;
        if !readable_within(&self.control, BOOT_TIME_MAX).map_err(failed)? {
            return Err(not_ours());
        }
        let mut bytes = vec![0; CONTROL_BYTES_MAX];
        let (length, handle) = socket::receive(self.control.as_fd(), &mut bytes).map_err(|_| not_ours())?;
        self.handle = handle.into_iter().next();
        match serde_json::from_slice(&bytes[..length]) {
            Ok(Booted::Ready) => Ok(()),
            Ok(Booted::Failed(failure)) => Err(explain(&failure, &pool.boot)),
            Err(_) => Err(not_ours()),
        }
    }

    /// Delivers children until the zygote ends; returns how many.
    fn serve(&mut self, pool: &Pool) -> Result<u64, SandboxError> {
        let mut count = 0;
        loop {
            let readable =
                readable_within(&self.control, READY_DECAY).map_err(SandboxError::io("control socket"))?;
            if !readable {
                pool.decay();
                drop(pool.take_spent());
                continue;
            }
            let mut bytes = [0; 16];
            let (length, fds) = match socket::receive(self.control.as_fd(), &mut bytes) {
                Ok((0, _)) | Err(_) => return Ok(count),
                Ok(message) => message,
            };
            match (bytes[..length].first(), <[OwnedFd; 3]>::try_from(fds)) {
                (Some(&CONTROL_CHILD), Ok([channel, pidfd, status])) => {
                    match confirm(pool, channel, pidfd, status) {
                        Ok(Some(ready)) => {
                            count += 1;
                            pool.deliver(ready);
                            // Clean up only if no new child waits for its delivery: a call may wait for that child.
                            if !readable_within(&self.control, Duration::ZERO).unwrap_or(true) {
                                drop(pool.take_spent());
                            }
                        }
                        // The child died or was killed from outside; the host is not at fault.
                        Ok(None) => pool.miss(),
                        Err(error) => return Err(error),
                    }
                }
                (_, _) => {
                    let errno = bytes.get(1..5).and_then(|b| b.try_into().ok()).map_or(0, i32::from_le_bytes);
                    return Err(SandboxError::io("making a child")(io::Error::from_raw_os_error(errno)));
                }
            }
        }
    }

    /// Kills the zygote and its children, and waits for their end, within a bound: the zygote's handle becomes readable when its
    /// PID namespace is reaped.
    fn end(&mut self) {
        let _gone = self.guard.kill();
        if let Some(handle) = &self.handle {
            let _gone = process::kill(handle.as_fd());
            let _late = readable_within(handle, REAP_TIME_MAX);
        }
        let _gone = self.guard.wait();
    }
}

/// Waits until a child reports that it is confined, and puts it into its cgroup.
fn confirm(
    pool: &Pool,
    channel: OwnedFd,
    pidfd: OwnedFd,
    status: OwnedFd,
) -> Result<Option<ReadyChild>, SandboxError> {
    let failed = SandboxError::io("reading from a child");
    if !readable_within(&channel, CHILD_SETUP_TIME_MAX).map_err(failed)? {
        tracing::warn!(profile = pool.profile.id.as_str(), "a child was not ready in time");
        let _gone = process::kill(pidfd.as_fd());
        return Ok(None);
    }
    let mut bytes = [0; 4_096];
    let Ok((length, fds)) = socket::receive(channel.as_fd(), &mut bytes) else {
        return Ok(None);
    };
    let Some((head, payload)) = bytes[..length].split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    match (parse_header(head), <[OwnedFd; 1]>::try_from(fds)) {
        (Some((Kind::Ready, 0)), Ok([listener])) => {
            let mut ready = ReadyChild { channel, pidfd, status, listener, cgroup: None };
            ready.cgroup = place(pool, &ready)?;
            Ok(Some(ready))
        }
        (Some((Kind::Unconfined, _)), _) => match unpack_failure(payload) {
            Some(failure) => Err(explain(&failure, &pool.boot)),
            None => Ok(None),
        },
        (_, _) => Ok(None),
    }
}

fn place(pool: &Pool, ready: &ReadyChild) -> Result<Option<Slot>, SandboxError> {
    let Some(cgroups) = &pool.cgroups else {
        return Ok(None);
    };
    let Ok(pid) = process::pid_of(ready.pidfd.as_fd()) else {
        // The child has died; `Pool::take` drops it.
        return Ok(None);
    };
    let many = pool.profile.ceilings.processes > 1;
    let place = || -> io::Result<Slot> {
        let slot = cgroups.acquire()?;
        slot.add(pid, many)?;
        Ok(slot)
    };
    // If an idle group was removed from outside, the first try drops it and the second makes a new one.
    place().or_else(|_| place()).map(Some).map_err(SandboxError::io("bounding a child's memory"))
}
