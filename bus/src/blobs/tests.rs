//! Tests of blobs: sealed, bound to kind, space and name, stored once, bounded, destroyed permanently.
#![allow(clippy::unwrap_used)]

use super::sealed::{CHUNK_BYTES, MARK, SEALED_CHUNK_BYTES};
use super::*;

pub(super) const CONTENT: &[u8] = b"the canary sings at dawn";

pub(super) fn long() -> Vec<u8> {
    CONTENT.repeat(300)
}

pub(super) fn space(name: &str) -> SpaceId {
    name.parse().unwrap()
}

pub(super) fn name(content: &[u8]) -> String {
    Digest::of(content).hex()
}

pub(super) fn blobs(root: &Path, quota_bytes: u64) -> Blobs {
    Blobs::new(root.to_owned(), &Zeroizing::new([7; 32]), quota_bytes)
}

pub(super) fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).into_iter().flatten().map(Result::unwrap) {
        if entry.path().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

#[test]
fn stored_blobs_are_sealed_and_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let content = long();
    let id = name(&content);
    let first = blobs(folder.path(), 1 << 20);
    first.put(BlobKind::Preimages, &space("shared:h"), &id, &content).unwrap();
    first.put(BlobKind::Preimages, &space("shared:h"), &id, &content).unwrap();
    let on_disk = files(folder.path());
    assert_eq!(on_disk.len(), 1, "equal content is kept once");
    let bytes = fs::read(&on_disk[0]).unwrap();
    assert!(!bytes.windows(6).any(|piece| piece == b"canary"));
    let again = blobs(folder.path(), 1 << 20);
    assert_eq!(again.get(BlobKind::Preimages, &space("shared:h"), &id).unwrap(), content);
    assert_eq!(again.bytes(BlobKind::Preimages, &space("shared:h")).unwrap(), bytes.len() as u64);
    for (shelf, other) in [(BlobKind::Artifacts, "shared:h"), (BlobKind::Preimages, "private:bob")] {
        assert_eq!(again.get(shelf, &space(other), &id), Err(BlobError::Gone));
    }
}

#[test]
fn a_blob_that_was_changed_or_moved_does_not_open() {
    let folder = tempfile::tempdir().unwrap();
    let content = long();
    let id = name(&content);
    let blobs = blobs(folder.path(), 1 << 20);
    let home = space("shared:h");
    blobs.put(BlobKind::Preimages, &home, &id, &content).unwrap();
    let path = files(folder.path()).remove(0);
    let good = fs::read(&path).unwrap();
    for at in [0, MARK.len() + 3, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, &bad).unwrap();
        assert_eq!(blobs.get(BlobKind::Preimages, &home, &id), Err(BlobError::Damaged), "{at}");
    }
    for length in [0, 5, HEAD_BYTES + 3] {
        fs::write(&path, &good[..length]).unwrap();
        assert_eq!(blobs.get(BlobKind::Preimages, &home, &id), Err(BlobError::Damaged), "{length}");
    }
    fs::write(&path, &good).unwrap();
    let other = name(b"other");
    fs::copy(&path, path.with_file_name(&other)).unwrap();
    assert_eq!(
        self::blobs(folder.path(), 1 << 20).get(BlobKind::Preimages, &home, &other),
        Err(BlobError::Damaged)
    );
    assert_eq!(blobs.get(BlobKind::Preimages, &home, "../x"), Err(BlobError::Name("../x".to_owned())));
}

#[test]
fn the_quota_holds_and_the_oldest_go_first() {
    let folder = tempfile::tempdir().unwrap();
    let quota = 10_000;
    let home = space("shared:h");
    let contents: Vec<Vec<u8>> = (0..20_u8).map(|number| vec![number; 1_000]).collect();
    let store = blobs(folder.path(), quota);
    for content in &contents {
        store.put(BlobKind::Preimages, &home, &name(content), content).unwrap();
        // Storing the first blob again makes it the newest, so it is not evicted.
        store.put(BlobKind::Preimages, &home, &name(&contents[0]), &contents[0]).unwrap();
        assert!(store.bytes(BlobKind::Preimages, &home).unwrap() <= quota + 500);
    }
    let kept = |number: usize| store.has(BlobKind::Preimages, &home, &name(&contents[number]));
    assert!(kept(0) && kept(19) && !kept(1) && !kept(5));
    assert_eq!(store.get(BlobKind::Preimages, &home, &name(&contents[1])), Err(BlobError::Gone));
    store.put(BlobKind::Preimages, &space("other"), &name(CONTENT), CONTENT).unwrap();
    assert!(kept(19), "another space has its own quota");
    let huge = vec![0; 10_001];
    let refused = store.put(BlobKind::Preimages, &home, &name(&huge), &huge);
    assert!(matches!(refused, Err(BlobError::TooLarge { .. })));
}

