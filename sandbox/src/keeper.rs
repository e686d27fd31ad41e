//! The thread that owns one zygote.
//!
//! It is a thread, not a task, for a reason: the kernel kills the zygote when the *thread* that started it ends, and an async
//! runtime ends its threads as it likes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::cgroup::Slot;
use crate::error::SandboxError;
use crate::limits::{BOOT_TIME_MAX, CHILD_SETUP_TIME_MAX, READY_DECAY, REAP_TIME_MAX};
use crate::pool::{Pool, Ready};
use crate::sys::{process, socket};
use crate::trouble::explain;
use crate::wire::{
    Booted, CONTROL_BYTES_MAX, CONTROL_CHILD, HEADER_BYTES, Kind, parse_header, unpack_failure,
};
use crate::zygote::ZYGOTE_ARGUMENT;

#[derive(Debug, Clone)]
pub(crate) struct Starter {
    pub(crate) exe: PathBuf,
}

/// Starts that may fail in a row before the next waits until somebody wants a child.
const FAILURES_MAX: u32 = 3;

/// Runs until the pool is closed.
pub(crate) fn keep(pool: &Pool, starter: &Starter) {
    let mut failures = 0;
    while failures < FAILURES_MAX || pool.wait_until_wanted() {
        match start(pool, starter) {
            Err(error) => {
                tracing::warn!(profile = pool.profile.id.as_str(), %error, "zygote did not start");
                pool.zygote_down();
                pool.fail_waiters(&error);
                // What the host cannot do now it will not do in a moment either.
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

struct Zygote {
    guard: Child,
    /// The zygote itself, once it is up.
    handle: Option<OwnedFd>,
    control: Arc<OwnedFd>,
}

fn start(pool: &Pool, starter: &Starter) -> Result<Zygote, SandboxError> {
    let (ours, theirs) = socket::packet_pair().map_err(SandboxError::io("control socket"))?;
    let guard = Command::new(&starter.exe)
        .arg(ZYGOTE_ARGUMENT)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(SandboxError::io("starting the zygote"))?;
    let mut zygote = Zygote {
        guard,
        handle: None,
        control: Arc::new(ours),
    };
    match zygote.boot(pool) {
        Ok(()) => {}
        Err(error) => {
            zygote.end();
            return Err(error);
        }
    }
    let control = Arc::clone(&zygote.control);
    if !pool.zygote_up(control, zygote.guard.id()) {
        zygote.end();
        return Err(SandboxError::Closed);
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

impl Zygote {
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

    /// Hands over children until the zygote ends; returns how many.
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
                            // The next child first: somebody may wait for it.
                            if !readable_within(&self.control, Duration::ZERO).unwrap_or(true) {
                                drop(pool.take_spent());
                            }
                        }
                        // It died, or was killed from outside, before it was ready: not a fault of the host.
                        Ok(None) => pool.miss(),
                        Err(error) => return Err(error),
                    }
                }
                (_, _) => {
                    let errno = bytes
                        .get(1..5)
                        .and_then(|b| b.try_into().ok())
                        .map_or(0, i32::from_le_bytes);
                    return Err(SandboxError::io("making a child")(io::Error::from_raw_os_error(
                        errno,
                    )));
                }
            }
        }
    }

    /// Kills all of it and waits until it is gone: the zygote's handle speaks only when every process of its PID namespace
    /// has been reaped.
    fn end(&mut self) {
        let _gone = self.guard.kill();
        if let Some(handle) = &self.handle {
            let _gone = process::kill(handle.as_fd());
            let _late = readable_within(handle, REAP_TIME_MAX);
        }
        let _gone = self.guard.wait();
    }
}

/// Waits for a child's word that it is confined, and puts it into its cgroup.
fn confirm(
    pool: &Pool,
    channel: OwnedFd,
    pidfd: OwnedFd,
    status: OwnedFd,
) -> Result<Option<Ready>, SandboxError> {
    let failed = SandboxError::io("hearing from a child");
    if !readable_within(&channel, CHILD_SETUP_TIME_MAX).map_err(failed)? {
        tracing::warn!(
            profile = pool.profile.id.as_str(),
            "a child was not ready in time"
        );
        let _gone = process::kill(pidfd.as_fd());
        return Ok(None);
    }
    let mut bytes = [0; 4_096];
    let (length, fds) = match socket::receive(channel.as_fd(), &mut bytes) {
        Ok(message) => message,
        Err(_) => return Ok(None),
    };
    let Some((head, payload)) = bytes[..length].split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    match (parse_header(head), <[OwnedFd; 1]>::try_from(fds)) {
        (Some((Kind::Ready, 0)), Ok([listener])) => {
            let mut ready = Ready {
                channel,
                pidfd,
                status,
                listener,
                cgroup: None,
            };
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

fn place(pool: &Pool, ready: &Ready) -> Result<Option<Slot>, SandboxError> {
    let Some(cgroups) = &pool.cgroups else {
        return Ok(None);
    };
    let pid = match process::pid_of(ready.pidfd.as_fd()) {
        Ok(pid) => pid,
        // It has died meanwhile; whoever takes it will notice.
        Err(_) => return Ok(None),
    };
    let many = pool.profile.ceilings.processes > 1;
    let place = || -> io::Result<Slot> {
        let slot = cgroups.acquire()?;
        slot.add(pid, many)?;
        Ok(slot)
    };
    // An idle group that somebody has removed is given up by the failure, and the second try makes a new one.
    place()
        .or_else(|_| place())
        .map(Some)
        .map_err(SandboxError::io("bounding a child's memory"))
}
