//! The caches of calls with a view: their size, how to empty them, and the end of a call that fills one of them or the disk.
//!
//! Calls own the files of their cache: they can take permissions away, nest folders without end, and put a link where a folder was.
//! So nothing here follows a link or needs a long path, and a cache that cannot be read counts as too large.

use std::ffi::{CStr, CString};
use std::fs::{Permissions, set_permissions};
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::limits::DISK_FREE_FILES_MIN;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::sys::statvfs::statvfs;
use nix::unistd::{UnlinkatFlags, unlinkat};
use tokio::time::{Instant, sleep};

use super::outcome::Cause;
use crate::error::SandboxError;
use crate::limits::{
    CACHE_CHECK_INTERVAL, CACHE_CHECK_PAUSE_MAX, CACHE_DEPTH_MAX, CACHE_FILES_MAX, DISK_BYTES_PER_MS,
};
use crate::view::View;

const FOLDER: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
/// Names that are read at a time: a folder may have millions.
const NAMES_MAX: usize = 1_000;

/// How much a cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheUsage {
    pub bytes: u64,
    /// Files and folders.
    pub files: u64,
    /// Whether everything was counted. If not, there are too many files, the folders are too deep, or one cannot be read.
    pub is_whole: bool,
}

impl CacheUsage {
    /// Counts what a folder holds, without following links.
    pub fn of(folder: &impl AsFd) -> Self {
        let mut usage = Self { bytes: 0, files: 0, is_whole: true };
        usage.is_whole = usage.count(folder.as_fd(), c".", 0).is_ok();
        usage
    }

    pub fn exceeds(&self, bytes_max: u64) -> bool {
        !self.is_whole || self.bytes > bytes_max
    }

    fn count(&mut self, at: BorrowedFd<'_>, name: &CStr, depth: usize) -> nix::Result<()> {
        if depth > CACHE_DEPTH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let folder = match openat(at, name, FOLDER, Mode::empty()) {
            // A running call has removed or replaced it.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) if depth > 0 => return Ok(()),
            folder => folder?,
        };
        let mut folders = Vec::new();
        let mut dir = Dir::openat(&folder, c".", FOLDER, Mode::empty())?;
        for entry in dir.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if is_dots(name) {
                continue;
            }
            let stat = match fstatat(&folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                Err(Errno::ENOENT) => continue,
                stat => stat?,
            };
            self.files += 1;
            self.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
            if self.files > CACHE_FILES_MAX {
                return Err(Errno::EMFILE);
            }
            if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR {
                folders.push(name.to_owned());
            }
        }
        // One descriptor for each level stays open.
        drop(dir);
        folders.iter().try_for_each(|name| self.count(folder.as_fd(), name, depth + 1))
    }
}

/// Removes everything in a folder.
pub fn empty_cache(folder: &impl AsFd) -> io::Result<()> {
    let top = enter(folder.as_fd())?;
    let mut number = 0;
    loop {
        let names = some_names(&top)?;
        if names.is_empty() {
            return Ok(());
        }
        names.iter().try_for_each(|name| remove(&top, name, &mut number))?;
    }
}

/// Removes an entry. Folders in it move to the top first, so that a deep tree needs neither a deep stack nor many descriptors.
fn remove(top: &OwnedFd, name: &CStr, number: &mut u64) -> io::Result<()> {
    let Some(folder) = unlink_or_enter(top, name)? else { return Ok(()) };
    loop {
        let names = some_names(&folder)?;
        if names.is_empty() {
            return Ok(unlinkat(top, name, UnlinkatFlags::RemoveDir)?);
        }
        for name in names {
            if unlink_or_enter(&folder, &name)?.is_some() {
                move_up(&folder, &name, top, number)?;
            }
        }
    }
}