#[test]
fn a_removed_blob_cannot_be_read_through_an_open_file() {
    let folder = tempfile::tempdir().unwrap();
    let (home, id, content) = (space("shared:h"), name(CONTENT), long());
    let blobs = blobs(folder.path(), 1 << 20);
    blobs.put(BlobKind::Preimages, &home, &id, &content).unwrap();
    let path = files(folder.path()).remove(0);
    let link = folder.path().join("kept");
    fs::hard_link(&path, &link).unwrap();
    blobs.remove(BlobKind::Preimages, &home, &id).unwrap();
    assert!(!path.exists());
    let left = fs::read(link).unwrap();
    assert!(left[..HEAD_BYTES].iter().all(|byte| *byte == 0));
    blobs.remove(BlobKind::Preimages, &home, &id).unwrap();
}

#[test]
fn a_noisy_owner_evicts_only_its_own_results() {
    let folder = tempfile::tempdir().unwrap();
    let home = space("shared:h");
    let of = |owner: char, nth: u64| format!("{}{nth:048x}", owner.to_string().repeat(OWNER_DIGITS));
    let content = long();
    let first = blobs(folder.path(), 8 * sealed_bytes(content.len() as u64));
    for nth in 0..3 {
        first.put(BlobKind::Results, &home, &of('a', nth), &content).unwrap();
    }
    let mut all = first;
    for nth in 0..40 {
        if nth == 20 {
            // The shares are known again after a restart.
            all = blobs(folder.path(), 8 * sealed_bytes(content.len() as u64));
        }
        all.put(BlobKind::Results, &home, &of('b', nth), &content).unwrap();
    }
    let left =
        |owner: char| (0..40).filter(|nth| all.has(BlobKind::Results, &home, &of(owner, *nth))).count();
    assert_eq!((left('a'), left('b')), (3, 5));
    assert!(all.has(BlobKind::Results, &home, &of('b', 39)), "the newest stays");
    // A new owner takes from the one that has the most.
    all.put(BlobKind::Results, &home, &of('c', 0), &content).unwrap();
    let left =
        |owner: char| (0..40).filter(|nth| all.has(BlobKind::Results, &home, &of(owner, *nth))).count();
    assert_eq!((left('a'), left('b'), left('c')), (3, 4, 1));
}

#[test]
fn a_result_is_whole_or_gone_and_has_a_quota_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (home, large) = (space("shared:h"), vec![3; 3 * CHUNK_BYTES]);
    let first = blobs(folder.path(), large.len() as u64);
    first.put(BlobKind::Artifacts, &home, &name(CONTENT), CONTENT).unwrap();
    first.put(BlobKind::Results, &home, &name(&large), &large).unwrap();
    let path = first.folder(BlobKind::Results, &home).join(name(&large));
    let whole = fs::read(&path).unwrap();
    // What a power failure may leave: nothing, a part, or the length without the content.
    let zeros = vec![0; whole.len()];
    for left in [&[][..], &whole[..HEAD_BYTES], &whole[..whole.len() - 1], &zeros] {
        fs::write(&path, left).unwrap();
        let read = blobs(folder.path(), 1 << 20).get(BlobKind::Results, &home, &name(&large));
        assert!(matches!(read, Err(BlobError::Gone | BlobError::Damaged)), "{} bytes", left.len());
    }
    fs::write(&path, &whole).unwrap();
    let again = blobs(folder.path(), large.len() as u64);
    assert_eq!(again.get(BlobKind::Results, &home, &name(&large)).unwrap(), large);
    again.put(BlobKind::Results, &home, &name(b"newer"), b"newer").unwrap();
    assert!(!path.exists() && !again.has(BlobKind::Results, &home, &name(&large)));
    assert!(again.has(BlobKind::Results, &home, &name(b"newer")));
    assert!(again.has(BlobKind::Artifacts, &home, &name(CONTENT)), "another kind makes no room");
}

