//! Control under pressure: breakers, rates, session windows, budgets, fair queues, and the operator's switches.
//!
//! Each is a plain struct that gets the time as a parameter or from a clock; none is an actor, and correctness depends on none. A
//! refusal has a code; a delayed decision keeps its offset on the bus.

pub(crate) mod batch_turns;
pub mod breaker;
pub mod breakers;
pub mod budgets;
pub mod fair_queue;
pub mod rates;
pub(crate) mod resource_queue;
pub mod sessions;
pub(crate) mod surplus;
pub mod switches;

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::Store;
use effectd_contracts::batch::{Batch, is_batch};
use effectd_contracts::{
    ActionRequest, Clock, Code, Failure, Monotonic, Origin, Phase, Principal, SubjectId,
};

use batch_turns::BatchTurns;
pub use breakers::Breakers;
use budgets::{Budgets, Most, Reservation};
use fair_queue::{FairQueue, Join, Permit};
use rates::{Rates, Throttled};
use resource_queue::ResourceQueue;
use sessions::Sessions;
use surplus::Surplus;

use crate::limits;
use crate::metrics::Metrics;
use crate::registry::CurrentRegistry;

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub breaker: breaker::Rules,
    pub rates: rates::Rules,
    /// Actions that one session may ask for within [`limits::SESSION_WINDOW`].
    pub session_actions_max: u32,
    pub budgets: budgets::Rules,
    /// Actions in flight of one subject, so that the others always find a slot.
    pub subject_in_flight_max: usize,
    pub tool_in_flight_max: usize,
    /// Callers that may wait for a slot, in all; one subject may have a quarter of them.
    pub waiting_max: usize,
    /// How long a caller waits for a slot before it gets `overloaded`.
    pub admission_wait_max: Duration,
    /// Slots per round of each subject that gets more than one.
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

pub struct Control {
    pub breakers: Breakers,
    pub rates: Rates,
    pub sessions: Sessions,
    pub budgets: Budgets,
    pub slots: FairQueue,
    pub starts: FairQueue,
    pub(crate) previews: FairQueue,
    /// The order of actions that change the same resource.
    pub(crate) resources: ResourceQueue,
    pub(crate) batches: BatchTurns,
    /// Decisions of noisy subjects that are deferred on the bus.
    pub(crate) surplus: Surplus,
    admission_wait_max: Duration,
    metrics: Metrics,
    tools: CurrentRegistry,
}

impl Control {
    /// Loads the breakers that an earlier process left in the Store.
    pub fn new(
        settings: &Settings,
        in_flight_max: usize,
        store: &Arc<dyn Store>,
        clock: &Arc<dyn Clock>,
        metrics: &Metrics,
        tools: &CurrentRegistry,
    ) -> Self {
        let breakers = Breakers::load(
            settings.breaker.clone(),
            store.clone(),
            clock.clone(),
            metrics.clone(),
            tools.clone(),
        );
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let queue = |slots, subject_max, tool_max, waiting_max| {
            FairQueue::new(fair_queue::Rules {
                slots,
                subject_max,
                tool_max,
                waiting_max,
                weights: settings.weights.clone(),
            })
        };
        let (subject_max, tool_max) = (settings.subject_in_flight_max, settings.tool_in_flight_max);
        let starts = cores * limits::STARTS_PER_CORE;
        Self {
            breakers,
            rates: Rates::new(settings.rates, clock),
            sessions: Sessions::new(store, clock, settings.session_actions_max, &metrics.uncounted),
            budgets: Budgets::new(settings.budgets, store, clock),
            slots: queue(in_flight_max, subject_max.min(in_flight_max), tool_max, settings.waiting_max),
            // One subject gets at most two thirds, so the others find a slot even beside a noisy one.
            starts: queue(starts, starts - starts / 3, starts, usize::MAX),
            previews: queue(
                limits::PREVIEWS_MAX,
                limits::PREVIEWS_SUBJECT_MAX,
                limits::PREVIEWS_MAX,
                usize::MAX,
            ),
            tools: tools.clone(),
            resources: ResourceQueue::default(),
            batches: BatchTurns::default(),
            surplus: Surplus::default(),
            admission_wait_max: settings.admission_wait_max,
            metrics: metrics.clone(),
        }
    }

