//! What is written down before an effect, so that whoever finds it after a crash knows what to do.

use effectd_contracts::{Repeat, Seen, ToolId};
use serde::{Deserialize, Serialize};

use crate::stage::body;

/// The intent of one action. It carries the tool's declaration of then: after an upgrade, an interrupted action is settled
/// by the promise under which it was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Which tool.
    pub tool_id: ToolId,
    /// Which version of it.
    pub tool_version: String,
    /// What may be done when it is not known whether it ran.
    pub repeat: Repeat,
    /// Nothing was to be changed.
    pub dry_run: bool,
    /// What stood at the paths that it may change, if the tool says which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Vec<Seen>>,
}

impl Intent {
    /// The bytes that are stored.
    pub fn to_bytes(&self) -> Vec<u8> {
        body(self)
    }

    /// Reads stored bytes; `None` if another version wrote something else, which is then a person's business.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}
