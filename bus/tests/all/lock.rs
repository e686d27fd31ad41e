//! One process at a time, and only formats that are known.

use std::sync::Arc;

use effectd_bus::conformance::values::{event, topic};
use effectd_bus::{EmbeddedConfig, Store, StoreError, embedded};
use effectd_contracts::SystemClock;

use crate::child::{Order, Worker};

#[test]
fn a_second_process_is_told_that_the_store_is_in_use() {
    let state = tempfile::tempdir().unwrap();
    let worker = Worker::start(state.path(), &Order::default());
    while worker.line().expect("the child is alive") != "ready" {}
    let second = embedded::open(EmbeddedConfig::new(state.path()), Arc::new(SystemClock));
    let error = second.expect_err("the store is in use");
    assert_eq!(
        error,
        StoreError::Locked {
            path: state.path().to_owned()
        }
    );
    assert!(error.to_string().contains("in use by another process"));
    worker.kill();
    embedded::open(EmbeddedConfig::new(state.path()), Arc::new(SystemClock))
        .unwrap()
        .audit()
        .wait()
        .unwrap();
}

#[test]
fn a_store_of_a_newer_format_is_refused_and_left_alone() {
    let state = tempfile::tempdir().unwrap();
    let open = || embedded::open(EmbeddedConfig::new(state.path()), Arc::new(SystemClock));
    let store = open().unwrap();
    store.publish(&topic("t"), vec![event("1")]).wait().unwrap();
    store.close().unwrap();
    drop(store);
    let format = state.path().join("journal/format");
    std::fs::write(&format, "2\n").unwrap();
    assert_eq!(open().err(), Some(StoreError::Newer { found: 2, known: 1 }));
    std::fs::write(&format, "1\n").unwrap();
    assert_eq!(open().unwrap().read(&topic("t"), 0, 9).unwrap().end, 1);
    std::fs::remove_file(&format).unwrap();
    assert!(matches!(open(), Err(StoreError::Damaged { .. })));
}
