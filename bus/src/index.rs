//! The index, a log-structured merge tree: memtables for the newest blocks, runs for the rest.
//!
//! The writer hardly ever waits for the index. It adds the changes of a block to the active memtable, where every reader
//! sees them at once; when the memtable is large enough it is frozen, and a second thread writes it as a run. Changes are
//! idempotent, so a memtable may be written twice (after a crash, when the journal is replayed).

pub(crate) mod bloom;
mod cache;
mod chunk;
mod manifest;
pub mod memtable;
mod merge;
mod run;
mod run_writer;
pub(crate) mod runs;
pub mod schema;

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};

use crate::error::StoreError;
use crate::limits::{
    FAMILY_KEY_BYTES_MAX, INDEX_LAG_MAX, INDEX_MEMTABLE_BLOCKS, INDEX_MEMTABLE_BYTES, NAME_BYTES_MAX,
};
use crate::merkle_log::MerkleLog;
use memtable::{Cell, Memtable, unite};

/// Longest key of the index: a family's entry.
const KEY_BYTES_MAX: usize = 2 + NAME_BYTES_MAX + FAMILY_KEY_BYTES_MAX;

/// How long a thread waits for a flush before it checks again.
const FLUSH_CHECK: Duration = Duration::from_millis(50);

/// A set of hashes, which are not hashed again.
type Hashes = HashSet<u64, BuildHasherDefault<Unhashed>>;

#[derive(Default)]
struct Unhashed(u64);

impl Hasher for Unhashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Never called: only `u64`s are hashed here.
        self.0 = bloom::hash(bytes);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The last block that the index in a directory holds, without reading the rest of it.
pub(crate) fn applied_in(dir: &Path) -> Result<Option<Arc<Applied>>, StoreError> {
    Ok(manifest::Manifest::read(dir)?.and_then(|manifest| manifest.applied))
}

/// The runs of an index.
pub trait RunStore: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
    /// The first key in `from..end`, which may be deleted.
    fn next(&self, from: &[u8], end: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
    /// The last key in `start..=to`, which may be deleted.
    fn previous(&self, start: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
    /// Writes a memtable as the newest run; the runs hold all blocks up to `applied` then. Atomic, and durable when this
    /// returns.
    fn write(&self, memtable: &Memtable, applied: &Applied) -> Result<(), StoreError>;
    /// Continues merges for a while. Called after every [`RunStore::write`], when no thread waits for the flush any more.
    fn merge_some(&self) -> Result<(), StoreError>;
    /// The last block that the runs hold; `None` while they are empty.
    fn applied(&self) -> Option<Arc<Applied>>;
    /// Frees disk space after many deletions. May take long, but blocks neither readers nor the writer.
    fn compact(&self) -> Result<(), StoreError>;
    /// Whether a read found damage. Then the index must be reopened.
    fn is_corrupt(&self) -> bool;
}

/// The last block that the runs hold, and the state after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    pub seq: u64,
    /// The block's checksum.
    pub checksum: u32,
    pub snapshot: Vec<u8>,
}

#[derive(Default)]
struct Layers {
    active: Memtable,
    /// Hashes of the active memtable's keys: most lookups are for keys that it does not have, and a large tree takes
    /// long to find that out.
    active_hashes: Hashes,
    frozen: Option<Arc<Frozen>>,
    /// `None` for an index in memory.
    runs: Option<Arc<dyn RunStore>>,
}

/// A memtable that is being written as a run.
struct Frozen {
    memtable: Memtable,
    hashes: Hashes,
    applied: Applied,
    /// Size of the Merkle log after the `applied` block.
    log_size: u64,
}

pub(crate) struct Index {
    layers: RwLock<Layers>,
    log: MerkleLog,
    work: Mutex<Work>,
    memtable_entries: usize,
    /// A memtable was frozen, or the index stops.
    wake: Condvar,
    /// A run was written, or writing failed permanently.
    flushed: Condvar,
    /// The active memtable is to be flushed soon, however small.
    flush_requested: AtomicBool,
}

