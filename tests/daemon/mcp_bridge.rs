//! `effectd mcp`: the bridge between an agent and a daemon, what it starts, and what `mcp install` writes.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::approvals::{asking, held};
use crate::harness::{LONG, Place, Ran, Serving, program, root, run_to_end, until};
use crate::mcp::{LIST_BYTES_MAX, gate, receipts, run_slowly, serve_missing, slow, until_missed};
use crate::runbook::blocks;

const PAGE: &str = "docs/mcp.md";
const LEGACY: &str = "2025-11-25";

/// A project, and the home of the user who works on it.
struct Desk {
    place: Place,
}

impl Desk {
    fn new() -> Self {
        let place = Place::new();
        for folder in ["home", "my-project"] {
            std::fs::create_dir(place.path(folder)).unwrap();
        }
        Self { place }
    }

    /// With a policy whose tools may be as slow as this machine.
    fn installed() -> Self {
        let desk = Self::new();
        let told = desk.effectd(&["mcp", "install", "--yes", "-o", "json"]).json(0);
        assert_eq!(told["policy_written"], true, "{told}");
        let file = Path::new(told["policy"].as_str().unwrap()).join("policy.toml");
        let times = "\n[timeouts]\nlow_ms = 60000\nmedium_ms = 59000\nhigh_ms = 59000\n";
        std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + times).unwrap();
        desk
    }

    fn project(&self) -> PathBuf {
        self.place.path("my-project")
    }

    fn home(&self, name: &str) -> PathBuf {
        self.place.path("home").join(name)
    }

    /// The states of all projects.
    fn states(&self) -> Vec<PathBuf> {
        let found = std::fs::read_dir(self.home(".local/state/effectd"));
        found.into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.place.command(arguments);
        command.current_dir(self.project()).env("HOME", self.place.path("home"));
        command
    }

    fn effectd(&self, arguments: &[&str]) -> Ran {
        run_to_end(self.command(arguments), "")
    }

    fn agent(&self, arguments: &[&str]) -> Agent {
        let mut child = self.command(&[&["mcp"], arguments].concat()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if send.send(serde_json::from_str(&line).unwrap_or(Value::String(line))).is_err() {
                    return;
                }
            }
        });
        Agent { child, lines }
    }

    /// The daemons of this desk's projects.
    fn daemons(&self) -> Vec<Pid> {
        let states = self.states();
        let is_ours = |word: &[u8]| states.iter().any(|state| state.as_os_str().as_encoded_bytes() == word);
        let found = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            let serves = words.get(1).is_some_and(|word| *word == b"serve") && words.into_iter().any(is_ours);
            serves.then(|| Pid::from_raw(pid))
        });
        found.collect()
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        for pid in self.daemons() {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
}

/// An agent at the other end of a bridge.
struct Agent {
    child: Child,
    lines: Receiver<Value>,
}

impl Agent {
    fn send(&mut self, message: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(message.as_bytes()).and_then(|()| input.write_all(b"\n")).unwrap();
    }

    fn notify(&mut self, method: &str) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method }).to_string());
    }

    /// The next message.
    #[track_caller]
    fn hear(&self) -> Value {
        self.lines.recv_timeout(LONG).expect("the bridge says something")
    }

    /// The answer to a request. Notifications may come before it.
    #[track_caller]
    fn ask(&mut self, id: &str, method: &str, params: &Value) -> Value {
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(&request.to_string());
        loop {
            let message = self.hear();
            if message["id"] == id {
                return message;
            }
            assert!(message.get("method").is_some(), "{message}");
        }
    }

    #[track_caller]
    fn begin(&mut self) -> Value {
        let params = json!({
            "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
        });
        let answer = self.ask("begin", "initialize", &params);
        assert_eq!(answer["result"]["protocolVersion"], LEGACY, "{answer}");
        self.notify("notifications/initialized");
        answer
    }

    /// Closes its end, and returns the exit code of the bridge.
    fn leave(mut self) -> Option<i32> {
        drop(self.child.stdin.take());
        self.child.wait().unwrap().code()
    }
}

