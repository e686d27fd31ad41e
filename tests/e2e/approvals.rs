//! Approvals end to end, for tools of risk tiers that always need one: policy, question, decision, effect, receipt.

use std::sync::Arc;
use std::time::Duration;

use effectd::contracts::{ActionRequest, ManualClock, Mode, Operation, Outcome, Timestamp};
use effectd::internal::{Config, Runtime};
use effectd_actors::approvals::decide::{approve, deny};
use effectd_actors::approvals::{Approve, DecideError, Held, How};
use effectd_actors::effects::results;
use effectd_actors::operator::operations::Terms;
use effectd_actors::operator::service::perform;
use effectd_actors::{Answer, Decider};
use effectd_bus::{Change, Expect, FamilyName, KvChange, NewBody, Swap};
use effectd_policy::SetMode;
use serde_json::{Value, json};

use crate::harness::{Place, Running, program, write_note};

/// A place whose policy lets the planner ask for dangerous tools.
fn dangerous() -> Place {
    allowing(&["wc", "rm"])
}

/// The same, with these programs.
pub(crate) fn allowing(programs: &[&str]) -> Place {
    let place = Place::seeded();
    let file = place.state().join("policy/policy.toml");
    let mut text = std::fs::read_to_string(&file).unwrap();
    // The policy's own examples depend on what this changes.
    text = text.split("[example_tools").next().unwrap().to_owned();
    text = text.replace("\"diagnose\"]", "\"diagnose\", \"files.delete\", \"command.run\"]");
    text = text.replace(
        "\"files.write_text\" = \"allow\"",
        "\"files.write_text\" = \"require_approval\", \"files.delete\" = \"allow\"",
    );
    text = text.replace("commands = []", &format!("commands = {programs:?}"));
    for tool in ["files.delete", "command.run"] {
        text += &format!(
            "\n[[consents]]\nsubject = \"agent://planner@deviceA\"\nspace = \"shared:household\"\npurpose = \"tool:{tool}\"\n"
        );
    }
    std::fs::write(&file, text).unwrap();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    place
}

pub(crate) fn request(action: &str, tool: &str, params: Value) -> ActionRequest {
    let mut request = json!({
        "action_id": action, "subject_id": "agent://planner@deviceA", "space_id": "shared:household",
        "tool_id": tool, "params": params,
    });
    request["params"]["space_id"] = "shared:household".into();
    serde_json::from_value(request).unwrap()
}

fn operator(runtime: &Runtime) -> Decider {
    let _ = runtime;
    Decider::local(Config::embedded(".").unwrap().principal, true)
}

async fn held(runtime: &Runtime, request: ActionRequest) -> Held {
    match runtime.exec(request).await {
        Answer::Held(held) => held,
        other @ (Answer::Done(_) | Answer::Refused(_)) => panic!("{other:?}"),
    }
}

pub(crate) async fn approved(runtime: &Runtime, request: ActionRequest) -> effectd::contracts::Receipt {
    let action = request.action_id.clone();
    let held = held(runtime, request).await;
    let services = runtime.pipeline().services();
    let wish = Approve::default();
    approve(services, &held.approval_id, &operator(runtime), wish).await.unwrap();
    match runtime.pipeline().wait(&action).await.unwrap() {
        Answer::Done(done) => (*done.receipt).clone(),
        other @ (Answer::Held(_) | Answer::Refused(_)) => panic!("{other:?}"),
    }
}

