//! Automations in JSON.

use effectd_automations::templates::RenderedStep;
use effectd_automations::{Checked, Definition, Finding};
use effectd_contracts::Automation;
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// An automation.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AutomationView {
    pub automation_id: String,
    pub org: String,
    /// The space in which it acts.
    pub space_id: String,
    /// Who saved it first: it acts as this person.
    pub created_by: String,
    /// The name in its definition; left out if the definition cannot be read.
    pub name: Option<String>,
    /// The goal in its definition.
    pub description: Option<String>,
    pub status: String,
    /// The number of its definition, from 1.
    pub version: u64,
    pub created_at: String,
    pub updated_at: String,
}

impl AutomationView {
    pub(crate) fn of(known: Automation, definition: Option<Definition>) -> Self {
        let (name, description) = definition.map(|definition| (definition.name, definition.goal)).unzip();
        Self {
            automation_id: known.automation_id.into(),
            org: known.org.into(),
            space_id: known.space_id.into(),
            created_by: known.created_by.into(),
            name,
            description,
            status: known.status.as_str().to_owned(),
            version: known.version,
            created_at: known.created_at.to_string(),
            updated_at: known.updated_at.to_string(),
        }
    }
}

/// A page of automations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AutomationList {
    /// Oldest first.
    pub automations: Vec<AutomationView>,
    /// The `after` of the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What a check of a definition found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckedView {
    /// Whether it can be saved.
    pub valid: bool,
    /// What must be corrected.
    pub errors: Vec<FindingView>,
    /// What is worth a second look.
    pub warnings: Vec<FindingView>,
}

/// One thing that is wrong, or doubtful.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FindingView {
    /// Where, as a JSON pointer into the definition; empty for the whole.
    pub pointer: String,
    pub message: String,
}

impl From<Checked> for CheckedView {
    fn from(checked: Checked) -> Self {
        let views = |all: Vec<Finding>| {
            all.into_iter().map(|Finding { pointer, message }| FindingView { pointer, message }).collect()
        };
        Self {
            valid: checked.errors.is_empty(),
            errors: views(checked.errors),
            warnings: views(checked.warnings),
        }
    }
}

/// An object: by itself, a map would also be read from null, as an empty one.
fn object<'de, D: Deserializer<'de>>(from: D) -> Result<Map<String, Value>, D::Error> {
    match Value::deserialize(from)? {
        Value::Object(members) => Ok(members),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(Error::custom("expected an object"))
        }
    }
}

/// A definition to render.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenderBody {
    /// The definition.
    pub definition: Value,
    /// The inputs of the run; those left out have their defaults.
    #[serde(default, deserialize_with = "object")]
    pub inputs: Map<String, Value>,
    /// The results of steps, by the names that `output_as` gives them.
    #[serde(default, deserialize_with = "object")]
    pub outputs: Map<String, Value>,
    /// The space in which it acts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space_id: Option<String>,
}

/// A rendered definition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RenderView {
    /// The plan, then the steps after a failure.
    pub steps: Vec<RenderedView>,
}

/// A rendered step.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RenderedView {
    pub step_id: String,
    /// `rendered`, `skipped` if its condition is false, or `failed`.
    pub state: String,
    /// The configuration.
    pub config: Option<Map<String, Value>>,
    /// The template that failed, as a JSON pointer into the step.
    pub pointer: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
}

impl RenderedView {
    pub(crate) fn of((step_id, step): (String, RenderedStep)) -> Self {
        let (state, config, pointer, error) = match step {
            RenderedStep::Config(config) => ("rendered", Some(config), None, None),
            RenderedStep::Skipped => ("skipped", None, None, None),
            RenderedStep::Failed { pointer, message } => ("failed", None, Some(pointer), Some(message)),
        };
        Self { step_id, state: state.to_owned(), config, pointer, error }
    }
}