#[test]
fn without_a_policy_an_agent_hears_which_command_makes_one() {
    let desk = Desk::new();
    let mut agent = desk.agent(&[]);
    let begun = agent.begin();
    let advice = begun["result"]["instructions"].as_str().unwrap().to_owned();
    assert!(advice.contains("effectd mcp install") && advice.contains("my-project"), "{advice}");
    assert_eq!(agent.ask("p", "ping", &json!({}))["result"], json!({}));
    let listed = agent.ask("l", "tools/list", &json!({}));
    assert_eq!(listed["result"]["tools"], json!([]), "{listed}");
    assert_eq!(listed["result"]["_meta"]["effectd/advice"], advice.as_str());
    let called = agent.ask("c", "tools/call", &json!({ "name": "files_list", "arguments": {} }));
    assert_eq!(called["error"]["message"], advice.as_str(), "{called}");
    let meta = json!({ "_meta": { "io.modelcontextprotocol/protocolVersion": "2026-07-28" } });
    let found = agent.ask("d", "server/discover", &meta)["result"].clone();
    assert_eq!(found["supportedVersions"], json!(["2026-07-28", LEGACY, "2025-06-18"]), "{found}");
    assert_eq!((&found["resultType"], &found["instructions"]), (&json!("complete"), &json!(advice)));
    let tried = desk.effectd(&["mcp", "try"]);
    assert_eq!(tried.code(), 2);
    assert!(tried.stderr().contains(&advice), "{}", tried.stderr());
    assert_eq!(desk.states(), Vec::<PathBuf>::new(), "nobody asked for a state");
    assert_eq!(desk.effectd(&["mcp", "install", "--yes"]).code(), 0);
    assert_eq!(agent.hear()["method"], "notifications/tools/list_changed");
    assert_eq!(desk.daemons(), Vec::<Pid>::new(), "nobody asked for a tool");
    assert_eq!(agent.leave(), Some(0));
}

#[test]
fn bad_lines_and_a_daemon_that_is_gone_are_answered() {
    let desk = Desk::new();
    // With a state, too: nobody starts a daemon at a socket that is named.
    let mut agent = desk.agent(&["--state", "elsewhere", "--socket", "nowhere.sock"]);
    for (line, code) in [("nonsense", -32_700), ("[{}]", -32_600)] {
        agent.send(line);
        let answer = agent.hear();
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &Value::Null), "{answer}");
    }
    agent.send(&"x".repeat(16 * 1_048_576 + 1));
    let answer = agent.hear();
    assert!(answer["error"]["message"].as_str().unwrap().contains("at most 16777216 bytes"), "{answer}");
    // Neither an empty line nor a notification has an answer.
    agent.send("");
    agent.notify("notifications/cancelled");
    let answer = agent.ask("p", "ping", &json!({}));
    assert_eq!(answer["error"]["code"], -32_603, "{answer}");
    let why = answer["error"]["message"].as_str().unwrap();
    assert!(why.contains("nowhere.sock") && why.contains("effectd serve"), "{why}");
    assert_eq!(agent.leave(), Some(0));
    assert_eq!(desk.states(), Vec::<PathBuf>::new());
}

/// The next connection of the bridge, and the request on it.
fn accept(listener: &UnixListener) -> (UnixStream, String) {
    let mut accepted = None;
    until("the bridge connects", || {
        accepted = listener.accept().ok().map(|(stream, _)| stream);
        accepted.is_some()
    });
    let mut stream = accepted.unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut request = Vec::new();
    let mut piece = [0; 4_096];
    // Each body here ends with the brace of its object; a GET has none.
    while !(request.ends_with(b"}") || request.starts_with(b"GET ") && request.ends_with(b"\r\n\r\n")) {
        let length = stream.read(&mut piece).unwrap();
        assert_ne!(length, 0, "{}", String::from_utf8_lossy(&request));
        request.extend_from_slice(&piece[..length]);
    }
    (stream, String::from_utf8(request).unwrap())
}

