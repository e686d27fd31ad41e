//! The idempotency stage: was this done before, is it in flight, or may it be claimed now?
//!
//! A granted claim puts the intent on disk; from then on the action can be settled, whatever happens.

use std::sync::Arc;

use effectd_bus::limits::LEASE_TTL_MAX;
use effectd_bus::{
    Admission, Admitted, Claim, ClaimAnswer, ConflictOf, Fence, LeaseId, Lookup, OpenIntent, Store,
    StoreError,
};
use effectd_contracts::{ActionRequest, Code, Event, Failure, Phase, Topic, canonical};

use crate::action::decisions::{ID_TAKEN, same_decision, to_publish};
use crate::action::proofs::{Earlier, Preimages, Terms};
use crate::action::{Action, Claimed, Gated};
use crate::claims::intent::{Content, Intent};
use crate::claims::{key, resources};
use crate::control::resource_queue::Queued;
use crate::effects::preimages::{first_snapshot, store_again};
use crate::effects::snapshot;
use crate::failpoint::hit;
use crate::messages::{Execute, Record, Refusal};
use crate::services::files::Files;
use crate::services::{Services, group};
use crate::stage::{Address, Stage, after_child, extend_lease, pass, store_failed, wait_behind};

#[derive(Clone)]
pub(crate) struct Idempotency {
    pub(crate) services: Arc<Services>,
    pub(crate) executor: Address<Execute>,
    pub(crate) recorder: Address<Record>,
}

impl Stage for Idempotency {
    const NAME: &'static str = "idempotency";
    type Message = Action<Gated>;

    fn services(&self) -> &Arc<Services> {
        &self.services
    }

    async fn work(&self, mut action: Action<Gated>, this: &Address<Action<Gated>>) {
        if let Some(position) = action.ticket.slot.must_wait() {
            let extended = extend_lease(&self.services.in_flight.leases, &action.ticket, LEASE_TTL_MAX);
            let again = this.clone();
            return Queued::when_first(position, move || {
                drop(extended);
                pass(&again, action);
            });
        }
        hit("idempotency.begin", &action.ticket.action_id).await;
        let files = &self.services.files;
        let mut terms = terms_of(files, &action.request, &action.state);
        terms.pinned = snapshot::pin(files, &action);
        hit("idempotency.before_claim", &action.ticket.action_id).await;
        let answer = self.ask(&mut action, &mut terms).await;
        hit("idempotency.after_claim", &action.ticket.action_id).await;
        match answer {
            Ok(Some(answer)) => self.act_on(answer, action, terms, this).await,
            Ok(None) => action.ticket.close(),
            Err(error) => store_failed(&self.recorder, action, Phase::Idempotency, &error),
        }
    }
}

impl Idempotency {
    /// Asks for the claim. `None` if the decision is also on the bus: the copy from the bus gives the answer.
    async fn ask(
        &self,
        action: &mut Action<Gated>,
        terms: &mut Terms,
    ) -> Result<Option<ClaimAnswer>, StoreError> {
        if action.ticket.lease().is_none() {
            match look_up(&*self.services.store, action, terms)? {
                Lookup::Done { receipt_id } => return Ok(Some(ClaimAnswer::Done { receipt_id })),
                Lookup::Conflict => {
                    let what = ConflictOf::Key;
                    return Ok(Some(ClaimAnswer::Conflict { what }));
                }
                Lookup::InFlight { .. } | Lookup::Unknown => {}
            }
        }
        // After the lookup: a repeat needs no snapshot.
        let (services, request) = (&self.services, action.request.clone());
        let mut first = first_snapshot(&services.files, &request.space_id, &terms.touched).await;
        terms.before = first.as_mut().map(|first| std::mem::take(&mut first.seen));
        action.step("looked");
        let blobs = &services.files.blobs;
        let contents = first.as_ref().map(|first| first.for_intent(blobs));
        let contents = contents.unwrap_or_default();
        let in_intent = !contents.is_empty();
        let storing = async {
            match first {
                Some(first) => first.store(blobs, &request.space_id, in_intent).await,
                None => Preimages::default(),
            }
        };
        // The pre-images are written on another thread, concurrently with the claim.
        let claiming = self.claim(action, terms, contents);
        let (preimages, answer) = tokio::join!(storing, claiming);
        action.step("claimed");
        let (answer, lease) = answer?;
        if let Some(lease) = lease {
            action.ticket.admitted(lease);
        }
        if let Some(ClaimAnswer::New { .. }) = answer {
            // Only for a new claim: otherwise an earlier intent is on disk, without these contents.
            terms.preimages = preimages;
        }
        Ok(answer)
    }

