//! Intake: leases as many decisions from the bus as there is room for, and starts them.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Delivery, StoreError};
use effectd_contracts::batch::is_batch;
use effectd_contracts::{
    ActionId, ActionRequest, Code, DecisionData, Event, Failure, Origin, Phase, Timestamp, Topic, TraceId,
};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::action::decisions::{self, ID_TAKEN, identity_of};
use crate::action::ticket::{NewTicket, Slot, Ticket, Way};
use crate::action::{Action, Submitted};
use crate::claims::pending::intent_of;
use crate::claims::takeover::{Takeover, take_over};
use crate::control::budgets::Reservation;
use crate::control::fair_queue::Permit;
use crate::control::switches::{Restored, Switches};
use crate::effects::snapshot;
use crate::failpoint::{hit, hit_idle};
use crate::messages::{Record, Refusal};
use crate::operator::dead_letters::set_aside;
use crate::services::{Interrupted, Services, group};
use crate::stage::{Address, pass};

/// There is one intake; the supervisor restarts it when it dies.
#[derive(Clone)]
pub(crate) struct Intake {
    pub(crate) services: Arc<Services>,
    /// Room for decisions that wait for a slot. The supervisor owns it, since waiting decisions outlive an intake that dies.
    pub(crate) ahead: Arc<Semaphore>,
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) validator: Address<Action<Submitted>>,
    pub(crate) recorder: Address<Record>,
}

/// The only message: lease decisions.
#[derive(Debug)]
pub(crate) struct Poll;

/// The pause after a failure of the Store.
const STORE_PAUSE: Duration = Duration::from_millis(200);
/// Longest deferral of a throttled decision: budgets and settings may change meanwhile.
const PUT_OFF_MAX: Duration = Duration::from_secs(60);
/// The pause after a poll in which every decision was surplus of a noisy subject.
const SCAN_PAUSE: Duration = Duration::from_millis(2);
/// The longest time between two polls, in case a notification is missed.
const POLL_EVERY: Duration = Duration::from_secs(5);

/// The pause between two checks whether the operator has resumed a restored state.
const HELD_BACK_PAUSE: Duration = Duration::from_millis(200);

pub(crate) struct Watching {
    news: effectd_bus::Watch,
    backup: FromBackup,
}

/// Decisions from the backup, if this state was restored from one.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FromBackup {
    /// The operator has not resumed yet, or the switch was not read yet.
    Waits,
    /// They may run. Actions begun before the backup are not repeated: the original system may have finished them.
    Released(Option<Box<Restored>>),
}

impl Actor for Intake {
    type Msg = Poll;
    type State = Watching;
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<Poll>, (): ()) -> Result<Self::State, ActorProcessingErr> {
        let news = self.services.store.watch_group(&Topic::ActionDecision.into(), &group()?)?;
        myself.cast(Poll)?;
        Ok(Watching { news, backup: FromBackup::Waits })
    }

    async fn handle(
        &self,
        myself: ActorRef<Poll>,
        Poll: Poll,
        watching: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let pause = match self.poll(&mut watching.backup).await {
            Ok(pause) => pause,
            Err(StoreError::Closed) => {
                myself.stop(Some("the store is closed".to_owned()));
                return Ok(());
            }
            Err(error) => {
                tracing::warn!(%error, "no decisions can be leased from the bus");
                Some(STORE_PAUSE)
            }
        };
        if let Some(pause) = pause {
            tokio::select! {
                news = watching.news.changed() => news?,
                () = tokio::time::sleep(pause) => {}
            }
        }
        myself.cast(Poll)?;
        Ok(())
    }
}

impl Intake {
    /// Leases as many decisions as there is room for. Returns how long to pause; `None` to poll again at once.
    async fn poll(&self, backup: &mut FromBackup) -> Result<Option<Duration>, StoreError> {
        if !self.released(backup)? {
            return Ok(Some(HELD_BACK_PAUSE));
        }
        let old = match &*backup {
            FromBackup::Released(old) => old.as_deref(),
            FromBackup::Waits => None,
        };
        // Waits for room for one decision: without it there is nothing to lease.
        let Ok(first) = self.ahead.clone().acquire_owned().await else {
            return Err(StoreError::Closed);
        };
        let most = effectd_bus::limits::LEASE_EVENTS_MAX - 1;
        let room = 1 + self.ahead.available_permits().min(most);
        hit_idle("intake.before_lease").await;
        let leased = self
            .services
            .store
            .lease(&Topic::ActionDecision.into(), &group()?, room, self.services.in_flight.leases.ttl)
            .await?;
        let mut first = Some(first);
        let (busy, mut taken) = (!leased.deliveries.is_empty(), false);
        for delivery in leased.deliveries {
            let ahead = match first.take() {
                Some(ahead) => Some(ahead),
                None => self.ahead.clone().acquire_owned().await.ok(),
            };
            taken |= self.enqueue(delivery, ahead, old).await;
        }
        Ok(match (busy, taken) {
            (true, true) => None,
            // Every decision was deferred: there may be others behind them.
            (true, false) => Some(SCAN_PAUSE),
            (false, _) => Some(leased.next_due.unwrap_or(POLL_EVERY).clamp(
                Duration::from_millis(1),
                // A decision that is admitted from now on is due again after its lease, should its worker die.
                POLL_EVERY.min(self.services.in_flight.leases.ttl).max(Duration::from_millis(1)),
            )),
        })
    }

