//! Bad input: one clear line, the documented exit code, and nothing half done.

use effectd_bus::embedded::{EmbeddedConfig, open};
use effectd_contracts::SystemClock;
use effectd_sandbox::testing::{Missing, without};
use serde_json::json;

use crate::harness::{Place, Ran, Running, write_note};

/// One line that says what is wrong, and a state directory that was not even made.
#[track_caller]
fn refused(place: &Place, ran: &Ran, code: i32, expected: &str) {
    assert_eq!(ran.code(), code, "{}", ran.stderr());
    assert_eq!(ran.stderr().lines().count(), 1, "{}", ran.stderr());
    assert!(ran.stderr().contains(expected), "{}", ran.stderr());
    assert_eq!(ran.stdout(), "");
    assert!(!place.path("workspace").exists());
}

#[test]
fn requests_that_make_no_sense_change_nothing() {
    let place = Place::new();
    let mut misspelt = write_note("a", "workspace/x", "x");
    misspelt["dry_runn"] = json!(true);
    let mut twice = write_note("a", "workspace/x", "x").to_string();
    twice.insert_str(twice.len() - 1, ",\"dry_run\":true,\"dry_run\":false");
    let mut wrong = write_note("a", "workspace/x", "x");
    wrong["params"] = json!("text");
    let large = write_note("a", "workspace/x", &"x".repeat(1_100_000)).to_string();
    let number =
        |text: &str| write_note("a", "workspace/x", "NUMBER").to_string().replace("\"NUMBER\"", text);
    let inexact = [number("18446744073709551617"), number("1152921504606846976.0")];
    let told =
        "params.text: numbers beyond 9007199254740991 (2^53 - 1) are not exact in JSON; write it as text";
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let cases = [
        ("{\"action_id\": ", "EOF while parsing"),
        ("", "EOF while parsing"),
        (&misspelt.to_string(), "unknown field `dry_runn`"),
        (&twice, "\"dry_run\" appears twice"),
        (&wrong.to_string(), "params: invalid type: string"),
        ("{\"action_id\": \"a\"}", "missing field `subject_id`"),
        (&large, "at most 1048576 are allowed"),
        (&deep, "nested deeper than 32 levels"),
        (&inexact[0], told),
        (&inexact[1], told),
    ];
    for (input, expected) in cases {
        let ran = place.effectd(&["run", "-"], Some(input));
        refused(&place, &ran, 2, expected);
        assert!(!place.state().exists());
    }
}

#[test]
fn files_that_cannot_be_read_are_told() {
    let place = Place::new();
    refused(&place, &place.effectd(&["run", "missing.json"], None), 2, "missing.json cannot be read");
    refused(&place, &place.effectd(&["run", "."], None), 2, "cannot be read");
    assert!(!place.state().exists());
}

#[test]
fn a_state_directory_that_cannot_be_made_is_told() {
    let place = Place::new();
    std::fs::write(place.path("file"), "").unwrap();
    let request = write_note("a", "workspace/x", "x").to_string();
    let ran = place.effectd(&["run", "-", "--state", "file/state"], Some(&request));
    refused(&place, &ran, 69, "choose another with --state");
    let ran = place.effectd(&["run", "-", "--state", "file"], Some(&request));
    refused(&place, &ran, 69, "choose another with --state");
}

#[test]
fn a_state_directory_in_use_is_told() {
    let place = Place::new();
    let first = place.run(&write_note("a", "workspace/x", "x"));
    assert_eq!(first.code(), 0, "{}", first.stderr());
    let held = open(EmbeddedConfig::new(place.state()), std::sync::Arc::new(SystemClock)).unwrap();
    let ran = place.run(&write_note("b", "workspace/y", "y"));
    assert_eq!(ran.code(), 75, "{}", ran.stderr());
    assert!(ran.stderr().contains("in use by another process"), "{}", ran.stderr());
    drop(held);
    assert_eq!(place.run(&write_note("b", "workspace/y", "y")).code(), 0);
}

#[test]
fn a_policy_that_cannot_be_read_stops_everything() {
    let place = Place::new();
    assert_eq!(place.run(&write_note("a", "workspace/x", "x")).code(), 0);
    std::fs::write(place.state().join("policy/policy.toml"), "version = 1\nnonsense = true\n").unwrap();
    let ran = place.run(&write_note("b", "workspace/y", "y"));
    assert_eq!(ran.code(), 69, "{}", ran.stderr());
    assert!(ran.stderr().contains("policy.toml:2"), "{}", ran.stderr());
    assert!(!place.path("workspace/y").exists());
}

#[test]
fn a_state_inside_a_space_is_refused() {
    let place = Place::new();
    assert_eq!(place.run(&write_note("a", "workspace/x", "x")).code(), 0);
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap().replace("root = \"./workspace\"", "root = \".\"");
    std::fs::write(&policy, text).unwrap();
    let ran = place.run(&write_note("b", "workspace/y", "y"));
    assert_eq!(ran.code(), 69, "{}", ran.stderr());
    assert!(ran.stderr().contains("and the space shared:household"), "{}", ran.stderr());
    assert!(ran.stderr().contains("share files, which tools could change"), "{}", ran.stderr());
}

#[test]
fn a_kernel_that_cannot_confine_is_told_and_nothing_is_made() {
    let place = Place::new();
    let request = write_note("a", "workspace/x", "x").to_string();
    let ran = place.effectd_on(&["run", "-"], Some(&request), |command| {
        without(Missing::Landlock, command);
    });
    refused(&place, &ran, 69, "Landlock");
    assert!(!place.state().exists());
    assert_eq!(place.effectd(&["run", "-"], Some(&request)).code(), 0, "the control");
}

#[test]
fn a_kernel_without_user_namespaces_runs_nothing() {
    let place = Place::new();
    let request = write_note("a", "workspace/x", "x").to_string();
    let ran = place.effectd_on(&["run", "-", "-o", "json"], Some(&request), |command| {
        without(Missing::UserNamespaces, command);
    });
    let receipt = ran.json(69);
    assert_eq!(receipt["error"]["code"], "sandbox_unavailable", "{receipt}");
    assert_eq!(receipt["effects"], "none");
    assert!(!place.path("workspace/x").exists());
}
