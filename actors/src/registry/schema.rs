//! The JSON Schema of a tool's parameters or result: whether a document fits, and if not, where.
//!
//! The validator decides fast, since it caches. But it lists violations by walking every path through the schema, and a recursive
//! schema may have exponentially many paths. So the decision comes first, and a second schema lists violations: there a recursive
//! reference is only decided, not walked. The cost of listing is known in advance, and bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use effectd_policy::inspect;
use jsonschema::Validator;
use jsonschema::error::{ValidationError, ValidationErrorKind};
use serde_json::{Map, Value, json};

use super::nearest;
use crate::limits::{SCHEMA_DEPTH_MAX, SUBSCHEMAS_MAX, VIOLATIONS_COST_MAX, VIOLATIONS_MAX};

// Keywords, separated by single blanks.

/// Keywords whose value is a schema.
const ONE: &str = "additionalProperties contains contentSchema else if items not propertyNames then unevaluatedItems \
    unevaluatedProperties";
/// Keywords whose value is an array of schemas.
const SEVERAL: &str = "allOf anyOf oneOf prefixItems";
/// Keywords whose value is an object of schemas.
const NAMED: &str = "$defs definitions dependentSchemas patternProperties properties";
/// The other keywords, and effectd's own extensions.
const PLAIN: &str = "$anchor $comment $id $ref $schema const contentEncoding contentMediaType default \
    dependentRequired deprecated description enum examples exclusiveMaximum exclusiveMinimum format maxContains maxItems \
    maxLength maxProperties maximum minContains minItems minLength minProperties minimum multipleOf \
    pattern readOnly required title type uniqueItems writeOnly x-artifact x-artifact-bytes x-command \
    x-host x-pii x-public x-resource x-space";
/// String formats that are checked, then formats of numbers.
const FORMATS: &str = "date date-time duration email hostname iana-timezone ipv4 ipv6 iri iri-reference json-pointer regex \
    relative-json-pointer time uri uri-reference uri-template uuid double float int int8 int16 int32 \
    int64 int128 uint uint8 uint16 uint32 uint64 uint128";

fn is_in(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}

/// A schema that was compiled once, within bounds.
pub struct Schema {
    value: Value,
    compiled: OnceLock<Compiled>,
}

struct Compiled {
    decides: Validator,
    /// Lists violations instead of `decides`, if the schema is recursive.
    lists: Option<Validator>,
    /// How many schemas a walk visits at most for one value.
    cost: usize,
}

impl Schema {
    pub fn new(value: &Value) -> Result<Self, String> {
        jsonschema::draft202012::meta::validate(value).map_err(|error| error.to_string())?;
        Ok(Self { value: value.clone(), compiled: Compiled::new(value)?.into() })
    }

    /// A schema of a built-in tool. It is compiled at its first use: a process that uses one tool does not wait for all of them.
    pub fn built_in(value: &Value) -> Self {
        Self { value: value.clone(), compiled: OnceLock::new() }
    }

    #[expect(clippy::expect_used, reason = "the schema is part of the program, and a test compiles it")]
    fn compiled(&self) -> &Compiled {
        self.compiled.get_or_init(|| Compiled::new(&self.value).expect("a built-in schema compiles"))
    }

    /// The schema as the part of another document at this pointer: its references lead there. An `$id` would lead them
    /// elsewhere, so it is left out, and so are names of parts, which the document may have twice.
    pub(super) fn inside(&self, pointer: &str) -> Value {
        let (mut parts, mut schema) = (Parts::default(), self.value.clone());
        // Compiling it reads it without an error.
        let _ = parts.read(&self.value, String::new(), 0);
        for at in parts.0.keys() {
            if let Some(Value::Object(part)) = schema.pointer_mut(at) {
                part.remove("$id");
                part.remove("$anchor");
                if let Some(Value::String(target)) = part.get_mut("$ref") {
                    target.insert_str(1, pointer);
                }
            }
        }
        schema
    }

