//! What a failing power takes away that a killed process does not: bytes that were written and had not come to the disk.

use effectd::contracts::{Effects, Outcome, Receipt};
use serde_json::json;

use crate::Test;
use crate::harness::side_by_side;
use crate::matrix::kill_at;
use crate::place::Place;
use crate::registered::{SPACE, request};

pub(crate) const TESTS: &[Test] = &[(
    "a_small_file_that_was_replaced_comes_back_though_its_blob_never_came_to_the_disk",
    replaced,
)];

/// What stood there: text, bytes that are none, nothing, and as much as an intent may hold.
fn contents() -> [Vec<u8>; 4] {
    [
        b"hello\n\"\\\0\n".to_vec(),
        (0..=255).collect(),
        Vec::new(),
        vec![b'x'; 3_900],
    ]
}

fn replaced() {
    let points = [
        Some("executor.after_prepare:1"),
        Some("executor.after_child:1"),
        Some("recorder.before_commit:1"),
        // Nothing is killed and nothing taken away.
        None,
    ];
    let mut cases = Vec::new();
    for content in contents() {
        cases.extend(points.map(|point| (content.clone(), point)));
    }
    side_by_side(&cases, |(content, point)| replaced_at(content, *point));
}

fn replaced_at(content: &[u8], point: Option<&str>) {
    let place = Place::new();
    place.set_policy(&[]);
    let note = place.workspace().join("note.txt");
    std::fs::write(&note, content).unwrap();
    let params = json!({ "path": "workspace/note.txt", "text": "other", "space_id": SPACE });
    let write = request("a", "files.write_text", &params);
    if let Some(point) = point {
        let (visited, _) = kill_at(&place, "exec", point, &write);
        assert!(visited, "{point} was not reached");
        let blobs = place.state().join("blobs/preimages");
        // Before the child runs the blobs may not be written yet.
        let may_be_missing = point == "executor.after_prepare:1";
        assert!(
            blobs.is_dir() || may_be_missing,
            "{point}: nothing was kept at {}",
            blobs.display()
        );
        if blobs.is_dir() {
            std::fs::remove_dir_all(blobs).unwrap();
        }
    }

    let case = format!("{point:?}");
    let answer: Receipt = serde_json::from_value(place.run("exec", &[write]).answers.remove(0)).unwrap();
    assert_eq!(answer.outcome, Outcome::Executed, "{case}: {:?}", answer.error);
    assert_eq!(std::fs::read(&note).unwrap(), b"other", "{case}");
    let Effects::Observed(observed) = &answer.effects else {
        panic!("{case}: {:?}", answer.effects);
    };
    assert!(observed.undoable, "{case}: {observed:?}");
    let params = json!({ "receipt_id": answer.receipt_id, "space_id": SPACE });
    let undo = request("undo", "files.undo", &params);
    let undone: Receipt = serde_json::from_value(place.run("exec", &[undo]).answers.remove(0)).unwrap();
    assert_eq!(undone.outcome, Outcome::Executed, "{case}: {:?}", undone.error);
    assert_eq!(std::fs::read(&note).unwrap(), content, "{case}");
}
