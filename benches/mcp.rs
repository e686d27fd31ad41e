//! What the door for MCP clients costs: `cargo bench --bench mcp`.
//!
//! The same action by `/v1/actions` and as a call of its tool at `/mcp`, in turns, each on one connection that stays open: the difference
//! of the medians is the door's own part, and the goal is 0.3 ms. Then the list of a thousand tools, with a goal of 20 ms, and the list
//! without them in bytes. `benches/peers/run --only mcp` has the gateways of others. `$EFFECTD_BENCH_MS` sets how long each part takes,
//! `$EFFECTD_BENCH_DIR` where the state lies.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has nothing to say")]
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "it is a client of the daemon")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ExitCode, Stdio};
use std::time::{Duration, Instant};

use effectd::adapters::{Tool, Workspace};
use effectd::contracts::{Failure, ToolCall, ToolOutput, ToolSpec};
use serde_json::{Map, Value, json};

#[path = "figures/lines.rs"]
mod lines;
#[path = "figures/program.rs"]
mod program;

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TOOLS: usize = 1_000;
const CALL_GOAL: Duration = Duration::from_micros(300);
const LIST_GOAL: Duration = Duration::from_millis(20);
/// What the list of the built-in tools may cost a model's context.
const LIST_BYTES_GOAL: usize = 24_000;
const VERSION: &str = "2026-07-28";
/// A rate would be measured instead of the door.
const UNLIMITED: [&str; 5] = [
    "--set=control.principal_rate_max=0",
    "--set=control.subject_rate_max=0",
    "--set=control.space_rate_max=0",
    "--set=control.tool_rate_max=0",
    "--set=log.level=warn",
];
/// The program's own tools.
const CONSENT: &str = r#"
[[consents]]
subject = "agent://planner@deviceA"
space = "shared:code"
tools = ["bench.*"]
"#;

fn main() -> ExitCode {
    // In a process that the sandbox started this does not return.
    effectd::init(tools());
    // This program is the daemon, too.
    if std::env::args().nth(1).is_some_and(|first| !first.starts_with('-')) {
        return effectd::cli::main();
    }
    let base = std::env::var_os("EFFECTD_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let scratch = tempfile::Builder::new().prefix("effectd-mcp").tempdir_in(base).expect("a directory");
    let (plain, full) = (scratch.path().join("plain"), scratch.path().join("full"));
    println!("{:<26} {:>9} {:>9}", "", "p50 µs", "p99 µs");
    let mut daemon = Daemon::start(&plain, "");
    calls(&daemon);
    let bytes = serde_json::to_vec(&daemon.connect().list().0).expect("a list").len();
    daemon.stop();
    println!(
        "the built-in tools: {bytes} bytes (goal {LIST_BYTES_GOAL}: {})",
        verdict(bytes <= LIST_BYTES_GOAL)
    );
    let mut daemon = Daemon::start(&full, CONSENT);
    list(&daemon);
    daemon.stop();
    ExitCode::SUCCESS
}

fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "MISSED" }
}

/// The same action at both routes.
fn calls(daemon: &Daemon) {
    let (mut v1, mut mcp) = (daemon.connect(), daemon.connect());
    let (mut by_v1, mut by_mcp) = (Vec::new(), Vec::new());
    let (begun, measured) = (Instant::now(), measured());
    for turn in 0_u32.. {
        if begun.elapsed() > measured {
            break;
        }
        by_v1.push(v1.act(turn));
        by_mcp.push(mcp.call(turn));
    }
    let door = report("/mcp", by_mcp).saturating_sub(report("/v1/actions", by_v1));
    println!(
        "the door's own part: {} µs (goal {}: {})",
        door.as_micros(),
        CALL_GOAL.as_micros(),
        verdict(door <= CALL_GOAL)
    );
}

fn list(daemon: &Daemon) {
    let (mut connection, mut times) = (daemon.connect(), Vec::new());
    let (begun, measured) = (Instant::now(), measured());
    while begun.elapsed() < measured {
        let (tools, took) = connection.list();
        times.push(took);
        assert!(tools.as_array().is_some_and(|tools| tools.len() > TOOLS), "the policy permits all of them");
    }
    let took = report("a list of 1,000 tools", times);
    println!(
        "the list: {} ms (goal {}: {})",
        took.as_millis(),
        LIST_GOAL.as_millis(),
        verdict(took <= LIST_GOAL)
    );
}

fn measured() -> Duration {
    let set = std::env::var("EFFECTD_BENCH_MS").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(set.unwrap_or(3_000))
}

/// Prints the figures, and returns the median.
fn report(what: &str, mut times: Vec<Duration>) -> Duration {
    times.sort();
    let at = |percent: usize| times[times.len() * percent / 100];
    println!("{what:<26} {:>9} {:>9}", at(50).as_micros(), at(99).as_micros());
    lines::note(json!({ "bench": "mcp", "what": what }), &times);
    at(50)
}

