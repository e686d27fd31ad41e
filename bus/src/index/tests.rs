//! Tests of the hand-over of memtables to the flushing thread.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]
use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;

/// Runs that keep nothing: these tests are about handing memtables over.
struct NoRuns;

impl RunStore for NoRuns {
    fn get(&self, _: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }

    fn next(&self, _: &[u8], _: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }

    fn previous(&self, _: &[u8], _: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }

    fn write(&self, _: &Memtable, _: &Applied) -> Result<(), StoreError> {
        Ok(())
    }

    fn merge_some(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn applied(&self) -> Option<Arc<Applied>> {
        None
    }

    fn compact(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn is_corrupt(&self) -> bool {
        false
    }
}

/// A memtable that is frozen just when the flush before it ends must be flushed too: if its amount were lost, the
/// flushing thread would sleep and the writer wait forever.
#[test]
fn a_frozen_memtable_is_never_forgotten() {
    let index = Arc::new(Index::new(
        Some(Arc::new(NoRuns)),
        MerkleLog::in_memory(crate::merkle_log::Kept::default()),
        1,
    ));
    let (done, ended) = channel();
    let (flusher, writer) = (index.clone(), index);
    std::thread::spawn(move || flusher.flush_loop());
    std::thread::spawn(move || {
        for n in 0..50_000_u64 {
            let mut memtable = Memtable::default();
            memtable.put(n.to_be_bytes().to_vec(), Vec::new());
            writer.apply(memtable, 1);
            // Freezes as soon as the flush ends, the moment under test. On one processor, the flushing thread needs the yield.
            while !writer.should_flush() {
                std::thread::yield_now();
            }
            let applied = Applied { seq: n, checksum: 0, snapshot: Vec::new() };
            writer.freeze(applied, 0);
        }
        writer.stop();
        done.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(300));
    assert_eq!(ended, Ok(()), "the writer waits for a flushing thread that sleeps");
}

/// Otherwise every later block would be flushed alone.
#[test]
fn a_flush_request_ends_with_its_flush() {
    let log = MerkleLog::in_memory(crate::merkle_log::Kept::default());
    let index = Arc::new(Index::new(Some(Arc::new(NoRuns)), log, 100));
    let show = |n: u8| {
        let mut memtable = Memtable::default();
        memtable.put(vec![n], Vec::new());
        index.apply(memtable, 1);
    };
    show(1);
    assert!(!index.should_flush(), "it is little");
    let layers = index.flush_target().unwrap();
    let waits = index.clone();
    let waiter = std::thread::spawn(move || (0..20_000).any(|_| waits.request_flush(layers).unwrap()));
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !index.should_flush() {
        assert!(std::time::Instant::now() < end, "the flush was not requested");
        std::thread::yield_now();
    }
    let applied = Applied { seq: 1, checksum: 0, snapshot: Vec::new() };
    index.freeze(applied, 0);
    index.flush_frozen().unwrap();
    assert!(waiter.join().unwrap(), "it is flushed");
    show(2);
    assert!(!index.should_flush(), "nobody waits for this one");
}
