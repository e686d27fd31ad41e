//! Somebody decides. A compare-and-swap on the question makes it once, whoever else decides at the same moment; a yes
//! publishes the decision again in the same block.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Expect, Store, StoreError, Swap};
use effectd_contracts::{
    ActionRequest, Approval, ApprovalId, ApprovalNews, ApprovalVerdict, Approved, Authority, Code,
    DecisionData, Event, Failure, GrantId, Phase, Topic,
};
use effectd_policy::{Decider, Grant, GrantState, Reason, Verdict};
use serde_json::{Map, Value};

use super::acts;
use super::edit::edited;
use super::entries::{self, At, Step};
use super::grants;
use super::hold::{Hold, HoldState, written};
use super::tidy::{announce, end, expire};
use crate::decisions::approvals;
use crate::failpoint::hit;
use crate::idempotency::sealed;
use crate::limits::{APPROVALS_MAX, REASON_BYTES_MAX};
use crate::parts::Parts;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Approve {
    pub how: How,
    /// The digest of what they saw; if it is given, it must be that of the question.
    pub digest: Option<String>,
    /// Other parameters than the planner's.
    pub params: Option<Map<String, Value>>,
    /// The digest of the question with those, as [`super::edit::preview_edited`] told it; if it is given, it must still be that.
    pub edited_digest: Option<String>,
    pub reason: Option<String>,
    /// What is changed in the same step, or not at all.
    pub with: Option<Swap>,
}

/// To what else somebody says yes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum How {
    /// To nothing else.
    #[default]
    Once,
    /// To some more calls of the tool.
    Grant {
        /// Of the whole organisation, not only of the session.
        org: bool,
        calls_max: Option<u32>,
        lasts: Option<Duration>,
    },
    /// To all calls of the tool. [`Approve::with`] is the change of the mode, by whoever keeps the policy.
    Always,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Decided {
    pub hold: Hold,
    /// The pre-approval that was made with it.
    pub grant: Option<Grant>,
}

