//! The schema of the index: its keys and their values.
//!
//! | key | value |
//! |---|---|
//! | `e` topic, offset | spans of this event and those after it in the same block ([`BlockSpans`]) |
//! | `i` hash of topic and event id | its offset |
//! | `O` ordinal | spans of this receipt and those after it in the same block ([`BlockSpans`]) |
//! | `R` hash of receipt id | its ordinal, and the hash of its body |
//! | `A` hash of action id | the ordinal of its receipt, and the digest of its request |
//! | `K` hash of asker and key | the ordinal of its `ok` receipt, and the digest of its parameters |
//! | `b` hash of a resource, of its change or of its appearance | its last [`Invalidation`] |
//! | `x` dimension, hash of value, bucket | which of 256 numbers have this value |
//! | `D` dead letter | its location |
//! | `L` index in the log | spans of this log entry and those after it in the same block ([`BlockSpans`]) |
//! | `F` family, key | version of the entry, and location of its value |
//! | `Z` | the first block whose entries are here |

use std::borrow::Cow;
use std::collections::BTreeSet;

use effectd_contracts::{Digest, EventId, IdempotencyKey, InvocationBrief, Outcome, SpaceId, Status};
use serde::{Deserialize, Serialize};

use crate::codec::{self, Hash16, Location, Malformed, Span};
use crate::error::StoreError;
use crate::journal::record::Payload;
use crate::names::{FamilyName, ResourceName, TopicName};
use crate::types::claims::Asker;

/// What receipts, dead letters and notes are listed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dimension {
    Tool,
    Subject,
    Space,
    Status,
    /// Receipts by space and idempotency key.
    Key,
    LetterTopic,
    /// Notes by what they are about.
    Note,
    Principal,
    /// Receipts by the group of their tool, see [`tool_group`].
    ToolGroup,
    Session,
    Org,
    /// Receipts by organisation and status as an invocation.
    OrgStatus,
}

impl Dimension {
    pub(crate) fn byte(self) -> u8 {
        match self {
            Dimension::Tool => 1,
            Dimension::Subject => 2,
            Dimension::Space => 3,
            Dimension::Status => 4,
            Dimension::Key => 5,
            Dimension::LetterTopic => 6,
            Dimension::Note => 7,
            Dimension::Principal => 8,
            Dimension::ToolGroup => 9,
            Dimension::Session => 10,
            Dimension::Org => 11,
            Dimension::OrgStatus => 12,
        }
    }
}

fn named(tag: u8, name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(name.len() + 10);
    key.push(tag);
    key.push(name.len() as u8);
    key.extend_from_slice(name.as_bytes());
    key
}

fn hashed(tag: u8, hash: Hash16) -> Vec<u8> {
    let mut key = Vec::with_capacity(17);
    key.push(tag);
    key.extend_from_slice(&hash.0);
    key
}

