//! `files.apply_patch`: applies a unified diff, all of it or nothing.

use effectd_contracts::{PathSnapshot, ToolCall};

use super::patch::{FilePatch, Patch};
use crate::limits::TEXT_FILE_BYTES_MAX;
use crate::prelude::*;
use crate::probe::{before, is_content, now};

#[derive(Debug, Clone, Copy)]
pub struct ApplyPatch;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// A unified diff, as git diff prints it.
    #[schemars(with = "String", length(min = 1), extend("x-resource" = true))]
    patch: Patch,
}

impl TypedTool for ApplyPatch {
    const ID: &'static str = "files.apply_patch";
    const DESCRIPTION: &'static str = "Applies a unified diff to text files of the space, all of it or nothing. \
        Paths are beneath the space's root. It changes and creates files; it does not delete or rename any. Use it \
        for several changes at once.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({ "files_changed": count(), "files_created": count(), "dry_run": flag() });
        ToolSpec {
            repeat: Repeat::Probe,
            ..params::writes::<Self>(&["files_changed", "files_created"], result)
        }
    }

    fn example(&self) -> Value {
        json!({ "patch": "--- a/notes/w36.txt\n+++ b/notes/w36.txt\n@@ -1 +1 @@\n-hello\n+good morning\n" })
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        let files = params.patch.files.iter();
        Some(files.flat_map(|file| params::touched(&file.path)).collect())
    }

    /// All new contents are written and synced before the first is moved into place. Quality is always 1: a patch applies
    /// or fails.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let patch = &call.params.patch;
        let mut drafts = Vec::new();
        for file in &patch.files {
            if progress(workspace, call, file)? == Progress::After {
                continue;
            }
            let (old, new) = patched(workspace, file)?;
            let (content, existing) = (new.as_bytes(), Existing::replace_if(!file.creates));
            let draft = workspace.draft(&file.path, content, None, existing, call.trace_id.as_str())?;
            drafts.push((Placed { file, old, new }, draft));
        }
        let mut placed = Vec::new();
        for (one, draft) in drafts {
            if let Err(problem) = draft.place() {
                roll_back(workspace, &placed, call);
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
        Ok(params::dry(json!({ "files_changed": 0, "files_created": 0 })))
    }

    /// A run that was interrupted between two files is not done; another run continues where it stopped.
    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ProbeVerdict, Failure> {
        let mut verdict = ProbeVerdict::Done;
        for file in &call.params.patch.files {
            match progress(workspace, call, file)? {
                Progress::After => {}
                Progress::Before => verdict = ProbeVerdict::NotDone,
                Progress::Unknown => return Ok(ProbeVerdict::CannotSay),
            }
        }
        Ok(verdict)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Before,
    After,
    Unknown,
}

/// Whether a file is in the state before the run, or in the one that the patch leaves.
fn progress(workspace: &Workspace<'_>, call: &ToolCall, file: &FilePatch) -> Result<Progress, FileProblem> {
    let Some(was) = before(call, &file.path) else {
        return Ok(Progress::Unknown);
    };
    if was == &now(workspace, &file.path)? {
        return Ok(Progress::Before);
    }
    let Ok(content) = workspace.read(&file.path, TEXT_FILE_BYTES_MAX) else {
        return Ok(Progress::Unknown);
    };
    let inverted = content.text().ok().and_then(|text| file.inverted().apply(text).ok());
    let is_ours = inverted.is_some_and(|text| match was {
        PathState::Absent => file.creates && text.is_empty(),
        PathState::File(_) => is_content(was, text.as_bytes()),
        PathState::Folder | PathState::Other => false,
    });
    Ok(if is_ours { Progress::After } else { Progress::Unknown })
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
    FileProblem::check_size(new.len() as u64, TEXT_FILE_BYTES_MAX)?;
    Ok((old.map(|old| old.bytes), new))
}

/// A file of the patch, with its old and its new content.
struct Placed<'p> {
    file: &'p FilePatch,
    old: Option<Vec<u8>>,
    new: String,
}

/// Restores the files that are replaced already. Best effort: the caller reports the first problem, and the pre-images are
/// kept in any case. A file that somebody else has changed since stays.
fn roll_back(workspace: &Workspace<'_>, placed: &[Placed<'_>], call: &ToolCall) {
    let mark = call.trace_id.as_str();
    for Placed { file, old, new } in placed {
        let Ok(standing) = now(workspace, &file.path) else {
            continue;
        };
        if !is_content(&standing, new.as_bytes()) {
            continue;
        }
        let path = file.path.to_string();
        let ours = [PathSnapshot::new(path, standing)];
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
    use crate::tests::space::TestSpace;

    const TWO: &str =
        "--- a/one\n+++ b/one\n@@ -1 +1 @@\n-a\n+b\n--- /dev/null\n+++ b/deep/two\n@@ -0,0 +1 @@\n+new\n";

    #[test]
    fn all_files_are_patched_or_none() {
        let place = TestSpace::new();
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
        let place = TestSpace::new();
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
