//! Dead letters: failed events and actions are kept, with cause and payload.

use std::time::Duration;

use effectd_contracts::{Clock as _, Status};

use super::values::{action, claim, completion, event, group, receipt_id, sealed_event, topic};
use super::{Bench, Case};
use crate::error::StoreError;
use crate::limits::LETTER_TRIES_MAX;
use crate::types::dead_letters::{DeadLetterOrigin, FailedAttempt, NewDeadLetter, Requeued};
use crate::types::events::Body;
use crate::types::groups::Acknowledged;

pub(super) const CASES: &[Case] = &[
    ("a terminated delivery is a dead letter at once", terminated),
    ("a completion writes its dead letter in the same step", completed),
    ("dead letters are listed by topic, in pages", listed),
    ("dead letters of one cause are counted together", grouped),
    ("a dead letter is requeued once, and its action may end again", requeued),
    ("a letter whose action ended in another way is not requeued", overtaken),
    ("a purged letter is gone, and its receipt stays", purged),
    ("a dead letter lists each attempt with its time", told_one_by_one),
];

fn told_one_by_one(bench: &mut Bench<'_>) {
    let (t, g) = (topic("t"), group("g"));
    let start = bench.clock.now();
    bench.store.publish(&t, vec![event("1")]).wait().unwrap();
    // The fifth delivery is the last; in between, the process ends and time passes.
    for n in 1..=5 {
        bench.advance(Duration::from_secs(60));
        let leased = bench.store.lease(&t, &g, 1, Duration::from_secs(30)).wait().unwrap();
        let lease = leased.deliveries[0].lease_id;
        let settled = bench.store.nack(lease, Duration::ZERO, &format!("failure {n}")).wait();
        let last = Acknowledged::DeadLettered { letter: 0 };
        assert_eq!(settled, Ok(if n == 5 { last } else { Acknowledged::WillRetry }));
        if n == 2 {
            bench.reopen();
        }
    }
    let expected: Vec<(i64, String)> = (1..=5).map(|n| (60 * n, format!("failure {n}"))).collect();
    // Also long after the end of the epochs in which the attempts were sealed.
    for hours in [0, 3] {
        bench.advance(Duration::from_secs(3_600 * hours));
        bench.store.close_epochs(bench.clock.now()).wait().unwrap();
        let letter = bench.store.letter(0).unwrap().unwrap();
        let told = letter.tries.iter();
        let told = told.map(|tried| (tried.at.as_second() - start.as_second(), tried.error.clone()));
        assert_eq!((told.collect::<Vec<_>>(), letter.attempts), (expected.clone(), 5));
        bench.reopen();
    }
    // Of very many attempts, the last ones are listed.
    let mut done = completion(&claim("a", "a", "p"), Status::Error, None);
    let tries = (0..100).map(|n| FailedAttempt { at: start, error: format!("try {n}") });
    done.letter = Some(NewDeadLetter { attempts: 100, tries: tries.collect(), ..super::values::letter("a") });
    bench.store.commit(done).wait().unwrap();
    let letter = bench.store.letter(1).unwrap().unwrap();
    assert_eq!((letter.attempts, letter.tries.len()), (100, LETTER_TRIES_MAX));
    assert_eq!(letter.tries.last().unwrap().error, "try 99");
}

fn terminated(bench: &mut Bench<'_>) {
    let (t, g) = (topic("t"), group("g"));
    bench.store.publish(&t, vec![sealed_event("1", "a", b"not json"), event("2")]).wait().unwrap();
    let leased = bench.store.lease(&t, &g, 1, Duration::from_secs(30)).wait().unwrap();
    let settled = bench.store.term(leased.deliveries[0].lease_id, "malformed", "expected a brace").wait();
    assert_eq!(settled, Ok(Acknowledged::DeadLettered { letter: 0 }));
    for _ in 0..2 {
        let letter = bench.store.letter(0).unwrap().unwrap();
        assert_eq!((letter.code.as_str(), letter.attempts, &letter.topic), ("malformed", 1, &t));
        assert_eq!(letter.origin, DeadLetterOrigin::Delivery { group: g.clone(), offset: 0 });
        assert_eq!(letter.action_id, Some(action("a")));
        assert_eq!(letter.detail, Body::Opened(b"expected a brace".to_vec()));
        assert_eq!(letter.payload, Body::Opened(b"not json".to_vec()));
        assert_eq!(bench.store.groups(&t).wait().unwrap()[0].committed, 1);
        bench.reopen();
    }
    assert_eq!(bench.store.letter(1).unwrap(), None);
}

