//! What keeps the pipeline upright under pressure: breakers, rates, windows, budgets, fair queues.
//!
//! Each part is a plain struct that takes the time as a parameter or a clock; none of them is an actor, and none of them is
//! needed for correctness. What they refuse is told with a code, and what they delay keeps its place on the bus.

pub mod breaker;
pub mod breakers;
pub mod budgets;
pub mod fair_queue;
pub(crate) mod lines;
pub mod rates;
pub mod sessions;
pub(crate) mod surplus;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::Store;
use effectd_contracts::{
    ActionRequest, Clock, Code, Failure, Monotonic, Origin, Phase, Principal, SubjectId,
};

pub use breakers::Breakers;
use budgets::{Budgets, Most, Reservation};
use fair_queue::{FairQueue, Join, Permit};
use lines::Lines;
use rates::{Rates, Throttled};
use sessions::Sessions;
use surplus::Surplus;

use crate::limits;
use crate::metrics::Metrics;
use crate::registry::Registry;

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub breaker: breaker::Rules,
    pub rates: rates::Rules,
    /// Actions that one session may ask for within [`limits::SESSION_WINDOW`].
    pub session_actions_max: u32,
    pub budgets: budgets::Rules,
    /// Actions in flight of one subject: the others always find a place.
    pub subject_in_flight_max: usize,
    pub tool_in_flight_max: usize,
    /// Callers that may wait for a place, in all; a quarter of them for one subject.
    pub waiting_max: usize,
    /// How long a caller waits for a place before it gets `overloaded`.
    pub admission_wait_max: Duration,
    /// Subjects that get more than one place in a round.
    pub weights: HashMap<SubjectId, u32>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            breaker: breaker::Rules::default(),
            rates: rates::Rules::default(),
            session_actions_max: 60,
            budgets: budgets::Rules::default(),
            subject_in_flight_max: 192,
            tool_in_flight_max: 192,
            waiting_max: 1_024,
            admission_wait_max: Duration::from_secs(1),
            weights: HashMap::new(),
        }
    }
}

#[derive(Debug)]
pub struct Control {
    /// Which tools are not called for now.
    pub breakers: Breakers,
    pub rates: Rates,
    pub sessions: Sessions,
    pub budgets: Budgets,
    /// Places for actions in flight.
    pub places: FairQueue,
    /// Places for children that start.
    pub starts: FairQueue,
    pub(crate) previews: FairQueue,
    /// Who comes first where several would change one thing.
    pub(crate) lines: Lines,
    /// What one subject has too much of on the bus.
    pub(crate) surplus: Surplus,
    admission_wait_max: Duration,
    metrics: Metrics,
    tools: Arc<Registry>,
}

impl Control {
    /// Takes up what an earlier process has left in the Store.
    pub fn new(
        settings: &Settings,
        in_flight_max: usize,
        store: &Arc<dyn Store>,
        clock: &Arc<dyn Clock>,
        metrics: &Metrics,
        tools: &Arc<Registry>,
    ) -> Self {
        let breakers = Breakers::load(
            settings.breaker.clone(),
            store.clone(),
            clock.clone(),
            metrics.clone(),
            tools.clone(),
        );
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let places = fair_queue::Rules {
            places: in_flight_max,
            subject_max: settings.subject_in_flight_max.min(in_flight_max),
            tool_max: settings.tool_in_flight_max.min(in_flight_max),
            waiting_max: settings.waiting_max,
            weights: settings.weights.clone(),
        };
        let starts = cores * limits::STARTS_PER_CORE;
        let starts = fair_queue::Rules {
            places: starts,
            // A subject that comes beside a noisy one finds a place at once.
            subject_max: starts - starts / 3,
            tool_max: starts,
            waiting_max: usize::MAX,
            weights: settings.weights.clone(),
        };
        let previews = fair_queue::Rules {
            places: limits::PREVIEWS_MAX,
            subject_max: limits::PREVIEWS_SUBJECT_MAX,
            tool_max: limits::PREVIEWS_MAX,
            waiting_max: usize::MAX,
            weights: settings.weights.clone(),
        };
        let uncounted = metrics.sessions_uncounted.clone();
        Self {
            breakers,
            rates: Rates::new(settings.rates, clock),
            sessions: Sessions::new(store, clock, settings.session_actions_max, uncounted),
            budgets: Budgets::new(settings.budgets, store, clock),
            starts: FairQueue::new(starts),
            places: FairQueue::new(places),
            previews: FairQueue::new(previews),
            tools: tools.clone(),
            lines: Lines::default(),
            surplus: Surplus::default(),
            admission_wait_max: settings.admission_wait_max,
            metrics: metrics.clone(),
        }
    }

