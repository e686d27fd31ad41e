//! Store administration while the daemon runs: dead letters, export and retention, for operators only.

use std::sync::Arc;
use std::time::Duration;

use effectd::internal::{Config, Runtime};
use effectd_actors::Answer;
use effectd_bus::embedded::{self, EmbeddedConfig};
use effectd_bus::{Completion, FailedAttempt, NewDeadLetter, NewReceipt, Store, TopicName};
use effectd_contracts::{
    ActionId, Digest, ManualClock, ReceiptId, SpaceId, Status, SubjectId, SystemClock, Timestamp, ToolId,
    Topic,
};
use serde_json::{Value, json};

use crate::harness::{Place, Ran, Serving, write_note};
use crate::shared::program;

/// Writes a dead letter into a closed store: a copy of the first decision, for another action.
fn leave_letter(place: &Place, action: &str) {
    let config = EmbeddedConfig::new(place.state());
    let store = embedded::open(config, Arc::new(SystemClock)).unwrap();
    let topic: TopicName = Topic::ActionDecision.into();
    let page = store.read(&topic, 0, 1).unwrap();
    let event: Value = serde_json::from_slice(page.events[0].body.bytes().unwrap()).unwrap();
    let mut data = event["data"].clone();
    data["request"] = write_note(action, action, "at last");
    let letter = NewDeadLetter {
        topic,
        code: "timed_out".into(),
        detail: "no answer within 30 s".into(),
        attempts: 1,
        tries: vec![FailedAttempt {
            at: Timestamp::from_second(1_800_000_000).unwrap(),
            error: "timed_out: no answer within 30 s".into(),
        }],
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
        disturbed: Vec::new(),
        appeared: Vec::new(),
        depends: Vec::new(),
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
    let listed = through(&place, &["dlq", "list", "--tool", "files.write_text", "-o", "json"]).json(0);
    assert_eq!(listed.as_array().map(Vec::len), Some(3), "{listed}");
    assert!(!listed.to_string().contains("at last"), "parameters are not shown");
    let shown = through(&place, &["dlq", "show", "1", "-o", "json"]).json(0);
    assert_eq!(shown["tries"][0]["error"], "timed_out: no answer within 30 s", "{shown}");
    assert_eq!(shown["tries"][0]["at"], "2027-01-15T08:00:00Z", "{shown}");
    assert_eq!(through(&place, &["dlq", "show", "9"]).code(), 1);
    daemon.get("/v1/dlq/9").problem(404, "letter_unknown");
    daemon.get("/v1/dlq/nine").problem(404, "letter_unknown");
    daemon.get("/v1/dlq?colour=red").problem(400, "query_invalid");
    let causes = through(&place, &["dlq", "causes", "-o", "json"]).json(0);
    assert_eq!((&causes[0]["count"], causes.as_array().map(Vec::len)), (&json!(3), Some(1)));
    assert_eq!(through(&place, &["dlq", "purge", "2", "--yes"]).code(), 0);
    let requeued = through(&place, &["dlq", "requeue", "--all", "--yes", "-o", "json"]).json(0);
    assert_eq!(requeued.as_array().map(Vec::len), Some(2), "{requeued}");
    let again = through(&place, &["dlq", "requeue", "0", "--yes", "-o", "json"]).json(0);
    assert_eq!(again[0]["now"], "gone");
    // The daemon carries them out by itself.
    for action in ["l-0", "l-1"] {
        let ended = place.effectd(&["wait", action], None);
        assert_eq!(ended.code(), 0, "{}", ended.stderr());
        assert_eq!(std::fs::read_to_string(place.note(action)).unwrap(), "at last");
    }
    assert_eq!(daemon.stop(), 0);
}

/// Writes notes with a clock that is older than the retention.
pub(crate) fn write_long_ago(place: &Place, notes: usize) {
    let then = Timestamp::now().checked_sub(Duration::from_secs(200 * 86_400)).unwrap();
    let mut config = Config::embedded(place.state()).unwrap();
    config.zygote_exe = program().into();
    config.clock = Arc::new(ManualClock::at(then));
    let threads = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    threads.block_on(async {
        let runtime = Runtime::start(config).await.unwrap();
        for n in 0..notes {
            let name = format!("a-{n}");
            let request = serde_json::from_value(write_note(&name, &name, "x")).unwrap();
            let Answer::Done(done) = runtime.exec(request).await else { panic!("{name} is not done") };
            assert_eq!(done.receipt.status, Status::Ok);
        }
        assert!(runtime.stop().await);
    });
}

#[test]
fn a_running_daemon_counts_exports_and_shortens_its_store() {
    let place = Place::seeded();
    write_long_ago(&place, 5);
    let daemon = place.serve(&[]);
    let stats = through(&place, &["store", "stats", "-o", "json"]).json(0);
    assert_eq!(stats["events"]["ACTION_EXECUTED"], 5, "{stats}");
    assert!(stats["journal_bytes"].as_u64() > Some(0), "{stats}");
    let exported = through(&place, &["store", "export", "ACTION_EXECUTED"]);
    assert_eq!((exported.code(), exported.stdout().lines().count()), (0, 5));
    let preview = through(&place, &["store", "retain", "--dry-run", "-o", "json"]).json(0);
    assert_eq!((&preview["receipts"], &preview["moved"]), (&json!(5), &json!(null)), "{preview}");
    assert!(preview["blocks"].as_u64() > Some(0), "{preview}");
    // Dead letters are kept for 550 days longer; the clock may tick in between.
    let since = |name: &str| preview[name].as_str().unwrap().parse::<Timestamp>().unwrap();
    let apart = since("receipts_since").duration_since(since("dead_letters_since")).as_secs();
    assert!((550 * 86_400 - 60..=550 * 86_400).contains(&apart), "{preview}");
    assert_eq!(through(&place, &["receipts", "list", "-o", "jsonl"]).stdout().lines().count(), 5);
    let head = place.effectd(&["receipts", "head"], None);
    std::fs::write(place.path("head.json"), head.stdout()).unwrap();
    let before = place.effectd(&["receipts", "export", "--bundle", "before.jsonl"], None);
    assert_eq!(before.code(), 0, "{}", before.stderr());
    let told = through(&place, &["store", "retain", "--yes", "-o", "json"]).json(0);
    assert_eq!(told["receipts"], 5, "{told}");
    // Later writes are added.
    assert!(told["blocks"].as_u64() >= preview["blocks"].as_u64(), "{told} {preview}");
    // Only the receipt of the retention is left.
    for left in [&["receipts", "list", "-o", "jsonl"][..], &["store", "export", "ACTION_EXECUTED"]] {
        let told = through(&place, left).stdout();
        assert!(told.lines().all(|line| line.contains("\"effectd.retain\"")), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    // Dropped receipts leave their hashes, so the log verifies, also against an old head.
    let whole = place.effectd(&["receipts", "verify", "--head", "head.json", "-o", "json"], None);
    let whole = whole.json(0);
    assert!(whole["gone"].as_u64() >= Some(10), "{whole}");
    let after = place.effectd(&["receipts", "export", "--bundle", "after.jsonl"], None);
    assert_eq!(after.code(), 0, "{}", after.stderr());
    for bundle in ["before.jsonl", "after.jsonl"] {
        let checked = place.effectd(&["receipts", "verify", bundle], None);
        assert_eq!(checked.code(), 0, "{bundle}: {}", checked.stderr());
    }
    let gone = daemon.get("/v1/store/topics/ACTION_EXECUTED?from=0");
    let gone = gone.problem(410, "dropped");
    assert!(gone["detail"].as_str().unwrap().contains("before offset 5"), "{gone}");
    // Commands that need the store alone say so.
    for alone in [&["store", "check"][..], &["store", "rebuild"], &["store", "salvage", "--to", "x"]] {
        let refused = place.effectd(alone, None);
        assert_eq!(refused.code(), 75, "{alone:?}: {}", refused.stderr());
        assert!(refused.stderr().contains("in use by another process"), "{}", refused.stderr());
    }
    // The same action may be done again, since its receipt is gone.
    let done = daemon.post("/v1/actions?wait=true", &write_note("a-0", "a-0", "y"));
    assert_eq!(done.status, 200);
    assert_eq!(daemon.stop(), 0);
    let whole = place.effectd(&["receipts", "verify"], None);
    assert_eq!(whole.code(), 0, "{}", whole.stderr());
    let check = place.effectd(&["store", "check"], None);
    assert_eq!(check.code(), 0, "{}", check.stderr());
}
