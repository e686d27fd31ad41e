//! What can be wrong with a definition, each with its place.
#![allow(clippy::unwrap_used)]
use std::sync::Arc;

use effectd_actors::{Definition as Tool, Source};
use serde_json::json;

use super::*;

const SAMPLE: &str = include_str!("../../../examples/automations/digest.json");
const STARTER: &str = include_str!("../../../examples/automations/weekly_note.json");

fn tools() -> Registry {
    let spec = json!({
        "tool_id": "files.write_text", "version": "1.0.0", "caps_required": [], "side_effects": ["read_only"],
        "safety_class": "LOW", "risk_level": "read",
        "params_schema": {
            "type": "object", "required": ["path", "text"], "additionalProperties": false,
            "properties": {
                "path": { "type": "string" }, "text": { "type": "string" }, "space_id": { "type": "string" },
            },
        },
        "result_schema": { "type": "object" },
    });
    let tool = Tool::new(Source::Plugin, serde_json::from_value(spec).unwrap(), Arc::new(|_| Ok(())));
    let (tools, refused) = Registry::assemble(vec![tool]);
    assert!(refused.is_empty(), "{refused:?}");
    tools
}

fn pointers(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.pointer.as_str()).collect()
}

/// The starter with a change at a pointer: its parent gets the last name, or loses it.
fn changed(pointer: &str, value: Option<Value>) -> Checked {
    let mut document: Value = serde_json::from_str(STARTER).unwrap();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    match (document.pointer_mut(parent).unwrap(), value) {
        (Value::Object(members), Some(value)) => drop(members.insert(name.to_owned(), value)),
        (Value::Object(members), None) => drop(members.remove(name).unwrap()),
        (Value::Array(items), Some(value)) => items.push(value),
        (other, _) => panic!("{other}"),
    }
    check(document.to_string().as_bytes(), &tools())
}

#[test]
fn the_examples_are_definitions() {
    for text in [SAMPLE, STARTER] {
        let Checked { definition, errors, warnings } = check(text.as_bytes(), &tools());
        assert_eq!((errors, warnings), (vec![], vec![]), "{text}");
        let definition = definition.unwrap();
        // What is left out has its default, and what is there is read.
        let read: Value = serde_json::to_value(&definition).unwrap();
        let written: Value = serde_json::from_str(text).unwrap();
        for member in ["name", "goal", "inputs", "plan"] {
            assert_eq!(
                read[member].as_array().map(Vec::len),
                written[member].as_array().map(Vec::len),
                "{member}"
            );
        }
        assert_eq!(read["plan"][1]["config"], written["plan"][1]["config"]);
    }
}

