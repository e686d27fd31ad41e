//! Operators: thousands of dead letters, and the switches of a running daemon.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::approvals::killed_at;
use crate::harness::{Daemon, Place, Ran, Reply, Serving, until, write_note};
use crate::seeding::{self, Left};

const TOOL: &str = "files.write_text";

pub fn run(place: &Place, arguments: &[&str]) -> Ran {
    let ran = place.effectd(arguments, None);
    assert!(!ran.stderr().contains("no daemon answers"), "{}", ran.stderr());
    ran
}

/// A note that times out and becomes a dead letter while the control file exists.
pub fn slow_note(action: &str) -> Value {
    let mut request = write_note(action, action, "at last");
    // The whole timeout of the tool: enough on a machine that stalls, once the control file is gone.
    request["qos"] = json!({ "max_retries": 0 });
    request
}

/// Makes tools stop before they rename their drafts.
pub fn break_it(place: &Place) {
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    std::fs::write(place.path("workspace/control-stop-at"), "before_rename").unwrap();
}

pub fn repair_it(place: &Place) {
    std::fs::remove_file(place.path("workspace/control-stop-at")).unwrap();
}

pub fn causes(place: &Place) -> Vec<(String, u64)> {
    let all = run(place, &["dlq", "causes", "-o", "json"]).json(0);
    let cause = |cause: &Value| {
        let name = cause["cause"].as_str().unwrap().to_owned();
        (name, cause["count"].as_u64().unwrap())
    };
    let mut causes: Vec<_> = all.as_array().unwrap().iter().map(cause).collect();
    causes.sort();
    causes
}

/// The receipts of operations.
pub fn acts(place: &Place, filter: &str) -> Vec<Value> {
    let listed = place.effectd(&["receipts", "list", "--limit", "1000", "-o", "jsonl", filter], None);
    let lines = listed.stdout();
    let ids = lines.lines().map(|line| {
        let receipt: Value = serde_json::from_str(line).unwrap();
        receipt["receipt_id"].as_str().unwrap().to_owned()
    });
    let show = |id: String| place.effectd(&["receipts", "show", &id, "-o", "json"], None).json(0);
    ids.map(show).collect()
}

/// A daemon with one real dead letter; returns the letter.
fn with_real_failure(place: &Place) -> (Daemon, Value) {
    break_it(place);
    let daemon = place.serve(&[]);
    daemon.post("/v1/actions?wait=true", &slow_note("real")).problem(502, "timed_out");
    let letter = run(place, &["dlq", "show", "0", "-o", "json"]).json(0);
    assert_eq!(letter["code"], "timed_out", "{letter}");
    (daemon, letter)
}

