//! `files.edit_text`: replaces one passage of a text file by another.

use effectd_contracts::{Digest, Failure, ProbeVerdict, Repeat, ToolOutput, ToolSpec, Touch};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::before;
use crate::limits::TEXT_FILE_BYTES_MAX;
use crate::params;
use crate::spacepath::SpacePath;
use crate::typed::{Call, TypedTool};
use crate::workspace::{Existing, FileProblem, Workspace};

/// Places that a probe tries before it gives up.
const CANDIDATES_MAX: usize = 64;

/// Replaces a passage that must be there exactly as often as the caller says.
#[derive(Debug, Clone, Copy)]
pub struct EditText;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    path: SpacePath,
    #[schemars(length(min = 1))]
    find: String,
    replace: String,
    #[schemars(range(min = 1, max = 10_000), extend("x-public" = true))]
    count: Option<u64>,
    #[schemars(pattern(params::SHA256), extend("x-public" = true))]
    expected_sha256: Option<String>,
}

impl TypedTool for EditText {
    const ID: &'static str = "files.edit_text";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "replacements": { "type": "integer", "minimum": 0, "x-public": true },
            "file_bytes": { "type": "integer", "minimum": 0, "x-public": true },
            "sha256_text": params::sha256_schema(),
            "dry_run": { "type": "boolean", "x-public": true },
        });
        ToolSpec {
            resource: params::resource("file:{space_id}/{path}"),
            repeat: Repeat::Probe,
            ..params::writes::<Self>(
                "Replaces a passage of a text file of the space, which must occur exactly as often as expected (once, \
                    unless said otherwise). With expected_sha256, only if the file is the one that was read.",
                params::object(&["replacements", "file_bytes"], result),
            )
        }
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/w36.txt", "find": "hello", "replace": "good morning", "space_id": "shared:household" })
    }

    fn check(&self, params: &Params) -> Result<(), Failure> {
        if params.find == params.replace {
            return Err(params::invalid(
                "replace",
                "it is the same as find; nothing would change",
            ));
        }
        Ok(())
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        Some(params::touched(&params.path))
    }

    /// Quality is whether the file on disk is as long as it must be.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let path = &call.params.path;
        let (edited, replacements) = edited(workspace, &call.params)?;
        workspace.write_atomically(path, edited.as_bytes(), Existing::Replace, call.trace_id.as_str())?;
        let on_disk = workspace.stat(path)?.map(|stat| stat.bytes);
        let file_bytes = edited.len() as u64;
        let result = json!({
            "replacements": replacements, "file_bytes": file_bytes, "sha256_text": Digest::of(edited.as_bytes()).hex(),
        });
        let quality = if on_disk == Some(file_bytes) { 1.0 } else { 0.0 };
        Ok(ToolOutput::new(result, Some(quality)))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let (edited, replacements) = edited(workspace, &call.params)?;
        let result = json!({ "replacements": replacements, "file_bytes": edited.len(), "dry_run": true });
        Ok(ToolOutput::new(result, None))
    }

    /// Putting the old passage back must give what was there before.
    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ProbeVerdict, Failure> {
        let path = &call.params.path;
        let Some(was) = before::before(call, path) else {
            return Ok(ProbeVerdict::CannotSay);
        };
        if was == &before::now(workspace, path)? {
            return Ok(ProbeVerdict::NotDone);
        }
        let (find, replace) = (&call.params.find, call.params.replace.as_str());
        let Ok(content) = workspace.read(path, TEXT_FILE_BYTES_MAX) else {
            return Ok(ProbeVerdict::CannotSay);
        };
        let Ok(now) = content.text() else {
            return Ok(ProbeVerdict::CannotSay);
        };
        let undone = |candidate: String| before::is_content(was, candidate.as_bytes());
        let is_ours = if replace.is_empty() {
            // What was taken out has left no trace of its place.
            false
        } else if call.params.wanted() == 1 {
            let places = now.match_indices(replace).take(CANDIDATES_MAX);
            places
                .map(|(at, _)| format!("{}{find}{}", &now[..at], &now[at + replace.len()..]))
                .any(undone)
        } else {
            undone(now.replace(replace, find))
        };
        Ok(if is_ours {
            ProbeVerdict::Done
        } else {
            ProbeVerdict::CannotSay
        })
    }
}

impl Params {
    /// How often the passage must be there.
    fn wanted(&self) -> u64 {
        self.count.unwrap_or(1)
    }
}

fn edited(workspace: &Workspace<'_>, params: &Params) -> Result<(String, u64), Failure> {
    let content = workspace.read(&params.path, TEXT_FILE_BYTES_MAX)?;
    let expected = params.expected_sha256.as_ref();
    if expected.is_some_and(|expected| &content.digest().hex() != expected) {
        return Err(FileProblem::Changed.into());
    }
    let text = content.text()?;
    let (find, replace) = (params.find.as_str(), params.replace.as_str());
    let wanted = params.wanted();
    let found = text.matches(find).count() as u64;
    if found != wanted {
        return Err(Failure::new(
            effectd_contracts::Code::StateChanged,
            effectd_contracts::Phase::Dispatch,
            format!(
                "the passage occurs {found} times, not {wanted}; read the file again, or name more of the passage"
            ),
        ));
    }
    let bytes = text.len() as u64 + (replace.len() as u64).saturating_sub(find.len() as u64) * found;
    if bytes > TEXT_FILE_BYTES_MAX {
        return Err(FileProblem::TooLarge {
            bytes_max: TEXT_FILE_BYTES_MAX,
        }
        .into());
    }
    Ok((text.replace(find, replace), found))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::Place;
    use crate::tool::Tool;
    use effectd_contracts::Code;

    fn params(find: &str, replace: &str) -> Value {
        json!({ "path": "workspace/x", "find": find, "replace": replace })
    }

    #[test]
    fn exactly_the_passage_is_replaced() {
        let place = Place::new();
        place.put("x", b"one two one");
        let output = place.run(&EditText, params("two", "three")).unwrap();
        assert_eq!(output.result["replacements"], 1);
        assert_eq!(place.get("x"), Some(b"one three one".to_vec()));
        let mut twice = params("one", "1");
        twice["count"] = json!(2);
        place.run(&EditText, twice).unwrap();
        assert_eq!(place.get("x"), Some(b"1 three 1".to_vec()));
    }

    #[test]
    fn another_number_of_places_or_another_file_than_expected_changes_nothing() {
        let place = Place::new();
        place.put("x", b"one two one");
        let mut stale = params("two", "three");
        stale["expected_sha256"] = json!(Digest::of(b"something else").hex());
        for bad in [params("one", "1"), params("four", "4"), stale] {
            let failure = place.run(&EditText, bad).unwrap_err();
            assert_eq!(failure.code, Code::StateChanged);
        }
        let mut right = params("two", "three");
        right["expected_sha256"] = json!(Digest::of(b"one two one").hex());
        assert_eq!(place.get("x"), Some(b"one two one".to_vec()));
        place.run(&EditText, right).unwrap();
        assert_eq!(
            Tool::check(&EditText, params("a", "a").as_object().unwrap())
                .unwrap_err()
                .code,
            Code::ParamsInvalid
        );
    }
}
