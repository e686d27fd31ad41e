//! The caches of named commands: folders in the state directory that are mounted into the space while a command runs.
//!
//! Each space, command and path has its own. Another command could execute what it finds in its cache, with other rights, so commands
//! share none, and neither do two versions of a command with different rights. A cache has no pre-images and no undo. Clearing it
//! loses only time.
#![expect(clippy::disallowed_methods, reason = "makes and removes the folders of caches")]

use std::cmp::Reverse;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use effectd_contracts::{Code, Digest, Failure, Phase, SpaceId};
use effectd_sandbox::limits::CACHE_BYTES_MAX;
use effectd_sandbox::{CacheUsage, SpaceRoot, View, disk_room, empty_cache};
use parking_lot::Mutex;
use serde::Serialize;

/// Longest name of a folder; most file systems take 255 bytes.
const NAME_BYTES_MAX: usize = 200;
/// What an inode counts beside the bytes of its file when the largest cache is looked for: a disk may also run out of them.
const INODE_BYTES: u64 = 4_096;

/// A cache and its size, as far as it can be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheSize {
    pub space: String,
    pub command: String,
    pub path: String,
    pub bytes: u64,
    pub files: u64,
}

/// All caches of a state directory.
#[derive(Debug, Clone)]
pub struct Caches {
    base: PathBuf,
    free_bytes_min: u64,
    /// Held while caches are removed: two at a time would remove more than needed.
    removing: Arc<Mutex<()>>,
}

impl Caches {
    /// The caches in this folder, which need not exist yet.
    pub fn new(base: PathBuf) -> Self {
        Self { base, free_bytes_min: 0, removing: Arc::default() }
    }

    /// Keeps this free on the disk of the state directory: with less, commands end and caches are removed.
    pub fn keeping_free(self, free_bytes_min: u64) -> Self {
        Self { free_bytes_min, ..self }
    }

    pub(crate) fn reserve(&self, view: &mut View) {
        view.keep_free(self.state(), self.free_bytes_min);
    }

    fn state(&self) -> &Path {
        self.base.parent().unwrap_or(&self.base)
    }

    /// Removes caches, the largest first, until the reserve is free; `false` if that is not enough. A command that runs now may fail.
    pub fn make_room(&self) -> bool {
        self.remove_until(|| disk_room(self.state(), self.free_bytes_min).is_some())
    }

    fn remove_until(&self, has_room: impl Fn() -> bool) -> bool {
        if has_room() {
            return true;
        }
        let _removing = self.removing.lock();
        let mut all = self.found().unwrap_or_else(|error| {
            tracing::warn!(%error, "the caches cannot be listed");
            Vec::new()
        });
        // One that cannot be counted may hide anything.
        all.sort_by_key(|(_, one, is_whole)| Reverse((!is_whole, one.bytes + one.files * INODE_BYTES)));
        for (folder, cache, _) in all {
            if has_room() {
                return true;
            }
            let CacheSize { space, command, path, bytes, files } = &cache;
            tracing::warn!(%space, command, path, bytes, files, "the disk is almost full, and a cache is removed");
            if let Err(error) = remove(&folder) {
                tracing::warn!(%space, command, path, %error, "the cache cannot be removed");
            }
        }
        has_room()
    }

    /// Opens the cache of a path of a command with these rights in a space, and makes it if it is missing. Empties one that is too
    /// large or cannot be read.
    pub(crate) fn open(
        &self,
        (space, command, rights, path): (&SpaceId, &str, &str, &Path),
        owner: (u32, u32),
    ) -> Result<SpaceRoot, Failure> {
        let of_command = self.of_space(space).join(format!("{}~{rights}", encoded(command)));
        let folder = of_command.join(encoded(&path.to_string_lossy()));
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
        let cache = SpaceRoot::open(&folder).map_err(|error| error.failure())?;
        let usage = CacheUsage::of(&cache);
        if usage.exceeds(CACHE_BYTES_MAX) {
            let (path, CacheUsage { bytes, files, .. }) = (path.display(), usage);
            tracing::warn!(%space, command, %path, bytes, files, "a cache is over its limit and is emptied");
            empty_cache(&cache).map_err(failed)?;
        }
        Ok(cache)
    }