/// In place of the result is a pipe that nobody reads: destroying it waits, like a slow sync.
#[test]
fn nobody_waits_while_an_old_result_is_destroyed() {
    let folder = tempfile::tempdir().unwrap();
    let (home, old, new) = (space("shared:h"), name(b"old"), name(b"new"));
    let blobs = blobs(folder.path(), 1 << 20);
    blobs.put(BlobKind::Results, &home, &old, b"old").unwrap();
    let path = blobs.folder(BlobKind::Results, &home).join(&old);
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let (blobs, home, new) = (&blobs, &home, &new);
    let (read, _pipe) = std::thread::scope(|scope| {
        let later = Timestamp::from_second(10_000_000_000).unwrap();
        scope.spawn(move || blobs.expire(&[BlobKind::Results], later));
        scope.spawn(move || {
            while blobs.bytes(BlobKind::Results, home).unwrap() > 0 {
                std::thread::yield_now();
            }
            blobs.put(BlobKind::Results, home, new, b"new").unwrap();
            tell.send(blobs.get(BlobKind::Results, home, new)).unwrap();
        });
        let read = told.recv_timeout(std::time::Duration::from_secs(20));
        // A reader, until the threads have ended: opening the pipe for writing no longer waits.
        (read, OpenOptions::new().read(true).write(true).open(&path).unwrap())
    });
    // The lock was free.
    assert_eq!(read.unwrap().unwrap(), b"new");
}

#[test]
fn drafts_of_a_killed_process_are_swept() {
    let folder = tempfile::tempdir().unwrap();
    let (home, id) = (space("shared:h"), name(CONTENT));
    blobs(folder.path(), 1 << 20).put(BlobKind::Artifacts, &home, &id, CONTENT).unwrap();
    let path = files(folder.path()).remove(0);
    fs::write(path.with_file_name("draft-x"), b"half").unwrap();
    assert!(blobs(folder.path(), 1 << 20).bytes(BlobKind::Artifacts, &home).unwrap() > 0);
    assert_eq!(files(folder.path()), [path]);
}

#[test]
fn what_no_receipt_names_any_more_goes_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = Blobs::new(dir.path().join("blobs"), &Zeroizing::new([7; 32]), 1 << 20);
    let space = SpaceId::new("shared:test").unwrap();
    let name = |n: u8| Digest::of(&[n]).hex();
    for (n, shelf) in [(0, BlobKind::Preimages), (1, BlobKind::Artifacts), (2, BlobKind::Preimages)] {
        blobs.put(shelf, &space, &name(n), &[n; 5_000]).unwrap();
    }
    // Two blobs were last stored in an earlier year.
    for (n, shelf) in [(0, BlobKind::Preimages), (1, BlobKind::Artifacts)] {
        let file = OpenOptions::new().write(true).open(blobs.folder(shelf, &space).join(name(n))).unwrap();
        let then = TimeSpec::new(1_700_000_000, 0);
        futimens(&file, &then, &then).unwrap();
    }
    let before = Timestamp::from_second(1_700_000_001).unwrap();
    assert_eq!(blobs.expire(&BlobKind::ALL, Timestamp::from_second(1_600_000_000).unwrap()), Ok(0));
    assert_eq!(blobs.expire(&BlobKind::ALL, before), Ok(2));
    assert_eq!(blobs.expire(&BlobKind::ALL, before), Ok(0));
    assert!(!blobs.has(BlobKind::Preimages, &space, &name(0)));
    assert!(!blobs.has(BlobKind::Artifacts, &space, &name(1)));
    assert_eq!(blobs.get(BlobKind::Preimages, &space, &name(2)).unwrap(), vec![2; 5_000]);
    assert_eq!(blobs.bytes(BlobKind::Preimages, &space).unwrap(), sealed_bytes(5_000));
}

#[test]
fn no_definition_makes_room_for_another() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = blobs(folder.path(), 12_000);
    let put = |kind, n: u8| blobs.put(kind, &space("shared:h"), &Digest::of(&[n]).hex(), &[n; 5_000]);
    for n in 0..3 {
        put(BlobKind::Artifacts, n).unwrap();
    }
    assert!(!blobs.has(BlobKind::Artifacts, &space("shared:h"), &Digest::of(&[0]).hex()));
    put(BlobKind::Definitions, 0).unwrap();
    put(BlobKind::Definitions, 1).unwrap();
    assert_eq!(put(BlobKind::Definitions, 2), Err(BlobError::Full));
    blobs.remove(BlobKind::Definitions, &space("shared:h"), &Digest::of(&[0]).hex()).unwrap();
    put(BlobKind::Definitions, 2).unwrap();
    assert!(blobs.has(BlobKind::Definitions, &space("shared:h"), &Digest::of(&[1]).hex()));
}

