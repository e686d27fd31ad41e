//! The idempotency stage: was this done before, is it in flight, or may it be claimed now?
//!
//! A granted claim puts the intent on disk; from then on the action can be settled, whatever happens.

use std::sync::Arc;

use effectd_bus::limits::LEASE_TTL_MAX;
use effectd_bus::{
    Admission, Admitted, Claim, ClaimAnswer, ConflictOf, Fence, LeaseId, Lookup, OpenIntent, StoreError,
};
use effectd_contracts::batch::is_batch;
use effectd_contracts::{Code, Event, Failure, Origin, Phase, Topic};

use crate::action::decisions::{ID_TAKEN, same_decision, to_publish};
use crate::action::proofs::{Earlier, Preimages, Terms};
use crate::action::{Action, Claimed, Gated};
use crate::claims::intent::{Content, Intent};
use crate::claims::key;
use crate::control::resource_queue::Queued;
use crate::effects::preimages::{first_snapshot, store_again};
use crate::effects::repeats::{is_stale, look_up, terms_of_gated};
use crate::effects::snapshot;
use crate::failpoint::hit;
use crate::messages::{Execute, Record, Refusal};
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
        if action.state.is_reading_command() {
            // It joined the queue of its tool's resource before the policy named it.
            action.ticket.slot.leave_queue();
        }
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
        let mut terms = terms_of_gated(files, &action.request, &action.state).await;
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
            match look_up(&self.services, &action.asker(), &action.ticket.action_id, terms).await? {
                Lookup::Done { receipt_id } => return Ok(Some(ClaimAnswer::Done { receipt_id })),
                Lookup::Conflict => {
                    let what = ConflictOf::Key;
                    return Ok(Some(ClaimAnswer::Conflict { what }));
                }
                Lookup::InFlight { .. } | Lookup::Unknown => {}
            }
        }
        let answer = self.ask_store(action, terms).await?;
        // A decision from the bus may have an open intent, so the Store is asked first.
        if let Some(ClaimAnswer::Done { receipt_id }) = &answer
            && is_stale(&self.services, &action.ticket.action_id, terms, receipt_id).await?
        {
            terms.stale = Some(receipt_id.clone());
            return self.ask_store(action, terms).await;
        }
        Ok(answer)
    }

    async fn ask_store(
        &self,
        action: &mut Action<Gated>,
        terms: &mut Terms,
    ) -> Result<Option<ClaimAnswer>, StoreError> {
        // After the lookup: a repeat needs no snapshot.
        let (services, request) = (&self.services, action.request.clone());
        let mut first = first_snapshot(&services.files, &request.space_id, &terms.touched).await;
        terms.before = first.as_mut().map(|first| std::mem::take(&mut first.seen));
        // Each item of a batch keeps its own pre-images.
        let first = first.filter(|_| !is_batch(&request.tool_id));
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
            repeat: action.state.repeat(),
            dry_run: action.state.dry_run().is_some(),
            transaction: action.state.is_transaction(),
            before: terms.before.clone(),
            contents,
            items: action.state.ruling().items.clone(),
        };
        let claim = Claim {
            action_id: action.ticket.action_id.clone(),
            action_digest: action.ticket.digest,
            asker: action.asker(),
            key: terms.key.clone(),
            params_digest: terms.params_digest,
            intent: intent.to_bytes(),
            resources: match &action.ticket.origin {
                Origin::Batch { batch_id, .. } => {
                    self.services.control.batches.left_to_claim(batch_id, &terms.resources)
                }
                Origin::Arbiter | Origin::Plan | Origin::Session { .. } | Origin::Run { .. } => {
                    terms.resources.clone()
                }
            },
            depends: terms.depends.clone(),
            stale: terms.stale.clone(),
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
                let digest = action.request.digest_under(action.ticket.contract.as_ref());
                let same = same_decision(&**store, offset, digest, &action.ticket.principal)?;
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
                pass(&self.recorder, refused(action, |gated| gated, key::key_taken()))
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
