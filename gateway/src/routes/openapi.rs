//! The OpenAPI 3.1 document: routes as their handlers declare them, types as the contracts declare them.
//!
//! It is served at `/openapi.json` and checked in as `docs/openapi.json`, so that a change of the interface shows in review.

use effectd_contracts::{
    ActionRequest, AmendmentEntry, Failure, Gate, InclusionProof, LogHead, Operation, Outcome, Phase, Receipt,
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
        description = "The local gateway of effectd, on a unix socket. The peer's uid identifies the caller; every problem is \
                       `application/problem+json` with a stable `type` and `code`.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    components(schemas(Problem))
)]
struct Header;

/// The document without its routes.
pub(super) fn header() -> utoipa::openapi::OpenApi {
    Header::openapi()
}

/// The whole document.
pub fn document() -> Value {
    // Plain data with text keys always serialises.
    let mut document = serde_json::to_value(descriptions()).unwrap_or_default();
    if let Some(Value::Object(schemas)) = document.pointer_mut(SCHEMAS) {
        schemas.extend(contracts());
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
    generator.subschema_for::<Receipt>();
    generator.subschema_for::<LogHead>();
    generator.subschema_for::<InclusionProof>();
    generator.subschema_for::<AmendmentEntry>();
    generator.subschema_for::<Failure>();
    generator.subschema_for::<Operation>();
    generator.subschema_for::<Outcome>();
    generator.subschema_for::<Phase>();
    generator.subschema_for::<Gate>();
    generator.take_definitions(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

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

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        assert_eq!(document["openapi"], "3.1.0");
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
