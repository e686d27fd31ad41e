//! Replay of ten thousand recorded decisions, under the same policy and under others.

use std::collections::BTreeSet;

use effectd_contracts::{BATCH_TOOL, DecisionRecord, Receipt, RiskLevel, SafetyClass};
use effectd_policy::{Facts, Policy, Recorded, Replayed, evaluate};
use serde_json::json;

use crate::harness::*;

/// How many decisions there are, stay, flip and are unknowable.
fn replay(
    records: impl IntoIterator<Item = Recorded>,
    policy: &Policy,
    mut each: impl FnMut(&Recorded, &Replayed),
) -> [usize; 4] {
    let mut counts = [0; 4];
    for record in records {
        let replayed = effectd_policy::replay(&record, policy);
        counts[0] += 1;
        counts[match &replayed {
            Replayed::Same => 1,
            Replayed::Flip { .. } => 2,
            Replayed::Unknowable { .. } => 3,
        }] += 1;
        each(&record, &replayed);
    }
    counts
}

/// A varied history: every fact that decisions use takes several values.
fn history(policy: &Policy, count: usize) -> Vec<(Facts, Recorded)> {
    let tiers = [(0, RiskLevel::Read), (1, RiskLevel::Write), (2, RiskLevel::Write), (4, RiskLevel::Danger)];
    let specs: Vec<_> = tiers.iter().map(|(tier, level)| tool_of_tier(*tier, *level)).collect();
    let texts = ["hello", "the falcon lands", "mail bob@example.org"];
    let bases: Vec<Facts> = specs
        .iter()
        .flat_map(|spec| texts.map(|text| (spec, text)))
        .map(|(spec, text)| {
            facts_of(policy, spec, json!({ "path": "a", "text": text, "space_id": "shared:household" }))
        })
        .collect();
    let made = (0..count).map(|n| {
        let mut facts = bases[n % bases.len()].clone();
        let pick = |salt: usize, of: usize| (n / salt) % of;
        facts.subject = subject(["agent://planner", "agent://guest", "agent://nobody"][pick(12, 3)]);
        facts.device = [None, Some("phone1"), Some("tv")][pick(36, 3)].map(str::to_owned);
        facts.space = space(["shared:household", "shared:vault", "private:alice"][pick(108, 3)]);
        facts.now =
            facts.now.checked_add(std::time::Duration::from_secs(3600 * pick(324, 24) as u64)).unwrap();
        facts.skew_s = [None, Some(10), Some(1000)][pick(7, 3)];
        if pick(5, 2) == 1 {
            facts.tool.safety_class = SafetyClass::Medium;
        }
        let record = evaluate(&facts, policy).record(&facts);
        let text = serde_json::to_string(&record).unwrap();
        (facts, Recorded::new(format!("r-{n}"), &serde_json::from_str(&text).unwrap()))
    });
    made.collect()
}

#[test]
fn ten_thousand_replayed_decisions_flip_only_as_computed() {
    let policy = world();
    let history = history(&policy, 10_000);
    let kinds: BTreeSet<&str> = history.iter().map(|(_, record)| record.verdict.as_str()).collect();
    assert_eq!(
        kinds,
        BTreeSet::from(["deny", "needs_approval", "permit", "quarantine"]),
        "the history is varied"
    );

    let records = || history.iter().map(|(_, record)| record.clone());
    let same =
        replay(records(), &policy, |record, replayed| assert_eq!(replayed, &Replayed::Same, "{}", record.id));
    assert_eq!(same, [10_000, 10_000, 0, 0]);

    // One more rule: phones rest on the hour of 13:00. Exactly what it names and was not denied already must flip.
    let rule = r#"@id("siesta") forbid (principal, action, resource) when { context.device.class == "phone" && context.clock.hour == 13 };"#;
    let stricter = compile(TOML, &format!("{CEDAR}\n{rule}")).unwrap();
    let hour = |facts: &Facts| facts.now.as_second().rem_euclid(86_400) / 3_600;
    let named = |facts: &Facts| facts.device.as_deref() == Some("phone1") && hour(facts) == 13;
    let expected: BTreeSet<&str> = history
        .iter()
        .filter(|(facts, record)| named(facts) && record.verdict != "deny")
        .map(|(_, record)| record.id.as_str())
        .collect();
    let mut flipped = BTreeSet::new();
    let [_, _, flips, unknowable] = replay(records(), &stricter, |record, replayed| {
        if let Replayed::Flip { now } = replayed {
            assert_eq!(now.rule, "siesta (rules.cedar:11)");
            assert!(now.verdict.to_string() == "deny by abac" && now.verdict.why().contains("siesta"));
            flipped.insert(record.id.clone());
        }
    });
    assert!(!expected.is_empty());
    assert_eq!(flipped.iter().map(String::as_str).collect::<BTreeSet<_>>(), expected);
    assert_eq!((flips, unknowable), (expected.len(), 0));
}

