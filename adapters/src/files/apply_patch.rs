//! `files.apply_patch`: applies a unified diff, all of it or nothing.

use effectd_contracts::{
    Code, Failure, Phase, ProbeVerdict, Repeat, Seen, Standing, ToolCall, ToolOutput, ToolSpec, Touch,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::patch::{FilePatch, Patch};
use crate::before::{before, is_content, now};
use crate::limits::TEXT_FILE_BYTES_MAX;
use crate::params;
use crate::typed::{Call, TypedTool};
use crate::workspace::{Existing, FileProblem, Workspace};

/// Applies a patch to text files. It creates and changes files; it neither deletes nor renames any.
#[derive(Debug, Clone, Copy)]
pub struct ApplyPatch;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    #[schemars(with = "String", length(min = 1), extend("x-resource" = true))]
    patch: Patch,
}

impl TypedTool for ApplyPatch {
    const ID: &'static str = "files.apply_patch";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "files_changed": { "type": "integer", "minimum": 0, "x-public": true },
            "files_created": { "type": "integer", "minimum": 0, "x-public": true },
            "dry_run": { "type": "boolean", "x-public": true },
        });
        ToolSpec {
            repeat: Repeat::Probe,
            ..params::writes::<Self>(
                "Applies a unified diff to text files of the space, all of it or nothing. Paths are beneath the space's \
                    root. It changes and creates files; it neither deletes nor renames any.",
                params::object(&["files_changed", "files_created"], result),
            )
        }
    }

    fn example(&self) -> Value {
        json!({
            "patch": "--- a/notes/w36.txt\n+++ b/notes/w36.txt\n@@ -1 +1 @@\n-hello\n+good morning\n",
            "space_id": "shared:household",
        })
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        let files = params.patch.files.iter();
        Some(files.flat_map(|file| params::touched(&file.path)).collect())
    }

    /// All new contents are written and synced before the first is moved into place. Quality is 1: a patch applies or fails.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let patch = &call.params.patch;
        let mut drafts = Vec::new();
        for file in &patch.files {
            if stands(workspace, call, file)? == Stands::After {
                continue;
            }
            let (old, new) = patched(workspace, file)?;
            let existing = if file.creates {
                Existing::Keep
            } else {
                Existing::Replace
            };
            let draft =
                workspace.draft(&file.path, new.as_bytes(), None, existing, call.trace_id.as_str())?;
            drafts.push((Placed { file, old, new }, draft));
        }
        let mut placed = Vec::new();
        for (one, draft) in drafts {
            if let Err(problem) = draft.place() {
                take_back(workspace, &placed, call);
                return Err(problem.into());
            }
            placed.push(one);
        }
        let created = patch.files.iter().filter(|file| file.creates).count();
        let result = json!({ "files_changed": patch.files.len() - created, "files_created": created });
        Ok(ToolOutput::new(result, Some(1.0)))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        for file in &call.params.patch.files {
            patched(workspace, file)?;
        }
        let result = json!({ "files_changed": 0, "files_created": 0, "dry_run": true });
        Ok(ToolOutput::new(result, None))
    }

    /// A run that was interrupted between two files is not done; running again goes on where it stopped.
    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ProbeVerdict, Failure> {
        let mut verdict = ProbeVerdict::Done;
        for file in &call.params.patch.files {
            match stands(workspace, call, file)? {
                Stands::After => {}
                Stands::Before => verdict = ProbeVerdict::NotDone,
                Stands::Unknown => return Ok(ProbeVerdict::CannotSay),
            }
        }
        Ok(verdict)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    Before,
    After,
    Unknown,
}

