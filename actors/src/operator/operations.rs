//! Operations on effectd itself, each with a receipt that names the operator.
//!
//! The operation is on disk before it is carried out; its receipt follows. If the process dies or fails in between, the sweeper
//! writes the receipt, which says that the outcome of the operation is not known.

use effectd_bus::{Expect, FamilyName, Store, StoreError};
use effectd_contracts::{
    ActionId, Approval, ApprovalVerdict, Authority, Code, DecisionData, Failure, Operation, OrgId, Phase,
    Principal, ReceiptId, Timestamp, TraceId, canonical,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::future::Future;

use crate::action::decisions::{OwnAction, detached};
use crate::approvals::decide::reason_fault;
use crate::approvals::expiry::authority;
use crate::approvals::hold::approval;
use crate::approvals::repository::{Step, read};
use crate::execution::recording::operated;
use crate::failpoint::hit;
use crate::limits::HELD_PAGE;
use crate::services::Services;
use crate::services::signer::Identity;
use crate::stored::entries;

/// Operations that have no receipt yet, by the ids of their actions.
const ACTS: &str = "operator-acts";
/// The space in the receipts of operations: no planner uses it.
const SPACE: &str = "effectd";

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Act {
    /// A fresh id, so that no request can have used it before.
    action_id: ActionId,
    trace_id: TraceId,
    operation: Operation,
    by: Principal,
    at: Timestamp,
    authority: Authority,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Why an operation is performed, when its effect ends, and whose actions its answer may name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Terms {
    /// For the receipt.
    pub reason: Option<String>,
    /// Only for a mode and for operations that switch something off; without it, until an operator changes it.
    pub until: Option<Timestamp>,
    /// The organisation of the token that asks: the answer names no action of another one.
    pub org: Option<OrgId>,
}

/// Marks an operation as being carried out by this process, until dropped.
struct Live<'s>(&'s Mutex<HashSet<ActionId>>, ActionId);

impl<'s> Live<'s> {
    fn new(operations: &'s Mutex<HashSet<ActionId>>, id: &ActionId) -> Self {
        operations.lock().insert(id.clone());
        Self(operations, id.clone())
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

/// Carries out an operation and records it. The work returns its result and the outputs for the receipt; `None` as outputs means
/// that nothing changed, and no receipt is written.
pub async fn recorded<T>(
    services: &Services,
    operation: &Operation,
    (by, reason): (&Principal, Option<String>),
    work: impl Future<Output = Result<(T, Option<Map<String, Value>>), StoreError>>,
) -> Result<(T, Option<ReceiptId>), StoreError> {
    if let Some(fault) = reason.as_deref().and_then(reason_fault) {
        return Err(StoreError::Invalid(fault));
    }
    let mut act = Act {
        action_id: ActionId::fresh(),
        trace_id: TraceId::fresh(),
        operation: operation.clone(),
        by: by.clone(),
        at: services.clock.now(),
        authority: authority(&services.policy(), None),
        reason,
    };
    if let Operation::CreateSession { title, .. } = &mut act.operation {
        // An erasure removes the title, and removes nothing from a receipt.
        *title = format!("hmac-sha256:{}", services.identity.digest(&Value::from(title.as_str())));
    }
    let _live = Live::new(&services.in_flight.operations, &act.action_id);
    let mut step = Step::default();
    step.put(ACTS, act.action_id.as_str(), Expect::Absent, &act)?;
    step.commit(&*services.store).await?;
    hit("operation.begun", &act.action_id).await;
    match work.await {
        Ok((done, Some(outputs))) => {
            services.tools_changed.send_replace(());
            hit("operation.done", &act.action_id).await;
            Ok((done, Some(finish(services, &act, Ok(outputs)).await?)))
        }
        Ok((done, None)) => {
            remove(&*services.store, &act).await?;
            Ok((done, None))
        }
        Err(error) => {
            // After any other error, part of the work may be done: the sweeper finds the act and writes its receipt.
            if is_refusal(&error) {
                remove(&*services.store, &act).await?;
            }
            Err(error)
        }
    }
}

/// Whether an error means that nothing was changed.
fn is_refusal(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Invalid(_)
            | StoreError::StateConflict(_)
            | StoreError::InvalidId(_)
            | StoreError::NotFound { .. }
            | StoreError::NoSuchName(_)
            | StoreError::TooLarge { .. }
    )
}

/// Writes the receipt of an operation, and removes the act. Repeating it is harmless.
async fn finish(
    services: &Services,
    act: &Act,
    ended: Result<Map<String, Value>, &Failure>,
) -> Result<ReceiptId, StoreError> {
    let action = detached(services, act.decision(&services.identity)?, act.trace_id.clone(), act.at);
    let receipt_id = match operated(services, action, ended).await {
        Err(StoreError::AlreadyReceipted { receipt_id, .. }) => receipt_id,
        other => other?,
    };
    hit("operation.recorded", &act.action_id).await;
    remove(&*services.store, act).await?;
    Ok(receipt_id)
}

async fn remove(store: &dyn Store, act: &Act) -> Result<(), StoreError> {
    let mut step = Step::default();
    step.delete(ACTS, act.action_id.as_str(), Expect::Any)?;
    step.commit(store).await.map(drop)
}

/// Finishes the operations that dead processes left.
pub(crate) async fn finish_all(services: &Services) -> Result<(), StoreError> {
    for entry in entries(&*services.store, &FamilyName::new(ACTS)?, HELD_PAGE) {
        let entry = entry?;
        match read::<Act>(&entry) {
            Ok(act) if services.in_flight.operations.lock().contains(&act.value.action_id) => {}
            Ok(act) => abandoned(services, &act.value).await?,
            Err(error) => tracing::error!(%error, key = entry.key, "an operator's act cannot be read"),
        }
    }
    Ok(())
}

/// Finishes an operation that no task carries out any more, unless it has ended since the act was read.
async fn abandoned(services: &Services, act: &Act) -> Result<(), StoreError> {
    let still = services.store.entry(&FamilyName::new(ACTS)?, act.action_id.as_str())?;
    if still.is_none() {
        return Ok(());
    }
    let why = "this operation began but did not finish; check whether it took effect, and repeat it if not";
    let unknown = Failure::new(Code::OutcomeUnknown, Phase::Settle, why);
    finish(services, act, Err(&unknown)).await.map(drop)
}

impl Act {
    fn decision(&self, identity: &Identity) -> Result<DecisionData, StoreError> {
        // Plain data with text keys, for which serde_json has no failure.
        let params = match serde_json::to_value(&self.operation) {
            Ok(Value::Object(mut params)) => {
                params.remove("do");
                params
            }
            Ok(_) | Err(_) => Map::new(),
        };
        let digest = identity.keyed(&canonical::digest(&params));
        let own = OwnAction {
            action_id: &self.action_id,
            trace_id: &self.trace_id,
            by: &self.by,
            space: SPACE,
            tool: self.operation.tool(),
            params,
        };
        let times = (self.at, self.at);
        let approval = approval(ApprovalVerdict::Once, self.by.as_str(), times, &digest, self.authority);
        own.decision(Approval { reason: self.reason.clone(), ..approval })
    }
}
