//! The records of the journal, and their bytes.
//!
//! A record states what happened, with every number decided (offset, fence, version), so that applying it needs only the
//! records before it. A released kind keeps its position in [`Record`] and its fields forever; a change is a new kind at
//! the end.
//!
//! The bytes of a record are its fields in postcard, with the length in place of each blob, followed by the blobs in the
//! same order. So a blob can be read without the rest.

use effectd_contracts::{
    ActionId, Code, Digest, EventId, ReceiptId, SpaceId, Status, SubjectId, ToolId, TraceId,
};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec::{self, Hash16, Malformed, Span};
use crate::names::{FamilyName, GroupName, TopicName};
use crate::types::groups::GroupOptions;

/// Bytes of a record that do not stay in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blob {
    /// Not written yet.
    Draft(Vec<u8>),
    /// Written to this span of the record's block.
    At(Span),
}

impl Blob {
    /// Its span in the block; empty for a draft.
    pub fn span(&self) -> Span {
        match self {
            Blob::At(span) => *span,
            Blob::Draft(_) => Span::default(),
        }
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let len = match self {
            Blob::Draft(bytes) => u32::try_from(bytes.len()).map_err(S::Error::custom)?,
            Blob::At(span) => span.len,
        };
        len.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        u32::deserialize(from).map(|len| Blob::At(Span { at: 0, len }))
    }
}

/// A blob, and its sealing epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload {
    /// `None` for bytes in clear.
    pub epoch: Option<u32>,
    pub blob: Blob,
}

