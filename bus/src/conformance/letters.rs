//! Dead letters: what was given up is kept, with its reason and its payload.

use std::time::Duration;

use effectd_contracts::Status;

use super::values::{action, claim, completion, event, group, receipt_id, sealed_event, topic};
use super::{Bench, Case};
use crate::types::events::Body;
use crate::types::groups::Settled;
use crate::types::letters::{LetterOrigin, NewLetter};

pub(super) const CASES: &[Case] = &[
    ("a terminated delivery is a dead letter at once", terminated),
    ("a completion brings its dead letter with it", completed),
    ("dead letters are listed by topic, in pages", listed),
];

fn terminated(bench: &mut Bench<'_>) {
    let (t, g) = (topic("t"), group("g"));
    bench
        .store
        .publish(&t, vec![sealed_event("1", "a", b"not json"), event("2")])
        .wait()
        .unwrap();
    let leased = bench
        .store
        .lease(&t, &g, 1, Duration::from_secs(30))
        .wait()
        .unwrap();
    let settled = bench
        .store
        .term(leased.deliveries[0].lease_id, "malformed", "expected a brace")
        .wait();
    assert_eq!(settled, Ok(Settled::DeadLettered { letter: 0 }));
    for _ in 0..2 {
        let letter = bench.store.letter(0).unwrap().unwrap();
        assert_eq!(
            (letter.code.as_str(), letter.attempts, &letter.topic),
            ("malformed", 1, &t)
        );
        assert_eq!(
            letter.origin,
            LetterOrigin::Delivery {
                group: g.clone(),
                offset: 0
            }
        );
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
    done.letter = Some(NewLetter {
        topic: topic("ACTION_DECISION"),
        code: "outcome_unknown".into(),
        detail: "the process died".into(),
        attempts: 3,
        payload: b"the request".to_vec(),
    });
    bench.store.commit(done.clone()).wait().unwrap();
    assert!(bench.store.commit(done).wait().unwrap().duplicate);
    bench.reopen();
    let letters = bench.store.letters(None, 0, 9).unwrap().letters;
    assert_eq!(letters.len(), 1);
    assert_eq!(
        letters[0].origin,
        LetterOrigin::Completion {
            receipt_id: receipt_id("receipt-a")
        }
    );
    assert_eq!(
        (letters[0].attempts, letters[0].payload.bytes()),
        (3, Some(&b"the request"[..]))
    );
}

fn listed(bench: &mut Bench<'_>) {
    let g = group("g");
    for n in 0..300 {
        let t = topic(if n % 3 == 0 { "a" } else { "b" });
        bench
            .store
            .publish(&t, vec![event(&n.to_string())])
            .wait()
            .unwrap();
        let leased = bench
            .store
            .lease(&t, &g, 1, Duration::from_secs(30))
            .wait()
            .unwrap();
        bench
            .store
            .term(leased.deliveries[0].lease_id, "c", "")
            .wait()
            .unwrap();
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
    assert_eq!(
        all(Some("b")),
        (0..300).filter(|n| n % 3 != 0).collect::<Vec<_>>()
    );
    assert_eq!(all(Some("none")), [0; 0]);
}
