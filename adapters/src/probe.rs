//! Probes: whether an interrupted run had its effect, by comparing the state before it with the state now.

use effectd_contracts::{Digest, Failure, PathState, ProbeVerdict, ToolCall};

use crate::spacepath::SpacePath;
use crate::workspace::{FileProblem, Workspace};

/// The state of a path before the first run; `None` if it was not recorded.
pub(crate) fn before<'c>(call: &'c ToolCall, path: &SpacePath) -> Option<&'c PathState> {
    let name = path.to_string();
    let seen = call.before.as_ref()?.iter().find(|seen| seen.path == name)?;
    Some(&seen.standing)
}

pub(crate) fn now(workspace: &Workspace<'_>, path: &SpacePath) -> Result<PathState, FileProblem> {
    Ok(workspace.standing(path, 0)?.0)
}

/// The verdict by one path. If the path has changed, `is_ours` gets its states before and now, and tells whether this
/// call made the change.
pub(crate) fn by_path(
    workspace: &Workspace<'_>,
    call: &ToolCall,
    path: &SpacePath,
    is_ours: impl FnOnce(&PathState, &PathState) -> Result<bool, Failure>,
) -> Result<ProbeVerdict, Failure> {
    let Some(was) = before(call, path) else {
        return Ok(ProbeVerdict::CannotSay);
    };
    let is = now(workspace, path)?;
    if &is == was {
        return Ok(ProbeVerdict::NotDone);
    }
    let done = is_ours(was, &is)?;
    Ok(if done { ProbeVerdict::Done } else { ProbeVerdict::CannotSay })
}

pub(crate) fn is_content(standing: &PathState, content: &[u8]) -> bool {
    digest(standing).is_some_and(|digest| digest == Digest::of(content).to_string())
}

/// Whether both are files with the same content, whatever their permissions.
pub(crate) fn same_content(one: &PathState, other: &PathState) -> bool {
    digest(one).is_some() && digest(one) == digest(other)
}

/// The digest of a file.
pub(crate) fn digest(standing: &PathState) -> Option<&str> {
    match standing {
        PathState::File(state) => Some(&state.digest),
        PathState::Absent | PathState::Folder | PathState::Other => None,
    }
}
