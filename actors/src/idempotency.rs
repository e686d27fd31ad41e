//! The third stage: was this done before, is somebody doing it, or is it ours to do?
//!
//! A granted claim puts the intent on disk; from here on, whatever happens, the action can be settled.

use std::sync::{Arc, Mutex, PoisonError};

use effectd_bus::{
    Admission, Admitted, Claim, ClaimAnswer, ConflictOf, Fence, GroupName, LeaseId, Lookup, NewBody,
    NewEvent, OpenIntent, Pins, ResourceName, StoreError,
};
use effectd_contracts::{
    ActionId, Code, DecisionData, Digest, Event, Failure, IdempotencyKey, Phase, ReceiptId, Seen, Topic,
    Touch, canonical,
};
use ractor::ActorProcessingErr;
use ractor::factory::{FactoryRef, Job, Worker, WorkerId};

use crate::action::{Action, Gated};
use crate::capture::Ahead;
use crate::control::lines::InLine;
use crate::control::turns::Turn;
use crate::decisions::same_decision;
use crate::failpoint::hit;
use crate::intent::{Content, Intent};
use crate::keeping::{FirstLook, Kept, first_look};
use crate::key;
use crate::leases;
use crate::messages::{Execute, Record, Refusal, Settle};
use crate::parts::Parts;
use crate::pipeline::group;
use crate::poise::{Poised, poise};
use crate::preimage;
use crate::resources;
use crate::stage::{PanicWatch, body, bounded, pass};

/// The action is ours to do, and that is on disk.
#[derive(Debug)]
pub struct Claimed {
    gated: Gated,
    terms: Terms,
    fence: Fence,
    earlier: Earlier,
    ahead: Mutex<Option<Ahead>>,
    poised: Mutex<Option<Poised>>,
}

/// Whether the action was begun before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Earlier {
    /// No.
    No,
    /// Yes, and whether it happened is not known. `None` if the intent cannot be read any more.
    Interrupted(Option<Intent>),
}

/// What the action is known and found by.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Its key; none for a dry run and for tools whose every request is its own.
    pub key: Option<IdempotencyKey>,
    /// Digest of the parameters after redaction.
    pub params_digest: Digest,
    /// What it changes.
    pub resources: Vec<ResourceName>,
    /// What its key depends on: a key that follows from the parameters says what is to be there, and is open again when that was
    /// changed. One that the planner has chosen says which request it is, and holds.
    pub depends: Vec<ResourceName>,
    /// The paths that it may change.
    pub touched: Vec<Touch>,
    /// What stood there just before it was claimed.
    pub before: Option<Vec<Seen>>,
    /// What is kept of it already.
    pub kept: Kept,
    /// What is sent along with the call, and stays until it has ended.
    pub pinned: Option<Arc<Pins>>,
}

impl Claimed {
    /// The state before.
    pub fn gated(&self) -> &Gated {
        &self.gated
    }

    /// What it is known by.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Lets go of what was sent along with the call: it is over.
    pub(crate) fn take_pinned(&mut self) -> Option<Arc<Pins>> {
        self.terms.pinned.take()
    }

    /// Makes up what can be of its receipt already, if that was not done before.
    pub(crate) fn write_ahead(&self, parts: &Parts) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if ahead.is_none() {
            *ahead = Ahead::of(parts, &self.gated);
        }
    }

    /// The child that has its call in hand, if one has.
    pub(crate) fn take_poised(&self) -> Option<Poised> {
        self.poised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// That child's turn to start something.
    pub(crate) fn take_turn(&self) -> Option<Turn> {
        let mut poised = self.poised.lock().unwrap_or_else(PoisonError::into_inner);
        poised.as_mut().and_then(Poised::take_turn)
    }

    /// What was made up of it, for the receipt.
    pub(crate) fn take_ahead(&self) -> Option<Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// What to commit under.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Whether it was begun before.
    pub fn earlier(&self) -> &Earlier {
        &self.earlier
    }
}

pub(crate) struct Idempotency {
    pub(crate) parts: Arc<Parts>,
    pub(crate) executor: FactoryRef<(), Execute>,
    pub(crate) recorder: FactoryRef<(), Record>,
}

impl Worker for Idempotency {
    type Key = ();
    type Message = Settle;
    type Arguments = ();
    type State = ();

