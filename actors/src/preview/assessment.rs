//! Assessment: what the policy decides about a request, with a preview if a rule needs one.

use std::sync::Arc;

use effectd_bus::StoreError;
use effectd_contracts::batch::is_batch;
use effectd_contracts::{
    ActionId, ActionRequest, Code, Contract, Failure, GateResults, Mode, OrgId, Origin, PathSnapshot, Phase,
    Predicted, Principal, Session, SpaceId, SubjectId, Timestamp, TraceId,
};
use effectd_policy::{
    Decision, Facts, Inspection, InspectionFacts, Policy, RuleAnswers, Verdict, evaluate, inspect, offered,
};
use serde_json::{Map, Value};

use super::{Trial, Tried, batch};
use crate::action::preview::Preview;
use crate::action::proofs::{DryRun, Ruling};
use crate::control::switches::Switches;
use crate::effects::snapshot::touched_with;
use crate::registry::RegisteredTool;
use crate::services::Services;
use crate::services::connections::Enabled;
use crate::services::sessions;

pub(crate) struct Question<'a> {
    pub(crate) request: &'a ActionRequest,
    pub(crate) tool: &'a RegisteredTool,
    pub(crate) principal: &'a Principal,
    pub(crate) origin: &'a Origin,
    pub(crate) contract: Option<&'a Contract>,
    pub(crate) accepted_at: Timestamp,
    pub(crate) trace_id: &'a TraceId,
}

impl<'a> Question<'a> {
    /// A planner's request, which comes in now and has no contract.
    pub(super) fn of_planner(
        services: &Services,
        request: &'a ActionRequest,
        tool: &'a RegisteredTool,
        (principal, origin): (&'a Principal, &'a Origin),
        trace_id: &'a TraceId,
    ) -> Self {
        let accepted_at = services.clock.now();
        Self { request, tool, principal, origin, contract: None, accepted_at, trace_id }
    }
}

/// What the policy decides about a request, and the inspection and preview for it.
pub(crate) struct Assessed {
    pub(crate) ruling: Ruling,
    pub(crate) inspection: Inspection,
    /// The preview, if a rule needed one.
    pub(crate) preview: Option<Preview>,
    /// The snapshot before the preview.
    pub(crate) before: Vec<PathSnapshot>,
    /// The item that decided about a batch.
    pub(crate) item: Option<usize>,
}

/// Lets the policy decide about a request. If a rule needs a preview, the tool runs on a copy first, unless the request is
/// refused whatever it would change. The error is that no slot for the preview came free.
pub(crate) async fn assess(services: &Services, question: &Question<'_>) -> Result<Assessed, Failure> {
    if is_batch(&question.request.tool_id) {
        return batch::assess(services, question).await;
    }
    assess_one(services, question).await
}

async fn assess_one(services: &Services, question: &Question<'_>) -> Result<Assessed, Failure> {
    let policy = services.policy();
    let mut assessed = unseen(services, &policy, question);
    if policy.needs_preview() && might_be(&assessed.ruling, &policy) {
        let Assessed { ruling, inspection, .. } = &assessed;
        let Question { request, tool, trace_id, .. } = question;
        let trial = Trial::new(request, tool, &inspection.params, &ruling.decision, trace_id);
        let Tried { preview, before, .. } = super::tried(services, &trial).await?;
        assessed.ruling.predict(preview.predicted(), &policy);
        (assessed.preview, assessed.before) = (Some(preview), before);
    }
    Ok(assessed)
}

/// The assessment without a preview.
pub(super) fn unseen(services: &Services, policy: &Policy, question: &Question<'_>) -> Assessed {
    let mut inspection = inspected(services, question.request, question.tool, policy);
    let facts = facts(services, policy, question, &inspection.facts);
    Assessed {
        ruling: Ruling {
            decision: evaluate(&facts, policy),
            facts,
            redactions: std::mem::take(&mut inspection.redactions),
            hidden: std::mem::take(&mut inspection.passed),
            items: Vec::new(),
        },
        inspection,
        preview: None,
        before: Vec::new(),
        item: None,
    }
}

impl Ruling {
    /// Decides again by what the action would change.
    pub(super) fn predict(&mut self, predicted: Option<Predicted>, policy: &Policy) {
        self.facts.predicted = predicted;
        self.decision = evaluate(&self.facts, policy);
    }
}

/// The ruling about an action that was permitted before, as it says in its receipt, and its parameters: no gate judges it again.
pub(crate) fn permitted_before(services: &Services, question: &Question<'_>) -> (Ruling, Map<String, Value>) {
    let policy = services.policy();
    let Inspection { facts: seen, params, redactions, passed: hidden } =
        inspected(services, question.request, question.tool, &policy);
    let facts = facts(services, &policy, question, &seen);
    let mut decision = evaluate(&facts, &policy);
    decision.verdict = Verdict::Permit;
    decision.gates = GateResults::default();
    decision.rule = "part of a batch that was permitted".to_owned();
    decision.timeout_ms_max = decision.timeout_ms_max.max(question.tool.spec().timeout_ms);
    decision.command = None;
    (Ruling { decision, facts, redactions, hidden, items: Vec::new() }, params)
}

