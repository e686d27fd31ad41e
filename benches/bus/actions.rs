//! Whole actions: what an action costs from its request to its receipt.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use effectd_bus::{
    Admission, Admitted, Asker, Claim, Completion, Fence, GroupName, LocalStore, NewBody, NewEvent,
    NewReceipt, Store, TopicName, Wait,
};
use effectd_contracts::{ActionId, Digest, IdempotencyKey, ReceiptId, Status, Timestamp, ToolId};

use serde_json::json;

use crate::{Cost, RECORD_BYTES, TURNS, event, judge, lines, median, open, percentile};

const DEPTHS: [usize; 2] = [64, 256];
const ACTIONS_TURN: Duration = Duration::from_millis(700);

fn claim(id: &str) -> Claim {
    Claim {
        action_id: ActionId::new(id).unwrap(),
        action_digest: Digest::of(id.as_bytes()),
        asker: Asker {
            space: "shared:bench".parse().unwrap(),
            subject: "agent://bench".parse().unwrap(),
            principal: "user://bench".parse().unwrap(),
        },
        key: Some(IdempotencyKey::new(id).unwrap()),
        params_digest: Digest::of(id.as_bytes()),
        intent: vec![b'i'; 256],
        resources: Vec::new(),
        depends: Vec::new(),
        stale: None,
    }
}

fn admission(id: &str, body: &[u8]) -> Admission {
    let action_id = ActionId::new(id).unwrap();
    let event = NewEvent { action_id: Some(action_id), body: NewBody::Sealed(body.to_vec()), ..event(b"") };
    Admission {
        topic: TopicName::new("ACTION_DECISION").unwrap(),
        group: GroupName::new("pipeline").unwrap(),
        ttl: Duration::from_secs(60),
        event,
        claim: claim(id),
    }
}

fn completion(id: &str, admitted: Admitted) -> Completion {
    let Admitted::Granted { fence, lease_id, .. } = admitted else { panic!("{admitted:?}") };
    let claim = claim(id);
    let receipt = NewReceipt {
        receipt_id: ReceiptId::fresh(),
        action_id: claim.action_id,
        action_digest: claim.action_digest,
        tool_id: ToolId::new("files.write_text").unwrap(),
        subject_id: claim.asker.subject,
        space_id: claim.asker.space,
        status: Status::Ok,
        key: claim.key,
        params_digest: claim.params_digest,
        time: Timestamp::now(),
        body: vec![b'r'; RECORD_BYTES],
    };
    Completion {
        receipt,
        events: vec![(TopicName::new("ACTION_EXECUTED").unwrap(), event(&[b'e'; 300]))],
        fence: Some(fence),
        leases: vec![lease_id],
        letter: None,
        retire: Vec::new(),
        disturbed: Vec::new(),
        appeared: Vec::new(),
        depends: Vec::new(),
        links: Vec::new(),
    }
}

/// Whole actions: decision, delivery, claim and intent in one block, receipt, event and ack in another.
pub(crate) fn actions(scratch: &Path) -> u32 {
    println!("durable actions (admit, commit), 512 byte requests, 1 KiB receipts:");
    let store = open(&scratch.join("actions"), Duration::ZERO);
    let body = vec![b'q'; 512];
    let before = store.stats().syncs;
    let mut alone = Vec::new();
    for n in 0..500 {
        let id = format!("alone-{n}");
        let begun = Instant::now();
        let admitted = store.admit(admission(&id, &body)).wait().unwrap();
        store.commit(completion(&id, admitted)).wait().unwrap();
        alone.push(begun.elapsed());
    }
    let syncs_alone = (store.stats().syncs - before) as f64 / 500.0;
    alone.sort();
    println!("  one alone: p50 {:?}, p99 {:?}", percentile(&alone, 50), percentile(&alone, 99));
    let took: Duration = alone.iter().sum();
    note("admit, commit", 1, 500.0 / took.as_secs_f64(), &alone);
    let mut syncs_each = 0.0_f64;
    for depth in DEPTHS {
        let syncs = turns(&store, "admit, commit", depth, |turn| many_actions(&store, &body, (depth, turn)));
        syncs_each = syncs_each.max(syncs);
    }
    for depth in DEPTHS {
        turns(&store, "publish, lease, commit", depth, |turn| {
            delivered_actions(&store, &body, (depth, turn))
        });
    }
    let begun = Instant::now();
    store.close().unwrap();
    println!("  closing, with the rest of the index: {:?}", begun.elapsed());
    judge("syncs of an action alone", syncs_alone, syncs_alone <= 2.0, "at most 2")
        + judge("syncs of an action in flight", syncs_each, syncs_each <= 0.08, "at most 0.08")
}

/// A line for the plots and for `benches/peers`.
fn note(work: &str, in_flight: usize, per_second: f64, sorted: &[Duration]) {
    let line = json!({
        "peer": "effectd-store", "version": env!("CARGO_PKG_VERSION"), "work": work, "in_flight": in_flight,
        "per_second": per_second.round(),
    });
    lines::note(line, sorted);
}

