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
}
