//! A small policy (one household with a few spaces) and a request that it permits. Each test changes one thing.

use std::collections::BTreeSet;

use effectd_contracts::{
    ActionRequest, Band, Gate, GateResult, Principal, RiskLevel, SafetyClass, SideEffect, SpaceId, SubjectId,
    Timestamp, ToolSpec,
};
use effectd_policy::{Decision, Facts, Overlay, Policy, PolicyError, Source, Verdict, evaluate, inspect};
use serde_json::{Value, json};

pub(crate) const TOML: &str = r#"version = 1

[principals."user://alice"]
subjects = ["agent://*", "automation://*"]
actors = ["alice", "bob"]

[roles.reader]
caps = ["files.read", "workspace:*:read"]

[roles.writer]
inherits = ["reader"]
caps = ["files.write", "workspace:shared:write"]

[subjects."agent://planner"]
roles = ["writer"]

[subjects."agent://guest"]
roles = ["reader"]
caps = ["workspace:private:write", "files.write"]

[subjects."automation://weekly"]
roles = ["writer"]

[actors.alice]
roles = ["writer"]

[actors.bob]
roles = ["reader"]

[devices.phone1]
class = "phone"

[devices.tv]
class = "television"

[orgs.home]

[spaces."shared:household"]
band = "GREEN"
visible_to = ["role:reader", "automation://*"]
org = "home"

[spaces."shared:garden"]
band = "GREEN"
visible_to = ["agent://planner"]
org = "home"

[spaces."shared:vault"]
band = "BLACK"
visible_to = ["*"]

[spaces."private:alice"]
band = "GREEN"
visible_to = ["agent://planner"]

[[consents]]
subject = "*"
space = "*"
purpose = "tool:files.*"

[[consents]]
subject = "agent://planner"
space = "shared:household"
purpose = "tool:net.post"

[clock]
zone = "utc"

[allow]
cross_space = ["files.copy"]
hosts = ["api.example.org"]
commands = ["git"]

[safety]
words = ["falcon"]
"#;

pub(crate) const CEDAR: &str = r#"
@id("all")
permit (principal, action, resource);

@id("no-television")
forbid (principal, action, resource) when { context.device.class == "television" };

@id("night-rest")
forbid (principal, action, resource) when { context.clock.night && context.tool.safety_class == "MEDIUM" };
"#;

pub(crate) fn source(toml: &str, cedar: &str) -> Source {
    Source::new(toml, [("rules.cedar".to_owned(), cedar.to_owned())])
}

pub(crate) fn compile(toml: &str, cedar: &str) -> Result<Policy, PolicyError> {
    Policy::compile(&source(toml, cedar), &Overlay::default())
}

pub(crate) fn world() -> Policy {
    compile(TOML, CEDAR).unwrap()
}

pub(crate) fn world_with(from: &str, to: &str) -> Policy {
    assert!(TOML.contains(from), "{from:?} is not in the world");
    compile(&TOML.replacen(from, to, 1), CEDAR).unwrap()
}

pub(crate) fn world_plus(more: &str) -> Policy {
    compile(&format!("{TOML}\n{more}"), CEDAR).unwrap()
}

pub(crate) fn spec() -> ToolSpec {
    serde_json::from_value(json!({
        "tool_id": "files.write_text", "version": "1.0.0",
        "caps_required": ["files.write", "workspace:shared:write"],
        "params_schema": { "type": "object", "required": ["path", "text", "space_id"], "properties": {
            "path": { "type": "string" }, "text": { "type": "string" }, "space_id": { "type": "string" },
        } },
        "result_schema": { "type": "object" },
        "side_effects": ["filesystem_write"], "safety_class": "LOW", "risk_level": "write", "reversible": true,
    }))
    .unwrap()
}

pub(crate) fn tool(change: impl FnOnce(&mut ToolSpec)) -> ToolSpec {
    let mut spec = spec();
    change(&mut spec);
    spec
}

