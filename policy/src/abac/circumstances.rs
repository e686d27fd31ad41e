//! What rules see of a request, in the shape of the schema.
//!
//! There is one list of it, [`Seen`]. Cedar is given its values from there, and so is the [sieve](super::sieve) before it:
//! the two cannot see different things.

use cedar_policy::{Context, RestrictedExpression};
use effectd_contracts::{Predicted, RiskLevel, SafetyClass, SideEffect, SpaceId};

use crate::facts::Facts;
use crate::policy::Policy;
use crate::policy::clock::TimeOfDay;
use crate::policy::roles::Holder;
use crate::policy::tables::Tables;
use crate::risk::Risk;

/// One value that rules can compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    Truth(bool),
    Number(i64),
}

/// Everything about a request that rules can look at.
pub(crate) struct Seen<'f> {
    facts: &'f Facts,
    risk: &'f Risk,
    tables: &'f Tables,
    holder: Option<&'f Holder>,
    time: TimeOfDay,
}

/// A value by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Field {
    SubjectKind,
    SpaceClass,
    SpaceOrg,
    Principal,
    ActorId,
    ActorKnown,
    DeviceId,
    DeviceClass,
    ToolId,
    ToolSource,
    ToolSafetyClass,
    ToolTier,
    ToolContained,
    ToolReversible,
    ClockHour,
    ClockMinute,
    ClockWeekday,
    ClockNight,
    ClockUnix,
    Automation,
    DryRun,
    CrossSpace,
    PredictedKnown,
    PredictedFiles,
    PredictedDeletes,
    PredictedBytes,
}

/// Where each value stands, as rules write it.
const PLACES: [(&str, Field); 26] = [
    ("principal.kind", Field::SubjectKind),
    ("resource.class", Field::SpaceClass),
    ("resource.org", Field::SpaceOrg),
    ("context.principal", Field::Principal),
    ("context.actor.id", Field::ActorId),
    ("context.actor.known", Field::ActorKnown),
    ("context.device.id", Field::DeviceId),
    ("context.device.class", Field::DeviceClass),
    ("context.tool.id", Field::ToolId),
    ("context.tool.source", Field::ToolSource),
    ("context.tool.safety_class", Field::ToolSafetyClass),
    ("context.tool.tier", Field::ToolTier),
    ("context.tool.contained", Field::ToolContained),
    ("context.tool.reversible", Field::ToolReversible),
    ("context.clock.hour", Field::ClockHour),
    ("context.clock.minute", Field::ClockMinute),
    ("context.clock.weekday", Field::ClockWeekday),
    ("context.clock.night", Field::ClockNight),
    ("context.clock.unix", Field::ClockUnix),
    ("context.automation", Field::Automation),
    ("context.dry_run", Field::DryRun),
    ("context.cross_space", Field::CrossSpace),
    ("context.predicted.known", Field::PredictedKnown),
    ("context.predicted.files", Field::PredictedFiles),
    ("context.predicted.deletes", Field::PredictedDeletes),
    ("context.predicted.bytes", Field::PredictedBytes),
];

/// Where the one set stands: the effects that a tool declares.
pub(crate) const EFFECTS_PLACE: &str = "context.tool.side_effects";

impl Field {
    pub(crate) fn at(place: &str) -> Option<Self> {
        PLACES
            .iter()
            .find(|(name, _)| *name == place)
            .map(|(_, field)| *field)
    }
}

impl<'f> Seen<'f> {
    pub(crate) fn of(facts: &'f Facts, risk: &'f Risk, policy: &'f Policy) -> Self {
        let tables = policy.tables();
        Self {
            facts,
            risk,
            tables,
            holder: tables.subjects.get(facts.subject.as_str()),
            time: tables.clock.time_of_day(facts.now, facts.utc_offset_min),
        }
    }

