//! The cost of the receipt log, and of verifying it: `cargo bench --bench receipts`.
//!
//! A store of 100,000 signed receipts with their intents is filled, then its whole log is verified with the program itself, on the
//! store and on an exported bundle: every hash, every signature, order, completeness. Then a few receipts among them are listed.
//! Filters are parsed, and matched with one receipt, as for each receipt that no index rules out.
//! `EFFECTD_BENCH_RECEIPTS` chooses another number.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a measurement prints, and stops on errors"
)]

use std::collections::VecDeque;
use std::hint::black_box;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use effectd_actors::DeviceKey;
use effectd_actors::execution::log;
use effectd_bus::embedded::{self, EmbeddedConfig};
use effectd_bus::{Asker, Claim, ClaimAnswer, Completion, Fence, LocalStore, NewReceipt, Store, Wait};
use effectd_contracts::merkle::{self, Frontier};
use effectd_contracts::{
    Clock, Digest, Filter, IntentEntry, LogEntry, Receipt, ReceiptId, SystemClock, canonical,
};

#[path = "figures/journal.rs"]
mod journal;
#[path = "figures/program.rs"]
mod program;

const RECEIPTS: usize = 100_000;
const IN_FLIGHT: usize = 64;
/// Longest time that checking 100,000 receipts may take.
const SECONDS_MAX: f64 = 10.0;
/// Longest time that a list of a few receipts among them may take, with the start of the program and the opening of the store.
const LIST_SECONDS_MAX: f64 = 1.0;
/// Receipts of another principal and of another group of tools.
const FEW: usize = 14;
/// What the log may cost an action, all threads together.
const LOG_MICROS_MAX: f64 = 20.0;
/// What matching a filter may cost a receipt: 100,000 of them take one second.
const MATCH_MICROS_MAX: f64 = 10.0;
/// What the canonical form and the signature may cost an action.
const SIGN_MICROS_MAX: f64 = 150.0;