#[test]
fn a_stream_holds_up_no_other_and_is_closed_when_cancelled() {
    let desk = Desk::new();
    let listener = UnixListener::bind(desk.project().join("fake.sock")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut agent = desk.agent(&["--socket", "fake.sock"]);
    agent.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {} }).to_string());
    let (mut first, request) = accept(&listener);
    for part in
        ["POST /mcp HTTP/1.1\r\n", "accept: application/json, text/event-stream\r\n", "\"tools/call\""]
    {
        assert!(request.contains(part), "{part}: {request}");
    }
    let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress" });
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    first.write_all(format!("{head}: begun\n\ndata: {progress}\n\n").as_bytes()).unwrap();
    assert_eq!(agent.hear(), progress);
    agent.send(&json!({ "jsonrpc": "2.0", "id": 2, "method": "ping" }).to_string());
    let (mut second, _) = accept(&listener);
    let pong = json!({ "jsonrpc": "2.0", "id": 2, "result": {} });
    let body = format!("{pong:#}");
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    second.write_all((head + &body).as_bytes()).unwrap();
    assert_eq!(agent.hear(), pong);
    let cancelled =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
    agent.send(&cancelled.to_string());
    assert_eq!(first.read(&mut [0; 16]).unwrap(), 0, "the daemon sees that nobody waits");
    drop((listener, second));
    assert_eq!(agent.leave(), Some(0));
}

#[test]
fn try_finds_the_answer_among_other_messages() {
    let desk = Desk::new();
    let listener = UnixListener::bind(desk.project().join("fake.sock")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let command = desk.command(&["mcp", "--socket", "fake.sock", "try"]);
    let tried = std::thread::spawn(move || run_to_end(command, ""));
    let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress" });
    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n";
    let tools = json!({ "tools": [{ "name": "files_list", "description": "Lists a folder." }] });
    let called = json!({ "content": [{ "type": "text", "text": "three files" }], "isError": false });
    // It is a person who tries, so the program first says where.
    let (mut stream, asked) = accept(&listener);
    assert!(asked.starts_with("GET /v1/whoami "), "{asked}");
    let who = json!({ "principal": "user://me", "state_id": "s-1" }).to_string();
    let json = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: ";
    stream.write_all(format!("{json}{}\r\n\r\n{who}", who.len()).as_bytes()).unwrap();
    drop(stream);
    for result in [tools, called] {
        let (mut stream, _) = accept(&listener);
        let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": result });
        let events = format!("data: {progress}\n\ndata: {answer}\n\ndata: {progress}\n\n");
        stream.write_all(format!("{head}{events}").as_bytes()).unwrap();
    }
    let tried = tried.join().unwrap();
    assert_eq!(tried.code(), 0, "{}", tried.stderr());
    for said in ["files_list: works", "three files"] {
        assert!(tried.stdout().contains(said), "{said}: {}", tried.stdout());
    }
}

#[test]
fn a_call_whose_answer_is_lost_is_not_called_safe_to_repeat() {
    let desk = Desk::new();
    let listener = UnixListener::bind(desk.project().join("fake.sock")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut agent = desk.agent(&["--socket", "fake.sock"]);
    agent.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {} }).to_string());
    drop(accept(&listener));
    let answer = agent.hear();
    assert_eq!(answer["error"]["data"]["code"], "outcome_unknown", "{answer}");
    let why = answer["error"]["message"].as_str().unwrap();
    assert!(why.contains("may have been carried out") && !why.contains("safe"), "{why}");
    assert_eq!(agent.leave(), Some(0));
}

