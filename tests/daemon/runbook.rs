//! The runbook: its commands are run as written, against a real daemon.

use std::collections::BTreeSet;
use std::sync::Arc;

use effectd_bus::embedded::{self, EmbeddedConfig};
use effectd_bus::{Completion, NewReceipt, Store};
use effectd_contracts::{ActionId, Digest, Receipt, ReceiptId, SystemClock};
use serde_json::Value;

use crate::approvals::killed_at;
use crate::harness::{Daemon, Place, Serving, program, root, write_note};
use crate::operator::{break_it, repair_it, slow_note};

const RUNBOOK: &str = "docs/runbook.md";

/// The commands of each block of a page, in order, with their headings.
pub fn blocks(page: &str) -> Vec<(String, String)> {
    let page = std::fs::read_to_string(root().join(page)).unwrap();
    let (mut heading, mut block, mut blocks) = (String::new(), None::<String>, Vec::new());
    for line in page.lines() {
        match (&mut block, line) {
            (None, "```sh") => block = Some(String::new()),
            (Some(_), "```") => blocks.extend(block.take().map(|block| (heading.clone(), block))),
            (Some(block), line) => block.push_str(&format!("{line}\n")),
            (None, line) => {
                if let Some(title) = line.strip_prefix("## ") {
                    title.clone_into(&mut heading);
                }
            }
        }
    }
    blocks
}

/// The code that a call ends with now.
fn probe(place: &Place, daemon: &Daemon, nth: usize) -> String {
    let action = format!("probe-{nth}");
    let reply = daemon.post("/v1/actions?wait=true", &write_note(&action, &action, "x"));
    let said: Value = serde_json::from_str(&reply.body).unwrap();
    let outcome = said["outcome"].as_str().or(said["code"].as_str()).unwrap().to_owned();
    assert_eq!(place.note(&action).exists(), outcome == "executed", "{said}");
    outcome
}

/// The code that a call ends with after a block, if it fails.
fn expected(block: &str) -> &'static str {
    for (command, outcome) in [
        ("effectd tools disable", "tool_disabled"),
        ("set-caps files.write_text nobody", "policy_denied"),
        ("effectd breaker trip", "breaker_open"),
        ("effectd pause", "paused"),
    ] {
        if block.contains(command) {
            return outcome;
        }
    }
    "executed"
}

/// A place with four notes that timed out, and an append with an unknown outcome.
fn after_a_bad_night() -> Place {
    let place = Place::seeded();
    std::fs::create_dir(place.path("bin")).unwrap();
    std::os::unix::fs::symlink(program(), place.path("bin/effectd")).unwrap();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    std::fs::write(place.note("lines"), "one\n").unwrap();
    break_it(&place);
    let daemon = place.serve(&[]);
    std::thread::scope(|scope| {
        for n in 0..4 {
            let daemon = &daemon;
            scope.spawn(move || {
                let late = daemon.post("/v1/actions?wait=true", &slow_note(&format!("left-{n}")));
                late.problem(502, "timed_out");
            });
        }
    });
    assert_eq!(daemon.stop(), 0);
    repair_it(&place);
    let mut request = write_note("unsure", "lines", "two\n");
    request["tool_id"] = "files.append_text".into();
    let daemon = killed_at(&place, "executor.after_child", |daemon| {
        drop(daemon.post("/v1/actions?wait=true", &request));
        // Somebody else writes there before effectd is back.
        std::fs::write(place.note("lines"), "something else\n").unwrap();
    });
    let ended = daemon.get("/v1/actions/unsure/wait?timeout_ms=60000");
    assert!(ended.body.contains("outcome_unknown"), "{ended:?}");
    assert_eq!(daemon.stop(), 0);
    place
}

/// Writes a receipt of an action that reached into another space.
fn leave_breach(place: &Place, like: &Value) {
    let mut receipt: Receipt = serde_json::from_value(like.clone()).unwrap();
    receipt.receipt_id = ReceiptId::fresh();
    receipt.action_id = ActionId::new("breach").unwrap();
    receipt.inputs.insert("space_id".to_owned(), "personal:bob".into());
    let store = embedded::open(EmbeddedConfig::new(place.state()), Arc::new(SystemClock)).unwrap();
    let completion = Completion {
        receipt: NewReceipt {
            receipt_id: receipt.receipt_id.clone(),
            action_id: receipt.action_id.clone(),
            action_digest: Digest::of(b"breach"),
            tool_id: receipt.tool_id.clone(),
            subject_id: receipt.subject_id.clone(),
            space_id: receipt.space_id.clone(),
            status: receipt.status,
            key: None,
            params_digest: Digest::of(b"params"),
            time: receipt.timing.ended_at,
            body: serde_json::to_vec(&receipt).unwrap(),
        },
        events: Vec::new(),
        fence: None,
        leases: Vec::new(),
        letter: None,
        retire: Vec::new(),
        disturbed: Vec::new(),
        appeared: Vec::new(),
        depends: Vec::new(),
        links: Vec::new(),
    };
    store.commit(completion).wait().unwrap();
    store.close().unwrap();
}

