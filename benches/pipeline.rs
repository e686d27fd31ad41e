//! Whole actions and the time of their stages: `cargo bench --bench pipeline`.
//!
//! Each action is a `files.write_text`: validated, gated, claimed, carried out in a fresh sandbox, recorded and signed. First
//! as it is; then without the sync (the store is in memory), without the sandbox (a breaker that was opened by hand refuses
//! each action where the child would start, after its claim and before its receipt), and without both. The sandbox's own calls
//! with the same tool run in the same process, so that the whole is a ratio of something real. Last, one subject floods while
//! another asks now and then. A line that says `MISSED` is beyond its goal, and makes the exit code 1. The last line tells how much of
//! the processors the host of a virtual machine gave to others; neighbours who only make them slower are not in it. The state lies in
//! `$EFFECTD_BENCH_DIR` or the system's temporary directory, which must be on a real disk.
//!
//! Names after `--` choose parts: `calls` (the sandbox's own), `alone`, `eight`, `many`, `new` (files that did not exist),
//! `cached`, `flood`, `sync`, `sandbox`, `both` (what is left out), and `stages` (where the time of one action goes), which
//! runs only when it is named. `$EFFECTD_BENCH_MS` sets how long each measurement takes.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures the machine")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has nothing to say")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use effectd_actors::control::rates::Rules;
use effectd_actors::limits::LEASE_TTL;
use effectd_actors::{
    Answer, Caches, Identity, Incoming, Metrics, Pipeline, Services, ServicesBuilder, Settings, SpaceRoots,
};
use effectd_bus::limits::BLOB_QUOTA_BYTES;
use effectd_bus::{Blobs, Store, embedded, memory};
use effectd_contracts::{
    ActionRequest, CallMode, Clock, Origin, Outcome, Principal, SystemClock, ToolCall, ToolSpec, TraceId,
};
use effectd_policy::{Overlay, Policy, Preset, Source};
use effectd_sandbox::{Call, Ending, Limits, Narrowing, Sandbox, SandboxConfig, SpaceRoot};
use serde_json::json;

#[path = "pipeline/flood.rs"]
mod flood;
#[path = "pipeline/host.rs"]
mod host;
#[path = "figures/journal.rs"]
mod journal;
#[path = "figures/lines.rs"]
mod lines;
#[path = "pipeline/stages.rs"]
mod stages;

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TOOL: &str = "files.write_text";
const FLOODER: &str = "agent://planner@deviceA";
const OTHER: &str = "agent://other@deviceA";
/// How long each runs before it is measured.
const FIRST: Duration = Duration::from_millis(500);
/// How often the sandbox's own calls and whole actions take turns.
const TURNS: usize = 5;
/// The same for what another subject waits: of a turn, only some ten actions are beyond its p99, and pairs differ by a factor of two.
const VISITS: usize = 15;

fn measured_time() -> Duration {
    let set = std::env::var("EFFECTD_BENCH_MS").ok();
    Duration::from_millis(set.and_then(|text| text.parse().ok()).unwrap_or(3_000))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    Sync,
    Sandbox,
    Both,
}

/// The latencies of one measurement, sorted.
struct Figures {
    per_second: f64,
    in_flight: usize,
    times: Vec<Duration>,
}

impl Figures {
    fn all(several: Vec<Figures>) -> Self {
        let (count, in_flight) = (several.len() as f64, several[0].in_flight);
        let per_second = several.iter().map(|figures| figures.per_second).sum::<f64>() / count;
        let mut times: Vec<_> = several.into_iter().flat_map(|figures| figures.times).collect();
        times.sort();
        Self { per_second, in_flight, times }
    }

    fn at(&self, percent: usize) -> Duration {
        self.times[(self.times.len() * percent / 100).min(self.times.len() - 1)]
    }
}

struct Bench {
    scratch: PathBuf,
    sandbox: Arc<Sandbox>,
    policy: Arc<Policy>,
    missed: AtomicBool,
    /// The parts that were chosen; none means all.
    parts: Vec<String>,
}