    async fn pre_start(
        &self,
        _: WorkerId,
        _: &FactoryRef<(), Settle>,
        (): (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: WorkerId,
        this: &FactoryRef<(), Settle>,
        job: Job<(), Settle>,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let _watch = PanicWatch::new("idempotency", &self.parts);
        let Settle(action) = job.msg;
        let stalled = action.ticket.stalled.clone();
        let (limit, work) = (self.parts.lease_ttl, Box::pin(self.find_out(action, this)));
        bounded(&self.parts, "idempotency", limit, &stalled, work).await;
        Ok(())
    }
}

/// What asking brought.
enum Asked {
    Claim(ClaimAnswer),
    /// The decision is on its way through the bus as well; that copy will answer.
    OnTheBus,
}

impl Idempotency {
    async fn find_out(&self, mut action: Action<Gated>, this: &FactoryRef<(), Settle>) {
        action.hop("idempotency");
        if let Some(turn) = action.ticket.place.waits_in_line() {
            let (kept, again) = (self.keep(&action), this.clone());
            return InLine::when_first(turn, move || {
                drop(kept);
                pass(&again, Settle(action));
            });
        }
        hit("idempotency.begin", &action.ticket.action_id).await;
        let mut terms = self.terms(&action);
        hit("idempotency.before_claim", &action.ticket.action_id).await;
        let asked = self.ask(&mut action, &mut terms).await;
        hit("idempotency.after_claim", &action.ticket.action_id).await;
        match asked {
            Ok((answer, poised)) => self.act_on(answer, action, (terms, poised), this).await,
            Err(error) => self.give_up(action, &error),
        }
    }

    fn terms(&self, action: &Action<Gated>) -> Terms {
        let (spec, params) = (action.state.entry().spec(), action.state.params());
        let params_digest = self.parts.identity.keyed(&canonical::digest(params.as_ref()));
        if action.state.dry_run().is_some() {
            // What changes nothing neither is nor makes a "done before", and disturbs nobody.
            return Terms {
                key: None,
                params_digest,
                resources: Vec::new(),
                depends: Vec::new(),
                touched: Vec::new(),
                before: None,
                kept: Kept::default(),
                pinned: preimage::pin(&self.parts, action),
            };
        }
        let own = action.request.idempotency_key.clone();
        let is_own = own.is_some();
        let key = own.or_else(|| key::key_of(spec, params, &self.parts.identity));
        let space = &action.request.space_id;
        let touched = preimage::touched(&self.parts, action);
        let resources = resources::of_action(spec, space, params, &touched);
        Terms {
            params_digest,
            depends: if is_own || key.is_none() {
                Vec::new()
            } else {
                resources.clone()
            },
            key,
            resources,
            touched,
            before: None,
            kept: Kept::default(),
            pinned: preimage::pin(&self.parts, action),
        }
    }

    async fn ask(
        &self,
        action: &mut Action<Gated>,
        terms: &mut Terms,
    ) -> Result<(Asked, Option<Poised>), StoreError> {
        let by_bus = action.ticket.lease().is_some();
        if !by_bus && let Some(known) = self.look_up(action, terms)? {
            return Ok((Asked::Claim(known), None));
        }
        // Only now: what was done before needs no look at the disk.
        let (parts, request) = (&self.parts, action.request.clone());
        let mut look = first_look(parts, &request.space_id, &terms.touched).await;
        terms.before = look.as_mut().map(|look| std::mem::take(&mut look.seen));
        action.step("looked");
        let contents = look.as_ref().map(FirstLook::for_intent).unwrap_or_default();
        let in_intent = !contents.is_empty();
        let keeping = async {
            match look {
                Some(look) => look.keep(parts, &request, in_intent).await,
                None => Kept::default(),
            }
        };
        // Somebody waits, and it was not done before: what can go on meanwhile does.
        let poising = async { (!by_bus).then(|| poise(parts, action, terms)).flatten() };
        // Keeping first: it goes to another thread, and that one is on its way to the disk before the claim is made up. The call next: its
        // child takes longer to get ready than the claim to be written.
        let claiming = self.ask_for_claim(action, terms, contents);
        let (kept, poised, asked) = tokio::join!(keeping, poising, claiming);
        action.step("claimed");
        let (asked, lease) = asked?;
        if let Some(lease) = lease {
            action.ticket.admitted(lease);
        }
        if let Asked::Claim(ClaimAnswer::New { .. }) = asked {
            // An earlier intent stands as it was: what would have stood in this one is on disk nowhere.
            terms.kept = kept;
            return Ok((asked, poised));
        }
        Ok((asked, None))
    }

