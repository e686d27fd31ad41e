//! Breakers: a tool that keeps failing is not called for a while.

use effectd::contracts::{Code, Outcome, Receipt, Status};
use effectd::internal::Runtime;
use effectd_actors::Answer;
use effectd_actors::control::breaker::{BreakerState, Cause};
use serde_json::{Value, json};

use crate::Test;
use crate::child::Report;
use crate::floods::{OTHER, add_other};
use crate::harness::asynchronously;
use crate::place::{Place, parsed, request, request_how};
use crate::tools::{NEVER, PROBE, SAFE};

pub(crate) const TESTS: &[Test] = &[
    ("an_open_breaker_answers_with_a_receipt_without_a_run", opens),
    ("one_planner_cannot_shut_a_tool_for_others", planner),
    ("retries_end_when_the_breaker_opens", thrash),
    ("an_open_breaker_stays_open_over_a_restart", restart),
    ("what_was_done_before_is_answered_by_an_open_breaker_too", cached),
];

async fn exec(runtime: &Runtime, action: &str, tool: &str, how: &str, retries: u32) -> Receipt {
    let mut asked = if how.is_empty() { request(action, tool) } else { request_how(action, tool, how) };
    asked["qos"] = json!({ "max_retries": retries });
    match runtime.exec(parsed(&asked)).await {
        Answer::Done(done) => (*done.receipt).clone(),
        Answer::Held(held) => panic!("{held:?}"),
        Answer::Refused(failure) => panic!("{action}: {failure}"),
    }
}

fn standing(runtime: &Runtime, key: &str) -> Option<(BreakerState, Option<Cause>)> {
    let view = runtime.pipeline().services().control.breakers.show_one(key)?;
    Some((view.state, view.cause))
}

fn code(receipt: &Receipt) -> Option<Code> {
    receipt.error.as_ref().map(|failure| failure.code)
}

fn opens() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|config| config.pipeline.control.breaker.failures_max = 3).await;
        for n in 0..3 {
            let receipt = exec(&runtime, &format!("bad{n}"), SAFE, "die-before", 0).await;
            assert_eq!(code(&receipt), Some(Code::SandboxFailed));
        }
        assert_eq!(standing(&runtime, SAFE), Some((BreakerState::Open, Some(Cause::Failures))));
        let refused = exec(&runtime, "next", SAFE, "", 0).await;
        assert_eq!(
            (refused.outcome, refused.status, code(&refused)),
            (Outcome::BreakerOpen, Status::Error, Some(Code::BreakerOpen))
        );
        assert_eq!((place.runs("next"), refused.attempts.len()), (0, 0));
        let report = Report::of(&runtime).await;
        report.all_settled();
        assert!(report.letters_of("next").is_empty(), "what is refused at once is no dead letter");
        // Another tool has another breaker, and permanent failures of a request open none.
        for n in 0..4 {
            let receipt = exec(&runtime, &format!("wrong{n}"), NEVER, "fail", 0).await;
            assert_eq!(code(&receipt), Some(Code::ToolFailed));
        }
        assert_eq!(exec(&runtime, "fine", NEVER, "", 0).await.outcome, Outcome::Executed);
        let text = prometheus::TextEncoder::new().encode_to_string(&runtime.metrics().gather()).unwrap();
        for line in [
            format!("effectd_breaker_state{{tool_id=\"{SAFE}\"}} 2"),
            format!("effectd_breaker_state{{tool_id=\"{NEVER}\"}} 0"),
            format!("effectd_breaker_refusals_total{{tool_id=\"{SAFE}\"}} 1"),
            "effectd_breakers_open 1".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
        assert!(runtime.stop().await);
    });
}

