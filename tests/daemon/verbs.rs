//! Every verb of the command line, in one of these lists: verbs that read, verbs that ask for actions, verbs that create something
//! outside the state, and mutations. A mutation says what would change, asks, and leaves a receipt that names who said yes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::commands::commands;
use crate::harness::{Place, Serving, root, until, write_note};
use crate::operator::{acts, run};
use crate::seeding::{self, Left};
use crate::shared::{McpServer, Terminal};

/// Verbs that only read.
const LOOK: [&str; 78] = [
    "actions list",
    "actions guide",
    "actions grants list",
    "context list",
    "context show",
    "caches list",
    "status",
    "wait",
    "preview",
    "plan show",
    "batch show",
    "approvals list",
    "approvals show",
    "grants list",
    "quarantine list",
    "quarantine show",
    "sessions list",
    "sessions show",
    "automations new",
    "automations check",
    "automations render",
    "automations list",
    "automations show",
    "automations export",
    "orgs list",
    "connections list",
    "connections test",
    "connectors list",
    "connectors show",
    "connectors validate",
    "connectors presets",
    "plugins list",
    "plugins check",
    "webhooks list",
    "slack list",
    "secrets list",
    "tokens list",
    "tools list",
    "tools show",
    "receipts list",
    "receipts show",
    "receipts tail",
    "receipts export",
    "receipts verify",
    "receipts proof",
    "receipts stats",
    "receipts recompute-reward",
    "bus topics",
    "bus groups",
    "bus replay",
    "bus export",
    "keys list",
    "artifacts list",
    "artifacts get",
    "artifacts quarantined",
    "notifications list",
    "notifications show",
    "policy check",
    "policy explain",
    "policy replay",
    "policy show",
    "policy diff",
    "policy overlay list",
    "breaker list",
    "breaker show",
    "budgets",
    "config show",
    "dlq list",
    "dlq show",
    "dlq causes",
    "dlq export",
    "store check",
    "store export",
    "store stats",
    "top",
    "check",
    "doctor",
    "version",
];
/// Help, the daemon itself, and its pages.
const PROGRAM: [&str; 4] = ["serve", "completions", "man", "console"];
/// Verbs that ask for actions, decide about them or cancel them: each action has its own receipt, which names who asked and who
/// decided. The command line has the request, and the policy decides.
const ACTIONS: [&str; 13] = [
    "actions run",
    "actions grant request",
    "run",
    "plan run",
    "batch run",
    "submit",
    "cancel",
    "tools try",
    "mcp try",
    "undo",
    "approvals approve",
    "approvals deny",
    "approvals watch",
];
/// Verbs that create something outside the state, and refuse an existing name.
const NEW: [&str; 6] = ["init", "backup", "restore", "support-bundle", "store salvage", "plugins new"];
/// Verbs that write again what is there already: the index from the journal, the same blocks in another engine, a signed
/// head of the log as it is; or that remove what commands write again.
const DERIVED: [&str; 4] = ["store rebuild", "store migrate", "receipts head", "caches clear"];
/// Verbs that change the configuration of other programs, after a yes.
const OTHERS: [&str; 1] = ["mcp install"];
/// Verbs that change the user's own list of contexts.
const CONTEXTS: [&str; 3] = ["context add", "context use", "context remove"];
/// Verbs of these kinds that have neither `--yes` nor `--dry-run`: a request says itself whether it is a dry run, and `preview` shows
/// what it would do; an agent has nobody to ask; a screen shows what a key decides; a new file and a signed head change nothing.
const PLAIN: [&str; 11] = [
    "run",
    "plan run",
    "batch run",
    "submit",
    "actions run",
    "actions grant request",
    "mcp try",
    "approvals watch",
    "support-bundle",
    "plugins new",
    "receipts head",
];

