//! An action on its way, and the proof of how far it has come.
//!
//! `Action<S>` goes through the states [`Submitted`] → [`Validated`] → [`Gated`] → [`Claimed`] → [`Finished`], by way of
//! [`Asked`] if a person must be asked. The proof
//! of each state has private fields and is made only by the stage that earns it. So an action that has not passed the
//! gate cannot reach the executor: there is no way to write that down.
//!
//! ```
//! use effectd_actors::{Action, Claimed, messages::Execute};
//! fn hand_over(action: Action<Claimed>) -> Execute {
//!     action
//! }
//! ```
//!
//! The same with an action that is merely validated does not compile:
//!
//! ```compile_fail,E0308
//! use effectd_actors::{Action, Validated, messages::Execute};
//! fn hand_over(action: Action<Validated>) -> Execute {
//!     action
//! }
//! ```
//!
//! Nor can the proof be forged:
//!
//! ```compile_fail,E0451
//! use effectd_actors::Gated;
//! fn forge(passed: Gated) -> Gated {
//!     Gated { dry_run: None, ..passed }
//! }
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use effectd_bus::{Asker, LeaseId, Store};
use effectd_contracts::{
    ActionId, ActionRequest, Approval, Approved, Clock, DecisionData, Digest, Failure, Monotonic, Origin,
    Principal, Seen, Timestamp, TraceId,
};
use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::Span;

use crate::control::budgets::Reservation;
use crate::control::fair_queue::Permit;
use crate::control::lines::{InLine, Waiting};
use crate::held::Held;
use crate::limits::REDELIVERY_DELAY;
use crate::preview::Preview;

pub use crate::executor::Finished;
pub use crate::gate::{Asked, Gated};
pub use crate::idempotency::Claimed;
pub use crate::validator::Validated;

/// An action in the state `S`.
#[derive(Debug)]
pub struct Action<S> {
    /// Its standing: who asked, how it came in, what it holds. Boxed, since actions are handed on many times.
    pub ticket: Box<Ticket>,
    pub request: Arc<ActionRequest>,
    pub(crate) state: S,
}

/// Accepted, and nothing more.
#[derive(Debug)]
pub struct Submitted(());

impl Action<Submitted> {
    pub(crate) fn new(ticket: Ticket, request: Arc<ActionRequest>) -> Self {
        Self {
            ticket: Box::new(ticket),
            request,
            state: Submitted(()),
        }
    }
}

impl<S> Action<S> {
    /// The same action, one state further.
    pub(crate) fn advance<T>(self, earn: impl FnOnce(S) -> T) -> Action<T> {
        Action {
            ticket: self.ticket,
            request: self.request,
            state: earn(self.state),
        }
    }

    /// Who asks: its key is looked up among theirs alone.
    pub(crate) fn asker(&self) -> Asker {
        Asker {
            space: self.request.space_id.clone(),
            subject: self.request.subject_id.clone(),
            principal: self.ticket.principal.clone(),
        }
    }

    /// Tells the finest trace how far the action has come within a stage.
    pub(crate) fn step(&self, stage: &'static str) {
        tracing::trace!(parent: &self.ticket.span, stage, trace_id = %self.ticket.trace_id, "step");
    }
}

/// How a decision reached the pipeline.
#[derive(Debug)]
pub enum Way {
    /// Through the bus: it is on disk, and this delivery is ours until the lease ends.
    Bus {
        /// What to settle it by.
        lease: LeaseId,
    },
    /// Through the door, somebody waits: it is on disk only when it is claimed.
    Door {
        /// Told when the action turns back before it is on disk.
        back: oneshot::Sender<Back>,
    },
}

/// A place among the actions on their way; given back when the action is over.
#[derive(Debug)]
pub(crate) struct Place {
    // Given back in this order: whoever gets the turn finds the permit.
    _permit: Option<OwnedSemaphorePermit>,
    _turn: Option<Permit>,
    in_flight: IntGauge,
    reserved: Option<Reservation>,
    line: Option<InLine>,
}

impl Place {
    pub(crate) fn new(
        permit: Option<OwnedSemaphorePermit>,
        turn: Option<Permit>,
        in_flight: &IntGauge,
    ) -> Self {
        in_flight.inc();
        Self {
            _permit: permit,
            _turn: turn,
            in_flight: in_flight.clone(),
            reserved: None,
            line: None,
        }
    }

    pub(crate) fn with(mut self, reserved: Option<Reservation>) -> Self {
        self.reserved = reserved;
        self
    }

    pub(crate) fn in_line(mut self, line: Option<InLine>) -> Self {
        self.line = line;
        self
    }

    /// Whether another action on the same thing is to come first.
    pub(crate) fn waits_in_line(&self) -> Option<Waiting> {
        let line = self.line.as_ref()?;
        line.has_to_wait().then(|| line.waiting())
    }

    /// Lets those who stand behind it pass.
    pub(crate) fn leave_line(&mut self) {
        self.line = None;
    }

    /// Gives back what is reserved and was not used.
    pub(crate) fn close_account(&mut self) {
        self.reserved = None;
    }

