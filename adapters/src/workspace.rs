//! Files beneath the space's root, opened so that no link and no race leads outside.
//!
//! Every open goes through `openat2` with `RESOLVE_BENEATH` and without symbolic links: the kernel decides at the moment
//! of use. Nothing is checked first and used later.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use effectd_contracts::{Code, Failure, Phase};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::sys::stat::{Mode, SFlag, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};

use crate::spacepath::{Base, SpacePath};

/// The two folders a tool may touch.
#[derive(Debug, Clone, Copy)]
pub struct Workspace<'a> {
    root: BorrowedFd<'a>,
    scratch: BorrowedFd<'a>,
}

/// What went wrong with a file, as the kernel told it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileProblem {
    step: &'static str,
    errno: Errno,
}

impl FileProblem {
    fn at(step: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self { step, errno }
    }

    /// What the kernel said.
    pub fn errno(self) -> Errno {
        self.errno
    }
}

impl From<FileProblem> for Failure {
    fn from(problem: FileProblem) -> Failure {
        let FileProblem { step, errno } = problem;
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the kernel has more errors than a tool has words"
        )]
        let (code, why) = match errno {
            Errno::EXDEV | Errno::ELOOP => (
                Code::PathDenied,
                "the path leads through a link or outside of the space",
            ),
            Errno::EACCES | Errno::EPERM | Errno::EROFS => {
                (Code::PathDenied, "the sandbox does not allow it")
            }
            Errno::ENOTDIR => (Code::ToolFailed, "a file stands where a folder is needed"),
            Errno::EISDIR | Errno::ENOTEMPTY | Errno::EEXIST => {
                (Code::ToolFailed, "a folder stands where the file should be")
            }
            Errno::ENOENT => (Code::ToolFailed, "it does not exist"),
            Errno::ENOSPC | Errno::EDQUOT => (Code::ToolBusy, "the disk is full"),
            Errno::EFBIG => (Code::FileLimit, "the file is larger than the sandbox allows"),
            Errno::EMFILE | Errno::ENFILE => (Code::FileLimit, "too many open files"),
            Errno::EIO => (Code::ToolBusy, "the disk reports an error"),
            other => (Code::ToolFailed, other.desc()),
        };
        Failure::new(
            code,
            Phase::Dispatch,
            format!("could not {step}: {why} ({errno:?})"),
        )
    }
}

/// How the kernel is to walk a path: beneath the folder it starts from, through no link of any kind.
fn beneath(flags: OFlag, mode: Mode) -> OpenHow {
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .mode(mode)
        .resolve(resolve)
}

const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY);

impl<'a> Workspace<'a> {
    /// The folders as the sandbox hands them to the tool.
    pub fn new(root: BorrowedFd<'a>, scratch: BorrowedFd<'a>) -> Self {
        Self { root, scratch }
    }

