//! A weighted fair queue for a few slots. There is one for actions in flight, one for starting children and one for previews.
//!
//! Each subject has a queue of its own, and slots go round the subjects by deficit round robin: in each round a subject gets as
//! many slots as its weight. So a noisy subject waits behind its own actions, and others pass it. [`Rules`] limit how many slots
//! one subject or one tool may hold at once.
//!
//! Within a subject the order is that of arrival, except that an action whose tool is full lets the next one pass. An action
//! joins the [queues](super::resource_queue) of its resources when it gets its permit, so the orders agree.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use effectd_contracts::{SubjectId, ToolId};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::resource_queue::Queued;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    pub slots: usize,
    /// Slots that one subject may hold at once.
    pub subject_max: usize,
    /// Slots that one tool may hold at once.
    pub tool_max: usize,
    /// How many may wait in all; one subject may have a quarter of them.
    pub waiting_max: usize,
    /// Slots per round of each subject that gets more than one.
    pub weights: HashMap<SubjectId, u32>,
}

/// Gives out permits. Clones share the slots.
#[derive(Clone)]
pub struct FairQueue(Arc<Inner>);

struct Inner {
    rules: Rules,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    taken: usize,
    waiting: usize,
    lanes: HashMap<SubjectId, Lane>,
    /// Subjects with waiting actions, the next one first.
    round: VecDeque<SubjectId>,
    tools: HashMap<ToolId, usize>,
    /// Positions in resource queues of callers who had gone before their permit came: dropped once the lock is free.
    left: Vec<Queued>,
}

#[derive(Default)]
struct Lane {
    taken: usize,
    /// Slots that the subject still gets in this round.
    share: u32,
    waiting: VecDeque<Waiter>,
}

struct Waiter {
    tool: ToolId,
    join: Option<Join>,
    permit: oneshot::Sender<Permit>,
}

/// Joins the resource queues of the action that gets the permit.
pub(crate) type Join = Box<dyn FnOnce() -> Option<Queued> + Send>;

/// How many waiters of a subject are searched for one whose tool is not full.
const LOOK_PAST_MAX: usize = 32;

/// A slot, given back when it is dropped.
pub struct Permit {
    queue: Option<FairQueue>,
    subject: SubjectId,
    tool: ToolId,
    queued: Option<Queued>,
}

pub type Coming = oneshot::Receiver<Permit>;

/// Too many wait already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crowded;

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Permit({})", self.subject)
    }
}

