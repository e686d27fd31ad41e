//! What every tool is.

use effectd_contracts::{Failure, ProbeVerdict, ToolCall, ToolOutput, ToolSpec};
use serde_json::{Map, Value};

use crate::workspace::Workspace;

/// One tool. Its description says what it may do; the other methods run inside the confined child.
pub trait Tool: Sync {
    /// What the tool says about itself.
    fn spec(&self) -> ToolSpec;

    /// Rules for parameters beyond the schema. Asked outside of the sandbox, before the policy; it must not look at the
    /// world.
    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure>;

    /// Does it.
    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure>;

    /// Checks what can be checked and changes nothing.
    fn dry_run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure>;

    /// Looks whether an interrupted run had its effect. A tool that cannot tell its own effect from an identical earlier
    /// one says so.
    fn probe(&self, _workspace: &Workspace<'_>, _call: &ToolCall) -> Result<ProbeVerdict, Failure> {
        Ok(ProbeVerdict::CannotSay)
    }
}
