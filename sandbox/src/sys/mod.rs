//! The system calls that no safe wrapper covers. Everything `unsafe` of this crate lies here and in [`crate::zygote`],
//! behind functions that cannot be misused.

pub(crate) mod acl;
pub(crate) mod mount;
pub(crate) mod process;
pub(crate) mod seccomp;
pub(crate) mod socket;

use std::io;

/// Turns the kernel's `-1` into the error it stands for.
pub(crate) fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
