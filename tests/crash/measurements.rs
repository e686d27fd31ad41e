//! The figures of a receipt: cost and time are measured, and follow what really happened.

use std::sync::Arc;
use std::time::Duration;

use effectd::contracts::{Code, ManualClock, Millis, Receipt, Timestamp, Timing};
use effectd::internal::Runtime;
use effectd_actors::Answer;
use serde_json::json;

use crate::Test;
use crate::harness::{asynchronously, until};
use crate::place::{PATIENCE, Place, parsed, request_how};
use crate::tools::{BRIEF, BRIEF_MS, SAFE};

pub(crate) const TESTS: &[Test] = &[
    ("cost_and_time_are_measured_on_the_child", measured),
    ("waiting_for_a_place_is_told_as_such", queued),
    ("the_least_of_three_times_ends_a_tool_as_shipped", timed_out),
    ("a_busy_loop_ends_by_its_processor_limit_as_shipped", spinning),
];

/// Both take this long; only one of them uses the processor.
const TOOK_MS: f64 = 150.0;
/// How often each is run: a host that stalls may count that as processor time, but not each time, so the least is the tool's own.
const TIMES: usize = 3;

fn fits(timing: &Timing) {
    let parts = timing.queued_ms.micros() + timing.exec_ms.micros();
    assert!(timing.total_ms.micros() >= parts, "{timing:?}");
    assert!(timing.ended_at >= timing.started_at, "{timing:?}");
}

fn cpu_ms(receipt: &Receipt) -> f64 {
    receipt.cost.cpu_ms.as_f64()
}

/// The one that used the least.
fn least(receipts: &[Receipt]) -> &Receipt {
    let least = receipts.iter().min_by(|one, other| cpu_ms(one).total_cmp(&cpu_ms(other)));
    least.unwrap()
}

fn measured() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|config| config.pipeline.core_watts = 36.0).await;
        let mut receipts: Vec<Receipt> = Vec::new();
        for how in ["burn:150", "nap:150"] {
            for nth in 0..TIMES {
                let asked = request_how(&format!("{how}-{nth}"), SAFE, how);
                let Answer::Done(done) = runtime.exec(parsed(&asked)).await else {
                    panic!("{how} has no receipt")
                };
                receipts.push((*done.receipt).clone());
            }
        }
        assert!(runtime.stop().await);
        for receipt in &receipts {
            let (timing, cost) = (&receipt.timing, &receipt.cost);
            fits(timing);
            assert!(timing.exec_ms.as_f64() >= TOOK_MS, "{timing:?}");
            // 36 W are a hundredth of a milliwatt-hour each millisecond.
            let modelled = cost.cpu_ms.as_f64() * 0.01;
            assert!((cost.energy_mwh - modelled).abs() < 1e-5, "{cost:?}");
            assert_eq!(receipt.attempts.len(), 1);
            assert_eq!(receipt.attempts[0].cpu_ms, cost.cpu_ms);
            // A line in each of two files.
            let written = cost.bytes_written.unwrap();
            assert!((8..65_536).contains(&written), "{cost:?}");
            let memory = cost.peak_memory_bytes.unwrap();
            assert!((65_536..268_435_456).contains(&memory), "{cost:?}");
        }
        let (burnt, napped) = receipts.split_at(TIMES);
        let worked: Vec<f64> = burnt.iter().map(cpu_ms).collect();
        let expected = TOOK_MS * 0.9..TOOK_MS * 2.0;
        assert!(worked.iter().any(|ms| expected.contains(ms)), "{worked:?}");
        let (burnt, napped) = (least(burnt), least(napped));
        let rested = cpu_ms(napped);
        assert!(rested < TOOK_MS / 3.0, "{rested}");
        assert!(burnt.reward.components.cost > napped.reward.components.cost, "{:?}", burnt.reward);
    });
}

