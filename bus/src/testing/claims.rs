//! Claims: one winner for each key, and nothing that may have happened is forgotten.

use std::time::Duration;

use effectd_contracts::{Digest, Status};

use super::values::{
    action, claim, completion, event, group, key, receipt_id, resource, sealed_event, topic,
};
use super::{Bench, Case};
use crate::types::claims::{Admission, Admitted, Claim, ClaimAnswer, ConflictOf, Fence, Lookup};
use crate::types::events::Body;
use crate::types::receipts::Link;
use crate::{Store, StoreError};

pub(super) const CASES: &[Case] = &[
    ("one of many claims on a key wins", one_winner),
    ("a key that is done answers with its receipt", done),
    ("only ok satisfies a key", only_ok),
    ("the same key with other parameters is a conflict", key_conflict),
    ("the same action with other content is a conflict", action_conflict),
    ("an action finds its own intent, also after a reopen", own_intent),
    ("an old fence cannot commit", fenced),
    ("actions on one resource run one after another", resources),
    ("a later effect invalidates earlier keys", retired),
    ("a moved folder invalidates the keys beneath it", disturbed),
    ("a key that depends on no resource stays done", held_keys),
    ("a stale receipt does not answer for its key", stale),
    ("an action overtaken by a move satisfies no key", overtaken),
    ("a lookup claims nothing", lookup),
    ("an admission is decision, delivery and claim in one", admitted),
    ("an admission that is not granted leaves nothing", not_admitted),
    ("open intents are listed in order", intents),
    ("a link resolves an action to a receipt", linked),
];

pub(super) fn grant(store: &dyn Store, claim: &Claim) -> Fence {
    let answer = store.claim(claim.clone()).wait().unwrap();
    let ClaimAnswer::New { fence } = answer else { panic!("not granted: {answer:?}") };
    fence
}

pub(super) fn finish(store: &dyn Store, claim: &Claim, status: Status) {
    let fence = grant(store, claim);
    store.commit(completion(claim, status, Some(fence))).wait().unwrap();
}

fn one_winner(bench: &mut Bench<'_>) {
    let waits: Vec<_> = (0..64).map(|n| bench.store.claim(claim(&format!("a{n}"), "k", "p"))).collect();
    let answers: Vec<_> = waits.into_iter().map(|wait| wait.wait().unwrap()).collect();
    let winners = answers.iter().filter(|answer| matches!(answer, ClaimAnswer::New { .. })).count();
    assert_eq!(winners, 1);
    let losers =
        answers.iter().filter(|answer| **answer == ClaimAnswer::InFlight { action_id: action("a0") });
    assert_eq!(losers.count(), 63);
}

fn done(bench: &mut Bench<'_>) {
    finish(bench.store.as_ref(), &claim("a", "k", "p"), Status::Ok);
    let done = ClaimAnswer::Done { receipt_id: receipt_id("receipt-a") };
    for _ in 0..2 {
        assert_eq!(bench.store.claim(claim("a", "k", "p")).wait().unwrap(), done);
        assert_eq!(bench.store.claim(claim("b", "k", "p")).wait().unwrap(), done);
        bench.reopen();
    }
}

fn only_ok(bench: &mut Bench<'_>) {
    for (name, status) in [("a", Status::Error), ("b", Status::Skipped), ("c", Status::Quarantined)] {
        finish(bench.store.as_ref(), &claim(name, "k", "p"), status);
    }
    finish(bench.store.as_ref(), &claim("d", "k", "p"), Status::Ok);
    let done = ClaimAnswer::Done { receipt_id: receipt_id("receipt-d") };
    assert_eq!(bench.store.claim(claim("e", "k", "p")).wait().unwrap(), done);
    // The id of a failed action leads to its receipt, too.
    let failed = ClaimAnswer::Done { receipt_id: receipt_id("receipt-a") };
    assert_eq!(bench.store.claim(claim("a", "k", "p")).wait().unwrap(), failed);
}

