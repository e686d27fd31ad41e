//! What operators say about tools that are no connector's. What they say about those is stored with the connector.

use std::collections::BTreeMap;

use effectd_bus::{FamilyName, Store, StoreError};
use effectd_contracts::{ToolId, ToolOverlay};

use crate::limits::CONNECTIONS_PAGE;
use crate::stored::{entries, read_json};

/// Overlays by the ids of tools, in clear.
pub(crate) const TOOL_OVERLAYS: &str = "tool-overlays";

/// All of them, also those of tools that are not there now.
pub(crate) fn all(store: &dyn Store) -> Result<BTreeMap<ToolId, ToolOverlay>, StoreError> {
    let mut found = BTreeMap::new();
    for entry in entries(store, &FamilyName::new(TOOL_OVERLAYS)?, CONNECTIONS_PAGE) {
        let entry = entry?;
        if let (Ok(tool), Some(says)) = (entry.key.parse(), read_json(&entry)) {
            found.insert(tool, says);
        }
    }
    Ok(found)
}
