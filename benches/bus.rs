//! Throughput and latency of the Store, compared with the bare disk: `cargo bench --bench bus`.
//!
//! Every figure that is compared is a ratio of two measurements of the same run, taken in turns on the same disk, so that
//! a slow or busy machine slows both; what is judged is the median of the ratios. Processor time, of all threads and of
//! the caller too, is less noisy than the clock on a busy machine and is printed beside each rate. The directory is `$EFFECTD_BENCH_DIR` or the system's temporary one; it must be on
//! a real disk. A line that says `MISSED` is below what the Store must reach, and makes the exit code 1.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement prints, and stops on errors"
)]

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use effectd_bus::codec::Span;
use effectd_bus::embedded::{self, EmbeddedConfig};
use effectd_bus::journal::Journal;
use effectd_bus::{
    Acknowledged, GroupName, LocalStore, NewBody, NewEvent, Store, StoreError, TopicName, Wait,
};
use effectd_contracts::{EventId, SystemClock, Timestamp, TraceId};

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const RECORD_BYTES: usize = 1_024;
const PRODUCERS: usize = 64;
const TURNS: usize = 7;

#[path = "bus/actions.rs"]
mod actions;
#[path = "figures/journal.rs"]
mod journal;
#[path = "figures/lines.rs"]
mod lines;

