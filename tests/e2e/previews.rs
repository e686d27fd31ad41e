//! Previews: what a person is shown before they decide is what happens, and a change since then asks again.

use effectd::adapters::Tool;
use effectd::contracts::{ActionId, ActionRequest, Code, Outcome, PreviewVerdict, Receipt, SideEffect};
use effectd::internal::{Config, Runtime};
use effectd_actors::approvals::decide::approve;
use effectd_actors::approvals::edit::preview_edited;
use effectd_actors::approvals::{Approve, DecideError, Held, Hold, repository};
use effectd_actors::preview::{Preview, Shown};
use effectd_actors::{Answer, Decider};
use serde_json::{Value, json};

use crate::approvals::request;
use crate::harness::{Place, Running};

/// Every registered tool that declares which files it changes: these can be previewed.
pub(crate) fn writing() -> Vec<&'static dyn Tool> {
    let writes = |tool: &&&'static dyn Tool| {
        let effects = tool.spec().side_effects;
        let changes = [SideEffect::FilesystemWrite, SideEffect::FilesystemDelete];
        let example = tool.example().as_object().cloned().unwrap_or_default();
        changes.iter().any(|effect| effects.contains(effect)) && tool.touches(&example).is_some()
    };
    effectd::adapters::all().iter().filter(writes).copied().collect()
}

/// The id of the same tool in an embedding program.
pub(crate) fn own_name(tool: &dyn Tool) -> String {
    format!("own.{}", tool.id().replace('.', "_"))
}

/// A place whose policy asks a person about every tool that changes files.
pub(crate) fn asking(rules: &str) -> Place {
    let tools = writing().into_iter();
    let names = tools.flat_map(|tool| [tool.id().to_owned(), own_name(tool)]);
    let modes: Vec<_> = names.map(|tool| format!("{tool:?} = \"require_approval\"")).collect();
    with_modes(&modes.join(", "), rules)
}

fn with_modes(modes: &str, rules: &str) -> Place {
    let place = Place::seeded();
    let file = place.state().join("policy/policy.toml");
    let mut text = std::fs::read_to_string(&file).unwrap();
    // The policy's own examples depend on what this changes.
    text = text.split("[example_tools").next().unwrap().to_owned();
    text = text.replace("\"diagnose\"]", "\"diagnose\", \"files.delete\"]");
    text = text.replace("\"files.write_text\" = \"allow\"", modes);
    let own = writing().into_iter().map(own_name);
    for tool in own.chain(["files.delete".to_owned()]) {
        text += &format!(
            "\n[[consents]]\nsubject = \"agent://planner@deviceA\"\nspace = \"shared:household\"\npurpose = \"tool:{tool}\"\n"
        );
    }
    std::fs::write(&file, text).unwrap();
    if !rules.is_empty() {
        std::fs::write(place.state().join("policy/foresight.cedar"), rules).unwrap();
    }
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    place
}

pub(crate) fn operator() -> Decider {
    Decider::local(Config::embedded(".").unwrap().principal, true)
}

pub(crate) async fn held(runtime: &Runtime, request: ActionRequest) -> Held {
    match runtime.exec(request).await {
        Answer::Held(held) => held,
        other @ (Answer::Done(_) | Answer::Refused(_)) => panic!("{other:?}"),
    }
}

pub(crate) fn question(runtime: &Runtime, held: &Held) -> Hold {
    let services = runtime.pipeline().services();
    repository::hold(&*services.store, &held.approval_id).unwrap().unwrap().value
}

pub(crate) fn shown(hold: &Hold) -> Shown {
    match hold.prompt.preview.as_deref().unwrap() {
        Preview::Shown(shown) => shown.clone(),
        other @ (Preview::Request(_) | Preview::WouldFail(_) | Preview::Unavailable(_)) => {
            panic!("{other:?}")
        }
    }
}

/// Approves, and returns the receipt or the next question.
pub(crate) async fn say_yes(runtime: &Runtime, held: &Held, wish: Approve, action: &ActionId) -> Answer {
    let services = runtime.pipeline().services();
    approve(services, &held.approval_id, &operator(), wish).await.unwrap();
    let waiting = runtime.pipeline().wait_or_held(action);
    tokio::time::timeout(std::time::Duration::from_secs(60), waiting)
        .await
        .expect("it ends, or is asked again")
        .unwrap()
}

