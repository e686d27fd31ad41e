//! The six gates, and the lists of hosts and programs behind them. Each looks at facts and tables, and knows nothing of
//! the others; their order is in [`crate::evaluate`].

use std::borrow::Cow;

use effectd_contracts::{Band, Code, Gate, GateResult, SafetyClass, SpaceId};

use crate::abac::AbacAnswer;
use crate::decision::Reason;
use crate::facts::Facts;
use crate::limits::REASONS_MAX;
use crate::policy::consents::ConsentAnswer;
use crate::policy::roles::Holder;
use crate::policy::{Policy, any_matches, policy_rule};
use crate::risk::Risk;

/// The capability that lets personal data through to a tool that needs it.
pub const PERSONAL_DATA_CAP: &str = "pii.pass";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) result: GateResult,
    pub(crate) reasons: Vec<Reason>,
    pub(crate) rule: Cow<'static, str>,
}

impl Answer {
    fn ok(rule: impl Into<Cow<'static, str>>) -> Self {
        Self {
            result: GateResult::Ok,
            reasons: Vec::new(),
            rule: rule.into(),
        }
    }

    fn deny(rule: impl Into<Cow<'static, str>>, reason: Reason) -> Self {
        Self {
            result: GateResult::Deny,
            reasons: vec![reason],
            rule: rule.into(),
        }
    }
}

pub(crate) fn ask(gate: Gate, facts: &Facts, risk: &Risk, policy: &Policy) -> Answer {
    match gate {
        Gate::Rbac => rbac(facts, policy),
        Gate::Abac => abac(facts, risk, policy),
        Gate::Consent => consent(facts, risk, policy),
        Gate::Space => space(facts, policy),
        Gate::Safety => safety(facts),
        Gate::Redaction => redaction(facts, policy),
    }
}

/// May the principal speak for the subject and the actor, and do the subject's capabilities cover the tool's?
fn rbac(facts: &Facts, policy: &Policy) -> Answer {
    if let Err(answer) = may_speak(facts, policy) {
        return answer;
    }
    let tables = policy.tables();
    let Some(subject) = tables.subjects.get(facts.subject.as_str()) else {
        let text = format!("the policy does not know the subject {}", facts.subject);
        return Answer::deny(
            "unknown subject",
            Reason::new("subject_unknown", text, "add it to [subjects]"),
        );
    };
    let actor = match actor_of_automation(facts, policy) {
        Ok(actor) => actor,
        Err(answer) => return answer,
    };
    let missing = missing_caps(facts, policy, subject, actor, &facts.space);
    if missing.is_empty() {
        return Answer::ok(policy_rule(subject.line));
    }
    Answer {
        result: GateResult::Deny,
        reasons: missing,
        rule: policy_rule(subject.line).into(),
    }
}

fn may_speak(facts: &Facts, policy: &Policy) -> Result<(), Answer> {
    let entries: Vec<_> = policy.tables().principals.of(facts.principal.as_str()).collect();
    let Some(first) = entries.first() else {
        let text = format!("the policy does not know the principal {}", facts.principal);
        let reason = Reason::new("principal_unknown", text, "add it to [principals]");
        return Err(Answer::deny("unknown principal", reason));
    };
    let rule = policy_rule(first.line);
    if !entries
        .iter()
        .any(|entry| entry.is_planner() && any_matches(&entry.subjects, facts.subject.as_str()))
    {
        let text = format!("{} may not speak for {}", facts.principal, facts.subject);
        let change = format!("add the subject to the principal's subjects in {rule}");
        return Err(Answer::deny(
            rule,
            Reason::new("subject_not_allowed", text, change),
        ));
    }
    let Some(actor) = facts.actor.as_deref() else {
        return Ok(());
    };
    // One entry must allow both, or a principal could combine the subjects of one with the actors of another.
    let both = |entry: &&&crate::policy::tables::Principal| {
        entry.is_planner()
            && any_matches(&entry.subjects, facts.subject.as_str())
            && any_matches(&entry.actors, actor)
    };
    if !entries.iter().any(|entry| both(&entry)) {
        let text = format!(
            "{} may not act for the actor {actor:?} as {}",
            facts.principal, facts.subject
        );
        let change = format!("add the actor to the principal's actors in {rule}");
        return Err(Answer::deny(rule, Reason::new("actor_not_allowed", text, change)));
    }
    Ok(())
}

