//! Tightening any single rule never weakens a verdict: over random policies and random facts.

use std::collections::BTreeSet;

use effectd_contracts::{Band, Compensation, Mode, RiskLevel, SideEffect};
use effectd_policy::{Decision, Denier, Facts, Verdict, evaluate};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::json;

use crate::harness::*;

/// A policy as data, so that single rules can be tightened.
#[derive(Debug, Clone)]
struct World {
    principal_subjects: Vec<&'static str>,
    principal_actors: Vec<&'static str>,
    role_caps: Vec<&'static str>,
    subject_caps: Vec<&'static str>,
    visible_to: Vec<&'static str>,
    bands: [Band; 2],
    consents: Vec<(&'static str, &'static str, &'static str, bool)>,
    org_mode: Option<Mode>,
    automation_mode: Option<Mode>,
    cross_space: bool,
    hosts: Vec<&'static str>,
    skew_s_max: u32,
    words: Vec<&'static str>,
    permits: Vec<&'static str>,
    forbids: Vec<&'static str>,
    text_bytes_max: usize,
}

const CAPS: [&str; 5] = ["files.write", "files.*", "workspace:shared:write", "workspace:*:write", "pii.pass"];
const PERMITS: [&str; 3] = [
    "permit (principal, action, resource);",
    "permit (principal in Role::\"writer\", action, resource);",
    "permit (principal, action == Action::\"write\", resource) when { context.tool.tier < 3 };",
];
const FORBIDS: [&str; 4] = [
    "forbid (principal, action, resource) when { context.device.class == \"phone\" };",
    "forbid (principal, action, resource) when { context.clock.night };",
    "forbid (principal, action == Action::\"danger\", resource);",
    "forbid (principal, action, resource) when { context.cross_space };",
];

fn list(names: &[&str]) -> String {
    serde_json::to_string(names).unwrap()
}

impl World {
    fn toml(&self) -> String {
        let mode = |mode: &Option<Mode>| {
            mode.map_or(String::new(), |mode| format!("modes = {{ \"files:write_text\" = {} }}", json!(mode)))
        };
        let mut text = format!(
            r#"version = 1
[clock]
zone = "utc"
skew_s_max = {}
[principals."user://alice"]
subjects = {}
actors = {}
[roles.writer]
caps = {}
[subjects."agent://planner"]
roles = ["writer"]
caps = {}
[actors.alice]
[devices.phone1]
class = "phone"
[orgs.home]
{}
[automations.weekly]
{}
[spaces."shared:household"]
band = "{}"
visible_to = {}
org = "home"
[spaces."private:alice"]
band = "{}"
visible_to = {}
[allow]
cross_space = {}
hosts = {}
[safety]
words = {}
low = {{ text_bytes_max = {} }}
"#,
            self.skew_s_max,
            list(&self.principal_subjects),
            list(&self.principal_actors),
            list(&self.role_caps),
            list(&self.subject_caps),
            mode(&self.org_mode),
            mode(&self.automation_mode),
            band_text(self.bands[0]),
            list(&self.visible_to),
            band_text(self.bands[1]),
            list(&self.visible_to),
            if self.cross_space { "[\"files.write_text\"]" } else { "[]" },
            list(&self.hosts),
            list(&self.words),
            self.text_bytes_max,
        );
        for (subject, space, purpose, revoked) in &self.consents {
            text += &format!(
                "[[consents]]\nsubject = \"{subject}\"\nspace = \"{space}\"\npurpose = \"{purpose}\"\nrevoked = {revoked}\n"
            );
        }
        text
    }

    fn cedar(&self) -> String {
        self.permits.iter().chain(&self.forbids).map(|rule| format!("{rule}\n")).collect()
    }

