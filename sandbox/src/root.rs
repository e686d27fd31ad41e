//! The root of a space, as an open descriptor.
//!
//! A path can lead elsewhere at the next lookup: a user who may write to a folder above the root can rename the root and put a
//! link to anything in its place. So a root is opened once, through no link, and every later step (comparing it, reading
//! its files, mounting it) uses that descriptor. [`SpaceRoot::check_ancestors`] refuses roots that others could replace,
//! as sshd does.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat, mkdirat};
use nix::sys::statvfs::fstatvfs;
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;
use crate::sys::acl::has_acl;
use crate::sys::case;

/// A descriptor with these flags reads and writes nothing; it only identifies the folder.
const FOLDER: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
const NO_LINKS: ResolveFlag = ResolveFlag::RESOLVE_NO_SYMLINKS.union(ResolveFlag::RESOLVE_NO_MAGICLINKS);
/// Whatever the umask is, others cannot write to new folders: [`SpaceRoot::check_ancestors`] would refuse those folders.
const FOLDER_MODE: Mode = Mode::from_bits_truncate(0o755);

/// The identity of a folder, independent of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RootId {
    /// The device number; it may change when the machine restarts.
    pub device: u64,
    pub inode: u64,
    /// The file system's own id, which survives a restart; 0 if it has none.
    pub filesystem: u64,
}

impl RootId {
    /// Whether both are the same folder, also if one was recorded before a restart.
    pub fn is_same(&self, other: &Self) -> bool {
        let same_disk = if self.filesystem != 0 && other.filesystem != 0 {
            self.filesystem == other.filesystem
        } else {
            self.device == other.device
        };
        self.inode == other.inode && same_disk
    }
}

impl fmt::Display for RootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (inode, device, filesystem) = (self.inode, self.device, self.filesystem);
        write!(f, "inode {inode} on device {device}, file system {filesystem:016x}")
    }
}

/// A folder above the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ancestor {
    /// Device and inode.
    pub id: (u64, u64),
    uid: u32,
    gid: u32,
    mode: u32,
    /// Whether the group may write and there is an access control list: the group bits of the mode are then the mask of
    /// the list, and may grant rights to other users.
    has_acl: bool,
}

impl Ancestor {
    /// The folder `name`, relative to the open `folder`.
    fn of(stat: &FileStat, folder: BorrowedFd<'_>, name: &str) -> Self {
        Self {
            id: (stat.st_dev, stat.st_ino),
            uid: stat.st_uid,
            gid: stat.st_gid,
            mode: stat.st_mode & 0o7777,
            has_acl: stat.st_mode & 0o020 != 0 && has_acl(folder, name),
        }
    }

    /// Whether only these owners can replace the entries of the folder. In a sticky folder of root, such as `/tmp`, each
    /// entry belongs to its own owner. The group may write if the owner is its only member.
    fn is_safe(&self, owners: &[u32], is_alone: impl Fn(u32, u32) -> bool) -> bool {
        let by_others = self.mode & 0o002 != 0;
        let by_group = self.mode & 0o020 != 0;
        let sticky = self.mode & 0o1000 != 0 && self.uid == 0;
        let is_closed = !by_others && (!by_group || !self.has_acl && is_alone(self.uid, self.gid));
        owners.contains(&self.uid) && (is_closed || sticky)
    }
}

/// Whether a user is the only member of a group. Most distributions give each user such a private group and the umask 002, so
/// the group may write to all of the user's folders. If accounts also come from a network, no group is known to be private.
fn is_alone_in_group(uid: u32, gid: u32) -> bool {
    let sources = std::fs::read_to_string("/etc/nsswitch.conf").unwrap_or_default();
    let files = ["/etc/passwd", "/etc/group"].map(std::fs::read_to_string);
    matches!(files, [Ok(passwd), Ok(group)] if is_local(&sources) && is_alone(uid, gid, &passwd, &group))
}

/// Whether accounts and groups come only from files of this machine. That is the default without a configuration.
fn is_local(nsswitch: &str) -> bool {
    let lines = nsswitch.lines().filter_map(|line| line.split_once(':'));
    let mut named = lines.filter(|(what, _)| ["passwd", "group", "initgroups"].contains(&what.trim()));
    named.all(|(_, sources)| {
        let sources = sources.split('#').next().unwrap_or_default();
        let mut words = sources.split_whitespace().filter(|word| !word.starts_with('['));
        words.all(|source| ["files", "systemd"].contains(&source))
    })
}

