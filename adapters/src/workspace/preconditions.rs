//! Preconditions of an approved action: a file that is not as the person saw it is not replaced, moved or removed.
//!
//! A check before the change would leave a moment in which somebody else can write. So a file is first set aside by one
//! atomic rename and checked under a name that nobody else uses; if it is not the expected one, it is renamed back.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd};

use effectd_contracts::{Digest, FileState, PathSnapshot, PathState};
use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, openat2, renameat2};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::{FileProblem, Hashing, Workspace, beneath};
use crate::spacepath::{SpacePath, aside_name};

impl<'a> Workspace<'a> {
    /// The workspace for an action with these preconditions.
    pub fn expecting(mut self, expected: &'a [PathSnapshot], mark: &'a str) -> Self {
        self.expected = expected;
        self.mark = mark;
        self
    }

    /// The expected state of a path; `None` if there is no precondition.
    pub(super) fn expected(&self, path: &SpacePath) -> Option<&'a PathState> {
        if self.expected.is_empty() {
            return None;
        }
        self.seen(path).map(|seen| &seen.standing)
    }

    fn seen(&self, path: &SpacePath) -> Option<&'a PathSnapshot> {
        let name = path.to_string();
        self.expected.iter().find(|seen| seen.path == name)
    }

    /// Checks the listing of a moved folder, now that nobody finds it under its old name.
    pub(super) fn check_moved(&self, from: &SpacePath, to: &SpacePath) -> Result<(), FileProblem> {
        let seen = self.seen(from).and_then(|seen| seen.inside.as_ref());
        self.check_tree(to, seen)
    }

    /// The name of a removed file until it is verified. If the action is killed before that, the file is put back.
    pub(super) fn aside(&self, path: &SpacePath) -> String {
        aside_name(&format!("{}\n{path}", self.mark))
    }

    /// Checks every precondition. A path is checked again when it is changed.
    pub fn check_expected(&self) -> Result<(), FileProblem> {
        for seen in self.expected {
            let path = SpacePath::parse_folder(&seen.path).map_err(|_| FileProblem::Changed)?;
            if self.standing(&path, 0)?.0 != seen.standing {
                return Err(FileProblem::Changed);
            }
            self.check_tree(&path, seen.inside.as_ref())?;
        }
        Ok(())
    }

    /// Checks that a folder that was read as a whole still has the expected listing.
    pub(crate) fn check_still(&self, folder: &SpacePath) -> Result<(), FileProblem> {
        self.check_tree(folder, self.seen(folder).and_then(|seen| seen.inside.as_ref()))
    }

    /// Checks that an open file has the expected content.
    pub(crate) fn check_read_file(&self, path: &SpacePath, file: &File) -> Result<(), FileProblem> {
        if self.expected(path).is_none() {
            return Ok(());
        }
        let (mut from, mut hashing) = (file, Hashing::new(io::sink()));
        let read = from.rewind().and_then(|()| io::copy(&mut from, &mut hashing));
        read.map_err(FileProblem::io("read the file"))?;
        self.check_read(path, || hashing.digest())
    }

    /// Checks that the content that was read from a path is the expected one.
    pub(crate) fn check_read(
        &self,
        path: &SpacePath,
        digest: impl FnOnce() -> Digest,
    ) -> Result<(), FileProblem> {
        match self.expected(path) {
            None => Ok(()),
            Some(PathState::File(state)) if state.digest == digest().to_string() => Ok(()),
            Some(PathState::File(_) | PathState::Absent | PathState::Folder | PathState::Other) => {
                Err(FileProblem::Changed)
            }
        }
    }
}

/// Renames within a folder, to a free name.
fn shift(folder: BorrowedFd<'_>, from: &str, to: &str) -> Result<(), Errno> {
    over_nothing((folder, from), (folder, to))
}

/// Renames to a free name. A file system without such a rename is refused: somebody could write a file between a check
/// and a plain rename, and lose it.
fn over_nothing(from: (BorrowedFd<'_>, &str), to: (BorrowedFd<'_>, &str)) -> Result<(), Errno> {
    if crate::failpoint::lacks("noreplace") {
        return Err(Errno::EOPNOTSUPP);
    }
    match renameat2(from.0, from.1, to.0, to.1, RenameFlags::RENAME_NOREPLACE) {
        // No caller moves a folder into itself, so these errors mean that the file system lacks this rename.
        Err(Errno::EINVAL | Errno::ENOSYS) => Err(Errno::EOPNOTSUPP),
        moved => moved,
    }
}

/// Puts back a file that was set aside, unless its name is taken.
fn put_back(folder: BorrowedFd<'_>, aside: &str, target: &str) -> Result<(), FileProblem> {
    shift(folder, aside, target).map_err(|_| FileProblem::LeftAside)
}

