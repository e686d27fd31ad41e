//! Decides a hold. A compare-and-swap lets only the first decider succeed. An approval also publishes the planner's decision
//! again, in the same journal block.

use std::time::Duration;

use effectd_bus::{Expect, Store, StoreError, Swap};
use effectd_contracts::{
    ActionRequest, Approval, ApprovalChange, ApprovalId, ApprovalVerdict, Approved, Authority, Clock, Code,
    DecisionData, Event, Failure, Phase, Principal, SpaceId, Topic,
};
use effectd_policy::{Decider, Grant, GrantState, Policy, Reason, Verdict};
use serde_json::{Map, Value};

use super::edit::edited;
use super::expiry::{end, expire};
use super::grants::NewGrant;
use super::hold::{Hold, HoldState, UNSEEN, approval, keyed_digest};
use super::rejudge::{self, Under};
use super::repository::{self, Step, Versioned};
use super::suspend::announce;
use super::{audit, grants, view};
use crate::action::decisions::{approvals, to_publish};
use crate::execution::history;
use crate::failpoint::hit;
use crate::limits::{APPROVALS_MAX, REASON_BYTES_MAX};
use crate::services::{Approvals, Services};

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Approve {
    pub how: How,
    /// The digest of the question that the approver saw; if given, it must match the hold.
    pub digest: Option<String>,
    /// Whether the receipt says `unseen` if there is no digest.
    pub unseen: bool,
    /// Parameters that replace the planner's.
    pub params: Option<Map<String, Value>>,
    /// The digest of the edited question, from [`super::edit::preview_edited`]; if given, it must still match.
    pub edited_digest: Option<String>,
    pub reason: Option<String>,
    /// Another change in the same step.
    pub with: Option<Swap>,
}

/// What the approver permits beyond this action.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum How {
    /// Nothing else.
    #[default]
    Once,
    /// Further calls of the tool, within these bounds.
    Grant {
        /// For the whole organisation, not only the session.
        org: bool,
        calls_max: Option<u32>,
        lasts: Option<Duration>,
    },
    /// All further calls of the tool, or of the named command. [`Approve::with`] changes the mode in the policy.
    Always,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Decided {
    pub hold: Hold,
    pub grant: Option<Grant>,
}

