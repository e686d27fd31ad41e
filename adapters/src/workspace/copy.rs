//! A copy of some paths, for a preview to run on.

use std::fs::File;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat2};
use nix::sys::stat::{Mode, fchmod, umask};
use nix::unistd::symlinkat;

use super::inspect::FileKind;
use super::{FOLDER, FileProblem, WalkEntry, Workspace, beneath};
use crate::spacepath::SpacePath;

/// The umask of the process, restored on drop.
struct Mask(Mode);

impl Drop for Mask {
    fn drop(&mut self) {
        umask(self.0);
    }
}

/// The target of the dangling link that replaces a link, pipe or device in the copy: no tool follows it.
const NOWHERE: &str = "nowhere";

impl Workspace<'_> {
    /// Copies these paths to another workspace, with the folders above them, the content of folders, and permissions. A
    /// missing path is missing in the copy, too.
    pub fn copy_to(&self, other: &Workspace<'_>, paths: &[SpacePath]) -> Result<(), FileProblem> {
        // Without a umask, a copy has its permissions from the start: it is never more open than the original.
        let _mask = Mask(umask(Mode::empty()));
        let mut folders = Vec::new();
        for path in paths {
            let mut above = path.parent();
            while let Some(folder) = above.filter(|folder| folder.parent().is_some()) {
                if let Some(stat) = self.stat(&folder)?
                    && stat.kind == FileKind::Folder
                {
                    other.make_folder(&folder)?;
                    folders.push((folder.clone(), stat.mode));
                }
                above = folder.parent();
            }
            self.copy_one(other, path, &mut folders)?;
        }
        // Folders that their owner may not read or write get their permissions last, because they must be filled first;
        // the deepest get them first, because they must be reached.
        folders.retain(|(_, mode)| mode & 0o700 != 0o700);
        folders.sort_by_key(|(folder, _)| std::cmp::Reverse(folder.relative().len()));
        for (folder, mode) in folders {
            other.set_mode(&folder, mode)?;
        }
        Ok(())
    }

    fn copy_one(
        &self,
        other: &Workspace<'_>,
        path: &SpacePath,
        folders: &mut Vec<(SpacePath, u32)>,
    ) -> Result<(), FileProblem> {
        let Some(stat) = self.stat(path)? else {
            return Ok(());
        };
        let mut entries = vec![WalkEntry { path: path.clone(), stat }];
        if stat.kind == FileKind::Folder {
            let walk = self.walk(path, true)?;
            if walk.partial {
                return Err(FileProblem::at("copy the folder")(Errno::ENOSPC));
            }
            entries.extend(walk.entries);
        }
        for WalkEntry { path, stat } in entries {
            match stat.kind {
                FileKind::File => self.copy_content(other, &path)?,
                FileKind::Link | FileKind::Special => other.put_link(&path)?,
                FileKind::Folder => {
                    other.make_folder(&path)?;
                    folders.push((path, stat.mode));
                }
            }
        }
        Ok(())
    }

    fn copy_content(&self, other: &Workspace<'_>, path: &SpacePath) -> Result<(), FileProblem> {
        let (mut source, stat) = self.open_file(path)?;
        let (folder, mut made) = other.create_folders(path)?;
        made.keep();
        let how = beneath(
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL,
            Mode::from_bits_truncate(stat.mode & 0o777),
        );
        let file = match openat2(folder.as_fd(), path.file_name(), how) {
            // The path is in the list twice.
            Err(Errno::EEXIST) => return Ok(()),
            created => created.map_err(FileProblem::at("copy the file"))?,
        };
        let mut file = File::from(file);
        let copied = std::io::copy(&mut source, &mut file);
        copied.map(drop).map_err(FileProblem::io("copy the file"))
    }

    fn put_link(&self, path: &SpacePath) -> Result<(), FileProblem> {
        let (folder, mut made) = self.create_folders(path)?;
        made.keep();
        match symlinkat(NOWHERE, folder.as_fd(), path.file_name()) {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(FileProblem::at("copy the link")(errno)),
        }
    }

    fn set_mode(&self, folder: &SpacePath, mode: u32) -> Result<(), FileProblem> {
        let at = FileProblem::at("set the permissions");
        let handle = self.open(folder, FOLDER).map_err(&at)?;
        fchmod(handle.as_fd(), Mode::from_bits_truncate(mode & 0o777)).map_err(at)
    }

    /// Two empty folders within the scratch folder, for the copy of a space and for its scratch folder.
    pub(crate) fn copy_folders(&self) -> Result<[std::os::fd::OwnedFd; 2], FileProblem> {
        let folder = |name: &str| {
            let at = FileProblem::at("create the folder for a copy");
            nix::sys::stat::mkdirat(self.scratch, name, Mode::from_bits_truncate(0o700)).map_err(&at)?;
            openat2(self.scratch, name, beneath(FOLDER, Mode::empty())).map_err(at)
        };
        Ok([folder("space")?, folder("tmp")?])
    }
}
