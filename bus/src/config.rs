//! The configuration of a store in a state directory.

use std::path::PathBuf;
use std::time::Duration;

use crate::limits::{
    DISK_FREE_BYTES_MIN, INDEX_CACHE_BYTES, INDEX_MEMTABLE_ENTRIES, JOURNAL_OPEN_MAX, SEGMENT_BYTES,
};
use crate::progress::Progress;

/// What the journal is stored in. Chosen when the store is created; [`crate::offline::migrate`] changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalKind {
    Files,
    Sled,
}

impl JournalKind {
    pub(crate) const ALL: [Self; 2] = [Self::Files, Self::Sled];

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

    /// The other of the two kinds.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Files => Self::Sled,
            Self::Sled => Self::Files,
        }
    }
}

impl Default for JournalKind {
    /// Plain files. Test suites run on sled with `EFFECTD_TEST_JOURNAL=sled`, which no release reads.
    fn default() -> Self {
        #[cfg(feature = "failpoints")]
        if std::env::var("EFFECTD_TEST_JOURNAL").is_ok_and(|name| name == Self::Sled.as_str()) {
            return Self::Sled;
        }
        Self::Files
    }
}

/// What makes a block durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// `fdatasync` after every block.
    #[default]
    Synced,
    /// Nothing, so blocks do not survive power loss: for a copy that is synced once at its end, and for the test that
    /// shows why syncing is needed.
    Unsynced,
}

#[derive(Debug, Clone)]
pub struct EmbeddedConfig {
    /// The state directory; `journal`, `index` and `keys` are created in it.
    pub state: PathBuf,
    /// Start with a new device key when the old one is lost. What was sealed stays unreadable.
    pub accept_key_loss: bool,
    /// The kind of a new journal.
    pub journal: JournalKind,
    /// Size at which a segment is full.
    pub segment_bytes: usize,
    /// sled's cache of the journal. A hint, not a bound of its memory.
    pub journal_cache_bytes: u64,
    /// Bytes of the index's cache.
    pub index_cache_bytes: u64,
    /// Entries of a memtable before it is written as a run.
    pub index_memtable_entries: usize,
    /// How long sled may take to open its journal, in addition to a time that depends on the size.
    pub journal_open_max: Duration,
    /// Free space below which new work is refused.
    pub disk_free_bytes_min: u64,
    /// Only copies of a journal and tests use [`Durability::Unsynced`].
    pub durability: Durability,
    /// Is told how far an opening has come that replays the journal, and long work on a store that no process uses.
    pub progress: Progress,
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
            index_memtable_entries: INDEX_MEMTABLE_ENTRIES,
            journal_open_max: JOURNAL_OPEN_MAX,
            disk_free_bytes_min: DISK_FREE_BYTES_MIN,
            durability: Durability::default(),
            progress: Progress::default(),
        }
    }
}
