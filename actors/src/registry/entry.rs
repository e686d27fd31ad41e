//! One tool, as the pipeline sees it.

use std::collections::BTreeSet;

use effectd_contracts::{Code, Digest, Failure, Phase, ToolId, ToolSpec, Touch, canonical};
use effectd_policy::inspect;
use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use serde_json::{Map, Value};

use super::lint::{self, Lint};
use super::{Definition, ParamRule, Reads, RegistryError, Source, Touches};
use crate::limits::VIOLATIONS_MAX;

/// One tool.
pub struct Entry {
    spec: ToolSpec,
    source: Source,
    aliases: Vec<ToolId>,
    params: Validator,
    result: Validator,
    rule: ParamRule,
    touches: Option<Touches>,
    reads: Option<Reads>,
    example: Map<String, Value>,
    lints: Vec<Lint>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("spec", &self.spec)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl Entry {
    pub(super) fn new(definition: Definition) -> Result<Self, RegistryError> {
        let tool = definition.spec.tool_id.clone();
        definition.spec.check().map_err(|source| RegistryError::Spec {
            tool: tool.clone(),
            source,
        })?;
        let lints = lint::look_over(&definition)?;
        let spec = definition.spec;
        Ok(Self {
            params: compile(&tool, "params_schema", &spec.params_schema)?,
            result: compile(&tool, "result_schema", &spec.result_schema)?,
            spec,
            source: definition.source,
            aliases: definition.aliases,
            rule: definition.rule,
            touches: definition.touches,
            reads: definition.reads,
            example: definition.example,
            lints,
        })
    }

    /// What the tool says about itself.
    pub fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// Where it comes from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// What else it is called.
    pub fn aliases(&self) -> &[ToolId] {
        &self.aliases
    }

    /// Parameters that fit.
    pub fn example(&self) -> &Map<String, Value> {
        &self.example
    }

    /// What is doubtful about its description.
    pub fn lints(&self) -> &[Lint] {
        &self.lints
    }

    /// The digest of the whole description: it changes whenever anything that it promises does.
    pub fn definition_hash(&self) -> Digest {
        // A description is plain data with text keys, for which serde_json has no failure.
        canonical::digest(&serde_json::to_value(&self.spec).unwrap_or_default())
    }

    /// The paths that a call may change; `None` if the tool does not say.
    pub fn touches(&self, params: &Map<String, Value>) -> Option<Vec<Touch>> {
        self.touches.as_ref().map(|touches| touches(params))
    }

    /// The paths that a call reads and does not change, as far as its effect depends on them.
    pub fn reads(&self, params: &Map<String, Value>) -> Vec<String> {
        self.reads.as_ref().map(|reads| reads(params)).unwrap_or_default()
    }

    /// Whether the parameters fit the schema and the tool's own rules. The failure names every place, but never a value or a
    /// name that the schema does not know: a receipt keeps it.
    pub fn check_params(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        let document = Value::Object(params.clone());
        let places = violations(&self.params, &self.spec.params_schema, &document);
        if !places.is_empty() {
            return Err(Failure::new(
                Code::ParamsInvalid,
                Phase::Validate,
                places.join("; "),
            ));
        }
        (self.rule)(params)
    }

    /// The names of parameters that do not fit what the schema says about them.
    pub fn unfit_params(&self, params: &Map<String, Value>) -> BTreeSet<String> {
        let document = Value::Object(params.clone());
        let errors = self.params.iter_errors(&document);
        errors
            .filter_map(|error| {
                let name = error.instance_path().as_str().split('/').nth(1)?;
                Some(name.replace("~1", "/").replace("~0", "~"))
            })
            .collect()
    }

    /// Whether the result fits its schema.
    pub fn check_result(&self, result: &Value) -> Result<(), Failure> {
        let places = violations(&self.result, &self.spec.result_schema, result);
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

fn compile(tool: &ToolId, which: &'static str, schema: &Value) -> Result<Validator, RegistryError> {
    let error = |why: String| RegistryError::Schema {
        tool: tool.clone(),
        which,
        why,
    };
    jsonschema::draft202012::meta::validate(schema).map_err(|e| error(e.to_string()))?;
    // Remote references are off: the crate is built without a resolver, so one fails here instead of fetching.
    let options = jsonschema::draft202012::options().should_validate_formats(true);
    options.build(schema).map_err(|e| error(e.to_string()))
}

/// Every place that breaks the schema, with what the schema asks for there. Values and unknown names are masked: they may be
/// secrets.
fn violations(validator: &Validator, schema: &Value, document: &Value) -> Vec<String> {
    // Nearly always there are none, and to find that out is much quicker than to look for them.
    if validator.is_valid(document) {
        return Vec::new();
    }
    let mut errors = validator.iter_errors(document);
    let mut places: Vec<_> = errors
        .by_ref()
        .take(VIOLATIONS_MAX.get())
        .map(|error| {
            let (place, known) = inspect::place(schema, document, error.instance_path().as_str());
            let place = if place.is_empty() { "/" } else { &place };
            #[expect(
                clippy::wildcard_enum_match_arm,
                reason = "somebody else's list of kinds, which grows"
            )]
            match error.kind() {
                ValidationErrorKind::AdditionalProperties { unexpected }
                | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
                    let known: Vec<_> = known.into_iter().collect();
                    format!(
                        "{place}: {} names that the schema does not know; it knows: {}",
                        unexpected.len(),
                        known.join(", ")
                    )
                }
                ValidationErrorKind::PropertyNames { .. } => format!("{place}: a name here is not allowed"),
                _ => format!("{place}: {}", error.masked()),
            }
        })
        .collect();
    let more = errors.take(VIOLATIONS_MAX.get()).count();
    if more > 0 {
        places.push(format!("and {more} more"));
    }
    places
}
