//! Who is at work in which space, and what they say they change, so that nobody is blamed for what others do.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use effectd_contracts::{ToolSpec, UndeclaredKind};
use parking_lot::{Mutex, MutexGuard};

use crate::disturbed::changes_files;
use crate::limits::AT_WORK_MAX;
use crate::parts::Parts;
use crate::preimage::Prepared;

/// What a call may change without doing more than it says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Allowed {
    /// Everything: it does not say what it changes.
    pub(crate) whole: bool,
    /// These very paths.
    paths: Vec<String>,
    /// And all that is beneath these.
    beneath: Vec<String>,
    /// And, as long as it is at work, these: what is unfinished has a name of its own until it is put into its place.
    passing: Vec<String>,
}

impl Allowed {
    pub(crate) fn of(parts: &Parts, prepared: &Prepared, spec: &ToolSpec, trace: &str) -> Self {
        let mut allowed = Allowed {
            whole: prepared.touched.is_empty() && changes_files(spec),
            ..Allowed::default()
        };
        for touch in &prepared.touched {
            allowed.paths.push(touch.path.clone());
            if touch.filled || touch.goes_to.is_some() {
                allowed.beneath.push(touch.path.clone());
            }
            allowed.beneath.extend(touch.goes_to.clone());
            allowed
                .passing
                .extend(parts.witness.drafts_of(&touch.path, trace));
        }
        allowed
    }

    fn explains(&self, path: &str, what: UndeclaredKind) -> bool {
        // Folders on the way are made, and taken away again if nothing comes of it.
        let on_the_way = || match what {
            UndeclaredKind::Made | UndeclaredKind::Removed => self
                .paths
                .iter()
                .any(|below| below.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))),
            UndeclaredKind::Changed | UndeclaredKind::Permissions => false,
        };
        self.whole
            || self.paths.iter().any(|one| one == path)
            || self.beneath.iter().any(|above| is_beneath(path, above))
            || on_the_way()
    }

    fn passes(&self, path: &str) -> bool {
        self.passing.iter().any(|above| is_beneath(path, above))
    }
}

/// Who is at work beneath which folder: spaces may share one, or lie in one another.
#[derive(Debug, Default)]
pub(crate) struct AtWork(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    windows: HashMap<u64, Window>,
    /// Of those who ended before this, not all are remembered.
    forgotten: u64,
}

#[derive(Debug)]
struct Window {
    root: PathBuf,
    allowed: Allowed,
    ended: Option<u64>,
}

impl Window {
    /// What a path of a space with that root is called in this one's; none if it does not lie in it.
    fn called<'p>(&self, root: &Path, path: &'p str) -> Option<Cow<'p, str>> {
        if self.root == root {
            return Some(Cow::Borrowed(path));
        }
        let below = path.strip_prefix(WHOLE_SPACE)?.trim_start_matches('/');
        let place = root.join(below);
        let inside = place.strip_prefix(&self.root).ok()?.to_str()?;
        let separator = if inside.is_empty() { "" } else { "/" };
        Some(Cow::Owned(format!("{WHOLE_SPACE}{separator}{inside}")))
    }
}

impl AtWork {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    pub(crate) fn enter(&self, root: PathBuf, allowed: Allowed) -> Turn<'_> {
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        let ended = None;
        state.windows.insert(
            id,
            Window {
                root: root.clone(),
                allowed,
                ended,
            },
        );
        Turn {
            at_work: self,
            id,
            root,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Turn<'w> {
    at_work: &'w AtWork,
    id: u64,
    root: PathBuf,
}

impl Turn<'_> {
    /// Whether this call or one beside it says that it may do this.
    pub(crate) fn explains(&self, path: &str, what: UndeclaredKind) -> bool {
        let state = self.at_work.lock();
        if self.id < state.forgotten {
            // So many were at work beside it that nobody can tell any more.
            return true;
        }
        let windows = state.windows.iter();
        let mut beside = windows.filter(|(_, window)| window.ended.is_none_or(|end| end > self.id));
        // It is over, and nothing of its own may be unfinished any more.
        beside.any(|(id, window)| {
            let (called, allowed) = (window.called(&self.root, path), &window.allowed);
            called.is_some_and(|path| {
                allowed.explains(&path, what) || (*id != self.id && allowed.passes(&path))
            })
        })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.at_work.lock();
        let now = state.next;
        state.next += 1;
        if let Some(window) = state.windows.get_mut(&self.id) {
            window.ended = Some(now);
        }
        // Who has ended before anybody began that is still at work is of no interest any more.
        let alive = state.windows.iter().filter(|(_, window)| window.ended.is_none());
        let first = alive.map(|(id, _)| *id).min().unwrap_or(u64::MAX);
        state
            .windows
            .retain(|_, window| window.ended.is_none_or(|end| end > first));
        if state.windows.len() > AT_WORK_MAX {
            state.windows.retain(|_, window| window.ended.is_none());
            state.forgotten = now;
        }
    }
}

