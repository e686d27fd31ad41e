//! Key-value entries: several compare-and-swaps at a time, or none.

use std::time::Duration;

use super::values::{event, family, group, put, topic};
use super::{Bench, Case};
use crate::StoreError;
use crate::types::events::{Body, NewBody};
use crate::types::kv::{Change, Expect, KvChange, Swap};

pub(super) const CASES: &[Case] = &[
    ("an entry changes only under its condition", compare_and_swap),
    ("one of many swaps wins", one_winner),
    ("a change is all or nothing", all_or_nothing),
    ("entries are listed by prefix, in order", listed),
    ("a version is never used twice", versions),
    ("a hold ends the delivery of its decision in the same step", held),
    ("entries are bounded", bounded),
];

fn delete(of: &str, name: &str, expect: Expect) -> Change {
    let swap = Swap { family: family(of), key: name.to_owned(), expect, change: KvChange::Delete };
    Change { swaps: vec![swap], ..Change::default() }
}

fn value(bench: &Bench<'_>, of: &str, name: &str) -> Option<(u64, Vec<u8>)> {
    let entry = bench.store.entry(&family(of), name).unwrap()?;
    Some((entry.version, entry.value.bytes().unwrap().to_vec()))
}

fn compare_and_swap(bench: &mut Bench<'_>) {
    let version =
        bench.store.change(put("holds", "a", Expect::Absent, "1")).wait().unwrap().versions[0].unwrap();
    assert_eq!(value(bench, "holds", "a"), Some((version, b"1".to_vec())));
    let mismatch = Err(StoreError::VersionMismatch { current: Some(version) });
    assert_eq!(bench.store.change(put("holds", "a", Expect::Absent, "2")).wait(), mismatch);
    assert_eq!(bench.store.change(put("holds", "a", Expect::Version(version + 1), "2")).wait(), mismatch);
    assert_eq!(bench.store.change(delete("holds", "a", Expect::Version(version + 1))).wait(), mismatch);
    bench.reopen();
    let newer =
        bench.store.change(put("holds", "a", Expect::Version(version), "2")).wait().unwrap().versions[0];
    assert!(newer > Some(version));
    assert_eq!(value(bench, "holds", "a"), Some((newer.unwrap(), b"2".to_vec())));
    assert_eq!(value(bench, "grants", "a"), None);
    bench.store.change(delete("holds", "a", Expect::Version(newer.unwrap()))).wait().unwrap();
    assert_eq!(value(bench, "holds", "a"), None);
    let gone = bench.store.change(delete("holds", "a", Expect::Version(newer.unwrap()))).wait();
    assert_eq!(gone, Err(StoreError::VersionMismatch { current: None }));
    bench.store.change(put("holds", "a", Expect::Any, "3")).wait().unwrap();
    bench.store.change(delete("holds", "a", Expect::Any)).wait().unwrap();
    bench.reopen();
    assert_eq!(value(bench, "holds", "a"), None);
}

fn one_winner(bench: &mut Bench<'_>) {
    let waits: Vec<_> =
        (0..32).map(|n| bench.store.change(put("g", "k", Expect::Absent, &n.to_string()))).collect();
    let won = waits.into_iter().map(|wait| wait.wait()).filter(Result::is_ok).count();
    assert_eq!(won, 1);
    assert_eq!(value(bench, "g", "k").unwrap().1, b"0");
}

fn all_or_nothing(bench: &mut Bench<'_>) {
    bench.store.change(put("a", "x", Expect::Absent, "1")).wait().unwrap();
    let mut change = put("a", "y", Expect::Absent, "1");
    change.swaps.extend(put("a", "x", Expect::Absent, "2").swaps);
    change.events.push((topic("t"), event("1")));
    assert!(matches!(bench.store.change(change.clone()).wait(), Err(StoreError::VersionMismatch { .. })));
    assert_eq!(value(bench, "a", "y"), None);
    assert_eq!(bench.store.read(&topic("t"), 0, 9).unwrap().end, 0);
    change.swaps[1].expect = Expect::Any;
    let changed = bench.store.change(change).wait().unwrap();
    assert_eq!((changed.versions.len(), changed.offsets), (2, vec![0]));
    let mut twice = put("a", "z", Expect::Any, "1");
    twice.swaps.extend(put("a", "z", Expect::Any, "2").swaps);
    assert!(matches!(bench.store.change(twice).wait(), Err(StoreError::Invalid(_))));
}

