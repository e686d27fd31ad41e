//! One pass over the parameters: safety checks, personal data, and what the call reaches.

use std::collections::BTreeSet;

use effectd_contracts::tool::is_path_name;
use effectd_contracts::{Digest, Redaction, RedactionKind, SideEffect, ToolSpec, canonical};
use serde_json::{Map, Value};

use super::Inspection;
use super::annotations::{Node, Personal};
use super::safety::Safety;
use crate::document::Document;
use crate::error::PolicyError;
use crate::facts::{Finding, InspectionFacts, RedactionCounts};
use crate::limits::{FINDINGS_MAX, REDACTIONS_RECORDED_MAX, TARGETS_MAX, VALUE_DEPTH_MAX};
use crate::redact::personal::{FACE_PLACEHOLDER, PHONE_PLACEHOLDER, is_personal_name, redact_text};
use crate::redact::storage::{DEPTH_PLACEHOLDER, words};
use crate::source::Lines;

#[derive(Debug)]
pub(crate) struct ContentRules {
    pub(crate) safety: Safety,
    /// In lower case.
    pub(crate) face_fields: BTreeSet<String>,
    /// The digest of the rules, so that a replay knows whether the inspection used the same ones.
    pub(crate) digest: Digest,
}

impl ContentRules {
    pub(crate) fn compile(document: &Document, lines: &Lines<'_>) -> Result<Self, PolicyError> {
        let safety = Safety::compile(&document.safety).map_err(|error| {
            lines.invalid(&["safety", error.list, &error.index.to_string()], error.message)
        })?;
        let face_fields = document.redaction.face_fields.iter();
        // Plain data with text keys, which serde_json always writes.
        let value = serde_json::to_value((&document.safety, &document.redaction)).unwrap_or_default();
        Ok(Self {
            safety,
            face_fields: face_fields.map(|name| name.to_lowercase()).collect(),
            digest: canonical::digest(&value),
        })
    }
}

pub(crate) fn inspect(params: &Map<String, Value>, spec: &ToolSpec, rules: &ContentRules) -> Inspection {
    let mut walk = Walk {
        rules,
        spec,
        facts: InspectionFacts {
            rules: rules.digest,
            findings: Vec::new(),
            redacted: RedactionCounts::default(),
            personal_required: Vec::new(),
            spaces: BTreeSet::new(),
            hosts: BTreeSet::new(),
            commands: BTreeSet::new(),
            overflow: false,
        },
        redacted: Vec::new(),
    };
    let mut value = Value::Object(params.clone());
    let top = Field { pointer: String::new(), name: "", depth: 0 };
    walk.visit(&mut value, &Node::root(&spec.params_schema), top, false);
    let params = match value {
        Value::Object(params) => params,
        // Unreachable: the walk leaves the top level an object.
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    };
    let Walk { mut facts, redacted, .. } = walk;
    for Redaction { kind, count, .. } in &redacted {
        let counts = &mut facts.redacted;
        let total = match kind {
            RedactionKind::Email => &mut counts.emails,
            RedactionKind::Phone => &mut counts.phones,
            RedactionKind::Face => &mut counts.faces,
        };
        *total = total.saturating_add(*count);
    }
    Inspection { facts, params, redacted }
}

struct Walk<'r> {
    rules: &'r ContentRules,
    spec: &'r ToolSpec,
    facts: InspectionFacts,
    redacted: Vec<Redaction>,
}

/// A field of the parameters.
struct Field<'a> {
    pointer: String,
    name: &'a str,
    depth: usize,
}

