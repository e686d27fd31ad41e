//! The harness of the tests of the whole program: a folder for one test, and the program that runs in it.
#![allow(dead_code, unused_imports, reason = "each of the test programs uses some of it")]

pub mod mcp_server;
mod service;
pub mod services;
mod terminal;

pub use mcp_server::McpServer;
pub use service::Service;
pub use terminal::Terminal;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longer than anything takes on a loaded machine; reaching it is a failure.
pub const LONG: Duration = Duration::from_secs(60);
/// An ordinary user that owns nothing on this machine.
pub const NOBODY: u32 = 65_534;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Myself,
    /// An ordinary user. Only root can become one.
    Nobody,
}

/// Whether this is root. If not, reports that a test, or a leg of it, did not run, in the words that `.ci/all-ran` looks for. Not by a
/// macro: libtest captures the output of macros.
pub fn is_root(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        let line = format!("NOT RUN (needs root): {test}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    root
}

/// A folder that is removed after the test.
pub struct Place {
    folder: tempfile::TempDir,
    who: Who,
}

impl Place {
    pub fn new() -> Self {
        Self::of(Who::Myself)
    }

    /// With a state directory that has the policy `household`, as `effectd init` makes it.
    pub fn seeded() -> Self {
        let place = Self::new();
        assert_eq!(place.effectd(&["init"], None).code(), 0);
        place.for_every_machine();
        place
    }

    /// The same, with its journal in this engine.
    pub fn seeded_in(journal: &str) -> Self {
        let place = Self::new();
        assert_eq!(place.effectd(&["init", "--journal", journal], None).code(), 0);
        place.for_every_machine();
        place
    }

    /// Changes the policy so that tests hold at every hour and on slow machines: no night rule, and tools have the timeouts that
    /// they declare. Deletions have no mode, so that they are denied or have the mode that a test gives them.
    pub fn for_every_machine(&self) {
        let file = self.state().join("policy/policy.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let days = text.replace(
            "night_from = \"22:00\"\nnight_until = \"06:00\"",
            "night_from = \"00:00\"\nnight_until = \"00:00\"",
        );
        assert_ne!(days, text, "the demo policy has no night");
        let times = "[timeouts]\nlow_ms = 60000\nmedium_ms = 59000\nhigh_ms = 59000\n\n[clock]\n";
        let slow = days.replace("[clock]\n", times);
        assert_ne!(slow, days, "the demo policy has no clock");
        let plain = slow.replace("\"files.delete\" = \"require_approval\", ", "");
        assert_ne!(plain, slow, "the demo policy has no mode of files.delete");
        std::fs::write(file, plain).unwrap();
    }

    pub fn of(who: Who) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if who == Who::Nobody {
            std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder, who }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn state(&self) -> PathBuf {
        self.path(".effectd")
    }

    pub fn note(&self, name: &str) -> PathBuf {
        self.path("workspace").join(name)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        match self.who {
            Who::Myself => self.command_of(program().as_ref(), arguments),
            Who::Nobody => self.command_as(NOBODY, NOBODY, arguments),
        }
    }

    /// The program as another user, which only root can become. The build may be in a folder that is closed to others, such as
    /// a home of mode 0700, so this runs another name of the same file.
    pub fn command_as(&self, uid: u32, gid: u32, arguments: &[&str]) -> Command {
        static COPYING: Mutex<()> = Mutex::new(());
        let copying = COPYING.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = self.path("effectd");
        if !copy.exists() && std::fs::hard_link(program(), &copy).is_err() {
            // On another file system. Not `fs::copy`: a process that another test forks meanwhile would hold the copy open for writing.
            let copied = Command::new("cp").arg(program()).arg(&copy).status().unwrap();
            assert!(copied.success());
        }
        drop(copying);
        let mut command = self.command_of(&copy, arguments);
        command.uid(uid).gid(gid);
        command
    }

    fn command_of(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .envs(std::env::var("EFFECTD_TEST_JOURNAL").map(|journal| ("EFFECTD_STORE_JOURNAL", journal)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the program here, and waits for its end.
    pub fn effectd(&self, arguments: &[&str], stdin: Option<&str>) -> Ran {
        self.effectd_on(arguments, stdin, |_| ())
    }

    /// The same after a change to the command, such as a host that lacks a feature.
    pub fn effectd_on(
        &self,
        arguments: &[&str],
        stdin: Option<&str>,
        host: impl FnOnce(&mut Command),
    ) -> Ran {
        let mut command = self.command(arguments);
        host(&mut command);
        run_to_end(command, stdin.unwrap_or_default())
    }
}

/// Runs a command with this on its standard input, and waits for its end.
pub fn run_to_end(mut command: Command, stdin: &str) -> Ran {
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // A program that refuses its arguments does not read its input.
    let _ = input.write_all(stdin.as_bytes());
    drop(input);
    Ran(child.wait_with_output().unwrap())
}

pub fn program() -> &'static str {
    env!("CARGO_BIN_EXE_effectd")
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The output and exit code of a run.
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

    /// What is on standard output, after checking the exit code.
    #[track_caller]
    pub fn json(&self, code: i32) -> Value {
        assert_eq!(self.code(), code, "stdout: {}\nstderr: {}", self.stdout(), self.stderr());
        serde_json::from_str(&self.stdout()).unwrap()
    }
}

/// A request that the demo policy permits: to write a text to a path in the space.
pub fn request(action: &str, path: &str, text: &str) -> Value {
    json!({
        "action_id": action,
        "subject_id": "agent://planner@deviceA",
        "space_id": "shared:household",
        "tool_id": "files.write_text",
        "params": { "path": path, "text": text, "space_id": "shared:household" },
        "policy_ctx": { "actor": "alice", "device": "phone1" },
    })
}

/// Waits for something that has no handle to wait on.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "{what} did not come about");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}
