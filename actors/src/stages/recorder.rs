//! The recorder stage, through which every action leaves: it commits the receipt, then answers.

use std::sync::Arc;

use effectd_bus::{Link, StoreError};
use effectd_contracts::{Code, DecisionData, Event, Failure, Phase, Receipt, ReceiptId, Topic};
use serde_json::Value;

use crate::action::decisions::{ID_TAKEN, same_decision};
use crate::action::{Action, Finished};
use crate::approvals::expiry;
use crate::claims::intent::Intent;
use crate::claims::takeover::{Takeover, take_over};
use crate::effects::preimages::store_again;
use crate::effects::rollback::{self, Whose};
use crate::execution::receipt_builder;
use crate::execution::recording::{self, recorded, write};
use crate::failpoint::hit;
use crate::limits::ROLLBACK_TIME_MIN;
use crate::messages::{Record, Refusal, Ticketed};
use crate::operator::dead_letters::set_aside;
use crate::services::Services;
use crate::services::answers::{Answer, Done};
use crate::services::running::Alive;
use crate::services::signer::DeviceKey;
use crate::stage::{Address, Stage, after_child, extend_lease};

#[derive(Clone)]
pub(crate) struct Recorder {
    pub(crate) services: Arc<Services>,
}

impl Stage for Recorder {
    const NAME: &'static str = "recorder";
    type Message = Record;

    fn services(&self) -> &Arc<Services> {
        &self.services
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
        let build = |key: &DeviceKey| {
            let captured = receipt_builder::ran(&self.services, key, &action);
            action.step("captured");
            captured
        };
        let (receipt, committed) = write(&self.services, build).await;
        let kept = action.state.ended().kept().filter(|_| receipt.kept_result.is_some());
        let result = kept.map(|kept| Arc::new(kept.into_owned()));
        self.conclude(action.advance(|_| ()), receipt, committed, result).await;
    }

    async fn refused(&self, mut refusal: Refusal, this: &Address<Record>) {
        if self.id_is_taken(&refusal).unwrap_or(false) {
            return self.conflict(refusal.action).await;
        }
        if refusal.fence.is_none()
            && let Err(error) = recording::items_not_started(&self.services, &refusal).await
        {
            tracing::warn!(parent: &refusal.action.ticket.span, %error, "receipts of items not written");
            refusal.action.ticket.refuse_caller(&error.failure(Phase::Record));
            return;
        }
        loop {
            let build = |key: &DeviceKey| receipt_builder::refused(&self.services, key, &refusal);
            match write(&self.services, build).await {
                (_, Err(StoreError::StaleFence { .. })) if refusal.fence.is_none() => {
                    match self.take_over_begun(refusal, this).await {
                        Some(held) => refusal = held,
                        None => return,
                    }
                }
                (receipt, committed) => {
                    return self.conclude(refusal.action, receipt, committed, None).await;
                }
            }
        }
    }

    /// Whether this action came from a waiting caller, and another decision with its id is on the bus. A receipt for this refusal
    /// would take the id from that decision. If the store cannot say, it cannot commit either.
    fn id_is_taken(&self, refusal: &Refusal) -> Result<bool, StoreError> {
        let Action { ticket, request, .. } = &refusal.action;
        if ticket.lease().is_some() {
            return Ok(false);
        }
        let store = &*self.services.store;
        let event = Event::<DecisionData>::id_for(&ticket.action_id);
        let Some(offset) = store.published(&Topic::ActionDecision.into(), &event)? else {
            return Ok(false);
        };
        let digest = request.digest_under(ticket.contract.as_ref());
        let same = same_decision(store, offset, digest, &ticket.principal)?;
        Ok(!same)
    }

    /// Ends a refused action that has an open intent: it was begun, and something has changed since. It neither runs again nor
    /// waits for an approval, and its receipt does not say that nothing happened.
    async fn take_over_begun(&self, mut refusal: Refusal, this: &Address<Record>) -> Option<Refusal> {
        let claim = refusal.action.claim_to_end(&self.services.identity);
        match take_over(&*self.services.store, &self.services.children.running, claim).await {
            Ok(Takeover::Held { fence, begun, intent, alive }) => {
                refusal.fence = Some(fence);
                if begun {
                    let restored = self.restored(&refusal.action, intent.as_deref(), alive).await;
                    let message = format!("begun earlier, now refused: {}{restored}", refusal.failure);
                    refusal.failure = Failure::new(Code::OutcomeUnknown, Phase::Settle, message);
                    refusal.dead_letter = true;
                }
                return Some(refusal);
            }
            Ok(Takeover::Ended(receipt_id)) => self.before(refusal.action, receipt_id).await,
            Ok(Takeover::Conflict) => self.conflict(refusal.action).await,
            Ok(Takeover::Alive) => after_child(&self.services.children, refusal.into(), this),
            // The ticket is dropped: the action is delivered again.
            Ok(Takeover::Busy) => {}
            Err(error) => tracing::warn!(parent: &refusal.action.ticket.span, %error, "not ended yet"),
        }
        None
    }

