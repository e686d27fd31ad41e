//! The progress of one consumer group through its topic.

use std::collections::{BTreeMap, BTreeSet};

use effectd_contracts::Monotonic;
use serde::{Deserialize, Serialize};

use super::When;
use super::apply::delayed;
use crate::index::schema::Stored;
use crate::limits::{GROUP_WINDOW_MAX, LETTER_TRIES_MAX};
use crate::types::groups::GroupOptions;

/// Why a delivered event is not due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeliveryState {
    Leased {
        #[serde(skip, default = "no_lease")]
        lease: u64,
        #[serde(skip)]
        until: Monotonic,
    },
    Delayed {
        #[serde(skip)]
        until: Monotonic,
        /// `until` by the wall clock, for a later process.
        until_ms: i64,
        /// The requested delay: the wall clock must not prolong it.
        delay_ms: u64,
    },
}

/// The lease of an earlier process: a number that is never given out, so nothing can be acknowledged by it.
fn no_lease() -> u64 {
    u64::MAX
}

impl DeliveryState {
    fn until(self) -> Monotonic {
        match self {
            DeliveryState::Leased { until, .. } | DeliveryState::Delayed { until, .. } => until,
        }
    }
}

/// A delivered event that is not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Deliveries that count.
    pub count: u32,
    pub state: DeliveryState,
}

/// A failed delivery: its time, and the location of its detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    pub at_ms: i64,
    pub detail: Stored,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Group {
    pub options: GroupOptions,
    /// Every event before this is acknowledged.
    committed: u64,
    /// No event from this on was delivered, except those in `pending` and `done`.
    next: u64,
    done: BTreeSet<u64>,
    pending: BTreeMap<u64, Pending>,
    #[serde(skip)]
    due: BTreeSet<(Monotonic, u64)>,
    /// The last failures of the events in `pending`.
    tried: BTreeMap<u64, Vec<Tried>>,
}

impl Group {
    /// A new group.
    pub fn starting(begin: u64) -> Self {
        Group { committed: begin, next: begin, ..Group::default() }
    }

    /// Whether an event is not acknowledged.
    pub fn is_open(&self, offset: u64) -> bool {
        offset >= self.committed && !self.done.contains(&offset)
    }

    /// Restores the due times after a snapshot was read.
    pub(super) fn resume(&mut self, when: When) {
        for (offset, mut pending) in std::mem::take(&mut self.pending) {
            if let DeliveryState::Delayed { until_ms, delay_ms, .. } = pending.state {
                pending.state = delayed(when, until_ms, delay_ms);
            }
            self.set(offset, pending);
        }
    }

    /// Every event before this is acknowledged.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    /// Events that were acknowledged out of order.
    pub fn done(&self) -> &BTreeSet<u64> {
        &self.done
    }

    pub fn pending(&self) -> &BTreeMap<u64, Pending> {
        &self.pending
    }

    pub fn tried(&self) -> &BTreeMap<u64, Vec<Tried>> {
        &self.tried
    }

    /// Remembers a failure of an event; only the last few.
    pub fn record_failure(&mut self, offset: u64, tried: Tried) {
        let tries = self.tried.entry(offset).or_default();
        if tries.len() >= LETTER_TRIES_MAX {
            tries.remove(0);
        }
        tries.push(tried);
    }

    /// Whether an event is too far ahead of the oldest unacknowledged one.
    pub fn beyond_window(&self, offset: u64) -> bool {
        offset >= self.committed.saturating_add(GROUP_WINDOW_MAX)
    }

    /// Events that are due again, in order.
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

    /// Events that were never delivered, in order.
    pub fn fresh(&self, end: u64, max: usize) -> Vec<u64> {
        (self.next..end)
            .filter(|offset| !self.pending.contains_key(offset) && !self.done.contains(offset))
            .take_while(|offset| !self.beyond_window(*offset))
            .take(max)
            .collect()
    }

    pub fn undelivered(&self, end: u64) -> u64 {
        let ahead = self.pending.range(self.next..).count() + self.done.range(self.next..).count();
        end.saturating_sub(self.next).saturating_sub(ahead as u64)
    }

    /// Leases an event. Returns the expired lease that this one replaces.
    pub fn grant(&mut self, offset: u64, lease: u64, until: Monotonic) -> Option<u64> {
        let before = self.pending.get(&offset).copied();
        let count = before.map_or(0, |pending| pending.count).saturating_add(1);
        self.set(offset, Pending { count, state: DeliveryState::Leased { lease, until } });
        while self.pending.contains_key(&self.next) || self.done.contains(&self.next) {
            self.next += 1;
        }
        match before.map(|pending| pending.state) {
            Some(DeliveryState::Leased { lease, .. }) => Some(lease),
            Some(DeliveryState::Delayed { .. }) | None => None,
        }
    }

    /// Replaces the delivery state of an event.
    pub fn set(&mut self, offset: u64, pending: Pending) {
        if let Some(old) = self.pending.insert(offset, pending) {
            self.due.remove(&(old.state.until(), offset));
        }
        self.due.insert((pending.state.until(), offset));
    }

    pub fn finish(&mut self, offset: u64) {
        if let Some(old) = self.pending.remove(&offset) {
            self.due.remove(&(old.state.until(), offset));
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

    /// Moves the group to an offset and forgets all deliveries. Returns the leases that end.
    pub fn seek(&mut self, offset: u64) -> Vec<u64> {
        let leases = self.pending.values().filter_map(|pending| match pending.state {
            DeliveryState::Leased { lease, .. } => Some(lease),
            DeliveryState::Delayed { .. } => None,
        });
        let leases = leases.collect();
        *self = Group { options: self.options, committed: offset, next: offset, ..Group::default() };
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
    fn an_admitted_event_is_not_delivered_again_to_its_group() {
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
        assert_eq!(group.fresh(GROUP_WINDOW_MAX + 9, usize::MAX).len() as u64, GROUP_WINDOW_MAX - 1);
    }
}
