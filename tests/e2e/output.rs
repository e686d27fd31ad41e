//! What people see: short receipts, colours, tables that fit the terminal, and short ids.

use crate::harness::{Place, Running, Terminal, program, write_note};

const FIRST: &str = "0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36";
const SECOND: &str = "0199f6a2-5a4e-7c11-8d53-3f2b5f0c9a36";

/// A place where three actions ended: two whose ids begin alike, and one with an id of a planner's choice.
fn place() -> Place {
    let place = Place::seeded();
    for (action, name) in [(FIRST, "first.txt"), (SECOND, "second.txt"), ("job-10", "job.txt")] {
        place.run(&write_note(action, &format!("workspace/{name}"), "text\n")).json(0);
    }
    place
}

#[test]
fn run_shows_a_short_receipt_and_with_full_the_rest() {
    let place = Place::seeded();
    let note = write_note("short", "workspace/n.txt", "text\n").to_string();
    let short = place.effectd(&["run", "-"], Some(&note)).stdout();
    let names: Vec<&str> = short.lines().skip(1).map(|line| line[2..11].trim_end()).collect();
    assert_eq!(names, ["with", "why", "changed", "undo", "receipt", "result"], "{short}");
    assert!(short.starts_with("done: files.write_text in shared:household for agent://planner@deviceA\n"));
    for part in
        ["path workspace/n.txt", "planners-in-shared-spaces", "n.txt: created, 5 bytes", "effectd undo "]
    {
        assert!(short.contains(part), "{part}: {short}");
    }
    let full = place.effectd(&["run", "-", "--full"], Some(&note)).stdout();
    assert!(full.starts_with("already done: files.write_text"), "{full}");
    for part in ["timeline", "sandbox", "policy", "signed", "hmac_sha256_text"] {
        assert!(full.contains(part) && !short.contains(&format!("  {part} ")), "{part}: {full}\n{short}");
    }
    // A refusal says why.
    let mut stranger = write_note("stranger", "workspace/n.txt", "text\n");
    stranger["subject_id"] = "agent://stranger".into();
    let refused = place.effectd(&["run", "-"], Some(&stranger.to_string())).stdout();
    assert!(refused.starts_with("denied: files.write_text") && refused.contains("  why "), "{refused}");
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let place = Place::seeded();
    let note = write_note("colour", "workspace/n.txt", "text\n").to_string();
    std::fs::write(place.path("note.json"), &note).unwrap();
    let run = [program(), "run", "note.json"];
    let cases: [(&[&str], &[&str], bool); 8] = [
        (&[], &[], true),
        (&["NO_COLOR="], &[], true),
        (&["NO_COLOR=1"], &[], false),
        (&["TERM=dumb"], &[], false),
        (&["CLICOLOR=0"], &[], false),
        (&["CLICOLOR=1"], &[], true),
        (&[], &["--color", "never"], false),
        (&["NO_COLOR=1"], &["--color", "always"], true),
    ];
    for (environment, more, coloured) in cases {
        let command = [&["env"][..], environment, &run, more].concat();
        let terminal = Terminal::start(&place, &command, 120, 30);
        assert_eq!(terminal.ended(), "0");
        let screen = terminal.coloured_screen();
        assert!(screen.contains("done: files.write_text"), "{screen}");
        assert_eq!(screen.contains('\u{1b}'), coloured, "{environment:?} {more:?}: {screen:?}");
    }
    let piped = place.effectd(&["run", "note.json"], None).stdout();
    assert!(!piped.contains('\u{1b}'), "{piped:?}");
    for (environment, coloured) in [
        (&[("CLICOLOR_FORCE", "1"), ("TERM", "dumb")][..], true),
        (&[("CLICOLOR_FORCE", "0")], false),
        (&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false),
    ] {
        let forced = place.effectd_on(&["run", "note.json"], None, |command| {
            command.envs(environment.iter().copied());
        });
        assert_eq!(forced.stdout().contains('\u{1b}'), coloured, "{environment:?}");
    }
    let asked = place.effectd(&["run", "note.json", "--color", "always"], None).stdout();
    assert!(asked.starts_with("\u{1b}[1m\u{1b}[32malready done"), "{asked:?}");
    let json = place.effectd(&["run", "note.json", "--color", "always", "-o", "json"], None);
    assert_eq!(json.json(0)["action_id"], "colour");
}

