//! Claims: granting, admitting and taking over.

use effectd_contracts::{ActionId, Digest, ReceiptId};

use super::Batch;
use super::groups::Grant;
use crate::codec::Hash16;
use crate::error::StoreError;
use crate::index::schema::{self, Resolution};
use crate::journal::record::{ClaimRecord, EventRecord, Record};
use crate::limits::{CLAIMS_OPEN_MAX, GROUP_WINDOW_MAX};
use crate::names::{GroupName, TopicName};
use crate::reads::is_invalidated;
use crate::reads::receipts::resolution;
use crate::state::{Derived, OpenClaim};
use crate::types::claims::{Admitted, ConflictOf, Fence};

pub(crate) struct DraftClaim {
    /// The writer adds the fence.
    pub(crate) record: ClaimRecord,
    /// Hashes of what invalidates the key's receipt.
    pub(crate) invalidating: Vec<Hash16>,
    /// A receipt that the key does not answer with.
    pub(crate) stale: Option<ReceiptId>,
    pub(crate) leaf: Digest,
}

/// The answer to a claim, before the receipt or intent that it names is read.
pub(crate) enum ClaimVerdict {
    New { fence: Fence },
    InFlight { action_id: ActionId },
    ResourceBusy { action_id: ActionId },
    Done { ordinal: u64 },
    OwnIntent { fence: u64, claim: Box<OpenClaim> },
    Conflict { what: ConflictOf },
}

/// The answer to an admission, before the receipt or intent that it names is read.
pub(crate) enum Admittance {
    Decided(Admitted),
    NotGranted(ClaimVerdict),
}

impl Batch<'_> {
    pub(crate) fn claim(&mut self, claim: DraftClaim) -> Result<ClaimVerdict, StoreError> {
        match self.objection(&claim)? {
            Some(verdict) => Ok(verdict),
            None => {
                self.check_claim(&claim)?;
                self.open(claim).map(|fence| ClaimVerdict::New { fence })
            }
        }
    }

    /// Publishes, leases and claims in one block.
    pub(crate) fn admit(
        &mut self,
        topic: &TopicName,
        group: &GroupName,
        ttl: std::time::Duration,
        event: EventRecord,
        claim: DraftClaim,
    ) -> Result<Admittance, StoreError> {
        if let Some(verdict) = self.objection(&claim)? {
            return Ok(Admittance::NotGranted(verdict));
        }
        if let Some(offset) = self.published_at(topic, &event.event_id)? {
            return Ok(Admittance::Decided(Admitted::AlreadyPublished { offset }));
        }
        self.check_topic(topic)?;
        self.check_group(topic, group)?;
        self.check_epoch(&event.body)?;
        self.check_claim(&claim)?;
        let next = self.state.end(topic);
        let known = self.state.groups.get(&(topic.clone(), group.clone()));
        let begin = self.state.begin(topic);
        if known.map_or(next >= begin.saturating_add(GROUP_WINDOW_MAX), |group| group.beyond_window(next)) {
            return Err(StoreError::Overloaded { what: "the group's window is full" });
        }
        let offset = self.append(topic, event)?.offset;
        let granted = self.grant(topic, group, &[offset], ttl)?;
        let fence = self.open(claim)?;
        let Some(Grant { lease_id, .. }) = granted.into_iter().next() else {
            return Err(StoreError::Closed);
        };
        Ok(Admittance::Decided(Admitted::Granted { fence, lease_id, offset }))
    }

    /// Why a claim is not granted; `None` if it is.
    fn objection(&self, claim: &DraftClaim) -> Result<Option<ClaimVerdict>, StoreError> {
        let action = schema::action_hash(claim.record.action_id.as_str());
        if let Some(known) = self.resolution(&schema::action(action))? {
            return Ok(Some(if known.digest == claim.record.action_digest {
                ClaimVerdict::Done { ordinal: known.ordinal }
            } else {
                ClaimVerdict::Conflict { what: ConflictOf::Action }
            }));
        }
        if let Some((fence, open)) = self.state.claim_of(action) {
            return Ok(Some(if open.action_digest == claim.record.action_digest {
                ClaimVerdict::OwnIntent { fence, claim: Box::new(open.clone()) }
            } else {
                ClaimVerdict::Conflict { what: ConflictOf::Action }
            }));
        }
        if let Some(key) = claim.record.key
            && let Some(verdict) = self.key_objection(key, claim)?
        {
            return Ok(Some(verdict));
        }
        let busy = claim.record.resources.iter().find_map(|resource| self.state.claim_on_resource(*resource));
        Ok(busy.map(|open| ClaimVerdict::ResourceBusy { action_id: open.action_id.clone() }))
    }

    fn key_objection(&self, key: Hash16, claim: &DraftClaim) -> Result<Option<ClaimVerdict>, StoreError> {
        let params = &claim.record.params_digest;
        let conflict = Some(ClaimVerdict::Conflict { what: ConflictOf::Key });
        // An open claim is newer than every receipt of its key.
        if let Some(open) = self.state.claim_on_key(key) {
            let action_id = open.action_id.clone();
            let same = open.params_digest == *params;
            return Ok(if same { Some(ClaimVerdict::InFlight { action_id }) } else { conflict });
        }
        let Some(known) = self.resolution(&schema::key(key))? else {
            return Ok(None);
        };
        let stale = match &claim.stale {
            Some(stale) => self.receipt_id_of(known.ordinal)? == *stale,
            None => false,
        };
        if stale || is_invalidated(self.view(), &claim.invalidating, |since| since.ordinal > known.ordinal)? {
            return Ok(None);
        }
        let same = known.digest == *params;
        Ok(if same { Some(ClaimVerdict::Done { ordinal: known.ordinal }) } else { conflict })
    }

    pub(super) fn resolution(&self, key: &[u8]) -> Result<Option<Resolution>, StoreError> {
        resolution(self.view(), key, self.state.receipts_begin)
    }

    fn check_claim(&self, claim: &DraftClaim) -> Result<(), StoreError> {
        self.admit_new_work()?;
        self.check_epoch(&claim.record.intent)?;
        if self.state.claims().len() >= CLAIMS_OPEN_MAX {
            return Err(StoreError::Overloaded { what: "too many claims are open" });
        }
        Ok(())
    }

    fn open(&mut self, DraftClaim { record, leaf, .. }: DraftClaim) -> Result<Fence, StoreError> {
        let fence = self.state.next_fence;
        self.emit_derived(Record::Claimed(ClaimRecord { fence, ..record }), Derived::leaf(leaf))?;
        Ok(Fence(fence))
    }

    pub(crate) fn take_over(&mut self, action_id: &ActionId, seen: Fence) -> Result<Fence, StoreError> {
        let action = schema::action_hash(action_id.as_str());
        let (held, _) = self
            .state
            .claim_of(action)
            .ok_or(StoreError::NotFound { what: "an open claim of the action" })?;
        if held != seen.0 {
            return Err(StoreError::StaleFence { action_id: action_id.clone() });
        }
        let fence = self.state.next_fence;
        self.emit(Record::TakenOver { action, fence })?;
        Ok(Fence(fence))
    }
}
