//! Lints of a tool's description, checked at registration.

use effectd_contracts::{RiskLevel, SafetyClass, SideEffect, ToolId};
use serde::Serialize;
use serde_json::Value;

use super::{Definition, RegistryError};

/// A doubt about a description, which is registered all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lint {
    /// Class HIGH with a profile without high isolation: the tool runs in high isolation.
    ProfileRaised,
    NoDescription,
    /// The schema accepts parameters that it does not declare.
    OpenParams,
    /// The tool changes something and declares no resource: changes are not observed, and calls are not serialised.
    NoResource,
}

impl Lint {
    pub const fn meaning(self) -> &'static str {
        match self {
            Lint::ProfileRaised => "class HIGH always runs in high isolation; name that profile",
            Lint::NoDescription => "it has no description, by which planners choose tools",
            Lint::OpenParams => "params_schema accepts unknown parameters; set additionalProperties to false",
            Lint::NoResource => {
                "it changes something but names no resource, so two calls may run at the same time"
            }
        }
    }
}

/// The lints; an error for a description that contradicts itself.
pub(super) fn check(definition: &Definition) -> Result<Vec<Lint>, RegistryError> {
    let spec = &definition.spec;
    let refused = |what| Err(RegistryError::Promise { tool: ToolId::clone(&spec.tool_id), what });
    if spec.reversible && definition.touches.is_none() {
        return refused("declares that it can be undone, but not which paths it may change");
    }
    let changes = spec.level() != RiskLevel::Read;
    if !changes && definition.touches.is_some() {
        return refused("declares that it only reads, but also paths that it may change");
    }
    let mut lints = Vec::new();
    if spec.safety_class == SafetyClass::High && !spec.sandbox_profile.high_isolation {
        lints.push(Lint::ProfileRaised);
    }
    if spec.description.trim().is_empty() {
        lints.push(Lint::NoDescription);
    }
    if spec.params_schema.get("additionalProperties") != Some(&Value::Bool(false)) {
        lints.push(Lint::OpenParams);
    }
    // What is changed on another machine is for that machine to serialise.
    let is_elsewhere = spec.side_effects.iter().all(|effect| *effect == SideEffect::NetworkCall);
    if changes && !is_elsewhere && spec.resource.is_none() && definition.touches.is_none() {
        lints.push(Lint::NoResource);
    }
    // Nobody here can mend what other people's servers say; what packages say, an operator has looked at.
    let is_own = definition.upstream.is_none() && definition.plugin.is_none();
    for lint in lints.iter().filter(|_| is_own) {
        tracing::warn!(tool_id = %spec.tool_id, "{}", lint.meaning());
    }
    Ok(lints)
}