/// Content in which no part occurs twice: consecutive numbers.
fn counted(length: usize) -> Vec<u8> {
    (0..length.div_ceil(8) as u64).flat_map(u64::to_le_bytes).take(length).collect()
}

fn streamed(blobs: &Arc<Blobs>, home: &SpaceId, content: &[u8], piece: usize) -> String {
    let mut writer = blobs.writer(BlobKind::Artifacts, home).unwrap();
    for piece in content.chunks(piece) {
        writer.write(piece).unwrap();
    }
    writer.finish(Digest::hex).unwrap()
}

#[test]
fn what_comes_in_pieces_is_what_was_stored_whole_at_any_length() {
    let folder = tempfile::tempdir().unwrap();
    let home = space("shared:h");
    let blobs = Arc::new(blobs(folder.path(), 1 << 24));
    let lengths = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES];
    for (number, length) in lengths.into_iter().enumerate() {
        let content = counted(length);
        for piece in [7_919, 1 << 20] {
            assert_eq!(streamed(&blobs, &home, &content, piece), name(&content), "{length}");
        }
        let kept = files(&folder.path().join("artifacts"));
        assert_eq!(kept.len(), number + 1, "kept once");
        blobs.put(BlobKind::Preimages, &home, &name(&content), &content).unwrap();
        for shelf in [BlobKind::Artifacts, BlobKind::Preimages] {
            let mut reader = blobs.reader(shelf, &home, &name(&content)).unwrap();
            assert_eq!(reader.bytes(), length as u64);
            let mut read = Vec::new();
            while let Some(piece) = reader.piece().unwrap() {
                assert!(piece.len() <= CHUNK_BYTES);
                read.extend(piece);
            }
            assert!(read == content, "{length}");
            assert_eq!(reader.piece(), Ok(None));
        }
    }
    let on_disk: u64 =
        files(&folder.path().join("artifacts")).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert_eq!(blobs.bytes(BlobKind::Artifacts, &home).unwrap(), on_disk);
}

#[test]
fn cut_swapped_repeated_and_changed_chunks_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let home = space("shared:h");
    let blobs = Arc::new(blobs(folder.path(), 1 << 24));
    let id = streamed(&blobs, &home, &counted(3 * CHUNK_BYTES + 5), 10_000);
    let path = files(folder.path()).remove(0);
    let good = fs::read(&path).unwrap();
    let chunk = |number: usize| {
        let from = HEAD_BYTES + number * SEALED_CHUNK_BYTES;
        good[from..good.len().min(from + SEALED_CHUNK_BYTES)].to_vec()
    };
    let of = |chunks: &[usize]| {
        let mut bytes = good[..HEAD_BYTES].to_vec();
        chunks.iter().for_each(|number| bytes.extend(chunk(*number)));
        bytes
    };
    let mut flipped = good.clone();
    flipped[HEAD_BYTES + SEALED_CHUNK_BYTES + 9] ^= 1;
    let bad = [
        of(&[0, 1, 2]),
        of(&[0]),
        of(&[]),
        of(&[1, 0, 2, 3]),
        of(&[0, 1, 3]),
        of(&[0, 0, 1, 2, 3]),
        of(&[0, 1, 2, 3, 3]),
        good[..good.len() - 1].to_vec(),
        flipped,
    ];
    assert!(of(&[0, 1, 2, 3]) == good);
    for (number, bytes) in bad.into_iter().enumerate() {
        fs::write(&path, bytes).unwrap();
        assert_eq!(blobs.get(BlobKind::Artifacts, &home, &id), Err(BlobError::Damaged), "{number}");
    }
    fs::write(&path, &good).unwrap();
    assert_eq!(blobs.get(BlobKind::Artifacts, &home, &id).unwrap().len(), 3 * CHUNK_BYTES + 5);
}

/// Bytes of all files, blobs and drafts.
fn on_disk(root: &Path) -> u64 {
    let lengths = files(root).into_iter().map(|path| fs::metadata(path).unwrap().len());
    lengths.sum()
}

