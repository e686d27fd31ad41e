//! The stage for actions that the policy asks a person about: somebody has said yes already, a pre-approval stands in, or
//! it is put away until somebody decides.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Lookup, Store, StoreError};
use effectd_contracts::{ActionId, Code, Failure, Phase, ReceiptId, SafetyClass, canonical};
use ractor::ActorProcessingErr;
use ractor::factory::{FactoryRef, Job, Worker, WorkerId};

use super::ask::Ask;
use super::entries;
use super::grants;
use super::hold::{Hold, HoldState, written};
use super::park::{Parked, is_full, park, question, reopen};
use super::tidy;
use crate::action::{Action, Asked};
use crate::failpoint::hit;
use crate::gate::later;
use crate::idempotency::ID_TAKEN;
use crate::key;
use crate::limits::HELD_ROUNDS_MAX;
use crate::messages::{Consult, Record, Refusal, Settle};
use crate::open::intent_of;
use crate::parts::Parts;
use crate::preimage;
use crate::preview::{self, Preview, Trial};
use crate::resources;
use crate::stage::{PanicWatch, bounded, pass};

/// Proof that somebody said yes to exactly this. Made only here.
#[derive(Debug)]
pub(crate) struct Evidence(());

pub(crate) struct Holder {
    pub(crate) parts: Arc<Parts>,
    pub(crate) idempotency: FactoryRef<(), Settle>,
    pub(crate) recorder: FactoryRef<(), Record>,
}

/// How it goes on with an action that needs a person's yes.
enum Then {
    /// There is one.
    GoOn(Evidence),
    /// Nobody has decided: it waits.
    Waits(Box<Hold>),
    /// Another copy of it is on its way, or it has just ended.
    Elsewhere,
    /// It was done before.
    Before(ReceiptId),
    /// Another is doing the same: see what comes of that.
    Behind(ActionId),
    /// It ends here, with a receipt.
    Refused(Failure),
    /// Its id stands for something else.
    Conflict,
    /// Too many of its session wait.
    Full,
    /// It cannot be tried out now, for this reason.
    Later(Failure),
}

/// How long a decision from the bus is put off whose session has too many open questions.
const FULL_PAUSE: Duration = Duration::from_secs(5);

impl Worker for Holder {
    type Key = ();
    type Message = Consult;
    type Arguments = ();
    type State = ();

    async fn pre_start(
        &self,
        _: WorkerId,
        _: &FactoryRef<(), Consult>,
        (): (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: WorkerId,
        this: &FactoryRef<(), Consult>,
        job: Job<(), Consult>,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let _watch = PanicWatch::new("hold", &self.parts);
        let Consult(action) = job.msg;
        let stalled = action.ticket.stalled.clone();
        let (limit, work) = (self.parts.lease_ttl, Box::pin(self.consult(action, this)));
        bounded(&self.parts, "hold", limit, &stalled, work).await;
        Ok(())
    }
}

impl Holder {
    async fn consult(&self, mut action: Action<Asked>, this: &FactoryRef<(), Consult>) {
        action.hop("hold");
        hit("held.begin", &action.ticket.action_id).await;
        match self.find_way(&mut action).await {
            Ok(then) => self.act_on(then, action, this).await,
            Err(error) => self.give_up(action, &error),
        }
    }

    async fn find_way(&self, action: &mut Action<Asked>) -> Result<Then, StoreError> {
        let (parts, asked) = (&self.parts, &action.state);
        let ask = Ask::of(
            parts,
            &action.request,
            &action.ticket.principal,
            asked.entry(),
            asked.params(),
            &asked.ruling().decision,
        )
        .await;
        // Another copy of it may have been faster.
        if let Some(ended) = parts.store.receipt_of(&action.ticket.action_id)? {
            return Ok(Then::Before(ended.receipt_id));
        }
        let begun = has_intent(&*parts.store, &action.ticket.action_id).await?;
        if action.ticket.approved.is_some() {
            return self.evidence(action, &ask, begun).await;
        }
        if let Some(then) = self.standing(action).await? {
            return Ok(then);
        }
        if begun {
            return self.begun(action);
        }
        // A success that is known needs no new approval.
        if let Some(then) = self.look_up(action)? {
            return Ok(then);
        }
        if let Some(record) = grants::consume(parts, action, &ask).await? {
            action.ticket.granted = Some(record);
            return Ok(Then::GoOn(Evidence(())));
        }
        self.park(action, &ask).await
    }