fn is_alone(uid: u32, gid: u32, passwd: &str, group: &str) -> bool {
    // A line with a plus sign imports accounts from elsewhere.
    if passwd.lines().chain(group.lines()).any(|line| line.starts_with('+')) {
        return false;
    }
    let id = |text: &str| text.parse::<u32>().ok();
    let accounts = passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _, user) = (fields.next()?, fields.next()?, id(fields.next()?)?);
        Some((name, user, id(fields.next()?)?))
    });
    let (own, others): (Vec<_>, Vec<_>) = accounts.partition(|(_, user, _)| *user == uid);
    let in_it = |accounts: &[(&str, u32, u32)]| accounts.iter().any(|(.., primary)| *primary == gid);
    let mut groups = group.lines().filter_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        matches!(*fields, [_, _, number, _] if id(number) == Some(gid)).then(|| fields[3])
    });
    let (Some(members), None) = (groups.next(), groups.next()) else {
        return false;
    };
    let mut members = members.split(',').filter(|member| !member.is_empty());
    in_it(&own) && !in_it(&others) && members.all(|member| own.iter().any(|(name, ..)| *name == member))
}

/// The opened root of a space.
#[derive(Debug, Clone)]
pub struct SpaceRoot(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    path: PathBuf,
    folder: OwnedFd,
    id: RootId,
    owner: (u32, u32),
}

impl SpaceRoot {
    /// Opens a folder by its absolute path, through no link.
    pub fn open(path: &Path) -> Result<Self, SandboxError> {
        Self::find(path)?.ok_or_else(|| unusable(path, Errno::ENOENT))
    }

    /// Like [`SpaceRoot::open`]; `None` if nothing has this path.
    pub fn find(path: &Path) -> Result<Option<Self>, SandboxError> {
        if !path.is_absolute() {
            return Err(unusable(path, Errno::EINVAL));
        }
        match openat2(AT_FDCWD, path, OpenHow::new().flags(FOLDER).resolve(NO_LINKS)) {
            Ok(folder) => Self::of(path, folder).map(Some),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(unusable(path, errno)),
        }
    }

    /// Makes a new folder where only root and `daemon` could replace it.
    pub fn make(path: &Path, daemon: u32) -> Result<Self, SandboxError> {
        let nearest = Self::check_new(path, daemon)?;
        let mut folder = nearest.0.folder.try_clone().map_err(|error| failed(path, &error))?;
        let missing = path.strip_prefix(&nearest.0.path).unwrap_or(path);
        for name in missing {
            match mkdirat(&folder, name, FOLDER_MODE) {
                // Another process was faster; its folder is opened and checked like any other.
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(unusable(path, errno)),
            }
            folder = openat(&folder, name, FOLDER | OFlag::O_NOFOLLOW, Mode::empty())
                .map_err(|errno| unusable(path, errno))?;
        }
        Self::of(path, folder)
    }

    /// The nearest existing folder above a missing path, if a root may be made there. Only root and `daemon` are
    /// trusted, because a new root has no owner yet.
    pub fn check_new(path: &Path, daemon: u32) -> Result<Self, SandboxError> {
        for above in path.ancestors().skip(1) {
            let Some(nearest) = Self::find(above)? else {
                continue;
            };
            let stat = fstat(&nearest).map_err(|errno| unusable(path, errno))?;
            let all = [vec![Ancestor::of(&stat, nearest.as_fd(), ".")], nearest.ancestors()?].concat();
            check(path, (above, &all), (daemon, daemon))?;
            return Ok(nearest);
        }
        Err(unusable(path, Errno::ENOENT))
    }

    /// Opens a folder beneath this one, through no link.
    pub fn beneath(&self, path: &Path) -> Result<Self, SandboxError> {
        let whole = self.path().join(path);
        let beneath = OpenHow::new().flags(FOLDER).resolve(NO_LINKS | ResolveFlag::RESOLVE_BENEATH);
        let folder = openat2(self, path, beneath).map_err(|errno| unusable(&whole, errno))?;
        Self::of(&whole, folder)
    }

