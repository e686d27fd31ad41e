//! The approval stage, for actions that need an approval. Either an approval exists, or a grant replaces it, or the action is
//! held until a person decides.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Lookup, StoreError};
use effectd_contracts::{ActionId, Approved, Code, Failure, Origin, Phase, ReceiptId};

use super::idempotency::refused;
use crate::action::decisions::{ID_TAKEN, published};
use crate::action::preview::Preview;
use crate::action::proofs::Evidence;
use crate::action::{Action, Asked, Gated};
use crate::approvals::hold::{Hold, HoldState, keyed_digest};
use crate::approvals::question::Question;
use crate::approvals::suspend::{Suspended, is_full, new_hold, reopen, suspend};
use crate::approvals::{expiry, grants, repository};
use crate::claims::key::key_taken;
use crate::claims::pending::intent_of;
use crate::effects::repeats::{look_up, terms_of_gated};
use crate::failpoint::hit;
use crate::limits::{HELD_ROUNDS_MAX, OVERLOAD_RETRY};
use crate::messages::Record;
use crate::preview::batch::{depends, is_all_or_nothing};
use crate::preview::tool_sends;
use crate::services::Services;
use crate::settings::Settings;
use crate::stage::{Address, Stage, pass, put_off, store_failed, wait_behind};

#[derive(Clone)]
pub(crate) struct ApprovalStage {
    pub(crate) services: Arc<Services>,
    pub(crate) idempotency: Address<Action<Gated>>,
    pub(crate) recorder: Address<Record>,
}

/// What happens next to an action that needs an approval.
enum Then {
    Approved(Evidence),
    Waits(Box<Hold>),
    /// Another copy of the action is in flight, or has just ended.
    Elsewhere,
    Before(ReceiptId),
    /// Another action with the same key is in flight.
    Behind(ActionId),
    /// The action ends here, with a receipt.
    Refused(Failure),
    /// The action's id belongs to another action.
    Conflict,
    /// The action is tried again after a pause: its session has too many holds, or no slot for a preview came free.
    Later(Failure, Duration),
}

/// How long a decision from the bus is deferred if its session has too many holds.
const FULL_PAUSE: Duration = Duration::from_secs(5);

impl Stage for ApprovalStage {
    const NAME: &'static str = "hold";
    type Message = Action<Asked>;

    fn services(&self) -> &Arc<Services> {
        &self.services
    }

    async fn work(&self, mut action: Action<Asked>, this: &Address<Action<Asked>>) {
        hit("held.begin", &action.ticket.action_id).await;
        match self.decide(&mut action).await {
            Ok(then) => self.act_on(then, action, this),
            Err(error) => store_failed(&self.recorder, action, Phase::Hold, &error),
        }
    }
}

impl ApprovalStage {
    async fn decide(&self, action: &mut Action<Asked>) -> Result<Then, StoreError> {
        if let Origin::Batch { batch_id, index, .. } = &action.ticket.origin {
            let (batch, index) = (ActionId::new(batch_id.as_str())?, *index);
            return self.of_batch(action, &batch, index).await;
        }
        let (services, asked, policy) = (&self.services, &action.state, self.services.policy());
        let question = Question::of(
            &services.files,
            &policy,
            &action.request,
            (&action.ticket.principal, action.ticket.contract.as_ref()),
            asked.tool(),
            asked.params(),
            asked.ruling(),
        )
        .await;
        // Another copy of the action may have ended first.
        if let Some(ended) = services.store.receipt_of(&action.ticket.action_id)? {
            return Ok(Then::Before(ended.receipt_id));
        }
        let intent = intent_of(&*services.store, &action.ticket.action_id).await?;
        let begun = intent.is_some();
        if action.ticket.approved.is_some() {
            return self.evidence(action, &question, begun).await;
        }
        if let Some(then) = self.existing(action).await? {
            return Ok(then);
        }
        if begun {
            return self.begun(action);
        }
        // If the same was done before, no new approval is needed.
        let mut terms = terms_of_gated(&services.files, &action.request, &action.state).await;
        match look_up(services, &action.asker(), &action.ticket.action_id, &mut terms).await? {
            Lookup::Done { receipt_id } => return Ok(Then::Before(receipt_id)),
            Lookup::InFlight { action_id } if action_id != action.ticket.action_id => {
                return Ok(Then::Behind(action_id));
            }
            Lookup::Conflict => return Ok(Then::Refused(key_taken())),
            Lookup::InFlight { .. } | Lookup::Unknown => {}
        }
        if let Some(record) = grants::consume(&services.approvals, &policy, action, &question).await? {
            action.ticket.granted = Some(record);
            return Ok(Then::Approved(Evidence::found()));
        }
        self.hold(action, &question).await
    }

