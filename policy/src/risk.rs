//! The risk of one action: what its tool declares, what it reaches, and what the space's band demands.

use std::sync::Arc;

use effectd_contracts::{Band, COMMAND_TOOL, Mode, RiskLevel, RiskTier, SafetyClass};

use crate::facts::Facts;
use crate::inspect::NOT_A_NAME;
use crate::tables::commands::NamedCommand;
use crate::tables::{AllowList, Tables};

/// The risk of one action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Risk {
    pub tier: RiskTier,
    /// The safety class that applies.
    pub class: SafetyClass,
    /// What the action does to the world: a named command may do less than its tool.
    pub level: RiskLevel,
    /// Whether the action touches another space than the request's.
    pub cross_space: bool,
}

/// Assesses one action.
///
/// A network call is of class HIGH, whatever the tool declares. Its risk is lower only if every host is listed and the
/// organisation has a connection: then a read is MEDIUM and R1, and a write is R2 if it can be undone or another call can make
/// up for it. A named command that only reads is R1, and one that changes what it declares is R2. An action on another space is at
/// least R3. The declared tier can only raise the result.
pub(crate) fn assess(facts: &Facts, tables: &Tables) -> Risk {
    let tool = &facts.tool;
    let inspection = facts.inspection.as_ref();
    let own = facts.space.as_str();
    let cross_space = inspection.is_some_and(|seen| seen.spaces.iter().any(|space| space != own));
    let (mut tier, mut class, mut level) = (tool.tier, tool.safety_class, tool.risk_level);
    if let Some(command) = named_command(facts, tables) {
        (tier, level) = match command.writes.is_empty() {
            true => (RiskTier::R1, RiskLevel::Read),
            false => (RiskTier::R2, RiskLevel::Write),
        };
        tier = tool.tier_declared.map_or(tier, |declared| declared.max(tier));
    }
    if tool.uses_network() {
        let hosts = inspection.map(|seen| &seen.hosts);
        let listed = |hosts: &std::collections::BTreeSet<String>| {
            !hosts.is_empty() && hosts.iter().all(|host| is_listed(&tables.hosts, host))
        };
        let trusted = facts.connection && hosts.is_some_and(listed);
        (tier, class) = match (trusted, tool.risk_level) {
            (true, RiskLevel::Read) => (RiskTier::R1, SafetyClass::Medium),
            (true, RiskLevel::Write) if tool.reversible || !tool.compensation.is_none() => {
                (RiskTier::R2, SafetyClass::High)
            }
            (_, RiskLevel::Danger) => (RiskTier::R4, SafetyClass::High),
            (_, RiskLevel::Read | RiskLevel::Write) => (RiskTier::R3, SafetyClass::High),
        };
        tier = tool.tier_declared.map_or(tier, |declared| declared.max(tier));
    }
    // If the tool may not leave its space, the space gate refuses; its reason helps more than a higher tier.
    if cross_space && tables.cross_space.contains(tool.id.as_str()) {
        (tier, class) = (tier.max(RiskTier::R3), SafetyClass::High);
    }
    Risk { tier, class, level, cross_space }
}

/// The named command that covers the action. A recorded name that the policy no longer has counts for nothing.
pub(crate) fn named_command<'t>(facts: &Facts, tables: &'t Tables) -> Option<&'t Arc<NamedCommand>> {
    let name = facts.inspection.as_ref()?.named_command.as_deref()?;
    tables.named.get(name).filter(|_| facts.tool.id.as_str() == COMMAND_TOOL)
}

/// The mildest mode that a band allows for a tier; `None` if the cascade decides.
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

/// What a band leaves to the mode, for people: [`band_floor`] is `None`.
pub(crate) const fn left_to_mode(band: Band) -> &'static str {
    match band {
        Band::Green => "actions of tiers R0 to R2",
        Band::Amber => "actions of tier R0 and reads of tier R1",
        Band::Red => "actions of tier R0",
        Band::Black => "no actions",
    }
}

/// The mode that follows from the risk if no mode is set.
pub(crate) fn inferred_mode(facts: &Facts, risk: &Risk) -> Mode {
    let contained = facts.tool.is_contained() && !risk.cross_space;
    match risk.tier {
        RiskTier::R0 | RiskTier::R1 => match (risk.class, risk.level) {
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

/// The mildest mode that a tier allows: R3 and R4 always need an approval.
pub const fn tier_floor(tier: RiskTier) -> Mode {
    match tier {
        RiskTier::R0 | RiskTier::R1 | RiskTier::R2 => Mode::Allow,
        RiskTier::R3 | RiskTier::R4 => Mode::RequireApproval,
    }
}

/// Whether a host or a program is on a list. Text that is not a name is on none, not even on `*`.
pub(crate) fn is_listed(list: &AllowList, name: &str) -> bool {
    name != NOT_A_NAME && list.has(name)
}
