//! The index in layers: what was just committed is in memory, the rest is in the engine's base.
//!
//! The writer hardly ever waits for the index. It puts what a block changes into the newest layer, where every reader
//! sees it at once; when enough is gathered, a second thread moves the whole layer into the base. Each change is absolute, so that a layer may be moved
//! twice (after a crash, from the journal) and the index is the same.

mod layer;

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::StoreError;
use crate::filter;
use crate::keys::Checkpoint;
use crate::limits::{
    FAMILY_KEY_BYTES_MAX, INDEX_GATHER_BLOCKS, INDEX_GATHER_BYTES, INDEX_LAG_MAX, NAME_BYTES_MAX,
};
use crate::log::Log;
pub use layer::{Cell, Layer, unite};

/// Longest key of the index: a family's entry.
const KEY_BYTES_MAX: usize = 2 + NAME_BYTES_MAX + FAMILY_KEY_BYTES_MAX;

/// How long the writer waits for the mover before it looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Hashes that are good as they are, and are not hashed again.
#[derive(Default)]
struct Hashes(HashSet<u64, BuildHasherDefault<AsItIs>>);

impl Hashes {
    fn has(&self, hash: u64) -> bool {
        self.0.contains(&hash)
    }
}

#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only numbers of eight bytes are hashed here; this keeps anything else correct.
        self.0 = filter::hash(bytes);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The oldest layer, which an engine keeps.
pub trait Base: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
    /// The first key from `from` on and before `end`.
    fn next(&self, from: &[u8], end: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
    /// The last key from `start` on, up to and with `to`.
    fn previous(&self, start: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
    /// Takes over a layer, after which it vouches for all blocks up to the checkpoint. Survives power loss when this
    /// returns, as a whole or not at all.
    fn write(&self, layer: &Layer, vouch: &Vouch) -> Result<(), StoreError>;
    /// Does a little of what keeps it quick. Called after every layer, when nobody waits for that layer any more.
    fn tidy(&self) -> Result<(), StoreError>;
    /// What was last vouched for; `None` while nothing was.
    fn vouched(&self) -> Option<Arc<Vouch>>;
    /// Gives room back after much was taken out. May take a while, and holds nobody up.
    fn compact(&self) -> Result<(), StoreError>;
    /// Whether it has met damage since it was opened. Then it is to be opened anew.
    fn is_spoiled(&self) -> bool;
}

/// What a base vouches for: all that follows from the journal up to a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vouch {
    pub checkpoint: Checkpoint,
    /// The working state after it.
    pub snapshot: Vec<u8>,
}

#[derive(Default)]
struct Recent {
    active: Layer,
    /// Hashes of the keys that the active layer speaks of: most questions are about keys that it does not have, and a
    /// large tree takes long to say so.
    active_hashes: Hashes,
    frozen: Option<Arc<Frozen>>,
    base: Option<Arc<dyn Base>>,
}

/// A layer on its way into the base.
struct Frozen {
    layer: Layer,
    hashes: Hashes,
    vouch: Vouch,
    /// How many entries the log has then.
    log_size: u64,
}

pub(crate) struct Table {
    recent: RwLock<Recent>,
    log: Log,
    work: Mutex<Work>,
    gather_entries: usize,
    /// There is something to move, or nothing more to come.
    stir: Condvar,
    /// Something was moved, or never will be.
    moved: Condvar,
    /// What is gathered is to be moved soon, however little it is.
    hurry: AtomicBool,
}

#[derive(Default)]
struct Work {
    /// What the active layer was made from.
    gathered: Amount,
    /// What the frozen layer was made from.
    frozen: Amount,
    stop: bool,
    failed: Option<StoreError>,
    /// How many layers were begun, and how many of them are in the base.
    begun: u64,
    ended: u64,
}

/// How much of the journal a layer holds.
#[derive(Debug, Clone, Copy, Default)]
struct Amount {
    blocks: usize,
    bytes: usize,
}

impl Amount {
    fn reaches(self, times: usize) -> bool {
        self.blocks >= INDEX_GATHER_BLOCKS * times || self.bytes >= INDEX_GATHER_BYTES * times
    }
}

