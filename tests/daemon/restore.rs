//! Restored and salvaged states: actions that were pending wait until an operator resumes them.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Daemon, Place, Serving, Stall, until, write_note};
use crate::operator::acts;
use crate::tcp::{ask_by, listening};

/// A place restored from a backup that was made while one action ran and another waited for it. Both write the same file.
fn restored() -> (Place, Value) {
    let place = Place::seeded();
    let daemon = place.serve_stalling(Stall("executor.before_child"), &[]);
    let store = || daemon.get("/v1/store").json(200);
    assert_eq!(daemon.post("/v1/actions", &write_note("begun", "note", "first")).status, 202);
    until("it is begun", || store()["open_intents"] == 1);
    assert_eq!(daemon.post("/v1/actions", &write_note("waiting", "note", "second")).status, 202);
    until("the other one is on the bus", || store()["events"]["ACTION_DECISION"] == 2);
    let made = place.effectd(&["backup", "copy", "--keys", "copy-keys"], None);
    assert_eq!(made.code(), 0, "{}", made.stderr());
    daemon.kill();
    std::fs::rename(place.state(), place.path("original")).unwrap();
    let arguments = ["restore", "copy", "--keys", "copy-keys", "--state", ".effectd", "-o", "json"];
    let ran = place.effectd(&arguments, None);
    assert!(ran.stderr().contains("effects are paused"), "{}", ran.stderr());
    let told = ran.json(0);
    (place, told)
}

#[test]
fn pending_actions_of_a_backup_wait_until_they_are_resumed() {
    let (place, told) = restored();
    let one = |action: &str, begun: bool| {
        json!({
            "action_id": action, "tool_id": "files.write_text", "subject_id": "agent://planner@deviceA", "begun": begun,
        })
    };
    assert_eq!(
        told["open"],
        json!({
            "decisions": 2, "begun": 1, "questions": 0, "dead_letters": 0,
            "first": [one("begun", true), one("waiting", false)],
        })
    );
    // After a restart as well: the daemon works, and begins none of them.
    for round in 0..2 {
        let daemon = place.serve(&[]);
        for n in 0..10 {
            let name = format!("new-{round}-{n}");
            let tried = daemon.post("/v1/actions?wait=true", &write_note(&name, &name, "x")).json(200);
            assert_eq!(tried["outcome"], "paused", "{tried}");
            assert!(!place.note(&name).exists());
        }
        assert!(!place.note("note").exists(), "nothing was carried out");
        assert_eq!(daemon.get("/v1/store").json(200)["open_intents"], 1);
        for action in ["begun", "waiting"] {
            let standing = daemon.get(&format!("/v1/actions/{action}")).json(200);
            assert_eq!(standing["state"], "accepted", "{standing}");
        }
        assert_eq!(daemon.stop(), 0);
    }
    let daemon = place.serve(&[]);
    let asked = place.effectd(&["resume"], None);
    assert_eq!(asked.code(), 2, "{}", asked.stderr());
    assert!(
        asked.stderr().contains("1 action to start now, and 1 dead letter of unknown outcome"),
        "{}",
        asked.stderr()
    );
    for open in [
        "begun: files.write_text for agent://planner@deviceA, begun",
        "waiting: files.write_text for agent://planner@deviceA",
    ] {
        assert!(asked.stderr().contains(open), "{}", asked.stderr());
    }
    assert!(!place.note("note").exists());
    assert_eq!(place.effectd(&["resume", "--yes"], None).code(), 0);
    // A begun action is not repeated: a person states its outcome. The other one runs.
    let begun = daemon.get("/v1/actions/begun/wait?timeout_ms=60000");
    assert!(begun.body.contains("outcome_unknown"), "{begun:?}");
    let waiting = daemon.get("/v1/actions/waiting/wait?timeout_ms=60000").json(200);
    assert_eq!(waiting["outcome"], "executed", "{waiting}");
    assert_eq!(std::fs::read_to_string(place.note("note")).unwrap(), "second");
    let letters = place.effectd(&["dlq", "list", "-o", "json"], None).json(0);
    assert_eq!(
        (letters[0]["code"].as_str(), letters[0]["action_id"].as_str(), letters.as_array().map(Vec::len)),
        (Some("outcome_unknown"), Some("begun"), Some(1)),
        "{letters}"
    );
    // The receipt names who resumed and who restored.
    let resumed = acts(&place, "tool:effectd.resume");
    assert_eq!(resumed.len(), 1, "{resumed:?}");
    let by = &resumed[0]["approval"]["by"];
    assert_eq!(&resumed[0]["principal"], by);
    // Nothing waits any more, also after a restart.
    assert_eq!(daemon.stop(), 0);
    let daemon = place.serve(&[]);
    let done = daemon.post("/v1/actions?wait=true", &write_note("after", "after", "x")).json(200);
    assert_eq!(done["outcome"], "executed", "{done}");
    assert_eq!(place.effectd(&["dlq", "settle", "0", "--done", "--yes"], None).code(), 0);
    assert_eq!(std::fs::read_to_string(place.note("note")).unwrap(), "second");
}