/// Whether a file is as it was before, or as the patch leaves it. Without knowledge of before it is not known.
fn stands(workspace: &Workspace<'_>, call: &ToolCall, file: &FilePatch) -> Result<Stands, FileProblem> {
    let Some(was) = before(call, &file.path) else {
        return Ok(Stands::Unknown);
    };
    if was == &now(workspace, &file.path)? {
        return Ok(Stands::Before);
    }
    let Ok(content) = workspace.read(&file.path, TEXT_FILE_BYTES_MAX) else {
        return Ok(Stands::Unknown);
    };
    let taken_back = content
        .text()
        .ok()
        .and_then(|text| file.inverted().apply(text).ok());
    let is_ours = taken_back.is_some_and(|text| match was {
        Standing::Absent => file.creates && text.is_empty(),
        Standing::File(_) => is_content(was, text.as_bytes()),
        Standing::Folder | Standing::Other => false,
    });
    Ok(if is_ours { Stands::After } else { Stands::Unknown })
}

/// The old content, if there is one, and the new.
fn patched(workspace: &Workspace<'_>, file: &FilePatch) -> Result<(Option<Vec<u8>>, String), Failure> {
    let old = if file.creates {
        workspace.may_place(&file.path, Existing::Keep)?;
        None
    } else {
        Some(workspace.read(&file.path, TEXT_FILE_BYTES_MAX)?)
    };
    let text = old.as_ref().map_or(Ok(""), |old| old.text())?;
    let new = file.apply(text).map_err(|problem| {
        let message = format!("{}: {problem}; nothing was changed", file.path);
        Failure::new(Code::StateChanged, Phase::Dispatch, message)
    })?;
    if new.len() as u64 > TEXT_FILE_BYTES_MAX {
        let bytes_max = TEXT_FILE_BYTES_MAX;
        return Err(FileProblem::TooLarge { bytes_max }.into());
    }
    Ok((old.map(|old| old.bytes), new))
}

/// A file of the patch, with what was there and what is to be.
struct Placed<'p> {
    file: &'p FilePatch,
    old: Option<Vec<u8>>,
    new: String,
}

/// Best effort: the problem that led here is the one that matters, and what is kept for an undo is there in any case. What
/// the action found before it is not what is expected now, but the new content; what somebody has put there since stays.
fn take_back(workspace: &Workspace<'_>, placed: &[Placed<'_>], call: &ToolCall) {
    let mark = call.trace_id.as_str();
    for Placed { file, old, new } in placed {
        let Ok(standing) = now(workspace, &file.path) else {
            continue;
        };
        if !is_content(&standing, new.as_bytes()) {
            continue;
        }
        let path = file.path.to_string();
        let ours = [Seen::new(path, standing)];
        let workspace = workspace.expecting(&ours, mark);
        let _ = match old {
            Some(old) => workspace.write_atomically(&file.path, old, Existing::Replace, mark),
            None => workspace.remove_file(&file.path),
        };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::Place;

    const TWO: &str =
        "--- a/one\n+++ b/one\n@@ -1 +1 @@\n-a\n+b\n--- /dev/null\n+++ b/deep/two\n@@ -0,0 +1 @@\n+new\n";

    #[test]
    fn all_files_are_patched_or_none() {
        let place = Place::new();
        place.put("one", b"a\n");
        let params = json!({ "patch": TWO });
        let output = place.run(&ApplyPatch, params.clone()).unwrap();
        assert_eq!(output.result, json!({ "files_changed": 1, "files_created": 1 }));
        assert_eq!(
            (place.get("one"), place.get("deep/two")),
            (Some(b"b\n".to_vec()), Some(b"new\n".to_vec()))
        );
        std::fs::remove_dir_all(place.path("deep")).unwrap();
        let failure = place.run(&ApplyPatch, params).unwrap_err();
        assert_eq!(failure.code, Code::StateChanged);
        assert_eq!(place.names(), ["one"]);
    }

    #[test]
    fn a_file_that_cannot_be_made_leaves_the_others_as_they_were() {
        let place = Place::new();
        place.put("one", b"a\n");
        place.put("deep", b"a file where a folder is needed");
        let failure = place.run(&ApplyPatch, json!({ "patch": TWO })).unwrap_err();
        assert_eq!(failure.code, Code::NotAFolder);
        assert_eq!(
            (place.get("one"), place.names()),
            (Some(b"a\n".to_vec()), vec!["deep".to_owned(), "one".to_owned()])
        );
    }
}
