//! `effectd approvals watch` in a real terminal: it lists what waits, one key decides, and no text from requests
//! controls the terminal.

use serde_json::json;

use super::approvals::{asking, decide, held};
use crate::harness::{Place, Serving, root, until, write_note};
use crate::shared::Terminal;

/// Would clear the screen, rename the window and reverse the line, if it were not escaped.
const HOSTILE: &str = "hello\n\x1b[2J\x1b]0;owned\x07\u{202e}evil\n";

fn read(place: &Place, name: &str) -> Option<String> {
    std::fs::read_to_string(place.note(name)).ok()
}

/// Saves the screen for the documentation, without what differs in every run.
fn keep(name: &str, screen: &str) {
    if std::env::var_os("EFFECTD_BLESS").is_none() {
        return;
    }
    let folder = root().join("docs/screens");
    std::fs::create_dir_all(&folder).unwrap();
    let lines = screen.lines().map(str::trim_end);
    let text = lines.collect::<Vec<_>>().join("\n");
    std::fs::write(folder.join(format!("{name}.txt")), format!("{}\n", text.trim_end())).unwrap();
}

#[test]
fn one_key_each_decides_about_what_is_on_the_screen() {
    let place = asking();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    std::fs::write(place.note("a.txt"), "old line\nsame\n").unwrap();
    let daemon = place.serve(&[]);
    let terminal = Terminal::effectd(&place, &["approvals", "watch"], 100, 36);
    terminal.wait_for("0 waiting");
    keep("approvals-watch-empty", &terminal.screen());

    // It appears by itself, with its preview.
    let mut first = write_note("w-1", "a.txt", "new line\nsame\n");
    first["rationale"] = json!({ "confidence": 0.9, "reason": "the week has changed" });
    daemon.post("/v1/actions?wait", &first).json(202);
    terminal.wait_for("1 waiting");
    let screen = terminal.wait_for("+new line");
    for told in [
        "files.write_text",
        "-old line",
        "agent://planner@deviceA",
        "90 % sure: the week has changed",
        "left",
        "risk",
        "why",
        "1 path to change, 0 paths to delete",
    ] {
        assert!(screen.contains(told), "{told} is missing:\n{screen}");
    }
    keep("approvals-watch", &screen);
    terminal.press(&["a"]);
    terminal.wait_for("approved: ");
    until("the approved change", || read(&place, "a.txt").as_deref() == Some("new line\nsame\n"));
    terminal.wait_for("0 waiting");

    // A denial asks for a reason, and letters typed there decide nothing.
    held(&daemon, "w-2", "b.txt", "b");
    terminal.wait_for("1 waiting");
    terminal.press(&["Down"]);
    terminal.wait_for("asked by");
    terminal.press(&["d"]);
    terminal.wait_for("reason?");
    terminal.write("aAg not today");
    let screen = terminal.wait_for("aAg not today_");
    keep("approvals-watch-deny", &screen);
    terminal.press(&["Enter"]);
    terminal.wait_for("denied: files.write_text");
    terminal.wait_for("0 waiting");
    let receipt = place.effectd(&["receipts", "show", "w-2", "-o", "json"], None).json(0);
    assert_eq!(receipt["approval"]["reason"], "aAg not today");
    assert_eq!(read(&place, "b.txt"), None);

    // Hostile text is shown escaped, and does nothing.
    std::fs::write(place.note("c.txt"), HOSTILE).unwrap();
    let mut hostile = write_note("w-3", "c.txt", "clean\n");
    hostile["rationale"] = json!({ "reason": HOSTILE });
    daemon.post("/v1/actions?wait", &hostile).json(202);
    terminal.wait_for("1 waiting");
    terminal.press(&["Down"]);
    let screen = terminal.wait_for("-␛[2J␛]0;owned␇‹U+202E›evil");
    assert!(screen.contains("hello␊␛[2J␛]0;owned␇‹U+202E›evil␊"), "{screen}");
    assert!(screen.contains("a approve once"), "{screen}");
    assert!(!terminal.knows("#{pane_title}").contains("owned"));
    keep("approvals-watch-hostile", &screen);
    // Somebody else decides: nothing is selected any more, and a late key reports that.
    let id = daemon.get("/v1/approvals").json(200)["approvals"][0]["approval_id"].clone();
    decide(&daemon, id.as_str().unwrap(), "deny", &json!({})).json(200);
    terminal.wait_for("0 waiting");
    terminal.press(&["a"]);
    terminal.wait_for("nothing was decided");

    // A grant lets the next ones through; a standing approval is confirmed.
    held(&daemon, "w-4", "d.txt", "d");
    terminal.wait_for("1 waiting");
    terminal.press(&["Down"]);
    terminal.wait_for("asked by");
    terminal.press(&["g"]);
    terminal.wait_for("granted");
    let done = daemon.post("/v1/actions?wait", &write_note("w-5", "e.txt", "e")).json(200);
    assert_eq!(done["outcome"], "executed");
    terminal.press(&["q"]);
    assert_eq!(terminal.ended(), "0");
}