    fn base(&self, path: &SpacePath) -> BorrowedFd<'a> {
        match path.base() {
            Base::Workspace => self.root,
            Base::Scratch => self.scratch,
        }
    }

    /// Writes the whole file or nothing: into a new file beside it, synced, then moved over the old one, and the folder
    /// synced too. Missing folders are created. A reader sees the old or the new content, also after a power cut.
    pub fn write_atomically(&self, path: &SpacePath, content: &[u8]) -> Result<(), FileProblem> {
        let folder = self.create_folders(path)?;
        let mode = self.mode_for(&folder, path)?;
        let draft = format!(".effectd-{}.draft", uuid::Uuid::now_v7().simple());
        let how = beneath(OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL, mode);
        let file =
            openat2(folder.as_fd(), draft.as_str(), how).map_err(FileProblem::at("create the file"))?;
        let written = fill(file, content).and_then(|()| {
            renameat(folder.as_fd(), draft.as_str(), folder.as_fd(), path.file_name())
                .map_err(FileProblem::at("move the new content into place"))
        });
        if written.is_err() {
            // Best effort: the first error is the one that matters.
            let _ = unlinkat(folder.as_fd(), draft.as_str(), UnlinkatFlags::NoRemoveDir);
        }
        written?;
        fsync(folder.as_fd()).map_err(FileProblem::at("sync the folder"))
    }

    /// The size of a file, as it is on disk now.
    pub fn size(&self, path: &SpacePath) -> Result<u64, FileProblem> {
        let relative = path
            .folders()
            .iter()
            .map(String::as_str)
            .chain([path.file_name()])
            .collect::<Vec<_>>()
            .join("/");
        let how = beneath(OFlag::O_PATH | OFlag::O_NOFOLLOW, Mode::empty());
        let file =
            openat2(self.base(path), relative.as_str(), how).map_err(FileProblem::at("open the file"))?;
        let stat = fstat(file.as_fd()).map_err(FileProblem::at("look at the file"))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Opens the file's folder, creating what is missing on the way, each new folder synced into its parent.
    fn create_folders(&self, path: &SpacePath) -> Result<OwnedFd, FileProblem> {
        let open = |at: BorrowedFd<'_>, name: &str| {
            openat2(at, name, beneath(FOLDER, Mode::empty())).map_err(FileProblem::at("open the folder"))
        };
        let mut folder = open(self.base(path), ".")?;
        for name in path.folders() {
            match mkdirat(folder.as_fd(), name.as_str(), Mode::from_bits_truncate(0o755)) {
                Ok(()) => fsync(folder.as_fd()).map_err(FileProblem::at("sync the folder"))?,
                Err(Errno::EEXIST) => {}
                Err(errno) => {
                    return Err(FileProblem {
                        step: "create the folder",
                        errno,
                    });
                }
            }
            folder = open(folder.as_fd(), name)?;
        }
        Ok(folder)
    }

    /// The mode of the file that is replaced, so that a private file stays private; an ordinary one for a new file.
    fn mode_for(&self, folder: &OwnedFd, path: &SpacePath) -> Result<Mode, FileProblem> {
        let how = beneath(OFlag::O_PATH | OFlag::O_NOFOLLOW, Mode::empty());
        match openat2(folder.as_fd(), path.file_name(), how) {
            Ok(old) => {
                let stat = fstat(old.as_fd()).map_err(FileProblem::at("look at the file"))?;
                let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
                // Replacing a link would be harmless, but whoever put it there meant another file.
                if kind == SFlag::S_IFLNK {
                    return Err(FileProblem {
                        step: "replace the file",
                        errno: Errno::ELOOP,
                    });
                }
                Ok(Mode::from_bits_truncate(stat.st_mode & 0o777))
            }
            Err(Errno::ENOENT) => Ok(Mode::from_bits_truncate(0o644)),
            Err(errno) => Err(FileProblem {
                step: "look at the file",
                errno,
            }),
        }
    }
}

fn fill(file: OwnedFd, content: &[u8]) -> Result<(), FileProblem> {
    let problem = |step| {
        move |e: std::io::Error| FileProblem {
            step,
            errno: e.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw),
        }
    };
    let mut file = File::from(file);
    file.write_all(content).map_err(problem("write the file"))?;
    file.sync_all().map_err(problem("sync the file"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    struct Place {
        folder: tempfile::TempDir,
        root: File,
    }

    impl Place {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join("root")).unwrap();
            let root = File::open(folder.path().join("root")).unwrap();
            Self { folder, root }
        }

        fn write(&self, path: &str) -> Result<(), FileProblem> {
            let workspace = Workspace::new(self.root.as_fd(), self.root.as_fd());
            workspace.write_atomically(&SpacePath::parse(path).unwrap(), b"new")
        }
    }

    #[test]
    fn links_lead_nowhere() {
        let place = Place::new();
        let outside = place.folder.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("file"), "old").unwrap();
        symlink(&outside, place.folder.path().join("root/dir")).unwrap();
        symlink(outside.join("file"), place.folder.path().join("root/link")).unwrap();
        assert_eq!(
            place.write("workspace/dir/file").unwrap_err().errno(),
            Errno::ELOOP
        );
        assert_eq!(place.write("workspace/link").unwrap_err().errno(), Errno::ELOOP);
        assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), "old");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    }

    #[test]
    fn a_private_file_stays_private_and_no_draft_is_left() {
        let place = Place::new();
        let file = place.folder.path().join("root/secret");
        std::fs::write(&file, "old").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        place.write("workspace/secret").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(
            std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600
        );
        std::fs::create_dir(place.folder.path().join("root/folder")).unwrap();
        assert_eq!(
            place.write("workspace/folder").unwrap_err().errno(),
            Errno::EISDIR
        );
        let names: Vec<_> = std::fs::read_dir(place.folder.path().join("root"))
            .unwrap()
            .collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }
}
