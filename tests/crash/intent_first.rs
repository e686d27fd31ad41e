//! Kills around the write of an intent: no effect without an intent on disk, and no effect with one is lost.

use effectd::contracts::{Outcome, Receipt};
use serde_json::json;

use crate::Test;
use crate::every_tool::{SPACE, request};
use crate::harness::side_by_side;
use crate::matrix::kill_at;
use crate::place::Place;

pub(crate) const TESTS: &[Test] =
    &[("no_effect_happens_before_its_intent_is_on_disk", not_before_its_intent)];

fn not_before_its_intent() {
    let points: Vec<String> = (1..=9)
        .flat_map(|nth| [format!("writer.before_append:{nth}"), format!("writer.before_answer:{nth}")])
        .collect();
    let seen = side_by_side(&points, |point| {
        let place = Place::new();
        place.set_policy(&[]);
        let params = json!({ "path": "workspace/a.txt", "text": "text", "space_id": SPACE });
        let (file, asked) = (place.workspace().join("a.txt"), request("a", "files.write_text", &params));
        let (visited, _) = kill_at(&place, "exec", point, &asked);
        let there = file.exists();
        // An effect has an intent on disk, so its receipt follows without another request.
        let mode = if there { "wait" } else { "exec" };
        let mut ended = place.run(mode, &[asked]);
        let answer: Receipt = serde_json::from_value(ended.answers.remove(0)).unwrap();
        assert_eq!(answer.outcome, Outcome::Executed, "{point}");
        assert_eq!(std::fs::read_to_string(file).unwrap(), "text", "{point}");
        ended.report.the_receipt("a");
        ended.report.all_settled();
        (visited, there)
    });
    let without = seen.iter().filter(|seen| **seen == (true, false)).count();
    let with = seen.iter().filter(|seen| **seen == (true, true)).count();
    assert!(without > 1 && with > 0, "{seen:?}");
}
