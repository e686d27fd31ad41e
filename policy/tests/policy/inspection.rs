//! The inspection: what it removes from parameters, and what it only records.

use effectd_contracts::RedactionKind;
use effectd_policy::inspect;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::harness::*;

fn look(schema: Value, params: Value) -> effectd_policy::Inspection {
    let spec = tool(|spec| spec.params_schema = schema);
    inspect(params.as_object().unwrap(), &spec, &world())
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
        seen.redacted.iter().any(|entry| entry.field == "/list/0/*/0" && entry.kind == RedactionKind::Email)
    );
    assert!(!serde_json::to_string(&(seen.facts, seen.redacted)).unwrap().contains("bob@"));
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
    let seen = inspect(params.as_object().unwrap(), &spec, &world());
    let mut required = seen.facts.personal_required.clone();
    required.sort();
    assert_eq!(required, ["/*", "/*/0/*", "/argv/1", "/face", "/host", "/id/*"]);
    let mut expected = params.clone();
    expected["text"] = json!("[redacted:phone]");
    assert_eq!(Value::Object(seen.params), expected);
    assert_eq!(seen.redacted.len(), 1, "{:?}", seen.redacted);
}

#[test]
fn more_redactions_than_are_recorded_count_together() {
    let texts = vec!["bob@example.org, +49 171 2345678"; 100];
    let seen = look(json!({ "type": "object", "properties": { "list": {} } }), json!({ "list": texts }));
    assert_eq!(seen.redacted.len(), 66);
    let counts = seen.facts.redacted;
    assert_eq!((counts.emails, counts.phones, counts.faces), (100, 100, 0));
    let rest: Vec<_> = seen.redacted.iter().filter(|entry| entry.field.is_empty()).collect();
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
