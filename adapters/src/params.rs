//! Typed parameters of the built-in tools: one struct is both the schema and the parser. And the common parts of their specs.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;

use effectd_contracts::{
    Capability, Code, Compensation, Exchange, Failure, KeyField, Phase, ProbeVerdict, Repeat,
    ResourceTemplate, RiskLevel, SafetyClass, SandboxProfile, SideEffect, ToolCall, ToolOutput, ToolSpec,
    Touch,
};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde::de::value::MapDeserializer;
use serde_json::{Map, Value, json};

use crate::spacepath::{Base, PathInvalid, SpacePath};
use crate::tool::Tool;
use crate::workspace::Workspace;

/// The parameter that every request has. The call carries the space itself, so no struct repeats it.
const SPACE: &str = "space_id";

pub(crate) fn invalid(name: &str, why: impl fmt::Display) -> Failure {
    Failure::new(Code::ParamsInvalid, Phase::Validate, format!("/{name}: {why}"))
}

pub(crate) fn read<P: DeserializeOwned>(params: &Map<String, Value>) -> Result<P, Failure> {
    let own = params.iter().filter(|(name, _)| *name != SPACE);
    let own = own.map(|(name, value)| (name.as_str(), value));
    let reader = MapDeserializer::<'_, _, serde_json::Error>::new(own);
    serde_path_to_error::deserialize(reader)
        .map_err(|error| invalid(&error.path().to_string(), without_value(&error.inner().to_string())))
}

/// A message of serde, without the value that it quotes.
fn without_value(message: &str) -> String {
    let quotes = message.starts_with("invalid ") || message.starts_with("unknown ");
    match message.rsplit_once(", expected ") {
        Some((_, wanted)) if quotes => format!("{wanted} is needed"),
        Some(_) | None => message.to_owned(),
    }
}

/// The schema of a tool's parameters: its struct, and the space.
fn schema<P: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<P>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.remove("title");
        root.remove("description");
    }
    let fields = schema["properties"].as_object_mut();
    for field in fields.into_iter().flat_map(Map::values_mut) {
        plain(field);
    }
    schema["properties"][SPACE] = json!({ "type": "string", "minLength": 1, "x-public": true });
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    schema["required"] = required.into_iter().chain([json!(SPACE)]).collect();
    schema
}

/// Removes keywords that only Rust needs: an optional field is absent and not null, and a `u64` is an integer. A description is for
/// models: on one line.
fn plain(field: &mut Value) {
    let Some(field) = field.as_object_mut() else {
        return;
    };
    for keyword in ["default", "format"] {
        field.remove(keyword);
    }
    if let Some(Value::String(text)) = field.get_mut("description") {
        *text = text.replace('\n', " ");
    }
    for keyword in ["type", "enum"] {
        if let Some(Value::Array(values)) = field.get_mut(keyword) {
            values.retain(|value| !value.is_null() && value != "null");
        }
    }
    if let Some(Value::Array(kinds)) = field.get("type")
        && let [kind] = kinds.as_slice()
    {
        field.insert("type".to_owned(), kind.clone());
    }
}

/// The path of a file or a folder; `workspace` alone is the space's root. A plain [`SpacePath`] is the path of a file.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(
    with = "SpacePath",
    description = "A path in the space, such as workspace/src; workspace is the whole space."
)]
pub(crate) struct FolderPath(pub(crate) SpacePath);

impl TryFrom<String> for FolderPath {
    type Error = PathInvalid;
    fn try_from(text: String) -> Result<Self, PathInvalid> {
        SpacePath::parse_folder(&text).map(Self)
    }
}

/// A path that a call may change. The scratch folder is gone after the call, so its paths are not declared.
pub(crate) fn touched(path: &SpacePath) -> Vec<Touch> {
    match path.base() {
        Base::Workspace => vec![Touch::replaced(path.to_string())],
        Base::Scratch => Vec::new(),
    }
}

/// The pattern of a digest in plain hex.
pub(crate) const SHA256: &str = "^[0-9a-f]{64}$";

/// The schema of a public digest in plain hex.
pub(crate) fn sha256() -> Value {
    json!({ "type": "string", "pattern": SHA256, "x-public": true })
}

/// The schema of a public number from 0 on.
pub(crate) fn count() -> Value {
    json!({ "type": "integer", "minimum": 0, "x-public": true })
}

