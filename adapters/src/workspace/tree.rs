//! Draft folders: a folder is filled under a draft name and then renamed as a whole. And the removal of whole trees.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, RenameFlags, openat2, renameat2};
use nix::sys::stat::{Mode, fchmod, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};

use super::inspect::{FileKind, Stat};
use super::walk::names;
use super::write::{Existing, FOLDER_MODE, MadeFolders};
use super::{FOLDER, FileProblem, Workspace, beneath};
use crate::limits::PATH_DEPTH_MAX;
use crate::spacepath::{SpacePath, draft_name};

/// A folder that is being filled. Tools do not see it before it is placed; if it is dropped unplaced, it is removed.
#[derive(Debug)]
pub struct DraftFolder {
    parent: OwnedFd,
    name: String,
    target: String,
    folder: OwnedFd,
    made: MadeFolders,
    done: bool,
}

impl Workspace<'_> {
    /// Starts a draft folder for a free path. A draft of an interrupted run with the same mark is removed first.
    pub fn draft_folder(&self, path: &SpacePath, mark: &str) -> Result<DraftFolder, FileProblem> {
        self.check_free(path)?;
        let (parent, made) = self.create_folders(path)?;
        let name = draft_name(&format!("{mark}\n{path}"));
        remove_tree(parent.as_fd(), &name)?;
        mkdirat(parent.as_fd(), name.as_str(), FOLDER_MODE).map_err(FileProblem::at("create the folder"))?;
        let folder = open_folder(parent.as_fd(), &name).inspect_err(|_| {
            // Best effort: the first error is the one to report.
            let _ = remove_tree(parent.as_fd(), &name);
        })?;
        Ok(DraftFolder { parent, name, target: path.file_name().to_owned(), folder, made, done: false })
    }

    /// Fails unless the path is free.
    pub fn check_free(&self, path: &SpacePath) -> Result<(), FileProblem> {
        match self.stat(path)? {
            Some(stat) if stat.kind == FileKind::Folder => {
                Err(FileProblem::at("create the folder")(Errno::EEXIST))
            }
            Some(_) | None => self.may_place(path, Existing::Keep),
        }
    }
}

impl DraftFolder {
    /// Makes a folder in the draft, with its parents.
    pub fn folder(&self, parts: &[String]) -> Result<OwnedFd, FileProblem> {
        let mut folder = open_folder(self.folder.as_fd(), ".")?;
        for name in parts {
            match mkdirat(folder.as_fd(), name.as_str(), FOLDER_MODE) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(FileProblem::at("create the folder")(errno)),
            }
            folder = open_folder(folder.as_fd(), name)?;
        }
        Ok(folder)
    }

    /// Makes a new file in the draft, with its parents.
    pub fn file(&self, parts: &[String], mode: u32) -> Result<File, FileProblem> {
        let at = FileProblem::at("create the file");
        let (name, above) = parts.split_last().ok_or(at(Errno::EISDIR))?;
        let folder = self.folder(above)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        let how = beneath(flags, Mode::from_bits_truncate(0o600));
        let file = openat2(folder.as_fd(), name.as_str(), how).map_err(&at)?;
        fchmod(file.as_fd(), Mode::from_bits_truncate(mode & 0o777))
            .map_err(FileProblem::at("set the permissions"))?;
        Ok(File::from(file))
    }

    /// Syncs the folders and renames the draft to its target. The files must be synced already.
    pub fn place(mut self) -> Result<(), FileProblem> {
        sync_folders(self.folder.as_fd(), 0)?;
        crate::failpoint::before_rename();
        let parent = self.parent.as_fd();
        renameat2(parent, self.name.as_str(), parent, self.target.as_str(), RenameFlags::RENAME_NOREPLACE)
            .map_err(FileProblem::at("move the new folder into place"))?;
        self.done = true;
        self.made.keep();
        fsync(parent).map_err(FileProblem::at("sync the folder"))
    }
}

impl Drop for DraftFolder {
    fn drop(&mut self) {
        if !self.done {
            // Best effort: the first error is the one to report.
            let _ = remove_tree(self.parent.as_fd(), &self.name);
        }
    }
}

fn open_folder(at: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, FileProblem> {
    openat2(at, name, beneath(FOLDER, Mode::empty())).map_err(FileProblem::at("open the folder"))
}

/// The names in a folder, and which of them are folders.
fn entries(folder: BorrowedFd<'_>) -> Result<Vec<(CString, bool)>, FileProblem> {
    let at = FileProblem::at("read the folder");
    let mut dir = Dir::from_fd(open_folder(folder, ".")?).map_err(&at)?;
    let (names, _) = names(&mut dir, usize::MAX)?;
    let with_kind = |name: CString| {
        let stat = fstatat(folder, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW).map_err(&at)?;
        let is_folder = Stat::of(&stat).kind == FileKind::Folder;
        Ok((name, is_folder))
    };
    names.into_iter().map(with_kind).collect()
}

fn sync_folders(folder: BorrowedFd<'_>, depth: usize) -> Result<(), FileProblem> {
    if depth > PATH_DEPTH_MAX {
        return Err(FileProblem::at("sync the folder")(Errno::ENAMETOOLONG));
    }
    for (name, _) in entries(folder)?.into_iter().filter(|(_, is_folder)| *is_folder) {
        let below = openat2(folder, name.as_c_str(), beneath(FOLDER, Mode::empty()))
            .map_err(FileProblem::at("open the folder"))?;
        sync_folders(below.as_fd(), depth + 1)?;
    }
    fsync(folder).map_err(FileProblem::at("sync the folder"))
}

/// Removes a draft, and everything in it if it is a folder. Links are removed, not followed. Returns whether there was one.
pub(super) fn remove_tree(at: BorrowedFd<'_>, name: &str) -> Result<bool, FileProblem> {
    match unlinkat(at, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) => return Ok(true),
        Err(Errno::ENOENT) => return Ok(false),
        // Depending on the file system, either of the two means a folder.
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(errno) => return Err(FileProblem::at("remove a draft")(errno)),
    }
    let folder = open_folder(at, name)?;
    empty(folder.as_fd(), 0)?;
    unlinkat(at, name, UnlinkatFlags::RemoveDir).map_err(FileProblem::at("remove a draft"))?;
    Ok(true)
}

fn empty(folder: BorrowedFd<'_>, depth: usize) -> Result<(), FileProblem> {
    let at = FileProblem::at("remove a draft");
    if depth > PATH_DEPTH_MAX {
        return Err(at(Errno::ENAMETOOLONG));
    }
    for (name, is_folder) in entries(folder)? {
        if is_folder {
            let below = openat2(folder, name.as_c_str(), beneath(FOLDER, Mode::empty())).map_err(&at)?;
            empty(below.as_fd(), depth + 1)?;
            unlinkat(folder, name.as_c_str(), UnlinkatFlags::RemoveDir).map_err(&at)?;
        } else {
            unlinkat(folder, name.as_c_str(), UnlinkatFlags::NoRemoveDir).map_err(&at)?;
        }
    }
    Ok(())
}
