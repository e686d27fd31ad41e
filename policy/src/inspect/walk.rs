//! One pass over the parameters: safety checks, personal data, and what the call reaches for.

use std::collections::BTreeSet;

use effectd_contracts::{Digest, SafetyClass};
use serde_json::{Map, Value};

use super::annotations::{Node, Personal};
use super::safety::Safety;
use super::{Inspection, Removal, RemovalKind};
use crate::facts::{Finding, InspectionFacts, RedactionCounts};
use crate::limits::{FINDINGS_MAX, REDACTIONS_RECORDED_MAX, TARGETS_MAX, VALUE_DEPTH_MAX};
use crate::redact::personal::{FACE_PLACEHOLDER, PHONE_PLACEHOLDER, redact_text};
use crate::redact::storage::DEPTH_PLACEHOLDER;

/// The compiled rules about content.
#[derive(Debug)]
pub(crate) struct ContentRules {
    pub(crate) safety: Safety,
    /// In lower case.
    pub(crate) face_fields: BTreeSet<String>,
    /// Of everything above, so that history knows whether it was looked at with the same eyes.
    pub(crate) digest: Digest,
}

/// Looks at parameters with the rules at hand.
pub(crate) fn inspect(
    params: &Map<String, Value>,
    schema: &Value,
    class: SafetyClass,
    rules: &ContentRules,
) -> Inspection {
    let mut walk = Walk {
        rules,
        class,
        facts: empty(rules.digest),
        removed: Vec::new(),
    };
    let mut value = Value::Object(params.clone());
    walk.visit(
        &mut value,
        &Node::root(schema),
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
    Inspection {
        facts: walk.facts,
        params,
        removed: walk.removed,
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
    class: SafetyClass,
    facts: InspectionFacts,
    removed: Vec<Removal>,
}

struct Place<'a> {
    pointer: String,
    name: &'a str,
    depth: usize,
}

impl Walk<'_> {
    fn visit(&mut self, value: &mut Value, node: &Node<'_>, place: Place<'_>, required_above: bool) {
        if place.depth > VALUE_DEPTH_MAX {
            *value = Value::String(DEPTH_PLACEHOLDER.to_owned());
            self.facts.overflow = true;
            self.remember(&place.pointer, RemovalKind::Depth);
            return;
        }
        self.collect_targets(value, node, &place);
        let personal = node.personal();
        if personal == Personal::Face || self.rules.face_fields.contains(&place.name.to_lowercase()) {
            self.scan_all(value, &place.pointer, place.depth);
            self.mask_face(value, &place.pointer);
            return;
        }
        let required = required_above || personal == Personal::Required;
        match value {
            Value::String(text) => {
                self.scan(text, &place.pointer);
                self.redact(text, &place.pointer, required);
            }
            Value::Number(number) if is_phone_name(place.name) && number.to_string().len() >= 7 => {
                if required {
                    self.require(&place.pointer);
                } else {
                    *value = Value::String(PHONE_PLACEHOLDER.to_owned());
                    self.facts.redacted.phones += 1;
                    self.remember(&place.pointer, RemovalKind::Phone);
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
            .filter(|name| redact_text(name).is_some())
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
        let Some(redacted) = redact_text(text) else { return };
        if required {
            self.require(pointer);
            return;
        }
        *text = redacted.text;
        self.facts.redacted.emails = self.facts.redacted.emails.saturating_add(redacted.emails);
        self.facts.redacted.phones = self.facts.redacted.phones.saturating_add(redacted.phones);
        if redacted.emails > 0 {
            self.remember(pointer, RemovalKind::Email);
        }
        if redacted.phones > 0 {
            self.remember(pointer, RemovalKind::Phone);
        }
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
        self.facts.redacted.faces = self.facts.redacted.faces.saturating_add(1);
        self.remember(pointer, RemovalKind::Face);
    }

    fn require(&mut self, pointer: &str) {
        let pointer = recordable(pointer);
        if self.facts.personal_required.len() >= TARGETS_MAX {
            self.facts.overflow = true;
        } else if !self.facts.personal_required.contains(&pointer) {
            self.facts.personal_required.push(pointer);
        }
    }

    fn remember(&mut self, pointer: &str, kind: RemovalKind) {
        if self.removed.len() < REDACTIONS_RECORDED_MAX {
            self.removed.push(Removal {
                pointer: recordable(pointer),
                kind,
            });
        }
    }

    fn scan(&mut self, text: &str, pointer: &str) {
        let facts = &mut self.facts;
        self.rules.safety.scan(self.class, text, &mut |check, kind| {
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
    let name = name.to_lowercase();
    ["phone", "mobile", "tel", "fax", "msisdn"]
        .iter()
        .any(|word| name.starts_with(word) || name.ends_with(word))
}

/// One step of a pointer. Pointers are recorded, and a name that the schema does not declare could be anything.
fn segment(node: &Node<'_>, name: &str) -> String {
    if node.declares(name) {
        name.replace('~', "~0").replace('/', "~1")
    } else {
        "*".to_owned()
    }
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