fn numbered(tag: u8, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(9);
    key.push(tag);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// Key of the group of events that begins at an offset.
pub fn events(topic: &TopicName, offset: u64) -> Vec<u8> {
    let mut key = named(b'e', topic.as_str());
    key.extend_from_slice(&offset.to_be_bytes());
    key
}

/// Key of the group of receipts that begins at an ordinal.
pub fn receipts(ordinal: u64) -> Vec<u8> {
    numbered(b'O', ordinal)
}

/// Key of the group of log entries that begins at an index.
pub fn log_entries(index: u64) -> Vec<u8> {
    numbered(b'L', index)
}

pub fn event(topic: &TopicName, id: &EventId) -> Vec<u8> {
    hashed(b'i', Hash16::of(&[topic.as_str().as_bytes(), id.as_str().as_bytes()]))
}

pub fn receipt(id: &str) -> Vec<u8> {
    hashed(b'R', Hash16::of(&[id.as_bytes()]))
}

pub fn action_hash(id: &str) -> Hash16 {
    Hash16::of(&[id.as_bytes()])
}

/// Key of an action's receipt.
pub fn action(hash: Hash16) -> Vec<u8> {
    hashed(b'A', hash)
}

/// The hash that receipts with an idempotency key of a space are listed by.
pub fn key_hash(space: &SpaceId, key: &IdempotencyKey) -> Hash16 {
    Hash16::of(&[space.as_str().as_bytes(), key.as_str().as_bytes()])
}

/// The hash that an asker's idempotency key is claimed by.
pub fn asked_hash(asker: &Asker, key: &IdempotencyKey) -> Hash16 {
    Hash16::of(&[
        asker.space.as_str().as_bytes(),
        asker.subject.as_str().as_bytes(),
        asker.principal.as_str().as_bytes(),
        key.as_str().as_bytes(),
    ])
}

/// Key of the receipt of an asker's idempotency key.
pub fn key(hash: Hash16) -> Vec<u8> {
    hashed(b'K', hash)
}

pub fn resource_hash(resource: &ResourceName) -> Hash16 {
    text_hash(resource.as_str())
}

/// The resources and all of their ancestors, each once.
fn with_ancestors(resources: &[ResourceName]) -> BTreeSet<&str> {
    resources.iter().flat_map(ResourceName::with_ancestors).collect()
}

/// Hashes of the resources and their ancestors: an invalidation of everything below one of them also invalidates a running
/// action.
pub fn ancestor_hashes(resources: &[ResourceName]) -> Vec<Hash16> {
    with_ancestors(resources).into_iter().map(text_hash).collect()
}

/// Hashes of what invalidates a receipt of these resources: a change of one of them, or an invalidation of everything
/// below one of them or below an ancestor.
pub fn invalidating_hashes(resources: &[ResourceName]) -> Vec<Hash16> {
    let mut hashes = ancestor_hashes(resources);
    hashes.extend(resources.iter().map(changed_hash));
    hashes.extend(with_ancestors(resources).into_iter().map(appeared_hash));
    hashes
}

/// The hash that stands for a change of the resource itself, and of nothing below it.
pub fn changed_hash(resource: &ResourceName) -> Hash16 {
    Hash16::of(&[b"changed", resource.as_str().as_bytes()])
}

/// The hash that stands for a new resource: invalidates finished actions on it and below it, but none that runs.
pub fn appeared_hash(resource: &str) -> Hash16 {
    Hash16::of(&[b"appeared", resource.as_bytes()])
}

/// Key of a resource's last invalidation.
pub fn invalidation(hash: Hash16) -> Vec<u8> {
    hashed(b'b', hash)
}

pub fn letter(letter: u64) -> Vec<u8> {
    numbered(b'D', letter)
}

/// Prefix of a family's entries.
pub fn family(family: &FamilyName) -> Vec<u8> {
    named(b'F', family.as_str())
}

pub fn entry(name: &FamilyName, entry: &str) -> Vec<u8> {
    let mut key = family(name);
    key.extend_from_slice(entry.as_bytes());
    key
}

/// Prefix of the buckets of one value.
pub fn postings(dimension: Dimension, value: Hash16) -> Vec<u8> {
    let mut key = Vec::with_capacity(26);
    key.extend_from_slice(&[b'x', dimension.byte()]);
    key.extend_from_slice(&value.0);
    key
}

/// The bucket of a number, and its member there.
pub fn posting(dimension: Dimension, value: Hash16, number: u64) -> (Vec<u8>, u8) {
    let mut key = postings(dimension, value);
    key.extend_from_slice(&(number >> 8).to_be_bytes());
    (key, (number & 0xff) as u8)
}

pub fn status_hash(status: Status) -> Hash16 {
    Hash16::of(&[status.as_str().as_bytes()])
}

pub fn text_hash(text: &str) -> Hash16 {
    Hash16::of(&[text.as_bytes()])
}

/// The group of a tool: its id up to the first dot.
pub(crate) fn tool_group(tool: &str) -> &str {
    tool.split_once('.').map_or(tool, |(group, _)| group)
}

/// The hash that receipts of an organisation with this status are listed by.
pub(crate) fn org_status_hash(org: &str, status: InvocationBrief) -> Hash16 {
    Hash16::of(&[org.as_bytes(), status.as_str().as_bytes()])
}

/// What a receipt is listed by that only its body names.
pub type ListedByBody = [Option<(Dimension, Hash16)>; 4];

/// What the body of a receipt is listed by. Records do not have it, so that journals stay as they are.
pub(crate) fn listed_by_body(body: &[u8]) -> ListedByBody {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        principal: Cow<'a, str>,
        session_id: Option<String>,
        org: Option<String>,
        outcome: Option<Outcome>,
    }
    let Ok(named) = serde_json::from_slice::<Named<'_>>(body) else {
        return ListedByBody::default();
    };
    let status = named.outcome.and_then(|outcome| outcome.project().brief).map(|(status, _)| status);
    let org = named.org.as_deref();
    [
        Some((Dimension::Principal, text_hash(&named.principal))),
        named.session_id.map(|session| (Dimension::Session, text_hash(&session))),
        org.map(|org| (Dimension::Org, text_hash(org))),
        org.zip(status).map(|(org, status)| (Dimension::OrgStatus, org_status_hash(org, status))),
    ]
}

