//! The examples of a policy: requests with the verdict that they must get. A policy that fails one of them is refused.

use effectd_contracts::tool::is_path_name;
use effectd_contracts::{
    Principal, Repeat, SandboxProfile, SideEffect, SpaceId, SubjectId, Timestamp, ToolId, ToolSpec, Touch,
};
use serde_json::{Map, Value};

use crate::decision::Denier;
use crate::document::{Document, Example, ExampleTool};
use crate::error::{ExampleFailed, Faults, PolicyError};
use crate::evaluate::evaluate;
use crate::facts::{Facts, ToolFacts, skew_s};
use crate::policy::{Policy, RealTool, inspect};
use crate::source::Lines;

/// The time in examples that name none: noon of a Wednesday, in UTC.
const EXAMPLE_NOW: &str = "2026-01-07T12:00:00Z";

/// Checks all examples; the error names each that fails.
pub(crate) fn check_all(
    document: &Document,
    lines: &Lines<'_>,
    policy: &Policy,
    real: RealTool<'_>,
) -> Result<(), PolicyError> {
    let check = |index: &str, example: &Example| {
        let path = ["examples", index];
        let Some(expected) = expected_words(&example.expect) else {
            let message = format!("{:?} is no verdict; write {EXPECTATIONS}", example.expect);
            return Err(lines.invalid(&["examples", index, "expect"], message));
        };
        let facts =
            facts(example, document, policy, real).map_err(|message| lines.invalid(&path, message))?;
        let verdict = evaluate(&facts, policy).verdict;
        let actual = verdict.to_string();
        if actual != expected && !(expected == "deny" && actual.starts_with("deny")) {
            let mut why = match verdict.why() {
                why if why.is_empty() => "all gates pass".to_owned(),
                why => why,
            };
            if policy.tables().principals.matching(&example.principal).next().is_none() {
                why.push_str("; name one of [principals] as the example's `principal`");
            }
            let failed = Box::new(ExampleFailed { name: example.name.clone(), expected, actual, why });
            let at = lines.at(&path);
            return Err(PolicyError::Example { at, failed });
        }
        Ok(())
    };
    let mut faults = Faults::default();
    for (index, example) in document.examples.iter().enumerate() {
        faults.keep(check(&index.to_string(), example));
    }
    faults.result()
}

const EXPECTATIONS: &str = "permit, deny, deny by <rbac|abac|consent|space|safety|redaction|reach|mode>, quarantine or needs approval";

fn expected_words(expect: &str) -> Option<String> {
    let known = match expect.strip_prefix("deny by ") {
        Some(name) => Denier::ALL.iter().any(|denier| denier.as_str() == name),
        None => ["permit", "deny", "quarantine", "needs approval"].contains(&expect),
    };
    known.then(|| expect.to_owned())
}

fn facts(
    example: &Example,
    document: &Document,
    policy: &Policy,
    real: RealTool<'_>,
) -> Result<Facts, String> {
    let described = document.example_tools.get(example.tool.as_str());
    let spec = match real(&example.tool, &example.params) {
        Some(spec) => spec.map_err(|why| format!("example {:?}: {why}", example.name))?,
        None => {
            let none = || format!("no tool {} is registered, and example_tools has none", example.tool);
            tool_spec(&example.tool, described.ok_or_else(none)?)
        }
    };
    let text = |error: effectd_contracts::IdInvalid| error.to_string();
    let default_now: Timestamp = EXAMPLE_NOW.parse().unwrap_or(Timestamp::UNIX_EPOCH);
    let now = example.now.unwrap_or(default_now);
    let space = SpaceId::new(&example.space).map_err(text)?;
    let mut seen = inspect(&example.params, &spec, &space, policy);
    seen.facts.protected = policy.protected(&space, || touched(&spec, &example.params));
    Ok(Facts {
        principal: Principal::new(&example.principal).map_err(text)?,
        subject: SubjectId::new(&example.subject).map_err(text)?,
        agent: false,
        space,
        actor: example.actor.clone(),
        device: example.device.clone(),
        tool: ToolFacts::of(&spec),
        automation: example.automation.clone(),
        now,
        utc_offset_min: 0,
        skew_s: example.time.map(|time| skew_s(time, now)),
        dry_run: false,
        drifted: false,
        verified: example.verified,
        connection: example.connection,
        connection_id: None,
        connection_version: None,
        inspection: Some(seen.facts),
        predicted: example.predicted,
    })
}

/// The paths that a call would change, as far as its parameters say so: those of a tool that changes files. `from_path` is only
/// read, but for a move.
fn touched(spec: &ToolSpec, params: &Map<String, Value>) -> Vec<Touch> {
    let changes = [SideEffect::FilesystemWrite, SideEffect::FilesystemDelete];
    if !changes.iter().any(|effect| spec.side_effects.contains(effect)) {
        return Vec::new();
    }
    let is_move = spec.tool_id.as_str() == "files.move";
    let paths = params.iter().filter(|(name, _)| is_path_name(name) && (is_move || *name != "from_path"));
    paths.filter_map(|(_, path)| path.as_str().map(Touch::replaced)).collect()
}

/// The spec of an example's tool, so that its tier is derived like that of a real tool.
fn tool_spec(id: &ToolId, tool: &ExampleTool) -> ToolSpec {
    ToolSpec {
        tool_id: id.clone(),
        version: "1.0.0".to_owned(),
        description: String::new(),
        caps_required: tool.caps.clone(),
        params_schema: Value::Object(tool.params_schema.clone()),
        result_schema: Value::Null,
        side_effects: tool.side_effects.clone(),
        safety_class: tool.safety_class,
        risk_level: Some(tool.risk_level),
        risk_tier: tool.risk_tier,
        reversible: tool.reversible,
        compensation: tool.compensation,
        timeout_ms: effectd_contracts::limits::TIMEOUT_MS_DEFAULT,
        price_micros: 0,
        idempotency_key_fields: None,
        resource: None,
        repeat: Repeat::Never,
        sandbox_profile: SandboxProfile::default(),
        package: None,
    }
}
