//! Processes: cloned with a handle, accounted for when they end, stripped of their privileges.
#![allow(unsafe_code, reason = "raw system calls without a safe wrapper; each block states its argument")]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::check;

/// What [`clone_process`] returns in each of the two processes.
pub(crate) enum Cloned {
    Child,
    Parent {
        /// The child, as the parent's PID namespace numbers it.
        pid: i32,
        /// A handle that can never mean another process.
        pidfd: OwnedFd,
    },
}

/// Like `fork`, with namespaces of its own and a handle for the parent.
///
/// Only a single-threaded process may call this: in a process with threads, the copy could find a lock taken forever.
pub(crate) fn clone_process(namespaces: u64) -> io::Result<Cloned> {
    let mut pidfd: RawFd = -1;
    // SAFETY: `clone_args` is plain data, for which all zeroes is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = namespaces | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: no CLONE_VM, so the child gets a copy of the address space and its own stack, as after fork; `args` and
    // `pidfd` outlive the call. The caller is single-threaded (the zygote checks it at start), so that no lock is held.
    let pid =
        check(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) })?;
    if pid == 0 {
        return Ok(Cloned::Child);
    }
    // SAFETY: the kernel has just opened this descriptor for us (CLONE_PIDFD); nobody else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Cloned::Parent { pid: pid as i32, pidfd })
}

/// A handle of this process itself, to be sent to another.
pub(crate) fn own_handle() -> io::Result<OwnedFd> {
    let own = std::process::id();
    // SAFETY: plain integers.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, own, 0) })?;
    // SAFETY: the kernel has just opened this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Sends SIGKILL to the process of the handle. A process that has ended is not an error.
pub(crate) fn kill(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a plain system call on a descriptor that is open for the length of the borrow; a null siginfo is allowed.
    let sent = check(unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), libc::SIGKILL, no_info, 0)
    });
    match sent {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}

/// How a process ended, and what it and its reaped children used, as the kernel counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) pid: i32,
    pub(crate) status: i32,
    pub(crate) user_us: u64,
    pub(crate) system_us: u64,
    pub(crate) resident_max_kib: u64,
    pub(crate) blocks_written: u64,
}

/// Reaps one dead child, if there is one.
pub(crate) fn reap_one() -> Option<Ended> {
    let mut status = 0;
    // SAFETY: `rusage` is plain data, for which all zeroes is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both out-pointers are valid for the length of the call.
    let pid = unsafe { libc::wait4(-1, &raw mut status, libc::WNOHANG | libc::__WALL, &raw mut usage) };
    if pid <= 0 {
        return None;
    }
    let micros = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
    Some(Ended {
        pid,
        status,
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
        resident_max_kib: usage.ru_maxrss as u64,
        blocks_written: usage.ru_oublock as u64,
    })
}

/// Closes every descriptor from `first` on, also those above any limit.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: the callers own every descriptor of their process: it is a fresh zygote, its guard, a broker that has just been
    // started, or a child that keeps only the slots below `first`. No OwnedFd above it is used or dropped afterwards.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) }).map(drop)
}

/// Duplicates `fd` to the number `slot`, whatever was there before.
pub(crate) fn place_fd(fd: BorrowedFd<'_>, slot: RawFd, inherit: bool) -> io::Result<()> {
    let flags = if inherit { 0 } else { libc::O_CLOEXEC };
    // SAFETY: dup3 only replaces `slot`, which by the callers' protocol belongs to nobody else.
    check(unsafe { libc::dup3(fd.as_raw_fd(), slot, flags) }.into()).map(drop)
}

/// Borrows a slot that [`place_fd`] filled; it stays open until the process ends.
pub(crate) fn slot(slot: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the child's slots are filled before this is called and are never closed in that process.
    unsafe { BorrowedFd::borrow_raw(slot) }
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// Gives up every capability, effective, permitted and inheritable.
pub(crate) fn drop_capabilities() -> io::Result<()> {
    let header = CapHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    let none = [0u32; 6];
    // SAFETY: version 3 reads a header and two sets of three words each; both outlive the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) }).map(drop)
}

/// Makes sure that no executed file brings a capability back.
pub(crate) fn drop_bounding_set() -> io::Result<()> {
    // SAFETY: prctl with plain integers.
    check(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) }.into())?;
    for capability in 0..64 {
        // SAFETY: as above.
        let dropped = check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) }.into());
        match dropped {
            // The first number this kernel does not know ends the list.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(error),
            Ok(_) => {}
        }
    }
    Ok(())
}

/// The Landlock version of this kernel, by the raw system call: a library may downgrade silently, this cannot.
pub(crate) fn landlock_abi() -> io::Result<u32> {
    const VERSION: u32 = 1;
    let no_attr = std::ptr::null::<u8>();
    // SAFETY: with the version flag the kernel reads no attributes.
    let abi = check(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, no_attr, 0usize, VERSION) })?;
    Ok(abi as u32)
}

/// The pid of a handle, as this process's own `/proc` numbers it.
pub(crate) fn pid_of(pidfd: BorrowedFd<'_>) -> io::Result<i32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse().ok());
    match pid {
        Some(pid) if pid > 0 => Ok(pid),
        Some(_) | None => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// Ends the process at once, without destructors and without flushing buffers that were copied from the parent.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit never returns and runs no code of ours.
    unsafe { libc::_exit(code) }
}

/// Installs a handler for a signal that the init of a PID namespace would otherwise ignore.
pub(crate) fn exit_on(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) -> io::Result<()> {
    // SAFETY: `sigaction` is plain data, for which all zeroes is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    // SAFETY: the handlers given here only make async-signal-safe calls.
    check(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) }.into()).map(drop)
}

/// Whether this much address space can be mapped. Signal handlers call it, so it makes two system calls and nothing else.
pub(crate) fn can_map(bytes: usize) -> bool {
    // SAFETY: a fresh private mapping that is removed at once; nobody holds a pointer into it.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        );
        at != libc::MAP_FAILED && libc::munmap(at, bytes) == 0
    }
}

/// Removes all environment variables. The caller has no other threads.
pub(crate) fn clear_environment() {
    // SAFETY: no other thread reads the environment meanwhile. The call cannot fail in glibc.
    unsafe { libc::clearenv() };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_landlock_version_is_the_kernels_own_number() {
        assert!(landlock_abi().unwrap() >= 6, "this host cannot run effectd");
    }
}
