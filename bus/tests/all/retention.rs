//! Retention on a real disk: space is freed, check and rebuild hold, and years pass without growth.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::embedded::{EmbeddedConfig, JournalKind};
use effectd_bus::testing::retention::retain_all;
use effectd_bus::testing::values::{
    action, claim, completion, event, family, group, letter, put, resource, sealed_event, topic,
};
use effectd_bus::{
    Admission, Admitted, Expect, Keep, LocalStore, NewBody, ReceiptQuery, Retention, RetentionMode, Store,
    TopicKeep, embedded, offline,
};
use effectd_contracts::{Clock, ManualClock, Status, Timestamp};

use crate::child::{BOTH, config};

const DAY: Duration = Duration::from_secs(86_400);

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()))
}

/// What the files below a directory take on disk.
fn blocks_of(path: &Path) -> u64 {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let sizes = entries.map(|entry| {
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            // A running store renames and removes files.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return 0,
            Err(error) => panic!("{}: {error}", entry.path().display()),
        };
        if metadata.is_dir() { blocks_of(&entry.path()) } else { metadata.blocks() * 512 }
    });
    sizes.sum()
}

/// A decision that is carried out, as the pipeline does it.
fn exec(store: &LocalStore, name: &str) {
    let admission = Admission {
        topic: topic("ACTION_DECISION"),
        group: group("pipeline"),
        ttl: Duration::from_secs(60),
        event: sealed_event(&format!("decision-{name}"), name, &[b'x'; 700]),
        claim: claim(name, name, "p"),
    };
    let Admitted::Granted { fence, lease_id, .. } = store.admit(admission).wait().unwrap() else {
        panic!("{name} is not admitted");
    };
    let mut done = completion(&claim(name, name, "p"), Status::Ok, Some(fence));
    done.leases = vec![lease_id];
    done.disturbed = vec![resource("file:s/folder")];
    done.appeared = vec![resource("file:s/came")];
    store.commit(done).wait().unwrap();
}

fn fail(store: &LocalStore, name: &str) {
    let mut done = completion(&claim(name, name, "p"), Status::Error, None);
    done.letter = Some(letter(name));
    store.commit(done).wait().unwrap();
}

/// Changes a byte of the last block but one.
fn damage_last_but_one(segments: &Path) {
    let mut files: Vec<_> = std::fs::read_dir(segments).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut begins = Vec::new();
    for path in files {
        let bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(4).enumerate().filter(|(_, mark)| mark == b"efjb").map(|(at, _)| at);
        begins.extend(at.map(|at| (path.clone(), at)));
    }
    let (path, at) = &begins[begins.len() - 2];
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at + 45] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn the_disk_gets_its_room_back_and_check_and_rebuild_hold() {
    for journal in BOTH {
        let state = tempfile::tempdir().unwrap();
        let clock = clock();
        let mut config = config(state.path());
        config.journal = journal;
        let open = || embedded::open(config.clone(), clock.clone()).unwrap();
        let store = open();
        (0..400).for_each(|n| exec(&store, &format!("old-{n}")));
        fail(&store, "failed");
        store.change(put("kept", "k", Expect::Absent, "v")).wait().unwrap();
        let full = blocks_of(&state.path().join("journal")) + blocks_of(&state.path().join("index"));
        clock.advance(181 * DAY);
        (0..10).for_each(|n| exec(&store, &format!("new-{n}")));
        let told = retain_all(&store, &Retention::default());
        assert_eq!((told.receipts, told.letters, told.moved), (401, 0, 2));
        store.audit().wait().unwrap();
        store.close().unwrap();
        let left = blocks_of(&state.path().join("journal")) + blocks_of(&state.path().join("index"));
        assert!(left * 5 < full, "{journal:?}: {left} of {full} bytes are left");
        let checked = offline::check(&config, &*clock).unwrap();
        assert_eq!((checked.problems, checked.behind), (Vec::<String>::new(), 0));
        let rebuilt = offline::rebuild(&config, &*clock).unwrap();
        assert!(rebuilt.same, "the index made anew is the old one");
        let store = open();
        store.audit().wait().unwrap();
        assert!(store.receipt_of(&action("new-3")).unwrap().is_some());
        assert_eq!(store.receipt_of(&action("old-3")).unwrap(), None);
        assert_eq!(store.letters(None, 0, 9).unwrap().letters.len(), 1);
        assert!(store.entry(&family("kept"), "k").unwrap().is_some());
        exec(&store, "old-3");
        store.close().unwrap();
        // Without its index, the journal alone says the same.
        std::fs::remove_dir_all(state.path().join("index")).unwrap();
        let store = open();
        store.audit().wait().unwrap();
        assert!(store.receipt_of(&action("old-3")).unwrap().is_some());
        assert_eq!(store.letters(None, 0, 9).unwrap().letters.len(), 1);
        // What retention dropped is not missing.
        store.close().unwrap();
        let into = state.path().join("salvaged");
        let salvaged = effectd_bus::salvage::salvage(&config, &into).unwrap();
        assert_eq!((salvaged.missing_blocks, salvaged.letters), (0, 1));
        // Blocks are dropped from the beginning on, so the first one may hold some more.
        assert!(salvaged.receipts >= 11, "{salvaged:?}");
        if journal == JournalKind::Files {
            // Nobody knows what retention had copied into a lost block.
            damage_last_but_one(&state.path().join("journal/segments"));
            let salvaged = effectd_bus::salvage::salvage(&config, &state.path().join("damaged")).unwrap();
            assert_eq!(salvaged.missing_blocks, 1, "{salvaged:?}");
            let says = |what: &String| what.contains("retention had copied");
            assert!(salvaged.trouble.iter().any(says), "{salvaged:?}");
        }
    }
}

