//! The pipeline's metrics. Names are constants, so that tests can check dashboards and documentation against them; the help texts
//! in [`Metrics::register`] say what each metric counts.

use prometheus::{
    CounterVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry,
};

pub const ACTIONS_TOTAL: &str = "effectd_actions_total";
pub const INVOCATIONS_TOTAL: &str = "effectd_invocations_total";
pub const FAILURES_TOTAL: &str = "effectd_action_failures_total";
pub const REFUSALS_TOTAL: &str = "effectd_action_refusals_total";
pub const EGRESS_EXCHANGES_TOTAL: &str = "effectd_egress_exchanges_total";
pub const WEBHOOK_DELIVERIES_TOTAL: &str = "effectd_webhook_deliveries_total";
pub const TOOL_DRIFT_TOTAL: &str = "effectd_tool_drift_total";
pub const EGRESS_SECONDS: &str = "effectd_egress_seconds";
pub const SANDBOX_DENIALS_TOTAL: &str = "effectd_sandbox_denials_total";
pub const ACTION_SECONDS: &str = "effectd_action_duration_seconds";
pub const QUEUED_SECONDS: &str = "effectd_action_queued_seconds";
pub const EXEC_SECONDS: &str = "effectd_action_exec_seconds";
pub const CPU_SECONDS_TOTAL: &str = "effectd_action_cpu_seconds_total";
pub const ENERGY_JOULES_TOTAL: &str = "effectd_action_energy_joules_total";
pub const WRITTEN_BYTES_TOTAL: &str = "effectd_action_written_bytes_total";
pub const RETRIES_TOTAL: &str = "effectd_action_retries_total";
pub const CACHED_TOTAL: &str = "effectd_actions_cached_total";
pub const TOOLS_QUARANTINED_TOTAL: &str = "effectd_tools_quarantined_total";
pub const CALLS_UNWATCHED_TOTAL: &str = "effectd_calls_unwatched_total";
pub const IN_FLIGHT: &str = "effectd_actions_in_flight";
pub const PANICS_TOTAL: &str = "effectd_worker_panics_total";
pub const STALLS_TOTAL: &str = "effectd_worker_stalls_total";
pub const STAGE_SECONDS: &str = "effectd_stage_duration_seconds";
pub const STAGE_BUSY: &str = "effectd_stage_busy_workers";
pub const STAGE_QUEUE: &str = "effectd_stage_queue_actions";
pub const BREAKER_STATE: &str = "effectd_breaker_state";
pub const BREAKERS_OPEN: &str = "effectd_breakers_open";
pub const BREAKERS_HALF_OPEN: &str = "effectd_breakers_half_open";
pub const BREAKER_CHANGES_TOTAL: &str = "effectd_breaker_changes_total";
pub const BREAKER_REFUSALS_TOTAL: &str = "effectd_breaker_refusals_total";
pub const THROTTLED_TOTAL: &str = "effectd_actions_throttled_total";
pub const UNCOUNTED_TOTAL: &str = "effectd_session_uncounted_total";
pub const HELD_TOTAL: &str = "effectd_actions_held_total";
pub const HOLDS_OPEN: &str = "effectd_approvals_open";
pub const SHADOW_DECISIONS_TOTAL: &str = "effectd_policy_shadow_decisions_total";
pub const NEXT_EXPIRY: &str = "effectd_approvals_next_expiry_timestamp_seconds";
pub const APPROVAL_SECONDS: &str = "effectd_approval_seconds";
pub const PAUSED_SINCE: &str = "effectd_paused_since_timestamp_seconds";
pub const DEAD_LETTERS_TOTAL: &str = "effectd_dead_letters_total";

#[derive(Debug, Clone)]
pub struct Metrics {
    pub(crate) actions: IntCounterVec,
    pub(crate) invocations: IntCounterVec,
    pub(crate) failures: IntCounterVec,
    pub(crate) refusals: IntCounterVec,
    pub(crate) sandbox_denials: IntCounterVec,
    /// Requests of tools to services, by outcome.
    pub(crate) egress: IntCounterVec,
    pub(crate) egress_seconds: Histogram,
    /// Changes of tools of MCP servers away from what was reviewed.
    pub(crate) tool_drift: IntCounter,
    /// Events that webhooks sent, by outcome.
    pub(crate) webhooks: IntCounterVec,
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
    pub stage_busy: IntGaugeVec,
    pub(crate) stage_queue: IntGaugeVec,
    pub(crate) breaker_state: IntGaugeVec,
    pub(crate) breakers_open: IntGauge,
    pub(crate) breakers_half_open: IntGauge,
    pub(crate) breaker_changes: IntCounterVec,
    pub(crate) breaker_refusals: IntCounterVec,
    pub(crate) throttled: IntCounterVec,
    pub(crate) uncounted: IntCounter,
    pub(crate) held: IntCounter,
    pub(crate) quarantined_tools: IntCounter,
    pub(crate) unwatched_calls: IntCounter,
    pub(crate) holds_open: IntGauge,
    pub(crate) next_expiry: IntGauge,
    pub(crate) approval: HistogramVec,
    pub(crate) paused_since: IntGauge,
    pub(crate) given_up: IntCounterVec,
    pub(crate) shadow_decisions: IntCounterVec,
}

