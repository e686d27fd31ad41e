//! Both engines pass the suite that any later engine runs too.

use std::sync::Arc;

use effectd_bus::embedded::JournalKind;
use effectd_bus::memory::MemoryDisk;
use effectd_bus::testing::values::{event, topic};
use effectd_bus::testing::{self, Fixture};
use effectd_bus::{EmbeddedConfig, Store, StoreError, Tail, embedded, memory};
use effectd_contracts::{ManualClock, SystemClock};

impl Fixture for Memory {
    fn open(&self, clock: Arc<ManualClock>) -> Arc<dyn Store> {
        crate::watchdog::start();
        Arc::new(memory::open_on(&self.0, clock).unwrap())
    }
}

struct Memory(MemoryDisk);

impl Fixture for Embedded {
    fn open(&self, clock: Arc<ManualClock>) -> Arc<dyn Store> {
        crate::watchdog::start();
        let config = EmbeddedConfig {
            // Few, so that most of the index is in files.
            index_memtable_entries: 20,
            journal: self.1,
            segment_bytes: 8 << 10,
            ..EmbeddedConfig::new(self.0.path())
        };
        Arc::new(embedded::open(config, clock).unwrap())
    }
}

struct Embedded(tempfile::TempDir, JournalKind);

#[test]
fn the_memory_engine_conforms() {
    testing::run(|| Box::new(Memory(MemoryDisk::default())));
}

#[test]
fn the_embedded_engine_conforms() {
    testing::run(|| Box::new(Embedded(tempfile::tempdir().unwrap(), JournalKind::Files)));
}

#[test]
fn the_embedded_engine_conforms_in_sled() {
    testing::run(|| Box::new(Embedded(tempfile::tempdir().unwrap(), JournalKind::Sled)));
}

fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::task::Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn tasks_await_answers_and_follow_topics() {
    let state = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> =
        Arc::new(embedded::open(EmbeddedConfig::new(state.path()), Arc::new(SystemClock)).unwrap());
    let mut tail = Tail::new(store.clone(), topic("t"), 0).unwrap();
    let follower = std::thread::spawn(move || {
        block_on(async move {
            let mut seen = Vec::new();
            while seen.len() < 20 {
                seen.extend(tail.next(3).await.unwrap().into_iter().map(|event| event.offset));
            }
            let closed = tail.next(1).await;
            (seen, closed)
        })
    });
    block_on(async {
        for n in 0..20 {
            let published = store.publish(&topic("t"), vec![event(&n.to_string())]).await.unwrap();
            assert_eq!(published[0].offset, n);
        }
    });
    store.close().unwrap();
    let (seen, closed) = follower.join().unwrap();
    assert_eq!(seen, (0..20).collect::<Vec<u64>>());
    assert_eq!(closed, Err(StoreError::Closed));
}
