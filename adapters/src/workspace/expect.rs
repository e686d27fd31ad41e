//! What a person has agreed to is to find what they saw: a file that is otherwise is not replaced, moved or removed.
//!
//! Looking first and acting then would leave a moment between the two in which somebody else can write. So what is
//! replaced or removed is first set aside, by one step of the kernel, and looked at where nobody else finds it; if it is not
//! what was expected, it goes back by the same step.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};

use effectd_contracts::{Digest, FileState, Seen, Standing};
use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, openat2, renameat2};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use sha2::{Digest as _, Sha256};

use super::{FileProblem, Workspace, beneath};
use crate::spacepath::{SpacePath, aside_name};

impl<'a> Workspace<'a> {
    /// The same, for an action that may only happen if these paths are as they were seen.
    pub fn expecting(mut self, expected: &'a [Seen], mark: &'a str) -> Self {
        self.expected = expected;
        self.mark = mark;
        self
    }

    /// What must stand at a path; `None` if nobody said.
    pub(super) fn expected(&self, path: &SpacePath) -> Option<&'a Standing> {
        if self.expected.is_empty() {
            return None;
        }
        self.seen(path).map(|seen| &seen.standing)
    }

    fn seen(&self, path: &SpacePath) -> Option<&'a Seen> {
        let name = path.to_string();
        self.expected.iter().find(|seen| seen.path == name)
    }

    /// Whether what was moved holds what was seen in it, now that nobody finds it under its old name.
    pub(super) fn check_moved(&self, from: &SpacePath, to: &SpacePath) -> Result<(), FileProblem> {
        let seen = self.seen(from).and_then(|seen| seen.inside.as_ref());
        self.check_inside(to, seen)
    }

    /// Where what is removed waits until it is known to be the right file. Should the action be killed meanwhile, it is put
    /// back.
    pub(super) fn aside(&self, path: &SpacePath) -> String {
        aside_name(&format!("{}\n{path}", self.mark))
    }

    /// Whether every path is as it was seen. What is changed afterwards is looked at again when it is changed.
    pub fn check_expected(&self) -> Result<(), FileProblem> {
        for seen in self.expected {
            let path = SpacePath::parse_folder(&seen.path).map_err(|_| FileProblem::Changed)?;
            if self.standing(&path, 0)?.0 != seen.standing {
                return Err(FileProblem::Changed);
            }
            self.check_inside(&path, seen.inside.as_ref())?;
        }
        Ok(())
    }

    /// Whether a folder that was read as a whole still holds what was seen in it: then what was read is that.
    pub(crate) fn check_still(&self, folder: &SpacePath) -> Result<(), FileProblem> {
        self.check_inside(folder, self.seen(folder).and_then(|seen| seen.inside.as_ref()))
    }

    /// Whether a file that is open is what was seen at its path.
    pub(crate) fn check_read_file(&self, path: &SpacePath, file: &File) -> Result<(), FileProblem> {
        if self.expected(path).is_none() {
            return Ok(());
        }
        let (mut from, mut hasher) = (file, Sha256::new());
        let mut piece = vec![0; PIECE_BYTES];
        let failed = FileProblem::io("read the file");
        from.seek(SeekFrom::Start(0)).map_err(&failed)?;
        loop {
            match from.read(&mut piece).map_err(&failed)? {
                0 => break,
                count => hasher.update(&piece[..count]),
            }
        }
        self.check_read(path, || Digest::from_bytes(hasher.finalize().into()))
    }

    /// Whether what was read from a path is what was seen there.
    pub(crate) fn check_read(
        &self,
        path: &SpacePath,
        digest: impl FnOnce() -> Digest,
    ) -> Result<(), FileProblem> {
        match self.expected(path) {
            None => Ok(()),
            Some(Standing::File(state)) if state.digest == digest().to_string() => Ok(()),
            Some(Standing::File(_) | Standing::Absent | Standing::Folder | Standing::Other) => {
                Err(FileProblem::Changed)
            }
        }
    }
}

/// Renames within a folder, over nothing.
fn shift(folder: BorrowedFd<'_>, from: &str, to: &str) -> Result<(), Errno> {
    over_nothing((folder, from), (folder, to))
}

