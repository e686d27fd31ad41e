//! Preconditions: the state that the tool's paths must have when it runs, as an approver or a policy rule saw it.
//!
//! The sandbox checks them in the same step that replaces, moves or removes a file. An action that was begun before may find its
//! own effect there, so a path may then also be in the state that the preview predicted. In any other state, another program has
//! changed the path, and a person must look.

use effectd_contracts::{CallMode, Code, Failure, PathSnapshot, PathState, Phase, quoted};

use super::snapshot::{self, Prepared};
use crate::action::preview::{Change, Preview};
use crate::action::{Action, Claimed};
use crate::services::files::Files;

/// The preconditions of a run. `begun` says that an earlier run may have had its effect.
pub(crate) async fn preconditions(
    files: &Files,
    action: &Action<Claimed>,
    prepared: &Prepared,
    mode: CallMode,
    begun: bool,
) -> Result<Vec<PathSnapshot>, Failure> {
    let ticket = &action.ticket;
    if mode != CallMode::Run || (ticket.preview.is_none() && ticket.expect.is_empty()) {
        return Ok(Vec::new());
    }
    if action.state.gated().area().is_some() {
        // The child sees the scope as mounts, which its walks do not enter. What has begun is rolled back if it goes wrong.
        if !begun {
            unchanged(files, action).await?;
        }
        return Ok(Vec::new());
    }
    if !begun {
        return Ok(ticket.expect.clone());
    }
    let touched = prepared.touched.iter().map(|touch| &touch.path);
    let mut paths: Vec<String> = touched.cloned().collect();
    for seen in &ticket.expect {
        if !paths.contains(&seen.path) {
            paths.push(seen.path.clone());
        }
    }
    let unknown = || {
        let why = "the action had begun, and the current content is neither the one before it nor its result";
        Failure::new(Code::OutcomeUnknown, Phase::Settle, why)
    };
    let now = files.inspect(&action.request.space_id, paths, 0).await;
    let now: Vec<PathSnapshot> =
        now.map_err(|_| unknown())?.into_iter().map(|inspected| inspected.seen).collect();
    let agreed = Agreed {
        expect: &ticket.expect,
        changes: ticket.preview.as_deref().map_or(&[], changes),
        before: prepared.before.as_deref().unwrap_or_default(),
    };
    let all = now.iter().all(|seen| agreed.allows(seen, &snapshot::keyed(&files.identity, &seen.standing)));
    if !all {
        return Err(unknown());
    }
    // A folder that was not moved yet must contain what was seen in it.
    let mut now = now;
    for seen in &mut now {
        let agreed = ticket.expect.iter().find(|agreed| agreed.is_like(seen));
        seen.inside = agreed.and_then(|agreed| agreed.inside.clone());
    }
    Ok(now)
}

/// Refuses an action whose paths are not as the approver saw them.
async fn unchanged(files: &Files, action: &Action<Claimed>) -> Result<(), Failure> {
    let (space, expect) = (&action.request.space_id, &action.ticket.expect);
    let paths = expect.iter().map(|seen| seen.path.clone()).collect();
    let now = files.inspect(space, paths, 0).await?;
    for agreed in expect {
        let mut is_same = now.iter().any(|is| is.seen.is_like(agreed));
        if let (true, Some(inside)) = (is_same, &agreed.inside) {
            is_same = files.inside(space, &agreed.path).await == *inside;
        }
        if !is_same {
            let why = format!("{} has changed since it was approved; nothing was done", quoted(&agreed.path));
            return Err(Failure::new(Code::StateChanged, Phase::Sandbox, why));
        }
    }
    Ok(())
}

fn changes(preview: &Preview) -> &[Change] {
    match preview {
        Preview::Shown(shown) => &shown.changes,
        Preview::Request(_) | Preview::WouldFail(_) | Preview::Unavailable(_) => &[],
    }
}

/// What is known from before the action was begun.
struct Agreed<'a> {
    /// What the approver or the policy rule saw.
    expect: &'a [PathSnapshot],
    changes: &'a [Change],
    /// The snapshot before the first run.
    before: &'a [PathSnapshot],
}

impl Agreed<'_> {
    /// Whether the state of a path is that from before, or the action's own effect.
    fn allows(&self, seen: &PathSnapshot, keyed: &PathState) -> bool {
        let at = |all: &[PathSnapshot]| all.iter().any(|one| one.path == seen.path);
        if self.expect.iter().any(|agreed| agreed.is_like(seen)) {
            return true;
        }
        if let Some(change) = self.changes.iter().find(|change| change.path == seen.path) {
            let known = keyed == &change.before || keyed == &change.after;
            return known || (keyed == &PathState::Absent && self.goes_on(change));
        }
        !at(self.expect) && self.before.contains(seen)
    }

    /// Whether a file was to be moved to another path: then it may already be gone from this one.
    fn goes_on(&self, gone: &Change) -> bool {
        let PathState::File(was) = &gone.before else {
            return false;
        };
        self.changes.iter().any(|other| match &other.after {
            PathState::File(is) => is.digest == was.digest && other.path != gone.path,
            PathState::Absent | PathState::Folder | PathState::Other => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use effectd_contracts::FileState;

    fn file(digest: &str) -> PathState {
        PathState::File(FileState { digest: digest.to_owned(), bytes: 1, mode: 0o644 })
    }

    fn seen(path: &str, standing: PathState) -> PathSnapshot {
        PathSnapshot::new(path, standing)
    }

    fn change(path: &str, before: PathState, after: PathState) -> Change {
        Change { path: path.to_owned(), before, after, moved_to: None, diff: None, left_out: None }
    }

    #[test]
    fn a_begun_action_meets_its_precondition_or_its_own_effect() {
        let expect = [seen("read", file("r"))];
        let changes = [
            change("moved", file("m"), file("old")),
            change("to", PathState::Absent, file("m")),
            change("written", file("w"), file("new")),
        ];
        let before = [seen("other", file("o")), seen("read", file("r2"))];
        let agreed = Agreed { expect: &expect, changes: &changes, before: &before };
        for (path, standing, allowed) in [
            ("written", file("w"), true),
            ("written", file("new"), true),
            ("written", file("theirs"), false),
            ("written", PathState::Absent, false),
            ("moved", PathState::Absent, true),
            ("to", file("m"), true),
            ("to", PathState::Folder, false),
            ("read", file("r"), true),
            ("read", file("r2"), false),
            ("other", file("o"), true),
            ("other", file("theirs"), false),
            ("unknown", file("u"), false),
        ] {
            let said = agreed.allows(&seen(path, standing.clone()), &standing);
            assert_eq!(said, allowed, "{path}: {standing:?}");
        }
    }
}
