//! The zygote's identity: it becomes an ordinary user, and the workspace stays reachable.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::sys::prctl;
use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};

use super::At;
use super::tree::Sources;
use crate::sys::{mount, process};
use crate::wire::{Boot, Identity, SetupFailure, Step};

/// Drops to the ordinary uid. Root clones the mounts of the workspace and the view first: the ordinary uid may not be able
/// to reach them by their paths, and only root can make a mount translate owners.
pub(super) fn take(boot: &Boot) -> Result<Option<Sources>, SetupFailure> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let sources = Sources::open(boot)?;
    if let Some(owner) = boot.identity.stands_in_for {
        map_owner(&sources.of_space(boot), owner, boot.identity).at(Step::OwnerMapping)?;
    }
    let (uid, gid) = (Uid::from_raw(boot.identity.uid), Gid::from_raw(boot.identity.gid));
    setgroups(&[]).at(Step::Identity)?;
    setresgid(gid, gid, gid).at(Step::Identity)?;
    setresuid(uid, uid, uid).at(Step::Identity)?;
    // A change of uid makes /proc/self unwritable for the process itself, which must still write the mappings there.
    prctl::set_dumpable(true).at(Step::Identity)?;
    Ok(Some(sources))
}

/// Makes the mounts show files of `owner` as files of the stand-in, and store the stand-in's new files as `owner`'s.
fn map_owner(trees: &[&OwnedFd], owner: (u32, u32), stand_in: Identity) -> io::Result<()> {
    let (uid, gid) = owner;
    let child = process::clone_process(libc::CLONE_NEWUSER as u64)?;
    let (pid, handle) = match child {
        // Holds its user namespace open until it is killed.
        process::Cloned::Child => loop {
            nix::unistd::pause();
        },
        process::Cloned::Parent { pid, pidfd } => (pid, pidfd),
    };
    let mapped = (|| {
        fs::write(format!("/proc/{pid}/uid_map"), format!("{uid} {} 1", stand_in.uid))?;
        fs::write(format!("/proc/{pid}/gid_map"), format!("{gid} {} 1", stand_in.gid))?;
        let namespace = fs::File::open(format!("/proc/{pid}/ns/user"))?;
        trees.iter().try_for_each(|tree| mount::map_owners(tree.as_fd(), namespace.as_fd()))
    })();
    process::kill(handle.as_fd())?;
    nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None)?;
    mapped
}

/// Maps the one uid and gid to themselves in the user namespace just entered.
pub(super) fn write_maps(proc_self: impl AsRef<Path>, identity: Identity) -> io::Result<()> {
    let at = proc_self.as_ref();
    fs::write(at.join("setgroups"), "deny")?;
    fs::write(at.join("gid_map"), format!("{0} {0} 1", identity.gid))?;
    fs::write(at.join("uid_map"), format!("{0} {0} 1", identity.uid))
}
