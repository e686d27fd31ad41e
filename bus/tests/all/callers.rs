//! Who writes: the store's own thread, or, while nobody else does and it was agreed to, whoever asks.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use effectd_bus::conformance::values::{claim, completion, event, topic};
use effectd_bus::{ClaimAnswer, Fence, Store, StoreError};
use effectd_contracts::Status;

use crate::failing_disk::{Hooks, open};

/// Notes who writes, and fails as often as it is told to.
#[derive(Default)]
struct Noting {
    writers: Mutex<Vec<ThreadId>>,
    failures: AtomicU32,
    panics: AtomicU32,
    /// Tells that a write has begun, and waits until it may go on.
    gate: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

fn take(count: &AtomicU32) -> bool {
    let taken = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    taken.is_ok()
}

impl Hooks for Noting {
    fn before(&self) -> Result<(), StoreError> {
        self.writers.lock().unwrap().push(std::thread::current().id());
        let gate = self.gate.lock().unwrap().take();
        if let Some((begun, go_on)) = gate {
            begun.send(()).unwrap();
            go_on.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        assert!(!take(&self.panics), "a panic in the engine, on purpose");
        if take(&self.failures) {
            let reason = "input/output error".into();
            return Err(StoreError::Unavailable { reason });
        }
        Ok(())
    }
}

impl Noting {
    fn writers(&self) -> Vec<ThreadId> {
        std::mem::take(&mut self.writers.lock().unwrap())
    }
}

fn granted(store: &impl Store, name: &str) -> Fence {
    match store.claim(claim(name, name, "p")).wait() {
        Ok(ClaimAnswer::New { fence }) => fence,
        other => panic!("{name}: {other:?}"),
    }
}

/// Claims until it was this thread that wrote: the store's own may still be about to put its pen down.
fn written_here(store: &impl Store, noting: &Noting, name: &str) {
    for n in 0..100_000 {
        noting.writers();
        granted(store, &format!("{name}{n}"));
        if noting.writers() == [std::thread::current().id()] {
            return;
        }
    }
    panic!("{name}: the store's own thread never lets go");
}

#[test]
fn a_caller_writes_himself_only_if_that_was_agreed_to() {
    let (state, noting) = (tempfile::tempdir().unwrap(), Arc::new(Noting::default()));
    let store = open(state.path(), noting.clone());
    let here = std::thread::current().id();
    granted(&store, "a");
    assert!(!noting.writers().contains(&here));
    store.let_callers_write();
    written_here(&store, &noting, "b");
    // Nobody else has written since.
    let fence = granted(&store, "c");
    assert_eq!(noting.writers(), [here]);
    let done = completion(&claim("c", "c", "p"), Status::Ok, Some(fence));
    store.commit(done).wait().unwrap();
    assert_eq!(noting.writers(), [here]);
    // What nobody waits for is for the thread.
    store.publish(&topic("t"), vec![event("0")]).wait().unwrap();
    assert!(!noting.writers().contains(&here));
    store.close().unwrap();
    assert_eq!(store.claim(claim("d", "d", "p")).wait(), Err(StoreError::Closed));
}

#[test]
fn nobody_waits_in_a_call_for_what_another_one_writes() {
    let (state, noting) = (tempfile::tempdir().unwrap(), Arc::new(Noting::default()));
    let store = open(state.path(), noting.clone());
    store.let_callers_write();
    let (begun, has_begun) = channel();
    let (go_on, may_go_on) = channel();
    *noting.gate.lock().unwrap() = Some((begun, may_go_on));
    let first = store.publish(&topic("t"), vec![event("0")]);
    has_begun.recv_timeout(Duration::from_secs(60)).unwrap();
    // The thread is at the disk: these calls return, and are answered after it.
    let claims: Vec<_> = (0..9)
        .map(|n| store.claim(claim(&n.to_string(), &n.to_string(), "p")))
        .collect();
    go_on.send(()).unwrap();
    first.wait().unwrap();
    for wait in claims {
        assert!(matches!(wait.wait(), Ok(ClaimAnswer::New { .. })));
    }
    assert!(!noting.writers().contains(&std::thread::current().id()));
    // Where many were answered at once, the next one leaves it to the thread, which has company to wait for; then it is calm again.
    granted(&store, "next");
    assert!(!noting.writers().contains(&std::thread::current().id()));
    written_here(&store, &noting, "alone");
}

#[test]
fn a_caller_whose_write_fails_is_told_and_the_store_is_opened_anew() {
    let (state, noting) = (tempfile::tempdir().unwrap(), Arc::new(Noting::default()));
    let store = open(state.path(), noting.clone());
    store.let_callers_write();
    written_here(&store, &noting, "before");
    for fault in [&noting.failures, &noting.panics] {
        fault.store(1, Ordering::SeqCst);
        let name = format!("{:p}", fault);
        let failed = store.claim(claim(&name, &name, "p")).wait();
        assert!(
            matches!(failed, Err(StoreError::Unavailable { .. })),
            "{failed:?}"
        );
        granted(&store, &name);
        written_here(&store, &noting, &name);
    }
}
