//! Groups: every event is delivered until it is acknowledged, and the counts survive.

use std::collections::BTreeSet;
use std::time::Duration;

use super::values::{claim, event, group, moment, topic};
use super::{Bench, Case};
use crate::limits::DELIVERIES_MAX_DEFAULT;
use crate::types::groups::{Acknowledged, Exhausted, GroupInfo, GroupOptions, LeaseId, Leased, SeekTo};
use crate::{Admission, DeadLetterOrigin, StoreError};

pub(super) const CASES: &[Case] = &[
    ("each consumer of a group gets its own events", shared_work),
    ("groups are independent", independent),
    ("a lease that runs out is delivered again and counted", expiry),
    ("an extended lease holds", extended),
    ("an ended lease cannot be settled", lease_lost),
    ("a nack waits for its delay and counts", nacked),
    ("a defer counts no delivery", deferred),
    ("acks out of order commit when the gap closes", out_of_order),
    ("a reopen keeps positions and counts, and ends leases", survives),
    ("delays continue after a reopen, never longer than requested", delays_survive),
    ("an event delivered too often is a dead letter", exhausted),
    ("a group can get exhausted events instead of dead letters", handed_over),
    ("a group can be moved", sought),
    ("a removed group leaves nothing behind", removed),
    ("leases are bounded", bounded),
    ("a lease says when something is due", next_due),
    ("a group is notified of events that it may lease", told),
];

const TTL: Duration = Duration::from_secs(30);

fn publish(bench: &Bench<'_>, count: usize) {
    let events = (0..count).map(|n| event(&n.to_string())).collect();
    bench.store.publish(&topic("t"), events).wait().unwrap();
}

fn lease(bench: &Bench<'_>, name: &str, max: usize) -> Leased {
    bench.store.lease(&topic("t"), &group(name), max, TTL).wait().unwrap()
}

fn offsets(leased: &Leased) -> Vec<u64> {
    leased.deliveries.iter().map(|delivery| delivery.offset).collect()
}

fn counts(leased: &Leased) -> Vec<u32> {
    leased.deliveries.iter().map(|delivery| delivery.delivery_count).collect()
}

fn leases(leased: &Leased) -> Vec<LeaseId> {
    leased.deliveries.iter().map(|delivery| delivery.lease_id).collect()
}

fn info(bench: &Bench<'_>, name: &str) -> GroupInfo {
    let infos = bench.store.groups(&topic("t")).wait().unwrap();
    infos.into_iter().find(|info| info.group == group(name)).unwrap()
}

fn shared_work(bench: &mut Bench<'_>) {
    publish(bench, 200);
    let consumers: Vec<_> = (0..4)
        .map(|_| {
            let store = bench.store.clone();
            std::thread::spawn(move || {
                let mut seen = Vec::new();
                loop {
                    let leased = store.lease(&topic("t"), &group("g"), 7, TTL).wait().unwrap();
                    if leased.deliveries.is_empty() {
                        return seen;
                    }
                    for delivery in leased.deliveries {
                        seen.push(delivery.offset);
                        store.ack(delivery.lease_id).wait().unwrap();
                    }
                }
            })
        })
        .collect();
    let seen: Vec<u64> = consumers.into_iter().flat_map(|consumer| consumer.join().unwrap()).collect();
    assert_eq!(seen.len(), 200);
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), (0..200).collect());
    let info = info(bench, "g");
    assert_eq!((info.committed, info.leased, info.waiting, info.undelivered), (200, 0, 0, 0));
}

fn independent(bench: &mut Bench<'_>) {
    publish(bench, 3);
    let a = lease(bench, "a", 9);
    assert_eq!(offsets(&a), [0, 1, 2]);
    assert_eq!(a.deliveries[1].event.body.bytes(), Some(event("1").body.bytes()));
    let b = lease(bench, "b", 2);
    assert_eq!(offsets(&b), [0, 1]);
    bench.store.ack(a.deliveries[0].lease_id).wait().unwrap();
    assert_eq!((info(bench, "a").committed, info(bench, "b").committed), (1, 0));
    assert_eq!(offsets(&lease(bench, "b", 9)), [2]);
}

