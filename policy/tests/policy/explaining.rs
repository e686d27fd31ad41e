//! An explanation shows every step, what it saw, and how to change the answer.

use effectd_contracts::{DecisionRecord, Digest};
use effectd_policy::{Facts, evaluate, explain};

use crate::harness::*;

#[test]
fn every_step_is_shown_also_those_behind_the_refusal() {
    let policy = world();
    let mut facts = facts(&policy);
    facts.device = Some("tv".into());
    facts.space = space("shared:vault");
    let explanation = explain(&facts, &policy);
    let steps: Vec<_> = explanation.steps.iter().map(|s| (s.name, s.result.as_str(), s.reached)).collect();
    assert_eq!(
        steps,
        [
            ("rbac", "ok", true),
            ("abac", "deny", true),
            ("consent", "ok", false),
            ("space", "deny", false),
            ("safety", "ok", false),
            ("redaction", "n/a", false),
            ("reach", "ok", false),
            ("mode", "deny", false),
        ]
    );
    let text = explanation.to_string();
    for line in [
        "deny by abac by no-television (rules.cedar:5)",
        "saw     device tv of class television",
        "required: [files.write, workspace:shared:write]",
        "because forbidden by no-television (rules.cedar:5)",
        "fix     change the rule, or the circumstances that it names",
        "(not reached)",
    ] {
        assert!(text.contains(line), "{line}\n---\n{text}");
    }
    // Every step that refuses has to change, not only the first.
    let (_, changes) = text.split_once("do all of these:\n").unwrap();
    let mut named: Vec<_> =
        changes.lines().map(|line| line.trim_start_matches("  - ").split(':').next()).collect();
    named.dedup();
    assert_eq!(named, [Some("abac"), Some("space"), Some("mode")], "{text}");
}

#[test]
fn a_receipt_is_enough_to_explain_and_to_decide_again() {
    let policy = world();
    let facts = facts(&policy);
    let decision = evaluate(&facts, &policy);
    let text = serde_json::to_string(&decision.record(&facts)).unwrap();
    let record: DecisionRecord = serde_json::from_str(&text).unwrap();
    assert_eq!(record.policy_digest, policy.digest());
    let again = Facts::from_record(&record).unwrap();
    assert_eq!(again, facts);
    assert_eq!(evaluate(&again, &policy), decision);
    assert_eq!(explain(&again, &policy).decision, decision);
    let mut broken = record;
    broken.facts["principal"] = serde_json::json!(7);
    assert!(Facts::from_record(&broken).is_err());
    assert_ne!(broken.policy_digest, Digest::of(b""));
}
