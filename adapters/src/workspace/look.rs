//! Looking: what stands at a path, and what is in it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};

use effectd_contracts::{Digest, FileState, Seen, Standing};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, SFlag, fstat};
use sha2::{Digest as _, Sha256};

use super::{FileProblem, Workspace, cached};
use crate::limits::LOOK_BYTES_MAX;
use crate::spacepath::SpacePath;

/// How much of a large file is read at a time.
const PIECE_BYTES: u64 = 262_144;

/// What stands at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
    pub kind: FileKind,
    /// Its size, for a file.
    pub bytes: u64,
    /// Its permissions.
    pub mode: u32,
    /// When it was changed, in seconds since 1970.
    pub modified_s: i64,
    /// When anything about it was changed, in seconds and nanoseconds. Nobody can set this one back.
    pub(super) changed: (i64, i64),
    identity: (u64, u64),
}

/// What a path can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link, which is never followed.
    Link,
    /// A pipe, socket or device, which is never opened.
    Special,
}

impl FileKind {
    /// One word.
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
            bytes: if kind == FileKind::File {
                u64::try_from(stat.st_size).unwrap_or(0)
            } else {
                0
            },
            mode: stat.st_mode & 0o777,
            modified_s: stat.st_mtime,
            changed: (stat.st_ctime, stat.st_ctime_nsec),
            identity: (stat.st_dev, stat.st_ino),
        }
    }
}

/// What is in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// What it is.
    pub stat: Stat,
}

impl Content {
    /// The content as text; files with a NUL in them are not text either.
    pub fn text(&self) -> Result<&str, FileProblem> {
        let text = std::str::from_utf8(&self.bytes).map_err(|_| FileProblem::NotText)?;
        if text.contains('\0') {
            return Err(FileProblem::NotText);
        }
        Ok(text)
    }

    /// The digest of the content.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.bytes)
    }
}