fn main() {
    // In a process that the sandbox started this does not return.
    effectd::init(&[]);
    let base = std::env::var_os("EFFECTD_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let scratch = tempfile::Builder::new().prefix("effectd-bench").tempdir_in(base).expect("a directory");
    let exe = std::env::current_exe().expect("this program");
    let bench = Bench {
        scratch: scratch.path().to_owned(),
        sandbox: Arc::new(Sandbox::start(SandboxConfig::new(exe)).expect("a sandbox")),
        policy: Arc::new(policy()),
        missed: AtomicBool::new(false),
        // Cargo adds the option `--bench`.
        parts: std::env::args().skip(1).filter(|part| !part.starts_with('-')).collect(),
    };
    std::fs::create_dir(bench.workspace()).expect("a directory");
    let threads = tokio::runtime::Runtime::new().expect("threads");
    let before = host::Processors::now();
    threads.block_on(bench.run());
    if let (Some(before), Some(after)) = (before, host::Processors::now()) {
        let stolen = after.stolen_since(&before);
        println!("(the host gave {stolen:.1} % of the processors' time to others)");
    }
    let missed = bench.missed.load(Ordering::Relaxed);
    drop((threads, bench, scratch));
    std::process::exit(i32::from(missed));
}

/// The demo policy, with another subject that may do the same.
fn policy() -> Policy {
    let mut source = Preset::Household.source();
    let planner = format!("subjects = [\"{FLOODER}\"");
    let text = source.policy.text.replacen(&planner, &format!("{planner}, \"{OTHER}\""), 1);
    let other = format!(
        "\n[subjects.\"{OTHER}\"]\nroles = [\"planner\"]\n\n[[consents]]\nsubject = \"{OTHER}\"\n\
         space = \"shared:household\"\npurpose = \"tool:{TOOL}\"\n"
    );
    source =
        Source::new(text + &other, source.rules.iter().map(|file| (file.name.clone(), file.text.clone())));
    Policy::compile(&source, &Overlay::default()).expect("the policy compiles")
}

fn request(subject: &str, action: &str, path: &str) -> ActionRequest {
    let text = format!("the text of {action}, {}", "x".repeat(256));
    let request = json!({
        "action_id": action, "subject_id": subject, "space_id": "shared:household", "tool_id": TOOL,
        "params": { "path": format!("workspace/{path}.txt"), "text": text, "space_id": "shared:household" },
        "policy_ctx": { "actor": "alice", "device": "phone1" },
    });
    ActionRequest::parse(request.to_string().as_bytes()).expect("a request")
}

fn incoming(request: ActionRequest) -> Incoming {
    Incoming {
        request: request.into(),
        principal: Principal::new("user://bench").expect("a principal"),
        origin: Origin::Arbiter,
        contract: None,
        interactive: false,
    }
}

impl Bench {
    fn workspace(&self) -> PathBuf {
        self.scratch.join("workspace")
    }

    fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|chosen| chosen == part)
    }

    async fn run(&self) {
        if self.parts.iter().any(|part| part == "stages") {
            return self.stages().await;
        }
        println!("{:<44} {:>9} {:>9} {:>9} {:>9}", "", "per s", "p50 µs", "p95 µs", "p99 µs");
        self.whole().await;
        for without in [Without::Sync, Without::Sandbox, Without::Both] {
            if !self.wants(&format!("{without:?}").to_lowercase()) {
                continue;
            }
            let pipeline = self.start(without).await;
            for in_flight in [1, 8, 64] {
                let figures = self.actions(&pipeline, without, in_flight).await;
                show(&format!("without {without:?}, {in_flight} in flight").to_lowercase(), &figures);
            }
            stop(&pipeline).await;
        }
    }

    /// Actions as they are, the cached way, and a flood.
    async fn whole(&self) {
        let pipeline = self.start(Without::Nothing).await;
        let mut alone = None;
        if self.wants("alone") {
            let figures = self.actions(&pipeline, Without::Nothing, 1).await;
            show("whole actions, 1 in flight", &figures);
            self.goal("one action alone, p50 in ms", figures.at(50).as_secs_f64() * 1e3, 1.5);
            alone = Some(figures);
        }
        // After what is alone: thousands of files that were replaced make the next one slower on some file systems.
        if self.wants("calls") {
            show("the sandbox's own calls, 1 in flight", &self.calls(1).await);
        }
        match (self.wants("calls"), self.wants("eight")) {
            (true, true) => self.turns(&pipeline).await,
            (true, false) => show("the sandbox's own calls, 8 in flight", &self.calls(8).await),
            (false, true) => {
                let eight = self.actions(&pipeline, Without::Nothing, 8).await;
                show("whole actions, 8 in flight", &eight);
            }
            (false, false) => {}
        }
        if self.wants("many") {
            let many = self.actions(&pipeline, Without::Nothing, 64).await;
            show("whole actions, 64 in flight", &many);
        }
        if self.wants("new") {
            let new = self.new_files(&pipeline).await;
            show("whole actions on new files, 1 in flight", &new);
        }
        if self.wants("cached") {
            let cached = self.cached(&pipeline).await;
            show("the same again (cached), 1 in flight", &cached);
            self.goal("the same again, p50 in µs", cached.at(50).as_secs_f64() * 1e6, 100.0);
            if let Some(alone) = &alone {
                let ratio = cached.at(95).as_secs_f64() / alone.at(95).as_secs_f64();
                self.goal("the same again, p95 over one action alone", ratio, 0.5);
            }
        }
        if self.wants("flood") {
            self.fairness(&pipeline).await;
        }
        stop(&pipeline).await;
    }

    /// Whole actions and the sandbox's own calls, 8 in flight, in turns: a machine is not as fast in one minute as in the next, and a file
    /// system not as fast after thousands of files were replaced in it as before. The ratio is the median of the pairs.
    async fn turns(&self, pipeline: &Arc<Pipeline>) {
        let (mut calls, mut actions, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TURNS {
            calls.push(self.calls(8).await);
            actions.push(self.actions(pipeline, Without::Nothing, 8).await);
        }
        for (calls, actions) in calls.iter().zip(&actions) {
            ratios.push(calls.per_second / actions.per_second);
        }
        show("the sandbox's own calls, 8 in flight", &Figures::all(calls));
        show("whole actions, 8 in flight", &Figures::all(actions));
        ratios.sort_by(f64::total_cmp);
        self.goal("sandbox calls for each, 8 in flight", ratios[TURNS / 2], 1.0 / 0.6);
    }

    /// Where the time of one action goes: from stage to stage, one action after another.
    async fn stages(&self) {
        stages::watch();
        let pipeline = self.start(Without::Nothing).await;
        for in_flight in [1, 8] {
            let figures = self.actions(&pipeline, Without::Nothing, in_flight).await;
            show(&format!("whole actions, watched, {in_flight} in flight"), &figures);
            stages::report();
        }
        stop(&pipeline).await;
    }

    fn goal(&self, what: &str, measured: f64, most: f64) {
        let reached = measured <= most;
        let word = if reached { "reached" } else { "MISSED" };
        self.missed.fetch_or(!reached, Ordering::Relaxed);
        println!("{what}: {measured:.2} (at most {most:.2}: {word})");
    }

    async fn start(&self, without: Without) -> Arc<Pipeline> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let store: Arc<dyn Store> = match without {
            Without::Nothing | Without::Sandbox => {
                let state = self.scratch.join(format!("state-{without:?}"));
                let config = embedded::EmbeddedConfig {
                    journal: journal::journal(),
                    ..embedded::EmbeddedConfig::new(&state)
                };
                Arc::new(embedded::open(config, clock.clone()).expect("a store"))
            }
            Without::Sync | Without::Both => Arc::new(memory::open(clock.clone()).expect("a store")),
        };
        let workspace = self.workspace();
        let space_roots: SpaceRoots =
            Arc::new(move |_| SpaceRoot::open(&workspace).map_err(|error| error.failure()));
        let mut settings = Settings::default();
        settings.control.rates = Rules::UNLIMITED;
        let services = Services::new(ServicesBuilder {
            store,
            registry: Arc::new(effectd::internal::registry(&[]).expect("the tools")),
            sandbox: self.sandbox.clone(),
            clock,
            identity: Arc::new(Identity::new(&[7; 32], [8; 32])),
            space_roots,
            metrics: Metrics::register(&prometheus::Registry::new()).expect("metrics"),
            lease_ttl: LEASE_TTL,
            settings,
            inspector: Arc::new(effectd::internal::WorkspaceInspector),
            blobs: Arc::new(Blobs::new(
                self.scratch.join(format!("blobs-{without:?}")),
                &[9; 32].into(),
                BLOB_QUOTA_BYTES,
            )),
            caches: Caches::new(self.scratch.join("caches")),
            policy: self.policy.clone(),
            egress: effectd::internal::egress("/proc/self/exe".as_ref(), Vec::new()),
            kept_paths: Arc::new(|_| Vec::new()),
        });
        if matches!(without, Without::Sandbox | Without::Both) {
            services.control.breakers.trip(TOOL, None).await.expect("a breaker");
        }
        Arc::new(Pipeline::start(services).await.expect("a pipeline"))
    }

    /// New actions, this many in flight, each lane on its own file.
    async fn actions(&self, pipeline: &Arc<Pipeline>, without: Without, in_flight: usize) -> Figures {
        let expected = match without {
            Without::Nothing | Without::Sync => Outcome::Executed,
            Without::Sandbox | Without::Both => Outcome::BreakerOpen,
        };
        let pipeline = pipeline.clone();
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        lanes(in_flight, move |lane, n| {
            let action = format!("{without:?}-{run}-{in_flight}-{lane}-{n}");
            let asked = request(FLOODER, &action, &format!("lane-{lane}"));
            let pipeline = pipeline.clone();
            async move { exec(&pipeline, asked, expected).await }
        })
        .await
    }

    /// New actions on files that do not exist yet, so that there is no pre-image.
    async fn new_files(&self, pipeline: &Arc<Pipeline>) -> Figures {
        let pipeline = pipeline.clone();
        lanes(1, move |_, n| {
            let asked = request(FLOODER, &format!("new-{n}"), &format!("new/{}/{n}", n / 500));
            let pipeline = pipeline.clone();
            async move { exec(&pipeline, asked, Outcome::Executed).await }
        })
        .await
    }

    /// The same request under ever new action ids.
    async fn cached(&self, pipeline: &Arc<Pipeline>) -> Figures {
        let first = request(FLOODER, "cached", "cached");
        exec(pipeline, first.clone(), Outcome::Executed).await;
        let pipeline = pipeline.clone();
        lanes(1, move |_, n| {
            let (pipeline, mut asked) = (pipeline.clone(), first.clone());
            async move {
                asked.action_id = format!("cached-{n}").parse().expect("an id");
                exec(&pipeline, asked, Outcome::Executed).await;
            }
        })
        .await
    }

    /// One subject asks for one thing after another, by itself and then beside another that floods, in turns: a disk that pauses in one
    /// of them only makes the ratio look good or bad. The ratio is the median of the pairs.
    async fn fairness(&self, pipeline: &Arc<Pipeline>) {
        let (mut alone, mut beside, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let (mut flooded, mut time) = (0, Duration::ZERO);
        for turn in 0..VISITS {
            let unloaded = flood::visits(pipeline, format!("alone-{turn}")).await;
            let flood = flood::Flood::begin(pipeline, turn);
            let begun = Instant::now();
            let loaded = flood::visits(pipeline, format!("beside-{turn}")).await;
            time += begun.elapsed();
            flooded += flood.end().await;
            ratios.push(loaded.at(99).as_secs_f64() / unloaded.at(99).as_secs_f64());
            alone.push(unloaded);
            beside.push(loaded);
        }
        show("another subject, alone", &Figures::all(alone));
        show("another subject, beside a flood of 128", &Figures::all(beside));
        println!("(the flood itself: {:.0} per s)", flooded as f64 / time.as_secs_f64());
        ratios.sort_by(f64::total_cmp);
        let all: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.1}")).collect();
        println!("(of each pair: {})", all.join(" "));
        self.goal("the other's p99 beside a flood, of its p99 alone", ratios[VISITS / 2], 3.0);
    }

    /// The sandbox's own calls with the same tool.
    async fn calls(&self, in_flight: usize) -> Figures {
        let (workspace, sandbox) = (self.workspace(), self.sandbox.clone());
        let registry = effectd::internal::registry(&[]).expect("the tools");
        let tool = TOOL.parse().expect("an id");
        let spec = registry.get(&tool).expect("the tool").spec().clone();
        lanes(in_flight, move |lane, n| {
            let (sandbox, call) = (sandbox.clone(), call(&spec, &workspace, lane, n));
            async move {
                let answer = sandbox.call(call).await.expect("an answer");
                assert!(matches!(answer.ending, Ending::Replied(_)), "{:?}", answer.ending);
            }
        })
        .await
    }
}