#[derive(Default)]
struct Work {
    /// Size of the active memtable.
    active: Amount,
    /// Size of the frozen memtable.
    frozen: Amount,
    stop: bool,
    failed: Option<StoreError>,
    /// Memtables that were frozen, and how many of them are runs.
    begun: u64,
    ended: u64,
}

/// How much of the journal a memtable holds.
#[derive(Debug, Clone, Copy, Default)]
struct Amount {
    blocks: usize,
    bytes: usize,
}

impl Amount {
    fn reaches(self, times: usize) -> bool {
        self.blocks >= INDEX_MEMTABLE_BLOCKS * times || self.bytes >= INDEX_MEMTABLE_BYTES * times
    }
}

impl Index {
    pub(crate) fn new(runs: Option<Arc<dyn RunStore>>, log: MerkleLog, memtable_entries: usize) -> Self {
        Index {
            layers: RwLock::new(Layers { runs, ..Layers::default() }),
            log,
            work: Mutex::default(),
            memtable_entries,
            wake: Condvar::new(),
            flushed: Condvar::new(),
            flush_requested: AtomicBool::new(false),
        }
    }

    /// The Merkle log, which is flushed with the index.
    pub(crate) fn log(&self) -> &MerkleLog {
        &self.log
    }

    /// Makes the changes of a durable block visible.
    pub(crate) fn apply(&self, changes: Memtable, block_bytes: usize) {
        let mut layers = self.layers.write();
        let is_oldest = layers.runs.is_none() && layers.frozen.is_none();
        let Layers { active, active_hashes, .. } = &mut *layers;
        active_hashes.extend(changes.cells().keys().map(|key| bloom::hash(key)));
        // Deletions hide older layers; the oldest layer needs none.
        let deleted = if is_oldest { changes.deleted() } else { Vec::new() };
        active.extend(changes);
        deleted.iter().for_each(|key| drop(active.take(key)));
        drop(layers);
        let mut work = self.work.lock();
        work.active.blocks += 1;
        work.active.bytes += block_bytes;
    }

    /// Whether the active memtable is large enough to flush, and no flush is under way.
    pub(crate) fn should_flush(&self) -> bool {
        let layers = self.layers.read();
        layers.runs.is_some()
            && layers.frozen.is_none()
            && (layers.active.len() >= self.memtable_entries || self.is_due())
    }

    fn is_due(&self) -> bool {
        let active = self.work.lock().active;
        active.reaches(1) || (active.blocks > 0 && self.flush_requested.load(Ordering::Acquire))
    }

    /// The number of flushes after which everything that is visible now is in runs; `None` for an index in memory.
    pub(crate) fn flush_target(&self) -> Option<u64> {
        let has_runs = self.layers.read().runs.is_some();
        let work = self.work.lock();
        has_runs.then(|| work.begun + u64::from(work.active.blocks > 0))
    }

    /// Requests a flush and waits a little for it; returns whether the target is reached.
    pub(crate) fn request_flush(&self, target: u64) -> Result<bool, StoreError> {
        let mut work = self.work.lock();
        if let Some(error) = &work.failed {
            return Err(error.clone());
        }
        if work.ended < target {
            self.flush_requested.store(true, Ordering::Release);
            self.flushed.wait_for(&mut work, FLUSH_CHECK);
        }
        let done = work.ended >= target;
        if done {
            self.cancel_flush();
        }
        Ok(done)
    }

    pub(crate) fn cancel_flush(&self) {
        self.flush_requested.store(false, Ordering::Release);
    }

    /// Hands the active memtable to the flushing thread. The caller has checked that no flush is under way.
    pub(crate) fn freeze(&self, applied: Applied, log_size: u64) {
        let mut layers = self.layers.write();
        let memtable = std::mem::take(&mut layers.active);
        let hashes = std::mem::take(&mut layers.active_hashes);
        layers.frozen = Some(Arc::new(Frozen { memtable, hashes, applied, log_size }));
        let mut work = self.work.lock();
        work.frozen = std::mem::take(&mut work.active);
        work.begun += 1;
        drop(work);
        drop(layers);
        self.wake.notify_all();
    }

