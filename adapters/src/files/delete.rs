//! `files.delete`: removes a file. A danger: denied unless the operator says otherwise.

use std::collections::BTreeSet;

use effectd_contracts::{
    Failure, ProbeVerdict, Repeat, RiskLevel, SafetyClass, SandboxProfile, SideEffect, Standing, ToolOutput,
    ToolSpec, Touch,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::before::{before, now};
use crate::params;
use crate::spacepath::SpacePath;
use crate::typed::{Call, TypedTool};
use crate::workspace::{FileProblem, Workspace};

/// Removes one file. What was in it is kept for an undo if it is not too large; the receipt says so.
#[derive(Debug, Clone, Copy)]
pub struct Delete;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    path: SpacePath,
    #[schemars(pattern(params::SHA256), extend("x-public" = true))]
    expected_sha256: Option<String>,
}

impl TypedTool for Delete {
    const ID: &'static str = "files.delete";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "deleted": { "type": "boolean", "x-public": true },
            "dry_run": { "type": "boolean", "x-public": true },
        });
        ToolSpec {
            caps_required: params::caps(["files.delete", "workspace:shared:write"]),
            side_effects: BTreeSet::from([SideEffect::FilesystemDelete]),
            safety_class: SafetyClass::High,
            risk_level: RiskLevel::Danger,
            reversible: false,
            resource: params::resource("file:{space_id}/{path}"),
            repeat: Repeat::Probe,
            sandbox_profile: SandboxProfile {
                high_isolation: true,
                ..SandboxProfile::default()
            },
            ..params::writes::<Self>(
                "Removes a file of the space. With expected_sha256, only if it is the one that was read.",
                params::object(&["deleted"], result),
            )
        }
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/w36.txt", "space_id": "shared:household" })
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        Some(params::touched(&params.path))
    }

    /// Quality is whether it is gone.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let path = &call.params.path;
        expect(workspace, &call.params)?;
        workspace.remove_file(path)?;
        let gone = workspace.stat(path)?.is_none();
        let quality = if gone { 1.0 } else { 0.0 };
        Ok(ToolOutput::new(json!({ "deleted": true }), Some(quality)))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let path = &call.params.path;
        workspace.open_file(path)?;
        expect(workspace, &call.params)?;
        Ok(ToolOutput::new(
            json!({ "deleted": false, "dry_run": true }),
            None,
        ))
    }

    /// It was there, and is not there any more.
    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ProbeVerdict, Failure> {
        let path = &call.params.path;
        let is = now(workspace, path)?;
        Ok(match before(call, path) {
            None => ProbeVerdict::CannotSay,
            Some(was) if was == &is => ProbeVerdict::NotDone,
            Some(Standing::File(_)) if is == Standing::Absent => ProbeVerdict::Done,
            Some(_) => ProbeVerdict::CannotSay,
        })
    }
}

fn expect(workspace: &Workspace<'_>, params: &Params) -> Result<(), FileProblem> {
    let Some(expected) = params.expected_sha256.as_deref() else {
        return Ok(());
    };
    match workspace.standing(&params.path, 0)?.0 {
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
