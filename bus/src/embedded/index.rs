//! The index in sled: runs, and the manifest that names them.
//!
//! It may lag behind the journal and be lost altogether; it must never be ahead. So a layer is written only when its
//! blocks are durable, and manifest, checkpoint and snapshot in one batch after everything that they vouch for.

use std::fs::File;
use std::ops::Bound;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use super::EmbeddedConfig;
use super::filter;
use super::guard::guarded;
use super::merge::{Merge, RUNS_MAX, over, window};
use super::run::{Builder, Chunks, Run, chunk_key, damaged, malformed};
use crate::codec::{Malformed, Reader, put_str, put_u64};
use crate::error::StoreError;
use crate::failpoint;
use crate::keys::CHECKPOINT;
use crate::table::{Base, Cell, Layer};
use crate::vault::keyring::{failed, sync_dir};

const SEGMENT_BYTES: usize = 512 << 10;
/// How long written entries may stay in sled's buffers: what a killed process has to fold again.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
const MANIFEST: &[u8] = b"M";
const MANIFEST_MARK: &str = "effectd runs 1";
/// Entries that a merge goes on by for every entry that came in, and at least. Each merge ends before its output is
/// needed for the next.
const MERGE_PER_ENTRY: usize = 2;
const MERGE_ENTRIES_MIN: usize = 1_024;
/// Entries merged between two moments in which other threads may go first.
const MERGE_SLICE: usize = 1_024;

pub(crate) struct SledIndex {
    chunks: Chunks,
    file: File,
    /// The newest first.
    runs: RwLock<Vec<Arc<Run>>>,
    work: Mutex<Work>,
}

/// What only the thread that writes uses.
struct Work {
    flushed: Instant,
    next_run: u64,
    merges: Vec<Merge>,
    /// Entries that were written since merges last went on.
    owed: usize,
}

/// Which runs there are, the newest first: id, parts of the head, whether it was synced.
#[derive(Debug, PartialEq, Eq)]
struct Manifest {
    next_run: u64,
    runs: Vec<(u64, u32, bool)>,
}

impl Manifest {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_str(&mut out, MANIFEST_MARK);
        put_u64(&mut out, self.next_run);
        put_u64(&mut out, self.runs.len() as u64);
        for (id, parts, synced) in &self.runs {
            put_u64(&mut out, *id);
            put_u64(&mut out, u64::from(*parts));
            out.push(u8::from(*synced));
        }
        let own = crc32fast::hash(&out);
        out.extend_from_slice(&own.to_be_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let own = bytes
            .len()
            .checked_sub(4)
            .ok_or(Malformed("a manifest that is too short"))?;
        if crc32fast::hash(&bytes[..own]).to_be_bytes() != bytes[own..] {
            return Err(Malformed("a manifest whose checksum does not fit"));
        }
        let mut reader = Reader::new(&bytes[..own], 0);
        if reader.text()? != MANIFEST_MARK {
            return Err(Malformed("runs of another format"));
        }
        let next_run = reader.u64()?;
        let count = reader.count()?;
        let runs = (0..count)
            .map(|_| Ok((reader.u64()?, reader.u32()?, reader.flag()?)))
            .collect::<Result<_, Malformed>>()?;
        reader.end()?;
        Ok(Manifest { next_run, runs })
    }
}

impl SledIndex {
    pub(crate) fn open(config: &EmbeddedConfig) -> Result<Self, StoreError> {
        let path = config.state.join("index");
        let db = guarded("opening the index", || {
            sled::Config::default()
                .path(&path)
                .segment_size(SEGMENT_BYTES)
                .cache_capacity(config.index_cache_bytes)
                .flush_every_ms(None)
                .open()
        })?;
        let file = File::open(path.join("db")).map_err(|error| failed(&path, &error))?;
        sync_dir(&path)?;
        let manifest = read_manifest(&db)?;
        let runs = manifest
            .runs
            .iter()
            .map(|(id, parts, synced)| Run::open(&db, *id, *parts, *synced).map(Arc::new))
            .collect::<Result<Vec<_>, StoreError>>()?;
        let index = SledIndex {
            chunks: Chunks::new(db),
            file,
            runs: RwLock::new(runs),
            work: Mutex::new(Work {
                flushed: Instant::now(),
                next_run: manifest.next_run,
                merges: Vec::new(),
                owed: 0,
            }),
        };
        index.drop_strays()?;
        Ok(index)
    }

