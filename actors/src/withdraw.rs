//! Withdraws an action that has not started.
//!
//! Nothing is looked for and stopped on its way: a receipt is written that says `cancelled`, and the Store takes it only if
//! the action has neither a receipt nor a claim. So there is one moment in which it is decided whether the action runs or
//! is withdrawn, and every copy of it that comes along later finds that receipt and gives way.

use std::sync::Arc;

use effectd_bus::StoreError;
use effectd_contracts::{ActionId, Code, DecisionData, Event, Failure, Phase, Principal, TraceId};

use crate::answers::{self, Done};
use crate::decisions::{published, standing};
use crate::held::entries::hold_of;
use crate::held::park::leave;
use crate::messages::Refusal;
use crate::parts::Parts;
use crate::pipeline::store_failure;
use crate::recorder::Recorder;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canceller {
    pub principal: Principal,
    /// May withdraw what others asked for.
    pub operator: bool,
}

#[derive(Debug, Clone)]
pub enum Withdrawal {
    /// It is withdrawn, and this is the receipt that says so.
    Now(Done),
    /// It had ended before, one way or another; this is its receipt.
    Ended(Done),
    /// It was begun, and nobody can say that nothing has happened: its own receipt will tell.
    Begun,
    /// No action of this id was accepted from whoever asks.
    Unknown,
}

impl Canceller {
    fn may(&self, principal: &Principal) -> bool {
        self.operator || self.principal == *principal
    }
}

/// Withdraws the action, if it has not started.
pub async fn withdraw(parts: &Arc<Parts>, id: &ActionId, by: &Canceller) -> Result<Withdrawal, Failure> {
    if let Some(ended) = ended(parts, id, by)? {
        return Ok(ended);
    }
    let found = published(&*parts.store, id).map_err(|error| store_failure(&error))?;
    let event = match found {
        Some(published) => published.event,
        None => match held(parts, id).map_err(|error| store_failure(&error))? {
            Some(held) => Some(held),
            None => at_door(parts, id, by),
        },
    };
    let Some(event) = event.filter(|event| by.may(&event.data.principal)) else {
        // It may have ended since the first look.
        return Ok(ended(parts, id, by)?.unwrap_or(Withdrawal::Unknown));
    };
    let recorder = Recorder { parts: parts.clone() };
    match recorder.withdrawn(refusal(parts, event, by)).await {
        Ok(done) => {
            // Should this fail, whoever looks at what waits for people finds the receipt.
            if let Err(error) = leave(parts, id).await {
                tracing::warn!(%error, action_id = %id, "a withdrawn action still waits for a person");
            }
            Ok(Withdrawal::Now(done))
        }
        Err(StoreError::AlreadyReceipted { .. }) => Ok(ended(parts, id, by)?.unwrap_or(Withdrawal::Unknown)),
        Err(StoreError::StaleFence { .. }) => Ok(Withdrawal::Begun),
        Err(error) => {
            let message = format!("{error}; asking again is harmless");
            Err(Failure::new(Code::StoreUnavailable, Phase::Record, message))
        }
    }
}

fn ended(parts: &Parts, id: &ActionId, by: &Canceller) -> Result<Option<Withdrawal>, Failure> {
    let ended = answers::ended(&*parts.store, id).map_err(|error| store_failure(&error))?;
    Ok(ended.map(|(receipt, _)| {
        if by.may(&receipt.principal) {
            Withdrawal::Ended(Done::before(receipt))
        } else {
            Withdrawal::Unknown
        }
    }))
}

/// A decision that waits for a person and was never on the bus.
fn held(parts: &Parts, id: &ActionId) -> Result<Option<Event<DecisionData>>, StoreError> {
    let Some(hold) = hold_of(&*parts.store, id)?.map(|at| at.value) else {
        return Ok(None);
    };
    let Some(member) = hold.member(id).cloned() else {
        return Ok(None);
    };
    let mut data = hold.decision;
    data.request.action_id = id.clone();
    Ok(Some(Event::decision(data, member.trace_id, member.accepted_at)))
}

/// A decision that somebody waits for and that is not on the bus.
fn at_door(parts: &Parts, id: &ActionId, by: &Canceller) -> Option<Event<DecisionData>> {
    let incoming = parts.at_door.find(id, |principal| by.may(principal))?;
    let trace = incoming.request.trace().unwrap_or_else(TraceId::fresh);
    let (principal, origin) = (incoming.principal.clone(), incoming.origin.clone());
    let data = DecisionData::new((*incoming.request).clone(), principal, origin);
    Some(Event::decision(data, trace, parts.clock.now()))
}

fn refusal(parts: &Parts, event: Event<DecisionData>, by: &Canceller) -> Refusal {
    let tool = parts.registry.get(&event.data.request.tool_id).cloned();
    let trace = event.data.request.trace().unwrap_or(event.traceid);
    let message = format!("withdrawn by {} before it started", by.principal);
    let failure = Failure::new(Code::Cancelled, Phase::Accept, message);
    Refusal {
        tool,
        ..Refusal::new(standing(parts, event.data, trace, event.time), failure)
    }
}
