//! Files beneath the space's root, opened so that no link and no race leads outside.
//!
//! Every open goes through `openat2` with `RESOLVE_BENEATH` and without symbolic links: the kernel decides at the moment
//! of use. Nothing is checked first and used later. This is the only place where tools meet the file system.

mod cached;
mod copy;
mod expect;
mod inside;
mod look;
mod problem;
mod scan;
mod tree;
mod walk;
mod write;

use std::os::fd::{BorrowedFd, OwnedFd};

use effectd_contracts::Seen;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;

use crate::beside::{Beside, Nobody};
use crate::spacepath::{Base, SpacePath};

pub use cached::is_local;
pub use look::{Content, FileKind, Look, Stat};
pub use problem::FileProblem;
pub use scan::{Mark, Scan};
pub use tree::DraftFolder;
pub use walk::{Walk, WalkEntry};
pub use write::{Draft, Existing, Heard};

/// The two folders a tool may touch.
#[derive(Debug, Clone, Copy)]
pub struct Workspace<'a> {
    root: BorrowedFd<'a>,
    scratch: BorrowedFd<'a>,
    root_name: &'a str,
    beside: &'a dyn Beside,
    /// What must stand where, and the mark of the action that must find it so.
    expected: &'a [Seen],
    mark: &'a str,
    /// Whether only what the kernel has in memory is looked at.
    cached: bool,
}

/// How the kernel is to walk a path: beneath the folder it starts from, through no link of any kind.
fn beneath(flags: OFlag, mode: Mode) -> OpenHow {
    OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .mode(mode)
        .resolve(BENEATH)
}

const BENEATH: ResolveFlag = ResolveFlag::RESOLVE_BENEATH
    .union(ResolveFlag::RESOLVE_NO_SYMLINKS)
    .union(ResolveFlag::RESOLVE_NO_MAGICLINKS)
    .union(ResolveFlag::RESOLVE_NO_XDEV);

const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY);

impl<'a> Workspace<'a> {
    /// The folders as the sandbox hands them to the tool.
    pub fn new(root: BorrowedFd<'a>, scratch: BorrowedFd<'a>) -> Self {
        Self {
            root,
            scratch,
            root_name: ".",
            beside: &Nobody,
            expected: &[],
            mark: "",
            cached: false,
        }
    }

    /// The same, with somebody to talk to beside the call.
    pub fn with_beside(mut self, beside: &'a dyn Beside) -> Self {
        self.beside = beside;
        self
    }

    /// Who takes and gives what is too long for the call and its answer.
    pub fn beside(&self) -> &'a dyn Beside {
        self.beside
    }

    /// The same, with the name under which programs that are started find the root.
    pub fn named(mut self, root_name: &'a str) -> Self {
        self.root_name = root_name;
        self
    }

    /// The name under which programs that are started find the root.
    pub fn root_name(&self) -> &'a str {
        self.root_name
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

    /// The folder in which a file lies. It must be there.
    fn folder_of(&self, path: &SpacePath) -> Result<OwnedFd, FileProblem> {
        let folder = path.parent().unwrap_or_else(|| path.clone());
        self.open(&folder, FOLDER)
            .map_err(FileProblem::at("open the folder"))
    }
}
