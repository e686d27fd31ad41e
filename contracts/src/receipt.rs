//! The receipt: the record of one action, exactly one for each.
//!
//! A receipt never holds a sensitive value. Parameters are in clear only where the tool's schema marks them public; the others
//! are keyed digests. Every figure is measured.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::approval::Approval;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::effects::Effects;
use crate::exchange::EgressRecord;
use crate::failure::{Code, Failure, Gate};
use crate::ids::{
    ActionId, IdempotencyKey, OrgId, Principal, ReceiptId, SessionId, SpaceId, SubjectId, ToolId, TraceId,
};
use crate::millis::Millis;
use crate::outcome::Outcome;
use crate::plan::PlanRecord;
use crate::preview::PreviewRecord;
use crate::request::{ActionRequest, Candidate, Feature, Origin};
use crate::reward::Reward;
use crate::risk::{Mode, ModeSource, RiskTier};
use crate::signature::Signature;
use crate::trace::TraceContext;

/// The record of one action, for planners, learners and auditors.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// The id of this receipt.
    pub receipt_id: ReceiptId,
    /// The action.
    pub action_id: ActionId,
    /// The tool.
    pub tool_id: ToolId,
    /// The space.
    pub space_id: SpaceId,
    /// The subject that the planner claimed to act for.
    pub subject_id: SubjectId,
    /// How the action ended, in one of four words.
    pub status: Status,
    /// Why the action failed; null if it succeeded.
    #[serialize_always]
    pub error: Option<Failure>,
    /// The parameters: public ones that match the tool's schema in clear, the others as keyed digests `hmac_sha256_<name>`.
    /// Those with a name that the schema does not declare are one digest, `hmac_sha256_*`.
    pub inputs: Map<String, Value>,
    /// The tool's result, normalised.
    pub outputs: Map<String, Value>,
    /// The result of each gate.
    pub policy: GateResults,
    /// The cost.
    pub cost: Cost,
    /// The times.
    pub timing: Timing,
    /// The idempotency key: a later request with the same key gets this receipt.
    #[serialize_always]
    pub idempotency_key: Option<IdempotencyKey>,
    /// The action's trace.
    pub trace_id: TraceId,
    /// The reward, for learners.
    pub reward: Reward,

    /// The action's span in the planner's trace, if the planner sent one.
    pub trace_context: Option<TraceContext>,
    /// The outcome, in more detail than `status`.
    pub outcome: Outcome,
    /// The version of the tool; absent if the tool is unknown.
    pub tool_version: Option<String>,
    /// The principal: who submitted it, as the operating system says.
    pub principal: Principal,
    /// Where the request came from; absent for a planner's decision.
    #[serde(default, skip_serializing_if = "Origin::is_arbiter")]
    pub origin: Origin,
    /// The session that the request belongs to, if it belongs to one.
    pub session_id: Option<SessionId>,
    /// The organisation that the space belonged to, if it belonged to one.
    pub org: Option<OrgId>,
    /// The digest of the request without its trace, and of its contract, under the device's key: `hmac-sha256:<64 hex digits>`.
    #[schemars(regex(pattern = "^hmac-sha256:[0-9a-f]{64}$"))]
    pub request_digest: String,
    /// The decision of the policy, if it was asked.
    pub decision: Option<DecisionRecord>,
    /// What redaction removes from the parameters for the tool; also listed if the action was refused and no tool ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redactions: Vec<Redaction>,
    /// The approval, if a person or a grant approved or refused the action.
    pub approval: Option<Approval>,
    /// Every run of the tool.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// The isolation that the sandbox obtained, if the tool ran.
    pub isolation: Option<Isolation>,
    /// What went over the network, exchange by exchange.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<EgressRecord>,
    /// The observed effects.
    pub effects: Effects,
    /// The paths where effectd cleaned up after a killed run: it removed an unfinished file, or put the replaced one back.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub cleaned_up: BTreeSet<String>,
    /// Whether the effects are those that a preview showed, if there was one.
    pub preview: Option<PreviewRecord>,
    /// The planner's alternatives, if it named them.
    pub choice: Option<Choice>,
    /// The tool's result, which effectd keeps for some days; absent if the tool failed or returned nothing.
    pub kept_result: Option<KeptResult>,
    /// What a plan came to; absent for an action without one.
    pub plan: Option<PlanRecord>,
    /// The device's signature over everything else.
    pub signature: Option<Signature>,
}

impl Receipt {
    /// The approval, if somebody was asked for it. A grant asks nobody.
    pub fn asked(&self) -> Option<&Approval> {
        self.approval.as_ref().filter(|approval| approval.approval_id.is_some())
    }

    /// The time from acceptance until a person decided, or nobody did in time; zero if nobody was asked. It is part of
    /// `timing.total_ms`, and of `timing.queued_ms` if the action was approved.
    pub fn held(&self) -> Millis {
        self.asked().map_or(Millis::ZERO, |approval| Millis::between(self.timing.started_at, approval.at))
    }
}

/// The result of a tool, as its receipt describes it. The result itself is kept sealed beside the receipts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeptResult {
    /// The digest of the result without its secrets, under the device's key: `hmac-sha256:<64 hex digits>`.
    #[schemars(regex(pattern = "^hmac-sha256:[0-9a-f]{64}$"))]
    pub digest: String,
    /// Length of the whole result as JSON.
    pub bytes: u64,
}

