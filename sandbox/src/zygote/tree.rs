//! The file tree of a confined process: its own root, with nothing of the host but what the profile names.
//!
//! Landlock does not cover modes, owners, times, `stat` or unix sockets by path. None of these reaches a file outside
//! the tree, because such a file does not exist for the process.

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
use crate::confine::profile::TreeEntry;
use crate::confine::rules::Visible;
use crate::sys::mount::{self, NO_DEV, NO_EXEC, NO_SUID, READ_ONLY};
use crate::view::{Mount, TreeAccess, WORKSPACE, open_at};
use crate::wire::{Boot, SetupFailure, Step};

/// Where the scratch folder lies in the tree, in profiles that give it a name.
pub(crate) const TMP: &str = "/tmp";

/// The descriptors of the tree for children.
pub(super) struct World {
    pub(super) workspace: OwnedFd,
    /// The host's paths in the tree, for the Landlock rules.
    pub(super) entries: Vec<Visible>,
}

pub(super) fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Directories that can carry the mount of the new root: every system has one of them, and the setup needs none.
const STAGING: &[&str] = &["/tmp", "/mnt", "/run", "/var"];

/// The mounts of the workspace and of the view, attached nowhere yet.
pub(super) struct Sources {
    workspace: OwnedFd,
    view: Vec<OwnedFd>,
}

impl Sources {
    /// Copies the mounts. The workspace is the working folder.
    pub(super) fn open(boot: &Boot) -> Result<Self, SetupFailure> {
        let workspace = mount::clone_tree(c".").at(Step::Workspace)?;
        let workspace = high(workspace.as_fd()).at(Step::Workspace)?;
        let mounts = boot.view.iter().flatten();
        let copy = |one: &Mount| high(mount::clone_open(one.open_source()?.as_fd())?.as_fd());
        let view = mounts.map(copy).collect::<io::Result<_>>().at(Step::View)?;
        Ok(Self { workspace, view })
    }

    /// The mounts whose files belong to the space.
    pub(super) fn of_space(&self, boot: &Boot) -> Vec<&OwnedFd> {
        let view = self.view.iter().zip(boot.view.iter().flatten());
        let of_space = view.filter(|(_, mount)| mount.is_of_space()).map(|(tree, _)| tree);
        std::iter::once(&self.workspace).chain(of_space).collect()
    }
}

/// Replaces the whole file tree of the process. `sources` are the mounts that root has copied already.
pub(super) fn build(boot: &Boot, sources: Option<Sources>) -> Result<World, SetupFailure> {
    let none = None::<&str>;
    nix::mount::mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).at(Step::Tree)?;
    let Sources { workspace, view } = match sources {
        Some(sources) => sources,
        None => Sources::open(boot)?,
    };
    let writing = if boot.view.is_some() { READ_ONLY } else { 0 };
    mount::restrict(workspace.as_fd(), writing | NO_SUID | NO_DEV | NO_EXEC).at(Step::Workspace)?;

    let staging = STAGING.iter().map(Path::new).find(|path| path.is_dir() && !path.is_symlink());
    let staging = staging.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT)).at(Step::Tree)?;
    let options = [(c"size", Some(c"1m")), (c"mode", Some(c"755")), (c"nr_inodes", Some(c"1024"))];
    let root = mount::fresh(c"tmpfs", &options, NO_SUID | NO_DEV | NO_EXEC).at(Step::Tree)?;
    // Open everything of the host before a mount covers it.
    let entries: Vec<_> = boot
        .tree
        .iter()
        .filter_map(|entry| HostPath::take(entry).transpose())
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
    for (tree, mount) in view.iter().zip(boot.view.iter().flatten()) {
        put_view(staging, tree, mount).at(Step::View)?;
    }
    if let Some(proc) = &proc {
        put(staging, Path::new("/proc"), true, proc).at(Step::Proc)?;
        fs::create_dir(staging.join("tmp")).at(Step::Tree)?;
        standard_names(staging).at(Step::Tree)?;
    }
    become_root(staging).at(Step::Tree)?;
    mount::restrict_one(root.as_fd(), READ_ONLY | NO_SUID | NO_DEV | NO_EXEC).at(Step::Tree)?;
    handles(&entries, boot).at(Step::Tree)
}

