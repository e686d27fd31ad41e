//! What would have to change for a refused action to be done, and who can change it: an answer that a planner can act on
//! without understanding prose.

use effectd_contracts::{Code, Failure, Gate};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What would have to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// Who can change it.
    pub by: By,
    /// What, in one line.
    pub what: String,
}

/// Who can change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The one who asked: with a different request, under a new action id.
    Planner,
    /// The one who runs effectd here.
    Operator,
    /// Nobody has to: ask again later.
    Time,
}

/// What would have to change for this failure not to come again.
pub(crate) fn of(failure: &Failure) -> Change {
    let (by, what) = match failure.code {
        Code::Malformed => (By::Planner, "send a request that fits the schema of requests"),
        Code::ParamsInvalid => (By::Planner, "send parameters that fit the tool's schema"),
        Code::UnknownTool => (By::Planner, "name a tool that is registered here"),
        Code::ActionConflict => (
            By::Planner,
            "choose a new action id: this one stands for something else",
        ),
        Code::PolicyDenied => return gate(failure.gate),
        Code::SafetyQuarantined => (
            By::Planner,
            "leave the content out that must not go there; an operator can look at what was held",
        ),
        Code::HumanDenied => (By::Planner, "propose something else: a person refused this"),
        Code::ApprovalExpired => (
            By::Planner,
            "ask again under a new action id, when somebody can decide",
        ),
        Code::NetworkNotWhitelisted => (By::Operator, "allow the host in the policy"),
        Code::ToolDisabled => (By::Operator, "switch the tool on again"),
        Code::RateLimited => (By::Time, "ask again later, and less often"),
        Code::PendingLimit => (By::Time, "ask again when somebody has decided about what waits"),
        Code::Overloaded => (By::Time, "ask again later"),
        Code::ShuttingDown => (By::Time, "ask again when the daemon is up"),
        Code::BreakerOpen => (By::Time, "ask again when the tool has had time to recover"),
        Code::IdempotencyConflict => (
            By::Planner,
            "choose another idempotency key: this one stands for other parameters",
        ),
        Code::TimedOut => (
            By::Planner,
            "allow more time in qos.timeout_ms, or ask for less at once",
        ),
        Code::CpuLimit | Code::MemoryLimit | Code::OutputLimit | Code::ProcessLimit | Code::FileLimit => {
            (By::Planner, "ask for less at once")
        }
        Code::PathDenied => (By::Planner, "name a path inside the space"),
        Code::PermissionDenied => (
            By::Operator,
            "give the space's files permissions that the tool can use",
        ),
        Code::FileNotFound | Code::NotAFile | Code::NotAFolder | Code::NotText | Code::ArchiveInvalid => {
            (By::Planner, "look at what is there, and name what fits the tool")
        }
        Code::FileExists => (
            By::Planner,
            "choose another place, or ask for it to be overwritten",
        ),
        Code::StateChanged => (By::Planner, "look again at what is there, and decide anew"),
        Code::DiskFull => (By::Operator, "make room on the disk of the space"),
        Code::UndoGone => (By::Planner, "propose an action that brings about what is wanted"),
        Code::NetworkDenied | Code::SyscallDenied => (
            By::Operator,
            "look at the tool: it tried what its profile forbids",
        ),
        Code::SandboxUnavailable => (By::Operator, "run `effectd doctor` on this host"),
        Code::SandboxFailed | Code::ToolBusy => (By::Time, "ask again under a new action id"),
        Code::ToolFailed => (By::Planner, "read the message; the tool could not do this"),
        Code::EffectsUndeclared => (
            By::Operator,
            "look at the tool: it did more than it declares; `effectd tools show` says what",
        ),
        Code::ResultInvalid => (By::Operator, "look at the tool: its answer breaks its own schema"),
        Code::OutcomeUnknown => (
            By::Operator,
            "look whether it happened; until somebody has, do not ask for it again",
        ),
        Code::Reverted => (
            By::Planner,
            "the effect was undone; ask again under a new action id",
        ),
        Code::Cancelled => (By::Planner, "it was withdrawn; ask again under a new action id"),
        Code::StoreUnavailable => (
            By::Time,
            "ask again with the same action id: if it was taken, it is not done twice",
        ),
        Code::Internal => (By::Operator, "look at the log"),
    };
    Change {
        by,
        what: what.to_owned(),
    }
}

fn gate(gate: Option<Gate>) -> Change {
    let (by, what) = match gate {
        Some(Gate::Rbac) => (
            By::Operator,
            "give the subject a role with the capabilities that the tool requires",
        ),
        Some(Gate::Abac) => (
            By::Operator,
            "permit the circumstances (actor, device, space, time) in the Cedar policy",
        ),
        Some(Gate::Consent) => (By::Operator, "record the consent for this tool"),
        Some(Gate::Space) => (
            By::Planner,
            "stay inside the space, or ask for something less risky there",
        ),
        Some(Gate::Safety) => (By::Planner, "leave the unsafe content out"),
        Some(Gate::Redaction) => (By::Planner, "leave the personal data out"),
        None => (
            By::Operator,
            "permit it in the policy; `effectd policy explain` says which rule decided",
        ),
    };
    Change {
        by,
        what: what.to_owned(),
    }
}