/// Mutations: the arguments, and the receipt. `-` where another test checks the receipt.
pub const CHANGES: [(&[&str], &str); 75] = [
    (&["tools", "disable", "files.copy"], "effectd.disable_tool"),
    (&["tools", "enable", "files.copy"], "effectd.enable_tool"),
    (&["tools", "set-caps", "files.copy", "nobody.has_this"], "effectd.set_caps"),
    (&["tools", "overlay", "files.copy", "--tier", "R3"], "effectd.overlay_tool"),
    (&["pause"], "effectd.pause"),
    (&["resume"], "effectd.resume"),
    (&["breaker", "trip", "files.copy"], "effectd.trip_breaker"),
    (&["breaker", "reset", "files.copy"], "effectd.reset_breaker"),
    (&["keys", "rotate"], "effectd.rotate_key"),
    (&["keys", "rotate-device"], "effectd.rotate_device_key"),
    (
        &[
            "policy",
            "revoke-consent",
            "--subject",
            "agent://planner@deviceA",
            "--space",
            "shared:household",
            "--purpose",
            "tool:files.write_text",
        ],
        "effectd.revoke_consent",
    ),
    (
        &[
            "policy",
            "grant-consent",
            "--subject",
            "agent://planner@deviceA",
            "--space",
            "shared:household",
            "--purpose",
            "tool:files.write_text",
        ],
        "effectd.grant_consent",
    ),
    (&["policy", "overlay", "clear"], "effectd.clear_overlay"),
    (&["policy", "set-mode", "--org", "home", "--tool", "files.copy", "deny"], "effectd.set_mode"),
    (&["policy", "set-band", "--space", "shared:household", "GREEN"], "effectd.set_band"),
    (&["policy", "set-entry", "hosts", "api.example.org", "allow"], "effectd.set_entry"),
    (&["policy", "set-entry", "hosts", "slack.com", "allow"], "effectd.set_entry"),
    (&["policy", "set-entry", "hosts", "127.0.0.1", "allow"], "effectd.set_entry"),
    (&["policy", "shadow", ".effectd/policy"], "effectd.start_shadow"),
    (&["policy", "reload"], "-"),
    (&["approvals", "rejudge"], "-"),
    (&["grants", "create", "--org", "home", "--tool", "files.copy", "--calls", "5"], "effectd.grant"),
    (&["grants", "revoke", "GRANT"], "effectd.revoke_grant"),
    // A requester who may also create the grant gets it at once.
    (&["grants", "request", "--org", "home", "--tool", "files.copy", "--calls", "5"], "effectd.grant"),
    (&["secrets", "set", "home", "token", "--file", "token.txt"], "effectd.set_secret"),
    (
        &[
            "connections",
            "add",
            "--org",
            "home",
            "--source",
            "http.hooks",
            "--name",
            "Hooks",
            "--host",
            "api.example.org",
            "--secret",
            "token",
            "--route",
            "POST /events",
        ],
        "effectd.create_connection",
    ),
    (&["connections", "disable", "CONNECTION"], "effectd.disable_connection"),
    (&["connections", "enable", "CONNECTION"], "effectd.enable_connection"),
    (
        &[
            "sessions",
            "create",
            "--space",
            "shared:household",
            "--subject",
            "agent://planner@deviceA",
            "--title",
            "week",
            "--connection",
            "CONNECTION",
        ],
        "effectd.create_session",
    ),
    (&["sessions", "end", "SESSION"], "effectd.end_session"),
    (&["sessions", "delete", "SESSION"], "effectd.delete_session"),
    (&["automations", "save", "plan.json", "--space", "shared:household"], "effectd.save_automation"),
    (&["automations", "pause", "AUTOMATION"], "effectd.set_automation"),
    (&["automations", "activate", "AUTOMATION"], "effectd.set_automation"),
    (&["automations", "archive", "AUTOMATION"], "effectd.set_automation"),
    (&["automations", "delete", "AUTOMATION"], "effectd.delete_automation"),
    (&["automations", "import", "plan.json", "--space", "shared:household"], "effectd.save_automation"),
    (
        &[
            "webhooks",
            "add",
            "--org",
            "home",
            "--source",
            "http.hooks",
            "--path",
            "/events",
            "--topic",
            "AMENDMENTS",
            "--secret",
            "token",
        ],
        "effectd.create_webhook",
    ),
    (&["slack", "map", "home", "T1/U1", "ada"], "effectd.map_slack_user"),
    (&["slack", "unmap", "home", "T1/U1"], "effectd.map_slack_user"),
    (&["webhooks", "disable", "WEBHOOK"], "effectd.disable_webhook"),
    (&["webhooks", "enable", "WEBHOOK"], "effectd.enable_webhook"),
    (&["webhooks", "delete", "WEBHOOK"], "effectd.delete_webhook"),
    (
        &["connections", "add", "--preset", "slack", "--org", "home", "--secret", "token"],
        "effectd.create_connection",
    ),
    (
        &[
            "slack",
            "connect",
            "--org",
            "home",
            "--team",
            "T1",
            "--channel",
            "C1",
            "--secret",
            "token",
            "--console",
            "https://effectd.example.org",
        ],
        "effectd.create_webhook",
    ),
    (&["webhooks", "delete", "WEBHOOK"], "effectd.delete_webhook"),
    (&["connections", "delete", "CONNECTION"], "effectd.delete_connection"),
    (&["connections", "delete", "CONNECTION"], "effectd.delete_connection"),
    // It also asks the server for its tools, which is another receipt.
    (
        &[
            "connectors",
            "add",
            "--org",
            "home",
            "--name",
            "Docs",
            "--server",
            "URL",
            "--allow",
            "127.0.0.0/8",
        ],
        "-",
    ),
    (&["connectors", "harvest", "CONNECTOR"], "-"),
    (&["connectors", "review", "CONNECTOR"], "effectd.review_connector"),
    (&["connectors", "overlay", "CONNECTOR", "echo", "--risk", "read"], "effectd.overlay_tool"),
    (&["connectors", "disable", "CONNECTOR"], "effectd.disable_connection"),
    (&["connectors", "enable", "CONNECTOR"], "effectd.enable_connection"),
    (&["connectors", "remove", "CONNECTOR"], "effectd.delete_connection"),
    (&["plugins", "add", "sort_lines"], "effectd.add_plugin"),
    (&["plugins", "remove", "sort_lines"], "effectd.remove_plugin"),
    (&["secrets", "delete", "home", "token"], "effectd.delete_secret"),
    (
        &["tokens", "create", "--kind", "user", "--org", "home", "--name", "ada", "--for", "90d"],
        "effectd.create_token",
    ),
    (&["tokens", "rotate", "TOKEN"], "effectd.rotate_token"),
    (&["tokens", "revoke", "TOKEN"], "effectd.revoke_token"),
    (&["dlq", "settle", "0", "--done"], "effectd.settle_letter"),
    (&["dlq", "drop", "1"], "effectd.drop_letters"),
    (&["dlq", "requeue", "2"], "effectd.requeue_letters"),
    (&["quarantine", "shred", "4"], "effectd.drop_letters"),
    (&["quarantine", "release", "5"], "effectd.requeue_letters"),
    (&["dlq", "drain"], "effectd.requeue_letters"),
    (&["artifacts", "quarantine", ARTIFACT], "effectd.quarantine_artifact"),
    (&["artifacts", "release", ARTIFACT], "effectd.release_artifact"),
    (&["bus", "tail", "--once", "--group", "learner", "--from", "1"], "effectd.seek_group"),
    (&["bus", "seek", "other", "--to", "1"], "effectd.seek_group"),
    (&["receipts", "amend", "RECEIPT", "--success", "false"], "-"),
    (&["receipts", "audit", "--quarantine"], "-"),
    (&["store", "retain"], "-"),
    (&["store", "erase", "--subject", "agent://nobody@deviceA", "--force"], "effectd.erase"),
];
const ARTIFACT: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn verb(line: &[&str]) -> String {
    let words = if matches!(line[0], "pause" | "resume") {
        1
    } else {
        2 + usize::from(line.starts_with(&["policy", "overlay"]))
    };
    line[..words].join(" ")
}

