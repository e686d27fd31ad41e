//! Changing: the whole file or nothing, also when the power fails.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use effectd_contracts::{Digest, FileState, Standing};
use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, openat2, renameat, renameat2};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};
use sha2::{Digest as _, Sha256};

use super::look::{FileKind, Stat};
use super::tree::remove_tree;
use super::{FOLDER, FileProblem, Workspace, beneath, expect};
use crate::spacepath::{SpacePath, aside_name, draft_name};

/// What is done about a file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It is replaced, and its permissions are kept.
    Replace,
    /// Nothing is written.
    Keep,
}

/// A content that was sent along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// How long it is.
    pub bytes: u64,
    /// What it is.
    pub digest: Digest,
}

pub(super) const FILE_MODE: u32 = 0o644;
const FOLDER_MODE: Mode = Mode::from_bits_truncate(0o755);

/// New content, written and synced beside the place where it belongs. Dropped, it is removed.
#[derive(Debug)]
pub struct Draft {
    folder: OwnedFd,
    name: String,
    /// Where what it replaces waits until it is known to be the right file.
    aside: String,
    target: String,
    existing: Existing,
    expected: Option<Standing>,
    done: bool,
    made: MadeFolders,
}

/// Folders that were made on the way to a file. Dropped before it is there, they are removed again.
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
            // Best effort: one that somebody has put something into stays.
            let _ = unlinkat(parent.as_fd(), name.as_str(), UnlinkatFlags::RemoveDir);
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.done {
            // Best effort: the error that led here is the one that matters.
            let _ = unlinkat(
                self.folder.as_fd(),
                self.name.as_str(),
                UnlinkatFlags::NoRemoveDir,
            );
        }
    }
}

impl Draft {
    /// A draft in a folder that was there.
    pub(super) fn beside(folder: OwnedFd, path: &SpacePath, existing: Existing, mark: &str) -> Self {
        let mark = format!("{mark}\n{path}");
        Self {
            folder,
            name: draft_name(&mark),
            aside: aside_name(&mark),
            target: path.file_name().to_owned(),
            existing,
            expected: None,
            done: false,
            made: MadeFolders::default(),
        }
    }

    /// Moves the content into place, and syncs the folder. A reader sees the old or the new content.
    pub fn place(self) -> Result<(), FileProblem> {
        crate::failpoint::before_rename();
        let folder = self.folder.as_fd();
        if let Some(expected) = &self.expected {
            expect::replace(folder, [&self.name, &self.aside, &self.target], expected)?;
            return self.placed();
        }
        let moved = match self.existing {
            Existing::Replace => renameat(folder, self.name.as_str(), folder, self.target.as_str()),
            Existing::Keep => renameat2(
                folder,
                self.name.as_str(),
                folder,
                self.target.as_str(),
                RenameFlags::RENAME_NOREPLACE,
            ),
        };
        moved.map_err(FileProblem::at("move the new content into place"))?;
        self.placed()
    }