fn expiry(bench: &mut Bench<'_>) {
    publish(bench, 2);
    assert_eq!(counts(&lease(bench, "g", 9)), [1, 1]);
    assert_eq!(offsets(&lease(bench, "g", 9)), [0; 0]);
    bench.advance(TTL - Duration::from_millis(1));
    assert_eq!(offsets(&lease(bench, "g", 9)), [0; 0]);
    // Wall time alone ends no lease.
    bench.clock.jump_to(moment().checked_add(jiff::SignedDuration::from_hours(99)).unwrap());
    assert_eq!(offsets(&lease(bench, "g", 9)), [0; 0]);
    bench.advance(Duration::from_millis(1));
    let again = lease(bench, "g", 9);
    assert_eq!((offsets(&again), counts(&again)), (vec![0, 1], vec![2, 2]));
}

fn extended(bench: &mut Bench<'_>) {
    publish(bench, 1);
    let held = leases(&lease(bench, "g", 9))[0];
    bench.advance(TTL / 2);
    bench.store.extend(held, TTL).wait().unwrap();
    bench.advance(TTL - Duration::from_millis(1));
    assert_eq!(offsets(&lease(bench, "g", 9)), [0; 0]);
    assert_eq!(bench.store.ack(held).wait(), Ok(Acknowledged::Done));
    assert_eq!(bench.store.extend(held, TTL).wait(), Err(StoreError::LeaseLost));
}

fn lease_lost(bench: &mut Bench<'_>) {
    publish(bench, 1);
    let first = leases(&lease(bench, "g", 9))[0];
    bench.advance(TTL);
    // The lease has run out, but nobody else has the event yet: the first holder may still end it.
    bench.store.extend(first, TTL).wait().unwrap();
    bench.advance(TTL);
    let second = leases(&lease(bench, "g", 9))[0];
    assert_ne!(first, second);
    assert_eq!(bench.store.ack(first).wait(), Err(StoreError::LeaseLost));
    assert_eq!(bench.store.ack(second).wait(), Ok(Acknowledged::Done));
    assert_eq!(bench.store.ack(second).wait(), Err(StoreError::LeaseLost));
    assert_eq!(bench.store.ack(LeaseId(u64::MAX)).wait(), Err(StoreError::LeaseLost));
}

fn nacked(bench: &mut Bench<'_>) {
    publish(bench, 1);
    let held = leases(&lease(bench, "g", 9))[0];
    let delay = Duration::from_secs(5);
    assert_eq!(bench.store.nack(held, delay, "not yet").wait(), Ok(Acknowledged::WillRetry));
    assert_eq!((info(bench, "g").leased, info(bench, "g").waiting), (0, 1));
    bench.advance(delay - Duration::from_millis(1));
    assert_eq!(offsets(&lease(bench, "g", 9)), [0; 0]);
    bench.advance(Duration::from_millis(1));
    assert_eq!(counts(&lease(bench, "g", 9)), [2]);
}

fn deferred(bench: &mut Bench<'_>) {
    publish(bench, 1);
    for _ in 0..3 * DELIVERIES_MAX_DEFAULT {
        let leased = lease(bench, "g", 9);
        assert_eq!(counts(&leased), [1]);
        let settled = bench.store.defer(leased.deliveries[0].lease_id, Duration::ZERO).wait();
        assert_eq!(settled, Ok(Acknowledged::WillRetry));
    }
    bench.reopen();
    assert_eq!(counts(&lease(bench, "g", 9)), [1]);
}

fn out_of_order(bench: &mut Bench<'_>) {
    publish(bench, 4);
    let held = leases(&lease(bench, "g", 9));
    for nth in [3, 1] {
        bench.store.ack(held[nth]).wait().unwrap();
    }
    let now = info(bench, "g");
    assert_eq!((now.committed, now.acknowledged_ahead, now.leased), (0, 2, 2));
    bench.store.ack(held[0]).wait().unwrap();
    assert_eq!((info(bench, "g").committed, info(bench, "g").acknowledged_ahead), (2, 1));
    bench.reopen();
    assert_eq!((info(bench, "g").committed, info(bench, "g").acknowledged_ahead), (2, 1));
    assert_eq!(offsets(&lease(bench, "g", 9)), [2]);
}

fn survives(bench: &mut Bench<'_>) {
    publish(bench, 3);
    let held = leases(&lease(bench, "g", 2));
    bench.store.ack(held[0]).wait().unwrap();
    bench.reopen();
    assert_eq!(bench.store.ack(held[1]).wait(), Err(StoreError::LeaseLost));
    let again = lease(bench, "g", 9);
    assert_eq!((offsets(&again), counts(&again)), (vec![1, 2], vec![2, 1]));
    assert!(leases(&again).iter().all(|lease| !held.contains(lease)), "lease ids are never used twice");
}

