//! One client, two transports: a command says, does and records the same whether a daemon runs or not.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::approvals::{asking, held};
use crate::harness::{Place, Ran, Serving, write_note};
use crate::operator::acts;
use crate::seeding;
use crate::verbs::{CHANGES, place_to_change, valid_token};

/// The output of a run without ids, times, hashes and the note of where it works, which differ between runs.
fn told(ran: &Ran) -> (i32, String, String) {
    let stderr = ran.stderr();
    let names_place =
        |line: &str| line.contains("no daemon answers on") || line.starts_with("effectd: target ");
    // Without a daemon, the command itself logs what the daemon would log.
    let said = stderr.lines().filter(|line| !names_place(line) && !line.starts_with(" WARN "));
    let said: Vec<&str> = said.collect();
    (ran.code(), plain(&ran.stdout()), plain(&said.join("\n")))
}

fn plain(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-:.".contains(c);
    let mut plain = String::new();
    // The time left to decide differs.
    let lines = text.lines().filter(|line| !line.contains("time_left_s"));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        plain.push_str(kind(word).unwrap_or(word));
        let skip = after.chars().next().map_or(0, char::len_utf8);
        plain.push_str(&after[..skip]);
        rest = &after[skip..];
    }
    plain
}

/// The kind of a word that differs between runs.
fn kind(word: &str) -> Option<&'static str> {
    let hex = |text: &str| text.len() >= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if word.len() == 36 && word.bytes().filter(|byte| *byte == b'-').count() == 4 {
        Some("ID")
    } else if word.rsplit(':').next().is_some_and(hex) {
        Some("HEX")
    } else if word.len() == 49 && word.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        // The last part of a token.
        Some("SECRET")
    } else if word.starts_with("20") && word.contains('T') && word.contains(':') {
        Some("TIME")
    } else if let [h, _, b':', m, _] = word.as_bytes()
        && h.is_ascii_digit()
        && m.is_ascii_digit()
    {
        Some("CLOCK")
    } else {
        None
    }
}

/// The same without numbers: counters of a running daemon change.
fn uncounted((code, stdout, stderr): (i32, String, String)) -> (i32, String, String) {
    let uncount = |text: String| text.chars().filter(|c| !c.is_ascii_digit()).collect();
    (code, uncount(stdout), uncount(stderr))
}

#[test]
fn what_only_looks_answers_the_same_with_and_without_a_daemon() {
    let place = asking();
    let daemon = place.serve(&[]);
    let question = held(&daemon, "both-held", "held.txt", "x");
    let notice = serde_json::json!({
        "action_id": "both-told", "subject_id": "agent://planner@deviceA", "space_id": "shared:household",
        "tool_id": "notify.local", "policy_ctx": { "actor": "alice", "device": "phone1" },
        "params": { "title": "t", "body": "b", "urgency": "normal", "space_id": "shared:household" },
    });
    let done = daemon.post("/v1/actions?wait=60000", &notice).json(200);
    let receipt = done["receipt"]["receipt_id"].as_str().unwrap();
    let mut stranger = write_note("both-refused", "r.txt", "x");
    stranger["subject_id"] = "agent://stranger@nowhere".into();
    assert_eq!(daemon.post("/v1/actions?wait=60000", &stranger).status, 403);
    std::fs::write(place.path("note.json"), write_note("both-asked", "a.txt", "x").to_string()).unwrap();
    let exact = [
        &["status", "both-told", "-o", "json"][..],
        &["status", "both-held", "-o", "json"],
        &["status", "nobody"],
        &["cancel", "both-told"],
        &["cancel", "nobody"],
        &["approvals", "list", "-o", "json"],
        &["approvals", "show", &question],
        &["approvals", "show", receipt],
        &["grants", "list", "-o", "json"],
        &["sessions", "list"],
        &["orgs", "list"],
        &["connections", "list", "-o", "json"],
        &["secrets", "list", "-o", "json"],
        &["tokens", "list", "-o", "json"],
        &["tokens", "revoke", "nobody", "--yes"],
        &["sessions", "show", "nobody"],
        &["receipts", "list", "-o", "json"],
        &["receipts", "list", "tool:notify.*", "--limit", "1"],
        &["receipts", "list", "nonsense:x"],
        &["receipts", "show", receipt],
        &["receipts", "show", "both-told", "-o", "json"],
        &["receipts", "show", "nobody"],
        &["receipts", "tail", "--once"],
        &["receipts", "export", "--format", "csv"],
        &["receipts", "stats", "-o", "json"],
        &["receipts", "audit"],
        &["receipts", "recompute-reward"],
        &["bus", "topics"],
        &["bus", "groups", "-o", "json"],
        &["bus", "replay"],
        &["bus", "replay", "--from", "nowhere"],
        &["bus", "export", "ACTION_EXECUTED"],
        &["bus", "tail", "--once"],
        &["bus", "seek", "learner", "--to", "start"],
        &["bus", "seek", "learner", "--to", "start", "--topic", "ACTION_DECISION"],
        &["store", "export", "ACTION_EXECUTED"],
        &["keys", "list", "-o", "json"],
        &["artifacts", "list", receipt],
        &["artifacts", "get", receipt],
        &["artifacts", "get", receipt, "nothing"],
        &["artifacts", "quarantined"],
        &["notifications", "list", "-o", "json"],
        &["notifications", "show", receipt],
        &["notifications", "show", "nobody"],
        &["policy", "check", "-o", "json"],
        &["policy", "explain", receipt],
        &["policy", "explain", "note.json"],
        &["policy", "replay", "--with", ".effectd/policy", "-o", "json"],
        &["breaker", "show", "files.copy", "-o", "json"],
        &["budgets", "-o", "json"],
        &["tools", "list"],
        &["tools", "show", "files.copy", "-o", "json"],
        &["preview", "note.json"],
        &["dlq", "list", "-o", "json"],
        &["dlq", "show", "0"],
        &["dlq", "causes"],
        &["dlq", "drain", "--yes"],
        &["quarantine", "list"],
        &["quarantine", "show", "0"],
    ];
    let counted = [
        &["store", "stats"][..],
        &["receipts", "verify"],
        &["receipts", "head"],
        &["receipts", "proof", receipt],
    ];
    let all = || {
        let exact = exact.map(|line| told(&place.effectd(line, None)));
        (exact, counted.map(|line| uncounted(told(&place.effectd(line, None)))))
    };
    let with = all();
    assert_eq!(daemon.stop(), 0);
    let without = all();
    let lines = exact.iter().chain(&counted);
    let with = with.0.into_iter().chain(with.1);
    let without = without.0.into_iter().chain(without.1);
    let differ: Vec<_> =
        lines.zip(with.zip(without)).filter(|(_, (with, without))| with != without).collect();
    assert!(differ.is_empty(), "{differ:#?}");
    assert!(!place.socket().exists(), "no socket is made in process");
}

