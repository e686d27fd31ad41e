//! The ticket of an action: who asks, how the action came in, and what it holds while it is in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use effectd_bus::{LeaseId, Store};
use effectd_contracts::{
    ActionId, ActionRequest, Approval, Approved, Clock, Contract, DecisionData, Digest, Failure, Monotonic,
    OrgId, Origin, PathSnapshot, Principal, Timestamp, TraceId, TraceParent,
};
use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::Span;

use super::preview::Preview;
use crate::control::budgets::Reservation;
use crate::control::fair_queue::Permit;
use crate::control::resource_queue::{Queued, QueuedRef};
use crate::limits::REDELIVERY_DELAY;
use crate::registry::RegisteredTool;
use crate::services::answers::Held;
use crate::services::{Interrupted, Services};

#[derive(Debug)]
pub enum Way {
    /// From the bus: the decision is on disk, and this process holds its delivery until the lease ends.
    Bus { lease: LeaseId },
    /// From a waiting caller: the decision is on disk only once the action is claimed.
    Caller {
        /// Tells the caller if the action turns back before it is on disk.
        back: oneshot::Sender<Back>,
    },
}

/// Why an action turned back before it was on disk.
#[derive(Debug)]
pub enum Back {
    /// A worker died or stalled with the action: the caller's task publishes the decision.
    Lost,
    /// The action waits for a person, and its hold is on disk.
    Held(Held),
    /// It ends here, without a receipt. Only this caller gets the failure: others may wait for the rightful action of that id.
    Refused(Failure),
}

/// One of the slots for actions in flight, with what its action has reserved. Freed on drop.
pub(crate) struct Slot {
    // Fields drop in this order: when the queue gives its permit to the next action, the semaphore has a permit as well.
    _permit: Option<OwnedSemaphorePermit>,
    _queue_permit: Option<Permit>,
    in_flight: IntGauge,
    reserved: Vec<Reservation>,
    /// How many of them are charged: a batch has one for each item.
    charged: usize,
    queued: Option<Queued>,
}

impl Slot {
    /// A slot outside of the fair queue, without a reservation.
    pub(crate) fn unlimited(permit: Option<OwnedSemaphorePermit>, in_flight: &IntGauge) -> Self {
        in_flight.inc();
        Self {
            _permit: permit,
            _queue_permit: None,
            in_flight: in_flight.clone(),
            reserved: Vec::new(),
            charged: 0,
            queued: None,
        }
    }

    pub(crate) fn new(
        permit: OwnedSemaphorePermit,
        mut queue_permit: Permit,
        reserved: Vec<Reservation>,
        in_flight: &IntGauge,
    ) -> Self {
        let mut slot = Self::unlimited(Some(permit), in_flight);
        slot.reserved = reserved;
        slot.queued = queue_permit.take_queued();
        slot._queue_permit = Some(queue_permit);
        slot
    }

    /// The position to wait at, if another action on the same resource comes first.
    pub(crate) fn must_wait(&self) -> Option<QueuedRef> {
        let queued = self.queued.as_ref()?;
        queued.must_wait().then(|| queued.position())
    }

    /// Lets the actions behind this one pass.
    pub(crate) fn leave_queue(&mut self) {
        self.queued = None;
    }

    /// Ends the reservation: what was charged is spent, the rest is given back.
    pub(crate) fn release_budget(&mut self) {
        self.reserved.clear();
    }

