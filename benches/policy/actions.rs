//! Real actions with the time of their gate.

use std::cell::Cell;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use effectd::internal::{Config, Runtime};
use effectd_actors::Answer;
use effectd_actors::control::rates::Rules;
use effectd_contracts::Status;
use effectd_policy::Source;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::{SUBJECTS, report, request};

const ACTIONS: usize = 1_000;
const FIRST_ACTIONS: usize = 100;

/// Runs actions one by one. Gives the medians of an action's time and of the gate's time inside it.
pub(crate) fn measure(source: &Source) -> (Duration, Duration) {
    tracing::subscriber::set_global_default(Watch).expect("no other subscriber");
    let base = std::env::var_os("EFFECTD_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let scratch = tempfile::Builder::new().prefix("effectd-bench").tempdir_in(base).expect("a directory");
    let state = scratch.path().join("state");
    let policy = state.join("policy");
    std::fs::create_dir_all(&policy).expect("a directory");
    std::fs::write(policy.join("policy.toml"), &source.policy.text).expect("a file");
    for file in &source.rules {
        std::fs::write(policy.join(&file.name), &file.text).expect("a file");
    }
    let threads = tokio::runtime::Runtime::new().expect("threads");
    let times = threads.block_on(async {
        let mut config = Config::embedded(&state).expect("a configuration");
        config.pipeline.control.rates = Rules::UNLIMITED;
        let runtime = Runtime::start(config).await.expect("a runtime");
        let mut times = Vec::with_capacity(ACTIONS);
        for n in 0..FIRST_ACTIONS + ACTIONS {
            let request = request(n, n * 7 % SUBJECTS);
            let begun = Instant::now();
            let answer = runtime.exec(request).await;
            let took = begun.elapsed();
            match answer {
                Answer::Done(done) => assert_eq!(done.receipt.status, Status::Ok, "{:?}", done.receipt.error),
                Answer::Held(held) => panic!("{held:?}"),
                Answer::Refused(failure) => panic!("{failure}"),
            }
            times.push(took);
        }
        runtime.stop().await;
        times
    });
    let judged = std::mem::take(&mut *JUDGED.lock().expect("no thread panicked"));
    assert_eq!(judged.len(), times.len(), "every action was judged once");
    println!();
    let action = report("an action alone, files.write_text", times[FIRST_ACTIONS..].to_vec());
    let judge = report("the gate in its place", judged[FIRST_ACTIONS..].to_vec());
    (action, judge)
}

static JUDGED: Mutex<Vec<Duration>> = Mutex::new(Vec::new());

thread_local! {
    static ENTERED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Measures the gate's span. The span may be entered several times: at each poll, and at its end.
struct Watch;

impl Subscriber for Watch {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "judge"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        let mut judged = JUDGED.lock().expect("no thread panicked");
        judged.push(Duration::ZERO);
        Id::from_u64(judged.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {
        ENTERED.set(Some(Instant::now()));
    }

    fn exit(&self, id: &Id) {
        if let Some(entered) = ENTERED.take() {
            let mut judged = JUDGED.lock().expect("no thread panicked");
            if let Some(time) = judged.get_mut(id.into_u64() as usize - 1) {
                *time += entered.elapsed();
            }
        }
    }
}
