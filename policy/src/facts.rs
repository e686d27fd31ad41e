//! Facts: everything that a decision depends on. With the facts and the policy, anybody gets the same verdict, on another machine
//! and years later.
//!
//! The receipt holds the facts in clear. So they hold a parameter's value only if the tool declares it public and it has no secret
//! and no personal data.

use std::collections::{BTreeMap, BTreeSet};

use effectd_contracts::connector::CONNECTOR_SOURCE;
use effectd_contracts::{
    ActionRequest, Capability, Compensation, ConnectionId, DecisionRecord, Digest, Predicted, Principal,
    RiskLevel, RiskTier, SafetyClass, SideEffect, SpaceId, SubjectId, Timestamp, ToolId, ToolSpec,
};
use serde::{Deserialize, Serialize};

use crate::document::CheckName;

/// Everything that one decision depends on.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// The principal: who submitted the request, as the operating system says.
    pub principal: Principal,
    /// The subject that the request claims to act for.
    pub subject: SubjectId,
    /// Whether the principal is the agent of a session of this subject. It acts for this subject alone, and names no actor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent: bool,
    pub space: SpaceId,
    pub actor: Option<String>,
    pub device: Option<String>,
    pub tool: ToolFacts,
    /// The automation, if one submitted the request.
    pub automation: Option<String>,
    /// When the request was accepted, by the runtime's clock. Rules about time use no other clock.
    pub now: Timestamp,
    /// The offset of local time from UTC at `now`, in minutes. It is a fact because time-zone tables differ between machines.
    #[serde(default)]
    pub utc_offset_min: i16,
    /// The difference between the request's own time and the runtime's clock on acceptance, in seconds. `None` if the request
    /// names no time.
    pub skew_s: Option<u64>,
    #[serde(default)]
    pub dry_run: bool,
    /// Whether the tool's spec differs from the one that was reviewed.
    #[serde(default)]
    pub drifted: bool,
    /// Whether success is verified and the effect can be rolled back.
    #[serde(default)]
    pub verified: bool,
    /// Whether the organisation has a connection to the tool's source.
    #[serde(default)]
    pub connection: bool,
    /// That connection.
    pub connection_id: Option<ConnectionId>,
    /// Its version: an approval counts for this version only.
    pub connection_version: Option<u64>,
    /// The findings of the inspection of the parameters. Without an inspection, the safety gate refuses.
    pub inspection: Option<InspectionFacts>,
    /// What a preview predicts, if a rule depends on it and a preview was possible.
    pub predicted: Option<Predicted>,
}

impl Facts {
    /// The facts of a request. The caller sets what is not part of the request: agent, automation, drift, verification, connection,
    /// UTC offset, prediction.
    pub fn of(
        request: &ActionRequest,
        spec: &ToolSpec,
        principal: &Principal,
        accepted_at: Timestamp,
        inspection: &InspectionFacts,
    ) -> Self {
        Self {
            principal: principal.clone(),
            subject: request.subject_id.clone(),
            agent: false,
            space: request.space_id.clone(),
            actor: request.policy_ctx.actor.clone(),
            device: request.policy_ctx.device.clone(),
            tool: ToolFacts::of(spec),
            automation: None,
            now: accepted_at,
            utc_offset_min: 0,
            skew_s: request.policy_ctx.time.map(|time| skew_s(time, accepted_at)),
            dry_run: request.dry_run,
            drifted: false,
            verified: false,
            connection: false,
            connection_id: None,
            connection_version: None,
            inspection: Some(inspection.clone()),
            predicted: None,
        }
    }

    /// The named command that the call is, if it is one.
    pub fn named_command(&self) -> Option<&str> {
        self.inspection.as_ref()?.named_command.as_deref()
    }

    /// The facts in a receipt. Fails if another version of effectd wrote facts that this one cannot read.
    pub fn from_record(record: &DecisionRecord) -> Result<Self, serde_json::Error> {
        Self::deserialize(&record.facts)
    }
}

/// The difference of two times, in whole seconds.
pub fn skew_s(claimed: Timestamp, measured: Timestamp) -> u64 {
    claimed.as_second().abs_diff(measured.as_second())
}

