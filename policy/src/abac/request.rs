//! The Cedar context of a request: what attribute rules can use, in the shape of the schema.

use std::collections::BTreeSet;

use cedar_policy::{Context, ExpressionConstructionError, RestrictedExpression};
use effectd_contracts::{Predicted, RiskLevel, SafetyClass, SideEffect};
use serde_json::Value;

use crate::facts::{Facts, Param};
use crate::inspect::public;
use crate::risk::Risk;
use crate::tables::Tables;

pub(crate) fn context(facts: &Facts, risk: &Risk, tables: &Tables) -> Result<Context, String> {
    let parts = parts(facts, risk, tables).map_err(|error| error.to_string())?;
    Context::from_pairs(parts).map_err(|error| error.to_string())
}

fn parts(
    facts: &Facts,
    risk: &Risk,
    tables: &Tables,
) -> Result<[(String, RestrictedExpression); 10], ExpressionConstructionError> {
    let time = tables.clock.time_of_day(facts.now, facts.utc_offset_min);
    let tool = &facts.tool;
    let id = tool.id.as_str();
    let (actor, device) = (facts.actor.as_deref(), facts.device.as_deref());
    let device_class = device.map_or("none", |id| tables.devices.get(id).map_or("unknown", String::as_str));
    let effects = tool.side_effects.iter().map(|effect| text(effect_word(*effect)));
    let actor = record([
        ("id", text(actor.unwrap_or_default())),
        ("known", truth(actor.is_some_and(|actor| tables.actors.contains_key(actor)))),
    ])?;
    let device = record([("id", text(device.unwrap_or_default())), ("class", text(device_class))])?;
    let tool = record([
        ("id", text(id)),
        ("source", text(tool.id.source())),
        ("safety_class", text(class_word(risk.class))),
        ("tier", number(risk.tier as i64)),
        ("contained", truth(tool.is_contained())),
        ("reversible", truth(tool.reversible)),
        ("side_effects", RestrictedExpression::new_set(effects)),
    ])?;
    let clock = record([
        ("hour", number(time.minute / 60)),
        ("minute", number(time.minute)),
        ("weekday", number(time.weekday)),
        ("night", truth(time.night)),
        ("unix", number(time.unix)),
    ])?;
    let predicted = record([
        ("known", truth(facts.predicted.is_some())),
        ("files", predicted(facts, risk, |predicted| predicted.files)),
        ("deletes", predicted(facts, risk, |predicted| predicted.deletes)),
        ("bytes", predicted(facts, risk, |predicted| predicted.bytes)),
    ])?;
    Ok([
        ("principal", text(facts.principal.as_str())),
        ("actor", actor),
        ("device", device),
        ("tool", tool),
        ("clock", clock),
        ("automation", text(facts.automation.as_deref().unwrap_or_default())),
        ("dry_run", truth(facts.dry_run)),
        ("cross_space", truth(risk.cross_space)),
        (PREDICTED, predicted),
        (PARAMS, params(facts)?),
    ]
    .map(|(name, value)| (name.to_owned(), value)))
}

fn params(facts: &Facts) -> Result<RestrictedExpression, ExpressionConstructionError> {
    let seen = facts.inspection.as_ref();
    let set = |names: Option<&BTreeSet<String>>| {
        RestrictedExpression::new_set(names.into_iter().flatten().map(|name| text(name)))
    };
    let own = seen.into_iter().flat_map(|seen| &seen.params).map(|(name, value)| {
        let value = match value {
            Param::Flag(flag) => truth(*flag),
            Param::Number(value) => number(*value),
            Param::Text(value) => text(value),
        };
        (name.clone(), value)
    });
    let bytes = seen.map_or(0, |seen| i64::try_from(seen.text_bytes).unwrap_or(i64::MAX));
    let always = [
        ("text_bytes", number(bytes)),
        ("programs", set(seen.map(|seen| &seen.commands))),
        ("hosts", set(seen.map(|seen| &seen.hosts))),
    ];
    let always = always.map(|(name, value)| (name.to_owned(), value));
    RestrictedExpression::new_record(own.chain(always))
}

fn record<const N: usize>(
    fields: [(&str, RestrictedExpression); N],
) -> Result<RestrictedExpression, ExpressionConstructionError> {
    RestrictedExpression::new_record(fields.map(|(name, value)| (name.to_owned(), value)))
}

fn text(text: &str) -> RestrictedExpression {
    RestrictedExpression::new_string(text.to_owned())
}

fn truth(truth: bool) -> RestrictedExpression {
    RestrictedExpression::new_bool(truth)
}

fn number(number: i64) -> RestrictedExpression {
    RestrictedExpression::new_long(number)
}

/// A predicted amount. An unknown amount is 0 if nothing can change, or else the largest number, which exceeds every rule's
/// limit.
fn predicted(facts: &Facts, risk: &Risk, which: impl FnOnce(&Predicted) -> u64) -> RestrictedExpression {
    let mut effects = facts.tool.side_effects.iter();
    let reads = facts.tool.risk_level != RiskLevel::Read && risk.level == RiskLevel::Read;
    let changes_nothing = reads || effects.all(|effect| *effect == SideEffect::ReadOnly);
    number(match &facts.predicted {
        Some(predicted) => i64::try_from(which(predicted)).unwrap_or(i64::MAX),
        None if changes_nothing || facts.dry_run => 0,
        None => i64::MAX,
    })
}

