//! Small blobs: whole or not there, really gone, found again, and durable together.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;

use effectd_contracts::{Digest, SpaceId, Timestamp};
use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;
use zeroize::Zeroizing;

use super::super::known::settle_those;
use super::super::sealed::{seal_whole, sealed_bytes};
use super::super::{Blobs, Shelf, context, write};
use super::*;

const CONTENT: &[u8] = b"the canary sings at dawn";

fn home() -> SpaceId {
    "shared:h".parse().unwrap()
}

fn name(content: &[u8]) -> String {
    Digest::of(content).hex()
}

fn blobs(root: &Path, quota_bytes: u64) -> Blobs {
    Blobs::new(root.to_owned(), &Zeroizing::new([7; 32]), quota_bytes)
}

fn put(blobs: &Blobs, content: &[u8]) -> Result<(), BlobError> {
    blobs.put(Shelf::Preimages, &home(), &name(content), content)
}

fn get(blobs: &Blobs, content: &[u8]) -> Result<Vec<u8>, BlobError> {
    blobs.get(Shelf::Preimages, &home(), &name(content))
}

fn has(blobs: &Blobs, content: &[u8]) -> bool {
    blobs.has(Shelf::Preimages, &home(), &name(content))
}

fn remove(blobs: &Blobs, content: &[u8]) -> Result<(), BlobError> {
    blobs.remove(Shelf::Preimages, &home(), &name(content))
}

fn slots_of(blobs: &Blobs) -> PathBuf {
    blobs.folder(Shelf::Preimages, &home()).join(SLOTS)
}

/// The slots in which anything is.
fn used(path: &Path) -> Vec<usize> {
    let bytes = fs::read(path).unwrap();
    let slots = bytes.chunks(SLOT_BYTES).enumerate();
    let used = slots.filter(|(_, slot)| slot.iter().any(|byte| *byte != 0));
    used.map(|(number, _)| number).collect()
}

fn change(path: &Path, begin: usize, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, begin as u64).unwrap();
}

fn store_as_file(blobs: &Blobs, content: &[u8]) {
    let (shelf, space, name) = (Shelf::Preimages, home(), name(content));
    blobs.bytes(shelf, &space).unwrap();
    let sealed = seal_whole(&blobs.cipher, &context(shelf, &space, &name), content);
    write(&blobs.folder(shelf, &space), &name, &sealed.unwrap()).unwrap();
}

#[test]
fn a_small_blob_comes_back_also_after_a_restart_and_lies_sealed_in_a_slot() {
    let root = tempfile::tempdir().unwrap();
    let longest = vec![7; SLOT_SEALED_BYTES_MAX as usize - sealed_bytes(0) as usize];
    assert_eq!(longest.len(), 3_937, "as docs/store.md says");
    let too_long = vec![7; longest.len() + 1];
    let first = blobs(root.path(), 1 << 20);
    for content in [CONTENT, b"", &longest, &too_long, CONTENT] {
        put(&first, content).unwrap();
        assert_eq!(get(&first, content).unwrap(), content);
    }
    let path = slots_of(&first);
    assert_eq!(used(&path), [0, 1, 2], "equal content is kept once");
    assert_eq!(
        fs::metadata(&path).unwrap().len(),
        at(PAVED_FIRST),
        "paved in advance"
    );
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
    let bytes = fs::read(&path).unwrap();
    assert!(!bytes.windows(6).any(|piece| piece == b"canary"));
    let again = blobs(root.path(), 1 << 20);
    for content in [CONTENT, b"", &longest, &too_long] {
        assert!(has(&again, content));
        assert_eq!(get(&again, content).unwrap(), content);
    }
    let all = [CONTENT.len(), 0, longest.len(), too_long.len()];
    let all: u64 = all.iter().map(|length| sealed_bytes(*length as u64)).sum();
    assert_eq!(again.bytes(Shelf::Preimages, &home()).unwrap(), all);
    let other = again.get(Shelf::Artifacts, &home(), &name(CONTENT));
    assert_eq!(other, Err(BlobError::Gone));
    assert!(!has(&again, b"never stored"));
}

