//! Answers to planners: what failed, why, and what would have to change.

use std::io::Write;

use serde_json::{Value, json};

use crate::harness::{NOBODY, Place, Ran, Serving, Stall, from_stranger, is_root, until, write_note};

#[test]
fn a_decision_is_done_once_and_its_receipt_is_found_everywhere() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let request = write_note("a-1", "a.txt", "hello");
    let done = daemon.post("/v1/actions?wait", &request).json(200);
    assert_eq!(
        (&done["state"], &done["outcome"], &done["already_done"]),
        (&"done".into(), &"executed".into(), &false.into())
    );
    assert_eq!(std::fs::read_to_string(place.note("a.txt")).unwrap(), "hello");
    let receipt = &done["receipt"];
    let principal = receipt["principal"].as_str().unwrap();
    assert!(principal.starts_with("user://"), "{principal}");

    let again = daemon.post("/v1/actions?wait=60000", &request).json(200);
    assert_eq!((&again["already_done"], &again["receipt"]), (&true.into(), receipt));
    let submitted = daemon.post("/v1/actions", &request).json(200);
    assert_eq!(&submitted["receipt"], receipt);
    assert_eq!(&daemon.get("/v1/actions/a-1").json(200)["receipt"], receipt);
    assert_eq!(&daemon.get("/v1/actions/a-1/wait").json(200)["receipt"], receipt);
    let id = receipt["receipt_id"].as_str().unwrap();
    assert_eq!(&daemon.get(&format!("/v1/receipts/{id}")).json(200), receipt);
    daemon.ask("DELETE", "/v1/actions/a-1", &[], "").problem(409, "already_finished");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn every_answer_says_what_redaction_removed() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let removed = serde_json::json!([{ "field": "/text", "kind": "phone", "count": 1 }]);
    let done = daemon.post("/v1/actions?wait", &write_note("r-1", "r.txt", "+49 170 1234567")).json(200);
    assert_eq!((&done["redactions"], &done["receipt"]["redactions"]), (&removed, &removed));
    for path in ["/v1/actions/r-1", "/v1/actions/r-1/wait"] {
        assert_eq!(daemon.get(path).json(200)["redactions"], removed);
    }
    assert_eq!(std::fs::read_to_string(place.note("r.txt")).unwrap(), "[redacted:phone]");
    let mut edit = write_note("r-2", "r.txt", "");
    edit["tool_id"] = "files.edit_text".into();
    edit["params"].as_object_mut().unwrap().remove("text");
    edit["params"]["find"] = "+49 170 7654321".into();
    edit["params"]["replace"] = "x".into();
    // What must match the file is refused instead.
    let refused = daemon.post("/v1/actions?wait", &edit).problem(403, "policy_denied");
    assert!(refused["detail"].as_str().unwrap().contains("needs /find unchanged"), "{refused}");
    assert_eq!(std::fs::read_to_string(place.note("r.txt")).unwrap(), "[redacted:phone]");
}

#[test]
fn an_id_with_an_invisible_character_is_refused() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    for (field, hidden) in [
        ("action_id", '\u{202e}'),
        ("subject_id", '\u{200b}'),
        ("space_id", '\u{2028}'),
        ("tool_id", '\u{feff}'),
        ("idempotency_key", '\u{2066}'),
    ] {
        let mut request = write_note("h-1", "h.txt", "h");
        request[field] = format!("a{hidden}b").into();
        let refused = daemon.post("/v1/actions", &request).problem(400, "malformed");
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.contains(field) && detail.contains("printable"), "{detail}");
    }
}

#[test]
fn a_submitted_decision_can_be_waited_for() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let accepted = daemon.post("/v1/actions", &write_note("id with / and ?", "b.txt", "b"));
    assert!([200, 202].contains(&accepted.status), "{accepted:?}");
    let view = daemon.get("/v1/actions/id%20with%20%2F%20and%20%3F/wait?timeout_ms=60000").json(200);
    assert_eq!(view["outcome"], "executed");
    assert_eq!(std::fs::read_to_string(place.note("b.txt")).unwrap(), "b");
}

