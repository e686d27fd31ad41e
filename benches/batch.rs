//! A batch of 50 small writes beside 50 single actions one after another, and its rollback: `cargo bench --bench batch`.
//!
//! The three take turns. The last item of every other batch fails when it runs, so the 49 before it are undone. A line that says `MISSED` is
//! beyond its goal, and makes the exit code 1. The state lies in `$EFFECTD_BENCH_DIR` or the system's temporary directory, which must be on
//! a real disk.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures the machine")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has nothing to say")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use effectd::adapters::{Tool, Workspace};
use effectd::contracts::batch::BatchRequest;
use effectd::contracts::{Code, Failure, Outcome, Phase, ToolCall, ToolOutput, ToolSpec, Touch};
use effectd::internal::Runtime;
use serde_json::{Map, Value, json};

#[path = "load/fixture.rs"]
#[allow(dead_code, reason = "this benchmark uses some of it")]
mod fixture;
#[path = "figures/journal.rs"]
mod journal;

use fixture::{WRITE, exec, request};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ITEMS: usize = 50;
const TURNS: usize = 12;
const RATE_MIN: f64 = 1.5;

/// A write that fails after nothing.
struct Fails(&'static dyn Tool);

impl Tool for Fails {
    fn id(&self) -> &'static str {
        "bench.write_000"
    }

    fn spec(&self) -> ToolSpec {
        let mut spec = self.0.spec();
        spec.tool_id = self.id().parse().expect("an id");
        spec
    }

    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        self.0.check(params)
    }

    fn touches(&self, params: &Map<String, Value>) -> Option<Vec<Touch>> {
        self.0.touches(params)
    }

    fn run(&self, _: &Workspace<'_>, _: &ToolCall) -> Result<ToolOutput, Failure> {
        Err(Failure::new(Code::ToolFailed, Phase::Dispatch, "as asked"))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        self.0.dry_run(workspace, call)
    }
}

fn tools() -> &'static [&'static dyn Tool] {
    let all = effectd::adapters::all();
    let like = *all.iter().find(|tool| tool.id() == WRITE).expect("it is built in");
    Vec::leak(vec![Box::leak(Box::new(Fails(like))) as &'static dyn Tool])
}

async fn single(runtime: &Runtime, turn: usize) {
    for n in 0..ITEMS {
        let text = format!("{turn} {}", "x".repeat(300));
        exec(runtime, request(WRITE, &format!("s-{turn}-{n}"), &format!("f{n}"), &text), Outcome::Executed)
            .await;
    }
}

async fn batch(runtime: &Runtime, turn: usize, fails: bool) {
    let items = (0..ITEMS).map(|n| {
        let tool = if fails && n == ITEMS - 1 { "bench.write_000" } else { WRITE };
        let text = format!("{fails} {turn} {}", "x".repeat(300));
        let params =
            json!({ "path": format!("workspace/f{n}.txt"), "text": text, "space_id": "shared:household" });
        json!({ "tool_id": tool, "params": params })
    });
    let batch = json!({
        "batch_id": format!("b-{fails}-{turn}"), "subject_id": "agent://planner@deviceA", "space_id": "shared:household",
        "items": items.collect::<Vec<_>>(),
    });
    let mut request = BatchRequest::parse(batch.to_string().as_bytes()).expect("a batch").into_action();
    request.policy_ctx.device = Some("phone1".to_owned());
    exec(runtime, request, if fails { Outcome::Reverted } else { Outcome::Executed }).await;
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

fn main() -> ExitCode {
    effectd::init(tools());
    let folder = std::env::var_os("EFFECTD_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(folder).expect("a folder");
    let threads = tokio::runtime::Runtime::new().expect("threads");
    let [mut alone, mut whole, mut undone] = threads.block_on(async {
        let runtime = fixture::open(&folder.path().join(".effectd"), |_| ()).await;
        let mut times = [const { Vec::new() }; 3];
        // The first turn warms up.
        for turn in 0..=TURNS {
            for (kind, times) in times.iter_mut().enumerate() {
                let begun = Instant::now();
                match kind {
                    0 => single(&runtime, turn).await,
                    1 => batch(&runtime, turn, false).await,
                    _ => batch(&runtime, turn, true).await,
                }
                if turn > 0 {
                    times.push(begun.elapsed());
                }
            }
        }
        runtime.stop().await;
        times
    });
    let (alone, whole, undone) = (median(&mut alone), median(&mut whole), median(&mut undone));
    let (rate, back) = (alone / whole, (undone - whole) / whole);
    println!("{ITEMS} single actions {:>8.1} ms", alone * 1e3);
    println!("a batch of {ITEMS}     {:>8.1} ms, {rate:.2} times the rate", whole * 1e3);
    println!("with its rollback  {:>8.1} ms, the way back takes {back:.2} of the way there", undone * 1e3);
    let is_missed = rate < RATE_MIN || back > 1.0;
    if is_missed {
        println!("MISSED: at least {RATE_MIN} times the rate, and a way back no longer than the way there");
    }
    ExitCode::from(u8::from(is_missed))
}
