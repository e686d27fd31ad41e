//! The order of actions: changes of one resource keep the order of the requests, and other resources do not wait.

use std::sync::Arc;

use effectd::contracts::{ActionRequest, Outcome};
use effectd::internal::{Config, Runtime};
use effectd_actors::Answer;
use effectd_actors::control::rates::Rules;
use effectd_actors::failpoint::{Fault, Trap, arm, sprung_at};
use serde_json::json;

use crate::Test;
use crate::floods::add_other;
use crate::harness::{asynchronously, until};
use crate::place::{PATIENCE, Place, SHORT_LEASE, parsed, request, request_how};
use crate::tools::SAFE;

pub(crate) const TESTS: &[Test] = &[
    ("one_resource_is_changed_in_the_order_of_asking_whoever_asks", in_order),
    ("unrelated_resources_wait_for_nobody", at_once),
    ("an_interrupted_change_resumes_when_every_slot_waits_for_it", interrupted),
    ("a_deferred_change_resumes_when_every_slot_waits_for_it", deferred),
    ("a_decision_behind_a_noisy_tenant_is_served_before_it", behind_a_flood),
];

const SUBJECTS: [&str; 2] = ["agent://planner@deviceA", "agent://other@deviceA"];

/// The n-th change of one resource by this subject. Each has its own idempotency key: otherwise they would be one action.
fn change(subject: &str, thing: &str, n: usize) -> ActionRequest {
    let action = format!("{thing}-{n}");
    let mut asked = request(&action, SAFE);
    asked["subject_id"] = json!(subject);
    asked["params"]["name"] = json!(thing);
    asked["idempotency_key"] = json!(action);
    asked["trace_id"] = json!(format!("{n:032x}"));
    parsed(&asked)
}

async fn ended(runtime: &Runtime, action: &str) -> Outcome {
    let id = action.parse().unwrap();
    let answer = tokio::time::timeout(PATIENCE, runtime.pipeline().wait(&id)).await;
    match answer.unwrap_or_else(|_| panic!("{action} does not end")) {
        Ok(Answer::Done(done)) => done.receipt.outcome,
        other => panic!("{action}: {other:?}"),
    }
}

const CHANGES: usize = 60;

fn in_order() {
    asynchronously(async {
        let place = Place::new();
        add_other(&place);
        let runtime = place.runtime(|_| ()).await;
        // The subjects alternate, sometimes with a few of the same subject in a row; other resources are changed in between.
        let subject = |n: usize| SUBJECTS[usize::from(n % 5 < 2)];
        for n in 0..CHANGES {
            runtime.submit(change(subject(n), "thing", n)).await.unwrap();
            runtime.submit(change(subject(n), &format!("own{n}"), 0)).await.unwrap();
        }
        for n in 0..CHANGES {
            assert_eq!(ended(&runtime, &format!("thing-{n}")).await, Outcome::Executed);
            assert_eq!(ended(&runtime, &format!("own{n}-0")).await, Outcome::Executed);
        }
        let witness = std::fs::read_to_string(place.workspace().join("witness-thing")).unwrap();
        let order: Vec<usize> =
            witness.lines().map(|trace| usize::from_str_radix(trace, 16).unwrap()).collect();
        assert_eq!(order.len(), CHANGES, "each happened once");
        for name in SUBJECTS {
            let own: Vec<_> = order.iter().copied().filter(|n| subject(*n) == name).collect();
            assert!(own.is_sorted(), "{name}: {order:?}");
            assert!(own.len() > CHANGES / 3);
        }
        assert!(runtime.stop().await);
    });
}

fn at_once() {
    asynchronously(async {
        let place = Place::new();
        add_other(&place);
        let runtime = Arc::new(place.runtime(|_| ()).await);
        let marker = place.marker();
        // The first change waits at the gate; the second waits for the first.
        let mut first = request_how("first", SAFE, "wait");
        first["params"]["name"] = json!("thing");
        runtime.submit(parsed(&first)).await.unwrap();
        let said = tokio::task::spawn_blocking(move || marker.recv_timeout(PATIENCE)).await;
        assert_eq!(said.unwrap().unwrap(), "waiting");
        runtime.submit(change(SUBJECTS[1], "thing", 2)).await.unwrap();
        for (n, subject) in SUBJECTS.into_iter().enumerate() {
            let asked = change(subject, &format!("elsewhere{n}"), 0);
            let answer = tokio::time::timeout(PATIENCE, runtime.exec(asked)).await;
            assert!(matches!(answer, Ok(Answer::Done(_))), "{answer:?}");
        }
        let second = runtime.pipeline().receipt_of(&"thing-2".parse().unwrap());
        assert!(second.unwrap().is_none(), "its turn has not come");
        place.open_gate();
        assert_eq!(ended(&runtime, "first").await, Outcome::Executed);
        assert_eq!(ended(&runtime, "thing-2").await, Outcome::Executed);
        assert_eq!(place.effects("thing"), 2);
        assert!(Arc::try_unwrap(runtime).expect("nobody else").stop().await);
    });
}

