//! The audit of grants: whenever a grant is made, revoked or ends, a receipt says so.
//!
//! The act is written in the same step as the change of the grant, and its receipt follows at once. If the process dies in
//! between, the sweeper finds the act and writes the receipt.

use effectd_bus::{Expect, FamilyName, StoreError};
use effectd_contracts::{
    ActionId, Approval, ApprovalVerdict, Authority, DecisionData, Principal, Timestamp, TraceId, canonical,
};
use effectd_policy::{Grant, Policy};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::expiry::authority;
use super::hold::approval;
use super::repository::{Step, read};
use crate::action::decisions::{OwnAction, detached};
use crate::execution::recording::operated;
use crate::failpoint::hit;
use crate::limits::HELD_PAGE;
use crate::services::Services;
use crate::services::signer::Identity;
use crate::stored::entries;

/// Acts that have no receipt yet, by the ids of their actions.
const ACTS: &str = "grant-acts";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Deed {
    Made,
    Revoked,
    /// The grant is used up or expired, or no admin put it in force in time.
    Ended,
}

impl Deed {
    /// The tool id in the receipt of the act.
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
pub(crate) struct GrantAct {
    /// A fresh id, so that no request can have used it before.
    action_id: ActionId,
    trace_id: TraceId,
    deed: Deed,
    grant: Grant,
    by: Principal,
    at: Timestamp,
    authority: Authority,
}

impl GrantAct {
    pub(crate) fn new(policy: &Policy, deed: Deed, grant: &Grant, by: &Principal, at: Timestamp) -> Self {
        Self {
            action_id: ActionId::fresh(),
            trace_id: TraceId::fresh(),
            deed,
            grant: grant.clone(),
            by: by.clone(),
            at,
            authority: authority(policy, Some(&grant.org)),
        }
    }

    pub(crate) fn put(&self, step: &mut Step) -> Result<(), StoreError> {
        step.put(ACTS, self.action_id.as_str(), Expect::Absent, self)
    }

    fn decision(&self, identity: &Identity) -> Result<DecisionData, StoreError> {
        let space = format!("org:{}", self.grant.org);
        let own = OwnAction {
            action_id: &self.action_id,
            trace_id: &self.trace_id,
            by: &self.by,
            space: &space,
            tool: self.deed.tool(),
            params: fields(&self.grant),
        };
        let digest = identity.keyed(&canonical::digest(&own.params));
        let times = (self.grant.created_at, self.at);
        let verdict = self.deed.verdict();
        let record = Approval {
            reason: self.grant.reason.clone(),
            grant_id: Some(self.grant.grant_id.clone()),
            ..approval(verdict, self.by.as_str(), times, &digest, self.authority)
        };
        own.decision(record)
    }
}

/// The fields of a grant that its receipt shows; none is secret.
fn fields(grant: &Grant) -> Map<String, Value> {
    let fields = json!({
        "grant_id": grant.grant_id,
        "org": grant.org,
        "session": grant.session,
        "tool": grant.tool,
        "command": grant.command,
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

/// Writes the receipt of an act, and removes the act. Repeating it is harmless.
pub(crate) async fn finish(services: &Services, act: &GrantAct) -> Result<(), StoreError> {
    hit("held.before_act", &act.action_id).await;
    let decision = act.decision(&services.identity)?;
    let action = detached(services, decision, act.trace_id.clone(), act.at);
    match operated(services, action, Ok(Map::new())).await {
        Ok(_) | Err(StoreError::AlreadyReceipted { .. }) => {}
        Err(error) => return Err(error),
    }
    hit("held.after_act", &act.action_id).await;
    let mut step = Step::default();
    step.delete(ACTS, act.action_id.as_str(), Expect::Any)?;
    step.commit(&*services.store).await.map(drop)
}

/// [`finish`] for an act that is on disk: if it fails, the sweeper repeats it, and the caller still succeeds.
pub(crate) async fn conclude(services: &Services, act: Option<&GrantAct>) {
    let Some(act) = act else { return };
    if let Err(error) = finish(services, act).await {
        tracing::warn!(trace_id = %act.trace_id, %error, action_id = %act.action_id, "a grant's receipt is written later");
    }
}

/// Finishes the acts that dead processes left.
pub(crate) async fn finish_all(services: &Services) -> Result<(), StoreError> {
    for entry in entries(&*services.store, &FamilyName::new(ACTS)?, HELD_PAGE) {
        let entry = entry?;
        match read::<GrantAct>(&entry) {
            Ok(act) => finish(services, &act.value).await?,
            Err(error) => tracing::error!(%error, key = entry.key, "an operator's act cannot be read"),
        }
    }
    Ok(())
}
