//! `files.append_text`: appends a text to a file, and creates the file if it is missing.

use crate::limits::TEXT_FILE_BYTES_MAX;
use crate::prelude::*;

#[derive(Debug, Clone, Copy)]
pub struct AppendText;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    path: SpacePath,
    /// Goes to the end of the file as it is; end it with a line break.
    #[schemars(length(min = 1))]
    text: String,
}

impl TypedTool for AppendText {
    const ID: &'static str = "files.append_text";
    const DESCRIPTION: &'static str = "Appends a text to a text file of the space. Creates a missing file. Use it \
        for logs and lists.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({ "bytes_appended": count(), "file_bytes": count(), "dry_run": flag() });
        ToolSpec {
            resource: params::resource("file:{space_id}/{path}"),
            repeat: Repeat::Probe,
            ..params::writes::<Self>(&["bytes_appended", "file_bytes"], result)
        }
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/log.txt", "text": "one more line\n" })
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        Some(params::touched(&params.path))
    }

    /// Quality is whether the file on disk has grown by the text.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let Params { path, text } = &call.params;
        let longer = longer(workspace, path, text)?;
        workspace.write_atomically(path, longer.as_bytes(), Existing::Replace, call.trace_id.as_str())?;
        let result = json!({ "bytes_appended": text.len(), "file_bytes": longer.len() });
        Ok(params::verified(result, workspace.has_length(path, longer.len())?))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let Params { path, text } = &call.params;
        let file_bytes = longer(workspace, path, text)?.len() - text.len();
        Ok(params::dry(json!({ "bytes_appended": 0, "file_bytes": file_bytes })))
    }

    /// Done if the file without the text at its end is the file from before the run.
    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ProbeVerdict, Failure> {
        let Params { path, text } = &call.params;
        probe::by_path(workspace, call, path, |before, _| {
            let now = workspace.read(path, TEXT_FILE_BYTES_MAX).ok();
            let old = now.as_ref().and_then(|now| now.bytes.strip_suffix(text.as_bytes()));
            Ok(old.is_some_and(|old| match before {
                PathState::Absent => old.is_empty(),
                PathState::File(_) => probe::is_content(before, old),
                PathState::Folder | PathState::Other => false,
            }))
        })
    }
}

fn longer(workspace: &Workspace<'_>, path: &SpacePath, text: &str) -> Result<String, FileProblem> {
    let mut whole = match workspace.stat(path)? {
        None => String::new(),
        Some(_) => workspace.read(path, TEXT_FILE_BYTES_MAX)?.text()?.to_owned(),
    };
    whole.push_str(text);
    FileProblem::check_size(whole.len() as u64, TEXT_FILE_BYTES_MAX)?;
    Ok(whole)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;

    #[test]
    fn text_is_added_to_what_is_there_or_to_nothing() {
        let place = TestSpace::new();
        let params = json!({ "path": "workspace/log/x", "text": "one\n" });
        place.run(&AppendText, params.clone()).unwrap();
        let output = place.run(&AppendText, params).unwrap();
        assert_eq!(output.result, json!({ "bytes_appended": 4, "file_bytes": 8 }));
        assert_eq!(place.get("log/x"), Some(b"one\none\n".to_vec()));
    }

    #[test]
    fn a_file_that_would_be_too_large_stays_as_it_is() {
        let place = TestSpace::new();
        let size = usize::try_from(TEXT_FILE_BYTES_MAX).unwrap();
        place.put("x", "a".repeat(size - 1).as_bytes());
        let failure = place.run(&AppendText, json!({ "path": "workspace/x", "text": "bb" })).unwrap_err();
        assert_eq!(failure.code, effectd_contracts::Code::FileLimit);
        assert_eq!(place.get("x").unwrap().len(), size - 1);
    }
}