    /// Sets what the action has used: the processor time of all attempts, and their number.
    pub(crate) fn charge(&mut self, cpu: Duration, attempts: usize) {
        if let Some(reserved) = self.reserved.get_mut(self.charged) {
            self.charged += 1;
            reserved.charge(cpu, u32::try_from(attempts).unwrap_or(u32::MAX));
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.in_flight.dec();
    }
}

/// Whether a stage exceeded its time limit with the action.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stalled(Arc<AtomicBool>);

impl Stalled {
    pub(crate) fn mark(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_marked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A ticket that is dropped before [`Ticket::close`] gives its delivery back, so that the action is tried again at once; if that
/// fails, the lease ends by itself.
pub struct Ticket {
    pub action_id: ActionId,
    pub digest: Digest,
    pub trace_id: TraceId,
    /// Who asked, according to the operating system.
    pub principal: Principal,
    pub origin: Origin,
    pub contract: Option<Contract>,
    /// The organisation that the space belonged to when this process got the action.
    pub org: Option<OrgId>,
    pub accepted_at: Timestamp,
    /// When this process accepted the action, on its monotonic clock; `waited` is the time before that.
    pub accepted: Monotonic,
    /// How long the decision lay on the bus before this process leased it.
    pub waited: Duration,
    /// The time from acceptance to the first stage; `None` before the action is there.
    pub queued: Option<Duration>,
    /// Whether the caller waits at a terminal.
    pub interactive: bool,
    /// The approval with which the decision was published again.
    pub approved: Option<Approved>,
    /// The grant that replaces an approval.
    pub granted: Option<Approval>,
    /// The preview on which the approval or a policy rule relied.
    pub(crate) preview: Option<Box<Preview>>,
    /// Preconditions: the state of the tool's paths that the approver or a policy rule saw.
    pub(crate) expect: Vec<PathSnapshot>,
    pub span: Span,
    pub(crate) way: Option<Way>,
    pub(crate) slot: Slot,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) stalled: Stalled,
    /// Where a delivery that is given back is noted; `None` before the action has an intent.
    pub(crate) begun: Option<Interrupted>,
}

/// What differs between new actions; the rest of a [`Ticket`] follows from it.
pub(crate) struct NewTicket {
    pub(crate) digest: Digest,
    pub(crate) trace_id: TraceId,
    pub(crate) principal: Principal,
    pub(crate) origin: Origin,
    pub(crate) contract: Option<Contract>,
    pub(crate) interactive: bool,
    pub(crate) approved: Option<Approved>,
    pub(crate) accepted_at: Timestamp,
    pub(crate) waited: Duration,
    pub(crate) way: Option<Way>,
    pub(crate) slot: Slot,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket")
            .field("action_id", &self.action_id)
            .field("way", &self.way)
            .finish_non_exhaustive()
    }
}

impl Ticket {
    pub(crate) fn new(services: &Services, request: &ActionRequest, new: NewTicket) -> Self {
        let registry = services.registry();
        let tool = registry.get(&request.tool_id);
        let org = services.org_of(&request.space_id);
        Self {
            action_id: request.action_id.clone(),
            digest: new.digest,
            span: span(request, &new, org.as_ref(), tool.map(AsRef::as_ref)),
            org,
            trace_id: new.trace_id,
            principal: new.principal,
            origin: new.origin,
            contract: new.contract,
            accepted_at: new.accepted_at,
            accepted: services.clock.monotonic(),
            waited: new.waited,
            queued: None,
            interactive: new.interactive,
            approved: new.approved,
            granted: None,
            preview: None,
            expect: Vec::new(),
            way: new.way,
            slot: new.slot,
            store: services.store.clone(),
            stalled: Stalled::default(),
            begun: None,
        }
    }

    /// The delivery that the action holds; `None` if it came from a caller and is not claimed yet.
    pub fn lease(&self) -> Option<LeaseId> {
        match &self.way {
            Some(Way::Bus { lease }) => Some(*lease),
            Some(Way::Caller { .. }) | None => None,
        }
    }

    pub(crate) fn hop(&self, stage: &'static str) {
        tracing::debug!(parent: &self.span, stage, "hop");
    }

    pub(crate) fn begin(&mut self, clock: &dyn Clock) {
        let in_process = clock.monotonic().since(self.accepted);
        self.queued.get_or_insert(self.waited + in_process);
    }

    pub(crate) fn age(&self, clock: &dyn Clock) -> Duration {
        self.waited + clock.monotonic().since(self.accepted)
    }

    /// The decision is on disk now, and this process holds its delivery.
    pub(crate) fn admitted(&mut self, lease: LeaseId) {
        self.way = Some(Way::Bus { lease });
    }

    /// Sends the refusal to the waiting caller alone. `false` if the action came from the bus.
    pub(crate) fn refuse_caller(&mut self, failure: &Failure) -> bool {
        self.turn_back(|| Back::Refused(failure.clone()))
    }

    /// Tells the waiting caller that the action waits for a person. `false` if the action came from the bus.
    pub(crate) fn hold_caller(&mut self, held: &Held) -> bool {
        self.turn_back(|| Back::Held(held.clone()))
    }

