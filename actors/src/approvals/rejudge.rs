//! Judges pending holds again after the policy or a grant has changed, by the facts that were recorded with each.
//!
//! A hold that is denied now ends with a receipt. A hold that needs no person now can be released: its decisions are published
//! again and pass every stage, so the gate has the last word. Only an operator's or an approver's command releases. Changed policy
//! files only end holds: to save a file never starts an effect, not even when a command puts the file in force.

use std::sync::Arc;

use effectd_bus::{Store, StoreError};
use effectd_contracts::{ApprovalChange, ApprovalId, ApprovalVerdict, DecisionData, Event, Timestamp, Topic};
use effectd_policy::{Decision, Facts, Grant, GrantAsk, Policy, Verdict, evaluate};

use super::expiry::{EndedBy, POLICY, end_by};
use super::hold::{Hold, HoldState, session_of};
use super::repository::{self, Step, Versioned};
use super::suspend::{announce, decision_of};
use crate::action::decisions::{approvals, published, to_publish};
use crate::limits::APPROVALS_MAX;
use crate::services::Services;

/// What holds are judged by.
pub struct Under<'a> {
    /// If given, only holds that this policy does not permit are released: those for which the change makes the difference.
    pub before: Option<&'a Policy>,
    pub now: &'a Policy,
    /// Grants that release as many holds as they have calls left.
    pub grants: Vec<Grant>,
    /// The hold that is being decided, which does not count.
    pub except: Option<&'a ApprovalId>,
}

impl<'a> Under<'a> {
    /// Another policy than before.
    pub fn policy(before: &'a Policy, now: &'a Policy) -> Self {
        Self { before: Some(before), now, grants: Vec::new(), except: None }
    }

    /// A new grant under the policy in force.
    pub fn grant(policy: &'a Policy, grant: Grant) -> Self {
        Self { grants: vec![grant], ..Self::policy(policy, policy) }
    }
}

/// How many holds were judged, or would be, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rejudged {
    /// They need no person now.
    pub released: u64,
    /// The policy denies them now.
    pub ended: u64,
    /// They still wait for a person.
    pub waiting: u64,
}

enum Judgement {
    Waits,
    Released,
    Denied(Box<Decision>),
}

fn judge(hold: &Hold, under: &mut Under<'_>, now: Timestamp) -> Judgement {
    let facts = &hold.prompt.facts;
    let decision = evaluate(facts, under.now);
    let permits = |facts: &Facts, policy: &Policy| matches!(evaluate(facts, policy).verdict, Verdict::Permit);
    let present = Facts { now, ..facts.clone() };
    match &decision.verdict {
        Verdict::Deny { .. } | Verdict::Quarantine { .. } => Judgement::Denied(Box::new(decision)),
        // A person has changed the request; only a person can decide about it.
        Verdict::Permit | Verdict::NeedsApproval { .. } if hold.edited => Judgement::Waits,
        Verdict::Permit => {
            // Not at an hour at which the gate would refuse it.
            let still = permits(&present, under.now);
            let is_new = under.before.is_none_or(|before| !permits(facts, before));
            if still && is_new { Judgement::Released } else { Judgement::Waits }
        }
        // A mode with an end demanded the approval, and has ended.
        Verdict::NeedsApproval { .. } if under.before.is_none() && permits(&present, under.now) => {
            Judgement::Released
        }
        Verdict::NeedsApproval { .. } => {
            let request = &hold.decision.request;
            let session = session_of(&hold.decision);
            let Some(org) = under.now.org_of(&request.space_id) else {
                return Judgement::Waits;
            };
            let ask = GrantAsk { org, session: &session, tool: &request.tool_id, now };
            match under.grants.iter_mut().find(|grant| grant.covers(&decision, &ask)) {
                Some(grant) => {
                    grant.calls_used = grant.calls_used.saturating_add(1);
                    Judgement::Released
                }
                None => Judgement::Waits,
            }
        }
    }
}

/// How holds would be judged. Changes nothing.
pub fn count(store: &dyn Store, now: Timestamp, mut under: Under<'_>) -> Result<Rejudged, StoreError> {
    let mut counted = Rejudged::default();
    for hold in pending(store, now, under.except)? {
        match judge(&hold.value, &mut under, now) {
            Judgement::Waits => counted.waiting += 1,
            Judgement::Released => counted.released += 1,
            Judgement::Denied(_) => counted.ended += 1,
        }
    }
    Ok(counted)
}

