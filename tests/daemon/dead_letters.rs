//! Dead letters for a person who judges them: what was asked, selected by what they are about, and why they are dropped.

use serde_json::{Value, json};

use crate::approvals::asking;
use crate::harness::{Place, Serving, write_note};
use crate::operator::{acts, break_it, run, slow_note};
use crate::seeding::{self, Left};

#[test]
fn a_dead_letter_is_shown_with_what_was_asked() {
    let place = asking();
    let mut request = write_note("unknown", "u.txt", "postgres://app:hunter2@db.example.org");
    request["subject_id"] = "agent://other@deviceA".into();
    let left = Left { request, code: "outcome_unknown".to_owned(), detail: "the power failed".to_owned() };
    seeding::leave(&place, [left].into_iter());
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    let daemon = place.serve(&[]);
    let shown = run(&place, &["dlq", "show", "0"]).stdout();
    for told in [
        "files.write_text in shared:household",
        ", for agent://other@deviceA",
        "path = workspace/u.txt",
        "the power failed",
    ] {
        assert!(shown.contains(told), "{told} is missing:\n{shown}");
    }
    assert!(shown.contains("user://") && !shown.contains("hunter2"), "{shown}");

    // A real failure: who approved it, and each attempt.
    let asked = daemon.post("/v1/actions?wait", &slow_note("real")).json(202);
    let id = asked["approval"]["approval_id"].as_str().unwrap();
    break_it(&place);
    let approved = run(&place, &["approvals", "approve", id, "--reason", "go on", "-o", "json"]);
    assert_ne!(approved.code(), 0, "{}", approved.stdout());
    let letter = run(&place, &["dlq", "show", "1", "-o", "json"]).json(0);
    assert_eq!(letter["params"]["path"], "workspace/real", "{letter}");
    assert_eq!((&letter["code"], &letter["approval"]["reason"]), (&json!("timed_out"), &json!("go on")));
    assert_eq!(letter["approval"]["by"], letter["principal"], "{letter}");
    let tries = letter["tries"].as_array().unwrap();
    assert!(tries.len() == 1 && tries[0]["error"].as_str().unwrap().contains("timed_out"), "{letter}");
    let shown = run(&place, &["dlq", "show", "1"]).stdout();
    assert!(shown.contains("once by user://") && shown.contains("go on"), "{shown}");
    // Lists and exports have no parameters.
    let exported = run(&place, &["dlq", "export"]).stdout();
    assert!(exported.contains("agent://other@deviceA") && !exported.contains("u.txt"), "{exported}");
    drop(daemon);
}

/// A letter of a tool, with words that all have in common.
fn letter(n: usize, tool: &str, subject: &str, code: &str) -> Left {
    let mut request = write_note(seeding::action(n).as_str(), &format!("s-{n}"), "x");
    request["tool_id"] = tool.into();
    request["subject_id"] = subject.into();
    if n == 0 {
        request["space_id"] = "private:attic".into();
    }
    Left { request, code: code.to_owned(), detail: "the printer is on fire".to_owned() }
}

#[test]
fn a_letter_shows_no_more_than_an_approval() {
    const MINE: &str = "agent://planner@deviceA";
    let place = Place::seeded();
    let mut known = letter(1, "files.write_text", MINE, "tool_busy");
    known.request["params"]["text"] = "write to anna@example.org".into();
    let unknown = letter(2, "nobody.knows_it", MINE, "tool_busy");
    let renamed = letter(3, "diagnose_error", MINE, "tool_busy");
    seeding::leave(&place, [known, unknown, renamed].into_iter());
    let _daemon = place.serve(&[]);
    let shown = |number: &str| run(&place, &["dlq", "show", number, "-o", "json"]).json(0);
    let params = shown("0")["params"].clone();
    assert_eq!(params["path"], "workspace/s-1", "{params}");
    assert!(params["text"].is_string() && !params.to_string().contains("anna@"), "{params}");
    // Without the tool's description, nobody knows which parameters may be shown.
    let letter = shown("1");
    assert_eq!((&letter["tool_id"], &letter["params"]), (&json!("nobody.knows_it"), &json!({})));
    // A tool is selected by any of its names.
    for name in ["diagnose_error", "core.diagnose_error"] {
        let listed = run(&place, &["dlq", "list", "--tool", name, "-o", "jsonl"]).stdout();
        assert!(listed.lines().count() == 1 && listed.contains("left-3"), "{name}: {listed}");
    }
}

