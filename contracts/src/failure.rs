//! Why an action did not do what was asked, in words that programs can rely on.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::limits::FAILURE_MESSAGE_BYTES_MAX;
use crate::outcome::Outcome;

/// Declares the codes once: variant, wire form, whether trying again may help, the outcome it leads to, and what it means.
macro_rules! codes {
    ($($variant:ident = $wire:literal, $retryable:literal, $outcome:ident, $doc:literal;)*) => {
        /// The stable codes of failures. Their text is part of the wire contract and never changes its meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $doc] $variant,)*
        }

        impl Code {
            /// All codes, in the order of the way of an action.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// The wire form.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $wire,)* }
            }

            /// Whether the same request may succeed later without being changed.
            pub const fn retryable(self) -> bool {
                match self { $(Code::$variant => $retryable,)* }
            }

            /// How an action ends that fails with this code.
            pub const fn outcome(self) -> Outcome {
                match self { $(Code::$variant => Outcome::$outcome,)* }
            }

            /// One line for people.
            pub const fn meaning(self) -> &'static str {
                match self { $(Code::$variant => $doc,)* }
            }
        }
    };
}

codes! {
    Malformed = "malformed", false, Invalid, "The decision is not the JSON that a decision must be.";
    ParamsInvalid = "params_invalid", false, Invalid, "The parameters break the tool's schema or its own rules.";
    UnknownTool = "unknown_tool", false, NotFound, "No tool of this id is registered.";
    ActionConflict = "action_conflict", false, Invalid, "The action id was used before, with other content.";
    PolicyDenied = "policy_denied", false, DeniedPolicy, "A gate of the policy refused the action.";
    SafetyQuarantined = "safety_quarantined", false, Quarantined, "The content is held for review.";
    HumanDenied = "human_denied", false, DeniedHuman, "A person refused the action.";
    ApprovalExpired = "approval_expired", false, Expired, "Nobody decided about the action in time.";
    NetworkNotWhitelisted = "network_not_whitelisted", false, DeniedPolicy, "The tool needs a network host that nobody has allowed.";
    ToolDisabled = "tool_disabled", false, DeniedPolicy, "An operator has switched the tool off.";
    RateLimited = "rate_limited", true, Throttled, "Too many requests in too short a time.";
    PendingLimit = "pending_limit", true, Throttled, "Too many actions of this session are waiting for a person.";
    Overloaded = "overloaded", true, Throttled, "The backlog is full.";
    ShuttingDown = "shutting_down", true, Throttled, "The runtime is stopping and takes no new work.";
    BreakerOpen = "breaker_open", true, BreakerOpen, "The tool failed too often; its circuit breaker is open.";
    IdempotencyConflict = "idempotency_conflict", false, Invalid, "The idempotency key was used before, with other parameters.";
    TimedOut = "timed_out", true, TimedOut, "The tool did not finish in its time and was killed.";
    CpuLimit = "cpu_limit", false, Failed, "The tool used more processor time than it may.";
    MemoryLimit = "memory_limit", false, Failed, "The tool used more memory than it may.";
    OutputLimit = "output_limit", false, Failed, "The tool's answer is larger than it may be.";
    ProcessLimit = "process_limit", false, Failed, "The tool started more processes than it may.";
    FileLimit = "file_limit", false, Failed, "The tool opened or wrote more than it may.";
    PathDenied = "path_denied", false, Failed, "The path is outside of what the tool may touch.";
    PermissionDenied = "permission_denied", false, Failed, "The file's own permissions do not allow it.";
    FileNotFound = "file_not_found", false, Failed, "There is no such file or folder.";
    FileExists = "file_exists", false, Failed, "Something is there already, and the action does not replace it.";
    NotAFile = "not_a_file", false, Failed, "What is there is a folder, a link, a pipe or a device, not a file.";
    NotAFolder = "not_a_folder", false, Failed, "A file stands where a folder is needed.";
    NotText = "not_text", false, Failed, "The file is not UTF-8 text.";
    ArchiveInvalid = "archive_invalid", false, Failed, "The file is not an archive that can be read, or it is damaged.";
    StateChanged = "state_changed", false, Failed, "What the action builds on is not as it expects.";
    DiskFull = "disk_full", true, Failed, "There is no room left on the disk, or in its quota.";
    UndoGone = "undo_gone", false, Failed, "What would have to be put back is not kept, or not any more.";
    NetworkDenied = "network_denied", false, Failed, "The tool tried to use the network.";
    SyscallDenied = "syscall_denied", false, Failed, "The tool made a system call that its profile bans.";
    SandboxUnavailable = "sandbox_unavailable", false, Failed, "This host cannot enforce the sandbox, so nothing was run.";
    SandboxFailed = "sandbox_failed", true, Failed, "The sandboxed process ended without an answer.";
    ToolFailed = "tool_failed", false, Failed, "The tool itself reported an error.";
    ToolBusy = "tool_busy", true, Failed, "The tool reported an error that may pass.";
    ResultInvalid = "result_invalid", false, Failed, "The tool's answer breaks its own result schema.";
    EffectsUndeclared = "effects_undeclared", false, Failed, "The tool did more than it declares, and is switched off.";
    OutcomeUnknown = "outcome_unknown", false, Indeterminate, "Whether the effect happened cannot be told; a person must settle it.";
    Reverted = "reverted", false, Reverted, "The action failed and its effect was undone.";
    Cancelled = "cancelled", false, Cancelled, "The action was withdrawn before it started.";
    StoreUnavailable = "store_unavailable", true, Failed, "The store cannot be written.";
    Internal = "internal", true, Failed, "A fault of effectd itself.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Code {
    type Err = UnknownCode;
    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        Code::ALL
            .iter()
            .copied()
            .find(|code| code.as_str() == text)
            .ok_or_else(|| UnknownCode(text.to_owned()))
    }
}

