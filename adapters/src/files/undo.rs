//! `files.undo`: restores what an action changed, if nothing has changed since.
//!
//! The parameters name a receipt. The pipeline looks up what that action changed, and adds to the call the state that
//! each path must have now and the state to restore; contents come on the side channel. So the tool keeps no state of
//! its own, and an undo can be undone in the same way.

use effectd_contracts::{PathSnapshot, Restore, UNDO_TOOL};

use crate::prelude::*;
use crate::probe::now;
use crate::workspace::Draft;

#[derive(Debug, Clone, Copy)]
pub struct Undo;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The receipt of the action to undo.
    #[schemars(length(min = 1, max = 256), extend("x-public" = true, "x-resource" = true))]
    #[expect(dead_code, reason = "the pipeline looks the receipt up")]
    receipt_id: String,
}

impl TypedTool for Undo {
    const ID: &'static str = UNDO_TOOL;
    const DESCRIPTION: &'static str = "Undoes the changes that the action of a receipt made in the space, if \
        nothing has changed since. An undo can be undone. Use it when a change was wrong.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({ "restored": count(), "folders_kept": count(), "already_undone": flag(), "dry_run": flag() });
        ToolSpec { timeout_ms: 30_000, repeat: Repeat::Safe, ..params::writes::<Self>(&["restored"], result) }
    }

    fn example(&self) -> Value {
        json!({ "receipt_id": "rcpt-01996e5e-0000-7000-8000-000000000000" })
    }

    /// The pipeline knows the paths from the receipt.
    fn touches(&self, _: &Params) -> Option<Vec<Touch>> {
        Some(Vec::new())
    }

    /// Quality is the share of restored paths; a folder that is not empty stays.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let steps = steps(&call.restore)?;
        check_all(workspace, &steps)?;
        let kept = put_back(workspace, &steps, call.trace_id.as_str())?;
        let wanted = to_restore(&call.restore, call.before.as_deref());
        let restored = wanted.saturating_sub(kept);
        let quality = if wanted == 0 { 1.0 } else { restored as f64 / wanted as f64 };
        let result = json!({ "restored": restored, "folders_kept": kept, "already_undone": wanted == 0 });
        Ok(ToolOutput::new(result, Some(quality)))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        check_all(workspace, &steps(&call.restore)?)?;
        let already_undone = to_restore(&call.restore, None) == 0;
        Ok(params::dry(json!({ "restored": 0, "already_undone": already_undone })))
    }
}

/// How many paths were not yet as wanted before the first run.
fn to_restore(restore: &[Restore], before: Option<&[PathSnapshot]>) -> usize {
    let missing = |one: &&Restore| {
        let was = before.and_then(|seen| seen.iter().find(|seen| seen.path == one.path));
        was.map_or(&one.now, |was| &was.standing) != &one.then
    };
    restore.iter().filter(missing).count()
}

struct Step<'r> {
    path: SpacePath,
    now: &'r PathState,
    then: &'r PathState,
    /// Whether its content comes on the side channel.
    is_sent: bool,
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
                is_sent: one.beside,
                from: from.map_err(|why| params::invalid("receipt_id", why))?,
            })
        })
        .collect()
}

/// The step whose file now has the content that `wanted` restores.
fn source<'s, 'r>(steps: &'s [Step<'r>], wanted: &Step<'r>) -> Option<&'s Step<'r>> {
    let PathState::File(then) = wanted.then else {
        return None;
    };
    steps.iter().find(|step| match step.now {
        PathState::File(now) => now.digest == then.digest && step.path != wanted.path,
        PathState::Absent | PathState::Folder | PathState::Other => false,
    })
}

/// Every path must be as the action left it, or already restored by an interrupted run.
fn check_all(workspace: &Workspace<'_>, steps: &[Step<'_>]) -> Result<(), FileProblem> {
    for step in steps {
        let is = now(workspace, &step.path)?;
        // An interrupted run moved this file back to its old path, and stopped before it restored this path.
        let moved_on = is == PathState::Absent
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

/// Restores the paths. Returns how many folders stay because they are not empty.
fn put_back(workspace: &Workspace<'_>, steps: &[Step<'_>], mark: &str) -> Result<usize, FileProblem> {
    let mut drafts: Vec<(&SpacePath, Draft)> = Vec::new();
    let (mut moves, mut folders, mut new_folders) = (Vec::new(), Vec::new(), Vec::new());
    for step in steps {
        if &now(workspace, &step.path)? == step.then {
            if step.is_sent {
                workspace.receive_content(u64::MAX, |_| Ok(()))?;
            }
            continue;
        }
        match (step.then, step.is_sent) {
            (PathState::Folder, _) => match &step.from {
                Some(from) => folders.push((from, &step.path)),
                None => new_folders.push(&step.path),
            },
            (PathState::File(state), true) => {
                let draft = workspace.draft_received(&step.path, state, Existing::Replace, mark)?;
                drafts.push((&step.path, draft));
            }
            (PathState::File(_), false) => {
                let from = source(steps, step).ok_or(FileProblem::Changed)?;
                moves.push((from, step));
            }
            (PathState::Absent | PathState::Other, _) => {}
        }
    }
    // All drafts are written. Move folders and files back first, so that no draft overwrites them.
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
    for step in steps.iter().filter(|step| step.then == &PathState::Absent) {
        if matches!(now(workspace, &step.path)?, PathState::File(_)) {
            workspace.remove_file(&step.path)?;
        }
    }
    remove_folders(workspace, steps)
}

/// Removes the folders that the action made, the deepest first.
fn remove_folders(workspace: &Workspace<'_>, steps: &[Step<'_>]) -> Result<usize, FileProblem> {
    let mut folders: Vec<_> = steps
        .iter()
        .filter(|step| step.then == &PathState::Absent && step.now == &PathState::Folder)
        .collect();
    folders.sort_by_key(|step| std::cmp::Reverse(step.path.folders().len()));
    let mut kept = 0;
    for step in folders {
        if now(workspace, &step.path)? == PathState::Folder && !workspace.remove_empty_folder(&step.path)? {
            kept += 1;
        }
    }
    Ok(kept)
}
