//! Requeued dead letters: a canary goes first, only receipts count as done, and nothing is lost.

use std::io::{BufRead, BufReader, Read};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::approvals::asking;
use crate::harness::{Daemon, Place, Ran, Serving, Stall, until, write_note};
use crate::operator::{acts, causes, run};
use crate::seeding::{self, Left};
use crate::shared::Terminal;

const TOOL: &str = "files.write_text";

fn left(n: usize, what: &str) -> Left {
    Left {
        request: write_note(seeding::action(n).as_str(), &format!("c-{n}"), "x"),
        code: "tool_busy".to_owned(),
        detail: format!("the printer is {what}"),
    }
}

fn letters(place: &Place) -> u64 {
    causes(place).iter().map(|(_, count)| count).sum()
}

#[test]
fn a_failed_canary_stops_the_rest_and_loses_nothing() {
    let place = Place::seeded();
    seeding::leave(&place, (0..6).map(|n| left(n, "on fire")));
    let daemon = place.serve(&[]);
    let (cause, _) = causes(&place).remove(0);
    let ways: [(&[&str], &[&str], &str); 4] = [
        (&["breaker", "trip", TOOL], &["breaker", "reset", TOOL], "breaker_open"),
        (&["tools", "disable", TOOL], &["tools", "enable", TOOL], "tool_disabled"),
        (&["pause"], &["resume"], "paused"),
        (
            &["tools", "set-caps", TOOL, "nobody.has_this"],
            &["tools", "set-caps", TOOL, "--reset"],
            "policy_denied",
        ),
    ];
    for (nth, (stop, go_on, code)) in ways.into_iter().enumerate() {
        assert_eq!(run(&place, &[stop, &["--yes"]].concat()).code(), 0);
        let tried = run(&place, &["dlq", "requeue", "--cause", &cause, "--yes", "-o", "jsonl"]);
        assert_eq!(tried.code(), 1, "{code}: {}", tried.stderr());
        assert_eq!(tried.stdout().lines().count(), 1, "{code}: {}", tried.stdout());
        let spared = format!("{} of this cause not tried", 5 - nth);
        assert!(tried.stderr().contains("1 of 1 failed again"), "{code}: {}", tried.stderr());
        assert!(tried.stderr().contains(&spared), "{code}: {}", tried.stderr());
        assert_eq!(letters(&place), 6, "{code}");
        let exported = run(&place, &["dlq", "export"]).stdout();
        let newest: Value = serde_json::from_str(exported.lines().last().unwrap()).unwrap();
        assert_eq!(
            (newest["code"].as_str(), newest["action_id"].as_str()),
            (Some(code), Some(seeding::action(nth).as_str()))
        );
        assert_eq!(run(&place, &[go_on, &["--yes"]].concat()).code(), 0);
    }
    // Also without waiting for the canary.
    assert_eq!(run(&place, &["tools", "disable", TOOL, "--yes"]).code(), 0);
    let numbers: Vec<u64> = run(&place, &["dlq", "export"])
        .stdout()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["letter"].as_u64().unwrap())
        .collect();
    let asked = json!({ "do": "requeue_letters", "letters": numbers });
    assert_eq!(daemon.post("/v1/operations", &asked).status, 200);
    until("all are letters again", || {
        causes(&place).iter().map(|(_, count)| *count).collect::<Vec<_>>() == [6]
    });
    assert_eq!(run(&place, &["tools", "enable", TOOL, "--yes"]).code(), 0);
    // Once the cause is repaired, all of them are done.
    let unwatched = run(&place, &["dlq", "requeue", "--all", "--max", "2", "--no-canary", "--yes"]);
    let said = "2 requeued, 2 not waited for (`effectd dlq list` lists those that fail again";
    assert!(unwatched.code() == 0 && unwatched.stderr().contains(said), "{}", unwatched.stderr());
    let done = run(&place, &["dlq", "requeue", "--all", "--yes"]);
    assert_eq!(done.code(), 0, "{}", done.stderr());
    until("those that nobody waited for are done", || (0..6).all(|n| place.note(&format!("c-{n}")).exists()));
    assert_eq!(letters(&place), 0);
}

#[test]
fn what_waits_for_a_person_stops_its_cause_and_is_told() {
    let place = asking();
    seeding::leave(&place, (0..3).map(|n| left(n, "on fire")));
    let _daemon = place.serve(&[]);
    let tried = run(&place, &["dlq", "requeue", "--all", "--yes", "-o", "jsonl"]);
    assert_eq!(tried.code(), 1, "{}", tried.stderr());
    assert_eq!(tried.stdout().lines().count(), 1, "{}", tried.stdout());
    for word in ["awaits approval", "1 awaiting approval", "2 not tried"] {
        assert!(tried.stderr().contains(word), "{}", tried.stderr());
    }
    assert_eq!(letters(&place), 2);
}

