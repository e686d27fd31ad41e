//! The messages between executor and sandbox: one call in, one reply out.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::access::Preset;
use crate::clock::Timestamp;
use crate::connector::Upstream;
use crate::effects::{PathSnapshot, Restore};
use crate::failure::Failure;
use crate::ids::{SpaceId, ToolId, TraceId};
use crate::plan::Check;
use crate::preview::PreviewResult;

/// The tool that undoes an effect. The pipeline finds the pre-images by the receipt that the parameters name.
pub const UNDO_TOOL: &str = "files.undo";
/// The action with which a service's own tools make up for an effect there: `slack.undo`. The pipeline finds that by the receipt that the
/// parameters name.
pub const UNDO_ACTION: &str = "undo";
/// The tools whose effects `linear.undo` and `slack.undo` make up for.
const MADE_UP_FOR: [&str; 3] = ["linear.create_issue", "linear.add_comment", "slack.send_message"];

/// The tool that undoes an action of this tool outside of its space; `None` for a tool whose effects are files, or that has none.
pub fn undo_at_service(tool: &ToolId) -> Option<String> {
    MADE_UP_FOR.contains(&tool.as_str()).then(|| format!("{}.{UNDO_ACTION}", tool.source()))
}

/// Whether this is a tool that makes up for an effect at its service.
pub fn is_undo_at_service(tool: &ToolId) -> bool {
    tool.action() == UNDO_ACTION && Preset::of(tool.source()).is_some()
}

/// The tool that runs programs. A policy may name commands that it runs without a person.
pub const COMMAND_TOOL: &str = "command.run";

/// The tool that writes an artifact to a file. The pipeline streams the artifact's content to it.
pub const ARTIFACT_GET_TOOL: &str = "artifact.get";

/// The message into the sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// The tool to run.
    pub tool_id: ToolId,
    /// What it is asked to do.
    pub mode: CallMode,
    /// The space.
    pub space_id: SpaceId,
    /// The parameters after redaction.
    pub params: Map<String, Value>,
    /// How long the tool may take, for tools that stop by themselves.
    pub timeout_ms: u64,
    /// For the tool's log lines.
    pub trace_id: TraceId,
    /// The paths that the tool may change, with their states before its first run, by which a probe tells whether the effect
    /// happened. `None` if they were not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Vec<PathSnapshot>>,
    /// What to restore; only for the undo tool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restore: Vec<Restore>,
    /// The preconditions: paths and states that the approver saw. Unless they hold, the tool does nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<PathSnapshot>,
    /// What tells the effect of this action from all others; only for tools of a service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<EffectMark>,
    /// The action to make up for; only for the undo of a service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<Box<Undoes>>,
    /// The server that is called; only for tools of connectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Box<Upstream>>,
    /// The checks that the run before did not pass; only for the repair of a plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_checks: Vec<Check>,
}

/// What tells the effect of an action at a service from all others: the same in every run, probe and preview of the action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EffectMark {
    /// A UUID of version 4 that no other action has.
    pub id: String,
    /// When the action was accepted: the effect is not older.
    pub since: Timestamp,
}

/// An earlier action, as its receipt describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Undoes {
    /// Its tool.
    pub tool_id: ToolId,
    /// The mark of its effect.
    pub mark: EffectMark,
    /// Its public parameters.
    pub inputs: Map<String, Value>,
    /// Its public results.
    pub outputs: Map<String, Value>,
}

/// What the tool is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallMode {
    /// Have the effect.
    Run,
    /// Check everything, change nothing.
    DryRun,
    /// Find out whether an interrupted run had its effect.
    Probe,
    /// Run on a copy of the paths, and report the copy's state.
    Preview,
    /// Find out whether the effect is as it should be, and change nothing; only for tools of packages.
    Verify,
    /// Undo the effect where it is not files, which effectd restores itself; only for tools of packages.
    Rollback,
}

/// The message out of the sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToolReply {
    /// The run, dry run or rollback succeeded.
    Done(ToolOutput),
    /// The result of a probe.
    Probed(ProbeVerdict),
    /// The result of a preview.
    #[serde(rename = "rehearsed")]
    Previewed(PreviewResult),
    /// The result of a verification.
    Verified(Vec<Check>),
    /// The tool failed.
    Failed(Failure),
}

/// What a tool returns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolOutput {
    /// The result, which must match the tool's result schema.
    pub result: Value,
    /// The quality from 0 to 1, by the tool's own measure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<f64>,
    /// Outputs too long for the result. They are stored sealed; the receipt holds their ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
}

impl ToolOutput {
    /// A result without artifacts.
    pub fn new(result: Value, quality: Option<f64>) -> Self {
        Self { result, quality, artifacts: Vec::new() }
    }
}

/// A long output that the tool streams beside its reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Artifact {
    /// A plain word for people: `stdout`.
    pub name: String,
    /// The stream that carries its content.
    pub stream: u8,
    /// Whether the action fails if the artifact cannot be stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub must: bool,
}

/// Whether an interrupted run had its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeVerdict {
    /// It had its effect.
    Done,
    /// It did not.
    NotDone,
    /// The tool cannot tell, for instance because an identical earlier effect looks the same.
    CannotSay,
}
