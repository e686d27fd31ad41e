//! The embedded engine: the journal and, beside it, the index, both in plain files; or the journal in a sled database.
//!
//! sled has traps, and this module is where they are kept: its `flush` does not survive power loss, so every append is
//! followed by an `fdatasync` of our own; it may panic on damaged files, or never end, so every call is guarded and
//! opening has a deadline; after an error its handle is poisoned, so it is opened anew. Its transactions and
//! `flush_async` are not used at all. The index is not in sled, since what can be made again need not be synced often,
//! and a sled database that was not synced may fail to open after a power cut.

mod builder;
mod cache;
mod chunk;
pub mod forward;
mod grounds;
mod guard;
mod index;
mod journal;
mod manifest;
mod merge;
pub mod rescue;
mod run;
pub mod salvage;
mod segments;

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use effectd_contracts::Clock;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::block::FORMAT;
use crate::engine::{LocalStore, Medium, Opened};
use crate::error::StoreError;
use crate::fold::snapshot;
use crate::journal::{ADVICE, Journal};
use crate::limits::{
    DISK_FREE_BYTES_MIN, INDEX_CACHE_BYTES, INDEX_GATHER_ENTRIES, JOURNAL_OPEN_MAX, SEGMENT_BYTES,
};
use crate::log::Log;
use crate::table::Base as _;
use crate::vault::Vault;
use crate::vault::keyring::{failed, name, private_dir, sync_dir, write_new};
use index::FileIndex;
use journal::SledJournal;
use parking_lot::Mutex;
use segments::SegmentJournal;

pub use journal::Durability;

/// How long a database that was just let go may still be held by its own background threads.
const RELEASE_WAIT: Duration = Duration::from_secs(5);

/// How long a state directory may still be held by another process: one that was just killed holds its lock until the kernel has
/// taken all of it down.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// How often the lock is tried meanwhile.
const LOCK_LOOK: Duration = Duration::from_millis(5);

/// What carries the journal of a store. Chosen when the store is made; [`rescue::migrate`] changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalKind {
    Files,
    Sled,
}

impl JournalKind {
    const ALL: [Self; 2] = [Self::Files, Self::Sled];

    /// Its name in settings, on the command line and in `journal/format`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Sled => "sled",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    fn directory(self, state: &Path) -> PathBuf {
        match self {
            Self::Files => segments::directory(state),
            Self::Sled => journal::directory(state),
        }
    }

    fn open(self, config: &EmbeddedConfig) -> Result<Arc<dyn Journal>, StoreError> {
        Ok(match self {
            Self::Files => Arc::new(SegmentJournal::open(config)?),
            Self::Sled => Arc::new(released(|| SledJournal::open(config))?),
        })
    }
}

impl Default for JournalKind {
    /// Plain files. Whole suites of tests run on the other one with `EFFECTD_TEST_JOURNAL=sled`, which no release reads.
    fn default() -> Self {
        #[cfg(feature = "failpoints")]
        if std::env::var("EFFECTD_TEST_JOURNAL").is_ok_and(|name| name == Self::Sled.as_str()) {
            return Self::Sled;
        }
        Self::Files
    }
}

#[derive(Debug, Clone)]
pub struct EmbeddedConfig {
    /// The state directory; `journal`, `index` and `keys` are made in it.
    pub state: PathBuf,
    /// Start anew when the device key is lost. What was sealed stays unreadable.
    pub accept_key_loss: bool,
    /// What carries the journal, if there is none yet.
    pub journal: JournalKind,
    /// Size at which a file of the journal is full.
    pub segment_bytes: usize,
    /// What sled may cache of the journal. Not a bound of its memory, only a wish.
    pub journal_cache_bytes: u64,
    /// How much of the index may be kept in memory after it was read.
    pub index_cache_bytes: u64,
    /// Index entries that are gathered in memory before they are written as one file.
    pub index_gather_entries: usize,
    /// How long the journal may take to open, beside what its size allows.
    pub journal_open_max: Duration,
    /// Free space below which new work is refused.
    pub disk_free_bytes_min: u64,
    /// What makes a block durable. Anything but the default is for tests that show why.
    pub durability: Durability,
}

impl EmbeddedConfig {
    pub fn new(state: impl Into<PathBuf>) -> Self {
        EmbeddedConfig {
            state: state.into(),
            accept_key_loss: false,
            journal: JournalKind::default(),
            segment_bytes: SEGMENT_BYTES,
            journal_cache_bytes: 16 << 20,
            index_cache_bytes: INDEX_CACHE_BYTES,
            index_gather_entries: INDEX_GATHER_ENTRIES,
            journal_open_max: JOURNAL_OPEN_MAX,
            disk_free_bytes_min: DISK_FREE_BYTES_MIN,
            durability: Durability::default(),
        }
    }
}

