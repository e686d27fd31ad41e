//! Reads a policy directory. No other file of the crate does I/O.
//!
//! After reading all files, `load` compares their metadata: if a file changed meanwhile, the policy could be half of an edit,
//! so `load` fails with an error that can be retried.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Location, PolicyError};
use crate::limits::{POLICY_FILE_BYTES_MAX, POLICY_FILES_MAX};
use crate::source::{POLICY_FILE, Source, SourceFile, line_of};

#[derive(Debug, Clone, Copy)]
pub struct PolicyDir;

/// The metadata of a directory's policy files. It changes when a file is added, removed or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirStamp(Vec<(String, Stamp)>);

/// Device, inode, size, and time of the last change.
type Stamp = (u64, u64, u64, i64, i64);

impl PolicyDir {
    /// Reads `policy.toml` and all `*.cedar` of the directory. Fails if the directory or a file is a symlink, or anybody but
    /// root and the daemon's user can write it.
    pub fn load(path: impl AsRef<Path>, daemon: u32) -> Result<Source, PolicyError> {
        let dir = path.as_ref();
        let own = fs::symlink_metadata(dir).map_err(|source| unreadable(dir, source))?;
        check_writers(dir, &own, daemon)?;
        let names = list(dir)?;
        if !names.iter().any(|name| name == POLICY_FILE) {
            return Err(PolicyError::Missing { path: dir.to_owned() });
        }
        let mut read = Vec::new();
        for name in names {
            let (text, stamp) = read_file(&dir.join(&name), &name, daemon)?;
            read.push((SourceFile { name, text }, stamp));
        }
        check_unchanged(dir, &read)?;
        Source::of_files(read.into_iter().map(|(file, _)| file).collect())
    }

    /// The current metadata, which shows whether the policy changed, without reading its files.
    pub fn stamp(path: impl AsRef<Path>) -> Result<DirStamp, PolicyError> {
        let dir = path.as_ref();
        let stamped = list(dir)?.into_iter().map(|name| {
            let path = dir.join(&name);
            let metadata = fs::metadata(&path).map_err(|source| unreadable(&path, source))?;
            Ok((name, stamp(&metadata)))
        });
        stamped.collect::<Result<_, _>>().map(DirStamp)
    }
}

/// The names of the policy's files, sorted.
fn list(dir: &Path) -> Result<Vec<String>, PolicyError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(|source| unreadable(dir, source))? {
        let entry = entry.map_err(|source| unreadable(dir, source))?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let hidden = name.starts_with('.');
        if name == POLICY_FILE || (name.ends_with(".cedar") && !hidden) {
            names.push(name);
        }
        if names.len() > POLICY_FILES_MAX {
            return Err(PolicyError::TooLarge {
                file: dir.display().to_string(),
                what: "the number of files",
                actual: names.len(),
                max: POLICY_FILES_MAX,
            });
        }
    }
    names.sort();
    Ok(names)
}

fn read_file(path: &Path, name: &str, daemon: u32) -> Result<(String, Stamp), PolicyError> {
    // Without O_NONBLOCK, opening a named pipe would block for ever.
    let file: File = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOFOLLOW)
        .open(path)
        .map_err(|source| match source.raw_os_error() {
            Some(libc::ELOOP) => is_link(path),
            _ => unreadable(path, source),
        })?;
    let metadata = file.metadata().map_err(|source| unreadable(path, source))?;
    if !metadata.is_file() {
        return Err(PolicyError::Unsafe {
            path: path.to_owned(),
            why: "a policy must consist of regular files".to_owned(),
        });
    }
    check_writers(path, &metadata, daemon)?;
    let mut bytes = Vec::new();
    let bound = POLICY_FILE_BYTES_MAX as u64 + 1;
    file.take(bound).read_to_end(&mut bytes).map_err(|source| unreadable(path, source))?;
    if bytes.len() > POLICY_FILE_BYTES_MAX {
        let size = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
        return Err(PolicyError::TooLarge {
            file: name.to_owned(),
            what: "the size in bytes",
            actual: size.max(bytes.len()),
            max: POLICY_FILE_BYTES_MAX,
        });
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
        PolicyError::NotText { at: Location::new(name, line_of(&valid, valid.len())) }
    })?;
    Ok((text, stamp(&metadata)))
}

/// Refuses symlinks, and paths that anybody but root and the daemon's user can write.
fn check_writers(path: &Path, metadata: &Metadata, daemon: u32) -> Result<(), PolicyError> {
    if metadata.is_symlink() {
        return Err(is_link(path));
    }
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if [0, daemon].contains(&owner) && mode & 0o022 == 0 {
        return Ok(());
    }
    Err(PolicyError::Unsafe {
        path: path.to_owned(),
        why: format!(
            "others could change the policy here (uid {owner}, mode {mode:04o}); `chown` it to root or to uid {daemon}, and `chmod go-w` it"
        ),
    })
}

fn is_link(path: &Path) -> PolicyError {
    PolicyError::Unsafe {
        path: path.to_owned(),
        why: "this is a symbolic link, but a policy must consist of regular files; put the file itself here"
            .to_owned(),
    }
}

fn check_unchanged(dir: &Path, read: &[(SourceFile, Stamp)]) -> Result<(), PolicyError> {
    let names: Vec<&str> = read.iter().map(|(file, _)| file.name.as_str()).collect();
    if list(dir)? != names {
        return Err(PolicyError::Changing { path: dir.to_owned() });
    }
    for (file, before) in read {
        let path: PathBuf = dir.join(&file.name);
        let now = fs::metadata(&path).map_err(|source| unreadable(&path, source))?;
        if stamp(&now) != *before {
            return Err(PolicyError::Changing { path });
        }
    }
    Ok(())
}

fn stamp(metadata: &Metadata) -> Stamp {
    (metadata.dev(), metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec())
}

fn unreadable(path: &Path, source: io::Error) -> PolicyError {
    PolicyError::Unreadable { path: path.to_owned(), source }
}
