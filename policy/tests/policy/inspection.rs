//! The inspection: what it removes from parameters, and what it only records.

use effectd_contracts::{Gate, RedactionKind, SideEffect};
use effectd_policy::{evaluate, inspect, inspect_to_show};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::harness::*;

fn look(schema: Value, params: Value) -> effectd_policy::Inspection {
    let spec = tool(|spec| spec.params_schema = schema);
    inspect(params.as_object().unwrap(), &spec, &space("shared:household"), &world())
}

#[test]
fn personal_data_goes_at_any_depth() {
    let seen = look(
        json!({ "type": "object", "properties": { "list": { "items": { "type": "object" } } } }),
        json!({
            "text": "write bob@example.org or call +49 171 2345678",
            "list": [{ "deep": ["jane@example.org", 5, null, true] }],
            "phone": 491712345678_u64, "count": 491712345678_u64,
            "faces": [{ "x": 1 }], "Face_Image": "aGk=", "bob@example.org": 1,
        }),
    );
    assert_eq!(
        Value::Object(seen.params),
        json!({
            "text": "write [redacted:email] or call [redacted:phone]",
            "list": [{ "deep": ["[redacted:email]", 5, null, true] }],
            "phone": "[redacted:phone]", "count": 491712345678_u64,
            "faces": [], "Face_Image": "[redacted:face]", "[redacted:email]": 1,
        })
    );
    let counts = seen.facts.redacted;
    assert_eq!((counts.emails, counts.phones, counts.faces), (3, 2, 2));
    assert!(
        seen.redactions
            .iter()
            .any(|entry| entry.field == "/list/0/*/0" && entry.kind == RedactionKind::Email)
    );
    assert!(!serde_json::to_string(&(seen.facts, seen.redactions)).unwrap().contains("bob@"));
}

#[test]
fn annotations_are_found_through_references_and_alternatives() {
    let schema = json!({
        "type": "object",
        "$defs": { "person": { "type": "object", "properties": { "address": { "x-pii": "required" } } } },
        "properties": {
            "to": { "type": "array", "items": { "$ref": "#/$defs/person" } },
            "photo": { "anyOf": [{ "type": "null" }, { "type": "string", "x-pii": "face" }] },
            "target": { "allOf": [{ "x-space": true }] },
        },
    });
    let params = json!({
        "to": [{ "address": "bob@example.org", "note": "jane@example.org" }], "photo": "aGk=", "target": "private:bob",
    });
    let seen = look(schema, params);
    assert_eq!(seen.facts.personal_required, ["/to/0/address"]);
    assert_eq!(seen.params["to"], json!([{ "address": "bob@example.org", "note": "[redacted:email]" }]));
    assert_eq!(seen.params["photo"], "[redacted:face]");
    assert_eq!(seen.facts.spaces.iter().collect::<Vec<_>>(), ["private:bob"]);
}

#[test]
fn what_names_a_resource_is_required_as_it_is() {
    let spec = tool(|spec| {
        spec.params_schema = json!({
            "type": "object",
            "properties": {
                "host": { "x-host": true }, "argv": { "type": "array", "x-command": true }, "id": { "x-resource": true },
                "face": { "x-pii": "face", "x-resource": true },
            },
        });
        spec.resource = Some("row:{space_id}/{row}".to_owned().try_into().unwrap());
    });
    let phone = "+49 171 2345678";
    let params = json!({
        "path": phone, "list": [{ "from_path": phone }], "host": phone, "argv": ["ls", phone], "id": { "a": phone },
        "space_id": phone, "row": phone, "face": "f.png", "text": phone,
    });
    let seen = inspect(params.as_object().unwrap(), &spec, &space("shared:household"), &world());
    let mut required = seen.facts.personal_required.clone();
    required.sort();
    assert_eq!(required, ["/*", "/*/0/*", "/argv/1", "/face", "/host", "/id/*"]);
    let mut expected = params.clone();
    expected["text"] = json!("[redacted:phone]");
    assert_eq!(Value::Object(seen.params), expected);
    assert_eq!(seen.redactions.len(), 1, "{:?}", seen.redactions);
}