/// What stands between the engine and its journal: a slower disk, or one that fails.
pub type Wrap = Box<dyn Fn(Arc<dyn Journal>) -> Arc<dyn Journal> + Send + Sync>;

/// Opens the store in a state directory, which is made if it is not there. One process at a time.
pub fn open(config: EmbeddedConfig, clock: Arc<dyn Clock>) -> Result<LocalStore, StoreError> {
    open_wrapped(config, clock, Box::new(|journal| journal))
}

/// Opens the store with something between the engine and its journal, for measurements and tests.
pub fn open_wrapped(
    mut config: EmbeddedConfig,
    clock: Arc<dyn Clock>,
    wrap: Wrap,
) -> Result<LocalStore, StoreError> {
    let lock = prepared(&mut config)?;
    private_dir(&config.state.join("index"))?;
    let vault = Vault::open(config.state.join("keys"), config.accept_key_loss)?;
    let medium = Embedded {
        config,
        wrap,
        lock: Mutex::new(Some(lock)),
    };
    LocalStore::start(Box::new(medium), clock, Arc::new(vault))
}

/// Chooses what carries the journal of a state directory, before there is a store in it.
pub fn choose(state: &Path, journal: JournalKind) -> Result<(), StoreError> {
    let mut config = EmbeddedConfig {
        journal,
        ..EmbeddedConfig::new(state)
    };
    prepared(&mut config).map(drop)
}

pub fn journal_of(state: &Path) -> Result<JournalKind, StoreError> {
    read_format(&format_path(state))?.ok_or(StoreError::NotFound { what: "a store here" })
}

/// Locks a state directory, and finds out what carries its journal. What a migration left of the other kind is removed.
fn prepared(config: &mut EmbeddedConfig) -> Result<Flock<File>, StoreError> {
    private_dir(&config.state)?;
    private_dir(&config.state.join("journal"))?;
    let lock = lock(&config.state)?;
    config.journal = check_format(&config.state, config.journal)?;
    for other in JournalKind::ALL
        .into_iter()
        .filter(|kind| *kind != config.journal)
    {
        let left = other.directory(&config.state);
        if left.exists() && !config.journal.directory(&config.state).exists() {
            let what = format!(
                "{} names a journal in {}, and the one that is there is in {}",
                name(&format_path(&config.state)),
                config.journal.as_str(),
                other.as_str()
            );
            return Err(StoreError::Damaged { what, advice: ADVICE });
        }
    }
    Ok(lock)
}

struct Embedded {
    config: EmbeddedConfig,
    wrap: Wrap,
    lock: Mutex<Option<Flock<File>>>,
}

impl Medium for Embedded {
    fn open(&self) -> Result<Opened, StoreError> {
        let journal = self.config.journal.open(&self.config)?;
        // Only now: what a migration left is not removed on the word of a file alone.
        for other in JournalKind::ALL
            .into_iter()
            .filter(|kind| *kind != self.config.journal)
        {
            remove(&other.directory(&self.config.state))?;
        }
        let log = Log::open(&self.config.state.join("log"))?;
        let index = match opened_index(&self.config, &log) {
            Ok(index) => index,
            // The index is made from the journal, and can be made again.
            Err(error @ StoreError::Damaged { .. }) => {
                tracing::warn!(%error, "the index cannot be read and is made anew from the journal");
                let path = self.config.state.join("index");
                std::fs::remove_dir_all(&path).map_err(|error| failed(&path, &error))?;
                private_dir(&path)?;
                FileIndex::open(&self.config)?
            }
            Err(error) => return Err(error),
        };
        Ok(Opened {
            journal: (self.wrap)(journal),
            base: Some(Arc::new(index)),
            log,
            gather_entries: self.config.index_gather_entries,
        })
    }

    fn refusal(&self) -> Option<StoreError> {
        refusal(&self.config.state, self.config.disk_free_bytes_min)
    }

    fn letter_files(&self) -> Option<PathBuf> {
        Some(self.config.state.join("bus").join("dlq"))
    }

    fn release(&self) {
        self.lock.lock().take();
    }
}

/// Why a store in this directory refuses new work, if it does. What cannot be found out is no reason: the write itself fails then.
pub fn refusal(state: &Path, disk_free_bytes_min: u64) -> Option<StoreError> {
    let stat = nix::sys::statvfs::statvfs(state).ok()?;
    if stat.blocks_available().saturating_mul(stat.fragment_size()) < disk_free_bytes_min {
        return Some(StoreError::Full);
    }
    // Asked by opening a file, since a file system that went read-only after an error need not say so in its flags.
    let opened = OpenOptions::new().write(true).open(lock_path(state));
    let read_only = opened.is_err_and(|error| error.kind() == ErrorKind::ReadOnlyFilesystem);
    read_only.then_some(StoreError::ReadOnly)
}

