//! The words of risk: how dangerous a tool is, how careful a space is, and what follows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How much can go wrong. Decisions are made by tier and band; the caller can only raise it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RiskTier {
    /// No side effects, local.
    R0,
    /// Contained and undoable.
    R1,
    /// Reversible or compensable writes.
    R2,
    /// Irreversible, far-reaching, or unknown.
    R3,
    /// Destructive.
    R4,
}

impl RiskTier {
    /// All tiers, mildest first.
    pub const ALL: [RiskTier; 5] = [
        RiskTier::R0,
        RiskTier::R1,
        RiskTier::R2,
        RiskTier::R3,
        RiskTier::R4,
    ];

    /// The tier of something that nobody has classified.
    pub const UNKNOWN: RiskTier = RiskTier::R3;
}

/// What the tool does to the world, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RiskLevel {
    /// Only looks.
    Read,
    /// Changes something.
    Write,
    /// Destroys something.
    Danger,
}

/// How careful a space is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Band {
    /// The cascade's answer stands.
    Green,
    /// Writes ask a person.
    Amber,
    /// Nearly everything asks a person.
    Red,
    /// Nothing happens here.
    Black,
}

impl Band {
    /// All bands, most permissive first.
    pub const ALL: [Band; 4] = [Band::Green, Band::Amber, Band::Red, Band::Black];
}

/// What the mode cascade answers. Later is stricter, so that the stricter of two is their maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Go ahead.
    Allow,
    /// Ask a person.
    RequireApproval,
    /// No.
    Deny,
}

/// Which level of the cascade answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModeSource {
    /// The automation's own override.
    AutomationOverride,
    /// The organisation's default.
    OrgDefault,
    /// What follows from the risk.
    InferredDefault,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stricter_mode_is_the_greater_one() {
        assert_eq!(Mode::Allow.max(Mode::RequireApproval), Mode::RequireApproval);
        assert_eq!(Mode::Deny.max(Mode::RequireApproval), Mode::Deny);
    }
}
