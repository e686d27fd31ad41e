//! Plans that are killed with the runtime, wherever they are: the next start restores the files, or says which it could not.

use effectd::contracts::{Code, Outcome, PlanStatus, Receipt};
use serde_json::{Value, json};

use crate::Test;
use crate::every_tool::SPACE;
use crate::place::{Order, Place};

pub(crate) const TESTS: &[Test] = &[
    ("a_killed_plan_is_rolled_back_by_the_next_start", rolled_back),
    ("a_killed_plan_that_cannot_be_rolled_back_names_the_paths", meddled),
    ("a_killed_plan_that_is_refused_since_then_is_restored", refused),
];

/// A place whose policy names a check that never passes.
fn place() -> Place {
    let place = Place::new();
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}\n[commands.never]\nargv = [\"false\"]\n")).unwrap();
    std::fs::write(place.workspace().join("old"), "as it was").unwrap();
    place
}

fn plan(path: &str) -> Value {
    json!({
        "actionId": "p", "actionType": "files.write_text", "riskTier": "R2",
        "input": { "path": format!("workspace/{path}"), "text": "new", "space_id": SPACE },
        "rollbackPlan": { "restore": "the file" },
        "verification": { "required": true, "commands": ["false"] },
        "scope": { "allowedFiles": [path] },
        "spaceId": SPACE, "subjectId": "agent://planner@deviceA",
    })
}

/// Kills the runtime at a point, meddles, and returns the one receipt that the next start writes: asked again, or by itself.
fn killed(place: &Place, plan: &Value, point: &str, next: &'static str, meddle: impl FnOnce()) -> Receipt {
    let order = Order { mode: "plan", requests: vec![plan.clone()], stop_at: Some(point.to_owned()) };
    let process = place.start(&order);
    assert!(process.stopped(&mut Vec::new()), "{point} is not reached");
    process.kill_all();
    meddle();
    let ended = place.run(next, std::slice::from_ref(plan));
    ended.report.all_settled();
    ended.report.the_receipt("p").clone()
}

/// After the claim, in the run, before the verification, in the repair, and in the rollback.
const POINTS: [&str; 9] = [
    "idempotency.after_claim:1",
    "executor.before_child:1",
    "executor.after_child:1",
    "plan.before_verify:1",
    "plan.before_repair:1",
    "executor.before_child:2",
    "plan.before_verify:2",
    "plan.before_rollback:2",
    "plan.after_rollback:2",
];

fn rolled_back() {
    for (path, before, points) in
        [("old", Some("as it was"), &POINTS[..]), ("fresh/new", None, &POINTS[3..8])]
    {
        for point in points {
            let place = place();
            let receipt = killed(&place, &plan(path), point, "plan", || {});
            let now = std::fs::read_to_string(place.workspace().join(path)).ok();
            assert_eq!(now.as_deref(), before, "{point}: {path}");
            let record = receipt.plan.unwrap();
            assert_eq!(receipt.outcome, Outcome::Reverted, "{point}: {:?}", receipt.error);
            assert_eq!((record.result_status, record.rollback.ok), (PlanStatus::Reverted, true), "{point}");
            assert!(record.not_restored.is_empty(), "{point}");
            assert!(!place.workspace().join("fresh").exists(), "{point}: the folder is taken away again");
        }
    }
}

fn meddled() {
    let place = place();
    let old = place.workspace().join("old");
    let theirs = || std::fs::write(&old, "theirs").unwrap();
    let receipt = killed(&place, &plan("old"), "plan.before_verify:1", "plan", theirs);
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "theirs");
    assert_eq!(receipt.error.unwrap().code, Code::RollbackFailed);
    let record = receipt.plan.unwrap();
    assert_eq!(
        (record.result_status, record.not_restored),
        (PlanStatus::Failed, vec!["workspace/old".to_owned()])
    );
}

/// No gate stops the rollback, not even that of a policy that no longer names the check.
fn refused() {
    let place = place();
    let policy = place.state().join("policy/policy.toml");
    let receipt = killed(&place, &plan("old"), "plan.before_verify:1", "plan_ends", || {
        let text = std::fs::read_to_string(&policy).unwrap();
        std::fs::write(&policy, text.split("\n[commands.never]").next().unwrap()).unwrap();
    });
    assert_eq!(std::fs::read_to_string(place.workspace().join("old")).unwrap(), "as it was");
    let failure = receipt.error.unwrap();
    assert_eq!((receipt.outcome, failure.code), (Outcome::Indeterminate, Code::OutcomeUnknown));
    assert!(failure.message.contains("are restored"), "{failure}");
}