    /// Tightens one rule, chosen by number. Some numbers change nothing here; that is a fair case too.
    fn tightened(&self, which: usize, index: Index) -> World {
        let mut world = self.clone();
        let drop_from = |list: &mut Vec<&'static str>| {
            if !list.is_empty() {
                list.remove(index.index(list.len()));
            }
        };
        match which {
            0 => drop_from(&mut world.principal_subjects),
            1 => drop_from(&mut world.principal_actors),
            2 => drop_from(&mut world.role_caps),
            3 => drop_from(&mut world.subject_caps),
            4 => drop_from(&mut world.visible_to),
            5 => world.bands[0] = Band::ALL[(world.bands[0] as usize + 1).min(3)],
            6 => world.bands[1] = Band::ALL[(world.bands[1] as usize + 1).min(3)],
            // Taking a consent away is tightening; taking a revocation away is not.
            7 => {
                let at = index.index(self.consents.len().max(1));
                if world.consents.get(at).is_some_and(|consent| !consent.3) {
                    world.consents.remove(at);
                }
            }
            8 if !world.consents.is_empty() => world.consents[index.index(self.consents.len())].3 = true,
            9 => world.org_mode = world.org_mode.map(stricter),
            10 => world.automation_mode = world.automation_mode.map(stricter),
            11 => world.cross_space = false,
            12 => drop_from(&mut world.hosts),
            13 => world.skew_s_max /= 2,
            14 => world.words.push("hello"),
            15 => drop_from(&mut world.permits),
            16 => world.forbids.push(FORBIDS[index.index(FORBIDS.len())]),
            17 => world.text_bytes_max = 3,
            _ => {}
        }
        world
    }
}

fn stricter(mode: Mode) -> Mode {
    match mode {
        Mode::Allow => Mode::RequireApproval,
        Mode::RequireApproval | Mode::Deny => Mode::Deny,
    }
}

fn mostly(list: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
    proptest::collection::vec(select(list), 0..4)
}

fn any_mode() -> impl Strategy<Value = Option<Mode>> {
    select(vec![None, Some(Mode::Allow), Some(Mode::Allow), Some(Mode::RequireApproval), Some(Mode::Deny)])
}

fn any_world() -> impl Strategy<Value = World> {
    let bands = select(vec![Band::Green, Band::Green, Band::Green, Band::Amber, Band::Red, Band::Black]);
    let consent = (
        select(vec!["agent://planner", "*"]),
        select(vec!["shared:household", "*", "private:*"]),
        select(vec!["tool:files.write_text", "tool:*", "pii:files.write_text"]),
        prop::bool::weighted(0.1),
    );
    let who =
        (mostly(&["agent://planner", "agent://*"]), mostly(&["alice", "*"]), mostly(&CAPS), mostly(&CAPS));
    let place = (
        mostly(&["agent://planner", "role:writer", "*"]),
        (bands.clone(), bands),
        any::<bool>(),
        mostly(&["api.example.org", "*"]),
    );
    let rules =
        (mostly(&PERMITS), proptest::collection::vec(select(&FORBIDS[..]), 0..2), mostly(&["falcon"]));
    (who, place, proptest::collection::vec(consent, 0..4), any_mode(), any_mode(), rules).prop_map(
        |(who, place, mut consents, org_mode, automation_mode, rules)| {
            // A fair share of permits, or the property would be vacuous.
            consents.push(("agent://planner", "*", "tool:files.write_text", false));
            World {
                principal_subjects: [who.0, vec!["agent://planner"]].concat(),
                principal_actors: [who.1, vec!["alice"]].concat(),
                role_caps: [who.2, vec!["files.write"]].concat(),
                subject_caps: [who.3, vec!["workspace:*:write"]].concat(),
                visible_to: [place.0, vec!["role:writer"]].concat(),
                bands: [place.1.0, place.1.1],
                consents,
                org_mode,
                automation_mode,
                cross_space: place.2,
                hosts: place.3,
                skew_s_max: 300,
                words: rules.2,
                permits: [rules.0, vec![PERMITS[0]]].concat(),
                forbids: rules.1,
                text_bytes_max: 1_000,
            }
        },
    )
}

type Case = (usize, &'static str, &'static str, bool, Option<u64>, i64, bool, bool, bool);

fn any_case() -> impl Strategy<Value = Case> {
    (
        select(vec![0, 1, 1, 1, 2, 3, 4]),
        select(vec!["hello", "falcon", "mail bob@example.org", "#!/bin/sh"]),
        select(vec!["shared:household", "shared:household", "private:alice"]),
        any::<bool>(),
        select(vec![None, None, Some(100), Some(200), Some(1_000)]),
        0_i64..24,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    )
}

fn facts_for(policy: &effectd_policy::Policy, case: &Case) -> Facts {
    let (tier, text, param_space, on_phone, skew_s, hour, automation, verified, drifted) = *case;
    let level = match tier {
        0 => RiskLevel::Read,
        4 => RiskLevel::Danger,
        _ => RiskLevel::Write,
    };
    let params = json!({ "path": "a", "text": text, "space_id": param_space });
    let mut facts = facts_of(policy, &tool_of_tier(tier, level), params);
    facts.device = on_phone.then(|| "phone1".to_owned());
    facts.skew_s = skew_s;
    facts.now = effectd_contracts::Timestamp::from_second(hour * 3_600).unwrap();
    facts.automation = automation.then(|| "weekly".to_owned());
    facts.verified = verified;
    facts.drifted = drifted;
    facts
}

