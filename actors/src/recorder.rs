//! The last stage and the only way out: the receipt is written, then everybody is told.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Completion, Link, StoreError, StoredReceipt};
use effectd_contracts::{
    ActionId, ApprovalId, Code, DecisionData, Event, Failure, Millis, Phase, Receipt, ReceiptId, Status,
    Topic,
};
use serde_json::{Map, Value};

use crate::action::{Action, Finished};
use crate::answers::{Answer, Done};
use crate::capture::{self, Captured};
use crate::decisions::same_decision;
use crate::failpoint::hit;
use crate::held::{entries, grants, tidy};
use crate::idempotency::ID_TAKEN;
use crate::identity::DeviceKey;
use crate::letters::set_aside;
use crate::limits::{BACKOFF_FIRST, COMMIT_TRIES};
use crate::messages::{Record, Refusal};
use crate::parts::Parts;
use crate::recent;
use crate::seize::{Seized, seize};
use crate::stage::{Address, Stage, Ticketed, after_child};

#[derive(Clone)]
pub(crate) struct Recorder {
    pub(crate) parts: Arc<Parts>,
}

impl Stage for Recorder {
    const NAME: &'static str = "recorder";
    type Message = Record;

    fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    async fn work(&self, record: Record, this: &Address<Record>) {
        hit("recorder.begin", &record.ticket().action_id).await;
        match record {
            Record::Ran(finished) => self.ran(*finished).await,
            Record::Refused(refusal) => self.refused(*refusal, this).await,
            Record::Before { action, receipt_id } => self.before(*action, receipt_id).await,
            Record::Unrecorded { action, failure } => self.unrecorded(*action, failure).await,
        }
    }
}

impl Recorder {
    async fn ran(&self, action: Action<Finished>) {
        let capture = |key: &DeviceKey| {
            let captured = capture::ran(&self.parts, key, &action);
            action.step("captured");
            captured
        };
        let (receipt, committed) = self.write(capture).await;
        let output = action.state.ended().result.as_ref().ok();
        let result = output.map(|output| Arc::new(output.result.clone()));
        self.conclude(action.advance(|_| ()), receipt, committed, result)
            .await;
    }

    async fn refused(&self, mut refusal: Refusal, this: &Address<Record>) {
        if self.id_is_taken(&refusal).unwrap_or(false) {
            return self.conflict(refusal.action).await;
        }
        loop {
            let capture = |key: &DeviceKey| capture::refused(&self.parts, key, &refusal);
            match self.write(capture).await {
                (_, Err(StoreError::StaleFence { .. })) if refusal.fence.is_none() => {
                    match self.seize_begun(refusal, this).await {
                        Some(seized) => refusal = seized,
                        None => return,
                    }
                }
                (receipt, committed) => {
                    return self.conclude(refusal.action, receipt, committed, None).await;
                }
            }
        }
    }

    /// Whether another decision was accepted under this id and lies on the bus, while this one came by the door. Its
    /// refusal must not take the id away from that one. A store that cannot tell cannot commit either.
    fn id_is_taken(&self, refusal: &Refusal) -> Result<bool, StoreError> {
        let Action { ticket, request, .. } = &refusal.action;
        if ticket.lease().is_some() {
            return Ok(false);
        }
        let store = &*self.parts.store;
        let event = Event::<DecisionData>::id_for(&ticket.action_id);
        match store.published(&Topic::ActionDecision.into(), &event)? {
            Some(offset) => Ok(!same_decision(
                store,
                offset,
                request.digest(),
                &ticket.principal,
            )?),
            None => Ok(false),
        }
    }

    /// The action has an open intent: it was begun, and since then something has changed so that it is refused now. It is
    /// neither run again nor asked about, and its receipt does not pretend that nothing happened.
    async fn seize_begun(&self, mut refusal: Refusal, this: &Address<Record>) -> Option<Refusal> {
        match seize(&self.parts, &refusal.action).await {
            Ok(Seized::Held { fence, begun }) => {
                refusal.fence = Some(fence);
                if begun {
                    let message = format!("begun before, and now refused: {}", refusal.failure);
                    refusal.failure = Failure::new(Code::OutcomeUnknown, Phase::Settle, message);
                    refusal.dead_letter = true;
                }
                return Some(refusal);
            }
            Ok(Seized::Ended(receipt_id)) => self.before(refusal.action, receipt_id).await,
            Ok(Seized::Conflict) => self.conflict(refusal.action).await,
            Ok(Seized::Alive) => after_child(&self.parts, refusal.into(), this),
            // The ticket is dropped: the action comes again.
            Ok(Seized::Busy) => {}
            Err(error) => tracing::warn!(parent: &refusal.action.ticket.span, %error, "not ended yet"),
        }
        None
    }

    /// Ends an action that nobody has begun. The Store refuses if somebody has, or if it has ended: an action that may have
    /// had its effect is not seized for this.
    pub(crate) async fn withdrawn(&self, refusal: Refusal) -> Result<Done, StoreError> {
        refusal.action.ticket.hop("recorder");
        let capture = |key: &DeviceKey| capture::refused(&self.parts, key, &refusal);
        let (receipt, committed) = self.write(capture).await;
        committed?;
        let done = self.written(&refusal.action, receipt, None);
        self.tell(refusal.action, Answer::Done(done.clone())).await;
        Ok(done)
    }

