//! The six gates, and the lists of hosts and programs behind them. Each gate decides from facts and tables alone; their
//! order is in `evaluate.rs`.

use std::borrow::Cow;
use std::ffi::OsStr;

use effectd_contracts::connector::CONNECTOR_SOURCE;
use effectd_contracts::{Band, Code, Gate, GateResult, PolicyList, SafetyClass, SpaceId};

use crate::abac::{AbacAnswer, RuleAnswers};
use crate::decision::Reason;
use crate::facts::{Facts, InspectionFacts};
use crate::glob::any_matches;
use crate::limits::REASONS_MAX;
use crate::policy::Policy;
use crate::risk::{Risk, is_listed, named_command};
use crate::tables::consents::ConsentAnswer;
use crate::tables::roles::Holder;
use crate::tables::{OVERLAY_RULE, Principal, policy_rule};

/// The capability that lets a tool have the personal data that it needs.
const PERSONAL_DATA_CAP: &str = "pii.pass";

/// The name of a rule: a line of `policy.toml`, Cedar rules, or something built in.
type Rule = Cow<'static, str>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) result: GateResult,
    pub(crate) reasons: Vec<Reason>,
    pub(crate) rule: Rule,
}

impl Answer {
    fn pass(result: GateResult, rule: impl Into<Rule>) -> Self {
        Self { result, reasons: Vec::new(), rule: rule.into() }
    }

    fn ok(rule: impl Into<Rule>) -> Self {
        Self::pass(GateResult::Ok, rule)
    }

    fn deny(
        rule: impl Into<Rule>,
        code: &'static str,
        text: impl Into<String>,
        change: impl Into<String>,
    ) -> Self {
        Self::deny_all(rule, vec![Reason::new(code, text, change)])
    }

    fn deny_all(rule: impl Into<Rule>, reasons: Vec<Reason>) -> Self {
        Self { result: GateResult::Deny, reasons, rule: rule.into() }
    }

    fn unknown(what: Unknown, name: impl std::fmt::Display) -> Self {
        let (word, rule, code) = match what {
            Unknown::Subject => ("subject", "unknown subject", "subject_unknown"),
            Unknown::Principal => ("principal", "unknown principal", "principal_unknown"),
            Unknown::Space => ("space", "unknown space", "space_unknown"),
        };
        let text = format!("the policy does not know the {word} {name}");
        Self::deny(rule, code, text, format!("add it to [{word}s]"))
    }
}

/// The kind of a name that the policy does not list.
#[derive(Clone, Copy)]
enum Unknown {
    Subject,
    Principal,
    Space,
}

pub(crate) fn ask(gate: Gate, facts: &Facts, risk: &Risk, policy: &Policy) -> Answer {
    let answer = match gate {
        Gate::Rbac => rbac(facts, policy),
        Gate::Abac => abac(facts, risk, policy),
        Gate::Consent => Ok(consent(facts, risk, policy, &facts.space)),
        Gate::Space => space(facts, risk, policy),
        Gate::Safety => safety(facts),
        Gate::Redaction => redaction(facts, policy),
    };
    answer.unwrap_or_else(|refusal| refusal)
}

/// Whether the principal may act for the subject and the actor, and the subject's capabilities cover the tool's.
fn rbac(facts: &Facts, policy: &Policy) -> Result<Answer, Answer> {
    check_principal(facts, policy)?;
    let subject = known_subject(facts, policy)?;
    let actor = actor_of_automation(facts, policy)?;
    let missing = missing_caps(facts, subject, actor, &facts.space);
    let rule = policy.rule_of(&facts.subject, subject);
    if missing.is_empty() { Ok(Answer::ok(rule)) } else { Err(Answer::deny_all(rule, missing)) }
}

fn known_subject<'p>(facts: &Facts, policy: &'p Policy) -> Result<&'p Holder, Answer> {
    let subject = policy.tables().subjects.get(facts.subject.as_str());
    subject.ok_or_else(|| Answer::unknown(Unknown::Subject, &facts.subject))
}

