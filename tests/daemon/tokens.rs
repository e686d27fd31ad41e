//! Tokens on the command line: shown once, on standard output alone, and kept nowhere.

use effectd_gateway::views::operations::OperationView;
use serde_json::{Value, json};

use crate::backups::find;
use crate::harness::{Place, Serving};
use crate::operator::acts;

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
    }
}
