//! Takes decisions from the bus, as many as there is room for, and sends them on their way.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Delivery, StoreError};
use effectd_contracts::{
    ActionId, Code, DecisionData, Event, Failure, Phase, Timestamp, Topic, json, limits as bounds,
};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::action::{Action, Place, Stalled, Submitted, Ticket, Way};
use crate::control::budgets::Reservation;
use crate::control::fair_queue::Permit;
use crate::decisions::identity_of;
use crate::failpoint::{hit, hit_idle};
use crate::held::stage::has_intent;
use crate::idempotency::ID_TAKEN;
use crate::letters::set_aside;
use crate::messages::{Record, Refusal};
use crate::open::intent_of;
use crate::parts::Parts;
use crate::pipeline::{group, span};
use crate::preimage;
use crate::seize::{Seized, seize};
use crate::stage::{Address, pass};
use crate::switches::{Restored, Switches};

/// Looks for decisions. There is one, restarted when it dies.
#[derive(Clone)]
pub(crate) struct Intake {
    pub(crate) parts: Arc<Parts>,
    /// Room for those that wait for their turn. Kept by the supervisor: whoever waits outlives an intake that died.
    pub(crate) ahead: Arc<Semaphore>,
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) validator: Address<Action<Submitted>>,
    pub(crate) recorder: Address<Record>,
}

/// The only message: look.
#[derive(Debug)]
pub(crate) struct Look;

/// The pause after the Store could not answer.
const STORE_PAUSE: Duration = Duration::from_millis(200);
/// The longest time that a decision is put off: then it is looked at again, since budgets and settings may have changed.
const PUT_OFF_MAX: Duration = Duration::from_secs(60);
/// The pause after a look that found nothing but what one subject has too much of.
const SCAN_PAUSE: Duration = Duration::from_millis(2);
/// The longest time between two looks, should news ever be missed.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The pause between two looks whether what a restore left may go on.
const HELD_BACK_PAUSE: Duration = Duration::from_millis(200);

pub(crate) struct Watching {
    news: effectd_bus::Watch,
    past: Past,
}

/// Decisions that were in the backup from which this state was made, if it was.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Past {
    /// Nobody has said yet that they may go on, or whether is not known.
    Waits,
    /// They may, if there are any: but what was begun then is not repeated, since somebody else may have ended it.
    Released(Option<Box<Restored>>),
}

