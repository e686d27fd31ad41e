//! The sweeper: extends the leases of long work, answers callers whose answer was lost, ends expired holds, announces what the clock has
//! ended, signs the head of the log, destroys the keys of ended epochs, and applies retention.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Retained, StoreError};
use effectd_contracts::{Monotonic, Timestamp};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::task::{JoinError, JoinHandle};

use crate::approvals::{expiry, grants, repository};
use crate::control::switches::Switches;
use crate::execution::log;
use crate::failpoint::hit_idle;
use crate::limits::{HELD_PAST_KEPT, RETAIN_EVERY};
use crate::operator::{connectors, operations, retention, sessions};
use crate::services::Services;

/// There is one sweeper; the supervisor restarts it when it dies.
#[derive(Clone)]
pub(crate) struct Sweeper {
    pub(crate) services: Arc<Services>,
}

/// What to sweep. `Approvals` is sent at the start, the others by timers.
#[derive(Debug)]
pub(crate) enum Sweep {
    Leases,
    Approvals,
    /// Everything except leases, with approvals.
    Rest,
}

/// When the last rounds were, and the work that is running: it may take longer than a lease, so it is not awaited.
pub(crate) struct Rounds {
    /// What the clock had ended by then is announced.
    announced: Timestamp,
    last: Option<Monotonic>,
    round: Option<JoinHandle<Result<Retained, StoreError>>>,
    clearing: Option<JoinHandle<()>>,
    harvesting: Option<JoinHandle<()>>,
}

/// How long an epoch's key is kept after the epoch ended, for actions in flight.
const EPOCH_GRACE: Duration = Duration::from_secs(60);

impl Actor for Sweeper {
    type Msg = Sweep;
    type State = Rounds;
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<Sweep>, (): ()) -> Result<Self::State, ActorProcessingErr> {
        // Work that the last process left unfinished does not wait for the timer.
        drop(myself.cast(Sweep::Approvals));
        // Timers of a stopped actor end by themselves.
        drop(myself.send_interval(self.services.in_flight.leases.ttl / 3, || Sweep::Leases));
        drop(myself.send_interval(self.services.settings.sweep_every, || Sweep::Rest));
        let announced = self.services.clock.now();
        Ok(Rounds { announced, last: None, round: None, clearing: None, harvesting: None })
    }

    async fn handle(
        &self,
        _: ActorRef<Sweep>,
        sweep: Sweep,
        rounds: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match sweep {
            Sweep::Leases => {
                hit_idle("sweeper.begin").await;
                self.services.in_flight.leases.extend_all();
                self.services.in_flight.answers.catch_up(&*self.services.store);
            }
            Sweep::Approvals => {
                self.approvals().await;
                self.clear_sessions(&mut rounds.clearing);
            }
            Sweep::Rest => {
                self.announce(&mut rounds.announced);
                self.rest().await;
                self.clear_sessions(&mut rounds.clearing);
                self.harvest(&mut rounds.harvesting);
                self.retain(rounds).await;
            }
        }
        Ok(())
    }
}

impl Sweeper {
    /// Tells who lists tools that a setting has ended by the clock.
    fn announce(&self, announced: &mut Timestamp) {
        let (services, now) = (&self.services, self.services.clock.now());
        let since = std::mem::replace(announced, now);
        // What cannot be read may have ended.
        let switched = Switches::new(&*services.store).has_ended(since, now).unwrap_or(true);
        if switched || services.policy().has_ended(since, now) {
            services.tools_changed.send_replace(());
        }
    }

    /// Ends expired holds, and finishes what a dead process left unfinished.
    async fn approvals(&self) {
        let services = &self.services;
        match expiry::all(services).await {
            Ok(open) => tracing::debug!(open, "holds were swept"),
            Err(error) => tracing::warn!(%error, "holds could not be swept"),
        }
        if let Err(error) = operations::finish_all(services).await {
            tracing::warn!(%error, "unfinished operations could not be ended");
        }
        match grants::sweep(services).await {
            Ok(0) => {}
            Ok(gone) => tracing::info!(gone, "expired grants were removed"),
            Err(error) => tracing::warn!(%error, "expired grants could not be removed"),
        }
        let now = services.clock.now();
        let before = now.checked_sub(HELD_PAST_KEPT).unwrap_or(now);
        if let Err(error) = repository::sweep_past(&*services.store, before).await {
            tracing::warn!(%error, "old decisions could not be removed");
        }
    }

    /// Clears deleted sessions, unless this is under way: each result that it destroys takes a sync.
    fn clear_sessions(&self, clearing: &mut Option<JoinHandle<()>>) {
        if clearing.as_ref().is_none_or(JoinHandle::is_finished) {
            let services = self.services.clone();
            *clearing = Some(tokio::spawn(async move {
                if let Err(error) = sessions::sweep(&services).await {
                    tracing::warn!(%error, "deleted sessions cannot be read; the sweeper tries again");
                }
            }));
        }
    }

    /// Asks MCP servers for their tools when a day has passed, unless this is under way: a server may take its time.
    fn harvest(&self, harvesting: &mut Option<JoinHandle<()>>) {
        if harvesting.as_ref().is_none_or(JoinHandle::is_finished) {
            let services = self.services.clone();
            *harvesting = Some(tokio::spawn(async move {
                if let Err(error) = connectors::harvest_due(&services).await {
                    tracing::warn!(%error, "connectors cannot be read; the sweeper tries again");
                }
            }));
        }
    }

    /// Starts a round of retention when one is due, and further rounds while there is more to drop.
    async fn retain(&self, rounds: &mut Rounds) {
        let now = self.services.clock.monotonic();
        if let Some(round) = rounds.round.take_if(|round| round.is_finished()) {
            Self::retained(round.await, &mut rounds.last, now);
        }
        let is_due = rounds.last.is_none_or(|last| now.since(last) >= RETAIN_EVERY);
        if rounds.round.is_none() && is_due {
            let services = self.services.clone();
            rounds.round = Some(tokio::spawn(async move { retention::run(&services).await }));
        }
    }

    fn retained(
        round: Result<Result<Retained, StoreError>, JoinError>,
        last: &mut Option<Monotonic>,
        now: Monotonic,
    ) {
        match round {
            Ok(Ok(retained)) => {
                let Retained { receipts, letters, blocks, bytes, .. } = retained;
                tracing::debug!(receipts, letters, blocks, bytes, "retention");
                *last = (!retained.more).then_some(now);
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "retention failed; effectd tries again in an hour");
                *last = Some(now);
            }
            Err(error) => tracing::error!(%error, "retention panicked"),
        }
    }

    async fn rest(&self) {
        self.services.in_flight.answers.sweep();
        self.services.control.sweep(self.services.clock.monotonic()).await;
        self.approvals().await;
        let services = &self.services;
        if let Err(error) = log::head(&*services.store, &services.identity, &*services.clock).await {
            tracing::warn!(%error, "the log has no new head");
        }
        let Ok(before) = self.services.clock.now().checked_sub(EPOCH_GRACE) else {
            return;
        };
        match self.services.store.close_epochs(before).await {
            Ok(report) => {
                let (closed, busy) = (report.closed.len(), report.busy.len());
                tracing::debug!(closed, busy, resealed = report.resealed, "epochs closed");
            }
            Err(error) => tracing::warn!(%error, "expired epochs could not be closed"),
        }
    }
}
