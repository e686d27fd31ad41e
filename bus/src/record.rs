//! What is written down: the records of the journal, and their bytes.
//!
//! A record says what happened, with every number already decided (offset, fence, version), so that applying it needs
//! nothing but the records before it. A kind, once released, keeps its place in [`Record`] and its fields for ever; a change
//! is a new kind at the end.
//!
//! The bytes of a record are its fields in postcard, with each blob's length in the blob's place, and behind them the blobs in
//! the same order. So a blob is found, and read, without the rest.

use effectd_contracts::{ActionId, Digest, EventId, ReceiptId, SpaceId, Status, SubjectId, ToolId, TraceId};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec::{self, Hash16, Malformed, Span};
use crate::names::{FamilyName, GroupName, TopicName};
use crate::types::groups::GroupOptions;

/// Bytes of a record that are not kept in memory: given when the record is drafted, a place once it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blob {
    /// Still to be written.
    Draft(Vec<u8>),
    /// Written here, within the record's block.
    At(Span),
}

impl Blob {
    /// Where it was written; nowhere for a draft.
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

/// A blob, and the epoch that it is sealed under.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload {
    /// The sealing epoch; `None` for bytes in clear.
    pub epoch: Option<u32>,
    /// The bytes, sealed or clear.
    pub blob: Blob,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    Published {
        topic: TopicName,
        offset: u64,
        event: EventRecord,
    },
    Leased(LeasedRecord),
    Settled(SettledRecord),
    Lettered(LetterRecord),
    Claimed(ClaimRecord),
    TakenOver {
        action: Hash16,
        /// The new holder's fence.
        fence: u64,
    },
    Completed(ReceiptRecord),
    /// An action was resolved to a receipt that existed.
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
        /// There was none before.
        created: bool,
        value: Payload,
    },
    EntryDeleted {
        family: FamilyName,
        key: String,
    },
    /// A group was moved.
    Sought {
        topic: TopicName,
        group: GroupName,
        /// Where it goes on.
        offset: u64,
    },
    Configured {
        topic: TopicName,
        group: GroupName,
        options: GroupOptions,
    },
    /// A sealing epoch ended; its key is to be destroyed.
    EpochClosed {
        epoch: u32,
    },
    /// A dead letter was requeued or purged.
    LetterEnded {
        letter: u64,
        /// The action that may have another receipt from now on.
        reopened: Option<Hash16>,
    },
    /// An entry was added to the log that is neither intent nor receipt.
    Noted {
        /// What it is found by.
        about: Hash16,
        /// Canonical JSON.
        body: Blob,
    },
    Expired(ExpiredRecord),
    /// An event that is still to be settled was written forward, out of blocks that are let go.
    EventMoved {
        /// When it was first stored.
        at_ms: i64,
        topic: TopicName,
        offset: u64,
        event: EventRecord,
    },
    /// An open intent was written forward.
    ClaimMoved {
        fence: u64,
        intent: Payload,
    },
    /// A dead letter was written forward, or sealed again under a newer epoch.
    LetterMoved {
        at_ms: i64,
        letter: LetterRecord,
    },
    /// These resources, or all that lies beneath them, are not what earlier receipts say.
    Disturbed {
        /// Receipts before this one are meant.
        ordinal: u64,
        resources: Vec<Hash16>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiredRecord {
    pub receipts_begin: u64,
    /// Closed epochs before this one need not be remembered: their keys are destroyed.
    pub epochs_before: u32,
    /// Topics, each with the first event that is kept, and whether those before it that somebody has still to settle
    /// are kept all the same.
    pub topics: Vec<(TopicName, u64, bool)>,
}

/// An event, with its body sealed if it is to be sealed.
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
    /// Which event under which lease.
    pub grants: Vec<(u64, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledRecord {
    pub topic: TopicName,
    pub group: GroupName,
    pub offset: u64,
    pub how: Ending,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// It is done, or a dead letter; a letter has its own record.
    Done,
    /// It is due again after a delay.
    Nacked { delay_ms: u64, detail: Payload },
    /// It is due again after a delay, and was not counted.
    Deferred { delay_ms: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterRecord {
    pub letter: u64,
    pub topic: TopicName,
    /// The group that gave it up, and the event's place; `None` if a completion wrote it.
    pub delivery: Option<(GroupName, u64)>,
    /// The failing receipt, if a completion wrote it.
    pub receipt_id: Option<ReceiptId>,
    pub action_id: Option<ActionId>,
    /// A stable word for the cause.
    pub code: String,
    pub fingerprint: Hash16,
    pub attempts: u32,
    /// Why, for people.
    pub detail: Payload,
    /// The original request or event body.
    pub payload: Payload,
    /// Each attempt, as [`crate::types::letters::Try`] in JSON; `None` in letters of older versions.
    pub tries: Option<Payload>,
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
    /// Its place among all receipts.
    pub ordinal: u64,
    pub receipt_id: ReceiptId,
    pub action_id: ActionId,
    #[serde(with = "codec::digest")]
    pub action_digest: Digest,
    pub tool_id: ToolId,
    pub subject_id: SubjectId,
    pub space_id: SpaceId,
    pub status: Status,
    /// Hash of space and key, by which it is listed.
    pub key: Option<Hash16>,
    #[serde(with = "codec::digest")]
    pub params_digest: Digest,
    /// When it ended, in milliseconds since 1970.
    pub time_ms: i64,
    /// Hash of the body, by which a repeated commit is known.
    pub body_hash: Hash16,
    /// Canonical JSON.
    pub body: Blob,
}

impl Record {
    /// Appends the record to its block, and turns its drafts into the places where they now lie. `out` holds the block
    /// from its first byte on.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a block is bounded far below 4 GiB"
    )]
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
        let mut at = u32::try_from(blobs.len())
            .ok()
            .and_then(|len| end.checked_sub(len));
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

    /// In the order in which they lie behind the fields.
    fn blobs(&mut self) -> Vec<&mut Blob> {
        fn letter(letter: &mut LetterRecord) -> Vec<&mut Blob> {
            let LetterRecord {
                detail,
                payload,
                tries,
                ..
            } = letter;
            let all = [Some(detail), Some(payload), tries.as_mut()];
            all.into_iter()
                .flatten()
                .map(|payload| &mut payload.blob)
                .collect()
        }
        match self {
            Record::Published { event, .. } | Record::EventMoved { event, .. } => vec![&mut event.body.blob],
            Record::Settled(settled) => match &mut settled.how {
                Ending::Nacked { detail, .. } => vec![&mut detail.blob],
                Ending::Done | Ending::Deferred { .. } => Vec::new(),
            },
            Record::Lettered(of) | Record::LetterMoved { letter: of, .. } => letter(of),
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
            | Record::LetterEnded { .. }
            | Record::Expired(_)
            | Record::Disturbed { .. } => Vec::new(),
        }
    }
}
