//! The log: every intent, receipt and note, in one order, with proofs that hold.

use std::time::Duration;

use effectd_contracts::merkle::{Frontier, consistency_holds, inclusion_holds, leaf};
use effectd_contracts::{ReceiptId, Status};

use super::retention::retain_all;
use super::values::{claim, completion};
use super::{Bench, Case};
use crate::types::claims::ClaimAnswer;
use crate::types::retention::{Retention, RetentionMode};

pub(super) const CASES: &[Case] = &[
    ("the log holds every intent, receipt and note in order", in_order),
    ("proofs about the log hold, also after a reopen", proofs),
    ("proofs hold after retention drops bodies and notes", proofs_after_retention),
    ("log entries before a receipt are kept as long as the receipt", entries_go_with_receipts),
];

/// An action from claim to receipt.
fn act(bench: &Bench<'_>, name: &str) -> ReceiptId {
    let mine = claim(name, name, "p");
    let ClaimAnswer::New { fence } = bench.store.claim(mine.clone()).wait().unwrap() else {
        panic!("{name} is not new")
    };
    let done = completion(&mine, Status::Ok, Some(fence));
    bench.store.commit(done.clone()).wait().unwrap();
    done.receipt.receipt_id
}

fn in_order(bench: &mut Bench<'_>) {
    assert_eq!(bench.store.log().unwrap().root, Frontier::default().root());
    let first = act(bench, "a");
    assert_eq!(bench.store.note("key", b"{\"entry\":\"key\"}".to_vec()).wait(), Ok(2));
    let refused = completion(&claim("b", "k", "p"), Status::Error, None);
    bench.store.commit(refused.clone()).wait().unwrap();
    bench.store.commit(refused).wait().unwrap();
    bench.store.claim(claim("c", "c", "p")).wait().unwrap();
    for _ in 0..2 {
        let standing = bench.store.log().unwrap();
        assert_eq!((standing.size, standing.open), (5, 1));
        let entries = bench.store.log_entries(0, 100).unwrap();
        let bodies: Vec<serde_json::Value> = entries
            .iter()
            .map(|entry| serde_json::from_slice(entry.body.as_ref().unwrap()).unwrap())
            .collect();
        assert_eq!((&bodies[0]["entry"], &bodies[0]["action_id"]), (&"intent".into(), &"a".into()));
        assert_eq!(bodies[1]["receipt_id"], first.as_str());
        assert_eq!(bodies[2]["entry"], "key");
        assert_eq!(bodies[3]["status"], "error");
        assert_eq!(bodies[4]["action_id"], "c");
        let mut tree = Frontier::default();
        for (index, entry) in entries.iter().enumerate() {
            assert_eq!(entry.index, index as u64);
            assert_eq!(entry.hash, leaf(entry.body.as_ref().unwrap()));
            tree.push(entry.hash);
        }
        assert_eq!(tree.root(), standing.root);
        assert_eq!(bench.store.log_entries(3, 1).unwrap(), entries[3..4]);
        assert_eq!(bench.store.log_entries(5, 9).unwrap(), []);
        assert_eq!(bench.store.notes("key", 0, 9).unwrap(), entries[2..3]);
        assert_eq!(bench.store.notes("key", 3, 9).unwrap(), []);
        assert_eq!(bench.store.last_note("key").unwrap().as_ref(), Some(&entries[2]));
        assert_eq!(bench.store.last_note("none"), Ok(None));
        assert_eq!(bench.store.log_place(&first), Ok(Some(1)));
        bench.reopen();
    }
}

fn proofs(bench: &mut Bench<'_>) {
    let receipts: Vec<_> = (0..40).map(|n| act(bench, &format!("a{n}"))).collect();
    let before = bench.store.log().unwrap();
    bench.reopen();
    act(bench, "last");
    let now = bench.store.log().unwrap();
    assert_eq!((before.size, now.size), (80, 82));
    let proof = bench.store.log_consistency(80, 82).unwrap();
    assert!(consistency_holds((80, &before.root), (82, &now.root), &proof));
    assert_eq!(bench.store.log_frontier(80).unwrap().root(), before.root);
    for (nth, receipt) in receipts.iter().enumerate() {
        let index = bench.store.log_place(receipt).unwrap().unwrap();
        assert_eq!(index, nth as u64 * 2 + 1);
        let entry = &bench.store.log_entries(index, 1).unwrap()[0];
        let proof = bench.store.log_inclusion(index, 82).unwrap();
        assert!(inclusion_holds(index, 82, &entry.hash, &proof, &now.root));
    }
    assert!(bench.store.log_inclusion(82, 82).is_err());
    assert!(bench.store.log_inclusion(0, 83).is_err());
    assert!(bench.store.log_consistency(82, 80).is_err());
}

