//! `files.make_dir`: makes a folder, and those above it.

use effectd_contracts::{Failure, Repeat, ToolOutput, ToolSpec, Touch};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::params;
use crate::spacepath::SpacePath;
use crate::typed::{Call, TypedTool};
use crate::workspace::{FileKind, FileProblem, Workspace};

/// Makes folders. One that is there already is fine.
#[derive(Debug, Clone, Copy)]
pub struct MakeDir;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    path: SpacePath,
}

impl TypedTool for MakeDir {
    const ID: &'static str = "files.make_dir";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "folders_made": { "type": "integer", "minimum": 0, "x-public": true },
            "dry_run": { "type": "boolean", "x-public": true },
        });
        ToolSpec {
            idempotency_key_fields: params::key(["path"]),
            resource: params::resource("file:{space_id}/{path}"),
            repeat: Repeat::Safe,
            ..params::writes::<Self>(
                "Makes a folder in the space, and those above it; one that is there already is fine.",
                params::object(&["folders_made"], result),
            )
        }
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/2026", "space_id": "shared:household" })
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        Some(params::touched(&params.path))
    }

    /// Quality is whether the folder is there.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let path = &call.params.path;
        let made = workspace.make_folder(path)?;
        let there = workspace
            .stat(path)?
            .is_some_and(|stat| stat.kind == FileKind::Folder);
        let quality = if there { 1.0 } else { 0.0 };
        Ok(ToolOutput::new(json!({ "folders_made": made }), Some(quality)))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let there = workspace.stat(&call.params.path)?;
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