/// What is on disks already must be found by later versions.
#[test]
fn a_slot_has_these_bytes() {
    let slot = filled(&"0123456789abcdef".repeat(4), 0x0102_0304_0506_0708, b"sealed").unwrap();
    let head = "656666736c6f7431\
                0102030405060708\
                02ff2d9300000006\
                0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\
                7365616c6564";
    assert_eq!(hex(&slot[..62]), head);
    assert!(slot[62..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_slot_that_is_moved_to_another_shelf_does_not_open_and_is_stored_anew() {
    let root = tempfile::tempdir().unwrap();
    let first = blobs(root.path(), 1 << 20);
    put(&first, CONTENT).unwrap();
    let folder = first.folder(Shelf::Artifacts, &home());
    fs::create_dir_all(&folder).unwrap();
    fs::copy(slots_of(&first), folder.join(SLOTS)).unwrap();
    let again = blobs(root.path(), 1 << 20);
    let artifact = || again.get(Shelf::Artifacts, &home(), &name(CONTENT));
    assert_eq!(artifact(), Err(BlobError::Damaged));
    again
        .put(Shelf::Artifacts, &home(), &name(CONTENT), CONTENT)
        .unwrap();
    assert_eq!(artifact().unwrap(), CONTENT);
    assert_eq!(used(&folder.join(SLOTS)).len(), 1);
}

#[test]
fn a_slot_that_was_cut_off_while_it_was_written_is_free() {
    let root = tempfile::tempdir().unwrap();
    let content = [5; 3_000];
    let first = blobs(root.path(), 1 << 20);
    put(&first, CONTENT).unwrap();
    put(&first, &content).unwrap();
    let path = slots_of(&first);
    assert_eq!(used(&path), [0, 1]);
    let whole = fs::read(&path).unwrap();
    for (begin, torn) in [(SLOT_BYTES / 2, 0xA5), (SLOT_BYTES / 2, 0), (0, 0), (NAME, 1)] {
        fs::write(&path, &whole).unwrap();
        change(&path, SLOT_BYTES + begin, &[torn; SLOT_BYTES / 2][..2_000]);
        let again = blobs(root.path(), 1 << 20);
        assert!(!has(&again, &content), "{begin} {torn}");
        assert_eq!(get(&again, &content), Err(BlobError::Gone));
        let renewed = again.renew(Shelf::Preimages, &home(), &name(&content));
        assert!(!renewed.unwrap());
        assert_eq!(used(&path), [0], "nothing of it is left");
        assert_eq!(get(&again, CONTENT).unwrap(), CONTENT);
        put(&again, &content).unwrap();
        assert_eq!(used(&path), [0, 1]);
        assert_eq!(get(&blobs(root.path(), 1 << 20), &content).unwrap(), content);
    }
}

#[test]
fn a_slot_that_is_damaged_beneath_those_who_use_it_is_told_as_such() {
    let root = tempfile::tempdir().unwrap();
    let blobs = blobs(root.path(), 1 << 20);
    put(&blobs, CONTENT).unwrap();
    let path = slots_of(&blobs);
    let whole = fs::read(&path).unwrap();
    for begin in [0, CHECKSUM, LENGTH, NAME, SLOT_HEAD_BYTES, SLOT_HEAD_BYTES + 60] {
        change(&path, begin, &[whole[begin] ^ 1]);
        assert_eq!(get(&blobs, CONTENT), Err(BlobError::Damaged), "{begin}");
        change(&path, begin, &whole[begin..=begin]);
    }
    // When it was stored is not what it is.
    change(&path, STORED_AT, &[0xFF; 8]);
    assert_eq!(get(&blobs, CONTENT).unwrap(), CONTENT);
    fs::write(&path, b"").unwrap();
    assert_eq!(get(&blobs, CONTENT), Err(BlobError::Damaged));
}

#[test]
fn what_is_destroyed_is_zeros_on_disk_and_its_slot_is_used_again() {
    let root = tempfile::tempdir().unwrap();
    let blobs = blobs(root.path(), 1 << 20);
    for number in 0..4 {
        put(&blobs, &[number; 100]).unwrap();
    }
    let path = slots_of(&blobs);
    remove(&blobs, &[1; 100]).unwrap();
    assert_eq!(used(&path), [0, 2, 3]);
    assert!(!has(&blobs, &[1; 100]));
    assert_eq!(get(&blobs, &[1; 100]), Err(BlobError::Gone));
    remove(&blobs, &[1; 100]).unwrap();
    put(&blobs, &[9; 100]).unwrap();
    assert_eq!(used(&path), [0, 1, 2, 3]);
    assert_eq!(get(&blobs, &[9; 100]).unwrap(), [9; 100]);
    assert_eq!(
        blobs.bytes(Shelf::Preimages, &home()).unwrap(),
        4 * sealed_bytes(100)
    );
}

#[test]
fn whoever_has_a_small_blob_open_reads_it_while_its_slot_is_used_again() {
    let root = tempfile::tempdir().unwrap();
    let blobs = blobs(root.path(), 1 << 20);
    put(&blobs, CONTENT).unwrap();
    let mut reader = blobs.reader(Shelf::Preimages, &home(), &name(CONTENT)).unwrap();
    remove(&blobs, CONTENT).unwrap();
    put(&blobs, b"something else").unwrap();
    assert_eq!(used(&slots_of(&blobs)), [0]);
    assert_eq!(reader.bytes(), CONTENT.len() as u64);
    assert_eq!(reader.piece().unwrap().unwrap(), CONTENT);
    assert_eq!(reader.piece(), Ok(None));
}

#[test]
fn many_store_at_once_and_all_of_it_is_there() {
    let root = tempfile::tempdir().unwrap();
    let store = blobs(root.path(), 1 << 20);
    let content = |thread: u8, number: u8| [[thread; 50], [number; 50]].concat();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let (store, content) = (&store, &content);
            scope.spawn(move || {
                for number in 0..20 {
                    put(store, &content(thread, number)).unwrap();
                    // Everybody stores this one, and one of them has.
                    put(store, &[number; 10]).unwrap();
                }
            });
        }
    });
    let path = slots_of(&store);
    assert_eq!(used(&path).len(), 16 * 20 + 20);
    let known = store.shelf(&store.folder(Shelf::Preimages, &home())).unwrap();
    let slots = lock(&known).slots.clone();
    let syncs = lock(&slots.syncs);
    assert!(
        syncs.begun == syncs.ended && syncs.begun <= 2 * 16 * 20,
        "{syncs:?}"
    );
    drop(syncs);
    for store in [store, blobs(root.path(), 1 << 20)] {
        for (thread, number) in (0..16).flat_map(|thread| (0..20).map(move |number| (thread, number))) {
            let content = content(thread, number);
            assert_eq!(get(&store, &content).unwrap(), content);
            assert_eq!(get(&store, &[number; 10]).unwrap(), [number; 10]);
        }
    }
}

