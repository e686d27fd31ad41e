//! Settlement of interrupted actions, also when tools or switches have changed before the next start.

use effectd::contracts::{Code, Outcome, Receipt, SystemClock};
use effectd::internal::Config;
use effectd_actors::control::switches::{Off, Switches};
use effectd_bus::Store;
use effectd_bus::embedded::{self, EmbeddedConfig};

use crate::Test;
use crate::child::Report;
use crate::harness::asynchronously;
use crate::place::{Order, PATIENCE, Place, SHORT_LEASE, request};
use crate::tools::{self, NEVER, PROBE, SAFE};

pub(crate) const TESTS: &[Test] = &[
    ("an_upgrade_that_keeps_its_promise_settles_by_it", upgrade_kept),
    ("an_upgrade_that_changes_its_promise_is_left_to_a_person", upgrade_changed),
    ("an_interrupted_action_of_a_removed_tool_is_left_to_a_person", tool_removed),
    ("the_policy_is_asked_again_when_a_decision_comes_again", policy_again),
    ("a_begun_action_that_is_denied_now_is_not_called_harmless", denied_after_begun),
    ("a_begun_action_is_no_dry_run_when_effects_are_paused", paused_after_begun),
    ("a_decision_that_kills_processes_ends_as_a_dead_letter", poison),
];

const ACTION: &str = "a";

/// An action that was killed right after its effect.
fn interrupted(tool: &'static str) -> Place {
    let place = Place::new();
    place.stop_tools(Some("after_effect"));
    let marker = place.marker();
    let process = place.start(&Order { mode: "exec", requests: vec![request(ACTION, tool)], stop_at: None });
    assert_eq!(marker.recv_timeout(PATIENCE).as_deref(), Ok("stopped"));
    process.kill();
    place.stop_tools(None);
    assert_eq!(place.effects(ACTION), 1);
    place
}

/// Lets the next runtime settle it, and has its one receipt checked.
fn settled(place: &Place, tools: effectd::Tools, look: impl FnOnce(&Receipt, &Report)) {
    asynchronously(async {
        let change = |config: &mut Config| {
            config.tools = tools;
            config.lease_ttl = SHORT_LEASE;
        };
        let runtime = place.runtime(change).await;
        let id = ACTION.parse().unwrap();
        let waited = tokio::time::timeout(PATIENCE, runtime.pipeline().wait(&id));
        waited.await.expect("in time").expect("an answer");
        let report = Report::of(&runtime).await;
        report.all_settled();
        look(report.the_receipt(ACTION), &report);
        runtime.stop().await;
    });
}

fn upgrade_kept() {
    let place = interrupted(SAFE);
    settled(&place, tools::BETTER, |receipt, report| {
        assert_eq!(receipt.outcome, Outcome::Executed);
        assert_eq!(receipt.tool_version.as_deref(), Some("1.1.0"));
        assert!(report.letters.is_empty());
    });
    assert_eq!(place.effects(ACTION), 2, "safe to repeat, and repeated");
}

fn unknown(receipt: &Receipt, report: &Report, because: &str) {
    assert_eq!(receipt.outcome, Outcome::Indeterminate, "{receipt:#?}");
    let failure = receipt.error.as_ref().unwrap();
    assert_eq!(failure.code, Code::OutcomeUnknown);
    assert!(failure.message.contains(because), "{failure}");
    assert_eq!(report.letters_of(ACTION).len(), 1);
}

fn upgrade_changed() {
    let place = interrupted(SAFE);
    settled(&place, tools::CHANGED, |receipt, report| {
        unknown(receipt, report, "replaced");
    });
    assert_eq!(place.runs(ACTION), 1);
}

fn tool_removed() {
    let place = interrupted(NEVER);
    settled(&place, tools::REMOVED, |receipt, report| {
        unknown(receipt, report, "unknown_tool");
    });
    assert_eq!(place.runs(ACTION), 1);
}

fn denied_after_begun() {
    let place = interrupted(PROBE);
    place.set_policy(&[]);
    settled(&place, tools::ALL, |receipt, report| {
        unknown(receipt, report, "policy_denied");
    });
    assert_eq!(place.runs(ACTION), 1);
}

fn policy_again() {
    let place = Place::new();
    let process = place.start(&Order {
        mode: "submit",
        requests: vec![request(ACTION, SAFE)],
        stop_at: Some("idempotency.begin:1".to_owned()),
    });
    assert!(process.stopped(&mut Vec::new()), "it passed the gate");
    process.kill();
    place.set_policy(&[]);
    settled(&place, tools::ALL, |receipt, report| {
        assert_eq!(receipt.outcome, Outcome::DeniedPolicy);
        assert!(report.letters.is_empty());
    });
    assert_eq!(place.runs(ACTION), 0, "what was permitted yesterday is not done today");
}

fn paused_after_begun() {
    let place = interrupted(SAFE);
    let config = EmbeddedConfig::new(place.state());
    let store = embedded::open(config, std::sync::Arc::new(SystemClock)).unwrap();
    Switches::new(&store)
        .pause(Off(None), None, effectd_contracts::Timestamp::now())
        .unwrap()
        .wait()
        .unwrap();
    store.close().unwrap();
    drop(store);
    settled(&place, tools::ALL, |receipt, report| {
        unknown(receipt, report, "paused");
    });
    assert_eq!(place.runs(ACTION), 1, "effects are paused");
}

/// Five deliveries, five dead processes; the sixth start ends the action without running it.
fn poison() {
    let place = Place::new();
    let mut order = Order {
        mode: "submit",
        requests: vec![request(ACTION, NEVER)],
        stop_at: Some("gate.begin:1".to_owned()),
    };
    for _ in 0..effectd_actors::Settings::default().deliveries_max {
        let process = place.start(&order);
        assert!(process.stopped(&mut Vec::new()));
        process.kill();
        order.mode = "wait";
    }
    let ended = place.run("wait", &order.requests);
    ended.report.all_settled();
    let receipt = ended.report.the_receipt(ACTION);
    let code = receipt.error.as_ref().map(|failure| failure.code);
    assert_eq!((receipt.outcome, code), (Outcome::Failed, Some(Code::Internal)));
    assert_eq!(ended.report.letters_of(ACTION).len(), 1);
    assert_eq!(place.runs(ACTION), 0);
}