    /// The receipt of something that was done to effectd itself, and what came of it.
    pub(crate) async fn acted(
        &self,
        action: Action<()>,
        ended: Result<Map<String, Value>, &Failure>,
    ) -> Result<ReceiptId, StoreError> {
        let capture = |key: &DeviceKey| capture::acted(&self.parts, key, &action, ended);
        let (receipt, committed) = self.write(capture).await;
        committed?;
        Ok(self.written(&action, receipt, None).receipt.receipt_id.clone())
    }

    /// What a receipt that is on disk leaves in figures and log.
    fn written(&self, action: &Action<()>, receipt: Receipt, result: Option<Arc<Value>>) -> Done {
        self.count(&receipt);
        let span = &action.ticket.span;
        if let Some(failure) = &receipt.error {
            span.record("error.type", failure.code.as_str());
        }
        if tracing::enabled!(tracing::Level::DEBUG) {
            // As the receipt shows it: what is not public is a digest.
            let told = serde_json::to_string(&receipt.inputs).unwrap_or_default();
            span.record("gen_ai.tool.call.arguments", told.as_str());
        }
        tracing::info!(parent: span, trace_id = %receipt.trace_id, receipt_id = %receipt.receipt_id,
            status = receipt.status.as_str(), code = receipt.error.as_ref().map(|failure| failure.code.as_str()),
            total_ms = receipt.timing.total_ms.as_f64(), "receipt");
        let receipt = Arc::new(receipt);
        self.parts.recent.put(&receipt, action.ticket.digest);
        Done {
            receipt,
            before: false,
            result,
        }
    }

    async fn conclude(
        &self,
        mut action: Action<()>,
        receipt: Receipt,
        committed: Result<(), StoreError>,
        result: Option<Arc<Value>>,
    ) {
        match committed {
            Ok(()) => {
                let done = self.written(&action, receipt, result);
                self.tell(action, Answer::Done(done)).await;
            }
            Err(StoreError::AlreadyReceipted { receipt_id, .. }) => self.before(action, receipt_id).await,
            Err(StoreError::StaleFence { .. }) => {
                // Another copy of the action took over; its receipt is the one that counts.
                tracing::info!(parent: &action.ticket.span, trace_id = %receipt.trace_id, "overtaken");
                action.ticket.settled();
            }
            Err(error) => {
                tracing::error!(parent: &action.ticket.span, trace_id = %receipt.trace_id, %error, "receipt not written");
                let message = format!("{error}; ask again with the same action id");
                let failure = Failure::new(Code::StoreUnavailable, Phase::Record, message);
                action.ticket.refuse_at_door(&failure);
                // What came by the bus drops its ticket here: the delivery is given back and the action tried again.
            }
        }
    }

    /// Makes a receipt and commits it. The key stays the same until it is on disk.
    async fn write(&self, capture: impl FnOnce(&DeviceKey) -> Captured) -> (Receipt, Result<(), StoreError>) {
        let signing = self.parts.identity.signing().await;
        let Captured { receipt, completion } = capture(&signing);
        (receipt, self.commit(completion).await)
    }

    async fn commit(&self, completion: Completion) -> Result<(), StoreError> {
        let id = completion.receipt.action_id.clone();
        let given_up = completion.letter.as_ref().map(|letter| letter.code.clone());
        hit("recorder.before_commit", &id).await;
        let committed = self.try_commit(completion).await;
        if let (Ok(()), Some(code)) = (&committed, given_up) {
            self.parts
                .metrics
                .given_up
                .with_label_values(&[code.as_str()])
                .inc();
        }
        hit("recorder.after_commit", &id).await;
        committed
    }

    async fn try_commit(&self, completion: Completion) -> Result<(), StoreError> {
        let mut pause = BACKOFF_FIRST;
        for _ in 1..COMMIT_TRIES {
            match self.parts.store.commit(completion.clone()).await {
                Err(
                    StoreError::Unavailable { .. }
                    | StoreError::Overloaded { .. }
                    | StoreError::Full
                    | StoreError::ReadOnly,
                ) => {}
                answer => return answer.map(|_| ()),
            }
            tokio::time::sleep(pause).await;
            pause *= 4;
        }
        self.parts.store.commit(completion).await.map(|_| ())
    }

