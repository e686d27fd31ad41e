//! Completions and receipts: how an action ends, and how receipts are found.

use effectd_contracts::{
    ActionId, Digest, IdempotencyKey, InvocationBrief, OrgId, Principal, Receipt, ReceiptId, SessionId,
    SpaceId, Status, SubjectId, Timestamp, ToolId,
};

use crate::error::StoreError;
use crate::names::{ResourceName, TopicName};
use crate::types::claims::Fence;
use crate::types::dead_letters::NewDeadLetter;
use crate::types::events::NewEvent;
use crate::types::groups::LeaseId;

/// A receipt to store: its canonical JSON, and the values that it is found by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewReceipt {
    /// Committing the same id again is a no-op.
    pub receipt_id: ReceiptId,
    /// An action has one receipt.
    pub action_id: ActionId,
    /// Digest of the whole request: the same id with other content is a conflict.
    pub action_digest: Digest,
    pub tool_id: ToolId,
    pub subject_id: SubjectId,
    pub space_id: SpaceId,
    /// Only `ok` satisfies the key of the claim.
    pub status: Status,
    /// The idempotency key, if the action has one.
    pub key: Option<IdempotencyKey>,
    /// Digest of the parameters.
    pub params_digest: Digest,
    /// When it ended.
    pub time: Timestamp,
    /// Canonical JSON, as signed. Stored in clear: it has digests of sensitive parameters.
    pub body: Vec<u8>,
}

/// Another action that resolves to the same receipt: a parked duplicate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub action_id: ActionId,
    /// Digest of its whole request.
    pub action_digest: Digest,
    pub receipt_id: ReceiptId,
    /// Deliveries that end with it.
    pub leases: Vec<LeaseId>,
}

/// The end of an action, written in one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    pub receipt: NewReceipt,
    /// `ACTION_EXECUTED` and others.
    pub events: Vec<(TopicName, NewEvent)>,
    /// The fence of the claim; `None` for an action that was never claimed.
    pub fence: Option<Fence>,
    /// Deliveries that end with it. Lost leases are ignored: the fence decides who may commit.
    pub leases: Vec<LeaseId>,
    pub letter: Option<NewDeadLetter>,
    /// Resources that were, or may have been, changed: invalidates earlier receipts that depend on them.
    pub retire: Vec<ResourceName>,
    /// Resources below which anything may have changed: a moved folder, a space in which a program ran. Invalidates earlier
    /// receipts of these and of all resources below them.
    pub disturbed: Vec<ResourceName>,
    /// Resources that are new where nothing was: invalidates finished actions on them and below them, but none that runs.
    pub appeared: Vec<ResourceName>,
    /// What the key depends on, as in the claim.
    pub depends: Vec<ResourceName>,
    /// Parked duplicates that resolve to this receipt.
    pub links: Vec<Link>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    pub receipt_id: ReceiptId,
    /// The same receipt existed; nothing was written.
    pub duplicate: bool,
    /// The offsets of the events, in order; empty for a duplicate.
    pub offsets: Vec<u64>,
    /// Leases that were lost.
    pub leases_lost: Vec<LeaseId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredReceipt {
    /// Its number among all receipts, from 0.
    pub ordinal: u64,
    /// When the Store wrote it; never decreases from receipt to receipt.
    pub stored_at: Timestamp,
    pub receipt_id: ReceiptId,
    pub action_id: ActionId,
    /// Digest of the whole request.
    pub action_digest: Digest,
    pub tool_id: ToolId,
    pub subject_id: SubjectId,
    pub space_id: SpaceId,
    pub status: Status,
    pub params_digest: Digest,
    /// When it ended, to the millisecond.
    pub time: Timestamp,
    /// Canonical JSON, byte for byte as committed.
    pub body: Vec<u8>,
}

impl StoredReceipt {
    /// The receipt as a value. Signatures are checked over [`StoredReceipt::body`], not over this.
    pub fn parse(&self) -> Result<Receipt, StoreError> {
        serde_json::from_slice(&self.body).map_err(|error| StoreError::Damaged {
            what: format!("receipt {} is not a valid receipt: {error}", self.receipt_id),
            advice: "run `effectd store check`",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    #[default]
    OldestFirst,
    NewestFirst,
}

/// A query of receipts. All given conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReceiptQuery {
    pub tool_id: Option<ToolId>,
    pub subject_id: Option<SubjectId>,
    pub space_id: Option<SpaceId>,
    pub status: Option<Status>,
    /// The tool's id up to the first dot.
    pub tool_group: Option<String>,
    /// The one that the body names.
    pub principal: Option<Principal>,
    /// The one that the body names.
    pub session: Option<SessionId>,
    /// The one that the body names.
    pub org: Option<OrgId>,
    /// The status as an invocation. Needs `org` too.
    pub invocation: Option<InvocationBrief>,
    /// Of one of these actions, or what one of them was linked to; empty for any.
    pub action_ids: Vec<ActionId>,
    /// Needs `space_id` too.
    pub key: Option<IdempotencyKey>,
    /// Stored at this time or later.
    pub since: Option<Timestamp>,
    /// Stored before this time.
    pub until: Option<Timestamp>,
    pub order: Order,
    /// The cursor of the page before.
    pub cursor: Option<Cursor>,
    pub limit: usize,
}

/// The end of a page. Stays valid while receipts are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor(pub u64);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReceiptPage {
    /// May be fewer than the limit, or none, although there are more.
    pub receipts: Vec<StoredReceipt>,
    /// Continue here; `None` at the end.
    pub cursor: Option<Cursor>,
}
