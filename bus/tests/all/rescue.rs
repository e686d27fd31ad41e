//! Check, rebuild and salvage: each on an undamaged store and on a damaged one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use effectd_bus::embedded::{EmbeddedConfig, JournalKind, journal_of};
use effectd_bus::engine::offline::{Migrated, check, migrate, rebuild};
use effectd_bus::engine::salvage::salvage;
use effectd_bus::testing::values::{claim, completion, event, sealed_event, topic};
use effectd_bus::{LocalStore, NewDeadLetter, Progress, ReceiptQuery, Store, StoreError, embedded};
use effectd_contracts::{Status, SystemClock};

use crate::child::{BOTH, Order, Worker, config};

const ACTIONS: u64 = 200;

fn fill_in(state: &Path, journal: JournalKind) {
    let config = EmbeddedConfig { journal, ..config(state) };
    let store = embedded::open(config, Arc::new(SystemClock)).unwrap();
    for n in 0..ACTIONS {
        let id = n.to_string();
        let mut done = completion(&claim(&id, &id, "p"), Status::Error, None);
        done.letter = (n % 10 == 0).then(|| NewDeadLetter {
            topic: topic("t"),
            code: "timed_out".into(),
            detail: "no answer".into(),
            attempts: 1,
            tries: Vec::new(),
            payload: b"SECRET".to_vec(),
        });
        let waits =
            [store.publish(&topic("t"), vec![event(&id), sealed_event(&format!("s{n}"), "a", b"SECRET")])];
        store.commit(done).wait().unwrap();
        waits.into_iter().for_each(|wait| drop(wait.wait().unwrap()));
    }
    store.close().unwrap();
}

#[test]
fn long_work_says_how_far_it_has_come() {
    let state = tempfile::tempdir().unwrap();
    fill_in(state.path(), JournalKind::Files);
    let last = Arc::new(Mutex::new(BTreeMap::new()));
    let hook = last.clone();
    let progress = Progress::new(move |what, done, total| {
        hook.lock().unwrap().insert(what, (done, total));
    });
    let config = EmbeddedConfig { progress, ..config(state.path()) };
    let blocks = check(&config, &SystemClock).unwrap().blocks;
    assert_eq!(last.lock().unwrap().remove("replaying the journal"), Some((blocks, blocks)));
    assert_eq!(last.lock().unwrap().remove("checking the journal"), Some((blocks, blocks)));
    rebuild(&config, &SystemClock).unwrap();
    assert_eq!(last.lock().unwrap().remove("replaying the journal"), Some((blocks, blocks)));
    migrate(&config, JournalKind::Sled).unwrap();
    assert_eq!(last.lock().unwrap().remove("copying the journal"), Some((blocks, 0)));
    assert_eq!(last.lock().unwrap().remove("comparing the journals"), Some((blocks, blocks)));
    // An index that is missing is rebuilt when the store opens.
    std::fs::remove_dir_all(state.path().join("index")).unwrap();
    embedded::open(config, Arc::new(SystemClock)).unwrap().close().unwrap();
    assert_eq!(last.lock().unwrap().remove("replaying the journal"), Some((blocks, blocks)));
}

#[test]
fn an_index_of_an_older_version_is_rebuilt_despite_crashes() {
    let state = tempfile::tempdir().unwrap();
    fill_in(state.path(), JournalKind::Files);
    for point in ["index.before_write", "index.before_rename", "index.after_rename"] {
        let path = state.path().join("index/manifest");
        let mut bytes = std::fs::read(&path).unwrap();
        let end = bytes.len() - 4;
        assert_eq!(&bytes[1..16], b"effectd index 4");
        bytes[15] = b'3';
        let checksum = crc32fast::hash(&bytes[..end]).to_be_bytes();
        bytes[end..].copy_from_slice(&checksum);
        std::fs::write(&path, bytes).unwrap();
        let order = Order { failpoint: Some(format!("{point}:2")), ..Order::default() };
        let worker = Worker::start(state.path(), &order);
        let mut before = std::iter::from_fn(|| worker.line()).take_while(|line| line != "stopped");
        assert!(before.all(|line| line != "ready"), "{point}: not while it opens");
        worker.kill();
        let store = open(state.path());
        store.audit().wait().unwrap();
        let receipts = store.receipts(&ReceiptQuery { limit: 1_000, ..ReceiptQuery::default() });
        assert_eq!(receipts.unwrap().receipts.len() as u64, ACTIONS, "{point}");
        store.close().unwrap();
        drop(store);
        let checked = check(&config(state.path()), &SystemClock).unwrap();
        assert_eq!((checked.problems, checked.behind), (Vec::<String>::new(), 0), "{point}");
    }
}

