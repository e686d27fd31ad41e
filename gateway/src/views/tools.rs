//! Tools in JSON.

use effectd_actors::RegisteredTool;
use serde_json::{Value, json};

/// A tool in a list.
pub fn tool_summary(entry: &RegisteredTool, disabled: bool) -> Value {
    let spec = entry.spec();
    json!({
        "tool_id": spec.tool_id, "version": spec.version, "aliases": entry.aliases(), "source": entry.source(),
        "description": spec.description, "caps_required": spec.caps_required, "side_effects": spec.side_effects,
        "safety_class": spec.safety_class, "risk_level": spec.level(), "tier": spec.tier(),
        "sandbox_profile": spec.effective_profile(), "reversible": spec.reversible, "repeat": spec.repeat,
        "hosts": entry.hosts(), "drifted": entry.drifted(), "disabled": disabled,
    })
}

/// A tool with its schemas, an example and its lints.
pub fn tool_details(entry: &RegisteredTool, disabled: bool) -> Value {
    let lints: Vec<_> = entry.lints().iter().map(|lint| lint.meaning()).collect();
    json!({
        "spec": entry.spec(), "aliases": entry.aliases(), "source": entry.source(), "tier": entry.spec().tier(),
        "definition_hash": entry.definition_hash(), "lints": entry.lints(), "doubtful": lints, "example": entry.example(),
        "capability": entry.capability(), "action": entry.action_definition(), "package": entry.package(),
        "hosts": entry.hosts(), "drifted": entry.drifted(), "disabled": disabled,
        "overlay": entry.definition().overlay.as_ref().map(|overlaid| &overlaid.says),
    })
}
