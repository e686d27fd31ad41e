//! Topics: one order, no gaps, and the same event twice is one event.

use std::time::Duration;

use super::values::{event, moment, topic};
use super::{Bench, Case};
use crate::limits::{BODY_BYTES_MAX, PAGE_ITEMS_MAX, PUBLISH_EVENTS_MAX};
use crate::tail::Tail;
use crate::types::events::{Body, NewBody, Published};
use crate::{StoreError, TopicName};

pub(super) const CASES: &[Case] = &[
    ("events are ordered and numbered without gaps", ordered),
    ("an event id is published once", unique),
    ("events are read unchanged, also after a reopen", whole),
    ("a read touches no group and is bounded", bounded_reads),
    ("an offset is found by time", by_time),
    ("readers wait for new events without polling", news),
    ("an event that is too large is refused with its bound", too_large),
    ("a large event survives", large),
    ("a closed store says so", closed),
];

fn ordered(bench: &mut Bench<'_>) {
    let (a, b) = (topic("a"), topic("b"));
    let first = bench.store.publish(&a, vec![event("1"), event("2")]).wait().unwrap();
    let other = bench.store.publish(&b, vec![event("1")]).wait().unwrap();
    let more = bench.store.publish(&a, vec![event("3")]).wait().unwrap();
    let offsets =
        |published: &[Published]| published.iter().map(|p| (p.offset, p.duplicate)).collect::<Vec<_>>();
    assert_eq!(offsets(&first), [(0, false), (1, false)]);
    assert_eq!(offsets(&other), [(0, false)]);
    assert_eq!(offsets(&more), [(2, false)]);
    assert_eq!(bench.store.topics().unwrap(), [(a.clone(), 3), (b, 1)]);
    assert_eq!(ids(bench, &a, 0), ["1", "2", "3"]);
    assert_eq!(ids(bench, &a, 2), ["3"]);
    assert_eq!(ids(bench, &a, 99), [""; 0]);
    assert_eq!(ids(bench, &topic("never"), 0), [""; 0]);
}

fn ids(bench: &Bench<'_>, topic: &TopicName, from: u64) -> Vec<String> {
    let page = bench.store.read(topic, from, 100).unwrap();
    page.events.iter().map(|event| event.event_id.to_string()).collect()
}

fn unique(bench: &mut Bench<'_>) {
    let t = topic("t");
    bench.store.publish(&t, vec![event("1"), event("2")]).wait().unwrap();
    let again = bench.store.publish(&t, vec![event("2"), event("3"), event("3")]).wait().unwrap();
    let expected = [(1, true), (2, false), (2, true)];
    assert_eq!(again, expected.map(|(offset, duplicate)| Published { offset, duplicate }));
    bench.reopen();
    let again = bench.store.publish(&t, vec![event("1")]).wait().unwrap();
    assert_eq!(again, [Published { offset: 0, duplicate: true }]);
    assert_eq!(ids(bench, &t, 0), ["1", "2", "3"]);
    let published = |id: &str| bench.store.published(&t, &id.parse().unwrap()).unwrap();
    assert_eq!(["1", "3", "4"].map(published), [Some(0), Some(2), None]);
    assert_eq!(bench.store.published(&topic("never"), &"1".parse().unwrap()), Ok(None));
}

fn whole(bench: &mut Bench<'_>) {
    let t = topic("t");
    bench.store.publish(&t, vec![event("1")]).wait().unwrap();
    let check = |bench: &Bench<'_>| {
        let page = bench.store.read(&t, 0, 10).unwrap();
        let read = &page.events[0];
        let given = event("1");
        assert_eq!(
            (&read.event_id, read.time, &read.trace_id),
            (&given.event_id, given.time, &given.trace_id)
        );
        assert_eq!((read.offset, read.stored_at, page.next, page.end), (0, moment(), 1, 1));
        assert_eq!(read.body, Body::Clear(given.body.bytes().to_vec()));
    };
    check(bench);
    bench.reopen();
    check(bench);
}

fn bounded_reads(bench: &mut Bench<'_>) {
    let t = topic("t");
    for hundred in 0..12 {
        let events = (0..100).map(|n| event(&format!("{hundred}-{n}"))).collect();
        bench.store.publish(&t, events).wait().unwrap();
    }
    let page = bench.store.read(&t, 0, usize::MAX).unwrap();
    assert_eq!((page.events.len(), page.next, page.end), (PAGE_ITEMS_MAX, 1000, 1200));
    let rest = bench.store.read(&t, page.next, usize::MAX).unwrap();
    assert_eq!((rest.events.len(), rest.next), (200, 1200));
    assert_eq!(bench.store.read(&t, 150, 7).unwrap().events[0].offset, 150);
    assert!(bench.store.groups(&t).wait().unwrap().is_empty());
}