#[test]
fn the_first_rule_for_space_tool_and_field_decides() {
    let rule = |words: &str| format!("[[redaction.rules]]\n{words}\n");
    let rules = [
        "space = \"shared:garden\"\ntool = \"files.*\"\nfield = \"/text\"\nthen = \"refuse\"",
        "space = \"shared:garden\"\nthen = \"pass\"",
        "space = \"private:*\"\nfield = \"/list/*\"\nthen = \"pass\"",
        "space = \"private:*\"\nthen = \"redact\"",
    ];
    let policy = world_plus(&rules.map(rule).concat());
    let spec = tool(|spec| {
        spec.params_schema["properties"]["list"] = json!({ "type": "array" });
        spec.params_schema["properties"]["id"] = json!({ "type": "string", "x-resource": true });
    });
    let params = json!({
        "path": "notes/x.txt", "text": "bob@example.org", "list": ["bob@example.org"], "id": "bob@example.org", "faces": [1],
    });
    let seen = |name: &str| inspect(params.as_object().unwrap(), &spec, &space(name), &policy);
    let garden = seen("shared:garden");
    assert_eq!(Value::Object(garden.params), params);
    assert_eq!(
        (garden.facts.personal_refused, garden.facts.personal_required.len()),
        (vec!["/text".to_owned()], 0)
    );
    let mut passed = garden.facts.personal_passed.clone();
    passed.sort();
    assert_eq!((passed, garden.passed.len()), (["/*", "/id", "/list/0"].map(str::to_owned).to_vec(), 3));
    let private = seen("private:alice");
    let placeholder = json!("[redacted:email]");
    assert_eq!(
        (&private.params["text"], &private.params["list"], &private.params["faces"]),
        (&placeholder, &params["list"], &json!([]))
    );
    assert_eq!(private.facts.personal_required, ["/id"]);
    let elsewhere = seen("shared:household");
    assert_eq!((&elsewhere.params["text"], &elsewhere.params["list"]), (&placeholder, &json!([placeholder])));
    // People see no personal data, whatever the tool gets.
    let shown = inspect_to_show(params.as_object().unwrap(), &spec, &policy);
    assert!(!Value::Object(shown.params).to_string().contains("bob@"));
    assert_eq!(shown.redactions.len(), 4);
}

#[test]
fn use_treatment_and_network_decide_what_happens() {
    for (network, then, expected) in [
        (false, "redact", ["redacted", "required", "required"]),
        (false, "refuse", ["refused", "refused", "refused"]),
        (false, "pass", ["passed", "passed", "required"]),
        (true, "redact", ["refused", "refused", "required"]),
        (true, "refuse", ["refused", "refused", "refused"]),
        (true, "pass", ["refused", "refused", "required"]),
    ] {
        let policy = world_plus(&format!("[[redaction.rules]]\nthen = {then:?}"));
        let spec = tool(|spec| {
            if network {
                spec.side_effects = [SideEffect::NetworkCall].into();
            }
            spec.params_schema = json!({ "type": "object", "properties": {
                "a_text": {}, "find": { "x-resource": true }, "to": { "x-pii": "required" },
            } });
        });
        let address = "bob@example.org";
        let params = json!({ "a_text": address, "find": address, "to": address });
        let seen = inspect(params.as_object().unwrap(), &spec, &space("shared:household"), &policy);
        let found = ["/a_text", "/find", "/to"].map(|field| {
            let is_in = |fields: &[String]| fields.iter().any(|known| known == field);
            let facts = &seen.facts;
            match () {
                () if is_in(&facts.personal_refused) => "refused",
                () if is_in(&facts.personal_required) => "required",
                () if is_in(&facts.personal_passed) => "passed",
                () if seen.redactions.iter().any(|entry| entry.field == field) => "redacted",
                () => "unseen",
            }
        });
        assert_eq!(found, expected, "network {network}, {then}");
        let hidden = found.iter().filter(|outcome| matches!(**outcome, "required" | "passed"));
        assert_eq!(seen.passed.len(), hidden.count(), "network {network}, {then}");
    }
}

#[test]
fn only_paths_are_judged_part_by_part() {
    let spec = tool(|spec| {
        spec.params_schema = json!({ "type": "object", "properties": {
            "find": { "x-resource": true }, "sql": { "x-resource": true }, "argv": { "x-command": true },
            "to_path": {}, "after": { "x-resource": true, "x-public": true },
        } });
    });
    let look = |params: &Value| {
        let seen = inspect(params.as_object().unwrap(), &spec, &space("shared:household"), &world());
        seen.facts.personal_required
    };
    let ordinary = json!({
        "find": "url = https://x-access-token@github.com/org/repo.git", "sql": "select '/tickets/01701234567'",
        "argv": ["git", "clone", "https://x-access-token@github.com/org/repo.git", "/tickets/01701234567"],
    });
    assert_eq!(look(&ordinary), [""; 0]);
    let paths = json!({ "to_path": "tickets/01701234567", "after": "tickets/01701234567", "find": "+49 171 2345678" });
    let mut required = look(&paths);
    required.sort();
    assert_eq!(required, ["/after", "/find", "/to_path"]);
    // People see no more of a path than of a text.
    let shown =
        inspect_to_show(json!({ "to_path": "notes/0170 1234567.txt" }).as_object().unwrap(), &spec, &world());
    assert_eq!(shown.params["to_path"], "notes/[redacted:phone].txt");
}

#[test]
fn the_strictest_space_that_a_call_names_decides() {
    let rule = |space: &str, then: &str| format!("[[redaction.rules]]\nspace = {space:?}\nthen = {then:?}\n");
    let params = |other: &str| json!({ "path": "a", "text": "bob@example.org", "space_id": other });
    let seen = |rules: &str, other: &str| {
        let params = params(other);
        inspect(params.as_object().unwrap(), &spec(), &space("shared:household"), &world_plus(rules))
    };
    let pass = rule("shared:household", "pass");
    assert_eq!(seen(&pass, "shared:household").params["text"], "bob@example.org");
    assert_eq!(seen(&pass, "shared:garden").params["text"], "[redacted:email]");
    let refuse = pass + &rule("shared:garden", "refuse");
    assert_eq!(seen(&refuse, "shared:garden").facts.personal_refused, ["/text"]);
    assert_eq!(seen(&refuse, "shared:household").facts.personal_passed, ["/text"]);
}

