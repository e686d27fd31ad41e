//! Whether a definition can be saved, and if not, where it is wrong: each finding has a JSON pointer into the document.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use effectd_actors::Registry;
use effectd_actors::limits::DEFINITION_BYTES_MAX;
use effectd_actors::registry::schema::Schema;
use effectd_actors::services::sessions::with_space;
use effectd_contracts::limits::TIMEOUT_MS_MAX;
use effectd_contracts::{SpaceId, ToolId, json};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::actions::{self, AGENT_TASK};
use crate::definition::{self, Definition, Step, TriggerType};
use crate::templates;

/// The names that templates have without a step.
const RESERVED: [&str; 2] = ["run", "inputs"];
/// Words of the template language, which are no names there.
const WORDS: [&str; 15] = [
    "and", "else", "elif", "false", "False", "for", "if", "in", "is", "loop", "none", "None", "not", "or",
    "true",
];
/// The values that effectd knows, for defaults of inputs.
pub const TOKENS: [&str; 3] = ["$last_fired_at", "$creator", "$space_default"];

/// One thing that is wrong, or doubtful.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Where, as a JSON pointer into the definition; empty for the whole.
    pub pointer: String,
    pub message: String,
}

/// A definition that was looked at.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Checked {
    /// The definition, if its shape is right.
    pub definition: Option<Definition>,
    /// What must be corrected before it can be saved.
    pub errors: Vec<Finding>,
    /// What is worth a second look.
    pub warnings: Vec<Finding>,
}

static SHAPE: LazyLock<Schema> = LazyLock::new(|| Schema::built_in(definition::schema().as_value()));
static SCHEDULE: LazyLock<Schema> = LazyLock::new(|| {
    Schema::built_in(&serde_json::json!({
        "type": "object", "required": ["cron", "timezone"], "additionalProperties": false,
        "properties": {
            // Five fields: no finer than a minute.
            "cron": { "type": "string", "maxLength": 256, "pattern": "^[^ ]+( [^ ]+){4}$" },
            "timezone": { "type": "string", "format": "iana-timezone" },
        },
    }))
});
static WEBHOOK: LazyLock<Schema> = LazyLock::new(|| {
    Schema::built_in(&serde_json::json!({
        "type": "object", "additionalProperties": false,
        "properties": { "input_mapping": {
            "type": "object", "maxProperties": 64,
            "additionalProperties": { "type": "string", "maxLength": 1_024, "pattern": "^\\$" },
        } },
    }))
});
static EVENT: LazyLock<Schema> = LazyLock::new(|| {
    Schema::built_in(&serde_json::json!({
        "type": "object", "required": ["event_type"], "additionalProperties": false,
        "properties": {
            "event_type": { "type": "string", "minLength": 1, "maxLength": 256 },
            "filters": { "type": "object" },
        },
    }))
});

/// Checks a definition, as its author wrote it, with the tools that there are.
pub fn check(text: &[u8], tools: &Registry) -> Checked {
    let mut checked = Checked::default();
    let value = match json::parse_value(text, DEFINITION_BYTES_MAX) {
        Ok(value) => value,
        Err(error) => {
            checked.error("", error.to_string());
            return checked;
        }
    };
    checked.violations("", &SHAPE, &value);
    if !checked.errors.is_empty() {
        return checked;
    }
    // What fits the schema of a type can be read as one.
    match serde_json::from_value::<Definition>(value) {
        Ok(definition) => {
            checked.inputs(&definition);
            checked.triggers(&definition);
            checked.names(&definition);
            let mut names: BTreeSet<&str> = RESERVED.into();
            for (pointer, step) in definition.steps() {
                checked.step(&pointer, step, tools);
                checked.templates(&pointer, step, &names);
                names.extend(step.output_as.as_deref());
            }
            checked.definition = Some(definition);
        }
        Err(error) => checked.error("", error.to_string()),
    }
    checked
}

impl Checked {
    fn error(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        self.errors.push(Finding { pointer: pointer.into(), message: message.into() });
    }

    fn warn(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        self.warnings.push(Finding { pointer: pointer.into(), message: message.into() });
    }

    /// Adds what a schema says about the value at this pointer.
    fn violations(&mut self, at: &str, schema: &Schema, value: &Value) {
        for line in schema.violations(value) {
            let (place, message) = line.split_once(": ").unwrap_or(("", &line));
            let place = if place.starts_with("/") { place.trim_end_matches('/') } else { "" };
            self.error(format!("{at}{place}"), message);
        }
    }

    fn inputs(&mut self, definition: &Definition) {
        const AT: &str = "/inputs/schema";
        let schema = &definition.inputs.schema;
        if schema.is_empty() {
            return;
        }
        if schema.get("type").and_then(Value::as_str) != Some("object") {
            self.error(format!("{AT}/type"), "inputs are an object: write \"type\": \"object\"");
        }
        if let Err(error) = Schema::new(&Value::Object(schema.clone())) {
            self.error(AT, error);
        }
        let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        for (name, property) in properties {
            let Some(token) = property.get("default").and_then(token) else { continue };
            if !TOKENS.contains(&token) {
                let message = format!("{token} is none of {}", TOKENS.join(", "));
                self.error(format!("{AT}/properties/{}/default", escaped(name)), message);
            }
        }
    }

