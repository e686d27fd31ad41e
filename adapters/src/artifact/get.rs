//! `artifact.get`: writes an artifact of the space to a file.
//!
//! The parameters name the artifact; the pipeline looks it up and sends its content on the side channel. It does not
//! send a quarantined artifact, and the tool does not run then.

use effectd_contracts::ARTIFACT_GET_TOOL;
use nix::errno::Errno;

use crate::limits::COPY_BYTES_MAX;
use crate::prelude::*;
use crate::probe::now;
use crate::workspace::Received;

#[derive(Debug, Clone, Copy)]
pub struct Get;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The id that artifact.put returned.
    #[schemars(pattern(params::SHA256), extend("x-public" = true, "x-resource" = true))]
    #[expect(dead_code, reason = "the pipeline sends the content")]
    artifact_id: String,
    to_path: SpacePath,
    /// Replace the file if it exists. Default: false.
    #[serde(default)]
    #[schemars(extend("x-public" = true))]
    overwrite: bool,
}

impl TypedTool for Get {
    const ID: &'static str = ARTIFACT_GET_TOOL;
    const DESCRIPTION: &'static str = "Writes an artifact of the space to a file. Overwrites an existing file only \
        on request. Use it to bring back what was stored.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "bytes": count(), "sha256": { "type": "string", "pattern": params::SHA256 },
            "dry_run": flag(),
        });
        ToolSpec { repeat: Repeat::Safe, ..params::writes::<Self>(&["bytes"], result) }
    }

    fn example(&self) -> Value {
        json!({ "artifact_id": "0".repeat(64), "to_path": "workspace/notes/again.txt" })
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        Some(params::touched(&params.to_path))
    }

    /// Quality is whether the file on disk has the length of the artifact. Without `overwrite`, a file that already has
    /// the content stays: an interrupted run may have written it.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let to = &call.params.to_path;
        let existing = Existing::replace_if(call.params.overwrite);
        let is = now(workspace, to)?;
        let received = match (existing, &is) {
            (Existing::Keep, PathState::File(there)) => {
                let received = workspace.receive_content(COPY_BYTES_MAX, |_| Ok(()))?;
                if received.digest.to_string() != there.digest {
                    return Err(FileProblem::at("write the file")(Errno::EEXIST).into());
                }
                received
            }
            (Existing::Keep | Existing::Replace, _) => {
                let (draft, received) =
                    workspace.draft_new(to, COPY_BYTES_MAX, existing, call.trace_id.as_str())?;
                draft.place()?;
                received
            }
        };
        let Received { bytes, digest } = received;
        let is_whole = workspace.has_length(to, bytes as usize)?;
        let result = json!({ "bytes": bytes, "sha256": digest.hex() });
        Ok(params::verified(result, is_whole))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let to = &call.params.to_path;
        workspace.may_place(to, Existing::replace_if(call.params.overwrite))?;
        Ok(params::dry(json!({ "bytes": 0 })))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;
    use effectd_contracts::{Code, Digest};

    fn params(to: &str, overwrite: bool) -> Value {
        json!({ "artifact_id": "0".repeat(64), "to_path": to, "overwrite": overwrite })
    }

    #[test]
    fn the_artifact_is_written_and_overwrites_only_when_asked() {
        let place = TestSpace::new();
        let content = vec![7_u8; 100_000];
        place.put("there", b"other");
        place.send(std::slice::from_ref(&content));
        let output = place.run(&Get, params("workspace/a/new", false)).unwrap();
        assert_eq!(output.result, json!({ "bytes": 100_000, "sha256": Digest::of(&content).hex() }));
        assert_eq!(place.get("a/new"), Some(content.clone()));
        // The same again, as after a crash.
        place.send(std::slice::from_ref(&content));
        place.run(&Get, params("workspace/a/new", false)).unwrap();
        place.send(std::slice::from_ref(&content));
        let refused = place.run(&Get, params("workspace/there", false)).unwrap_err();
        assert_eq!((refused.code, place.get("there").unwrap()), (Code::FileExists, b"other".to_vec()));
        assert_eq!(place.dry_run(&Get, params("workspace/there", false)).unwrap_err().code, Code::FileExists);
        place.send(std::slice::from_ref(&content));
        place.run(&Get, params("workspace/there", true)).unwrap();
        assert_eq!(place.get("there"), Some(content));
    }

    #[test]
    fn what_breaks_off_or_is_too_long_leaves_nothing() {
        let place = TestSpace::new();
        let before = place.names();
        let failure = place.run(&Get, params("workspace/new/file", false)).unwrap_err();
        assert_eq!(failure.code, Code::ToolFailed, "{failure}");
        assert_eq!(place.names(), before);
        place.send(&[vec![0; COPY_BYTES_MAX as usize + 1]]);
        let failure = place.run(&Get, params("workspace/new/file", false)).unwrap_err();
        assert_eq!(failure.code, Code::FileLimit);
        assert_eq!(place.names(), before);
    }
}
