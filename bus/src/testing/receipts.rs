//! Completions and receipts: one for each action, all of it or nothing, and found again by every index.

use std::time::Duration;

use effectd_contracts::{OrgId, Principal, SessionId, Status, SubjectId, Timestamp, ToolId};
use serde_json::json;

use super::values::{action, claim, completion, event, group, key, moment, receipt_id, space, topic};
use super::{Bench, Case};
use crate::StoreError;
use crate::types::claims::ClaimAnswer;
use crate::types::groups::LeaseId;
use crate::types::receipts::{Completion, Link, Order, ReceiptQuery};

pub(super) const CASES: &[Case] = &[
    ("a completion is receipt, events and acks in one", complete),
    ("a commit is idempotent by receipt id", idempotent),
    ("an action has one receipt", one_receipt),
    ("a refused completion leaves nothing", refused),
    ("waiting equal actions are resolved with it", twins),
    ("receipts are found by every field", found),
    ("conditions are intersected, both ways", intersected),
    ("pages go through everything once, both ways", pages),
    ("receipts are found by time", by_time),
];

fn complete(bench: &mut Bench<'_>) {
    let t = topic("ACTION_DECISION");
    bench.store.publish(&t, vec![event("d1"), event("d2")]).wait().unwrap();
    let leased = bench.store.lease(&t, &group("g"), 9, Duration::from_secs(30)).wait().unwrap();
    let mine = claim("a", "k", "p");
    let ClaimAnswer::New { fence } = bench.store.claim(mine.clone()).wait().unwrap() else { panic!() };
    let mut done = completion(&mine, Status::Ok, Some(fence));
    done.leases = vec![leased.deliveries[0].lease_id, LeaseId(4_711)];
    let before = bench.store.stats().syncs;
    let committed = bench.store.commit(done.clone()).wait().unwrap();
    assert_eq!(bench.store.stats().syncs, before + 1);
    assert_eq!((committed.offsets.as_slice(), committed.duplicate), (&[0][..], false));
    assert_eq!(committed.leases_lost, [LeaseId(4_711)]);
    for _ in 0..2 {
        let receipt = bench.store.receipt(&done.receipt.receipt_id).unwrap().unwrap();
        assert_eq!(receipt.body, done.receipt.body);
        assert_eq!(
            (&receipt.tool_id, receipt.status, receipt.time),
            (&done.receipt.tool_id, Status::Ok, moment())
        );
        assert_eq!(bench.store.receipt_of(&action("a")).unwrap().unwrap(), receipt);
        let events = bench.store.read(&topic("ACTION_EXECUTED"), 0, 9).unwrap().events;
        assert_eq!(events.len(), 1);
        assert_eq!(bench.store.groups(&t).wait().unwrap()[0].committed, 1);
        bench.reopen();
    }
    assert_eq!(bench.store.receipt(&receipt_id("none")).unwrap(), None);
}

fn idempotent(bench: &mut Bench<'_>) {
    let done = completion(&claim("a", "k", "p"), Status::Error, None);
    bench.store.commit(done.clone()).wait().unwrap();
    bench.reopen();
    let again = bench.store.commit(done.clone()).wait().unwrap();
    assert!(again.duplicate && again.offsets.is_empty());
    assert_eq!(bench.store.read(&topic("ACTION_EXECUTED"), 0, 9).unwrap().end, 1);
    let mut other = done;
    other.receipt.body = b"{}".to_vec();
    assert!(matches!(bench.store.commit(other).wait(), Err(StoreError::Conflict { .. })));
}

fn one_receipt(bench: &mut Bench<'_>) {
    let first = completion(&claim("a", "k", "p"), Status::Error, None);
    let mut second = first.clone();
    second.receipt.receipt_id = receipt_id("second");
    let both = [bench.store.commit(first), bench.store.commit(second.clone())].map(|wait| wait.wait());
    let refusal =
        Err(StoreError::AlreadyReceipted { action_id: action("a"), receipt_id: receipt_id("receipt-a") });
    assert!(both[0].is_ok());
    assert_eq!(both[1], refusal);
    bench.reopen();
    assert_eq!(bench.store.commit(second).wait(), refusal);
}

fn refused(bench: &mut Bench<'_>) {
    let mine = claim("a", "k", "p");
    bench.store.claim(mine.clone()).wait().unwrap();
    let mut done = completion(&mine, Status::Ok, None);
    done.links = vec![Link {
        action_id: action("b"),
        action_digest: mine.action_digest,
        receipt_id: done.receipt.receipt_id.clone(),
        leases: Vec::new(),
    }];
    assert!(matches!(bench.store.commit(done.clone()).wait(), Err(StoreError::StaleFence { .. })));
    bench.reopen();
    assert_eq!(bench.store.receipt(&done.receipt.receipt_id).unwrap(), None);
    assert_eq!(bench.store.receipt_of(&action("b")).unwrap(), None);
    assert_eq!(bench.store.read(&topic("ACTION_EXECUTED"), 0, 9).unwrap().end, 0);
    assert_eq!(bench.store.open_intents(None, 9).wait().unwrap().len(), 1);
    assert_eq!(
        bench.store.receipts(&ReceiptQuery { limit: 9, ..ReceiptQuery::default() }).unwrap().receipts,
        []
    );
}