#[test]
fn a_refusal_names_the_gate_and_what_would_have_to_change() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let refused = daemon.post("/v1/actions?wait", &from_stranger("s-1")).problem(403, "policy_denied");
    assert!(refused["gate"].is_string(), "{refused}");
    assert_eq!(refused["retryable"], false);
    assert_eq!(refused["change"]["by"], "operator");
    assert!(!refused["change"]["what"].as_str().unwrap().is_empty());
    assert_eq!(refused["receipt"]["outcome"], "denied_policy");
    // The action can be read like any other.
    let view = daemon.get("/v1/actions/s-1").json(200);
    assert_eq!((&view["outcome"], &view["receipt"]), (&"denied_policy".into(), &refused["receipt"]));
}

#[test]
fn a_refusal_has_one_status_however_it_is_asked_for() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let first = daemon.post("/v1/actions?wait", &from_stranger("r-1")).problem(403, "policy_denied");
    // The principal may not speak for the subject: a role would not help.
    let what = first["change"]["what"].as_str().unwrap();
    assert!(what.starts_with("add the subject to the principal's subjects in policy.toml:"), "{what}");
    let again = [
        daemon.post("/v1/actions?wait", &from_stranger("r-1")),
        daemon.post("/v1/actions", &from_stranger("r-1")),
        daemon.get("/v1/actions/r-1/wait"),
    ];
    for again in again {
        assert_eq!(again.problem(403, "policy_denied"), first);
    }
    // The description of the action is there, and says that it is not done.
    let view = daemon.get("/v1/actions/r-1").json(200);
    assert_eq!((&view["state"], &view["outcome"]), (&"ended".into(), &"denied_policy".into()));
    let waited = place.effectd(&["wait", "r-1"], None);
    assert!(waited.code() == 3 && waited.stdout().starts_with("denied: "), "{}", waited.stdout());
    let table = place.effectd(&["receipts", "list", "action:r-1"], None);
    assert!(table.stdout().contains("denied_policy  policy_denied"), "{}", table.stdout());
}

#[test]
fn a_failure_of_the_files_has_the_status_that_http_has_for_it() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    std::fs::write(place.note("text"), "text").unwrap();
    std::fs::write(place.note("bytes"), [0xff, 0xfe, 0x00]).unwrap();
    let ask = |action: &str, tool: &str, params: Value| {
        let mut request = write_note(action, "none", "");
        request["tool_id"] = tool.into();
        request["params"] = params;
        request["params"]["space_id"] = "shared:household".into();
        daemon.post("/v1/actions?wait", &request)
    };
    let read = |action: &str, path: &str| ask(action, "files.read_text", json!({ "path": path }));
    read("f-1", "workspace/nothing").problem(404, "file_not_found");
    daemon.get("/v1/actions/f-1/wait").problem(404, "file_not_found");
    read("f-2", "workspace/bytes").problem(422, "not_text");
    let paths = json!({ "from_path": "workspace/text", "to_path": "workspace/bytes" });
    ask("f-3", "files.move", paths).problem(409, "file_exists");
}

#[test]
fn a_whole_number_is_an_integer_however_it_is_written() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let mut request = write_note("i-1", "i.txt", "i");
    request["qos"] = json!({ "timeout_ms": 3_000.0 });
    assert!(request.to_string().contains("3000.0"));
    let done = daemon.post("/v1/actions?wait=60055.0", &request).json(200);
    // The same number is the same request.
    request["qos"] = json!({ "timeout_ms": 3_000 });
    assert_eq!(daemon.post("/v1/actions?wait=60055", &request).json(200)["receipt"], done["receipt"]);
    daemon.get("/v1/actions/i-1/wait?timeout_ms=60055.0").json(200);
    daemon.get("/v1/receipts?limit=1.0").json(200);
    for wrong in ["60055.5", "60055.", ".0", "-1", "1e3", ""] {
        daemon.get(&format!("/v1/actions/i-1/wait?timeout_ms={wrong}")).problem(400, "query_invalid");
    }
}

#[test]
fn an_action_id_stands_for_one_content() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    daemon.post("/v1/actions?wait", &write_note("c-1", "c.txt", "one")).json(200);
    let conflict = daemon.post("/v1/actions?wait", &write_note("c-1", "c.txt", "two"));
    assert_eq!(conflict.problem(409, "action_conflict")["change"]["by"], "planner");
    daemon.post("/v1/actions", &write_note("c-1", "c.txt", "two")).problem(409, "action_conflict");
    assert_eq!(std::fs::read_to_string(place.note("c.txt")).unwrap(), "one");
}