impl FairQueue {
    pub fn new(rules: Rules) -> Self {
        Self(Arc::new(Inner { rules, state: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// Waits for a permit. Within a subject, permits come in the order of these calls.
    pub(crate) fn acquire(
        &self,
        subject: &SubjectId,
        tool: &ToolId,
        join: Option<Join>,
    ) -> Result<Coming, Crowded> {
        let mut state = self.lock();
        if self.is_crowded(&state, subject) {
            let subjects: Vec<_> = state.lanes.keys().cloned().collect();
            subjects.iter().for_each(|subject| state.remove_gone(subject));
            if self.is_crowded(&state, subject) {
                return Err(Crowded);
            }
        }
        Ok(self.push(state, subject, tool, join))
    }

    /// [`FairQueue::acquire`] without a bound, for callers whose number is bounded elsewhere.
    pub(crate) fn enqueue(&self, subject: &SubjectId, tool: &ToolId, join: Option<Join>) -> Coming {
        self.push(self.lock(), subject, tool, join)
    }

    fn is_crowded(&self, state: &State, subject: &SubjectId) -> bool {
        let most = self.0.rules.waiting_max;
        let of_subject = state.lanes.get(subject).map_or(0, |lane| lane.waiting.len());
        state.waiting >= most || of_subject >= (most / 4).max(1)
    }

    fn push(
        &self,
        mut state: MutexGuard<'_, State>,
        subject: &SubjectId,
        tool: &ToolId,
        join: Option<Join>,
    ) -> Coming {
        let (permit, coming) = oneshot::channel();
        let lane = state.lanes.entry(subject.clone()).or_default();
        let tool = tool.clone();
        lane.waiting.push_back(Waiter { tool, join, permit });
        let first = lane.waiting.len() == 1;
        state.waiting += 1;
        if first {
            state.round.push_back(subject.clone());
        }
        self.dispatch(&mut state);
        leave(state);
        coming
    }

    pub fn waiting(&self) -> usize {
        self.lock().waiting
    }

    pub fn taken(&self) -> usize {
        self.lock().taken
    }

    fn dispatch(&self, state: &mut State) {
        let rules = &self.0.rules;
        let mut passed_over = 0;
        while state.taken < rules.slots && passed_over < state.round.len() {
            let Some(subject) = state.round.pop_front() else {
                return;
            };
            let State { lanes, tools, .. } = &mut *state;
            let Some(lane) = lanes.get_mut(&subject) else {
                continue;
            };
            // A waiter whose caller has gone is taken out even if its tool is full.
            let tool_is_free = |waiter: &Waiter| {
                waiter.permit.is_closed() || tools.get(&waiter.tool).is_none_or(|n| *n < rules.tool_max)
            };
            let next = if lane.taken < rules.subject_max {
                lane.waiting.iter().take(LOOK_PAST_MAX).position(tool_is_free)
            } else {
                None
            };
            let Some(waiter) = next.and_then(|next| lane.waiting.remove(next)) else {
                lane.share = 0;
                if lane.waiting.is_empty() {
                    state.remove_idle(&subject);
                } else {
                    passed_over += 1;
                    state.round.push_back(subject);
                }
                continue;
            };
            if lane.share == 0 {
                lane.share = rules.weights.get(&subject).copied().unwrap_or(1).max(1);
            }
            state.waiting -= 1;
            if self.hand_over(state, &subject, waiter) {
                passed_over = 0;
            }
            state.go_round(subject);
        }
    }

    /// Gives a slot to a waiting caller; `false` if that caller is gone.
    fn hand_over(&self, state: &mut State, subject: &SubjectId, waiter: Waiter) -> bool {
        if waiter.permit.is_closed() {
            return false;
        }
        let permit = Permit {
            queue: Some(self.clone()),
            subject: subject.clone(),
            tool: waiter.tool.clone(),
            queued: waiter.join.and_then(|join| join()),
        };
        if let Err(mut unwanted) = waiter.permit.send(permit) {
            // The slot was not counted as taken, so dropping the permit must not free it.
            unwanted.queue = None;
            state.left.extend(unwanted.queued.take());
            return false;
        }
        state.taken += 1;
        *state.tools.entry(waiter.tool).or_default() += 1;
        if let Some(lane) = state.lanes.get_mut(subject) {
            lane.taken += 1;
            lane.share = lane.share.saturating_sub(1);
        }
        true
    }

    fn release(&self, subject: &SubjectId, tool: &ToolId) {
        let mut state = self.lock();
        state.taken = state.taken.saturating_sub(1);
        if let Some(count) = state.tools.get_mut(tool) {
            *count -= 1;
            if *count == 0 {
                state.tools.remove(tool);
            }
        }
        if let Some(lane) = state.lanes.get_mut(subject) {
            lane.taken = lane.taken.saturating_sub(1);
        }
        state.remove_idle(subject);
        self.dispatch(&mut state);
        leave(state);
    }
}

/// Unlocks first: leaving a resource queue wakes the next action in it, which may give a permit back.
fn leave(mut state: MutexGuard<'_, State>) {
    let left = std::mem::take(&mut state.left);
    drop(state);
    drop(left);
}

impl Permit {
    pub(crate) fn take_queued(&mut self) -> Option<Queued> {
        self.queued.take()
    }
}

impl State {
    /// Puts a subject that was just served in front if it has slots left in this round, else behind the others.
    fn go_round(&mut self, subject: SubjectId) {
        let Some(lane) = self.lanes.get_mut(&subject) else {
            return;
        };
        if lane.waiting.is_empty() {
            lane.share = 0;
            self.remove_idle(&subject);
        } else if lane.share > 0 {
            self.round.push_front(subject);
        } else {
            self.round.push_back(subject);
        }
    }

    /// Removes a subject without slots and waiters.
    fn remove_idle(&mut self, subject: &SubjectId) {
        let idle = |lane: &Lane| lane.taken == 0 && lane.waiting.is_empty();
        if self.lanes.get(subject).is_some_and(idle) {
            self.lanes.remove(subject);
        }
    }

    /// Removes the waiters of a subject whose callers have gone.
    fn remove_gone(&mut self, subject: &SubjectId) {
        if let Some(lane) = self.lanes.get_mut(subject) {
            let before = lane.waiting.len();
            lane.waiting.retain(|waiter| !waiter.permit.is_closed());
            self.waiting -= before - lane.waiting.len();
            if lane.waiting.is_empty() {
                self.round.retain(|waits| waits != subject);
                self.remove_idle(subject);
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.release(&self.subject, &self.tool);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn rules(places: usize) -> Rules {
        Rules {
            slots: places,
            subject_max: places,
            tool_max: places,
            waiting_max: 400,
            weights: HashMap::new(),
        }
    }

    fn subject(name: &str) -> SubjectId {
        format!("agent://{name}").parse().unwrap()
    }

    fn tool(name: &str) -> ToolId {
        format!("t.{name}").parse().unwrap()
    }

    fn acquire(queue: &FairQueue, name: &str) -> Coming {
        queue.acquire(&subject(name), &tool("x"), None).unwrap()
    }

    /// Gives slots back one by one, and records who gets each.
    fn order(mut waiting: Vec<(&'static str, Coming)>, mut held: Vec<Permit>) -> Vec<&'static str> {
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(held.remove(0));
            let came = waiting.iter_mut().position(|(_, coming)| match coming.try_recv() {
                Ok(permit) => {
                    held.push(permit);
                    true
                }
                Err(_) => false,
            });
            order.push(waiting.remove(came.unwrap()).0);
        }
        order
    }

    #[test]
    fn a_subject_that_floods_waits_behind_itself() {
        let queue = FairQueue::new(rules(1));
        let held = vec![acquire(&queue, "flood").try_recv().unwrap()];
        let mut waiting: Vec<_> = (0..50).map(|_| ("flood", acquire(&queue, "flood"))).collect();
        waiting.push(("other", acquire(&queue, "other")));
        waiting.push(("other", acquire(&queue, "other")));
        let order = order(waiting, held);
        assert_eq!(order[..5], ["flood", "other", "flood", "other", "flood"]);
    }

    #[test]
    fn callers_that_are_gone_keep_nobody_out() {
        let queue = FairQueue::new(Rules { tool_max: 1, ..rules(3) });
        let (one, busy, free) = (subject("one"), tool("busy"), tool("free"));
        let _busy = queue.acquire(&one, &busy, None).unwrap().try_recv().unwrap();
        for _ in 0..LOOK_PAST_MAX {
            drop(queue.acquire(&one, &busy, None).unwrap());
        }
        assert!(queue.acquire(&one, &free, None).unwrap().try_recv().is_ok());
        // Nor do the gone callers of other subjects.
        for n in 0..4 {
            for _ in 0..100 {
                drop(queue.enqueue(&subject(&format!("s{n}")), &busy, None));
            }
        }
        assert!(queue.acquire(&subject("other"), &free, None).is_ok());
    }

    #[test]
    fn weights_are_shares_of_each_round() {
        let mut rules = rules(1);
        rules.weights.insert(subject("heavy"), 3);
        let queue = FairQueue::new(rules);
        let held = vec![acquire(&queue, "nobody").try_recv().unwrap()];
        let mut waiting: Vec<_> = (0..9).map(|_| ("heavy", acquire(&queue, "heavy"))).collect();
        waiting.extend((0..3).map(|_| ("light", acquire(&queue, "light"))));
        let order = order(waiting, held);
        for round in order.chunks(4) {
            assert_eq!(round.iter().filter(|name| **name == "light").count(), 1, "{order:?}");
        }
    }

    #[test]
    fn neither_a_subject_nor_a_tool_holds_all_places() {
        let queue = FairQueue::new(Rules { subject_max: 3, tool_max: 2, ..rules(4) });
        let mut first: Vec<_> = (0..4).map(|_| acquire(&queue, "a")).collect();
        let held: Vec<_> = first.iter_mut().filter_map(|coming| coming.try_recv().ok()).collect();
        assert_eq!(held.len(), 2, "the tool is full");
        // An action with another tool passes those that wait for the full one.
        let other = queue.acquire(&subject("a"), &tool("y"), None).unwrap().try_recv();
        assert!(other.is_ok());
        assert!(
            queue.acquire(&subject("a"), &tool("z"), None).unwrap().try_recv().is_err(),
            "the subject is full"
        );
        let of_another = queue.acquire(&subject("b"), &tool("y"), None).unwrap().try_recv();
        assert!(of_another.is_ok());
        assert_eq!(queue.taken(), 4);
    }

    #[test]
    fn who_goes_away_leaves_no_trace() {
        let queue = FairQueue::new(rules(1));
        let held = acquire(&queue, "a").try_recv().unwrap();
        for n in 0..1_000 {
            drop(acquire(&queue, &format!("s{n}")));
            if queue.waiting() >= 390 {
                break;
            }
        }
        drop(held);
        assert_eq!((queue.taken(), queue.waiting()), (0, 0));
        assert!(queue.lock().lanes.is_empty() && queue.lock().round.is_empty());
        // A permit that its caller does not take goes to the next.
        let given = acquire(&queue, "a");
        let mut next = acquire(&queue, "b");
        assert!(next.try_recv().is_err());
        drop(given);
        assert!(next.try_recv().is_ok());
    }

    #[test]
    fn the_queue_is_bounded_and_no_subject_fills_it() {
        let queue = FairQueue::new(rules(1));
        let _held = acquire(&queue, "a").try_recv().unwrap();
        let waiting: Vec<_> = (0..100).map(|_| acquire(&queue, "a")).collect();
        assert_eq!(queue.acquire(&subject("a"), &tool("x"), None).err(), Some(Crowded));
        assert!(queue.acquire(&subject("b"), &tool("x"), None).is_ok());
        drop(waiting);
        assert!(queue.acquire(&subject("a"), &tool("x"), None).is_ok(), "those who went away make room");
    }
}
