//! Parameters of MCP tools that a server wants in headers, too, so that programs on the way can route by them: `x-mcp-header`.

use std::collections::BTreeSet;

use base64::prelude::{BASE64_STANDARD, Engine};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::exchange::{PARAM_HEADER, is_token};

/// The keyword by which a schema asks for a header.
const KEYWORD: &str = "x-mcp-header";

/// A parameter that goes into a header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParamHeader {
    /// The header's name, in lower case: `mcp-param-region`.
    pub header: String,
    /// Where the value is in the arguments: the names of members, from the outermost.
    pub path: Vec<String>,
}

/// The parameters that a tool's input schema wants in headers. The error says why no client may call the tool by HTTP.
pub fn param_headers(schema: &Value) -> Result<Vec<ParamHeader>, String> {
    let (mut found, mut path) = (Vec::new(), Vec::new());
    properties(schema, &mut path, &mut found)?;
    let names: BTreeSet<_> = found.iter().map(|one| &one.header).collect();
    if names.len() < found.len() {
        return Err("it wants two parameters in one header".to_owned());
    }
    Ok(found)
}

/// Collects from properties of properties. The keyword means nothing elsewhere: which value it is about would depend on the call.
fn properties(schema: &Value, path: &mut Vec<String>, found: &mut Vec<ParamHeader>) -> Result<(), String> {
    for (keyword, inner) in schema.as_object().into_iter().flatten() {
        let Some(named) = inner.as_object().filter(|_| keyword == "properties") else {
            if keyword != KEYWORD && mentions(inner) {
                return Err(format!("it wants a header for what may be in {keyword}"));
            }
            continue;
        };
        for (name, property) in named {
            path.push(name.clone());
            if let Some(wanted) = property.get(KEYWORD) {
                found.push(ParamHeader { header: header(wanted, property)?, path: path.clone() });
            }
            properties(property, path, found)?;
            path.pop();
        }
    }
    Ok(())
}

fn header(wanted: &Value, property: &Value) -> Result<String, String> {
    let name = wanted.as_str().filter(|name| is_token(name));
    let name = name.ok_or_else(|| format!("{KEYWORD}: {wanted} cannot be a part of a header's name"))?;
    if !matches!(property["type"].as_str(), Some("string" | "integer" | "boolean")) {
        return Err(format!("the header {name} is for a string, an integer or a boolean"));
    }
    Ok(format!("{PARAM_HEADER}{}", name.to_ascii_lowercase()))
}

/// Whether a schema asks for a header anywhere inside. A property of that name is none.
fn mentions(value: &Value) -> bool {
    match value {
        Value::Object(members) => {
            members.iter().any(|(name, inner)| (name == KEYWORD && !inner.is_object()) || mentions(inner))
        }
        Value::Array(items) => items.iter().any(mentions),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// The headers of a call with these arguments. What is left out, or null, has none.
pub fn headers_of(wanted: &[ParamHeader], arguments: &Map<String, Value>) -> Vec<(String, String)> {
    let value = |one: &ParamHeader| {
        let (first, rest) = one.path.split_first()?;
        let value = rest.iter().try_fold(arguments.get(first)?, |value, name| value.get(name))?;
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Bool(_) | Value::Number(_) => value.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        Some((one.header.clone(), encoded(text)))
    };
    wanted.iter().filter_map(value).collect()
}

/// A text as it stands in a header: in Base64 if it has what a header cannot have, or looks like Base64.
fn encoded(text: String) -> String {
    let is_plain = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) && text.trim() == text;
    if is_plain && !(text.starts_with("=?base64?") && text.ends_with("?=")) {
        return text;
    }
    format!("=?base64?{}?=", BASE64_STANDARD.encode(text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tool_that_asks_for_a_header_that_cannot_be_is_refused() {
        let wants = |name: &str, property: Value| {
            let mut property = property;
            property[KEYWORD] = name.into();
            param_headers(&json!({ "type": "object", "properties": { "a": property } }))
        };
        let one = wants("Region", json!({ "type": "string" })).unwrap();
        let path = vec!["a".to_owned()];
        assert_eq!(one, [ParamHeader { header: "mcp-param-region".to_owned(), path }]);
        for name in ["", "My Region", "Region:1", "Région", "Region\t1", "Region\r\nhost"] {
            assert!(wants(name, json!({ "type": "string" })).is_err(), "{name:?}");
        }
        for kind in [json!("object"), json!("array"), json!("null"), json!("number"), json!(["string"])] {
            assert!(wants("Region", json!({ "type": kind })).is_err(), "{kind}");
        }
        let field = |name: &str| json!({ "type": "string", KEYWORD: name });
        let both = json!({ "properties": { "a": field("Region"), "b": field("region") } });
        assert!(param_headers(&both).is_err(), "names of headers have no case");
        for keyword in ["items", "not", "if", "additionalProperties"] {
            assert!(param_headers(&json!({ "properties": { "a": { keyword: field("A") } } })).is_err());
        }
        for keyword in ["anyOf", "allOf", "oneOf"] {
            assert!(param_headers(&json!({ keyword: [{ "properties": { "a": field("A") } }] })).is_err());
        }
        assert!(param_headers(&json!({ "$defs": { "a": field("A") } })).is_err());
        let named = json!({ "properties": { KEYWORD: { "type": "string" } } });
        assert_eq!(param_headers(&named), Ok(Vec::new()), "a parameter may have this name");
    }

    #[test]
    fn a_value_is_sent_so_that_no_program_reads_another() {
        let inner =
            json!({ "type": "object", "properties": { "deep": { "type": "string", KEYWORD: "Deep" } } });
        let schema = json!({ "properties": {
            "text": { "type": "string", KEYWORD: "Text" }, "number": { "type": "integer", KEYWORD: "Number" },
            "flag": { "type": "boolean", KEYWORD: "Flag" }, "inner": inner, "plain": { "type": "string" },
        }});
        let wanted = param_headers(&schema).unwrap();
        let sent = |arguments: Value| headers_of(&wanted, arguments.as_object().unwrap());
        let mut all = sent(
            json!({ "text": "us west", "number": 42, "flag": false, "inner": { "deep": "x" }, "plain": "y" }),
        );
        all.sort();
        let expected = [("deep", "x"), ("flag", "false"), ("number", "42"), ("text", "us west")];
        assert_eq!(all, expected.map(|(name, value)| (format!("mcp-param-{name}"), value.to_owned())));
        assert_eq!(sent(json!({ "text": null, "inner": {}, "plain": "y" })), []);
        for (text, value) in [
            ("", ""),
            ("世", "=?base64?5LiW?="),
            (" a", "=?base64?IGE=?="),
            ("a\r\nhost: b", "=?base64?YQ0KaG9zdDogYg==?="),
            ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
        ] {
            assert_eq!(sent(json!({ "text": text }))[0].1, value, "{text:?}");
        }
    }
}