    async fn park(&self, action: &Action<Asked>, ask: &Ask) -> Result<Then, StoreError> {
        let (id, asked) = (&action.ticket.action_id, &action.state);
        let version = &asked.entry().spec().version;
        if is_full(&self.parts, &action.ticket, &action.request, ask)? {
            return Ok(Then::Full);
        }
        let preview = match self.preview(action, ask).await {
            Ok(preview) => preview,
            Err(failure) => return Ok(Then::Later(failure)),
        };
        let new = question(
            &self.parts,
            &action.ticket,
            &action.request,
            ask,
            asked.ruling(),
            version,
            preview,
        );
        hit("held.before_park", id).await;
        let parked = park(&self.parts, new, action.ticket.lease()).await;
        hit("held.after_park", id).await;
        Ok(match parked? {
            Parked::Waits(hold) => Then::Waits(hold),
            Parked::Full => Then::Full,
        })
    }

    /// What a person is shown of it.
    async fn preview(&self, action: &Action<Asked>, ask: &Ask) -> Result<Box<Preview>, Failure> {
        if let Some(why) = ask.blind() {
            return Ok(Box::new(Preview::Unavailable(why)));
        }
        let (request, asked) = (&action.request, &action.state);
        let trial = Trial {
            subject: &request.subject_id,
            space: &request.space_id,
            entry: asked.entry(),
            params: asked.params(),
            high_isolation: asked.ruling().decision.safety_class == SafetyClass::High,
            trace_id: &action.ticket.trace_id,
            stands: Some(&ask.stands),
        };
        Ok(Box::new(preview::of(&self.parts, &trial).await?))
    }

    /// It was begun before, and its own effect may be what has changed. If a grant stood in then, it goes on and is settled
    /// by what its tool declares; if nobody was asked then, it cannot wait for a person as if nothing had happened.
    fn begun(&self, action: &mut Action<Asked>) -> Result<Then, StoreError> {
        let used = grants::used(&*self.parts.store, &action.ticket.action_id)?;
        let Some(record) = used else {
            return Ok(Then::Refused(begun()));
        };
        action.ticket.granted = Some(record);
        Ok(Then::GoOn(Evidence(())))
    }

    /// Somebody said yes. It counts if it is about exactly what would happen now, or if it was begun with it: then its own
    /// effect may be what has changed, and it is settled by what its tool declares.
    async fn evidence(&self, action: &mut Action<Asked>, ask: &Ask, begun: bool) -> Result<Then, StoreError> {
        let store = &*self.parts.store;
        let id = action
            .ticket
            .approved
            .as_ref()
            .and_then(|approved| approved.record.approval_id.clone());
        let hold = id.map(|id| entries::hold(store, &id)).transpose()?.flatten();
        let ours = hold.filter(|hold| {
            hold.value.is_approved()
                && hold
                    .value
                    .lead()
                    .is_some_and(|lead| lead.action_id == action.ticket.action_id)
        });
        let Some(hold) = ours else {
            if begun {
                return Ok(Then::Refused(self::begun()));
            }
            // A question that is settled was about another life of this action: it was requeued since, or its end is on disk.
            action.ticket.approved = None;
            return self.park(action, ask).await;
        };
        let agreed = hold.value.decided().map(|approval| approval.digest.clone());
        if begun || agreed == Some(written(&ask.digest)) {
            action.ticket.preview.clone_from(&hold.value.prompt.preview);
            // What stands there now is what was agreed to, or, if it was begun, perhaps its own effect.
            action.ticket.expect = if begun { Vec::new() } else { ask.stands.clone() };
            return Ok(Then::GoOn(Evidence(())));
        }
        if hold.value.round >= HELD_ROUNDS_MAX.get() {
            let message = format!(
                "it was approved {} times, and each time it had changed since",
                HELD_ROUNDS_MAX.get()
            );
            return Ok(Then::Refused(Failure::new(
                Code::PolicyDenied,
                Phase::Hold,
                message,
            )));
        }
        let why = "what was approved is not what would happen now: the tool, a rule or a file has changed";
        let (asked, version) = (&action.state, &action.state.entry().spec().version);
        let preview = match self.preview(action, ask).await {
            Ok(preview) => preview,
            Err(failure) => return Ok(Then::Later(failure)),
        };
        let new = question(
            &self.parts,
            &action.ticket,
            &action.request,
            ask,
            asked.ruling(),
            version,
            preview,
        );
        let new = reopen(&self.parts, &hold, new, why, action.ticket.lease()).await?;
        Ok(Then::Waits(Box::new(new)))
    }