/// The first change is interrupted after its claim, and every other action in flight waits for the same resource.
fn interrupted() {
    asynchronously(async {
        let place = Place::new();
        add_other(&place);
        let short = |config: &mut Config| {
            config.pipeline.in_flight_max = 4;
            config.lease_ttl = SHORT_LEASE;
        };
        let runtime = place.runtime(short).await;
        arm(Trap {
            point: "executor.after_child".to_owned(),
            action: Some("thing-0".parse().unwrap()),
            nth: 1,
            times: 1,
            fault: Fault::Panic,
        });
        for n in 0..20 {
            runtime.submit(change(SUBJECTS[n % 2], "thing", n)).await.unwrap();
        }
        for n in 0..20 {
            assert_eq!(ended(&runtime, &format!("thing-{n}")).await, Outcome::Executed);
        }
        assert!(runtime.stop().await);
    });
}

/// The first change is given back after its claim, without a failed delivery, and the others wait for it in every slot.
fn deferred() {
    asynchronously(async {
        let place = Place::new();
        add_other(&place);
        let runtime = place.runtime(|config| config.pipeline.in_flight_max = 4).await;
        arm(Trap {
            point: "executor.begin".to_owned(),
            action: Some("given-0".parse().unwrap()),
            nth: 1,
            times: 1,
            fault: Fault::Stall,
        });
        for n in 0..20 {
            runtime.submit(change(SUBJECTS[n % 2], "given", n)).await.unwrap();
        }
        let (first, slots) = ("given-0".parse().unwrap(), &runtime.pipeline().services().control.slots);
        until("the first change is claimed", || sprung_at("executor.begin", &first)).await;
        until("the others wait behind it", || slots.taken() == 4 && slots.waiting() == 16).await;
        runtime.pipeline().kill("executor");
        for n in 0..20 {
            assert_eq!(ended(&runtime, &format!("given-{n}")).await, Outcome::Executed);
        }
        assert_eq!(place.effects("given"), 20, "each happened once");
        assert!(runtime.stop().await);
    });
}

/// Twice as many as wait in memory for their turn: the other's decision is far behind them on the bus.
const FLOOD: usize = 2 * effectd_actors::limits::AHEAD_MAX;

fn behind_a_flood() {
    asynchronously(async {
        let place = Place::new();
        add_other(&place);
        let marker = place.marker();
        let one_place = |config: &mut Config| {
            config.pipeline.in_flight_max = 1;
            config.pipeline.control.rates = Rules::UNLIMITED;
        };
        let runtime = Arc::new(place.runtime(one_place).await);
        // The only place is taken until all of them are on the bus.
        let first = request_how("first", SAFE, "wait");
        runtime.submit(parsed(&first)).await.unwrap();
        let said = tokio::task::spawn_blocking(move || marker.recv_timeout(PATIENCE)).await;
        assert_eq!(said.unwrap().unwrap(), "waiting");
        let mut flood = tokio::task::JoinSet::new();
        for n in 0..FLOOD {
            let (runtime, asked) = (runtime.clone(), change(SUBJECTS[0], &format!("flood{n}"), 0));
            flood.spawn(async move { runtime.submit(asked).await.map(drop) });
        }
        while let Some(submitted) = flood.join_next().await {
            submitted.unwrap().unwrap();
        }
        runtime.submit(change(SUBJECTS[1], "behind", 0)).await.unwrap();
        assert_eq!(flooded(&runtime), 0, "the place is taken");
        place.open_gate();
        assert_eq!(ended(&runtime, "behind-0").await, Outcome::Executed);
        let before = flooded(&runtime);
        println!("{before} of {FLOOD} of the flood ended before the other's action");
        assert!(before < FLOOD / 2, "{before} of {FLOOD}");
        Arc::try_unwrap(runtime).expect("nobody else").stop().await;
    });
}

/// How much of the flood has ended.
fn flooded(runtime: &Runtime) -> usize {
    let has_ended = |n: &usize| {
        let id = format!("flood{n}-0").parse().unwrap();
        runtime.pipeline().receipt_of(&id).unwrap().is_some()
    };
    (0..FLOOD).filter(has_ended).count()
}
