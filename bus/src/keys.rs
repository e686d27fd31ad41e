//! The index: which keys there are, and what stands under them.
//!
//! | key | value |
//! |---|---|
//! | `e` topic, offset | a run: where this event and those after it in the same block lie |
//! | `i` hash of topic and event id | its offset |
//! | `O` ordinal | a run: where this receipt and those after it in the same block lie |
//! | `R` hash of receipt id | its ordinal, and the hash of its body |
//! | `A` hash of action id | the ordinal that it resolves to, and the digest of its request |
//! | `K` hash of asker and key | the ordinal that satisfies it, and the digest of its parameters |
//! | `b` hash of resource | after which receipts and claims it was last changed, or all beneath it was last disturbed |
//! | `x` dimension, hash of value, bucket | which of 256 ordinals have this value |
//! | `D` letter | where the dead letter lies |
//! | `L` place in the log | a run: where this entry of the log and those after it in the same block lie |
//! | `F` family, key | version of the entry, and where its value lies |
//! | `Z` | the first block whose entries are here: those of blocks before it were taken out |

use effectd_contracts::{Digest, EventId, IdempotencyKey, SpaceId, Status};

use serde::{Deserialize, Serialize};

use crate::codec::{self, Hash16, Malformed, Place, Span};
use crate::names::{FamilyName, TopicName};
use crate::record::Payload;
use crate::types::claims::Asker;

/// What receipts and letters are listed by.
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

/// Key of the run that begins at an offset.
pub fn run(topic: &TopicName, offset: u64) -> Vec<u8> {
    let mut key = named(b'e', topic.as_str());
    key.extend_from_slice(&offset.to_be_bytes());
    key
}

/// Key of the run that begins at an ordinal.
pub fn receipt_run(ordinal: u64) -> Vec<u8> {
    numbered(b'O', ordinal)
}

/// Key of the run that begins at a place in the log.
pub fn log_run(index: u64) -> Vec<u8> {
    numbered(b'L', index)
}

pub fn event(topic: &TopicName, id: &EventId) -> Vec<u8> {
    hashed(
        b'i',
        Hash16::of(&[topic.as_str().as_bytes(), id.as_str().as_bytes()]),
    )
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

/// The hash that an asker's idempotency key is claimed and found by.
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

/// Key of when all beneath a resource was last disturbed.
pub fn beneath(hash: Hash16) -> Vec<u8> {
    hashed(b'b', hash)
}

pub fn letter(letter: u64) -> Vec<u8> {
    numbered(b'D', letter)
}

/// Beginning of the keys of a family's entries.
pub fn family(family: &FamilyName) -> Vec<u8> {
    named(b'F', family.as_str())
}

pub fn entry(name: &FamilyName, entry: &str) -> Vec<u8> {
    let mut key = family(name);
    key.extend_from_slice(entry.as_bytes());
    key
}

/// Beginning of the buckets of one value.
pub fn postings(dimension: Dimension, value: Hash16) -> Vec<u8> {
    let mut key = Vec::with_capacity(26);
    key.extend_from_slice(&[b'x', dimension.byte()]);
    key.extend_from_slice(&value.0);
    key
}

/// The bucket that a number is in, and its place there.
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

/// Key of the first block whose entries are here.
pub fn cut() -> Vec<u8> {
    vec![b'Z']
}

pub fn cut_value(first: u64) -> Vec<u8> {
    codec::encode(&first)
}

/// Where an event's id leads: its offset, and the block that the event was written forward to, if it was.
pub fn event_value(offset: u64, moved_to: Option<u64>) -> Vec<u8> {
    codec::encode(&(offset, moved_to))
}

/// Reads an [`event_value`]: the offset, and whether the event was written forward.
pub fn read_event_value(bytes: &[u8]) -> Result<(u64, bool), Malformed> {
    let (offset, moved_to): (u64, Option<u64>) = codec::decode(bytes)?;
    Ok((offset, moved_to.is_some()))
}

/// When all beneath a resource was last disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disturbance {
    /// Receipts before this one do not tell any more what is there.
    pub ordinal: u64,
    /// Claims with a smaller fence were open then, or had been.
    pub fence: u64,
}

/// Where the records of one block that follow each other in a topic lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub at_ms: i64,
    pub seq: u64,
    /// Bytes of all records before these, since the topic began: how much there is after any of them can be told
    /// without reading the rest.
    pub before: u64,
    /// The records, in order.
    pub spans: Vec<Span>,
}

impl Run {
    /// Bytes of all records up to the last of these.
    pub fn after(&self) -> u64 {
        let own: u64 = self.spans.iter().map(|span| u64::from(span.len)).sum();
        self.before + own
    }
}

/// The receipt that an action or a key resolves to, and the digest it holds for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolution {
    pub ordinal: u64,
    /// Digest of the request or the parameters.
    #[serde(with = "codec::digest")]
    pub digest: Digest,
}

/// Where a payload lies, and what it is sealed under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// The sealing epoch; `None` for bytes in clear.
    pub epoch: Option<u32>,
    pub place: Place,
}

impl Stored {
    pub fn of(seq: u64, payload: &Payload) -> Self {
        Stored {
            epoch: payload.epoch,
            place: Place {
                seq,
                span: payload.blob.span(),
            },
        }
    }
}

/// Where a dead letter lies. Detail and payload move when they are sealed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterAt {
    pub at_ms: i64,
    pub fingerprint: Hash16,
    pub record: Place,
    pub detail: Stored,
    pub payload: Stored,
    /// Its attempts, one by one, if they were told.
    pub tries: Option<Stored>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryAt {
    pub version: u64,
    pub value: Stored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptAt {
    /// Its place among all receipts.
    pub ordinal: u64,
    /// Hash of its body.
    pub body: Hash16,
}

/// How far the index has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub seq: u64,
    pub checksum: u32,
}

macro_rules! stored {
    ($($name:ident),*) => {
        $(impl $name {
            /// Its bytes in the index.
            pub fn encode(&self) -> Vec<u8> {
                codec::encode(self)
            }

            /// Reads its bytes.
            pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
                codec::decode(bytes)
            }
        })*
    };
}

stored!(Disturbance, Run, Resolution, LetterAt, EntryAt, ReceiptAt);
