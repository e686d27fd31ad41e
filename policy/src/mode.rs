//! The mode cascade: automation, then organisation, then what follows from the risk; then drift, tier and band, which can
//! only make it stricter. There is one function, and it knows nothing of where a tool comes from.

use effectd_contracts::{Band, Mode, ModeSource, RiskTier};

use crate::decision::{Clamp, Reason};
use crate::facts::Facts;
use crate::policy::Policy;
use crate::risk::{Risk, band_floor, inferred_mode, tier_floor};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub(crate) mode: Mode,
    pub(crate) source: ModeSource,
    pub(crate) clamped_by: Option<Clamp>,
    pub(crate) rule: String,
    pub(crate) band: Band,
}

/// Resolves the mode of one action. The space is known here.
pub(crate) fn resolve(facts: &Facts, risk: &Risk, policy: &Policy) -> Resolved {
    let (mode, source, rule) = cascade(facts, risk, policy);
    let (band, band_rule) = strictest_band(facts, policy);
    let mut resolved = Resolved {
        mode,
        source,
        clamped_by: None,
        rule,
        band,
    };
    if facts.drifted {
        resolved.tighten(Mode::RequireApproval, Clamp::Drift, || {
            "the tool's description changed".to_owned()
        });
    }
    resolved.tighten(tier_floor(risk.tier), Clamp::TierFloor, || {
        format!("{:?} never runs unasked", risk.tier)
    });
    if let Some(floor) = band_floor(band, risk.tier, facts.tool.risk_level) {
        resolved.tighten(floor, Clamp::BandFloor, || band_rule);
    }
    resolved
}

impl Resolved {
    fn tighten(&mut self, floor: Mode, clamp: Clamp, rule: impl FnOnce() -> String) {
        if floor > self.mode {
            self.mode = floor;
            self.clamped_by = Some(clamp);
            self.rule = rule();
        }
    }

    /// A pre-approval may stand in for a person only where nothing demands one for this very call.
    pub(crate) fn grant_allowed(&self, facts: &Facts, risk: &Risk) -> bool {
        self.mode == Mode::RequireApproval
            && risk.tier < RiskTier::R3
            && !facts.drifted
            && self.band == Band::Green
    }
}

fn cascade(facts: &Facts, risk: &Risk, policy: &Policy) -> (Mode, ModeSource, String) {
    let tool = facts.tool.id.as_str();
    let by_automation = facts
        .automation
        .as_deref()
        .and_then(|id| policy.automation_modes().get(id, tool));
    if let Some((mode, rule)) = by_automation {
        return (mode, ModeSource::AutomationOverride, rule);
    }
    let org = policy
        .tables()
        .spaces
        .get(&facts.space)
        .and_then(|space| space.org.as_deref());
    if let Some((mode, rule)) = org.and_then(|org| policy.org_modes().get(org, tool)) {
        return (mode, ModeSource::OrgDefault, rule);
    }
    let rule = format!("inferred from {:?}", risk.tier);
    (inferred_mode(facts, risk), ModeSource::InferredDefault, rule)
}

/// An action that reaches into another space is as restricted as the strictest of them.
fn strictest_band(facts: &Facts, policy: &Policy) -> (Band, String) {
    let others = facts.inspection.iter().flat_map(|seen| &seen.spaces);
    let others = others.filter_map(|name| effectd_contracts::SpaceId::new(name).ok());
    let all = std::iter::once(facts.space.clone()).chain(others);
    let bands = all.map(|id| match policy.tables().spaces.get(&id) {
        Some(space) => policy.band(&id, space),
        None => (Band::Black, format!("{id} is unknown")),
    });
    // Of equals the first, which is the request's own space.
    bands
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .unwrap_or((Band::Black, String::new()))
}

pub(crate) fn band_word(band: Band) -> &'static str {
    match band {
        Band::Green => "GREEN",
        Band::Amber => "AMBER",
        Band::Red => "RED",
        Band::Black => "BLACK",
    }
}

/// Why the mode is not `allow`, and what would have to change.
pub(crate) fn reason(resolved: &Resolved, facts: &Facts, risk: &Risk) -> Reason {
    let tool = &facts.tool.id;
    let verb = match resolved.mode {
        Mode::Allow => "is allowed",
        Mode::RequireApproval => "needs a person's approval",
        Mode::Deny => "is denied",
    };
    match (resolved.clamped_by, resolved.source) {
        (Some(Clamp::Drift), _) => Reason::new(
            "drift",
            format!("{tool} {verb}: its description changed since it was reviewed"),
            "an administrator reviews the tool again",
        ),
        (Some(Clamp::TierFloor), _) => Reason::new(
            "tier_floor",
            format!("{tool} {verb}: actions of tier {:?} never run unasked", risk.tier),
            "nothing lifts this floor; a person approves each call",
        ),
        (Some(Clamp::BandFloor), _) => Reason::new(
            "band_floor",
            format!(
                "{tool} {verb}: band {} demands it of tier {:?}",
                band_word(resolved.band),
                risk.tier
            ),
            format!("the band of {} in {} becomes milder", facts.space, resolved.rule),
        ),
        (None, ModeSource::AutomationOverride | ModeSource::OrgDefault) => Reason::new(
            "mode",
            format!("{tool} {verb} by {}", resolved.rule),
            format!("the mode in {} changes", resolved.rule),
        ),
        (None, ModeSource::InferredDefault) => Reason::new(
            "inferred",
            format!(
                "{tool} {verb}: nobody set a mode, and that follows from tier {:?}",
                risk.tier
            ),
            "a mode is set for this tool",
        ),
    }
}