#[test]
fn the_quota_holds_for_those_who_write_in_pieces_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let home = space("shared:h");
    let quota = 10 * CHUNK_BYTES as u64;
    let blobs = Arc::new(blobs(folder.path(), quota));
    let old = streamed(&blobs, &home, &counted(9 * CHUNK_BYTES), CHUNK_BYTES);
    let mut one = blobs.writer(BlobKind::Artifacts, &home).unwrap();
    let mut other = blobs.writer(BlobKind::Artifacts, &home).unwrap();
    let piece = counted(6 * CHUNK_BYTES);
    one.write(&piece).unwrap();
    assert_eq!(other.write(&piece), Err(BlobError::Full));
    drop(other);
    assert_eq!(one.write(&piece), Err(BlobError::TooLarge { size: 12 * CHUNK_BYTES as u64, max: quota }));
    assert!(on_disk(folder.path()) <= 2 * sealed_bytes(quota));
    drop(one);
    assert!(blobs.has(BlobKind::Artifacts, &home, &old), "what is never kept has pushed nothing out");
    assert_eq!(files(folder.path()).len(), 1, "what is not finished leaves nothing");
    let again = streamed(&blobs, &home, &counted(10 * CHUNK_BYTES), CHUNK_BYTES);
    assert!(blobs.has(BlobKind::Artifacts, &home, &again), "and takes no room");
    assert!(!blobs.has(BlobKind::Artifacts, &home, &old), "the oldest made room");
    assert!(on_disk(folder.path()) <= sealed_bytes(quota));
}

#[test]
fn concurrent_writers_make_room_and_stay_within_the_quota() {
    let folder = tempfile::tempdir().unwrap();
    let home = space("shared:h");
    let quota = 10 * CHUNK_BYTES as u64;
    let blobs = Arc::new(blobs(folder.path(), quota));
    let mut names = Vec::new();
    for round in 0..6_u8 {
        let mut writers: Vec<_> = (0..3).map(|_| blobs.writer(BlobKind::Artifacts, &home).unwrap()).collect();
        for (number, writer) in (0_u8..).zip(&mut writers) {
            writer.write(&vec![round * 3 + number; 3 * CHUNK_BYTES]).unwrap();
        }
        for writer in writers {
            names.push(writer.finish(Digest::hex).unwrap());
            assert!(blobs.bytes(BlobKind::Artifacts, &home).unwrap() <= sealed_bytes(quota));
        }
        assert!(on_disk(folder.path()) <= sealed_bytes(quota));
    }
    let kept = names.iter().filter(|name| blobs.has(BlobKind::Artifacts, &home, name));
    assert_eq!(kept.count(), 3);
}

#[test]
fn what_is_pinned_stays_and_makes_room_when_nobody_needs_it() {
    let folder = tempfile::tempdir().unwrap();
    let home = space("shared:h");
    let quota = 10_000;
    let blobs = Arc::new(blobs(folder.path(), quota));
    let contents: Vec<Vec<u8>> = (0..8_u8).map(|number| vec![number; 4_000]).collect();
    let put = |number: usize| {
        let content = &contents[number];
        blobs.put(BlobKind::Preimages, &home, &name(content), content).unwrap();
    };
    let has = |number: usize| blobs.has(BlobKind::Preimages, &home, &name(&contents[number]));
    put(0);
    put(1);
    let names = [name(&contents[0]), name(&contents[1]), name(b"never stored")];
    let pins = blobs.pin(BlobKind::Preimages, &home, names.iter().map(String::as_str));
    let (first, second) =
        (pins.unwrap(), blobs.pin(BlobKind::Preimages, &home, [names[0].as_str()]).unwrap());
    (2..6).for_each(put);
    assert!(has(0) && has(1) && !has(2) && !has(3) && has(4) && has(5));
    assert!(on_disk(folder.path()) <= 2 * sealed_bytes(quota));
    // All pinned blobs together take at most the quota; the others are evicted as usual.
    let late = [name(&contents[4]), name(&contents[5])];
    let late = blobs.pin(BlobKind::Preimages, &home, late.iter().map(String::as_str));
    put(6);
    put(7);
    assert!(has(0) && has(1) && has(6) && has(7) && !has(4) && !has(5));
    assert!(on_disk(folder.path()) <= 2 * sealed_bytes(quota));
    drop((late, first));
    assert!(has(0) && !has(1), "one is still needed");
    drop(second);
    assert!(blobs.bytes(BlobKind::Preimages, &home).unwrap() <= sealed_bytes(quota));
    put(3);
    put(4);
    assert!(!has(0) && has(3) && has(4));
    assert!(matches!(blobs.pin(BlobKind::Preimages, &home, ["../x"]), Err(BlobError::Name(_))));
}

