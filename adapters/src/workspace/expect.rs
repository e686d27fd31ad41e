//! What a person has agreed to is to find what they saw: a file that is otherwise is not replaced, moved or removed.
//!
//! Looking first and acting then would leave a moment between the two in which somebody else can write. So what is
//! replaced or removed is first set aside, by one step of the kernel, and looked at where nobody else finds it; if it is not
//! what was expected, it goes back by the same step.

use std::os::fd::{AsFd, BorrowedFd};

use effectd_contracts::{Digest, FileState, Seen, Standing};
use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, openat2, renameat2};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use sha2::{Digest as _, Sha256};

use super::{FileProblem, Workspace, beneath};
use crate::spacepath::{SpacePath, draft_name};

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
        let name = path.to_string();
        let seen = self.expected.iter().find(|seen| seen.path == name)?;
        Some(&seen.standing)
    }

    /// Where what is removed waits until it is known to be the right file. Should the action be killed meanwhile, it is
    /// removed with its other unfinished files.
    pub(super) fn aside(&self, path: &SpacePath) -> String {
        draft_name(&format!("{}\n{path}", self.mark))
    }

    /// Whether every path is as it was seen. What is changed afterwards is looked at again when it is changed.
    pub fn check_expected(&self) -> Result<(), FileProblem> {
        for seen in self.expected {
            let path = SpacePath::parse(&seen.path).map_err(|_| FileProblem::Changed)?;
            if self.standing(&path, 0)?.0 != seen.standing {
                return Err(FileProblem::Changed);
            }
        }
        Ok(())
    }

    /// Whether what was read from a path is what was seen there.
    pub(super) fn check_read(
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

/// Puts a new file in the place of the one that must be there. `name` is the new one's, and holds the old one meanwhile.
pub(super) fn replace(
    folder: BorrowedFd<'_>,
    name: &str,
    target: &str,
    expected: &Standing,
) -> Result<(), FileProblem> {
    let at = FileProblem::at("move the new content into place");
    match expected {
        Standing::Absent => match renameat2(folder, name, folder, target, RenameFlags::RENAME_NOREPLACE) {
            Err(Errno::EEXIST) => Err(FileProblem::Changed),
            moved => moved.map_err(at),
        },
        Standing::File(state) => {
            exchange(folder, name, target)?;
            if let Err(problem) = is_state(folder, name, state) {
                exchange(folder, name, target)?;
                return Err(problem);
            }
            unlinkat(folder, name, UnlinkatFlags::NoRemoveDir)
                .map_err(FileProblem::at("remove what was replaced"))
        }
        Standing::Folder | Standing::Other => Err(FileProblem::Changed),
    }
}

fn exchange(folder: BorrowedFd<'_>, one: &str, other: &str) -> Result<(), FileProblem> {
    match renameat2(folder, one, folder, other, RenameFlags::RENAME_EXCHANGE) {
        // What was to be replaced is gone.
        Err(Errno::ENOENT) => Err(FileProblem::Changed),
        exchanged => exchanged.map_err(FileProblem::at("move the new content into place")),
    }
}

/// Removes the file that must be there. It waits under `aside` until it is known to be the one.
pub(super) fn remove(
    folder: BorrowedFd<'_>,
    target: &str,
    aside: &str,
    state: &FileState,
) -> Result<(), FileProblem> {
    let at = FileProblem::at("remove the file");
    let moved = |from: &str, to: &str| renameat2(folder, from, folder, to, RenameFlags::RENAME_NOREPLACE);
    match moved(target, aside) {
        Err(Errno::ENOENT) => return Err(FileProblem::Changed),
        set_aside => set_aside.map_err(&at)?,
    }
    if let Err(problem) = is_state(folder, aside, state) {
        moved(aside, target).map_err(&at)?;
        return Err(problem);
    }
    unlinkat(folder, aside, UnlinkatFlags::NoRemoveDir).map_err(at)
}

/// Moves what must be at the first end to the second, where nothing or a certain file must be.
pub(super) fn move_over(
    [from, to]: [(BorrowedFd<'_>, &str); 2],
    moved: &Standing,
    replaced: &Standing,
) -> Result<(), FileProblem> {
    let at = FileProblem::at("move it");
    let rename = |flags| renameat2(from.0, from.1, to.0, to.1, flags);
    let back = |flags| renameat2(to.0, to.1, from.0, from.1, flags);
    let flags = match replaced {
        Standing::Absent => RenameFlags::RENAME_NOREPLACE,
        Standing::File(_) => RenameFlags::RENAME_EXCHANGE,
        Standing::Folder | Standing::Other => return Err(FileProblem::Changed),
    };
    match rename(flags) {
        Err(Errno::EEXIST | Errno::ENOENT) => return Err(FileProblem::Changed),
        renamed => renamed.map_err(&at)?,
    }
    let right = match moved {
        Standing::File(state) => is_state(to.0, to.1, state),
        Standing::Folder => is_folder(to.0, to.1),
        Standing::Absent | Standing::Other => Err(FileProblem::Changed),
    };
    let right = right.and_then(|()| match replaced {
        Standing::File(state) => is_state(from.0, from.1, state),
        Standing::Absent | Standing::Folder | Standing::Other => Ok(()),
    });
    if let Err(problem) = right {
        back(flags).map_err(&at)?;
        return Err(problem);
    }
    if flags == RenameFlags::RENAME_EXCHANGE {
        unlinkat(from.0, from.1, UnlinkatFlags::NoRemoveDir).map_err(at)?;
    }
    Ok(())
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
    let mut limited = std::io::Read::take(std::fs::File::from(file), state.bytes + 1);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count =
            std::io::Read::read(&mut limited, &mut piece).map_err(FileProblem::io("read the file"))?;
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
