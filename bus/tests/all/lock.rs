//! The lock and the format of a state directory.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use effectd_bus::testing::values::{event, topic};
use effectd_bus::{EmbeddedConfig, Store, StoreError, embedded};
use effectd_contracts::SystemClock;
use nix::fcntl::{Flock, FlockArg};

use crate::child::{Order, Worker};

#[test]
fn a_second_process_is_told_that_the_store_is_in_use() {
    let state = tempfile::tempdir().unwrap();
    let worker = Worker::start(state.path(), &Order::default());
    while worker.line().expect("the child is alive") != "ready" {}
    let second = embedded::open(EmbeddedConfig::new(state.path()), Arc::new(SystemClock));
    let error = second.expect_err("the store is in use");
    assert_eq!(error, StoreError::Locked { path: state.path().to_owned() });
    assert!(error.to_string().contains("in use by another process"));
    worker.kill();
    embedded::open(EmbeddedConfig::new(state.path()), Arc::new(SystemClock)).unwrap().audit().wait().unwrap();
}

fn open_files(path: &Path) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let leads_there = |entry: &std::fs::DirEntry| std::fs::read_link(entry.path()).is_ok_and(|to| to == path);
    open.flatten().filter(leads_there).count()
}

#[test]
fn a_lock_that_is_let_go_of_soon_is_waited_for() {
    let state = tempfile::tempdir().unwrap();
    let open = || embedded::open(EmbeddedConfig::new(state.path()), Arc::new(SystemClock));
    open().unwrap().close().unwrap();
    let path = state.path().join("journal/lock");
    let held = || Flock::lock(File::open(&path).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
    let lock = held();
    std::thread::scope(|scope| {
        let opening = scope.spawn(open);
        // It has tried at least once when the lock is released, or is about to.
        while open_files(&path) < 2 && !opening.is_finished() {
            std::thread::yield_now();
        }
        drop(lock);
        opening.join().unwrap().unwrap().close().unwrap();
    });
    let lock = held();
    let begun = Instant::now();
    assert!(matches!(open(), Err(StoreError::Locked { .. })));
    assert!(begun.elapsed() >= Duration::from_secs(1));
    drop(lock);
}

#[test]
fn a_store_of_another_format_is_refused_and_left_alone() {
    let state = tempfile::tempdir().unwrap();
    let open = || embedded::open(EmbeddedConfig::new(state.path()), Arc::new(SystemClock));
    let store = open().unwrap();
    store.publish(&topic("t"), vec![event("1")]).wait().unwrap();
    store.close().unwrap();
    drop(store);
    let format = state.path().join("journal/format");
    let whole = std::fs::read(&format).unwrap();
    for found in [1, 2, 4] {
        std::fs::write(&format, format!("{found}\n")).unwrap();
        assert_eq!(open().err(), Some(StoreError::Format { found, known: 3 }));
    }
    for unknown in ["3\n", "3 paper\n"] {
        std::fs::write(&format, unknown).unwrap();
        assert!(matches!(open(), Err(StoreError::Damaged { .. })));
    }
    // The other journal may be the only one; it is not mistaken for the remains of a migration.
    let other = String::from_utf8(whole.clone()).unwrap();
    let other = match other.contains("files") {
        true => other.replace("files", "sled"),
        false => other.replace("sled", "files"),
    };
    std::fs::write(&format, other).unwrap();
    assert!(matches!(open(), Err(StoreError::Damaged { .. })));
    std::fs::write(&format, whole).unwrap();
    assert_eq!(open().unwrap().read(&topic("t"), 0, 9).unwrap().end, 1);
    std::fs::remove_file(&format).unwrap();
    assert!(matches!(open(), Err(StoreError::Damaged { .. })));
}
