//! `files.write_text`: puts a text into a file, whole or not at all.

use effectd_contracts::{Digest, Failure, Repeat, ToolOutput, ToolSpec, Touch};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::params;
use crate::spacepath::SpacePath;
use crate::typed::{Call, TypedTool};
use crate::workspace::{Existing, Workspace};

/// Writes a text file, replacing what was there. Missing folders are created.
#[derive(Debug, Clone, Copy)]
pub struct WriteText;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    path: SpacePath,
    text: String,
}

impl TypedTool for WriteText {
    const ID: &'static str = "files.write_text";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "bytes_written": { "type": "integer", "minimum": 0, "x-public": true },
            "sha256_text": params::sha256_schema(),
            "dry_run": { "type": "boolean", "x-public": true },
        });
        ToolSpec {
            idempotency_key_fields: params::key(["path", "sha256(text)"]),
            resource: params::resource("file:{space_id}/{path}"),
            repeat: Repeat::Safe,
            ..params::writes::<Self>(
                "Puts a text into a file of the space, replacing what was there.",
                params::object(&["bytes_written"], result),
            )
        }
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/w36.txt", "text": "hello", "space_id": "shared:household" })
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        Some(params::touched(&params.path))
    }

    /// Quality is whether the file on disk has as many bytes as the text.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let Params { path, text } = &call.params;
        workspace.write_atomically(path, text.as_bytes(), Existing::Replace, call.trace_id.as_str())?;
        let on_disk = workspace.stat(path)?.map(|stat| stat.bytes);
        let bytes = text.len() as u64;
        let result = json!({ "bytes_written": bytes, "sha256_text": Digest::of(text.as_bytes()).hex() });
        let quality = if on_disk == Some(bytes) { 1.0 } else { 0.0 };
        Ok(ToolOutput::new(result, Some(quality)))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        Ok(ToolOutput::new(
            json!({ "bytes_written": 0, "dry_run": true }),
            None,
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::Place;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn it_writes_utf8_and_counts_bytes() {
        let place = Place::new();
        let output = place
            .run(
                &WriteText,
                json!({ "path": "workspace/a/b/x.txt", "text": "héllo" }),
            )
            .unwrap();
        assert_eq!(output.result["bytes_written"], 6);
        assert_eq!(output.result["sha256_text"], Digest::of("héllo".as_bytes()).hex());
        assert_eq!(output.quality, Some(1.0));
        assert_eq!(place.get("a/b/x.txt"), Some("héllo".as_bytes().to_vec()));
    }

    #[test]
    fn a_dry_run_says_exactly_what_it_must_and_changes_nothing() {
        let place = Place::new();
        let output = place
            .dry_run(&WriteText, json!({ "path": "workspace/a/x.txt", "text": "hi" }))
            .unwrap();
        assert_eq!(output.result, json!({ "bytes_written": 0, "dry_run": true }));
        assert!(place.names().is_empty());
    }

    #[test]
    fn a_private_file_stays_private_and_an_executable_one_executable() {
        let place = Place::new();
        for mode in [0o600, 0o755, 0o444] {
            place.put("x", b"old");
            let file = place.path("x");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            place
                .run(&WriteText, json!({ "path": "workspace/x", "text": "new" }))
                .unwrap();
            assert_eq!(place.get("x"), Some(b"new".to_vec()));
            assert_eq!(
                std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
                mode
            );
            std::fs::remove_file(file).unwrap();
        }
        assert!(place.names().is_empty());
    }
}