    fn runs(&self) -> RwLockReadGuard<'_, Vec<Arc<Run>>> {
        self.runs.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what runs left that were being written or removed when the process ended.
    fn drop_strays(&self) -> Result<(), StoreError> {
        let known: std::collections::BTreeSet<u64> = self.runs().iter().map(|run| run.id).collect();
        for tag in [b'h', b'p'] {
            let mut from = chunk_key(tag, 0, 0);
            while let Some(key) = self.key_from(&from, &[tag + 1])? {
                let id = key
                    .get(1..9)
                    .and_then(|id| id.try_into().ok())
                    .map(u64::from_be_bytes);
                let id = id.ok_or_else(|| damaged("a key that is none of ours"))?;
                if known.contains(&id) {
                    let Some(next) = id.checked_add(1) else { break };
                    from = chunk_key(tag, next, 0);
                } else {
                    guarded("tidying the index", || self.chunks.db.remove(&key))?;
                }
            }
        }
        Ok(())
    }

    fn key_from(&self, from: &[u8], end: &[u8]) -> Result<Option<sled::IVec>, StoreError> {
        let bounds = (Bound::Included(from), Bound::Excluded(end));
        guarded("reading the index", || {
            self.chunks.db.range::<&[u8], _>(bounds).keys().next().transpose()
        })
    }

    fn flush(&self, work: &mut Work, durable: bool) -> Result<(), StoreError> {
        if durable || work.flushed.elapsed() >= FLUSH_INTERVAL {
            guarded("flushing the index", || self.chunks.db.flush())?;
            work.flushed = Instant::now();
        }
        if durable {
            self.file
                .sync_data()
                .map_err(|error| failed("the index's sync".as_ref(), &error))?;
            let runs = self.runs();
            runs.iter()
                .for_each(|run| run.synced.store(true, Ordering::Relaxed));
            failpoint::hit("index.after_sync");
        }
        Ok(())
    }

    /// Makes these the runs, on disk together with what else the batch says, then for readers.
    fn name(&self, work: &Work, runs: Vec<Arc<Run>>, mut batch: sled::Batch) -> Result<(), StoreError> {
        let manifest = Manifest {
            next_run: work.next_run,
            runs: runs
                .iter()
                .map(|run| (run.id, run.parts, run.synced.load(Ordering::Relaxed)))
                .collect(),
        };
        batch.insert(MANIFEST, manifest.encode());
        guarded("writing the index", || self.chunks.db.apply_batch(batch))?;
        *self.runs.write().unwrap_or_else(PoisonError::into_inner) = runs;
        Ok(())
    }

