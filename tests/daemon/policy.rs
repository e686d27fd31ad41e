//! Policy commands against a running daemon.

use serde_json::json;

use crate::harness::{Place, Ran, Serving, write_note};

const CONSENT: [&str; 6] = [
    "--subject",
    "agent://planner@deviceA",
    "--space",
    "shared:household",
    "--purpose",
    "tool:files.write_text",
];

/// A policy command, which must go through the daemon.
#[track_caller]
fn policy(place: &Place, verb: &str, arguments: &[&str]) -> Ran {
    let changes = ["grant-consent", "revoke-consent", "set-mode", "reload"];
    let yes: &[&str] = if changes.contains(&verb) { &["--yes"] } else { &[] };
    let ran = place.effectd(&[&["policy", verb], arguments, yes].concat(), None);
    assert!(!ran.stderr().contains("no daemon answers"), "{}", ran.stderr());
    ran
}

#[test]
fn consents_and_modes_take_effect_at_once_and_stay() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let post = |action: &str| daemon.post("/v1/actions?wait", &write_note(action, action, "x")).status;
    assert_eq!(post("p-1"), 200);
    assert_eq!(policy(&place, "revoke-consent", &CONSENT).code(), 0);
    assert_eq!(post("p-2"), 403);
    assert_eq!(policy(&place, "grant-consent", &CONSENT).code(), 0);
    assert_eq!(post("p-3"), 200);
    let mode = ["--org", "home", "--tool", "files.write_text", "deny"];
    assert_eq!(policy(&place, "set-mode", &mode).code(), 0);
    assert_eq!(post("p-4"), 403);
    // An answered change is on disk.
    daemon.kill();
    let daemon = place.serve(&[]);
    let denied = daemon.post("/v1/actions?wait", &write_note("p-5", "p-5", "x"));
    denied.problem(403, "policy_denied");
    for nonsense in [
        json!({ "change": "everything" }),
        json!(["set_org_mode", "home", "files.move", "deny"]),
        json!({ "change": 0, "subject": "agent://p", "space": "shared:household", "purpose": "tool:files.copy" }),
    ] {
        daemon.post("/v1/policy/changes", &nonsense).problem(400, "change_invalid");
    }
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn files_are_checked_and_put_in_force_through_the_daemon() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let before = daemon.get("/v1/policy").json(200);
    assert_eq!(before["in_force"], true);
    let check = policy(&place, "check", &[]);
    assert!(
        check.code() == 0 && check.stdout().contains(before["digest"].as_str().unwrap()),
        "{}",
        check.stdout()
    );
    let file = place.state().join("policy/policy.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{good}\nnonsense = 1\n")).unwrap();
    for verb in ["check", "reload"] {
        let refused = policy(&place, verb, &[]);
        assert_eq!(refused.code(), 2, "{verb}: {}", refused.stderr());
        assert!(refused.stderr().contains("policy.toml:"), "{}", refused.stderr());
    }
    assert_eq!(daemon.get("/v1/policy").json(200), before);
    std::fs::write(&file, format!("{good}\n# a remark\n")).unwrap();
    assert_eq!(policy(&place, "reload", &[]).code(), 0);
    let after = daemon.get("/v1/policy").json(200);
    assert_ne!(after["digest"], before["digest"]);
    daemon.ask("POST", "/v1/policy/reload", &[], "").json(200);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn the_past_is_explained_and_judged_anew_through_the_daemon() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let mut receipt = String::new();
    for number in 0..3 {
        let name = format!("e-{number}");
        let done = daemon.post("/v1/actions?wait", &write_note(&name, &name, "x")).json(200);
        receipt = done["receipt"]["receipt_id"].as_str().unwrap().to_owned();
    }
    let explained = policy(&place, "explain", &[&receipt]);
    assert_eq!(explained.code(), 0, "{}", explained.stderr());
    assert!(explained.stdout().contains("consent"), "{}", explained.stdout());
    std::fs::write(place.path("request.json"), write_note("e-x", "e-x", "x").to_string()).unwrap();
    let explained = policy(&place, "explain", &["request.json"]);
    assert!(explained.stdout().contains("permit"), "{}", explained.stdout());
    daemon.get("/v1/actions/e-x").problem(404, "action_unknown");
    let unknown = policy(&place, "explain", &["nothing"]);
    assert!(unknown.code() == 2 && unknown.stderr().contains("neither a file nor"), "{}", unknown.stderr());
    let replayed = policy(&place, "replay", &["--with", ".effectd/policy"]);
    assert_eq!(
        replayed.stdout().trim(),
        "3 decisions: 3 stay, 0 flip, 0 unknowable",
        "{}",
        replayed.stderr()
    );
    let some = policy(&place, "replay", &["--with", ".effectd/policy", "--since", "1h", "--limit", "2"]);
    assert!(some.stdout().starts_with("2 decisions: 2 stay"), "{}", some.stdout());
    assert_eq!(daemon.stop(), 0);
}