/// A tool of one tier, by the simplest description that has it.
pub(crate) fn tool_of_tier(tier: usize, level: RiskLevel) -> ToolSpec {
    tool(|spec| {
        spec.risk_level = Some(level);
        match (tier, level) {
            (0, RiskLevel::Read) => spec.side_effects = BTreeSet::from([SideEffect::ReadOnly]),
            (1, RiskLevel::Read) => {
                spec.side_effects = BTreeSet::from([SideEffect::ReadOnly]);
                spec.safety_class = SafetyClass::Medium;
            }
            (1, RiskLevel::Write) => {}
            (2, RiskLevel::Write) => spec.reversible = false,
            (3, _) => spec.risk_tier = Some(effectd_contracts::RiskTier::R3),
            (4, RiskLevel::Danger) => spec.side_effects = BTreeSet::from([SideEffect::FilesystemDelete]),
            other => panic!("no tool of {other:?}"),
        }
    })
}

pub(crate) fn noon() -> Timestamp {
    "2026-01-07T12:00:00Z".parse().unwrap()
}

pub(crate) fn request(params: Value) -> ActionRequest {
    serde_json::from_value(json!({
        "action_id": "a-1", "subject_id": "agent://planner", "space_id": "shared:household",
        "tool_id": "files.write_text", "params": params, "policy_ctx": { "actor": "alice", "device": "phone1" },
    }))
    .unwrap()
}

pub(crate) fn params() -> Value {
    json!({ "path": "notes/w36.txt", "text": "hello", "space_id": "shared:household" })
}

pub(crate) fn facts_of(policy: &Policy, spec: &ToolSpec, params: Value) -> Facts {
    let request = request(params);
    let inspection = inspect(&request.params, spec, &request.space_id, policy);
    Facts::of(&request, spec, &Principal::new("user://alice").unwrap(), noon(), &inspection.facts)
}

pub(crate) fn facts(policy: &Policy) -> Facts {
    facts_of(policy, &spec(), params())
}

/// The permitted request with one change to its facts.
pub(crate) fn decide(policy: &Policy, change: impl FnOnce(&mut Facts)) -> Decision {
    let mut facts = facts(policy);
    change(&mut facts);
    evaluate(&facts, policy)
}

pub(crate) fn subject(id: &str) -> SubjectId {
    SubjectId::new(id).unwrap()
}

pub(crate) fn space(id: &str) -> SpaceId {
    SpaceId::new(id).unwrap()
}

pub(crate) fn codes(decision: &Decision) -> Vec<&str> {
    decision.verdict.reasons().iter().map(|reason| reason.code.as_ref()).collect()
}

/// Denied by this gate for this reason; the gates before it are fine, and those behind it were not asked.
#[track_caller]
pub(crate) fn assert_denied(decision: &Decision, gate: Gate, code: &str) {
    assert_eq!(decision.verdict.to_string(), format!("deny by {}", gate.as_str()), "{:?}", decision.verdict);
    assert!(codes(decision).contains(&code), "{:?}", decision.verdict);
    for other in Gate::ALL {
        let expected = match other.cmp(&gate) {
            std::cmp::Ordering::Less => GateResult::Ok,
            std::cmp::Ordering::Equal => GateResult::Deny,
            std::cmp::Ordering::Greater => GateResult::NotApplicable,
        };
        assert_eq!(decision.gates.get(other), expected, "{other:?}");
    }
    let failure = decision.failure().unwrap();
    assert_eq!((failure.gate, failure.retryable), (Some(gate), false));
    assert!(decision.verdict.reasons().iter().all(|reason| !reason.change.is_empty()));
}

#[track_caller]
pub(crate) fn assert_permitted(decision: &Decision) {
    assert_eq!(decision.verdict, Verdict::Permit, "by {}", decision.rule);
}

pub(crate) fn band_text(band: Band) -> &'static str {
    match band {
        Band::Green => "GREEN",
        Band::Amber => "AMBER",
        Band::Red => "RED",
        Band::Black => "BLACK",
    }
}
