//! Rates, budgets and session windows: refused at the door, deferred on the bus.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use effectd::contracts::{Code, ManualClock, Operation, Origin, Outcome, Principal, SessionId, Timestamp};
use effectd::internal::Runtime;
use effectd_actors::operator::operations::Terms;
use effectd_actors::operator::service::perform;
use effectd_actors::{Answer, Incoming};

use crate::Test;
use crate::child::{Report, all_of};
use crate::harness::asynchronously;
use crate::place::{PATIENCE, Place, parsed, request, request_how};
use crate::tools::SAFE;

pub(crate) const TESTS: &[Test] = &[
    ("a_budget_counts_actions_that_ran_and_all_their_tries_as_one", budget),
    ("a_rate_is_told_at_the_door_with_when_to_come_back", door),
    ("a_runaway_meets_the_rates_as_shipped_and_stops_nobody_else", runaway),
    ("a_rate_limit_defers_events_without_counting_a_delivery", bus),
    ("the_rate_of_one_user_defers_no_event_of_another", others),
    ("a_session_window_covers_exec_and_submit_and_outlives_kills", session),
];

/// One a second may pass, on a clock that only the test moves.
fn door() {
    asynchronously(async {
        let place = Place::new();
        let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
        let config_clock = clock.clone();
        let runtime = place
            .runtime(|config| {
                config.pipeline.control.rates.subject = NonZeroU32::new(1);
                config.clock = config_clock;
            })
            .await;
        let ask = async |action: &str| runtime.exec(parsed(&request(action, SAFE))).await;
        let first = ask("a").await;
        assert!(matches!(first, Answer::Done(_)), "{first:?}");
        for n in 0..20 {
            let name = format!("b{n}");
            let Answer::Refused(failure) = ask(&name).await else {
                panic!("{name} passed, and no time has");
            };
            assert_eq!(failure.code, Code::RateLimited);
            let after = failure.retry_after_ms.expect("when to come back");
            assert!((1..=1_000).contains(&after), "{failure:?}");
            assert!(failure.message.contains("0 left; retry in"), "{failure}");
            // What was refused leaves nothing behind.
            let receipt = runtime.pipeline().receipt_of(&name.parse().unwrap());
            assert!(receipt.unwrap().is_none());
            assert_eq!(place.runs(&name), 0);
        }
        // What ended before is answered whatever the rate.
        let again = ask("a").await;
        assert!(matches!(again, Answer::Done(_)), "{again:?}");
        clock.advance(Duration::from_secs(1));
        let later = ask("b0").await;
        assert!(matches!(later, Answer::Done(_)), "{later:?}");
        assert!(matches!(ask("b1").await, Answer::Refused(_)), "one in a second");
        assert!(runtime.stop().await);
    });
}

/// A loop without a pause, with the settings as shipped, on a clock that stands still.
fn runaway() {
    asynchronously(async {
        let place = Place::new();
        let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
        let config_clock = clock.clone();
        let runtime = place.runtime(|config| config.clock = config_clock).await;
        // The same thing again and again: all but the first are repeats.
        let ask = async |user: &str, n: usize| {
            let mut asked = request(&format!("{user}-{n}"), SAFE);
            asked["params"]["name"] = user.into();
            let incoming = Incoming {
                request: parsed(&asked).into(),
                principal: Principal::new(format!("user://{user}")).unwrap(),
                origin: Origin::Arbiter,
                contract: None,
                interactive: false,
            };
            runtime.pipeline().exec(incoming).await
        };
        for n in 0..200 {
            let answer = ask("runaway", n).await;
            assert!(matches!(answer, Answer::Done(_)), "{n}: {answer:?}");
        }
        let Answer::Refused(failure) = ask("runaway", 200).await else {
            panic!("nothing stops a runaway");
        };
        assert_eq!(failure.code, Code::RateLimited);
        assert!(failure.message.contains("the principal has reached its rate limit: 200 a"), "{failure}");
        // For the same subject, in the same space, with the same tool.
        let answer = ask("other", 0).await;
        assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
        assert_eq!((place.runs("runaway"), place.runs("other")), (1, 1));
        clock.advance(Duration::from_secs(1));
        let later = ask("runaway", 200).await;
        assert!(matches!(later, Answer::Done(_)), "{later:?}");
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
        // All at once: on a slow disk, one after the other would stay below the rate.
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
            let answer = tokio::time::timeout(PATIENCE, ticket.receipt()).await.expect("in time");
            match answer.unwrap() {
                Answer::Done(done) => assert_eq!(done.receipt.outcome, Outcome::Executed),
                Answer::Held(held) => panic!("{held:?}"),
                Answer::Refused(failure) => panic!("{failure}"),
            }
        }
        let report = Report::of(&runtime).await;
        report.all_settled();
        assert!(report.letters.is_empty());
        let throttled = prometheus::TextEncoder::new().encode_to_string(&runtime.metrics().gather()).unwrap();
        assert!(throttled.contains("effectd_actions_throttled_total{what=\"tool\"}"), "{throttled}");
        assert!(runtime.stop().await);
    });
}