/// The parts of a tool spec that decisions depend on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolFacts {
    pub id: ToolId,
    pub caps: Vec<Capability>,
    pub side_effects: BTreeSet<SideEffect>,
    pub safety_class: SafetyClass,
    pub risk_level: RiskLevel,
    /// The tier that follows from the tool's spec.
    pub tier: RiskTier,
    /// The tier that its author declares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier_declared: Option<RiskTier>,
    #[serde(default)]
    pub reversible: bool,
    #[serde(default, skip_serializing_if = "Compensation::is_none")]
    pub compensation: Compensation,
    /// The time that one of effectd's own tools declares. Other tools have the time of their class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

impl ToolFacts {
    pub fn of(spec: &ToolSpec) -> Self {
        Self {
            id: spec.tool_id.clone(),
            caps: spec.caps_required.clone(),
            side_effects: spec.side_effects.clone(),
            safety_class: spec.safety_class,
            risk_level: spec.level(),
            tier: spec.tier(),
            tier_declared: spec.risk_tier,
            reversible: spec.reversible,
            compensation: spec.compensation,
            timeout_ms: None,
        }
    }

    pub fn uses_network(&self) -> bool {
        self.side_effects.contains(&SideEffect::NetworkCall)
    }

    /// Whether a call needs a connection of the organisation: it leaves this machine, or is that of somebody else's server.
    pub fn needs_connection(&self) -> bool {
        self.uses_network() || self.id.source().starts_with(CONNECTOR_SOURCE)
    }

    /// Whether all effects of the tool stay inside the space.
    pub fn is_contained(&self) -> bool {
        self.side_effects.iter().all(|effect| effect.is_contained())
    }
}

/// The findings of an inspection of parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InspectionFacts {
    /// The digest of the content rules. A replay under other rules cannot know the findings.
    pub rules: Digest,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    #[serde(default, skip_serializing_if = "RedactionCounts::is_zero")]
    pub redacted: RedactionCounts,
    /// Fields (JSON pointers) whose personal data must stay unchanged: they name what the tool works on, or the tool needs
    /// them. The redaction gate refuses the call unless the subject has `pii.pass` and a consent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub personal_required: Vec<String>,
    /// Fields (JSON pointers) with personal data that the tool may not have. The redaction gate refuses the call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub personal_refused: Vec<String>,
    /// The first fields (JSON pointers) with personal data that the tool gets because a rule passes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub personal_passed: Vec<String>,
    /// Other spaces that the parameters name.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub spaces: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub hosts: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub commands: BTreeSet<String>,
    /// The policy's name of the command, if `[commands]` covers the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named_command: Option<String>,
    /// Whether there was more than the inspection records. The safety gate then quarantines the parameters.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overflow: bool,
    /// The protected paths of the space, as the policy writes them, that the call would change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protected: Vec<String>,
    /// The public parameters that rules can use, as the tool gets them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, Param>,
    /// Parameters of these names that the receipt may not hold: not public, of another type, too long, or with a secret or personal data. A rule that
    /// uses one of them fails.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub params_hidden: BTreeSet<String>,
    /// The length of all texts in the parameters, in bytes.
    #[serde(default)]
    pub text_bytes: u64,
}

/// The value of a public parameter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Param {
    Flag(bool),
    Number(i64),
    Text(String),
}

/// One finding of a safety check: the kind and the position, never the content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    pub check: CheckName,
    /// The kind: `private_key`, `shebang`, `word` …
    pub kind: String,
    /// The JSON pointer; `*` stands for a name that the tool's schema does not declare, since it may be content.
    pub pointer: String,
}

/// How much personal data was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedactionCounts {
    pub emails: u32,
    pub phones: u32,
    /// Fields with faces.
    pub faces: u32,
}

impl RedactionCounts {
    pub fn is_zero(&self) -> bool {
        self.total() == 0
    }

    pub fn total(&self) -> u32 {
        self.emails.saturating_add(self.phones).saturating_add(self.faces)
    }
}