impl Table {
    pub(crate) fn new(base: Option<Arc<dyn Base>>, log: Log, gather_entries: usize) -> Self {
        Table {
            recent: RwLock::new(Recent {
                base,
                ..Recent::default()
            }),
            log,
            work: Mutex::default(),
            gather_entries,
            stir: Condvar::new(),
            moved: Condvar::new(),
            hurry: AtomicBool::new(false),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Recent> {
        self.recent.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Recent> {
        self.recent.write()
    }

    /// The hashes of the log, which go where the index goes.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock()
    }

    /// Shows what a durable block of so many bytes changed.
    pub(crate) fn show(&self, layer: Layer, bytes: usize) {
        let mut recent = self.write();
        let recent_is_all = recent.base.is_none() && recent.frozen.is_none();
        let Recent {
            active,
            active_hashes,
            ..
        } = &mut *recent;
        active_hashes
            .0
            .extend(layer.cells().keys().map(|key| filter::hash(key)));
        // Where nothing is older, what is gone need not be said.
        let gone = if recent_is_all {
            layer.deleted()
        } else {
            Vec::new()
        };
        active.extend(layer);
        gone.iter().for_each(|key| drop(active.take(key)));
        drop(recent);
        let mut work = self.work();
        work.gathered.blocks += 1;
        work.gathered.bytes += bytes;
    }

    /// Whether enough is gathered to be moved, and nothing else is being moved.
    pub(crate) fn is_ripe(&self) -> bool {
        let recent = self.read();
        recent.base.is_some()
            && recent.frozen.is_none()
            && (recent.active.len() >= self.gather_entries || self.is_due())
    }

    fn is_due(&self) -> bool {
        let gathered = self.work().gathered;
        gathered.reaches(1) || (gathered.blocks > 0 && self.hurry.load(Ordering::Acquire))
    }

    /// How many layers are in the base when all that is shown now is; `None` if there is no base.
    pub(crate) fn gathering(&self) -> Option<u64> {
        let has_base = self.read().base.is_some();
        let work = self.work();
        has_base.then(|| work.begun + u64::from(work.gathered.blocks > 0))
    }

    /// Has what is gathered moved soon, and waits a little for it; whether so many layers are in the base.
    pub(crate) fn hurry(&self, layers: u64) -> Result<bool, StoreError> {
        let mut work = self.work();
        if let Some(error) = &work.failed {
            return Err(error.clone());
        }
        if work.ended >= layers {
            self.calm();
            return Ok(true);
        }
        self.hurry.store(true, Ordering::Release);
        self.moved.wait_for(&mut work, LOOK_AGAIN);
        let done = work.ended >= layers;
        if done {
            self.calm();
        }
        Ok(done)
    }

    /// Nobody waits for what is gathered any more.
    pub(crate) fn calm(&self) {
        self.hurry.store(false, Ordering::Release);
    }

    /// Hands what is gathered over to be moved, with what the base may vouch for from then on. Nothing else is being
    /// moved.
    pub(crate) fn freeze(&self, (vouch, log_size): (Vouch, u64)) {
        let mut recent = self.write();
        let layer = std::mem::take(&mut recent.active);
        let hashes = std::mem::take(&mut recent.active_hashes);
        recent.frozen = Some(Arc::new(Frozen {
            layer,
            hashes,
            vouch,
            log_size,
        }));
        let mut work = self.work();
        work.frozen = std::mem::take(&mut work.gathered);
        work.begun += 1;
        drop(work);
        drop(recent);
        self.stir.notify_all();
    }

    /// Blocks that are not in the base yet.
    pub(crate) fn lag(&self) -> usize {
        let work = self.work();
        work.gathered.blocks + work.frozen.blocks
    }

    /// Waits until there is room to gather more, or moving has failed.
    pub(crate) fn wait_room(&self) -> Result<(), StoreError> {
        loop {
            let recent = self.read();
            let busy = recent.base.is_some() && recent.frozen.is_some();
            let many = recent.active.len() >= self.gather_entries.saturating_mul(INDEX_LAG_MAX);
            drop(recent);
            let mut work = self.work();
            if let Some(error) = &work.failed {
                return Err(error.clone());
            }
            if work.stop || !busy || !(many || work.gathered.reaches(INDEX_LAG_MAX)) {
                return Ok(());
            }
            // Layers and work are not under one lock, so the last move may be missed here: look again soon.
            self.moved.wait_for(&mut work, LOOK_AGAIN);
        }
    }

    /// Moves layers into the base until told to stop; the second thread's whole life.
    pub(crate) fn move_layers(&self) {
        loop {
            let mut work = self.work();
            while work.frozen.blocks == 0 && !work.stop {
                self.stir.wait(&mut work);
            }
            if work.frozen.blocks == 0 {
                return;
            }
            drop(work);
            let panicked = |_| {
                let reason = "moving a layer of the index met a panic".into();
                Err(StoreError::Unavailable { reason })
            };
            // Whoever waits for a mover that has died would wait for ever.
            let moved = catch_unwind(AssertUnwindSafe(|| self.move_layer()));
            if let Err(error) = moved.unwrap_or_else(panicked) {
                self.work().failed = Some(error);
                self.moved.notify_all();
                return;
            }
        }
    }

    pub(crate) fn move_layer(&self) -> Result<(), StoreError> {
        let recent = self.read();
        let (Some(base), Some(frozen)) = (recent.base.clone(), recent.frozen.clone()) else {
            return Ok(());
        };
        drop(recent);
        // The index must not vouch for a log whose hashes are not on disk.
        self.log.settle(frozen.log_size)?;
        base.write(&frozen.layer, &frozen.vouch)?;
        drop(frozen);
        // Under both locks: once the layer is gone the writer may hand over the next one, and its amount must stay.
        let mut recent = self.write();
        let moved = recent.frozen.take();
        let mut work = self.work();
        work.frozen = Amount::default();
        work.ended = work.begun;
        drop(work);
        drop(recent);
        self.moved.notify_all();
        // Thousands of small pieces of memory are given back without holding anyone up.
        drop(moved);
        base.tidy()
    }

    /// Gives room back after much was taken out.
    pub(crate) fn compact(&self) -> Result<(), StoreError> {
        let base = self.read().base.clone();
        base.map_or(Ok(()), |base| base.compact())
    }

    /// Whether moving has failed, after which nothing is moved any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.work().failed.is_some()
    }

    /// Whether the base has met damage and is to be made anew.
    pub(crate) fn is_spoiled(&self) -> bool {
        self.read().base.as_ref().is_some_and(|base| base.is_spoiled())
    }

    pub(crate) fn stop(&self) {
        self.work().stop = true;
        self.stir.notify_all();
        self.moved.notify_all();
    }

    /// Lets go of the base, after which only what was never moved can be read.
    pub(crate) fn drop_base(&self) {
        self.write().base = None;
    }

    /// A view that also sees a layer that is not shown yet.
    pub(crate) fn view<'a>(&'a self, staged: Option<&'a Layer>) -> View<'a> {
        View { staged, table: self }
    }
}

pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// One consistent look at a key or at the next one.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    staged: Option<&'a Layer>,
    table: &'a Table,
}

