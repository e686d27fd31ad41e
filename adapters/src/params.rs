//! Reading parameters. The schema was checked outside; what is missing here would be a fault, and is still refused.

use effectd_contracts::{Code, Failure, Phase, ToolSpec, Touch};
use serde_json::{Map, Value, json};

use crate::limits::PATH_BYTES_MAX;
use crate::spacepath::{Base, SpacePath};

/// A parameter that is not as it must be.
pub(crate) fn invalid(name: &str, why: impl std::fmt::Display) -> Failure {
    Failure::new(Code::ParamsInvalid, Phase::Validate, format!("/{name}: {why}"))
}

/// A text.
pub(crate) fn text<'p>(params: &'p Map<String, Value>, name: &str) -> Result<&'p str, Failure> {
    let value = params.get(name).and_then(Value::as_str);
    value.ok_or_else(|| invalid(name, "a string is needed"))
}

/// A text that may be left out.
pub(crate) fn optional_text<'p>(params: &'p Map<String, Value>, name: &str) -> Option<&'p str> {
    params.get(name).and_then(Value::as_str)
}

/// A number that may be left out.
pub(crate) fn number(params: &Map<String, Value>, name: &str) -> Option<u64> {
    params.get(name).and_then(Value::as_u64)
}

/// A switch that may be left out.
pub(crate) fn is_set(params: &Map<String, Value>, name: &str) -> bool {
    params.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// The path of a file.
pub(crate) fn file(params: &Map<String, Value>, name: &str) -> Result<SpacePath, Failure> {
    SpacePath::parse(text(params, name)?).map_err(|why| invalid(name, why))
}

/// The path of a file or folder.
pub(crate) fn folder(params: &Map<String, Value>, name: &str) -> Result<SpacePath, Failure> {
    SpacePath::parse_folder(text(params, name)?).map_err(|why| invalid(name, why))
}

/// A path as something that may change. The scratch folder is gone after the call, so nothing of it is kept.
pub(crate) fn touch(path: &SpacePath) -> Option<Touch> {
    (path.base() == Base::Workspace).then(|| Touch::replaced(path.to_string()))
}

/// The schema of a path.
pub(crate) fn path_schema() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": PATH_BYTES_MAX, "x-public": true, "x-resource": true })
}

/// The schema of the space, which every request names.
pub(crate) fn space_schema() -> Value {
    json!({ "type": "string", "minLength": 1, "x-public": true })
}

/// The schema of a digest in plain hex.
pub(crate) fn sha256_schema() -> Value {
    json!({ "type": "string", "pattern": "^[0-9a-f]{64}$", "x-public": true })
}

/// The schema of an object with exactly these fields.
pub(crate) fn object(required: &[&str], properties: Value) -> Value {
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// The description of a tool that only looks at the space.
pub(crate) fn reads(description: Value) -> ToolSpec {
    let usual = json!({
        "caps_required": ["files.read", "workspace:shared:read"],
        "side_effects": ["read_only"],
        "safety_class": "LOW",
        "risk_level": "read",
        "timeout_ms": 4000,
        "repeat": "safe",
    });
    spec(with(usual, description))
}

/// The description of a tool that changes files of the space, keeps what it replaces, and can be undone.
pub(crate) fn writes(description: Value) -> ToolSpec {
    let usual = json!({
        "caps_required": ["files.write", "workspace:shared:write"],
        "side_effects": ["filesystem_write"],
        "safety_class": "LOW",
        "risk_level": "write",
        "reversible": true,
        "timeout_ms": 4000,
    });
    spec(with(usual, description))
}

/// What is usual, and what the tool itself says above it.
fn with(mut usual: Value, own: Value) -> Value {
    if let (Value::Object(usual), Value::Object(own)) = (&mut usual, own) {
        usual.extend(own);
    }
    usual
}

/// A description that stands in the code as JSON.
#[expect(
    clippy::expect_used,
    reason = "a constant; the test of all descriptions reads it"
)]
pub(crate) fn spec(description: Value) -> ToolSpec {
    serde_json::from_value(description).expect("the description is well-formed")
}
