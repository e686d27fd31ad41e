//! `files.append_text`: adds a text to the end of a file.

use effectd_contracts::{Failure, ProbeVerdict, Repeat, Standing, ToolOutput, ToolSpec, Touch};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::before;
use crate::limits::TEXT_FILE_BYTES_MAX;
use crate::params;
use crate::spacepath::SpacePath;
use crate::typed::{Call, TypedTool};
use crate::workspace::{Existing, FileProblem, Workspace};

/// Adds text. A file that is not there is created.
#[derive(Debug, Clone, Copy)]
pub struct AppendText;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    path: SpacePath,
    #[schemars(length(min = 1))]
    text: String,
}

impl TypedTool for AppendText {
    const ID: &'static str = "files.append_text";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "bytes_appended": { "type": "integer", "minimum": 0, "x-public": true },
            "file_bytes": { "type": "integer", "minimum": 0, "x-public": true },
            "dry_run": { "type": "boolean", "x-public": true },
        });
        ToolSpec {
            resource: params::resource("file:{space_id}/{path}"),
            repeat: Repeat::Probe,
            ..params::writes::<Self>(
                "Adds a text to the end of a text file of the space; a missing file is created.",
                params::object(&["bytes_appended", "file_bytes"], result),
            )
        }
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/log.txt", "text": "one more line\n", "space_id": "shared:household" })
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        Some(params::touched(&params.path))
    }

    /// Quality is whether the file on disk has grown by the text.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let Params { path, text } = &call.params;
        let longer = longer(workspace, path, text)?;
        workspace.write_atomically(path, longer.as_bytes(), Existing::Replace, call.trace_id.as_str())?;
        let on_disk = workspace.stat(path)?.map(|stat| stat.bytes);
        let file_bytes = longer.len() as u64;
        let quality = if on_disk == Some(file_bytes) { 1.0 } else { 0.0 };
        let result = json!({ "bytes_appended": text.len(), "file_bytes": file_bytes });
        Ok(ToolOutput::new(result, Some(quality)))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let Params { path, text } = &call.params;
        let file_bytes = longer(workspace, path, text)?.len() - text.len();
        let result = json!({ "bytes_appended": 0, "file_bytes": file_bytes, "dry_run": true });
        Ok(ToolOutput::new(result, None))
    }

    /// What is there without the text at its end must be what was there before.
    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ProbeVerdict, Failure> {
        let Params { path, text } = &call.params;
        let Some(before) = before::before(call, path) else {
            return Ok(ProbeVerdict::CannotSay);
        };
        if before == &before::now(workspace, path)? {
            return Ok(ProbeVerdict::NotDone);
        }
        let Ok(now) = workspace.read(path, TEXT_FILE_BYTES_MAX) else {
            return Ok(ProbeVerdict::CannotSay);
        };
        let was = now.bytes.strip_suffix(text.as_bytes());
        let is_ours = was.is_some_and(|was| match before {
            Standing::Absent => was.is_empty(),
            Standing::File(_) => before::is_content(before, was),
            Standing::Folder | Standing::Other => false,
        });
        Ok(if is_ours {
            ProbeVerdict::Done
        } else {
            ProbeVerdict::CannotSay
        })
    }
}

fn longer(workspace: &Workspace<'_>, path: &SpacePath, text: &str) -> Result<String, FileProblem> {
    let mut whole = match workspace.stat(path)? {
        None => String::new(),
        Some(_) => workspace.read(path, TEXT_FILE_BYTES_MAX)?.text()?.to_owned(),
    };
    whole.push_str(text);
    if whole.len() as u64 > TEXT_FILE_BYTES_MAX {
        return Err(FileProblem::TooLarge {
            bytes_max: TEXT_FILE_BYTES_MAX,
        });
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::Place;

    #[test]
    fn text_is_added_to_what_is_there_or_to_nothing() {
        let place = Place::new();
        let params = json!({ "path": "workspace/log/x", "text": "one\n" });
        place.run(&AppendText, params.clone()).unwrap();
        let output = place.run(&AppendText, params).unwrap();
        assert_eq!(output.result, json!({ "bytes_appended": 4, "file_bytes": 8 }));
        assert_eq!(place.get("log/x"), Some(b"one\none\n".to_vec()));
    }

    #[test]
    fn a_file_that_would_be_too_large_stays_as_it_is() {
        let place = Place::new();
        let size = usize::try_from(TEXT_FILE_BYTES_MAX).unwrap();
        place.put("x", "a".repeat(size - 1).as_bytes());
        let failure = place
            .run(&AppendText, json!({ "path": "workspace/x", "text": "bb" }))
            .unwrap_err();
        assert_eq!(failure.code, effectd_contracts::Code::FileLimit);
        assert_eq!(place.get("x").unwrap().len(), size - 1);
    }
}