fn proofs_after_retention(bench: &mut Bench<'_>) {
    let note = |bench: &Bench<'_>, words: &str| bench.store.note("head", words.as_bytes().to_vec()).wait();
    let receipts: Vec<_> = (0..199).map(|n| act(bench, &format!("a{n}"))).collect();
    note(bench, "{\"nth\":0}").unwrap();
    act(bench, "a199");
    let before = bench.store.log().unwrap();
    let hashes: Vec<_> = bench.store.log_entries(0, 401).unwrap();
    bench.advance(Duration::from_secs(181 * 86_400));
    let kept = act(bench, "kept");
    note(bench, "{\"nth\":1}").unwrap();
    let told = retain_all(&*bench.store, &Retention::default());
    assert!(told.receipts == 200 && told.blocks >= 400, "{told:?}");
    for _ in 0..2 {
        let now = bench.store.log().unwrap();
        assert_eq!((before.size, now.size, now.kept_from), (401, 404, 401));
        let proof = bench.store.log_consistency(401, 404).unwrap();
        assert!(consistency_holds((401, &before.root), (404, &now.root), &proof));
        // Bodies are dropped; the hashes stay, unchanged.
        for gone in [0, 1, 255, 256, 399, 400] {
            let entry = bench.store.log_entries(gone, 1).unwrap().remove(0);
            let whole = &hashes[usize::try_from(gone).unwrap()];
            assert_eq!((entry.hash, entry.body, entry.stored_at), (whole.hash, None, None));
            let proof = bench.store.log_inclusion(gone, 404).unwrap();
            assert!(inclusion_holds(gone, 404, &entry.hash, &proof, &now.root), "{gone}");
        }
        assert_eq!(bench.store.log_place(&receipts[7]), Ok(None));
        assert_eq!(bench.store.log_place(&kept), Ok(Some(402)));
        let entry = &bench.store.log_entries(402, 1).unwrap()[0];
        assert_eq!(entry.hash, leaf(entry.body.as_ref().unwrap()));
        let notes = bench.store.notes("head", 0, 9).unwrap();
        let last = notes.last().unwrap();
        assert_eq!((last.index, last.body.as_deref()), (403, Some(&b"{\"nth\":1}"[..])));
        assert!(notes[..notes.len() - 1].iter().all(|gone| gone.body.is_none()));
        assert_eq!(bench.store.last_note("head").unwrap().as_ref(), Some(last));
        bench.reopen();
    }
}

fn bodies(bench: &Bench<'_>) -> Vec<u64> {
    let entries = bench.store.log_entries(0, 100).unwrap();
    let there = entries.iter().filter(|entry| entry.body.is_some());
    there.map(|entry| entry.index).collect()
}

fn entries_go_with_receipts(bench: &mut Bench<'_>) {
    let note = |bench: &Bench<'_>, about: &str| bench.store.note(about, b"{}".to_vec()).wait().unwrap();
    let retention = Retention::default();
    let day = Duration::from_secs(86_400);
    note(bench, "key");
    note(bench, "head");
    retain_all(&*bench.store, &retention);
    act(bench, "old");
    note(bench, "head");
    // The last head is as old as the receipt before it, and is kept with the receipt after it.
    bench.advance(181 * day);
    note(bench, "key");
    act(bench, "new");
    bench.store.retain(&retention, RetentionMode::Apply).unwrap();
    assert_eq!(bench.store.log().unwrap().kept_from, 4);
    // Only entries that a signed head has announced are dropped, whatever has expired.
    for log_before in [0, 3, 4] {
        bench.store.shorten(log_before).unwrap();
        for _ in 0..2 {
            assert_eq!(bodies(bench), (log_before..8).collect::<Vec<_>>());
            assert_eq!(bench.store.log().unwrap().kept_from, 4);
            bench.reopen();
            bench.store.retain(&retention, RetentionMode::Apply).unwrap();
        }
    }
}
