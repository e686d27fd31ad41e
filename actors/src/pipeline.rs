//! The pipeline as its users see it: submit a decision, or have it carried out and wait.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Exhausted, GroupName, GroupOptions, StoreError};
use effectd_contracts::{
    ActionId, ActionRequest, Code, DecisionData, Event, Failure, Origin, Phase, Principal, Topic, TraceId,
};
use ractor::{Actor, ActorRef};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tracing::Span;

use crate::action::{Action, Lost, Place, Submitted, Ticket, Way};
use crate::answers::{Answer, Done};
use crate::idempotency::sealed;
use crate::limits::{DELIVERIES_MAX, IN_FLIGHT_MAX};
use crate::messages::Validate;
use crate::parts::Parts;
use crate::registry::Entry;
use crate::stage::pass;
use crate::supervisor::{Ask, Stages, Supervisor};

/// A running pipeline.
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
    /// What is asked for.
    pub request: ActionRequest,
    /// Who the door saw.
    pub principal: Principal,
    /// Where it came from.
    pub origin: Origin,
}

/// A pipeline that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The Store refused.
    #[error("the pipeline cannot use the store: {0}")]
    Store(#[from] StoreError),
    /// The actors did not come up.
    #[error("the pipeline's actors did not start: {0}")]
    Actors(String),
}

/// The group of consumers that the pipeline is.
pub(crate) fn group() -> Result<GroupName, StoreError> {
    GroupName::new("pipeline")
}

/// The span of one action. `retry` is filled in when there is one; the trace id stands in every line itself.
pub(crate) fn span(request: &ActionRequest, tool: Option<&Entry>) -> Span {
    let caps: Vec<&str> = tool
        .iter()
        .flat_map(|t| &t.spec().caps_required)
        .map(|cap| cap.as_str())
        .collect();
    let profile = tool.map(|tool| tool.spec().effective_profile().as_str());
    tracing::info_span!(
        "action.exec",
        action_id = %request.action_id,
        tool_id = %request.tool_id,
        space_id = %request.space_id,
        retry = 0_u64,
        caps = caps.join(","),
        sandbox_profile = profile,
    )
}

