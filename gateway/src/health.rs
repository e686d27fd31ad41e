//! The store's health: whether it answers, how many accepted decisions have not ended, and how fast they end.
//!
//! A daemon whose disk hangs looks alive from outside. These checks make it report that it is not ready, and stop it from
//! feeding the watchdog.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use effectd_actors::action::decisions;
use effectd_actors::{Pipeline, Services};
use effectd_bus::{Store, StoreError};
use effectd_contracts::{Clock, Monotonic, Principal, Topic};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::host::Stage;
use crate::limits::{HEALTH_AGE_MAX, HEALTH_CHECK_EVERY, RETRY_AFTER, RETRY_AFTER_MAX};
use crate::metrics::Metrics;

/// The weight of the newest check in the rate: about the last ten checks determine it.
const RATE_SHARE: f64 = 0.2;
/// Retry-After is the time in which one in this many decisions of the backlog ends.
const RELIEF_PART: u64 = 10;
/// Decisions read at once when the backlog of an earlier run is measured.
const MEASURE_PAGE: usize = 100;

/// Whether the daemon can take work, for health checks and the watchdog.
#[derive(Clone)]
pub struct Readiness {
    health: Arc<StoreHealth>,
    clock: Arc<dyn Clock>,
    stage: watch::Receiver<Stage>,
}

impl std::fmt::Debug for Readiness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Readiness").field("unhealthy", &self.unhealthy()).finish()
    }
}

impl Readiness {
    pub(crate) fn new(
        health: Arc<StoreHealth>,
        clock: Arc<dyn Clock>,
        stage: watch::Receiver<Stage>,
    ) -> Self {
        Self { health, clock, stage }
    }

    /// Why the daemon takes no work now, if so: it is unhealthy, or the store refuses writes.
    pub fn unready(&self) -> Option<String> {
        let refusal = || self.health.refusal.lock().clone();
        self.unhealthy().map(str::to_owned).or_else(refusal)
    }

    /// Why a restart may help, if so. A restart does not help against a full disk.
    pub fn unhealthy(&self) -> Option<&'static str> {
        if *self.stage.borrow() != Stage::Open {
            return Some("the daemon is stopping");
        }
        let last = *self.health.last.lock();
        match last.map(|last| self.clock.monotonic().since(last)) {
            None => Some("the store has not answered yet"),
            Some(age) if age > HEALTH_AGE_MAX => Some("the store does not answer"),
            Some(_) => None,
        }
    }
}

/// The result of the last check, and what was accepted since.
#[derive(Default)]
pub(crate) struct StoreHealth {
    measured: AtomicU64,
    accepted_since: AtomicU64,
    sizes: Mutex<Sizes>,
    last: Mutex<Option<Monotonic>>,
    /// Decisions that end per second; `None` until measured.
    rate: Mutex<Option<f64>>,
    refusal: Mutex<Option<String>>,
}

/// Accepted decisions that have not ended, by offset, with their bytes and who asked, if that is known.
#[derive(Default)]
struct Sizes {
    open: BTreeMap<u64, (u64, Option<Principal>)>,
    total: u64,
    /// Number and bytes of each principal's.
    own: HashMap<Principal, (u64, u64)>,
}

impl Sizes {
    fn put(&mut self, offset: u64, bytes: u64, principal: Option<Principal>) {
        self.total += bytes;
        if let Some(principal) = &principal {
            let own = self.own.entry(principal.clone()).or_default();
            *own = (own.0 + 1, own.1 + bytes);
        }
        if let Some(known) = self.open.insert(offset, (bytes, principal)) {
            self.take_off(known);
        }
    }

    /// Removes the decisions before this offset, which have ended.
    fn ended_before(&mut self, committed: u64) {
        let open = self.open.split_off(&committed);
        std::mem::replace(&mut self.open, open).into_values().for_each(|ended| self.take_off(ended));
    }

    fn take_off(&mut self, (bytes, principal): (u64, Option<Principal>)) {
        self.total -= bytes;
        if let Some(principal) = principal
            && let Some(own) = self.own.get_mut(&principal)
        {
            *own = (own.0 - 1, own.1 - bytes);
            if own.0 == 0 {
                self.own.remove(&principal);
            }
        }
    }
}

impl StoreHealth {
    /// Accepted decisions that have not ended.
    pub(crate) fn backlog(&self) -> u64 {
        self.measured.load(Ordering::Relaxed) + self.accepted_since.load(Ordering::Relaxed)
    }

    /// The bytes of the backlog, at most: a decision that ends before an older one counts until the older one ends.
    pub(crate) fn backlog_bytes(&self) -> u64 {
        self.sizes.lock().total
    }

    /// The number and bytes of one principal's decisions in the backlog, counted like [`Self::backlog_bytes`].
    pub(crate) fn backlog_of(&self, principal: &Principal) -> (u64, u64) {
        self.sizes.lock().own.get(principal).copied().unwrap_or_default()
    }

    pub(crate) fn accepted(&self, offset: u64, bytes: u64, principal: &Principal) {
        self.accepted_since.fetch_add(1, Ordering::Relaxed);
        self.sizes.lock().put(offset, bytes, Some(principal.clone()));
    }

