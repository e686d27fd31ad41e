//! Redaction of personal data: what the tool gets, what the planner sees, and what is not stored.

use serde_json::json;

use crate::harness::{Place, Ran, Running, write_note};

#[test]
fn the_tool_gets_redacted_text_and_the_answer_says_so() {
    let place = Place::new();
    let text = "call +49 170 1234567 or 0171/2345678, mail bob@example.org: 386.062956473987";
    let receipt = place.run(&write_note("a", "workspace/x.txt", text)).json(0);
    assert_eq!(
        std::fs::read_to_string(place.path("workspace/x.txt")).unwrap(),
        "call [redacted:phone] or [redacted:phone], mail [redacted:email]: 386.062956473987"
    );
    assert_eq!(
        receipt["redacted"],
        json!([
            { "field": "/text", "kind": "email", "count": 1 },
            { "field": "/text", "kind": "phone", "count": 2 },
        ])
    );
    assert_eq!(receipt["policy"]["redaction"], "applied");
    let other = write_note("b", "workspace/y.txt", text).to_string();
    let told = place.effectd(&["run", "-"], Some(&other)).stdout();
    assert!(told.contains("\n  redacted  1 email in /text, 2 phone in /text\n"), "{told}");
    let plain = place.run(&write_note("c", "workspace/z.txt", "386.062956473987"));
    assert_eq!(plain.json(0).get("redacted"), None);
}

#[test]
fn names_of_resources_are_refused_and_never_changed() {
    let place = Place::new();
    for (action, tool, field, value) in [
        ("a", "files.write_text", "path", json!("workspace/call 0170 1234567.txt")),
        ("b", "files.write_text", "path", json!("workspace/bob@example.org/x.txt")),
        ("c", "files.read_text", "path", json!("workspace/tel +491701234567")),
        ("d", "files.write_text", "path", json!("workspace/0170 1234567.txt")),
        ("e", "files.read_text", "path", json!("workspace/+491701234567")),
    ] {
        let mut request = write_note(action, "workspace/x.txt", "x");
        request["tool_id"] = json!(tool);
        request["params"][field] = value;
        if tool != "files.write_text" {
            request["params"].as_object_mut().unwrap().remove("text");
        }
        let receipt = place.run(&request).json(3);
        assert_eq!(
            (&receipt["error"]["code"], &receipt["error"]["gate"]),
            (&json!("policy_denied"), &json!("redaction")),
            "{receipt}"
        );
        let message = receipt["error"]["message"].as_str().unwrap();
        assert!(message.contains("needs /path unchanged"), "{message}");
    }
    let written = std::fs::read_dir(place.path("workspace")).map_or(0, Iterator::count);
    assert_eq!(written, 0);
}

#[test]
fn two_files_with_ids_for_names_stay_two_files() {
    let place = Place::new();
    let names = ["3844", "3845"].map(|part| format!("workspace/51f2a6c4-0758-{part}-9b1d-2f7a3c5e8d90.txt"));
    for name in &names {
        let receipt = place.run(&write_note(name, name, name)).json(0);
        assert_eq!(receipt["inputs"]["path"], **name);
        assert_eq!(receipt.get("redacted"), None);
    }
    for name in &names {
        assert_eq!(std::fs::read_to_string(place.path(name)).unwrap(), *name);
    }
}

/// Neither what was printed nor any byte of the state holds the secret.
#[track_caller]
fn nowhere(place: &Place, ran: &Ran, secret: &str) {
    let told = format!("{}{}", ran.stdout(), ran.stderr());
    assert!(!told.contains(secret), "{told}");
    for (path, bytes) in place.state_bytes() {
        let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "{}", path.display());
    }
}

#[test]
fn a_name_that_the_tool_does_not_know_is_kept_nowhere() {
    let place = Place::new();
    let mut request = write_note("a", "workspace/x.txt", "x");
    request["params"]["hunter2-s3cret"] = json!("password");
    let ran = place.run(&request);
    let receipt = ran.json(2);
    assert_eq!(receipt["error"]["code"], "params_invalid");
    let message = receipt["error"]["message"].as_str().unwrap();
    assert!(message.contains("1 unknown names; the schema has: path, space_id, text"), "{message}");
    assert!(receipt["inputs"]["hmac_sha256_*"].is_string(), "{receipt}");
    assert_eq!(receipt["inputs"]["path"], "workspace/x.txt");
    nowhere(&place, &ran, "hunter2-s3cret");
    request["action_id"] = json!("b");
    request["tool_id"] = json!("files.fly");
    let ran = place.run(&request);
    assert_eq!(ran.json(2)["inputs"].as_object().unwrap().len(), 1);
    nowhere(&place, &ran, "hunter2-s3cret");
}

#[test]
fn a_public_field_of_the_wrong_type_is_kept_as_a_digest() {
    let place = Place::new();
    let mut request = write_note("a", "workspace/x.txt", "x");
    request["params"]["path"] = json!({ "a": "hunter2-s3cret" });
    let ran = place.run(&request);
    let receipt = ran.json(2);
    assert_eq!(receipt["error"]["code"], "params_invalid");
    assert!(receipt["inputs"]["hmac_sha256_path"].is_string(), "{receipt}");
    assert_eq!(receipt["inputs"]["space_id"], "shared:household");
    nowhere(&place, &ran, "hunter2-s3cret");
}
