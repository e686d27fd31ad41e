//! Too often: told at the door, put off on the bus.

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use effectd::contracts::{Code, Origin, Outcome, Principal};
use effectd::{Answer, Runtime};
use effectd_actors::Incoming;

use crate::Test;
use crate::child::{Report, all_of};
use crate::harness::asynchronously;
use crate::place::{PATIENCE, Place, parsed, request, request_how};
use crate::tools::SAFE;

pub(crate) const TESTS: &[Test] = &[
    (
        "a_budget_counts_actions_that_ran_and_all_their_tries_as_one",
        budget,
    ),
    ("a_rate_is_told_at_the_door_with_when_to_come_back", door),
    (
        "a_rate_puts_off_what_is_on_the_bus_without_counting_a_delivery",
        bus,
    ),
    (
        "a_sessions_window_is_shared_by_both_ways_in_and_outlives_the_process",
        session,
    ),
];

/// How many ask, of whom one a second may.
const ASKED: u64 = 200;

fn door() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place
            .runtime(|config| config.pipeline.control.rates.subject = NonZeroU32::new(1))
            .await;
        let begun = Instant::now();
        let first = runtime.exec(parsed(&request("a", SAFE))).await;
        assert!(matches!(first, Answer::Done(_)), "{first:?}");
        // One more may pass for each second that the machine takes for all of them, and they are far more than that.
        let (mut done, mut refused) = (1, Vec::new());
        for n in 0..ASKED {
            match runtime.exec(parsed(&request(&format!("b{n}"), SAFE))).await {
                Answer::Done(_) => done += 1,
                Answer::Refused(failure) => refused.push((n, failure)),
                Answer::Held(held) => panic!("{held:?}"),
            }
        }
        let allowed = 2 + begun.elapsed().as_secs();
        assert!(done <= allowed, "{done} of {ASKED} passed, {allowed} might have");
        let (n, failure) = refused.swap_remove(0);
        let name = format!("b{n}");
        assert_eq!(failure.code, Code::RateLimited);
        let after = failure.retry_after_ms.expect("when to come back");
        assert!((1..=1_000).contains(&after), "{failure:?}");
        assert!(failure.message.contains("0 are left"), "{failure}");
        // What ended before is answered whatever the rate, and what was refused left nothing behind.
        let again = runtime.exec(parsed(&request("a", SAFE))).await;
        assert!(matches!(again, Answer::Done(_)), "{again:?}");
        assert!(
            runtime
                .pipeline()
                .receipt_of(&name.parse().unwrap())
                .unwrap()
                .is_none()
        );
        assert_eq!(place.runs(&name), 0);
        assert!(runtime.stop().await);
    });
}

fn bus() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place
            .runtime(|config| {
                config.pipeline.control.rates.tool = NonZeroU32::new(5);
                config.pipeline.deliveries_max = 2;
            })
            .await;
        // All of them at once: one after the other they would not be too often where each takes long to be on disk.
        let tickets: Mutex<Vec<_>> = Mutex::default();
        let submitted = (0..25).map(|n| {
            let (runtime, tickets) = (&runtime, &tickets);
            async move {
                let asked = parsed(&request(&format!("a{n}"), SAFE));
                let ticket = runtime.submit(asked).await.unwrap();
                tickets.lock().unwrap().push(ticket);
            }
        });
        all_of(submitted.collect()).await;
        for ticket in &tickets.into_inner().unwrap() {
            let answer = tokio::time::timeout(PATIENCE, ticket.receipt())
                .await
                .expect("in time");
            match answer.unwrap() {
                Answer::Done(done) => assert_eq!(done.receipt.outcome, Outcome::Executed),
                Answer::Held(held) => panic!("{held:?}"),
                Answer::Refused(failure) => panic!("{failure}"),
            }
        }
        let report = Report::of(&runtime).await;
        report.all_settled();
        assert!(report.letters.is_empty());
        let throttled = prometheus::TextEncoder::new()
            .encode_to_string(&runtime.metrics().gather())
            .unwrap();
        assert!(
            throttled.contains("effectd_actions_throttled_total{what=\"tool\"}"),
            "{throttled}"
        );
        assert!(runtime.stop().await);
    });
}

