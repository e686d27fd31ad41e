//! Presets: after `init`, one action is done, one refused, and about one a person is asked.

use serde_json::{Value, json};

use crate::harness::{Place, Ran, Running};

/// A state with this preset, whose rules hold at every hour and on slow machines.
fn of(preset: &str) -> Place {
    let place = Place::new();
    let made = place.effectd(&["init", "--preset", preset], None);
    assert_eq!(made.code(), 0, "{}", made.stderr());
    assert_eq!(made.stderr().contains("nobody is named as approver"), preset == "locked");
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace(
        "night_from = \"22:00\"\nnight_until = \"06:00\"",
        "night_from = \"00:00\"\nnight_until = \"00:00\"",
    );
    let times = "\n[timeouts]\nlow_ms = 60000\nmedium_ms = 59000\nhigh_ms = 59000\n";
    std::fs::write(file, text + times).unwrap();
    std::fs::create_dir(place.path("workspace")).unwrap();
    std::fs::write(place.note("old.txt"), "old\n").unwrap();
    place
}

fn act(place: &Place, space: &str, action: &str, tool: &str, params: Value) -> Ran {
    let mut request = json!({
        "action_id": action, "subject_id": "agent://planner@deviceA", "space_id": space, "tool_id": tool,
        "params": params,
    });
    request["params"]["space_id"] = space.into();
    place.run(&request)
}

const SCRIPT: &str = "#!/bin/sh\necho hello\n";

fn write(name: &str, text: &str) -> Value {
    json!({ "path": format!("workspace/{name}"), "text": text })
}

/// The pending approval of an action that was held.
fn held(ran: &Ran) -> String {
    ran.json(4)["held"]["approval_id"].as_str().unwrap().to_owned()
}

#[test]
fn coding_writes_scripts_and_asks_before_it_deletes_or_runs() {
    let place = of("coding");
    let run = |action: &str, tool: &str, params| act(&place, "shared:code", action, tool, params);
    run("c-1", "files.write_text", write("build.sh", SCRIPT)).json(0);
    assert_eq!(std::fs::read_to_string(place.note("build.sh")).unwrap(), SCRIPT);
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0IGtleQ\n-----END OPENSSH PRIVATE KEY-----\n";
    run("c-2", "files.write_text", write("key", key)).json(5);
    let config = "[user]\n\temail = alice@example.org\n";
    run("c-6", "files.write_text", write("config", config)).json(0);
    assert_eq!(std::fs::read_to_string(place.note("config")).unwrap(), config, "byte for byte");
    // Whether git runs depends on the machine; that no person is asked does not.
    let status = run("c-7", "command.run", json!({ "argv": ["git", "status", "--short"] }));
    let decision = &serde_json::from_str::<Value>(&status.stdout()).unwrap()["decision"];
    assert_eq!((&decision["verdict"], &decision["tier"]), (&json!("permit"), &json!("R1")), "{decision}");
    run("c-3", "notify.local", json!({ "title": "done" })).json(3);
    held(&run("c-4", "command.run", json!({ "argv": ["rm", "old.txt"] })));
    let approval = held(&run("c-5", "files.delete", json!({ "path": "workspace/old.txt" })));
    assert!(place.note("old.txt").exists());
    let approved = place.effectd(&["approvals", "approve", &approval, "--wait", "0"], None);
    assert_eq!(approved.code(), 0, "{}", approved.stderr());
    let waited = place.effectd(&["wait", "c-5"], None);
    assert!(waited.code() == 0 && waited.stdout().starts_with("done: files.delete"), "{}", waited.stdout());
    assert!(!place.note("old.txt").exists());
}

#[test]
fn household_writes_notes_and_asks_before_it_deletes() {
    let place = of("household");
    let run = |action: &str, tool: &str, params| act(&place, "shared:household", action, tool, params);
    run("h-1", "files.write_text", write("note.txt", "water the tomatoes\n")).json(0);
    run("h-5", "files.write_text", write("mail.txt", "to alice@example.org\n")).json(0);
    assert_eq!(std::fs::read_to_string(place.note("mail.txt")).unwrap(), "to [redacted:email]\n");
    run("h-2", "files.write_text", write("run.sh", SCRIPT)).json(5);
    run("h-3", "command.run", json!({ "argv": ["rm", "old.txt"] })).json(3);
    held(&run("h-4", "files.delete", json!({ "path": "workspace/old.txt" })));
    assert!(
        place.note("note.txt").exists() && place.note("old.txt").exists() && !place.note("run.sh").exists()
    );
}

#[test]
fn locked_reads_and_asks_before_each_write() {
    let place = of("locked");
    let run = |action: &str, tool: &str, params| act(&place, "shared:household", action, tool, params);
    run("l-1", "files.read_text", json!({ "path": "workspace/old.txt" })).json(0);
    run("l-2", "files.delete", json!({ "path": "workspace/old.txt" })).json(3);
    run("l-3", "notify.local", json!({ "title": "done" })).json(3);
    held(&run("l-4", "files.write_text", write("note.txt", "n")));
    assert!(place.note("old.txt").exists() && !place.note("note.txt").exists());
}

#[test]
fn an_unknown_preset_is_refused_with_the_known_ones() {
    let place = Place::new();
    let refused = place.effectd(&["init", "--preset", "office"], None);
    assert_eq!(refused.code(), 2);
    assert!(refused.stderr().contains("coding, household, locked"), "{}", refused.stderr());
    assert!(!place.state().exists());
}