    fn triggers(&mut self, definition: &Definition) {
        for (index, trigger) in definition.triggers.iter().enumerate() {
            let schema = match trigger.kind {
                TriggerType::Schedule => &*SCHEDULE,
                TriggerType::Webhook => &*WEBHOOK,
                TriggerType::Event => &*EVENT,
            };
            let config = Value::Object(trigger.config.clone());
            self.violations(&format!("/triggers/{index}/config"), schema, &config);
        }
    }

    /// Refuses names that appear twice, or mean something else in templates.
    fn names(&mut self, definition: &Definition) {
        let (mut ids, mut outputs) = (BTreeSet::new(), BTreeSet::new());
        for (pointer, step) in definition.steps() {
            if !ids.insert(step.step_id.as_str()) {
                self.error(
                    format!("{pointer}/step_id"),
                    format!("another step is called {:?}", step.step_id),
                );
            }
            let Some(name) = step.output_as.as_deref() else { continue };
            let at = format!("{pointer}/output_as");
            if RESERVED.contains(&name) || WORDS.contains(&name) {
                self.error(at, format!("templates use the word {name:?} for something else"));
            } else if !outputs.insert(name) {
                self.error(at, format!("another step's result is called {name:?}"));
            }
        }
    }

    fn step(&mut self, pointer: &str, step: &Step, tools: &Registry) {
        let seconds_max = TIMEOUT_MS_MAX / 1_000;
        if step.action != AGENT_TASK && step.timeout_seconds.is_some_and(|seconds| seconds > seconds_max) {
            let message =
                format!("one action takes at most {seconds_max} seconds; only {AGENT_TASK} may take longer");
            self.error(format!("{pointer}/timeout_seconds"), message);
        }
        if step.action == AGENT_TASK && !step.config.contains_key("output_schema") {
            let message = "without an output_schema, later steps cannot rely on the result";
            self.warn(format!("{pointer}/config"), message);
        }
        let at = format!("{pointer}/config");
        if let Some(schema) = actions::config_schema(&step.action) {
            // Its texts are texts before and after they are rendered.
            self.violations(&at, schema, &Value::Object(step.config.clone()));
            return;
        }
        let found = ToolId::new(&*step.action).map_err(|error| error.to_string());
        match found.and_then(|id| tools.find(&id).cloned().map_err(|error| error.to_string())) {
            // What a template yields is known when it is rendered.
            Ok(tool) if !templates::has_template(&step.config) => {
                let config = with_space(&any_space(), tool.spec(), step.config.clone());
                if let Err(failure) = tool.check_params(&config) {
                    self.error(at, failure.message);
                }
            }
            Ok(_) => {}
            Err(error) => {
                let words: Vec<_> = actions::names().collect();
                let message = format!("{error} (actions that are no tools: {})", words.join(", "));
                self.error(format!("{pointer}/action"), message);
            }
        }
    }
}

impl Checked {
    /// Checks the templates of a step, which read `names`.
    fn templates(&mut self, pointer: &str, step: &Step, names: &BTreeSet<&str>) {
        if let Some(when) = &step.when {
            self.template(format!("{pointer}/when"), templates::check_condition(when), names);
        }
        let mut open = vec![(format!("{pointer}/config"), &step.config)];
        let mut texts = Vec::new();
        while let Some((at, members)) = open.pop() {
            let mut values: Vec<(String, &Value)> =
                members.iter().map(|(name, value)| (format!("{at}/{}", escaped(name)), value)).collect();
            while let Some((at, value)) = values.pop() {
                match value {
                    Value::String(text) if templates::is_template(text) => texts.push((at, text)),
                    Value::Array(items) => {
                        let items = items.iter().enumerate();
                        values.extend(items.map(|(index, item)| (format!("{at}/{index}"), item)));
                    }
                    Value::Object(members) => open.push((at, members)),
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
                }
            }
        }
        texts.sort();
        for (at, text) in texts {
            self.template(at, templates::check(text), names);
        }
    }

    fn template(&mut self, at: String, read: Result<BTreeSet<String>, String>, names: &BTreeSet<&str>) {
        match read {
            Ok(read) => {
                for unknown in read.iter().filter(|name| !names.contains(name.as_str())) {
                    let known: Vec<_> = names.iter().copied().collect();
                    let message = format!("{unknown:?} is not known here; known are {}", known.join(", "));
                    self.error(at.clone(), message);
                }
            }
            Err(why) => self.error(at, why),
        }
    }
}

/// A space as good as any: the one in which an automation acts is known when it is saved.
#[expect(clippy::expect_used, reason = "the name is a space's")]
fn any_space() -> SpaceId {
    SpaceId::new("shared:any").expect("a name")
}

/// A text that stands for a value which effectd knows.
fn token(value: &Value) -> Option<&str> {
    let text = value.as_str()?;
    let begins = text.strip_prefix('$')?.starts_with(|first: char| first.is_ascii_alphabetic());
    begins.then_some(text)
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests;
