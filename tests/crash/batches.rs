//! Batches: whatever fails or is killed, the tree is as before, or the markers name exactly the paths that differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use effectd::contracts::batch::{Batch, BatchRequest, BatchResult, Marker};
use effectd::contracts::{ActionRequest, Code, Digest, ManualClock, Outcome, Timestamp};
use effectd::internal::{Config, Runtime};
use effectd_actors::approvals::Approve;
use effectd_actors::approvals::decide::approve;
use effectd_actors::batches::result_of;
use effectd_actors::failpoint::{Fault, Trap, arm};
use effectd_actors::operator::dead_letters::{self, IfUnknown, Now};
use effectd_actors::{Answer, Decider};
use serde_json::{Value, json};

use crate::Test;
use crate::child::{Report, all_of};
use crate::harness::{asynchronously, side_by_side, until};
use crate::matrix::kill_at;
use crate::place::{Order, PATIENCE, Place, SHORT_LEASE, parsed, request};
use crate::tools::{UNDOABLE, UNDOABLE_NEVER, UNDOABLE_ONLY};

pub(crate) const TESTS: &[Test] = &[
    ("a_batch_leaves_all_or_nothing_whatever_item_fails", every_item),
    ("an_ordered_batch_stops_at_the_first_failure", ordered),
    ("a_known_denial_starts_nothing", denied),
    ("a_file_edited_meanwhile_is_named_and_left_alone", edited),
    ("too_small_a_quota_is_told_by_the_markers", quota),
    ("an_item_answered_from_memory_is_not_undone", from_memory),
    ("what_a_batch_has_undone_answers_no_repeat", undone_again),
    ("equal_items_of_a_batch_have_one_fate", equal_items),
    ("an_id_that_is_taken_starts_nothing", taken),
    ("a_policy_that_is_tightened_between_two_items_rolls_back", tightened),
    ("batches_that_cross_do_not_wait_for_each_other", crossing),
    ("a_batch_that_is_stopped_or_killed_goes_on_without_a_tool", without_tool),
    ("the_time_of_a_batch_goes_on_while_it_is_dead", late),
    ("a_batch_killed_anywhere_ends_in_one_true_receipt", killed),
    ("a_batch_killed_at_any_item_ends_in_one_true_receipt", killed_at_every_item),
    ("a_batch_killed_while_it_is_refused_is_refused", killed_refused),
    ("an_approved_batch_that_is_killed_needs_no_second_approval", killed_approved),
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
            if how == "die-after" {
                letters(&runtime).await;
            }
            runtime.stop().await;
        }
    });
}

