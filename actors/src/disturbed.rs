//! Where what earlier receipts say is not known to hold any more.

use effectd_bus::ResourceName;
use effectd_bus::limits::RESOURCES_MAX;
use effectd_contracts::{Effects, SideEffect, SpaceId, Standing, ToolSpec, Touch};

use crate::resources::{named, topmost};

/// The path of a space's root.
const WHOLE_SPACE: &str = "workspace";

/// Where nothing is known any more to be as earlier receipts say, all that lies beneath included: folders that went, or may
/// have, and the whole space after a tool that does not say what it changes.
pub(crate) fn disturbed(
    spec: &ToolSpec,
    space: &SpaceId,
    touched: &[Touch],
    effects: &Effects,
) -> Vec<ResourceName> {
    let paths: Vec<&str> = match effects {
        Effects::None => return Vec::new(),
        // Only the first of them are named.
        Effects::Observed(observed) if !observed.undeclared.is_empty() => vec![WHOLE_SPACE],
        Effects::Observed(observed) => {
            let changes = observed.changes.iter();
            let changes = changes.filter(|change| holds_others(&change.before));
            changes.map(|change| change.path.as_str()).collect()
        }
        Effects::Unobserved | Effects::Possible if !touched.is_empty() => {
            touched.iter().map(|touch| touch.path.as_str()).collect()
        }
        Effects::Unobserved | Effects::Possible if changes_files(spec) => vec![WHOLE_SPACE],
        Effects::Unobserved | Effects::Possible => return Vec::new(),
    };
    let paths = topmost(paths);
    // More than can be named one by one, also of those whose own keys are open again.
    let many = paths.len() > RESOURCES_MAX || touched.len() > RESOURCES_MAX;
    let paths = if many { vec![WHOLE_SPACE] } else { paths };
    paths.into_iter().filter_map(|path| named(space, path)).collect()
}

/// Folders that came. What was done beneath them before is not what is there; what others do beneath them at the same time
/// is, so this is less than being disturbed.
pub(crate) fn appeared(space: &SpaceId, effects: &Effects) -> Vec<ResourceName> {
    let Effects::Observed(observed) = effects else {
        return Vec::new();
    };
    let came = observed
        .changes
        .iter()
        .filter(|change| holds_others(&change.after));
    let came = topmost(came.map(|change| change.path.as_str()).collect());
    let names = came.into_iter().filter_map(|path| named(space, path));
    // As many as are watched at most, of which none is left out: `disturbed` would be the whole space.
    names.take(RESOURCES_MAX).collect()
}

/// Whether something lies beneath what stands there, or may.
fn holds_others(standing: &Standing) -> bool {
    match standing {
        Standing::Folder | Standing::Other => true,
        Standing::Absent | Standing::File(_) => false,
    }
}

/// Whether it declares that it changes files of its space.
pub(crate) fn changes_files(spec: &ToolSpec) -> bool {
    let writing = [SideEffect::FilesystemWrite, SideEffect::FilesystemDelete];
    writing.iter().any(|effect| spec.side_effects.contains(effect))
}
