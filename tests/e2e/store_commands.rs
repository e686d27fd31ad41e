//! `effectd store` on a healthy and on a damaged store.

use effectd_bus::embedded::{self, EmbeddedConfig};
use effectd_bus::{Completion, NewDeadLetter, NewReceipt, Store, TopicName};
use effectd_contracts::{
    ActionId, Digest, ReceiptId, SpaceId, Status, SubjectId, SystemClock, Timestamp, ToolId, Topic,
};

use crate::harness::{Place, Running, example, write_note};

#[test]
fn the_store_is_checked_counted_made_anew_and_saved() {
    for journal in ["files", "sled"] {
        looked_after(journal);
    }
}

fn looked_after(journal: &str) {
    let place = Place::seeded_in(journal);
    let run = place.effectd(&["run", example().to_str().unwrap()], None);
    assert_eq!(run.code(), 0, "{}", run.stderr());
    let json = |arguments: &[&str]| -> (i32, serde_json::Value) {
        let ended = place.effectd(arguments, None);
        let value = serde_json::from_str(&ended.stdout());
        (
            ended.code(),
            value.unwrap_or_else(|error| {
                panic!("{arguments:?}: {error}: {} {}", ended.stdout(), ended.stderr())
            }),
        )
    };
    let (code, checked) = json(&["store", "check", "-o", "json"]);
    assert_eq!((code, &checked["ok"]), (0, &serde_json::json!(true)), "{checked}");
    let (code, stats) = json(&["store", "stats", "-o", "json"]);
    assert_eq!((code, &stats["events"]["ACTION_EXECUTED"]), (0, &serde_json::json!(1)), "{stats}");
    let (code, made) = json(&["store", "rebuild", "-o", "json"]);
    assert_eq!((code, &made["same_as_before"]), (0, &serde_json::json!(true)), "{made}");
    let inside = place.effectd(&["store", "salvage", "--to", ".effectd/saved"], None);
    assert!(inside.code() == 2 && inside.stderr().contains("inside the damaged"), "{}", inside.stderr());
    let (code, saved) = json(&["store", "salvage", "--to", "saved", "-o", "json"]);
    assert_eq!((code, &saved["receipts"], &saved["missing_blocks"]), (0, &1.into(), &0.into()), "{saved}");
    let (code, checked) = json(&["store", "check", "--state", "saved", "-o", "json"]);
    assert_eq!((code, &checked["ok"]), (0, &true.into()), "{checked}");
    assert_eq!(
        std::fs::read_to_string(place.path("saved/journal/format")).unwrap(),
        format!("3 {journal}\n")
    );
    let exported = place.effectd(&["store", "export", "ACTION_EXECUTED"], None);
    let event: serde_json::Value = serde_json::from_str(&exported.stdout()).unwrap();
    assert_eq!(event["type"], "effectd.action.executed.v1", "{event}");
    let sealed = place.effectd(&["store", "export", "ACTION_DECISION"], None);
    let event: serde_json::Value = serde_json::from_str(&sealed.stdout()).unwrap();
    assert!(event["sealed"] == true && event["data"].is_null(), "{event}");
    let other = if journal == "sled" { "files" } else { "sled" };
    for to in [other, journal] {
        let (code, moved) = json(&["store", "migrate", "--journal", to, "-o", "json"]);
        assert_eq!((code, &moved["changed"]), (0, &serde_json::json!(true)), "{moved}");
        let (code, checked) = json(&["store", "check", "-o", "json"]);
        assert_eq!((code, &checked["blocks"]), (0, &moved["blocks"]), "{checked}");
        let again = place.effectd(&["run", example().to_str().unwrap()], None);
        assert!(again.stdout().starts_with("already done"), "{}", again.stdout());
    }
    let table = place.effectd(&["store", "check"], None);
    assert!(table.code() == 0 && table.stdout().contains("index entries"), "{}", table.stdout());
}

#[test]
fn a_damaged_store_is_told_with_a_failing_exit_code() {
    let place = Place::new();
    place.effectd(&["run", example().to_str().unwrap()], None);
    let manifest = place.state().join("index/manifest");
    let mut bytes = std::fs::read(&manifest).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&manifest, bytes).unwrap();
    let checked = place.effectd(&["store", "check"], None);
    assert!(checked.code() == 1 && checked.stderr().contains("the index"), "{}", checked.stderr());
    assert_eq!(place.effectd(&["store", "rebuild"], None).code(), 0);
    assert_eq!(place.effectd(&["store", "check"], None).code(), 0);
}