/// The path of a space's root.
pub(crate) const WHOLE_SPACE: &str = "workspace";

/// Whether a path is a folder, or lies in it.
pub(crate) fn is_beneath(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_others_declare_is_nobodys_fault_while_they_are_at_work() {
        let at_work = AtWork::default();
        let root = PathBuf::from("/spaces/h");
        let touching = |path: &str| Allowed {
            paths: vec![path.to_owned()],
            passing: vec![format!("{path}.draft")],
            ..Allowed::default()
        };
        let made = UndeclaredKind::Made;
        let early = at_work.enter(root.clone(), touching("workspace/early"));
        let mine = at_work.enter(root.clone(), touching("workspace/a/mine"));
        drop(early);
        let late = at_work.enter(root.clone(), touching("workspace/late"));
        let elsewhere = at_work.enter("/spaces/other".into(), touching("workspace/far"));
        for path in [
            "workspace/early",
            "workspace/a/mine",
            "workspace/a",
            "workspace/late",
        ] {
            assert!(mine.explains(path, made), "{path}");
        }
        assert!(!mine.explains("workspace/far", made));
        assert!(mine.explains("workspace/late.draft/in/it", made));
        assert!(!mine.explains("workspace/a/mine.draft", made));
        assert!(!mine.explains("workspace/a/mine/below", made));
        assert!(!mine.explains("workspace/a", UndeclaredKind::Permissions));
        assert!(!late.explains("workspace/early", made), "it had ended before");
        for _ in 0..=AT_WORK_MAX {
            drop(at_work.enter(root.clone(), touching("workspace/short")));
        }
        assert!(at_work.lock().windows.len() <= AT_WORK_MAX);
        let elsewhere_made = mine.explains("workspace/far", made);
        assert!(elsewhere_made, "nobody can tell any more");
        let new = at_work.enter(root.clone(), touching("workspace/new"));
        assert!(!new.explains("workspace/far", made));
        drop((mine, late, elsewhere, new));
        assert!(at_work.lock().windows.is_empty());
    }

    #[test]
    fn spaces_that_share_a_folder_or_lie_in_one_another_see_each_other() {
        let at_work = AtWork::default();
        let touching = |path: &str| Allowed {
            paths: vec![path.to_owned()],
            ..Allowed::default()
        };
        let changed = UndeclaredKind::Changed;
        let outer = at_work.enter("/spaces".into(), touching("workspace/h/a"));
        let inner = at_work.enter("/spaces/h".into(), touching("workspace/b"));
        let same = at_work.enter("/spaces/h".into(), touching("workspace/c"));
        let beside = at_work.enter("/spaces/hh".into(), touching("workspace/d"));
        for path in ["workspace/a", "workspace/b", "workspace/c"] {
            assert!(
                inner.explains(path, changed) && same.explains(path, changed),
                "{path}"
            );
        }
        for path in ["workspace/h/a", "workspace/h/b", "workspace/h/c"] {
            assert!(outer.explains(path, changed), "{path}");
        }
        for path in ["workspace/d", "workspace", "workspace/h/a"] {
            assert!(!inner.explains(path, changed), "{path}");
        }
        assert!(!beside.explains("workspace/b", changed) && !outer.explains("workspace/b", changed));
        assert!(!outer.explains("workspace/h", changed));
    }
}
