//! Which actions have a child right now.
//!
//! A worker may die while its child lives. Before the same action is tried again, its first child must be proven dead;
//! this is where that is known. The entry is held by the task that waits for the child, not by the worker.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use effectd_contracts::ActionId;

type Wake = Box<dyn FnOnce() + Send>;

/// The actions that have a child, and who waits for them to have none.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<Mutex<HashMap<ActionId, Vec<Wake>>>>);

/// Held as long as the child lives.
pub(crate) struct Alive {
    running: Running,
    action: ActionId,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<ActionId, Vec<Wake>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks that the action has a child; `None` if it has one already.
    pub(crate) fn enter(&self, action: &ActionId) -> Option<Alive> {
        let mut all = self.lock();
        if all.contains_key(action) {
            return None;
        }
        all.insert(action.clone(), Vec::new());
        Some(Alive {
            running: self.clone(),
            action: action.clone(),
        })
    }

    /// Runs `wake` as soon as the action has no child: now, if it has none.
    pub(crate) fn when_dead(&self, action: &ActionId, wake: impl FnOnce() + Send + 'static) {
        if let Some(waiting) = self.lock().get_mut(action) {
            waiting.push(Box::new(wake));
            return;
        }
        wake();
    }

    /// Whether any action has a child.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Whether the action has a child.
    pub(crate) fn has_child(&self, action: &ActionId) -> bool {
        self.lock().contains_key(action)
    }
}

impl std::fmt::Debug for Alive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Alive({})", self.action)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let waiting = self.running.lock().remove(&self.action).unwrap_or_default();
        waiting.into_iter().for_each(|wake| wake());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn an_action_has_one_child_at_a_time_and_waiters_are_woken_when_it_is_dead() {
        let running = Running::default();
        let action: ActionId = "a".parse().unwrap();
        let woken = Arc::new(AtomicU32::new(0));
        let count = || {
            let woken = woken.clone();
            move || {
                woken.fetch_add(1, Ordering::SeqCst);
            }
        };
        running.when_dead(&action, count());
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        let alive = running.enter(&action).unwrap();
        assert!(running.enter(&action).is_none());
        running.when_dead(&action, count());
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        drop(alive);
        assert_eq!(woken.load(Ordering::SeqCst), 2);
        assert!(!running.has_child(&action));
    }
}
