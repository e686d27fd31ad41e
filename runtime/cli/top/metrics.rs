//! Reads the daemon's metrics, and computes rates and percentiles.

use std::collections::BTreeMap;
use std::time::Duration;

use effectd_actors::STAGES;
use effectd_actors::metrics::{
    ACTION_SECONDS, ACTIONS_TOTAL, DEAD_LETTERS_TOTAL, IN_FLIGHT, PANICS_TOTAL, STAGE_BUSY, STAGE_QUEUE,
    STAGE_SECONDS, STALLS_TOTAL,
};
use effectd_bus::limits::INDEX_MEMTABLE_BLOCKS;
use effectd_bus::stats::{DEAD_LETTERS, INDEX_LAG_BLOCKS, QUARANTINED, QUEUE_OPERATIONS};
use effectd_gateway::metrics::BACKLOG;
use serde::Serialize;

/// The number of series that are read: far more than a daemon has.
const SERIES_MAX: usize = 100_000;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Figures {
    /// Ended actions, by tool and outcome.
    ended: BTreeMap<(String, String), f64>,
    /// Latency of all tools together.
    took: Buckets,
    stages: BTreeMap<String, Stage>,
    /// Dead letters now, without quarantined actions.
    pub(super) letters: f64,
    /// Dead letters since the daemon started.
    pub(super) letters_ever: f64,
    pub(super) quarantined: f64,
    pub(super) in_flight: f64,
    pub(super) backlog: f64,
    pub(super) queued: f64,
    pub(super) lag: f64,
    pub(super) faults: f64,
}

/// A cumulative histogram, by the upper bound of each bucket.
type Buckets = BTreeMap<Seconds, f64>;

#[derive(Debug, Clone, Default, PartialEq)]
struct Stage {
    waiting: f64,
    busy: f64,
    took: Buckets,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct StageRow {
    pub(super) stage: String,
    pub(super) waiting: u64,
    /// Busy workers.
    pub(super) at_work: u64,
    pub(super) workers: u64,
    /// Recent restarts.
    pub(super) restarts: u64,
    /// Actions per second since the last snapshot.
    pub(super) rate: f64,
    /// Time in the stage, in seconds; `None` if no action passed.
    pub(super) p50: Option<f64>,
    /// In seconds.
    pub(super) p95: Option<f64>,
}

/// Seconds, with a total order.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Seconds(f64);

impl Eq for Seconds {}

impl PartialOrd for Seconds {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Seconds {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct ToolRow {
    pub(super) tool: String,
    /// Actions that ended since the daemon started.
    pub(super) ended: u64,
    /// Those of them with an outcome in [`WELL`].
    pub(super) well: u64,
    /// Actions that ended per second, since the last snapshot.
    pub(super) rate: f64,
    /// The other ended actions, by outcome.
    pub(super) otherwise: BTreeMap<String, u64>,
}

/// Throughput and latency between two snapshots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Rates {
    /// Actions that ended per second.
    pub(super) rate: f64,
    /// In seconds; `None` if no action ended.
    pub(super) p50: Option<f64>,
    /// In seconds.
    pub(super) p95: Option<f64>,
    /// In seconds.
    pub(super) p99: Option<f64>,
}

/// Outcomes that do not count as failures.
const WELL: [&str; 4] = ["executed", "cached_hit", "dry_run", "paused"];

impl Figures {
    /// Reads Prometheus text. Unknown series are ignored.
    pub(super) fn read(text: &str) -> Self {
        let mut figures = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')).take(SERIES_MAX) {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let Ok(value) = value.parse::<f64>() else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            match name {
                IN_FLIGHT => figures.in_flight = value,
                BACKLOG => figures.backlog = value,
                QUEUE_OPERATIONS => figures.queued = value,
                INDEX_LAG_BLOCKS => figures.lag = value,
                PANICS_TOTAL | STALLS_TOTAL => figures.faults += value,
                DEAD_LETTERS => figures.letters = value,
                DEAD_LETTERS_TOTAL => figures.letters_ever += value,
                QUARANTINED => figures.quarantined = value,
                STAGE_QUEUE => figures.stage(labels).waiting = value,
                STAGE_BUSY => figures.stage(labels).busy = value,
                ACTIONS_TOTAL => {
                    let key = (label(labels, "tool_id"), label(labels, "outcome"));
                    *figures.ended.entry(key).or_default() += value;
                }
                _ if name.strip_suffix("_bucket") == Some(ACTION_SECONDS) => {
                    let end = label(labels, "le").parse().unwrap_or(f64::INFINITY);
                    *figures.took.entry(Seconds(end)).or_default() += value;
                }
                _ if name.strip_suffix("_bucket") == Some(STAGE_SECONDS) => {
                    let end = label(labels, "le").parse().unwrap_or(f64::INFINITY);
                    *figures.stage(labels).took.entry(Seconds(end)).or_default() += value;
                }
                _ => {}
            }
        }
        figures
    }