#[test]
fn whatever_is_stored_read_and_removed_at_once_nobody_reads_anything_else() {
    let root = tempfile::tempdir().unwrap();
    // Not room for all, so that they push each other out as well; but for what all of them may store at once.
    let store = blobs(root.path(), 6 * sealed_bytes(200));
    std::thread::scope(|scope| {
        for thread in 0..6_u8 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..200_u8 {
                    let content = [(round.wrapping_mul(7) ^ thread) % 8; 200];
                    match (round ^ thread) % 3 {
                        0 => put(store, &content).unwrap(),
                        1 => remove(store, &content).unwrap(),
                        _ => match get(store, &content) {
                            Ok(read) => assert_eq!(read, content),
                            Err(error) => assert_eq!(error, BlobError::Gone),
                        },
                    }
                }
            });
        }
    });
    let there: Vec<u8> = (0..8).filter(|number| has(&store, &[*number; 200])).collect();
    let again = blobs(root.path(), 1 << 20);
    for number in 0..8 {
        let expected = there.contains(&number);
        assert_eq!(has(&again, &[number; 200]), expected, "{number}");
    }
    assert_eq!(used(&slots_of(&again)).len(), there.len());
    let bytes = again.bytes(Shelf::Preimages, &home()).unwrap();
    assert_eq!(bytes, there.len() as u64 * sealed_bytes(200));
}

/// Puts something else in the place of the slots until it is called again.
fn swap(path: &Path, with: &str) {
    let aside = path.with_file_name("draft-aside");
    if aside.exists() {
        fs::remove_file(path).unwrap();
        fs::rename(aside, path).unwrap();
    } else {
        fs::rename(path, aside).unwrap();
        symlink(with, path).unwrap();
    }
}