fn check_principal(facts: &Facts, policy: &Policy) -> Result<(), Answer> {
    // Who created the session may act for its subject, and the agent acts in that session.
    if facts.agent && facts.actor.is_none() {
        return Ok(());
    }
    let entries: Vec<_> = policy.tables().principals.matching(facts.principal.as_str()).collect();
    let Some(first) = entries.first() else {
        return Err(Answer::unknown(Unknown::Principal, &facts.principal));
    };
    let rule = policy_rule(first.line);
    let for_subject =
        |entry: &Principal| entry.is_planner() && any_matches(&entry.subjects, facts.subject.as_str());
    if !entries.iter().any(|entry| for_subject(entry)) {
        let text = format!("{} may not act on behalf of {}", facts.principal, facts.subject);
        let change = format!("add the subject to the principal's subjects in {rule}");
        return Err(Answer::deny(rule, "subject_not_allowed", text, change));
    }
    let Some(actor) = facts.actor.as_deref() else {
        return Ok(());
    };
    // One entry must allow subject and actor, or a principal could combine the subjects of one entry with the actors of
    // another.
    if !entries.iter().any(|entry| for_subject(entry) && any_matches(&entry.actors, actor)) {
        let text = format!("{} may not name the actor {actor:?} for {}", facts.principal, facts.subject);
        let change = format!("add the actor to the principal's actors in {rule}");
        return Err(Answer::deny(rule, "actor_not_allowed", text, change));
    }
    Ok(())
}

/// The actor of an automation: the person who created it. Only capabilities that automation and actor both have count.
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
            let change = "name an actor of [actors]";
            Err(Answer::deny("unknown actor", "actor_unknown", text, change))
        }
    }
}

/// One reason for each capability that is missing in this space.
fn missing_caps(facts: &Facts, subject: &Holder, actor: Option<&Holder>, space: &SpaceId) -> Vec<Reason> {
    let required = facts.tool.caps.iter().map(|cap| for_space(cap.as_str(), space));
    let held =
        |cap: &str| subject.covers(cap).is_some() && actor.is_none_or(|actor| actor.covers(cap).is_some());
    let missing = required.filter(|cap| !held(cap)).take(REASONS_MAX);
    missing
        .map(|cap| {
            let text = format!(
                "{} lacks the capability {cap} that {} requires in {space}",
                facts.subject, facts.tool.id
            );
            let change = format!("give {cap} to a role of {}", facts.subject);
            Reason::new("cap_missing", text, change)
        })
        .collect()
}

/// `workspace:<class>:<verb>` is about the class of the space at hand: a tool that requires `workspace:shared:write` requires
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

/// Whether a call of the tool might pass the gates, with other parameters or at another time. Gates of content decide about none of them.
pub(crate) fn might_pass(facts: &Facts, risk: &Risk, policy: &Policy, answers: &mut RuleAnswers) -> bool {
    rbac(facts, policy).is_ok()
        && visible(facts, policy).is_ok()
        && policy.abac().might_permit(facts, risk, (policy.tables(), policy.entities()), answers)
        && consent(facts, risk, policy, &facts.space).result == GateResult::Ok
        && space(facts, risk, policy).is_ok()
        && reach(facts, policy).is_ok()
}

/// Whether the circumstances allow the action: the clock, the space's visibility, and the Cedar rules.
fn abac(facts: &Facts, risk: &Risk, policy: &Policy) -> Result<Answer, Answer> {
    visible(facts, policy)?;
    Err(match policy.abac().ask(facts, risk, (policy.tables(), policy.entities())) {
        AbacAnswer::Permit { rules } => return Ok(Answer::ok(rules.join(", "))),
        AbacAnswer::Forbid { rules } => {
            let rule = rules.join(", ");
            let text = format!("forbidden by {rule}");
            let change = "change the rule, or the circumstances that it names";
            Answer::deny(rule, "rule_forbids", text, change)
        }
        AbacAnswer::Silent => {
            let (text, change) = ("no attribute rule permits it", "add a rule that permits it");
            Answer::deny("no rule permits", "no_rule_permits", text, change)
        }
        AbacAnswer::Failed { message } => {
            let text = format!("an attribute rule could not be evaluated: {message}");
            Answer::deny("a rule failed", "rule_failed", text, "correct the rule")
        }
    })
}