/// The tightenings that concern content: a word more on the list, and shorter texts.
const OF_CONTENT: [usize; 2] = [14, 17];

/// The step that refused, if one did: holding content for review is what the safety gate does.
fn refused_at(decision: &Decision) -> Option<Denier> {
    match decision.verdict {
        Verdict::Permit | Verdict::NeedsApproval { .. } => None,
        Verdict::Quarantine { .. } => Some(Denier::Safety),
        Verdict::Deny { by, .. } => Some(by),
    }
}

/// Whether one verdict is at least as strict as another: permit, then needs approval, then quarantine, then deny. And a
/// refusal stays one at the same step or an earlier one: a rule that refused is not silenced by another.
///
/// One exception follows from the order of the steps. Content is inspected before hosts, programs and the mode, so a
/// stricter check of content holds what one of those would have denied.
fn at_least_as_strict(is: &Decision, was: &Decision, content_tightened: bool) -> bool {
    let earlier = match (refused_at(was), refused_at(is)) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(was), Some(is)) => is <= was,
    };
    let kept = match (&was.verdict, &is.verdict) {
        (Verdict::Permit, _) => true,
        (Verdict::NeedsApproval { .. }, is) => *is != Verdict::Permit,
        (Verdict::Quarantine { .. }, Verdict::Quarantine { .. } | Verdict::Deny { .. }) => true,
        (Verdict::Deny { .. }, Verdict::Deny { .. }) => true,
        (Verdict::Deny { by, .. }, Verdict::Quarantine { .. }) => content_tightened && *by > Denier::Safety,
        (
            Verdict::Quarantine { .. } | Verdict::Deny { .. },
            Verdict::Permit | Verdict::NeedsApproval { .. },
        ) => false,
    };
    earlier && kept
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]
    #[test]
    fn tightening_one_rule_never_weakens_a_verdict(
        world in any_world(),
        cases in proptest::collection::vec(any_case(), 8),
        which in 0_usize..18,
        index in any::<Index>(),
    ) {
        let before = compile(&world.toml(), &world.cedar()).unwrap();
        let tight = world.tightened(which, index);
        let after = compile(&tight.toml(), &tight.cedar()).unwrap();
        for case in cases {
            // The tightened policy inspects the content again, as it would in production.
            let was = evaluate(&facts_for(&before, &case), &before);
            let is = evaluate(&facts_for(&after, &case), &after);
            prop_assert!(
                at_least_as_strict(&is, &was, OF_CONTENT.contains(&which)),
                "tightening {which} turned {} into {}\n{case:?}\n{}\n{}", was.verdict, is.verdict, world.toml(), world.cedar()
            );
            // Exactly one mode, and only if it was reached.
            prop_assert_eq!(is.mode.is_some(), is.mode_source.is_some());
            // The same facts give the same answer.
            let facts = facts_for(&after, &case);
            prop_assert_eq!(evaluate(&facts, &after), evaluate(&facts, &after));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn a_connection_weakens_nothing_while_a_host_is_unlisted(
        world in any_world(),
        case in any_case(),
        level in select(vec![RiskLevel::Read, RiskLevel::Write, RiskLevel::Danger]),
        (compensation, reversible) in (select(Compensation::ALL.to_vec()), any::<bool>()),
        also_listed in any::<bool>(),
    ) {
        let world = World { hosts: vec!["api.example.org"], ..world };
        let policy = compile(&world.toml(), &world.cedar()).unwrap();
        let mut facts = facts_for(&policy, &case);
        facts.tool.side_effects = BTreeSet::from([SideEffect::NetworkCall]);
        (facts.tool.risk_level, facts.tool.compensation, facts.tool.reversible) = (level, compensation, reversible);
        let seen = facts.inspection.as_mut().unwrap();
        seen.hosts.insert("unlisted.example".to_owned());
        seen.hosts.extend(also_listed.then(|| "api.example.org".to_owned()));
        let without = evaluate(&facts, &policy);
        (facts.connection, facts.connection_version) = (true, Some(7));
        let with = evaluate(&facts, &policy);
        prop_assert!(refused_at(&without).is_some() && refused_at(&with).is_some(), "{} {}", without.verdict, with.verdict);
        prop_assert_eq!(
            (with.tier, with.safety_class, with.grant_allowed),
            (without.tier, without.safety_class, without.grant_allowed)
        );
    }
}