#[test]
fn an_answer_that_a_proxy_loses_is_one_effect() {
    let (place, desk) = (Place::seeded(), Desk::new());
    let daemon = place.serve(&[]);
    let listener = UnixListener::bind(desk.project().join("proxy.sock")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut agent = desk.agent(&["--socket", "proxy.sock"]);
    let call = |id: u32| {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},
            "claudecode/toolUseId": "toolu_1",
        });
        let arguments = json!({ "path": "workspace/log", "text": "line\n" });
        let params = json!({ "name": "files_append_text", "arguments": arguments, "_meta": meta });
        json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }).to_string()
    };
    // Passes a call on, and returns the connection of the bridge and the daemon's whole answer.
    let pass = || {
        let (stream, request) = accept(&listener);
        let mut daemon = daemon.connect();
        let last = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
        daemon.write_all(last.as_bytes()).unwrap();
        let mut answer = Vec::new();
        daemon.read_to_end(&mut answer).unwrap();
        assert!(answer.windows(9).any(|part| part == b"receiptId"), "{}", String::from_utf8_lossy(&answer));
        (stream, answer)
    };
    agent.send(&call(1));
    // The effect is done and on record, and the proxy cuts the connection.
    drop(pass());
    let lost = agent.hear();
    assert_eq!((&lost["id"], &lost["error"]["code"]), (&json!(1), &json!(-32_603)), "{lost}");
    agent.send(&call(2));
    let (mut stream, answer) = pass();
    stream.write_all(&answer).unwrap();
    drop(stream);
    let again = agent.hear();
    let done = &again["result"];
    assert_eq!((&again["id"], &done["isError"]), (&json!(2), &json!(false)), "{again}");
    assert_eq!(done["_meta"]["effectd/alreadyDone"], true, "{again}");
    assert_eq!(std::fs::read_to_string(place.note("log")).unwrap(), "line\n");
    assert_eq!(agent.leave(), Some(0));
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn an_agent_that_dies_while_its_tool_runs_has_one_receipt() {
    let (place, desk) = (slow("allow"), Desk::new());
    let daemon = serve_missing(&place);
    let connect = || desk.agent(&["--socket", daemon.socket.to_str().unwrap()]);
    for (count, dies) in [(1, true), (2, false)] {
        let mut agent = connect();
        let mut call = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": run_slowly(&format!("toolu_{count}")),
        });
        agent.send(&call.to_string());
        let gate = gate(&place);
        if dies {
            agent.child.kill().unwrap();
            agent.child.wait().unwrap();
            agent = connect();
        } else {
            let named = json!({ "requestId": 1 });
            agent.send(
                &json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": named })
                    .to_string(),
            );
        }
        until_missed(&place, count);
        call["id"] = 2.into();
        agent.send(&call.to_string());
        drop(gate);
        let again = agent.hear();
        assert_eq!((&again["id"], &again["result"]["isError"]), (&json!(2), &json!(false)), "{again}");
        let receipts = receipts(&daemon);
        assert_eq!((receipts.len(), &receipts[count - 1]["outcome"]), (count, &json!("executed")));
        assert!(
            receipts.iter().any(|one| one["receipt_id"] == again["result"]["_meta"]["effectd/receiptId"])
        );
        assert_eq!(std::fs::read_to_string(place.note("out/log")).unwrap(), "line\n".repeat(count));
        assert_eq!(agent.leave(), Some(0));
    }
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_daemon_that_cannot_start_says_why() {
    let desk = Desk::installed();
    let policy = desk.states()[0].join("policy/policy.toml");
    std::fs::write(policy, "this is no policy").unwrap();
    let mut agent = desk.agent(&[]);
    let answer = agent.ask("p", "ping", &json!({}));
    let why = answer["error"]["message"].as_str().unwrap();
    assert!(why.contains("the policy cannot be used") && why.contains("daemon.log"), "{why}");
    assert_eq!(agent.leave(), Some(0));
}

#[test]
fn an_agent_lists_and_calls_tools_through_the_bridge() {
    let desk = Desk::installed();
    // A stranger's project may have a state in it. Neither the agent nor a person in that folder gets that one.
    std::fs::create_dir_all(desk.project().join(".effectd/policy")).unwrap();
    let mut agent = desk.agent(&[]);
    agent.begin();
    assert_eq!(agent.ask("p", "ping", &json!({}))["result"], json!({}));
    let listed = agent.ask("l", "tools/list", &json!({}))["result"]["tools"].clone();
    let tools = listed.as_array().unwrap();
    // What a model reads of the whole preset for code, one tool after the other.
    assert!(listed.to_string().len() <= LIST_BYTES_MAX, "the list has {} bytes", listed.to_string().len());
    for name in ["command_run", "files_delete", "files_write_text"] {
        assert!(tools.iter().any(|tool| tool["name"] == name), "{name}: {listed}");
    }
    let own = |tool: &&Value| !tool["name"].as_str().unwrap().starts_with("effectd_");
    for tool in tools.iter().filter(own) {
        let about = tool["description"].as_str().unwrap();
        assert!(about.contains("Use it") && about.contains("Example: {"), "{tool}");
        assert!(tool["inputSchema"].get("anyOf").is_none(), "{tool}");
        let fields = tool["inputSchema"]["properties"].as_object().unwrap();
        assert!(fields.values().all(|field| field["description"].is_string()), "{tool}");
    }
    // The daemon that the bridge started ends by itself.
    for pid in desk.daemons() {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(line.contains("\0--idle-exit\x0015m\0"), "{line}");
    }
    let arguments = json!({ "path": "workspace/hello.txt", "text": "hello\n" });
    let called = agent.ask("c", "tools/call", &json!({ "name": "files_write_text", "arguments": arguments }));
    assert!(called["result"].is_object() && called["result"]["isError"] != true, "{called}");
    assert_eq!(std::fs::read_to_string(desk.project().join("hello.txt")).unwrap(), "hello\n");
    // Another terminal, in a folder of the project.
    std::fs::create_dir(desk.project().join("src")).unwrap();
    for folder in ["", "src"] {
        let mut receipts = desk.command(&["receipts", "list", "-o", "json"]);
        receipts.current_dir(desk.project().join(folder));
        let receipts = run_to_end(receipts, "").json(0);
        assert!(receipts.to_string().contains("files.write_text"), "{folder}: {receipts}");
    }
    // The bridge comes back to a daemon that was killed.
    for pid in desk.daemons() {
        kill(pid, Signal::SIGKILL).unwrap();
    }
    until("the bridge has a daemon again", || agent.ask("again", "ping", &json!({}))["result"] == json!({}));
    assert_eq!(agent.leave(), Some(0));
    let tried = desk.effectd(&["mcp", "try"]);
    assert_eq!(tried.code(), 0, "{}{}", tried.stdout(), tried.stderr());
    assert!(tried.stdout().contains("files_list: works"), "{}", tried.stdout());
}

