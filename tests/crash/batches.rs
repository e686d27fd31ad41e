//! Batches: whatever fails or is killed, the tree is as before, or the markers name exactly the paths that differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use effectd::contracts::batch::{Batch, BatchRequest, BatchResult, Marker};
use effectd::contracts::{ActionRequest, Code, Digest, Outcome};
use effectd::internal::Runtime;
use effectd_actors::Answer;
use effectd_actors::batches::result_of;
use serde_json::{Value, json};

use crate::Test;
use crate::child::{Report, all_of};
use crate::harness::{asynchronously, side_by_side};
use crate::matrix::kill_at;
use crate::place::{PATIENCE, Place};
use crate::tools::{UNDOABLE, UNDOABLE_NEVER};

pub(crate) const TESTS: &[Test] = &[
    ("a_batch_leaves_all_or_nothing_whatever_item_fails", every_item),
    ("an_ordered_batch_stops_at_the_first_failure", ordered),
    ("a_known_denial_starts_nothing", denied),
    ("a_file_edited_meanwhile_is_named_and_left_alone", edited),
    ("too_small_a_quota_is_told_by_the_markers", quota),
    ("an_item_answered_from_memory_is_not_undone", from_memory),
    ("batches_that_cross_do_not_wait_for_each_other", crossing),
    ("a_batch_killed_anywhere_ends_in_one_true_receipt", killed),
    ("a_dry_run_of_a_batch_that_is_killed_stays_one", killed_dry),
];

const SPACE: &str = "shared:household";
const N: usize = 5;

fn place() -> Place {
    let place = Place::new();
    place.set_policy(&[UNDOABLE, UNDOABLE_NEVER]);
    fs::create_dir(place.workspace().join("deep")).unwrap();
    fs::write(place.workspace().join("old"), "as it was\n").unwrap();
    fs::write(place.workspace().join("deep/list"), "first\n").unwrap();
    place
}

