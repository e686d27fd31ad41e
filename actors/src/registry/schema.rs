//! The JSON Schema of a tool's parameters or result: what it may be, whether a document fits, and where not.
//!
//! A validator of JSON Schema decides quickly, since it remembers what it has decided. It lists violations by walking every way
//! through the schema, and there may be exponentially many where a schema refers to itself. So the decision is made first, and
//! places are listed by a second schema in which a reference that leads back to its own beginning is only decided, not walked. What
//! that may cost is known before it begins, and is bounded.

use std::collections::{BTreeMap, BTreeSet};

use effectd_policy::inspect;
use jsonschema::Validator;
use jsonschema::error::{ValidationError, ValidationErrorKind};
use serde_json::{Map, Value, json};

use super::distance;
use crate::limits::{SCHEMA_DEPTH_MAX, SUBSCHEMAS_MAX, VIOLATIONS_COST_MAX, VIOLATIONS_MAX};

/// Keywords whose value is a schema.
const ONE: [&str; 11] = [
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is an array of schemas.
const SEVERAL: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Keywords whose value is an object of schemas.
const NAMED: [&str; 5] = [
    "$defs",
    "definitions",
    "dependentSchemas",
    "patternProperties",
    "properties",
];
/// The other keywords, and our own marks.
const PLAIN: [&str; 42] = [
    "$comment",
    "$id",
    "$ref",
    "$schema",
    "const",
    "contentEncoding",
    "contentMediaType",
    "default",
    "dependentRequired",
    "deprecated",
    "description",
    "enum",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
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
    "readOnly",
    "required",
    "title",
    "type",
    "uniqueItems",
    "writeOnly",
    "x-artifact",
    "x-artifact-bytes",
    "x-command",
    "x-host",
    "x-pii",
    "x-public",
    "x-resource",
    "x-space",
];
/// Formats that are checked, then those that say how wide a number is.
const FORMATS: [&str; 31] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "iri",
    "iri-reference",
    "json-pointer",
    "regex",
    "relative-json-pointer",
    "time",
    "uri",
    "uri-reference",
    "uri-template",
    "uuid",
    "double",
    "float",
    "int",
    "int8",
    "int16",
    "int32",
    "int64",
    "int128",
    "uint",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "uint128",
];

pub(super) struct Schema {
    value: Value,
    decides: Validator,
    /// To list violations by, if the schema refers to itself.
    lists: Option<Validator>,
    /// How many schemas a walk of one value meets at most.
    cost: usize,
}

impl Schema {
    pub(super) fn new(value: &Value) -> Result<Self, String> {
        jsonschema::draft202012::meta::validate(value).map_err(|error| error.to_string())?;
        let mut parts = Parts::default();
        parts.read(value, String::new(), 0)?;
        let (cost, recursive) = parts.walk()?;
        let lists = (!recursive.is_empty()).then(|| compile(&parts.without_recursion(value, &recursive)));
        Ok(Self {
            value: value.clone(),
            decides: compile(value)?,
            lists: lists.transpose()?,
            cost,
        })
    }

    /// Every place that breaks the schema, with what the schema asks for there. Values and unknown names are masked: they may be
    /// secrets.
    pub(super) fn violations(&self, document: &Value) -> Vec<String> {
        // Nearly always there are none.
        if self.decides.is_valid(document) {
            return Vec::new();
        }
        let told = |error: ValidationError<'_>| told(&self.value, document, &error);
        let mut errors = self.errors(document).into_iter().flatten();
        let mut places: Vec<_> = errors.by_ref().take(VIOLATIONS_MAX).map(told).collect();
        if places.is_empty() {
            places.push("/: it does not fit the schema; it is too large to say where".to_owned());
        }
        let more = errors.take(VIOLATIONS_MAX).count();
        if more > 0 {
            places.push(format!("and {more} more"));
        }
        places
    }

    /// The names of members that do not fit what the schema says about them; all of them where that cannot be told.
    pub(super) fn unfit_members(&self, document: &Value) -> BTreeSet<String> {
        if self.decides.is_valid(document) {
            return BTreeSet::new();
        }
        let all = || {
            document
                .as_object()
                .into_iter()
                .flat_map(Map::keys)
                .cloned()
                .collect()
        };
        let Some(errors) = self.errors(document) else {
            return all();
        };
        let mut names = BTreeSet::new();
        for error in errors {
            match error.instance_path().as_str().split('/').nth(1) {
                Some(name) => drop(names.insert(name.replace("~1", "/").replace("~0", "~"))),
                None if is_about_all(error.kind()) => return all(),
                None => {}
            }
        }
        names
    }

