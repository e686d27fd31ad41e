//! What is written down: the records of the journal, and their bytes.
//!
//! A record says what happened, with every number already decided (offset, fence, version), so that applying it needs
//! nothing but the records before it. A kind, once released, keeps its number and its fields for ever; a change is a new
//! kind.

pub(crate) mod bytes;
pub(crate) mod fields;

use effectd_contracts::{ActionId, Digest, EventId, ReceiptId, SpaceId, Status, SubjectId, ToolId, TraceId};

use crate::codec::{Hash16, Place, Span};
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

/// A blob, and the epoch that it is sealed under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// The sealing epoch; `None` for bytes in clear.
    pub epoch: Option<u32>,
    /// The bytes, sealed or clear.
    pub blob: Blob,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// An event was appended to a topic.
    Published(EventRecord),
    /// Events were lent to a consumer.
    Leased(LeasedRecord),
    /// A delivery ended.
    Settled(SettledRecord),
    /// Something became a dead letter.
    Lettered(LetterRecord),
    /// A claim was granted.
    Claimed(ClaimRecord),
    /// A claim went to another holder.
    TakenOver {
        /// Whose claim.
        action: Hash16,
        /// The new holder's fence.
        fence: u64,
    },
    /// An action ended.
    Completed(ReceiptRecord),
    /// An action was resolved to a receipt that existed.
    Linked {
        /// Which action.
        action: Hash16,
        /// Digest of its request.
        action_digest: Digest,
        /// Which receipt.
        ordinal: u64,
    },
    /// A family's entry got a value.
    EntryPut {
        /// Which family.
        family: FamilyName,
        /// Which entry.
        key: String,
        /// Its version from now on.
        version: u64,
        /// There was none before.
        created: bool,
        /// Its value.
        value: Payload,
    },
    /// A family's entry is gone.
    EntryDeleted {
        /// Which family.
        family: FamilyName,
        /// Which entry.
        key: String,
    },
    /// A group was moved.
    Sought {
        /// Which topic.
        topic: TopicName,
        /// Which group.
        group: GroupName,
        /// Where it goes on.
        offset: u64,
    },
    /// A group was told how to treat its deliveries.
    Configured {
        /// Which topic.
        topic: TopicName,
        /// Which group.
        group: GroupName,
        /// How.
        options: GroupOptions,
    },
    /// A sealing epoch ended; its key is to be destroyed.
    EpochClosed {
        /// Which epoch.
        epoch: u32,
    },
    /// A dead letter was requeued or purged.
    LetterEnded {
        /// Which letter.
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
    /// A dead letter was sealed again under a newer epoch.
    LetterResealed {
        /// Which letter.
        letter: u64,
        /// When it was set aside.
        at_ms: i64,
        /// What its cause is known by.
        fingerprint: Hash16,
        /// Where its own record lies.
        record: Place,
        /// Its detail.
        detail: Payload,
        /// Its payload.
        payload: Payload,
    },
    /// Receipts and events are kept no longer.
    Expired(ExpiredRecord),
    /// An event that is still to be settled was written forward, out of blocks that are let go.
    EventMoved {
        /// When it was first stored.
        at_ms: i64,
        /// The event.
        event: EventRecord,
    },
    /// An open intent was written forward.
    ClaimMoved {
        /// Whose claim.
        fence: u64,
        /// What is about to happen.
        intent: Payload,
    },
    /// A dead letter was written forward, or sealed again under a newer epoch.
    LetterMoved {
        /// When it was set aside.
        at_ms: i64,
        /// The letter.
        letter: LetterRecord,
    },
    /// These resources, or all that lies beneath them, are not what earlier receipts say.
    Disturbed {
        /// Receipts before this one are meant.
        ordinal: u64,
        /// Hashes of the resources.
        resources: Vec<Hash16>,
    },
}