#[track_caller]
pub(crate) fn receipt(answer: &Answer) -> &Receipt {
    match answer {
        Answer::Done(done) => &done.receipt,
        other @ (Answer::Held(_) | Answer::Refused(_)) => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_can_veto_by_what_would_change() {
    let rules = "@id(\"no-deletes\")\nforbid (principal, action, resource)\nwhen { context.predicted.deletes > 0 };\n\
        @id(\"small-steps\")\nforbid (principal, action, resource)\n\
        when { !context.predicted.known || context.predicted.bytes > 10 || context.predicted.files > 2 };\n";
    let place = asking(rules);
    let runtime = place.runtime().await;
    let write = |action: &str, text: &str| {
        let params = json!({ "path": "workspace/w.txt", "text": text });
        request(action, "files.write_text", params)
    };
    // A small change is held, as before.
    let asked = held(&runtime, write("w-1", "small")).await;
    let done = say_yes(&runtime, &asked, Approve::default(), &"w-1".parse().unwrap()).await;
    assert_eq!(receipt(&done).outcome, Outcome::Executed);
    let undone = receipt(&done).receipt_id.to_string();
    let vetoes = [
        (write("w-2", "far too much of it"), "small-steps"),
        (request("w-3", "files.make_dir", json!({ "path": "workspace/a/b/c" })), "small-steps"),
        (request("w-4", "files.delete", json!({ "path": "workspace/w.txt" })), "no-deletes"),
        (request("w-5", "files.undo", json!({ "receipt_id": undone })), "no-deletes"),
        (request("w-6", "files.read_text", json!({ "path": "workspace/w.txt" })), "small-steps"),
    ];
    // What is too large to preview may be anything, so it passes no bound.
    std::fs::File::create(place.note("large")).unwrap().set_len(40 << 20).unwrap();
    let large = request("w-7", "files.delete", json!({ "path": "workspace/large" }));
    let answer = runtime.exec(large).await;
    assert_eq!(receipt(&answer).outcome, Outcome::DeniedPolicy);
    assert!(place.note("large").exists());
    for (request, rule) in vetoes {
        let tool = request.tool_id.clone();
        let answer = runtime.exec(request).await;
        let receipt = receipt(&answer);
        assert_eq!(receipt.outcome, Outcome::DeniedPolicy, "{tool}");
        let decision = receipt.decision.as_ref().unwrap();
        let named = decision.rule.as_deref().unwrap_or_default();
        assert!(named.contains(rule), "{tool}: {named}");
        // The receipt is enough to reach the same verdict.
        let facts = effectd_policy::Facts::from_record(decision).unwrap();
        assert_eq!(facts.predicted.is_none(), tool.as_str() == "files.read_text", "{tool}");
    }
    assert_eq!(std::fs::read_to_string(place.note("w.txt")).unwrap(), "small");
    assert!(runtime.stop().await);
}

/// Each of two is small enough alone. After one is done, the other is not what the rule checked.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_rule_looked_at_is_what_happens_or_nothing_does() {
    let rules = "@id(\"small-steps\")\nforbid (principal, action, resource)\nwhen { context.predicted.bytes > 10 };\n";
    let place = with_modes("\"files.append_text\" = \"allow\"", rules);
    let runtime = place.runtime().await;
    for nth in 0..5 {
        let name = format!("r{nth}.txt");
        std::fs::write(place.note(&name), "1234").unwrap();
        let append = |who: &str, text: &str| {
            let params = json!({ "path": format!("workspace/{name}"), "text": text });
            runtime.exec(request(&format!("{who}-{nth}"), "files.append_text", params))
        };
        let (one, other) = tokio::join!(append("one", "abcd"), append("other", "efgh"));
        let outcomes = [receipt(&one).outcome, receipt(&other).outcome];
        let done = outcomes.iter().filter(|outcome| **outcome == Outcome::Executed);
        assert_eq!(done.count(), 1, "{outcomes:?}");
        let length = std::fs::read(place.note(&name)).unwrap().len();
        assert_eq!(length, 8, "{outcomes:?}");
    }
    assert!(runtime.stop().await);
}

/// One unreadable file does not remove the preconditions of the others.
#[tokio::test(flavor = "multi_thread")]
async fn what_can_be_looked_at_is_a_condition_beside_what_cannot() {
    let place = asking("");
    let runtime = place.runtime().await;
    std::fs::write(place.note("small"), "one\n").unwrap();
    let giant = std::fs::File::create(place.note("giant")).unwrap();
    giant.set_len(100_000_000).unwrap();
    let patch =
        "--- a/small\n+++ b/small\n@@ -1 +1 @@\n-one\n+two\n--- a/giant\n+++ b/giant\n@@ -1 +1 @@\n-a\n+b\n";
    let action = request("g-1", "files.apply_patch", json!({ "patch": patch }));
    let id = action.action_id.clone();
    let asked = held(&runtime, action).await;
    let hold = question(&runtime, &asked);
    let Some(Preview::Unavailable(why)) = hold.prompt.preview.as_deref() else {
        panic!("{:?}", hold.prompt.preview);
    };
    assert!(why.contains("workspace/giant cannot be inspected"), "{why}");
    std::fs::write(place.note("small"), "one\nmore\n").unwrap();
    let answer = say_yes(&runtime, &asked, Approve::default(), &id).await;
    assert!(matches!(answer, Answer::Held(_)), "{answer:?}");
    assert!(runtime.stop().await);
}

#[test]
fn a_planner_can_ask_what_would_come_of_a_request() {
    let place = asking("");
    std::fs::write(place.note("p.txt"), "old\nsame\n").unwrap();
    let ask = |tool: &str, params: Value, code: i32| {
        let mut body = serde_json::to_value(request("q-1", tool, params)).unwrap();
        body["rationale"] = json!({ "confidence": 0.8, "reason": "because" });
        place.effectd(&["preview", "-", "-o", "json"], Some(&body.to_string())).json(code)
    };
    let write = json!({ "path": "workspace/p.txt", "text": "new\nsame\n" });
    let told = ask("files.write_text", write.clone(), 4);
    assert_eq!(told["verdict"], "needs_approval");
    let change = &told["preview"]["shown"]["changes"][0];
    assert_eq!(change["path"], "workspace/p.txt");
    assert_eq!(change["diff"]["text"], "@@ -1,2 +1,2 @@\n-old\n+new\n same\n");
    let fails = json!({ "path": "workspace/p.txt", "find": "nowhere", "replace": "x" });
    assert!(ask("files.edit_text", fails, 1)["preview"]["would_fail"].is_object());
    let denied = ask("command.run", json!({ "argv": ["true"] }), 3);
    assert!(denied["preview"]["unavailable"].as_str().unwrap().contains("denies"));
    let reads = ask("files.read_text", json!({ "path": "workspace/p.txt" }), 0);
    assert!(reads["preview"]["unavailable"].as_str().unwrap().contains("cannot be previewed"));
    // A subject that may not read the files may still ask to write, and does not see their content.
    let consent = |verb: &str| {
        let words = [
            "policy",
            verb,
            "--subject",
            "agent://planner@deviceA",
            "--space",
            "shared:household",
            "--purpose",
            "tool:files.read_text",
            "--yes",
        ];
        assert_eq!(place.effectd(&words, None).code(), 0);
    };
    consent("revoke-consent");
    let told = ask("files.write_text", write.clone(), 4);
    let change = &told["preview"]["shown"]["changes"][0];
    assert_eq!((&change["path"], &change["diff"]), (&json!("workspace/p.txt"), &Value::Null));
    let body = serde_json::to_string(&request("q-1", "files.write_text", write.clone())).unwrap();
    let text = place.effectd(&["preview", "-"], Some(&body)).stdout();
    assert!(text.contains("you may not read this file") && !text.contains("-old"), "{text}");
    consent("grant-consent");
    // The same for approvers.
    let body = serde_json::to_string(&request("q-1", "files.write_text", write)).unwrap();
    let text = place.effectd(&["preview", "-"], Some(&body)).stdout();
    assert!(text.contains("a person would be asked") && text.contains("    +new"), "{text}");
    assert_eq!(std::fs::read_to_string(place.note("p.txt")).unwrap(), "old\nsame\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn edited_parameters_are_previewed_again_before_the_yes() {
    let place = asking("");
    let runtime = place.runtime().await;
    let services = runtime.pipeline().services();
    let note = |text: &str| json!({ "path": "workspace/e.txt", "text": text });
    std::fs::write(place.note("e.txt"), "old\n").unwrap();
    let other = request("e-0", "files.write_text", note("edited\n")).params;
    let look = async |held: &Held| {
        let by = operator();
        let edited = preview_edited(services, &held.approval_id, &by, other.clone());
        let edited = edited.await.unwrap();
        let Preview::Shown(shown) = edited.foresight.preview else {
            panic!("{:?}", edited.foresight.preview);
        };
        let text = &shown.changes[0].diff.as_ref().unwrap().text;
        assert!(text.contains("+edited"), "{text}");
        edited.digest
    };
    let wish = |digest: String| Approve {
        params: Some(other.clone()),
        edited_digest: Some(digest),
        ..Approve::default()
    };
    let asked = held(&runtime, request("e-1", "files.write_text", note("one\n"))).await;
    let seen = look(&asked).await;
    // Somebody else writes after the preview: it no longer shows what would be replaced.
    std::fs::write(place.note("e.txt"), "theirs\n").unwrap();
    let stale = approve(services, &asked.approval_id, &operator(), wish(seen)).await;
    assert!(matches!(stale, Err(DecideError::Changed)), "{stale:?}");
    let seen = look(&asked).await;
    let done = say_yes(&runtime, &asked, wish(seen), &"e-1".parse().unwrap()).await;
    let record = receipt(&done).preview.clone().unwrap();
    assert_eq!(record.verdict, PreviewVerdict::Matched);
    assert_eq!(std::fs::read_to_string(place.note("e.txt")).unwrap(), "edited\n");
    assert!(runtime.stop().await);
}

/// Tools hang in the copy, and actions without a preview are not delayed.
#[tokio::test(flavor = "multi_thread")]
async fn who_needs_no_preview_does_not_wait_for_those_that_do() {
    let rules = "@id(\"small-steps\")\nforbid (principal, action, resource)\nwhen { context.predicted.files > 100 };\n";
    let place = with_modes("\"files.archive\" = \"allow\"", rules);
    // With a long timeout, so that everything else is done before the first preview ends.
    let mut config = place.config();
    config.pipeline.preview_time_max = std::time::Duration::from_secs(20);
    let runtime = std::sync::Arc::new(effectd::internal::Runtime::start(config).await.unwrap());
    std::fs::write(place.note("r.txt"), "to be read").unwrap();
    std::fs::write(place.note("control-stop-at"), "before_rename").unwrap();
    let mut stuck = tokio::task::JoinSet::new();
    for nth in 0..12 {
        let runtime = runtime.clone();
        let params = json!({ "from_path": "workspace/r.txt", "to_path": format!("workspace/s{nth}.zip") });
        let action = request(&format!("stuck-{nth}"), "files.archive", params);
        stuck.spawn(async move { runtime.exec(action).await });
    }
    // All of them are in flight before the first reader comes.
    let on_their_way = || {
        let families = runtime.metrics().gather();
        let family = families.iter().find(|family| family.name() == effectd_actors::metrics::IN_FLIGHT);
        let metric = family.and_then(|family| family.get_metric().first());
        metric.is_some_and(|metric| metric.get_gauge().get_value() >= 12.0)
    };
    crate::harness::until("all are on their way", on_their_way);
    for nth in 0..8 {
        let params = json!({ "path": "workspace/r.txt" });
        let answer = runtime.exec(request(&format!("read-{nth}"), "files.read_text", params)).await;
        assert_eq!(receipt(&answer).outcome, Outcome::Executed);
        assert!(stuck.try_join_next().is_none(), "one has ended before reading");
    }
    // They end, too: without a preview the change is unknown, or they waited too long for a slot.
    while let Some(ended) = stuck.join_next().await {
        match ended.unwrap() {
            Answer::Done(done) => assert_eq!(done.receipt.outcome, Outcome::DeniedPolicy),
            Answer::Refused(failure) => {
                assert_eq!(failure.code, Code::Overloaded);
                assert!(failure.retry_after_ms.is_some(), "{failure:?}");
            }
            Answer::Held(held) => panic!("{held:?}"),
        }
    }
    let runtime = std::sync::Arc::into_inner(runtime).unwrap();
    assert!(runtime.stop().await);
}
/// A rule alone decides: what the preview of a folder showed is what happens, and the same for its undo.
#[tokio::test(flavor = "multi_thread")]
async fn a_moved_folder_and_its_undo_match_their_previews() {
    let rules = "@id(\"small-steps\")\nforbid (principal, action, resource)\nwhen { context.predicted.files > 10 };\n";
    let place = with_modes("\"files.move\" = \"allow\", \"files.undo\" = \"allow\"", rules);
    let runtime = place.runtime().await;
    std::fs::create_dir_all(place.note("dir/deep")).unwrap();
    std::fs::write(place.note("dir/deep/x"), "x").unwrap();
    let params = json!({ "from_path": "workspace/dir", "to_path": "workspace/new" });
    let moved = runtime.exec(request("f-1", "files.move", params)).await;
    let undo = json!({ "receipt_id": receipt(&moved).receipt_id });
    let back = runtime.exec(request("f-2", "files.undo", undo)).await;
    for done in [&moved, &back] {
        let receipt = receipt(done);
        assert_eq!(receipt.outcome, Outcome::Executed, "{:?}", receipt.error);
        let record = receipt.preview.as_ref().unwrap();
        assert_eq!((record.verdict, &record.why), (PreviewVerdict::Matched, &None));
    }
    assert!(place.note("dir/deep/x").exists());
    assert!(runtime.stop().await);
}