/// The letter of an item whose outcome is unknown is not requeued, whatever a person found out: its batch has ended.
async fn letters(runtime: &Runtime) {
    let (store, now) = (&**runtime.store(), Timestamp::now());
    let numbers: Vec<_> =
        store.letters(None, 0, 100).unwrap().letters.iter().map(|letter| letter.letter).collect();
    assert_eq!(numbers.len(), N, "one for each item that died after its effect");
    for unknown in [IfUnknown::Leave, IfUnknown::Repeat] {
        for (_, now) in dead_letters::requeue(store, &numbers, now, unknown).unwrap() {
            assert!(matches!(now, Now::Left(_)), "{now:?}");
        }
    }
    let purged = dead_letters::purge(store, &numbers).unwrap();
    assert!(purged.iter().all(|(_, now)| *now == Now::Purged), "{purged:?}");
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

/// The pre-images of a batch do not fit into the quota, not even beside those that it has pinned.
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
        let runtime = place.runtime(|config| config.store.blob_quota_bytes = 500_000).await;
        let result = run(&runtime, batch("q", "atomic", &all)).await;
        let left = differ(&start, &tree(&place));
        assert!(!left.is_empty() && left.len() < 4, "some fit: {left:?}");
        assert_eq!(named(&result), left, "{result:#?}");
        assert!(result.partial && markers(&result).contains(&Marker::RollbackFailed), "{result:#?}");
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

/// The same again, with keys of the caller and without, once it can succeed.
fn undone_again() {
    asynchronously(async {
        let place = place();
        let runtime = place.runtime(|_| {}).await;
        let start = tree(&place);
        let keyed = |key: &str| {
            let mut all = items(None, Value::Null)[..2].to_vec();
            for (n, item) in all.iter_mut().enumerate().filter(|_| !key.is_empty()) {
                item["idempotency_key"] = json!(format!("{key}-{n}"));
            }
            all
        };
        for key in ["mine", ""] {
            let all = keyed(key);
            let failing = [all.as_slice(), &[faulty(UNDOABLE, "fail")]].concat();
            let failed = run(&runtime, batch(&format!("failed-{key}"), "atomic", &failing)).await;
            assert_eq!(markers(&failed), [Marker::RolledBack; 3], "{failed:#?}");
            assert_eq!(tree(&place), start);
            let again = run(&runtime, batch(&format!("again-{key}"), "atomic", &all)).await;
            assert_eq!(again.outcome, Outcome::Executed, "{again:#?}");
            assert!(again.items.iter().all(|item| item.reason.is_none()), "it was done now: {again:#?}");
            assert_eq!(fs::read_to_string(place.workspace().join("old")).unwrap(), "two\n");
            // From now on it is a repeat.
            let repeat = run(&runtime, batch(&format!("repeat-{key}"), "atomic", &all)).await;
            let reasons: Vec<_> = repeat.items.iter().map(|item| item.reason.as_deref()).collect();
            assert_eq!(reasons, [Some("done before this batch"); 2], "{repeat:#?}");
            fs::remove_dir_all(place.workspace().join("new")).unwrap();
            fs::write(place.workspace().join("old"), "as it was\n").unwrap();
        }
        runtime.stop().await;
    });
}

fn equal_items() {
    asynchronously(async {
        let place = place();
        let runtime = place.runtime(|_| {}).await;
        let start = tree(&place);
        let one = items(None, Value::Null).swap_remove(0);
        let failing = [one.clone(), one.clone(), faulty(UNDOABLE, "fail")];
        let failed = run(&runtime, batch("failed", "atomic", &failing)).await;
        assert_eq!(markers(&failed), [Marker::RolledBack; 3], "{failed:#?}");
        assert_eq!(failed.items[1].reason.as_deref(), Some("the same as items[0]"));
        assert_eq!(tree(&place), start);
        let done = run(&runtime, batch("done", "atomic", &[one.clone(), one])).await;
        assert_eq!(markers(&done), [Marker::Committed; 2], "{done:#?}");
        assert_eq!(done.items[1].reason.as_deref(), Some("the same as items[0]"));
        settled(&runtime, &done).await;
        runtime.stop().await;
    });
}

/// Another action has the id of an item; and nobody takes that of an undo.
fn taken() {
    asynchronously(async {
        let place = place();
        let runtime = place.runtime(|_| {}).await;
        let undo = runtime.exec(parsed(&request("taken/0/undo", UNDOABLE))).await;
        let Answer::Refused(failure) = undo else { panic!("{undo:?}") };
        assert_eq!(failure.code, Code::Malformed, "{failure}");
        let mut single = request("x", UNDOABLE);
        single["action_id"] = json!("taken/3");
        let Answer::Done(_) = runtime.exec(parsed(&single)).await else { panic!("it waits for nobody") };
        let start = tree(&place);
        let result = run(&runtime, batch("taken", "atomic", &items(None, Value::Null))).await;
        assert_eq!((result.outcome, &markers(&result)[..]), (Outcome::Invalid, &[Marker::NotStarted; N][..]));
        let error = result.error.as_ref().unwrap();
        assert!(error.code == Code::ActionConflict && error.message.contains("items[3]"), "{error}");
        assert_eq!(tree(&place), start);
        runtime.stop().await;
    });
}

/// While item 1 runs, the policy takes item 2's tool away.
fn tightened() {
    asynchronously(async {
        let place = place();
        let runtime = place.runtime(|_| {}).await;
        let start = tree(&place);
        let mut all = items(None, Value::Null)[..3].to_vec();
        all[1] = item(UNDOABLE, json!({ "name": "slow", "how": "nap:3000" }));
        all[2] = item(UNDOABLE_NEVER, json!({ "name": "later" }));
        let tightening = async {
            until("item 1 runs", || place.runs("slow") == 1).await;
            place.set_policy(&[UNDOABLE]);
            runtime.reload_policy().unwrap();
        };
        let (result, ()) = tokio::join!(run(&runtime, batch("t", "atomic", &all)), tightening);
        use Marker::{NotStarted, RolledBack};
        assert_eq!(markers(&result), [RolledBack, RolledBack, NotStarted], "{result:#?}");
        assert_eq!((result.outcome, tree(&place)), (Outcome::Reverted, start));
        let denied = result.items[2].reason.as_deref().unwrap();
        assert!(denied.contains("consent"), "{denied}");
        settled(&runtime, &result).await;
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

/// The next start has no longer the tool of an item that has not begun.
fn without_tool() {
    for is_stopped in [true, false] {
        let place = place();
        let (start, marker) = (tree(&place), place.marker());
        let mut all = items(None, Value::Null)[..3].to_vec();
        all[1] = faulty(UNDOABLE, "wait");
        all[2] = item(UNDOABLE_NEVER, json!({ "name": "later" }));
        let asked = batch("b", "atomic", &all);
        if is_stopped {
            asynchronously(async {
                let change = |config: &mut Config| {
                    config.stop_grace = Duration::ZERO;
                    config.lease_ttl = SHORT_LEASE;
                };
                let runtime = place.runtime(change).await;
                runtime.submit(asked).await.unwrap();
                assert_eq!(marker.recv_timeout(PATIENCE).as_deref(), Ok("waiting"));
                assert!(!runtime.stop().await, "it could not finish");
            });
        } else {
            let requests = vec![json!(asked)];
            let process = place.start(&Order { mode: "submit", requests, stop_at: None });
            assert_eq!(marker.recv_timeout(PATIENCE).as_deref(), Ok("waiting"));
            process.kill();
        }
        let result = ended(&place, |config| config.tools = UNDOABLE_ONLY);
        use Marker::{NotStarted, RolledBack};
        assert_eq!(markers(&result), [RolledBack, RolledBack, NotStarted], "{is_stopped}: {result:#?}");
        assert_eq!((result.outcome, tree(&place)), (Outcome::Reverted, start), "{is_stopped}: {result:#?}");
    }
}

/// The end of the batch `b`, which another process has begun.
fn ended(place: &Place, change: impl FnOnce(&mut Config)) -> BatchResult {
    let mut result = None;
    asynchronously(async {
        let runtime = place.runtime(change).await;
        let id = "b".parse().unwrap();
        let waiting = tokio::time::timeout(PATIENCE, runtime.pipeline().wait(&id));
        let Answer::Done(done) = waiting.await.unwrap().unwrap() else { panic!("it has no receipt") };
        let found = result_of(&**runtime.store(), &done.receipt).unwrap();
        settled(&runtime, &found).await;
        runtime.stop().await;
        result = Some(found);
    });
    result.unwrap()
}

/// The next start is an hour later: what was begun is settled, nothing else starts, and all is undone.
fn late() {
    let place = place();
    let start = tree(&place);
    let asked = json!(batch("b", "atomic", &items(None, Value::Null)));
    assert!(kill_at(&place, "exec", "executor.after_child:2", &asked).0);
    let later = Timestamp::now().checked_add(Duration::from_secs(3_600)).unwrap();
    let result = ended(&place, |config| config.clock = Arc::new(ManualClock::at(later)));
    use Marker::{NotStarted, RolledBack};
    assert_eq!(markers(&result), [RolledBack, RolledBack, NotStarted, NotStarted, NotStarted], "{result:#?}");
    let why = &result.error.as_ref().unwrap().message;
    assert!(why.contains("the time of the batch was over"), "{why}");
    assert_eq!(tree(&place), start);
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

/// At every item, on both ways in and in both modes: before the receipt of the item that fails, after it, between two receipts of those that
/// did not start, and at the end.
fn killed_at_every_item() {
    let mut all = Vec::new();
    for k in 0..N {
        let failing = format!("executor.after_child:{}", k + 1);
        let recorded = format!("recorder.after_commit:{}", k + 1);
        let stopping = format!("recorder.before_commit:{}", k + 3);
        all.push((k, "submit", "atomic", failing.clone()));
        all.push((k, "exec", "atomic", if k + 3 <= N { stopping.clone() } else { recorded.clone() }));
        all.push((k, "exec", "ordered", failing));
        all.push((k, "submit", "ordered", if k + 3 <= N { stopping } else { "batch.undone:1".to_owned() }));
    }
    side_by_side(&all, |(k, way, mode, point)| {
        let what = format!("{way}, {mode}, {point} at {k}");
        let place = place();
        let start = tree(&place);
        let asked = json!(batch("b", mode, &items(Some(*k), faulty(UNDOABLE, "fail"))));
        let (visited, said) = kill_at(&place, way, point, &asked);
        assert!(visited, "{what}: it is not on the way: {said:?}");
        let ended = place.run("exec", std::slice::from_ref(&asked));
        let receipt = ended.report.the_receipt("b");
        ended.report.all_settled();
        let marks = receipt.outputs["items"].as_array().unwrap().iter();
        let marks: Vec<_> = marks.map(|mark| mark["marker"].as_str().unwrap().to_owned()).collect();
        let stays = if *mode == "ordered" { "committed" } else { "rolled_back" };
        let expected = |at: usize| {
            if at < *k {
                stays
            } else if at == *k {
                "rolled_back"
            } else {
                "not_started"
            }
        };
        assert_eq!(marks, (0..N).map(expected).collect::<Vec<_>>(), "{what}: {receipt:#?}");
        let left = differ(&start, &tree(&place));
        assert_eq!(left.is_empty(), *mode == "atomic" || *k == 0, "{what}: {left:?}");
        assert!(!left.contains("workspace/runs-faulty"), "{what}: {left:?}");
    });
}

/// Killed between the receipts of items of a batch that is denied, and asked for again.
fn killed_refused() {
    let place = place();
    let start = tree(&place);
    let denied = item(crate::tools::NEVER, json!({ "name": "x" }));
    let asked = json!(batch("b", "atomic", &items(Some(2), denied)));
    for point in ["recorder.before_commit:3", "recorder.after_commit:5"] {
        assert!(kill_at(&place, "exec", point, &asked).0, "{point}");
    }
    let ended = place.run("exec", std::slice::from_ref(&asked));
    assert_eq!(ended.report.the_receipt("b").outcome, Outcome::DeniedPolicy);
    for index in 0..N {
        let receipt = ended.report.the_receipt(&format!("b/{index}"));
        let expected = if index == 2 { Outcome::DeniedPolicy } else { Outcome::NotStarted };
        assert_eq!(receipt.outcome, expected, "{receipt:#?}");
    }
    ended.report.all_settled();
    assert_eq!(tree(&place), start);
}

/// Approved in one process, killed in the next, and ended by a third.
fn killed_approved() {
    let place = place();
    let file = place.state().join("policy/policy.toml");
    let text = fs::read_to_string(&file).unwrap();
    let asking = text
        .replace(&format!("\"{UNDOABLE}\" = \"allow\""), &format!("\"{UNDOABLE}\" = \"require_approval\""));
    assert_ne!(asking, text);
    fs::write(&file, asking).unwrap();
    let two = ["one", "two"].map(|name| item(UNDOABLE, json!({ "name": name })));
    let asked = batch("approved", "ordered", &two);
    asynchronously(async {
        let change = |config: &mut Config| config.stop_grace = Duration::ZERO;
        let runtime = place.runtime(change).await;
        let Answer::Held(held) = runtime.exec(asked.clone()).await else { panic!("nobody is asked") };
        // What is approved does not run in this process.
        let action = Some("approved".parse().unwrap());
        arm(Trap { point: "gate.begin".to_owned(), action, nth: 1, times: 1, fault: Fault::Stall });
        let by = Decider::local(place.config().principal, true);
        let services = runtime.pipeline().services();
        approve(services, &held.approval_id, &by, Approve::default()).await.unwrap();
        runtime.stop().await;
    });
    let asked = json!(asked);
    assert!(kill_at(&place, "wait", "executor.after_child:1", &asked).0);
    assert!(kill_at(&place, "wait", "recorder.after_commit:1", &asked).0);
    let ended = place.run("wait", std::slice::from_ref(&asked));
    let receipt = ended.report.the_receipt("approved");
    assert_eq!(receipt.outcome, Outcome::Executed, "{receipt:#?}");
    assert!(receipt.approval.is_some());
    for index in 0..2 {
        let item = ended.report.the_receipt(&format!("approved/{index}"));
        assert_eq!(item.approval, receipt.approval, "{item:#?}");
    }
    assert_eq!((place.effects("one"), place.effects("two")), (1, 1));
    ended.report.all_settled();
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