#[test]
fn seven_causes_are_seven_lines_and_a_canary_stops_a_broken_one() {
    let place = Place::seeded();
    let (daemon, real) = with_real_failure(&place);
    let given_up = daemon.get("/v1/store/topics/DEAD_LETTERS").json(200);
    let event = &given_up["events"][0];
    assert_eq!(
        (&event["type"], &event["data"]["cause"], &event["data"]["receipt_id"]),
        (&json!("effectd.dead_letter.v1"), &real["cause"], &real["receipt_id"]),
        "{given_up}"
    );
    assert_eq!(daemon.stop(), 0);
    let others = ["on fire", "out of paper", "asleep", "on holiday", "confused", "too loud"];
    let left = (1..10_000).map(|n| {
        let (code, detail) = match others.get(n % 7) {
            // Details that vary within a cause do not count.
            Some(what) => {
                ("tool_busy".to_owned(), format!("printer {n} of /srv/{n} is {what} since 0x{n:x}"))
            }
            None => ("timed_out".to_owned(), real["detail"].as_str().unwrap().to_owned()),
        };
        let request = slow_note(seeding::action(n).as_str());
        Left { request, code, detail }
    });
    seeding::leave(&place, left);
    let daemon = place.serve(&[]);
    let all = run(&place, &["dlq", "causes", "-o", "json"]).json(0);
    assert_eq!(all.as_array().unwrap().len(), 7, "{all}");
    let counts: u64 = causes(&place).iter().map(|(_, count)| count).sum();
    assert_eq!(counts, 10_000);
    for cause in all.as_array().unwrap() {
        assert_eq!(cause["tool_id"], TOOL, "{cause}");
        assert!(cause["sample"].as_str().unwrap().len() > 10, "{cause}");
        assert!(cause["first"].as_str() <= cause["last"].as_str(), "{cause}");
    }
    let broken = real["cause"].as_str().unwrap();
    let before = causes(&place);
    // Nothing happens without a confirmation.
    let preview = run(&place, &["dlq", "requeue", "--cause", broken]);
    assert_eq!((preview.code(), preview.stdout().as_str()), (2, ""), "{}", preview.stderr());
    assert!(preview.stderr().contains("add --yes"), "{}", preview.stderr());
    assert_eq!(causes(&place), before);
    // Still broken: only the canary is tried.
    let stopped = run(&place, &["dlq", "requeue", "--cause", broken, "--yes", "-o", "jsonl"]);
    assert_eq!(stopped.code(), 1, "{}", stopped.stderr());
    assert_eq!(stopped.stdout().lines().count(), 1, "{}", stopped.stdout());
    assert!(stopped.stderr().contains("1 of 1 failed again"), "{}", stopped.stderr());
    assert_eq!(causes(&place), before, "what was tried is a dead letter again");
    // Repaired: one, then ten, then the rest, up to the limit.
    repair_it(&place);
    let arguments = ["dlq", "requeue", "--cause", broken, "--max", "30", "--yes", "-o", "jsonl"];
    let done = run(&place, &arguments);
    assert_eq!(done.code(), 0, "{}", done.stderr());
    assert_eq!(done.stdout().lines().count(), 30);
    for step in ["1/30", "11/30", "30/30"] {
        assert!(done.stderr().contains(step), "{}", done.stderr());
    }
    let left: u64 = causes(&place).iter().map(|(_, count)| count).sum();
    assert_eq!(left, 9_970);
    // All letters of a cause are dropped by one recorded operation.
    let other = causes(&place).into_iter().find(|(cause, _)| cause != broken);
    let (cause, count) = other.unwrap();
    let dropped = run(&place, &["dlq", "drop", "--cause", &cause, "--yes", "-o", "jsonl"]);
    assert_eq!(dropped.stdout().lines().count() as u64, count);
    assert_eq!(causes(&place).len(), 6);
    let by = acts(&place, "tool:effectd.drop_letters");
    let told: u64 = by.iter().map(|receipt| receipt["outputs"]["dropped"].as_u64().unwrap()).sum();
    assert_eq!(told, count, "{by:?}");
    drop(daemon);
}

