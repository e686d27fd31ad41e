//! Dead letters: events and actions that failed permanently and wait for a person.

use std::fmt;

use effectd_contracts::digest::hex;
use effectd_contracts::{ActionId, ReceiptId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::codec::Hash16;
use crate::names::{GroupName, TopicName};
use crate::types::events::Body;

/// The code of events that were delivered too often. The Store does not know their tools, so a cause may have several.
pub const DELIVERIES_EXHAUSTED: &str = "deliveries_exhausted";

/// The code of the group of all causes beyond the bound.
pub const OTHER_CAUSES: &str = "other_causes";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedAttempt {
    pub at: Timestamp,
    /// Why it failed, for people; empty if that can no longer be read.
    pub error: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDeadLetter {
    /// The topic of the decision.
    pub topic: TopicName,
    /// A stable word for the cause: `outcome_unknown`.
    pub code: String,
    /// Why, for people. Stored sealed.
    pub detail: String,
    pub attempts: u32,
    /// The attempts, oldest first. The last [`crate::limits::LETTER_TRIES_MAX`] are stored, sealed.
    pub tries: Vec<FailedAttempt>,
    /// The original request, so that it can be tried again. Stored sealed.
    pub payload: Vec<u8>,
}

/// A hash of the cause; see [`crate::fingerprint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub Hash16);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Half of it distinguishes enough causes, and is short enough to read out.
        f.write_str(&hex(&self.0.0[..8]))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterGroup {
    pub fingerprint: Fingerprint,
    /// The code of the newest dead letter.
    pub code: String,
    pub count: u64,
    /// The time of the oldest one that still exists.
    pub first: Timestamp,
    pub last: Timestamp,
    pub newest: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requeued {
    /// Published again; the dead letter is gone.
    Published { offset: u64 },
    /// It was requeued or purged before.
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeadLetterOrigin {
    /// A completion that failed permanently.
    Completion { receipt_id: ReceiptId },
    /// An event that a group could not process.
    Delivery { group: GroupName, offset: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its number, from 0.
    pub letter: u64,
    pub time: Timestamp,
    pub topic: TopicName,
    pub origin: DeadLetterOrigin,
    /// Its action, if known.
    pub action_id: Option<ActionId>,
    /// A stable word for the cause.
    pub code: String,
    pub fingerprint: Fingerprint,
    /// Why, for people.
    pub detail: Body,
    pub attempts: u32,
    /// The last attempts, oldest first; empty if they were not recorded or can no longer be read.
    pub tries: Vec<FailedAttempt>,
    /// The original request or event body.
    pub payload: Body,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeadLetterPage {
    /// Oldest first.
    pub letters: Vec<DeadLetter>,
    /// Continue here; `None` at the end.
    pub next: Option<u64>,
}
