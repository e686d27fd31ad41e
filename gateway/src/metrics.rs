//! The gateway's metrics. Names are constants, so that dashboards and documentation can be checked against them.

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// Requests by route and status.
pub const REQUESTS_TOTAL: &str = "effectd_http_requests_total";
/// Time from the headers of a request to its answer, by route.
pub const REQUEST_SECONDS: &str = "effectd_http_request_duration_seconds";
pub const CONNECTIONS: &str = "effectd_http_connections";
/// Open streams of live events.
pub const STREAMS: &str = "effectd_http_streams";
/// Connections that were refused, by reason.
pub const CONNECTIONS_REFUSED_TOTAL: &str = "effectd_http_connections_refused_total";
/// Accepted decisions that have not ended.
pub const BACKLOG: &str = "effectd_backlog_decisions";
/// The bytes of these decisions.
pub const BACKLOG_BYTES: &str = "effectd_backlog_bytes";
/// 1 while the policy's files are in force, 0 while they have a fault and an earlier policy decides.
pub const POLICY_FILES_IN_FORCE: &str = "effectd_policy_files_in_force";
/// 1 if a scheduled job failed the last time, by `what`: Prometheus has a label `job` of its own.
pub const JOB_FAILED: &str = "effectd_job_failed";
/// When a scheduled job was last done, in seconds since 1970, by `what`.
pub const JOB_DONE: &str = "effectd_job_done_timestamp_seconds";

#[derive(Clone)]
pub(crate) struct Metrics {
    pub(crate) requests: IntCounterVec,
    pub(crate) duration: HistogramVec,
    pub(crate) connections: IntGauge,
    pub(crate) streams: IntGauge,
    pub(crate) refused: IntCounterVec,
    pub(crate) backlog: IntGauge,
    pub(crate) backlog_bytes: IntGauge,
    pub(crate) policy_files: IntGauge,
    pub(crate) job_failed: IntGaugeVec,
    pub(crate) job_done: IntGaugeVec,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let buckets = prometheus::exponential_buckets(0.000_25, 2.0, 20)?;
        let options = HistogramOpts::new(REQUEST_SECONDS, "Time from headers to answer").buckets(buckets);
        let metrics = Self {
            requests: IntCounterVec::new(
                Opts::new(REQUESTS_TOTAL, "Requests by route and status"),
                &["route", "status"],
            )?,
            duration: HistogramVec::new(options, &["route"])?,
            connections: IntGauge::new(CONNECTIONS, "Connections that are open")?,
            streams: IntGauge::new(STREAMS, "Streams of live events that are open")?,
            refused: IntCounterVec::new(
                Opts::new(CONNECTIONS_REFUSED_TOTAL, "Connections that were refused or closed by the daemon"),
                &["reason"],
            )?,
            backlog: IntGauge::new(BACKLOG, "Accepted decisions that are unfinished")?,
            backlog_bytes: IntGauge::new(BACKLOG_BYTES, "Bytes of accepted decisions that are unfinished")?,
            policy_files: IntGauge::new(POLICY_FILES_IN_FORCE, "Whether the policy's files are in force")?,
            job_failed: IntGaugeVec::new(
                Opts::new(JOB_FAILED, "Whether a scheduled job failed the last time"),
                &["what"],
            )?,
            job_done: IntGaugeVec::new(Opts::new(JOB_DONE, "When a scheduled job was last done"), &["what"])?,
        };
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.duration.clone()))?;
        registry.register(Box::new(metrics.refused.clone()))?;
        registry.register(Box::new(metrics.job_failed.clone()))?;
        registry.register(Box::new(metrics.job_done.clone()))?;
        let Self { connections, streams, backlog, backlog_bytes, policy_files, .. } = &metrics;
        for gauge in [connections, streams, backlog, backlog_bytes, policy_files] {
            registry.register(Box::new(gauge.clone()))?;
        }
        Ok(metrics)
    }
}
