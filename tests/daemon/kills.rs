//! Many clients, and a daemon that is killed again and again: what was acknowledged has exactly one receipt.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use effectd::contracts::SystemClock;
use effectd_bus::{ReceiptQuery, Store, embedded};
use serde_json::Value;

use crate::harness::{LONG, Place, write_note};

/// Clients at one time, each a process of its own.
const CLIENTS: usize = 64;
/// Kills while they are at work.
const KILLS: usize = 3;

/// How many decisions are handed over in all. `EFFECTD_TEST_SUBMISSIONS=10000` is the long run.
fn submissions() -> usize {
    let asked = std::env::var("EFFECTD_TEST_SUBMISSIONS").ok();
    asked.map_or(2_560, |number| number.parse().unwrap())
}

#[test]
fn every_acknowledged_submission_has_exactly_one_receipt() {
    let place = Arc::new(Place::new());
    let begun = Instant::now();
    let all = submissions();
    let mut daemon = Some(place.serve(&["--set", "log.level=error"]));
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (place, acknowledged) = (place.clone(), acknowledged.clone());
            std::thread::spawn(move || hand_over(&place, client, share(all, client), &acknowledged))
        })
        .collect();
    for kill in 1..=KILLS {
        // In the middle of it: when this share of all is acknowledged, others are on their way.
        let enough = all * kill / (KILLS + 1);
        while acknowledged.load(Ordering::Relaxed) < enough {
            assert!(begun.elapsed() < LONG * 10, "the clients do not get on");
            std::thread::park_timeout(Duration::from_millis(1));
        }
        daemon.take().unwrap().kill();
        daemon = Some(place.serve(&["--set", "log.level=error"]));
    }
    let told: BTreeSet<String> = clients
        .into_iter()
        .flat_map(|client| client.join().unwrap())
        .collect();
    let handed_over = begun.elapsed();
    assert_eq!(told.len(), all, "every client got every answer in the end");
    let daemon = daemon.unwrap();
    for action in &told {
        let view = daemon
            .get(&format!("/v1/actions/{action}/wait?timeout_ms=600000"))
            .json(200);
        assert_eq!(view["outcome"], "executed", "{action}");
    }
    let ended = begun.elapsed();
    assert_eq!(daemon.stop(), 0);
    let counted = receipts(&place);
    for action in &told {
        assert_eq!(counted.get(action), Some(&1), "{action}");
        assert!(place.note(action).is_file(), "{action}");
    }
    assert_eq!(
        counted.len(),
        told.len(),
        "there are receipts that nobody asked for"
    );
    eprintln!(
        "{} submissions from {CLIENTS} clients, {KILLS} kills: handed over in {handed_over:.1?}, all ended after {ended:.1?}",
        told.len()
    );
}

/// What is left over after equal shares goes to the first ones.
fn share(all: usize, client: usize) -> usize {
    all / CLIENTS + usize::from(client < all % CLIENTS)
}

/// One client: the real command, with a stream of decisions. Answers which were acknowledged.
fn hand_over(place: &Place, client: usize, count: usize, acknowledged: &AtomicUsize) -> Vec<String> {
    let arguments = [
        "submit",
        "--jsonl",
        "--in-flight",
        "2",
        "--patience",
        "600",
        "-o",
        "jsonl",
        "-",
    ];
    let mut child = place
        .command(&arguments)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines: String = (0..count)
        .map(|number| {
            let name = format!("c{client}-{number}");
            format!("{}\n", write_note(&name, &name, "once"))
        })
        .collect();
    let feeder = std::thread::spawn(move || input.write_all(lines.as_bytes()).unwrap());
    let output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut told = Vec::new();
    for line in std::io::BufRead::lines(output) {
        let answer: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let state = answer["state"].as_str().unwrap_or_default();
        assert!(["accepted", "done"].contains(&state), "{answer}");
        told.push(answer["action_id"].as_str().unwrap().to_owned());
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
    feeder.join().unwrap();
    assert!(child.wait().unwrap().success());
    told
}

/// How many receipts each action has, by the store itself.
fn receipts(place: &Place) -> BTreeMap<String, usize> {
    let config = embedded::EmbeddedConfig::new(place.state());
    let store = embedded::open(config, Arc::new(SystemClock)).unwrap();
    let mut query = ReceiptQuery {
        limit: 500,
        ..ReceiptQuery::default()
    };
    let mut counted = BTreeMap::new();
    loop {
        let page = store.receipts(&query).unwrap();
        for receipt in &page.receipts {
            *counted.entry(receipt.action_id.to_string()).or_insert(0) += 1;
        }
        let Some(cursor) = page.cursor else { return counted };
        query.cursor = Some(cursor);
    }
}
