//! The views of one tool for automations, agents and plugins.

use effectd_contracts::{RiskLevel, RiskTier, SideEffect, ToolId};
use serde::Serialize;
use serde_json::Value;

use super::{RegisteredTool, Source};

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

/// The view for plugins.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Package {
    pub name: ToolId,
    pub risk_tier: RiskTier,
    pub input_schema: Value,
    pub output_schema: Value,
    pub permissions: Permissions,
    pub verification: Verification,
    pub rollback: Rollback,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Permissions {
    /// Programs that the tool declares; the policy's list of programs applies as well.
    pub commands: Vec<String>,
    /// `workspace` or `none`.
    pub filesystem: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verification {
    pub required: bool,
    pub commands: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rollback {
    pub required: bool,
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

    /// `None` if the tool does not come from a plugin.
    pub fn package(&self) -> Option<Package> {
        let spec = self.spec();
        let writes = spec
            .side_effects
            .iter()
            .any(|effect| matches!(effect, SideEffect::FilesystemWrite | SideEffect::FilesystemDelete));
        (self.source() == Source::Plugin).then(|| Package {
            name: spec.tool_id.clone(),
            risk_tier: spec.tier(),
            input_schema: spec.params_schema.clone(),
            output_schema: spec.result_schema.clone(),
            permissions: Permissions {
                commands: Vec::new(),
                filesystem: if writes { "workspace" } else { "none" },
            },
            verification: Verification { required: spec.tier() >= RiskTier::R2, commands: Vec::new() },
            rollback: Rollback { required: spec.tier() >= RiskTier::R2 },
        })
    }
}
