//! One stage of the pipeline: a factory of workers that all do the same with one message at a time.
//!
//! What every stage needs stands here once: how it is started, how long it may take, how a panic is noticed, and how work is
//! passed on, put off or given back. The file of a stage has its own decision and nothing else.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::StoreError;
use effectd_bus::limits::LEASE_TTL_MAX;
use effectd_contracts::{ActionId, Code, Failure, Monotonic, Phase};
use prometheus::IntGauge;
use ractor::factory::queues::DefaultQueue;
use ractor::factory::routing::QueuerRouting;
use ractor::factory::{Factory, FactoryArguments, FactoryRef, Job, Worker, WorkerId, worker_builder};
use ractor::{Actor, ActorCell, ActorProcessingErr, Message, SpawnErr};
use serde::Serialize;

use crate::action::{Action, Ticket};
use crate::leases::Kept;
use crate::messages::Record;
use crate::parts::Parts;

/// Where a stage takes its messages.
pub(crate) type Address<M> = FactoryRef<(), M>;

/// What a stage takes, and what it does with it. Each of its workers has a clone.
pub(crate) trait Stage: Clone + Send + Sync + 'static {
    /// Its name in metrics, traces and the tree.
    const NAME: &'static str;
    type Message: Message + Ticketed;

    fn parts(&self) -> &Arc<Parts>;

    /// The longest time for one message.
    fn limit(&self, _message: &Self::Message) -> Duration {
        self.parts().lease_ttl
    }

    /// Whether a message may take seconds. Then it takes no worker, so that others need not wait.
    fn may_take_long(&self) -> bool {
        false
    }

    /// Works on one message. `this` is the stage's own address, for a message that has to come again.
    fn work(&self, message: Self::Message, this: &Address<Self::Message>) -> impl Future<Output = ()> + Send;
}

pub(crate) trait Ticketed {
    fn ticket(&self) -> &Ticket;
}

impl<S> Ticketed for Action<S> {
    fn ticket(&self) -> &Ticket {
        &self.ticket
    }
}

/// Starts a stage: a factory of workers under one address, with one queue. A worker that panics is replaced under the same
/// address; the action in its hand is dropped, and its delivery comes back.
pub(crate) async fn start<S: Stage>(
    supervisor: ActorCell,
    workers: usize,
    stage: S,
) -> Result<Address<S::Message>, SpawnErr> {
    let factory = Factory::<
        (),
        S::Message,
        (),
        StageWorker<S>,
        QueuerRouting<(), S::Message>,
        DefaultQueue<(), S::Message>,
    >::default();
    let arguments = FactoryArguments::builder()
        .worker_builder(Box::new(worker_builder(move |_| {
            (StageWorker(stage.clone()), ())
        })))
        .queue(DefaultQueue::default())
        .router(QueuerRouting::default())
        .num_initial_workers(workers)
        .build();
    let (factory, _) = Actor::spawn_linked(None, factory, arguments, supervisor).await?;
    Ok(factory)
}

struct StageWorker<S>(S);

impl<S: Stage> Worker for StageWorker<S> {
    type Key = ();
    type Message = S::Message;
    type Arguments = ();
    type State = ();

    async fn pre_start(
        &self,
        _: WorkerId,
        _: &Address<S::Message>,
        (): (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: WorkerId,
        this: &Address<S::Message>,
        job: Job<(), S::Message>,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        if self.0.may_take_long() {
            let (stage, this) = (self.0.clone(), this.clone());
            let mut halt = stage.parts().halt.subscribe();
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    _ = halt.wait_for(|halted| *halted) => {}
                    () = bounded(&stage, job.msg, &this) => {}
                }
            });
        } else {
            bounded(&self.0, job.msg, this).await;
        }
        Ok(())
    }
}

/// Works on one message, at most for the stage's limit. A worker that does not get on drops the action, which comes again as
/// if the worker had died, and is free for the next. (What blocks its whole thread is beyond this: its lease ends by itself.)
async fn bounded<S: Stage>(stage: &S, message: S::Message, this: &Address<S::Message>) {
    let parts = stage.parts();
    let _watch = PanicWatch::new(S::NAME, parts);
    message.ticket().hop(S::NAME);
    let (limit, stalled) = (stage.limit(&message), message.ticket().stalled.clone());
    // In a box: it may be tens of kilobytes, and every layer around it would move all of them.
    let mut work = Box::pin(stage.work(message, this));
    if tokio::time::timeout(limit, &mut work).await.is_err() {
        // Before the work is dropped at the end of this function, and the action with it.
        stalled.mark();
        parts.metrics.stalls.with_label_values(&[S::NAME]).inc();
        tracing::error!(
            stage = S::NAME,
            ?limit,
            "a worker stalled; its action is delivered again"
        );
    }
}

