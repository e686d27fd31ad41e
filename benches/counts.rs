//! The hot path of an action stage by stage, in one process, with a store in memory and without the sandbox's child.
//!
//! `cargo bench --bench counts` prints what each stage takes by the clock. `benches/counts/run` runs the same program under
//! valgrind, counts the instructions of each stage and compares them with those on record: the clock of a busy machine says
//! little, instructions say the same on every run. Between two stages the program calls [`boundary`], by whose name valgrind
//! knows where one ends.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement prints, and stops on errors"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use effectd_actors::claims::key::{key_of, resource_of};
use effectd_actors::{DeviceKey, Identity, RegisteredTool, Registry};
use effectd_bus::{
    Admission, Admitted, Asker, Claim, Completion, GroupName, LocalStore, Lookup, NewBody, NewEvent,
    NewReceipt, Store, TopicName, memory,
};
use effectd_contracts::{
    ActionRequest, Digest, EventId, IdempotencyKey, ManualClock, Principal, Receipt, ReceiptId, Status,
    Timestamp, TraceId, canonical,
};
use effectd_policy::{Facts, Overlay, Policy, Preset, Verdict, evaluate, inspect};
use serde_json::json;

/// Rounds before a stage is counted, and rounds that are.
const FIRST: usize = 20;
const ROUNDS: usize = 200;

