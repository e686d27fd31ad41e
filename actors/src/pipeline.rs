//! The pipeline as its users see it: submit a decision, or have it carried out and wait.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Exhausted, GroupName, GroupOptions, StoreError};
use effectd_contracts::{
    ActionId, ActionRequest, Code, DecisionData, Digest, Event, Failure, Origin, Phase, Principal, Topic,
    TraceId, TraceParent,
};
use ractor::{Actor, ActorRef};
use tokio::sync::{Semaphore, TryAcquireError, oneshot, watch};
use tracing::Span;

use crate::action::{Action, Back, Place, Stalled, Submitted, Ticket, Way};
use crate::answers::{Answer, Done, ended};
use crate::decisions::same_decision;
use crate::failpoint::hit;
use crate::held::entries::hold_of;
use crate::idempotency::{ID_TAKEN, sealed};
use crate::limits::{AHEAD_MAX, STOP_MAX};
use crate::parts::Parts;
use crate::preimage;
use crate::registry::Entry;
use crate::stage::pass;
use crate::supervisor::{Ask, Stages, Supervisor};
use crate::withdraw::{Canceller, Withdrawal, withdraw};

#[derive(Debug)]
pub struct Pipeline {
    parts: Arc<Parts>,
    permits: Arc<Semaphore>,
    supervisor: ActorRef<Ask>,
    stages: Stages,
    fatal: watch::Receiver<Option<String>>,
}

/// A decision as it comes in through a door.
#[derive(Debug, Clone)]
pub struct Incoming {
    /// What is asked for. Those who wait for it and those who carry it out have it together.
    pub request: Arc<ActionRequest>,
    /// Who the door saw.
    pub principal: Principal,
    pub origin: Origin,
    /// Somebody sits at a terminal and waits: a person who must be asked is expected within minutes.
    pub interactive: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the pipeline cannot use the store: {0}")]
    Store(#[from] StoreError),
    #[error("the pipeline's actors did not start: {0}")]
    Actors(String),
    /// One of them died again and again before all were up.
    #[error("the pipeline gave up while it was starting: {0}")]
    GaveUp(String),
}

/// The group of consumers that the pipeline is.
pub(crate) fn group() -> Result<GroupName, StoreError> {
    GroupName::new("pipeline")
}

/// The span of one action, with the names that OpenTelemetry has for the use of a tool beside our own. `retry` is filled in
/// when there is one; what the action was told and why it failed when it has ended.
pub(crate) fn span(request: &ActionRequest, trace: &TraceId, tool: Option<&Entry>) -> Span {
    let caps: Vec<&str> = tool
        .iter()
        .flat_map(|t| &t.spec().caps_required)
        .map(|cap| cap.as_str())
        .collect();
    let profile = tool.map(|tool| tool.spec().effective_profile().as_str());
    let own = TraceParent::of_action(trace, &request.action_id, request.traceparent.as_ref());
    let under = request
        .traceparent
        .as_ref()
        .filter(|parent| parent.trace() == trace.as_str());
    tracing::info_span!(
        "action.exec",
        trace_id = %trace,
        span_id = own.as_ref().map(TraceParent::span),
        parent_span_id = under.map(TraceParent::span),
        action_id = %request.action_id,
        tool_id = %request.tool_id,
        space_id = %request.space_id,
        retry = 0_u64,
        caps = caps.join(","),
        sandbox_profile = profile,
        gen_ai.operation.name = "execute_tool",
        gen_ai.tool.name = %request.tool_id,
        gen_ai.tool.call.id = %request.action_id,
        gen_ai.tool.call.arguments = tracing::field::Empty,
        error.type = tracing::field::Empty,
    )
}

impl Pipeline {
    /// Starts the tree, and with it the replay of everything that is still on the bus.
    pub async fn start(parts: Arc<Parts>) -> Result<Self, StartError> {
        let options = GroupOptions {
            deliveries_max: parts.settings.deliveries_max,
            exhausted: Exhausted::HandOver,
        };
        parts
            .store
            .configure(&Topic::ActionDecision.into(), &group()?, options)
            .await?;
        let permits = Arc::new(Semaphore::new(parts.settings.in_flight_max));
        let (send_fatal, fatal) = watch::channel(None);
        let supervisor = Supervisor {
            parts: parts.clone(),
            permits: permits.clone(),
            ahead: Arc::new(Semaphore::new(AHEAD_MAX)),
            fatal: send_fatal,
        };
        let failed = |error: &dyn std::fmt::Display| match &*fatal.borrow() {
            Some(reason) => StartError::GaveUp(reason.clone()),
            None => StartError::Actors(error.to_string()),
        };
        let (supervisor, _) = Actor::spawn(None, supervisor, ())
            .await
            .map_err(|error| failed(&error))?;
        let stages = match supervisor.call(Ask::Stages, None).await {
            Ok(ractor::rpc::CallResult::Success(stages)) => stages,
            Ok(_) => return Err(failed(&"the supervisor did not answer")),
            Err(error) => return Err(failed(&error)),
        };
        Ok(Self {
            parts,
            permits,
            supervisor,
            stages,
            fatal,
        })
    }

