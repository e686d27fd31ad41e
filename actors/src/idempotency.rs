//! The third stage: was this done before, is somebody doing it, or is it ours to do?
//!
//! A granted claim puts the intent on disk; from here on, whatever happens, the action can be settled.

use std::sync::Arc;

use effectd_bus::limits::LEASE_TTL_MAX;
use effectd_bus::{
    Admission, Admitted, Claim, ClaimAnswer, ConflictOf, Fence, LeaseId, Lookup, NewBody, NewEvent,
    OpenIntent, Pins, ResourceName, StoreError,
};
use effectd_contracts::{
    ActionId, ActionRequest, Code, DecisionData, Digest, Event, Failure, IdempotencyKey, Phase, Seen, Topic,
    Touch, canonical,
};

use crate::action::{Action, Gated};
use crate::control::lines::InLine;
use crate::decisions::same_decision;
use crate::failpoint::hit;
use crate::intent::{Content, Intent};
use crate::keeping::{Kept, first_look};
use crate::key;
use crate::messages::{Execute, Record, Refusal};
use crate::parts::Parts;
use crate::pipeline::group;
use crate::preimage;
use crate::resources;
use crate::stage::{Address, Stage, after_child, body, keep, pass, store_failed, wait_behind};

/// The action is ours to do, and that is on disk.
#[derive(Debug)]
pub struct Claimed {
    gated: Gated,
    terms: Terms,
    fence: Fence,
    earlier: Earlier,
}

/// Whether the action was begun before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Earlier {
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
    pub resources: Vec<ResourceName>,
    /// What its key depends on: a key that follows from the parameters says what is to be there, and is open again when that was
    /// changed. One that the planner has chosen says which request it is, and holds.
    pub depends: Vec<ResourceName>,
    /// The paths that it may change.
    pub touched: Vec<Touch>,
    /// What stood there just before it was claimed.
    pub before: Option<Vec<Seen>>,
    pub kept: Kept,
    /// What is sent along with the call, and stays until it has ended.
    pub pinned: Option<Arc<Pins>>,
}

impl Claimed {
    pub fn gated(&self) -> &Gated {
        &self.gated
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Lets go of what was sent along with the call: it is over.
    pub(crate) fn take_pinned(&mut self) -> Option<Arc<Pins>> {
        self.terms.pinned.take()
    }

    /// What to commit under.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    pub fn earlier(&self) -> &Earlier {
        &self.earlier
    }
}

impl Terms {
    pub(crate) fn of(parts: &Parts, request: &ActionRequest, gated: &Gated) -> Self {
        let (spec, params, space) = (gated.entry().spec(), gated.params(), &request.space_id);
        let mut terms = Self {
            key: None,
            params_digest: parts.identity.keyed(&canonical::digest(params.as_ref())),
            resources: Vec::new(),
            depends: Vec::new(),
            touched: Vec::new(),
            before: None,
            kept: Kept::default(),
            pinned: None,
        };
        if gated.dry_run().is_some() {
            // What changes nothing neither is nor makes a "done before", and disturbs nobody.
            return terms;
        }
        terms.touched = preimage::touched_with(parts, space, gated.entry(), params);
        terms.resources = resources::of_action(spec, space, params, &terms.touched);
        terms.key.clone_from(&request.idempotency_key);
        if terms.key.is_none() {
            terms.key = key::key_of(spec, params, &parts.identity);
            if terms.key.is_some() {
                terms.depends.clone_from(&terms.resources);
            }
        }
        terms
    }

    /// Whether the same was done for this asker before, or is being done. A look costs no write.
    pub(crate) fn look_up<S>(&self, parts: &Parts, action: &Action<S>) -> Result<Lookup, StoreError> {
        let Some(key) = &self.key else {
            return Ok(Lookup::Unknown);
        };
        let (asker, params) = (action.asker(), &self.params_digest);
        parts.store.lookup(&asker, key, params, &self.depends)
    }
}

#[derive(Clone)]
pub(crate) struct Idempotency {
    pub(crate) parts: Arc<Parts>,
    pub(crate) executor: Address<Execute>,
    pub(crate) recorder: Address<Record>,
}

impl Stage for Idempotency {
    const NAME: &'static str = "idempotency";
    type Message = Action<Gated>;

    fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    async fn work(&self, mut action: Action<Gated>, this: &Address<Action<Gated>>) {
        if let Some(turn) = action.ticket.place.waits_in_line() {
            let kept = keep(&self.parts, &action.ticket, LEASE_TTL_MAX);
            let again = this.clone();
            return InLine::when_first(turn, move || {
                drop(kept);
                pass(&again, action);
            });
        }
        hit("idempotency.begin", &action.ticket.action_id).await;
        let mut terms = Terms::of(&self.parts, &action.request, &action.state);
        terms.pinned = preimage::pin(&self.parts, &action);
        hit("idempotency.before_claim", &action.ticket.action_id).await;
        let answer = self.ask(&mut action, &mut terms).await;
        hit("idempotency.after_claim", &action.ticket.action_id).await;
        match answer {
            Ok(Some(answer)) => self.act_on(answer, action, terms, this).await,
            Ok(None) => action.ticket.settled(),
            Err(error) => store_failed(&self.recorder, action, Phase::Idempotency, &error),
        }
    }
}

impl Idempotency {
    /// Asks for the claim. `None` if the decision is on its way through the bus as well: that copy answers.
    async fn ask(
        &self,
        action: &mut Action<Gated>,
        terms: &mut Terms,
    ) -> Result<Option<ClaimAnswer>, StoreError> {
        if action.ticket.lease().is_none() {
            match terms.look_up(&self.parts, action)? {
                Lookup::Done { receipt_id } => return Ok(Some(ClaimAnswer::Done { receipt_id })),
                Lookup::Conflict => {
                    let what = ConflictOf::Key;
                    return Ok(Some(ClaimAnswer::Conflict { what }));
                }
                Lookup::InFlight { .. } | Lookup::Unknown => {}
            }
        }
        // Only now: what was done before needs no look at the disk.
        let (parts, request) = (&self.parts, action.request.clone());
        let mut look = first_look(parts, &request.space_id, &terms.touched).await;
        terms.before = look.as_mut().map(|look| std::mem::take(&mut look.seen));
        action.step("looked");
        let contents = look.as_ref().map(|look| look.for_intent(&parts.blobs));
        let contents = contents.unwrap_or_default();
        let in_intent = !contents.is_empty();
        let keeping = async {
            match look {
                Some(look) => look.keep(parts, &request.space_id, in_intent).await,
                None => Kept::default(),
            }
        };
        // The pre-images go to the disk in another thread while the claim is written.
        let claiming = self.claim(action, terms, contents);
        let (kept, answer) = tokio::join!(keeping, claiming);
        action.step("claimed");
        let (answer, lease) = answer?;
        if let Some(lease) = lease {
            action.ticket.admitted(lease);
        }
        if let Some(ClaimAnswer::New { .. }) = answer {
            // An earlier intent stands as it was: what would have stood in this one is on disk nowhere.
            terms.kept = kept;
        }
        Ok(answer)
    }

    /// The Store's answer, with the delivery that is admitted with the claim.
    async fn claim(
        &self,
        action: &Action<Gated>,
        terms: &Terms,
        contents: Vec<Content>,
    ) -> Result<(Option<ClaimAnswer>, Option<LeaseId>), StoreError> {
        let spec = action.state.entry().spec();
        let intent = Intent {
            tool_id: spec.tool_id.clone(),
            tool_version: spec.version.clone(),
            repeat: spec.repeat,
            dry_run: action.state.dry_run().is_some(),
            before: terms.before.clone(),
            contents,
        };
        let claim = Claim {
            action_id: action.ticket.action_id.clone(),
            action_digest: action.ticket.digest,
            asker: action.asker(),
            key: terms.key.clone(),
            params_digest: terms.params_digest,
            intent: intent.to_bytes(),
            resources: terms.resources.clone(),
            depends: terms.depends.clone(),
        };
        let store = &self.parts.store;
        if action.ticket.lease().is_some() {
            return Ok((Some(store.claim(claim).await?), None));
        }
        let decision = Event::decision(
            action.ticket.decision(&action.request),
            action.ticket.trace_id.clone(),
            action.ticket.accepted_at,
        );
        let admission = Admission {
            topic: Topic::ActionDecision.into(),
            group: group()?,
            ttl: self.parts.lease_ttl,
            event: sealed(&decision, &action.ticket.action_id),
            claim,
        };
        let answer = match store.admit(admission).await? {
            Admitted::Granted { fence, lease_id, .. } => {
                return Ok((Some(ClaimAnswer::New { fence }), Some(lease_id)));
            }
            // Its decision is on the bus: whoever gets it from there settles it.
            Admitted::NotGranted(ClaimAnswer::OwnIntent(_)) => None,
            Admitted::AlreadyPublished { offset } => {
                let (digest, principal) = (action.request.digest(), &action.ticket.principal);
                let same = same_decision(&**store, offset, digest, principal)?;
                let what = ConflictOf::Action;
                (!same).then_some(ClaimAnswer::Conflict { what })
            }
            Admitted::NotGranted(answer) => Some(answer),
        };
        Ok((answer, None))
    }

