//! The zygote's loop: make children when asked, reap them when they end, end when the runtime does.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::child::{self, Zygote};
use super::{At, Never};
use crate::profile::ChildNamespace;
use crate::sys::{process, socket};
use crate::wire::{CONTROL_CHILD, CONTROL_NO_CHILD, FORKS_MAX, SetupFailure, Step, pack_ended};

pub(super) fn serve(control: &OwnedFd, zygote: &Zygote) -> Result<Never, SetupFailure> {
    let mut deaths = SigSet::empty();
    deaths.add(Signal::SIGCHLD);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&deaths), None).at(Step::Start)?;
    let signals =
        SignalFd::with_flags(&deaths, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).at(Step::Start)?;
    let mut alive = Alive::new();
    let mut wanted = 0;
    loop {
        let patience = if wanted > 0 {
            PollTimeout::ZERO
        } else {
            PollTimeout::NONE
        };
        let mut ready = [
            PollFd::new(control.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut ready, patience) {
            Err(Errno::EINTR) => continue,
            polled => polled.at(Step::Start)?,
        };
        let [asked, died] = ready.map(|fd| fd.any().unwrap_or(true));
        if died {
            // Read first: a death that comes after it is announced anew.
            let _announced = signals.read_signal();
            reap(&mut alive);
        }
        if asked {
            wanted += requested(control).unwrap_or_else(|_| process::exit_now(0));
        }
        // One at a time: whoever waits for a death to be told does not wait for many births.
        if wanted > 0 {
            wanted -= 1;
            make_child(control, zygote, &mut alive)?;
        }
    }
}

/// The children that have not been reaped.
type Alive = HashMap<i32, Held>;

struct Held {
    /// Where its end is told.
    status: OwnedFd,
    /// Its scratch folder, in profiles in which it does not make its own.
    scratch: Option<OwnedFd>,
}

/// How many children the runtime wants. Its end is the zygote's end, and with this init the end of all children.
fn requested(control: &OwnedFd) -> io::Result<usize> {
    let mut bytes = [0; FORKS_MAX];
    let (length, _) = socket::receive(control.as_fd(), &mut bytes)?;
    match length {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        _ => Ok(usize::from(bytes[0])),
    }
}

fn reap(alive: &mut Alive) {
    let mut over = Vec::new();
    while let Some(ended) = process::reap_one() {
        if let Some(held) = alive.remove(&ended.pid) {
            // The reader may have given up; a pipe that takes forty bytes never blocks.
            let _gone = nix::unistd::write(&held.status, &pack_ended(&ended));
            over.push(held.scratch);
        }
    }
    // Only now, when all is told, the scratch folders go.
    drop(over);
}

fn make_child(control: &OwnedFd, zygote: &Zygote, alive: &mut Alive) -> Result<(), SetupFailure> {
    match try_child(zygote) {
        Ok((pid, [channel, pidfd, status_reader], held)) => {
            alive.insert(pid, held);
            let fds = [channel.as_raw_fd(), pidfd.as_raw_fd(), status_reader.as_raw_fd()];
            socket::send(control.as_fd(), &[CONTROL_CHILD], &fds).at(Step::ChildStart)?;
        }
        Err(error) => {
            let mut message = vec![CONTROL_NO_CHILD];
            message.extend_from_slice(&error.raw_os_error().unwrap_or(0).to_le_bytes());
            socket::send(control.as_fd(), &message, &[]).at(Step::ChildStart)?;
        }
    }
    Ok(())
}

type Born = (i32, [OwnedFd; 3], Held);

fn try_child(zygote: &Zygote) -> io::Result<Born> {
    let (runtime_end, child_end) = socket::stream_pair()?;
    nix::fcntl::fcntl(
        &runtime_end,
        nix::fcntl::FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK),
    )?;
    let (status_reader, status_writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let own_mounts = zygote.boot.child_namespaces.contains(&ChildNamespace::Mount);
    let scratch = match own_mounts {
        true => None,
        false => Some(super::high(child::scratch(&zygote.boot)?.as_fd())?),
    };
    let namespaces = zygote.boot.child_namespaces.iter().fold(0, |flags, namespace| {
        flags
            | match namespace {
                ChildNamespace::Pid => libc::CLONE_NEWPID as u64,
                ChildNamespace::User => libc::CLONE_NEWUSER as u64,
                ChildNamespace::Mount => libc::CLONE_NEWNS as u64,
            }
    });
    match process::clone_process(namespaces)? {
        process::Cloned::Child => child::run(zygote, &child_end, scratch.as_ref()),
        process::Cloned::Parent { pid, pidfd } => {
            let held = Held {
                status: status_writer,
                scratch,
            };
            Ok((pid, [runtime_end, pidfd, status_reader], held))
        }
    }
}
