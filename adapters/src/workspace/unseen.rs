//! New content that nobody sees: written and synced without a name.
//!
//! A call may be in hand before its intent is on disk, and nothing may be seen of it until then. A file without a name is in no folder, and
//! goes with the process, or with the power, without a trace. Where the file system has no such files, or anything else is in the
//! way, the content is written when the call may be carried out, and whatever was in the way is told then.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat2};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::write::{Draft, Existing, FILE_MODE, replaceable};
use super::{Workspace, beneath};
use crate::spacepath::SpacePath;

/// Content without a name, on the disk of the folder that it is for.
#[derive(Debug)]
pub(super) struct Unseen {
    folder: OwnedFd,
    file: File,
}

impl Workspace<'_> {
    /// Writes the content for a path, if the call may not be carried out yet and this can be done unseen.
    pub(super) fn write_unseen(
        &self,
        path: &SpacePath,
        content: &[u8],
        existing: Existing,
    ) -> Option<Unseen> {
        if !self.beside().is_waiting() || self.expected(path).is_some() {
            return None;
        }
        let old = replaceable(self.stat(path).ok()?, existing).ok()?;
        let folder = self.folder_of(path).ok()?;
        let mode = old.map_or(FILE_MODE, |old| old.mode) & 0o777;
        let how = beneath(
            OFlag::O_WRONLY | OFlag::O_TMPFILE,
            Mode::from_bits_truncate(mode | 0o200),
        );
        let mut file = File::from(openat2(folder.as_fd(), ".", how).ok()?);
        file.write_all(content).ok()?;
        fchmod(file.as_fd(), Mode::from_bits_truncate(mode)).ok()?;
        file.sync_all().ok()?;
        Some(Unseen { folder, file })
    }
}

impl Unseen {
    /// Gives it the name of a draft, now that it may be seen.
    pub(super) fn into_draft(self, path: &SpacePath, existing: Existing, mark: &str) -> Option<Draft> {
        let Self { folder, file } = self;
        let draft = Draft::beside(folder, path, existing, mark);
        let (folder, name) = draft.place_of_its_own();
        let link = || linkat(file.as_fd(), "", folder, name, AtFlags::AT_EMPTY_PATH);
        let mut linked = link();
        if linked == Err(Errno::EEXIST) {
            // Left by an interrupted run of the same action, which is proven dead. What is not ours never has this name.
            unlinkat(folder, name, UnlinkatFlags::NoRemoveDir).ok()?;
            linked = link();
        }
        linked.ok()?;
        // On disk it must be a file that has a name before it takes the place of one: without a journal nobody else sees to that.
        file.sync_all().ok()?;
        Some(draft)
    }
}