/// Both submit for the same subject, on a clock that stands still: deferred decisions do not return.
fn others() {
    asynchronously(async {
        let place = Place::new();
        let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
        let runtime = place
            .runtime(|config| {
                config.pipeline.control.rates.principal = NonZeroU32::new(1);
                config.clock = clock;
            })
            .await;
        for (user, action) in
            [("noisy", "noisy0"), ("noisy", "noisy1"), ("noisy", "noisy2"), ("other", "other")]
        {
            let incoming = Incoming {
                request: parsed(&request(action, SAFE)).into(),
                principal: Principal::new(format!("user://{user}")).unwrap(),
                origin: Origin::Arbiter,
                contract: None,
                interactive: false,
            };
            runtime.pipeline().submit(incoming).await.unwrap();
        }
        let id = "other".parse().unwrap();
        let answer = tokio::time::timeout(PATIENCE, runtime.pipeline().wait(&id)).await;
        let answer = answer.expect("one user's rate holds up the other");
        assert!(matches!(answer, Ok(Answer::Done(_))), "{answer:?}");
        assert_eq!((place.runs("other"), place.runs("noisy1"), place.runs("noisy2")), (1, 0, 0));
        runtime.stop().await;
    });
}

fn budget() {
    asynchronously(async {
        let place = Place::new();
        let limited = async |place: &Place| -> Runtime {
            place.runtime(|config| config.pipeline.control.budgets.calls_max = Some(3)).await
        };
        let runtime = limited(&place).await;
        let mut retried = request_how("retried", SAFE, "busy:2");
        retried["qos"] = serde_json::json!({ "max_retries": 3 });
        assert!(matches!(runtime.exec(parsed(&retried)).await, Answer::Done(_)));
        assert_eq!(place.runs("retried"), 3);
        assert!(matches!(runtime.exec(parsed(&request("a", SAFE))).await, Answer::Done(_)));
        // Repeats and refused actions use no budget.
        for n in 0..5 {
            let mut again = request(&format!("again{n}"), SAFE);
            again["params"]["name"] = serde_json::json!("a");
            assert!(matches!(runtime.exec(parsed(&again)).await, Answer::Done(_)), "{n}");
            let mut wrong = request(&format!("wrong{n}"), SAFE);
            wrong["params"] = serde_json::json!({});
            assert!(matches!(runtime.exec(parsed(&wrong)).await, Answer::Done(_)), "{n}");
        }
        assert!(runtime.stop().await);
        let runtime = limited(&place).await;
        assert!(matches!(runtime.exec(parsed(&request("b", SAFE))).await, Answer::Done(_)));
        let spent = refused(runtime.exec(parsed(&request("c", SAFE))).await);
        assert_eq!(spent.map(|(code, _)| code), Some(Code::RateLimited));
        assert_eq!(place.runs("c"), 0);
        assert!(runtime.stop().await);
    });
}

fn from(origin: &Origin, action: &str) -> Incoming {
    Incoming {
        request: parsed(&request(action, SAFE)).into(),
        principal: principal(),
        origin: origin.clone(),
        contract: None,
        interactive: false,
    }
}

async fn new_session(runtime: &Runtime) -> Origin {
    let session_id = SessionId::fresh();
    let operation = Operation::CreateSession {
        session_id: session_id.clone(),
        space_id: "shared:household".parse().unwrap(),
        subject_id: "agent://planner@deviceA".parse().unwrap(),
        title: "under pressure".to_owned(),
        unattended: true,
        connections: Vec::new(),
    };
    let services = runtime.pipeline().services().clone();
    perform(services, operation, Terms::default(), principal()).await.unwrap();
    Origin::Session { session_id }
}

fn principal() -> Principal {
    let uid = nix::unistd::geteuid();
    let name = nix::unistd::User::from_uid(uid).ok().flatten().map_or(uid.to_string(), |user| user.name);
    Principal::new(format!("user://{name}")).unwrap()
}

fn refused(answer: Answer) -> Option<(Code, Duration)> {
    match answer {
        Answer::Done(_) | Answer::Held(_) => None,
        Answer::Refused(failure) => {
            let after = failure.retry_after_ms.map(Duration::from_millis).expect("when to come back");
            Some((failure.code, after))
        }
    }
}

fn session() {
    asynchronously(async {
        let place = Place::new();
        let limited = async |place: &Place| -> Runtime {
            place.runtime(|config| config.pipeline.control.session_actions_max = 3).await
        };
        let runtime = limited(&place).await;
        let (session, run) = (new_session(&runtime).await, "nightly".to_owned());
        let run = Origin::Run { automation_id: run.clone(), run_id: run, step_id: "first".to_owned() };
        for (origin, [a, b]) in [(&session, ["a", "b"]), (&run, ["r-a", "r-b"])] {
            assert_eq!(refused(runtime.pipeline().exec(from(origin, a)).await), None);
            assert!(runtime.pipeline().submit(from(origin, b)).await.is_ok());
        }
        assert!(runtime.stop().await);
        let runtime = limited(&place).await;
        for (origin, [a, c, d, e]) in [(&session, ["a", "c", "d", "e"]), (&run, ["r-a", "r-c", "r-d", "r-e"])]
        {
            assert_eq!(refused(runtime.pipeline().exec(from(origin, c)).await), None);
            let fourth = refused(runtime.pipeline().exec(from(origin, d)).await);
            let (code, after) = fourth.expect("the fourth");
            assert!(code == Code::RateLimited && after <= Duration::from_secs(60), "{code} {after:?}");
            let submitted = runtime.pipeline().submit(from(origin, e)).await.unwrap_err();
            assert_eq!(submitted.code, Code::RateLimited);
            // Repeats of ended actions are not counted.
            assert_eq!(refused(runtime.pipeline().exec(from(origin, a)).await), None);
        }
        // Nor are requests without a session.
        assert!(matches!(runtime.exec(parsed(&request("f", SAFE))).await, Answer::Done(_)));
        assert!(runtime.stop().await);
    });
}
