//! Approvals: a held action is decided once, carried out once, and never lost.

use std::sync::Mutex;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::{Daemon, Place, Ran, Reply, Serving, Stall, until, write_note};
use crate::operator::run;

/// A place whose policy holds every note for approval.
pub fn asking() -> Place {
    let place = Place::seeded();
    let mode =
        ["policy", "set-mode", "--org", "home", "--tool", "files.write_text", "require_approval", "--yes"];
    assert_eq!(place.effectd(&mode, None).code(), 0);
    place
}

/// Asks for a note, and returns the id of its approval.
#[track_caller]
pub fn held(daemon: &Daemon, action: &str, name: &str, text: &str) -> String {
    let view = daemon.post("/v1/actions?wait", &write_note(action, name, text)).json(202);
    assert_eq!((&view["state"], &view["outcome"]), (&"held".into(), &"awaiting_approval".into()));
    view["approval"]["approval_id"].as_str().unwrap().to_owned()
}

pub fn decide(daemon: &Daemon, id: &str, verb: &str, body: &Value) -> Reply {
    daemon.post(&format!("/v1/approvals/{id}/{verb}"), body)
}

fn open(daemon: &Daemon) -> Vec<Value> {
    daemon.get("/v1/approvals").json(200)["approvals"].as_array().unwrap().clone()
}

/// How many receipts of this action the list has.
pub fn receipts_of(place: &Place, action: &str) -> usize {
    let all = place.effectd(&["receipts", "list", "--limit", "1000", "-o", "json"], None).json(0);
    let own = all.as_array().unwrap().iter();
    own.filter(|receipt| receipt["action_id"] == action).count()
}

