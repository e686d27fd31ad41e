//! Decisions that were accepted: those on the bus, found by the id of their action, and those that are only at the door.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Store, StoreError};
use effectd_contracts::{
    ActionId, DecisionData, Digest, Event, EventId, Principal, Timestamp, Topic, TraceId, json,
    limits as bounds,
};
use parking_lot::{Mutex, MutexGuard};

use crate::action::{Action, Place, Stalled, Ticket};
use crate::limits::{APPROVALS_MAX, REQUEUES_MAX};
use crate::parts::Parts;
use crate::pipeline::{Incoming, span};

#[derive(Debug)]
pub struct Published {
    pub offset: u64,
    /// What it says; `None` if that cannot be read any more, because it ended long ago and its key is destroyed.
    pub event: Option<Event<DecisionData>>,
}

/// The decision of this action on the bus, the latest if it was requeued or approved. A few looks at the index and one read, however
/// many others wait there.
pub fn published(store: &dyn Store, action: &ActionId) -> Result<Option<Published>, StoreError> {
    let topic = Topic::ActionDecision.into();
    let first = store.published(&topic, &Event::<DecisionData>::id_for(action))?;
    let (_, again) = requeued(store, action)?;
    let (_, approved) = approvals(store, action)?;
    // Places only grow: the last is the latest.
    let Some(offset) = first.max(again).max(approved) else {
        return Ok(None);
    };
    let event = read_at(store, offset)?;
    Ok(Some(Published { offset, event }))
}

/// How often the decision of this action was requeued, and where it lies since the last time.
pub fn requeued(store: &dyn Store, action: &ActionId) -> Result<(u32, Option<u64>), StoreError> {
    published_again(store, REQUEUES_MAX, |n| {
        Event::<DecisionData>::id_for_requeue(action, n)
    })
}

/// How often the decision of this action was approved by a person, and where it lies since the last time.
pub fn approvals(store: &dyn Store, action: &ActionId) -> Result<(u32, Option<u64>), StoreError> {
    published_again(store, APPROVALS_MAX, |n| {
        Event::<DecisionData>::id_for_approval(action, n)
    })
}

fn published_again(
    store: &dyn Store,
    most: u32,
    id: impl Fn(u32) -> EventId,
) -> Result<(u32, Option<u64>), StoreError> {
    let topic = Topic::ActionDecision.into();
    let mut last = None;
    for n in 1..=most {
        match store.published(&topic, &id(n))? {
            Some(offset) => last = Some(offset),
            None => return Ok((n - 1, last)),
        }
    }
    Ok((most, last))
}

/// The keyed digest that an action is known by: that of its request, as its planner made it.
pub(crate) fn identity_of(parts: &Parts, decision: &DecisionData) -> Digest {
    let original = decision.approved.as_ref().and_then(|approved| approved.original);
    original.unwrap_or_else(|| parts.identity.keyed(&decision.request.digest()))
}

/// An action that is to end and is on its way nowhere: no delivery is held, and whoever holds one finds the receipt.
pub(crate) fn standing(
    parts: &Parts,
    decision: DecisionData,
    trace_id: TraceId,
    accepted_at: Timestamp,
) -> Action<()> {
    let digest = identity_of(parts, &decision);
    let DecisionData {
        request,
        principal,
        origin,
        interactive,
        approved,
        ..
    } = decision;
    let tool = parts.registry.get(&request.tool_id);
    let waited = parts.clock.now().duration_since(accepted_at);
    let ticket = Ticket {
        action_id: request.action_id.clone(),
        digest,
        span: span(&request, &trace_id, tool.map(AsRef::as_ref)),
        trace_id,
        principal,
        origin,
        interactive,
        approved,
        granted: None,
        preview: None,
        expect: Vec::new(),
        accepted_at,
        accepted: parts.clock.monotonic(),
        waited: waited.try_into().unwrap_or(Duration::ZERO),
        queued: None,
        way: None,
        place: Place::new(None, None, &parts.metrics.in_flight),
        store: parts.store.clone(),
        stalled: Stalled::default(),
    };
    Action::new(ticket, Arc::new(request)).advance(|_| ())
}

/// Whether the decision at this place of the topic is this very one, from the same asker. `digest` is the request's own, not
/// the keyed one: both are compared here and kept nowhere.
pub(crate) fn same_decision(
    store: &dyn Store,
    offset: u64,
    digest: Digest,
    principal: &Principal,
) -> Result<bool, StoreError> {
    let known = read_at(store, offset)?;
    // What cannot be read any more has ended long ago; the receipt decides then.
    Ok(known.is_none_or(|event| event.data.request.digest() == digest && event.data.principal == *principal))
}

fn read_at(store: &dyn Store, offset: u64) -> Result<Option<Event<DecisionData>>, StoreError> {
    let page = match store.read(&Topic::ActionDecision.into(), offset, 1) {
        // It was let go in this moment, so it ended long ago.
        Err(StoreError::Dropped { .. }) => return Ok(None),
        page => page?,
    };
    let body = page
        .events
        .first()
        .filter(|event| event.offset == offset)
        .and_then(|event| event.body.bytes());
    // The envelope adds little to the largest request.
    Ok(body.and_then(|body| json::parse_stored(body, 2 * bounds::REQUEST_BYTES_MAX).ok()))
}

/// Decisions whose askers wait at the door, and which may not be on disk yet. Bounded by the places for actions on their
/// way, one of which each of them holds or asks for.
#[derive(Clone, Default)]
pub(crate) struct AtDoor(Arc<Mutex<HashMap<ActionId, Vec<Arc<Incoming>>>>>);

/// One of them; gone when its asker is.
pub(crate) struct Standing {
    door: AtDoor,
    incoming: Arc<Incoming>,
}

impl AtDoor {
    fn lock(&self) -> MutexGuard<'_, HashMap<ActionId, Vec<Arc<Incoming>>>> {
        self.0.lock()
    }

    pub(crate) fn enter(&self, incoming: &Arc<Incoming>) -> Standing {
        let id = incoming.request.action_id.clone();
        self.lock().entry(id).or_default().push(incoming.clone());
        Standing {
            door: self.clone(),
            incoming: incoming.clone(),
        }
    }

    /// One of this id that fits.
    pub(crate) fn find(&self, action: &ActionId, fits: impl Fn(&Principal) -> bool) -> Option<Arc<Incoming>> {
        let all = self.lock();
        let found = all.get(action)?.iter().find(|incoming| fits(&incoming.principal));
        found.cloned()
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let mut all = self.door.lock();
        let id = &self.incoming.request.action_id;
        if let Some(same) = all.get_mut(id) {
            same.retain(|other| !Arc::ptr_eq(other, &self.incoming));
            if same.is_empty() {
                all.remove(id);
            }
        }
    }
}
