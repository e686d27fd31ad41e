//! The engine behind every local store: a queue, one writer, one mover of index layers, and readers beside them.
//!
//! The writer takes what waits, decides each operation against the working state, writes all of it as one block, makes
//! it durable once, and only then shows it to readers and answers everyone. If the block cannot be made durable, nothing
//! of it was ever shown; the store is opened anew from what is on disk, and the callers are told to ask again.

mod audit;
mod drafts;
mod letters;
mod log;
mod mirror;
mod queries;
mod queue;
pub(crate) mod reads;
pub(crate) mod recover;
mod retain;
mod serve;
mod writer;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use effectd_contracts::merkle::Frontier;
use effectd_contracts::{ActionId, Clock, Digest, Timestamp};

use crate::codec::Hash16;
use crate::error::StoreError;
use crate::fold::Fold;
use crate::journal::{Journal, MemoryJournal};
use crate::log::{Kept, Log};
use crate::names::{GroupName, TopicName};
use crate::stats::Meters;
use crate::table::{Base, Table};
use crate::vault::Vault;
use crate::watch::Signal;
pub use audit::Audit;
use parking_lot::{Mutex, RwLock};
pub(crate) use queue::Finish;
use queue::Queue;
pub(crate) use recover::{damaged, rebuilt};

/// Opens what a local store lies in. Called once at start, and again after every error of the disk.
pub(crate) trait Medium: Send + Sync {
    fn open(&self) -> Result<Opened, StoreError>;
    /// Why new work is refused now, if it is.
    fn refusal(&self) -> Option<StoreError>;
    /// Where dead letters are to be found as files, if anywhere.
    fn letter_files(&self) -> Option<PathBuf>;
    /// Lets others open it; nothing of it is open here any more.
    fn release(&self);
}

pub(crate) struct Opened {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) base: Option<Arc<dyn Base>>,
    pub(crate) log: Log,
    /// Index entries that are gathered before they are moved into the base.
    pub(crate) gather_entries: usize,
}

/// What readers see. Replaced as a whole when the store is opened anew.
pub(crate) struct Served {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) table: Table,
    pub(crate) live: RwLock<Live>,
    /// Why nothing can be read.
    pub(crate) dead: Option<StoreError>,
}

/// What is quick to look up and never in the index.
#[derive(Default)]
pub(crate) struct Live {
    /// Keys in flight.
    pub(crate) open_keys: HashMap<Hash16, (Digest, ActionId)>,
    pub(crate) ends: HashMap<TopicName, u64>,
    /// The first events of topics that are kept, where that is not the very first.
    pub(crate) begins: HashMap<TopicName, u64>,
    pub(crate) receipts_begin: u64,
    /// Dead letters that were requeued or purged since the store was opened.
    pub(crate) letters_ended: u64,
    pub(crate) letters: u64,
    /// The right edge of the log.
    pub(crate) log: Frontier,
    pub(crate) open_claims: u64,
}

impl Live {
    pub(crate) fn begin(&self, topic: &TopicName) -> u64 {
        self.begins.get(topic).copied().unwrap_or(0)
    }

    pub(crate) fn expire(&mut self, fold: &Fold) {
        self.receipts_begin = fold.receipts_begin;
        let begins = fold.topics.iter().filter(|(_, topic)| topic.begin > 0);
        self.begins = begins.map(|(name, topic)| (name.clone(), topic.begin)).collect();
    }
}

/// What all threads of a store share.
pub(crate) struct Shared {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) meters: Meters,
    pub(crate) medium: Box<dyn Medium>,
    pub(crate) queue: Queue,
    /// What the writer last judged about new work.
    refusal: Mutex<Option<StoreError>>,
    served: RwLock<Arc<Served>>,
    signals: Mutex<HashMap<TopicName, Arc<Signal>>>,
    /// Raised when there may be something for a group.
    group_signals: Mutex<HashMap<(TopicName, GroupName), Arc<Signal>>>,
    /// Dead letters came or went.
    pub(crate) letters: Arc<Signal>,
    /// Held by whoever lets go of old blocks: one at a time.
    pub(crate) retaining: Mutex<retain::Reached>,
}

/// A store in this process: the memory engine or the embedded one. Clones are handles to the same store, which closes
/// when the last is dropped.
#[derive(Clone)]
pub struct LocalStore {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Shared {
    pub(crate) fn served(&self) -> Arc<Served> {
        self.served.read().clone()
    }

    /// Asks the medium whether new work is taken, and keeps the answer for [`Shared::refusal`].
    pub(crate) fn judge(&self) -> Option<StoreError> {
        let refusal = self.medium.refusal();
        let mut kept = self.refusal.lock();
        kept.clone_from(&refusal);
        refusal
    }

    /// Why new work is refused: nothing is open, or what the writer last judged.
    fn refusal(&self) -> Option<StoreError> {
        let judged = || self.refusal.lock().clone();
        self.served().dead.clone().or_else(judged)
    }

    /// Shows how many dead letters and open claims there are.
    pub(crate) fn measure(&self) {
        let served = self.served();
        let (letters, claims) = {
            let live = served.live();
            (live.letters, live.open_claims)
        };
        self.meters
            .letters
            .set(i64::try_from(letters).unwrap_or(i64::MAX));
        self.meters.intents_open.store(claims, Ordering::Relaxed);
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.clock.now().as_millisecond()
    }
}

impl Served {
    /// What is served while nothing is.
    fn dead(error: StoreError) -> Self {
        Served {
            journal: Arc::new(MemoryJournal::default()),
            table: Table::new(None, Log::in_memory(Kept::default()), usize::MAX),
            live: RwLock::default(),
            dead: Some(error),
        }
    }

    pub(crate) fn alive(&self) -> Result<(), StoreError> {
        self.dead.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn live(&self) -> parking_lot::RwLockReadGuard<'_, Live> {
        self.live.read()
    }
}

/// A moment from milliseconds since 1970 that came from disk.
pub(crate) fn timestamp(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap_or_default()
}

impl LocalStore {
    pub(crate) fn start(
        medium: Box<dyn Medium>,
        clock: Arc<dyn Clock>,
        vault: Arc<Vault>,
    ) -> Result<Self, StoreError> {
        let recovered = recover::recover(medium.as_ref(), clock.as_ref(), &vault)?;
        if recovered.served.journal.bounds()?.is_some() {
            vault.follows(clock.now())?;
        }
        let shared = Arc::new(Shared {
            clock,
            vault,
            meters: Meters::new(),
            medium,
            queue: Queue::default(),
            refusal: Mutex::default(),
            served: RwLock::new(Arc::new(recovered.served)),
            signals: Mutex::default(),
            group_signals: Mutex::default(),
            letters: Arc::default(),
            retaining: Mutex::default(),
        });
        shared.measure();
        let thread = writer::spawn(shared.clone(), recovered.state)?;
        Ok(LocalStore {
            inner: Arc::new(Inner {
                shared,
                writer: Mutex::new(Some(thread)),
            }),
        })
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
            Some(Err(_)) => Err(StoreError::Unavailable {
                reason: "the writer ended with a panic".into(),
            }),
            Some(Ok(())) | None => Ok(()),
        };
        self.shared
            .signals
            .lock()
            .values()
            .for_each(|signal| signal.close());
        self.shared
            .group_signals
            .lock()
            .values()
            .for_each(|signal| signal.close());
        result
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Whoever wants to know how it went calls `close` before.
        let _ = self.close();
    }
}
