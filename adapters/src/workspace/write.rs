//! Writing: the whole file or nothing, also when the power fails.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use effectd_contracts::{Digest, FileState, PathState};
use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, openat2, renameat2};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};
use sha2::{Digest as _, Sha256};

use super::inspect::{FileKind, Stat};
use super::tree::remove_tree;
use super::{FOLDER, FileProblem, Hashing, Workspace, beneath, preconditions};
use crate::spacepath::{SpacePath, aside_name, draft_name};

/// What happens to an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// The file is replaced, and its permissions stay.
    Replace,
    /// The file stays, and the write fails.
    Keep,
}

impl Existing {
    pub(crate) fn replace_if(overwrite: bool) -> Self {
        if overwrite { Self::Replace } else { Self::Keep }
    }

    fn flags(self) -> RenameFlags {
        match self {
            Self::Replace => RenameFlags::empty(),
            Self::Keep => RenameFlags::RENAME_NOREPLACE,
        }
    }
}

/// A content that came on the side channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    pub bytes: u64,
    pub digest: Digest,
}

pub(super) const FILE_MODE: u32 = 0o644;
pub(super) const FOLDER_MODE: Mode = Mode::from_bits_truncate(0o755);

/// New content, written and synced in the folder of its target. If it is dropped, it is removed.
#[derive(Debug)]
pub struct Draft {
    folder: OwnedFd,
    name: String,
    /// The name of the replaced file until it is verified.
    aside: String,
    target: String,
    existing: Existing,
    expected: Option<PathState>,
    done: bool,
    made: MadeFolders,
}

/// New folders for a file. If they are dropped before the file is placed, the empty ones are removed.
#[derive(Debug, Default)]
pub(super) struct MadeFolders(Vec<(OwnedFd, String)>);

