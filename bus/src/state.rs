//! The working state: a pure function of the records of the journal.
//!
//! Applying a record reads no clock, no disk and no index, so the same journal gives the same state in every engine, on
//! every machine, and after every crash.

pub mod apply;
pub mod checkpoint;
pub mod groups;
pub(crate) mod replay;
pub mod snapshot;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use effectd_contracts::merkle::Frontier;
use effectd_contracts::{ActionId, Digest, Monotonic, SpaceId};
use serde::{Deserialize, Serialize};

use crate::codec::{self, Hash16, Span};
use crate::index::memtable::Memtable;
use crate::index::schema::{self, ListedByBody, Stored};
use crate::journal::record::Record;
use crate::merkle_log::leaf_of;
use crate::names::{GroupName, TopicName};
use crate::state::groups::Group;

/// The times that a record is applied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct When {
    /// The block's time.
    pub at_ms: i64,
    /// Now, by the wall clock.
    pub now_ms: i64,
    /// Now, by the monotonic clock.
    pub now: Monotonic,
    /// An earlier process wrote the record: its leases have expired, its claims have no holder.
    pub replay: bool,
}

/// What follows from the bodies in a record, which applying it does not read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Derived {
    /// The leaf that the record adds to the Merkle log.
    pub leaf: Option<Digest>,
    /// What a receipt is listed by that only its body names.
    pub listed: ListedByBody,
}

impl Derived {
    /// Of a record in this block.
    pub fn of(record: &Record, block: &[u8]) -> Self {
        let mut derived = Self { leaf: leaf_of(record, block), ..Self::default() };
        if let Record::Completed(receipt) = record {
            derived.listed = receipt.body.span().of(block).map(schema::listed_by_body).unwrap_or_default();
        }
        derived
    }

    /// Of a record other than a receipt.
    pub(crate) fn leaf(leaf: Digest) -> Self {
        Self { leaf: Some(leaf), ..Self::default() }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    /// The offset of the next event.
    pub end: u64,
    /// The first kept event.
    pub begin: u64,
    /// Unacknowledged events before `begin` are kept too.
    pub keeps_unacknowledged: bool,
    /// Bytes of all events ever published.
    pub bytes: u64,
    /// For every open epoch, the offset after its last sealed event.
    pub sealed: BTreeMap<u32, u64>,
}

/// A claim without an outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenClaim {
    pub action_id: ActionId,
    #[serde(with = "codec::digest")]
    pub action_digest: Digest,
    pub space: SpaceId,
    /// Hash of asker and key.
    pub key: Option<Hash16>,
    #[serde(with = "codec::digest")]
    pub params_digest: Digest,
    pub resources: Vec<Hash16>,
    pub since_ms: i64,
    /// Its holder was an earlier process.
    #[serde(skip, default = "orphaned")]
    pub orphaned: bool,
    pub intent: Stored,
}

/// A restored claim has no holder.
fn orphaned() -> bool {
    true
}

/// Topic, group and offset of a lease.
pub type LeaseOf = (TopicName, GroupName, u64);

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct State {
    pub next_lease: u64,
    pub next_fence: u64,
    pub next_version: u64,
    pub next_ordinal: u64,
    pub next_letter: u64,
    pub entries: u64,
    pub receipts_begin: u64,
    /// Bytes of all receipts ever committed.
    pub receipt_bytes: u64,
    /// All epochs before this one are closed.
    pub epochs_before: u32,
    pub topics: BTreeMap<TopicName, Topic>,
    pub groups: BTreeMap<(TopicName, GroupName), Group>,
    /// Closed epochs from `epochs_before` on: their keys are destroyed, or must be.
    pub closed_epochs: BTreeSet<u32>,
    /// The right edge of the Merkle log.
    #[serde(with = "snapshot::frontier")]
    pub log: Frontier,
    /// Leases of this process.
    #[serde(skip)]
    pub leases: HashMap<u64, LeaseOf>,
    claims: BTreeMap<u64, OpenClaim>,
    #[serde(skip)]
    fences: HashMap<Hash16, u64>,
    #[serde(skip)]
    open_keys: HashMap<Hash16, u64>,
    #[serde(skip)]
    open_resources: HashMap<Hash16, u64>,
    #[serde(skip)]
    events: BTreeMap<TopicName, (u64, Vec<Span>)>,
    #[serde(skip)]
    receipts: Option<(u64, Vec<Span>)>,
    #[serde(skip)]
    log_entries: Option<(u64, Vec<Span>)>,
}

