//! Redaction of personal data: what the tool gets, what the planner sees, and what is not stored.

use serde_json::{Value, json};

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
        receipt["redactions"],
        json!([
            { "field": "/text", "kind": "email", "count": 1 },
            { "field": "/text", "kind": "phone", "count": 2 },
        ])
    );
    assert_eq!(receipt["policy"]["redaction"], "applied");
    let other = write_note("b", "workspace/y.txt", text).to_string();
    let told = place.effectd(&["run", "-"], Some(&other)).stdout();
    assert_eq!(told.lines().nth(1), Some("  redacted  1 email in /text, 2 phone in /text"), "{told}");
    // Nothing runs if the preview says no, so no tool gets placeholders.
    for (path, then) in
        [("workspace/y.txt", ": the tool gets placeholders"), ("workspace/bob@example.org", "")]
    {
        let asked = write_note("d", path, text).to_string();
        let told = place.effectd(&["preview", "-"], Some(&asked)).stdout();
        let expected = format!("  redacted  1 email in /text, 2 phone in /text{then}");
        assert_eq!(told.lines().nth(1), Some(expected.as_str()), "{told}");
    }
    let plain = place.run(&write_note("c", "workspace/z.txt", "386.062956473987"));
    assert_eq!(plain.json(0).get("redactions"), None);
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

fn call(action: &str, tool: &str, mut params: Value) -> Value {
    params["space_id"] = json!("shared:household");
    let mut request = write_note(action, "none", "");
    request["tool_id"] = json!(tool);
    request["params"] = params;
    request
}

/// Replaces the first number of the file in which a git configuration has it.
const PATCH: &str = "--- a/config\n+++ b/config\n@@ -3,3 +3,3 @@\n [user]\n \temail = jane@example.org\n\
                     -\tphone = +49 170 1234567\n+\tphone = +49 170 7654321\n";

#[test]
fn a_policy_that_passes_content_changes_no_byte() {
    let place = Place::seeded();
    let file = place.state().join("policy/policy.toml");
    let rule = "\n[[redaction.rules]]\nspace = \"shared:household\"\nthen = \"pass\"\n";
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + rule).unwrap();
    let config = |name: &str, phone: &str| {
        format!(
            "[remote \"origin\"]\n\turl = git@github.com:org/repo.git\n[user]\n\temail = {name}@example.org\n\
             \tphone = +49 170 {phone}\n"
        )
    };
    let path = "workspace/config";
    let edit = json!({ "path": path, "find": "bob@example.org", "replace": "jane@example.org" });
    for (action, tool, params, expected) in [
        (
            "a",
            "files.write_text",
            json!({ "path": path, "text": config("bob", "1234567") }),
            config("bob", "1234567"),
        ),
        ("b", "files.edit_text", edit, config("jane", "1234567")),
        ("c", "files.apply_patch", json!({ "patch": PATCH }), config("jane", "7654321")),
    ] {
        let ran = place.run(&call(action, tool, params));
        assert_eq!(ran.json(0).get("redactions"), None);
        assert_eq!(std::fs::read_to_string(place.path(path)).unwrap(), expected);
        // What is stored and shown is redacted all the same.
        for secret in ["bob@example.org", "jane@example.org", "170 1234567"] {
            nowhere(&place, &ran, secret);
        }
    }
}

#[test]
fn a_rule_that_redacts_comes_before_the_tool() {
    let place = Place::seeded();
    let file = place.state().join("policy/policy.toml");
    let rules = "\n[[redaction.rules]]\ntool = \"files.write_text\"\nfield = \"/text\"\nthen = \"redact\"\n\
                 \n[[redaction.rules]]\nthen = \"pass\"\n";
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + rules).unwrap();
    let path = "workspace/x.txt";
    let write = place.run(&write_note("a", path, "mail bob@example.org or one"));
    assert_eq!(write.json(0)["redactions"], json!([{ "field": "/text", "kind": "email", "count": 1 }]));
    assert_eq!(std::fs::read_to_string(place.path(path)).unwrap(), "mail [redacted:email] or one");
    // The rule is about one tool: another gets what it was sent.
    let edit = json!({ "path": path, "find": "one", "replace": "jane@example.org" });
    let edit = place.run(&call("b", "files.edit_text", edit));
    assert_eq!(edit.json(0).get("redactions"), None);
    assert_eq!(
        std::fs::read_to_string(place.path(path)).unwrap(),
        "mail [redacted:email] or jane@example.org"
    );
    nowhere(&place, &write, "bob@example.org");
    nowhere(&place, &edit, "jane@example.org");
}

