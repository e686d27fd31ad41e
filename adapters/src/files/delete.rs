//! `files.delete`: removes a file. Its risk is `danger`: it is denied unless the operator allows it.

use std::collections::BTreeSet;

use effectd_contracts::{RiskLevel, SafetyClass, SandboxProfile, SideEffect};

use crate::prelude::*;

#[derive(Debug, Clone, Copy)]
pub struct Delete;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    path: SpacePath,
    /// The digest that an earlier result named; if the file has another one, nothing changes.
    #[schemars(pattern(params::SHA256), extend("x-public" = true))]
    expected_sha256: Option<String>,
}

impl TypedTool for Delete {
    const ID: &'static str = "files.delete";
    const DESCRIPTION: &'static str = "Deletes a file of the space. With expected_sha256, only if the file has not \
        changed since it was read. Use it only for what nobody needs any more.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({ "deleted": flag(), "dry_run": flag() });
        ToolSpec {
            caps_required: params::caps(["files.delete", "workspace:shared:write"]),
            side_effects: BTreeSet::from([SideEffect::FilesystemDelete]),
            safety_class: SafetyClass::High,
            risk_level: Some(RiskLevel::Danger),
            reversible: false,
            resource: params::resource("file:{space_id}/{path}"),
            repeat: Repeat::Probe,
            sandbox_profile: SandboxProfile { high_isolation: true, ..SandboxProfile::default() },
            ..params::writes::<Self>(&["deleted"], result)
        }
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/w36.txt" })
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        Some(params::touched(&params.path))
    }

    /// Quality is whether the file is gone.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let path = &call.params.path;
        check_digest(workspace, &call.params)?;
        workspace.remove_file(path)?;
        let is_gone = workspace.stat(path)?.is_none();
        Ok(params::verified(json!({ "deleted": true }), is_gone))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let path = &call.params.path;
        workspace.open_file(path)?;
        check_digest(workspace, &call.params)?;
        Ok(params::dry(json!({ "deleted": false })))
    }

    /// Done if there was a file and now there is none.
    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ProbeVerdict, Failure> {
        probe::by_path(workspace, call, &call.params.path, |was, is| {
            Ok(matches!((was, is), (PathState::File(_), PathState::Absent)))
        })
    }
}

fn check_digest(workspace: &Workspace<'_>, params: &Params) -> Result<(), FileProblem> {
    let Some(expected) = params.expected_sha256.as_deref() else {
        return Ok(());
    };
    let is = probe::now(workspace, &params.path)?;
    let is_expected = probe::digest(&is).and_then(|digest| digest.strip_prefix("sha256:")) == Some(expected);
    is_expected.then_some(()).ok_or(FileProblem::Changed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;

    use effectd_contracts::{Code, Digest, RiskTier};

    #[test]
    fn only_the_expected_file_is_removed() {
        let place = TestSpace::new();
        place.put("x", b"one");
        let stale = json!({ "path": "workspace/x", "expected_sha256": Digest::of(b"two").hex() });
        assert_eq!(place.run(&Delete, stale).unwrap_err().code, Code::StateChanged);
        let right = json!({ "path": "workspace/x", "expected_sha256": Digest::of(b"one").hex() });
        place.run(&Delete, right.clone()).unwrap();
        assert_eq!(place.get("x"), None);
        assert_eq!(
            place.run(&Delete, json!({ "path": "workspace/x" })).unwrap_err().code,
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
