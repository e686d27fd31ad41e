//! Mount calls on descriptors: the folder that was opened is mounted, whatever its path means now.
#![allow(unsafe_code, reason = "raw system calls without a safe wrapper; each block states its argument")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;

pub(crate) const READ_ONLY: u64 = 0x1;
pub(crate) const NO_SUID: u64 = 0x2;
pub(crate) const NO_DEV: u64 = 0x4;
pub(crate) const NO_EXEC: u64 = 0x8;
const IDMAP: u64 = 0x0010_0000;
const OPEN_TREE_CLONE: u32 = 1;
const MOVE_EMPTY_SOURCE: u32 = 0x4;
const MOVE_EMPTY_TARGET: u32 = 0x40;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_SET_FLAG: u32 = 0;
const FSCONFIG_CREATE: u32 = 6;

#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

fn own(fd: libc::c_long) -> OwnedFd {
    // SAFETY: every caller passes the fresh result of a successful call that opened a descriptor.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

/// A private, detached copy of the mounts at and beneath `path`.
pub(crate) fn clone_tree(path: &CStr) -> io::Result<OwnedFd> {
    copy_tree(libc::AT_FDCWD, path, 0)
}

/// A private, detached copy of the mounts at and beneath an open file or folder.
pub(crate) fn clone_open(handle: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    copy_tree(handle.as_raw_fd(), c"", libc::AT_EMPTY_PATH as u32)
}

fn copy_tree(at: libc::c_int, path: &CStr, flags: u32) -> io::Result<OwnedFd> {
    let flags = flags | OPEN_TREE_CLONE | libc::O_CLOEXEC as u32 | libc::AT_RECURSIVE as u32;
    // SAFETY: the path is a valid C string for the length of the call.
    let fd = check(unsafe { libc::syscall(libc::SYS_open_tree, at, path.as_ptr(), flags) })?;
    let tree = own(fd);
    let attr = MountAttr { propagation: libc::MS_PRIVATE, ..MountAttr::default() };
    set_attributes(tree.as_fd(), attr, libc::AT_RECURSIVE)?;
    Ok(tree)
}

fn set_attributes(mount: BorrowedFd<'_>, attr: MountAttr, flags: libc::c_int) -> io::Result<()> {
    let (fd, flags) = (mount.as_raw_fd(), libc::AT_EMPTY_PATH | flags);
    // SAFETY: `attr` outlives the call and its size is passed with it; the empty path means the descriptor itself.
    check(unsafe {
        let size = size_of::<MountAttr>();
        libc::syscall(libc::SYS_mount_setattr, fd, c"".as_ptr(), flags, &raw const attr, size)
    })
    .map(drop)
}

/// Adds restrictions to a mount and everything beneath it.
pub(crate) fn restrict(mount: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    let attr = MountAttr { set: attributes, ..MountAttr::default() };
    set_attributes(mount, attr, libc::AT_RECURSIVE)
}

/// Adds restrictions to one mount, not to the mounts beneath it.
pub(crate) fn restrict_one(mount: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    let attr = MountAttr { set: attributes, ..MountAttr::default() };
    set_attributes(mount, attr, 0)
}

/// Makes the mount show and store owners as the user namespace maps them. Only real root can do this.
pub(crate) fn map_owners(mount: BorrowedFd<'_>, userns: BorrowedFd<'_>) -> io::Result<()> {
    let attr = MountAttr { set: IDMAP, userns: userns.as_raw_fd() as u64, ..MountAttr::default() };
    set_attributes(mount, attr, libc::AT_RECURSIVE)
}

/// Attaches a detached mount to the directory or file at `target`.
pub(crate) fn attach(mount: BorrowedFd<'_>, target: &CStr) -> io::Result<()> {
    // SAFETY: both paths are valid C strings for the length of the call; the source's empty path means the descriptor.
    check(unsafe {
        let (from, empty) = (mount.as_raw_fd(), c"".as_ptr());
        libc::syscall(libc::SYS_move_mount, from, empty, libc::AT_FDCWD, target.as_ptr(), MOVE_EMPTY_SOURCE)
    })
    .map(drop)
}

/// Attaches a detached mount to an open directory or file.
pub(crate) fn attach_to(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let (from, to, empty) = (mount.as_raw_fd(), target.as_raw_fd(), c"".as_ptr());
    // SAFETY: both paths are empty C strings, which mean the descriptors themselves.
    check(unsafe {
        libc::syscall(libc::SYS_move_mount, from, empty, to, empty, MOVE_EMPTY_SOURCE | MOVE_EMPTY_TARGET)
    })
    .map(drop)
}

/// A new filesystem that is mounted nowhere: it lives as long as the descriptor.
pub(crate) fn fresh(kind: &CStr, options: &[(&CStr, Option<&CStr>)], attributes: u64) -> io::Result<OwnedFd> {
    // SAFETY: the name is a valid C string; 1 asks for close-on-exec.
    let context = own(check(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), 1) })?);
    let raw = context.as_raw_fd();
    for (key, value) in options {
        let (command, value) = match value {
            Some(value) => (FSCONFIG_SET_STRING, value.as_ptr()),
            None => (FSCONFIG_SET_FLAG, std::ptr::null()),
        };
        // SAFETY: key and value are valid C strings (or null where the command takes none) for the length of the call.
        check(unsafe { libc::syscall(libc::SYS_fsconfig, raw, command, key.as_ptr(), value, 0) })?;
    }
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: the create command takes neither key nor value.
    check(unsafe { libc::syscall(libc::SYS_fsconfig, raw, FSCONFIG_CREATE, none, none, 0) })?;
    // SAFETY: plain integers; 1 asks for close-on-exec.
    Ok(own(check(unsafe { libc::syscall(libc::SYS_fsmount, raw, 1, attributes) })?))
}