#[test]
fn an_r4_action_is_never_approved_with_others() {
    let place = dangerous();
    std::fs::write(place.note("x.txt"), "x").unwrap();
    let delete = request("d-1", "files.delete", json!({ "path": "workspace/x.txt" }));
    for asked in [write_note("w-1", "workspace/w.txt", "w"), serde_json::to_value(delete).unwrap()] {
        assert_eq!(place.run(&asked).code(), 4, "{asked}");
    }
    let all = ["approvals", "approve", "--subject", "agent://planner@deviceA", "--yes"];
    let approved = place.effectd(&all, None);
    assert_eq!(approved.code(), 1, "{}", approved.stderr());
    assert!(approved.stderr().contains("1 of tier R4"), "{}", approved.stderr());
    let left = place.effectd(&["approvals", "list", "-o", "json"], None).json(0);
    assert_eq!((left.as_array().unwrap().len(), &left[0]["tool_id"]), (1, &json!("files.delete")), "{left}");
    assert_eq!(left[0]["prompt"]["about"], "workspace/x.txt", "{left}");
    assert_eq!(place.effectd(&["wait", "w-1"], None).code(), 0);
    assert!(place.note("w.txt").exists() && place.note("x.txt").exists());
    // By its id it is approved.
    let id = left[0]["approval_id"].as_str().unwrap();
    assert_eq!(place.effectd(&["approvals", "approve", id], None).code(), 0);
    assert_eq!(place.effectd(&["wait", "d-1"], None).code(), 0);
    assert!(!place.note("x.txt").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_is_asked_about_and_done_when_a_person_says_yes() {
    let place = dangerous();
    std::fs::write(place.note("x.txt"), "x").unwrap();
    let runtime = place.runtime().await;
    let delete = |action: &str| request(action, "files.delete", json!({ "path": "workspace/x.txt" }));
    let question = held(&runtime, delete("d-1")).await;
    assert!(question.reasons[0].contains("R4"), "{question:?}");
    assert!(place.note("x.txt").exists());
    // Neither a grant nor a standing approval replaces a person here.
    let services = runtime.pipeline().services();
    let wish = |how| Approve { how, ..Approve::default() };
    let grant = How::Grant { org: false, calls_max: Some(9), lasts: None };
    let no = approve(services, &question.approval_id, &operator(&runtime), wish(grant)).await;
    assert!(matches!(no, Err(DecideError::Forbidden(_))), "{no:?}");
    let receipt = approved(&runtime, delete("d-2")).await;
    assert_eq!((receipt.outcome, receipt.action_id.as_str()), (Outcome::Executed, "d-1"));
    assert_eq!(receipt.decision.unwrap().clamped_by.as_deref(), Some("tier_floor"));
    assert_eq!(receipt.isolation.unwrap().profile, "high_isolation");
    assert!(!place.note("x.txt").exists());
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_asked_about_and_run_when_a_person_says_yes() {
    let place = dangerous();
    std::fs::write(place.note("lines.txt"), "1\n2\n3\n").unwrap();
    let runtime = place.runtime().await;
    let count = request("c-1", "command.run", json!({ "argv": ["wc", "-l", "lines.txt"] }));
    let receipt = approved(&runtime, count).await;
    assert_eq!((receipt.outcome, &receipt.outputs["exit_code"]), (Outcome::Executed, &json!(0)));
    assert!(receipt.approval.is_some());
    let Ok(Answer::Done(done)) = runtime.pipeline().wait(&"c-1".parse().unwrap()).await else {
        panic!("c-1 has no end");
    };
    let done = results::fill(runtime.pipeline().services(), done).await;
    assert_eq!(done.result.unwrap().unwrap()["stdout"], "3 lines.txt\n");
    // Two equal requests are one question and one run, even without an idempotency key.
    let remove = |action: &str| request(action, "command.run", json!({ "argv": ["rm", "lines.txt"] }));
    let (one, two) = (held(&runtime, remove("c-2")).await, held(&runtime, remove("c-3")).await);
    assert_eq!(one.approval_id, two.approval_id);
    let services = runtime.pipeline().services();
    approve(services, &one.approval_id, &operator(&runtime), Approve::default()).await.unwrap();
    for action in ["c-2", "c-3"] {
        let Ok(Answer::Done(done)) = runtime.pipeline().wait(&action.parse().unwrap()).await else {
            panic!("{action} has no end");
        };
        assert_eq!((done.receipt.action_id.as_str(), done.receipt.outcome), ("c-2", Outcome::Executed));
    }
    assert!(!place.note("lines.txt").exists());
    // A program that is not on the list is denied without a question.
    let other = request("c-4", "command.run", json!({ "argv": ["cat", "x"] }));
    let Answer::Done(done) = runtime.exec(other).await else { panic!("not asked about") };
    assert_eq!(done.receipt.outcome, Outcome::DeniedPolicy);
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_in_a_command_is_refused_or_passed_unchanged() {
    let place = allowing(&["git"]);
    let argv = ["git", "config", "--file", "config", "user.email", "a@b.example"];
    let set = |action: &str| request(action, "command.run", json!({ "argv": argv }));
    let runtime = place.runtime().await;
    let Answer::Done(done) = runtime.exec(set("g-1")).await else { panic!("not refused") };
    let message = &done.receipt.error.as_ref().unwrap().message;
    assert!(message.contains("needs /argv/5 unchanged"), "{message}");
    assert!(runtime.stop().await);
    let file = place.state().join("policy/policy.toml");
    let rule = "\n[[redaction.rules]]\nspace = \"shared:household\"\nthen = \"pass\"\n";
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + rule).unwrap();
    let runtime = place.runtime().await;
    let receipt = approved(&runtime, set("g-2")).await;
    assert_eq!((receipt.outcome, &receipt.outputs["exit_code"]), (Outcome::Executed, &json!(0)));
    assert_eq!(receipt.decision.unwrap().facts["inspection"]["personal_passed"], json!(["/argv/5"]));
    assert_eq!(std::fs::read_to_string(place.note("config")).unwrap(), "[user]\n\temail = a@b.example\n");
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_lies_sealed_and_is_gone_when_it_is_settled() {
    let place = dangerous();
    let runtime = place.runtime().await;
    let secret = "the-secret-that-nobody-finds";
    let note = |action: &str| {
        request(action, "files.write_text", json!({ "path": "workspace/s.txt", "text": secret }))
    };
    let question = held(&runtime, note("s-1")).await;
    let services = runtime.pipeline().services();
    deny(services, &question.approval_id, &operator(&runtime), None).await.unwrap();
    let receipt = approved(&runtime, note("s-2")).await;
    assert_eq!(receipt.outcome, Outcome::Executed);
    assert_eq!(std::fs::read_to_string(place.note("s.txt")).unwrap(), secret);
    assert!(runtime.stop().await);
    for (path, bytes) in place.state_bytes() {
        let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "{} holds it in clear", path.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_actions_of_a_question_end_in_few_blocks() {
    let place = dangerous();
    let runtime = place.runtime().await;
    let ids: Vec<String> = (0..24).map(|nth| format!("e-{nth}")).collect();
    let mut questions = Vec::new();
    for id in &ids {
        let note = request(id, "files.write_text", json!({ "path": "workspace/e.txt", "text": "e" }));
        questions.push(held(&runtime, note).await.approval_id);
    }
    assert!(questions.iter().all(|id| *id == questions[0]), "they share a question: {questions:?}");
    let before = runtime.store().stats().blocks;
    deny(runtime.pipeline().services(), &questions[0], &operator(&runtime), None).await.unwrap();
    for id in &ids {
        let Ok(Answer::Done(done)) = runtime.pipeline().wait(&id.parse().unwrap()).await else {
            panic!("{id} has no end")
        };
        assert_eq!((done.receipt.outcome, done.receipt.action_id.as_str()), (Outcome::DeniedHuman, "e-0"));
    }
    let blocks = runtime.store().stats().blocks - before;
    assert!(blocks < 12, "{blocks} blocks");
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn by_the_clock_a_question_is_open_for_a_day_and_not_longer() {
    let place = dangerous();
    let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
    let mut config = Config::embedded(place.state()).unwrap();
    config.zygote_exe = program().into();
    config.clock = clock.clone();
    let runtime = Runtime::start(config).await.unwrap();
    let note = |action: &str| {
        request(action, "files.write_text", json!({ "path": format!("workspace/{action}"), "text": "t" }))
    };
    let (first, second) = (held(&runtime, note("t-1")).await, held(&runtime, note("t-2")).await);
    let (services, by) = (runtime.pipeline().services(), operator(&runtime));
    clock.advance(Duration::from_secs(86_399));
    approve(services, &first.approval_id, &by, Approve::default()).await.unwrap();
    clock.advance(Duration::from_secs(1));
    // Before any sweep: the decision finds it expired, and ends it.
    let late = approve(services, &second.approval_id, &by, Approve::default()).await;
    assert!(matches!(late, Err(DecideError::Expired(_))), "{late:?}");
    let Ok(Answer::Done(done)) = runtime.pipeline().wait(&"t-2".parse().unwrap()).await else {
        panic!("no end")
    };
    assert_eq!(done.receipt.outcome, Outcome::Expired);
    let Ok(Answer::Done(done)) = runtime.pipeline().wait(&"t-1".parse().unwrap()).await else {
        panic!("no end")
    };
    assert_eq!(done.receipt.outcome, Outcome::Executed);
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mode_with_an_end_ends_by_the_clock_and_starts_nothing() {
    let place = Place::seeded();
    let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
    let start = async || {
        let mut config = Config::embedded(place.state()).unwrap();
        config.zygote_exe = program().into();
        config.clock = clock.clone();
        Runtime::start(config).await.unwrap()
    };
    let note = |action: &str| {
        request(action, "files.write_text", json!({ "path": format!("workspace/{action}"), "text": "t" }))
    };
    let runtime = start().await;
    let until = Timestamp::from_second(1_800_001_800).unwrap();
    let mode = Some(SetMode::Ending { mode: Mode::RequireApproval, until, then: None });
    let (org, tool) = ("home".to_owned(), "files.write_text".to_owned());
    runtime.change_policy(effectd_policy::Change::SetOrgMode { org, tool, mode }).unwrap();
    held(&runtime, note("m-1")).await;
    assert!(runtime.stop().await);
    clock.advance(Duration::from_secs(1_799));
    let runtime = start().await;
    held(&runtime, note("m-2")).await;
    clock.advance(Duration::from_secs(1));
    assert!(matches!(runtime.exec(note("m-3")).await, Answer::Done(_)), "the mode of the files counts");
    assert!(!place.note("m-1").exists() && !place.note("m-2").exists());
    let (services, by) = (runtime.pipeline().services().clone(), operator(&runtime).principal);
    perform(services, Operation::Rejudge {}, Terms::default(), by).await.unwrap();
    for action in ["m-1", "m-2"] {
        let Ok(Answer::Done(done)) = runtime.pipeline().wait(&action.parse().unwrap()).await else {
            panic!("{action} has no end")
        };
        assert_eq!(done.receipt.outcome, Outcome::Executed);
    }
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_cannot_be_read_keeps_nobody_from_the_others() {
    let place = dangerous();
    let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
    let start = async || {
        let mut config = Config::embedded(place.state()).unwrap();
        config.zygote_exe = program().into();
        config.clock = clock.clone();
        Runtime::start(config).await.unwrap()
    };
    let runtime = start().await;
    let params = json!({ "path": "workspace/d.txt", "text": "d" });
    held(&runtime, request("d-1", "files.write_text", params)).await;
    // Its key sorts before all others.
    let damaged = Swap {
        family: FamilyName::new("holds").unwrap(),
        key: "0".to_owned(),
        expect: Expect::Absent,
        change: KvChange::Put(NewBody::Clear(b"{".to_vec())),
    };
    let change = Change { swaps: vec![damaged], ..Change::default() };
    runtime.store().change(change).await.unwrap();
    assert!(runtime.stop().await);
    clock.advance(Duration::from_secs(86_400));
    // The next start checks every hold.
    let runtime = start().await;
    let waited = "d-1".parse().unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(60), runtime.pipeline().wait(&waited));
    let Ok(Ok(Answer::Done(done))) = ended.await else { panic!("no end") };
    assert_eq!(done.receipt.outcome, Outcome::Expired);
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_is_gone_leaves_its_question_open() {
    let place = dangerous();
    std::fs::write(place.note("x.txt"), "x").unwrap();
    let runtime = place.runtime().await;
    let delete = request("g-1", "files.delete", json!({ "path": "workspace/x.txt" }));
    let (action, by) = (delete.action_id.clone(), operator(&runtime));
    let question = held(&runtime, delete).await;
    assert!(runtime.pipeline().give_up(&action, &by).await.unwrap().is_none());
    let services = runtime.pipeline().services();
    approve(services, &question.approval_id, &by, Approve::default()).await.unwrap();
    match runtime.pipeline().wait(&action).await.unwrap() {
        Answer::Done(done) => assert_eq!(done.receipt.outcome, Outcome::Executed),
        other @ (Answer::Held(_) | Answer::Refused(_)) => panic!("{other:?}"),
    }
    assert!(!place.note("x.txt").exists());
    assert!(runtime.stop().await);
}
