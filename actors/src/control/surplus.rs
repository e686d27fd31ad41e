//! The surplus of noisy subjects: decisions beyond a subject's share of the memory are deferred on the bus.
//!
//! The fair queue is fair among the decisions in it, and its room is bounded. Without this file, a noisy subject fills it, and a
//! decision of another subject behind that flood is not leased until the flood is done. So each subject has a share of the room,
//! and its other decisions are deferred, which does not count as a failed delivery. They return in order, about twice as fast as
//! the subject gets slots: so the queue does not run empty, and few are deferred twice. Without it,
//! `a_decision_behind_a_noisy_tenant_is_served_before_it` fails.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::{Monotonic, SubjectId};
use parking_lot::{Mutex, MutexGuard};

use crate::limits::{AHEAD_SUBJECT_MAX, SURPLUS_RATE_FIRST, SURPLUS_RATE_MIN, SURPLUS_TIME_MAX};

/// Deferred decisions of one subject for each second of its longest deferral.
const RETURNS_A_SECOND: u64 = 50;
/// The longest deferral, whatever the backlog.
const LATEST: Duration = Duration::from_secs(600);
/// How long starts are counted before their rate is used.
const COUNT_FOR: Duration = Duration::from_millis(500);

/// Waiting and deferred decisions, by subject. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surplus(Arc<Mutex<HashMap<SubjectId, Backlog>>>);

#[derive(Debug)]
struct Backlog {
    waiting: usize,
    /// The offsets of deferred decisions. Bounded by how far a group may lease ahead of its committed offset.
    deferred: BTreeSet<u64>,
    /// When the last deferred decision returns.
    until: Monotonic,
    /// Starts since `since`.
    starts: u32,
    since: Monotonic,
    /// Starts a second, as counted last.
    rate: f64,
}

/// One decision that waits in memory for a slot.
#[derive(Debug)]
pub(crate) struct Ahead {
    surplus: Surplus,
    subject: SubjectId,
}

impl Surplus {
    fn lock(&self) -> MutexGuard<'_, HashMap<SubjectId, Backlog>> {
        self.0.lock()
    }

    /// Lets a decision wait in memory, or returns how long to defer it.
    pub(crate) fn take(&self, subject: &SubjectId, offset: u64, now: Monotonic) -> Result<Ahead, Duration> {
        let mut all = self.lock();
        let backlog = all.entry(subject.clone()).or_insert_with(|| Backlog {
            waiting: 0,
            deferred: BTreeSet::new(),
            until: now,
            starts: 0,
            since: now,
            rate: f64::from(SURPLUS_RATE_FIRST),
        });
        let came_back = backlog.deferred.remove(&offset);
        // A new decision stays behind earlier ones that are still deferred.
        let is_next = came_back || backlog.deferred.is_empty();
        if backlog.waiting < AHEAD_SUBJECT_MAX && is_next {
            backlog.waiting += 1;
            return Ok(Ahead { surplus: self.clone(), subject: subject.clone() });
        }
        Err(backlog.defer(offset, now))
    }

    /// Forgets deferred decisions that should have returned long ago: they have ended elsewhere.
    pub(crate) fn sweep(&self, now: Monotonic) {
        self.lock().retain(|_, backlog| {
            if now.since(backlog.until) > 2 * SURPLUS_TIME_MAX {
                backlog.deferred.clear();
            }
            backlog.waiting > 0 || !backlog.deferred.is_empty()
        });
    }
}

impl Backlog {
    /// Defers a decision behind those that are deferred already. Returns for how long.
    fn defer(&mut self, offset: u64, now: Monotonic) -> Duration {
        self.deferred.insert(offset);
        let step = Duration::from_secs_f64(0.5 / self.rate);
        // The longer the backlog, the longer the deferral: returning only to be deferred again is wasted work.
        let most = Duration::from_secs(self.deferred.len() as u64 / RETURNS_A_SECOND);
        let latest = now.plus(most.clamp(SURPLUS_TIME_MAX, LATEST.max(SURPLUS_TIME_MAX)));
        let behind = if self.until > now { self.until } else { now };
        self.until = behind.plus(step).min(latest);
        self.until.since(now).max(Duration::from_millis(1))
    }
}

impl Ahead {
    /// The decision has to wait on the bus after all, since the subject's rate or budget refuses it. Returns for how long.
    pub(crate) fn defer(self, offset: u64, now: Monotonic) -> Duration {
        let mut all = self.surplus.lock();
        all.get_mut(&self.subject).map_or(Duration::ZERO, |backlog| backlog.defer(offset, now))
    }