/// The schema of a public `true` or `false`.
pub(crate) fn flag() -> Value {
    json!({ "type": "boolean", "x-public": true })
}

/// The schema of a sensitive text.
pub(crate) fn text() -> Value {
    json!({ "type": "string" })
}

/// The schema of an object with exactly these properties.
pub(crate) fn object(required: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "required": required, "properties": properties, "additionalProperties": false })
}

/// The spec of a tool that only reads the space. Its result has exactly these properties.
pub(crate) fn reads<T: TypedTool>(required: &[&str], properties: Value) -> ToolSpec {
    ToolSpec {
        tool_id: fixed(T::ID),
        version: "1.0.0".to_owned(),
        description: T::DESCRIPTION.to_owned(),
        caps_required: caps(["files.read", "workspace:shared:read"]),
        params_schema: schema::<T::Params>(),
        result_schema: object(required, properties),
        side_effects: BTreeSet::from([SideEffect::ReadOnly]),
        safety_class: SafetyClass::Low,
        risk_level: Some(RiskLevel::Read),
        risk_tier: None,
        reversible: false,
        compensation: Compensation::None,
        timeout_ms: 4_000,
        price_micros: 0,
        idempotency_key_fields: None,
        resource: None,
        repeat: Repeat::Safe,
        sandbox_profile: SandboxProfile::default(),
        package: None,
    }
}

/// The spec of a tool that changes files of the space and can be undone.
pub(crate) fn writes<T: TypedTool>(required: &[&str], properties: Value) -> ToolSpec {
    ToolSpec {
        caps_required: caps(["files.write", "workspace:shared:write"]),
        side_effects: BTreeSet::from([SideEffect::FilesystemWrite]),
        risk_level: Some(RiskLevel::Write),
        reversible: true,
        repeat: Repeat::Never,
        ..reads::<T>(required, properties)
    }
}

/// The capabilities that the subject needs.
pub(crate) fn caps<const N: usize>(names: [&str; N]) -> Vec<Capability> {
    names.map(fixed).into()
}

/// The parameters that make two requests the same.
pub(crate) fn key<const N: usize>(fields: [&str; N]) -> Option<Vec<KeyField>> {
    Some(fields.map(fixed).into())
}

/// The resource that the tool changes.
pub(crate) fn resource(template: &str) -> Option<ResourceTemplate> {
    Some(fixed(template))
}

#[expect(clippy::expect_used, reason = "a constant; the test of all specs reads it")]
fn fixed<T: TryFrom<String, Error: fmt::Debug>>(text: &str) -> T {
    text.to_owned().try_into().expect("the spec is well-formed")
}

/// One call, with its parameters parsed.
pub struct Call<'c, P> {
    pub params: P,
    call: &'c ToolCall,
}

impl<P> Deref for Call<'_, P> {
    type Target = ToolCall;
    fn deref(&self) -> &ToolCall {
        self.call
    }
}

/// The trait of the built-in tools. Each is a [`Tool`], whose functions parse the parameters and call those of the same name.
pub trait TypedTool: Sync {
    const ID: &'static str;
    const DESCRIPTION: &'static str;
    const ALIASES: &'static [&'static str] = &[];

    /// All parameters but the space.
    type Params: DeserializeOwned + JsonSchema;

    fn spec(&self) -> ToolSpec;
    /// Valid parameters, without the space.
    fn example(&self) -> Value;

    /// Rules that a schema cannot express. They hold in every function that gets a [`Call`].
    fn check(&self, _: &Self::Params) -> Result<(), Failure> {
        Ok(())
    }
    fn touches(&self, _: &Self::Params) -> Option<Vec<Touch>> {
        None
    }
    fn reads(&self, _: &Self::Params) -> Vec<String> {
        Vec::new()
    }

    fn exchange(&self, _: &Call<'_, Self::Params>) -> Option<Exchange> {
        None
    }

    fn only_reads(&self, _: &Exchange) -> bool {
        false
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Self::Params>) -> Result<ToolOutput, Failure>;

    /// By default the same as a run, which suits a tool that only reads. The sandbox lets a dry run write nothing.
    fn dry_run(
        &self,
        workspace: &Workspace<'_>,
        call: &Call<'_, Self::Params>,
    ) -> Result<ToolOutput, Failure> {
        self.run(workspace, call)
    }
    fn probe(&self, _: &Workspace<'_>, _: &Call<'_, Self::Params>) -> Result<ProbeVerdict, Failure> {
        Ok(ProbeVerdict::CannotSay)
    }
}

