//! `files.undo`: puts back what an action replaced, if nothing has changed since.
//!
//! The parameters name a receipt; the pipeline looks up what that action changed and hands over, beside the call, what must
//! stand there now and what is to stand there again. So the tool needs no memory of its own, and undoing an undo is the
//! same thing once more.

use effectd_contracts::{Failure, Repeat, Restore, Standing, ToolOutput, ToolSpec, Touch, UNDO_TOOL};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::before::now;
use crate::params;
use crate::spacepath::SpacePath;
use crate::typed::{Call, TypedTool};
use crate::workspace::{Draft, Existing, FileProblem, Workspace};

/// Restores files and folders.
#[derive(Debug, Clone, Copy)]
pub struct Undo;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    #[schemars(length(min = 1, max = 256), extend("x-public" = true, "x-resource" = true))]
    #[expect(dead_code, reason = "the pipeline looks the receipt up")]
    receipt_id: String,
}

impl TypedTool for Undo {
    const ID: &'static str = UNDO_TOOL;
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "restored": { "type": "integer", "minimum": 0, "x-public": true },
            "folders_kept": { "type": "integer", "minimum": 0, "x-public": true },
            "dry_run": { "type": "boolean", "x-public": true },
        });
        ToolSpec {
            timeout_ms: 30_000,
            repeat: Repeat::Safe,
            ..params::writes::<Self>(
                "Takes back what the action of a receipt changed in the space, if nothing has changed since. Undoing the \
                    undo does it again.",
                params::object(&["restored"], result),
            )
        }
    }

    fn example(&self) -> Value {
        json!({ "receipt_id": "rcpt-01996e5e-0000-7000-8000-000000000000", "space_id": "shared:household" })
    }

    /// Known to the pipeline by the receipt.
    fn touches(&self, _: &Params) -> Option<Vec<Touch>> {
        Some(Vec::new())
    }

    /// Quality is the share of paths that are as they were; a folder that somebody has put something into stays.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let steps = steps(&call.restore)?;
        check_all(workspace, &steps)?;
        let kept = put_back(workspace, &steps, call.trace_id.as_str())?;
        let restored = steps.len() - kept;
        let quality = restored as f64 / steps.len().max(1) as f64;
        let result = json!({ "restored": restored, "folders_kept": kept });
        Ok(ToolOutput::new(result, Some(quality)))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        check_all(workspace, &steps(&call.restore)?)?;
        Ok(ToolOutput::new(json!({ "restored": 0, "dry_run": true }), None))
    }
}

struct Step<'r> {
    path: SpacePath,
    now: &'r Standing,
    then: &'r Standing,
    beside: bool,
    from: Option<SpacePath>,
}

fn steps(restore: &[Restore]) -> Result<Vec<Step<'_>>, Failure> {
    restore
        .iter()
        .map(|one| {
            let path = SpacePath::parse(&one.path).map_err(|why| params::invalid("receipt_id", why))?;
            let from = one.from.as_deref().map(SpacePath::parse).transpose();
            Ok(Step {
                path,
                now: &one.now,
                then: &one.then,
                beside: one.beside,
                from: from.map_err(|why| params::invalid("receipt_id", why))?,
            })
        })
        .collect()
}

/// The step whose file now holds what this one is to hold again.
fn source<'s, 'r>(steps: &'s [Step<'r>], wanted: &Step<'r>) -> Option<&'s Step<'r>> {
    let Standing::File(then) = wanted.then else {
        return None;
    };
    steps.iter().find(|step| match step.now {
        Standing::File(now) => now.digest == then.digest && step.path != wanted.path,
        Standing::Absent | Standing::Folder | Standing::Other => false,
    })
}

/// Every path is as the action left it, or already as it was: a run that was interrupted goes on.
fn check_all(workspace: &Workspace<'_>, steps: &[Step<'_>]) -> Result<(), FileProblem> {
    for step in steps {
        let is = now(workspace, &step.path)?;
        // Moved back already by a run that was interrupted before it put something else here.
        let moved_on = is == Standing::Absent
            && steps.iter().any(|other| {
                source(steps, other).is_some_and(|source| source.path == step.path)
                    && now(workspace, &other.path).is_ok_and(|is| &is == other.then)
            });
        if &is != step.now && &is != step.then && !moved_on {
            return Err(FileProblem::Changed);
        }
    }
    Ok(())
}

/// Returns how many folders stayed since they are not empty.
fn put_back(workspace: &Workspace<'_>, steps: &[Step<'_>], mark: &str) -> Result<usize, FileProblem> {
    let mut drafts: Vec<(&SpacePath, Draft)> = Vec::new();
    let (mut moves, mut folders, mut new_folders) = (Vec::new(), Vec::new(), Vec::new());
    for step in steps {
        if &now(workspace, &step.path)? == step.then {
            if step.beside {
                let skipped = workspace.hear_all(|_| Ok(()));
                skipped.map_err(FileProblem::io("read what was kept"))?;
            }
            continue;
        }
        match (step.then, step.beside) {
            (Standing::Folder, _) => match &step.from {
                Some(from) => folders.push((from, &step.path)),
                None => new_folders.push(&step.path),
            },
            (Standing::File(state), true) => {
                let draft = workspace.draft_heard(&step.path, state, Existing::Replace, mark)?;
                drafts.push((&step.path, draft));
            }
            (Standing::File(_), false) => {
                let from = source(steps, step).ok_or(FileProblem::Changed)?;
                moves.push((from, step));
            }
            (Standing::Absent | Standing::Other, _) => {}
        }
    }
    // All contents are here. First what is moved away, so that nothing is written over it.
    for (from, to) in folders {
        workspace.move_folder(from, to)?;
    }
    for (from, to) in moves {
        workspace.move_file(&from.path, &to.path, Existing::Replace)?;
        for (_, draft) in drafts.iter_mut().filter(|(path, _)| *path == &from.path) {
            draft.vacated();
        }
    }
    for folder in new_folders {
        workspace.make_folder(folder)?;
    }
    for (_, draft) in drafts {
        draft.place()?;
    }
    for step in steps.iter().filter(|step| step.then == &Standing::Absent) {
        if matches!(now(workspace, &step.path)?, Standing::File(_)) {
            workspace.remove_file(&step.path)?;
        }
    }
    remove_folders(workspace, steps)
}

/// The deepest first.
fn remove_folders(workspace: &Workspace<'_>, steps: &[Step<'_>]) -> Result<usize, FileProblem> {
    let mut folders: Vec<_> = steps
        .iter()
        .filter(|step| step.then == &Standing::Absent && step.now == &Standing::Folder)
        .collect();
    folders.sort_by_key(|step| std::cmp::Reverse(step.path.folders().len()));
    let mut kept = 0;
    for step in folders {
        if now(workspace, &step.path)? == Standing::Folder && !workspace.remove_empty_folder(&step.path)? {
            kept += 1;
        }
    }
    Ok(kept)
}