#[test]
fn a_changed_checkpoint_is_found() {
    for (journal, directory) in BOTH.into_iter().zip(["segments", "sled"]) {
        changed_checkpoint(journal, directory);
    }
}

fn changed_checkpoint(journal: JournalKind, directory: &str) {
    let state = tempfile::tempdir().unwrap();
    let clock = clock();
    let config = |state| EmbeddedConfig { journal, ..config(state) };
    let store = embedded::open(config(state.path()), clock.clone()).unwrap();
    (0..50).for_each(|n| exec(&store, &format!("old-{n}")));
    clock.advance(181 * DAY);
    exec(&store, "new");
    assert!(retain_all(&store, &Retention::default()).blocks > 0);
    store.close().unwrap();
    let journal = state.path().join("journal").join(directory);
    let is_ground = |path: &Path| path.extension().is_some_and(|ending| ending == "ground");
    let files = std::fs::read_dir(&journal).unwrap().map(|entry| entry.unwrap().path());
    let checkpoint_files: Vec<_> = files.filter(|path| is_ground(path)).collect();
    assert_eq!(checkpoint_files.len(), 1, "only the one that counts is left");
    let whole = std::fs::read(&checkpoint_files[0]).unwrap();
    std::fs::remove_dir_all(state.path().join("index")).unwrap();
    for at in [0, whole.len() / 2, whole.len() - 1] {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        std::fs::write(&checkpoint_files[0], changed).unwrap();
        let refused = embedded::open(config(state.path()), clock.clone()).unwrap_err();
        assert!(refused.to_string().contains("checkpoint"), "{refused}");
    }
    std::fs::write(&checkpoint_files[0], whole).unwrap();
    let store = embedded::open(config(state.path()), clock).unwrap();
    assert!(store.receipt_of(&action("new")).unwrap().is_some());
}

#[test]
fn years_go_by_and_nothing_grows() {
    years_go_by(JournalKind::Files, 1 << 20);
}

#[test]
fn years_go_by_and_nothing_grows_in_sled() {
    // sled writes segments of 2 MiB.
    years_go_by(JournalKind::Sled, 5 << 20);
}

fn years_go_by(journal: JournalKind, bytes_max: u64) {
    let state = tempfile::tempdir().unwrap();
    let clock = clock();
    let config = |state| EmbeddedConfig { journal, ..config(state) };
    let open = || embedded::open(config(state.path()), clock.clone()).unwrap();
    let mut store = open();
    let (mut sizes, mut peak) = (Vec::new(), 0);
    let size = || -> u64 {
        let parts = ["journal", "index", "keys", "bus"].map(|name| blocks_of(&state.path().join(name)));
        parts.iter().sum()
    };
    // Twelve years of 30 days' turns. An action under way and a letter are always there.
    for month in 0..144 {
        for n in 0..8 {
            exec(&store, &format!("{month}-{n}"));
        }
        if month % 6 == 0 {
            fail(&store, &format!("failed-{month}"));
        }
        clock.advance(30 * DAY);
        store.close_epochs(clock.now()).wait().unwrap();
        retain_all(&store, &Retention::default());
        if month % 48 == 17 {
            store.close().unwrap();
            store = open();
        }
        if month / 12 == 2 {
            peak = size().max(peak);
        }
        if month % 12 == 11 {
            sizes.push(size());
        }
    }
    // Six months of receipts and two years of letters are kept, whatever the year.
    let early = match journal {
        JournalKind::Files => sizes[2],
        // It shrinks at once when a third of it is gone, so a single month says little.
        JournalKind::Sled => peak,
    };
    let late = *sizes.iter().skip(9).max().unwrap();
    assert!(late <= early * 3 / 2, "{sizes:?}");
    assert!(late < bytes_max, "{sizes:?}");
    let letters = store.letters(None, 0, 100).unwrap().letters;
    assert_eq!(letters.len(), 4, "those of the last 730 days");
    assert!(letters.iter().all(|letter| letter.payload.bytes().is_some()));
    let told = store.retain(&Retention::default(), RetentionMode::Preview).unwrap();
    assert_eq!((told.receipts, told.letters), (0, 0));
    store.audit().wait().unwrap();
    store.close().unwrap();
    let checked = offline::check(&config(state.path()), &*clock).unwrap();
    assert_eq!(checked.problems, Vec::<String>::new());
}

