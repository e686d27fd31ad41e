//! Inspection from the page cache, without waiting for a disk.
//!
//! Most files that an action may change were read a moment ago and are in memory. The calling thread can then inspect them
//! itself, which is faster than waking another one. The kernel says when it would have to wait, so nothing here ever waits.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::fcntl::{OpenHow, ResolveFlag};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, fstatfs};
use rustix::io::{ReadWriteFlags, preadv2};

use super::{BENEATH, FileProblem, Inspected, Workspace};
use crate::spacepath::SpacePath;

/// Largest file that is read here; a thread that may block reads a larger one.
const BYTES_MAX: u64 = 16_384;
/// The smallest page size.
const PAGE_BYTES: usize = 4_096;
/// Most paths that are inspected here.
const PATHS_MAX: usize = 4;

const CACHED: ResolveFlag = ResolveFlag::from_bits_retain(nix::libc::RESOLVE_CACHED);

/// The same flags, but the path is resolved only from memory.
pub(super) fn only(how: OpenHow) -> OpenHow {
    how.resolve(BENEATH.union(CACHED))
}

/// Whether the files of a space are on a local file system: a network or user-space file system may wait at any time.
pub fn is_local(root: BorrowedFd<'_>) -> bool {
    let own = [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, TMPFS_MAGIC];
    fstatfs(root).is_ok_and(|found| own.contains(&found.filesystem_type()))
}

impl Workspace<'_> {
    /// As [`Workspace::inspect`], if everything that it reads is in memory; `None` otherwise.
    pub fn inspect_cached(&self, paths: &[SpacePath], keep_bytes_max: u64) -> Option<Vec<Inspected>> {
        if paths.len() > PATHS_MAX {
            return None;
        }
        let cached = Workspace { cached: true, ..*self };
        cached.inspect(paths, keep_bytes_max).ok()
    }
}

/// Reads a whole small file, if it is in memory.
pub(super) fn read(file: &File, bytes: u64) -> Result<Vec<u8>, FileProblem> {
    let later = FileProblem::at("read the file");
    if bytes > BYTES_MAX {
        return Err(later(Errno::EAGAIN));
    }
    // One byte more, to notice a file that has grown.
    let mut content = vec![0; bytes as usize + 1];
    let mut there = 0;
    loop {
        let into = &mut [IoSliceMut::new(&mut content[there..])];
        let read = preadv2(file, into, there as u64, ReadWriteFlags::NOWAIT);
        match read.map_err(|errno| later(Errno::from_raw(errno.raw_os_error())))? {
            0 => break,
            count => there += count,
        }
        // A short read within a page is the end of the file. At the end of a page, the next one may not be in memory.
        if there as u64 == bytes && !there.is_multiple_of(PAGE_BYTES) {
            break;
        }
        if there as u64 > bytes {
            return Err(later(Errno::EAGAIN));
        }
    }
    content.truncate(there);
    Ok(content)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use std::fs;
    use std::os::fd::AsFd;

    use super::*;

    fn paths(names: &[&str]) -> Vec<SpacePath> {
        let path = |name: &&str| SpacePath::parse(&format!("workspace/{name}")).unwrap();
        names.iter().map(path).collect()
    }

    #[test]
    fn small_cached_files_are_read_at_once_and_others_are_left() {
        let space = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: usize| fs::write(space.path().join(name), vec![b'x'; bytes]).unwrap();
        put("empty", 0);
        put("small", 300);
        put("as-large-as-can-be", BYTES_MAX as usize);
        put("too-large", BYTES_MAX as usize + 1);
        fs::create_dir(space.path().join("folder")).unwrap();
        std::os::unix::fs::symlink("small", space.path().join("link")).unwrap();
        let root = File::open(space.path()).unwrap();
        assert!(is_local(root.as_fd()), "the temporary directory must be on ext4, xfs, btrfs or tmpfs");
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
        for keep in [0, 100, 300, 100_000] {
            for names in [
                &["empty", "small"][..],
                &["as-large-as-can-be", "folder", "link"],
                &["nothing", "folder/nothing", "no/folder"],
            ] {
                let names = paths(names);
                let seen = workspace.inspect(&names, keep).unwrap();
                let cached = workspace.inspect_cached(&names, keep);
                assert_eq!(cached, Some(seen), "{names:?}");
            }
            assert!(workspace.inspect_cached(&paths(&["too-large"]), keep).is_none());
            let many = paths(&["small"; PATHS_MAX + 1]);
            assert!(workspace.inspect_cached(&many, keep).is_none());
        }
    }
}