    fn stage(&mut self, labels: &str) -> &mut Stage {
        self.stages.entry(label(labels, "stage")).or_default()
    }

    /// The number of durable blocks that are not in the index, if it is not normal: one memtable fills while another is flushed.
    pub(super) fn blocks_unindexed(&self) -> Option<u64> {
        let blocks = whole(self.lag);
        (blocks > 2 * INDEX_MEMTABLE_BLOCKS as u64).then_some(blocks)
    }

    /// The stages, in the order of the pipeline. Workers and restarts stay 0: metrics do not have them.
    pub(super) fn stages(&self, before: Option<(&Figures, Duration)>) -> Vec<StageRow> {
        let (none, nothing) = (Figures::default(), Stage::default());
        let (past, time) = before.unwrap_or((&none, Duration::ZERO));
        let rows = STAGES.iter().map(|name| {
            let now = self.stages.get(*name).unwrap_or(&nothing);
            let was = past.stages.get(*name).unwrap_or(&nothing);
            let passed = |stage: &Stage| stage.took.values().next_back().copied().unwrap_or(0.0);
            StageRow {
                stage: (*name).to_owned(),
                waiting: whole(now.waiting),
                at_work: whole(now.busy),
                rate: rate(passed(now) - passed(was), time),
                p50: percentile(&now.took, &was.took, 0.50),
                p95: percentile(&now.took, &was.took, 0.95),
                ..StageRow::default()
            }
        });
        rows.collect()
    }

    /// The tools, by rate, highest first.
    pub(super) fn tools(&self, before: Option<(&Figures, Duration)>) -> Vec<ToolRow> {
        let mut rows: BTreeMap<&str, ToolRow> = BTreeMap::new();
        for ((tool, outcome), count) in &self.ended {
            let row = rows.entry(tool).or_default();
            row.tool.clone_from(tool);
            row.ended += whole(*count);
            if WELL.contains(&outcome.as_str()) {
                row.well += whole(*count);
            } else {
                *row.otherwise.entry(outcome.clone()).or_default() += whole(*count);
            }
            let key = (tool.clone(), outcome.clone());
            row.rate += before.map_or(0.0, |(before, time)| {
                rate(*count - before.ended.get(&key).copied().unwrap_or(0.0), time)
            });
        }
        let mut rows: Vec<_> = rows.into_values().collect();
        rows.sort_by(|a, b| b.rate.total_cmp(&a.rate).then(b.ended.cmp(&a.ended)));
        rows
    }

    pub(super) fn rates(&self, before: &Figures, time: Duration) -> Rates {
        let all = |figures: &Figures| figures.ended.values().sum::<f64>();
        let part = |share: f64| percentile(&self.took, &before.took, share);
        Rates { rate: rate(all(self) - all(before), time), p50: part(0.50), p95: part(0.95), p99: part(0.99) }
    }
}

/// The percentile of the actions that ended between two histograms, interpolated within its bucket.
fn percentile(now: &Buckets, before: &Buckets, share: f64) -> Option<f64> {
    let since = |end: &Seconds, count: &f64| count - before.get(end).copied().unwrap_or(0.0);
    let (_, all) = now.iter().map(|(end, count)| (end, since(end, count))).next_back()?;
    if all <= 0.0 {
        return None;
    }
    let wanted = all * share;
    let (mut low, mut below) = (0.0, 0.0);
    for (end, count) in now {
        let count = since(end, count);
        if count >= wanted {
            if end.0.is_infinite() || count <= below {
                return Some(low);
            }
            return Some(low + (end.0 - low) * (wanted - below) / (count - below));
        }
        (low, below) = (end.0, count);
    }
    Some(low)
}

