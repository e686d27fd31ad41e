//! Explains a decision: every gate, what it saw, and how to change its answer.
//!
//! Gates after the one that refused are evaluated as well and marked as not reached, so that a person who fixes one thing sees
//! what comes next.

use std::fmt;

use effectd_contracts::{Gate, GateResult, Mode, ModeSource};

use crate::decision::{Decision, Reason, Verdict};
use crate::evaluate::evaluate;
use crate::facts::{Facts, RedactionCounts};
use crate::gates;
use crate::mode;
use crate::policy::Policy;
use crate::risk;
use crate::tables::consents::ConsentAnswer;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    pub decision: Decision,
    /// Every step, in order: six gates, then `reach` and `mode`.
    pub steps: Vec<StepView>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepView {
    /// `rbac` … `redaction`, `reach`, `mode`.
    pub name: &'static str,
    /// The step's result, even if the decision did not reach the step.
    pub result: String,
    /// Whether the decision reached this step.
    pub reached: bool,
    pub rule: String,
    pub saw: Vec<String>,
    /// Why the step refuses, and how to change that.
    pub reasons: Vec<Reason>,
}

pub fn explain(facts: &Facts, policy: &Policy) -> Explanation {
    let decision = evaluate(facts, policy);
    let risk = risk::assess(facts, policy.tables());
    let mut steps = Vec::new();
    let mut reached = true;
    for gate in Gate::ALL {
        let answer = gates::ask(gate, facts, &risk, policy);
        let refuses = matches!(answer.result, GateResult::Deny | GateResult::Quarantine);
        steps.push(StepView {
            name: gate.as_str(),
            result: answer.result.as_str().to_owned(),
            reached,
            rule: answer.rule.into_owned(),
            saw: saw(gate, facts, policy),
            reasons: answer.reasons,
        });
        reached &= !refuses;
    }
    let reach = gates::reach(facts, policy);
    let (result, rule, reasons) = match &reach {
        Ok(()) => ("ok", "allow".to_owned(), Vec::new()),
        Err((_, rule, reason)) => ("deny", rule.clone(), vec![reason.clone()]),
    };
    steps.push(StepView {
        name: "reach",
        result: result.to_owned(),
        reached,
        rule,
        saw: saw_reach(facts),
        reasons,
    });
    reached &= reach.is_ok();
    steps.push(mode_step(facts, &risk, policy, reached));
    Explanation { decision, steps }
}

fn mode_step(facts: &Facts, risk: &risk::Risk, policy: &Policy, reached: bool) -> StepView {
    let resolved = mode::resolve(facts, risk, policy);
    let (class, band) = (risk.class.as_str().to_lowercase(), resolved.band.as_str());
    let level = match resolved.source {
        ModeSource::AutomationOverride => "the automation's own mode",
        ModeSource::OrgDefault => "the organisation's mode",
        ModeSource::InferredDefault => "the default mode of the tier",
    };
    let mut saw =
        vec![format!("tier {:?}, class {class}, band {band}", risk.tier), format!("decided by {level}")];
    if let Some(clamp) = resolved.clamped_by {
        saw.push(format!("made stricter by {}", clamp.as_str()));
    }
    let reasons = match resolved.mode {
        Mode::Allow => Vec::new(),
        Mode::RequireApproval | Mode::Deny => vec![mode::reason(&resolved, facts, risk)],
    };
    StepView {
        name: "mode",
        result: resolved.mode.as_str().to_owned(),
        reached,
        rule: resolved.rule,
        saw,
        reasons,
    }
}

/// `[a, b]`.
fn list<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
    format!("[{}]", names.join(", "))
}

