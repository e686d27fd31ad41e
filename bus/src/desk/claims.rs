//! Claims.

use effectd_contracts::{ActionId, Digest};

use super::Desk;
use super::groups::Grant;
use super::topics::index_damaged;
use crate::codec::Hash16;
use crate::error::StoreError;
use crate::fold::OpenClaim;
use crate::keys::{self, Disturbance, Resolution};
use crate::limits::CLAIMS_OPEN_MAX;
use crate::names::{GroupName, TopicName};
use crate::record::{ClaimRecord, EventRecord, Record};
use crate::types::claims::{Admitted, ConflictOf, Fence};

pub(crate) struct DraftClaim {
    /// With the fence still to be decided.
    pub(crate) record: ClaimRecord,
    /// Hashes of what the key depends on and of all that it lies beneath.
    pub(crate) above: Vec<Hash16>,
    pub(crate) leaf: Digest,
}

/// A claim's answer, before what it names is read.
pub(crate) enum Verdict {
    New { fence: Fence },
    InFlight { action_id: ActionId },
    ResourceBusy { action_id: ActionId },
    Done { ordinal: u64 },
    OwnIntent { fence: u64, claim: Box<OpenClaim> },
    Conflict { what: ConflictOf },
}

/// An admission's answer, before what it names is read.
pub(crate) enum Admittance {
    Settled(Admitted),
    NotGranted(Verdict),
}

impl Desk<'_> {
    pub(crate) fn claim(&mut self, claim: DraftClaim) -> Result<Verdict, StoreError> {
        match self.judge(&claim)? {
            Some(verdict) => Ok(verdict),
            None => {
                self.check_claim(&claim)?;
                self.open(claim).map(|fence| Verdict::New { fence })
            }
        }
    }

    /// Decision, delivery, claim and intent in one step.
    pub(crate) fn admit(
        &mut self,
        topic: &TopicName,
        group: &GroupName,
        ttl: std::time::Duration,
        event: EventRecord,
        claim: DraftClaim,
    ) -> Result<Admittance, StoreError> {
        if let Some(verdict) = self.judge(&claim)? {
            return Ok(Admittance::NotGranted(verdict));
        }
        if let Some(offset) = self.published_at(topic, &event.event_id)? {
            return Ok(Admittance::Settled(Admitted::AlreadyPublished { offset }));
        }
        self.check_topic(topic)?;
        self.check_group(topic, group)?;
        self.check_epoch(&event.body)?;
        self.check_claim(&claim)?;
        let next = self.fold.end(topic);
        let known = self.fold.groups.get(&(topic.clone(), group.clone()));
        let begin = self.fold.begin(topic);
        if known.map_or(
            next >= begin.saturating_add(crate::limits::GROUP_WINDOW_MAX),
            |group| group.beyond_window(next),
        ) {
            return Err(StoreError::Overloaded {
                what: "the group's window is full",
            });
        }
        let offset = self.append(topic, event)?.offset;
        let granted = self.grant(topic, group, &[offset], ttl)?;
        let fence = self.open(claim)?;
        let Some(Grant { lease_id, .. }) = granted.into_iter().next() else {
            return Err(StoreError::Closed);
        };
        Ok(Admittance::Settled(Admitted::Granted {
            fence,
            lease_id,
            offset,
        }))
    }

    /// What stands against a claim; `None` if nothing does.
    fn judge(&self, claim: &DraftClaim) -> Result<Option<Verdict>, StoreError> {
        let action = keys::action_hash(claim.record.action_id.as_str());
        if let Some(known) = self.resolution(&keys::action(action))? {
            return Ok(Some(if known.digest == claim.record.action_digest {
                Verdict::Done {
                    ordinal: known.ordinal,
                }
            } else {
                Verdict::Conflict {
                    what: ConflictOf::Action,
                }
            }));
        }
        if let Some((fence, open)) = self.fold.claim_of(action) {
            return Ok(Some(if open.action_digest == claim.record.action_digest {
                Verdict::OwnIntent {
                    fence,
                    claim: Box::new(open.clone()),
                }
            } else {
                Verdict::Conflict {
                    what: ConflictOf::Action,
                }
            }));
        }
        if let Some(key) = claim.record.key
            && let Some(verdict) = self.judge_key(key, claim)?
        {
            return Ok(Some(verdict));
        }
        let busy = claim
            .record
            .resources
            .iter()
            .find_map(|resource| self.fold.claim_on_resource(*resource));
        Ok(busy.map(|open| Verdict::ResourceBusy {
            action_id: open.action_id.clone(),
        }))
    }

    fn judge_key(&self, key: Hash16, claim: &DraftClaim) -> Result<Option<Verdict>, StoreError> {
        let params = &claim.record.params_digest;
        let conflict = Some(Verdict::Conflict {
            what: ConflictOf::Key,
        });
        let known = self.resolution(&keys::key(key))?;
        let known = match known {
            Some(known) if self.is_disturbed(&claim.above, |since| since.ordinal > known.ordinal)? => None,
            known => known,
        };
        if let Some(known) = known {
            let same = known.digest == *params;
            return Ok(if same {
                Some(Verdict::Done {
                    ordinal: known.ordinal,
                })
            } else {
                conflict
            });
        }
        Ok(match self.fold.claim_on_key(key) {
            None => None,
            Some(open) if open.params_digest == *params => Some(Verdict::InFlight {
                action_id: open.action_id.clone(),
            }),
            Some(_) => conflict,
        })
    }

    pub(crate) fn resolution(&self, key: &[u8]) -> Result<Option<Resolution>, StoreError> {
        let found = self.view().get(key)?;
        found
            .map(|bytes| Resolution::decode(&bytes))
            .transpose()
            .map(|found| found.filter(|found| found.ordinal >= self.fold.receipts_begin))
            .map_err(|error| index_damaged(&error))
    }

    /// Whether all beneath one of these was disturbed in such a way.
    pub(crate) fn is_disturbed(
        &self,
        above: &[Hash16],
        so: impl Fn(Disturbance) -> bool,
    ) -> Result<bool, StoreError> {
        for resource in above {
            if let Some(bytes) = self.view().get(&keys::beneath(*resource))?
                && so(Disturbance::decode(&bytes).map_err(|error| index_damaged(&error))?)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn check_claim(&self, claim: &DraftClaim) -> Result<(), StoreError> {
        self.admit_new_work()?;
        self.check_epoch(&claim.record.intent)?;
        if self.fold.claims().len() >= CLAIMS_OPEN_MAX {
            return Err(StoreError::Overloaded {
                what: "too many claims are open",
            });
        }
        Ok(())
    }

    fn open(&mut self, DraftClaim { record, leaf, .. }: DraftClaim) -> Result<Fence, StoreError> {
        let fence = self.fold.next_fence;
        self.emit_logged(Record::Claimed(ClaimRecord { fence, ..record }), Some(leaf))?;
        Ok(Fence(fence))
    }

    pub(crate) fn take_over(&mut self, action_id: &ActionId, seen: Fence) -> Result<Fence, StoreError> {
        let action = keys::action_hash(action_id.as_str());
        let (held, _) = self.fold.claim_of(action).ok_or(StoreError::NotFound {
            what: "an open claim of the action",
        })?;
        if held != seen.0 {
            return Err(StoreError::StaleFence {
                action_id: action_id.clone(),
            });
        }
        let fence = self.fold.next_fence;
        self.emit(Record::TakenOver { action, fence })?;
        Ok(Fence(fence))
    }
}
