//! Every tool that effectd brings, killed at every point of its way, by `exec` and by `submit`.

use effectd::adapters;
use effectd::contracts::{Outcome, Receipt};
use serde_json::{Value, json};

use crate::Test;
use crate::harness::side_by_side;
use crate::matrix::{Stood, WAY, kill_at};
use crate::place::Place;

pub(crate) const TESTS: &[Test] = &[(
    "every_registered_tool_ends_in_one_true_receipt_wherever_it_is_killed",
    every_tool,
)];

/// What a tool is asked, and how its effect is seen. A tool that is registered and not here fails the test.
struct Sample {
    tool: &'static str,
    params: fn() -> Value,
    is_done: fn(&Place) -> bool,
}

const SAMPLES: [Sample; 1] = [Sample {
    tool: "files.write_text",
    params: || json!({ "path": "workspace/deep/note.txt", "text": "hello", "space_id": "shared:household" }),
    is_done: |place| {
        std::fs::read_to_string(place.workspace().join("deep/note.txt")).is_ok_and(|text| text == "hello")
    },
}];

struct Case {
    sample: &'static Sample,
    way: &'static str,
    point: &'static str,
    stood: Option<Stood>,
}

fn every_tool() {
    let mut cases = Vec::new();
    for tool in adapters::all() {
        let id = tool.spec().tool_id;
        let sample = SAMPLES.iter().find(|sample| sample.tool == id.as_str());
        let sample = sample.unwrap_or_else(|| panic!("{id} has no sample here"));
        for way in ["exec", "submit"] {
            let by_bus = |point: &str| point.starts_with("door.") || point.starts_with("intake.");
            let points = WAY.iter().filter(|(point, _)| !point.starts_with("tool."));
            cases.extend(points.filter(|(point, _)| way == "submit" || !by_bus(point)).map(
                |(point, stood)| Case {
                    sample,
                    way,
                    point,
                    stood: *stood,
                },
            ));
        }
    }
    side_by_side(&cases, run);
}

fn run(case: &Case) {
    let Case {
        sample,
        way,
        point,
        stood,
    } = case;
    let place = Place::new();
    let request = json!({
        "action_id": "a", "subject_id": "agent://planner@deviceA", "space_id": "shared:household",
        "tool_id": sample.tool, "params": (sample.params)(),
        "policy_ctx": { "actor": "alice", "device": "phone1" },
    });
    let (visited, _) = kill_at(&place, way, point, &request);
    assert!(visited, "{} by {way}: {point} was not reached", sample.tool);
    if stood.is_some_and(|stood| stood < Stood::Claimed) {
        assert!(
            !(sample.is_done)(&place),
            "{way} {point}: an effect without an intent"
        );
    }
    // Asking again is always harmless.
    let mut ended = place.run(way, std::slice::from_ref(&request));
    let answer: Receipt = serde_json::from_value(ended.answers.remove(0)).unwrap();
    assert_eq!(ended.report.receipts.len(), 1, "{way} {point}");
    assert_eq!(
        ended.report.the_receipt("a").receipt_id,
        answer.receipt_id,
        "{way} {point}"
    );
    assert_eq!(
        answer.outcome,
        Outcome::Executed,
        "{way} {point}: {:?}",
        answer.error
    );
    assert!(
        (sample.is_done)(&place),
        "{way} {point}: the receipt says more than happened"
    );
}
