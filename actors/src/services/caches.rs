//! The caches of named commands: folders in the state directory, one for each space and path, that are mounted into the space
//! while a command runs.
//!
//! A cache has no pre-images and no undo, and no other space sees it. Clearing it loses only time.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};

use effectd_contracts::{Code, Failure, Phase, SpaceId};
use effectd_sandbox::SpaceRoot;
use serde::Serialize;

use crate::limits::{CACHE_BYTES_MAX, CACHE_FILES_MAX};

/// A cache and its size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheSize {
    pub space: String,
    pub path: String,
    pub bytes: u64,
    pub files: u64,
}

/// All caches of a state directory.
#[derive(Debug, Clone)]
pub struct Caches {
    base: PathBuf,
}

impl Caches {
    /// The caches in this folder, which need not exist yet.
    pub fn new(base: PathBuf) -> Self {
        Self { base }
    }

    /// Opens the cache of a path of a space, and makes it if it is missing. Refuses one that is too large: then it must be
    /// cleared.
    pub(crate) fn open(&self, space: &SpaceId, path: &Path, owner: (u32, u32)) -> Result<SpaceRoot, Failure> {
        let folder = self.base.join(encoded(space.as_str())).join(encoded(&path.to_string_lossy()));
        let failed = |error: io::Error| {
            let message = format!("the cache {} cannot be used: {error}", folder.display());
            Failure::new(Code::SandboxUnavailable, Phase::Sandbox, message)
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed)?;
        let is_root = fs::metadata(&self.base).map_err(failed)?.uid() == 0;
        let made = fs::metadata(&folder).map_err(failed)?;
        // Only root runs commands as another user, the owner of the space.
        if is_root && (made.uid(), made.gid()) != owner {
            chown(&folder, Some(owner.0), Some(owner.1)).map_err(failed)?;
        }
        let (bytes, files) = size(&folder);
        if bytes > CACHE_BYTES_MAX || files > CACHE_FILES_MAX {
            let message = format!(
                "the cache {} of {space} holds {bytes} bytes in {files} files, more than {CACHE_BYTES_MAX} or \
                 {CACHE_FILES_MAX}; an operator empties it with `effectd caches clear {space}`",
                path.display()
            );
            return Err(Failure::new(Code::FileLimit, Phase::Sandbox, message));
        }
        SpaceRoot::open(&folder).map_err(|error| error.failure())
    }

    /// All caches, by space and path.
    pub fn list(&self) -> io::Result<Vec<CacheSize>> {
        let mut all = Vec::new();
        for space in folders(&self.base)? {
            for cache in folders(&space)? {
                let (bytes, files) = size(&cache);
                all.push(CacheSize { space: decoded(&space), path: decoded(&cache), bytes, files });
            }
        }
        all.sort_by(|one, other| (&one.space, &one.path).cmp(&(&other.space, &other.path)));
        Ok(all)
    }

    /// Removes all caches of a space; `false` if it has none. A command that runs now may fail.
    pub fn clear(&self, space: &str) -> io::Result<bool> {
        match fs::remove_dir_all(self.base.join(encoded(space))) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn folders(of: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(of) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The bytes and files in a folder; counting stops beyond the largest number of files. What cannot be read is not counted.
fn size(folder: &Path) -> (u64, u64) {
    let (mut bytes, mut files, mut open) = (0, 0, vec![folder.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            // The metadata of the entry itself, not of what a link leads to.
            let Ok(metadata) = entry.metadata() else { continue };
            files += 1;
            bytes += metadata.blocks() * 512;
            if metadata.is_dir() {
                open.push(entry.path());
            }
            if files > CACHE_FILES_MAX {
                return (bytes, files);
            }
        }
    }
    (bytes, files)
}

/// A text as one path component, with every other byte in percent encoding.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let encode = |byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}

fn decoded(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut pieces = name.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let (code, rest) = piece.split_at_checked(2).unwrap_or((piece, ""));
        bytes.extend(u8::from_str_radix(code, 16));
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn caches_are_apart_by_space_and_path_and_can_be_cleared() {
        let place = tempfile::tempdir().unwrap();
        let base = place.path().canonicalize().unwrap().join("caches");
        let caches = Caches::new(base.clone());
        assert_eq!(caches.list().unwrap(), []);
        let owner = fs::metadata(place.path()).map(|it| (it.uid(), it.gid())).unwrap();
        let open = |space: &str, path: &str| {
            caches.open(&SpaceId::new(space).unwrap(), Path::new(path), owner).unwrap()
        };
        let first = open("shared:a", "target");
        fs::write(first.path().join("file"), vec![1; 5_000]).unwrap();
        assert_eq!(open("shared:a", "target").id(), first.id());
        for other in [open("shared:b", "target"), open("shared:a", "a/target"), open("shared:a", "..")] {
            assert!(other.path().starts_with(&base) && other.id() != first.id());
        }
        let listed = caches.list().unwrap();
        let named: Vec<_> = listed.iter().map(|one| (&*one.space, &*one.path, one.files)).collect();
        let expected = [("shared:a", "..", 0), ("shared:a", "a/target", 0), ("shared:a", "target", 1)];
        assert_eq!(named, [expected[0], expected[1], expected[2], ("shared:b", "target", 0)]);
        assert!(listed[2].bytes >= 5_000);
        assert!(caches.clear("shared:a").unwrap() && !caches.clear("shared:a").unwrap());
        assert_eq!(caches.list().unwrap().len(), 1);
    }
}