    /// What is known of this very action.
    async fn standing(&self, action: &Action<Asked>) -> Result<Option<Then>, StoreError> {
        let ticket = &action.ticket;
        let Some(hold) = entries::hold_of(&*self.parts.store, &ticket.action_id)? else {
            return Ok(None);
        };
        let same = hold
            .value
            .member(&ticket.action_id)
            .is_some_and(|member| member.digest == ticket.digest);
        if !same || hold.value.decision.principal != ticket.principal {
            return Ok(Some(Then::Conflict));
        }
        if hold.value.is_open(self.parts.clock.now()) {
            if let Some(lease) = ticket.lease() {
                self.parts.store.ack(lease).await?;
            }
            return Ok(Some(Then::Waits(Box::new(hold.value))));
        }
        if let HoldState::Pending = hold.value.state {
            // Nobody swept.
            tidy::expire(&self.parts, &hold).await?;
        }
        Ok(Some(match self.parts.store.receipt_of(&ticket.action_id)? {
            Some(receipt) => Then::Before(receipt.receipt_id),
            None => Then::Elsewhere,
        }))
    }

    fn look_up(&self, action: &Action<Asked>) -> Result<Option<Then>, StoreError> {
        let asked = &action.state;
        if asked.dry_run().is_some() {
            return Ok(None);
        }
        let own = action.request.idempotency_key.clone();
        let is_own = own.is_some();
        let key = own.or_else(|| key::key_of(asked.entry().spec(), asked.params(), &self.parts.identity));
        let Some(key) = key else { return Ok(None) };
        let params = canonical::digest(asked.params().as_ref());
        let params = self.parts.identity.keyed(&params);
        let space = &action.request.space_id;
        let depends = if is_own {
            Vec::new()
        } else {
            let touched = preimage::touched_with(&self.parts, space, asked.entry(), asked.params());
            resources::of_action(asked.entry().spec(), space, asked.params(), &touched)
        };
        let known = self
            .parts
            .store
            .lookup(&action.asker(), &key, &params, &depends)?;
        Ok(match known {
            Lookup::Done { receipt_id } => Some(Then::Before(receipt_id)),
            Lookup::InFlight { action_id } if action_id != action.ticket.action_id => {
                Some(Then::Behind(action_id))
            }
            Lookup::Conflict => {
                let message = "this idempotency key was used before, with other parameters";
                let failure = Failure::new(Code::IdempotencyConflict, Phase::Idempotency, message);
                Some(Then::Refused(failure))
            }
            Lookup::InFlight { .. } | Lookup::Unknown => None,
        })
    }