impl Walk<'_> {
    /// Inspects and redacts a value with everything in it. A value that the tool needs stays unchanged, and is recorded as
    /// required.
    fn visit(&mut self, value: &mut Value, node: &Node<'_>, field: Field<'_>, required_above: bool) {
        if field.depth > VALUE_DEPTH_MAX {
            *value = Value::String(DEPTH_PLACEHOLDER.to_owned());
            self.facts.overflow = true;
            return;
        }
        self.collect_targets(value, node, &field);
        let personal = node.personal();
        let names_resource = required_above || self.names_resource(node, &field);
        if personal == Personal::Face || self.rules.face_fields.contains(&field.name.to_lowercase()) {
            self.scan_all(value, &field.pointer, field.depth);
            if names_resource && !value.is_null() {
                self.require(&field.pointer);
            } else {
                self.mask_face(value, &field.pointer);
            }
            return;
        }
        let required = names_resource || personal == Personal::Required;
        match value {
            Value::String(text) => {
                self.scan(text, &field.pointer);
                // `reach` refuses an invalid host, with a better reason than the redaction gate.
                let is_refused = node.marked("x-host")
                    && self.spec.side_effects.contains(&SideEffect::NetworkCall)
                    && host_of(text) == NOT_A_NAME;
                if !is_refused {
                    self.redact(text, &field.pointer, required);
                }
            }
            Value::Number(number) if is_phone_name(field.name) && number.to_string().len() >= 7 => {
                if required {
                    self.require(&field.pointer);
                } else {
                    *value = Value::String(PHONE_PLACEHOLDER.to_owned());
                    self.record(&field.pointer, RedactionKind::Phone, 1);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    let pointer = format!("{}/{index}", field.pointer);
                    let inner = Field { pointer, name: field.name, depth: field.depth + 1 };
                    self.visit(item, &node.item(index), inner, required);
                }
            }
            Value::Object(members) => self.visit_members(members, node, &field, required),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn visit_members(
        &mut self,
        members: &mut Map<String, Value>,
        node: &Node<'_>,
        field: &Field<'_>,
        required: bool,
    ) {
        for (name, member) in members.iter_mut() {
            let pointer = format!("{}/{}", field.pointer, segment(node, name));
            self.scan(name, &pointer);
            let inner = Field { pointer, name, depth: field.depth + 1 };
            self.visit(member, &node.member(name), inner, required);
        }
        let personal_names: Vec<String> =
            members.keys().filter(|name| is_personal_name(name)).cloned().collect();
        for name in personal_names {
            let pointer = format!("{}/{}", field.pointer, segment(node, &name));
            let mut text = name.clone();
            self.redact(&mut text, &pointer, required);
            if text == name {
                continue;
            }
            let Some(member) = members.remove(&name) else {
                continue;
            };
            let mut fresh = text.clone();
            let mut number = 2;
            while members.contains_key(&fresh) {
                fresh = format!("{text}#{number}");
                number += 1;
            }
            members.insert(fresh, member);
        }
    }

    fn redact(&mut self, text: &mut String, pointer: &str, required: bool) {
        if required {
            if is_personal_name(text) {
                self.require(pointer);
            }
            return;
        }
        let Some(redacted) = redact_text(text) else { return };
        *text = redacted.text;
        self.record(pointer, RedactionKind::Email, redacted.emails);
        self.record(pointer, RedactionKind::Phone, redacted.phones);
    }

    /// Text, arrays and objects keep their type, so that they still match the schema; other values become null.
    fn mask_face(&mut self, value: &mut Value, pointer: &str) {
        let masked = match &*value {
            Value::Null => return,
            Value::String(_) => Value::String(FACE_PLACEHOLDER.to_owned()),
            Value::Array(_) => Value::Array(Vec::new()),
            Value::Object(_) => Value::Object(Map::new()),
            Value::Bool(_) | Value::Number(_) => Value::Null,
        };
        if *value == masked {
            return;
        }
        *value = masked;
        self.record(pointer, RedactionKind::Face, 1);
    }

    fn require(&mut self, pointer: &str) {
        let pointer = recordable(pointer);
        if self.facts.personal_required.len() >= TARGETS_MAX {
            self.facts.overflow = true;
        } else if !self.facts.personal_required.contains(&pointer) {
            self.facts.personal_required.push(pointer);
        }
    }

    /// Records a redaction. Beyond `REDACTIONS_RECORDED_MAX`, it counts under the empty pointer.
    fn record(&mut self, pointer: &str, kind: RedactionKind, count: u32) {
        if count == 0 {
            return;
        }
        let mut field = recordable(pointer);
        let is_same = |field: &str, known: &Redaction| known.field == field && known.kind == kind;
        if self.redacted.len() >= REDACTIONS_RECORDED_MAX
            && !self.redacted.iter().any(|known| is_same(&field, known))
        {
            field.clear();
        }
        match self.redacted.iter_mut().find(|known| is_same(&field, known)) {
            Some(known) => known.count = known.count.saturating_add(count),
            None => self.redacted.push(Redaction { field, kind, count }),
        }
    }

    /// Whether the field names what the call works on: after redaction it would name something else.
    fn names_resource(&self, node: &Node<'_>, field: &Field<'_>) -> bool {
        let marks = ["x-resource", "x-space", "x-host", "x-command"];
        is_path_name(field.name)
            || (field.depth == 1 && self.spec.names_resource(field.name))
            || marks.iter().any(|mark| node.marked(mark))
    }

    fn scan(&mut self, text: &str, pointer: &str) {
        let facts = &mut self.facts;
        self.rules.safety.scan(self.spec.safety_class, text, &mut |check, kind| {
            if facts.findings.len() >= FINDINGS_MAX {
                facts.overflow = true;
                return;
            }
            facts.findings.push(Finding { check, kind: kind.to_owned(), pointer: recordable(pointer) });
        });
    }

    /// Runs the safety checks on a value that is masked afterwards.
    fn scan_all(&mut self, value: &Value, pointer: &str, depth: usize) {
        if depth > VALUE_DEPTH_MAX {
            self.facts.overflow = true;
            return;
        }
        match value {
            Value::String(text) => self.scan(text, pointer),
            Value::Array(items) => items.iter().for_each(|item| self.scan_all(item, pointer, depth + 1)),
            Value::Object(members) => {
                for (name, member) in members {
                    self.scan(name, pointer);
                    self.scan_all(member, pointer, depth + 1);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn collect_targets(&mut self, value: &Value, node: &Node<'_>, field: &Field<'_>) {
        let is_space = node.marked("x-space") || (field.depth == 1 && field.name == "space_id");
        if let Some(text) = value.as_str() {
            if is_space {
                self.target(|facts| &mut facts.spaces, plain_name(text));
            }
            if node.marked("x-host") {
                self.target(|facts| &mut facts.hosts, host_of(text));
            }
        }
        if node.marked("x-command") {
            let program = value.as_str().or_else(|| value.get(0).and_then(Value::as_str));
            self.target(|facts| &mut facts.commands, plain_name(program.unwrap_or_default()));
        }
    }

    fn target(&mut self, set: fn(&mut InspectionFacts) -> &mut BTreeSet<String>, name: String) {
        if set(&mut self.facts).len() >= TARGETS_MAX {
            self.facts.overflow = true;
        } else {
            set(&mut self.facts).insert(name);
        }
    }
}

/// Stands for text that is not a name. Of all patterns, only those such as `*` match it.
pub(crate) const NOT_A_NAME: &str = "(not a name)";

/// The name as a receipt may hold it; [`NOT_A_NAME`] for any other text, which could be a secret.
fn plain_name(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._:-/@+".contains(c);
    if !text.is_empty() && text.len() <= 128 && text.chars().all(plain) && redact_text(text).is_none() {
        text.to_owned()
    } else {
        NOT_A_NAME.to_owned()
    }
}

/// The host of a URL or of `host:port`. [`NOT_A_NAME`] for text that two parsers could read differently.
fn host_of(text: &str) -> String {
    let odd =
        |c: char| c.is_whitespace() || c.is_control() || c == '\\' || c == '@' || c == '%' || !c.is_ascii();
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.chars().any(odd) || text.contains('\\') {
        return NOT_A_NAME.to_owned();
    }
    let host = match authority.strip_prefix('[') {
        Some(literal) => literal.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    plain_name(host.trim_end_matches('.').to_lowercase().as_str())
}

fn is_phone_name(name: &str) -> bool {
    const WORDS: [&str; 7] = ["phone", "telephone", "cellphone", "mobile", "tel", "fax", "msisdn"];
    words(name).iter().any(|word| WORDS.contains(&word.as_str()))
}

/// One step of a recorded pointer. A name that the schema does not declare is `*`, since it may be content.
fn segment(node: &Node<'_>, name: &str) -> String {
    if node.declares(name) { name.replace('~', "~0").replace('/', "~1") } else { "*".to_owned() }
}

/// The recorded form of a pointer into parameters, and the names that the schema declares there.
pub fn place<'s>(schema: &'s Value, params: &Value, pointer: &str) -> (String, BTreeSet<&'s str>) {
    let (mut node, mut value, mut shown) = (Node::root(schema), Some(params), String::new());
    for step in pointer.split('/').skip(1) {
        shown.push('/');
        if let (Some(Value::Array(items)), Ok(index)) = (value, step.parse::<usize>()) {
            shown.push_str(step);
            (node, value) = (node.item(index), items.get(index));
        } else {
            let name = step.replace("~1", "/").replace("~0", "~");
            shown.push_str(&segment(&node, &name));
            (node, value) = (node.member(&name), value.and_then(|value| value.get(&name)));
        }
    }
    (recordable(&shown), node.names())
}

/// A pointer for the record, cut if it is too long.
fn recordable(pointer: &str) -> String {
    const POINTER_BYTES_MAX: usize = 256;
    if pointer.len() <= POINTER_BYTES_MAX {
        return pointer.to_owned();
    }
    let cut = pointer.floor_char_boundary(POINTER_BYTES_MAX - '…'.len_utf8());
    format!("{}…", &pointer[..cut])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_what_every_reader_takes_it_for_or_none() {
        for (text, expected) in [
            ("https://api.example.org/v1?q=1", "api.example.org"),
            ("API.Example.ORG:443", "api.example.org"),
            ("https://[::1]:80/", "::1"),
            ("https://good.example@evil.example/", NOT_A_NAME),
            ("https://evil.example\\@good.example/", NOT_A_NAME),
            ("https://good.example%2eevil.example/", NOT_A_NAME),
            ("", NOT_A_NAME),
            ("good.example.", "good.example"),
        ] {
            assert_eq!(host_of(text), expected, "{text}");
        }
    }

    #[test]
    fn only_plain_names_are_recorded() {
        assert_eq!(plain_name("private:alice"), "private:alice");
        assert_eq!(plain_name("my secret is 42"), NOT_A_NAME);
        assert_eq!(plain_name("bob@example.org"), NOT_A_NAME);
    }
}