/// The planner's alternatives and probabilities, for off-policy estimates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// The alternatives, each with its probability.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Candidate>,
    /// The probability of the choice that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub propensity: Option<f64>,
    /// The id of the candidate that was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
    /// What the planner knew when it chose.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub context: BTreeMap<String, Feature>,
}

impl Choice {
    /// The choice that a planner stated with its request, if it did. The propensity may be that of the chosen candidate.
    pub fn of(request: &ActionRequest) -> Option<Self> {
        let ActionRequest { candidates, propensity, chosen, context, .. } = request;
        let of_candidate = || {
            let candidate = candidates.iter().find(|candidate| Some(&candidate.id) == chosen.as_ref());
            candidate.and_then(|candidate| candidate.propensity)
        };
        let is_given = !candidates.is_empty() || propensity.is_some() || !context.is_empty();
        is_given.then(|| Self {
            candidates: candidates.clone(),
            propensity: propensity.or_else(of_candidate),
            chosen: chosen.clone(),
            context: context.clone(),
        })
    }
}

crate::wire_enum! {
    /// How an action ended, in one of four words.
    pub enum Status {
        /// Done.
        Ok = "ok",
        /// Refused or failed.
        Error = "error",
        /// Nothing was attempted, on purpose.
        Skipped = "skipped",
        /// Held for review.
        Quarantined = "quarantined",
    }
}

crate::wire_enum! {
    /// The result of one gate.
    #[derive(Default)]
    pub enum GateResult {
        /// Passed.
        Ok = "ok",
        /// Refused.
        Deny = "deny",
        /// Held for review.
        Quarantine = "quarantine",
        /// Passed, after the parameters were changed.
        Applied = "applied",
        /// Not reached, or nothing to check.
        #[default]
        NotApplicable = "n/a",
    }
}

/// The results of all six gates.
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

/// The decision of the policy.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecisionRecord {
    /// `permit`, `deny`, `quarantine` or `needs_approval`.
    pub verdict: String,
    /// The mode, if the cascade was reached.
    pub mode: Option<Mode>,
    /// The level of the cascade that answered.
    pub mode_source: Option<ModeSource>,
    /// What made the mode stricter than that level.
    pub clamped_by: Option<String>,
    /// The risk tier.
    pub tier: RiskTier,
    /// The rule that decided: a file and line, or the id of a Cedar policy.
    pub rule: Option<String>,
    /// Whether the parameters name another space than the request's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cross_space: bool,
    /// The digest of the policy in force.
    pub policy_digest: Digest,
    /// The facts behind the decision: results of checks, never raw content.
    #[serde(default)]
    pub facts: Value,
}

/// What redaction removed from one field of the parameters before the tool saw them, or from the choice before it was stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Redaction {
    /// The field, as a JSON pointer into the parameters. `*` stands for a name that the tool's schema does not declare; the
    /// empty pointer for all fields beyond the number that is recorded one by one. `choice.candidates` and `choice.context` stand
    /// for the planner's choice.
    pub field: String,
    /// The kind of data.
    pub kind: RedactionKind,
    /// How many items were removed.
    pub count: u32,
}

crate::wire_enum! {
    /// A kind of data that is removed.
    pub enum RedactionKind {
        /// E-mail addresses.
        Email = "email",
        /// Phone numbers.
        Phone = "phone",
        /// Pictures or descriptions of faces.
        Face = "face",
        /// Keys, tokens and passwords.
        Secret = "secret",
    }
}

/// One run of the tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// When it began.
    pub started_at: Timestamp,
    /// Time from call to reply.
    pub exec_ms: Millis,
    /// Processor time of the whole confined process tree.
    pub cpu_ms: Millis,
    /// The failure code, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// What the sandbox refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denials: Vec<Denial>,
}

/// Something that the sandbox refused to a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Denial {
    /// `network_denied`, `syscall_denied`, `path_denied` …
    pub code: Code,
    /// The system call or path.
    pub what: String,
    /// How often.
    pub count: u32,
    /// Who reported it.
    pub source: DenialSource,
}

/// Who reported a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DenialSource {
    /// The kernel.
    Kernel,
    /// Only the sandboxed child.
    Child,
}

/// The cost of an action.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Processor time of the confined processes, all attempts together.
    pub cpu_ms: Millis,
    /// Energy, estimated from processor time at the power of one busy core.
    pub energy_mwh: f64,
    /// Peak resident memory of the confined processes, where it is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Bytes that the confined processes wrote, where it is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_written: Option<u64>,
}

/// The times of an action. Always `total_ms >= queued_ms + exec_ms`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// From acceptance to the first stage.
    pub queued_ms: Millis,
    /// In the sandbox, all attempts together.
    pub exec_ms: Millis,
    /// From acceptance to the receipt.
    pub total_ms: Millis,
    /// When the action was accepted.
    pub started_at: Timestamp,
    /// When the receipt was built.
    pub ended_at: Timestamp,
}

/// The isolation that the sandbox obtained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Isolation {
    /// The profile.
    pub profile: String,
    /// Each mechanism, with what it obtained: `landlock: abi 7`, `network: empty namespace, sockets banned`.
    pub mechanisms: BTreeMap<String, String>,
}
