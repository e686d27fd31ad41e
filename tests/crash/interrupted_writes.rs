//! Writes that are interrupted inside the sandbox: the draft is written and not yet renamed.

use std::collections::BTreeMap;
use std::path::Path;

use effectd::contracts::{Effects, Outcome, Receipt};
use serde_json::json;

use crate::Test;
use crate::every_tool::{Sample, request, samples_of};
use crate::harness::{side_by_side, until_blocking};
use crate::place::{Order, Place};

pub(crate) const TESTS: &[Test] = &[
    ("a_kill_before_the_rename_changes_nothing_and_leaves_no_draft", before_the_rename),
    ("a_timeout_before_the_rename_leaves_no_draft", out_of_time),
    ("a_new_folder_that_cannot_be_listed_whole_is_incomplete", odd_name),
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
            // On a machine that stalls, the deadline may pass before the tool runs at all; then it is asked for again.
            !answer.attempts.is_empty()
        });
        assert!(was_run, "{tool} was never run");
    });
}

/// Every file of the space with its content, except the control files of these tests. While a tool runs, a file may be removed
/// between being listed and being read.
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
    // A folder that is a draft counts as one, with everything in it.
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
    let order = Order { mode: "exec", requests: vec![request.clone()], stop_at: None };
    let process = place.start(&order);
    let is_written = || all(&place).keys().any(|name| is_draft(name));
    until_blocking(&format!("{tool} writes a draft"), is_written);
    process.kill_all();
    let mut killed = all(&place);
    killed.retain(|name, _| !is_draft(name));
    assert_eq!(killed, before, "{tool} was killed before it had put anything into place");
    place.stop_tools(None);

    let mut ended = place.run("exec", &[request]);
    let answer: Receipt = serde_json::from_value(ended.answers.remove(0)).unwrap();
    assert_eq!(answer.outcome, Outcome::Executed, "{tool}: {:?}", answer.error);
    assert!(sample.is_done.is_some_and(|is_done| is_done(&place)), "{tool}");
    // No tool did that, so the receipt says that effectd did.
    assert!(!answer.cleaned_up.is_empty(), "{tool}");
    let left: Vec<_> = all(&place).into_keys().filter(|name| is_draft(name)).collect();
    assert_eq!(left, [""; 0], "{tool} left a draft behind");
}

/// An archive is unpacked, and before the next start somebody adds a name that no tool takes.
fn odd_name() {
    let sample = samples_of("files.extract").next().unwrap();
    let place = Place::new();
    place.set_policy(&[]);
    (sample.ready)(&place);
    let request = request("a", sample.tool, &(sample.params)(&place));
    let stop_at = Some("executor.after_child:1".to_owned());
    let process = place.start(&Order { mode: "exec", requests: vec![request.clone()], stop_at });
    assert!(process.stopped(&mut Vec::new()), "it was unpacked");
    process.kill();
    std::fs::write(place.workspace().join("b/out/a\nb"), "odd").unwrap();

    let ended = place.run("wait", &[request]);
    let receipt = ended.report.the_receipt("a");
    assert_eq!(receipt.outcome, Outcome::Executed, "{:?}", receipt.error);
    let Effects::Observed(observed) = &receipt.effects else { panic!("{:?}", receipt.effects) };
    let changed: Vec<_> = observed.changes.iter().map(|change| change.path.as_str()).collect();
    assert_eq!(changed, ["workspace/b", "workspace/b/out", "workspace/b/out/note.txt"]);
    assert!(observed.incomplete && !observed.undoable, "{observed:?}");
}
