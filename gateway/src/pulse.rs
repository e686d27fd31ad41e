//! Asks the store again and again how it stands: whether it answers at all, and how much is accepted and not yet ended.
//!
//! A daemon whose disk hangs looks alive from outside. This is what makes it say that it is not ready, and what stops the
//! watchdog from being told that all is well.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use effectd_actors::Store;
use effectd_actors::StoreError;
use effectd_contracts::{Clock, Monotonic, Topic};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::desk::Desk;
use crate::limits::{PULSE_EVERY, RETRY_AFTER, RETRY_AFTER_MAX};
use crate::server::Stage;

/// How the daemon is, for whoever reports it.
#[derive(Clone)]
pub struct Vitals {
    pulse: Arc<Pulse>,
    clock: Arc<dyn Clock>,
    stage: watch::Receiver<Stage>,
    age_max: Duration,
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
    sizes: Mutex<Sizes>,
    last: Mutex<Option<Monotonic>>,
    pace: Mutex<Option<f64>>,
    refusal: Mutex<Option<String>>,
}

/// How much the newest beat counts in the pace: the last ten or so decide.
const PACE_SHARE: f64 = 0.2;
/// The part of the backlog that should have ended before it is worth coming back.
const RELIEF_PART: u64 = 10;

/// The sizes of decisions that are accepted and not yet ended, by their places on the bus. As many as there may be of them.
#[derive(Default)]
struct Sizes {
    open: BTreeMap<u64, u64>,
    total: u64,
}

impl Sizes {
    fn put(&mut self, offset: u64, bytes: u64) {
        let known = self.open.insert(offset, bytes).unwrap_or(0);
        self.total = self.total + bytes - known;
    }

    /// Forgets those before this place, which have ended.
    fn ended_before(&mut self, committed: u64) {
        let open = self.open.split_off(&committed);
        let ended: u64 = std::mem::replace(&mut self.open, open).values().sum();
        self.total -= ended;
    }
}

impl Pulse {
    fn sizes(&self) -> MutexGuard<'_, Sizes> {
        self.sizes.lock()
    }

    /// Decisions that are accepted and not yet ended: what the store said last, and what was accepted since.
    pub(crate) fn backlog(&self) -> u64 {
        self.measured.load(Ordering::Relaxed) + self.since.load(Ordering::Relaxed)
    }

    /// Their bytes. Counts a little more than there is: what ended out of turn is noticed when all before it has ended.
    pub(crate) fn backlog_bytes(&self) -> u64 {
        self.sizes().total
    }

    pub(crate) fn accepted(&self, offset: u64, bytes: u64) {
        self.since.fetch_add(1, Ordering::Relaxed);
        self.sizes().put(offset, bytes);
    }

    fn beat(&self, backlog: u64, committed: u64, now: Monotonic) {
        let since = self.since.swap(0, Ordering::Relaxed);
        let before = self.measured.swap(backlog, Ordering::Relaxed);
        self.sizes().ended_before(committed);
        let last = self.last.lock().replace(now);
        // An hour without work says nothing about how quick the work is.
        if let (Some(last), 1..) = (last, before + since) {
            self.pace_of((before + since).saturating_sub(backlog), now.since(last));
        }
    }

    /// So many ended within this time.
    #[expect(clippy::cast_precision_loss, reason = "a pace is an estimate")]
    fn pace_of(&self, ended: u64, time: Duration) {
        if time.is_zero() {
            return;
        }
        let newest = ended as f64 / time.as_secs_f64();
        let mut pace = self.pace.lock();
        *pace = Some(pace.map_or(newest, |pace| pace + PACE_SHARE * (newest - pace)));
    }

    /// When it is worth coming back to a full door: at the present pace, a tenth of what waits has ended by then.
    #[expect(clippy::cast_precision_loss, reason = "a pace is an estimate")]
    pub(crate) fn relief(&self) -> Duration {
        let pace = *self.pace.lock();
        let least = RETRY_AFTER;
        let most = RETRY_AFTER_MAX.max(least);
        let wanted = self.backlog().div_ceil(RELIEF_PART) as f64;
        match pace {
            // Nothing has ended yet, or nothing for long: nobody knows.
            None => least,
            Some(pace) if pace <= 0.0 => most,
            Some(pace) => Duration::try_from_secs_f64(wanted / pace)
                .unwrap_or(most)
                .clamp(least, most),
        }
    }

    /// Keeps why the store takes no new work, and logs when that changes.
    fn judged(&self, refusal: Option<&StoreError>) {
        let refusal = refusal.map(ToString::to_string);
        let mut kept = self.refusal.lock();
        if *kept == refusal {
            return;
        }
        match &refusal {
            Some(refusal) => tracing::error!(refusal, "no new work is taken"),
            None => tracing::info!("new work is taken again"),
        }
        *kept = refusal;
    }

    fn age(&self, clock: &dyn Clock) -> Option<Duration> {
        let last = *self.last.lock();
        last.map(|last| clock.monotonic().since(last))
    }
}