#[test]
fn a_tool_that_calls_the_network_refuses_what_it_does_not_need() {
    let policy = world_plus("[[redaction.rules]]\nthen = \"pass\"");
    let mail = tool(|spec| {
        spec.tool_id = "net.post".parse().unwrap();
        spec.side_effects = [SideEffect::NetworkCall].into();
        let required = json!({ "type": "string", "x-pii": "required" });
        spec.params_schema = json!({ "type": "object", "properties": { "to": required, "text": {}, "channel": { "x-resource": true } } });
    });
    let params =
        json!({ "to": "bob@example.org", "text": "call +49 171 2345678", "channel": "jane@example.org" });
    let seen = inspect(params.as_object().unwrap(), &mail, &space("shared:household"), &policy);
    assert_eq!(seen.facts.personal_required, ["/to"]);
    let mut refused = seen.facts.personal_refused.clone();
    refused.sort();
    assert_eq!(refused, ["/channel", "/text"]);
    assert_eq!((Value::Object(seen.params), seen.redactions.len()), (params.clone(), 0));
    let decision = evaluate(&facts_of(&policy, &mail, params), &policy);
    assert_denied(&decision, Gate::Redaction, "personal_data");
    let text = &decision.verdict.reasons()[0].text;
    assert!(text.contains("/text") && text.contains("calls the network"), "{text}");
}

#[test]
fn more_redactions_than_are_recorded_count_together() {
    let texts = vec!["bob@example.org, +49 171 2345678"; 100];
    let seen = look(json!({ "type": "object", "properties": { "list": {} } }), json!({ "list": texts }));
    assert_eq!(seen.redactions.len(), 66);
    let counts = seen.facts.redacted;
    assert_eq!((counts.emails, counts.phones, counts.faces), (100, 100, 0));
    let rest: Vec<_> = seen.redactions.iter().filter(|entry| entry.field.is_empty()).collect();
    assert_eq!((rest.len(), rest[0].count, rest[1].count), (2, 68, 68));
}

#[test]
fn only_a_word_of_a_name_means_a_phone() {
    let params =
        json!({ "hotel": 12345678, "telemetry_id": 12345678, "mobilePhone": 12345678, "fax": 12345678 });
    let seen = look(json!({ "type": "object" }), params);
    assert_eq!(seen.facts.redacted.phones, 2);
    assert_eq!((&seen.params["hotel"], &seen.params["telemetry_id"]), (&json!(12345678), &json!(12345678)));
}

#[test]
fn a_schema_that_refers_to_itself_ends() {
    let schema = json!({ "type": "object", "$ref": "#", "allOf": [{ "$ref": "#" }], "additionalProperties": { "$ref": "#" } });
    let seen = look(schema, json!({ "a": { "b": { "c": "bob@example.org" } } }));
    assert_eq!(seen.facts.redacted.emails, 1);
}

#[test]
fn more_than_can_be_looked_at_is_held() {
    let mut value = json!("#!/bin/sh");
    for _ in 0..100 {
        value = json!([value]);
    }
    let seen = look(json!({ "type": "object" }), json!({ "deep": value }));
    assert!(seen.facts.overflow);
    assert!(!Value::Object(seen.params).to_string().contains("#!"));
    let many: Vec<String> = (0..100).map(|n| format!("#!/bin/{n}")).collect();
    let seen = look(json!({ "type": "object" }), json!({ "many": many }));
    assert!(seen.facts.overflow && seen.facts.findings.len() == 32);
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,30}".prop_map(Value::from),
        Just(json!("mail bob@example.org")),
        Just(json!("call +49 171 2345678")),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::vec(("\\PC{0,8}", inner), 0..6)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn no_planted_address_survives_and_a_second_look_finds_nothing(value in any_value()) {
        let seen = look(json!({ "type": "object" }), json!({ "v": value }));
        let text = Value::Object(seen.params.clone()).to_string();
        prop_assert!(!text.contains("bob@example.org") && !text.contains("2345678"));
        prop_assert!(!serde_json::to_string(&seen.facts).unwrap().contains("bob@example.org"));
        let again = look(json!({ "type": "object" }), Value::Object(seen.params.clone()));
        prop_assert_eq!(again.params, seen.params);
        prop_assert!(again.facts.redacted.is_zero());
    }

    #[test]
    fn no_planted_secret_survives_the_storage_redactor(value in any_value(), name in "(?i)(token|secret|password|authorization|api_key|apikey)") {
        let mut value = json!([{ "outer": [value, { name: { "deep": "planted-secret" } }] }]);
        effectd_policy::redact_secrets(&mut value);
        prop_assert!(!value.to_string().contains("planted-secret"));
    }
}
