//! What keeps the pipeline upright under pressure: breakers, rates, windows, budgets, turns.
//!
//! Each part is a plain struct that takes the time as a parameter or a clock; none of them is an actor, and none of them is
//! needed for correctness. What they refuse is told with a code, and what they delay keeps its place on the bus.

pub mod breaker;
pub mod breakers;
pub mod budgets;
pub(crate) mod lines;
pub mod rates;
pub mod sessions;
pub(crate) mod surplus;
pub mod turns;

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
use lines::Lines;
use rates::{Rates, Throttled};
use sessions::Sessions;
use surplus::Surplus;
use turns::{Join, Turn, Turns};

use crate::limits;
use crate::metrics::Metrics;
use crate::registry::Registry;

/// What an operator may set about control under pressure; the defaults are the constants of [`crate::limits`].
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// When breakers open and how they close again.
    pub breaker: breaker::Rules,
    /// What may happen how often.
    pub rates: rates::Rules,
    /// See [`limits::SESSION_ACTIONS_MAX`].
    pub session_actions_max: u32,
    /// How much a subject may use.
    pub budgets: budgets::Rules,
    /// See [`limits::SUBJECT_IN_FLIGHT_MAX`].
    pub subject_in_flight_max: usize,
    /// See [`limits::TOOL_IN_FLIGHT_MAX`].
    pub tool_in_flight_max: usize,
    /// See [`limits::WAITING_MAX`].
    pub waiting_max: usize,
    /// See [`limits::ADMISSION_WAIT_MAX`].
    pub admission_wait_max: Duration,
    /// See [`limits::STARTS_PER_CORE`].
    pub starts_per_core: usize,
    /// See [`limits::STARTS_ALONE_PER_CORE`].
    pub starts_alone_per_core: usize,
    /// Subjects that get more than one turn in a round.
    pub weights: HashMap<SubjectId, u32>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            breaker: breaker::Rules::default(),
            rates: rates::Rules::default(),
            session_actions_max: limits::SESSION_ACTIONS_MAX,
            budgets: budgets::Rules::default(),
            subject_in_flight_max: limits::SUBJECT_IN_FLIGHT_MAX,
            tool_in_flight_max: limits::TOOL_IN_FLIGHT_MAX,
            waiting_max: limits::WAITING_MAX,
            admission_wait_max: limits::ADMISSION_WAIT_MAX,
            starts_per_core: limits::STARTS_PER_CORE,
            starts_alone_per_core: limits::STARTS_ALONE_PER_CORE,
            weights: HashMap::new(),
        }
    }
}

/// All of it, for the stages.
#[derive(Debug)]
pub struct Control {
    /// Which tools are not called for now.
    pub breakers: Breakers,
    /// What happens how often.
    pub rates: Rates,
    /// What sessions have asked for lately.
    pub sessions: Sessions,
    /// What subjects have used.
    pub budgets: Budgets,
    /// Places for actions on their way.
    pub places: Turns,
    /// Turns to start a child.
    pub starts: Turns,
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
        let places = turns::Rules {
            places: in_flight_max,
            subject_max: settings.subject_in_flight_max.min(in_flight_max),
            tool_max: settings.tool_in_flight_max.min(in_flight_max),
            waiting_max: settings.waiting_max,
            weights: settings.weights.clone(),
        };
        let starts = cores * settings.starts_per_core;
        // An operator who allows more among several allows as much to one.
        let alone = starts.max(cores * settings.starts_alone_per_core);
        let starts = turns::Rules {
            places: starts,
            subject_max: starts,
            tool_max: alone,
            waiting_max: usize::MAX,
            weights: settings.weights.clone(),
        };
        let uncounted = metrics.sessions_uncounted.clone();
        let places = Turns::new(places);
        Self {
            breakers,
            rates: Rates::new(settings.rates, clock),
            sessions: Sessions::new(store, clock, settings.session_actions_max, uncounted),
            budgets: Budgets::new(settings.budgets, store, clock),
            starts: Turns::among(starts, &places, alone, clock),
            places,
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
    pub(crate) async fn place(&self, request: &ActionRequest, join: Option<Join>) -> Result<Turn, Failure> {
        let coming = self.places.stand(&request.subject_id, &request.tool_id, join);
        let coming = coming.map_err(|turns::Crowded| self.overloaded("too many wait already"))?;
        match tokio::time::timeout(self.admission_wait_max, coming).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(self.overloaded("no place came free in time")),
        }
    }

    fn overloaded(&self, why: &str) -> Failure {
        self.metrics.throttled.with_label_values(&["overload"]).inc();
        let message = format!(
            "{} actions are on their way, and {why}; try again shortly",
            self.places.taken()
        );
        Failure::new(Code::Overloaded, Phase::Accept, message).retry_after(limits::OVERLOAD_RETRY.get())
    }

    /// Does the work when it is its turn to start, which it may be already. What takes long waits for something other than a
    /// processor: then the turn goes to the next, and the work goes on.
    pub(crate) async fn in_turn<T>(
        &self,
        request: &ActionRequest,
        turn: Option<Turn>,
        work: impl Future<Output = T>,
    ) -> T {
        let (subject, tool) = (&request.subject_id, &request.tool_id);
        let turn = match turn {
            Some(turn) => Some(turn),
            // Turns are given as long as they live, which is as long as this.
            None => self.starts.stand_bounded(subject, tool, None).await.ok(),
        };
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(limits::START_TIME_MAX.get()) => drop(turn),
        }
        work.await
    }

    /// Forgets what is over.
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
