//! `files.delete`: removes a file. A danger: denied unless the operator says otherwise.

use effectd_contracts::{Failure, ProbeVerdict, Standing, ToolCall, ToolOutput, ToolSpec, Touch};
use serde_json::{Map, Value, json};

use crate::before::{before, now};
use crate::params;
use crate::spacepath::SpacePath;
use crate::tool::Tool;
use crate::workspace::{FileProblem, Workspace};

/// Removes one file. What was in it is kept for an undo if it is not too large; the receipt says so.
#[derive(Debug, Clone, Copy)]
pub struct Delete;

impl Tool for Delete {
    fn id(&self) -> &'static str {
        "files.delete"
    }

    fn spec(&self) -> ToolSpec {
        params::spec(json!({
            "tool_id": self.id(),
            "version": "1.0.0",
            "description": "Removes a file of the space. With expected_sha256, only if it is the one that was read.",
            "caps_required": ["files.delete", "workspace:shared:write"],
            "params_schema": params::object(&["path", "space_id"], json!({
                "path": params::path_schema(),
                "expected_sha256": params::sha256_schema(),
                "space_id": params::space_schema(),
            })),
            "result_schema": params::object(&["deleted"], json!({
                "deleted": { "type": "boolean", "x-public": true },
                "dry_run": { "type": "boolean", "x-public": true },
            })),
            "side_effects": ["filesystem_delete"],
            "safety_class": "HIGH",
            "risk_level": "danger",
            "timeout_ms": 4000,
            "resource": "file:{space_id}/{path}",
            "repeat": "probe",
            "sandbox_profile": "high_isolation",
        }))
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/w36.txt", "space_id": "shared:household" })
    }

    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        params::file(params, "path").map(drop)
    }

    fn touches(&self, params: &Map<String, Value>) -> Option<Vec<Touch>> {
        let path = params::file(params, "path").ok()?;
        Some(params::touch(&path).into_iter().collect())
    }

    /// Quality is whether it is gone.
    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let path = params::file(&call.params, "path")?;
        expect(workspace, &path, &call.params)?;
        workspace.remove_file(&path)?;
        let gone = workspace.stat(&path)?.is_none();
        let quality = if gone { 1.0 } else { 0.0 };
        Ok(ToolOutput::new(json!({ "deleted": true }), Some(quality)))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let path = params::file(&call.params, "path")?;
        workspace.open_file(&path)?;
        expect(workspace, &path, &call.params)?;
        Ok(ToolOutput::new(
            json!({ "deleted": false, "dry_run": true }),
            None,
        ))
    }

    /// It was there, and is not there any more.
    fn probe(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ProbeVerdict, Failure> {
        let path = params::file(&call.params, "path")?;
        let is = now(workspace, &path)?;
        Ok(match before(call, &path) {
            None => ProbeVerdict::CannotSay,
            Some(was) if was == &is => ProbeVerdict::NotDone,
            Some(Standing::File(_)) if is == Standing::Absent => ProbeVerdict::Done,
            Some(_) => ProbeVerdict::CannotSay,
        })
    }
}

fn expect(
    workspace: &Workspace<'_>,
    path: &SpacePath,
    params: &Map<String, Value>,
) -> Result<(), FileProblem> {
    let Some(expected) = params::optional_text(params, "expected_sha256") else {
        return Ok(());
    };
    match workspace.standing(path, 0)?.0 {
        Standing::File(state) if state.digest.strip_prefix("sha256:") == Some(expected) => Ok(()),
        Standing::File(_) | Standing::Absent | Standing::Folder | Standing::Other => {
            Err(FileProblem::Changed)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::Place;
    use effectd_contracts::{Code, Digest, RiskTier};

    #[test]
    fn only_the_expected_file_is_removed() {
        let place = Place::new();
        place.put("x", b"one");
        let stale = json!({ "path": "workspace/x", "expected_sha256": Digest::of(b"two").hex() });
        assert_eq!(place.run(&Delete, stale).unwrap_err().code, Code::StateChanged);
        let right = json!({ "path": "workspace/x", "expected_sha256": Digest::of(b"one").hex() });
        place.run(&Delete, right.clone()).unwrap();
        assert_eq!(place.get("x"), None);
        assert_eq!(
            place
                .run(&Delete, json!({ "path": "workspace/x" }))
                .unwrap_err()
                .code,
            Code::FileNotFound
        );
    }

    #[test]
    fn it_is_of_the_highest_tier() {
        let spec = Delete.spec();
        assert_eq!(spec.tier(), RiskTier::R4);
        assert!(spec.effective_profile().high_isolation);
    }
}
