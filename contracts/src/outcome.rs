//! The one canonical result of an action, and how each vocabulary of the outside world says it.
//!
//! Receipts, plan results, invocations, HTTP and automation steps each have words of their own. They are all projections
//! of [`Outcome`], written down once in [`Outcome::project`], so that no two parts can disagree about what happened.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::receipt::Status;

/// What became of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was done, and verified where that is required.
    Executed,
    /// It had been done before; the old receipt is the answer.
    CachedHit,
    /// It was only tried out, as asked.
    DryRun,
    /// It was only tried out, since the operator has paused effects.
    Paused,
    /// It was not begun, since an earlier item of its batch failed.
    NotStarted,
    /// It waits for a person.
    AwaitingApproval,
    /// A person said yes; it is about to run.
    Approved,
    /// It runs after a person said yes.
    Executing,
    /// A rule said no.
    DeniedPolicy,
    /// Its content is held for review.
    Quarantined,
    /// A person said no.
    DeniedHuman,
    /// Nobody decided in time.
    Expired,
    /// The request makes no sense.
    Invalid,
    /// There is no such tool.
    NotFound,
    /// It was not admitted; come back later.
    Throttled,
    /// It failed, and its effect was undone.
    Reverted,
    /// It failed for good.
    Failed,
    /// It ran out of time and was not undone.
    TimedOut,
    /// Its circuit breaker is open.
    BreakerOpen,
    /// Whether it happened cannot be told.
    Indeterminate,
    /// It was withdrawn before it began.
    Cancelled,
}

/// The terminal words of a plan result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlanStatus {
    /// Completed, and required verification passed.
    Succeeded,
    /// Failed, and rollback restored what was there.
    Reverted,
    /// Waits for a person.
    Queued,
    /// Refused by policy, scope or safety.
    Rejected,
    /// Failed without a safe way back.
    Failed,
}

/// The full life of an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InvocationStatus {
    /// Waits for a person.
    Pending,
    /// A person said yes.
    Approved,
    /// Runs.
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

/// The short life of an invocation, as the newer interface has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InvocationBrief {
    /// Not decided or not finished.
    Pending,
    /// Done.
    Executed,
    /// Refused, with the reason beside it.
    Denied,
    /// Nobody decided in time.
    Expired,
    /// Failed.
    Failed,
}

/// Who refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeniedReason {
    /// A rule.
    Policy,
    /// A person.
    Human,
    /// The clock.
    Expired,
}

/// A step of an automation run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    /// Done.
    Succeeded,
    /// Left out on purpose.
    Skipped,
    /// Waits for a person.
    Waiting,
    /// Will be tried again by the runner.
    Retried,
    /// Failed.
    Failed,
    /// Withdrawn.
    Cancelled,
}

/// The run that a step ends or keeps going.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Goes on, or waits.
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

/// One outcome in every vocabulary. `None` means that this vocabulary has no word, since nothing is recorded there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Projection {
    /// The receipt's status.
    pub receipt: Option<Status>,
    /// The plan result's status.
    pub plan: Option<PlanStatus>,
    /// The invocation's status, all seven.
    pub invocation: Option<InvocationStatus>,
    /// The invocation's status, the five, with who refused.
    pub brief: Option<(InvocationBrief, Option<DeniedReason>)>,
    /// The HTTP status of the answer.
    pub http: u16,
    /// The automation step.
    pub step: StepStatus,
    /// The automation run, if this step decides it.
    pub run: RunStatus,
}

