//! Remediation: what has to change for a refused action to succeed, and who can change it.

use effectd_contracts::{Code, Failure, Gate};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What has to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    pub by: By,
    /// One line, for people.
    pub what: String,
}

/// Who can change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The planner, with a different request under a new action id.
    Planner,
    /// The operator of this daemon.
    Operator,
    /// Nobody: the same request may succeed later.
    Time,
}

/// Declares the table of remediations: codes, who, what.
macro_rules! remediations {
    ($($($code:ident)|+ => $by:ident, $what:literal;)*) => {
        /// The remediation for a failure.
        pub(crate) fn of(failure: &Failure) -> Change {
            match failure.code {
                Code::PolicyDenied => of_gate(failure.gate),
                $($(Code::$code)|+ => By::$by.can($what),)*
            }
        }
    };
}

remediations! {
    Malformed => Planner, "send a request that fits the schema of requests";
    ParamsInvalid => Planner, "send parameters that fit the tool's schema";
    UnknownTool => Planner, "name a tool that is registered here";
    ActionConflict => Planner, "choose a new action id: this one stands for something else";
    SafetyQuarantined => Planner, "leave the content out that must not go there; an operator can look at what was held";
    HumanDenied => Planner, "propose something else: a person refused this";
    ApprovalExpired => Planner, "ask again under a new action id, when somebody can decide";
    NetworkNotWhitelisted => Operator, "allow the host in the policy";
    ToolDisabled => Operator, "switch the tool on again";
    RateLimited => Time, "ask again later, and less often";
    PendingLimit => Time, "ask again when somebody has decided about what waits";
    Overloaded => Time, "ask again later";
    ShuttingDown => Time, "ask again when the daemon is up";
    BreakerOpen => Time, "ask again when the tool has had time to recover";
    IdempotencyConflict => Planner, "choose another idempotency key: this one stands for other parameters";
    TimedOut => Planner, "allow more time in qos.timeout_ms, or ask for less at once";
    CpuLimit | MemoryLimit | OutputLimit | ProcessLimit | FileLimit => Planner, "ask for less at once";
    PathDenied => Planner, "name a path inside the space";
    PermissionDenied => Operator, "give the space's files permissions that the tool can use";
    FileNotFound | NotAFile | NotAFolder | NotText | ArchiveInvalid => Planner, "look at what is there, and name what fits the tool";
    FileExists => Planner, "choose another place, or ask for it to be overwritten";
    StateChanged => Planner, "look again at what is there, and decide anew";
    DiskFull => Operator, "make room on the disk of the space";
    UndoGone => Planner, "propose an action that brings about what is wanted";
    NetworkDenied | SyscallDenied => Operator, "look at the tool: it tried what its profile forbids";
    SandboxUnavailable => Operator, "run `effectd doctor` on this host";
    SandboxFailed | ToolBusy => Time, "ask again under a new action id";
    ToolFailed => Planner, "read the message; the tool could not do this";
    EffectsUndeclared => Operator, "look at the tool: it did more than it declares; `effectd tools show` says what";
    ResultInvalid => Operator, "look at the tool: its answer breaks its own schema";
    OutcomeUnknown => Operator, "look whether it happened; until somebody has, do not ask for it again";
    Reverted => Planner, "the effect was undone; ask again under a new action id";
    Cancelled => Planner, "it was withdrawn; ask again under a new action id";
    StoreUnavailable => Time, "ask again with the same action id: if it was taken, it is not done twice";
    Internal => Operator, "look at the log";
}

impl By {
    pub(crate) fn can(self, what: &str) -> Change {
        let (by, what) = (self, what.to_owned());
        Change { by, what }
    }
}

fn of_gate(gate: Option<Gate>) -> Change {
    let (by, what) = match gate {
        Some(Gate::Rbac) => {
            (By::Operator, "give the subject a role with the capabilities that the tool requires")
        }
        Some(Gate::Abac) => {
            (By::Operator, "permit the circumstances (actor, device, space, time) in the Cedar policy")
        }
        Some(Gate::Consent) => (By::Operator, "record the consent for this tool"),
        Some(Gate::Space) => (By::Planner, "stay inside the space, or ask for something less risky there"),
        Some(Gate::Safety) => (By::Planner, "leave the unsafe content out"),
        Some(Gate::Redaction) => (By::Planner, "leave the personal data out"),
        None => (By::Operator, "permit it in the policy; `effectd policy explain` says which rule decided"),
    };
    by.can(what)
}