#[test]
fn a_sync_that_fails_fails_everybody_it_stood_for() {
    let root = tempfile::tempdir().unwrap();
    let store = blobs(root.path(), 1 << 20);
    put(&store, CONTENT).unwrap();
    let path = slots_of(&store);
    // What can be written there cannot be synced.
    swap(&path, "/dev/null");
    std::thread::scope(|scope| {
        for number in 0..8 {
            let store = &store;
            scope.spawn(move || {
                let refused = put(store, &[number; 100]).unwrap_err();
                assert!(matches!(refused, BlobError::Disk(_)), "{refused}");
            });
        }
    });
    swap(&path, "");
    for number in 0..8 {
        assert!(!has(&store, &[number; 100]));
    }
    let bytes = store.bytes(Shelf::Preimages, &home()).unwrap();
    assert_eq!(bytes, sealed_bytes(CONTENT.len() as u64));
    assert_eq!(get(&store, CONTENT).unwrap(), CONTENT);
    for number in 0..100 {
        put(&store, &[number; 100]).unwrap();
    }
    let again = blobs(root.path(), 1 << 20);
    for number in 0..100 {
        assert_eq!(get(&again, &[number; 100]).unwrap(), [number; 100]);
    }
    assert_eq!(used(&path).len(), 101);
}

#[test]
fn a_destruction_that_failed_is_not_told_as_done_and_can_be_tried_again() {
    let root = tempfile::tempdir().unwrap();
    let store = blobs(root.path(), 1 << 20);
    put(&store, CONTENT).unwrap();
    let path = slots_of(&store);
    for _ in 0..2 {
        swap(&path, "/dev/null");
        assert!(matches!(remove(&store, CONTENT), Err(BlobError::Disk(_))));
        swap(&path, "");
        assert!(!has(&store, CONTENT));
        assert_eq!(used(&path), [0], "it is still there");
    }
    put(&store, b"other").unwrap();
    assert_eq!(used(&path), [0, 1], "and its slot is not free");
    remove(&store, CONTENT).unwrap();
    assert_eq!(used(&path), [1]);
}

#[test]
fn a_destruction_that_failed_in_somebody_elses_sync_is_not_told_as_done() {
    let root = tempfile::tempdir().unwrap();
    let store = blobs(root.path(), 1 << 20);
    put(&store, CONTENT).unwrap();
    let shelf = store.shelf(&store.folder(Shelf::Preimages, &home())).unwrap();
    let leaving = {
        let mut known = lock(&shelf);
        known.destroy_all_of(&name(CONTENT)).unwrap();
        known.going()
    };
    swap(&slots_of(&store), "/dev/null");
    put(&store, b"other").unwrap_err();
    swap(&slots_of(&store), "");
    let told = settle_those(&shelf, leaving);
    assert!(matches!(told, Err(BlobError::Disk(_))), "{told:?}");
    remove(&store, CONTENT).unwrap();
}

#[test]
fn what_cannot_be_made_younger_stays() {
    let root = tempfile::tempdir().unwrap();
    let store = blobs(root.path(), 1 << 20);
    put(&store, CONTENT).unwrap();
    swap(&slots_of(&store), "/dev/full");
    assert_eq!(store.renew(Shelf::Preimages, &home(), &name(CONTENT)), Ok(false));
    assert_eq!(put(&store, CONTENT), Err(BlobError::Full));
    swap(&slots_of(&store), "");
    assert_eq!(get(&store, CONTENT).unwrap(), CONTENT);
    put(&store, CONTENT).unwrap();
    assert_eq!(used(&slots_of(&store)), [0]);
}

#[test]
fn a_full_disk_is_told_as_such_and_nothing_is_taken_for_stored() {
    let root = tempfile::tempdir().unwrap();
    let store = blobs(root.path(), 1 << 20);
    assert_eq!(store.bytes(Shelf::Preimages, &home()), Ok(0));
    let path = slots_of(&store);
    symlink("/dev/full", &path).unwrap();
    assert_eq!(put(&store, CONTENT), Err(BlobError::Full));
    assert!(!has(&store, CONTENT));
    fs::remove_file(&path).unwrap();
    for number in 0..PAVED_FIRST {
        put(&store, &number.to_be_bytes()).unwrap();
    }
    assert_eq!(used(&path).len(), PAVED_FIRST as usize);
    swap(&path, "/dev/full");
    assert_eq!(put(&store, CONTENT), Err(BlobError::Full));
    swap(&path, "");
    assert_eq!(store.bytes(Shelf::Preimages, &home()), Ok(64 * sealed_bytes(4)));
    // More is paved as soon as there is room.
    put(&store, CONTENT).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), at(2 * PAVED_FIRST));
    assert_eq!(get(&blobs(root.path(), 1 << 20), CONTENT).unwrap(), CONTENT);
}

