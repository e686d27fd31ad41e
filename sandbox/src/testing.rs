//! Helpers for tests, behind the feature `testing`: an honest way to see what happens on a host that cannot confine.
#![allow(
    unsafe_code,
    reason = "a filter has to be installed between fork and exec; the block states its argument"
)]

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::filter::{Program, Verdict, compile};
use crate::sys::seccomp;

/// What a simulated host lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The kernel was built without Landlock, or it is switched off.
    Landlock,
    /// Unprivileged user namespaces are forbidden.
    UserNamespaces,
}

/// Lets the command see a kernel without the feature. The kernel itself refuses, through a filter that the command inherits;
/// nothing in effectd is switched off or replaced.
pub fn without(missing: Missing, command: &mut Command) -> &mut Command {
    let (refused, errno) = match missing {
        Missing::Landlock => (libc::SYS_landlock_create_ruleset, libc::ENOSYS),
        Missing::UserNamespaces => (libc::SYS_unshare, libc::EPERM),
    };
    let verdict = move |number: u32| match i64::from(number) == refused {
        true => Verdict::Errno(errno as u16),
        false => Verdict::Allow,
    };
    let program: Program = compile(verdict, |_| None, Verdict::Allow);
    let install = move || {
        nix::sys::prctl::set_no_new_privs()?;
        seccomp::install(&program)
    };
    // SAFETY: between fork and exec the closure makes two system calls; the copy of the program that it allocates is small
    // and the allocator of a test's command is not held by another thread for long, at worst the test hangs.
    unsafe { command.pre_exec(install) }
}
