//! Retention: how long data is kept, and what readers of expired data get.

use std::collections::BTreeMap;
use std::time::Duration;

use effectd_contracts::{Digest, InvocationBrief, Status};

use super::values::{
    action, asker, claim, completion, event, family, group, key, letter, moment, put, receipt_id,
    sealed_event, topic,
};
use super::{Bench, Case};
use crate::error::StoreError;
use crate::limits::{LETTER_DAYS, RECEIPT_DAYS};
use crate::store::Store;
use crate::types::claims::{ClaimAnswer, Lookup};
use crate::types::groups::SeekTo;
use crate::types::kv::Expect;
use crate::types::receipts::{Order, ReceiptQuery};
use crate::types::retention::{Keep, Retained, Retention, RetentionMode, TopicKeep};

pub(super) const CASES: &[Case] = &[
    ("an expired receipt goes with its key, its dead letter stays", receipts_expire_before_dead_letters),
    ("live records of old blocks are relocated", live_records_are_relocated),
    ("events that were published together are relocated together", events_are_relocated_together),
    (
        "live records are relocated once, even if nothing else is kept",
        retention_does_not_chase_its_own_records,
    ),
    ("a group that is behind gets the offset where its topic begins", a_group_that_is_behind_gets_an_error),
    ("beyond the size limit the oldest expires first", the_oldest_expires_first),
    ("nothing expires before its time", nothing_expires_early),
    ("an organisation's kept receipts are counted exactly", counts_are_exact),
];

const DAY: Duration = Duration::from_secs(86_400);

/// One step of retention, for a log whose heads nobody signs.
pub fn retain_once(store: &dyn Store, retention: &Retention) -> Retained {
    let expired = store.retain(retention, RetentionMode::Apply).unwrap();
    expired.then(store.shorten(u64::MAX).unwrap())
}

/// Repeats steps until nothing is left to drop; returns the sums of their reports.
pub fn retain_all(store: &dyn Store, retention: &Retention) -> Retained {
    let mut all = Retained::default();
    for _ in 0..10_000 {
        let told = retain_once(store, retention);
        all.receipts += told.receipts;
        all.letters += told.letters;
        all.moved += told.moved;
        all.blocks += told.blocks;
        all.bytes += told.bytes;
        for (topic, count) in told.events {
            *all.events.entry(topic).or_default() += count;
        }
        if !told.more {
            return all;
        }
    }
    panic!("retention does not come to an end");
}

fn exec(store: &dyn Store, name: &str) {
    let claim = claim(name, name, "p");
    let ClaimAnswer::New { fence } = store.claim(claim.clone()).wait().unwrap() else {
        panic!("{name} is not new");
    };
    store.commit(completion(&claim, Status::Ok, Some(fence))).wait().unwrap();
}

fn fail(store: &dyn Store, name: &str) {
    let mut done = completion(&claim(name, name, "p"), Status::Error, None);
    done.letter = Some(letter(name));
    store.commit(done).wait().unwrap();
}

fn receipts_expire_before_dead_letters(bench: &mut Bench<'_>) {
    let retention = Retention::default();
    exec(&*bench.store, "old");
    fail(&*bench.store, "failed");
    bench.advance(181 * DAY);
    exec(&*bench.store, "new");
    let would = bench.store.retain(&retention, RetentionMode::Preview).unwrap();
    assert_eq!((would.receipts, would.letters, would.moved), (2, 0, 0));
    assert!(bench.store.receipt_of(&action("old")).unwrap().is_some());
    let told = retain_all(&*bench.store, &retention);
    assert_eq!((told.receipts, told.letters), (2, 0));
    assert!(told.blocks >= 3 && told.bytes > 0, "{told:?}");
    assert_eq!((would.blocks, would.bytes), (told.blocks, told.bytes));
    for reopened in [false, true] {
        if reopened {
            bench.reopen();
        }
        let store = &*bench.store;
        for old in ["old", "failed"] {
            assert_eq!(store.receipt_of(&action(old)).unwrap(), None);
            assert_eq!(store.receipt(&receipt_id(&format!("receipt-{old}"))).unwrap(), None);
        }
        assert!(store.receipt_of(&action("new")).unwrap().is_some());
        for order in [Order::OldestFirst, Order::NewestFirst] {
            let tool_id = store.receipt_of(&action("new")).unwrap().map(|receipt| receipt.tool_id);
            for tool_id in [None, tool_id] {
                let query = ReceiptQuery { order, tool_id, limit: 10, ..ReceiptQuery::default() };
                let page = store.receipts(&query).unwrap();
                let found: Vec<_> = page.receipts.iter().map(|receipt| receipt.ordinal).collect();
                assert_eq!((found, page.cursor), (vec![2], None));
            }
        }
        let letters = store.letters(None, 0, 10).unwrap().letters;
        assert_eq!(letters.len(), 1);
        assert_eq!(letters[0].payload.bytes(), Some(&b"failed"[..]));
        let found = store.lookup(&asker(), &key("old"), &Digest::of(b"p"), &[]).unwrap();
        assert_eq!(found, Lookup::Unknown, "a key holds as long as its receipt");
    }
    // It can be repeated, and dead letters expire by their own setting.
    exec(&*bench.store, "old");
    bench.advance(600 * DAY);
    let told = retain_all(&*bench.store, &retention);
    assert_eq!(told.letters, 1);
    assert!(bench.store.letters(None, 0, 10).unwrap().letters.is_empty());
}

