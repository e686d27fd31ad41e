//! What connectors cost: `cargo bench --bench connectors`.
//!
//! A call of a program that is an MCP server, by a daemon that keeps it warm, and the same call by a client that holds its pipes, in turns:
//! the difference of the medians is effectd's own part, and the goal is 1.5 ms. Such a client is quicker than any that others use, so
//! over those the part is smaller. Then the listing of a thousand tools over HTTP, all of which have changed, with a goal of a second; a call
//! of one of them, which lists them before; and the comparison of a description with the one that was judged, with a goal of 50 µs.
//! Last, all connectors that an organisation may have, with a thousand tools each, and what others wait meanwhile. `$EFFECTD_BENCH_MS` sets
//! how long each part takes, `$EFFECTD_BENCH_DIR` where the state lies.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a benchmark that cannot be set up has nothing to say"
)]
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "it is a client of the daemon")]
#![allow(unreachable_pub, reason = "the harness of the tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use effectd::contracts::{Ask, Harvested, Pinned};
use mcp_server::{McpServer, STDIO_SERVER, many, tool};
use serde_json::{Map, Value, json};

#[path = "figures/lines.rs"]
mod lines;
#[path = "../tests/harness/mcp_server.rs"]
#[allow(dead_code, reason = "it uses some of it")]
mod mcp_server;
#[path = "figures/program.rs"]
mod program;

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long the server of the tests may be waited for.
const LONG: Duration = Duration::from_secs(60);
const TOOLS: usize = 1_000;
/// Most of an organisation.
const CONNECTORS: usize = 20;
/// Those of the parts before.
const CONNECTORS_BEFORE: usize = 2;
const CALL_GOAL: Duration = Duration::from_micros(1_500);
const HARVEST_GOAL: Duration = Duration::from_secs(1);
const DRIFT_GOAL: Duration = Duration::from_micros(50);
/// A rate would be measured instead.
const UNLIMITED: [&str; 5] = [
    "--set=control.principal_rate_max=0",
    "--set=control.subject_rate_max=0",
    "--set=control.space_rate_max=0",
    "--set=control.tool_rate_max=0",
    "--set=log.level=warn",
];

fn main() -> ExitCode {
    // In a process that the sandbox started this does not return.
    effectd::init(&[]);
    // This program is the daemon, too.
    if std::env::args().nth(1).is_some_and(|first| !first.starts_with('-')) {
        return effectd::cli::main();
    }
    let base = std::env::var_os("EFFECTD_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let scratch =
        tempfile::Builder::new().prefix("effectd-connectors").tempdir_in(base).expect("a directory");
    // A folder of programs cannot be in /tmp, which every program has for itself.
    let programs =
        tempfile::Builder::new().prefix("effectd-programs").tempdir_in("/var/tmp").expect("a directory");
    std::fs::write(programs.path().join("server.py"), STDIO_SERVER).expect("a program");
    println!("{:<26} {:>9} {:>9}", "", "p50 µs", "p99 µs");
    drift();
    let mut daemon = Daemon::start(scratch.path());
    let many = McpServer::with(|behaviour| behaviour.tools = many(TOOLS));
    harvest(&daemon, &many);
    calls(&daemon, programs.path());
    crowd(&daemon, &many);
    daemon.stop();
    ExitCode::SUCCESS
}

fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "MISSED" }
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
    lines::note(json!({ "bench": "connectors", "what": what }), &times);
    at(50)
}

/// What the child does with the description that the server has listed.
fn drift() {
    let mut listed = tool("search");
    let property =
        json!({ "type": "string", "description": "What to look for.", "enum": ["a", "b"], "default": "a" });
    let properties: Map<_, _> = (0..12).map(|at| (format!("property_{at}"), property.clone())).collect();
    listed["inputSchema"]["properties"] = Value::Object(properties);
    let now = Harvested {
        name: "search".to_owned(),
        title: None,
        description: listed["description"].as_str().map(str::to_owned),
        input_schema: listed["inputSchema"].take(),
        output_schema: None,
        annotations: Map::new(),
    };
    let ask = Ask::Call { pinned: Pinned::of(&now) };
    let (mut times, begun) = (Vec::new(), Instant::now());
    while begun.elapsed() < measured() / 3 {
        let begun = Instant::now();
        ask.check(std::hint::black_box(Some(&now))).expect("it has not drifted");
        times.push(begun.elapsed());
    }
    let took = report("a check for drift", times);
    println!(
        "the check: {} µs (goal {}: {})",
        took.as_micros(),
        DRIFT_GOAL.as_micros(),
        verdict(took <= DRIFT_GOAL)
    );
}

