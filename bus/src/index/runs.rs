//! The runs of the index in plain files, and the manifest that names them.
//!
//! They may lag behind the journal or be lost, but never be ahead of it: a memtable is written only when its blocks are
//! durable. Every file is written once under a temporary name, synced and renamed; opening removes files that the
//! manifest does not name. After damage the manifest is removed, and the next opening rebuilds the index from the journal.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use super::bloom::{self, Probe};
use super::cache::Cache;
use super::manifest::{self, Manifest};
use super::memtable::{Cell, Memtable};
use super::merge::{Merge, RUNS_MAX, over, window};
use super::run::Run;
use super::run_writer::{RunWriter, run_path};
use super::{Applied, RunStore};
use crate::error::StoreError;
use crate::failpoint;
use crate::files::{list, remove_dir, remove_file, sync_dir};

/// Entries that each merge processes for a new entry, and the least number in one go. So it ends before its output is needed.
const MERGE_PER_ENTRY: usize = 2;
const MERGE_ENTRIES_MIN: usize = 1_024;
/// All runs are merged when at least one entry in this many is a deletion.
const DELETED_PART: u64 = 4;
/// Entries that are merged before other threads may run.
const MERGE_SLICE: usize = 1_024;

pub(crate) struct RunFiles {
    dir: PathBuf,
    cache: Cache,
    /// The newest first.
    runs: RwLock<Vec<Arc<Run>>>,
    work: Mutex<Work>,
    /// A read found damage.
    corrupt: AtomicBool,
}

/// What flushing and merging share.
struct Work {
    next_run: u64,
    merges: Vec<Merge>,
    /// Entries that were written since merging last continued.
    owed: usize,
    /// Deletions that were written since all runs were last merged.
    deleted: u64,
    applied: Option<Arc<Applied>>,
}

impl RunFiles {
    pub(crate) fn open(dir: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        let dir = dir.to_owned();
        let manifest = Manifest::read(&dir)?.unwrap_or_else(Manifest::empty);
        remove_strays(&dir, &manifest)?;
        let runs = manifest
            .runs
            .iter()
            .map(|name| Run::open(&run_path(&dir, name.0), *name).map(Arc::new))
            .collect::<Result<Vec<_>, StoreError>>()?;
        Ok(RunFiles {
            dir,
            cache: Cache::new(cache_bytes),
            runs: RwLock::new(runs),
            work: Mutex::new(Work {
                next_run: manifest.next_run,
                merges: Vec::new(),
                owed: 0,
                deleted: 0,
                applied: manifest.applied,
            }),
            corrupt: AtomicBool::new(false),
        })
    }

    /// Reads every chunk of every run.
    pub(crate) fn verify(&self) -> Result<(), StoreError> {
        let runs = self.runs.read().clone();
        runs.iter().try_for_each(|run| (0..run.chunks()).try_for_each(|number| run.read(number).map(drop)))
    }

    /// Replaces the runs, on disk and then for readers.
    fn set_runs(&self, work: &Work, runs: Vec<Arc<Run>>) -> Result<(), StoreError> {
        if self.is_corrupt() {
            return Err(StoreError::index_damaged("part of it did not pass its checks"));
        }
        let manifest = Manifest {
            next_run: work.next_run,
            runs: runs.iter().map(|run| run.name).collect(),
            applied: work.applied.clone(),
        };
        manifest.replace(&self.dir)?;
        *self.runs.write() = runs;
        Ok(())
    }

    /// Begins the merges that are worth it, and continues each by this many entries. A failed merge may have lost an
    /// entry and must not replace its inputs: all merges are dropped with their files, and begin again later.
    fn merge(&self, work: &mut Work, entries: usize) -> Result<(), StoreError> {
        let merged = self.continue_merges(work, entries);
        if merged.is_err() {
            work.merges.clear();
        }
        merged
    }