impl Outcome {
    /// The wire form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Executed => "executed",
            Outcome::CachedHit => "cached_hit",
            Outcome::DryRun => "dry_run",
            Outcome::Paused => "paused",
            Outcome::NotStarted => "not_started",
            Outcome::AwaitingApproval => "awaiting_approval",
            Outcome::Approved => "approved",
            Outcome::Executing => "executing",
            Outcome::DeniedPolicy => "denied_policy",
            Outcome::Quarantined => "quarantined",
            Outcome::DeniedHuman => "denied_human",
            Outcome::Expired => "expired",
            Outcome::Invalid => "invalid",
            Outcome::NotFound => "not_found",
            Outcome::Throttled => "throttled",
            Outcome::Reverted => "reverted",
            Outcome::Failed => "failed",
            Outcome::TimedOut => "timed_out",
            Outcome::BreakerOpen => "breaker_open",
            Outcome::Indeterminate => "indeterminate",
            Outcome::Cancelled => "cancelled",
        }
    }

    /// All outcomes.
    pub const ALL: [Outcome; 21] = [
        Outcome::Executed,
        Outcome::CachedHit,
        Outcome::DryRun,
        Outcome::Paused,
        Outcome::NotStarted,
        Outcome::AwaitingApproval,
        Outcome::Approved,
        Outcome::Executing,
        Outcome::DeniedPolicy,
        Outcome::Quarantined,
        Outcome::DeniedHuman,
        Outcome::Expired,
        Outcome::Invalid,
        Outcome::NotFound,
        Outcome::Throttled,
        Outcome::Reverted,
        Outcome::Failed,
        Outcome::TimedOut,
        Outcome::BreakerOpen,
        Outcome::Indeterminate,
        Outcome::Cancelled,
    ];

    /// The outcome in every vocabulary. Exhaustive on purpose: a new outcome must decide all of them.
    pub const fn project(self) -> Projection {
        use InvocationBrief as B;
        use InvocationStatus as I;
        use PlanStatus as P;
        let policy = Some((B::Denied, Some(DeniedReason::Policy)));
        let human = Some((B::Denied, Some(DeniedReason::Human)));
        let failed = Some((B::Failed, None));
        let done = Some((B::Executed, None));
        let pending = Some((B::Pending, None));
        let (receipt, plan, invocation, brief, http) = match self {
            Self::Executed | Self::CachedHit => (
                Some(Status::Ok),
                Some(P::Succeeded),
                Some(I::Completed),
                done,
                200,
            ),
            Self::DryRun | Self::Paused => (
                Some(Status::Skipped),
                Some(P::Succeeded),
                Some(I::Completed),
                done,
                200,
            ),
            Self::NotStarted => (
                Some(Status::Skipped),
                Some(P::Rejected),
                Some(I::Denied),
                policy,
                200,
            ),
            Self::AwaitingApproval => (None, Some(P::Queued), Some(I::Pending), pending, 202),
            Self::Approved => (None, None, Some(I::Approved), pending, 200),
            Self::Executing => (None, None, Some(I::Executing), pending, 200),
            Self::DeniedPolicy => (
                Some(Status::Error),
                Some(P::Rejected),
                Some(I::Denied),
                policy,
                403,
            ),
            Self::Quarantined => (
                Some(Status::Quarantined),
                Some(P::Rejected),
                Some(I::Denied),
                policy,
                403,
            ),
            Self::DeniedHuman => (
                Some(Status::Error),
                Some(P::Rejected),
                Some(I::Denied),
                human,
                200,
            ),
            Self::Expired => {
                let expired = Some((B::Expired, Some(DeniedReason::Expired)));
                (
                    Some(Status::Error),
                    Some(P::Rejected),
                    Some(I::Expired),
                    expired,
                    410,
                )
            }
            Self::Invalid => (Some(Status::Error), Some(P::Rejected), None, None, 400),
            Self::NotFound => (Some(Status::Error), Some(P::Rejected), None, None, 404),
            Self::Throttled => (None, Some(P::Rejected), None, None, 429),
            Self::Reverted => (
                Some(Status::Error),
                Some(P::Reverted),
                Some(I::Failed),
                failed,
                502,
            ),
            Self::Failed | Self::TimedOut | Self::BreakerOpen | Self::Indeterminate => {
                (Some(Status::Error), Some(P::Failed), Some(I::Failed), failed, 502)
            }
            Self::Cancelled => (
                Some(Status::Skipped),
                Some(P::Rejected),
                Some(I::Denied),
                human,
                409,
            ),
        };
        let (step, run) = self.step_and_run();
        Projection {
            receipt,
            plan,
            invocation,
            brief,
            http,
            step,
            run,
        }
    }

    const fn step_and_run(self) -> (StepStatus, RunStatus) {
        match self {
            Self::Executed | Self::CachedHit | Self::DryRun | Self::Paused => {
                (StepStatus::Succeeded, RunStatus::Succeeded)
            }
            Self::NotStarted => (StepStatus::Skipped, RunStatus::Running),
            Self::AwaitingApproval | Self::Approved | Self::Executing => {
                (StepStatus::Waiting, RunStatus::Running)
            }
            Self::Throttled => (StepStatus::Retried, RunStatus::Running),
            Self::TimedOut => (StepStatus::Failed, RunStatus::TimedOut),
            Self::Cancelled => (StepStatus::Cancelled, RunStatus::Cancelled),
            Self::DeniedPolicy
            | Self::Quarantined
            | Self::DeniedHuman
            | Self::Expired
            | Self::Invalid
            | Self::NotFound
            | Self::Reverted
            | Self::Failed
            | Self::BreakerOpen
            | Self::Indeterminate => (StepStatus::Failed, RunStatus::Failed),
        }
    }

    /// Whether the reward counts it as a success: only what was really done does.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Executed)
    }

    /// Whether it satisfies an idempotency key for later requests.
    pub const fn satisfies_key(self) -> bool {
        matches!(self, Self::Executed)
    }
}