fn key_conflict(bench: &mut Bench<'_>) {
    let conflict = ClaimAnswer::Conflict { what: ConflictOf::Key };
    let first = claim("a", "k", "p");
    let fence = grant(bench.store.as_ref(), &first);
    assert_eq!(bench.store.claim(claim("b", "k", "q")).wait().unwrap(), conflict);
    bench.store.commit(completion(&first, Status::Ok, Some(fence))).wait().unwrap();
    assert_eq!(bench.store.claim(claim("b", "k", "q")).wait().unwrap(), conflict);
}

fn action_conflict(bench: &mut Bench<'_>) {
    let conflict = ClaimAnswer::Conflict { what: ConflictOf::Action };
    let first = claim("a", "k", "p");
    let fence = grant(bench.store.as_ref(), &first);
    assert_eq!(bench.store.claim(claim("a", "other", "q")).wait().unwrap(), conflict);
    let mut other = completion(&first, Status::Ok, Some(fence));
    other.receipt.action_digest = Digest::of(b"other");
    assert!(matches!(bench.store.commit(other).wait(), Err(StoreError::Conflict { .. })));
    bench.store.commit(completion(&first, Status::Ok, Some(fence))).wait().unwrap();
    bench.reopen();
    assert_eq!(bench.store.claim(claim("a", "other", "q")).wait().unwrap(), conflict);
}

fn own_intent(bench: &mut Bench<'_>) {
    let mine = claim("a", "k", "p");
    let fence = grant(bench.store.as_ref(), &mine);
    for orphaned in [false, true] {
        let ClaimAnswer::OwnIntent(intent) = bench.store.claim(mine.clone()).wait().unwrap() else {
            panic!()
        };
        assert_eq!((&intent.action_id, intent.fence, intent.orphaned), (&mine.action_id, fence, orphaned));
        assert_eq!(intent.intent, Body::Opened(mine.intent.clone()));
        assert_eq!(bench.store.open_intents(None, 9).wait().unwrap(), [intent]);
        let other = bench.store.claim(claim("b", "k", "p")).wait().unwrap();
        assert_eq!(other, ClaimAnswer::InFlight { action_id: action("a") });
        if !orphaned {
            bench.reopen();
        }
    }
    let taken = bench.store.take_over(&mine.action_id, fence).wait().unwrap();
    let ClaimAnswer::OwnIntent(intent) = bench.store.claim(mine.clone()).wait().unwrap() else { panic!() };
    assert_eq!((intent.fence, intent.orphaned), (taken, false));
    bench.store.commit(completion(&mine, Status::Ok, Some(taken))).wait().unwrap();
    assert!(bench.store.open_intents(None, 9).wait().unwrap().is_empty());
}

fn fenced(bench: &mut Bench<'_>) {
    let mine = claim("a", "k", "p");
    let old = grant(bench.store.as_ref(), &mine);
    let new = bench.store.take_over(&mine.action_id, old).wait().unwrap();
    assert!(new > old);
    let stale = Err(StoreError::StaleFence { action_id: mine.action_id.clone() });
    assert_eq!(bench.store.take_over(&mine.action_id, old).wait(), stale.clone().map(|()| old));
    for fence in [Some(old), None, Some(Fence(new.0 + 1))] {
        let refused = bench.store.commit(completion(&mine, Status::Ok, fence)).wait();
        assert!(matches!(refused, Err(StoreError::StaleFence { .. })), "{fence:?}");
    }
    assert_eq!(bench.store.read(&topic("ACTION_EXECUTED"), 0, 9).unwrap().end, 0);
    bench.store.commit(completion(&mine, Status::Ok, Some(new))).wait().unwrap();
    let unknown = bench.store.take_over(&action("nobody"), new).wait();
    assert!(matches!(unknown, Err(StoreError::NotFound { .. })));
    // A fence for a claim that never existed.
    let invented = bench.store.commit(completion(&claim("z", "z", "z"), Status::Ok, Some(new))).wait();
    assert!(matches!(invented, Err(StoreError::StaleFence { .. })));
}