#[test]
fn a_table_fits_the_terminal_with_ids_that_commands_take() {
    let place = place();
    let terminal = Terminal::effectd(&place, &["receipts", "list"], 80, 30);
    assert_eq!(terminal.ended(), "0");
    let screen = terminal.screen();
    let lines: Vec<&str> = screen.lines().filter(|line| !line.trim().is_empty()).collect();
    let rows: Vec<&&str> =
        lines.iter().filter(|line| line.contains(" ago") || line.contains("now ")).collect();
    // Standard error says that no daemon answers; then come the head and three rows, each in one line.
    assert_eq!(rows.len(), 3, "{screen}");
    let head = lines.iter().position(|line| line.starts_with("ENDED")).unwrap();
    assert_eq!(lines.len() - head, 4, "{screen}");
    assert!(screen.contains(&FIRST[..13]) && !screen.contains(FIRST), "{screen}");
    // The row of the planner's own id ends with a short id of a receipt.
    let job = rows.iter().find(|row| row.contains("job-10")).unwrap();
    let receipt = job.split_whitespace().last().unwrap();
    assert_eq!(receipt.len(), 13, "{job}");
    let list = place.effectd(&["receipts", "list", "action:job-10"], None).stdout();
    let full = list.split_whitespace().last().unwrap();
    assert!(full.starts_with(receipt) && full.len() == 36 && !list.contains(" ago"), "{list}");
    // Receipts of the same millisecond are told apart by more of the id.
    let shown = place.effectd(&["receipts", "show", &full[..18], "-o", "json"], None).json(0);
    assert_eq!(shown["action_id"], "job-10");
}

#[test]
fn a_short_id_is_unique_or_refused_with_the_candidates() {
    let place = place();
    for words in
        [&["receipts", "show"][..], &["status"], &["wait"], &["policy", "explain"], &["receipts", "proof"]]
    {
        let unique = place.effectd(&[words, &[&FIRST[..18]]].concat(), None);
        assert_eq!(unique.code(), 0, "{words:?}: {}", unique.stderr());
        let several = place.effectd(&[words, &[&FIRST[..13]]].concat(), None);
        assert_eq!(several.code(), 2, "{words:?}: {}", several.stderr());
        let said = several.stderr();
        assert!(
            said.contains("not unique") && said.contains(FIRST) && said.contains(SECOND),
            "{words:?}: {said}"
        );
    }
    // A planner's own id is never completed.
    for words in [&["status", "job-1"][..], &["receipts", "show", "job-1"], &["undo", "job-1"]] {
        let refused = place.effectd(words, None);
        assert_eq!(refused.code(), 2, "{words:?}: {}{}", refused.stdout(), refused.stderr());
        assert!(!refused.stdout().contains("job-10"), "{words:?}");
    }
    let undone = place.effectd(&["undo", &FIRST[..18]], None);
    assert_eq!(undone.code(), 0, "{}", undone.stderr());
    assert!(!place.note("first.txt").exists() && place.note("second.txt").exists());
}

#[test]
fn an_approval_is_decided_by_a_short_id() {
    let place = Place::seeded();
    let mode =
        ["policy", "set-mode", "--org", "home", "--tool", "files.write_text", "require_approval", "--yes"];
    assert_eq!(place.effectd(&mode, None).code(), 0);
    let held = place.run(&write_note(FIRST, "workspace/n.txt", "text\n")).json(4);
    let approval = held["held"]["approval_id"].as_str().unwrap();
    assert_eq!(place.effectd(&["status", &FIRST[..8], "-o", "json"], None).json(4)["state"], "held");
    let shown = place.effectd(&["approvals", "show", &approval[..8], "-o", "json"], None).json(0);
    assert_eq!(shown["approval_id"], approval);
    for words in [&["approvals", "approve"][..], &["approvals", "deny"], &["cancel"]] {
        let id = if words == ["cancel"] { FIRST } else { approval };
        let refused = place.effectd(&[words, &[&id[..17]]].concat(), None);
        assert_eq!(refused.code(), 2, "{words:?}: {}", refused.stderr());
        assert!(refused.stderr().contains("at least 18 characters"), "{words:?}: {}", refused.stderr());
    }
    let denied = place.effectd(&["approvals", "deny", &approval[..18]], None);
    assert_eq!(denied.code(), 0, "{}", denied.stderr());
    assert_eq!(place.effectd(&["approvals", "list", "-o", "json"], None).json(0), serde_json::json!([]));
}