#[derive(Debug, thiserror::Error)]
pub enum DecideError {
    #[error("no approval with this id is pending; `effectd approvals list` shows pending ones")]
    Unknown,
    #[error("it was already decided, by {}", .0.by)]
    Already(Box<Approval>),
    #[error("nobody decided before {0}")]
    Expired(effectd_contracts::Timestamp),
    #[error("{0}")]
    Forbidden(Reason),
    #[error("the approval has changed since it was shown; read it again")]
    Changed,
    /// The change in [`Approve::with`] lost against another one. Nothing was decided.
    #[error("the policy changed at the same time, so nothing was decided; try again")]
    Outdated,
    /// The edited request is invalid, or the policy refuses it.
    #[error("{0}")]
    Invalid(Failure),
    #[error("{0}; it is safe to retry")]
    Store(#[from] StoreError),
}

/// Approves a hold. When this returns, the decision is on disk and the action is published again.
pub async fn approve(
    services: &Services,
    id: &ApprovalId,
    by: &Decider,
    mut approve: Approve,
) -> Result<Decided, DecideError> {
    let with = approve.with.take();
    let Prepared { mut hold, version, record, grant } = prepare(services, id, by, approve).await?;
    hold.state = HoldState::Decided(record.clone());
    commit(services, &hold, version, record, Beside { grant: grant.as_ref(), with }).await?;
    Ok(Decided { hold, grant })
}

/// Refuses what [`approve`] refuses, and decides nothing: the hold of the answer is still open.
pub async fn preview_approve(
    services: &Services,
    id: &ApprovalId,
    by: &Decider,
    approve: Approve,
) -> Result<Decided, DecideError> {
    let Prepared { hold, grant, .. } = prepare(services, id, by, approve).await?;
    Ok(Decided { hold, grant })
}

/// An approval that may be committed.
struct Prepared {
    hold: Hold,
    version: u64,
    record: Approval,
    grant: Option<Grant>,
}

async fn prepare(
    services: &Services,
    id: &ApprovalId,
    by: &Decider,
    approve: Approve,
) -> Result<Prepared, DecideError> {
    let (at, authority) = open(services, id, by, approve.digest.as_deref()).await?;
    let mut hold = at.value;
    let lead = &hold.lead().ok_or(DecideError::Unknown)?.action_id;
    let (before, _) = approvals(&*services.store, lead)?;
    if before >= APPROVALS_MAX {
        let message = format!("this action was already approved {before} times; submit a new one");
        return Err(invalid(Code::PolicyDenied, message));
    }
    let policy = services.policy();
    if matches!(approve.how, How::Always | How::Grant { org: true, .. }) {
        let org = policy.org_of(&hold.decision.request.space_id);
        policy.may_administer(by, org).map_err(DecideError::Forbidden)?;
    }
    let mut digest = hold.digest;
    if let Some(params) = approve.params {
        let request = ActionRequest { params, ..hold.decision.request.clone() };
        let edited = edited(services, &hold, request).await?;
        if approve.edited_digest.is_some_and(|seen| seen != edited.digest) {
            return Err(DecideError::Changed);
        }
        let command = edited.foresight.decision.command.as_ref().map(|command| command.name.as_str());
        if approve.how != How::Once && command != hold.prompt.facts.named_command() {
            let text = "the edited parameters are another command than the one that was asked about";
            return Err(forbidden("other_command", text, "approve this call only"));
        }
        digest = edited.question.digest;
        hold.decision.request = edited.request;
        hold.edited = true;
        // The preview in the hold was for other parameters.
        hold.prompt.preview = Some(Box::new(edited.foresight.preview));
        hold.prompt.redactions = edited.foresight.redactions;
        hold.prompt.hidden = edited.hidden;
        hold.prompt.stands = edited.question.stands;
    }
    let grant = grant_of(&services.approvals, &policy, &hold, by, &approve.how)?;
    let verdict = match approve.how {
        How::Once => ApprovalVerdict::Once,
        How::Grant { .. } => ApprovalVerdict::Grant,
        How::Always => ApprovalVerdict::Always,
    };
    let mut record = record(&*services.clock, &hold, by, authority, verdict, approve.reason)?;
    let is_unseen = approve.unseen && approve.digest.is_none();
    record.digest = if is_unseen { UNSEEN.to_owned() } else { keyed_digest(&digest) };
    record.grant_id = grant.as_ref().map(|grant| grant.grant_id.clone());
    record.edited_request_digest =
        hold.edited.then(|| keyed_digest(&services.identity.keyed(&hold.decision.digest())));
    Ok(Prepared { hold, version: at.version, record, grant })
}

/// Denies a hold. When this returns, the action has its receipt.
pub async fn deny(
    services: &Services,
    id: &ApprovalId,
    by: &Decider,
    reason: Option<String>,
) -> Result<Decided, DecideError> {
    let (at, authority) = open(services, id, by, None).await?;
    let mut hold = at.value;
    let record = record(&*services.clock, &hold, by, authority, ApprovalVerdict::Denied, reason)?;
    let reason = record.reason.clone();
    hold.state = HoldState::Decided(record);
    {
        let _lock = services.approvals.changes.lock().await;
        let mut step = Step::default();
        step.hold(&hold, Expect::Version(at.version))?;
        step.close(&*services.store, &hold)?;
        let who = by.principal.as_str();
        if let Some(lead) = hold.lead() {
            announce(&mut step, &*services.clock, &hold, (ApprovalChange::Denied, lead), who, reason);
        }
        commit_step(&*services.store, step, &hold).await?;
    }
    end(services, &hold).await?;
    Ok(Decided { hold, grant: None })
}

/// The hold, if it is still open and this decider may decide it.
pub(super) async fn open(
    services: &Services,
    id: &ApprovalId,
    by: &Decider,
    digest: Option<&str>,
) -> Result<(Versioned<Hold>, Authority), DecideError> {
    let store = &*services.store;
    let policy = services.policy();
    // Over the network, what is not there and what is not for the asker look the same. Users of this machine are told why.
    let knows = |principal: &Principal, space: &SpaceId| {
        by.kind.is_none() || view::may_see(&policy, by, principal, policy.org_of(space))
    };
    let known =
        |at: &Versioned<Hold>| knows(&at.value.decision.principal, &at.value.decision.request.space_id);
    let Some(at) = view::hold(services, by, id)?.filter(known) else {
        let past = repository::past(store, id)?.filter(|past| knows(&past.principal, &past.space_id));
        let past = past.ok_or(DecideError::Unknown)?;
        let org = policy.org_of(&past.space_id);
        policy.may_decide(by, &past.subject_id, org).map_err(DecideError::Forbidden)?;
        return Err(over(past.approval));
    };
    let hold = &at.value;
    let authority = may(&policy, hold, by)?;
    if let Some(approval) = hold.decided() {
        return Err(over(approval.clone()));
    }
    if !hold.is_open(services.clock.now()) {
        let until = hold.expires_at;
        // The sweeper has not ended it yet.
        expire(services, &at).await?;
        return Err(DecideError::Expired(until));
    }
    if digest.is_some_and(|seen| seen != keyed_digest(&hold.digest)) {
        return Err(DecideError::Changed);
    }
    Ok((at, authority))
}

fn over(approval: Approval) -> DecideError {
    if approval.verdict == ApprovalVerdict::Expired {
        DecideError::Expired(approval.at)
    } else {
        DecideError::Already(Box::new(approval))
    }
}

fn may(policy: &Policy, hold: &Hold, by: &Decider) -> Result<Authority, DecideError> {
    let (decision, request) = (&hold.decision, &hold.decision.request);
    let authority = policy.may_decide(by, &request.subject_id, policy.org_of(&request.space_id));
    let authority = authority.map_err(DecideError::Forbidden)?;
    if authority == Authority::Separate && by.principal == decision.principal {
        let text = format!("{} made this request, and nobody decides about their own requests", by.principal);
        return Err(forbidden("own_request", text, "let another approver decide"));
    }
    Ok(authority)
}

fn grant_of(
    approvals: &Approvals,
    policy: &Policy,
    hold: &Hold,
    by: &Decider,
    how: &How,
) -> Result<Option<Grant>, DecideError> {
    let How::Grant { org: wide, calls_max, lasts } = how else {
        return Ok(None);
    };
    if *calls_max == Some(0) {
        return Err(invalid(Code::Malformed, "a grant must allow at least one call".to_owned()));
    }
    let request = &hold.decision.request;
    if !hold.prompt.decision.grant_allowed {
        let text =
            "a grant cannot replace a person here: the tier or the band requires an approval of each call";
        return Err(forbidden("no_grant", text, "approve this call only"));
    }
    let Some(org) = policy.org_of(&request.space_id) else {
        let text = format!("{} belongs to no organisation", request.space_id);
        return Err(forbidden("no_org", text, "approve this call only"));
    };
    let now = approvals.clock.now();
    let new = NewGrant {
        org: org.to_owned(),
        session: (!wide).then(|| hold.session.clone()),
        tool: request.tool_id.to_string(),
        command: hold.prompt.facts.named_command().map(str::to_owned),
        calls_max: *calls_max,
        expires_at: lasts.map(|lasts| now.checked_add(lasts).unwrap_or(now)),
        reason: None,
    };
    grants::room(&*approvals.store)?;
    Ok(Some(grants::new_grant(policy, now, new, by, GrantState::Active)))
}

fn record(
    clock: &dyn Clock,
    hold: &Hold,
    by: &Decider,
    authority: Authority,
    verdict: ApprovalVerdict,
    reason: Option<String>,
) -> Result<Approval, DecideError> {
    check_reason(reason.as_deref())?;
    let (by, times) = (by.principal.as_str(), (hold.asked_at, clock.now()));
    Ok(Approval {
        approval_id: Some(hold.approval_id.clone()),
        reason,
        ..approval(verdict, by, times, &hold.digest, authority)
    })
}

/// Refuses a reason that is too long or not printable.
pub(super) fn check_reason(reason: Option<&str>) -> Result<(), DecideError> {
    match reason.and_then(reason_fault) {
        Some(message) => Err(invalid(Code::Malformed, message)),
        None => Ok(()),
    }
}

/// What is wrong with a person's reason.
pub fn reason_fault(reason: &str) -> Option<String> {
    let is_bad = reason.len() > REASON_BYTES_MAX || reason.chars().any(char::is_control);
    is_bad.then(|| format!("a reason is printable text of at most {REASON_BYTES_MAX} bytes"))
}

pub(super) fn forbidden(code: &'static str, text: impl Into<String>, change: &str) -> DecideError {
    DecideError::Forbidden(Reason::new(code, text.into(), change))
}

fn invalid(code: Code, message: String) -> DecideError {
    DecideError::Invalid(Failure::new(code, Phase::Hold, message))
}

struct Beside<'a> {
    grant: Option<&'a Grant>,
    with: Option<Swap>,
}

