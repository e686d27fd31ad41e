//! Output of commands: the names that they accept, and what they print for an empty list.

use serde_json::{Value, json};

use crate::approvals::{asking, held};
use crate::harness::{Place, Serving, write_note};
use crate::seeding::{self, Left};
use crate::store_admin::write_long_ago;

fn letter(n: usize, code: &str) -> Left {
    Left {
        request: write_note(seeding::action(n).as_str(), &format!("said-{n}"), "x"),
        code: code.to_owned(),
        detail: "it said \"no\"\u{1b}[2J".to_owned(),
    }
}

#[test]
fn whatever_takes_a_receipt_takes_the_id_of_its_action() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let done = daemon.post("/v1/actions?wait", &write_note("named-1", "n.txt", "n")).json(200);
    let receipt = done["receipt"]["receipt_id"].as_str().unwrap().to_owned();
    let mut daemon = Some(daemon);
    for _ in 0..2 {
        for words in [
            &["receipts", "show"][..],
            &["receipts", "proof"],
            &["receipts", "amend", "--success", "false", "--yes"],
            &["policy", "explain"],
            &["artifacts", "list"],
            &["undo", "--dry-run"],
        ] {
            for (name, code) in [(receipt.as_str(), 0), ("named-1", 0), ("named-2", 2)] {
                let ran = place.effectd(&[words, &[name]].concat(), None);
                assert_eq!(ran.code(), code, "{words:?} {name}: {}", ran.stderr());
                assert!(code == 0 || ran.stderr().contains(name), "{}", ran.stderr());
            }
        }
        // The output is the same without a daemon.
        if let Some(daemon) = daemon.take() {
            assert_eq!(daemon.stop(), 0);
        }
    }
    let explained = place.effectd(&["policy", "explain", "named-1"], None).stdout();
    assert!(explained.contains("band GREEN"), "{explained}");
    for word in ["Green", "Low", "OrgDefault", "InferredDefault"] {
        assert!(!explained.contains(word), "{explained}");
    }
}

#[test]
fn where_there_is_nothing_it_is_said() {
    let place = Place::seeded();
    seeding::leave(&place, [letter(0, "safety_quarantined")].into_iter());
    let _daemon = place.serve(&[]);
    for (words, said) in [
        (&["approvals", "list"][..], "the list is empty"),
        (&["artifacts", "quarantined"], "the list is empty"),
        (&["breaker", "list"], "the list is empty"),
        (&["caches", "list"], "the list is empty"),
        (&["grants", "list"], "the list is empty"),
        (&["notifications"], "the list is empty"),
        (&["policy", "overlay", "list"], "the list is empty"),
        (&["receipts", "list", "tool:files.copy"], "the list is empty"),
        (&["dlq", "drain", "--yes"], "no dead letters but 1 in quarantine"),
        (&["dlq", "drop", "--all", "--yes"], "no dead letters but 1 in quarantine"),
        (&["dlq", "drop", "--cause", "x", "--yes"], "no such dead letters"),
    ] {
        let ran = place.effectd(words, None);
        assert_eq!((ran.code(), ran.stdout().as_str()), (0, ""), "{words:?}: {}", ran.stderr());
        assert!(ran.stderr().contains(said), "{words:?}: {}", ran.stderr());
    }
    let grants = place.effectd(&["grants", "list", "-o", "json"], None);
    assert_eq!((grants.stderr(), grants.json(0)), (String::new(), json!([])));
    assert_eq!(place.effectd(&["quarantine", "shred", "0", "--yes"], None).code(), 0);
    for words in [["quarantine", "list"], ["dlq", "list"], ["dlq", "causes"]] {
        let ran = place.effectd(&words, None);
        assert!(ran.stderr().ends_with("the list is empty\n"), "{words:?}: {}", ran.stderr());
    }
    let drained = place.effectd(&["dlq", "drain", "--yes"], None);
    assert!(drained.stderr().ends_with("there are no dead letters\n"), "{}", drained.stderr());
}

