//! What the file of nearly every tool uses.

pub(crate) use effectd_contracts::{
    Code, Digest, Failure, PathState, Phase, ProbeVerdict, Repeat, ToolOutput, ToolSpec, Touch,
};
pub(crate) use schemars::JsonSchema;
pub(crate) use serde::Deserialize;
pub(crate) use serde_json::{Value, json};

pub(crate) use crate::params::{self, Call, FolderPath, TypedTool, count, flag, sha256, text};
pub(crate) use crate::probe;
pub(crate) use crate::spacepath::{Base, SpacePath};
pub(crate) use crate::workspace::{Existing, FileKind, FileProblem, Workspace};