#[test]
fn draining_is_idempotent_and_unknown_outcomes_stay() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    assert_eq!(daemon.stop(), 0);
    let left = (0..24).map(|n| {
        let (code, detail) = match n % 3 {
            0 => ("tool_busy", "the printer is on fire"),
            1 => ("timed_out", "no answer within 30 s"),
            _ => ("outcome_unknown", "the power failed"),
        };
        let request = write_note(seeding::action(n).as_str(), &format!("n-{n}"), "drained");
        Left { request, code: code.to_owned(), detail: detail.to_owned() }
    });
    seeding::leave(&place, left);
    let daemon = place.serve(&[]);
    let refused = run(&place, &["dlq", "drain"]);
    assert_eq!(refused.code(), 2, "{}", refused.stderr());
    let first = run(&place, &["dlq", "drain", "--yes"]);
    assert_eq!(first.code(), 1, "what is not known is left: {}", first.stderr());
    assert!(first.stderr().contains("16 requeued"), "{}", first.stderr());
    let (letters, receipts) = (causes(&place), acts(&place, "tool:effectd.requeue_letters").len());
    assert_eq!(letters.iter().map(|(_, count)| count).sum::<u64>(), 8);
    let done = |n: usize| std::fs::read_to_string(place.note(&format!("n-{n}"))).is_ok();
    for n in 0..24 {
        assert_eq!(done(n), n % 3 != 2, "{n}");
    }
    let second = run(&place, &["dlq", "drain", "--yes"]);
    assert!(second.stderr().contains("0 requeued"), "{}", second.stderr());
    assert_eq!((causes(&place), acts(&place, "tool:effectd.requeue_letters").len()), (letters, receipts));
    // Naming it does not requeue it either; a person must state the outcome.
    let unknown = run(&place, &["dlq", "requeue", "2", "--yes"]);
    assert_eq!(unknown.code(), 1);
    assert!(unknown.stdout().contains("dlq settle"), "{}", unknown.stdout());
    assert_eq!(run(&place, &["dlq", "settle", "2", "--done", "--yes"]).code(), 0);
    let again = run(&place, &["dlq", "settle", "2", "--done", "--yes"]);
    assert_eq!((again.code(), again.stdout().as_str()), (0, "1 already gone\n"), "{}", again.stderr());
    assert!(!again.stderr().contains("gone"), "{}", again.stderr());
    assert_eq!(run(&place, &["dlq", "settle", "5", "--not-done", "--yes"]).code(), 0);
    assert_eq!(place.effectd(&["wait", "left-5"], None).code(), 0);
    assert!(!done(2) && done(5));
    let settled = acts(&place, "tool:effectd.settle_letter");
    let mut told: Vec<_> = settled.iter().map(|receipt| receipt["outputs"]["happened"].clone()).collect();
    told.sort_by_key(ToString::to_string);
    assert_eq!(told, [json!(false), json!(true)]);
    // A certain failure cannot be settled.
    let exported = run(&place, &["dlq", "export"]);
    assert_eq!(exported.stdout().lines().count(), 6);
    assert!(!exported.stdout().contains("drained"), "parameters are not told");
    drop(daemon);
}

#[test]
fn an_interrupted_requeue_reports_progress_and_keeps_the_rest() {
    let place = Place::seeded();
    let left = (0..40).map(|n| Left {
        request: write_note(seeding::action(n).as_str(), &format!("i-{n}"), "x"),
        code: "tool_busy".to_owned(),
        detail: "the printer is on fire".to_owned(),
    });
    seeding::leave(&place, left);
    let _daemon = place.serve(&[]);
    // Two a second, so that it can be interrupted midway.
    let child =
        place.command(&["dlq", "requeue", "--all", "--rate", "2", "--yes", "-o", "jsonl"]).spawn().unwrap();
    until("some are requeued", || causes(&place).iter().map(|(_, count)| count).sum::<u64>() < 39);
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let ended = Ran(child.wait_with_output().unwrap());
    assert_eq!(ended.code(), 75, "{}", ended.stderr());
    let told = ended.stdout().lines().count() as u64;
    let rest: u64 = causes(&place).iter().map(|(_, count)| count).sum();
    assert_eq!(told + rest, 40, "{}", ended.stderr());
    assert!(ended.stderr().contains(&format!("{told} requeued")), "{}", ended.stderr());
}

