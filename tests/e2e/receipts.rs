//! Receipts as operators, auditors and learners use them: filtered, exported, verified here and elsewhere, amended.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use effectd::contracts::{Candidate, Feature, Receipt, Status};
use serde_json::{Value, json};

use crate::harness::{Place, Ran, Running, note, root, write_note};

#[allow(dead_code)]
#[path = "../../examples/learner.rs"]
mod learner;

/// A place with this many written notes and one refused request.
pub(crate) fn place_with(notes: usize) -> Place {
    let place = Place::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let effectd = place.runtime().await;
        for nth in 0..notes {
            let mut request = note(&format!("n-{nth}"), &format!("workspace/n-{nth}"), "text");
            request.propensity = Some(0.5);
            let candidate = |id: &str| Candidate { id: id.to_owned(), propensity: Some(0.5) };
            request.candidates = vec![candidate("write"), candidate("wait")];
            request.chosen = Some("write".to_owned());
            request.context.insert("hour".to_owned(), Feature::Number(7.0));
            effectd.exec(request).await;
        }
        let mut refused = note("refused", "workspace/x", "x");
        refused.subject_id = "agent://stranger".parse().unwrap();
        effectd.exec(refused).await;
        effectd.stop().await;
    });
    place
}

pub(crate) fn lines(ran: &Ran) -> Vec<Value> {
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
    let text = ran.stdout();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The second implementation, written from the page that describes the format.
pub(crate) fn python(bundle: &Path) -> (i32, String) {
    let script = root().join("tests/e2e/verify_bundle.py");
    let ran = Command::new("python3").arg(script).arg(bundle).output();
    let ran = ran.expect("python3 and its package `cryptography` are needed; .ci/run installs both");
    let told = String::from_utf8_lossy(&ran.stderr).into_owned() + &String::from_utf8_lossy(&ran.stdout);
    assert!(!told.contains("No module named"), "install python3-cryptography: {told}");
    (ran.status.code().unwrap_or(-1), told)
}

/// Both implementations refuse the lines; ours says this.
pub(crate) fn both_find(place: &Place, lines: &[String], words: &str) {
    let path = place.path("tampered.jsonl");
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    let ours = place.effectd(&["receipts", "verify", "tampered.jsonl"], None);
    assert_eq!(ours.code(), 1, "{}{}", ours.stdout(), ours.stderr());
    assert!(ours.stderr().contains(words), "{words}: {}", ours.stderr());
    let (code, told) = python(&path);
    assert_eq!(code, 1, "{words}: {told}");
}

#[test]
fn a_log_verifies_here_and_elsewhere_and_tampering_is_named() {
    let place = place_with(6);
    let live = place.effectd(&["receipts", "verify", "-o", "json"], None).json(0);
    assert_eq!(
        (&live["ok"], &live["receipts"], &live["open"]),
        (&json!(true), &json!(7), &json!(0)),
        "{live}"
    );
    assert!(live["heads"].as_u64().unwrap() >= 1, "{live}");
    let export = place.effectd(&["receipts", "export", "--bundle", "log.jsonl"], None);
    assert_eq!(export.code(), 0, "{}", export.stderr());
    let key = live["keys"][0].as_str().unwrap();
    let offline = place.effectd(&["receipts", "verify", "log.jsonl", "--key", key, "-o", "json"], None);
    let offline = offline.json(0);
    assert_eq!(offline["root"].as_str().map(str::len), Some(71));
    let (code, told) = python(&place.path("log.jsonl"));
    assert_eq!(code, 0, "{told}");
    assert!(told.contains(offline["root"].as_str().unwrap()), "{told}");
    let stranger = place.effectd(&["receipts", "verify", "log.jsonl", "--key", "0123456789abcdef"], None);
    assert!(stranger.code() == 1 && stranger.stderr().contains("none of its keys"), "{}", stranger.stderr());

    let bundle = std::fs::read_to_string(place.path("log.jsonl")).unwrap();
    let honest: Vec<String> = bundle.lines().map(str::to_owned).collect();
    let at = honest.iter().position(|line| line.contains("\"n-3\"") && line.contains("receipt_id")).unwrap();
    let entry = format!("entry {}", at - 1);
    let mut flipped = honest.clone();
    flipped[at] = flipped[at].replace("\"outcome\":\"executed\"", "\"outcome\":\"dry_run\"");
    both_find(&place, &flipped, &format!("{entry} does not match its hash"));
    let mut deleted = honest.clone();
    deleted.remove(at);
    both_find(&place, &deleted, &format!("{entry} is missing"));
    let mut swapped = honest.clone();
    swapped.swap(at, at + 1);
    both_find(&place, &swapped, &entry);
    let cut = &honest[..at];
    both_find(&place, cut, &format!("entries {} to", at - 1));
    let mut forged = honest.clone();
    let mut line: Value = serde_json::from_str(&forged[at]).unwrap();
    line["entry"]["reward"]["scalar"] = json!(1);
    let leaf =
        effectd::contracts::merkle::leaf(effectd::contracts::canonical::to_string(&line["entry"]).as_bytes());
    line["hash"] = json!(leaf);
    forged[at] = line.to_string();
    both_find(&place, &forged, "it is not what was signed");
}

#[test]
fn a_hostile_bundle_does_no_harm() {
    let place = place_with(1);
    let export = place.effectd(&["receipts", "export", "--bundle", "log.jsonl"], None);
    assert_eq!(export.code(), 0, "{}", export.stderr());
    let honest = std::fs::read_to_string(place.path("log.jsonl")).unwrap();
    let (first, rest) = honest.split_once('\n').unwrap();
    let first: Value = serde_json::from_str(first).unwrap();
    let with = |name: &str, value: Value| {
        let mut first = first.clone();
        first[name] = value;
        first
    };
    let mut commanding: Value = first["keys"][0].clone();
    commanding["key_id"] = json!("\u{1b}]0;mine\u{7}");
    let line = json!({ "index": 0, "hash": first["head"]["root"], "entry": commanding });
    let hash = first["head"]["root"].clone();
    let cases = [
        // A tree as large as can be written, which the next entry would make larger.
        (
            format!(
                "{}\n{rest}",
                with("from", json!(u64::MAX))
                    .to_string()
                    .replace("\"frontier\":[]", &format!("\"frontier\":{}", json!(vec![hash; 64])))
            ),
            2,
        ),
        (format!("{}\n{line}\n", first), 1),
        (format!("{}\n{}\n", first, "[".repeat(100_000)), 1),
        (format!("{first}\n"), 1),
        ("{".repeat(100_000), 2),
        (String::new(), 2),
    ];
    for (nth, (text, code)) in cases.iter().enumerate() {
        std::fs::write(place.path("hostile.jsonl"), text).unwrap();
        let ran = place.effectd(&["receipts", "verify", "hostile.jsonl"], None);
        assert_eq!(ran.code(), *code, "{nth}: {}{}", ran.stdout(), ran.stderr());
        assert!(!ran.stderr().contains('\u{1b}') && !ran.stdout().contains('\u{1b}'), "{nth}");
        assert!(!ran.stderr().contains("panicked"), "{nth}: {}", ran.stderr());
    }
    // A false head of an empty log.
    let mut empty = first.clone();
    empty["head"]["size"] = json!(0);
    std::fs::write(place.path("hostile.jsonl"), format!("{empty}\n")).unwrap();
    let ran = place.effectd(&["receipts", "verify", "hostile.jsonl"], None);
    assert_eq!(ran.code(), 1, "{}", ran.stderr());
}

#[test]
fn a_known_head_and_a_single_proof_are_enough() {
    let place = place_with(3);
    let head = place.effectd(&["receipts", "head"], None);
    std::fs::write(place.path("head.json"), head.stdout()).unwrap();
    let listed = lines(&place.effectd(&["receipts", "list", "status:ok", "-o", "jsonl"], None));
    let receipt = listed[0]["receipt_id"].as_str().unwrap();
    let proof = place.effectd(&["receipts", "proof", receipt], None);
    std::fs::write(place.path("proof.json"), proof.stdout()).unwrap();
    let checked = place.effectd(&["receipts", "verify", "proof.json"], None);
    assert_eq!(checked.code(), 0, "{}", checked.stderr());
    let forged = proof.stdout().replace("\"status\":\"ok\"", "\"status\":\"error\"");
    std::fs::write(place.path("forged.json"), forged).unwrap();
    let checked = place.effectd(&["receipts", "verify", "forged.json"], None);
    assert!(checked.code() == 1 && checked.stderr().contains("not what was signed"), "{}", checked.stderr());
    assert_eq!(place.run(&write_note("later", "workspace/later", "x")).code(), 0);
    let again = place.effectd(&["receipts", "verify", "--head", "head.json"], None);
    assert_eq!(again.code(), 0, "{}", again.stderr());
    // Another store does not extend the log of that head.
    let other = place_with(3);
    std::fs::copy(place.path("head.json"), other.path("head.json")).unwrap();
    let other = other.effectd(&["receipts", "verify", "--head", "head.json"], None);
    assert!(
        other.code() == 1 && other.stderr().contains("not the one that was signed"),
        "{}",
        other.stderr()
    );
}

#[test]
fn receipts_before_and_after_a_rotation_are_genuine() {
    let place = place_with(2);
    let rotated = place.effectd(&["keys", "rotate", "--yes"], None);
    assert_eq!(rotated.code(), 0, "{}", rotated.stderr());
    assert_eq!(place.run(&write_note("after", "workspace/after", "x")).code(), 0);
    let keys = lines(&place.effectd(&["keys", "list", "-o", "jsonl"], None));
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[1]["previous"], keys[0]["key_id"]);
    let report = place.effectd(&["receipts", "verify", "-o", "json"], None).json(0);
    assert_eq!(report["keys"], json!([keys[0]["key_id"], keys[1]["key_id"]]));
    let by: Vec<Value> = lines(&place.effectd(&["receipts", "export"], None))
        .iter()
        .map(|receipt| receipt["signature"]["key_id"].clone())
        .collect();
    assert_eq!((by.first(), by.last()), (Some(&keys[0]["key_id"]), Some(&keys[1]["key_id"])));
    // A bundle that begins after the rotation still knows both.
    let size = report["size"].as_u64().unwrap();
    let from = (size - 2).to_string();
    let export = place.effectd(&["receipts", "export", "--bundle", "end.jsonl", "--from", &from], None);
    assert_eq!(export.code(), 0, "{}", export.stderr());
    let checked = place.effectd(&["receipts", "verify", "end.jsonl"], None);
    assert_eq!(checked.code(), 0, "{}", checked.stderr());
    let (code, told) = python(&place.path("end.jsonl"));
    assert_eq!(code, 0, "{told}");
    let store = place.effectd(&["store", "check"], None);
    assert_eq!(store.code(), 0, "{}", store.stderr());
}

