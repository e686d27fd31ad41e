//! Watches over the tree. Workers are replaced by their factories; the two plain actors are restarted here, within
//! limits; a factory that dies, or an actor that keeps dying, stops the process, and start-up replays what is on disk.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::Monotonic;
use ractor::rpc::CallResult;
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, Message, SpawnErr, SupervisionEvent};
use tokio::sync::{Semaphore, watch};

use crate::action::{Action, Asked, Gated, Submitted, Validated};
use crate::executor::Executor;
use crate::gate::Gate;
use crate::held::stage::Holder;
use crate::idempotency::Idempotency;
use crate::intake::Intake;
use crate::limits::{COMPUTING_WORKERS, HOLD_WORKERS, RESTART_WINDOW, RESTARTS_MAX, WAITING_WORKERS};
use crate::messages::{Execute, Record};
use crate::parts::Parts;
use crate::recorder::Recorder;
use crate::stage::{Address, Stage, start};
use crate::sweeper::Sweeper;
use crate::validator::Validator;

pub(crate) struct Supervisor {
    pub(crate) parts: Arc<Parts>,
    pub(crate) permits: Arc<Semaphore>,
    /// Room for decisions from the bus that wait for their turn.
    pub(crate) ahead: Arc<Semaphore>,
    pub(crate) fatal: watch::Sender<Option<String>>,
}

/// The addresses that work comes in by.
#[derive(Debug, Clone)]
pub(crate) struct Stages {
    pub(crate) validator: Address<Action<Submitted>>,
    gate: Address<Action<Validated>>,
    holder: Address<Action<Asked>>,
    idempotency: Address<Action<Gated>>,
    executor: Address<Execute>,
    recorder: Address<Record>,
}

impl Stages {
    /// How many actions wait for a worker, by stage. One that does not say so in time is left out.
    pub(crate) async fn queues(&self) -> Vec<(&'static str, usize)> {
        async fn depth<M: Message>(stage: &Address<M>) -> Option<usize> {
            match stage.queue_depth(Some(QUEUE_ASK_MAX)).await {
                Ok(CallResult::Success(depth)) => Some(depth),
                Ok(_) | Err(_) => None,
            }
        }
        let depths = tokio::join!(
            depth(&self.validator),
            depth(&self.gate),
            depth(&self.holder),
            depth(&self.idempotency),
            depth(&self.executor),
            depth(&self.recorder),
        );
        let depths = [depths.0, depths.1, depths.2, depths.3, depths.4, depths.5];
        let named = STAGES.into_iter().zip(depths);
        named.filter_map(|(stage, depth)| Some((stage, depth?))).collect()
    }
}

