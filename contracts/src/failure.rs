//! Failures: why an action did not succeed, as stable codes for programs and a line for people.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::FAILURE_MESSAGE_BYTES_MAX;
use crate::outcome::Outcome;

/// Declares each code once: variant, wire form, whether a retry may help, the outcome, and the meaning.
macro_rules! codes {
    ($($variant:ident = $wire:literal, $retryable:literal, $outcome:ident, $doc:literal;)*) => {
        /// The stable codes of failures. A code never changes its meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $doc] $variant,)*
        }

        impl Code {
            /// All codes, in the order of the stages.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// The wire form.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $wire,)* }
            }

            /// Whether the same request may succeed later without being changed.
            pub const fn retryable(self) -> bool {
                match self { $(Code::$variant => $retryable,)* }
            }

            /// The outcome of an action that fails with this code.
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
    Malformed = "malformed", false, Invalid, "The request is not valid JSON of the expected form.";
    ParamsInvalid = "params_invalid", false, Invalid, "The parameters violate the tool's schema or its own rules.";
    UnknownTool = "unknown_tool", false, NotFound, "There is no tool with this id.";
    SessionUnknown = "session_unknown", false, NotFound, "There is no such session, or it has ended, or it is for another subject or space.";
    ActionConflict = "action_conflict", false, Invalid, "The action id was already used for other content.";
    PolicyDenied = "policy_denied", false, DeniedPolicy, "A gate of the policy refused the action.";
    SafetyQuarantined = "safety_quarantined", false, Quarantined, "The content is quarantined until a person has reviewed it.";
    HumanDenied = "human_denied", false, DeniedHuman, "A person refused the action.";
    ApprovalExpired = "approval_expired", false, Expired, "Nobody decided about the action in time.";
    NetworkNotWhitelisted = "network_not_whitelisted", false, DeniedPolicy, "The tool needs a network host that nobody has allowed.";
    ScopeDenied = "scope_denied", false, DeniedPolicy, "The action would change, or has changed, files outside of its plan's scope.";
    ToolDisabled = "tool_disabled", false, DeniedPolicy, "An operator has disabled the tool.";
    ToolDrifted = "tool_drifted", false, DeniedPolicy, "The tool is not what was judged: its server describes it otherwise, or its package has changed; nothing was called.";
    PluginCodeDisabled = "plugin_code_disabled", false, DeniedPolicy, "The tool is code of a plugin, which the operator does not allow to run.";
    RateLimited = "rate_limited", true, Throttled, "Too many requests in too short a time.";
    PendingLimit = "pending_limit", true, Throttled, "Too many actions of this session are waiting for an approval.";
    Overloaded = "overloaded", true, Throttled, "The backlog is full.";
    ShuttingDown = "shutting_down", true, Throttled, "The runtime is stopping and takes no new work.";
    BreakerOpen = "breaker_open", true, BreakerOpen, "The tool failed too often, and its circuit breaker is open.";
    IdempotencyConflict = "idempotency_conflict", false, Invalid, "The idempotency key was already used with other parameters.";
    TimedOut = "timed_out", true, TimedOut, "The tool exceeded its timeout and was killed.";
    CpuLimit = "cpu_limit", false, Failed, "The tool exceeded its processor time limit.";
    MemoryLimit = "memory_limit", false, Failed, "The tool exceeded its memory limit.";
    OutputLimit = "output_limit", false, Failed, "The tool's reply exceeds its size limit.";
    ProcessLimit = "process_limit", false, Failed, "The tool exceeded its process limit.";
    FileLimit = "file_limit", false, Failed, "The tool exceeded its limit of open files or written bytes.";
    PathDenied = "path_denied", false, Failed, "The path is outside of the paths that the tool may access.";
    PermissionDenied = "permission_denied", false, Failed, "The file's own permissions do not allow it.";
    FileNotFound = "file_not_found", false, Failed, "There is no such file or folder.";
    FileExists = "file_exists", false, Failed, "The path exists already, and the action does not replace it.";
    NotAFile = "not_a_file", false, Failed, "The path is a folder, a link, a pipe or a device, not a file.";
    NotAFolder = "not_a_folder", false, Failed, "There is a file where a folder is needed.";
    NotText = "not_text", false, Failed, "The file is not UTF-8 text.";
    ArchiveInvalid = "archive_invalid", false, Failed, "The file is not a known kind of archive, or it is damaged.";
    StateChanged = "state_changed", false, Failed, "A precondition of the action does not hold, or a file has changed.";
    DiskFull = "disk_full", true, Failed, "The disk or its quota is full.";
    UndoGone = "undo_gone", false, Failed, "The pre-image for the undo was not stored, or was removed.";
    NetworkDenied = "network_denied", false, Failed, "The tool tried to use the network.";
    SyscallDenied = "syscall_denied", false, Failed, "The tool made a system call that its profile bans.";
    SandboxUnavailable = "sandbox_unavailable", false, Failed, "This host cannot enforce the sandbox, so the tool did not run.";
    SandboxFailed = "sandbox_failed", true, Failed, "The sandboxed process ended without a reply.";
    ToolFailed = "tool_failed", false, Failed, "The tool itself reported an error.";
    ToolBusy = "tool_busy", true, Failed, "The tool reported a transient error.";
    InterpreterMissing = "interpreter_missing", false, Failed, "This machine does not have the program that runs the plugin's script.";
    ConnectionMissing = "connection_missing", false, Failed, "The organisation has no connection, or no enabled one, for this tool.";
    SecretMissing = "secret_missing", false, Failed, "The connection's secret has no value.";
    EgressRefused = "egress_refused", false, DeniedPolicy, "The request leads where its connection does not allow.";
    EgressFailed = "egress_failed", true, Failed, "The service could not be reached, or gave no whole answer.";
    ServiceRefused = "service_refused", false, Failed, "The service answered that it does not do this.";
    ResultInvalid = "result_invalid", false, Failed, "The tool's reply violates its own result schema.";
    ResultGone = "result_gone", false, Failed, "The tool's result is no longer stored.";
    EffectsUndeclared = "effects_undeclared", false, Failed, "The tool did more than it declares and was disabled.";
    VerificationFailed = "verification_failed", false, Failed, "The tool ran, and a check of the plan did not pass.";
    RollbackFailed = "rollback_failed", false, Failed, "The plan failed, and not every file is as it was before; a person must look.";
    OutcomeUnknown = "outcome_unknown", false, Indeterminate, "Whether the effect happened is unknown; a person must settle it.";
    NotStarted = "not_started", false, NotStarted, "It did not start, since its batch ended before.";
    BatchRolledBack = "batch_rolled_back", false, Reverted, "An item of the batch failed, and nothing of the batch is left.";
    BatchIncomplete = "batch_incomplete", false, Failed, "An item of the batch failed, and others are done or could not be undone.";
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
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Code {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Code".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let all: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        schemars::json_schema!({ "type": "string", "enum": all })
    }
}