fn main() {
    let base = std::env::var_os("EFFECTD_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let many = std::env::var("EFFECTD_BENCH_RECEIPTS").map_or(RECEIPTS, |text| text.parse().unwrap());
    let scratch = tempfile::Builder::new().prefix("effectd-receipts").tempdir_in(&base).unwrap();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("disk: {}; {cores} processors", base.display());
    let state = scratch.path().join("state");
    effectd(&state, &["init"]);
    // The keys are made at the first action, and here there is none.
    std::fs::DirBuilder::new().mode(0o700).create(state.join("keys")).unwrap();
    for (name, byte) in [("receipt-signing.key", 7), ("receipt-digest.key", 8)] {
        let path = state.join("keys").join(name);
        std::fs::write(&path, [byte; 32]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let config = EmbeddedConfig { journal: journal::journal(), ..EmbeddedConfig::new(&state) };
    let store = embedded::open(config, Arc::new(SystemClock)).unwrap();
    let key = DeviceKey::new(&[7; 32]);
    log::enrol(&store, &key, SystemClock.now()).unwrap();
    let begun = Instant::now();
    let sample = fill(&store, &key, many);
    let filling = begun.elapsed().as_secs_f64();
    println!("{many} intents and signed receipts stored in {filling:.1} s");
    let mut missed = cost(&key, &sample) + proofs(&store, many) + filters(&sample);
    store.close().unwrap();
    drop(store);
    missed += verify(&state, many) + lists(&state, many);
    // An exit leaves everything where it is.
    scratch.close().unwrap();
    std::process::exit(i32::from(missed > 0));
}

/// Runs the program itself, and returns its time and its output.
fn effectd(state: &Path, arguments: &[&str]) -> (f64, Vec<u8>) {
    let begun = Instant::now();
    let ran = program::program(env!("CARGO_BIN_EXE_effectd"))
        .args(arguments)
        .arg("--state")
        .arg(state)
        .output()
        .unwrap();
    let took = begun.elapsed().as_secs_f64();
    assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    (took, ran.stdout)
}

fn judge(what: &str, value: f64, holds: bool, bound: &str) -> u32 {
    let word = if holds { "reached" } else { "MISSED" };
    println!("{what}: {value:.3} ({bound}): {word}");
    u32::from(!holds)
}

/// Claims and commits with many in flight; one of the receipts.
fn fill(store: &LocalStore, key: &DeviceKey, many: usize) -> Receipt {
    let golden = include_str!("../contracts/tests/golden/receipt.json");
    let mut receipt: Receipt = serde_json::from_str(golden).unwrap();
    let usual = (receipt.principal.clone(), receipt.tool_id.clone());
    let other = ("user://few".parse().unwrap(), "effectd.pause".parse().unwrap());
    let mut claims: VecDeque<(usize, Wait<ClaimAnswer>)> = VecDeque::new();
    let mut commits = VecDeque::new();
    let mut next = 0;
    while next < many || !claims.is_empty() || !commits.is_empty() {
        while next < many && claims.len() < IN_FLIGHT {
            claims.push_back((next, store.claim(claim(next))));
            next += 1;
        }
        if let Some((nth, answer)) = claims.pop_front() {
            let ClaimAnswer::New { fence } = answer.wait().unwrap() else { panic!("{nth} is not new") };
            receipt.receipt_id = ReceiptId::new(format!("r-{nth}")).unwrap();
            receipt.action_id = format!("a-{nth}").parse().unwrap();
            let is_other = nth % (many / FEW).max(1) == 0;
            (receipt.principal, receipt.tool_id) = if is_other { other.clone() } else { usual.clone() };
            key.sign(&mut receipt);
            commits.push_back(store.commit(completion(&receipt, fence)));
        }
        while commits.len() > IN_FLIGHT || (claims.is_empty() && !commits.is_empty()) {
            commits.pop_front().unwrap().wait().unwrap();
        }
    }
    receipt
}

fn claim(nth: usize) -> Claim {
    Claim {
        action_id: format!("a-{nth}").parse().unwrap(),
        action_digest: Digest::of(b"request"),
        asker: Asker {
            space: "shared:household".parse().unwrap(),
            subject: "agent://planner".parse().unwrap(),
            principal: "user://bench".parse().unwrap(),
        },
        key: None,
        params_digest: Digest::of(b"params"),
        intent: b"intent".to_vec(),
        resources: Vec::new(),
        depends: Vec::new(),
        stale: None,
    }
}

fn completion(receipt: &Receipt, fence: Fence) -> Completion {
    Completion {
        receipt: NewReceipt {
            receipt_id: receipt.receipt_id.clone(),
            action_id: receipt.action_id.clone(),
            action_digest: Digest::of(b"request"),
            tool_id: receipt.tool_id.clone(),
            subject_id: receipt.subject_id.clone(),
            space_id: receipt.space_id.clone(),
            status: receipt.status,
            key: None,
            params_digest: Digest::of(b"params"),
            time: receipt.timing.ended_at,
            body: canonical::of(receipt).unwrap().into_bytes(),
        },
        events: Vec::new(),
        fence: Some(fence),
        leases: Vec::new(),
        letter: None,
        retire: Vec::new(),
        disturbed: Vec::new(),
        appeared: Vec::new(),
        depends: Vec::new(),
        links: Vec::new(),
    }
}

/// What the two entries of an action take: their bytes, their hashes and the tree; and, beside it, the signature.
fn cost(key: &DeviceKey, receipt: &Receipt) -> u32 {
    const ROUNDS: u32 = 20_000;
    let body = canonical::of(receipt).unwrap().into_bytes();
    let mut tree = Frontier::default();
    let each = |begun: Instant| begun.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS);
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        let intent = IntentEntry::new(
            receipt.action_id.clone(),
            &Digest::from_bytes([7; 32]),
            receipt.space_id.clone(),
        );
        tree.push(merkle::leaf(&LogEntry::Intent(intent).bytes()));
        tree.push(merkle::leaf(&body));
    }
    let logged = each(begun);
    std::hint::black_box(tree.root());
    let mut signed = receipt.clone();
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        key.sign(&mut signed);
    }
    let signing = each(begun);
    std::hint::black_box(&signed);
    println!("a receipt has {} bytes", body.len());
    judge("microseconds of the log for one action", logged, logged <= LOG_MICROS_MAX, "at most 20")
        + judge(
            "microseconds to write a receipt canonically and sign it",
            signing,
            signing <= SIGN_MICROS_MAX,
            "at most 150",
        )
}

