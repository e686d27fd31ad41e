//! The outcome of an action, and its word in each vocabulary.
//!
//! Receipts, plan results, invocations, HTTP and automation steps each have their own words. All of them are projections of
//! [`Outcome`], and [`Outcome::project`] is the one table, so that no two parts can disagree about what happened.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::receipt::Status;

crate::wire_enum! {
    /// How an action ended, or its current state.
    pub enum Outcome {
        /// It was done, and verified where that is required.
        Executed = "executed",
        /// It had been done before; the earlier receipt is the answer.
        CachedHit = "cached_hit",
        /// It was a dry run, as requested.
        DryRun = "dry_run",
        /// It was a dry run, since the operator has paused effects.
        Paused = "paused",
        /// It did not start, since an earlier item of its batch failed.
        NotStarted = "not_started",
        /// It waits for an approval.
        AwaitingApproval = "awaiting_approval",
        /// It was approved and is about to run.
        Approved = "approved",
        /// It is running after an approval.
        Executing = "executing",
        /// The policy refused it.
        DeniedPolicy = "denied_policy",
        /// Its content is held for review.
        Quarantined = "quarantined",
        /// A person refused it.
        DeniedHuman = "denied_human",
        /// Nobody decided in time.
        Expired = "expired",
        /// The request is invalid.
        Invalid = "invalid",
        /// There is no such tool.
        NotFound = "not_found",
        /// It was not admitted; retry later.
        Throttled = "throttled",
        /// It failed, and its effect was undone.
        Reverted = "reverted",
        /// It failed.
        Failed = "failed",
        /// It ran out of time and was not undone.
        TimedOut = "timed_out",
        /// The circuit breaker is open.
        BreakerOpen = "breaker_open",
        /// Whether it happened cannot be determined.
        Indeterminate = "indeterminate",
        /// It was withdrawn before it started.
        Cancelled = "cancelled",
    }
}

crate::wire_enum! {
    /// The status of a plan result.
    pub enum PlanStatus {
        /// Completed; the required verification passed.
        Succeeded = "succeeded",
        /// Failed; the rollback restored the previous state.
        Reverted = "reverted",
        /// Waits for an approval.
        Queued = "queued",
        /// Refused by policy, scope or safety.
        Rejected = "rejected",
        /// Failed without a rollback.
        Failed = "failed",
    }
}

/// The status of an invocation, in seven words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InvocationStatus {
    /// Waits for an approval.
    Pending,
    /// Approved.
    Approved,
    /// Running.
    Executing,
    /// Done.
    Completed,
    /// Refused.
    Denied,
    /// Nobody decided in time.
    Expired,
    /// Failed.
    Failed,
}

crate::wire_enum! {
    /// The status of an invocation, in five words.
    pub enum InvocationBrief {
        /// Not decided or not finished.
        Pending = "pending",
        /// Done.
        Executed = "executed",
        /// Refused; [`DeniedReason`] says by whom.
        Denied = "denied",
        /// Nobody decided in time.
        Expired = "expired",
        /// Failed.
        Failed = "failed",
    }
}

/// Who refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeniedReason {
    /// The policy.
    Policy,
    /// A person.
    Human,
    /// Nobody: it expired.
    Expired,
}

/// The status of a step of an automation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    /// Done.
    Succeeded,
    /// Left out on purpose.
    Skipped,
    /// Waits for an approval.
    Waiting,
    /// The runner will retry it.
    Retried,
    /// Failed.
    Failed,
    /// Withdrawn.
    Cancelled,
}

/// The status of an automation's run after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Continues, or waits.
    Running,
    /// Done.
    Succeeded,
    /// Failed.
    Failed,
    /// Withdrawn.
    Cancelled,
    /// Out of time.
    TimedOut,
}

/// One outcome in every vocabulary. `None`: this vocabulary has no word for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Projection {
    /// The receipt's status.
    pub receipt: Option<Status>,
    /// The plan result's status.
    pub plan: Option<PlanStatus>,
    /// The invocation's status, in seven words.
    pub invocation: Option<InvocationStatus>,
    /// The invocation's status, in five words, with who refused.
    pub brief: Option<(InvocationBrief, Option<DeniedReason>)>,
    /// The HTTP status of the response.
    pub http: u16,
    /// The automation step.
    pub step: StepStatus,
    /// The automation's run after this step.
    pub run: RunStatus,
}