    /// All violations; `None` where listing them could take long.
    fn errors<'a>(&'a self, document: &'a Value) -> Option<impl Iterator<Item = ValidationError<'a>>> {
        let is_small = self.cost.saturating_mul(values(document)) <= VIOLATIONS_COST_MAX;
        let lists = self.lists.as_ref().unwrap_or(&self.decides);
        is_small.then(|| lists.iter_errors(document))
    }
}

fn compile(schema: &Value) -> Result<Validator, String> {
    // Remote references are off: the crate is built without a resolver, so one fails here instead of fetching.
    let options = jsonschema::draft202012::options().should_validate_formats(true);
    options.build(schema).map_err(|error| error.to_string())
}

/// How many values a document holds.
fn values(document: &Value) -> usize {
    match document {
        Value::Array(items) => 1 + items.iter().map(values).sum::<usize>(),
        Value::Object(members) => 1 + members.values().map(values).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "somebody else's list of kinds, which grows"
)]
fn told(schema: &Value, document: &Value, error: &ValidationError<'_>) -> String {
    let (place, known) = inspect::place(schema, document, error.instance_path().as_str());
    let place = if place.is_empty() { "/" } else { &place };
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
        ValidationErrorKind::Not { schema } if schema["not"]["$ref"].is_string() => {
            let target = schema["not"]["$ref"].as_str().unwrap_or_default();
            format!("{place}: it does not fit {target}")
        }
        _ => format!("{place}: {}", error.masked()),
    }
}

/// Whether a violation says of the whole that it does not fit, and not which part of it.
fn is_about_all(kind: &ValidationErrorKind) -> bool {
    matches!(
        kind,
        ValidationErrorKind::AnyOf { .. }
            | ValidationErrorKind::OneOfMultipleValid { .. }
            | ValidationErrorKind::OneOfNotValid { .. }
            | ValidationErrorKind::Not { .. }
    )
}

/// The schemas inside a schema, by their pointers.
#[derive(Default)]
struct Parts(BTreeMap<String, Part>);

#[derive(Default)]
struct Part {
    inner: Vec<String>,
    refers_to: Option<String>,
}

impl Parts {
    /// Reads a schema and all that it holds, within bounds.
    fn read(&mut self, schema: &Value, at: String, depth: usize) -> Result<(), String> {
        if depth > SCHEMA_DEPTH_MAX {
            return Err(format!(
                "schemas are nested deeper than {SCHEMA_DEPTH_MAX} levels"
            ));
        }
        if self.0.len() >= SUBSCHEMAS_MAX {
            return Err(format!("it holds more than {SUBSCHEMAS_MAX} schemas"));
        }
        let Value::Object(members) = schema else {
            self.0.insert(at, Part::default());
            return Ok(());
        };
        let refers_to = members.get("$ref").and_then(Value::as_str);
        let mut part = Part {
            refers_to: refers_to.map(|target| local(&at, target)).transpose()?,
            inner: Vec::new(),
        };
        // Its place is taken before those of the inner ones.
        self.0.insert(at.clone(), Part::default());
        for (name, value) in members {
            let inner: Vec<(String, &Value)> = match (name.as_str(), value) {
                (name, value) if ONE.contains(&name) => vec![(name.to_owned(), value)],
                (name, Value::Array(items)) if SEVERAL.contains(&name) => {
                    let items = items.iter().enumerate();
                    items
                        .map(|(index, item)| (format!("{name}/{index}"), item))
                        .collect()
                }
                (name, Value::Object(named)) if NAMED.contains(&name) => {
                    let escaped = |inner: &str| inner.replace('~', "~0").replace('/', "~1");
                    let named = named.iter();
                    named
                        .map(|(inner, value)| (format!("{name}/{}", escaped(inner)), value))
                        .collect()
                }
                (name, value) => {
                    check_keyword(&at, name)?;
                    if name == "format" {
                        check_format(&at, value)?;
                    }
                    continue;
                }
            };
            // What is only defined costs nothing until a reference leads to it.
            let is_defined = matches!(name.as_str(), "$defs" | "definitions");
            for (step, value) in inner {
                let pointer = format!("{at}/{step}");
                self.read(value, pointer.clone(), depth + 1)?;
                if !is_defined {
                    part.inner.push(pointer);
                }
            }
        }
        self.0.insert(at, part);
        Ok(())
    }