/// Measures how long a worker has an action in hand, and notices a panic: factories replace workers without a word.
struct PanicWatch<'p> {
    stage: &'static str,
    parts: &'p Parts,
    begun: Monotonic,
    busy: IntGauge,
}

impl<'p> PanicWatch<'p> {
    fn new(stage: &'static str, parts: &'p Parts) -> Self {
        let busy = parts.metrics.stage_busy.with_label_values(&[stage]);
        busy.inc();
        Self {
            stage,
            parts,
            begun: parts.clock.monotonic(),
            busy,
        }
    }
}

impl Drop for PanicWatch<'_> {
    fn drop(&mut self) {
        self.busy.dec();
        let took = self.parts.clock.monotonic().since(self.begun);
        let duration = &self.parts.metrics.stage_duration;
        duration
            .with_label_values(&[self.stage])
            .observe(took.as_secs_f64());
        if std::thread::panicking() {
            self.parts.metrics.panics.with_label_values(&[self.stage]).inc();
            tracing::error!(
                stage = self.stage,
                "a worker panicked and is replaced; its action is delivered again"
            );
        }
    }
}

/// Hands work to the next stage. A stage that is gone means that the process is about to stop; the work then drops its
/// ticket, which gives the delivery back.
pub(crate) fn pass<M: Message>(next: &Address<M>, work: M) {
    if next.dispatch((), work).is_err() {
        tracing::warn!("a stage has stopped; the action stays on the bus");
    }
}

/// Keeps the delivery of an action that waits or runs, at most for so long.
pub(crate) fn keep(parts: &Parts, ticket: &Ticket, at_most: Duration) -> Option<Kept> {
    let until = parts.clock.monotonic().plus(at_most);
    ticket.lease().map(|lease| parts.leases.keep(lease, until))
}

/// Has an action wait, without a worker, until another has ended; then it comes again.
pub(crate) fn wait_behind<S: Send + 'static>(
    parts: &Parts,
    mut action: Action<S>,
    other: &ActionId,
    this: &Address<Action<S>>,
) {
    let (kept, again) = (keep(parts, &action.ticket, LEASE_TTL_MAX), this.clone());
    // The other one may stand behind this one, if its first copy was interrupted.
    action.ticket.place.leave_line();
    parts.answers.park_behind(other, move || {
        drop(kept);
        pass(&again, action);
    });
    // It may have ended between the question and the parking.
    if !matches!(parts.store.receipt_of(other), Ok(None)) {
        parts.answers.wake_parked(other);
    }
}

/// Has a message come again when the child of its action is dead.
pub(crate) fn after_child<M: Message + Ticketed>(parts: &Parts, message: M, this: &Address<M>) {
    let (running, again) = (parts.running.clone(), this.clone());
    tokio::spawn(async move {
        running.dead(&message.ticket().action_id).await;
        pass(&again, message);
    });
}

/// Puts an action off: an asker at the door is told when to come back; a delivery from the bus comes back by itself.
pub(crate) fn put_off(parts: &Parts, mut ticket: Ticket, failure: &Failure, pause: Duration) {
    tracing::info!(parent: &ticket.span, trace_id = %ticket.trace_id, code = %failure.code, "put off");
    if !ticket.refuse_at_door(failure)
        && let Some(lease) = ticket.lease()
    {
        // Not a failed delivery, only a later one.
        drop(parts.store.defer(lease, pause));
        ticket.settled();
    }
}

/// The Store could not answer. A decision on the bus stays there; an asker at the door is told.
pub(crate) fn store_failed<S>(
    recorder: &Address<Record>,
    action: Action<S>,
    phase: Phase,
    error: &StoreError,
) {
    tracing::warn!(parent: &action.ticket.span, %error, trace_id = %action.ticket.trace_id, ?phase, "the store failed");
    if action.ticket.lease().is_none() {
        let message = format!("{error}; ask again with the same action id");
        let failure = Failure::new(Code::StoreUnavailable, phase, message);
        pass(recorder, Record::unrecorded(action, failure));
    }
}

/// Room that is made for what goes to the Store before it is written: most of it is shorter.
const BODY_BYTES_AT_ONCE: usize = 1 << 10;

/// Plain data with text keys, as the Store takes it.
pub(crate) fn body(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BODY_BYTES_AT_ONCE);
    // For such data serde_json has no failure.
    match serde_json::to_writer(&mut bytes, value) {
        Ok(()) => bytes,
        Err(_) => Vec::new(),
    }
}