impl Pipeline {
    /// Starts the tree, and with it the replay of everything that is still on the bus.
    pub async fn start(parts: Arc<Parts>) -> Result<Self, StartError> {
        let options = GroupOptions {
            deliveries_max: DELIVERIES_MAX,
            exhausted: Exhausted::HandOver,
        };
        parts
            .store
            .configure(&Topic::ActionDecision.into(), &group()?, options)
            .await?;
        let permits = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
        let (send_fatal, fatal) = watch::channel(None);
        let supervisor = Supervisor {
            parts: parts.clone(),
            permits: permits.clone(),
            fatal: send_fatal,
        };
        let failed = |error: &dyn std::fmt::Display| StartError::Actors(error.to_string());
        let (supervisor, _) = Actor::spawn(None, supervisor, ())
            .await
            .map_err(|error| failed(&error))?;
        let stages = match supervisor.call(Ask::Stages, None).await {
            Ok(ractor::rpc::CallResult::Success(stages)) => stages,
            Ok(_) => return Err(StartError::Actors("the supervisor did not answer".to_owned())),
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

    /// What all stages use.
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

    /// Resolves, with the reason, when the pipeline has given up and the process must stop.
    pub async fn fatal(&self) -> String {
        let mut fatal = self.fatal.clone();
        match fatal.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => "the supervisor is gone".to_owned(),
        }
    }

    /// Puts a decision on the bus. When this returns, it is on disk and will be carried out or refused, whatever dies.
    pub async fn submit(&self, incoming: Incoming) -> Result<ActionId, Failure> {
        incoming.request.check()?;
        let action_id = incoming.request.action_id.clone();
        if let Some(known) = self.known(&incoming)? {
            return match known {
                Answer::Done(_) => Ok(action_id),
                Answer::Refused(failure) => Err(failure),
            };
        }
        self.publish(incoming)
            .await
            .map_err(|error| store_failure(&error))?;
        Ok(action_id)
    }

    /// Has a decision carried out, and waits for its receipt.
    pub async fn exec(&self, incoming: Incoming) -> Answer {
        match self.try_exec(incoming).await {
            Ok(answer) => answer,
            Err(failure) => Answer::Refused(failure),
        }
    }

    async fn try_exec(&self, incoming: Incoming) -> Result<Answer, Failure> {
        incoming.request.check()?;
        if let Some(known) = self.known(&incoming)? {
            return Ok(known);
        }
        let permit = self
            .permits
            .clone()
            .try_acquire_owned()
            .map_err(|_| overloaded())?;
        let mut answer = self.parts.answers.wait_for(&incoming.request.action_id);
        let (lost, mut was_lost) = oneshot::channel();
        let action = self.action(incoming.clone(), lost, permit);
        pass(&self.stages.validator, Validate(action));
        tokio::select! {
            biased;
            answer = &mut answer => return answered(answer),
            lost = &mut was_lost => {
                if let Ok(Lost) = lost {
                    // A worker died before the decision was on disk: from now on the bus looks after it.
                    self.publish(incoming).await.map_err(|error| store_failure(&error))?;
                }
            }
        }
        answered(answer.await)
    }

    /// Waits for the receipt of an action that was submitted before.
    pub async fn wait(&self, action: &ActionId) -> Result<Answer, Failure> {
        let answer = self.parts.answers.wait_for(action);
        if let Some(done) = self.receipt_of(action)? {
            return Ok(Answer::Done(done));
        }
        answered(answer.await)
    }

    /// The receipt of an action, if it has one.
    pub fn receipt_of(&self, action: &ActionId) -> Result<Option<Done>, Failure> {
        let stored = self
            .parts
            .store
            .receipt_of(action)
            .map_err(|error| store_failure(&error))?;
        let receipt = stored
            .map(|stored| stored.parse())
            .transpose()
            .map_err(|error| store_failure(&error))?;
        Ok(receipt.map(|receipt| Done {
            receipt: Arc::new(receipt),
            before: true,
        }))
    }

    /// What is known of this very action: its receipt, or that its id stands for something else. A receipt is shown only
    /// to the principal it was made for.
    fn known(&self, incoming: &Incoming) -> Result<Option<Answer>, Failure> {
        let stored = self
            .parts
            .store
            .receipt_of(&incoming.request.action_id)
            .map_err(|e| store_failure(&e))?;
        let Some(stored) = stored else { return Ok(None) };
        let receipt = stored.parse().map_err(|error| store_failure(&error))?;
        let same = receipt.action_id != incoming.request.action_id
            || stored.action_digest == incoming.request.digest();
        if !same || receipt.principal != incoming.principal {
            let message = "this action id was used before, with other content; choose a new one";
            return Ok(Some(Answer::Refused(Failure::new(
                Code::ActionConflict,
                Phase::Accept,
                message,
            ))));
        }
        Ok(Some(Answer::Done(Done {
            receipt: Arc::new(receipt),
            before: true,
        })))
    }

    fn action(
        &self,
        incoming: Incoming,
        lost: oneshot::Sender<Lost>,
        permit: OwnedSemaphorePermit,
    ) -> Action<Submitted> {
        let Incoming {
            request,
            principal,
            origin,
        } = incoming;
        let trace_id = request.trace_id.clone().unwrap_or_else(TraceId::fresh);
        let tool = self.parts.registry.get(&request.tool_id);
        let ticket = Ticket {
            action_id: request.action_id.clone(),
            digest: request.digest(),
            span: span(&request, tool.map(AsRef::as_ref)),
            trace_id,
            principal,
            origin,
            accepted_at: self.parts.clock.now(),
            accepted: self.parts.clock.monotonic(),
            waited: Duration::ZERO,
            queued: None,
            way: Some(Way::Door { lost }),
            place: Place::new(Some(permit), &self.parts.metrics.in_flight),
            store: self.parts.store.clone(),
        };
        Action::new(ticket, Arc::new(request))
    }

    async fn publish(&self, incoming: Incoming) -> Result<(), StoreError> {
        let Incoming {
            request,
            principal,
            origin,
        } = incoming;
        let action_id = request.action_id.clone();
        let trace_id = request.trace_id.clone().unwrap_or_else(TraceId::fresh);
        let data = DecisionData {
            request,
            principal,
            origin,
            contract: None,
            clock_skew_ms: None,
        };
        let event = Event::decision(data, trace_id, self.parts.clock.now());
        self.parts
            .store
            .publish(&Topic::ActionDecision.into(), vec![sealed(&event, &action_id)])
            .await?;
        Ok(())
    }

    /// Stops: no new decisions, then what is on its way is finished within `grace` or handed back to the bus, then the
    /// tree ends. Says whether everything was finished.
    pub async fn stop(self, grace: Duration) -> bool {
        drop(self.supervisor.cast(Ask::StopIntake));
        let all = u32::try_from(IN_FLIGHT_MAX).unwrap_or(u32::MAX);
        let finished = tokio::time::timeout(grace, self.permits.acquire_many(all))
            .await
            .is_ok();
        self.permits.close();
        drop(self.supervisor.stop_and_wait(None, Some(grace)).await);
        finished
    }
}

fn answered(answer: Result<Answer, oneshot::error::RecvError>) -> Result<Answer, Failure> {
    answer.map_err(|_| {
        Failure::new(
            Code::ShuttingDown,
            Phase::Accept,
            "the runtime is stopping; ask again later",
        )
    })
}

fn overloaded() -> Failure {
    let message = format!("{IN_FLIGHT_MAX} actions are on their way; try again shortly");
    Failure::new(Code::Overloaded, Phase::Accept, message)
}

fn store_failure(error: &StoreError) -> Failure {
    Failure::new(Code::StoreUnavailable, Phase::Accept, error.to_string())
}