    /// How many schemas a walk meets at most, and the schemas whose reference leads back to where the walk came from.
    fn walk(&self) -> Result<(usize, BTreeSet<String>), String> {
        let mut walk = Walk {
            parts: self,
            costs: BTreeMap::new(),
            recursive: BTreeSet::new(),
        };
        let cost = walk.cost("")?;
        Ok((cost, walk.recursive))
    }

    /// The same schema, in which these references are not walked: what is denied twice is only decided.
    fn without_recursion(&self, schema: &Value, recursive: &BTreeSet<String>) -> Value {
        let mut lists = schema.clone();
        for pointer in recursive {
            let Some(Value::Object(part)) = lists.pointer_mut(pointer) else {
                continue;
            };
            let Some(target) = part.remove("$ref") else {
                continue;
            };
            let decided = json!({ "not": { "not": { "$ref": target } } });
            if let Value::Array(all) = part.entry("allOf").or_insert_with(|| json!([])) {
                all.push(decided);
            }
        }
        // What is only decided does not say what it has looked at, and these would take it for unknown.
        for pointer in self.0.keys() {
            if let Some(Value::Object(part)) = lists.pointer_mut(pointer) {
                part.remove("unevaluatedItems");
                part.remove("unevaluatedProperties");
            }
        }
        lists
    }
}

struct Walk<'a> {
    parts: &'a Parts,
    /// What each schema costs; `None` while it is being walked.
    costs: BTreeMap<&'a str, Option<usize>>,
    recursive: BTreeSet<String>,
}

impl<'a> Walk<'a> {
    fn cost(&mut self, at: &'a str) -> Result<usize, String> {
        let Some(part) = self.parts.0.get(at) else {
            return Err(format!("nothing that could be referred to stands at `#{at}`"));
        };
        self.costs.insert(at, None);
        let mut cost = 1_usize;
        for next in part.inner.iter().chain(&part.refers_to) {
            let known = self.costs.get(next.as_str()).copied();
            cost = cost.saturating_add(match known {
                Some(Some(known)) => known,
                // Only a reference leads back.
                Some(None) => {
                    self.recursive.insert(at.to_owned());
                    1
                }
                None => self.cost(next)?,
            });
        }
        self.costs.insert(at, Some(cost));
        Ok(cost)
    }
}

fn local(at: &str, target: &str) -> Result<String, String> {
    match target.strip_prefix('#') {
        Some(pointer) if pointer.is_empty() || pointer.starts_with('/') => Ok(pointer.to_owned()),
        Some(_) | None => Err(format!(
            "{}: `$ref` can lead to a place in the same schema only, such as `#/$defs/name`",
            place(at)
        )),
    }
}

fn check_keyword(at: &str, name: &str) -> Result<(), String> {
    let all = || ONE.iter().chain(&SEVERAL).chain(&NAMED).chain(&PLAIN);
    if all().any(|known| *known == name) {
        return Ok(());
    }
    let nearest = nearest(name, all());
    // Marks of others are theirs; one that is nearly ours is misspelt.
    if name.starts_with("x-") && !nearest.is_some_and(|near| near.starts_with("x-")) {
        return Ok(());
    }
    Err(format!(
        "{}: `{name}` is no keyword that is known here{}",
        place(at),
        meant(nearest)
    ))
}

fn check_format(at: &str, value: &Value) -> Result<(), String> {
    let format = value.as_str().unwrap_or_default();
    if FORMATS.contains(&format) {
        return Ok(());
    }
    Err(format!(
        "{}: the format `{format}` is not known{}",
        place(at),
        meant(nearest(format, FORMATS.iter()))
    ))
}

fn place(at: &str) -> &str {
    if at.is_empty() { "/" } else { at }
}

fn meant(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean `{nearest}`?"))
}

fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a &'static str>) -> Option<&'a str> {
    let far = |known: &str| distance(&known.to_lowercase(), &name.to_lowercase());
    let nearest = known.min_by_key(|known| far(known))?;
    (far(nearest) <= 1 + name.len() / 4).then_some(*nearest)
}