/// An automation acts for the person who made it, and has only what both of them have.
fn actor_of_automation<'p>(facts: &Facts, policy: &'p Policy) -> Result<Option<&'p Holder>, Answer> {
    if !facts.subject.as_str().starts_with("automation://") {
        return Ok(None);
    }
    let actor = facts.actor.as_deref().unwrap_or_default();
    match policy.tables().actors.get(actor) {
        Some(holder) => Ok(Some(holder)),
        None => {
            let text = format!(
                "{} is an automation, and the policy does not know its actor {actor:?}",
                facts.subject
            );
            Err(Answer::deny(
                "unknown actor",
                Reason::new("actor_unknown", text, "name an actor of [actors]"),
            ))
        }
    }
}

/// One reason for each capability that is missing in that space.
fn missing_caps(
    facts: &Facts,
    policy: &Policy,
    subject: &Holder,
    actor: Option<&Holder>,
    space: &SpaceId,
) -> Vec<Reason> {
    let required = facts.tool.caps.iter().chain(policy.extra_caps(&facts.tool.id));
    let required = required.map(|cap| for_space(cap.as_str(), space));
    let held =
        |cap: &str| subject.covers(cap).is_some() && actor.is_none_or(|actor| actor.covers(cap).is_some());
    let missing = required.filter(|cap| !held(cap)).take(REASONS_MAX);
    missing
        .map(|cap| {
            let text = format!(
                "{} lacks the capability {cap} that {} requires in {space}",
                facts.subject, facts.tool.id
            );
            Reason::new(
                "cap_missing",
                text,
                format!("a role of {} is given {cap}", facts.subject),
            )
        })
        .collect()
}

/// `workspace:<class>:<verb>` is about the class of the space at hand: a tool that asks for `workspace:shared:write` needs
/// `workspace:private:write` in a private space.
pub(crate) fn for_space<'c>(cap: &'c str, space: &SpaceId) -> Cow<'c, str> {
    let mut parts = cap.splitn(3, ':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("workspace"), Some(class), Some(verb)) if class != space.class() => {
            Cow::Owned(format!("workspace:{}:{verb}", space.class()))
        }
        _ => Cow::Borrowed(cap),
    }
}

/// Do the circumstances allow it: the clock, the space's visibility, and the rules in Cedar?
fn abac(facts: &Facts, risk: &Risk, policy: &Policy) -> Answer {
    let tables = policy.tables();
    if let Some(skew) = facts.skew_s.filter(|skew| *skew > tables.clock.skew_s_max) {
        let max = tables.clock.skew_s_max;
        let text =
            format!("policy_ctx.time is {skew} s away from the runtime's clock; at most {max} s are allowed");
        let change = "send the current time, or leave policy_ctx.time out";
        return Answer::deny(
            policy_rule(tables.clock.line),
            Reason::new("clock_skew", text, change),
        );
    }
    let Some(subject) = tables.subjects.get(facts.subject.as_str()) else {
        let text = format!("the policy does not know the subject {}", facts.subject);
        return Answer::deny(
            "unknown subject",
            Reason::new("subject_unknown", text, "add it to [subjects]"),
        );
    };
    let Some(space) = tables.spaces.get(&facts.space) else {
        let text = format!("the policy does not know the space {}", facts.space);
        return Answer::deny(
            "unknown space",
            Reason::new("space_unknown", text, "add it to [spaces]"),
        );
    };
    if !space.visible(facts.subject.as_str(), subject) {
        let rule = policy_rule(space.line);
        let text = format!("the space {} is not visible to {}", facts.space, facts.subject);
        let change = format!("add the subject to visible_to of the space in {rule}");
        return Answer::deny(rule, Reason::new("space_invisible", text, change));
    }
    match policy.abac().ask(facts, risk, policy) {
        AbacAnswer::Permit { rules } => Answer::ok(rules.join(", ")),
        AbacAnswer::Forbid { rules } => {
            let rule = rules.join(", ");
            let text = format!("forbidden by {rule}");
            Answer::deny(
                rule,
                Reason::new(
                    "rule_forbids",
                    text,
                    "the circumstances that the rule names change",
                ),
            )
        }
        AbacAnswer::Silent => {
            let reason = Reason::new(
                "no_rule_permits",
                "no attribute rule permits it",
                "add a rule that permits it",
            );
            Answer::deny("no rule permits", reason)
        }
        AbacAnswer::Failed { message } => {
            let text = format!("an attribute rule could not be evaluated: {message}");
            Answer::deny(
                "a rule failed",
                Reason::new("rule_failed", text, "correct the rule"),
            )
        }
    }
}

/// Did someone agree to this purpose, for this subject, in this space?
fn consent(facts: &Facts, risk: &Risk, policy: &Policy) -> Answer {
    consent_in(facts, risk, policy, &facts.space)
}