/// A code that this version does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown failure code {0:?}")]
pub struct UnknownCode(String);

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Code {
    fn schema_name() -> Cow<'static, str> {
        "Code".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let all: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        json_schema!({ "type": "string", "enum": all })
    }
}

/// Where on its way the action failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// At the door, before anything was remembered.
    Accept,
    /// In the validator.
    Validate,
    /// In the policy gate.
    Gate,
    /// At the idempotency lookup or claim.
    Idempotency,
    /// While waiting for a person.
    Hold,
    /// Before or while the sandbox was entered.
    Sandbox,
    /// While the tool ran.
    Dispatch,
    /// While its answer was read and checked.
    Capture,
    /// While an earlier, interrupted run was settled.
    Settle,
    /// While the receipt was written.
    Record,
}

/// The gates of the policy, in the order in which they are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// Roles: do the subject's capabilities cover the tool's?
    Rbac,
    /// Attributes: device, actor, space, time.
    Abac,
    /// Consent for the purpose `tool:<id>`.
    Consent,
    /// The space: cross-space rules and its risk band.
    Space,
    /// The safety of the content.
    Safety,
    /// Removal of personal data from the parameters.
    Redaction,
}

impl Gate {
    /// All gates, in their order.
    pub const ALL: [Gate; 6] = [
        Gate::Rbac,
        Gate::Abac,
        Gate::Consent,
        Gate::Space,
        Gate::Safety,
        Gate::Redaction,
    ];

    /// The wire form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Gate::Rbac => "rbac",
            Gate::Abac => "abac",
            Gate::Consent => "consent",
            Gate::Space => "space",
            Gate::Safety => "safety",
            Gate::Redaction => "redaction",
        }
    }
}

/// Why an action failed: a code for programs, a line for people, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[serde(deny_unknown_fields)]
#[error("{code}: {message}")]
pub struct Failure {
    /// The stable code.
    pub code: Code,
    /// One line for a person. It never holds parameter values, since it ends up in logs.
    pub message: String,
    /// Whether the same request may succeed later without being changed.
    pub retryable: bool,
    /// Where on its way the action failed.
    pub phase: Phase,
    /// Which gate refused, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Gate>,
    /// When to ask again, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl Failure {
    /// A failure whose `retryable` is what its code says. The message is cut at its bound.
    pub fn new(code: Code, phase: Phase, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > FAILURE_MESSAGE_BYTES_MAX {
            let cut = (0..=FAILURE_MESSAGE_BYTES_MAX - 3)
                .rev()
                .find(|at| message.is_char_boundary(*at));
            message.truncate(cut.unwrap_or(0));
            message.push('…');
        }
        Self {
            code,
            message,
            retryable: code.retryable(),
            phase,
            gate: None,
            retry_after_ms: None,
        }
    }

    /// The same failure, with when to ask again; never at once.
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after_ms = Some(u64::try_from(after.as_millis()).unwrap_or(u64::MAX).max(1));
        self
    }

    /// The same failure, with the gate that refused.
    pub fn at_gate(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::receipt::Status;

    #[test]
    fn codes_are_unique_snake_case_and_read_back() {
        let mut seen = std::collections::BTreeSet::new();
        for code in Code::ALL {
            let wire = code.as_str();
            assert!(seen.insert(wire), "{wire} twice");
            assert!(
                wire.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{wire}"
            );
            assert_eq!(wire.parse(), Ok(*code));
        }
        assert_eq!(
            "denied_ish".parse::<Code>().unwrap_err().to_string(),
            "unknown failure code \"denied_ish\""
        );
    }

    #[test]
    fn no_code_ends_in_a_success() {
        for code in Code::ALL {
            let status = code.outcome().project().receipt;
            assert_ne!(status, Some(Status::Ok), "{code}");
        }
    }

    #[test]
    fn what_cannot_be_repaired_by_waiting_is_not_retryable() {
        for code in [
            Code::ParamsInvalid,
            Code::PolicyDenied,
            Code::SafetyQuarantined,
            Code::OutcomeUnknown,
        ] {
            assert!(!code.retryable(), "{code}");
        }
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let failure = Failure::new(Code::Internal, Phase::Record, "ü".repeat(5_000));
        assert!(failure.message.len() <= FAILURE_MESSAGE_BYTES_MAX && failure.message.ends_with('…'));
    }
}
