//! Tokens on the command line: shown once, on standard output alone, and kept nowhere.

use std::time::Instant;

use effectd_contracts::Digest;
use effectd_gateway::limits::TOKEN_AGE_MAX;
use effectd_gateway::views::operations::OperationView;
use serde_json::{Value, json};

use crate::backups::find;
use crate::harness::{Place, Reply, Serving, until, write_note};
use crate::operator::acts;
use crate::tcp::{ask_by, listening, reads_to_the_end, send_by, token};

/// The secret of a token, without its checksum.
fn secret(token: &str) -> &str {
    &token[token.len() - 49..token.len() - 6]
}

#[test]
fn a_new_token_is_all_of_standard_output() {
    let place = Place::seeded();
    let create = ["tokens", "create", "--kind", "service", "--org", "home", "--name", "ci", "--yes"];
    // Also where no daemon runs.
    let alone = place.effectd(&create, None);
    let daemon = place.serve(&[]);
    let served = place.effectd(&create, None);
    for ran in [&alone, &served] {
        assert_eq!(ran.code(), 0, "{}", ran.stderr());
        let printed = ran.stdout();
        let token = printed.strip_suffix('\n').unwrap();
        let word = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let parts: Vec<&str> = token.split('_').collect();
        assert_eq!((parts[0], parts[1], parts.len()), ("efd", "service", 4), "{printed}");
        assert!(
            parts[2].len() == 32 && parts[3].len() == 49 && parts.iter().all(|part| word(part)),
            "{printed}"
        );
        assert!(!ran.stderr().contains(secret(token)), "{}", ran.stderr());
        assert!(ran.stderr().contains(parts[2]), "{}", ran.stderr());
    }
    let listed = place.effectd(&["tokens", "list", "-o", "json"], None).json(0);
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), 2, "{listed:?}");
    for token in listed {
        assert_eq!(
            (&token["state"], &token["principal"]),
            (&json!("valid"), &json!(format!("account://{}/ci", "home")))
        );
        assert!(token.get("hash").is_none() && token.get("token").is_none(), "{token}");
    }
    // By the beginning of its id, and never by its value.
    let id = listed[0]["token_id"].as_str().unwrap();
    let by_value = place.effectd(&["tokens", "revoke", alone.stdout().trim(), "--yes"], None);
    assert_eq!(by_value.code(), 2, "{}", by_value.stderr());
    assert!(!by_value.stderr().contains(secret(alone.stdout().trim())), "{}", by_value.stderr());
    let rotated = place.effectd(&["tokens", "rotate", id, "--yes", "-o", "json"], None).json(0);
    assert!(rotated["token"].as_str().unwrap().contains(rotated["id"].as_str().unwrap()));
    assert_eq!(
        place.effectd(&["tokens", "revoke", rotated["id"].as_str().unwrap(), "--yes"], None).code(),
        0
    );
    for (tool, count) in [("create_token", 2), ("rotate_token", 1), ("revoke_token", 1)] {
        assert_eq!(acts(&place, &format!("tool:effectd.{tool}")).len(), count, "{tool}");
    }
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_restored_state_accepts_no_token_of_its_backup() {
    let place = Place::seeded();
    let create = ["tokens", "create", "--kind", "user", "--org", "home", "--name", "ada", "--yes"];
    let list = || place.effectd(&["tokens", "list", "-o", "json"], None).json(0);
    assert_eq!(place.effectd(&create, None).code(), 0);
    assert_eq!(list().as_array().unwrap().len(), 1);
    let made = place.effectd(&["backup", "copy", "--keys", "copy-keys"], None);
    assert_eq!(made.code(), 0, "{}", made.stderr());
    std::fs::rename(place.state(), place.path("original")).unwrap();
    let restore = ["restore", "copy", "--keys", "copy-keys", "--state", ".effectd"];
    let restored = place.effectd(&restore, None);
    assert_eq!(restored.code(), 0, "{}", restored.stderr());
    assert_eq!(list(), json!([]));
}

