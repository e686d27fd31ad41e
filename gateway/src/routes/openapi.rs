//! The OpenAPI 3.1 document: routes as their handlers declare them, types as the contracts declare them.
//!
//! It is served at `/openapi.json` and checked in as `docs/openapi.json`, so that a change of the interface shows in review.

mod complete;

use effectd_actors::Registry;
use effectd_automations::Definition;
use effectd_contracts::{
    ActionRequest, AmendmentEntry, BatchRequest, BatchResult, Connection, Failure, Gate, InclusionProof,
    LogHead, LogLine, Operation, Outcome, Phase, Plan, PlanResult, Receipt, SecretName, Session, SlackUser,
    ToolSpec, Webhook,
};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};
use utoipa::OpenApi;

use super::descriptions;
use crate::problem::Problem;
use crate::schema::SCHEMAS;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "effectd",
        description = "The gateway of effectd. On its unix socket, the peer's uid identifies the caller; over TCP, a bearer token \
                       does. Every problem is `application/problem+json` with a stable `type` and `code`.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    components(schemas(Problem))
)]
struct Header;

/// The document without its routes.
pub(super) fn header() -> utoipa::openapi::OpenApi {
    Header::openapi()
}

/// The whole document, with the schemas of these tools.
pub fn document(tools: &Registry) -> Value {
    // Plain data with text keys always serialises.
    let mut document = serde_json::to_value(descriptions()).unwrap_or_default();
    if let Some(Value::Object(schemas)) = document.pointer_mut(SCHEMAS) {
        schemas.extend(contracts());
    }
    complete::complete(&mut document);
    for tool in tools.iter() {
        complete::add_tool(&mut document, tool);
    }
    document
}

/// The schemas of the contracts' types.
fn contracts() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = SCHEMAS.into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    generator.subschema_for::<ActionRequest>();
    generator.subschema_for::<BatchRequest>();
    generator.subschema_for::<BatchResult>();
    generator.subschema_for::<Receipt>();
    generator.subschema_for::<LogHead>();
    generator.subschema_for::<LogLine>();
    generator.subschema_for::<InclusionProof>();
    generator.subschema_for::<AmendmentEntry>();
    generator.subschema_for::<Failure>();
    generator.subschema_for::<Operation>();
    generator.subschema_for::<Outcome>();
    generator.subschema_for::<Phase>();
    generator.subschema_for::<Plan>();
    generator.subschema_for::<PlanResult>();
    generator.subschema_for::<Gate>();
    generator.subschema_for::<Session>();
    generator.subschema_for::<Connection>();
    generator.subschema_for::<Definition>();
    generator.subschema_for::<SecretName>();
    generator.subschema_for::<Webhook>();
    generator.subschema_for::<SlackUser>();
    generator.subschema_for::<ToolSpec>();
    generator.take_definitions(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use effectd_actors::{Definition, Source};
    use serde_json::json;
    use std::sync::Arc;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(target)) = members.get("$ref") {
                    found.push(target.clone());
                }
                members.values().for_each(|member| references(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Tools of a plugin or a connector, whose schemas refer to themselves.
    fn tools(ids: &[&str]) -> Registry {
        let schema = json!({
            "$id": "https://example.org/x",
            "type": "object",
            "properties": {
                "part": { "$ref": "#/$defs/part" },
                "whole": { "$ref": "#" },
                "value": { "default": { "$ref": "#/info" } },
            },
            "$defs": { "part": { "type": "string" } },
        });
        let definition = |id: &&str| {
            let spec = json!({
                "tool_id": id, "version": "1.0.0", "caps_required": [], "side_effects": ["read_only"],
                "safety_class": "LOW", "risk_level": "read", "params_schema": schema, "result_schema": schema,
            });
            let source = if id.contains(':') { Source::Connector } else { Source::Plugin };
            Definition::new(source, serde_json::from_value(spec).unwrap(), Arc::new(|_| Ok(())))
        };
        let (tools, refused) = Registry::assemble(ids.iter().map(definition).collect());
        assert!(refused.is_empty(), "{refused:?}");
        tools
    }

    #[test]
    fn no_schema_of_a_tool_replaces_another_one() {
        let far = ["x", "x-params", "x--params", "x-", "x.-"]
            .map(|action| format!("connector:0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50.{action}"));
        let ids = [&["t.x", "t.x.params", "t.x.result"][..], &far.each_ref().map(String::as_str)].concat();
        let names = |tools: &Registry| -> Vec<String> {
            document(tools).pointer(SCHEMAS).unwrap().as_object().unwrap().keys().cloned().collect()
        };
        let found = names(&tools(&ids));
        assert_eq!(found.len(), names(&Registry::default()).len() + 3 * ids.len() + 1, "and `ToolCall`");
        for name in found {
            let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
            assert!(name.bytes().all(fits), "{name} is no name of a component");
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let far = "connector:0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50.x-y";
        let document = document(&tools(&["t.x", far]));
        assert_eq!(document["openapi"], "3.1.0");
        let params = &document["components"]["schemas"]["t.x-params"];
        assert_eq!(params["properties"]["part"]["$ref"], "#/components/schemas/t.x-params/$defs/part");
        assert_eq!(params["properties"]["whole"]["$ref"], "#/components/schemas/t.x-params");
        // It would be the base of the references. What only looks like a reference stays as it is.
        assert!(params.get("$id").is_none());
        assert_eq!(params["properties"]["value"]["default"]["$ref"], "#/info");
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 20);
        for target in found {
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
    }

    #[test]
    fn types_of_gateway_and_contracts_have_different_names() {
        let own = serde_json::to_value(descriptions()).unwrap();
        let own = own.pointer(SCHEMAS).unwrap().as_object().unwrap();
        for name in contracts().keys() {
            assert!(!own.contains_key(name), "{name}");
        }
    }
}