    fn of(path: &Path, folder: OwnedFd) -> Result<Self, SandboxError> {
        let unusable = |errno| unusable(path, errno);
        let stat = fstat(&folder).map_err(unusable)?;
        let id = RootId {
            device: stat.st_dev,
            inode: stat.st_ino,
            filesystem: fstatvfs(&folder).map_err(unusable)?.filesystem_id(),
        };
        Ok(Self(Arc::new(Opened { path: path.to_owned(), folder, id, owner: (stat.st_uid, stat.st_gid) })))
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    pub fn id(&self) -> RootId {
        self.0.id
    }

    /// Whether two spellings that differ in case are one file here.
    pub fn ignores_case(&self) -> bool {
        case::ignores_case(self.as_fd())
    }

    /// Its uid and gid when it was opened.
    pub fn owner(&self) -> (u32, u32) {
        self.0.owner
    }

    /// The folders above it, the nearest first. They are found from the descriptor, not by the path.
    pub fn ancestors(&self) -> Result<Vec<Ancestor>, SandboxError> {
        let mut all = Vec::new();
        let mut id = (self.0.id.device, self.0.id.inode);
        let mut name = "..".to_owned();
        loop {
            // The kernel refuses paths that are too long, so this ends.
            let stat = fstatat(&self.0.folder, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
            let stat = stat.map_err(|errno| unusable(self.path(), errno))?;
            let above = Ancestor::of(&stat, self.as_fd(), &name);
            if above.id == id {
                return Ok(all);
            }
            id = above.id;
            all.push(above);
            name.push_str("/..");
        }
    }

    /// Like [`SpaceRoot::check_ancestors`], and refuses a folder that others could change.
    pub(crate) fn check_whole(&self, daemon: u32) -> Result<(), SandboxError> {
        let stat = fstat(self).map_err(|errno| unusable(self.path(), errno))?;
        let all = [vec![Ancestor::of(&stat, self.as_fd(), ".")], self.ancestors()?].concat();
        check(self.path(), (self.path(), &all), (daemon, self.0.owner.0))
    }

    /// Refuses a root that users other than root, `daemon` and its own owner could replace by another folder.
    pub fn check_ancestors(&self, ancestors: &[Ancestor], daemon: u32) -> Result<(), SandboxError> {
        let above = self.path().parent().unwrap_or(self.path());
        check(self.path(), (above, ancestors), (daemon, self.0.owner.0))
    }
}

impl AsFd for SpaceRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.folder.as_fd()
    }
}

/// Checks each folder above a root; `first` is the path of the nearest one.
fn check(
    root: &Path,
    (first, ancestors): (&Path, &[Ancestor]),
    (daemon, owner): (u32, u32),
) -> Result<(), SandboxError> {
    let names = first.ancestors().chain(std::iter::repeat(Path::new("/")));
    let mut named = names.zip(ancestors);
    let Some((name, above)) = named.find(|(_, above)| !above.is_safe(&[0, daemon, owner], is_alone_in_group))
    else {
        return Ok(());
    };
    let name = name.display();
    Err(SandboxError::Workspace {
        path: root.to_owned(),
        what: format!(
            "it is inside {name}, which has uid {} and mode {:04o}: others could replace the root",
            above.uid, above.mode
        ),
        fix: format!(
            "`chown` {name} to root, to uid {daemon} or to the owner of the root (uid {owner}), and `chmod go-w` it; or move the root"
        ),
    })
}

fn unusable(path: &Path, errno: Errno) -> SandboxError {
    if errno == Errno::ELOOP {
        return SandboxError::Workspace {
            path: path.to_owned(),
            what: "its path has a symbolic link".to_owned(),
            fix: "restore the folder, or write its path without links in the policy (`realpath` prints it)"
                .to_owned(),
        };
    }
    failed(path, &errno.into())
}