/// In one step: decides the hold, puts the grant or the mode in force, and publishes the action's decision again.
async fn commit(
    services: &Services,
    hold: &Hold,
    version: u64,
    record: Approval,
    beside: Beside<'_>,
) -> Result<(), DecideError> {
    let Some(lead) = hold.lead() else {
        return Err(DecideError::Unknown);
    };
    let _lock = services.approvals.changes.lock().await;
    let store = &*services.store;
    let (by, reason) = (record.by.clone(), record.reason.clone());
    let mut step = Step::default();
    step.hold(hold, Expect::Version(version))?;
    step.close(store, hold)?;
    let changes_policy = beside.with.is_some();
    step.with(beside.with);
    let act = match beside.grant {
        Some(grant) => {
            let what = ApprovalChange::GrantCreated;
            let (policy, now) = (services.policy(), services.clock.now());
            grants::put(&mut step, &policy, grant, Expect::Absent, what, &by, now)?
        }
        None => None,
    };
    announce(&mut step, &*services.clock, hold, (ApprovalChange::Approved, lead), &by, reason);
    publish(store, &mut step, hold, record)?;
    hit("held.before_decide", &lead.action_id).await;
    let taken = commit_step(store, step, hold).await;
    hit("held.after_decide", &lead.action_id).await;
    match taken {
        // The hold is unchanged, so the version mismatch is that of the policy.
        Err(DecideError::Changed) if changes_policy && is_unchanged(store, hold, version)? => {
            return Err(DecideError::Outdated);
        }
        taken => taken?,
    }
    audit::conclude(services, act.as_ref()).await;
    Ok(())
}

