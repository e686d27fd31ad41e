//! Looking without waiting for a disk.
//!
//! Most files that an action may change were looked at a moment ago, and all that there is to know about them is in memory. Whoever
//! asks may then be answered in his own thread, which is sooner than another one wakes up. The kernel itself says when it would have
//! to wait, and so nothing here ever does.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::fcntl::{OpenHow, ResolveFlag};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, fstatfs};
use rustix::io::{ReadWriteFlags, preadv2};

use super::{BENEATH, FileProblem, Look, Workspace};
use crate::spacepath::SpacePath;

/// Largest file that is read here: what takes longer is for a thread that may take its time.
const BYTES_MAX: u64 = 16_384;
/// No page is smaller.
const PAGE_BYTES: usize = 4_096;
/// Most paths that are looked at here.
const PATHS_MAX: usize = 4;

const CACHED: ResolveFlag = ResolveFlag::from_bits_retain(nix::libc::RESOLVE_CACHED);

/// The same way of opening, if nothing has to be read from a disk for it.
pub(super) fn only(how: OpenHow) -> OpenHow {
    how.resolve(BENEATH.union(CACHED))
}

/// Whether the files of a space are this machine's own: those that others have, or programs of somebody else make, can keep one
/// waiting whatever is in memory.
pub fn is_local(root: BorrowedFd<'_>) -> bool {
    let own = [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, TMPFS_MAGIC];
    fstatfs(root).is_ok_and(|found| own.contains(&found.filesystem_type()))
}

impl Workspace<'_> {
    /// As [`Workspace::look`], if all of it is in memory; `None` in any other case.
    pub fn look_cached(&self, paths: &[SpacePath], keep_bytes_max: u64) -> Option<Vec<Look>> {
        if paths.len() > PATHS_MAX {
            return None;
        }
        let cached = Workspace {
            cached: true,
            ..*self
        };
        cached.look(paths, keep_bytes_max).ok()
    }
}

/// All of a small file, if it is in memory.
pub(super) fn read(file: &File, bytes: u64) -> Result<Vec<u8>, FileProblem> {
    let later = |errno| FileProblem::Kernel {
        step: "read the file",
        errno,
    };
    if bytes > BYTES_MAX {
        return Err(later(Errno::EAGAIN));
    }
    // One more than there is, so that what has grown meanwhile is noticed.
    let mut content = vec![0; bytes as usize + 1];
    let mut there = 0;
    loop {
        let into = &mut [IoSliceMut::new(&mut content[there..])];
        let read = preadv2(file, into, there as u64, ReadWriteFlags::NOWAIT);
        match read.map_err(|errno| later(Errno::from_raw(errno.raw_os_error())))? {
            0 => break,
            count => there += count,
        }
        // Less was read than asked for, in the middle of a page: there is no more. At the end of one, the next may not be in memory.
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
    fn what_is_in_memory_is_seen_as_it_is_and_what_takes_time_is_left_to_others() {
        let space = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: usize| fs::write(space.path().join(name), vec![b'x'; bytes]).unwrap();
        put("empty", 0);
        put("small", 300);
        put("as-large-as-can-be", BYTES_MAX as usize);
        put("too-large", BYTES_MAX as usize + 1);
        fs::create_dir(space.path().join("folder")).unwrap();
        std::os::unix::fs::symlink("small", space.path().join("link")).unwrap();
        let root = File::open(space.path()).unwrap();
        assert!(
            is_local(root.as_fd()),
            "the temporary directory must be on ext4, xfs, btrfs or tmpfs"
        );
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
        for keep in [0, 100, 300, 100_000] {
            for names in [
                &["empty", "small"][..],
                &["as-large-as-can-be", "folder", "link"],
                &["nothing", "folder/nothing", "no/folder"],
            ] {
                let names = paths(names);
                let seen = workspace.look(&names, keep).unwrap();
                let cached = workspace.look_cached(&names, keep);
                assert_eq!(cached, Some(seen), "{names:?}");
            }
            assert!(workspace.look_cached(&paths(&["too-large"]), keep).is_none());
            let many = paths(&["small"; PATHS_MAX + 1]);
            assert!(workspace.look_cached(&many, keep).is_none());
        }
    }
}
