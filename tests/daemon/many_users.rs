//! Many users of one daemon, each in a process with its own uid.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use effectd_gateway::limits::RESULTS_BYTES_MAX;
use serde_json::{Value, json};

use crate::harness::{Daemon, LONG, Place, Reply, Serving, Stall, Who, is_root, until, write_note};

/// Two users who hold all the connections they can, one who comes too late, and one approver.
const FIRST: u32 = 4_001;
const SECOND: u32 = 4_002;
const THIRD: u32 = 4_003;
const APPROVER: u32 = 4_004;
const SOCKET: &str = "EFFECTD_TEST_SOCKET";
const COUNT: &str = "EFFECTD_TEST_COUNT";
/// Printed by a child when all its connections are open.
const HOLDING: &str = "holding";

/// Not a test: what a child of these tests does, as the user that it was started as. Opens connections, sends the request that it is
/// given, up to a zero, on each, and either holds them until its input ends or, where there is one, prints what came back.
#[test]
fn speaks_at_the_door_as_another_user() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let (mut input, mut request) = (std::io::stdin().lock(), Vec::new());
    input.read_until(0, &mut request).unwrap();
    request.pop();
    let count: usize = std::env::var(COUNT).unwrap().parse().unwrap();
    let mut connections: Vec<UnixStream> = (0..count)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            let sent = stream.write_all(&request);
            // A refused connection may be closed already; an accepted one takes the whole request.
            assert!(sent.is_ok() || count > 1, "{sent:?}");
            stream
        })
        .collect();
    let mut out = std::io::stdout().lock();
    if let [one] = &mut connections[..] {
        let mut bytes = Vec::new();
        let _ = one.read_to_end(&mut bytes);
        writeln!(out, "\n{}", json!(String::from_utf8_lossy(&bytes))).unwrap();
    } else {
        writeln!(out, "\n{HOLDING}").unwrap();
        let _ = input.read_to_end(&mut Vec::new());
    }
}

pub fn as_user(daemon: &Daemon, uid: u32, count: usize, request: &str) -> (Child, BufReader<ChildStdout>) {
    // This program may be in a folder that is closed to other users, so a copy runs.
    let copy = daemon.socket.with_file_name("daemon-test");
    if !copy.exists() {
        let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status();
        assert!(copied.unwrap().success());
    }
    let mut child = Command::new(copy)
        .args(["--exact", "many_users::speaks_at_the_door_as_another_user", "--nocapture"])
        .env(SOCKET, &daemon.socket)
        .env(COUNT, count.to_string())
        .uid(uid)
        // Of the daemon's group, so that it may connect.
        .gid(std::fs::metadata(&daemon.socket).unwrap().gid())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(format!("{request}\0").as_bytes()).unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    child.stdin = Some(input);
    (child, out)
}

pub fn ask(daemon: &Daemon, uid: u32, method: &str, path: &str, body: &str) -> Reply {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let (mut child, out) = as_user(daemon, uid, 1, &request);
    let lines = out.lines().map_while(Result::ok);
    let reply = lines.filter_map(|line| serde_json::from_str::<String>(&line).ok()).next();
    child.wait().unwrap();
    Reply::of(reply.expect("the child prints what came back").as_bytes())
}

/// Connections of this user that are held until the child is killed.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hold(daemon: &Daemon, uid: u32, count: usize, request: &str) -> Held {
    let (child, out) = as_user(daemon, uid, count, request);
    let held = Held(child);
    assert!(out.lines().map_while(Result::ok).any(|line| line == HOLDING));
    held
}

fn connections(daemon: &Daemon) -> usize {
    let figures = daemon.get("/metrics").body;
    let line = figures.lines().find_map(|line| line.strip_prefix("effectd_http_connections "));
    line.unwrap().parse().unwrap()
}

/// A daemon that runs as an ordinary user, with a policy in which root plans and another user approves.
fn with_an_approver() -> (Place, Daemon) {
    let place = Place::of(Who::Nobody);
    assert_eq!(place.effectd(&["init"], None).code(), 0);
    place.for_every_machine();
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let people = format!(
        "[principals.\"user://{APPROVER}\"]\nsubjects = []\nroles = [\"approver\"]\n\n[principals.\"user://root\"]"
    );
    let named = text.replace("[principals.\"user://*\"]", &people);
    assert_ne!(named, text);
    let named = named.split("[example_tools").next().unwrap();
    std::fs::write(&policy, named).unwrap();
    let mode = ["--org", "home", "--tool", "files.write_text", "require_approval", "--yes"];
    assert_eq!(place.effectd(&[&["policy", "set-mode"], &mode[..]].concat(), None).code(), 0);
    let socket = place.path("shared.sock");
    let daemon = place.serve(&[
        "--socket",
        socket.to_str().unwrap(),
        "--set",
        "gateway.socket_mode=0660",
        "--set",
        "gateway.connections_max=64",
        "--set",
        "gateway.connections_per_user_max=32",
        // Slow clients are not cut off during this test.
        "--set",
        "gateway.header_time_ms_max=600000",
    ]);
    (place, daemon)
}

