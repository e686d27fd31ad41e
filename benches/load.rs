//! Whole actions under different loads: `cargo bench --bench load`.
//!
//! Through the whole runtime, its sandbox and its disk: with 1 to 256 in flight, with 1 to 200 tools beside the built-in ones,
//! and with 100 bytes to nearly 1 MiB of parameters. Names after `--` choose parts: `flight`, `tools`, `params`.
//! `$EFFECTD_BENCH_MS` sets how long each measurement takes, `$EFFECTD_BENCH_DIR` where the state lies.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures the machine")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has nothing to say")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use effectd::contracts::Outcome;
use effectd::internal::Runtime;
use serde_json::json;

#[path = "load/fixture.rs"]
mod fixture;
#[path = "figures/journal.rs"]
mod journal;
#[path = "figures/lines.rs"]
mod lines;

const FLIGHTS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const TOOLS: [usize; 4] = [1, 20, 100, fixture::TOOLS_MAX];
/// Bytes of text. The last fills a request nearly to its bound.
const PARAMS: [usize; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];
const IN_FLIGHT: usize = 8;
/// How long each runs before it is measured.
const FIRST: Duration = Duration::from_millis(300);

fn main() {
    let tools = fixture::tools();
    // In a process that the sandbox started this does not return.
    effectd::init(tools);
    let base = std::env::var_os("EFFECTD_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let scratch = tempfile::Builder::new().prefix("effectd-load").tempdir_in(base).expect("a directory");
    let threads = tokio::runtime::Runtime::new().expect("threads");
    let parts: Vec<String> = std::env::args().skip(1).filter(|part| !part.starts_with('-')).collect();
    let wants = |name: &str| parts.is_empty() || parts.iter().any(|part| part == name);
    println!("{:<34} {:>9} {:>9} {:>9} {:>9}", "", "per s", "p50 µs", "p99 µs", "MiB");
    threads.block_on(async {
        if wants("flight") {
            flight(&scratch.path().join("flight")).await;
        }
        if wants("tools") {
            with_tools(&scratch.path().join("tools"), tools).await;
        }
        if wants("params") {
            params(&scratch.path().join("params")).await;
        }
    });
}

/// More and more in flight, each lane on its own file.
async fn flight(state: &Path) {
    let runtime = Arc::new(fixture::open(state, |_| {}).await);
    for in_flight in FLIGHTS {
        let load = Load { what: "in flight", amount: in_flight, in_flight, tools: 0, text: 300 };
        load.measure(&runtime).await;
    }
    stop(runtime).await;
}

/// More and more tools, asked in turns.
async fn with_tools(state: &Path, own: &'static [&'static dyn effectd::adapters::Tool]) {
    for tools in TOOLS {
        let state = state.join(tools.to_string());
        let runtime = Arc::new(fixture::open(&state, |config| config.tools = &own[..tools]).await);
        let load = Load { what: "tools", amount: tools, in_flight: IN_FLIGHT, tools, text: 300 };
        load.measure(&runtime).await;
        stop(runtime).await;
    }
}

async fn params(state: &Path) {
    let runtime = Arc::new(fixture::open(state, |_| {}).await);
    for text in PARAMS {
        let load = Load { what: "bytes of parameters", amount: text, in_flight: IN_FLIGHT, tools: 0, text };
        load.measure(&runtime).await;
    }
    stop(runtime).await;
}

async fn stop(runtime: Arc<Runtime>) {
    let runtime = Arc::into_inner(runtime).expect("all lanes have ended");
    runtime.stop().await;
}

#[derive(Clone, Copy)]
struct Load {
    what: &'static str,
    amount: usize,
    in_flight: usize,
    /// How many tools of the bench's own take turns; with none it is the built-in one.
    tools: usize,
    /// Bytes of text.
    text: usize,
}

impl Load {
    async fn measure(self, runtime: &Arc<Runtime>) {
        let set = std::env::var("EFFECTD_BENCH_MS").ok();
        let measured = Duration::from_millis(set.and_then(|text| text.parse().ok()).unwrap_or(2_000));
        let begun = Instant::now();
        let lanes: Vec<_> = (0..self.in_flight)
            .map(|lane| {
                let runtime = runtime.clone();
                tokio::spawn(async move {
                    let mut times = Vec::new();
                    for n in 0.. {
                        let before = begun.elapsed();
                        if before > FIRST + measured {
                            break;
                        }
                        fixture::exec(&runtime, self.request(lane, n), Outcome::Executed).await;
                        if before > FIRST {
                            times.push(begun.elapsed() - before);
                        }
                    }
                    times
                })
            })
            .collect();
        let mut times = Vec::new();
        for lane in lanes {
            times.extend(lane.await.expect("a lane"));
        }
        times.sort();
        self.show(&times, measured);
    }

    fn request(self, lane: usize, n: usize) -> effectd::contracts::ActionRequest {
        let action = format!("{}-{}-{lane}-{n}", self.what.replace(' ', "_"), self.amount);
        let tool = match self.tools {
            0 => fixture::WRITE.to_owned(),
            tools => fixture::tool_name((lane + n) % tools),
        };
        // Each text differs; an equal one would be a repeat.
        let text = format!("{action} {}", "a line of text ".repeat(self.text / 15));
        fixture::request(&tool, &action, &format!("lane-{lane}"), &text[..text.len().min(self.text.max(100))])
    }

    fn show(self, times: &[Duration], measured: Duration) {
        let per_second = times.len() as f64 / measured.as_secs_f64();
        let at = |percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e6;
        let resident_mib = resident() >> 20;
        println!(
            "{:<34} {per_second:>9.0} {:>9.0} {:>9.0} {resident_mib:>9}",
            format!("{} {}", self.amount, self.what),
            at(50),
            at(99)
        );
        let line = json!({
            "peer": "effectd-runtime", "version": env!("CARGO_PKG_VERSION"), "work": self.what, "amount": self.amount,
            "in_flight": self.in_flight, "per_second": per_second.round(), "resident_mib": resident_mib,
        });
        lines::note(line, times);
    }
}

fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("/proc");
    let pages = pages.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    pages.expect("a number") * 4_096
}
