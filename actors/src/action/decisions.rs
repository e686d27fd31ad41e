//! Decisions on the bus, found by the id of their action.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{NewEvent, Store, StoreError};
use effectd_contracts::{
    ActionId, ActionRequest, Approval, Approved, Code, Contract, DecisionData, Digest, Event, EventId,
    Failure, Origin, Outcome, Phase, Principal, Receipt, SpaceId, SubjectId, Timestamp, ToolId, Topic,
    TraceId, json, limits as bounds,
};
use serde_json::{Map, Value};

use super::Action;
use super::ticket::{NewTicket, Slot, Ticket};
use crate::limits::{APPROVALS_MAX, REQUEUES_MAX};
use crate::services::Services;
use crate::services::answers::ended;
use crate::services::signer::Identity;
use crate::stored::sealed_event;

/// The message for an action id that belongs to another action.
pub(crate) const ID_TAKEN: &str = "this action id was already used for different content";

#[derive(Debug)]
pub struct Published {
    pub offset: u64,
    /// `None` if the decision cannot be read any more, because the action ended long ago and its key is destroyed.
    pub event: Option<Event<DecisionData>>,
}

/// The decision of this action on the bus: the latest one, if it was requeued or approved. Costs a few index lookups and one
/// read, however many decisions wait on the bus.
pub fn published(store: &dyn Store, action: &ActionId) -> Result<Option<Published>, StoreError> {
    let topic = Topic::ActionDecision.into();
    let first = store.published(&topic, &Event::<DecisionData>::id_for(action))?;
    let (_, again) = requeued(store, action)?;
    let (_, approved) = approvals(store, action)?;
    // Offsets only grow: the largest is the latest.
    let Some(offset) = first.max(again).max(approved) else {
        return Ok(None);
    };
    let event = read_at(store, offset)?;
    Ok(Some(Published { offset, event }))
}

/// How often the decision of this action was requeued, and the offset of the latest requeue.
pub fn requeued(store: &dyn Store, action: &ActionId) -> Result<(u32, Option<u64>), StoreError> {
    published_again(store, REQUEUES_MAX, |n| Event::<DecisionData>::id_for_requeue(action, n))
}

/// How often a person approved the decision of this action, and the offset of the latest approval.
pub fn approvals(store: &dyn Store, action: &ActionId) -> Result<(u32, Option<u64>), StoreError> {
    published_again(store, APPROVALS_MAX, |n| Event::<DecisionData>::id_for_approval(action, n))
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

/// A decision as the event that is published: sealed.
pub(crate) fn to_publish(event: &Event<DecisionData>) -> NewEvent {
    sealed_event(event, &event.data.request.action_id)
}

/// Whether a requeued action with this outcome becomes a dead letter again: it was not done, and only the operator who requeued it
/// knows of it. An action that a person refused or withdrew does not.
pub(crate) fn is_dead_letter_again(store: &dyn Store, action: &ActionId, outcome: Outcome) -> bool {
    let is_done = matches!(outcome, Outcome::Executed | Outcome::CachedHit | Outcome::DryRun);
    let by_person = matches!(outcome, Outcome::DeniedHuman | Outcome::Cancelled);
    // If the Store cannot say, keep one dead letter too many rather than lose one.
    !is_done && !by_person && requeued(store, action).map_or(true, |(times, _)| times > 0)
}

/// The keyed digest that identifies an action: that of the planner's decision, before any edit by an approver.
pub(crate) fn identity_of(identity: &Identity, decision: &DecisionData) -> Digest {
    let original = decision.approved.as_ref().and_then(|approved| approved.original);
    original.unwrap_or_else(|| identity.keyed(&decision.digest()))
}

/// An action that ends without being in flight. It holds no delivery; a stage that holds one finds the receipt.
pub(crate) fn detached(
    services: &Services,
    decision: DecisionData,
    trace_id: TraceId,
    accepted_at: Timestamp,
) -> Action<()> {
    let waited = services.clock.now().duration_since(accepted_at);
    let new = NewTicket {
        digest: identity_of(&services.identity, &decision),
        trace_id,
        principal: decision.principal,
        origin: decision.origin,
        contract: decision.contract,
        interactive: decision.interactive,
        approved: decision.approved,
        accepted_at,
        waited: waited.try_into().unwrap_or(Duration::ZERO),
        way: None,
        slot: Slot::unlimited(None, &services.metrics.in_flight),
    };
    let ticket = Ticket::new(services, &decision.request, new);
    Action::new(ticket, Arc::new(decision.request)).advance(|_| ())
}

/// An operation on effectd itself. It has a receipt like any action.
pub(crate) struct OwnAction<'a> {
    pub(crate) action_id: &'a ActionId,
    pub(crate) trace_id: &'a TraceId,
    pub(crate) by: &'a Principal,
    pub(crate) space: &'a str,
    pub(crate) tool: &'a str,
    pub(crate) params: Map<String, Value>,
}

impl OwnAction<'_> {
    pub(crate) fn decision(self, approval: Approval) -> Result<DecisionData, StoreError> {
        let by = (SubjectId::new(self.by.as_str())?, SpaceId::new(self.space)?);
        let call = (ToolId::new(self.tool)?, self.params);
        let mut request = ActionRequest::new(self.action_id.clone(), by, call);
        request.trace_id = Some(self.trace_id.clone());
        let mut decision = DecisionData::new(request, self.by.clone(), Origin::Arbiter);
        decision.approved = Some(Approved { record: approval, original: None });
        Ok(decision)
    }
}

/// The receipt that answers a request whose action has ended, or the refusal because its id belongs to another action. Only the
/// principal of a receipt sees it.
pub(crate) fn answer_of_ended(
    services: &Services,
    request: &ActionRequest,
    (principal, contract): (&Principal, Option<&Contract>),
) -> Result<Option<Result<Arc<Receipt>, Failure>>, StoreError> {
    let Some((receipt, digest)) = ended(&*services.store, &request.action_id)? else {
        return Ok(None);
    };
    let asked = || services.identity.keyed(&request.digest_under(contract));
    let same = receipt.action_id != request.action_id || digest == asked();
    Ok(Some(if same && receipt.principal == *principal { Ok(receipt) } else { Err(id_taken()) }))
}

pub(crate) fn id_taken() -> Failure {
    Failure::new(Code::ActionConflict, Phase::Accept, ID_TAKEN)
}

/// Whether the decision at this offset is the same request from the same principal. `digest` is the decision's plain digest, not
/// the keyed one: it is compared here and not stored.
pub(crate) fn same_decision(
    store: &dyn Store,
    offset: u64,
    digest: Digest,
    principal: &Principal,
) -> Result<bool, StoreError> {
    let known = read_at(store, offset)?;
    // A decision that cannot be read any more ended long ago; then its receipt decides.
    Ok(known.is_none_or(|event| event.data.digest() == digest && event.data.principal == *principal))
}

/// A decision from its event on the bus; `None` if it is none.
pub fn parse(body: &[u8]) -> Option<Event<DecisionData>> {
    // An event adds little to the largest request.
    json::parse_stored(body, 2 * bounds::REQUEST_BYTES_MAX).ok()
}

fn read_at(store: &dyn Store, offset: u64) -> Result<Option<Event<DecisionData>>, StoreError> {
    let page = match store.read(&Topic::ActionDecision.into(), offset, 1) {
        // Retention has just dropped the decision, so its action ended long ago.
        Err(StoreError::Dropped { .. }) => return Ok(None),
        page => page?,
    };
    let found = page.events.first().filter(|event| event.offset == offset);
    Ok(found.and_then(|event| parse(event.body.bytes()?)))
}