fn delays_survive(bench: &mut Bench<'_>) {
    publish(bench, 2);
    let held = leases(&lease(bench, "g", 2));
    bench.store.nack(held[0], Duration::from_secs(100), "").wait().unwrap();
    bench.store.defer(held[1], Duration::from_secs(100)).wait().unwrap();
    bench.advance(Duration::from_secs(60));
    bench.reopen();
    assert_eq!(lease(bench, "g", 9).next_due, Some(Duration::from_secs(40)));
    bench.advance(Duration::from_secs(40));
    let due = lease(bench, "g", 9);
    assert_eq!((offsets(&due), counts(&due)), (vec![0, 1], vec![2, 1]));
    bench.store.nack(leases(&due)[0], Duration::from_secs(100), "").wait().unwrap();
    // The wall clock went back: the delay is not longer than requested.
    bench.clock.jump_to(moment().checked_sub(jiff::SignedDuration::from_hours(50)).unwrap());
    bench.reopen();
    assert_eq!(offsets(&lease(bench, "g", 9)), [1]);
    bench.advance(Duration::from_secs(100));
    assert_eq!(offsets(&lease(bench, "g", 9)), [0, 1]);
}

fn exhausted(bench: &mut Bench<'_>) {
    publish(bench, 3);
    // The first is nacked to death, the second is taken and never acknowledged, with restarts in between.
    for count in 1..=DELIVERIES_MAX_DEFAULT {
        let leased = lease(bench, "g", 2);
        assert_eq!(counts(&leased), [count, count]);
        let settled = bench.store.nack(leases(&leased)[0], Duration::ZERO, "no").wait().unwrap();
        let last = count == DELIVERIES_MAX_DEFAULT;
        assert_eq!(
            settled,
            if last { Acknowledged::DeadLettered { letter: 0 } } else { Acknowledged::WillRetry }
        );
        bench.reopen();
    }
    assert_eq!(offsets(&lease(bench, "g", 9)), [2]);
    let letters = bench.store.letters(Some(&topic("t")), 0, 9).unwrap().letters;
    let found: Vec<_> =
        letters.iter().map(|letter| (letter.letter, letter.attempts, letter.code.as_str())).collect();
    assert_eq!(found, [(0, 5, "deliveries_exhausted"), (1, 5, "deliveries_exhausted")]);
    for (letter, id) in letters.iter().zip(["0", "1"]) {
        let offset = id.parse().unwrap();
        assert_eq!(letter.origin, DeadLetterOrigin::Delivery { group: group("g"), offset });
        assert_eq!(letter.payload.bytes(), Some(event(id).body.bytes()));
    }
    assert_eq!(letters[0].detail.bytes(), Some(&b"no"[..]));
    assert_eq!(info(bench, "g").committed, 2);
}

fn handed_over(bench: &mut Bench<'_>) {
    publish(bench, 1);
    let options = GroupOptions { deliveries_max: 2, exhausted: Exhausted::HandOver };
    bench.store.configure(&topic("t"), &group("g"), options).wait().unwrap();
    bench.reopen();
    for exhausted in [false, false, true, true] {
        let leased = lease(bench, "g", 9);
        assert_eq!(leased.deliveries[0].exhausted, exhausted);
        bench.store.nack(leases(&leased)[0], Duration::ZERO, "").wait().unwrap();
    }
    assert_eq!(info(bench, "g").options, options);
    assert!(bench.store.letters(None, 0, 9).unwrap().letters.is_empty());
}

fn sought(bench: &mut Bench<'_>) {
    for n in 0..10 {
        bench.store.publish(&topic("t"), vec![event(&n.to_string())]).wait().unwrap();
        bench.advance(Duration::from_secs(1));
    }
    let seek = |to| bench.store.seek(&topic("t"), &group("g"), to).wait().unwrap();
    assert_eq!(seek(SeekTo::End), 10);
    assert_eq!(offsets(&lease(bench, "g", 99)), [0; 0]);
    assert_eq!(seek(SeekTo::Offset(7)), 7);
    let held = lease(bench, "g", 99);
    assert_eq!(offsets(&held), [7, 8, 9]);
    assert_eq!(seek(SeekTo::Start), 0);
    assert_eq!(bench.store.ack(leases(&held)[0]).wait(), Err(StoreError::LeaseLost));
    assert_eq!(lease(bench, "g", 99).deliveries.len(), 10);
    let time = moment().checked_add(jiff::SignedDuration::from_secs(4)).unwrap();
    assert_eq!(seek(SeekTo::Time(time)), 4);
    assert_eq!(seek(SeekTo::Offset(99)), 10);
    assert_eq!(seek(SeekTo::Offset(3)), 3);
    bench.reopen();
    let again = lease(bench, "g", 2);
    assert_eq!((offsets(&again), counts(&again)), (vec![3, 4], vec![1, 1]));
}

