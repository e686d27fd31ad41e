//! The workspace: tools reach the files of a space only through it. No link and no race leads outside.
//!
//! Every open uses `openat2` with `RESOLVE_BENEATH` and without symbolic links, so the kernel decides at the moment of use.
//! Nothing is checked first and used later.

mod cached;
mod copy;
mod hashing;
mod inspect;
mod preconditions;
mod problem;
mod scan;
mod tree;
mod tree_digest;
mod walk;
mod write;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use effectd_contracts::PathSnapshot;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;

use crate::side_channel::{Closed, ToolChannel};
use crate::spacepath::{Base, SpacePath};

pub use cached::is_local;
pub(crate) use hashing::Hashing;
pub use inspect::{Content, FileKind, Inspected, Stat};
pub use problem::FileProblem;
pub use tree::DraftFolder;
pub use walk::{Walk, WalkEntry};
pub use write::{Draft, Existing, Received};

/// The two folders that a tool may use: the space's root and the scratch folder.
#[derive(Debug, Clone, Copy)]
pub struct Workspace<'a> {
    root: BorrowedFd<'a>,
    scratch: BorrowedFd<'a>,
    root_name: &'a str,
    programs: &'a [PathBuf],
    side_channel: &'a dyn ToolChannel,
    /// The preconditions of the action, and its mark.
    expected: &'a [PathSnapshot],
    mark: &'a str,
    /// Whether to use only what the kernel has in memory.
    cached: bool,
}

/// How the kernel resolves a path: beneath the folder it starts from, through no link of any kind.
fn beneath(flags: OFlag, mode: Mode) -> OpenHow {
    OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(BENEATH)
}

const BENEATH: ResolveFlag = ResolveFlag::RESOLVE_BENEATH
    .union(ResolveFlag::RESOLVE_NO_SYMLINKS)
    .union(ResolveFlag::RESOLVE_NO_MAGICLINKS)
    .union(ResolveFlag::RESOLVE_NO_XDEV);

const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY);

impl<'a> Workspace<'a> {
    pub fn new(root: BorrowedFd<'a>, scratch: BorrowedFd<'a>) -> Self {
        Self {
            root,
            scratch,
            root_name: ".",
            programs: &[],
            side_channel: &Closed,
            expected: &[],
            mark: "",
            cached: false,
        }
    }

    pub fn with_side_channel(mut self, side_channel: &'a dyn ToolChannel) -> Self {
        self.side_channel = side_channel;
        self
    }

    pub fn side_channel(&self) -> &'a dyn ToolChannel {
        self.side_channel
    }

    /// Sets the path under which programs find the root.
    pub fn named(mut self, root_name: &'a str) -> Self {
        self.root_name = root_name;
        self
    }

    /// The path under which programs find the root.
    pub fn root_name(&self) -> &'a str {
        self.root_name
    }

    /// Sets the folders beyond the system's in which programs are searched.
    pub fn with_programs(mut self, programs: &'a [PathBuf]) -> Self {
        self.programs = programs;
        self
    }

    pub(crate) fn programs(&self) -> &'a [PathBuf] {
        self.programs
    }

    fn base(&self, path: &SpacePath) -> BorrowedFd<'a> {
        match path.base() {
            Base::Workspace => self.root,
            Base::Scratch => self.scratch,
        }
    }

    fn open(&self, path: &SpacePath, flags: OFlag) -> Result<OwnedFd, Errno> {
        let how = beneath(flags, Mode::empty());
        let how = if self.cached { cached::only(how) } else { how };
        openat2(self.base(path), path.relative().as_str(), how)
    }

    /// The existing folder of a file.
    fn folder_of(&self, path: &SpacePath) -> Result<OwnedFd, FileProblem> {
        let folder = path.parent().unwrap_or_else(|| path.clone());
        self.open(&folder, FOLDER).map_err(FileProblem::at("open the folder"))
    }
}
