//! What the executor tells the confined process, and what that answers: one message each way.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::effects::{Restore, Seen};
use crate::failure::Failure;
use crate::ids::{SpaceId, ToolId, TraceId};
use crate::preview::Rehearsal;

/// The tool that takes an effect back. The pipeline looks up what it needs by the receipt that it is given.
pub const UNDO_TOOL: &str = "files.undo";

/// The tool that writes an artifact to a file. The pipeline sends it the content of the one that its parameters name.
pub const ARTIFACT_GET_TOOL: &str = "artifact.get";

/// The one message into the sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// Which tool to run.
    pub tool_id: ToolId,
    /// Whether to act, to pretend, or to look whether it was done.
    pub mode: CallMode,
    /// In which space.
    pub space_id: SpaceId,
    /// The parameters, after redaction.
    pub params: Map<String, Value>,
    /// How long the tool has, for those that can stop by themselves.
    pub timeout_ms: u64,
    /// For the tool's own log lines.
    pub trace_id: TraceId,
    /// What stood at the paths that the tool may change before its first run. A probe can tell by it whether the effect is
    /// there. `None` if nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Vec<Seen>>,
    /// What is to be put back; for the tool that restores only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restore: Vec<Restore>,
    /// What must stand at these paths for the action to happen at all: what the person saw who agreed to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<Seen>,
}

/// What the tool is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallMode {
    /// Do it.
    Run,
    /// Check everything, change nothing.
    DryRun,
    /// Look whether an interrupted run did it.
    Probe,
    /// Do it on a copy, and say what stands there then.
    Preview,
}

/// The one message out of the sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToolReply {
    /// It was done, or pretended.
    Done(ToolOutput),
    /// What the probe found.
    Probed(ProbeVerdict),
    /// What came of doing it on a copy.
    Rehearsed(Rehearsal),
    /// It failed.
    Failed(Failure),
}

/// What a tool hands back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolOutput {
    /// The result, which must fit the tool's result schema.
    pub result: Value,
    /// How well it went, from 0 to 1, by the tool's own measure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<f64>,
    /// What is too long for the result. It is kept, sealed, beside the receipt, which holds its id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
}

impl ToolOutput {
    /// A result with its quality, and nothing beside it.
    pub fn new(result: Value, quality: Option<f64>) -> Self {
        Self {
            result,
            quality,
            artifacts: Vec::new(),
        }
    }
}

/// Something long that a tool has handed out beside its answer, in pieces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Artifact {
    /// What it is, in one plain word for people: `stdout`.
    pub name: String,
    /// Which pieces are its content.
    pub stream: u8,
    /// Whether the action has failed if it cannot be kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub must: bool,
}

/// Whether an interrupted run had its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeVerdict {
    /// The effect is there, and it is ours.
    Done,
    /// The effect is not there.
    NotDone,
    /// It cannot be told, for instance since an identical earlier effect would look the same.
    CannotSay,
}
