//! `artifact.get`: writes an artifact of the space to a file.
//!
//! The parameters name the artifact; the pipeline looks it up and sends its content beside the call. One that is quarantined is
//! not sent, and then nothing runs.

use effectd_contracts::{ARTIFACT_GET_TOOL, Failure, Repeat, Standing, ToolOutput, ToolSpec, Touch};
use nix::errno::Errno;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::before::now;
use crate::files::existing;
use crate::limits::COPY_BYTES_MAX;
use crate::params;
use crate::spacepath::SpacePath;
use crate::typed::{Call, TypedTool};
use crate::workspace::{Existing, FileProblem, Heard, Workspace};

/// Writes one artifact. Another file is overwritten only if that is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Get;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    #[schemars(pattern(params::SHA256), extend("x-public" = true, "x-resource" = true))]
    #[expect(dead_code, reason = "the pipeline sends the content")]
    artifact_id: String,
    to_path: SpacePath,
    #[serde(default)]
    #[schemars(extend("x-public" = true))]
    overwrite: bool,
}

impl TypedTool for Get {
    const ID: &'static str = ARTIFACT_GET_TOOL;
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "bytes": { "type": "integer", "minimum": 0, "x-public": true },
            "sha256": { "type": "string", "pattern": "^[0-9a-f]{64}$" },
            "dry_run": { "type": "boolean", "x-public": true },
        });
        ToolSpec {
            repeat: Repeat::Safe,
            ..params::writes::<Self>(
                "Writes an artifact of the space to a file; another file is overwritten only if that is asked for.",
                params::object(&["bytes"], result),
            )
        }
    }

    fn example(&self) -> Value {
        json!({
            "artifact_id": "0".repeat(64), "to_path": "workspace/notes/again.txt", "space_id": "shared:household",
        })
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        Some(params::touched(&params.to_path))
    }

    /// Quality is whether the file on disk is as long as what was sent. A file that has the content already is left as it is:
    /// it may be what a run that was interrupted wrote.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let to = &call.params.to_path;
        let existing = existing(call.params.overwrite);
        let is = now(workspace, to)?;
        let heard = match (existing, &is) {
            (Existing::Keep, Standing::File(there)) => {
                let heard = workspace.hear_whole(COPY_BYTES_MAX, |_| Ok(()))?;
                if heard.digest.to_string() != there.digest {
                    return Err(FileProblem::at("write the file")(Errno::EEXIST).into());
                }
                heard
            }
            (Existing::Keep | Existing::Replace, _) => {
                let (draft, heard) =
                    workspace.draft_new(to, COPY_BYTES_MAX, existing, call.trace_id.as_str())?;
                draft.place()?;
                heard
            }
        };
        let Heard { bytes, digest } = heard;
        let on_disk = workspace.stat(to)?.map(|stat| stat.bytes);
        let quality = if on_disk == Some(bytes) { 1.0 } else { 0.0 };
        let result = json!({ "bytes": bytes, "sha256": digest.hex() });
        Ok(ToolOutput::new(result, Some(quality)))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let to = &call.params.to_path;
        workspace.may_place(to, existing(call.params.overwrite))?;
        Ok(ToolOutput::new(json!({ "bytes": 0, "dry_run": true }), None))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::Place;
    use effectd_contracts::{Code, Digest};

    fn params(to: &str, overwrite: bool) -> Value {
        json!({ "artifact_id": "0".repeat(64), "to_path": to, "overwrite": overwrite })
    }

    #[test]
    fn what_is_sent_is_written_and_another_file_only_overwritten_when_asked() {
        let place = Place::new();
        let content = vec![7_u8; 100_000];
        place.put("there", b"other");
        place.send(std::slice::from_ref(&content));
        let output = place.run(&Get, params("workspace/a/new", false)).unwrap();
        assert_eq!(
            output.result,
            json!({ "bytes": 100_000, "sha256": Digest::of(&content).hex() })
        );
        assert_eq!(place.get("a/new"), Some(content.clone()));
        // The same again, as after a crash.
        place.send(std::slice::from_ref(&content));
        place.run(&Get, params("workspace/a/new", false)).unwrap();
        place.send(std::slice::from_ref(&content));
        let refused = place.run(&Get, params("workspace/there", false)).unwrap_err();
        assert_eq!(
            (refused.code, place.get("there").unwrap()),
            (Code::FileExists, b"other".to_vec())
        );
        assert_eq!(
            place
                .dry_run(&Get, params("workspace/there", false))
                .unwrap_err()
                .code,
            Code::FileExists
        );
        place.send(std::slice::from_ref(&content));
        place.run(&Get, params("workspace/there", true)).unwrap();
        assert_eq!(place.get("there"), Some(content));
    }

    #[test]
    fn what_breaks_off_or_is_too_long_leaves_nothing() {
        let place = Place::new();
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
