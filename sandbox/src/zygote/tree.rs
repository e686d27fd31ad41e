//! The only files that exist for a confined process.
//!
//! A root of its own, on which nothing of the host is mounted but what the profile names: what Landlock does not cover —
//! modes, owners, times, `stat`, unix sockets by path — cannot be reached, because it is not there.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sys::stat::Mode;

use super::{At, high};
use crate::profile::{TreeAccess, TreeEntry};
use crate::rules::Visible;
use crate::sys::mount::{self, NO_DEV, NO_EXEC, NO_SUID, READ_ONLY};
use crate::wire::{Boot, SetupFailure, Step};

/// Where the space's root lies in the tree.
pub(crate) const WORKSPACE: &str = "/workspace";
/// Where the scratch folder lies in the tree, in profiles that give it a name.
pub(crate) const TMP: &str = "/tmp";

/// The handles through which children reach what exists.
pub(super) struct World {
    pub(super) workspace: OwnedFd,
    /// What of the host is visible, for the Landlock rules.
    pub(super) entries: Vec<Visible>,
}

pub(super) fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// A directory that exists on every system and that nothing needs while the new root is prepared on top of it.
const STAGING: &[&str] = &["/tmp", "/mnt", "/run", "/var"];

/// Replaces everything the process can see. `workspace` is the workspace's mount, if root has taken it already; otherwise the
/// workspace is the working folder.
pub(super) fn build(boot: &Boot, workspace: Option<OwnedFd>) -> Result<World, SetupFailure> {
    let none = None::<&str>;
    nix::mount::mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).at(Step::Tree)?;
    let workspace = match workspace {
        Some(tree) => tree,
        None => mount::clone_tree(c".").at(Step::Workspace)?,
    };
    mount::restrict(workspace.as_fd(), NO_SUID | NO_DEV | NO_EXEC).at(Step::Workspace)?;

    let staging = STAGING
        .iter()
        .map(Path::new)
        .find(|path| path.is_dir() && !path.is_symlink());
    let staging = staging
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
        .at(Step::Tree)?;
    let options = [
        (c"size", Some(c"1m")),
        (c"mode", Some(c"755")),
        (c"nr_inodes", Some(c"1024")),
    ];
    let root = mount::fresh(c"tmpfs", &options, NO_SUID | NO_DEV | NO_EXEC).at(Step::Tree)?;
    // Everything of the host is opened before anything is covered.
    let entries: Vec<_> = boot
        .tree
        .iter()
        .filter_map(|entry| Entry::take(entry).transpose())
        .collect::<io::Result<_>>()
        .at(Step::Tree)?;
    let proc = match boot.proc {
        true => Some(mount::fresh(c"proc", &[], NO_SUID | NO_DEV | NO_EXEC).at(Step::Proc)?),
        false => None,
    };
    mount::attach(root.as_fd(), &c_path(staging).at(Step::Tree)?).at(Step::Tree)?;

    put(staging, Path::new(WORKSPACE), true, &workspace).at(Step::Workspace)?;
    for entry in &entries {
        entry.put(staging).at(Step::Tree)?;
    }
    if let Some(proc) = &proc {
        put(staging, Path::new("/proc"), true, proc).at(Step::Proc)?;
        fs::create_dir(staging.join("tmp")).at(Step::Tree)?;
        standard_names(staging).at(Step::Tree)?;
    }
    become_root(staging).at(Step::Tree)?;
    mount::restrict_one(root.as_fd(), READ_ONLY | NO_SUID | NO_DEV | NO_EXEC).at(Step::Tree)?;
    handles(&entries).at(Step::Tree)
}

/// The names under which shells and many programs look for their own descriptors.
fn standard_names(staging: &Path) -> io::Result<()> {
    let names = [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")];
    fs::create_dir_all(staging.join("dev"))?;
    for (name, number) in names {
        std::os::unix::fs::symlink(format!("/proc/self/fd{number}"), staging.join("dev").join(name))?;
    }
    Ok(())
}

fn become_root(new: &Path) -> nix::Result<()> {
    nix::unistd::chdir(new)?;
    // The old root is put on top of the new one and taken off again, so that no directory is needed for it.
    nix::unistd::pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    nix::unistd::chdir("/")
}

fn handles(entries: &[Entry]) -> io::Result<World> {
    let open_path = |path: &Path| -> io::Result<OwnedFd> {
        high(open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?.as_fd())
    };
    let mut opened = Vec::new();
    for entry in entries {
        if let Entry::Mounted {
            path,
            access,
            directory,
            ..
        } = entry
        {
            opened.push(Visible {
                handle: open_path(path)?,
                access: *access,
                directory: *directory,
            });
        }
    }
    Ok(World {
        workspace: open_workspace()?,
        entries: opened,
    })
}

/// The space's root, by the name that it has in the tree.
pub(super) fn open_workspace() -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    high(open(WORKSPACE, flags, Mode::empty())?.as_fd())
}

enum Entry {
    Mounted {
        path: PathBuf,
        access: TreeAccess,
        directory: bool,
        tree: OwnedFd,
    },
    Link {
        path: PathBuf,
        to: PathBuf,
    },
}

impl Entry {
    /// Opens one path of the host; `None` if it may be missing and is.
    fn take(entry: &TreeEntry) -> io::Result<Option<Self>> {
        let path = PathBuf::from(&entry.path);
        let metadata = match fs::symlink_metadata(&path) {
            Err(error) if entry.optional && error.kind() == io::ErrorKind::NotFound => return Ok(None),
            metadata => metadata?,
        };
        // On merged systems /bin and /lib are links into /usr. A link to a single file is followed: its target may lie
        // where nothing is visible.
        let target_is_dir = fs::metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        if metadata.is_symlink() && target_is_dir {
            return Ok(Some(Self::Link {
                to: fs::read_link(&path)?,
                path,
            }));
        }
        let tree = match mount::clone_tree(&c_path(&path)?) {
            Err(error) if entry.optional && error.kind() == io::ErrorKind::NotFound => return Ok(None),
            tree => tree?,
        };
        let attributes = match entry.access {
            TreeAccess::Read => READ_ONLY | NO_SUID | NO_DEV | NO_EXEC,
            TreeAccess::Execute => READ_ONLY | NO_SUID | NO_DEV,
            TreeAccess::Device => READ_ONLY | NO_SUID | NO_EXEC,
        };
        mount::restrict(tree.as_fd(), attributes)?;
        Ok(Some(Self::Mounted {
            path,
            access: entry.access,
            directory: target_is_dir,
            tree,
        }))
    }

    fn put(&self, staging: &Path) -> io::Result<()> {
        match self {
            Self::Mounted {
                path,
                directory,
                tree,
                ..
            } => put(staging, path, *directory, tree),
            Self::Link { path, to } => std::os::unix::fs::symlink(to, beneath(staging, path)),
        }
    }
}

fn beneath(staging: &Path, path: &Path) -> PathBuf {
    staging.join(path.strip_prefix("/").unwrap_or(path))
}

fn put(staging: &Path, path: &Path, directory: bool, tree: &OwnedFd) -> io::Result<()> {
    let target = beneath(staging, path);
    if directory {
        fs::create_dir_all(&target)?;
    } else {
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::File::create(&target)?;
    }
    mount::attach(tree.as_fd(), &c_path(&target)?)
}