#[test]
fn a_changed_byte_of_the_logs_hashes_is_found() {
    let place = place_with(3);
    let path = place.state().join("log/level-0");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[3 * 32 + 5] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let checked = place.effectd(&["receipts", "verify"], None);
    assert!(checked.code() == 1 && checked.stderr().contains("entry 3"), "{}", checked.stderr());
    let store = place.effectd(&["store", "check"], None);
    assert!(store.code() == 1 && store.stderr().contains("entry 3 of the log"), "{}", store.stderr());
    assert_eq!(place.effectd(&["store", "rebuild"], None).code(), 0);
    let checked = place.effectd(&["receipts", "verify"], None);
    assert_eq!(checked.code(), 0, "{}", checked.stderr());
}

#[test]
fn one_filter_language_finds_receipts_everywhere() {
    let place = place_with(4);
    let count = |arguments: &[&str]| {
        let mut all = vec!["receipts", "list", "-o", "jsonl", "--limit", "100"];
        all.extend(arguments);
        lines(&place.effectd(&all, None)).len()
    };
    assert_eq!(count(&[]), 5);
    assert_eq!(count(&["tool:files.*", "status:ok"]), 4);
    assert_eq!(count(&["--", "-status:ok"]), 1);
    assert_eq!(count(&["code:policy_denied", "subject:agent://str*"]), 1);
    assert_eq!(count(&["action:n-1,n-2"]), 2);
    assert_eq!(count(&["since:1h"]), 5);
    assert_eq!(count(&["until:1h"]), 0);
    assert_eq!(count(&["--status", "ok", "--tool", "files.write_text"]), 4);
    let wrong = place.effectd(&["receipts", "list", "stats:ok"], None);
    assert!(wrong.code() == 2 && wrong.stderr().contains("unknown condition"), "{}", wrong.stderr());
    let shown = lines(&place.effectd(&["receipts", "list", "action:n-1", "-o", "jsonl"], None));
    let shown = place.effectd(&["receipts", "show", shown[0]["receipt_id"].as_str().unwrap()], None);
    let words = [
        "timeline",
        "queued",
        "checked and claimed",
        "attempt 1",
        "█",
        "receipt",
        "changed",
        "n-1: created, 4 bytes",
        "effectd undo",
        "mWh",
    ];
    for word in words {
        assert!(shown.stdout().contains(word), "{word}: {}", shown.stdout());
    }
    let by_action = place.effectd(&["receipts", "show", "n-1"], None);
    assert_eq!(by_action.stdout(), shown.stdout());
    let nobody = place.effectd(&["receipts", "show", "nobody"], None);
    assert!(
        nobody.code() == 2 && nobody.stderr().contains("no receipt and no ended action"),
        "{}",
        nobody.stderr()
    );
    let audit = place.effectd(&["receipts", "audit"], None);
    assert!(
        audit.code() == 0 && audit.stderr().contains("5 receipts inspected, 0 findings"),
        "{}",
        audit.stderr()
    );
}

