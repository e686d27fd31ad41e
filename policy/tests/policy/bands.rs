//! The complete table of bands and tiers.

use effectd_contracts::{Band, Mode, ModeSource, RiskLevel, RiskTier};
use effectd_policy::{Clamp, Facts, Policy, Verdict, evaluate};

use crate::harness::*;

/// The floor of each tier in GREEN, AMBER, RED and BLACK; `-` where the mode stays.
const TABLE: [(usize, RiskLevel, [&str; 4]); 7] = [
    (0, RiskLevel::Read, ["-", "-", "-", "deny"]),
    (1, RiskLevel::Read, ["-", "-", "ask", "deny"]),
    (1, RiskLevel::Write, ["-", "ask", "ask", "deny"]),
    (2, RiskLevel::Write, ["-", "ask", "ask", "deny"]),
    (3, RiskLevel::Read, ["ask", "ask", "deny", "deny"]),
    (3, RiskLevel::Write, ["ask", "ask", "deny", "deny"]),
    (4, RiskLevel::Danger, ["ask", "deny", "deny", "deny"]),
];

/// A world of this band in which the organisation has set this mode.
fn policy(band: Band, mode: Option<&str>) -> Policy {
    let toml = TOML.replacen("band = \"GREEN\"", &format!("band = \"{}\"", band_text(band)), 1);
    let modes =
        mode.map_or(String::new(), |mode| format!("[orgs.home.modes]\n\"files:write_text\" = \"{mode}\""));
    compile(&toml.replacen("[orgs.home]\n", &format!("[orgs.home]\n{modes}\n"), 1), CEDAR).unwrap()
}

#[test]
fn every_cell_of_the_table_holds_under_every_mode() {
    for (tier, level, row) in TABLE {
        for (band, cell) in Band::ALL.into_iter().zip(row) {
            for mode in ["allow", "require_approval", "deny"] {
                let policy = policy(band, Some(mode));
                let facts = facts_of(&policy, &tool_of_tier(tier, level), params());
                assert_eq!(facts.tool.tier as usize, tier);
                let verdict = evaluate(&facts, &policy).verdict;
                let expected = match (cell, mode) {
                    ("deny", _) | (_, "deny") => "deny",
                    ("ask", _) | (_, "require_approval") => "needs_approval",
                    _ => "permit",
                };
                assert_eq!(
                    verdict.as_str(),
                    expected,
                    "R{tier} {level:?} in {band:?} with {mode}: {verdict:?}"
                );
            }
        }
    }
}

#[test]
fn black_is_denied_by_the_space_and_other_floors_by_the_mode() {
    let facts =
        |policy: &Policy, tier, level| -> Facts { facts_of(policy, &tool_of_tier(tier, level), params()) };
    let black = policy(Band::Black, Some("allow"));
    assert_eq!(evaluate(&facts(&black, 0, RiskLevel::Read), &black).verdict.to_string(), "deny by space");
    let red = policy(Band::Red, Some("allow"));
    let decision = evaluate(&facts(&red, 3, RiskLevel::Write), &red);
    assert_eq!(decision.verdict.to_string(), "deny by mode");
    assert_eq!(decision.clamped_by, Some(Clamp::BandFloor));
    assert!(decision.rule.starts_with("policy.toml:"));
}

#[test]
fn danger_can_be_lifted_to_asking_and_no_further() {
    let danger = |policy: &Policy| {
        let facts = facts_of(policy, &tool_of_tier(4, RiskLevel::Danger), params());
        evaluate(&facts, policy)
    };
    let inferred = danger(&policy(Band::Green, None));
    assert_eq!(inferred.verdict.to_string(), "deny by mode");
    assert_eq!((inferred.mode, inferred.mode_source), (Some(Mode::Deny), Some(ModeSource::InferredDefault)));
    for (mode, clamp) in [("allow", Some(Clamp::TierFloor)), ("require_approval", None)] {
        let decision = danger(&policy(Band::Green, Some(mode)));
        assert!(matches!(decision.verdict, Verdict::NeedsApproval { .. }));
        assert_eq!(
            (decision.tier, decision.clamped_by, decision.grant_allowed),
            (RiskTier::R4, clamp, false)
        );
    }
}

#[test]
fn a_careful_band_is_not_waived_by_a_grant() {
    let ask = |band| {
        let policy = policy(band, None);
        let facts = facts_of(&policy, &tool_of_tier(2, RiskLevel::Write), params());
        evaluate(&facts, &policy)
    };
    assert!(ask(Band::Green).grant_allowed);
    assert!(!ask(Band::Amber).grant_allowed);
    assert!(!ask(Band::Red).grant_allowed);
}
