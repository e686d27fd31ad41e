//! The annotations of one field in a tool's schema.

use std::collections::BTreeSet;

use serde_json::Value;

/// Most subschemas that are followed for one field. A schema with more alternatives needs the annotation on the field itself.
const ALTERNATIVES_MAX: usize = 32;

/// All subschemas that may describe one value: the schema itself, its references, and its alternatives.
#[derive(Clone)]
pub(crate) struct Node<'s> {
    root: &'s Value,
    schemas: Vec<&'s Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Personal {
    Ordinary,
    Required,
    Face,
}

impl<'s> Node<'s> {
    pub(crate) fn root(schema: &'s Value) -> Self {
        let mut node = Self { root: schema, schemas: Vec::new() };
        node.add(schema);
        node
    }

    pub(crate) fn member(&self, name: &str) -> Self {
        self.child(|schema| match schema.get("properties").and_then(|properties| properties.get(name)) {
            Some(property) => Some(property),
            None => schema.get("additionalProperties"),
        })
    }

    /// Whether the schema declares this member. Undeclared names come from the caller, and may be content.
    pub(crate) fn declares(&self, name: &str) -> bool {
        self.schemas
            .iter()
            .any(|schema| schema.get("properties").is_some_and(|members| members.get(name).is_some()))
    }

    /// All members that the schema declares, in order.
    pub(crate) fn names(&self) -> BTreeSet<&'s str> {
        let members = self.schemas.iter().filter_map(|schema| schema.get("properties"));
        members.filter_map(Value::as_object).flat_map(|members| members.keys().map(String::as_str)).collect()
    }

    pub(crate) fn item(&self, index: usize) -> Self {
        self.child(|schema| {
            let prefix = schema.get("prefixItems").and_then(|items| items.get(index));
            prefix.or_else(|| schema.get("items"))
        })
    }

    fn child(&self, step: impl Fn(&'s Value) -> Option<&'s Value>) -> Self {
        let mut node = Self { root: self.root, schemas: Vec::new() };
        for schema in &self.schemas {
            if let Some(next) = step(schema) {
                node.add(next);
            }
        }
        node
    }

    fn add(&mut self, schema: &'s Value) {
        let seen = self.schemas.iter().any(|known| std::ptr::eq(*known, schema));
        if seen || self.schemas.len() >= ALTERNATIVES_MAX || !schema.is_object() {
            return;
        }
        self.schemas.push(schema);
        let reference = schema.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix('#'));
        if let Some(target) = reference.and_then(|pointer| self.root.pointer(pointer)) {
            self.add(target);
        }
        for word in ["allOf", "anyOf", "oneOf"] {
            for option in schema.get(word).and_then(Value::as_array).into_iter().flatten() {
                self.add(option);
            }
        }
        for word in ["if", "then", "else"] {
            if let Some(option) = schema.get(word) {
                self.add(option);
            }
        }
    }

    pub(crate) fn marked(&self, mark: &str) -> bool {
        self.schemas.iter().any(|schema| schema.get(mark) == Some(&Value::Bool(true)))
    }

    pub(crate) fn personal(&self) -> Personal {
        let says = |word: &str| {
            self.schemas.iter().any(|schema| schema.get("x-pii").and_then(Value::as_str) == Some(word))
        };
        if says("face") {
            Personal::Face
        } else if says("required") {
            Personal::Required
        } else {
            Personal::Ordinary
        }
    }
}