fn live_records_are_relocated(bench: &mut Bench<'_>) {
    let decisions = topic("ACTION_DECISION");
    let store = bench.store.clone();
    for n in 0..3 {
        let name = format!("decision-{n}");
        store.publish(&decisions, vec![sealed_event(&name, &name, name.as_bytes())]).wait().unwrap();
    }
    let leased = store.lease(&decisions, &group("pipeline"), 3, Duration::from_secs(60)).wait().unwrap();
    store.ack(leased.deliveries[0].lease_id).wait().unwrap();
    store.ack(leased.deliveries[2].lease_id).wait().unwrap();
    let open = store.claim(claim("open", "open", "p")).wait().unwrap();
    assert!(matches!(open, ClaimAnswer::New { .. }), "{open:?}");
    store.change(put("held", "h", Expect::Absent, "value")).wait().unwrap();
    fail(&*store, "failed");
    (0..20).for_each(|n| exec(&*store, &format!("done-{n}")));
    for years in 0..3 {
        bench.advance(200 * DAY);
        exec(&*bench.store, &format!("later-{years}"));
        let told = retain_all(&*bench.store, &Retention::default());
        assert!(told.blocks > 0, "{told:?}");
        assert_eq!(told.moved, 4, "the decision, the intent, the entry and the letter");
        if years == 1 {
            bench.reopen();
        }
        let store = &*bench.store;
        let found = store.read(&decisions, 1, 5).unwrap();
        assert_eq!((found.events.len(), found.next, found.begin), (1, 2, 3));
        assert_eq!(found.events[0].body.bytes(), Some(&b"decision-1"[..]));
        assert_eq!(store.published(&decisions, &found.events[0].event_id).unwrap(), Some(1));
        let intents = store.open_intents(None, 10).wait().unwrap();
        assert_eq!(intents.len(), 1);
        assert!(intents[0].intent.bytes().is_some());
        let entry = store.entry(&family("held"), "h").unwrap().unwrap();
        assert_eq!((entry.version, entry.value.bytes()), (0, Some(&b"value"[..])));
        assert_eq!(store.letters(None, 0, 10).unwrap().letters.len(), 1);
    }
    // It is delivered again, and once it is acknowledged it is no longer kept.
    let leased =
        bench.store.lease(&decisions, &group("pipeline"), 9, Duration::from_secs(60)).wait().unwrap();
    assert_eq!(leased.deliveries.len(), 1);
    assert_eq!(leased.deliveries[0].offset, 1);
    bench.store.ack(leased.deliveries[0].lease_id).wait().unwrap();
    bench.advance(200 * DAY);
    exec(&*bench.store, "last");
    let told = retain_all(&*bench.store, &Retention::default());
    // The letter has expired by now, too.
    assert_eq!((told.moved, told.letters), (2, 1), "the intent and the entry");
    let gone = bench.store.read(&decisions, 1, 5).unwrap_err();
    assert!(matches!(gone, StoreError::Dropped { begins: 3, .. }), "{gone}");
}

