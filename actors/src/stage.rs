//! A stage of the pipeline: a factory of workers, each of which works on one message at a time.
//!
//! What stages have in common is here: how a stage starts, how long a message may take, how a panic is noticed, and how an action
//! is passed on, deferred or given back.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::StoreError;
use effectd_bus::limits::LEASE_TTL_MAX;
use effectd_contracts::{ActionId, Clock, Failure, Monotonic, Phase};
use parking_lot::RwLock;
use prometheus::IntGauge;
use ractor::factory::queues::DefaultQueue;
use ractor::factory::routing::QueuerRouting;
use ractor::factory::{Factory, FactoryArguments, FactoryRef, Job, Worker, WorkerId, worker_builder};
use ractor::{Actor, ActorCell, ActorProcessingErr, Message, SpawnErr};
use tracing::Instrument;

use crate::action::{Action, Ticket};
use crate::messages::{Record, Ticketed};
use crate::metrics::Metrics;
use crate::services::leases::{Extended, Leases};
use crate::services::{Children, InFlight, Services};

/// The address of a stage. It stays the same when the stage is restarted.
pub(crate) struct Address<M: Message>(Arc<RwLock<Option<FactoryRef<(), M>>>>);

impl<M: Message> Address<M> {
    /// An address without a factory yet.
    pub(crate) fn new() -> Self {
        Self(Arc::new(RwLock::new(None)))
    }

    /// The factory that runs at this address now.
    pub(crate) fn factory(&self) -> Option<FactoryRef<(), M>> {
        self.0.read().clone()
    }
}

impl<M: Message> Clone for Address<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M: Message> std::fmt::Debug for Address<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Address")
    }
}

/// What a stage does with a message. Each worker has a clone.
pub(crate) trait Stage: Clone + Send + Sync + 'static {
    /// The name in metrics, traces and the tree.
    const NAME: &'static str;
    type Message: Message + Ticketed;

    fn services(&self) -> &Arc<Services>;

    fn limit(&self, _message: &Self::Message) -> Duration {
        self.services().in_flight.leases.ttl
    }

    /// Whether a message may take seconds. Then a task of its own works on it, and no worker waits.
    fn may_take_long(&self, _message: &Self::Message) -> bool {
        false
    }

    /// `this` is the stage's own address, to send a message to it again.
    fn work(&self, message: Self::Message, this: &Address<Self::Message>) -> impl Future<Output = ()> + Send;
}

/// Starts or restarts a stage: a factory of workers with one queue. The factory replaces a worker that panics; the worker's
/// action is dropped, and its delivery comes again. If the factory itself dies, all its actions are delivered again, and none
/// counts as a failed delivery.
pub(crate) async fn start<S: Stage>(
    supervisor: ActorCell,
    workers: usize,
    stage: S,
    address: Address<S::Message>,
) -> Result<ActorCell, SpawnErr> {
    let factory = Factory::<
        (),
        S::Message,
        (),
        StageWorker<S>,
        QueuerRouting<(), S::Message>,
        DefaultQueue<(), S::Message>,
    >::default();
    let this = address.clone();
    let arguments = FactoryArguments::builder()
        .worker_builder(Box::new(worker_builder(move |_| (StageWorker(stage.clone(), this.clone()), ()))))
        .queue(DefaultQueue::default())
        .router(QueuerRouting::default())
        .num_initial_workers(workers)
        .build();
    let (factory, _) = Actor::spawn_linked(None, factory, arguments, supervisor).await?;
    let cell = factory.get_cell();
    *address.0.write() = Some(factory);
    Ok(cell)
}

struct StageWorker<S: Stage>(S, Address<S::Message>);

impl<S: Stage> Worker for StageWorker<S> {
    type Key = ();
    type Message = S::Message;
    type Arguments = ();
    type State = ();

    async fn pre_start(
        &self,
        _: WorkerId,
        _: &FactoryRef<(), S::Message>,
        (): (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: WorkerId,
        _: &FactoryRef<(), S::Message>,
        job: Job<(), S::Message>,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        // Every line that is logged during the work, also that of a panic, is in the action's span.
        let span = job.msg.ticket().span.clone();
        if self.0.may_take_long(&job.msg) {
            let (stage, this) = (self.0.clone(), self.1.clone());
            let mut halt = stage.services().children.halt.subscribe();
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    _ = halt.wait_for(|halted| *halted) => {}
                    () = bounded(&stage, job.msg, &this).instrument(span) => {}
                }
            });
        } else {
            bounded(&self.0, job.msg, &self.1).instrument(span).await;
        }
        Ok(())
    }
}

