//! The counters of the Store, as plain numbers and as Prometheus metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::core::Collector;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntGauge, Registry};

pub const SYNCS_TOTAL: &str = "effectd_store_syncs_total";
pub const BLOCKS_TOTAL: &str = "effectd_store_blocks_total";
pub const RECORDS_TOTAL: &str = "effectd_store_records_total";
pub const JOURNAL_BYTES_TOTAL: &str = "effectd_store_journal_bytes_total";
pub const OPERATIONS_TOTAL: &str = "effectd_store_operations_total";
/// Metric: operations refused because the queue was full.
pub const OVERLOADED_TOTAL: &str = "effectd_store_overloaded_total";
pub const REOPENS_TOTAL: &str = "effectd_store_reopens_total";
pub const QUEUE_OPERATIONS: &str = "effectd_store_queue_operations";
/// Metric: blocks that are durable but not yet in a run of the index.
pub const INDEX_LAG_BLOCKS: &str = "effectd_store_index_lag_blocks";
/// Metric: dead letters that are not quarantined.
pub const DEAD_LETTERS: &str = "effectd_dead_letters";
/// Metric: dead letters of quarantined actions. They wait for a review; nothing has failed.
pub const QUARANTINED: &str = "effectd_quarantined_actions";
/// Metric: 1 once a read has met damage that only a person can repair.
pub const DAMAGED: &str = "effectd_store_damaged";
pub const DISK_FREE_BYTES: &str = "effectd_disk_free_bytes";
pub const DISK_SIZE_BYTES: &str = "effectd_disk_size_bytes";
pub const BATCH_OPERATIONS: &str = "effectd_store_batch_operations";
/// Metric: how long an operation waited until it was durable; a link waits on purpose, and is left out.
pub const WAIT_SECONDS: &str = "effectd_store_wait_seconds";
pub const SYNC_SECONDS: &str = "effectd_store_sync_seconds";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    pub syncs: u64,
    pub blocks: u64,
    pub records: u64,
    pub journal_bytes: u64,
    pub operations: u64,
    /// Operations refused because the queue was full.
    pub overloaded: u64,
    /// Times the store was reopened after a disk error, a panic or damage of the index.
    pub reopens: u64,
    pub queued: u64,
    /// Blocks that are durable but not yet in a run of the index.
    pub index_lag_blocks: u64,
    /// Operations in the block that was written last.
    pub batch_last: u64,
    /// Operations in the largest block so far.
    pub batch_max: u64,
    pub intents_open: u64,
    /// Dead letters, with those of quarantined actions.
    pub letters: u64,
}

/// The live counters.
pub(crate) struct Meters {
    pub(crate) syncs: IntCounter,
    pub(crate) blocks: IntCounter,
    pub(crate) records: IntCounter,
    pub(crate) journal_bytes: IntCounter,
    pub(crate) operations: IntCounter,
    pub(crate) overloaded: IntCounter,
    pub(crate) reopens: IntCounter,
    pub(crate) queued: IntGauge,
    pub(crate) index_lag: IntGauge,
    pub(crate) letters: IntGauge,
    pub(crate) quarantined: IntGauge,
    pub(crate) damaged: IntGauge,
    pub(crate) disk_free: IntGauge,
    pub(crate) disk_size: IntGauge,
    pub(crate) batch: Histogram,
    pub(crate) wait: Histogram,
    pub(crate) sync: Histogram,
    pub(crate) batch_last: AtomicU64,
    pub(crate) batch_max: AtomicU64,
    pub(crate) intents_open: AtomicU64,
}

