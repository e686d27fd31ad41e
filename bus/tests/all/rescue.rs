//! Check, rebuild and salvage: each on an undamaged store and on a damaged one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use effectd_bus::embedded::{EmbeddedConfig, JournalKind, journal_of};
use effectd_bus::engine::offline::{Migrated, check, migrate, rebuild};
use effectd_bus::engine::salvage::{Salvaged, salvage};
use effectd_bus::limits::LEASE_TTL_MAX;
use effectd_bus::testing::values::{action, claim, completion, event, group, sealed_event, topic};
use effectd_bus::{
    ClaimAnswer, LocalStore, NewDeadLetter, Progress, ReceiptQuery, Store, StoreError, embedded,
};
use effectd_contracts::{InvocationBrief, Status, SystemClock, merkle};

use crate::child::{BOTH, Order, Worker, config};
use crate::mounts::{Mount, is_root, make_ext4};

const ACTIONS: u64 = 200;

fn fill_in(state: &Path, journal: JournalKind) {
    let config = EmbeddedConfig { journal, ..config(state) };
    let store = embedded::open(config, Arc::new(SystemClock)).unwrap();
    for n in 0..ACTIONS {
        let id = n.to_string();
        let mut done = completion(&claim(&id, &id, "p"), Status::Error, None);
        let body = format!(r#"{{"n":{n},"org":"home","outcome":"failed","principal":"user://a"}}"#);
        done.receipt.body = body.into_bytes();
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
    salvage(&config, &state.path().join("out")).unwrap();
    for what in ["searching for readable blocks", "writing readable blocks"] {
        assert_eq!(last.lock().unwrap().remove(what), Some((blocks, blocks)), "{what}");
    }
    migrate(&config, JournalKind::Sled).unwrap();
    assert_eq!(last.lock().unwrap().remove("copying the journal"), Some((blocks, 0)));
    assert_eq!(last.lock().unwrap().remove("comparing the journals"), Some((blocks, blocks)));
    // An index that is missing is rebuilt when the store opens.
    std::fs::remove_dir_all(state.path().join("index")).unwrap();
    embedded::open(config, Arc::new(SystemClock)).unwrap().close().unwrap();
    assert_eq!(last.lock().unwrap().remove("replaying the journal"), Some((blocks, blocks)));
}

#[test]
fn a_missing_index_is_built_once() {
    let state = tempfile::tempdir().unwrap();
    fill_in(state.path(), JournalKind::Files);
    std::fs::remove_dir_all(state.path().join("index")).unwrap();
    let replays = Arc::new(Mutex::new(0));
    let hook = replays.clone();
    let progress = Progress::new(move |what, done, _| {
        *hook.lock().unwrap() += u32::from(what == "replaying the journal" && done == 1);
    });
    let made = rebuild(&EmbeddedConfig { progress, ..config(state.path()) }, &SystemClock).unwrap();
    assert_eq!((made.same, *replays.lock().unwrap()), (false, 1));
    let checked = check(&config(state.path()), &SystemClock).unwrap();
    assert_eq!((checked.problems, checked.behind), (Vec::<String>::new(), 0));
}

#[test]
fn an_index_of_an_older_version_is_rebuilt_despite_crashes() {
    let state = tempfile::tempdir().unwrap();
    fill_in(state.path(), JournalKind::Files);
    for point in ["index.before_write", "index.before_rename", "index.after_rename"] {
        let path = state.path().join("index/manifest");
        let mut bytes = std::fs::read(&path).unwrap();
        let end = bytes.len() - 4;
        assert_eq!(&bytes[1..16], b"effectd index 5");
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

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Salvages a store, and opens the new one.
fn salvaged(state: &Path, out: &Path) -> (Salvaged, LocalStore) {
    let saved = salvage(&config(state), out).unwrap();
    copy_dir(&state.join("keys"), &out.join("keys"));
    rebuild(&config(out), &SystemClock).unwrap();
    let checked = check(&config(out), &SystemClock).unwrap();
    assert_eq!(checked.problems, [""; 0]);
    assert!(!out.join("copy").exists());
    (saved, open(out))
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
    let store = open(state.path());
    let expected = content(&store);
    store.close().unwrap();
    drop(store);
    let out = state.path().join("out");
    let (saved, store) = salvaged(state.path(), &out);
    assert!(saved.is_whole() && saved.left_out == 0, "{saved:?}");
    assert_eq!((saved.receipts, saved.letters), (ACTIONS, ACTIONS / 10));
    assert_eq!(saved.events, ACTIONS * 3);
    assert!(content(&store) == expected, "{journal:?}");
    store.audit().wait().unwrap();
    store.close().unwrap();
    assert!(salvage(&config(state.path()), &out).is_err(), "a store that is there is left alone");
}

#[test]
fn the_hashes_of_a_salvaged_log_survive_a_power_loss() {
    if !is_root("rescue::the_hashes_of_a_salvaged_log_survive_a_power_loss") {
        return;
    }
    let scratch = tempfile::Builder::new().prefix("effectd-power").tempdir_in("/dev/shm").unwrap();
    let state = tempfile::tempdir().unwrap();
    fill_in(state.path(), JournalKind::Files);
    let image = scratch.path().join("disk.img");
    make_ext4(&image, 64);
    let disk = Mount::image(&image, scratch.path().join("disk"));
    salvage(&config(state.path()), &disk.path().join("out")).unwrap();
    disk.cut_power();
    disk.unmount();
    let after = Mount::image(&image, scratch.path().join("disk"));
    let hashes = |state: &Path| std::fs::read(state.join("log/level-0")).unwrap();
    assert!(!hashes(state.path()).is_empty());
    assert_eq!(hashes(&after.path().join("out")), hashes(state.path()));
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

/// What is lost is counted and named, and everything else keeps its number.
fn some_is_salvaged(state: &Path) {
    let (saved, store) = salvaged(state, &state.join("out"));
    assert!(saved.receipts > 0 && saved.receipts < ACTIONS && !saved.is_whole(), "{saved:?}");
    assert_eq!(saved.receipts + saved.receipts_lost, ACTIONS, "{saved:?}");
    let page = store.receipts(&ReceiptQuery { limit: 1_000, ..ReceiptQuery::default() }).unwrap();
    assert_eq!(page.receipts.len() as u64, saved.receipts);
    assert_eq!(failed(&store), saved.receipts);
    assert!(page.receipts.iter().all(|receipt| receipt.action_id.as_str() == receipt.ordinal.to_string()));
    let events = store.read(&topic("t"), 0, 1_000).unwrap();
    assert_eq!((events.events.len() as u64, events.end), (ACTIONS * 2, ACTIONS * 2));
    let is_lost =
        |offset: u64| saved.events_lost["t"].iter().any(|(from, to)| (*from..=*to).contains(&offset));
    for event in &events.events {
        let is_placeholder = event.event_id.as_str().starts_with("lost:t:");
        assert_eq!(is_placeholder, is_lost(event.offset), "{event:?}");
        let named = [format!("{}", event.offset / 2), format!("s{}", event.offset / 2)];
        assert!(is_placeholder || named.contains(&event.event_id.to_string()), "{event:?}");
    }
    // The log is the same: only bodies are missing, and those are named.
    let log = store.log().unwrap();
    assert_eq!(log.size, ACTIONS);
    for entry in store.log_entries(0, 1_000).unwrap() {
        let is_lost = saved.log_lost.iter().any(|(from, to)| (*from..=*to).contains(&entry.index));
        assert_eq!(entry.body.is_none(), is_lost, "{}", entry.index);
        let told = entry.body.map(|body| merkle::leaf(&body));
        assert!(told.is_none_or(|leaf| leaf == entry.hash), "{}", entry.index);
    }
    // It goes on: the next numbers are new.
    store.commit(completion(&claim("new", "new", "p"), Status::Error, None)).wait().unwrap();
    assert_eq!(store.receipt_of(&action("new")).unwrap().unwrap().ordinal, ACTIONS);
    store.audit().wait().unwrap();
    store.close().unwrap();
}

/// Changes a byte of these blocks, which are in the first file of the journal.
fn damage(state: &Path, blocks: &[usize]) {
    let segments = std::fs::read_dir(state.join("journal/segments")).unwrap();
    let path = segments.map(|file| file.unwrap().path()).min().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let begins: Vec<usize> =
        bytes.windows(4).enumerate().filter(|(_, mark)| mark == b"efjb").map(|(at, _)| at).collect();
    for block in blocks {
        bytes[begins[block - 1] + 45] ^= 1;
    }
    std::fs::write(&path, bytes).unwrap();
}

fn open_in_files(state: &Path) -> LocalStore {
    let files = EmbeddedConfig { journal: JournalKind::Files, ..config(state) };
    embedded::open(files, Arc::new(SystemClock)).unwrap()
}

#[test]
fn the_offset_of_a_lost_event_is_known_by_its_delivery() {
    let state = tempfile::tempdir().unwrap();
    let store = open_in_files(state.path());
    let (topic, group) = (topic("t"), group("g"));
    for n in 0..2 {
        store.publish(&topic, vec![event(&format!("e{n}"))]).wait().unwrap();
        let leased = store.lease(&topic, &group, 1, LEASE_TTL_MAX).wait().unwrap();
        store.ack(leased.deliveries[0].lease_id).wait().unwrap();
    }
    store.close().unwrap();
    drop(store);
    // The second event, without an index that knows how many there are.
    damage(state.path(), &[4]);
    std::fs::remove_dir_all(state.path().join("index")).unwrap();
    let (saved, store) = salvaged(state.path(), &state.path().join("out"));
    assert_eq!((saved.missing, &saved.events_lost["t"]), (vec![(4, 4)], &vec![(1, 1)]));
    store.publish(&topic, vec![event("e2")]).wait().unwrap();
    let leased = store.lease(&topic, &group, 1, LEASE_TTL_MAX).wait().unwrap();
    assert_eq!(leased.deliveries[0].offset, 2, "{leased:?}");
    store.close().unwrap();
}

#[test]
fn what_only_made_sense_after_a_lost_record_stays_true() {
    let state = tempfile::tempdir().unwrap();
    let store = open_in_files(state.path());
    let (topic, group) = (topic("t"), group("g"));
    let mut leases = Vec::new();
    for n in 0..3 {
        store.publish(&topic, vec![event(&format!("e{n}"))]).wait().unwrap();
        let leased = store.lease(&topic, &group, 1, LEASE_TTL_MAX).wait().unwrap();
        leases.extend(leased.deliveries.into_iter().map(|delivery| delivery.lease_id));
    }
    let mark = "claimed-and-lost";
    let Ok(ClaimAnswer::New { fence }) = store.claim(claim(mark, mark, "p")).wait() else {
        panic!("the claim is new")
    };
    for lease in &leases {
        store.ack(*lease).wait().unwrap();
    }
    let mut done = completion(&claim(mark, mark, "p"), Status::Ok, Some(fence));
    done.receipt.body =
        format!("{{\"idempotency_key\":\"{mark}\",\"principal\":\"user://alice\"}}").into_bytes();
    let receipt_id = done.receipt.receipt_id.clone();
    store.commit(done).wait().unwrap();
    store.close().unwrap();
    drop(store);
    // The blocks of the second lease and of the claim.
    damage(state.path(), &[4, 7]);
    let (saved, store) = salvaged(state.path(), &state.path().join("out"));
    assert_eq!((saved.missing_blocks, saved.receipts, saved.receipts_lost), (2, 1, 0), "{saved:?}");
    assert_eq!((saved.events, saved.log_lost.len()), (4, 1), "{saved:?}");
    // The acknowledgement without its lease counts, and no number is given out twice.
    let standing = store.groups(&topic).wait().unwrap();
    assert_eq!((standing[0].committed, standing[0].end), (3, 3), "{standing:?}");
    let Ok(ClaimAnswer::New { fence: next }) = store.claim(claim("next", "next", "p")).wait() else {
        panic!("the claim is new")
    };
    assert!(next > fence, "{next:?}");
    // Nor has a request its effect twice, although only the receipt is left.
    assert_eq!(store.claim(claim("again", mark, "p")).wait(), Ok(ClaimAnswer::Done { receipt_id }));
    store.publish(&topic, vec![event("e3")]).wait().unwrap();
    let leased = store.lease(&topic, &group, 1, LEASE_TTL_MAX).wait().unwrap();
    assert!(leased.deliveries[0].lease_id > leases[2] && leased.deliveries[0].offset == 3, "{leased:?}");
    store.audit().wait().unwrap();
    store.close().unwrap();
}

fn open(state: &Path) -> LocalStore {
    embedded::open(config(state), Arc::new(SystemClock)).unwrap()
}

/// The exact count of the organisation's failed invocations.
fn failed(store: &LocalStore) -> u64 {
    store.invocations(&"home".parse().unwrap(), InvocationBrief::Failed).unwrap()
}

fn content(store: &LocalStore) -> String {
    let receipts = store.receipts(&ReceiptQuery { limit: 1_000, ..ReceiptQuery::default() });
    let events = store.read(&topic("t"), 0, 1_000).unwrap();
    let letters = store.letters(None, 0, 1_000).unwrap();
    let root = store.log().unwrap().root;
    assert_eq!(failed(store), ACTIONS);
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
