//! The index in layers: what was just committed is in memory, the rest is in the engine's base.
//!
//! The writer never waits for the index. It puts what a block changes into the newest layer, where every reader sees it
//! at once, and a second thread moves whole layers into the base. Each change is absolute, so that a layer may be moved
//! twice (after a crash, from the journal) and the index is the same.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use crate::error::StoreError;
use crate::limits::{FAMILY_KEY_BYTES_MAX, NAME_BYTES_MAX};

/// Longest key of the index: a family's entry.
const KEY_BYTES_MAX: usize = 2 + NAME_BYTES_MAX + FAMILY_KEY_BYTES_MAX;

/// Blocks that are gathered before a layer is moved, unless that takes longer than [`GATHER_TIME`].
const GATHER_BLOCKS: usize = 256;
const GATHER_TIME: Duration = Duration::from_millis(50);

/// What a layer says about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// It has this value.
    Put(Vec<u8>),
    /// It is gone.
    Delete,
    /// These bytes, in order and each once, are in it beside those that older layers say.
    Union(Vec<u8>),
}

/// Changes by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layer {
    cells: BTreeMap<Vec<u8>, Cell>,
}

impl Layer {
    /// The key has this value from now on.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.set(key, Cell::Put(value));
    }

    /// A number joins its bucket.
    pub fn post(&mut self, (key, member): (Vec<u8>, u8)) {
        self.set(key, Cell::Union(vec![member]));
    }

    /// Joins what is said about the key.
    pub fn set(&mut self, key: Vec<u8>, cell: Cell) {
        match self.cells.entry(key) {
            Entry::Vacant(vacant) => drop(vacant.insert(cell)),
            Entry::Occupied(mut occupied) => match (occupied.get_mut(), cell) {
                (Cell::Union(old), Cell::Union(new)) => unite(old, &new),
                (old, new) => *old = new,
            },
        }
    }

    /// Joins a newer layer.
    pub fn extend(&mut self, newer: Layer) {
        newer
            .cells
            .into_iter()
            .for_each(|(key, cell)| self.set(key, cell));
    }

    /// How many keys it speaks of.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether it speaks of nothing.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// What it says, by key.
    pub fn cells(&self) -> &BTreeMap<Vec<u8>, Cell> {
        &self.cells
    }

    fn next(&self, from: &[u8], end: &[u8]) -> Option<&[u8]> {
        if from >= end {
            return None;
        }
        let bounds = (Bound::Included(from), Bound::Excluded(end));
        self.cells
            .range::<[u8], _>(bounds)
            .next()
            .map(|(key, _)| key.as_slice())
    }

    fn previous(&self, start: &[u8], to: &[u8]) -> Option<&[u8]> {
        if start > to {
            return None;
        }
        let bounds = (Bound::Included(start), Bound::Included(to));
        self.cells
            .range::<[u8], _>(bounds)
            .next_back()
            .map(|(key, _)| key.as_slice())
    }
}