    /// Every place that violates the schema, with what the schema demands there. Values and undeclared names are masked: they may
    /// be secrets.
    pub fn violations(&self, document: &Value) -> Vec<String> {
        // Nearly always there are no violations.
        if self.compiled().decides.is_valid(document) {
            return Vec::new();
        }
        let rendered = |error: ValidationError<'_>| render(&self.value, document, &error);
        let mut errors = self.errors(document).into_iter().flatten();
        let mut places: Vec<_> = errors.by_ref().take(VIOLATIONS_MAX).map(rendered).collect();
        if places.is_empty() {
            places.push("/: it violates the schema, and is too large to say where".to_owned());
        }
        let more = errors.take(VIOLATIONS_MAX).count();
        if more > 0 {
            places.push(format!("and {more} more"));
        }
        places
    }

    /// The names of members that violate the schema; all names if that cannot be found out.
    pub(super) fn unfit_members(&self, document: &Value) -> BTreeSet<String> {
        if self.compiled().decides.is_valid(document) {
            return BTreeSet::new();
        }
        let all = || document.as_object().into_iter().flat_map(Map::keys).cloned().collect();
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

    /// All violations; `None` if listing them could take long.
    fn errors<'a>(&'a self, document: &'a Value) -> Option<impl Iterator<Item = ValidationError<'a>>> {
        let Compiled { decides, lists, cost } = self.compiled();
        let is_small = cost.saturating_mul(values(document)) <= VIOLATIONS_COST_MAX;
        let lists = lists.as_ref().unwrap_or(decides);
        is_small.then(|| lists.iter_errors(document))
    }
}

impl Compiled {
    fn new(value: &Value) -> Result<Self, String> {
        let mut parts = Parts::default();
        parts.read(value, String::new(), 0)?;
        let (cost, recursive) = parts.walk()?;
        let lists = (!recursive.is_empty()).then(|| compile(&parts.without_recursion(value, &recursive)));
        Ok(Self { decides: compile(value)?, lists: lists.transpose()?, cost })
    }
}

fn compile(schema: &Value) -> Result<Validator, String> {
    // The crate is built without a resolver, so a remote reference is an error here and nothing is fetched.
    let options = jsonschema::draft202012::options().should_validate_formats(true);
    let options = options.with_format("iana-timezone", is_timezone);
    options.build(schema).map_err(|error| error.to_string())
}

/// Whether it is a zone that this machine knows, such as `Africa/Kigali`.
fn is_timezone(name: &str) -> bool {
    jiff::tz::db().get(name).is_ok()
}

/// How many values a document holds.
fn values(document: &Value) -> usize {
    match document {
        Value::Array(items) => 1 + items.iter().map(values).sum::<usize>(),
        Value::Object(members) => 1 + members.values().map(values).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "somebody else's list of kinds, which grows")]
fn render(schema: &Value, document: &Value, error: &ValidationError<'_>) -> String {
    let (place, known) = inspect::place(schema, document, error.instance_path().as_str());
    let place = if place.is_empty() { "/" } else { &place };
    match error.kind() {
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            let known: Vec<_> = known.into_iter().collect();
            format!("{place}: {} unknown names; the schema has: {}", unexpected.len(), known.join(", "))
        }
        ValidationErrorKind::PropertyNames { .. } => format!("{place}: a name is not allowed"),
        ValidationErrorKind::Not { schema } if schema["not"]["$ref"].is_string() => {
            let target = schema["not"]["$ref"].as_str().unwrap_or_default();
            format!("{place}: it violates {target}")
        }
        _ => format!("{place}: {}", error.masked()),
    }
}

/// Whether a violation concerns the whole document.
fn is_about_all(kind: &ValidationErrorKind) -> bool {
    matches!(
        kind,
        ValidationErrorKind::AnyOf { .. }
            | ValidationErrorKind::OneOfMultipleValid { .. }
            | ValidationErrorKind::OneOfNotValid { .. }
            | ValidationErrorKind::Not { .. }
    )
}

/// The schemas inside a schema, by their JSON pointers.
#[derive(Default)]
struct Parts(BTreeMap<String, Part>);

#[derive(Default)]
struct Part {
    inner: Vec<String>,
    refers_to: Option<String>,
}

