//! The index in plain files: runs, and the manifest that names them.
//!
//! It may lag behind the journal and be lost altogether; it must never be ahead. So a layer is written only when its
//! blocks are durable. Every file is written once, under another name, and synced before it gets its own; what is not
//! named by the manifest means nothing and is removed when the index is opened. What does not check is not trusted: the
//! manifest is taken away, and the next opening makes the index anew from the journal.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use super::builder::{Builder, run_path};
use super::cache::Cache;
use super::manifest::{self, Manifest};
use super::merge::{Merge, RUNS_MAX, over, window};
use super::run::Run;
use super::{EmbeddedConfig, damaged};
use crate::error::StoreError;
use crate::failpoint;
use crate::filter::{self, Probe};
use crate::table::{Base, Cell, Layer, Vouch};
use crate::vault::keyring::{failed, sync_dir};

/// Entries that a merge goes on by for every entry that came in, and at least. Each merge ends before its output is
/// needed for the next.
const MERGE_PER_ENTRY: usize = 2;
const MERGE_ENTRIES_MIN: usize = 1_024;
/// Everything is made one when this many times the deletions are more than all entries.
const GONE_PART: u64 = 4;
/// Entries merged between two moments in which other threads may go first.
const MERGE_SLICE: usize = 1_024;

pub(crate) struct FileIndex {
    dir: PathBuf,
    cache: Cache,
    /// The newest first.
    runs: RwLock<Vec<Arc<Run>>>,
    work: Mutex<Work>,
    /// Something in it did not check.
    spoiled: AtomicBool,
}

/// What only the thread that writes uses.
struct Work {
    next_run: u64,
    merges: Vec<Merge>,
    /// Entries that were written since merges last went on.
    owed: usize,
    /// Deletions that were written since everything was last made one.
    deleted: u64,
    vouch: Option<Arc<Vouch>>,
}

impl FileIndex {
    pub(crate) fn open(config: &EmbeddedConfig) -> Result<Self, StoreError> {
        Self::open_dir(&config.state.join("index"), config.index_cache_bytes)
    }

    pub(super) fn open_dir(dir: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        let dir = dir.to_owned();
        let manifest = Manifest::read(&dir)?.unwrap_or_else(Manifest::empty);
        remove_strays(&dir, &manifest)?;
        let runs = manifest
            .runs
            .iter()
            .map(|name| Run::open(&run_path(&dir, name.0), *name).map(Arc::new))
            .collect::<Result<Vec<_>, StoreError>>()?;
        Ok(FileIndex {
            dir,
            cache: Cache::new(cache_bytes),
            runs: RwLock::new(runs),
            work: Mutex::new(Work {
                next_run: manifest.next_run,
                merges: Vec::new(),
                owed: 0,
                deleted: 0,
                vouch: manifest.vouch,
            }),
            spoiled: AtomicBool::new(false),
        })
    }

    /// Reads every chunk of every run.
    pub(super) fn verify(&self) -> Result<(), StoreError> {
        let runs = self.runs().clone();
        runs.iter()
            .try_for_each(|run| (0..run.chunks()).try_for_each(|number| run.read(number).map(drop)))
    }

