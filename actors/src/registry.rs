//! The tools the pipeline knows: their descriptions, with the schemas compiled once.

use std::collections::BTreeMap;
use std::sync::Arc;

use effectd_contracts::{Code, Failure, Phase, SpecInvalid, ToolId, ToolSpec};
use jsonschema::Validator;
use serde_json::{Map, Value};

use crate::limits::VIOLATIONS_MAX;

/// Rules for parameters beyond the schema.
pub type ParamRule = Arc<dyn Fn(&Map<String, Value>) -> Result<(), Failure> + Send + Sync>;

/// One tool.
pub struct Entry {
    spec: ToolSpec,
    params: Validator,
    result: Validator,
    rule: ParamRule,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

/// A tool that cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// Its description contradicts itself.
    #[error("tool {tool}: {source}")]
    Spec {
        /// Which tool.
        tool: ToolId,
        /// What is wrong.
        source: SpecInvalid,
    },
    /// A schema does not compile.
    #[error("tool {tool}: {which} is not a JSON Schema that can be used: {why}")]
    Schema {
        /// Which tool.
        tool: ToolId,
        /// Which of its schemas.
        which: &'static str,
        /// What the compiler said.
        why: String,
    },
    /// The id is taken.
    #[error("tool {0} is registered twice")]
    Duplicate(ToolId),
}

/// All tools, by id.
#[derive(Debug, Default)]
pub struct Registry {
    tools: BTreeMap<ToolId, Arc<Entry>>,
}

impl Registry {
    /// Adds a tool. Nothing is ever replaced.
    pub fn register(&mut self, spec: ToolSpec, rule: ParamRule) -> Result<(), RegistryError> {
        let tool = spec.tool_id.clone();
        spec.check().map_err(|source| RegistryError::Spec {
            tool: tool.clone(),
            source,
        })?;
        if self.tools.contains_key(&tool) {
            return Err(RegistryError::Duplicate(tool));
        }
        let compile = |which: &'static str, schema: &Value| {
            let error = |why: String| RegistryError::Schema {
                tool: tool.clone(),
                which,
                why,
            };
            jsonschema::draft202012::meta::validate(schema).map_err(|e| error(e.to_string()))?;
            // Remote references are off: the crate is built without a resolver, so one fails here instead of fetching.
            let options = jsonschema::draft202012::options().should_validate_formats(true);
            options.build(schema).map_err(|e| error(e.to_string()))
        };
        let params = compile("params_schema", &spec.params_schema)?;
        let result = compile("result_schema", &spec.result_schema)?;
        self.tools.insert(
            tool.clone(),
            Arc::new(Entry {
                spec,
                params,
                result,
                rule,
            }),
        );
        Ok(())
    }

    /// One tool.
    pub fn get(&self, tool: &ToolId) -> Option<&Arc<Entry>> {
        self.tools.get(tool)
    }

    /// All tools, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.tools.values()
    }
}

impl Entry {
    /// What the tool says about itself.
    pub fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// Whether the parameters fit the schema and the tool's own rules. The failure names every place, never a value.
    pub fn check_params(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        let document = Value::Object(params.clone());
        let places = violations(&self.params, &document);
        if !places.is_empty() {
            return Err(Failure::new(
                Code::ParamsInvalid,
                Phase::Validate,
                places.join("; "),
            ));
        }
        (self.rule)(params)
    }

    /// Whether the result fits its schema.
    pub fn check_result(&self, result: &Value) -> Result<(), Failure> {
        let places = violations(&self.result, result);
        if places.is_empty() {
            return Ok(());
        }
        Err(Failure::new(
            Code::ResultInvalid,
            Phase::Capture,
            places.join("; "),
        ))
    }
}

/// Every place that breaks the schema, with what the schema asks for there. Values are masked: they may be secrets.
fn violations(validator: &Validator, document: &Value) -> Vec<String> {
    let mut errors = validator.iter_errors(document);
    let mut places: Vec<_> = errors
        .by_ref()
        .take(VIOLATIONS_MAX)
        .map(|error| {
            let place = error.instance_path().to_string();
            let place = if place.is_empty() { "/" } else { &place };
            format!("{place}: {}", error.masked())
        })
        .collect();
    let more = errors.take(VIOLATIONS_MAX).count();
    if more > 0 {
        places.push(format!("and {more} more"));
    }
    places
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn spec(change: impl FnOnce(&mut Value)) -> ToolSpec {
        let mut value = json!({
            "tool_id": "t.x", "version": "1.0.0", "caps_required": [], "side_effects": ["filesystem_write"],
            "safety_class": "LOW", "risk_level": "write",
            "params_schema": {
                "type": "object", "required": ["path", "when"], "additionalProperties": false,
                "properties": { "path": { "type": "string" }, "when": { "type": "string", "format": "date-time" } },
            },
            "result_schema": { "type": "object" },
        });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    fn entry() -> Arc<Entry> {
        let mut registry = Registry::default();
        registry.register(spec(|_| ()), Arc::new(|_| Ok(()))).unwrap();
        registry.get(&"t.x".parse().unwrap()).unwrap().clone()
    }

    #[test]
    fn every_violation_is_named_by_its_place_and_no_value_is_told() {
        let params = json!({ "path": 7, "when": "s3cret", "extra": 1 })
            .as_object()
            .unwrap()
            .clone();
        let failure = entry().check_params(&params).unwrap_err();
        assert_eq!(failure.code, Code::ParamsInvalid);
        for place in ["/path: ", "/when: ", "extra"] {
            assert!(failure.message.contains(place), "{}", failure.message);
        }
        assert!(!failure.message.contains("s3cret"), "{}", failure.message);
    }

    #[test]
    fn formats_are_asserted() {
        let params = |when: &str| json!({ "path": "x", "when": when }).as_object().unwrap().clone();
        assert!(entry().check_params(&params("2026-01-01T00:00:00Z")).is_ok());
        assert!(entry().check_params(&params("yesterday")).is_err());
    }

    #[test]
    fn doubles_and_unusable_schemas_are_refused() {
        let mut registry = Registry::default();
        registry.register(spec(|_| ()), Arc::new(|_| Ok(()))).unwrap();
        let twice = registry.register(spec(|_| ()), Arc::new(|_| Ok(()))).unwrap_err();
        assert!(matches!(twice, RegistryError::Duplicate(_)));
        let bad = [
            json!({ "type": "object", "minimum": "x" }),
            json!({ "type": "object", "$ref": "https://example.org/s" }),
        ];
        for schema in bad {
            let spec = spec(|v| {
                v["tool_id"] = json!("t.y");
                v["result_schema"] = schema;
            });
            let error = registry.register(spec, Arc::new(|_| Ok(()))).unwrap_err();
            assert!(
                matches!(
                    error,
                    RegistryError::Schema {
                        which: "result_schema",
                        ..
                    }
                ),
                "{error}"
            );
        }
    }
}
