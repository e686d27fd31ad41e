//! Damaged stores: every damage is found and reported.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::testing::values::{claim, completion, event, group, put, receipt_id, sealed_event, topic};
use effectd_bus::{
    DeadLetterPage, EmbeddedConfig, EventPage, Expect, GroupInfo, LocalStore, ReceiptPage, ReceiptQuery,
    Store, StoreError, embedded, embedded::JournalKind,
};
use effectd_contracts::{Status, SystemClock};

const FLIPS: u64 = 64;

fn open(state: &Path) -> Result<LocalStore, StoreError> {
    crate::watchdog::start();
    embedded::open(EmbeddedConfig::new(state), Arc::new(SystemClock))
}

fn fill(state: &Path) {
    fill_in(state, JournalKind::default());
}

fn fill_in(state: &Path, journal: JournalKind) {
    let config = EmbeddedConfig { journal, ..EmbeddedConfig::new(state) };
    let store = embedded::open(config, Arc::new(SystemClock)).unwrap();
    for n in 0..24 {
        let body = vec![b'a' + (n % 26) as u8; if n == 7 { 60_000 } else { 900 }];
        store
            .publish(&topic("t"), vec![sealed_event(&n.to_string(), "a", &body), event(&format!("c{n}"))])
            .wait()
            .unwrap();
        let of = claim(&format!("a{n}"), &format!("k{n}"), "p");
        store
            .commit(completion(&of, if n % 2 == 0 { Status::Ok } else { Status::Error }, None))
            .wait()
            .unwrap();
        store.change(put("f", &n.to_string(), Expect::Any, "v")).wait().unwrap();
    }
    let leased = store.lease(&topic("t"), &group("g"), 9, Duration::from_secs(60)).wait().unwrap();
    store.ack(leased.deliveries[0].lease_id).wait().unwrap();
    store.term(leased.deliveries[1].lease_id, "code", "why").wait().unwrap();
    store.close().unwrap();
}

fn journal_file(state: &Path) -> PathBuf {
    let mut all = Vec::new();
    files(&state.join("journal"), &mut all);
    let has_blocks =
        |path: &PathBuf| path.ends_with("db") || path.extension().is_some_and(|is| is == "blocks");
    all.retain(has_blocks);
    all.pop().unwrap()
}

type Content = (EventPage, ReceiptPage, Vec<GroupInfo>, DeadLetterPage, Vec<(String, u64)>);

fn content(state: &Path) -> Result<Content, StoreError> {
    let store = open(state)?;
    let audited = store.audit().wait();
    let events = store.read(&topic("t"), 0, 1_000)?;
    let receipts = store.receipts(&ReceiptQuery { limit: 1_000, ..ReceiptQuery::default() })?;
    let groups = store.groups(&topic("t")).wait()?;
    let letters = store.letters(None, 0, 1_000)?;
    let entries = store.entries(&effectd_bus::FamilyName::new("f")?, "", None, 1_000)?.entries;
    let entries = entries.into_iter().map(|entry| (entry.key, entry.version)).collect();
    audited?;
    store.close()?;
    Ok((events, receipts, groups, letters, entries))
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}

fn files(of: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(of).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, into);
        } else if path.metadata().unwrap().len() > 0 {
            into.push(path);
        }
    }
    into.sort();
}

fn run_of(state: &Path) -> PathBuf {
    runs_of(state).swap_remove(0)
}

fn runs_of(state: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    files(&state.join("index"), &mut all);
    let is_run = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("run-");
    all.retain(is_run);
    all
}

#[test]
fn a_flipped_bit_is_found_or_does_no_harm() {
    flip(JournalKind::Files);
}

#[test]
fn a_flipped_bit_in_sled_is_found_or_does_no_harm() {
    flip(JournalKind::Sled);
}

