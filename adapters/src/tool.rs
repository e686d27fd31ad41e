//! The trait of every tool.

use effectd_contracts::{Exchange, Failure, ProbeVerdict, ToolCall, ToolOutput, ToolSpec, Touch};
use serde_json::{Map, Value};

use crate::workspace::Workspace;

/// One tool. Its spec says what it may do; `run`, `dry_run` and `probe` happen inside the confined child.
pub trait Tool: Sync {
    /// Its name, as in its spec.
    fn id(&self) -> &'static str;

    /// What the tool declares about itself.
    fn spec(&self) -> ToolSpec;

    /// Other names for it.
    fn aliases(&self) -> &'static [&'static str] {
        &[]
    }

    /// Valid parameters: `effectd tools show` prints them, and tests start from them.
    fn example(&self) -> Value {
        Value::Object(Map::new())
    }

    /// Rules for parameters beyond the schema. They are checked outside of the sandbox, before the policy, and must depend
    /// on the parameters alone.
    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure>;

    /// The paths that a call may change, by its parameters alone. The call may write to these paths only, their pre-images are
    /// kept for an undo, and other actions on them wait. `None`: the tool does not declare its paths, and has no undo.
    fn touches(&self, _params: &Map<String, Value>) -> Option<Vec<Touch>> {
        None
    }

    /// The paths that a call reads and does not change, by its parameters alone. An approval depends on their state, too,
    /// and a preview has a copy of them.
    fn reads(&self, _params: &Map<String, Value>) -> Vec<String> {
        Vec::new()
    }

    /// The request that a call sends to its connection, by its parameters alone: what a preview shows, and the only one that leaves
    /// once a person has approved it. `None`: the call sends none, or several.
    fn exchange(&self, _call: &ToolCall) -> Result<Option<Exchange>, Failure> {
        Ok(None)
    }

    /// Whether an exchange asks for no effect, although its method is one that writes. A probe, and a tool that reads, may send it.
    fn only_reads(&self, _exchange: &Exchange) -> bool {
        false
    }

    /// Carries out the call.
    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure>;

    /// Checks what can be checked and changes nothing; the sandbox enforces that.
    fn dry_run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure>;

    /// Finds out whether an interrupted run had its effect. A tool that cannot tell its own effect from an identical
    /// earlier one answers `CannotSay`.
    fn probe(&self, _workspace: &Workspace<'_>, _call: &ToolCall) -> Result<ProbeVerdict, Failure> {
        Ok(ProbeVerdict::CannotSay)
    }
}