#[test]
fn what_was_done_elsewhere_since_is_withdrawn_before_it_begins() {
    let (place, _) = restored();
    let daemon = place.serve(&[]);
    // Only an action that had not begun can be cancelled.
    assert_eq!(place.effectd(&["cancel", "waiting"], None).code(), 0);
    assert_ne!(place.effectd(&["cancel", "begun"], None).code(), 0);
    assert_eq!(place.effectd(&["resume", "--yes"], None).code(), 0);
    let begun = daemon.get("/v1/actions/begun/wait?timeout_ms=60000");
    assert!(begun.body.contains("outcome_unknown"), "{begun:?}");
    let done = daemon.post("/v1/actions?wait=true", &write_note("after", "after", "x")).json(200);
    assert_eq!(done["outcome"], "executed", "{done}");
    assert!(!place.note("note").exists(), "nothing of the backup was carried out");
}

/// An operator with a token resumes the daemon, and sees only the actions of its own organisation.
#[test]
fn a_token_that_resumes_is_told_of_its_own_organisation() {
    let (place, _) = restored();
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let people = ["home", "office"]
        .map(|org| format!("\n[principals.\"account://{org}/op\"]\nsubjects = []\nroles = [\"operate\"]\n"));
    std::fs::write(&policy, format!("{text}\n[orgs.office]\n{}", people.concat())).unwrap();
    let (daemon, address) = listening(&place, &[]);
    let [home, office] = ["home", "office"].map(|org| {
        let made = daemon.post("/v1/tokens", &json!({ "kind": "user", "org": org, "name": "op" })).json(200);
        made["token"].as_str().unwrap().to_owned()
    });
    let resume = |token: &str, query: &str| {
        let body = json!({ "do": "resume" }).to_string();
        let answer = ask_by(&address, token, "POST", &format!("/v1/operations{query}"), &body).json(200);
        answer["says"].to_string()
    };
    let told = resume(&home, "?preview=true");
    assert!(told.contains("waiting: files.write_text") && told.contains("begun: files.write_text"), "{told}");
    assert!(told.contains("(of all organisations)") && !told.contains("none of"), "{told}");
    for query in ["?preview=true", ""] {
        let told = resume(&office, query);
        assert!(told.contains("paused -> active") && !told.contains("files.write_text"), "{told}");
        assert!(told.contains("(of all organisations)") && told.contains("none of office"), "{told}");
    }
    let waiting = daemon.get("/v1/actions/waiting/wait?timeout_ms=60000").json(200);
    assert_eq!(waiting["outcome"], "executed", "{waiting}");
}

/// Actions that began after the resume are settled as usual.
#[test]
fn what_begins_after_the_resume_recovers_from_a_kill() {
    let (place, _) = restored();
    let daemon = place.serve_stalling(Stall("executor.before_child"), &[]);
    assert_eq!(place.effectd(&["resume", "--yes"], None).code(), 0);
    let begun = daemon.get("/v1/actions/begun/wait?timeout_ms=60000");
    assert!(begun.body.contains("outcome_unknown"), "{begun:?}");
    until("the other one is begun", || daemon.get("/v1/store").json(200)["open_intents"] == 1);
    daemon.kill();
    let daemon = place.serve(&[]);
    let waiting = daemon.get("/v1/actions/waiting/wait?timeout_ms=60000").json(200);
    assert_eq!(waiting["outcome"], "executed", "{waiting}");
    assert_eq!(std::fs::read_to_string(place.note("note")).unwrap(), "second");
}

/// Changes a byte of the first block that has this text in clear. Returns whether there is one.
fn damage(state: &Path, text: &str) -> bool {
    let files = std::fs::read_dir(state.join("journal/segments")).unwrap();
    let mut files = files.map(|file| file.unwrap().path());
    let path = files.find(|path| path.extension().is_some_and(|name| name == "blocks")).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let Some(at) = bytes.windows(text.len()).position(|found| found == text.as_bytes()) else {
        return false;
    };
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    true
}

