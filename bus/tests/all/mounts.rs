//! File systems made for one test.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Says that a test needs root, in the words that CI looks for.
pub(crate) fn is_root(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        // Past the capture of libtest, which would swallow it.
        let _ = writeln!(std::io::stderr(), "NOT RUN (needs root): {test}");
    }
    root
}

fn run(program: &str, arguments: &[&str]) {
    let output =
        Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?} failed: {said}");
}

/// Unmounts as soon as the kernel lets go: another test's child that was just forked has the files of this process until it starts its
/// program.
fn unmount(path: &Path) {
    let begun = std::time::Instant::now();
    loop {
        let output = Command::new("umount").arg(path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return;
        }
        let may_end = said.contains("target is busy") && begun.elapsed() < std::time::Duration::from_secs(60);
        assert!(may_end, "umount {} failed: {said}", path.display());
        std::thread::yield_now();
    }
}

/// A mount that is gone when it is dropped.
pub(crate) struct Mount {
    path: PathBuf,
}

impl Mount {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn at(path: PathBuf, arguments: &[&str]) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        let target = path.to_str().unwrap().to_owned();
        run("mount", &[arguments, &[&target]].concat());
        Mount { path }
    }

    pub(crate) fn tmpfs(path: PathBuf, megabytes: u32) -> Self {
        Mount::at(path, &["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"])
    }

    /// Lets a tmpfs hold this many files in all.
    pub(crate) fn limit_files(&self, most: u32) {
        run("mount", &["-o", &format!("remount,nr_inodes={most}"), self.path.to_str().unwrap()]);
    }

    /// Mounts a folder over itself, read-only for every file that is opened from now on.
    pub(crate) fn read_only(path: PathBuf) -> Self {
        let source = path.to_str().unwrap().to_owned();
        Mount::at(path, &["--bind", "-o", "ro", &source])
    }

    /// The kernel commits the file system's journal every five minutes instead of every five seconds: what reaches the device
    /// within a test got there by a sync.
    pub(crate) fn image(image: &Path, path: PathBuf) -> Self {
        Mount::at(path, &["-o", "loop,commit=300", image.to_str().unwrap()])
    }

    /// Shuts an ext4 file system down as a power failure would: nothing that has not reached the device gets there.
    #[allow(unsafe_code, reason = "the ioctl has no safe wrapper")]
    pub(crate) fn cut_power(&self) {
        /// `_IOR('X', 125, __u32)`, and its flag that not even the file system's own journal is written.
        const EXT4_IOC_SHUTDOWN: nix::libc::c_ulong = 0x8004_587d;
        let no_log_flush = 2_u32;
        let root = std::fs::File::open(&self.path).unwrap();
        // SAFETY: the descriptor is open for the whole call, and the kernel reads one u32.
        let done = unsafe { nix::libc::ioctl(root.as_raw_fd(), EXT4_IOC_SHUTDOWN, &raw const no_log_flush) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Unmounts it at once and completely: who opens the device afterwards sees what is on it.
    pub(crate) fn unmount(self) {
        unmount(&self.path);
    }
}

/// Fills the disk up to `left` bytes, until this value is dropped.
pub(crate) struct Ballast(PathBuf);

impl Ballast {
    pub(crate) fn all_but(disk: &Path, left: u64) -> Self {
        let stat = nix::sys::statvfs::statvfs(disk).unwrap();
        let free = stat.blocks_available() * stat.fragment_size();
        let path = disk.join("ballast");
        let size = usize::try_from(free.saturating_sub(left)).unwrap();
        std::fs::write(&path, vec![0; size]).unwrap();
        Ballast(path)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).output();
    }
}

/// Makes an ext4 file system, with its journal, inside a file.
pub(crate) fn make_ext4(image: &Path, megabytes: u64) {
    let file = std::fs::File::create(image).unwrap();
    file.set_len(megabytes << 20).unwrap();
    run("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image.to_str().unwrap()]);
}