#[test]
fn key_and_trace_come_from_the_headers() {
    let place = Place::seeded();
    let daemon = place.serve(&["--set", "log.level=debug"]);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("00-{trace}-b7ad6b7169203331-01");
    let post = |action: &str, text: &str| {
        let headers = [
            ("Idempotency-Key", "\"key-1\""),
            ("traceparent", parent.as_str()),
            ("tracestate", "congo=t61"),
            ("tracestate", "rojo=1"),
        ];
        let request = write_note(action, "k.txt", text).to_string();
        daemon.ask("POST", "/v1/actions?wait", &headers, &request)
    };
    let answer = post("k-1", "same");
    let first = answer.json(200);
    assert_eq!(first["receipt"]["idempotency_key"], "key-1");
    assert_eq!(first["receipt"]["trace_id"], trace);
    // Answer, receipt and event name one span, whose parent is the planner's span.
    let context = &first["receipt"]["trace_context"];
    assert_eq!(context["parent_id"], "b7ad6b7169203331", "{first}");
    assert_eq!(context["tracestate"], "congo=t61,rojo=1", "{first}");
    let span = context["traceparent"].as_str().unwrap();
    assert!(span.starts_with(&format!("00-{trace}-")) && span != parent, "{span}");
    let receipt = daemon.get(&format!("/v1/receipts/{}", first["receipt"]["receipt_id"].as_str().unwrap()));
    for told in [&answer, &receipt, &daemon.get("/v1/actions/k-1")] {
        assert!(told.head.contains(&format!("traceparent: {span}")), "{told:?}");
        assert!(told.head.contains("tracestate: congo=t61,rojo=1"), "{told:?}");
    }
    let events = daemon.get("/v1/store/topics/ACTION_EXECUTED").json(200);
    let event = &events["events"][0];
    assert_eq!(
        (&event["traceparent"], &event["tracestate"]),
        (&context["traceparent"], &context["tracestate"]),
        "{event}"
    );
    let second = post("k-2", "same").json(200);
    assert_eq!(second["receipt"]["receipt_id"], first["receipt"]["receipt_id"]);
    assert_eq!(second["already_done"], true);
    post("k-3", "other").problem(409, "idempotency_conflict");
    assert_eq!(daemon.stop(), 0);
    // The request's own line and every line of its action carry the trace.
    let lines: Vec<Value> = place.log().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let requests = lines.iter().filter(|line| line["message"] == "request" && line["trace_id"] == trace);
    assert_eq!(requests.count(), 5, "three decisions, and two looks at the first");
    let hops = lines.iter().filter(|line| line["message"] == "hop");
    assert!(hops.clone().count() >= 5);
    assert!(hops.clone().all(|line| line["trace_id"] == trace), "{}", place.log());
}