/// The facts about a planner's request that comes in now and from no session, without a preview.
pub fn facts_of(
    services: &Services,
    policy: &Policy,
    request: &ActionRequest,
    tool: &RegisteredTool,
    principal: &Principal,
) -> Facts {
    let trace_id = request.trace().unwrap_or_else(TraceId::fresh);
    let by = (principal, &Origin::Arbiter);
    let question = Question::of_planner(services, request, tool, by, &trace_id);
    facts(services, policy, &question, &inspected(services, request, tool, policy).facts)
}

/// A call of the tool in a session, with the parameters of the tool's example.
pub fn example_in(session: &Session, tool: &RegisteredTool) -> ActionRequest {
    let mut params = tool.example().clone();
    if let Some(space) = params.get_mut("space_id") {
        *space = session.space_id.as_str().into();
    }
    session.request(tool.spec().tool_id.clone(), params)
}

/// What the policy decides now about a request of the session's agent, without a preview. `None` if the tool needs a connection that is
/// not there.
pub fn decision_in(
    services: &Services,
    session: &Session,
    tool: &RegisteredTool,
    request: &ActionRequest,
) -> Option<Decision> {
    let (policy, agent) = (services.policy(), session.agent()?);
    let origin = Origin::Session { session_id: session.session_id.clone() };
    let trace_id = TraceId::fresh();
    let question = Question::of_planner(services, request, tool, (&agent, &origin), &trace_id);
    let facts = facts(services, &policy, &question, &inspected(services, request, tool, &policy).facts);
    connected(facts).map(|facts| evaluate(&facts, &policy))
}

/// What one caller is offered. The policy is one for the whole list; session, switches and rules are not asked for each tool.
pub struct Offers<'a> {
    services: &'a Services,
    policy: Arc<Policy>,
    place: (&'a SubjectId, &'a SpaceId),
    by: (&'a Principal, &'a Origin),
    session: Option<Session>,
    switches: Switches<'a>,
    trace_id: TraceId,
    /// Of the call that each tool is asked about.
    action_id: ActionId,
    answers: RuleAnswers,
}

impl<'a> Offers<'a> {
    pub fn new(
        services: &'a Services,
        place: (&'a SubjectId, &'a SpaceId),
        by: (&'a Principal, &'a Origin),
    ) -> Result<Self, StoreError> {
        let (policy, session) = (services.policy(), session_of(services, by.1));
        Ok(Self {
            services,
            policy,
            place,
            by,
            session,
            switches: Switches::read_at_once(&*services.store)?,
            trace_id: TraceId::fresh(),
            action_id: ActionId::fresh(),
            answers: RuleAnswers::default(),
        })
    }

    /// The mode of the caller's calls of a tool. `None` if the policy denies every call, whatever its parameters, the tool is switched
    /// off, or it needs a connection that is not there.
    pub fn mode_of(&mut self, tool: &RegisteredTool) -> Result<Option<Mode>, StoreError> {
        let (spec, (subject, space)) = (tool.spec(), self.place);
        if self.switches.tool_off(&spec.tool_id, self.services.clock.now())?.is_some() {
            return Ok(None);
        }
        let called = (spec.tool_id.clone(), Map::new());
        let bare = ActionRequest::new(self.action_id.clone(), (subject.clone(), space.clone()), called);
        let seen = inspect(&bare.params, spec, space, &self.policy).facts;
        let question = Question::of_planner(self.services, &bare, tool, self.by, &self.trace_id);
        let known = (self.session.as_ref(), &self.switches);
        let facts = facts_in(known, self.services, &self.policy, &question, &seen);
        Ok(connected(facts).and_then(|facts| offered(facts, &self.policy, &mut self.answers)))
    }
}

/// The facts, unless their tool needs a connection that is not there.
fn connected(facts: Facts) -> Option<Facts> {
    (!facts.tool.needs_connection() || facts.connection).then_some(facts)
}

/// If the session cannot be read, the principal needs an entry in the policy as everybody else.
fn session_of(services: &Services, origin: &Origin) -> Option<Session> {
    sessions::of_origin(&*services.store, origin).ok().flatten().flatten()
}

fn facts(services: &Services, policy: &Policy, question: &Question<'_>, seen: &InspectionFacts) -> Facts {
    let (session, switches) = (session_of(services, question.origin), Switches::new(&*services.store));
    facts_in((session.as_ref(), &switches), services, policy, question, seen)
}