    /// Begins the merges that are worth it, and goes on with each by so many entries.
    fn merge(&self, work: &mut Work, entries: usize) -> Result<(), StoreError> {
        let runs = self.runs().clone();
        let is_busy = |merges: &[Merge], id| {
            merges
                .iter()
                .any(|merge| merge.inputs.iter().any(|run| run.id == id))
        };
        while let Some(range) = window(&runs, |id| is_busy(&work.merges, id)) {
            let oldest = range.end == runs.len();
            let merge = Merge::new(&self.chunks.db, runs[range].to_vec(), work.next_run, oldest)?;
            work.next_run += 1;
            work.merges.push(merge);
        }
        let mut nth = 0;
        while nth < work.merges.len() {
            let mut left = entries;
            let mut done = false;
            while left > 0 && !done {
                let slice = left.min(MERGE_SLICE);
                done = work.merges[nth].step(&self.chunks.db, slice)?;
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
        let (inputs, output) = merge.finish(&self.chunks.db)?;
        failpoint::hit("index.after_merge");
        let mut output = output.map(Arc::new);
        let mut runs = Vec::new();
        for run in self.runs().iter() {
            if inputs.iter().any(|input| input.id == run.id) {
                runs.extend(output.take());
            } else {
                runs.push(run.clone());
            }
        }
        self.name(work, runs, sled::Batch::default())?;
        failpoint::hit("index.before_drop");
        for run in &inputs {
            for (tag, count) in [(b'h', run.parts), (b'p', run.chunks())] {
                for chunk in 0..count {
                    guarded("tidying the index", || {
                        self.chunks.db.remove(chunk_key(tag, run.id, chunk))
                    })?;
                }
            }
        }
        Ok(())
    }
}

fn read_manifest(db: &sled::Db) -> Result<Manifest, StoreError> {
    let get = |key| guarded("reading the index", || db.get(key));
    match get(MANIFEST)? {
        Some(bytes) => Manifest::decode(&bytes).map_err(malformed),
        None if get(CHECKPOINT)?.is_some() => Err(damaged("a checkpoint without runs")),
        None => Ok(Manifest {
            next_run: 1,
            runs: Vec::new(),
        }),
    }
}

/// Checkpoint and snapshot vouch for the rest, and lie beside the runs.
fn vouches(key: &[u8]) -> bool {
    key == CHECKPOINT || key.first() == Some(&b'S')
}

impl Base for SledIndex {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if vouches(key) {
            return Ok(guarded("reading the index", || self.chunks.db.get(key))?.map(|value| value.to_vec()));
        }
        let hash = filter::hash(key);
        let mut said = None;
        for run in self.runs().iter() {
            if let Some(older) = run.get(&self.chunks, key, hash)? {
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

    fn next(&self, from: &[u8], end: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let mut least: Option<Vec<u8>> = None;
        for run in self.runs().iter() {
            let end = least.as_deref().map_or(end, |least| least.min(end));
            least = run.next(&self.chunks, from, end)?.or(least);
        }
        Ok(least)
    }

    fn previous(&self, start: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let mut greatest: Option<Vec<u8>> = None;
        for run in self.runs().iter() {
            let start = greatest.as_deref().map_or(start, |greatest| greatest.max(start));
            greatest = run.previous(&self.chunks, start, to)?.or(greatest);
        }
        Ok(greatest)
    }

    fn write(&self, layer: &Layer, durable: bool) -> Result<(), StoreError> {
        failpoint::hit("index.before_write");
        let mut work = self.work();
        let mut batch = sled::Batch::default();
        let mut run = Builder::new(work.next_run, layer.len() as u64);
        work.next_run += 1;
        for (key, cell) in layer.cells() {
            match cell {
                Cell::Put(value) if vouches(key) => batch.insert(key.as_slice(), value.as_slice()),
                Cell::Put(_) | Cell::Delete | Cell::Union(_) => run.push(&self.chunks.db, key, cell)?,
            }
        }
        let newest = run.finish(&self.chunks.db)?.map(Arc::new);
        let runs = newest.into_iter().chain(self.runs().iter().cloned()).collect();
        self.name(&work, runs, batch)?;
        work.owed += layer.len();
        failpoint::hit("index.after_write");
        self.flush(&mut work, durable)
    }

    fn tidy(&self) -> Result<(), StoreError> {
        let mut work = self.work();
        let owed = std::mem::take(&mut work.owed);
        self.merge(&mut work, owed * MERGE_PER_ENTRY + MERGE_ENTRIES_MIN)?;
        while self.runs().len() > RUNS_MAX {
            self.merge(&mut work, usize::MAX)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use effectd_contracts::digest::hex;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_of_a_manifest_stay_what_they_are() {
        let manifest = Manifest {
            next_run: 9,
            runs: vec![(8, 1, false), (300, 2, true)],
        };
        let bytes = manifest.encode();
        assert_eq!(
            hex(&bytes),
            "0e656666656374642072756e7320310902080100ac020201d0c45122"
        );
        assert_eq!(Manifest::decode(&bytes), Ok(manifest));
        assert!(Manifest::decode(&bytes[1..]).is_err());
    }

    fn key(n: u16) -> Vec<u8> {
        // Some keys have members, as buckets do; the others are put and deleted.
        let tag = if n.is_multiple_of(5) { b'x' } else { b'A' };
        [&[tag], n.to_be_bytes().as_slice(), &[0; 12]].concat()
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

    fn agrees(index: &SledIndex, model: &Layer) {
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn runs_answer_like_one_layer(layers in prop::collection::vec(layer(), 1..40)) {
            let state = tempfile::tempdir().unwrap();
            std::fs::create_dir(state.path().join("index")).unwrap();
            let config = EmbeddedConfig::new(state.path());
            let mut model = Layer::default();
            let mut index = super::super::released(|| SledIndex::open(&config)).unwrap();
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
                layer.put(CHECKPOINT.to_vec(), vec![1]);
                index.write(&layer, nth.is_multiple_of(7)).unwrap();
                index.tidy().unwrap();
                layer.put(CHECKPOINT.to_vec(), Vec::new());
                model.extend(layer);
                if nth == count / 2 {
                    drop(index);
                    index = super::super::released(|| SledIndex::open(&config)).unwrap();
                }
            }
            prop_assert!(index.runs().len() < 16);
            let mut plain = Layer::default();
            for (key, cell) in model.cells().iter().filter(|(key, _)| key.as_slice() != CHECKPOINT) {
                plain.set(key.clone(), cell.clone());
            }
            agrees(&index, &plain);
            let known: Vec<u64> = index.runs().iter().map(|run| run.id).collect();
            let busy = index.work().merges.len();
            drop(index);
            let index = super::super::released(|| SledIndex::open(&config)).unwrap();
            prop_assert_eq!(index.runs().iter().map(|run| run.id).collect::<Vec<_>>(), known);
            prop_assert!(busy < 8);
            agrees(&index, &plain);
        }
    }

    #[test]
    fn a_checkpoint_without_runs_is_an_index_to_be_made_anew() {
        let state = tempfile::tempdir().unwrap();
        std::fs::create_dir(state.path().join("index")).unwrap();
        let config = EmbeddedConfig::new(state.path());
        let index = super::super::released(|| SledIndex::open(&config)).unwrap();
        index.chunks.db.insert(CHECKPOINT, b"old").unwrap();
        drop(index);
        let error = super::super::released(|| SledIndex::open(&config)).err();
        assert!(matches!(error, Some(StoreError::Damaged { .. })), "{error:?}");
    }
}