fn failed(path: &Path, error: &io::Error) -> SandboxError {
    SandboxError::Workspace {
        path: path.to_owned(),
        what: error.to_string(),
        fix: "it must be a folder with an absolute path that effectd can enter".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn no_link_is_followed_or_made_into_a_folder() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        fs::create_dir_all(path("real/root")).unwrap();
        let daemon = fs::metadata(place.path()).unwrap().uid();
        symlink("real", path("link")).unwrap();
        symlink("real/root", path("root")).unwrap();
        symlink("nowhere", path("dangling")).unwrap();
        for name in ["link/root", "root", "link/new", "dangling", "dangling/new"] {
            let found = SpaceRoot::find(&path(name)).map(|_| ());
            let made = SpaceRoot::make(&path(name), daemon).map(|_| ());
            for error in [found.unwrap_err(), made.unwrap_err()] {
                assert!(matches!(error, SandboxError::Workspace { .. }), "{error}");
            }
        }
        assert!(!path("real/new").exists() && !path("nowhere").exists());
        let root = SpaceRoot::open(&path("real/root")).unwrap();
        assert_eq!(root.ignores_case(), path("REAL/ROOT").exists());
        assert_eq!(root.id().inode, fs::metadata(path("real/root")).unwrap().ino());
        let made = SpaceRoot::make(&path("real/root").join("a/b"), daemon).unwrap();
        let above: Vec<_> = made.ancestors().unwrap().iter().map(|above| above.id.1).collect();
        assert!(above.contains(&root.id().inode));
        assert_eq!(above.len(), made.path().ancestors().count() - 1);
    }

    #[test]
    fn a_root_is_made_only_where_nobody_else_may_write() {
        let place = tempfile::tempdir().unwrap();
        let daemon = fs::metadata(place.path()).unwrap().uid();
        let open = place.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o772)).unwrap();
        let error = SpaceRoot::make(&open.join("a/root"), daemon).unwrap_err();
        assert!(error.to_string().contains("mode 0772"), "{error}");
        assert!(!open.join("a").exists());
        fs::set_permissions(&open, fs::Permissions::from_mode(0o750)).unwrap();
        let root = SpaceRoot::make(&open.join("a/root"), daemon).unwrap();
        root.check_ancestors(&root.ancestors().unwrap(), daemon).unwrap();
    }

    #[test]
    fn a_group_may_write_if_only_the_owner_is_in_it() {
        let passwd = "root:x:0:0:root:/:/bin/sh\nann:x:1000:1000::/:/bin/sh\n\
                      bob:x:1001:1001::/:/bin/sh\ncy:x:1002:100::/:/bin/sh\n\
                      dan:x:1003:1003::/:/bin/sh\neve:x:1004:1003::/:/bin/sh\nbad line\n";
        let group = "root:x:0:\nann:x:1000:\nbob:x:1001:bob,ann\nusers:x:100:\ndan:x:1003:\nstaff:x:50:ann\n\
                     twice:x:70:\ntwice2:x:70:eve\nbad line\n";
        let is_alone = |uid, gid| is_alone(uid, gid, passwd, group);
        assert!(is_alone(1000, 1000) && is_alone(0, 0) && is_alone(1002, 100));
        for (uid, gid, why) in [
            (1001, 1001, "ann is a member, too"),
            (1003, 1003, "it is eve's primary group, too"),
            (1000, 50, "it is not the owner's primary group"),
            (1001, 1000, "it is ann's group"),
            (1000, 4711, "no such group"),
            (4711, 4711, "no such account"),
            (1000, 70, "two groups have this number"),
        ] {
            assert!(!is_alone(uid, gid), "{why}");
        }
        let above = |mode| Ancestor { id: (1, 1), uid: 1000, gid: 1000, mode, has_acl: false };
        assert!(above(0o775).is_safe(&[1000], is_alone));
        assert!(!above(0o777).is_safe(&[1000], is_alone));
        assert!(!above(0o775).is_safe(&[0, 1001], is_alone));
        assert!(!above(0o775).is_safe(&[1000], |_, _| false));
        let listed = Ancestor { has_acl: true, ..above(0o775) };
        assert!(!listed.is_safe(&[1000], is_alone), "others may be in the list");
        assert!(!super::is_alone(1000, 1000, &format!("{passwd}+\n"), group), "accounts from elsewhere");
        assert!(is_local("passwd: files systemd # local\nhosts: files dns\n") && is_local(""));
        assert!(!is_local("passwd: files sss\n") && !is_local("group: files [NOTFOUND=continue] ldap\n"));
    }

    #[test]
    fn a_folder_is_the_same_on_its_file_system_whatever_the_device() {
        let id = |device, inode, filesystem| RootId { device, inode, filesystem };
        assert!(id(1, 7, 9).is_same(&id(2, 7, 9)));
        assert!(!id(1, 7, 9).is_same(&id(1, 7, 8)));
        assert!(!id(1, 7, 9).is_same(&id(1, 6, 9)));
        assert!(id(1, 7, 0).is_same(&id(1, 7, 9)));
        assert!(!id(1, 7, 0).is_same(&id(2, 7, 9)));
    }
}