#[test]
fn a_letter_that_cannot_be_requeued_does_not_hide_the_others() {
    let place = Place::seeded();
    seeding::leave_crossed(&place, left(0, "on fire"), &seeding::action(9));
    seeding::leave(&place, (1..3).map(|n| left(n, "on fire")));
    let daemon = place.serve(&[]);
    let asked = json!({ "do": "requeue_letters", "letters": [0, 1, 2] });
    let told = daemon.post("/v1/operations", &asked).json(200);
    let now: Vec<&str> =
        told["letters"].as_array().unwrap().iter().map(|letter| letter["now"].as_str().unwrap()).collect();
    assert!(now[0].starts_with("left: "), "{told}");
    assert_eq!(now[1..], ["requeued", "requeued"], "{told}");
    let receipt = acts(&place, "tool:effectd.requeue_letters").remove(0);
    assert_eq!(receipt["outputs"]["requeued"], 2, "{receipt}");
    assert_eq!(receipt["outputs"]["left"], 1, "{receipt}");
    drop(daemon);
}

#[test]
fn draining_so_many_at_most_is_draining_so_many() {
    let place = Place::seeded();
    let causes = |n: usize| if n < 4 { "on fire" } else { "asleep" };
    seeding::leave(&place, (0..8).map(|n| left(n, causes(n))));
    let _daemon = place.serve(&[]);
    let drained = run(&place, &["dlq", "drain", "--max", "5", "--yes"]);
    assert_eq!(drained.code(), 1, "{}", drained.stderr());
    assert!(drained.stderr().contains("5 requeued"), "{}", drained.stderr());
    assert_eq!(letters(&place), 3);
}

/// A daemon in which requeued actions begin and never end: neither as a dead letter again, nor by a takeover.
fn never_ending(place: &Place) -> Daemon {
    let settings = ["--set", "pipeline.lease_ttl_ms=600000"];
    place.serve_stalling(Stall("executor.begin"), &settings)
}

#[test]
fn an_unfinished_requeue_reports_its_progress() {
    let place = Place::seeded();
    seeding::leave(&place, (0..4).map(|n| left(n, "on fire")));
    let daemon = never_ending(&place);
    let late = run(&place, &["dlq", "requeue", "--all", "--wait", "1", "--yes", "-o", "jsonl"]);
    assert_eq!(late.code(), 75, "{}", late.stderr());
    assert_eq!(late.stdout().lines().count(), 1, "{}", late.stdout());
    assert!(late.stderr().contains("1 not ended yet"), "{}", late.stderr());
    assert!(late.stderr().contains("3 not tried"), "{}", late.stderr());
    // It waits for the last one, too.
    let waiting = place.command(&["dlq", "requeue", "1", "--yes", "-o", "jsonl"]).spawn().unwrap();
    until("it is requeued", || letters(&place) == 2);
    kill(Pid::from_raw(waiting.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let ended = Ran(waiting.wait_with_output().unwrap());
    assert_eq!(ended.code(), 75, "{}", ended.stderr());
    assert!(ended.stderr().contains("interrupted"), "{}", ended.stderr());
    let mut waiting = place.command(&["dlq", "requeue", "--all", "--yes", "-o", "jsonl"]).spawn().unwrap();
    // The command prints the requeue after the daemon has done it.
    let (mut said, mut told) = (BufReader::new(waiting.stdout.take().unwrap()), String::new());
    said.read_line(&mut told).unwrap();
    assert_eq!(letters(&place), 1, "{told}");
    daemon.kill();
    said.read_to_string(&mut told).unwrap();
    let broken = Ran(waiting.wait_with_output().unwrap());
    assert_eq!(broken.code(), 75, "{}", broken.stderr());
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(broken.stderr().contains("1 requeued"), "{}", broken.stderr());
}

#[test]
fn a_terminal_is_asked_for_each_cause_and_ctrl_c_is_no_answer() {
    let place = Place::seeded();
    let causes = |n: usize| if n < 3 { "on fire" } else { "asleep" };
    seeding::leave(&place, (0..5).map(|n| left(n, causes(n))));
    let _daemon = place.serve(&[]);
    let stopped = Terminal::effectd(&place, &["dlq", "drain"], 140, 30);
    stopped.wait_for("[q]uit?");
    stopped.press(&["C-c"]);
    assert_eq!(stopped.ended(), "75");
    assert_eq!(letters(&place), 5);
    drop(stopped);
    let drained = Terminal::effectd(&place, &["dlq", "drain"], 140, 30);
    drained.wait("the first question", |screen| screen.matches("[q]uit?").count() == 1);
    drained.press(&["d", "Enter"]);
    drained.wait("the second question", |screen| screen.matches("[q]uit?").count() == 2);
    assert_eq!(letters(&place), 2);
    drained.press(&["r", "Enter"]);
    assert_eq!(drained.ended(), "0");
    assert_eq!(letters(&place), 0);
    assert!(place.note("c-3").exists() && !place.note("c-0").exists());
}
