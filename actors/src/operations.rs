//! What operators do to effectd itself, each with a receipt of its own that names the operator.
//!
//! That something is being done is on disk before it is done; its receipt follows when it is. Whoever dies or fails between the two
//! is followed by the sweeper, which cannot know how far it came: the receipt says so.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;

use effectd_bus::{Expect, FamilyName, StoreError};
use effectd_contracts::{
    ActionId, ActionRequest, Approval, ApprovalVerdict, Approved, Authority, Code, DecisionData, Failure,
    Operation, Origin, Phase, PolicyCtx, Principal, Qos, ReceiptId, SpaceId, SubjectId, Timestamp, ToolId,
    TraceId, canonical,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::decisions::standing;
use crate::failpoint::hit;
use crate::held::entries::{Step, read};
use crate::held::hold::written;
use crate::held::tidy::authority;
use crate::limits::HELD_PAGE;
use crate::parts::Parts;
use crate::recorder::Recorder;

/// What has begun and has no receipt yet, by the ids of its actions.
const ACTS: &str = "operator-acts";
/// Where it happens: not in any space of planners.
const SPACE: &str = "effectd";

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Act {
    /// Nobody can know it beforehand, so nobody can take it.
    action_id: ActionId,
    trace_id: TraceId,
    operation: Operation,
    by: Principal,
    at: Timestamp,
    authority: Authority,
}

/// What this process is doing right now, which nobody else is to finish. Bounded by who asks at once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Acting(Arc<Mutex<HashSet<ActionId>>>);

/// Gone when it is done, or given up.
struct Live(Acting, ActionId);

impl Acting {
    fn begin(&self, id: &ActionId) -> Live {
        self.lock().insert(id.clone());
        Live(self.clone(), id.clone())
    }

    fn has(&self, id: &ActionId) -> bool {
        self.lock().contains(id)
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, HashSet<ActionId>> {
        self.0.lock()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

/// Has something done, on record. The work answers what came of it, and what the receipt tells of that; `None` if there was
/// nothing to change, and then there is no receipt.
pub async fn recorded<T>(
    parts: &Arc<Parts>,
    operation: &Operation,
    by: &Principal,
    work: impl Future<Output = Result<(T, Option<Map<String, Value>>), StoreError>>,
) -> Result<(T, Option<ReceiptId>), StoreError> {
    let act = Act {
        action_id: ActionId::fresh(),
        trace_id: TraceId::fresh(),
        operation: operation.clone(),
        by: by.clone(),
        at: parts.clock.now(),
        authority: authority(parts),
    };
    let _live = parts.acting.begin(&act.action_id);
    let mut step = Step::default();
    step.put(ACTS, act.action_id.as_str(), Expect::Absent, &act)?;
    step.take(&*parts.store).await?;
    hit("operation.begun", &act.action_id).await;
    match work.await {
        Ok((done, Some(told))) => {
            hit("operation.done", &act.action_id).await;
            Ok((done, Some(finish(parts, &act, Ok(told)).await?)))
        }
        Ok((done, None)) => {
            forget(parts, &act).await?;
            Ok((done, None))
        }
        Err(error) => {
            // Otherwise some of it may have happened: the sweeper finds the act, and says that nobody knows.
            if refuses(&error) {
                forget(parts, &act).await?;
            }
            Err(error)
        }
    }
}

/// Whether an error says that something cannot be done at all, which is found out before it is begun.
fn refuses(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Invalid(_) | StoreError::NotFound { .. } | StoreError::TooLarge { .. }
    )
}

/// Writes the receipt of an act, and forgets the act. Doing it again is harmless.
async fn finish(
    parts: &Arc<Parts>,
    act: &Act,
    ended: Result<Map<String, Value>, &Failure>,
) -> Result<ReceiptId, StoreError> {
    let action = standing(parts, act.decision(parts)?, act.trace_id.clone(), act.at);
    let recorder = Recorder { parts: parts.clone() };
    let receipt_id = match recorder.acted(action, ended).await {
        Err(StoreError::AlreadyReceipted { receipt_id, .. }) => receipt_id,
        other => other?,
    };
    hit("operation.recorded", &act.action_id).await;
    forget(parts, act).await?;
    Ok(receipt_id)
}

async fn forget(parts: &Parts, act: &Act) -> Result<(), StoreError> {
    let mut step = Step::default();
    step.delete(ACTS, act.action_id.as_str(), Expect::Any)?;
    step.take(&*parts.store).await.map(drop)
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
                Ok(act) if parts.acting.has(&act.value.action_id) => {}
                Ok(act) => abandoned(parts, &act.value).await?,
                Err(error) => tracing::error!(%error, key = entry.key, "an act cannot be read"),
            }
        }
        match page.after {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

/// Finishes an act that nobody carries out any more. Whoever did may have come to its end since the act was read: then it is gone.
async fn abandoned(parts: &Arc<Parts>, act: &Act) -> Result<(), StoreError> {
    let still = parts
        .store
        .entry(&FamilyName::new(ACTS)?, act.action_id.as_str())?;
    if still.is_none() {
        return Ok(());
    }
    let why = "this was begun and did not come to its end; look whether it happened, and do it again if not";
    let unknown = Failure::new(Code::OutcomeUnknown, Phase::Settle, why);
    finish(parts, act, Err(&unknown)).await.map(drop)
}

impl Act {
    fn decision(&self, parts: &Parts) -> Result<DecisionData, StoreError> {
        // Plain data with text keys, for which serde_json has no failure.
        let params = match serde_json::to_value(&self.operation) {
            Ok(Value::Object(mut params)) => {
                params.remove("do");
                params
            }
            Ok(_) | Err(_) => Map::new(),
        };
        let over = canonical::digest(&params);
        let request = ActionRequest {
            action_id: self.action_id.clone(),
            subject_id: SubjectId::new(self.by.as_str())?,
            space_id: SpaceId::new(SPACE)?,
            tool_id: ToolId::new(self.operation.tool())?,
            params,
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
        let record = Approval {
            approval_id: None,
            verdict: ApprovalVerdict::Once,
            by: self.by.to_string(),
            at: self.at,
            asked_at: self.at,
            digest: written(&parts.identity.keyed(&over)),
            authority: self.authority,
            reason: None,
            grant_id: None,
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
