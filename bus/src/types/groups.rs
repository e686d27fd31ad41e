//! Consumer groups, leases and acknowledgements.

use std::time::Duration;

use effectd_contracts::Timestamp;
use serde::{Deserialize, Serialize};

use crate::limits::DELIVERIES_MAX_DEFAULT;
use crate::names::{GroupName, TopicName};
use crate::types::events::StoredEvent;

/// Names one delivery of one event to one consumer. Never reused, not even by a later process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// An event that is leased to a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub lease_id: LeaseId,
    pub offset: u64,
    pub event: StoredEvent,
    /// Its deliveries to this group, including this one. Survives a crash.
    pub delivery_count: u32,
    /// Its deliveries are used up in a group with [`Exhausted::HandOver`]: record the failure, do not run the event.
    pub exhausted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leased {
    /// Oldest first; empty if nothing is due.
    pub deliveries: Vec<Delivery>,
    /// The time until a delayed or leased event becomes due.
    pub next_due: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acknowledgement {
    /// Done: never deliver it to this group again.
    Ack,
    /// Failed: deliver it again after the delay, or dead-letter it if its deliveries are used up.
    Nack {
        delay: Duration,
        /// Why, for people. Stored sealed.
        detail: String,
    },
    /// Not now (throttled, tool full): deliver it again after the delay, without counting this delivery.
    Defer { delay: Duration },
    /// Hopeless: dead-letter it at once.
    Term {
        /// The tool that the event is about, if known: part of the cause.
        tool: Option<String>,
        /// A stable word for the cause: `malformed`.
        code: String,
        /// Why, for people. Stored sealed.
        detail: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledged {
    Done,
    WillRetry,
    DeadLettered { letter: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Exhausted {
    /// The Store dead-letters the event.
    #[default]
    DeadLetter,
    /// It is delivered once more with [`Delivery::exhausted`], so that the consumer can end it (the pipeline writes its
    /// receipt). The consumer must not run it.
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
        Self { deliveries_max: DELIVERIES_MAX_DEFAULT, exhausted: Exhausted::default() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTo {
    /// The first kept event.
    Start,
    /// The topic's end: only later events are delivered.
    End,
    /// This offset, at most the topic's end. `Dropped` if it is before the first kept event.
    Offset(u64),
    /// The first event stored at this time or later.
    Time(Timestamp),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupInfo {
    pub topic: TopicName,
    pub group: GroupName,
    pub options: GroupOptions,
    /// Every event before this offset is acknowledged. Never decreases, except by a seek.
    pub committed: u64,
    /// Later events that are acknowledged out of order.
    pub acknowledged_ahead: u64,
    pub leased: u64,
    /// Events with a delay or an expired lease.
    pub waiting: u64,
    pub undelivered: u64,
    pub end: u64,
}
