//! How dangerous one action is: what its tool declares, what it reaches for, and what the space demands.

use effectd_contracts::{Band, Mode, RiskLevel, RiskTier, SafetyClass};

use crate::facts::Facts;
use crate::policy::{Policy, any_matches};

/// The risk that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Risk {
    pub tier: RiskTier,
    /// The class whose precautions apply.
    pub class: SafetyClass,
    /// The action touches another space than the request's.
    pub cross_space: bool,
}

/// Assesses one action.
///
/// Talking to other machines is of class HIGH, whatever the tool says. It is milder only if every host is on the list and
/// the organisation has a connection: then a read is MEDIUM and R1, and a write that can be undone is R2. Reaching into
/// another space is never below R3. What the author declares can only raise the tier.
pub(crate) fn assess(facts: &Facts, policy: &Policy) -> Risk {
    let tool = &facts.tool;
    let inspection = facts.inspection.as_ref();
    let own = facts.space.as_str();
    let cross_space = inspection.is_some_and(|seen| seen.spaces.iter().any(|space| space != own));
    let (mut tier, mut class) = (tool.tier, tool.safety_class);
    if tool.uses_network() {
        let hosts = inspection.map(|seen| &seen.hosts);
        let listed = |hosts: &std::collections::BTreeSet<String>| {
            !hosts.is_empty() && hosts.iter().all(|host| any_matches(&policy.tables().hosts, host))
        };
        let trusted = facts.connection && hosts.is_some_and(listed);
        (tier, class) = match (trusted, tool.risk_level) {
            (true, RiskLevel::Read) => (RiskTier::R1, SafetyClass::Medium),
            (true, RiskLevel::Write) if tool.reversible => (RiskTier::R2, SafetyClass::High),
            (_, RiskLevel::Danger) => (RiskTier::R4, SafetyClass::High),
            (_, RiskLevel::Read | RiskLevel::Write) => (RiskTier::R3, SafetyClass::High),
        };
        tier = tool.tier_declared.map_or(tier, |declared| declared.max(tier));
    }
    // Without leave to do so, the space gate refuses it anyway, and its reason is the one that helps.
    if cross_space && policy.tables().cross_space.contains(tool.id.as_str()) {
        (tier, class) = (tier.max(RiskTier::R3), SafetyClass::High);
    }
    Risk {
        tier,
        class,
        cross_space,
    }
}

/// The least that a space's band demands of a tier; `None` where the cascade's answer stands.
pub const fn band_floor(band: Band, tier: RiskTier, level: RiskLevel) -> Option<Mode> {
    let ask = Some(Mode::RequireApproval);
    let deny = Some(Mode::Deny);
    match (tier, band) {
        (_, Band::Black) => deny,
        (RiskTier::R0, Band::Green | Band::Amber | Band::Red) => None,
        (RiskTier::R1, Band::Green) => None,
        (RiskTier::R1, Band::Amber) => match level {
            RiskLevel::Read => None,
            RiskLevel::Write | RiskLevel::Danger => ask,
        },
        (RiskTier::R1, Band::Red) => ask,
        (RiskTier::R2, Band::Green) => None,
        (RiskTier::R2, Band::Amber | Band::Red) => ask,
        (RiskTier::R3, Band::Green | Band::Amber) => ask,
        (RiskTier::R3, Band::Red) => deny,
        (RiskTier::R4, Band::Green) => ask,
        (RiskTier::R4, Band::Amber | Band::Red) => deny,
    }
}

/// What follows from the risk alone when nobody has set a mode.
pub(crate) fn inferred_mode(facts: &Facts, risk: &Risk) -> Mode {
    let contained = facts.tool.is_contained() && !risk.cross_space;
    match risk.tier {
        RiskTier::R0 | RiskTier::R1 => match (risk.class, facts.tool.risk_level) {
            (SafetyClass::High, _) => Mode::RequireApproval,
            (SafetyClass::Low | SafetyClass::Medium, RiskLevel::Read) => Mode::Allow,
            (SafetyClass::Low | SafetyClass::Medium, RiskLevel::Write) if contained => Mode::Allow,
            (SafetyClass::Low | SafetyClass::Medium, RiskLevel::Write | RiskLevel::Danger) => {
                Mode::RequireApproval
            }
        },
        RiskTier::R2 if contained && facts.verified && risk.class != SafetyClass::High => Mode::Allow,
        RiskTier::R2 | RiskTier::R3 => Mode::RequireApproval,
        RiskTier::R4 => Mode::Deny,
    }
}

/// The least that a tier demands, whatever anyone has set: R3 and R4 never run unasked.
pub const fn tier_floor(tier: RiskTier) -> Mode {
    match tier {
        RiskTier::R0 | RiskTier::R1 | RiskTier::R2 => Mode::Allow,
        RiskTier::R3 | RiskTier::R4 => Mode::RequireApproval,
    }
}
