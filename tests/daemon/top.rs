//! `effectd top` in a real terminal.

use nix::sys::signal::Signal;

use crate::approvals::{asking, held};
use crate::harness::{Place, Serving, until, write_note};
use crate::seeding::{self, Left};
use crate::shared::{Terminal, program};

const PAUSE: [&str; 6] = ["pause", "--reason", "the disk is moved", "--for", "1h", "--yes"];

#[test]
fn top_shows_the_daemon_as_it_is_and_keys_open_its_lists() {
    let place = Place::seeded();
    let left = (0..3).map(|n| Left {
        request: write_note(seeding::action(n).as_str(), &format!("t-{n}"), "x"),
        code: "tool_busy".to_owned(),
        // Text from a tool must not control the terminal.
        detail: "the printer is \u{1b}[31mon fire".to_owned(),
    });
    seeding::leave(&place, left);
    let daemon = place.serve(&[]);
    let top = Terminal::effectd(&place, &["top", "--every-ms", "100"], 140, 40);
    top.wait_for("dead letters: 3");
    top.wait_for("breakers: 0 open");
    assert_eq!(daemon.post("/v1/actions?wait=true", &write_note("t", "t", "x")).status, 200);
    top.wait("the action in the list of tools", |screen| {
        screen.lines().any(|line| line.contains("files.write_text") && line.contains("1 well"))
    });
    let tripped = place.effectd(&["breaker", "trip", "files.copy", "--yes"], None);
    assert_eq!(tripped.code(), 0, "{}", tripped.stderr());
    top.wait_for("breakers: 1 open");
    assert_eq!(place.effectd(&PAUSE, None).code(), 0);
    top.wait("the pause, its end and its reason", |screen| {
        screen.contains("PAUSED until 2") && screen.contains("(the disk is moved)")
    });
    top.press(&["d"]);
    top.wait("the letters alone", |screen| {
        !screen.contains("breakers: 1 open") && screen.contains("printer is") && screen.contains("tool_busy")
    });
    top.press(&["b"]);
    top.wait_for("until it is reset");
    // Each stage shows its queue, its work and its latency.
    top.press(&["s"]);
    top.wait("the stages alone", |screen| {
        let row = |stage: &str| {
            let mut lines = screen.lines();
            lines.any(|line| line.contains(stage) && line.contains("busy") && line.contains("waiting"))
        };
        let stages = ["validator", "gate", "hold", "idempotency", "executor", "recorder"];
        !screen.contains("until it is reset") && stages.into_iter().all(row)
    });
    let later = daemon.post("/v1/actions?wait=true", &write_note("u", "u", "x"));
    assert_eq!(later.status, 200);
    top.press(&["Escape"]);
    top.wait_for("held: 0");
    assert!(!top.screen().lines().take(19).any(|line| line.contains("q quit")));
    top.resize(60, 20);
    top.wait("it is drawn anew on the smaller screen", |screen| {
        screen.lines().count() <= 20 && screen.lines().nth(19).is_some_and(|line| line.contains("s stages"))
    });
    // Old figures are marked, and a daemon that comes back is shown again.
    daemon.kill();
    top.wait_for("OLD:");
    let daemon = place.serve(&[]);
    top.wait("it is not old any more", |screen| !screen.contains("OLD:"));
    // It can be quit while the daemon hangs.
    daemon.signal(Signal::SIGSTOP);
    top.wait_for("OLD:");
    top.press(&["q"]);
    assert_eq!(top.ended(), "0");
    daemon.signal(Signal::SIGCONT);
    drop(daemon);
}