#[test]
fn a_full_door_lets_those_in_who_can_act_on_it() {
    if !is_root("a_full_door_lets_those_in_who_can_act_on_it") {
        return;
    }
    let (_place, daemon) = with_an_approver();
    let held = daemon.post("/v1/actions?wait", &write_note("h-1", "h.txt", "h")).json(202);
    let approval = held["approval"]["approval_id"].as_str().unwrap().to_owned();
    // Slow headers, and answers that are waited for.
    let _first = hold(&daemon, FIRST, 32, "GET /healthz HTTP/1.1\r\nhost: x\r\nslow: ");
    let waits = "GET /v1/receipts?order=oldest&wait_ms=600000 HTTP/1.1\r\nhost: x\r\n\r\n";
    let _second = hold(&daemon, SECOND, 32, waits);
    // All but an eighth, and the one that asks.
    until("the door is full", || connections(&daemon) >= 57);
    let late = ask(&daemon, THIRD, "POST", "/v1/actions", &"x".repeat(2 << 20));
    assert!(late.head.contains("retry-after: 1"), "{late:?}");
    late.problem(503, "overloaded");
    for path in ["/healthz", "/readyz"] {
        assert_eq!(ask(&daemon, THIRD, "GET", path, "").json(200)["status"], "ok");
    }
    ask(&daemon, THIRD, "GET", "/v1/tools", "").problem(503, "overloaded");
    // Root, the daemon's own user, and approvers.
    daemon.get("/v1/store").json(200);
    ask(&daemon, crate::harness::NOBODY, "GET", "/v1/store", "").json(200);
    let path = format!("/v1/approvals/{approval}/approve");
    let decided: Value = ask(&daemon, APPROVER, "POST", &path, "{}").json(200);
    assert_eq!(decided["action"]["outcome"], "executed", "{decided}");
    assert_eq!(decided["action"]["result"]["bytes_written"], 1, "{decided}");
    // Who decided gets the same later, and nothing beyond it.
    let later = ask(&daemon, APPROVER, "GET", "/v1/actions/h-1", "").json(200);
    assert_eq!(later["result"], decided["action"]["result"], "{later}");
    let receipt = later["receipt"]["receipt_id"].as_str().unwrap();
    ask(&daemon, APPROVER, "GET", &format!("/v1/receipts/{receipt}"), "").problem(404, "receipt_unknown");
}

#[test]
fn one_user_leaves_room_in_the_backlog_for_others() {
    if !is_root("one_user_leaves_room_in_the_backlog_for_others") {
        return;
    }
    let place = Place::seeded();
    std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = place.path("shared.sock");
    let socket = ["--socket", socket.to_str().unwrap(), "--set", "gateway.socket_mode=0660"];
    // Nothing ends.
    let full = [&socket[..], &["--set", "gateway.backlog_max=8"]].concat();
    let daemon = place.serve_stalling(Stall("validator.begin"), &full);
    let note = |n: usize| write_note(&format!("n-{n}"), &format!("n-{n}"), "x");
    let refused = (0..8).find_map(|n| {
        let reply = ask(&daemon, FIRST, "POST", "/v1/actions", &note(n).to_string());
        (reply.status == 503).then_some((n, reply))
    });
    let (sent, reply) = refused.expect("one user does not fill it alone");
    // A measurement that comes just then may count one too few.
    assert!(sent >= 6, "{sent}");
    assert!(reply.problem(503, "overloaded")["detail"].as_str().unwrap().contains("of yours"), "{reply:?}");
    assert_eq!(daemon.post("/v1/actions", &note(100)).status, 202);
}