#[test]
fn damaged_blobs_are_found_and_named() {
    let place = Place::seeded();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    let attempt = |arguments: &[&str]| {
        let ran = place.effectd(&[&["tools", "try", "-o", "json"], arguments].concat(), None);
        assert_eq!(ran.code(), 0, "{}", ran.stderr());
    };
    // Two in one chunk, one in several.
    for (name, length) in [("small", 100), ("medium", 20_000), ("large", 200_000)] {
        std::fs::write(place.note(name), "x".repeat(length)).unwrap();
        let path = format!("path=workspace/{name}");
        attempt(&["files.write_text", &path, "text=new"]);
    }
    attempt(&["artifact.put", "path=workspace/small"]);
    let checked = place.effectd(&["store", "check", "-o", "json"], None).json(0);
    assert!(checked["blobs"].as_u64() >= Some(4), "{checked}");
    assert_eq!(checked["notes"], serde_json::json!([]), "{checked}");
    let blobs: Vec<_> = place
        .state_bytes()
        .into_iter()
        .filter(|(path, _)| path.starts_with(place.state().join("blobs")))
        .collect();
    assert!(blobs.len() >= 4, "{}", blobs.len());
    for (path, bytes) in blobs {
        let mut flipped = bytes.clone();
        flipped[90] ^= 1;
        std::fs::write(&path, flipped).unwrap();
        let checked = place.effectd(&["store", "check", "-o", "json"], None);
        // A power failure may damage a result, so a damaged one is a note.
        let is_result = path.starts_with(place.state().join("blobs/results"));
        let checked = checked.json(i32::from(!is_result));
        let name = path.file_name().unwrap().to_str().unwrap();
        let found = &checked[if is_result { "notes" } else { "problems" }];
        assert!(found.to_string().contains(name), "{name}: {checked}");
        std::fs::write(&path, bytes).unwrap();
    }
    std::fs::rename(place.state().join("keys/blobs.key"), place.path("blobs.key")).unwrap();
    let checked = place.effectd(&["store", "check"], None);
    assert!(checked.code() == 1 && checked.stderr().contains("keys/blobs.key"), "{}", checked.stderr());
    assert!(!place.state().join("keys/blobs.key").exists(), "a check makes no key");
}

/// Writes a dead letter: a copy of the executed decision, for another action.
fn leave_letter(place: &Place, action: &str) {
    let config = EmbeddedConfig::new(place.state());
    let store = embedded::open(config, std::sync::Arc::new(SystemClock)).unwrap();
    let topic: TopicName = Topic::ActionDecision.into();
    let page = store.read(&topic, 0, 1).unwrap();
    let event: serde_json::Value = serde_json::from_slice(page.events[0].body.bytes().unwrap()).unwrap();
    let mut data = event["data"].clone();
    data["request"] = write_note(action, "workspace/again.txt", "at last");
    let id = ActionId::new(action).unwrap();
    let receipt = NewReceipt {
        receipt_id: ReceiptId::fresh(),
        action_id: id,
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
    let letter = NewDeadLetter {
        topic,
        code: "timed_out".into(),
        detail: "no answer within 30 s".into(),
        attempts: 3,
        tries: Vec::new(),
        payload: serde_json::to_vec(&data).unwrap(),
    };
    let completion = Completion {
        receipt,
        events: Vec::new(),
        fence: None,
        leases: Vec::new(),
        letter: Some(letter),
        retire: Vec::new(),
        disturbed: Vec::new(),
        appeared: Vec::new(),
        depends: Vec::new(),
        links: Vec::new(),
    };
    store.commit(completion).wait().unwrap();
    store.close().unwrap();
}

#[test]
fn a_dead_letter_is_requeued_once_and_carried_out() {
    let place = Place::new();
    assert_eq!(place.run(&write_note("first", "workspace/x", "x")).code(), 0);
    leave_letter(&place, "again");
    let listed = place.effectd(&["dlq", "list", "--tool", "files.write_text", "-o", "jsonl"], None);
    let letter: serde_json::Value = serde_json::from_str(&listed.stdout()).unwrap();
    assert_eq!(letter["action_id"], "again", "{letter}");
    assert!(!listed.stdout().contains("at last"), "parameters are not shown");
    let mirror = std::fs::read_to_string(place.state().join("bus/dlq/ACTION_DECISION.jsonl")).unwrap();
    assert!(mirror.contains("\"again\"") && !mirror.contains("no answer"), "{mirror}");
    let cause = letter["cause"].as_str().unwrap();
    let causes = place.effectd(&["dlq", "causes"], None);
    assert!(causes.stdout().contains(cause), "{}", causes.stdout());
    assert_eq!(place.effectd(&["dlq", "show", "0"], None).code(), 0);
    let requeued = place.effectd(&["dlq", "requeue", "--cause", cause, "--yes"], None);
    assert!(requeued.code() == 0 && requeued.stdout().contains("requeued"), "{}", requeued.stderr());
    let again = place.effectd(&["dlq", "requeue", "0", "--yes"], None);
    assert!(again.code() == 0 && again.stdout().contains("gone"), "{}", again.stderr());
    let waited = place.effectd(&["wait", "again"], None);
    assert_eq!(waited.code(), 0, "{}{}", waited.stdout(), waited.stderr());
    let text = std::fs::read_to_string(place.path("workspace/again.txt")).unwrap();
    assert_eq!(text, "at last");
    assert!(!place.state().join("bus/dlq/ACTION_DECISION.jsonl").exists());
}

#[test]
fn a_purged_letter_is_gone() {
    let place = Place::new();
    assert_eq!(place.run(&write_note("first", "workspace/x", "x")).code(), 0);
    leave_letter(&place, "again");
    let purged = place.effectd(&["dlq", "drop", "0", "--yes", "-o", "json"], None);
    assert!(purged.code() == 0 && purged.stdout().contains("purged"), "{}", purged.stderr());
    assert_eq!(place.effectd(&["dlq", "show", "0"], None).code(), 1);
    assert_eq!(place.effectd(&["dlq", "list", "-o", "jsonl"], None).stdout(), "");
}
