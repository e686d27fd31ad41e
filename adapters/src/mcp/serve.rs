//! `connector.serve`: runs the program of an MCP server, and hands its lines on. No subject can ask for it: effectd starts it beside the
//! calls of a connector by stdio, and ends it by closing the side channel.
#![expect(clippy::disallowed_types, reason = "it runs in the child: this is what starts the program")]

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use effectd_contracts::exchange::{STDIO_NOTE_STREAM, STDIO_STREAM};
use effectd_contracts::{ToolCall, ToolOutput, ToolSpec};
use serde_json::Map;

use super::client::failed;
use crate::prelude::*;
use crate::tool::Tool;

/// What is told of the last words on its standard error.
const WORDS_BYTES_MAX: usize = 1_024;

#[derive(Debug, Clone, Copy)]
pub(super) struct Serve;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    argv: Vec<String>,
    /// Whether the root of the workspace is the folder that the program may change. Otherwise it has its scratch folder alone.
    has_folder: bool,
}

impl Tool for Serve {
    fn id(&self) -> &'static str {
        "connector.serve"
    }

    fn spec(&self) -> ToolSpec {
        Tool::spec(&crate::command::Run)
    }

    fn check(&self, _: &Map<String, Value>) -> Result<(), Failure> {
        Ok(())
    }

    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let program: Program = params::read(&call.params)?;
        let folder = if program.has_folder { workspace.root_name() } else { "/tmp" };
        let mut words = program.argv.iter().map(|word| word.replace("{folder}", folder));
        let first = words.next().ok_or_else(|| failed("there is no program"))?;
        let path: String = workspace
            .programs()
            .iter()
            .filter_map(|at| at.to_str())
            .map(|at| format!("{at}/bin:{at}:"))
            .collect();
        let path = format!("{path}/usr/local/bin:/usr/bin:/bin");
        let started = Command::new(&first)
            .args(words)
            .current_dir(Path::new(folder))
            .env_clear()
            .envs([("PATH", path.as_str()), ("HOME", "/tmp"), ("TMPDIR", "/tmp"), ("LANG", "C.UTF-8")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let channel = workspace.side_channel();
        let mut child = match started {
            Ok(child) => child,
            Err(error) => {
                let why = format!(
                    "{first} cannot be started: {error}; does its folder belong to the connector's programs, and may everybody read it?"
                );
                let _nobody_hears = channel.send_piece(STDIO_NOTE_STREAM, why.as_bytes());
                return Err(failed(why));
            }
        };
        let (Some(mut input), Some(mut output), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed("the program has no pipes"));
        };
        std::thread::scope(|scope| {
            let errors = scope.spawn(move || last_words(errors));
            // Until effectd has enough of the program.
            let commands = scope.spawn(move || {
                while let Ok(bytes) = channel.receive_piece() {
                    // A program that reads no more has ended, or is about to be.
                    let _ended = input.write_all(&bytes);
                }
            });
            let mut piece = vec![0; 65_536];
            while let Ok(count @ 1..) = output.read(&mut piece) {
                if channel.send_piece(STDIO_STREAM, &piece[..count]).is_err() {
                    break;
                }
            }
            let _ = child.kill();
            let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            let said = errors.join().unwrap_or_default();
            let words = if said.is_empty() { status } else { format!("{status}; it said: {said}") };
            let _nobody_hears = channel.send_piece(STDIO_NOTE_STREAM, words.as_bytes());
            let _ended = commands.join();
        });
        Ok(ToolOutput::new(json!({}), None))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &ToolCall) -> Result<ToolOutput, Failure> {
        Err(failed("a server is not tried"))
    }
}

/// Reads to the end, so that the program never waits for it.
fn last_words(mut errors: impl Read) -> String {
    let (mut last, mut piece) = (Vec::new(), [0; 4_096]);
    while let Ok(count @ 1..) = errors.read(&mut piece) {
        last.extend_from_slice(&piece[..count]);
        let surplus = last.len().saturating_sub(WORDS_BYTES_MAX);
        last.drain(..surplus);
    }
    String::from_utf8_lossy(&last).trim().to_owned()
}
