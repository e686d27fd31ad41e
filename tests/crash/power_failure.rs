//! Pre-images after a crash: undo restores the previous content.
//!
//! Each case kills the process at one point and starts again. Of a power failure this simulates one thing: at a point where the blobs of
//! pre-images need not be durable yet, all of them are removed before the start. Everything else, the journal too, stays as the killed
//! process left it, synced or not.
//!
//! - A small file: its content is in the intent, so the blobs are removed at every point before the receipt is committed.
//! - A large file: its content is in a blob before any child has the call, so blobs are removed at the first point only. Later points are
//!   kills alone; they do not show that the blob was synced.

use std::path::Path;

use effectd::contracts::{Effects, Outcome, Receipt};
use serde_json::json;

use crate::Test;
use crate::every_tool::{SPACE, request};
use crate::harness::side_by_side;
use crate::matrix::kill_at;
use crate::place::Place;

pub(crate) const TESTS: &[Test] = &[
    ("undo_restores_a_small_file_without_its_pre_image_blob", small),
    ("undo_restores_a_large_file_wherever_it_is_killed", large),
];

/// Where the process is killed, in the order in which an action passes.
const POINTS: [&str; 7] = [
    "idempotency.after_claim:1",
    "executor.after_prepare:1",
    "executor.before_child:1",
    "executor.after_child:1",
    "executor.end:1",
    "recorder.before_commit:1",
    "recorder.after_commit:1",
];

/// From which point on the blob exists, and from which on it must be durable, so that the test does not remove it.
struct Promise {
    written: &'static str,
    durable: &'static str,
}

/// Text, bytes that are not text, nothing, and as much as an intent holds.
fn small() {
    let contents = [b"hello\n\"\\\0\n".to_vec(), (0..=255).collect(), Vec::new(), vec![b'x'; 3_900]];
    let promise = Promise { written: "executor.after_child:1", durable: "recorder.after_commit:1" };
    replaced(&contents, &promise);
}

/// Too much for an intent, and too much to be read before the claim.
fn large() {
    let promise = Promise { written: "executor.after_prepare:1", durable: "executor.after_prepare:1" };
    replaced(&[vec![b'x'; 5_000], vec![b'y'; 70_000]], &promise);
}

fn replaced(contents: &[Vec<u8>], promise: &Promise) {
    let mut cases = Vec::new();
    for content in contents {
        cases.extend(POINTS.map(|point| (content, Some(point))));
        // Nothing is killed and nothing is taken away.
        cases.push((content, None));
    }
    side_by_side(&cases, |(content, point)| replaced_at(content, *point, promise));
}

fn replaced_at(content: &[u8], point: Option<&str>, promise: &Promise) {
    let place = Place::new();
    place.set_policy(&[]);
    let (note, blobs) = (place.workspace().join("note.txt"), place.state().join("blobs/preimages"));
    std::fs::write(&note, content).unwrap();
    let params = json!({ "path": "workspace/note.txt", "text": "other", "space_id": SPACE });
    let write = request("a", "files.write_text", &params);
    let case = format!("{} bytes, {point:?}", content.len());
    if let Some(point) = point {
        let (visited, _) = kill_at(&place, "exec", point, &write);
        assert!(visited, "{case} was not reached");
        let reached = |other: &str| {
            let place = |point: &str| POINTS.iter().position(|known| *known == point).unwrap();
            place(point) >= place(other)
        };
        assert!(
            blobs_below(&blobs) > 0 || !reached(promise.written),
            "{case}: no blob at {}",
            blobs.display()
        );
        if blobs.is_dir() && !reached(promise.durable) {
            std::fs::remove_dir_all(&blobs).unwrap();
        }
    }

    let answer: Receipt = serde_json::from_value(place.run("exec", &[write]).answers.remove(0)).unwrap();
    assert_eq!(answer.outcome, Outcome::Executed, "{case}: {:?}", answer.error);
    assert_eq!(std::fs::read(&note).unwrap(), b"other", "{case}");
    let Effects::Observed(observed) = &answer.effects else {
        panic!("{case}: {:?}", answer.effects);
    };
    assert!(observed.undoable, "{case}: {observed:?}");
    assert!(blobs_below(&blobs) > 0, "{case}: the receipt promises an undo without a blob");
    let params = json!({ "receipt_id": answer.receipt_id, "space_id": SPACE });
    let undo = request("undo", "files.undo", &params);
    let undone: Receipt = serde_json::from_value(place.run("exec", &[undo]).answers.remove(0)).unwrap();
    assert_eq!(undone.outcome, Outcome::Executed, "{case}: {:?}", undone.error);
    assert_eq!(std::fs::read(&note).unwrap(), content, "{case}");
}

/// How many blobs there are below a folder; none if it does not exist. Drafts do not count: nobody finds their content.
fn blobs_below(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let count = |entry: std::io::Result<std::fs::DirEntry>| {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        let draft = name.to_string_lossy().starts_with("draft-");
        if path.is_dir() { blobs_below(&path) } else { usize::from(!draft) }
    };
    entries.map(count).sum()
}