fn lines(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(!text.contains("SECRET"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_whole_store_checks_and_its_new_index_is_the_old_one() {
    BOTH.into_iter().for_each(checks);
}

fn checks(journal: JournalKind) {
    let state = tempfile::tempdir().unwrap();
    let nothing = check(&config(&state.path().join("nothing")), &SystemClock);
    assert!(matches!(nothing, Err(StoreError::NotFound { .. })), "{nothing:?}");
    fill_in(state.path(), journal);
    let checked = check(&config(state.path()), &SystemClock).unwrap();
    assert_eq!(checked.problems, [""; 0]);
    assert!(checked.entries > ACTIONS * 4 && checked.behind == 0, "{checked:?}");
    assert!(checked.records >= ACTIONS * 4, "{checked:?}");
    let made = rebuild(&config(state.path()), &SystemClock).unwrap();
    assert!(made.same && made.blocks == checked.blocks, "{made:?}");
    assert_eq!(check(&config(state.path()), &SystemClock), Ok(checked));
    assert!(!state.path().join("index.new").exists());
    let store = embedded::open(config(state.path()), Arc::new(SystemClock)).unwrap();
    let busy = check(&config(state.path()), &SystemClock);
    assert!(matches!(busy, Err(StoreError::Locked { .. })), "{busy:?}");
    store.audit().wait().unwrap();
    store.close().unwrap();
}

#[test]
fn a_damaged_index_is_told_and_made_anew() {
    BOTH.into_iter().for_each(mends_its_index);
}

fn mends_its_index(journal: JournalKind) {
    let state = tempfile::tempdir().unwrap();
    fill_in(state.path(), journal);
    let index = state.path().join("index");
    let mut runs: Vec<_> = std::fs::read_dir(&index)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("run-"))
        .collect();
    runs.sort_by_key(|path| path.metadata().unwrap().len());
    let path = runs.last().unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    bytes[100] ^= 1;
    std::fs::write(path, bytes).unwrap();
    let checked = check(&config(state.path()), &SystemClock).unwrap();
    assert_eq!(checked.problems.len(), 1, "{checked:?}");
    assert!(checked.problems[0].contains("the index"), "{checked:?}");
    assert!(!rebuild(&config(state.path()), &SystemClock).unwrap().same);
    let checked = check(&config(state.path()), &SystemClock).unwrap();
    assert_eq!(checked.problems, [""; 0]);
}

#[test]
fn everything_is_salvaged_from_a_whole_store() {
    BOTH.into_iter().for_each(is_salvaged);
}

fn is_salvaged(journal: JournalKind) {
    let state = tempfile::tempdir().unwrap();
    fill_in(state.path(), journal);
    let out = state.path().join("out");
    let saved = salvage(&config(state.path()), &out).unwrap();
    assert!(saved.opened && saved.missing_blocks == 0 && saved.trouble.is_none(), "{saved:?}");
    assert_eq!((saved.receipts, saved.letters), (ACTIONS, ACTIONS / 10));
    assert_eq!(lines(&out.join("receipts.jsonl")).len() as u64, ACTIONS);
    let events = lines(&out.join("topic-t.jsonl"));
    assert_eq!(events.len() as u64, ACTIONS * 2);
    assert!(events.iter().all(|event| event["sealed"] == event["body"].is_null()));
    assert!(salvage(&config(state.path()), &out).is_err(), "a directory that is there is left alone");
}

/// Overwrites the beginning, as by a tool that was pointed at the wrong file.
fn overwrite_beginning(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[..used / 3].fill(0xa5);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn what_is_left_of_a_journal_that_cannot_be_opened_is_salvaged() {
    let state = tempfile::tempdir().unwrap();
    fill_in(state.path(), JournalKind::Files);
    let files = std::fs::read_dir(state.path().join("journal/segments")).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 2, "{files:?}");
    overwrite_beginning(&files[0]);
    std::fs::remove_file(&files[1]).unwrap();
    some_is_salvaged(state.path());
}

#[test]
fn what_is_left_of_a_journal_in_sled_is_salvaged() {
    let state = tempfile::tempdir().unwrap();
    fill_in(state.path(), JournalKind::Sled);
    let database = std::fs::read_dir(state.path().join("journal/sled")).unwrap();
    let database = database.map(|entry| entry.unwrap().path()).next().unwrap();
    overwrite_beginning(&database.join("db"));
    for snapshot in std::fs::read_dir(database).unwrap() {
        let snapshot = snapshot.unwrap().path();
        if snapshot.file_name().unwrap().to_str().unwrap().starts_with("snap.") {
            std::fs::remove_file(snapshot).unwrap();
        }
    }
    some_is_salvaged(state.path());
}

fn some_is_salvaged(state: &Path) {
    let out = state.join("out");
    let saved = salvage(&config(state), &out).unwrap();
    assert!(saved.receipts > 0 && saved.receipts < ACTIONS, "{saved:?}");
    assert!(saved.missing_blocks > 0 || !saved.opened || saved.trouble.is_some(), "{saved:?}");
    assert_eq!(lines(&out.join("receipts.jsonl")).len() as u64, saved.receipts);
}

fn open(state: &Path) -> LocalStore {
    embedded::open(config(state), Arc::new(SystemClock)).unwrap()
}

fn content(store: &LocalStore) -> String {
    let receipts = store.receipts(&ReceiptQuery { limit: 1_000, ..ReceiptQuery::default() });
    let events = store.read(&topic("t"), 0, 1_000).unwrap();
    let letters = store.letters(None, 0, 1_000).unwrap();
    let root = store.log().unwrap().root;
    format!("{:?} {events:?} {letters:?} {root:?}", receipts.unwrap())
}

#[test]
fn a_journal_moves_to_the_other_engine_and_back() {
    let state = tempfile::tempdir().unwrap();
    fill_in(state.path(), JournalKind::Files);
    let store = open(state.path());
    let expected = content(&store);
    let busy = migrate(&config(state.path()), JournalKind::Sled);
    assert!(matches!(busy, Err(StoreError::Locked { .. })), "{busy:?}");
    store.close().unwrap();
    drop(store);
    let blocks = check(&config(state.path()), &SystemClock).unwrap().blocks;
    for (to, gone) in [(JournalKind::Sled, "segments"), (JournalKind::Files, "sled")] {
        let moved = migrate(&config(state.path()), to);
        assert_eq!(moved, Ok(Migrated { blocks, changed: true }));
        let again = migrate(&config(state.path()), to);
        assert_eq!(again, Ok(Migrated { blocks, changed: false }));
        assert_eq!(journal_of(state.path()), Ok(to));
        assert!(!state.path().join("journal").join(gone).exists());
        let checked = check(&config(state.path()), &SystemClock).unwrap();
        assert_eq!((checked.problems.len(), checked.behind, checked.blocks), (0, 0, blocks));
        let store = open(state.path());
        assert!(content(&store) == expected, "{to:?}");
        store.audit().wait().unwrap();
        store.close().unwrap();
    }
}

#[test]
fn a_migration_that_is_killed_leaves_one_journal_that_is_whole() {
    for (from, to) in [BOTH, [BOTH[1], BOTH[0]]].map(|[from, to]| (from, to)) {
        for (point, left) in [("migrate.written", from), ("migrate.in_force", to)] {
            let state = tempfile::tempdir().unwrap();
            fill_in(state.path(), from);
            let order =
                Order { migrates: Some(to), failpoint: Some(format!("{point}:1")), ..Order::default() };
            let worker = Worker::start(state.path(), &order);
            while worker.line().expect("it comes to the point") != "stopped" {}
            worker.kill();
            assert_eq!(journal_of(state.path()), Ok(left), "{point}");
            let store = open(state.path());
            store.audit().wait().unwrap();
            assert_eq!(store.read(&topic("t"), 0, 1).unwrap().end, ACTIONS * 2);
            store.close().unwrap();
            drop(store);
            // Nothing is left of the other one, and the migration can be repeated.
            let journals = std::fs::read_dir(state.path().join("journal")).unwrap();
            assert_eq!(journals.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count(), 1);
            assert!(migrate(&config(state.path()), to).is_ok());
            let checked = check(&config(state.path()), &SystemClock).unwrap();
            assert_eq!(checked.problems, [""; 0]);
        }
    }
}