impl View<'_> {
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let recent = self.table.read();
        let hash = filter::hash(key);
        let active = recent.active_hashes.has(hash).then_some(&recent.active);
        let frozen = recent.frozen.as_deref().filter(|frozen| frozen.hashes.has(hash));
        let layers = [self.staged, active, frozen.map(|frozen| &frozen.layer)];
        get(layers.into_iter().flatten(), recent.base.as_deref(), key)
    }

    /// What is not in the base, the newest first.
    fn layers<'a>(&'a self, recent: &'a Recent) -> impl Iterator<Item = &'a Layer> + Clone {
        let layers = [
            self.staged,
            Some(&recent.active),
            recent.frozen.as_deref().map(|frozen| &frozen.layer),
        ];
        layers.into_iter().flatten()
    }

    /// The first key from `from` on and before `end`, with its value.
    pub(crate) fn next(&self, from: &[u8], end: &[u8]) -> Result<Option<Pair>, StoreError> {
        let recent = self.table.read();
        let layers = self.layers(&recent);
        let base = recent.base.as_deref();
        let mut from = from.to_vec();
        loop {
            let in_base = base.map(|base| base.next(&from, end)).transpose()?.flatten();
            let in_layers = layers.clone().filter_map(|layer| layer.next(&from, end)).min();
            let Some(key) = in_base
                .as_deref()
                .into_iter()
                .chain(in_layers)
                .min()
                .map(<[u8]>::to_vec)
            else {
                return Ok(None);
            };
            if let Some(value) = get(layers.clone(), base, &key)? {
                return Ok(Some((key, value)));
            }
            from = key;
            from.push(0);
        }
    }

    /// The last key from `start` on, up to and with `to`, with its value.
    pub(crate) fn previous(&self, start: &[u8], to: &[u8]) -> Result<Option<Pair>, StoreError> {
        let recent = self.table.read();
        let layers = self.layers(&recent);
        let base = recent.base.as_deref();
        let mut to = to.to_vec();
        loop {
            let in_base = base.map(|base| base.previous(start, &to)).transpose()?.flatten();
            let in_layers = layers
                .clone()
                .filter_map(|layer| layer.previous(start, &to))
                .max();
            let Some(key) = in_base
                .as_deref()
                .into_iter()
                .chain(in_layers)
                .max()
                .map(<[u8]>::to_vec)
            else {
                return Ok(None);
            };
            if let Some(value) = get(layers.clone(), base, &key)? {
                return Ok(Some((key, value)));
            }
            let Some(before) = before(&key) else {
                return Ok(None);
            };
            to = before;
        }
    }
}

fn get<'a>(
    layers: impl Iterator<Item = &'a Layer>,
    base: Option<&dyn Base>,
    key: &[u8],
) -> Result<Option<Vec<u8>>, StoreError> {
    let mut members: Option<Vec<u8>> = None;
    for layer in layers {
        match layer.cells().get(key) {
            None => {}
            Some(Cell::Put(value)) => return Ok(Some(value.clone())),
            Some(Cell::Delete) => return Ok(members),
            Some(Cell::Union(more)) => unite(members.get_or_insert_default(), more),
        }
    }
    let old = base.map(|base| base.get(key)).transpose()?.flatten();
    Ok(match (members, old) {
        (None, old) => old,
        (Some(mut members), old) => {
            unite(&mut members, old.as_deref().unwrap_or_default());
            Some(members)
        }
    })
}

/// The greatest key that is less than this one and no longer than any of ours.
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