fn saw(gate: Gate, facts: &Facts, policy: &Policy) -> Vec<String> {
    let (subject, space) = (&facts.subject, &facts.space);
    let seen = facts.inspection.as_ref();
    match gate {
        Gate::Rbac => saw_rbac(facts, policy),
        Gate::Abac => saw_abac(facts, policy),
        Gate::Consent => {
            let purpose = format!("tool:{}", facts.tool.id);
            let found = match policy.consent(subject.as_str(), space.as_str(), &purpose, facts.now) {
                ConsentAnswer::Given { explicit, rule } => {
                    let by = if explicit { "by name" } else { "by a pattern" };
                    format!("given {by} in {rule}")
                }
                ConsentAnswer::Revoked { rule } => format!("revoked in {rule}"),
                ConsentAnswer::Expired { rule } => format!("expired in {rule}"),
                ConsentAnswer::Missing => "none".to_owned(),
            };
            vec![format!("consent of {subject} in {space} for {purpose}: {found}")]
        }
        Gate::Space => {
            let known = policy.tables().spaces.get(space);
            let band = known.map_or("unknown".to_owned(), |known| {
                let (band, rule) = policy.band(space, known);
                format!("band {} in {rule}", band.as_str())
            });
            let named = list(seen.iter().flat_map(|seen| &seen.spaces));
            vec![format!("{space}: {band}"), format!("spaces named in parameters: {named}")]
        }
        Gate::Safety => {
            let found = seen.map_or(0, |seen| seen.findings.len());
            vec![format!("{found} findings in the content")]
        }
        Gate::Redaction => seen.map_or_else(Vec::new, |seen| {
            let RedactionCounts { emails, phones, faces } = seen.redacted;
            vec![
                format!("removed {emails} e-mail addresses, {phones} phone numbers, {faces} faces"),
                format!("needed unchanged: {}", list(&seen.personal_required)),
                format!("refused: {}", list(&seen.personal_refused)),
                format!("passed by redaction.rules: {}", list(&seen.personal_passed)),
            ]
        }),
    }
}

fn saw_rbac(facts: &Facts, policy: &Policy) -> Vec<String> {
    let holder = policy.tables().subjects.get(facts.subject.as_str());
    let roles = list(holder.iter().flat_map(|holder| &holder.roles).map(|role| &role.name));
    let own = list(holder.iter().flat_map(|holder| holder.own.iter().map(|(cap, _)| cap)));
    let required = facts.tool.caps.iter().map(|cap| gates::for_space(cap.as_str(), &facts.space));
    let required = list(required);
    let actor = facts.actor.as_deref().unwrap_or("none");
    vec![
        format!("{} for {}, actor {actor}", facts.principal, facts.subject),
        format!("required: {required}"),
        format!("roles: {roles}, own capabilities: {own}"),
    ]
}

fn saw_abac(facts: &Facts, policy: &Policy) -> Vec<String> {
    let tables = policy.tables();
    let time = tables.clock.time_of_day(facts.now, facts.utc_offset_min);
    let device = facts.device.as_deref();
    let class = device.map_or("none", |id| tables.devices.get(id).map_or("unknown", String::as_str));
    let skew = facts.skew_s.map_or("names no time".to_owned(), |skew| format!("names a time {skew} s away"));
    let (hour, minute, weekday) = (time.minute / 60, time.minute % 60, time.weekday);
    let night = if time.night { "night" } else { "day" };
    vec![
        format!("device {} of class {class}", device.unwrap_or("none")),
        format!("clock {hour:02}:{minute:02} ({night}), weekday {weekday}; the request {skew}"),
    ]
}

fn saw_reach(facts: &Facts) -> Vec<String> {
    let seen = facts.inspection.as_ref();
    let hosts = list(seen.iter().flat_map(|seen| &seen.hosts));
    let commands = list(seen.iter().flat_map(|seen| &seen.commands));
    let named = seen.and_then(|seen| seen.named_command.as_deref());
    let named = named.map(|name| format!("the command is {name:?} of [commands]"));
    [format!("hosts: {hosts}, programs: {commands}")].into_iter().chain(named).collect()
}

/// For a terminal. Texts from requests are printable: ids and names are checked when a request is accepted.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} by {}", self.decision.verdict, self.decision.rule)?;
        writeln!(f, "policy {}", self.decision.policy_digest)?;
        for step in &self.steps {
            let reached = if step.reached { "" } else { "  (not reached)" };
            let (name, result, rule) = (step.name, &step.result, &step.rule);
            writeln!(f, "\n{name:<10} {result:<16} {rule}{reached}")?;
            for line in &step.saw {
                writeln!(f, "    saw     {line}")?;
            }
            for reason in &step.reasons {
                writeln!(f, "    because {}", reason.text)?;
                writeln!(f, "    fix     {}", reason.change)?;
            }
        }
        match &self.decision.verdict {
            Verdict::Permit => writeln!(f, "\nNothing needs to change."),
            Verdict::Deny { .. } | Verdict::Quarantine { .. } | Verdict::NeedsApproval { .. } => {
                writeln!(f, "\nTo be permitted, do all of these:")?;
                let mut steps = self.steps.iter();
                steps.try_for_each(|step| {
                    let mut reasons = step.reasons.iter();
                    reasons.try_for_each(|reason| writeln!(f, "  - {}: {}", step.name, reason.change))
                })
            }
        }
    }
}
