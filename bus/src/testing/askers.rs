//! Askers: a key belongs to its asker, and an effect counts for all of them.

use effectd_contracts::{Digest, Principal, Status, SubjectId};

use super::claims::{finish, grant, on};
use super::values::{asker, claim, completion, key, receipt_id, space};
use super::{Bench, Case};
use crate::types::claims::{Asker, Claim, ClaimAnswer, Lookup};
use crate::types::receipts::Completion;

pub(super) const CASES: &[Case] =
    &[("keys are of one asker", askers), ("a later effect retires the keys of all askers", retired_for_all)];

/// The asker of all other claims, and three that differ from it in one thing each.
fn four_askers() -> [Asker; 4] {
    let (space, subject, principal) = (
        space("shared:other"),
        SubjectId::new("agent://other").unwrap(),
        Principal::new("user://bob").unwrap(),
    );
    [asker(), Asker { space, ..asker() }, Asker { subject, ..asker() }, Asker { principal, ..asker() }]
}

fn askers(bench: &mut Bench<'_>) {
    let by = |number: usize, round: &str, params: &str| Claim {
        asker: four_askers()[number].clone(),
        ..claim(&format!("{round}-{number}"), "k", params)
    };
    let look = |bench: &Bench<'_>, number: usize, params: &str| {
        let (store, params) = (bench.store.as_ref(), Digest::of(params.as_bytes()));
        store.lookup(&four_askers()[number], &key("k"), &params, &[]).unwrap()
    };
    // Each has other parameters: no claim conflicts with another, open or done.
    let params = ["p", "q", "r", "s"];
    for (number, own) in params.iter().enumerate() {
        assert_eq!(look(bench, number, own), Lookup::Unknown);
        grant(bench.store.as_ref(), &by(number, "first", own));
    }
    bench.reopen();
    for (number, own) in params.iter().enumerate() {
        let first = by(number, "first", own);
        let action_id = first.action_id.clone();
        assert_eq!(
            bench.store.claim(by(number, "second", own)).wait().unwrap(),
            ClaimAnswer::InFlight { action_id: action_id.clone() }
        );
        assert_eq!(look(bench, number, own), Lookup::InFlight { action_id });
        let ClaimAnswer::OwnIntent(open) = bench.store.claim(first.clone()).wait().unwrap() else {
            panic!("{number} has lost its claim")
        };
        let ended = completion(&first, Status::Ok, Some(open.fence));
        bench.store.commit(ended).wait().unwrap();
    }
    for _ in 0..2 {
        for (number, own) in params.iter().enumerate() {
            let receipt_id = receipt_id(&format!("receipt-first-{number}"));
            assert_eq!(
                bench.store.claim(by(number, "third", own)).wait().unwrap(),
                ClaimAnswer::Done { receipt_id: receipt_id.clone() }
            );
            assert_eq!(look(bench, number, own), Lookup::Done { receipt_id });
            assert_eq!(look(bench, number, "other"), Lookup::Conflict);
        }
        bench.reopen();
    }
    let without_key = Claim { key: None, ..claim("c", "k", "z") };
    finish(bench.store.as_ref(), &without_key, Status::Ok);
}

/// Several askers found the resource already in the requested state. A change by any asker reopens the keys of all of them.
fn retired_for_all(bench: &mut Bench<'_>) {
    let write = |number: usize, round: &str, text: &str| Claim {
        asker: four_askers()[number].clone(),
        ..on("file:x", claim(&format!("{round}-{number}"), text, text))
    };
    let done = |bench: &Bench<'_>, round: &str| {
        (0..4)
            .filter(|number| {
                let again = write(*number, round, "A");
                let store = bench.store.as_ref();
                let found = store.lookup(&again.asker, &key("A"), &again.params_digest, &again.depends);
                let answer = store.claim(again.clone()).wait().unwrap();
                let is_done = matches!(answer, ClaimAnswer::Done { .. });
                assert_eq!(matches!(found.unwrap(), Lookup::Done { .. }), is_done);
                if let ClaimAnswer::New { fence } = answer {
                    let failed =
                        Completion { retire: Vec::new(), ..completion(&again, Status::Error, Some(fence)) };
                    store.commit(failed).wait().unwrap();
                }
                is_done
            })
            .collect::<Vec<_>>()
    };
    finish(bench.store.as_ref(), &write(0, "one", "A"), Status::Ok);
    for number in 1..4 {
        let same = write(number, "one", "A");
        let fence = grant(bench.store.as_ref(), &same);
        let unchanged = Completion { retire: Vec::new(), ..completion(&same, Status::Ok, Some(fence)) };
        bench.store.commit(unchanged).wait().unwrap();
    }
    bench.reopen();
    assert_eq!(done(bench, "two"), [0, 1, 2, 3]);
    finish(bench.store.as_ref(), &write(3, "other", "B"), Status::Ok);
    bench.reopen();
    assert!(done(bench, "three").is_empty());
    // A, B, A leaves A, and only the last writer's key counts as done.
    finish(bench.store.as_ref(), &write(2, "last", "A"), Status::Ok);
    bench.reopen();
    assert_eq!(done(bench, "four"), [2]);
}