#[expect(
    clippy::expect_used,
    reason = "names, help texts and buckets are constants of this file, checked by its test"
)]
impl Meters {
    pub(crate) fn new() -> Self {
        let counter = |name: &str, help: &str| IntCounter::new(name, help).expect("a valid constant");
        let gauge = |name: &str, help: &str| IntGauge::new(name, help).expect("a valid constant");
        let histogram = |name: &str, help: &str, first: f64, factor: f64, count: usize| {
            let buckets = prometheus::exponential_buckets(first, factor, count).expect("valid constants");
            Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets)).expect("a valid constant")
        };
        Meters {
            syncs: counter(SYNCS_TOTAL, "Syncs of the journal"),
            blocks: counter(BLOCKS_TOTAL, "Blocks written to the journal"),
            records: counter(RECORDS_TOTAL, "Records written to the journal"),
            journal_bytes: counter(JOURNAL_BYTES_TOTAL, "Bytes written to the journal"),
            operations: counter(OPERATIONS_TOTAL, "Operations that were answered"),
            overloaded: counter(OVERLOADED_TOTAL, "Operations refused because the queue was full"),
            reopens: counter(REOPENS_TOTAL, "Times that the store was reopened after a disk error"),
            queued: gauge(QUEUE_OPERATIONS, "Operations that wait for the writer"),
            index_lag: gauge(INDEX_LAG_BLOCKS, "Blocks that are durable but not yet in the index"),
            letters: gauge(DEAD_LETTERS, "Dead letters that are stored now and not quarantined"),
            quarantined: gauge(QUARANTINED, "Quarantined actions that wait for a review"),
            damaged: gauge(DAMAGED, "Whether a read has met damage of the store"),
            disk_free: gauge(DISK_FREE_BYTES, "Free bytes of the disk that holds the state"),
            disk_size: gauge(DISK_SIZE_BYTES, "Size of the disk that holds the state"),
            batch: histogram(BATCH_OPERATIONS, "Operations per block", 1.0, 2.0, 11),
            wait: histogram(
                WAIT_SECONDS,
                "Time until an operation other than a link was durable",
                0.000_05,
                2.0,
                18,
            ),
            sync: histogram(SYNC_SECONDS, "Time of one sync of the journal", 0.000_02, 2.0, 18),
            batch_last: AtomicU64::new(0),
            batch_max: AtomicU64::new(0),
            intents_open: AtomicU64::new(0),
        }
    }

    pub(crate) fn read(&self) -> Stats {
        let of = |gauge: &IntGauge| u64::try_from(gauge.get()).unwrap_or(0);
        Stats {
            syncs: self.syncs.get(),
            blocks: self.blocks.get(),
            records: self.records.get(),
            journal_bytes: self.journal_bytes.get(),
            operations: self.operations.get(),
            overloaded: self.overloaded.get(),
            reopens: self.reopens.get(),
            queued: of(&self.queued),
            index_lag_blocks: of(&self.index_lag),
            batch_last: self.batch_last.load(Ordering::Relaxed),
            batch_max: self.batch_max.load(Ordering::Relaxed),
            intents_open: self.intents_open.load(Ordering::Relaxed),
            letters: of(&self.letters) + of(&self.quarantined),
        }
    }

    pub(crate) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let all: [Box<dyn Collector>; 17] = [
            Box::new(self.syncs.clone()),
            Box::new(self.blocks.clone()),
            Box::new(self.records.clone()),
            Box::new(self.journal_bytes.clone()),
            Box::new(self.operations.clone()),
            Box::new(self.overloaded.clone()),
            Box::new(self.reopens.clone()),
            Box::new(self.queued.clone()),
            Box::new(self.index_lag.clone()),
            Box::new(self.letters.clone()),
            Box::new(self.quarantined.clone()),
            Box::new(self.damaged.clone()),
            Box::new(self.disk_free.clone()),
            Box::new(self.disk_size.clone()),
            Box::new(self.batch.clone()),
            Box::new(self.wait.clone()),
            Box::new(self.sync.clone()),
        ];
        all.into_iter().try_for_each(|collector| registry.register(collector))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_metric_registers_once() {
        let registry = Registry::new();
        let meters = Meters::new();
        meters.register(&registry).unwrap();
        meters.syncs.inc();
        assert_eq!(registry.gather().len(), 17);
        assert_eq!(meters.read().syncs, 1);
    }
}
