//! A view: what a call sees instead of a writable workspace.
//!
//! The workspace is mounted read-only, so that not even modes and times in it can change; writable paths, caches and programs are
//! mounts of their own. Only an operator asks for a view, by the policy or a connection: unlike a [`crate::Narrowing`], it can add
//! programs and raise limits.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use effectd_contracts::Code;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;
use crate::root::SpaceRoot;

/// Where the space's root lies in the tree of a confined process.
pub(crate) const WORKSPACE: &str = "/workspace";
/// Places of the tree that no folder of programs may cover.
const RESERVED: [&str; 5] = [WORKSPACE, "/tmp", "/proc", "/dev", "/etc"];

/// What a child may do with a path of its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TreeAccess {
    Read,
    Execute,
    Device,
    /// Read and change; only in a view.
    Write,
    /// Read, change and execute; only in a view.
    Cache,
}

/// The view of one named command on one space.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    pub(crate) mounts: Vec<Mount>,
    pub(crate) memory_bytes: u64,
    /// Of each process.
    pub(crate) cpu_ms: u64,
    /// A folder, and how much stays free on its disk.
    pub(crate) reserve: Option<(PathBuf, u64)>,
}

/// The identity of a file or folder: device, inode, and the time of its creation, since the kernel gives the inode of a removed
/// folder to the next one.
type Id = (u64, u64, u64);

/// A mount of a view. The zygote compares both identities: a path may lead elsewhere by then.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Mount {
    /// The path on the host, or beneath the root if it is relative.
    pub(crate) from: PathBuf,
    /// The path in the tree, or beneath the workspace if it is relative.
    pub(crate) at: PathBuf,
    pub(crate) access: TreeAccess,
    id: Id,
    /// The folder of the workspace that it covers.
    covers: Option<Id>,
}

impl View {
    /// A view in which nothing of the space is writable. Processor time counts for each process.
    pub fn new(memory_bytes: u64, cpu_ms: u64) -> Self {
        Self { mounts: Vec::new(), memory_bytes, cpu_ms, reserve: None }
    }

    /// Ends a call that can write when less than this is free on the disk of a folder.
    pub fn keep_free(&mut self, folder: &Path, bytes: u64) {
        self.reserve = Some((folder.to_owned(), bytes));
    }

    /// Lets a path beneath the root be changed. It must exist, and no link may lead to it.
    pub fn add_writable(&mut self, root: &SpaceRoot, path: &Path) -> Result<(), SandboxError> {
        let id = in_space(root, path)?;
        let (from, at) = (path.to_owned(), path.to_owned());
        self.mounts.push(Mount { from, at, access: TreeAccess::Write, id, covers: Some(id) });
        Ok(())
    }

    /// Keeps a path beneath the root as it is, in a folder that may be changed. It must exist, and no link may lead to it.
    pub fn add_read_only(&mut self, root: &SpaceRoot, path: &Path) -> Result<(), SandboxError> {
        let id = in_space(root, path)?;
        let (from, at) = (path.to_owned(), path.to_owned());
        self.mounts.push(Mount { from, at, access: TreeAccess::Read, id, covers: Some(id) });
        Ok(())
    }

    /// Mounts a folder, for files that the call may change and execute, over a folder of the space, which must exist.
    pub fn add_cache(
        &mut self,
        root: &SpaceRoot,
        path: &Path,
        cache: &SpaceRoot,
    ) -> Result<(), SandboxError> {
        let covers = Some(in_space(root, path)?);
        let id = id_of(cache.as_fd()).map_err(SandboxError::io("inspecting a cache"))?;
        let (from, at) = (cache.path().to_owned(), path.to_owned());
        self.mounts.push(Mount { from, at, access: TreeAccess::Cache, id, covers });
        Ok(())
    }

    /// Lets the programs in a folder of the host be read and executed, by the same path. Refuses a folder that does not pass
    /// [`View::check_programs`], or that shares files with the space.
    pub fn add_programs(&mut self, root: &SpaceRoot, path: &Path) -> Result<(), SandboxError> {
        let folder = Self::check_apart(root, path)?;
        let (from, at) = (path.to_owned(), path.to_owned());
        let id = id_of(folder.as_fd()).map_err(SandboxError::io("inspecting a folder of programs"))?;
        self.mounts.push(Mount { from, at, access: TreeAccess::Execute, id, covers: None });
        Ok(())
    }

    /// Opens a folder of programs that passes [`View::check_programs`]. Refuses one that shares files with a space.
    pub fn check_apart(root: &SpaceRoot, path: &Path) -> Result<SpaceRoot, SandboxError> {
        let folder = Self::check_programs(path, geteuid().as_raw())?;
        if folder.id() == root.id() || is_above(&folder, root)? || is_above(root, &folder)? {
            let (path, root) = (path.display(), root.path().display());
            return Err(SandboxError::Refused(format!("{path} shares files with {root}")));
        }
        Ok(folder)
    }

    /// Refuses a folder of programs that is in one of these paths, or has one of them in it. None of them has a link.
    pub fn check_outside(path: &Path, kept: &[PathBuf]) -> Result<(), SandboxError> {
        match kept.iter().find(|kept| kept.starts_with(path) || path.starts_with(kept)) {
            Some(kept) => {
                let (path, kept) = (path.display(), kept.display());
                Err(SandboxError::Refused(format!("{path} shares files with {kept}")))
            }
            None => Ok(()),
        }
    }

