//! Faults in a running process: a worker of any stage panics or stalls at any point. Its action ends in one receipt, and
//! the next action is served.

use effectd::contracts::{Code, Outcome, Receipt};
use effectd::internal::Runtime;
use effectd_actors::Answer;
use effectd_actors::failpoint::{Fault, Trap, arm};
use serde_json::json;

use crate::Test;
use crate::child::Report;
use crate::harness::asynchronously;
use crate::place::{PATIENCE, Place, SHORT_LEASE, parsed, request};
use crate::tools::{NEVER, SAFE};

pub(crate) const TESTS: &[Test] = &[
    ("a_panic_in_any_stage_costs_nothing_but_time", panics),
    ("a_stall_in_any_stage_costs_nothing_but_time", stalls),
    ("a_decision_that_kills_workers_ends_as_a_dead_letter", poison),
];

/// The points of the five stages, and whether the action is claimed and its effect done there.
const POINTS: [(&str, Stood); 15] = [
    ("validator.begin", Stood::Before),
    ("validator.end", Stood::Before),
    ("gate.begin", Stood::Before),
    ("gate.end", Stood::Before),
    ("idempotency.begin", Stood::Before),
    ("idempotency.before_claim", Stood::Before),
    ("idempotency.after_claim", Stood::Open),
    ("executor.begin", Stood::Open),
    ("executor.before_child", Stood::Open),
    ("executor.after_child", Stood::Open),
    ("executor.end", Stood::Open),
    ("recorder.begin", Stood::Open),
    ("recorder.before_commit", Stood::Open),
    ("recorder.after_commit", Stood::After),
    ("recorder.after_answer", Stood::After),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stood {
    Before,
    Open,
    After,
}

#[derive(Debug, Clone, Copy)]
struct Victim {
    point: &'static str,
    stood: Stood,
    way: &'static str,
    tool: &'static str,
}

fn victims() -> Vec<Victim> {
    let mut victims = Vec::new();
    for (point, stood) in POINTS {
        for (way, tool) in [("exec", SAFE), ("submit", SAFE), ("exec", NEVER)] {
            victims.push(Victim { point, stood, way, tool });
        }
    }
    victims
}

fn panics() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|config| config.lease_ttl = SHORT_LEASE).await;
        // Four at a time, so that they share the stages.
        for few in victims().chunks(4) {
            together(&runtime, &place, few, Fault::Panic).await;
        }
        check_all(runtime).await;
    });
}

fn stalls() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|config| config.lease_ttl = SHORT_LEASE).await;
        // The first stages have four workers each: two victims at a time leave room for the others.
        let (narrow, wide): (Vec<_>, Vec<_>) = victims()
            .into_iter()
            .partition(|victim| victim.point.starts_with("validator") || victim.point.starts_with("gate"));
        for few in narrow.chunks(2) {
            together(&runtime, &place, few, Fault::Stall).await;
        }
        together(&runtime, &place, &wide, Fault::Stall).await;
        check_all(runtime).await;
    });
}

async fn together(runtime: &Runtime, place: &Place, victims: &[Victim], fault: Fault) {
    let all = victims.iter().map(|victim| one(runtime, place, victim, fault));
    crate::child::all_of(all.collect()).await;
}

async fn one(runtime: &Runtime, place: &Place, victim: &Victim, fault: Fault) {
    let Victim { point, way, tool, .. } = *victim;
    let action = format!("{fault:?}-{point}-{way}-{tool}");
    arm(Trap { point: point.to_owned(), action: Some(action.parse().unwrap()), nth: 1, times: 1, fault });
    let receipt = ask(runtime, way, &action, tool).await;
    let unknown = tool == NEVER && victim.stood == Stood::Open;
    let expected = if unknown {
        (Outcome::Indeterminate, Some(Code::OutcomeUnknown))
    } else {
        (Outcome::Executed, None)
    };
    let got = (receipt.outcome, receipt.error.as_ref().map(|failure| failure.code));
    assert_eq!(got, expected, "{action}: {receipt:#?}");
    let runs = place.runs(&action);
    assert!(runs <= if tool == NEVER { 1 } else { 2 }, "{action} ran {runs} times");

    let next = format!("next-{action}");
    let receipt = ask(runtime, way, &next, tool).await;
    assert_eq!(receipt.outcome, Outcome::Executed, "{next}: {receipt:#?}");
    assert_eq!(place.runs(&next), 1, "{next}");
}

async fn ask(runtime: &Runtime, way: &str, action: &str, tool: &str) -> Receipt {
    let mut request = request(action, tool);
    // A stage that stalls while its tool runs has this time in addition to its lease.
    request["qos"] = json!({ "timeout_ms": 3_000 });
    let request = parsed(&request);
    let asked = async {
        if way == "exec" {
            runtime.exec(request).await
        } else {
            let ticket = runtime.submit(request).await.unwrap();
            ticket.receipt().await.unwrap()
        }
    };
    let answer = tokio::time::timeout(PATIENCE, asked).await;
    match answer.unwrap_or_else(|_| panic!("{action} was never answered")) {
        Answer::Done(done) => (*done.receipt).clone(),
        Answer::Held(held) => panic!("{held:?}"),
        Answer::Refused(failure) => panic!("{action}: {failure}"),
    }
}

async fn check_all(runtime: Runtime) {
    let report = Report::of(&runtime).await;
    report.all_settled();
    assert_eq!(report.receipts.len(), 2 * victims().len());
    for receipt in &report.receipts {
        report.the_receipt(receipt.action_id.as_str());
        let letters = report.letters_of(receipt.action_id.as_str()).len();
        let unknown = receipt.outcome == Outcome::Indeterminate;
        assert_eq!(letters, usize::from(unknown), "{receipt:#?}");
    }
    assert!(runtime.broken().is_none());
    assert!(runtime.stop().await, "a place is still taken");
}

/// Every delivery kills a worker. The process lives on, and others are served.
fn poison() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|config| config.lease_ttl = SHORT_LEASE).await;
        for (point, way, code) in [
            ("gate.begin", "submit", Code::Internal),
            ("validator.end", "exec", Code::Internal),
            ("executor.end", "exec", Code::OutcomeUnknown),
        ] {
            let action = format!("poison-{point}-{way}");
            arm(Trap {
                point: point.to_owned(),
                action: Some(action.parse().unwrap()),
                nth: 1,
                times: u64::MAX,
                fault: Fault::Panic,
            });
            let receipt = ask(&runtime, way, &action, SAFE).await;
            assert_eq!(receipt.error.as_ref().map(|failure| failure.code), Some(code), "{receipt:#?}");
            assert_eq!(Report::of(&runtime).await.letters_of(&action).len(), 1);
            let next = ask(&runtime, way, &format!("after-{action}"), SAFE).await;
            assert_eq!(next.outcome, Outcome::Executed);
        }
        Report::of(&runtime).await.all_settled();
        assert!(runtime.stop().await);
    });
}