impl Metrics {
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        // From a quarter of a millisecond to half a minute, each twice the one before; percentiles are interpolated.
        let buckets = prometheus::exponential_buckets(0.000_25, 2.0, 18)?;
        // From a second to a day and a half.
        let slow_buckets = prometheus::exponential_buckets(1.0, 2.0, 18)?;
        let histogram_in = |buckets: &[f64], name: &str, help: &str, label: &str| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            let histogram = HistogramVec::new(options, &[label])?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let histogram = |name: &str, help: &str, label: &str| histogram_in(&buckets, name, help, label);
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
        let single = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let gauges = |name: &str, help: &str, label: &str| {
            let gauges = IntGaugeVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(gauges.clone()))?;
            Ok::<_, prometheus::Error>(gauges)
        };
        Ok(Self {
            actions: counter(ACTIONS_TOTAL, "Actions by outcome", &["tool_id", "outcome"])?,
            invocations: counter(
                INVOCATIONS_TOTAL,
                "Actions by the mode that the policy resolved",
                &["mode"],
            )?,
            failures: counter(FAILURES_TOTAL, "Failures by code", &["tool_id", "code"])?,
            refusals: counter(
                REFUSALS_TOTAL,
                "Refusals by code: the tool did not fail",
                &["tool_id", "code"],
            )?,
            sandbox_denials: counter(
                SANDBOX_DENIALS_TOTAL,
                "What the sandbox refused to tools",
                &["tool_id", "code"],
            )?,
            egress: counter(EGRESS_EXCHANGES_TOTAL, "Requests of tools to services", &["outcome"])?,
            tool_drift: single(
                TOOL_DRIFT_TOTAL,
                "Tools of MCP servers that are described otherwise than when they were reviewed",
            )?,
            webhooks: counter(
                WEBHOOK_DELIVERIES_TOTAL,
                "Attempts of webhooks to deliver an event",
                &["outcome"],
            )?,
            egress_seconds: {
                let opts =
                    HistogramOpts::new(EGRESS_SECONDS, "Time from a request to the last byte of its answer");
                let histogram = Histogram::with_opts(opts)?;
                registry.register(Box::new(histogram.clone()))?;
                histogram
            },
            cpu: amount(CPU_SECONDS_TOTAL, "Processor time of confined processes")?,
            energy: amount(ENERGY_JOULES_TOTAL, "Energy: processor time at the power of one core")?,
            written: counter(WRITTEN_BYTES_TOTAL, "Bytes that confined processes wrote", &["tool_id"])?,
            queued: histogram(
                QUEUED_SECONDS,
                "Time from acceptance, or from the approval, to the first stage",
                "tool_id",
            )?,
            exec: histogram(EXEC_SECONDS, "Time in the sandbox, all attempts together", "tool_id")?,
            retries: counter(RETRIES_TOTAL, "Retries", &["tool_id"])?,
            cached: counter(CACHED_TOTAL, "Answers from earlier receipts", &["tool_id"])?,
            panics: counter(PANICS_TOTAL, "Workers that panicked", &["stage"])?,
            stalls: counter(STALLS_TOTAL, "Actions on which a worker stalled", &["stage"])?,
            duration: histogram(
                ACTION_SECONDS,
                "Time from acceptance, or from the approval, to the receipt",
                "tool_id",
            )?,
            in_flight: gauge(IN_FLIGHT, "Actions between acceptance and receipt")?,
            quarantined_tools: single(
                TOOLS_QUARANTINED_TOTAL,
                "Tools that were disabled because of undeclared effects",
            )?,
            unwatched_calls: single(
                CALLS_UNWATCHED_TOTAL,
                "Calls that were not watched for undeclared effects: there was too much to scan",
            )?,
            stage_duration: histogram(STAGE_SECONDS, "Time of workers on one action", "stage")?,
            stage_busy: gauges(STAGE_BUSY, "Workers that work on an action", "stage")?,
            stage_queue: gauges(STAGE_QUEUE, "Actions that wait for a worker", "stage")?,
            breaker_state: gauges(BREAKER_STATE, "0 closed, 1 half open or releasing, 2 open", "tool_id")?,
            throttled: counter(THROTTLED_TOTAL, "Actions refused or deferred by a limit", &["what"])?,
            uncounted: single(
                UNCOUNTED_TOTAL,
                "Actions of sessions that passed uncounted: the store could not count them",
            )?,
            held: single(HELD_TOTAL, "Actions held until a person decides")?,
            holds_open: gauge(HOLDS_OPEN, "Holds that wait for a person")?,
            next_expiry: gauge(NEXT_EXPIRY, "When the next open hold expires; 0 if none is open")?,
            approval: histogram_in(
                &slow_buckets,
                APPROVAL_SECONDS,
                "Time from a question to its decision, or to its end without one",
                "tool_id",
            )?,
            paused_since: gauge(PAUSED_SINCE, "Since when effects are paused; 0 if they are not")?,
            given_up: counter(DEAD_LETTERS_TOTAL, "Actions that were given up", &["code"])?,
            shadow_decisions: counter(
                SHADOW_DECISIONS_TOTAL,
                "Decisions that the candidate policy judged: same, flip or error",
                &["result"],
            )?,
            breakers_open: gauge(BREAKERS_OPEN, "Breakers that are open")?,
            breakers_half_open: gauge(BREAKERS_HALF_OPEN, "Breakers that let a few calls through to try")?,
            breaker_changes: counter(BREAKER_CHANGES_TOTAL, "Breakers that opened or closed", &["to"])?,
            breaker_refusals: counter(BREAKER_REFUSALS_TOTAL, "Calls that a breaker refused", &["tool_id"])?,
        })
    }
}
