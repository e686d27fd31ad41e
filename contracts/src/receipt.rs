//! The proof of what happened: exactly one for every action.
//!
//! A receipt never holds a sensitive value. Parameters appear in clear only where the tool's schema marks them public;
//! the others are keyed digests. Every figure in it was measured.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::approval::Approval;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::effects::Effects;
use crate::failure::{Code, Failure, Gate};
use crate::ids::{ActionId, IdempotencyKey, Principal, ReceiptId, SpaceId, SubjectId, ToolId, TraceId};
use crate::millis::Millis;
use crate::outcome::Outcome;
use crate::preview::PreviewRecord;
use crate::request::Candidate;
use crate::risk::{Mode, ModeSource, RiskTier};
use crate::trace::TraceContext;

/// What happened to one action, for planners, learners and auditors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// Names this receipt.
    pub receipt_id: ReceiptId,
    /// The action it is about.
    pub action_id: ActionId,
    /// The tool.
    pub tool_id: ToolId,
    /// The space.
    pub space_id: SpaceId,
    /// The subject the planner claimed to speak for.
    pub subject_id: SubjectId,
    /// How it ended, in one of four words.
    pub status: Status,
    /// Why it did not succeed; null if it did.
    pub error: Option<Failure>,
    /// Public parameters that fit the tool's schema in clear, the others as keyed digests `hmac_sha256_<name>`; those whose
    /// name the schema does not know together, as `hmac_sha256_*`.
    pub inputs: Map<String, Value>,
    /// What the tool answered, normalised.
    pub outputs: Map<String, Value>,
    /// What each gate said.
    pub policy: GateResults,
    /// What it cost.
    pub cost: Cost,
    /// How long it took.
    pub timing: Timing,
    /// The key under which it counts as done before.
    pub idempotency_key: Option<IdempotencyKey>,
    /// The action's trace.
    pub trace_id: TraceId,
    /// The learning signal.
    pub reward: Reward,

    /// Its place in the planner's trace, if the planner sent one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_context: Option<TraceContext>,
    /// The canonical outcome behind `status`.
    pub outcome: Outcome,
    /// The version of the tool that ran, if there is such a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_version: Option<String>,
    /// Who the door saw.
    pub principal: Principal,
    /// The digest of the request without its trace, under the device's key: `hmac-sha256:<64 hex digits>`.
    #[schemars(regex(pattern = "^hmac-sha256:[0-9a-f]{64}$"))]
    pub request_digest: String,
    /// How the policy came to its verdict, if it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<DecisionRecord>,
    /// What redaction removed from the parameters; the tool saw the rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redacted: Vec<Redaction>,
    /// What a person decided about it, if one was asked or a pre-approval stood in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// Each run of the tool.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// The isolation that was really obtained, if something ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// What was observed to change.
    pub effects: Effects,
    /// Whether that is what was shown beforehand, if a person or a rule was to see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<PreviewRecord>,
    /// What the planner chose among, if it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<Choice>,
    /// The device's signature over everything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

/// What the planner chose among, as it told: what an estimate of another planner's choices needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// All that it could have done, and how likely each was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Candidate>,
    /// How likely it was to choose what it chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub propensity: Option<f64>,
}

/// How an action ended, in the four words of receipts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Done.
    Ok,
    /// Refused or failed.
    Error,
    /// Nothing was attempted, on purpose.
    Skipped,
    /// Held for review.
    Quarantined,
}

impl Status {
    /// All four.
    pub const ALL: [Status; 4] = [Status::Ok, Status::Error, Status::Skipped, Status::Quarantined];

    /// The wire form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Error => "error",
            Status::Skipped => "skipped",
            Status::Quarantined => "quarantined",
        }
    }
}

/// What one gate said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GateResult {
    /// No objection.
    Ok,
    /// No.
    Deny,
    /// Held for review.
    Quarantine,
    /// Parameters were changed before the tool saw them.
    Applied,
    /// Not reached, or it had nothing to look at.
    #[default]
    #[serde(rename = "n/a")]
    NotApplicable,
}

/// What all six gates said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateResults {
    /// Roles.
    pub rbac: GateResult,
    /// Attributes.
    pub abac: GateResult,
    /// Consent.
    pub consent: GateResult,
    /// The space.
    pub space: GateResult,
    /// The content.
    pub safety: GateResult,
    /// Personal data.
    pub redaction: GateResult,
}

impl GateResults {
    /// The result of one gate.
    pub fn get(&self, gate: Gate) -> GateResult {
        match gate {
            Gate::Rbac => self.rbac,
            Gate::Abac => self.abac,
            Gate::Consent => self.consent,
            Gate::Space => self.space,
            Gate::Safety => self.safety,
            Gate::Redaction => self.redaction,
        }
    }