/// Adds bytes to a set of bytes in order.
pub fn unite(set: &mut Vec<u8>, more: &[u8]) {
    for byte in more {
        if let Err(at) = set.binary_search(byte) {
            set.insert(at, *byte);
        }
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
    /// Takes over a layer; its checkpoint last. With `durable`, it survives power loss when this returns.
    fn write(&self, layer: &Layer, durable: bool) -> Result<(), StoreError>;
    /// Does a little of what keeps it quick. Called after every layer, when nobody waits for that layer any more.
    fn tidy(&self) -> Result<(), StoreError>;
}

#[derive(Default)]
struct Recent {
    active: Layer,
    frozen: Option<Arc<Layer>>,
    base: Option<Arc<dyn Base>>,
}

/// All layers.
#[derive(Default)]
pub(crate) struct Table {
    recent: RwLock<Recent>,
    work: Mutex<Work>,
    /// There is something to move, or no time to gather more.
    stir: Condvar,
    /// Something was moved, or never will be.
    moved: Condvar,
}

#[derive(Default)]
struct Work {
    blocks: usize,
    blocks_frozen: usize,
    durable: bool,
    waiting: usize,
    stop: bool,
    failed: Option<StoreError>,
}

impl Table {
    pub(crate) fn new(base: Option<Arc<dyn Base>>) -> Self {
        Table {
            recent: RwLock::new(Recent {
                base,
                ..Recent::default()
            }),
            ..Table::default()
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Recent> {
        self.recent.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Recent> {
        self.recent.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows what a durable block changed. `durable` asks that it reach the base durably soon.
    pub(crate) fn show(&self, layer: Layer, durable: bool) {
        let has_base = {
            let mut recent = self.write();
            recent.active.extend(layer);
            recent.base.is_some()
        };
        if has_base {
            let mut work = self.work();
            work.blocks += 1;
            work.durable |= durable;
            let wake = work.blocks == 1 || work.blocks >= GATHER_BLOCKS || durable;
            drop(work);
            if wake {
                self.stir.notify_all();
            }
        }
    }

    /// Keys that are not in the base yet.
    pub(crate) fn entries(&self) -> usize {
        let recent = self.read();
        recent.active.len() + recent.frozen.as_ref().map_or(0, |layer| layer.len())
    }

    /// Blocks that are not in the base yet.
    pub(crate) fn lag(&self) -> usize {
        let work = self.work();
        work.blocks + work.blocks_frozen
    }

    /// Waits until no more than `blocks` and `entries` are outside the base, or moving them has failed.
    pub(crate) fn wait_lag(&self, blocks: usize, entries: usize) -> Result<(), StoreError> {
        loop {
            let behind = self.read().base.is_some() && self.entries() > entries;
            let work = self.work();
            if let Some(error) = &work.failed {
                return Err(error.clone());
            }
            if work.stop || !(behind || work.blocks + work.blocks_frozen > blocks) {
                return Ok(());
            }
            let mut work = work;
            work.waiting += 1;
            self.stir.notify_all();
            // Both bounds are not under one lock, so the last move may be missed here: look again soon.
            let (mut work, _) = self
                .moved
                .wait_timeout(work, GATHER_TIME)
                .unwrap_or_else(PoisonError::into_inner);
            work.waiting -= 1;
        }
    }

    /// Moves layers into the base until told to stop; the second thread's whole life.
    pub(crate) fn move_layers(&self) {
        loop {
            let mut work = self.work();
            while work.blocks == 0 && !work.stop {
                work = self.stir.wait(work).unwrap_or_else(PoisonError::into_inner);
            }
            if work.blocks == 0 {
                return;
            }
            // A layer of many blocks costs little more than one of a few, and the writer needs the processor more.
            let end = Instant::now() + GATHER_TIME;
            while work.blocks < GATHER_BLOCKS && !work.stop && !work.durable && work.waiting == 0 {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                work = self
                    .stir
                    .wait_timeout(work, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
            let durable = work.durable || work.stop;
            drop(work);
            if let Err(error) = self.move_layer(durable) {
                self.work().failed = Some(error);
                self.moved.notify_all();
                return;
            }
        }
    }

    /// Moves what is there now.
    pub(crate) fn move_layer(&self, durable: bool) -> Result<(), StoreError> {
        let (layer, base) = {
            let mut recent = self.write();
            let Some(base) = recent.base.clone() else {
                return Ok(());
            };
            let layer = Arc::new(std::mem::take(&mut recent.active));
            recent.frozen = Some(layer.clone());
            let mut work = self.work();
            work.blocks_frozen = std::mem::take(&mut work.blocks);
            work.durable = false;
            (layer, base)
        };
        base.write(&layer, durable)?;
        self.write().frozen = None;
        self.work().blocks_frozen = 0;
        self.moved.notify_all();
        base.tidy()
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

/// A key and its value.
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
        get(self.layers(&recent), recent.base.as_deref(), key)
    }

    /// What is not in the base, the newest first.
    fn layers<'a>(&'a self, recent: &'a Recent) -> impl Iterator<Item = &'a Layer> + Clone {
        let layers = [self.staged, Some(&recent.active), recent.frozen.as_deref()];
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
        match layer.cells.get(key) {
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
