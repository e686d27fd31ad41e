//! A place of one's own for every test, with a daemon in it.

use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// Longer than anything takes on a loaded machine; reaching it is a failure.
pub const LONG: Duration = Duration::from_secs(60);

/// A folder that is gone after the test, with a state directory in it.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// With the demo policy, as `effectd init` makes it.
    pub fn new() -> Self {
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        assert_eq!(place.effectd(&["init"], None).code(), 0);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn state(&self) -> PathBuf {
        self.path(".effectd")
    }

    pub fn socket(&self) -> PathBuf {
        self.state().join("run/effectd.sock")
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the program here, and waits for its end.
    pub fn effectd(&self, arguments: &[&str], stdin: Option<&str>) -> Ran {
        let mut child = self.command(arguments).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // A program that refuses its arguments does not read its input.
        let _ = input.write_all(stdin.unwrap_or_default().as_bytes());
        drop(input);
        Ran(child.wait_with_output().unwrap())
    }

    /// A daemon that says it is ready.
    pub fn serve(&self, arguments: &[&str]) -> Daemon {
        let told = self.path("notify.sock");
        let _ = std::fs::remove_file(&told);
        let manager = UnixDatagram::bind(&told).unwrap();
        manager.set_read_timeout(Some(LONG)).unwrap();
        let log = self.path("log.jsonl");
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        let mut all = vec!["serve", "--state", ".effectd"];
        all.extend(arguments);
        let child = self
            .command(&all)
            .env("NOTIFY_SOCKET", &told)
            .env("WATCHDOG_USEC", "200000")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let daemon = Daemon {
            child,
            manager,
            socket: self.socket(),
        };
        daemon.until_told("READY=1");
        daemon
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log.jsonl")).unwrap()
    }

    pub fn note(&self, name: &str) -> PathBuf {
        self.path("workspace").join(name)
    }
}

pub fn program() -> &'static str {
    env!("CARGO_BIN_EXE_effectd")
}

/// A running daemon. Killed when the test ends.
pub struct Daemon {
    child: Child,
    manager: UnixDatagram,
    socket: PathBuf,
}

impl Daemon {
    /// Waits until the service manager was told this.
    pub fn until_told(&self, what: &str) {
        let mut buffer = [0; 1_024];
        loop {
            let length = self
                .manager
                .recv(&mut buffer)
                .expect("the daemon tells its service manager");
            if String::from_utf8_lossy(&buffer[..length])
                .lines()
                .any(|line| line == what)
            {
                return;
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Kills it in the middle of whatever it does.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop, and answers its exit code.
    pub fn stop(mut self) -> i32 {
        self.signal(Signal::SIGTERM);
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    pub fn wait(mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        stream
    }

    /// One request on a connection of its own.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut stream = self.connect();
        let more: String = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n{more}\r\n",
            body.len()
        );
        // A daemon that has seen enough answers and hangs up.
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(body.as_bytes());
        Reply::read(stream)
    }

    pub fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &[], "")
    }

    pub fn post(&self, path: &str, request: &Value) -> Reply {
        self.ask("POST", path, &[], &request.to_string())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What came back.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn read(mut stream: UnixStream) -> Self {
        let mut bytes = Vec::new();
        // What was sent before the connection broke still counts.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or(0);
        Self {
            status,
            head: head.to_lowercase(),
            body: body.to_owned(),
        }
    }

    #[track_caller]
    pub fn json(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// A problem of this code.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Value {
        let problem = self.json(status);
        assert!(
            self.head.contains("content-type: application/problem+json"),
            "{self:?}"
        );
        assert_eq!(problem["code"], code, "{self:?}");
        assert_eq!(problem["type"], format!("urn:effectd:problem:{code}"));
        assert_eq!(problem["status"], status);
        problem
    }
}

/// What a run of the program left behind.
pub struct Ran(pub Output);

impl Ran {
    pub fn code(&self) -> i32 {
        self.0.status.code().unwrap_or(-1)
    }

    pub fn stdout(&self) -> String {
        String::from_utf8(self.0.stdout.clone()).unwrap()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8(self.0.stderr.clone()).unwrap()
    }

    #[track_caller]
    pub fn json(&self, code: i32) -> Value {
        assert_eq!(
            self.code(),
            code,
            "stdout: {}\nstderr: {}",
            self.stdout(),
            self.stderr()
        );
        serde_json::from_str(&self.stdout()).unwrap()
    }
}

/// A request that the demo policy permits.
pub fn write_note(action: &str, path: &str, text: &str) -> Value {
    json!({
        "action_id": action,
        "subject_id": "agent://planner@deviceA",
        "space_id": "shared:household",
        "tool_id": "files.write_text",
        "params": { "path": format!("workspace/{path}"), "text": text, "space_id": "shared:household" },
        "policy_ctx": { "actor": "alice", "device": "phone1" },
    })
}

/// The same, from somebody whom the policy does not know.
pub fn from_stranger(action: &str) -> Value {
    let mut request = write_note(action, "stranger.txt", "hello");
    request["subject_id"] = "agent://stranger@nowhere".into();
    request
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Waits for something that has no handle to wait on.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "{what} did not come about");
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(2));
    }
}