    /// All caches, by space, command and path.
    pub fn list(&self) -> io::Result<Vec<CacheSize>> {
        let mut all: Vec<_> = self.found()?.into_iter().map(|(_, one, _)| one).collect();
        let place = |one: &CacheSize| (one.space.clone(), one.command.clone(), one.path.clone());
        all.sort_by_cached_key(place);
        Ok(all)
    }

    /// Removes all caches of a space; `false` if it has none. A command that runs now may fail.
    pub fn clear(&self, space: &SpaceId) -> io::Result<bool> {
        remove(&self.of_space(space))
    }

    /// All caches: the folder, its size, and whether everything in it was counted.
    fn found(&self) -> io::Result<Vec<(PathBuf, CacheSize, bool)>> {
        let mut all = Vec::new();
        for space in folders(&self.base)? {
            for command in folders(&space)? {
                for folder in folders(&command)? {
                    let Ok(Some(cache)) = SpaceRoot::find(&folder) else { continue };
                    let CacheUsage { bytes, files, is_whole } = CacheUsage::of(&cache);
                    let [space, command, path] = [&space, &command, &folder].map(|part| decoded(part));
                    let command = command.rsplit_once('~').map_or(&*command, |(name, _)| name).to_owned();
                    all.push((folder, CacheSize { space, command, path, bytes, files }, is_whole));
                }
            }
        }
        Ok(all)
    }

    fn of_space(&self, space: &SpaceId) -> PathBuf {
        self.base.join(encoded(space.as_str()))
    }
}

fn remove(folder: &Path) -> io::Result<bool> {
    let Some(found) = SpaceRoot::find(folder).map_err(io::Error::other)? else {
        return Ok(false);
    };
    empty_cache(&found)?;
    fs::remove_dir(folder)?;
    Ok(true)
}

