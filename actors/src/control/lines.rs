//! Who comes first where several actions would change the same thing: the one that set out first.
//!
//! Claims see to it that only one of them is at it at a time, and they are asked for by workers side by side, so whoever is
//! quicker gets the next one. A line keeps the order in which the actions set out: within a subject that is the order of
//! asking, and between subjects that of their turns. Actions on other things stand in other lines and wait for nobody.
//!
//! Whoever stands in several lines joins them all in one step, so the lines agree on who is before whom and nobody waits in
//! a circle. Whoever finds its thing claimed by someone who is not in line, such as an action that a crash has interrupted,
//! leaves the lines: that one may be behind it. And nobody waits for another meaning of its own id: that it must not have the
//! id is for the Store to say, and at once. The same action again waits like any other, and finds the receipt.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use effectd_contracts::{ActionId, Digest};
use parking_lot::{Mutex, MutexGuard};

type Wake = Box<dyn FnOnce() + Send>;
/// What somebody stands in line for.
type Names = Arc<[Arc<str>]>;

/// All lines, by the name of what they are for. Clones share them. Bounded by the places of those who stand in them.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    next: u64,
    lines: HashMap<Arc<str>, VecDeque<u64>>,
    /// Which action each of them is, and what it asks for.
    ids: HashMap<u64, (ActionId, Digest)>,
    waiting: HashMap<u64, (Names, Wake)>,
}

/// A place in one or more lines, left when it is dropped.
pub(crate) struct InLine {
    lines: Lines,
    number: u64,
    names: Names,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lines({})", self.lock().lines.len())
    }
}

impl std::fmt::Debug for InLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InLine({} of {:?})", self.number, self.names)
    }
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Joins the lines for these things, at their ends.
    pub(crate) fn join(
        &self,
        names: impl IntoIterator<Item = String>,
        id: (ActionId, Digest),
    ) -> Option<InLine> {
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
            state.lines.entry(name.clone()).or_default().push_back(number);
        }
        drop(state);
        Some(InLine {
            lines: self.clone(),
            number,
            names: names.into(),
        })
    }

    /// Sends everybody away who waits: nobody will be woken any more.
    pub(crate) fn dismiss(&self) {
        let all = std::mem::take(&mut self.lock().waiting);
        // Outside of the lock: who goes away leaves the lines.
        drop(all);
    }
}

impl State {
    fn is_first(&self, number: u64, names: &[Arc<str>]) -> bool {
        let first = |name| self.lines.get(name).and_then(VecDeque::front) == Some(&number);
        names.iter().all(first)
    }

    /// Whether another meaning of its id stands before it.
    fn is_behind_another_meaning(&self, number: u64, names: &[Arc<str>]) -> bool {
        let Some((id, digest)) = self.ids.get(&number) else {
            return false;
        };
        let is_another = |(other, of): &(ActionId, Digest)| other == id && of != digest;
        names.iter().filter_map(|name| self.lines.get(name)).any(|line| {
            let ahead = line.iter().take_while(|other| **other != number);
            ahead
                .into_iter()
                .any(|other| self.ids.get(other).is_some_and(is_another))
        })
    }

