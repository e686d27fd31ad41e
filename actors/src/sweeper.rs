//! Tidies up: signs the head of the log, extends the deliveries of long work, answers callers whose answer was lost, forgets
//! callers that have gone, ends what nobody decided about in time, destroys keys of ended epochs, lets go of what is kept no
//! longer.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Retained, StoreError};
use effectd_contracts::Monotonic;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::task::{JoinError, JoinHandle};

use crate::failpoint::hit_idle;
use crate::held::{entries, grants, tidy};
use crate::limits::{HELD_PAST_KEPT, RETAIN_EVERY};
use crate::log;
use crate::parts::Parts;
use crate::retention;

/// There is one, restarted when it dies.
pub(crate) struct Sweeper {
    pub(crate) parts: Arc<Parts>,
}

/// What it is told by its own timers.
#[derive(Debug)]
pub(crate) enum Sweep {
    /// Extend the deliveries of long work, and look for answers that nobody told.
    Leases,
    Held,
    /// Everything else, and that.
    Rest,
}

/// When something was let go of last, and the turn that is being taken.
#[derive(Default)]
pub(crate) struct Retaining {
    last: Option<Monotonic>,
    turn: Option<JoinHandle<Result<Retained, StoreError>>>,
}

/// How long an epoch's key is kept after the epoch ended, for actions that are still on their way.
const EPOCH_GRACE: Duration = Duration::from_secs(60);

impl Actor for Sweeper {
    type Msg = Sweep;
    type State = Retaining;
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<Sweep>, (): ()) -> Result<Self::State, ActorProcessingErr> {
        // What the last process left undone waits for nobody.
        drop(myself.cast(Sweep::Held));
        // Timers of a stopped actor end by themselves.
        drop(myself.send_interval(self.parts.lease_ttl / 3, || Sweep::Leases));
        drop(myself.send_interval(self.parts.settings.sweep_every, || Sweep::Rest));
        Ok(Retaining::default())
    }

    async fn handle(
        &self,
        _: ActorRef<Sweep>,
        sweep: Sweep,
        retaining: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match sweep {
            Sweep::Leases => {
                hit_idle("sweeper.begin").await;
                let parts = &self.parts;
                parts
                    .leases
                    .extend_all(&*parts.store, &*parts.clock, parts.lease_ttl);
                parts.answers.catch_up(&*parts.store);
            }
            Sweep::Held => self.held().await,
            Sweep::Rest => {
                self.rest().await;
                self.retain(retaining).await;
            }
        }
        Ok(())
    }
}

impl Sweeper {
    /// Ends what nobody decided in time, and finishes what a dead process left undone.
    async fn held(&self) {
        let parts = &self.parts;
        match tidy::all(parts).await {
            Ok(open) => tracing::debug!(open, "looked at what waits for people"),
            Err(error) => tracing::warn!(%error, "what waits for people could not be looked at"),
        }
        match grants::sweep(parts).await {
            Ok(0) => {}
            Ok(gone) => tracing::info!(gone, "grants that are over were removed"),
            Err(error) => tracing::warn!(%error, "grants that are over could not be removed"),
        }
        let now = parts.clock.now();
        let before = now.checked_sub(HELD_PAST_KEPT).unwrap_or(now);
        if let Err(error) = entries::sweep_past(&*parts.store, before).await {
            tracing::warn!(%error, "decisions of long ago could not be forgotten");
        }
    }

    /// Takes a turn at letting go of what is kept no longer, now and then, and further ones while there is more. Nobody waits
    /// for it here: it may take longer than a lease.
    async fn retain(&self, retaining: &mut Retaining) {
        let now = self.parts.clock.monotonic();
        if let Some(turn) = retaining.turn.take_if(|turn| turn.is_finished()) {
            Self::retained(turn.await, &mut retaining.last, now);
        }
        let is_due = retaining.last.is_none_or(|last| now.since(last) >= RETAIN_EVERY);
        if retaining.turn.is_none() && is_due {
            let parts = self.parts.clone();
            retaining.turn = Some(tokio::spawn(async move { retention::let_go(&parts).await }));
        }
    }

    fn retained(
        turn: Result<Result<Retained, StoreError>, JoinError>,
        last: &mut Option<Monotonic>,
        now: Monotonic,
    ) {
        match turn {
            Ok(Ok(told)) => {
                tracing::debug!(?told, "let go of what is kept no longer");
                *last = (!told.more).then_some(now);
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "what is kept no longer could not be let go; it is tried again in an hour");
                *last = Some(now);
            }
            Err(error) => tracing::error!(%error, "letting go of old things met a panic"),
        }
    }

    async fn rest(&self) {
        self.parts.answers.sweep();
        self.parts.control.sweep(self.parts.clock.monotonic()).await;
        self.held().await;
        if let Err(error) = log::head(&self.parts).await {
            tracing::warn!(%error, "the log has no new head");
        }
        let Ok(before) = self.parts.clock.now().checked_sub(EPOCH_GRACE) else {
            return;
        };
        match self.parts.store.close_epochs(before).await {
            Ok(report) => tracing::debug!(?report, "epochs closed"),
            Err(error) => tracing::warn!(%error, "epochs could not be closed"),
        }
    }
}
