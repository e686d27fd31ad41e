//! Families: small sets of entries under compare-and-swap (holds, grants, switches, breakers).

use crate::names::{FamilyName, TopicName};
use crate::types::events::{Body, NewBody, NewEvent};
use crate::types::groups::LeaseId;

/// What must be true of an entry for a change to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Absent,
    Version(u64),
    Any,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryChange {
    Put(NewBody),
    Delete,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    pub family: FamilyName,
    pub key: String,
    pub expect: Expect,
    pub change: EntryChange,
}

/// Several swaps, and what goes with them. All of it happens, or nothing: that a decision is held and its delivery
/// given back is one step, and so is that a hold is gone and its decision is published again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// The swaps; no entry twice.
    pub swaps: Vec<Swap>,
    /// Deliveries that end with it. If one is no longer held, nothing happens and the answer is `LeaseLost`.
    pub leases: Vec<LeaseId>,
    pub events: Vec<(TopicName, NewEvent)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changed {
    /// The entries' new versions, in the order given; `None` for one that is gone.
    pub versions: Vec<Option<u64>>,
    /// Where the events went, in the order given.
    pub offsets: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    /// Its version: greater than that of any entry of this store that was changed before.
    pub version: u64,
    pub value: Body,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntryPage {
    /// The entries, in the order of their keys.
    pub entries: Vec<Entry>,
    /// The key to go on after; `None` when there are no more.
    pub after: Option<String>,
}