fn folders(of: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(of) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// A text as one path component: letters and digits in clear, other bytes in percent encoding, the end of a long one as a digest.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let encode = |byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    let encoded: String = text.bytes().map(encode).collect();
    if encoded.len() <= NAME_BYTES_MAX {
        return encoded;
    }
    let digest = Digest::of(text.as_bytes()).hex();
    let begin = encoded.chars().take(NAME_BYTES_MAX - 1 - digest.len());
    format!("{}~{digest}", begin.collect::<String>())
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
    fn each_space_command_right_and_path_has_its_own_cache() {
        let place = tempfile::tempdir().unwrap();
        let base = place.path().canonicalize().unwrap().join("caches");
        let caches = Caches::new(base.clone());
        assert_eq!(caches.list().unwrap(), []);
        let owner = fs::metadata(place.path()).map(|it| (it.uid(), it.gid())).unwrap();
        let space = |name: &str| SpaceId::new(name).unwrap();
        let open = |of: &str, command: &str, path: &str| {
            let (command, rights) = command.split_once(' ').unwrap_or((command, "0123"));
            caches.open((&space(of), command, rights, Path::new(path)), owner).unwrap()
        };
        let first = open("shared:a", "test", "target");
        fs::write(first.path().join("file"), vec![1; 5_000]).unwrap();
        assert_eq!(open("shared:a", "test", "target").id(), first.id());
        let others = [
            ("shared:b", "test", "target"),
            ("shared:a", "fmt~1 4567", "target"),
            ("shared:a", "test", ".."),
        ];
        for (space, command, path) in others {
            let other = open(space, command, path);
            assert!(other.path().starts_with(&base) && other.id() != first.id(), "{space} {command} {path}");
        }
        let listed = caches.list().unwrap();
        let named: Vec<_> =
            listed.iter().map(|one| (&*one.space, &*one.command, &*one.path, one.files)).collect();
        let (a, b) = ("shared:a", "shared:b");
        let expected = [(a, "fmt~1", "target", 0), (a, "test", "..", 0), (a, "test", "target", 1)];
        assert_eq!(named, [expected[0], expected[1], expected[2], (b, "test", "target", 0)]);
        assert!(listed[2].bytes >= 5_000);
        // The same command with other rights.
        assert_ne!(open(a, "test 4567", "target").id(), first.id());
        assert_eq!(caches.list().unwrap().len(), 5);
        assert!(caches.clear(&space(a)).unwrap() && !caches.clear(&space(a)).unwrap());
        assert_eq!(caches.list().unwrap().len(), 1);
        // Names that no file system takes, which differ at the end only.
        let long = ["é".repeat(150), format!("{}e", "é".repeat(149))];
        let [one, other] = long.each_ref().map(|path| open(b, "test", path));
        assert_ne!(one.id(), other.id());
        assert_eq!(open(b, "test", &long[0]).id(), one.id());
    }

    #[test]
    fn the_largest_caches_are_removed_until_there_is_room() {
        let place = tempfile::tempdir().unwrap();
        let caches = Caches::new(place.path().canonicalize().unwrap().join("caches"));
        let owner = fs::metadata(place.path()).map(|it| (it.uid(), it.gid())).unwrap();
        let space = SpaceId::new("shared:a").unwrap();
        let [small, large, many, deep] = ["small", "large", "many", "deep"].map(|name| {
            caches.open((&space, name, "0123", Path::new("target")), owner).unwrap().path().to_owned()
        });
        fs::write(small.join("file"), vec![1; 5_000]).unwrap();
        fs::write(large.join("file"), vec![1; 1 << 20]).unwrap();
        for number in 0..100 {
            fs::write(many.join(number.to_string()), "").unwrap();
        }
        fs::create_dir_all(deep.join("d/".repeat(effectd_sandbox::limits::CACHE_DEPTH_MAX + 1))).unwrap();
        let left = || [&small, &many, &large, &deep].map(|folder| folder.exists());
        assert!(caches.make_room(), "nothing is reserved");
        assert_eq!(left(), [true; 4]);
        // The one that cannot be counted goes first, then the largest one.
        assert!(caches.remove_until(|| !deep.exists()));
        assert_eq!(left(), [true, true, true, false]);
        assert!(caches.remove_until(|| !large.exists()));
        assert_eq!(left(), [true, true, false, false]);
        assert!(caches.remove_until(|| !many.exists()), "files count, too");
        assert_eq!(left(), [true, false, false, false]);
        assert!(!caches.clone().keeping_free(u64::MAX).make_room());
        assert_eq!(left(), [false; 4]);
    }

    #[test]
    fn a_cache_that_cannot_be_counted_is_emptied() {
        let place = tempfile::tempdir().unwrap();
        let caches = Caches::new(place.path().canonicalize().unwrap().join("caches"));
        let owner = fs::metadata(place.path()).map(|it| (it.uid(), it.gid())).unwrap();
        let space = SpaceId::new("shared:a").unwrap();
        let open = || caches.open((&space, "test", "0123", Path::new("target")), owner).unwrap();
        let cache = open();
        fs::write(cache.path().join("file"), "").unwrap();
        assert_eq!((open().id(), cache.path().join("file").exists()), (cache.id(), true));
        // Deeper than effectd counts, and closed to everybody.
        let deep = cache.path().join("d/".repeat(effectd_sandbox::limits::CACHE_DEPTH_MAX + 1));
        fs::create_dir_all(&deep).unwrap();
        for closed in [deep.as_path(), &cache.path().join("d/d"), cache.path()] {
            fs::set_permissions(closed, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        }
        assert_eq!(open().id(), cache.id());
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
    }
}
