//! Every built-in tool, killed at every point of its way, by `exec` and by `submit`.

use effectd::adapters;
use effectd::contracts::{Effects, Outcome, Receipt};
use serde_json::{Value, json};

use crate::Test;
use crate::harness::side_by_side;
use crate::matrix::{Stood, WAY, kill_at};
use crate::place::Place;

pub(crate) const TESTS: &[Test] = &[("every_tool_killed_anywhere_ends_in_one_true_receipt", every_tool)];

/// How a tool is called, on a prepared workspace, and how its effect is seen. A registered tool without a sample fails
/// the test.
pub(crate) struct Sample {
    pub(crate) tool: &'static str,
    pub(crate) ready: fn(&Place),
    pub(crate) params: fn(&Place) -> Value,
    /// Whether the workspace is as it was before the call; true again after an undo.
    before: fn(&Place) -> bool,
    /// Whether there is exactly the effect of one run; `None` for tools without an effect.
    pub(crate) is_done: Option<fn(&Place) -> bool>,
    outcome: Outcome,
}

const PLAIN: Sample = Sample {
    tool: "",
    ready: |place| put(place, "note.txt", "hello\n"),
    params: |_| json!({ "path": "workspace/note.txt", "space_id": SPACE }),
    before: |place| holds(place, "note.txt", "hello\n"),
    is_done: None,
    outcome: Outcome::Executed,
};

pub(crate) const SPACE: &str = "shared:household";
const PATCH: &str = "--- a/note.txt\n+++ b/note.txt\n@@ -1 +1 @@\n-hello\n+good morning\n";

/// More than fits into one message, so that it is stored and restored in pieces.
fn long() -> String {
    (0..20_000).map(|number| format!("line {number}\n")).collect()
}

const LONG: Sample = Sample {
    ready: |place| put(place, "note.txt", &long()),
    before: |place| holds(place, "note.txt", &long()),
    ..PLAIN
};

