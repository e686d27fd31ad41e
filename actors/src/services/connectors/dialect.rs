//! Brings the schema of a server, in whatever dialect, into the one that the registry compiles: JSON Schema 2020-12.
//!
//! A keyword that only describes is left out if the registry does not know it. So is every extension: `x-public`, `x-pii` and the like are
//! effectd's own words, and a server that could use them would decide which data it gets.

use std::collections::{BTreeMap, BTreeSet};

use effectd_contracts::connector::cleaned;
use serde_json::{Map, Value, json};

/// Keywords whose value is a schema.
const ONE: [&str; 9] = [
    "additionalProperties",
    "contains",
    "else",
    "if",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is an array of schemas.
const SEVERAL: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Keywords whose value is an object of schemas.
const NAMED: [&str; 5] = ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];
/// What a schema of this dialect says about itself.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// Keywords that stay as they are.
const PLAIN: [&str; 25] = [
    "$anchor",
    "const",
    "default",
    "dependentRequired",
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "required",
    "title",
    "type",
    "uniqueItems",
    "$ref",
];
/// Formats that are checked; another one says nothing that could be.
const FORMATS: [&str; 11] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "json-pointer",
    "time",
    "uri",
    "uuid",
];

/// The schema of the parameters of a tool. The error says what cannot be brought over.
pub(super) fn to_2020_12(schema: &Value) -> Result<Value, String> {
    let says_dialect = schema.get("$schema").is_some_and(Value::is_string);
    let mut schema = converted(schema)?;
    let mut anchors = BTreeMap::new();
    name_anchors(&schema, "", &mut anchors)?;
    point_at(&mut schema, &anchors)?;
    check_references(&schema)?;
    let Some(members) = schema.as_object_mut() else {
        return Err("it is no object".to_owned());
    };
    match members.get("type").and_then(Value::as_str) {
        None if !members.contains_key("type") => drop(members.insert("type".to_owned(), "object".into())),
        Some("object") => {}
        Some(_) | None => return Err("its type is not object".to_owned()),
    }
    if says_dialect {
        members.insert("$schema".to_owned(), DIALECT.into());
    }
    Ok(schema)
}

fn converted(schema: &Value) -> Result<Value, String> {
    let Some(members) = schema.as_object() else {
        return if schema.is_boolean() {
            Ok(schema.clone())
        } else {
            Err("a schema is no object".to_owned())
        };
    };
    let mut to = Map::new();
    for (name, value) in members {
        match name.as_str() {
            "$ref" if value.as_str().is_none_or(|to| !to.starts_with('#')) => {
                return Err("a reference leads out of it".to_owned());
            }
            // These decide what the others mean, or lead to other documents.
            "$dynamicAnchor" | "$dynamicRef" | "$recursiveAnchor" | "$recursiveRef" | "extends"
            | "disallow" => {
                return Err(format!("{name} is not supported"));
            }
            "type" if value.is_object() => return Err("a type is a schema".to_owned()),
            // Draft 4 says by a boolean what later drafts say by the number.
            "exclusiveMinimum" | "exclusiveMaximum" if value.is_boolean() => {
                let (bound, is_exclusive) = (name.replace("exclusiveM", "m"), value == &Value::Bool(true));
                if let Some(bound) = members.get(&bound).filter(|_| is_exclusive) {
                    to.insert(name.clone(), bound.clone());
                }
            }
            "required" if value.is_boolean() => return Err("required is no list of names".to_owned()),
            "format" if value.as_str().is_some_and(|format| FORMATS.contains(&format)) => {
                to.insert(name.clone(), value.clone());
            }
            // Up to 2019-09, an array of schemas is what `prefixItems` is since.
            "items" => {
                let (items, others) = match value.as_array() {
                    Some(items) => (Some(items), members.get("additionalItems")),
                    None => (None, Some(value)),
                };
                if let Some(items) = items {
                    to.insert("prefixItems".to_owned(), all(items)?);
                }
                if let Some(others) = others {
                    to.insert("items".to_owned(), converted(others)?);
                }
            }
            "dependencies" => {
                for (of, needs) in value.as_object().into_iter().flatten() {
                    let (keyword, needs) = if needs.is_array() {
                        ("dependentRequired", needs.clone())
                    } else {
                        ("dependentSchemas", converted(needs)?)
                    };
                    to.entry(keyword).or_insert_with(|| json!({}))[of] = needs;
                }
            }
            name if ONE.contains(&name) => drop(to.insert(name.to_owned(), converted(value)?)),
            name if SEVERAL.contains(&name) => {
                let items = value.as_array().ok_or_else(|| format!("{name} is no array"))?;
                to.insert(name.to_owned(), all(items)?);
            }
            name if NAMED.contains(&name) => {
                let named = value.as_object().ok_or_else(|| format!("{name} is no object"))?;
                let inner = named.iter().map(|(key, value)| Ok((key.clone(), converted(value)?)));
                to.insert(name.to_owned(), Value::Object(inner.collect::<Result<_, String>>()?));
            }
            "description" | "title" if value.is_string() => {
                to.insert(name.clone(), cleaned(value.as_str().unwrap_or_default()).into());
            }
            name if PLAIN.contains(&name) => drop(to.insert(name.to_owned(), value.clone())),
            // It describes, or another program reads it.
            _ => {}
        }
    }
    Ok(Value::Object(to))
}

