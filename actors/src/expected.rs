//! What must stand where an action works when its tool runs: what a person or a rule has seen.
//!
//! It is looked at in the sandbox, by the step that replaces, moves or removes. An action that was begun before may meet its
//! own effect there; so for that each path may also stand as the preview says it would afterwards. Anything else is somebody
//! else's, and a person must look.

use effectd_contracts::{CallMode, Code, Failure, Phase, Seen, Standing};

use crate::executor::Course;
use crate::idempotency::Earlier;
use crate::preimage;
use crate::preview::{Change, Preview};

/// What a run must find.
pub(crate) async fn expected(course: &Course<'_>, mode: CallMode) -> Result<Vec<Seen>, Failure> {
    let (parts, action, prepared) = (course.parts, course.action, &course.prepared);
    let ticket = &action.ticket;
    let begun = course.touched || *action.state.earlier() != Earlier::No;
    if mode != CallMode::Run || (ticket.preview.is_none() && ticket.expect.is_empty()) {
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
        let why = "it was begun, and what stands there now is neither what was seen before nor what was to come of it";
        Failure::new(Code::OutcomeUnknown, Phase::Settle, why)
    };
    let now = preimage::look(parts, &action.request.space_id, paths, 0).await;
    let now: Vec<Seen> = now
        .map_err(|_| unknown())?
        .into_iter()
        .map(|looked| looked.seen)
        .collect();
    let agreed = Agreed {
        expect: &ticket.expect,
        changes: ticket.preview.as_deref().map_or(&[], changes),
        before: prepared.before.as_deref().unwrap_or_default(),
    };
    let all = now
        .iter()
        .all(|seen| agreed.allows(seen, &preimage::keyed(parts, &seen.standing)));
    if !all {
        return Err(unknown());
    }
    // A folder that has not gone yet is to hold what was seen in it.
    let mut now = now;
    for seen in &mut now {
        let agreed = ticket.expect.iter().find(|agreed| agreed.is_like(seen));
        seen.inside = agreed.and_then(|agreed| agreed.inside.clone());
    }
    Ok(now)
}

fn changes(preview: &Preview) -> &[Change] {
    match preview {
        Preview::Shown(shown) => &shown.changes,
        Preview::WouldFail(_) | Preview::Unavailable(_) => &[],
    }
}

/// What is known of the time before an action was begun.
struct Agreed<'a> {
    /// What was seen when it was agreed to.
    expect: &'a [Seen],
    changes: &'a [Change],
    /// What stood there before its first run.
    before: &'a [Seen],
}

impl Agreed<'_> {
    /// Whether what stands at a path is from before, or of the action's own making.
    fn allows(&self, seen: &Seen, keyed: &Standing) -> bool {
        let at = |all: &[Seen]| all.iter().any(|one| one.path == seen.path);
        if self.expect.iter().any(|agreed| agreed.is_like(seen)) {
            return true;
        }
        if let Some(change) = self.changes.iter().find(|change| change.path == seen.path) {
            let known = keyed == &change.before || keyed == &change.after;
            return known || (keyed == &Standing::Absent && self.goes_on(change));
        }
        !at(self.expect) && self.before.contains(seen)
    }

    /// Whether what stood at a path was to stand at another: then it may be gone from here already.
    fn goes_on(&self, gone: &Change) -> bool {
        let Standing::File(was) = &gone.before else {
            return false;
        };
        self.changes.iter().any(|other| match &other.after {
            Standing::File(is) => is.digest == was.digest && other.path != gone.path,
            Standing::Absent | Standing::Folder | Standing::Other => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use effectd_contracts::FileState;

    fn file(digest: &str) -> Standing {
        Standing::File(FileState {
            digest: digest.to_owned(),
            bytes: 1,
            mode: 0o644,
        })
    }

    fn seen(path: &str, standing: Standing) -> Seen {
        Seen::new(path, standing)
    }

    fn change(path: &str, before: Standing, after: Standing) -> Change {
        Change {
            path: path.to_owned(),
            before,
            after,
            moved_to: None,
            diff: None,
            left_out: None,
        }
    }

    #[test]
    fn what_was_begun_meets_what_was_seen_or_its_own_effect_and_nothing_else() {
        let expect = [seen("read", file("r"))];
        let changes = [
            change("moved", file("m"), file("old")),
            change("to", Standing::Absent, file("m")),
            change("written", file("w"), file("new")),
        ];
        let before = [seen("other", file("o")), seen("read", file("r2"))];
        let agreed = Agreed {
            expect: &expect,
            changes: &changes,
            before: &before,
        };
        for (path, standing, allowed) in [
            ("written", file("w"), true),
            ("written", file("new"), true),
            ("written", file("theirs"), false),
            ("written", Standing::Absent, false),
            ("moved", Standing::Absent, true),
            ("to", file("m"), true),
            ("to", Standing::Folder, false),
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