    /// Counts an action that comes in through a door against its session. To be asked once, when it is new.
    pub(crate) async fn session(&self, origin: &Origin) -> Result<(), Failure> {
        match origin {
            Origin::Session { session_id } => {
                let counted = self.sessions.count(session_id).await;
                counted.map_err(|throttled| self.throttled(&throttled))
            }
            Origin::Arbiter | Origin::Plan | Origin::Run { .. } | Origin::Batch { .. } => Ok(()),
        }
    }

    /// Counts an action that is about to start, by whichever way it came, and reserves what it may use.
    pub(crate) fn rate(
        &self,
        request: &ActionRequest,
        principal: &Principal,
    ) -> Result<Option<Reservation>, Throttled> {
        let counted = self.rates.count(request, principal).and_then(|()| {
            // What no tool will do uses nothing.
            let tool = self.tools.get(&request.tool_id);
            let most = tool.map(|tool| Most {
                cpu: Duration::from_millis(tool.spec().timeout_ms),
                price_micros: tool.spec().price_micros,
                tries: request.qos.retries().saturating_add(1),
            });
            most.map_or(Ok(None), |most| self.budgets.reserve(&request.subject_id, most))
        });
        counted.inspect_err(|throttled| drop(self.throttled(throttled)))
    }

    fn throttled(&self, throttled: &Throttled) -> Failure {
        self.metrics.throttled.with_label_values(&[throttled.what]).inc();
        throttled.failure()
    }

    /// A place for an action that comes in through a door; waits for it, not for long.
    pub(crate) async fn place(&self, request: &ActionRequest, join: Option<Join>) -> Result<Permit, Failure> {
        let coming = self.places.acquire(&request.subject_id, &request.tool_id, join);
        let coming = coming.map_err(|fair_queue::Crowded| self.overloaded("too many wait already"))?;
        match tokio::time::timeout(self.admission_wait_max, coming).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(self.overloaded("no place came free in time")),
        }
    }

    fn overloaded(&self, why: &str) -> Failure {
        self.metrics.throttled.with_label_values(&["overload"]).inc();
        let message = format!(
            "{} actions are on their way, and {why}; try again shortly",
            self.places.taken()
        );
        Failure::new(Code::Overloaded, Phase::Accept, message).retry_after(limits::OVERLOAD_RETRY)
    }

    /// Does the work when there is a place to start it. Work that takes long waits for something other than a
    /// processor: then its place goes to the next, and the work goes on.
    pub(crate) async fn start<T>(&self, request: &ActionRequest, work: impl Future<Output = T>) -> T {
        let (subject, tool) = (&request.subject_id, &request.tool_id);
        // The queue lives as long as this, and gives each its permit.
        let permit = self.starts.enqueue(subject, tool, None).await.ok();
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(limits::START_TIME_MAX) => drop(permit),
        }
        work.await
    }

    pub(crate) async fn sweep(&self, now: Monotonic) {
        self.rates.sweep();
        self.surplus.sweep(now);
        if let Err(error) = self.sessions.sweep().await {
            tracing::warn!(%error, "windows of sessions that are over could not be removed");
        }
        if let Err(error) = self.budgets.sweep().await {
            tracing::warn!(%error, "budgets that are over could not be removed");
        }
    }
}
