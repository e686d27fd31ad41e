//! Plans by HTTP and by MCP: the five words, and the answers about what is no plan.

use serde_json::{Value, json};

use crate::harness::{Place, Serving};
use crate::mcp::modern;

fn plan(id: &str, text: &str) -> Value {
    json!({
        "actionId": id, "actionType": "files.write_text", "riskTier": "R2",
        "input": { "path": "workspace/a.txt", "text": text }, "rollbackPlan": { "restore": "the file" },
        "verification": { "required": true, "commands": ["grep -q good a.txt"] },
        "scope": { "allowedFiles": ["a.txt"] },
        "spaceId": "shared:household", "subjectId": "agent://planner@deviceA",
    })
}

/// A place whose policy names the check.
fn place() -> Place {
    let place = Place::seeded();
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        format!("{text}\n[commands.good]\nargv = [\"grep\", \"-q\", \"good\", \"a.txt\"]\n"),
    )
    .unwrap();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    place
}

#[test]
fn a_plan_ends_in_one_of_five_words_by_every_door() {
    let place = place();
    let daemon = place.serve(&[]);
    assert_eq!(daemon.get("/healthz").json(200)["action_api"], "v4.0.17 LTS");
    let done = daemon.post("/v1/plans", &plan("p-1", "good")).json(200);
    assert_eq!((&done["status"], &done["actionId"]), (&json!("succeeded"), &json!("p-1")));
    let receipt = done["feedback"]["receiptId"].as_str().unwrap();
    let receipt = daemon.get(&format!("/v1/receipts/{receipt}")).json(200);
    assert_eq!(receipt["plan"]["result_status"], "succeeded");
    assert_eq!(daemon.post("/v1/plans", &plan("p-1", "good")).json(200), done, "a repeat is harmless");
    daemon.post("/v1/plans", &plan("p-1", "good and other")).problem(409, "action_conflict");
    let wrong = daemon.post("/v1/plans", &plan("p-2", "bad")).json(200);
    assert_eq!((&wrong["status"], &wrong["rollback"]["ok"]), (&json!("reverted"), &json!(true)));
    assert_eq!(daemon.get("/v1/plans/p-2").json(200), wrong);
    let mut asks = plan("p-3", "good");
    asks["riskTier"] = Value::Null;
    let queued = daemon.post("/v1/plans", &asks).json(202);
    assert_eq!(queued["status"], "queued");
    assert_eq!(daemon.get("/v1/plans/p-3").json(202), queued);
    let approval = queued["feedback"]["approvalId"].as_str().unwrap();
    let shown = daemon.get(&format!("/v1/approvals/{approval}")).json(200);
    assert_eq!(
        shown["prompt"]["contract"]["verification"]["commands"],
        json!(["grep -q good a.txt"]),
        "{shown}"
    );
    let yes = json!({ "digest": shown["digest"], "how": "once" });
    assert!(daemon.post(&format!("/v1/approvals/{approval}/approve?wait_ms=60000"), &yes).status < 300);
    assert_eq!(daemon.get("/v1/plans/p-3").json(200)["status"], "succeeded");
    for (name, says) in [("actionType", "actionType"), ("input", "input"), ("verification", "verification")] {
        let mut bare = plan("p-4", "good");
        bare.as_object_mut().unwrap().remove(name);
        let problem = daemon.post("/v1/plans", &bare).problem(400, "malformed");
        assert!(problem["detail"].as_str().unwrap().contains(says), "{problem}");
    }
    daemon.get("/v1/plans/p-4").problem(404, "action_unknown");
    let mut by_mcp = plan("p-5", "bad");
    // Who acts where is not for the model to say.
    by_mcp["subjectId"] = json!("agent://somebody-else");
    by_mcp["spaceId"] = json!("shared:elsewhere");
    let answer = modern(&daemon, "tools/call", json!({ "name": "effectd_plan", "arguments": by_mcp }));
    let result = &answer["structuredContent"];
    assert_eq!(
        (&result["status"], &result["repair"]["attempted"]),
        (&json!("reverted"), &json!(true)),
        "{answer}"
    );
    assert_eq!(daemon.stop(), 0);
    let told = place.effectd(&["plan", "show", "p-2"], None);
    assert_eq!(told.code(), 1);
    for says in [
        "reverted  files.write_text  R2",
        "check     failed (exit 1): grep -q good a.txt",
        "rollback  succeeded",
    ] {
        assert!(told.stdout().contains(says), "{says}: {}", told.stdout());
    }
    let version = place.effectd(&["version", "-o", "json"], None).json(0);
    assert_eq!(version["action_api"], "v4.0.17 LTS");
}