#[test]
fn what_is_wrong_has_its_place() {
    let step = |id: &str, output: &str| {
        json!({
            "step_id": id, "action": "files.write_text", "output_as": output,
            "config": { "path": "workspace/a", "text": "a" },
        })
    };
    for (pointer, value, at) in [
        ("/plan/0/depends_on", Some(json!(["tell"])), "/plan/0"),
        ("/parallel", Some(json!(true)), ""),
        ("/schema_version", Some(json!("2.0")), "/schema_version"),
        ("/plan", None, ""),
        ("/plan", Some(json!([])), "/plan"),
        ("/plan/0/step_id", Some(json!("a/b")), "/plan/0/step_id"),
        ("/plan/0/max_retries", Some(json!(11)), "/plan/0/max_retries"),
        ("/execution/max_retries", Some(json!(11)), "/execution/max_retries"),
        ("/execution/retry_backoff", Some(json!("sometimes")), "/execution/retry_backoff"),
        ("/execution/budget_cap_usd", Some(json!(-1)), "/execution/budget_cap_usd"),
        ("/execution/timeout_seconds", Some(json!(0)), "/execution/timeout_seconds"),
        ("/plan/0/timeout_seconds", Some(json!(601)), "/plan/0/timeout_seconds"),
        ("/plan/0/output_as", Some(json!("run")), "/plan/0/output_as"),
        ("/plan/0/output_as", Some(json!("loop")), "/plan/0/output_as"),
        ("/plan/0/output_as", Some(json!("_a")), "/plan/0/output_as"),
        ("/plan/-", Some(step("write", "other")), "/plan/2/step_id"),
        ("/plan/-", Some(step("again", "note")), "/plan/2/output_as"),
        ("/plan/0/action", Some(json!("files.write_tex")), "/plan/0/action"),
        ("/plan/0/action", Some(json!("write")), "/plan/0/action"),
        ("/plan/0/config", Some(json!({ "path": "workspace/a" })), "/plan/0/config"),
        ("/plan/1/config/to", Some(json!("ada")), "/plan/1/config"),
        ("/inputs/schema/type", Some(json!("array")), "/inputs/schema/type"),
        ("/inputs/schema/properties/week/$ref", Some(json!("http://a.example/b")), "/inputs/schema"),
        (
            "/inputs/schema/properties/text/default",
            Some(json!("$foo")),
            "/inputs/schema/properties/text/default",
        ),
        ("/triggers", Some(json!([{ "type": "poll" }])), "/triggers/0/type"),
        (
            "/triggers",
            Some(json!([{ "type": "schedule", "config": { "cron": "0 9 * * *" } }])),
            "/triggers/0/config",
        ),
        (
            "/triggers",
            Some(
                json!([{ "type": "schedule", "config": { "cron": "0 0 9 * * *", "timezone": "Mars/Base" } }]),
            ),
            "/triggers/0/config/cron",
        ),
        ("/triggers", Some(json!([{ "type": "event", "config": {} }])), "/triggers/0/config"),
    ] {
        let found = changed(pointer, value.clone());
        assert!(pointers(&found.errors).contains(&at), "{pointer} {value:?}: {:?}", found.errors);
    }
    assert_eq!(pointers(&check(b"{", &tools()).errors), [""]);
    let twice = STARTER.replacen("\"name\"", "\"goal\": \"x\", \"name\"", 1);
    assert_eq!(pointers(&check(twice.as_bytes(), &tools()).errors), [""], "a name that appears twice");
}

#[test]
fn tokens_are_those_that_effectd_knows() {
    const AT: &str = "/inputs/schema/properties/text/default";
    for fits in ["$last_fired_at", "$creator", "$space_default", "$5", "$", "a $foo"] {
        assert_eq!(changed(AT, Some(json!(fits))).errors, [], "{fits}");
    }
}

#[test]
fn a_task_of_many_actions_takes_longer_and_needs_a_shape() {
    let task = json!({
        "step_id": "think", "action": "agent_task", "timeout_seconds": 1200,
        "config": { "prompt": "Think", "tools": ["files.*"] },
    });
    let found = changed("/plan/-", Some(task));
    assert_eq!((found.errors, pointers(&found.warnings)), (vec![], vec!["/plan/2/config"]));
}

#[test]
fn extensions_of_editors_say_nothing_to_the_validator() {
    const AT: &str = "/inputs/schema/properties/text/x-surfsense-widget";
    assert_eq!(changed(AT, Some(json!("textarea"))).errors, []);
}

/// Set `EFFECTD_BLESS=1` to write the schema after a deliberate change.
#[test]
fn the_published_schema_is_that_of_the_types() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schemas/automation.json");
    let schema = definition::schema();
    let made = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
    if std::env::var_os("EFFECTD_BLESS").is_some() {
        #[expect(clippy::disallowed_methods, reason = "writes a document for people to review")]
        std::fs::write(&path, &made).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap_or_default() == made,
        "docs/schemas/automation.json is not what the types say; EFFECTD_BLESS=1 cargo test writes it"
    );
    jsonschema::draft202012::meta::validate(schema.as_value()).unwrap();
    let validator = jsonschema::draft202012::new(schema.as_value()).unwrap();
    assert!(validator.is_valid(&serde_json::from_str(SAMPLE).unwrap()));
}
