//! Invalidation: which earlier receipts no longer describe the files, so that their idempotency keys are free again.

use effectd_bus::ResourceName;
use effectd_bus::limits::RESOURCES_MAX;
use effectd_contracts::{Effects, PathState, SpaceId, ToolSpec, Touch};

use super::WHOLE_SPACE;
use crate::claims::resources::{named, topmost};

/// The paths at and beneath which earlier receipts no longer hold: folders that were removed, or may have been, and the whole
/// space after undeclared effects or a tool that does not declare which files it changes.
pub(crate) fn disturbed(
    spec: &ToolSpec,
    space: &SpaceId,
    touched: &[Touch],
    effects: &Effects,
) -> Vec<ResourceName> {
    let paths: Vec<&str> = match effects {
        Effects::None => return Vec::new(),
        // The receipt does not name all changes.
        Effects::Observed(observed) if !observed.undeclared.is_empty() || observed.incomplete => {
            vec![WHOLE_SPACE]
        }
        Effects::Observed(observed) => {
            let changes = observed.changes.iter();
            let changes = changes.filter(|change| holds_others(&change.before));
            changes.map(|change| change.path.as_str()).collect()
        }
        Effects::Unobserved | Effects::Possible if !touched.is_empty() => {
            touched.iter().map(|touch| touch.path.as_str()).collect()
        }
        Effects::Unobserved | Effects::Possible if spec.changes_files() => vec![WHOLE_SPACE],
        Effects::Unobserved | Effects::Possible => return Vec::new(),
    };
    let paths = topmost(paths);
    // The Store takes at most this many names.
    let many = paths.len() > RESOURCES_MAX || touched.len() > RESOURCES_MAX;
    let paths = if many { vec![WHOLE_SPACE] } else { paths };
    paths.into_iter().filter_map(|path| named(space, path)).collect()
}

/// Folders that appeared. Receipts from before no longer hold beneath them; receipts of actions that work beneath them at the
/// same time do.
pub(crate) fn appeared(space: &SpaceId, effects: &Effects) -> Vec<ResourceName> {
    let Effects::Observed(observed) = effects else {
        return Vec::new();
    };
    let came = observed.changes.iter().filter(|change| holds_others(&change.after));
    let came = topmost(came.map(|change| change.path.as_str()).collect());
    let names = came.into_iter().filter_map(|path| named(space, path));
    // This cuts nothing that counts: with more changes than this, `disturbed` is the whole space.
    names.take(RESOURCES_MAX).collect()
}

/// Whether other files may lie beneath a path in this state.
fn holds_others(standing: &PathState) -> bool {
    match standing {
        PathState::Folder | PathState::Other => true,
        PathState::Absent | PathState::File(_) => false,
    }
}