#[test]
fn two_agents_that_start_at_once_share_one_daemon() {
    let desk = Desk::installed();
    let mut agents = [desk.agent(&[]), desk.agent(&[])];
    for agent in &mut agents {
        agent.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string());
    }
    for agent in &agents {
        assert_eq!(agent.hear()["result"], json!({}));
    }
    until("one daemon is left", || desk.daemons().len() == 1);
    for agent in agents {
        assert_eq!(agent.leave(), Some(0));
    }
    assert_eq!(desk.daemons().len(), 1, "it stays for the next agent");
}

#[test]
fn a_daemon_that_nobody_uses_ends_and_keeps_what_is_held() {
    let place = asking();
    let daemon = place.serve(&[]);
    let id = held(&daemon, "i-1", "i.txt", "i");
    assert_eq!(daemon.stop(), 0);
    assert_eq!(place.serve(&["--idle-exit", "1s"]).wait(), 0);
    let listed = place.effectd(&["approvals", "list", "-o", "json"], None).json(0);
    assert_eq!(listed[0]["approval_id"], id.as_str(), "{listed}");
    assert!(place.log().contains("nobody needs this daemon any more"), "{}", place.log());
    let refused = place.effectd(&["serve", "--state", ".effectd", "--idle-exit", "0"], None);
    assert_eq!(refused.code(), 2, "{}", refused.stderr());
}

