//! Tools of plugins: `plugin.<name>`, all of them by the scripts of their packages.
//!
//! effectd sends the script beside the call, after it has compared it with the one that an operator has reviewed, so the child reads nothing
//! of the package. The interpreter runs it from the scratch folder. Input and output are files there: a process that the script leaves
//! behind cannot hold the answer back, and ends with the child.
#![expect(clippy::disallowed_types, reason = "it runs in the child: this is what starts the interpreter")]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use effectd_contracts::limits::{PLUGIN_CHECKS_MAX, PLUGIN_OUTPUT_BYTES_MAX};
use effectd_contracts::plugin::{PLUGIN_SOURCE, ScriptHead};
use effectd_contracts::text::is_unprintable;
use effectd_contracts::{Check, ToolCall, ToolId, ToolOutput, ToolSpec, json as bounded};
use serde_json::Map;

use crate::command::PATH;
use crate::limits::NAME_BYTES_MAX;
use crate::prelude::*;
use crate::tool::Tool;

/// Every tool of every plugin.
#[derive(Debug, Clone, Copy)]
struct Plugin;

/// The scratch folder, as programs find it.
const SCRATCH: &str = "/tmp";

/// The tool of a plugin.
pub(crate) fn tool(id: &ToolId) -> Option<&'static dyn Tool> {
    (id.source() == PLUGIN_SOURCE).then_some(&Plugin)
}

impl Tool for Plugin {
    fn id(&self) -> &'static str {
        PLUGIN_SOURCE
    }

    /// Not used: each tool's spec comes from its package.
    fn spec(&self) -> ToolSpec {
        Tool::spec(&crate::command::Run)
    }

    fn check(&self, _: &Map<String, Value>) -> Result<(), Failure> {
        Ok(())
    }

    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let (head, ran) = ran(workspace, call)?;
        // What it wrote to its standard error may repeat the input, and a failure is logged.
        if ran.exit_code != Some(0) {
            let how = ran.exit_code.map_or("was killed".to_owned(), |code| format!("exited with {code}"));
            return Err(failed(format!("{} {how}", head.file)));
        }
        let output = bounded::parse::<Map<String, Value>>(&ran.stdout, PLUGIN_OUTPUT_BYTES_MAX);
        let output = output.map_err(|_| {
            let most = PLUGIN_OUTPUT_BYTES_MAX;
            failed(format!("the output of {} is no JSON object of at most {most} bytes", head.file))
        })?;
        Ok(ToolOutput::new(Value::Object(output), None))
    }

    /// A script cannot be asked what it would do.
    fn dry_run(&self, _: &Workspace<'_>, _: &ToolCall) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({})))
    }
}

/// What a script that verifies writes.
#[derive(Deserialize)]
struct Said {
    checks: Vec<SaidCheck>,
}

#[derive(Deserialize)]
struct SaidCheck {
    name: String,
    ok: bool,
    #[serde(default)]
    output: String,
}

/// Runs the script that verifies. One that exits with an error, or says nothing of a check, has not verified anything.
pub(crate) fn verify(workspace: &Workspace<'_>, call: &ToolCall) -> Result<Vec<Check>, Failure> {
    let (head, ran) = ran(workspace, call)?;
    let said = bounded::parse::<Said>(&ran.stdout, PLUGIN_OUTPUT_BYTES_MAX);
    let said = said.map(|said| said.checks).unwrap_or_default();
    let mut checks: Vec<_> = said
        .into_iter()
        .take(PLUGIN_CHECKS_MAX)
        .map(|SaidCheck { name, ok, output }| Check::new(plain(&name), ok, None, output))
        .collect();
    if checks.is_empty() || ran.exit_code != Some(0) {
        let words = if ran.stderr.is_empty() { "it has reported no check".to_owned() } else { ran.stderr };
        checks.push(Check::new(head.file, false, ran.exit_code, words));
    }
    Ok(checks)
}

/// Runs the script that undoes what is not files. What it says is not used.
pub(crate) fn rollback(workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
    match ran(workspace, call)? {
        (_, Ran { exit_code: Some(0), .. }) => Ok(ToolOutput::new(json!({}), None)),
        (head, _) => Err(failed(format!("{} has failed", head.file))),
    }
}

/// A receipt shows the name of a check.
fn plain(name: &str) -> String {
    name.chars().filter(|c| !is_unprintable(*c)).take(NAME_BYTES_MAX / 4).collect()
}

fn failed(why: impl Into<String>) -> Failure {
    Failure::new(Code::ToolFailed, Phase::Dispatch, why)
}

/// A script that has ended.
struct Ran {
    /// `None` if a signal has ended it.
    exit_code: Option<i32>,
    /// Empty if it wrote more than an answer may have.
    stdout: Vec<u8>,
    stderr: String,
}

/// Receives the script of the call, and runs it to its end.
fn ran(workspace: &Workspace<'_>, call: &ToolCall) -> Result<(ScriptHead, Ran), Failure> {
    let broken = |error: io::Error| failed(format!("the script cannot be run: {error}"));
    let receive = || workspace.side_channel().receive_piece().map_err(broken);
    let head: ScriptHead =
        serde_json::from_slice(&receive()?).map_err(|error| broken(io::Error::other(error)))?;
    let mut script = Vec::new();
    loop {
        match receive()? {
            piece if piece.is_empty() => break,
            piece => script.extend_from_slice(&piece),
        }
    }
    let input = json!({ "input": call.params, "failedChecks": call.failed_checks, "spaceId": call.space_id });
    // The package's own files have no such names.
    let folder = Path::new(SCRATCH).join(".effectd");
    let at = |name: &str| folder.join(name);
    let output = |name| File::options().read(true).write(true).create_new(true).open(at(name));
    let run = || {
        fs::create_dir(&folder)?;
        fs::write(at(&head.file), &script)?;
        fs::write(at(".input"), input.to_string())?;
        let (out, err) = (output(".stdout")?, output(".stderr")?);
        let (program, words) = head.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let status = Command::new(program)
            .args(words)
            .arg(at(&head.file))
            .current_dir(workspace.root_name())
            .env_clear()
            .envs([("PATH", PATH), ("HOME", SCRATCH), ("TMPDIR", SCRATCH), ("LANG", "C.UTF-8")])
            .stdin(File::open(at(".input"))?)
            .stdout(out.try_clone()?)
            .stderr(err.try_clone()?)
            .status()?;
        io::Result::Ok((status, written(&out)?, written(&err)?))
    };
    let (status, stdout, stderr) = run().map_err(broken)?;
    let stderr = String::from_utf8_lossy(&stderr).trim().to_owned();
    Ok((head, Ran { exit_code: status.code(), stdout, stderr }))
}

/// What was written to an output; nothing if that is more than an answer may have. It is read from the open file: by its name, the
/// script could have put another one there.
fn written(file: &File) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let mut bytes = vec![0; if length > PLUGIN_OUTPUT_BYTES_MAX { 0 } else { length }];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