/// The part of the context that comes from a preview.
const PREDICTED: &str = "predicted";

/// The part of the context that has the parameters.
const PARAMS: &str = "params";

/// Adds the parameters that a rule, as JSON, uses. A rule that uses them as a whole uses all.
pub(crate) fn params_used(rule: &Value, names: &mut BTreeSet<String>) {
    members_used(rule, PARAMS, &|| public::names().map(str::to_owned).collect(), names);
}

/// Adds the members of `context.tool` that a rule, as JSON, reads. A rule that reads the whole record counts as one that reads the id.
pub(crate) fn of_tool_used(rule: &Value, names: &mut BTreeSet<String>) {
    members_used(rule, "tool", &|| vec!["id".to_owned()], names);
}

/// Adds the members of a part of the context that a rule uses; `all` for the part as a whole.
fn members_used(rule: &Value, of: &str, all: &impl Fn() -> Vec<String>, names: &mut BTreeSet<String>) {
    match rule {
        Value::Array(items) => items.iter().for_each(|item| members_used(item, of, all, names)),
        Value::Object(members) => {
            let access = members.get(".").or_else(|| members.get("has"));
            let of_part = access.filter(|access| access.get("left").and_then(part_of_context) == Some(of));
            let name = of_part.and_then(|access| access.get("attr")?.as_str());
            let is_context = members.get("Var").is_some_and(|name| name == "context");
            match (name, part_of_context(rule)) {
                (Some(name), _) => names.extend([name.to_owned()]),
                (None, Some(part)) if part != of => {}
                (None, None) if !is_context => {
                    members.values().for_each(|member| members_used(member, of, all, names));
                }
                (None, _) => names.extend(all()),
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Whether a rule, as JSON, depends on a preview. A rule that uses the whole context does.
pub(crate) fn foresees(rule: &Value) -> bool {
    reads(rule, &|part| part == PREDICTED)
}

/// The parts of the context that differ between two calls of one tool by one caller.
const OF_CALL: [&str; 4] = ["clock", "cross_space", PARAMS, PREDICTED];

/// What a rule, as JSON, says about every call of a tool: a rule that permits, without the conditions that depend on the call; a rule
/// that forbids, only if none of its conditions does.
pub(crate) fn for_any_call(mut rule: Value) -> Option<Value> {
    let permits = rule["effect"] == "permit";
    let conditions = rule["conditions"].as_array_mut()?;
    if !permits {
        return (!conditions.iter().any(is_of_call)).then_some(rule);
    }
    conditions.retain(|condition| condition["kind"] == "when" || !is_of_call(condition));
    conditions.iter_mut().for_each(|condition| leave_calls_out(&mut condition["body"]));
    Some(rule)
}

/// Replaces each part of a conjunction that depends on the call by `true`.
fn leave_calls_out(condition: &mut Value) {
    if !is_of_call(condition) {
        return;
    }
    match condition.get_mut("&&") {
        Some(both) => ["left", "right"].into_iter().for_each(|side| leave_calls_out(&mut both[side])),
        None => *condition = serde_json::json!({ "Value": true }),
    }
}

fn is_of_call(expression: &Value) -> bool {
    reads(expression, &|part| OF_CALL.contains(&part))
}

/// Whether an expression uses such a part of the context, or the whole context.
fn reads(expression: &Value, is_such: &impl Fn(&str) -> bool) -> bool {
    match expression {
        Value::Array(items) => items.iter().any(|item| reads(item, is_such)),
        Value::Object(members) => match part_of_context(expression) {
            Some(part) => is_such(part),
            None => {
                members.get("Var").is_some_and(|name| name == "context")
                    || members.values().any(|member| reads(member, is_such))
            }
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// The member of the context that an expression reads: `tool` for `context.tool`.
fn part_of_context(expression: &Value) -> Option<&str> {
    let access = expression.get(".")?;
    if access.get("left")?.get("Var")? != "context" {
        return None;
    }
    access.get("attr")?.as_str()
}

/// The part before `://`.
pub(crate) fn subject_kind(subject: &str) -> &str {
    subject.split_once("://").map_or("", |(kind, _)| kind)
}

const fn class_word(class: SafetyClass) -> &'static str {
    match class {
        SafetyClass::Low => "LOW",
        SafetyClass::Medium => "MEDIUM",
        SafetyClass::High => "HIGH",
    }
}

const fn effect_word(effect: SideEffect) -> &'static str {
    match effect {
        SideEffect::ReadOnly => "read_only",
        SideEffect::FilesystemWrite => "filesystem_write",
        SideEffect::FilesystemDelete => "filesystem_delete",
        SideEffect::ProcessExec => "process_exec",
        SideEffect::NetworkCall => "network_call",
        SideEffect::DeviceNotification => "device_notification",
        SideEffect::DeviceCapture => "device_capture",
        SideEffect::CrossSpace => "cross_space",
        SideEffect::UserVisible => "user_visible",
    }
}
