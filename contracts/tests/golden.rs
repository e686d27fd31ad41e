//! The JSON forms are stable: this version reads what an earlier one wrote, and writes the same.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use effectd_contracts::schemas;
use effectd_contracts::{
    ActionRequest, DecisionData, Event, ExecutedData, Origin, Plan, PlanResult, PlanStatus, Principal,
    Receipt, Topic,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

fn round_trips<T: Serialize + DeserializeOwned>(text: &str) -> T {
    let value: Value = serde_json::from_str(text).unwrap();
    let typed: T = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&typed).unwrap(), value);
    typed
}

#[test]
fn the_documented_request_round_trips() {
    let text = include_str!("golden/action_request.json");
    let request: ActionRequest = round_trips(text);
    assert_eq!(ActionRequest::parse(text.as_bytes()).unwrap(), request);
}

#[test]
fn a_request_may_name_only_a_timeout() {
    let mut value: Value = serde_json::from_str(include_str!("golden/action_request.json")).unwrap();
    value["qos"] = json!({ "timeout_ms": 3000 });
    let request: ActionRequest = round_trips(&value.to_string());
    assert_eq!((request.qos.timeout_ms, request.qos.retries()), (Some(3000), 0));
}

#[test]
fn a_receipt_has_its_fifteen_keys_and_round_trips() {
    let text = include_str!("golden/receipt.json");
    let receipt: Receipt = round_trips(text);
    let written = serde_json::to_value(&receipt).unwrap();
    let fifteen = [
        "receipt_id",
        "action_id",
        "tool_id",
        "space_id",
        "subject_id",
        "status",
        "error",
        "inputs",
        "outputs",
        "policy",
        "cost",
        "timing",
        "idempotency_key",
        "trace_id",
        "reward",
    ];
    for key in fifteen {
        assert!(written.get(key).is_some(), "{key}");
    }
}

#[test]
fn the_event_follows_from_the_receipt_and_holds_no_parameter() {
    let receipt: Receipt = round_trips(include_str!("golden/receipt.json"));
    let mut expected: Value =
        serde_json::from_str(include_str!("golden/action_executed_event.json")).unwrap();
    let _: Event<ExecutedData> = round_trips(&expected.to_string());
    let event = Event::executed(&receipt, "2026-01-01T00:00:00.0036Z".parse().unwrap());
    assert_eq!(
        event,
        Event::executed(&receipt, event.time),
        "the id is derived, so a second event is the same event"
    );
    expected["id"] = json!(event.id.as_str());
    assert_eq!(serde_json::to_value(&event).unwrap(), expected);
    assert!(!expected.to_string().contains("w36.txt"));
}

#[test]
fn a_decision_sent_twice_is_one_event() {
    let request: ActionRequest = round_trips(include_str!("golden/action_request.json"));
    let trace = request.trace_id.clone().unwrap();
    let principal = Principal::new("user://alice").unwrap();
    let data =
        DecisionData { clock_skew_ms: Some(12), ..DecisionData::new(request, principal, Origin::Arbiter) };
    let event = Event::decision(data.clone(), trace.clone(), "2026-01-01T00:00:00Z".parse().unwrap());
    let again = Event::decision(data, trace, "2026-01-02T00:00:00Z".parse().unwrap());
    assert_eq!(event.id, again.id);
    assert_eq!(event.event_type, Topic::ActionDecision.event_type());
    let _: Event<DecisionData> = round_trips(&serde_json::to_string(&event).unwrap());
}

/// Set `EFFECTD_BLESS=1` to write the schemas after a deliberate change.
#[test]
fn published_schemas_are_those_of_the_types() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schemas");
    for (name, schema) in schemas::all() {
        let made = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
        let path = folder.join(name);
        if std::env::var_os("EFFECTD_BLESS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let published = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            published == made,
            "docs/schemas/{name} is not what the types say; EFFECTD_BLESS=1 cargo test writes it"
        );
        jsonschema::draft202012::meta::validate(schema.as_value()).unwrap();
    }
}

/// The envelopes of the action API: nothing in them may be removed or renamed.
#[test]
fn the_envelopes_of_plans_are_frozen() {
    let sample: Value = serde_json::from_str(include_str!("golden/plans/sample.json")).unwrap();
    let plan = Plan::parse(sample.to_string().as_bytes()).unwrap();
    let mut written = serde_json::to_value(&plan).unwrap();
    // What is null may be left out.
    written["rollbackPlan"] = Value::Null;
    assert_eq!(written, sample);
    let mut later = sample.clone();
    later["dueBy"] = json!("tomorrow");
    later["scope"]["allowedHosts"] = json!([]);
    let kept = serde_json::to_value(Plan::parse(later.to_string().as_bytes()).unwrap()).unwrap();
    assert_eq!((&kept["dueBy"], &kept["scope"]), (&later["dueBy"], &later["scope"]));
    for (name, text) in [
        ("succeeded", include_str!("golden/plans/succeeded.json")),
        ("reverted", include_str!("golden/plans/reverted.json")),
        ("queued", include_str!("golden/plans/queued.json")),
        ("rejected", include_str!("golden/plans/rejected.json")),
        ("failed", include_str!("golden/plans/failed.json")),
    ] {
        let result: PlanResult = round_trips(text);
        assert_eq!(result.status.as_str(), name);
        let written = serde_json::to_value(&result).unwrap();
        for key in
            ["status", "actionType", "riskTier", "output", "verification", "repair", "rollback", "feedback"]
        {
            assert!(written.get(key).is_some(), "{name}: {key}");
        }
    }
    assert_eq!(PlanStatus::ALL.len(), 5);
}

#[test]
fn golden_documents_fit_their_published_schemas() {
    let documents = [
        ("action-request.json", include_str!("golden/action_request.json")),
        ("receipt.json", include_str!("golden/receipt.json")),
        ("action-executed-event.json", include_str!("golden/action_executed_event.json")),
    ];
    for (name, text) in documents {
        let (_, schema) = schemas::all().into_iter().find(|(file, _)| *file == name).unwrap();
        let validator = jsonschema::draft202012::new(schema.as_value()).unwrap();
        let document: Value = serde_json::from_str(text).unwrap();
        let problems: Vec<_> = validator.iter_errors(&document).map(|e| e.to_string()).collect();
        assert!(problems.is_empty(), "{name}: {problems:?}");
        let mut wrong = document;
        wrong["colour"] = json!("blue");
        wrong["data"]["colour"] = json!("blue");
        assert!(!validator.is_valid(&wrong), "{name} lets an unknown name pass");
    }
}
