//! Carries out what was decided, and notices what nobody decided in time. Everything here can be done again: whoever dies
//! in the middle of it is followed by somebody who finishes it.

use std::sync::Arc;

use effectd_bus::{Expect, Link, StoreError};
use effectd_contracts::{
    Approval, ApprovalNews, ApprovalVerdict, Approved, Authority, Code, DecisionData, Failure, Outcome, Phase,
};

use super::acts;
use super::decide::publish;
use super::entries::{self, At, Step};
use super::hold::{Hold, HoldState, written};
use super::park::{leave, news};
use crate::answers::{Answer, Done, ended};
use crate::decisions::standing;
use crate::failpoint::hit;
use crate::gate::Ruling;
use crate::messages::Refusal;
use crate::operations;
use crate::parts::Parts;
use crate::recorder::Recorder;

/// Looks at every question: those that nobody decided in time are ended, and what a dead process left undone is finished.
/// Answers how many are still open.
pub(crate) async fn all(parts: &Arc<Parts>) -> Result<usize, StoreError> {
    let (mut after, mut open) = (None, 0);
    loop {
        let (page, next) = entries::holds(&*parts.store, after.as_deref())?;
        for hold in page {
            let id = &hold.value.approval_id;
            let looked = one(parts, &hold).await;
            // The others need not wait for it.
            let looked =
                looked.inspect_err(|error| tracing::warn!(%error, approval_id = %id, "looked at later"));
            open += usize::from(looked.unwrap_or(true));
        }
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    parts
        .metrics
        .holds_open
        .set(i64::try_from(open).unwrap_or(i64::MAX));
    acts::finish_all(parts).await?;
    operations::finish_all(parts).await?;
    Ok(open)
}

/// Whether it is still open.
async fn one(parts: &Arc<Parts>, hold: &At<Hold>) -> Result<bool, StoreError> {
    match &hold.value.state {
        HoldState::Pending if hold.value.expires_at <= parts.clock.now() => {
            expire(parts, hold).await?;
            Ok(false)
        }
        HoldState::Pending => {
            // Withdrawn, or done by another way, by a process that died before it could say so here.
            for member in &hold.value.members {
                if parts.store.receipt_of(&member.action_id)?.is_some() {
                    leave(parts, &member.action_id).await?;
                }
            }
            Ok(true)
        }
        HoldState::Decided(_) if hold.value.is_approved() => {
            settle(parts, &hold.value).await?;
            Ok(false)
        }
        HoldState::Decided(_) => {
            end(parts, &hold.value).await?;
            Ok(false)
        }
    }
}

/// Nobody decided in time.
pub(crate) async fn expire(parts: &Arc<Parts>, hold: &At<Hold>) -> Result<(), StoreError> {
    let expired = {
        let _turn = parts.held.take().await;
        let mut expired = hold.value.clone();
        let digest = written(&expired.digest);
        expired.state = HoldState::Decided(Approval {
            approval_id: Some(expired.approval_id.clone()),
            verdict: ApprovalVerdict::Expired,
            by: "clock".to_owned(),
            at: parts.clock.now(),
            asked_at: expired.asked_at,
            digest,
            authority: authority(parts),
            reason: None,
            grant_id: None,
            edited_request_digest: None,
        });
        let mut step = Step::default();
        step.hold(&expired, Expect::Version(hold.version))?;
        step.close(&*parts.store, &expired)?;
        announce(&mut step, parts, &expired, ApprovalNews::Expired, "clock", None);
        match step.take(&*parts.store).await {
            Ok(_) => {}
            // Somebody else was faster.
            Err(StoreError::VersionMismatch { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        expired
    };
    end(parts, &expired).await
}

/// Whether planner and approver are different people to this runtime.
pub(crate) fn authority(parts: &Parts) -> Authority {
    if parts.policy().separates() {
        Authority::Separate
    } else {
        Authority::SingleUser
    }
}

pub(crate) fn announce(
    step: &mut Step,
    parts: &Parts,
    hold: &Hold,
    what: ApprovalNews,
    by: &str,
    reason: Option<String>,
) {
    let Some(lead) = hold.lead() else { return };
    let mut data = news(hold, what, by);
    data.reason = reason;
    let space = &hold.decision.request.space_id;
    step.news(data, &lead.action_id, space, (&lead.trace_id, parts.clock.now()));
}

/// Ends what was refused, or what nobody decided, with its receipt.
pub(crate) async fn end(parts: &Arc<Parts>, hold: &Hold) -> Result<(), StoreError> {
    let (Some(approval), Some(lead)) = (hold.decided(), hold.lead()) else {
        return Ok(());
    };
    hit("held.before_end", &lead.action_id).await;
    if parts.store.receipt_of(&lead.action_id)?.is_none() {
        let failure = match approval.verdict {
            ApprovalVerdict::Expired => {
                let message = format!("nobody decided until {}", hold.expires_at);
                Failure::new(Code::ApprovalExpired, Phase::Hold, message)
            }
            ApprovalVerdict::Denied
            | ApprovalVerdict::Revoked
            | ApprovalVerdict::Once
            | ApprovalVerdict::Grant
            | ApprovalVerdict::Always => {
                let reason = approval.reason.as_deref().unwrap_or("no reason was given");
                let message = format!("{} refused it: {reason}", approval.by);
                Failure::new(Code::HumanDenied, Phase::Hold, message)
            }
        };
        let recorder = Recorder { parts: parts.clone() };
        match recorder.withdrawn(refusal(parts, hold, approval, failure)).await {
            // Begun by another way since: its own receipt will tell.
            Ok(_) | Err(StoreError::AlreadyReceipted { .. } | StoreError::StaleFence { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    settle(parts, hold).await
}

fn refusal(parts: &Parts, hold: &Hold, approval: &Approval, failure: Failure) -> Refusal {
    let mut decision: DecisionData = hold.decision.clone();
    let lead = hold.lead();
    decision.approved = Some(Approved {
        record: approval.clone(),
        original: lead.map(|lead| lead.digest),
    });
    let trace = lead.map_or_else(effectd_contracts::TraceId::fresh, |lead| lead.trace_id.clone());
    let accepted = lead.map_or(hold.asked_at, |lead| lead.accepted_at);
    let tool = parts.registry.get(&decision.request.tool_id).cloned();
    Refusal {
        tool,
        ruling: Some(Ruling {
            decision: hold.prompt.decision.clone(),
            facts: hold.prompt.facts.clone(),
            // Nothing ran.
            redacted: Vec::new(),
        }),
        ..Refusal::new(standing(parts, decision, trace, accepted), failure)
    }
}

/// After the end of what was decided about: whoever waited for the same answer has the same receipt, and the question is
/// forgotten. Nothing happens while there is no receipt.
pub(crate) async fn settle(parts: &Arc<Parts>, hold: &Hold) -> Result<(), StoreError> {
    let store = &*parts.store;
    let Some(lead) = hold.lead() else { return Ok(()) };
    let Some((receipt, _)) = ended(store, &lead.action_id)? else {
        return Ok(());
    };
    if receipt.outcome == Outcome::Cancelled && hold.is_approved() && hold.members.len() > 1 {
        return hand_on(parts, hold).await;
    }
    for member in &hold.members[1..] {
        let link = Link {
            action_id: member.action_id.clone(),
            action_digest: member.digest,
            receipt_id: receipt.receipt_id.clone(),
            leases: Vec::new(),
        };
        match store.link(link).await {
            Ok(()) => {
                let done = Done::before(receipt.clone());
                parts.answers.tell(&member.action_id, &Answer::Done(done));
            }
            // It has an end of its own: it was withdrawn.
            Err(
                StoreError::AlreadyReceipted { .. }
                | StoreError::StaleFence { .. }
                | StoreError::Conflict { .. },
            ) => {}
            Err(error) => return Err(error),
        }
    }
    let _turn = parts.held.take().await;
    let Some(now) = entries::hold(store, &hold.approval_id)? else {
        return Ok(());
    };
    let mut step = Step::default();
    step.close(store, &now.value)?;
    for member in &now.value.members {
        step.waits_no_more(&member.action_id)?;
    }
    step.forget(&now)?;
    step.past(&now.value)?;
    step.take(store).await.map(drop)
}

/// Whoever asked first has withdrawn after the yes: that is their own end and nobody else's, and the yes is carried out for
/// the next of those who wait for it.
async fn hand_on(parts: &Arc<Parts>, seen: &Hold) -> Result<(), StoreError> {
    let _turn = parts.held.take().await;
    let store = &*parts.store;
    let Some(At {
        value: mut hold,
        version,
    }) = entries::hold(store, &seen.approval_id)?
    else {
        return Ok(());
    };
    let same = hold.lead().map(|lead| &lead.action_id) == seen.lead().map(|lead| &lead.action_id);
    let Some(record) = hold.decided().cloned().filter(|_| same && hold.members.len() > 1) else {
        return Ok(());
    };
    let gone = hold.members.remove(0);
    if let Some(lead) = hold.members.first() {
        hold.decision.request.action_id = lead.action_id.clone();
        hold.decision.request.trace_id = Some(lead.trace_id.clone());
        hold.decision.request.traceparent = None;
        hold.decision.request.tracestate = None;
    }
    let mut step = Step::default();
    step.waits_no_more(&gone.action_id)?;
    step.hold(&hold, Expect::Version(version))?;
    publish(store, &mut step, &hold, record)?;
    match step.take(store).await {
        // Somebody else was faster.
        Ok(_) | Err(StoreError::VersionMismatch { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