#[test]
fn errors_are_json_where_results_are() {
    let place = Place::seeded();
    let _daemon = place.serve(&[]);
    let (id, artifact) = ("0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50", "0".repeat(64));
    for (words, exit, code) in [
        (&["approvals", "show", id][..], 1, "approval_unknown"),
        (&["approvals", "deny", id, "--dry-run"], 1, "approval_unknown"),
        (&["artifacts", "release", &artifact, "--yes"], 1, "failed"),
        (&["dlq", "show", "99"], 1, "failed"),
        (&["dlq", "settle", "no-such-action", "--done", "--yes"], 2, "usage"),
        (&["grants", "revoke", id, "--yes"], 1, "grant_unknown"),
        (&["init"], 1, "failed"),
        (&["notifications", "show", "nobody"], 1, "failed"),
        (&["pause"], 2, "usage"),
        (&["policy", "check", "nowhere"], 2, "usage"),
        (&["quarantine", "show", "99"], 1, "failed"),
        (&["receipts", "list", "--no-such-flag"], 2, "usage"),
        (&["restore", "nowhere", "--keys", "nowhere", "--state", "r"], 2, "usage"),
        (&["status", "x", "--socket", "nowhere.sock", "--state", "nowhere"], 2, "usage"),
        (&["store", "check"], 75, "try_again"),
        (&["tools", "show", "no.such_tool"], 2, "usage"),
    ] {
        for form in ["json", "jsonl"] {
            let ran = place.effectd(&[words, &["-o", form]].concat(), None);
            assert_eq!((ran.code(), ran.stdout().as_str()), (exit, ""), "{words:?}: {}", ran.stderr());
            let said = ran.stderr();
            let error: Value = serde_json::from_str(said.lines().last().unwrap())
                .unwrap_or_else(|why| panic!("{words:?}: {why}: {said}"));
            assert_eq!((&error["code"], &error["exit_code"]), (&json!(code), &json!(exit)), "{words:?}");
            assert!(error["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{error}");
        }
    }
    let plain = place.effectd(&["dlq", "show", "99"], None);
    assert!(plain.stderr().starts_with("effectd: there is no dead letter 99"), "{}", plain.stderr());
}

#[test]
fn changes_are_json_where_it_is_asked_for() {
    let place = Place::new();
    let changed = |words: &[&str]| place.effectd(&[words, &["--yes", "-o", "json"]].concat(), None).json(0);
    let would = place.effectd(&["init", "--dry-run", "-o", "json"], None).json(0);
    assert!(would["dry_run"] == true && !place.state().exists(), "{would}");
    let made = changed(&["init"]);
    assert!(made["policy"].as_str().unwrap().ends_with("/.effectd/policy"), "{made}");
    let keys = changed(&["keys", "rotate"]);
    assert!(keys["key_id"].is_string() && keys["previous"].is_string(), "{keys}");
    let caches = changed(&["caches", "clear", "shared:household"]);
    assert_eq!(caches, json!({ "space": "shared:household", "cleared": false }));
    let artifact = "0".repeat(64);
    changed(&["artifacts", "quarantine", &artifact]);
    assert_eq!(changed(&["artifacts", "release", &artifact])["changed"], true);
    // What only creates or rebuilds does not ask, and has the same dry run.
    for words in [
        &["backup", "copy", "--keys", "copy-keys"][..],
        &["store", "rebuild"],
        &["store", "migrate", "--journal", "sled"],
        &["store", "salvage", "--to", "saved"],
    ] {
        let would = place.effectd(&[words, &["--dry-run", "-o", "json"]].concat(), None).json(0);
        assert_eq!(would["dry_run"], true, "{words:?}");
    }
    let format = std::fs::read_to_string(place.state().join("journal/format")).unwrap();
    assert!(!["copy", "copy-keys", "saved"].iter().any(|name| place.path(name).exists()));
    changed(&["backup", "copy", "--keys", "copy-keys"]);
    let restore = ["restore", "copy", "--keys", "copy-keys", "--state", "r", "--dry-run"];
    let whole = place.effectd(&restore, None);
    assert_eq!(whole.code(), 0, "{}", whole.stderr());
    assert!(whole.stdout().contains("restore copy, whole") && !place.path("r").exists());
    let again = place.effectd(&["backup", "copy", "--dry-run"], None);
    assert_eq!(again.code(), 2, "{}", again.stderr());
    std::fs::write(place.path("copy/policy/policy.toml"), "").unwrap();
    assert_eq!(place.effectd(&restore, None).code(), 2, "a damaged backup is refused");
    assert_eq!(std::fs::read_to_string(place.state().join("journal/format")).unwrap(), format);
}

#[test]
fn what_tools_said_is_quoted_without_marks_and_commands_nothing() {
    let place = Place::seeded();
    seeding::leave(&place, [letter(0, "tool_busy")].into_iter());
    for words in [&["dlq", "causes"][..], &["dlq", "show", "0"]] {
        let told = place.effectd(words, None).stdout();
        assert!(told.contains("it said \"no\"␛[2J"), "{words:?}: {told}");
    }
}

#[test]
fn a_file_or_a_daemon_that_is_not_there_is_named() {
    let place = Place::seeded();
    let _daemon = place.serve(&[]);
    let missing = place.effectd(&["submit", "missing.json"], None);
    assert_eq!(missing.code(), 2, "{}", missing.stderr());
    assert!(
        missing.stderr().contains("there is no file missing.json; `-` reads standard input\n"),
        "{}",
        missing.stderr()
    );
    let top = place.effectd(&["top"], None);
    assert!(top.stderr().contains("effectd top --once"), "{}", top.stderr());
    // A client that names a socket needs no state directory.
    let elsewhere = Place::new();
    for words in [&["receipts", "list"][..], &["dlq", "list"], &["wait", "x"], &["undo", "x"]] {
        let alone = elsewhere.effectd(&[words, &["--socket", "nowhere.sock"]].concat(), None);
        assert_eq!(alone.code(), 75, "{words:?}: {}", alone.stderr());
        let said = "no daemon answers on nowhere.sock";
        assert!(
            alone.stderr().contains(said) && !alone.stderr().contains("no state"),
            "{words:?}: {}",
            alone.stderr()
        );
    }
}

#[test]
fn a_dead_letter_without_its_key_is_listed_as_unreadable() {
    let place = Place::seeded();
    seeding::leave(&place, [letter(0, "tool_busy"), letter(1, "tool_busy")].into_iter());
    let keys = place.state().join("keys");
    std::fs::remove_file(keys.join("device.key")).unwrap();
    std::fs::remove_dir_all(keys.join("epochs")).unwrap();
    let daemon = place.serve(&[]);
    // New values are sealed under another key, although it is most likely the same hour.
    let done = daemon.post("/v1/actions", &write_note("lost-1", "lost.txt", "x"));
    assert!([200, 202].contains(&done.status), "{done:?}");
    let ended = daemon.get("/v1/actions/lost-1/wait?timeout_ms=60000").json(200);
    assert_eq!(ended["outcome"], "executed");
    let listed = place.effectd(&["dlq", "list", "-o", "json"], None).json(0);
    let told: Vec<_> = listed.as_array().unwrap().iter().collect();
    assert_eq!(told.len(), 2, "{listed}");
    for letter in told {
        assert_eq!((&letter["code"], &letter["detail"]), (&json!("tool_busy"), &json!(null)));
    }
    let shown = place.effectd(&["dlq", "show", "1"], None);
    assert_eq!(shown.code(), 0, "{}", shown.stderr());
    assert!(shown.stdout().contains("can no longer be read"), "{}", shown.stdout());
    let requeued = place.effectd(&["dlq", "requeue", "1", "--yes"], None);
    assert!(requeued.stdout().contains("left"), "{}{}", requeued.stdout(), requeued.stderr());
    assert_eq!(place.effectd(&["dlq", "drop", "--all", "--yes"], None).code(), 0);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn what_would_go_is_what_goes() {
    let place = Place::seeded();
    write_long_ago(&place, 5);
    let daemon = place.serve(&[]);
    daemon.post("/v1/actions?wait", &write_note("young-1", "young.txt", "x")).json(200);
    let mut would = place.effectd(&["store", "retain", "--dry-run", "-o", "json"], None).json(0);
    let mut went = place.effectd(&["store", "retain", "--yes", "-o", "json"], None).json(0);
    assert!(went["blocks"].as_u64() > Some(0), "{went}");
    assert!(went.as_object_mut().unwrap().remove("moved").is_some(), "{went}");
    // An age before now, which is later the second time.
    for told in [&mut would, &mut went] {
        assert!(told.as_object_mut().unwrap().remove("dead_letters_since").is_some(), "{told}");
    }
    assert_eq!(would, went);
}

#[test]
fn a_dry_run_of_a_decision_decides_nothing() {
    let place = asking();
    let daemon = place.serve(&[]);
    let id = held(&daemon, "dry-1", "dry.txt", "x");
    let params = write_note("dry-1", "dry.txt", "y")["params"].to_string();
    std::fs::write(place.path("params.json"), params).unwrap();
    for (words, said) in [
        (&["approvals", "approve", &id][..], ", once\n"),
        (
            &["approvals", "approve", &id, "--grant", "--calls", "5"],
            ", and grant the session 5 further calls\n",
        ),
        (&["approvals", "approve", &id, "--always"], ", always in home\n"),
        (&["approvals", "approve", &id, "--edit", "params.json"], ", once, with the edited parameters\n"),
        (&["approvals", "approve", "--tool", "files.write_text"], "approve "),
        (&["approvals", "deny", &id, "--reason", "no"], "deny "),
        (&["approvals", "deny", "--tool", "files.write_text"], "deny "),
        (&["cancel", "dry-1"], "cancel dry-1, unless it has started\n"),
    ] {
        let dry = place.effectd(&[words, &["--dry-run"]].concat(), None);
        assert_eq!(dry.code(), 0, "{words:?}: {}", dry.stderr());
        assert!(dry.stdout().contains(said), "{words:?}: {}", dry.stdout());
        assert_eq!(daemon.get(&format!("/v1/approvals/{id}")).json(200)["state"], "pending", "{words:?}");
        assert_eq!(daemon.get("/v1/actions/dry-1").json(200)["state"], "held", "{words:?}");
    }
    let missing = ["approvals", "approve", &id, "--edit", "missing.json", "--dry-run"];
    assert_eq!(place.effectd(&missing, None).code(), 2);
    // It says what the command says, and refuses what it refuses.
    held(&daemon, "dry-2", "dry-2.txt", "x");
    let dry = ["approvals", "approve", &id, "--always", "--dry-run"];
    let said = place.effectd(&dry, None).stderr();
    assert!(said.contains("the mode of files.write_text in home becomes allow"), "{said}");
    assert!(said.contains("other pending approvals that start at once: 1\n"), "{said}");
    let changed = place.effectd(&[&dry[..], &["--digest", "another"]].concat(), None);
    assert!(changed.code() == 1 && changed.stderr().contains("ask_changed"), "{}", changed.stderr());
    let long = "x".repeat(2_000);
    assert_ne!(place.effectd(&[&dry[..], &["--reason", &long]].concat(), None).code(), 0);
    let policy = place.state().join("policy/policy.toml");
    let good = std::fs::read_to_string(&policy).unwrap();
    std::fs::write(&policy, format!("{good}\nnonsense = 1\n")).unwrap();
    let faulty = place.effectd(&dry, None);
    assert!(faulty.code() != 0 && faulty.stderr().contains("nonsense"), "{}", faulty.stderr());
    std::fs::write(&policy, good).unwrap();
    let grants = daemon.get("/v1/grants").json(200);
    assert!(grants["grants"] == json!([]) && !place.note("dry.txt").exists(), "{grants}");
    // The same approval can still be decided.
    assert_eq!(place.effectd(&["approvals", "approve", &id], None).code(), 0);
    assert_eq!(std::fs::read_to_string(place.note("dry.txt")).unwrap(), "x");
}
