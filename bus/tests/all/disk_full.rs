//! A full or read-only disk: typed errors, no new work, and full service again when there is space.

use std::sync::Arc;

use effectd_bus::embedded::JournalKind;
use effectd_bus::testing::values::{claim, completion, sealed_event, topic};
use effectd_bus::{ClaimAnswer, EmbeddedConfig, Store, StoreError, embedded};
use effectd_contracts::{Status, SystemClock};

use crate::child::BOTH;
use crate::mounts::{Ballast, Mount, is_root};

fn publish(store: &dyn Store, id: &str) -> Result<u64, StoreError> {
    let event = sealed_event(id, "a", &[7; 20_000]);
    store.publish(&topic("t"), vec![event]).wait().map(|published| published[0].offset)
}

#[test]
fn a_disk_that_is_really_full_gives_typed_errors_and_recovers() {
    if is_root("disk_full::a_disk_that_is_really_full_gives_typed_errors_and_recovers") {
        BOTH.into_iter().for_each(really_full);
    }
}

fn really_full(journal: JournalKind) {
    let scratch = tempfile::tempdir().unwrap();
    let disk = Mount::tmpfs(scratch.path().join("disk"), 64);
    let config =
        EmbeddedConfig { disk_free_bytes_min: 0, journal, ..EmbeddedConfig::new(disk.path().join("state")) };
    crate::watchdog::start();
    let store = embedded::open(config, Arc::new(SystemClock)).unwrap();
    let mut answered = Vec::new();
    for round in 0..3 {
        for n in 0..5 {
            let id = format!("{round}-{n}");
            answered.push((publish(&store, &id).unwrap(), id));
        }
        let ballast = Ballast::all_but(disk.path(), 200_000);
        let mut refused = 0;
        for n in 0..200 {
            let id = format!("{round}-full-{n}");
            match publish(&store, &id) {
                Ok(offset) => answered.push((offset, id)),
                Err(StoreError::Full | StoreError::Unavailable { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
        assert!(refused > 0, "200 events of 20 kB do not fit into 200 kB");
        drop(ballast);
    }
    let end = publish(&store, "at last").unwrap();
    assert!(store.stats().reopens > 0);
    for (offset, id) in &answered {
        let event = &store.read(&topic("t"), *offset, 1).unwrap().events[0];
        assert_eq!(event.event_id.as_str(), id);
        assert_eq!(event.body.bytes(), Some(&[7; 20_000][..]));
    }
    assert!(end >= answered.len() as u64);
    store.audit().wait().unwrap();
    store.close().unwrap();
}

#[test]
fn a_nearly_full_disk_takes_no_new_work_but_ends_what_was_begun() {
    if is_root("disk_full::a_nearly_full_disk_takes_no_new_work_but_ends_what_was_begun") {
        BOTH.into_iter().for_each(nearly_full);
    }
}

fn nearly_full(journal: JournalKind) {
    let scratch = tempfile::tempdir().unwrap();
    let disk = Mount::tmpfs(scratch.path().join("disk"), 64);
    let reserve = 24 << 20;
    let config = EmbeddedConfig {
        disk_free_bytes_min: reserve,
        journal,
        ..EmbeddedConfig::new(disk.path().join("state"))
    };
    crate::watchdog::start();
    let store = embedded::open(config, Arc::new(SystemClock)).unwrap();
    let mine = claim("a", "k", "p");
    let ClaimAnswer::New { fence } = store.claim(mine.clone()).wait().unwrap() else { panic!() };
    let ballast = Ballast::all_but(disk.path(), reserve - 4_096);
    assert_eq!(publish(&store, "1"), Err(StoreError::Full));
    assert_eq!(store.refusal(), Some(StoreError::Full));
    assert_eq!(store.claim(claim("b", "kb", "p")).wait(), Err(StoreError::Full));
    assert!(StoreError::Full.may_retry());
    store.commit(completion(&mine, Status::Ok, Some(fence))).wait().unwrap();
    // Retention frees space only after a signed head was noted.
    store.note("head", b"{}".to_vec()).wait().unwrap();
    drop(ballast);
    publish(&store, "1").unwrap();
    assert_eq!(store.refusal(), None);
    // The same for a disk that takes few more files.
    disk.limit_files(900);
    assert_eq!(publish(&store, "2"), Err(StoreError::Full));
    disk.limit_files(100_000);
    publish(&store, "2").unwrap();
    assert_eq!(store.stats().reopens, 0);
    store.close().unwrap();
}

#[test]
fn a_read_only_disk_takes_no_new_work_and_recovers() {
    if is_root("disk_full::a_read_only_disk_takes_no_new_work_and_recovers") {
        BOTH.into_iter().for_each(read_only);
    }
}

fn read_only(journal: JournalKind) {
    let scratch = tempfile::tempdir().unwrap();
    let state = scratch.path().join("state");
    crate::watchdog::start();
    let config = EmbeddedConfig { journal, ..EmbeddedConfig::new(&state) };
    let store = embedded::open(config, Arc::new(SystemClock)).unwrap();
    // Before anything is sealed, the epoch key cannot be created; after that, the journal cannot be written.
    for id in ["1", "2"] {
        let read_only = Mount::read_only(state.clone());
        assert_eq!(publish(&store, id), Err(StoreError::ReadOnly));
        store.groups(&topic("t")).wait().unwrap();
        assert_eq!(store.refusal(), Some(StoreError::ReadOnly));
        assert_eq!(embedded::refusal(&state, 0), Some(StoreError::ReadOnly));
        drop(read_only);
        publish(&store, id).unwrap();
        assert_eq!(store.refusal(), None);
    }
    store.close().unwrap();
}