/// The events on the topic of approvals, read without a daemon.
fn news(place: &Place) -> Vec<Value> {
    let ran = place.effectd(&["store", "export", "APPROVALS"], None);
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
    ran.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn twenty_people_approve_at_once_and_it_is_done_once() {
    let place = asking();
    let daemon = place.serve(&[]);
    let id = held(&daemon, "h-1", "h.txt", "hello");
    assert_eq!(daemon.get("/v1/actions/h-1").json(200)["state"], "held");
    let question = open(&daemon).remove(0);
    assert_eq!(question["approval_id"], id.as_str());
    assert_eq!(question["prompt"]["params"]["path"], "workspace/h.txt");
    assert!(!place.note("h.txt").exists());
    let statuses: Mutex<Vec<u16>> = Mutex::default();
    let waited = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| daemon.get("/v1/actions/h-1/wait?timeout_ms=60000").json(200));
        for _ in 0..20 {
            scope.spawn(|| {
                let reply = decide(&daemon, &id, "approve", &json!({}));
                if reply.status == 409 {
                    reply.problem(409, "already_decided");
                }
                statuses.lock().unwrap().push(reply.status);
            });
        }
        waiter.join().unwrap()
    });
    let mut statuses = statuses.into_inner().unwrap();
    statuses.sort_unstable();
    assert_eq!(statuses, [vec![200], vec![409; 19]].concat());
    assert_eq!(std::fs::read_to_string(place.note("h.txt")).unwrap(), "hello");
    let receipt = &waited["receipt"];
    let approval = &receipt["approval"];
    assert_eq!(receipt["outcome"], "executed");
    assert_eq!(receipt["decision"]["verdict"], "needs_approval");
    assert_eq!(
        (&approval["approval_id"], &approval["verdict"], &approval["authority"], &approval["digest"]),
        (&id.as_str().into(), &"once".into(), &"single_user".into(), &question["digest"])
    );
    assert!(approval["by"].as_str().unwrap().starts_with("user://"));
    // Late callers get the decision that was made.
    decide(&daemon, &id, "deny", &json!({})).problem(409, "already_decided");
    let past = daemon.get(&format!("/v1/approvals/{id}")).json(200);
    assert_eq!((&past["state"], &past["prompt"]), (&"approved".into(), &Value::Null));
    decide(&daemon, "nothing", "approve", &json!({})).problem(404, "approval_unknown");
    // An approval covers one action: another note is held again, and the same note is done already.
    held(&daemon, "h-2", "h.txt", "other");
    let same = daemon.post("/v1/actions?wait", &write_note("h-3", "h.txt", "hello")).json(200);
    assert_eq!((&same["already_done"], &same["receipt"]), (&true.into(), receipt));
    assert_eq!(receipts_of(&place, "h-1"), 1);
    assert_eq!(daemon.stop(), 0);
    let told: Vec<_> = news(&place)
        .iter()
        .map(|event| event["data"]["what"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(told, ["requested", "approved", "requested"]);
}

#[test]
fn a_person_approves_what_the_tool_gets_and_nothing_else() {
    let place = Place::seeded();
    let mode = ["policy", "set-mode", "--org", "home", "--tool", "notify.local", "require_approval", "--yes"];
    assert_eq!(place.effectd(&mode, None).code(), 0);
    let file = place.state().join("policy/policy.toml");
    let unchecked = "[safety]\nlow = { text_bytes_max = 65536, checks = [\"size\"] }";
    // The policy's own examples depend on what this changes.
    let policy = std::fs::read_to_string(&file).unwrap().replacen("[safety]", unchecked, 1);
    std::fs::write(&file, policy.split("[example_tools").next().unwrap()).unwrap();
    let daemon = place.serve(&[]);
    let mut notice = write_note("k-1", "none", "");
    notice["tool_id"] = "notify.local".into();
    notice["params"] = json!({ "title": "call +49 170 1234567", "body": "mail bob@example.org, see postgres://app:hunter2@db.example.org", "space_id": "shared:household" });
    let entry = |field: &str, kind: &str| json!({ "field": field, "kind": kind, "count": 1 });
    let (phone, email) = (entry("/title", "phone"), entry("/body", "email"));
    let preview = daemon.post("/v1/preview", &notice).json(200);
    let view = daemon.post("/v1/actions?wait", &notice).json(202);
    let id = view["approval"]["approval_id"].as_str().unwrap();
    let prompt = |id: &str| daemon.get(&format!("/v1/approvals/{id}")).json(200)["prompt"].clone();
    let asked = prompt(id);
    for said in [&preview, &view, &asked] {
        let all = said["redactions"].as_array().unwrap();
        assert!(all.len() == 2 && all.contains(&phone) && all.contains(&email), "{said}");
    }
    assert_eq!(
        (&asked["params"]["title"], &asked["params"]["body"], asked.get("hidden")),
        (&"call [redacted:phone]".into(), &"mail [redacted:email], see [redacted:secret]".into(), None)
    );
    let shown = place.effectd(&["approvals", "show", id], None).stdout();
    let second = shown.lines().nth(1).unwrap();
    assert!(
        second.starts_with("  redacted  1 ") && second.ends_with(": the tool gets placeholders"),
        "{shown}"
    );

    // From now on the tool would get the title as it was sent: that is not what the person saw.
    let rule = "\n[[redaction.rules]]\nfield = \"/title\"\nthen = \"pass\"\n";
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + rule).unwrap();
    assert_eq!(place.effectd(&["policy", "reload", "--yes"], None).code(), 0);
    let approved = place.effectd(&["approvals", "approve", id, "-o", "json"], None);
    let approved: Value = serde_json::from_str(&approved.stdout()).unwrap();
    assert_eq!(approved["action"]["state"], "held", "{approved}");
    let again = open(&daemon).remove(0);
    let again = again["approval_id"].as_str().unwrap();
    assert_ne!(again, id);
    let asked = prompt(again);
    assert_eq!((&asked["redactions"], &asked["hidden"]), (&json!([email]), &json!([phone])));
    assert_eq!(asked["params"]["title"], "call [redacted:phone]");
    let done = place.effectd(&["approvals", "approve", again, "-o", "json"], None).json(0);
    assert_eq!(done["action"]["receipt"]["redactions"], json!([email]), "{done}");
    let receipt = done["action"]["receipt"]["receipt_id"].as_str().unwrap();
    let sent = place.effectd(&["notifications", "show", "-o", "json", receipt], None).json(0);
    assert_eq!(
        (&sent["title"], &sent["body"]),
        (
            &"call +49 170 1234567".into(),
            &"mail [redacted:email], see postgres://app:hunter2@db.example.org".into()
        ),
        "{sent}"
    );
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_no_is_a_receipt_and_wakes_who_waits() {
    let place = asking();
    let daemon = place.serve(&[]);
    let request = write_note("n-1", "n.txt", "n").to_string();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| place.effectd(&["submit", "--wait", "-o", "json", "-"], Some(&request)));
        until("a person is asked", || open(&daemon).len() == 1);
        let id = open(&daemon)[0]["approval_id"].as_str().unwrap().to_owned();
        let denied = place.effectd(&["approvals", "deny", &id, "--reason", "not today", "-o", "json"], None);
        let denied = denied.json(0);
        assert_eq!(denied["approval"]["state"], "denied");
        let waited: Ran = waiter.join().unwrap();
        assert!(waited.stderr().contains("a person must decide"), "{}", waited.stderr());
        let view = waited.json(3);
        assert_eq!(view["receipt"], denied["action"]["receipt"]);
        let receipt = &view["receipt"];
        assert_eq!((&receipt["status"], &receipt["outcome"]), (&"error".into(), &"denied_human".into()));
        assert_eq!(receipt["error"]["code"], "human_denied");
        assert!(receipt["error"]["message"].as_str().unwrap().ends_with("not today"));
        assert_eq!(receipt["approval"]["reason"], "not today");
        decide(&daemon, &id, "approve", &json!({})).problem(409, "already_decided");
    });
    assert!(open(&daemon).is_empty() && !place.note("n.txt").exists());
    assert_eq!(receipts_of(&place, "n-1"), 1);
}

