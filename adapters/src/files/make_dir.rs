//! `files.make_dir`: makes a folder, and the missing folders above it.

use crate::prelude::*;

#[derive(Debug, Clone, Copy)]
pub struct MakeDir;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    path: SpacePath,
}

impl TypedTool for MakeDir {
    const ID: &'static str = "files.make_dir";
    const DESCRIPTION: &'static str = "Creates a folder in the space with its missing parents. An existing folder \
        is not an error. Use it for empty folders only: writing a file creates its parents.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({ "folders_made": count(), "dry_run": flag() });
        ToolSpec {
            idempotency_key_fields: params::key(["path"]),
            resource: params::resource("file:{space_id}/{path}"),
            repeat: Repeat::Safe,
            ..params::writes::<Self>(&["folders_made"], result)
        }
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/2026" })
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        Some(params::touched(&params.path))
    }

    /// Quality is whether the folder is there.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let path = &call.params.path;
        let made = workspace.make_folder(path)?;
        let there = workspace.stat(path)?.is_some_and(|stat| stat.kind == FileKind::Folder);
        Ok(params::verified(json!({ "folders_made": made }), there))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let there = workspace.stat(&call.params.path)?;
        if there.is_some_and(|stat| stat.kind != FileKind::Folder) {
            return Err(FileProblem::at("create the folder")(nix::errno::Errno::ENOTDIR).into());
        }
        Ok(params::dry(json!({ "folders_made": 0 })))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;

    #[test]
    fn what_is_missing_is_made_and_counted() {
        let place = TestSpace::new();
        let params = json!({ "path": "workspace/a/b/c" });
        let first = place.run(&MakeDir, params.clone()).unwrap();
        let second = place.run(&MakeDir, params).unwrap();
        assert_eq!((&first.result["folders_made"], &second.result["folders_made"]), (&json!(3), &json!(0)));
        assert!(place.path("a/b/c").is_dir());
    }
}
