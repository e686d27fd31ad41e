//! Dead letters and the store are looked after while the daemon runs, by operators only.

use std::sync::Arc;

use effectd_bus::embedded::{self, EmbeddedConfig};
use effectd_bus::{Completion, NewLetter, NewReceipt, Store, TopicName};
use effectd_contracts::{
    ActionId, Digest, ReceiptId, SpaceId, Status, SubjectId, SystemClock, Timestamp, ToolId, Topic,
};
use serde_json::{Value, json};

use crate::harness::{Place, Ran, Serving, write_note};

/// Leaves a dead letter in a store that nobody has open: a copy of the first decision, about another action.
fn leave_letter(place: &Place, action: &str) {
    let config = EmbeddedConfig::new(place.state());
    let store = embedded::open(config, Arc::new(SystemClock)).unwrap();
    let topic: TopicName = Topic::ActionDecision.into();
    let page = store.read(&topic, 0, 1).unwrap();
    let event: Value = serde_json::from_slice(page.events[0].body.bytes().unwrap()).unwrap();
    let mut data = event["data"].clone();
    data["request"] = write_note(action, action, "at last");
    let letter = NewLetter {
        topic,
        code: "timed_out".into(),
        detail: "no answer within 30 s".into(),
        attempts: 1,
        payload: serde_json::to_vec(&data).unwrap(),
    };
    let receipt = NewReceipt {
        receipt_id: ReceiptId::fresh(),
        action_id: ActionId::new(action).unwrap(),
        action_digest: Digest::of(b"request"),
        tool_id: ToolId::new("files.write_text").unwrap(),
        subject_id: SubjectId::new("agent://planner@deviceA").unwrap(),
        space_id: SpaceId::new("shared:household").unwrap(),
        status: Status::Error,
        key: None,
        params_digest: Digest::of(b"params"),
        time: Timestamp::now(),
        body: b"{}".to_vec(),
    };
    let completion = Completion {
        receipt,
        events: Vec::new(),
        fence: None,
        leases: Vec::new(),
        letter: Some(letter),
        retire: Vec::new(),
        links: Vec::new(),
    };
    store.commit(completion).wait().unwrap();
    store.close().unwrap();
}

/// A command, which must go through the daemon.
#[track_caller]
fn through(place: &Place, arguments: &[&str]) -> Ran {
    let ran = place.effectd(arguments, None);
    assert!(!ran.stderr().contains("no daemon answers"), "{}", ran.stderr());
    ran
}

#[test]
fn dead_letters_are_looked_after_while_the_daemon_runs() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let done = daemon.post("/v1/actions?wait=true", &write_note("first", "first", "x"));
    assert_eq!(done.status, 200);
    assert_eq!(daemon.stop(), 0);
    for action in ["l-0", "l-1", "l-2"] {
        leave_letter(&place, action);
    }
    let daemon = place.serve(&[]);
    let listed = through(
        &place,
        &["dlq", "list", "--tool", "files.write_text", "-o", "json"],
    )
    .json(0);
    assert_eq!(listed.as_array().map(Vec::len), Some(3), "{listed}");
    assert!(
        !listed.to_string().contains("at last"),
        "parameters are not shown"
    );
    let shown = through(&place, &["dlq", "show", "1", "-o", "json"]).json(0);
    assert_eq!(
        (&shown["action_id"], &shown["attempts"]),
        (&json!("l-1"), &json!(1)),
        "{shown}"
    );
    assert_eq!(through(&place, &["dlq", "show", "9"]).code(), 1);
    daemon.get("/v1/dlq/9").problem(404, "letter_unknown");
    daemon.get("/v1/dlq/nine").problem(404, "letter_unknown");
    daemon.get("/v1/dlq?colour=red").problem(400, "query_invalid");
    let causes = through(&place, &["dlq", "causes", "-o", "json"]).json(0);
    assert_eq!(
        (&causes[0]["count"], causes.as_array().map(Vec::len)),
        (&json!(3), Some(1))
    );
    assert_eq!(through(&place, &["dlq", "purge", "2"]).code(), 0);
    let requeued = through(&place, &["dlq", "requeue", "--all", "-o", "json"]).json(0);
    assert_eq!(requeued.as_array().map(Vec::len), Some(2), "{requeued}");
    let again = through(&place, &["dlq", "requeue", "0", "-o", "json"]).json(0);
    assert_eq!(again[0]["now"], "gone");
    // The daemon carries them out by itself.
    for action in ["l-0", "l-1"] {
        let ended = place.effectd(&["wait", action], None);
        assert_eq!(ended.code(), 0, "{}", ended.stderr());
        assert_eq!(std::fs::read_to_string(place.note(action)).unwrap(), "at last");
    }
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn the_store_is_counted_and_exported_while_the_daemon_runs() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    for n in 0..5 {
        let name = format!("a-{n}");
        let done = daemon.post("/v1/actions?wait=true", &write_note(&name, &name, "x"));
        assert_eq!(done.status, 200);
    }
    let stats = through(&place, &["store", "stats", "-o", "json"]).json(0);
    assert_eq!(stats["events"]["ACTION_EXECUTED"], 5, "{stats}");
    assert!(stats["journal_bytes"].as_u64() > Some(0), "{stats}");
    let exported = through(&place, &["store", "export", "ACTION_EXECUTED"]);
    assert_eq!((exported.code(), exported.stdout().lines().count()), (0, 5));
    // What needs the store for itself says so.
    for alone in [
        &["store", "check"][..],
        &["store", "rebuild"],
        &["store", "salvage", "x"],
    ] {
        let refused = place.effectd(alone, None);
        assert_eq!(refused.code(), 75, "{alone:?}: {}", refused.stderr());
        assert!(
            refused.stderr().contains("in use by another process"),
            "{}",
            refused.stderr()
        );
    }
    assert_eq!(daemon.stop(), 0);
    let check = place.effectd(&["store", "check"], None);
    assert_eq!(check.code(), 0, "{}", check.stderr());
}
