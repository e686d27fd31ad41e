//! Test tools: one of each repeat class. Each adds a line to a witness file in the workspace every time its effect happens.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use effectd::adapters::{Tool, Workspace};
use effectd::contracts::{
    Artifact, Code, Failure, Phase, ProbeVerdict, Repeat, ToolCall, ToolOutput, ToolSpec, Touch,
};
use nix::sys::resource::{Resource, getrlimit};
use serde_json::{Map, Value, json};

/// Where the sandbox shows the space to a tool.
const SPACE: &str = "/workspace";

/// A file in the space that names the point where a tool stops, see [`Counter::run`].
pub(crate) const STOP_AT: &str = "control-stop-at";
/// A pipe in the space that tools write progress to.
pub(crate) const MARKER: &str = "control-marker";
/// Written ten thousand times when a tool is asked for a long output.
pub(crate) const AT_LENGTH: &str = "word after word ";
/// A pipe in the space that a tool waits to read from.
pub(crate) const GATE: &str = "control-gate";

/// The timeout of the tools of these tests: longer than a machine stalls, since a timeout would change how the action ends.
pub(crate) const TIME_MS: u64 = 20_000;

/// A tool that adds a line to its witness.
pub(crate) struct Counter {
    id: &'static str,
    version: &'static str,
    repeat: Repeat,
    /// Whether it declares the files that it writes.
    declares: bool,
    /// Whether pre-images of them are kept.
    reversible: bool,
    time_ms: u64,
}

pub(crate) const SAFE: &str = "test.safe";
pub(crate) const PROBE: &str = "test.probe";
pub(crate) const NEVER: &str = "test.never";
pub(crate) const SAFE_DECLARED: &str = "test.safe_declared";
pub(crate) const NEVER_DECLARED: &str = "test.never_declared";
pub(crate) const UNDOABLE: &str = "test.undoable";
pub(crate) const UNDOABLE_NEVER: &str = "test.undoable_never";

const fn counter(id: &'static str, repeat: Repeat) -> Counter {
    Counter { id, version: "1.0.0", repeat, declares: false, reversible: false, time_ms: TIME_MS }
}

pub(crate) static SAFE_TOOL: Counter = counter(SAFE, Repeat::Safe);
pub(crate) static PROBE_TOOL: Counter = counter(PROBE, Repeat::Probe);
pub(crate) static NEVER_TOOL: Counter = counter(NEVER, Repeat::Never);
pub(crate) static SAFE_DECLARED_TOOL: Counter =
    Counter { declares: true, ..counter(SAFE_DECLARED, Repeat::Safe) };
pub(crate) static NEVER_DECLARED_TOOL: Counter =
    Counter { declares: true, ..counter(NEVER_DECLARED, Repeat::Never) };
pub(crate) static UNDOABLE_TOOL: Counter =
    Counter { declares: true, reversible: true, ..counter(UNDOABLE, Repeat::Probe) };
pub(crate) static UNDOABLE_NEVER_TOOL: Counter =
    Counter { declares: true, reversible: true, ..counter(UNDOABLE_NEVER, Repeat::Never) };
/// The safe one after an upgrade that changed its repeat class.
static CHANGED_TOOL: Counter = Counter { version: "2.0.0", ..counter(SAFE, Repeat::Never) };
/// The safe one after an upgrade that kept its repeat class.
static BETTER_TOOL: Counter = Counter { version: "1.1.0", ..counter(SAFE, Repeat::Safe) };

pub(crate) static ALL: effectd::Tools = &[&SAFE_TOOL, &PROBE_TOOL, &NEVER_TOOL];
pub(crate) static CHANGED: effectd::Tools = &[&CHANGED_TOOL, &PROBE_TOOL, &NEVER_TOOL];
pub(crate) static BETTER: effectd::Tools = &[&BETTER_TOOL, &PROBE_TOOL, &NEVER_TOOL];
/// The safe one, with less time than any policy gives.
pub(crate) static BRIEF: effectd::Tools = &[&Counter { time_ms: BRIEF_MS, ..counter(SAFE, Repeat::Safe) }];
pub(crate) const BRIEF_MS: u64 = 300;
pub(crate) static REMOVED: effectd::Tools = &[&PROBE_TOOL];
/// What is left when `UNDOABLE_NEVER` is removed.
pub(crate) static UNDOABLE_ONLY: effectd::Tools = &[&UNDOABLE_TOOL];
/// A tool with the id of a built-in one.
pub(crate) static USURPER: effectd::Tools = &[&counter("files.write_text", Repeat::Safe)];

