//! Every figure of a receipt was measured: it follows what really happened, and nothing else.

use std::time::{Duration, Instant};

use effectd::Answer;
use effectd::contracts::{Receipt, Timing};

use crate::Test;
use crate::harness::asynchronously;
use crate::place::{Place, parsed, request_how};
use crate::tools::SAFE;

pub(crate) const TESTS: &[Test] = &[
    ("cost_and_time_are_measured_on_the_child", measured),
    ("waiting_for_a_place_is_told_as_such", queued),
];

/// Both tools take as long; only one of them works.
const TOOK_MS: f64 = 150.0;
/// How often each is run: a host may count it as work when it stalls, but not each time, so the least is the tool's own.
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
    let least = receipts
        .iter()
        .min_by(|one, other| cpu_ms(one).total_cmp(&cpu_ms(other)));
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
        assert!(
            burnt.reward.components.cost > napped.reward.components.cost,
            "{:?}",
            burnt.reward
        );
    });
}

fn queued() {
    asynchronously(async {
        let place = Place::new();
        let marker = place.marker();
        let runtime = place.runtime(|config| config.pipeline.in_flight_max = 1).await;
        let first = request_how("first", SAFE, "wait");
        let first = runtime.submit(parsed(&first)).await.unwrap();
        assert_eq!(marker.recv_timeout(crate::place::PATIENCE).unwrap(), "waiting");
        let second = runtime
            .submit(parsed(&request_how("second", SAFE, "")))
            .await
            .unwrap();
        // It waits since it was accepted, and that is before this moment.
        let begun = Instant::now();
        tokio::task::spawn_blocking(move || {
            // It is known to wait; how long is up to us.
            while begun.elapsed() < Duration::from_millis(40) {
                std::thread::yield_now();
            }
        })
        .await
        .unwrap();
        let waited = begun.elapsed();
        place.open_gate();
        let (Ok(Answer::Done(first)), Ok(Answer::Done(second))) =
            (first.receipt().await, second.receipt().await)
        else {
            panic!("both have receipts")
        };
        fits(&first.receipt.timing);
        fits(&second.receipt.timing);
        let told = second.receipt.timing.queued_ms.as_f64();
        assert!(
            told >= waited.as_secs_f64() * 1_000.0 - 5.0,
            "{told} ms of {waited:?}"
        );
        assert!(
            first.receipt.timing.exec_ms.as_f64() >= 40.0,
            "{:?}",
            first.receipt.timing
        );
        assert!(runtime.stop().await);
    });
}