    fn runs(&self) -> RwLockReadGuard<'_, Vec<Arc<Run>>> {
        self.runs.read()
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock()
    }

    /// Makes these the runs, on disk, then for readers.
    fn name(&self, work: &Work, runs: Vec<Arc<Run>>) -> Result<(), StoreError> {
        if self.is_spoiled() {
            return Err(damaged("something in it did not check"));
        }
        let manifest = Manifest {
            next_run: work.next_run,
            runs: runs.iter().map(|run| run.name).collect(),
            vouch: work.vouch.clone(),
        };
        manifest.replace(&self.dir)?;
        *self.runs.write() = runs;
        Ok(())
    }

    /// Begins the merges that are worth it, and goes on with each by so many entries. One that failed in the middle may
    /// have lost an entry and must never be ended: all are given up, with their files, and begun again later.
    fn merge(&self, work: &mut Work, entries: usize) -> Result<(), StoreError> {
        let merged = self.go_by(work, entries);
        if merged.is_err() {
            work.merges.clear();
        }
        merged
    }

    fn go_by(&self, work: &mut Work, entries: usize) -> Result<(), StoreError> {
        let runs = self.runs().clone();
        let is_busy = |merges: &[Merge], id| {
            merges
                .iter()
                .any(|merge| merge.inputs.iter().any(|run| run.id() == id))
        };
        while let Some(range) = window(&runs, |id| is_busy(&work.merges, id)) {
            let oldest = range.end == runs.len();
            let merge = Merge::new(&self.dir, runs[range].to_vec(), work.next_run, oldest)?;
            work.next_run += 1;
            work.merges.push(merge);
        }
        let mut nth = 0;
        while nth < work.merges.len() {
            let mut left = entries;
            let mut done = false;
            while left > 0 && !done {
                let slice = left.min(MERGE_SLICE);
                done = work.merges[nth].step(slice)?;
                left -= slice;
                std::thread::yield_now();
            }
            if done {
                let merge = work.merges.remove(nth);
                self.replace(work, merge)?;
            } else {
                nth += 1;
            }
        }
        Ok(())
    }

    /// Puts a merged run in the place of those that it was made from.
    fn replace(&self, work: &Work, merge: Merge) -> Result<(), StoreError> {
        let (inputs, output) = merge.finish()?;
        failpoint::hit("index.after_merge");
        let mut output = output.map(Arc::new);
        let mut runs = Vec::new();
        for run in self.runs().iter() {
            if inputs.iter().any(|input| input.id() == run.id()) {
                runs.extend(output.take());
            } else {
                runs.push(run.clone());
            }
        }
        self.name(work, runs)?;
        failpoint::hit("index.before_drop");
        for run in &inputs {
            // Who still reads it has it open. What cannot be removed is removed when the index is next opened.
            let _ = std::fs::remove_file(run_path(&self.dir, run.id()));
            self.cache.forget(run.id());
        }
        Ok(())
    }

    /// Passes an answer on; one that tells of damage makes the index one to be made anew.
    fn checked<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if matches!(answer, Err(StoreError::Damaged { .. })) && !self.spoiled.swap(true, Ordering::AcqRel) {
            let _ = std::fs::remove_file(self.dir.join(manifest::NAME));
            let _ = sync_dir(&self.dir);
        }
        answer
    }

    fn find(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let probe = Probe::of(filter::hash(key));
        let mut said = None;
        for run in self.runs().iter().filter(|run| run.may_have(&probe)) {
            if let Some(older) = run.get(&self.cache, key)? {
                said = Some(over(said, older));
            }
            if matches!(said, Some(Cell::Put(_) | Cell::Delete)) {
                break;
            }
        }
        Ok(match said {
            None | Some(Cell::Delete) => None,
            Some(Cell::Put(value) | Cell::Union(value)) => Some(value),
        })
    }

    fn find_next(&self, from: &[u8], end: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let mut least: Option<Vec<u8>> = None;
        for run in self.runs().iter() {
            let end = least.as_deref().map_or(end, |least| least.min(end));
            least = run.next(&self.cache, from, end)?.or(least);
        }
        Ok(least)
    }

    fn find_previous(&self, start: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let mut greatest: Option<Vec<u8>> = None;
        for run in self.runs().iter() {
            let start = greatest.as_deref().map_or(start, |greatest| greatest.max(start));
            greatest = run.previous(&self.cache, start, to)?.or(greatest);
        }
        Ok(greatest)
    }

    fn take_over(&self, layer: &Layer, vouch: &Vouch) -> Result<(), StoreError> {
        failpoint::hit("index.before_write");
        let mut work = self.work();
        let id = work.next_run;
        work.next_run += 1;
        let mut run = Builder::new(&self.dir, id, layer.len() as u64)?;
        for (key, cell) in layer.cells() {
            run.push(key, cell)?;
        }
        let newest = run.finish()?.map(Arc::new);
        failpoint::hit("index.after_write");
        work.vouch = Some(Arc::new(vouch.clone()));
        let runs = newest.into_iter().chain(self.runs().iter().cloned()).collect();
        self.name(&work, runs)?;
        work.owed += layer.len();
        let deleted = layer.cells().values().filter(|cell| **cell == Cell::Delete);
        work.deleted += deleted.count() as u64;
        Ok(())
    }

    /// Makes all runs one if a good part of them says only what is gone. A slice at a time, so that layers that come
    /// meanwhile do not wait long.
    fn make_one(&self) -> Result<(), StoreError> {
        let goal = {
            let mut work = self.work();
            let runs = self.runs().clone();
            let entries: u64 = runs.iter().map(|run| run.head.entries).sum();
            if runs.len() < 2 || work.deleted.saturating_mul(GONE_PART) < entries {
                return Ok(());
            }
            // Begun merges are begun again later, of what is then there.
            work.merges.clear();
            let id = work.next_run;
            work.next_run += 1;
            let merge = Merge::new(&self.dir, runs, id, true)?;
            work.deleted = 0;
            work.merges.push(merge);
            id
        };
        loop {
            let mut work = self.work();
            self.merge(&mut work, MERGE_SLICE * 16)?;
            if !work.merges.iter().any(|merge| merge.id() == goal) {
                return Ok(());
            }
        }
    }

    fn go_on(&self) -> Result<(), StoreError> {
        let mut work = self.work();
        let owed = std::mem::take(&mut work.owed);
        self.merge(&mut work, owed * MERGE_PER_ENTRY + MERGE_ENTRIES_MIN)?;
        while self.runs().len() > RUNS_MAX {
            self.merge(&mut work, usize::MAX)?;
        }
        Ok(())
    }
}

