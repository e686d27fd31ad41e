//! One pass over the parameters: safety checks, personal data, and what the call reaches for.

use std::collections::BTreeSet;

use effectd_contracts::tool::is_path_name;
use effectd_contracts::{Digest, Redaction, RedactionKind, SideEffect, ToolSpec};
use serde_json::{Map, Value};

use super::Inspection;
use super::annotations::{Node, Personal};
use super::safety::Safety;
use crate::facts::{Finding, InspectionFacts, RedactionCounts};
use crate::limits::{FINDINGS_MAX, REDACTIONS_RECORDED_MAX, TARGETS_MAX, VALUE_DEPTH_MAX};
use crate::redact::personal::{FACE_PLACEHOLDER, PHONE_PLACEHOLDER, is_personal_name, redact_text};
use crate::redact::storage::{DEPTH_PLACEHOLDER, words};

#[derive(Debug)]
pub(crate) struct ContentRules {
    pub(crate) safety: Safety,
    /// In lower case.
    pub(crate) face_fields: BTreeSet<String>,
    /// Of everything above, so that history knows whether it was looked at with the same eyes.
    pub(crate) digest: Digest,
}

pub(crate) fn inspect(params: &Map<String, Value>, spec: &ToolSpec, rules: &ContentRules) -> Inspection {
    let mut walk = Walk {
        rules,
        spec,
        facts: empty(rules.digest),
        redacted: Vec::new(),
    };
    let mut value = Value::Object(params.clone());
    walk.visit(
        &mut value,
        &Node::root(&spec.params_schema),
        Place {
            pointer: String::new(),
            name: "",
            depth: 0,
        },
        false,
    );
    let params = match value {
        Value::Object(params) => params,
        // The walk replaces an object as a whole only below the top.
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    };
    let Walk {
        mut facts, redacted, ..
    } = walk;
    for Redaction { kind, count, .. } in &redacted {
        let counts = &mut facts.redacted;
        let total = match kind {
            RedactionKind::Email => &mut counts.emails,
            RedactionKind::Phone => &mut counts.phones,
            RedactionKind::Face => &mut counts.faces,
        };
        *total = total.saturating_add(*count);
    }
    Inspection {
        facts,
        params,
        redacted,
    }
}

fn empty(rules: Digest) -> InspectionFacts {
    InspectionFacts {
        rules,
        findings: Vec::new(),
        redacted: RedactionCounts::default(),
        personal_required: Vec::new(),
        spaces: BTreeSet::new(),
        hosts: BTreeSet::new(),
        commands: BTreeSet::new(),
        overflow: false,
    }
}

struct Walk<'r> {
    rules: &'r ContentRules,
    spec: &'r ToolSpec,
    facts: InspectionFacts,
    redacted: Vec<Redaction>,
}

struct Place<'a> {
    pointer: String,
    name: &'a str,
    depth: usize,
}