fn by_time(bench: &mut Bench<'_>) {
    let t = topic("t");
    for n in 0..20 {
        bench.store.publish(&t, vec![event(&n.to_string())]).wait().unwrap();
        bench.advance(Duration::from_secs(10));
    }
    let at = |seconds: i64| {
        let time = moment().checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap();
        bench.store.offset_at(&t, time).unwrap()
    };
    assert_eq!((at(-5), at(0), at(1), at(10), at(95), at(190), at(191)), (0, 0, 1, 1, 10, 19, 20));
    // A clock that goes back does not break the search by time.
    bench.clock.jump_to(moment());
    bench.store.publish(&t, vec![event("later")]).wait().unwrap();
    let last = bench.store.read(&t, 20, 1).unwrap().events[0].stored_at;
    assert!(last >= bench.store.read(&t, 19, 1).unwrap().events[0].stored_at);
}

fn news(bench: &mut Bench<'_>) {
    let t = topic("t");
    let mut watch = bench.store.watch(&t).unwrap();
    assert_eq!(watch.wait_changed(Duration::ZERO), Ok(false));
    bench.store.publish(&topic("other"), vec![event("0")]).wait().unwrap();
    assert_eq!(watch.wait_changed(Duration::ZERO), Ok(false));
    bench.store.publish(&t, vec![event("1")]).wait().unwrap();
    assert_eq!(watch.wait_changed(Duration::from_secs(10)), Ok(true));

    let mut tail = Tail::new(bench.store.clone(), t.clone(), 0).unwrap();
    assert_eq!(tail.next_blocking(9, Duration::ZERO).unwrap().len(), 1);
    let follower = std::thread::spawn(move || {
        let mut seen = Vec::new();
        while seen.len() < 5 {
            seen.extend(tail.next_blocking(9, Duration::from_secs(10)).unwrap());
        }
        seen.iter().map(|event| event.offset).collect::<Vec<_>>()
    });
    for n in 2..7 {
        bench.store.publish(&t, vec![event(&n.to_string())]).wait().unwrap();
    }
    assert_eq!(follower.join().unwrap(), [1, 2, 3, 4, 5]);
}

fn too_large(bench: &mut Bench<'_>) {
    let t = topic("t");
    let many = (0..=PUBLISH_EVENTS_MAX).map(|n| event(&n.to_string())).collect();
    assert!(matches!(bench.store.publish(&t, many).wait(), Err(StoreError::TooLarge { .. })));
    let mut long = event("long");
    long.body = NewBody::Clear(vec![b'x'; BODY_BYTES_MAX + 1]);
    assert!(matches!(bench.store.publish(&t, vec![long]).wait(), Err(StoreError::TooLarge { .. })));
    assert!(TopicName::new(&"x".repeat(65)).is_err());
    assert!(TopicName::new("../up").is_err());
    assert!(TopicName::new("").is_err());
    assert_eq!(bench.store.read(&t, 0, 1).unwrap().end, 0);
}

fn large(bench: &mut Bench<'_>) {
    let t = topic("t");
    let body: Vec<u8> = (0..BODY_BYTES_MAX).map(|n| (n % 251) as u8).collect();
    for (id, sealed) in [("clear", false), ("sealed", true)] {
        let mut long = event(id);
        long.body = if sealed { NewBody::Sealed(body.clone()) } else { NewBody::Clear(body.clone()) };
        bench
            .store
            .publish(&t, vec![event(&format!("{id}-before")), long, event(&format!("{id}-after"))])
            .wait()
            .unwrap();
    }
    bench.reopen();
    for offset in [1, 4] {
        let read = bench.store.read(&t, offset, 1).unwrap();
        assert_eq!(read.events[0].body.bytes(), Some(body.as_slice()));
    }
    assert_eq!(bench.store.read(&t, 0, 100).unwrap().events.len(), 6);
}

fn closed(bench: &mut Bench<'_>) {
    let t = topic("t");
    let mut watch = bench.store.watch(&t).unwrap();
    let pending = bench.store.publish(&t, vec![event("1")]);
    bench.store.close().unwrap();
    assert!(pending.wait().is_ok(), "what was taken in before the close is written");
    assert_eq!(bench.store.publish(&t, vec![event("2")]).wait(), Err(StoreError::Closed));
    assert_eq!(bench.store.read(&t, 0, 1), Err(StoreError::Closed));
    while watch.wait_changed(Duration::from_secs(10)) == Ok(true) {}
    assert_eq!(watch.wait_changed(Duration::from_secs(10)), Err(StoreError::Closed));
}
