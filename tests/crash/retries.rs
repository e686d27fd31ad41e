//! Retries: which failures are tried again, how often, and which are not.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use effectd::contracts::{Code, Effects, ManualClock, Millis, Outcome, Receipt, Timestamp};
use effectd::internal::Runtime;
use effectd_actors::Answer;
use serde_json::{Value, json};

use crate::Test;
use crate::child::Report;
use crate::harness::asynchronously;
use crate::place::{PATIENCE, Place, parsed, request_how};
use crate::tools::{NEVER, PROBE, SAFE, TIME_MS};

pub(crate) const TESTS: &[Test] = &[
    ("passing_failures_are_tried_again_and_counted", passing),
    ("exhausted_retries_are_a_receipt_an_event_and_a_dead_letter", exhausted),
    ("lasting_failures_are_not_tried_again", lasting),
    ("ambiguous_outcomes_are_settled_and_not_retried", ambiguous),
    ("a_result_that_breaks_its_schema_may_have_had_an_effect", invalid),
    ("only_successes_are_remembered", remembered),
    ("no_attempt_begins_after_the_deadline", deadline),
    ("a_deadline_follows_the_injected_clock", injected),
    ("the_span_of_an_action_says_how_often_it_was_tried_again", spanned),
];

/// Runs one such request on a fresh runtime and has its receipt checked.
fn one(tool: &str, how: &str, retries: u32, look: impl FnOnce(&Receipt, &Report, &Place)) {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|_| ()).await;
        let mut asked = request_how("a", tool, how);
        asked["qos"] = json!({ "max_retries": retries });
        let receipt = exec(&runtime, &asked).await.0;
        let report = Report::of(&runtime).await;
        report.all_settled();
        assert_eq!(report.the_receipt("a"), &receipt);
        look(&receipt, &report, &place);
        assert!(runtime.stop().await);
    });
}

async fn exec(runtime: &Runtime, asked: &Value) -> (Receipt, bool) {
    match runtime.exec(parsed(asked)).await {
        Answer::Done(done) => ((*done.receipt).clone(), done.before),
        Answer::Held(held) => panic!("{held:?}"),
        Answer::Refused(failure) => panic!("{failure}"),
    }
}

fn code(receipt: &Receipt) -> Option<Code> {
    receipt.error.as_ref().map(|failure| failure.code)
}

fn passing() {
    one(NEVER, "busy:2", 2, |receipt, report, place| {
        assert_eq!(receipt.outcome, Outcome::Executed);
        let codes: Vec<_> = receipt.attempts.iter().map(|attempt| attempt.code).collect();
        assert_eq!(codes, [Some(Code::ToolBusy), Some(Code::ToolBusy), None]);
        assert_eq!((place.runs("a"), place.effects("a")), (3, 1));
        assert!(report.letters.is_empty());
    });
}

fn exhausted() {
    one(SAFE, "busy:99", 2, |receipt, report, place| {
        assert_eq!((receipt.outcome, code(receipt)), (Outcome::Failed, Some(Code::ToolBusy)));
        assert_eq!(receipt.effects, Effects::None);
        assert_eq!((place.runs("a"), receipt.attempts.len()), (3, 3));
        let letters = report.letters_of("a");
        assert_eq!(letters.len(), 1);
        assert_eq!((letters[0].code.as_str(), letters[0].attempts), ("tool_busy", 3));
        assert_eq!(letters[0].receipt_id.as_deref(), Some(receipt.receipt_id.as_str()));
    });
}

fn lasting() {
    one(SAFE, "fail", 5, |receipt, report, place| {
        assert_eq!(code(receipt), Some(Code::ToolFailed));
        assert_eq!((place.runs("a"), receipt.attempts.len()), (1, 1));
        assert!(report.letters.is_empty());
    });
}

fn ambiguous() {
    one(NEVER, "die-after", 5, |receipt, report, place| {
        assert_eq!(code(receipt), Some(Code::OutcomeUnknown));
        assert_eq!(receipt.effects, Effects::Possible);
        assert_eq!((place.runs("a"), place.effects("a")), (1, 1));
        assert_eq!(report.letters_of("a").len(), 1);
    });
    one(NEVER, "die-before", 5, |receipt, _, place| {
        assert_eq!(code(receipt), Some(Code::OutcomeUnknown));
        assert_eq!((place.runs("a"), place.effects("a")), (1, 0));
    });
    one(PROBE, "die-after", 5, |receipt, report, place| {
        assert_eq!(receipt.outcome, Outcome::Executed);
        assert_eq!(receipt.outputs["settled_by"], "probe");
        assert_eq!((place.runs("a"), place.effects("a")), (1, 1));
        assert!(report.letters.is_empty());
    });
    one(SAFE, "die-after-first", 5, |receipt, _, place| {
        assert_eq!(receipt.outcome, Outcome::Executed);
        assert_eq!((place.runs("a"), place.effects("a")), (2, 2));
    });
}