/// The index, whose log must be there too: it is made from the same journal.
fn opened_index(config: &EmbeddedConfig, log: &Log) -> Result<FileIndex, StoreError> {
    let index = FileIndex::open(config)?;
    let size = index.vouched().map_or(Ok(0), |vouch| {
        snapshot::log(&vouch.snapshot).map(|tree| tree.size())
    });
    if log.holds(size.map_err(chunk::malformed)?)? {
        Ok(index)
    } else {
        Err(damaged("hashes of the log that should be there are not"))
    }
}

/// Tries again while the database is still held by threads of a handle that was dropped a moment ago.
fn released<T>(open: impl Fn() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let end = Instant::now() + RELEASE_WAIT;
    loop {
        match open() {
            Err(StoreError::Locked { .. }) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(2))
            }
            other => return other,
        }
    }
}

/// An index that cannot be read. Whoever opens it makes it anew.
fn damaged(what: &str) -> StoreError {
    StoreError::Damaged {
        what: format!("the index: {what}"),
        advice: "It is made anew from the journal when effectd next writes or starts.",
    }
}

/// A file of the index that is missing or ends too early is damage; anything else is the disk's.
fn read_failed(path: &Path, error: &std::io::Error) -> StoreError {
    if error.kind() == ErrorKind::NotFound {
        damaged("a file that should be there is not")
    } else if error.kind() == ErrorKind::UnexpectedEof {
        damaged("a file that was cut off")
    } else {
        failed(path, error)
    }
}

fn lock_path(state: &Path) -> PathBuf {
    state.join("journal").join("lock")
}

/// Holds the state directory for this process until it is dropped.
fn lock(state: &Path) -> Result<Flock<File>, StoreError> {
    let path = lock_path(state);
    let mut options = OpenOptions::new();
    let options = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600);
    let mut file = options.open(&path).map_err(|error| failed(&path, &error))?;
    let end = Instant::now() + LOCK_WAIT;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((unlocked, Errno::EWOULDBLOCK)) if Instant::now() < end => {
                file = unlocked;
                std::thread::sleep(LOCK_LOOK);
            }
            Err((_, Errno::EWOULDBLOCK)) => {
                return Err(StoreError::Locked {
                    path: state.to_owned(),
                });
            }
            Err((_, errno)) => return Err(failed(&path, &errno.into())),
        }
    }
}

fn format_path(state: &Path) -> PathBuf {
    state.join("journal").join("format")
}

/// Reads or, in an empty directory, writes the store's format, with what carries its journal.
fn check_format(state: &Path, new: JournalKind) -> Result<JournalKind, StoreError> {
    let path = format_path(state);
    if let Some(kind) = read_format(&path)? {
        return Ok(kind);
    }
    if JournalKind::ALL.iter().any(|kind| kind.directory(state).exists()) {
        return Err(StoreError::Damaged {
            what: format!("{} is missing beside a journal", name(&path)),
            advice: ADVICE,
        });
    }
    write_format(state, new)?;
    Ok(new)
}

/// The file says `<format> <kind>`; `None` if it is not there.
fn read_format(path: &Path) -> Result<Option<JournalKind>, StoreError> {
    let bytes = match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|error| failed(path, &error))?,
    };
    let damaged = |what: &str| StoreError::Damaged {
        what: format!("{} does not hold {what}", name(path)),
        advice: ADVICE,
    };
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

/// Puts a kind of journal in force, as a whole or not at all.
fn write_format(state: &Path, kind: JournalKind) -> Result<(), StoreError> {
    let text = format!("{FORMAT} {}\n", kind.as_str());
    write_new(&format_path(state), text.as_bytes())
}

fn remove(directory: &Path) -> Result<(), StoreError> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(directory, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Syncs all files of a directory and of those in it, and their names.
fn sync_tree(directory: &Path) -> Result<(), StoreError> {
    let at_path = |error: std::io::Error| failed(directory, &error);
    for entry in std::fs::read_dir(directory).map_err(at_path)? {
        let path = entry.map_err(at_path)?.path();
        if path.is_dir() {
            sync_tree(&path)?;
        } else {
            let synced = File::open(&path).and_then(|file| file.sync_all());
            synced.map_err(|error| failed(&path, &error))?;
        }
    }
    sync_dir(directory)
}
