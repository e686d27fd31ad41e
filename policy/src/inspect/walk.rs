//! One pass over the parameters: safety checks, personal data, and what the call reaches.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use effectd_contracts::tool::is_path_name;
use effectd_contracts::{Digest, Redaction, RedactionKind, SideEffect, SpaceId, ToolSpec, canonical};
use serde_json::{Map, Value};

use super::Inspection;
use super::annotations::{Node, Personal};
use super::public;
use super::safety::{Safety, has_secret};
use crate::document::{Document, Treatment};
use crate::error::PolicyError;
use crate::facts::{Finding, InspectionFacts, RedactionCounts};
use crate::glob::Glob;
use crate::limits::{FINDINGS_MAX, REDACTIONS_RECORDED_MAX, TARGETS_MAX, VALUE_DEPTH_MAX};
use crate::redact::personal::{
    FACE_PLACEHOLDER, PHONE_DIGITS_MIN, PHONE_PLACEHOLDER, insert_apart, is_phone_name, redact_path,
    redact_text,
};
use crate::redact::storage::DEPTH_PLACEHOLDER;
use crate::source::Lines;

#[derive(Debug)]
pub(crate) struct ContentRules {
    pub(crate) safety: Safety,
    /// In lower case.
    pub(crate) face_fields: BTreeSet<String>,
    redaction: Vec<RedactionRule>,
    /// The digest of the rules, so that a replay knows whether the inspection used the same ones.
    pub(crate) digest: Digest,
}

#[derive(Debug)]
struct RedactionRule {
    space: Glob,
    tool: Glob,
    field: Glob,
    then: Treatment,
}

impl ContentRules {
    pub(crate) fn compile(document: &Document, lines: &Lines<'_>) -> Result<Self, PolicyError> {
        let safety = Safety::compile(&document.safety).map_err(|error| {
            lines.invalid(&["safety", error.list, &error.index.to_string()], error.message)
        })?;
        let mut redaction = Vec::new();
        for (index, rule) in document.redaction.rules.iter().enumerate() {
            let invalid = |name, message| {
                Err(lines.invalid(&["redaction", "rules", &index.to_string(), name], message))
            };
            let [space, tool, field] = [&rule.space, &rule.tool, &rule.field].map(Glob::new);
            if space.is_exact() && !document.spaces.contains_key(space.as_str()) {
                return invalid("space", format!("unknown space {:?}", rule.space));
            }
            if !rule.field.starts_with(['/', '*']) {
                let message = format!("{:?} is no field; write a JSON pointer such as /text", rule.field);
                return invalid("field", message);
            }
            redaction.push(RedactionRule { space, tool, field, then: rule.then });
        }
        let face_fields = document.redaction.face_fields.iter();
        let commands: Vec<_> = document.commands.iter().map(|(name, rule)| (name, &rule.argv)).collect();
        let spaces = document.spaces.iter().map(|(name, rule)| (name, &rule.protected));
        let protected: Vec<_> = spaces.filter(|(_, protected)| !protected.is_empty()).collect();
        // Plain data with text keys, which serde_json always writes.
        let rules = (&document.safety, &document.redaction, commands, protected);
        let value = serde_json::to_value(rules).unwrap_or_default();
        Ok(Self {
            safety,
            face_fields: face_fields.map(|name| name.to_lowercase()).collect(),
            redaction,
            digest: canonical::digest(&value),
        })
    }
}

pub(crate) fn inspect(
    params: &Map<String, Value>,
    spec: &ToolSpec,
    space: &SpaceId,
    rules: &ContentRules,
) -> Inspection {
    let treatments = |space: &str| {
        let applies =
            |rule: &&RedactionRule| rule.space.matches(space) && rule.tool.matches(spec.tool_id.as_str());
        rules.redaction.iter().filter(applies).map(|rule| (&rule.field, rule.then)).collect()
    };
    let own: Treatments<'_> = treatments(space.as_str());
    let seen = walk(params, spec, rules, Reader::Tool(vec![own.clone()]));
    let others = seen.facts.spaces.iter().filter(|other| *other != space.as_str());
    let others: Vec<Treatments<'_>> = others.map(|other| treatments(other)).collect();
    if others.is_empty() {
        return seen;
    }
    walk(params, spec, rules, Reader::Tool([vec![own], others].concat()))
}