    /// Asks for the claim. The delivery that is admitted with it comes along.
    async fn ask_for_claim(
        &self,
        action: &Action<Gated>,
        terms: &Terms,
        contents: Vec<Content>,
    ) -> Result<(Asked, Option<LeaseId>), StoreError> {
        let claim = self.claim(action, terms, contents);
        if action.ticket.lease().is_some() {
            return Ok((Asked::Claim(self.parts.store.claim(claim).await?), None));
        }
        let admission = Admission {
            topic: Topic::ActionDecision.into(),
            group: pipeline_group()?,
            ttl: self.parts.lease_ttl,
            event: self.decision_event(action),
            claim,
        };
        let asked = match self.parts.store.admit(admission).await? {
            Admitted::Granted { fence, lease_id, .. } => {
                return Ok((Asked::Claim(ClaimAnswer::New { fence }), Some(lease_id)));
            }
            // Its decision is on the bus: whoever gets it from there settles it.
            Admitted::NotGranted(ClaimAnswer::OwnIntent(_)) => Asked::OnTheBus,
            Admitted::AlreadyPublished { offset } => {
                let (digest, principal) = (action.request.digest(), &action.ticket.principal);
                if same_decision(&*self.parts.store, offset, digest, principal)? {
                    Asked::OnTheBus
                } else {
                    Asked::Claim(ClaimAnswer::Conflict {
                        what: ConflictOf::Action,
                    })
                }
            }
            Admitted::NotGranted(answer) => Asked::Claim(answer),
        };
        Ok((asked, None))
    }

    /// A cached success costs no write: it is looked up before anything is admitted.
    fn look_up(&self, action: &Action<Gated>, terms: &Terms) -> Result<Option<ClaimAnswer>, StoreError> {
        let Some(key) = &terms.key else { return Ok(None) };
        let store = &self.parts.store;
        let known = store.lookup(&action.asker(), key, &terms.params_digest, &terms.depends)?;
        Ok(match known {
            Lookup::Done { receipt_id } => Some(ClaimAnswer::Done { receipt_id }),
            Lookup::Conflict => Some(ClaimAnswer::Conflict {
                what: ConflictOf::Key,
            }),
            Lookup::InFlight { .. } | Lookup::Unknown => None,
        })
    }

    fn claim(&self, action: &Action<Gated>, terms: &Terms, contents: Vec<Content>) -> Claim {
        let spec = action.state.entry().spec();
        let intent = Intent {
            tool_id: spec.tool_id.clone(),
            tool_version: spec.version.clone(),
            repeat: spec.repeat,
            dry_run: action.state.dry_run().is_some(),
            before: terms.before.clone(),
            contents,
        };
        Claim {
            action_id: action.ticket.action_id.clone(),
            action_digest: action.ticket.digest,
            asker: action.asker(),
            key: terms.key.clone(),
            params_digest: terms.params_digest,
            intent: intent.to_bytes(),
            resources: terms.resources.clone(),
            depends: terms.depends.clone(),
        }
    }

    fn decision_event(&self, action: &Action<Gated>) -> NewEvent {
        decision_event(action.ticket.decision(&action.request), action)
    }

    async fn act_on(
        &self,
        asked: Asked,
        action: Action<Gated>,
        (terms, poised): (Terms, Option<Poised>),
        this: &FactoryRef<(), Settle>,
    ) {
        let answer = match asked {
            Asked::Claim(answer) => answer,
            Asked::OnTheBus => return action.ticket.settled(),
        };
        match answer {
            ClaimAnswer::New { fence } => self.execute(action, (terms, poised), fence, Earlier::No),
            ClaimAnswer::InFlight { action_id } | ClaimAnswer::ResourceBusy { action_id } => {
                self.park(action, &action_id, this);
            }
            ClaimAnswer::Done { receipt_id } => self.done_before(action, receipt_id),
            ClaimAnswer::OwnIntent(open) => self.take_over(action, terms, open, this).await,
            ClaimAnswer::Conflict { what } => self.conflict(action, what),
        }
    }

    fn execute(
        &self,
        action: Action<Gated>,
        (terms, poised): (Terms, Option<Poised>),
        fence: Fence,
        earlier: Earlier,
    ) {
        let claimed = action.advance(|gated| Claimed {
            gated,
            terms,
            fence,
            earlier,
            ahead: Mutex::default(),
            poised: Mutex::new(poised),
        });
        pass(&self.executor, Execute(claimed));
    }

