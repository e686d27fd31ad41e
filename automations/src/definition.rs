//! The document that defines an automation, in version 1.0. Its schema is published as `docs/schemas/automation.json`.

use effectd_contracts::limits::RETRIES_MAX;
use schemars::{JsonSchema, Schema, schema_for};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::limits::{
    BUDGET_USD_MAX, FAILURE_STEPS_MAX, GOAL_CHARS_MAX, NAME_CHARS_MAX, RUN_SECONDS_DEFAULT, RUN_SECONDS_MAX,
    STEP_SECONDS_MAX, STEPS_MAX, TAG_CHARS_MAX, TAGS_MAX, TRIGGERS_MAX,
};

/// A step's id is part of the ids of its actions.
const STEP_ID: &str = "^[A-Za-z0-9_-]{1,64}$";
/// A name in templates. One that begins with an underscore cannot be read there.
const NAME: &str = "^[A-Za-z][A-Za-z0-9_]{0,63}$";

/// An automation: what it is for, when it runs, and its plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// The version of this format.
    pub schema_version: SchemaVersion,
    /// Its name, for people.
    #[schemars(length(min = 1, max = NAME_CHARS_MAX))]
    pub name: String,
    /// What it is for, for people.
    #[serde(default)]
    #[schemars(length(max = GOAL_CHARS_MAX))]
    pub goal: String,
    /// What a run needs to know.
    #[serde(default)]
    pub inputs: Inputs,
    /// When it runs. Without one, it runs when somebody asks for it.
    #[serde(default)]
    #[schemars(length(max = TRIGGERS_MAX))]
    pub triggers: Vec<Trigger>,
    /// The steps, one after the other.
    #[schemars(length(min = 1, max = STEPS_MAX))]
    pub plan: Vec<Step>,
    /// How a run is carried out.
    #[serde(default)]
    pub execution: Execution,
    /// What people note about it.
    #[serde(default)]
    pub metadata: Metadata,
}

/// The version of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SchemaVersion {
    /// The only one.
    #[serde(rename = "1.0")]
    V1,
}

/// What a run needs to know.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Inputs {
    /// A JSON Schema (2020-12) of an object. A `default` of its properties may be `$last_fired_at`, `$creator` or `$space_default`.
    #[serde(default)]
    pub schema: Map<String, Value>,
}

/// An occasion on which the automation runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trigger {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: TriggerType,
    /// What the type needs to know.
    #[serde(default)]
    pub config: Map<String, Value>,
}

/// The types of triggers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TriggerType {
    /// At times: `{"cron": "0 9 * * 1-5", "timezone": "Africa/Kigali"}`.
    Schedule,
    /// When a program asks: `{"input_mapping": {"since": "$.from"}}`.
    Webhook,
    /// When something has happened: `{"event_type": "drive.file_added"}`.
    Event,
}

/// A step of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its id, unique in the definition.
    #[schemars(regex(pattern = STEP_ID))]
    pub step_id: String,
    /// A tool, such as `files.write_text`, or an action of automations, such as `notification`.
    #[schemars(length(min = 1, max = 256))]
    pub action: String,
    /// A template; the step is left out if it says `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// The parameters of the action. Texts in them are templates.
    #[serde(default)]
    pub config: Map<String, Value>,
    /// The name by which later steps read the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = NAME))]
    pub output_as: Option<String>,
    /// How often a failed step is repeated; left out, as `execution` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = RETRIES_MAX))]
    pub max_retries: Option<u32>,
    /// The time of one attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = STEP_SECONDS_MAX))]
    pub timeout_seconds: Option<u64>,
}

/// How a run is carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Execution {
    /// The time of a run, without the time that people take to decide.
    #[schemars(range(min = 1, max = RUN_SECONDS_MAX))]
    pub timeout_seconds: u64,
    /// How often a failed step is repeated.
    #[schemars(range(max = RETRIES_MAX))]
    pub max_retries: u32,
    /// The pause before a step is repeated.
    pub retry_backoff: Backoff,
    /// What happens when it should run while it still runs.
    pub concurrency: Concurrency,
    /// What a run may cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = BUDGET_USD_MAX))]
    pub budget_cap_usd: Option<f64>,
    /// Steps after a failure of the plan.
    #[schemars(length(max = FAILURE_STEPS_MAX))]
    pub on_failure: Vec<Step>,
}

impl Default for Execution {
    fn default() -> Self {
        Self {
            timeout_seconds: RUN_SECONDS_DEFAULT,
            max_retries: 0,
            retry_backoff: Backoff::None,
            concurrency: Concurrency::Queue,
            budget_cap_usd: None,
            on_failure: Vec::new(),
        }
    }
}

/// The pause before a step is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Backoff {
    /// None.
    None,
    /// Longer by the same time, each time.
    Linear,
    /// Twice as long, each time.
    Exponential,
}

/// What happens when an automation should run while it still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Concurrency {
    /// Nothing.
    DropIfRunning,
    /// It runs afterwards.
    Queue,
    /// It runs beside it.
    AllowParallel,
}

/// What people note about an automation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Metadata {
    /// Words to search for.
    #[schemars(length(max = TAGS_MAX), inner(length(min = 1, max = TAG_CHARS_MAX)))]
    pub tags: Vec<String>,
    /// Whether a model wrote it from a person's words.
    pub created_from_nl: bool,
}

/// The published schema.
pub fn schema() -> Schema {
    schema_for!(Definition)
}

impl Definition {
    /// All steps with their JSON pointers: the plan, then those after a failure.
    pub fn steps(&self) -> impl Iterator<Item = (String, &Step)> {
        let plan = self.plan.iter().enumerate().map(|(index, step)| (format!("/plan/{index}"), step));
        let after = self.execution.on_failure.iter().enumerate();
        plan.chain(after.map(|(index, step)| (format!("/execution/on_failure/{index}"), step)))
    }
}
