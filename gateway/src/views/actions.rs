//! Actions in JSON: where an action is, and what it waits for.

use std::sync::Arc;

use effectd_actors::{Done, Held, Withdrawal};
use effectd_contracts::{ActionId, Failure, Outcome, Receipt, Redaction, Status};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::problem::{Kind, Problem};

/// Where an action is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is durable, and will run or be refused, also after a crash.
    Accepted,
    /// It waits for an approval.
    Held,
    /// It was done, now or before, or tried out as requested.
    Done,
    /// It has ended otherwise: refused, failed, expired, cancelled, or not done since effects are paused. The receipt says why.
    Ended,
}

/// One action.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActionView {
    #[schema(value_type = String)]
    pub action_id: ActionId,
    pub state: State,
    #[schema(schema_with = crate::schema::outcome)]
    pub outcome: Option<Outcome>,
    /// What redaction removes from the parameters before the tool sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(schema_with = crate::schema::redactions)]
    pub redactions: Vec<Redaction>,
    /// The approval that it waits for.
    pub approval: Option<HeldView>,
    /// It was done earlier, by this action or one with the same idempotency key; nothing ran now.
    #[serde(default)]
    pub already_done: bool,
    #[schema(schema_with = crate::schema::receipt)]
    pub receipt: Option<Box<Receipt>>,
    /// The tool's result: whole for the principal who asked; without secrets and pruned for others who may see the action.
    /// Absent if the tool returned nothing.
    #[schema(value_type = Option<Object>)]
    pub result: Option<Value>,
    /// Why the tool's result is missing: `result_gone` if it is not kept any more.
    #[schema(schema_with = crate::schema::failure)]
    pub result_error: Option<Failure>,
}

/// The approval that an action waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldView {
    pub approval_id: String,
    pub expires_at: String,
    /// Why the policy asks for an approval.
    pub reasons: Vec<String>,
    /// Equal requests wait for the same approval.
    pub joined: bool,
}

impl From<&Held> for HeldView {
    fn from(held: &Held) -> Self {
        Self {
            approval_id: held.approval_id.to_string(),
            expires_at: held.expires_at.to_string(),
            reasons: held.reasons.clone(),
            joined: held.joined,
        }
    }
}

impl ActionView {
    pub(crate) fn held(action_id: ActionId, held: &Held) -> Self {
        Self {
            state: State::Held,
            outcome: Some(Outcome::AwaitingApproval),
            redactions: held.redactions.clone(),
            approval: Some(held.into()),
            ..Self::accepted(action_id)
        }
    }

    pub(crate) fn accepted(action_id: ActionId) -> Self {
        Self {
            action_id,
            state: State::Accepted,
            outcome: None,
            redactions: Vec::new(),
            approval: None,
            already_done: false,
            receipt: None,
            result: None,
            result_error: None,
        }
    }

    pub(crate) fn done(action_id: ActionId, done: Done) -> Self {
        let Done { receipt, before, result } = done;
        let (state, is_effect) = ending(receipt.outcome);
        let (result, result_error) = match result {
            Ok(result) => (result.map(Arc::unwrap_or_clone), None),
            Err(failure) => (None, Some(failure)),
        };
        Self {
            state,
            outcome: Some(receipt.outcome),
            redactions: receipt.redactions.clone(),
            already_done: before && is_effect,
            receipt: Some(Box::new(Arc::unwrap_or_clone(receipt))),
            result,
            result_error,
            ..Self::accepted(action_id)
        }
    }
}

/// How an action ended, and whether its effect was done.
fn ending(outcome: Outcome) -> (State, bool) {
    let is_effect = outcome.project().receipt == Some(Status::Ok);
    let is_done = is_effect || outcome == Outcome::DryRun;
    (if is_done { State::Done } else { State::Ended }, is_effect)
}

/// The answer to a request for an action: a failure is a problem that has the receipt.
pub(crate) fn ended(action_id: ActionId, done: Done) -> Result<ActionView, Box<Problem>> {
    match &done.receipt.error {
        Some(failure) => Err(Box::new(Problem::recorded(&done.receipt, failure).about(&action_id))),
        None => Ok(ActionView::done(action_id, done)),
    }
}

/// The answer to a cancellation.
pub(crate) fn withdrawal(action: &ActionId, withdrawn: Withdrawal) -> Result<ActionView, Problem> {
    match withdrawn {
        Withdrawal::Now(done) => Ok(ActionView::done(action.clone(), done)),
        // A repeated request, after its answer was lost.
        Withdrawal::Ended(done) if done.receipt.outcome == Outcome::Cancelled => {
            Ok(ActionView::done(action.clone(), done))
        }
        Withdrawal::Ended(done) => {
            let why = "the action has ended, and its receipt says how; it cannot be withdrawn";
            let mut problem = Problem::of(Kind::AlreadyFinished, why).about(action);
            problem.receipt = Some(Box::new((*done.receipt).clone()));
            Err(problem)
        }
        Withdrawal::Begun => {
            let why = "the action has begun and cannot be withdrawn; wait for its receipt";
            Err(Problem::of(Kind::CannotCancel, why).about(action))
        }
        Withdrawal::Unknown => Err(unknown(action)),
    }
}

/// The problem that the peer may see no action of this id.
pub(crate) fn unknown(action: &ActionId) -> Problem {
    let message = "no action with this id is visible to you; it is safe to submit it again";
    Problem::of(Kind::ActionUnknown, message).about(action)
}