    pub(crate) fn subject(&self) -> &'f str {
        self.facts.subject.as_str()
    }

    pub(crate) fn space(&self) -> &'f SpaceId {
        &self.facts.space
    }

    pub(crate) fn level(&self) -> RiskLevel {
        self.facts.tool.risk_level
    }

    /// All roles of the subject, also inherited ones; one that is reached in two ways comes twice.
    pub(crate) fn roles(&self) -> impl Iterator<Item = &'f str> {
        self.holder
            .into_iter()
            .flat_map(|holder| &holder.roles)
            .flat_map(|role| role.includes.iter().map(String::as_str))
    }

    pub(crate) fn has_role(&self, name: &str) -> bool {
        self.holder.is_some_and(|holder| holder.has_role(name))
    }

    pub(crate) fn has_effect(&self, word: &str) -> bool {
        let effects = &self.facts.tool.side_effects;
        effects.iter().any(|effect| effect_word(*effect) == word)
    }

    pub(crate) fn get(&self, field: Field) -> Value<'f> {
        let Self {
            facts,
            risk,
            tables,
            time,
            ..
        } = self;
        let tool = &facts.tool;
        let device = facts.device.as_deref();
        let actor = facts.actor.as_deref();
        match field {
            Field::SubjectKind => Value::Text(subject_kind(facts.subject.as_str())),
            Field::SpaceClass => Value::Text(facts.space.class()),
            Field::SpaceOrg => {
                let space = tables.spaces.get(&facts.space);
                Value::Text(space.and_then(|space| space.org.as_deref()).unwrap_or_default())
            }
            Field::Principal => Value::Text(facts.principal.as_str()),
            Field::ActorId => Value::Text(actor.unwrap_or_default()),
            Field::ActorKnown => Value::Truth(actor.is_some_and(|actor| tables.actors.contains_key(actor))),
            Field::DeviceId => Value::Text(device.unwrap_or_default()),
            Field::DeviceClass => Value::Text(device.map_or("none", |id| {
                tables.devices.get(id).map_or("unknown", String::as_str)
            })),
            Field::ToolId => Value::Text(tool.id.as_str()),
            Field::ToolSource => {
                let id = tool.id.as_str();
                Value::Text(id.rsplit_once('.').map_or(id, |(source, _)| source))
            }
            Field::ToolSafetyClass => Value::Text(class_word(risk.class)),
            Field::ToolTier => Value::Number(risk.tier as i64),
            Field::ToolContained => Value::Truth(tool.is_contained()),
            Field::ToolReversible => Value::Truth(tool.reversible),
            Field::ClockHour => Value::Number(time.minute / 60),
            Field::ClockMinute => Value::Number(time.minute),
            Field::ClockWeekday => Value::Number(time.weekday),
            Field::ClockNight => Value::Truth(time.night),
            Field::ClockUnix => Value::Number(time.unix),
            Field::Automation => Value::Text(facts.automation.as_deref().unwrap_or_default()),
            Field::DryRun => Value::Truth(facts.dry_run),
            Field::CrossSpace => Value::Truth(risk.cross_space),
            Field::PredictedKnown => Value::Truth(facts.predicted.is_some()),
            Field::PredictedFiles => predicted(facts, |predicted| predicted.files),
            Field::PredictedDeletes => predicted(facts, |predicted| predicted.deletes),
            Field::PredictedBytes => predicted(facts, |predicted| predicted.bytes),
        }
    }

    /// The circumstances as Cedar takes them, with the parts that some rule looks at.
    pub(crate) fn context(&self, needs: Needs) -> Result<Context, String> {
        let mut parts = Vec::with_capacity(Needs::PARTS.len());
        for part in Needs::PARTS.into_iter().filter(|part| needs.has(part)) {
            parts.push((part.to_owned(), self.part(part)?));
        }
        Context::from_pairs(parts).map_err(|error| error.to_string())
    }

    /// One part: a value, or a record of all values below it.
    fn part(&self, part: &str) -> Result<RestrictedExpression, String> {
        let mut fields = Vec::new();
        for (place, field) in &PLACES {
            let Some(below) = place
                .strip_prefix("context.")
                .and_then(|place| place.strip_prefix(part))
            else {
                continue;
            };
            let value = expression(self.get(*field));
            match below.strip_prefix('.') {
                Some(name) => fields.push((name.to_owned(), value)),
                None if below.is_empty() => return Ok(value),
                None => {}
            }
        }
        if part == "tool" {
            let words = self
                .facts
                .tool
                .side_effects
                .iter()
                .map(|effect| effect_word(*effect));
            let effects = words.map(|word| RestrictedExpression::new_string(word.to_owned()));
            fields.push(("side_effects".to_owned(), RestrictedExpression::new_set(effects)));
        }
        RestrictedExpression::new_record(fields).map_err(|error| error.to_string())
    }
}

