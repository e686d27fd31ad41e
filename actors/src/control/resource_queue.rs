//! Queues for resources: actions that change the same resource run in the order in which they started.
//!
//! Claims let only one of them run at a time, but workers ask for claims concurrently, so the fastest would get the next claim. A
//! queue keeps the order in which the actions started: within a subject the order of requests, between subjects the order of
//! permits. Actions on other resources are in other queues and do not wait.
//!
//! An action joins all its queues in one step, so the queues agree on the order and no circle of waits can arise. If an action
//! that is not queued holds the claim of its resource, such as an interrupted one, the queued action leaves its queues: the
//! holder may come in behind it. And an action never waits for another request with its own id: the Store must refuse the action
//! at once. A repeat of the same request waits like any other, and finds the receipt.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use effectd_contracts::{ActionId, Digest};
use parking_lot::{Mutex, MutexGuard};

type Wake = Box<dyn FnOnce() + Send>;
/// The resources that an action is queued for.
type Names = Arc<[Arc<str>]>;

/// All queues, by resource. Clones share them. Each action in them holds a slot, so they are bounded.
#[derive(Clone, Default)]
pub(crate) struct ResourceQueue(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    next: u64,
    queues: HashMap<Arc<str>, VecDeque<u64>>,
    /// The id and digest of each action.
    ids: HashMap<u64, (ActionId, Digest)>,
    waiting: HashMap<u64, (Names, Wake)>,
}

/// A position in one or more queues. Dropping it leaves them.
pub(crate) struct Queued {
    queues: ResourceQueue,
    number: u64,
    names: Names,
}

impl ResourceQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Joins the queues of these resources, at their ends.
    pub(crate) fn join(
        &self,
        names: impl IntoIterator<Item = String>,
        id: (ActionId, Digest),
    ) -> Option<Queued> {
        let mut names: Vec<Arc<str>> = names.into_iter().map(Arc::from).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return None;
        }
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.ids.insert(number, id);
        for name in &names {
            state.queues.entry(name.clone()).or_default().push_back(number);
        }
        drop(state);
        Some(Queued { queues: self.clone(), number, names: names.into() })
    }

    /// Drops everybody who waits: no action will be woken any more.
    pub(crate) fn dismiss(&self) {
        let all = std::mem::take(&mut self.lock().waiting);
        // Outside of the lock: a dropped action leaves its queues.
        drop(all);
    }
}

impl State {
    fn is_first(&self, number: u64, names: &[Arc<str>]) -> bool {
        let first = |name| self.queues.get(name).and_then(VecDeque::front) == Some(&number);
        names.iter().all(first)
    }

    /// Whether another request with the same id is ahead.
    fn is_behind_another_meaning(&self, number: u64, names: &[Arc<str>]) -> bool {
        let Some((id, digest)) = self.ids.get(&number) else {
            return false;
        };
        let is_another = |(other, of): &(ActionId, Digest)| other == id && of != digest;
        names.iter().filter_map(|name| self.queues.get(name)).any(|line| {
            let ahead = line.iter().take_while(|other| **other != number);
            ahead.into_iter().any(|other| self.ids.get(other).is_some_and(is_another))
        })
    }

    /// Leaves the queues, and returns whom to wake.
    fn leave(&mut self, number: u64, names: &[Arc<str>]) -> Vec<Wake> {
        self.ids.remove(&number);
        let mut next = Vec::new();
        for name in names {
            let Some(line) = self.queues.get_mut(name) else {
                continue;
            };
            line.retain(|other| *other != number);
            match line.front() {
                Some(first) => next.push(*first),
                None => drop(self.queues.remove(name)),
            }
        }
        next.dedup();
        let mut wakes = Vec::new();
        for number in next {
            let first = |(names, _): &(Names, Wake)| self.is_first(number, names);
            if self.waiting.get(&number).is_some_and(first) {
                wakes.extend(self.waiting.remove(&number).map(|(_, wake)| wake));
            }
        }
        wakes
    }
}

impl Queued {
    pub(crate) fn must_wait(&self) -> bool {
        let state = self.queues.lock();
        let (number, names) = (self.number, &self.names);
        !state.is_first(number, names) && !state.is_behind_another_meaning(number, names)
    }