/// Replaces the expected file by a new one; a reader sees either of the two. Before the exchange, the new file is
/// renamed to the aside name, which is never removed unchecked: if the action is killed after the exchange, or cannot
/// undo it, the file with that name may be somebody else's.
pub(super) fn replace(
    folder: BorrowedFd<'_>,
    [name, aside, target]: [&str; 3],
    expected: &PathState,
) -> Result<(), FileProblem> {
    let at = FileProblem::at("move the new content into place");
    let state = match expected {
        PathState::Absent => {
            return match shift(folder, name, target) {
                Err(Errno::EEXIST) => Err(FileProblem::Changed),
                moved => moved.map_err(at),
            };
        }
        PathState::File(state) => state,
        PathState::Folder | PathState::Other => return Err(FileProblem::Changed),
    };
    let ours = identity(folder, name)?;
    match shift(folder, name, aside) {
        Err(Errno::EEXIST) => return Err(FileProblem::LeftAside),
        shifted => shifted.map_err(at)?,
    }
    if let Err(problem) = exchange(folder, aside, target) {
        // Nothing was exchanged: the new file gets its draft name again, and is removed as a draft.
        put_back(folder, aside, name)?;
        return match problem.errno() {
            Some(errno) if is_lacking(errno) => replace_in_steps(folder, [name, aside, target], state),
            Some(_) | None => Err(problem),
        };
    }
    if let Err(problem) = is_state(folder, aside, state) {
        match exchange(folder, aside, target) {
            Ok(()) => {}
            // Somebody removed the new file meanwhile.
            Err(FileProblem::Changed) => {
                put_back(folder, aside, target)?;
                return Err(problem);
            }
            Err(_) => return Err(FileProblem::LeftAside),
        }
        if identity(folder, aside) != Ok(ours) {
            // Somebody replaced the new file meanwhile.
            return Err(FileProblem::LeftAside);
        }
        put_back(folder, aside, name)?;
        return Err(problem);
    }
    unlinkat(folder, aside, UnlinkatFlags::NoRemoveDir).map_err(FileProblem::at("remove the replaced file"))
}

/// Like [`replace`] on a file system that cannot exchange two files: the old file is set aside first, so for a moment a
/// reader finds none. The old file is never lost: if the action is killed, it is put back.
fn replace_in_steps(
    folder: BorrowedFd<'_>,
    [name, aside, target]: [&str; 3],
    state: &FileState,
) -> Result<(), FileProblem> {
    set_aside(folder, target, aside)?;
    let placed = is_state(folder, aside, state).and_then(|()| match shift(folder, name, target) {
        // Somebody else wrote a file to the target meanwhile.
        Err(Errno::EEXIST) => Err(FileProblem::Changed),
        shifted => shifted.map_err(FileProblem::at("move the new content into place")),
    });
    if let Err(problem) = placed {
        put_back(folder, aside, target)?;
        return Err(problem);
    }
    unlinkat(folder, aside, UnlinkatFlags::NoRemoveDir).map_err(FileProblem::at("remove the replaced file"))
}

/// Whether the error means that the file system does not support this kind of rename.
fn is_lacking(errno: Errno) -> bool {
    matches!(errno, Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP)
}

fn exchange(folder: BorrowedFd<'_>, one: &str, other: &str) -> Result<(), FileProblem> {
    if crate::failpoint::lacks("exchange") {
        return Err(FileProblem::at("move the new content into place")(Errno::EINVAL));
    }
    match renameat2(folder, one, folder, other, RenameFlags::RENAME_EXCHANGE) {
        // The expected file is gone.
        Err(Errno::ENOENT) => Err(FileProblem::Changed),
        exchanged => exchanged.map_err(FileProblem::at("move the new content into place")),
    }
}

