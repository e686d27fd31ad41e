//! Decisions: the policy's answer, with what a person needs to understand it later.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use effectd_contracts::{
    Code, DecisionRecord, Digest, Failure, Gate, GateResults, Mode, ModeSource, Phase, RiskTier, SafetyClass,
    wire_enum,
};
use serde::{Deserialize, Serialize};

use crate::facts::Facts;
use crate::limits::REASON_BYTES_MAX;
use crate::tables::commands::NamedCommand;
use crate::tables::spaces::lies_in;

/// One decision of the policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    pub verdict: Verdict,
    pub gates: GateResults,
    /// The mode after drift and floors; `None` if an earlier step refused.
    pub mode: Option<Mode>,
    /// The level of the cascade that answered.
    pub mode_source: Option<ModeSource>,
    /// What made the mode stricter than that level.
    pub clamped_by: Option<Clamp>,
    pub tier: RiskTier,
    /// The safety class that applies, which may be stricter than the tool's own.
    pub safety_class: SafetyClass,
    /// The rule that decided: `policy.toml:12`, `night-rest (abac.cedar:4)`, or a built-in one.
    pub rule: String,
    pub policy_digest: Digest,
    /// Whether the action touches another space than the request's.
    pub cross_space: bool,
    /// Whether a grant may replace the approval. Only meaningful with [`Verdict::NeedsApproval`].
    pub grant_allowed: bool,
    /// The longest time that the tool may take, in milliseconds: that of the named command, of the policy for the tool's class,
    /// of the tool, or of its class.
    pub timeout_ms_max: u64,
    /// The named command that covers the call: how it is confined.
    #[serde(skip)]
    pub command: Option<Arc<NamedCommand>>,
    /// The protected paths of the space.
    #[serde(skip)]
    pub protected: Vec<String>,
}

/// Whether the action may happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Verdict {
    Permit,
    Deny {
        by: Denier,
        code: Code,
        reasons: Vec<Reason>,
    },
    /// Stopped until a person has reviewed the content.
    Quarantine {
        reasons: Vec<Reason>,
    },
    /// Waits until a person approves.
    NeedsApproval {
        reasons: Vec<Reason>,
    },
}

impl Verdict {
    /// The word of [`DecisionRecord::verdict`].
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Permit => "permit",
            Self::Deny { .. } => "deny",
            Self::Quarantine { .. } => "quarantine",
            Self::NeedsApproval { .. } => "needs_approval",
        }
    }

    /// The reasons; empty for a permit.
    pub fn reasons(&self) -> &[Reason] {
        match self {
            Self::Permit => &[],
            Self::Deny { reasons, .. } | Self::Quarantine { reasons } | Self::NeedsApproval { reasons } => {
                reasons
            }
        }
    }

    /// The reasons as one text; empty for a permit.
    pub fn why(&self) -> String {
        let texts: Vec<&str> = self.reasons().iter().map(|reason| reason.text.as_str()).collect();
        texts.join("; ")
    }

    /// The gate that refused, if a gate did.
    pub fn gate(&self) -> Option<Gate> {
        match self {
            Self::Deny { by, .. } => by.gate(),
            Self::Quarantine { .. } => Some(Gate::Safety),
            Self::Permit | Self::NeedsApproval { .. } => None,
        }
    }
}

/// For people and examples: `permit`, `deny by consent`, `quarantine`, `needs approval`.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permit => f.write_str("permit"),
            Self::Deny { by, .. } => write!(f, "deny by {by}"),
            Self::Quarantine { .. } => f.write_str("quarantine"),
            Self::NeedsApproval { .. } => f.write_str("needs approval"),
        }
    }
}

wire_enum! {
    /// What denied: one of the six gates, or one of the two steps after them.
    pub enum Denier {
        Rbac = "rbac",
        Abac = "abac",
        Consent = "consent",
        Space = "space",
        /// The gate of content; it denies only parameters that were not inspected.
        Safety = "safety",
        Redaction = "redaction",
        /// The lists of hosts and programs.
        Reach = "reach",
        /// The mode cascade and its floors.
        Mode = "mode",
    }
}

impl Denier {
    pub fn gate(self) -> Option<Gate> {
        Gate::ALL.into_iter().find(|gate| Self::from(*gate) == self)
    }
}

impl From<Gate> for Denier {
    fn from(gate: Gate) -> Self {
        match gate {
            Gate::Rbac => Self::Rbac,
            Gate::Abac => Self::Abac,
            Gate::Consent => Self::Consent,
            Gate::Space => Self::Space,
            Gate::Safety => Self::Safety,
            Gate::Redaction => Self::Redaction,
        }
    }
}

impl fmt::Display for Denier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A reason for a verdict, and how to get another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// For programs: `cap_missing`, `consent_missing` …
    pub code: Cow<'static, str>,
    pub text: String,
    /// What to change to get another verdict.
    pub change: String,
}

impl Reason {
    /// A reason. Texts that are too long are cut.
    pub fn new(code: &'static str, text: impl Into<String>, change: impl Into<String>) -> Self {
        Self { code: Cow::Borrowed(code), text: cut(text.into()), change: cut(change.into()) }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn cut(mut text: String) -> String {
    if text.len() > REASON_BYTES_MAX {
        text.truncate(text.floor_char_boundary(REASON_BYTES_MAX - '…'.len_utf8()));
        text.push('…');
    }
    text
}

wire_enum! {
    /// What made a mode stricter than the cascade.
    pub enum Clamp {
        /// The tool's spec changed since it was reviewed.
        Drift = "drift",
        /// Actions of this tier always need an approval.
        TierFloor = "tier_floor",
        /// The space's band is more careful.
        BandFloor = "band_floor",
    }
}

impl Decision {
    /// The first of these existing paths (`workspace/…`) that is protected or lies in a protected folder.
    pub fn first_protected<'p>(&self, mut paths: impl Iterator<Item = &'p str>) -> Option<&'p str> {
        paths.find(|path| self.protected.iter().any(|protected| lies_in(protected, path)))
    }

    /// The record for the receipt.
    pub fn record(&self, facts: &Facts) -> DecisionRecord {
        DecisionRecord {
            verdict: self.verdict.as_str().to_owned(),
            mode: self.mode,
            mode_source: self.mode_source,
            clamped_by: self.clamped_by.map(|clamp| clamp.as_str().to_owned()),
            tier: self.tier,
            rule: Some(self.rule.clone()),
            cross_space: self.cross_space,
            policy_digest: self.policy_digest,
            // Facts are plain data with text keys, which serde_json always writes.
            facts: serde_json::to_value(facts).unwrap_or_default(),
        }
    }

    /// The failure for the receipt; `None` for a permit and for what needs an approval.
    pub fn failure(&self) -> Option<Failure> {
        let code = match &self.verdict {
            Verdict::Deny { code, .. } => *code,
            Verdict::Quarantine { .. } => Code::SafetyQuarantined,
            Verdict::Permit | Verdict::NeedsApproval { .. } => return None,
        };
        let message = format!("{}: {}", self.verdict, self.verdict.why());
        let reasons = self.verdict.reasons().iter();
        let mut changes: Vec<&str> = reasons.map(|reason| reason.change.as_str()).collect();
        changes.dedup();
        let failure = Failure::new(code, Phase::Gate, message).unless(changes.join("; "));
        Some(match self.verdict.gate() {
            Some(gate) => failure.at_gate(gate),
            None => failure,
        })
    }
}