fn flip(journal: JournalKind) {
    let original = tempfile::tempdir().unwrap();
    fill_in(original.path(), journal);
    let expected = content(original.path()).unwrap();
    let mut found = 0;
    for flip in 0..FLIPS {
        let state = tempfile::tempdir().unwrap();
        copy(original.path(), state.path());
        let mut all = Vec::new();
        files(state.path(), &mut all);
        // Half of the flips go into journal and index, where almost all bytes are.
        let path = match flip % 4 {
            0 => journal_file(state.path()),
            1 => run_of(state.path()),
            _ => all[usize::try_from(flip / 4).unwrap() % all.len()].clone(),
        };
        let mut bytes = std::fs::read(&path).unwrap();
        // Spread over the part of the file that is in use.
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        let at = (flip.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16) as usize % used;
        bytes[at] ^= 1 << (flip % 8);
        std::fs::write(&path, bytes).unwrap();
        match content(state.path()) {
            Ok(content) => {
                assert!(content == expected, "flip {flip} of {path:?} at {at} was read as something else")
            }
            Err(StoreError::Damaged { .. } | StoreError::Keys { .. } | StoreError::Format { .. }) => {
                found += 1
            }
            Err(other) => panic!("flip {flip} of {path:?} at {at}: {other}"),
        }
    }
    assert!(found > 0, "no flip was found at all");
}

#[test]
fn a_journal_that_was_cut_off_is_found() {
    [JournalKind::Files, JournalKind::Sled].into_iter().for_each(cut_off);
}

fn cut_off(journal: JournalKind) {
    let original = tempfile::tempdir().unwrap();
    fill_in(original.path(), journal);
    for part in [0, 1, 3, 5, 7] {
        let state = tempfile::tempdir().unwrap();
        copy(original.path(), state.path());
        let path = journal_file(state.path());
        let bytes = std::fs::read(&path).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        std::fs::write(&path, &bytes[..used * part / 8]).unwrap();
        let error = content(state.path()).expect_err("half a journal is no journal");
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
}

#[test]
fn a_journal_from_a_backup_under_a_newer_index_is_found() {
    let state = tempfile::tempdir().unwrap();
    fill(state.path());
    let older = tempfile::tempdir().unwrap();
    copy(&state.path().join("journal"), older.path());
    let store = open(state.path()).unwrap();
    store.publish(&topic("t"), vec![event("newer")]).wait().unwrap();
    store.close().unwrap();
    drop(store);
    std::fs::remove_dir_all(state.path().join("journal")).unwrap();
    copy(older.path(), &state.path().join("journal"));
    let error = open(state.path()).err();
    assert!(matches!(error, Some(StoreError::Damaged { .. })), "{error:?}");
}

#[test]
fn a_lost_or_damaged_index_is_made_anew_from_the_journal() {
    let state = tempfile::tempdir().unwrap();
    fill(state.path());
    let expected = content(state.path()).unwrap();
    std::fs::remove_dir_all(state.path().join("index")).unwrap();
    assert!(content(state.path()).unwrap() == expected);
    let manifest = state.path().join("index/manifest");
    std::fs::remove_file(&manifest).unwrap();
    assert!(content(state.path()).unwrap() == expected, "no manifest");
    let run = run_of(state.path());
    let whole = std::fs::read(&run).unwrap();
    std::fs::write(&run, &whole[..whole.len() / 2]).unwrap();
    assert!(content(state.path()).unwrap() == expected, "half a run");
    std::fs::remove_file(run_of(state.path())).unwrap();
    assert!(content(state.path()).unwrap() == expected, "no run");
    for path in [manifest, run_of(state.path())] {
        std::fs::write(&path, b"nonsense that is longer than eight bytes").unwrap();
        assert!(content(state.path()).unwrap() == expected, "{path:?}");
    }
}

/// Changes every 16th of these bytes of a run, so that every lookup meets damage, also in a store that is already open.
fn damage_in_place(run: &Path, bytes: Range<u64>) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(run).unwrap();
    for at in bytes.step_by(16) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }
}

