//! Withdrawal of an action that has not started.
//!
//! The action in flight is not searched for: a receipt `cancelled` is committed, which the Store accepts only if the action has
//! neither a receipt nor a claim. That commit decides whether the action runs or is withdrawn, and every copy of it that comes
//! later finds that receipt.

use std::sync::Arc;

use effectd_bus::{Store, StoreError};
use effectd_contracts::{
    ActionId, Code, DecisionData, Event, Failure, Phase, Principal, SpaceId, Timestamp, TraceId,
};
use effectd_policy::{Decider, Policy, PrincipalRole};
use tokio::sync::MutexGuard;
use tracing::Instrument;

use crate::action::decisions::{detached, published};
use crate::approvals::expiry;
use crate::approvals::repository::hold_of;
use crate::approvals::suspend::{leave, unheld};
use crate::execution::recording;
use crate::messages::Refusal;
use crate::services::Services;
use crate::services::answers::{self, Done};
use crate::services::callers::Callers;

#[derive(Debug, Clone)]
pub enum Withdrawal {
    Now(Done),
    Ended(Done),
    /// The action was begun: its own receipt will say what happened.
    Begun,
    /// No action of this id was accepted from this principal.
    Unknown,
}

/// Operators may withdraw all actions, by a token those of its organisation; others only their own.
fn may(policy: &Policy, by: &Decider, principal: &Principal, space: &SpaceId) -> bool {
    by.principal == *principal || policy.may_operate_in(by, PrincipalRole::Operate, policy.org_of(space))
}

pub async fn withdraw(services: &Services, id: &ActionId, by: &Decider) -> Result<Withdrawal, Failure> {
    withdraw_under(services, id, by, None).await
}

/// [`withdraw`] for an action that waits for no person; `None` if it does. It becomes a question either before this or not at all.
pub async fn give_up(
    services: &Services,
    id: &ActionId,
    by: &Decider,
) -> Result<Option<Withdrawal>, Failure> {
    let lock = unheld(&services.approvals, id).await.map_err(|error| unavailable(&error))?;
    match lock {
        Some(lock) => withdraw_under(services, id, by, Some(lock)).await.map(Some),
        None => Ok(None),
    }
}

/// Keeps the lock until the withdrawal is on disk.
async fn withdraw_under(
    services: &Services,
    id: &ActionId,
    by: &Decider,
    lock: Option<MutexGuard<'_, ()>>,
) -> Result<Withdrawal, Failure> {
    let policy = services.policy();
    let may = |principal: &Principal, space: &SpaceId| may(&policy, by, principal, space);
    if let Some(ended) = ended(&*services.store, id, may)? {
        return Ok(ended);
    }
    let found = published(&*services.store, id).map_err(|error| unavailable(&error))?;
    let event = match found {
        Some(published) => published.event,
        None => match held(&*services.store, id).map_err(|error| unavailable(&error))? {
            Some(held) => Some(held),
            None => from_caller(&services.in_flight.callers, id, may, services.clock.now()),
        },
    };
    let is_own = |event: &Event<DecisionData>| may(&event.data.principal, &event.data.request.space_id);
    let Some(event) = event.filter(is_own) else {
        // The action may have ended meanwhile.
        return Ok(ended(&*services.store, id, may)?.unwrap_or(Withdrawal::Unknown));
    };
    let approved = event.data.approved.as_ref();
    let approval = approved.and_then(|approved| approved.record.approval_id.clone());
    let refusal = refusal(services, event, by);
    let span = refusal.action.ticket.span.clone();
    let recorded = recording::withdrawn(services, refusal).await;
    drop(lock);
    match recorded {
        Ok(done) => {
            let answers = &services.in_flight.answers;
            let cleaning = expiry::after_end(&services.approvals, answers, id, approval, false);
            cleaning.instrument(span.clone()).await;
            // If this fails, the sweeper finds the receipt and removes the member.
            if let Err(error) = leave(&services.approvals, id).await {
                tracing::warn!(parent: &span, %error, "the hold of a withdrawn action could not be removed; the sweeper tries again");
            }
            Ok(Withdrawal::Now(done))
        }
        Err(StoreError::AlreadyReceipted { .. }) => {
            Ok(ended(&*services.store, id, may)?.unwrap_or(Withdrawal::Unknown))
        }
        Err(StoreError::StaleFence { .. }) => Ok(Withdrawal::Begun),
        Err(error) => Err(error.failure(Phase::Record)),
    }
}

fn ended(
    store: &dyn Store,
    id: &ActionId,
    may: impl Fn(&Principal, &SpaceId) -> bool,
) -> Result<Option<Withdrawal>, Failure> {
    let ended = answers::ended(store, id).map_err(|error| unavailable(&error))?;
    Ok(ended.map(|(receipt, _)| {
        if may(&receipt.principal, &receipt.space_id) {
            Withdrawal::Ended(Done::before(receipt))
        } else {
            Withdrawal::Unknown
        }
    }))
}

/// The decision of a held action that was never on the bus.
fn held(store: &dyn Store, id: &ActionId) -> Result<Option<Event<DecisionData>>, StoreError> {
    let Some(hold) = hold_of(store, id)?.map(|at| at.value) else {
        return Ok(None);
    };
    let Some(member) = hold.member(id).cloned() else {
        return Ok(None);
    };
    let mut data = hold.decision;
    data.request.action_id = id.clone();
    data.origin = member.origin;
    Ok(Some(Event::decision(data, member.trace_id, member.accepted_at)))
}

/// The decision of a waiting caller that is not on the bus yet.
fn from_caller(
    callers: &Callers,
    id: &ActionId,
    may: impl Fn(&Principal, &SpaceId) -> bool,
    at: Timestamp,
) -> Option<Event<DecisionData>> {
    let incoming = callers.find(id, |found| may(&found.principal, &found.request.space_id))?;
    let trace = incoming.request.trace().unwrap_or_else(TraceId::fresh);
    Some(Event::decision(Arc::unwrap_or_clone(incoming).into_decision(), trace, at))
}

fn refusal(services: &Services, event: Event<DecisionData>, by: &Decider) -> Refusal {
    let tool = services.registry().get(&event.data.request.tool_id).cloned();
    let trace = event.data.request.trace().unwrap_or(event.traceid);
    let message = format!("withdrawn by {} before it started", by.principal);
    let failure = Failure::new(Code::Cancelled, Phase::Accept, message);
    Refusal { tool, ..Refusal::new(detached(services, event.data, trace, event.time), failure) }
}

fn unavailable(error: &StoreError) -> Failure {
    error.failure(Phase::Accept)
}
