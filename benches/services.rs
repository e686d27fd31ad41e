//! The tools of services: `cargo bench --bench services`.
//!
//! First what a tool costs beside its exchange: parameters, request, answer and result, with the answer at hand: a page of fifty issues, a
//! hundred rows (goal 0.2 ms for each). Then calls over one connection by a daemon to a service on this machine that has a state: a goal of 60 a second, with the
//! breakers closed. `$EFFECTD_BENCH_MS` sets how long those take, `$EFFECTD_BENCH_DIR` where the state lies.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has nothing to say")]
#![allow(clippy::unwrap_used, clippy::disallowed_types, clippy::disallowed_methods, unreachable_pub)]

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use effectd::contracts::sql::{SqlAnswer, SqlCell, SqlColumn, SqlRows};
use effectd::contracts::{
    CallMode, EffectMark, ExchangeAnswer, ExchangeReply, Timestamp, ToolCall, ToolReply,
};
use effectd_adapters::{ToolChannel, Workspace, find};
use serde_json::{Value, json};

#[path = "figures/lines.rs"]
mod lines;
#[path = "figures/program.rs"]
mod program;
#[path = "../tests/harness/service.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod service;
#[path = "../tests/harness/services/mod.rs"]
mod services;

const COST_GOAL_US: f64 = 200.0;
const RATE_GOAL: f64 = 60.0;
const CALLS: usize = 2_000;
const PLANNERS: usize = 8;

/// Answers every exchange with the same, at once.
#[derive(Debug)]
struct AtHand(Vec<u8>);