#[test]
fn after_a_decision_the_next_one_waits_to_be_read() {
    let place = asking();
    let daemon = place.serve(&[]);
    for name in ["x-1", "x-2", "x-3"] {
        held(&daemon, name, &format!("{name}.txt"), name);
    }
    let terminal = Terminal::effectd(&place, &["approvals", "watch"], 120, 40);
    terminal.wait_for("actions   x-1");
    // The keys that come too soon decide nothing about the next one.
    terminal.press(&["a", "a", "a"]);
    terminal.wait("the next one, with its keys", |screen| {
        screen.contains("2 waiting") && screen.contains("actions   x-2") && screen.contains("a approve once")
    });
    // Enter gives it the screen.
    terminal.press(&["Enter"]);
    terminal.wait("the one alone", |screen| screen.contains("actions   x-2") && !screen.contains("x-3.txt"));
    terminal.press(&["Enter"]);
    terminal.wait_for("x-3.txt");
    terminal.press(&["d"]);
    terminal.wait_for("reason?");
    terminal.press(&["Enter"]);
    terminal.wait("the last one", |screen| screen.contains("1 waiting") && screen.contains("actions   x-3"));
    terminal.wait_for("a approve once");
    terminal.press(&["a"]);
    terminal.wait_for("0 waiting");
    until("the approved change", || read(&place, "x-3.txt").is_some());
    assert_eq!((read(&place, "x-1.txt").as_deref(), read(&place, "x-2.txt")), (Some("x-1"), None));
    terminal.press(&["q"]);
    assert_eq!(terminal.ended(), "0");
}

#[test]
fn the_inbox_confirms_always_and_needs_a_daemon() {
    let place = asking();
    let alone = Terminal::effectd(&place, &["approvals", "watch"], 240, 10);
    assert_ne!(alone.ended(), "0");
    alone.wait_for("effectd serve");
    let daemon = place.serve(&[]);
    held(&daemon, "w-1", "a.txt", "a");
    let terminal = Terminal::effectd(&place, &["approvals", "watch"], 100, 30);
    terminal.wait_for("workspace/a.txt");
    terminal.press(&["A"]);
    terminal.wait_for("continue? y/n");
    terminal.press(&["n"]);
    terminal.wait_for("nothing was decided");
    assert_eq!(read(&place, "a.txt"), None);
    terminal.press(&["A"]);
    terminal.wait_for("continue? y/n");
    terminal.press(&["y"]);
    terminal.wait_for("approved: ");
    until("the approved change", || read(&place, "a.txt").as_deref() == Some("a"));
    let done = daemon.post("/v1/actions?wait", &write_note("w-2", "b.txt", "b")).json(200);
    assert_eq!(done["outcome"], "executed");
    terminal.press(&["C-c"]);
    until("the end of the inbox", || terminal.knows("#{pane_dead}") == "1");
}