impl MadeFolders {
    pub(super) fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for MadeFolders {
    fn drop(&mut self) {
        while let Some((parent, name)) = self.0.pop() {
            // Best effort: a folder that is not empty stays.
            let _ = unlinkat(parent.as_fd(), name.as_str(), UnlinkatFlags::RemoveDir);
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.done {
            // Best effort: the first error is the one to report.
            let (folder, name) = (self.folder.as_fd(), self.name.as_str());
            let _ = unlinkat(folder, name, UnlinkatFlags::NoRemoveDir);
        }
    }
}

impl Draft {
    /// Moves the content into place, and syncs the folder. A reader sees the old or the new content.
    pub fn place(self) -> Result<(), FileProblem> {
        crate::failpoint::before_rename();
        let folder = self.folder.as_fd();
        if let Some(expected) = &self.expected {
            preconditions::replace(folder, [&self.name, &self.aside, &self.target], expected)?;
            return self.placed();
        }
        let (name, target) = (self.name.as_str(), self.target.as_str());
        renameat2(folder, name, folder, target, self.existing.flags())
            .map_err(FileProblem::at("move the new content into place"))?;
        self.placed()
    }

    /// The same call moved the target away: a precondition about the target now expects it to be absent.
    pub fn vacated(&mut self) {
        if let Some(expected) = &mut self.expected {
            *expected = PathState::Absent;
        }
    }

    fn placed(mut self) -> Result<(), FileProblem> {
        self.done = true;
        self.made.keep();
        fsync(self.folder.as_fd()).map_err(FileProblem::at("sync the folder"))
    }
}

impl Workspace<'_> {
    /// Writes the whole file or nothing. Missing folders are created.
    pub fn write_atomically(
        &self,
        path: &SpacePath,
        content: &[u8],
        existing: Existing,
        mark: &str,
    ) -> Result<(), FileProblem> {
        self.draft(path, content, None, existing, mark)?.place()
    }

    /// Writes and syncs the content as a draft. `mark` identifies the action: a second run finds and replaces the draft of
    /// an interrupted one. Without a mode, the permissions of the replaced file stay.
    pub fn draft(
        &self,
        path: &SpacePath,
        content: &[u8],
        mode: Option<u32>,
        existing: Existing,
        mark: &str,
    ) -> Result<Draft, FileProblem> {
        let (draft, mut file) = self.draft_open(path, mode, existing, mark)?;
        file.write_all(content).map_err(FileProblem::io("write the file"))?;
        file.sync_all().map_err(FileProblem::io("sync the file"))?;
        Ok(draft)
    }

    /// A draft with a content from the side channel, which must have the wanted digest.
    pub fn draft_received(
        &self,
        path: &SpacePath,
        wanted: &FileState,
        existing: Existing,
        mark: &str,
    ) -> Result<Draft, FileProblem> {
        let (draft, mut file) = self.draft_open(path, Some(wanted.mode), existing, mark)?;
        let received = self.receive_content(wanted.bytes, |piece| file.write_all(piece))?;
        if received.digest.to_string() != wanted.digest {
            return Err(FileProblem::Changed);
        }
        file.sync_all().map_err(FileProblem::io("sync the file"))?;
        Ok(draft)
    }

    /// A draft with any content from the side channel, up to this length.
    pub fn draft_new(
        &self,
        path: &SpacePath,
        bytes_max: u64,
        existing: Existing,
        mark: &str,
    ) -> Result<(Draft, Received), FileProblem> {
        let (draft, mut file) = self.draft_open(path, None, existing, mark)?;
        let received = self.receive_content(bytes_max, |piece| file.write_all(piece))?;
        file.sync_all().map_err(FileProblem::io("sync the file"))?;
        Ok((draft, received))
    }

    /// Receives one content from the side channel, up to this length.
    pub fn receive_content(
        &self,
        bytes_max: u64,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Received, FileProblem> {
        let (mut hasher, mut bytes) = (Sha256::new(), 0_u64);
        loop {
            let piece = self.side_channel().receive_piece();
            let piece = piece.map_err(FileProblem::io("read the content that effectd sends"))?;
            if piece.is_empty() {
                let digest = Digest::from_bytes(hasher.finalize().into());
                return Ok(Received { bytes, digest });
            }
            bytes += piece.len() as u64;
            FileProblem::check_size(bytes, bytes_max)?;
            hasher.update(&piece);
            take(&piece).map_err(FileProblem::io("write the file"))?;
        }
    }

    /// A draft with the content of another file.
    pub fn draft_copy(
        &self,
        from: &SpacePath,
        to: &SpacePath,
        bytes_max: u64,
        existing: Existing,
        mark: &str,
    ) -> Result<(Draft, u64), FileProblem> {
        let (source, stat) = self.open_file(from)?;
        FileProblem::check_size(stat.bytes, bytes_max)?;
        let (draft, mut file) = self.draft_open(to, Some(stat.mode), existing, mark)?;
        let mut hashing = Hashing::new(&mut file);
        let copied = io::copy(&mut source.take(bytes_max + 1), &mut hashing);
        let copied = copied.map_err(FileProblem::io("copy the file"))?;
        FileProblem::check_size(copied, bytes_max)?;
        let digest = hashing.digest();
        self.check_read(from, || digest)?;
        file.sync_all().map_err(FileProblem::io("sync the file"))?;
        Ok((draft, copied))
    }

    /// An empty draft for the caller to write; the caller must sync it before it is placed.
    pub fn draft_open(
        &self,
        path: &SpacePath,
        mode: Option<u32>,
        existing: Existing,
        mark: &str,
    ) -> Result<(Draft, File), FileProblem> {
        let old = replaceable(self.stat(path)?, existing)?;
        let (folder, made) = self.create_folders(path)?;
        let mode = mode.or(old.map(|old| old.mode)).unwrap_or(FILE_MODE) & 0o777;
        let mark = format!("{mark}\n{path}");
        let name = draft_name(&mark);
        let how =
            beneath(OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL, Mode::from_bits_truncate(mode | 0o200));
        let create = || openat2(folder.as_fd(), name.as_str(), how);
        let mut file = create();
        if matches!(file, Err(Errno::EEXIST)) {
            // This is the draft of an interrupted run of the same action. That run is dead, and no other file has this name.
            let removed = unlinkat(folder.as_fd(), name.as_str(), UnlinkatFlags::NoRemoveDir);
            removed.map_err(FileProblem::at("remove an unfinished file"))?;
            file = create();
        }
        let file = file.map_err(FileProblem::at("create the file"))?;
        let draft = Draft {
            folder,
            aside: aside_name(&mark),
            name,
            target: path.file_name().to_owned(),
            existing,
            expected: self.expected(path).cloned(),
            done: false,
            made,
        };
        // The umask may have removed permissions that the old file has.
        fchmod(file.as_fd(), Mode::from_bits_truncate(mode))
            .map_err(FileProblem::at("set the permissions"))?;
        Ok((draft, File::from(file)))
    }

    /// Cleans up after a killed run: removes its unfinished file for a path, and restores the file that it had set aside.
    /// `before` is the path's state before that run, if it is known. Returns whether there was anything to clean up.
    pub fn remove_draft(
        &self,
        path: &SpacePath,
        mark: &str,
        before: Option<&PathState>,
    ) -> Result<bool, FileProblem> {
        let folder = match self.folder_of(path) {
            Err(problem) if problem.errno() == Some(Errno::ENOENT) => return Ok(false),
            folder => folder?,
        };
        let mark = format!("{mark}\n{path}");
        let removed = remove_tree(folder.as_fd(), &draft_name(&mark))?;
        let aside = aside_name(&mark);
        Ok(preconditions::restore_aside(folder.as_fd(), &aside, path.file_name(), before)? || removed)
    }

    /// Checks that a file could be written to the path, without writing it.
    pub fn may_place(&self, path: &SpacePath, existing: Existing) -> Result<(), FileProblem> {
        replaceable(self.stat(path)?, existing).map(drop)
    }

    /// Makes a folder and its missing parents, all or none. Returns the number of new folders.
    pub fn make_folder(&self, path: &SpacePath) -> Result<usize, FileProblem> {
        let (_, mut made) = self.folders(path)?;
        let count = made.0.len();
        made.keep();
        Ok(count)
    }

    pub(super) fn create_folders(&self, path: &SpacePath) -> Result<(OwnedFd, MadeFolders), FileProblem> {
        self.folders(&path.parent().unwrap_or_else(|| path.clone()))
    }

    /// Opens a folder, and makes what is missing; each new folder is synced into its parent.
    fn folders(&self, path: &SpacePath) -> Result<(OwnedFd, MadeFolders), FileProblem> {
        let open = |at: BorrowedFd<'_>, name: &str| {
            openat2(at, name, beneath(FOLDER, Mode::empty())).map_err(FileProblem::at("open the folder"))
        };
        let mut made = MadeFolders::default();
        let mut folder = open(self.base(path), ".")?;
        let names = path.folders().iter().map(String::as_str);
        for name in names.chain((path.file_name() != ".").then(|| path.file_name())) {
            let is_new = match mkdirat(folder.as_fd(), name, FOLDER_MODE) {
                Ok(()) => true,
                Err(Errno::EEXIST) => false,
                Err(errno) => return Err(FileProblem::at("create the folder")(errno)),
            };
            let next = if is_new {
                made.0.push((folder, name.to_owned()));
                let (parent, _) = made.0.last().ok_or(FileProblem::Changed)?;
                fsync(parent.as_fd()).map_err(FileProblem::at("sync the folder"))?;
                open(parent.as_fd(), name)?
            } else {
                open(folder.as_fd(), name)?
            };
            folder = next;
        }
        Ok((folder, made))
    }

    /// Moves a file, and makes the folders of its new path. It is never at both paths, and never at none.
    pub fn move_file(&self, from: &SpacePath, to: &SpacePath, existing: Existing) -> Result<(), FileProblem> {
        let at = FileProblem::at("move the file");
        self.stat(from)?.ok_or(at(Errno::ENOENT))?.check_file(&at)?;
        replaceable(self.stat(to)?, existing)?;
        self.rename(from, to, existing.flags(), at)
    }

    fn rename(
        &self,
        from: &SpacePath,
        to: &SpacePath,
        flags: RenameFlags,
        at: impl Fn(Errno) -> FileProblem,
    ) -> Result<(), FileProblem> {
        let old = self.folder_of(from)?;
        let (new, mut made) = self.create_folders(to)?;
        match (self.expected(from), self.expected(to)) {
            (Some(moved), Some(replaced)) => {
                let ends = [(old.as_fd(), from.file_name()), (new.as_fd(), to.file_name())];
                let holds = || self.check_moved(from, to);
                preconditions::move_over(ends, &self.aside(to), [moved, replaced], holds)?;
            }
            (Some(_), None) | (None, Some(_)) | (None, None) => {
                renameat2(old.as_fd(), from.file_name(), new.as_fd(), to.file_name(), flags).map_err(at)?;
            }
        }
        made.keep();
        fsync(new.as_fd()).map_err(FileProblem::at("sync the folder"))?;
        fsync(old.as_fd()).map_err(FileProblem::at("sync the folder"))
    }

    /// Moves a folder with its content to a free path, and makes the folders above it.
    pub fn move_folder(&self, from: &SpacePath, to: &SpacePath) -> Result<(), FileProblem> {
        let at = FileProblem::at("move the folder");
        if self.stat(from)?.ok_or(at(Errno::ENOENT))?.kind != FileKind::Folder {
            return Err(at(Errno::ENOTDIR));
        }
        self.may_place(to, Existing::Keep)?;
        self.rename(from, to, RenameFlags::RENAME_NOREPLACE, at)
    }

    pub fn remove_file(&self, path: &SpacePath) -> Result<(), FileProblem> {
        let at = FileProblem::at("remove the file");
        self.stat(path)?.ok_or(at(Errno::ENOENT))?.check_file(&at)?;
        match self.expected(path) {
            None => self.unlink(path, UnlinkatFlags::NoRemoveDir),
            Some(PathState::File(state)) => {
                let folder = self.folder_of(path)?;
                preconditions::remove(folder.as_fd(), path.file_name(), &self.aside(path), state)?;
                fsync(folder.as_fd()).map_err(FileProblem::at("sync the folder"))
            }
            Some(PathState::Absent | PathState::Folder | PathState::Other) => Err(FileProblem::Changed),
        }
    }

    /// Removes a folder if it is empty. Returns whether it was.
    pub fn remove_empty_folder(&self, path: &SpacePath) -> Result<bool, FileProblem> {
        match self.unlink(path, UnlinkatFlags::RemoveDir) {
            Ok(()) => Ok(true),
            Err(FileProblem::Kernel { errno: Errno::ENOTEMPTY | Errno::EEXIST, .. }) => Ok(false),
            Err(problem) => Err(problem),
        }
    }

    fn unlink(&self, path: &SpacePath, how: UnlinkatFlags) -> Result<(), FileProblem> {
        let folder = self.folder_of(path)?;
        unlinkat(folder.as_fd(), path.file_name(), how).map_err(FileProblem::at("remove it"))?;
        fsync(folder.as_fd()).map_err(FileProblem::at("sync the folder"))
    }
}

/// Checks that a new file may replace what is there. A link or a pipe is not replaced: somebody put it there on purpose.
pub(super) fn replaceable(old: Option<Stat>, existing: Existing) -> Result<Option<Stat>, FileProblem> {
    let at = FileProblem::at("replace the file");
    match (old, existing) {
        (None, _) => Ok(None),
        (Some(old), _) if old.kind == FileKind::Link => Err(at(Errno::ELOOP)),
        (Some(old), _) if old.kind != FileKind::File => Err(FileProblem::NotAFile),
        (Some(_), Existing::Keep) => Err(at(Errno::EEXIST)),
        (Some(old), Existing::Replace) => Ok(Some(old)),
    }
}
