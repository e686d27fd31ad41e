//! Errors of file operations, each with its own code.

use effectd_contracts::{Code, Failure, Phase};
use nix::errno::Errno;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileProblem {
    /// The kernel refused this step.
    Kernel { step: &'static str, errno: Errno },
    /// Not a file: a folder, link, pipe, socket or device.
    NotAFile,
    /// A folder, where the tool works on one file at a time.
    Folder,
    /// Larger than the tool takes.
    TooLarge { bytes_max: u64 },
    /// Not UTF-8, or with a NUL in it.
    NotText,
    /// The file is not as the action expects, or changed while it was read.
    Changed,
    /// Like `Changed`, and a new file appeared before the file that was set aside could be put back.
    LeftAside,
}

impl FileProblem {
    pub(crate) fn at(step: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Kernel { step, errno }
    }

    pub(crate) fn io(step: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |error| Self::Kernel {
            step,
            errno: error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw),
        }
    }

    pub(crate) fn check_size(bytes: u64, bytes_max: u64) -> Result<(), Self> {
        (bytes <= bytes_max).then_some(()).ok_or(Self::TooLarge { bytes_max })
    }

    pub fn errno(self) -> Option<Errno> {
        if let Self::Kernel { errno, .. } = self {
            return Some(errno);
        }
        None
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the kernel has more errors than tools have codes")]
fn of_kernel(errno: Errno) -> (Code, &'static str) {
    match errno {
        Errno::EXDEV | Errno::ELOOP => {
            (Code::PathDenied, "the path leads through a link or outside of the space")
        }
        Errno::EACCES | Errno::EPERM | Errno::EROFS => {
            (Code::PermissionDenied, "the file's permissions or the sandbox do not allow it")
        }
        Errno::ENOENT => (Code::FileNotFound, "there is no such file or folder"),
        Errno::ENOTDIR => (Code::NotAFolder, "there is a file where a folder is needed"),
        Errno::EISDIR | Errno::ENOTEMPTY => (Code::NotAFile, "there is a folder where a file is needed"),
        Errno::ENXIO | Errno::ENODEV => (Code::NotAFile, "the path is a pipe, socket or device"),
        Errno::EEXIST => (Code::FileExists, "the path already exists"),
        Errno::ENOSPC | Errno::EDQUOT => (Code::DiskFull, "the disk is full"),
        Errno::EFBIG => (Code::FileLimit, "the file would exceed its size limit"),
        Errno::EMFILE | Errno::ENFILE => (Code::FileLimit, "too many files are open"),
        Errno::ENAMETOOLONG => (Code::ParamsInvalid, "a name is too long for this file system"),
        Errno::EINTR | Errno::EAGAIN | Errno::EBUSY | Errno::ETXTBSY => {
            (Code::ToolBusy, "the file is busy; try again later")
        }
        Errno::EOPNOTSUPP => (
            Code::ToolFailed,
            "this file system cannot rename without replacing, so effectd cannot guarantee the \
             preconditions; put the space on another one (ext4, xfs, btrfs, tmpfs)",
        ),
        other => (Code::ToolFailed, other.desc()),
    }
}

impl From<FileProblem> for Failure {
    fn from(problem: FileProblem) -> Failure {
        let (code, message) = match problem {
            FileProblem::Kernel { step, errno } => {
                let (code, why) = of_kernel(errno);
                (code, format!("could not {step}: {why} ({errno:?})"))
            }
            FileProblem::NotAFile => (
                Code::NotAFile,
                "the path is a folder, a link, a pipe or a device; name a file".to_owned(),
            ),
            FileProblem::Folder => (
                Code::NotAFile,
                "the path is a folder, but files are read, copied and deleted one by one, so that each can \
                 be undone; files.list with recursive lists them, and files.move moves a whole folder"
                    .to_owned(),
            ),
            FileProblem::TooLarge { bytes_max } => (
                Code::FileLimit,
                format!("the file is larger than the {bytes_max} bytes that this tool accepts"),
            ),
            FileProblem::NotText => (
                Code::NotText,
                "the file is not UTF-8 text; this tool is for text only".to_owned(),
            ),
            FileProblem::Changed => (
                Code::StateChanged,
                "the file is not as the action expects; read it again and decide again".to_owned(),
            ),
            FileProblem::LeftAside => (
                Code::StateChanged,
                "the file was changed twice at the same time; its previous content is beside it, in the file .effectd-*.aside"
                    .to_owned(),
            ),
        };
        Failure::new(code, Phase::Dispatch, message)
    }
}
