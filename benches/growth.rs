//! The Store as it grows: throughput, opening, memory and disk: `cargo bench --bench growth`.
//!
//! Throughput of a store with a million receipts beside that of new stores with ten thousand, in turns, so that a machine
//! that is faster in one minute than in the next does not decide; how long it takes to open; how much memory it takes to
//! read a million events as a stream; what ten times the live data takes on disk when it has passed through.
//! `EFFECTD_BENCH_RECEIPTS` chooses another number, such as 5000000.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement prints, and stops on errors"
)]

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use effectd_bus::embedded::{self, EmbeddedConfig};
use effectd_bus::{
    Completion, Keep, LocalStore, NewBody, NewEvent, NewReceipt, Retention, RetentionMode, Store, TopicKeep,
    TopicName,
};
use effectd_contracts::{
    ActionId, Digest, EventId, IdempotencyKey, ReceiptId, SpaceId, Status, SubjectId, SystemClock, Timestamp,
    ToolId, TraceId,
};
use serde_json::json;

#[path = "figures/journal.rs"]
mod journal;
#[path = "figures/lines.rs"]
mod lines;

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FEW: u64 = 10_000;
const MANY: u64 = 1_000_000;
/// Receipts in one window of a measurement, and pairs of windows, with many and with few, whose median counts.
const WINDOW: u64 = 10_000;
const PAIRS: u64 = 25;
const IN_FLIGHT: usize = 64;
/// Steps in which the store is filled; each is measured.
const STEPS: u64 = 20;
/// Receipts that are kept while ten times as many pass through.
const TURNOVER_LIVE: u64 = 30_000;

