//! `files.stat`: the kind, size, permissions and digest of a path.

use crate::limits::TEXT_FILE_BYTES_MAX;
use crate::prelude::*;

#[derive(Debug, Clone, Copy)]
pub struct Stat;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    path: FolderPath,
}

impl TypedTool for Stat {
    const ID: &'static str = "files.stat";
    const DESCRIPTION: &'static str = "Describes a path of the space: type, size, permissions, modification time \
        and, for files that are not too large, the digest to pass as expected_sha256. Use it to find out whether \
        something exists or has changed.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "exists": flag(), "kind": { "enum": ["file", "folder", "link", "special"], "x-public": true },
            "bytes": count(), "mode": { "type": "string", "pattern": "^[0-7]{3}$", "x-public": true },
            "modified_s": { "type": "integer", "x-public": true },
            "sha256": { "type": "string", "pattern": "^[0-9a-f]{64}$" },
        });
        params::reads::<Self>(&["exists"], result)
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/w36.txt" })
    }

    /// A missing file is an answer, not an error. Quality is always 1.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let path = &call.params.path.0;
        let Some(stat) = workspace.stat(path)? else {
            return Ok(ToolOutput::new(json!({ "exists": false }), Some(1.0)));
        };
        let mut result = json!({
            "exists": true, "kind": stat.kind.as_str(), "bytes": stat.bytes, "mode": format!("{:03o}", stat.mode),
            "modified_s": stat.modified_s,
        });
        if stat.kind == FileKind::File
            && let Ok(content) = workspace.read(path, TEXT_FILE_BYTES_MAX)
        {
            result["sha256"] = json!(content.digest().hex());
        }
        Ok(ToolOutput::new(result, Some(1.0)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;

    #[test]
    fn every_kind_is_told_and_nothing_is_opened() {
        let place = TestSpace::new();
        place.put("file", b"four");
        place.put("dir/x", b"");
        std::os::unix::fs::symlink("nowhere", place.path("link")).unwrap();
        place.fifo("pipe");
        for (name, kind) in [("file", "file"), ("dir", "folder"), ("link", "link"), ("pipe", "special")] {
            let path = format!("workspace/{name}");
            let output = place.run(&Stat, json!({ "path": path })).unwrap();
            assert_eq!(output.result["kind"], kind);
        }
        let absent = place.run(&Stat, json!({ "path": "workspace/none" })).unwrap();
        assert_eq!(absent.result, json!({ "exists": false }));
    }
}
