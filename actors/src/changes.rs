//! What has changed at the paths that an action may change, by what stood there before and what stands there now.

use effectd_bus::Shelf;
use effectd_contracts::{PathChange, Seen, SpaceId, Standing, Touch};

use crate::parts::Parts;
use crate::preimage::{Looked, keyed, keyed_name, look_beneath};

/// Every path that is not as it was.
pub(crate) fn compare(
    parts: &Parts,
    before: &[Seen],
    after: &[Looked],
    touched: &[Touch],
) -> Vec<PathChange> {
    let changed = before.iter().filter_map(|was| {
        let is = now(was, after)?;
        Some(PathChange {
            path: was.path.clone(),
            before: keyed(parts, &was.standing),
            after: keyed(parts, &is.seen.standing),
            moved_to: folder_moved(was, before, after, touched),
            inside: None,
        })
    });
    changed.collect()
}

/// What stands at a path now, if that is something else.
pub(crate) fn now<'a>(was: &Seen, after: &'a [Looked]) -> Option<&'a Looked> {
    let is = after.iter().find(|looked| looked.seen.path == was.path);
    is.filter(|is| is.seen.standing != was.standing)
}

/// Lists what is in a folder that was made, if it was; `false` if that is more than can be listed, and so not undone.
pub(crate) async fn filled(
    parts: &Parts,
    space: &SpaceId,
    touch: &Touch,
    changes: &mut Vec<PathChange>,
) -> bool {
    if !was_made(touch, changes) {
        return true;
    }
    let Ok(looked) = look_beneath(parts, space, touch.path.clone()).await else {
        return false;
    };
    fill(
        parts,
        touch,
        looked.into_iter().map(|looked| looked.seen),
        changes,
    );
    true
}

fn was_made(touch: &Touch, changes: &[PathChange]) -> bool {
    let made = |change: &PathChange| {
        change.path == touch.path && (&change.before, &change.after) == (&Standing::Absent, &Standing::Folder)
    };
    changes.iter().any(made)
}

/// Adds what is in a folder that was made, if it was.
pub(crate) fn fill(
    parts: &Parts,
    touch: &Touch,
    seen: impl Iterator<Item = Seen>,
    changes: &mut Vec<PathChange>,
) {
    if !was_made(touch, changes) {
        return;
    }
    let is_in_it = |seen: &Seen| {
        let rest = seen.path.strip_prefix(touch.path.as_str());
        rest.is_some_and(|rest| rest.starts_with('/'))
    };
    changes.extend(seen.filter(is_in_it).map(|seen| PathChange {
        path: seen.path,
        before: Standing::Absent,
        after: keyed(parts, &seen.standing),
        moved_to: None,
        inside: None,
    }));
}

/// Where a folder has gone: it is not here any more, and one stands where the tool said that it would go.
fn folder_moved(was: &Seen, before: &[Seen], after: &[Looked], touched: &[Touch]) -> Option<String> {
    let touch = touched.iter().find(|touch| touch.path == was.path)?;
    let to = touch.goes_to.as_ref()?;
    let then = before.iter().find(|seen| &seen.path == to)?;
    let now = |path: &str| {
        let looked = after.iter().find(|looked| looked.seen.path == path);
        looked.map(|looked| &looked.seen.standing)
    };
    let moved = was.standing == Standing::Folder
        && then.standing == Standing::Absent
        && now(&was.path) == Some(&Standing::Absent)
        && now(to) == Some(&Standing::Folder);
    moved.then(|| to.clone())
}

/// Whether what was there could be put back: nothing, a folder, or content that is kept or lives on at another path.
pub(crate) fn is_kept(parts: &Parts, space: &SpaceId, was: &Seen, after: &[Looked]) -> bool {
    let Standing::File(old) = &was.standing else {
        return was.standing != Standing::Other;
    };
    let lives_on = after.iter().any(|looked| {
        matches!(&looked.seen.standing, Standing::File(new) if new.digest == old.digest && looked.seen.path != was.path)
    });
    let name = keyed_name(parts, &old.digest);
    lives_on || parts.blobs.has(Shelf::Preimages, space, &name)
}