/// Takes some turns and prints the best and the median of them; gives the median of syncs.
fn turns(store: &LocalStore, what: &str, depth: usize, mut act: impl FnMut(usize) -> u64) -> f64 {
    let (mut rates, mut cpus, mut syncs) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let cost = Cost::begin(store);
        let (rate, cpu, synced) = cost.end(store, act(turn));
        rates.push(rate);
        cpus.push(cpu);
        syncs.push(synced);
    }
    let best = rates.iter().copied().fold(0.0, f64::max);
    let (rate, cpu, syncs) = (median(rates), median(cpus), median(syncs));
    println!("  {what}, {depth} in flight: {best:.0}/s at best, {rate:.0}/s in the middle");
    println!("    {cpu:.1} us of processor and {syncs:.3} syncs each");
    note(what, depth, rate, &[]);
    syncs
}

/// Keeps actions in flight: half of each action's life is its admission, half its commit.
fn many_actions(store: &LocalStore, body: &[u8], (depth, turn): (usize, usize)) -> u64 {
    enum Stage {
        Admitting(String, Wait<Admitted>),
        Committing(Wait<effectd_bus::Committed>),
    }
    let begun = Instant::now();
    let mut waiting = VecDeque::new();
    let (mut started, mut done) = (0_u64, 0_u64);
    while begun.elapsed() < ACTIONS_TURN || !waiting.is_empty() {
        while waiting.len() < depth && begun.elapsed() < ACTIONS_TURN {
            let id = format!("many-{depth}-{turn}-{started}");
            started += 1;
            waiting.push_back(Stage::Admitting(id.clone(), store.admit(admission(&id, body))));
        }
        match waiting.pop_front() {
            Some(Stage::Admitting(id, wait)) => {
                let completion = completion(&id, wait.wait().unwrap());
                waiting.push_back(Stage::Committing(store.commit(completion)));
            }
            Some(Stage::Committing(wait)) => {
                wait.wait().unwrap();
                done += 1;
            }
            None => {}
        }
    }
    done
}

/// Keeps actions in flight that come through a topic: published, leased, committed with their ack.
fn delivered_actions(store: &LocalStore, body: &[u8], (depth, turn): (usize, usize)) -> u64 {
    enum Stage {
        Publishing(Wait<Vec<effectd_bus::Published>>),
        Leasing(Wait<effectd_bus::Leased>),
        Committing(Wait<effectd_bus::Committed>),
    }
    let topic = TopicName::new(&format!("REQUESTS-{depth}-{turn}")).unwrap();
    let group = GroupName::new("pipeline").unwrap();
    let begun = Instant::now();
    let mut waiting = VecDeque::new();
    let (mut in_flight, mut published, mut started, mut done) = (0_usize, 0_usize, 0_u64, 0_u64);
    while begun.elapsed() < ACTIONS_TURN || in_flight > 0 {
        while in_flight < depth && begun.elapsed() < ACTIONS_TURN {
            let id = format!("delivered-{depth}-{turn}-{started}");
            let request = admission(&id, body).event;
            started += 1;
            in_flight += 1;
            waiting.push_back(Stage::Publishing(store.publish(&topic, vec![request])));
        }
        match waiting.pop_front() {
            Some(Stage::Publishing(wait)) => {
                wait.wait().unwrap();
                published += 1;
            }
            Some(Stage::Leasing(wait)) => {
                for delivery in wait.wait().unwrap().deliveries {
                    let id = delivery.event.action_id.unwrap();
                    let granted = Admitted::Granted {
                        fence: Fence(0),
                        lease_id: delivery.lease_id,
                        offset: delivery.offset,
                    };
                    let mut completion = completion(id.as_str(), granted);
                    completion.fence = None;
                    waiting.push_back(Stage::Committing(store.commit(completion)));
                }
            }
            Some(Stage::Committing(wait)) => {
                wait.wait().unwrap();
                done += 1;
                in_flight -= 1;
            }
            None => {}
        }
        // What is published by now is leased together, as a consumer does that takes what there is.
        if published > 0 && !matches!(waiting.front(), Some(Stage::Publishing(_))) {
            waiting.push_back(Stage::Leasing(store.lease(
                &topic,
                &group,
                std::mem::take(&mut published),
                Duration::from_secs(60),
            )));
        }
    }
    done
}

/// How long the answer to a question that was answered before takes.
pub(crate) fn lookups(scratch: &Path) {
    let store = open(&scratch.join("actions"), Duration::ZERO);
    let mut latencies = Vec::new();
    for n in 0..2_000 {
        let claim = claim(&format!("many-64-0-{}", n * 7 % 500));
        let begun = Instant::now();
        store.lookup(&claim.asker, claim.key.as_ref().unwrap(), &claim.params_digest, &[]).unwrap();
        latencies.push(begun.elapsed());
    }
    latencies.sort();
    println!(
        "lookup of a key that is done: p50 {:?}, p99 {:?}",
        percentile(&latencies, 50),
        percentile(&latencies, 99)
    );
}
