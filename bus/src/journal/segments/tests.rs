//! Segments: created, filled, dropped, torn and damaged.

#![allow(clippy::unwrap_used)]
use std::fs;

use super::trailer::TRAILER_BYTES;
use super::*;
use crate::codec::Hash16;
use crate::journal::block::Builder;
use crate::journal::record::Record;

const SMALL: usize = 1 << 10;

fn open(state: &Path) -> Result<SegmentJournal, StoreError> {
    let config = EmbeddedConfig { segment_bytes: SMALL, ..EmbeddedConfig::new(state) };
    SegmentJournal::open(&config)
}

fn block(seq: u64) -> Vec<u8> {
    let mut block = Builder::new(seq, 7, 1);
    for fence in 0..seq % 5 {
        let action = Hash16::of(&[b"an action"]);
        block.push(&mut Record::TakenOver { action, fence });
    }
    block.finish().0
}

fn append(journal: &SegmentJournal, blocks: std::ops::RangeInclusive<u64>) {
    blocks.for_each(|seq| journal.append(seq, &block(seq)).unwrap());
}

fn seen(journal: &SegmentJournal) -> Vec<u64> {
    let mut seen = Vec::new();
    let mut each = |seq, bytes: &[u8]| {
        assert!(bytes == block(seq), "block {seq}");
        seen.push(seq);
        Ok(())
    };
    journal.scan(0, &mut each).unwrap();
    seen
}

fn last_file(state: &Path) -> PathBuf {
    let directory = directory(state);
    path(&directory, *names(&directory).unwrap().last().unwrap())
}

#[test]
fn blocks_go_on_from_file_to_file_and_over_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path()).unwrap();
    assert_eq!(journal.bounds(), Ok(None));
    append(&journal, 1..=80);
    drop(journal);
    assert!(names(&directory(state.path())).unwrap().len() > 5);
    let journal = open(state.path()).unwrap();
    append(&journal, 81..=100);
    assert_eq!(journal.bounds(), Ok(Some((1, 100))));
    assert_eq!(seen(&journal), (1..=100).collect::<Vec<_>>());
    assert_eq!(journal.block(101), Err(missing(101)));
    assert!(journal.append(102, &block(102)).is_err());
}

#[test]
fn what_is_let_go_is_given_back_to_the_disk() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path()).unwrap();
    append(&journal, 1..=100);
    let before = names(&directory(state.path())).unwrap().len();
    assert!(journal.truncate_before(85).is_err(), "it has no checkpoint");
    journal.stage(85, b"checkpoint").unwrap();
    assert_eq!(journal.bounds(), Ok(Some((1, 100))));
    journal.truncate_before(85).unwrap();
    assert_eq!(journal.bounds(), Ok(Some((85, 100))));
    assert_eq!(journal.block(84), Err(missing(84)));
    assert!(names(&directory(state.path())).unwrap().len() < before / 2);
    drop(journal);
    let journal = open(state.path()).unwrap();
    assert_eq!(seen(&journal), (85..=100).collect::<Vec<_>>());
    assert_eq!((journal.first(), journal.checkpoint()), (85, Ok(Some(b"checkpoint".to_vec()))));
    journal.stage(101, b"other").unwrap();
    journal.truncate_before(101).unwrap();
    assert_eq!(journal.bounds(), Ok(None));
    append(&journal, 101..=102);
    drop(journal);
    assert_eq!(seen(&open(state.path()).unwrap()), [101, 102]);
}

#[test]
fn an_unfinished_block_is_cut_off_only_by_the_next_one() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path()).unwrap();
    append(&journal, 1..=6);
    drop(journal);
    let file = last_file(state.path());
    let whole = fs::read(&file).unwrap();
    let end: usize = (1..=6).map(|seq| block(seq).len()).sum();
    assert!(end < whole.len() && whole[end..].iter().all(|byte| *byte == 0));
    for torn in 1..block(6).len() {
        let mut in_zeros = whole.clone();
        in_zeros[end - torn..end].fill(0);
        for bytes in [&whole[..end - torn], &in_zeros] {
            if *bytes == whole {
                // The block ends in zeros, so nothing is missing.
                continue;
            }
            fs::write(&file, bytes).unwrap();
            let journal = open(state.path()).unwrap();
            assert_eq!(journal.bounds(), Ok(Some((1, 5))), "{torn}");
            assert_eq!(fs::read(&file).unwrap(), bytes);
            append(&journal, 6..=6);
            drop(journal);
            assert_eq!(fs::read(&file).unwrap(), whole, "{torn}");
        }
    }
}

#[test]
fn preallocated_zeros_are_overwritten_and_no_sign_of_a_crash() {
    let state = tempfile::tempdir().unwrap();
    let config = EmbeddedConfig::new(state.path());
    let journal = SegmentJournal::open(&config).unwrap();
    append(&journal, 1..=1);
    let file = last_file(state.path());
    let len = || fs::metadata(&file).unwrap().len() as usize;
    let preallocated = len();
    assert_eq!(preallocated, block(1).len() + PREALLOCATED_BYTES);
    append(&journal, 2..=6);
    drop(journal);
    let journal = SegmentJournal::open(&config).unwrap();
    let is_torn = |journal: &SegmentJournal| journal.segments.read().active.as_ref().unwrap().torn;
    assert!(!is_torn(&journal));
    append(&journal, 7..=20);
    assert_eq!(len(), preallocated);
    let mut next = 21;
    while len() == preallocated {
        append(&journal, next..=next);
        next += 1;
    }
    let end: usize = (1..next).map(|seq| block(seq).len()).sum();
    assert!(end > preallocated && len() == end + PREALLOCATED_BYTES, "{end} {}", len());
    assert_eq!(seen(&journal), (1..next).collect::<Vec<_>>());
}

#[test]
fn a_table_that_was_not_finished_is_written_again() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path()).unwrap();
    append(&journal, 1..=6);
    journal.finish_segment().unwrap();
    drop(journal);
    let file = last_file(state.path());
    let whole = fs::read(&file).unwrap();
    for torn in 0..=4 * 7 + TRAILER_BYTES {
        let mut in_zeros = whole[..whole.len() - torn].to_vec();
        in_zeros.resize(SMALL, 0);
        for bytes in [&whole[..whole.len() - torn], &in_zeros] {
            fs::write(&file, bytes).unwrap();
            let journal = open(state.path()).unwrap();
            assert_eq!(journal.bounds(), Ok(Some((1, 6))), "{torn}");
            journal.finish_segment().unwrap();
            drop(journal);
            assert_eq!(fs::read(&file).unwrap(), whole, "{torn}");
        }
    }
}

#[test]
fn damage_and_missing_files_are_found() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path()).unwrap();
    append(&journal, 1..=60);
    drop(journal);
    let file = last_file(state.path());
    let whole = fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    flipped[50] ^= 1;
    fs::write(&file, flipped).unwrap();
    assert!(matches!(open(state.path()), Err(StoreError::Damaged { .. })));
    fs::write(&file, whole).unwrap();
    let middle = names(&directory(state.path())).unwrap()[2];
    let middle = path(&directory(state.path()), middle);
    let bytes = fs::read(&middle).unwrap();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 4;
        fs::write(&middle, flipped).unwrap();
        let found = open(state.path()).and_then(|journal| journal.scan(0, &mut |_, _| Ok(())));
        assert!(
            matches!(found, Err(StoreError::Damaged { .. } | StoreError::Format { .. })),
            "{at}: {found:?}"
        );
    }
    fs::remove_file(&middle).unwrap();
    assert!(matches!(open(state.path()), Err(StoreError::Damaged { .. })));
}
