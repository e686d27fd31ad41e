//! Suspends an action until a person decides: in a hold of its own, in the hold of an equal request, or in a reopened hold.

use effectd_bus::{Expect, LeaseId, Store, StoreError};
use effectd_contracts::{ActionId, ApprovalChange, ApprovalData, ApprovalId, Clock, DecisionData, Timestamp};

use super::hold::{Hold, HoldState, Member, Prompt, session_of};
use super::question::Question;
use super::repository::{self, Step, Versioned};
use crate::action::preview::Preview;
use crate::action::{Action, Asked};
use crate::limits::HELD_MEMBERS_MAX;
use crate::services::Approvals;
use crate::settings::Settings;

#[derive(Debug)]
pub(crate) enum Suspended {
    Waits(Box<Hold>),
    /// The session has too many holds.
    Full,
}

pub(crate) fn new_hold(
    settings: &Settings,
    now: Timestamp,
    action: &Action<Asked>,
    question: &Question,
    preview: Box<Preview>,
) -> Hold {
    let (ticket, asked) = (&action.ticket, &action.state);
    let decision = ticket.decision(&action.request);
    let time = if ticket.interactive { settings.held_interactive_max } else { settings.held_unattended_max };
    Hold {
        approval_id: ApprovalId::fresh(),
        state: HoldState::Pending,
        digest: question.digest,
        round: 1,
        because: None,
        session: session_of(&decision),
        decision,
        edited: false,
        members: vec![Member {
            action_id: ticket.action_id.clone(),
            digest: ticket.digest,
            trace_id: ticket.trace_id.clone(),
            origin: ticket.origin.clone(),
            accepted_at: ticket.accepted_at,
        }],
        asked_at: now,
        // If the clock cannot hold that time, the hold expires at once.
        expires_at: now.checked_add(time).unwrap_or(now),
        prompt: Prompt {
            decision: asked.ruling().decision.clone(),
            facts: asked.ruling().facts.clone(),
            tool_version: asked.tool().spec().version.clone(),
            stands: question.stands.clone(),
            preview: Some(preview),
            redactions: asked.ruling().redactions.clone(),
            hidden: asked.ruling().hidden.clone(),
        },
    }
}

/// Whether the session has too many holds: checked first, so that no preview is made in vain.
pub(crate) fn is_full(
    store: &dyn Store,
    settings: &Settings,
    action: &Action<Asked>,
    question: &Question,
) -> Result<bool, StoreError> {
    let session = session_of(&action.ticket.decision(&action.request));
    let full = repository::open_of(store, &session)? >= settings.held_per_session_max;
    // A full session can still join an open hold.
    Ok(full && repository::asked(store, &question.digest, &session)?.is_none())
}

/// Stores a new hold or joins the hold of an equal request, and ends the delivery in the same step.
pub(crate) async fn suspend(
    approvals: &Approvals,
    settings: &Settings,
    mut new: Hold,
    lease: Option<LeaseId>,
) -> Result<Suspended, StoreError> {
    let _lock = approvals.changes.lock().await;
    let store = &*approvals.store;
    let Some(member) = new.members.first().cloned() else {
        return Err(StoreError::Invalid("an approval belongs to an action".to_owned()));
    };
    // Another copy of this action may have been suspended first.
    if let Some(known) = repository::hold_of(store, &member.action_id)?
        && known.value.state == HoldState::Pending
    {
        if let Some(lease) = lease {
            store.ack(lease).await?;
        }
        return Ok(Suspended::Waits(Box::new(known.value)));
    }
    let open = repository::asked(store, &new.digest, &new.session)?;
    let open = open.filter(|open| {
        open.value.is_open(approvals.clock.now()) && open.value.members.len() < HELD_MEMBERS_MAX
    });
    let mut step = Step::default();
    step.lease(lease);
    let (what, hold) = match open {
        Some(Versioned { value: mut hold, version }) => {
            hold.members.push(member.clone());
            step.hold(&hold, Expect::Version(version))?;
            (ApprovalChange::Joined, hold)
        }
        None => {
            if repository::open_of(store, &new.session)? >= settings.held_per_session_max {
                return Ok(Suspended::Full);
            }
            new.round = 1;
            step.hold(&new, Expect::Absent)?;
            step.open(store, &new)?;
            (ApprovalChange::Requested, new)
        }
    };
    step.add_member(&member.action_id, &hold, Expect::Any)?;
    let by = hold.decision.principal.as_str();
    announce(&mut step, &*approvals.clock, &hold, (what, &member), by, None);
    step.commit(store).await?;
    Ok(Suspended::Waits(Box::new(hold)))
}