    pub fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    /// The names of all that lives under the supervisor.
    pub async fn tree(&self) -> Vec<&'static str> {
        match self.supervisor.call(Ask::Tree, None).await {
            Ok(ractor::rpc::CallResult::Success(names)) => names,
            Ok(_) | Err(_) => Vec::new(),
        }
    }

    /// Looks how many actions wait for a worker, for whoever reads the figures.
    pub async fn measure(&self) {
        for (stage, depth) in self.stages.queues().await {
            let gauge = self.parts.metrics.stage_queue.with_label_values(&[stage]);
            gauge.set(i64::try_from(depth).unwrap_or(i64::MAX));
        }
    }

    /// Resolves, with the reason, when the pipeline has given up and the process must stop.
    pub async fn fatal(&self) -> String {
        let mut fatal = self.fatal.clone();
        match fatal.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => "the supervisor is gone".to_owned(),
        }
    }

    /// Why the pipeline has given up, if it has.
    pub fn broken(&self) -> Option<String> {
        let gone = self.fatal.has_changed().is_err() && !self.permits.is_closed();
        let gone = gone.then(|| "the supervisor is gone".to_owned());
        self.fatal.borrow().clone().or(gone)
    }

    /// Puts a decision on the bus. When this returns, it is on disk and will be carried out or refused, whatever dies.
    pub async fn submit(&self, incoming: Incoming) -> Result<ActionId, Failure> {
        let action_id = incoming.request.action_id.clone();
        self.place(incoming).await.map(|_| action_id)
    }

    /// The same as [`Pipeline::submit`], and answers where on the bus the decision lies; nowhere if it has ended.
    pub async fn place(&self, incoming: Incoming) -> Result<Option<u64>, Failure> {
        incoming.request.check()?;
        if let Some(known) = self.known(&incoming)? {
            return match known {
                Answer::Done(_) | Answer::Held(_) => Ok(None),
                Answer::Refused(failure) => Err(failure),
            };
        }
        if self.permits.is_closed() {
            return Err(stopping());
        }
        self.parts.control.session(&incoming.origin).await?;
        self.publish(incoming).await
    }

    /// Has a decision carried out, and waits for its receipt, or until it waits for a person.
    pub async fn exec(&self, incoming: Incoming) -> Answer {
        let (asker, action) = (incoming.principal.clone(), incoming.request.action_id.clone());
        let answer = self.try_exec(incoming).await.unwrap_or_else(Answer::Refused);
        // Answers go by action id. If another user holds the same id at this time, their answer is not for this asker.
        let is_own = match &answer {
            Answer::Done(done) => done.receipt.principal == asker,
            Answer::Held(_) => {
                let hold = hold_of(&*self.parts.store, &action).ok().flatten();
                hold.is_none_or(|hold| hold.value.decision.principal == asker)
            }
            Answer::Refused(_) => true,
        };
        if is_own {
            answer
        } else {
            Answer::Refused(id_taken())
        }
    }

    async fn try_exec(&self, incoming: Incoming) -> Result<Answer, Failure> {
        incoming.request.check()?;
        if let Some(known) = self.known(&incoming)? {
            return Ok(known);
        }
        if self.permits.is_closed() {
            return Err(stopping());
        }
        self.parts.control.session(&incoming.origin).await?;
        let rated = self.parts.control.rate(&incoming.request, &incoming.principal);
        let reserved = rated.map_err(|throttled| throttled.failure())?;
        let digest = incoming.request.digest();
        let join = preimage::join(&self.parts, &incoming.request, digest);
        let mut turn = self.parts.control.place(&incoming.request, join).await?;
        let permit = self
            .permits
            .clone()
            .try_acquire_owned()
            .map_err(|error| match error {
                TryAcquireError::Closed => stopping(),
                TryAcquireError::NoPermits => overloaded(self.parts.settings.in_flight_max),
            })?;
        let mut answer = self.parts.answers.wait_or_held(&incoming.request.action_id);
        let (back, mut came_back) = oneshot::channel();
        let incoming = Arc::new(incoming);
        let _standing = self.parts.at_door.enter(&incoming);
        let line = turn.take_line();
        let place = Place::new(Some(permit), Some(turn), &self.parts.metrics.in_flight);
        let place = place.with(reserved).in_line(line);
        let action = self.action((*incoming).clone(), digest, back, place);
        pass(&self.stages.validator, action);
        tokio::select! {
            biased;
            answer = &mut answer => return answered(answer),
            back = &mut came_back => match back {
                // Everything is being stopped, and nothing of it is on disk.
                Ok(Back::Lost) if self.permits.is_closed() => return Err(stopping()),
                // A worker died before the decision was on disk: from now on the bus looks after it.
                Ok(Back::Lost) => drop(Box::pin(self.publish((*incoming).clone())).await?),
                Ok(Back::Held(held)) => return Ok(Answer::Held(held)),
                Ok(Back::Refused(failure)) => return Err(failure),
                // It is on disk, or about to be answered.
                Err(_) => {}
            },
            // It is in the hands of a stage that has stopped altogether, or waits for another action: either way the bus
            // can look after it, and whichever copy comes second gives way.
            () = tokio::time::sleep(self.parts.lease_ttl * 2) => drop(Box::pin(self.publish((*incoming).clone())).await?),
        }
        self.answered(answer).await
    }

    /// Waits for an answer, unless the pipeline gives up.
    async fn answered(&self, answer: oneshot::Receiver<Answer>) -> Result<Answer, Failure> {
        tokio::select! {
            biased;
            answer = answer => answered(answer),
            _ = self.fatal() => Err(self.broken().map_or_else(handed_back, |why| {
                let message = format!("{why}; the next start goes on with what is on the bus");
                Failure::new(Code::Internal, Phase::Accept, message)
            })),
        }
    }

    /// Waits for the receipt of an action that was submitted before.
    pub async fn wait(&self, action: &ActionId) -> Result<Answer, Failure> {
        let answer = self.parts.answers.wait_for(action);
        if let Some(done) = self.linked_receipt_of(action).await? {
            return Ok(Answer::Done(done));
        }
        self.answered(answer).await
    }

    /// The same, or until the action waits for a person, if it does not already.
    pub async fn wait_or_held(&self, action: &ActionId) -> Result<Answer, Failure> {
        let answer = self.parts.answers.wait_or_held(action);
        if let Some(done) = self.linked_receipt_of(action).await? {
            return Ok(Answer::Done(done));
        }
        let hold = hold_of(&*self.parts.store, action).map_err(|error| store_failure(&error))?;
        match hold.filter(|hold| hold.value.decided().is_none()) {
            Some(hold) => Ok(Answer::Held(hold.value.told())),
            None => self.answered(answer).await,
        }
    }

    /// Withdraws an action that has not started. Whoever waits for it gets the receipt that says so.
    pub async fn cancel(&self, action: &ActionId, by: &Canceller) -> Result<Withdrawal, Failure> {
        if self.permits.is_closed() {
            return Err(stopping());
        }
        withdraw(&self.parts, action, by).await
    }

    /// The receipt of an action, if it has one.
    pub fn receipt_of(&self, action: &ActionId) -> Result<Option<Done>, Failure> {
        let ended = ended(&*self.parts.store, action).map_err(|error| store_failure(&error))?;
        Ok(ended.map(|(receipt, _)| Done::before(receipt)))
    }

    /// The same, also if the action is a repeat whose link to its receipt is still on its way to the disk: a repeat is answered
    /// before that.
    pub async fn linked_receipt_of(&self, action: &ActionId) -> Result<Option<Done>, Failure> {
        if let Some(done) = self.receipt_of(action)? {
            return Ok(Some(done));
        }
        // The Store answers in order: after this, whatever was linked before it is on disk.
        let in_order = self.parts.store.groups(&Topic::ActionDecision.into()).await;
        in_order.map_err(|error| store_failure(&error))?;
        self.receipt_of(action)
    }

    /// What is known of this very action: its receipt, or that its id stands for something else. A receipt is shown only
    /// to the principal it was made for.
    fn known(&self, incoming: &Incoming) -> Result<Option<Answer>, Failure> {
        let (store, request) = (&*self.parts.store, &incoming.request);
        let ended = ended(store, &request.action_id).map_err(|error| store_failure(&error))?;
        let Some((receipt, digest)) = ended else {
            return Ok(None);
        };
        let same =
            receipt.action_id != request.action_id || digest == self.parts.identity.keyed(&request.digest());
        Ok(Some(if same && receipt.principal == incoming.principal {
            Answer::Done(Done::before(receipt))
        } else {
            Answer::Refused(id_taken())
        }))
    }

    fn action(
        &self,
        incoming: Incoming,
        digest: Digest,
        back: oneshot::Sender<Back>,
        place: Place,
    ) -> Action<Submitted> {
        let Incoming {
            request,
            principal,
            origin,
            interactive,
        } = incoming;
        let trace_id = request.trace().unwrap_or_else(TraceId::fresh);
        let tool = self.parts.registry.get(&request.tool_id);
        let ticket = Ticket {
            action_id: request.action_id.clone(),
            digest: self.parts.identity.keyed(&digest),
            span: span(&request, &trace_id, tool.map(AsRef::as_ref)),
            trace_id,
            principal,
            origin,
            interactive,
            approved: None,
            granted: None,
            preview: None,
            expect: Vec::new(),
            accepted_at: self.parts.clock.now(),
            accepted: self.parts.clock.monotonic(),
            waited: Duration::ZERO,
            queued: None,
            way: Some(Way::Door { back }),
            place,
            store: self.parts.store.clone(),
            stalled: Stalled::default(),
        };
        Action::new(ticket, request)
    }

    /// Puts the decision on the bus. If it is there already, it must be this one.
    async fn publish(&self, incoming: Incoming) -> Result<Option<u64>, Failure> {
        let Incoming {
            request,
            principal,
            origin,
            interactive,
        } = incoming;
        let action_id = request.action_id.clone();
        let (digest, asker) = (request.digest(), principal.clone());
        let trace_id = request.trace().unwrap_or_else(TraceId::fresh);
        let data = DecisionData {
            interactive,
            ..DecisionData::new(Arc::unwrap_or_clone(request), principal, origin)
        };
        let event = Event::decision(data, trace_id, self.parts.clock.now());
        hit("door.before_publish", &action_id).await;
        let store = &self.parts.store;
        let published = store
            .publish(&Topic::ActionDecision.into(), vec![sealed(&event, &action_id)])
            .await
            .map_err(|error| store_failure(&error))?;
        hit("door.after_publish", &action_id).await;
        let known = published.first().filter(|published| published.duplicate);
        let same = known.map_or(Ok(true), |known| {
            same_decision(&**store, known.offset, digest, &asker)
        });
        match same {
            Ok(true) => Ok(published.first().map(|published| published.offset)),
            Ok(false) => Err(id_taken()),
            Err(error) => Err(store_failure(&error)),
        }
    }

    /// Stops: no new decisions, then what is on its way is finished within `grace` (or until `hasten` resolves) or handed
    /// back to the bus, then the tree ends and every child with it. Says whether everything was finished.
    pub async fn stop(&self, grace: Duration, hasten: impl Future<Output = ()>) -> bool {
        if self.permits.is_closed() {
            return true;
        }
        drop(self.supervisor.cast(Ask::StopIntake));
        let finished = tokio::select! {
            biased;
            () = self.all_places_free() => true,
            () = tokio::time::sleep(grace) => false,
            () = hasten => false,
        };
        self.permits.close();
        self.parts.halt.send_replace(true);
        drop(self.supervisor.stop_and_wait(None, Some(STOP_MAX)).await);
        self.children_gone().await;
        self.parts.control.lines.dismiss();
        self.parts.answers.dismiss();
        finished
    }

    async fn all_places_free(&self) {
        let all = u32::try_from(self.parts.settings.in_flight_max).unwrap_or(u32::MAX);
        // Closed only by an earlier stop, which is as good.
        drop(self.permits.acquire_many(all).await);
    }

    /// The calls have been told to end; they are gone when their tasks have noticed.
    async fn children_gone(&self) {
        let noticed = self.parts.running.all_dead();
        if tokio::time::timeout(STOP_MAX, noticed).await.is_err() {
            tracing::error!("a child did not end in time; it ends with the process");
        }
    }
}

fn stopping() -> Failure {
    Failure::new(
        Code::ShuttingDown,
        Phase::Accept,
        "the runtime is stopping; ask again later",
    )
}

fn handed_back() -> Failure {
    let message = "the runtime is stopping, and the next start goes on with the action; ask again with the same action id";
    Failure::new(Code::ShuttingDown, Phase::Accept, message)
}

fn id_taken() -> Failure {
    Failure::new(Code::ActionConflict, Phase::Accept, ID_TAKEN)
}

fn answered(answer: Result<Answer, oneshot::error::RecvError>) -> Result<Answer, Failure> {
    answer.map_err(|_| handed_back())
}

fn overloaded(in_flight: usize) -> Failure {
    let message = format!("{in_flight} actions are on their way; try again shortly");
    Failure::new(Code::Overloaded, Phase::Accept, message)
}

pub(crate) fn store_failure(error: &StoreError) -> Failure {
    Failure::new(Code::StoreUnavailable, Phase::Accept, error.to_string())
}
