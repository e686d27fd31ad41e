//! Plans: executed, verified, repaired once, rolled back, and told in five words.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use effectd::contracts::{Code, Effects, Origin, Plan, PlanResult, PlanStatus, PlanStep, Receipt};
use effectd::internal::{Config, Runtime};
use effectd_actors::approvals::decide::{Approve, approve};
use effectd_actors::effects::results;
use effectd_actors::{Answer, Decider, Incoming};
use serde_json::{Value, json};

use crate::harness::{Place, Running, root, until};

/// The checks of these tests, as the policy names them.
const COMMANDS: &str = r#"
[commands.is-good]
argv = ["grep", "-q", "good", "*"]

[commands.script]
argv = ["sh", "check.sh"]
caches = ["cache"]

[commands.missing]
argv = ["no-such-program"]

[commands.writer]
argv = ["sh", "write.sh"]
writes = ["out"]
"#;

/// A place whose policy names the checks, and permits programs after an approval.
fn place() -> Place {
    let place = crate::approvals::allowing(&["sh"]);
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    // These plans say themselves how dangerous they are.
    let text = text.replace("\"files.write_text\" = \"require_approval\", ", "");
    std::fs::write(&file, format!("{text}\n{COMMANDS}\n")).unwrap();
    for folder in ["cache", "out", "in"] {
        std::fs::create_dir(place.note(folder)).unwrap();
    }
    place
}

/// A plan of tier R2 that writes a text, and is right if the file is good.
fn plan(id: &str, text: &str) -> Value {
    json!({
        "actionId": id, "actionType": "files.write_text", "riskTier": "R2", "confidence": 0.8, "reason": "a test",
        "input": { "path": "workspace/a.txt", "text": text, "space_id": "shared:household" },
        "rollbackPlan": { "restore": "the file" },
        "verification": { "required": true, "commands": ["grep -q good a.txt"] },
        "scope": { "allowedFiles": ["a.txt"] },
        "spaceId": "shared:household", "subjectId": "agent://planner@deviceA",
    })
}

fn with(mut plan: Value, pointer: &str, value: Value) -> Value {
    let (above, name) = pointer.rsplit_once('/').unwrap();
    plan.pointer_mut(above).unwrap()[name] = value;
    plan
}

fn incoming(plan: &Value) -> Incoming {
    let plan = Plan::parse(plan.to_string().as_bytes()).unwrap();
    let (request, contract) = plan.compile(None, None).unwrap();
    Incoming {
        request: Arc::new(request),
        principal: Config::embedded(".").unwrap().principal,
        origin: Origin::Plan,
        contract: Some(contract),
        interactive: false,
    }
}

/// The receipt and the result of a plan about which nobody is asked.
async fn ended(runtime: &Runtime, plan: &Value) -> (Receipt, PlanResult) {
    match runtime.pipeline().exec(incoming(plan)).await {
        Answer::Done(done) => {
            let done = results::fill(runtime.pipeline().services(), done).await;
            let kept = done.result.unwrap();
            let result = PlanResult::of_receipt(&done.receipt, kept.as_deref()).unwrap();
            ((*done.receipt).clone(), result)
        }
        other @ (Answer::Held(_) | Answer::Refused(_)) => panic!("{other:?}"),
    }
}

/// The same after a person has approved.
async fn approved(runtime: &Runtime, plan: &Value) -> (Receipt, PlanResult) {
    let action = plan["actionId"].as_str().unwrap().parse().unwrap();
    let Answer::Held(held) = runtime.pipeline().exec(incoming(plan)).await else { panic!("nobody is asked") };
    let by = Decider::local(Config::embedded(".").unwrap().principal, true);
    approve(runtime.pipeline().services(), &held.approval_id, &by, Approve::default()).await.unwrap();
    runtime.pipeline().wait(&action).await.unwrap();
    ended(runtime, plan).await
}

fn steps(result: &PlanResult) -> Vec<(&'static str, bool)> {
    result.transitions.iter().map(|step| (step.step.as_str(), step.ok)).collect()
}

fn read(place: &Place, name: &str) -> Option<String> {
    std::fs::read_to_string(place.note(name)).ok()
}