impl Parts {
    /// Reads a schema and all schemas inside it, within bounds.
    fn read(&mut self, schema: &Value, at: String, depth: usize) -> Result<(), String> {
        if depth > SCHEMA_DEPTH_MAX {
            return Err(format!("schemas are nested deeper than {SCHEMA_DEPTH_MAX} levels"));
        }
        if self.0.len() >= SUBSCHEMAS_MAX {
            return Err(format!("it holds more than {SUBSCHEMAS_MAX} schemas"));
        }
        let Value::Object(members) = schema else {
            self.0.insert(at, Part::default());
            return Ok(());
        };
        let refers_to = members.get("$ref").and_then(Value::as_str);
        let mut part =
            Part { refers_to: refers_to.map(|target| local(&at, target)).transpose()?, inner: Vec::new() };
        // Inserted before the inner schemas are read.
        self.0.insert(at.clone(), Part::default());
        for (name, value) in members {
            let inner: Vec<(String, &Value)> = match (name.as_str(), value) {
                (name, value) if is_in(ONE, name) => vec![(name.to_owned(), value)],
                (name, Value::Array(items)) if is_in(SEVERAL, name) => {
                    let items = items.iter().enumerate();
                    items.map(|(index, item)| (format!("{name}/{index}"), item)).collect()
                }
                (name, Value::Object(named)) if is_in(NAMED, name) => {
                    let escaped = |inner: &str| inner.replace('~', "~0").replace('/', "~1");
                    let named = named.iter();
                    named.map(|(inner, value)| (format!("{name}/{}", escaped(inner)), value)).collect()
                }
                (name, value) => {
                    check_keyword(&at, name)?;
                    if name == "format" {
                        check_format(&at, value)?;
                    }
                    continue;
                }
            };
            // A definition costs nothing until a reference leads to it.
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

    /// How many schemas a walk visits at most, and the schemas whose reference leads back to a schema on the way to them.
    fn walk(&self) -> Result<(usize, BTreeSet<String>), String> {
        let mut walk = Walk { parts: self, costs: BTreeMap::new(), recursive: BTreeSet::new() };
        let cost = walk.cost("")?;
        Ok((cost, walk.recursive))
    }

    /// The same schema, in which these references are not walked: the validator only decides a double negation.
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
        // A double negation evaluates no members, so these keywords would report all of them as unknown.
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
    /// The cost of each schema; `None` while it is being walked.
    costs: BTreeMap<&'a str, Option<usize>>,
    recursive: BTreeSet<String>,
}

impl<'a> Walk<'a> {
    fn cost(&mut self, at: &'a str) -> Result<usize, String> {
        let Some(part) = self.parts.0.get(at) else {
            return Err(format!("`$ref` leads to `#{at}`, where there is no schema"));
        };
        self.costs.insert(at, None);
        let mut cost = 1_usize;
        for next in part.inner.iter().chain(&part.refers_to) {
            let known = self.costs.get(next.as_str()).copied();
            cost = cost.saturating_add(match known {
                Some(Some(known)) => known,
                // Only a reference can lead back.
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
        Some(_) | None => {
            Err(format!("{}: `$ref` must refer to the same schema, such as `#/$defs/name`", place(at)))
        }
    }
}

fn check_keyword(at: &str, name: &str) -> Result<(), String> {
    let all = || [ONE, SEVERAL, NAMED, PLAIN].into_iter().flat_map(|words| words.split(' '));
    if all().any(|known| known == name) {
        return Ok(());
    }
    let nearest = nearest(name, all());
    // Other `x-` extensions are allowed; one that resembles ours is a misspelling.
    if name.starts_with("x-") && !nearest.is_some_and(|near| near.starts_with("x-")) {
        return Ok(());
    }
    Err(format!("{}: `{name}` is not a known keyword{}", place(at), meant(nearest)))
}

fn check_format(at: &str, value: &Value) -> Result<(), String> {
    let format = value.as_str().unwrap_or_default();
    if is_in(FORMATS, format) {
        return Ok(());
    }
    Err(format!(
        "{}: the format `{format}` is unknown{}",
        place(at),
        meant(nearest(format, FORMATS.split(' ')))
    ))
}

fn place(at: &str) -> &str {
    if at.is_empty() { "/" } else { at }
}

fn meant(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean `{nearest}`?"))
}