fn identity(folder: BorrowedFd<'_>, name: &str) -> Result<(u64, u64), FileProblem> {
    let at = FileProblem::at("inspect the file");
    let how = beneath(OFlag::O_PATH | OFlag::O_NOFOLLOW, Mode::empty());
    let file = openat2(folder, name, how).map_err(&at)?;
    let stat = nix::sys::stat::fstat(file.as_fd()).map_err(&at)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Removes the expected file, which has the name `aside` until it is verified.
pub(super) fn remove(
    folder: BorrowedFd<'_>,
    target: &str,
    aside: &str,
    state: &FileState,
) -> Result<(), FileProblem> {
    let at = FileProblem::at("remove the file");
    set_aside(folder, target, aside)?;
    if let Err(problem) = is_state(folder, aside, state) {
        put_back(folder, aside, target)?;
        return Err(problem);
    }
    unlinkat(folder, aside, UnlinkatFlags::NoRemoveDir).map_err(at)
}

fn set_aside(folder: BorrowedFd<'_>, target: &str, aside: &str) -> Result<(), FileProblem> {
    match shift(folder, target, aside) {
        Err(Errno::ENOENT) => Err(FileProblem::Changed),
        Err(Errno::EEXIST) => Err(FileProblem::LeftAside),
        moved => moved.map_err(FileProblem::at("set the replaced file aside")),
    }
}

/// Moves the expected file or folder over the expected target. A replaced file has the name `aside` until the end, so a probe
/// can tell how far a killed action came: the moved file is at one of the two paths. `holds` checks a moved folder.
pub(super) fn move_over(
    [from, to]: [(BorrowedFd<'_>, &str); 2],
    aside: &str,
    [moved, replaced]: [&PathState; 2],
    holds: impl FnOnce() -> Result<(), FileProblem>,
) -> Result<(), FileProblem> {
    let old = match replaced {
        PathState::Absent => None,
        PathState::File(state) => Some(state),
        PathState::Folder | PathState::Other => return Err(FileProblem::Changed),
    };
    if old.is_some() {
        set_aside(to.0, to.1, aside)?;
    }
    let back = || match old {
        Some(_) => put_back(to.0, aside, to.1),
        None => Ok(()),
    };
    if let Err(errno) = over_nothing(from, to) {
        back()?;
        let gone = matches!(errno, Errno::EEXIST | Errno::ENOENT);
        return Err(if gone { FileProblem::Changed } else { FileProblem::at("move it")(errno) });
    }
    let right = match moved {
        PathState::File(state) => is_state(to.0, to.1, state),
        PathState::Folder => is_folder(to.0, to.1).and_then(|()| holds()),
        PathState::Absent | PathState::Other => Err(FileProblem::Changed),
    };
    let right = right.and_then(|()| old.map_or(Ok(()), |state| is_state(to.0, aside, state)));
    if let Err(problem) = right {
        let returned = over_nothing(to, from);
        returned.map_err(|_| FileProblem::LeftAside)?;
        back()?;
        return Err(problem);
    }
    match old {
        Some(_) => unlinkat(to.0, aside, UnlinkatFlags::NoRemoveDir)
            .map_err(FileProblem::at("remove the replaced file")),
        None => Ok(()),
    }
}

/// Puts back the file that a killed run set aside. If its name is taken and one of the two files is the old one, the
/// other is the new content, and the file aside is removed. If neither is the old one, somebody else wrote there, and
/// nothing is removed. Returns whether there was a file aside.
pub(super) fn restore_aside(
    folder: BorrowedFd<'_>,
    aside: &str,
    target: &str,
    before: Option<&PathState>,
) -> Result<bool, FileProblem> {
    match shift(folder, aside, target) {
        Err(Errno::ENOENT) => return Ok(false),
        Err(Errno::EEXIST) => {
            let Some(PathState::File(state)) = before else {
                return Err(FileProblem::LeftAside);
            };
            if is_state(folder, aside, state).is_err() && is_state(folder, target, state).is_err() {
                return Err(FileProblem::LeftAside);
            }
            let at = FileProblem::at("remove the replaced file");
            unlinkat(folder, aside, UnlinkatFlags::NoRemoveDir).map_err(at)?;
        }
        shifted => shifted.map_err(FileProblem::at("restore the replaced file"))?,
    }
    nix::unistd::fsync(folder).map_err(FileProblem::at("sync the folder"))?;
    Ok(true)
}

fn is_folder(folder: BorrowedFd<'_>, name: &str) -> Result<(), FileProblem> {
    match openat2(folder, name, beneath(super::FOLDER, Mode::empty())) {
        Ok(_) => Ok(()),
        Err(_) => Err(FileProblem::Changed),
    }
}

/// Checks that a file has exactly this content and these permissions.
pub(super) fn is_state(folder: BorrowedFd<'_>, name: &str, state: &FileState) -> Result<(), FileProblem> {
    let at = FileProblem::at("inspect the replaced file");
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = match openat2(folder, name, beneath(flags, Mode::empty())) {
        Err(Errno::ELOOP | Errno::ENXIO | Errno::ENOENT) => return Err(FileProblem::Changed),
        opened => opened.map_err(&at)?,
    };
    let stat = nix::sys::stat::fstat(file.as_fd()).map_err(&at)?;
    let stat = super::Stat::of(&stat);
    let same = stat.kind == super::FileKind::File && stat.bytes == state.bytes && stat.mode == state.mode;
    if !same {
        return Err(FileProblem::Changed);
    }
    let mut hashing = Hashing::new(io::sink());
    let read = io::copy(&mut File::from(file).take(state.bytes + 1), &mut hashing);
    let bytes = read.map_err(FileProblem::io("read the file"))?;
    if bytes == state.bytes && hashing.digest().to_string() == state.digest {
        Ok(())
    } else {
        Err(FileProblem::Changed)
    }
}
