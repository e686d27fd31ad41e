//! Memory cgroups: each bounds and counts the memory of one process tree.
//!
//! Versions 1 and 2 both serve, wherever effectd may write. Groups are pooled, because making and removing one costs as
//! much as the rest of a call. A group is reused only after every process in it is reaped.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::limits::CGROUPS_IDLE_MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    One,
    Two,
}

impl Version {
    /// The names of the files with the limit, the peak and the out-of-memory events.
    const fn files(self) -> [&'static str; 3] {
        match self {
            Self::One => ["memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"],
            Self::Two => ["memory.max", "memory.peak", "memory.events"],
        }
    }

    /// The wire form, for receipts.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::One => "cgroup v1",
            Self::Two => "cgroup v2",
        }
    }
}

/// A folder of the cgroup tree in which groups can be made.
#[derive(Debug)]
pub(crate) struct Cgroups {
    pub(crate) version: Version,
    base: PathBuf,
    /// The folder whose groups count processes: `base` in version 2, one of another tree in version 1; `None` if none can.
    process_base: Option<PathBuf>,
    next: AtomicU64,
    idle: Mutex<Vec<Group>>,
    /// Groups that may still hold a dying process.
    retired: Mutex<Vec<PathBuf>>,
}

/// One group, with the files that every call reads kept open: finding them costs more than reading them.
#[derive(Debug)]
struct Group {
    path: PathBuf,
    process_path: Option<PathBuf>,
    limit_bytes: u64,
    limit_processes: u64,
    peak: fs::File,
    events: fs::File,
    process_events: Option<fs::File>,
    /// Whether the peak can be reset for another call.
    reusable: bool,
}

#[derive(Debug)]
pub(crate) struct Slot {
    group: Option<Group>,
    owner: Arc<Cgroups>,
    before: (u64, u64),
}

/// The counters of a group for one call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GroupUsage {
    pub(crate) peak_bytes: Option<u64>,
    pub(crate) oom_kills: u64,
    pub(crate) fork_refusals: u64,
}

