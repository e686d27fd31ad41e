//! Policy commands, on the command line and in a running runtime.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use effectd::internal::Runtime;
use effectd_actors::Answer;
use effectd_contracts::{Clock, Monotonic, SystemClock, Timestamp};
use effectd_policy::Change;
use serde_json::Value;

use crate::harness::{Place, Running, example, note, until, write_note};

const CONSENT: [&str; 6] = [
    "--subject",
    "agent://planner@deviceA",
    "--space",
    "shared:household",
    "--purpose",
    "tool:files.write_text",
];

fn policy(place: &Place, verb: &str, arguments: &[&str]) -> crate::harness::Ran {
    let changes = ["grant-consent", "revoke-consent", "set-band", "set-mode", "reload"];
    let yes: &[&str] = if changes.contains(&verb) { &["--yes"] } else { &[] };
    place.effectd(&[&["policy", verb], arguments, yes].concat(), None)
}

#[test]
fn init_makes_a_policy_that_passes_its_own_check() {
    let place = Place::new();
    let nothing = policy(&place, "check", &[]);
    assert_eq!(nothing.code(), 2);
    assert!(nothing.stderr().contains("create it with `effectd init"), "{}", nothing.stderr());
    assert_eq!(place.effectd(&["init"], None).code(), 0);
    let again = place.effectd(&["init"], None);
    assert!(again.code() == 1 && again.stderr().contains("which stays unchanged"), "{}", again.stderr());
    let check = policy(&place, "check", &[]);
    assert!(
        check.code() == 0 && check.stdout().contains("9 examples"),
        "{}{}",
        check.stdout(),
        check.stderr()
    );
    let files = place.state().join("policy");
    assert_eq!(policy(&place, "check", &[files.to_str().unwrap()]).code(), 0);
}

#[test]
fn a_revoked_consent_denies_and_a_granted_one_permits_at_once() {
    let place = Place::new();
    place.run(&write_note("a", "workspace/x.txt", "one")).json(0);
    assert_eq!(policy(&place, "revoke-consent", &CONSENT).code(), 0);
    let denied = place.run(&write_note("b", "workspace/x.txt", "one")).json(3);
    assert_eq!(denied["error"]["gate"], "consent", "not even what was done before is told: {denied}");
    assert_eq!(policy(&place, "grant-consent", &CONSENT).code(), 0);
    place.run(&write_note("c", "workspace/x.txt", "two")).json(0);
    let explained = policy(&place, "explain", &[denied["receipt_id"].as_str().unwrap()]);
    assert_eq!(explained.code(), 0, "{}", explained.stderr());
    assert!(explained.stderr().contains("the policy has changed since"), "{}", explained.stderr());
}

#[test]
fn a_mode_and_a_band_can_be_set_and_given_back() {
    let place = Place::new();
    assert_eq!(place.effectd(&["init"], None).code(), 0);
    let set = |mode: &str| policy(&place, "set-mode", &["--org", "home", "--tool", "files.write_text", mode]);
    assert_eq!(set("deny").code(), 0);
    let denied = place.run(&write_note("a", "workspace/x.txt", "x")).json(3);
    assert_eq!(
        (denied["decision"]["mode"].as_str(), denied["decision"]["mode_source"].as_str()),
        (Some("deny"), Some("org_default"))
    );
    assert_eq!(set("sometimes").code(), 2);
    assert_eq!(set("files").code(), 0);
    place.run(&write_note("b", "workspace/x.txt", "x")).json(0);
    let digest = || {
        let checked = policy(&place, "check", &["-o", "json"]).json(0);
        checked["digest"].as_str().unwrap().to_owned()
    };
    let before = digest();
    let set_band = |band: &str| policy(&place, "set-band", &["--space", "shared:household", band]);
    assert_eq!(set_band("mauve").code(), 2);
    let stricter = set_band("RED");
    assert!(stricter.code() == 0 && !stricter.stderr().contains("laxer"), "{}", stricter.stderr());
    assert_ne!(digest(), before, "a band is part of the policy");
    for (band, eased) in [
        (
            "AMBER",
            "RED -> AMBER is laxer: actions of tier R0 and reads of tier R1 run without a question now",
        ),
        ("files", "AMBER -> GREEN is laxer: actions of tiers R0 to R2 run without a question now"),
    ] {
        let laxer = set_band(band);
        assert_eq!(laxer.code(), 0, "{}", laxer.stderr());
        let said = format!("shared:household: band {eased}, unless their mode asks");
        assert!(laxer.stderr().contains(&said), "{}", laxer.stderr());
    }
    assert_eq!(digest(), before);
    assert_eq!(policy(&place, "set-mode", &["--tool", "files.write_text", "deny"]).code(), 2);
    // A mode under a misspelt name or an alias would stop nothing.
    for (tool, own) in [("files.wirte_text", "files.write_text"), ("diagnose_error", "core.diagnose_error")] {
        let refused = policy(&place, "set-mode", &["--org", "home", "--tool", tool, "deny"]).stderr();
        assert!(refused.contains(&format!("did you mean {own}?")), "{refused}");
    }
}