/// Redacts every field, also those that the tool gets unchanged.
pub(crate) fn inspect_for_people(
    params: &Map<String, Value>,
    spec: &ToolSpec,
    rules: &ContentRules,
) -> Inspection {
    walk(params, spec, rules, Reader::Person)
}

fn walk(
    params: &Map<String, Value>,
    spec: &ToolSpec,
    rules: &ContentRules,
    reader: Reader<'_>,
) -> Inspection {
    let mut walk = Walk {
        rules,
        spec,
        reader,
        facts: InspectionFacts {
            rules: rules.digest,
            findings: Vec::new(),
            redacted: RedactionCounts::default(),
            personal_required: Vec::new(),
            personal_refused: Vec::new(),
            personal_passed: Vec::new(),
            spaces: BTreeSet::new(),
            hosts: BTreeSet::new(),
            commands: BTreeSet::new(),
            named_command: None,
            overflow: false,
            protected: Vec::new(),
            params: BTreeMap::new(),
            params_hidden: BTreeSet::new(),
            text_bytes: 0,
        },
        redactions: Vec::new(),
        passed: Vec::new(),
    };
    let mut value = Value::Object(params.clone());
    let top = Field { pointer: String::new(), name: "", depth: 0 };
    walk.visit(&mut value, &Node::root(&spec.params_schema), top, Use::Content);
    let params = match value {
        Value::Object(params) => params,
        // Unreachable: the walk leaves the top level an object.
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    };
    let Walk { mut facts, redactions, passed, .. } = walk;
    for Redaction { kind, count, .. } in &redactions {
        let counts = &mut facts.redacted;
        let total = match kind {
            RedactionKind::Email => &mut counts.emails,
            RedactionKind::Phone => &mut counts.phones,
            RedactionKind::Face => &mut counts.faces,
            // Secrets in parameters are quarantined, never removed.
            RedactionKind::Secret => continue,
        };
        *total = total.saturating_add(*count);
    }
    public::note(&mut facts, &params, spec, &passed);
    Inspection { facts, params, redactions, passed }
}

struct Walk<'r> {
    rules: &'r ContentRules,
    spec: &'r ToolSpec,
    reader: Reader<'r>,
    facts: InspectionFacts,
    redactions: Vec<Redaction>,
    passed: Vec<Redaction>,
}

/// The treatments of fields in one space. The first that matches counts.
type Treatments<'r> = Vec<(&'r Glob, Treatment)>;

/// Who reads the parameters.
enum Reader<'r> {
    /// The tool, with the treatments in each space that the call names. The strictest counts.
    Tool(Vec<Treatments<'r>>),
    Person,
}

/// What a tool uses a field for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Content,
    /// It names what the tool works on, or must match what is there: after redaction it would name something else.
    Name,
    /// The tool needs its personal data.
    Required,
}

/// What happens to personal data in one field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handling {
    Redact,
    Pass,
    /// It stays unchanged, and the call needs a capability and a consent.
    Require,
    Refuse,
}

/// A field of the parameters.
struct Field<'a> {
    pointer: String,
    name: &'a str,
    depth: usize,
}

