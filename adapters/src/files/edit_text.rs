//! `files.edit_text`: replaces a passage of a text file by another.

use crate::limits::TEXT_FILE_BYTES_MAX;
use crate::prelude::*;

/// Most positions at which a probe puts the old passage back.
const CANDIDATES_MAX: usize = 64;

#[derive(Debug, Clone, Copy)]
pub struct EditText;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    path: SpacePath,
    /// The passage to replace, exactly as it stands, with its spaces and line breaks.
    #[schemars(length(min = 1), extend("x-resource" = true))]
    find: String,
    /// What to put there; empty to remove the passage.
    replace: String,
    /// How often the passage occurs; all are replaced. Default: 1.
    #[schemars(range(min = 1, max = 10_000), extend("x-public" = true))]
    count: Option<u64>,
    /// The digest that an earlier result named; if the file has another one, nothing changes.
    #[schemars(pattern(params::SHA256), extend("x-public" = true))]
    expected_sha256: Option<String>,
}

impl TypedTool for EditText {
    const ID: &'static str = "files.edit_text";
    const DESCRIPTION: &'static str = "Replaces a passage of a text file of the space. The passage must occur \
        exactly as often as expected (by default once). With expected_sha256, only if the file has not changed \
        since it was read. Use it for small changes.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({ "replacements": count(), "file_bytes": count(), "sha256_text": sha256(), "dry_run": flag() });
        ToolSpec {
            resource: params::resource("file:{space_id}/{path}"),
            repeat: Repeat::Probe,
            ..params::writes::<Self>(&["replacements", "file_bytes"], result)
        }
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/w36.txt", "find": "hello", "replace": "good morning" })
    }

    fn check(&self, params: &Params) -> Result<(), Failure> {
        if params.find == params.replace {
            let why = "it is the same as find; nothing would change";
            return Err(params::invalid("replace", why));
        }
        Ok(())
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        Some(params::touched(&params.path))
    }

    /// Quality is whether the file on disk has the length of the edited text.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let path = &call.params.path;
        let (edited, replacements) = edited(workspace, &call.params)?;
        workspace.write_atomically(path, edited.as_bytes(), Existing::Replace, call.trace_id.as_str())?;
        let result = json!({
            "replacements": replacements, "file_bytes": edited.len(), "sha256_text": Digest::of(edited.as_bytes()).hex(),
        });
        Ok(params::verified(result, workspace.has_length(path, edited.len())?))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let (edited, replacements) = edited(workspace, &call.params)?;
        Ok(params::dry(json!({ "replacements": replacements, "file_bytes": edited.len() })))
    }

    /// Done if the file with the old passage put back is the file from before the run.
    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ProbeVerdict, Failure> {
        let path = &call.params.path;
        let (find, replace) = (&call.params.find, call.params.replace.as_str());
        probe::by_path(workspace, call, path, |was, _| {
            let content = workspace.read(path, TEXT_FILE_BYTES_MAX);
            let Ok(Ok(now)) = content.as_ref().map(|content| content.text()) else {
                return Ok(false);
            };
            let is_before = |candidate: String| probe::is_content(was, candidate.as_bytes());
            if replace.is_empty() {
                // Nothing shows where the passage was.
                return Ok(false);
            }
            if call.params.wanted() > 1 {
                return Ok(is_before(now.replace(replace, find)));
            }
            let occurrences = now.match_indices(replace).take(CANDIDATES_MAX);
            Ok(occurrences
                .map(|(at, _)| format!("{}{find}{}", &now[..at], &now[at + replace.len()..]))
                .any(is_before))
        })
    }
}

impl Params {
    /// How often the passage must occur.
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
        let why = format!(
            "the passage occurs {found} times, not {wanted}; read the file again, or give a longer passage"
        );
        return Err(Failure::new(Code::StateChanged, Phase::Dispatch, why));
    }
    let bytes = text.len() as u64 + (replace.len() as u64).saturating_sub(find.len() as u64) * found;
    FileProblem::check_size(bytes, TEXT_FILE_BYTES_MAX)?;
    Ok((text.replace(find, replace), found))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;
    use crate::tool::Tool;

    fn params(find: &str, replace: &str) -> Value {
        json!({ "path": "workspace/x", "find": find, "replace": replace })
    }

    #[test]
    fn exactly_the_passage_is_replaced() {
        let place = TestSpace::new();
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
    fn a_wrong_match_count_or_an_unexpected_file_changes_nothing() {
        let place = TestSpace::new();
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
            Tool::check(&EditText, params("a", "a").as_object().unwrap()).unwrap_err().code,
            Code::ParamsInvalid
        );
    }
}