/// On a clock that only the test moves: the second waits for the only place exactly as long as the first runs.
fn queued() {
    const WAITED: Duration = Duration::from_secs(5);
    asynchronously(async {
        let place = Place::new();
        let marker = place.marker();
        let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
        let config_clock = clock.clone();
        let runtime = place
            .runtime(|config| {
                config.pipeline.in_flight_max = 1;
                config.clock = config_clock;
            })
            .await;
        let first = request_how("first", SAFE, "wait");
        let first = runtime.submit(parsed(&first)).await.unwrap();
        let said = tokio::task::spawn_blocking(move || marker.recv_timeout(PATIENCE)).await;
        assert_eq!(said.unwrap().unwrap(), "waiting");
        let second = request_how("second", SAFE, "");
        let second = runtime.submit(parsed(&second)).await.unwrap();
        let queue = &runtime.pipeline().services().control.slots;
        until("the second waits for the place", || queue.waiting() == 1).await;
        clock.advance(WAITED);
        place.open_gate();
        let (Ok(Answer::Done(first)), Ok(Answer::Done(second))) =
            (first.receipt().await, second.receipt().await)
        else {
            panic!("both have receipts")
        };
        let (first, second) = (&first.receipt.timing, &second.receipt.timing);
        fits(first);
        fits(second);
        let waited = Millis::from(WAITED);
        assert_eq!((first.queued_ms, first.exec_ms), (Millis::default(), waited), "{first:?}");
        assert_eq!((second.queued_ms, second.exec_ms), (waited, Millis::default()), "{second:?}");
        assert!(runtime.stop().await);
    });
}

/// Runs a tool that would take longer than it may.
async fn overlong(runtime: &Runtime, how: &str, asked_ms: Option<u64>) -> (Code, Receipt) {
    let mut asked = request_how(&format!("{how}-{}", asked_ms.unwrap_or(0)), SAFE, how);
    if let Some(asked_ms) = asked_ms {
        asked["qos"] = json!({ "timeout_ms": asked_ms });
    }
    let Answer::Done(done) = runtime.exec(parsed(&asked)).await else { panic!("{how} has no receipt") };
    (done.receipt.error.as_ref().unwrap().code, (*done.receipt).clone())
}

/// What the caller asks for, what the tool declares, and what the policy allows: each in turn is the least. A policy that says nothing
/// allows a LOW tool 4 s.
fn timed_out() {
    const CEILING_MS: f64 = 4_000.0;
    asynchronously(async {
        let place = Place::new().with_shipped_times();
        let runtime = place.runtime(|_| ()).await;
        let (callers, ceiling) = tokio::join!(
            overlong(&runtime, "nap:19000", Some(1_000)),
            overlong(&runtime, "nap:19000", Some(15_000)),
        );
        assert!(runtime.stop().await);
        let runtime = place.runtime(|config| config.tools = BRIEF).await;
        let tools = overlong(&runtime, "nap:18000", Some(15_000)).await;
        assert!(runtime.stop().await);
        for (what, (code, receipt), least, most) in [
            ("the caller's", callers, 1_000.0, CEILING_MS),
            ("the policy's", ceiling, CEILING_MS, 15_000.0),
            ("the tool's", tools, BRIEF_MS as f64, CEILING_MS),
        ] {
            assert_eq!(code, Code::TimedOut, "{what}");
            // The time begins before the sandbox is entered.
            let (timing, inside) = (&receipt.timing, receipt.timing.exec_ms.as_f64());
            assert!(timing.total_ms.as_f64() >= least && inside < most, "{what}: {timing:?}");
        }
    });
}

/// Three seconds of a processor, of the four that the policy allows. The child itself says that it has this limit: a machine that is busy
/// with others may not give a busy loop that much before its deadline.
fn spinning() {
    asynchronously(async {
        let place = Place::new().with_shipped_times();
        let runtime = place.runtime(|_| ()).await;
        let asked = request_how("limit", SAFE, "processor-limit");
        let Answer::Done(limit) = runtime.exec(parsed(&asked)).await else { panic!("no receipt") };
        assert_eq!(limit.result.clone().unwrap().unwrap()["count"], 3);
        let (code, receipt) = overlong(&runtime, "burn:19000", None).await;
        assert!(runtime.stop().await);
        let is_starved = code == Code::TimedOut && cpu_ms(&receipt) < 3_500.0;
        assert!(code == Code::CpuLimit || is_starved, "{code}: {:?}", receipt.cost);
    });
}
