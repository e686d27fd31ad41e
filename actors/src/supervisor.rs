//! The supervisor of all actors. A factory replaces its own workers. The supervisor restarts an actor that dies, such as the
//! factory of a stage; if one keeps dying, the process stops, and the next start resumes from disk.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::Monotonic;
use ractor::rpc::CallResult;
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, Message, SpawnErr, SupervisionEvent};
use serde::Serialize;
use tokio::sync::{Semaphore, watch};

use crate::action::{Action, Asked, Gated, Submitted, Validated};
use crate::effects::active_calls::ActiveCalls;
use crate::limits::{COMPUTING_WORKERS, HOLD_WORKERS, RESTART_WINDOW, RESTARTS_MAX, WAITING_WORKERS};
use crate::messages::{Execute, Record};
use crate::operator::review::ReviewTally;
use crate::services::Services;
use crate::stage::{Address, Stage, start};
use crate::stages::approval::ApprovalStage;
use crate::stages::executor::Executor;
use crate::stages::gate::Gate;
use crate::stages::idempotency::Idempotency;
use crate::stages::intake::Intake;
use crate::stages::recorder::Recorder;
use crate::stages::sweeper::Sweeper;
use crate::stages::validator::Validator;

pub(crate) struct Supervisor {
    pub(crate) services: Arc<Services>,
    pub(crate) permits: Arc<Semaphore>,
    /// Room for decisions from the bus that wait for a slot.
    pub(crate) ahead: Arc<Semaphore>,
    pub(crate) fatal: watch::Sender<Option<String>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Stages {
    pub(crate) validator: Address<Action<Submitted>>,
    gate: Address<Action<Validated>>,
    approval: Address<Action<Asked>>,
    idempotency: Address<Action<Gated>>,
    executor: Address<Execute>,
    recorder: Address<Record>,
}

impl Stages {
    fn new() -> Self {
        Self {
            validator: Address::new(),
            gate: Address::new(),
            approval: Address::new(),
            idempotency: Address::new(),
            executor: Address::new(),
            recorder: Address::new(),
        }
    }

    /// How many actions wait for a worker, by stage. A stage that does not answer in time is left out.
    pub(crate) async fn queues(&self) -> Vec<(&'static str, usize)> {
        async fn depth<M: Message>(stage: &Address<M>) -> Option<usize> {
            match stage.factory()?.queue_depth(Some(QUEUE_ASK_MAX)).await {
                Ok(CallResult::Success(depth)) => Some(depth),
                Ok(_) | Err(_) => None,
            }
        }
        let depths = tokio::join!(
            depth(&self.validator),
            depth(&self.gate),
            depth(&self.approval),
            depth(&self.idempotency),
            depth(&self.executor),
            depth(&self.recorder),
        );
        let depths = [depths.0, depths.1, depths.2, depths.3, depths.4, depths.5];
        let named = STAGES.into_iter().zip(depths);
        named.filter_map(|(stage, depth)| Some((stage, depth?))).collect()
    }
}

/// How long a stage may take to say how many actions wait for it.
const QUEUE_ASK_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) enum Ask {
    Stages(ractor::RpcReplyPort<Stages>),
    Tree(ractor::RpcReplyPort<Vec<TreeNode>>),
    StopIntake,
    /// Kills an actor of this name, for tests.
    #[cfg(feature = "failpoints")]
    Kill(String),
}

/// An actor under the supervisor, as ractor knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TreeNode {
    pub name: &'static str,
    /// Its own children: the workers of a stage; 0 for a plain actor.
    pub workers: usize,
    /// How often the actor was restarted within [`RESTART_WINDOW`].
    pub restarts: usize,
}

type Starting = Pin<Box<dyn Future<Output = Result<ActorCell, SpawnErr>> + Send>>;

/// An actor under the supervisor, and how to start it.
struct Child {
    name: &'static str,
    start: Box<dyn Fn(ActorCell) -> Starting + Send + Sync>,
    id: Option<ActorId>,
    restarts: Vec<Monotonic>,
}

impl Child {
    fn new(name: &'static str, start: impl Fn(ActorCell) -> Starting + Send + Sync + 'static) -> Self {
        Self { name, start: Box::new(start), id: None, restarts: Vec::new() }
    }

    fn stage<S: Stage>(workers: usize, stage: S, address: &Address<S::Message>) -> Self {
        let address = address.clone();
        Self::new(S::NAME, move |supervisor| {
            Box::pin(start(supervisor, workers, stage.clone(), address.clone()))
        })
    }

    fn plain<A: Actor<Arguments = ()> + Clone + Sync>(name: &'static str, actor: A) -> Self {
        Self::new(name, move |supervisor| {
            let actor = actor.clone();
            Box::pin(async move {
                let (actor, _) = Actor::spawn_linked(None, actor, (), supervisor).await?;
                Ok(actor.get_cell())
            })
        })
    }

    async fn start(&mut self, supervisor: &ActorRef<Ask>) -> Result<(), SpawnErr> {
        self.id = Some((self.start)(supervisor.get_cell()).await?.get_id());
        Ok(())
    }

    /// Counts a restart. Returns how many there were within the window.
    fn restarted(&mut self, now: Monotonic) -> usize {
        self.restarts.retain(|then| now.since(*then) <= RESTART_WINDOW);
        self.restarts.push(now);
        self.restarts.len()
    }