fn invalid() {
    for tool in [SAFE, PROBE, NEVER] {
        one(tool, "garbage", 5, |receipt, _, place| {
            assert_eq!(code(receipt), Some(Code::ResultInvalid), "{tool}");
            assert_eq!(receipt.effects, Effects::Possible, "{tool}");
            assert!(receipt.outputs.is_empty(), "{:?}", receipt.outputs);
            assert_eq!((place.runs("a"), place.effects("a")), (1, 1), "{tool}");
        });
    }
}

fn remembered() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|_| ()).await;
        let asked = |action: &str| {
            let mut asked = request_how("same", SAFE, "busy:1");
            asked["action_id"] = json!(action);
            asked
        };
        let (first, _) = exec(&runtime, &asked("1")).await;
        assert_eq!(code(&first), Some(Code::ToolBusy));
        let (second, before) = exec(&runtime, &asked("2")).await;
        assert_eq!((second.outcome, before), (Outcome::Executed, false), "a failure is not remembered");
        let (third, before) = exec(&runtime, &asked("3")).await;
        assert_eq!((&third.receipt_id, before), (&second.receipt_id, true));
        assert_eq!((place.runs("same"), place.effects("same")), (2, 1));
        let report = Report::of(&runtime).await;
        assert_eq!((report.receipts.len(), report.events.len()), (2, 2));
        assert!(runtime.stop().await);
    });
}

fn deadline() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|_| ()).await;
        // On a machine that stalls, the deadline may pass before the first attempt; then it is asked for again.
        let mut began = false;
        for name in ["a", "b", "c", "d"] {
            let mut asked = request_how(name, SAFE, "busy:99");
            asked["qos"] = json!({ "max_retries": 10, "timeout_ms": 1000 });
            let (receipt, _) = exec(&runtime, &asked).await;
            // Ten pauses that double from 50 ms would take half a minute.
            assert!(place.runs(name) < 10, "{}", place.runs(name));
            assert!(receipt.error.is_some());
            assert!(receipt.timing.total_ms.as_f64() < 20_000.0, "{:?}", receipt.timing);
            began = place.runs(name) > 0;
            if began {
                break;
            }
        }
        assert!(began, "nothing was ever tried");
        assert!(runtime.stop().await);
    });
}

/// On a clock that only the test moves: the first attempt takes three quarters of the time, so no second one fits. By the machine's
/// clocks nearly all of it is left. Only the pause between two attempts is tokio's.
fn injected() {
    const TOOK: Duration = Duration::from_millis(TIME_MS * 3 / 4);
    asynchronously(async {
        let place = Place::new();
        let marker = place.marker();
        let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
        let config_clock = clock.clone();
        let runtime = place.runtime(|config| config.clock = config_clock).await;
        let mut asked = request_how("a", SAFE, "busy-at-gate");
        asked["qos"] = json!({ "max_retries": 10 });
        let ticket = runtime.submit(parsed(&asked)).await.unwrap();
        let said = tokio::task::spawn_blocking(move || marker.recv_timeout(PATIENCE)).await;
        assert_eq!(said.unwrap().unwrap(), "waiting");
        clock.advance(TOOK);
        place.open_gate();
        let Ok(Answer::Done(done)) = ticket.receipt().await else { panic!("it has a receipt") };
        let attempts = done.receipt.attempts.iter().map(|attempt| (attempt.code, attempt.exec_ms));
        assert_eq!(attempts.collect::<Vec<_>>(), [(Some(Code::ToolBusy), Millis::from(TOOK))]);
        assert_eq!(place.runs("a"), 1);
        assert!(runtime.stop().await);
    });
}

fn spanned() {
    let place = Place::new();
    let mut asked = request_how("a", NEVER, "busy:2");
    asked["qos"] = json!({ "max_retries": 2 });
    let file = place.path().join("request.json");
    std::fs::write(&file, asked.to_string()).unwrap();
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["run", "--trace", "--log", "json", "--state"])
        .args([place.state(), file])
        .current_dir(place.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{told}");
    let mut lines = told.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ended = lines.rfind(|line| line["message"] == "action ended");
    let span = ended.unwrap_or_else(|| panic!("{told}"));
    let expected = [
        ("trace_id", json!("trace-a")),
        ("tool_id", json!(NEVER)),
        ("space_id", json!("shared:household")),
        ("retry", json!(2)),
        ("caps", json!("files.write,workspace:shared:write")),
        ("sandbox_profile", json!("default")),
    ];
    for (name, value) in expected {
        assert_eq!(span[name], value, "{name}: {span}");
    }
}