pub(super) fn on(name: &str, mut claim: Claim) -> Claim {
    claim.resources = vec![resource(name)];
    claim.depends = claim.resources.clone();
    claim
}

fn resources(bench: &mut Bench<'_>) {
    let first = on("file:x", claim("a", "ka", "p"));
    let second = on("file:x", claim("b", "kb", "q"));
    let fence = grant(bench.store.as_ref(), &first);
    let busy = ClaimAnswer::ResourceBusy { action_id: action("a") };
    assert_eq!(bench.store.claim(second.clone()).wait().unwrap(), busy);
    bench.reopen();
    assert_eq!(bench.store.claim(second.clone()).wait().unwrap(), busy);
    grant(bench.store.as_ref(), &on("file:y", claim("c", "kc", "r")));
    bench.store.commit(completion(&first, Status::Error, Some(fence))).wait().unwrap();
    grant(bench.store.as_ref(), &second);
}

fn retired(bench: &mut Bench<'_>) {
    let write = |name: &str, text: &str| on("file:x", claim(name, text, text));
    finish(bench.store.as_ref(), &write("a1", "A"), Status::Ok);
    let done = ClaimAnswer::Done { receipt_id: receipt_id("receipt-a1") };
    assert_eq!(bench.store.claim(write("a2", "A")).wait().unwrap(), done);
    finish(bench.store.as_ref(), &write("b1", "B"), Status::Ok);
    bench.reopen();
    // A, B, A leaves A: the second A is carried out.
    finish(bench.store.as_ref(), &write("a3", "A"), Status::Ok);
    let done = ClaimAnswer::Done { receipt_id: receipt_id("receipt-a3") };
    assert_eq!(bench.store.claim(write("a4", "A")).wait().unwrap(), done);
    // A failure may have changed it, too.
    finish(bench.store.as_ref(), &write("b2", "B"), Status::Error);
    finish(bench.store.as_ref(), &write("a5", "A"), Status::Ok);
    // Another resource's keys stay.
    finish(bench.store.as_ref(), &on("file:y", claim("y", "Y", "Y")), Status::Ok);
    finish(bench.store.as_ref(), &write("b3", "B"), Status::Ok);
    let done = ClaimAnswer::Done { receipt_id: receipt_id("receipt-y") };
    assert_eq!(bench.store.claim(on("file:y", claim("y2", "Y", "Y"))).wait().unwrap(), done);
}

/// A completion that invalidates everything below a resource.
fn disturb(bench: &Bench<'_>, name: &str, resource: &str, status: Status) {
    let moving = Claim { key: None, ..on(resource, claim(name, name, name)) };
    let fence = grant(bench.store.as_ref(), &moving);
    let mut ended = completion(&moving, status, Some(fence));
    ended.disturbed = moving.resources.clone();
    bench.store.commit(ended).wait().unwrap();
}

fn disturbed(bench: &mut Bench<'_>) {
    let files = ["file:s/a", "file:s/a/x", "file:s/a/deep/y", "file:s/ab", "file:s"];
    let write = |round: &str, file: &str| {
        let plain = file.replace([':', '/'], "-");
        on(file, claim(&format!("{round}-{plain}"), &plain, &plain))
    };
    for file in files {
        finish(bench.store.as_ref(), &write("one", file), Status::Ok);
    }
    let known = |bench: &Bench<'_>, file: &str| {
        let again = write("look", file);
        let key = again.key.as_ref().unwrap();
        let store = bench.store.as_ref();
        let found = store.lookup(&again.asker, key, &again.params_digest, &again.resources);
        found.unwrap() != Lookup::Unknown
    };
    assert!(files.iter().all(|file| known(bench, file)));
    // Its own resource and everything beneath it are invalidated, even if it failed; other resources are not.
    disturb(bench, "move", "file:s/a", Status::Error);
    for _ in 0..2 {
        let told: Vec<bool> = files.iter().map(|file| known(bench, file)).collect();
        assert_eq!(told, [false, false, false, true, true]);
        bench.reopen();
    }
    // Actions after that count as done.
    for file in ["file:s/a/x", "file:s/a/deep/y"] {
        finish(bench.store.as_ref(), &write("two", file), Status::Ok);
        let answer = bench.store.claim(write("three", file)).wait().unwrap();
        assert!(matches!(answer, ClaimAnswer::Done { .. }), "{answer:?}");
        assert!(known(bench, file));
    }
    disturb(bench, "again", "file:s/a/deep", Status::Ok);
    assert!(known(bench, "file:s/a/x") && !known(bench, "file:s/a/deep/y"));
    grant(bench.store.as_ref(), &write("four", "file:s/a/deep/y"));
}