/// Together they are larger than a block should be, and still share one.
fn events_are_relocated_together(bench: &mut Bench<'_>) {
    let decisions = topic("ACTION_DECISION");
    let names = ["one", "two", "three", "four"];
    let body = |name: &str| name.as_bytes().repeat(600_000 / name.len());
    let events = names.map(|name| sealed_event(name, name, &body(name)));
    let published = bench.store.publish(&decisions, events.to_vec()).wait().unwrap();
    assert_eq!(published.len(), 4);
    let lease = |store: &dyn Store| {
        let mut all = Vec::new();
        for _ in 0..5 {
            let leased = store.lease(&decisions, &group("pipeline"), 4, Duration::from_secs(60));
            all.extend(leased.wait().unwrap().deliveries);
        }
        all
    };
    let leased = lease(&*bench.store);
    assert_eq!(leased.len(), 4);
    bench.store.ack(leased[1].lease_id).wait().unwrap();
    for years in 0..3 {
        bench.advance(200 * DAY);
        exec(&*bench.store, &format!("later-{years}"));
        let told = retain_all(&*bench.store, &Retention::default());
        assert!(told.blocks > 0, "{told:?}");
        assert_eq!(told.moved, 3, "all but the one that is settled");
        if years != 1 {
            bench.reopen();
        }
        let found = lease(&*bench.store);
        let found: Vec<_> = found.iter().map(|delivery| &delivery.event).collect();
        let offsets: Vec<u64> = found.iter().map(|event| event.offset).collect();
        assert_eq!(offsets, [0, 2, 3]);
        for event in found {
            let name = names[usize::try_from(event.offset).unwrap()];
            assert_eq!(event.body.bytes(), Some(&*body(name)), "{name}");
        }
    }
}

fn retention_does_not_chase_its_own_records(bench: &mut Bench<'_>) {
    let open = bench.store.claim(claim("open", "open", "p")).wait().unwrap();
    assert!(matches!(open, ClaimAnswer::New { .. }), "{open:?}");
    fail(&*bench.store, "failed");
    (0..20).for_each(|n| exec(&*bench.store, &format!("done-{n}")));
    bench.advance(200 * DAY);
    let told = retain_all(&*bench.store, &Retention::default());
    assert_eq!((told.receipts, told.moved), (21, 2), "the intent and the letter");
    assert!(told.blocks > 20, "{told:?}");
    for _ in 0..3 {
        let again = retain_once(&*bench.store, &Retention::default());
        assert_eq!((again.moved, again.blocks, again.more), (0, 0, false), "{again:?}");
    }
    // Outdated records are dropped even if nothing expires.
    for n in 0..20 {
        let expect = if n == 0 { Expect::Absent } else { Expect::Any };
        bench.store.change(put("seen", "s", expect, "v")).wait().unwrap();
    }
    let told = retain_all(&*bench.store, &Retention::default());
    assert!(told.blocks >= 15 && told.moved <= 3, "{told:?}");
    bench.reopen();
    assert_eq!(bench.store.letters(None, 0, 10).unwrap().letters.len(), 1);
    assert_eq!(bench.store.open_intents(None, 10).wait().unwrap().len(), 1);
    assert!(bench.store.entry(&family("seen"), "s").unwrap().is_some());
}

fn a_group_that_is_behind_gets_an_error(bench: &mut Bench<'_>) {
    let learned = topic("learned");
    let publish = |store: &dyn Store, name: &str| {
        let published = store.publish(&learned, vec![event(name)]).wait().unwrap();
        published[0].offset
    };
    (0..5).for_each(|n| assert_eq!(publish(&*bench.store, &format!("old-{n}")), n));
    let take = |store: &dyn Store, max| {
        store.lease(&learned, &group("learner"), max, Duration::from_secs(60)).wait()
    };
    let leased = take(&*bench.store, 2).unwrap();
    bench.store.ack(leased.deliveries[0].lease_id).wait().unwrap();
    bench.advance(181 * DAY);
    assert_eq!(publish(&*bench.store, "new"), 5);
    let told = retain_all(&*bench.store, &Retention::default());
    assert_eq!(told.events.get(&learned), Some(&5));
    let dropped = StoreError::Dropped { topic: learned.clone(), begins: 5 };
    for reopened in [false, true] {
        if reopened {
            bench.reopen();
        }
        let store = &*bench.store;
        assert_eq!(take(store, 5).unwrap_err(), dropped, "it is not skipped silently");
        assert_eq!(store.read(&learned, 0, 5).unwrap_err(), dropped);
        assert!(dropped.to_string().contains("before offset 5"), "{dropped}");
        let seek = |to| store.seek(&learned, &group("learner"), to).wait();
        assert_eq!(seek(SeekTo::Offset(3)).unwrap_err(), dropped);
        assert_eq!(store.offset_at(&learned, super::values::moment()).unwrap(), 5);
    }
    let start = bench.store.seek(&learned, &group("learner"), SeekTo::Start).wait();
    assert_eq!(start.unwrap(), 5);
    let leased = take(&*bench.store, 5).unwrap();
    assert_eq!(leased.deliveries.len(), 1);
    assert_eq!(leased.deliveries[0].offset, 5);
    // A new group begins at the topic's first event, and an old id may be used again.
    let other = bench.store.lease(&learned, &group("other"), 5, Duration::from_secs(60));
    assert_eq!(other.wait().unwrap().deliveries[0].offset, 5);
    assert_eq!(publish(&*bench.store, "old-0"), 6);
    assert_eq!(publish(&*bench.store, "new"), 5);
}