#[test]
fn exports_are_the_same_each_time_and_go_on_where_they_were() {
    let place = place_with(5);
    for name in ["one", "two"] {
        let ran = place.effectd(&["receipts", "export", "--dataset", name, "status:ok"], None);
        assert_eq!(ran.code(), 0, "{}", ran.stderr());
    }
    for file in ["manifest.json", "frame.jsonl", "frame.csv", "receipts.jsonl", "amendments.jsonl"] {
        let read = |name: &str| std::fs::read(place.path(name).join(file)).unwrap();
        assert_eq!(read("one"), read("two"), "{file}");
    }
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(place.path("one/manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["files"]["receipts.jsonl"]["lines"], 5);
    let bytes = std::fs::read(place.path("one/receipts.jsonl")).unwrap();
    assert_eq!(manifest["files"]["receipts.jsonl"]["digest"], json!(effectd::contracts::Digest::of(&bytes)));
    let again = place.effectd(&["receipts", "export", "--dataset", "one"], None);
    assert_eq!(again.code(), 2, "what is there is not written over");
    let csv = place.effectd(&["receipts", "export", "--format", "csv"], None);
    assert_eq!(csv.stdout().lines().count(), 7, "{}", csv.stdout());
    let tail = || lines(&place.effectd(&["receipts", "tail", "--once", "--cursor", "c"], None)).len();
    // A reader that disconnects has not acknowledged.
    let deaf = place.effectd_on(&["receipts", "tail", "--once", "--cursor", "c"], None, |command| {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        command.stdout(write);
    });
    assert_eq!(deaf.code(), 0, "{}", deaf.stderr());
    for command in [&["receipts", "export"][..], &["receipts", "tail", "--once", "--cursor", "c"]] {
        let full = place.effectd_on(command, None, |command| {
            command.stdout(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
        });
        assert_eq!(full.code(), 74, "what cannot be written is not called done: {}", full.stderr());
        assert!(full.stderr().contains("standard output"), "{}", full.stderr());
    }
    assert_eq!((tail(), tail()), (6, 0));
    assert_eq!(place.run(&write_note("more", "workspace/more", "x")).code(), 0);
    assert_eq!((tail(), tail()), (1, 0));
    let part = place.effectd(&["receipts", "export", "--after", "3"], None);
    assert_eq!(lines(&part).len(), 3);
}

#[test]
fn what_is_known_later_is_noted_beside_the_receipt() {
    let place = place_with(2);
    let listed = lines(&place.effectd(&["receipts", "list", "action:n-0", "-o", "jsonl"], None));
    let (id, reward) = (listed[0]["receipt_id"].as_str().unwrap(), &listed[0]["reward"]);
    assert!(
        reward["inputs"]["allowed_ms"].is_number() && reward["inputs"]["weights"]["success"] == 0.6,
        "{reward}"
    );
    assert_eq!(listed[0]["choice"]["propensity"], 0.5);
    let again = place.effectd(&["receipts", "recompute-reward", "-o", "jsonl"], None);
    for row in lines(&again) {
        assert_eq!(row["reward"], row["recomputed"]);
    }
    let other = place.effectd(
        &["receipts", "recompute-reward", "action:n-0", "--set", "reward.weight_success=0.1", "-o", "jsonl"],
        None,
    );
    let other = &lines(&other)[0];
    assert!(other["recomputed"]["scalar"].as_f64() < reward["scalar"].as_f64(), "{other}");
    let nothing = place.effectd(&["receipts", "amend", id], None);
    assert_eq!(nothing.code(), 2, "{}", nothing.stderr());
    let amended = place.effectd(
        &["receipts", "amend", id, "--success", "false", "--source", "nightly-check", "--yes", "-o", "json"],
        None,
    );
    let amended = amended.json(0);
    assert_eq!((&amended["receipt_id"], &amended["source"]), (&json!(id), &json!("nightly-check")));
    assert!(amended["reward"]["scalar"].as_f64().unwrap() < 0.01, "{amended}");
    let shown = place.effectd(&["receipts", "show", id], None).stdout();
    assert!(shown.contains("not a success") && shown.contains("nightly-check"), "{shown}");
    let same = lines(&place.effectd(&["receipts", "list", "action:n-0", "-o", "jsonl"], None));
    assert_eq!(same, listed, "a receipt is never edited");
    let report = place.effectd(&["receipts", "verify", "-o", "json"], None).json(0);
    assert_eq!(report["amendments"], 1);
    assert_eq!(place.effectd(&["receipts", "export", "--dataset", "d"], None).code(), 0);
    let told = learners(&place.path("d/receipts.jsonl"), Some(&place.path("d/amendments.jsonl")), &[]);
    assert!(told[0].starts_with("files.write_text n=3 successes=1 "), "{told:?}");
}

#[test]
fn amendments_add_up_and_are_events() {
    let place = place_with(1);
    let listed = lines(&place.effectd(&["receipts", "list", "action:n-0", "-o", "jsonl"], None));
    let (id, mut in_force) =
        (listed[0]["receipt_id"].as_str().unwrap(), listed[0]["reward"]["scalar"].as_f64().unwrap());
    // The last word of each field counts: a word about the quality does not take back one about success.
    let mut rewards = Vec::new();
    for said in [["--success", "false"], ["--quality", "0.25"], ["--success", "true"]] {
        let amended =
            place.effectd(&["receipts", "amend", id, said[0], said[1], "--yes", "-o", "json"], None);
        assert!(amended.stderr().contains(&format!("its reward: {in_force} -> ")), "{}", amended.stderr());
        in_force = amended.json(0)["reward"]["scalar"].as_f64().unwrap();
        rewards.push(in_force);
    }
    assert!(rewards[0] <= 0.0 && rewards[1] == rewards[0], "{rewards:?}");
    assert!((0.6..=0.675).contains(&rewards[2]), "{rewards:?}");
    let events = lines(&place.effectd(&["bus", "tail", "--once", "--topic", "AMENDMENTS"], None));
    let data: Vec<_> = events.iter().map(|event| &event["data"]).collect();
    assert_eq!(data.len(), 3);
    for (nth, event) in events.iter().enumerate() {
        assert_eq!((&event["type"], &event["offset"]), (&json!("effectd.receipt.amended.v1"), &json!(nth)));
        let before = nth.checked_sub(1).map_or(&listed[0]["reward"]["scalar"], |one| &data[one]["reward"]);
        assert_eq!((&data[nth]["reward_before"], &data[nth]["receipt_id"]), (before, &json!(id)), "{event}");
        assert_eq!(data[nth]["reward"], rewards[nth]);
    }
    assert_eq!((&data[1]["success"], &data[1]["quality"]), (&json!(false), &json!(0.25)));
    assert_eq!((&data[2]["success"], &data[2]["quality"]), (&json!(true), &json!(0.25)));
    assert_eq!(place.effectd(&["receipts", "verify"], None).code(), 0);
}

#[test]
fn a_dataset_is_a_flat_frame_without_operators() {
    let place = place_with(2);
    let listed = lines(&place.effectd(&["receipts", "list", "action:n-0", "-o", "jsonl"], None));
    let id = listed[0]["receipt_id"].as_str().unwrap();
    for said in [["--success", "false"], ["--quality", "1"]] {
        let amended = place.effectd(&["receipts", "amend", id, said[0], said[1], "--yes"], None);
        assert_eq!(amended.code(), 0, "{}", amended.stderr());
    }
    // An operation leaves a receipt of its own.
    assert_eq!(place.effectd(&["tools", "disable", "files.search", "--yes"], None).code(), 0);
    let frame = |name: &str, more: &[&str]| {
        let ran = place.effectd(&[&["receipts", "export", "--dataset", name], more].concat(), None);
        assert_eq!(ran.code(), 0, "{}", ran.stderr());
        let text = std::fs::read_to_string(place.path(name).join("frame.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    assert_eq!(frame("all", &["--operations"]).len(), 4);
    let rows = frame("d", &[]);
    assert_eq!(rows.len(), 3);
    let row = rows.iter().find(|row| row["action_id"] == "n-0").unwrap();
    assert_eq!(
        (&row["success"], &row["amendments"], &row["status"]),
        (&json!(false), &json!(2), &json!("ok"))
    );
    assert!(row["reward"].as_f64().unwrap() <= 0.0, "{row}");
    assert_eq!((&row["chosen"], &row["propensity"]), (&json!("write"), &json!(0.5)));
    assert_eq!((&row["candidates"][1]["id"], &row["context"]), (&json!("wait"), &json!({ "hour": 7 })));
    assert!(row["tier"].as_str().unwrap().starts_with('R') && row["cpu_ms"].is_number(), "{row}");
    let refused = rows.iter().find(|row| row["action_id"] == "refused").unwrap();
    assert_eq!((&refused["success"], &refused["code"]), (&json!(false), &json!("policy_denied")));
    // The page has every column, and CSV has the same cells.
    let page = std::fs::read_to_string(root().join("docs/receipts.md")).unwrap();
    let table = std::fs::read_to_string(place.path("d/frame.csv")).unwrap();
    let header: Vec<_> = table.lines().next().unwrap().split(',').collect();
    assert_eq!((header.len(), table.lines().count()), (row.as_object().unwrap().len(), 4));
    for column in header {
        assert!(row.get(column).is_some() && page.contains(&format!("`{column}`")), "{column}");
    }
    let cell = r#""[{""id"":""write"",""propensity"":0.5},{""id"":""wait"",""propensity"":0.5}]""#;
    assert!(table.contains(cell), "{table}");
    assert_eq!(
        place.effectd(&["receipts", "export", "--format", "csv", "--", "-space:effectd"], None).stdout(),
        table
    );
    // Both learners add the amendments up, too.
    let told = learners(&place.path("d/receipts.jsonl"), Some(&place.path("d/amendments.jsonl")), &[]);
    assert!(told[0].starts_with("files.write_text n=3 successes=1 "), "{told:?}");
}

#[test]
fn formula_2_is_stored_beside_formula_1_if_it_is_chosen() {
    let place = place_with(1);
    for (action, subject) in [("v-ok", "agent://planner@deviceA"), ("v-denied", "agent://stranger")] {
        let mut request = write_note(action, &format!("workspace/{action}"), "x");
        request["subject_id"] = json!(subject);
        place.effectd(&["run", "-", "--set", "reward.formula=2"], Some(&request.to_string()));
    }
    let reward = |action: &str| {
        let found = format!("action:{action}");
        lines(&place.effectd(&["receipts", "list", &found, "-o", "jsonl"], None))[0]["reward"].clone()
    };
    assert!(reward("n-0").get("v2").is_none(), "{}", reward("n-0"));
    let (ok, denied) = (reward("v-ok"), reward("v-denied"));
    assert_eq!((&ok["formula"], &denied["v2"]), (&json!(1), &json!(-0.1)));
    assert_eq!(denied["scalar"].as_f64(), Some(0.0));
    assert!((0.4..=1.0).contains(&ok["v2"].as_f64().unwrap()), "{ok}");
    let events = lines(&place.effectd(&["bus", "tail", "--once"], None));
    let last = &events.last().unwrap()["data"];
    assert_eq!((&last["action_id"], &last["reward_v2"]), (&json!("v-denied"), &json!(-0.1)));
    let first = &events[0]["data"];
    assert_eq!((&first["chosen"], &first["propensity"]), (&json!("write"), &json!(0.5)));
    assert_eq!((&first["context"]["hour"], &first["cost"]), (&json!(7.0), &cost_of(&place, "n-0")));
    // Both are computed again from the receipt alone.
    let again =
        place.effectd(&["receipts", "recompute-reward", "--set", "reward.formula=2", "-o", "jsonl"], None);
    for row in lines(&again).iter().filter(|row| row["reward"].get("v2").is_some()) {
        assert_eq!(row["reward"], row["recomputed"]);
    }
}

fn cost_of(place: &Place, action: &str) -> Value {
    let found = format!("action:{action}");
    lines(&place.effectd(&["receipts", "list", &found, "-o", "jsonl"], None))[0]["cost"].clone()
}

/// The result of both learners, which must be the same.
fn learners(receipts: &Path, amendments: Option<&Path>, target: &[(&str, f64)]) -> Vec<String> {
    let mut command = Command::new("python3");
    command.arg(root().join("examples/learner.py")).arg(receipts);
    if let Some(path) = amendments {
        command.arg("--amendments").arg(path);
    }
    for (candidate, likely) in target {
        command.arg(format!("--target={candidate}={likely}"));
    }
    let ran = command.output().expect("python3 is needed; .ci/run installs it");
    let python = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let target: HashMap<_, _> = target.iter().map(|(tool, likely)| ((*tool).to_owned(), *likely)).collect();
    let mut ours = learner::Learner::new(target);
    if let Some(amendments) = amendments {
        learner::each(amendments, |amendment| ours.amend(amendment)).unwrap();
    }
    let mut first = Vec::new();
    // The second replay changes nothing.
    for round in 0..2 {
        learner::each(receipts, |receipt: Receipt| ours.take(&receipt)).unwrap();
        if round == 0 {
            first = ours.told();
        }
    }
    assert_eq!(ours.told(), first);
    assert_eq!(python.lines().collect::<Vec<_>>(), first, "both learners say the same");
    first
}

#[test]
fn a_replay_of_the_bus_teaches_the_same_each_time() {
    let place = place_with(3);
    let listed = lines(&place.effectd(&["receipts", "list", "action:n-0", "-o", "jsonl"], None));
    let id = listed[0]["receipt_id"].as_str().unwrap();
    let amended = place.effectd(&["receipts", "amend", id, "--success", "false", "--yes"], None);
    assert_eq!(amended.code(), 0, "{}", amended.stderr());
    let dataset = place.effectd(&["receipts", "export", "--dataset", "d"], None);
    assert_eq!(dataset.code(), 0, "{}", dataset.stderr());
    let target = [("write", 1.0)];
    let from_dataset =
        learners(&place.path("d/receipts.jsonl"), Some(&place.path("d/amendments.jsonl")), &target);
    assert!(from_dataset[0].starts_with("files.write_text n=4 successes=2 "), "{from_dataset:?}");
    let whole = python_learner(&[place.path("d").to_str().unwrap(), "--target=write=1"]);
    assert_eq!(whole.stdout().lines().collect::<Vec<_>>(), from_dataset, "{}", whole.stderr());
    let replayed = || {
        let replay = |topic| place.effectd(&["bus", "replay", "--topic", topic], None).stdout();
        [replay("AMENDMENTS"), replay("ACTION_EXECUTED")]
    };
    let [amendments, executed] = replayed();
    // In a second replay, a consumer sees events again, also in another order, and one in place of a lost event.
    let lost = json!({ "type": "effectd.lost.v1", "id": "lost:ACTION_EXECUTED:9", "data": { "lost": true } });
    let twice: Vec<String> = executed.lines().flat_map(|line| [line.to_owned(), line.to_owned()]).collect();
    for events in [
        format!("{amendments}{executed}"),
        replayed().concat(),
        format!("{amendments}{executed}{amendments}{executed}"),
        format!("{amendments}{lost}\n{}\n", twice.join("\n")),
    ] {
        let path = place.path("events.jsonl");
        std::fs::write(&path, events).unwrap();
        let python = python_learner(&["--events", path.to_str().unwrap(), "--target=write=1"]);
        assert_eq!(python.stdout().lines().collect::<Vec<_>>(), from_dataset, "{}", python.stderr());
        let mut ours = learner::Learner::new(HashMap::from([("write".to_owned(), 1.0)]));
        learner::each(&path, |event| ours.take_event(event).unwrap()).unwrap();
        assert_eq!(ours.told(), from_dataset);
    }
    // Without a daemon, both examples say what to do.
    let socket = place.path("none.sock");
    let missing = python_learner(&["--from-bus", socket.to_str().unwrap()]);
    let mut planner = Command::new("python3");
    planner.arg(root().join("examples/planner.py")).arg(&socket).arg(root().join("examples/write_note.json"));
    for told in [missing, Ran(planner.output().unwrap())] {
        assert_ne!(told.code(), 0);
        assert!(told.stderr().starts_with("no daemon answers on ") && told.stderr().lines().count() == 1);
        assert!(told.stderr().contains("start one with `effectd serve`"), "{}", told.stderr());
    }
}

fn python_learner(arguments: &[&str]) -> Ran {
    let mut command = Command::new("python3");
    command.arg(root().join("examples/learner.py")).args(arguments);
    Ran(command.output().expect("python3 is needed; .ci/run installs it"))
}

#[test]
fn an_estimate_of_another_planner_covers_the_truth() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("receipts.jsonl");
    let golden = std::fs::read_to_string(root().join("contracts/tests/golden/receipt.json")).unwrap();
    let template: Receipt = serde_json::from_str(&golden).unwrap();
    // Two candidates of known worth; the planner on record takes the worse one nine times in ten.
    let tools = [("mail.send", 0.9, 0.30), ("chat.send", 0.1, 0.75)];
    let names = HashMap::from([("mail.send", "write a mail"), ("chat.send", "write a message")]);
    let mut state = 7_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let mut text = String::new();
    for nth in 0..6_000 {
        let (tool, propensity, worth) = tools[usize::from(random() >= 0.9)];
        let success = random() < worth;
        let mut receipt = template.clone();
        receipt.receipt_id = format!("r-{nth}").parse().unwrap();
        receipt.tool_id = tool.parse().unwrap();
        receipt.status = if success { Status::Ok } else { Status::Error };
        receipt.reward.scalar = f64::from(u8::from(success));
        receipt.choice =
            Some(serde_json::from_value(json!({ "propensity": propensity, "chosen": names[tool] })).unwrap());
        text.push_str(&serde_json::to_string(&receipt).unwrap());
        text.push('\n');
    }
    std::fs::write(&path, text).unwrap();
    for (likely, truth) in [(0.0, 0.30), (1.0, 0.75), (0.5, 0.525)] {
        let target = [(names["chat.send"], likely), (names["mail.send"], 1.0 - likely)];
        let told = learners(&path, None, &target);
        let estimate = told.iter().find(|line| line.starts_with("off_policy ")).unwrap();
        let figure = |name: &str| -> f64 {
            let (_, rest) = estimate.split_once(name).unwrap();
            rest.split(' ').next().unwrap().parse().unwrap()
        };
        let (low, high) = (figure("low="), figure("high="));
        assert!(low <= truth && truth <= high, "{truth}: {estimate}");
        assert!(high - low < 0.15, "{estimate}");
        // Weights waste receipts: one candidate alone is worth its own receipts and no more.
        let (n, effective) = (figure(" n="), figure("effective_n="));
        let share = [(0.0, 0.9), (1.0, 0.1)].into_iter().find(|(only, _)| *only == likely);
        assert!(
            effective < n && share.is_none_or(|(_, share)| (effective / n - share).abs() < 0.02),
            "{estimate}"
        );
    }
    let strange = learners(&path, None, &[("nobody.chose", 1.0)]);
    assert!(strange.last().unwrap().starts_with("off_policy n=6000 effective_n=0.0: "), "{strange:?}");
    let told = learners(&path, None, &[]);
    for (line, (_, _, worth)) in told.iter().zip([tools[1], tools[0]]) {
        let figures: Vec<f64> = ["low=", "high="]
            .iter()
            .map(|name| line.split_once(name).unwrap().1.split(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(figures[0] <= worth && worth <= figures[1], "{line}");
    }
}