#[test]
fn every_switch_takes_effect_at_once_and_names_its_operator() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let outcome = |action: &str| {
        let reply = daemon.post("/v1/actions?wait=true", &write_note(action, action, "x"));
        let said: Value = serde_json::from_str(&reply.body).unwrap();
        let outcome = said["outcome"].as_str().or(said["code"].as_str());
        (outcome.unwrap().to_owned(), place.note(action).exists())
    };
    let says = |word: &str, effect: bool| (word.to_owned(), effect);
    assert_eq!(outcome("s-0"), says("executed", true));
    assert_eq!(run(&place, &["tools", "disable", TOOL]).code(), 2, "nobody said yes");
    assert_eq!(outcome("s-1"), says("executed", true));
    let off = run(&place, &["tools", "disable", TOOL, "--yes"]);
    let told = [off.stdout(), off.stderr()].map(|said| said.matches("on -> off").count());
    assert_eq!((off.code(), told), (0, [1, 0]), "{}{}", off.stdout(), off.stderr());
    assert_eq!(outcome("s-2"), says("tool_disabled", false));
    // A repeat changes nothing.
    let again = run(&place, &["tools", "disable", TOOL, "--yes", "-o", "json"]).json(0);
    assert_eq!((&again["changed"], &again["receipt_id"]), (&json!(false), &Value::Null));
    assert_eq!(run(&place, &["tools", "enable", TOOL, "--yes"]).code(), 0);
    assert_eq!(outcome("s-3"), says("executed", true));
    assert_eq!(run(&place, &["tools", "set-caps", TOOL, "nobody.has_this", "--yes"]).code(), 0);
    assert_eq!(outcome("s-4"), says("policy_denied", false));
    let shown = run(&place, &["tools", "show", TOOL]);
    assert!(shown.stdout().contains("nobody.has_this"), "{}", shown.stdout());
    std::fs::write(place.path("asked.json"), write_note("s-x", "s-x", "x").to_string()).unwrap();
    let why = run(&place, &["policy", "explain", "asked.json"]);
    assert!(why.stdout().contains("nobody.has_this"), "{}", why.stdout());
    let denied = place.effectd(&["status", "s-4", "-o", "json"], None);
    let denied: Value = serde_json::from_str(&denied.stdout()).unwrap();
    assert_eq!(denied["receipt"]["policy"]["rbac"], "deny", "{denied}");
    assert_eq!(run(&place, &["tools", "set-caps", TOOL, "--reset", "--yes"]).code(), 0);
    assert_eq!(outcome("s-5"), says("executed", true));
    assert_eq!(run(&place, &["pause", "--yes"]).code(), 0);
    assert_eq!(outcome("s-6"), says("paused", false));
    assert_eq!(run(&place, &["resume", "--yes"]).code(), 0);
    assert_eq!(outcome("s-7"), says("executed", true));
    assert_eq!(run(&place, &["breaker", "trip", TOOL, "--yes"]).code(), 0);
    assert_eq!(outcome("s-8"), says("breaker_open", false));
    assert_eq!(run(&place, &["breaker", "reset", TOOL, "--yes"]).code(), 0);
    assert_eq!(outcome("s-9"), says("executed", true));
    let acts = acts(&place, "tool:effectd.*");
    let mut deeds: Vec<_> = acts.iter().map(|receipt| receipt["tool_id"].as_str().unwrap()).collect();
    deeds.sort_unstable();
    assert_eq!(
        deeds,
        [
            "effectd.disable_tool",
            "effectd.enable_tool",
            "effectd.pause",
            "effectd.reset_breaker",
            "effectd.reset_caps",
            "effectd.resume",
            "effectd.set_caps",
            "effectd.trip_breaker",
        ]
    );
    for receipt in &acts {
        assert_eq!(receipt["status"], "ok", "{receipt}");
        assert!(receipt["principal"].as_str().unwrap().starts_with("user://"), "{receipt}");
        assert_eq!(receipt["approval"]["by"], receipt["principal"], "{receipt}");
    }
    let audit = place.effectd(&["receipts", "audit"], None);
    assert_eq!(audit.code(), 0, "{}{}", audit.stdout(), audit.stderr());
    assert_eq!(place.effectd(&["receipts", "verify"], None).code(), 0);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn an_operation_has_one_true_receipt_whatever_is_killed() {
    for (point, done, status) in [
        ("operation.begun", false, "error"),
        ("operation.done", true, "error"),
        ("operation.recorded", true, "ok"),
    ] {
        let place = Place::seeded();
        let body = json!({ "do": "pause" });
        let daemon = killed_at(&place, point, |daemon| drop(daemon.post("/v1/operations", &body)));
        until("the act is on record", || acts(&place, "tool:effectd.*").len() == 1);
        let receipt = acts(&place, "tool:effectd.*").remove(0);
        assert_eq!(receipt["status"], status, "{point}: {receipt}");
        if status == "error" {
            assert_eq!(receipt["error"]["code"], "outcome_unknown", "{receipt}");
        }
        let reply = daemon.post("/v1/actions?wait=true", &write_note("p", "p", "x"));
        let paused = reply.json(200)["outcome"] == "paused";
        assert_eq!(paused, done, "{point}");
        drop(daemon);
        // The next start repeats nothing.
        let daemon = place.serve(&[]);
        assert_eq!(acts(&place, "tool:effectd.*").len(), 1, "{point}");
        drop(daemon);
    }
}

