//! Random operations, with the memory engine as the model: the embedded one answers the same, through reopens.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::embedded::JournalKind;
use effectd_bus::memory::MemoryDisk;
use effectd_bus::testing::values::{
    action, asker, claim, completion, event, family, group, key, put, receipt_id, resource, sealed_event,
    topic,
};
use effectd_bus::{
    Acknowledgement, Admission, Asker, Claim, EmbeddedConfig, Expect, Fence, LeaseId, Link, LocalStore,
    NewDeadLetter, ReceiptQuery, SeekTo, Store, embedded, memory,
};
use effectd_contracts::{Clock, Digest, ManualClock, Principal, Status, Timestamp};
use proptest::prelude::*;

use crate::child::BOTH;

#[derive(Debug, Clone)]
enum Step {
    Publish { topic: u8, ids: Vec<u8>, sealed: bool },
    Lease { topic: u8, group: u8, max: u8 },
    Settle { lease: u64, how: u8, delay: u8 },
    Extend { lease: u64 },
    Seek { topic: u8, group: u8, to: u8 },
    Claim { action: u8, key: u8, params: u8, resource: Option<u8> },
    Admit { action: u8, key: u8 },
    TakeOver { action: u8, fence: u64 },
    Commit { action: u8, key: u8, params: u8, status: u8, fence: Option<u64>, lease: u64, letter: bool },
    Link { action: u8, receipt: u8 },
    Put { key: u8, expect: Option<u64> },
    CloseEpochs,
    Pass { seconds: u16 },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let small = 0_u8..6;
    prop_oneof![
        4 => (0_u8..2, prop::collection::vec(0_u8..40, 1..4), any::<bool>())
            .prop_map(|(topic, ids, sealed)| Step::Publish { topic, ids, sealed }),
        4 => (0_u8..2, 0_u8..2, 0_u8..4).prop_map(|(topic, group, max)| Step::Lease { topic, group, max }),
        5 => (0_u64..30, 0_u8..4, 0_u8..40).prop_map(|(lease, how, delay)| Step::Settle { lease, how, delay }),
        1 => (0_u64..30).prop_map(|lease| Step::Extend { lease }),
        1 => (0_u8..2, 0_u8..2, 0_u8..20).prop_map(|(topic, group, to)| Step::Seek { topic, group, to }),
        4 => (small.clone(), 0_u8..4, 0_u8..2, prop::option::of(0_u8..2))
            .prop_map(|(action, key, params, resource)| Step::Claim { action, key, params, resource }),
        2 => (small.clone(), 0_u8..4).prop_map(|(action, key)| Step::Admit { action, key }),
        1 => (small.clone(), 0_u64..12).prop_map(|(action, fence)| Step::TakeOver { action, fence }),
        5 => (small.clone(), 0_u8..4, 0_u8..2, 0_u8..3, prop::option::of(0_u64..8), 0_u64..30, any::<bool>()).prop_map(
            |(action, key, params, status, fence, lease, letter)| Step::Commit {
                action, key, params, status, fence, lease, letter
            }
        ),
        1 => (small.clone(), small.clone()).prop_map(|(action, receipt)| Step::Link { action, receipt }),
        2 => (small, prop::option::of(0_u64..12)).prop_map(|(key, expect)| Step::Put { key, expect }),
        1 => Just(Step::CloseEpochs),
        2 => (0_u16..4_000).prop_map(|seconds| Step::Pass { seconds }),
        2 => Just(Step::Reopen),
    ]
}

/// Two users ask for the same things.
fn user(number: u8) -> Asker {
    Asker { principal: Principal::new(format!("user://{}", number % 2)).unwrap(), ..asker() }
}

fn claim_of(about: u8, on: u8, params: u8, changes: Option<u8>) -> Claim {
    let mut claim = claim(&format!("a{about}"), &format!("k{on}"), &format!("p{params}"));
    claim.asker = user(about);
    claim.resources = changes.map(|changes| resource(&format!("file:{changes}"))).into_iter().collect();
    claim.depends = claim.resources.clone();
    claim
}

