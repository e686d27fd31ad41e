//! Inspection and reading: what is at a path, and its content.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};

use effectd_contracts::{Digest, FileState, PathSnapshot, PathState};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, SFlag, fstat};
use sha2::{Digest as _, Sha256};

use super::{FileProblem, Workspace, cached};
use crate::limits::INSPECT_BYTES_MAX;
use crate::spacepath::SpacePath;

/// How much of a large file one read takes.
const PIECE_BYTES: u64 = 262_144;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub kind: FileKind,
    /// The size of a file, otherwise 0.
    pub bytes: u64,
    /// The permissions.
    pub mode: u32,
    /// The last change of the content, in seconds since 1970.
    pub modified_s: i64,
    /// The last change of anything about the entry, in seconds and nanoseconds. Nobody can set it back.
    pub(super) changed: (i64, i64),
    /// The number of its names (hard links).
    pub(super) names: u64,
    pub(super) identity: (u64, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    File,
    Folder,
    /// A symbolic link, which is never followed.
    Link,
    /// A pipe, socket or device, which is never opened.
    Special,
}

impl FileKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            FileKind::File => "file",
            FileKind::Folder => "folder",
            FileKind::Link => "link",
            FileKind::Special => "special",
        }
    }
}

impl Stat {
    pub(super) fn of(stat: &FileStat) -> Self {
        let format = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        let kind = match format {
            SFlag::S_IFREG => FileKind::File,
            SFlag::S_IFDIR => FileKind::Folder,
            SFlag::S_IFLNK => FileKind::Link,
            _ => FileKind::Special,
        };
        Self {
            kind,
            bytes: if kind == FileKind::File { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 },
            mode: stat.st_mode & 0o777,
            modified_s: stat.st_mtime,
            changed: (stat.st_ctime, stat.st_ctime_nsec),
            names: stat.st_nlink,
            identity: (stat.st_dev, stat.st_ino),
        }
    }

    /// The state of the path, without the digest of a file.
    pub(super) fn standing(&self) -> Result<PathState, FileProblem> {
        match self.kind {
            FileKind::Folder => Ok(PathState::Folder),
            FileKind::Link | FileKind::Special => Ok(PathState::Other),
            FileKind::File => {
                FileProblem::check_size(self.bytes, INSPECT_BYTES_MAX)?;
                let digest = String::new();
                Ok(PathState::File(FileState { digest, bytes: self.bytes, mode: self.mode }))
            }
        }
    }

    /// Fails unless the entry is a file.
    pub(super) fn check_file(&self, at: impl Fn(Errno) -> FileProblem) -> Result<(), FileProblem> {
        match self.kind {
            FileKind::File => Ok(()),
            FileKind::Link => Err(at(Errno::ELOOP)),
            FileKind::Folder => Err(FileProblem::Folder),
            FileKind::Special => Err(FileProblem::NotAFile),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    pub bytes: Vec<u8>,
    pub stat: Stat,
}

impl Content {
    /// The content as text. A file with a NUL is not text.
    pub fn text(&self) -> Result<&str, FileProblem> {
        let text = std::str::from_utf8(&self.bytes).map_err(|_| FileProblem::NotText)?;
        if text.contains('\0') {
            return Err(FileProblem::NotText);
        }
        Ok(text)
    }

    pub fn digest(&self) -> Digest {
        Digest::of(&self.bytes)
    }
}

impl Workspace<'_> {
    /// The stat of a path, without following or opening it; `None` if there is nothing.
    pub fn stat(&self, path: &SpacePath) -> Result<Option<Stat>, FileProblem> {
        Ok(self.handle(path)?.map(|(_, stat)| stat))
    }

    /// Like [`Workspace::stat`], with a handle that can neither read nor write.
    fn handle(&self, path: &SpacePath) -> Result<Option<(OwnedFd, Stat)>, FileProblem> {
        match self.open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW) {
            Ok(handle) => {
                let stat = stat_of(&handle)?;
                Ok(Some((handle, stat)))
            }
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(FileProblem::at("inspect the file")(errno)),
        }
    }

    /// Whether the file at a path has this length.
    pub(crate) fn has_length(&self, path: &SpacePath, bytes: usize) -> Result<bool, FileProblem> {
        Ok(self.stat(path)?.is_some_and(|stat| stat.bytes == bytes as u64))
    }