#[test]
fn the_hashes_of_what_was_let_go_are_checked_and_missed() {
    let state = tempfile::tempdir().unwrap();
    let clock = clock();
    let config = config(state.path());
    let store = embedded::open(config.clone(), clock.clone()).unwrap();
    (0..300).for_each(|n| exec(&store, &format!("old-{n}")));
    clock.advance(181 * DAY);
    exec(&store, "new");
    retain_all(&store, &Retention::default());
    let root = store.log().unwrap().root;
    store.close().unwrap();
    let problems = || offline::check(&config, &*clock).unwrap().problems;
    assert_eq!(problems(), Vec::<String>::new());
    for (level, hash) in [("level-0", 3), ("level-0", 300), ("level-1", 1)] {
        let path = state.path().join("log").join(level);
        let whole = std::fs::read(&path).unwrap();
        let mut changed = whole.clone();
        changed[hash * 32] ^= 1;
        std::fs::write(&path, changed).unwrap();
        let found = problems();
        assert!(found.len() == 1 && found[0].contains("of the log"), "{level} {hash}: {found:?}");
        std::fs::write(&path, whole).unwrap();
    }
    // Without its index it is rebuilt, on the hashes that are there.
    std::fs::remove_dir_all(state.path().join("index")).unwrap();
    let store = embedded::open(config.clone(), clock.clone()).unwrap();
    assert_eq!(store.log().unwrap().root, root);
    store.close().unwrap();
    // Without the hashes nothing can be proved: this is an error, not ignored.
    std::fs::remove_dir_all(state.path().join("log")).unwrap();
    let refused = embedded::open(config, clock).unwrap_err();
    assert!(refused.to_string().contains("the hashes of the log"), "{refused}");
}

/// As `benches/growth.rs` does it, at a tenth of the scale: the goal holds with every change, not only when somebody measures.
#[test]
fn ten_times_the_retention_passes_and_the_disk_does_not_grow() {
    BOTH.into_iter().for_each(ten_times);
}

fn ten_times(journal: JournalKind) {
    const LIVE: u64 = 3_000;
    let state = tempfile::tempdir().unwrap();
    let config = EmbeddedConfig {
        disk_free_bytes_min: 0,
        // Segments as small, compared with the live data, as in a store of usual size.
        segment_bytes: 512 << 10,
        index_memtable_entries: 4_000,
        journal,
        ..EmbeddedConfig::new(state.path())
    };
    let store = embedded::open(config, clock()).unwrap();
    let keep = |bytes| Keep { age: None, bytes: Some(bytes) };
    let retention = Retention {
        receipts: keep(LIVE * 1_250),
        letters: None,
        topics: BTreeMap::new(),
        others: TopicKeep { keep: keep(LIVE * 400), unacknowledged: false },
    };
    let mut sizes = Vec::new();
    for round in 0..10 {
        let waiting: Vec<_> = (0..LIVE)
            .map(|n| {
                let name = format!("{round}-{n}");
                let mut done = completion(&claim(&name, &name, "p"), Status::Ok, None);
                done.receipt.body = vec![b'r'; 1_024];
                let mut told = event(&format!("executed-{name}"));
                told.body = NewBody::Clear(vec![b'e'; 300]);
                done.events = vec![(topic("ACTION_EXECUTED"), told)];
                store.commit(done)
            })
            .collect();
        waiting.into_iter().for_each(|wait| drop(wait.wait().unwrap()));
        retain_all(&store, &retention);
        sizes.push(blocks_of(state.path()));
    }
    let query = ReceiptQuery { limit: 1, ..ReceiptQuery::default() };
    let oldest = store.receipts(&query).unwrap().receipts.remove(0);
    let kept = 10 * LIVE - oldest.ordinal;
    store.close().unwrap();
    // The retained data is there, and not much more.
    assert!((LIVE * 9 / 10..LIVE * 12 / 10).contains(&kept), "{kept} are kept");
    let (live, disk) = (kept * (1_024 + 300), blocks_of(state.path()));
    // A database is written again when a third of its blocks are gone, and sled keeps free segments beside what it holds.
    let most = match journal {
        JournalKind::Files => live * 7,
        JournalKind::Sled => live * 12,
    };
    assert!(disk * 2 <= most, "{disk} bytes on disk for {live}: {sizes:?}");
}