fn consent_in(facts: &Facts, risk: &Risk, policy: &Policy, space: &SpaceId) -> Answer {
    let purpose = format!("tool:{}", facts.tool.id);
    let explicit_needed = risk.class == SafetyClass::High;
    let deny = |rule: Cow<'static, str>, code, why: &str| {
        let text = format!("{} has no consent for {purpose} in {space}: {why}", facts.subject);
        let change = format!("someone grants {purpose} to {} in {space}", facts.subject);
        Answer::deny(rule, Reason::new(code, text, change))
    };
    let answer = policy.consent(facts.subject.as_str(), space.as_str(), &purpose, facts.now);
    // A connection that the organisation made is the recorded agreement to talk to that service.
    let connected = facts.connection && facts.tool.uses_network();
    match answer {
        ConsentAnswer::Revoked { rule } => {
            let why = format!("it was revoked by {rule}");
            deny(rule.into(), "consent_revoked", &why)
        }
        ConsentAnswer::Given { explicit, rule } if explicit || !explicit_needed => Answer::ok(rule),
        ConsentAnswer::Given { .. } | ConsentAnswer::Expired { .. } | ConsentAnswer::Missing if connected => {
            Answer::ok("connection")
        }
        ConsentAnswer::Given { rule, .. } => deny(
            rule.into(),
            "consent_not_explicit",
            "class HIGH needs one that names the subject and the tool",
        ),
        ConsentAnswer::Expired { rule } => deny(rule.into(), "consent_expired", "it has expired"),
        ConsentAnswer::Missing => deny("no consent".into(), "consent_missing", "nobody gave one"),
    }
}

/// Is the space open at all, and does the action stay in it?
fn space(facts: &Facts, policy: &Policy) -> Answer {
    let tables = policy.tables();
    let Some(space) = tables.spaces.get(&facts.space) else {
        let text = format!("the policy does not know the space {}", facts.space);
        return Answer::deny(
            "unknown space",
            Reason::new("space_unknown", text, "add it to [spaces]"),
        );
    };
    let (band, rule) = policy.band(&facts.space, space);
    if band == Band::Black {
        let text = format!("the space {} is closed: its band is BLACK", facts.space);
        let change = format!("the band in {rule} becomes milder");
        return Answer::deny(rule, Reason::new("space_closed", text, change));
    }
    let others = facts.inspection.iter().flat_map(|seen| &seen.spaces);
    for other in others.filter(|other| *other != facts.space.as_str()) {
        if let Err(answer) = other_space(facts, policy, other) {
            return answer;
        }
    }
    Answer::ok(rule)
}

/// Another space must allow everything that the request's own space does.
fn other_space(facts: &Facts, policy: &Policy, other: &str) -> Result<(), Answer> {
    let tables = policy.tables();
    let rule = policy_rule(tables.allow_line);
    if !tables.cross_space.contains(facts.tool.id.as_str()) {
        let text = format!(
            "the parameters name the space {other}, but the request is for {}",
            facts.space
        );
        let change = format!(
            "name the request's own space, or add {} to allow.cross_space",
            facts.tool.id
        );
        return Err(Answer::deny(rule, Reason::new("cross_space", text, change)));
    }
    let refuse =
        |code, text: String, change: &str| Err(Answer::deny(rule.clone(), Reason::new(code, text, change)));
    let known = SpaceId::new(other)
        .ok()
        .and_then(|id| tables.spaces.get(&id).map(|space| (id, space)));
    let Some((id, space)) = known else {
        return refuse(
            "space_unknown",
            format!("the policy does not know the space {other}"),
            "add it to [spaces]",
        );
    };
    let subject = tables.subjects.get(facts.subject.as_str());
    let Some(subject) = subject.filter(|subject| space.visible(facts.subject.as_str(), subject)) else {
        let text = format!("the space {id} is not visible to {}", facts.subject);
        return refuse(
            "space_invisible",
            text,
            "add the subject to the space's visible_to",
        );
    };
    if policy.band(&id, space).0 == Band::Black {
        let text = format!("the space {id} is closed: its band is BLACK");
        return refuse("space_closed", text, "its band becomes milder");
    }
    let actor = actor_of_automation(facts, policy)?;
    let missing = missing_caps(facts, policy, subject, actor, &id);
    if !missing.is_empty() {
        return Err(Answer {
            result: GateResult::Deny,
            reasons: missing,
            rule: rule.into(),
        });
    }
    let risk = crate::risk::assess(facts, policy);
    let answer = consent_in(facts, &risk, policy, &id);
    if answer.result == GateResult::Ok {
        Ok(())
    } else {
        Err(answer)
    }
}