/// Every file and folder of the space, but what the tests steer tools with.
fn tree(place: &Place) -> BTreeMap<String, String> {
    fn walk(root: &Path, folder: &Path, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let name = format!("workspace/{}", path.strip_prefix(root).unwrap().display());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                found.insert(name, "folder".to_owned());
                walk(root, &path, found);
            } else if kind.is_file() {
                found.insert(name, Digest::of(&fs::read(&path).unwrap()).hex());
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(&place.workspace(), &place.workspace(), &mut found);
    found
}

/// The paths at which two trees differ.
fn differ(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) -> BTreeSet<String> {
    let all = one.keys().chain(other.keys());
    all.filter(|path| one.get(*path) != other.get(*path)).cloned().collect()
}

fn item(tool: &str, params: Value) -> Value {
    json!({ "tool_id": tool, "params": params })
}

/// Five items: a new file, a file replaced, one that both before it changed, a folder, and a tool of these tests. The `k`th is `faulty`.
fn items(k: Option<usize>, faulty: Value) -> Vec<Value> {
    let write = |path: &str, text: &str| {
        item("files.write_text", json!({ "path": path, "text": text, "space_id": SPACE }))
    };
    let mut items = vec![
        write("workspace/new/a", "one\n"),
        write("workspace/old", "two\n"),
        item("files.append_text", json!({ "path": "workspace/old", "text": "three\n", "space_id": SPACE })),
        item("files.make_dir", json!({ "path": "workspace/made", "space_id": SPACE })),
        item(UNDOABLE, json!({ "name": "five" })),
    ];
    if let Some(k) = k {
        items[k] = faulty;
    }
    items
}

fn faulty(tool: &str, how: &str) -> Value {
    let mut faulty = item(tool, json!({ "name": "faulty", "how": how }));
    if how.starts_with("nap") {
        faulty["qos"] = json!({ "timeout_ms": 300 });
    }
    faulty
}

fn batch(id: &str, mode: &str, items: &[Value]) -> ActionRequest {
    let batch = json!({
        "batch_id": id, "subject_id": "agent://planner@deviceA", "space_id": SPACE, "mode": mode, "items": items,
    });
    BatchRequest::parse(batch.to_string().as_bytes()).unwrap().into_action()
}

async fn run(runtime: &Runtime, batch: ActionRequest) -> BatchResult {
    let answer = tokio::time::timeout(PATIENCE, runtime.exec(batch)).await.unwrap();
    let Answer::Done(done) = answer else { panic!("{answer:?}") };
    result_of(&**runtime.store(), &done.receipt).unwrap()
}

fn markers(result: &BatchResult) -> Vec<Marker> {
    result.items.iter().map(|item| item.marker).collect()
}

/// The paths that a result names.
fn named(result: &BatchResult) -> BTreeSet<String> {
    result.items.iter().flat_map(|item| item.paths.iter().cloned()).collect()
}

/// Every item has a receipt, and everything has ended.
async fn settled(runtime: &Runtime, result: &BatchResult) {
    assert!(result.items.iter().all(|item| item.receipt_id.is_some()), "{result:#?}");
    let report = Report::of(runtime).await;
    report.all_settled();
}

fn every_item() {
    asynchronously(async {
        for how in ["fail", "die-before", "die-after", "nap:2000"] {
            let place = place();
            let runtime = place.runtime(|_| {}).await;
            for k in 0..N {
                let start = tree(&place);
                let tool = if how == "die-after" { UNDOABLE_NEVER } else { UNDOABLE };
                let id = format!("{how}-{k}");
                let result = run(&runtime, batch(&id, "atomic", &items(Some(k), faulty(tool, how)))).await;
                let what = format!("{how} at {k}: {result:#?}");
                let left = differ(&start, &tree(&place));
                assert_eq!(named(&result), left, "{what}");
                let marks = markers(&result);
                assert!(marks[..k].iter().all(|mark| *mark == Marker::RolledBack), "{what}");
                assert!(marks[k + 1..].iter().all(|mark| *mark == Marker::NotStarted), "{what}");
                assert_eq!((marks[k], result.outcome), (Marker::RolledBack, Outcome::Reverted), "{what}");
                assert!(left.is_empty() && !result.partial, "{what}");
                settled(&runtime, &result).await;
            }
            runtime.stop().await;
        }
    });
}

fn ordered() {
    asynchronously(async {
        let place = place();
        let runtime = place.runtime(|_| {}).await;
        let result = run(&runtime, batch("o", "ordered", &items(Some(3), faulty(UNDOABLE, "fail")))).await;
        use Marker::{Committed, NotStarted, RolledBack};
        assert_eq!(
            markers(&result),
            [Committed, Committed, Committed, RolledBack, NotStarted],
            "{result:#?}"
        );
        assert_eq!((result.outcome, result.partial), (Outcome::Failed, false));
        assert_eq!(fs::read_to_string(place.workspace().join("old")).unwrap(), "two\nthree\n");
        assert!(!place.workspace().join("runs-faulty").exists(), "a failed item leaves nothing");
        settled(&runtime, &result).await;
        // The same again is the same.
        let again = run(&runtime, batch("o", "ordered", &items(Some(3), faulty(UNDOABLE, "fail")))).await;
        assert_eq!(again, result);
        runtime.stop().await;
    });
}

/// For every item that the policy denies, or that is invalid, nothing starts.
fn denied() {
    asynchronously(async {
        let place = place();
        let runtime = place.runtime(|_| {}).await;
        let start = tree(&place);
        for k in 0..N {
            for (name, wrong, outcome) in [
                // The policy of these tests has no consent for it.
                ("denied", item(crate::tools::NEVER, json!({ "name": "x" })), Outcome::DeniedPolicy),
                (
                    "invalid",
                    item("files.write_text", json!({ "path": 7, "space_id": SPACE })),
                    Outcome::Invalid,
                ),
            ] {
                let result =
                    run(&runtime, batch(&format!("{name}-{k}"), "atomic", &items(Some(k), wrong))).await;
                assert_eq!(result.outcome, outcome, "{result:#?}");
                assert_eq!(markers(&result), [Marker::NotStarted; N], "{result:#?}");
                let message = result.error.as_ref().unwrap().message.clone();
                assert!(
                    message.contains(&format!("items[{k}]")) || message.contains(&format!("/items/{k}")),
                    "{message}"
                );
                settled(&runtime, &result).await;
            }
        }
        assert_eq!(tree(&place), start);
        runtime.stop().await;
    });
}

/// Somebody changes the file of item 1 while item 4 runs, which then fails.
fn edited() {
    asynchronously(async {
        let place = place();
        let runtime = place.runtime(|_| {}).await;
        let start = tree(&place);
        let marker = place.marker();
        let asked = batch("e", "atomic", &items(Some(4), faulty(UNDOABLE, "busy-at-gate")));
        let editing = async {
            let waiting = tokio::task::spawn_blocking(move || marker.recv_timeout(PATIENCE));
            assert_eq!(waiting.await.unwrap().as_deref(), Ok("waiting"));
            fs::write(place.workspace().join("new/a"), "mine\n").unwrap();
            place.open_gate();
        };
        let (result, ()) = tokio::join!(run(&runtime, asked), editing);
        assert_eq!(result.items[0].marker, Marker::RollbackFailed, "{result:#?}");
        assert!(markers(&result)[1..4].iter().all(|mark| *mark == Marker::RolledBack), "{result:#?}");
        // What changes while a tool runs may be its doing.
        assert_eq!(result.items[4].marker, Marker::RollbackFailed, "{result:#?}");
        assert!(result.partial && result.error.as_ref().unwrap().code == Code::BatchIncomplete);
        assert_eq!(fs::read_to_string(place.workspace().join("new/a")).unwrap(), "mine\n");
        let left = differ(&start, &tree(&place));
        assert_eq!(left.len(), 2, "its folder stays, too: {left:?}");
        let mut named = named(&result);
        named.retain(|path| !path.contains("control-"));
        assert_eq!(named, left, "{result:#?}");
        settled(&runtime, &result).await;
        runtime.stop().await;
    });
}

/// The pre-images of a batch do not fit into the quota.
fn quota() {
    asynchronously(async {
        let place = place();
        let write =
            |path: &str| item("files.write_text", json!({ "path": path, "text": "x", "space_id": SPACE }));
        let mut all = Vec::new();
        for n in 0..4 {
            fs::write(place.workspace().join(format!("large-{n}")), vec![b'a' + n; 400_000]).unwrap();
            all.push(write(&format!("workspace/large-{n}")));
        }
        all.push(faulty(UNDOABLE, "fail"));
        let start = tree(&place);
        let runtime = place.runtime(|config| config.store.blob_quota_bytes = 1_000_000).await;
        let result = run(&runtime, batch("q", "atomic", &all)).await;
        assert_eq!(named(&result), differ(&start, &tree(&place)), "{result:#?}");
        assert_eq!(result.partial, !named(&result).is_empty(), "{result:#?}");
        settled(&runtime, &result).await;
        runtime.stop().await;
    });
}

fn from_memory() {
    asynchronously(async {
        let place = place();
        let runtime = place.runtime(|_| {}).await;
        let first = items(None, Value::Null).swap_remove(0);
        let done = run(&runtime, batch("first", "atomic", std::slice::from_ref(&first))).await;
        assert_eq!((done.outcome, markers(&done)), (Outcome::Executed, vec![Marker::Committed]));
        let start = tree(&place);
        let again = run(&runtime, batch("again", "atomic", &[first, faulty(UNDOABLE, "fail")])).await;
        assert_eq!(markers(&again), [Marker::Committed, Marker::RolledBack], "{again:#?}");
        assert_eq!(again.items[0].receipt_id, done.items[0].receipt_id);
        assert_eq!(tree(&place), start);
        // A single action of the same id and content is not the batch's, either.
        let asked =
            batch("alone", "atomic", &[items(None, Value::Null).swap_remove(1), faulty(UNDOABLE, "fail")]);
        let alone = Batch::of_action(&asked).unwrap().item(&asked, 0).unwrap();
        let Answer::Done(_) = runtime.exec(alone).await else { panic!("it waits for nobody") };
        let start = tree(&place);
        let result = run(&runtime, asked).await;
        assert_eq!(markers(&result), [Marker::Committed, Marker::RolledBack], "{result:#?}");
        assert_eq!(tree(&place), start);
        runtime.stop().await;
    });
}

/// Each of many batches changes the same files, half of them in the other order.
fn crossing() {
    asynchronously(async {
        let place = place();
        let runtime = place.runtime(|_| {}).await;
        let write = |path: &str, text: &str| {
            item("files.write_text", json!({ "path": path, "text": text, "space_id": SPACE }))
        };
        let asked = (0..8).map(|n| {
            let text = format!("{n}\n");
            let mut items =
                vec![write("workspace/x", &text), write("workspace/y", &text), write("workspace/z", &text)];
            if n % 2 == 1 {
                items.reverse();
            }
            batch(&format!("cross-{n}"), "atomic", &items)
        });
        let all = asked.map(async |asked| assert_eq!(run(&runtime, asked).await.outcome, Outcome::Executed));
        all_of(all.collect()).await;
        let text = |name: &str| fs::read_to_string(place.workspace().join(name)).unwrap();
        assert_eq!((text("x"), text("y")), (text("y"), text("z")), "a batch is whole");
        runtime.stop().await;
    });
}

/// Where the process is killed, once or twice. Items run at `executor.*:1` to `:4`, the last of them fails; then four are undone.
const KILLS: [&[&str]; 20] = [
    &["batch.begun:1"],
    &["idempotency.after_claim:2"],
    &["executor.begin:2"],
    &["executor.after_prepare:1"],
    &["executor.before_child:2"],
    &["executor.after_child:1"],
    &["executor.after_child:3"],
    &["recorder.before_commit:2"],
    &["recorder.after_commit:1"],
    &["recorder.after_commit:3"],
    &["recorder.before_commit:4"],
    &["batch.stopped:1"],
    &["executor.after_child:5"],
    &["recorder.before_commit:6"],
    &["recorder.after_commit:7"],
    &["batch.undone:1"],
    &["executor.after_child:2", "batch.begun:1"],
    &["executor.after_child:3", "executor.before_child:1"],
    &["batch.stopped:1", "executor.after_child:1"],
    &["recorder.after_commit:6", "batch.undone:1"],
];

fn killed() {
    let mut all = vec![];
    for kills in KILLS {
        all.push((kills, Some(3)));
    }
    // A batch that succeeds, killed on its way.
    for kills in [&["executor.after_child:3"] as &[_], &["recorder.after_commit:5"], &["executor.end:6"]] {
        all.push((kills, None));
    }
    side_by_side(&all, |(kills, k)| {
        let place = place();
        let start = tree(&place);
        let asked = json!(batch("b", "atomic", &items(*k, faulty(UNDOABLE, "fail"))));
        for point in *kills {
            let (visited, said) = kill_at(&place, "exec", point, &asked);
            assert!(visited, "{kills:?}: {point} is not on the way: {said:?}");
        }
        let ended = place.run("exec", std::slice::from_ref(&asked));
        let report = &ended.report;
        let receipt = report.the_receipt("b");
        report.all_settled();
        let left = differ(&start, &tree(&place));
        let marks = receipt.outputs["items"].as_array().unwrap().clone();
        let is = |marker: &str| marks.iter().filter(|mark| mark["marker"] == marker).count();
        match k {
            Some(_) => {
                assert!(left.is_empty(), "{kills:?}: {left:?} {receipt:#?}");
                assert_eq!(receipt.outcome, Outcome::Reverted, "{kills:?}: {receipt:#?}");
                assert_eq!((is("rolled_back"), is("not_started")), (4, 1), "{kills:?}: {receipt:#?}");
            }
            None => {
                assert_eq!(receipt.outcome, Outcome::Executed, "{kills:?}: {receipt:#?}");
                assert_eq!(is("committed"), N, "{kills:?}");
                assert_eq!(
                    fs::read_to_string(place.workspace().join("old")).unwrap(),
                    "two\nthree\n",
                    "{kills:?}"
                );
                assert_eq!(place.effects("five"), 1, "{kills:?}");
            }
        }
    });
}

/// A dry run that is killed does not run when it comes again.
fn killed_dry() {
    let place = place();
    let start = tree(&place);
    let mut asked = batch("d", "atomic", &items(None, Value::Null));
    asked.dry_run = true;
    let asked = json!(asked);
    for point in ["idempotency.after_claim:1", "recorder.before_commit:1"] {
        assert!(kill_at(&place, "exec", point, &asked).0, "{point}");
    }
    let ended = place.run("exec", std::slice::from_ref(&asked));
    assert_eq!(ended.report.the_receipt("d").outcome, Outcome::DryRun);
    ended.report.all_settled();
    assert_eq!(tree(&place), start);
}
