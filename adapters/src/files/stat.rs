//! `files.stat`: what stands at a path, without reading it.

use effectd_contracts::{Failure, ToolCall, ToolOutput, ToolSpec};
use serde_json::{Map, Value, json};

use crate::limits::TEXT_FILE_BYTES_MAX;
use crate::params;
use crate::tool::Tool;
use crate::workspace::{FileKind, Workspace};

/// Says what a path is.
#[derive(Debug, Clone, Copy)]
pub struct Stat;

impl Tool for Stat {
    fn id(&self) -> &'static str {
        "files.stat"
    }

    fn spec(&self) -> ToolSpec {
        params::reads(json!({
            "tool_id": self.id(),
            "version": "1.0.0",
            "description": "Says what stands at a path of the space: kind, size, permissions, time of change and, for files that \
                are not too large, the digest that edits can expect.",
            "params_schema": params::object(&["path", "space_id"], json!({
                "path": params::path_schema(), "space_id": params::space_schema(),
            })),
            "result_schema": params::object(&["exists"], json!({
                "exists": { "type": "boolean", "x-public": true },
                "kind": { "enum": ["file", "folder", "link", "special"], "x-public": true },
                "bytes": { "type": "integer", "minimum": 0, "x-public": true },
                "mode": { "type": "string", "pattern": "^[0-7]{3}$", "x-public": true },
                "modified_s": { "type": "integer", "x-public": true },
                "sha256": { "type": "string", "pattern": "^[0-9a-f]{64}$" },
            })),
        }))
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/w36.txt", "space_id": "shared:household" })
    }

    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        params::folder(params, "path").map(drop)
    }

    /// That nothing is there is an answer, not an error. Quality is 1: it says all there is to say.
    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let path = params::folder(&call.params, "path")?;
        let Some(stat) = workspace.stat(&path)? else {
            return Ok(ToolOutput::new(json!({ "exists": false }), Some(1.0)));
        };
        let mut result = json!({
            "exists": true, "kind": stat.kind.as_str(), "bytes": stat.bytes, "mode": format!("{:03o}", stat.mode),
            "modified_s": stat.modified_s,
        });
        if stat.kind == FileKind::File
            && let Ok(content) = workspace.read(&path, TEXT_FILE_BYTES_MAX.get())
        {
            result["sha256"] = json!(content.digest().hex());
        }
        Ok(ToolOutput::new(result, Some(1.0)))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        self.run(workspace, call)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::Place;

    #[test]
    fn every_kind_is_told_and_nothing_is_opened() {
        let place = Place::new();
        place.put("file", b"four");
        place.put("dir/x", b"");
        std::os::unix::fs::symlink("nowhere", place.path("link")).unwrap();
        place.fifo("pipe");
        for (name, kind) in [
            ("file", "file"),
            ("dir", "folder"),
            ("link", "link"),
            ("pipe", "special"),
        ] {
            let path = format!("workspace/{name}");
            let output = place.run(&Stat, json!({ "path": path })).unwrap();
            assert_eq!(output.result["kind"], kind);
        }
        let absent = place.run(&Stat, json!({ "path": "workspace/none" })).unwrap();
        assert_eq!(absent.result, json!({ "exists": false }));
    }
}