#[test]
fn a_damaged_block_costs_what_was_in_it_and_nothing_else() {
    let place = Place::seeded_in("files");
    let daemon = place.serve(&[]);
    let keyed = |n: usize, action: &str| {
        let mut request = write_note(action, &format!("note-{n}"), "x");
        request["idempotency_key"] = format!("key-{n}").into();
        request
    };
    let ask = |daemon: &Daemon, request: &Value| {
        let told = daemon.post("/v1/actions?wait=true", request).json(200);
        (told["receipt"]["receipt_id"].clone(), told["already_done"] == true)
    };
    let receipts: Vec<Value> = (0..6).map(|n| ask(&daemon, &keyed(n, &format!("salvaged-{n}"))).0).collect();
    let read = place.effectd(&["bus", "tail", "--once", "--group", "desk"], None);
    assert_eq!(read.stdout().lines().count(), 6, "{}", read.stderr());
    let of_topic = ["bus", "groups", "--topic", "ACTION_EXECUTED", "-o", "json"];
    let groups = || place.effectd(&of_topic, None).json(0);
    let standing = groups();
    assert_eq!(daemon.stop(), 0);
    let damaged = place.path("damaged");
    std::fs::rename(place.state(), &damaged).unwrap();
    // The receipt of one action, and the decision of another.
    assert!(damage(&damaged, "\"action_id\":\"salvaged-2\"") && damage(&damaged, "salvaged-4"));
    let check = place.effectd(&["store", "check", "--state", "damaged"], None);
    assert!(check.code() != 0 && check.stderr().contains("damaged"), "{}", check.stderr());
    let salvage = ["store", "salvage", "--to", ".effectd", "--state", "damaged", "-o", "json"];
    let saved = place.effectd(&salvage, None).json(1);
    assert_eq!(
        (&saved["missing_blocks"], &saved["receipts"], &saved["receipts_lost"]),
        (&2.into(), &5.into(), &1.into()),
        "{saved}"
    );
    let lost = |offset: u64| json!([{ "first": offset, "last": offset }]);
    assert_eq!(saved["events_lost"], json!({ "ACTION_DECISION": lost(4), "ACTION_EXECUTED": lost(2) }));
    // The end of the one action is lost: whether it was done is not known.
    assert_eq!((&saved["open"]["begun"], &saved["paused"]), (&1.into(), &true.into()), "{saved}");
    let check = place.effectd(&["store", "check"], None);
    assert_eq!(check.code(), 0, "{}", check.stderr());
    // What verification misses is what salvage named.
    let report = place.effectd(&["receipts", "verify", "-o", "json"], None).json(1);
    let entries = |list: &Value, field: &str| -> Vec<Value> {
        list.as_array().unwrap().iter().map(|one| one[field].clone()).collect()
    };
    let missing = entries(&saved["log_entries_lost"], "first");
    assert_eq!(entries(&report["findings"], "entry"), missing, "{report}");
    assert!(report["findings"][0]["what"].as_str().unwrap().contains("has no body"), "{report}");
    let id = |state: &Path| std::fs::read_to_string(state.join("id")).unwrap();
    assert_ne!(id(&place.state()), id(&damaged));
    let daemon = place.serve(&[]);
    assert_eq!(groups(), standing, "offsets mean what they meant");
    let events = place.effectd(&["bus", "replay"], None).stdout();
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((events.len(), &events[2]["type"]), (6, &"effectd.lost.v1".into()), "{events:?}");
    assert_eq!(events[3]["subject"], "salvaged-3");
    let listed = place.effectd(&["receipts", "list", "-o", "json"], None).json(0);
    assert_eq!(listed.as_array().unwrap().len(), 5, "{listed}");
    assert_eq!(place.effectd(&["resume", "--yes"], None).code(), 0);
    let unknown = daemon.get("/v1/actions/salvaged-2/wait?timeout_ms=60000");
    assert!(unknown.body.contains("outcome_unknown"), "{unknown:?}");
    // Done is done, by the action's id and by its key; also where the decision is lost.
    assert_eq!(ask(&daemon, &keyed(0, "salvaged-0")), (receipts[0].clone(), true));
    for n in [1, 4] {
        assert_eq!(ask(&daemon, &keyed(n, &format!("again-{n}"))), (receipts[n].clone(), true));
    }
    let (new, repeated) = ask(&daemon, &keyed(6, "new"));
    assert!(new.is_string() && !repeated && place.note("note-6").exists());
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_lost_signing_key_is_named_and_signing_goes_on() {
    let place = Place::seeded_in("files");
    let daemon = place.serve(&[]);
    assert_eq!(place.effectd(&["keys", "rotate", "--yes"], None).code(), 0);
    daemon.post("/v1/actions?wait=true", &write_note("before", "before", "x")).json(200);
    let keys = daemon.get("/v1/log/keys").json(200);
    assert_eq!(daemon.stop(), 0);
    let damaged = place.path("damaged");
    std::fs::rename(place.state(), &damaged).unwrap();
    // The entry of the log and its copy beside the log.
    while damage(&damaged, &format!("\"public_key\":{}", keys[1]["public_key"])) {}
    let salvage = ["store", "salvage", "--to", ".effectd", "--state", "damaged", "-o", "json"];
    let saved = place.effectd(&salvage, None).json(1);
    assert!(saved["trouble"].to_string().contains("the entry of the signing key is lost"), "{saved}");
    let report = place.effectd(&["receipts", "verify", "-o", "json"], None).json(1);
    let entry = |finding: &Value| finding["entry"] == saved["log_entries_lost"][0]["first"];
    assert!(report["findings"].as_array().unwrap().iter().any(entry), "{report}");
    let daemon = place.serve(&[]);
    assert_eq!(place.effectd(&["resume", "--yes"], None).code(), 0);
    daemon.post("/v1/actions?wait=true", &write_note("after", "after", "x")).json(200);
    assert_eq!(daemon.stop(), 0);
}
