//! Refusals: what the policy denies does not happen, and the receipt says why.

use serde_json::{Value, json};

use crate::harness::{Place, Running, write_note};

/// Runs a changed request; nothing may be written.
#[track_caller]
fn refused(name: &str, value: Value, exit: i32, status: &str, code: &str) -> Value {
    let place = Place::new();
    let mut request = write_note("a", "workspace/x.txt", "hello");
    *request.pointer_mut(name).unwrap() = value;
    let receipt = place.run(&request).json(exit);
    assert_eq!(
        (receipt["status"].as_str(), receipt["error"]["code"].as_str()),
        (Some(status), Some(code)),
        "{receipt}"
    );
    assert_eq!(receipt["effects"], "none");
    assert_eq!(receipt["attempts"], json!([]));
    assert_eq!(receipt["reward"]["components"]["success"], 0.0);
    assert!(!place.path("workspace/x.txt").exists());
    receipt
}

#[test]
fn an_unknown_tool_is_told() {
    let receipt = refused("/tool_id", json!("files.fly"), 2, "error", "unknown_tool");
    assert_eq!(receipt["error"]["phase"], "validate");
}

#[test]
fn parameters_are_checked_before_the_policy() {
    let receipt = refused("/params/path", json!("workspace/../x.txt"), 2, "error", "params_invalid");
    assert!(receipt["error"]["message"].as_str().unwrap().starts_with("/path: "), "{receipt}");
    assert_eq!(receipt["policy"]["rbac"], "n/a", "no gate was asked");
    refused("/params/text", json!(7), 2, "error", "params_invalid");
}

#[test]
fn a_stranger_is_denied_by_the_first_gate() {
    let receipt = refused("/subject_id", json!("agent://stranger"), 3, "error", "policy_denied");
    assert_eq!(receipt["error"]["gate"], "rbac");
    assert_eq!(
        (receipt["policy"]["rbac"].as_str(), receipt["policy"]["abac"].as_str()),
        (Some("deny"), Some("n/a"))
    );
    assert!(receipt["decision"]["rule"].is_string(), "{receipt}");
}

#[test]
fn another_space_is_denied() {
    let receipt = refused("/params/space_id", json!("private:bob"), 3, "error", "policy_denied");
    assert_eq!(
        (&receipt["error"]["gate"], &receipt["decision"]["cross_space"]),
        (&json!("space"), &json!(true))
    );
}

#[test]
fn a_private_key_is_quarantined() {
    let text = json!("-----BEGIN OPENSSH PRIVATE KEY-----\nabc");
    let receipt = refused("/params/text", text, 5, "quarantined", "safety_quarantined");
    assert_eq!(receipt["policy"]["safety"], "quarantine");
    assert!(!receipt.to_string().contains("OPENSSH"), "the content is not in the receipt");
}

#[test]
fn a_dry_run_changes_nothing_and_satisfies_no_key() {
    let place = Place::new();
    let mut request = write_note("a", "workspace/deep/x.txt", "hello");
    request["dry_run"] = json!(true);
    let receipt = place.run(&request).json(0);
    assert_eq!((receipt["status"].as_str(), receipt["outcome"].as_str()), (Some("skipped"), Some("dry_run")));
    assert_eq!(receipt["outputs"]["dry_run"], true);
    assert_eq!(receipt["outputs"]["bytes_written"], 0);
    assert_eq!(receipt["reward"]["components"]["success"], 0.0);
    assert!(!place.path("workspace/deep").exists());
    let real = place.run(&write_note("b", "workspace/deep/x.txt", "hello")).json(0);
    assert_eq!(real["outcome"], "executed");
    assert!(place.path("workspace/deep/x.txt").exists());
}

#[test]
fn a_link_that_leads_outside_is_refused_by_the_kernel() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("outside")).unwrap();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    std::os::unix::fs::symlink(place.path("outside"), place.path("workspace/way")).unwrap();
    let receipt = place.run(&write_note("a", "workspace/way/x.txt", "hello")).json(1);
    assert_eq!(receipt["error"]["code"], "path_denied", "{receipt}");
    assert_eq!(std::fs::read_dir(place.path("outside")).unwrap().count(), 0);
}

#[test]
fn an_action_id_cannot_mean_two_things() {
    let place = Place::new();
    place.run(&write_note("a", "workspace/x.txt", "one")).json(0);
    let ran = place.run(&write_note("a", "workspace/x.txt", "two"));
    assert_eq!(ran.code(), 2, "{}", ran.stderr());
    assert!(ran.stderr().contains("action_conflict"), "{}", ran.stderr());
    assert_eq!(std::fs::read_to_string(place.path("workspace/x.txt")).unwrap(), "one");
}

#[test]
fn a_key_cannot_mean_two_things() {
    let place = Place::new();
    let keyed = |action: &str, text: &str| {
        let mut request = write_note(action, "workspace/x.txt", text);
        request["idempotency_key"] = json!("my-key");
        request
    };
    place.run(&keyed("a", "one")).json(0);
    let receipt = place.run(&keyed("b", "two")).json(2);
    assert_eq!(receipt["error"]["code"], "idempotency_conflict");
    assert_eq!(std::fs::read_to_string(place.path("workspace/x.txt")).unwrap(), "one");
}
