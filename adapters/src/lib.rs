//! What can happen: one file a tool, each with its description, its `run` and its tests.
//!
//! A tool's code runs only inside the confined child; its description and its parameter rules are also read by the
//! pipeline, outside. The sandbox is what keeps a tool honest; the code here is merely careful.

pub mod limits;
pub mod spacepath;
pub mod tool;
pub mod workspace;

mod archive;
mod before;
mod beside;
mod failpoint;
mod params;
mod rehearse;
#[cfg(test)]
mod testing;
mod typed;

pub mod artifact;
pub mod command;
pub mod diagnose;
pub mod files;
pub mod notify;
pub mod sqlite;

pub use beside::Beside;
pub use spacepath::{Base, PathInvalid, SpacePath};
pub use tool::{Tool, answer};
pub use workspace::{FileProblem, Look, Workspace, is_local};

use effectd_contracts::json;
use effectd_contracts::{Code, Failure, Phase, ToolCall, ToolReply};

/// Every tool that effectd brings. Adding one is a file and a word here.
pub fn all() -> &'static [&'static dyn Tool] {
    &[
        &files::ReadText,
        &files::WriteText,
        &files::AppendText,
        &files::EditText,
        &files::ApplyPatch,
        &files::List,
        &files::Search,
        &files::Stat,
        &files::MakeDir,
        &files::Copy,
        &files::Move,
        &files::Delete,
        &files::Archive,
        &files::Extract,
        &files::Undo,
        &artifact::Put,
        &artifact::Get,
        &command::Run,
        &diagnose::DiagnoseError,
        &notify::Local,
        &sqlite::Query,
    ]
}

/// Runs one call inside the confined child: bytes in, bytes out. Whatever goes wrong becomes a reply.
pub fn dispatch(workspace: &Workspace<'_>, request: &[u8]) -> Vec<u8> {
    let reply = match json::parse::<ToolCall>(request, limits::CALL_BYTES_MAX) {
        Ok(call) => find_and_answer(workspace, &call),
        Err(error) => {
            let message = format!("the call cannot be read: {error}");
            ToolReply::Failed(Failure::new(Code::Internal, Phase::Dispatch, message))
        }
    };
    // A reply is plain data with text keys, for which serde_json has no failure; an empty answer is refused outside.
    serde_json::to_vec(&reply).unwrap_or_default()
}

fn find_and_answer(workspace: &Workspace<'_>, call: &ToolCall) -> ToolReply {
    match all().iter().find(|tool| tool.id() == call.tool_id.as_str()) {
        Some(tool) => answer(*tool, workspace, call),
        None => {
            let message = format!("this binary has no tool {}", call.tool_id);
            ToolReply::Failed(Failure::new(Code::UnknownTool, Phase::Dispatch, message))
        }
    }
}

#[cfg(test)]
mod tests;