#[test]
fn install_shows_the_change_asks_and_keeps_other_settings() {
    let desk = Desk::new();
    let gemini = "{\n  \"theme\": \"dark\",\n  \"mcpServers\": {\n    \"git\": {\n      \"command\": \"uvx\"\n    }\n  }\n}\n";
    let codex = "# mine\nmodel = \"o9\"\n";
    for (file, text) in [(".gemini/settings.json", gemini), (".codex/config.toml", codex)] {
        let file = desk.home(file);
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    }
    let files = [
        desk.project().join(".mcp.json"),
        desk.home(".gemini/settings.json"),
        desk.home(".codex/config.toml"),
    ];
    let read = || files.clone().map(|file| std::fs::read_to_string(file).unwrap_or_default());
    let before = read();
    let shown = desk.effectd(&["mcp", "install", "claude-code", "--dry-run"]);
    assert_eq!(shown.code(), 0, "{}", shown.stderr());
    for says in ["+root = \"", "my-project", "a person decides about deletions", "+    \"effectd\": {"] {
        assert!(shown.stdout().contains(says), "{says}: {}", shown.stdout());
    }
    let refused = desk.effectd(&["mcp", "install", "codex"]);
    assert_eq!(refused.code(), 2);
    assert!(refused.stderr().contains("add --yes"), "{}", refused.stderr());
    assert_eq!((read(), desk.states().len()), (before.clone(), 0), "nothing is written without a yes");

    // A stranger's project may have links to what is yours.
    let precious = desk.home("precious");
    std::fs::write(&precious, "{}").unwrap();
    std::os::unix::fs::symlink(&precious, &files[0]).unwrap();
    let refused = desk.effectd(&["mcp", "install", "claude-code", "--yes"]);
    assert!(refused.code() == 2 && refused.stderr().contains("a link out of"), "{}", refused.stderr());
    std::fs::rename(&files[0], desk.project().join(".mcp.effectd-draft")).unwrap();
    // A file of yours, by a name that a draft could have.
    let own = desk.home(".gemini/settings.draft");
    std::fs::write(&own, "mine").unwrap();

    for (nth, agent) in ["claude-code", "gemini", "codex"].iter().enumerate() {
        let done = desk.effectd(&["mcp", "install", agent, "--yes", "-o", "json"]).json(0);
        assert_eq!(done["policy_written"], nth == 0, "{done}");
        let state = Path::new(done["state"].as_str().unwrap());
        assert!(state.join("policy/coding.cedar").is_file(), "{done}");
        assert_eq!(std::fs::metadata(state).unwrap().permissions().mode() & 0o777, 0o700);
        let again = desk.effectd(&["mcp", "install", agent, "--yes"]);
        assert!(again.code() == 0 && again.stderr().contains("nothing to change"), "{}", again.stderr());
    }
    assert_eq!(desk.states().len(), 1);
    assert_eq!(std::fs::read_to_string(precious).unwrap(), "{}");
    assert_eq!(std::fs::read_to_string(own).unwrap(), "mine");
    let [claude, gemini, codex] = read();
    let entry = json!({ "command": Path::new(program()).canonicalize().unwrap(), "args": ["mcp"] });
    let claude: Value = serde_json::from_str(&claude).unwrap();
    assert_eq!(claude, json!({ "mcpServers": { "effectd": entry } }));
    let gemini: Value = serde_json::from_str(&gemini).unwrap();
    let servers = json!({ "git": { "command": "uvx" }, "effectd": entry });
    assert_eq!(gemini, json!({ "theme": "dark", "mcpServers": servers }));
    let printed = desk.effectd(&["mcp", "install", "codex", "--print"]).stdout();
    assert_eq!(codex, format!("{}\n{printed}", before[2]));
    for file in &files[1..] {
        assert_eq!(
            std::fs::metadata(file).unwrap().permissions().mode() & 0o777,
            0o640,
            "{}",
            file.display()
        );
    }

    std::fs::write(&files[1], "{ // mine\n}").unwrap();
    let refused = desk.effectd(&["mcp", "install", "gemini", "--yes"]);
    assert_eq!(refused.code(), 2);
    assert!(refused.stderr().contains("Put this into it yourself"), "{}", refused.stderr());
    assert_eq!(std::fs::read_to_string(&files[1]).unwrap(), "{ // mine\n}");
}

#[test]
fn a_project_around_its_own_state_is_refused() {
    let desk = Desk::new();
    let (home, link) = (desk.place.path("home"), desk.place.path("link"));
    std::os::unix::fs::symlink(&home, &link).unwrap();
    for named in [&home, &link] {
        let mut command = desk.command(&["mcp", "install", "--yes"]);
        command.current_dir(&home).env("HOME", named);
        let refused = run_to_end(command, "");
        assert_eq!(refused.code(), 2, "{}", refused.stdout());
        assert!(refused.stderr().contains("where tools could change it"), "{}", refused.stderr());
        assert_eq!(desk.states(), Vec::<PathBuf>::new());
    }
}

#[test]
fn every_example_of_the_mcp_page_works() {
    let desk = Desk::installed();
    std::fs::create_dir(desk.place.path("bin")).unwrap();
    std::os::unix::fs::symlink(program(), desk.place.path("bin/effectd")).unwrap();
    let blocks = blocks(PAGE).into_iter().map(|(_, block)| block).filter(|block| !block.contains("cargo"));
    let script: String = blocks.collect();
    let ran = Command::new("sh")
        .args(["-e", "-c", &script])
        .current_dir(desk.place.path(""))
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", desk.place.path("bin").display()))
        .env("HOME", desk.place.path("home"))
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let (told, words) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{words}\n{told}");
    for said in ["files_list: works", "\"--project\""] {
        assert!(told.contains(said), "{said}: {told}");
    }
    // What it shows of the recorded session.
    let read = |page: &str| std::fs::read_to_string(root().join(page)).unwrap();
    let (page, session) = (read(PAGE), read("docs/screens/mcp.txt"));
    let (_, shown) = page.split_once("```text\n").unwrap();
    for line in shown.lines().take_while(|line| *line != "```") {
        assert!(session.lines().any(|other| other == line), "{line}");
    }
}