/// A count is negative if the daemon has restarted; then the rate is 0.
fn rate(count: f64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count.max(0.0) / time.as_secs_f64() }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count, which a float saturates to"
)]
pub(super) fn whole(count: f64) -> u64 {
    count as u64
}

/// The value of a label; names of tools and outcomes have no quotes or commas.
fn label(labels: &str, name: &str) -> String {
    let found = labels.split(['{', ',', '}']).find_map(|label| {
        let value = label.trim().strip_prefix(name)?.strip_prefix("=\"")?;
        value.strip_suffix('"')
    });
    found.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const BEFORE: &str = "effectd_actions_total{outcome=\"executed\",tool_id=\"files.copy\"} 10\n\
        effectd_action_duration_seconds_bucket{tool_id=\"files.copy\",le=\"0.1\"} 10\n\
        effectd_action_duration_seconds_bucket{tool_id=\"files.copy\",le=\"+Inf\"} 10\n";
    const AFTER: &str = "# HELP x y\neffectd_actions_total{outcome=\"executed\",tool_id=\"files.copy\"} 18\n\
        effectd_actions_total{outcome=\"timed_out\",tool_id=\"files.copy\"} 2\nnonsense\n\
        effectd_action_duration_seconds_bucket{tool_id=\"files.copy\",le=\"0.1\"} 15\n\
        effectd_action_duration_seconds_bucket{tool_id=\"files.copy\",le=\"0.2\"} 20\n\
        effectd_action_duration_seconds_bucket{tool_id=\"files.copy\",le=\"+Inf\"} 20\n\
        effectd_actions_in_flight 3\neffectd_backlog_decisions 4\n";

    #[test]
    fn stages_are_told_in_their_order_with_what_passed_between() {
        let text = "effectd_stage_queue_actions{stage=\"gate\"} 7\neffectd_stage_busy_workers{stage=\"gate\"} 2\n\
            effectd_stage_duration_seconds_bucket{stage=\"gate\",le=\"0.1\"} 4\n\
            effectd_stage_duration_seconds_bucket{stage=\"gate\",le=\"+Inf\"} 4\n\
            effectd_dead_letters 5\neffectd_dead_letters_total{code=\"x\"} 6\neffectd_quarantined_actions 7\n";
        let now = Figures::read(text);
        assert_eq!((now.letters, now.letters_ever, now.quarantined), (5.0, 6.0, 7.0));
        let rows = now.stages(Some((&Figures::default(), Duration::from_secs(2))));
        let names: Vec<_> = rows.iter().map(|row| row.stage.as_str()).collect();
        assert_eq!(names, STAGES);
        let gate = &rows[1];
        assert_eq!((gate.waiting, gate.at_work, gate.rate), (7, 2, 2.0));
        assert_eq!(gate.p50, Some(0.05));
        assert_eq!(rows[0].p95, None);
    }

    #[test]
    fn rates_and_percentiles_are_those_of_the_time_between() {
        let (before, after) = (Figures::read(BEFORE), Figures::read(AFTER));
        assert_eq!((after.in_flight, after.backlog), (3.0, 4.0));
        let time = Duration::from_secs(2);
        let rates = after.rates(&before, time);
        assert_eq!(rates.rate, 5.0);
        // Five of the ten actions took at most 0.1 s and, by a bucket that is new, all took at most 0.2 s.
        assert_eq!(rates.p50, Some(0.1));
        assert!(rates.p95.unwrap() > 0.1 && rates.p95.unwrap() <= 0.2, "{rates:?}");
        let tools = after.tools(Some((&before, time)));
        assert_eq!((tools[0].ended, tools[0].well, tools[0].rate), (20, 18, 5.0));
        assert_eq!(tools[0].otherwise["timed_out"], 2);
        assert_eq!(after.rates(&after, time), Rates::default());
        // The daemon has restarted.
        assert_eq!(before.rates(&after, time).rate, 0.0);
    }
}