/// What a filter of several conditions with stars costs: parsing it once, and matching it with each receipt.
fn filters(receipt: &Receipt) -> u32 {
    const ROUNDS: u32 = 200_000;
    let text = "-tool:other.* status:ok,error subject:agent://*plan*@* -code:*_denied,timed_out space:shared:* since:7d";
    let now = SystemClock.now();
    let each = |work: &mut dyn FnMut()| {
        let begun = Instant::now();
        (0..ROUNDS).for_each(|_| work());
        begun.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS)
    };
    let parsing = each(&mut || drop(black_box(Filter::parse(black_box(text), now))));
    println!("{parsing:.3} microseconds to parse a filter of 6 conditions");
    let filter = Filter::parse(text, now).unwrap();
    assert!(filter.matches(receipt), "the first condition that does not hold would end the work");
    let matching = each(&mut || {
        black_box(filter.matches(black_box(receipt)));
    });
    let holds = matching <= MATCH_MICROS_MAX;
    judge("microseconds to match it with one receipt", matching, holds, "at most 10")
}

/// The whole log as people check it: with the program, on the store and on a bundle.
fn verify(state: &Path, many: usize) -> u32 {
    let bundle = state.with_file_name("bundle.jsonl");
    let name = bundle.to_str().unwrap();
    let (live, report) = effectd(state, &["receipts", "verify", "-o", "json"]);
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!((&report["ok"], &report["receipts"]), (&true.into(), &many.into()), "{report}");
    let (export, _) = effectd(state, &["receipts", "export", "--bundle", name]);
    let (offline, report) = effectd(state, &["receipts", "verify", name, "-o", "json"]);
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!((&report["ok"], &report["receipts"]), (&true.into(), &many.into()), "{report}");
    let bytes = std::fs::metadata(&bundle).unwrap().len();
    println!("exported as a bundle of {} MB in {export:.1} s", bytes / 1_000_000);
    for (what, seconds) in [("the store", live), ("the bundle", offline)] {
        println!("{what}: {:.0} receipts verified a second", many as f64 / seconds);
    }
    let bound = SECONDS_MAX * many as f64 / RECEIPTS as f64;
    judge("seconds to verify the store", live, live <= bound, "at most 10 for 100,000 receipts")
        + judge("seconds to verify the bundle", offline, offline <= bound, "at most 10 for 100,000 receipts")
}

/// A planner's own receipts, those of operations, and that of one action.
fn lists(state: &Path, many: usize) -> u32 {
    let action = format!("action:a-{}", many / 2);
    let filters = [("principal:user://few", FEW), ("tool:effectd.*", FEW), (action.as_str(), 1)];
    let listed = filters.map(|(filter, least)| {
        let (took, list) = effectd(state, &["receipts", "list", filter, "-o", "json"]);
        let list: Vec<serde_json::Value> = serde_json::from_slice(&list).unwrap();
        assert!((least..=least + 1).contains(&list.len()), "{filter}: {}", list.len());
        judge(&format!("seconds to list {filter}"), took, took <= LIST_SECONDS_MAX, "at most 1")
    });
    listed.into_iter().sum()
}

fn proofs(store: &LocalStore, many: usize) -> u32 {
    let standing = store.log().unwrap();
    let rounds = 1_000.min(many);
    let begun = Instant::now();
    for nth in 0..rounds {
        let id = ReceiptId::new(format!("r-{}", nth * (many / rounds))).unwrap();
        let index = store.log_place(&id).unwrap().unwrap();
        let proof = store.log_inclusion(index, standing.size).unwrap();
        let entry = &store.log_entries(index, 1).unwrap()[0];
        assert!(merkle::inclusion_holds(index, standing.size, &entry.hash, &proof, &standing.root));
    }
    let micros = begun.elapsed().as_secs_f64() * 1e6 / rounds as f64;
    judge("microseconds to find, prove and check one receipt", micros, micros <= 5_000.0, "at most 5,000")
}
