//! The library: an effectd inside this process.

use std::sync::Arc;
use std::time::Duration;

use effectd_actors::effects::results;
use effectd_actors::{Answer, Done, Held as PendingApproval, Withdrawal};
use effectd_contracts::limits::TIMEOUT_MS_MAX;
use effectd_contracts::{
    ActionId, ActionRequest, BatchRequest, Code, Failure, Phase, Plan, PlanResult, Receipt,
};
use effectd_gateway::client::{ActionReply, Client, ClientError, PlanReply};
use effectd_gateway::problem::Kind;
use effectd_gateway::views::{BatchView, State as ActionState};

use crate::host::in_process::{Running, failure_of};

/// The longest wait of one request for a plan: the longest time of an action.
const PLAN_TIME_MAX: Duration = Duration::from_millis(TIMEOUT_MS_MAX);

/// An effectd inside this process. End it with [`Effectd::shutdown`]: if it is only dropped, its pipeline keeps running and the
/// state stays locked until the process ends.
#[must_use = "only `shutdown` stops the pipeline and unlocks the state"]
#[derive(Debug)]
pub struct Effectd {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    running: Running,
}

impl Inner {
    async fn with_result(&self, done: Done) -> Done {
        results::fill(self.running.runtime.pipeline().services(), done).await
    }
}

/// The result of [`Effectd::execute`].
#[derive(Debug, Clone)]
pub enum Executed {
    /// The action has a receipt, which says whether it succeeded, failed or was refused by the policy. `result` has what the
    /// tool returned, also if the action ended earlier.
    Done(Done),
    /// A person must decide first. The action is on disk and continues after the decision.
    AwaitingApproval(PendingApproval),
}

/// The request was refused. With `store_unavailable`, `shutting_down` or `internal` it may still be on disk: repeat the request
/// with the same action id, and it runs at most once.
///
/// A method of [`ActionHandle`] returns this if it cannot answer; the submitted action is not affected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct Rejected(Failure);

impl Rejected {
    /// The reason: a stable code, a message, and when to try again.
    pub fn failure(&self) -> &Failure {
        &self.0
    }
}

impl From<Failure> for Rejected {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

impl From<ClientError> for Rejected {
    fn from(error: ClientError) -> Self {
        Self(Failure::new(Code::StoreUnavailable, Phase::Accept, error.to_string()))
    }
}

impl Effectd {
    pub(crate) fn new(running: Running, client: Client) -> Self {
        Self { inner: Arc::new(Inner { client, running }) }
    }

    /// Carries out a request. Waits until the action has ended or awaits an approval.
    pub async fn execute(&self, request: ActionRequest) -> Result<Executed, Rejected> {
        match self.inner.running.runtime.exec(request).await {
            Answer::Done(done) => Ok(Executed::Done(self.inner.with_result(done).await)),
            Answer::Held(approval) => Ok(Executed::AwaitingApproval(approval)),
            Answer::Refused(failure) => Err(failure.into()),
        }
    }

    /// Carries out a plan, which names its subject and its space. Waits until it has ended or awaits an approval: then the status is
    /// `queued`, and [`Effectd::plan_result`] has another result when a person has decided.
    pub async fn plan(&self, plan: &Plan) -> Result<PlanResult, Rejected> {
        let reply = self.inner.client.another().plan(plan, PLAN_TIME_MAX).await;
        self.planned(reply).await
    }

    /// What a plan came to. Waits until it has ended or awaits an approval.
    pub async fn plan_result(&self, action: &ActionId) -> Result<PlanResult, Rejected> {
        let reply = self.inner.client.another().plan_result(action).await;
        self.planned(reply).await
    }

