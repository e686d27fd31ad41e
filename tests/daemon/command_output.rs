//! Output of commands: the names that they accept, and what they print for an empty list.

use serde_json::json;

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
        (&["approvals", "list"][..], "no approval is pending"),
        (&["dlq", "drain", "--yes"], "no dead letters but 1 in quarantine"),
        (&["dlq", "drop", "--all", "--yes"], "no dead letters but 1 in quarantine"),
        (&["dlq", "drop", "--cause", "x", "--yes"], "no such dead letters"),
    ] {
        let ran = place.effectd(words, None);
        assert_eq!((ran.code(), ran.stdout().as_str()), (0, ""), "{words:?}");
        assert!(ran.stderr().contains(said), "{words:?}: {}", ran.stderr());
    }
    assert_eq!(place.effectd(&["quarantine", "shred", "0", "--yes"], None).code(), 0);
    let drained = place.effectd(&["dlq", "drain", "--yes"], None);
    assert!(drained.stderr().ends_with("there are no dead letters\n"), "{}", drained.stderr());
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
    let would = place.effectd(&["store", "retain", "--dry-run", "-o", "json"], None).json(0);
    let mut went = place.effectd(&["store", "retain", "--yes", "-o", "json"], None).json(0);
    assert!(went["blocks"].as_u64() > Some(0), "{went}");
    assert!(went.as_object_mut().unwrap().remove("moved").is_some(), "{went}");
    assert_eq!(would, went);
}
