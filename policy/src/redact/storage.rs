//! Removes secrets from what is stored or logged: values under secret names, at any depth.
//!
//! The same name has many spellings (`apiKey`, `X-Api-Key`, `API_KEY`), headers may be lists of pairs, and a query's answer has its names in
//! `columns` and their values in `rows`.

use serde_json::{Map, Value};

use crate::limits::VALUE_DEPTH_MAX;

pub const SECRET_PLACEHOLDER: &str = "[redacted:secret]";
/// Replaces everything that is nested too deep to be inspected.
pub const DEPTH_PLACEHOLDER: &str = "[redacted:depth]";

/// Names whose values are secret, without separators and in lower case.
const SECRET_NAMES: [&str; 9] = [
    "token",
    "secret",
    "password",
    "passwd",
    "authorization",
    "apikey",
    "privatekey",
    "credential",
    "cookie",
];

/// Removes secret values in place. Returns how many.
pub fn redact_secrets(value: &mut Value) -> usize {
    walk(value, 0)
}

/// Whether a name is that of a secret: one of its words, or its end, is in the list.
pub fn is_secret_name(name: &str) -> bool {
    let squeezed: String = name.chars().filter(|c| c.is_alphanumeric()).flat_map(fold).collect();
    let singular = squeezed.strip_suffix('s').unwrap_or(&squeezed);
    if SECRET_NAMES.iter().any(|secret| squeezed.ends_with(secret) || singular.ends_with(secret)) {
        return true;
    }
    let words = words(name);
    SECRET_NAMES.iter().any(|secret| {
        words.iter().any(|word| word == secret) || words.windows(2).any(|two| two.concat() == *secret)
    })
}

/// Whether the value under this name is secret. A number under a plural name is a count: `max_tokens`.
pub(crate) fn is_secret(name: &str, is_number: bool) -> bool {
    is_secret_name(name) && !(is_number && name.to_lowercase().ends_with('s'))
}

/// Lower case by way of upper case, so that look-alikes such as the long s become the plain letter.
fn fold(c: char) -> impl Iterator<Item = char> {
    c.to_uppercase().flat_map(char::to_lowercase)
}

/// The words of `accessTokenValue`, `access-token-value` or `ACCESS_TOKEN_VALUE`, in lower case.
pub(crate) fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut previous_lower = false;
    let mut open = false;
    for c in name.chars() {
        if !c.is_alphanumeric() {
            open = false;
            continue;
        }
        if !open || (c.is_uppercase() && previous_lower) {
            words.push(String::new());
            open = true;
        }
        previous_lower = c.is_lowercase() || c.is_numeric();
        if let Some(word) = words.last_mut() {
            word.extend(fold(c));
        }
    }
    words
}

