//! The context of requests fits the schema, and the slices answer like all rules together.
#![allow(clippy::unwrap_used)]
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::*;
use crate::Overlay;
use crate::policy::Policy;

const TABLES: &str = r#"version = 1
[principals."user://*"]
subjects = ["*"]
[roles.reader]
[roles.writer]
inherits = ["reader"]
[roles.guard]
[subjects."agent://planner"]
roles = ["writer"]
[subjects."agent://guest"]
roles = ["reader", "guard"]
[subjects."automation://weekly"]
[actors.alice]
[actors.mallory]
[devices.phone1]
class = "phone"
[devices.tv]
class = "television"
[orgs.home]
[spaces."shared:household"]
band = "GREEN"
visible_to = ["*"]
org = "home"
[spaces."private:alice"]
band = "GREEN"
visible_to = ["*"]
[clock]
zone = "utc"
"#;

fn compile(rules: &str) -> Policy {
    let source = crate::Source::new(TABLES.to_owned(), [("r.cedar".to_owned(), rules.to_owned())]);
    Policy::compile(&source, &Overlay::default()).unwrap_or_else(|error| panic!("{error}\n{rules}"))
}

fn any_facts() -> impl Strategy<Value = Facts> {
    let who = (
        select(vec!["agent://planner", "agent://guest", "automation://weekly"]),
        select(vec!["shared:household", "private:alice"]),
        select(vec![None, Some("alice"), Some("mallory"), Some("x")]),
        select(vec![None, Some("phone1"), Some("tv"), Some("x")]),
        select(vec!["user://a", "user://b"]),
    );
    let tool = (
        select(vec!["files.write_text", "a.b", "files.read"]),
        select(vec!["LOW", "MEDIUM", "HIGH"]),
        select(vec!["read", "write", "danger"]),
        select(vec!["R0", "R1", "R2", "R4"]),
        proptest::sample::subsequence(vec!["filesystem_write", "process_exec", "user_visible"], 0..=3),
    );
    let when = (0_i64..24, any::<bool>(), any::<bool>(), select(vec![None, Some("w")]));
    (who, tool, when).prop_map(|(who, tool, (hour, dry_run, reversible, automation))| {
        serde_json::from_value(json!({
            "subject": who.0, "space": who.1, "actor": who.2, "device": who.3, "principal": who.4,
            "dry_run": dry_run, "automation": automation,
            "now": effectd_contracts::Timestamp::from_second(hour * 3_600).unwrap(),
            "tool": {
                "id": tool.0, "caps": [], "side_effects": tool.4, "safety_class": tool.1, "risk_level": tool.2,
                "tier": tool.3, "reversible": reversible,
            },
        }))
        .unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// `ask` does not check requests against the schema, since that costs as much as evaluating them; so every context must fit
    /// the schema by construction.
    #[test]
    fn the_context_fits_the_schema_that_validates_rules(facts in any_facts()) {
        let policy = compile("");
        let risk = crate::risk::assess(&facts, policy.tables());
        let context = request::context(&facts, &risk, policy.tables()).unwrap();
        let action = uid(&Names::new().action, facts.tool.risk_level.as_str());
        prop_assert!(context.validate(&SCHEMA, &action).is_ok());
    }
}

/// Every parameter at once, so that each has the type of the schema.
#[test]
fn public_parameters_fit_the_schema_that_validates_rules() {
    let names = crate::inspect::public::names();
    let public: serde_json::Map<_, _> =
        names.map(|name| (name.to_owned(), json!({ "x-public": true }))).collect();
    let spec: effectd_contracts::ToolSpec = serde_json::from_value(json!({
        "tool_id": "a.b", "version": "1.0.0", "caps_required": [], "side_effects": [], "safety_class": "LOW",
        "risk_level": "read", "reversible": true, "params_schema": { "properties": public }, "result_schema": {},
    }))
    .unwrap();
    let request = serde_json::from_value(json!({
        "action_id": "a", "subject_id": "agent://planner", "space_id": "shared:household", "tool_id": "a.b",
        "params": {
            "after": "p", "artifact_id": "t", "count": 1, "directory_path": "p", "expected_sha256": "t", "format": "t",
            "from_byte": 1, "from_path": "p", "glob": "t", "ignore_case": true, "max_bytes": 1, "max_hits": 1,
            "max_rows": 1, "overwrite": true, "path": "p", "receipt_id": "t", "recursive": true, "to_path": "p",
            "urgency": "t", "channel": "t", "organization_slug": "t", "projectId": "t", "project_slug": "t", "teamId": "t",
            "assigneeId": "t", "event_id": "t", "first": 1, "issueId": "t", "issue_id": "t", "priority": 1, "stateId": "t",
            "status": "t", "thread_ts": "t",
        },
    }));
    let request: effectd_contracts::ActionRequest = request.unwrap();
    let policy = compile("");
    let seen = crate::policy::inspect(&request.params, &spec, &request.space_id, &policy);
    assert_eq!(
        (seen.facts.params.len(), seen.facts.params_hidden.len()),
        (crate::inspect::public::names().count(), 0)
    );
    let facts = Facts::of(
        &request,
        &spec,
        &"user://a".parse().unwrap(),
        "2026-01-07T12:00:00Z".parse().unwrap(),
        &seen.facts,
    );
    let risk = crate::risk::assess(&facts, policy.tables());
    let context = request::context(&facts, &risk, policy.tables()).unwrap();
    let action = uid(&Names::new().action, "read");
    assert!(context.validate(&SCHEMA, &action).is_ok(), "{:?}", context.validate(&SCHEMA, &action));
}

/// Rules with scopes of each shape and conditions of each kind.
const SHAPES: &[&str] = &[
    r#"permit (principal, action, resource) when { context.clock.hour < 20 };"#,
    r#"permit (principal in Role::"reader", action, resource) when { context.tool.tier == 1 };"#,
    r#"permit (principal == Subject::"agent://planner", action == Action::"read", resource);"#,
    r#"permit (principal is Subject in Role::"writer", action, resource is Space) when { context.dry_run };"#,
    r#"permit (principal, action, resource == Space::"shared:household") unless { context.actor.known };"#,
    r#"permit (principal, action in [Action::"read", Action::"write"], resource in SpaceClass::"shared");"#,
    r#"permit (principal in Subject::"agent://guest", action, resource in Space::"private:alice");"#,
    r#"permit (principal, action, resource) when { context has actor && context.actor has id };"#,
    r#"permit (principal, action, resource) when { context.tool.safety_class == "HIGH" } when { context.device == { id: "tv", class: "television" } };"#,
    r#"forbid (principal, action, resource) when { context.device.class == "phone" && context.clock.night };"#,
    r#"forbid (principal, action, resource) when { context.clock.night && context.device.class == "phone" };"#,
    r#"forbid (principal, action, resource) when { "unknown" == context.device.class };"#,
    r#"forbid (principal, action, resource) when { context.tool.id == "files.write_text" || context.dry_run };"#,
    r#"forbid (principal, action, resource) when { context.tool.id == "a.b" } when { context.clock.hour == 3 };"#,
    r#"forbid (principal, action, resource) unless { context.tool.source == "files" || context.clock.hour < 22 };"#,
    r#"forbid (principal, action, resource) when { context.actor.id == "mallory" && context.clock.unix * 9223372036854775807 > 5 };"#,
    r#"forbid (principal, action, resource) when { context.clock.unix * 9223372036854775807 > 5 && context.actor.id == "nobody" };"#,
    r#"forbid (principal, action == Action::"danger", resource) when { context.principal == "user://a" };"#,
    r#"forbid (principal, action, resource) when { context.automation == "" && context.tool.safety_class == "HIGH" };"#,
];

/// A condition: comparisons of each kind, some of which may fail.
fn any_condition() -> impl Strategy<Value = String> {
    let text_field = select(vec![
        "context.principal",
        "context.actor.id",
        "context.device.id",
        "context.device.class",
        "context.tool.id",
        "context.tool.source",
        "context.tool.safety_class",
        "context.automation",
        "principal.kind",
        "resource.class",
        "resource.org",
    ]);
    let word = select(vec![
        "user://a",
        "alice",
        "phone1",
        "phone",
        "none",
        "files.read",
        "files",
        "HIGH",
        "w",
        "agent",
        "shared",
        "home",
        "",
    ]);
    let text = (text_field.clone(), select(vec!["==", "!="]), word.clone(), any::<bool>());
    let text = text.prop_map(|(field, sign, word, turned)| match turned {
        true => format!("{word:?} {sign} {field}"),
        false => format!("{field} {sign} {word:?}"),
    });
    let number_field = select(vec![
        "context.tool.tier",
        "context.clock.hour",
        "context.clock.minute",
        "context.clock.weekday",
        "context.clock.unix",
    ]);
    let factor = select(vec!["0", "1", "3", "40000", "-7", "9223372036854775807"]);
    let sign = select(vec!["==", "!=", "<", "<=", ">", ">="]);
    let number = (number_field, select(vec!["", "+", "-", "*"]), factor.clone(), sign, factor);
    let number = number.prop_map(|(field, sum, by, sign, bound)| match sum {
        "" => format!("{field} {sign} {bound}"),
        sum => format!("({field} {sum} {by}) {sign} {bound}"),
    });
    let truth = select(vec![
        "context.actor.known",
        "context.tool.contained",
        "context.tool.reversible",
        "context.clock.night",
        "context.dry_run",
        "context.cross_space",
        r#"principal in Role::"reader""#,
        r#"resource in SpaceClass::"private""#,
        r#"context.tool.side_effects.contains("process_exec")"#,
        r#"context.tool.side_effects.containsAny(["process_exec", "user_visible"])"#,
        r#"context.tool.side_effects.contains(context.tool.id)"#,
        r#"context.tool.id == context.tool.source"#,
    ])
    .prop_map(str::to_owned);
    let like = (text_field.clone(), select(vec!["f*", "*e*", "*", "phone", "", "*.re*d", "a\\*b*"]));
    let like = like.prop_map(|(field, pattern)| format!("{field} like \"{pattern}\""));
    let among = (text_field, proptest::collection::vec(word, 1..4));
    let among = among.prop_map(|(field, words)| format!("{words:?}.contains({field})"));
    let leaf = prop_oneof![3 => text, 3 => number, 3 => truth, 1 => like, 1 => among];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            3 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} && {b})")),
            3 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} || {b})")),
            2 => inner.clone().prop_map(|a| format!("!({a})")),
            1 => (inner.clone(), inner.clone(), inner).prop_map(|(a, b, c)| format!("(if {a} then {b} else {c})")),
        ]
    })
}