/// Asks again, since what was approved is not what would happen now. All members keep waiting.
pub(crate) async fn reopen(
    approvals: &Approvals,
    old: &Versioned<Hold>,
    mut new: Hold,
    why: &str,
    lease: Option<LeaseId>,
) -> Result<Hold, StoreError> {
    let _lock = approvals.changes.lock().await;
    let store = &*approvals.store;
    new.members.clone_from(&old.value.members);
    new.round = old.value.round.saturating_add(1);
    new.edited = old.value.edited;
    new.because = Some(why.to_owned());
    let mut step = Step::default();
    step.lease(lease);
    step.remove(old)?;
    step.hold(&new, Expect::Absent)?;
    step.open(store, &new)?;
    for member in &new.members {
        step.add_member(&member.action_id, &new, Expect::Any)?;
    }
    if let Some(lead) = new.lead() {
        let by = new.decision.principal.as_str();
        announce(&mut step, &*approvals.clock, &new, (ApprovalChange::Reopened, lead), by, None);
    }
    step.commit(store).await?;
    Ok(new)
}

/// Removes a withdrawn action from its hold. If it was the first member, the next one takes its place.
pub(crate) async fn leave(approvals: &Approvals, action: &ActionId) -> Result<(), StoreError> {
    let _lock = approvals.changes.lock().await;
    let store = &*approvals.store;
    let Some(Versioned { value: mut hold, version }) = repository::hold_of(store, action)? else {
        return Ok(());
    };
    if hold.decided().is_some() {
        // The decided hold is being carried out, which finds the receipt of this action.
        return Ok(());
    }
    hold.members.retain(|member| member.action_id != *action);
    let mut step = Step::default();
    step.remove_member(action)?;
    if let Some(lead) = hold.members.first() {
        hold.decision = decision_of(&hold.decision, lead);
        step.hold(&hold, Expect::Version(version))?;
    } else {
        step.close(store, &hold)?;
        step.remove(&Versioned { value: hold, version })?;
    }
    step.commit(store).await.map(drop)
}

/// The decision with another member's request.
pub(super) fn decision_of(decision: &DecisionData, member: &Member) -> DecisionData {
    let mut decision = DecisionData { origin: member.origin.clone(), ..decision.clone() };
    let request = &mut decision.request;
    request.action_id = member.action_id.clone();
    request.trace_id = Some(member.trace_id.clone());
    request.traceparent = None;
    request.tracestate = None;
    decision
}

/// Adds the event about a hold, under the action of one member.
pub(crate) fn announce(
    step: &mut Step,
    clock: &dyn Clock,
    hold: &Hold,
    (what, member): (ApprovalChange, &Member),
    by: &str,
    reason: Option<String>,
) {
    let request = &hold.decision.request;
    let ids = hold.members.iter().map(|member| member.action_id.clone());
    let data = ApprovalData {
        approval_id: Some(hold.approval_id.clone()),
        action_ids: ids.collect(),
        subject_id: Some(request.subject_id.clone()),
        expires_at: Some(hold.expires_at),
        reason,
        ..ApprovalData::new(what, &request.tool_id, by)
    };
    let at = (&member.trace_id, clock.now());
    step.news(data, &member.action_id, &request.space_id, at);
}