#[derive(Debug, thiserror::Error)]
pub enum DecideError {
    #[error("no question of this id waits for anybody; `effectd approvals list` shows those that do")]
    Unknown,
    /// It was decided before, and this is how.
    #[error("it was decided before, by {}", .0.by)]
    Already(Box<Approval>),
    /// Nobody decided in time.
    #[error("nobody decided until {0}")]
    Expired(effectd_contracts::Timestamp),
    /// Whoever wants to decide may not.
    #[error("{0}")]
    Forbidden(Reason),
    /// What they saw is not what is asked.
    #[error("this is not what was asked; look at it again")]
    Changed,
    /// What was to be changed in the same step was changed by somebody else meanwhile. Nothing was decided.
    #[error("the policy was changed at the same moment; nothing was decided, ask again")]
    Outdated,
    /// The changed request makes no sense, or the policy refuses it.
    #[error("{0}")]
    Invalid(Failure),
    /// The Store could not do it. Asking again is harmless.
    #[error("{0}; asking again is harmless")]
    Store(#[from] StoreError),
}

/// Says yes. When this returns, it is on disk, and the action is on its way again.
pub async fn approve(
    parts: &Arc<Parts>,
    id: &ApprovalId,
    by: &Decider,
    approve: Approve,
) -> Result<Decided, DecideError> {
    let (at, authority) = open(parts, id, by, approve.digest.as_deref()).await?;
    let mut hold = at.value;
    let policy = parts.policy();
    if matches!(approve.how, How::Always | How::Grant { org: true, .. }) {
        policy.may_administer(by).map_err(DecideError::Forbidden)?;
    }
    let mut digest = hold.digest;
    if let Some(params) = approve.params {
        let request = ActionRequest {
            params,
            ..hold.decision.request.clone()
        };
        let edited = edited(parts, &hold, request).await?;
        if approve.edited_digest.is_some_and(|seen| seen != edited.digest) {
            return Err(DecideError::Changed);
        }
        digest = edited.ask.digest;
        hold.decision.request = edited.request;
        hold.edited = true;
        // What was shown before was the effect of other parameters.
        hold.prompt.preview = Some(Box::new(edited.foresight.preview));
        hold.prompt.stands = edited.ask.stands;
    }
    let grant = grant_of(parts, &hold, by, &approve.how)?;
    let verdict = match approve.how {
        How::Once => ApprovalVerdict::Once,
        How::Grant { .. } => ApprovalVerdict::Grant,
        How::Always => ApprovalVerdict::Always,
    };
    let mut record = record(parts, &hold, by, authority, verdict, approve.reason)?;
    record.digest = written(&digest);
    record.grant_id = grant.as_ref().map(|grant| grant.grant_id.clone());
    record.edited_request_digest = hold
        .edited
        .then(|| written(&parts.identity.keyed(&hold.decision.request.digest())));
    hold.state = HoldState::Decided(record.clone());
    let beside = Beside {
        grant: grant.as_ref(),
        with: approve.with,
    };
    commit(parts, &hold, at.version, record, beside).await?;
    Ok(Decided { hold, grant })
}

/// Says no. When this returns, the action has its receipt.
pub async fn deny(
    parts: &Arc<Parts>,
    id: &ApprovalId,
    by: &Decider,
    reason: Option<String>,
) -> Result<Decided, DecideError> {
    let (at, authority) = open(parts, id, by, None).await?;
    let mut hold = at.value;
    let record = record(parts, &hold, by, authority, ApprovalVerdict::Denied, reason)?;
    let reason = record.reason.clone();
    hold.state = HoldState::Decided(record);
    {
        let _turn = parts.held.take().await;
        let mut step = Step::default();
        step.hold(&hold, Expect::Version(at.version))?;
        step.close(&*parts.store, &hold)?;
        announce(
            &mut step,
            parts,
            &hold,
            ApprovalNews::Denied,
            by.principal.as_str(),
            reason,
        );
        take(parts, step, &hold).await?;
    }
    end(parts, &hold).await?;
    Ok(Decided { hold, grant: None })
}

/// The question, if this one may decide about it and can still do so.
pub(super) async fn open(
    parts: &Arc<Parts>,
    id: &ApprovalId,
    by: &Decider,
    digest: Option<&str>,
) -> Result<(At<Hold>, Authority), DecideError> {
    let store = &*parts.store;
    let Some(at) = entries::hold(store, id)? else {
        let past = entries::past(store, id)?.ok_or(DecideError::Unknown)?;
        parts
            .policy()
            .may_decide(by, &past.subject_id)
            .map_err(DecideError::Forbidden)?;
        return Err(over(past.approval));
    };
    let hold = &at.value;
    let authority = may(parts, hold, by)?;
    if let Some(approval) = hold.decided() {
        return Err(over(approval.clone()));
    }
    if !hold.is_open(parts.clock.now()) {
        let until = hold.expires_at;
        // Nobody swept.
        expire(parts, &at).await?;
        return Err(DecideError::Expired(until));
    }
    if digest.is_some_and(|seen| seen != written(&hold.digest)) {
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

fn may(parts: &Parts, hold: &Hold, by: &Decider) -> Result<Authority, DecideError> {
    let decision = &hold.decision;
    let authority = parts
        .policy()
        .may_decide(by, &decision.request.subject_id)
        .map_err(DecideError::Forbidden)?;
    if authority == Authority::Separate && by.principal == decision.principal {
        let text = format!(
            "{} asked for it, and nobody decides about their own requests",
            by.principal
        );
        let reason = Reason::new("own_request", text, "another approver decides");
        return Err(DecideError::Forbidden(reason));
    }
    Ok(authority)
}

fn grant_of(parts: &Parts, hold: &Hold, by: &Decider, how: &How) -> Result<Option<Grant>, DecideError> {
    let How::Grant {
        org: wide,
        calls_max,
        lasts,
    } = how
    else {
        return Ok(None);
    };
    let request = &hold.decision.request;
    if !hold.prompt.decision.grant_allowed {
        let text = "no grant stands in for a person here: the tier, the band or a changed tool demands one for each call";
        let reason = Reason::new("no_grant", text, "approve it once");
        return Err(DecideError::Forbidden(reason));
    }
    let policy = parts.policy();
    let Some(org) = policy.org_of(&request.space_id) else {
        let text = format!("{} belongs to no organisation", request.space_id);
        return Err(DecideError::Forbidden(Reason::new(
            "no_org",
            text,
            "approve it once",
        )));
    };
    let now = parts.clock.now();
    let grant = Grant {
        grant_id: GrantId::fresh(),
        state: GrantState::Active,
        org: org.to_owned(),
        session: (!wide).then(|| hold.session.clone()),
        tool: request.tool_id.to_string(),
        calls_max: *calls_max,
        calls_used: 0,
        expires_at: lasts.map(|lasts| now.checked_add(lasts).unwrap_or(now)),
        revoked_at: None,
        created_at: now,
        created_by: by.principal.clone(),
        activated_by: None,
        reason: None,
    };
    grants::room(&*parts.store)?;
    Ok(Some(grant))
}

fn record(
    parts: &Parts,
    hold: &Hold,
    by: &Decider,
    authority: Authority,
    verdict: ApprovalVerdict,
    reason: Option<String>,
) -> Result<Approval, DecideError> {
    let too_long = |reason: &String| reason.len() > REASON_BYTES_MAX || reason.chars().any(char::is_control);
    if reason.as_ref().is_some_and(too_long) {
        let message = format!("a reason is printable text of at most {} bytes", REASON_BYTES_MAX);
        return Err(DecideError::Invalid(Failure::new(
            Code::Malformed,
            Phase::Hold,
            message,
        )));
    }
    Ok(Approval {
        approval_id: Some(hold.approval_id.clone()),
        verdict,
        by: by.principal.to_string(),
        at: parts.clock.now(),
        asked_at: hold.asked_at,
        digest: written(&hold.digest),
        authority,
        reason,
        grant_id: None,
        edited_request_digest: None,
    })
}

struct Beside<'a> {
    grant: Option<&'a Grant>,
    with: Option<Swap>,
}

/// The question is decided, the pre-approval or the mode is in force, and the decision is on the bus again: all of it, or nothing.
async fn commit(
    parts: &Arc<Parts>,
    hold: &Hold,
    version: u64,
    record: Approval,
    beside: Beside<'_>,
) -> Result<(), DecideError> {
    let Some(lead) = hold.lead() else {
        return Err(DecideError::Unknown);
    };
    let _turn = parts.held.take().await;
    let store = &*parts.store;
    let (before, _) = approvals(store, &lead.action_id)?;
    if before >= APPROVALS_MAX {
        let message = format!("this action was approved {before} times already; ask for a new one");
        return Err(DecideError::Invalid(Failure::new(
            Code::PolicyDenied,
            Phase::Hold,
            message,
        )));
    }
    let (by, reason) = (record.by.clone(), record.reason.clone());
    let mut step = Step::default();
    step.hold(hold, Expect::Version(version))?;
    step.close(store, hold)?;
    let changes_policy = beside.with.is_some();
    step.with(beside.with);
    let act = match beside.grant {
        Some(grant) => grants::put(
            &mut step,
            parts,
            grant,
            Expect::Absent,
            ApprovalNews::GrantCreated,
            &by,
        )?,
        None => None,
    };
    announce(&mut step, parts, hold, ApprovalNews::Approved, &by, reason);
    publish(store, &mut step, hold, record)?;
    hit("held.before_decide", &lead.action_id).await;
    let taken = take(parts, step, hold).await;
    hit("held.after_decide", &lead.action_id).await;
    match taken {
        // The question is as it was seen: it is the other one that is not.
        Err(DecideError::Changed) if changes_policy && stands(store, hold, version)? => {
            return Err(DecideError::Outdated);
        }
        taken => taken?,
    }
    acts::conclude(parts, act.as_ref()).await;
    Ok(())
}

/// Whether a question is still as it was seen.
fn stands(store: &dyn Store, hold: &Hold, version: u64) -> Result<bool, StoreError> {
    let now = entries::hold(store, &hold.approval_id)?;
    Ok(now.is_some_and(|now| now.version == version))
}

/// Puts the decision about the first member on the bus again, with the approval as evidence.
pub(crate) fn publish(
    store: &dyn Store,
    step: &mut Step,
    hold: &Hold,
    record: Approval,
) -> Result<(), StoreError> {
    let Some(lead) = hold.lead() else { return Ok(()) };
    let (before, _) = approvals(store, &lead.action_id)?;
    let data = DecisionData {
        approved: Some(Approved {
            record,
            original: hold.edited.then_some(lead.digest),
        }),
        ..hold.decision.clone()
    };
    let mut event = Event::decision(data, lead.trace_id.clone(), lead.accepted_at);
    event.id = Event::<DecisionData>::id_for_approval(&lead.action_id, before + 1);
    step.event(Topic::ActionDecision, sealed(&event, &lead.action_id));
    Ok(())
}

async fn take(parts: &Parts, step: Step, hold: &Hold) -> Result<(), DecideError> {
    match step.take(&*parts.store).await {
        Ok(_) => Ok(()),
        Err(StoreError::VersionMismatch { .. }) => Err(lost(parts, hold)?),
        Err(error) => Err(error.into()),
    }
}

/// Somebody else was faster: what did they decide?
fn lost(parts: &Parts, hold: &Hold) -> Result<DecideError, StoreError> {
    let now = entries::hold(&*parts.store, &hold.approval_id)?;
    let decided = match now {
        Some(now) => now.value.decided().cloned(),
        None => entries::past(&*parts.store, &hold.approval_id)?.map(|past| past.approval),
    };
    // Another request has joined it meanwhile, or the one who asked has withdrawn it.
    Ok(decided.map_or(DecideError::Changed, over))
}

/// What a standing approval would change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub org: String,
    pub tool: String,
    /// Past asks that were looked at.
    pub asked: usize,
    /// Those of them that nobody would have been asked.
    pub covered: usize,
}

/// What a yes to all calls of the tool would change, before it is said.
pub fn standing_approval(parts: &Parts, hold: &Hold) -> Result<Standing, DecideError> {
    let request = &hold.decision.request;
    let policy = parts.policy();
    let forbidden =
        |code, text: String, change: &str| DecideError::Forbidden(Reason::new(code, text, change));
    let Some(org) = policy.org_of(&request.space_id).map(str::to_owned) else {
        let text = format!("{} belongs to no organisation", request.space_id);
        return Err(forbidden("no_org", text, "approve it once"));
    };
    let mut overlay = policy.overlay().clone();
    let tool = request.tool_id.to_string();
    let change = effectd_policy::Change::SetOrgMode {
        org: org.clone(),
        tool: tool.clone(),
        mode: Some(effectd_contracts::Mode::Allow),
    };
    let then = overlay.apply(change).and_then(|()| policy.with_overlay(&overlay));
    let then = then.map_err(|error| {
        DecideError::Invalid(Failure::new(Code::PolicyDenied, Phase::Hold, error.to_string()))
    })?;
    let permits = |facts: &effectd_policy::Facts| {
        matches!(effectd_policy::evaluate(facts, &then).verdict, Verdict::Permit)
    };
    if !permits(&hold.prompt.facts) {
        let text = "a standing approval would not help: the tier, the band or a rule of the files asks for each call";
        return Err(forbidden("no_standing", text.to_owned(), "approve it once"));
    }
    let asks = crate::history::asks(&*parts.store, &request.tool_id)?;
    Ok(Standing {
        org,
        tool,
        asked: asks.len(),
        covered: asks.iter().filter(|facts| permits(facts)).count(),
    })
}
