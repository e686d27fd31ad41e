//! What is done to pre-approvals, each with a receipt of its own: made, taken back, over.
//!
//! Such an act is written down in the same step as what it changes; its receipt follows at once, and whoever dies between
//! the two is followed by somebody who finds the act and finishes it.

use std::sync::Arc;

use effectd_bus::{Expect, FamilyName, StoreError};
use effectd_contracts::{
    ActionId, ActionRequest, Approval, ApprovalVerdict, Approved, Authority, DecisionData, Origin, PolicyCtx,
    Principal, Qos, SpaceId, SubjectId, Timestamp, ToolId, TraceId, canonical,
};
use effectd_policy::Grant;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::entries::{Step, read};
use super::hold::written;
use super::tidy::authority;
use crate::decisions::standing;
use crate::failpoint::hit;
use crate::limits::HELD_PAGE;
use crate::parts::Parts;
use crate::recorder::Recorder;

/// Acts whose receipts are not on disk yet, by the ids of their actions.
const ACTS: &str = "grant-acts";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Deed {
    Made,
    Revoked,
    /// It was used up, its time is over, or nobody put it in force in time.
    Ended,
}

impl Deed {
    /// The name that its receipt has in the place of a tool's.
    const fn tool(self) -> &'static str {
        match self {
            Self::Made => "effectd.grant",
            Self::Revoked => "effectd.revoke_grant",
            Self::Ended => "effectd.end_grant",
        }
    }

    const fn verdict(self) -> ApprovalVerdict {
        match self {
            Self::Made => ApprovalVerdict::Grant,
            Self::Revoked => ApprovalVerdict::Revoked,
            Self::Ended => ApprovalVerdict::Expired,
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Act {
    /// Nobody can know it beforehand, so nobody can take it.
    action_id: ActionId,
    trace_id: TraceId,
    deed: Deed,
    grant: Grant,
    by: Principal,
    at: Timestamp,
    authority: Authority,
}

impl Act {
    pub(crate) fn new(parts: &Parts, deed: Deed, grant: &Grant, by: &Principal) -> Self {
        Self {
            action_id: ActionId::fresh(),
            trace_id: TraceId::fresh(),
            deed,
            grant: grant.clone(),
            by: by.clone(),
            at: parts.clock.now(),
            authority: authority(parts),
        }
    }

    /// Has it written down with what it changes.
    pub(crate) fn put(&self, step: &mut Step) -> Result<(), StoreError> {
        step.put(ACTS, self.action_id.as_str(), Expect::Absent, self)
    }

    fn decision(&self, parts: &Parts) -> Result<DecisionData, StoreError> {
        let request = ActionRequest {
            action_id: self.action_id.clone(),
            subject_id: SubjectId::new(self.by.as_str())?,
            space_id: SpaceId::new(format!("org:{}", self.grant.org))?,
            tool_id: ToolId::new(self.deed.tool())?,
            params: told(&self.grant),
            qos: Qos::default(),
            policy_ctx: PolicyCtx::default(),
            idempotency_key: None,
            dry_run: false,
            candidates: Vec::new(),
            propensity: None,
            rationale: None,
            trace_id: Some(self.trace_id.clone()),
            traceparent: None,
            tracestate: None,
        };
        let over = canonical::digest(&request.params);
        let record = Approval {
            approval_id: None,
            verdict: self.deed.verdict(),
            by: self.by.to_string(),
            at: self.at,
            asked_at: self.grant.created_at,
            digest: written(&parts.identity.keyed(&over)),
            authority: self.authority,
            reason: self.grant.reason.clone(),
            grant_id: Some(self.grant.grant_id.clone()),
            edited_request_digest: None,
        };
        let mut decision = DecisionData::new(request, self.by.clone(), Origin::Arbiter);
        decision.approved = Some(Approved {
            record,
            original: None,
        });
        Ok(decision)
    }
}

/// All of a pre-approval that a receipt tells; nothing of it is secret.
fn told(grant: &Grant) -> Map<String, Value> {
    let fields = json!({
        "grant_id": grant.grant_id,
        "org": grant.org,
        "session": grant.session,
        "tool": grant.tool,
        "calls_max": grant.calls_max,
        "calls_used": grant.calls_used,
        "expires_at": grant.expires_at,
        "created_by": grant.created_by,
    });
    let Value::Object(fields) = fields else {
        return Map::new();
    };
    fields.into_iter().filter(|(_, value)| !value.is_null()).collect()
}

/// Writes the receipt of an act, and forgets the act. Doing it again is harmless.
pub(crate) async fn finish(parts: &Arc<Parts>, act: &Act) -> Result<(), StoreError> {
    hit("held.before_act", &act.action_id).await;
    let decision = act.decision(parts)?;
    let action = standing(parts, decision, act.trace_id.clone(), act.at);
    let recorder = Recorder { parts: parts.clone() };
    match recorder.acted(action, Ok(Map::new())).await {
        Ok(_) | Err(StoreError::AlreadyReceipted { .. }) => {}
        Err(error) => return Err(error),
    }
    hit("held.after_act", &act.action_id).await;
    let mut step = Step::default();
    step.delete(ACTS, act.action_id.as_str(), Expect::Any)?;
    step.take(&*parts.store).await.map(drop)
}

/// The same, after the act itself is on disk: what fails now is done by the sweeper, and whoever did it is told that it is
/// done.
pub(crate) async fn conclude(parts: &Arc<Parts>, act: Option<&Act>) {
    let Some(act) = act else { return };
    if let Err(error) = finish(parts, act).await {
        tracing::warn!(%error, action_id = %act.action_id, "the receipt of a grant follows later");
    }
}

/// Finishes what dead processes left undone.
pub(crate) async fn finish_all(parts: &Arc<Parts>) -> Result<(), StoreError> {
    let mut after = None::<String>;
    loop {
        let page = parts
            .store
            .entries(&FamilyName::new(ACTS)?, "", after.as_deref(), HELD_PAGE)?;
        for entry in &page.entries {
            match read::<Act>(entry) {
                Ok(act) => finish(parts, &act.value).await?,
                Err(error) => tracing::error!(%error, key = entry.key, "an act cannot be read"),
            }
        }
        match page.after {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}