/// Checks the clock, and that the subject sees the space.
fn visible(facts: &Facts, policy: &Policy) -> Result<(), Answer> {
    let tables = policy.tables();
    let max = tables.clock.skew_s_max;
    if let Some(skew) = facts.skew_s.filter(|skew| *skew > max) {
        let text =
            format!("policy_ctx.time is {skew} s away from the runtime's clock; at most {max} s are allowed");
        let change = "send the current time, or leave policy_ctx.time out";
        let rule = policy_rule(tables.clock.line);
        return Err(Answer::deny(rule, "clock_skew", text, change));
    }
    let subject = known_subject(facts, policy)?;
    let Some(space) = tables.spaces.get(&facts.space) else {
        return Err(Answer::unknown(Unknown::Space, &facts.space));
    };
    if !space.visible(facts.subject.as_str(), subject) {
        let rule = policy_rule(space.line);
        let text = format!("the space {} is not visible to {}", facts.space, facts.subject);
        let change = format!("add the subject to visible_to of the space in {rule}");
        return Err(Answer::deny(rule, "space_invisible", text, change));
    }
    Ok(())
}

/// Whether somebody consented to this tool, for this subject, in this space.
fn consent(facts: &Facts, risk: &Risk, policy: &Policy, space: &SpaceId) -> Answer {
    let purpose = format!("tool:{}", facts.tool.id);
    let grant =
        || format!("give {} the consent {purpose} in {space}: effectd policy grant-consent", facts.subject);
    let deny = |rule: String, code, why: &str, change: String| {
        let text = format!("{} has no consent for {purpose} in {space}: {why}", facts.subject);
        Answer::deny(rule, code, text, change)
    };
    let answer = policy.consent(facts.subject.as_str(), space.as_str(), &purpose, facts.now);
    // A connection is the organisation's recorded consent to talk to that service.
    let connected = facts.connection && facts.tool.needs_connection();
    if !connected && facts.tool.id.source().starts_with(CONNECTOR_SOURCE) {
        let why = "the connector is not that of the space's organisation, or not of the session";
        return deny(
            "no connection".into(),
            "connection_missing",
            why,
            "use a connector of the organisation".into(),
        );
    }
    match answer {
        ConsentAnswer::Revoked { rule } => {
            let why = format!("it was revoked by {rule}");
            let change = if rule == OVERLAY_RULE {
                grant()
            } else {
                format!("remove the revocation in {rule}: no consent by command overrides it")
            };
            deny(rule, "consent_revoked", &why, change)
        }
        ConsentAnswer::Given { explicit, rule } if explicit || risk.class != SafetyClass::High => {
            Answer::ok(rule)
        }
        ConsentAnswer::Given { .. } | ConsentAnswer::Expired { .. } | ConsentAnswer::Missing if connected => {
            Answer::ok("connection")
        }
        ConsentAnswer::Given { rule, .. } => {
            let why = "class HIGH needs a consent that names the subject and the tool";
            deny(rule, "consent_not_explicit", why, grant())
        }
        ConsentAnswer::Expired { rule } => deny(rule, "consent_expired", "it has expired", grant()),
        ConsentAnswer::Missing => deny("no consent".into(), "consent_missing", "none was given", grant()),
    }
}

/// Whether the space's band is not BLACK, and the action stays in the space or may leave it.
fn space(facts: &Facts, risk: &Risk, policy: &Policy) -> Result<Answer, Answer> {
    let Some(space) = policy.tables().spaces.get(&facts.space) else {
        return Err(Answer::unknown(Unknown::Space, &facts.space));
    };
    let (band, rule) = policy.band(&facts.space, space);
    if band == Band::Black {
        let text = format!("the space {} is closed: its band is BLACK", facts.space);
        let change = format!("set a milder band in {rule}");
        return Err(Answer::deny(rule, "space_closed", text, change));
    }
    let others = facts.inspection.iter().flat_map(|seen| &seen.spaces);
    for other in others.filter(|other| *other != facts.space.as_str()) {
        other_space(facts, risk, policy, other)?;
    }
    Ok(Answer::ok(rule))
}

