//! `files.make_dir`: makes a folder, and those above it.

use effectd_contracts::{Failure, ToolCall, ToolOutput, ToolSpec, Touch};
use serde_json::{Map, Value, json};

use crate::params;
use crate::tool::Tool;
use crate::workspace::{FileKind, FileProblem, Workspace};

/// Makes folders. One that is there already is fine.
#[derive(Debug, Clone, Copy)]
pub struct MakeDir;

impl Tool for MakeDir {
    fn id(&self) -> &'static str {
        "files.make_dir"
    }

    fn spec(&self) -> ToolSpec {
        params::writes(json!({
            "tool_id": self.id(),
            "version": "1.0.0",
            "description": "Makes a folder in the space, and those above it; one that is there already is fine.",
            "params_schema": params::object(&["path", "space_id"], json!({
                "path": params::path_schema(), "space_id": params::space_schema(),
            })),
            "result_schema": params::object(&["folders_made"], json!({
                "folders_made": { "type": "integer", "minimum": 0, "x-public": true },
                "dry_run": { "type": "boolean", "x-public": true },
            })),
            "idempotency_key_fields": ["path"],
            "resource": "file:{space_id}/{path}",
            "repeat": "safe",
        }))
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/2026", "space_id": "shared:household" })
    }

    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        params::file(params, "path").map(drop)
    }

    fn touches(&self, params: &Map<String, Value>) -> Option<Vec<Touch>> {
        let path = params::file(params, "path").ok()?;
        Some(params::touch(&path).into_iter().collect())
    }

    /// Quality is whether the folder is there.
    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let path = params::file(&call.params, "path")?;
        let made = workspace.make_folder(&path)?;
        let there = workspace
            .stat(&path)?
            .is_some_and(|stat| stat.kind == FileKind::Folder);
        let quality = if there { 1.0 } else { 0.0 };
        Ok(ToolOutput::new(json!({ "folders_made": made }), Some(quality)))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let path = params::file(&call.params, "path")?;
        let there = workspace.stat(&path)?;
        if there.is_some_and(|stat| stat.kind != FileKind::Folder) {
            return Err(FileProblem::at("make the folder")(nix::errno::Errno::ENOTDIR).into());
        }
        Ok(ToolOutput::new(
            json!({ "folders_made": 0, "dry_run": true }),
            None,
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::Place;

    #[test]
    fn what_is_missing_is_made_and_counted() {
        let place = Place::new();
        let params = json!({ "path": "workspace/a/b/c" });
        let first = place.run(&MakeDir, params.clone()).unwrap();
        let second = place.run(&MakeDir, params).unwrap();
        assert_eq!(
            (&first.result["folders_made"], &second.result["folders_made"]),
            (&json!(3), &json!(0))
        );
        assert!(place.path("a/b/c").is_dir());
    }
}
