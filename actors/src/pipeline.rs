//! The pipeline as its users see it: submit a decision, or execute it and wait.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Exhausted, GroupOptions, StoreError};
use effectd_contracts::batch::is_undo_id;
use effectd_contracts::{ActionId, Code, Contract, Digest, Event, Failure, Phase, Timestamp, Topic, TraceId};
use effectd_policy::Decider;
use ractor::{Actor, ActorRef};
use tokio::sync::{Semaphore, TryAcquireError, oneshot, watch};

use crate::action::decisions::{answer_of_ended, id_taken, same_decision, to_publish};
use crate::action::ticket::{Back, NewTicket, Slot, Ticket, Way};
use crate::action::{Action, Submitted};
use crate::approvals::repository::hold_of;
use crate::control::switches::Switches;
use crate::effects::snapshot;
use crate::failpoint::hit;
use crate::limits::{AHEAD_MAX, STOP_MAX};
use crate::operator::withdraw::{Withdrawal, give_up, withdraw};
use crate::services::answers::{Answer, Done, ended};
use crate::services::{Services, group, sessions};
use crate::stage::pass;
use crate::supervisor::{Ask, STAGES, Stages, Supervisor, TreeNode};

pub use crate::services::callers::Incoming;

#[derive(Debug)]
pub struct Pipeline {
    services: Arc<Services>,
    permits: Arc<Semaphore>,
    supervisor: ActorRef<Ask>,
    stages: Stages,
    fatal: watch::Receiver<Option<String>>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the pipeline cannot use the store: {0}")]
    Store(#[from] StoreError),
    #[error("the pipeline's actors did not start: {0}")]
    Actors(String),
    /// An actor kept dying before all actors had started.
    #[error("the pipeline gave up while it was starting: {0}")]
    GaveUp(String),
}

impl Pipeline {
    /// Starts the actors; intake then resumes the decisions that are on the bus.
    pub async fn start(services: Arc<Services>) -> Result<Self, StartError> {
        let options =
            GroupOptions { deliveries_max: services.settings.deliveries_max, exhausted: Exhausted::HandOver };
        services.store.configure(&Topic::ActionDecision.into(), &group()?, options).await?;
        for stage in STAGES {
            // A series that begins at 0 shows its first increase.
            services.metrics.panics.with_label_values(&[stage]).inc_by(0);
            services.metrics.stalls.with_label_values(&[stage]).inc_by(0);
        }
        let permits = Arc::new(Semaphore::new(services.settings.in_flight_max));
        let (send_fatal, fatal) = watch::channel(None);
        let supervisor = Supervisor {
            services: services.clone(),
            permits: permits.clone(),
            ahead: Arc::new(Semaphore::new(AHEAD_MAX)),
            fatal: send_fatal,
        };
        let failed = |error: &dyn std::fmt::Display| match &*fatal.borrow() {
            Some(reason) => StartError::GaveUp(reason.clone()),
            None => StartError::Actors(error.to_string()),
        };
        let (supervisor, _) = Actor::spawn(None, supervisor, ()).await.map_err(|error| failed(&error))?;
        let stages = match supervisor.call(Ask::Stages, None).await {
            Ok(ractor::rpc::CallResult::Success(stages)) => stages,
            Ok(_) => return Err(failed(&"the supervisor did not answer")),
            Err(error) => return Err(failed(&error)),
        };
        Ok(Self { services, permits, supervisor, stages, fatal })
    }

    pub fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// The actors under the supervisor, as ractor lists them.
    pub async fn tree(&self) -> Vec<TreeNode> {
        match self.supervisor.call(Ask::Tree, None).await {
            Ok(ractor::rpc::CallResult::Success(nodes)) => nodes,
            Ok(_) | Err(_) => Vec::new(),
        }
    }

    /// Kills an actor under the supervisor, for tests.
    #[cfg(feature = "failpoints")]
    pub fn kill(&self, name: &str) {
        drop(self.supervisor.cast(Ask::Kill(name.to_owned())));
    }