/// Checks another space that the parameters name like the request's own: visibility, band, capabilities, consent.
fn other_space(facts: &Facts, risk: &Risk, policy: &Policy, other: &str) -> Result<(), Answer> {
    let tables = policy.tables();
    let rule = policy_rule(tables.allow_line);
    let refuse = |code, text: String, change: String| Err(Answer::deny(rule.clone(), code, text, change));
    let tool = &facts.tool.id;
    if !tables.cross_space.contains(tool.as_str()) {
        let text = format!("the parameters name the space {other}, but the request is for {}", facts.space);
        let change = format!("name the request's own space, or add {tool} to allow.cross_space");
        let (rule, change) = off_list(policy, PolicyList::CrossSpace, tool.as_str(), &change);
        return Err(Answer::deny(rule, "cross_space", text, change));
    }
    let known = SpaceId::new(other).ok().and_then(|id| tables.spaces.get(&id).map(|space| (id, space)));
    let Some((id, space)) = known else {
        let text = format!("the policy does not know the space {other}");
        return refuse("space_unknown", text, "add it to [spaces]".to_owned());
    };
    let subject = tables.subjects.get(facts.subject.as_str());
    let Some(subject) = subject.filter(|subject| space.visible(facts.subject.as_str(), subject)) else {
        let text = format!("the space {id} is not visible to {}", facts.subject);
        let change = "add the subject to the space's visible_to".to_owned();
        return refuse("space_invisible", text, change);
    };
    if policy.band(&id, space).0 == Band::Black {
        let text = format!("the space {id} is closed: its band is BLACK");
        return refuse("space_closed", text, "set a milder band".to_owned());
    }
    let actor = actor_of_automation(facts, policy)?;
    let missing = missing_caps(facts, subject, actor, &id);
    if !missing.is_empty() {
        return Err(Answer::deny_all(rule, missing));
    }
    let answer = consent(facts, risk, policy, &id);
    if answer.result == GateResult::Ok { Ok(()) } else { Err(answer) }
}

fn inspected(facts: &Facts) -> Result<&InspectionFacts, Answer> {
    facts.inspection.as_ref().ok_or_else(|| {
        let (text, change) = ("the parameters were not inspected", "inspect them first");
        Answer::deny("not inspected", "not_inspected", text, change)
    })
}

/// Whether the content may be used without a review.
fn safety(facts: &Facts) -> Result<Answer, Answer> {
    let seen = inspected(facts)?;
    let mut reasons: Vec<Reason> = Vec::new();
    for finding in seen.findings.iter().take(REASONS_MAX) {
        let (check, kind, pointer) = (finding.check.as_str(), &finding.kind, &finding.pointer);
        let text = format!("{check} found {kind} in {pointer:?}");
        let change = "change the content, or let a person release it";
        reasons.push(Reason::new("content", text, change));
    }
    if seen.overflow && reasons.is_empty() {
        let text = "the parameters are too large to inspect";
        reasons.push(Reason::new("too_much", text, "send less at once"));
    }
    if reasons.is_empty() {
        return Ok(Answer::ok("content checks"));
    }
    Err(Answer { result: GateResult::Quarantine, reasons, rule: "content checks".into() })
}

/// Whether personal data was removed, or the tool may have it.
fn redaction(facts: &Facts, policy: &Policy) -> Result<Answer, Answer> {
    let seen = inspected(facts)?;
    let tool = &facts.tool.id;
    if !seen.personal_refused.is_empty() {
        let (why, change) = if facts.tool.uses_network() {
            let why = "it calls the network, and its schema does not mark the field \"x-pii\": \"required\", or a rule refuses it";
            (why, "leave the data out")
        } else {
            ("the policy refuses it", "leave the data out, or change redaction.rules")
        };
        let fields = seen.personal_refused.join(", ");
        let text = format!("{tool} may not have what looks like personal data in {fields}: {why}");
        return Err(Answer::deny("redaction", "personal_data", text, change));
    }
    if seen.personal_required.is_empty() {
        // Passing personal data on counts as `Applied`, so that the receipt shows it.
        let applied = !seen.redacted.is_zero() || !seen.personal_passed.is_empty();
        let result = if applied { GateResult::Applied } else { GateResult::NotApplicable };
        return Ok(Answer::pass(result, "redaction"));
    }
    let subject = &facts.subject;
    let rest = if facts.tool.uses_network() {
        "or leave the data out"
    } else {
        "or pass the field in redaction.rules unless it is marked \"x-pii\": \"required\", or leave the data out"
    };
    let held = format!(
        "{tool} needs {} unchanged, because it names the tool's target or is marked \"x-pii\": \"required\", and it looks \
        like personal data",
        seen.personal_required.join(", ")
    );
    let holder = policy.tables().subjects.get(subject.as_str());
    let Some(line) = holder.and_then(|holder| holder.covers(PERSONAL_DATA_CAP)) else {
        let text = format!("{held}; {subject} lacks {PERSONAL_DATA_CAP}");
        let change = format!("give {PERSONAL_DATA_CAP} to a role of {subject}, {rest}");
        return Err(Answer::deny("redaction", "personal_data", text, change));
    };
    let purpose = format!("pii:{tool}");
    let consent = policy.consent(subject.as_str(), facts.space.as_str(), &purpose, facts.now);
    match consent {
        ConsentAnswer::Given { explicit: true, .. } => {
            Ok(Answer::pass(GateResult::Applied, policy_rule(line)))
        }
        ConsentAnswer::Given { .. }
        | ConsentAnswer::Revoked { .. }
        | ConsentAnswer::Expired { .. }
        | ConsentAnswer::Missing => {
            let text = format!("{held}; there is no consent for {purpose}");
            let change = format!("give {subject} the consent {purpose} by name, {rest}");
            Err(Answer::deny("redaction", "personal_data", text, change))
        }
    }
}

