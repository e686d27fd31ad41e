//! A daemon in a folder for one test, and its replies.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

pub use crate::shared::*;

/// What a daemon adds to a place.
pub trait Serving {
    /// Where the daemon listens.
    fn socket(&self) -> PathBuf;
    /// Starts a daemon and waits until it is ready.
    fn serve(&self, arguments: &[&str]) -> Daemon;
    /// The same, with every action stalled for ever at these failpoints.
    fn serve_stalling(&self, point: Stall, arguments: &[&str]) -> Daemon;
    /// What the daemons of this place have logged.
    fn log(&self) -> String;
}

/// Failpoints: `name`, or `name:1,name:1`.
pub struct Stall(pub &'static str);

impl Serving for Place {
    fn socket(&self) -> PathBuf {
        self.state().join("run/effectd.sock")
    }

    fn serve(&self, arguments: &[&str]) -> Daemon {
        serve_with(self, arguments, &[])
    }

    fn serve_stalling(&self, Stall(point): Stall, arguments: &[&str]) -> Daemon {
        let armed = if point.contains(':') { point.to_owned() } else { format!("{point}:1") };
        // The log tells which stage an action has reached.
        let told = ("EFFECTD_LOG", "info,effectd_actors=debug");
        let armed = [("EFFECTD_FAILPOINT", armed.as_str()), ("EFFECTD_FAILPOINT_FAULT", "stall"), told];
        serve_with(self, arguments, &armed)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log.jsonl")).unwrap()
    }
}

/// Starts a daemon with more in its environment, and waits until it is ready.
pub fn serve_with(place: &Place, arguments: &[&str], environment: &[(&str, &str)]) -> Daemon {
    let told = place.path("notify.sock");
    let _ = std::fs::remove_file(&told);
    let manager = UnixDatagram::bind(&told).unwrap();
    manager.set_read_timeout(Some(LONG)).unwrap();
    // The daemon may run as another user.
    std::fs::set_permissions(&told, std::fs::Permissions::from_mode(0o777)).unwrap();
    let log = place.path("log.jsonl");
    let log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
    let named = arguments.windows(2).find(|pair| pair[0] == "--socket");
    let named = named.map(|pair| pair[1]);
    let mut all = vec!["serve", "--state", ".effectd"];
    all.extend(arguments);
    let child = place
        .command(&all)
        .env("NOTIFY_SOCKET", &told)
        .env("WATCHDOG_USEC", "200000")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let daemon = Daemon { child, manager, socket: named.map_or_else(|| place.socket(), PathBuf::from) };
    daemon.until_told("READY=1");
    daemon
}

/// A running daemon. Killed when the test ends.
pub struct Daemon {
    child: Child,
    manager: UnixDatagram,
    pub socket: PathBuf,
}

impl Daemon {
    /// The same daemon, reached through another socket.
    pub fn at(mut self, socket: PathBuf) -> Self {
        self.socket = socket;
        self
    }

    /// Waits until the daemon sent this to its service manager.
    pub fn until_told(&self, what: &str) {
        let mut buffer = [0; 1_024];
        loop {
            // A wait with a timeout is not resumed when SIGCHLD interrupts it.
            let length = match self.manager.recv(&mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                other => other.expect("the daemon tells its service manager"),
            };
            if String::from_utf8_lossy(&buffer[..length]).lines().any(|line| line == what) {
                return;
            }
        }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Kills it in the middle of whatever it does.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop, and returns its exit code.
    pub fn stop(self) -> i32 {
        self.signal(Signal::SIGTERM);
        self.wait()
    }

    /// Waits for its end, and returns its exit code.
    pub fn wait(mut self) -> i32 {
        let mut ended = None;
        until("the daemon ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.and_then(|status| status.code()).unwrap_or(-1)
    }

    pub fn connect(&self) -> UnixStream {
        self.try_connect().unwrap()
    }

    fn try_connect(&self) -> std::io::Result<UnixStream> {
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(LONG))?;
        stream.set_write_timeout(Some(LONG))?;
        Ok(stream)
    }

    /// One request on a new connection.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        Reply::read(self.send(method, path, headers, body))
    }

    /// Sends a request; the caller reads the reply later.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> UnixStream {
        send_on(self.connect(), method, path, headers, body)
    }

    /// Whether the daemon, which may have been killed by now, answers with 200.
    pub fn answers(&self, method: &str, path: &str) -> bool {
        self.answers_to(method, path, "")
    }

    pub fn answers_to(&self, method: &str, path: &str, body: &str) -> bool {
        self.try_connect()
            .is_ok_and(|stream| Reply::read(send_on(stream, method, path, &[], body)).status == 200)
    }

    pub fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &[], "")
    }

    pub fn post(&self, path: &str, request: &Value) -> Reply {
        self.ask("POST", path, &[], &request.to_string())
    }
}

/// Sends a request on this connection.
pub fn send_on(
    mut stream: UnixStream,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> UnixStream {
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let whole = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{more}\r\n{body}"
    );
    // All at once, since the daemon cuts off slow clients. It may also answer and close before it has read everything.
    let _ = stream.write_all(whole.as_bytes());
    stream
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

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
        Self::of(&bytes)
    }

    pub fn of(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    #[track_caller]
    pub fn json(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Value {
        let problem = self.json(status);
        assert!(self.head.contains("content-type: application/problem+json"), "{self:?}");
        assert_eq!(problem["code"], code, "{self:?}");
        assert_eq!(problem["type"], format!("urn:effectd:problem:{code}"));
        assert_eq!(problem["status"], status);
        problem
    }
}

/// A request that the demo policy permits: to write a note into the workspace.
pub fn write_note(action: &str, name: &str, text: &str) -> Value {
    request(action, &format!("workspace/{name}"), text)
}

/// The same, from a subject that the policy does not know.
pub fn from_stranger(action: &str) -> Value {
    let mut request = write_note(action, "stranger.txt", "hello");
    request["subject_id"] = "agent://stranger@nowhere".into();
    request
}
