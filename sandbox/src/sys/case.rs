//! Whether a folder tells names in upper and lower case apart.
#![allow(unsafe_code, reason = "a raw system call without a safe wrapper; the block states its argument")]

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::sys::statfs::fstatfs;

/// File systems that find `a.txt` by the name `A.TXT`: vfat, exFAT, HFS, HFS+, and shares by SMB 1 and 2.
const IGNORING: [i64; 6] = [0x4d44, 0x2011_bab0, 0x4244, 0x482b, 0xff53_4d42, 0xfe53_4d42];
/// The flag of folders of ext4, f2fs and tmpfs that ignore case.
const FS_CASEFOLD_FL: libc::c_long = 0x4000_0000;

/// Whether two spellings that differ in case are one file in this folder. If that cannot be known, they are two.
pub(crate) fn ignores_case(folder: BorrowedFd<'_>) -> bool {
    let ignores = |found: i64| IGNORING.contains(&found);
    fstatfs(folder).is_ok_and(|found| ignores(found.filesystem_type().0)) || is_casefolded(folder)
}

fn is_casefolded(folder: BorrowedFd<'_>) -> bool {
    // An `O_PATH` descriptor has no flags to read.
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let Ok(opened) = openat(folder, ".", flags, Mode::empty()) else {
        return false;
    };
    let mut found: libc::c_long = 0;
    // SAFETY: the descriptor is open, and the kernel writes at most a long, which `found` has room for.
    let read = unsafe { libc::ioctl(opened.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut found) };
    read == 0 && found & FS_CASEFOLD_FL != 0
}
