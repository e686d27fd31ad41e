//! A state directory and a workspace for one test, and the runtime processes that work on them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use effectd::contracts::ActionRequest;
use effectd::internal::{Config, Runtime};
use effectd_policy::Preset;
use nix::sys::stat::Mode;
use serde_json::{Value, json};

use crate::child::Report;
use crate::harness::until_blocking;
use crate::tools::{GATE, MARKER, NEVER, PROBE, SAFE, STOP_AT, TIME_MS};

/// The longest wait for anything. Only a real fault reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Place(tempfile::TempDir);

impl Place {
    /// A place with the preset `household`, plus consent for the tools of these tests.
    pub(crate) fn new() -> Self {
        let place = Place(tempfile::tempdir().unwrap());
        fs::create_dir_all(place.state().join("policy")).unwrap();
        fs::create_dir(place.workspace()).unwrap();
        place.set_policy(&[SAFE, PROBE, NEVER]);
        for pipe in [MARKER, GATE] {
            nix::unistd::mkfifo(&place.workspace().join(pipe), Mode::from_bits_truncate(0o666)).unwrap();
        }
        place
    }

    pub(crate) fn set_policy(&self, tools: &[&str]) {
        for (file, text) in Preset::Household.files() {
            let mut text = text.to_owned();
            if file == "policy.toml" {
                // Otherwise tools of the higher safety classes are denied at night.
                text = text.replace("night_from = \"22:00\"", "night_from = \"06:00\"");
                // Without a mode, deletions are denied.
                text = text.replace("\"files.delete\" = \"require_approval\", ", "");
                // And have shorter timeouts than they declare.
                let times = format!("[timeouts]\nlow_ms = {TIME_MS}\n\n[clock]\n");
                text = text.replace("[clock]\n", &times);
                let modes: String = tools.iter().map(|tool| format!(r#", "{tool}" = "allow""#)).collect();
                text = text.replace(
                    r#""files.write_text" = "allow" }"#,
                    &format!(r#""files.write_text" = "allow"{modes} }}"#),
                );
                for tool in tools {
                    text += &format!(
                        "\n[[consents]]\nsubject = \"agent://planner@deviceA\"\nspace = \"shared:household\"\npurpose = \"tool:{tool}\"\n"
                    );
                }
            }
            fs::write(self.state().join("policy").join(file), text).unwrap();
        }
    }

    /// The same with the timeouts that effectd is shipped with.
    pub(crate) fn with_shipped_times(self) -> Self {
        let file = self.state().join("policy/policy.toml");
        let text = fs::read_to_string(&file).unwrap();
        let shipped = text.replace(&format!("[timeouts]\nlow_ms = {TIME_MS}\n\n"), "");
        assert_ne!(shipped, text, "the policy of these tests sets timeouts");
        fs::write(file, shipped).unwrap();
        self
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path().join(".effectd")
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.path().join("workspace")
    }

    pub(crate) fn effects(&self, name: &str) -> usize {
        self.lines(&format!("witness-{name}"))
    }

    pub(crate) fn runs(&self, name: &str) -> usize {
        self.lines(&format!("runs-{name}"))
    }

    fn lines(&self, file: &str) -> usize {
        fs::read_to_string(self.workspace().join(file)).map_or(0, |text| text.lines().count())
    }

    /// Makes tools stop at this point of their code, or nowhere.
    pub(crate) fn stop_tools(&self, at: Option<&str>) {
        let file = self.workspace().join(STOP_AT);
        match at {
            Some(at) => fs::write(file, at).unwrap(),
            None => drop(fs::remove_file(file)),
        }
    }

    pub(crate) fn marker(&self) -> Receiver<String> {
        // Opened for reading and writing, so that opening does not block and the pipe has no end.
        let pipe = fs::File::options().read(true).write(true).open(self.workspace().join(MARKER)).unwrap();
        lines_of(pipe)
    }

    /// Lets waiting tools go on.
    pub(crate) fn open_gate(&self) {
        let mut gate = fs::File::options().write(true).open(self.workspace().join(GATE)).unwrap();
        gate.write_all(b"go").unwrap();
    }

    pub(crate) fn config(&self) -> Config {
        Config::embedded(self.state()).unwrap()
    }

    pub(crate) async fn runtime(&self, change: impl FnOnce(&mut Config)) -> Runtime {
        let mut config = self.config();
        change(&mut config);
        Runtime::start(config).await.unwrap()
    }

    /// Starts a runtime in another process.
    pub(crate) fn start(&self, order: &Order) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("__child").arg(order.mode).arg(self.path());
        command.arg(serde_json::to_string(&order.requests).unwrap());
        if let Some(point) = &order.stop_at {
            command.env("EFFECTD_FAILPOINT", point);
            command.env("EFFECTD_FAILPOINT_FD", "1");
        }
        Process::spawn(command)
    }

    /// Runs a runtime in another process, which must end well.
    pub(crate) fn run(&self, mode: &'static str, requests: &[Value]) -> Ended {
        let order = Order { mode, requests: requests.to_vec(), stop_at: None };
        self.start(&order).finish()
    }
}

/// The lease in tests that wait for a stalled stage to lose its action: long enough for a healthy stage on a busy machine. All other
/// tests have the usual lease, since on a machine that stalls a healthy stage would lose its action, too.
pub(crate) const SHORT_LEASE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(crate) struct Order {
    /// `exec`, `submit` or `wait`.
    pub(crate) mode: &'static str,
    pub(crate) requests: Vec<Value>,
    /// Where it is to stop, as `<point>:<n>`.
    pub(crate) stop_at: Option<String>,
}

pub(crate) struct Process {
    child: Child,
    said: Receiver<String>,
}

#[derive(Debug)]
pub(crate) struct Ended {
    /// The receipts that callers were given, in the order of the requests.
    pub(crate) answers: Vec<Value>,
    pub(crate) report: Report,
}

impl Process {
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let said = lines_of(child.stdout.take().unwrap());
        Self { child, said }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints; `None` when it has ended.
    pub(crate) fn line(&self) -> Option<String> {
        self.said.recv_timeout(PATIENCE).ok()
    }

    /// Reads until it stops at its point; `false` if it ended before. Collects what it printed.
    pub(crate) fn stopped(&self, said: &mut Vec<String>) -> bool {
        while let Some(line) = self.line() {
            if line == "stopped" {
                return true;
            }
            said.push(line);
        }
        false
    }

    /// SIGKILL, from outside.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.said.iter().collect()
    }

    /// [`Self::kill`], together with every process beneath it, none of which sees another one die: a tool that waits for a content would
    /// remove its draft. Returns when all are gone.
    pub(crate) fn kill_all(self) -> Vec<String> {
        self.signal(nix::sys::signal::Signal::SIGSTOP);
        let is_stopped = |task: fs::DirEntry| {
            fs::read_to_string(task.path().join("stat")).is_ok_and(|stat| stat.contains(") T "))
        };
        let tasks = || fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten();
        until_blocking("it is stopped", || tasks().all(is_stopped));
        let mut found = vec![self.child.id()];
        let mut at = 0;
        while at < found.len() {
            for task in fs::read_dir(format!("/proc/{}/task", found[at])).into_iter().flatten().flatten() {
                let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
                found.extend(children.split_whitespace().map(|child| child.parse::<u32>().unwrap()));
            }
            at += 1;
        }
        // The last ones first: a zygote would take note of a child's end.
        for pid in found[1..].iter().rev() {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(*pid).unwrap());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        let said = self.kill();
        let is_gone = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
        };
        until_blocking("every process is gone", || found.iter().all(is_gone));
        said
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Waits for its end; the exit code, and what it printed.
    pub(crate) fn wait(mut self) -> (i32, Vec<String>) {
        let said = self.said.iter().collect();
        (self.child.wait().unwrap().code().unwrap_or(-1), said)
    }

    #[track_caller]
    pub(crate) fn finish(self) -> Ended {
        let (code, said) = self.wait();
        assert_eq!(code, 0, "{said:#?}");
        let json = |word: &str| {
            said.iter()
                .filter_map(|line| line.strip_prefix(word))
                .map(|text| serde_json::from_str::<Value>(text).unwrap())
                .collect::<Vec<_>>()
        };
        let report = json("report ").pop().expect("a report");
        Ended { answers: json("answer "), report: Report::from_json(report) }
    }
}

fn lines_of(input: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let mut input = BufReader::new(input);
        let mut line = String::new();
        // A line that a kill cut off does not count.
        while input.read_line(&mut line).is_ok_and(|length| length > 0) && line.ends_with('\n') {
            if sender.send(line.trim_end().to_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    lines
}

/// A request for a tool of these tests. Its effect is counted under the action's id.
pub(crate) fn request(action: &str, tool: &str) -> Value {
    json!({
        "action_id": action,
        "subject_id": "agent://planner@deviceA",
        "space_id": "shared:household",
        "tool_id": tool,
        "params": { "name": action },
        "trace_id": format!("trace-{action}"),
    })
}

/// The same with the parameter `how`, which makes the tool misbehave.
pub(crate) fn request_how(action: &str, tool: &str, how: &str) -> Value {
    let mut request = request(action, tool);
    request["params"]["how"] = json!(how);
    request
}

pub(crate) fn parsed(request: &Value) -> ActionRequest {
    ActionRequest::parse(request.to_string().as_bytes()).unwrap()
}