#[test]
fn dead_letters_are_listed_the_same_with_and_without_a_daemon() {
    let place = place_to_change();
    let lines = [
        &["dlq", "list", "-o", "json"][..],
        &["dlq", "list", "--tool", "files.write_text"],
        &["dlq", "show", "0"],
        &["dlq", "show", "99"],
        &["dlq", "causes", "-o", "json"],
        &["dlq", "export"],
        &["quarantine", "list", "-o", "json"],
        &["quarantine", "show", "4"],
        &["quarantine", "show", "0"],
    ];
    let without = lines.map(|line| told(&place.effectd(line, None)));
    let _daemon = place.serve(&[]);
    for (line, without) in lines.iter().zip(without) {
        assert_eq!(told(&place.effectd(line, None)), without, "{line:?}");
    }
}

#[test]
fn mutations_record_the_same_with_and_without_a_daemon() {
    let (served, alone) = (place_to_change(), place_to_change());
    let daemon = served.serve(&[]);
    let request = write_note("both", "both.txt", "x").to_string();
    for place in [&served, &alone] {
        assert_eq!(place.effectd(&["submit", "--wait", "-"], Some(&request)).code(), 0);
    }
    let mut differ = Vec::new();
    for (line, _) in CHANGES {
        // What it finds depends on receipts that letters came with, and on a server.
        if line.starts_with(&["receipts", "audit"]) || line[0] == "connectors" {
            continue;
        }
        let [with, without] = [&served, &alone].map(|place| {
            let line = named(place, line);
            let line: Vec<&str> = line.iter().map(String::as_str).collect();
            let asked = told(&place.effectd(&line, None));
            let done = told(&place.effectd(&[&line[..], &["--yes"]].concat(), None));
            if line.contains(&"amend") {
                // Rewards depend on how long the action took.
                return (uncounted(asked), uncounted(done));
            }
            (asked, done)
        });
        // The first prints a note where no daemon runs, the second prints how long each action took.
        let noted = line.starts_with(&["policy", "reload"]) || line.contains(&"tail");
        let same = (with.0.0, with.1.0) == (without.0.0, without.1.0);
        if !same || (!noted && with != without) {
            differ.push((line, with, without));
        }
        // Without a daemon, the command that waits for an action carries it out.
        for n in line.iter().filter_map(|word| requeued(word)) {
            let waited = alone.effectd(&["wait", seeding::action(n).as_str()], None);
            assert!([0, 5].contains(&waited.code()), "{line:?}: {}", waited.stderr());
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
    drop(daemon);
    let [with, without] = [&served, &alone].map(recorded);
    assert_eq!(with, without);
    assert!(!alone.socket().exists(), "no socket is made in process");
}

/// The dead letter that a line requeues.
fn requeued(word: &str) -> Option<usize> {
    match word {
        "requeue" => Some(2),
        "drain" => Some(3),
        _ => None,
    }
}

/// A line with the ids of this place.
fn named(place: &Place, line: &[&str]) -> Vec<String> {
    let grant = || {
        let grants = place.effectd(&["grants", "list", "-o", "json"], None).json(0);
        let active = grants.as_array().unwrap().iter().find(|grant| grant["state"] == "active");
        active.unwrap()["grant_id"].as_str().unwrap().to_owned()
    };
    let first = |what: &str, id: &str| {
        let listed = place.effectd(&[what, "list", "-o", "json"], None).json(0);
        listed[0][id].as_str().unwrap().to_owned()
    };
    let word = |word: &&str| match *word {
        "RECEIPT" => "both".to_owned(),
        "GRANT" => grant(),
        "SESSION" => first("sessions", "session_id"),
        "CONNECTION" => first("connections", "connection_id"),
        "AUTOMATION" => first("automations", "automation_id"),
        "WEBHOOK" => first("webhooks", "webhook_id"),
        "TOKEN" => valid_token(&place.effectd(&["tokens", "list", "-o", "json"], None).json(0)),
        word => word.to_owned(),
    };
    line.iter().map(word).collect()
}

/// The receipts of operations, without what differs between runs.
fn recorded(place: &Place) -> Vec<(Value, Value, Value, String, Value)> {
    let tools: BTreeSet<&str> = CHANGES.iter().map(|(_, tool)| *tool).collect();
    let told = tools.iter().flat_map(|tool| acts(place, &format!("tool:{tool}")));
    let told = told.map(|act| {
        (
            act["tool_id"].clone(),
            act["status"].clone(),
            act["principal"].clone(),
            plain(&act["inputs"].to_string()),
            act["approval"]["authority"].clone(),
        )
    });
    told.collect()
}