fn overtaken(bench: &mut Bench<'_>) {
    let write = |name: &str| on("file:s/a/x", claim(name, "k", "p"));
    let fence = grant(bench.store.as_ref(), &write("slow"));
    disturb(bench, "move", "file:s/a", Status::Ok);
    let ended = completion(&write("slow"), Status::Ok, Some(fence));
    bench.store.commit(ended).wait().unwrap();
    bench.reopen();
    finish(bench.store.as_ref(), &write("again"), Status::Ok);
    // A folder that appears invalidates earlier actions beneath it, but none that ran meanwhile.
    let near = |name: &str| on("file:s/c/x", claim(name, "near", "p"));
    finish(bench.store.as_ref(), &near("before"), Status::Ok);
    let far = |name: &str| on("file:s/c/y", claim(name, "far", "p"));
    let fence = grant(bench.store.as_ref(), &far("meanwhile"));
    let making = Claim { key: None, ..on("file:s/c", claim("making", "making", "making")) };
    let made = grant(bench.store.as_ref(), &making);
    let mut ended = completion(&making, Status::Ok, Some(made));
    ended.appeared = making.resources.clone();
    bench.store.commit(ended).wait().unwrap();
    let ended = completion(&far("meanwhile"), Status::Ok, Some(fence));
    bench.store.commit(ended).wait().unwrap();
    bench.reopen();
    finish(bench.store.as_ref(), &near("after"), Status::Ok);
    let done = ClaimAnswer::Done { receipt_id: receipt_id("receipt-meanwhile") };
    assert_eq!(bench.store.claim(far("after-it")).wait().unwrap(), done);
    // An action that changed nothing while its folder was moved does not count as done, either.
    let still = |name: &str| on("file:s/b/x", claim(name, "still", "p"));
    let fence = grant(bench.store.as_ref(), &still("idle"));
    disturb(bench, "another", "file:s/b", Status::Ok);
    let mut ended = completion(&still("idle"), Status::Ok, Some(fence));
    ended.retire.clear();
    bench.store.commit(ended).wait().unwrap();
    bench.reopen();
    finish(bench.store.as_ref(), &still("later"), Status::Ok);
}

/// A key that depends on no resource stays done, whatever others change.
fn held_keys(bench: &mut Bench<'_>) {
    let mine = |name: &str, params: &str| Claim {
        depends: Vec::new(),
        ..on("file:s/a/x", claim(name, "chosen", params))
    };
    finish(bench.store.as_ref(), &mine("first", "p"), Status::Ok);
    finish(bench.store.as_ref(), &on("file:s/a/x", claim("other", "other", "q")), Status::Ok);
    disturb(bench, "move", "file:s/a", Status::Ok);
    for round in ["one", "two"] {
        let done = ClaimAnswer::Done { receipt_id: receipt_id("receipt-first") };
        assert_eq!(bench.store.claim(mine(round, "p")).wait().unwrap(), done);
        let conflict = ClaimAnswer::Conflict { what: ConflictOf::Key };
        let wrong = format!("wrong-{round}");
        assert_eq!(bench.store.claim(mine(&wrong, "other")).wait().unwrap(), conflict);
        bench.reopen();
    }
}

