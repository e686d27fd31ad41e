//! The cascade: automation, organisation, inferred; and drift.

use effectd_contracts::{Mode, ModeSource, RiskLevel, SideEffect};
use effectd_policy::{Clamp, Policy, Verdict, evaluate};

use crate::harness::*;

fn policy(automation: Option<Mode>, org: Option<Mode>, tool: &str) -> Policy {
    let word = |mode| serde_json::to_string(&mode).unwrap();
    let automation = automation
        .map_or(String::new(), |mode| format!("[automations.weekly.modes]\n\"{tool}\" = {}\n", word(mode)));
    let org = org.map_or(String::new(), |mode| format!("[orgs.home.modes]\n\"{tool}\" = {}\n", word(mode)));
    let toml = TOML.replacen("[orgs.home]\n", &format!("[orgs.home]\n{org}{automation}"), 1);
    compile(&toml, CEDAR).unwrap()
}

#[test]
fn the_first_level_that_answers_wins() {
    let modes = [None, Some(Mode::Allow), Some(Mode::Deny)];
    for automation in modes {
        for org in modes {
            for (tier, inferred) in [(1, Mode::Allow), (2, Mode::RequireApproval)] {
                let policy = policy(automation, org, "files:write_text");
                let mut facts = facts_of(&policy, &tool_of_tier(tier, RiskLevel::Write), params());
                facts.automation = Some("weekly".to_owned());
                let decision = evaluate(&facts, &policy);
                let (mode, source) = match (automation, org) {
                    (Some(mode), _) => (mode, ModeSource::AutomationOverride),
                    (None, Some(mode)) => (mode, ModeSource::OrgDefault),
                    (None, None) => (inferred, ModeSource::InferredDefault),
                };
                assert_eq!((decision.mode, decision.mode_source), (Some(mode), Some(source)));
                let verdict = match mode {
                    Mode::Allow => "permit",
                    Mode::RequireApproval => "needs_approval",
                    Mode::Deny => "deny",
                };
                assert_eq!(decision.verdict.as_str(), verdict);
            }
        }
    }
}

#[test]
fn sources_make_no_difference() {
    for id in [
        "files.write_text",
        "linear.create_issue",
        "connector:0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50.search_docs",
        "db:0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50.run_query",
        "plugin.x.y",
    ] {
        let (source, action) = id.rsplit_once('.').unwrap();
        for key in [id.to_owned(), format!("{source}:{action}")] {
            let consent = format!("[[consents]]\nsubject = \"*\"\nspace = \"*\"\npurpose = \"tool:{id}\"");
            let toml =
                TOML.replacen("[orgs.home]\n", &format!("[orgs.home.modes]\n\"{key}\" = \"deny\"\n"), 1);
            let policy = compile(&format!("{toml}\n{consent}"), CEDAR).unwrap();
            let decision = decide(&policy, |f| {
                f.tool.id = id.parse().unwrap();
                f.connection = source.starts_with("connector:");
            });
            assert_eq!(
                (decision.mode, decision.mode_source),
                (Some(Mode::Deny), Some(ModeSource::OrgDefault)),
                "{key}"
            );
        }
    }
}

#[test]
fn risk_is_only_a_hint_for_the_inferred_mode() {
    let read = tool_of_tier(0, RiskLevel::Read);
    let denied = policy(None, Some(Mode::Deny), "files.write_text");
    assert_eq!(evaluate(&facts_of(&denied, &read, params()), &denied).verdict.to_string(), "deny by mode");
    let write = tool_of_tier(2, RiskLevel::Write);
    let allowed = policy(None, Some(Mode::Allow), "files.write_text");
    assert_eq!(evaluate(&facts_of(&allowed, &write, params()), &allowed).verdict, Verdict::Permit);
}

#[test]
fn what_is_inferred_looks_at_containment_and_evidence() {
    let policy = world();
    let infer = |tier, verified: bool, effect: Option<SideEffect>| {
        let mut facts = facts_of(&policy, &tool_of_tier(tier, RiskLevel::Write), params());
        facts.verified = verified;
        facts.tool.side_effects.extend(effect);
        evaluate(&facts, &policy).mode.unwrap()
    };
    assert_eq!(infer(1, false, None), Mode::Allow);
    assert_eq!(infer(1, false, Some(SideEffect::ProcessExec)), Mode::RequireApproval);
    assert_eq!(infer(2, false, None), Mode::RequireApproval);
    assert_eq!(infer(2, true, None), Mode::Allow);
    assert_eq!(infer(2, true, Some(SideEffect::ProcessExec)), Mode::RequireApproval);
}

#[test]
fn drift_only_makes_it_stricter() {
    for (mode, expected, clamp) in [
        (Mode::Allow, Mode::RequireApproval, Some(Clamp::Drift)),
        (Mode::RequireApproval, Mode::RequireApproval, None),
        (Mode::Deny, Mode::Deny, None),
    ] {
        let policy = policy(None, Some(mode), "files.write_text");
        let decision = decide(&policy, |f| f.drifted = true);
        assert_eq!(
            (decision.mode, decision.clamped_by, decision.grant_allowed),
            (Some(expected), clamp, false)
        );
    }
}
