//! Decisions of one subject that are too many to wait in memory: given back to the bus for a while.
//!
//! The fair queue is fair among the decisions in it, and only so many fit. Without this file, a noisy subject fills it, and the
//! decision of another subject behind that flood is not read until the flood is done. So each subject has a share of the room, and the
//! rest of its decisions is given back to the bus, without a delivery being counted. They come back in their order, about twice as
//! fast as the subject's decisions get places: so there is always something to do, and little is given back twice.
//! `a_decision_behind_thousands_of_another_subject_is_served_before_them` fails without it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::{Monotonic, SubjectId};
use parking_lot::{Mutex, MutexGuard};

use crate::limits::{AHEAD_SUBJECT_MAX, SURPLUS_RATE_FIRST, SURPLUS_RATE_MIN, SURPLUS_TIME_MAX};

/// How many may come back in a second when turns are rare.
const RETURNS_A_SECOND: u64 = 50;
/// And yet not later than this.
const LATEST: Duration = Duration::from_secs(600);
/// How long turns are counted before their rate is believed.
const COUNT_FOR: Duration = Duration::from_millis(500);

/// What waits of each subject, and what was put off. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surplus(Arc<Mutex<HashMap<SubjectId, Crowd>>>);

#[derive(Debug)]
struct Crowd {
    waiting: usize,
    /// Where on the bus lies what was put off and has not come back. Bounded by how far a group may run ahead there.
    put_off: BTreeSet<u64>,
    /// When the last of that comes back.
    until: Monotonic,
    /// Turns since then.
    turns: u32,
    since: Monotonic,
    /// Turns a second.
    rate: f64,
}

/// One decision that waits for its turn.
#[derive(Debug)]
pub(crate) struct Ahead {
    surplus: Surplus,
    subject: SubjectId,
}

impl Surplus {
    fn lock(&self) -> MutexGuard<'_, HashMap<SubjectId, Crowd>> {
        self.0.lock()
    }

    /// Takes a decision among those who wait, or says for how long it is put off.
    pub(crate) fn take(&self, subject: &SubjectId, offset: u64, now: Monotonic) -> Result<Ahead, Duration> {
        let mut all = self.lock();
        let crowd = all.entry(subject.clone()).or_insert_with(|| Crowd {
            waiting: 0,
            put_off: BTreeSet::new(),
            until: now,
            turns: 0,
            since: now,
            rate: f64::from(SURPLUS_RATE_FIRST),
        });
        let came_back = crowd.put_off.remove(&offset);
        // What comes for the first time stays behind what came earlier.
        let is_next = came_back || crowd.put_off.is_empty();
        if crowd.waiting < AHEAD_SUBJECT_MAX && is_next {
            crowd.waiting += 1;
            return Ok(Ahead {
                surplus: self.clone(),
                subject: subject.clone(),
            });
        }
        crowd.put_off.insert(offset);
        let step = Duration::from_secs_f64(0.5 / crowd.rate);
        // The longer the flood, the later: what comes back only to be put off again is work for nothing.
        let most = Duration::from_secs(crowd.put_off.len() as u64 / RETURNS_A_SECOND);
        let latest = now.plus(most.clamp(SURPLUS_TIME_MAX, LATEST.max(SURPLUS_TIME_MAX)));
        let behind = if crowd.until > now { crowd.until } else { now };
        crowd.until = behind.plus(step).min(latest);
        Err(crowd.until.since(now).max(Duration::from_millis(1)))
    }

    /// Forgets what was put off and should have come back long ago: somebody else has ended it.
    pub(crate) fn sweep(&self, now: Monotonic) {
        self.lock().retain(|_, crowd| {
            if now.since(crowd.until) > 2 * SURPLUS_TIME_MAX {
                crowd.put_off.clear();
            }
            crowd.waiting > 0 || !crowd.put_off.is_empty()
        });
    }
}

impl Ahead {
    /// It was its turn.
    pub(crate) fn begin(self, now: Monotonic) {
        let mut all = self.surplus.lock();
        if let Some(crowd) = all.get_mut(&self.subject) {
            crowd.turns += 1;
            let counted = now.since(crowd.since);
            if counted >= COUNT_FOR {
                crowd.rate =
                    (f64::from(crowd.turns) / counted.as_secs_f64()).max(f64::from(SURPLUS_RATE_MIN));
                (crowd.turns, crowd.since) = (0, now);
            }
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let mut all = self.surplus.lock();
        if let Some(crowd) = all.get_mut(&self.subject) {
            crowd.waiting = crowd.waiting.saturating_sub(1);
            if crowd.waiting == 0 && crowd.put_off.is_empty() {
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

    /// A bus with a flood and a pipeline that gives so many turns a second, on a clock of its own: what began when, and how
    /// often something was put off.
    struct Rehearsal {
        begun: Vec<(Duration, u64)>,
        put_off: usize,
    }

    fn rehearse(flood: u64, turns_a_second: u32, seconds: u64) -> Rehearsal {
        let surplus = Surplus::default();
        let (flooder, other) = (subject("flood"), subject("other"));
        let mut due: BTreeMap<Duration, Vec<u64>> = BTreeMap::new();
        let (mut next, mut waiting) = (0, Vec::new());
        let mut seen = Rehearsal {
            begun: Vec::new(),
            put_off: 0,
        };
        let tick = Duration::from_secs(1) / turns_a_second;
        let mut time = Duration::ZERO;
        while time < Duration::from_secs(seconds) {
            let now = Monotonic::from_start(time);
            let mut come: Vec<u64> = Vec::new();
            while due.first_key_value().is_some_and(|(at, _)| *at <= time) {
                come.extend(due.pop_first().unwrap().1);
            }
            // What was never delivered comes in pages, one a tick; the last of it is the other's.
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
            // Turns go round the subjects.
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
    fn who_comes_behind_a_hundred_thousand_of_another_is_served_as_soon_as_it_is_seen() {
        let seen = rehearse(100_000, 1_000, 2);
        let place = seen.begun.iter().position(|(_, offset)| *offset == 100_000);
        // 200 pages are looked at before the other's, and in each of those ticks one of the flood has its turn.
        assert!(place.unwrap() <= 201, "{place:?}");
    }

    #[test]
    fn a_flood_alone_has_every_turn_in_its_order_and_little_is_put_off_twice() {
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
            assert!(
                seen.put_off <= 20_000 * 6,
                "{turns_a_second} a second: put off {} times",
                seen.put_off
            );
        }
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
        assert!(
            surplus.take(&flooder, 10_000, now).is_err(),
            "an earlier one is still out"
        );
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