#[test]
fn the_five_results_are_the_frozen_ones() {
    let place = place();
    let asked_first = with(plan("p-queued", "good"), "/riskTier", Value::Null);
    std::fs::write(place.note("blocker"), "").unwrap();
    let sample: Value =
        serde_json::from_str(include_str!("../../contracts/tests/golden/plans/sample.json")).unwrap();
    let failing = with(
        json!({
            "actionId": "p-failed", "actionType": "diagnose_error", "riskTier": "R1", "input": {},
            "verification": { "required": true, "commands": ["grep -q good a.txt"] },
        }),
        "/confidence",
        json!(0.5),
    );
    for (name, plan, code) in [
        ("succeeded", sample, 0),
        ("reverted", plan("p-reverted", "bad"), 1),
        ("queued", asked_first, 4),
        ("rejected", with(plan("p-rejected", "good"), "/scope/allowedFiles", json!([])), 3),
        ("failed", failing, 1),
    ] {
        let ran = place.effectd(&["plan", "run", "-", "-o", "json"], Some(&plan.to_string()));
        assert_eq!(ran.code(), code, "{name}: {} {}", ran.stdout(), ran.stderr());
        let mut result: Value = serde_json::from_str(&ran.stdout()).unwrap();
        for id in ["receiptId", "approvalId"] {
            if let Some(id) = result["feedback"].get_mut(id) {
                *id = json!("an id");
            }
        }
        let file = root().join(format!("contracts/tests/golden/plans/{name}.json"));
        if std::env::var_os("EFFECTD_BLESS").is_some() {
            std::fs::write(&file, format!("{}\n", serde_json::to_string_pretty(&result).unwrap())).unwrap();
        }
        let golden: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(result, golden, "{name}");
    }
    assert_eq!(read(&place, "a.txt"), None, "only the sample succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_stays_wrong_is_repaired_once_and_rolled_back() {
    let place = place();
    std::fs::write(place.note("a.txt"), "as it was").unwrap();
    let runtime = place.runtime().await;
    let (receipt, result) = ended(&runtime, &plan("p-1", "bad")).await;
    assert_eq!(result.status, PlanStatus::Reverted);
    let all = [
        ("execute", true),
        ("verify", false),
        ("repair", true),
        ("verify", false),
        ("rollback", true),
        ("feedback", true),
    ];
    assert_eq!(steps(&result), all);
    assert_eq!(receipt.attempts.len(), 2, "one run and one repair");
    assert_eq!((result.repair.attempted, result.repair.ok), (true, false));
    let checks = &result.verification.checks;
    assert_eq!((checks.len(), checks[0].ok, checks[0].exit_code), (1, false, Some(1)));
    assert_eq!(read(&place, "a.txt").as_deref(), Some("as it was"));
    let Effects::Observed(observed) = &receipt.effects else { panic!("{:?}", receipt.effects) };
    assert!(observed.changes.is_empty(), "{observed:?}");
    let record = receipt.plan.unwrap();
    assert_eq!((record.result_status, record.rollback.ok), (PlanStatus::Reverted, true));
    // The same plan again is not carried out again.
    assert_eq!(ended(&runtime, &plan("p-1", "bad")).await.0.receipt_id, receipt.receipt_id);
    let (_, good) = ended(&runtime, &plan("p-2", "good")).await;
    assert_eq!((good.status, steps(&good).len()), (PlanStatus::Succeeded, 3));
    assert_eq!(good.output["bytes_written"], 4);
    assert_eq!(read(&place, "a.txt").as_deref(), Some("good"));
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_can_succeed_and_begins_from_the_state_before() {
    let place = place();
    std::fs::write(place.note("a.txt"), "one\n").unwrap();
    // It fails the first time.
    std::fs::write(
        place.note("check.sh"),
        "test -e cache/again && exit 0; touch cache/again; echo not yet; exit 3",
    )
    .unwrap();
    let runtime = place.runtime().await;
    let mut append = with(plan("p-1", ""), "/actionType", json!("files.append_text"));
    append["input"] = json!({ "path": "workspace/a.txt", "text": "two\n", "space_id": "shared:household" });
    let append = with(append, "/verification/commands", json!(["sh check.sh"]));
    let (receipt, result) = ended(&runtime, &append).await;
    assert_eq!(result.status, PlanStatus::Succeeded, "{:?}", result.error);
    assert_eq!((result.repair.attempted, result.repair.ok), (true, true));
    assert_eq!(read(&place, "a.txt").as_deref(), Some("one\ntwo\n"), "appended once");
    assert_eq!(receipt.attempts.len(), 2);
    assert!(!result.transitions.iter().any(|step| step.step == PlanStep::Rollback));
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_without_what_its_tier_demands_is_rejected() {
    let place = place();
    let runtime = place.runtime().await;
    let good = || plan("p", "good");
    for (number, (plan, says)) in [
        (with(good(), "/verification/required", json!(false)), "needs verification"),
        (with(good(), "/rollbackPlan", Value::Null), "needs rollbackPlan"),
        (
            with(good(), "/verification/commands", json!(["grep -q good a.txt; rm -rf x"])),
            "not named by the policy",
        ),
        (with(good(), "/verification/commands", json!(["ls a.txt"])), "not named by the policy"),
        (with(good(), "/verification/commands", json!(["sh write.sh"])), "changes files"),
        (with(good(), "/verification/commands", json!(["grep  -q"])), "one space between"),
        (with(good(), "/scope/forbiddenFiles", json!(["a.txt"])), "forbids"),
        (with(good(), "/scope", json!({ "allowedDirs": ["out"] })), "outside of the plan's scope"),
        (with(good(), "/scope", json!({ "allowedDirs": ["../x"] })), "no path beneath the space"),
        (with(good(), "/scope", json!({})), "outside of the plan's scope"),
        (with(good(), "/actionType", json!("no_such.tool")), "no_such.tool"),
    ]
    .into_iter()
    .enumerate()
    {
        let (receipt, result) = ended(&runtime, &with(plan, "/actionId", json!(format!("p-{number}")))).await;
        let failure = result.error.unwrap();
        assert_eq!(result.status, PlanStatus::Rejected, "{failure}");
        assert!(failure.message.contains(says), "{says}: {failure}");
        assert!(receipt.attempts.is_empty() && receipt.plan.is_some());
    }
    assert_eq!(read(&place, "a.txt"), None);
    // Without a tier it is not malformed, and not run.
    for tier in [Value::Null, json!("R9"), json!(1)] {
        let odd = with(with(good(), "/riskTier", tier.clone()), "/actionId", json!(format!("odd-{tier}")));
        assert!(matches!(runtime.pipeline().exec(incoming(&odd)).await, Answer::Held(_)), "{tier}");
    }
    let more = with(with(good(), "/laterMember", json!([1])), "/actionId", json!("p-more"));
    assert_eq!(ended(&runtime, &more).await.1.status, PlanStatus::Succeeded);
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_plan_has_a_second_result_under_its_id() {
    let place = place();
    let runtime = place.runtime().await;
    // The tool's own tier counts if the plan's is lower.
    let mut asks = with(plan("p-1", ""), "/riskTier", json!("R0"));
    asks["actionType"] = json!("command.run");
    asks["input"] = json!({ "argv": ["sh", "job.sh"], "space_id": "shared:household" });
    asks["scope"] = json!({ "allowedDirs": ["out"], "allowedFiles": ["a.txt"] });
    std::fs::write(place.note("job.sh"), "echo good > a.txt; echo more > out/b").unwrap();
    std::fs::write(place.note("a.txt"), "").unwrap();
    let (receipt, result) = approved(&runtime, &asks).await;
    assert_eq!(result.status, PlanStatus::Succeeded, "{:?}", result.error);
    assert_eq!((result.risk_tier.as_str(), receipt.approval.is_some()), ("R3", true));
    assert_eq!(read(&place, "a.txt").as_deref(), Some("good\n"));
    assert!(runtime.stop().await);
}

/// Each line is an attempt at something outside of the scope, or forbidden in it.
const ATTACK: &str = "\
    echo x > in/sibling && echo a
    echo x > b.txt && echo b
    echo x > out/key && echo c
    rm out/key && echo d
    mv out/key out/other && echo e
    cp check.sh out/key && echo f
    chmod 777 out/key && echo g
    ln -f out/key out/link && echo x > out/link && echo h
    echo x > job.sh && echo i
    mv in out/in && echo j
    echo x > out/free";

#[tokio::test(flavor = "multi_thread")]
async fn the_kernel_keeps_a_tool_in_the_scope_of_its_plan() {
    let place = place();
    for (name, text) in [("in/sibling", "in"), ("b.txt", "b"), ("out/key", "key"), ("job.sh", ATTACK)] {
        std::fs::write(place.note(name), text).unwrap();
    }
    let runtime = place.runtime().await;
    let mut attack = with(plan("p-1", ""), "/riskTier", json!("R3"));
    attack["actionType"] = json!("command.run");
    attack["input"] = json!({ "argv": ["sh", "job.sh"], "space_id": "shared:household" });
    attack["scope"] = json!({ "allowedDirs": ["out"], "forbiddenFiles": ["out/key"] });
    attack["verification"] = json!({ "required": false });
    let (_, result) = approved(&runtime, &attack).await;
    assert_eq!(result.status, PlanStatus::Succeeded, "{:?}", result.error);
    assert_eq!(result.output["stdout"], "", "{:?}", result.output);
    for (name, text) in [("in/sibling", "in"), ("b.txt", "b"), ("out/key", "key"), ("out/free", "x\n")] {
        assert_eq!(read(&place, name).as_deref(), Some(text), "{name}");
    }
    // To make a file, the tool would need its folder: then it could make others there.
    let scope = json!({ "allowedFiles": ["out/deep/a.txt"] });
    let made = with(with(attack.clone(), "/actionId", json!("p-2")), "/scope", scope);
    let (receipt, result) = approved(&runtime, &made).await;
    assert_eq!(result.status, PlanStatus::Rejected, "{:?}", result.error);
    assert_eq!((receipt.error.unwrap().code, receipt.attempts.len()), (Code::ScopeDenied, 0));
    assert!(!place.note("out/deep").exists());
    // A forbidden file that it makes is taken away again.
    std::fs::write(place.note("job.sh"), "echo x > out/new; echo x > out/fine").unwrap();
    let scope = json!({ "allowedDirs": ["out"], "forbiddenFiles": ["out/new"] });
    let made = with(with(attack, "/actionId", json!("p-3")), "/scope", scope);
    let (_, result) = approved(&runtime, &made).await;
    assert_eq!((result.status, result.rollback.ok), (PlanStatus::Rejected, true), "{:?}", result.error);
    assert!(!place.note("out/new").exists() && !place.note("out/fine").exists());
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_that_cannot_restore_names_the_paths() {
    let place = place();
    std::fs::write(place.note("a.txt"), "as it was").unwrap();
    std::fs::write(place.note("check.sh"), "cat gate; exit 1").unwrap();
    nix::unistd::mkfifo(&place.note("gate"), nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    let runtime = place.runtime().await;
    let wrong = with(plan("p-1", "good"), "/verification/commands", json!(["sh check.sh"]));
    let asked = incoming(&wrong);
    let pipeline = runtime.pipeline();
    let (gate, note) = (place.note("gate"), place.note("a.txt"));
    let meddling = tokio::task::spawn_blocking(move || {
        let mut end = None;
        until("the check reads the pipe", || {
            end = File::options().write(true).custom_flags(nix::libc::O_NONBLOCK).open(&gate).ok();
            end.is_some()
        });
        // Somebody else goes on with what the plan wrote.
        std::fs::write(&note, "by a person").unwrap();
        end.unwrap().write_all(b"go").unwrap();
    });
    let answer = pipeline.exec(asked).await;
    meddling.await.unwrap();
    assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
    let (receipt, result) = ended(&runtime, &wrong).await;
    assert_eq!(result.status, PlanStatus::Failed);
    let failure = result.error.unwrap();
    assert_eq!(failure.code, Code::RollbackFailed);
    assert!(failure.message.contains("workspace/a.txt"), "{failure}");
    assert_eq!(receipt.plan.unwrap().not_restored, ["workspace/a.txt"]);
    assert_eq!(read(&place, "a.txt").as_deref(), Some("by a person"));
    // A program that is not there is a check that failed.
    let missing = with(plan("p-2", "good"), "/verification/commands", json!(["no-such-program"]));
    let missing = with(missing, "/input/path", json!("workspace/out/b"));
    let (_, result) = ended(&runtime, &with(missing, "/scope", json!({ "allowedDirs": ["out"] }))).await;
    assert_eq!((result.status, result.verification.checks[0].ok), (PlanStatus::Reverted, false));
    assert!(result.verification.checks[0].output.contains("no program"), "{:?}", result.verification);
    assert!(runtime.stop().await);
}