    /// Calls `wake` when this position is first in all its queues: at once, if it is already.
    pub(crate) fn when_first(at: QueuedRef, wake: impl FnOnce() + Send + 'static) {
        let QueuedRef { queues, number, names } = at;
        {
            let mut state = queues.lock();
            if !state.is_first(number, &names) {
                state.waiting.insert(number, (names, Box::new(wake)));
                return;
            }
        }
        wake();
    }

    /// A reference to the position, which outlives a move of the position itself.
    pub(crate) fn position(&self) -> QueuedRef {
        QueuedRef { queues: self.queues.clone(), number: self.number, names: self.names.clone() }
    }
}

/// A reference to a position, which does not keep it.
pub(crate) struct QueuedRef {
    queues: ResourceQueue,
    number: u64,
    names: Names,
}

impl Drop for Queued {
    fn drop(&mut self) {
        let wakes = self.queues.lock().leave(self.number, &self.names);
        wakes.into_iter().for_each(|wake| wake());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::mpsc;

    fn join(lines: &ResourceQueue, names: &[&str]) -> Queued {
        let id = format!("action-{}", lines.lock().next);
        join_as(lines, names, &id, "")
    }

    fn join_as(lines: &ResourceQueue, names: &[&str], id: &str, asks: &str) -> Queued {
        let names = names.iter().map(|name| (*name).to_owned());
        let id = (id.parse().unwrap(), Digest::of(asks.as_bytes()));
        lines.join(names, id).unwrap()
    }

    #[test]
    fn nobody_waits_for_another_meaning_of_its_own_id() {
        let lines = ResourceQueue::default();
        let (_first, a) = (join(&lines, &["x"]), join_as(&lines, &["x"], "a", "1"));
        let other = join_as(&lines, &["x"], "a", "2");
        let (again, b) = (join_as(&lines, &["x"], "b", "1"), join_as(&lines, &["x"], "b", "1"));
        assert!(a.must_wait() && again.must_wait());
        assert!(b.must_wait(), "the same action again has no other place than its own");
        assert!(!other.must_wait());
        drop(a);
        assert!(other.must_wait());
    }

    #[test]
    fn a_queue_keeps_join_order_and_queues_do_not_block_each_other() {
        let lines = ResourceQueue::default();
        let (told, order) = mpsc::channel();
        let first = join(&lines, &["a"]);
        let places: Vec<_> = (0..20).map(|_| join(&lines, &["a"])).collect();
        // The actions ask for their claims in any order.
        for (n, place) in places.into_iter().enumerate().rev() {
            let told = told.clone();
            Queued::when_first(place.position(), move || {
                told.send(n).unwrap();
                drop(place);
            });
        }
        assert!(!join(&lines, &["b"]).must_wait());
        assert!(order.try_recv().is_err());
        drop(first);
        assert_eq!(order.try_iter().collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
        let state = lines.lock();
        assert!(state.queues.is_empty() && state.waiting.is_empty() && state.ids.is_empty());
    }

    #[test]
    fn who_stands_in_two_lines_is_first_when_it_is_first_in_both() {
        let lines = ResourceQueue::default();
        let (a, b) = (join(&lines, &["a"]), join(&lines, &["b"]));
        let both = join(&lines, &["b", "a", "b"]);
        let after = join(&lines, &["a"]);
        drop(a);
        assert!(both.must_wait() && after.must_wait());
        drop(b);
        assert!(!both.must_wait() && after.must_wait());
        drop(both);
        assert!(!after.must_wait());
    }

    #[test]
    fn who_goes_away_makes_way() {
        let lines = ResourceQueue::default();
        let (told, woken) = mpsc::channel();
        let (first, second, third) = (join(&lines, &["a"]), join(&lines, &["a"]), join(&lines, &["a"]));
        Queued::when_first(third.position(), move || told.send(()).unwrap());
        drop(second);
        assert!(woken.try_recv().is_err());
        drop(first);
        assert!(woken.try_recv().is_ok() && !third.must_wait());
        let nothing = ("a".parse().unwrap(), Digest::of(b""));
        assert!(lines.join(Vec::new(), nothing).is_none());
        lines.dismiss();
    }
}