    async fn act_on(&self, then: Then, mut action: Action<Asked>, this: &FactoryRef<(), Consult>) {
        match then {
            Then::GoOn(evidence) => {
                pass(
                    &self.idempotency,
                    Settle(action.advance(|asked| asked.permitted(&evidence))),
                );
            }
            Then::Waits(hold) => self.waits(action, &hold),
            Then::Elsewhere => {
                if let Some(lease) = action.ticket.lease() {
                    drop(self.parts.store.ack(lease));
                }
                action.ticket.settled();
            }
            Then::Before(receipt_id) => {
                let action = Box::new(action.advance(|_| ()));
                pass(&self.recorder, Record::Before { action, receipt_id });
            }
            Then::Behind(other) => self.park_behind(action, &other, this),
            Then::Refused(failure) => self.refuse(action, failure),
            Then::Conflict => {
                let failure = Failure::new(Code::ActionConflict, Phase::Hold, ID_TAKEN);
                let action = Box::new(action.advance(|_| ()));
                pass(&self.recorder, Record::Unrecorded { action, failure });
            }
            Then::Full => {
                let failure = full(&self.parts);
                if !action.ticket.refuse_at_door(&failure)
                    && let Some(lease) = action.ticket.lease()
                {
                    // Not a failed delivery, only a later one.
                    drop(self.parts.store.defer(lease, FULL_PAUSE));
                    action.ticket.settled();
                }
            }
            Then::Later(failure) => later(&self.parts, *action.ticket, &failure),
        }
    }

    fn waits(&self, mut action: Action<Asked>, hold: &Hold) {
        let id = action.ticket.action_id.clone();
        tracing::info!(parent: &action.ticket.span, trace_id = %action.ticket.trace_id, approval_id = %hold.approval_id, "held");
        self.parts.metrics.held.inc();
        let told = hold.told();
        if !action.ticket.hold_at_door(&told) {
            self.parts.answers.tell_held(&id, &told);
        }
        action.ticket.settled();
    }

    fn park_behind(&self, mut action: Action<Asked>, other: &ActionId, this: &FactoryRef<(), Consult>) {
        // The other one may stand behind this one, if its first copy was interrupted.
        action.ticket.place.leave_line();
        let kept = action.ticket.lease().map(|lease| {
            let until = self
                .parts
                .clock
                .monotonic()
                .plus(effectd_bus::limits::LEASE_TTL_MAX.get());
            self.parts.leases.keep(lease, until)
        });
        let again = this.clone();
        self.parts.answers.park_behind(other, move || {
            drop(kept);
            pass(&again, Consult(action));
        });
        // It may have ended between the question and the parking.
        if !matches!(self.parts.store.receipt_of(other), Ok(None)) {
            self.parts.answers.wake_parked(other);
        }
    }

    fn refuse(&self, action: Action<Asked>, failure: Failure) {
        let (tool, ruling) = (action.state.entry().clone(), action.state.ruling().clone());
        let refusal = Refusal {
            action: action.advance(|_| ()),
            tool: Some(tool),
            ruling: Some(ruling),
            outcome: failure.code.outcome(),
            failure,
            fence: None,
            dead_letter: false,
        };
        pass(&self.recorder, Record::Refused(Box::new(refusal)));
    }

    /// The Store could not answer. What is on the bus stays there; who waits at the door is told.
    fn give_up(&self, action: Action<Asked>, error: &StoreError) {
        tracing::warn!(parent: &action.ticket.span, %error, trace_id = %action.ticket.trace_id, "not held");
        if action.ticket.lease().is_none() {
            let message = format!("{error}; ask again with the same action id");
            let failure = Failure::new(Code::StoreUnavailable, Phase::Hold, message);
            let action = Box::new(action.advance(|_| ()));
            pass(&self.recorder, Record::Unrecorded { action, failure });
        }
    }
}

/// Whether an action has an intent without an outcome.
pub(crate) async fn has_intent(store: &dyn Store, action: &ActionId) -> Result<bool, StoreError> {
    Ok(intent_of(store, action).await?.is_some())
}

fn begun() -> Failure {
    let message = "it was begun, and since then a rule asks a person about it";
    Failure::new(Code::PolicyDenied, Phase::Hold, message)
}

fn full(parts: &Parts) -> Failure {
    let most = parts.settings.held_per_session_max;
    let message = format!("{most} actions of this session wait for a person already");
    Failure::new(Code::PendingLimit, Phase::Hold, message).retry_after(FULL_PAUSE)
}
