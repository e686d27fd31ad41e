//! The zygote: what runs in a process that the runtime started as `__zygote`.
//!
//! One start makes two processes. The *guard* is the child of the runtime's owner thread; it drops to an ordinary uid,
//! enters the namespaces, forks the zygote as the init of a PID namespace, and waits. So the kernel itself cleans up: when
//! the runtime dies, the guard dies (parent-death signal), then the zygote, and with this init every child and whatever
//! the children started.

mod child;
mod identity;
mod serve;
mod tree;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use effectd_contracts::Digest;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;

pub use child::{ChildCtx, Dispatch};

use crate::sys::{process, socket};
use crate::wire::{Boot, Booted, CONTROL_BYTES_MAX, Identity, SetupFailure, Step, ZYGOTE_ARGUMENT};

/// Call it first in `main`, before any thread starts. In an ordinary process it returns at once; in a process that the
/// sandbox started as a zygote it never returns, and `dispatch` runs in the confined children.
pub fn init(dispatch: Dispatch) {
    init_with_warm_up(dispatch, None);
}

/// Like [`init`], but every child first runs the request `warm_up` and discards the answer. A forked process takes a
/// page fault for each page of code that it first touches; most of them then happen before a call waits. The request
/// must change nothing, read nothing, and make no system call that the profile bans: the runtime does not answer refused
/// calls yet, so the child would never be ready. The warm-up is confined like any other request.
pub fn init_with_warm_up(dispatch: Dispatch, warm_up: Option<&'static [u8]>) {
    let is_zygote = std::env::args_os().nth(1).is_some_and(|argument| argument == ZYGOTE_ARGUMENT);
    if is_zygote {
        main(dispatch, warm_up);
    }
}

fn main(dispatch: Dispatch, warm_up: Option<&'static [u8]>) -> ! {
    // The control socket is standard input; a person who starts a zygote by hand has none.
    let Ok(control) = control_socket() else {
        #[expect(clippy::print_stderr, reason = "the only reader is a person who started this by hand")]
        {
            eprintln!("{ZYGOTE_ARGUMENT} is started by effectd itself, never by hand");
        }
        process::exit_now(2)
    };
    let Err(failure) = start(&control, dispatch, warm_up);
    report(&control, &Booted::Failed(failure), None);
    process::exit_now(1)
}

fn control_socket() -> io::Result<OwnedFd> {
    use nix::sys::socket::{SockType, getsockopt, sockopt};
    let stdin = io::stdin();
    if getsockopt(&stdin, sockopt::SockType)? != SockType::SeqPacket {
        return Err(io::Error::from_raw_os_error(libc::ENOTSOCK));
    }
    high(stdin.as_fd())
}

/// A copy of a descriptor above the slots that children use.
fn high(fd: std::os::fd::BorrowedFd<'_>) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    let copy = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(FIRST_HIGH_FD))?;
    #[allow(unsafe_code, reason = "nix returns a number; here it gets its owner")]
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// The zygote's own descriptors start here; the slots of children are below.
const FIRST_HIGH_FD: i32 = 16;

fn report(control: &OwnedFd, booted: &Booted, handle: Option<&OwnedFd>) {
    let bytes = serde_json::to_vec(booted).unwrap_or_default();
    // If the runtime is gone, nobody reads the report, and the process is about to end.
    let _gone = socket::send(
        control.as_fd(),
        &bytes,
        &handle.map(AsRawFd::as_raw_fd).into_iter().collect::<Vec<_>>(),
    );
}

/// Adds the step to an error.
trait At<T> {
    fn at(self, step: Step) -> Result<T, SetupFailure>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, step: Step) -> Result<T, SetupFailure> {
        self.map_err(|error| {
            let error: io::Error = error.into();
            SetupFailure { step, errno: error.raw_os_error().unwrap_or(0), detail: error.to_string() }
        })
    }
}

enum Never {}

fn start(
    control: &OwnedFd,
    dispatch: Dispatch,
    warm_up: Option<&'static [u8]>,
) -> Result<Never, SetupFailure> {
    prctl::set_pdeathsig(Signal::SIGKILL).at(Step::Start)?;
    // The allocator has read its variable; children inherit none.
    process::clear_environment();
    nix::unistd::setsid().ok();
    let (boot, root) = receive_boot(control).at(Step::Start)?;
    // From here on the root is the working folder: the kernel carries it into the new mount namespace without a path lookup.
    nix::unistd::fchdir(root).at(Step::Workspace)?;
    let null = open_null().at(Step::Start)?;
    for slot in 0..=2 {
        process::place_fd(null.as_fd(), slot, true).at(Step::Start)?;
    }
    std::panic::set_hook(Box::new(|_| {}));

    let address_space_bytes = address_space_bytes().at(Step::Start)?;
    let mapped = identity::take(&boot)?;
    enter_namespaces(boot.identity)?;
    // The change of credentials cleared the parent-death signal.
    prctl::set_pdeathsig(Signal::SIGKILL).at(Step::Identity)?;

    match process::clone_process(0).at(Step::Namespaces)? {
        process::Cloned::Parent { pid, .. } => guard(pid),
        process::Cloned::Child => {}
    }
    prctl::set_pdeathsig(Signal::SIGKILL).at(Step::Start)?;
    let handle = process::own_handle().at(Step::Start)?;
    let world = tree::build(&boot, mapped)?;
    process::drop_bounding_set().at(Step::Capabilities)?;
    prctl::set_no_new_privs().at(Step::Capabilities)?;
    prctl::set_dumpable(false).at(Step::Capabilities)?;
    crate::sys::seccomp::install(&boot.base_filter).at(Step::BaseFilter)?;
    // Detect the processor's features once for all children: in a virtual machine each query is slow.
    std::hint::black_box(Digest::of(&[]));
    report(control, &Booted::Ready, Some(&handle));
    drop(handle);
    serve::serve(control, &child::ZygoteState { boot, world, dispatch, warm_up, address_space_bytes })
}

/// Receives the first message, which carries the space's root.
fn receive_boot(control: &OwnedFd) -> io::Result<(Boot, OwnedFd)> {
    let mut bytes = vec![0; CONTROL_BYTES_MAX];
    let (length, fds) = socket::receive(control.as_fd(), &mut bytes)?;
    let root = fds.into_iter().next();
    let root = root.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
    Ok((serde_json::from_slice(&bytes[..length])?, root))
}

fn open_null() -> io::Result<OwnedFd> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    high(null.as_fd())
}

/// The address space of the process before any call: the memory limit counts only what a call adds.
fn address_space_bytes() -> io::Result<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = pages.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
    Ok(pages * 4_096)
}

fn enter_namespaces(identity: Identity) -> Result<(), SetupFailure> {
    let flags = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWCGROUP
        | CloneFlags::CLONE_NEWPID;
    unshare(flags).at(Step::Namespaces)?;
    identity::write_maps("/proc/self", identity).at(Step::UserMapping)
}

/// The guard only waits: it ties the zygote's life to the runtime's.
fn guard(zygote: i32) -> ! {
    // Close the control socket, too: the runtime must see it close when the zygote dies.
    let _nothing_to_close = process::close_from(0);
    loop {
        match nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(zygote), None) {
            Err(nix::errno::Errno::EINTR) => {}
            Err(_) | Ok(_) => process::exit_now(0),
        }
    }
}
