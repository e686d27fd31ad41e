//! The views of one tool for automations, agents, and of a plugin's package.

use effectd_contracts::plugin::Manifest;
use effectd_contracts::{RiskLevel, ToolId};
use serde::Serialize;
use serde_json::Value;

use super::RegisteredTool;

/// The view for automations.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CapabilityView {
    pub id: ToolId,
    pub description: String,
    pub input_schema: Value,
    pub output_schema: Value,
}

/// The view for agents.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ActionDefinition {
    pub id: ToolId,
    pub description: String,
    pub risk_level: RiskLevel,
    pub params: Value,
}

impl RegisteredTool {
    pub fn capability(&self) -> CapabilityView {
        let spec = self.spec();
        CapabilityView {
            id: spec.tool_id.clone(),
            description: spec.description.clone(),
            input_schema: spec.params_schema.clone(),
            output_schema: spec.result_schema.clone(),
        }
    }

    pub fn action_definition(&self) -> ActionDefinition {
        let spec = self.spec();
        ActionDefinition {
            id: spec.tool_id.clone(),
            description: spec.description.clone(),
            risk_level: spec.level(),
            params: spec.params_schema.clone(),
        }
    }

    /// What its package declares; `None` if the tool does not come from a plugin.
    pub fn package(&self) -> Option<&Manifest> {
        self.definition().plugin.as_deref().map(|pinned| &pinned.manifest)
    }
}
