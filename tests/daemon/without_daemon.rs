//! Without a daemon, commands work on the store itself where that is safe, and say so.

use crate::harness::{Place, write_note};

#[test]
fn decisions_are_carried_out_by_the_command_itself() {
    let place = Place::seeded();
    let request = write_note("d-1", "d.txt", "d").to_string();
    let submitted = place.effectd(&["submit", "-", "-o", "json"], Some(&request));
    assert_eq!(submitted.json(0)["action_id"], "d-1");
    assert!(
        submitted.stderr().contains("no daemon answers on"),
        "{}",
        submitted.stderr()
    );
    assert!(
        submitted
            .stderr()
            .contains("working on the store in .effectd directly"),
        "{}",
        submitted.stderr()
    );
    let status = place.effectd(&["wait", "d-1", "-o", "json"], None);
    assert_eq!(status.json(0)["outcome"], "executed");
    let status = place.effectd(&["status", "d-1", "-o", "json"], None);
    assert_eq!(status.json(0)["outcome"], "executed");
    assert!(
        status.stderr().contains("no daemon answers on"),
        "{}",
        status.stderr()
    );
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
    assert!(
        ran.stderr().contains("`effectd serve` starts one"),
        "{}",
        ran.stderr()
    );
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
