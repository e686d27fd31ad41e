//! Sealed payloads: readable while their epoch lives, by nobody afterwards.

use std::time::Duration;

use effectd_contracts::{Clock, Status};

use super::values::{claim, completion, event, family, group, sealed_event, topic};
use super::{Bench, Case};
use crate::types::claims::ClaimAnswer;
use crate::types::events::{Body, NewBody};
use crate::types::kv::{Change, Expect, KvChange, Swap};

pub(super) const CASES: &[Case] = &[
    ("an epoch begun by hand lets earlier keys be destroyed at once", begun_by_hand),
    ("a closed epoch is unreadable, live payloads are sealed again", shredded),
    ("an epoch with actions in progress is not closed", busy),
];

const HOUR: Duration = Duration::from_secs(3_600);

fn hold(bench: &Bench<'_>, name: &str) -> u64 {
    let change = KvChange::Put(NewBody::Sealed(b"held".to_vec()));
    let swap = Swap { family: family("holds"), key: name.into(), expect: Expect::Any, change };
    let change = Change { swaps: vec![swap], ..Change::default() };
    bench.store.change(change).wait().unwrap().versions[0].unwrap()
}

fn shredded(bench: &mut Bench<'_>) {
    let (t, g) = (topic("t"), group("g"));
    bench
        .store
        .publish(&t, vec![sealed_event("1", "a", b"one"), sealed_event("2", "b", b"two"), event("3")])
        .wait()
        .unwrap();
    let version = hold(bench, "h");
    let leased = bench.store.lease(&t, &g, 9, HOUR).wait().unwrap();
    bench.store.term(leased.deliveries[0].lease_id, "code", "why").wait().unwrap();
    bench.store.ack(leased.deliveries[1].lease_id).wait().unwrap();
    bench.store.ack(leased.deliveries[2].lease_id).wait().unwrap();
    bench.advance(HOUR * 2);
    let report = bench.store.close_epochs(bench.clock.now()).wait().unwrap();
    assert_eq!((report.closed.len(), report.busy.len(), report.resealed), (1, 0, 2));
    for _ in 0..2 {
        let bodies: Vec<_> =
            bench.store.read(&t, 0, 9).unwrap().events.into_iter().map(|event| event.body).collect();
        assert_eq!(bodies, [Body::Shredded, Body::Shredded, Body::Clear(event("3").body.bytes().to_vec())]);
        let entry = bench.store.entry(&family("holds"), "h").unwrap().unwrap();
        assert_eq!((entry.version, entry.value), (version, Body::Opened(b"held".to_vec())));
        let letter = bench.store.letter(0).unwrap().unwrap();
        assert_eq!(letter.payload, Body::Opened(b"one".to_vec()));
        assert_eq!(letter.detail, Body::Opened(b"why".to_vec()));
        bench.reopen();
    }
    let again = bench.store.close_epochs(bench.clock.now()).wait().unwrap();
    assert_eq!((again.closed.len(), again.busy.len(), again.resealed), (0, 0, 0));
}

fn busy(bench: &mut Bench<'_>) {
    let (t, g) = (topic("t"), group("g"));
    bench.store.publish(&t, vec![sealed_event("1", "a", b"one")]).wait().unwrap();
    bench.advance(HOUR);
    let mine = claim("a", "k", "p");
    let ClaimAnswer::New { fence } = bench.store.claim(mine.clone()).wait().unwrap() else { panic!() };
    bench.advance(HOUR * 2);
    hold(bench, "h");
    let close = |bench: &Bench<'_>| {
        let report = bench.store.close_epochs(bench.clock.now()).wait().unwrap();
        (report.closed.len(), report.busy.len())
    };
    assert_eq!(close(bench), (0, 2), "an event nobody has asked for, and an open intent");
    let leased = bench.store.lease(&t, &g, 9, HOUR).wait().unwrap();
    assert_eq!(close(bench), (0, 2), "an event that is being worked on");
    bench.store.ack(leased.deliveries[0].lease_id).wait().unwrap();
    assert_eq!(close(bench), (1, 1));
    bench.reopen();
    let open = bench.store.open_intents(None, 9).wait().unwrap();
    assert_eq!(open[0].intent, Body::Opened(mine.intent.clone()));
    bench.store.commit(completion(&mine, Status::Ok, Some(fence))).wait().unwrap();
    assert_eq!(close(bench), (1, 0));
}

fn begun_by_hand(bench: &mut Bench<'_>) {
    let (t, g) = (topic("t"), group("g"));
    let publish = |bench: &Bench<'_>, id: &str| {
        let event = sealed_event(id, id, id.as_bytes());
        bench.store.publish(&t, vec![event]).wait().unwrap();
    };
    publish(bench, "1");
    publish(bench, "2");
    let leased = bench.store.lease(&t, &g, 9, HOUR).wait().unwrap().deliveries;
    bench.store.ack(leased[0].lease_id).wait().unwrap();
    hold(bench, "h");
    let epoch = bench.store.begin_epoch().wait().unwrap();
    publish(bench, "3");
    let close = |bench: &Bench<'_>| {
        let report = bench.store.close_epochs_before(epoch).wait().unwrap();
        (report.closed.len(), report.busy.len(), report.resealed)
    };
    assert_eq!(close(bench), (0, 1, 0), "the second is being worked on");
    bench.store.ack(leased[1].lease_id).wait().unwrap();
    assert_eq!(close(bench), (1, 0, 1));
    assert_eq!(close(bench), (0, 0, 0));
    for _ in 0..2 {
        let events = bench.store.read(&t, 0, 9).unwrap().events;
        let bodies: Vec<_> = events.into_iter().map(|event| event.body).collect();
        assert_eq!(bodies, [Body::Shredded, Body::Shredded, Body::Opened(b"3".to_vec())]);
        let entry = bench.store.entry(&family("holds"), "h").unwrap().unwrap();
        assert_eq!(entry.value, Body::Opened(b"held".to_vec()));
        bench.reopen();
    }
    // Not forever ahead of the clock: keys of such epochs live until their hour has passed.
    let refused = (0..100).find_map(|_| bench.store.begin_epoch().wait().err()).unwrap();
    assert!(refused.to_string().contains("try again in an hour"), "{refused}");
    publish(bench, "4");
    bench.advance(HOUR);
    bench.store.begin_epoch().wait().unwrap();
}
