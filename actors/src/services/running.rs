//! Which actions have a child in the sandbox.
//!
//! A worker may die while its child lives. Before the same action is tried again, its first child must be proven dead. So not the
//! worker but the task that waits for the child holds the mark.

use std::collections::HashSet;

use effectd_contracts::ActionId;
use tokio::sync::watch;

#[derive(Clone, Default)]
pub(crate) struct Running(watch::Sender<HashSet<ActionId>>);

/// The mark that an action has a child. Held until the child is dead.
pub(crate) struct Alive {
    running: Running,
    action: ActionId,
}

impl Running {
    /// Marks that the action has a child; `None` if it already has one.
    pub(crate) fn enter(&self, action: &ActionId) -> Option<Alive> {
        let entered = self.0.send_if_modified(|all| all.insert(action.clone()));
        entered.then(|| Alive { running: self.clone(), action: action.clone() })
    }

    pub(crate) async fn dead(&self, action: &ActionId) {
        self.wait_for(|all| !all.contains(action)).await;
    }

    pub(crate) async fn all_dead(&self) {
        self.wait_for(HashSet::is_empty).await;
    }

    async fn wait_for(&self, what: impl FnMut(&HashSet<ActionId>) -> bool) {
        // Waiting cannot fail while this sender exists.
        drop(self.0.subscribe().wait_for(what).await);
    }

    pub(crate) fn has_child(&self, action: &ActionId) -> bool {
        self.0.borrow().contains(action)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.running.0.send_if_modified(|all| all.remove(&self.action));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::task::yield_now;

    #[tokio::test]
    async fn an_action_has_one_child_and_its_death_wakes_waiters() {
        let running = Running::default();
        let action: ActionId = "a".parse().unwrap();
        running.dead(&action).await;
        let alive = running.enter(&action).unwrap();
        assert!(running.enter(&action).is_none());
        let (waits, id) = (running.clone(), action.clone());
        let waiter = tokio::spawn(async move { waits.dead(&id).await });
        yield_now().await;
        assert!(!waiter.is_finished());
        drop(alive);
        waiter.await.unwrap();
        assert!(!running.has_child(&action));
        running.all_dead().await;
    }
}
