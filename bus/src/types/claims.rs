//! Claims: who may carry out an action, and the journal of what is about to happen.

use std::time::Duration;

use effectd_contracts::{
    ActionId, Digest, IdempotencyKey, Principal, ReceiptId, SpaceId, SubjectId, Timestamp,
};

use crate::names::{GroupName, ResourceName, TopicName};
use crate::types::events::{Body, NewEvent};
use crate::types::groups::LeaseId;

/// Names the holder of a claim. A later holder has a greater one, and a commit under an older one is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

/// Who asks, and where. A key means something to its asker alone: nobody is answered with what another asker did, and nobody
/// can take a key from another asker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
    pub space: SpaceId,
    pub subject: SubjectId,
    /// Who the door saw.
    pub principal: Principal,
}

/// The wish to carry out an action, with all that is needed to settle it should the process die half-way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub action_id: ActionId,
    /// Digest of the whole request: the same id with other content is a conflict.
    pub action_digest: Digest,
    pub asker: Asker,
    /// The idempotency key; an action without one is only ever equal to itself.
    pub key: Option<IdempotencyKey>,
    /// Digest of the parameters: the same key with other parameters is a conflict.
    pub params_digest: Digest,
    /// What is about to happen, as bytes that only the pipeline understands. Stored sealed.
    pub intent: Vec<u8>,
    /// What the effect changes. Claims on one resource are granted one after another.
    pub resources: Vec<ResourceName>,
    /// What the key depends on: it is open again when one of these, or something above it, was changed by another. A key that
    /// depends on nothing holds as long as its receipt is kept.
    pub depends: Vec<ResourceName>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// It is granted, and the intent is on disk: go on, and commit under this fence.
    New {
        /// What to commit under.
        fence: Fence,
    },
    /// Another action of the same asker with the same key and parameters is at work: wait for its receipt.
    InFlight { action_id: ActionId },
    /// Another action changes one of the resources: try again when it is done.
    ResourceBusy { action_id: ActionId },
    /// It is done already, by this action or by another of the same asker with the same key.
    Done { receipt_id: ReceiptId },
    /// This very action has an open intent: it was begun before, and whether it happened is to be settled. To carry on
    /// with it, [`take_over`](crate::Store::take_over) under the fence given here.
    OwnIntent(OpenIntent),
    /// The action id, or the asker's key, was used before with other content.
    Conflict { what: ConflictOf },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConflictOf {
    Action,
    Key,
}

/// What is known of a key or an action without claiming it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// Nothing: a claim would be granted, unless a resource is busy.
    Unknown,
    /// Another action with the same key and parameters is at work.
    InFlight {
        action_id: ActionId,
    },
    Done {
        receipt_id: ReceiptId,
    },
    /// The key was used before with other parameters.
    Conflict,
}

/// An intent whose outcome is not recorded yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenIntent {
    pub action_id: ActionId,
    /// Digest of the whole request.
    pub action_digest: Digest,
    pub fence: Fence,
    pub space: SpaceId,
    pub params_digest: Digest,
    /// When it was claimed, by the wall clock.
    pub since: Timestamp,
    /// It was last claimed or taken over by an earlier run of the process, so that nobody is at work on it now.
    pub orphaned: bool,
    pub intent: Body,
}

/// A decision that is published, leased and claimed in one step: the short way of `exec`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    pub topic: TopicName,
    /// The group that its delivery is counted for.
    pub group: GroupName,
    /// How long the caller holds the delivery before the group may give it to someone else.
    pub ttl: Duration,
    pub event: NewEvent,
    pub claim: Claim,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admitted {
    /// Decision, delivery, claim and intent are on disk, in one block.
    Granted {
        fence: Fence,
        /// The delivery to settle with the commit.
        lease_id: LeaseId,
        offset: u64,
    },
    /// Nothing was written; this is why the claim was not granted.
    NotGranted(ClaimAnswer),
    /// Nothing was written: the decision had been published before and is on its way through its group.
    AlreadyPublished { offset: u64 },
}
