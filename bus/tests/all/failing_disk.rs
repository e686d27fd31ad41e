//! A journal that fails or stalls: the answers of callers, and what readers see.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use effectd_bus::codec::Span;
use effectd_bus::embedded::{JournalKind, open_wrapped};
use effectd_bus::journal::Journal;
use effectd_bus::testing::values::{claim, completion, event, key, topic};
use effectd_bus::{ClaimAnswer, EmbeddedConfig, Lookup, Store, StoreError};
use effectd_contracts::{Digest, Status, SystemClock};

use crate::child::BOTH;

/// Longer than any write takes.
const LONG: std::time::Duration = std::time::Duration::from_secs(60);

/// Calls `before` and `after` around every append of the journal within.
struct Between {
    inner: Arc<dyn Journal>,
    hooks: Arc<dyn Hooks>,
}

trait Hooks: Send + Sync {
    fn before(&self) -> Result<(), StoreError> {
        Ok(())
    }
    fn after(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl Journal for Between {
    fn append(&self, seq: u64, block: &[u8]) -> Result<(), StoreError> {
        self.hooks.before()?;
        self.inner.append(seq, block)?;
        self.hooks.after()
    }
    fn bounds(&self) -> Result<Option<(u64, u64)>, StoreError> {
        self.inner.bounds()
    }
    fn block(&self, seq: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.block(seq)
    }
    fn part(&self, seq: u64, span: Span) -> Result<Vec<u8>, StoreError> {
        self.inner.part(seq, span)
    }
    fn first(&self) -> u64 {
        self.inner.first()
    }
    fn checkpoint(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.checkpoint()
    }
    fn stage(&self, seq: u64, checkpoint: &[u8]) -> Result<(), StoreError> {
        self.inner.stage(seq, checkpoint)
    }
    fn truncate_before(&self, seq: u64) -> Result<(), StoreError> {
        self.inner.truncate_before(seq)
    }
}

fn open(
    state: &std::path::Path,
    journal: JournalKind,
    hooks: Arc<dyn Hooks>,
) -> impl Store + Clone + 'static {
    let wrap = move |inner| Arc::new(Between { inner, hooks: hooks.clone() }) as Arc<dyn Journal>;
    crate::watchdog::start();
    let config = EmbeddedConfig { journal, ..EmbeddedConfig::new(state) };
    open_wrapped(config, Arc::new(SystemClock), Box::new(wrap)).unwrap()
}

/// Fails the given number of times, before or after the block is on disk.
#[derive(Default)]
struct Failing {
    before: AtomicU32,
    after: AtomicU32,
    panics: AtomicU32,
}

fn take(count: &AtomicU32) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Hooks for Failing {
    fn before(&self) -> Result<(), StoreError> {
        assert!(!take(&self.panics), "a panic in the engine, on purpose");
        let error = StoreError::unavailable("input/output error");
        if take(&self.before) { Err(error) } else { Ok(()) }
    }
    fn after(&self) -> Result<(), StoreError> {
        let error = StoreError::unavailable("input/output error");
        if take(&self.after) { Err(error) } else { Ok(()) }
    }
}

#[test]
fn after_a_disk_error_the_store_reopens_and_calls_can_repeat() {
    BOTH.into_iter().for_each(opened_anew);
}

fn opened_anew(journal: JournalKind) {
    let state = tempfile::tempdir().unwrap();
    let failing = Arc::new(Failing::default());
    let store = open(state.path(), journal, failing.clone());
    let t = topic("t");
    store.publish(&t, vec![event("0")]).wait().unwrap();

    // The block never reached the disk: a retry writes it.
    failing.before.store(1, Ordering::SeqCst);
    let unknown = store.publish(&t, vec![event("1")]).wait();
    assert!(matches!(unknown, Err(StoreError::Unavailable { .. })));
    let again = store.publish(&t, vec![event("1")]).wait().unwrap();
    assert_eq!((again[0].offset, again[0].duplicate), (1, false));

    // It did reach the disk, but the answer was lost: a retry finds it.
    failing.after.store(1, Ordering::SeqCst);
    assert!(store.publish(&t, vec![event("2")]).wait().is_err());
    let again = store.publish(&t, vec![event("2")]).wait().unwrap();
    assert_eq!((again[0].offset, again[0].duplicate), (2, true));

    let mine = claim("a", "k", "p");
    failing.after.store(1, Ordering::SeqCst);
    assert!(store.claim(mine.clone()).wait().is_err());
    let ClaimAnswer::OwnIntent(intent) = store.claim(mine.clone()).wait().unwrap() else { panic!() };
    failing.after.store(1, Ordering::SeqCst);
    let done = completion(&mine, Status::Ok, Some(intent.fence));
    assert!(store.commit(done.clone()).wait().is_err());
    assert!(store.commit(done).wait().unwrap().duplicate);

    failing.panics.store(1, Ordering::SeqCst);
    assert!(matches!(store.publish(&t, vec![event("3")]).wait(), Err(StoreError::Unavailable { .. })));
    store.publish(&t, vec![event("3")]).wait().unwrap();
    assert_eq!(store.read(&t, 0, 9).unwrap().end, 4);
    assert_eq!(store.stats().reopens, 5);
    store.close().unwrap();
}

/// Holds every append until it is released.
struct Stalling {
    reached: Mutex<Sender<()>>,
    go: Mutex<Receiver<()>>,
}

impl Hooks for Stalling {
    fn before(&self) -> Result<(), StoreError> {
        let _ = self.reached.lock().unwrap().send(());
        let _ = self.go.lock().unwrap().recv();
        Ok(())
    }
}

#[test]
fn nobody_sees_anything_before_it_is_durable() {
    BOTH.into_iter().for_each(durable_first);
}

fn durable_first(journal: JournalKind) {
    let state = tempfile::tempdir().unwrap();
    let (reached, at_the_disk) = channel();
    let (go, may_go) = channel();
    let store = open(
        state.path(),
        journal,
        Arc::new(Stalling { reached: Mutex::new(reached), go: Mutex::new(may_go) }),
    );
    let mine = claim("a", "k", "p");
    let look = || store.lookup(&mine.asker, &key("k"), &Digest::of(b"p"), &[]).unwrap();
    let mut watch = store.watch(&topic("t")).unwrap();

    let published = store.publish(&topic("t"), vec![event("1")]);
    at_the_disk.recv_timeout(LONG).expect("the writer comes to the disk");
    let claimed = store.claim(mine.clone());
    let refused = store.commit(completion(&mine, Status::Ok, None));
    assert_eq!(store.read(&topic("t"), 0, 9).unwrap().end, 0);
    assert_eq!(watch.wait_changed(std::time::Duration::ZERO), Ok(false));
    go.send(()).unwrap();
    published.wait().unwrap();
    assert_eq!(store.read(&topic("t"), 0, 9).unwrap().end, 1);

    // A refusal follows from what is not durable yet, so it waits for it, too.
    at_the_disk.recv_timeout(LONG).expect("the writer comes to the disk");
    assert_eq!(look(), Lookup::Unknown);
    go.send(()).unwrap();
    let ClaimAnswer::New { fence } = claimed.wait().unwrap() else { panic!() };
    assert!(matches!(refused.wait(), Err(StoreError::StaleFence { .. })));
    assert!(matches!(look(), Lookup::InFlight { .. }));

    let done = store.commit(completion(&mine, Status::Ok, Some(fence)));
    at_the_disk.recv_timeout(LONG).expect("the writer comes to the disk");
    assert_eq!(store.receipt_of(&mine.action_id).unwrap(), None);
    assert!(matches!(look(), Lookup::InFlight { .. }));
    go.send(()).unwrap();
    done.wait().unwrap();
    assert!(matches!(look(), Lookup::Done { .. }));
    drop(go);
    store.close().unwrap();
}

#[test]
fn a_full_queue_says_so_and_holds_what_it_took() {
    BOTH.into_iter().for_each(full_queue);
}

fn full_queue(journal: JournalKind) {
    let state = tempfile::tempdir().unwrap();
    let (reached, at_the_disk) = channel();
    let (go, may_go) = channel();
    let store = open(
        state.path(),
        journal,
        Arc::new(Stalling { reached: Mutex::new(reached), go: Mutex::new(may_go) }),
    );
    let first = store.publish(&topic("t"), vec![event("first")]);
    at_the_disk.recv_timeout(LONG).expect("the writer comes to the disk");
    let max = effectd_bus::limits::QUEUE_OPERATIONS_MAX;
    let taken: Vec<_> = (0..max).map(|n| store.publish(&topic("t"), vec![event(&n.to_string())])).collect();
    let refused = store.publish(&topic("t"), vec![event("one too many")]).wait();
    assert!(matches!(refused, Err(StoreError::Overloaded { .. })));
    assert!(refused.unwrap_err().may_retry());
    assert_eq!(store.stats().overloaded, 1);
    drop(go);
    first.wait().unwrap();
    for wait in taken {
        wait.wait().unwrap();
    }
    assert_eq!(store.read(&topic("t"), 0, 1).unwrap().end, max as u64 + 1);
    let stats = store.stats();
    assert!(stats.syncs < 32 && stats.batch_max > 256, "many share a sync: {stats:?}");
    store.close().unwrap();
}
