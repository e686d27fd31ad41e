//! The daemon's health in JSON.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The daemon's health.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
    pub version: String,
    /// Accepted decisions that have not ended.
    pub backlog: u64,
    /// An operator has paused effects: every action is a dry run.
    #[serde(default)]
    pub paused: bool,
    /// The policy's files have a fault, so an earlier policy decides; `/v1/policy` names the faults.
    #[serde(default)]
    pub policy_files_faulty: bool,
    /// The first damage of the store that a read has met since the daemon started. Other things go on working.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_damage: Option<String>,
    /// The id of the daemon's state directory, which tells two daemons apart. A restored state has another id than its original.
    pub state_id: String,
}