#[test]
fn equal_requests_wait_for_one_answer_and_get_one_receipt() {
    let place = asking();
    let daemon = place.serve(&[]);
    let id = held(&daemon, "e-1", "e.txt", "e");
    for action in ["e-2", "e-3", "e-4"] {
        assert_eq!(held(&daemon, action, "e.txt", "e"), id);
    }
    // The same action again joins the question, and another one under its id is a conflict.
    assert_eq!(held(&daemon, "e-2", "e.txt", "e"), id);
    daemon.post("/v1/actions?wait", &write_note("e-2", "e.txt", "else")).problem(409, "action_conflict");
    // The first caller withdraws; the others keep waiting.
    let gone = daemon.ask("DELETE", "/v1/actions/e-1", &[], "").json(200);
    assert_eq!(gone["outcome"], "cancelled");
    let question = open(&daemon).remove(0);
    assert_eq!(question["action_ids"], json!(["e-2", "e-3", "e-4"]));
    let decided = decide(&daemon, &id, "approve", &json!({ "digest": question["digest"] })).json(200);
    let receipt = &decided["action"]["receipt"];
    assert_eq!(receipt["outcome"], "executed");
    for action in ["e-3", "e-4"] {
        let view = daemon.get(&format!("/v1/actions/{action}/wait?timeout_ms=60000")).json(200);
        assert_eq!(&view["receipt"], receipt);
    }
    assert_eq!(daemon.get("/v1/actions/e-1").json(200)["outcome"], "cancelled");
    assert_eq!(std::fs::read_to_string(place.note("e.txt")).unwrap(), "e");
    until("the question is forgotten", || open(&daemon).is_empty());
    // When the last waiting caller withdraws, the question is gone.
    held(&daemon, "e-5", "e.txt", "f");
    daemon.ask("DELETE", "/v1/actions/e-5", &[], "").json(200);
    assert!(open(&daemon).is_empty());
}

#[test]
fn of_thirty_at_once_ten_wait_and_twenty_are_told_to_come_later() {
    let place = asking();
    let daemon = place.serve(&[]);
    let replies: Mutex<Vec<u16>> = Mutex::default();
    std::thread::scope(|scope| {
        for n in 0..30 {
            let (daemon, replies) = (&daemon, &replies);
            scope.spawn(move || {
                let request = write_note(&format!("t-{n}"), &format!("t-{n}"), "t");
                let reply = daemon.post("/v1/actions?wait", &request);
                if reply.status == 429 {
                    let problem = reply.problem(429, "pending_limit");
                    assert!(problem["receipt"].is_null() && problem["retry_after_ms"].as_u64() > Some(0));
                }
                replies.lock().unwrap().push(reply.status);
            });
        }
    });
    let mut replies = replies.into_inner().unwrap();
    replies.sort_unstable();
    assert_eq!(replies, [vec![202; 10], vec![429; 20]].concat());
    let waiting = open(&daemon);
    assert_eq!(waiting.len(), 10);
    // A decision makes room, and a refused caller may come again with the same id.
    let id = waiting[0]["approval_id"].as_str().unwrap();
    decide(&daemon, id, "deny", &json!({})).json(200);
    let refused = (0..30)
        .map(|n| format!("t-{n}"))
        .find(|action| daemon.get(&format!("/v1/actions/{action}")).status == 404);
    let refused = refused.unwrap();
    held(&daemon, &refused, &refused, "t");
    // A submitted action is deferred, and held when there is room.
    daemon.post("/v1/actions", &write_note("t-later", "t-later", "t")).json(202);
    decide(&daemon, waiting[1]["approval_id"].as_str().unwrap(), "deny", &json!({})).json(200);
    until("the one that was put off waits, too", || {
        daemon.get("/v1/actions/t-later").json(200)["state"] == "held"
    });
}