impl Cgroups {
    /// Finds a folder in which this process may make groups with a memory limit, and proves it by making one.
    pub(crate) fn find(configured: Option<&Path>) -> io::Result<Arc<Self>> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for (version, parent) in candidates(configured, "memory")? {
            let found = Self::in_parent(version, &parent).or_else(|error| {
                let moved =
                    version == Version::Two && configured.is_none() && vacate(&parent, "memory").is_ok();
                if moved { Self::in_parent(version, &parent) } else { Err(error) }
            });
            match found {
                Ok(found) => return Ok(found),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn in_parent(version: Version, parent: &Path) -> io::Result<Arc<Self>> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let name = format!("{PREFIX}{}-{}", std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
        let base = make_base(version, parent, &name, "+memory")?;
        let process_base = match version {
            Version::Two => {
                let both =
                    [parent, &base].map(|folder| fs::write(folder.join("cgroup.subtree_control"), "+pids"));
                both.iter().all(Result::is_ok).then(|| base.clone())
            }
            Version::One => {
                let other =
                    candidates(None, "pids")?.into_iter().find(|(version, _)| *version == Version::One);
                other.and_then(|(_, parent)| make_base(Version::One, &parent, &name, "").ok())
            }
        };
        let groups = Arc::new(Self {
            version,
            base,
            process_base,
            next: AtomicU64::new(0),
            idle: Mutex::default(),
            retired: Mutex::default(),
        });
        drop(groups.acquire()?);
        Ok(groups)
    }

    /// Whether the groups also count the processes of a tree.
    pub(crate) fn counts_processes(&self) -> bool {
        self.process_base.is_some()
    }

    /// A group without processes.
    pub(crate) fn acquire(self: &Arc<Self>) -> io::Result<Slot> {
        self.clean_retired();
        let idle = self.idle.lock().pop();
        let group = match idle {
            Some(group) => group,
            None => self.make()?,
        };
        let before = (group.oom_kills(), group.fork_refusals());
        Ok(Slot { group: Some(group), owner: Arc::clone(self), before })
    }

    fn make(&self) -> io::Result<Group> {
        let name = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let path = self.base.join(&name);
        fs::create_dir(&path)?;
        if self.version == Version::Two {
            // Out of memory, the kernel kills the whole tree at once; and no memory escapes into swap.
            fs::write(path.join("memory.oom.group"), "1")?;
            fs::write(path.join("memory.swap.max"), "0").or_else(missing_is_fine)?;
        }
        let process_path = self.process_base.as_ref().map(|base| base.join(&name));
        if let Some(other) = process_path.as_ref().filter(|other| **other != path) {
            fs::create_dir(other)?;
        }
        let process_events =
            process_path.as_ref().map(|path| fs::File::open(path.join("pids.events"))).transpose()?;
        let [_, peak, events] = self.version.files();
        let peak_path = path.join(peak);
        // Before Linux 6.12 the peak of version 2 cannot be reset, so such a group serves only one call.
        let writable = fs::File::options().read(true).write(true).open(&peak_path);
        let reusable = writable.is_ok();
        let peak = writable.or_else(|_| fs::File::open(&peak_path))?;
        let events = fs::File::open(path.join(events))?;
        Ok(Group {
            path,
            process_path,
            limit_bytes: u64::MAX,
            limit_processes: u64::MAX,
            peak,
            events,
            process_events,
            reusable,
        })
    }

    fn retire(&self, group: &Group) {
        let paths = [Some(&group.path), group.process_path.as_ref()];
        let busy = paths.into_iter().flatten().filter(|path| fs::remove_dir(path).is_err() && path.exists());
        self.retired.lock().extend(busy.cloned());
    }

    fn clean_retired(&self) {
        let mut retired = self.retired.lock();
        retired.retain(|path| fs::remove_dir(path).is_err() && path.exists());
    }
}

const PREFIX: &str = "effectd-";
/// The group of this process beneath the one that was delegated to it.
const OWN: &str = "runtime";

/// Moves this process into a group beneath its own: a group of version 2 with a process in it cannot pass a controller on,
/// and a service manager starts a service in the group that it delegates. Refused if other processes are in the group, which are
/// not ours to move.
fn vacate(group: &Path, controller: &str) -> io::Result<()> {
    let controllers = fs::read_to_string(group.join("cgroup.controllers"))?;
    let processes = fs::read_to_string(group.join("cgroup.procs"))?;
    let alone = processes.trim() == std::process::id().to_string();
    if !alone || group.ends_with(OWN) || !controllers.split_whitespace().any(|name| name == controller) {
        return Err(io::Error::from(io::ErrorKind::ResourceBusy));
    }
    let own = group.join(OWN);
    fs::create_dir(&own)
        .or_else(|error| if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })?;
    fs::write(own.join("cgroup.procs"), "0")
}

fn make_base(version: Version, parent: &Path, name: &str, controllers: &str) -> io::Result<PathBuf> {
    sweep(parent);
    if version == Version::Two {
        fs::write(parent.join("cgroup.subtree_control"), controllers)?;
    }
    let base = parent.join(name);
    fs::create_dir(&base)?;
    if version == Version::Two {
        fs::write(base.join("cgroup.subtree_control"), controllers)?;
    }
    Ok(base)
}

/// Hosts without swap lack the file of the swap limit, and need no such limit.
fn missing_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Removes the groups that a killed runtime left behind. Only empty groups can be removed, so a live runtime loses nothing.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        let dead = pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists());
        if dead {
            for group in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
                let _busy = fs::remove_dir(group.path());
            }
            let _busy = fs::remove_dir(entry.path());
        }
    }
}

/// The number after `key` in a small file of the kernel; zero if there is none.
fn number_after(file: &fs::File, key: &str) -> u64 {
    let mut bytes = [0; 512];
    let length = file.read_at(&mut bytes, 0).unwrap_or(0);
    let text = std::str::from_utf8(&bytes[..length]).unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix(key));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

impl Group {
    fn oom_kills(&self) -> u64 {
        number_after(&self.events, "oom_kill ")
    }