impl Payload {
    pub(crate) fn clear(bytes: Vec<u8>) -> Self {
        Payload { epoch: None, blob: Blob::Draft(bytes) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    Published {
        topic: TopicName,
        offset: u64,
        event: EventRecord,
    },
    Leased(LeasedRecord),
    Acknowledged(AcknowledgedRecord),
    DeadLettered(DeadLetterRecord),
    Claimed(ClaimRecord),
    TakenOver {
        action: Hash16,
        /// The new holder's fence.
        fence: u64,
    },
    Completed(ReceiptRecord),
    /// An action resolves to an existing receipt.
    Linked {
        action: Hash16,
        #[serde(with = "codec::digest")]
        action_digest: Digest,
        ordinal: u64,
    },
    EntryPut {
        family: FamilyName,
        key: String,
        version: u64,
        /// The key had no entry before.
        created: bool,
        value: Payload,
    },
    EntryDeleted {
        family: FamilyName,
        key: String,
    },
    /// A group was moved to another offset.
    Sought {
        topic: TopicName,
        group: GroupName,
        offset: u64,
    },
    Configured {
        topic: TopicName,
        group: GroupName,
        options: GroupOptions,
    },
    /// A sealing epoch ended; its key must be destroyed.
    EpochClosed {
        epoch: u32,
    },
    /// A dead letter was requeued or purged.
    DeadLetterEnded {
        letter: u64,
        /// The action that may now get another receipt.
        reopened: Option<Hash16>,
    },
    /// A note was added to the Merkle log.
    Noted {
        /// The hash that notes are listed by.
        about: Hash16,
        /// Canonical JSON.
        body: Blob,
    },
    Expired(ExpiredRecord),
    /// An unacknowledged event was copied out of blocks that retention drops.
    EventMoved {
        /// When it was first stored.
        at_ms: i64,
        topic: TopicName,
        offset: u64,
        event: EventRecord,
    },
    /// An open intent was copied out of blocks that retention drops.
    ClaimMoved {
        fence: u64,
        intent: Payload,
    },
    /// A dead letter was copied out of blocks that retention drops, or sealed again under a newer epoch.
    DeadLetterMoved {
        at_ms: i64,
        letter: DeadLetterRecord,
    },
    /// These resources, or everything below them, may have changed since the receipts before `ordinal`.
    Invalidated {
        ordinal: u64,
        resources: Vec<Hash16>,
    },
    /// Only salvage writes it.
    Lost(LostRecord),
    /// A group was removed, with its leases and delivery counts.
    GroupRemoved {
        topic: TopicName,
        group: GroupName,
    },
}

/// What salvage knows about lost records. Numbers are never given out a second time, so each counter goes on after them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LostRecord {
    /// The numbers that follow the lost ones; a counter that is further stays as it is.
    pub next_ordinal: u64,
    pub next_fence: u64,
    pub next_lease: u64,
    pub next_letter: u64,
    /// The index of the first of `leaves` in the Merkle log.
    pub log_from: u64,
    /// The hashes of lost entries of the Merkle log.
    pub leaves: Vec<[u8; 32]>,
    /// Deliveries that ended, although their leases are lost.
    pub acknowledged: Vec<(TopicName, GroupName, u64)>,
    /// Hashes of asker and key whose claims are lost, each with the ordinal of its `ok` receipt and the digest of its parameters.
    pub keys: Vec<(Hash16, u64, [u8; 32])>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiredRecord {
    pub receipts_begin: u64,
    /// All epochs before this one are closed and their keys destroyed.
    pub epochs_before: u32,
    /// Topics, each with the first kept event, and whether unacknowledged events before it are kept too.
    pub topics: Vec<(TopicName, u64, bool)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord {
    pub event_id: EventId,
    /// When it happened, in milliseconds since 1970.
    pub time_ms: i64,
    pub trace_id: TraceId,
    pub action_id: Option<ActionId>,
    pub body: Payload,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasedRecord {
    pub topic: TopicName,
    pub group: GroupName,
    pub ttl_ms: u64,
    /// Offsets with their leases.
    pub grants: Vec<(u64, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcknowledgedRecord {
    pub topic: TopicName,
    pub group: GroupName,
    pub offset: u64,
    pub how: Ending,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Processed, or dead-lettered; a dead letter has its own record.
    Done,
    /// Due again after a delay.
    Nacked { delay_ms: u64, detail: Payload },
    /// Due again after a delay; the delivery does not count.
    Deferred { delay_ms: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetterRecord {
    pub letter: u64,
    pub topic: TopicName,
    /// The group and offset of the event; `None` if a completion wrote it.
    pub delivery: Option<(GroupName, u64)>,
    /// The failing receipt, if a completion wrote it.
    pub receipt_id: Option<ReceiptId>,
    pub action_id: Option<ActionId>,
    pub code: String,
    pub fingerprint: Hash16,
    pub attempts: u32,
    pub detail: Payload,
    /// The original request or event body.
    pub payload: Payload,
    /// JSON of [`crate::types::dead_letters::FailedAttempt`]s; `None` if none were recorded.
    pub tries: Option<Payload>,
}

impl DeadLetterRecord {
    /// Whether the action waits for a review of its content, and has not failed.
    pub fn is_quarantined(&self) -> bool {
        self.code == Code::SafetyQuarantined.as_str()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    pub action_id: ActionId,
    #[serde(with = "codec::digest")]
    pub action_digest: Digest,
    pub space: SpaceId,
    /// Hash of asker and key.
    pub key: Option<Hash16>,
    #[serde(with = "codec::digest")]
    pub params_digest: Digest,
    pub resources: Vec<Hash16>,
    pub fence: u64,
    pub intent: Payload,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptRecord {
    /// Its number among all receipts.
    pub ordinal: u64,
    pub receipt_id: ReceiptId,
    pub action_id: ActionId,
    #[serde(with = "codec::digest")]
    pub action_digest: Digest,
    pub tool_id: ToolId,
    pub subject_id: SubjectId,
    pub space_id: SpaceId,
    pub status: Status,
    /// Hash of space and key, by which receipts are listed.
    pub key: Option<Hash16>,
    #[serde(with = "codec::digest")]
    pub params_digest: Digest,
    /// When it ended, in milliseconds since 1970.
    pub time_ms: i64,
    /// Hash of the body, to recognise a repeated commit.
    pub body_hash: Hash16,
    /// Canonical JSON.
    pub body: Blob,
}

/// An entry of the Merkle log.
pub(crate) enum Logged<'a> {
    Intent(&'a ClaimRecord),
    /// The canonical JSON in this span of the block.
    Body(Span),
}

impl Record {
    /// Appends the record to its block `out`, and turns its drafts into spans.
    #[expect(clippy::cast_possible_truncation, reason = "a block is bounded far below 4 GiB")]
    pub fn encode(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&codec::encode(self));
        for blob in self.blobs() {
            if let Blob::Draft(bytes) = blob {
                let (at, len) = (out.len() as u32, bytes.len() as u32);
                out.extend_from_slice(bytes);
                *blob = Blob::At(Span { at, len });
            }
        }
    }

    pub fn decode(bytes: &[u8], span: Span) -> Result<Self, Malformed> {
        let (mut record, blobs): (Record, _) = codec::decode_first(bytes)?;
        let end = span.at.saturating_add(span.len);
        let mut at = u32::try_from(blobs.len()).ok().and_then(|len| end.checked_sub(len));
        for blob in record.blobs() {
            let (Some(begin), Span { len, .. }) = (at, blob.span()) else {
                break;
            };
            *blob = Blob::At(Span { at: begin, len });
            at = begin.checked_add(len);
        }
        if at != Some(end) {
            return Err(Malformed("a record of the wrong length"));
        }
        Ok(record)
    }

    /// The record with the bytes of its blobs, which stand in `block`: for another block.
    pub(crate) fn detached(mut self, block: &[u8]) -> Self {
        for blob in self.blobs() {
            if let Blob::At(span) = blob {
                *blob = Blob::Draft(span.of(block).unwrap_or_default().to_vec());
            }
        }
        self
    }

    /// What the record adds to the Merkle log.
    pub(crate) fn logged(&self) -> Option<Logged<'_>> {
        match self {
            Record::Claimed(claim) => Some(Logged::Intent(claim)),
            Record::Completed(receipt) => Some(Logged::Body(receipt.body.span())),
            Record::Noted { body, .. } => Some(Logged::Body(body.span())),
            Record::Published { .. }
            | Record::Leased(_)
            | Record::Acknowledged(_)
            | Record::DeadLettered(_)
            | Record::TakenOver { .. }
            | Record::Linked { .. }
            | Record::EntryPut { .. }
            | Record::EntryDeleted { .. }
            | Record::Sought { .. }
            | Record::Configured { .. }
            | Record::EpochClosed { .. }
            | Record::DeadLetterEnded { .. }
            | Record::Expired(_)
            | Record::EventMoved { .. }
            | Record::ClaimMoved { .. }
            | Record::DeadLetterMoved { .. }
            | Record::Invalidated { .. }
            | Record::Lost(_)
            | Record::GroupRemoved { .. } => None,
        }
    }

    /// The blobs of the record, in the order of their bytes.
    fn blobs(&mut self) -> Vec<&mut Blob> {
        match self {
            Record::Published { event, .. } | Record::EventMoved { event, .. } => vec![&mut event.body.blob],
            Record::Acknowledged(acknowledged) => match &mut acknowledged.how {
                Ending::Nacked { detail, .. } => vec![&mut detail.blob],
                Ending::Done | Ending::Deferred { .. } => Vec::new(),
            },
            Record::DeadLettered(letter) | Record::DeadLetterMoved { letter, .. } => {
                let mut blobs = vec![&mut letter.detail.blob, &mut letter.payload.blob];
                blobs.extend(letter.tries.as_mut().map(|tries| &mut tries.blob));
                blobs
            }
            Record::Claimed(claim) => vec![&mut claim.intent.blob],
            Record::ClaimMoved { intent, .. } => vec![&mut intent.blob],
            Record::Completed(receipt) => vec![&mut receipt.body],
            Record::EntryPut { value, .. } => vec![&mut value.blob],
            Record::Noted { body, .. } => vec![body],
            Record::Leased(_)
            | Record::TakenOver { .. }
            | Record::Linked { .. }
            | Record::EntryDeleted { .. }
            | Record::Sought { .. }
            | Record::Configured { .. }
            | Record::EpochClosed { .. }
            | Record::DeadLetterEnded { .. }
            | Record::Expired(_)
            | Record::Invalidated { .. }
            | Record::Lost(_)
            | Record::GroupRemoved { .. } => Vec::new(),
        }
    }
}