    async fn act_on(
        &self,
        answer: ClaimAnswer,
        action: Action<Gated>,
        terms: Terms,
        this: &Address<Action<Gated>>,
    ) {
        match answer {
            ClaimAnswer::New { fence } => self.execute(action, terms, fence, Earlier::No),
            ClaimAnswer::InFlight { action_id } | ClaimAnswer::ResourceBusy { action_id } => {
                wait_behind(&self.parts, action, &action_id, this);
            }
            ClaimAnswer::Done { receipt_id } => pass(&self.recorder, Record::before(action, receipt_id)),
            ClaimAnswer::OwnIntent(open) => self.take_over(action, terms, open, this).await,
            ClaimAnswer::Conflict {
                what: ConflictOf::Action,
            } => {
                let failure = Failure::new(Code::ActionConflict, Phase::Idempotency, ID_TAKEN);
                pass(&self.recorder, Record::unrecorded(action, failure));
            }
            ClaimAnswer::Conflict {
                what: ConflictOf::Key,
            } => pass(&self.recorder, refused(action, |gated| gated, key_taken())),
        }
    }

    fn execute(&self, action: Action<Gated>, terms: Terms, fence: Fence, earlier: Earlier) {
        let claimed = action.advance(|gated| Claimed {
            gated,
            terms,
            fence,
            earlier,
        });
        pass(&self.executor, claimed);
    }

    /// The action was begun before. Once its first child is proven dead, it is ours to settle.
    async fn take_over(
        &self,
        action: Action<Gated>,
        terms: Terms,
        open: OpenIntent,
        this: &Address<Action<Gated>>,
    ) {
        let id = action.ticket.action_id.clone();
        if self.parts.running.has_child(&id) {
            return after_child(&self.parts, action, this);
        }
        match self.parts.store.take_over(&id, open.fence).await {
            Ok(fence) => {
                hit("idempotency.after_take_over", &id).await;
                let intent = open.intent.bytes().and_then(Intent::from_bytes);
                if let Some(intent) = &intent {
                    intent.keep_again(&self.parts, &action.request.space_id).await;
                }
                self.execute(action, terms, fence, Earlier::Interrupted(intent));
            }
            Err(error) => store_failed(&self.recorder, action, Phase::Idempotency, &error),
        }
    }
}

/// The end of an action that passed the gates and is refused after them.
pub(crate) fn refused<S>(action: Action<S>, gated: fn(&S) -> &Gated, failure: Failure) -> Record {
    let gated = gated(&action.state);
    let (tool, ruling) = (gated.entry().clone(), gated.ruling().clone());
    let refusal = Refusal {
        tool: Some(tool),
        ruling: Some(ruling),
        ..Refusal::new(action, failure)
    };
    refusal.into()
}

/// The idempotency key belongs to other parameters.
pub(crate) fn key_taken() -> Failure {
    let message = "this idempotency key was used before, with other parameters";
    Failure::new(Code::IdempotencyConflict, Phase::Idempotency, message)
}

/// What is said about an action id that stands for something else.
pub(crate) const ID_TAKEN: &str = "this action id was used before, with other content; choose a new one";

pub(crate) fn sealed(event: &Event<DecisionData>, action: &ActionId) -> NewEvent {
    NewEvent {
        event_id: event.id.clone(),
        time: event.time,
        trace_id: event.traceid.clone(),
        action_id: Some(action.clone()),
        body: NewBody::Sealed(body(event)),
    }
}
