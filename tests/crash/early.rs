//! A child may have its call in hand before the action is claimed. It carries it out when the intent is on disk, and never
//! otherwise, whatever dies meanwhile.

use effectd::contracts::{Outcome, Receipt};
use effectd::{Answer, Runtime};
use effectd_actors::failpoint::{Fault, Trap, arm};
use effectd_actors::metrics::CALLS_EARLY_TOTAL;
use serde_json::{Value, json};

use crate::Test;
use crate::child::{Report, WARM, warm};
use crate::harness::{asynchronously, side_by_side};
use crate::matrix::kill_at;
use crate::place::{PATIENCE, Place, SHORT_LEASE, parsed};
use crate::registered::{SPACE, request};

pub(crate) const TESTS: &[Test] = &[
    (
        "a_call_that_was_handed_over_early_goes_with_its_worker_and_is_made_anew",
        goes_with_its_worker,
    ),
    (
        "a_call_that_was_handed_over_early_is_not_made_for_an_action_that_is_not_ours",
        not_ours,
    ),
    (
        "a_call_that_was_handed_over_early_does_nothing_before_its_intent_is_on_disk",
        not_before_its_intent,
    ),
];

/// Where a worker holds an action whose child has the call in hand.
const POINTS: [&str; 4] = [
    "idempotency.after_claim",
    "executor.begin",
    "executor.after_prepare",
    "executor.before_child",
];

fn write(id: &str, text: &str) -> Value {
    let params = json!({ "path": format!("workspace/{id}.txt"), "text": text, "space_id": SPACE });
    request(id, "files.write_text", &params)
}

/// How many such calls there were: carried out, and withdrawn.
fn counted(runtime: &Runtime) -> (u64, u64) {
    let families = runtime.metrics().gather();
    let of = |what: &str| -> u64 {
        let family = families.iter().find(|family| family.name() == CALLS_EARLY_TOTAL);
        let metrics = family.map(|family| family.get_metric()).unwrap_or_default();
        let metric = metrics
            .iter()
            .find(|metric| metric.get_label().iter().any(|label| label.value() == what));
        metric.map_or(0, |metric| metric.get_counter().get_value() as u64)
    };
    (of("carried_out"), of("withdrawn"))
}

async fn exec(runtime: &Runtime, place: &Place, request: &Value) -> Answer {
    warm(runtime, &place.workspace()).await;
    let asked = tokio::time::timeout(PATIENCE, runtime.exec(parsed(request)));
    asked.await.expect("an answer")
}

fn goes_with_its_worker() {
    asynchronously(async {
        let place = Place::new();
        place.set_policy(&[]);
        let runtime = place.runtime(|config| config.lease_ttl = SHORT_LEASE).await;
        let mut expected = (0, 0);
        for fault in [Fault::Panic, Fault::Stall] {
            for point in POINTS {
                let id = format!("{fault:?}-{point}").to_lowercase();
                arm(Trap {
                    point: point.to_owned(),
                    action: Some(id.parse().unwrap()),
                    nth: 1,
                    times: 1,
                    fault,
                });
                let mut asked = write(&id, "once");
                asked["qos"] = json!({ "timeout_ms": 1_000 });
                let Answer::Done(done) = exec(&runtime, &place, &asked).await else {
                    panic!("{id} has no receipt")
                };
                assert_eq!(done.receipt.outcome, Outcome::Executed, "{id}");
                let file = place.workspace().join(format!("{id}.txt"));
                assert_eq!(std::fs::read_to_string(file).unwrap(), "once", "{id}");
                // It came again through the bus, where nobody waits and nothing is handed over early.
                expected.1 += 1;
                assert_eq!(counted(&runtime), expected, "{id}");

                let next = format!("next-{id}");
                let answer = exec(&runtime, &place, &write(&next, "next")).await;
                assert!(matches!(answer, Answer::Done(_)), "{next}: {answer:?}");
                expected.0 += 1;
                assert_eq!(counted(&runtime), expected, "{next}");
            }
        }
        Report::of(&runtime).await.all_settled();
        assert!(runtime.stop().await, "a place is still taken");
    });
}

fn not_ours() {
    asynchronously(async {
        let place = Place::new();
        place.set_policy(&[]);
        let runtime = place.runtime(|config| config.lease_ttl = SHORT_LEASE).await;
        let answer = exec(&runtime, &place, &write("a", "first")).await;
        assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
        assert_eq!(counted(&runtime), (1, 0));
        // Another meaning of an id that has ended, and what was done before, are found out before anything is handed over.
        let mut other = write("other", "second");
        other["action_id"] = json!("a");
        let answer = exec(&runtime, &place, &other).await;
        assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
        let mut again = write("a", "first");
        again["action_id"] = json!("b");
        let Answer::Done(done) = exec(&runtime, &place, &again).await else {
            panic!("it has no receipt")
        };
        assert_eq!(done.receipt.action_id.as_str(), "a");
        assert_eq!(counted(&runtime), (1, 0));
        // Another meaning of an id that is under way is found out by the claim, when a child has the call in hand.
        arm(Trap {
            point: "executor.begin".to_owned(),
            action: Some("held".parse().unwrap()),
            nth: 1,
            times: 1,
            fault: Fault::Stall,
        });
        let mut held = write("held", "first");
        held["qos"] = json!({ "timeout_ms": 1_000 });
        runtime.submit(parsed(&held)).await.unwrap();
        let held = async {
            while runtime.store().open_intents(None, 9).await.unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, held).await.expect("it is begun");
        let mut other = write("other", "second");
        other["action_id"] = json!("held");
        let answer = exec(&runtime, &place, &other).await;
        assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
        assert_eq!(counted(&runtime), (1, 1));
        assert!(!place.workspace().join("other.txt").exists());
        assert!(runtime.stop().await, "a place is still taken");
    });
}

fn not_before_its_intent() {
    let points: Vec<String> = (1..=9)
        .flat_map(|nth| {
            [
                format!("writer.before_append:{nth}"),
                format!("writer.before_answer:{nth}"),
            ]
        })
        .collect();
    let seen = side_by_side(&points, |point| {
        let place = Place::new();
        place.set_policy(&[]);
        std::fs::write(place.path().join(WARM), "").unwrap();
        let (file, asked) = (place.workspace().join("a.txt"), write("a", "text"));
        let (visited, _) = kill_at(&place, "exec", point, &asked);
        let there = file.exists();
        // Whatever is there was written down, and comes to its receipt without being asked for again.
        let mode = if there { "wait" } else { "exec" };
        let mut ended = place.run(mode, &[asked]);
        let answer: Receipt = serde_json::from_value(ended.answers.remove(0)).unwrap();
        assert_eq!(answer.outcome, Outcome::Executed, "{point}");
        assert_eq!(std::fs::read_to_string(file).unwrap(), "text", "{point}");
        ended.report.the_receipt("a");
        ended.report.all_settled();
        (visited, there)
    });
    let without = seen.iter().filter(|seen| **seen == (true, false)).count();
    let with = seen.iter().filter(|seen| **seen == (true, true)).count();
    assert!(without > 1 && with > 0, "{seen:?}");
}
