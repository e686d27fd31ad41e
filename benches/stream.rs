//! Streams of live events, over the socket of a real daemon: `cargo bench --bench stream`.
//!
//! First the memory of 5,000 streams on which nothing happens. Then 1,000 streams, while actions are held and denied, 100 events a
//! second: how long after a denial each client has the event. A line that says `MISSED` is beyond its goal, and makes the exit code 1.
//! `$EFFECTD_BENCH_MS` sets how long the second part takes. The state lies in `$EFFECTD_BENCH_DIR` or the system's temporary directory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    reason = "a measurement starts the program, prints, and stops on errors"
)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use effectd_contracts::Timestamp;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::task::JoinHandle;

#[path = "figures/lines.rs"]
mod lines;
#[path = "figures/program.rs"]
mod program;

const IDLE: usize = 5_000;
const LISTENERS: usize = 1_000;
/// Each is held and then denied: two events.
const ACTIONS_PER_SECOND: u64 = 50;
const WORKERS: u64 = 4;
const OPEN: &str = "GET /v1/stream HTTP/1.1\r\nhost: x\r\n\r\n";

type Listener = BufReader<tokio::net::UnixStream>;

/// A daemon whose policy holds every note; killed at the end.
struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn main() {
    let base = std::env::var_os("EFFECTD_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let scratch = tempfile::Builder::new().prefix("effectd-stream").tempdir_in(base).unwrap();
    // Each stream is a file on both sides.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let daemon = serve(scratch.path());
    let threads = tokio::runtime::Runtime::new().unwrap();
    // What the first streams need once is no part of what each costs.
    drop(threads.block_on(open(&daemon, 100)));
    until_streams(&daemon, 0);
    let (before, idle) = (daemon.resident(), threads.block_on(open(&daemon, IDLE)));
    let more = daemon.resident().saturating_sub(before) as f64 / f64::from(1 << 20);
    let mut missed = judge(&format!("MiB more with {IDLE} idle streams"), more, more <= 60.0, "at most 60");
    lines::note(json!({ "bench": "stream", "what": "idle", "streams": IDLE, "mib": more }), &[]);
    drop(idle);
    until_streams(&daemon, 0);
    let (rate, mut times) = threads.block_on(deliver(&daemon));
    times.sort();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)].as_secs_f64() * 1e3;
    let p99 = at(99);
    println!("  ms to a stream: p50 {:.1}, p90 {:.1}, most {:.1}", at(50), at(90), at(100));
    missed += judge("events a second", rate, rate >= 90.0, "about 100");
    let what = format!("ms to {LISTENERS} streams, p99 of {}", times.len());
    missed += judge(&what, p99, p99 <= 250.0, "at most 250");
    lines::note(json!({ "bench": "stream", "what": "delivery", "streams": LISTENERS, "rate": rate }), &times);
    drop((daemon, scratch));
    std::process::exit(i32::from(missed > 0));
}

fn judge(what: &str, value: f64, holds: bool, bound: &str) -> u32 {
    let word = if holds { "reached" } else { "MISSED" };
    println!("  {what}: {value:.3} ({bound}: {word})");
    u32::from(!holds)
}

fn serve(folder: &Path) -> Daemon {
    let effectd = |arguments: &[&str]| {
        let mut command = program::program(env!("CARGO_BIN_EXE_effectd"));
        command.args(arguments).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
        command
    };
    assert!(effectd(&["init"]).status().unwrap().success());
    let policy = folder.join(".effectd/policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let day = text.replace("\"22:00\"", "\"00:00\"").replace("\"06:00\"", "\"00:00\"");
    std::fs::write(&policy, day).unwrap();
    let mode = ["--org", "home", "--tool", "files.write_text", "require_approval", "--yes"];
    assert!(effectd(&[&["policy", "set-mode"], &mode[..]].concat()).status().unwrap().success());
    // Beside the streams there are requests. More would not fit into the files of most machines.
    let most = IDLE + 500;
    let (all, own) =
        (format!("gateway.connections_max={most}"), format!("gateway.connections_per_user_max={most}"));
    let mut serving = effectd(&["serve", "--state", ".effectd", "--set", &all, "--set", &own]);
    let child = serving.stderr(Stdio::null()).spawn().unwrap();
    let daemon = Daemon { child, socket: folder.join(".effectd/run/effectd.sock") };
    while UnixStream::connect(&daemon.socket).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    daemon
}

