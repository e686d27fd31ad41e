//! Changes: the comparison of two snapshots.

use std::collections::HashSet;

use effectd_bus::BlobKind;
use effectd_contracts::{Beneath, PathChange, PathSnapshot, PathState, SpaceId, Touch};

use super::snapshot::{keyed, keyed_name};
use crate::limits::{CHANGE_PATHS_BYTES_MAX, CHANGES_MAX};
use crate::services::files::{Files, Inspected};
use crate::services::signer::Identity;

/// Every path that has changed.
pub(crate) fn compare(
    identity: &Identity,
    before: &[PathSnapshot],
    after: &[Inspected],
    touched: &[Touch],
) -> Vec<PathChange> {
    let changes = before.iter().filter_map(|was| {
        let is = changed(was, after)?;
        Some(PathChange {
            path: was.path.clone(),
            before: keyed(identity, &was.standing),
            after: keyed(identity, &is.seen.standing),
            moved_to: folder_moved(was, before, after, touched),
            inside: None,
        })
    });
    changes.collect()
}

/// The new state of a path, if it has changed.
pub(crate) fn changed<'a>(was: &PathSnapshot, after: &'a [Inspected]) -> Option<&'a Inspected> {
    let is = after.iter().find(|inspected| inspected.seen.path == was.path);
    is.filter(|is| is.seen.standing != was.standing)
}

/// Adds everything in a folder that the tool made, if any; `false` if that is not all.
pub(crate) async fn list_made_folder(
    files: &Files,
    space: &SpaceId,
    touch: &Touch,
    changes: &mut Vec<PathChange>,
) -> bool {
    if !was_made(touch, changes) {
        return true;
    }
    let Ok(Beneath { seen, missing, .. }) = files.beneath(space, &touch.path, true).await else {
        return false;
    };
    add_made(&files.identity, touch, seen.into_iter(), changes);
    missing.is_none()
}

/// Adds what is new in a folder that existed before; `false` if that is not all.
pub(crate) async fn list_new(
    files: &Files,
    space: &SpaceId,
    touch: &Touch,
    before: &[PathSnapshot],
    changes: &mut Vec<PathChange>,
) -> bool {
    if !before.iter().any(|was| was.path == touch.path && was.standing == PathState::Folder) {
        return true;
    }
    let Ok(Beneath { seen, missing, .. }) = files.beneath(space, &touch.path, true).await else {
        return false;
    };
    let known: HashSet<&str> = before.iter().map(|was| was.path.as_str()).collect();
    let new = seen.into_iter().filter(|seen| !known.contains(seen.path.as_str()));
    changes.extend(new.map(|seen| made(&files.identity, seen)));
    missing.is_none()
}

/// Drops the changes for which the receipt has no room; `false` if there are any.
pub(crate) fn fit(changes: &mut Vec<PathChange>) -> bool {
    let mut bytes = 0;
    let fits = changes.iter().take(CHANGES_MAX).take_while(|change| {
        bytes += change.path.len();
        bytes <= CHANGE_PATHS_BYTES_MAX
    });
    let (fitting, all) = (fits.count(), changes.len());
    changes.truncate(fitting);
    fitting == all
}

fn made(identity: &Identity, seen: PathSnapshot) -> PathChange {
    PathChange {
        after: keyed(identity, &seen.standing),
        path: seen.path,
        before: PathState::Absent,
        moved_to: None,
        inside: None,
    }
}

fn was_made(touch: &Touch, changes: &[PathChange]) -> bool {
    let made = |change: &PathChange| {
        change.path == touch.path
            && (&change.before, &change.after) == (&PathState::Absent, &PathState::Folder)
    };
    changes.iter().any(made)
}

/// Adds what was found in a folder that the tool made, if any.
pub(crate) fn add_made(
    identity: &Identity,
    touch: &Touch,
    seen: impl Iterator<Item = PathSnapshot>,
    changes: &mut Vec<PathChange>,
) {
    if !was_made(touch, changes) {
        return;
    }
    // Other items of a batch may name paths in it.
    let known: HashSet<String> = changes.iter().map(|change| change.path.clone()).collect();
    let is_in_it = |seen: &PathSnapshot| {
        let rest = seen.path.strip_prefix(touch.path.as_str());
        let is_beneath = rest.is_some_and(|rest| rest.starts_with('/'));
        is_beneath && seen.standing != PathState::Absent && !known.contains(&seen.path)
    };
    changes.extend(seen.filter(is_in_it).map(|seen| made(identity, seen)));
}

/// Where a folder was moved: it is gone from its path, and a folder exists where the tool declared that it would move it.
fn folder_moved(
    was: &PathSnapshot,
    before: &[PathSnapshot],
    after: &[Inspected],
    touched: &[Touch],
) -> Option<String> {
    let touch = touched.iter().find(|touch| touch.path == was.path)?;
    let to = touch.goes_to.as_ref()?;
    let then = before.iter().find(|seen| &seen.path == to)?;
    let now = |path: &str| {
        let inspected = after.iter().find(|inspected| inspected.seen.path == path);
        inspected.map(|inspected| &inspected.seen.standing)
    };
    let moved = was.standing == PathState::Folder
        && then.standing == PathState::Absent
        && now(&was.path) == Some(&PathState::Absent)
        && now(to) == Some(&PathState::Folder);
    moved.then(|| to.clone())
}

/// Whether the state before can be restored: nothing, a folder, or a file whose content is stored or exists at another path.
pub(crate) fn can_restore(files: &Files, space: &SpaceId, was: &PathSnapshot, after: &[Inspected]) -> bool {
    let PathState::File(old) = &was.standing else {
        return was.standing != PathState::Other;
    };
    let lives_on = after.iter().any(|inspected| {
        matches!(&inspected.seen.standing, PathState::File(new) if new.digest == old.digest && inspected.seen.path != was.path)
    });
    let name = keyed_name(&files.identity, &old.digest);
    lives_on || files.blobs.has(BlobKind::Preimages, space, &name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_beyond_the_room_of_a_receipt_are_dropped() {
        let with = |count: usize, bytes: usize| -> Vec<PathChange> {
            let change = PathChange {
                path: "x".repeat(bytes),
                before: PathState::Absent,
                after: PathState::Folder,
                moved_to: None,
                inside: None,
            };
            vec![change; count]
        };
        for (most, bytes) in [(64, CHANGE_PATHS_BYTES_MAX / 64), (CHANGES_MAX, 1)] {
            let mut changes = with(most + 1, bytes);
            assert!(!fit(&mut changes), "{bytes}");
            assert_eq!(changes.len(), most, "{bytes}");
            assert!(fit(&mut changes) && changes.len() == most, "{bytes}");
        }
    }
}
