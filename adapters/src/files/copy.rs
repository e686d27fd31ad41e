//! `files.copy`: copies a file within the space.

use effectd_contracts::{Failure, ProbeVerdict, Repeat, ToolOutput, ToolSpec, Touch};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::before::{before, now, same_content};
use crate::limits::COPY_BYTES_MAX;
use crate::params;
use crate::spacepath::SpacePath;
use crate::typed::{Call, TypedTool};
use crate::workspace::{Existing, FileProblem, Workspace};

/// Copies one file. Another file is overwritten only if that is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Copy;

/// What copying and moving take.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TwoPaths {
    pub(super) from_path: SpacePath,
    pub(super) to_path: SpacePath,
    #[serde(default)]
    #[schemars(extend("x-public" = true))]
    pub(super) overwrite: bool,
}

impl TwoPaths {
    /// Two different files.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.from_path == self.to_path {
            return Err(params::invalid("to_path", "it is the same file as from_path"));
        }
        Ok(())
    }
}

pub(crate) fn existing(overwrite: bool) -> Existing {
    if overwrite {
        Existing::Replace
    } else {
        Existing::Keep
    }
}

impl TypedTool for Copy {
    const ID: &'static str = "files.copy";
    type Params = TwoPaths;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "bytes_copied": { "type": "integer", "minimum": 0, "x-public": true },
            "dry_run": { "type": "boolean", "x-public": true },
        });
        ToolSpec {
            caps_required: params::caps(["files.read", "files.write", "workspace:shared:write"]),
            resource: params::resource("file:{space_id}/{to_path}"),
            repeat: Repeat::Probe,
            ..params::writes::<Self>(
                "Copies a file within the space; another file is overwritten only if that is asked for.",
                params::object(&["bytes_copied"], result),
            )
        }
    }

    fn example(&self) -> Value {
        json!({
            "from_path": "workspace/notes/w36.txt", "to_path": "workspace/notes/w36 copy.txt",
            "space_id": "shared:household",
        })
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
        let (draft, bytes) =
            workspace.draft_copy(from, to, COPY_BYTES_MAX, existing(call.params.overwrite), mark)?;
        draft.place()?;
        let on_disk = workspace.stat(to)?.map(|stat| stat.bytes);
        let quality = if on_disk == Some(bytes) { 1.0 } else { 0.0 };
        Ok(ToolOutput::new(json!({ "bytes_copied": bytes }), Some(quality)))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, TwoPaths>) -> Result<ToolOutput, Failure> {
        let (from, to) = (&call.params.from_path, &call.params.to_path);
        let (_, stat) = workspace.open_file(from)?;
        if stat.bytes > COPY_BYTES_MAX {
            let bytes_max = COPY_BYTES_MAX;
            return Err(FileProblem::TooLarge { bytes_max }.into());
        }
        workspace.may_place(to, existing(call.params.overwrite))?;
        Ok(ToolOutput::new(
            json!({ "bytes_copied": 0, "dry_run": true }),
            None,
        ))
    }

    /// The target has changed and is like the source: it is the copy.
    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, TwoPaths>) -> Result<ProbeVerdict, Failure> {
        let (from, to) = (&call.params.from_path, &call.params.to_path);
        let Some(was) = before(call, to) else {
            return Ok(ProbeVerdict::CannotSay);
        };
        let is = now(workspace, to)?;
        Ok(if &is == was {
            ProbeVerdict::NotDone
        } else if same_content(&is, &now(workspace, from)?) {
            ProbeVerdict::Done
        } else {
            ProbeVerdict::CannotSay
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::Place;
    use effectd_contracts::Code;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_copy_is_the_same_with_its_permissions() {
        let place = Place::new();
        place.put("a", b"\xff\0 binary");
        std::fs::set_permissions(place.path("a"), std::fs::Permissions::from_mode(0o750)).unwrap();
        let params = json!({ "from_path": "workspace/a", "to_path": "workspace/deep/b" });
        place.run(&Copy, params.clone()).unwrap();
        assert_eq!(place.get("deep/b"), place.get("a"));
        let mode = std::fs::metadata(place.path("deep/b"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o750);
        let failure = place.run(&Copy, params).unwrap_err();
        assert_eq!(failure.code, Code::FileExists);
    }
}