fn completed(bench: &mut Bench<'_>) {
    let mut done = completion(&claim("a", "k", "p"), Status::Error, None);
    done.letter = Some(NewDeadLetter {
        topic: topic("ACTION_DECISION"),
        code: "outcome_unknown".into(),
        detail: "the process died".into(),
        attempts: 3,
        tries: Vec::new(),
        payload: b"the request".to_vec(),
    });
    bench.store.commit(done.clone()).wait().unwrap();
    assert!(bench.store.commit(done).wait().unwrap().duplicate);
    bench.reopen();
    let letters = bench.store.letters(None, 0, 9).unwrap().letters;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].origin, DeadLetterOrigin::Completion { receipt_id: receipt_id("receipt-a") });
    assert_eq!((letters[0].attempts, letters[0].payload.bytes()), (3, Some(&b"the request"[..])));
}

fn listed(bench: &mut Bench<'_>) {
    let g = group("g");
    for n in 0..300 {
        let t = topic(if n % 3 == 0 { "a" } else { "b" });
        bench.store.publish(&t, vec![event(&n.to_string())]).wait().unwrap();
        let leased = bench.store.lease(&t, &g, 1, Duration::from_secs(30)).wait().unwrap();
        bench.store.term(leased.deliveries[0].lease_id, "c", "").wait().unwrap();
    }
    let all = |name: Option<&str>| {
        let topic = name.map(topic);
        let (mut numbers, mut from) = (Vec::new(), 0);
        loop {
            let page = bench.store.letters(topic.as_ref(), from, 64).unwrap();
            numbers.extend(page.letters.iter().map(|letter| letter.letter));
            match page.next {
                Some(next) => from = next,
                None => return numbers,
            }
        }
    };
    assert_eq!(all(None), (0..300).collect::<Vec<_>>());
    assert_eq!(all(Some("a")), (0..300).step_by(3).collect::<Vec<_>>());
    assert_eq!(all(Some("b")), (0..300).filter(|n| n % 3 != 0).collect::<Vec<_>>());
    assert_eq!(all(Some("none")), [0; 0]);
}

fn fail(bench: &Bench<'_>, id: &str, code: &str, detail: &str) {
    let mut done = completion(&claim(id, id, "p"), Status::Error, None);
    done.letter = Some(NewDeadLetter {
        topic: topic("ACTION_DECISION"),
        code: code.into(),
        detail: detail.into(),
        attempts: 2,
        tries: Vec::new(),
        payload: format!("the request of {id}").into_bytes(),
    });
    bench.store.commit(done).wait().unwrap();
}

fn grouped(bench: &mut Bench<'_>) {
    for n in 0..60 {
        bench.clock.advance(Duration::from_secs(1));
        let (code, detail) = match n % 3 {
            0 => ("timed_out", format!("no answer within {n} ms")),
            1 => ("internal", format!("child {n} died in /tmp/{n}/x")),
            _ => ("internal", format!("no answer within {n} ms")),
        };
        fail(bench, &n.to_string(), code, &detail);
    }
    bench.store.purge(vec![0, 3]).wait().unwrap();
    for _ in 0..2 {
        assert_eq!(bench.store.stats().letters, 58);
        let groups = bench.store.letter_groups(None, None).unwrap();
        let seen: Vec<_> =
            groups.iter().map(|group| (group.code.as_str(), group.count, group.newest)).collect();
        assert_eq!(seen, [("internal", 20, 59), ("internal", 20, 58), ("timed_out", 18, 57)]);
        let of = |n: u64| bench.store.letter(n).unwrap().unwrap();
        assert_eq!(groups[2].fingerprint, of(6).fingerprint);
        assert_eq!((groups[2].first, groups[2].last), (of(6).time, of(57).time));
        assert_ne!(groups[0].fingerprint, groups[1].fingerprint);
        assert_eq!(bench.store.letter_groups(Some(&topic("other")), None), Ok(Vec::new()));
        let late = bench.store.letter_groups(None, Some(&|letter| letter.letter >= 57)).unwrap();
        assert_eq!(
            late.iter().map(|group| (group.count, group.newest)).collect::<Vec<_>>(),
            [(1, 59), (1, 58), (1, 57)]
        );
        bench.reopen();
    }
}