    /// Blocks that are not in runs yet.
    pub(crate) fn lag(&self) -> usize {
        let work = self.work.lock();
        work.active.blocks + work.frozen.blocks
    }

    /// Waits until the active memtable may grow, or flushing has failed.
    pub(crate) fn wait_for_room(&self) -> Result<(), StoreError> {
        loop {
            let layers = self.layers.read();
            let is_flushing = layers.runs.is_some() && layers.frozen.is_some();
            let is_large = layers.active.len() >= self.memtable_entries.saturating_mul(INDEX_LAG_MAX);
            drop(layers);
            let mut work = self.work.lock();
            if let Some(error) = &work.failed {
                return Err(error.clone());
            }
            if work.stop || !is_flushing || !(is_large || work.active.reaches(INDEX_LAG_MAX)) {
                return Ok(());
            }
            // Layers and work have two locks, so a flush may end unnoticed just before this wait: check again soon.
            self.flushed.wait_for(&mut work, FLUSH_CHECK);
        }
    }

    /// The flushing thread: writes frozen memtables as runs until the index stops.
    pub(crate) fn flush_loop(&self) {
        loop {
            let mut work = self.work.lock();
            while work.frozen.blocks == 0 && !work.stop {
                self.wake.wait(&mut work);
            }
            if work.frozen.blocks == 0 {
                return;
            }
            drop(work);
            // A panic becomes an error: otherwise other threads would wait forever for this one.
            let flushed = catch_unwind(AssertUnwindSafe(|| self.flush_frozen()));
            let panicked = |_| Err(StoreError::unavailable("flushing the index panicked"));
            if let Err(error) = flushed.unwrap_or_else(panicked) {
                self.work.lock().failed = Some(error);
                self.flushed.notify_all();
                return;
            }
        }
    }

    pub(crate) fn flush_frozen(&self) -> Result<(), StoreError> {
        let layers = self.layers.read();
        let (Some(runs), Some(frozen)) = (layers.runs.clone(), layers.frozen.clone()) else {
            return Ok(());
        };
        drop(layers);
        // The runs must not claim blocks whose log hashes are not on disk.
        self.log.flush(frozen.log_size)?;
        runs.write(&frozen.memtable, &frozen.applied)?;
        drop(frozen);
        // Under both locks: the writer may freeze the next memtable at once, and its amount must not be reset.
        let mut layers = self.layers.write();
        let frozen = layers.frozen.take();
        let mut work = self.work.lock();
        work.frozen = Amount::default();
        work.ended = work.begun;
        drop(work);
        drop(layers);
        self.flushed.notify_all();
        // Freeing a large tree takes a while, so no lock is held.
        drop(frozen);
        runs.merge_some()
    }

    /// Frees disk space after many deletions.
    pub(crate) fn compact(&self) -> Result<(), StoreError> {
        let runs = self.layers.read().runs.clone();
        runs.map_or(Ok(()), |runs| runs.compact())
    }

    /// Whether flushing has failed permanently.
    pub(crate) fn has_failed(&self) -> bool {
        self.work.lock().failed.is_some()
    }

    /// Whether the runs are damaged and must be rebuilt.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.layers.read().runs.as_ref().is_some_and(|runs| runs.is_corrupt())
    }

    pub(crate) fn stop(&self) {
        self.work.lock().stop = true;
        self.wake.notify_all();
        self.flushed.notify_all();
    }

    /// Closes the runs; only the memtables can be read afterwards.
    pub(crate) fn close_runs(&self) {
        self.layers.write().runs = None;
    }

    /// A view that includes changes which are not visible to others yet.
    pub(crate) fn view<'a>(&'a self, staged: Option<&'a Memtable>) -> View<'a> {
        View { staged, index: self }
    }
}

pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// Reads the index. Each call sees one consistent state.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    staged: Option<&'a Memtable>,
    index: &'a Index,
}