fn twins(bench: &mut Bench<'_>) {
    let t = topic("ACTION_DECISION");
    bench.store.publish(&t, (0..3).map(|n| event(&n.to_string())).collect()).wait().unwrap();
    let leased = bench.store.lease(&t, &group("g"), 9, Duration::from_secs(30)).wait().unwrap();
    let mine = claim("a0", "k", "p");
    let ClaimAnswer::New { fence } = bench.store.claim(mine.clone()).wait().unwrap() else { panic!() };
    let mut done = completion(&mine, Status::Ok, Some(fence));
    done.leases = vec![leased.deliveries[0].lease_id];
    done.links = (1..3)
        .map(|n| Link {
            action_id: action(&format!("a{n}")),
            action_digest: claim(&format!("a{n}"), "k", "p").action_digest,
            receipt_id: done.receipt.receipt_id.clone(),
            leases: vec![leased.deliveries[n].lease_id],
        })
        .collect();
    bench.store.commit(done).wait().unwrap();
    bench.reopen();
    for n in 0..3 {
        let found = bench.store.receipt_of(&action(&format!("a{n}"))).unwrap().unwrap();
        assert_eq!(found.receipt_id, receipt_id("receipt-a0"));
    }
    assert_eq!(bench.store.groups(&t).wait().unwrap()[0].committed, 3);
}

/// Sixty receipts: tools, subjects, spaces and states in turn, one a second.
fn sixty(bench: &Bench<'_>) {
    for n in 0..60_usize {
        let mut done: Completion =
            completion(&claim(&format!("a{n}"), &format!("k{}", n % 20), "p"), Status::Error, None);
        let group = if n % 6 == 5 { "other" } else { "tool" };
        done.receipt.tool_id = ToolId::new(format!("{group}.{}", n % 3)).unwrap();
        done.receipt.subject_id = SubjectId::new(format!("agent://{}", n % 4)).unwrap();
        done.receipt.space_id = space(&format!("shared:{}", n % 2));
        let (session, org) = (format!("s-{}", n % 9), ["garden", "home"][n % 2]);
        let body =
            json!({ "n": n, "principal": format!("user://{}", n % 7), "session_id": session, "org": org });
        done.receipt.body = body.to_string().into_bytes();
        done.receipt.status = if n % 5 == 0 { Status::Skipped } else { Status::Error };
        bench.store.commit(done).wait().unwrap();
        bench.advance(Duration::from_secs(1));
    }
}

fn all(bench: &Bench<'_>, mut query: ReceiptQuery) -> Vec<u64> {
    let mut ordinals = Vec::new();
    loop {
        let page = bench.store.receipts(&query).unwrap();
        assert!(page.receipts.len() <= query.limit);
        ordinals.extend(page.receipts.iter().map(|receipt| receipt.ordinal));
        match page.cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => return ordinals,
        }
    }
}

fn query() -> ReceiptQuery {
    ReceiptQuery { limit: 7, ..ReceiptQuery::default() }
}

fn found(bench: &mut Bench<'_>) {
    sixty(bench);
    for _ in 0..2 {
        let of = |keep: fn(u64) -> bool| (0..60).filter(|n| keep(*n)).collect::<Vec<u64>>();
        let tool_id = Some(ToolId::new("tool.1").unwrap());
        let subject_id = Some(SubjectId::new("agent://2").unwrap());
        let space_id = Some(space("shared:1"));
        let status = Some(Status::Skipped);
        assert_eq!(all(bench, query()), of(|_| true));
        assert_eq!(all(bench, ReceiptQuery { tool_id: tool_id.clone(), ..query() }), of(|n| n % 3 == 1));
        assert_eq!(
            all(bench, ReceiptQuery { subject_id: subject_id.clone(), ..query() }),
            of(|n| n % 4 == 2)
        );
        assert_eq!(all(bench, ReceiptQuery { space_id: space_id.clone(), ..query() }), of(|n| n % 2 == 1));
        assert_eq!(all(bench, ReceiptQuery { status, ..query() }), of(|n| n % 5 == 0));
        let both = ReceiptQuery { tool_id, status, ..query() };
        assert_eq!(all(bench, both), of(|n| n % 3 == 1 && n % 5 == 0));
        let principal = Some(Principal::new("user://4").unwrap());
        let own = ReceiptQuery { principal, ..query() };
        assert_eq!(all(bench, own.clone()), of(|n| n % 7 == 4));
        assert_eq!(all(bench, ReceiptQuery { limit: 1, status, ..own.clone() }), [25]);
        let session = SessionId::new("s-4").ok();
        assert_eq!(all(bench, ReceiptQuery { session: session.clone(), ..query() }), of(|n| n % 9 == 4));
        let org = OrgId::new("home").ok();
        assert_eq!(all(bench, ReceiptQuery { org: org.clone(), ..query() }), of(|n| n % 2 == 1));
        assert_eq!(all(bench, ReceiptQuery { org, session, ..query() }), of(|n| n % 18 == 13));
        let tool_group = Some("other".to_owned());
        assert_eq!(all(bench, ReceiptQuery { tool_group, ..query() }), of(|n| n % 6 == 5));
        let action_ids = vec![action("a58"), action("none"), action("a11")];
        assert_eq!(all(bench, ReceiptQuery { action_ids: action_ids.clone(), ..query() }), [11, 58]);
        assert_eq!(all(bench, ReceiptQuery { action_ids, ..own }), [11]);
        let by_key = ReceiptQuery { key: Some(key("k3")), space_id: space_id.clone(), ..query() };
        assert_eq!(all(bench, by_key), [3, 23, 43]);
        let elsewhere = ReceiptQuery { key: Some(key("k3")), space_id: Some(space("shared:0")), ..query() };
        assert_eq!(all(bench, elsewhere), [0; 0]);
        assert!(bench.store.receipts(&ReceiptQuery { key: Some(key("k3")), ..query() }).is_err());
        bench.reopen();
    }
}