    /// A person was asked about the whole batch, and about each item as it was judged then. An item cannot wait by itself: the items
    /// before it would stay half done.
    async fn of_batch(
        &self,
        action: &mut Action<Asked>,
        batch: &ActionId,
        index: u32,
    ) -> Result<Then, StoreError> {
        let store = &*self.services.store;
        let now = depends(action.state.tool(), action.state.ruling());
        // One that was begun passed here before.
        let is_covered = self.services.control.batches.is_judged_so(batch.as_str(), index, now)
            || intent_of(store, &action.ticket.action_id).await?.is_some();
        let decision = published(store, batch)?.and_then(|published| published.event);
        let approved = decision.and_then(|event| event.data.approved).filter(|_| is_covered);
        let Some(approved) = approved else {
            let why = "it needs a person since its batch has begun; send it again, as a batch or by itself";
            return Ok(Then::Refused(Failure::new(Code::PolicyDenied, Phase::Hold, why)));
        };
        if tool_sends(action.state.tool())
            && let Some(id) = &approved.record.approval_id
            && let Some(hold) = repository::hold(store, id)?
            && let Some(shown) = hold.value.prompt.preview
        {
            // No other request leaves than the one that was shown.
            let request = shown.request_of(index as usize).cloned();
            action.ticket.preview = request.map(|request| Box::new(Preview::Request(request)));
        }
        action.ticket.approved = Some(Approved { original: None, ..approved });
        Ok(Then::Approved(Evidence::found()))
    }

    async fn hold(&self, action: &Action<Asked>, question: &Question) -> Result<Then, StoreError> {
        let (id, services) = (&action.ticket.action_id, &self.services);
        let settings = &services.settings;
        if is_full(&*services.store, settings, action, question)? {
            return Ok(full(settings));
        }
        let new = match self.preview(action, question).await {
            Ok(preview) => new_hold(settings, services.clock.now(), action, question, preview),
            Err(then) => return Ok(then),
        };
        hit("held.before_park", id).await;
        let suspended = suspend(&services.approvals, settings, new, action.ticket.lease()).await;
        hit("held.after_park", id).await;
        Ok(match suspended? {
            Suspended::Waits(hold) => Then::Waits(hold),
            Suspended::Ended(receipt_id) => Then::Before(receipt_id),
            Suspended::Full => full(settings),
        })
    }

    /// The preview that a person sees; or what happens without asking anybody.
    async fn preview(&self, action: &Action<Asked>, question: &Question) -> Result<Box<Preview>, Then> {
        let (asked, services, request) = (&action.state, &self.services, &action.request);
        let by = (&asked.ruling().decision, &action.ticket.trace_id);
        let preview = question.preview(services, request, asked.tool(), asked.params(), by).await;
        let preview = preview.map_err(|failure| Then::Later(failure, OVERLOAD_RETRY))?;
        match preview.failure() {
            // Nothing would be left of it.
            Some(failure) if is_all_or_nothing(services, request) => Err(Then::Refused(failure.clone())),
            Some(_) | None => Ok(Box::new(preview)),
        }
    }

    /// The action was begun before, so the paths may already have its own effect. If it used a grant then, it continues and is
    /// settled as its tool declares; otherwise it is refused: it cannot wait for a person as if nothing had happened.
    fn begun(&self, action: &mut Action<Asked>) -> Result<Then, StoreError> {
        let used = grants::used(&*self.services.store, &action.ticket.action_id)?;
        let Some(record) = used else {
            return Ok(Then::Refused(begun()));
        };
        action.ticket.granted = Some(record);
        Ok(Then::Approved(Evidence::found()))
    }