fn main() {
    let base = std::env::var_os("EFFECTD_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let many = std::env::var("EFFECTD_BENCH_RECEIPTS").map_or(MANY, |text| text.parse().unwrap());
    let scratch = tempfile::Builder::new().prefix("effectd-growth").tempdir_in(&base).unwrap();
    println!("disk: {}", base.display());
    let store = open(scratch.path());
    let mut next = 0;
    fill(&store, &mut next, many.saturating_sub(PAIRS * WINDOW));
    let (ratio, few, lots) = compare(&store, &mut next, &base);
    println!("receipts a second with {FEW}: {few:.0}");
    println!("receipts a second with {next}: {lots:.0}");
    println!("resident: {} MiB", resident() >> 20);
    note(next, lots);
    store.close().unwrap();
    drop(store);
    let disk = |name: &str| size(&scratch.path().join(name)) >> 20;
    println!("on disk: journal {} MiB, index {} MiB", disk("journal"), disk("index"));
    let begun = Instant::now();
    let store = open(scratch.path());
    let opening = begun.elapsed();
    let (read, grown) = replay(&store);
    store.close().unwrap();
    let mut missed = 0;
    missed += judge("throughput, many over few", ratio, ratio >= 0.9, "at least 0.9");
    let seconds = opening.as_secs_f64();
    missed += judge("seconds to open", seconds, seconds <= 2.0, "at most 2");
    assert_eq!(read, next);
    let grown = grown as f64 / f64::from(1 << 20);
    missed += judge("MiB more while reading all events", grown, grown <= 64.0, "at most 64");
    drop(scratch);
    missed += turnover(&base);
    std::process::exit(i32::from(missed > 0));
}

/// Ten times the live data passes through a store: its final size on disk, over the live data.
fn turnover(base: &Path) -> u32 {
    let scratch = tempfile::Builder::new().prefix("effectd-turnover").tempdir_in(base).unwrap();
    let config = EmbeddedConfig {
        // So that a segment is as small, compared with the live data, as with a year of receipts.
        segment_bytes: 4 << 20,
        journal: journal::journal(),
        ..EmbeddedConfig::new(scratch.path())
    };
    let store = embedded::open(config, Arc::new(SystemClock)).unwrap();
    let keep = |bytes| Keep { age: None, bytes: Some(bytes) };
    // About 1.25 KiB of a receipt and 0.4 KiB of its event are in the journal.
    let retention = Retention {
        receipts: keep(TURNOVER_LIVE * 1_250),
        letters: None,
        topics: BTreeMap::new(),
        others: TopicKeep { keep: keep(TURNOVER_LIVE * 400), unacknowledged: false },
    };
    let (mut next, mut most, before) = (0, 0, resident());
    for _ in 0..10 {
        commit(&store, &mut next, TURNOVER_LIVE);
        let turn = || {
            store.retain(&retention, RetentionMode::Apply).unwrap();
            store.shorten(u64::MAX).unwrap().more
        };
        while turn() {}
        most = most.max(resident().saturating_sub(before));
    }
    store.close().unwrap();
    let live = TURNOVER_LIVE * (1_024 + 300);
    let disk = size(scratch.path());
    println!(
        "turnover: {next} receipts, {} MiB live, {} MiB on disk (journal {}, index {})",
        live >> 20,
        disk >> 20,
        size(&scratch.path().join("journal")) >> 20,
        size(&scratch.path().join("index")) >> 20
    );
    let ratio = disk as f64 / live as f64;
    let memory = most as f64 / f64::from(1 << 20);
    judge("disk over live data after ten times turnover", ratio, ratio <= 3.5, "at most 3.5")
        + judge("MiB more while letting go", memory, memory <= 128.0, "at most 128")
}

fn judge(what: &str, value: f64, holds: bool, bound: &str) -> u32 {
    let word = if holds { "reached" } else { "MISSED" };
    println!("  {what}: {value:.3} ({bound}: {word})");
    u32::from(!holds)
}

fn open(state: &Path) -> LocalStore {
    let config = EmbeddedConfig { journal: journal::journal(), ..EmbeddedConfig::new(state) };
    embedded::open(config, Arc::new(SystemClock)).unwrap()
}

fn topic() -> TopicName {
    TopicName::new("ACTION_EXECUTED").unwrap()
}

fn completion(n: u64) -> Completion {
    let id = format!("action-{n}");
    let receipt = NewReceipt {
        receipt_id: ReceiptId::fresh(),
        action_id: ActionId::new(&id).unwrap(),
        action_digest: Digest::of(id.as_bytes()),
        tool_id: ToolId::new("files.write_text").unwrap(),
        subject_id: SubjectId::new(format!("agent://{}", n % 1_000)).unwrap(),
        space_id: SpaceId::new("shared:bench").unwrap(),
        status: Status::Ok,
        key: Some(IdempotencyKey::new(&id).unwrap()),
        params_digest: Digest::of(id.as_bytes()),
        time: Timestamp::now(),
        body: vec![b'r'; 1_024],
    };
    let event = NewEvent {
        event_id: EventId::fresh(),
        time: Timestamp::now(),
        trace_id: TraceId::new("bench").unwrap(),
        action_id: None,
        body: NewBody::Clear(vec![b'e'; 300]),
    };
    Completion {
        receipt,
        events: vec![(topic(), event)],
        fence: None,
        leases: Vec::new(),
        letter: None,
        retire: Vec::new(),
        disturbed: Vec::new(),
        appeared: Vec::new(),
        depends: Vec::new(),
        links: Vec::new(),
    }
}

/// Commits this many receipts, some in flight at once.
fn commit(store: &LocalStore, next: &mut u64, count: u64) {
    let end = *next + count;
    let mut waiting = VecDeque::with_capacity(IN_FLIGHT);
    while *next < end || !waiting.is_empty() {
        while waiting.len() < IN_FLIGHT && *next < end {
            waiting.push_back(store.commit(completion(*next)));
            *next += 1;
        }
        if let Some(wait) = waiting.pop_front() {
            wait.wait().unwrap();
        }
    }
}

/// Commits this many receipts, and records throughput and memory on the way.
fn fill(store: &LocalStore, next: &mut u64, count: u64) {
    let step = (count / STEPS).max(FEW);
    while *next < count {
        let (before, begun) = (*next, Instant::now());
        commit(store, next, step.min(count - *next));
        note(*next, (*next - before) as f64 / begun.elapsed().as_secs_f64());
    }
}

fn note(receipts: u64, per_second: f64) {
    let line = json!({
        "peer": "effectd-store", "version": env!("CARGO_PKG_VERSION"), "work": "growth", "in_flight": IN_FLIGHT,
        "receipts": receipts, "per_second": per_second.round(), "resident_mib": resident() >> 20,
    });
    lines::note(line, &[]);
}

/// Receipts a second of the large store over that of a new one, and both by themselves: medians over pairs of windows.
fn compare(large: &LocalStore, next: &mut u64, base: &Path) -> (f64, f64, f64) {
    let (mut ratios, mut small_rates, mut large_rates) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        let scratch = tempfile::Builder::new().prefix("effectd-growth").tempdir_in(base).unwrap();
        let small = open(scratch.path());
        let mut begun = 0;
        commit(&small, &mut begun, FEW);
        // Which of the two is first changes, since the disk may still be at work for the one before.
        let (of_small, of_large) = if pair % 2 == 0 {
            let of_small = rate(&small, &mut begun);
            (of_small, rate(large, next))
        } else {
            let of_large = rate(large, next);
            (rate(&small, &mut begun), of_large)
        };
        small.close().unwrap();
        ratios.push(of_large / of_small);
        small_rates.push(of_small);
        large_rates.push(of_large);
    }
    (median(ratios), median(small_rates), median(large_rates))
}

/// Receipts a second in one window.
fn rate(store: &LocalStore, next: &mut u64) -> f64 {
    let begun = Instant::now();
    commit(store, next, WINDOW);
    WINDOW as f64 / begun.elapsed().max(Duration::from_nanos(1)).as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Reads all events as a stream: how many, and how much the process grew by.
fn replay(store: &LocalStore) -> (u64, u64) {
    let (mut from, mut read, mut most) = (0, 0, 0);
    let before = resident();
    loop {
        let page = store.read(&topic(), from, 1_000).unwrap();
        read += page.events.len() as u64;
        most = most.max(resident().saturating_sub(before));
        from = page.next;
        if from == page.end {
            return (read, most);
        }
    }
}

fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

fn size(path: &Path) -> u64 {
    let entries = std::fs::read_dir(path).unwrap();
    entries
        .map(|entry| {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                size(&entry.path())
            } else {
                entry.metadata().unwrap().len()
            }
        })
        .sum()
}