    /// The action has run so often, and used this much processor time in all its tries.
    pub(crate) fn settle(&mut self, cpu: Duration, tries: usize) {
        if let Some(reserved) = &mut self.reserved {
            reserved.settle(cpu, u32::try_from(tries).unwrap_or(u32::MAX));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.in_flight.dec();
    }
}

/// An action came back to the door before it was on disk.
#[derive(Debug)]
pub enum Back {
    /// A worker died or stalled with it in its hand: the door puts it on the bus.
    Lost,
    /// It waits for a person, and that is on disk.
    Held(Held),
    /// It ends here, without a receipt. The asker alone is told: others may wait for a rightful action of the same id.
    Refused(Failure),
}

/// Says of an action that a stage did not get on with it.
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

/// The standing of an action. Dropped before it is settled, it gives the delivery back, so that the action is tried
/// again at once; should even that fail, the lease ends by itself.
pub struct Ticket {
    pub action_id: ActionId,
    pub digest: Digest,
    pub trace_id: TraceId,
    /// Who the door saw.
    pub principal: Principal,
    pub origin: Origin,
    /// When it was accepted, for people.
    pub accepted_at: Timestamp,
    /// When it was accepted, for measuring; in this process only.
    pub accepted: Monotonic,
    /// How long it lay on the bus before this process took it up.
    pub waited: Duration,
    /// The time from acceptance to the first stage, once it got there.
    pub queued: Option<Duration>,
    /// Somebody sits at a terminal and waits.
    pub interactive: bool,
    /// A person's yes, with which the decision came in again.
    pub approved: Option<Approved>,
    /// The pre-approval that stands in for a person.
    pub granted: Option<Approval>,
    /// What was shown of it beforehand.
    pub(crate) preview: Option<Box<Preview>>,
    /// What must stand where it works: what the person saw who agreed to it, or what a rule looked at.
    pub(crate) expect: Vec<Seen>,
    pub span: Span,
    pub(crate) way: Option<Way>,
    pub(crate) place: Place,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) stalled: Stalled,
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
    /// The delivery that it holds, if it came by the bus.
    pub fn lease(&self) -> Option<LeaseId> {
        match &self.way {
            Some(Way::Bus { lease }) => Some(*lease),
            Some(Way::Door { .. }) | None => None,
        }
    }

    /// Tells the trace that the action has reached a stage.
    pub(crate) fn hop(&self, stage: &'static str) {
        tracing::info!(parent: &self.span, stage, trace_id = %self.trace_id, "hop");
    }

    pub(crate) fn begin(&mut self, clock: &dyn Clock) {
        let in_process = clock.monotonic().since(self.accepted);
        self.queued.get_or_insert(self.waited + in_process);
    }

    /// From acceptance until now.
    pub(crate) fn age(&self, clock: &dyn Clock) -> Duration {
        self.waited + clock.monotonic().since(self.accepted)
    }

    /// The decision is on disk now, and its delivery is ours.
    pub(crate) fn admitted(&mut self, lease: LeaseId) {
        self.way = Some(Way::Bus { lease });
    }

    /// Turns the action back at the door: only the asker is told. `false` if it came by the bus.
    pub(crate) fn refuse_at_door(&mut self, failure: &Failure) -> bool {
        self.tell_door(|| Back::Refused(failure.clone()))
    }

    /// Tells the asker that the action waits for a person. `false` if it came by the bus.
    pub(crate) fn hold_at_door(&mut self, held: &Held) -> bool {
        self.tell_door(|| Back::Held(held.clone()))
    }

    fn tell_door(&mut self, back: impl FnOnce() -> Back) -> bool {
        match self.way.take_if(|way| matches!(way, Way::Door { .. })) {
            Some(Way::Door { back: door }) => {
                // An asker that has gone away needs no answer.
                drop(door.send(back()));
                true
            }
            Some(Way::Bus { .. }) | None => false,
        }
    }

    /// What was decided by a person, or in a person's place.
    pub(crate) fn approval(&self) -> Option<&Approval> {
        let approved = self.approved.as_ref().map(|approved| &approved.record);
        approved.or(self.granted.as_ref())
    }

    /// The decision that brought the action in, without a person's yes: that was for one time.
    pub(crate) fn decision(&self, request: &ActionRequest) -> DecisionData {
        DecisionData {
            interactive: self.interactive,
            ..DecisionData::new(request.clone(), self.principal.clone(), self.origin.clone())
        }
    }

    /// The action is answered for, or another copy of it is on its way: nothing is to be given back.
    pub(crate) fn settled(mut self) {
        self.way = None;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        match self.way.take() {
            Some(Way::Bus { lease }) => {
                // Not waited for: whether it succeeds or not, the lease ends by itself.
                let why = match (std::thread::panicking(), self.stalled.is_marked()) {
                    (true, _) => Some("a worker died with the action in its hand"),
                    (false, true) => Some("a worker did not get on with the action"),
                    (false, false) => None,
                };
                if let Some(why) = why {
                    drop(self.store.nack(lease, REDELIVERY_DELAY, why));
                } else {
                    drop(self.store.defer(lease, REDELIVERY_DELAY));
                }
            }
            Some(Way::Door { back }) => drop(back.send(Back::Lost)),
            None => {}
        }
    }
}