    /// The action was done before: its id is linked to the receipt that exists, and that is the answer.
    async fn before(&self, action: Action<()>, receipt_id: ReceiptId) {
        let Some((receipt, digest)) = self.known(&receipt_id) else {
            tracing::error!(parent: &action.ticket.span, %receipt_id, "a linked receipt cannot be read");
            return;
        };
        if receipt.action_id == action.ticket.action_id && digest != action.ticket.digest {
            return self.conflict(action).await;
        }
        if receipt.action_id != action.ticket.action_id {
            // Rides in the next block; should it be lost, the key leads to the same receipt again.
            drop(self.parts.store.link(Link {
                action_id: action.ticket.action_id.clone(),
                action_digest: action.ticket.digest,
                receipt_id,
                leases: action.ticket.lease().into_iter().collect(),
            }));
        } else if let Some(lease) = action.ticket.lease() {
            drop(self.parts.store.ack(lease));
        }
        self.parts
            .metrics
            .cached
            .with_label_values(&[receipt.tool_id.as_str()])
            .inc();
        self.tell(action, Answer::Done(Done::before(receipt))).await;
    }

    /// The action's id stands for something else.
    async fn conflict(&self, action: Action<()>) {
        let failure = Failure::new(Code::ActionConflict, Phase::Record, ID_TAKEN);
        self.unrecorded(action, failure).await;
    }

    fn known(&self, id: &ReceiptId) -> Option<recent::Known> {
        if let Some(known) = self.parts.recent.get(id) {
            return Some(known);
        }
        let stored = self.parts.store.receipt(id).ok().flatten()?;
        let digest = stored.action_digest;
        let receipt = Arc::new(read(Ok(Some(stored)))?);
        self.parts.recent.put(&receipt, digest);
        Some((receipt, digest))
    }

    async fn unrecorded(&self, mut action: Action<()>, failure: Failure) {
        if action.ticket.refuse_at_door(&failure) {
            return;
        }
        if let Some(lease) = action.ticket.lease() {
            let why = (failure.code, failure.message.as_str());
            let ended = set_aside(&self.parts, lease, Ok(&action.request), why).await;
            if let Err(error) = ended {
                tracing::warn!(parent: &action.ticket.span, %error, "not set aside; it will come back");
                return;
            }
        }
        self.tell(action, Answer::Refused(failure)).await;
    }

    async fn tell(&self, mut action: Action<()>, answer: Answer) {
        let id: ActionId = action.ticket.action_id.clone();
        let approval = action.ticket.approved.take().and_then(|it| it.record.approval_id);
        let granted = action.ticket.granted.is_some();
        // Whoever is answered finds the budget settled.
        action.ticket.place.close_account();
        self.parts.answers.tell(&id, &answer);
        // Only now: settling gives the place back, and when all places are free, a stopping runtime sends waiters away.
        action.ticket.settled();
        hit("recorder.after_answer", &id).await;
        if let Err(error) = self.settle_held(&id, approval, granted).await {
            tracing::warn!(%error, action_id = %id, "what waited for a person is tidied up later");
        }
    }

    /// After the end of an action that a person decided about. Should this fail, the sweeper does it.
    async fn settle_held(
        &self,
        id: &ActionId,
        approval: Option<ApprovalId>,
        granted: bool,
    ) -> Result<(), StoreError> {
        if granted {
            grants::ended(&*self.parts.store, id).await?;
        }
        let Some(approval) = approval else { return Ok(()) };
        match entries::hold(&*self.parts.store, &approval)? {
            Some(hold) if hold.value.decided().is_some() => tidy::settle(&self.parts, &hold.value).await,
            Some(_) | None => Ok(()),
        }
    }

    fn count(&self, receipt: &Receipt) {
        let metrics = &self.parts.metrics;
        // A tool that does not exist has no series of its own: ids from outside must not make labels.
        let tool = if receipt.tool_version.is_some() || receipt.status == Status::Ok {
            receipt.tool_id.as_str()
        } else {
            "unknown"
        };
        metrics
            .actions
            .with_label_values(&[tool, receipt.outcome.as_str()])
            .inc();
        let seconds = |time: Millis| Duration::from_micros(time.micros()).as_secs_f64();
        let timing = &receipt.timing;
        metrics
            .duration
            .with_label_values(&[tool])
            .observe(seconds(timing.total_ms));
        metrics
            .queued
            .with_label_values(&[tool])
            .observe(seconds(timing.queued_ms));
        metrics
            .cpu
            .with_label_values(&[tool])
            .inc_by(seconds(receipt.cost.cpu_ms));
        // A milliwatt-hour is 3.6 joules.
        let joules = receipt.cost.energy_mwh * 3.6;
        metrics.energy.with_label_values(&[tool]).inc_by(joules);
        let written = receipt.cost.bytes_written.unwrap_or(0);
        metrics.written.with_label_values(&[tool]).inc_by(written);
        if !receipt.attempts.is_empty() {
            metrics
                .exec
                .with_label_values(&[tool])
                .observe(seconds(timing.exec_ms));
        }
        if let Some(failure) = &receipt.error {
            metrics
                .failures
                .with_label_values(&[tool, failure.code.as_str()])
                .inc();
        }
    }
}

/// A stored receipt as a value; a store that cannot tell is logged and counts as none.
fn read(stored: Result<Option<StoredReceipt>, StoreError>) -> Option<Receipt> {
    let parsed = stored.and_then(|stored| stored.map(|stored| stored.parse()).transpose());
    parsed.unwrap_or_else(|error| {
        tracing::error!(%error, "a receipt cannot be read");
        None
    })
}
