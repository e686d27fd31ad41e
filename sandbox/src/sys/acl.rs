//! Access control lists.
#![allow(unsafe_code, reason = "raw system calls without a safe wrapper; each block states its argument")]

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

/// Whether the folder `name`, relative to the open `folder`, has an access control list. An unexpected error counts as yes.
pub(crate) fn has_acl(folder: BorrowedFd<'_>, name: &str) -> bool {
    // An `O_PATH` descriptor cannot read attributes; its path in /proc can.
    let Ok(path) = CString::new(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd())) else {
        return true;
    };
    // SAFETY: both names end with a zero, and with a length of 0 nothing is written.
    let found = unsafe { libc::getxattr(path.as_ptr(), ACCESS.as_ptr(), std::ptr::null_mut(), 0) };
    found >= 0 || !matches!(Errno::last(), Errno::ENODATA | Errno::EOPNOTSUPP)
}

const ACCESS: &std::ffi::CStr = c"system.posix_acl_access";
