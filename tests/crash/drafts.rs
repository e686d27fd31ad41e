//! Tools that are killed inside of the sandbox, when the new content is written and not yet in its place.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use effectd::contracts::{Outcome, Receipt};
use serde_json::json;

use crate::Test;
use crate::harness::side_by_side;
use crate::place::{Order, PATIENCE, Place};
use crate::registered::{Sample, request, samples_of};

pub(crate) const TESTS: &[Test] = &[
    (
        "a_tool_that_is_killed_before_the_rename_leaves_all_as_it_was_and_no_draft_behind",
        before_the_rename,
    ),
    (
        "a_tool_whose_time_is_over_before_the_rename_leaves_all_as_it_was_and_no_draft_behind",
        out_of_time,
    ),
];

const WRITING: [&str; 9] = [
    "files.write_text",
    "files.append_text",
    "files.edit_text",
    "files.apply_patch",
    "files.copy",
    "files.undo",
    "artifact.get",
    "files.archive",
    "files.extract",
];

fn before_the_rename() {
    let samples: Vec<&Sample> = WRITING.iter().flat_map(|tool| samples_of(tool)).collect();
    side_by_side(&samples, |sample| run(sample));
}

fn out_of_time() {
    let samples: Vec<&Sample> = WRITING.iter().flat_map(|tool| samples_of(tool)).collect();
    side_by_side(&samples, |sample| {
        let tool = sample.tool;
        let place = Place::new();
        place.set_policy(&[]);
        (sample.ready)(&place);
        let params = (sample.params)(&place);
        let before = all(&place);
        place.stop_tools(Some("before_rename"));
        let was_run = (0..10).any(|nth| {
            let mut request = request(&format!("a-{nth}"), tool, &params);
            request["qos"] = json!({ "timeout_ms": 700, "max_retries": 0 });
            let mut ended = place.run("exec", &[request]);
            let answer: Receipt = serde_json::from_value(ended.answers.remove(0)).unwrap();
            assert_ne!(answer.outcome, Outcome::Executed, "{tool}");
            assert_eq!(all(&place), before, "{tool}");
            // On a machine that stalls its time may be over before it is run at all; then it is asked for again.
            !answer.attempts.is_empty()
        });
        assert!(was_run, "{tool} was never run");
    });
}

/// Every file of the space with its content, but not those by which the test talks to tools. While a tool is at work, what was listed
/// may be gone when it is looked at.
fn files(folder: &Path, into: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.path().display().to_string();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            files(&entry.path(), into);
        } else if !name.contains("/control-") {
            into.insert(name, std::fs::read_to_string(entry.path()).unwrap_or_default());
        }
    }
}

fn all(place: &Place) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    files(&place.workspace(), &mut found);
    found
}

fn is_draft(name: &str) -> bool {
    // A folder that is being made is one with all that is in it.
    name.contains(".draft")
}

fn run(sample: &Sample) {
    let tool = sample.tool;
    let place = Place::new();
    place.set_policy(&[]);
    (sample.ready)(&place);
    let request = request("a", tool, &(sample.params)(&place));
    let before = all(&place);
    place.stop_tools(Some("before_rename"));
    let order = Order {
        mode: "exec",
        requests: vec![request.clone()],
        stop_at: None,
    };
    let process = place.start(&order);
    // A file that appears has no handle to wait at.
    let begun = Instant::now();
    while !all(&place).keys().any(|name| is_draft(name)) {
        assert!(begun.elapsed() < PATIENCE, "{tool} writes no draft");
        std::thread::sleep(Duration::from_millis(2));
    }
    process.kill();
    let mut killed = all(&place);
    killed.retain(|name, _| !is_draft(name));
    assert_eq!(
        killed, before,
        "{tool} was killed before it had put anything into place"
    );
    place.stop_tools(None);

    let mut ended = place.run("exec", &[request]);
    let answer: Receipt = serde_json::from_value(ended.answers.remove(0)).unwrap();
    assert_eq!(answer.outcome, Outcome::Executed, "{tool}: {:?}", answer.error);
    assert!(sample.is_done.is_some_and(|is_done| is_done(&place)), "{tool}");
    let left: Vec<_> = all(&place).into_keys().filter(|name| is_draft(name)).collect();
    assert_eq!(left, [""; 0], "{tool} left a draft behind");
}