    fn continue_merges(&self, work: &mut Work, entries: usize) -> Result<(), StoreError> {
        let runs = self.runs.read().clone();
        let is_busy =
            |merges: &[Merge], id| merges.iter().any(|merge| merge.inputs.iter().any(|run| run.id() == id));
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

    /// Replaces the inputs of a merge with its output.
    fn replace(&self, work: &Work, merge: Merge) -> Result<(), StoreError> {
        let (inputs, output) = merge.finish()?;
        failpoint::hit("index.after_merge");
        let mut output = output.map(Arc::new);
        let mut runs = Vec::new();
        for run in self.runs.read().iter() {
            if inputs.iter().any(|input| input.id() == run.id()) {
                runs.extend(output.take());
            } else {
                runs.push(run.clone());
            }
        }
        self.set_runs(work, runs)?;
        failpoint::hit("index.before_drop");
        for run in &inputs {
            // Readers may have it open. Opening the index removes what cannot be removed now.
            let _ = std::fs::remove_file(run_path(&self.dir, run.id()));
            self.cache.forget(run.id());
        }
        Ok(())
    }

    /// Returns the result. After damage, first removes the manifest, so that the next opening rebuilds the index.
    fn checked<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if matches!(answer, Err(StoreError::Damaged { .. })) && !self.corrupt.swap(true, Ordering::AcqRel) {
            let _ = std::fs::remove_file(self.dir.join(manifest::NAME));
            let _ = sync_dir(&self.dir);
        }
        answer
    }

    fn find(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let probe = Probe::of(bloom::hash(key));
        let mut cell = None;
        for run in self.runs.read().iter().filter(|run| run.may_have(&probe)) {
            if let Some(older) = run.get(&self.cache, key)? {
                cell = Some(over(cell, older));
            }
            if matches!(cell, Some(Cell::Put(_) | Cell::Delete)) {
                break;
            }
        }
        Ok(match cell {
            None | Some(Cell::Delete) => None,
            Some(Cell::Put(value) | Cell::Union(value)) => Some(value),
        })
    }

    fn find_next(&self, from: &[u8], end: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let mut least: Option<Vec<u8>> = None;
        for run in self.runs.read().iter() {
            let end = least.as_deref().map_or(end, |least| least.min(end));
            least = run.next(&self.cache, from, end)?.or(least);
        }
        Ok(least)
    }

    fn find_previous(&self, start: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let mut greatest: Option<Vec<u8>> = None;
        for run in self.runs.read().iter() {
            let start = greatest.as_deref().map_or(start, |greatest| greatest.max(start));
            greatest = run.previous(&self.cache, start, to)?.or(greatest);
        }
        Ok(greatest)
    }

    fn write_run(&self, memtable: &Memtable, applied: &Applied) -> Result<(), StoreError> {
        failpoint::hit("index.before_write");
        let mut work = self.work.lock();
        let id = work.next_run;
        work.next_run += 1;
        let mut run = RunWriter::new(&self.dir, id, memtable.len() as u64)?;
        for (key, cell) in memtable.cells() {
            run.push(key, cell)?;
        }
        let newest = run.finish()?.map(Arc::new);
        failpoint::hit("index.after_write");
        work.applied = Some(Arc::new(applied.clone()));
        let runs = newest.into_iter().chain(self.runs.read().iter().cloned()).collect();
        self.set_runs(&work, runs)?;
        work.owed += memtable.len();
        let deleted = memtable.cells().values().filter(|cell| **cell == Cell::Delete);
        work.deleted += deleted.count() as u64;
        Ok(())
    }

    /// Merges all runs if many of their entries are deletions; a slice at a time, so that memtables do not wait long.
    fn merge_all(&self) -> Result<(), StoreError> {
        let goal = {
            let mut work = self.work.lock();
            let runs = self.runs.read().clone();
            let entries: u64 = runs.iter().map(|run| run.head.entries).sum();
            if runs.len() < 2 || work.deleted.saturating_mul(DELETED_PART) < entries {
                return Ok(());
            }
            // Other merges begin again later.
            work.merges.clear();
            let id = work.next_run;
            work.next_run += 1;
            let merge = Merge::new(&self.dir, runs, id, true)?;
            work.deleted = 0;
            work.merges.push(merge);
            id
        };
        loop {
            let mut work = self.work.lock();
            self.merge(&mut work, MERGE_SLICE * 16)?;
            if !work.merges.iter().any(|merge| merge.id() == goal) {
                return Ok(());
            }
        }
    }

