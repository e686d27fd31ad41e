//! `docs/openapi.json` is checked in, so that a change of the interface shows in review.

use std::collections::BTreeSet;

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::harness::{Place, Serving, root};

#[test]
fn the_checked_in_description_is_the_one_that_is_served() {
    let made = served();
    let path = root().join("docs/openapi.json");
    if std::env::var_os("EFFECTD_BLESS").is_some() {
        std::fs::write(&path, format!("{}\n", serde_json::to_string_pretty(&made).unwrap())).unwrap();
    }
    let kept: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(kept, made, "docs/openapi.json is out of step; EFFECTD_BLESS=1 writes it anew");
}

/// The document of a running daemon, with the tools that are shipped.
fn served() -> Value {
    let place = Place::seeded();
    place.serve(&[]).get("/openapi.json").json(200)
}

fn operations(document: &Value) -> Vec<&Value> {
    let paths = document["paths"].as_object().unwrap().values();
    paths.flat_map(|methods| methods.as_object().unwrap().values()).collect()
}

/// Generators name functions by operation ids, and types by discriminators.
#[test]
fn ids_are_unique_and_links_and_unions_lead_somewhere() {
    let made = served();
    let all = operations(&made);
    let ids: BTreeSet<&str> = all.iter().map(|one| one["operationId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), all.len(), "{ids:?}");
    let responses = all.iter().flat_map(|one| one["responses"].as_object().unwrap().values());
    let links =
        responses.filter_map(|response| response["links"].as_object()).flat_map(|links| links.values());
    let targets: Vec<_> = links.map(|link| link["operationId"].as_str().unwrap()).collect();
    assert!(targets.contains(&"receipts_show") && targets.contains(&"approvals_show"), "{targets:?}");
    assert!(targets.iter().all(|target| ids.contains(target)), "{targets:?}");
    for union in ["Operation", "PolicyChange", "ToolCall"] {
        let union = &made["components"]["schemas"][union];
        let mapping = union["discriminator"]["mapping"].as_object().unwrap();
        assert_eq!(mapping.len(), union["oneOf"].as_array().unwrap().len());
        for target in mapping.values() {
            assert!(made.pointer(target.as_str().unwrap().strip_prefix('#').unwrap()).is_some(), "{target}");
        }
    }
}

/// A schema in the document, which may refer to others in it.
fn validator(document: &Value, schema: &Value) -> Validator {
    let whole = json!({ "allOf": [schema], "components": document["components"] });
    jsonschema::draft202012::new(&whole).unwrap()
}

#[test]
fn every_request_body_has_an_example_that_fits() {
    let made = served();
    let mut bodies = 0;
    for operation in operations(&made) {
        let Some(body) = operation.pointer("/requestBody/content/application~1json") else { continue };
        let schema = validator(&made, &body["schema"]);
        let named = body["examples"].as_object().into_iter().flat_map(|named| named.values());
        let examples: Vec<_> = named.map(|one| &one["value"]).chain(body.get("example")).collect();
        assert!(!examples.is_empty(), "{}", operation["operationId"]);
        for example in examples {
            assert!(schema.is_valid(example), "{}: {example}", operation["operationId"]);
        }
        bodies += 1;
    }
    assert!(bodies > 10, "{bodies}");
}

/// The example of every tool fits the schema in the document, which is the tool's own.
#[test]
fn every_tool_has_its_schemas_and_a_valid_example() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let made = daemon.get("/openapi.json").json(200);
    let body = &made["paths"]["/v1/actions"]["post"]["requestBody"];
    assert_eq!(body["required"], true);
    let examples = body["content"]["application/json"]["examples"].as_object().unwrap();
    let tools = daemon.get("/v1/tools").json(200);
    assert_eq!(examples.len(), tools.as_array().unwrap().len());
    let call = validator(&made, &json!({ "$ref": "#/components/schemas/ToolCall" }));
    assert!(!call.is_valid(&json!({ "tool_id": "files.write_text", "params": { "argv": ["ls"] } })));
    for (tool, example) in examples {
        let schema = &made["components"]["schemas"][format!("{tool}-params")];
        assert_eq!(daemon.get(&format!("/v1/tools/{tool}")).json(200)["spec"]["params_schema"], *schema);
        assert!(call.is_valid(&example["value"]), "{tool}: {example}");
    }
}

/// Clients are generated from the document: its path parameters must be those in the path.
#[test]
fn every_path_parameter_is_described_and_nothing_else_is() {
    let made = served();
    let mut seen = 0;
    for (path, methods) in made["paths"].as_object().unwrap() {
        for (method, described) in methods.as_object().unwrap() {
            let parameters = described["parameters"].as_array().cloned().unwrap_or_default();
            let told = parameters.iter().filter(|one| one["in"] == "path");
            let mut told: Vec<String> =
                told.map(|one| format!("{{{}}}", one["name"].as_str().unwrap())).collect();
            let mut parts: Vec<&str> = path.split('/').filter(|part| part.starts_with('{')).collect();
            told.sort();
            parts.sort_unstable();
            assert_eq!(told, parts, "{method} {path}");
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen}");
}
