//! A folder with all that is in it, made beside its place and put there as a whole; and trees that are taken away again.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, RenameFlags, openat2, renameat2};
use nix::sys::stat::{Mode, SFlag, fchmod, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};

use super::look::FileKind;
use super::write::{Existing, MadeFolders};
use super::{FOLDER, FileProblem, Workspace, beneath};
use crate::limits::PATH_DEPTH_MAX;
use crate::spacepath::{SpacePath, draft_name};

const FOLDER_MODE: Mode = Mode::from_bits_truncate(0o755);

/// A folder that is being made. Nobody sees it before it is placed; dropped before that, all of it is removed.
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
    /// Begins a folder that is to stand at a path where nothing stands. What an interrupted run of the same mark has left is
    /// removed first.
    pub fn draft_folder(&self, path: &SpacePath, mark: &str) -> Result<DraftFolder, FileProblem> {
        self.nothing_stands(path)?;
        let (parent, made) = self.create_folders(path)?;
        let name = draft_name(&format!("{mark}\n{path}"));
        remove_tree(parent.as_fd(), &name)?;
        mkdirat(parent.as_fd(), name.as_str(), FOLDER_MODE).map_err(FileProblem::at("create the folder"))?;
        let folder = open_folder(parent.as_fd(), &name).inspect_err(|_| {
            // Best effort: the error that led here is the one that matters.
            let _ = remove_tree(parent.as_fd(), &name);
        })?;
        // From here on it is removed when something goes wrong.
        Ok(DraftFolder {
            parent,
            name,
            target: path.file_name().to_owned(),
            folder,
            made,
            done: false,
        })
    }

    /// Whether nothing is at a path.
    pub fn nothing_stands(&self, path: &SpacePath) -> Result<(), FileProblem> {
        match self.stat(path)? {
            Some(stat) if stat.kind == FileKind::Folder => {
                Err(FileProblem::at("create the folder")(Errno::EEXIST))
            }
            Some(_) | None => self.may_place(path, Existing::Keep),
        }
    }
}

impl DraftFolder {
    /// Makes a folder in it, and those above.
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

    /// Makes a new file in it, and the folders above.
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

    /// Puts all of it into its place, once it is on disk. The contents of its files must have been synced.
    pub fn place(mut self) -> Result<(), FileProblem> {
        sync_folders(self.folder.as_fd(), 0)?;
        crate::failpoint::before_rename();
        let parent = self.parent.as_fd();
        renameat2(
            parent,
            self.name.as_str(),
            parent,
            self.target.as_str(),
            RenameFlags::RENAME_NOREPLACE,
        )
        .map_err(FileProblem::at("move the new folder into place"))?;
        self.done = true;
        self.made.keep();
        fsync(parent).map_err(FileProblem::at("sync the folder"))
    }
}

impl Drop for DraftFolder {
    fn drop(&mut self) {
        if !self.done {
            // Best effort: the error that led here is the one that matters.
            let _ = remove_tree(self.parent.as_fd(), &self.name);
        }
    }
}

fn open_folder(at: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, FileProblem> {
    openat2(at, name, beneath(FOLDER, Mode::empty())).map_err(FileProblem::at("open the folder"))
}

/// The names in a folder, and which of them are folders.
fn names(folder: BorrowedFd<'_>) -> Result<Vec<(std::ffi::CString, bool)>, FileProblem> {
    let at = FileProblem::at("read the folder");
    let mut dir = Dir::from_fd(open_folder(folder, ".")?).map_err(&at)?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let name = entry.map_err(&at)?.file_name().to_owned();
        if name.as_c_str() == c"." || name.as_c_str() == c".." {
            continue;
        }
        let stat = fstatat(folder, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW).map_err(&at)?;
        let is_folder = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
        names.push((name, is_folder));
    }
    Ok(names)
}

fn sync_folders(folder: BorrowedFd<'_>, depth: usize) -> Result<(), FileProblem> {
    if depth > PATH_DEPTH_MAX {
        return Err(FileProblem::at("sync the folder")(Errno::ENAMETOOLONG));
    }
    for (name, _) in names(folder)?.into_iter().filter(|(_, is_folder)| *is_folder) {
        let below = openat2(folder, name.as_c_str(), beneath(FOLDER, Mode::empty()))
            .map_err(FileProblem::at("open the folder"))?;
        sync_folders(below.as_fd(), depth + 1)?;
    }
    fsync(folder).map_err(FileProblem::at("sync the folder"))
}

/// Removes an unfinished file or folder of ours with all that is in it. Links are removed, not followed.
pub(super) fn remove_tree(at: BorrowedFd<'_>, name: &str) -> Result<(), FileProblem> {
    match unlinkat(at, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        // Which of the two is said of a folder depends on the file system.
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(errno) => return Err(FileProblem::at("remove what is unfinished")(errno)),
    }
    let folder = open_folder(at, name)?;
    empty(folder.as_fd(), 0)?;
    unlinkat(at, name, UnlinkatFlags::RemoveDir).map_err(FileProblem::at("remove what is unfinished"))
}

fn empty(folder: BorrowedFd<'_>, depth: usize) -> Result<(), FileProblem> {
    let at = FileProblem::at("remove what is unfinished");
    if depth > PATH_DEPTH_MAX {
        return Err(at(Errno::ENAMETOOLONG));
    }
    for (name, is_folder) in names(folder)? {
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
