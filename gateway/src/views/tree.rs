//! The pipeline's actors in JSON.

use effectd_actors::TreeNode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An actor under the pipeline's supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ActorView {
    pub name: String,
    /// The workers of a stage; 0 for other actors.
    pub workers: u64,
    /// Recent restarts; after too many the pipeline gives up.
    pub restarts: u64,
}

impl From<TreeNode> for ActorView {
    fn from(node: TreeNode) -> Self {
        Self { name: node.name.to_owned(), workers: node.workers as u64, restarts: node.restarts as u64 }
    }
}
