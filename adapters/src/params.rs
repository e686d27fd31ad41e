//! Parameters and descriptions of the built-in tools. One struct a tool is both the schema and the reader of its parameters.

use std::collections::BTreeSet;
use std::fmt;

use effectd_contracts::{
    Capability, Code, Failure, KeyField, Phase, Repeat, ResourceTemplate, RiskLevel, SafetyClass,
    SandboxProfile, SideEffect, ToolSpec, Touch,
};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde::de::value::MapDeserializer;
use serde_json::{Map, Value, json};

use crate::spacepath::{Base, PathInvalid, SpacePath};
use crate::typed::TypedTool;

/// The parameter that every request has. The call carries the space itself, so no struct repeats it.
const SPACE: &str = "space_id";

pub(crate) fn invalid(name: &str, why: impl fmt::Display) -> Failure {
    Failure::new(Code::ParamsInvalid, Phase::Validate, format!("/{name}: {why}"))
}

pub(crate) fn read<P: DeserializeOwned>(params: &Map<String, Value>) -> Result<P, Failure> {
    let own = params.iter().filter(|(name, _)| *name != SPACE);
    let own = own.map(|(name, value)| (name.as_str(), value));
    let reader = MapDeserializer::<'_, _, serde_json::Error>::new(own);
    serde_path_to_error::deserialize(reader).map_err(|error| {
        invalid(
            &error.path().to_string(),
            without_value(&error.inner().to_string()),
        )
    })
}

/// A message of serde without the value that it quotes.
fn without_value(message: &str) -> String {
    let quotes = ["invalid ", "unknown "]
        .iter()
        .any(|head| message.starts_with(head));
    match message.rsplit_once(", expected ") {
        Some((_, wanted)) if quotes => format!("{wanted} is needed"),
        Some(_) | None => message.to_owned(),
    }
}

/// The schema of a tool's parameters: those of its struct, and the space.
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

/// Leaves out what only Rust means: a field that may be left out is not null, and a `u64` is an integer.
fn plain(field: &mut Value) {
    let Some(field) = field.as_object_mut() else {
        return;
    };
    for keyword in ["default", "description", "format"] {
        field.remove(keyword);
    }
    for keyword in ["type", "enum"] {
        if let Some(Value::Array(values)) = field.get_mut(keyword) {
            values.retain(|value| !value.is_null() && value != "null");
        }
    }
    if let Some(Value::Array(kinds)) = field.get("type")
        && let [kind] = kinds.as_slice()
    {
        let kind = kind.clone();
        field.insert("type".to_owned(), kind);
    }
}

/// The path of a file or a folder; `workspace` alone is the space's root. A plain [`SpacePath`] is that of a file.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "SpacePath")]
pub(crate) struct FolderPath(pub(crate) SpacePath);

impl TryFrom<String> for FolderPath {
    type Error = PathInvalid;
    fn try_from(text: String) -> Result<Self, PathInvalid> {
        SpacePath::parse_folder(&text).map(Self)
    }
}

/// A path as something that may change. The scratch folder is gone after the call, so nothing of it is kept.
pub(crate) fn touched(path: &SpacePath) -> Vec<Touch> {
    let kept = path.base() == Base::Workspace;
    kept.then(|| Touch::replaced(path.to_string()))
        .into_iter()
        .collect()
}

/// The pattern of a digest in plain hex.
pub(crate) const SHA256: &str = "^[0-9a-f]{64}$";

/// The schema of a digest in plain hex.
pub(crate) fn sha256_schema() -> Value {
    json!({ "type": "string", "pattern": SHA256, "x-public": true })
}

/// The schema of a result with exactly these fields.
pub(crate) fn object(required: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "required": required, "properties": properties, "additionalProperties": false })
}

/// The description of a tool that only looks at the space.
pub(crate) fn reads<T: TypedTool>(description: &str, result_schema: Value) -> ToolSpec {
    ToolSpec {
        tool_id: fixed(T::ID),
        version: "1.0.0".to_owned(),
        description: description.to_owned(),
        caps_required: caps(["files.read", "workspace:shared:read"]),
        params_schema: schema::<T::Params>(),
        result_schema,
        side_effects: BTreeSet::from([SideEffect::ReadOnly]),
        safety_class: SafetyClass::Low,
        risk_level: RiskLevel::Read,
        risk_tier: None,
        reversible: false,
        timeout_ms: 4_000,
        price_micros: 0,
        idempotency_key_fields: None,
        resource: None,
        repeat: Repeat::Safe,
        sandbox_profile: SandboxProfile::default(),
    }
}

/// The description of a tool that changes files of the space, keeps what it replaces, and can be undone.
pub(crate) fn writes<T: TypedTool>(description: &str, result_schema: Value) -> ToolSpec {
    ToolSpec {
        caps_required: caps(["files.write", "workspace:shared:write"]),
        side_effects: BTreeSet::from([SideEffect::FilesystemWrite]),
        risk_level: RiskLevel::Write,
        reversible: true,
        repeat: Repeat::Never,
        ..reads::<T>(description, result_schema)
    }
}

/// What the subject must hold.
pub(crate) fn caps<const N: usize>(names: [&str; N]) -> Vec<Capability> {
    names.map(fixed).into()
}

/// What makes two requests the same.
pub(crate) fn key<const N: usize>(fields: [&str; N]) -> Option<Vec<KeyField>> {
    Some(fields.map(fixed).into())
}

/// What the tool changes.
pub(crate) fn resource(template: &str) -> Option<ResourceTemplate> {
    Some(fixed(template))
}

#[expect(
    clippy::expect_used,
    reason = "a constant; the test of all descriptions reads it"
)]
fn fixed<T: TryFrom<String, Error: fmt::Debug>>(text: &str) -> T {
    text.to_owned()
        .try_into()
        .expect("the description is well-formed")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        path: SpacePath,
        #[schemars(range(min = 1, max = 9), extend("x-public" = true))]
        count: Option<u64>,
    }

    #[test]
    fn a_struct_is_the_schema_and_the_reader() {
        let wanted = json!({
            "type": "object",
            "required": ["path", "space_id"],
            "properties": {
                "path": { "type": "string", "minLength": 1, "maxLength": 4096, "x-public": true, "x-resource": true },
                "count": { "type": "integer", "minimum": 1, "maximum": 9, "x-public": true },
                "space_id": { "type": "string", "minLength": 1, "x-public": true },
            },
            "additionalProperties": false,
        });
        assert_eq!(schema::<Sample>(), wanted);
        let params = json!({ "path": "workspace//a", "count": 3, "space_id": "shared:household" });
        let sample: Sample = read(params.as_object().unwrap()).unwrap();
        assert_eq!(
            (sample.path.to_string().as_str(), sample.count),
            ("workspace/a", Some(3))
        );
    }

    #[test]
    fn a_refusal_names_the_place_and_quotes_no_value() {
        for (params, wanted) in [
            (
                json!({ "path": "workspace/../secret" }),
                "/path: the path must be relative and without ..",
            ),
            (json!({ "path": ["secret"] }), "/path: a string is needed"),
            (
                json!({ "path": "workspace/a", "count": "secret, expected secret" }),
                "/count: u64 is needed",
            ),
            (
                json!({ "path": "workspace/a", "count": 1.5 }),
                "/count: u64 is needed",
            ),
        ] {
            let failure = read::<Sample>(params.as_object().unwrap()).map(drop).unwrap_err();
            assert_eq!(
                (failure.code, failure.message.as_str()),
                (Code::ParamsInvalid, wanted)
            );
        }
    }
}