    /// Counts an action against its session; a batch as its items. Called once for each new action. Planners have the rates of
    /// subjects instead.
    pub(crate) async fn session(&self, origin: &Origin, request: &ActionRequest) -> Result<(), Failure> {
        let actions = items_of(request);
        let counted = match origin {
            Origin::Session { session_id } => self.sessions.count_all(session_id.as_str(), actions).await,
            Origin::Run { run_id, .. } => self.sessions.count_all(&format!("run:{run_id}"), actions).await,
            Origin::Arbiter | Origin::Plan | Origin::Batch { .. } => Ok(()),
        };
        counted.map_err(|throttled| self.throttled(&throttled))
    }

    /// Counts an action that is about to start, and reserves budget for the most that it may use. A batch counts as its items; if they are
    /// more than a rate or a budget ever allows, it is admitted when nothing else was: nothing may be too low for it for ever.
    pub(crate) fn rate(
        &self,
        request: &ActionRequest,
        principal: &Principal,
    ) -> Result<Vec<Reservation>, Throttled> {
        let counted = if is_batch(&request.tool_id) {
            self.rate_items(request, principal)
        } else {
            self.rates.count(request, principal).and_then(|()| self.reserve(request, 1)).map(Vec::from_iter)
        };
        counted.inspect_err(|throttled| drop(self.throttled(throttled)))
    }

    fn rate_items(
        &self,
        request: &ActionRequest,
        principal: &Principal,
    ) -> Result<Vec<Reservation>, Throttled> {
        // One that cannot be read is refused later.
        let items = Batch::of_action(request).map(|batch| batch.requests(request)).unwrap_or_default();
        let mut tools = BTreeMap::new();
        for item in &items {
            *tools.entry(item.tool_id.as_str()).or_default() += 1;
        }
        self.rates.count_all(request, principal, tools)?;
        let calls = |n: usize| if n == 0 { items.len() as u64 } else { 0 };
        let reserved = items.iter().enumerate().map(|(n, item)| self.reserve(item, calls(n)));
        reserved.filter_map(Result::transpose).collect()
    }

    fn reserve(&self, request: &ActionRequest, calls: u64) -> Result<Option<Reservation>, Throttled> {
        // An unknown tool never runs, so nothing is reserved for it.
        let tools = self.tools.get();
        let most = tools.get(&request.tool_id).map(|tool| Most {
            cpu: Duration::from_millis(tool.spec().timeout_ms),
            price_micros: tool.spec().price_micros,
            tries: request.qos.retries().saturating_add(1),
        });
        most.map_or(Ok(None), |most| self.budgets.reserve_first(&request.subject_id, most, calls))
    }

    fn throttled(&self, throttled: &Throttled) -> Failure {
        self.metrics.throttled.with_label_values(&[throttled.what]).inc();
        throttled.failure()
    }

    /// Waits for a slot for the action of a waiting caller, at most `admission_wait_max`.
    pub(crate) async fn slot(&self, request: &ActionRequest, join: Option<Join>) -> Result<Permit, Failure> {
        let coming = self.slots.acquire(&request.subject_id, &request.tool_id, join);
        let coming = coming
            .map_err(|fair_queue::Crowded| self.overloaded("too many callers already wait for a slot"))?;
        match tokio::time::timeout(self.admission_wait_max, coming).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(self.overloaded("no slot became free in time")),
        }
    }

    fn overloaded(&self, why: &str) -> Failure {
        self.metrics.throttled.with_label_values(&["overload"]).inc();
        let message = format!("{} actions are in flight, and {why}; try again shortly", self.slots.taken());
        Failure::new(Code::Overloaded, Phase::Accept, message).retry_after(limits::OVERLOAD_RETRY)
    }

    /// Waits for a start slot, then does the work. Work that takes longer than [`limits::START_TIME_MAX`] waits for something
    /// other than a processor: it gives its slot to the next action, and continues.
    pub(crate) async fn start<T>(&self, request: &ActionRequest, work: impl Future<Output = T>) -> T {
        let (subject, tool) = (&request.subject_id, &request.tool_id);
        // `self` owns the queue, so the permit always comes.
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
            tracing::warn!(%error, "expired session windows could not be removed");
        }
        if let Err(error) = self.budgets.sweep().await {
            tracing::warn!(%error, "expired budgets could not be removed");
        }
    }
}

/// For how many actions a request counts.
pub(crate) fn items_of(request: &ActionRequest) -> u32 {
    if !is_batch(&request.tool_id) {
        return 1;
    }
    let items = Batch::of_action(request).map_or(1, |batch| batch.items.len());
    u32::try_from(items).unwrap_or(u32::MAX)
}