impl Tool for Counter {
    fn id(&self) -> &'static str {
        self.id
    }

    fn spec(&self) -> ToolSpec {
        serde_json::from_value(json!({
            "tool_id": self.id,
            "version": self.version,
            "description": "Adds a line to a file, so that its effects can be counted.",
            "caps_required": ["files.write", "workspace:shared:write"],
            "params_schema": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": { "type": "string", "minLength": 1, "x-public": true },
                    "how": { "type": "string", "x-public": true },
                },
                "additionalProperties": false,
            },
            "result_schema": {
                "type": "object",
                "required": ["count"],
                "properties": { "count": { "type": "integer", "x-public": true } },
                "additionalProperties": false,
            },
            "side_effects": ["filesystem_write"],
            "safety_class": "LOW",
            "risk_level": "write",
            "timeout_ms": self.time_ms,
            "idempotency_key_fields": ["name"],
            "resource": "counter:{space_id}/{name}",
            "repeat": self.repeat,
            "reversible": self.reversible,
        }))
        .expect("the description is well-formed")
    }

    fn check(&self, _: &Map<String, Value>) -> Result<(), Failure> {
        Ok(())
    }

    /// Its files, and one that it leaves alone.
    fn touches(&self, params: &Map<String, Value>) -> Option<Vec<Touch>> {
        let name = params.get("name").and_then(Value::as_str).unwrap_or_default();
        let files = ["runs", "witness", "beside"];
        self.declares.then(|| files.map(|file| Touch::replaced(format!("workspace/{file}-{name}"))).to_vec())
    }

    /// Adds a line. The parameter `how` makes it misbehave; a control file stops it before or after its effect, until it is
    /// killed.
    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let how = call.params.get("how").and_then(Value::as_str).unwrap_or_default();
        let runs = add_line(&format!("runs-{}", name(call)), "run");
        if let Some(times) = how.strip_prefix("busy:") {
            let times: usize = times.parse().expect("busy:<number>");
            if runs <= times {
                return Err(Failure::new(Code::ToolBusy, Phase::Dispatch, "busy, as asked"));
            }
        }
        if how == "busy-at-gate" && runs == 1 {
            wait_at_gate();
            return Err(Failure::new(Code::ToolBusy, Phase::Dispatch, "busy, as asked"));
        }
        if how == "processor-limit" {
            let (seconds, _) = getrlimit(Resource::RLIMIT_CPU).expect("every process has one");
            return Ok(ToolOutput::new(json!({ "count": seconds }), None));
        }
        if let Some(millis) = how.strip_prefix("nap:") {
            std::thread::sleep(millis_of(millis));
        }
        if let Some(millis) = how.strip_prefix("burn:") {
            let (begun, long) = (processor_time(), millis_of(millis));
            while processor_time() - begun < long {
                std::hint::spin_loop();
            }
        }
        match how {
            "fail" => {
                return Err(Failure::new(Code::ToolFailed, Phase::Dispatch, "failed, as asked"));
            }
            "die-before" => std::process::abort(),
            _ => {}
        }
        stop_if_asked("before_effect");
        let count = add_line(&format!("witness-{}", name(call)), call.trace_id.as_str());
        stop_if_asked("after_effect");
        match how {
            "die-after" => std::process::abort(),
            "die-after-first" if runs == 1 => std::process::abort(),
            "garbage" => {
                return Ok(ToolOutput::new(json!({ "nothing": true }), None));
            }
            "at length" => {
                let name = "words".to_owned();
                let words = AT_LENGTH.repeat(10_000);
                workspace.side_channel().send_piece(7, words.as_bytes()).expect("somebody listens");
                stop_if_asked("at_length");
                let (stream, must) = (7, false);
                return Ok(ToolOutput {
                    artifacts: vec![Artifact { name, stream, must }],
                    ..ToolOutput::new(json!({ "count": count }), None)
                });
            }
            "wait" => wait_at_gate(),
            _ => {}
        }
        Ok(ToolOutput::new(json!({ "count": count }), None))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &ToolCall) -> Result<ToolOutput, Failure> {
        Ok(ToolOutput::new(json!({ "count": 0 }), None))
    }

    /// The lines contain the trace id, so it can distinguish its own effect from an earlier one.
    fn probe(&self, _: &Workspace<'_>, call: &ToolCall) -> Result<ProbeVerdict, Failure> {
        let witness = Path::new(SPACE).join(format!("witness-{}", name(call)));
        let lines = fs::read_to_string(witness).unwrap_or_default();
        let there = lines.lines().any(|line| line == call.trace_id.as_str());
        Ok(if there { ProbeVerdict::Done } else { ProbeVerdict::NotDone })
    }
}

fn name(call: &ToolCall) -> &str {
    call.params["name"].as_str().expect("the schema asks for it")
}

fn millis_of(text: &str) -> Duration {
    Duration::from_millis(text.parse().expect("a number of milliseconds"))
}

/// The processor time of this process.
fn processor_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .expect("there is such a clock")
        .into()
}

/// Adds a line and returns how many there are.
fn add_line(file: &str, line: &str) -> usize {
    let path = Path::new(SPACE).join(file);
    let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
    fs::read_to_string(path).unwrap().lines().count()
}

fn stop_if_asked(here: &str) {
    let asked = fs::read_to_string(Path::new(SPACE).join(STOP_AT)).unwrap_or_default();
    if asked == here {
        mark("stopped\n");
        loop {
            std::thread::park();
        }
    }
}

fn wait_at_gate() {
    mark("waiting\n");
    let mut gate = String::new();
    fs::File::open(Path::new(SPACE).join(GATE))
        .and_then(|mut pipe| pipe.read_to_string(&mut gate))
        .expect("the gate can be read");
}

fn mark(what: &str) {
    let mut marker = OpenOptions::new()
        .write(true)
        .open(Path::new(SPACE).join(MARKER))
        .expect("there is a pipe for the marker");
    marker.write_all(what.as_bytes()).unwrap();
}
