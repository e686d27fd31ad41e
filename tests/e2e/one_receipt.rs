//! Every action ends in exactly one receipt, and everything about it is true.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use effectd::Done;
use effectd::internal::{Config, Runtime};
use effectd_actors::failpoint::{Fault, Trap, arm, sprung_at};
use effectd_actors::preview::{Preview, foresee};
use effectd_actors::{Answer, Incoming, Withdrawal};
use effectd_bus::{ReceiptQuery, TopicName};
use effectd_contracts::signature::verify;
use effectd_contracts::{
    ActionId, ActionRequest, Code, Digest, Event, ExecutedData, Origin, Outcome, Status, Topic,
};
use serde_json::json;

use crate::harness::{LONG, Place, Running, note, write_note};

fn done(answer: Answer) -> Done {
    match answer {
        Answer::Done(done) => done,
        Answer::Held(held) => panic!("{held:?}"),
        Answer::Refused(failure) => panic!("{failure}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receipt_is_signed_stored_and_announced() {
    let place = Place::new();
    let runtime = place.runtime().await;
    let receipt = done(runtime.exec(note("a", "workspace/x.txt", "héllo")).await).receipt;
    assert_eq!(receipt.status, Status::Ok);
    assert_eq!(receipt.outputs["bytes_written"], 6);
    assert_eq!(receipt.outputs["sha256_text"], Digest::of("héllo".as_bytes()).hex());
    assert_eq!(receipt.inputs["path"], "workspace/x.txt");
    assert!(receipt.inputs.contains_key("hmac_sha256_text") && !receipt.inputs.contains_key("text"));
    assert!(
        receipt.timing.total_ms.micros()
            >= receipt.timing.queued_ms.micros() + receipt.timing.exec_ms.micros()
    );
    assert!(receipt.timing.exec_ms.micros() > 0 && receipt.cost.cpu_ms.micros() > 0);
    assert!(
        receipt.isolation.as_ref().unwrap().mechanisms.contains_key("landlock"),
        "{:?}",
        receipt.isolation
    );
    let key = runtime.pipeline().services().identity.key().public_key();
    assert_eq!(verify(&receipt, &key), Ok(()));

    let stored = runtime.store().receipt(&receipt.receipt_id).unwrap().unwrap();
    assert_eq!(stored.parse().unwrap(), *receipt);
    let page = runtime.store().read(&TopicName::from(Topic::ActionExecuted), 0, 10).unwrap();
    assert_eq!(page.events.len(), 1);
    let event: Event<ExecutedData> = serde_json::from_slice(page.events[0].body.bytes().unwrap()).unwrap();
    assert_eq!(event.data.receipt_id, receipt.receipt_id);
    assert_eq!(event.traceid, receipt.trace_id);
    runtime.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_equal_requests_are_one_effect() {
    let place = Place::new();
    let runtime = Arc::new(place.runtime().await);
    let all = (0..50).map(|n| {
        let runtime = runtime.clone();
        tokio::spawn(async move { runtime.exec(note(&format!("a-{n}"), "workspace/x.txt", "same")).await })
    });
    let mut ids = BTreeSet::new();
    let mut now = 0;
    for answer in all.collect::<Vec<_>>() {
        let done = done(answer.await.unwrap());
        now += usize::from(!done.before);
        ids.insert(done.receipt.receipt_id.clone());
    }
    assert_eq!((ids.len(), now), (1, 1), "one ran, the others got its receipt");
    assert_eq!(runtime.store().receipts(&ReceiptQuery::default()).unwrap().receipts.len(), 1);
    Arc::into_inner(runtime).unwrap().stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writing_a_b_a_leaves_a() {
    let place = Place::new();
    let runtime = place.runtime().await;
    for (action, text) in [("1", "A"), ("2", "B"), ("3", "A")] {
        let done = done(runtime.exec(note(action, "workspace/x.txt", text)).await);
        assert!(!done.before, "{action} was taken for done");
    }
    assert_eq!(std::fs::read_to_string(place.path("workspace/x.txt")).unwrap(), "A");
    assert!(done(runtime.exec(note("4", "workspace/x.txt", "A")).await).before);
    runtime.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn already_done_is_said_only_while_it_is_true() {
    let place = Place::new();
    let runtime = place.runtime().await;
    let file = place.path("workspace/x.txt");
    let text = || std::fs::read_to_string(&file).unwrap();
    let foreseen = async |request: &ActionRequest| {
        let principal = Config::embedded(".").unwrap().principal;
        foresee(runtime.pipeline().services(), request, (&principal, &Origin::Arbiter)).await.unwrap().preview
    };
    // Whether it was done before. The preview says so, or shows the change that the run makes.
    let again = async |action: &str| {
        let request = note(action, "workspace/x.txt", "A");
        let said = match foreseen(&request).await {
            Preview::Unavailable(why) => why.starts_with("already done: receipt "),
            Preview::Shown(shown) if !shown.changes.is_empty() => false,
            Preview::Shown(_) | Preview::Request(_) => panic!("{action}: it shows no change"),
            Preview::WouldFail(failure) => panic!("{failure}"),
        };
        let done = done(runtime.exec(request).await);
        assert_eq!((done.before, text().as_str()), (said, "A"), "{action}");
        done.before
    };
    assert!(!again("1").await && again("2").await);
    std::fs::write(&file, "by an editor").unwrap();
    assert!(!again("3").await && again("4").await);
    std::fs::remove_file(&file).unwrap();
    assert!(!again("5").await && again("6").await);
    // An action that has ended keeps its receipt, whether it ran or was answered with another one.
    std::fs::write(&file, "later").unwrap();
    for action in ["1", "2"] {
        assert!(done(runtime.exec(note(action, "workspace/x.txt", "A")).await).before);
    }
    assert_eq!(text(), "later");
    // The same from the bus.
    let submitted = runtime.submit(note("7", "workspace/x.txt", "A")).await.unwrap();
    let receipt = done(submitted.receipt().await.unwrap()).receipt;
    assert_eq!((receipt.action_id.as_str(), text().as_str()), ("7", "A"));
    let submitted = runtime.submit(note("8", "workspace/x.txt", "A")).await.unwrap();
    assert_eq!(done(submitted.receipt().await.unwrap()).receipt.action_id.as_str(), "7");
    runtime.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_without_a_change_is_compared_as_well() {
    let place = Place::new();
    let runtime = place.runtime().await;
    let file = place.path("workspace/y.txt");
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    std::fs::write(&file, "A").unwrap();
    let write = async |action: &str| done(runtime.exec(note(action, "workspace/y.txt", "A")).await).before;
    assert!(!write("1").await && write("2").await);
    std::fs::write(&file, "B").unwrap();
    assert!(!write("3").await && write("4").await);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "A");
    // A key that the planner chose names one request: it is done once, and the preview says so.
    let own = |action: &str| {
        let idempotency_key = Some("own".parse().unwrap());
        ActionRequest { idempotency_key, ..note(action, "workspace/y.txt", "C") }
    };
    assert!(!done(runtime.exec(own("5")).await).before);
    std::fs::write(&file, "B").unwrap();
    let principal = Config::embedded(".").unwrap().principal;
    let foreseen =
        foresee(runtime.pipeline().services(), &own("6"), (&principal, &Origin::Arbiter)).await.unwrap();
    let Preview::Unavailable(why) = foreseen.preview else { panic!("{foreseen:?}") };
    assert!(why.starts_with("already done: receipt "), "{why}");
    assert!(done(runtime.exec(own("6")).await).before);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "B");
    runtime.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submitted_decision_survives_until_somebody_runs_it() {
    let place = Place::new();
    let runtime = place.runtime().await;
    let ticket = runtime.submit(note("a", "workspace/x.txt", "hello")).await.unwrap();
    let answer = done(ticket.receipt().await.unwrap());
    assert_eq!(answer.receipt.status, Status::Ok);
    let again = runtime.submit(note("a", "workspace/x.txt", "hello")).await.unwrap();
    assert_eq!(done(again.receipt().await.unwrap()).receipt.receipt_id, answer.receipt.receipt_id);
    assert_eq!(runtime.store().receipts(&ReceiptQuery::default()).unwrap().receipts.len(), 1);
    runtime.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_actions_have_a_hundred_receipts() {
    let place = Place::new();
    let runtime = Arc::new(place.runtime().await);
    let all = (0..100).map(|n| {
        let runtime = runtime.clone();
        let request = note(&format!("a-{n}"), &format!("workspace/{n}.txt"), "x");
        tokio::spawn(async move {
            if n % 2 == 0 {
                runtime.exec(request).await
            } else {
                runtime.submit(request).await.unwrap().receipt().await.unwrap()
            }
        })
    });
    let mut ids = BTreeSet::new();
    for answer in all.collect::<Vec<_>>() {
        ids.insert(done(answer.await.unwrap()).receipt.receipt_id.clone());
    }
    assert_eq!(ids.len(), 100);
    let page = runtime.store().read(&TopicName::from(Topic::ActionExecuted), 0, 1_000).unwrap();
    assert_eq!(page.events.len(), 100);
    Arc::into_inner(runtime).unwrap().stop().await;
}

#[test]
fn no_sensitive_value_is_on_disk_or_in_a_log() {
    let place = Place::new();
    let secret = "canary-7f3a91c2";
    let request = write_note("a", "workspace/x.txt", &format!("my {secret} text"));
    let ran =
        place.effectd(&["run", "-", "-o", "json", "--trace", "--log", "json"], Some(&request.to_string()));
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
    assert!(!ran.stdout().contains(secret) && !ran.stderr().contains(secret));
    let files = place.state_bytes();
    assert!(files.len() > 3, "{files:?}");
    for (path, bytes) in files {
        let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "{} holds the text", path.display());
    }
}

/// Submits a note, cancels it twice at once after `moment`, and checks that all answers agree.
async fn race(
    runtime: &Runtime,
    place: &Place,
    request: ActionRequest,
    moment: impl Future<Output = ()>,
) -> Outcome {
    let action = request.action_id.clone();
    let id = action.as_str();
    let ticket = runtime.submit(request).await.unwrap();
    let cancel = async {
        moment.await;
        tokio::join!(runtime.cancel(&action), runtime.cancel(&action))
    };
    let (answer, (first, second)) = tokio::join!(ticket.receipt(), cancel);
    let receipt = done(answer.unwrap()).receipt;
    let (first, second) = (first.unwrap(), second.unwrap());
    let is_now = |withdrawal: &&Withdrawal| matches!(withdrawal, Withdrawal::Now(_));
    let now = [&first, &second].into_iter().filter(is_now).count();
    let withdrawn = receipt.outcome == Outcome::Cancelled;
    assert!(withdrawn || receipt.outcome == Outcome::Executed, "{id}: {receipt:?}");
    assert_eq!(now, usize::from(withdrawn), "{id}: {first:?} {second:?}");
    assert_eq!(place.note(id).exists(), !withdrawn, "{id}: {receipt:?}");
    let stored = runtime.pipeline().receipt_of(&action).unwrap().unwrap();
    assert_eq!(stored.receipt.receipt_id, receipt.receipt_id);
    receipt.outcome
}

/// A note that stalls at this point, once. When its lease has ended, another worker takes it over.
fn stalling(point: &str) -> ActionRequest {
    let id = format!("stalls-{point}");
    arm(Trap {
        point: point.to_owned(),
        action: Some(id.parse().unwrap()),
        nth: 1,
        times: 1,
        fault: Fault::Stall,
    });
    let mut request = write_note(&id, &format!("workspace/{id}"), "stalled");
    // A stage that stalls while its tool runs has this time in addition to its lease.
    request["qos"] = json!({ "timeout_ms": 3_000 });
    serde_json::from_value(request).unwrap()
}

async fn until_stalled(point: &str, action: ActionId) {
    let stalled = async {
        while !sprung_at(point, &action) {
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(LONG, stalled).await;
    in_time.unwrap_or_else(|_| panic!("{action} did not reach {point} within {LONG:?}"));
}

/// Both ends of the race, decided by failpoints: an action that stalls before its claim is cancelled, a claimed one runs.
#[tokio::test(flavor = "multi_thread")]
async fn an_action_can_be_cancelled_until_it_is_claimed() {
    let place = Place::new();
    let mut config = place.config();
    config.lease_ttl = Duration::from_secs(2);
    let runtime = Runtime::start(config).await.unwrap();
    for (point, expected) in [
        ("validator.begin", Outcome::Cancelled),
        ("gate.end", Outcome::Cancelled),
        ("idempotency.before_claim", Outcome::Cancelled),
        ("idempotency.after_claim", Outcome::Executed),
        ("executor.before_child", Outcome::Executed),
        ("recorder.before_commit", Outcome::Executed),
    ] {
        let request = stalling(point);
        let stalled = until_stalled(point, request.action_id.clone());
        let ended = race(&runtime, &place, request, stalled).await;
        assert_eq!(ended, expected, "{point}");
    }
    assert!(runtime.stop().await);
}

/// The moments between. Where the two meet depends on the machine, so this searches for it: later after a cancelled round, sooner
/// after one that ran.
#[tokio::test(flavor = "multi_thread")]
async fn withdrawing_and_running_race_to_exactly_one_receipt() {
    const ROUNDS: usize = 150;
    let place = Place::new();
    let runtime = place.runtime().await;
    let (mut later, mut ran): (usize, usize) = (64, 0);
    for round in 0..ROUNDS {
        let moment = async {
            for _ in 0..later {
                tokio::task::yield_now().await;
            }
        };
        let id = format!("r-{round}");
        let request = note(&id, &format!("workspace/{id}"), "raced");
        let ended = race(&runtime, &place, request, moment).await;
        later = if ended == Outcome::Cancelled {
            later + later / 4
        } else {
            ran += 1;
            (later - later / 5).max(4)
        };
    }
    eprintln!("{ran} ran, {} were cancelled", ROUNDS - ran);
    // The wait grows with every cancelled round, so one runs in the end.
    assert!(ran > 0);
    let query = ReceiptQuery { limit: 1_000, ..ReceiptQuery::default() };
    let all = runtime.store().receipts(&query).unwrap().receipts;
    assert_eq!(all.len(), ROUNDS, "one receipt for each, and no other");
    assert!(runtime.stop().await);
}

/// Two users use the same action id at the same time: each answer goes to its own principal.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_in_flight_answers_its_own_asker_alone() {
    let place = Place::new();
    let runtime = Arc::new(place.runtime().await);
    for round in 0..10 {
        let id = format!("shared-{round}");
        let all = (0..16).map(|n| {
            let (runtime, principal) = (runtime.clone(), format!("user://{}", n % 2));
            let incoming = Incoming {
                request: note(&id, "workspace/x.txt", &id).into(),
                principal: principal.parse().unwrap(),
                origin: Origin::Arbiter,
                contract: None,
                interactive: false,
            };
            tokio::spawn(async move {
                let asker = incoming.principal.clone();
                (asker, runtime.pipeline().exec(incoming).await)
            })
        });
        let mut served = BTreeSet::new();
        for answer in all.collect::<Vec<_>>() {
            match answer.await.unwrap() {
                (asker, Answer::Done(done)) => {
                    assert_eq!(done.receipt.principal, asker);
                    served.insert(asker);
                }
                (_, Answer::Refused(failure)) => assert_eq!(failure.code, Code::ActionConflict),
                (_, Answer::Held(held)) => panic!("{held:?}"),
            }
        }
        assert_eq!(served.len(), 1, "{served:?}");
    }
    Arc::into_inner(runtime).unwrap().stop().await;
}