fn call(spec: &ToolSpec, workspace: &Path, lane: usize, n: usize) -> Call {
    let asked = request(FLOODER, &format!("call-{lane}-{n}"), &format!("call-{lane}"));
    let trace_id = TraceId::fresh();
    let request = ToolCall {
        tool_id: spec.tool_id.clone(),
        mode: CallMode::Run,
        space_id: asked.space_id.clone(),
        params: asked.params.clone(),
        timeout_ms: 5_000,
        trace_id: trace_id.clone(),
        before: None,
        restore: Vec::new(),
        expect: Vec::new(),
        mark: None,
        undoes: None,
        upstream: None,
        failed_checks: Vec::new(),
    };
    Call {
        tool_id: spec.tool_id.clone(),
        profile: spec.effective_profile(),
        high_isolation: false,
        space_root: SpaceRoot::open(workspace).expect("a workspace"),
        request: serde_json::to_vec(&request).expect("JSON"),
        limits: Limits::default(),
        timeout: Duration::from_secs(5),
        trace_id,
        narrowing: Narrowing::default(),
        view: None,
    }
}

async fn stop(pipeline: &Pipeline) {
    pipeline.stop(Duration::from_secs(5), std::future::pending()).await;
}

async fn exec(pipeline: &Pipeline, asked: ActionRequest, expected: Outcome) {
    match pipeline.exec(incoming(asked)).await {
        Answer::Done(done) => assert_eq!(done.receipt.outcome, expected, "{:?}", done.receipt.error),
        Answer::Held(held) => panic!("{held:?}"),
        Answer::Refused(failure) => panic!("{failure}"),
    }
}