/// Renames over nothing. A file system that cannot promise that is no ground for what a person has agreed to: between a look and a
/// plain rename somebody else's file could be lost.
fn over_nothing(from: (BorrowedFd<'_>, &str), to: (BorrowedFd<'_>, &str)) -> Result<(), Errno> {
    if crate::failpoint::lacks("noreplace") {
        return Err(Errno::EOPNOTSUPP);
    }
    match renameat2(from.0, from.1, to.0, to.1, RenameFlags::RENAME_NOREPLACE) {
        // There is no other reason for this one: nothing is ever moved into itself here.
        Err(Errno::EINVAL | Errno::ENOSYS) => Err(Errno::EOPNOTSUPP),
        moved => moved,
    }
}

/// Puts back what was set aside, unless something else has come to stand there.
fn put_back(folder: BorrowedFd<'_>, aside: &str, target: &str) -> Result<(), FileProblem> {
    shift(folder, aside, target).map_err(|_| FileProblem::LeftAside)
}

/// Puts a new file in the place of the one that must be there, so that a reader sees the old or the new one. Before the two
/// change places, the new one gets the name under which nothing is removed unseen: should the action be killed then, or
/// fail to put back what was not expected, somebody else's file may have that name.
pub(super) fn replace(
    folder: BorrowedFd<'_>,
    [name, aside, target]: [&str; 3],
    expected: &Standing,
) -> Result<(), FileProblem> {
    let at = FileProblem::at("move the new content into place");
    let state = match expected {
        Standing::Absent => {
            return match shift(folder, name, target) {
                Err(Errno::EEXIST) => Err(FileProblem::Changed),
                moved => moved.map_err(at),
            };
        }
        Standing::File(state) => state,
        Standing::Folder | Standing::Other => return Err(FileProblem::Changed),
    };
    let ours = identity(folder, name)?;
    match shift(folder, name, aside) {
        Err(Errno::EEXIST) => return Err(FileProblem::LeftAside),
        shifted => shifted.map_err(at)?,
    }
    if let Err(problem) = exchange(folder, aside, target) {
        // Nothing has changed places: it is a draft again, and removed as one.
        put_back(folder, aside, name)?;
        return match problem.errno() {
            Some(errno) if is_lacking(errno) => replace_in_steps(folder, [name, aside, target], state),
            Some(_) | None => Err(problem),
        };
    }
    if let Err(problem) = is_state(folder, aside, state) {
        match exchange(folder, aside, target) {
            Ok(()) => {}
            // The new content was removed from its place meanwhile.
            Err(FileProblem::Changed) => {
                put_back(folder, aside, target)?;
                return Err(problem);
            }
            Err(_) => return Err(FileProblem::LeftAside),
        }
        if identity(folder, aside) != Ok(ours) {
            // Somebody has written over the new content meanwhile.
            return Err(FileProblem::LeftAside);
        }
        put_back(folder, aside, name)?;
        return Err(problem);
    }
    unlinkat(folder, aside, UnlinkatFlags::NoRemoveDir).map_err(FileProblem::at("remove what was replaced"))
}

/// The same on a file system where two files cannot change places in one step: what is replaced is set aside first, so for a
/// moment a reader finds nothing there. It is never lost: whenever the action is killed, it is put back from where it waits.
fn replace_in_steps(
    folder: BorrowedFd<'_>,
    [name, aside, target]: [&str; 3],
    state: &FileState,
) -> Result<(), FileProblem> {
    set_aside(folder, target, aside)?;
    let placed = is_state(folder, aside, state).and_then(|()| match shift(folder, name, target) {
        // Somebody else has put something there meanwhile.
        Err(Errno::EEXIST) => Err(FileProblem::Changed),
        shifted => shifted.map_err(FileProblem::at("move the new content into place")),
    });
    if let Err(problem) = placed {
        put_back(folder, aside, target)?;
        return Err(problem);
    }
    unlinkat(folder, aside, UnlinkatFlags::NoRemoveDir).map_err(FileProblem::at("remove what was replaced"))
}

/// Whether a file system says that it has no such way to rename.
fn is_lacking(errno: Errno) -> bool {
    matches!(errno, Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP)
}

