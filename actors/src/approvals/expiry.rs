//! Expiry and the end of holds: ends holds that no approver decided in time, and carries out the decided ones. Every step can
//! be repeated, so the next process finishes what a dead one began.

use effectd_bus::{Expect, Link, StoreError};
use effectd_contracts::{
    ActionId, Approval, ApprovalChange, ApprovalId, ApprovalVerdict, Approved, Authority, Code, DecisionData,
    Failure, Outcome, Phase, Timestamp, TraceId,
};
use effectd_policy::Policy;

use super::decide::publish;
use super::hold::{Hold, HoldState, approval};
use super::repository::{self, Step, Versioned};
use super::suspend::{announce, lead_on, leave};
use super::{audit, grants};
use crate::action::decisions::detached;
use crate::action::proofs::Ruling;
use crate::execution::recording;
use crate::failpoint::hit;
use crate::messages::Refusal;
use crate::services::answers::{Answer, Answers, Done, ended};
use crate::services::{Approvals, Services, sessions};

/// Ends expired holds, and finishes what a dead process left unfinished. Returns how many holds are open.
pub(crate) async fn all(services: &Services) -> Result<usize, StoreError> {
    let (mut after, mut open, mut next_expiry) = (None, 0, None);
    loop {
        let (page, next) = repository::holds(&*services.store, after.as_deref())?;
        for hold in page {
            let id = &hold.value.approval_id;
            let swept = one(services, &hold).await;
            // A hold that fails does not stop the others.
            let swept = swept.inspect_err(|error| {
                let trace = hold.value.decision.request.trace();
                let trace_id = trace.as_ref().map(TraceId::as_str);
                tracing::warn!(trace_id, %error, approval_id = %id, "a hold could not be removed; the sweeper tries again");
            });
            if swept.unwrap_or(true) {
                open += 1;
                let end = hold.value.expires_at;
                next_expiry = Some(next_expiry.map_or(end, |known: Timestamp| known.min(end)));
            }
        }
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    services.metrics.holds_open.set(i64::try_from(open).unwrap_or(i64::MAX));
    services.metrics.next_expiry.set(next_expiry.map_or(0, Timestamp::as_second));
    audit::finish_all(services).await?;
    Ok(open)
}

/// Sweeps one hold. Returns whether it is still open.
async fn one(services: &Services, hold: &Versioned<Hold>) -> Result<bool, StoreError> {
    match &hold.value.state {
        HoldState::Pending if hold.value.expires_at <= services.clock.now() => {
            expire(services, hold).await?;
            Ok(false)
        }
        HoldState::Pending if sessions::is_deleted(&*services.store, &hold.value.decision.origin)? => {
            deny_of_deleted(services, hold).await?;
            Ok(false)
        }
        HoldState::Pending => {
            repository::list_by_space(&services.approvals, hold).await?;
            // A member with a receipt was withdrawn or ended, and the process died before it removed the member.
            for member in &hold.value.members {
                if services.store.receipt_of(&member.action_id)?.is_some() {
                    leave(&services.approvals, &member.action_id).await?;
                }
            }
            Ok(true)
        }
        HoldState::Decided(_) if hold.value.is_approved() => {
            finish(&services.approvals, &services.in_flight.answers, &hold.value).await?;
            Ok(false)
        }
        HoldState::Decided(_) => {
            end(services, &hold.value).await?;
            Ok(false)
        }
    }
}

/// Denies a hold of a session that was deleted.
pub(crate) async fn deny_of_deleted(services: &Services, hold: &Versioned<Hold>) -> Result<(), StoreError> {
    let (verdict, what) = (ApprovalVerdict::Denied, ApprovalChange::Denied);
    let reason = Some("the session was deleted".to_owned());
    end_by(services, hold, EndedBy { by: "effectd", verdict, reason, what }).await
}

/// Who ends holds that the policy denies now.
pub(super) const POLICY: &str = "policy";

/// How a hold ends without a person.
pub(super) struct EndedBy {
    pub(super) by: &'static str,
    pub(super) verdict: ApprovalVerdict,
    pub(super) reason: Option<String>,
    pub(super) what: ApprovalChange,
}

/// Ends a hold that no approver decided in time.
pub(crate) async fn expire(services: &Services, hold: &Versioned<Hold>) -> Result<(), StoreError> {
    let (verdict, what) = (ApprovalVerdict::Expired, ApprovalChange::Expired);
    end_by(services, hold, EndedBy { by: "clock", verdict, reason: None, what }).await
}

pub(super) async fn end_by(
    services: &Services,
    hold: &Versioned<Hold>,
    ended: EndedBy,
) -> Result<(), StoreError> {
    let expired = {
        let _lock = services.approvals.changes.lock().await;
        let mut expired = hold.value.clone();
        let times = (expired.asked_at, services.clock.now());
        let policy = services.policy();
        let authority = authority(&policy, policy.org_of(&expired.decision.request.space_id));
        expired.state = HoldState::Decided(Approval {
            approval_id: Some(expired.approval_id.clone()),
            reason: ended.reason.clone(),
            ..approval(ended.verdict, ended.by, times, &expired.digest, authority)
        });
        let mut step = Step::default();
        step.hold(&expired, Expect::Version(hold.version))?;
        step.close(&*services.store, &expired)?;
        if let Some(lead) = expired.lead() {
            let what = (ended.what, lead);
            announce(&mut step, &*services.clock, &expired, what, ended.by, ended.reason);
        }
        match step.commit(&*services.store).await {
            Ok(_) => {}
            // Another process or task decided the hold first.
            Err(StoreError::VersionMismatch { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        expired
    };
    end(services, &expired).await
}

/// Whether the policy separates planners from approvers, in this organisation or everywhere.
pub(crate) fn authority(policy: &Policy, org: Option<&str>) -> Authority {
    if policy.names_approvers(org) { Authority::Separate } else { Authority::SingleUser }
}

/// Ends a denied or expired hold with its receipt.
pub(crate) async fn end(services: &Services, hold: &Hold) -> Result<(), StoreError> {
    let (Some(approval), Some(lead)) = (hold.decided(), hold.lead()) else {
        return Ok(());
    };
    hit("held.before_end", &lead.action_id).await;
    if services.store.receipt_of(&lead.action_id)?.is_none() {
        match recording::withdrawn(services, refusal(services, hold, approval)).await {
            // The action was begun or has ended in another way: it has its own receipt, or will have one.
            Ok(_) | Err(StoreError::AlreadyReceipted { .. } | StoreError::StaleFence { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    finish(&services.approvals, &services.in_flight.answers, hold).await
}

/// Why a hold that is denied or expired ends.
pub(super) fn failure(hold: &Hold, approval: &Approval) -> Failure {
    match approval.verdict {
        ApprovalVerdict::Expired => {
            let message = format!("nobody decided before {}", hold.expires_at);
            Failure::new(Code::ApprovalExpired, Phase::Hold, message)
        }
        ApprovalVerdict::Denied if approval.by == POLICY => {
            let unsaid = || Failure::new(Code::PolicyDenied, Phase::Gate, "the policy denies it now");
            hold.prompt.decision.failure().unwrap_or_else(unsaid)
        }
        ApprovalVerdict::Denied
        | ApprovalVerdict::Revoked
        | ApprovalVerdict::Once
        | ApprovalVerdict::Grant
        | ApprovalVerdict::Always => {
            let reason = approval.reason.as_deref().unwrap_or("no reason was given");
            let message = format!("{} denied it: {reason}", approval.by);
            Failure::new(Code::HumanDenied, Phase::Hold, message)
        }
    }
}

fn refusal(services: &Services, hold: &Hold, approval: &Approval) -> Refusal {
    let mut decision: DecisionData = hold.decision.clone();
    let lead = hold.lead();
    decision.approved = Some(Approved { record: approval.clone(), original: lead.map(|lead| lead.digest) });
    let trace = lead.map_or_else(effectd_contracts::TraceId::fresh, |lead| lead.trace_id.clone());
    let accepted = lead.map_or(hold.asked_at, |lead| lead.accepted_at);
    let tool = services.registry().get(&decision.request.tool_id).cloned();
    Refusal {
        tool,
        ruling: Some(Ruling {
            decision: hold.prompt.decision.clone(),
            facts: hold.prompt.facts.clone(),
            redactions: hold.prompt.redactions.clone(),
            hidden: hold.prompt.hidden.clone(),
            items: Vec::new(),
        }),
        ..Refusal::new(detached(services, decision, trace, accepted), failure(hold, approval))
    }
}

/// After the first member has ended: links the other members to its receipt, and removes the hold. Does nothing while there is no
/// receipt.
async fn finish(approvals: &Approvals, answers: &Answers, hold: &Hold) -> Result<(), StoreError> {
    let store = &*approvals.store;
    let Some(lead) = hold.lead() else { return Ok(()) };
    let Some((receipt, _)) = ended(store, &lead.action_id)? else {
        return Ok(());
    };
    if receipt.outcome == Outcome::Cancelled && hold.is_approved() && hold.members.len() > 1 {
        return hand_on(approvals, hold).await;
    }
    // All are queued before the first is awaited: each waits for the next block.
    let links = hold.members[1..].iter().map(|member| {
        let link = Link {
            action_id: member.action_id.clone(),
            action_digest: member.digest,
            receipt_id: receipt.receipt_id.clone(),
            leases: Vec::new(),
        };
        (member, store.link(link))
    });
    for (member, link) in links.collect::<Vec<_>>() {
        match link.await {
            Ok(()) => {
                let done = Done::before(receipt.clone());
                answers.send(&member.action_id, &Answer::Done(done));
            }
            // This member was withdrawn, and has a receipt of its own.
            Err(
                StoreError::AlreadyReceipted { .. }
                | StoreError::StaleFence { .. }
                | StoreError::Conflict { .. },
            ) => {}
            Err(error) => return Err(error),
        }
    }
    let _lock = approvals.changes.lock().await;
    let Some(now) = repository::hold(store, &hold.approval_id)? else {
        return Ok(());
    };
    let mut step = Step::default();
    step.close(store, &now.value)?;
    for member in &now.value.members {
        step.remove_member(&member.action_id)?;
    }
    step.remove(&now)?;
    step.past(&now.value)?;
    step.commit(store).await.map(drop)
}

/// Cleans up after an action that a person or a grant permitted. If this fails, the sweeper repeats it.
pub(crate) async fn after_end(
    approvals: &Approvals,
    answers: &Answers,
    id: &ActionId,
    approval: Option<ApprovalId>,
    granted: bool,
) {
    if let Err(error) = clean_up(approvals, answers, id, approval, granted).await {
        tracing::warn!(%error, action_id = %id, "a hold or a grant could not be cleaned up; the sweeper tries again");
    }
}

async fn clean_up(
    approvals: &Approvals,
    answers: &Answers,
    id: &ActionId,
    approval: Option<ApprovalId>,
    granted: bool,
) -> Result<(), StoreError> {
    if granted {
        grants::ended(&*approvals.store, id).await?;
    }
    let Some(approval) = approval else { return Ok(()) };
    match repository::hold(&*approvals.store, &approval)? {
        Some(hold) if hold.value.decided().is_some() => finish(approvals, answers, &hold.value).await,
        Some(_) | None => Ok(()),
    }
}

/// The first member was withdrawn after the approval: the approval now counts for the next member.
async fn hand_on(approvals: &Approvals, seen: &Hold) -> Result<(), StoreError> {
    let _lock = approvals.changes.lock().await;
    let store = &*approvals.store;
    let Some(Versioned { value: mut hold, version }) = repository::hold(store, &seen.approval_id)? else {
        return Ok(());
    };
    let same = hold.lead().map(|lead| &lead.action_id) == seen.lead().map(|lead| &lead.action_id);
    let Some(record) = hold.decided().cloned().filter(|_| same && hold.members.len() > 1) else {
        return Ok(());
    };
    let gone = hold.members.remove(0);
    lead_on(&mut hold);
    let mut step = Step::default();
    step.remove_member(&gone.action_id)?;
    step.hold(&hold, Expect::Version(version))?;
    publish(store, &mut step, &hold, record)?;
    match step.commit(store).await {
        // Another task changed the hold first.
        Ok(_) | Err(StoreError::VersionMismatch { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
