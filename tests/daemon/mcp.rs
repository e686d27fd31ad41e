//! MCP: every dialect reaches the same pipeline, and no client gets more by it than by another door.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;

use nix::sys::stat::Mode;
use serde_json::{Value, json};

use crate::approvals::{asking, decide, killed_at};
use crate::harness::{Daemon, Place, Reply, Serving, Stall, send_on, serve_with, until};
use crate::tcp::{connect, listening, reads_to_the_end, resident};

const NEW: &str = "2026-07-28";
const OLD: &str = "2025-11-25";
const TASKS: &str = "io.modelcontextprotocol/tasks";
/// What a list of tools may take of a model's context.
pub const LIST_BYTES_MAX: usize = 24_000;

/// The headers and the body of a request.
struct Sent {
    headers: Vec<(&'static str, String)>,
    body: String,
}

impl Sent {
    /// In the dialect of 2026-07-28, with these capabilities of the client.
    fn modern(method: &str, mut params: Value, capabilities: Value) -> Self {
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = NEW.into();
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
        let name =
            ["name", "uri", "taskId"].iter().find_map(|name| params[*name].as_str().map(str::to_owned));
        let mut headers = vec![("mcp-protocol-version", NEW.to_owned()), ("mcp-method", method.to_owned())];
        headers.extend(name.map(|name| ("mcp-name", name)));
        Self::of(headers, method, params)
    }

    /// In an older dialect.
    fn legacy(version: &str, method: &str, params: Value) -> Self {
        Self::of(vec![("mcp-protocol-version", version.to_owned())], method, params)
    }