impl Actor for Intake {
    type Msg = Look;
    type State = Watching;
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<Look>, (): ()) -> Result<Self::State, ActorProcessingErr> {
        let news = self
            .parts
            .store
            .watch_group(&Topic::ActionDecision.into(), &group()?)?;
        myself.cast(Look)?;
        Ok(Watching {
            news,
            past: Past::Waits,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Look>,
        Look: Look,
        watching: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let pause = match self.look(&mut watching.past).await {
            Ok(pause) => pause,
            Err(StoreError::Closed) => {
                myself.stop(Some("the store is closed".to_owned()));
                return Ok(());
            }
            Err(error) => {
                tracing::warn!(%error, "no decisions can be taken from the bus");
                Some(STORE_PAUSE)
            }
        };
        if let Some(pause) = pause {
            tokio::select! {
                news = watching.news.changed() => news?,
                () = tokio::time::sleep(pause) => {}
            }
        }
        myself.cast(Look)?;
        Ok(())
    }
}

impl Intake {
    /// Leases what there is room for. Answers how long there is nothing to do.
    async fn look(&self, past: &mut Past) -> Result<Option<Duration>, StoreError> {
        if !self.released(past)? {
            return Ok(Some(HELD_BACK_PAUSE));
        }
        let old = match &*past {
            Past::Released(old) => old.as_deref(),
            Past::Waits => None,
        };
        // At least one place among those who wait: without room there is nothing to look for.
        let Ok(first) = self.ahead.clone().acquire_owned().await else {
            return Err(StoreError::Closed);
        };
        let most = effectd_bus::limits::LEASE_EVENTS_MAX - 1;
        let room = 1 + self.ahead.available_permits().min(most);
        hit_idle("intake.before_lease").await;
        let leased = self
            .parts
            .store
            .lease(
                &Topic::ActionDecision.into(),
                &group()?,
                room,
                self.parts.lease_ttl,
            )
            .await?;
        let mut first = Some(first);
        let (busy, mut taken) = (!leased.deliveries.is_empty(), false);
        for delivery in leased.deliveries {
            let ahead = match first.take() {
                Some(ahead) => Some(ahead),
                None => self.ahead.clone().acquire_owned().await.ok(),
            };
            taken |= self.line_up(delivery, ahead, old).await;
        }
        Ok(match (busy, taken) {
            (true, true) => None,
            // All of it was put off: there may be more behind it, and there is no hurry.
            (true, false) => Some(SCAN_PAUSE),
            (false, _) => Some(leased.next_due.unwrap_or(LOOK_EVERY).clamp(
                Duration::from_millis(1),
                // What was admitted since comes due after that, should its worker be lost.
                LOOK_EVERY.min(self.parts.lease_ttl).max(Duration::from_millis(1)),
            )),
        })
    }

    /// Whether decisions may be taken. Asked until they may: only a restore makes it so that they may not, and none happens while
    /// somebody has the store open.
    fn released(&self, past: &mut Past) -> Result<bool, StoreError> {
        if *past == Past::Waits {
            *past = match Switches::new(&*self.parts.store).restored()? {
                Some(restored) if restored.waits => Past::Waits,
                restored => Past::Released(restored.map(Box::new)),
            };
        }
        Ok(*past != Past::Waits)
    }

    /// Has a delivery wait for its turn, unless it must come later. Says whether it does. What is of a backup is told by `old`.
    async fn line_up(
        &self,
        delivery: Delivery,
        ahead: Option<OwnedSemaphorePermit>,
        old: Option<&Restored>,
    ) -> bool {
        let Some(event) = read(&delivery) else {
            let detail = "the decision cannot be read";
            let why = (Code::Malformed, detail);
            let ended = set_aside(&self.parts, delivery.lease_id, Err(delivery.offset), why).await;
            tracing::warn!(
                offset = delivery.offset,
                ?ended,
                "a malformed decision is set aside"
            );
            return true;
        };
        let (parts, request) = (&self.parts, &event.data.request);
        let now = parts.clock.monotonic();
        if let Some(old) = old.filter(|old| delivery.offset < old.decisions && !request.dry_run) {
            match intent_of(&*parts.store, &request.action_id).await {
                Ok(None) => {}
                // Begun since, by this very state.
                Ok(Some(intent)) if !old.holds(&intent) => {}
                Ok(Some(_)) => {
                    drop(ahead);
                    self.leave_open(&delivery, event).await;
                    return true;
                }
                Err(error) => {
                    tracing::warn!(%error, action_id = %request.action_id, "whether it was begun is not known");
                    drop(parts.store.defer(delivery.lease_id, STORE_PAUSE));
                    return true;
                }
            }
        }
        if delivery.delivery_count > 1 && self.was_begun(&request.action_id).await {
            // Others may wait for it, and hold every place while they do.
            drop(ahead);
            let permit = self.permits.clone().try_acquire_owned().ok();
            let place = Place::new(permit, None, &parts.metrics.in_flight);
            self.enter(delivery, event, place).await;
            return true;
        }
        let among = match parts
            .control
            .surplus
            .take(&request.subject_id, delivery.offset, now)
        {
            Ok(among) => among,
            Err(after) => {
                drop(parts.store.defer(delivery.lease_id, after));
                return false;
            }
        };
        let reserved = match parts.control.rate(request, &event.data.principal) {
            Ok(reserved) => reserved,
            Err(throttled) => {
                // Not a failed delivery, only a later one.
                let after = throttled.after.min(PUT_OFF_MAX);
                drop(parts.store.defer(delivery.lease_id, after));
                return true;
            }
        };
        let places = &parts.control.places;
        let join = preimage::join(parts, request, request.digest());
        let mut coming = places.enqueue(&request.subject_id, &request.tool_id, join);
        if let Ok(turn) = coming.try_recv() {
            drop(ahead);
            among.begin(now);
            self.begin(delivery, event, (turn, reserved)).await;
            return true;
        }
        let until = parts.clock.monotonic().plus(effectd_bus::limits::LEASE_TTL_MAX);
        let kept = parts.leases.keep(delivery.lease_id, until);
        let intake = self.clone();
        tokio::spawn(async move {
            if let Ok(turn) = coming.await {
                drop((ahead, kept));
                among.begin(intake.parts.clock.monotonic());
                intake.begin(delivery, event, (turn, reserved)).await;
            }
        });
        true
    }

    async fn begin(
        &self,
        delivery: Delivery,
        event: Event<DecisionData>,
        (mut turn, reserved): (Permit, Option<Reservation>),
    ) {
        let Ok(permit) = self.permits.clone().acquire_owned().await else {
            // The runtime stops: the next start finds the decision on the bus, and this delivery was none.
            drop(
                self.parts
                    .store
                    .defer(delivery.lease_id, Duration::from_millis(1)),
            );
            return;
        };
        let line = turn.take_line();
        let place = Place::new(Some(permit), Some(turn), &self.parts.metrics.in_flight);
        let place = place.with(reserved).in_line(line);
        self.enter(delivery, event, place).await;
    }

    /// Whether an earlier delivery of it got as far as its intent.
    async fn was_begun(&self, action: &ActionId) -> bool {
        let found = has_intent(&*self.parts.store, action).await;
        found.unwrap_or_else(|error| {
            tracing::warn!(%error, action_id = %action, "whether it was begun is not known");
            false
        })
    }

    async fn enter(&self, delivery: Delivery, event: Event<DecisionData>, place: Place) {
        let action = self.action(&delivery, event, place);
        hit("intake.after_lease", &action.ticket.action_id).await;
        if delivery.exhausted {
            let deliveries = delivery.delivery_count;
            let message = format!("delivered {deliveries} times, and each time the work on it died");
            self.give_up(action, message).await;
        } else {
            pass(&self.validator, action);
        }
    }

    fn action(&self, delivery: &Delivery, event: Event<DecisionData>, place: Place) -> Action<Submitted> {
        let digest = identity_of(&self.parts, &event.data);
        let DecisionData {
            request,
            principal,
            origin,
            interactive,
            approved,
            ..
        } = event.data;
        // What a person has approved was accepted long before it was put on the bus again.
        let begun = if approved.is_some() {
            event.time
        } else {
            delivery.event.stored_at
        };
        let waited = since(begun, self.parts.clock.now());
        let trace_id = request.trace().unwrap_or_else(|| delivery.event.trace_id.clone());
        let tool = self.parts.registry.get(&request.tool_id);
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
            accepted_at: event.time,
            accepted: self.parts.clock.monotonic(),
            waited,
            queued: None,
            way: Some(Way::Bus {
                lease: delivery.lease_id,
            }),
            place,
            store: self.parts.store.clone(),
            stalled: Stalled::default(),
        };
        ticket.span.in_scope(|| {
            tracing::info!(stage = "intake", trace_id = %ticket.trace_id, delivery = delivery.delivery_count, "hop");
        });
        Action::new(ticket, Arc::new(request))
    }

    /// What was begun when the backup was made from which this state comes may have been ended by whoever went on with the
    /// original, and more may have been done there since. It is not repeated, whatever its tool says: a person settles it.
    async fn leave_open(&self, delivery: &Delivery, event: Event<DecisionData>) {
        let permit = self.permits.clone().try_acquire_owned().ok();
        let place = Place::new(permit, None, &self.parts.metrics.in_flight);
        let action = self.action(delivery, event, place);
        let message = "it is of the backup that this state was restored from, and was begun: whether it was done is not known";
        self.give_up(action, message.to_owned()).await;
    }

    /// A decision that is not tried any more ends here, with a receipt and a dead letter.
    async fn give_up(&self, action: Action<Submitted>, message: String) {
        let tool = self.parts.registry.get(&action.request.tool_id).cloned();
        let (fence, code) = match seize(&self.parts, &action).await {
            Ok(Seized::Held { fence, begun: true }) => (fence, Code::OutcomeUnknown),
            Ok(Seized::Held { fence, begun: false }) => (fence, Code::Internal),
            Ok(Seized::Ended(receipt_id)) => {
                return pass(&self.recorder, Record::before(action, receipt_id));
            }
            Ok(Seized::Conflict) => {
                let failure = Failure::new(Code::ActionConflict, Phase::Settle, ID_TAKEN);
                return pass(&self.recorder, Record::unrecorded(action, failure));
            }
            // The ticket is dropped: the decision comes again, as exhausted as it is.
            Ok(Seized::Alive | Seized::Busy) => return,
            Err(error) => {
                tracing::warn!(parent: &action.ticket.span, %error, "a poisonous decision cannot be ended yet");
                return;
            }
        };
        let failure = Failure::new(code, Phase::Settle, message);
        let refusal = Refusal {
            tool,
            fence: Some(fence),
            dead_letter: true,
            ..Refusal::new(action, failure)
        };
        pass(&self.recorder, refusal.into());
    }
}

fn read(delivery: &Delivery) -> Option<Event<DecisionData>> {
    let body = delivery.event.body.bytes()?;
    // The envelope adds little to the largest request.
    json::parse_stored(body, 2 * bounds::REQUEST_BYTES_MAX).ok()
}

fn since(earlier: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(earlier).try_into().unwrap_or(Duration::ZERO)
}