#[test]
fn no_output_file_or_log_has_the_value_of_a_token() {
    let place = Place::seeded();
    let daemon = place.serve(&["--set", "log.level=debug"]);
    let create =
        ["tokens", "create", "--kind", "user", "--org", "home", "--name", "ada", "--yes", "-o", "json"];
    let made = place.effectd(&create, None).json(0);
    let body =
        json!({ "space_id": "shared:household", "subject_id": "agent://planner@deviceA", "title": "t" });
    let session = daemon.post("/v1/sessions", &body).json(200);
    let rotate = format!("/v1/tokens/{}/rotate", made["id"].as_str().unwrap());
    let rotated = daemon.post(&rotate, &Value::Null).json(200);
    let tokens: Vec<&str> = [&made, &session, &rotated].map(|made| made["token"].as_str().unwrap()).to_vec();
    let view: OperationView = serde_json::from_value(made.clone()).unwrap();
    let mut said = format!("{view:?} {view:#?}");
    for shown in [
        &["tokens", "list", "-o", "json"][..],
        &["sessions", "list", "-o", "json"],
        &["receipts", "list", "-o", "json"],
        &["bus", "export", "ACTION_EXECUTED"],
        &["bus", "export", "SESSIONS"],
        &["config", "show"],
        &["support-bundle", "-"],
        &["backup", "copy", "--keys", "copy-keys"],
    ] {
        let ran = place.effectd(shown, None);
        assert_eq!(ran.code(), 0, "{shown:?}: {}", ran.stderr());
        said += &(ran.stdout() + &ran.stderr());
    }
    for tool in ["create_token", "create_session", "rotate_token"] {
        let recorded = acts(&place, &format!("tool:effectd.{tool}"));
        assert_eq!(recorded.len(), 1, "{tool}");
        said += &recorded[0].to_string();
        if tool == "create_token" {
            let inputs = &recorded[0]["inputs"];
            assert_eq!((&inputs["id"], &inputs["name"]), (&made["id"], &json!("ada")), "{inputs}");
        }
    }
    assert_eq!(daemon.stop(), 0);
    said += &place.log();
    for token in tokens {
        let (id, secret) = (token.split('_').nth(2).unwrap(), secret(token));
        assert!(said.contains(id) && !said.contains(secret), "{said}");
        for folder in [place.state(), place.path("copy")] {
            assert_eq!(find(&folder, secret.as_bytes()), Vec::<std::path::PathBuf>::new());
        }
        // What is kept of it.
        let kept = find(&place.state(), Digest::of(token.as_bytes()).hex().as_bytes());
        assert_ne!(kept, Vec::<std::path::PathBuf>::new());
    }
}

#[test]
fn who_waits_with_a_token_that_ends_gets_nothing() {
    let place = Place::seeded();
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let ada = "[principals.\"account://home/ada\"]\nsubjects = []\nroles = [\"learner\"]";
    std::fs::write(&policy, text.replacen("[principals.", &format!("{ada}\n\n[principals."), 1)).unwrap();
    let (daemon, address) = listening(&place, &[]);
    let [kept, stolen] = [(); 2].map(|()| token(&daemon, "ada"));
    let note = |name: &str| daemon.post("/v1/actions?wait", &write_note(name, name, "n")).json(200);
    note("w-1");
    let seen = ask_by(&address, &kept, "GET", "/v1/receipts?order=oldest", "").json(200);
    let receipts = format!("/v1/receipts?order=oldest&after={}&wait_ms=600000", seen["follow"]);
    let seen = ask_by(&address, &kept, "GET", "/v1/store/topics/ACTION_EXECUTED", "").json(200);
    let events = format!("/v1/store/topics/ACTION_EXECUTED?from={}&wait_ms=600000", seen["next"]);
    let paths = [&receipts, &events];
    let wait = |token: &str| paths.map(|path| send_by(&address, token, "GET", path, ""));
    let (answered, refused) = (wait(&kept), wait(&stolen));
    // Connections are served in the order in which they come.
    ask_by(&address, &kept, "GET", "/v1/whoami", "").json(200);
    let begun = Instant::now();
    let id = stolen.split('_').nth(2).unwrap();
    daemon.post(&format!("/v1/tokens/{id}/revoke"), &json!({})).json(200);
    until("they have waited long enough", || begun.elapsed() > 2 * TOKEN_AGE_MAX);
    note("w-2");
    for (answered, refused) in answered.into_iter().zip(refused) {
        let answered = Reply::of(&reads_to_the_end(answered));
        assert!(answered.status == 200 && answered.body.contains("w-2"), "{answered:?}");
        let refused = Reply::of(&reads_to_the_end(refused));
        refused.problem(401, "unauthenticated");
        assert!(!refused.body.contains("w-2"), "{refused:?}");
    }
}
