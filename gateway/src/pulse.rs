//! Asks the store again and again how it stands: whether it answers at all, and how much is accepted and not yet ended.
//!
//! A daemon whose disk hangs looks alive from outside. This is what makes it say that it is not ready, and what stops the
//! watchdog from being told that all is well.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use effectd_contracts::{Clock, Monotonic, Topic};
use tokio::sync::watch;

use crate::limits::{PULSE_AGE_MAX, PULSE_EVERY};
use crate::server::{Host, Stage};

/// How the daemon is, for whoever reports it.
#[derive(Clone)]
pub struct Vitals {
    pulse: Arc<Pulse>,
    clock: Arc<dyn Clock>,
    stage: watch::Receiver<Stage>,
}

impl std::fmt::Debug for Vitals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vitals")
            .field("trouble", &self.trouble())
            .finish()
    }
}

#[derive(Default)]
pub(crate) struct Pulse {
    measured: AtomicU64,
    since: AtomicU64,
    last: Mutex<Option<Monotonic>>,
}

impl Pulse {
    /// Decisions that are accepted and not yet ended: what the store said last, and what was accepted since.
    pub(crate) fn backlog(&self) -> u64 {
        self.measured.load(Ordering::Relaxed) + self.since.load(Ordering::Relaxed)
    }

    pub(crate) fn accepted_one(&self) {
        self.since.fetch_add(1, Ordering::Relaxed);
    }

    fn beat(&self, backlog: u64, now: Monotonic) {
        self.since.store(0, Ordering::Relaxed);
        self.measured.store(backlog, Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    fn age(&self, clock: &dyn Clock) -> Option<Duration> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.map(|last| clock.monotonic().since(last))
    }
}

impl Vitals {
    pub(crate) fn new(pulse: Arc<Pulse>, clock: Arc<dyn Clock>, stage: watch::Receiver<Stage>) -> Self {
        Self { pulse, clock, stage }
    }

    /// Why no work can be taken now, if so.
    pub fn trouble(&self) -> Option<&'static str> {
        if *self.stage.borrow() != Stage::Open {
            return Some("the daemon is stopping");
        }
        match self.pulse.age(&*self.clock) {
            None => Some("the store has not answered yet"),
            Some(age) if age > PULSE_AGE_MAX => Some("the store does not answer"),
            Some(_) => None,
        }
    }
}

/// Asks until nobody is interested any more.
pub(crate) async fn ask(host: Arc<dyn Host>, pulse: Arc<Pulse>, gauge: prometheus::IntGauge) {
    let mut due = tokio::time::interval(PULSE_EVERY);
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        let parts = host.pipeline().parts();
        match parts.store.groups(&Topic::ActionDecision.into()).await {
            Ok(groups) => {
                let open = |group: u64, more: u64, late: u64| group + more + late;
                let backlog = groups
                    .iter()
                    .map(|group| open(group.undelivered, group.waiting, group.leased))
                    .max();
                let backlog = backlog.unwrap_or(0);
                gauge.set(i64::try_from(backlog).unwrap_or(i64::MAX));
                pulse.beat(backlog, parts.clock.monotonic());
            }
            Err(error) => tracing::warn!(%error, "the store does not say how it stands"),
        }
    }
}