#[test]
fn the_peer_is_known_by_its_uid_and_sees_only_its_own() {
    use std::os::unix::fs::PermissionsExt;
    if !is_root("the_peer_is_known_by_its_uid_and_sees_only_its_own") {
        return;
    }
    let place = Place::seeded();
    std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = place.path("shared.sock");
    let socket = socket.to_str().unwrap();
    let _daemon = place.serve(&["--socket", socket, "--set", "gateway.socket_mode=0660"]);
    let as_nobody = |group: u32, arguments: &[&str]| {
        let mut command = place.command_as(NOBODY, group, arguments);
        let output = command.args(["--socket", socket]).output().unwrap();
        Ran(output)
    };
    let request = write_note("u-1", "u.txt", "root's");
    std::fs::write(place.path("roots.json"), request.to_string()).unwrap();
    std::fs::write(place.path("nobodys.json"), write_note("u-2", "n.txt", "nobody's").to_string()).unwrap();
    let own =
        place.effectd(&["submit", "--wait", "-o", "json", "roots.json", "--socket", socket], None).json(0);
    assert_eq!(own["receipt"]["principal"], "user://root");
    // The id is taken, but neither its owner nor its outcome is shown.
    assert_eq!(as_nobody(0, &["status", "u-1", "-o", "json"]).json(2)["code"], "action_unknown");
    assert_eq!(as_nobody(0, &["submit", "-o", "json", "roots.json"]).json(2)["code"], "action_conflict");
    std::fs::write(place.note("n.txt"), "older").unwrap();
    let submitted = as_nobody(0, &["submit", "--wait", "-o", "json", "nobodys.json"]);
    let seen: Value = serde_json::from_str(&submitted.stdout()).unwrap();
    assert_eq!(seen["receipt"]["principal"], "user://nobody", "{seen}");
    assert_eq!(as_nobody(0, &["status", "u-2", "-o", "json"]).code(), submitted.code());
    // Who may write a file may not read its earlier content by that.
    let id = seen["receipt"]["outputs"]["artifact_ids"][0].as_str().unwrap();
    let refused = as_nobody(0, &["artifacts", "get", "u-2", id]);
    assert!(
        refused.stderr().contains("operators_only") && refused.stdout().is_empty(),
        "{}",
        refused.stderr()
    );
    let got = place.effectd(&["artifacts", "get", "u-2", id, "--socket", socket], None);
    assert_eq!(got.stdout(), "older", "{}", got.stderr());
    // A state whose id the user may not read cannot be compared with the daemon's.
    let unread = as_nobody(0, &["status", "u-2", "--state", ".effectd"]);
    assert_eq!(unread.code(), 2, "{}", unread.stderr());
    let said = "you may not read the id of .effectd; name the socket alone";
    assert!(unread.stderr().contains(said), "{}", unread.stderr());
    // Nor can another user cancel it, or change the policy.
    assert_eq!(as_nobody(0, &["cancel", "u-1", "-o", "json"]).json(2)["code"], "action_unknown");
    let policy = as_nobody(0, &["policy", "reload"]);
    assert_eq!(policy.code(), 3, "{}", policy.stderr());
    assert!(policy.stderr().contains("operators_only"), "{}", policy.stderr());
    let artifact = "0".repeat(64);
    for own in [
        &["keys", "rotate", "--yes"][..],
        &["events", "tail", "--once"],
        &["bus", "seek", "x", "--to", "end", "--yes"],
        &["tools", "disable", "files.write_text", "--yes"],
        &["pause", "--yes"],
        &["dlq", "list"],
        &["dlq", "causes"],
        &["dlq", "show", "0"],
        &["dlq", "requeue", "0"],
        &["dlq", "purge", "0"],
        &["store", "stats"],
        &["store", "export", "ACTION_EXECUTED"],
        &["store", "retain"],
        &["store", "erase", "--subject", "agent://planner@deviceA", "--yes"],
        &["breaker", "trip", "files.write_text"],
        &["artifacts", "quarantined"],
        &["artifacts", "quarantine", &artifact],
        &["artifacts", "release", &artifact],
    ] {
        let refused = as_nobody(0, own);
        assert_eq!(refused.code(), 3, "{own:?}: {}", refused.stderr());
        assert!(refused.stderr().contains("operators_only"), "{}", refused.stderr());
    }
    let listed = as_nobody(0, &["receipts", "list", "-o", "json"]).json(0);
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["action_id"], "u-2");
    // Root sees everything.
    let root = place.effectd(&["status", "u-2", "-o", "json", "--socket", socket], None);
    assert_eq!(root.code(), submitted.code());
    // A user outside the group cannot connect.
    let stranger = as_nobody(NOBODY, &["status", "u-2"]);
    assert_eq!(stranger.code(), 69, "{}", stranger.stderr());
    assert!(stranger.stderr().contains("you may not connect to"), "{}", stranger.stderr());
}

#[test]
fn what_makes_no_sense_is_told_as_such() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let request = write_note("n-1", "n.txt", "n");
    daemon.get("/v1/actions/nobody").problem(404, "action_unknown");
    daemon.get("/v1/actions/nobody/wait").problem(404, "action_unknown");
    daemon.ask("DELETE", "/v1/actions/nobody", &[], "").problem(404, "action_unknown");
    daemon.get("/v1/receipts/nothing").problem(404, "receipt_unknown");
    daemon.get("/nowhere").problem(404, "no_such_path");
    daemon.ask("PUT", "/v1/actions", &[], "").problem(405, "method_not_allowed");
    daemon.post("/v1/actions?wait=soon", &request).problem(400, "query_invalid");
    daemon.post("/v1/actions?weight=1", &request).problem(400, "query_invalid");
    daemon.ask("POST", "/v1/actions", &[], "{").problem(400, "malformed");
    daemon
        .ask("POST", "/v1/actions", &[("idempotency-key", "\"open")], &request.to_string())
        .problem(400, "header_invalid");
    let mut unknown = request.clone();
    unknown["tool_id"] = "files.explode".into();
    daemon.post("/v1/actions?wait", &unknown).problem(404, "unknown_tool");
}