fn budget() {
    asynchronously(async {
        let place = Place::new();
        let limited = async |place: &Place| -> Runtime {
            place
                .runtime(|config| config.pipeline.control.budgets.calls_max = Some(3))
                .await
        };
        let runtime = limited(&place).await;
        let mut retried = request_how("retried", SAFE, "busy:2");
        retried["qos"] = serde_json::json!({ "max_retries": 3 });
        assert!(matches!(runtime.exec(parsed(&retried)).await, Answer::Done(_)));
        assert_eq!(place.runs("retried"), 3);
        assert!(matches!(
            runtime.exec(parsed(&request("a", SAFE))).await,
            Answer::Done(_)
        ));
        // What was done before, and what is refused on its way, uses nothing.
        for n in 0..5 {
            let mut again = request(&format!("again{n}"), SAFE);
            again["params"]["name"] = serde_json::json!("a");
            assert!(
                matches!(runtime.exec(parsed(&again)).await, Answer::Done(_)),
                "{n}"
            );
            let mut wrong = request(&format!("wrong{n}"), SAFE);
            wrong["params"] = serde_json::json!({});
            assert!(
                matches!(runtime.exec(parsed(&wrong)).await, Answer::Done(_)),
                "{n}"
            );
        }
        assert!(runtime.stop().await);
        let runtime = limited(&place).await;
        assert!(matches!(
            runtime.exec(parsed(&request("b", SAFE))).await,
            Answer::Done(_)
        ));
        let spent = refused(runtime.exec(parsed(&request("c", SAFE))).await);
        assert_eq!(spent.map(|(code, _)| code), Some(Code::RateLimited));
        assert_eq!(place.runs("c"), 0);
        assert!(runtime.stop().await);
    });
}

fn of_session(action: &str) -> Incoming {
    Incoming {
        request: parsed(&request(action, SAFE)).into(),
        principal: principal(),
        origin: Origin::Session {
            session_id: "agent:planner".to_owned(),
        },
        interactive: false,
    }
}

fn principal() -> Principal {
    let uid = nix::unistd::geteuid();
    let name = nix::unistd::User::from_uid(uid)
        .ok()
        .flatten()
        .map_or(uid.to_string(), |user| user.name);
    Principal::new(format!("user://{name}")).unwrap()
}

fn refused(answer: Answer) -> Option<(Code, Duration)> {
    match answer {
        Answer::Done(_) | Answer::Held(_) => None,
        Answer::Refused(failure) => {
            let after = failure
                .retry_after_ms
                .map(Duration::from_millis)
                .expect("when to come back");
            Some((failure.code, after))
        }
    }
}

fn session() {
    asynchronously(async {
        let place = Place::new();
        let limited = async |place: &Place| -> Runtime {
            place
                .runtime(|config| config.pipeline.control.session_actions_max = 3)
                .await
        };
        let runtime = limited(&place).await;
        assert_eq!(refused(runtime.pipeline().exec(of_session("a")).await), None);
        assert!(runtime.pipeline().submit(of_session("b")).await.is_ok());
        assert!(runtime.stop().await);
        let runtime = limited(&place).await;
        assert_eq!(refused(runtime.pipeline().exec(of_session("c")).await), None);
        let (code, after) = refused(runtime.pipeline().exec(of_session("d")).await).expect("the fourth");
        assert!(
            code == Code::RateLimited && after <= Duration::from_secs(60),
            "{code} {after:?}"
        );
        let submitted = runtime.pipeline().submit(of_session("e")).await.unwrap_err();
        assert_eq!(submitted.code, Code::RateLimited);
        // Planners that speak for themselves have no session, and what has ended costs nothing.
        assert!(matches!(
            runtime.exec(parsed(&request("f", SAFE))).await,
            Answer::Done(_)
        ));
        assert_eq!(refused(runtime.pipeline().exec(of_session("a")).await), None);
        assert!(runtime.stop().await);
    });
}