impl Walk<'_> {
    /// Inspects and redacts a value with everything in it.
    fn visit(&mut self, value: &mut Value, node: &Node<'_>, field: Field<'_>, above: Use) {
        if field.depth > VALUE_DEPTH_MAX {
            *value = Value::String(DEPTH_PLACEHOLDER.to_owned());
            self.facts.overflow = true;
            return;
        }
        self.collect_targets(value, node, &field);
        let personal = node.personal();
        let used = above.max(self.use_of(node, &field, personal));
        let handling = self.handling(used, &field.pointer);
        if personal == Personal::Face || self.rules.face_fields.contains(&field.name.to_lowercase()) {
            self.scan_all(value, &field.pointer, field.depth);
            if handling == Handling::Redact {
                self.mask_face(value, &field.pointer);
            } else if !value.is_null() {
                self.note(handling, &field.pointer, RedactionKind::Face, 1);
            }
            return;
        }
        match value {
            Value::String(text) => {
                self.facts.text_bytes += text.len() as u64;
                self.scan(text, &field.pointer);
                // `reach` refuses an invalid host, with a better reason than the redaction gate.
                let is_refused = node.marked("x-host") && self.uses_network() && host_of(text) == NOT_A_NAME;
                if !is_refused {
                    // A public name is a path, a pattern of paths or an id.
                    let is_path =
                        is_path_name(field.name) || (node.marked("x-resource") && node.marked("x-public"));
                    self.redact(text, &field.pointer, is_path, handling);
                }
            }
            Value::Number(number)
                if is_phone_name(field.name) && number.to_string().len() >= PHONE_DIGITS_MIN =>
            {
                if handling == Handling::Redact {
                    *value = Value::String(PHONE_PLACEHOLDER.to_owned());
                }
                self.note(handling, &field.pointer, RedactionKind::Phone, 1);
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    let pointer = format!("{}/{index}", field.pointer);
                    let inner = Field { pointer, name: field.name, depth: field.depth + 1 };
                    self.visit(item, &node.item(index), inner, used);
                }
            }
            Value::Object(members) => self.visit_members(members, node, &field, used),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn visit_members(
        &mut self,
        members: &mut Map<String, Value>,
        node: &Node<'_>,
        field: &Field<'_>,
        used: Use,
    ) {
        for (name, member) in members.iter_mut() {
            let pointer = format!("{}/{}", field.pointer, segment(node, name));
            self.scan(name, &pointer);
            let inner = Field { pointer, name, depth: field.depth + 1 };
            self.visit(member, &node.member(name), inner, used);
        }
        let personal_names: Vec<String> =
            members.keys().filter(|name| redact_text(name).is_some()).cloned().collect();
        for name in personal_names {
            let pointer = format!("{}/{}", field.pointer, segment(node, &name));
            let mut text = name.clone();
            let handling = self.handling(used, &pointer);
            self.redact(&mut text, &pointer, false, handling);
            if text == name {
                continue;
            }
            let Some(member) = members.remove(&name) else {
                continue;
            };
            insert_apart(members, text, member);
        }
    }

    fn handling(&self, used: Use, pointer: &str) -> Handling {
        let Reader::Tool(treatments) = &self.reader else {
            return Handling::Redact;
        };
        let in_space = |treatments: &Treatments<'_>| {
            let first = treatments.iter().find(|(field, _)| field.matches(pointer));
            first.map_or(Treatment::Redact, |(_, then)| *then)
        };
        let strictness = |then: &Treatment| match then {
            Treatment::Pass => 0,
            Treatment::Redact => 1,
            Treatment::Refuse => 2,
        };
        let strictest = treatments.iter().map(in_space).max_by_key(strictness);
        match (used, strictest.unwrap_or(Treatment::Redact)) {
            (Use::Required, Treatment::Redact | Treatment::Pass) => Handling::Require,
            (Use::Content | Use::Name, _) if self.uses_network() => Handling::Refuse,
            (_, Treatment::Refuse) => Handling::Refuse,
            (Use::Content | Use::Name, Treatment::Pass) => Handling::Pass,
            (Use::Name, Treatment::Redact) => Handling::Require,
            (Use::Content, Treatment::Redact) => Handling::Redact,
        }
    }

    fn uses_network(&self) -> bool {
        self.spec.side_effects.contains(&SideEffect::NetworkCall)
    }

    fn redact(&mut self, text: &mut String, pointer: &str, is_path: bool, handling: Handling) {
        let found = if is_path { redact_path(text) } else { redact_text(text) };
        let Some(found) = found else { return };
        if handling == Handling::Redact {
            *text = found.text;
        }
        self.note(handling, pointer, RedactionKind::Email, found.emails);
        self.note(handling, pointer, RedactionKind::Phone, found.phones);
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
        self.note(Handling::Redact, pointer, RedactionKind::Face, 1);
    }

    /// Notes personal data of a field, by what happens to it.
    fn note(&mut self, handling: Handling, pointer: &str, kind: RedactionKind, count: u32) {
        if count == 0 {
            return;
        }
        let facts = &mut self.facts;
        let (entries, fields) = match handling {
            Handling::Redact => (Some(&mut self.redactions), None),
            Handling::Pass => (Some(&mut self.passed), Some(&mut facts.personal_passed)),
            Handling::Require => (Some(&mut self.passed), Some(&mut facts.personal_required)),
            Handling::Refuse => (None, Some(&mut facts.personal_refused)),
        };
        let pointer = recordable(pointer);
        if let Some(fields) = fields.filter(|fields| !fields.contains(&pointer)) {
            if fields.len() < TARGETS_MAX {
                fields.push(pointer.clone());
            } else if handling != Handling::Pass {
                facts.overflow = true;
            }
        }
        if let Some(entries) = entries {
            record(entries, pointer, kind, count);
        }
    }

    fn use_of(&self, node: &Node<'_>, field: &Field<'_>, personal: Personal) -> Use {
        let marks = ["x-resource", "x-space", "x-host", "x-command"];
        let is_name = is_path_name(field.name)
            || (field.depth == 1 && self.spec.names_resource(field.name))
            || marks.iter().any(|mark| node.marked(mark));
        match personal {
            Personal::Required => Use::Required,
            Personal::Ordinary | Personal::Face if is_name => Use::Name,
            Personal::Ordinary | Personal::Face => Use::Content,
        }
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
            Value::String(text) => {
                self.facts.text_bytes += text.len() as u64;
                self.scan(text, pointer);
            }
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

/// Adds to a list of personal data. Beyond `REDACTIONS_RECORDED_MAX` entries, it counts under the empty pointer.
pub(super) fn record(entries: &mut Vec<Redaction>, mut field: String, kind: RedactionKind, count: u32) {
    let is_same = |field: &str, known: &Redaction| known.field == field && known.kind == kind;
    if entries.len() >= REDACTIONS_RECORDED_MAX && !entries.iter().any(|known| is_same(&field, known)) {
        field.clear();
    }
    match entries.iter_mut().find(|known| is_same(&field, known)) {
        Some(known) => known.count = known.count.saturating_add(count),
        None => entries.push(Redaction { field, kind, count }),
    }
}

/// Stands for text that is not a name. Of all patterns, only those such as `*` match it.
pub(crate) const NOT_A_NAME: &str = "(not a name)";

/// The name as a receipt may hold it; [`NOT_A_NAME`] for any other text, which could be a secret.
pub(crate) fn plain_name(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._:-/@+".contains(c);
    let is_name = !text.is_empty() && text.len() <= 128 && text.chars().all(plain);
    if is_name && redact_text(text).is_none() && !has_secret(text) {
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
    // Before the case is lost: secrets have one.
    plain_name(host.trim_end_matches('.')).to_lowercase()
}

/// Whether a text is a host as the facts have it: in small letters, without scheme, port, path and last dot.
pub(crate) fn is_host(text: &str) -> bool {
    host_of(text) == text || text.parse::<Ipv6Addr>().is_ok()
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
        assert_eq!(plain_name(concat!("ghp", "_0123456789abcdefghijABCDEFGHIJ012345")), NOT_A_NAME);
        assert_eq!(host_of(concat!("https://AKIA", "ABCDEFGHIJKLMNOP.example")), NOT_A_NAME);
    }
}