fn exchange(folder: BorrowedFd<'_>, one: &str, other: &str) -> Result<(), FileProblem> {
    if crate::failpoint::lacks("exchange") {
        return Err(FileProblem::at("move the new content into place")(Errno::EINVAL));
    }
    match renameat2(folder, one, folder, other, RenameFlags::RENAME_EXCHANGE) {
        // What was to be replaced is gone.
        Err(Errno::ENOENT) => Err(FileProblem::Changed),
        exchanged => exchanged.map_err(FileProblem::at("move the new content into place")),
    }
}

fn identity(folder: BorrowedFd<'_>, name: &str) -> Result<(u64, u64), FileProblem> {
    let at = FileProblem::at("look at the file");
    let how = beneath(OFlag::O_PATH | OFlag::O_NOFOLLOW, Mode::empty());
    let file = openat2(folder, name, how).map_err(&at)?;
    let stat = nix::sys::stat::fstat(file.as_fd()).map_err(&at)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Removes the file that must be there. It waits under `aside` until it is known to be the one.
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
        moved => moved.map_err(FileProblem::at("set aside what is replaced")),
    }
}

/// Moves what must be at the first end to the second, where nothing or a certain file must be. What is replaced waits under
/// `aside`, so that whenever the action is killed it can be told how far it has come: the moved file is at one of its ends.
/// Whether a folder holds what it should is asked when it is there.
pub(super) fn move_over(
    [from, to]: [(BorrowedFd<'_>, &str); 2],
    aside: &str,
    [moved, replaced]: [&Standing; 2],
    holds: impl FnOnce() -> Result<(), FileProblem>,
) -> Result<(), FileProblem> {
    let old = match replaced {
        Standing::Absent => None,
        Standing::File(state) => Some(state),
        Standing::Folder | Standing::Other => return Err(FileProblem::Changed),
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
        return Err(if gone {
            FileProblem::Changed
        } else {
            FileProblem::at("move it")(errno)
        });
    }
    let right = match moved {
        Standing::File(state) => is_state(to.0, to.1, state),
        Standing::Folder => is_folder(to.0, to.1).and_then(|()| holds()),
        Standing::Absent | Standing::Other => Err(FileProblem::Changed),
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
            .map_err(FileProblem::at("remove what was replaced")),
        None => Ok(()),
    }
}

/// Puts back what a run that was killed has set aside. If something stands in its place, one of the two is what stood there
/// before the run, and the other the new content: then what is aside is not needed any more. If neither is, somebody else
/// was there, and nothing is removed.
pub(super) fn settle_aside(
    folder: BorrowedFd<'_>,
    aside: &str,
    target: &str,
    before: Option<&Standing>,
) -> Result<(), FileProblem> {
    match shift(folder, aside, target) {
        Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EEXIST) => {
            let Some(Standing::File(state)) = before else {
                return Err(FileProblem::LeftAside);
            };
            if is_state(folder, aside, state).is_err() && is_state(folder, target, state).is_err() {
                return Err(FileProblem::LeftAside);
            }
            let at = FileProblem::at("remove what was replaced");
            unlinkat(folder, aside, UnlinkatFlags::NoRemoveDir).map_err(at)?;
        }
        shifted => shifted.map_err(FileProblem::at("put back what was set aside"))?,
    }
    nix::unistd::fsync(folder).map_err(FileProblem::at("sync the folder"))
}

fn is_folder(folder: BorrowedFd<'_>, name: &str) -> Result<(), FileProblem> {
    match openat2(folder, name, beneath(super::FOLDER, Mode::empty())) {
        Ok(_) => Ok(()),
        Err(_) => Err(FileProblem::Changed),
    }
}

/// Whether a file has exactly this content and these permissions.
pub(super) fn is_state(folder: BorrowedFd<'_>, name: &str, state: &FileState) -> Result<(), FileProblem> {
    let at = FileProblem::at("look at what is replaced");
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
    let (mut hasher, mut bytes) = (Sha256::new(), 0);
    let mut limited = File::from(file).take(state.bytes + 1);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = limited
            .read(&mut piece)
            .map_err(FileProblem::io("read the file"))?;
        if count == 0 {
            break;
        }
        hasher.update(&piece[..count]);
        bytes += count as u64;
    }
    let digest = Digest::from_bytes(hasher.finalize().into());
    if bytes == state.bytes && digest.to_string() == state.digest {
        Ok(())
    } else {
        Err(FileProblem::Changed)
    }
}

/// How much of a file is read at a time.
const PIECE_BYTES: usize = 65_536;
