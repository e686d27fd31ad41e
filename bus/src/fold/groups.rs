//! One group's progress through its topic.

use std::collections::{BTreeMap, BTreeSet};

use effectd_contracts::Monotonic;
use serde::{Deserialize, Serialize};

use super::When;
use super::apply::waiting;
use crate::keys::Stored;
use crate::limits::{GROUP_WINDOW_MAX, LETTER_TRIES_MAX};
use crate::types::groups::GroupOptions;

/// Why an event that was delivered is not due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hold {
    Leased {
        #[serde(skip, default = "no_lease")]
        lease: u64,
        #[serde(skip)]
        until: Monotonic,
    },
    Waiting {
        #[serde(skip)]
        until: Monotonic,
        /// `until` by the wall clock, for a later run of the process.
        until_ms: i64,
        /// How long it was asked to wait, which bounds what the wall clock may say.
        delay_ms: u64,
    },
}

/// A lease of an earlier run of the process is over: this number is never given out, and nothing can be settled by it.
fn no_lease() -> u64 {
    u64::MAX
}

impl Hold {
    fn until(self) -> Monotonic {
        match self {
            Hold::Leased { until, .. } | Hold::Waiting { until, .. } => until,
        }
    }
}

/// An event that was delivered and is not settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// How often it was delivered and counted.
    pub count: u32,
    /// Why it is not due.
    pub hold: Hold,
}

/// A delivery that failed: when, and where it is written why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    pub at_ms: i64,
    pub detail: Stored,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Group {
    pub options: GroupOptions,
    /// Every event before this is settled.
    committed: u64,
    /// The first event that was never delivered, save those in `pending` and `done`.
    next: u64,
    done: BTreeSet<u64>,
    pending: BTreeMap<u64, Pending>,
    #[serde(skip)]
    due: BTreeSet<(Monotonic, u64)>,
    /// What went wrong with the events in `pending`, the last few times.
    tried: BTreeMap<u64, Vec<Tried>>,
}

impl Group {
    /// A group that nobody has named before, on a topic that begins there.
    pub fn starting(begin: u64) -> Self {
        Group {
            committed: begin,
            next: begin,
            ..Group::default()
        }
    }

    /// Whether it has still to settle an event.
    pub fn is_open(&self, offset: u64) -> bool {
        offset >= self.committed && !self.done.contains(&offset)
    }

    /// Goes on after it was read back from a snapshot.
    pub(super) fn resume(&mut self, when: When) {
        for (offset, mut pending) in std::mem::take(&mut self.pending) {
            if let Hold::Waiting {
                until_ms, delay_ms, ..
            } = pending.hold
            {
                pending.hold = waiting(when, until_ms, delay_ms);
            }
            self.hold(offset, pending);
        }
    }

    /// Every event before this is settled.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// The first event that was never delivered in order.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Events that are settled out of order.
    pub fn done(&self) -> &BTreeSet<u64> {
        &self.done
    }

    pub fn pending(&self) -> &BTreeMap<u64, Pending> {
        &self.pending
    }

    /// What went wrong with events that are not settled.
    pub fn tried(&self) -> &BTreeMap<u64, Vec<Tried>> {
        &self.tried
    }

    /// Remembers what went wrong with an event; only the last few times.
    pub fn note(&mut self, offset: u64, tried: Tried) {
        let tries = self.tried.entry(offset).or_default();
        if tries.len() >= LETTER_TRIES_MAX {
            tries.remove(0);
        }
        tries.push(tried);
    }

    /// Whether the group is so far ahead of its oldest unsettled event that it must not take this one yet.
    pub fn beyond_window(&self, offset: u64) -> bool {
        offset >= self.committed.saturating_add(GROUP_WINDOW_MAX)
    }

    /// Events that are due again, the oldest first.
    pub fn due(&self, now: Monotonic, max: usize) -> Vec<u64> {
        let mut offsets: Vec<u64> = self
            .due
            .iter()
            .take_while(|(until, _)| *until <= now)
            .take(max)
            .map(|(_, offset)| *offset)
            .collect();
        offsets.sort_unstable();
        offsets
    }