/// What a block changes outside the state, to be made visible when the block is durable.
#[derive(Debug, Default)]
pub struct BlockChanges {
    pub index: Memtable,
    /// Keys that were claimed.
    pub opened: Vec<(Hash16, Digest, ActionId)>,
    /// Keys whose claims ended.
    pub closed: Vec<Hash16>,
    /// Topics with new events or returned deliveries.
    pub changed: BTreeSet<TopicName>,
    /// Topics with returned deliveries, or with a moved group.
    pub returned: BTreeSet<TopicName>,
    pub letters_begun: u64,
    /// The new dead letters of quarantined actions.
    pub letters_quarantined: Vec<u64>,
    pub letters_ended: Vec<u64>,
    /// The first index of the new log entries, and their leaves.
    pub leaves: Option<(u64, Vec<Digest>)>,
    /// Sealing epochs whose keys must be destroyed now.
    pub closed_epochs: Vec<u32>,
    pub expired: bool,
}

impl State {
    /// All claims without an outcome, by fence.
    pub fn claims(&self) -> &BTreeMap<u64, OpenClaim> {
        &self.claims
    }

    /// The open claim of an action, and its fence.
    pub fn claim_of(&self, action: Hash16) -> Option<(u64, &OpenClaim)> {
        let fence = *self.fences.get(&action)?;
        Some((fence, self.claims.get(&fence)?))
    }

    pub fn claim_on_key(&self, key: Hash16) -> Option<&OpenClaim> {
        self.claims.get(self.open_keys.get(&key)?)
    }

    pub fn claim_on_resource(&self, resource: Hash16) -> Option<&OpenClaim> {
        self.claims.get(self.open_resources.get(&resource)?)
    }

    pub fn end(&self, topic: &TopicName) -> u64 {
        self.topics.get(topic).map_or(0, |topic| topic.end)
    }

    pub fn begin(&self, topic: &TopicName) -> u64 {
        self.topics.get(topic).map_or(0, |topic| topic.begin)
    }

    /// Whether an epoch's key is destroyed, or about to be.
    pub fn is_closed(&self, epoch: u32) -> bool {
        epoch < self.epochs_before || self.closed_epochs.contains(&epoch)
    }

    /// Whether some group has not acknowledged an event. Without a group, every event is unacknowledged.
    pub fn is_unacknowledged(&self, topic: &TopicName, offset: u64) -> bool {
        let mut groups = self.groups_of(topic).peekable();
        groups.peek().is_none() || groups.any(|group| group.is_open(offset))
    }

    pub fn groups_of<'a>(&'a self, topic: &'a TopicName) -> impl Iterator<Item = &'a Group> {
        let of_topic = self.groups.iter().filter(move |((of, _), _)| of == topic);
        of_topic.map(|(_, group)| group)
    }

    /// A group; a new one begins where its topic does.
    fn group_mut(&mut self, topic: &TopicName, name: &GroupName) -> &mut Group {
        let begin = self.begin(topic);
        self.groups.entry((topic.clone(), name.clone())).or_insert_with(|| Group::starting(begin))
    }

    /// The first event of a topic in the current block.
    pub fn first_in_block(&self, topic: &TopicName) -> Option<u64> {
        self.events.get(topic).map(|(first, _)| *first)
    }

    fn open_claim(&mut self, action: Hash16, fence: u64, claim: OpenClaim) {
        self.fences.insert(action, fence);
        if let Some(key) = claim.key {
            self.open_keys.insert(key, fence);
        }
        for resource in &claim.resources {
            self.open_resources.insert(*resource, fence);
        }
        self.claims.insert(fence, claim);
    }

    fn close_claim(&mut self, action: Hash16) -> Option<(u64, OpenClaim)> {
        let fence = self.fences.remove(&action)?;
        let claim = self.claims.remove(&fence)?;
        if let Some(key) = claim.key {
            self.open_keys.remove(&key);
        }
        for resource in &claim.resources {
            self.open_resources.remove(resource);
        }
        Some((fence, claim))
    }
}
