//! Erasure of a subject: no key on disk opens its data, other subjects are not affected, and every proof holds.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::embedded::{self, EmbeddedConfig};
use effectd_bus::{FamilyName, GroupName, NewBody, NewEvent, Store, TopicName};
use effectd_contracts::{ActionId, EventId, SystemClock, Timestamp, Topic, TraceId};
use serde_json::{Value, json};

use crate::approvals::{asking, decide, held};
use crate::backups::find;
use crate::harness::{Place, Serving, write_note};
use crate::operator::acts;

const SUBJECT: &str = "agent://planner@deviceA";
const CANARY: &str = "the canary sings";
const TITLE: &str = "what the planner is for";

/// Writes a dead letter into a closed store: the first decision, with another request.
fn leave_letter(place: &Place, action: &str, request: Value) {
    let store = embedded::open(EmbeddedConfig::new(place.state()), Arc::new(SystemClock)).unwrap();
    let first = store.read(&Topic::ActionDecision.into(), 0, 1).unwrap().events.remove(0);
    let mut decision: Value = serde_json::from_slice(first.body.bytes().unwrap()).unwrap();
    decision["data"]["request"] = request;
    let event = NewEvent {
        event_id: EventId::new(action).unwrap(),
        time: Timestamp::now(),
        trace_id: TraceId::fresh(),
        action_id: Some(ActionId::new(action).unwrap()),
        body: NewBody::Sealed(serde_json::to_vec(&decision).unwrap()),
    };
    let (topic, group) = (planted(), GroupName::new("g").unwrap());
    store.publish(&topic, vec![event]).wait().unwrap();
    let leased = store.lease(&topic, &group, 1, Duration::from_secs(60)).wait().unwrap();
    let lease = leased.deliveries[0].lease_id;
    store.term(lease, "timed_out", "no answer within 30 s").wait().unwrap();
    store.close().unwrap();
}

