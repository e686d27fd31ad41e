//! Idempotency keys: the tool's id, then the values of its key fields, joined by `|`.
//!
//! Paths are normalised first, so that `a//b/./c` and `a/b/c` are one file; `A.txt` and `a.txt` are two, unless the file system of the
//! space ignores case. A field that is not public, or has personal data or characters that no id may
//! have, enters as a keyed digest, since receipts show keys.

use effectd_contracts::text::{is_unprintable, without_case};
use effectd_contracts::tool::is_path_name;
use effectd_contracts::{Code, Failure, IdempotencyKey, KeyField, Phase, SpaceId, ToolSpec};
use effectd_policy::redact::personal::redact_stored;
use serde_json::{Map, Value};

use crate::services::signer::Identity;

/// The key of these parameters; `None` for a tool without key fields.
pub fn key_of(spec: &ToolSpec, params: &Map<String, Value>, identity: &Identity) -> Option<IdempotencyKey> {
    let fields = spec.idempotency_key_fields.as_ref()?;
    let mut text = spec.tool_id.to_string();
    for field in fields {
        let part = field.resolve(params)?;
        let part = match field {
            KeyField::Plain(name) if is_path_name(name) => normal_path(&part),
            KeyField::Plain(_) => normal_blanks(&part),
            KeyField::Sha256(_) => part,
        };
        let is_public = (matches!(field, KeyField::Sha256(_)) || spec.is_public_param(field.param()))
            && !part.chars().any(is_unprintable)
            && redact_stored(&part).is_none();
        text.push('|');
        text.push_str(&if is_public { part } else { identity.digest(&Value::String(part)) });
    }
    IdempotencyKey::new(text).ok()
}

/// The parameters with one spelling of each path: requests that differ in nothing else are the same.
pub(crate) fn normal(params: &Map<String, Value>, ignores_case: bool) -> Map<String, Value> {
    let mut normal = params.clone();
    for (name, value) in &mut normal {
        if let (true, Value::String(text)) = (is_path_name(name), value) {
            *text = normal_path(text);
            if ignores_case {
                *text = without_case(text);
            }
        }
    }
    normal
}

/// The resource that the action changes, with its path normalised as in keys.
pub fn resource_of(spec: &ToolSpec, space: &SpaceId, params: &Map<String, Value>) -> Option<String> {
    spec.resource.as_ref()?.resolve(space, &normal(params, false))
}

/// The failure of an action whose idempotency key belongs to other parameters.
pub(crate) fn key_taken() -> Failure {
    let message = "this idempotency key was already used with other parameters";
    Failure::new(Code::IdempotencyConflict, Phase::Idempotency, message)
}

fn normal_path(text: &str) -> String {
    let parts: Vec<_> = text.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let root = if text.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}

fn normal_blanks(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn spec(fields: Value) -> ToolSpec {
        serde_json::from_value(json!({
            "tool_id": "files.write_text", "version": "1.0.0", "caps_required": [], "side_effects": ["filesystem_write"],
            "safety_class": "LOW", "risk_level": "write", "result_schema": { "type": "object" },
            "params_schema": {
                "type": "object", "required": ["path", "text"], "properties": { "path": { "x-public": true } },
            },
            "idempotency_key_fields": fields, "resource": "file:{space_id}/{path}",
        }))
        .unwrap()
    }

    fn key(fields: Value, path: &str, text: &str) -> String {
        key_where(false, fields, path, text)
    }

    fn key_where(ignores_case: bool, fields: Value, path: &str, text: &str) -> String {
        let params = json!({ "path": path, "text": text });
        let params = normal(params.as_object().unwrap(), ignores_case);
        key_of(&spec(fields), &params, &Identity::new(&[1; 32], [2; 32])).unwrap().to_string()
    }

    #[test]
    fn the_documented_key_comes_out() {
        assert_eq!(
            key(json!(["path", "sha256(text)"]), "workspace/notes/w36.txt", "hello"),
            "files.write_text|workspace/notes/w36.txt|2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
        );
    }

    #[test]
    fn spellings_are_one_and_cases_are_two() {
        let of = |path| key(json!(["path"]), path, "");
        assert_eq!(of("a//b/./c"), of("a/b/c"));
        assert_ne!(of("A.txt"), of("a.txt"));
        let folded = |path, text| key_where(true, json!(["path", "sha256(text)"]), path, text);
        assert_eq!(folded("Notes//ÄK.txt", "x"), folded("notes/ä\u{212a}.TXT", "x"));
        assert_ne!(folded("a.txt", "X"), folded("a.txt", "x"), "contents have a case everywhere");
        assert_eq!(key(json!(["text"]), "p", " a \n b "), key(json!(["text"]), "p", "a b"));
        assert!(!key(json!(["text"]), "p", "s3cret").contains("s3cret"));
        assert_ne!(key(json!(["sha256(text)"]), "p", "a b"), key(json!(["sha256(text)"]), "p", "a  b"));
    }

    #[test]
    fn a_path_that_no_id_can_hold_has_a_key_all_the_same() {
        let of = |path| key(json!(["path"]), path, "");
        let family = "workspace/\u{1f468}\u{200d}\u{1f469}.jpg";
        assert_eq!(of(family), of(family));
        assert_ne!(of(family), of("workspace/\u{1f468}\u{1f469}.jpg"));
        assert!(!of(family).contains('\u{200d}'));
    }

    #[test]
    fn a_path_with_personal_data_is_not_in_the_key() {
        let of = |path| key(json!(["path"]), path, "");
        assert!(!of("workspace/bob@example.org.txt").contains("bob"));
        assert_ne!(of("workspace/bob@example.org.txt"), of("workspace/jane@example.org.txt"));
    }

    #[test]
    fn a_resource_is_one_whatever_its_spelling() {
        let params = |path: &str| json!({ "path": path }).as_object().unwrap().clone();
        let space = "shared:h".parse().unwrap();
        let spec = spec(json!(["path"]));
        assert_eq!(
            resource_of(&spec, &space, &params("workspace//a")),
            resource_of(&spec, &space, &params("./workspace/a"))
        );
    }
}
