//! The lock and the format file of a state directory.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use effectd_contracts::limits::DISK_FREE_FILES_MIN;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::block::FORMAT;
use super::directory;
use crate::config::{EmbeddedConfig, JournalKind};
use crate::error::StoreError;
use crate::files::{file_name, io_error, private, private_dir, write_new};

/// How long to wait for the lock of a killed process, which the kernel may still be ending.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// Locks a state directory, and sets the kind of its journal in the configuration.
pub(crate) fn lock_journal(config: &mut EmbeddedConfig) -> Result<Flock<File>, StoreError> {
    private_dir(&config.state)?;
    private_dir(&config.state.join("journal"))?;
    let lock = lock(&config.state)?;
    config.journal = check_format(&config.state, config.journal)?;
    let other = config.journal.other();
    if directory(other, &config.state).exists() && !directory(config.journal, &config.state).exists() {
        return Err(StoreError::damaged(format!(
            "{} names a journal of the kind {}, but the directory has one of the kind {}",
            file_name(&format_path(&config.state)),
            config.journal.as_str(),
            other.as_str()
        )));
    }
    Ok(lock)
}

/// Sets the kind of the journal of a state directory that has no store yet.
pub fn choose(state: &Path, journal: JournalKind) -> Result<(), StoreError> {
    let mut config = EmbeddedConfig { journal, ..EmbeddedConfig::new(state) };
    lock_journal(&mut config).map(drop)
}

pub fn journal_of(state: &Path) -> Result<JournalKind, StoreError> {
    read_format(&format_path(state))?.ok_or(StoreError::NotFound { what: "a store here" })
}

/// Why a store in this directory refuses new work, if it does. If the check itself fails, the write decides.
pub fn refusal(state: &Path, disk_free_bytes_min: u64) -> Option<StoreError> {
    Disk::of(state)?.refusal(state, disk_free_bytes_min)
}

/// The disk that holds a state directory.
pub(crate) struct Disk {
    pub(crate) free_bytes: u64,
    pub(crate) size_bytes: u64,
    has_few_files: bool,
}

impl Disk {
    /// `None` if the system does not say.
    pub(crate) fn of(state: &Path) -> Option<Self> {
        let stat = nix::sys::statvfs::statvfs(state).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
        Some(Self {
            free_bytes: bytes(stat.blocks_available()),
            size_bytes: bytes(stat.blocks()),
            // A file system without a bound on its files counts none.
            has_few_files: stat.files() > 0 && stat.files_available() < DISK_FREE_FILES_MIN,
        })
    }

    pub(crate) fn refusal(&self, state: &Path, disk_free_bytes_min: u64) -> Option<StoreError> {
        if self.has_few_files || self.free_bytes < disk_free_bytes_min {
            return Some(StoreError::Full);
        }
        // A file system that went read-only after an error may not show it in its flags, so this opens a file.
        let opened = File::options().write(true).open(lock_path(state));
        let read_only = opened.is_err_and(|error| error.kind() == ErrorKind::ReadOnlyFilesystem);
        read_only.then_some(StoreError::ReadOnly)
    }
}

fn lock_path(state: &Path) -> PathBuf {
    state.join("journal").join("lock")
}

/// Holds the state directory for this process until the lock is dropped.
#[expect(clippy::disallowed_methods, reason = "how long another process may take to let go")]
pub(crate) fn lock(state: &Path) -> Result<Flock<File>, StoreError> {
    let path = lock_path(state);
    let mut options = private();
    let options = options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(&path).map_err(|error| io_error(&path, error))?;
    let end = Instant::now() + LOCK_WAIT;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((unlocked, Errno::EWOULDBLOCK)) if Instant::now() < end => {
                file = unlocked;
                std::thread::sleep(LOCK_RETRY);
            }
            Err((_, Errno::EWOULDBLOCK)) => {
                return Err(StoreError::Locked { path: state.to_owned() });
            }
            Err((_, errno)) => return Err(io_error(&path, errno.into())),
        }
    }
}

fn format_path(state: &Path) -> PathBuf {
    state.join("journal").join("format")
}

/// Reads the format file, or writes it in an empty directory; returns the kind of the journal.
fn check_format(state: &Path, new: JournalKind) -> Result<JournalKind, StoreError> {
    let path = format_path(state);
    if let Some(kind) = read_format(&path)? {
        return Ok(kind);
    }
    if JournalKind::ALL.iter().any(|kind| directory(*kind, state).exists()) {
        return Err(StoreError::damaged(format!("{} is missing beside a journal", file_name(&path))));
    }
    write_format(state, new)?;
    Ok(new)
}

/// The file has `<format> <kind>`; `None` if it does not exist.
fn read_format(path: &Path) -> Result<Option<JournalKind>, StoreError> {
    let bytes = match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|error| io_error(path, error))?,
    };
    let damaged = |what: &str| StoreError::damaged(format!("{} does not hold {what}", file_name(path)));
    let text = std::str::from_utf8(&bytes).unwrap_or_default().trim_end();
    let (found, kind) = text.split_once(' ').unwrap_or((text, ""));
    let found = found.parse().map_err(|_| damaged("a format number"))?;
    let known = u32::from(FORMAT);
    if found != known {
        return Err(StoreError::Format { found, known });
    }
    let kind = JournalKind::named(kind).ok_or_else(|| damaged("a kind of journal"))?;
    Ok(Some(kind))
}

/// Makes this the kind of the journal, atomically.
pub(crate) fn write_format(state: &Path, kind: JournalKind) -> Result<(), StoreError> {
    let text = format!("{FORMAT} {}\n", kind.as_str());
    write_new(&format_path(state), text.as_bytes())
}