fn walk(value: &mut Value, depth: usize) -> usize {
    if depth > VALUE_DEPTH_MAX {
        return usize::from(hide(value, DEPTH_PLACEHOLDER));
    }
    match value {
        Value::Object(members) => {
            let names_secret = ["name", "key", "header", "field"]
                .iter()
                .any(|label| members.get(*label).and_then(Value::as_str).is_some_and(is_secret_name));
            let cells = hide_columns(members);
            let mut count = cells.unwrap_or(0);
            for (name, member) in members.iter_mut() {
                if is_secret(name, matches!(member, Value::Number(_) | Value::Bool(_)))
                    || (names_secret && name.to_lowercase().starts_with("val"))
                {
                    count += usize::from(hide(member, SECRET_PLACEHOLDER));
                } else if let ("columns", Some(_), Value::Array(columns)) = (&**name, cells, &mut *member) {
                    // Two names are no name and its value.
                    count += columns.iter_mut().map(|column| walk(column, depth + 2)).sum::<usize>();
                } else {
                    count += walk(member, depth + 1);
                }
            }
            count
        }
        Value::Array(items) => {
            if let [Value::String(name), rest @ ..] = items.as_mut_slice()
                && rest.len() == 1
                && name != SECRET_PLACEHOLDER
                && is_secret_name(name)
            {
                return usize::from(hide(&mut rest[0], SECRET_PLACEHOLDER));
            }
            items.iter_mut().map(|item| walk(item, depth + 1)).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Removes the cells of secret columns from a table: `columns` with a name for each cell of a row, or an object with it, and `rows` of cells.
/// Returns how many; `None` if it is no table.
fn hide_columns(members: &mut Map<String, Value>) -> Option<usize> {
    let name = |column: &Value| column.as_str().or_else(|| column["name"].as_str()).map(str::to_owned);
    let names: Vec<_> = members.get("columns")?.as_array()?.iter().map(name).collect();
    let rows = members.get_mut("rows")?.as_array_mut()?.iter_mut().filter_map(Value::as_array_mut);
    let cells = rows.flat_map(|row| row.iter_mut().zip(&names));
    let is_secret = |cell: &Value, name: &str| is_secret(name, cell.is_number() || cell.is_boolean());
    let secret = cells.filter(|(cell, name)| name.as_ref().is_some_and(|name| is_secret(cell, name)));
    Some(secret.map(|(cell, _)| usize::from(hide(cell, SECRET_PLACEHOLDER))).sum())
}

/// Replaces the value by the placeholder; `false` if there was nothing to hide.
fn hide(value: &mut Value, placeholder: &str) -> bool {
    if value.is_null() || value.as_str() == Some(placeholder) {
        return false;
    }
    *value = Value::String(placeholder.to_owned());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_go_at_any_depth_in_any_case_and_spelling() {
        let mut value = json!({
            "Headers": [{"Authorization": "x"}, {"name": "X-Api-Key", "value": "y"}, ["Cookie", "z"]],
            "deep": [[{"clientSecret": {"nested": true}, "PASSWORD": 7, "api_key": null}]],
            "accesstoken": "a", "refreshToken": "b", "max_tokens": 100, "tokens": ["c"], "tokenizer": "bpe", "path": "p",
        });
        assert_eq!(redact_secrets(&mut value), 8);
        let hidden = SECRET_PLACEHOLDER;
        assert_eq!(
            value,
            json!({
                "Headers": [{"Authorization": hidden}, {"name": "X-Api-Key", "value": hidden}, ["Cookie", hidden]],
                "deep": [[{"clientSecret": hidden, "PASSWORD": hidden, "api_key": null}]],
                "accesstoken": hidden, "refreshToken": hidden, "max_tokens": 100, "tokens": hidden,
                "tokenizer": "bpe", "path": "p",
            })
        );
        assert_eq!(redact_secrets(&mut value), 0, "a second pass finds nothing");
    }

    #[test]
    fn secrets_in_rows_go_by_the_names_of_their_columns() {
        let hidden = SECRET_PLACEHOLDER;
        let rows = json!([["ada", "sk-1", 7, true], ["bob", null, 8, false], ["eve", { "hex": "00" }], "x"]);
        let without = json!([["ada", hidden, 7, true], ["bob", null, 8, false], ["eve", hidden], "x"]);
        let names = ["owner", "api_key", "tokens", "secrets"];
        let typed = names.map(|name| json!({ "name": name, "type": "text" }));
        for columns in [json!(names), json!(typed)] {
            let mut value = json!([{ "columns": columns, "rows": rows }]);
            assert_eq!(redact_secrets(&mut value), 2);
            assert_eq!(value, json!([{ "columns": columns, "rows": without }]));
            assert_eq!(redact_secrets(&mut value), 0, "a second pass finds nothing");
        }
        // Of two columns, the second name is no value of the first.
        let mut two = json!({ "columns": ["password", "id"], "rows": [["hunter2", 1]] });
        assert_eq!(redact_secrets(&mut two), 1);
        assert_eq!(two, json!({ "columns": ["password", "id"], "rows": [[hidden, 1]] }));
        for odd in
            [json!({ "columns": 2, "rows": [["x"]] }), json!({ "columns": [2, null], "rows": { "a": 1 } })]
        {
            let mut same = odd.clone();
            assert_eq!((redact_secrets(&mut same), same), (0, odd));
        }
    }

    #[test]
    fn what_is_nested_too_deep_to_look_at_is_removed() {
        let mut value = json!({"password": "deep secret"});
        for _ in 0..100 {
            value = json!([value]);
        }
        redact_secrets(&mut value);
        assert!(!value.to_string().contains("deep secret"));
    }
}
