//! What a decision is made from: results of looking, never what was looked at.
//!
//! Facts are written into the receipt. Whoever has the facts and the policy comes to the same verdict, on another machine
//! and years later; so nothing in here may hold a parameter's value.

use std::collections::BTreeSet;

use effectd_contracts::{
    ActionRequest, Capability, DecisionRecord, Digest, Predicted, Principal, RiskLevel, RiskTier,
    SafetyClass, SideEffect, SpaceId, SubjectId, Timestamp, ToolId, ToolSpec,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::document::CheckName;
use crate::inspect::Inspection;

/// Everything one decision is made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// Who the door saw.
    pub principal: Principal,
    /// On whose behalf the request claims to be.
    pub subject: SubjectId,
    /// Where.
    pub space: SpaceId,
    /// The person named in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// The device named in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The tool, as its description had it.
    pub tool: ToolFacts,
    /// The automation that asks, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automation: Option<String>,
    /// The runtime's clock when the decision was accepted. Rules about time look at nothing else.
    pub now: Timestamp,
    /// How far the runtime's local time is from UTC, in minutes, at that moment. It is a fact because time-zone tables
    /// differ from machine to machine.
    #[serde(default)]
    pub utc_offset_min: i16,
    /// How far the request's own time was from the runtime's clock when the decision was accepted, in seconds, either way.
    /// None if the request told no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skew_s: Option<u64>,
    /// Nothing is to be changed.
    #[serde(default)]
    pub dry_run: bool,
    /// The tool's description differs from the one that was reviewed.
    #[serde(default)]
    pub drifted: bool,
    /// Success will be verified, and the effect can be rolled back.
    #[serde(default)]
    pub verified: bool,
    /// The organisation has a connection to the tool's service.
    #[serde(default)]
    pub connection: bool,
    /// What looking at the parameters brought to light. Without it, the safety gate refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inspection: Option<InspectionFacts>,
    /// What would change, if some rule looks at it and the tool could be tried out on a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Predicted>,
}

impl Facts {
    /// The facts of a request. What a request alone cannot tell — automation, drift, verification, connection, the local
    /// offset — starts at its strictest or most ordinary value and is set by the caller.
    pub fn of(
        request: &ActionRequest,
        spec: &ToolSpec,
        principal: &Principal,
        accepted_at: Timestamp,
        inspection: &Inspection,
    ) -> Self {
        Self {
            principal: principal.clone(),
            subject: request.subject_id.clone(),
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
            inspection: Some(inspection.facts.clone()),
            predicted: None,
        }
    }
}

impl Facts {
    /// The facts that a receipt kept. Receipts of other versions may keep facts that this one does not understand.
    pub fn from_record(record: &DecisionRecord) -> Result<Self, serde_json::Error> {
        Self::deserialize(&record.facts)
    }
}

/// How far two moments are apart, in whole seconds.
pub fn skew_s(told: Timestamp, measured: Timestamp) -> u64 {
    told.as_second().abs_diff(measured.as_second())
}

/// The parts of a tool's description that decisions look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolFacts {
    /// Which tool.
    pub id: ToolId,
    /// Capabilities it requires.
    pub caps: Vec<Capability>,
    /// What it does to the world.
    pub side_effects: BTreeSet<SideEffect>,
    /// Its declared class.
    pub safety_class: SafetyClass,
    /// What it does, in one word.
    pub risk_level: RiskLevel,
    /// What follows from its description.
    pub tier: RiskTier,
    /// What its author declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier_declared: Option<RiskTier>,
    /// Whether its effect can be undone.
    #[serde(default)]
    pub reversible: bool,
}

impl ToolFacts {
    pub fn of(spec: &ToolSpec) -> Self {
        Self {
            id: spec.tool_id.clone(),
            caps: spec.caps_required.clone(),
            side_effects: spec.side_effects.clone(),
            safety_class: spec.safety_class,
            risk_level: spec.risk_level,
            tier: spec.tier(),
            tier_declared: spec.risk_tier,
            reversible: spec.reversible,
        }
    }

    pub fn uses_network(&self) -> bool {
        self.side_effects.contains(&SideEffect::NetworkCall)
    }

    /// Whether all its effects stay inside the sandbox's root.
    pub fn is_contained(&self) -> bool {
        self.side_effects.iter().all(|effect| effect.is_contained())
    }
}

/// What looking at the parameters brought to light.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InspectionFacts {
    /// The digest of the rules that were applied to the content. Under other rules the findings would be others, and then
    /// history cannot tell.
    pub rules: Digest,
    /// What the safety checks found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// What was removed.
    #[serde(default, skip_serializing_if = "RedactionCounts::is_zero")]
    pub redacted: RedactionCounts,
    /// Fields with personal data that must not be changed (JSON pointers): they name what the tool works on, or the tool
    /// cannot do without them. They are passed on with the capability and the consent for it, and otherwise the call is
    /// refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub personal_required: Vec<String>,
    /// Other spaces that the parameters name.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub spaces: BTreeSet<String>,
    /// Hosts that the parameters name.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub hosts: BTreeSet<String>,
    /// Programs that the parameters name.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub commands: BTreeSet<String>,
    /// There was more to see than is recorded; what was not seen is not trusted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overflow: bool,
}

/// One thing that a safety check found. It says where, not what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// Which check.
    pub check: CheckName,
    /// What kind of thing: `private_key`, `shebang`, `word` …
    pub kind: String,
    /// Where, as a JSON pointer; `*` stands for a name that the tool's schema does not declare, since it may be content.
    pub pointer: String,
}

/// How much personal data was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedactionCounts {
    /// E-mail addresses.
    pub emails: u32,
    /// Phone numbers.
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