#[test]
fn what_nobody_decides_in_time_ends_by_itself() {
    let place = asking();
    let soon = ["--set", "approvals.unattended_ms_max=300", "--set", "pipeline.sweep_every_ms=50"];
    let daemon = place.serve(&soon);
    let id = held(&daemon, "x-1", "x.txt", "x");
    let told = daemon.get("/v1/actions/x-1/wait?timeout_ms=60000").problem(410, "approval_expired");
    let receipt = &told["receipt"];
    assert_eq!(
        (&receipt["outcome"], &receipt["error"]["code"]),
        (&"expired".into(), &"approval_expired".into())
    );
    assert_eq!(
        (&receipt["approval"]["by"], &receipt["approval"]["verdict"]),
        (&"clock".into(), &"expired".into())
    );
    decide(&daemon, &id, "approve", &json!({})).problem(410, "approval_expired");
    daemon.kill();
    // Also without a sweep.
    let daemon = place.serve(&["--set", "approvals.unattended_ms_max=1"]);
    let id = held(&daemon, "x-2", "x.txt", "x");
    until("a moment has passed", || decide(&daemon, &id, "approve", &json!({})).status == 410);
    assert_eq!(daemon.get("/v1/actions/x-2").json(200)["outcome"], "expired");
    held(&daemon, "x-3", "x.txt", "x");
    until("looking is enough", || daemon.get("/v1/actions/x-3").json(200)["outcome"] == "expired");
    assert!(!place.note("x.txt").exists());
    assert_eq!(
        (receipts_of(&place, "x-1"), receipts_of(&place, "x-2"), receipts_of(&place, "x-3")),
        (1, 1, 1)
    );
}

#[test]
fn approvals_expire_in_minutes_at_a_terminal_else_in_a_day() {
    let place = asking();
    let daemon = place.serve(&[]);
    let lasts = |action: &str, headers: &[(&str, &str)]| {
        let request = write_note(action, action, "t").to_string();
        let view = daemon.ask("POST", "/v1/actions?wait", headers, &request).json(202);
        let id = view["approval"]["approval_id"].as_str().unwrap().to_owned();
        let question = daemon.get(&format!("/v1/approvals/{id}")).json(200);
        let time =
            |name: &str| question[name].as_str().unwrap().parse::<effectd::contracts::Timestamp>().unwrap();
        time("expires_at").duration_since(time("asked_at")).as_secs()
    };
    assert_eq!(lasts("i-1", &[("Effectd-Interactive", "true")]), 300);
    assert_eq!(lasts("i-2", &[]), 86_400);
}

#[test]
fn a_change_since_the_question_asks_again_or_denies() {
    let place = asking();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    std::fs::write(place.note("c.txt"), "before").unwrap();
    let daemon = place.serve(&[]);
    let first = held(&daemon, "c-1", "c.txt", "after");
    std::fs::write(place.note("c.txt"), "somebody else was here").unwrap();
    let decided = decide(&daemon, &first, "approve", &json!({})).json(202);
    let second = decided["action"]["approval"]["approval_id"].as_str().unwrap();
    assert_ne!(second, first);
    assert_eq!(std::fs::read_to_string(place.note("c.txt")).unwrap(), "somebody else was here");
    let question = daemon.get(&format!("/v1/approvals/{second}")).json(200);
    assert_eq!((&question["prompt"]["round"], &question["state"]), (&2.into(), &"pending".into()));
    assert!(question["prompt"]["because"].as_str().unwrap().contains("has changed"));
    decide(&daemon, second, "approve", &json!({ "digest": "hmac-sha256:00" })).problem(409, "ask_changed");
    let decided = decide(&daemon, second, "approve", &json!({})).json(200);
    assert_eq!(decided["action"]["outcome"], "executed");
    assert_eq!(std::fs::read_to_string(place.note("c.txt")).unwrap(), "after");

    let id = held(&daemon, "c-2", "c2.txt", "x");
    let consent = [
        "policy",
        "revoke-consent",
        "--subject",
        "agent://planner@deviceA",
        "--space",
        "shared:household",
        "--purpose",
        "tool:files.write_text",
        "--yes",
    ];
    assert_eq!(place.effectd(&consent, None).code(), 0);
    // What is denied now ends at once, and nobody can approve it any more.
    daemon.get("/v1/actions/c-2/wait?timeout_ms=60000").problem(403, "policy_denied");
    decide(&daemon, &id, "approve", &json!({})).problem(409, "already_decided");
    let receipt = place.effectd(&["receipts", "show", "c-2", "-o", "json"], None).json(0);
    assert_eq!(
        (&receipt["outcome"], &receipt["error"]["gate"]),
        (&"denied_policy".into(), &"consent".into())
    );
    assert_eq!(
        (&receipt["approval"]["verdict"], &receipt["approval"]["by"]),
        (&"denied".into(), &"policy".into())
    );
    assert!(!place.note("c2.txt").exists());
    assert_eq!((receipts_of(&place, "c-1"), receipts_of(&place, "c-2")), (1, 1));
}