#[test]
fn a_damaged_chunk_that_opening_reads_is_repaired_at_once() {
    let state = tempfile::tempdir().unwrap();
    fill(state.path());
    let expected = content(state.path()).unwrap();
    damage_in_place(&run_of(state.path()), 8..2_008);
    let store = open(state.path()).unwrap();
    // Nothing was written, and everything can be read.
    assert_eq!(store.letters(None, 0, 1_000).unwrap().letters.len() as u64, store.stats().letters);
    store.receipts(&ReceiptQuery::default()).unwrap();
    store.audit().wait().unwrap();
    store.close().unwrap();
    drop(store);
    assert!(content(state.path()).unwrap() == expected);
}

/// Damages the first block of the journal that has these bytes.
fn damage_block_with(state: &Path, part: &[u8]) {
    let blocks = journal_file(state);
    let bytes = std::fs::read(&blocks).unwrap();
    let at = bytes.windows(part.len()).position(|window| window == part).unwrap() as u64;
    damage_in_place(&blocks, at..at + 1);
}

#[test]
fn damage_that_a_copy_of_the_journal_meets_is_remembered() {
    let state = tempfile::tempdir().unwrap();
    fill_in(state.path(), JournalKind::Files);
    let store = open(state.path()).unwrap();
    damage_block_with(state.path(), b"executed-");
    assert_eq!(store.damage(), None);
    let mut journal = store.read_journal().unwrap();
    let met = std::iter::from_fn(|| journal.piece().transpose()).find_map(Result::err);
    assert!(matches!(met, Some(StoreError::Damaged { .. })), "{met:?}");
    assert_eq!(store.damage(), met);
}

#[test]
fn damage_that_a_write_meets_is_remembered() {
    let state = tempfile::tempdir().unwrap();
    fill_in(state.path(), JournalKind::Files);
    let store = open(state.path()).unwrap();
    damage_block_with(state.path(), b"executed-receipt-a12");
    // The refusal names the receipt that the action has, which is read from its block.
    let mut second = completion(&claim("a12", "k12", "p"), Status::Ok, None);
    second.receipt.receipt_id = receipt_id("second");
    let met = store.commit(second).wait().err();
    assert!(matches!(met, Some(StoreError::Damaged { .. })), "{met:?}");
    assert_eq!(store.damage(), met);
}

#[test]
fn a_read_finds_a_damaged_chunk_and_the_next_write_repairs_it() {
    let state = tempfile::tempdir().unwrap();
    fill(state.path());
    let names = || (0..4_000).map(|n| format!("more-{n}"));
    let store = open(state.path()).unwrap();
    let more: Vec<_> = names().map(|name| event(&name)).collect();
    for more in more.chunks(500) {
        store.publish(&topic("more"), more.to_vec()).wait().unwrap();
    }
    store.close().unwrap();
    drop(store);
    let expected = content(state.path()).unwrap();
    // No cache, so that each lookup reads the file again.
    let config = EmbeddedConfig { index_cache_bytes: 0, ..EmbeddedConfig::new(state.path()) };
    let store = embedded::open(config, Arc::new(SystemClock)).unwrap();
    for run in runs_of(state.path()) {
        let whole = std::fs::metadata(&run).unwrap().len();
        damage_in_place(&run, 8..whole);
    }
    let found = names().find_map(|name| {
        let id = effectd_contracts::EventId::new(&name).unwrap();
        store.published(&topic("more"), &id).err()
    });
    assert!(matches!(found, Some(StoreError::Damaged { .. })), "{found:?}");
    assert_eq!(store.damage(), None, "the store repairs it");
    // Whatever the first write gets, the index is rebuilt for later ones.
    let _ = store.configure(&topic("t"), &group("g"), Default::default()).wait();
    store.audit().wait().unwrap();
    assert_eq!(store.stats().reopens, 1);
    store.close().unwrap();
    drop(store);
    assert!(content(state.path()).unwrap() == expected);
}