#[test]
fn letters_are_selected_by_what_they_are_about() {
    const MINE: &str = "agent://planner@deviceA";
    const OTHER: &str = "agent://other@deviceA";
    let place = Place::seeded();
    let letters = (0..40).map(|n| match n % 4 {
        0 => letter(n, "files.write_text", MINE, "tool_busy"),
        1 => letter(n, "files.append_text", MINE, "tool_busy"),
        2 => letter(n, "files.append_text", OTHER, "tool_busy"),
        _ => letter(n, "files.append_text", OTHER, "timed_out"),
    });
    seeding::leave(&place, letters);
    let daemon = place.serve(&[]);
    // Each tool has its own cause, although code and words are the same.
    let causes = |more: &[&str]| {
        let all = run(&place, &[&["dlq", "causes", "-o", "json"], more].concat()).json(0);
        let one = |cause: &Value| (cause["tool_id"].clone(), cause["code"].clone(), cause["count"].clone());
        all.as_array().unwrap().iter().map(one).collect::<Vec<_>>()
    };
    let (write, append) = (json!("files.write_text"), json!("files.append_text"));
    let (busy, late) = (json!("tool_busy"), json!("timed_out"));
    let counts = [
        (append.clone(), busy.clone(), json!(20)),
        (append.clone(), late.clone(), json!(10)),
        (write, busy.clone(), json!(10)),
    ];
    assert_eq!(causes(&[]), counts);
    assert_eq!(causes(&["--subject", MINE, "--tool", "files.append_text"]), [(append, busy, json!(10))]);
    for (filter, count) in [
        (&["--tool", "files.write_text"][..], 10),
        (&["--subject", OTHER], 20),
        (&["--space", "private:attic"], 1),
        (&["--code", "timed_out"], 10),
        (&["--since", "1h"], 40),
        (&["--since", "2100-01-01T00:00:00Z"], 0),
        (&["--subject", OTHER, "--code", "tool_busy"], 10),
    ] {
        for command in ["list", "export"] {
            let form = if command == "list" { &["-o", "jsonl"][..] } else { &[] };
            let ran = run(&place, &[&["dlq", command], filter, form].concat());
            assert_eq!((ran.code(), ran.stdout().lines().count()), (0, count), "{command} {filter:?}");
        }
    }
    let page = daemon.get(&format!("/v1/dlq/causes?subject={OTHER}")).json(200);
    assert_eq!(page.as_array().unwrap().len(), 2, "{page}");
    daemon.get("/v1/dlq?since=yesterday").problem(400, "query_invalid");

    // Acting on them: totals by cause, and only what was selected.
    let all = ["dlq", "drop", "--subject", OTHER, "--reason", "a test that ran away", "--yes"];
    let dropped = run(&place, &all);
    let lines: Vec<String> = dropped.stdout().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 3, "a heading and two causes: {lines:?}");
    assert!(lines[1..].iter().all(|line| line.starts_with("10 ") && line.ends_with("purged")), "{lines:?}");
    let receipt = acts(&place, "tool:effectd.drop_letters").remove(0);
    assert_eq!(receipt["approval"]["reason"], "a test that ran away", "{receipt}");
    let drained = run(&place, &["dlq", "drain", "--tool", "files.write_text", "--since", "1h", "--yes"]);
    // The one of another space fails again.
    assert_eq!(drained.code(), 1, "{}", drained.stderr());
    let left = run(&place, &["dlq", "list", "--tool", "files.append_text", "-o", "jsonl"]);
    assert_eq!(left.stdout().lines().count(), 10, "the others stay");
}