#[test]
fn what_changes_something_takes_yes_and_dry_run() {
    let place = Place::new();
    let all: Vec<String> = commands(&place, &[]).iter().map(|command| command.join(" ")).collect();
    let is_leaf = |command: &&String| {
        let below = format!("{command} ");
        !command.is_empty() && !all.iter().any(|other| other.starts_with(&below))
    };
    let leaves: BTreeSet<&str> = all.iter().filter(is_leaf).map(String::as_str).collect();
    let changes: BTreeSet<String> = CHANGES.iter().map(|(line, _)| verb(line)).collect();
    let known = LOOK
        .iter()
        .chain(&PROGRAM)
        .chain(&ACTIONS)
        .chain(&NEW)
        .chain(&DERIVED)
        .chain(&CONTEXTS)
        .chain(&OTHERS);
    let known: Vec<&str> = known.copied().chain(changes.iter().map(String::as_str)).collect();
    let classes: BTreeSet<&str> = known.iter().copied().collect();
    assert_eq!(leaves, classes, "a verb is new, or gone: say here what it does");
    assert_eq!(known.len(), classes.len(), "a verb is of one kind");
    for verb in &leaves {
        let words: Vec<&str> = verb.split(' ').chain(["--help"]).collect();
        let help = place.effectd(&words, None).stdout();
        let takes = ["-y, --yes", "--dry-run"]
            .map(|flag| help.lines().any(|line| line.trim_start().starts_with(flag)));
        let quiet = [&LOOK[..], &PROGRAM, &PLAIN, &CONTEXTS];
        let changes = !quiet.iter().any(|list| list.contains(verb));
        // A batch asks nobody before it starts, either.
        let expected = if *verb == "batch run" { [false, true] } else { [changes; 2] };
        assert_eq!(takes, expected, "{verb}:\n{help}");
        assert!(help.contains("\nExample"), "{verb} has no example:\n{help}");
    }
    // The runbook names those that do not ask. A screen shows what a key decides, and caches are cleared after a yes.
    let page = std::fs::read_to_string(root().join("docs/runbook.md")).unwrap();
    let at_once = page.split("\n- ").find(|item| item.contains("act at once")).unwrap();
    let asks = ["approvals watch", "caches clear"];
    for verb in ACTIONS.iter().chain(&NEW).chain(&DERIVED).filter(|verb| !asks.contains(*verb)) {
        assert!(at_once.contains(&format!("`{verb}")), "{verb}: {at_once}");
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// The id of the valid token in a list of them.
pub fn valid_token(listed: &Value) -> String {
    let mut tokens = listed.as_array().unwrap().iter();
    text(&tokens.find(|token| token["state"] == "valid").unwrap()["token_id"])
}

pub fn place_to_change() -> Place {
    let place = Place::seeded();
    std::fs::write(place.path("token.txt"), "a token\n").unwrap();
    std::fs::copy(root().join("examples/automations/weekly_note.json"), place.path("plan.json")).unwrap();
    assert_eq!(place.effectd(&["plugins", "new", "sort_lines", "--language", "python"], None).code(), 0);
    let letter = |n: usize, code: &str| Left {
        request: write_note(seeding::action(n).as_str(), &format!("v-{n}"), "x"),
        code: code.to_owned(),
        detail: format!("what was wrong with {code}"),
    };
    let codes = [
        "outcome_unknown",
        "tool_busy",
        "tool_busy",
        "tool_busy",
        "safety_quarantined",
        "safety_quarantined",
    ];
    seeding::leave(&place, codes.iter().enumerate().map(|(n, code)| letter(n, code)));
    place
}

#[test]
fn every_mutation_asks_first_and_records_who_said_yes() {
    let (place, server) = (place_to_change(), McpServer::new());
    let daemon = place.serve(&[]);
    let done = daemon.post("/v1/actions?wait=true", &write_note("v", "v", "x")).json(200);
    let (receipt, me) = (&done["receipt"]["receipt_id"], &done["receipt"]["principal"]);
    // All operations. The first receipts are not operations: they belong to the dead letters.
    let all = || {
        let path = "/v1/receipts?limit=500&after=5&q=tool%3Aeffectd.*";
        let told = daemon.get(path).json(200);
        told["receipts"].as_array().unwrap().clone()
    };
    let mut grant = String::new();
    for (line, tool) in CHANGES {
        // The runbook's test checks what it finds, quarantines and writes.
        if line.starts_with(&["receipts", "audit"]) {
            continue;
        }
        let first = |path: &str, id: &str| daemon.get(path).json(200).pointer(id).unwrap().clone();
        let named: Vec<String> = line
            .iter()
            .map(|word| match *word {
                "RECEIPT" => receipt.as_str().unwrap().to_owned(),
                "GRANT" => grant.clone(),
                "SESSION" => text(&first("/v1/sessions", "/sessions/0/session_id")),
                "CONNECTION" => text(&first("/v1/connections", "/0/connection_id")),
                "CONNECTOR" => text(&first("/v1/connectors", "/0/connection_id")),
                "URL" => server.url(),
                "AUTOMATION" => text(&first("/api/v1/automations", "/automations/0/automation_id")),
                "WEBHOOK" => text(&first("/v1/webhooks", "/0/webhook_id")),
                "TOKEN" => valid_token(&first("/v1/tokens", "/tokens")),
                word => word.to_owned(),
            })
            .collect();
        let line: Vec<&str> = named.iter().map(String::as_str).collect();
        let before = all();
        if tool != "-" {
            // Two verbs print no JSON.
            let plain = line.contains(&"tail") || line.contains(&"drain");
            let form: &[&str] = if plain { &[] } else { &["-o", "json"] };
            let dry = place.effectd(&[&line[..], &["--dry-run"], form].concat(), None);
            assert_eq!(dry.code(), 0, "{line:?}: {}", dry.stderr());
            let would = dry.stdout();
            assert!(!would.is_empty(), "{line:?}: {}", dry.stderr());
            assert!(plain || serde_json::from_str::<Value>(&would).is_ok(), "{line:?}: {would}");
            assert_eq!(all().len(), before.len(), "{line:?} changed something in a dry run");
            let asked = place.effectd(&line, None);
            assert_eq!(asked.code(), 2, "{line:?}: {}", asked.stderr());
            assert!(asked.stderr().contains("add --yes"), "{line:?}: {}", asked.stderr());
            assert_eq!(all().len(), before.len(), "{line:?} changed something though nobody said yes");
        }
        let ran = place.effectd(&[&line[..], &["--yes"]].concat(), None);
        assert!(ran.code() == 0 || line.contains(&"drain"), "{line:?}: {}{}", ran.stdout(), ran.stderr());
        let after = all();
        let new: Vec<&Value> = after.iter().filter(|act| !before.contains(act)).collect();
        if tool == "-" {
            continue;
        }
        assert!(!new.is_empty(), "{line:?} left no receipt: {}", ran.stderr());
        for act in new {
            assert_eq!(act["tool_id"], *tool, "{line:?}");
            let named = act["receipt_id"].as_str().unwrap();
            if ["breaker", "artifacts"].contains(&line[0]) {
                assert!(ran.stderr().contains(named), "{line:?}: {}", ran.stderr());
            }
            assert_eq!((&act["approval"]["by"], &act["principal"]), (me, me), "{line:?}");
            if line.starts_with(&["grants", "create"]) {
                let made = daemon.get("/v1/grants").json(200);
                made["grants"][0]["grant_id"].as_str().unwrap().clone_into(&mut grant);
            }
        }
    }
    // Amendments are signed entries of the log themselves, and name who made them.
    let receipt = receipt.as_str().unwrap();
    let amended = daemon.get(&format!("/v1/receipts/{receipt}/amendments")).json(200);
    assert_eq!(amended[0]["by"], *me, "{amended}");
    // A mutation that changes nothing leaves no receipt.
    let before = all().len();
    for again in [
        &["resume", "--yes"][..],
        &["store", "retain", "--yes"],
        &["artifacts", "quarantine", ARTIFACT, "--yes"],
        &["artifacts", "quarantine", ARTIFACT, "--yes"],
        &["policy", "set-mode", "--org", "home", "--tool", "files.copy", "deny", "--yes"],
        &["policy", "reload", "--yes"],
    ] {
        assert_eq!(place.effectd(again, None).code(), 0, "{again:?}");
    }
    assert_eq!(all().len(), before + 1, "only the first quarantine was one");
}

#[test]
fn the_same_is_asked_and_on_record_where_no_daemon_runs() {
    let place = Place::seeded();
    let mode = ["policy", "set-mode", "--org", "home", "--tool", "files.copy", "deny"];
    for (line, tool) in [(&mode[..], "effectd.set_mode"), (&["keys", "rotate"], "effectd.rotate_key")] {
        assert_eq!(place.effectd(line, None).code(), 2, "{line:?}");
        assert!(acts(&place, &format!("tool:{tool}")).is_empty(), "{line:?}");
        let ran = place.effectd(&[line, &["--yes"]].concat(), None);
        assert_eq!(ran.code(), 0, "{line:?}: {}", ran.stderr());
        let told = acts(&place, &format!("tool:{tool}"));
        assert_eq!(told.len(), 1, "{line:?}");
        assert!(told[0]["approval"]["by"].as_str().unwrap().starts_with("user://"), "{told:?}");
    }
    let verified = place.effectd(&["receipts", "verify"], None);
    assert_eq!(verified.code(), 0, "{}", verified.stderr());
}

#[test]
fn at_a_terminal_y_is_yes_and_anything_else_is_no() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let paused = || daemon.get("/healthz").json(200)["paused"] == true;
    for (answer, code, pauses) in [("n", "2", false), ("", "2", false), ("y", "0", true)] {
        let asked = Terminal::effectd(&place, &["pause"], 120, 20);
        let screen = asked.wait_for("Do it? [y/N]");
        assert!(screen.contains("active -> paused"), "{screen}");
        assert!(!paused(), "nobody has said yes yet");
        asked.write(answer);
        asked.press(&["Enter"]);
        assert_eq!(asked.ended(), code, "{answer:?}");
        assert_eq!(paused(), pauses, "{answer:?}");
        let screen = asked.screen();
        assert_eq!(screen.matches("active -> paused").count(), 1, "{screen}");
    }
    assert_eq!(acts(&place, "tool:effectd.pause").len(), 1);
}

#[test]
fn at_a_terminal_a_bar_shows_how_far_a_requeue_has_come() {
    let place = Place::seeded();
    let letter = |n: usize| Left {
        request: write_note(seeding::action(n).as_str(), &format!("p-{n}"), "x"),
        code: "tool_busy".to_owned(),
        detail: "the printer is on fire".to_owned(),
    };
    seeding::leave(&place, (0..12).map(letter));
    let _daemon = place.serve(&[]);
    let asked = Terminal::effectd(&place, &["dlq", "requeue", "--all"], 140, 40);
    asked.wait_for("Do it? [y/N]");
    asked.write("y");
    asked.press(&["Enter"]);
    assert_eq!(asked.ended(), "0");
    let screen = asked.screen();
    let bar = format!("[{}] 12/12 requeued", "#".repeat(40));
    assert!(screen.contains(&bar), "{screen}");
    for n in 0..12 {
        assert!(place.note(&format!("p-{n}")).exists(), "{n}");
    }
}

/// Verbs that always print something, with their arguments. RECEIPT, ACTION, FILE, PLAN, BATCH and DEFINITION are placeholders.
const PRINT: [&[&str]; 77] = [
    &["--help"],
    &["--version"],
    &["context", "list"],
    &["context", "show", "-o", "json"],
    &["status", "ACTION"],
    &["wait", "ACTION"],
    &["run", "FILE"],
    &["run", "FILE", "-o", "json"],
    &["submit", "FILE"],
    &["tools", "try", "files.list", "path=workspace"],
    &["preview", "FILE"],
    &["plan", "run", "PLAN"],
    &["plan", "show", "p"],
    &["batch", "run", "BATCH"],
    &["batch", "show", "notes-2026-w36"],
    &["version"],
    &["approvals", "list", "-o", "json"],
    &["grants", "list", "-o", "json"],
    &["sessions", "list", "-o", "json"],
    &["automations", "new"],
    &["automations", "check", "DEFINITION"],
    &["automations", "render", "DEFINITION", "--inputs", "{\"week\": \"w36\"}"],
    &["automations", "list", "-o", "json"],
    &["orgs", "list"],
    &["connections", "list", "-o", "json"],
    &["connectors", "list", "-o", "json"],
    &["connectors", "presets"],
    &["secrets", "list", "-o", "json"],
    &["tokens", "list", "-o", "json"],
    &["quarantine", "list"],
    &["quarantine", "show", "4"],
    &["tools", "list"],
    &["tools", "show", "files.copy"],
    &["receipts", "list"],
    &["receipts", "list", "-o", "json"],
    &["receipts", "show", "RECEIPT"],
    &["receipts", "show", "RECEIPT", "-o", "json"],
    &["receipts", "tail", "--once"],
    &["receipts", "export"],
    &["receipts", "export", "--format", "csv"],
    &["receipts", "verify"],
    &["receipts", "verify", "-o", "json"],
    &["receipts", "proof", "RECEIPT"],
    &["receipts", "stats"],
    &["receipts", "recompute-reward"],
    &["receipts", "head"],
    &["bus", "topics"],
    &["bus", "groups", "-o", "json"],
    &["bus", "replay"],
    &["bus", "export", "ACTION_EXECUTED"],
    &["keys", "list"],
    &["artifacts", "list", "RECEIPT", "-o", "json"],
    &["artifacts", "quarantined", "-o", "json"],
    &["notifications", "list", "-o", "json"],
    &["policy", "check"],
    &["policy", "explain", "FILE"],
    &["policy", "explain", "RECEIPT"],
    &["policy", "replay", "--with", ".effectd/policy"],
    &["policy", "show"],
    &["policy", "diff", "-o", "json"],
    &["policy", "overlay", "list", "-o", "json"],
    &["breaker", "list", "-o", "json"],
    &["breaker", "show", "files.copy"],
    &["budgets", "-o", "json"],
    &["caches", "list", "-o", "json"],
    &["plugins", "list", "-o", "json"],
    &["config", "show"],
    &["dlq", "list"],
    &["dlq", "show", "0"],
    &["dlq", "causes"],
    &["dlq", "export"],
    &["store", "export", "ACTION_EXECUTED"],
    &["store", "stats"],
    &["check", "dlq"],
    &["doctor"],
    &["completions", "bash"],
    &["man"],
];
/// Reading verbs that are not in that list: they need a terminal, the store alone, a session, or something that few actions leave.
const NOT_PRINTED: [&str; 17] = [
    "connections test",
    "connectors show",
    "connectors validate",
    "plugins check",
    "webhooks list",
    "slack list",
    "top",
    "store check",
    "approvals show",
    "sessions show",
    "automations show",
    "automations export",
    "artifacts get",
    "notifications show",
    "actions list",
    "actions guide",
    "actions grants list",
];

#[test]
fn unwritable_output_exits_74_and_a_closed_reader_does_not() {
    // The receipts that come with seeded dead letters cannot be parsed, so other verbs need another place.
    let letters = place_to_change();
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let note = write_note("printed", "printed", "x");
    let done = daemon.post("/v1/actions?wait=true", &note).json(200);
    let file = place.path("note.json");
    std::fs::write(&file, note.to_string()).unwrap();
    let batch = root().join("examples/batches/two_notes.json");
    let definition = root().join("examples/automations/weekly_note.json");
    let (plan, sample) =
        (place.path("plan.json"), include_str!("../../contracts/tests/golden/plans/sample.json"));
    std::fs::write(&plan, sample.replace("action:example", "p")).unwrap();
    let called: BTreeSet<String> = PRINT.iter().map(|line| line[..line.len().min(3)].join(" ")).collect();
    let called =
        |verb: &&str| called.iter().any(|line| line == verb || line.starts_with(&format!("{verb} ")));
    let missing: Vec<&str> = LOOK.into_iter().filter(|verb| !called(verb)).collect();
    let not_printed: BTreeSet<&str> = NOT_PRINTED.into();
    assert_eq!(missing.into_iter().collect::<BTreeSet<_>>(), not_printed);
    for line in PRINT {
        let words = line.iter().map(|word| match *word {
            "RECEIPT" => done["receipt"]["receipt_id"].as_str().unwrap(),
            "ACTION" => "printed",
            "FILE" => file.to_str().unwrap(),
            "PLAN" => plan.to_str().unwrap(),
            "BATCH" => batch.to_str().unwrap(),
            "DEFINITION" => definition.to_str().unwrap(),
            word => word,
        });
        let line: Vec<&str> = words.collect();
        let place = if ["dlq", "quarantine"].contains(&line[0]) { &letters } else { &place };
        let heard = place.effectd(&line, None);
        assert!(!heard.stdout().is_empty(), "{line:?} prints nothing: {}", heard.stderr());
        let full = place.effectd_on(&line, None, |command| {
            command.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap());
        });
        assert_eq!(full.code(), 74, "{line:?}: {}", full.stderr());
        assert!(full.stderr().contains("standard output cannot be written"), "{line:?}: {}", full.stderr());
        let closed = place.effectd_on(&line, None, |command| {
            command.stdout(std::io::pipe().unwrap().1);
        });
        let said = closed.stderr();
        assert_eq!(closed.code(), heard.code(), "{line:?}: {said}");
        let quiet = !said.contains("standard output") && !said.contains("panicked");
        assert!(quiet, "{line:?}: {said}");
    }
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_reason_and_an_end_are_in_the_receipt() {
    const TOOL: &str = "files.write_text";
    let place = Place::seeded();
    let lost = Left {
        request: write_note("lost", "lost.txt", "x"),
        code: "outcome_unknown".to_owned(),
        detail: "the power failed".to_owned(),
    };
    seeding::leave(&place, [lost].into_iter());
    let daemon = place.serve(&[]);
    let mode = ["policy", "set-mode", "--org", "home", "--tool", "files.copy", "deny"];
    let consent = ["policy", "revoke-consent", "--subject", "agent://planner@deviceA"];
    let consent =
        [&consent[..], &["--space", "shared:household", "--purpose", "tool:files.write_text"]].concat();
    let ends = ["--for", "2h"];
    let lines: [(&[&str], &[&str], &str); 9] = [
        (&["tools", "disable", TOOL], &ends, "disable_tool"),
        (&["breaker", "trip", TOOL], &ends, "trip_breaker"),
        (&["pause"], &ends, "pause"),
        (&mode, &ends, "set_mode"),
        (&consent, &[], "revoke_consent"),
        (&["policy", "overlay", "clear"], &[], "clear_overlay"),
        (&["keys", "rotate-device"], &[], "rotate_device_key"),
        (&["keys", "rotate"], &[], "rotate_key"),
        (&["dlq", "settle", "0", "--done"], &[], "settle_letter"),
    ];
    for (line, ends, tool) in lines {
        let why = ["--reason", "the printer is on fire", "--yes"];
        let ran = run(&place, &[line, ends, &why].concat());
        assert_eq!(ran.code(), 0, "{line:?}: {}", ran.stderr());
        let receipts = acts(&place, &format!("tool:effectd.{tool}"));
        assert_eq!(receipts.len(), 1, "{line:?}");
        assert_eq!(receipts[0]["approval"]["reason"], "the printer is on fire", "{line:?}");
        assert_eq!(receipts[0]["outputs"]["until"].is_string(), !ends.is_empty(), "{}", receipts[0]);
    }
    let breaker = daemon.get(&format!("/v1/breakers/{TOOL}")).json(200);
    assert_eq!((&breaker["state"], &breaker["cause"]), (&json!("open"), &json!("operator")));
    assert!(breaker["retry_after_ms"].as_u64() > Some(7_000_000), "{breaker}");
    let paused = || daemon.get("/healthz").json(200)["paused"] == true;
    assert!(paused());
    for wrong in [
        &["pause", "--for", "soon", "--yes"][..],
        &["pause", "--for", "0s", "--yes"],
        &["pause", "--for", "1h", "--reason", "two\nlines", "--yes"],
    ] {
        assert_eq!(run(&place, wrong).code(), 2, "{wrong:?}");
    }
    daemon.post("/v1/operations?lasts=1h", &json!({ "do": "resume" })).problem(400, "query_invalid");

    // A pause that has an end ends by itself; one without an end is not shortened.
    assert_eq!(run(&place, &["pause", "--for", "1s", "--yes"]).code(), 0);
    until("the pause is over", || !paused());
    for undo in [&["tools", "enable", TOOL, "--yes"][..], &["breaker", "reset", TOOL, "--yes"]] {
        assert_eq!(run(&place, undo).code(), 0, "{undo:?}");
    }
    let done = daemon.post("/v1/actions?wait=true", &write_note("after", "after.txt", "x")).json(200);
    assert_eq!(done["outcome"], "executed", "{done}");
    assert_eq!(run(&place, &["pause", "--yes"]).code(), 0);
    let shorter = run(&place, &["pause", "--for", "1s", "--yes"]);
    assert!(shorter.stderr().contains("there is nothing to change"), "{}", shorter.stderr());
}