    fn fork_refusals(&self) -> u64 {
        self.process_events.as_ref().map_or(0, |events| number_after(events, "max "))
    }
}

impl Slot {
    /// Moves a process, which has no children yet, into the group.
    pub(crate) fn add(&self, pid: i32, count_processes: bool) -> io::Result<()> {
        let Some(group) = &self.group else { return Ok(()) };
        fs::write(group.path.join("cgroup.procs"), pid.to_string())?;
        match &group.process_path {
            Some(path) if count_processes && *path != group.path => {
                fs::write(path.join("cgroup.procs"), pid.to_string())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Bounds the group for the call that is about to start.
    pub(crate) fn limit(&mut self, bytes: u64, processes: u64) -> io::Result<()> {
        let version = self.owner.version;
        let Some(group) = &mut self.group else {
            return Ok(());
        };
        match &group.process_path {
            Some(path) if processes > 1 && group.limit_processes != processes => {
                fs::write(path.join("pids.max"), processes.to_string())?;
                group.limit_processes = processes;
            }
            Some(_) | None => {}
        }
        if group.limit_bytes == bytes {
            return Ok(());
        }
        let with_swap = group.path.join("memory.memsw.limit_in_bytes");
        if version == Version::One {
            // The kernel refuses a memory limit above that of memory plus swap: lift the latter first, lower it last.
            fs::write(&with_swap, "-1").or_else(missing_is_fine)?;
        }
        fs::write(group.path.join(version.files()[0]), bytes.to_string())?;
        if version == Version::One {
            fs::write(&with_swap, bytes.to_string()).or_else(missing_is_fine)?;
        }
        group.limit_bytes = bytes;
        Ok(())
    }

    /// What the group counted since it was acquired.
    pub(crate) fn usage(&self) -> GroupUsage {
        let Some(group) = &self.group else {
            return GroupUsage::default();
        };
        GroupUsage {
            peak_bytes: Some(number_after(&group.peak, "")),
            oom_kills: group.oom_kills().saturating_sub(self.before.0),
            fork_refusals: group.fork_refusals().saturating_sub(self.before.1),
        }
    }

    /// Gives the group back for another call. Only for a group whose processes have all been reaped.
    pub(crate) fn recycle(mut self) {
        let Some(group) = self.group.take() else { return };
        let is_reset = group.reusable && group.peak.write_at(b"0", 0).is_ok();
        let mut idle = self.owner.idle.lock();
        if is_reset && idle.len() < CGROUPS_IDLE_MAX {
            idle.push(group);
        } else {
            drop(idle);
            self.owner.retire(&group);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(group) = self.group.take() {
            self.owner.retire(&group);
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let idle = std::mem::take(self.idle.get_mut());
        for group in idle {
            self.retire(&group);
        }
        self.clean_retired();
        let _busy = fs::remove_dir(&self.base);
        if let Some(base) = &self.process_base {
            let _busy = fs::remove_dir(base);
        }
    }
}

/// The folders to try: the configured one, or this process's own group and its parent. The parent is the delegated one after this
/// process has moved into a group beneath it, or if the service manager started it there.
fn candidates(configured: Option<&Path>, controller: &str) -> io::Result<Vec<(Version, PathBuf)>> {
    if let Some(path) = configured {
        let version = if path.join("cgroup.controllers").exists() { Version::Two } else { Version::One };
        return Ok(vec![(version, path.to_owned())]);
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let version = match (id, controllers) {
            ("0", "") => Version::Two,
            (_, controllers) if controllers.split(',').any(|name| name == controller) => Version::One,
            (_, _) => continue,
        };
        let Some((root, point)) = mount_point(&mounts, version, controller) else {
            continue;
        };
        let own = point.join(Path::new(path).strip_prefix(&root).unwrap_or(Path::new("")));
        found.push((version, own.clone()));
        if let (Version::Two, Some(above)) = (version, own.parent().filter(|above| above.starts_with(&point)))
        {
            found.push((version, above.to_owned()));
        }
    }
    Ok(found)
}

/// The root and the mount point of the hierarchy, from the kernel's table of mounts.
fn mount_point(mounts: &str, version: Version, controller: &str) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, _source, options) = (right.next()?, right.next()?, right.next()?);
        let matches = match version {
            Version::One => kind == "cgroup" && options.split(',').any(|option| option == controller),
            Version::Two => kind == "cgroup2",
        };
        let mut left = left.split(' ').skip(3);
        matches.then(|| Some((PathBuf::from(left.next()?), PathBuf::from(left.next()?)))).flatten()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_types, reason = "runs itself in a group of its own")]
    use std::io::Write;
    use std::process::Command;

    use super::*;

    #[test]
    fn the_mount_table_is_read_for_both_versions() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                      31 23 0:27 /docker/x /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw,nsdelegate";
        let one = mount_point(mounts, Version::One, "memory");
        assert_eq!(one, Some((PathBuf::from("/"), PathBuf::from("/sys/fs/cgroup/memory"))));
        let two = mount_point(mounts, Version::Two, "memory");
        assert_eq!(two, Some((PathBuf::from("/docker/x"), PathBuf::from("/sys/fs/cgroup/unified"))));
    }

