//! A day of traffic on a manual clock: `cargo bench --bench day`.
//!
//! Every hour some hundred actions go through the whole runtime, its sandbox and its disk: most of them new, some asked for
//! again, some refused. Then the clock is an hour later, and retention lets go of what is older than it keeps. Memory and
//! descriptors must not grow after the first hours, and the disk must hold what is kept and not what has passed.
//! `$EFFECTD_BENCH_ACTIONS` sets the actions of an hour, `$EFFECTD_BENCH_HOURS` how many hours. A line that says `MISSED` is
//! beyond its bound, and makes the exit code 1.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![allow(clippy::disallowed_methods, reason = "its day begins now")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has nothing to say")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use effectd::contracts::{ManualClock, Outcome, Timestamp};
use effectd::internal::Runtime;
use effectd_actors::operator::retention;
use effectd_bus::{Keep, Retention, TopicKeep};
use serde_json::json;

#[path = "load/fixture.rs"]
mod fixture;
#[path = "figures/journal.rs"]
mod journal;
#[path = "figures/lines.rs"]
mod lines;

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HOUR: Duration = Duration::from_secs(3_600);
/// How long receipts and events are kept: a sixth of the day.
const KEPT: Duration = HOUR.saturating_mul(4);
/// The hour from which on nothing may grow: retention has run once, and every pool has its size.
const SETTLED: u64 = 8;
const IN_FLIGHT: usize = 8;
/// Files that the actions write to in turns.
const FILES: usize = 50;

/// Memory, descriptors and disk at the end of an hour.
#[derive(Debug, Clone, Copy)]
struct Sample {
    resident: u64,
    descriptors: u64,
    store: u64,
    blobs: u64,
}

fn main() {
    // In a process that the sandbox started this does not return.
    effectd::init(fixture::tools());
    let number = |name: &str, otherwise: u64| {
        let set = std::env::var(name).ok();
        set.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let (actions, hours) =
        (number("EFFECTD_BENCH_ACTIONS", 300), number("EFFECTD_BENCH_HOURS", 24).max(SETTLED + 1));
    let base = std::env::var_os("EFFECTD_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let scratch = tempfile::Builder::new().prefix("effectd-day").tempdir_in(base).expect("a directory");
    let threads = tokio::runtime::Runtime::new().expect("threads");
    let samples = threads.block_on(day(scratch.path(), actions, hours));
    let missed = judge_all(&samples);
    drop(scratch);
    std::process::exit(i32::from(missed > 0));
}

async fn day(scratch: &Path, actions: u64, hours: u64) -> Vec<Sample> {
    // From now on: files have the machine's times.
    let clock = Arc::new(ManualClock::at(Timestamp::now()));
    let state = scratch.join("state");
    let runtime = Arc::new(
        fixture::open(&state, |config| {
            config.clock = clock.clone();
            config.pipeline.retention = kept();
            // So that a segment is small, compared with the live data, as with months of receipts.
            config.store.segment_bytes = 256 << 10;
        })
        .await,
    );
    println!("{:>4} {:>9} {:>12} {:>10} {:>10}", "hour", "MiB", "descriptors", "store KiB", "blobs KiB");
    let mut samples = Vec::new();
    for hour in 0..hours {
        traffic(&runtime, hour, actions).await;
        clock.advance(HOUR);
        let services = runtime.pipeline().services().clone();
        while retention::run(&services).await.expect("a turn").more {}
        samples.push(sample(&state, hour));
    }
    Arc::into_inner(runtime).expect("all lanes have ended").stop().await;
    samples
}

fn kept() -> Retention {
    let keep = Keep { age: Some(KEPT), bytes: None };
    Retention {
        receipts: keep,
        letters: Some(KEPT),
        topics: BTreeMap::new(),
        others: TopicKeep { keep, unacknowledged: false },
    }
}

/// One hour's actions: of ten, seven are new, two are asked for again, one is refused.
async fn traffic(runtime: &Arc<Runtime>, hour: u64, actions: u64) {
    let lanes: Vec<_> = (0..IN_FLIGHT as u64)
        .map(|lane| {
            let runtime = runtime.clone();
            tokio::spawn(async move {
                for n in (lane..actions).step_by(IN_FLIGHT) {
                    let file = format!("day-{}", n as usize % FILES);
                    let action = format!("day-{hour}-{n}");
                    let text = format!("{action} {}", "a line of text ".repeat(20));
                    match n % 10 {
                        0..=6 => {
                            let asked = fixture::request(fixture::WRITE, &action, &file, &text);
                            fixture::exec(&runtime, asked, Outcome::Executed).await;
                        }
                        7 | 8 => {
                            let asked = fixture::request(
                                fixture::WRITE,
                                &action,
                                &format!("again-{lane}"),
                                "the same text",
                            );
                            fixture::exec(&runtime, asked, Outcome::Executed).await;
                        }
                        _ => {
                            let asked = fixture::request(fixture::WRITE, &action, "../../outside", &text);
                            fixture::exec(&runtime, asked, Outcome::Invalid).await;
                        }
                    }
                }
            })
        })
        .collect();
    for lane in lanes {
        lane.await.expect("a lane");
    }
}

fn sample(state: &Path, hour: u64) -> Sample {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("/proc");
    let pages = pages.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    let sample = Sample {
        resident: pages.expect("a number") * 4_096,
        descriptors: std::fs::read_dir("/proc/self/fd").expect("/proc").count() as u64,
        store: size(&state.join("journal")) + size(&state.join("index")),
        blobs: size(&state.join("blobs")),
    };
    println!(
        "{hour:>4} {:>9} {:>12} {:>10} {:>10}",
        sample.resident >> 20,
        sample.descriptors,
        sample.store >> 10,
        sample.blobs >> 10
    );
    let line = json!({
        "peer": "effectd-runtime", "version": env!("CARGO_PKG_VERSION"), "work": "day", "hour": hour,
        "resident_mib": sample.resident >> 20, "descriptors": sample.descriptors,
        "store_kib": sample.store >> 10, "blobs_kib": sample.blobs >> 10,
    });
    lines::note(line, &[]);
    sample
}

/// Bytes of the files in a folder; none if there is no such folder.
fn size(path: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(path) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => size(&entry.path()),
        Ok(data) => data.len(),
        // It was removed between listing and reading.
        Err(_) => 0,
    });
    sizes.sum()
}

/// The last hours beside those after which nothing may grow.
fn judge_all(samples: &[Sample]) -> u32 {
    let (before, after) = samples.split_at(SETTLED as usize);
    let most = |of: &[Sample], what: fn(&Sample) -> u64| of.iter().map(what).max().unwrap_or(0) as f64;
    let mib = f64::from(1 << 20);
    let grown = (most(after, |s| s.resident) - most(before, |s| s.resident)) / mib;
    let descriptors = most(after, |s| s.descriptors) - most(before, |s| s.descriptors);
    let disk = most(after, |s| s.store) / most(before, |s| s.store);
    judge("MiB more than in the first hours", grown, 16.0)
        + judge("descriptors more than in the first hours", descriptors, 8.0)
        + judge("store on disk, of that in the first hours", disk, 1.25)
}

fn judge(what: &str, value: f64, most: f64) -> u32 {
    let holds = value <= most;
    let word = if holds { "reached" } else { "MISSED" };
    println!("{what}: {value:.2} (at most {most}: {word})");
    u32::from(!holds)
}