fn all(schemas: &[Value]) -> Result<Value, String> {
    schemas.iter().map(converted).collect()
}

/// Collects the pointers of schemas that have a name of their own.
fn name_anchors(value: &Value, at: &str, found: &mut BTreeMap<String, String>) -> Result<(), String> {
    match value {
        Value::Object(members) => {
            if let Some(name) = members.get("$anchor").and_then(Value::as_str)
                && found.insert(format!("#{name}"), format!("#{at}")).is_some()
            {
                return Err("two of its parts have one name".to_owned());
            }
            let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
            let mut inner = members.iter();
            inner.try_for_each(|(name, inner)| name_anchors(inner, &format!("{at}/{}", escaped(name)), found))
        }
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.try_for_each(|(nth, item)| name_anchors(item, &format!("{at}/{nth}"), found))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// Writes pointers instead of the names of parts, so that all programs find the same part.
fn point_at(value: &mut Value, anchors: &BTreeMap<String, String>) -> Result<(), String> {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(to)) = members.get_mut("$ref")
                && to.starts_with('#')
                && to != "#"
                && !to.starts_with("#/")
            {
                *to = anchors.get(to.as_str()).ok_or("a reference leads nowhere")?.clone();
            }
            members.values_mut().try_for_each(|member| point_at(member, anchors))
        }
        Value::Array(items) => items.iter_mut().try_for_each(|item| point_at(item, anchors)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// References of one schema: far more than people write, and few enough to follow.
const REFERENCES_MAX: usize = 1_000;

/// Refuses references that lead back to themselves before they look into a value: whoever follows them never ends.
fn check_references(schema: &Value) -> Result<(), String> {
    let mut all = BTreeSet::new();
    everywhere(schema, &mut all);
    if all.len() > REFERENCES_MAX {
        return Err(format!("it has more than {REFERENCES_MAX} references"));
    }
    let mut next = BTreeMap::new();
    for target in &all {
        let part = schema.pointer(target).ok_or("a reference leads nowhere")?;
        let mut leads_to = BTreeSet::new();
        in_place(part, &mut leads_to);
        next.insert(*target, leads_to);
    }
    // What leads to nothing that is left is no part of a circle.
    loop {
        let ends: Vec<&str> =
            next.iter().filter(|(_, to)| to.is_empty()).map(|(target, _)| *target).collect();
        if ends.is_empty() {
            break;
        }
        for end in ends {
            next.remove(end);
            next.values_mut().for_each(|to| {
                to.remove(end);
            });
        }
    }
    if next.is_empty() { Ok(()) } else { Err("a reference leads back to itself".to_owned()) }
}

fn target(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix('#')
}

/// The targets of all references.
fn everywhere<'s>(value: &'s Value, found: &mut BTreeSet<&'s str>) {
    found.extend(target(value));
    match value {
        Value::Array(items) => items.iter().for_each(|item| everywhere(item, found)),
        Value::Object(members) => members.values().for_each(|member| everywhere(member, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The targets of references that are about the same value.
fn in_place<'s>(schema: &'s Value, found: &mut BTreeSet<&'s str>) {
    found.extend(target(schema));
    for keyword in ["not", "if", "then", "else"] {
        schema.get(keyword).into_iter().for_each(|inner| in_place(inner, found));
    }
    for keyword in ["allOf", "anyOf", "oneOf"] {
        let inner = schema.get(keyword).and_then(Value::as_array).into_iter().flatten();
        inner.for_each(|inner| in_place(inner, found));
    }
    let inner = schema.get("dependentSchemas").and_then(Value::as_object);
    inner.into_iter().flat_map(Map::values).for_each(|inner| in_place(inner, found));
}
