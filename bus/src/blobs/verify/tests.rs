//! Tests of blob verification: every flipped bit is found, and damage that no receipt names is a note.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::super::sealed::{CHUNK_BYTES, HEAD_BYTES};
use super::super::tests::{CONTENT, blobs, files, long, name, space};
use super::*;

/// The result of a check in which the journal names the space and receipts name these blobs.
fn checked(blobs: &Blobs, named: &[&str]) -> BlobsChecked {
    let mut check = BlobsCheck::begin(blobs).unwrap();
    check.space(&space("shared:h"));
    check.space(&space("shared:nobody"));
    if check.read().unwrap() {
        let named: Vec<String> = named.iter().map(|name| format!("\"hmac-sha256:{name}\"")).collect();
        check.receipt(format!("{{\"changes\":[{}]}}", named.join(",")).as_bytes());
    }
    check.finish()
}

#[test]
fn every_flip_in_every_kind_of_blob_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let all = Arc::new(blobs(folder.path(), 1 << 20));
    let (small, medium, large) = (CONTENT.to_vec(), long(), vec![3; 3 * CHUNK_BYTES]);
    for content in [&small, &medium] {
        let id = name(content);
        all.put(BlobKind::Preimages, &space("shared:h"), &id, content).unwrap();
    }
    let mut writer = all.writer(BlobKind::Artifacts, &space("shared:h")).unwrap();
    writer.write(&large).unwrap();
    writer.finish(|digest| digest.hex()).unwrap();
    let names = [&small, &medium, &large].map(|content| name(content));
    let named = names.each_ref().map(String::as_str);
    let whole = BlobsChecked {
        blobs: 3,
        bytes: (small.len() + medium.len() + large.len()) as u64,
        ..BlobsChecked::default()
    };
    assert_eq!(checked(&all, &named), whole);
    let paths = files(folder.path());
    assert_eq!(paths.len(), 3);
    for path in &paths {
        let bytes = fs::read(path).unwrap();
        let length = bytes.len();
        for at in [0, 20, HEAD_BYTES, length / 2, length - 1] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            fs::write(path, &flipped).unwrap();
            let found = checked(&all, &named);
            assert_eq!((found.blobs, found.problems.len()), (2, 1), "{at}: {found:?}");
            assert!(found.problems[0].contains(path.to_str().unwrap()), "{found:?}");
            assert_eq!(fs::read(path).unwrap(), flipped, "a check changes nothing");
        }
        fs::write(path, &bytes[..length - 1]).unwrap();
        assert_eq!(checked(&all, &named).problems.len(), 1);
        fs::write(path, &bytes).unwrap();
    }
    assert_eq!(checked(&all, &named), whole);
}

#[test]
fn a_damaged_blob_that_nobody_misses_is_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let all = blobs(folder.path(), 1 << 20);
    let (medium, other) = (long(), CONTENT.repeat(30));
    for content in [CONTENT, &medium, &other] {
        let id = name(content);
        all.put(BlobKind::Preimages, &space("shared:h"), &id, content).unwrap();
    }
    all.remove(BlobKind::Preimages, &space("shared:h"), &name(CONTENT)).unwrap();
    let paths = files(folder.path());
    let [file, torn] = &paths[..] else { panic!("{paths:?}") };
    let (file, torn) = match file.ends_with(name(&medium)) {
        true => (file, torn),
        false => (torn, file),
    };
    // Half a write, as a power failure leaves it: the second sector is missing.
    let mut half = fs::read(torn).unwrap();
    half[512..].fill(0);
    fs::write(torn, half).unwrap();
    let mut flipped = fs::read(file).unwrap();
    flipped[HEAD_BYTES] ^= 1;
    fs::write(file, flipped).unwrap();
    fs::write(file.with_file_name("draft-x-1"), "half").unwrap();
    let found = checked(&all, &[]);
    assert_eq!((found.blobs, found.notes.len()), (0, 2), "{found:?}");
    assert_eq!(found.problems, Vec::<String>::new());
    assert_eq!(checked(&all, &[&name(&medium), &name(&other)]).problems.len(), 2);
    // A file whose key was overwritten, but which was not removed.
    let mut destroyed = fs::read(file).unwrap();
    destroyed[..HEAD_BYTES].fill(0);
    fs::write(file, destroyed).unwrap();
    assert_eq!(checked(&all, &[&name(&medium)]).problems, Vec::<String>::new());
    // The blobs of an unknown space cannot be opened; the check notes that.
    let mut check = BlobsCheck::begin(&all).unwrap();
    assert!(!check.read().unwrap());
    let found = check.finish();
    assert_eq!((found.blobs, found.notes.len()), (0, 1), "{found:?}");
}
