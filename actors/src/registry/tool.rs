//! A registered tool: its description, compiled schemas and rules.

use std::collections::BTreeSet;

use effectd_contracts::plugin::Filesystem;
use effectd_contracts::{
    Code, Digest, Exchange, Failure, Phase, ToolId, ToolSpec, Touch, Upstream, canonical,
};
use serde_json::{Map, Value};

use super::lint::{self, Lint};
use super::schema::Schema;
use super::{Definition, RegistryError, Source};

pub struct RegisteredTool {
    definition: Definition,
    params: Schema,
    result: Schema,
    lints: Vec<Lint>,
}

impl std::fmt::Debug for RegisteredTool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegisteredTool").field("definition", &self.definition).finish_non_exhaustive()
    }
}

impl RegisteredTool {
    pub(super) fn new(definition: Definition) -> Result<Self, RegistryError> {
        let (spec, tool) = (&definition.spec, &definition.spec.tool_id);
        spec.check().map_err(|source| RegistryError::Spec { tool: tool.clone(), source })?;
        Ok(Self {
            lints: lint::check(&definition)?,
            params: schema(&definition, "params_schema", &spec.params_schema)?,
            // What tools of connectors return is effectd's own word, the same for each of thousands.
            result: match &definition.upstream {
                Some(_) => Schema::built_in(&spec.result_schema),
                None => schema(&definition, "result_schema", &spec.result_schema)?,
            },
            definition,
        })
    }

    /// Whether a tool of this description can be registered.
    pub fn check(definition: Definition) -> Result<(), RegistryError> {
        Self::new(definition).map(drop)
    }

    /// What it was registered with.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    pub fn spec(&self) -> &ToolSpec {
        &self.definition.spec
    }

    pub fn source(&self) -> Source {
        self.definition.source
    }

    /// The hosts that every call talks to.
    pub fn hosts(&self) -> &[String] {
        &self.definition.hosts
    }

    /// Whether its description has changed since a person reviewed it.
    pub fn drifted(&self) -> bool {
        self.definition.drifted
    }

    /// What a call says about the server of a connector.
    pub fn upstream(&self) -> Option<Box<Upstream>> {
        self.definition.upstream.as_deref().cloned().map(Box::new)
    }

    /// Whether its child gets an empty folder instead of the space: it reads what a server says, or its package asks for no files.
    pub(crate) fn sees_no_files(&self) -> bool {
        self.definition.upstream.is_some()
            || self.package().is_some_and(|package| package.permissions.filesystem == Filesystem::None)
    }

    /// The time that the policy grants because effectd itself declares it.
    pub fn declared_time(&self) -> Option<u64> {
        let is_own = self.source().is_own() || self.definition.upstream.is_some();
        is_own.then_some(self.spec().timeout_ms)
    }

    pub fn aliases(&self) -> &[ToolId] {
        &self.definition.aliases
    }

    pub fn example(&self) -> &Map<String, Value> {
        &self.definition.example
    }

    /// The schemas of parameters and result, as parts of another document at these pointers.
    pub fn schemas_inside(&self, params: &str, result: &str) -> (Value, Value) {
        (self.params.inside(params), self.result.inside(result))
    }

    pub fn lints(&self) -> &[Lint] {
        &self.lints
    }

    pub fn definition_hash(&self) -> Digest {
        // A description is plain data with text keys, for which serde_json has no failure.
        let mut described = serde_json::to_value(self.spec()).unwrap_or_default();
        if let Some(pinned) = &self.definition.plugin {
            described["files"] = serde_json::to_value(&pinned.files).unwrap_or_default();
        }
        canonical::digest(&described)
    }

    /// The paths that a call may change; `None` if the tool does not declare them.
    pub fn touches(&self, params: &Map<String, Value>) -> Option<Vec<Touch>> {
        self.definition.touches.as_ref().map(|touches| touches(params))
    }

    /// The paths that a call reads and does not change, if its effect depends on them.
    pub fn reads(&self, params: &Map<String, Value>) -> Vec<String> {
        self.definition.reads.as_ref().map(|reads| reads(params)).unwrap_or_default()
    }

    /// Whether an exchange asks for no effect.
    pub(crate) fn only_reads(&self, exchange: &Exchange) -> bool {
        !exchange.method.is_write()
            || self.definition.only_reads.as_ref().is_some_and(|reads| reads(exchange))
    }

    /// How to use the tools of its source, in Markdown.
    pub fn guide(&self) -> Option<&'static str> {
        self.definition.guide
    }

    /// Checks the parameters against the schema and the tool's own rules. The failure names every place, but no value and no
    /// undeclared name: the receipt shows the failure.
    pub fn check_params(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        let document = Value::Object(params.clone());
        let places = self.params.violations(&document);
        if !places.is_empty() {
            return Err(Failure::new(Code::ParamsInvalid, Phase::Validate, places.join("; ")));
        }
        (self.definition.rule)(params)
    }

    /// The names of parameters that violate the schema.
    pub fn unfit_params(&self, params: &Map<String, Value>) -> BTreeSet<String> {
        let document = Value::Object(params.clone());
        self.params.unfit_members(&document)
    }

    pub fn check_result(&self, result: &Value) -> Result<(), Failure> {
        let places = self.result.violations(result);
        if places.is_empty() {
            return Ok(());
        }
        Err(Failure::new(Code::ResultInvalid, Phase::Capture, places.join("; ")))
    }
}

fn schema(definition: &Definition, which: &'static str, schema: &Value) -> Result<Schema, RegistryError> {
    if definition.source.is_own() {
        return Ok(Schema::built_in(schema));
    }
    let tool = &definition.spec.tool_id;
    Schema::new(schema).map_err(|why| RegistryError::Schema { tool: tool.clone(), which, why })
}