fn run(place: &Place, block: &str) -> std::process::Output {
    std::process::Command::new("sh")
        .args(["-e", "-c", block])
        .current_dir(place.path(""))
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", place.path("bin").display()))
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn every_runbook_command_does_what_it_says_without_a_restart() {
    let place = after_a_bad_night();
    let daemon = place.serve(&[]);
    let blocks = blocks(RUNBOOK);
    assert!(blocks.len() >= 20, "only {} blocks were found", blocks.len());
    let mut seen = BTreeSet::new();
    for (nth, (heading, block)) in blocks.iter().enumerate() {
        seen.insert(heading.as_str());
        if heading == "A key is lost" {
            lose_key(&place);
        }
        let ran = run(&place, block);
        let (told, words) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert!(ran.status.success(), "{heading}:\n{block}\n{told}\n{words}");
        assert!(!words.contains("no daemon answers") || block.contains("--state"), "{heading}: {words}");
        // Commands with several good exit codes have one here: one letter is left, and nothing reached into another space.
        assert_eq!(told.contains("some are left"), block.contains("dlq drain"), "{block}\n{told}");
        assert!(
            !["something was found", "artifacts are quarantined", "something is lost"]
                .iter()
                .any(|said| told.contains(said)),
            "{told}"
        );
        assert_eq!(probe(&place, &daemon, nth), expected(block), "{heading}:\n{block}");
    }
    assert_eq!(seen.len(), 16, "{seen:?}");
    after(&place);
    drop(daemon);
}

/// Removes the device key of the state that the page restores, without which the state cannot be used.
fn lose_key(place: &Place) {
    std::fs::remove_file(place.path("restored/keys/device.key")).unwrap();
    let refused = place.effectd(&["receipts", "verify", "--state", "restored"], None);
    assert_eq!(refused.code(), 69, "{}", refused.stderr());
    assert!(refused.stderr().contains("device.key is missing"), "{}", refused.stderr());
}

#[test]
fn an_upgrade_is_tried_on_a_copy_and_looked_at_afterwards() {
    let place = Place::seeded();
    std::fs::create_dir(place.path("bin")).unwrap();
    for name in ["bin/effectd", "effectd-new"] {
        std::os::unix::fs::symlink(program(), place.path(name)).unwrap();
    }
    let daemon = place.serve(&[]);
    assert_eq!(probe(&place, &daemon, 0), "executed");
    let (service, here): (Vec<_>, Vec<_>) =
        blocks("docs/upgrade.md").into_iter().partition(|(_, block)| block.contains("systemctl"));
    assert_eq!((service.len(), here.len()), (2, 2), "{here:?}");
    for (heading, block) in here {
        let ran = run(&place, &block);
        let words = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{heading}:\n{block}\n{words}");
    }
    // The copy opened, and the state in use is untouched.
    assert!(place.path("trial/journal/format").exists());
    assert_eq!(probe(&place, &daemon, 1), "executed");
}

/// The state after all commands of the page.
fn after(place: &Place) {
    let causes = place.effectd(&["dlq", "causes", "-o", "json"], None).json(0);
    assert_eq!(causes, Value::Array(Vec::new()), "all letters are gone");
    for n in 0..4 {
        assert!(place.note(&format!("left-{n}")).exists(), "letter {n} was done at last");
    }
    let bundle = std::fs::read_to_string(place.path("bundle.json")).unwrap();
    for secret in ["at last", "agent://", "left-3", "unsure", "workspace", "household", "learner"] {
        assert!(!bundle.contains(secret), "the bundle tells {secret}");
    }
    let bundle: Value = serde_json::from_str(&bundle).unwrap();
    assert_eq!(bundle["daemon"], "answers");
    assert!(bundle["metrics"].as_str().unwrap().contains("effectd_actions_total"));
    let settings = bundle["settings"].as_array().unwrap();
    assert!(settings.iter().any(|row| row["key"] == "store.journal" && row["origin"] == "default"));
    assert_eq!(bundle["doctor"]["may_serve"], true, "{}", bundle["doctor"]);
    assert!(bundle["disk"]["free_bytes"].as_u64() <= bundle["disk"]["size_bytes"].as_u64());
    assert!(bundle["disk"]["state_bytes"]["journal"].as_u64() > Some(0), "{}", bundle["disk"]);
}

#[test]
fn what_reached_into_another_space_is_found_and_taken_aside() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    std::fs::write(place.note("kept"), "kept").unwrap();
    let put = ["tools", "try", "-o", "json", "artifact.put", "path=workspace/kept"];
    let put = place.effectd(&put, None).json(0);
    let receipt = put["receipt"]["receipt_id"].as_str().unwrap();
    let quarantine = ["receipts", "audit", "--quarantine", "--yes"];
    let clean = place.effectd(&quarantine, None);
    assert_eq!(clean.code(), 0, "{}", clean.stderr());
    assert_eq!(daemon.stop(), 0);
    leave_breach(&place, &put["receipt"]);
    let daemon = place.serve(&[]);
    let get = ["artifacts", "get", receipt];
    assert_eq!(place.effectd(&get, None).stdout(), "kept");
    let found = place.effectd(&["receipts", "audit", "space:shared:household", "-o", "json"], None).json(1);
    assert_eq!(found[0]["kind"], "cross_space", "{found}");
    let asked = place.effectd(&["receipts", "audit", "--quarantine"], None);
    assert_eq!(asked.code(), 2, "{}", asked.stderr());
    assert_eq!(place.effectd(&get, None).code(), 0, "nobody said yes");
    assert_eq!(place.effectd(&quarantine, None).code(), 1, "there is a finding");
    let refused = place.effectd(&get, None);
    assert!(refused.stderr().contains("artifact_quarantined"), "{}", refused.stderr());
    let aside = place.effectd(&["artifacts", "quarantined", "-o", "json"], None).json(0);
    assert!(aside[0]["reason"].as_str().unwrap().contains("cross_space"), "{aside}");
    let receipts = ["receipts", "list", "tool:effectd.quarantine_artifact", "-o", "jsonl"];
    assert_eq!(place.effectd(&receipts, None).stdout().lines().count(), 1);
    drop(daemon);
}

