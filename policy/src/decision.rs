//! What the policy answers, with everything a person needs to understand it later.

use std::borrow::Cow;
use std::fmt;

use effectd_contracts::{
    Code, DecisionRecord, Digest, Failure, Gate, GateResults, Mode, ModeSource, Phase, RiskTier, SafetyClass,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::facts::Facts;
use crate::limits::REASON_BYTES_MAX;

/// One answer of the policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// Whether it may happen.
    pub verdict: Verdict,
    /// What each of the six gates said; `n/a` where it was not reached.
    pub gates: GateResults,
    /// The mode after all floors, if the cascade was reached.
    pub mode: Option<Mode>,
    /// Which level of the cascade answered.
    pub mode_source: Option<ModeSource>,
    /// What made the mode stricter than that level said.
    pub clamped_by: Option<Clamp>,
    /// The tier that decided.
    pub tier: RiskTier,
    /// The class whose precautions apply, which may be stricter than the tool's own.
    pub safety_class: SafetyClass,
    /// The rule that decided: `policy.toml:12`, `night-rest (abac.cedar:4)`, or what is built in.
    pub rule: String,
    /// The policy that was asked.
    pub policy_digest: Digest,
    /// The action touches another space than the request's.
    pub cross_space: bool,
    /// Whether a budgeted pre-approval may stand in for a person. Only meaningful with [`Verdict::NeedsApproval`].
    pub grant_allowed: bool,
    /// The longest time the tool may take, in milliseconds, by its class.
    pub timeout_ms_max: u64,
}

/// Whether it may happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Verdict {
    /// Yes.
    Permit,
    /// No.
    Deny {
        /// Who said so.
        by: Denier,
        /// The code for the receipt.
        code: Code,
        /// Why, each with what would have to change.
        reasons: Vec<Reason>,
    },
    /// Not before someone has looked at the content.
    Quarantine {
        /// What was found, and where.
        reasons: Vec<Reason>,
    },
    /// Not before a person has said yes.
    NeedsApproval {
        /// Why a person is asked.
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

    /// Why; empty for a permit.
    pub fn reasons(&self) -> &[Reason] {
        match self {
            Self::Permit => &[],
            Self::Deny { reasons, .. } | Self::Quarantine { reasons } | Self::NeedsApproval { reasons } => {
                reasons
            }
        }
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

/// As people and examples write it: `permit`, `deny by consent`, `quarantine`, `needs approval`.
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

/// Who denied: one of the six gates, or one of the two steps behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Denier {
    /// The gate of roles.
    Rbac,
    /// The gate of attributes.
    Abac,
    /// The gate of consent.
    Consent,
    /// The gate of spaces.
    Space,
    /// The gate of content; only if nobody has looked at the content.
    Safety,
    /// The gate of personal data.
    Redaction,
    /// The lists of hosts and programs.
    Reach,
    /// The mode cascade and its floors.
    Mode,
}

impl Denier {
    /// The gate, if it is one.
    pub const fn gate(self) -> Option<Gate> {
        match self {
            Self::Rbac => Some(Gate::Rbac),
            Self::Abac => Some(Gate::Abac),
            Self::Consent => Some(Gate::Consent),
            Self::Space => Some(Gate::Space),
            Self::Safety => Some(Gate::Safety),
            Self::Redaction => Some(Gate::Redaction),
            Self::Reach | Self::Mode => None,
        }
    }

    /// The wire form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reach => "reach",
            Self::Mode => "mode",
            Self::Rbac => "rbac",
            Self::Abac => "abac",
            Self::Consent => "consent",
            Self::Space => "space",
            Self::Safety => "safety",
            Self::Redaction => "redaction",
        }
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

/// Why, and what would have to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// For programs: `cap_missing`, `consent_missing` …
    pub code: Cow<'static, str>,
    /// For people.
    pub text: String,
    /// What would have to change for another answer.
    pub change: String,
}

impl Reason {
    /// A reason; texts are cut at their bound.
    pub fn new(code: &'static str, text: impl Into<String>, change: impl Into<String>) -> Self {
        Self {
            code: Cow::Borrowed(code),
            text: cut(text.into()),
            change: cut(change.into()),
        }
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

/// What made a mode stricter than the cascade had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Clamp {
    /// The tool's description changed since it was reviewed.
    Drift,
    /// The tier never runs unasked.
    TierFloor,
    /// The space's band is more careful.
    BandFloor,
}

impl Clamp {
    /// The wire form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drift => "drift",
            Self::TierFloor => "tier_floor",
            Self::BandFloor => "band_floor",
        }
    }
}

impl Decision {
    pub fn record(&self, facts: &Facts) -> DecisionRecord {
        DecisionRecord {
            verdict: self.verdict.as_str().to_owned(),
            mode: self.mode,
            mode_source: self.mode_source,
            clamped_by: self.clamped_by.map(|clamp| clamp.as_str().to_owned()),
            tier: self.tier,
            rule: Some(self.rule.clone()),
            policy_digest: self.policy_digest,
            // Facts are plain data with text keys, for which serde_json has no failure.
            facts: serde_json::to_value(facts).unwrap_or_default(),
        }
    }

    /// The failure for the receipt; `None` for a permit and for what waits for a person.
    pub fn failure(&self) -> Option<Failure> {
        let code = match &self.verdict {
            Verdict::Deny { code, .. } => *code,
            Verdict::Quarantine { .. } => Code::SafetyQuarantined,
            Verdict::Permit | Verdict::NeedsApproval { .. } => return None,
        };
        let texts: Vec<&str> = self
            .verdict
            .reasons()
            .iter()
            .map(|reason| reason.text.as_str())
            .collect();
        let failure = Failure::new(
            code,
            Phase::Gate,
            format!("{}: {}", self.verdict, texts.join("; ")),
        );
        Some(match self.verdict.gate() {
            Some(gate) => failure.at_gate(gate),
            None => failure,
        })
    }
}