#[test]
fn what_was_never_done_is_ended_and_not_already_done() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let said = |reply: Reply| {
        let view = reply.json(200);
        json!([view["state"], view["outcome"], view["already_done"]])
    };
    let note = |action: &str| write_note(action, "late.txt", "late");
    assert_eq!(run(&place, &["pause", "--yes"]).code(), 0);
    let paused = json!(["ended", "paused", false]);
    assert_eq!(said(daemon.post("/v1/actions?wait", &note("n-1"))), paused);
    assert_eq!(run(&place, &["resume", "--yes"]).code(), 0);
    assert_eq!(said(daemon.post("/v1/actions?wait", &note("n-1"))), paused);
    assert_eq!(said(daemon.get("/v1/actions/n-1")), paused);
    assert_eq!(said(daemon.get("/v1/actions/n-1/wait")), paused);
    assert!(!place.note("late.txt").exists());
    assert_eq!(said(daemon.post("/v1/actions?wait", &note("n-2"))), json!(["done", "executed", false]));
    assert_eq!(said(daemon.post("/v1/actions?wait", &note("n-2"))), json!(["done", "executed", true]));
    let mut dry = write_note("n-3", "dry.txt", "dry");
    dry["dry_run"] = true.into();
    for _run_and_repeat in 0..2 {
        assert_eq!(said(daemon.post("/v1/actions?wait", &dry)), json!(["done", "dry_run", false]));
    }
    daemon.post("/v1/actions?wait", &crate::results::read("n-4")).problem(404, "file_not_found");
    assert_eq!(said(daemon.get("/v1/actions/n-4")), json!(["ended", "failed", false]));
}

#[test]
fn a_preview_and_a_run_agree_about_switches() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let note = |action: &str| write_note(action, "switch.txt", "same");
    let preview = |action: &str| daemon.post("/v1/preview", &note(action)).json(200)["preview"].clone();
    daemon.post("/v1/actions?wait", &note("p-1")).json(200);
    let repeats = |preview: &Value| {
        preview["unavailable"].as_str().is_some_and(|why| why.starts_with("already done: receipt "))
    };
    assert!(repeats(&preview("p-2")), "the control: {}", preview("p-2"));
    assert_eq!(run(&place, &["pause", "--yes"]).code(), 0);
    let told = preview("p-2");
    assert!(told["unavailable"].as_str().unwrap().starts_with("effects are paused"), "{told}");
    assert_eq!(daemon.post("/v1/actions?wait", &note("p-2")).json(200)["outcome"], "paused");
    // An action that has ended is answered all the same: with its receipt, or with a refusal of other content under its id.
    let ended_is_answered = || {
        assert!(repeats(&preview("p-1")), "{}", preview("p-1"));
        assert_eq!(daemon.post("/v1/actions?wait", &note("p-1")).json(200)["already_done"], true);
        let changed = write_note("p-1", "switch.txt", "changed");
        let told = daemon.post("/v1/preview", &changed).json(200)["preview"].clone();
        assert_eq!(told["would_fail"]["code"], "action_conflict", "{told}");
        let told = daemon.post("/v1/actions?wait", &changed).problem(409, "action_conflict");
        // What to do stands in `change` alone.
        assert!(!told["detail"].to_string().contains("choose"), "{told}");
    };
    ended_is_answered();
    assert_eq!(run(&place, &["resume", "--yes"]).code(), 0);
    assert_eq!(run(&place, &["tools", "disable", TOOL, "--yes"]).code(), 0);
    assert_eq!(preview("p-3")["would_fail"]["code"], "tool_disabled");
    ended_is_answered();
    let asked = place.effectd(&["preview", "-"], Some(&note("p-3").to_string()));
    let ran = place.effectd(&["run", "-"], Some(&note("p-3").to_string()));
    assert_eq!((asked.code(), ran.code()), (3, 3), "{}", asked.stderr());
}