impl Vitals {
    pub(crate) fn new(
        pulse: Arc<Pulse>,
        clock: Arc<dyn Clock>,
        stage: watch::Receiver<Stage>,
        age_max: Duration,
    ) -> Self {
        Self {
            pulse,
            clock,
            stage,
            age_max,
        }
    }

    /// Why no work can be taken now, if so: there is trouble, or the store refuses new work.
    pub fn refusal(&self) -> Option<String> {
        let kept = &self.pulse.refusal;
        let refusal = || kept.lock().clone();
        self.trouble().map(str::to_owned).or_else(refusal)
    }

    /// What a restart may mend, if anything: a disk that is full is not.
    pub fn trouble(&self) -> Option<&'static str> {
        if *self.stage.borrow() != Stage::Open {
            return Some("the daemon is stopping");
        }
        match self.pulse.age(&*self.clock) {
            None => Some("the store has not answered yet"),
            Some(age) if age > self.age_max => Some("the store does not answer"),
            Some(_) => None,
        }
    }
}

/// Asks until nobody is interested any more.
pub(crate) async fn ask(desk: Arc<Desk>) {
    let (parts, pulse, metrics) = (desk.parts(), &desk.pulse, &desk.metrics);
    let mut due = tokio::time::interval(PULSE_EVERY);
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut weighed = false;
    loop {
        due.tick().await;
        match parts.store.groups(&Topic::ActionDecision.into()).await {
            Ok(groups) => {
                pulse.judged(parts.store.refusal().as_ref());
                let open = groups
                    .iter()
                    .map(|group| group.undelivered + group.waiting + group.leased);
                let backlog = open.max().unwrap_or(0);
                let committed = groups.iter().map(|group| group.committed).min().unwrap_or(0);
                pulse.beat(backlog, committed, parts.clock.monotonic());
                metrics.backlog.set(i64::try_from(backlog).unwrap_or(i64::MAX));
                let bytes = pulse.backlog_bytes();
                metrics
                    .backlog_bytes
                    .set(i64::try_from(bytes).unwrap_or(i64::MAX));
                if !weighed {
                    weighed = true;
                    let (store, pulse) = (parts.store.clone(), pulse.clone());
                    let end = groups.iter().map(|group| group.end).max().unwrap_or(0);
                    tokio::task::spawn_blocking(move || weigh(&*store, &pulse, committed, end));
                }
            }
            Err(error) => pulse.judged(Some(&error)),
        }
        if let Ok(pipeline) = desk.pipeline() {
            pipeline.measure().await;
        }
    }
}

/// Weighs the decisions that an earlier run accepted: what they take is known to nobody in this one.
fn weigh(store: &dyn Store, pulse: &Pulse, mut from: u64, end: u64) {
    while from < end {
        let page = match store.read(&Topic::ActionDecision.into(), from, WEIGH_EVENTS) {
            Ok(page) if !page.events.is_empty() => page,
            Ok(_) => return,
            // Settled long ago, between others that are not.
            Err(StoreError::Dropped { .. }) => {
                from += 1;
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "what waits on the bus could not be weighed");
                return;
            }
        };
        for event in page.events.iter().filter(|event| event.offset < end) {
            let bytes = event.body.bytes().map_or(0, <[u8]>::len);
            pulse.sizes().put(event.offset, bytes as u64);
        }
        from = page.next;
    }
}

/// Decisions read at once when they are weighed.
const WEIGH_EVENTS: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_weighs_nothing() {
        let pulse = Pulse::default();
        for offset in [3, 1, 2] {
            pulse.accepted(offset, 10 * offset);
        }
        // The same decision again is the same weight.
        pulse.accepted(2, 20);
        assert_eq!((pulse.backlog(), pulse.backlog_bytes()), (4, 60));
        pulse.beat(1, 3, Monotonic::default());
        assert_eq!((pulse.backlog(), pulse.backlog_bytes()), (1, 30));
        pulse.beat(0, 4, Monotonic::default());
        assert_eq!((pulse.backlog(), pulse.backlog_bytes()), (0, 0));
    }

    #[test]
    fn when_to_come_back_follows_from_the_pace_at_which_work_ends() {
        let pulse = Pulse::default();
        let at = |seconds| Monotonic::default().plus(Duration::from_secs(seconds));
        assert_eq!(pulse.relief(), RETRY_AFTER, "nobody knows yet");
        pulse.beat(10_000, 0, at(0));
        pulse.beat(9_900, 100, at(1));
        // A hundred a second, and a tenth of 9,900 are wanted.
        assert_eq!(pulse.relief(), Duration::from_millis(9_900));
        pulse.beat(100, 9_900, at(2));
        assert_eq!(pulse.relief(), RETRY_AFTER, "never sooner than this");
        let stands = Pulse::default();
        stands.beat(10, 0, at(0));
        stands.beat(10, 0, at(1));
        assert_eq!(stands.relief(), RETRY_AFTER_MAX, "nothing ends");
    }
}