impl Walk<'_> {
    /// Redaction changes no value that the tool needs as it is, and nothing beneath one: the caller is refused instead.
    fn visit(&mut self, value: &mut Value, node: &Node<'_>, place: Place<'_>, required_above: bool) {
        if place.depth > VALUE_DEPTH_MAX {
            *value = Value::String(DEPTH_PLACEHOLDER.to_owned());
            self.facts.overflow = true;
            return;
        }
        self.collect_targets(value, node, &place);
        let personal = node.personal();
        let names_resource = required_above || self.names_resource(node, &place);
        if personal == Personal::Face || self.rules.face_fields.contains(&place.name.to_lowercase()) {
            self.scan_all(value, &place.pointer, place.depth);
            if names_resource && !value.is_null() {
                self.require(&place.pointer);
            } else {
                self.mask_face(value, &place.pointer);
            }
            return;
        }
        let required = names_resource || personal == Personal::Required;
        match value {
            Value::String(text) => {
                self.scan(text, &place.pointer);
                // What is no host is on no list, which refuses the call and says so better.
                let is_refused = node.marked("x-host")
                    && self.spec.side_effects.contains(&SideEffect::NetworkCall)
                    && host_of(text) == NOT_A_NAME;
                if !is_refused {
                    self.redact(text, &place.pointer, required);
                }
            }
            Value::Number(number) if is_phone_name(place.name) && number.to_string().len() >= 7 => {
                if required {
                    self.require(&place.pointer);
                } else {
                    *value = Value::String(PHONE_PLACEHOLDER.to_owned());
                    self.remember(&place.pointer, RedactionKind::Phone, 1);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    let pointer = format!("{}/{index}", place.pointer);
                    let inner = Place {
                        pointer,
                        name: place.name,
                        depth: place.depth + 1,
                    };
                    self.visit(item, &node.item(index), inner, required);
                }
            }
            Value::Object(members) => self.visit_members(members, node, &place, required),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn visit_members(
        &mut self,
        members: &mut Map<String, Value>,
        node: &Node<'_>,
        place: &Place<'_>,
        required: bool,
    ) {
        for (name, member) in members.iter_mut() {
            let pointer = format!("{}/{}", place.pointer, segment(node, name));
            self.scan(name, &pointer);
            let inner = Place {
                pointer,
                name,
                depth: place.depth + 1,
            };
            self.visit(member, &node.member(name), inner, required);
        }
        let personal_names: Vec<String> = members
            .keys()
            .filter(|name| is_personal_name(name))
            .cloned()
            .collect();
        for name in personal_names {
            let pointer = format!("{}/{}", place.pointer, segment(node, &name));
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
        self.remember(pointer, RedactionKind::Email, redacted.emails);
        self.remember(pointer, RedactionKind::Phone, redacted.phones);
    }

    /// The shape stays, so that a schema which asks for an array still finds one.
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
        self.remember(pointer, RedactionKind::Face, 1);
    }

    fn require(&mut self, pointer: &str) {
        let pointer = recordable(pointer);
        if self.facts.personal_required.len() >= TARGETS_MAX {
            self.facts.overflow = true;
        } else if !self.facts.personal_required.contains(&pointer) {
            self.facts.personal_required.push(pointer);
        }
    }

    /// Beyond the bound, what is removed counts for the parameters as a whole.
    fn remember(&mut self, pointer: &str, kind: RedactionKind, count: u32) {
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

    /// Whether the field names what the call works on: with another name it would be another thing.
    fn names_resource(&self, node: &Node<'_>, place: &Place<'_>) -> bool {
        let marks = ["x-resource", "x-space", "x-host", "x-command"];
        is_path_name(place.name)
            || (place.depth == 1 && self.spec.names_resource(place.name))
            || marks.iter().any(|mark| node.marked(mark))
    }

    fn scan(&mut self, text: &str, pointer: &str) {
        let facts = &mut self.facts;
        self.rules
            .safety
            .scan(self.spec.safety_class, text, &mut |check, kind| {
                if facts.findings.len() >= FINDINGS_MAX {
                    facts.overflow = true;
                    return;
                }
                facts.findings.push(Finding {
                    check,
                    kind: kind.to_owned(),
                    pointer: recordable(pointer),
                });
            });
    }

    /// Safety looks also at what is masked afterwards.
    fn scan_all(&mut self, value: &Value, pointer: &str, depth: usize) {
        if depth > VALUE_DEPTH_MAX {
            self.facts.overflow = true;
            return;
        }
        match value {
            Value::String(text) => self.scan(text, pointer),
            Value::Array(items) => items
                .iter()
                .for_each(|item| self.scan_all(item, pointer, depth + 1)),
            Value::Object(members) => {
                for (name, member) in members {
                    self.scan(name, pointer);
                    self.scan_all(member, pointer, depth + 1);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn collect_targets(&mut self, value: &Value, node: &Node<'_>, place: &Place<'_>) {
        let is_space = node.marked("x-space") || (place.depth == 1 && place.name == "space_id");
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
            self.target(
                |facts| &mut facts.commands,
                plain_name(program.unwrap_or_default()),
            );
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

/// What is recorded of a name that is not one. Nothing matches it.
pub(crate) const NOT_A_NAME: &str = "(not a name)";

/// Names go into receipts; a parameter that is no plain name could be anything, also a secret.
fn plain_name(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._:-/@+".contains(c);
    if !text.is_empty() && text.len() <= 128 && text.chars().all(plain) && redact_text(text).is_none() {
        text.to_owned()
    } else {
        NOT_A_NAME.to_owned()
    }
}

/// The host of a URL or of `host:port`. Whatever could be read in two ways is not a host.
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
    const WORDS: [&str; 7] = [
        "phone",
        "telephone",
        "cellphone",
        "mobile",
        "tel",
        "fax",
        "msisdn",
    ];
    words(name).iter().any(|word| WORDS.contains(&word.as_str()))
}

/// One step of a pointer. Pointers are recorded, and a name that the schema does not declare could be anything.
fn segment(node: &Node<'_>, name: &str) -> String {
    if node.declares(name) {
        name.replace('~', "~0").replace('/', "~1")
    } else {
        "*".to_owned()
    }
}

/// A place in parameters as it may be recorded, and the names that the schema declares there.
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

/// A pointer for the record, cut where nobody would read on.
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