impl Outcome {
    /// The outcome in every vocabulary.
    #[rustfmt::skip] // One row an outcome, as in the documentation.
    pub const fn project(self) -> Projection {
        use {DeniedReason as D, InvocationBrief as B, InvocationStatus as I, PlanStatus as P, RunStatus as R, StepStatus as T};
        const OK: Option<Status> = Some(Status::Ok);
        const ERROR: Option<Status> = Some(Status::Error);
        const SKIPPED: Option<Status> = Some(Status::Skipped);
        const QUARANTINED: Option<Status> = Some(Status::Quarantined);
        const DONE: Option<(B, Option<D>)> = Some((B::Executed, None));
        const PENDING: Option<(B, Option<D>)> = Some((B::Pending, None));
        const FAILED: Option<(B, Option<D>)> = Some((B::Failed, None));
        const EXPIRED: Option<(B, Option<D>)> = Some((B::Expired, Some(D::Expired)));
        const BY_POLICY: Option<(B, Option<D>)> = Some((B::Denied, Some(D::Policy)));
        const BY_HUMAN: Option<(B, Option<D>)> = Some((B::Denied, Some(D::Human)));
        let (receipt, plan, invocation, brief, http, step, run) = match self {
            Self::Executed | Self::CachedHit => (OK, Some(P::Succeeded), Some(I::Completed), DONE, 200, T::Succeeded, R::Succeeded),
            Self::DryRun | Self::Paused => (SKIPPED, Some(P::Succeeded), Some(I::Completed), DONE, 200, T::Succeeded, R::Succeeded),
            Self::NotStarted => (SKIPPED, Some(P::Rejected), Some(I::Denied), BY_POLICY, 200, T::Skipped, R::Running),
            Self::AwaitingApproval => (None, Some(P::Queued), Some(I::Pending), PENDING, 202, T::Waiting, R::Running),
            Self::Approved => (None, None, Some(I::Approved), PENDING, 200, T::Waiting, R::Running),
            Self::Executing => (None, None, Some(I::Executing), PENDING, 200, T::Waiting, R::Running),
            Self::DeniedPolicy => (ERROR, Some(P::Rejected), Some(I::Denied), BY_POLICY, 403, T::Failed, R::Failed),
            Self::Quarantined => (QUARANTINED, Some(P::Rejected), Some(I::Denied), BY_POLICY, 403, T::Failed, R::Failed),
            Self::DeniedHuman => (ERROR, Some(P::Rejected), Some(I::Denied), BY_HUMAN, 200, T::Failed, R::Failed),
            Self::Expired => (ERROR, Some(P::Rejected), Some(I::Expired), EXPIRED, 410, T::Failed, R::Failed),
            Self::Invalid => (ERROR, Some(P::Rejected), None, None, 400, T::Failed, R::Failed),
            Self::NotFound => (ERROR, Some(P::Rejected), None, None, 404, T::Failed, R::Failed),
            Self::Throttled => (None, Some(P::Rejected), None, None, 429, T::Retried, R::Running),
            Self::Reverted => (ERROR, Some(P::Reverted), Some(I::Failed), FAILED, 502, T::Failed, R::Failed),
            Self::TimedOut => (ERROR, Some(P::Failed), Some(I::Failed), FAILED, 502, T::Failed, R::TimedOut),
            Self::Failed | Self::BreakerOpen | Self::Indeterminate => (ERROR, Some(P::Failed), Some(I::Failed), FAILED, 502, T::Failed, R::Failed),
            Self::Cancelled => (SKIPPED, Some(P::Rejected), Some(I::Denied), BY_HUMAN, 409, T::Cancelled, R::Cancelled),
        };
        Projection { receipt, plan, invocation, brief, http, step, run }
    }

    /// Whether the request, the policy, a person or a limit stopped the action. The tool has not failed.
    pub const fn is_refusal(self) -> bool {
        match self {
            Self::DeniedPolicy
            | Self::Quarantined
            | Self::DeniedHuman
            | Self::Expired
            | Self::Invalid
            | Self::NotFound
            | Self::Throttled
            | Self::BreakerOpen
            | Self::Cancelled
            | Self::NotStarted => true,
            Self::Executed
            | Self::CachedHit
            | Self::DryRun
            | Self::Paused
            | Self::AwaitingApproval
            | Self::Approved
            | Self::Executing
            | Self::Reverted
            | Self::Failed
            | Self::TimedOut
            | Self::Indeterminate => false,
        }
    }

    /// Whether the action was done by this very request. Only then it earns the reward of a success.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Executed)
    }
}
