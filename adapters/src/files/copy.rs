//! `files.copy`: copies a file within the space.

use effectd_contracts::{Failure, ProbeVerdict, ToolCall, ToolOutput, ToolSpec, Touch};
use serde_json::{Map, Value, json};

use crate::before::{before, now, same_content};
use crate::limits::COPY_BYTES_MAX;
use crate::params;
use crate::tool::Tool;
use crate::workspace::{Existing, FileProblem, Workspace};

/// Copies one file. Another file is overwritten only if that is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Copy;

/// Parameters of copying and moving.
pub(super) fn two_paths_schema() -> Value {
    json!(params::object(
        &["from_path", "to_path", "space_id"],
        json!({
            "from_path": params::path_schema(),
            "to_path": params::path_schema(),
            "overwrite": { "type": "boolean", "x-public": true },
            "space_id": params::space_schema(),
        })
    ))
}

/// Two different files.
pub(super) fn check_two_paths(params: &Map<String, Value>) -> Result<(), Failure> {
    let (from, to) = (
        params::file(params, "from_path")?,
        params::file(params, "to_path")?,
    );
    if from == to {
        return Err(params::invalid("to_path", "it is the same file as from_path"));
    }
    Ok(())
}

/// What is done about a file at the target.
pub(crate) fn existing(params: &Map<String, Value>) -> Existing {
    if params::is_set(params, "overwrite") {
        Existing::Replace
    } else {
        Existing::Keep
    }
}

impl Tool for Copy {
    fn id(&self) -> &'static str {
        "files.copy"
    }

    fn spec(&self) -> ToolSpec {
        params::spec(json!({
            "tool_id": self.id(),
            "version": "1.0.0",
            "description": "Copies a file within the space; another file is overwritten only if that is asked for.",
            "caps_required": ["files.read", "files.write", "workspace:shared:write"],
            "params_schema": two_paths_schema(),
            "result_schema": params::object(&["bytes_copied"], json!({
                "bytes_copied": { "type": "integer", "minimum": 0, "x-public": true },
                "dry_run": { "type": "boolean", "x-public": true },
            })),
            "side_effects": ["filesystem_write"],
            "safety_class": "LOW",
            "risk_level": "write",
            "reversible": true,
            "timeout_ms": 4000,
            "resource": "file:{space_id}/{to_path}",
            "repeat": "probe",
        }))
    }

    fn example(&self) -> Value {
        json!({
            "from_path": "workspace/notes/w36.txt", "to_path": "workspace/notes/w36 copy.txt",
            "space_id": "shared:household",
        })
    }

    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        check_two_paths(params)
    }

    fn touches(&self, params: &Map<String, Value>) -> Option<Vec<Touch>> {
        let to = params::file(params, "to_path").ok()?;
        Some(params::touch(&to).into_iter().collect())
    }

    fn reads(&self, params: &Map<String, Value>) -> Vec<String> {
        let from = params::file(params, "from_path").ok();
        from.map(|from| from.to_string()).into_iter().collect()
    }

    /// Quality is whether the copy on disk is as long as what was read.
    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let (from, to) = (
            params::file(&call.params, "from_path")?,
            params::file(&call.params, "to_path")?,
        );
        let mark = call.trace_id.as_str();
        let (draft, bytes) =
            workspace.draft_copy(&from, &to, COPY_BYTES_MAX.get(), existing(&call.params), mark)?;
        draft.place()?;
        let on_disk = workspace.stat(&to)?.map(|stat| stat.bytes);
        let quality = if on_disk == Some(bytes) { 1.0 } else { 0.0 };
        Ok(ToolOutput::new(json!({ "bytes_copied": bytes }), Some(quality)))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let (from, to) = (
            params::file(&call.params, "from_path")?,
            params::file(&call.params, "to_path")?,
        );
        let (_, stat) = workspace.open_file(&from)?;
        if stat.bytes > COPY_BYTES_MAX.get() {
            let bytes_max = COPY_BYTES_MAX.get();
            return Err(FileProblem::TooLarge { bytes_max }.into());
        }
        workspace.may_place(&to, existing(&call.params))?;
        Ok(ToolOutput::new(
            json!({ "bytes_copied": 0, "dry_run": true }),
            None,
        ))
    }

    /// The target has changed and is like the source: it is the copy.
    fn probe(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ProbeVerdict, Failure> {
        let (from, to) = (
            params::file(&call.params, "from_path")?,
            params::file(&call.params, "to_path")?,
        );
        let Some(was) = before(call, &to) else {
            return Ok(ProbeVerdict::CannotSay);
        };
        let is = now(workspace, &to)?;
        Ok(if &is == was {
            ProbeVerdict::NotDone
        } else if same_content(&is, &now(workspace, &from)?) {
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