fn stale(bench: &mut Bench<'_>) {
    let done = |name: &str| ClaimAnswer::Done { receipt_id: receipt_id(&format!("receipt-{name}")) };
    let write = |name: &str| on("file:x", claim(name, "k", "p"));
    let again = |name: &str| Claim { stale: Some(receipt_id("receipt-a")), ..write(name) };
    finish(bench.store.as_ref(), &write("a"), Status::Ok);
    // The action itself keeps its receipt.
    assert_eq!(bench.store.claim(again("a")).wait().unwrap(), done("a"));
    // A failure leaves the key to the old receipt.
    let mut failed = completion(&again("b"), Status::Error, Some(grant(bench.store.as_ref(), &again("b"))));
    failed.retire.clear();
    bench.store.commit(failed).wait().unwrap();
    assert_eq!(bench.store.claim(write("c")).wait().unwrap(), done("a"));
    let fence = grant(bench.store.as_ref(), &again("d"));
    for _ in 0..2 {
        // The open claim is newer than the old receipt.
        let (action_id, asked) = (action("d"), write("e"));
        let found = bench.store.lookup(&asked.asker, &key("k"), &asked.params_digest, &asked.depends);
        assert_eq!(found.unwrap(), Lookup::InFlight { action_id: action_id.clone() });
        assert_eq!(bench.store.claim(asked).wait().unwrap(), ClaimAnswer::InFlight { action_id });
        bench.reopen();
    }
    bench.store.commit(completion(&again("d"), Status::Ok, Some(fence))).wait().unwrap();
    assert_eq!(bench.store.claim(again("f")).wait().unwrap(), done("d"));
}

fn lookup(bench: &mut Bench<'_>) {
    let mine = claim("a", "k", "p");
    let look = |bench: &Bench<'_>, params: &str| {
        bench.store.lookup(&mine.asker, &key("k"), &Digest::of(params.as_bytes()), &[]).unwrap()
    };
    assert_eq!(look(bench, "p"), Lookup::Unknown);
    let fence = grant(bench.store.as_ref(), &mine);
    for _ in 0..2 {
        assert_eq!(look(bench, "p"), Lookup::InFlight { action_id: action("a") });
        assert_eq!(look(bench, "q"), Lookup::Conflict);
        bench.reopen();
    }
    bench.store.commit(completion(&mine, Status::Ok, Some(fence))).wait().unwrap();
    for _ in 0..2 {
        assert_eq!(look(bench, "p"), Lookup::Done { receipt_id: receipt_id("receipt-a") });
        assert_eq!(look(bench, "q"), Lookup::Conflict);
        bench.reopen();
    }
}

fn admission(about: &str, on: &str) -> Admission {
    Admission {
        topic: topic("ACTION_DECISION"),
        group: group("pipeline"),
        ttl: Duration::from_secs(30),
        event: sealed_event(&format!("decision-{about}"), about, b"the request"),
        claim: claim(about, on, "p"),
    }
}

fn admitted(bench: &mut Bench<'_>) {
    let (decisions, pipeline) = (topic("ACTION_DECISION"), group("pipeline"));
    bench.store.publish(&decisions, vec![event("earlier")]).wait().unwrap();
    let before = bench.store.stats().syncs;
    let answer = bench.store.admit(admission("a", "k")).wait().unwrap();
    let Admitted::Granted { fence, lease_id, offset } = answer else { panic!("{answer:?}") };
    assert_eq!(offset, 1);
    assert_eq!(bench.store.stats().syncs, before + 1);
    // The group skips decisions that a caller holds.
    let leased = bench.store.lease(&decisions, &pipeline, 9, Duration::from_secs(30)).wait().unwrap();
    assert_eq!(leased.deliveries.iter().map(|delivery| delivery.offset).collect::<Vec<_>>(), [0]);
    let mut done = completion(&claim("a", "k", "p"), Status::Ok, Some(fence));
    done.leases = vec![lease_id];
    let committed = bench.store.commit(done).wait().unwrap();
    assert!(committed.leases_lost.is_empty());
    assert_eq!(bench.store.stats().syncs, before + 3);
    let info = &bench.store.groups(&decisions).wait().unwrap()[0];
    assert_eq!((info.committed, info.acknowledged_ahead, info.undelivered), (0, 1, 0));
    // An admitted decision whose process died is delivered to the group, and counted.
    bench.store.admit(admission("b", "kb")).wait().unwrap();
    bench.reopen();
    let again = bench.store.lease(&decisions, &pipeline, 9, Duration::from_secs(30)).wait().unwrap();
    let found: Vec<_> =
        again.deliveries.iter().map(|delivery| (delivery.offset, delivery.delivery_count)).collect();
    assert_eq!(found, [(0, 2), (2, 2)]);
    assert_eq!(again.deliveries[1].event.body, Body::Opened(b"the request".to_vec()));
}