#[test]
fn whoever_reads_a_blob_reads_on_while_it_is_destroyed() {
    let folder = tempfile::tempdir().unwrap();
    let home = space("shared:h");
    let blobs = Arc::new(blobs(folder.path(), 1 << 24));
    let content = counted(2 * CHUNK_BYTES);
    let id = streamed(&blobs, &home, &content, CHUNK_BYTES);
    let mut reader = blobs.reader(BlobKind::Artifacts, &home, &id).unwrap();
    let mut read = reader.piece().unwrap().unwrap();
    blobs.remove(BlobKind::Artifacts, &home, &id).unwrap();
    read.extend(reader.piece().unwrap().unwrap());
    assert!(read == content);
    assert!(matches!(blobs.reader(BlobKind::Artifacts, &home, &id), Err(BlobError::Gone)));
}

#[test]
fn a_sweep_removes_drafts_of_every_space() {
    let folder = tempfile::tempdir().unwrap();
    let home = space("shared:h");
    let first = Arc::new(blobs(folder.path(), 1 << 24));
    let mut writer = first.writer(BlobKind::Artifacts, &home).unwrap();
    writer.write(&counted(3 * CHUNK_BYTES)).unwrap();
    assert_eq!(files(folder.path()).len(), 1);
    // As the next process finds the folder after a kill.
    blobs(folder.path(), 1 << 24).sweep().unwrap();
    assert!(files(folder.path()).is_empty());
    drop(writer);
}

#[test]
fn a_destruction_that_was_cut_off_is_ended_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let (space, content, other) = (space("shared:h"), long(), name(b"other"));
    let id = name(&content);
    let first = blobs(folder.path(), 1 << 20);
    first.put(BlobKind::Preimages, &space, &id, &content).unwrap();
    first.put(BlobKind::Preimages, &space, &other, b"other").unwrap();
    // As if the process had died after the head was overwritten.
    let path = files(folder.path()).into_iter().find(|path| path.ends_with(&id)).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[..HEAD_BYTES].fill(0);
    fs::write(&path, &bytes).unwrap();
    let again = blobs(folder.path(), 1 << 20);
    again.sweep().unwrap();
    assert!(!path.exists() && !again.has(BlobKind::Preimages, &space, &id));
    assert!(!again.renew(BlobKind::Preimages, &space, &id).unwrap());
    assert_eq!(again.bytes(BlobKind::Preimages, &space).unwrap(), sealed_bytes(5));
    again.put(BlobKind::Preimages, &space, &id, &content).unwrap();
    assert_eq!(again.get(BlobKind::Preimages, &space, &id).unwrap(), content);
    assert_eq!(again.get(BlobKind::Preimages, &space, &other).unwrap(), b"other");
}

#[test]
fn what_was_cut_off_while_it_was_written_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let (space, content, other) = (space("shared:h"), long(), name(b"other"));
    let id = name(&content);
    let first = blobs(folder.path(), 1 << 20);
    first.put(BlobKind::Preimages, &space, &id, &content).unwrap();
    first.put(BlobKind::Preimages, &space, &other, b"other").unwrap();
    let path = first.folder(BlobKind::Preimages, &space).join(&id);
    let whole = fs::read(&path).unwrap();
    for length in [1, MARK.len(), HEAD_BYTES, whole.len() - 1] {
        for renewed in [false, true] {
            fs::write(&path, &whole[..length]).unwrap();
            let again = blobs(folder.path(), 1 << 20);
            if renewed {
                assert!(!again.renew(BlobKind::Preimages, &space, &id).unwrap(), "{length}");
            }
            again.put(BlobKind::Preimages, &space, &id, &content).unwrap();
            assert_eq!(again.get(BlobKind::Preimages, &space, &id).unwrap(), content, "{length}");
            assert!(again.renew(BlobKind::Preimages, &space, &other).unwrap());
            let bytes = sealed_bytes(content.len() as u64) + sealed_bytes(5);
            assert_eq!(again.bytes(BlobKind::Preimages, &space).unwrap(), bytes, "{length}");
        }
    }
}

