//! `files.copy`: copies a file within the space.

use crate::limits::COPY_BYTES_MAX;
use crate::prelude::*;

#[derive(Debug, Clone, Copy)]
pub struct Copy;

/// The parameters of `files.copy` and `files.move`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TwoPaths {
    pub(super) from_path: SpacePath,
    pub(super) to_path: SpacePath,
    /// Replace the file if it exists. Default: false.
    #[serde(default)]
    #[schemars(extend("x-public" = true))]
    pub(super) overwrite: bool,
}

impl TwoPaths {
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.from_path == self.to_path {
            return Err(params::invalid("to_path", "it is the same file as from_path"));
        }
        Ok(())
    }
}

impl TypedTool for Copy {
    const ID: &'static str = "files.copy";
    const DESCRIPTION: &'static str = "Copies a file within the space. Overwrites an existing file only on request. \
        Use it to start from an existing file.";
    type Params = TwoPaths;

    fn spec(&self) -> ToolSpec {
        let result = json!({ "bytes_copied": count(), "dry_run": flag() });
        ToolSpec {
            caps_required: params::caps(["files.read", "files.write", "workspace:shared:write"]),
            resource: params::resource("file:{space_id}/{to_path}"),
            repeat: Repeat::Probe,
            ..params::writes::<Self>(&["bytes_copied"], result)
        }
    }

    fn example(&self) -> Value {
        json!({ "from_path": "workspace/notes/w36.txt", "to_path": "workspace/notes/w36 copy.txt" })
    }

    fn check(&self, params: &TwoPaths) -> Result<(), Failure> {
        params.check()
    }

    fn touches(&self, params: &TwoPaths) -> Option<Vec<Touch>> {
        Some(params::touched(&params.to_path))
    }

    fn reads(&self, params: &TwoPaths) -> Vec<String> {
        vec![params.from_path.to_string()]
    }

    /// Quality is whether the copy on disk is as long as what was read.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, TwoPaths>) -> Result<ToolOutput, Failure> {
        let (from, to) = (&call.params.from_path, &call.params.to_path);
        let mark = call.trace_id.as_str();
        let (draft, bytes) = workspace.draft_copy(
            from,
            to,
            COPY_BYTES_MAX,
            Existing::replace_if(call.params.overwrite),
            mark,
        )?;
        draft.place()?;
        let is_whole = workspace.has_length(to, bytes as usize)?;
        Ok(params::verified(json!({ "bytes_copied": bytes }), is_whole))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, TwoPaths>) -> Result<ToolOutput, Failure> {
        let (from, to) = (&call.params.from_path, &call.params.to_path);
        let (_, stat) = workspace.open_file(from)?;
        FileProblem::check_size(stat.bytes, COPY_BYTES_MAX)?;
        workspace.may_place(to, Existing::replace_if(call.params.overwrite))?;
        Ok(params::dry(json!({ "bytes_copied": 0 })))
    }

    /// Done if the target has changed and has the content of the source.
    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, TwoPaths>) -> Result<ProbeVerdict, Failure> {
        let (from, to) = (&call.params.from_path, &call.params.to_path);
        probe::by_path(workspace, call, to, |_, is| {
            Ok(probe::same_content(is, &probe::now(workspace, from)?))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;
    use effectd_contracts::Code;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_copy_is_the_same_with_its_permissions() {
        let place = TestSpace::new();
        place.put("a", b"\xff\0 binary");
        std::fs::set_permissions(place.path("a"), std::fs::Permissions::from_mode(0o750)).unwrap();
        let params = json!({ "from_path": "workspace/a", "to_path": "workspace/deep/b" });
        place.run(&Copy, params.clone()).unwrap();
        assert_eq!(place.get("deep/b"), place.get("a"));
        let mode = std::fs::metadata(place.path("deep/b")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o750);
        let failure = place.run(&Copy, params).unwrap_err();
        assert_eq!(failure.code, Code::FileExists);
    }
}
