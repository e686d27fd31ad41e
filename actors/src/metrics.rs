//! The pipeline's figures. Names are constants, so that dashboards and documentation can be checked against them.

use prometheus::{
    CounterVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// Actions by tool and outcome.
pub const ACTIONS_TOTAL: &str = "effectd_actions_total";
/// Failures by tool and code.
pub const FAILURES_TOTAL: &str = "effectd_action_failures_total";
/// Time from acceptance to receipt, by tool.
pub const ACTION_SECONDS: &str = "effectd_action_duration_seconds";
/// Time from acceptance to the first stage, by tool.
pub const QUEUED_SECONDS: &str = "effectd_action_queued_seconds";
/// Time in the sandbox, all attempts together, by tool.
pub const EXEC_SECONDS: &str = "effectd_action_exec_seconds";
/// Processor time of confined processes, by tool.
pub const CPU_SECONDS_TOTAL: &str = "effectd_action_cpu_seconds_total";
/// Energy by the model of receipts, by tool.
pub const ENERGY_JOULES_TOTAL: &str = "effectd_action_energy_joules_total";
/// Bytes that confined processes wrote, by tool.
pub const WRITTEN_BYTES_TOTAL: &str = "effectd_action_written_bytes_total";
/// Further attempts, by tool.
pub const RETRIES_TOTAL: &str = "effectd_action_retries_total";
/// Answers from earlier receipts, by tool.
pub const CACHED_TOTAL: &str = "effectd_actions_cached_total";
/// Tools that were switched off since they did more than they declare.
pub const TOOLS_QUARANTINED_TOTAL: &str = "effectd_tools_quarantined_total";
/// Calls of tools of other programs that were not watched.
pub const CALLS_UNWATCHED_TOTAL: &str = "effectd_calls_unwatched_total";
/// Actions between acceptance and receipt.
pub const IN_FLIGHT: &str = "effectd_actions_in_flight";
/// Workers that panicked, by stage.
pub const PANICS_TOTAL: &str = "effectd_worker_panics_total";
/// Actions that a worker did not get on with, by stage.
pub const STALLS_TOTAL: &str = "effectd_worker_stalls_total";
/// How long workers had an action in hand, by stage.
pub const STAGE_SECONDS: &str = "effectd_stage_duration_seconds";
/// Workers that have an action in hand, by stage.
pub const STAGE_BUSY: &str = "effectd_stage_busy_workers";
/// Actions that wait for a worker, by stage, when last looked at.
pub const STAGE_QUEUE: &str = "effectd_stage_queue_actions";
/// How the breaker of a tool stands: 0 closed, 1 being tried, 2 open. It is tried again when somebody asks.
pub const BREAKER_STATE: &str = "effectd_breaker_state";
/// Breakers that are open, also those of keys that requests name.
pub const BREAKERS_OPEN: &str = "effectd_breakers_open";
/// Breakers that opened or closed.
pub const BREAKER_CHANGES_TOTAL: &str = "effectd_breaker_changes_total";
/// Calls that an open breaker refused, by tool.
pub const BREAKER_REFUSALS_TOTAL: &str = "effectd_breaker_refusals_total";
/// Actions that were turned away or put off, by what they had too much of.
pub const THROTTLED_TOTAL: &str = "effectd_actions_throttled_total";
/// Actions of sessions that could not be counted and were let through.
pub const SESSIONS_UNCOUNTED_TOTAL: &str = "effectd_session_actions_uncounted_total";

/// Actions that were put away until a person decides.
pub const HELD_TOTAL: &str = "effectd_actions_held_total";
/// Questions that wait for a person, when last looked at.
pub const HOLDS_OPEN: &str = "effectd_approvals_open";

/// Actions that were given up, by code.
pub const DEAD_LETTERS_TOTAL: &str = "effectd_dead_letters_total";

#[derive(Debug, Clone)]
pub struct Metrics {
    pub(crate) actions: IntCounterVec,
    pub(crate) failures: IntCounterVec,
    pub(crate) duration: HistogramVec,
    pub(crate) queued: HistogramVec,
    pub(crate) exec: HistogramVec,
    pub(crate) cpu: CounterVec,
    pub(crate) energy: CounterVec,
    pub(crate) written: IntCounterVec,
    pub(crate) retries: IntCounterVec,
    pub(crate) cached: IntCounterVec,
    pub(crate) in_flight: IntGauge,
    pub(crate) panics: IntCounterVec,
    pub(crate) stalls: IntCounterVec,
    pub(crate) stage_duration: HistogramVec,
    pub(crate) stage_busy: IntGaugeVec,
    pub(crate) stage_queue: IntGaugeVec,
    pub(crate) breaker_state: IntGaugeVec,
    pub(crate) breakers_open: IntGauge,
    pub(crate) breaker_changes: IntCounterVec,
    pub(crate) breaker_refusals: IntCounterVec,
    pub(crate) throttled: IntCounterVec,
    pub(crate) sessions_uncounted: IntCounter,
    pub(crate) held: IntCounter,
    pub(crate) quarantined_tools: IntCounter,
    pub(crate) unwatched_calls: IntCounter,
    pub(crate) holds_open: IntGauge,
    pub(crate) given_up: IntCounterVec,
}

impl Metrics {
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        // From a quarter of a millisecond to half a minute, each twice the one before: percentiles are interpolated within.
        let buckets = prometheus::exponential_buckets(0.000_25, 2.0, 18)?;
        let histogram = |name: &str, help: &str, label: &str| {
            let options = HistogramOpts::new(name, help).buckets(buckets.clone());
            let histogram = HistogramVec::new(options, &[label])?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let amount = |name: &str, help: &str| {
            let counter = CounterVec::new(Opts::new(name, help), &["tool_id"])?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let uncounted = "Actions of sessions that could not be counted";
        let sessions_uncounted = IntCounter::new(SESSIONS_UNCOUNTED_TOTAL, uncounted)?;
        registry.register(Box::new(sessions_uncounted.clone()))?;
        let held = IntCounter::new(HELD_TOTAL, "Actions put away until a person decides")?;
        registry.register(Box::new(held.clone()))?;
        let gauges = |name: &str, help: &str, label: &str| {
            let gauges = IntGaugeVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(gauges.clone()))?;
            Ok::<_, prometheus::Error>(gauges)
        };
        let off = "Tools that were switched off since they did more than they declare";
        let quarantined_tools = IntCounter::new(TOOLS_QUARANTINED_TOTAL, off)?;
        registry.register(Box::new(quarantined_tools.clone()))?;
        let much = "Calls of tools of other programs that were not watched: there was too much to look at";
        let unwatched_calls = IntCounter::new(CALLS_UNWATCHED_TOTAL, much)?;
        registry.register(Box::new(unwatched_calls.clone()))?;
        Ok(Self {
            actions: counter(ACTIONS_TOTAL, "Actions by outcome", &["tool_id", "outcome"])?,
            failures: counter(FAILURES_TOTAL, "Failures by code", &["tool_id", "code"])?,
            cpu: amount(CPU_SECONDS_TOTAL, "Processor time of confined processes")?,
            energy: amount(
                ENERGY_JOULES_TOTAL,
                "Energy: processor time at the power of one core",
            )?,
            written: counter(
                WRITTEN_BYTES_TOTAL,
                "Bytes that confined processes wrote",
                &["tool_id"],
            )?,
            queued: histogram(
                QUEUED_SECONDS,
                "Time from acceptance to the first stage",
                "tool_id",
            )?,
            exec: histogram(
                EXEC_SECONDS,
                "Time in the sandbox, all attempts together",
                "tool_id",
            )?,
            retries: counter(RETRIES_TOTAL, "Further attempts", &["tool_id"])?,
            cached: counter(CACHED_TOTAL, "Answers from earlier receipts", &["tool_id"])?,
            panics: counter(PANICS_TOTAL, "Workers that panicked", &["stage"])?,
            stalls: counter(
                STALLS_TOTAL,
                "Actions that a worker did not get on with",
                &["stage"],
            )?,
            duration: histogram(ACTION_SECONDS, "Time from acceptance to receipt", "tool_id")?,
            in_flight: gauge(IN_FLIGHT, "Actions between acceptance and receipt")?,
            quarantined_tools,
            unwatched_calls,
            stage_duration: histogram(STAGE_SECONDS, "How long workers had an action in hand", "stage")?,
            stage_busy: gauges(STAGE_BUSY, "Workers that have an action in hand", "stage")?,
            stage_queue: gauges(STAGE_QUEUE, "Actions that wait for a worker", "stage")?,
            breaker_state: gauges(BREAKER_STATE, "0 closed, 1 being tried, 2 open", "tool_id")?,
            throttled: counter(THROTTLED_TOTAL, "Actions turned away or put off", &["what"])?,
            sessions_uncounted,
            held,
            holds_open: gauge(HOLDS_OPEN, "Questions that wait for a person")?,
            given_up: counter(DEAD_LETTERS_TOTAL, "Actions that were given up", &["code"])?,
            breakers_open: gauge(BREAKERS_OPEN, "Breakers that are open")?,
            breaker_changes: counter(BREAKER_CHANGES_TOTAL, "Breakers that opened or closed", &["to"])?,
            breaker_refusals: counter(
                BREAKER_REFUSALS_TOTAL,
                "Calls that a breaker refused",
                &["tool_id"],
            )?,
        })
    }
}