    pub fn next_due(&self) -> Option<Monotonic> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Events that were never delivered, the oldest first.
    pub fn fresh(&self, end: u64, max: usize) -> Vec<u64> {
        (self.next..end)
            .filter(|offset| !self.pending.contains_key(offset) && !self.done.contains(offset))
            .take_while(|offset| !self.beyond_window(*offset))
            .take(max)
            .collect()
    }

    /// How many were never delivered.
    pub fn undelivered(&self, end: u64) -> u64 {
        let ahead = self.pending.range(self.next..).count() + self.done.range(self.next..).count();
        end.saturating_sub(self.next).saturating_sub(ahead as u64)
    }

    /// Lends an event. Answers the lease that this ends, if someone else's ran out.
    pub fn grant(&mut self, offset: u64, lease: u64, until: Monotonic) -> Option<u64> {
        let before = self.pending.get(&offset).copied();
        let count = before.map_or(0, |pending| pending.count).saturating_add(1);
        self.hold(
            offset,
            Pending {
                count,
                hold: Hold::Leased { lease, until },
            },
        );
        while self.pending.contains_key(&self.next) || self.done.contains(&self.next) {
            self.next += 1;
        }
        match before.map(|pending| pending.hold) {
            Some(Hold::Leased { lease, .. }) => Some(lease),
            Some(Hold::Waiting { .. }) | None => None,
        }
    }

    /// Holds an event until then; replaces whatever held it before.
    pub fn hold(&mut self, offset: u64, pending: Pending) {
        if let Some(old) = self.pending.insert(offset, pending) {
            self.due.remove(&(old.hold.until(), offset));
        }
        self.due.insert((pending.hold.until(), offset));
    }

    pub fn finish(&mut self, offset: u64) {
        if let Some(old) = self.pending.remove(&offset) {
            self.due.remove(&(old.hold.until(), offset));
        }
        self.tried.remove(&offset);
        if offset < self.committed {
            return;
        }
        self.done.insert(offset);
        while self.done.remove(&self.committed) {
            self.committed += 1;
        }
        self.next = self.next.max(self.committed);
    }

    /// Goes on at this offset, forgetting everything. Answers the leases that this ends.
    pub fn seek(&mut self, offset: u64) -> Vec<u64> {
        let leases = self.pending.values().filter_map(|pending| match pending.hold {
            Hold::Leased { lease, .. } => Some(lease),
            Hold::Waiting { .. } => None,
        });
        let leases = leases.collect();
        *self = Group {
            options: self.options,
            committed: offset,
            next: offset,
            ..Group::default()
        };
        leases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn acks_out_of_order_commit_when_the_gap_closes() {
        let mut group = Group::default();
        for offset in 0..3 {
            assert_eq!(group.grant(offset, offset, at(10)), None);
        }
        group.finish(2);
        group.finish(1);
        assert_eq!((group.committed(), group.done().len()), (0, 2));
        group.finish(0);
        assert_eq!((group.committed(), group.done().len(), group.next()), (3, 0, 3));
    }

    #[test]
    fn an_admitted_event_is_not_delivered_again_when_the_group_comes_to_it() {
        let mut group = Group::default();
        group.grant(2, 7, at(10));
        assert_eq!(group.fresh(4, 9), vec![0, 1, 3]);
        assert_eq!(group.undelivered(4), 3);
        group.finish(2);
        assert_eq!(group.fresh(4, 9), vec![0, 1, 3]);
    }

    #[test]
    fn an_expired_lease_is_due_and_its_successor_ends_it() {
        let mut group = Group::default();
        group.grant(0, 1, at(10));
        assert!(group.due(at(9), 9).is_empty());
        assert_eq!(group.due(at(10), 9), vec![0]);
        assert_eq!(group.grant(0, 2, at(20)), Some(1));
        assert_eq!(group.pending()[&0].count, 2);
        assert_eq!(group.next_due(), Some(at(20)));
    }

    #[test]
    fn a_group_does_not_run_away_from_its_oldest_event() {
        let mut group = Group::default();
        group.grant(0, 0, at(1));
        assert_eq!(
            group.fresh(GROUP_WINDOW_MAX + 9, usize::MAX).len() as u64,
            GROUP_WINDOW_MAX - 1
        );
    }
}