/// Mounts a part of the view. Nothing is created in the workspace.
fn put_view(staging: &Path, tree: &OwnedFd, part: &Mount) -> io::Result<()> {
    mount::restrict(tree.as_fd(), attributes(part.access))?;
    if !part.is_of_space() {
        return put(staging, &part.at, true, tree);
    }
    let workspace = open_at(nix::fcntl::AT_FDCWD, &beneath(staging, Path::new(WORKSPACE)))?;
    mount::attach_to(tree.as_fd(), part.open_target(workspace.as_fd())?.as_fd())
}

fn attributes(access: TreeAccess) -> u64 {
    match access {
        TreeAccess::Read => READ_ONLY | NO_SUID | NO_DEV | NO_EXEC,
        TreeAccess::Execute => READ_ONLY | NO_SUID | NO_DEV,
        TreeAccess::Device => READ_ONLY | NO_SUID | NO_EXEC,
        TreeAccess::Write => NO_SUID | NO_DEV | NO_EXEC,
        TreeAccess::Cache => NO_SUID | NO_DEV,
    }
}

/// The paths where shells and many programs look for their own descriptors.
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
    // The old root goes on top of the new one and is unmounted again, so it needs no directory.
    nix::unistd::pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    nix::unistd::chdir("/")
}

fn handles(entries: &[HostPath], boot: &Boot) -> io::Result<World> {
    let open_path = |path: &Path| -> io::Result<OwnedFd> {
        high(open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?.as_fd())
    };
    let mut opened = Vec::new();
    for entry in entries {
        if let HostPath::Mounted { path, access, directory, .. } = entry {
            opened.push(Visible { handle: open_path(path)?, access: *access, directory: *directory });
        }
    }
    for mount in boot.view.iter().flatten() {
        let handle = high(open_at(nix::fcntl::AT_FDCWD, &mount.path())?.as_fd())?;
        let directory = nix::sys::stat::fstat(&handle)?.st_mode & libc::S_IFMT == libc::S_IFDIR;
        opened.push(Visible { handle, access: mount.access, directory });
    }
    Ok(World { workspace: open_workspace()?, entries: opened })
}

/// The space's root, by its path in the tree.
pub(super) fn open_workspace() -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    high(open(WORKSPACE, flags, Mode::empty())?.as_fd())
}

enum HostPath {
    Mounted { path: PathBuf, access: TreeAccess, directory: bool, tree: OwnedFd },
    Link { path: PathBuf, to: PathBuf },
}

impl HostPath {
    /// Opens one path of the host; `None` if it is optional and missing.
    fn take(entry: &TreeEntry) -> io::Result<Option<Self>> {
        let path = PathBuf::from(&entry.path);
        let metadata = match fs::symlink_metadata(&path) {
            Err(error) if entry.optional && error.kind() == io::ErrorKind::NotFound => return Ok(None),
            metadata => metadata?,
        };
        // On merged systems /bin and /lib are links into /usr. A link to a single file is followed: its target may be
        // outside of the tree.
        let target_is_dir = fs::metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        if metadata.is_symlink() && target_is_dir {
            return Ok(Some(Self::Link { to: fs::read_link(&path)?, path }));
        }
        let tree = match mount::clone_tree(&c_path(&path)?) {
            Err(error) if entry.optional && error.kind() == io::ErrorKind::NotFound => return Ok(None),
            tree => tree?,
        };
        mount::restrict(tree.as_fd(), attributes(entry.access))?;
        Ok(Some(Self::Mounted { path, access: entry.access, directory: target_is_dir, tree }))
    }

    fn put(&self, staging: &Path) -> io::Result<()> {
        match self {
            Self::Mounted { path, directory, tree, .. } => put(staging, path, *directory, tree),
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