/// The first protected path of the space that the call would change, and the rule.
fn protected(facts: &Facts, policy: &Policy) -> Option<(String, String)> {
    let tables = policy.tables();
    let space = tables.spaces.get(&facts.space)?;
    let seen = facts.inspection.iter().flat_map(|seen| &seen.protected);
    let seen = seen.filter(|path| space.protected.contains(path)).cloned();
    let writes = named_command(facts, tables).into_iter().flat_map(|command| &command.writes);
    let writes = writes.map(|path| path.iter().map(OsStr::to_string_lossy).collect::<Vec<_>>().join("/"));
    let by_command = space.protected_among(&writes.collect::<Vec<_>>());
    seen.chain(by_command).next().map(|path| (path, policy_rule(space.line)))
}

/// Whether all hosts and programs that the call names are on the operator's lists, and it changes no protected path.
pub(crate) fn reach(facts: &Facts, policy: &Policy) -> Result<(), (Code, String, Reason)> {
    let tables = policy.tables();
    let seen = facts.inspection.as_ref();
    let tool = &facts.tool.id;
    if facts.tool.uses_network() {
        let hosts = seen.map(|seen| &seen.hosts).filter(|hosts| !hosts.is_empty());
        let refused = match hosts {
            None => Some("a host that the request does not name"),
            Some(hosts) => hosts.iter().find(|host| !is_listed(&tables.hosts, host)).map(String::as_str),
        };
        if let Some(host) = refused {
            let text = format!("{tool} may not talk to {host}");
            let change = "add the host to allow.hosts";
            let (rule, change) = off_list(policy, PolicyList::Hosts, host, change);
            let reason = Reason::new("host_not_listed", text, change);
            return Err((Code::NetworkNotWhitelisted, rule, reason));
        }
    }
    if let Some((path, rule)) = protected(facts, policy) {
        let text = format!("{tool} may not change {path}, which is protected in {}", facts.space);
        let change = "let a person change it, or remove it from the space's `protected`";
        return Err((Code::PathDenied, rule, Reason::new("path_protected", text, change)));
    }
    let mut commands = seen.into_iter().flat_map(|seen| &seen.commands);
    let is_named = named_command(facts, tables).is_some();
    if let Some(command) = commands.find(|command| !is_named && !is_listed(&tables.commands, command)) {
        let text = format!("{tool} may not run {command}");
        let change = "name the command in [commands], or add the program to allow.commands";
        let (rule, change) = off_list(policy, PolicyList::Commands, command, change);
        let reason = Reason::new("command_not_listed", text, change);
        return Err((Code::PolicyDenied, rule, reason));
    }
    Ok(())
}

/// The rule that keeps a name off a list, and what has to change: not the files if a command struck it out.
fn off_list(policy: &Policy, list: PolicyList, name: &str, change: &str) -> (String, String) {
    if policy.is_struck(list, name) {
        let list = list.as_str();
        let change = format!("a command struck it out: effectd policy set-entry {list} {name} files");
        return (OVERLAY_RULE.to_owned(), change);
    }
    (policy_rule(policy.tables().allow_line), change.to_owned())
}
