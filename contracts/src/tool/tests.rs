//! Tests of tool specs: defaults, contradictions, risk tiers, key fields and resources.

#![allow(clippy::unwrap_used)]

use super::*;
use serde_json::json;

fn spec(change: impl FnOnce(&mut Value)) -> Result<ToolSpec, String> {
    let mut value = json!({
        "tool_id": "files.write_text", "version": "1.0.0",
        "caps_required": ["files.write", "workspace:shared:write"],
        "params_schema": { "type": "object", "required": ["path", "text"] },
        "result_schema": { "type": "object" },
        "side_effects": ["filesystem_write"], "safety_class": "LOW", "risk_level": "write", "reversible": true,
        "idempotency_key_fields": ["path", "sha256(text)"], "resource": "file:{space_id}/{path}",
    });
    change(&mut value);
    let spec: ToolSpec = serde_json::from_value(value).map_err(|e| e.to_string())?;
    spec.check().map_err(|e| e.to_string())?;
    Ok(spec)
}

#[test]
fn what_is_left_out_takes_the_documented_default() {
    let spec = spec(|v| {
        v.as_object_mut().unwrap().remove("idempotency_key_fields");
    })
    .unwrap();
    assert_eq!(spec.timeout_ms, 5_000);
    assert_eq!(spec.idempotency_key_fields, None);
    assert_eq!(spec.sandbox_profile, SandboxProfile::default());
    assert_eq!(spec.repeat, Repeat::Never);
    let text = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<ToolSpec>(&text).unwrap(), spec);
}

#[test]
fn ten_fields_are_a_spec_and_its_level_is_derived() {
    let spec = |effects: &[&str], class: &str| -> ToolSpec {
        let spec: ToolSpec = serde_json::from_value(json!({
            "tool_id": "files.write_text",
            "version": "1.0.0",
            "caps_required": ["files.write", "workspace:shared:write"],
            "params_schema": { "type": "object", "required": ["path", "text", "space_id"], "properties": {
                "path": { "type": "string" }, "text": { "type": "string" }, "space_id": { "type": "string" },
            } },
            "result_schema": { "type": "object", "required": ["bytes_written"], "properties": {
                "bytes_written": { "type": "integer", "minimum": 0 }, "sha256_text": { "type": "string" },
            } },
            "side_effects": effects,
            "safety_class": class,
            "timeout_ms": 4000,
            "idempotency_key_fields": ["path", "sha256(text)"],
            "sandbox_profile": "default",
        }))
        .unwrap();
        spec.check().unwrap();
        spec
    };
    for (effects, class, level, tier) in [
        (&["filesystem_write"][..], "LOW", RiskLevel::Write, RiskTier::R2),
        (&["read_only", "user_visible"], "LOW", RiskLevel::Read, RiskTier::R0),
        (&[], "HIGH", RiskLevel::Read, RiskTier::R3),
        (&["network_call"], "HIGH", RiskLevel::Write, RiskTier::R3),
        (&["filesystem_delete"], "LOW", RiskLevel::Danger, RiskTier::R4),
    ] {
        let spec = spec(effects, class);
        assert_eq!((spec.level(), spec.tier()), (level, tier), "{effects:?} {class}");
        assert!(serde_json::to_value(&spec).unwrap().get("risk_level").is_none(), "the author left it out");
    }
}

#[test]
fn each_contradiction_is_named() {
    let cases: [(&str, Value, &str); 14] = [
        ("safety_class", json!("EXTREME"), "unknown variant `EXTREME`"),
        ("sandbox_profile", json!("foo"), "unknown sandbox profile \"foo\""),
        ("side_effects", json!(["teleport"]), "unknown variant `teleport`"),
        (
            "side_effects",
            json!(["read_only", "filesystem_write"]),
            "read_only is declared with another effect",
        ),
        ("side_effects", json!(["filesystem_delete"]), "a tool that deletes is of level danger"),
        ("side_effects", json!(["device_capture"]), "are of class HIGH"),
        ("side_effects", json!([]), "declares no effect"),
        ("risk_level", json!("read"), "level read has effects"),
        ("compensation", json!("declared"), "no effect outside of the space"),
        ("version", json!("1.0"), "major.minor.patch"),
        ("tool_id", json!("Files"), "must be <source>.<action>"),
        ("idempotency_key_fields", json!(["md5(text)"]), "is not a key field"),
        ("idempotency_key_fields", json!(["colour"]), "does not require"),
        ("resource", json!("file:{path"), "is not a resource"),
    ];
    for (name, value, expected) in cases {
        let error = spec(|v| v[name] = value).unwrap_err();
        assert!(error.contains(expected), "{name}: {error}");
    }
}

#[test]
fn the_tier_follows_from_effects_and_can_only_be_raised() {
    let tier = |change: Value| {
        spec(|v| {
            for (name, value) in change.as_object().unwrap() {
                v[name] = value.clone();
            }
        })
        .unwrap()
        .tier()
    };
    assert_eq!(tier(json!({})), RiskTier::R1);
    assert_eq!(tier(json!({ "reversible": false })), RiskTier::R2);
    assert_eq!(tier(json!({ "side_effects": ["read_only"], "risk_level": "read" })), RiskTier::R0);
    assert_eq!(
        tier(json!({ "side_effects": [], "risk_level": "read", "safety_class": "MEDIUM" })),
        RiskTier::R1
    );
    assert_eq!(tier(json!({ "side_effects": ["device_notification"], "reversible": false })), RiskTier::R1);
    assert_eq!(tier(json!({ "side_effects": ["network_call"], "safety_class": "HIGH" })), RiskTier::R3);
    assert_eq!(tier(json!({ "side_effects": ["process_exec"], "reversible": false })), RiskTier::R3);
    assert_eq!(tier(json!({ "side_effects": ["filesystem_delete"], "risk_level": "danger" })), RiskTier::R4);
    assert_eq!(tier(json!({ "risk_tier": "R3" })), RiskTier::R3);
    assert_eq!(tier(json!({ "risk_tier": "R0" })), RiskTier::R1);
}

#[test]
fn class_high_always_runs_in_high_isolation() {
    let high = spec(|v| v["safety_class"] = json!("HIGH")).unwrap();
    assert_eq!(high.effective_profile().as_str(), "high_isolation");
    assert_eq!(spec(|_| ()).unwrap().effective_profile().as_str(), "default");
}

#[test]
fn keys_and_resources_are_filled_from_parameters() {
    let spec = spec(|_| ()).unwrap();
    let params = json!({ "path": "notes/a.txt", "text": "hello" }).as_object().unwrap().clone();
    let space = SpaceId::new("shared:household").unwrap();
    let resource = spec.resource.as_ref().unwrap();
    assert_eq!(resource.resolve(&space, &params).as_deref(), Some("file:shared:household/notes/a.txt"));
    let fields = spec.idempotency_key_fields.as_ref().unwrap();
    let resolved: Vec<_> = fields.iter().map(|field| field.resolve(&params).unwrap()).collect();
    assert_eq!(resolved, ["notes/a.txt", &Digest::of(b"hello").hex()]);
    assert_eq!(fields[0].resolve(&Map::new()), None);
}