#[test]
fn a_public_field_that_passes_is_redacted_in_the_receipt() {
    let place = Place::seeded();
    let file = place.state().join("policy/policy.toml");
    let rule = "\n[[redaction.rules]]\nspace = \"shared:household\"\nthen = \"pass\"\n";
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + rule).unwrap();
    let [there, missing] = ["bob@example.org", "jane@example.org"].map(|name| format!("workspace/{name}"));
    let write = place.run(&write_note("a", &there, "hello")).json(0);
    assert_eq!(std::fs::read_to_string(place.path(&there)).unwrap(), "hello", "the tool has the name");
    let read = place.run(&call("b", "files.read_text", json!({ "path": there }))).json(0);
    let search =
        place.run(&call("c", "files.search", json!({ "path": "workspace", "glob": "bob@example.org" })));
    let none = place.run(&call("d", "files.read_text", json!({ "path": missing }))).json(1);
    std::fs::write(place.note("415-555-0100"), "other\n").unwrap();
    let patch = "--- a/415-555-0100\n+++ b/415-555-0100\n@@ -1 +1 @@\n-one\n+two\n";
    let phone = place.run(&call("e", "files.apply_patch", json!({ "patch": patch }))).json(1);
    let message = phone["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("workspace/[redacted:phone]: "), "{message}");
    assert_eq!(write["inputs"]["path"], "workspace/[redacted:email]");
    for mut receipt in [write, read, search.json(0), none, phone] {
        // An undo needs the names of changed files; the answer has the tool's result.
        for left in ["effects", "result"] {
            receipt.as_object_mut().unwrap().remove(left);
        }
        let text = receipt.to_string();
        assert!(!text.contains("@example.org") && !text.contains("415-555-0100"), "{receipt}");
    }
}

#[test]
fn a_choice_is_stored_without_personal_data_and_secrets() {
    let place = Place::new();
    let token = format!("ghp_{}", "a1B2".repeat(9));
    let mut shown = Vec::new();
    // One that runs, and one that no policy ever sees.
    for (action, tool, code) in [("a", "files.write_text", 0), ("b", "files.fly", 2)] {
        let mut request = write_note(action, &format!("workspace/{action}.txt"), "x");
        request["tool_id"] = tool.into();
        request["candidates"] = json!([
            { "id": "mail bob@example.org", "propensity": 0.5 }, { "id": "mail jane@example.org" },
            { "id": token }, { "id": "note" },
        ]);
        request["chosen"] = "mail bob@example.org".into();
        request["context"] = json!({ "caller": "415-555-0100", "hour": 9 });
        let ran = place.run(&request);
        let receipt = ran.json(code);
        let choice = &receipt["choice"];
        let candidates = choice["candidates"].as_array().unwrap();
        let ids: Vec<_> = candidates.iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect();
        let named: Vec<_> = ids.iter().map(|id| id.split('#').next().unwrap()).collect();
        assert_eq!(named, ["mail [redacted:email]", "mail [redacted:email]", "[redacted:secret]", "note"]);
        assert!(ids[0] != ids[1] && ids[3] == "note", "{ids:?}");
        assert_eq!((&candidates[0]["propensity"], &choice["chosen"]), (&json!(0.5), &json!(ids[0])));
        shown.push(ids);
        assert_eq!(choice["context"].as_object().unwrap().keys().collect::<Vec<_>>(), ["hour"]);
        assert_eq!(
            receipt["redactions"],
            json!([
                { "field": "choice.candidates", "kind": "email", "count": 2 },
                { "field": "choice.candidates", "kind": "secret", "count": 1 },
                { "field": "choice.context", "kind": "phone", "count": 1 },
            ])
        );
        for secret in ["bob@example.org", "jane@example.org", token.as_str(), "415-555-0100"] {
            nowhere(&place, &ran, secret);
        }
    }
    assert_eq!(shown[0], shown[1], "a candidate has one id in all receipts");
}

#[test]
fn what_must_match_a_file_is_refused_and_never_changed() {
    let place = Place::seeded();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    let address = "bob@example.org";
    std::fs::write(place.path("workspace/config"), address).unwrap();
    for (action, tool, params, field) in [
        (
            "a",
            "files.edit_text",
            json!({ "path": "workspace/config", "find": address, "replace": "x" }),
            "/find",
        ),
        ("b", "files.apply_patch", json!({ "patch": PATCH }), "/patch"),
        ("c", "files.search", json!({ "path": "workspace", "text": address }), "/text"),
        (
            "d",
            "sqlite.query",
            json!({ "path": "workspace/a.db", "sql": "select ?", "args": [address] }),
            "/args/0",
        ),
        (
            "e",
            "sqlite.query",
            json!({ "path": "workspace/a.db", "sql": format!("select '{address}'") }),
            "/sql",
        ),
    ] {
        let receipt = place.run(&call(action, tool, params)).json(3);
        assert_eq!(
            (&receipt["error"]["code"], &receipt["error"]["gate"]),
            (&json!("policy_denied"), &json!("redaction")),
            "{receipt}"
        );
        let message = receipt["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("needs {field} unchanged")), "{message}");
    }
    assert_eq!(std::fs::read_to_string(place.path("workspace/config")).unwrap(), address);
}

#[test]
fn two_files_with_ids_for_names_stay_two_files() {
    let place = Place::new();
    let names = ["3844", "3845"].map(|part| format!("workspace/51f2a6c4-0758-{part}-9b1d-2f7a3c5e8d90.txt"));
    for name in &names {
        let receipt = place.run(&write_note(name, name, name)).json(0);
        assert_eq!(receipt["inputs"]["path"], **name);
        assert_eq!(receipt.get("redactions"), None);
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
