//! A place of one's own for every test, and the program to run in it.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use effectd::contracts::ActionRequest;
use effectd::{Config, Runtime};
use serde_json::{Value, json};

/// An ordinary user that owns nothing on this machine.
const NOBODY: u32 = 65_534;

/// Who runs the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Whoever runs the tests.
    Myself,
    /// An ordinary user. Only root can become one.
    Nobody,
}

/// Runs a test as whoever runs the tests, and, from root, as an ordinary user too.
pub fn as_root_and_as_ordinary_user(name: &str, test: impl Fn(Who)) {
    test(Who::Myself);
    if nix::unistd::geteuid().is_root() {
        test(Who::Nobody);
    } else {
        // Not by a macro, whose output the test runner would keep to itself.
        let line = format!("NOT RUN (needs root): {name} as root\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
}

/// A folder that is gone after the test.
pub struct Place {
    folder: tempfile::TempDir,
    who: Who,
}

impl Place {
    pub fn new() -> Self {
        Self::of(Who::Myself)
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

    /// Runs the program here, with the request on its standard input if one is given.
    pub fn effectd(&self, arguments: &[&str], stdin: Option<&str>) -> Ran {
        self.effectd_on(arguments, stdin, |_| ())
    }

    /// The same, on a host that lacks something.
    pub fn effectd_on(
        &self,
        arguments: &[&str],
        stdin: Option<&str>,
        host: impl FnOnce(&mut Command),
    ) -> Ran {
        let mut command = Command::new(program());
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin");
        if self.who == Who::Nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        host(&mut command);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // A program that refuses its arguments does not read its input.
        let _ = input.write_all(stdin.unwrap_or_default().as_bytes());
        drop(input);
        Ran(child.wait_with_output().unwrap())
    }

    /// Carries out a request and answers its receipt.
    pub fn run(&self, request: &Value) -> Ran {
        self.effectd(&["run", "-", "-o", "json"], Some(&request.to_string()))
    }

    /// A runtime in this very process, on this place's state.
    pub async fn runtime(&self) -> Runtime {
        let mut config = Config::embedded(self.state()).unwrap();
        config.zygote_exe = program().into();
        Runtime::start(config).await.unwrap()
    }

    /// Every byte of every file below the state directory.
    pub fn state_bytes(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        let mut folders = vec![self.state()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.is_file() {
                    files.push((path.clone(), std::fs::read(&path).unwrap()));
                }
            }
        }
        files
    }
}

pub fn program() -> &'static str {
    env!("CARGO_BIN_EXE_effectd")
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

    /// The receipt on standard output, after checking the exit code.
    #[track_caller]
    pub fn receipt(&self, code: i32) -> Value {
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
        "params": { "path": path, "text": text, "space_id": "shared:household" },
        "policy_ctx": { "actor": "alice", "device": "phone1" },
        "trace_id": format!("trace-{action}"),
    })
}

/// The same, as the library takes it.
pub fn note(action: &str, path: &str, text: &str) -> ActionRequest {
    serde_json::from_value(write_note(action, path, text)).unwrap()
}

pub fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/write_note.json")
}