fn removed(bench: &mut Bench<'_>) {
    publish(bench, 3);
    let before = lease(bench, "g", 2);
    bench.store.nack(leases(&before)[1], TTL, "no").wait().unwrap();
    lease(bench, "h", 1);
    bench.store.remove_group(&topic("t"), &group("g")).wait().unwrap();
    bench.store.remove_group(&topic("t"), &group("none")).wait().unwrap();
    assert_eq!(bench.store.ack(leases(&before)[0]).wait(), Err(StoreError::LeaseLost));
    for _ in 0..2 {
        let known = bench.store.groups(&topic("t")).wait().unwrap();
        assert_eq!(known.iter().map(|info| info.group.as_str()).collect::<Vec<_>>(), ["h"]);
        bench.reopen();
    }
    // The name is free, and means a new group.
    assert_eq!(counts(&lease(bench, "g", 9)), [1, 1, 1]);
}

fn bounded(bench: &mut Bench<'_>) {
    let refused = |max, ttl| bench.store.lease(&topic("t"), &group("g"), max, ttl).wait().is_err();
    assert!(refused(1, Duration::from_millis(1)));
    assert!(refused(1, Duration::from_secs(3_601)));
    assert!(refused(1_001, TTL));
    assert!(!refused(1_000, TTL));
    let none = GroupOptions { deliveries_max: 0, exhausted: Exhausted::DeadLetter };
    assert!(bench.store.configure(&topic("t"), &group("g"), none).wait().is_err());
    publish(bench, 1);
    let held = leases(&lease(bench, "g", 1))[0];
    assert!(bench.store.nack(held, Duration::from_secs(86_401), "").wait().is_err());
    assert!(bench.store.nack(held, Duration::ZERO, &"x".repeat(2_049)).wait().is_err());
    assert_eq!(bench.store.ack(held).wait(), Ok(Acknowledged::Done));
}

fn next_due(bench: &mut Bench<'_>) {
    assert_eq!(lease(bench, "g", 9), Leased::default());
    publish(bench, 2);
    assert_eq!(lease(bench, "g", 1).next_due, Some(TTL));
    let second = lease(bench, "g", 1);
    bench.store.nack(leases(&second)[0], Duration::from_secs(3), "").wait().unwrap();
    assert_eq!(lease(bench, "g", 1).next_due, Some(Duration::from_secs(3)));
}

fn told(bench: &mut Bench<'_>) {
    let (decisions, taking) = (topic("t"), group("one"));
    let mut watch = bench.store.watch_group(&decisions, &taking).unwrap();
    let mut news = || watch.wait_changed(Duration::ZERO).unwrap();
    let publish = |ids: &[&str]| {
        let events = ids.iter().map(|id| event(id)).collect();
        bench.store.publish(&topic("t"), events).wait().unwrap();
    };
    publish(&["0", "1"]);
    assert!(news(), "nobody has them");
    let leased = lease(bench, "one", 1);
    assert!(!news(), "a lease does not notify");
    publish(&["2"]);
    assert!(news());
    let rest = leases(&lease(bench, "one", 9));
    // An admitted decision has a holder.
    let admission = Admission {
        topic: decisions.clone(),
        group: taking.clone(),
        ttl: TTL,
        event: event("admitted"),
        claim: claim("a", "k", "p"),
    };
    let admitted = bench.store.admit(admission).wait().unwrap();
    assert!(!news(), "{admitted:?}");
    // Another group does not know of it: it has leased nothing yet.
    let mut other = bench.store.watch_group(&decisions, &group("two")).unwrap();
    publish(&["3"]);
    assert!(news() && other.wait_changed(Duration::ZERO).unwrap());
    bench.store.ack(leases(&leased)[0]).wait().unwrap();
    lease(bench, "one", 9);
    assert!(!news(), "all are taken");
    bench.store.nack(rest[0], Duration::ZERO, "why").wait().unwrap();
    assert!(news(), "one was given back");
    bench.store.defer(rest[1], Duration::from_secs(9)).wait().unwrap();
    assert!(news(), "when it comes is told by the next lease");
    bench.store.close().unwrap();
    assert_eq!(watch.wait_changed(Duration::ZERO), Err(StoreError::Closed));
}