fn not_admitted(bench: &mut Bench<'_>) {
    let decisions = topic("ACTION_DECISION");
    finish(bench.store.as_ref(), &claim("a", "k", "p"), Status::Ok);
    let answer = bench.store.admit(admission("b", "k")).wait().unwrap();
    let done = ClaimAnswer::Done { receipt_id: receipt_id("receipt-a") };
    assert_eq!(answer, Admitted::NotGranted(done));
    assert_eq!(bench.store.read(&decisions, 0, 9).unwrap().end, 0);
    assert!(bench.store.open_intents(None, 9).wait().unwrap().is_empty());
    bench.store.publish(&decisions, vec![admission("c", "kc").event]).wait().unwrap();
    let answer = bench.store.admit(admission("c", "kc")).wait().unwrap();
    assert_eq!(answer, Admitted::AlreadyPublished { offset: 0 });
    assert!(bench.store.open_intents(None, 9).wait().unwrap().is_empty());
}

fn intents(bench: &mut Bench<'_>) {
    let fences: Vec<Fence> = (0..5)
        .map(|n| grant(bench.store.as_ref(), &claim(&format!("a{n}"), &format!("k{n}"), "p")))
        .collect();
    bench.reopen();
    let page = bench.store.open_intents(None, 2).wait().unwrap();
    assert_eq!(page.iter().map(|intent| intent.fence).collect::<Vec<_>>(), fences[..2]);
    let rest = bench.store.open_intents(Some(fences[1]), 99).wait().unwrap();
    assert_eq!(rest.iter().map(|intent| intent.fence).collect::<Vec<_>>(), fences[2..]);
    assert!(rest.iter().all(|intent| intent.orphaned));
    assert_eq!(
        bench.store.stats().intents_open,
        fences.len() as u64,
        "also when nothing was written since the reopen"
    );
}

fn linked(bench: &mut Bench<'_>) {
    finish(bench.store.as_ref(), &claim("a", "k", "p"), Status::Ok);
    let digest = Digest::of(b"b p");
    let link = |about: &str, to: &str| Link {
        action_id: action(about),
        action_digest: digest,
        receipt_id: receipt_id(to),
        leases: Vec::new(),
    };
    // Nobody waits for it: later operations come after it in order, and find it.
    drop(bench.store.link(link("b", "receipt-a")));
    bench.store.groups(&topic("t")).wait().unwrap();
    assert!(bench.store.receipt_of(&action("b")).unwrap().is_some());
    bench.store.link(link("b", "receipt-a")).wait().unwrap();
    assert!(matches!(bench.store.link(link("c", "no-such")).wait(), Err(StoreError::NotFound { .. })));
    bench.reopen();
    let found = bench.store.receipt_of(&action("b")).unwrap().unwrap();
    assert_eq!(found.receipt_id, receipt_id("receipt-a"));
    assert_eq!(bench.store.receipt_of(&action("c")).unwrap(), None);
    let mut other = link("b", "receipt-a");
    other.action_digest = Digest::of(b"other");
    assert!(matches!(bench.store.link(other).wait(), Err(StoreError::Conflict { .. })));
    let second = bench.store.commit(completion(&claim("b", "kb", "p"), Status::Ok, None)).wait();
    assert!(matches!(second, Err(StoreError::AlreadyReceipted { .. })));
}