#[test]
fn what_could_not_be_written_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let (space, id, content) = (space("shared:h"), name(CONTENT), long());
    let blobs = blobs(folder.path(), 1 << 20);
    assert_eq!(blobs.bytes(BlobKind::Preimages, &space), Ok(0));
    let place = blobs.folder(BlobKind::Preimages, &space);
    // As a full disk leaves the file: empty.
    fs::write(place.join(&id), b"").unwrap();
    assert!(!blobs.has(BlobKind::Preimages, &space, &id));
    blobs.put(BlobKind::Preimages, &space, &id, &content).unwrap();
    assert!(blobs.has(BlobKind::Preimages, &space, &id));
    assert_eq!(blobs.get(BlobKind::Preimages, &space, &id).unwrap(), content);
}

#[test]
fn many_who_store_the_same_at_once_store_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let (space, id, content) = (space("shared:h"), name(CONTENT), long());
    let blobs = blobs(folder.path(), 1 << 20);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| blobs.put(BlobKind::Preimages, &space, &id, &content).unwrap());
        }
    });
    assert_eq!(files(folder.path()).len(), 1);
    assert_eq!(blobs.get(BlobKind::Preimages, &space, &id).unwrap(), content);
}

#[test]
fn what_is_destroyed_while_it_is_written_is_not_listed() {
    let folder = tempfile::tempdir().unwrap();
    let (space, id, other) = (space("shared:h"), name(CONTENT), name(b"other"));
    let blobs = blobs(folder.path(), 1 << 20);
    let catalog = blobs.catalog(BlobKind::Preimages, &blobs.folder(BlobKind::Preimages, &space)).unwrap();
    let begin = |name: &str| catalog.lock().begin(name);
    let (early, beside) = (begin(&id), begin(&other));
    blobs.remove(BlobKind::Preimages, &space, &id).unwrap();
    // From now on, the file may be half of what this one writes.
    let late = begin(&id);
    let end = |writer: u64| catalog.lock().writing.remove(&writer);
    assert_eq!([early, beside, late].map(end), [None, Some(other), Some(id)]);
}

#[test]
fn a_streamed_blob_has_its_file_exactly_while_it_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let (home, content) = (space("shared:h"), counted(CHUNK_BYTES + 1));
    let (id, blobs) = (name(&content), Arc::new(blobs(folder.path(), 1 << 20)));
    let place = blobs.folder(BlobKind::Artifacts, &home);
    let catalog = blobs.catalog(BlobKind::Artifacts, &place).unwrap();
    std::thread::scope(|scope| {
        let write = || (0..20).for_each(|_| assert_eq!(streamed(&blobs, &home, &content, CHUNK_BYTES), id));
        let writers = [scope.spawn(write), scope.spawn(write)];
        while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            blobs.remove(BlobKind::Artifacts, &home, &id).unwrap();
            let known = catalog.lock();
            assert_eq!(known.by_name.contains_key(&id), place.join(&id).is_file());
            assert!(known.counted() <= 2 * sealed_bytes(content.len() as u64), "{known:?}");
        }
    });
    let known = catalog.lock();
    assert_eq!((known.coming, known.drafted), (0, 0));
}

#[test]
fn what_cannot_be_destroyed_is_no_longer_taken_for_a_blob() {
    let folder = tempfile::tempdir().unwrap();
    let (space, id, content) = (space("shared:h"), name(CONTENT), long());
    let blobs = blobs(folder.path(), 1 << 20);
    blobs.put(BlobKind::Preimages, &space, &id, &content).unwrap();
    let path = files(folder.path()).remove(0);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    blobs.remove(BlobKind::Preimages, &space, &id).unwrap_err();
    fs::remove_dir(&path).unwrap();
    assert_eq!(blobs.bytes(BlobKind::Preimages, &space).unwrap(), 0);
    blobs.put(BlobKind::Preimages, &space, &id, &content).unwrap();
    assert_eq!(blobs.get(BlobKind::Preimages, &space, &id).unwrap(), content);
}

#[test]
fn what_was_renewed_meanwhile_is_not_destroyed() {
    let folder = tempfile::tempdir().unwrap();
    let (space, id) = (space("shared:h"), name(CONTENT));
    let blobs = blobs(folder.path(), 1 << 20);
    assert_eq!(blobs.age(BlobKind::Artifacts, &space, &id), None);
    let put = || blobs.put(BlobKind::Artifacts, &space, &id, CONTENT).unwrap();
    let age = || blobs.age(BlobKind::Artifacts, &space, &id).unwrap();
    put();
    let first = age();
    put();
    for (age, is_left) in [(first, true), (age(), false)] {
        blobs.remove_unless_renewed(BlobKind::Artifacts, &space, &id, age).unwrap();
        assert_eq!(blobs.has(BlobKind::Artifacts, &space, &id), is_left);
    }
}