fn move_up(folder: &OwnedFd, name: &CStr, top: &OwnedFd, number: &mut u64) -> io::Result<()> {
    loop {
        *number += 1;
        // The names of caches have no dot, so no other cache gets these files if the power fails now.
        match renameat(folder, name, top, format!(".{number}").as_str()) {
            Ok(()) => return Ok(()),
            Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Removes an entry, or opens it if it is a folder.
fn unlink_or_enter(at: &OwnedFd, name: &CStr) -> io::Result<Option<OwnedFd>> {
    match unlinkat(at, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(None),
        // Depending on the file system, either of the two means a folder.
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    enter(openat(at, name, FOLDER | OFlag::O_PATH, Mode::empty())?.as_fd()).map(Some)
}

/// Opens a folder to change it, also if its owner took its permissions away.
fn enter(folder: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // `fchmod` refuses a descriptor that only identifies the folder.
    let handle = format!("/proc/self/fd/{}", folder.as_raw_fd());
    set_permissions(handle, Permissions::from_mode(0o700))?;
    Ok(openat(folder, c".", FOLDER, Mode::empty())?)
}

fn some_names(folder: &OwnedFd) -> nix::Result<Vec<CString>> {
    let mut dir = Dir::openat(folder, c".", FOLDER, Mode::empty())?;
    let names = dir.iter().map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    names.filter(|name| !name.as_deref().is_ok_and(is_dots)).take(NAMES_MAX).collect()
}

fn is_dots(name: &CStr) -> bool {
    name == c"." || name == c".."
}

/// How many bytes can be written before less than `bytes_min` is free on the disk of a folder; `None` if less is free already, or if
/// the disk takes few more files. If the check itself fails, the write decides.
pub fn disk_room(folder: &Path, bytes_min: u64) -> Option<u64> {
    let Ok(disk) = statvfs(folder) else { return Some(u64::MAX) };
    // A file system without a bound on its files counts none.
    if disk.files() > 0 && disk.files_available() < DISK_FREE_FILES_MIN {
        return None;
    }
    disk.blocks_available().saturating_mul(disk.fragment_size()).checked_sub(bytes_min)
}

/// What a call could fill: its caches and the disk. The kernel counts written bytes only when processes end.
pub(super) struct Fillable<'a> {
    /// A view that can write.
    view: Option<&'a View>,
    caches: Arc<Vec<OwnedFd>>,
    bytes_max: u64,
}

impl<'a> Fillable<'a> {
    /// Opens the caches of a view. Fails if one is gone: a call does not run with a cache that nobody counts.
    pub(super) fn of(view: Option<&'a View>, bytes_max: u64) -> Result<Self, SandboxError> {
        let view = view.filter(|view| view.can_write());
        let caches = view.map_or(Ok(Vec::new()), View::open_caches);
        let caches = caches.map_err(SandboxError::io("opening the caches of a call"))?;
        Ok(Self { view, caches: Arc::new(caches), bytes_max })
    }

    /// Returns when the call must end because it fills a cache or the disk.
    pub(super) async fn overflow(&self) -> Cause {
        if self.view.is_none() {
            return pending().await;
        }
        // Boxed: most calls have no view, and their future stays small.
        Box::pin(async {
            tokio::select! {
                cause = self.full_disk() => cause,
                cause = self.full_cache() => cause,
            }
        })
        .await
    }

    /// Whether a call that has replied has filled a cache or the disk since the last check.
    pub(super) async fn overflowed(&self) -> Option<Cause> {
        if self.disk_room().is_none() {
            return Some(Cause::DiskFull);
        }
        self.is_cache_full().await.then_some(Cause::CacheFull)
    }

    async fn full_disk(&self) -> Cause {
        while let Some(left) = self.disk_room() {
            // The less is left, the sooner the next check.
            let until_full = Duration::from_millis(left / DISK_BYTES_PER_MS);
            sleep(until_full.clamp(CACHE_CHECK_INTERVAL / 100, CACHE_CHECK_INTERVAL)).await;
        }
        Cause::DiskFull
    }

    fn disk_room(&self) -> Option<u64> {
        let reserve = self.view.and_then(|view| view.reserve.as_ref());
        reserve.map_or(Some(u64::MAX), |(folder, bytes_min)| disk_room(folder, *bytes_min))
    }

    async fn full_cache(&self) -> Cause {
        let mut took = Duration::ZERO;
        loop {
            // Counting takes at most a tenth of the time, unless it takes longer than half a second.
            sleep((took * 10).clamp(CACHE_CHECK_INTERVAL, CACHE_CHECK_PAUSE_MAX)).await;
            let begun = Instant::now();
            if self.is_cache_full().await {
                return Cause::CacheFull;
            }
            took = begun.elapsed();
        }
    }

    async fn is_cache_full(&self) -> bool {
        if self.caches.is_empty() {
            return false;
        }
        let (caches, bytes_max) = (Arc::clone(&self.caches), self.bytes_max);
        let exceeds = move || caches.iter().any(|cache| CacheUsage::of(cache).exceeds(bytes_max));
        tokio::task::spawn_blocking(exceeds).await.unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::sys::stat::mkdirat;

    use super::*;

    #[test]
    fn a_cache_is_counted_without_links_and_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let (cache, outside) = (place.path().join("cache"), place.path().join("outside"));
        fs::create_dir_all(cache.join("in")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("large"), vec![1; 1 << 20]).unwrap();
        symlink(&outside, cache.join("in/link")).unwrap();
        fs::write(cache.join("in/file"), vec![1; 5_000]).unwrap();
        let opened = fs::File::open(&cache).unwrap();
        let usage = CacheUsage::of(&opened);
        assert!(usage.is_whole && usage.files == 3, "{usage:?}");
        assert!((5_000..1 << 20).contains(&usage.bytes), "{usage:?}");
        assert!(!usage.exceeds(1 << 20) && usage.exceeds(4_999));
        // What an ordinary user cannot read counts as too large; root reads it.
        fs::set_permissions(cache.join("in"), Permissions::from_mode(0o000)).unwrap();
        let usage = CacheUsage::of(&opened);
        assert_eq!((usage.is_whole, usage.files), if is_root() { (true, 3) } else { (false, 1) });
        empty_cache(&opened).unwrap();
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 0);
        assert!(outside.join("large").exists());
        // An operator may remove it while a call runs.
        fs::remove_dir(&cache).unwrap();
        assert_eq!(CacheUsage::of(&opened), CacheUsage { bytes: 0, files: 0, is_whole: true });
    }

    #[test]
    fn a_cache_deeper_than_any_path_counts_as_full_and_empties() {
        let place = tempfile::tempdir().unwrap();
        let top = fs::File::open(place.path()).unwrap();
        // Names that the removal uses itself are taken.
        fs::write(place.path().join(".1"), "").unwrap();
        fs::create_dir_all(place.path().join(".2/full")).unwrap();
        let mut folder = OwnedFd::from(top.try_clone().unwrap());
        for depth in 0..3_000 {
            mkdirat(&folder, "deep", Mode::S_IRWXU).unwrap();
            folder = openat(&folder, "deep", FOLDER, Mode::empty()).unwrap();
            if depth == CACHE_DEPTH_MAX - 1 {
                assert!(CacheUsage::of(&top).is_whole);
            }
        }
        fs::write(format!("/proc/self/fd/{}/file", folder.as_raw_fd()), "").unwrap();
        assert!(!CacheUsage::of(&top).is_whole);
        empty_cache(&top).unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    fn is_root() -> bool {
        nix::unistd::geteuid().is_root()
    }
}