    /// Leaves the lines, and says whom to wake.
    fn leave(&mut self, number: u64, names: &[Arc<str>]) -> Vec<Wake> {
        self.ids.remove(&number);
        let mut next = Vec::new();
        for name in names {
            let Some(line) = self.lines.get_mut(name) else {
                continue;
            };
            line.retain(|other| *other != number);
            match line.front() {
                Some(first) => next.push(*first),
                None => drop(self.lines.remove(name)),
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

impl InLine {
    /// Whether it has to wait for those before it.
    pub(crate) fn has_to_wait(&self) -> bool {
        let state = self.lines.lock();
        let (number, names) = (self.number, &self.names);
        !state.is_first(number, names) && !state.is_behind_another_meaning(number, names)
    }

    /// Has `wake` run when nobody stands before the place with this number: now, if that is so already.
    pub(crate) fn when_first(turn: Waiting, wake: impl FnOnce() + Send + 'static) {
        let Waiting { lines, number, names } = turn;
        {
            let mut state = lines.lock();
            if !state.is_first(number, &names) {
                state.waiting.insert(number, (names, Box::new(wake)));
                return;
            }
        }
        wake();
    }

    /// What to wait with, while the place itself is handed on.
    pub(crate) fn waiting(&self) -> Waiting {
        Waiting {
            lines: self.lines.clone(),
            number: self.number,
            names: self.names.clone(),
        }
    }
}

/// Names a place in line, without holding it.
pub(crate) struct Waiting {
    lines: Lines,
    number: u64,
    names: Names,
}

impl Drop for InLine {
    fn drop(&mut self) {
        let wakes = self.lines.lock().leave(self.number, &self.names);
        wakes.into_iter().for_each(|wake| wake());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::mpsc;

    fn join(lines: &Lines, names: &[&str]) -> InLine {
        let id = format!("action-{}", lines.lock().next);
        join_as(lines, names, &id, "")
    }

    fn join_as(lines: &Lines, names: &[&str], id: &str, asks: &str) -> InLine {
        let names = names.iter().map(|name| (*name).to_owned());
        let id = (id.parse().unwrap(), Digest::of(asks.as_bytes()));
        lines.join(names, id).unwrap()
    }

    #[test]
    fn nobody_waits_for_another_meaning_of_its_own_id() {
        let lines = Lines::default();
        let (_first, a) = (join(&lines, &["x"]), join_as(&lines, &["x"], "a", "1"));
        let other = join_as(&lines, &["x"], "a", "2");
        let (again, b) = (
            join_as(&lines, &["x"], "b", "1"),
            join_as(&lines, &["x"], "b", "1"),
        );
        assert!(a.has_to_wait() && again.has_to_wait());
        assert!(
            b.has_to_wait(),
            "the same action again has no other place than its own"
        );
        assert!(!other.has_to_wait());
        drop(a);
        assert!(other.has_to_wait());
    }

    #[test]
    fn a_line_keeps_the_order_of_joining_and_other_lines_wait_for_nobody() {
        let lines = Lines::default();
        let (told, order) = mpsc::channel();
        let first = join(&lines, &["a"]);
        let places: Vec<_> = (0..20).map(|_| join(&lines, &["a"])).collect();
        // They come to ask for their claims in any order.
        for (n, place) in places.into_iter().enumerate().rev() {
            let told = told.clone();
            InLine::when_first(place.waiting(), move || {
                told.send(n).unwrap();
                drop(place);
            });
        }
        assert!(!join(&lines, &["b"]).has_to_wait());
        assert!(order.try_recv().is_err());
        drop(first);
        assert_eq!(order.try_iter().collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
        let state = lines.lock();
        assert!(state.lines.is_empty() && state.waiting.is_empty() && state.ids.is_empty());
    }

    #[test]
    fn who_stands_in_two_lines_is_first_when_it_is_first_in_both() {
        let lines = Lines::default();
        let (a, b) = (join(&lines, &["a"]), join(&lines, &["b"]));
        let both = join(&lines, &["b", "a", "b"]);
        let after = join(&lines, &["a"]);
        drop(a);
        assert!(both.has_to_wait() && after.has_to_wait());
        drop(b);
        assert!(!both.has_to_wait() && after.has_to_wait());
        drop(both);
        assert!(!after.has_to_wait());
    }

    #[test]
    fn who_goes_away_makes_way() {
        let lines = Lines::default();
        let (told, woken) = mpsc::channel();
        let (first, second, third) = (join(&lines, &["a"]), join(&lines, &["a"]), join(&lines, &["a"]));
        InLine::when_first(third.waiting(), move || told.send(()).unwrap());
        drop(second);
        assert!(woken.try_recv().is_err());
        drop(first);
        assert!(woken.try_recv().is_ok() && !third.has_to_wait());
        let nothing = ("a".parse().unwrap(), Digest::of(b""));
        assert!(lines.join(Vec::new(), nothing).is_none());
        lines.dismiss();
    }
}