#[test]
fn other_content_rules_are_unknowable_unless_a_gate_refuses() {
    let policy = world();
    let history = history(&policy, 1_000);
    let words = world_with("words = [\"falcon\"]", "words = [\"eagle\"]");
    let protected = world_with("band = \"GREEN\"", "band = \"GREEN\"\nprotected = [\".git\"]");
    for other in [words, protected] {
        let records = history.iter().map(|(_, record)| record.clone());
        let [_, same, _, unknowable] = replay(records, &other, |record, replayed| match replayed {
            Replayed::Unknowable { why } => {
                assert!(why.contains("other rules"));
            }
            Replayed::Same => assert_eq!(record.verdict, "deny"),
            Replayed::Flip { .. } => panic!("{} cannot be known to flip", record.id),
        });
        assert!(unknowable > 0 && same > 0);
    }
}

#[test]
fn facts_of_another_time_are_unknowable_and_not_an_error() {
    let policy = world();
    let facts = facts(&policy);
    let mut record = evaluate(&facts, &policy).record(&facts);
    record.facts["a_new_fact"] = json!(true);
    let counts = replay([Recorded::new("r", &record)], &policy, |_, replayed| {
        assert!(matches!(replayed, Replayed::Unknowable { why } if why.contains("a_new_fact")));
    });
    assert_eq!(counts, [1, 0, 0, 1]);
}

#[test]
fn what_its_own_facts_do_not_decide_is_left_out() {
    let golden = include_str!("../../../contracts/tests/golden/receipt.json");
    let receipt: Receipt = serde_json::from_str(golden).unwrap();
    assert!(Recorded::of(&receipt).is_some());
    let batch = Receipt { tool_id: BATCH_TOOL.parse().unwrap(), ..receipt.clone() };
    assert_eq!(Recorded::of(&batch), None, "its items are decided again");
    for (undo, is_left_out) in [(true, true), (false, false)] {
        let origin = json!({ "kind": "batch", "batch_id": "b", "index": 0, "undo": undo });
        let receipt = Receipt { origin: serde_json::from_value(origin).unwrap(), ..receipt.clone() };
        assert_eq!(Recorded::of(&receipt).is_none(), is_left_out);
    }
}

/// Decisions in the form that receipts had before there were connections, contracts and compensation, for tools that effectd did
/// not ship then.
const KEPT: &str = include_str!("kept_decisions.jsonl");

#[test]
fn receipts_of_an_earlier_build_flip_nothing() {
    let policy = compile(include_str!("kept/policy.toml"), include_str!("kept/household.cedar")).unwrap();
    let records = include_str!("kept/decisions.jsonl").lines().enumerate().map(|(n, line)| {
        Recorded::new(format!("line {n}"), &serde_json::from_str::<DecisionRecord>(line).unwrap())
    });
    let counts = replay(records, &policy, |record, replayed| {
        assert_eq!(replayed, &Replayed::Same, "{}", record.id);
    });
    assert_eq!(counts, [22, 22, 0, 0]);
}

#[test]
fn kept_decisions_without_the_newer_facts_flip_nothing() {
    let policy = world();
    let text = KEPT.replace("<content rules>", &policy.content_digest().to_string());
    let records = text.lines().enumerate().map(|(n, line)| {
        let record: DecisionRecord = serde_json::from_str(line).unwrap();
        // Receipts of today have the same members if nothing new is known.
        let facts = Facts::from_record(&record).unwrap();
        assert_eq!(serde_json::to_value(&facts).unwrap(), record.facts, "line {n}");
        Recorded::new(format!("line {n}"), &record)
    });
    let counts = replay(records, &policy, |record, replayed| {
        assert_eq!(replayed, &Replayed::Same, "{}", record.id);
    });
    assert_eq!(counts, [7, 7, 0, 0]);
}