#[test]
fn a_question_survives_a_kill_and_is_carried_out_once() {
    let place = asking();
    let daemon = place.serve(&[]);
    let id = held(&daemon, "s-1", "s.txt", "s");
    daemon.post("/v1/actions", &write_note("s-2", "s.txt", "s")).json(202);
    until("the equal one has joined", || open(&daemon)[0]["action_ids"] == json!(["s-1", "s-2"]));
    daemon.kill();
    // It is listed and decided without a daemon, too.
    let status = place.effectd(&["status", "s-2", "-o", "json"], None).json(4);
    assert_eq!(status["approval"]["approval_id"], id.as_str());
    let listed = place.effectd(&["approvals", "list", "-o", "json"], None).json(0);
    assert_eq!(listed[0]["action_ids"], json!(["s-1", "s-2"]));
    let shown = place.effectd(&["approvals", "show", &id], None);
    assert!(shown.stdout().contains("path = workspace/s.txt"), "{}", shown.stdout());
    let approved = place.effectd(&["approvals", "approve", &id, "-o", "json"], None).json(0);
    assert_eq!(approved["approval"]["state"], "approved");
    assert_eq!(place.effectd(&["approvals", "approve", &id], None).code(), 1);
    assert!(!place.note("s.txt").exists());
    let daemon = place.serve(&[]);
    let one = daemon.get("/v1/actions/s-1/wait?timeout_ms=60000").json(200);
    let two = daemon.get("/v1/actions/s-2/wait?timeout_ms=60000").json(200);
    assert_eq!((&one["outcome"], &one["receipt"]), (&"executed".into(), &two["receipt"]));
    assert_eq!(std::fs::read_to_string(place.note("s.txt")).unwrap(), "s");
    assert_eq!(receipts_of(&place, "s-1"), 1);
}

/// Kills the daemon with `kill -9` while it is stopped at a point, and returns the next daemon.
pub fn killed_at(place: &Place, point: &'static str, work: impl FnOnce(&Daemon) + Send) -> Daemon {
    let daemon = place.serve_stalling(Stall(point), &[]);
    let name = point.split(':').next().unwrap();
    std::thread::scope(|scope| {
        let daemon = &daemon;
        scope.spawn(move || work(daemon));
        until("the daemon stands at its point", || {
            place.log().contains(&format!("\"failpoint\":\"{name}\""))
        });
        daemon.signal(Signal::SIGKILL);
    });
    assert_eq!(daemon.wait(), -1);
    place.serve(&[])
}

