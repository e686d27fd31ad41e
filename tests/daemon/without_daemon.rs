//! Commands without a daemon: they work on the store itself where that is safe, and say so.

use crate::harness::{Place, write_note};

#[test]
fn decisions_are_carried_out_by_the_command_itself() {
    let place = Place::seeded();
    let request = write_note("d-1", "d.txt", "d").to_string();
    let submitted = place.effectd(&["submit", "-", "-o", "json"], Some(&request));
    assert_eq!(submitted.json(0)["action_id"], "d-1");
    assert!(submitted.stderr().contains("no daemon answers on"), "{}", submitted.stderr());
    assert!(
        submitted.stderr().contains("working on the store in .effectd directly"),
        "{}",
        submitted.stderr()
    );
    let status = place.effectd(&["wait", "d-1", "-o", "json"], None);
    assert_eq!(status.json(0)["outcome"], "executed");
    let status = place.effectd(&["status", "d-1", "-o", "json"], None);
    assert_eq!(status.json(0)["outcome"], "executed");
    assert!(status.stderr().contains("no daemon answers on"), "{}", status.stderr());
    assert_eq!(place.effectd(&["cancel", "d-1"], None).code(), 1);
    assert_eq!(place.effectd(&["status", "nobody"], None).code(), 2);
    assert_eq!(std::fs::read_to_string(place.note("d.txt")).unwrap(), "d");
}

#[test]
fn who_is_patient_never_works_without_the_daemon() {
    let place = Place::seeded();
    let request = write_note("d-2", "d2.txt", "d").to_string();
    let ran = place.effectd(&["submit", "--patience", "0", "-"], Some(&request));
    assert_eq!(ran.code(), 75, "{}", ran.stderr());
    assert!(ran.stderr().contains("start one with `effectd serve`"), "{}", ran.stderr());
    assert!(!place.note("d2.txt").exists());
}

#[test]
fn without_a_state_there_is_nothing_to_work_on() {
    let place = Place::seeded();
    let request = write_note("d-3", "d3.txt", "d").to_string();
    let ran = place.effectd(&["submit", "--state", "elsewhere", "-"], Some(&request));
    assert_eq!(ran.code(), 2, "{}", ran.stderr());
    assert!(!place.path("elsewhere").exists());
}

#[test]
fn a_stream_waits_for_room_in_its_own_process() {
    let place = Place::seeded();
    let line = |n: u32| format!("{}\n", write_note(&format!("b-{n}"), &format!("b{n}.txt"), "b"));
    let lines: String = (0..8).map(line).collect();
    let stream = ["submit", "--jsonl", "--set", "gateway.backlog_max=1", "-"];
    let ran = place.effectd(&stream, Some(&lines));
    assert_eq!(ran.code(), 0, "{}{}", ran.stdout(), ran.stderr());
    assert!(ran.stderr().contains(" 0 refused"), "{}", ran.stderr());
}

#[test]
fn who_only_looks_makes_no_keys_and_needs_no_pins() {
    let place = Place::seeded();
    let request = write_note("k-1", "k.txt", "k").to_string();
    let done = place.effectd(&["submit", "--wait", "-"], Some(&request));
    assert_eq!(done.code(), 0, "{}", done.stderr());
    let (keys, aside) = (place.state().join("keys"), place.path("aside"));
    let missing = |why: &str| {
        let looked = place.effectd(&["status", "k-1"], None);
        assert_eq!(looked.code(), 69, "{why}: {}", looked.stderr());
        let said = "receipt-signing.key is unusable: it is missing";
        assert!(looked.stderr().contains(said), "{why}: {}", looked.stderr());
    };
    std::fs::rename(&keys, &aside).unwrap();
    missing("all keys");
    assert!(!keys.exists());
    std::fs::rename(&aside, &keys).unwrap();
    let signing = keys.join("receipt-signing.key");
    std::fs::rename(&signing, &aside).unwrap();
    missing("one key");
    assert!(!signing.exists());
    std::fs::rename(&aside, &signing).unwrap();
    let pins = place.state().join("roots.json");
    std::fs::write(&pins, "none").unwrap();
    let looked = place.effectd(&["status", "k-1", "-o", "json"], None);
    assert_eq!(looked.json(0)["outcome"], "executed");
    assert_eq!(std::fs::read_to_string(&pins).unwrap(), "none");
}