    fn continue_merging(&self) -> Result<(), StoreError> {
        let mut work = self.work.lock();
        let owed = std::mem::take(&mut work.owed);
        self.merge(&mut work, owed * MERGE_PER_ENTRY + MERGE_ENTRIES_MIN)?;
        while self.runs.read().len() > RUNS_MAX {
            self.merge(&mut work, usize::MAX)?;
        }
        Ok(())
    }
}

/// Removes files that the manifest does not name: an earlier process was writing or removing them.
fn remove_strays(dir: &Path, manifest: &Manifest) -> Result<(), StoreError> {
    let mut known: BTreeSet<PathBuf> = manifest.runs.iter().map(|(id, _)| run_path(dir, *id)).collect();
    known.insert(dir.join(manifest::NAME));
    for path in list(dir)?.into_iter().filter(|path| !known.contains(path)) {
        if path.is_dir() {
            remove_dir(&path)?;
        } else {
            remove_file(&path)?;
        }
    }
    Ok(())
}

impl RunStore for RunFiles {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.checked(self.find(key))
    }

    fn next(&self, from: &[u8], end: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.checked(self.find_next(from, end))
    }

    fn previous(&self, start: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.checked(self.find_previous(start, to))
    }

    fn write(&self, memtable: &Memtable, applied: &Applied) -> Result<(), StoreError> {
        self.checked(self.write_run(memtable, applied))
    }

    fn merge_some(&self) -> Result<(), StoreError> {
        match self.continue_merging() {
            // Merging needs space for a second copy. Without it the index is slower, and still correct.
            Err(StoreError::Full) => Ok(()),
            other => self.checked(other),
        }
    }

    fn compact(&self) -> Result<(), StoreError> {
        match self.merge_all() {
            Err(StoreError::Full) => Ok(()),
            other => self.checked(other),
        }
    }

    fn applied(&self) -> Option<Arc<Applied>> {
        self.work.lock().applied.clone()
    }

    fn is_corrupt(&self) -> bool {
        self.corrupt.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn key(n: u16) -> Vec<u8> {
        // Some keys have members, as buckets do; the others are put and deleted.
        let tag = if n.is_multiple_of(5) { b'x' } else { b'A' };
        [&[tag], n.to_be_bytes().as_slice(), &[0; 12]].concat()
    }

    fn applied(seq: u64) -> Applied {
        Applied { seq, checksum: 1, snapshot: seq.to_be_bytes().to_vec() }
    }

    fn memtable() -> impl Strategy<Value = Vec<(u16, u8)>> {
        prop::collection::vec((0_u16..3_000, any::<u8>()), 1..600)
    }

    /// The value in the model, which is one memtable with all changes.
    fn value(model: &Memtable, key: &[u8]) -> Option<Vec<u8>> {
        match model.cells().get(key)? {
            Cell::Put(value) | Cell::Union(value) => Some(value.clone()),
            Cell::Delete => None,
        }
    }

    fn agrees(index: &RunFiles, model: &Memtable) {
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

    fn open(dir: &tempfile::TempDir) -> Result<RunFiles, StoreError> {
        RunFiles::open(dir.path(), 100_000)
    }

    fn new_index() -> (tempfile::TempDir, RunFiles) {
        let dir = tempfile::tempdir().unwrap();
        let index = open(&dir).unwrap();
        (dir, index)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn runs_answer_like_one_layer(layers in prop::collection::vec(memtable(), 1..40)) {
            let (dir, mut index) = new_index();
            let mut model = Memtable::default();
            let count = layers.len();
            for (nth, changes) in layers.into_iter().enumerate() {
                let mut memtable = Memtable::default();
                for (n, byte) in changes {
                    let cell = match byte {
                        _ if n.is_multiple_of(5) => Cell::Union(vec![byte]),
                        0..=99 => Cell::Delete,
                        100.. => Cell::Put(vec![byte; usize::from(byte)]),
                    };
                    memtable.set(key(n), cell);
                }
                index.write(&memtable, &applied(nth as u64)).unwrap();
                index.merge_some().unwrap();
                model.extend(memtable);
                if nth == count / 2 {
                    drop(index);
                    index = open(&dir).unwrap();
                    prop_assert_eq!(index.applied(), Some(Arc::new(applied(nth as u64))));
                }
            }
            prop_assert!(index.runs.read().len() < 16);
            agrees(&index, &model);
            let known: Vec<u64> = index.runs.read().iter().map(|run| run.id()).collect();
            prop_assert!(index.work.lock().merges.len() < 8);
            drop(index);
            let index = open(&dir).unwrap();
            prop_assert_eq!(index.runs.read().iter().map(|run| run.id()).collect::<Vec<_>>(), known);
            agrees(&index, &model);
        }
    }

    #[test]
    fn what_the_manifest_does_not_name_is_removed() {
        let (dir, index) = new_index();
        let mut memtable = Memtable::default();
        memtable.put(key(1), vec![1]);
        index.write(&memtable, &applied(1)).unwrap();
        drop(index);
        for stray in ["db", "run-00000000000000ff", "run-0000000000000002.partial"] {
            std::fs::write(dir.path().join(stray), b"left over").unwrap();
        }
        std::fs::create_dir(dir.path().join("blobs")).unwrap();
        let index = open(&dir).unwrap();
        assert_eq!(index.get(&key(1)), Ok(Some(vec![1])));
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 2, "the manifest and one run");
    }

    #[test]
    fn damage_that_is_met_while_serving_takes_the_manifest_away() {
        let (dir, index) = new_index();
        let mut memtable = Memtable::default();
        (0..2_000).for_each(|n| memtable.put(key(n), vec![7; 20]));
        index.write(&memtable, &applied(1)).unwrap();
        let path = run_path(dir.path(), 1);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20_000] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let failed = (0..2_000).filter(|n| index.get(&key(*n)).is_err()).count();
        assert!((1..2_000).contains(&failed), "{failed}");
        assert!(index.is_corrupt());
        let refused = index.write(&memtable, &applied(2));
        assert!(matches!(refused, Err(StoreError::Damaged { .. })), "{refused:?}");
        drop(index);
        let index = open(&dir).unwrap();
        assert_eq!((index.applied(), index.get(&key(1))), (None, Ok(None)));
    }

    #[test]
    fn a_merge_that_failed_is_given_up() {
        let (dir, index) = new_index();
        for byte in [1, 2] {
            let mut memtable = Memtable::default();
            (0..2_000).for_each(|n| memtable.put(key(n), vec![byte; 20]));
            (2_000..3_000).for_each(|n| memtable.set(key(n), Cell::Delete));
            index.write(&memtable, &applied(1)).unwrap();
        }
        let mut bytes = std::fs::read(run_path(dir.path(), 2)).unwrap();
        bytes[20_000] ^= 1;
        std::fs::write(run_path(dir.path(), 2), bytes).unwrap();
        let failed = index.compact();
        assert!(matches!(failed, Err(StoreError::Damaged { .. })), "{failed:?}");
        assert!(index.work.lock().merges.is_empty(), "nobody goes on with it");
        let left = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let left = left.filter(|path| path.extension().is_some()).count();
        assert_eq!(left, 0, "nothing half written is left");
    }

    #[test]
    fn a_run_that_is_missing_or_another_is_damage() {
        let (dir, index) = new_index();
        for n in 0..2 {
            let mut memtable = Memtable::default();
            memtable.put(key(n), vec![1]);
            index.write(&memtable, &applied(1)).unwrap();
        }
        drop(index);
        let aside = tempfile::tempdir().unwrap();
        let is_damaged = || matches!(open(&dir), Err(StoreError::Damaged { .. }));
        assert!(!is_damaged());
        std::fs::rename(run_path(dir.path(), 1), aside.path().join("aside")).unwrap();
        assert!(is_damaged());
        std::fs::copy(run_path(dir.path(), 2), run_path(dir.path(), 1)).unwrap();
        assert!(is_damaged());
        std::fs::rename(aside.path().join("aside"), run_path(dir.path(), 1)).unwrap();
        assert!(!is_damaged());
    }
}
