//! The daemon's health in JSON.

use effectd_contracts::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A job that the daemon does by itself.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    /// `backup` or `check`.
    pub job: String,
    /// When it was last done, or failed.
    #[schema(value_type = Option<String>)]
    pub last_at: Option<Timestamp>,
    /// Why it failed then; none if it was done.
    pub error: Option<String>,
    /// When it was last done.
    #[schema(value_type = Option<String>)]
    pub done_at: Option<Timestamp>,
    /// When it is due.
    #[schema(value_type = String)]
    pub next_at: Timestamp,
}

/// The daemon's health.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
    pub version: String,
    /// The version of the action API, which plans and packages follow.
    #[serde(default)]
    pub action_api: String,
    /// Accepted decisions that have not ended.
    pub backlog: u64,
    /// An operator has paused effects: every action is a dry run.
    #[serde(default)]
    pub paused: bool,
    /// When the pause ends by itself; left out if an operator has to end it.
    #[schema(value_type = Option<String>)]
    pub paused_until: Option<Timestamp>,
    /// The operator's reason for the pause.
    pub paused_reason: Option<String>,
    /// The policy's files have a fault, so an earlier policy decides; `/v1/policy` names the faults.
    #[serde(default)]
    pub policy_files_faulty: bool,
    /// The scheduled jobs and how each went the last time.
    #[serde(default)]
    pub jobs: Vec<JobView>,
    /// The first damage of the store that a read has met since the daemon started. Other things go on working.
    pub store_damage: Option<String>,
    /// The id of the daemon's state directory, which tells two daemons apart. A restored state has another id than its original.
    pub state_id: String,
}

impl Health {
    /// The jobs that failed the last time, each with the reason.
    pub fn failed_jobs(&self) -> Vec<String> {
        let failed = self.jobs.iter().filter_map(|job| Some((&job.job, job.error.as_ref()?)));
        failed.map(|(job, error)| format!("{job}: {error}")).collect()
    }
}
