//! The zygote's loop: fork children on request, reap them when they end, and end when the runtime does.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::SockType;

use super::child::{self, ZygoteState};
use super::{At, Never};
use crate::confine::profile::ChildNamespace;
use crate::sys::{process, socket};
use crate::wire::{CONTROL_CHILD, CONTROL_NO_CHILD, FORKS_MAX, SetupFailure, Step, pack_ended};

pub(super) fn serve(control: &OwnedFd, zygote: &ZygoteState) -> Result<Never, SetupFailure> {
    let mut deaths = SigSet::empty();
    deaths.add(Signal::SIGCHLD);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&deaths), None).at(Step::Start)?;
    let signals =
        SignalFd::with_flags(&deaths, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).at(Step::Start)?;
    let mut alive = Alive::new();
    let mut wanted = 0;
    loop {
        let patience = if wanted > 0 { PollTimeout::ZERO } else { PollTimeout::NONE };
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
            // Consume the signal before reaping: a later death raises it again.
            let _announced = signals.read_signal();
            reap(&mut alive);
        }
        if asked {
            wanted += requested(control).unwrap_or_else(|_| process::exit_now(0));
        }
        // Fork one child in each round: a report about a death does not wait for many forks.
        if wanted > 0 {
            wanted -= 1;
            make_child(control, zygote, &mut alive)?;
        }
    }
}

/// The children that have not been reaped.
type Alive = HashMap<i32, Held>;

struct Held {
    /// The pipe on which the zygote reports the child's end.
    status: OwnedFd,
    /// Its scratch folder, in profiles where the child does not mount its own.
    scratch: Option<OwnedFd>,
}

/// How many children the runtime wants. An error means that the runtime is gone: the zygote ends, and all children with it.
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
            // The reader may be gone; a write of forty bytes to an empty pipe never blocks.
            let _gone = nix::unistd::write(&held.status, &pack_ended(&ended));
            over.push(held.scratch);
        }
    }
    // Remove the scratch folders only after every end is reported.
    drop(over);
}

fn make_child(control: &OwnedFd, zygote: &ZygoteState, alive: &mut Alive) -> Result<(), SetupFailure> {
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

fn try_child(zygote: &ZygoteState) -> io::Result<Born> {
    let (runtime_end, child_end) = socket::pair(SockType::Stream)?;
    nix::fcntl::fcntl(&runtime_end, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK))?;
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
            let held = Held { status: status_writer, scratch };
            Ok((pid, [runtime_end, pidfd, status_reader], held))
        }
    }
}
