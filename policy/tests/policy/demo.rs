//! The preset `household` permits the quickstart and nothing else.

use effectd_contracts::{ActionRequest, Gate, GateResult, Principal, Timestamp};
use effectd_policy::{Facts, Overlay, Policy, Preset, Source, Verdict, evaluate, inspect};
use serde_json::{Value, json};

use crate::harness::{assert_denied, spec};

fn quickstart() -> Value {
    json!({
        "action_id": "a-1", "subject_id": "agent://planner@deviceA", "space_id": "shared:household",
        "tool_id": "files.write_text",
        "params": { "path": "workspace/notes/w36.txt", "text": "hello", "space_id": "shared:household" },
        "qos": { "timeout_ms": 3000 }, "policy_ctx": { "actor": "alice", "device": "phone1" },
    })
}

fn decide(request: Value, policy: &Policy, now: Timestamp) -> effectd_policy::Decision {
    let request: ActionRequest = serde_json::from_value(request).unwrap();
    let inspection = inspect(&request.params, &spec(), &request.space_id, policy);
    let facts =
        Facts::of(&request, &spec(), &Principal::new("user://whoever").unwrap(), now, &inspection.facts);
    evaluate(&facts, policy)
}

fn demo_policy() -> Policy {
    Policy::compile(&Preset::Household.source(), &Overlay::default()).unwrap()
}

#[test]
fn the_quickstart_is_permitted_and_an_empty_policy_denies_it() {
    let policy = demo_policy();
    for hour in 0..24 {
        let now: Timestamp = format!("2026-05-05T{hour:02}:30:00Z").parse().unwrap();
        let decision = decide(quickstart(), &policy, now);
        assert_eq!(decision.verdict, Verdict::Permit);
        assert_eq!(decision.rule, "planners-in-shared-spaces (household.cedar:6)");
        assert_eq!(decision.gates.get(Gate::Redaction), GateResult::NotApplicable);
    }
    let empty = Policy::compile(&Source::new("version = 1", []), &Overlay::default()).unwrap();
    assert_denied(&decide(quickstart(), &empty, Timestamp::UNIX_EPOCH), Gate::Rbac, "principal_unknown");
}

#[test]
fn a_request_with_a_time_of_its_own_is_held_to_it() {
    let mut request = quickstart();
    request["policy_ctx"]["time"] = json!("2025-09-06T12:00:00Z");
    let policy = demo_policy();
    let stale = decide(request.clone(), &policy, "2026-11-15T02:00:00Z".parse().unwrap());
    assert_denied(&stale, Gate::Abac, "clock_skew");
    assert!(
        stale.verdict.reasons()[0].text.contains("away from the runtime's clock; at most 300 s are allowed")
    );
    let fresh = decide(request, &policy, "2025-09-06T12:05:00Z".parse().unwrap());
    assert_eq!(fresh.verdict, Verdict::Permit);
}

#[test]
fn nothing_beside_the_quickstart_is_permitted() {
    let policy = demo_policy();
    let changes = [
        ("/subject_id", json!("agent://other")),
        ("/space_id", json!("shared:garage")),
        ("/space_id", json!("private:alice")),
        ("/policy_ctx/actor", json!("mallory")),
        ("/policy_ctx/device", json!("phone2")),
        ("/params/space_id", json!("private:alice")),
        ("/params/text", json!("#!/bin/sh\nrm -rf /")),
    ];
    for (pointer, value) in changes {
        let mut request = quickstart();
        *request.pointer_mut(pointer).unwrap() = value.clone();
        let decision = decide(request, &policy, Timestamp::UNIX_EPOCH);
        assert_ne!(decision.verdict, Verdict::Permit, "{pointer} = {value}");
    }
}

#[test]
fn the_demo_names_its_space_and_root() {
    let policy = demo_policy();
    let space = policy.spaces().next().unwrap().clone();
    assert_eq!(space.as_str(), "shared:household");
    assert_eq!(policy.space_root(&space).unwrap().to_str(), Some("./workspace"));
}