crate::wire_enum! {
    /// The stage at which an action failed.
    pub enum Phase {
        /// When it was submitted, before anything was stored.
        Accept = "accept",
        /// In the validator.
        Validate = "validate",
        /// In the policy gate.
        Gate = "gate",
        /// At the lookup or the claim of its idempotency key.
        Idempotency = "idempotency",
        /// While it was waiting for an approval.
        Hold = "hold",
        /// Before or while the sandbox was entered.
        Sandbox = "sandbox",
        /// While the tool ran.
        Dispatch = "dispatch",
        /// While the tool's reply was read and checked.
        Capture = "capture",
        /// During the settlement of an interrupted run.
        Settle = "settle",
        /// While the receipt was written.
        Record = "record",
    }
}

crate::wire_enum! {
    /// The gates of the policy, in the order in which they decide.
    pub enum Gate {
        /// Roles: whether the subject's capabilities cover the tool's.
        Rbac = "rbac",
        /// Attributes: device, actor, space, time.
        Abac = "abac",
        /// Consent for the purpose `tool:<id>`.
        Consent = "consent",
        /// The space: its band, and rules about other spaces.
        Space = "space",
        /// The safety of the content.
        Safety = "safety",
        /// The removal of personal data from the parameters.
        Redaction = "redaction",
    }
}

/// Why an action failed: a code for programs, a line for people, and what to do about it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[serde(deny_unknown_fields)]
#[error("{code}: {message}")]
pub struct Failure {
    /// The stable code.
    pub code: Code,
    /// One line for people. It never holds parameter values, since it is logged.
    pub message: String,
    /// Whether the same request may succeed later without being changed.
    pub retryable: bool,
    /// The stage at which the action failed.
    pub phase: Phase,
    /// The gate that refused, if one did.
    pub gate: Option<Gate>,
    /// When to retry, if that is known.
    pub retry_after_ms: Option<u64>,
    /// What to change, in the words of the policy that refused or of the store that failed.
    pub change: Option<String>,
}

impl Failure {
    /// A failure with the `retryable` of its code. A message that is too long is cut.
    pub fn new(code: Code, phase: Phase, message: impl Into<String>) -> Self {
        Self {
            code,
            message: cut(message.into()),
            retryable: code.retryable(),
            phase,
            gate: None,
            retry_after_ms: None,
            change: None,
        }
    }

    /// Adds what to change for another decision.
    pub fn unless(mut self, change: impl Into<String>) -> Self {
        self.change = Some(cut(change.into()));
        self
    }

    /// Adds when to retry: at least one millisecond from now.
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after_ms = Some(u64::try_from(after.as_millis()).unwrap_or(u64::MAX).max(1));
        self
    }

    /// Adds the gate that refused.
    pub fn at_gate(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }
}

fn cut(mut text: String) -> String {
    if text.len() > FAILURE_MESSAGE_BYTES_MAX {
        text.truncate(text.floor_char_boundary(FAILURE_MESSAGE_BYTES_MAX - '…'.len_utf8()));
        text.push('…');
    }
    text
}

/// A path for a message, quoted. A long one is shortened in the middle, so that the message is not cut.
pub fn quoted(path: impl AsRef<Path>) -> String {
    /// A name of the usual length, and the folders that it is in.
    const END_BYTES_MAX: usize = 400;
    let quoted = format!("{:?}", path.as_ref());
    if quoted.len() <= 2 * END_BYTES_MAX {
        return quoted;
    }
    let head = quoted.floor_char_boundary(END_BYTES_MAX);
    let tail = quoted.ceil_char_boundary(quoted.len() - END_BYTES_MAX);
    format!("{}…{}", &quoted[..head], &quoted[tail..])
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
            assert!(wire.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{wire}");
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
    fn long_messages_are_cut_at_a_character() {
        let failure = Failure::new(Code::Internal, Phase::Record, "ü".repeat(5_000));
        assert!(failure.message.len() <= FAILURE_MESSAGE_BYTES_MAX && failure.message.ends_with('…'));
    }

    #[test]
    fn a_long_path_is_shortened_in_the_middle() {
        assert_eq!(quoted("workspace/a\nb"), r#""workspace/a\nb""#);
        let long = quoted(format!("workspace/{}/name", "ü/".repeat(1_300)));
        assert!(long.starts_with("\"workspace/ü/") && long.ends_with("/name\""), "{long}");
        assert!(long.contains('…') && long.len() < FAILURE_MESSAGE_BYTES_MAX / 2, "{long}");
    }
}