    /// Sets the result of one gate.
    pub fn set(&mut self, gate: Gate, result: GateResult) {
        match gate {
            Gate::Rbac => self.rbac = result,
            Gate::Abac => self.abac = result,
            Gate::Consent => self.consent = result,
            Gate::Space => self.space = result,
            Gate::Safety => self.safety = result,
            Gate::Redaction => self.redaction = result,
        }
    }
}

/// How the policy came to its verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecisionRecord {
    /// `permit`, `deny`, `quarantine` or `needs_approval`.
    pub verdict: String,
    /// What the mode cascade answered, if it was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Which of its levels answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_source: Option<ModeSource>,
    /// What made the mode stricter than that level said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clamped_by: Option<String>,
    /// The tier that decided.
    pub tier: RiskTier,
    /// The rule that decided: a file and line, or the id of a Cedar policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The policy in force.
    pub policy_digest: Digest,
    /// The facts it was decided by: results of checks, never raw content.
    #[serde(default)]
    pub facts: Value,
}

/// What redaction removed from one field of the parameters before the tool saw them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Redaction {
    /// The field, as a JSON pointer into the parameters. `*` stands for a name that the tool's schema does not declare; the
    /// empty pointer for all fields beyond the number that is recorded one by one.
    pub field: String,
    /// What kind of data it was.
    pub kind: RedactionKind,
    /// How many were removed.
    pub count: u32,
}

/// What kind of personal data was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RedactionKind {
    /// E-mail addresses.
    Email,
    /// Phone numbers.
    Phone,
    /// Pictures or descriptions of faces.
    Face,
}

impl RedactionKind {
    /// The wire form.
    pub const fn as_str(self) -> &'static str {
        match self {
            RedactionKind::Email => "email",
            RedactionKind::Phone => "phone",
            RedactionKind::Face => "face",
        }
    }
}

/// One run of the tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// When it began.
    pub started_at: Timestamp,
    /// From request to reply.
    pub exec_ms: Millis,
    /// Processor time of the whole confined process tree.
    pub cpu_ms: Millis,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// What it tried in the sandbox and was refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denials: Vec<Denial>,
}

/// Something that a tool tried in the sandbox and was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Denial {
    /// `network_denied`, `syscall_denied`, `path_denied` …
    pub code: Code,
    /// The system call or path.
    pub what: String,
    /// How often.
    pub count: u32,
    /// Who says so.
    pub source: DenialSource,
}

/// Who saw a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DenialSource {
    /// The kernel told the runtime.
    Kernel,
    /// Only the child itself says so.
    Child,
}

/// What it cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Processor time of the confined processes, all attempts together.
    pub cpu_ms: Millis,
    /// Energy by the documented model: processor time at the power of one busy core.
    pub energy_mwh: f64,
    /// The largest resident memory of the confined processes, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Bytes written by the confined processes, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_written: Option<u64>,
}

/// How long it took. Always `total_ms >= queued_ms + exec_ms`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// From acceptance to the first stage.
    pub queued_ms: Millis,
    /// In the sandbox, all attempts together.
    pub exec_ms: Millis,
    /// From acceptance to the receipt.
    pub total_ms: Millis,
    /// When it was accepted.
    pub started_at: Timestamp,
    /// When the receipt was made.
    pub ended_at: Timestamp,
}

/// The learning signal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reward {
    /// From -1 to 1.
    #[schemars(range(min = -1.0, max = 1.0))]
    pub scalar: f64,
    /// What it was made from, each from 0 to 1.
    pub components: RewardComponents,
    /// Which formula made it.
    pub formula: u32,
    /// What went into it beside the receipt's own figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<RewardInputs>,
}

/// What goes into a reward beside the figures that the receipt has anyway: with both, anybody can compute it again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewardInputs {
    /// How well, as the tool reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<f64>,
    /// The time that was allowed.
    pub allowed_ms: Millis,
    /// The processor time that counts as the whole cost.
    pub cost_budget_ms: f64,
    /// How much each part counted.
    pub weights: RewardWeights,
}

/// How much each part of a reward counts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewardWeights {
    /// For having been done.
    pub success: f64,
    /// For how well.
    pub quality: f64,
    /// Against what it cost.
    pub cost: f64,
    /// Against how long it took.
    pub latency: f64,
}

/// What a reward is made from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewardComponents {
    /// Time used, as a share of the time allowed.
    pub latency: f64,
    /// 1 if it was done, otherwise 0.
    pub success: f64,
    /// How well, by the tool's own measure.
    pub quality: f64,
    /// Processor time and energy, as a share of the budget.
    pub cost: f64,
}

/// The isolation that was really obtained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Isolation {
    /// The profile.
    pub profile: String,
    /// Each mechanism by name, with what was obtained of it: `landlock: abi 7`, `network: empty namespace, sockets banned`.
    pub mechanisms: BTreeMap<String, String>,
}

/// A signature with the device's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// Always `ed25519`.
    pub algorithm: String,
    /// Which key: the hex digest of its public part, shortened.
    pub key_id: String,
    /// The signature, in hex.
    pub value: String,
}
