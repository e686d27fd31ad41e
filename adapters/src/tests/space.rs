//! A space for unit tests: a folder, and calls of tools without the sandbox.
#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Mutex;

use effectd_contracts::{CallMode, Failure, PathSnapshot, ProbeVerdict, Restore, ToolCall, ToolOutput};
use serde_json::{Value, json};

use crate::side_channel::ToolChannel;
use crate::spacepath::SpacePath;
use crate::tool::Tool;
use crate::workspace::Workspace;

pub(crate) const SPACE: &str = "shared:household";

/// What the pipeline sends for an undo.
#[derive(Debug, Clone, Default)]
pub(crate) struct Undoing {
    pub(crate) restore: Vec<Restore>,
    pub(crate) contents: Vec<Vec<u8>>,
}

/// A side channel in memory.
#[derive(Debug, Default)]
pub(crate) struct Line {
    said: Mutex<HashMap<u8, Vec<u8>>>,
    waiting: Mutex<VecDeque<Vec<u8>>>,
}

impl Line {
    pub(crate) fn length(&self, stream: u8) -> u64 {
        self.said.lock().unwrap().get(&stream).map_or(0, Vec::len) as u64
    }

    /// Sends contents on the side channel, each in pieces of an odd size.
    pub(crate) fn send(&self, contents: &[Vec<u8>]) {
        let mut waiting = self.waiting.lock().unwrap();
        waiting.clear();
        for content in contents {
            waiting.extend(content.chunks(7_919).map(<[u8]>::to_vec));
            waiting.push_back(Vec::new());
        }
    }
}

impl ToolChannel for Line {
    fn send_piece(&self, stream: u8, bytes: &[u8]) -> io::Result<()> {
        let mut said = self.said.lock().unwrap();
        said.entry(stream).or_default().extend_from_slice(bytes);
        Ok(())
    }

    fn receive_piece(&self) -> io::Result<Vec<u8>> {
        let next = self.waiting.lock().unwrap().pop_front();
        next.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    }
}

/// A space and a scratch folder.
pub(crate) struct TestSpace {
    folder: tempfile::TempDir,
    root: File,
    scratch: File,
    name: String,
    line: Line,
}

impl TestSpace {
    pub(crate) fn new() -> Self {
        Self::in_folder(tempfile::tempdir().unwrap())
    }

    pub(crate) fn in_folder(folder: tempfile::TempDir) -> Self {
        let [root, scratch] = ["root", "scratch"].map(|name| {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            File::open(folder.path().join(name)).unwrap()
        });
        let name = folder.path().join("root").to_str().unwrap().to_owned();
        Self { folder, root, scratch, name, line: Line::default() }
    }