/// With its own deadline, another tool's name as its key, denied requests, bad input and files that it keeps busy.
fn planner() {
    asynchronously(async {
        let place = Place::new();
        add_other(&place);
        let runtime = place.runtime(|_| ()).await;
        let ask = async |action: &str, tool: &str, change: &dyn Fn(&mut Value)| {
            let mut asked = request_how(action, tool, "nap:1000");
            change(&mut asked);
            match runtime.exec(parsed(&asked)).await {
                Answer::Done(done) => (*done.receipt).clone(),
                other @ (Answer::Held(_) | Answer::Refused(_)) => panic!("{action}: {other:?}"),
            }
        };
        for n in 0..12 {
            let hurry = |asked: &mut Value| asked["qos"] = json!({ "timeout_ms": 1 });
            let hurried = ask(&format!("hurried{n}"), SAFE, &hurry).await;
            assert_eq!(code(&hurried), Some(Code::TimedOut));
            let stranger = |asked: &mut Value| asked["subject_id"] = json!("agent://x");
            let denied = ask(&format!("denied{n}"), SAFE, &stranger).await;
            assert_eq!(code(&denied), Some(Code::PolicyDenied));
            let wrong = |asked: &mut Value| asked["params"]["how"] = json!(7);
            let bad = ask(&format!("bad{n}"), SAFE, &wrong).await;
            assert_eq!(code(&bad), Some(Code::ParamsInvalid));
            let busy = |asked: &mut Value| asked["params"]["how"] = json!("busy:99");
            let busy = ask(&format!("busy{n}"), SAFE, &busy).await;
            assert_eq!(code(&busy), Some(Code::ToolBusy));
        }
        // The key is its own: only its own calls with that key are refused.
        let keyed = json!({ "timeout_ms": 1, "circuit_breaker_key": SAFE });
        for n in 0..6 {
            let named = ask(&format!("named{n}"), PROBE, &|asked| asked["qos"] = keyed.clone()).await;
            assert_eq!(named.outcome == Outcome::BreakerOpen, n == 5, "{n}: {named:?}");
        }
        let own = format!("agent://planner@deviceA/{SAFE}");
        assert_eq!(standing(&runtime, &own), Some((BreakerState::Open, Some(Cause::Failures))));
        for tool in [SAFE, PROBE] {
            let shared = runtime.pipeline().services().control.breakers.show_one(tool).unwrap();
            assert_eq!((shared.state, shared.failures), (BreakerState::Closed, 0), "{tool}");
        }
        let other = |asked: &mut Value| {
            asked["subject_id"] = json!(OTHER);
            asked["params"]["how"] = json!("");
        };
        assert_eq!(ask("other", SAFE, &other).await.outcome, Outcome::Executed);
        assert!(runtime.stop().await);
    });
}

fn thrash() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|config| config.pipeline.control.breaker.failures_max = 2).await;
        let receipt = exec(&runtime, "a", SAFE, "die-before", 5).await;
        assert_eq!(code(&receipt), Some(Code::SandboxFailed));
        assert_eq!((receipt.attempts.len(), place.runs("a")), (2, 2));
        assert!(runtime.stop().await);
    });
}

fn restart() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|config| config.pipeline.control.breaker.failures_max = 1).await;
        exec(&runtime, "bad", SAFE, "die-before", 0).await;
        assert!(runtime.stop().await);
        let runtime = place.runtime(|_| ()).await;
        let refused = exec(&runtime, "next", SAFE, "", 0).await;
        assert_eq!((code(&refused), place.runs("next")), (Some(Code::BreakerOpen), 0));
        runtime.pipeline().services().control.breakers.reset(SAFE).await.unwrap();
        assert_eq!(exec(&runtime, "again", SAFE, "", 0).await.outcome, Outcome::Executed);
        assert!(runtime.stop().await);
        let runtime = place.runtime(|_| ()).await;
        assert_eq!(exec(&runtime, "still", SAFE, "", 0).await.outcome, Outcome::Executed);
        assert!(runtime.stop().await);
    });
}

fn cached() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|_| ()).await;
        let done = exec(&runtime, "done", SAFE, "", 0).await;
        runtime.pipeline().services().control.breakers.trip(SAFE, None).await.unwrap();
        let mut again = request("again", SAFE);
        again["params"]["name"] = json!("done");
        match runtime.exec(parsed(&again)).await {
            Answer::Done(answer) => assert_eq!((answer.before, &*answer.receipt), (true, &done)),
            Answer::Held(held) => panic!("{held:?}"),
            Answer::Refused(failure) => panic!("{failure}"),
        }
        assert!(runtime.stop().await);
    });
}
