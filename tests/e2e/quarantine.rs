//! Quarantine: what a safety check stops is held for review, then released through the gates or destroyed.

use serde_json::Value;

use crate::harness::{Place, Running, write_note};

const SECRET: &str = "c2VjcmV0IGtleSB0aGF0IG5vYm9keSBmaW5kcw";

fn quarantined(place: &Place, action: &str) {
    let text = format!(
        "note\n-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----\nend\n"
    );
    let receipt = place.run(&write_note(action, "workspace/key.txt", &text)).json(5);
    assert_eq!((&receipt["status"], &receipt["outcome"]), (&"quarantined".into(), &"quarantined".into()));
    assert!(!place.note("key.txt").exists());
}

fn listed(place: &Place) -> Vec<Value> {
    let list = place.effectd(&["quarantine", "list", "-o", "json"], None).json(0);
    list.as_array().unwrap().clone()
}

fn number(letter: &Value) -> String {
    letter["letter"].to_string()
}

#[test]
fn a_quarantined_action_is_sealed_and_shown_without_its_secret() {
    let place = Place::seeded();
    quarantined(&place, "k-1");
    let all = listed(&place);
    assert_eq!((all.len(), &all[0]["action_id"]), (1, &"k-1".into()));
    let number = number(&all[0]);
    let shown = place.effectd(&["quarantine", "show", &number, "-o", "json"], None).json(0);
    let text = shown["params"]["text"].as_str().unwrap();
    assert!(text.contains("note") && text.contains("[redacted:secret]") && !text.contains(SECRET), "{text}");
    assert_eq!(shown["tool_id"], "files.write_text");
    let table = place.effectd(&["quarantine", "show", &number], None).stdout();
    assert!(table.contains("quarantined: files.write_text") && !table.contains(SECRET), "{table}");
    for (path, bytes) in place.state_bytes() {
        let found = bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        assert!(!found, "{} holds it in clear", path.display());
    }
    assert_eq!(place.effectd(&["quarantine", "show", "k-1"], None).stdout(), table, "by its action");
    assert_eq!(
        place.effectd(&["dlq", "show", "k-1", "-o", "json"], None).json(0)["letter"],
        all[0]["letter"]
    );
    assert_eq!(place.effectd(&["quarantine", "show", "k-"], None).code(), 1, "a name in part");
    // Nothing else has this number.
    let none = place.effectd(&["quarantine", "show", "99"], None);
    assert_eq!(none.code(), 1);
    assert!(none.stderr().contains("quarantine list"), "{}", none.stderr());
}

#[test]
fn quarantine_is_bounded_by_subject_and_spared_by_bulk_verbs() {
    let place = Place::seeded();
    let settings = "[control]\nquarantined_subject_max = 2\n";
    std::fs::write(place.state().join("config.toml"), settings).unwrap();
    for nth in 0..3 {
        quarantined(&place, &format!("k-{nth}"));
    }
    let kept: Vec<_> = listed(&place).iter().map(|one| one["action_id"].clone()).collect();
    assert_eq!(kept, ["k-0", "k-1"]);
    // The third has its receipt, and nothing else.
    let receipt = place.effectd(&["receipts", "show", "k-2", "-o", "json"], None).json(0);
    let why = receipt["error"]["message"].as_str().unwrap();
    assert!(why.contains("not stored for review"), "{receipt}");
    for (path, bytes) in place.state_bytes() {
        let found = bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        assert!(!found, "{} holds it in clear", path.display());
    }
    // Bulk commands skip what is held for review.
    for words in [
        ["dlq", "requeue", "--all", "--yes"].as_slice(),
        &["dlq", "drop", "--all", "--yes"],
        &["dlq", "drop", "--tool", "files.write_text", "--yes"],
        &["dlq", "drain", "--yes"],
    ] {
        let ran = place.effectd(words, None);
        assert_eq!(ran.code(), 0, "{words:?}: {}", ran.stderr());
        assert_eq!(listed(&place).len(), 2, "{words:?}");
    }
    // It can be purged by its number; then there is room for another.
    let first = number(&listed(&place)[0]);
    let words = ["quarantine", "shred", &first, "--yes"];
    assert_eq!(place.effectd(&words, None).code(), 0);
    quarantined(&place, "k-3");
    let kept: Vec<_> = listed(&place).iter().map(|one| one["action_id"].clone()).collect();
    assert_eq!(kept, ["k-1", "k-3"]);
}