impl ToolChannel for AtHand {
    fn send_piece(&self, _: u8, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn receive_piece(&self) -> io::Result<Vec<u8>> {
        Ok(self.0.clone())
    }
}

fn cost(tool: &str, params: Value, answer: &Value) -> f64 {
    let answer = ExchangeAnswer { status: 200, headers: Vec::new(), body: answer.to_string().into_bytes() };
    let at_hand = AtHand(ExchangeReply::Answered(answer).to_frame().expect("a frame"));
    let root = File::open("/").expect("a folder");
    let workspace = Workspace::new(root.as_fd(), root.as_fd()).with_side_channel(&at_hand);
    let call = ToolCall {
        tool_id: tool.parse().expect("an id"),
        mode: CallMode::Run,
        space_id: "shared:household".parse().expect("a space"),
        params: params.as_object().expect("parameters").clone(),
        timeout_ms: 30_000,
        trace_id: "00000000000000000000000000000001".parse().expect("a trace"),
        before: None,
        restore: Vec::new(),
        expect: Vec::new(),
        mark: Some(EffectMark {
            id: "0b1f5d5e-1111-4222-8333-0123456789ab".to_owned(),
            since: Timestamp::from_second(1_700_000_000).expect("a time"),
        }),
        undoes: None,
        upstream: None,
        failed_checks: Vec::new(),
    };
    let known = find(&call.tool_id).expect("a tool");
    let mut times: Vec<Duration> = (0..CALLS)
        .map(|_| {
            let begun = Instant::now();
            let reply = effectd_adapters::answer(known, &workspace, &call);
            let took = begun.elapsed();
            assert!(matches!(reply, ToolReply::Done(_)), "{reply:?}");
            took
        })
        .collect();
    times.sort();
    let at = |percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e6;
    let verdict = if at(50) <= COST_GOAL_US { "met" } else { "MISSED" };
    println!("{:<24} {:>9.0} {:>9.0}   (goal {COST_GOAL_US}: {verdict})", known.id(), at(50), at(99));
    lines::note(json!({ "bench": "services", "tool": tool }), &times);
    at(50)
}

fn effectd(folder: &Path, arguments: &[&str]) -> std::process::Command {
    let mut command = program::program(env!("CARGO_BIN_EXE_effectd"));
    command.current_dir(folder).args(arguments).args(["--state", ".effectd"]);
    command
}

/// Sends a request, and reads the body of its answer.
fn answer(stream: &mut BufReader<UnixStream>, method: &str, path: &str, body: &str) -> String {
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n");
    stream.get_mut().write_all((head + body).as_bytes()).expect("a request is sent");
    let (mut line, mut length) = (String::new(), 0);
    stream.read_line(&mut line).expect("an answer");
    let status = line.clone();
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line).expect("a header");
        if let Some(text) = line.to_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().expect("a length");
        }
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).expect("a body");
    let answer = String::from_utf8(answer).expect("text");
    assert!(status.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

fn ask(stream: &mut BufReader<UnixStream>, action: &str, (tool, mut params): (&str, Value)) {
    params["space_id"] = json!("shared:household");
    let body = json!({
        "action_id": action, "subject_id": "agent://planner@deviceA", "space_id": "shared:household",
        "tool_id": tool, "params": params,
        "policy_ctx": { "actor": "alice", "device": "phone1" },
    });
    answer(stream, "POST", "/v1/actions?wait", &body.to_string());
}

/// Reads and writes a second.
fn rates(folder: &Path) -> [f64; 2] {
    let linear = services::Linear::start("lin_api_bench");
    let run = |arguments: &[&str], stdin: &str| {
        let mut child = effectd(folder, arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("a program");
        child.stdin.take().expect("it is piped").write_all(stdin.as_bytes()).expect("input");
        assert!(child.wait().expect("it ends").success(), "{arguments:?}");
    };
    run(&["init"], "");
    let file = folder.join(".effectd/policy/policy.toml");
    let text = std::fs::read_to_string(&file).expect("a policy");
    let text = text.replace("\"diagnose\"]", "\"diagnose\", \"linear.read\", \"linear.write\"]");
    let text = text.replace("modes = { ", "modes = { \"linear.create_issue\" = \"allow\", ");
    let text = text.replace("hosts = []", "hosts = [\"127.0.0.1\"]");
    std::fs::write(file, text.replace("night_from = \"22:00\"", "night_from = \"06:00\"")).expect("a policy");
    run(&["secrets", "set", "home", "token", "--yes"], "lin_api_bench");
    let port = linear.port().to_string();
    let add = ["connections", "add", "--org", "home", "--preset", "linear", "--secret", "token", "--yes"];
    let at = ["--host", "127.0.0.1", "--port", &port, "--no-tls", "--allow", "127.0.0.0/8"];
    run(&[&add[..], &at].concat(), "");
    let unlimited =
        ["principal", "subject", "space", "tool"].map(|of| format!("--set=control.{of}_rate_max=0"));
    let mut daemon =
        effectd(folder, &["serve", "--set=log.level=warn"]).args(&unlimited).spawn().expect("a daemon");
    let socket = folder.join(".effectd/run/effectd.sock");
    while UnixStream::connect(&socket).is_err() {
        std::thread::yield_now();
    }
    let set = std::env::var("EFFECTD_BENCH_MS").ok().and_then(|text| text.parse().ok());
    let measured = Duration::from_millis(set.unwrap_or(10_000));
    let rates = ["linear.get_issue", "linear.create_issue"].map(|tool| {
        let (begun, before) = (Instant::now(), linear.asked().len());
        let calls: usize = std::thread::scope(|scope| {
            let planners: Vec<_> = (0..PLANNERS)
                .map(|planner| {
                    let socket = &socket;
                    scope.spawn(move || {
                        let mut stream = BufReader::new(UnixStream::connect(socket).expect("a socket"));
                        let mut calls = 0;
                        while begun.elapsed() < measured {
                            let action = format!("{tool}-{planner}-{calls}");
                            let params = match tool {
                                "linear.get_issue" => json!({ "issueId": "ENG-1" }),
                                _ => json!({ "teamId": services::TEAM, "title": action }),
                            };
                            ask(&mut stream, &action, (tool, params));
                            calls += 1;
                        }
                        calls
                    })
                })
                .collect();
            planners.into_iter().map(|planner| planner.join().expect("it ends")).sum()
        });
        assert_eq!(linear.asked().len() - before, calls, "each call is one request");
        calls as f64 / begun.elapsed().as_secs_f64()
    });
    let mut stream = BufReader::new(UnixStream::connect(&socket).expect("a socket"));
    let breakers = answer(&mut stream, "GET", "/v1/breakers", "");
    let breakers: Vec<Value> = serde_json::from_str(&breakers).expect("breakers");
    assert!(!breakers.is_empty() && breakers.iter().all(|one| one["state"] == "closed"), "{breakers:?}");
    daemon.kill().expect("a daemon");
    daemon.wait().expect("a daemon");
    rates
}

fn main() {
    println!("{:<24} {:>9} {:>9}", "beside the exchange", "p50 µs", "p99 µs");
    let issue = json!({
        "id": "0b1f5d5e-1111-4222-8333-0123456789ab", "identifier": "ENG-1", "title": "The export is empty", "priority": 2.0,
        "url": "https://linear.app/acme/issue/ENG-1", "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:00Z",
        "state": { "id": "s", "name": "Todo" }, "team": { "id": "t", "name": "Engineering" },
    });
    let page = json!({ "hasNextPage": true, "endCursor": "c" });
    cost(
        "linear.list_issues",
        json!({}),
        &json!({ "data": { "issues": { "nodes": vec![&issue; 50], "pageInfo": page } } }),
    );
    let created = json!({ "data": { "issueCreate": { "success": true, "issue": issue } } });
    cost("linear.create_issue", json!({ "teamId": "t", "title": "The export is empty" }), &created);
    let found = json!({ "id": "7", "title": "TypeError", "status": "unresolved", "shortId": "WEB-1" });
    cost("sentry.get_issue", json!({ "issue_id": "7" }), &found);
    let sent = json!({ "ok": true, "channel": "C0123456789", "ts": "1700000000.000100" });
    cost("slack.send_message", json!({ "channel": "C0123456789", "text": "Hello" }), &sent);
    let column = |name: &str, oid, type_name: &str| SqlColumn {
        name: name.to_owned(),
        oid,
        modifier: -1,
        type_name: type_name.to_owned(),
    };
    let columns =
        vec![column("id", 20, "bigint"), column("total", 1700, "numeric"), column("name", 25, "text")];
    let cell = |text: &str| Some(SqlCell { text: text.to_owned(), bytes: text.len() });
    let rows = vec![vec![cell("7"), cell("12.50"), cell("The export is empty")]; 100];
    let rows =
        serde_json::to_value(SqlAnswer::Rows(SqlRows { columns, rows, truncated: false })).expect("rows");
    let sql = "SELECT id, total, name FROM orders WHERE paid_at IS NULL ORDER BY id LIMIT 100";
    cost("db:0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50.run_query", json!({ "sql": sql }), &rows);
    let base = std::env::var_os("EFFECTD_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let scratch = tempfile::Builder::new().prefix("effectd-services").tempdir_in(base).expect("a directory");
    for (what, per_second) in ["reads", "writes"].into_iter().zip(rates(scratch.path())) {
        let verdict = if per_second >= RATE_GOAL { "met" } else { "MISSED" };
        println!("over one connection: {per_second:.0} {what} a second (goal {RATE_GOAL}: {verdict})");
        lines::note(json!({ "bench": "services", "calls": what, "per_s": per_second }), &[]);
    }
}
