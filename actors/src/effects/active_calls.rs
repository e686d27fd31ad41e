//! The active calls in each space and what they declare, so that no tool is blamed for the changes of another.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use effectd_contracts::{ToolSpec, Touch, UndeclaredKind};
use parking_lot::Mutex;

use super::{WHOLE_SPACE, is_beneath};
use crate::limits::ACTIVE_CALLS_MAX;
use crate::services::files::FileInspector;

/// What a call declares that it may change.
#[derive(Debug, Clone, Default)]
pub(crate) struct Declared {
    /// The whole space: the call changes files and does not declare which.
    whole: bool,
    /// Exactly these paths.
    paths: Vec<String>,
    /// Everything at and beneath these.
    beneath: Vec<String>,
    /// The call's drafts, allowed while it is active.
    drafts: Vec<String>,
}

impl Declared {
    pub(crate) fn of(inspector: &dyn FileInspector, touched: &[Touch], spec: &ToolSpec, trace: &str) -> Self {
        let mut declared =
            Declared { whole: touched.is_empty() && spec.changes_files(), ..Declared::default() };
        for touch in touched {
            declared.paths.push(touch.path.clone());
            if touch.filled || touch.goes_to.is_some() {
                declared.beneath.push(touch.path.clone());
            }
            declared.beneath.extend(touch.goes_to.clone());
            declared.drafts.extend(inspector.drafts_of(&touch.path, trace));
        }
        declared
    }

    fn explains(&self, path: &str, what: UndeclaredKind) -> bool {
        // The call makes missing folders above a path, and removes them again if it fails.
        let is_above = || match what {
            UndeclaredKind::Made | UndeclaredKind::Removed => self
                .paths
                .iter()
                .any(|below| below.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))),
            UndeclaredKind::Changed | UndeclaredKind::Permissions => false,
        };
        self.whole
            || self.paths.iter().any(|one| one == path)
            || self.beneath.iter().any(|above| is_beneath(path, above))
            || is_above()
    }

    fn is_draft(&self, path: &str) -> bool {
        self.drafts.iter().any(|above| is_beneath(path, above))
    }
}

/// All active calls, each with its root: spaces may share a folder or contain one another.
#[derive(Debug, Default)]
pub(crate) struct ActiveCalls(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    windows: HashMap<u64, Window>,
    /// Calls with a smaller number than this may have overlapped calls that are forgotten.
    forgotten: u64,
}

#[derive(Debug)]
struct Window {
    root: PathBuf,
    declared: Declared,
    ended: Option<u64>,
}

impl Window {
    /// A path of a space with the root `root`, as a path in this call's space; `None` if it lies outside.
    fn named<'p>(&self, root: &Path, path: &'p str) -> Option<Cow<'p, str>> {
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

impl ActiveCalls {
    pub(crate) fn enter(&self, root: PathBuf, declared: Declared) -> ActiveCall<'_> {
        let mut state = self.0.lock();
        let id = state.next;
        state.next += 1;
        let window = Window { root: root.clone(), declared, ended: None };
        state.windows.insert(id, window);
        ActiveCall { all: self, id, root }
    }
}

#[derive(Debug)]
pub(crate) struct ActiveCall<'w> {
    all: &'w ActiveCalls,
    id: u64,
    root: PathBuf,
}

impl ActiveCall<'_> {
    /// Whether this call or one that overlapped it declares this change.
    pub(crate) fn explains(&self, path: &str, what: UndeclaredKind) -> bool {
        let state = self.all.0.lock();
        if self.id < state.forgotten {
            // Some calls that overlapped this one are forgotten, so any of them may explain the change.
            return true;
        }
        let windows = state.windows.iter();
        let mut beside = windows.filter(|(_, window)| window.ended.is_none_or(|end| end > self.id));
        // A call's own drafts explain nothing: it has ended, and must have removed them.
        beside.any(|(id, window)| {
            let (named, declared) = (window.named(&self.root, path), &window.declared);
            named.is_some_and(|path| {
                declared.explains(&path, what) || (*id != self.id && declared.is_draft(&path))
            })
        })
    }
}

impl Drop for ActiveCall<'_> {
    fn drop(&mut self) {
        let mut state = self.all.0.lock();
        let now = state.next;
        state.next += 1;
        if let Some(window) = state.windows.get_mut(&self.id) {
            window.ended = Some(now);
        }
        // A call that ended before every active call began explains nothing any more.
        let alive = state.windows.iter().filter(|(_, window)| window.ended.is_none());
        let first = alive.map(|(id, _)| *id).min().unwrap_or(u64::MAX);
        state.windows.retain(|_, window| window.ended.is_none_or(|end| end > first));
        if state.windows.len() > ACTIVE_CALLS_MAX {
            state.windows.retain(|_, window| window.ended.is_none());
            state.forgotten = now;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_others_declare_is_nobodys_fault_while_they_are_active() {
        let calls = ActiveCalls::default();
        let root = PathBuf::from("/spaces/h");
        let touching = |path: &str| Declared {
            paths: vec![path.to_owned()],
            drafts: vec![format!("{path}.draft")],
            ..Declared::default()
        };
        let made = UndeclaredKind::Made;
        let early = calls.enter(root.clone(), touching("workspace/early"));
        let mine = calls.enter(root.clone(), touching("workspace/a/mine"));
        drop(early);
        let late = calls.enter(root.clone(), touching("workspace/late"));
        let elsewhere = calls.enter("/spaces/other".into(), touching("workspace/far"));
        for path in ["workspace/early", "workspace/a/mine", "workspace/a", "workspace/late"] {
            assert!(mine.explains(path, made), "{path}");
        }
        assert!(!mine.explains("workspace/far", made));
        assert!(mine.explains("workspace/late.draft/in/it", made));
        assert!(!mine.explains("workspace/a/mine.draft", made));
        assert!(!mine.explains("workspace/a/mine/below", made));
        assert!(!mine.explains("workspace/a", UndeclaredKind::Permissions));
        assert!(!late.explains("workspace/early", made), "it had ended before");
        for _ in 0..=ACTIVE_CALLS_MAX {
            drop(calls.enter(root.clone(), touching("workspace/short")));
        }
        assert!(calls.0.lock().windows.len() <= ACTIVE_CALLS_MAX);
        let elsewhere_made = mine.explains("workspace/far", made);
        assert!(elsewhere_made, "nobody can tell any more");
        let new = calls.enter(root.clone(), touching("workspace/new"));
        assert!(!new.explains("workspace/far", made));
        drop((mine, late, elsewhere, new));
        assert!(calls.0.lock().windows.is_empty());
    }

    #[test]
    fn spaces_that_share_or_nest_folders_see_each_other() {
        let calls = ActiveCalls::default();
        let touching = |path: &str| Declared { paths: vec![path.to_owned()], ..Declared::default() };
        let changed = UndeclaredKind::Changed;
        let outer = calls.enter("/spaces".into(), touching("workspace/h/a"));
        let inner = calls.enter("/spaces/h".into(), touching("workspace/b"));
        let same = calls.enter("/spaces/h".into(), touching("workspace/c"));
        let beside = calls.enter("/spaces/hh".into(), touching("workspace/d"));
        for path in ["workspace/a", "workspace/b", "workspace/c"] {
            assert!(inner.explains(path, changed) && same.explains(path, changed), "{path}");
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