    /// The decision comes with an approval. It counts if the question is unchanged, or if the action was begun with it: then the
    /// action's own effect may have changed the paths, and it is settled as its tool declares.
    async fn evidence(
        &self,
        action: &mut Action<Asked>,
        question: &Question,
        begun: bool,
    ) -> Result<Then, StoreError> {
        let store = &*self.services.store;
        let id = action.ticket.approved.as_ref().and_then(|approved| approved.record.approval_id.clone());
        let hold = id.map(|id| repository::hold(store, &id)).transpose()?.flatten();
        let ours = hold.filter(|hold| {
            hold.value.is_approved()
                && hold.value.lead().is_some_and(|lead| lead.action_id == action.ticket.action_id)
        });
        let Some(hold) = ours else {
            if begun {
                return Ok(Then::Refused(self::begun()));
            }
            // The approval belongs to an earlier delivery: the action was requeued since, or its receipt is on disk.
            action.ticket.approved = None;
            return self.hold(action, question).await;
        };
        if begun || hold.value.agreed() == Some(keyed_digest(&question.digest)) {
            action.ticket.preview.clone_from(&hold.value.prompt.preview);
            // The approver saw these paths; if the action was begun, they may have its own effect, and nothing is expected.
            action.ticket.expect = if begun { Vec::new() } else { question.stands.clone() };
            return Ok(Then::Approved(Evidence::found()));
        }
        if hold.value.round >= HELD_ROUNDS_MAX {
            let message = format!(
                "it was approved {} times, and had changed each time before it could run",
                HELD_ROUNDS_MAX
            );
            return Ok(Then::Refused(Failure::new(Code::PolicyDenied, Phase::Hold, message)));
        }
        let why = "the tool, its connection, a rule or a file has changed since the approval";
        let new = match self.preview(action, question).await {
            Ok(preview) => {
                new_hold(&self.services.settings, self.services.clock.now(), action, question, preview)
            }
            Err(then) => return Ok(then),
        };
        let new = reopen(&self.services.approvals, &hold, new, why, action.ticket.lease()).await?;
        Ok(Then::Waits(Box::new(new)))
    }

    /// What follows from the hold of this action, if it has one.
    async fn existing(&self, action: &Action<Asked>) -> Result<Option<Then>, StoreError> {
        let ticket = &action.ticket;
        let Some(hold) = repository::hold_of(&*self.services.store, &ticket.action_id)? else {
            return Ok(None);
        };
        let same = hold.value.member(&ticket.action_id).is_some_and(|member| member.digest == ticket.digest);
        if !same || hold.value.decision.principal != ticket.principal {
            return Ok(Some(Then::Conflict));
        }
        if hold.value.is_open(self.services.clock.now()) {
            if let Some(lease) = ticket.lease() {
                self.services.store.ack(lease).await?;
            }
            return Ok(Some(Then::Waits(Box::new(hold.value))));
        }
        if let HoldState::Pending = hold.value.state {
            // The sweeper has not ended it yet.
            expiry::expire(&self.services, &hold).await?;
        }
        Ok(Some(match self.services.store.receipt_of(&ticket.action_id)? {
            Some(receipt) => Then::Before(receipt.receipt_id),
            None => Then::Elsewhere,
        }))
    }

    fn act_on(&self, then: Then, action: Action<Asked>, this: &Address<Action<Asked>>) {
        match then {
            Then::Approved(evidence) => {
                let action = action.advance(|asked| asked.permitted(&evidence));
                pass(&self.idempotency, action);
            }
            Then::Waits(hold) => self.waits(action, &hold),
            Then::Elsewhere => {
                if let Some(lease) = action.ticket.lease() {
                    drop(self.services.store.ack(lease));
                }
                action.ticket.close();
            }
            Then::Before(receipt_id) => pass(&self.recorder, Record::before(action, receipt_id)),
            Then::Behind(other) => wait_behind(&self.services.in_flight, action, &other, this),
            Then::Refused(failure) => pass(&self.recorder, refused(action, |asked| asked, failure)),
            Then::Conflict => {
                let failure = Failure::new(Code::ActionConflict, Phase::Hold, ID_TAKEN);
                pass(&self.recorder, Record::unrecorded(action, failure));
            }
            Then::Later(failure, pause) => put_off(*action.ticket, &failure, pause),
        }
    }

    fn waits(&self, mut action: Action<Asked>, hold: &Hold) {
        let id = action.ticket.action_id.clone();
        let tier = hold.prompt.decision.tier.as_str();
        tracing::info!(parent: &action.ticket.span, approval_id = %hold.approval_id, tier, "action held");
        self.services.metrics.held.inc();
        let held = hold.held();
        if !action.ticket.hold_caller(&held) {
            self.services.in_flight.answers.send_held(&id, &held);
        }
        action.ticket.close();
    }
}

fn begun() -> Failure {
    let message = "the action had begun before a rule required an approval";
    Failure::new(Code::PolicyDenied, Phase::Hold, message)
}

fn full(settings: &Settings) -> Then {
    let most = settings.held_per_session_max;
    let message = format!("{most} actions of this session already await approval");
    let failure = Failure::new(Code::PendingLimit, Phase::Hold, message).retry_after(FULL_PAUSE);
    Then::Later(failure, FULL_PAUSE)
}