    /// Opens a folder of programs. Refuses one that is missing, or that users other than root, `daemon` and its owner could change;
    /// the same for its `bin`, if it has one, which must be a folder and no link.
    pub fn check_programs(path: &Path, daemon: u32) -> Result<SpaceRoot, SandboxError> {
        let folder = SpaceRoot::open(path)?;
        folder.check_whole(daemon)?;
        if let Some(bin) = SpaceRoot::find(&path.join("bin"))? {
            bin.check_whole(daemon)?;
        }
        if let Some(reserved) = RESERVED.iter().find(|reserved| path.starts_with(reserved)) {
            let why = format!("{} cannot hold programs: a call has a {reserved} of its own", path.display());
            return Err(SandboxError::Refused(why));
        }
        Ok(folder)
    }

    /// Whether a call with this view can write to a disk.
    pub(crate) fn can_write(&self) -> bool {
        self.mounts.iter().any(Mount::is_of_space)
    }

    pub(crate) fn open_caches(&self) -> io::Result<Vec<OwnedFd>> {
        let caches = self.mounts.iter().filter(|mount| mount.access == TreeAccess::Cache);
        caches.map(Mount::open_source).collect()
    }
}

fn is_above(one: &SpaceRoot, other: &SpaceRoot) -> Result<bool, SandboxError> {
    let id = (one.id().device, one.id().inode);
    Ok(other.ancestors()?.iter().any(|above| above.id == id))
}

impl Mount {
    /// Opens the mount's source: a relative one beneath the working folder, which is the space's root.
    pub(crate) fn open_source(&self) -> io::Result<OwnedFd> {
        same(open_at(AT_FDCWD, &self.from)?, self.id)
    }

    /// Opens what the mount covers in the workspace.
    pub(crate) fn open_target(&self, workspace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        same(open_at(workspace, &self.at)?, self.covers.unwrap_or(self.id))
    }

    /// Whether it belongs to the space, so that its files are shown and stored with the space's owner.
    pub(crate) fn is_of_space(&self) -> bool {
        self.covers.is_some()
    }

    /// Its path in the tree.
    pub(crate) fn path(&self) -> PathBuf {
        Path::new(WORKSPACE).join(&self.at)
    }
}

/// Opens a path through no link; a relative one does not leave `folder`.
pub(crate) fn open_at(folder: BorrowedFd<'_>, path: &Path) -> nix::Result<OwnedFd> {
    let beneath = if path.is_absolute() { ResolveFlag::empty() } else { ResolveFlag::RESOLVE_BENEATH };
    let no_links = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    openat2(folder, path, OpenHow::new().flags(flags).resolve(no_links | beneath))
}

fn id_of(handle: BorrowedFd<'_>) -> io::Result<Id> {
    let it = File::from(handle.try_clone_to_owned()?).metadata()?;
    let born = it.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    let born = born.and_then(|born| u64::try_from(born.as_nanos()).ok());
    Ok((it.dev(), it.ino(), born.unwrap_or_default()))
}

fn same(handle: OwnedFd, expected: Id) -> io::Result<OwnedFd> {
    if id_of(handle.as_fd())? == expected { Ok(handle) } else { Err(Errno::ESTALE.into()) }
}

/// The identity of a path beneath the root, which must exist.
fn in_space(root: &SpaceRoot, path: &Path) -> Result<Id, SandboxError> {
    let found = open_at(root.as_fd(), path).map_err(io::Error::from).and_then(|it| id_of(it.as_fd()));
    let path = path.display();
    found.map_err(|error| SandboxError::Path {
        code: if error.kind() == io::ErrorKind::NotFound { Code::FileNotFound } else { Code::PathDenied },
        what: format!(
            "the call may write to {path} in the space by its policy or plan, which cannot be opened ({error})"
        ),
        fix: format!("create {path} in the space, without links, before the call"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn programs_that_others_can_change_are_refused_at_each_use() {
        let place = tempfile::tempdir().unwrap();
        let base = place.path().canonicalize().unwrap();
        let (space, tools) = (base.join("space"), base.join("tools"));
        for folder in [&space.join("tools"), &tools.join("bin")] {
            fs::create_dir_all(folder).unwrap();
        }
        let root = SpaceRoot::open(&space).unwrap();
        let refused = |folder: &Path| View::new(0, 0).add_programs(&root, folder).unwrap_err().to_string();
        for changed in [tools.join("bin"), tools.clone(), base.clone()] {
            let mode = |mode| fs::set_permissions(&changed, fs::Permissions::from_mode(mode)).unwrap();
            mode(0o777);
            assert!(refused(&tools).contains("mode 0777"), "{changed:?}: {}", refused(&tools));
            mode(0o755);
        }
        // Programs beneath /tmp are refused for another reason, so the folders are compared here.
        let of = |path: &Path| SpaceRoot::open(path).unwrap();
        assert!(is_above(&root, &of(&space.join("tools"))).unwrap() && is_above(&of(&base), &root).unwrap());
        assert!(!is_above(&root, &of(&tools)).unwrap() && !is_above(&root, &root).unwrap());
    }
}