    /// Restores the files that an interrupted plan has changed, as far as its intent names them: no gate stops that. Says what became of it.
    async fn restored(&self, action: &Action<()>, intent: Option<&Intent>, alive: Option<Alive>) -> String {
        let Some((intent, before)) = intent.and_then(|intent| Some((intent, intent.before.as_deref()?)))
        else {
            return String::new();
        };
        if !intent.transaction {
            return String::new();
        }
        let (services, space) = (&*self.services, &action.request.space_id);
        store_again(intent, &services.files.blobs, space).await;
        let (ticket, leases, alive) = (&action.ticket, &self.services.in_flight.leases, alive.map(Arc::new));
        let _extended = extend_lease(leases, ticket, ROLLBACK_TIME_MIN + leases.ttl);
        let (action, trace, alive) = (&ticket.action_id, &ticket.trace_id, alive.as_ref());
        let whose = Whose { action, space, trace, alive };
        match rollback::to_snapshot(services, whose, before, ROLLBACK_TIME_MIN).await {
            Some(rolled_back) if rolled_back.is_complete() => {
                "; the files that the plan had found are restored, new ones are not looked for".to_owned()
            }
            Some(rolled_back) => format!("; {}", rolled_back.text()),
            None => String::new(),
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
                let Services { metrics, in_flight, .. } = &*self.services;
                let done = recorded(metrics, &in_flight.answers, &action, receipt, result);
                self.answer(action, Answer::Done(done)).await;
            }
            Err(StoreError::AlreadyReceipted { receipt_id, .. }) => self.before(action, receipt_id).await,
            Err(StoreError::StaleFence { .. }) => {
                // Another copy of the action took over its claim; that copy's receipt counts.
                tracing::debug!(parent: &action.ticket.span, "overtaken");
                action.ticket.close();
            }
            Err(error) => {
                tracing::error!(parent: &action.ticket.span, %error, "receipt not written");
                action.ticket.refuse_caller(&error.failure(Phase::Record));
                // An action from the bus drops its ticket here: its delivery is given back, and it is tried again.
            }
        }
    }

    /// The same was done before: links the action's id to the existing receipt, and answers with that.
    async fn before(&self, action: Action<()>, receipt_id: ReceiptId) {
        let Some((receipt, digest)) = self.services.receipt(&receipt_id) else {
            tracing::error!(parent: &action.ticket.span, %receipt_id, "a linked receipt cannot be read");
            return;
        };
        if receipt.action_id == action.ticket.action_id && digest != action.ticket.digest {
            return self.conflict(action).await;
        }
        if receipt.action_id != action.ticket.action_id {
            // Not awaited: it goes into the next block. If it is lost, the idempotency key answers again.
            drop(self.services.store.link(Link {
                action_id: action.ticket.action_id.clone(),
                action_digest: action.ticket.digest,
                receipt_id,
                leases: action.ticket.lease().into_iter().collect(),
            }));
        } else if let Some(lease) = action.ticket.lease() {
            drop(self.services.store.ack(lease));
        }
        let cached = &self.services.metrics.cached;
        cached.with_label_values(&[receipt.tool_id.as_str()]).inc();
        self.answer(action, Answer::Done(Done::before(receipt))).await;
    }

    async fn conflict(&self, action: Action<()>) {
        let failure = Failure::new(Code::ActionConflict, Phase::Record, ID_TAKEN);
        self.unrecorded(action, failure).await;
    }

    async fn unrecorded(&self, mut action: Action<()>, failure: Failure) {
        if action.ticket.refuse_caller(&failure) {
            return;
        }
        if let Some(lease) = action.ticket.lease() {
            let why = (failure.code, failure.message.as_str());
            let Services { store, metrics, clock, .. } = &*self.services;
            let about = Ok(&*action.request);
            let ended = set_aside(&**store, metrics, clock.now(), lease, about, why).await;
            if let Err(error) = ended {
                tracing::warn!(parent: &action.ticket.span, %error, "a dead letter could not be written; its event is delivered again");
                return;
            }
        }
        self.answer(action, Answer::Refused(failure)).await;
    }

    async fn answer(&self, mut action: Action<()>, answer: Answer) {
        let id = action.ticket.action_id.clone();
        let approval = action.ticket.approved.take().and_then(|it| it.record.approval_id);
        let granted = action.ticket.granted.is_some();
        let answers = &self.services.in_flight.answers;
        recording::answer(answers, action, answer).await;
        expiry::after_end(&self.services.approvals, answers, &id, approval, granted).await;
    }
}
