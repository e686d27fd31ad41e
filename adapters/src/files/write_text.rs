//! `files.write_text`: writes a text to a file, whole or not at all.

use crate::prelude::*;

#[derive(Debug, Clone, Copy)]
pub struct WriteText;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    path: SpacePath,
    /// The whole new content of the file.
    text: String,
}

impl TypedTool for WriteText {
    const ID: &'static str = "files.write_text";
    const DESCRIPTION: &'static str = "Writes a text to a file of the space and replaces the previous content. Use \
        it for new files, and to change most of a file.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({ "bytes_written": count(), "sha256_text": sha256(), "dry_run": flag() });
        ToolSpec {
            idempotency_key_fields: params::key(["path", "sha256(text)"]),
            resource: params::resource("file:{space_id}/{path}"),
            repeat: Repeat::Safe,
            ..params::writes::<Self>(&["bytes_written"], result)
        }
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/w36.txt", "text": "hello" })
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        Some(params::touched(&params.path))
    }

    /// Quality is whether the file on disk has as many bytes as the text.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let Params { path, text } = &call.params;
        workspace.write_atomically(path, text.as_bytes(), Existing::Replace, call.trace_id.as_str())?;
        let result = json!({ "bytes_written": text.len(), "sha256_text": Digest::of(text.as_bytes()).hex() });
        Ok(params::verified(result, workspace.has_length(path, text.len())?))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({ "bytes_written": 0 })))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn it_writes_utf8_and_counts_bytes() {
        let place = TestSpace::new();
        let output =
            place.run(&WriteText, json!({ "path": "workspace/a/b/x.txt", "text": "héllo" })).unwrap();
        assert_eq!(output.result["bytes_written"], 6);
        assert_eq!(output.result["sha256_text"], Digest::of("héllo".as_bytes()).hex());
        assert_eq!(output.quality, Some(1.0));
        assert_eq!(place.get("a/b/x.txt"), Some("héllo".as_bytes().to_vec()));
    }

    #[test]
    fn a_dry_run_says_exactly_what_it_must_and_changes_nothing() {
        let place = TestSpace::new();
        let output = place.dry_run(&WriteText, json!({ "path": "workspace/a/x.txt", "text": "hi" })).unwrap();
        assert_eq!(output.result, json!({ "bytes_written": 0, "dry_run": true }));
        assert!(place.names().is_empty());
    }

    #[test]
    fn a_file_keeps_its_private_or_executable_mode() {
        let place = TestSpace::new();
        for mode in [0o600, 0o755, 0o444] {
            place.put("x", b"old");
            let file = place.path("x");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            place.run(&WriteText, json!({ "path": "workspace/x", "text": "new" })).unwrap();
            assert_eq!(place.get("x"), Some(b"new".to_vec()));
            assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, mode);
            std::fs::remove_file(file).unwrap();
        }
        assert!(place.names().is_empty());
    }
}
