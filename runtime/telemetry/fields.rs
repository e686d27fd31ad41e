//! The fields of an event or a span, as JSON values in the order in which they were recorded.

use std::fmt;

use serde_json::Value;
use tracing::field::{Field, Visit};

#[derive(Debug, Default)]
pub(super) struct Fields(pub(super) Vec<(String, Value)>);

impl Fields {
    /// Sets a field; a later value replaces an earlier one.
    pub(super) fn set(&mut self, name: &str, value: Value) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    /// Sets a field that has no value yet.
    pub(super) fn set_default(&mut self, name: &str, value: Value) {
        if !self.0.iter().any(|(known, _)| known == name) {
            self.0.push((name.to_owned(), value));
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field.name(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field.name(), value.into());
    }

    // A value recorded with `%` comes here, too.
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field.name(), format!("{value:?}").into());
    }
}

/// As one JSON object.
impl fmt::Display for Fields {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, value)) in self.0.iter().enumerate() {
            write!(to, "{}{}:{value}", if at == 0 { "{" } else { "," }, Value::from(name.as_str()))?;
        }
        write!(to, "}}")
    }
}
