//! Batches: the page's commands, the one question, and what cannot be atomic.

use effectd::contracts::batch::{BatchRequest, Marker};
use effectd::contracts::{ActionRequest, Outcome};
use effectd::internal::{Config, Runtime};
use effectd_actors::approvals::decide::{approve, deny};
use effectd_actors::approvals::{Approve, Held};
use effectd_actors::batches::result_of;
use effectd_actors::preview::Preview;
use effectd_actors::{Answer, Decider};
use serde_json::{Value, json};

use crate::approvals::allowing;
use crate::harness::*;

const SPACE: &str = "shared:household";

fn write(path: &str, text: &str) -> Value {
    json!({ "tool_id": "files.write_text", "params": { "path": path, "text": text, "space_id": SPACE } })
}

fn batch(id: &str, items: &[Value]) -> ActionRequest {
    let batch =
        json!({ "batch_id": id, "subject_id": "agent://planner@deviceA", "space_id": SPACE, "items": items });
    BatchRequest::parse(batch.to_string().as_bytes()).unwrap().into_action()
}

async fn held(runtime: &Runtime, batch: ActionRequest) -> Held {
    let answer = runtime.exec(batch).await;
    let Answer::Held(held) = answer else { panic!("{answer:?}") };
    held
}

fn operator() -> Decider {
    Decider::local(Config::embedded(".").unwrap().principal, true)
}

/// `docs/batches.md`: the command, its output, the file, a repeat, and a batch that leaves nothing.
#[test]
fn the_drill_of_the_page_works() {
    let place = Place::seeded();
    let page = std::fs::read_to_string(root().join("docs/batches.md")).unwrap();
    let example = std::fs::read_to_string(root().join("examples/batches/two_notes.json")).unwrap();
    assert!(page.contains(example.trim_end()), "the page shows the file");
    let file = root().join("examples/batches/two_notes.json");
    let ran = place.effectd(&["batch", "run", file.to_str().unwrap()], None);
    assert_eq!(ran.code(), 0, "{}", ran.stdout());
    let shown = page.split("```text\n").nth(1).unwrap().split("; receipt").next().unwrap();
    assert!(ran.stdout().starts_with(shown), "{} is not what the page shows: {shown}", ran.stdout());
    assert_eq!(std::fs::read_to_string(place.note("notes/index.txt")).unwrap(), "week36\n");
    // Again is nothing, and `show` says the same.
    let again = place.effectd(&["batch", "run", "-o", "json", "-"], Some(&example));
    let again: Value = serde_json::from_str(&again.stdout()).unwrap();
    assert_eq!(again["already_done"], true);
    let show = place.effectd(&["batch", "show", "notes-2026-w36", "-o", "json"], None);
    let show: Value = serde_json::from_str(&show.stdout()).unwrap();
    assert_eq!(show["result"], again["result"]);
    assert_eq!(std::fs::read_to_string(place.note("notes/index.txt")).unwrap(), "week36\n");
    // Lines: the second would fail, so nothing starts.
    let wrong = json!({ "tool_id": "files.edit_text", "params": { "path": "workspace/none", "find": "a", "replace": "b", "space_id": SPACE } });
    let lines = format!("{}\n\n{wrong}\n", write("workspace/new", "x"));
    let failed = place.effectd(&["batch", "run", "--id", "lines", "-o", "json", "-"], Some(&lines));
    assert_eq!(failed.code(), 1, "{}", failed.stdout());
    let failed: Value = serde_json::from_str(&failed.stdout()).unwrap();
    assert_eq!(failed["result"]["error"]["code"], "file_not_found", "{failed}");
    assert!(failed["result"]["items"].as_array().unwrap().iter().all(|item| item["marker"] == "not_started"));
    assert!(!place.note("new").exists());
    // One after another, the first one stays.
    let ordered = place.effectd(&["batch", "run", "--mode", "ordered", "-o", "json", "-"], Some(&lines));
    let ordered: Value = serde_json::from_str(&ordered.stdout()).unwrap();
    assert_eq!(ordered["result"]["items"][0]["marker"], "committed", "{ordered}");
    assert!(place.note("new").exists());
    let dry = place.effectd(
        &["batch", "run", "--dry-run", "-o", "json", "-"],
        Some(&write("workspace/dry", "x").to_string()),
    );
    let dry: Value = serde_json::from_str(&dry.stdout()).unwrap();
    assert_eq!((&dry["result"]["outcome"], place.note("dry").exists()), (&json!("dry_run"), false), "{dry}");
}

#[tokio::test]
async fn a_person_is_asked_once_about_one_merged_diff() {
    let place = allowing(&[]);
    let runtime = place.runtime().await;
    let items = [write("workspace/a", "one\n"), write("workspace/b", "b\n"), write("workspace/a", "two\n")];
    let asked = held(&runtime, batch("b", &items)).await;
    assert_eq!(asked.reasons.len(), 3, "{asked:?}");
    let services = runtime.pipeline().services();
    let hold =
        effectd_actors::approvals::repository::hold(&*services.store, &asked.approval_id).unwrap().unwrap();
    let Some(Preview::Shown(shown)) = hold.value.prompt.preview.as_deref() else { panic!("{hold:?}") };
    let paths: Vec<_> = shown.changes.iter().map(|change| change.path.as_str()).collect();
    assert_eq!(paths, ["workspace/a", "workspace/b"], "each path once");
    let diff = shown.changes[0].diff.as_ref().unwrap();
    assert!(diff.text.contains("+two") && !diff.text.contains("one"), "as all items leave it: {}", diff.text);
    approve(services, &asked.approval_id, &operator(), Approve::default()).await.unwrap();
    let Answer::Done(done) = runtime.pipeline().wait(&"b".parse().unwrap()).await.unwrap() else { panic!() };
    let result = result_of(&*services.store, &done.receipt).unwrap();
    assert_eq!(result.outcome, Outcome::Executed, "{result:#?}");
    for item in &result.items {
        let receipt = runtime.pipeline().receipt_of(&item.action_id).unwrap().unwrap().receipt;
        assert_eq!(receipt.approval, done.receipt.approval, "the approval covers each item");
    }
    assert_eq!(std::fs::read_to_string(place.note("a")).unwrap(), "two\n");
    // A refusal starts nothing.
    let refused =
        held(&runtime, batch("no", &[write("workspace/c", "c\n"), write("workspace/d", "d\n")])).await;
    deny(services, &refused.approval_id, &operator(), None).await.unwrap();
    let done = runtime.pipeline().receipt_of(&"no".parse().unwrap()).unwrap().unwrap();
    let result = result_of(&*services.store, &done.receipt).unwrap();
    assert_eq!(result.outcome, Outcome::DeniedHuman);
    assert!(
        result.items.len() == 2
            && result.items.iter().all(|item| item.marker == Marker::NotStarted && item.receipt_id.is_some())
    );
    assert!(!place.note("c").exists());
    assert!(runtime.stop().await);
}

#[tokio::test]
async fn a_batch_that_cannot_be_atomic_says_so_and_asks() {
    let place = Place::seeded();
    let runtime = place.runtime().await;
    let notify = json!({ "tool_id": "notify.local", "params": { "title": "done", "space_id": SPACE } });
    let asked = held(&runtime, batch("n", &[write("workspace/a", "a\n"), notify])).await;
    assert!(
        asked.reasons.iter().any(|why| why.contains("items[1]") && why.contains("may not be undone")),
        "{asked:?}"
    );
    assert!(!place.note("a").exists());
    assert!(runtime.stop().await);
}