pub(crate) static SAMPLES: [Sample; 25] = [
    Sample {
        tool: "files.write_text",
        params: |_| json!({ "path": "workspace/deep/note.txt", "text": "hello", "space_id": SPACE }),
        is_done: Some(|place| holds(place, "deep/note.txt", "hello")),
        ..PLAIN
    },
    Sample {
        tool: "files.append_text",
        params: |_| json!({ "path": "workspace/note.txt", "text": "again\n", "space_id": SPACE }),
        is_done: Some(|place| holds(place, "note.txt", "hello\nagain\n")),
        ..PLAIN
    },
    Sample {
        tool: "files.edit_text",
        params: |_| json!({ "path": "workspace/note.txt", "find": "l", "replace": "ll", "count": 2, "space_id": SPACE }),
        is_done: Some(|place| holds(place, "note.txt", "hellllo\n")),
        ..PLAIN
    },
    Sample {
        tool: "files.apply_patch",
        params: |_| json!({ "patch": PATCH, "space_id": SPACE }),
        is_done: Some(|place| holds(place, "note.txt", "good morning\n")),
        ..PLAIN
    },
    Sample {
        tool: "files.make_dir",
        params: |_| json!({ "path": "workspace/new/folder", "space_id": SPACE }),
        is_done: Some(|place| place.workspace().join("new/folder").is_dir()),
        ..PLAIN
    },
    Sample {
        tool: "files.copy",
        params: |_| json!({ "from_path": "workspace/note.txt", "to_path": "workspace/b/copy", "space_id": SPACE }),
        is_done: Some(|place| holds(place, "b/copy", "hello\n") && holds(place, "note.txt", "hello\n")),
        ..PLAIN
    },
    Sample {
        tool: "files.move",
        params: |_| json!({ "from_path": "workspace/note.txt", "to_path": "workspace/b/there", "space_id": SPACE }),
        is_done: Some(|place| {
            holds(place, "b/there", "hello\n") && !place.workspace().join("note.txt").exists()
        }),
        ..PLAIN
    },
    Sample {
        tool: "files.move",
        ready: |place| {
            std::fs::create_dir_all(place.workspace().join("house/room")).unwrap();
            put(place, "house/room/note.txt", "hello\n");
        },
        params: |_| json!({ "from_path": "workspace/house", "to_path": "workspace/b/there", "space_id": SPACE }),
        before: |place| holds(place, "house/room/note.txt", "hello\n"),
        is_done: Some(|place| {
            holds(place, "b/there/room/note.txt", "hello\n") && !place.workspace().join("house").exists()
        }),
        ..PLAIN
    },
    Sample {
        tool: "files.write_text",
        params: |_| json!({ "path": "workspace/note.txt", "text": "short", "space_id": SPACE }),
        is_done: Some(|place| holds(place, "note.txt", "short")),
        ..LONG
    },
    Sample {
        tool: "files.undo",
        params: |place| {
            let params = json!({ "path": "workspace/note.txt", "text": "other", "space_id": SPACE });
            let receipt = place.run("exec", &[request("w", "files.write_text", &params)]).answers.remove(0);
            json!({ "receipt_id": receipt["receipt_id"], "space_id": SPACE })
        },
        before: |place| holds(place, "note.txt", "other"),
        is_done: Some(|place| holds(place, "note.txt", &long())),
        ..LONG
    },
    Sample {
        tool: "files.undo",
        params: |place| {
            let request = request(
                "w",
                "files.write_text",
                &json!({ "path": "workspace/note.txt", "text": "other", "space_id": SPACE }),
            );
            let receipt = place.run("exec", &[request]).answers.remove(0);
            json!({ "receipt_id": receipt["receipt_id"], "space_id": SPACE })
        },
        before: |place| holds(place, "note.txt", "other"),
        is_done: Some(|place| holds(place, "note.txt", "hello\n")),
        ..PLAIN
    },
    Sample {
        tool: "files.archive",
        params: |_| json!({ "from_path": "workspace/note.txt", "to_path": "workspace/b/note.zip", "space_id": SPACE }),
        is_done: Some(|place| {
            std::fs::read(place.workspace().join("b/note.zip")).is_ok_and(|bytes| bytes.starts_with(b"PK"))
        }),
        ..PLAIN
    },
    Sample {
        tool: "files.extract",
        params: |place| {
            let params = json!({ "from_path": "workspace/note.txt", "to_path": "workspace/note.tgz", "space_id": SPACE });
            place.run("exec", &[request("p", "files.archive", &params)]);
            json!({ "from_path": "workspace/note.tgz", "to_path": "workspace/b/out", "space_id": SPACE })
        },
        is_done: Some(|place| holds(place, "b/out/note.txt", &long())),
        ..LONG
    },
    Sample {
        tool: "artifact.put",
        params: |_| json!({ "path": "workspace/note.txt", "space_id": SPACE }),
        ..PLAIN
    },
    Sample {
        tool: "artifact.get",
        params: |place| {
            let request = request("p", "artifact.put", &json!({ "text": "kept", "space_id": SPACE }));
            let receipt = place.run("exec", &[request]).answers.remove(0);
            let id = &receipt["outputs"]["artifact_ids"][0];
            json!({ "artifact_id": id, "to_path": "workspace/again.txt", "space_id": SPACE })
        },
        is_done: Some(|place| holds(place, "again.txt", "kept")),
        ..PLAIN
    },
    Sample {
        tool: "artifact.get",
        params: |place| {
            let request =
                request("p", "artifact.put", &json!({ "path": "workspace/note.txt", "space_id": SPACE }));
            let receipt = place.run("exec", &[request]).answers.remove(0);
            let id = &receipt["outputs"]["artifact_ids"][0];
            json!({ "artifact_id": id, "to_path": "workspace/deep/again.txt", "space_id": SPACE })
        },
        is_done: Some(|place| holds(place, "deep/again.txt", &long())),
        ..LONG
    },
    Sample { tool: "files.read_text", ..PLAIN },
    Sample { tool: "files.stat", ..PLAIN },
    Sample { tool: "files.list", params: |_| json!({ "path": "workspace", "space_id": SPACE }), ..PLAIN },
    Sample {
        tool: "files.search",
        params: |_| json!({ "path": "workspace", "glob": "*.txt", "space_id": SPACE }),
        ..PLAIN
    },
    Sample {
        tool: "sqlite.query",
        ready: |place| {
            put(place, "note.txt", "hello\n");
            std::fs::write(place.workspace().join("empty.db"), empty_database()).unwrap();
        },
        params: |_| json!({ "path": "workspace/empty.db", "sql": "SELECT 1", "space_id": SPACE }),
        ..PLAIN
    },
    Sample { tool: "core.diagnose_error", params: |_| json!({}), ..PLAIN },
    // Wherever it is killed, there is one receipt, and only notifications that a receipt names are shown.
    Sample { tool: "notify.local", params: |_| json!({ "title": "hello", "space_id": SPACE }), ..PLAIN },
    // These two have risk tiers that always need an approval: wherever they are killed, they never happen.
    Sample { tool: "files.delete", outcome: Outcome::DeniedPolicy, ..PLAIN },
    Sample {
        tool: "command.run",
        params: |_| json!({ "argv": ["rm", "note.txt"], "space_id": SPACE }),
        outcome: Outcome::DeniedPolicy,
        ..PLAIN
    },
];

/// The smallest database: one page, no table.
fn empty_database() -> Vec<u8> {
    let mut page = vec![0; 512];
    page[..16].copy_from_slice(b"SQLite format 3\0");
    // Pages of 512 bytes, formats 1, payload fractions, one change, one page.
    page[16..24].copy_from_slice(&[2, 0, 1, 1, 0, 64, 32, 32]);
    page[27] = 1;
    page[31] = 1;
    // Schema format 4, UTF-8, valid for the one change; then an empty leaf whose cells begin at the page's end.
    page[47] = 4;
    page[59] = 1;
    page[95] = 1;
    page[100] = 13;
    page[105..107].copy_from_slice(&512_u16.to_be_bytes());
    page
}

