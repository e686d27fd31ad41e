//! Completions and receipts: how an action ends, and how its end is found again.

use effectd_contracts::{
    ActionId, Digest, IdempotencyKey, Receipt, ReceiptId, SpaceId, Status, SubjectId, Timestamp, ToolId,
};

use crate::error::StoreError;
use crate::names::{ResourceName, TopicName};
use crate::types::claims::Fence;
use crate::types::events::NewEvent;
use crate::types::groups::LeaseId;
use crate::types::letters::NewLetter;

/// A receipt to store: its canonical JSON, and beside it what it is found by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewReceipt {
    /// Its id; committing the same one again is a no-op.
    pub receipt_id: ReceiptId,
    /// The action that it ends. An action has one receipt.
    pub action_id: ActionId,
    /// Digest of the whole request, so that the action's id can be checked against other content later.
    pub action_digest: Digest,
    pub tool_id: ToolId,
    pub subject_id: SubjectId,
    pub space_id: SpaceId,
    /// How it ended. Only `ok` satisfies the key that the action was claimed with.
    pub status: Status,
    /// The idempotency key, if the action has one; receipts are listed by it.
    pub key: Option<IdempotencyKey>,
    /// Digest of the parameters that the key stands for.
    pub params_digest: Digest,
    /// When it ended, by the wall clock.
    pub time: Timestamp,
    /// Canonical JSON, as signed. Stored in clear: it holds digests where the parameters were sensitive.
    pub body: Vec<u8>,
}

/// Another action that is resolved by the same receipt: a parked twin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub action_id: ActionId,
    /// Digest of its whole request.
    pub action_digest: Digest,
    pub receipt_id: ReceiptId,
    /// Deliveries that end with it.
    pub leases: Vec<LeaseId>,
}

/// The end of an action. All of it is written, or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    pub receipt: NewReceipt,
    /// Events that follow it: `ACTION_EXECUTED`.
    pub events: Vec<(TopicName, NewEvent)>,
    /// What the claim is held under; `None` for an action that was never claimed (refused before).
    pub fence: Option<Fence>,
    /// Deliveries that end with it. One that is no longer held is passed over: the fence decides who may commit.
    pub leases: Vec<LeaseId>,
    pub letter: Option<NewLetter>,
    /// What was, or may have been, changed: keys that earlier actions on these resources satisfied are open again.
    pub retire: Vec<ResourceName>,
    /// Where all that lies beneath was, or may have been, changed: a folder that went elsewhere, a space in which a program ran.
    /// Keys that earlier actions satisfied on resources whose names begin with one of these and a `/` are open again.
    pub disturbed: Vec<ResourceName>,
    /// What came where nothing was: earlier actions beneath it are not what is there now, so their keys are open again. Those at
    /// work at the same time lose nothing by it.
    pub appeared: Vec<ResourceName>,
    /// What the key depends on, as in the claim, whether the action has changed it or found it as it was to be.
    pub depends: Vec<ResourceName>,
    /// Parked twins that this receipt resolves too; their `receipt_id` is this receipt's.
    pub links: Vec<Link>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    pub receipt_id: ReceiptId,
    /// It was there before, with the same content; nothing was written.
    pub duplicate: bool,
    /// Where the events went, in the order given; empty for a duplicate.
    pub offsets: Vec<u64>,
    /// Deliveries that were no longer held and were passed over.
    pub leases_lost: Vec<LeaseId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredReceipt {
    /// Its place among all receipts, counted from 0.
    pub ordinal: u64,
    /// When the Store wrote it; never goes back from one receipt to the next.
    pub stored_at: Timestamp,
    /// What was given: the index fields and the signed bytes. The key is in the bytes only.
    pub receipt_id: ReceiptId,
    pub action_id: ActionId,
    /// Digest of the whole request.
    pub action_digest: Digest,
    pub tool_id: ToolId,
    pub subject_id: SubjectId,
    pub space_id: SpaceId,
    pub status: Status,
    pub params_digest: Digest,
    /// When it ended, by the wall clock, to the millisecond.
    pub time: Timestamp,
    /// Canonical JSON, byte for byte as it was given.
    pub body: Vec<u8>,
}

impl StoredReceipt {
    /// The receipt as a value. Signatures are checked over [`StoredReceipt::body`], not over this.
    pub fn parse(&self) -> Result<Receipt, StoreError> {
        serde_json::from_slice(&self.body).map_err(|error| StoreError::Damaged {
            what: format!(
                "receipt {} is not the JSON of a receipt: {error}",
                self.receipt_id
            ),
            advice: "Run `effectd store check`.",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    #[default]
    OldestFirst,
    NewestFirst,
}

/// Which receipts. Every condition that is given must hold; none given means all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReceiptQuery {
    pub tool_id: Option<ToolId>,
    pub subject_id: Option<SubjectId>,
    pub space_id: Option<SpaceId>,
    pub status: Option<Status>,
    /// Of this idempotency key (`space_id` must be given too).
    pub key: Option<IdempotencyKey>,
    /// Stored at this time or later.
    pub since: Option<Timestamp>,
    /// Stored before this time.
    pub until: Option<Timestamp>,
    pub order: Order,
    /// Where the page before ended.
    pub cursor: Option<Cursor>,
    pub limit: usize,
}

/// Where a page ended. Stays valid while receipts are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor(pub u64);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReceiptPage {
    /// The receipts; may be fewer than the limit, or none, although there are more.
    pub receipts: Vec<StoredReceipt>,
    /// Where to go on; `None` when there are no more.
    pub cursor: Option<Cursor>,
}