fn main() {
    let base = std::env::var_os("EFFECTD_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let scratch = tempfile::Builder::new().prefix("effectd-bench").tempdir_in(&base).unwrap();
    println!("disk: {}", base.display());
    // `-- actions` measures only what has that name; Cargo itself adds `--bench`.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    let mut missed = 0;
    if is_wanted("records") {
        missed += records(scratch.path(), Duration::ZERO);
        missed += records(scratch.path(), Duration::from_millis(1));
    }
    if is_wanted("actions") {
        missed += actions::actions(scratch.path());
        actions::lookups(scratch.path());
    }
    if is_wanted("acks") {
        missed += acks(scratch.path());
    }
    drop(scratch);
    std::process::exit(i32::from(missed > 0));
}

/// Prints a figure that must reach a bound; 1 if it does not.
fn judge(what: &str, value: f64, holds: bool, bound: &str) -> u32 {
    let word = if holds { "reached" } else { "MISSED" };
    println!("  {what}: {value:.3} ({bound}: {word})");
    u32::from(!holds)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Processor time of this process so far, of all its threads.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// The cost of each operation in one measurement.
struct Cost {
    begun: Instant,
    cpu: Duration,
    syncs: u64,
}

impl Cost {
    fn begin(store: &LocalStore) -> Self {
        Cost { begun: Instant::now(), cpu: cpu(), syncs: store.stats().syncs }
    }

    /// Operations a second, processor microseconds and syncs of each.
    fn end(&self, store: &LocalStore, done: u64) -> (f64, f64, f64) {
        let done = done as f64;
        (
            done / self.begun.elapsed().as_secs_f64(),
            (cpu() - self.cpu).as_secs_f64() * 1e6 / done,
            (store.stats().syncs - self.syncs) as f64 / done,
        )
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// The journal on a slower disk.
struct Slow {
    inner: Arc<dyn Journal>,
    delay: Duration,
}

impl Journal for Slow {
    fn append(&self, seq: u64, block: &[u8]) -> Result<(), StoreError> {
        self.inner.append(seq, block)?;
        std::thread::sleep(self.delay);
        Ok(())
    }
    fn bounds(&self) -> Result<Option<(u64, u64)>, StoreError> {
        self.inner.bounds()
    }
    fn block(&self, seq: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.block(seq)
    }
    fn part(&self, seq: u64, span: Span) -> Result<Vec<u8>, StoreError> {
        self.inner.part(seq, span)
    }
    fn first(&self) -> u64 {
        self.inner.first()
    }
    fn checkpoint(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.checkpoint()
    }
    fn stage(&self, seq: u64, ground: &[u8]) -> Result<(), StoreError> {
        self.inner.stage(seq, ground)
    }
    fn truncate_before(&self, seq: u64) -> Result<(), StoreError> {
        self.inner.truncate_before(seq)
    }
}

fn open(state: &Path, delay: Duration) -> LocalStore {
    let wrap = move |inner: Arc<dyn Journal>| -> Arc<dyn Journal> {
        if delay.is_zero() { inner } else { Arc::new(Slow { inner, delay }) }
    };
    let config = EmbeddedConfig { journal: journal::journal(), ..EmbeddedConfig::new(state) };
    embedded::open_wrapped(config, Arc::new(SystemClock), Box::new(wrap)).unwrap()
}

/// Bare appends of `batch` records with one `fdatasync` each: records a second.
fn bare(file: &mut File, batch: usize, delay: Duration, time: Duration) -> f64 {
    let bytes = vec![7_u8; RECORD_BYTES * batch];
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < time {
        file.write_all(&bytes).unwrap();
        file.sync_data().unwrap();
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        count += batch;
    }
    count as f64 / begun.elapsed().as_secs_f64()
}

fn event(body: &[u8]) -> NewEvent {
    NewEvent {
        event_id: EventId::fresh(),
        time: Timestamp::now(),
        trace_id: TraceId::new("bench").unwrap(),
        action_id: None,
        body: NewBody::Clear(body.to_vec()),
    }
}

/// Keeps `depth` operations in flight for a while; gives operations a second and each one's latency.
fn in_flight<T>(depth: usize, time: Duration, mut start: impl FnMut() -> Wait<T>) -> (f64, Vec<Duration>) {
    let begun = Instant::now();
    let mut waiting = VecDeque::with_capacity(depth);
    let mut latencies = Vec::new();
    while begun.elapsed() < time || !waiting.is_empty() {
        while waiting.len() < depth && begun.elapsed() < time {
            waiting.push_back((Instant::now(), start()));
        }
        if let Some((since, wait)) = waiting.pop_front() {
            wait.wait().unwrap();
            latencies.push(since.elapsed());
        }
    }
    let rate = latencies.len() as f64 / begun.elapsed().as_secs_f64();
    latencies.sort();
    (rate, latencies)
}

/// Durable records beside the bare disk.
fn records(scratch: &Path, delay: Duration) -> u32 {
    let name = format!("records-{}", delay.as_millis());
    println!("durable records of {RECORD_BYTES} bytes, {delay:?} added to every sync:");
    let store = open(&scratch.join(&name), delay);
    let mut file =
        OpenOptions::new().create(true).append(true).open(scratch.join(format!("{name}.bare"))).unwrap();
    let topic = TopicName::new("records").unwrap();
    let body = vec![b'x'; RECORD_BYTES];
    let publish = || store.publish(&topic, vec![event(&body)]);
    let turn = Duration::from_millis(if delay.is_zero() { 400 } else { 600 });
    let (mut alone, mut many) = (Vec::new(), Vec::new());
    let (mut bare_alone, mut bare_many) = (Vec::new(), Vec::new());
    let mut latencies = Vec::new();
    let mut cpu_each = Vec::new();
    for _ in 0..TURNS {
        bare_alone.push(bare(&mut file, 1, delay, turn));
        alone.push(in_flight(1, turn, publish).0);
        bare_many.push(bare(&mut file, PRODUCERS, delay, turn));
        let cost = Cost::begin(&store);
        let (rate, more) = in_flight(PRODUCERS, turn, publish);
        cpu_each.push(cost.end(&store, more.len() as u64).1);
        many.push(rate);
        latencies.extend(more);
    }
    latencies.sort();
    let stats = store.stats();
    println!("  one by one: {:.0}/s (bare {:.0}/s)", median(alone.clone()), median(bare_alone.clone()));
    println!(
        "  {PRODUCERS} in flight: {:.0}/s (bare, {PRODUCERS} a sync: {:.0}/s)",
        median(many.clone()),
        median(bare_many.clone())
    );
    let (p50, p99) = (percentile(&latencies, 50), percentile(&latencies, 99));
    println!(
        "  {PRODUCERS} in flight: p50 {p50:?}, p99 {p99:?}; largest batch {}; {:.1} us of processor each",
        stats.batch_max,
        median(cpu_each)
    );
    store.close().unwrap();
    let ratio = |ours: &[f64], theirs: &[f64]| median(ours.iter().zip(theirs).map(|(a, b)| a / b).collect());
    let (one, all) = (ratio(&alone, &bare_alone), ratio(&many, &bare_many));
    let spread = |rates: &[f64]| {
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        rates.iter().copied().fold(0.0, f64::max) / least
    };
    println!(
        "  bare, fastest turn over slowest: {:.1} and {:.1} (far above 1, others used the disk and the ratios say little)",
        spread(&bare_alone),
        spread(&bare_many)
    );
    judge("ratio one by one", one, one >= 0.5, "at least 0.5")
        + judge("ratio in flight", all, all >= 0.25, "at least 0.25")
}

/// How long an ack takes while many are in flight.
fn acks(scratch: &Path) -> u32 {
    println!("acks, {PRODUCERS} in flight:");
    let store = open(&scratch.join("acks"), Duration::ZERO);
    let (topic, group) = (TopicName::new("t").unwrap(), GroupName::new("g").unwrap());
    for _ in 0..20 {
        store.publish(&topic, (0..1_000).map(|_| event(b"{}")).collect()).wait().unwrap();
    }
    let mut leases = VecDeque::new();
    loop {
        let leased = store.lease(&topic, &group, 1_000, Duration::from_secs(600)).wait().unwrap();
        if leased.deliveries.is_empty() {
            break;
        }
        leases.extend(leased.deliveries.into_iter().map(|delivery| delivery.lease_id));
    }
    let mut waiting = VecDeque::new();
    let mut latencies = Vec::new();
    let begun = Instant::now();
    while !leases.is_empty() || !waiting.is_empty() {
        while waiting.len() < PRODUCERS
            && let Some(lease) = leases.pop_front()
        {
            waiting.push_back((Instant::now(), store.ack(lease)));
        }
        if let Some((since, wait)) = waiting.pop_front() {
            assert_eq!(wait.wait().unwrap(), Acknowledged::Done);
            latencies.push(since.elapsed());
        }
    }
    let rate = latencies.len() as f64 / begun.elapsed().as_secs_f64();
    latencies.sort();
    let (p50, p99) = (percentile(&latencies, 50), percentile(&latencies, 99));
    println!("  {rate:.0}/s, p50 {p50:?}, p99 {p99:?}");
    store.close().unwrap();
    let ratio = p99.as_secs_f64() / p50.as_secs_f64();
    judge("p99 over p50", ratio, ratio <= 3.0, "at most 3")
}