fn put(place: &Place, name: &str, text: &str) {
    std::fs::write(place.workspace().join(name), text).unwrap();
}

fn holds(place: &Place, name: &str, wanted: &str) -> bool {
    std::fs::read_to_string(place.workspace().join(name)).is_ok_and(|text| text == wanted)
}

pub(crate) fn request(id: &str, tool: &str, params: &Value) -> Value {
    json!({
        "action_id": id, "subject_id": "agent://planner@deviceA", "space_id": SPACE,
        "tool_id": tool, "params": params, "policy_ctx": { "actor": "alice", "device": "phone1" },
    })
}

pub(crate) fn samples_of(tool: &str) -> impl Iterator<Item = &'static Sample> {
    SAMPLES.iter().filter(move |sample| sample.tool == tool)
}

struct Case {
    sample: &'static Sample,
    way: &'static str,
    point: &'static str,
    stood: Option<Stood>,
}

/// Points where it matters which tool runs: before and after the effect. One tool is killed at all the others as well.
const TELLING: [&str; 3] = ["executor.after_prepare:1", "executor.after_child:1", "recorder.before_commit:1"];

fn every_tool() {
    let mut cases = Vec::new();
    for tool in adapters::all() {
        let id = tool.spec().tool_id;
        assert!(samples_of(id.as_str()).next().is_some(), "{id} has no sample here");
    }
    for (number, sample) in SAMPLES.iter().enumerate() {
        for way in ["exec", "submit"] {
            let by_bus = |point: &str| point.starts_with("door.") || point.starts_with("intake.");
            let everywhere = number == 0;
            let points = WAY.iter().filter(|(point, _)| !point.starts_with("tool."));
            let points = points.filter(|(point, _)| {
                let told = sample.is_done.is_some() && way == "exec" && TELLING.contains(point);
                let once = way == "exec" && *point == "recorder.before_commit:1";
                everywhere || told || once
            });
            cases.extend(
                points.filter(|(point, _)| way == "submit" || !by_bus(point)).map(|(point, stood)| Case {
                    sample,
                    way,
                    point,
                    stood: *stood,
                }),
            );
        }
    }
    side_by_side(&cases, run);
}

fn run(case: &Case) {
    let Case { sample, way, point, stood } = case;
    let place = Place::new();
    place.set_policy(&[]);
    (sample.ready)(&place);
    let request = request("a", sample.tool, &(sample.params)(&place));
    // These start from the effect of an earlier action.
    let before = usize::from(["files.undo", "artifact.get", "files.extract"].contains(&sample.tool));
    let (visited, _) = kill_at(&place, way, point, &request);
    assert!(visited, "{} by {way}: {point} was not reached", sample.tool);
    if stood.is_some_and(|stood| stood < Stood::Claimed) {
        assert!(
            !sample.is_done.is_some_and(|is_done| is_done(&place)),
            "{way} {point}: an effect without an intent"
        );
    }
    // Asking again is always harmless.
    let mut ended = place.run(way, std::slice::from_ref(&request));
    let answer: Receipt = serde_json::from_value(ended.answers.remove(0)).unwrap();
    assert_eq!(ended.report.receipts.len(), before + 1, "{way} {point}");
    assert_eq!(ended.report.the_receipt("a").receipt_id, answer.receipt_id, "{way} {point}");
    assert_eq!(answer.outcome, sample.outcome, "{} {way} {point}: {:?}", sample.tool, answer.error);
    match sample.is_done {
        Some(is_done) => {
            assert!(is_done(&place), "{} {way} {point}: the receipt says more than happened", sample.tool);
            let Effects::Observed(observed) = &answer.effects else {
                panic!("{} {way} {point}: {:?}", sample.tool, answer.effects);
            };
            assert!(observed.undoable, "{} {way} {point}: {observed:?}", sample.tool);
            if *way == "exec" && TELLING[..2].contains(point) {
                can_be_undone(&place, &answer, case);
            }
        }
        None => assert!((sample.before)(&place), "{} {way} {point}", sample.tool),
    }
}

/// Wherever it was killed, the state before is known, and undo restores it.
fn can_be_undone(place: &Place, receipt: &Receipt, case: &Case) {
    let undo = request("undo", "files.undo", &json!({ "receipt_id": receipt.receipt_id, "space_id": SPACE }));
    let undone: Receipt = serde_json::from_value(place.run("exec", &[undo]).answers.remove(0)).unwrap();
    let told = format!("{} {} {}: {:?}", case.sample.tool, case.way, case.point, undone.error);
    assert_eq!(undone.outcome, Outcome::Executed, "{told}");
    assert!((case.sample.before)(place), "{told}");
    for made in ["deep", "new", "b"] {
        assert!(!place.workspace().join(made).exists(), "{told}: {made} was left");
    }
}
