//! Claims: the right to carry out an action, and its recorded intent.

use std::time::Duration;

use effectd_contracts::{
    ActionId, Digest, IdempotencyKey, Principal, ReceiptId, SpaceId, SubjectId, Timestamp,
};

use crate::names::{GroupName, ResourceName, TopicName};
use crate::types::events::{Body, NewEvent};
use crate::types::groups::LeaseId;

/// A fencing token: names the holder of a claim. A later holder has a greater one, and a commit under an older one is
/// refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

/// Who asks, and where. An idempotency key belongs to its asker: nobody gets the receipt of another asker, and nobody can
/// block another asker's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
    pub space: SpaceId,
    pub subject: SubjectId,
    /// The authenticated identity.
    pub principal: Principal,
}

/// A request to carry out an action, with everything that its settlement needs if the process dies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub action_id: ActionId,
    /// Digest of the whole request: the same id with other content is a conflict.
    pub action_digest: Digest,
    pub asker: Asker,
    /// The idempotency key; an action without one is a duplicate of no other action.
    pub key: Option<IdempotencyKey>,
    /// Digest of the parameters: the same key with other parameters is a conflict.
    pub params_digest: Digest,
    /// What is about to happen, in the pipeline's own encoding. Stored sealed.
    pub intent: Vec<u8>,
    /// What the effect changes. A resource has one claim at a time.
    pub resources: Vec<ResourceName>,
    /// What the key depends on: a change of one of these, or an invalidation of everything below an ancestor, invalidates
    /// the receipt. A key without dependencies is valid as long as its receipt is kept.
    pub depends: Vec<ResourceName>,
    /// A receipt of this key that no longer describes what it changed: the key does not answer with it.
    pub stale: Option<ReceiptId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// Granted, and the intent is durable: carry out the action, and commit under this fence.
    New { fence: Fence },
    /// Another action of the same asker with the same key and parameters is in progress: wait for its receipt.
    InFlight { action_id: ActionId },
    /// Another action changes one of the resources: try again when it has ended.
    ResourceBusy { action_id: ActionId },
    /// Done before, by this action or by another of the same asker with the same key.
    Done { receipt_id: ReceiptId },
    /// This action has an open intent: it began before, and its outcome must be settled. To do so,
    /// [`take_over`](crate::Store::take_over) under this fence.
    OwnIntent(OpenIntent),
    /// The action id, or the asker's key, was used before with other content.
    Conflict { what: ConflictOf },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConflictOf {
    Action,
    Key,
}

/// What a claim on a key would find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// Nothing: a claim would be granted, unless a resource is busy.
    Unknown,
    /// Another action with the same key and parameters is in progress.
    InFlight {
        action_id: ActionId,
    },
    Done {
        receipt_id: ReceiptId,
    },
    /// The key was used before with other parameters.
    Conflict,
}

/// An intent without an outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenIntent {
    pub action_id: ActionId,
    /// Digest of the whole request.
    pub action_digest: Digest,
    pub fence: Fence,
    pub space: SpaceId,
    pub params_digest: Digest,
    /// When it was claimed.
    pub since: Timestamp,
    /// An earlier process holds it, so nobody works on it now.
    pub orphaned: bool,
    pub intent: Body,
}

/// A decision that is published, leased and claimed in one block, for `exec`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    pub topic: TopicName,
    /// The group that its delivery is counted for.
    pub group: GroupName,
    /// How long the caller holds the delivery.
    pub ttl: Duration,
    pub event: NewEvent,
    pub claim: Claim,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admitted {
    /// Decision, delivery, claim and intent are durable.
    Granted {
        fence: Fence,
        /// The delivery that the commit ends.
        lease_id: LeaseId,
        offset: u64,
    },
    /// Nothing was written: the claim was not granted.
    NotGranted(ClaimAnswer),
    /// Nothing was written: the decision was published before, and its group will deliver it.
    AlreadyPublished { offset: u64 },
}