#[test]
fn many_store_at_once_and_all_of_it_is_there() {
    let root = tempfile::tempdir().unwrap();
    let (store, home) = (blobs(root.path(), 1 << 20), space("shared:h"));
    let put = |content: &[u8]| {
        store.put(BlobKind::Preimages, &home, &name(content), content).unwrap();
    };
    let content = |thread: u8, number: u8| [[thread; 50], [number; 50]].concat();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let (put, content) = (&put, &content);
            scope.spawn(move || {
                for number in 0..20 {
                    put(&content(thread, number));
                    // Every thread stores this blob.
                    put(&[number; 10]);
                }
            });
        }
    });
    assert_eq!(files(root.path()).len(), 16 * 20 + 20);
    let again = blobs(root.path(), 1 << 20);
    for store in [&store, &again] {
        let get = |content: &[u8]| store.get(BlobKind::Preimages, &home, &name(content)).unwrap();
        for (thread, number) in (0..16).flat_map(|thread| (0..20).map(move |number| (thread, number))) {
            assert_eq!(get(&content(thread, number)), content(thread, number));
            assert_eq!(get(&[number; 10]), [number; 10]);
        }
    }
}

#[test]
fn concurrent_store_read_and_remove_never_mix_contents() {
    let root = tempfile::tempdir().unwrap();
    // Room for what all threads store at once, but not for all blobs, so that they evict each other.
    let (store, home) = (blobs(root.path(), 6 * sealed_bytes(200)), space("shared:h"));
    std::thread::scope(|scope| {
        for thread in 0..6_u8 {
            let (store, home) = (&store, &home);
            scope.spawn(move || {
                for round in 0..200_u8 {
                    let content = [(round.wrapping_mul(7) ^ thread) % 8; 200];
                    let id = name(&content);
                    match (round ^ thread) % 3 {
                        0 => store.put(BlobKind::Preimages, home, &id, &content).unwrap(),
                        1 => store.remove(BlobKind::Preimages, home, &id).unwrap(),
                        _ => match store.get(BlobKind::Preimages, home, &id) {
                            Ok(read) => assert_eq!(read, content),
                            Err(error) => assert_eq!(error, BlobError::Gone),
                        },
                    }
                }
            });
        }
    });
    let has = |store: &Blobs, number: u8| store.has(BlobKind::Preimages, &home, &name(&[number; 200]));
    let there: Vec<u8> = (0..8).filter(|number| has(&store, *number)).collect();
    let again = blobs(root.path(), 1 << 20);
    for number in 0..8 {
        assert_eq!(has(&again, number), there.contains(&number), "{number}");
    }
    assert_eq!(files(root.path()).len(), there.len());
    let bytes = again.bytes(BlobKind::Preimages, &home).unwrap();
    assert_eq!(bytes, there.len() as u64 * sealed_bytes(200));
}

#[test]
fn a_full_disk_is_told_as_such_and_nothing_is_taken_for_stored() {
    let root = tempfile::tempdir().unwrap();
    let (store, home, id) = (blobs(root.path(), 1 << 20), space("shared:h"), name(CONTENT));
    assert_eq!(store.bytes(BlobKind::Preimages, &home), Ok(0));
    // A file has the blob's name, so `put` writes a draft; all possible drafts are on a full disk.
    let place = store.folder(BlobKind::Preimages, &home);
    fs::write(place.join(&id), b"").unwrap();
    let full = |number: u64| place.join(format!("{DRAFT}{id}-{number}"));
    (0..4_000).for_each(|number| std::os::unix::fs::symlink("/dev/full", full(number)).unwrap());
    let put = || store.put(BlobKind::Preimages, &home, &id, CONTENT);
    assert_eq!(put(), Err(BlobError::Full));
    assert!(!store.has(BlobKind::Preimages, &home, &id));
    assert_eq!(store.bytes(BlobKind::Preimages, &home), Ok(0));
    (0..4_000).for_each(|number| drop(fs::remove_file(full(number))));
    put().unwrap();
    assert_eq!(store.get(BlobKind::Preimages, &home, &id).unwrap(), CONTENT);
}