#[test]
fn operations_that_cannot_be_done_are_refused_and_leave_nothing() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    for wrong in [
        json!({ "do": "explode" }),
        json!(["pause"]),
        json!({ "do": "pause", "for": "ever" }),
        json!({ "do": "trip_breaker", "key": "" }),
        json!({ "do": "quarantine_artifact", "artifact_id": "../x" }),
        json!({ "do": "drop_letters", "letters": (0..501).collect::<Vec<u64>>() }),
        json!({ "do": "seek_group", "topic": "ACTION_DECISION", "group": "pipeline", "to": "start" }),
    ] {
        daemon.post("/v1/operations", &wrong).problem(400, "query_invalid");
    }
    for route in ["/v1/operations", "/v1/operations?preview=true"] {
        let wrong = json!({ "do": "disable_tool", "tool_id": "files.wirte_text" });
        let told = daemon.post(route, &wrong).problem(404, "not_found");
        assert_eq!(told["detail"], "there is no tool files.wirte_text; did you mean files.write_text?");
    }
    // A letter that never was is an error, and not one that is gone.
    for verb in ["drop_letters", "requeue_letters"] {
        daemon.post("/v1/operations", &json!({ "do": verb, "letters": [7] })).problem(404, "letter_unknown");
    }
    let requeued = run(&place, &["dlq", "requeue", "7", "--yes"]);
    assert_eq!(requeued.code(), 1, "{}{}", requeued.stdout(), requeued.stderr());
    assert!(requeued.stderr().contains("the dead letter is unknown"), "{}", requeued.stderr());
    assert!(acts(&place, "tool:effectd.*").is_empty());
}

#[test]
fn an_operators_words_about_any_tool_are_in_force() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let shown = || place.effectd(&["tools", "show", TOOL, "-o", "json"], None).json(0);
    let before = shown();
    let words = ["tools", "overlay", TOOL, "--title", "Writes", "--description", "Ask Ada first.", "--yes"];
    assert_eq!(run(&place, &words).code(), 0);
    let raised = run(&place, &["tools", "overlay", TOOL, "--tier", "R3", "--yes"]);
    assert!(raised.code() == 0 && raised.stderr().contains("tier: the author's → R3"), "{}", raised.stderr());
    let after = shown();
    // What was said before stays.
    assert_eq!(after["spec"]["description"], "Writes. Ask Ada first.", "{after}");
    assert_eq!((&before["tier"], &after["tier"]), (&json!("R1"), &json!("R3")));
    assert_ne!(before["definition_hash"], after["definition_hash"], "a question is about these words");
    daemon.post("/v1/actions?wait", &write_note("w-1", "w-1", "x")).json(202);
    let list = crate::mcp::modern(&daemon, "tools/list", json!({})).to_string();
    assert!(list.contains("Ask Ada first."), "{list}");
    // A tier is only raised, an alias stops nothing, and what effectd's own tools do is known.
    assert_eq!(run(&place, &["tools", "overlay", TOOL, "--tier", "R0", "--yes"]).code(), 0);
    assert_eq!(shown()["tier"], before["tier"]);
    let says = |tool: &str, says: Value| {
        daemon.post("/v1/operations", &json!({ "do": "overlay_tool", "tool_id": tool, "says": says }))
    };
    says(TOOL, json!({ "risk": "read" })).problem(400, "query_invalid");
    says(TOOL, json!({ "title": "a\u{202e}b" })).problem(400, "query_invalid");
    says("files.nothing", json!({ "title": "a" })).problem(400, "query_invalid");
    drop(daemon);
    let daemon = place.serve(&[]);
    assert_eq!(shown()["spec"]["description"], "Writes. Ask Ada first.", "after a restart");
    assert_eq!(run(&place, &["tools", "overlay", TOOL, "--yes"]).code(), 0);
    assert_eq!(shown(), before, "the author's words are back");
    daemon.post("/v1/actions?wait", &write_note("w-2", "w-2", "x")).json(200);
    assert_eq!(acts(&place, "tool:effectd.overlay_tool").len(), 4);
}