/// Key of the entry that names the first block whose entries are in the index.
pub fn cut() -> Vec<u8> {
    vec![b'Z']
}

pub fn cut_value(first: u64) -> Vec<u8> {
    codec::encode(&first)
}

/// The value of an event's id: its offset, and the block that it was moved to, if it was.
pub fn event_value(offset: u64, moved_to: Option<u64>) -> Vec<u8> {
    codec::encode(&(offset, moved_to))
}

/// Reads an [`event_value`]: the offset, and whether the event was moved.
pub(crate) fn read_event_value(bytes: &[u8]) -> Result<(u64, bool), StoreError> {
    let (offset, moved_to): (u64, Option<u64>) = codec::decode(bytes).map_err(malformed)?;
    Ok((offset, moved_to.is_some()))
}

/// A value of the index that does not decode.
pub(crate) fn malformed(Malformed(what): Malformed) -> StoreError {
    StoreError::index_unreadable(what)
}

/// The last invalidation of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invalidation {
    /// Receipts before this one are no longer valid.
    pub ordinal: u64,
    /// Claims with a smaller fence began before the invalidation.
    pub fence: u64,
}

/// Consecutive records of one block: events of a topic, receipts, or entries of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockSpans {
    pub at_ms: i64,
    pub seq: u64,
    /// Bytes of all records of this sort before these, expired ones too: gives the size of any suffix without reading it.
    pub before: u64,
    pub spans: Vec<Span>,
}

impl BlockSpans {
    /// Bytes of all records up to the last of these.
    pub fn after(&self) -> u64 {
        let own: u64 = self.spans.iter().map(|span| u64::from(span.len)).sum();
        self.before + own
    }
}

/// The receipt of an action or a key, and the digest of its request or parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolution {
    pub ordinal: u64,
    #[serde(with = "codec::digest")]
    pub digest: Digest,
}

/// The location of a payload, and its sealing epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// `None` for bytes in clear.
    pub epoch: Option<u32>,
    pub location: Location,
}

impl Stored {
    pub fn of(seq: u64, payload: &Payload) -> Self {
        Stored { epoch: payload.epoch, location: Location { seq, span: payload.blob.span() } }
    }
}

/// Location of a dead letter. Detail and payload move when they are sealed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetterAt {
    pub at_ms: i64,
    pub fingerprint: Hash16,
    pub record: Location,
    pub detail: Stored,
    pub payload: Stored,
    pub tries: Option<Stored>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryAt {
    pub version: u64,
    pub value: Stored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptAt {
    pub ordinal: u64,
    /// Hash of the body.
    pub body: Hash16,
}

macro_rules! stored {
    ($($name:ident),*) => {
        $(impl $name {
            pub fn encode(&self) -> Vec<u8> {
                codec::encode(self)
            }

            pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
                codec::decode(bytes).map_err(malformed)
            }
        })*
    };
}

stored!(Invalidation, BlockSpans, Resolution, DeadLetterAt, EntryAt, ReceiptAt);