    async fn planned(&self, mut reply: Result<PlanReply, ClientError>) -> Result<PlanResult, Rejected> {
        loop {
            match reply {
                Ok(PlanReply::Result(result)) => return Ok(*result),
                Ok(PlanReply::GoesOn(view)) => {
                    self.inner.running.runtime.pipeline().wait_or_held(&view.action_id).await?;
                    reply = self.inner.client.another().plan_result(&view.action_id).await;
                }
                Err(ClientError::Refused(problem)) => return Err(failure_of(&problem).into()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Submits a request. When this returns, the request is on disk, and it ends in a receipt even after a crash.
    ///
    /// At most `gateway.backlog_max` submitted actions may be open, three quarters of them of one principal; beyond that the request is
    /// rejected as `overloaded`.
    pub async fn submit(&self, request: ActionRequest) -> Result<ActionHandle, Rejected> {
        match self.inner.client.another().submit(&request, None).await? {
            ActionReply::Problem(problem) if problem.receipt.is_none() => Err(failure_of(&problem).into()),
            // With a receipt, the action was accepted before and has ended.
            ActionReply::View(_) | ActionReply::Problem(_) => {
                Ok(ActionHandle { inner: self.inner.clone(), action_id: request.action_id })
            }
        }
    }

    /// Runs a batch: its actions happen in order, all or nothing or one after another. Waits until it has ended or awaits an approval.
    pub async fn batch(&self, batch: &BatchRequest) -> Result<BatchView, Rejected> {
        match self.inner.client.another().batch(batch).await {
            Err(ClientError::Refused(problem)) => Err(failure_of(&problem).into()),
            other => Ok(other?),
        }
    }

    /// Stops: accepts nothing new, and finishes running actions within `runtime.stop_grace_ms`. Unfinished actions continue
    /// at the next start. Returns whether everything was finished.
    ///
    /// The sandbox's processes live until every [`ActionHandle`] is dropped.
    pub async fn shutdown(self) -> bool {
        match Arc::try_unwrap(self.inner) {
            Ok(inner) => {
                drop(inner.client);
                inner.running.stop().await
            }
            // Handles are still in use: those that wait get `shutting_down`.
            Err(inner) => inner.running.wind_down().await,
        }
    }
}

/// A submitted action.
#[derive(Debug, Clone)]
pub struct ActionHandle {
    inner: Arc<Inner>,
    action_id: ActionId,
}

/// The state of a submitted action.
#[derive(Debug, Clone, PartialEq)]
pub enum ActionStatus {
    /// It has not ended yet.
    Accepted,
    /// It awaits the approval with this id.
    AwaitingApproval(String),
    /// It has ended with this receipt.
    Done(Box<Receipt>),
    /// It has no receipt and is not open: it is a dead letter, or retention has dropped it.
    Unknown,
}

/// The result of cancelling an action.
#[derive(Debug, Clone)]
pub enum Cancellation {
    /// It will not run; the receipt says `cancelled`.
    Cancelled(Done),
    /// It had already ended, with this receipt.
    AlreadyEnded(Done),
    /// It has started; its receipt will say how it ended.
    AlreadyStarted,
    /// It has no receipt and is not open: it is a dead letter, or retention has dropped it.
    Unknown,
}

impl ActionHandle {
    /// The id under which the action was submitted.
    pub fn action_id(&self) -> &ActionId {
        &self.action_id
    }

    /// Waits for the receipt, even while the action awaits an approval.
    pub async fn receipt(&self) -> Result<Done, Rejected> {
        match self.inner.running.runtime.pipeline().wait(&self.action_id).await? {
            Answer::Done(done) => Ok(self.inner.with_result(done).await),
            Answer::Refused(failure) => Err(failure.into()),
            // Cannot happen: `wait` does not return for a pending approval.
            Answer::Held(approval) => {
                let message = format!("{} awaits the approval {}", self.action_id, approval.approval_id);
                Err(Failure::new(Code::Internal, Phase::Hold, message).into())
            }
        }
    }

    /// The state of the action now.
    pub async fn status(&self) -> Result<ActionStatus, Rejected> {
        let view = match self.inner.client.another().status(&self.action_id).await? {
            ActionReply::View(view) => view,
            ActionReply::Problem(problem) if problem.code == Kind::ActionUnknown.code() => {
                return Ok(ActionStatus::Unknown);
            }
            ActionReply::Problem(problem) => return Err(failure_of(&problem).into()),
        };
        Ok(match (view.state, view.receipt, view.approval) {
            (ActionState::Done | ActionState::Ended, Some(receipt), _) => ActionStatus::Done(receipt),
            (ActionState::Held, _, Some(held)) => ActionStatus::AwaitingApproval(held.approval_id),
            (ActionState::Done | ActionState::Ended | ActionState::Held | ActionState::Accepted, _, _) => {
                ActionStatus::Accepted
            }
        })
    }

    /// Cancels the action if it has not started.
    pub async fn cancel(&self) -> Result<Cancellation, Rejected> {
        match self.inner.running.runtime.cancel(&self.action_id).await? {
            Withdrawal::Now(done) => Ok(Cancellation::Cancelled(done)),
            Withdrawal::Ended(done) => Ok(Cancellation::AlreadyEnded(self.inner.with_result(done).await)),
            Withdrawal::Begun => Ok(Cancellation::AlreadyStarted),
            Withdrawal::Unknown => Ok(Cancellation::Unknown),
        }
    }
}
