//! Groups of consumers, leases and how a delivery ends.

use std::time::Duration;

use effectd_contracts::Timestamp;
use serde::{Deserialize, Serialize};

use crate::limits::DELIVERIES_MAX_DEFAULT;
use crate::names::{GroupName, TopicName};
use crate::types::events::StoredEvent;

/// Names one delivery of one event to one consumer. Never used twice, not even by a later run of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// One event, lent to one consumer for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub lease_id: LeaseId,
    pub offset: u64,
    pub event: StoredEvent,
    /// How often it was delivered to this group, this time included. Survives a crash of the process.
    pub delivery_count: u32,
    /// The group's deliveries are used up and it asked to be told ([`Exhausted::HandOver`]): do not run this, record it.
    pub exhausted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leased {
    /// The deliveries, oldest first; empty if nothing is due.
    pub deliveries: Vec<Delivery>,
    /// When nothing (more) is due: after this long, a delayed or leased event becomes due by itself.
    pub next_due: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// Done; never deliver it to this group again.
    Ack,
    /// Failed; deliver it again after the delay, or set it aside as a dead letter if its deliveries are used up.
    Nack {
        delay: Duration,
        /// Why, for the people who look at dead letters. Stored sealed.
        detail: String,
    },
    /// Not now (throttled, tool full): deliver it again after the delay, and do not count this delivery.
    Defer { delay: Duration },
    /// Hopeless; make it a dead letter at once.
    Term {
        /// A stable word for the cause: `malformed`.
        code: String,
        /// Why, for people. Stored sealed.
        detail: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    Done,
    WillRetry,
    DeadLettered { letter: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Exhausted {
    /// The Store makes it a dead letter by itself.
    #[default]
    DeadLetter,
    /// It is delivered once more with [`Delivery::exhausted`] set, so that the consumer can end it properly (the
    /// pipeline writes its receipt). Consumers must do nothing else with such a delivery.
    HandOver,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupOptions {
    /// Deliveries of one event before it counts as poison.
    pub deliveries_max: u32,
    pub exhausted: Exhausted,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            deliveries_max: DELIVERIES_MAX_DEFAULT,
            exhausted: Exhausted::default(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTo {
    /// Everything again.
    Start,
    /// Only what is published from now on.
    End,
    /// This event next; beyond the end means the end.
    Offset(u64),
    /// The first event stored at this time or later.
    Time(Timestamp),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupInfo {
    pub topic: TopicName,
    pub group: GroupName,
    pub options: GroupOptions,
    /// Every event before this offset is settled. Never goes back, except by a seek.
    pub committed: u64,
    /// Events settled beyond that, out of order.
    pub settled_ahead: u64,
    pub leased: u64,
    /// Events that wait for a delay or for a lost lease.
    pub waiting: u64,
    pub undelivered: u64,
    pub end: u64,
}
