//! The index in sled.
//!
//! It may lag behind the journal and be lost altogether; it must never be ahead. So a layer is written only when its
//! blocks are durable, and the checkpoint after everything that it vouches for.

use std::fs::File;
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::EmbeddedConfig;
use super::guard::guarded;
use crate::error::StoreError;
use crate::failpoint;
use crate::keys::CHECKPOINT;
use crate::table::{Base, Cell, Layer, unite};
use crate::vault::keyring::{failed, sync_dir};

const SEGMENT_BYTES: usize = 512 << 10;
/// How long written entries may stay in sled's buffers: what a killed process has to fold again.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct SledIndex {
    db: sled::Db,
    file: File,
    flushed: Mutex<Instant>,
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
        Ok(SledIndex {
            db,
            file,
            flushed: Mutex::new(Instant::now()),
        })
    }

    fn flush(&self, durable: bool) -> Result<(), StoreError> {
        let mut flushed = self.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        if durable || flushed.elapsed() >= FLUSH_INTERVAL {
            guarded("flushing the index", || self.db.flush())?;
            *flushed = Instant::now();
        }
        if durable {
            self.file
                .sync_data()
                .map_err(|error| failed("the index's sync".as_ref(), &error))?;
            failpoint::hit("index.after_sync");
        }
        Ok(())
    }
}

/// Checkpoint and snapshot vouch for the rest, and go last, together.
fn vouches(key: &[u8]) -> bool {
    key == CHECKPOINT || key.first() == Some(&b'S')
}

impl Base for SledIndex {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(guarded("reading the index", || self.db.get(key))?.map(|value| value.to_vec()))
    }

    fn next(&self, from: &[u8], end: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if from >= end {
            return Ok(None);
        }
        let found = guarded("reading the index", || {
            self.db.range(from..end).keys().next().transpose()
        })?;
        Ok(found.map(|key| key.to_vec()))
    }

    fn previous(&self, start: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if start > to {
            return Ok(None);
        }
        let bounds = (Bound::Included(start), Bound::Included(to));
        let found = guarded("reading the index", || {
            self.db.range::<&[u8], _>(bounds).keys().next_back().transpose()
        })?;
        Ok(found.map(|key| key.to_vec()))
    }

    fn write(&self, layer: &Layer, durable: bool) -> Result<(), StoreError> {
        failpoint::hit("index.before_write");
        let mut last = sled::Batch::default();
        for (key, cell) in layer.cells() {
            match cell {
                Cell::Put(value) if vouches(key) => last.insert(key.as_slice(), value.as_slice()),
                Cell::Put(value) => {
                    guarded("writing the index", || self.db.insert(key, value.as_slice()))?;
                }
                Cell::Delete => {
                    guarded("writing the index", || self.db.remove(key))?;
                }
                Cell::Union(more) => {
                    let mut members = self.get(key)?.unwrap_or_default();
                    unite(&mut members, more);
                    guarded("writing the index", || self.db.insert(key, members))?;
                }
            }
        }
        guarded("writing the index", || self.db.apply_batch(last))?;
        failpoint::hit("index.after_write");
        self.flush(durable)
    }
}
