//! The mode cascade: the automation's mode, or the organisation's, or the one that follows from the risk. Then drift, tier and
//! band can only make it stricter. The cascade is the same for every tool, wherever the tool comes from.

use effectd_contracts::{Band, COMMAND_TOOL, Mode, ModeSource, RiskTier};

use crate::decision::{Clamp, Reason};
use crate::facts::Facts;
use crate::policy::Policy;
use crate::risk::{Risk, band_floor, inferred_mode, named_command, tier_floor};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub(crate) mode: Mode,
    pub(crate) source: ModeSource,
    pub(crate) clamped_by: Option<Clamp>,
    pub(crate) rule: String,
    pub(crate) band: Band,
}

/// Resolves the mode of one action, whose space is known.
pub(crate) fn resolve(facts: &Facts, risk: &Risk, policy: &Policy) -> Resolved {
    let (mode, source, rule) = cascade(facts, risk, policy);
    let (band, band_rule) = strictest_band(facts, policy);
    let mut resolved = Resolved { mode, source, clamped_by: None, rule, band };
    if facts.drifted {
        resolved.tighten(Mode::RequireApproval, Clamp::Drift, || {
            "the tool's description is not the reviewed one".to_owned()
        });
    }
    resolved.tighten(tier_floor(risk.tier), Clamp::TierFloor, || {
        format!("{:?} always needs an approval", risk.tier)
    });
    if let Some(floor) = band_floor(band, risk.tier, risk.level) {
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

    /// Whether a grant may replace the approval: not if tier, drift or band demands an approval for each call.
    pub(crate) fn grant_allowed(&self, facts: &Facts, risk: &Risk) -> bool {
        self.mode == Mode::RequireApproval
            && risk.tier < RiskTier::R3
            && !facts.drifted
            && self.band == Band::Green
    }
}

fn cascade(facts: &Facts, risk: &Risk, policy: &Policy) -> (Mode, ModeSource, String) {
    let tool = facts.tool.id.as_str();
    let command = named_command(facts, policy.tables()).map(|command| command.name.as_str());
    let by_automation = facts
        .automation
        .as_deref()
        .and_then(|id| policy.tables().automation_modes.get(id, tool, command, facts.now));
    if let Some((mode, rule)) = by_automation {
        return (mode, ModeSource::AutomationOverride, rule);
    }
    let org = policy.tables().spaces.get(&facts.space).and_then(|space| space.org.as_deref());
    if let Some((mode, rule)) = org.and_then(|org| policy.org_modes.get(org, tool, command, facts.now)) {
        return (mode, ModeSource::OrgDefault, rule);
    }
    let rule = format!("the default of tier {:?}", risk.tier);
    (inferred_mode(facts, risk), ModeSource::InferredDefault, rule)
}

/// The strictest band of all spaces that the action touches.
fn strictest_band(facts: &Facts, policy: &Policy) -> (Band, String) {
    let others = facts.inspection.iter().flat_map(|seen| &seen.spaces);
    let others = others.filter_map(|name| effectd_contracts::SpaceId::new(name).ok());
    let all = std::iter::once(facts.space.clone()).chain(others);
    let bands = all.map(|id| match policy.tables().spaces.get(&id) {
        Some(space) => policy.band(&id, space),
        None => (Band::Black, format!("{id} is unknown")),
    });
    // Of equal bands, the first counts, and the request's own space is first.
    bands
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .unwrap_or((Band::Black, String::new()))
}

fn is_unnamed_command(facts: &Facts) -> bool {
    facts.tool.id.as_str() == COMMAND_TOOL && facts.named_command().is_none()
}

/// Why the mode is not `allow`, and how to change it.
pub(crate) fn reason(resolved: &Resolved, facts: &Facts, risk: &Risk) -> Reason {
    let verb = match resolved.mode {
        Mode::Allow => "is allowed",
        Mode::RequireApproval => "needs a person's approval",
        Mode::Deny => "is denied",
    };
    let (tier, band, rule) = (risk.tier.as_str(), resolved.band.as_str(), &resolved.rule);
    let (code, why, change) = match (resolved.clamped_by, resolved.source) {
        (Some(Clamp::Drift), _) => (
            "drift",
            ": nobody has reviewed its description as it is now".to_owned(),
            "let an administrator review it: effectd connectors review".to_owned(),
        ),
        (Some(Clamp::TierFloor), _) => (
            "tier_floor",
            format!(": every action of tier {tier} needs an approval"),
            match facts.tool.id.as_str() {
                COMMAND_TOOL => {
                    "name the command in [commands], or let a person approve each call".to_owned()
                }
                _ => "no setting changes this: a person must approve each call".to_owned(),
            },
        ),
        (Some(Clamp::BandFloor), _) => (
            "band_floor",
            format!(": band {band} requires it for tier {tier}"),
            format!("set a milder band for {} in {rule}", facts.space),
        ),
        (None, ModeSource::AutomationOverride | ModeSource::OrgDefault) => {
            ("mode", format!(" by {rule}"), format!("change the mode in {rule}"))
        }
        (None, ModeSource::InferredDefault) if is_unnamed_command(facts) => (
            "inferred",
            format!(": no command of [commands] has these words, and this is the default of tier {tier}"),
            "name the command in [commands], or let a person approve each call".to_owned(),
        ),
        (None, ModeSource::InferredDefault) => (
            "inferred",
            format!(": no mode is set, and this is the default of tier {tier}"),
            "set a mode for this tool".to_owned(),
        ),
    };
    Reason::new(code, format!("{} {verb}{why}", facts.tool.id), change)
}