/// The connection of a server that is reached by HTTP.
fn by_http(server: &McpServer, name: &str) -> Value {
    let access =
        json!({ "scheme": "http", "port": server.port, "allow": ["127.0.0.0/8"], "routes": ["POST /mcp"] });
    json!({
        "org": "work", "source": "connector", "name": name, "hosts": ["127.0.0.1"], "access": access,
        "connector": { "transport": { "kind": "http", "path": "/mcp" } },
    })
}

fn harvest(daemon: &Daemon, server: &McpServer) {
    let mut connection = daemon.connect();
    let id = connection.add(&by_http(server, "Many"));
    let (mut times, begun) = (Vec::new(), Instant::now());
    while begun.elapsed() < measured() {
        // Nothing of the list before is of use.
        let nth = times.len();
        server.change(|server| {
            server.tools.iter_mut().for_each(|tool| tool["description"] = format!("List {nth}.").into());
        });
        let (_, took) = connection.post(&format!("/v1/connectors/{id}/harvest"), &json!({}));
        times.push(took);
    }
    let took = report("a harvest of 1,000 tools", times);
    println!(
        "the harvest: {} ms (goal {}: {})",
        took.as_millis(),
        HARVEST_GOAL.as_millis(),
        verdict(took <= HARVEST_GOAL)
    );
    connection.accept(&id, "tool_00999");
    let (mut times, begun) = (Vec::new(), Instant::now());
    for turn in 0_u32.. {
        if begun.elapsed() > measured() / 3 {
            break;
        }
        times.push(connection.call(&id, "tool_00999", turn));
    }
    report("a call of one of 1,000", times);
}

/// All connectors that an organisation may have. Each harvest adds a thousand tools to those that are there.
fn crowd(daemon: &Daemon, server: &McpServer) {
    let (mut connection, is_over) = (daemon.connect(), AtomicBool::new(false));
    let (harvests, answers) = std::thread::scope(|scope| {
        let meanwhile = scope.spawn(|| {
            let (mut connection, mut times) = (daemon.connect(), Vec::new());
            while !is_over.load(Ordering::Relaxed) {
                times.push(connection.ask("GET", "/v1/whoami", "").1);
            }
            times
        });
        let mut times = Vec::new();
        for nth in CONNECTORS_BEFORE..CONNECTORS {
            let id = connection.add(&by_http(server, &format!("Many {nth}")));
            times.push(connection.post(&format!("/v1/connectors/{id}/harvest"), &json!({})).1);
        }
        is_over.store(true, Ordering::Relaxed);
        (times, meanwhile.join().expect("it asks"))
    });
    let longest = answers.iter().max().copied().unwrap_or_default();
    println!("the harvest beside 19,000 tools: {} ms", harvests.last().map_or(0, Duration::as_millis));
    report("a harvest beside others", harvests);
    report("an answer meanwhile", answers);
    println!("the longest wait for an answer meanwhile: {} ms", longest.as_millis());
}

/// The same call of the same program, by effectd and by a client at its pipes.
fn calls(daemon: &Daemon, programs: &Path) {
    let (mut connection, server) = (daemon.connect(), programs.join("server.py"));
    let argv = json!(["/usr/bin/python3", "-I", server]);
    let id = connection.add(&json!({
        "org": "work", "source": "connector", "name": "Local", "hosts": [],
        "connector": { "transport": { "kind": "stdio", "argv": argv, "programs": [programs] } },
    }));
    connection.post(&format!("/v1/connectors/{id}/harvest"), &json!({}));
    connection.accept(&id, "echo");
    let mut direct = Direct::start(&server);
    let (mut by_effectd, mut by_pipe) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    for turn in 0_u32.. {
        if begun.elapsed() > measured() {
            break;
        }
        let took = connection.call(&id, "echo", turn);
        // The first call starts the program.
        if turn > 0 {
            by_effectd.push(took);
        }
        by_pipe.push(direct.call(turn));
    }
    let own = report("a call by effectd", by_effectd).saturating_sub(report("a call at the pipes", by_pipe));
    println!(
        "effectd's own part: {} µs (goal {}: {})",
        own.as_micros(),
        CALL_GOAL.as_micros(),
        verdict(own <= CALL_GOAL)
    );
}