impl Workspace<'_> {
    /// What stands at a path, without following or opening it; `None` if nothing does.
    pub fn stat(&self, path: &SpacePath) -> Result<Option<Stat>, FileProblem> {
        Ok(self.handle(path)?.map(|(_, stat)| stat))
    }

    /// The same, with a handle of it through which nothing can be read or changed.
    fn handle(&self, path: &SpacePath) -> Result<Option<(OwnedFd, Stat)>, FileProblem> {
        match self.open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW) {
            Ok(handle) => {
                let stat = stat_of(&handle)?;
                Ok(Some((handle, stat)))
            }
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(FileProblem::Kernel {
                step: "look at the file",
                errno,
            }),
        }
    }

    /// Opens a file for reading, if it is one. A pipe or device is recognised before it is opened; should one take the
    /// file's place meanwhile, opening does not block and what was opened is not what was recognised.
    pub fn open_file(&self, path: &SpacePath) -> Result<(File, Stat), FileProblem> {
        let at = FileProblem::at("open the file");
        let handle = self.open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW).map_err(&at)?;
        let seen = stat_of(&handle)?;
        match seen.kind {
            FileKind::File => {}
            FileKind::Link => return Err(at(Errno::ELOOP)),
            FileKind::Folder => return Err(FileProblem::Folder),
            FileKind::Special => return Err(FileProblem::NotAFile),
        }
        self.open_seen(path, &seen)
    }

    /// Opens a file that was recognised as one.
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

    /// Reads a whole file, unless it is larger than this. A sparse giant is refused by its size, before it is read.
    pub fn read(&self, path: &SpacePath, bytes_max: u64) -> Result<Content, FileProblem> {
        let (file, stat) = self.open_file(path)?;
        if stat.bytes > bytes_max {
            return Err(FileProblem::TooLarge { bytes_max });
        }
        let bytes = read_up_to(file, bytes_max + 1, stat.bytes)?;
        if bytes.len() as u64 > bytes_max {
            return Err(FileProblem::TooLarge { bytes_max });
        }
        let content = Content { bytes, stat };
        self.check_read(path, || content.digest())?;
        Ok(content)
    }

    /// Reads a piece of a file.
    pub fn read_piece(&self, path: &SpacePath, from: u64, bytes_max: u64) -> Result<Content, FileProblem> {
        let (mut file, stat) = self.open_file(path)?;
        file.seek(SeekFrom::Start(from))
            .map_err(FileProblem::io("read the file"))?;
        let bytes = read_up_to(file, bytes_max, stat.bytes.saturating_sub(from))?;
        Ok(Content { bytes, stat })
    }

    /// What stands at these paths, and at the folders above them that are not there yet: all that an action which creates
    /// or replaces them may change. Files come with their content as long as all of it together is not more than this.
    pub fn look(&self, paths: &[SpacePath], keep_bytes_max: u64) -> Result<Vec<Look>, FileProblem> {
        let mut left = keep_bytes_max;
        let mut all: Vec<Look> = Vec::new();
        for path in paths {
            let mut above = path.parent();
            while let Some(folder) = above.filter(|folder| folder.parent().is_some()) {
                if self.stat(&folder)?.is_some() {
                    break;
                }
                push(&mut all, &folder, Standing::Absent, None);
                above = folder.parent();
            }
            let (standing, content) = self.standing(path, left)?;
            left -= content.as_ref().map_or(0, |content| content.len() as u64);
            push(&mut all, path, standing, content);
        }
        Ok(all)
    }

    /// What stands at a path, with a file's content if it is not larger than this.
    pub fn standing(
        &self,
        path: &SpacePath,
        keep_bytes_max: u64,
    ) -> Result<(Standing, Option<Vec<u8>>), FileProblem> {
        // Held while it is opened again: its number cannot be another file's meanwhile.
        let Some((_handle, seen)) = self.handle(path)? else {
            return Ok((Standing::Absent, None));
        };
        match seen.kind {
            FileKind::Folder => return Ok((Standing::Folder, None)),
            FileKind::Link | FileKind::Special => return Ok((Standing::Other, None)),
            FileKind::File => {}
        }
        let (mut file, stat) = self.open_seen(path, &seen)?;
        let too_large = FileProblem::TooLarge {
            bytes_max: LOOK_BYTES_MAX,
        };
        if stat.bytes > LOOK_BYTES_MAX {
            return Err(too_large);
        }
        let mut content = if self.cached {
            cached::read(&file, stat.bytes)?
        } else {
            read_up_to(&mut file, keep_bytes_max + 1, stat.bytes)?
        };
        let mut hasher = Sha256::new_with_prefix(&content);
        let mut bytes = content.len() as u64;
        let kept = bytes <= keep_bytes_max;
        // What was in memory has been read whole.
        while !self.cached && bytes > keep_bytes_max && bytes <= LOOK_BYTES_MAX {
            content = read_up_to(&mut file, PIECE_BYTES, stat.bytes.saturating_sub(bytes))?;
            if content.is_empty() {
                break;
            }
            hasher.update(&content);
            bytes += content.len() as u64;
        }
        if bytes > LOOK_BYTES_MAX {
            return Err(too_large);
        }
        let state = FileState {
            digest: Digest::from_bytes(hasher.finalize().into()).to_string(),
            bytes,
            mode: stat.mode,
        };
        Ok((Standing::File(state), kept.then_some(content)))
    }
}

/// What stands at a path, and its content if that was to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Where, and what.
    pub seen: Seen,
    /// The content of a file that is small enough.
    pub content: Option<Vec<u8>>,
}

/// The same path may be named twice, for instance as the folder of two files.
fn push(all: &mut Vec<Look>, path: &SpacePath, standing: Standing, content: Option<Vec<u8>>) {
    let path = path.to_string();
    if !all.iter().any(|look| look.seen.path == path) {
        let seen = Seen::new(path, standing);
        all.push(Look { seen, content });
    }
}

fn stat_of(handle: &OwnedFd) -> Result<Stat, FileProblem> {
    let stat = fstat(handle.as_fd()).map_err(FileProblem::at("look at the file"))?;
    Ok(Stat::of(&stat))
}

/// Reads to the end, or as much as this. How much there is likely to be is read at once.
fn read_up_to(file: impl Read, bytes_max: u64, likely: u64) -> Result<Vec<u8>, FileProblem> {
    let room = likely.min(bytes_max).min(PIECE_BYTES) as usize + 1;
    let mut bytes = Vec::with_capacity(room);
    file.take(bytes_max)
        .read_to_end(&mut bytes)
        .map_err(FileProblem::io("read the file"))?;
    Ok(bytes)
}