#[test]
fn the_oldest_go_first_whether_they_lie_in_slots_or_files() {
    let root = tempfile::tempdir().unwrap();
    let store = blobs(root.path(), 20_000);
    let contents: Vec<Vec<u8>> = (0..8_u8)
        .map(|number| vec![number; if number % 2 == 0 { 3_000 } else { 6_000 }])
        .collect();
    let there = |store: &Blobs| -> Vec<usize> {
        (0..contents.len())
            .filter(|number| has(store, &contents[*number]))
            .collect()
    };
    for content in &contents[..4] {
        put(&store, content).unwrap();
    }
    assert_eq!(there(&store), [0, 1, 2, 3]);
    // The first is named again, and so are the last two; a restart knows that as well. Of files and slots the hours say it: the
    // kernel's clock for files is a coarse one.
    let hour = |number: usize| [2, 1, 3, 4][number] * 3_600;
    for number in [0, 2, 3] {
        let renewed = store.renew(Shelf::Preimages, &home(), &name(&contents[number]));
        assert!(renewed.unwrap());
    }
    for (number, slot) in [(0, 0), (2, 1)] {
        let stored_at: i64 = hour(number) * 1_000_000_000;
        change(
            &slots_of(&store),
            slot * SLOT_BYTES + STORED_AT,
            &stored_at.to_be_bytes(),
        );
    }
    for number in [1, 3] {
        let path = slots_of(&store).with_file_name(name(&contents[number]));
        let file = OpenOptions::new().write(true).open(path).unwrap();
        let stored_at = TimeSpec::new(hour(number), 0);
        futimens(&file, &stored_at, &stored_at).unwrap();
    }
    let store = blobs(root.path(), 20_000);
    put(&store, &contents[4]).unwrap();
    assert_eq!(there(&store), [0, 2, 3, 4]);
    put(&store, &contents[5]).unwrap();
    assert_eq!(there(&store), [2, 3, 4, 5]);
    put(&store, &contents[6]).unwrap();
    assert_eq!(there(&store), [3, 4, 5, 6]);
    put(&store, &contents[7]).unwrap();
    assert_eq!(there(&store), [4, 5, 6, 7]);
    let bytes = store.bytes(Shelf::Preimages, &home()).unwrap();
    assert_eq!(bytes, 2 * sealed_bytes(3_000) + 2 * sealed_bytes(6_000));
    assert_eq!(used(&slots_of(&store)).len(), 2, "what went is not left behind");
}

#[test]
fn small_blobs_that_lie_in_files_of_their_own_are_found_and_used() {
    let root = tempfile::tempdir().unwrap();
    let first = blobs(root.path(), 1 << 20);
    store_as_file(&first, CONTENT);
    store_as_file(&first, b"cut off");
    let folder = first.folder(Shelf::Preimages, &home());
    let cut_off = folder.join(name(b"cut off"));
    let bytes = fs::read(&cut_off).unwrap();
    fs::write(&cut_off, &bytes[..bytes.len() - 3]).unwrap();
    let store = blobs(root.path(), 1 << 20);
    assert!(has(&store, CONTENT));
    assert_eq!(get(&store, CONTENT).unwrap(), CONTENT);
    put(&store, CONTENT).unwrap();
    assert!(!folder.join(SLOTS).exists(), "it is not stored a second time");
    put(&store, b"cut off").unwrap();
    assert_eq!(get(&store, b"cut off").unwrap(), b"cut off");
    assert!(!cut_off.exists() && used(&folder.join(SLOTS)) == [0]);
    remove(&store, CONTENT).unwrap();
    assert!(!has(&store, CONTENT) && !folder.join(name(CONTENT)).exists());
}

#[test]
fn what_a_crash_left_twice_is_kept_once() {
    let root = tempfile::tempdir().unwrap();
    let first = blobs(root.path(), 1 << 20);
    put(&first, CONTENT).unwrap();
    let path = slots_of(&first);
    let slot = fs::read(&path).unwrap()[..SLOT_BYTES].to_vec();
    for (stored_at, kept) in [(1_i64, 0), (i64::MAX, 7)] {
        change(&path, 7 * SLOT_BYTES, &slot);
        change(&path, 7 * SLOT_BYTES + STORED_AT, &stored_at.to_be_bytes());
        store_as_file(&first, CONTENT);
        assert_eq!(used(&path), [0, 7]);
        let again = blobs(root.path(), 1 << 20);
        assert_eq!(get(&again, CONTENT).unwrap(), CONTENT);
        assert_eq!(used(&path), [kept]);
        assert!(!path.with_file_name(name(CONTENT)).exists());
        let bytes = again.bytes(Shelf::Preimages, &home()).unwrap();
        assert_eq!(bytes, sealed_bytes(CONTENT.len() as u64));
    }
}

