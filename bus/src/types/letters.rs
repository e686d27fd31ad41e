//! Dead letters: what could not be done, kept for a human.

use std::fmt;

use effectd_contracts::digest::hex;
use effectd_contracts::{ActionId, ReceiptId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::codec::Hash16;
use crate::names::{GroupName, TopicName};
use crate::types::events::Body;

/// The code under which causes that there was no room for are told together.
pub const OTHER_CAUSES: &str = "other_causes";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Try {
    pub at: Timestamp,
    /// Why it failed, for people; empty where that can no longer be read.
    pub error: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewLetter {
    /// The topic whose decision it was.
    pub topic: TopicName,
    /// A stable word for the cause: `outcome_unknown`.
    pub code: String,
    /// Why, for people. Stored sealed.
    pub detail: String,
    pub attempts: u32,
    /// The attempts one by one, oldest first. The last [`crate::limits::LETTER_TRIES_MAX`] are stored, sealed.
    pub tries: Vec<Try>,
    /// The original request, so that it can be tried again. Stored sealed.
    pub payload: Vec<u8>,
}

/// What failures of one cause have in common; see [`crate::fingerprint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub Hash16);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Half of it tells more causes apart than anyone will ever have, and can be read out.
        f.write_str(&hex(&self.0.0[..8]))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterGroup {
    pub fingerprint: Fingerprint,
    /// The code of the newest.
    pub code: String,
    pub count: u64,
    /// When the first that is still there was set aside.
    pub first: Timestamp,
    pub last: Timestamp,
    pub newest: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requeued {
    /// It was published again, and is a dead letter no more.
    Published { offset: u64 },
    /// It is no dead letter any more: it was requeued or purged before.
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LetterOrigin {
    /// A completion that failed for good.
    Completion { receipt_id: ReceiptId },
    /// An event that a group gave up.
    Delivery { group: GroupName, offset: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLetter {
    /// Its number, counted from 0.
    pub letter: u64,
    pub time: Timestamp,
    pub topic: TopicName,
    pub origin: LetterOrigin,
    /// The action that it is about, if that is known.
    pub action_id: Option<ActionId>,
    /// A stable word for the cause.
    pub code: String,
    pub fingerprint: Fingerprint,
    /// Why, for people.
    pub detail: Body,
    pub attempts: u32,
    /// The last attempts one by one, oldest first; empty if they were not told, or can no longer be read.
    pub tries: Vec<Try>,
    /// The original request or event body.
    pub payload: Body,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LetterPage {
    /// The letters, oldest first.
    pub letters: Vec<StoredLetter>,
    /// Where to go on; `None` when there are no more.
    pub next: Option<u64>,
}
