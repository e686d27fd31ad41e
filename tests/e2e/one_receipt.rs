//! Every action ends in exactly one receipt, and everything about it is true.

use std::collections::BTreeSet;
use std::sync::Arc;

use effectd::{Answer, Done};
use effectd_actors::identity::verify;
use effectd_actors::{Incoming, Withdrawal};
use effectd_bus::{ReceiptQuery, TopicName};
use effectd_contracts::{Code, Digest, Event, ExecutedData, Origin, Outcome, Status, Topic};

use crate::harness::{Place, Running, note, write_note};

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
    assert_eq!(
        receipt.outputs["sha256_text"],
        Digest::of("héllo".as_bytes()).hex()
    );
    assert_eq!(receipt.inputs["path"], "workspace/x.txt");
    assert!(receipt.inputs.contains_key("hmac_sha256_text") && !receipt.inputs.contains_key("text"));
    assert!(
        receipt.timing.total_ms.micros()
            >= receipt.timing.queued_ms.micros() + receipt.timing.exec_ms.micros()
    );
    assert!(receipt.timing.exec_ms.micros() > 0 && receipt.cost.cpu_ms.micros() > 0);
    assert!(
        receipt
            .isolation
            .as_ref()
            .unwrap()
            .mechanisms
            .contains_key("landlock"),
        "{:?}",
        receipt.isolation
    );
    let key = runtime.pipeline().parts().identity.key().public_key();
    assert_eq!(verify(&receipt, &key), Ok(()));

    let stored = runtime.store().receipt(&receipt.receipt_id).unwrap().unwrap();
    assert_eq!(stored.parse().unwrap(), *receipt);
    let page = runtime
        .store()
        .read(&TopicName::from(Topic::ActionExecuted), 0, 10)
        .unwrap();
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
        tokio::spawn(async move {
            runtime
                .exec(note(&format!("a-{n}"), "workspace/x.txt", "same"))
                .await
        })
    });
    let mut ids = BTreeSet::new();
    let mut now = 0;
    for answer in all.collect::<Vec<_>>() {
        let done = done(answer.await.unwrap());
        now += usize::from(!done.before);
        ids.insert(done.receipt.receipt_id.clone());
    }
    assert_eq!((ids.len(), now), (1, 1), "one ran, the others got its receipt");
    assert_eq!(
        runtime
            .store()
            .receipts(&ReceiptQuery::default())
            .unwrap()
            .receipts
            .len(),
        1
    );
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
    assert_eq!(
        std::fs::read_to_string(place.path("workspace/x.txt")).unwrap(),
        "A"
    );
    assert!(done(runtime.exec(note("4", "workspace/x.txt", "A")).await).before);
    runtime.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submitted_decision_survives_until_somebody_runs_it() {
    let place = Place::new();
    let runtime = place.runtime().await;
    let ticket = runtime
        .submit(note("a", "workspace/x.txt", "hello"))
        .await
        .unwrap();
    let answer = done(ticket.receipt().await.unwrap());
    assert_eq!(answer.receipt.status, Status::Ok);
    let again = runtime
        .submit(note("a", "workspace/x.txt", "hello"))
        .await
        .unwrap();
    assert_eq!(
        done(again.receipt().await.unwrap()).receipt.receipt_id,
        answer.receipt.receipt_id
    );
    assert_eq!(
        runtime
            .store()
            .receipts(&ReceiptQuery::default())
            .unwrap()
            .receipts
            .len(),
        1
    );
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
    let page = runtime
        .store()
        .read(&TopicName::from(Topic::ActionExecuted), 0, 1_000)
        .unwrap();
    assert_eq!(page.events.len(), 100);
    Arc::into_inner(runtime).unwrap().stop().await;
}

#[test]
fn no_sensitive_value_is_on_disk_or_in_a_log() {
    let place = Place::new();
    let secret = "canary-7f3a91c2";
    let request = write_note("a", "workspace/x.txt", &format!("my {secret} text"));
    let ran = place.effectd(
        &["run", "-", "-o", "json", "--trace", "--log", "json"],
        Some(&request.to_string()),
    );
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
    assert!(!ran.stdout().contains(secret) && !ran.stderr().contains(secret));
    let files = place.state_bytes();
    assert!(files.len() > 3, "{files:?}");
    for (path, bytes) in files {
        let found = bytes
            .windows(secret.len())
            .any(|window| window == secret.as_bytes());
        assert!(!found, "{} holds the text", path.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn withdrawing_and_running_race_to_exactly_one_receipt() {
    const ROUNDS: usize = 150;
    let place = Place::new();
    let runtime = place.runtime().await;
    let (mut withdrawn, mut ran) = (0, 0);
    // How late on its way it is withdrawn. Where the two meet depends on the machine, so it is looked for: later when it was in
    // time, sooner when it was not.
    let mut later = std::time::Duration::from_micros(500);
    for round in 0..ROUNDS {
        let id = format!("r-{round}");
        let request = note(&id, &format!("workspace/{id}"), "raced");
        let action = request.action_id.clone();
        let ticket = runtime.submit(request).await.unwrap();
        let begun = std::time::Instant::now();
        let cancel = async {
            // A timer knows no less than a millisecond.
            while begun.elapsed() < later {
                tokio::task::yield_now().await;
            }
            tokio::join!(runtime.cancel(&action), runtime.cancel(&action))
        };
        let (told, (first, second)) = tokio::join!(ticket.receipt(), cancel);
        let Answer::Done(done) = told.unwrap() else {
            panic!("{id} has no receipt")
        };
        let (first, second) = (first.unwrap(), second.unwrap());
        let now = [&first, &second]
            .into_iter()
            .filter(|withdrawal| matches!(withdrawal, Withdrawal::Now(_)))
            .count();
        let happened = place.note(&id).exists();
        if done.receipt.outcome == Outcome::Cancelled {
            assert_eq!(
                now, 1,
                "{id}: one of the two has withdrawn it: {first:?} {second:?}"
            );
            assert!(!happened, "{id} was withdrawn, and ran");
            withdrawn += 1;
            later = later.mul_f64(1.25);
        } else {
            assert_eq!(done.receipt.outcome, Outcome::Executed, "{id}");
            assert_eq!(now, 0, "{id} ran: {first:?} {second:?}");
            assert!(happened, "{id}");
            ran += 1;
            later = later.mul_f64(0.8);
        }
        let stored = runtime.pipeline().receipt_of(&action).unwrap().unwrap();
        assert_eq!(stored.receipt.receipt_id, done.receipt.receipt_id);
    }
    let query = ReceiptQuery {
        limit: 1_000,
        ..ReceiptQuery::default()
    };
    let all = runtime.store().receipts(&query).unwrap().receipts;
    assert_eq!(all.len(), ROUNDS, "one receipt for each, and no other");
    assert!(
        withdrawn > 0 && ran > 0,
        "{withdrawn} withdrawn, {ran} ran: no race"
    );
    runtime.stop().await;
}

/// Answers go by action id, and two users use the same one at the same time: whoever is answered is answered with their own.
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