/// Removes what the manifest does not name: what was being written or removed when the process ended.
fn remove_strays(dir: &Path, manifest: &Manifest) -> Result<(), StoreError> {
    let mut known: BTreeSet<PathBuf> = manifest.runs.iter().map(|(id, _)| run_path(dir, *id)).collect();
    known.insert(dir.join(manifest::NAME));
    let remove = || -> std::io::Result<()> {
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            if known.contains(&entry.path()) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                std::fs::remove_dir_all(entry.path())?;
            } else {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    };
    remove().map_err(|error| failed(dir, &error))
}

impl Base for FileIndex {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.checked(self.find(key))
    }

    fn next(&self, from: &[u8], end: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.checked(self.find_next(from, end))
    }

    fn previous(&self, start: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.checked(self.find_previous(start, to))
    }

    fn write(&self, layer: &Layer, vouch: &Vouch) -> Result<(), StoreError> {
        self.checked(self.take_over(layer, vouch))
    }

    fn tidy(&self) -> Result<(), StoreError> {
        match self.go_on() {
            // Merging needs room for a second copy. Without it the index is slower, and still right.
            Err(StoreError::Full) => Ok(()),
            other => self.checked(other),
        }
    }

    fn compact(&self) -> Result<(), StoreError> {
        match self.make_one() {
            Err(StoreError::Full) => Ok(()),
            other => self.checked(other),
        }
    }

    fn vouched(&self) -> Option<Arc<Vouch>> {
        self.work().vouch.clone()
    }

    fn is_spoiled(&self) -> bool {
        self.spoiled.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fold::Fold;
    use crate::keys::Checkpoint;
    use proptest::prelude::*;

    fn key(n: u16) -> Vec<u8> {
        // Some keys have members, as buckets do; the others are put and deleted.
        let tag = if n.is_multiple_of(5) { b'x' } else { b'A' };
        [&[tag], n.to_be_bytes().as_slice(), &[0; 12]].concat()
    }

    fn vouch(seq: u64) -> Vouch {
        Vouch {
            checkpoint: Checkpoint { seq, checksum: 1 },
            snapshot: Fold::default().snapshot(seq),
        }
    }

    fn layer() -> impl Strategy<Value = Vec<(u16, u8)>> {
        prop::collection::vec((0_u16..3_000, any::<u8>()), 1..600)
    }

    /// What one layer that has everything says: the model.
    fn value(model: &Layer, key: &[u8]) -> Option<Vec<u8>> {
        match model.cells().get(key)? {
            Cell::Put(value) | Cell::Union(value) => Some(value.clone()),
            Cell::Delete => None,
        }
    }

    fn agrees(index: &FileIndex, model: &Layer) {
        for n in 0..3_001 {
            assert_eq!(index.get(&key(n)).unwrap(), value(model, &key(n)), "{n}");
        }
        let mut from = Vec::new();
        let mut seen = Vec::new();
        while let Some(key) = index.next(&from, b"z").unwrap() {
            assert_eq!(index.previous(b"A", &key).unwrap().as_ref(), Some(&key));
            from = [key.as_slice(), &[0]].concat();
            assert_eq!(index.previous(b"A", &from).unwrap().as_ref(), Some(&key));
            seen.extend(index.get(&key).unwrap().map(|_| key));
        }
        let live = model.cells().keys().filter(|key| value(model, key).is_some());
        assert!(seen.iter().eq(live));
    }

    fn new_index() -> (tempfile::TempDir, EmbeddedConfig, FileIndex) {
        let state = tempfile::tempdir().unwrap();
        std::fs::create_dir(state.path().join("index")).unwrap();
        let config = EmbeddedConfig {
            index_cache_bytes: 100_000,
            ..EmbeddedConfig::new(state.path())
        };
        let index = FileIndex::open(&config).unwrap();
        (state, config, index)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn runs_answer_like_one_layer(layers in prop::collection::vec(layer(), 1..40)) {
            let (_state, config, mut index) = new_index();
            let mut model = Layer::default();
            let count = layers.len();
            for (nth, changes) in layers.into_iter().enumerate() {
                let mut layer = Layer::default();
                for (n, byte) in changes {
                    let cell = match byte {
                        _ if n.is_multiple_of(5) => Cell::Union(vec![byte]),
                        0..=99 => Cell::Delete,
                        100.. => Cell::Put(vec![byte; usize::from(byte)]),
                    };
                    layer.set(key(n), cell);
                }
                index.write(&layer, &vouch(nth as u64)).unwrap();
                index.tidy().unwrap();
                model.extend(layer);
                if nth == count / 2 {
                    drop(index);
                    index = FileIndex::open(&config).unwrap();
                    prop_assert_eq!(index.vouched(), Some(Arc::new(vouch(nth as u64))));
                }
            }
            prop_assert!(index.runs().len() < 16);
            agrees(&index, &model);
            let known: Vec<u64> = index.runs().iter().map(|run| run.id()).collect();
            prop_assert!(index.work().merges.len() < 8);
            drop(index);
            let index = FileIndex::open(&config).unwrap();
            prop_assert_eq!(index.runs().iter().map(|run| run.id()).collect::<Vec<_>>(), known);
            agrees(&index, &model);
        }
    }

    #[test]
    fn what_the_manifest_does_not_name_is_removed() {
        let (state, config, index) = new_index();
        let mut layer = Layer::default();
        layer.put(key(1), vec![1]);
        index.write(&layer, &vouch(1)).unwrap();
        drop(index);
        let dir = state.path().join("index");
        for stray in ["db", "run-00000000000000ff", "run-0000000000000002.partial"] {
            std::fs::write(dir.join(stray), b"left over").unwrap();
        }
        std::fs::create_dir(dir.join("blobs")).unwrap();
        let index = FileIndex::open(&config).unwrap();
        assert_eq!(index.get(&key(1)), Ok(Some(vec![1])));
        let left = std::fs::read_dir(&dir).unwrap().count();
        assert_eq!(left, 2, "the manifest and one run");
    }

    #[test]
    fn damage_that_is_met_while_serving_takes_the_manifest_away() {
        let (state, config, index) = new_index();
        let mut layer = Layer::default();
        (0..2_000).for_each(|n| layer.put(key(n), vec![7; 20]));
        index.write(&layer, &vouch(1)).unwrap();
        let path = run_path(&state.path().join("index"), 1);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20_000] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let failed = (0..2_000).filter(|n| index.get(&key(*n)).is_err()).count();
        assert!((1..2_000).contains(&failed), "{failed}");
        assert!(index.is_spoiled());
        let refused = index.write(&layer, &vouch(2));
        assert!(matches!(refused, Err(StoreError::Damaged { .. })), "{refused:?}");
        drop(index);
        let index = FileIndex::open(&config).unwrap();
        assert_eq!((index.vouched(), index.get(&key(1))), (None, Ok(None)));
    }

    #[test]
    fn a_merge_that_failed_is_given_up() {
        let (state, _, index) = new_index();
        for byte in [1, 2] {
            let mut layer = Layer::default();
            (0..2_000).for_each(|n| layer.put(key(n), vec![byte; 20]));
            (2_000..3_000).for_each(|n| layer.set(key(n), Cell::Delete));
            index.write(&layer, &vouch(1)).unwrap();
        }
        let dir = state.path().join("index");
        let mut bytes = std::fs::read(run_path(&dir, 2)).unwrap();
        bytes[20_000] ^= 1;
        std::fs::write(run_path(&dir, 2), bytes).unwrap();
        let failed = index.compact();
        assert!(matches!(failed, Err(StoreError::Damaged { .. })), "{failed:?}");
        assert!(index.work().merges.is_empty(), "nobody goes on with it");
        let left = std::fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let left = left.filter(|path| path.extension().is_some()).count();
        assert_eq!(left, 0, "nothing half written is left");
    }

    #[test]
    fn a_run_that_is_missing_or_another_is_damage() {
        let (state, config, index) = new_index();
        for n in 0..2 {
            let mut layer = Layer::default();
            layer.put(key(n), vec![1]);
            index.write(&layer, &vouch(1)).unwrap();
        }
        drop(index);
        let dir = state.path().join("index");
        let is_damaged = || matches!(FileIndex::open(&config), Err(StoreError::Damaged { .. }));
        assert!(!is_damaged());
        std::fs::rename(run_path(&dir, 1), state.path().join("aside")).unwrap();
        assert!(is_damaged());
        std::fs::copy(run_path(&dir, 2), run_path(&dir, 1)).unwrap();
        assert!(is_damaged());
        std::fs::rename(state.path().join("aside"), run_path(&dir, 1)).unwrap();
        assert!(!is_damaged());
    }
}