struct Daemon<'a> {
    folder: &'a Path,
    child: Child,
}

impl<'a> Daemon<'a> {
    /// A daemon with the preset for agents, and more in its policy.
    fn start(folder: &'a Path, more: &str) -> Self {
        std::fs::create_dir(folder).expect("a folder");
        let program = std::env::current_exe().expect("a program");
        let effectd = |arguments: &[&str]| {
            let mut command = program::program(&program);
            command.current_dir(folder).args(arguments).args(["--state", ".effectd"]).stdout(Stdio::null());
            command
        };
        assert!(effectd(&["init", "--preset", "coding"]).status().expect("a program").success());
        let policy = folder.join(".effectd/policy/policy.toml");
        let text = std::fs::read_to_string(&policy).expect("a policy");
        std::fs::write(policy, text + more).expect("a policy");
        let child = effectd(&["serve"]).args(UNLIMITED).spawn().expect("a daemon");
        Self { folder, child }
    }

    fn connect(&self) -> Connection {
        let (socket, begun) = (self.folder.join(".effectd/run/effectd.sock"), Instant::now());
        loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => return Connection(BufReader::new(stream)),
                Err(error) if begun.elapsed() > Duration::from_secs(30) => panic!("no daemon: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn stop(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

struct Connection(BufReader<UnixStream>);

impl Connection {
    fn act(&mut self, turn: u32) -> Duration {
        let body = json!({
            "action_id": format!("v1-{turn}"), "subject_id": "agent://planner@deviceA", "space_id": "shared:code",
            "tool_id": "core.diagnose_error", "params": { "error_text": format!("by v1, {turn}") },
        });
        let (answer, took) = self.post("/v1/actions?wait", "", &body);
        assert_eq!(answer["state"], "done", "{answer}");
        took
    }

    fn call(&mut self, turn: u32) -> Duration {
        let arguments = json!({ "error_text": format!("by mcp, {turn}") });
        let params = json!({ "name": "core_diagnose_error", "arguments": arguments });
        let (answer, took) = self.ask("tools/call", "mcp-name: core_diagnose_error\r\n", params);
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        took
    }

    fn list(&mut self) -> (Value, Duration) {
        let (mut answer, took) = self.ask("tools/list", "", json!({}));
        (answer["result"]["tools"].take(), took)
    }

    fn ask(&mut self, method: &str, headers: &str, mut params: Value) -> (Value, Duration) {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {},
        });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let headers = format!("mcp-protocol-version: {VERSION}\r\nmcp-method: {method}\r\n{headers}");
        self.post("/mcp", &headers, &body)
    }

    /// The answer to a request, and how long it took.
    fn post(&mut self, path: &str, headers: &str, body: &Value) -> (Value, Duration) {
        let body = body.to_string();
        let head = "host: localhost\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\n";
        let request =
            format!("POST {path} HTTP/1.1\r\n{head}{headers}content-length: {}\r\n\r\n{body}", body.len());
        let begun = Instant::now();
        self.0.get_mut().write_all(request.as_bytes()).expect("a request is sent");
        let (mut line, mut length) = (String::new(), 0);
        self.0.read_line(&mut line).expect("an answer");
        assert!(line.starts_with("HTTP/1.1 200"), "{path}: {line}");
        while line != "\r\n" {
            line.clear();
            self.0.read_line(&mut line).expect("a header");
            if let Some(text) = line.to_lowercase().strip_prefix("content-length:") {
                length = text.trim().parse().expect("a length");
            }
        }
        let mut answer = vec![0; length];
        self.0.read_exact(&mut answer).expect("a body");
        let took = begun.elapsed();
        (serde_json::from_slice(&answer).expect("JSON"), took)
    }
}

/// A built-in tool under another name.
struct Named {
    id: &'static str,
    like: &'static dyn Tool,
}

/// The bench's own tools, for the daemon and for the sandbox's child, which is the same program. They are never freed.
fn tools() -> effectd::Tools {
    let like = effectd::adapters::all().iter().find(|tool| tool.id() == "files.read_text");
    let like = *like.expect("it is built in");
    let named = (0..TOOLS).map(|number| {
        let id = String::leak(format!("bench.read_{number:04}"));
        let tool: &'static dyn Tool = Box::leak(Box::new(Named { id, like }));
        tool
    });
    Vec::leak(named.collect())
}

impl Tool for Named {
    fn id(&self) -> &'static str {
        self.id
    }

    fn spec(&self) -> ToolSpec {
        ToolSpec { tool_id: self.id.parse().expect("an id"), ..self.like.spec() }
    }

    fn example(&self) -> Value {
        self.like.example()
    }

    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        self.like.check(params)
    }

    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        self.like.run(workspace, call)
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        self.like.dry_run(workspace, call)
    }
}