/// A client that holds the pipes of the program, and nothing else.
struct Direct {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Direct {
    fn start(server: &PathBuf) -> Self {
        let mut command = Command::new("/usr/bin/python3");
        command.arg("-I").arg(server).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a program");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, lines }
    }

    fn call(&mut self, turn: u32) -> Duration {
        let begun = Instant::now();
        let params = json!({ "name": "echo", "arguments": { "text": format!("call {turn}") } });
        let asked = json!({ "jsonrpc": "2.0", "id": turn, "method": "tools/call", "params": params });
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{asked}").expect("it reads");
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it answers");
        assert!(line.contains(&format!("call {turn}")), "{line}");
        begun.elapsed()
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

struct Daemon<'a> {
    folder: &'a Path,
    child: Child,
}

impl<'a> Daemon<'a> {
    /// A daemon with the preset for agents, whose agent may call tools of connectors.
    fn start(folder: &'a Path) -> Self {
        let program = std::env::current_exe().expect("a program");
        let effectd = |arguments: &[&str]| {
            let mut command = program::program(&program);
            command.current_dir(folder).args(arguments).args(["--state", ".effectd"]).stdout(Stdio::null());
            command
        };
        assert!(effectd(&["init", "--preset", "coding"]).status().expect("a program").success());
        let policy = folder.join(".effectd/policy/policy.toml");
        let text = std::fs::read_to_string(&policy).expect("a policy");
        let with = text.replacen("\"diagnose\",", "\"diagnose\", \"connector.read\", \"connector.call\",", 1);
        let with = with.replacen("hosts = []", "hosts = [\"127.0.0.1\"]", 1);
        assert_ne!(text, with);
        std::fs::write(policy, with).expect("a policy");
        let child = effectd(&["serve"]).args(UNLIMITED).spawn().expect("a daemon");
        Self { folder, child }
    }

    fn connect(&self) -> Connection {
        let (socket, begun) = (self.folder.join(".effectd/run/effectd.sock"), Instant::now());
        loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => return Connection(BufReader::new(stream)),
                Err(error) if begun.elapsed() > LONG => panic!("no daemon: {error}"),
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
    fn add(&mut self, body: &Value) -> String {
        self.post("/v1/connections", body).0["id"].as_str().expect("an id").to_owned()
    }

    fn post(&mut self, path: &str, body: &Value) -> (Value, Duration) {
        self.ask("POST", path, &body.to_string())
    }

    /// Accepts the tools of a connector, and that one of them reads.
    fn accept(&mut self, id: &str, tool: &str) {
        let reads = json!({ "risk": "read" }).to_string();
        self.ask("PUT", &format!("/v1/connectors/{id}/tools/{tool}"), &reads);
        let shown = self.ask("GET", &format!("/v1/connectors/{id}"), "").0;
        self.post(&format!("/v1/connectors/{id}/review"), &json!({ "digest": shown["digest"] }));
    }

    /// How long a call of a tool takes.
    fn call(&mut self, id: &str, tool: &str, turn: u32) -> Duration {
        let request = json!({
            "action_id": format!("{tool}-{turn}"), "subject_id": "agent://planner@deviceA",
            "space_id": "shared:code", "tool_id": format!("connector:{id}.{tool}"),
            "params": { "text": format!("call {turn}") },
        });
        let (answer, took) = self.post("/v1/actions?wait", &request);
        assert_eq!(answer["state"], "done", "{answer}");
        took
    }

    /// The answer to a request, and how long it took.
    fn ask(&mut self, method: &str, path: &str, body: &str) -> (Value, Duration) {
        let head = "host: localhost\r\ncontent-type: application/json\r\n";
        let request =
            format!("{method} {path} HTTP/1.1\r\n{head}content-length: {}\r\n\r\n{body}", body.len());
        let begun = Instant::now();
        self.0.get_mut().write_all(request.as_bytes()).expect("a request is sent");
        let (mut line, mut length) = (String::new(), 0);
        self.0.read_line(&mut line).expect("an answer");
        let status = line.clone();
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
        assert!(status.starts_with("HTTP/1.1 20"), "{path}: {status}{}", String::from_utf8_lossy(&answer));
        (serde_json::from_slice(&answer).expect("JSON"), took)
    }
}