#[test]
fn quarantined_artifacts_share_the_list_and_release_of_actions() {
    let place = Place::seeded();
    quarantined(&place, "k-1");
    let mut put = write_note("a-1", "workspace/none", "kept");
    put["tool_id"] = "artifact.put".into();
    put["params"] = serde_json::json!({ "text": "kept", "space_id": "shared:household" });
    let receipt = place.run(&put).json(0);
    let artifact = receipt["outputs"]["artifact_id"].as_str().unwrap();
    let aside = ["artifacts", "quarantine", artifact, "--reason", "odd", "--yes"];
    assert_eq!(place.effectd(&aside, None).code(), 0);
    let all = listed(&place);
    let kinds: Vec<_> = all.iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["action", "artifact"]);
    assert_eq!(all[1]["artifact_id"], artifact);
    let table = place.effectd(&["quarantine", "list"], None).stdout();
    assert!(table.contains(artifact) && table.contains("odd"), "{table}");
    let shown = place.effectd(&["quarantine", "show", artifact], None).stdout();
    assert!(shown.contains("why       odd"), "{shown}");
    let shred = place.effectd(&["quarantine", "shred", artifact, "--yes"], None);
    assert_eq!(shred.code(), 2);
    assert!(shred.stderr().contains("effectd store erase"), "{}", shred.stderr());
    let release = place.effectd(&["quarantine", "release", artifact, "--yes"], None);
    assert_eq!(release.code(), 0, "{}", release.stderr());
    assert_eq!(listed(&place).len(), 1);
    assert_eq!(place.effectd(&["quarantine", "release", artifact, "--yes"], None).code(), 1);
    let unknown = place.effectd(&["quarantine", "shred", "nosuch", "--yes"], None);
    assert_eq!(unknown.code(), 1);
    let said = "no such action or artifact is quarantined; `effectd quarantine list` lists those that are";
    assert!(unknown.stderr().contains(said), "{}", unknown.stderr());
}

#[test]
fn released_it_passes_every_gate_again_and_shredded_it_is_gone() {
    let place = Place::seeded();
    quarantined(&place, "k-1");
    quarantined(&place, "k-2");
    let [first, second] = [0, 1].map(|nth| number(&listed(&place)[nth]));
    // Nothing happens without a confirmation.
    let unsure = place.effectd(&["quarantine", "release", &first], None);
    assert_eq!(unsure.code(), 2);
    assert!(unsure.stderr().contains("--yes"), "{}", unsure.stderr());
    assert_eq!(listed(&place).len(), 2);

    let gone = place.effectd(&["quarantine", "shred", &second, "--yes", "-o", "json"], None).json(0);
    assert_eq!(gone["letters"][0]["now"], "purged");
    // The operator is recorded.
    let act = gone["receipt_id"].as_str().unwrap();
    assert_eq!(place.effectd(&["receipts", "show", act], None).code(), 0);
    assert_eq!(listed(&place).len(), 1);
    assert_eq!(place.effectd(&["receipts", "show", "k-2"], None).code(), 0);

    // Under the same policy it is stopped again, with a new receipt.
    let told = place.effectd(&["quarantine", "release", &first, "--yes", "-o", "json"], None).json(0);
    assert_eq!(told["letters"][0]["now"], "requeued");
    assert_eq!(place.effectd(&["wait", "k-1", "-o", "json"], None).code(), 5);
    let again = listed(&place);
    assert_eq!((again.len(), &again[0]["action_id"]), (1, &"k-1".into()));
    assert_ne!(number(&again[0]), first);

    // When the rule has changed, it is done.
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.split("[example_tools").next().unwrap().to_owned();
    let lenient = "[safety]\nlow = { text_bytes_max = 100000, checks = [] }\n";
    let without = text.replace("[safety]\n", lenient);
    assert_ne!(without, text);
    std::fs::write(&file, without).unwrap();
    let checked = place.effectd(&["policy", "check"], None);
    assert_eq!(checked.code(), 0, "{}", checked.stderr());
    let told =
        place.effectd(&["quarantine", "release", &number(&again[0]), "--yes", "-o", "json"], None).json(0);
    assert_eq!(told["letters"][0]["now"], "requeued");
    assert_eq!(place.effectd(&["wait", "k-1", "-o", "json"], None).code(), 0);
    assert!(std::fs::read_to_string(place.note("key.txt")).unwrap().contains(SECRET));
    assert!(listed(&place).is_empty());
}
