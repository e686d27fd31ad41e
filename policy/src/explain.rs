//! Why a decision came out as it did: every gate, what it saw, and what would have to change.
//!
//! Gates behind the one that refused are asked too, and marked as not reached: whoever mends one thing wants to know what
//! comes next.

use std::fmt;

use effectd_contracts::{Gate, GateResult, Mode, ModeSource, SafetyClass};

use crate::decision::{Decision, Reason, Verdict};
use crate::evaluate::evaluate;
use crate::facts::Facts;
use crate::gates;
use crate::mode;
use crate::policy::Policy;
use crate::policy::consents::ConsentAnswer;
use crate::risk;

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
    /// What it says, or would say.
    pub result: String,
    /// Whether the decision came this far.
    pub reached: bool,
    pub rule: String,
    pub saw: Vec<String>,
    /// Why it refuses, and what would have to change.
    pub reasons: Vec<Reason>,
}

pub fn explain(facts: &Facts, policy: &Policy) -> Explanation {
    let decision = evaluate(facts, policy);
    let risk = risk::assess(facts, policy);
    let mut steps = Vec::new();
    let mut reached = true;
    for gate in Gate::ALL {
        let answer = gates::ask(gate, facts, &risk, policy);
        let refuses = matches!(answer.result, GateResult::Deny | GateResult::Quarantine);
        steps.push(StepView {
            name: gate.as_str(),
            result: result_word(answer.result).to_owned(),
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

fn class_word(class: SafetyClass) -> &'static str {
    match class {
        SafetyClass::Low => "low",
        SafetyClass::Medium => "medium",
        SafetyClass::High => "high",
    }
}

fn level_word(level: ModeSource) -> &'static str {
    match level {
        ModeSource::AutomationOverride => "the automation's own mode",
        ModeSource::OrgDefault => "the organisation's mode",
        ModeSource::InferredDefault => "what follows from the tier",
    }
}

fn mode_step(facts: &Facts, risk: &risk::Risk, policy: &Policy, reached: bool) -> StepView {
    let resolved = mode::resolve(facts, risk, policy);
    let mut saw = vec![
        format!(
            "tier {:?}, class {}, band {}",
            risk.tier,
            class_word(risk.class),
            mode::band_word(resolved.band)
        ),
        format!("the cascade answered at {}", level_word(resolved.source)),
    ];
    if let Some(clamp) = resolved.clamped_by {
        saw.push(format!("made stricter by {}", clamp.as_str()));
    }
    let reasons = match resolved.mode {
        Mode::Allow => Vec::new(),
        Mode::RequireApproval | Mode::Deny => vec![mode::reason(&resolved, facts, risk)],
    };
    let result = match resolved.mode {
        Mode::Allow => "allow",
        Mode::RequireApproval => "require_approval",
        Mode::Deny => "deny",
    };
    StepView {
        name: "mode",
        result: result.to_owned(),
        reached,
        rule: resolved.rule,
        saw,
        reasons,
    }
}

const fn result_word(result: GateResult) -> &'static str {
    match result {
        GateResult::Ok => "ok",
        GateResult::Deny => "deny",
        GateResult::Quarantine => "quarantine",
        GateResult::Applied => "applied",
        GateResult::NotApplicable => "n/a",
    }
}

fn saw(gate: Gate, facts: &Facts, policy: &Policy) -> Vec<String> {
    match gate {
        Gate::Rbac => saw_rbac(facts, policy),
        Gate::Abac => saw_abac(facts, policy),
        Gate::Consent => {
            let purpose = format!("tool:{}", facts.tool.id);
            let answer = policy.consent(facts.subject.as_str(), facts.space.as_str(), &purpose, facts.now);
            let found = match answer {
                ConsentAnswer::Given { explicit: true, rule } => format!("given by name in {rule}"),
                ConsentAnswer::Given {
                    explicit: false,
                    rule,
                } => format!("given by a pattern in {rule}"),
                ConsentAnswer::Revoked { rule } => format!("revoked in {rule}"),
                ConsentAnswer::Expired { rule } => format!("expired in {rule}"),
                ConsentAnswer::Missing => "none".to_owned(),
            };
            vec![format!(
                "consent of {} in {} for {purpose}: {found}",
                facts.subject, facts.space
            )]
        }
        Gate::Space => {
            let band = policy
                .tables()
                .spaces
                .get(&facts.space)
                .map(|space| policy.band(&facts.space, space));
            let band = band.map_or("unknown".to_owned(), |(band, rule)| {
                format!("band {} in {rule}", mode::band_word(band))
            });
            let named = facts
                .inspection
                .iter()
                .flat_map(|seen| &seen.spaces)
                .cloned()
                .collect::<Vec<_>>();
            vec![
                format!("{}: {band}", facts.space),
                format!("spaces named in parameters: [{}]", named.join(", ")),
            ]
        }
        Gate::Safety => {
            let found = facts.inspection.as_ref().map_or(0, |seen| seen.findings.len());
            vec![format!("{found} findings in the content")]
        }
        Gate::Redaction => facts.inspection.as_ref().map_or_else(Vec::new, |seen| {
            let counts = seen.redacted;
            let removed = format!(
                "removed {} e-mail addresses, {} phone numbers, {} faces",
                counts.emails, counts.phones, counts.faces
            );
            vec![
                removed,
                format!("needed as they are: [{}]", seen.personal_required.join(", ")),
            ]
        }),
    }
}

fn saw_rbac(facts: &Facts, policy: &Policy) -> Vec<String> {
    let holder = policy.tables().subjects.get(facts.subject.as_str());
    let roles = holder.map_or_else(Vec::new, |holder| {
        holder.roles.iter().map(|role| role.name.clone()).collect()
    });
    let own = holder.map_or_else(Vec::new, |holder| holder.own.names().map(str::to_owned).collect());
    let required = facts.tool.caps.iter().chain(policy.extra_caps(&facts.tool.id));
    let required: Vec<String> = required
        .map(|cap| gates::for_space(cap.as_str(), &facts.space).into_owned())
        .collect();
    vec![
        format!(
            "{} for {}, actor {}",
            facts.principal,
            facts.subject,
            facts.actor.as_deref().unwrap_or("none")
        ),
        format!("required: [{}]", required.join(", ")),
        format!(
            "roles: [{}], own capabilities: [{}]",
            roles.join(", "),
            own.join(", ")
        ),
    ]
}

fn saw_abac(facts: &Facts, policy: &Policy) -> Vec<String> {
    let tables = policy.tables();
    let time = tables.clock.time_of_day(facts.now, facts.utc_offset_min);
    let device = facts.device.as_deref();
    let class = device.map_or("none", |id| {
        tables.devices.get(id).map_or("unknown", String::as_str)
    });
    let skew = facts.skew_s.map_or("told no time".to_owned(), |skew| {
        format!("told a time {skew} s away")
    });
    let night = if time.night { "night" } else { "day" };
    vec![
        format!("device {} of class {class}", device.unwrap_or("none")),
        format!(
            "clock {:02}:{:02} ({night}), weekday {}; the request {skew}",
            time.minute / 60,
            time.minute % 60,
            time.weekday
        ),
    ]
}

fn saw_reach(facts: &Facts) -> Vec<String> {
    let list = |names: Vec<&String>| {
        names
            .iter()
            .map(|name| name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let seen = facts.inspection.as_ref();
    let hosts = list(seen.iter().flat_map(|seen| &seen.hosts).collect());
    let commands = list(seen.iter().flat_map(|seen| &seen.commands).collect());
    vec![format!("hosts: [{hosts}], programs: [{commands}]")]
}

/// For a terminal. Texts from requests are printable by construction: ids and names are checked at the edge.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} by {}", self.decision.verdict, self.decision.rule)?;
        writeln!(f, "policy {}", self.decision.policy_digest)?;
        for step in &self.steps {
            let reached = if step.reached { "" } else { "  (not reached)" };
            writeln!(
                f,
                "\n{:<10} {:<16} {}{reached}",
                step.name, step.result, step.rule
            )?;
            for line in &step.saw {
                writeln!(f, "    saw     {line}")?;
            }
            for reason in &step.reasons {
                writeln!(f, "    because {}", reason.text)?;
                writeln!(f, "    change  {}", reason.change)?;
            }
        }
        match &self.decision.verdict {
            Verdict::Permit => writeln!(f, "\nNothing has to change."),
            Verdict::Deny { .. } | Verdict::Quarantine { .. } | Verdict::NeedsApproval { .. } => {
                writeln!(f, "\nFor another answer, at least one of these has to change:")?;
                self.decision
                    .verdict
                    .reasons()
                    .iter()
                    .try_for_each(|reason| writeln!(f, "  - {}", reason.change))
            }
        }
    }
}