#[test]
fn small_blobs_go_with_the_receipts_that_named_them() {
    let root = tempfile::tempdir().unwrap();
    let first = blobs(root.path(), 1 << 20);
    for number in 0..3 {
        put(&first, &[number; 100]).unwrap();
    }
    // Two were last named in another year, one of them again since.
    let path = slots_of(&first);
    let then = 1_700_000_000_999_999_999_i64;
    for number in 0..2 {
        change(&path, number * SLOT_BYTES + STORED_AT, &then.to_be_bytes());
    }
    let store = blobs(root.path(), 1 << 20);
    let renewed = store.renew(Shelf::Preimages, &home(), &name(&[1; 100]));
    assert!(renewed.unwrap());
    let before = |second| Timestamp::from_second(second).unwrap();
    assert_eq!(store.expire(before(1_700_000_000)), Ok(0));
    assert_eq!(store.expire(before(1_700_000_001)), Ok(1));
    assert_eq!(store.expire(before(1_700_000_001)), Ok(0));
    assert!(!has(&store, &[0; 100]) && has(&store, &[1; 100]) && has(&store, &[2; 100]));
    assert_eq!(used(&path), [1, 2]);
}

#[test]
fn whether_a_small_blob_is_there_is_known_without_the_disk() {
    let root = tempfile::tempdir().unwrap();
    let store = blobs(root.path(), 1 << 20);
    assert!(!has(&store, CONTENT));
    assert!(
        fs::read_dir(root.path()).unwrap().next().is_none(),
        "none is made"
    );
    put(&store, CONTENT).unwrap();
    fs::remove_file(slots_of(&store)).unwrap();
    assert!(has(&store, CONTENT));
}

#[test]
fn slots_that_nobody_needs_are_given_back_by_a_start() {
    let root = tempfile::tempdir().unwrap();
    let first = blobs(root.path(), 1 << 20);
    put(&first, CONTENT).unwrap();
    let path = slots_of(&first);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(at(5_000) + 17).unwrap();
    let again = blobs(root.path(), 1 << 20);
    again.sweep().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), at(1 + PAVED_MAX));
    for number in 0..PAVED_MAX {
        put(&again, &number.to_be_bytes()).unwrap();
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), at(1 + PAVED_MAX));
    put(&again, b"one more").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), at(1 + 2 * PAVED_MAX));
    assert_eq!(get(&again, CONTENT).unwrap(), CONTENT);
}

#[test]
fn a_copy_that_is_made_while_slots_are_written_has_whole_blobs_alone() {
    let root = tempfile::tempdir().unwrap();
    let store = blobs(&root.path().join("store"), 1 << 20);
    put(&store, CONTENT).unwrap();
    let path = slots_of(&store);
    let contents: Vec<Vec<u8>> = (0..40_u8).map(|number| vec![number; 3_500]).collect();
    std::thread::scope(|scope| {
        let store = &store;
        let store_and_remove = |half: &[Vec<u8>]| {
            for _ in 0..10 {
                half.iter().for_each(|content| put(store, content).unwrap());
                half.iter().for_each(|content| remove(store, content).unwrap());
            }
        };
        let halves: Vec<_> = contents
            .chunks(20)
            .map(|half| scope.spawn(move || store_and_remove(half)))
            .collect();
        for number in 0.. {
            if halves.iter().all(|half| half.is_finished()) {
                break;
            }
            let copy = blobs(&root.path().join(number.to_string()), 1 << 20);
            fs::create_dir_all(slots_of(&copy).parent().unwrap()).unwrap();
            fs::copy(&path, slots_of(&copy)).unwrap();
            assert_eq!(get(&copy, CONTENT).unwrap(), CONTENT);
            let there: Vec<_> = contents.iter().filter(|content| has(&copy, content)).collect();
            for content in &there {
                assert_eq!(&get(&copy, content).unwrap(), *content);
            }
            assert_eq!(used(&slots_of(&copy)).len(), 1 + there.len());
        }
    });
}