fn listed(bench: &mut Bench<'_>) {
    for n in 0..25 {
        bench.store.change(put("f", &format!("tool:{n:02}"), Expect::Absent, "x")).wait().unwrap();
    }
    bench.store.change(put("f", "other", Expect::Absent, "x")).wait().unwrap();
    bench.store.change(put("ff", "tool:99", Expect::Absent, "x")).wait().unwrap();
    bench.store.change(delete("f", "tool:07", Expect::Any)).wait().unwrap();
    for _ in 0..2 {
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = bench.store.entries(&family("f"), "tool:", after.as_deref(), 10).unwrap();
            seen.extend(page.entries.iter().map(|entry| entry.key.clone()));
            after = page.after;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, (0..25).filter(|n| *n != 7).map(|n| format!("tool:{n:02}")).collect::<Vec<_>>());
        assert_eq!(bench.store.entries(&family("f"), "", None, 100).unwrap().entries.len(), 25);
        assert_eq!(bench.store.entries(&family("none"), "", None, 100).unwrap().entries, []);
        bench.reopen();
    }
}

fn versions(bench: &mut Bench<'_>) {
    let mut last = None;
    for n in 0..6 {
        let version = bench.store.change(put("f", "k", Expect::Absent, "x")).wait().unwrap().versions[0];
        assert!(version > last || last.is_none());
        last = version;
        bench.store.change(delete("f", "k", Expect::Any)).wait().unwrap();
        if n % 2 == 0 {
            bench.reopen();
        }
    }
}

fn held(bench: &mut Bench<'_>) {
    let (t, g) = (topic("t"), group("g"));
    bench.store.publish(&t, vec![event("1")]).wait().unwrap();
    let lease = bench.store.lease(&t, &g, 1, Duration::from_secs(30)).wait().unwrap().deliveries[0].lease_id;
    let swap = Swap {
        family: family("holds"),
        key: "h".into(),
        expect: Expect::Absent,
        change: KvChange::Put(NewBody::Sealed(b"the request".to_vec())),
    };
    let change = Change {
        swaps: vec![swap],
        leases: vec![lease],
        notes: vec![("n".into(), b"{}".to_vec())],
        ..Change::default()
    };
    bench.store.change(change.clone()).wait().unwrap();
    bench.reopen();
    assert_eq!(bench.store.groups(&t).wait().unwrap()[0].committed, 1);
    let entry = bench.store.entry(&family("holds"), "h").unwrap().unwrap();
    assert_eq!(entry.value, Body::Opened(b"the request".to_vec()));
    // A lease that is no longer held undoes all of it.
    let mut again = change;
    again.swaps[0].key = "h2".into();
    assert_eq!(bench.store.change(again).wait(), Err(StoreError::LeaseLost));
    assert_eq!(bench.store.entry(&family("holds"), "h2").unwrap(), None);
    let notes = bench.store.notes("n", 0, 9).unwrap();
    assert_eq!(notes.iter().map(|note| note.body.as_deref()).collect::<Vec<_>>(), [Some(&b"{}"[..])]);
}

fn bounded(bench: &mut Bench<'_>) {
    let long = bench.store.change(put("f", &"k".repeat(513), Expect::Any, "x")).wait();
    assert!(matches!(long, Err(StoreError::TooLarge { .. })));
    bench.store.change(put("f", &"k".repeat(512), Expect::Any, "x")).wait().unwrap();
}