fn is_unchanged(store: &dyn Store, hold: &Hold, version: u64) -> Result<bool, StoreError> {
    let now = repository::hold(store, &hold.approval_id)?;
    Ok(now.is_some_and(|now| now.version == version))
}

/// Publishes the decision of the hold's first member again, with the approval as evidence.
pub(crate) fn publish(
    store: &dyn Store,
    step: &mut Step,
    hold: &Hold,
    record: Approval,
) -> Result<(), StoreError> {
    let Some(lead) = hold.lead() else { return Ok(()) };
    let (before, _) = approvals(store, &lead.action_id)?;
    let data = DecisionData {
        approved: Some(Approved { record, original: hold.edited.then_some(lead.digest) }),
        ..hold.decision.clone()
    };
    let mut event = Event::decision(data, lead.trace_id.clone(), lead.accepted_at);
    event.id = Event::<DecisionData>::id_for_approval(&lead.action_id, before + 1);
    step.event(Topic::ActionDecision, to_publish(&event));
    Ok(())
}

async fn commit_step(store: &dyn Store, step: Step, hold: &Hold) -> Result<(), DecideError> {
    match step.commit(store).await {
        Ok(_) => Ok(()),
        Err(StoreError::VersionMismatch { .. }) => Err(lost(store, hold)?),
        Err(error) => Err(error.into()),
    }
}