    /// Updates the gauges of what changes by the clock or in a queue: actions that wait for a worker, breakers, the pause.
    pub async fn measure(&self) {
        let services = &self.services;
        services.control.breakers.measure();
        let since = Switches::new(&*services.store).paused_since(services.clock.now());
        // A store that cannot be read is reported elsewhere.
        if let Ok(since) = since {
            services.metrics.paused_since.set(since.map_or(0, Timestamp::as_second));
        }
        for (stage, depth) in self.stages.queues().await {
            let gauge = self.services.metrics.stage_queue.with_label_values(&[stage]);
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

    pub fn broken(&self) -> Option<String> {
        let gone = self.fatal.has_changed().is_err() && !self.permits.is_closed();
        let gone = gone.then(|| "the supervisor is gone".to_owned());
        self.fatal.borrow().clone().or(gone)
    }

    /// Publishes a decision. When this returns, it is on disk: the action is executed or refused even if the process dies.
    pub async fn submit(&self, incoming: Incoming) -> Result<ActionId, Failure> {
        let action_id = incoming.request.action_id.clone();
        self.submit_offset(incoming).await.map(|_| action_id)
    }

    /// [`Pipeline::submit`] that returns the offset of the decision; `None` if the action has already ended.
    pub async fn submit_offset(&self, mut incoming: Incoming) -> Result<Option<u64>, Failure> {
        match self.admit(&mut incoming).await? {
            Some(Answer::Done(_) | Answer::Held(_)) => Ok(None),
            Some(Answer::Refused(failure)) => Err(failure),
            None => self.publish(incoming).await,
        }
    }

    /// Checks a new decision, and counts it against its session, which says whether anybody waits. Returns the answer if the action
    /// has already ended.
    async fn admit(&self, incoming: &mut Incoming) -> Result<Option<Answer>, Failure> {
        incoming.request.check()?;
        incoming.contract.as_ref().map_or(Ok(()), Contract::check)?;
        if let Some(known) = self.known(incoming)? {
            return Ok(Some(known));
        }
        if is_undo_id(&incoming.request.action_id) {
            let why = "an action_id that ends in a number and /undo is for what undoes an item of a batch";
            return Err(Failure::new(Code::Malformed, Phase::Accept, why));
        }
        if self.permits.is_closed() {
            return Err(stopping());
        }
        let Services { store, control, .. } = &*self.services;
        let policy = self.services.policy();
        let session = sessions::admit(&**store, &policy, &incoming.origin, &incoming.request)?;
        incoming.interactive = session.map_or(incoming.interactive, |session| !session.unattended);
        control.session(&incoming.origin, &incoming.request).await?;
        Ok(None)
    }

    /// Executes a decision, and waits for its receipt or until it is held.
    pub async fn exec(&self, incoming: Incoming) -> Answer {
        let (principal, action) = (incoming.principal.clone(), incoming.request.action_id.clone());
        let answer = self.try_exec(incoming).await.unwrap_or_else(Answer::Refused);
        // Answers are keyed by action id: this one may belong to another principal's action of the same id.
        let is_own = match &answer {
            Answer::Done(done) => done.receipt.principal == principal,
            Answer::Held(_) => {
                let hold = hold_of(&*self.services.store, &action).ok().flatten();
                hold.is_none_or(|hold| hold.value.decision.principal == principal)
            }
            Answer::Refused(_) => true,
        };
        if is_own { answer } else { Answer::Refused(id_taken()) }
    }

    async fn try_exec(&self, mut incoming: Incoming) -> Result<Answer, Failure> {
        if let Some(known) = self.admit(&mut incoming).await? {
            return Ok(known);
        }
        let rated = self.services.control.rate(&incoming.request, &incoming.principal);
        let reserved = rated.map_err(|throttled| throttled.failure())?;
        let digest = incoming.request.digest_under(incoming.contract.as_ref());
        let control = &self.services.control;
        let join = snapshot::join(&self.services.registry(), &control.resources, &incoming.request, digest);
        let queue_permit = control.slot(&incoming.request, join).await?;
        let permit = self.permits.clone().try_acquire_owned().map_err(|error| match error {
            TryAcquireError::Closed => stopping(),
            TryAcquireError::NoPermits => overloaded(self.services.settings.in_flight_max),
        })?;
        let mut answer = self.services.in_flight.answers.wait_or_held(&incoming.request.action_id);
        let (back, mut came_back) = oneshot::channel();
        let incoming = Arc::new(incoming);
        let _caller = self.services.in_flight.callers.enter(&incoming);
        let slot = Slot::new(permit, queue_permit, reserved, &self.services.metrics.in_flight);
        let action = self.action((*incoming).clone(), digest, back, slot);
        pass(&self.stages.validator, action);
        tokio::select! {
            biased;
            answer = &mut answer => return answered(answer),
            back = &mut came_back => match back {
                // The runtime stops, and nothing about the action is on disk.
                Ok(Back::Lost) if self.permits.is_closed() => return Err(stopping()),
                // A worker died before the decision was on disk: publish it, so that the bus keeps it.
                Ok(Back::Lost) => drop(Box::pin(self.publish((*incoming).clone())).await?),
                Ok(Back::Held(held)) => return Ok(Answer::Held(held)),
                Ok(Back::Refused(failure)) => return Err(failure),
                // The decision is on disk, or the answer is about to come.
                Err(_) => {}
            },
            // A stage is down, or the action waits for another: in both cases the decision can be published, and the copy that is
            // claimed second ends.
            () = tokio::time::sleep(self.services.in_flight.leases.ttl * 2) => drop(Box::pin(self.publish((*incoming).clone())).await?),
        }
        self.answered(answer).await
    }

    /// Waits for an answer, unless the pipeline gives up.
    async fn answered(&self, answer: oneshot::Receiver<Answer>) -> Result<Answer, Failure> {
        tokio::select! {
            biased;
            answer = answer => answered(answer),
            _ = self.fatal() => Err(self.broken().map_or_else(handed_back, |why| {
                let message = format!("{why}; the next start continues with the decisions on the bus");
                Failure::new(Code::Internal, Phase::Accept, message)
            })),
        }
    }

    /// Waits for the receipt of an action that was submitted before.
    pub async fn wait(&self, action: &ActionId) -> Result<Answer, Failure> {
        let answer = self.services.in_flight.answers.wait_for(action);
        if let Some(done) = self.linked_receipt_of(action).await? {
            return Ok(Answer::Done(done));
        }
        self.answered(answer).await
    }

    /// [`Pipeline::wait`] that also returns when the action is held.
    pub async fn wait_or_held(&self, action: &ActionId) -> Result<Answer, Failure> {
        let answer = self.services.in_flight.answers.wait_or_held(action);
        if let Some(done) = self.linked_receipt_of(action).await? {
            return Ok(Answer::Done(done));
        }
        let hold = hold_of(&*self.services.store, action).map_err(|error| store_failure(&error))?;
        match hold.filter(|hold| hold.value.decided().is_none()) {
            Some(hold) => Ok(Answer::Held(hold.value.held())),
            None => self.answered(answer).await,
        }
    }

    /// Withdraws an action that has not started. Its callers get the receipt.
    pub async fn cancel(&self, action: &ActionId, by: &Decider) -> Result<Withdrawal, Failure> {
        if self.permits.is_closed() {
            return Err(stopping());
        }
        withdraw(&self.services, action, by).await
    }

    /// [`Pipeline::cancel`] for an action whose caller is gone. One that waits for a person goes on, and `None` is returned.
    pub async fn give_up(&self, action: &ActionId, by: &Decider) -> Result<Option<Withdrawal>, Failure> {
        if self.permits.is_closed() {
            return Err(stopping());
        }
        give_up(&self.services, action, by).await
    }

    pub fn receipt_of(&self, action: &ActionId) -> Result<Option<Done>, Failure> {
        let ended = ended(&*self.services.store, action).map_err(|error| store_failure(&error))?;
        Ok(ended.map(|(receipt, _)| Done::before(receipt)))
    }

    /// [`Pipeline::receipt_of`], also for a repeat, which is answered before its link to the receipt is on disk.
    pub async fn linked_receipt_of(&self, action: &ActionId) -> Result<Option<Done>, Failure> {
        if let Some(done) = self.receipt_of(action)? {
            return Ok(Some(done));
        }
        // The Store works in order: when it answers this, every earlier link is on disk.
        let in_order = self.services.store.groups(&Topic::ActionDecision.into()).await;
        in_order.map_err(|error| store_failure(&error))?;
        self.receipt_of(action)
    }

    /// The answer for an action that has ended.
    fn known(&self, incoming: &Incoming) -> Result<Option<Answer>, Failure> {
        let asked = (&incoming.principal, incoming.contract.as_ref());
        let ended = answer_of_ended(&self.services, &incoming.request, asked)
            .map_err(|error| store_failure(&error))?;
        let done = |receipt| Answer::Done(Done::before(receipt));
        Ok(ended.map(|answer| answer.map_or_else(Answer::Refused, done)))
    }

    fn action(
        &self,
        incoming: Incoming,
        digest: Digest,
        back: oneshot::Sender<Back>,
        slot: Slot,
    ) -> Action<Submitted> {
        let request = incoming.request;
        let new = NewTicket {
            digest: self.services.identity.keyed(&digest),
            trace_id: request.trace().unwrap_or_else(TraceId::fresh),
            principal: incoming.principal,
            origin: incoming.origin,
            contract: incoming.contract,
            interactive: incoming.interactive,
            approved: None,
            accepted_at: self.services.clock.now(),
            waited: Duration::ZERO,
            way: Some(Way::Caller { back }),
            slot,
        };
        Action::new(Ticket::new(&self.services, &request, new), request)
    }

    /// Publishes the decision. If a decision with this id is on the bus already, it must be the same one.
    async fn publish(&self, incoming: Incoming) -> Result<Option<u64>, Failure> {
        let data = incoming.into_decision();
        let action_id = data.request.action_id.clone();
        let (digest, asker) = (data.digest(), data.principal.clone());
        let trace_id = data.request.trace().unwrap_or_else(TraceId::fresh);
        let event = Event::decision(data, trace_id, self.services.clock.now());
        hit("door.before_publish", &action_id).await;
        let store = &self.services.store;
        let published = store
            .publish(&Topic::ActionDecision.into(), vec![to_publish(&event)])
            .await
            .map_err(|error| store_failure(&error))?;
        hit("door.after_publish", &action_id).await;
        let known = published.first().filter(|published| published.duplicate);
        let same = known.map_or(Ok(true), |known| same_decision(&**store, known.offset, digest, &asker));
        match same {
            Ok(true) => Ok(published.first().map(|published| published.offset)),
            Ok(false) => Err(id_taken()),
            Err(error) => Err(store_failure(&error)),
        }
    }

    /// Stops the pipeline. Intake ends first. Actions in flight finish within `grace` (or until `hasten` resolves), or go back to
    /// the bus. Then all actors and children end. Returns whether every action finished.
    pub async fn stop(&self, grace: Duration, hasten: impl Future<Output = ()>) -> bool {
        if self.permits.is_closed() {
            return true;
        }
        drop(self.supervisor.cast(Ask::StopIntake));
        let finished = tokio::select! {
            biased;
            () = self.all_slots_free() => true,
            () = tokio::time::sleep(grace) => false,
            () = hasten => false,
        };
        self.permits.close();
        self.services.children.halt.send_replace(true);
        drop(self.supervisor.stop_and_wait(None, Some(STOP_MAX)).await);
        self.children_gone().await;
        self.services.control.resources.dismiss();
        self.services.in_flight.answers.dismiss();
        finished
    }

    async fn all_slots_free(&self) {
        let all = u32::try_from(self.services.settings.in_flight_max).unwrap_or(u32::MAX);
        // The error means that an earlier stop closed the semaphore.
        drop(self.permits.acquire_many(all).await);
    }

    /// Waits until the tasks of all calls have ended.
    async fn children_gone(&self) {
        let noticed = self.services.children.running.all_dead();
        if tokio::time::timeout(STOP_MAX, noticed).await.is_err() {
            tracing::error!("a child actor did not stop in time; it ends with the process");
        }
    }
}

fn stopping() -> Failure {
    Failure::new(Code::ShuttingDown, Phase::Accept, "the runtime is stopping; try again later")
}

fn handed_back() -> Failure {
    let message =
        "the runtime is stopping, and the next start continues the action; retry with the same action id";
    Failure::new(Code::ShuttingDown, Phase::Accept, message)
}

fn answered(answer: Result<Answer, oneshot::error::RecvError>) -> Result<Answer, Failure> {
    answer.map_err(|_| handed_back())
}

fn overloaded(in_flight: usize) -> Failure {
    let message = format!("{in_flight} actions are in flight; try again shortly");
    Failure::new(Code::Overloaded, Phase::Accept, message)
}

fn store_failure(error: &StoreError) -> Failure {
    error.failure(Phase::Accept)
}
