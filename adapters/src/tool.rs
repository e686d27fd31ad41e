//! What every tool is.

use effectd_contracts::{CallMode, Failure, ProbeVerdict, ToolCall, ToolOutput, ToolReply, ToolSpec, Touch};
use serde_json::{Map, Value};

use crate::rehearse::rehearse;
use crate::workspace::Workspace;

/// One tool. Its description says what it may do; `run`, `dry_run` and `probe` happen inside the confined child.
pub trait Tool: Sync {
    /// Its one name, as in its description.
    fn id(&self) -> &'static str;

    /// What the tool says about itself.
    fn spec(&self) -> ToolSpec;

    /// Other names under which it is known.
    fn aliases(&self) -> &'static [&'static str] {
        &[]
    }

    /// Parameters that fit: people see them in `effectd tools show`, and tests begin from them.
    fn example(&self) -> Value {
        Value::Object(Map::new())
    }

    /// Rules for parameters beyond the schema. Asked outside of the sandbox, before the policy; it must not look at the
    /// world.
    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure>;

    /// The paths that a call may change, by its parameters alone. They are what the call may write to, what is kept for an
    /// undo, and what other actions wait for. `None`: the tool does not say, and then it cannot be undone.
    fn touches(&self, _params: &Map<String, Value>) -> Option<Vec<Touch>> {
        None
    }

    /// Paths that a call reads and does not change, by its parameters alone: what a person agrees to depends on what stands
    /// there, too, and a preview has a copy of them.
    fn reads(&self, _params: &Map<String, Value>) -> Vec<String> {
        Vec::new()
    }

    /// Does it.
    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure>;

    /// Checks what can be checked and changes nothing. The sandbox makes sure of that.
    fn dry_run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure>;

    /// Looks whether an interrupted run had its effect. A tool that cannot tell its own effect from an identical earlier
    /// one says so.
    fn probe(&self, _workspace: &Workspace<'_>, _call: &ToolCall) -> Result<ProbeVerdict, Failure> {
        Ok(ProbeVerdict::CannotSay)
    }
}

/// Has a tool answer one call.
pub fn answer(tool: &dyn Tool, workspace: &Workspace<'_>, call: &ToolCall) -> ToolReply {
    let reply = match call.mode {
        CallMode::Run => run(tool, workspace, call).map(ToolReply::Done),
        CallMode::DryRun => tool.dry_run(workspace, call).map(ToolReply::Done),
        CallMode::Probe => tool.probe(workspace, call).map(ToolReply::Probed),
        CallMode::Preview => rehearse(tool, workspace, call).map(ToolReply::Rehearsed),
    };
    reply.unwrap_or_else(ToolReply::Failed)
}

/// Does it, if what a person has seen is still so.
fn run(tool: &dyn Tool, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
    let workspace = workspace.expecting(&call.expect, call.trace_id.as_str());
    workspace.check_expected()?;
    tool.run(&workspace, call)
}