impl<'a> View<'a> {
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let layers = self.index.layers.read();
        let hash = bloom::hash(key);
        let active = layers.active_hashes.contains(&hash).then_some(&layers.active);
        let frozen = layers.frozen.as_deref();
        let frozen = frozen.filter(|frozen| frozen.hashes.contains(&hash));
        let memtables = [self.staged, active, frozen.map(|frozen| &frozen.memtable)];
        get(memtables.into_iter().flatten(), layers.runs.as_deref(), key)
    }

    /// The memtables, the newest first.
    fn memtables<'l>(&'l self, layers: &'l Layers) -> impl Iterator<Item = &'l Memtable> + Clone {
        let memtables =
            [self.staged, Some(&layers.active), layers.frozen.as_deref().map(|frozen| &frozen.memtable)];
        memtables.into_iter().flatten()
    }

    /// The first key in `from..end`, with its value.
    pub(crate) fn next(&self, from: &[u8], end: &[u8]) -> Result<Option<Pair>, StoreError> {
        let layers = self.index.layers.read();
        let memtables = self.memtables(&layers);
        let runs = layers.runs.as_deref();
        let mut from = from.to_vec();
        loop {
            let in_runs = runs.map(|runs| runs.next(&from, end)).transpose()?.flatten();
            let in_memory = memtables.clone().filter_map(|memtable| memtable.next(&from, end));
            let Some(key) = in_memory.chain(in_runs.as_deref()).min().map(<[u8]>::to_vec) else {
                return Ok(None);
            };
            if let Some(value) = get(memtables.clone(), runs, &key)? {
                return Ok(Some((key, value)));
            }
            from = after(key);
        }
    }

    /// The last key in `start..=to`, with its value.
    pub(crate) fn previous(&self, start: &[u8], to: &[u8]) -> Result<Option<Pair>, StoreError> {
        let layers = self.index.layers.read();
        let memtables = self.memtables(&layers);
        let runs = layers.runs.as_deref();
        let mut to = to.to_vec();
        loop {
            let in_runs = runs.map(|runs| runs.previous(start, &to)).transpose()?.flatten();
            let in_memory = memtables.clone().filter_map(|memtable| memtable.previous(start, &to));
            let Some(key) = in_memory.chain(in_runs.as_deref()).max().map(<[u8]>::to_vec) else {
                return Ok(None);
            };
            if let Some(value) = get(memtables.clone(), runs, &key)? {
                return Ok(Some((key, value)));
            }
            let Some(before) = before(&key) else {
                return Ok(None);
            };
            to = before;
        }
    }

    /// All keys in `from..end` with their values, in order; ends after an error.
    pub(crate) fn scan(
        self,
        from: Vec<u8>,
        end: &'a [u8],
    ) -> impl Iterator<Item = Result<Pair, StoreError>> + 'a {
        let mut from = Some(from);
        std::iter::from_fn(move || {
            let found = self.next(&from.take()?, end).transpose()?;
            from = found.as_ref().ok().map(|(key, _)| after(key.clone()));
            Some(found)
        })
    }
}

fn get<'a>(
    memtables: impl Iterator<Item = &'a Memtable>,
    runs: Option<&dyn RunStore>,
    key: &[u8],
) -> Result<Option<Vec<u8>>, StoreError> {
    let mut members: Option<Vec<u8>> = None;
    for memtable in memtables {
        match memtable.cells().get(key) {
            None => {}
            Some(Cell::Put(value)) => return Ok(Some(value.clone())),
            Some(Cell::Delete) => return Ok(members),
            Some(Cell::Union(more)) => unite(members.get_or_insert_default(), more),
        }
    }
    let old = runs.map(|runs| runs.get(key)).transpose()?.flatten();
    let Some(mut members) = members else {
        return Ok(old);
    };
    unite(&mut members, old.as_deref().unwrap_or_default());
    Ok(Some(members))
}

/// The smallest key that is greater than this one.
pub(crate) fn after(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

/// The greatest key that is less than this one and no longer than any key of the index.
fn before(key: &[u8]) -> Option<Vec<u8>> {
    let mut key = key.to_vec();
    match key.pop()? {
        0 => Some(key),
        last => {
            key.push(last - 1);
            key.resize(KEY_BYTES_MAX, 0xff);
            Some(key)
        }
    }
}

#[cfg(test)]
mod tests;