/// Carries out a step, and returns the result as text.
fn apply(store: &dyn Store, clock: &ManualClock, step: &Step) -> String {
    let name = |topic_number: &u8| topic(["x", "y"][usize::from(*topic_number)]);
    let of = |group_number: &u8| group(["g", "h"][usize::from(*group_number)]);
    let ttl = Duration::from_secs(30);
    match step {
        Step::Publish { topic, ids, sealed } => {
            let events = ids.iter().map(|id| {
                let id = id.to_string();
                if *sealed { sealed_event(&id, "a", id.as_bytes()) } else { event(&id) }
            });
            format!("{:?}", store.publish(&name(topic), events.collect()).wait())
        }
        Step::Lease { topic, group, max } => {
            format!("{:?}", store.lease(&name(topic), &of(group), usize::from(*max), ttl).wait())
        }
        Step::Settle { lease, how, delay } => {
            let delay = Duration::from_secs(u64::from(*delay));
            let how = match how {
                0 => Acknowledgement::Ack,
                1 => Acknowledgement::Nack { delay, detail: "d".into() },
                2 => Acknowledgement::Defer { delay },
                _ => Acknowledgement::Term { tool: None, code: "c".into(), detail: "d".into() },
            };
            format!("{:?}", store.acknowledge(LeaseId(*lease), how).wait())
        }
        Step::Extend { lease } => format!("{:?}", store.extend(LeaseId(*lease), ttl).wait()),
        Step::Seek { topic, group, to } => {
            let to = match to {
                0 => SeekTo::Start,
                1 => SeekTo::End,
                2 => SeekTo::Time(clock.now().checked_sub(jiff::SignedDuration::from_secs(2_000)).unwrap()),
                offset => SeekTo::Offset(u64::from(*offset)),
            };
            format!("{:?}", store.seek(&name(topic), &of(group), to).wait())
        }
        Step::Claim { action, key, params, resource } => {
            format!("{:?}", store.claim(claim_of(*action, *key, *params, *resource)).wait())
        }
        Step::Admit { action, key } => {
            let admission = Admission {
                topic: topic("x"),
                group: group("g"),
                ttl,
                event: sealed_event(&format!("d{action}"), &format!("a{action}"), b"request"),
                claim: claim_of(*action, *key, 0, None),
            };
            format!("{:?}", store.admit(admission).wait())
        }
        Step::TakeOver { action: about, fence } => {
            format!("{:?}", store.take_over(&action(&format!("a{about}")), Fence(*fence)).wait())
        }
        Step::Commit { action, key, params, status, fence, lease, letter } => {
            let status = [Status::Ok, Status::Error, Status::Skipped][usize::from(*status)];
            let of = claim_of(*action, *key, *params, Some(*key % 2));
            let mut done = completion(&of, status, fence.map(Fence));
            done.leases = vec![LeaseId(*lease)];
            done.letter = letter.then(|| NewDeadLetter {
                topic: topic("x"),
                code: "c".into(),
                detail: "d".into(),
                attempts: 1,
                tries: Vec::new(),
                payload: b"request".to_vec(),
            });
            format!("{:?}", store.commit(done).wait())
        }
        Step::Link { action: about, receipt } => {
            let link = Link {
                action_id: action(&format!("a{about}")),
                action_digest: Digest::of(b"linked"),
                receipt_id: receipt_id(&format!("receipt-a{receipt}")),
                leases: Vec::new(),
            };
            format!("{:?}", store.link(link).wait())
        }
        Step::Put { key, expect } => {
            let expect = expect.map_or(Expect::Any, Expect::Version);
            format!("{:?}", store.change(put("f", &key.to_string(), expect, "v")).wait())
        }
        Step::CloseEpochs => format!("{:?}", store.close_epochs(clock.now()).wait()),
        Step::Pass { .. } | Step::Reopen => String::new(),
    }
}

fn observe(store: &LocalStore) -> String {
    let events = [topic("x"), topic("y"), topic("ACTION_EXECUTED")].map(|topic| store.read(&topic, 0, 1_000));
    let groups = [topic("x"), topic("y")].map(|topic| store.groups(&topic).wait());
    let receipts = store.receipts(&ReceiptQuery { limit: 1_000, ..ReceiptQuery::default() });
    let by_key = (0..8).map(|n| {
        let (asker, on) = (user(n), key(&format!("k{}", n / 2)));
        let depends = [resource(&format!("file:{}", n / 2 % 2))];
        (0..2)
            .map(|params| store.lookup(&asker, &on, &Digest::of(format!("p{params}").as_bytes()), &depends))
            .collect::<Vec<_>>()
    });
    let by_key: Vec<_> = by_key.collect();
    let of_actions: Vec<_> = (0..6).map(|about| store.receipt_of(&action(&format!("a{about}")))).collect();
    let rest = (store.topics(), store.letters(None, 0, 1_000), store.entries(&family("f"), "", None, 1_000));
    let intents = store.open_intents(None, 1_000).wait();
    format!("{events:?}\n{groups:?}\n{receipts:?}\n{by_key:?}\n{of_actions:?}\n{rest:?}\n{intents:?}")
}

fn agree(steps: &[Step], journal: JournalKind) -> Result<(), TestCaseError> {
    let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
    let (disk, state) = (MemoryDisk::default(), tempfile::tempdir().unwrap());
    let open = || {
        crate::watchdog::start();
        let config =
            EmbeddedConfig { index_memtable_entries: 30, journal, ..EmbeddedConfig::new(state.path()) };
        let real = embedded::open(config, clock.clone()).unwrap();
        (memory::open_on(&disk, clock.clone()).unwrap(), real)
    };
    let (mut model, mut real) = open();
    for step in steps {
        let expected = apply(&model, &clock, step);
        prop_assert_eq!(apply(&real, &clock, step), expected, "{:?}", step);
        match step {
            Step::Pass { seconds } => clock.advance(Duration::from_secs(u64::from(*seconds))),
            Step::Reopen => {
                prop_assert_eq!(observe(&real), observe(&model));
                model.close().unwrap();
                real.close().unwrap();
                (model, real) = open();
            }
            Step::Publish { .. }
            | Step::Lease { .. }
            | Step::Settle { .. }
            | Step::Extend { .. }
            | Step::Seek { .. }
            | Step::Claim { .. }
            | Step::Admit { .. }
            | Step::TakeOver { .. }
            | Step::Commit { .. }
            | Step::Link { .. }
            | Step::Put { .. }
            | Step::CloseEpochs => {}
        }
    }
    prop_assert_eq!(observe(&real), observe(&model));
    model.audit().wait().unwrap();
    real.audit().wait().unwrap();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn the_embedded_engine_answers_as_the_model_does(steps in prop::collection::vec(step(), 1..120)) {
        for journal in BOTH {
            agree(&steps, journal)?;
        }
    }
}