/// Another decider was first: returns what was decided.
fn lost(store: &dyn Store, hold: &Hold) -> Result<DecideError, StoreError> {
    let now = repository::hold(store, &hold.approval_id)?;
    let decided = match now {
        Some(now) => now.value.decided().cloned(),
        None => repository::past(store, &hold.approval_id)?.map(|past| past.approval),
    };
    // Not decided: another request has joined, or the action was withdrawn.
    Ok(decided.map_or(DecideError::Changed, over))
}

/// What a standing approval would change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandingApproval {
    pub org: String,
    /// The tool, or the named command as `command.run <name>`.
    pub tool: String,
    /// Past calls of the tool that needed an approval.
    pub asked: usize,
    /// Those that would not have needed one.
    pub covered: usize,
    /// Pending approvals, beside this one, that it would release.
    pub released: u64,
}

/// The pending approvals, beside this one, that an approval with a grant would release.
pub fn grant_releases(services: &Services, hold: &Hold, by: &Decider, how: &How) -> Result<u64, DecideError> {
    let policy = services.policy();
    may(&policy, hold, by)?;
    let Some(grant) = grant_of(&services.approvals, &policy, hold, by, how)? else {
        return Ok(0);
    };
    let under = Under { except: Some(&hold.approval_id), ..Under::grant(&policy, grant) };
    Ok(rejudge::count(&*services.store, services.clock.now(), under)?.released)
}

pub fn standing_approval(services: &Services, hold: &Hold) -> Result<StandingApproval, DecideError> {
    let (store, policy) = (&*services.store, services.policy());
    let request = &hold.decision.request;
    let Some(org) = policy.org_of(&request.space_id).map(str::to_owned) else {
        let text = format!("{} belongs to no organisation", request.space_id);
        return Err(forbidden("no_org", text, "approve this call only"));
    };
    let mut overlay = policy.overlay().clone();
    let facts = &hold.prompt.facts;
    let tool = effectd_policy::mode_key(request.tool_id.as_str(), facts.named_command());
    let change = effectd_policy::Change::SetOrgMode {
        org: org.clone(),
        tool: tool.clone(),
        mode: Some(effectd_policy::SetMode::Lasting(effectd_contracts::Mode::Allow)),
    };
    let then = overlay.apply(change).and_then(|()| policy.with_overlay(&overlay));
    let then = then.map_err(|error| invalid(Code::PolicyDenied, error.to_string()))?;
    let permits = |facts: &effectd_policy::Facts| {
        matches!(effectd_policy::evaluate(facts, &then).verdict, Verdict::Permit)
    };
    if !permits(facts) {
        let text = "a standing approval would have no effect: the tier, the band or a policy rule requires an approval of each call";
        return Err(forbidden("no_standing", text, "approve this call only"));
    }
    let asks = history::asks(store, &request.tool_id)?;
    let under = Under { except: Some(&hold.approval_id), ..Under::policy(&policy, &then) };
    let released = rejudge::count(store, services.clock.now(), under)?.released;
    Ok(StandingApproval {
        released,
        org,
        tool,
        asked: asks.len(),
        covered: asks.iter().filter(|facts| permits(facts)).count(),
    })
}
