//! The engine of every local store: a queue, one writer, one thread that flushes the index, and readers beside them.
//!
//! The writer takes the waiting operations, decides each against the state, writes all of their records as one block,
//! syncs it once, and only then makes it visible and answers the callers. If it cannot make the block durable, no reader
//! has seen any part of the block; the store is reopened from disk, and the callers get `Unavailable`.

mod dead_letter_files;
pub mod embedded;
pub mod journal_copy;
pub mod offline;
mod queue;
mod recover;
mod retention;
pub mod salvage;
mod store;
mod verify;
mod writer;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use effectd_contracts::Clock;
use parking_lot::{Mutex, RwLock};

use crate::commands::drafts::Drafter;
use crate::error::StoreError;
use crate::index::{Index, RunStore};
use crate::journal::{Journal, MemoryJournal};
use crate::merkle_log::{Kept, MerkleLog};
use crate::names::{GroupName, TopicName};
use crate::progress::Progress;
use crate::reads::Reader;
use crate::stats::Meters;
use crate::vault::Vault;
use crate::watch::Signal;
use queue::Queue;
pub use verify::Audit;

/// What a local store is stored in. Opened at start, and again after every disk error.
pub(crate) trait Medium: Send + Sync {
    fn open(&self) -> Result<Opened, StoreError>;
    /// Why new work is refused now, if it is. Also measures the disk.
    fn refusal(&self, _: &Meters) -> Option<StoreError> {
        None
    }
    /// Where dead letters are written as files, if anywhere.
    fn letter_files(&self) -> Option<PathBuf> {
        None
    }
    /// Lets other processes open the medium, after this process has closed all files.
    fn release(&self) {}
}

pub(crate) struct Opened {
    pub(crate) journal: Arc<dyn Journal>,
    /// `None` for an index in memory.
    pub(crate) runs: Option<Arc<dyn RunStore>>,
    pub(crate) log: MerkleLog,
    /// Entries of a memtable before it is flushed.
    pub(crate) memtable_entries: usize,
    pub(crate) progress: Progress,
}

/// What all threads of a store share.
pub(crate) struct Shared {
    clock: Arc<dyn Clock>,
    vault: Arc<Vault>,
    meters: Meters,
    medium: Box<dyn Medium>,
    queue: Queue,
    /// Why the writer last refused new work.
    refusal: Mutex<Option<StoreError>>,
    /// The first lasting damage that was met.
    damage: Mutex<Option<StoreError>>,
    reader: RwLock<Arc<Reader>>,
    topic_signals: Mutex<HashMap<TopicName, Arc<Signal>>>,
    /// Raised when a group may have something to lease.
    group_signals: Mutex<HashMap<(TopicName, GroupName), Arc<Signal>>>,
    /// Raised when a dead letter is added or removed.
    letters: Arc<Signal>,
    /// Held by retention: one step at a time.
    retention: Mutex<retention::Progress>,
}

/// A store in this process, in memory or in a state directory. Clones are handles of the same store, which closes when
/// the last one is dropped.
#[derive(Clone)]
pub struct LocalStore {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Shared {
    fn reader(&self) -> Arc<Reader> {
        self.reader.read().clone()
    }

    /// The reader, or an error if the store cannot be read.
    fn alive(&self) -> Result<Arc<Reader>, StoreError> {
        let reader = self.reader();
        reader.alive().map(|()| reader)
    }

    fn drafter(&self) -> Drafter<'_> {
        Drafter { vault: &self.vault, clock: self.clock.as_ref() }
    }

    /// Asks the medium whether it refuses new work, and remembers the answer.
    fn check_refusal(&self) -> Option<StoreError> {
        let refusal = self.medium.refusal(&self.meters);
        self.refusal.lock().clone_from(&refusal);
        refusal
    }

    /// Why new work is refused: the store is not open, or the medium refused it at the last check.
    fn refusal(&self) -> Option<StoreError> {
        let last = || self.refusal.lock().clone();
        self.reader().dead.clone().or_else(last)
    }

    /// Remembers the first lasting damage. `first` was the first block of the journal when the read began: if retention has
    /// dropped blocks since, the read may have looked for one of them.
    fn note_damage(&self, first: u64, error: Option<&StoreError>) {
        let Some(error) = error.filter(|error| error.is_lasting_damage()) else {
            return;
        };
        let mut known = self.damage.lock();
        if known.is_none() && self.reader().journal.first() == first {
            tracing::error!(%error, "a read has met damage of the store");
            self.meters.damaged.set(1);
            *known = Some(error.clone());
        }
    }

    /// Updates the meters of dead letters and open claims.
    fn measure(&self) {
        let reader = self.reader();
        let live = reader.live.read();
        let quarantined = live.quarantined.len() as u64;
        self.meters.letters.set(gauged(live.letters.saturating_sub(quarantined)));
        self.meters.quarantined.set(gauged(quarantined));
        self.meters.intents_open.store(live.open_claims, Ordering::Relaxed);
    }

    fn now_ms(&self) -> i64 {
        self.clock.now().as_millisecond()
    }

    /// A reader that fails with this error.
    fn dead_reader(&self, error: StoreError) -> Reader {
        Reader {
            journal: Arc::new(MemoryJournal::default()),
            index: Index::new(None, MerkleLog::in_memory(Kept::default()), usize::MAX),
            vault: self.vault.clone(),
            live: RwLock::default(),
            dead: Some(error),
        }
    }
}

fn gauged(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// Starts a thread of the store.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map_err(|error| {
        StoreError::unavailable_by(format_args!("no thread can be started for {name}"), error)
    })
}

impl LocalStore {
    pub(crate) fn start(
        medium: Box<dyn Medium>,
        clock: Arc<dyn Clock>,
        vault: Arc<Vault>,
    ) -> Result<Self, StoreError> {
        let (reader, tip) = recover::recover(medium.as_ref(), clock.as_ref(), &vault)?;
        if reader.journal.bounds()?.is_some() {
            vault.follows(clock.now())?;
        }
        let shared = Arc::new(Shared {
            clock,
            vault,
            meters: Meters::new(),
            medium,
            queue: Queue::default(),
            refusal: Mutex::default(),
            damage: Mutex::default(),
            reader: RwLock::new(Arc::new(reader)),
            topic_signals: Mutex::default(),
            group_signals: Mutex::default(),
            letters: Arc::default(),
            retention: Mutex::default(),
        });
        shared.measure();
        let writer = Mutex::new(Some(writer::spawn(shared.clone(), tip)?));
        Ok(LocalStore { inner: Arc::new(Inner { shared, writer }) })
    }

    pub fn register_metrics(&self, registry: &prometheus::Registry) -> Result<(), prometheus::Error> {
        self.inner.shared.meters.register(registry)
    }
}

impl std::fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LocalStore")
    }
}

impl Inner {
    fn close(&self) -> Result<(), StoreError> {
        self.shared.queue.close();
        let thread = self.writer.lock().take();
        let result = match thread.map(JoinHandle::join) {
            Some(Err(_)) => Err(StoreError::unavailable("the writer ended with a panic")),
            Some(Ok(())) | None => Ok(()),
        };
        self.shared.topic_signals.lock().values().for_each(|signal| signal.close());
        self.shared.group_signals.lock().values().for_each(|signal| signal.close());
        result
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Callers that need the result call `close` first.
        let _ = self.close();
    }
}