    fn turn_back(&mut self, back: impl FnOnce() -> Back) -> bool {
        match self.way.take_if(|way| matches!(way, Way::Caller { .. })) {
            Some(Way::Caller { back: caller }) => {
                // A caller that has gone away needs no answer.
                drop(caller.send(back()));
                true
            }
            Some(Way::Bus { .. }) | None => false,
        }
    }

    pub(crate) fn approval(&self) -> Option<&Approval> {
        let approved = self.approved.as_ref().map(|approved| &approved.record);
        approved.or(self.granted.as_ref())
    }

    /// The decision that brought the action in, without its approval, which counted only once.
    pub(crate) fn decision(&self, request: &ActionRequest) -> DecisionData {
        DecisionData {
            contract: self.contract.clone(),
            interactive: self.interactive,
            ..DecisionData::new(request.clone(), self.principal.clone(), self.origin.clone())
        }
    }

    /// Ends the ticket without giving its delivery back: the action has its answer, or another copy of it is in flight.
    pub(crate) fn close(mut self) {
        self.way = None;
    }

    /// Gives the delivery back for a while, which does not count as a failed delivery.
    pub(crate) fn defer(mut self, pause: Duration) {
        if let Some(lease) = self.lease() {
            self.note_begun();
            drop(self.store.defer(lease, pause));
            self.way = None;
        }
    }

    fn note_begun(&self) {
        if let Some(interrupted) = &self.begun {
            interrupted.add(self.action_id.clone());
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let why = match (std::thread::panicking(), self.stalled.is_marked()) {
            (true, _) => Some("a worker died while it processed the action"),
            (false, true) => Some("a worker made no progress with the action"),
            (false, false) => None,
        };
        // Whoever died with it, a stage or intake, the log tells which action it was.
        if let (Some(why), Some(_)) = (why, &self.way) {
            tracing::warn!(parent: &self.span, why, "the action is tried again");
        }
        match self.way.take() {
            Some(Way::Bus { lease }) => {
                self.note_begun();
                // Not awaited: if the Store fails, the lease ends by itself.
                if let Some(why) = why {
                    drop(self.store.nack(lease, REDELIVERY_DELAY, why));
                } else {
                    drop(self.store.defer(lease, REDELIVERY_DELAY));
                }
            }
            Some(Way::Caller { back }) => drop(back.send(Back::Lost)),
            None => {}
        }
    }
}

/// The span of one action, with OpenTelemetry's names for tool calls beside our own. `retry`, the mode, the outcome, the arguments
/// and the error type are recorded later. Its level is that of errors, so that every line of an action is in it, whatever the log's level is.
fn span(
    request: &ActionRequest,
    NewTicket { trace_id: trace, origin, .. }: &NewTicket,
    org: Option<&OrgId>,
    tool: Option<&RegisteredTool>,
) -> Span {
    let session = origin.session();
    let caps: Vec<&str> = tool.iter().flat_map(|t| &t.spec().caps_required).map(|cap| cap.as_str()).collect();
    let profile = tool.map(|tool| tool.spec().effective_profile().as_str());
    let own = TraceParent::of_action(trace, &request.action_id, request.traceparent.as_ref());
    let under = request.traceparent.as_ref().filter(|parent| parent.trace() == trace.as_str());
    tracing::error_span!(
        parent: None,
        "action.exec",
        trace_id = %trace,
        span_id = own.as_ref().map(TraceParent::span),
        parent_span_id = under.map(TraceParent::span),
        action_id = %request.action_id,
        tool_id = %request.tool_id,
        source_id = request.tool_id.source(),
        space_id = %request.space_id,
        session_id = session.as_ref().map(|session| session.as_str()),
        organization_id = org.map(|org| org.as_str()),
        mode = tracing::field::Empty,
        mode_source = tracing::field::Empty,
        status = tracing::field::Empty,
        duration_ms = tracing::field::Empty,
        retry = 0_u64,
        outcome = tracing::field::Empty,
        caps = caps.join(","),
        sandbox_profile = profile,
        gen_ai.operation.name = "execute_tool",
        gen_ai.tool.name = %request.tool_id,
        gen_ai.tool.call.id = %request.action_id,
        gen_ai.tool.call.arguments = tracing::field::Empty,
        error.type = tracing::field::Empty,
    )
}