#[test]
fn one_users_slow_bodies_leave_memory_for_operators() {
    if !is_root("one_users_slow_bodies_leave_memory_for_operators") {
        return;
    }
    let place = Place::seeded();
    std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = place.path("shared.sock");
    let socket = ["--socket", socket.to_str().unwrap(), "--set", "gateway.socket_mode=0660"];
    let daemon = place.serve(&[&socket[..], &["--set", "gateway.body_time_ms_max=600000"]].concat());
    // More than all memory for bodies, and each lacks its last byte.
    let long = "x".repeat(1_000_000);
    let head = format!("POST /v1/actions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", long.len() + 1);
    let _slow = hold(&daemon, FIRST, 80, &format!("{head}{long}"));
    // One that is read whole is no JSON.
    daemon.ask("POST", "/v1/actions", &[], &long).problem(400, "malformed");
    ask(&daemon, SECOND, "POST", "/v1/actions", &long).problem(400, "malformed");
}

#[test]
fn an_operators_read_of_a_long_result_takes_its_share() {
    if !is_root("an_operators_read_of_a_long_result_takes_its_share") {
        return;
    }
    let place = Place::seeded();
    std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    // Each of these bytes is six bytes of JSON.
    std::fs::write(place.note("long.txt"), "\u{1}".repeat(262_144)).unwrap();
    let socket = place.path("shared.sock");
    let daemon = place.serve(&[
        "--socket",
        socket.to_str().unwrap(),
        "--set",
        "gateway.socket_mode=0660",
        // No client is cut off during this test.
        "--set",
        "gateway.write_time_ms_max=600000",
    ]);
    let request = crate::results::read("m-1").to_string();
    let whole = ask(&daemon, FIRST, "POST", "/v1/actions?wait", &request).json(200);
    assert_eq!(whole["outcome"], "executed", "{}", whole["receipt"]);
    let operators = || daemon.get("/v1/actions/m-1").json(200);
    assert_eq!(operators()["result"]["_truncated"], true);
    let bytes = whole["receipt"]["kept_result"]["bytes"].as_u64().unwrap();
    let fit = usize::try_from(RESULTS_BYTES_MAX as u64 / bytes).unwrap();
    let unread = hold(&daemon, FIRST, fit, "GET /v1/actions/m-1 HTTP/1.1\r\nhost: x\r\n\r\n");
    let answered = format!("{{route=\"/v1/actions/{{id}}\",status=\"200\"}} {}", fit + 1);
    until("all of them are answered", || daemon.get("/metrics").body.contains(&answered));
    // How the action ended is said all the same.
    let view = operators();
    assert_eq!((&view["state"], &view["result_error"]["code"]), (&json!("done"), &json!("overloaded")));
    assert!(view.get("result").is_none() && view["receipt"].is_object(), "{view}");
    drop(unread);
    until("the memory is free again", || operators()["result"]["_truncated"] == true);
}

#[test]
fn the_log_beyond_its_signed_heads_is_for_operators() {
    if !is_root("the_log_beyond_its_signed_heads_is_for_operators") {
        return;
    }
    let (_place, daemon) = with_an_approver();
    let head = daemon.ask("POST", "/v1/log/head", &[], "").json(200);
    let note = write_note("l-1", "l.txt", "l");
    daemon.post("/v1/actions?wait", &note).json(202);
    let all = daemon.get("/v1/log").json(200);
    assert!(all["open"].is_number() && all["size"].is_number(), "{all}");
    let seen = ask(&daemon, THIRD, "GET", "/v1/log", "").json(200);
    assert_eq!(seen, json!({ "head": head }), "{seen}");
    let heads = ask(&daemon, THIRD, "GET", "/v1/log/heads", "").json(200);
    assert_eq!(heads, daemon.get("/v1/log/heads").json(200));
    let size = head["size"].as_u64().unwrap();
    let signed = format!("/v1/log/frontier?size={size}");
    assert_eq!(ask(&daemon, THIRD, "GET", &signed, "").json(200), daemon.get(&signed).json(200));
    let beyond = format!("/v1/log/frontier?size={}", size + 1);
    daemon.get(&beyond).json(200);
    ask(&daemon, THIRD, "GET", &beyond, "").problem(400, "query_invalid");
    ask(&daemon, THIRD, "GET", "/v1/log/entries", "").problem(403, "operators_only");
}

#[test]
fn an_operators_path_refuses_others_while_they_still_send() {
    if !is_root("an_operators_path_refuses_others_while_they_still_send") {
        return;
    }
    let (_place, daemon) = with_an_approver();
    let body = "x".repeat(2 << 20);
    for path in ["/v1/store/erase", "/v1/operations"] {
        ask(&daemon, THIRD, "POST", path, &body).problem(403, "operators_only");
    }
}