#[test]
fn kills_leave_one_answer_a_question_and_one_receipt_an_action() {
    let note = |action: &str| write_note(action, "k.txt", "k");
    for (point, waits) in [("held.before_park", false), ("held.after_park", true)] {
        let place = asking();
        let daemon = killed_at(&place, point, |daemon| {
            daemon.post("/v1/actions?wait", &note("k-1"));
        });
        // A caller without an answer asks again; it is one question either way.
        assert_eq!(open(&daemon).len(), usize::from(waits), "{point}");
        let id = held(&daemon, "k-1", "k.txt", "k");
        assert_eq!(open(&daemon).len(), 1, "{point}");
        decide(&daemon, &id, "approve", &json!({})).json(200);
        assert_eq!(receipts_of(&place, "k-1"), 1, "{point}");
    }
    for (point, verb, outcome) in [
        ("held.before_decide", "approve", None),
        ("held.after_decide", "approve", Some("executed")),
        ("held.before_end", "deny", Some("denied_human")),
        ("recorder.before_commit", "deny", Some("denied_human")),
        ("recorder.after_commit", "deny", Some("denied_human")),
        ("executor.after_child", "approve", Some("executed")),
        ("recorder.after_commit", "approve", Some("executed")),
    ] {
        let place = asking();
        let daemon = place.serve(&[]);
        let id = held(&daemon, "k-2", "k.txt", "k");
        daemon.kill();
        let daemon = killed_at(&place, point, |daemon| {
            decide(daemon, &id, verb, &json!({}));
        });
        match outcome {
            None => {
                assert_eq!(open(&daemon).len(), 1, "{point}");
                decide(&daemon, &id, "approve", &json!({})).json(200);
            }
            Some(outcome) => {
                let ended = daemon.get("/v1/actions/k-2/wait?timeout_ms=60000");
                let ended: Value = serde_json::from_str(&ended.body).unwrap();
                assert_eq!(ended["receipt"]["outcome"], outcome, "{point}");
                decide(&daemon, &id, "approve", &json!({})).problem(409, "already_decided");
            }
        }
        until("nothing is left over", || open(&daemon).is_empty());
        assert_eq!(place.note("k.txt").exists(), verb == "approve", "{point}");
        assert_eq!(receipts_of(&place, "k-2"), 1, "{point}");
    }
}

#[test]
fn several_are_approved_exactly_as_they_were_shown() {
    let place = asking();
    let daemon = place.serve(&[]);
    let ids = ["a", "b", "c"].map(|name| held(&daemon, name, &format!("{name}.txt"), name));
    let (a, b, c) = (ids[0].as_str(), ids[1].as_str(), ids[2].as_str());
    let listed = run(&place, &["approvals", "list", "--space", "shared:household"]).stdout();
    let row = listed.lines().find(|line| line.contains(b)).unwrap();
    assert!(row.contains("shared:household") && row.ends_with("workspace/b.txt"), "{listed}");
    // Shown first, and nothing is decided without a yes.
    let asked = run(&place, &["approvals", "approve", a, b]);
    assert_eq!(asked.code(), 2, "{}", asked.stderr());
    for told in [a, b, "workspace/a.txt", "workspace/b.txt", "shared:household", "add --yes"] {
        assert!(asked.stderr().contains(told), "{told} is missing: {}", asked.stderr());
    }
    assert!(!asked.stderr().contains(c), "{}", asked.stderr());
    // One that nobody asked about stops all, and what is for one approval is refused.
    for more in [&["--always"][..], &["--grant"], &["0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a40"]] {
        let refused = run(&place, &[&["approvals", "approve", a, b, "--yes"], more].concat());
        assert_eq!(refused.code(), 2, "{more:?}: {}", refused.stderr());
    }
    let waiting = || run(&place, &["approvals", "list", "-o", "jsonl"]).stdout().lines().count();
    assert_eq!(waiting(), 3);
    let done = run(&place, &["approvals", "approve", a, b, "--yes", "--reason", "both", "-o", "jsonl"]);
    assert_eq!(done.code(), 0, "{}{}", done.stdout(), done.stderr());
    for line in done.stdout().lines() {
        let decision: Value = serde_json::from_str(line).unwrap();
        let receipt = &decision["action"]["receipt"];
        assert_eq!(
            (&receipt["outcome"], &receipt["approval"]["reason"]),
            (&json!("executed"), &json!("both"))
        );
    }
    assert!(place.note("a.txt").exists() && place.note("b.txt").exists() && !place.note("c.txt").exists());
    // By a filter.
    let none = run(&place, &["approvals", "deny", "--tool", "files.copy", "--yes"]);
    assert_eq!((none.code(), waiting()), (1, 1), "{}", none.stderr());
    let subject = ["--subject", "agent://planner@deviceA", "--reason", "not today", "--yes"];
    let denied = run(&place, &[&["approvals", "deny"][..], &subject].concat());
    assert_eq!((denied.code(), waiting()), (0, 0), "{}", denied.stderr());
    let receipt = daemon.get("/v1/actions/c/wait?timeout_ms=60000").body;
    assert!(receipt.contains("not today"), "{receipt}");
}