/// One stage: its name, and one round of it.
type Stage = (&'static str, fn(&mut Hot, usize));

const STAGES: [Stage; 8] = [
    ("decode", |hot, n| {
        black_box(hot.decode(n));
    }),
    ("validate", |hot, _| {
        black_box(hot.validate(&hot.request));
    }),
    ("gate", |hot, _| hot.gate(&hot.request)),
    ("key and digests", |hot, _| {
        black_box(hot.key(&hot.request));
    }),
    ("look up", |hot, _| hot.look_up(hot.known.as_ref().unwrap())),
    ("admit and commit", |hot, n| {
        hot.store_one(&format!("counted-{n}"), Vec::new());
    }),
    ("receipt", |hot, n| {
        black_box(hot.receipt(n));
    }),
    ("the same again", Hot::again),
];

/// The input of the stages: fixed keys, a manual clock, and one request that was done before.
struct Hot {
    bytes: Vec<u8>,
    request: ActionRequest,
    registry: Registry,
    policy: Policy,
    identity: Identity,
    signer: DeviceKey,
    golden: Receipt,
    store: LocalStore,
    /// The key and the digest of the request, which was done before.
    known: Option<(IdempotencyKey, Digest)>,
}

/// Where one stage ends and the next begins. Never inlined, so that it can be found by its name.
#[inline(never)]
fn boundary(next: &str) {
    black_box(next);
}

fn main() {
    let mut hot = Hot::new();
    for (name, round) in STAGES {
        (0..FIRST).for_each(|n| round(&mut hot, n));
        boundary(name);
        let begun = Instant::now();
        (FIRST..FIRST + ROUNDS).for_each(|n| round(&mut hot, n));
        let took = begun.elapsed() / ROUNDS as u32;
        boundary("between");
        println!("{name:<20} {ROUNDS:>5} rounds {:>9.1} µs each", micros(took));
    }
    hot.store.close().unwrap();
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl Hot {
    fn new() -> Self {
        let request = json!({
            "action_id": "counted", "subject_id": "agent://planner@deviceA", "space_id": "shared:household",
            "tool_id": "files.write_text", "policy_ctx": { "actor": "alice", "device": "phone1" },
            "params": {
                "path": "workspace/notes/counted.txt", "text": "A line of ordinary text. ".repeat(12),
                "space_id": "shared:household",
            },
        });
        let bytes = request.to_string().into_bytes();
        let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
        let golden = include_str!("../contracts/tests/golden/receipt.json");
        let mut hot = Hot {
            request: ActionRequest::parse(&bytes).unwrap(),
            bytes,
            registry: effectd::internal::registry(&[]).unwrap(),
            policy: Policy::compile(&Preset::Household.source(), &Overlay::default()).unwrap(),
            identity: Identity::new(&[7; 32], [8; 32]),
            signer: DeviceKey::new(&[7; 32]),
            golden: serde_json::from_str(golden).unwrap(),
            store: memory::open(clock).unwrap(),
            known: None,
        };
        hot.known = Some(hot.key(&hot.request));
        let body = hot.receipt(0);
        hot.store_one("counted", body);
        hot
    }

    /// From bytes to a request, with its bounds.
    fn decode(&self, _: usize) -> ActionRequest {
        ActionRequest::parse(&self.bytes).unwrap()
    }

    /// The tool, its schema and its own rules.
    fn validate(&self, request: &ActionRequest) -> &Arc<RegisteredTool> {
        let entry = self.registry.find(&request.tool_id).unwrap();
        request.check().unwrap();
        entry.check_params(&request.params).unwrap();
        entry
    }

    /// Look at the parameters, collect the facts, ask the policy, make the record.
    fn gate(&self, request: &ActionRequest) {
        let spec = self.registry.find(&request.tool_id).unwrap().spec();
        let seen = inspect(&request.params, spec, &request.space_id, &self.policy);
        let principal = Principal::new("user://alice").unwrap();
        let at = Timestamp::from_second(1_800_000_000).unwrap();
        let facts = Facts::of(request, spec, &principal, at, &seen.facts);
        let decision = evaluate(&facts, &self.policy);
        assert_eq!(decision.verdict, Verdict::Permit);
        black_box(decision.record(&facts));
    }

    /// What the action is known by.
    fn key(&self, request: &ActionRequest) -> (IdempotencyKey, Digest) {
        let spec = self.registry.find(&request.tool_id).unwrap().spec();
        black_box(self.identity.keyed(&request.digest()));
        black_box(resource_of(spec, &request.space_id, &request.params));
        let params = self.identity.keyed(&request.params_digest());
        (key_of(spec, &request.params, &self.identity).unwrap(), params)
    }

    fn asker(&self) -> Asker {
        Asker {
            space: self.request.space_id.clone(),
            subject: self.request.subject_id.clone(),
            principal: "user://bench".parse().unwrap(),
        }
    }

    /// The lookup of an action that was done before.
    fn look_up(&self, (key, params): &(IdempotencyKey, Digest)) {
        let found = self.store.lookup(&self.asker(), key, params, &[]).unwrap();
        let Lookup::Done { receipt_id } = found else { panic!("{found:?}") };
        black_box(self.store.receipt(&receipt_id).unwrap());
    }

    /// One whole action in the store: sealed decision, delivery, claim and intent in a block; receipt, event, end of the
    /// claim and acknowledgement in another.
    fn store_one(&self, action: &str, body: Vec<u8>) {
        let (mut key, params_digest) = self.known.clone().unwrap();
        if action != "counted" {
            key = IdempotencyKey::new(format!("{key}|{action}")).unwrap();
        }
        let claim = Claim {
            action_id: action.parse().unwrap(),
            action_digest: Digest::of(action.as_bytes()),
            asker: self.asker(),
            key: Some(key),
            params_digest,
            intent: vec![b'i'; 256],
            resources: Vec::new(),
            depends: Vec::new(),
            stale: None,
        };
        let event = |body| NewEvent {
            event_id: EventId::fresh(),
            time: Timestamp::UNIX_EPOCH,
            trace_id: TraceId::new("counted").unwrap(),
            action_id: Some(claim.action_id.clone()),
            body,
        };
        let admission = Admission {
            topic: TopicName::new("ACTION_DECISION").unwrap(),
            group: GroupName::new("pipeline").unwrap(),
            ttl: Duration::from_secs(60),
            event: event(NewBody::Sealed(self.bytes.clone())),
            claim: claim.clone(),
        };
        let admitted = self.store.admit(admission).wait().unwrap();
        let Admitted::Granted { fence, lease_id, .. } = admitted else { panic!("{admitted:?}") };
        let receipt = NewReceipt {
            receipt_id: ReceiptId::new(format!("r-{action}")).unwrap(),
            action_id: claim.action_id.clone(),
            action_digest: claim.action_digest,
            tool_id: self.request.tool_id.clone(),
            subject_id: self.request.subject_id.clone(),
            space_id: claim.asker.space.clone(),
            status: Status::Ok,
            key: claim.key.clone(),
            params_digest: claim.params_digest,
            time: Timestamp::UNIX_EPOCH,
            body: if body.is_empty() { vec![b'r'; 1_500] } else { body },
        };
        let executed = event(NewBody::Clear(vec![b'e'; 300]));
        let completion = Completion {
            receipt,
            events: vec![(TopicName::new("ACTION_EXECUTED").unwrap(), executed)],
            fence: Some(fence),
            leases: vec![lease_id],
            letter: None,
            retire: Vec::new(),
            disturbed: Vec::new(),
            appeared: Vec::new(),
            depends: Vec::new(),
            links: Vec::new(),
        };
        self.store.commit(completion).wait().unwrap();
    }

    /// The canonical form and the signature.
    fn receipt(&self, n: usize) -> Vec<u8> {
        let mut receipt = self.golden.clone();
        receipt.receipt_id = ReceiptId::new(format!("r-{n}")).unwrap();
        self.signer.sign(&mut receipt);
        canonical::of(&receipt).unwrap().into_bytes()
    }

    /// The whole cost of a repeated request, without the messages between the stages.
    fn again(&mut self, n: usize) {
        let request = self.decode(n);
        self.validate(&request);
        self.gate(&request);
        self.look_up(&self.key(&request));
    }
}