/// Names of series in an expression.
fn series(text: &str, into: &mut BTreeSet<String>) {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for name in text.split(|c| !word(c)).filter(|name| name.starts_with("effectd_")) {
        let base = name.strip_suffix("_bucket").unwrap_or(name);
        into.insert(base.to_owned());
    }
}

fn expressions(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(text)) = members.get("expr") {
                series(text, into);
            }
            members.values().for_each(|member| expressions(member, into));
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn alerts_and_dashboards_name_real_series_and_headings() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let mut named = BTreeSet::new();
    let alerts: Value = serde_json::from_str(&read("docs/deploy/alerts.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&read("docs/deploy/dashboard.json")).unwrap();
    expressions(&alerts, &mut named);
    expressions(&dashboard, &mut named);
    assert!(named.len() >= 15, "{named:?}");
    let sources = ["actors/src/metrics.rs", "gateway/src/metrics.rs", "bus/src/stats.rs"].map(read);
    for name in &named {
        let constant = format!("\"{name}\"");
        assert!(sources.iter().any(|source| source.contains(&constant)), "nobody counts {name}");
    }
    let headings: BTreeSet<String> = blocks(RUNBOOK)
        .into_iter()
        .map(|(heading, _)| {
            let plain = heading.to_lowercase();
            let plain: String = plain.chars().filter(|c| c.is_alphanumeric() || " -".contains(*c)).collect();
            plain.replace(' ', "-")
        })
        .collect();
    let tests = read("docs/deploy/alerts_test.yaml");
    for rule in alerts["groups"][0]["rules"].as_array().unwrap() {
        let tested = format!("'{{alertname={}}}'", rule["alert"]);
        assert!(tests.contains(&tested), "no test makes {} fire", rule["alert"]);
        let target = rule["annotations"]["runbook"].as_str().unwrap();
        let heading = target.split_once('#').unwrap().1;
        assert!(headings.contains(heading), "{target} leads nowhere: {headings:?}");
    }
}