/// More receipts than a bucket of the index lists, few of which meet a condition.
fn intersected(bench: &mut Bench<'_>) {
    let commits: Vec<_> = (0..700)
        .map(|n| {
            let mut done = completion(&claim(&format!("a{n}"), "k", "p"), Status::Error, None);
            let rare = |is_rare| if is_rare { "rare" } else { "common" };
            done.receipt.body = format!("{{\"principal\":\"user://{}\"}}", rare(n % 300 == 7)).into_bytes();
            done.receipt.tool_id = ToolId::new(format!("{}.tool", rare(n == 5 || n == 607))).unwrap();
            done.receipt.status = if n < 256 { Status::Error } else { Status::Skipped };
            bench.store.commit(done)
        })
        .collect();
    commits.into_iter().for_each(|commit| drop(commit.wait().unwrap()));
    let of = |query: ReceiptQuery| {
        let oldest = all(bench, ReceiptQuery { order: Order::OldestFirst, ..query.clone() });
        let mut newest = all(bench, ReceiptQuery { order: Order::NewestFirst, ..query });
        newest.reverse();
        assert_eq!(oldest, newest);
        oldest
    };
    let own = ReceiptQuery { principal: Some(Principal::new("user://rare").unwrap()), limit: 1, ..query() };
    let first = bench.store.receipts(&own).unwrap();
    assert_eq!(first.receipts[0].ordinal, 7, "nobody else's receipts are read on the way");
    assert_eq!(of(own.clone()), [7, 307, 607]);
    assert_eq!(of(ReceiptQuery { status: Some(Status::Skipped), ..own.clone() }), [307, 607]);
    let tool_group = Some("rare".to_owned());
    assert_eq!(of(ReceiptQuery { tool_group: tool_group.clone(), ..query() }), [5, 607]);
    assert_eq!(of(ReceiptQuery { tool_group, ..own.clone() }), [607]);
    assert_eq!(of(ReceiptQuery { action_ids: vec![action("a5"), action("a307")], ..own }), [307]);
}

fn pages(bench: &mut Bench<'_>) {
    sixty(bench);
    let newest = ReceiptQuery { order: Order::NewestFirst, ..query() };
    assert_eq!(all(bench, newest.clone()), (0..60).rev().collect::<Vec<_>>());
    let tool_id = Some(ToolId::new("tool.0").unwrap());
    let of_tool = ReceiptQuery { tool_id, ..newest.clone() };
    assert_eq!(all(bench, of_tool), (0..60).rev().filter(|n| n % 3 == 0).collect::<Vec<_>>());
    // A cursor stays where it is while receipts are added.
    let first = bench.store.receipts(&newest).unwrap();
    bench.store.commit(completion(&claim("late", "late", "p"), Status::Error, None)).wait().unwrap();
    let rest = all(bench, ReceiptQuery { cursor: first.cursor, ..newest });
    assert_eq!(rest, (0..53).rev().collect::<Vec<_>>());
}

fn by_time(bench: &mut Bench<'_>) {
    sixty(bench);
    let at = |seconds: i64| -> Option<Timestamp> {
        Some(moment().checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap())
    };
    let between = ReceiptQuery { since: at(10), until: at(30), ..query() };
    assert_eq!(all(bench, between.clone()), (10..30).collect::<Vec<_>>());
    let newest = ReceiptQuery { order: Order::NewestFirst, ..between };
    assert_eq!(all(bench, newest.clone()), (10..30).rev().collect::<Vec<_>>());
    let status = Some(Status::Skipped);
    assert_eq!(all(bench, ReceiptQuery { status, ..newest }), [25, 20, 15, 10]);
    assert_eq!(all(bench, ReceiptQuery { since: at(60), ..query() }), [0; 0]);
    assert_eq!(all(bench, ReceiptQuery { until: at(0), ..query() }), [0; 0]);
}
