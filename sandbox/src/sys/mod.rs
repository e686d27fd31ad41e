//! System calls without a safe wrapper. Nearly all `unsafe` code of this crate is here, behind safe functions.

pub(crate) mod acl;
pub(crate) mod case;
pub(crate) mod mount;
pub(crate) mod process;
pub(crate) mod seccomp;
pub(crate) mod socket;

use std::io;

/// Turns the kernel's `-1` into the error in `errno`.
pub(crate) fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
