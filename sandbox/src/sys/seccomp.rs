//! Seccomp: installing filters, and answering the calls that they refuse.
#![allow(unsafe_code, reason = "raw system calls without a safe wrapper; each block states its argument")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::check;

/// A program for the kernel: `(code, jump if true, jump if false, constant)` for each step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program(pub(crate) Vec<(u16, u8, u8, u32)>);

fn load(program: &Program, flags: libc::c_ulong) -> io::Result<libc::c_long> {
    let mut code: Vec<libc::sock_filter> = program
        .0
        .iter()
        .map(|step| libc::sock_filter { code: step.0, jt: step.1, jf: step.2, k: step.3 })
        .collect();
    let length = u16::try_from(code.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    let header = libc::sock_fprog { len: length, filter: code.as_mut_ptr() };
    // SAFETY: `header` points to `length` instructions that outlive the call; the kernel verifies and copies them.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const header)
    })
}

/// Confines this process, and all that it starts, permanently.
pub(crate) fn install(program: &Program) -> io::Result<()> {
    load(program, 0).map(drop)
}

/// Like [`install`], and returns the descriptor on which refused system calls are announced.
pub(crate) fn install_with_listener(program: &Program) -> io::Result<OwnedFd> {
    let fd = load(program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    // SAFETY: with this flag the result is a descriptor the kernel has just opened for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A refused call that waits for its errno.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused {
    id: u64,
    pub(crate) number: i32,
    /// Its arguments. Pointers among them mean nothing here.
    pub(crate) arguments: [u64; 6],
}

/// Takes the next refused call, if there is one. Call only when the descriptor is readable.
pub(crate) fn next_refused(listener: BorrowedFd<'_>) -> io::Result<Option<Refused>> {
    // SAFETY: plain data, for which all zeroes is a valid value; the kernel demands zeroes here.
    let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the buffer has the size that is part of the request's number and outlives the call.
    let taken = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice) };
    match check(taken.into()) {
        Ok(_) => Ok(Some(Refused { id: notice.id, number: notice.data.nr, arguments: notice.data.args })),
        // The caller died, or a signal interrupted it: nobody waits for an answer.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lets the refused call return with this errno. A caller that has died is not an error.
pub(crate) fn refuse_with(listener: BorrowedFd<'_>, refused: Refused, errno: i32) {
    let mut answer = libc::seccomp_notif_resp { id: refused.id, val: 0, error: -errno, flags: 0 };
    // SAFETY: the buffer has the size that is part of the request's number and outlives the call.
    let _gone = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
}
