//! What waits in front of a stage: subjects take turns.
//!
//! A stage that only computes has few workers, and what one subject asks for at once is more than they can take. So each subject has
//! a queue of its own, and the next worker that is free gets the first of the next subject: whoever asks for one thing waits for one
//! of each of the others, and not for all that another has sent before. Within a subject the order is that of arrival.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use effectd_contracts::SubjectId;
use ractor::Message;
use ractor::factory::queues::Queue;
use ractor::factory::{DiscardHandler, DiscardReason, Job};

/// Work of which is known for whom it is done.
pub(crate) trait OfSubject {
    fn subject(&self) -> &SubjectId;
}

/// The queues of all subjects. Bounded by the number of actions on their way.
pub(crate) struct Rounds<M: Message> {
    lanes: HashMap<SubjectId, VecDeque<Job<(), M>>>,
    /// Subjects that wait, the next one first: each that has a queue, once.
    round: VecDeque<SubjectId>,
    waiting: usize,
}

impl<M: Message> Default for Rounds<M> {
    fn default() -> Self {
        Self {
            lanes: HashMap::new(),
            round: VecDeque::new(),
            waiting: 0,
        }
    }
}

impl<M: Message + OfSubject> Queue<(), M> for Rounds<M> {
    fn len(&self) -> usize {
        self.waiting
    }

    fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    fn pop_front(&mut self) -> Option<Job<(), M>> {
        let subject = self.round.pop_front()?;
        let lane = self.lanes.get_mut(&subject)?;
        let job = lane.pop_front()?;
        self.waiting -= 1;
        if lane.is_empty() {
            self.lanes.remove(&subject);
        } else {
            self.round.push_back(subject);
        }
        Some(job)
    }

    /// Nothing is thrown away here: how much may wait is bounded where it comes in.
    fn discard_oldest(&mut self) -> Option<Job<(), M>> {
        self.pop_front()
    }

    fn peek(&self) -> Option<&Job<(), M>> {
        self.lanes.get(self.round.front()?)?.front()
    }

    fn push_back(&mut self, job: Job<(), M>) {
        let subject = job.msg.subject();
        match self.lanes.get_mut(subject) {
            Some(lane) => lane.push_back(job),
            None => {
                self.round.push_back(subject.clone());
                self.lanes.insert(subject.clone(), VecDeque::from([job]));
            }
        }
        self.waiting += 1;
    }

    fn remove_expired_items(&mut self, handler: &Option<Arc<dyn DiscardHandler<(), M>>>) -> usize {
        let before = self.waiting;
        for lane in self.lanes.values_mut() {
            lane.retain_mut(|job| {
                let expired = job.is_expired();
                if let (true, Some(handler)) = (expired, handler) {
                    handler.discard(DiscardReason::TtlExpired, job);
                }
                !expired
            });
        }
        self.lanes.retain(|_, lane| !lane.is_empty());
        self.round.retain(|subject| self.lanes.contains_key(subject));
        self.waiting = self.lanes.values().map(VecDeque::len).sum();
        before - self.waiting
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ractor::factory::JobOptions;
    use std::time::Duration;

    #[derive(Debug)]
    struct Work(SubjectId, usize);

    impl OfSubject for Work {
        fn subject(&self) -> &SubjectId {
            &self.0
        }
    }

    fn work(subject: &str, number: usize, ttl: Option<Duration>) -> Job<(), Work> {
        let subject = format!("agent://{subject}").parse().unwrap();
        Job::with_options((), Work(subject, number), JobOptions::new(ttl))
    }

    fn drain(queue: &mut Rounds<Work>) -> Vec<String> {
        let mut order = Vec::new();
        while !queue.is_empty() {
            let (next, left) = (queue.peek().unwrap().msg.1, queue.len());
            let Work(subject, number) = queue.pop_front().unwrap().msg;
            assert_eq!((next, left), (number, queue.len() + 1));
            order.push(format!(
                "{}{number}",
                subject.as_str().trim_start_matches("agent://")
            ));
        }
        assert!(queue.pop_front().is_none() && queue.peek().is_none());
        assert!(queue.lanes.is_empty() && queue.round.is_empty());
        order
    }

    #[test]
    fn whoever_asks_for_one_thing_does_not_wait_for_all_of_another() {
        let mut queue = Rounds::default();
        (0..4).for_each(|n| queue.push_back(work("flood", n, None)));
        queue.push_back(work("other", 0, None));
        queue.push_back(work("third", 0, None));
        queue.push_back(work("other", 1, None));
        assert_eq!(
            drain(&mut queue),
            [
                "flood0", "other0", "third0", "flood1", "other1", "flood2", "flood3"
            ]
        );
        queue.push_back(work("other", 2, None));
        assert_eq!(drain(&mut queue), ["other2"]);
    }

    #[test]
    fn what_is_too_late_goes_and_the_rest_stays_in_order() {
        let mut queue = Rounds::default();
        for (subject, number, ttl) in [
            ("a", 0, Some(Duration::ZERO)),
            ("b", 0, None),
            ("a", 1, None),
            ("c", 0, Some(Duration::ZERO)),
        ] {
            queue.push_back(work(subject, number, ttl));
        }
        assert_eq!(queue.remove_expired_items(&None), 2);
        assert_eq!(drain(&mut queue), ["a1", "b0"]);
    }
}