#[test]
fn enter_opens_a_row_and_one_key_acts() {
    let place = asking();
    let letter = Left {
        request: write_note(seeding::action(0).as_str(), "t-0", "x"),
        code: "tool_busy".to_owned(),
        detail: "the printer is on fire".to_owned(),
    };
    seeding::leave(&place, std::iter::once(letter));
    let daemon = place.serve(&[]);
    held(&daemon, "h-1", "h.txt", "h");
    assert_eq!(place.effectd(&["breaker", "trip", "files.copy", "--yes"], None).code(), 0);
    let top = Terminal::effectd(&place, &["top", "--every-ms", "100"], 140, 40);
    top.wait_for("breakers: 1 open");
    top.press(&["b"]);
    top.wait_for("until it is reset");
    top.press(&["Enter"]);
    top.wait("the breaker's fields", |screen| screen.contains("r reset") && screen.contains("operator"));
    top.press(&["r"]);
    top.wait("the closed breaker", |screen| {
        screen.lines().any(|line| line.contains("state ") && line.contains("closed"))
    });
    top.press(&["Escape"]);
    top.wait_for("breakers: 0 open");
    top.press(&["d"]);
    top.wait("the letters alone", |screen| !screen.contains("breakers:") && screen.contains("printer"));
    top.press(&["Enter"]);
    top.wait_for("r reset");
    top.press(&["r"]);
    top.wait_for("letter 0: requeued");
    // An approval is opened as in the inbox, and decided there.
    top.press(&["h"]);
    top.wait_for("workspace/h.txt");
    top.press(&["Enter"]);
    top.wait("the question, with its keys", |screen| {
        screen.contains("asked by") && screen.contains("a approve once")
    });
    top.press(&["a"]);
    top.wait_for("approved: ");
    until("the approved change", || place.note("h.txt").exists());
    top.wait_for("a approve once");
    top.press(&["q"]);
    top.wait_for("throughput");
    top.press(&["q"]);
    assert_eq!(top.ended(), "0");
    assert!(!place.note("t-0").exists(), "what was requeued waits for a person, too");
}

#[test]
fn once_is_a_page_with_what_is_not_normal_first() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let once = || place.effectd(&["top", "--once", "--every-ms", "100"], None);
    let page = once();
    assert_eq!((page.code(), page.stdout().lines().next()), (0, Some("everything is normal")));
    assert_eq!(daemon.stop(), 0);
    let left = (0..40).map(|n| Left {
        request: write_note(seeding::action(n).as_str(), &format!("t-{n}"), "x"),
        code: format!("cause_{n}"),
        detail: "the printer is \u{1b}[31mon fire".to_owned(),
    });
    seeding::leave(&place, left);
    let daemon = place.serve(&[]);
    assert_eq!(place.effectd(&["breaker", "trip", "files.copy", "--yes"], None).code(), 0);
    assert_eq!(place.effectd(&PAUSE, None).code(), 0);
    let ready = daemon.get("/readyz").json(200);
    assert_eq!((&ready["paused"], &ready["paused_reason"]), (&true.into(), &PAUSE[2].into()), "{ready}");
    let page = once().stdout();
    let lines: Vec<&str> = page.lines().collect();
    assert_eq!(lines[0], "3 things are not normal", "{page}");
    let until = ready["paused_until"].as_str().unwrap();
    assert!(lines[1].starts_with(&format!("! effects are paused until {until}, ")), "{page}");
    assert_eq!(lines[2], "  reason: the disk is moved", "{page}");
    assert!(lines[3].starts_with("! 1 breaker not closed") && lines[4].contains("files.copy"), "{page}");
    assert!(lines[5].starts_with("! 40 dead letters") && lines[16] == "  … and 30 more", "{page}");
    assert!(lines.len() < 30 && !page.contains('\u{1b}'), "{page}");
}

#[test]
fn without_a_terminal_the_same_is_one_json_value() {
    let place = Place::seeded();
    let none = place.effectd(&["top", "--once"], None);
    assert_eq!(none.code(), 75, "{}", none.stderr());
    let daemon = place.serve(&[]);
    assert_eq!(daemon.post("/v1/actions?wait=true", &write_note("t", "t", "x")).status, 200);
    let seen = place.effectd(&["top", "-o", "json", "--every-ms", "100"], None).json(0);
    assert_eq!(seen["tools"][0]["tool"], "files.write_text", "{seen}");
    assert_eq!(seen["tools"][0]["well"], 1, "{seen}");
    let stages: Vec<&str> =
        seen["stages"].as_array().unwrap().iter().map(|row| row["stage"].as_str().unwrap()).collect();
    assert_eq!(stages.len(), 6, "{seen}");
    assert!(seen["stages"][0]["waiting"].is_u64(), "{seen}");
    let refused = place.effectd(&["top"], None);
    assert_eq!(refused.code(), 2, "{}", refused.stderr());
}

#[test]
fn a_dumb_terminal_is_not_taken_over() {
    let place = Place::seeded();
    let _daemon = place.serve(&[]);
    for (words, instead) in [("top", "`effectd top --once`"), ("approvals watch", "`effectd approvals list`")]
    {
        let command: Vec<&str> =
            ["env", "TERM=dumb", program()].into_iter().chain(words.split(' ')).collect();
        let dumb = Terminal::start(&place, &command, 120, 20);
        assert_eq!(dumb.ended(), "2");
        let (screen, said) = (dumb.screen(), format!("this terminal cannot show it; use {instead}"));
        assert!(screen.contains(&said), "{screen}");
    }
}
