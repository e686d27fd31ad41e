//! Key-value entries under compare-and-swap, in families (holds, grants, switches, breakers).

use crate::names::{FamilyName, TopicName};
use crate::types::events::{Body, NewBody, NewEvent};
use crate::types::groups::LeaseId;

/// The condition of a compare-and-swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Absent,
    Version(u64),
    Any,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvChange {
    Put(NewBody),
    Delete,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    pub family: FamilyName,
    pub key: String,
    pub expect: Expect,
    pub change: KvChange,
}

/// Several swaps, with acks, events and notes in the log, in one atomic step. For example, a decision is held and its delivery ends, or a hold
/// is removed and its decision is published again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// No entry may occur twice.
    pub swaps: Vec<Swap>,
    /// Leases whose deliveries end with the change. If one is lost, nothing happens: `LeaseLost`.
    pub leases: Vec<LeaseId>,
    pub events: Vec<(TopicName, NewEvent)>,
    /// Notes in the Merkle log, in canonical JSON, each with what it is about.
    pub notes: Vec<(String, Vec<u8>)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changed {
    /// The new versions, in the order of the swaps; `None` for a deleted entry.
    pub versions: Vec<Option<u64>>,
    /// The offsets of the events, in order.
    pub offsets: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEntry {
    pub key: String,
    /// Greater than all versions that this store has given before.
    pub version: u64,
    pub value: Body,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KvPage {
    /// In the order of their keys.
    pub entries: Vec<KvEntry>,
    /// Continue after this key; `None` at the end.
    pub after: Option<String>,
}
