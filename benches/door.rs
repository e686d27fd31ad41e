//! The doors beside each other: `cargo bench --bench door`.
//!
//! The same request again, which is answered from its receipt, on one connection that stays open: at the unix socket and over TCP with a
//! token, in turns, since a machine is not as fast in one minute as in the next; each is first in every second pair, and one pair is not
//! counted. The ratio is the median of the pairs, shown with the least and the greatest; the goal is 0.8. `$EFFECTD_BENCH_MS` sets how
//! long each turn takes, `$EFFECTD_BENCH_DIR` where the state lies.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has nothing to say")]
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "it is a client of the daemon")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

#[path = "figures/lines.rs"]
mod lines;
#[path = "figures/program.rs"]
mod program;

const PAIRS: usize = 7;
const GOAL: f64 = 0.8;
/// A rate would be measured instead of the door.
const UNLIMITED: [&str; 7] = [
    // Nor is a connection idle while the other has its turn.
    "--set=gateway.header_time_ms_max=600000",
    "--set=gateway.token_rate_max=0",
    "--set=control.principal_rate_max=0",
    "--set=control.subject_rate_max=0",
    "--set=control.space_rate_max=0",
    "--set=control.tool_rate_max=0",
    "--set=log.level=warn",
];

fn main() {
    let base = std::env::var_os("EFFECTD_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let scratch = tempfile::Builder::new().prefix("effectd-door").tempdir_in(base).expect("a directory");
    let daemon = Daemon::start(scratch.path());
    let token = daemon.token();
    let at_socket = UnixStream::connect(scratch.path().join(".effectd/run/effectd.sock")).expect("a socket");
    let over_tcp = TcpStream::connect(&daemon.address).expect("an address");
    over_tcp.set_nodelay(true).expect("an option");
    let bearer = format!("authorization: Bearer {token}\r\n");
    let mut socket = Door::new("unix socket", at_socket, "");
    let mut tcp = Door::new("tcp", over_tcp, &bearer);
    println!("{:<14} {:>9} {:>9} {:>9}", "", "per s", "p50 µs", "p99 µs");
    let mut pair = |n: usize| {
        if n.is_multiple_of(2) {
            let socket = socket.turn();
            return tcp.turn() / socket;
        }
        tcp.turn() / socket.turn()
    };
    println!("not counted: {:.2}", pair(0));
    let mut ratios: Vec<f64> = (0..PAIRS).map(pair).collect();
    ratios.sort_by(f64::total_cmp);
    let (least, ratio, greatest) = (ratios[0], ratios[PAIRS / 2], ratios[PAIRS - 1]);
    let verdict = if ratio >= GOAL { "met" } else { "MISSED" };
    println!(
        "over TCP, over the socket's rate: {ratio:.2}, {least:.2} to {greatest:.2} (goal {GOAL}: {verdict})"
    );
}

fn effectd(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = program::program(env!("CARGO_BIN_EXE_effectd"));
    command.current_dir(folder).args(arguments).args(["--state", ".effectd"]);
    command
}

/// A daemon at both doors, with a policy by which accounts may ask for what users may.
struct Daemon<'a> {
    folder: &'a Path,
    child: Child,
    address: String,
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<'a> Daemon<'a> {
    fn start(folder: &'a Path) -> Self {
        assert!(effectd(folder, &["init"]).stdout(Stdio::null()).status().expect("a program").success());
        let file = folder.join(".effectd/policy/policy.toml");
        let text = std::fs::read_to_string(&file).expect("a policy");
        let users =
            "[principals.\"user://*\"]\nsubjects = [\"agent://planner@deviceA\"]\nactors = [\"alice\"]\n";
        let both = format!("{users}\n{}", users.replace("user://*", "account://*"));
        let changed = text.replace(users, &both).replace("night_from = \"22:00\"", "night_from = \"06:00\"");
        assert_ne!(changed, text, "the policy names users");
        std::fs::write(file, changed).expect("a policy");
        let mut child = effectd(folder, &["serve", "--listen", "127.0.0.1:0"])
            .args(UNLIMITED)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a daemon");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
        let address = line.trim_end().strip_prefix("listening on http://").expect("an address").to_owned();
        Self { folder, child, address }
    }

    fn token(&self) -> String {
        let create = ["tokens", "create", "--kind", "user", "--org", "home", "--name", "bench", "--yes"];
        let made = effectd(self.folder, &create).output().expect("a program");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        String::from_utf8(made.stdout).expect("a text").trim_end().to_owned()
    }
}

/// One connection, and the request that it sends again and again.
struct Door<S> {
    name: &'static str,
    stream: BufReader<S>,
    request: String,
}

impl<S: Read + Write> Door<S> {
    fn new(name: &'static str, stream: S, headers: &str) -> Self {
        let body = json!({
            "action_id": format!("door-{}", name.replace(' ', "-")),
            "subject_id": "agent://planner@deviceA", "space_id": "shared:household", "tool_id": "files.write_text",
            "params": { "path": "workspace/door.txt", "text": name, "space_id": "shared:household" },
            "policy_ctx": { "actor": "alice", "device": "phone1" },
        })
        .to_string();
        let request = format!(
            "POST /v1/actions?wait HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut door = Self { name, stream: BufReader::new(stream), request };
        // The first one is done; all others are answered from its receipt.
        door.ask();
        door
    }

    fn ask(&mut self) {
        self.stream.get_mut().write_all(self.request.as_bytes()).expect("a request is sent");
        let (mut line, mut length) = (String::new(), 0);
        self.stream.read_line(&mut line).expect("an answer");
        assert!(line.starts_with("HTTP/1.1 200"), "{}: {line}", self.name);
        while line != "\r\n" {
            line.clear();
            self.stream.read_line(&mut line).expect("a header");
            if let Some(text) = line.to_lowercase().strip_prefix("content-length:") {
                length = text.trim().parse().expect("a length");
            }
        }
        self.stream.read_exact(&mut vec![0; length]).expect("a body");
    }

    /// Asks for a while, and returns how often in a second.
    fn turn(&mut self) -> f64 {
        let set = std::env::var("EFFECTD_BENCH_MS").ok().and_then(|text| text.parse().ok());
        let measured = Duration::from_millis(set.unwrap_or(1_000));
        let (begun, mut times) = (Instant::now(), Vec::new());
        while begun.elapsed() < measured {
            let before = Instant::now();
            self.ask();
            times.push(before.elapsed());
        }
        let per_second = times.len() as f64 / begun.elapsed().as_secs_f64();
        times.sort();
        let at = |percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e6;
        println!("{:<14} {per_second:>9.0} {:>9.0} {:>9.0}", self.name, at(50), at(99));
        lines::note(json!({ "bench": "door", "door": self.name, "per_s": per_second }), &times);
        per_second
    }
}