    /// Keeps the delivery of an action that waits.
    fn keep(&self, action: &Action<Gated>) -> Option<leases::Kept> {
        let lease = action.ticket.lease()?;
        let most = effectd_bus::limits::LEASE_TTL_MAX.get();
        let until = self.parts.clock.monotonic().plus(most);
        Some(self.parts.leases.keep(lease, until))
    }

    /// Waits, without holding a worker, until the other action has ended; then asks again.
    fn park(&self, mut action: Action<Gated>, behind: &ActionId, this: &FactoryRef<(), Settle>) {
        let (kept, again) = (self.keep(&action), this.clone());
        // The other one may stand behind this one, if its first copy was interrupted.
        action.ticket.place.leave_line();
        self.parts.answers.park_behind(behind, move || {
            drop(kept);
            pass(&again, Settle(action));
        });
        // It may have ended between the question and the parking.
        if !matches!(self.parts.store.receipt_of(behind), Ok(None)) {
            self.parts.answers.wake_parked(behind);
        }
    }

    fn done_before(&self, action: Action<Gated>, receipt_id: ReceiptId) {
        let action = action.advance(|_| ());
        pass(
            &self.recorder,
            Record::Before {
                action: Box::new(action),
                receipt_id,
            },
        );
    }

    /// The action was begun before. Once its first child is proven dead, it is ours to settle.
    async fn take_over(
        &self,
        action: Action<Gated>,
        terms: Terms,
        open: OpenIntent,
        this: &FactoryRef<(), Settle>,
    ) {
        let id = action.ticket.action_id.clone();
        if self.parts.running.has_child(&id) {
            let again = this.clone();
            self.parts
                .running
                .when_dead(&id, move || pass(&again, Settle(action)));
            return;
        }
        match self.parts.store.take_over(&id, open.fence).await {
            Ok(fence) => {
                hit("idempotency.after_take_over", &id).await;
                let intent = open.intent.bytes().and_then(Intent::from_bytes);
                if let Some(intent) = &intent {
                    intent.keep_again(&self.parts, &action.request.space_id).await;
                }
                self.execute(action, (terms, None), fence, Earlier::Interrupted(intent));
            }
            Err(error) => self.give_up(action, &error),
        }
    }

    fn conflict(&self, action: Action<Gated>, what: ConflictOf) {
        match what {
            ConflictOf::Action => {
                let failure = Failure::new(Code::ActionConflict, Phase::Idempotency, ID_TAKEN);
                self.unrecorded(action, failure);
            }
            ConflictOf::Key => {
                let message = "this idempotency key was used before, with other parameters";
                let failure = Failure::new(Code::IdempotencyConflict, Phase::Idempotency, message);
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
        }
    }

    /// The Store could not answer. What is on the bus stays there; who waits at the door is told.
    fn give_up(&self, action: Action<Gated>, error: &StoreError) {
        tracing::warn!(parent: &action.ticket.span, %error, trace_id = %action.ticket.trace_id, "not claimed");
        if action.ticket.lease().is_none() {
            let message = format!("{error}; ask again with the same action id");
            let failure = Failure::new(Code::StoreUnavailable, Phase::Idempotency, message);
            self.unrecorded(action, failure);
        }
    }

    fn unrecorded(&self, action: Action<Gated>, failure: Failure) {
        let action = Box::new(action.advance(|_| ()));
        pass(&self.recorder, Record::Unrecorded { action, failure });
    }
}

/// What is said about an action id that stands for something else.
pub(crate) const ID_TAKEN: &str = "this action id was used before, with other content; choose a new one";

fn pipeline_group() -> Result<GroupName, StoreError> {
    group()
}

/// The decision as an event; its body is sealed, since it holds the parameters.
pub(crate) fn decision_event<S>(data: DecisionData, action: &Action<S>) -> NewEvent {
    let event = Event::decision(data, action.ticket.trace_id.clone(), action.ticket.accepted_at);
    sealed(&event, &action.ticket.action_id)
}

/// An event with a sealed body.
pub(crate) fn sealed(event: &Event<DecisionData>, action: &ActionId) -> NewEvent {
    NewEvent {
        event_id: event.id.clone(),
        time: event.time,
        trace_id: event.traceid.clone(),
        action_id: Some(action.clone()),
        body: NewBody::Sealed(body(event)),
    }
}
