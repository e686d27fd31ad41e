//! The names that templates read: `run`, `inputs`, and the results of earlier steps.

use effectd_contracts::{AutomationId, Principal, SpaceId, Timestamp};
use serde_json::{Map, Value, json};

/// What templates know about their run, beside a failure.
#[derive(Debug, Clone)]
pub struct RunFacts {
    pub id: String,
    pub started_at: Timestamp,
    pub automation_id: AutomationId,
    pub automation_name: String,
    pub automation_version: u64,
    pub trigger_type: String,
    /// `None` for a run that somebody asked for.
    pub trigger_id: Option<String>,
    pub search_space_id: SpaceId,
    pub creator_id: Principal,
    /// From 1.
    pub attempt: u32,
}

impl RunFacts {
    /// The context of a step; after a failure, also which step failed and why.
    pub(crate) fn context(
        &self,
        inputs: &Map<String, Value>,
        outputs: &Map<String, Value>,
        failure: Option<(&str, Value)>,
    ) -> Map<String, Value> {
        let mut run = json!({
            "id": self.id,
            "started_at": self.started_at,
            "automation_id": self.automation_id,
            "automation_name": self.automation_name,
            "automation_version": self.automation_version,
            "trigger_type": self.trigger_type,
            "trigger_id": self.trigger_id,
            "search_space_id": self.search_space_id,
            "creator_id": self.creator_id,
            "attempt": self.attempt,
        });
        if let Some((step, error)) = failure {
            (run["failed_step_id"], run["error"]) = (step.into(), error);
        }
        let mut context = outputs.clone();
        context.extend([("run".to_owned(), run), ("inputs".to_owned(), inputs.clone().into())]);
        context
    }
}