fn requeued(bench: &mut Bench<'_>) {
    fail(bench, "a", "timed_out", "no answer");
    let again = || sealed_event("again-a", "a", b"the decision");
    let first = bench.store.requeue(0, again()).wait();
    assert_eq!(first, Ok(Requeued::Published { offset: 0 }));
    for _ in 0..2 {
        assert_eq!(bench.store.requeue(0, again()).wait(), Ok(Requeued::Gone));
        assert_eq!(bench.store.letter(0), Ok(None));
        assert_eq!(bench.store.letters(None, 0, 9).unwrap().letters, []);
        assert_eq!(bench.store.read(&topic("ACTION_DECISION"), 0, 9).unwrap().events.len(), 1);
        assert_eq!(bench.store.receipt_of(&action("a")), Ok(None));
        assert!(bench.store.receipt(&receipt_id("receipt-a")).unwrap().is_some());
        bench.reopen();
    }
    let mut done = completion(&claim("a", "a", "p"), Status::Ok, None);
    done.receipt.receipt_id = receipt_id("second");
    done.events.clear();
    bench.store.commit(done).wait().unwrap();
    let receipt = bench.store.receipt_of(&action("a")).unwrap().unwrap();
    assert_eq!(receipt.receipt_id, receipt_id("second"));
    let unknown = bench.store.requeue(1, again()).wait();
    assert!(matches!(unknown, Err(StoreError::NotFound { .. })), "{unknown:?}");
}

fn overtaken(bench: &mut Bench<'_>) {
    fail(bench, "a", "timed_out", "no answer");
    let other = bench.store.requeue(0, sealed_event("x", "b", b"")).wait();
    assert!(matches!(other, Err(StoreError::Conflict { .. })), "{other:?}");
    let (t, g) = (topic("t"), group("g"));
    bench.store.publish(&t, vec![sealed_event("1", "a", b"")]).wait().unwrap();
    let leased = bench.store.lease(&t, &g, 1, Duration::from_secs(9)).wait().unwrap();
    bench.store.term(leased.deliveries[0].lease_id, "c", "").wait().unwrap();
    // The second letter is about the same action, which has ended with another receipt than the letter's.
    let ended = bench.store.requeue(1, sealed_event("x", "a", b"")).wait();
    assert!(matches!(ended, Err(StoreError::AlreadyReceipted { .. })), "{ended:?}");
    let old = bench.store.requeue(1, sealed_event("1", "a", b"")).wait();
    assert!(old.is_err(), "{old:?}");
}

fn purged(bench: &mut Bench<'_>) {
    fail(bench, "a", "c", "");
    fail(bench, "b", "c", "");
    assert_eq!(bench.store.purge(vec![0, 0, 7]).wait(), Ok(1));
    bench.reopen();
    assert_eq!(bench.store.purge(vec![0]).wait(), Ok(0));
    let letters = bench.store.letters(Some(&topic("ACTION_DECISION")), 0, 9).unwrap();
    let numbers: Vec<u64> = letters.letters.iter().map(|letter| letter.letter).collect();
    assert_eq!(numbers, [1]);
    assert!(bench.store.receipt_of(&action("a")).unwrap().is_some());
}