fn facts_in(
    (session, switches): (Option<&Session>, &Switches<'_>),
    services: &Services,
    policy: &Policy,
    question: &Question<'_>,
    seen: &InspectionFacts,
) -> Facts {
    let Question { request, tool, principal, origin, contract, accepted_at, .. } = *question;
    let mut facts = Facts::of(request, tool.spec(), principal, accepted_at, seen);
    facts.tool.timeout_ms = tool.declared_time();
    // Rules about time use the present time, since an action may have waited.
    facts.now = services.clock.now();
    facts.utc_offset_min = services.clock.utc_offset_min(facts.now);
    facts.automation = origin.automation().map(str::to_owned);
    facts.agent = session.is_some_and(|session| {
        session.agent().as_ref() == Some(principal) && session.subject_id == request.subject_id
    });
    if let Some(contract) = contract {
        // A plan can only raise the tier.
        facts.tool.tier = facts.tool.tier.max(contract.risk_tier.unwrap_or_default());
        facts.tool.tier_declared = facts.tool.tier_declared.max(contract.risk_tier);
        facts.verified = is_verified(tool, contract);
    }
    facts.drifted = tool.drifted();
    if facts.tool.needs_connection() {
        let connection = connection(services, policy, question, session);
        facts.connection = connection.is_some();
        facts.connection_id = connection.as_ref().map(|connection| connection.connection_id.clone());
        facts.connection_version = connection.as_ref().map(|connection| connection.version);
        let led_to = connection.iter().flat_map(|connection| &connection.hosts);
        let hosts = tool.hosts().iter().chain(led_to).cloned();
        if let Some(seen) = &mut facts.inspection {
            seen.hosts.extend(hosts);
        }
    }
    switches.apply(&mut facts);
    facts
}

/// Whether success is verified, and the effect can be rolled back: the tool declares the paths that it changes, or the plan names them.
fn is_verified(tool: &RegisteredTool, contract: &Contract) -> bool {
    let (spec, scope) = (tool.spec(), contract.scope.as_ref());
    let is_named =
        scope.is_some_and(|scope| !scope.allowed_files.is_empty() || !scope.allowed_dirs.is_empty());
    let has_evidence = spec.reversible || (spec.package.is_some() && is_named);
    let verifies_itself = spec.package.as_ref().is_some_and(|package| package.verifies);
    let is_required = contract.verification.as_ref().is_some_and(|verification| verification.required);
    let is_own = verifies_itself && is_required && contract.rollback_plan.is_some();
    has_evidence && (is_own || contract.is_complete())
}

/// The connection of the space's organisation to the tool's source. A session uses only those that it names.
fn connection(
    services: &Services,
    policy: &Policy,
    question: &Question<'_>,
    session: Option<&Session>,
) -> Option<Arc<Enabled>> {
    let org = OrgId::new(policy.org_of(&question.request.space_id)?).ok()?;
    let found = services.connection(&org, question.tool.spec().tool_id.source())?;
    match question.origin.of_session() {
        Some(_) => session?.connections.contains(&found.connection_id).then_some(found),
        None => Some(found),
    }
}

/// What the policy's rules about content and paths find in the parameters.
pub(super) fn inspected(
    services: &Services,
    request: &ActionRequest,
    tool: &RegisteredTool,
    policy: &Policy,
) -> Inspection {
    let mut inspection = inspect(&request.params, tool.spec(), &request.space_id, policy);
    let touched = || touched_with(&services.files, &request.space_id, tool, &inspection.params);
    inspection.facts.protected = policy.protected(&request.space_id, touched);
    inspection
}

/// Whether the policy might permit the action, or demand an approval, if it changed nothing.
pub(super) fn might_be(Ruling { decision, facts, .. }: &Ruling, policy: &Policy) -> bool {
    let refused = |decision: &Decision| match decision.verdict {
        Verdict::Deny { .. } | Verdict::Quarantine { .. } => true,
        Verdict::Permit | Verdict::NeedsApproval { .. } => false,
    };
    let harmless = Facts { predicted: Some(Predicted::default()), ..facts.clone() };
    !refused(decision) || !refused(&evaluate(&harmless, policy))
}

/// What the operator's switches make of a request that the policy does not deny: a dry run, or a refusal of the tool.
pub(crate) fn switched(
    services: &Services,
    request: &ActionRequest,
    tool: &RegisteredTool,
) -> Result<Option<DryRun>, Failure> {
    let unreadable = |error: StoreError| error.failure(Phase::Gate);
    let (switches, now) = (Switches::new(&*services.store), services.clock.now());
    // By the tool's own id, even if the request uses an alias.
    let tool_id = &tool.spec().tool_id;
    let of_items = batch::tools(services, request);
    for tool_id in of_items.iter().chain([tool_id]) {
        if switches.tool_off(tool_id, now).map_err(unreadable)?.is_some() {
            let message = format!("the tool {tool_id} is disabled");
            return Err(Failure::new(Code::ToolDisabled, Phase::Gate, message));
        }
    }
    if tool.package().is_some() && !services.settings.plugins.allow_code_execution {
        let message = format!("{tool_id} is code of a plugin, and plugins.allow_code_execution is false");
        let failure = Failure::new(Code::PluginCodeDisabled, Phase::Gate, message);
        return Err(failure.unless("set plugins.allow_code_execution to true, and restart the daemon"));
    }
    if request.dry_run {
        return Ok(Some(DryRun::Asked));
    }
    Ok(switches.paused(now).map_err(unreadable)?.map(|_| DryRun::Paused))
}