    /// The Store's answer to the claim, and the lease if the decision was admitted with it.
    async fn claim(
        &self,
        action: &Action<Gated>,
        terms: &Terms,
        contents: Vec<Content>,
    ) -> Result<(Option<ClaimAnswer>, Option<LeaseId>), StoreError> {
        let spec = action.state.tool().spec();
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
        let store = &self.services.store;
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
            ttl: self.services.in_flight.leases.ttl,
            event: to_publish(&decision),
            claim,
        };
        let answer = match store.admit(admission).await? {
            Admitted::Granted { fence, lease_id, .. } => {
                return Ok((Some(ClaimAnswer::New { fence }), Some(lease_id)));
            }
            // The action was begun and its decision is on the bus: the delivery from there settles it.
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
                wait_behind(&self.services.in_flight, action, &action_id, this);
            }
            ClaimAnswer::Done { receipt_id } => pass(&self.recorder, Record::before(action, receipt_id)),
            ClaimAnswer::OwnIntent(open) => self.take_over(action, terms, open, this).await,
            ClaimAnswer::Conflict { what: ConflictOf::Action } => {
                let failure = Failure::new(Code::ActionConflict, Phase::Idempotency, ID_TAKEN);
                pass(&self.recorder, Record::unrecorded(action, failure));
            }
            ClaimAnswer::Conflict { what: ConflictOf::Key } => {
                pass(&self.recorder, refused(action, |gated| gated, key_taken()))
            }
        }
    }

    fn execute(&self, mut action: Action<Gated>, terms: Terms, fence: Fence, earlier: Earlier) {
        action.ticket.begun = Some(self.services.in_flight.interrupted.clone());
        let claimed = action.advance(|gated| Claimed::new(gated, terms, fence, earlier));
        pass(&self.executor, claimed);
    }

    /// The action was begun before. Once its first child is proven dead, the executor settles it.
    async fn take_over(
        &self,
        action: Action<Gated>,
        terms: Terms,
        open: OpenIntent,
        this: &Address<Action<Gated>>,
    ) {
        let id = action.ticket.action_id.clone();
        if self.services.children.running.has_child(&id) {
            return after_child(&self.services.children, action, this);
        }
        match self.services.store.take_over(&id, open.fence).await {
            Ok(fence) => {
                hit("idempotency.after_take_over", &id).await;
                let intent = open.intent.bytes().and_then(Intent::from_bytes);
                if let Some(intent) = &intent {
                    store_again(intent, &self.services.files.blobs, &action.request.space_id).await;
                }
                self.execute(action, terms, fence, Earlier::Interrupted(intent));
            }
            Err(error) => store_failed(&self.recorder, action, Phase::Idempotency, &error),
        }
    }
}

/// Ends an action that passed the gate and is refused after it.
pub(crate) fn refused<S>(action: Action<S>, gated: fn(&S) -> &Gated, failure: Failure) -> Record {
    let gated = gated(&action.state);
    let (tool, ruling) = (gated.tool().clone(), gated.ruling().clone());
    let refusal = Refusal { tool: Some(tool), ruling: Some(ruling), ..Refusal::new(action, failure) };
    refusal.into()
}

/// The failure of an action whose idempotency key belongs to other parameters.
pub(crate) fn key_taken() -> Failure {
    let message = "this idempotency key was already used with other parameters";
    Failure::new(Code::IdempotencyConflict, Phase::Idempotency, message)
}

/// What the action is claimed under.
pub(crate) fn terms_of(files: &Files, request: &ActionRequest, gated: &Gated) -> Terms {
    let (spec, params, space) = (gated.tool().spec(), gated.params(), &request.space_id);
    let mut terms = Terms {
        key: None,
        params_digest: files.identity.keyed(&canonical::digest(params.as_ref())),
        resources: Vec::new(),
        depends: Vec::new(),
        touched: Vec::new(),
        before: None,
        preimages: Preimages::default(),
        pinned: None,
    };
    if gated.dry_run().is_some() {
        // A dry run has no key and changes no resource.
        return terms;
    }
    terms.touched = snapshot::touched_with(files, space, gated.tool(), params);
    terms.resources = resources::of_action(spec, space, params, &terms.touched);
    terms.key.clone_from(&request.idempotency_key);
    if terms.key.is_none() {
        terms.key = key::key_of(spec, params, &files.identity);
        if terms.key.is_some() {
            terms.depends.clone_from(&terms.resources);
        }
    }
    terms
}

/// Whether this asker's request was done before, or is in flight. Costs no write.
pub(crate) fn look_up<S>(store: &dyn Store, action: &Action<S>, terms: &Terms) -> Result<Lookup, StoreError> {
    let Some(key) = &terms.key else {
        return Ok(Lookup::Unknown);
    };
    store.lookup(&action.asker(), key, &terms.params_digest, &terms.depends)
}