    /// What stood in its place was moved away by the same call: where something certain was expected, nothing is now.
    pub fn vacated(&mut self) {
        if let Some(expected) = &mut self.expected {
            *expected = Standing::Absent;
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

    /// Writes and syncs the content beside its place. `mark` names the action: should it be repeated, it finds and replaces
    /// what an interrupted run left. Without a mode the permissions of what is replaced are kept.
    pub fn draft(
        &self,
        path: &SpacePath,
        content: &[u8],
        mode: Option<u32>,
        existing: Existing,
        mark: &str,
    ) -> Result<Draft, FileProblem> {
        let (draft, mut file) = self.open_draft(path, mode, existing, mark)?;
        file.write_all(content)
            .map_err(FileProblem::io("write the file"))?;
        file.sync_all().map_err(FileProblem::io("sync the file"))?;
        Ok(draft)
    }

    /// New content beside its place, made from what is sent along with the call. It must be what it was.
    pub fn draft_heard(
        &self,
        path: &SpacePath,
        wanted: &FileState,
        existing: Existing,
        mark: &str,
    ) -> Result<Draft, FileProblem> {
        let (draft, mut file) = self.open_draft(path, Some(wanted.mode), existing, mark)?;
        let heard = self.hear_whole(wanted.bytes, |piece| file.write_all(piece))?;
        if heard.digest.to_string() != wanted.digest {
            return Err(FileProblem::Changed);
        }
        file.sync_all().map_err(FileProblem::io("sync the file"))?;
        Ok(draft)
    }

    /// The same with whatever is sent, up to this length.
    pub fn draft_new(
        &self,
        path: &SpacePath,
        bytes_max: u64,
        existing: Existing,
        mark: &str,
    ) -> Result<(Draft, Heard), FileProblem> {
        let (draft, mut file) = self.open_draft(path, None, existing, mark)?;
        let heard = self.hear_whole(bytes_max, |piece| file.write_all(piece))?;
        file.sync_all().map_err(FileProblem::io("sync the file"))?;
        Ok((draft, heard))
    }

    /// New content beside its place, to be written by whoever asks; it must be synced before it is placed.
    pub fn draft_open(
        &self,
        path: &SpacePath,
        existing: Existing,
        mark: &str,
    ) -> Result<(Draft, File), FileProblem> {
        self.open_draft(path, None, existing, mark)
    }

    /// Hears one content that was sent along, up to this length, and says what it was.
    pub fn hear_whole(
        &self,
        bytes_max: u64,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Heard, FileProblem> {
        let (mut hasher, mut bytes) = (Sha256::new(), 0_u64);
        loop {
            let piece = self
                .beside()
                .hear()
                .map_err(FileProblem::io("read what was sent along"))?;
            if piece.is_empty() {
                let digest = Digest::from_bytes(hasher.finalize().into());
                return Ok(Heard { bytes, digest });
            }
            bytes += piece.len() as u64;
            if bytes > bytes_max {
                return Err(FileProblem::TooLarge { bytes_max });
            }
            hasher.update(&piece);
            take(&piece).map_err(FileProblem::io("write the file"))?;
        }
    }

    /// Hears one content that was sent along, to its end.
    pub fn hear_all(&self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        loop {
            let piece = self.beside().hear()?;
            if piece.is_empty() {
                return Ok(());
            }
            take(&piece)?;
        }
    }

    /// A copy of a file beside its place, made in pieces.
    pub fn draft_copy(
        &self,
        from: &SpacePath,
        to: &SpacePath,
        bytes_max: u64,
        existing: Existing,
        mark: &str,
    ) -> Result<(Draft, u64), FileProblem> {
        let (mut source, stat) = self.open_file(from)?;
        if stat.bytes > bytes_max {
            return Err(FileProblem::TooLarge { bytes_max });
        }
        let (draft, mut file) = self.open_draft(to, Some(stat.mode), existing, mark)?;
        let mut limited = std::io::Read::take(&mut source, bytes_max + 1);
        let mut digesting = Digesting::new(&mut file);
        let copied = io::copy(&mut limited, &mut digesting).map_err(FileProblem::io("copy the file"))?;
        if copied > bytes_max {
            return Err(FileProblem::TooLarge { bytes_max });
        }
        let digest = digesting.digest();
        self.check_read(from, || digest)?;
        file.sync_all().map_err(FileProblem::io("sync the file"))?;
        Ok((draft, copied))
    }

    fn open_draft(
        &self,
        path: &SpacePath,
        mode: Option<u32>,
        existing: Existing,
        mark: &str,
    ) -> Result<(Draft, File), FileProblem> {
        let old = replaceable(self.stat(path)?, existing)?;
        let (folder, made) = self.create_folders(path)?;
        let mode = mode.or(old.map(|old| old.mode)).unwrap_or(FILE_MODE) & 0o777;
        let name = draft_name(&format!("{mark}\n{path}"));
        let how = beneath(
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL,
            Mode::from_bits_truncate(mode | 0o200),
        );
        let create = || openat2(folder.as_fd(), name.as_str(), how);
        let mut file = create();
        if matches!(file, Err(Errno::EEXIST)) {
            // Left by an interrupted run of the same action, which is proven dead. What is not ours never has this name.
            let removed = unlinkat(folder.as_fd(), name.as_str(), UnlinkatFlags::NoRemoveDir);
            removed.map_err(FileProblem::at("remove an unfinished file"))?;
            file = create();
        }
        let file = file.map_err(FileProblem::at("create the file"))?;
        let mut draft = Draft::beside(folder, path, existing, mark);
        draft.expected = self.expected(path).cloned();
        draft.made = made;
        // The mask of the process may have taken permissions away that the old file has.
        fchmod(file.as_fd(), Mode::from_bits_truncate(mode))
            .map_err(FileProblem::at("set the permissions"))?;
        Ok((draft, File::from(file)))
    }

    /// Removes what a run that was killed has left half written for a path, if it has, and puts back what it has set
    /// aside. `before` is what stood there before the run, if that is known.
    pub fn remove_draft(
        &self,
        path: &SpacePath,
        mark: &str,
        before: Option<&Standing>,
    ) -> Result<(), FileProblem> {
        let folder = match self.folder_of(path) {
            Err(problem) if problem.errno() == Some(Errno::ENOENT) => return Ok(()),
            folder => folder?,
        };
        let mark = format!("{mark}\n{path}");
        remove_tree(folder.as_fd(), &draft_name(&mark))?;
        expect::settle_aside(folder.as_fd(), &aside_name(&mark), path.file_name(), before)
    }

    /// Whether a file could be put there, as far as can be told without doing it.
    pub fn may_place(&self, path: &SpacePath, existing: Existing) -> Result<(), FileProblem> {
        replaceable(self.stat(path)?, existing).map(drop)
    }

    /// Makes a folder and those above it. Says how many were made; if one cannot be, none is.
    pub fn make_folder(&self, path: &SpacePath) -> Result<usize, FileProblem> {
        let (_, mut made) = self.folders(path)?;
        let count = made.0.len();
        made.keep();
        Ok(count)
    }

    pub(super) fn create_folders(&self, path: &SpacePath) -> Result<(OwnedFd, MadeFolders), FileProblem> {
        self.folders(&path.parent().unwrap_or_else(|| path.clone()))
    }

    /// Opens a folder, creating what is missing on the way, each new folder synced into its parent.
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
                Err(errno) => {
                    return Err(FileProblem::Kernel {
                        step: "create the folder",
                        errno,
                    });
                }
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

    /// Moves a file, creating the folders of its new place. It is never in both places and never in none.
    pub fn move_file(&self, from: &SpacePath, to: &SpacePath, existing: Existing) -> Result<(), FileProblem> {
        let at = FileProblem::at("move the file");
        match self.stat(from)? {
            None => return Err(at(Errno::ENOENT)),
            Some(stat) if stat.kind == FileKind::Link => return Err(at(Errno::ELOOP)),
            Some(stat) if stat.kind == FileKind::Folder => return Err(FileProblem::Folder),
            Some(stat) if stat.kind != FileKind::File => return Err(FileProblem::NotAFile),
            Some(_) => {}
        }
        replaceable(self.stat(to)?, existing)?;
        let flags = match existing {
            Existing::Replace => RenameFlags::empty(),
            Existing::Keep => RenameFlags::RENAME_NOREPLACE,
        };
        self.rename(from, to, flags, at)
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
                expect::move_over(ends, &self.aside(to), [moved, replaced], holds)?;
            }
            (Some(_), None) | (None, Some(_)) | (None, None) => {
                renameat2(old.as_fd(), from.file_name(), new.as_fd(), to.file_name(), flags).map_err(at)?;
            }
        }
        made.keep();
        fsync(new.as_fd()).map_err(FileProblem::at("sync the folder"))?;
        fsync(old.as_fd()).map_err(FileProblem::at("sync the folder"))
    }

    /// Moves a folder with all that is in it, creating the folders of its new place. Nothing may stand there.
    pub fn move_folder(&self, from: &SpacePath, to: &SpacePath) -> Result<(), FileProblem> {
        let at = FileProblem::at("move the folder");
        match self.stat(from)? {
            None => return Err(at(Errno::ENOENT)),
            Some(stat) if stat.kind != FileKind::Folder => return Err(at(Errno::ENOTDIR)),
            Some(_) => {}
        }
        self.may_place(to, Existing::Keep)?;
        self.rename(from, to, RenameFlags::RENAME_NOREPLACE, at)
    }

    /// Removes a file.
    pub fn remove_file(&self, path: &SpacePath) -> Result<(), FileProblem> {
        let at = FileProblem::at("remove the file");
        match self.stat(path)? {
            None => return Err(at(Errno::ENOENT)),
            Some(stat) if stat.kind == FileKind::Link => return Err(at(Errno::ELOOP)),
            Some(stat) if stat.kind == FileKind::Folder => return Err(FileProblem::Folder),
            Some(stat) if stat.kind != FileKind::File => return Err(FileProblem::NotAFile),
            Some(_) => {}
        }
        match self.expected(path) {
            None => self.unlink(path, UnlinkatFlags::NoRemoveDir),
            Some(Standing::File(state)) => {
                let folder = self.folder_of(path)?;
                expect::remove(folder.as_fd(), path.file_name(), &self.aside(path), state)?;
                fsync(folder.as_fd()).map_err(FileProblem::at("sync the folder"))
            }
            Some(Standing::Absent | Standing::Folder | Standing::Other) => Err(FileProblem::Changed),
        }
    }

    /// Removes a folder if it is empty. Says whether it was.
    pub fn remove_empty_folder(&self, path: &SpacePath) -> Result<bool, FileProblem> {
        match self.unlink(path, UnlinkatFlags::RemoveDir) {
            Ok(()) => Ok(true),
            Err(FileProblem::Kernel {
                errno: Errno::ENOTEMPTY | Errno::EEXIST,
                ..
            }) => Ok(false),
            Err(problem) => Err(problem),
        }
    }

    fn unlink(&self, path: &SpacePath, how: UnlinkatFlags) -> Result<(), FileProblem> {
        let folder = self.folder_of(path)?;
        unlinkat(folder.as_fd(), path.file_name(), how).map_err(FileProblem::at("remove it"))?;
        fsync(folder.as_fd()).map_err(FileProblem::at("sync the folder"))
    }
}

struct Digesting<W> {
    to: W,
    hasher: Sha256,
}

impl<W> Digesting<W> {
    fn new(to: W) -> Self {
        let hasher = Sha256::new();
        Self { to, hasher }
    }

    fn digest(self) -> Digest {
        Digest::from_bytes(self.hasher.finalize().into())
    }
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Whether a new file may take the place of what is there. Replacing a link or a pipe would be harmless for what it leads
/// to, but whoever put it there meant something else.
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