/// Is the content fit to be used without someone looking at it?
fn safety(facts: &Facts) -> Answer {
    let Some(seen) = &facts.inspection else {
        let reason = Reason::new(
            "not_inspected",
            "nobody has looked at the parameters",
            "inspect them first",
        );
        return Answer::deny("not inspected", reason);
    };
    let mut reasons: Vec<Reason> = Vec::new();
    for finding in seen.findings.iter().take(REASONS_MAX) {
        let text = format!(
            "{} found {} in {:?}",
            finding.check.as_str(),
            finding.kind,
            finding.pointer
        );
        reasons.push(Reason::new(
            "content",
            text,
            "the content changes, or a person releases it",
        ));
    }
    if seen.overflow && reasons.is_empty() {
        let text = "there is more in the parameters than can be looked at";
        reasons.push(Reason::new("too_much", text, "send less at once"));
    }
    if reasons.is_empty() {
        return Answer::ok("content checks");
    }
    Answer {
        result: GateResult::Quarantine,
        reasons,
        rule: "content checks".into(),
    }
}

/// Was personal data removed, or may the tool have it?
fn redaction(facts: &Facts, policy: &Policy) -> Answer {
    let Some(seen) = &facts.inspection else {
        let reason = Reason::new(
            "not_inspected",
            "nobody has looked at the parameters",
            "inspect them first",
        );
        return Answer::deny("not inspected", reason);
    };
    let applied = if seen.redacted.is_zero() {
        GateResult::NotApplicable
    } else {
        GateResult::Applied
    };
    if seen.personal_required.is_empty() {
        return Answer {
            result: applied,
            reasons: Vec::new(),
            rule: "redaction".into(),
        };
    }
    let held = format!(
        "{} needs {} as it is, since it names what the tool works on or is marked \"x-pii\": \"required\", and there is \
        what looks like personal data in it",
        facts.tool.id,
        seen.personal_required.join(", ")
    );
    let subject = policy.tables().subjects.get(facts.subject.as_str());
    let Some(line) = subject.and_then(|subject| subject.covers(PERSONAL_DATA_CAP)) else {
        let text = format!("{held}; {} lacks {PERSONAL_DATA_CAP}", facts.subject);
        let change = format!(
            "a role of {} is given {PERSONAL_DATA_CAP}, or the data is left out",
            facts.subject
        );
        return Answer::deny("redaction", Reason::new("personal_data", text, change));
    };
    let purpose = format!("pii:{}", facts.tool.id);
    let consent = policy.consent(facts.subject.as_str(), facts.space.as_str(), &purpose, facts.now);
    match consent {
        // Passing personal data on is itself a redaction that was decided about, and the receipt lists it.
        ConsentAnswer::Given { explicit: true, .. } => Answer {
            result: GateResult::Applied,
            reasons: Vec::new(),
            rule: policy_rule(line).into(),
        },
        ConsentAnswer::Given { .. }
        | ConsentAnswer::Revoked { .. }
        | ConsentAnswer::Expired { .. }
        | ConsentAnswer::Missing => {
            let text = format!("{held}; there is no consent for {purpose}");
            let change = format!(
                "someone grants {purpose} to {} by name, or the data is left out",
                facts.subject
            );
            Answer::deny("redaction", Reason::new("personal_data", text, change))
        }
    }
}

/// Are all hosts and programs that the call names on the operator's lists?
pub(crate) fn reach(facts: &Facts, policy: &Policy) -> Result<(), (Code, String, Reason)> {
    let tables = policy.tables();
    let rule = policy_rule(tables.allow_line);
    let seen = facts.inspection.as_ref();
    if facts.tool.uses_network() {
        let hosts = seen.map(|seen| &seen.hosts);
        let refused = |name: &str| {
            let text = format!("{} may not talk to {name}", facts.tool.id);
            let reason = Reason::new("host_not_listed", text, "add the host to allow.hosts");
            (Code::NetworkNotWhitelisted, rule.clone(), reason)
        };
        match hosts.filter(|hosts| !hosts.is_empty()) {
            None => return Err(refused("a host that the request does not name")),
            Some(hosts) => {
                if let Some(host) = hosts.iter().find(|host| !any_matches(&tables.hosts, host)) {
                    return Err(refused(host));
                }
            }
        }
    }
    let commands = seen.into_iter().flat_map(|seen| &seen.commands);
    for command in commands {
        if !any_matches(&tables.commands, command) {
            let text = format!("{} may not run {command}", facts.tool.id);
            let reason = Reason::new("command_not_listed", text, "add the program to allow.commands");
            return Err((Code::PolicyDenied, rule, reason));
        }
    }
    Ok(())
}