    fn record(&self, backlog: u64, committed: u64, now: Monotonic) {
        let since = self.accepted_since.swap(0, Ordering::Relaxed);
        let before = self.measured.swap(backlog, Ordering::Relaxed);
        self.sizes.lock().ended_before(committed);
        let last = self.last.lock().replace(now);
        // A time without work says nothing about the rate.
        if let (Some(last), 1..) = (last, before + since) {
            self.record_rate((before + since).saturating_sub(backlog), now.since(last));
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate is an estimate")]
    fn record_rate(&self, ended: u64, time: Duration) {
        if time.is_zero() {
            return;
        }
        let newest = ended as f64 / time.as_secs_f64();
        let mut rate = self.rate.lock();
        *rate = Some(rate.map_or(newest, |rate| rate + RATE_SHARE * (newest - rate)));
    }

    /// How long to wait after a full backlog before repeating the request: at the present rate, a tenth of the backlog ends
    /// meanwhile.
    #[expect(clippy::cast_precision_loss, reason = "a rate is an estimate")]
    pub(crate) fn retry_after(&self) -> Duration {
        let wanted = self.backlog().div_ceil(RELIEF_PART) as f64;
        let rate = *self.rate.lock();
        match rate {
            None => RETRY_AFTER,
            Some(rate) if rate <= 0.0 => RETRY_AFTER_MAX,
            Some(rate) => Duration::try_from_secs_f64(wanted / rate)
                .unwrap_or(RETRY_AFTER_MAX)
                .clamp(RETRY_AFTER, RETRY_AFTER_MAX),
        }
    }

    /// Stores why the store refuses writes, and logs a change.
    fn set_refusal(&self, refusal: Option<&StoreError>) {
        let refusal = refusal.map(ToString::to_string);
        let mut known = self.refusal.lock();
        if *known == refusal {
            return;
        }
        match &refusal {
            Some(refusal) => tracing::error!(refusal, "new work is refused"),
            None => tracing::info!("new work is accepted again"),
        }
        *known = refusal;
    }
}

/// Checks the store's health again and again, until the task is aborted.
pub(crate) async fn watch_store(
    services: Arc<Services>,
    pipeline: Option<Arc<Pipeline>>,
    health: Arc<StoreHealth>,
    metrics: Metrics,
) {
    let mut due = tokio::time::interval(HEALTH_CHECK_EVERY);
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut is_first = true;
    loop {
        due.tick().await;
        match services.store.groups(&Topic::ActionDecision.into()).await {
            Ok(groups) => {
                health.set_refusal(services.store.refusal().as_ref());
                let open = groups.iter().map(|group| group.undelivered + group.waiting + group.leased);
                let backlog = open.max().unwrap_or(0);
                let committed = groups.iter().map(|group| group.committed).min().unwrap_or(0);
                health.record(backlog, committed, services.clock.monotonic());
                let gauge = |value| i64::try_from(value).unwrap_or(i64::MAX);
                metrics.backlog.set(gauge(backlog));
                metrics.backlog_bytes.set(gauge(health.backlog_bytes()));
                if std::mem::take(&mut is_first) {
                    let (store, health) = (services.store.clone(), health.clone());
                    let end = groups.iter().map(|group| group.end).max().unwrap_or(0);
                    tokio::task::spawn_blocking(move || measure_backlog(&*store, &health, committed, end));
                }
            }
            Err(error) => health.set_refusal(Some(&error)),
        }
        if let Some(pipeline) = &pipeline {
            pipeline.measure().await;
        }
    }
}

/// Measures the decisions that an earlier run accepted.
fn measure_backlog(store: &dyn Store, health: &StoreHealth, mut from: u64, end: u64) {
    while from < end {
        let page = match store.read(&Topic::ActionDecision.into(), from, MEASURE_PAGE) {
            Ok(page) if !page.events.is_empty() => page,
            Ok(_) => return,
            // This decision has ended and was dropped; later ones may be open.
            Err(StoreError::Dropped { .. }) => {
                from += 1;
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "the bytes of open decisions cannot be measured");
                return;
            }
        };
        for event in page.events.iter().filter(|event| event.offset < end) {
            let body = event.body.bytes().unwrap_or_default();
            let principal = decisions::parse(body).map(|decision| decision.data.principal);
            health.sizes.lock().put(event.offset, body.len() as u64, principal);
        }
        from = page.next;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ended_decisions_do_not_count() {
        let health = StoreHealth::default();
        let [alice, bob] = ["user://alice", "user://bob"].map(|name| Principal::new(name).unwrap());
        for offset in [3, 1, 2] {
            health.accepted(offset, 10 * offset, if offset == 1 { &alice } else { &bob });
        }
        // A repeated decision counts once in bytes.
        health.accepted(2, 20, &bob);
        let own = || (health.backlog_of(&alice), health.backlog_of(&bob));
        assert_eq!((health.backlog(), health.backlog_bytes(), own()), (4, 60, ((1, 10), (2, 50))));
        health.record(1, 3, Monotonic::default());
        assert_eq!((health.backlog(), health.backlog_bytes(), own()), (1, 30, ((0, 0), (1, 30))));
        health.record(0, 4, Monotonic::default());
        assert_eq!((health.backlog(), health.backlog_bytes(), own()), (0, 0, ((0, 0), (0, 0))));
        assert!(health.sizes.lock().own.is_empty());
    }

    #[test]
    fn retry_after_follows_the_rate_at_which_work_ends() {
        let health = StoreHealth::default();
        let at = |seconds| Monotonic::default().plus(Duration::from_secs(seconds));
        assert_eq!(health.retry_after(), RETRY_AFTER, "nobody knows yet");
        health.record(10_000, 0, at(0));
        health.record(9_900, 100, at(1));
        // A hundred decisions end per second; a tenth of 9,900 has to end.
        assert_eq!(health.retry_after(), Duration::from_millis(9_900));
        health.record(100, 9_900, at(2));
        assert_eq!(health.retry_after(), RETRY_AFTER, "never sooner than this");
        let stuck = StoreHealth::default();
        stuck.record(10, 0, at(0));
        stuck.record(10, 0, at(1));
        assert_eq!(stuck.retry_after(), RETRY_AFTER_MAX, "nothing ends");
    }
}