fn read_call<'c, T: TypedTool>(tool: &T, call: &'c ToolCall) -> Result<Call<'c, T::Params>, Failure> {
    let params = read(&call.params)?;
    tool.check(&params)?;
    Ok(Call { params, call })
}

impl<T: TypedTool> Tool for T {
    fn id(&self) -> &'static str {
        T::ID
    }
    fn spec(&self) -> ToolSpec {
        TypedTool::spec(self)
    }
    fn aliases(&self) -> &'static [&'static str] {
        T::ALIASES
    }
    fn example(&self) -> Value {
        let mut example = TypedTool::example(self);
        example[SPACE] = json!("shared:household");
        example
    }
    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        TypedTool::check(self, &read(params)?)
    }
    fn touches(&self, params: &Map<String, Value>) -> Option<Vec<Touch>> {
        TypedTool::touches(self, &read(params).ok()?)
    }
    fn reads(&self, params: &Map<String, Value>) -> Vec<String> {
        read(params).map_or_else(|_| Vec::new(), |params| TypedTool::reads(self, &params))
    }
    fn exchange(&self, call: &ToolCall) -> Result<Option<Exchange>, Failure> {
        Ok(TypedTool::exchange(self, &read_call(self, call)?))
    }
    fn only_reads(&self, exchange: &Exchange) -> bool {
        TypedTool::only_reads(self, exchange)
    }
    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        TypedTool::run(self, workspace, &read_call(self, call)?)
    }
    fn dry_run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        TypedTool::dry_run(self, workspace, &read_call(self, call)?)
    }
    fn probe(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ProbeVerdict, Failure> {
        TypedTool::probe(self, workspace, &read_call(self, call)?)
    }
}

/// The output of a run. Its quality is 1 if the result holds on disk, and 0 otherwise.
pub(crate) fn verified(result: Value, holds: bool) -> ToolOutput {
    ToolOutput::new(result, Some(if holds { 1.0 } else { 0.0 }))
}

/// The output of a dry run.
pub(crate) fn dry(mut result: Value) -> ToolOutput {
    result["dry_run"] = json!(true);
    ToolOutput::new(result, None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        path: SpacePath,
        /// How often,
        /// in all.
        #[schemars(range(min = 1, max = 9), extend("x-public" = true))]
        count: Option<u64>,
    }

    #[test]
    fn a_struct_is_the_schema_and_the_reader() {
        let wanted = json!({
            "type": "object",
            "required": ["path", "space_id"],
            "properties": {
                "path": {
                    "type": "string", "minLength": 1, "maxLength": 4096, "x-public": true, "x-resource": true,
                    "description": "A path in the space, such as workspace/src/main.rs.",
                },
                "count": {
                    "type": "integer", "minimum": 1, "maximum": 9, "x-public": true, "description": "How often, in all.",
                },
                "space_id": { "type": "string", "minLength": 1, "x-public": true },
            },
            "additionalProperties": false,
        });
        assert_eq!(schema::<Sample>(), wanted);
        let params = json!({ "path": "workspace//a", "count": 3, "space_id": "shared:household" });
        let sample: Sample = read(params.as_object().unwrap()).unwrap();
        assert_eq!((sample.path.to_string().as_str(), sample.count), ("workspace/a", Some(3)));
    }

    #[test]
    fn a_refusal_names_the_place_and_quotes_no_value() {
        for (params, wanted) in [
            (json!({ "path": "workspace/../secret" }), "/path: the path must be relative and without .."),
            (json!({ "path": ["secret"] }), "/path: a string is needed"),
            (json!({ "path": "workspace/a", "count": "secret, expected secret" }), "/count: u64 is needed"),
            (json!({ "path": "workspace/a", "count": 1.5 }), "/count: u64 is needed"),
        ] {
            let failure = read::<Sample>(params.as_object().unwrap()).map(drop).unwrap_err();
            assert_eq!((failure.code, failure.message.as_str()), (Code::ParamsInvalid, wanted));
        }
    }
}
