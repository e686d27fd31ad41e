//! Restored states: actions that were pending in the backup wait until an operator resumes them.

use serde_json::{Value, json};

use crate::harness::{Place, Serving, Stall, until, write_note};
use crate::operator::acts;

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
        asked.stderr().contains("1 actions start now, and 1 that had already started become dead letters"),
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
