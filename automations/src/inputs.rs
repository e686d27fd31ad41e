//! The inputs of a run: what was given, completed by the defaults of the definition's schema, and checked against it.

use effectd_actors::registry::schema::Schema;
use effectd_contracts::{Principal, SpaceId, Timestamp};
use serde_json::{Map, Value};

use crate::check::Finding;
use crate::definition::Definition;

/// The values of tokens in defaults.
#[derive(Debug, Clone)]
pub struct Known {
    /// When the automation ran last; before its first run, when it was created.
    pub last_fired_at: Timestamp,
    pub creator: Principal,
    pub space_default: SpaceId,
}

impl Known {
    fn value(&self, default: &Value) -> Value {
        match default.as_str() {
            Some("$last_fired_at") => self.last_fired_at.to_string().into(),
            Some("$creator") => self.creator.as_str().into(),
            Some("$space_default") => self.space_default.as_str().into(),
            Some(_) | None => default.clone(),
        }
    }
}

/// The inputs, or what is wrong with them: pointers into the inputs.
pub fn resolve(
    definition: &Definition,
    given: Map<String, Value>,
    known: &Known,
) -> Result<Map<String, Value>, Vec<Finding>> {
    let (schema, mut inputs) = (&definition.inputs.schema, given);
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    for (name, property) in properties {
        if let Some(default) = property.get("default")
            && !inputs.contains_key(name)
        {
            inputs.insert(name.clone(), known.value(default));
        }
    }
    let finding =
        |pointer: &str, message: &str| Finding { pointer: pointer.to_owned(), message: message.to_owned() };
    let schema = Schema::new(&Value::Object(schema.clone()))
        .map_err(|error| vec![finding("/inputs/schema", &error)])?;
    let lines = schema.violations(&Value::Object(inputs.clone()));
    if lines.is_empty() {
        return Ok(inputs);
    }
    let place = |line: &String| match line.split_once(": ") {
        Some((place, message)) if place.starts_with('/') => finding(place.trim_end_matches('/'), message),
        _ => finding("", line),
    };
    Err(lines.iter().map(place).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn known() -> Known {
        Known {
            last_fired_at: "2026-05-26T09:00:00Z".parse().unwrap(),
            creator: "user://ada".parse().unwrap(),
            space_default: "shared:household".parse().unwrap(),
        }
    }

    fn resolved(schema: Value, given: Value) -> Result<Value, Vec<Finding>> {
        let definition = json!({
            "schema_version": "1.0", "name": "x", "inputs": { "schema": schema },
            "plan": [{ "step_id": "a", "action": "files.list" }],
        });
        let definition: Definition = serde_json::from_value(definition).unwrap();
        resolve(&definition, given.as_object().unwrap().clone(), &known()).map(Value::Object)
    }

    #[test]
    fn what_is_left_out_has_its_default_and_tokens_their_values() {
        let schema = json!({
            "type": "object", "required": ["since"],
            "properties": {
                "since": { "type": "string", "format": "date-time", "default": "$last_fired_at" },
                "by": { "type": "string", "default": "$creator" },
                "in": { "type": "string", "default": "$space_default" },
                "tags": { "type": "array", "items": { "type": "string" }, "default": ["a"] },
            },
        });
        let all = json!({
            "since": "2026-05-26T09:00:00Z", "by": "user://ada", "in": "shared:household", "tags": ["a"],
        });
        assert_eq!(resolved(schema.clone(), json!({})).unwrap(), all);
        let given = json!({ "since": "2026-01-01T00:00:00Z", "by": "x", "in": "y", "tags": [] });
        assert_eq!(resolved(schema.clone(), given.clone()).unwrap(), given);
        let wrong = resolved(schema.clone(), json!({ "since": "yesterday", "tags": [7] })).unwrap_err();
        let places: Vec<_> = wrong.iter().map(|one| one.pointer.as_str()).collect();
        assert_eq!(places.len(), 2, "{wrong:?}");
        assert!(places.contains(&"/since") && places.contains(&"/tags/0"), "{wrong:?}");
        // A token is one in a default only: what a caller gives is what it is.
        assert!(resolved(schema, json!({ "since": "$last_fired_at" })).is_err());
        assert_eq!(resolved(json!({}), json!({ "any": 1 })).unwrap(), json!({ "any": 1 }));
    }
}
