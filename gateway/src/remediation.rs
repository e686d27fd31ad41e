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
            let usual = match failure.code {
                Code::PolicyDenied => of_gate(failure.gate),
                $($(Code::$code)|+ => By::$by.can($what),)*
            };
            match &failure.change {
                // A store that names a remedy cannot help itself.
                Some(what) if failure.code == Code::StoreUnavailable => By::Operator.can(what),
                Some(what) => usual.by.can(what),
                None => usual,
            }
        }
    };
}

remediations! {
    Malformed => Planner, "send a request that fits the schema of requests";
    ParamsInvalid => Planner, "send parameters that fit the tool's schema";
    UnknownTool => Planner, "name a tool that is registered here";
    SessionUnknown => Planner, "name a session of yours that has not ended, for its subject and in its space";
    ActionConflict => Planner, "choose a new action id: this one is already used";
    SafetyQuarantined => Planner, "leave out the quarantined content; an operator can review it";
    HumanDenied => Planner, "propose something else: a person denied this";
    ApprovalExpired => Planner, "retry with a new action id when somebody can decide";
    NetworkNotWhitelisted => Operator, "allow the host in the policy";
    ScopeDenied => Planner, "name in the plan's scope the files that the action changes";
    ToolDisabled => Operator, "enable the tool again";
    ToolDrifted => Operator, "look at what has changed: `effectd connectors review`, `effectd plugins add`";
    PluginCodeDisabled => Operator, "let code of plugins run: set plugins.allow_code_execution to true";
    InterpreterMissing => Operator, "install the interpreter where the system's programs are: `effectd plugins list` names it";
    RateLimited => Time, "retry later and less often";
    PendingLimit => Time, "retry when the pending approvals are decided";
    Overloaded => Time, "retry later";
    ShuttingDown => Time, "retry when the daemon is up";
    BreakerOpen => Time, "retry when the tool has had time to recover";
    IdempotencyConflict => Planner, "choose another idempotency key: this one is already used for other parameters";
    TimedOut => Planner, "allow more time in qos.timeout_ms, or request less at once";
    CpuLimit | MemoryLimit | OutputLimit | ProcessLimit | FileLimit => Planner, "request less at once";
    PathDenied => Planner, "name a path inside the space that is not protected";
    PermissionDenied => Operator, "give the space's files permissions that the tool can use";
    FileNotFound | NotAFile | NotAFolder | NotText | ArchiveInvalid => Planner, "check what is at the path, and name one that fits the tool";
    FileExists => Planner, "choose another path, or allow the overwrite";
    StateChanged => Planner, "read the current state, and decide again";
    DiskFull => Operator, "free space on the disk of the space or the state directory";
    UndoGone => Planner, "propose an action that restores the previous state";
    ResultGone => Planner, "if the tool only reads, send the request with a new action id, and a new idempotency key if it has one; otherwise that carries it out again";
    NetworkDenied | SyscallDenied => Operator, "check the tool: it tried something that its profile forbids";
    SandboxUnavailable => Operator, "run `effectd doctor` on this host";
    ConnectionMissing => Operator, "create or enable the connection: `effectd connections list`";
    SecretMissing => Operator, "set the secret: `effectd secrets set`";
    EgressRefused => Planner, "ask what the connection allows, as the message says; an operator can add a route";
    EgressFailed => Time, "retry with a new action id; `effectd connections test` says more to an operator";
    ServiceRefused => Planner, "read the message; the service says why it does not do this, such as a missing permission of the token";
    SandboxFailed | ToolBusy => Time, "retry with a new action id";
    ToolFailed => Planner, "read the message; the tool could not do this";
    EffectsUndeclared => Operator, "check the tool: it did more than it declares; `effectd tools show` has the details";
    ResultInvalid => Operator, "check the tool: its reply violates its own schema";
    VerificationFailed => Planner, "read what the checks say, and send a better plan with a new action id";
    RollbackFailed => Operator, "compare the paths that the receipt names with what they should be, and restore them";
    OutcomeUnknown => Operator, "find out whether the effect happened; do not retry before that";
    NotStarted | BatchRolledBack | BatchIncomplete => Planner, "see what each item came to, and send what is left as another batch";
    Cancelled => Planner, "it was withdrawn; retry with a new action id";
    StoreUnavailable => Time, "retry with the same action id: an accepted action is not done twice";
    Internal => Operator, "read the daemon's log";
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
        Some(Gate::Space) => (By::Planner, "stay inside the space, or request something less risky there"),
        Some(Gate::Safety) => (By::Planner, "leave the unsafe content out"),
        Some(Gate::Redaction) => (By::Planner, "leave the personal data out"),
        None => (By::Operator, "permit it in the policy; `effectd policy explain` says which rule decided"),
    };
    by.can(what)
}