fn the_oldest_expires_first(bench: &mut Bench<'_>) {
    let keep = |bytes| Keep { age: None, bytes: Some(bytes) };
    (0..40).for_each(|n| exec(&*bench.store, &format!("a-{n}")));
    let others = TopicKeep { keep: keep(2_000), unacknowledged: false };
    let retention = Retention { receipts: keep(3_000), letters: None, topics: BTreeMap::new(), others };
    let told = retain_all(&*bench.store, &retention);
    assert!((20..40).contains(&told.receipts), "{told:?}");
    let query = ReceiptQuery { limit: 100, ..ReceiptQuery::default() };
    let left = bench.store.receipts(&query).unwrap().receipts;
    assert_eq!(left.len() as u64, 40 - told.receipts);
    assert_eq!(left.last().unwrap().ordinal, 39);
    assert_eq!(left[0].ordinal, told.receipts);
    assert_eq!(retain_all(&*bench.store, &retention).receipts, 0);
}

/// Receipts, events and dead letters that expired.
fn what(told: &Retained) -> (u64, usize, u64) {
    (told.receipts, told.events.len(), told.letters)
}

fn nothing_expires_early(bench: &mut Bench<'_>) {
    exec(&*bench.store, "a");
    fail(&*bench.store, "b");
    bench.advance(179 * DAY);
    let preview = bench.store.retain(&Retention::default(), RetentionMode::Preview).unwrap();
    let ago = |days: u32| moment().checked_add(179 * DAY).unwrap().checked_sub(days * DAY).ok();
    assert_eq!((preview.since, preview.letters_since), (ago(RECEIPT_DAYS), ago(LETTER_DAYS)));
    let told = retain_all(&*bench.store, &Retention::default());
    assert_eq!(what(&told), (0, 0, 0));
    bench.reopen();
    assert!(bench.store.receipt_of(&action("a")).unwrap().is_some());
    let for_ever = Retention {
        receipts: Keep::default(),
        letters: None,
        topics: BTreeMap::new(),
        others: TopicKeep { keep: Keep::default(), unacknowledged: false },
    };
    bench.advance(10_000 * DAY);
    assert_eq!(what(&retain_all(&*bench.store, &for_ever)), (0, 0, 0));
    assert!(bench.store.receipt_of(&action("a")).unwrap().is_some());
}

/// More receipts than a bucket of the index lists; some of a bucket expire.
fn counts_are_exact(bench: &mut Bench<'_>) {
    let commit = |store: &dyn Store, n: usize, outcome: &str| {
        let mut done = completion(&claim(&format!("a{n}"), "k", "p"), Status::Error, None);
        let body = format!(r#"{{"n":{n},"org":"home","outcome":"{outcome}","principal":"user://a"}}"#);
        done.receipt.body = body.into_bytes();
        store.commit(done)
    };
    let outcome = |n| if n % 3 == 0 { "denied_policy" } else { "executed" };
    let old: Vec<_> = (0..300).map(|n| commit(&*bench.store, n, outcome(n))).collect();
    old.into_iter().for_each(|commit| drop(commit.wait().unwrap()));
    bench.advance(181 * DAY);
    (300..305).for_each(|n| drop(commit(&*bench.store, n, "expired").wait().unwrap()));
    // Not an invocation: the request named no tool.
    commit(&*bench.store, 305, "not_found").wait().unwrap();
    let counts = |store: &dyn Store, org: &str| {
        let org = org.parse().unwrap();
        InvocationBrief::ALL.map(|status| store.invocations(&org, status).unwrap())
    };
    assert_eq!(counts(&*bench.store, "home"), [0, 200, 100, 5, 0]);
    assert_eq!(counts(&*bench.store, "garden"), [0; 5]);
    let invocation = Some(InvocationBrief::Expired);
    let expired = ReceiptQuery { org: "home".parse().ok(), invocation, limit: 9, ..ReceiptQuery::default() };
    let listed = bench.store.receipts(&expired).unwrap().receipts;
    assert_eq!(listed.iter().map(|receipt| receipt.ordinal).collect::<Vec<_>>(), [300, 301, 302, 303, 304]);
    assert!(bench.store.receipts(&ReceiptQuery { org: None, ..expired }).is_err());
    assert_eq!(retain_all(&*bench.store, &Retention::default()).receipts, 300);
    for _ in 0..2 {
        assert_eq!(counts(&*bench.store, "home"), [0, 0, 0, 5, 0]);
        bench.reopen();
    }
}
