//! What the executor tells the confined process, and what that answers: one message each way.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::ids::{SpaceId, ToolId, TraceId};

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
}

/// The one message out of the sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToolReply {
    /// It was done, or pretended.
    Done(ToolOutput),
    /// What the probe found.
    Probed(ProbeVerdict),
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
