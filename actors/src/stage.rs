//! What all stages share: how they are started, how they pass work on, and how a dying worker is noticed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::Monotonic;
use prometheus::IntGauge;
use ractor::factory::routing::QueuerRouting;
use ractor::factory::{Factory, FactoryArguments, FactoryRef, Worker, worker_builder};
use ractor::{Actor, ActorCell, Message, SpawnErr};
use serde::Serialize;

use crate::action::Stalled;
use crate::parts::Parts;
use crate::rounds::{OfSubject, Rounds};

/// Starts a stage: a factory of workers under one address, for which subjects take turns while all are busy. A worker that
/// panics is replaced under the same address; the job in its hand is lost in memory on purpose, since its delivery comes back.
pub(crate) async fn start<W, M>(
    supervisor: ActorCell,
    workers: usize,
    build: impl Fn() -> W + Send + Sync + 'static,
) -> Result<FactoryRef<(), M>, SpawnErr>
where
    W: Worker<Key = (), Message = M, Arguments = ()>,
    M: Message + OfSubject,
{
    let factory = Factory::<(), M, (), W, QueuerRouting<(), M>, Rounds<M>>::default();
    let arguments = FactoryArguments::builder()
        .worker_builder(Box::new(worker_builder(move |_| (build(), ()))))
        .queue(Rounds::default())
        .router(QueuerRouting::default())
        .num_initial_workers(workers)
        .build();
    let (factory, _) = Actor::spawn_linked(None, factory, arguments, supervisor).await?;
    Ok(factory)
}

/// Hands work to the next stage. A stage that is gone means that the process is about to stop; the work then drops its
/// ticket, which gives the delivery back.
pub(crate) fn pass<M: Message>(next: &FactoryRef<(), M>, work: M) {
    if next.dispatch((), work).is_err() {
        tracing::warn!("a stage has stopped; the action stays on the bus");
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

/// Works on one action, at most for `limit`. A worker that does not get on drops the action, which comes again as if the
/// worker had died, and is free for the next. (What blocks its whole thread is beyond this: its lease ends by itself.)
///
/// The work comes in a box: it may be tens of kilobytes, of which each worker would keep room otherwise while it has none, and
/// every layer around it would move all of them.
pub(crate) async fn bounded(
    parts: &Parts,
    stage: &'static str,
    limit: Duration,
    stalled: &Stalled,
    mut work: Pin<Box<impl Future<Output = ()>>>,
) {
    if tokio::time::timeout(limit, &mut work).await.is_err() {
        // Before the work is dropped at the end of this function, and the action with it.
        stalled.mark();
        parts.metrics.stalls.with_label_values(&[stage]).inc();
        tracing::error!(stage, ?limit, "a worker stalled; its action is delivered again");
    }
}

/// Looks on while a worker has an action in hand: how long, and whether it panics, since factories replace workers without a
/// word.
pub(crate) struct PanicWatch {
    stage: &'static str,
    parts: Arc<Parts>,
    begun: Monotonic,
    busy: IntGauge,
}

impl PanicWatch {
    pub(crate) fn new(stage: &'static str, parts: &Arc<Parts>) -> Self {
        let busy = parts.metrics.stage_busy.with_label_values(&[stage]);
        busy.inc();
        Self {
            stage,
            parts: parts.clone(),
            begun: parts.clock.monotonic(),
            busy,
        }
    }
}

impl Drop for PanicWatch {
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