/// Runs so many lanes side by side, each one thing after another, for the time of a measurement. What `work` does before it gives its
/// future, such as making up the request, takes the lane's time and counts for nothing else.
async fn lanes<F, W>(in_flight: usize, work: F) -> Figures
where
    F: Fn(usize, usize) -> W + Send + Sync + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    let (begun, work, measured) = (Instant::now(), Arc::new(work), measured_time());
    let lanes: Vec<_> = (0..in_flight)
        .map(|lane| {
            let work = work.clone();
            tokio::spawn(async move {
                let mut times = Vec::new();
                for n in 0.. {
                    let doing = work(lane, n);
                    let before = begun.elapsed();
                    if before > FIRST + measured {
                        break;
                    }
                    doing.await;
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
    Figures { per_second: times.len() as f64 / measured.as_secs_f64(), in_flight, times }
}

fn show(what: &str, figures: &Figures) {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    println!(
        "{what:<44} {:>9.0} {:>9.0} {:>9.0} {:>9.0}",
        figures.per_second,
        micros(figures.at(50)),
        micros(figures.at(95)),
        micros(figures.at(99))
    );
    let line = json!({
        "peer": "effectd-pipeline", "version": env!("CARGO_PKG_VERSION"), "work": what,
        "in_flight": figures.in_flight, "per_second": figures.per_second.round(),
    });
    lines::note(line, &figures.times);
}