    /// Whether decisions may be leased. Once they may, this is not checked again: only a restore holds them back, and none
    /// happens while the store is open.
    fn released(&self, backup: &mut FromBackup) -> Result<bool, StoreError> {
        if *backup == FromBackup::Waits {
            *backup = match Switches::new(&*self.services.store).restored()? {
                Some(restored) if restored.waits => FromBackup::Waits,
                restored => FromBackup::Released(restored.map(Box::new)),
            };
        }
        Ok(*backup != FromBackup::Waits)
    }

    /// Queues a delivery for a slot. `false` if it was deferred because its subject has too many. `old` tells which decisions are
    /// from a backup.
    async fn enqueue(
        &self,
        delivery: Delivery,
        ahead: Option<OwnedSemaphorePermit>,
        old: Option<&Restored>,
    ) -> bool {
        let Some(event) = delivery.event.body.bytes().and_then(decisions::parse) else {
            let why = (Code::Malformed, "the decision cannot be read");
            let Services { store, metrics, clock, .. } = &*self.services;
            let (lease, about) = (delivery.lease_id, Err(delivery.offset));
            let (offset, trace_id) = (delivery.offset, &delivery.event.trace_id);
            match set_aside(&**store, metrics, clock.now(), lease, about, why).await {
                Ok(()) => tracing::warn!(%trace_id, offset, "a malformed decision becomes a dead letter"),
                Err(error) => {
                    tracing::warn!(%trace_id, offset, %error, "a malformed decision could not become a dead letter yet");
                }
            }
            return true;
        };
        let (services, request) = (&self.services, &event.data.request);
        let trace_id = trace_of(&delivery, request);
        let now = services.clock.monotonic();
        if let Some(old) = old.filter(|old| delivery.offset < old.decisions && !request.dry_run) {
            match intent_of(&*services.store, &request.action_id).await {
                Ok(None) => {}
                // The action was begun after the restore.
                Ok(Some(intent)) if !old.holds(&intent) => {}
                Ok(Some(_)) => {
                    drop(ahead);
                    self.leave_open(&delivery, event).await;
                    return true;
                }
                Err(error) => {
                    tracing::warn!(%trace_id, %error, action_id = %request.action_id, "it is unknown whether the action began");
                    drop(services.store.defer(delivery.lease_id, STORE_PAUSE));
                    return true;
                }
            }
        }
        // A batch that an earlier process gave back when it stopped is delivered as if for the first time.
        let may_be_begun = delivery.delivery_count > 1 || is_batch(&request.tool_id);
        let begun = services.in_flight.interrupted.take(&request.action_id)
            || may_be_begun && self.was_begun(&request.action_id, &trace_id).await;
        // An item runs in the slot of its batch, as does what undoes it.
        if begun || matches!(event.data.origin, Origin::Batch { .. }) {
            // It gets a slot in any case: other actions may hold every slot and wait for this one.
            drop(ahead);
            let permit = self.permits.clone().try_acquire_owned().ok();
            let slot = Slot::unlimited(permit, &services.metrics.in_flight);
            self.enter(delivery, event, slot, Some(services.in_flight.interrupted.clone())).await;
            return true;
        }
        let among = match services.control.surplus.take(&request.subject_id, delivery.offset, now) {
            Ok(among) => among,
            Err(after) => {
                drop(services.store.defer(delivery.lease_id, after));
                return false;
            }
        };
        let reserved = match services.control.rate(request, &event.data.principal) {
            Ok(reserved) => reserved,
            Err(throttled) => {
                // A deferral does not count as a failed delivery.
                let mut after = throttled.after.min(PUT_OFF_MAX);
                if throttled.is_subjects() {
                    // Behind the subject's other deferred ones: if all returned when the next may start, all but one would be
                    // deferred again. Another limit must not hold up the subject's other users.
                    after = after.max(among.defer(delivery.offset, now));
                }
                drop(services.store.defer(delivery.lease_id, after));
                return true;
            }
        };
        let slots = &services.control.slots;
        let join =
            snapshot::join(&services.registry(), &services.control.resources, request, event.data.digest());
        let mut coming = slots.enqueue(&request.subject_id, &request.tool_id, join);
        if let Ok(permit) = coming.try_recv() {
            drop(ahead);
            among.begin(now);
            self.begin(delivery, event, (permit, reserved)).await;
            return true;
        }
        let extended =
            services.in_flight.leases.extend(delivery.lease_id, effectd_bus::limits::LEASE_TTL_MAX);
        let intake = self.clone();
        tokio::spawn(async move {
            if let Ok(permit) = coming.await {
                drop((ahead, extended));
                among.begin(intake.services.clock.monotonic());
                intake.begin(delivery, event, (permit, reserved)).await;
            }
        });
        true
    }

