//! Puts actions away until a person has decided: alone, with equal ones, or again.

use std::sync::Arc;

use effectd_bus::{Expect, LeaseId, StoreError};
use effectd_contracts::{ActionId, ApprovalData, ApprovalId, ApprovalNews};

use super::ask::Ask;
use super::entries::{self, At, Step};
use super::hold::{Hold, HoldState, Member, Prompt, session_of};
use crate::action::{Action, Asked};
use crate::limits::HELD_MEMBERS_MAX;
use crate::parts::Parts;
use crate::preview::Preview;

#[derive(Debug)]
pub(crate) enum Parked {
    Waits(Box<Hold>),
    /// So many of its session wait that it cannot.
    Full,
}

/// A question about this action that nobody has been asked yet.
pub(crate) fn question(parts: &Parts, action: &Action<Asked>, ask: &Ask, preview: Box<Preview>) -> Hold {
    let (ticket, asked) = (&action.ticket, &action.state);
    let decision = ticket.decision(&action.request);
    let now = parts.clock.now();
    let time = if ticket.interactive {
        parts.settings.held_interactive_max
    } else {
        parts.settings.held_unattended_max
    };
    Hold {
        approval_id: ApprovalId::fresh(),
        state: HoldState::Pending,
        digest: ask.digest,
        round: 1,
        because: None,
        session: session_of(&decision),
        decision,
        edited: false,
        members: vec![Member {
            action_id: ticket.action_id.clone(),
            digest: ticket.digest,
            trace_id: ticket.trace_id.clone(),
            accepted_at: ticket.accepted_at,
        }],
        asked_at: now,
        // A clock that is at its end is nobody's; then nobody can decide, either.
        expires_at: now.checked_add(time).unwrap_or(now),
        prompt: Prompt {
            decision: asked.ruling().decision.clone(),
            facts: asked.ruling().facts.clone(),
            tool_version: asked.entry().spec().version.clone(),
            stands: ask.stands.clone(),
            preview: Some(preview),
        },
    }
}

/// Whether another question of this session would be one too many, as far as can be told before it is asked: nothing is tried out
/// for who is sent away then.
pub(crate) fn is_full(parts: &Parts, action: &Action<Asked>, ask: &Ask) -> Result<bool, StoreError> {
    let (store, session) = (
        &*parts.store,
        session_of(&action.ticket.decision(&action.request)),
    );
    let full = entries::open_of(store, &session)? >= parts.settings.held_per_session_max;
    // It may join one that waits already.
    Ok(full && entries::asked(store, &ask.digest)?.is_none())
}

/// Puts the action of a new question away, and ends its delivery in the same step.
pub(crate) async fn park(
    parts: &Arc<Parts>,
    mut new: Hold,
    lease: Option<LeaseId>,
) -> Result<Parked, StoreError> {
    let _turn = parts.held.take().await;
    let store = &*parts.store;
    let Some(member) = new.members.first().cloned() else {
        return Err(StoreError::Invalid("a question is about an action".to_owned()));
    };
    // Another copy of it may have been faster.
    if let Some(known) = entries::hold_of(store, &member.action_id)?
        && known.value.state == HoldState::Pending
    {
        if let Some(lease) = lease {
            store.ack(lease).await?;
        }
        return Ok(Parked::Waits(Box::new(known.value)));
    }
    let open = entries::asked(store, &new.digest)?;
    let open = open
        .filter(|open| open.value.is_open(parts.clock.now()) && open.value.members.len() < HELD_MEMBERS_MAX);
    let mut step = Step::default();
    step.lease(lease);
    let (what, hold) = match open {
        Some(At {
            value: mut hold,
            version,
        }) => {
            hold.members.push(member.clone());
            step.hold(&hold, Expect::Version(version))?;
            (ApprovalNews::Joined, hold)
        }
        None => {
            if entries::open_of(store, &new.session)? >= parts.settings.held_per_session_max {
                return Ok(Parked::Full);
            }
            new.round = 1;
            step.hold(&new, Expect::Absent)?;
            step.open(store, &new)?;
            (ApprovalNews::Requested, new)
        }
    };
    step.waits(&member.action_id, &hold, Expect::Any)?;
    tell(&mut step, parts, &hold, what, &member.action_id);
    step.take(store).await?;
    Ok(Parked::Waits(Box::new(hold)))
}

/// Asks again, since what was approved is not what would happen now. All who waited wait on.
pub(crate) async fn reopen(
    parts: &Arc<Parts>,
    old: &At<Hold>,
    mut new: Hold,
    why: &str,
    lease: Option<LeaseId>,
) -> Result<Hold, StoreError> {
    let _turn = parts.held.take().await;
    let store = &*parts.store;
    new.members.clone_from(&old.value.members);
    new.round = old.value.round.saturating_add(1);
    new.edited = old.value.edited;
    new.because = Some(why.to_owned());
    let mut step = Step::default();
    step.lease(lease);
    step.forget(old)?;
    step.hold(&new, Expect::Absent)?;
    step.open(store, &new)?;
    for member in &new.members {
        step.waits(&member.action_id, &new, Expect::Any)?;
    }
    if let Some(lead) = new.lead() {
        tell(&mut step, parts, &new, ApprovalNews::Reopened, &lead.action_id);
    }
    step.take(store).await?;
    Ok(new)
}

/// An action was withdrawn and waits no more. If others wait for the same answer, one of them takes its place.
pub(crate) async fn leave(parts: &Arc<Parts>, action: &ActionId) -> Result<(), StoreError> {
    let _turn = parts.held.take().await;
    let store = &*parts.store;
    let Some(At {
        value: mut hold,
        version,
    }) = entries::hold_of(store, action)?
    else {
        return Ok(());
    };
    if hold.decided().is_some() {
        // It is being carried out; whoever finishes that finds the receipt.
        return Ok(());
    }
    hold.members.retain(|member| member.action_id != *action);
    let mut step = Step::default();
    step.waits_no_more(action)?;
    if let Some(lead) = hold.members.first() {
        hold.decision.request.action_id = lead.action_id.clone();
        hold.decision.request.trace_id = Some(lead.trace_id.clone());
        hold.decision.request.traceparent = None;
        hold.decision.request.tracestate = None;
        step.hold(&hold, Expect::Version(version))?;
    } else {
        step.close(store, &hold)?;
        step.forget(&At { value: hold, version })?;
    }
    step.take(store).await.map(drop)
}

pub(crate) fn news(hold: &Hold, what: ApprovalNews, by: impl Into<String>) -> ApprovalData {
    let request = &hold.decision.request;
    ApprovalData {
        approval_id: Some(hold.approval_id.clone()),
        action_ids: hold
            .members
            .iter()
            .map(|member| member.action_id.clone())
            .collect(),
        subject_id: Some(request.subject_id.clone()),
        expires_at: Some(hold.expires_at),
        ..ApprovalData::new(what, &request.tool_id, by)
    }
}

fn tell(step: &mut Step, parts: &Parts, hold: &Hold, what: ApprovalNews, about: &ActionId) {
    let Some(member) = hold.member(about) else { return };
    let by = hold.decision.principal.to_string();
    let data = news(hold, what, by);
    let space = &hold.decision.request.space_id;
    step.news(data, about, space, (&member.trace_id, parts.clock.now()));
}