    fn restarts_within_window(&self, now: Monotonic) -> usize {
        let recent = |then: &&Monotonic| now.since(**then) <= RESTART_WINDOW;
        self.restarts.iter().filter(recent).count()
    }
}

pub(crate) struct State {
    stages: Stages,
    /// The stages in the order in which an action passes them, then the plain actors.
    children: Vec<Child>,
    stopping: bool,
}

/// The stages, in the order in which an action passes them.
pub const STAGES: [&str; 6] =
    [Validator::NAME, Gate::NAME, ApprovalStage::NAME, Idempotency::NAME, Executor::NAME, Recorder::NAME];
const INTAKE: &str = "intake";
const SWEEPER: &str = "sweeper";

impl Actor for Supervisor {
    type Msg = Ask;
    type State = State;
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<Ask>, (): ()) -> Result<State, ActorProcessingErr> {
        let stages = Stages::new();
        let mut children = self.children(&stages);
        // Starts each stage before the stages that send to it.
        let (stages_first, plain) = children.split_at_mut(STAGES.len());
        for child in stages_first.iter_mut().rev().chain(plain) {
            child.start(&myself).await?;
        }
        Ok(State { stages, children, stopping: false })
    }

    async fn handle(
        &self,
        myself: ActorRef<Ask>,
        ask: Ask,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match ask {
            Ask::Stages(reply) => drop(reply.send(state.stages.clone())),
            Ask::Tree(reply) => {
                let now = self.services.clock.monotonic();
                drop(reply.send(tree(&myself, &state.children, now)));
            }
            Ask::StopIntake => {
                state.stopping = true;
                for cell in named(&myself, &state.children, INTAKE) {
                    cell.stop(None);
                }
            }
            #[cfg(feature = "failpoints")]
            Ask::Kill(name) => named(&myself, &state.children, &name).for_each(|cell| cell.kill()),
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
    fn children(&self, stages: &Stages) -> Vec<Child> {
        let services = || self.services.clone();
        let waiting = self.services.settings.in_flight_max.max(WAITING_WORKERS);
        let Stages { validator, gate, approval, idempotency, executor, recorder } = stages.clone();
        vec![
            Child::stage(
                COMPUTING_WORKERS,
                Validator { services: services(), gate: gate.clone(), recorder: recorder.clone() },
                &validator,
            ),
            Child::stage(
                COMPUTING_WORKERS,
                Gate {
                    services: services(),
                    review: Arc::new(ReviewTally::default()),
                    approval: approval.clone(),
                    idempotency: idempotency.clone(),
                    recorder: recorder.clone(),
                },
                &gate,
            ),
            Child::stage(
                HOLD_WORKERS,
                ApprovalStage {
                    services: services(),
                    idempotency: idempotency.clone(),
                    recorder: recorder.clone(),
                },
                &approval,
            ),
            Child::stage(
                waiting,
                Idempotency { services: services(), executor: executor.clone(), recorder: recorder.clone() },
                &idempotency,
            ),
            Child::stage(
                waiting,
                Executor {
                    services: services(),
                    calls: Arc::new(ActiveCalls::default()),
                    validator: validator.clone(),
                    recorder: recorder.clone(),
                },
                &executor,
            ),
            Child::stage(waiting, Recorder { services: services() }, &recorder),
            Child::plain(
                INTAKE,
                Intake {
                    services: services(),
                    permits: self.permits.clone(),
                    ahead: self.ahead.clone(),
                    validator,
                    recorder,
                },
            ),
            Child::plain(SWEEPER, Sweeper { services: services() }),
        ]
    }

    /// Restarts a dead actor. The error says why the process must stop instead.
    async fn restart(
        &self,
        myself: &ActorRef<Ask>,
        state: &mut State,
        who: ActorId,
        why: &str,
    ) -> Result<(), String> {
        let Some(child) = state.children.iter_mut().find(|child| child.id == Some(who)) else {
            return Ok(());
        };
        let times = child.restarted(self.services.clock.monotonic());
        if times > RESTARTS_MAX {
            let seconds = RESTART_WINDOW.as_secs();
            return Err(format!("{} died {times} times within {seconds} s: {why}", child.name));
        }
        tracing::error!(actor = child.name, why, "restarted");
        let started = child.start(myself).await;
        started.map_err(|error| format!("{} could not be restarted: {error}", child.name))
    }
}

/// The actors under the supervisor, as ractor lists them, in the order in which an action passes them.
fn tree(myself: &ActorRef<Ask>, children: &[Child], now: Monotonic) -> Vec<TreeNode> {
    let nodes = children.iter().flat_map(|child| {
        let cells = named(myself, children, child.name);
        cells.map(|cell| TreeNode {
            name: child.name,
            workers: cell.get_children().len(),
            restarts: child.restarts_within_window(now),
        })
    });
    nodes.collect()
}

fn named(myself: &ActorRef<Ask>, children: &[Child], name: &str) -> impl Iterator<Item = ActorCell> + use<> {
    let child = children.iter().find(|child| child.name == name);
    let id = child.and_then(|child| child.id);
    myself.get_children().into_iter().filter(move |cell| Some(cell.get_id()) == id)
}