    async fn begin(
        &self,
        delivery: Delivery,
        event: Event<DecisionData>,
        (queue_permit, reserved): (Permit, Vec<Reservation>),
    ) {
        let Ok(permit) = self.permits.clone().acquire_owned().await else {
            // The runtime stops: the next start finds the decision on the bus, and this delivery is not counted.
            drop(self.services.store.defer(delivery.lease_id, Duration::from_millis(1)));
            return;
        };
        let slot = Slot::new(permit, queue_permit, reserved, &self.services.metrics.in_flight);
        self.enter(delivery, event, slot, None).await;
    }

    /// Whether an earlier delivery of this action wrote its intent.
    async fn was_begun(&self, action: &ActionId, trace_id: &TraceId) -> bool {
        let found = intent_of(&*self.services.store, action).await;
        found.map(|intent| intent.is_some()).unwrap_or_else(|error| {
            tracing::warn!(%trace_id, %error, action_id = %action, "it is unknown whether the action began");
            false
        })
    }

    async fn enter(
        &self,
        delivery: Delivery,
        event: Event<DecisionData>,
        slot: Slot,
        begun: Option<Interrupted>,
    ) {
        let mut action = self.action(&delivery, event, slot);
        action.ticket.begun = begun;
        hit("intake.after_lease", &action.ticket.action_id).await;
        // A batch that has begun goes on: deliveries that kill a worker are counted for each item.
        let goes_on = is_batch(&action.request.tool_id) && action.ticket.begun.is_some();
        if delivery.exhausted && !goes_on {
            let deliveries = delivery.delivery_count;
            let message = format!("delivered {deliveries} times, and a worker died each time");
            self.give_up(action, message).await;
        } else {
            pass(&self.validator, action);
        }
    }

    fn action(&self, delivery: &Delivery, event: Event<DecisionData>, slot: Slot) -> Action<Submitted> {
        let data = event.data;
        // An approved decision was accepted long before it was published again.
        let begun = if data.approved.is_some() { event.time } else { delivery.event.stored_at };
        let trace_id = trace_of(delivery, &data.request);
        let new = NewTicket {
            digest: identity_of(&self.services.identity, &data),
            trace_id,
            principal: data.principal,
            origin: data.origin,
            contract: data.contract,
            interactive: data.interactive,
            approved: data.approved,
            accepted_at: event.time,
            waited: since(begun, self.services.clock.now()),
            way: Some(Way::Bus { lease: delivery.lease_id }),
            slot,
        };
        let ticket = Ticket::new(&self.services, &data.request, new);
        ticket.span.in_scope(|| {
            tracing::debug!(stage = "intake", delivery = delivery.delivery_count, "hop");
        });
        Action::new(ticket, Arc::new(data.request))
    }

    /// Ends an action that was begun before the backup: the original system may have finished it. It is not repeated, whatever
    /// its tool declares; a person settles it.
    async fn leave_open(&self, delivery: &Delivery, event: Event<DecisionData>) {
        let permit = self.permits.clone().try_acquire_owned().ok();
        let slot = Slot::unlimited(permit, &self.services.metrics.in_flight);
        let action = self.action(delivery, event, slot);
        let message = "the action began before the backup that this state was restored from: whether it was done is unknown";
        self.give_up(action, message.to_owned()).await;
    }

    /// Ends a decision that is not tried again, with a receipt and a dead letter.
    async fn give_up(&self, action: Action<Submitted>, message: String) {
        let tool = self.services.registry().get(&action.request.tool_id).cloned();
        let claim = action.claim_to_end(&self.services.identity);
        let (store, running) = (&*self.services.store, &self.services.children.running);
        let (fence, code) = match take_over(store, running, claim).await {
            Ok(Takeover::Held { fence, begun: true, .. }) => (fence, Code::OutcomeUnknown),
            Ok(Takeover::Held { fence, begun: false, .. }) => (fence, Code::Internal),
            Ok(Takeover::Ended(receipt_id)) => {
                return pass(&self.recorder, Record::before(action, receipt_id));
            }
            Ok(Takeover::Conflict) => {
                let failure = Failure::new(Code::ActionConflict, Phase::Settle, ID_TAKEN);
                return pass(&self.recorder, Record::unrecorded(action, failure));
            }
            // The ticket is dropped: the decision is delivered again, and this is tried again.
            Ok(Takeover::Alive | Takeover::Busy) => return,
            Err(error) => {
                tracing::warn!(parent: &action.ticket.span, %error, "a decision without deliveries left could not become a dead letter yet");
                return;
            }
        };
        let failure = Failure::new(code, Phase::Settle, message);
        let refusal =
            Refusal { tool, fence: Some(fence), dead_letter: true, ..Refusal::new(action, failure) };
        pass(&self.recorder, refusal.into());
    }
}

fn since(earlier: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(earlier).try_into().unwrap_or(Duration::ZERO)
}

/// The trace of a decision: the planner's, or the one that the store gave it.
fn trace_of(delivery: &Delivery, request: &ActionRequest) -> TraceId {
    request.trace().unwrap_or_else(|| delivery.event.trace_id.clone())
}