impl Daemon {
    fn resident(&self) -> u64 {
        let pages = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id())).unwrap();
        pages.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4_096
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> String {
        let (mut stream, body) = (UnixStream::connect(&self.socket).unwrap(), body.to_string());
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}");
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply.split_once("\r\n\r\n").unwrap().1.to_owned()
    }
}

fn until_streams(daemon: &Daemon, count: usize) {
    let line = format!("\neffectd_http_streams {count}\n");
    while !daemon.ask("GET", "/metrics", &Value::Null).contains(&line) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Streams that are open: the first comment of each has come.
async fn open(daemon: &Daemon, count: usize) -> Vec<Listener> {
    let mut open = Vec::new();
    for _ in 0..count {
        let mut stream = tokio::net::UnixStream::connect(&daemon.socket).await.unwrap();
        stream.write_all(OPEN.as_bytes()).await.unwrap();
        let (mut reader, mut line) = (BufReader::with_capacity(4_096, stream), String::new());
        while line != ":\n" {
            line.clear();
            assert_ne!(reader.read_line(&mut line).await.unwrap(), 0, "the stream has ended");
        }
        open.push(reader);
    }
    until_streams(daemon, count);
    open
}

/// The rate of events, and how long after each denial each stream had it.
async fn deliver(daemon: &Daemon) -> (f64, Vec<Duration>) {
    let times = Arc::new(Mutex::new(Vec::new()));
    let listeners: Vec<_> = open(daemon, LISTENERS)
        .await
        .into_iter()
        .map(|reader| tokio::spawn(listen(reader, times.clone())))
        .collect();
    let set = std::env::var("EFFECTD_BENCH_MS").ok();
    let lasts = Duration::from_millis(set.and_then(|text| text.parse().ok()).unwrap_or(10_000));
    let (next, begun) = (AtomicU64::new(0), Instant::now());
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    while begun.elapsed() < lasts {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        let due = Duration::from_secs(n) / u32::try_from(ACTIONS_PER_SECOND).unwrap();
                        std::thread::sleep(due.saturating_sub(begun.elapsed()));
                        hold_and_deny(daemon, n);
                    }
                });
            }
        });
    });
    let actions = next.into_inner();
    let rate = 2.0 * actions as f64 / begun.elapsed().as_secs_f64();
    let all = usize::try_from(actions).unwrap() * LISTENERS;
    while times.lock().len() < all {
        assert!(!listeners.iter().any(JoinHandle::is_finished), "a stream has ended");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    listeners.into_iter().for_each(|listener| listener.abort());
    (rate, std::mem::take(&mut *times.lock()))
}

fn hold_and_deny(daemon: &Daemon, n: u64) {
    let request = json!({
        "action_id": format!("s-{n}"),
        "subject_id": "agent://planner@deviceA",
        "space_id": "shared:household",
        "tool_id": "files.write_text",
        "params": { "path": format!("workspace/s-{n}.txt"), "text": "x", "space_id": "shared:household" },
        "policy_ctx": { "actor": "alice", "device": "phone1" },
    });
    let held: Value = serde_json::from_str(&daemon.ask("POST", "/v1/actions?wait", &request)).unwrap();
    let approval = held["approval"]["approval_id"].as_str().unwrap_or_else(|| panic!("{held}"));
    daemon.ask("POST", &format!("/v1/approvals/{approval}/deny"), &json!({}));
}

async fn listen(mut reader: Listener, times: Arc<Mutex<Vec<Duration>>>) {
    let (mut line, mut is_denial) = (String::new(), false);
    loop {
        line.clear();
        assert_ne!(reader.read_line(&mut line).await.unwrap(), 0, "the stream has ended");
        if let Some(name) = line.strip_prefix("event: ") {
            is_denial = name == "action_approval_result\n";
        } else if let Some(data) = line.strip_prefix("data: ").filter(|_| is_denial) {
            let now = Timestamp::now();
            let data: Value = serde_json::from_str(data).unwrap();
            let at: Timestamp = data["approved_at"].as_str().unwrap().parse().unwrap();
            times.lock().push(now.duration_since(at).try_into().unwrap_or(Duration::ZERO));
        }
    }
}