fn any_rule() -> impl Strategy<Value = String> {
    let principal = select(vec![
        "principal",
        "principal",
        "principal",
        r#"principal == Subject::"agent://guest""#,
        r#"principal in Role::"reader""#,
        r#"principal is Subject in Role::"guard""#,
    ]);
    let action = select(vec![
        "action",
        "action",
        r#"action == Action::"write""#,
        r#"action in [Action::"read", Action::"danger"]"#,
    ]);
    let resource = select(vec![
        "resource",
        "resource",
        r#"resource == Space::"private:alice""#,
        r#"resource in SpaceClass::"shared""#,
    ]);
    let condition = (any::<bool>(), any_condition());
    let conditions = proptest::collection::vec(condition, 0..3);
    let effect = select(vec!["permit", "forbid"]);
    (effect, principal, action, resource, conditions).prop_map(
        |(effect, principal, action, resource, conditions)| {
            let conditions: Vec<String> = conditions
                .iter()
                .map(|(when, body)| format!("{} {{ {body} }}", if *when { "when" } else { "unless" }))
                .collect();
            format!("{effect} ({principal}, {action}, {resource}) {};", conditions.join(" "))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn asking_the_rules_that_could_apply_is_asking_all(
        picked in proptest::sample::subsequence(SHAPES.to_vec(), 0..=8),
        made in proptest::collection::vec(any_rule(), 0..8),
        requests in proptest::collection::vec(any_facts(), 12),
    ) {
        let made: Vec<&str> = made.iter().map(String::as_str).collect();
        let policy = compile(&[picked, made].concat().join("\n"));
        let abac = policy.abac();
        let (caller, mut answers) = (requests[0].clone(), RuleAnswers::default());
        for facts in requests {
            let risk = crate::risk::assess(&facts, policy.tables());
            let known = (policy.tables(), policy.entities());
            let all = abac.ask_these(&[&abac.whole], &facts, &risk, known);
            let is_permitted = matches!(all, AbacAnswer::Permit { .. });
            prop_assert_eq!(abac.ask(&facts, &risk, known), all);
            let alone = |facts: &Facts, risk: &Risk| abac.might_permit(facts, risk, known, &mut RuleAnswers::default());
            prop_assert!(!is_permitted || alone(&facts, &risk));
            let own = Facts { tool: facts.tool, ..caller.clone() };
            let risk = crate::risk::assess(&own, policy.tables());
            prop_assert_eq!(abac.might_permit(&own, &risk, known, &mut answers), alone(&own, &risk));
        }
    }
}

fn write_text() -> Facts {
    serde_json::from_value(json!({
        "principal": "user://a", "subject": "agent://planner", "space": "shared:household",
        "now": "2026-01-07T12:00:00Z",
        "tool": {
            "id": "files.write_text", "caps": [], "side_effects": ["filesystem_write"], "safety_class": "LOW",
            "risk_level": "write", "tier": "R1",
        },
    }))
    .unwrap()
}

#[test]
fn rules_are_asked_once_about_each_kind_of_tool() {
    for (condition, asked) in [
        ("", 1),
        ("when { context.tool.tier == 1 }", 1),
        ("when { context.tool.source == \"files\" }", 2),
        ("when { context.tool.id == \"files.list\" }", 3),
    ] {
        let policy = compile(&format!("permit (principal, action, resource) {condition};"));
        let (mut facts, mut answers) = (write_text(), RuleAnswers::default());
        for id in ["files.write_text", "files.list", "a.b", "files.list"] {
            facts.tool.id = id.parse().unwrap();
            let risk = crate::risk::assess(&facts, policy.tables());
            let known = (policy.tables(), policy.entities());
            policy.abac().might_permit(&facts, &risk, known, &mut answers);
        }
        assert_eq!(answers.0.len(), asked, "{condition}");
    }
}

/// The property above would hold even if one slice had all rules; this test shows that slices leave rules out.
#[test]
fn rules_about_other_subjects_roles_and_spaces_are_not_asked() {
    let facts = write_text();
    for (head, asked) in [
        ("principal, action, resource", true),
        ("principal is Subject, action, resource is Space", true),
        (r#"principal == Subject::"agent://planner", action, resource"#, true),
        (r#"principal == Subject::"agent://guest", action, resource"#, false),
        (r#"principal in Role::"reader", action, resource"#, true),
        (r#"principal is Subject in Role::"guard", action, resource"#, false),
        (r#"principal, action, resource == Space::"shared:household""#, true),
        (r#"principal, action, resource == Space::"private:alice""#, false),
        (r#"principal, action, resource in SpaceClass::"shared""#, true),
        (r#"principal, action, resource in SpaceClass::"private""#, false),
    ] {
        let policy = compile(&format!("forbid ({head});"));
        assert_eq!(
            !policy.abac().slices_of(&policy.abac().slices, &facts, policy.entities()).is_empty(),
            asked,
            "{head}"
        );
    }
}