    fn of(mut headers: Vec<(&'static str, String)>, method: &str, params: Value) -> Self {
        headers.push(("content-type", "application/json".to_owned()));
        headers.push(("accept", "application/json, text/event-stream".to_owned()));
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        Self { headers, body: body.to_string() }
    }

    fn headers(&self) -> Vec<(&str, &str)> {
        self.headers.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }

    fn to(&self, daemon: &Daemon) -> Reply {
        daemon.ask("POST", "/mcp", &self.headers(), &self.body)
    }

    /// Over TCP, with a token and more headers.
    fn over(&self, address: &str, token: &str, more: &[(&str, &str)]) -> Reply {
        self.over_at("/mcp", address, token, more)
    }

    fn over_at(&self, path: &str, address: &str, token: &str, more: &[(&str, &str)]) -> Reply {
        Reply::of(&reads_to_the_end(self.send(path, address, token, more)))
    }

    /// Sends it over TCP; the caller reads the reply later.
    fn send(&self, path: &str, address: &str, token: &str, more: &[(&str, &str)]) -> TcpStream {
        let mut head =
            format!("POST {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n");
        for (name, value) in self.headers().iter().chain(more) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let length = self.body.len();
        let mut stream = connect(address);
        let whole = format!("{head}connection: close\r\ncontent-length: {length}\r\n\r\n{}", self.body);
        stream.write_all(whole.as_bytes()).unwrap();
        stream
    }
}

/// The result in a reply.
#[track_caller]
fn result(reply: &Reply) -> Value {
    let message = reply.json(200);
    assert_eq!((&message["jsonrpc"], &message["id"]), (&json!("2.0"), &json!(7)), "{message}");
    assert!(message["result"].is_object(), "{message}");
    message["result"].clone()
}

/// The code of the error in a reply.
#[track_caller]
fn error(reply: &Reply, status: u16) -> i64 {
    let message = reply.json(status);
    message["error"]["code"].as_i64().unwrap_or_else(|| panic!("{message}"))
}

#[track_caller]
pub fn modern(daemon: &Daemon, method: &str, params: Value) -> Value {
    result(&Sent::modern(method, params, json!({})).to(daemon))
}

#[track_caller]
fn legacy(daemon: &Daemon, method: &str, params: Value) -> Value {
    result(&Sent::legacy(OLD, method, params).to(daemon))
}

/// The parameters of a call that writes a note.
fn note(name: &str, text: &str) -> Value {
    json!({ "name": "files_write_text", "arguments": { "path": format!("workspace/{name}"), "text": text } })
}

/// The parameters of a call that is another effect each time, under the name of one tool use.
fn append(name: &str, tool_use: &str) -> Value {
    json!({
        "name": "files_append_text", "arguments": { "path": format!("workspace/{name}"), "text": "line\n" },
        "_meta": { "claudecode/toolUseId": tool_use },
    })
}

fn names(list: &Value) -> Vec<&str> {
    list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

/// A place whose policy names a command, in this mode. The command has an effect, and then runs until its gate is closed.
pub fn slow(mode: &str) -> Place {
    let place = Place::new();
    assert_eq!(place.effectd(&["init", "--preset", "coding"], None).code(), 0);
    let command = "\n[commands.slow]\nargv = [\"sh\", \"slow.sh\"]\nwrites = [\"out\"]\ntimeout_s = 300\n";
    change_policy(&place, "modes = { ", &format!("modes = {{ \"command.run\" = \"{mode}\", "), command);
    std::fs::create_dir_all(place.note("out")).unwrap();
    std::fs::write(place.note("slow.sh"), "echo line >>out/log; cat gate").unwrap();
    nix::unistd::mkfifo(&place.note("gate"), Mode::from_bits_truncate(0o666)).unwrap();
    place
}

/// The parameters of a call of that command, under the name of one tool use.
pub fn run_slowly(tool_use: &str) -> Value {
    let arguments = json!({ "argv": ["sh", "slow.sh"] });
    json!({ "name": "command_run", "arguments": arguments, "_meta": { "claudecode/toolUseId": tool_use } })
}

/// The gate of that command, once it has had its effect.
pub fn gate(place: &Place) -> File {
    let mut gate = None;
    until("the command waits at its gate", || {
        // Without a reader this fails.
        let open = File::options().write(true).custom_flags(nix::libc::O_NONBLOCK).open(place.note("gate"));
        gate = open.ok();
        gate.is_some()
    });
    gate.unwrap()
}

/// A daemon whose log tells whose client went away.
pub fn serve_missing(place: &Place) -> Daemon {
    serve_with(place, &[], &[("EFFECTD_LOG", "info,effectd_gateway=debug")])
}

/// Waits until this many actions have lost their clients, and none of them is withdrawn for it.
#[track_caller]
pub fn until_missed(place: &Place, count: usize) {
    let missed = || {
        let log = place.log();
        let lines = log.lines().filter(|line| line.contains("the client of an action went away"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    until("the client is missed", || missed().len() >= count);
    for line in missed() {
        assert!(line.contains("\"is_withdrawn\":false"), "{line}");
    }
}

/// Replaces a part of the policy's file, and adds to its end.
fn change_policy(place: &Place, from: &str, to: &str, more: &str) {
    let file = place.state().join("policy/policy.toml");
    let policy = std::fs::read_to_string(&file).unwrap();
    let changed = policy.replacen(from, to, 1);
    assert_ne!(changed, policy, "{from}");
    std::fs::write(&file, changed + more).unwrap();
}

/// Adds principals to the policy `household`, and another organisation with a space of its own, `shared:garden`.
fn two_orgs(place: &Place, principals: &str) {
    let more = format!(
        "[orgs.office]\n\n[spaces.\"shared:garden\"]\nroot = \"./garden\"\nband = \"GREEN\"\nvisible_to = [\"role:planner\"]\n\
         org = \"office\"\n\n[[consents]]\nsubject = \"agent://planner@deviceA\"\nspace = \"shared:garden\"\n\
         tools = [\"files.append_text\"]\n\n{principals}[principals."
    );
    change_policy(place, "[principals.", &more, "");
}

/// A principal that acts for the planner, with more about it.
fn account(name: &str, more: &str) -> String {
    format!("[principals.\"account://{name}\"]\nsubjects = [\"agent://planner@deviceA\"]\n{more}\n")
}

fn token_of_session(daemon: &Daemon, space: &str) -> String {
    let body = json!({ "space_id": space, "subject_id": "agent://planner@deviceA", "title": "t" });
    daemon.post("/v1/sessions", &body).json(200)["token"].as_str().unwrap().to_owned()
}

fn token_of_account(daemon: &Daemon, org: &str, name: &str) -> String {
    let body = json!({ "kind": "user", "org": org, "name": name });
    daemon.post("/v1/tokens", &body).json(200)["token"].as_str().unwrap().to_owned()
}

/// The receipts of tools, without those of operations on effectd itself.
pub fn receipts(daemon: &Daemon) -> Vec<Value> {
    let list = daemon.get("/v1/receipts?limit=500").json(200);
    let of_tool = |receipt: &&Value| !receipt["tool_id"].as_str().unwrap().starts_with("effectd.");
    list["receipts"].as_array().unwrap().iter().filter(of_tool).cloned().collect()
}

fn text(place: &Place, name: &str) -> String {
    std::fs::read_to_string(place.note(name)).unwrap_or_default()
}

#[test]
fn tools_are_listed_for_a_model_and_for_this_caller() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let reply = Sent::modern("tools/list", json!({}), json!({})).to(&daemon);
    assert!(reply.body.len() <= LIST_BYTES_MAX, "the list has {} bytes", reply.body.len());
    let list = result(&reply);
    assert_eq!((&list["resultType"], &list["cacheScope"]), (&json!("complete"), &json!("private")));
    assert!(list["ttlMs"].as_u64().unwrap() > 0);
    let all = names(&list);
    assert!(all.is_sorted(), "{all:?}");
    for name in ["files_read_text", "files_write_text", "effectd_wait", "effectd_undo", "effectd_preview"] {
        assert!(all.contains(&name), "{name}: {all:?}");
    }
    // Denied by the mode, by the capabilities, and by nobody's consent.
    for name in ["files_delete", "command_run"] {
        assert!(!all.contains(&name), "{name}: {all:?}");
    }
    let again = Sent::modern("tools/list", json!({}), json!({})).to(&daemon);
    assert_eq!(again.body, reply.body);
    let of = |name: &str| {
        let mut tools = list["tools"].as_array().unwrap().iter();
        tools.find(|tool| tool["name"] == name).unwrap().clone()
    };
    for tool in list["tools"].as_array().unwrap() {
        let name = tool["name"].as_str().unwrap();
        assert!(name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)));
        let fields = tool["inputSchema"]["properties"].as_object().unwrap();
        assert!(!fields.contains_key("space_id"), "{tool}");
        assert!(tool["description"].as_str().unwrap().len() > 60, "{tool}");
        assert!(tool["description"].as_str().unwrap().contains("Use it"), "when to use {name}?");
    }
    let write = of("files_write_text");
    assert_eq!(
        (&write["_meta"]["effectd/mode"], &write["_meta"]["effectd/tool"]),
        (&json!("allow"), &json!("files.write_text"))
    );
    assert!(write["description"].as_str().unwrap().contains("Example: {\"path\":"), "{write}");
    // An older client gets the same tools, without fields that it does not know.
    let older = legacy(&daemon, "tools/list", json!({}));
    assert_eq!((&older["tools"], older.get("ttlMs"), older.get("resultType")), (&list["tools"], None, None));
    let mode = ["policy", "set-mode", "--org", "home", "--tool", "files.copy", "deny", "--yes"];
    assert_eq!(place.effectd(&mode, None).code(), 0);
    assert!(!names(&modern(&daemon, "tools/list", json!({}))).contains(&"files_copy"));
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn annotations_follow_from_the_risk() {
    let place = Place::new();
    assert_eq!(place.effectd(&["init", "--preset", "coding"], None).code(), 0);
    let daemon = place.serve(&[]);
    let list = modern(&daemon, "tools/list", json!({}));
    // Whether it only reads, destroys, may be repeated, and reaches the world.
    let names = ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"];
    for (name, tier, words) in [
        ("files_read_text", "R0", [true, false, true, false]),
        ("files_write_text", "R1", [false, false, true, false]),
        ("files_append_text", "R1", [false, false, false, false]),
        ("command_run", "R3", [false, true, false, false]),
        ("files_delete", "R4", [false, true, false, false]),
    ] {
        let tool = list["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == name).unwrap();
        assert_eq!(tool["_meta"]["effectd/risk"], tier, "{tool}");
        assert_eq!(names.map(|hint| &tool["annotations"][hint]), words.map(Value::from).each_ref(), "{tool}");
    }
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn every_dialect_begins_in_its_own_way() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    for version in ["2025-06-18", OLD] {
        let params = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
        let reply = Sent::of(Vec::new(), "initialize", params).to(&daemon);
        assert!(!reply.head.contains("mcp-session-id"), "no session is kept: {reply:?}");
        let begun = result(&reply);
        assert_eq!(
            (&begun["protocolVersion"], &begun["serverInfo"]["name"]),
            (&json!(version), &json!("effectd"))
        );
        assert_eq!(begun["capabilities"], json!({ "tools": {}, "resources": {} }));
        assert_eq!(result(&Sent::legacy(version, "ping", json!({})).to(&daemon)), json!({}));
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string();
        let headers = [("content-type", "application/json"), ("mcp-protocol-version", version)];
        let told = daemon.ask("POST", "/mcp", &headers, &ready);
        assert_eq!((told.status, told.body.as_str()), (202, ""), "{told:?}");
    }
    let found = modern(&daemon, "server/discover", json!({}));
    assert_eq!(found["supportedVersions"], json!(["2025-06-18", OLD, NEW]));
    assert_eq!(found["capabilities"]["tools"]["listChanged"], true);
    assert_eq!(found["capabilities"]["extensions"], json!({ TASKS: {} }));
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_call_is_an_action_with_one_receipt() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    for version in ["2025-06-18", OLD, NEW] {
        let params = note(version, "hello");
        let sent = match version {
            NEW => Sent::modern("tools/call", params, json!({})),
            older => Sent::legacy(older, "tools/call", params),
        };
        let done = result(&sent.to(&daemon));
        assert_eq!(
            (&done["isError"], &done["structuredContent"]["bytes_written"]),
            (&json!(false), &json!(5))
        );
        let said: Value = serde_json::from_str(done["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(said, done["structuredContent"]);
        assert_eq!(text(&place, version), "hello");
        let receipt = done["_meta"]["effectd/receiptId"].as_str().unwrap();
        assert_eq!(done["structuredContent"]["_receipt"], receipt);
        let receipt = daemon.get(&format!("/v1/receipts/{receipt}")).json(200);
        assert_eq!(
            (&receipt["tool_id"], &receipt["space_id"], &receipt["subject_id"]),
            (&json!("files.write_text"), &json!("shared:household"), &json!("agent://planner@deviceA"))
        );
    }
    assert_eq!(receipts(&daemon).len(), 3);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn what_is_refused_is_a_result_that_says_what_to_change() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let call = |name: &str, arguments: Value| {
        let done = modern(&daemon, "tools/call", json!({ "name": name, "arguments": arguments }));
        assert_eq!(done["isError"], true, "{done}");
        assert!(done["content"][0]["text"].as_str().unwrap().contains("What has to change"), "{done}");
        done
    };
    let invalid = call("files_write_text", json!({ "path": "workspace/x" }));
    assert_eq!(invalid["structuredContent"]["code"], "params_invalid");
    let denied = call("files_delete", json!({ "path": "workspace/x" }));
    assert_eq!(denied["structuredContent"]["code"], "policy_denied", "{denied}");
    assert!(denied["_meta"]["effectd/receiptId"].is_string(), "{denied}");
    let failed = call("files_read_text", json!({ "path": "workspace/nothing" }));
    assert_eq!(failed["structuredContent"]["code"], "file_not_found");
    let wait = json!({ "name": "effectd_wait", "arguments": { "action_id": "nothing" } });
    let lost = modern(&daemon, "tools/call", wait);
    assert_eq!(
        (&lost["isError"], &lost["structuredContent"]["code"]),
        (&json!(true), &json!("action_unknown"))
    );
    assert!(!lost.to_string().contains("again"), "{lost}");
    let unknown = Sent::modern("tools/call", json!({ "name": "files_nothing" }), json!({})).to(&daemon);
    assert_eq!(error(&unknown, 200), -32602);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn an_answer_that_is_lost_after_the_effect_is_one_effect() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let sent = Sent::modern("tools/call", append("log", "toolu_1"), json!({}));
    // The client hears nothing: its connection is cut after the effect.
    let cut = daemon.send("POST", "/mcp", &sent.headers(), &sent.body);
    until("the effect is on record", || receipts(&daemon).len() == 1);
    drop(cut);
    let again = result(&sent.to(&daemon));
    assert_eq!(
        (&again["_meta"]["effectd/alreadyDone"], text(&place, "log")),
        (&json!(true), "line\n".to_owned())
    );
    // The daemon dies while it answers.
    let sent = Sent::modern("tools/call", append("log", "toolu_2"), json!({}));
    let cut = daemon.send("POST", "/mcp", &sent.headers(), &sent.body);
    until("the second effect happens", || text(&place, "log") == "line\nline\n");
    daemon.kill();
    drop(cut);
    let daemon = place.serve(&[]);
    assert_eq!(result(&sent.to(&daemon))["isError"], false);
    assert_eq!(text(&place, "log"), "line\nline\n");
    // The same key with other arguments is a conflict, and our own key comes before the tool use.
    let mut other = append("other", "toolu_2");
    let refused = modern(&daemon, "tools/call", other.clone());
    assert_eq!(refused["structuredContent"]["code"], "action_conflict", "{refused}");
    other["_meta"]["effectd/idempotencyKey"] = "mine".into();
    assert_eq!(modern(&daemon, "tools/call", other)["isError"], false);
    assert_eq!(receipts(&daemon).len(), 3);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_header_or_the_content_is_a_key_as_well() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let arguments = json!({ "path": "workspace/log", "text": "line\n" });
    let appends = json!({ "name": "files_append_text", "arguments": arguments });
    let mut keyed = Sent::modern("tools/call", appends, json!({}));
    keyed.headers.push(("idempotency-key", "\"once\"".to_owned()));
    // This tool's key follows from its path and text.
    let content = Sent::modern("tools/call", note("note", "n"), json!({}));
    for (nth, sent) in [keyed, content].iter().enumerate() {
        let first = result(&sent.to(&daemon))["_meta"].clone();
        let again = result(&sent.to(&daemon))["_meta"].clone();
        assert_eq!(again["effectd/receiptId"], first["effectd/receiptId"], "{again}");
        assert_eq!((&again["effectd/alreadyDone"], receipts(&daemon).len()), (&json!(true), nth + 1));
    }
    assert_eq!(text(&place, "log") + &text(&place, "note"), "line\nn");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_call_that_is_killed_and_repeated_is_one_effect() {
    let (own, tool_use) = ("effectd/idempotencyKey", "claudecode/toolUseId");
    // Before the effect, after it, while it is recorded, and while it is answered.
    for (point, key) in [
        ("executor.before_child", own),
        ("executor.after_child", tool_use),
        ("recorder.before_commit", own),
        ("recorder.after_commit", tool_use),
    ] {
        let place = Place::seeded();
        let mut params = append("log", "");
        params["_meta"] = json!({ key: "once" });
        let sent = Sent::modern("tools/call", params, json!({}));
        let daemon = killed_at(&place, point, |daemon| {
            sent.to(daemon);
        });
        let done = result(&sent.to(&daemon));
        assert_eq!(
            (&done["isError"], text(&place, "log").as_str()),
            (&json!(false), "line\n"),
            "{point}: {done}"
        );
        assert_eq!(receipts(&daemon).len(), 1, "{point}");
        assert_eq!(result(&sent.to(&daemon))["_meta"]["effectd/alreadyDone"], true, "{point}");
        assert_eq!(daemon.stop(), 0);
    }
}

#[test]
fn a_call_that_is_killed_before_its_question_asks_once() {
    for point in ["held.before_park", "held.after_park"] {
        let place = asking();
        let mut params = note("asked", "a");
        params["_meta"] = json!({ "claudecode/toolUseId": "toolu_1" });
        let sent = Sent::modern("tools/call", params, json!({}));
        let daemon = killed_at(&place, point, |daemon| {
            sent.to(daemon);
        });
        let held = result(&sent.to(&daemon));
        assert_eq!(held["resultType"], "input_required", "{point}: {held}");
        let questions = daemon.get("/v1/approvals").json(200)["approvals"].clone();
        assert_eq!(questions.as_array().unwrap().len(), 1, "{point}: {questions}");
        let approval = questions[0]["approval_id"].as_str().unwrap();
        assert_eq!(held["_meta"]["effectd/waiting"]["approval_id"], approval, "{point}");
        assert_eq!(decide(&daemon, approval, "approve", &json!({})).status, 200);
        until("the call has ended", || result(&sent.to(&daemon))["isError"] == false);
        assert_eq!((text(&place, "asked").as_str(), receipts(&daemon).len()), ("a", 1), "{point}");
        assert_eq!(daemon.stop(), 0);
    }
}

/// A held call in the three forms that clients understand: the approval, and the request that asks for the end.
fn held(daemon: &Daemon) -> [(String, Sent); 3] {
    let capable = json!({ "extensions": { TASKS: {} } });
    let approval = |about: &Value| {
        assert_eq!(about["status"], "awaiting_approval", "{about}");
        about["approval_id"].as_str().unwrap().to_owned()
    };
    let task = result(&Sent::modern("tools/call", note("task", "t"), capable.clone()).to(daemon));
    assert_eq!((&task["resultType"], &task["status"]), (&json!("task"), &json!("working")), "{task}");
    let get = Sent::modern("tasks/get", json!({ "taskId": task["taskId"] }), capable);
    let round = modern(daemon, "tools/call", note("round", "r"));
    assert_eq!(
        (&round["resultType"], round.get("inputRequests")),
        (&json!("input_required"), None),
        "{round}"
    );
    let mut retry = note("round", "r");
    retry["requestState"] = round["requestState"].clone();
    let plain = legacy(daemon, "tools/call", note("plain", "p"));
    assert_eq!(plain["isError"], false, "{plain}");
    let about = &plain["structuredContent"];
    assert!(about["message"].as_str().unwrap().contains("effectd_wait"), "{about}");
    let wait = json!({ "name": "effectd_wait", "arguments": { "action_id": about["action_id"] } });
    [
        (approval(&task["_meta"]["effectd/waiting"]), get),
        (approval(&round["_meta"]["effectd/waiting"]), Sent::modern("tools/call", retry, json!({}))),
        (approval(about), Sent::legacy(OLD, "tools/call", wait)),
    ]
}

#[test]
fn a_held_call_is_found_again_in_each_form_after_a_kill() {
    let place = asking();
    let daemon = place.serve(&[]);
    let held = held(&daemon);
    daemon.kill();
    let daemon = place.serve(&[]);
    let task = result(&held[0].1.to(&daemon));
    assert_eq!((&task["status"], &task["resultType"]), (&json!("working"), &json!("complete")), "{task}");
    for (approval, _) in &held {
        assert_eq!(decide(&daemon, approval, "approve", &json!({})).status, 200);
    }
    until("the task has ended", || result(&held[0].1.to(&daemon))["status"] == "completed");
    let task = result(&held[0].1.to(&daemon));
    let ended = [task["result"].clone(), result(&held[1].1.to(&daemon)), result(&held[2].1.to(&daemon))];
    for (done, name) in ended.iter().zip(["task", "round", "plain"]) {
        assert_eq!(
            (&done["isError"], &done["structuredContent"]["bytes_written"]),
            (&json!(false), &json!(1))
        );
        assert_eq!(text(&place, name), name[..1], "{done}");
    }
    assert_eq!(receipts(&daemon).iter().filter(|receipt| receipt["outcome"] == "executed").count(), 3);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn nothing_that_the_client_answers_approves_its_call() {
    let place = asking();
    let daemon = place.serve(&[]);
    let [(_, get), (approval, retry), _] = held(&daemon);
    let task: Value = serde_json::from_str(&get.body).unwrap();
    let answers = json!({ "approve": { "action": "accept", "content": { "approve": true } } });
    let update = json!({ "taskId": task["params"]["taskId"], "inputResponses": answers });
    let capable = json!({ "extensions": { TASKS: {} } });
    result(&Sent::modern("tasks/update", update, capable).to(&daemon));
    assert_eq!(result(&get.to(&daemon))["status"], "working");
    // The same with the retry, which waits for a person.
    let mut body: Value = serde_json::from_str(&retry.body).unwrap();
    body["params"]["inputResponses"] = answers;
    let denied = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| daemon.ask("POST", "/mcp", &retry.headers(), &body.to_string()));
        until("the question is shown", || daemon.get(&format!("/v1/approvals/{approval}")).status == 200);
        assert_eq!(text(&place, "round") + &text(&place, "task"), "");
        assert_eq!(decide(&daemon, &approval, "deny", &json!({ "reason": "no" })).status, 200);
        result(&waiter.join().unwrap())
    });
    assert_eq!(
        (&denied["isError"], &denied["structuredContent"]["code"]),
        (&json!(true), &json!("human_denied"))
    );
    assert!(!place.note("round").exists() && !place.note("task").exists());
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_request_state_is_for_its_own_call_only() {
    let place = asking();
    let daemon = place.serve(&[]);
    let state = modern(&daemon, "tools/call", note("one", "1"))["requestState"].clone();
    let retried = |mut params: Value, state: Value| {
        params["requestState"] = state;
        error(&Sent::modern("tools/call", params, json!({})).to(&daemon), 200)
    };
    assert_eq!(retried(note("two", "1"), state.clone()), -32602);
    let mut changed = state.as_str().unwrap().to_owned();
    let last = if changed.pop() == Some('0') { '1' } else { '0' };
    changed.push(last);
    for wrong in [changed.as_str(), "", "00", "not hex"] {
        assert_eq!(retried(note("one", "1"), wrong.into()), -32602, "{wrong}");
    }
    assert!(receipts(&daemon).is_empty());
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_cancelled_task_is_withdrawn_and_needs_its_capability() {
    let place = asking();
    let daemon = place.serve(&[]);
    let [(approval, get), ..] = held(&daemon);
    let task: Value = serde_json::from_str(&get.body).unwrap();
    let (named, capable) =
        (json!({ "taskId": task["params"]["taskId"] }), json!({ "extensions": { TASKS: {} } }));
    let unable = Sent::modern("tasks/cancel", named.clone(), json!({})).to(&daemon);
    assert_eq!(error(&unable, 400), -32021);
    result(&Sent::modern("tasks/cancel", named, capable.clone()).to(&daemon));
    assert_eq!(result(&get.to(&daemon))["status"], "cancelled");
    assert_ne!(decide(&daemon, &approval, "approve", &json!({})).status, 200);
    let nobodys = Sent::modern("tasks/get", json!({ "taskId": "nobodys" }), capable);
    assert_eq!(error(&nobodys.to(&daemon), 200), -32602);
    assert!(!place.note("task").exists());
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_client_that_goes_away_withdraws_what_has_not_begun() {
    let place = Place::seeded();
    let daemon = place.serve_stalling(Stall("idempotency.before_claim"), &[]);
    let sent = Sent::modern("tools/call", append("log", "toolu_1"), json!({}));
    let cut = daemon.send("POST", "/mcp", &sent.headers(), &sent.body);
    until("the action is on its way", || place.log().contains("\"stage\":\"idempotency\""));
    drop(cut);
    until("the action is withdrawn", || {
        receipts(&daemon).iter().any(|receipt| receipt["outcome"] == "cancelled")
    });
    daemon.kill();
    assert_eq!(text(&place, "log"), "");
    // The client comes back for the same tool use.
    let daemon = place.serve(&[]);
    assert_eq!(result(&sent.to(&daemon))["isError"], false);
    assert_eq!(text(&place, "log"), "line\n");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn who_went_away_while_a_tool_ran_finds_its_one_effect() {
    let place = slow("allow");
    let daemon = serve_missing(&place);
    let sent = Sent::modern("tools/call", run_slowly("toolu_1"), json!({}));
    let cut = daemon.send("POST", "/mcp", &sent.headers(), &sent.body);
    let gate = gate(&place);
    drop(cut);
    until_missed(&place, 1);
    // It comes back while the tool still runs, and once more after it.
    let retry = daemon.send("POST", "/mcp", &sent.headers(), &sent.body);
    drop(gate);
    let done = [result(&Reply::read(retry)), result(&sent.to(&daemon))];
    let receipts = receipts(&daemon);
    assert_eq!((receipts.len(), &receipts[0]["outcome"]), (1, &json!("executed")), "{receipts:?}");
    for done in &done {
        assert_eq!(
            (&done["isError"], &done["structuredContent"]["exit_code"]),
            (&json!(false), &json!(0)),
            "{done}"
        );
        assert_eq!(done["_meta"]["effectd/receiptId"], receipts[0]["receipt_id"]);
    }
    assert_eq!(done[1]["_meta"]["effectd/alreadyDone"], true);
    assert_eq!(text(&place, "out/log"), "line\n");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_call_that_has_begun_is_not_withdrawn() {
    let place = slow("require_approval");
    let daemon = place.serve(&[]);
    let capable = json!({ "extensions": { TASKS: {} } });
    let task = result(&Sent::modern("tools/call", run_slowly("toolu_1"), capable.clone()).to(&daemon));
    let named = json!({ "taskId": task["taskId"] });
    let ask = |method| result(&Sent::modern(method, named.clone(), capable.clone()).to(&daemon));
    let notify = || {
        let headers = [("content-type", "application/json"), ("mcp-protocol-version", OLD)];
        let cancelled =
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 7 } });
        assert_eq!(daemon.ask("POST", "/mcp", &headers, &cancelled.to_string()).status, 202);
    };
    // An id alone does not say whose request it is: a client that no longer waits closes its connection.
    notify();
    assert_eq!(ask("tasks/get")["status"], "working");
    let approval = task["_meta"]["effectd/waiting"]["approval_id"].as_str().unwrap();
    assert_eq!(decide(&daemon, approval, "approve?wait_ms=0", &json!({})).status, 202);
    let gate = gate(&place);
    ask("tasks/cancel");
    notify();
    assert_eq!(ask("tasks/get")["status"], "working");
    drop(gate);
    until("the call has ended", || ask("tasks/get")["status"] != "working");
    // Nor is one that has ended.
    ask("tasks/cancel");
    let ended = ask("tasks/get");
    assert_eq!((&ended["status"], &ended["result"]["isError"]), (&json!("completed"), &json!(false)));
    let receipts = receipts(&daemon);
    assert_eq!((receipts.len(), &receipts[0]["outcome"]), (1, &json!("executed")), "{receipts:?}");
    assert_eq!(text(&place, "out/log"), "line\n");
    assert_eq!(daemon.stop(), 0);
}

/// Where a batch ended, its task says what has become of each call.
#[test]
fn the_task_of_a_batch_that_failed_has_its_markers() {
    let place = asking();
    let daemon = place.serve(&[]);
    let capable = json!({ "extensions": { TASKS: {} } });
    let missing = json!({ "path": "workspace/none", "find": "a", "replace": "b" });
    let calls = [
        json!({ "tool": "files_write_text", "arguments": { "path": "workspace/first", "text": "t" } }),
        json!({ "tool": "files_edit_text", "arguments": missing }),
    ];
    let call = json!({ "name": "effectd_batch", "arguments": { "calls": calls, "mode": "ordered" } });
    let task = result(&Sent::modern("tools/call", call, capable.clone()).to(&daemon));
    let approval = task["_meta"]["effectd/waiting"]["approval_id"].as_str().unwrap();
    assert_eq!(decide(&daemon, approval, "approve", &json!({})).status, 200);
    let get = Sent::modern("tasks/get", json!({ "taskId": task["taskId"] }), capable);
    until("it has ended", || result(&get.to(&daemon))["status"] != "working");
    let ended = result(&get.to(&daemon))["result"].clone();
    assert_eq!(ended["isError"], true, "{ended}");
    let items = ended["structuredContent"]["items"].as_array().unwrap();
    let markers: Vec<_> = items.iter().map(|item| item["marker"].as_str().unwrap()).collect();
    assert_eq!(markers, ["committed", "rolled_back"], "{ended}");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_client_that_goes_away_leaves_the_question_to_the_person() {
    let place = asking();
    let daemon = place.serve(&[]);
    let [_, (approval, retry), _] = held(&daemon);
    // A proxy loses patience while the client waits.
    drop(daemon.send("POST", "/mcp", &retry.headers(), &retry.body));
    assert_eq!(decide(&daemon, &approval, "approve", &json!({})).status, 200);
    assert_eq!(result(&retry.to(&daemon))["isError"], false);
    assert_eq!(text(&place, "round"), "r");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_question_that_its_client_has_not_heard_of_stays_open() {
    let place = asking();
    let armed = [("EFFECTD_FAILPOINT", "held.after_park:1"), ("EFFECTD_FAILPOINT_FAULT", "stall")];
    let log = [("EFFECTD_LOG", "info,effectd_gateway=debug")];
    let daemon = serve_with(&place, &[], &[&armed[..], &log].concat());
    let sent = Sent::modern("tools/call", note("gone", "g"), json!({}));
    let questions = |daemon: &Daemon| daemon.get("/v1/approvals").json(200)["approvals"].clone();
    let cut = daemon.send("POST", "/mcp", &sent.headers(), &sent.body);
    until("the question is on disk", || questions(&daemon)[0].is_object());
    drop(cut);
    until("the client is missed", || place.log().contains("the client of an action went away"));
    daemon.kill();
    let daemon = place.serve(&[]);
    let question = questions(&daemon)[0]["approval_id"].clone();
    assert_eq!(decide(&daemon, question.as_str().unwrap(), "approve", &json!({})).status, 200);
    until("the note is written", || text(&place, "gone") == "g");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn protocol_faults_are_errors_and_nothing_breaks() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let json = [("content-type", "application/json")];
    let deep = format!("{}1{}", "[".repeat(500), "]".repeat(500));
    let deep = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"a":{deep}}}}}"#);
    let twice = r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}"#;
    let long_id = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "x".repeat(257));
    let long_meta = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping", "params": { "_meta": { "x": "x".repeat(32_768) } } });
    let long_meta = long_meta.to_string();
    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        (deep.as_str(), -32700),
        (twice, -32700),
        ("[]", -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600),
        (r#"{"id":1,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32600),
        (long_id.as_str(), -32600),
        (long_meta.as_str(), -32602),
        (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":1}}"#, -32602),
    ] {
        assert_eq!(error(&daemon.ask("POST", "/mcp", &json, body), 400), code, "{body:.60}");
    }
    let huge = "x".repeat(16 * 1_048_576);
    assert_eq!(error(&daemon.ask("POST", "/mcp", &json, &huge), 413), -32600);
    assert_eq!(error(&daemon.ask("POST", "/mcp", &[("content-type", "text/plain")], "{}"), 415), -32600);
    assert_eq!(daemon.get("/mcp").status, 405);
    assert_eq!(daemon.ask("DELETE", "/mcp", &[], "").status, 405);
    // Unknown methods, and those of the other dialect.
    assert_eq!(error(&Sent::modern("no/such", json!({}), json!({})).to(&daemon), 404), -32601);
    assert_eq!(error(&Sent::modern("ping", json!({}), json!({})).to(&daemon), 404), -32601);
    for method in ["no/such", "prompts/list", "tasks/get", "subscriptions/listen", "server/discover "] {
        assert_eq!(error(&Sent::legacy(OLD, method, json!({})).to(&daemon), 200), -32601, "{method}");
    }
    // Headers that say something else than the body.
    let mut wrong = Sent::modern("tools/call", note("x", "x"), json!({}));
    for (header, code) in [("mcp-protocol-version", -32020), ("mcp-method", -32020), ("mcp-name", -32020)] {
        let mut sent = Sent { headers: wrong.headers.clone(), body: wrong.body.clone() };
        sent.headers.retain(|(name, _)| *name != header);
        assert_eq!(error(&sent.to(&daemon), 400), code, "without {header}");
        sent.headers.push((header, "other".to_owned()));
        assert_eq!(error(&sent.to(&daemon), 400), code, "another {header}");
    }
    wrong.body = wrong.body.replace(NEW, "2099-01-01");
    wrong.headers[0].1 = "2099-01-01".to_owned();
    let unsupported = wrong.to(&daemon);
    assert_eq!(error(&unsupported, 400), -32022);
    assert_eq!(unsupported.json(400)["error"]["data"]["supported"], json!(["2025-06-18", OLD, NEW]));
    assert!(receipts(&daemon).is_empty() && !place.note("x").exists());
    assert_eq!(modern(&daemon, "tools/call", note("x", "x"))["isError"], false);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_session_acts_over_tcp_and_sees_only_its_own() {
    let place = Place::seeded();
    let (daemon, address) = listening(&place, &[]);
    let session = || {
        let create =
            ["sessions", "create", "--space", "shared:household", "--title", "t", "--yes", "-o", "json"];
        let created = place.effectd(&[&create[..], &["--subject", "agent://planner@deviceA"]].concat(), None);
        let created = created.json(0);
        (created["id"].as_str().unwrap().to_owned(), created["token"].as_str().unwrap().to_owned())
    };
    let ((id, token), (_, other)) = (session(), session());
    let sent = Sent::modern("tools/call", note("tcp", "over"), json!({}));
    let done = result(&sent.over(&address, &token, &[]));
    assert_eq!((&done["isError"], text(&place, "tcp").as_str()), (&json!(false), "over"), "{done}");
    let receipt = done["_meta"]["effectd/receiptId"].as_str().unwrap();
    assert_eq!(daemon.get(&format!("/v1/receipts/{receipt}")).json(200)["session_id"], id.as_str());
    let uri = format!("effectd://receipts/{receipt}");
    let read = Sent::modern("resources/read", json!({ "uri": uri }), json!({}));
    let contents = result(&read.over(&address, &token, &[]))["contents"][0]["text"].clone();
    let shown: Value = serde_json::from_str(contents.as_str().unwrap()).unwrap();
    assert_eq!(shown["receipt_id"], receipt);
    // What is another session's is not there; nor is it for a user of the machine, who is no operator at this door.
    assert_eq!(error(&read.over(&address, &other, &[]), 200), -32602);
    assert_eq!(error(&read.to(&daemon), 200), -32602);
    let wait =
        json!({ "name": "effectd_wait", "arguments": { "action_id": done["_meta"]["effectd/actionId"] } });
    let unknown = result(&Sent::modern("tools/call", wait, json!({})).over(&address, &other, &[]));
    assert_eq!(unknown["structuredContent"]["code"], "action_unknown", "{unknown}");
    let list = Sent::modern("resources/list", json!({}), json!({}));
    let listed =
        |token: &str| result(&list.over(&address, token, &[]))["resources"].as_array().unwrap().clone();
    assert!(listed(&token).iter().any(|resource| resource["uri"] == uri.as_str()));
    assert!(!listed(&other).iter().any(|resource| resource["uri"] == uri.as_str()));
    // As at `/v1/preview`, a sandbox asks nothing beforehand.
    let tools = result(&Sent::modern("tools/list", json!({}), json!({})).over(&address, &token, &[]));
    assert!(
        names(&tools).contains(&"effectd_wait") && !names(&tools).contains(&"effectd_preview"),
        "{tools}"
    );
    let preview =
        json!({ "name": "effectd_preview", "arguments": { "tool": "files_list", "arguments": {} } });
    let preview = Sent::modern("tools/call", preview, json!({})).over(&address, &token, &[]);
    assert_eq!(error(&preview, 200), -32602);
    // What stays with the users of the machine is no tool.
    for name in ["erase", "rotate_key", "create_token", "restore", "journal"] {
        for name in [format!("effectd_{name}"), format!("effectd.{name}")] {
            let call = Sent::modern("tools/call", json!({ "name": name, "arguments": {} }), json!({}));
            assert_eq!(error(&call.over(&address, &token, &[]), 200), -32602, "{name}");
        }
    }
    // Without a token, and from a page of another site.
    assert_eq!(list.over(&address, "wrong", &[]).status, 401);
    assert_eq!(list.over(&address, &token, &[("origin", "http://evil.example")]).status, 403);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_call_is_previewed_undone_and_read_in_parts() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let call = |name: &str, arguments: Value| {
        let done = modern(&daemon, "tools/call", json!({ "name": name, "arguments": arguments }));
        assert_eq!(done["isError"], false, "{done}");
        done
    };
    let old = "an old line\n".repeat(3_000);
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    std::fs::write(place.note("long"), &old).unwrap();
    std::fs::write(place.note("short"), "old\n").unwrap();
    let mut asked = note("short", "new\n");
    let preview = json!({ "tool": asked["name"].take(), "arguments": asked["arguments"].take() });
    let shown = call("effectd_preview", preview)["structuredContent"].clone();
    assert_eq!((&shown["verdict"], text(&place, "short").as_str()), (&json!("permit"), "old\n"), "{shown}");
    assert!(shown["preview"].to_string().contains("workspace/short"), "{shown}");
    // A long result is cut, and its rest is read by the receipt.
    let read = call("files_read_text", json!({ "path": "workspace/long", "max_bytes": 262_144 }));
    assert_eq!(read["structuredContent"]["_truncated"], true);
    let receipt = &read["_meta"]["effectd/receiptId"];
    assert!(
        read["content"][1]["text"].as_str().unwrap().contains("effectd_result"),
        "{}",
        read["content"][1]
    );
    let (mut whole, mut from) = (String::new(), json!(0));
    while from.is_u64() {
        let part = json!({ "receipt_id": receipt, "pointer": "/text", "from": from });
        let part = call("effectd_result", part)["structuredContent"].clone();
        whole.push_str(part["part"].as_str().unwrap());
        from = part["next"].clone();
    }
    assert!(whole == old, "{} bytes of {}", whole.len(), old.len());
    let written = modern(&daemon, "tools/call", note("long", "new\n"));
    assert_eq!(text(&place, "long"), "new\n");
    call("effectd_undo", json!({ "receipt_id": written["_meta"]["effectd/receiptId"] }));
    assert!(text(&place, "long") == old);
    let write =
        |name: &str| json!({ "tool": "files_write_text", "arguments": note(name, "both\n")["arguments"] });
    let batch = call("effectd_batch", json!({ "calls": [write("one"), write("two")] }));
    let marks: Vec<_> = batch["structuredContent"]["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["marker"].clone())
        .collect();
    assert_eq!((marks, text(&place, "two").as_str()), (vec![json!("committed"); 2], "both\n"), "{batch}");
    let foreign = json!({ "name": "effectd_undo", "arguments": { "receipt_id": "nobodys" } });
    let refused = modern(&daemon, "tools/call", foreign);
    assert_eq!(refused["structuredContent"]["code"], "receipt_unknown", "{refused}");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn artifacts_are_resources_of_their_receipts() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let put = json!({ "name": "artifact_put", "arguments": { "text": "kept" } });
    assert_eq!(modern(&daemon, "tools/call", put)["isError"], false);
    let list = modern(&daemon, "resources/list", json!({}));
    let uris: Vec<_> = list["resources"].as_array().unwrap().iter().map(|one| one["uri"].clone()).collect();
    let is_artifact = |uri: &&Value| uri.as_str().unwrap().contains("/artifacts/");
    let uri = uris.iter().find(is_artifact).unwrap_or_else(|| panic!("{list}"));
    let read = modern(&daemon, "resources/read", json!({ "uri": uri }));
    assert_eq!((&read["contents"][0]["text"], &read["contents"][0]["uri"]), (&json!("kept"), uri));
    assert_eq!(
        modern(&daemon, "resources/templates/list", json!({}))["resourceTemplates"].as_array().unwrap().len(),
        2
    );
    let nothing =
        Sent::legacy(OLD, "resources/read", json!({ "uri": "effectd://receipts/none" })).to(&daemon);
    assert_eq!(error(&nothing, 200), -32002);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_call_that_waits_keeps_little_of_its_meta() {
    const WAITING: usize = 100;
    const MIB: u64 = 1 << 20;
    let place = asking();
    let daemon = place.serve(&[]);
    let held = legacy(&daemon, "tools/call", note("plain", "p"));
    let wait = json!({ "name": "effectd_wait", "arguments": { "action_id": held["structuredContent"]["action_id"] } });
    // In memory, each zero takes many times its two bytes.
    let nested = format!("[{}0]", "0,".repeat(16_000));
    let mut sent = Sent::legacy(OLD, "tools/call", wait);
    let meta = format!(r#""params":{{"_meta":{{"progressToken":1,"x":{nested}}},"#);
    sent.body = sent.body.replacen(r#""params":{"#, &meta, 1);
    let before = resident(&daemon);
    let wait = || send_on(daemon.connect(), "POST", "/mcp", &sent.headers(), &sent.body);
    let mut waiting: Vec<_> = (0..WAITING).map(|_| wait()).collect();
    for stream in &mut waiting {
        // Its stream of progress begins once it waits.
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
    }
    let more = resident(&daemon).saturating_sub(before);
    // Buffers of the connections are in it, too. Whole, the members alone would be 100 MiB and more.
    assert!(more < 64 * MIB, "{} MiB", more / MIB);
    drop(waiting);
}

#[test]
fn changes_of_the_list_are_told_to_who_listens() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let wanted = json!({ "notifications": { "toolsListChanged": true, "promptsListChanged": true } });
    let sent = Sent::modern("subscriptions/listen", wanted, json!({}));
    let stream = send_on(daemon.connect(), "POST", "/mcp", &sent.headers(), &sent.body);
    let mut messages = messages(stream);
    let begun = messages.next().unwrap();
    assert_eq!(begun["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(begun["params"]["notifications"], json!({ "toolsListChanged": true }));
    let mode = ["policy", "set-mode", "--org", "home", "--tool", "files.copy", "deny", "--yes"];
    assert_eq!(place.effectd(&mode, None).code(), 0);
    let changed = messages.next().unwrap();
    assert_eq!(changed["method"], "notifications/tools/list_changed");
    assert_eq!(changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 7);
    // The switch of an operator is in no policy.
    assert_eq!(place.effectd(&["tools", "disable", "files.write_text", "--yes"], None).code(), 0);
    assert_eq!(messages.next().unwrap()["method"], "notifications/tools/list_changed");
    assert_eq!(daemon.stop(), 0);
    let last = messages.next().unwrap();
    assert_eq!((&last["id"], &last["result"]["resultType"]), (&json!(7), &json!("complete")), "{last}");
}

#[test]
fn a_subscription_and_progress_end_with_their_token() {
    let place = asking();
    let (daemon, address) = listening(&place, &[]);
    let token = token_of_session(&daemon, "shared:household");
    let token = token.as_str();
    let call = Sent::legacy(OLD, "tools/call", note("late", "l"));
    let held = result(&call.over(&address, token, &[]))["structuredContent"].clone();
    let wait = json!({ "name": "effectd_wait", "arguments": { "action_id": held["action_id"] }, "_meta": { "progressToken": 1 } });
    let mut signs = messages(Sent::legacy(OLD, "tools/call", wait).send("/mcp", &address, token, &[]));
    assert_eq!(signs.next().unwrap()["method"], "notifications/progress");
    let wanted = json!({ "notifications": { "toolsListChanged": true } });
    let listen = Sent::modern("subscriptions/listen", wanted, json!({})).send("/mcp", &address, token, &[]);
    let mut changes = messages(listen);
    assert_eq!(changes.next().unwrap()["method"], "notifications/subscriptions/acknowledged");
    let id = token.split('_').nth(2).unwrap();
    daemon.post(&format!("/v1/tokens/{id}/revoke"), &json!({})).json(200);
    let mode = ["policy", "set-mode", "--org", "home", "--tool", "files.copy", "deny", "--yes"];
    assert_eq!(place.effectd(&mode, None).code(), 0);
    let approve = format!("/v1/approvals/{}/approve", held["approval_id"].as_str().unwrap());
    daemon.post(&approve, &json!({})).json(200);
    assert_eq!(changes.next(), None);
    for sign in signs {
        assert_eq!(sign["method"], "notifications/progress", "no result: {sign}");
    }
    assert_eq!(text(&place, "late"), "l");
}

#[test]
fn a_place_of_others_tells_nothing() {
    let place = Place::seeded();
    let other = "[subjects.\"agent://other@deviceB\"]\nroles = [\"planner\"]\n\n";
    two_orgs(&place, &(account("home/ada", "") + other));
    let (daemon, address) = listening(&place, &["--set", "control.budget_calls_max=100"]);
    let token = token_of_account(&daemon, "home", "ada");
    let list = Sent::modern("tools/list", json!({}), json!({}));
    // A token's organisation has one of the two spaces, and the token reaches no other.
    let own = result(&list.over(&address, &token, &[]));
    assert!(names(&own).contains(&"effectd_preview"), "{own}");
    assert_eq!(own["_meta"]["effectd/budgetLeft"]["calls"], 100);
    let others = list.over_at("/mcp?space=shared:garden", &address, &token, &[]);
    assert_eq!(error(&others, 200), -32602);
    // What another subject sees and has left is not told.
    let asked = |path: &str| daemon.ask("POST", path, &list.headers(), &list.body);
    let spaces = asked("/mcp?subject=agent://other@deviceB");
    assert_eq!(error(&spaces, 200), -32602);
    assert!(!spaces.body.contains("shared:"), "{spaces:?}");
    let other = result(&asked("/mcp?subject=agent://other@deviceB&space=shared:household"));
    assert_eq!((names(&other).len(), other.get("_meta")), (0, None), "{other}");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_key_belongs_to_its_caller_at_this_door() {
    let place = Place::seeded();
    // An account of the same name in both organisations.
    two_orgs(&place, &(account("home/ada", "") + &account("office/ada", "")));
    let (daemon, address) = listening(&place, &[]);
    let tokens = [
        token_of_account(&daemon, "home", "ada"),
        token_of_account(&daemon, "office", "ada"),
        token_of_session(&daemon, "shared:household"),
        token_of_session(&daemon, "shared:household"),
        token_of_session(&daemon, "shared:garden"),
    ];
    let mut known = Vec::new();
    for round in ["first", "again"] {
        let mut done = Vec::new();
        // The key in the call, and as a header.
        for is_header in [false, true] {
            let meta = if is_header { json!({}) } else { json!({ "effectd/idempotencyKey": "k" }) };
            let headers: &[_] = if is_header { &[("idempotency-key", "k")] } else { &[] };
            for caller in 0..=tokens.len() {
                let arguments = json!({ "path": "workspace/log", "text": format!("{caller}{meta}\n") });
                let call = json!({ "name": "files_append_text", "arguments": arguments, "_meta": meta });
                let sent = Sent::modern("tools/call", call, json!({}));
                let reply = match tokens.get(caller) {
                    Some(token) => sent.over(&address, token, headers),
                    None => {
                        let headers = [&sent.headers()[..], headers].concat();
                        daemon.ask("POST", "/mcp?space=shared:household", &headers, &sent.body)
                    }
                };
                let result = result(&reply);
                assert_eq!(result["isError"], false, "{round} {caller} {meta}: {result}");
                let receipt = result["_meta"]["effectd/receiptId"].as_str().unwrap();
                let receipt = daemon.get(&format!("/v1/receipts/{receipt}")).json(200);
                done.push((receipt["principal"].to_string(), receipt["receipt_id"].to_string()));
            }
        }
        if round == "first" {
            known = done;
            let all: BTreeSet<_> = known.iter().collect();
            assert_eq!(all.len(), 2 * (tokens.len() + 1), "each has receipts of its own: {known:?}");
            let principals: BTreeSet<_> = known.iter().map(|(principal, _)| principal).collect();
            assert_eq!(principals.len(), tokens.len() + 1, "{known:?}");
        } else {
            assert_eq!(done, known, "a repeat is answered with the caller's own receipt");
        }
    }
    // Sessions also have a guide.
    let appended =
        receipts(&daemon).iter().filter(|receipt| receipt["tool_id"] == "files.append_text").count();
    assert_eq!(appended, known.len());
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn what_belongs_to_others_looks_as_if_it_were_not_there() {
    let place = asking();
    let all = "roles = [\"planner\", \"learner\", \"look\", \"operate\", \"approver\"]\n";
    let accounts = [("home/ada", ""), ("home/ben", ""), ("home/eve", all), ("office/ada", "")];
    two_orgs(&place, &accounts.map(|(name, more)| account(name, more)).concat());
    let (daemon, address) = listening(&place, &[]);
    let tokens = accounts.map(|(name, _)| {
        let (org, name) = name.split_once('/').unwrap();
        token_of_account(&daemon, org, name)
    });
    let session = token_of_session(&daemon, "shared:household");
    let [ada, others @ ..] = tokens.each_ref().map(|token| Some(token.as_str()));
    // Of the last ones, one is a session and one is the user of the machine.
    let others = others.into_iter().chain([Some(session.as_str()), None]);
    let ask = |token: Option<&str>, sent: &Sent| match token {
        Some(token) => sent.over(&address, token, &[]),
        None => daemon.ask("POST", "/mcp?space=shared:household", &sent.headers(), &sent.body),
    };
    let capable = json!({ "extensions": { TASKS: {} } });
    let done = |method, params: Value| result(&ask(ada, &Sent::modern(method, params, json!({}))));
    let put = done("tools/call", json!({ "name": "artifact_put", "arguments": { "text": "secret" } }));
    let held = done("tools/call", note("held", "h"));
    let about = |member: &str| put["_meta"][member].as_str().unwrap();
    let (receipt, action) = (about("effectd/receiptId"), about("effectd/actionId"));
    let held = held["_meta"]["effectd/waiting"]["action_id"].as_str().unwrap();
    let listed = done("resources/list", json!({}))["resources"].to_string();
    let (_, artifact) = listed.split_once("/artifacts/").unwrap();
    let artifact = &artifact[..64];
    let tool = |name: &str, arguments: Value| {
        Sent::modern("tools/call", json!({ "name": name, "arguments": arguments }), json!({}))
    };
    let read = |uri: String| Sent::modern("resources/read", json!({ "uri": uri }), json!({}));
    // What a caller may ask about a receipt and about an action.
    let of_receipt = |id: &str| {
        vec![
            tool("effectd_undo", json!({ "receipt_id": id })),
            tool("effectd_result", json!({ "receipt_id": id })),
            read(format!("effectd://receipts/{id}")),
            read(format!("effectd://receipts/{id}/artifacts/{artifact}")),
        ]
    };
    let of_action = |id: &str| {
        let task = |method| Sent::modern(method, json!({ "taskId": id }), capable.clone());
        let wait = tool("effectd_wait", json!({ "action_id": id, "timeout_ms": 1 }));
        vec![wait, task("tasks/get"), task("tasks/update"), task("tasks/cancel")]
    };
    for (id, is_receipt) in [(receipt, true), (action, false), (held, false)] {
        let requests = |id: &str| if is_receipt { of_receipt(id) } else { of_action(id) };
        let last = if id.ends_with('0') { "1" } else { "0" };
        let none = format!("{}{last}", &id[..id.len() - 1]);
        for (sent, of_nothing) in requests(id).iter().zip(&requests(&none)) {
            let differ = |token| {
                let [found, nothing] = [(sent, id), (of_nothing, none.as_str())].map(|(sent, id)| {
                    let reply = ask(token, sent);
                    (reply.status, reply.body.replace(id, "ID"))
                });
                (found != nothing).then_some((found, nothing))
            };
            for token in others.clone() {
                assert_eq!(differ(token), None, "{token:?} {}", sent.body);
            }
            assert!(differ(ada).is_some(), "{}", sent.body);
        }
    }
    assert_eq!(daemon.stop(), 0);
}

/// The messages on a stream of events.
fn messages(stream: impl Read) -> impl Iterator<Item = Value> {
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    lines.filter_map(|line| Some(serde_json::from_str(line.strip_prefix("data: ")?).unwrap()))
}

#[test]
fn a_caller_with_several_places_names_one() {
    let place = Place::seeded();
    let space = "[spaces.\"shared:garden\"]\nroot = \"./garden\"\nband = \"GREEN\"\nvisible_to = [\"role:planner\"]\norg = \"home\"\n\n";
    change_policy(&place, "[spaces.", &format!("{space}[spaces."), "");
    let daemon = place.serve(&[]);
    let list = Sent::modern("tools/list", json!({}), json!({}));
    let unclear = list.to(&daemon);
    assert_eq!(error(&unclear, 200), -32602);
    assert!(unclear.body.contains("shared:garden, shared:household"), "{unclear:?}");
    let named = daemon.ask("POST", "/mcp?space=shared:household", &list.headers(), &list.body);
    assert!(names(&result(&named)).contains(&"files_write_text"));
    // There is no consent for the other one.
    let other = daemon.ask("POST", "/mcp?space=shared:garden", &list.headers(), &list.body);
    assert!(!names(&result(&other)).contains(&"files_write_text"));
    assert_eq!(error(&daemon.ask("POST", "/mcp?room=x", &list.headers(), &list.body), 400), -32600);
    assert_eq!(daemon.stop(), 0);
}