/// Releases the holds that need no person now, and ends those that are denied. When this returns, both are on disk.
pub async fn run(services: &Services, mut under: Under<'_>) -> Result<Rejudged, StoreError> {
    let mut judged = Rejudged::default();
    let now = services.clock.now();
    for hold in pending(&*services.store, now, under.except)? {
        match judge(&hold.value, &mut under, now) {
            Judgement::Waits => judged.waiting += 1,
            Judgement::Released => {
                let is_released = release(services, &hold).await?;
                judged.released += u64::from(is_released);
                judged.waiting += u64::from(!is_released);
            }
            Judgement::Denied(decision) => {
                deny(services, &hold, *decision).await?;
                judged.ended += 1;
            }
        }
    }
    Ok(judged)
}

/// A change by a command.
pub enum Changed {
    /// The policy; this one was in force before.
    Policy(Arc<Policy>),
    Grant(Box<Grant>),
}

/// [`run`] after a command, in a task of its own, so that it completes even if the client disconnects. A failure is only logged: the
/// command has succeeded, and `effectd approvals rejudge` repeats this.
pub async fn after(services: &Arc<Services>, changed: Changed) -> Rejudged {
    let services = services.clone();
    let task = tokio::spawn(async move {
        let now = services.policy();
        match changed {
            Changed::Policy(before) => {
                run(&services, Under::policy(&without_command(&before, &now), &now)).await
            }
            Changed::Grant(grant) => run(&services, Under::grant(&now, *grant)).await,
        }
    });
    let judged = task.await.unwrap_or_else(|error| Err(StoreError::unavailable_by("cut short", error)));
    judged
        .inspect_err(|error| tracing::warn!(%error, "pending approvals were not judged again"))
        .unwrap_or_default()
}

/// The policy as it would be now without the command: the present files with the overlay of before. What the files newly permit is
/// not the command's work. If the files refuse that overlay, nothing counts as newly permitted.
pub fn without_command(before: &Policy, now: &Policy) -> Policy {
    now.with_overlay(before.overlay()).unwrap_or_else(|_| now.clone())
}

/// Ends the holds that the policy denies now, and releases none.
pub async fn end_denied(services: &Services, policy: &Policy) -> Result<(), StoreError> {
    // The same policy before and now: nothing is newly permitted.
    run(services, Under::policy(policy, policy)).await.map(drop)
}

fn pending(
    store: &dyn Store,
    now: Timestamp,
    except: Option<&ApprovalId>,
) -> Result<Vec<Versioned<Hold>>, StoreError> {
    let (mut after, mut found) = (None::<String>, Vec::new());
    loop {
        let (page, next) = repository::holds(store, after.as_deref())?;
        let is_pending = |hold: &Versioned<Hold>| {
            hold.value.is_open(now) && except.is_none_or(|except| hold.value.approval_id != *except)
        };
        found.extend(page.into_iter().filter(is_pending));
        match next {
            Some(next) => after = Some(next),
            None => return Ok(found),
        }
    }
}

async fn deny(services: &Services, hold: &Versioned<Hold>, decision: Decision) -> Result<(), StoreError> {
    let mut ended = hold.clone();
    let reason = Some(decision.verdict.why());
    // The receipt shows the decision that ended it.
    ended.value.prompt.decision = decision;
    let by = EndedBy { by: POLICY, verdict: ApprovalVerdict::Denied, reason, what: ApprovalChange::Denied };
    end_by(services, &ended, by).await
}

/// Removes a hold and publishes the decisions of all its members again, without an approval. Returns `false` if somebody else
/// was faster, or if the action was published too often.
async fn release(services: &Services, at: &Versioned<Hold>) -> Result<bool, StoreError> {
    let _lock = services.approvals.changes.lock().await;
    let store = &*services.store;
    let hold = &at.value;
    if hold.state != HoldState::Pending {
        return Ok(false);
    }
    let mut step = Step::default();
    step.close(store, hold)?;
    step.remove(at)?;
    for member in &hold.members {
        let (before, _) = approvals(store, &member.action_id)?;
        if before >= APPROVALS_MAX {
            return Ok(false);
        }
        step.remove_member(&member.action_id)?;
        // As the planner sent it; a request that was executed without the topic is like the first member's.
        let sent = published(store, &member.action_id)?.and_then(|published| published.event);
        let data = sent.map_or_else(|| decision_of(&hold.decision, member), |event| event.data);
        let data = DecisionData { approved: None, ..data };
        let mut event = Event::decision(data, member.trace_id.clone(), member.accepted_at);
        event.id = Event::<DecisionData>::id_for_approval(&member.action_id, before + 1);
        step.event(Topic::ActionDecision, to_publish(&event));
    }
    if let Some(lead) = hold.lead() {
        announce(&mut step, &*services.clock, hold, (ApprovalChange::Released, lead), POLICY, None);
    }
    match step.commit(store).await {
        Ok(_) => Ok(true),
        // Somebody decided it, or another request joined it.
        Err(StoreError::VersionMismatch { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
