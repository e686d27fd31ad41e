//! Batches: the page's commands, the one question, and what cannot be atomic.

use effectd::contracts::batch::{BatchRequest, Marker};
use effectd::contracts::{ActionRequest, Code, Outcome, PreviewVerdict};
use effectd::internal::{Config, Runtime};
use effectd_actors::approvals::decide::{approve, deny};
use effectd_actors::approvals::{Approve, Held, view};
use effectd_actors::batches::result_of;
use effectd_actors::preview::Preview;
use effectd_actors::{Answer, Decider};
use serde_json::{Value, json};

use crate::approvals::allowing;
use crate::harness::*;
use crate::previews::asking;

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
    // Options say what a whole batch leaves out, and nothing else than it says.
    let items = [write("workspace/opt", "x"), wrong];
    let whole =
        json!({ "subject_id": "agent://planner@deviceA", "space_id": SPACE, "items": items }).to_string();
    let run = ["batch", "run", "-o", "json", "--id", "whole", "--mode", "ordered", "-"];
    let told: Value = serde_json::from_str(&place.effectd(&run, Some(&whole)).stdout()).unwrap();
    assert_eq!(
        (&told["batch_id"], &told["result"]["items"][0]["marker"]),
        (&json!("whole"), &json!("committed")),
        "{told}"
    );
    for option in
        [["--mode", "ordered"], ["--id", "another"], ["--subject", "agent://b@c"], ["--space", "shared:b"]]
    {
        let refused = place.effectd(&["batch", "run", option[0], option[1], "-"], Some(&example));
        assert_eq!(refused.code(), 2, "{option:?}: {}", refused.stderr());
        assert!(refused.stderr().contains(option[0]), "{}", refused.stderr());
    }
    // A batch itself is not undone, and a single action is no batch.
    let undo = place.effectd(&["undo", show["result"]["receipt_id"].as_str().unwrap(), "--yes"], None);
    assert!(undo.stdout().contains("undo its items"), "{}{}", undo.stdout(), undo.stderr());
    let single = place.effectd(&["batch", "show", "notes-2026-w36/0"], None);
    assert_ne!(single.code(), 0, "{}", single.stdout());
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
    let record = done.receipt.preview.as_ref().unwrap();
    assert_eq!((record.verdict, record.predicted.unwrap().files), (PreviewVerdict::Matched, 2), "{record:?}");
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

/// Rules that change after the approval ask again, and what would fail asks nobody.
#[tokio::test]
async fn a_batch_is_asked_about_only_if_it_could_be_done() {
    let place = allowing(&[]);
    let runtime = place.runtime().await;
    let wrong = json!({ "tool_id": "files.edit_text", "params": { "path": "workspace/none", "find": "a", "replace": "b", "space_id": SPACE } });
    let answer = runtime.exec(batch("fails", &[write("workspace/a", "a\n"), wrong])).await;
    let Answer::Done(done) = answer else { panic!("{answer:?}") };
    assert_eq!(done.receipt.error.as_ref().unwrap().code, Code::FileNotFound);
    assert!(!place.note("a").exists());
    let asked = held(&runtime, batch("b", &[write("workspace/a", "a\n"), write("workspace/b", "b\n")])).await;
    let rule = "@id(\"stricter\")\nforbid (principal, action, resource)\nwhen { context.predicted.deletes > 100 };\n";
    std::fs::write(place.state().join("policy/stricter.cedar"), rule).unwrap();
    runtime.reload_policy().unwrap();
    let services = runtime.pipeline().services();
    approve(services, &asked.approval_id, &operator(), Approve::default()).await.unwrap();
    let again = runtime.pipeline().wait_or_held(&"b".parse().unwrap()).await.unwrap();
    let Answer::Held(again) = again else { panic!("{again:?}") };
    assert_ne!(again.approval_id, asked.approval_id);
    assert!(!place.note("a").exists());
    assert!(runtime.stop().await);
}

/// Sixty-four long items: each is shown in part, and no reason is left out unsaid.
#[tokio::test]
async fn a_person_sees_a_part_of_every_item() {
    let place = allowing(&[]);
    let runtime = place.runtime().await;
    let items: Vec<_> = (0..64)
        .map(|n| write(&format!("workspace/{n}"), &format!("item {n} {}", "long ".repeat(2_000))))
        .collect();
    let asked = held(&runtime, batch("long", &items)).await;
    assert!(asked.reasons.last().unwrap().contains("and 48 more"), "{:?}", asked.reasons);
    let services = runtime.pipeline().services();
    let hold =
        effectd_actors::approvals::repository::hold(&*services.store, &asked.approval_id).unwrap().unwrap();
    let shown = view::shown(&services.registry(), &services.policy(), &hold.value.decision.request);
    assert_eq!(shown["_truncated"], true);
    for (n, item) in shown["items"].as_array().unwrap().iter().enumerate() {
        assert_eq!(item["params"]["path"], format!("workspace/{n}"));
        assert!(item["params"]["text"].as_str().unwrap().starts_with(&format!("item {n} ")), "{item}");
    }
    assert!(runtime.stop().await);
}