    pub(crate) fn workspace(&self) -> Workspace<'_> {
        let workspace = Workspace::new(self.root.as_fd(), self.scratch.as_fd());
        workspace.named(&self.name).with_side_channel(&self.line)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("root").join(name)
    }

    pub(crate) fn put(&self, name: &str, content: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        std::fs::read(self.path(name)).ok()
    }

    pub(crate) fn fifo(&self, name: &str) {
        nix::unistd::mkfifo(&self.path(name), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    }

    /// Every path in the space, with drafts and links.
    pub(crate) fn names(&self) -> Vec<String> {
        fn below(folder: &std::path::Path, head: &str, names: &mut Vec<String>) {
            for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
                let name = format!("{head}{}", entry.file_name().to_string_lossy());
                if entry.file_type().unwrap().is_dir() {
                    below(&entry.path(), &format!("{name}/"), names);
                }
                names.push(name);
            }
        }
        let mut names = Vec::new();
        below(&self.path(""), "", &mut names);
        names.sort();
        names
    }

    pub(crate) fn call(&self, tool: &dyn Tool, mode: CallMode, mut params: Value) -> ToolCall {
        if params.get("space_id").is_none() {
            params["space_id"] = json!(SPACE);
        }
        ToolCall {
            tool_id: tool.id().parse().unwrap(),
            mode,
            space_id: SPACE.parse().unwrap(),
            params: params.as_object().unwrap().clone(),
            timeout_ms: 4_000,
            trace_id: "trace".parse().unwrap(),
            before: None,
            restore: Vec::new(),
            expect: Vec::new(),
            mark: None,
            undoes: None,
            upstream: None,
            failed_checks: Vec::new(),
        }
    }

    /// Runs a tool as the pipeline does: schema, rules, then the tool; the answer must fit the schema of the result.
    pub(crate) fn run(&self, tool: &dyn Tool, params: Value) -> Result<ToolOutput, Failure> {
        self.answer(tool, &self.call(tool, CallMode::Run, params))
    }

    pub(crate) fn run_exactly(&self, tool: &dyn Tool, params: Value) -> Result<ToolOutput, Failure> {
        let mut call = self.call(tool, CallMode::Run, json!({}));
        call.params = params.as_object().unwrap().clone();
        self.answer(tool, &call)
    }

    pub(crate) fn dry_run(&self, tool: &dyn Tool, params: Value) -> Result<ToolOutput, Failure> {
        self.answer(tool, &self.call(tool, CallMode::DryRun, params))
    }

    pub(crate) fn answer(&self, tool: &dyn Tool, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let spec = tool.spec();
        let params = Value::Object(call.params.clone());
        if let Err(error) = jsonschema::draft202012::new(&spec.params_schema).unwrap().validate(&params) {
            return Err(crate::params::invalid("", error));
        }
        tool.check(&call.params)?;
        let output = match call.mode {
            CallMode::Run => tool.run(&self.workspace(), call),
            CallMode::DryRun => tool.dry_run(&self.workspace(), call),
            CallMode::Probe | CallMode::Preview | CallMode::Verify | CallMode::Rollback => {
                panic!("ask with probe or preview")
            }
        }?;
        let result = jsonschema::draft202012::new(&spec.result_schema).unwrap();
        assert!(result.is_valid(&output.result), "{}: {}", tool.id(), output.result);
        assert!(output.quality.is_none_or(|quality| (0.0..=1.0).contains(&quality)));
        Ok(output)
    }

    /// Empties the scratch folder: every call has its own.
    pub(crate) fn clear_scratch(&self) {
        for name in std::fs::read_dir(self.folder.path().join("scratch")).unwrap() {
            std::fs::remove_dir_all(name.unwrap().path()).unwrap();
        }
    }

    /// The state of the paths that the tool may change.
    pub(crate) fn look(&self, tool: &dyn Tool, params: &Value) -> Vec<PathSnapshot> {
        let touches = tool.touches(params.as_object().unwrap()).unwrap_or_default();
        let paths: Vec<_> = touches.iter().map(|touch| SpacePath::parse(&touch.path).unwrap()).collect();
        let looked = self.workspace().inspect(&paths, u64::MAX / 4).unwrap();
        looked.into_iter().map(|path| path.seen).collect()
    }

    pub(crate) fn probe(
        &self,
        tool: &dyn Tool,
        params: Value,
        before: Option<Vec<PathSnapshot>>,
    ) -> ProbeVerdict {
        let mut call = self.call(tool, CallMode::Probe, params);
        call.before = before;
        tool.probe(&self.workspace(), &call).unwrap()
    }

    /// Runs an undo as the pipeline does.
    pub(crate) fn restore(&self, undoing: Undoing) -> Result<ToolOutput, Failure> {
        let tool = &crate::files::Undo;
        let mut call = self.call(tool, CallMode::Run, json!({ "receipt_id": "r" }));
        call.restore = undoing.restore;
        self.line.send(&undoing.contents);
        self.answer(tool, &call)
    }

    pub(crate) fn send(&self, contents: &[Vec<u8>]) {
        self.line.send(contents);
    }

    pub(crate) fn forget(&self) {
        self.line.said.lock().unwrap().clear();
    }

    pub(crate) fn said(&self, stream: u8) -> Option<Vec<u8>> {
        self.line.said.lock().unwrap().get(&stream).cloned()
    }
}
