//! Runs one call inside the confined child: finds the tool, and runs it in the mode of the call.

use effectd_contracts::json;
use effectd_contracts::{CallMode, Code, Failure, Phase, ToolCall, ToolOutput, ToolReply};

use crate::limits::CALL_BYTES_MAX;
use crate::plugin;
use crate::preview::preview;
use crate::tool::Tool;
use crate::workspace::Workspace;

/// Runs one call of a built-in tool: bytes in, bytes out. Every error becomes a reply.
pub fn dispatch(workspace: &Workspace<'_>, request: &[u8]) -> Vec<u8> {
    let reply = match json::parse::<ToolCall>(request, CALL_BYTES_MAX) {
        Ok(call) => match crate::find(&call.tool_id) {
            Some(tool) => answer(tool, workspace, &call),
            None => failed(Code::UnknownTool, format!("this binary has no tool {}", call.tool_id)),
        },
        Err(error) => failed(Code::Internal, format!("the call cannot be read: {error}")),
    };
    // A reply is plain data with text keys, which serde_json always writes; the runtime refuses an empty answer.
    serde_json::to_vec(&reply).unwrap_or_default()
}

fn failed(code: Code, message: String) -> ToolReply {
    ToolReply::Failed(Failure::new(code, Phase::Dispatch, message))
}

/// Runs one call of a tool, in the mode of the call.
pub fn answer(tool: &dyn Tool, workspace: &Workspace<'_>, call: &ToolCall) -> ToolReply {
    let reply = match call.mode {
        CallMode::Run => run(tool, workspace, call).map(ToolReply::Done),
        CallMode::DryRun => tool.dry_run(workspace, call).map(ToolReply::Done),
        CallMode::Probe => tool.probe(workspace, call).map(ToolReply::Probed),
        CallMode::Preview => preview(tool, workspace, call).map(ToolReply::Previewed),
        // The tools of packages have these, and no others.
        CallMode::Verify => plugin::verify(workspace, call).map(ToolReply::Verified),
        CallMode::Rollback => plugin::rollback(workspace, call).map(ToolReply::Done),
    };
    reply.unwrap_or_else(ToolReply::Failed)
}

/// Runs the tool if the preconditions of the call hold.
fn run(tool: &dyn Tool, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
    let workspace = workspace.expecting(&call.expect, call.trace_id.as_str());
    workspace.check_expected()?;
    tool.run(&workspace, call)
}
