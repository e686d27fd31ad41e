//! `effectd top` in a real terminal.

use nix::sys::signal::Signal;

use crate::harness::{Place, Serving, write_note};
use crate::seeding::{self, Left};
use crate::shared::Terminal;

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
    assert_eq!(place.effectd(&["pause", "--yes"], None).code(), 0);
    top.wait_for("PAUSED");
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
fn without_a_terminal_the_same_is_one_json_value() {
    let place = Place::seeded();
    let none = place.effectd(&["top", "--once"], None);
    assert_eq!(none.code(), 75, "{}", none.stderr());
    let daemon = place.serve(&[]);
    assert_eq!(daemon.post("/v1/actions?wait=true", &write_note("t", "t", "x")).status, 200);
    let seen = place.effectd(&["top", "--once", "--every-ms", "100"], None).json(0);
    assert_eq!(seen["tools"][0]["tool"], "files.write_text", "{seen}");
    assert_eq!(seen["tools"][0]["well"], 1, "{seen}");
    let stages: Vec<&str> =
        seen["stages"].as_array().unwrap().iter().map(|row| row["stage"].as_str().unwrap()).collect();
    assert_eq!(stages.len(), 6, "{seen}");
    assert!(seen["stages"][0]["waiting"].is_u64(), "{seen}");
    let refused = place.effectd(&["top"], None);
    assert_eq!(refused.code(), 2, "{}", refused.stderr());
}