/// A number of what would change; as large as can be if nobody knows, which is told beside it.
fn predicted(facts: &Facts, which: impl FnOnce(&Predicted) -> u64) -> Value<'static> {
    let changes_nothing = facts
        .tool
        .side_effects
        .iter()
        .all(|effect| *effect == SideEffect::ReadOnly);
    // What nobody could find out may be anything: a rule that sets a bound must not be passed by what is too large to be seen.
    let number = match &facts.predicted {
        Some(predicted) => i64::try_from(which(predicted)).unwrap_or(i64::MAX),
        None if changes_nothing || facts.dry_run => 0,
        None => i64::MAX,
    };
    Value::Number(number)
}

fn expression(value: Value<'_>) -> RestrictedExpression {
    match value {
        Value::Text(text) => RestrictedExpression::new_string(text.to_owned()),
        Value::Truth(truth) => RestrictedExpression::new_bool(truth),
        Value::Number(number) => RestrictedExpression::new_long(number),
    }
}

/// The part that has to be found out by trying the action on a copy.
const PREDICTED: &str = "predicted";

/// Which parts of the circumstances a rule looks at. The others need not be made for it: they are most of what a request
/// to Cedar costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Needs(u16);

impl Needs {
    const PARTS: [&'static str; 9] = [
        "principal",
        "actor",
        "device",
        "tool",
        "clock",
        "automation",
        "dry_run",
        "cross_space",
        PREDICTED,
    ];
    /// All parts.
    pub(crate) const ALL: Self = Self(u16::MAX);

    fn bit(part: &str) -> Option<u16> {
        let index = Self::PARTS.iter().position(|name| *name == part)?;
        Some(1 << index)
    }

    fn has(self, part: &str) -> bool {
        Self::bit(part).is_some_and(|bit| self.0 & bit != 0)
    }

    /// Whether what would change must be known.
    pub(crate) fn foresees(self) -> bool {
        self.has(PREDICTED)
    }

    /// What both need.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What a rule needs, from its JSON. Whoever looks at the context itself, and not at a part of it, needs all.
    pub(crate) fn of(rule: &serde_json::Value) -> Self {
        match rule {
            serde_json::Value::Array(items) => items.iter().map(Self::of).fold(Self::default(), Self::and),
            serde_json::Value::Object(members) => {
                if let Some(part) = part_of_context(rule) {
                    return Self::bit(part).map_or(Self::ALL, Self);
                }
                if members.get("Var").is_some_and(|name| name == "context") {
                    return Self::ALL;
                }
                members.values().map(Self::of).fold(Self::default(), Self::and)
            }
            serde_json::Value::Null
            | serde_json::Value::Bool(_)
            | serde_json::Value::Number(_)
            | serde_json::Value::String(_) => Self::default(),
        }
    }
}

/// `tool` of `context.tool`.
fn part_of_context(expression: &serde_json::Value) -> Option<&str> {
    let access = expression.get(".")?;
    if access.get("left")?.get("Var")? != "context" {
        return None;
    }
    access.get("attr")?.as_str()
}

/// What stands before `://`.
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
