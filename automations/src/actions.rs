//! The actions of steps that are no tools, with the schemas of their configurations.

use std::sync::LazyLock;

use effectd_actors::registry::schema::Schema;
use serde_json::{Value, json};

/// The name of the action in which a model works with tools.
pub(crate) const AGENT_TASK: &str = "agent_task";

fn configs() -> [(&'static str, Value); 5] {
    let text = || json!({ "type": "string", "minLength": 1 });
    let object = |required: &[&str], properties: Value| json!({ "type": "object", "required": required, "properties": properties, "additionalProperties": false });
    [
        (
            AGENT_TASK,
            object(
                &["prompt", "tools"],
                json!({
                    "prompt": text(),
                    "tools": { "type": "array", "items": text(), "maxItems": 64 },
                    "model": text(),
                    "output_schema": { "type": "object" },
                }),
            ),
        ),
        (
            "linear_create_issue",
            object(
                &["team_id", "title_template"],
                json!({ "team_id": text(), "title_template": text(), "description_template": text() }),
            ),
        ),
        (
            "notification",
            object(&["message_template"], json!({ "title_template": text(), "message_template": text() })),
        ),
        (
            "slack_post",
            object(
                &["channel_id", "message_template"],
                json!({ "channel_id": text(), "message_template": text() }),
            ),
        ),
        ("transform_data", object(&["output"], json!({ "output": true }))),
    ]
}

static CONFIGS: LazyLock<Vec<(&'static str, Schema)>> =
    LazyLock::new(|| configs().into_iter().map(|(name, schema)| (name, Schema::built_in(&schema))).collect());

/// The schema of an action's configuration; `None` if it is none of these.
pub(crate) fn config_schema(action: &str) -> Option<&'static Schema> {
    CONFIGS.iter().find(|(name, _)| *name == action).map(|(_, schema)| schema)
}

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    CONFIGS.iter().map(|(name, _)| *name)
}