#[test]
fn a_rule_sees_a_path_but_no_private_parameter() {
    let place = Place::new();
    assert_eq!(place.effectd(&["init"], None).code(), 0);
    let file = place.state().join("policy/mine.cedar");
    let rule = |condition: &str| {
        let rule = format!("forbid (principal, action, resource)\nwhen {{ {condition} }};\n");
        std::fs::write(&file, rule).unwrap();
    };
    rule("context.params.text like \"*password*\"");
    let refused = policy(&place, "check", &[]);
    assert!(refused.code() == 2 && refused.stderr().contains("mine.cedar:1: "), "{}", refused.stderr());
    rule("context.params has path && context.params.path like \"workspace/keys/*\"");
    let denied = place.run(&write_note("a", "workspace//keys/x.txt", "x")).json(3);
    assert_eq!(denied["error"]["gate"], "abac", "{denied}");
    let params = &denied["decision"]["facts"]["inspection"]["params"];
    assert_eq!(*params, serde_json::json!({ "path": "workspace/keys/x.txt" }));
    place.run(&write_note("b", "workspace/x.txt", "x")).json(0);
}

#[test]
fn explain_tells_every_gate_and_what_would_have_to_change() {
    let place = Place::new();
    assert_eq!(place.effectd(&["init"], None).code(), 0);
    let permitted = policy(&place, "explain", &[example().to_str().unwrap()]);
    assert_eq!(permitted.code(), 0, "{}", permitted.stderr());
    for gate in ["rbac", "abac", "consent", "space", "safety", "redaction", "permit"] {
        assert!(permitted.stdout().contains(gate), "{gate}: {}", permitted.stdout());
    }
    let unknown = policy(&place, "explain", &["nothing"]);
    assert!(unknown.code() == 2 && unknown.stderr().contains("neither a file nor"), "{}", unknown.stderr());
}