/// Rules that go by what an action would change see each item on the copy that those before it have changed.
#[tokio::test]
async fn rules_see_what_each_item_would_change() {
    let rules = "@id(\"small-steps\")\nforbid (principal, action, resource)\n\
        when { !context.predicted.known || context.predicted.bytes > 10 };\n";
    let place = asking(rules);
    let runtime = place.runtime().await;
    let edit = |replace: &str| json!({ "tool_id": "files.edit_text", "params": { "path": "workspace/a", "find": "one", "replace": replace, "space_id": SPACE } });
    let asked = held(&runtime, batch("b", &[write("workspace/a", "one\n"), edit("two")])).await;
    let services = runtime.pipeline().services();
    approve(services, &asked.approval_id, &operator(), Approve::default()).await.unwrap();
    let Answer::Done(done) = runtime.pipeline().wait(&"b".parse().unwrap()).await.unwrap() else { panic!() };
    assert_eq!(done.receipt.outcome, Outcome::Executed, "{:#?}", done.receipt);
    assert_eq!(done.receipt.preview.as_ref().unwrap().verdict, PreviewVerdict::Matched);
    for index in 0..2 {
        let id = format!("b/{index}").parse().unwrap();
        let item = runtime.pipeline().receipt_of(&id).unwrap().unwrap().receipt;
        let facts = &item.decision.as_ref().unwrap().facts;
        assert_eq!(facts["predicted"]["files"], 1, "{facts}");
    }
    std::fs::remove_file(place.note("a")).unwrap();
    let answer = runtime.exec(batch("no", &[write("workspace/a", "one\n"), edit("two and more")])).await;
    let Answer::Done(done) = answer else { panic!("{answer:?}") };
    assert_eq!(done.receipt.outcome, Outcome::DeniedPolicy, "{:#?}", done.receipt);
    assert!(done.receipt.error.as_ref().unwrap().message.contains("items[1]"));
    assert!(!place.note("a").exists());
    assert!(runtime.stop().await);
}

/// A batch that was kept for review and then failed is no letter again: it would find what its items came to.
#[test]
fn a_requeued_batch_that_fails_is_no_letter_again() {
    let place = Place::seeded();
    let file = place.state().join("policy/policy.toml");
    let policy = std::fs::read_to_string(&file).unwrap();
    let strict = policy.replace("words = []", "words = [\"falcon\"]");
    assert_ne!(strict, policy, "the policy has no words");
    std::fs::write(&file, &strict).unwrap();
    let none = json!({ "tool_id": "artifact.get", "params": { "artifact_id": "0".repeat(64), "to_path": "workspace/b", "space_id": SPACE } });
    let asked = json!({
        "batch_id": "kept", "subject_id": "agent://planner@deviceA", "space_id": SPACE, "mode": "ordered",
        "items": [write("workspace/a", "falcon\n"), none],
    });
    let kept = place.effectd(&["batch", "run", "-o", "json", "-"], Some(&asked.to_string()));
    let kept: Value = serde_json::from_str(&kept.stdout()).unwrap();
    assert_eq!(kept["result"]["outcome"], "quarantined", "{kept}");
    std::fs::write(&file, &policy).unwrap();
    let letters = || place.effectd(&["dlq", "list", "-o", "json"], None).json(0).to_string();
    assert!(letters().contains("kept"));
    let requeued = place.effectd(&["quarantine", "release", "kept", "--yes"], None);
    assert_eq!(requeued.code(), 0, "{}", requeued.stderr());
    let wait = place.effectd(&["batch", "run", "-o", "json", "-"], Some(&asked.to_string()));
    let ended: Value = serde_json::from_str(&wait.stdout()).unwrap();
    assert_eq!(ended["result"]["error"]["code"], "batch_incomplete", "{ended}");
    assert_eq!(ended["result"]["items"][0]["marker"], "committed", "{ended}");
    assert!(!letters().contains("kept"), "{}", letters());
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