    const TEST: &str = "host::cgroup::tests::a_process_alone_in_its_group_makes_room_below_it";

    /// In a process of its own, alone in a delegated group. The memory controller may belong to version 1 here; every controller of
    /// resources is refused in the same way.
    #[test]
    fn a_process_alone_in_its_group_makes_room_below_it() {
        let Some(group) = std::env::var_os("EFFECTD_TEST_GROUP") else {
            return in_own_group();
        };
        let (group, controller) = (PathBuf::from(group), std::env::var("EFFECTD_TEST_CONTROLLER").unwrap());
        let enable = format!("+{controller}");
        let busy = make_base(Version::Two, &group, "effectd-0-0", &enable).unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy, "{busy}");
        assert!(vacate(&group, "none").is_err(), "nothing is gained without the controller");
        vacate(&group, &controller).unwrap();
        make_base(Version::Two, &group, "effectd-0-0", &enable).unwrap();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        assert!(own.lines().any(|line| line.starts_with("0::") && line.ends_with("/runtime")), "{own}");
        assert!(vacate(&group.join(OWN), &controller).is_err(), "it moves once");
    }

    fn in_own_group() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let top = mount_point(&mounts, Version::Two, "").map(|(_, point)| point).unwrap_or_default();
        let offered = fs::read_to_string(top.join("cgroup.controllers")).unwrap_or_default();
        let controller =
            ["memory", "hugetlb"].into_iter().find(|name| offered.contains(name)).unwrap_or("memory");
        let group = top.join(format!("effectd-test-{}", std::process::id()));
        let control = top.join("cgroup.subtree_control");
        let before = fs::read_to_string(&control).unwrap_or_default();
        let made = fs::write(&control, format!("+{controller}")).and_then(|()| fs::create_dir(&group));
        if let Err(error) = made {
            // Past the capture of libtest, which would swallow it.
            let line = format!("NOT RUN (no group of cgroup v2 can be made, {}): {TEST}\n", error.kind());
            return std::io::stderr().write_all(line.as_bytes()).unwrap();
        }
        let script = "echo 0 >\"$EFFECTD_TEST_GROUP/cgroup.procs\" && exec \"$0\" --exact \"$1\" --nocapture";
        let ran = Command::new("sh")
            .args(["-c", script])
            .arg(std::env::current_exe().unwrap())
            .arg(TEST)
            .env("EFFECTD_TEST_GROUP", &group)
            .env("EFFECTD_TEST_CONTROLLER", controller)
            .output()
            .unwrap();
        for left in [group.join("effectd-0-0"), group.join(OWN), group] {
            let _never_made = fs::remove_dir(left);
        }
        if !before.split_whitespace().any(|name| name == controller) {
            let _in_use = fs::write(&control, format!("-{controller}"));
        }
        let words = String::from_utf8_lossy(&ran.stdout);
        assert!(
            ran.status.success() && words.contains("1 passed"),
            "{words}{}",
            String::from_utf8_lossy(&ran.stderr)
        );
    }
}