/// Works on one message, at most for the stage's limit. After that the action is dropped and delivered again, as if the worker
/// had died. (Work that blocks its thread cannot be timed out; its lease ends by itself.)
async fn bounded<S: Stage>(stage: &S, message: S::Message, this: &Address<S::Message>) {
    let services = stage.services();
    let _watch = PanicWatch::new(S::NAME, &*services.clock, &services.metrics);
    message.ticket().hop(S::NAME);
    let (limit, stalled) = (stage.limit(&message), message.ticket().stalled.clone());
    // Boxed: the future may be tens of kilobytes, and every layer around it would move it.
    let mut work = Box::pin(stage.work(message, this));
    if tokio::time::timeout(limit, &mut work).await.is_err() {
        // Marked before this function ends, which drops the work and its action.
        stalled.mark();
        services.metrics.stalls.with_label_values(&[S::NAME]).inc();
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        tracing::error!(stage = S::NAME, limit_ms, "a worker stalled");
    }
}

/// Measures the work on a message, and counts a panic: factories replace workers silently.
struct PanicWatch<'p> {
    stage: &'static str,
    clock: &'p dyn Clock,
    metrics: &'p Metrics,
    begun: Monotonic,
    busy: IntGauge,
}

impl<'p> PanicWatch<'p> {
    fn new(stage: &'static str, clock: &'p dyn Clock, metrics: &'p Metrics) -> Self {
        let busy = metrics.stage_busy.with_label_values(&[stage]);
        busy.inc();
        Self { stage, clock, metrics, begun: clock.monotonic(), busy }
    }
}

impl Drop for PanicWatch<'_> {
    fn drop(&mut self) {
        self.busy.dec();
        let took = self.clock.monotonic().since(self.begun);
        self.metrics.stage_duration.with_label_values(&[self.stage]).observe(took.as_secs_f64());
        if std::thread::panicking() {
            self.metrics.panics.with_label_values(&[self.stage]).inc();
            tracing::error!(stage = self.stage, "a worker panicked and is replaced");
        }
    }
}

/// Passes a message to the next stage. If that stage is down, the ticket is dropped: a delivery comes again, and the decision of
/// a waiting caller is published.
pub(crate) fn pass<M: Message + Ticketed>(next: &Address<M>, work: M) {
    let span = work.ticket().span.clone();
    if next.factory().is_none_or(|factory| factory.dispatch((), work).is_err()) {
        tracing::warn!(parent: &span, "a stage is down; its action is delivered again");
    }
}

/// Extends the delivery of an action that waits or runs, for `at_most` this long.
pub(crate) fn extend_lease(leases: &Leases, ticket: &Ticket, at_most: Duration) -> Option<Extended> {
    ticket.lease().map(|lease| leases.extend(lease, at_most))
}

/// Parks an action, without a worker, until another action has ended; then the stage gets it again.
pub(crate) fn wait_behind<S: Send + 'static>(
    in_flight: &InFlight,
    mut action: Action<S>,
    other: &ActionId,
    this: &Address<Action<S>>,
) {
    let (extended, again) = (extend_lease(&in_flight.leases, &action.ticket, LEASE_TTL_MAX), this.clone());
    // If the other action was interrupted, its next copy may be queued behind this one.
    action.ticket.slot.leave_queue();
    in_flight.answers.park_behind(other, move || {
        drop(extended);
        pass(&again, action);
    });
    // The other action may have ended before this one was parked.
    if !matches!(in_flight.leases.store.receipt_of(other), Ok(None)) {
        in_flight.answers.wake_parked(other);
    }
}

/// Sends a message to the stage again when the child of its action is dead.
pub(crate) fn after_child<M: Message + Ticketed>(children: &Children, message: M, this: &Address<M>) {
    let (running, again) = (children.running.clone(), this.clone());
    tokio::spawn(async move {
        running.dead(&message.ticket().action_id).await;
        pass(&again, message);
    });
}

/// Puts an action off: a waiting caller gets the failure and its `retry_after`; a delivery from the bus is deferred.
pub(crate) fn put_off(mut ticket: Ticket, failure: &Failure, pause: Duration) {
    tracing::debug!(parent: &ticket.span, code = %failure.code, "put off");
    if !ticket.refuse_caller(failure) {
        ticket.defer(pause);
    }
}

/// Handles a failure of the Store: a decision on the bus stays there; a waiting caller gets a failure.
pub(crate) fn store_failed<S>(
    recorder: &Address<Record>,
    action: Action<S>,
    phase: Phase,
    error: &StoreError,
) {
    tracing::warn!(parent: &action.ticket.span, %error, phase = phase.as_str(), "the store failed");
    if action.ticket.lease().is_none() {
        pass(recorder, Record::unrecorded(action, error.failure(phase)));
    }
}
