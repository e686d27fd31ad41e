//! Telling by the state before whether an interrupted run had its effect.

use effectd_contracts::{Digest, FileState, Standing, ToolCall};

use crate::spacepath::SpacePath;
use crate::workspace::{FileProblem, Workspace};

/// What stood at a path before the first run; `None` if nobody looked.
pub(crate) fn before<'c>(call: &'c ToolCall, path: &SpacePath) -> Option<&'c Standing> {
    let name = path.to_string();
    let seen = call.before.as_ref()?.iter().find(|seen| seen.path == name)?;
    Some(&seen.standing)
}

pub(crate) fn now(workspace: &Workspace<'_>, path: &SpacePath) -> Result<Standing, FileProblem> {
    Ok(workspace.standing(path, 0)?.0)
}

pub(crate) fn is_content(standing: &Standing, content: &[u8]) -> bool {
    match standing {
        Standing::File(state) => state.digest == Digest::of(content).to_string(),
        Standing::Absent | Standing::Folder | Standing::Other => false,
    }
}

/// Whether two standings are files of one content, whatever their permissions.
pub(crate) fn same_content(one: &Standing, other: &Standing) -> bool {
    match (file(one), file(other)) {
        (Some(one), Some(other)) => one.digest == other.digest,
        (Some(_), None) | (None, Some(_)) | (None, None) => false,
    }
}

fn file(standing: &Standing) -> Option<&FileState> {
    match standing {
        Standing::File(state) => Some(state),
        Standing::Absent | Standing::Folder | Standing::Other => None,
    }
}