fn planted() -> TopicName {
    TopicName::new("planted").unwrap()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy(&entry.path(), &to);
        } else if kind.is_file() {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Everything in the journal that the keys in the state directory can open.
fn opened(state: &Path) -> String {
    let store = embedded::open(EmbeddedConfig::new(state), Arc::new(SystemClock)).unwrap();
    let mut all = Vec::new();
    for topic in [Topic::ActionDecision.into(), planted()] {
        for event in store.read(&topic, 0, 100).unwrap().events {
            all.extend_from_slice(event.body.bytes().unwrap_or_default());
        }
    }
    for entry in store.entries(&FamilyName::new("sessions").unwrap(), "", None, 100).unwrap().entries {
        all.extend_from_slice(entry.value.bytes().unwrap_or_default());
    }
    for letter in store.letters(None, 0, 100).unwrap().letters {
        all.extend_from_slice(letter.payload.bytes().unwrap_or_default());
    }
    store.close().unwrap();
    String::from_utf8_lossy(&all).into_owned()
}

fn files(below: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(below).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// How many blobs of a kind there are.
pub fn blobs(state: &Path, kind: &str) -> usize {
    let mut found = Vec::new();
    files(&state.join("blobs").join(kind), &mut found);
    found.len()
}

fn erase(place: &Place, more: &[&str]) -> (i32, Value, String) {
    let arguments = [&["store", "erase", "--subject", SUBJECT, "-o", "json"][..], more].concat();
    let ran = place.effectd(&arguments, None);
    let told = serde_json::from_str(&ran.stdout()).unwrap_or_default();
    (ran.code(), told, ran.stderr())
}

#[test]
fn after_an_erasure_no_key_on_disk_opens_the_subjects_data() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    for (action, text) in [("a-1", "1"), ("a-2", "2")] {
        let text = format!("{CANARY} {text}");
        let done = daemon.post("/v1/actions?wait=true", &write_note(action, "n.txt", &text));
        assert!(done.json(200)["result"].is_object(), "{done:?}");
    }
    for (subject, title) in [(SUBJECT, TITLE), ("agent://other@deviceA", "another")] {
        let session = json!({ "space_id": "shared:household", "subject_id": subject, "title": title });
        daemon.post("/v1/sessions", &session).json(200);
    }
    assert_eq!(daemon.stop(), 0);
    leave_letter(&place, "l-1", write_note("l-1", "l-1", CANARY));
    let mut other = write_note("l-2", "l-2", "somebody else's");
    other["subject_id"] = "agent://other@deviceA".into();
    leave_letter(&place, "l-2", other);
    // The control: everything can be read so far, and there is a pre-image.
    let (before, mixed) = (place.path("before"), place.path("mixed"));
    copy(&place.state(), &before);
    let readable = opened(&before);
    // Two decisions, a letter, and the event that the letter was.
    assert_eq!(readable.matches(CANARY).count(), 4, "{readable}");
    assert!(blobs(&before, "preimages") > 0);
    assert!(readable.contains(TITLE) && find(&before, TITLE.as_bytes()).is_empty(), "it is sealed");

    let daemon = place.serve(&[]);
    let (code, preview, words) = erase(&place, &[]);
    assert_eq!((code, &preview["done"]), (2, &json!(false)), "{words}");
    assert_eq!(preview["dead_letters"], 1, "{preview}");
    assert!(preview["blobs"].as_u64() > Some(0), "{preview}");
    assert!(words.contains("add --yes"), "{words}");
    assert_eq!(place.effectd(&["dlq", "show", "0"], None).code(), 0);
    let (code, told, words) = erase(&place, &["--yes"]);
    assert_eq!((code, &told["done"]), (0, &json!(true)), "{told} {words}");
    assert_eq!((&told["dead_letters"], &told["blobs"]), (&json!(1), &preview["blobs"]));
    let view = daemon.get("/v1/actions/a-1").json(200);
    assert_eq!((&view["result_error"]["code"], view.get("result")), (&json!("result_gone"), None), "{view}");
    let sessions = daemon.get("/v1/sessions").json(200);
    let titles: Vec<_> =
        sessions["sessions"].as_array().unwrap().iter().map(|session| &session["title"]).collect();
    assert_eq!(titles, ["", "another"], "{sessions}");
    // Other subjects are not affected, and earlier proofs still hold.
    assert_eq!(place.effectd(&["dlq", "show", "0"], None).code(), 1);
    let left = place.effectd(&["dlq", "show", "1", "-o", "json"], None).json(0);
    assert_eq!(left["detail"], "no answer within 30 s", "{left}");
    assert_eq!(place.effectd(&["receipts", "verify"], None).code(), 0);
    let events = place.effectd(&["store", "export", "ERASURES"], None);
    let event: Value = serde_json::from_str(events.stdout().lines().next().unwrap()).unwrap();
    assert!(event.to_string().contains(SUBJECT), "{event}");
    let done = daemon.post("/v1/actions?wait=true", &write_note("a-3", "m.txt", "new"));
    assert_eq!(done.status, 200);
    assert_eq!(daemon.stop(), 0);

    // The old bytes, with every key that is on disk now.
    copy(&before, &mixed);
    std::fs::remove_dir_all(mixed.join("keys")).unwrap();
    copy(&place.state().join("keys"), &mixed.join("keys"));
    let still = opened(&mixed);
    assert!(!still.contains(CANARY) && !still.contains(TITLE), "{still}");
    // The old keys are in no file.
    let mut wrapped = Vec::new();
    files(&before.join("keys/epochs"), &mut wrapped);
    let mut now = Vec::new();
    files(&place.state(), &mut now);
    assert!(!wrapped.is_empty());
    for key in wrapped {
        let secret = std::fs::read(key).unwrap().split_off(37);
        for file in &now {
            let bytes = std::fs::read(file).unwrap_or_default();
            assert!(!bytes.windows(secret.len()).any(|window| window == secret), "{file:?}");
        }
    }
    let readable = opened(&place.state());
    assert!(!readable.contains(CANARY) && !readable.contains(TITLE), "{readable}");
    assert!(readable.contains("somebody else's"), "{readable}");
    let mut old = Vec::new();
    files(&before.join("blobs"), &mut old);
    for blob in old {
        let now = place.state().join(blob.strip_prefix(&before).unwrap());
        assert!(!now.exists(), "{now:?}");
    }
    for check in [&["store", "check"][..], &["receipts", "verify"]] {
        let checked = place.effectd(check, None);
        assert_eq!(checked.code(), 0, "{check:?}: {}", checked.stderr());
    }
    // Asked again without a daemon, it finds nothing more.
    let (code, told, words) = erase(&place, &["--yes"]);
    assert_eq!((code, &told["done"]), (0, &json!(true)), "{words}");
    assert_eq!(told["dead_letters"], 0, "{told}");
}

#[test]
fn holds_are_decided_before_their_subject_is_erased() {
    let place = asking();
    let daemon = place.serve(&[]);
    let id = held(&daemon, "h-1", "h.txt", CANARY);
    for more in [&[][..], &["--yes"]] {
        let (code, told, words) = erase(&place, more);
        assert_eq!((code, &told["held"]), (1, &json!([id])), "{words}");
        assert!(words.contains("approvals deny"), "{words}");
    }
    let denied = decide(&daemon, &id, "deny", &json!({"reason": "gone"}));
    assert_eq!(denied.status, 200);
    assert_eq!(place.effectd(&["wait", "h-1"], None).code(), 3);
    let (code, told, words) = erase(&place, &["--yes"]);
    assert_eq!((code, &told["done"]), (0, &json!(true)), "{told} {words}");
    daemon.post("/v1/store/erase", &json!({"subjects": []})).problem(400, "query_invalid");
    let hidden = daemon.post("/v1/store/erase", &json!({"subjects": ["\u{202e}x"]}));
    let hidden = hidden.problem(400, "query_invalid")["detail"].to_string();
    assert!(hidden.contains("must be printable") && !hidden.contains('\u{202e}'), "{hidden}");
    assert_eq!(daemon.stop(), 0);
    assert!(!opened(&place.state()).contains(CANARY));
}

#[test]
fn a_subject_that_nobody_knows_is_not_erased() {
    const NOBODY: &str = "agent://nobody@deviceA";
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    daemon.post("/v1/actions?wait=true", &write_note("a-1", "n.txt", "x")).json(200);
    for more in [&[][..], &["--yes"], &["--subject", SUBJECT, "--yes"]] {
        let refused = place.effectd(&[&["store", "erase", "--subject", NOBODY], more].concat(), None);
        assert_eq!(refused.code(), 2, "{more:?}: {}", refused.stderr());
        let said = refused.stderr();
        assert!(said.contains(NOBODY) && said.contains("check its spelling"), "{more:?}: {said}");
    }
    daemon.post("/v1/store/erase", &json!({ "subjects": [NOBODY] })).problem(404, "not_found");
    assert!(acts(&place, "tool:effectd.erase").is_empty());
    let kept = daemon.get("/v1/actions/a-1").json(200);
    assert!(kept["result"].is_object(), "{kept}");
    let forced = ["store", "erase", "--subject", NOBODY, "--force", "--reason", "by letter", "--yes"];
    let forced = place.effectd(&forced, None);
    assert_eq!(forced.code(), 0, "{}", forced.stderr());
    let said = format!("the erasure destroyed the keys of {NOBODY}, 0 dead letters and 0 blobs; ");
    let told = forced.stdout();
    assert!(told.starts_with(&said) && told.lines().count() == 1, "{told}");
    let receipt = acts(&place, "tool:effectd.erase").remove(0);
    assert_eq!(receipt["approval"]["reason"], "by letter", "{receipt}");
}