/// How long a stage is asked how much waits for it.
const QUEUE_ASK_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) enum Ask {
    Stages(ractor::RpcReplyPort<Stages>),
    Tree(ractor::RpcReplyPort<Vec<&'static str>>),
    StopIntake,
}

/// A plain actor that is restarted.
struct Restarted {
    name: &'static str,
    cell: Option<ActorCell>,
    restarts: VecDeque<Monotonic>,
}

pub(crate) struct State {
    stages: Stages,
    plain: [Restarted; 2],
    stopping: bool,
}

/// The stages, in the order in which an action passes them.
pub const STAGES: [&str; 6] = [
    Validator::NAME,
    Gate::NAME,
    Holder::NAME,
    Idempotency::NAME,
    Executor::NAME,
    Recorder::NAME,
];
const INTAKE: &str = "intake";
const SWEEPER: &str = "sweeper";

impl Actor for Supervisor {
    type Msg = Ask;
    type State = State;
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<Ask>, (): ()) -> Result<State, ActorProcessingErr> {
        let stages = self.start_stages(&myself).await?;
        let restarted = |name, cell| Restarted {
            name,
            cell: Some(cell),
            restarts: VecDeque::new(),
        };
        let intake = restarted(INTAKE, self.start_plain(INTAKE, &stages, &myself).await?);
        let sweeper = restarted(SWEEPER, self.start_plain(SWEEPER, &stages, &myself).await?);
        Ok(State {
            stages,
            plain: [intake, sweeper],
            stopping: false,
        })
    }

    async fn handle(&self, _: ActorRef<Ask>, ask: Ask, state: &mut State) -> Result<(), ActorProcessingErr> {
        match ask {
            Ask::Stages(reply) => drop(reply.send(state.stages.clone())),
            Ask::Tree(reply) => {
                let plain = state
                    .plain
                    .iter()
                    .filter(|actor| actor.cell.is_some())
                    .map(|actor| actor.name);
                drop(reply.send(STAGES.into_iter().chain(plain).collect()));
            }
            Ask::StopIntake => {
                state.stopping = true;
                for cell in state
                    .plain
                    .iter()
                    .filter(|actor| actor.name == INTAKE)
                    .filter_map(|a| a.cell.as_ref())
                {
                    cell.stop(None);
                }
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Ask>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let (who, why) = match event {
            SupervisionEvent::ActorFailed(cell, error) => (cell.get_id(), error.to_string()),
            SupervisionEvent::ActorTerminated(cell, _, reason) => {
                (cell.get_id(), reason.unwrap_or_else(|| "it stopped".to_owned()))
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => return Ok(()),
        };
        if state.stopping {
            return Ok(());
        }
        match self.restart(&myself, state, who, &why).await {
            Ok(()) => {}
            Err(reason) => {
                tracing::error!(reason, "the pipeline stops");
                self.fatal.send_replace(Some(reason));
                myself.stop(None);
            }
        }
        Ok(())
    }
}

impl Supervisor {
    async fn start_stages(&self, myself: &ActorRef<Ask>) -> Result<Stages, SpawnErr> {
        let (parts, cell) = (&self.parts, || myself.get_cell());
        let waiting = parts.settings.in_flight_max.max(WAITING_WORKERS);
        let recorder = Recorder { parts: parts.clone() };
        let recorder = start(cell(), waiting, recorder).await?;
        let executor = Executor {
            parts: parts.clone(),
            recorder: recorder.clone(),
        };
        let executor = start(cell(), waiting, executor).await?;
        let idempotency = Idempotency {
            parts: parts.clone(),
            executor: executor.clone(),
            recorder: recorder.clone(),
        };
        let idempotency = start(cell(), waiting, idempotency).await?;
        let holder = Holder {
            parts: parts.clone(),
            idempotency: idempotency.clone(),
            recorder: recorder.clone(),
        };
        let holder = start(cell(), HOLD_WORKERS, holder).await?;
        let gate = Gate {
            parts: parts.clone(),
            holder: holder.clone(),
            idempotency: idempotency.clone(),
            recorder: recorder.clone(),
        };
        let gate = start(cell(), COMPUTING_WORKERS, gate).await?;
        let validator = Validator {
            parts: parts.clone(),
            gate: gate.clone(),
            recorder: recorder.clone(),
        };
        let validator = start(cell(), COMPUTING_WORKERS, validator).await?;
        Ok(Stages {
            validator,
            gate,
            holder,
            idempotency,
            executor,
            recorder,
        })
    }

    async fn start_plain(
        &self,
        name: &'static str,
        stages: &Stages,
        myself: &ActorRef<Ask>,
    ) -> Result<ActorCell, SpawnErr> {
        if name == INTAKE {
            let intake = Intake {
                parts: self.parts.clone(),
                permits: self.permits.clone(),
                ahead: self.ahead.clone(),
                validator: stages.validator.clone(),
                recorder: stages.recorder.clone(),
            };
            let (intake, _) = Actor::spawn_linked(None, intake, (), myself.get_cell()).await?;
            return Ok(intake.get_cell());
        }
        let sweeper = Sweeper {
            parts: self.parts.clone(),
        };
        let (sweeper, _) = Actor::spawn_linked(None, sweeper, (), myself.get_cell()).await?;
        Ok(sweeper.get_cell())
    }

    /// Restarts a plain actor. The error says why the process must stop instead.
    async fn restart(
        &self,
        myself: &ActorRef<Ask>,
        state: &mut State,
        who: ActorId,
        why: &str,
    ) -> Result<(), String> {
        let State { stages, plain, .. } = state;
        let dead = plain
            .iter_mut()
            .find(|actor| actor.cell.as_ref().is_some_and(|cell| cell.get_id() == who));
        let Some(actor) = dead else {
            return Err(format!("a stage died: {why}"));
        };
        actor.cell = None;
        let now = self.parts.clock.monotonic();
        actor.restarts.push_back(now);
        while actor
            .restarts
            .front()
            .is_some_and(|then| now.since(*then) > RESTART_WINDOW)
        {
            actor.restarts.pop_front();
        }
        if actor.restarts.len() > RESTARTS_MAX {
            return Err(format!(
                "{} died {} times within {RESTART_WINDOW:?}: {why}",
                actor.name,
                RESTARTS_MAX + 1
            ));
        }
        tracing::error!(actor = actor.name, why, "restarted");
        let cell = self.start_plain(actor.name, stages, myself).await;
        actor.cell = Some(cell.map_err(|error| format!("{} does not start again: {error}", actor.name))?);
        Ok(())
    }
}
