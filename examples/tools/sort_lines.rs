//! `text.sort_lines`: sorts the lines of a text file.

use effectd::adapters::workspace::Existing;
use effectd::adapters::{SpacePath, Tool, Workspace};
use effectd::contracts::{Code, Failure, Phase, ToolCall, ToolOutput, ToolSpec, Touch};
use serde_json::{Map, Value, json};

/// Larger files are a job for a command.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Sorts the lines of a file.
#[derive(Debug)]
pub(crate) struct SortLines;

impl Tool for SortLines {
    fn id(&self) -> &'static str {
        "text.sort_lines"
    }

    #[expect(clippy::expect_used, reason = "a constant, which the program reads when it starts")]
    fn spec(&self) -> ToolSpec {
        let spec = json!({
            "tool_id": self.id(),
            "version": "1.0.0",
            "description": "Sorts the lines of a text file of the space; with unique, removes duplicates.",
            "caps_required": ["files.write", "workspace:shared:write"],
            "params_schema": {
                "type": "object",
                "required": ["path", "space_id"],
                "properties": {
                    "path": { "type": "string", "minLength": 1, "maxLength": 4096, "x-public": true },
                    "unique": { "type": "boolean", "x-public": true },
                    "space_id": { "type": "string", "minLength": 1, "x-public": true },
                },
                "additionalProperties": false,
            },
            "result_schema": {
                "type": "object",
                "required": ["lines"],
                "properties": {
                    "lines": { "type": "integer", "minimum": 0, "x-public": true },
                    "dry_run": { "type": "boolean", "x-public": true },
                },
                "additionalProperties": false,
            },
            "side_effects": ["filesystem_write"],
            "safety_class": "LOW",
            "risk_level": "write",
            // What it replaces is kept, since `touches` says what that is: an undo needs no more.
            "reversible": true,
            "resource": "file:{space_id}/{path}",
            // Sorting again what is sorted changes nothing, so an interrupted run is simply repeated.
            "repeat": "safe",
            "timeout_ms": 4000,
        });
        serde_json::from_value(spec).expect("the description is well-formed")
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/fruit.txt", "unique": true, "space_id": "shared:household" })
    }

    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        path(params).map(drop)
    }

    fn touches(&self, params: &Map<String, Value>) -> Option<Vec<Touch>> {
        Some(vec![Touch::replaced(path(params).ok()?.to_string())])
    }

    /// Quality is 1: either all lines are in order, or it fails and the file stays as it is.
    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let path = path(&call.params)?;
        let (text, lines) = sorted(workspace, &path, &call.params)?;
        workspace.write_atomically(&path, text.as_bytes(), Existing::Replace, call.trace_id.as_str())?;
        Ok(ToolOutput::new(json!({ "lines": lines }), Some(1.0)))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let (_, lines) = sorted(workspace, &path(&call.params)?, &call.params)?;
        Ok(ToolOutput::new(json!({ "lines": lines, "dry_run": true }), None))
    }
}

fn path(params: &Map<String, Value>) -> Result<SpacePath, Failure> {
    let text = params.get("path").and_then(Value::as_str).unwrap_or_default();
    let invalid = |why| Failure::new(Code::ParamsInvalid, Phase::Validate, format!("/path: {why}"));
    SpacePath::parse(text).map_err(invalid)
}

fn sorted(
    workspace: &Workspace<'_>,
    path: &SpacePath,
    params: &Map<String, Value>,
) -> Result<(String, usize), Failure> {
    let content = workspace.read(path, FILE_BYTES_MAX)?;
    let mut lines: Vec<&str> = content.text()?.lines().collect();
    lines.sort_unstable();
    if params.get("unique").and_then(Value::as_bool) == Some(true) {
        lines.dedup();
    }
    let text = lines.iter().flat_map(|line| [*line, "\n"]).collect();
    Ok((text, lines.len()))
}