    /// Opens a file for reading. A pipe or device is recognised before it is opened. If one replaces the file meanwhile,
    /// opening does not block, and the identity of what was opened differs.
    pub fn open_file(&self, path: &SpacePath) -> Result<(File, Stat), FileProblem> {
        let at = FileProblem::at("open the file");
        let handle = self.open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW).map_err(&at)?;
        let seen = stat_of(&handle)?;
        seen.check_file(at)?;
        self.open_seen(path, &seen)
    }

    /// Opens a path at which a file was seen.
    fn open_seen(&self, path: &SpacePath, seen: &Stat) -> Result<(File, Stat), FileProblem> {
        let at = FileProblem::at("open the file");
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let opened = self.open(path, flags).map_err(&at)?;
        let stat = stat_of(&opened)?;
        if stat.identity != seen.identity {
            return Err(FileProblem::Changed);
        }
        Ok((File::from(opened), stat))
    }

    /// Reads a whole file of at most this length. A large sparse file is refused before it is read.
    pub fn read(&self, path: &SpacePath, bytes_max: u64) -> Result<Content, FileProblem> {
        let (file, stat) = self.open_file(path)?;
        FileProblem::check_size(stat.bytes, bytes_max)?;
        let bytes = read_up_to(file, bytes_max + 1, stat.bytes)?;
        FileProblem::check_size(bytes.len() as u64, bytes_max)?;
        let content = Content { bytes, stat };
        self.check_read(path, || content.digest())?;
        Ok(content)
    }

    /// Reads a part of a file.
    pub fn read_piece(&self, path: &SpacePath, from: u64, bytes_max: u64) -> Result<Content, FileProblem> {
        let (mut file, stat) = self.open_file(path)?;
        file.seek(SeekFrom::Start(from)).map_err(FileProblem::io("read the file"))?;
        let bytes = read_up_to(file, bytes_max, stat.bytes.saturating_sub(from))?;
        Ok(Content { bytes, stat })
    }

    /// The state of these paths and of the missing folders above them: everything that an action may change if it creates or
    /// replaces the paths. Files come with their content while all contents together are not more than `keep_bytes_max`.
    pub fn inspect(&self, paths: &[SpacePath], keep_bytes_max: u64) -> Result<Vec<Inspected>, FileProblem> {
        let mut left = keep_bytes_max;
        let mut all: Vec<Inspected> = Vec::new();
        for path in paths {
            let mut above = path.parent();
            while let Some(folder) = above.filter(|folder| folder.parent().is_some()) {
                if self.stat(&folder)?.is_some() {
                    break;
                }
                push(&mut all, &folder, PathState::Absent, None);
                above = folder.parent();
            }
            let (standing, content) = self.standing(path, left)?;
            left -= content.as_ref().map_or(0, |content| content.len() as u64);
            push(&mut all, path, standing, content);
        }
        Ok(all)
    }

    /// The state of a path, with the content of a file of at most this length.
    pub fn standing(
        &self,
        path: &SpacePath,
        keep_bytes_max: u64,
    ) -> Result<(PathState, Option<Vec<u8>>), FileProblem> {
        // The handle is held until the file is open: its inode number cannot be reused meanwhile.
        let Some((_handle, seen)) = self.handle(path)? else {
            return Ok((PathState::Absent, None));
        };
        match seen.kind {
            FileKind::Folder => return Ok((PathState::Folder, None)),
            FileKind::Link | FileKind::Special => return Ok((PathState::Other, None)),
            FileKind::File => {}
        }
        let (mut file, stat) = self.open_seen(path, &seen)?;
        FileProblem::check_size(stat.bytes, INSPECT_BYTES_MAX)?;
        let mut content = if self.cached {
            cached::read(&file, stat.bytes)?
        } else {
            read_up_to(&mut file, keep_bytes_max + 1, stat.bytes)?
        };
        let mut hasher = Sha256::new_with_prefix(&content);
        let mut bytes = content.len() as u64;
        let kept = bytes <= keep_bytes_max;
        // A cached read returns the whole file.
        while !self.cached && bytes > keep_bytes_max && bytes <= INSPECT_BYTES_MAX {
            content = read_up_to(&mut file, PIECE_BYTES, stat.bytes.saturating_sub(bytes))?;
            if content.is_empty() {
                break;
            }
            hasher.update(&content);
            bytes += content.len() as u64;
        }
        FileProblem::check_size(bytes, INSPECT_BYTES_MAX)?;
        let state = FileState {
            digest: Digest::from_bytes(hasher.finalize().into()).to_string(),
            bytes,
            mode: stat.mode,
        };
        Ok((PathState::File(state), kept.then_some(content)))
    }
}

/// The state of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    pub seen: PathSnapshot,
    /// The content of a file that is small enough.
    pub content: Option<Vec<u8>>,
}

/// Adds a path unless it is listed: two files may have the same folder.
fn push(all: &mut Vec<Inspected>, path: &SpacePath, standing: PathState, content: Option<Vec<u8>>) {
    let path = path.to_string();
    if !all.iter().any(|known| known.seen.path == path) {
        let seen = PathSnapshot::new(path, standing);
        all.push(Inspected { seen, content });
    }
}

fn stat_of(handle: &OwnedFd) -> Result<Stat, FileProblem> {
    let stat = fstat(handle.as_fd()).map_err(FileProblem::at("inspect the file"))?;
    Ok(Stat::of(&stat))
}

/// Reads to the end, or up to `bytes_max`. A read of the `likely` length takes one allocation.
fn read_up_to(file: impl Read, bytes_max: u64, likely: u64) -> Result<Vec<u8>, FileProblem> {
    let room = likely.min(bytes_max).min(PIECE_BYTES) as usize + 1;
    let mut bytes = Vec::with_capacity(room);
    file.take(bytes_max).read_to_end(&mut bytes).map_err(FileProblem::io("read the file"))?;
    Ok(bytes)
}