    /// The decision has its slot.
    pub(crate) fn begin(self, now: Monotonic) {
        let mut all = self.surplus.lock();
        if let Some(backlog) = all.get_mut(&self.subject) {
            backlog.starts += 1;
            let counted = now.since(backlog.since);
            if counted >= COUNT_FOR {
                backlog.rate =
                    (f64::from(backlog.starts) / counted.as_secs_f64()).max(f64::from(SURPLUS_RATE_MIN));
                (backlog.starts, backlog.since) = (0, now);
            }
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let mut all = self.surplus.lock();
        if let Some(backlog) = all.get_mut(&self.subject) {
            backlog.waiting = backlog.waiting.saturating_sub(1);
            if backlog.waiting == 0 && backlog.deferred.is_empty() {
                all.remove(&self.subject);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeMap;

    fn subject(name: &str) -> SubjectId {
        format!("agent://{name}").parse().unwrap()
    }

    /// A simulated bus with a flood of decisions, and a pipeline that gives a number of slots a second: which decision began
    /// when, and how often one was deferred.
    struct Rehearsal {
        begun: Vec<(Duration, u64)>,
        put_off: usize,
    }

    fn rehearse(flood: u64, turns_a_second: u32, seconds: u64) -> Rehearsal {
        let surplus = Surplus::default();
        let (flooder, other) = (subject("flood"), subject("other"));
        let mut due: BTreeMap<Duration, Vec<u64>> = BTreeMap::new();
        let (mut next, mut waiting) = (0, Vec::new());
        let mut seen = Rehearsal { begun: Vec::new(), put_off: 0 };
        let tick = Duration::from_secs(1) / turns_a_second;
        let mut time = Duration::ZERO;
        while time < Duration::from_secs(seconds) {
            let now = Monotonic::from_start(time);
            let mut come: Vec<u64> = Vec::new();
            while due.first_key_value().is_some_and(|(at, _)| *at <= time) {
                come.extend(due.pop_first().unwrap().1);
            }
            // Decisions that were never delivered come in pages, one page a tick; the last decision is the other subject's.
            let page = (next + 500).min(flood + 1);
            come.extend(next..page);
            next = page;
            for offset in come {
                let who = if offset == flood { &other } else { &flooder };
                match surplus.take(who, offset, now) {
                    Ok(ahead) => waiting.push((offset, ahead)),
                    Err(after) => {
                        seen.put_off += 1;
                        due.entry(time + after).or_default().push(offset);
                    }
                }
            }
            // Slots go round the subjects.
            let others = waiting.iter().position(|(offset, _)| *offset == flood);
            if !waiting.is_empty() {
                let (offset, ahead) = waiting.remove(others.unwrap_or(0));
                ahead.begin(now);
                seen.begun.push((time, offset));
            }
            time += tick;
        }
        seen
    }

    #[test]
    fn a_subject_behind_100_000_of_another_is_served_once_seen() {
        let seen = rehearse(100_000, 1_000, 2);
        let place = seen.begun.iter().position(|(_, offset)| *offset == 100_000);
        // 200 pages come before the other subject's decision, and in each of those ticks one decision of the flood begins.
        assert!(place.unwrap() <= 201, "{place:?}");
    }

    #[test]
    fn a_lone_flood_gets_every_turn_in_order() {
        for turns_a_second in [200, 1_000, 4_000] {
            let seconds = 10;
            let seen = rehearse(20_000, turns_a_second, seconds);
            let turns = u64::from(turns_a_second) * seconds;
            let begun = seen.begun.len() as u64;
            assert!(
                10 * begun >= 9 * turns.min(20_001),
                "{turns_a_second} a second: {begun} of {turns} turns were used"
            );
            let order: Vec<u64> = seen.begun.iter().map(|(_, offset)| *offset).collect();
            let swapped = order.windows(2).filter(|pair| pair[0] > pair[1]).count();
            assert!(10 * swapped <= order.len(), "{swapped} of {}", order.len());
            assert!(seen.put_off <= 20_000 * 6, "{turns_a_second} a second: put off {} times", seen.put_off);
        }
    }

    #[test]
    fn a_rate_seldom_defers_the_same_decision_again() {
        let (surplus, flooder, flood) = (Surplus::default(), subject("flood"), 4_000);
        let mut due: BTreeMap<Duration, Vec<u64>> = BTreeMap::from([(Duration::ZERO, (0..flood).collect())]);
        let (mut begun, mut put_off) = (0, 0);
        // One may begin every 5 ms.
        for turn in 0..flood {
            let time = Duration::from_millis(5 * turn);
            let (now, mut is_free) = (Monotonic::from_start(time), true);
            while due.first_key_value().is_some_and(|(at, _)| *at <= time) {
                for offset in due.pop_first().unwrap().1 {
                    let after = match surplus.take(&flooder, offset, now) {
                        Ok(ahead) if is_free => {
                            is_free = false;
                            begun += 1;
                            ahead.begin(now);
                            continue;
                        }
                        Ok(ahead) => ahead.defer(offset, now),
                        Err(after) => after,
                    };
                    put_off += 1;
                    due.entry(time + after).or_default().push(offset);
                }
            }
        }
        assert!(10 * begun >= 9 * flood, "{begun} of {flood} turns were used");
        assert!(put_off <= flood * 6, "put off {put_off} times");
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let surplus = Surplus::default();
        let now = Monotonic::from_start(Duration::from_secs(1));
        let flooder = subject("flood");
        let ahead: Vec<_> = (0..AHEAD_SUBJECT_MAX as u64)
            .map(|offset| surplus.take(&flooder, offset, now).unwrap())
            .collect();
        let after = surplus.take(&flooder, 9_999, now).unwrap_err();
        drop(ahead);
        assert!(surplus.take(&flooder, 10_000, now).is_err(), "an earlier one is still out");
        assert!(surplus.take(&flooder, 9_999, now.plus(after)).is_ok());
        assert!(surplus.take(&flooder, 10_000, now.plus(2 * after)).is_ok());
        assert!(surplus.lock().is_empty());
        let ahead: Vec<_> = (0..AHEAD_SUBJECT_MAX as u64)
            .map(|offset| surplus.take(&flooder, offset, now).unwrap())
            .collect();
        assert!(surplus.take(&flooder, 9_999, now).is_err());
        drop(ahead);
        surplus.sweep(now.plus(3 * SURPLUS_TIME_MAX));
        assert!(surplus.lock().is_empty());
    }
}
