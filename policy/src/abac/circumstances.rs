//! What rules see of a request, in the shape of the schema.

use cedar_policy::{Context, RestrictedExpression};
use effectd_contracts::{SafetyClass, SideEffect};

use crate::facts::Facts;
use crate::policy::Policy;
use crate::policy::tables::Tables;
use crate::risk::Risk;

/// The texts among the circumstances. What rules see and what they are grouped by comes from here.
pub(crate) struct Texts<'f> {
    principal: &'f str,
    actor: &'f str,
    device: &'f str,
    device_class: &'f str,
    tool: &'f str,
    tool_source: &'f str,
    safety_class: &'static str,
    automation: &'f str,
}

impl<'f> Texts<'f> {
    /// Where they stand in the context.
    pub(crate) const NAMES: [&'static str; 8] = [
        "principal",
        "actor.id",
        "device.id",
        "device.class",
        "tool.id",
        "tool.source",
        "tool.safety_class",
        "automation",
    ];

    pub(crate) fn of(facts: &'f Facts, risk: &Risk, tables: &'f Tables) -> Self {
        let device = facts.device.as_deref();
        let tool = facts.tool.id.as_str();
        Self {
            principal: facts.principal.as_str(),
            actor: facts.actor.as_deref().unwrap_or_default(),
            device: device.unwrap_or_default(),
            device_class: device.map_or("none", |id| {
                tables.devices.get(id).map_or("unknown", String::as_str)
            }),
            tool,
            tool_source: tool.rsplit_once('.').map_or(tool, |(source, _)| source),
            safety_class: class_word(risk.class),
            automation: facts.automation.as_deref().unwrap_or_default(),
        }
    }

    /// By its place in the context; a name that is none of [`Self::NAMES`] has no text.
    pub(crate) fn get(&self, name: &str) -> &str {
        match name {
            "principal" => self.principal,
            "actor.id" => self.actor,
            "device.id" => self.device,
            "device.class" => self.device_class,
            "tool.id" => self.tool,
            "tool.source" => self.tool_source,
            "tool.safety_class" => self.safety_class,
            "automation" => self.automation,
            _ => "",
        }
    }
}

/// The circumstances as Cedar takes them.
pub(crate) fn context(facts: &Facts, risk: &Risk, policy: &Policy) -> Result<Context, String> {
    let tables = policy.tables();
    let text = |text: &str| RestrictedExpression::new_string(text.to_owned());
    let truth = RestrictedExpression::new_bool;
    let number = RestrictedExpression::new_long;
    let record = |fields: Vec<(&str, RestrictedExpression)>| {
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
        RestrictedExpression::new_record(fields).map_err(|error| error.to_string())
    };
    let actor = facts.actor.as_deref();
    let texts = Texts::of(facts, risk, tables);
    let time = tables.clock.time_of_day(facts.now, facts.utc_offset_min);
    let tool = &facts.tool;
    let effects = tool.side_effects.iter().map(|effect| text(effect_word(*effect)));
    let fields = [
        ("principal", text(texts.principal)),
        (
            "actor",
            record(vec![
                ("id", text(texts.actor)),
                (
                    "known",
                    truth(actor.is_some_and(|actor| tables.actors.contains_key(actor))),
                ),
            ])?,
        ),
        (
            "device",
            record(vec![
                ("id", text(texts.device)),
                ("class", text(texts.device_class)),
            ])?,
        ),
        (
            "tool",
            record(vec![
                ("id", text(texts.tool)),
                ("source", text(texts.tool_source)),
                ("safety_class", text(texts.safety_class)),
                ("tier", number(risk.tier as i64)),
                ("contained", truth(tool.is_contained())),
                ("reversible", truth(tool.reversible)),
                ("side_effects", RestrictedExpression::new_set(effects)),
            ])?,
        ),
        (
            "clock",
            record(vec![
                ("hour", number(time.minute / 60)),
                ("minute", number(time.minute)),
                ("weekday", number(time.weekday)),
                ("night", truth(time.night)),
                ("unix", number(time.unix)),
            ])?,
        ),
        ("automation", text(texts.automation)),
        ("dry_run", truth(facts.dry_run)),
        ("cross_space", truth(risk.cross_space)),
    ];
    Context::from_pairs(fields.into_iter().map(|(name, value)| (name.to_owned(), value)))
        .map_err(|error| error.to_string())
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