#[test]
fn a_full_backlog_says_when_to_try_again() {
    let place = Place::seeded();
    // However fast the machine is: nothing ends, so the second waits behind the first.
    let daemon = place.serve_stalling(Stall("validator.begin"), &["--set", "gateway.backlog_max=1"]);
    let full = (0..200).find_map(|number| {
        let reply =
            daemon.post("/v1/actions", &write_note(&format!("f-{number}"), &format!("f-{number}"), "f"));
        (reply.status == 503).then_some(reply)
    });
    let full = full.expect("a backlog of one is reached");
    let problem = full.problem(503, "overloaded");
    let seconds = problem["retry_after_ms"].as_u64().unwrap().div_ceil(1_000);
    assert!(full.head.contains(&format!("retry-after: {seconds}\r\n")), "{full:?}");
    assert_eq!((&problem["retryable"], &problem["change"]["by"]), (&true.into(), &"time".into()));
    assert!(problem["retry_after_ms"].as_u64().unwrap() > 0);
}

#[test]
fn a_backlog_that_is_full_of_bytes_says_when_to_try_again() {
    let place = Place::seeded();
    // Three quarters of it, which one principal may have, are 1 MiB.
    let settings = ["--set", "gateway.backlog_bytes_max=1398101"];
    let daemon = place.serve_stalling(Stall("validator.begin"), &settings);
    let text = "x".repeat(300_000);
    let post = |daemon: &crate::harness::Daemon, number: u32| {
        let name = format!("w-{number}");
        daemon.post("/v1/actions", &write_note(&name, &name, &text))
    };
    for number in 0..3 {
        assert_eq!(post(&daemon, number).status, 202);
    }
    let full = post(&daemon, 3);
    let told = full.problem(503, "overloaded");
    // Nothing ends here, so there are two answers: the shortest wait until the daemon has measured, and the longest from then on.
    let after = told["retry_after_ms"].as_u64().unwrap();
    assert!([1_000, 60_000].contains(&after), "{told}");
    let header = format!("retry-after: {}", after.div_ceil(1_000));
    assert!(full.head.lines().any(|line| line == header), "{full:?}");
    assert!(told["detail"].as_str().unwrap().contains("bytes"), "{told}");
    // A small one still fits.
    let small = daemon.post("/v1/actions", &write_note("small", "small", "x"));
    assert_eq!(small.status, 202);
    daemon.kill();
    // Actions that an earlier process accepted count as well.
    let daemon = place.serve_stalling(Stall("validator.begin"), &settings);
    until("what waits is weighed", || post(&daemon, 4).status == 503);
    daemon.kill();
    let daemon = place.serve(&settings);
    until("what has ended weighs nothing", || [200, 202].contains(&post(&daemon, 5).status));
}

#[test]
fn requests_that_wait_are_bounded_by_their_bytes() {
    let place = Place::seeded();
    let daemon = place.serve_stalling(Stall("validator.begin"), &[]);
    let text = "x".repeat(1_000_000);
    // One user may have 16 MiB.
    let waiting: Vec<_> = (0..16)
        .map(|number| {
            let body = write_note(&format!("w-{number}"), "w", &text).to_string();
            let head = format!("POST /v1/actions?wait HTTP/1.1\r\nhost: x\r\ncontent-length: {}", body.len());
            let mut stream = daemon.connect();
            stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
            stream
        })
        .collect();
    let late = || daemon.post("/v1/actions?wait=0", &write_note("late", "late", &text));
    until("no room is left for another one", || late().body.contains("wait for their actions"));
    late().problem(503, "overloaded");
    assert_eq!(daemon.post("/v1/actions?wait=0", &write_note("short", "short", "x")).status, 202);
    drop(waiting);
    until("what nobody waits for takes no room", || late().status == 202);
}