/// What is kept no longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredRecord {
    /// The first receipt that is kept.
    pub receipts_begin: u64,
    /// Closed epochs before this one need not be remembered: their keys are destroyed.
    pub epochs_before: u32,
    /// Topics, each with the first event that is kept, and whether those before it that somebody has still to settle
    /// are kept all the same.
    pub topics: Vec<(TopicName, u64, bool)>,
}

/// An event that was appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// Which topic.
    pub topic: TopicName,
    /// Its place in the topic.
    pub offset: u64,
    /// Its id.
    pub event_id: EventId,
    /// When it happened, in milliseconds since 1970.
    pub time_ms: i64,
    /// Its trace.
    pub trace_id: TraceId,
    /// The action that it is about.
    pub action_id: Option<ActionId>,
    /// Its body.
    pub body: Payload,
}

/// Events that were lent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedRecord {
    /// Which topic.
    pub topic: TopicName,
    /// Which group.
    pub group: GroupName,
    /// For how long.
    pub ttl_ms: u64,
    /// Which event under which lease.
    pub grants: Vec<(u64, u64)>,
}

/// A delivery that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledRecord {
    /// Which topic.
    pub topic: TopicName,
    /// Which group.
    pub group: GroupName,
    /// Which event.
    pub offset: u64,
    /// How.
    pub how: Ending,
}

/// How a delivery ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// It is done, or a dead letter; a letter has its own record.
    Done,
    /// It is due again after a delay.
    Nacked {
        /// How long.
        delay_ms: u64,
        /// Why.
        detail: Payload,
    },
    /// It is due again after a delay, and was not counted.
    Deferred {
        /// How long.
        delay_ms: u64,
    },
}

/// Something that became a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterRecord {
    /// Its number.
    pub letter: u64,
    /// The topic that it was on.
    pub topic: TopicName,
    /// The group that gave it up, and the event's place; `None` if a completion wrote it.
    pub delivery: Option<(GroupName, u64)>,
    /// The failing receipt, if a completion wrote it.
    pub receipt_id: Option<ReceiptId>,
    /// The action that it is about.
    pub action_id: Option<ActionId>,
    /// A stable word for the cause.
    pub code: String,
    /// What its cause is known by.
    pub fingerprint: Hash16,
    /// How often it was tried.
    pub attempts: u32,
    /// Why, for people.
    pub detail: Payload,
    /// The original request or event body.
    pub payload: Payload,
    /// Each attempt, as [`crate::types::letters::Try`] in JSON; `None` in letters of older versions.
    pub tries: Option<Payload>,
}

/// A claim that was granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRecord {
    /// Which action.
    pub action_id: ActionId,
    /// Digest of the whole request.
    pub action_digest: Digest,
    /// In which space.
    pub space: SpaceId,
    /// Hash of asker and key.
    pub key: Option<Hash16>,
    /// Digest of the parameters.
    pub params_digest: Digest,
    /// Hashes of the resources.
    pub resources: Vec<Hash16>,
    /// What it is held under.
    pub fence: u64,
    /// What is about to happen.
    pub intent: Payload,
}

/// An action that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptRecord {
    /// Its place among all receipts.
    pub ordinal: u64,
    /// Its id.
    pub receipt_id: ReceiptId,
    /// The action.
    pub action_id: ActionId,
    /// Digest of the whole request.
    pub action_digest: Digest,
    /// Which tool.
    pub tool_id: ToolId,
    /// On whose behalf.
    pub subject_id: SubjectId,
    /// In which space.
    pub space_id: SpaceId,
    /// How it ended.
    pub status: Status,
    /// Hash of space and key, by which it is listed.
    pub key: Option<Hash16>,
    /// Digest of the parameters.
    pub params_digest: Digest,
    /// When it ended, in milliseconds since 1970.
    pub time_ms: i64,
    /// Hash of the body, by which a repeated commit is known.
    pub body_hash: Hash16,
    /// Canonical JSON.
    pub body: Blob,
}
