//! The confinement of the egress broker, the one process that dials out for tools.
//!
//! It parses what strangers send, and it holds secrets for the length of an exchange. So it has no file of effectd and no way to
//! start a program: whoever takes it over has the network, which it had, and nothing else.

use std::path::PathBuf;

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};

use crate::confine::profile::BrokerProfile;
use crate::confine::rules;
use crate::error::SandboxError;
use crate::limits::BROKER_ID;
use crate::sandbox::check_landlock;
use crate::sys::{process, seccomp};

/// Closes every descriptor but those of standard input, output and error. Call it first: whatever the program that started this one
/// left open would stay readable behind any confinement.
pub fn close_inherited_files() -> Result<(), SandboxError> {
    process::close_from(3).map_err(SandboxError::io("closing inherited files"))
}

/// Confines this process for good: as a user of its own if it is root, with files that it may read and none that it may write, with
/// a bound of its memory, and with the system calls of `profiles/egress.toml`. Paths that do not exist are left out.
///
/// Call it before a second thread starts: a thread that runs already would keep its rights.
pub fn confine_broker(readable: &[PathBuf]) -> Result<(), SandboxError> {
    check_landlock()?;
    let profile = BrokerProfile::load()?;
    let failed = |what| move |errno: nix::Error| SandboxError::io(what)(errno.into());
    if geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(BROKER_ID), Gid::from_raw(BROKER_ID));
        setgroups(&[]).map_err(failed("leaving groups"))?;
        setresgid(gid, gid, gid).map_err(failed("changing the group"))?;
        setresuid(uid, uid, uid).map_err(failed("changing the user"))?;
    }
    prctl::set_dumpable(false).map_err(failed("hiding the memory"))?;
    for (resource, bound) in [
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_FSIZE, 0),
        (Resource::RLIMIT_MEMLOCK, 0),
        (Resource::RLIMIT_MSGQUEUE, 0),
        (Resource::RLIMIT_NOFILE, profile.open_files),
        (Resource::RLIMIT_DATA, profile.memory_bytes),
    ] {
        setrlimit(resource, bound, bound).map_err(failed("limiting the broker"))?;
    }
    let unavailable = |what: String| SandboxError::Unavailable {
        what,
        fix: "use a kernel with Landlock and seccomp".to_owned(),
    };
    rules::restrict_to_reading(readable).map_err(unavailable)?;
    process::drop_capabilities().map_err(SandboxError::io("dropping capabilities"))?;
    seccomp::install(&profile.filter).map_err(SandboxError::io("installing the filter of the broker"))
}