#[test]
fn examples_go_through_the_schema_and_rules_of_the_real_tool() {
    for preset in ["household", "coding", "locked"] {
        let place = Place::new();
        assert_eq!(place.effectd(&["init", "--preset", preset], None).code(), 0);
        let checked = policy(&place, "check", &[]);
        assert_eq!(checked.code(), 0, "{preset}: {}", checked.stderr());
    }
    let place = Place::new();
    assert_eq!(place.effectd(&["init"], None).code(), 0);
    let file = place.state().join("policy/policy.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    let own = place.state().join("policy");
    for (from, to) in [
        ("workspace/notes/w36.txt\", text = \"hello\"", "a.txt\", text = \"hello\""),
        ("text = \"hello\"", "txet = \"hello\""),
    ] {
        assert!(good.contains(from));
        std::fs::write(&file, good.replacen(from, to, 1)).unwrap();
        for arguments in [&[][..], &[own.to_str().unwrap()]] {
            let refused = policy(&place, "check", arguments);
            let told = refused.stderr();
            assert!(
                refused.code() == 2 && told.contains("example \"the planner writes a note\": "),
                "{told}"
            );
        }
    }
}

#[test]
fn replay_flips_what_the_new_policy_judges_otherwise() {
    let place = Place::new();
    for n in 0..3 {
        place.run(&write_note(&format!("a-{n}"), &format!("workspace/{n}.txt"), "x")).json(0);
    }
    let own = place.state().join("policy");
    let same = policy(&place, "replay", &["--with", own.to_str().unwrap()]);
    assert_eq!(same.stdout().trim(), "3 decisions: 3 stay, 0 flip, 0 unknowable", "{}", same.stderr());
    let other = place.path("other");
    std::fs::create_dir(&other).unwrap();
    for file in std::fs::read_dir(&own).unwrap() {
        let file = file.unwrap();
        let mut text = std::fs::read_to_string(file.path()).unwrap();
        if file.file_name() == "policy.toml" {
            text = text.split("[[examples]]").next().unwrap().replace("band = \"GREEN\"", "band = \"BLACK\"");
        }
        std::fs::write(other.join(file.file_name()), text).unwrap();
    }
    let flipped = policy(&place, "replay", &["--with", other.to_str().unwrap()]);
    assert_eq!(flipped.code(), 0, "{}", flipped.stderr());
    assert!(flipped.stdout().contains("permit -> deny by space"), "{}", flipped.stdout());
    assert!(
        flipped.stdout().trim().ends_with("3 decisions: 0 stay, 3 flip, 0 unknowable"),
        "{}",
        flipped.stdout()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_reloads_a_good_policy_and_refuses_a_bad_one() {
    let place = Place::new();
    let runtime = place.runtime().await;
    let outcome = async |id: &str| match runtime.exec(note(id, &format!("workspace/{id}"), "x")).await {
        Answer::Done(done) => serde_json::to_value(done.receipt.outcome).unwrap(),
        Answer::Held(held) => panic!("{held:?}"),
        Answer::Refused(failure) => panic!("{failure}"),
    };
    assert_eq!(outcome("a").await, "executed");
    let file = place.state().join("policy/policy.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    let before = runtime.reload_policy().unwrap();
    std::fs::write(&file, format!("{good}\nnonsense = 1\n")).unwrap();
    let error = runtime.reload_policy().unwrap_err().to_string();
    assert!(error.contains("policy.toml:"), "{error}");
    assert_eq!(outcome("b").await, "executed", "the policy in force stays");
    let closed = good.split("[[examples]]").next().unwrap().replace("band = \"GREEN\"", "band = \"BLACK\"");
    std::fs::write(&file, closed).unwrap();
    assert_ne!(runtime.reload_policy().unwrap(), before);
    assert_eq!(outcome("c").await, "denied_policy");
    std::fs::write(&file, &good).unwrap();
    assert_eq!(runtime.reload_policy().unwrap(), before);
    let revoked = runtime.change_policy(Change::RevokeConsent {
        subject: "agent://planner@deviceA".parse().unwrap(),
        space: "shared:household".parse().unwrap(),
        purpose: "tool:files.write_text".to_owned(),
    });
    assert_ne!(revoked.unwrap(), before, "the digest covers the changes too");
    assert_eq!(outcome("d").await, "denied_policy");
    runtime.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_file_is_noticed_without_a_command() {
    let place = Place::new();
    let runtime = place.runtime().await;
    let before = runtime.pipeline().services().policy().digest();
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}\n# a remark\n")).unwrap();
    until("the change is noticed", || runtime.pipeline().services().policy().digest() != before);
    runtime.stop().await;
}

/// A clock that adds a remark to a file when it is first asked.
struct Editing(Mutex<Option<PathBuf>>);

impl Clock for Editing {
    fn now(&self) -> Timestamp {
        if let Some(file) = self.0.lock().unwrap().take() {
            let text = std::fs::read_to_string(&file).unwrap();
            std::fs::write(&file, format!("{text}\n# a remark\n")).unwrap();
        }
        SystemClock.now()
    }

    fn monotonic(&self) -> Monotonic {
        SystemClock.monotonic()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_during_the_start_is_noticed() {
    let place = Place::new();
    let runtime = place.runtime().await;
    let before = runtime.pipeline().services().policy().digest();
    runtime.stop().await;
    let mut config = place.config();
    // The store asks it while it opens, after the policy was read.
    config.clock = Arc::new(Editing(Mutex::new(Some(place.state().join("policy/policy.toml")))));
    let runtime = Runtime::start(config).await.unwrap();
    until("the change is noticed", || runtime.pipeline().services().policy().digest() != before);
    runtime.stop().await;
}

#[test]
fn doctor_attacks_its_own_sandbox_and_tells() {
    let place = Place::new();
    let ran = place.effectd(&["doctor", "-o", "json"], None);
    assert_eq!((ran.code(), ran.stderr().as_str()), (0, ""), "{}", ran.stdout());
    let report: Value = serde_json::from_str(&ran.stdout()).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.len() > 5 && findings.iter().all(|finding| finding["verdict"] != "missing"), "{report}");
}
