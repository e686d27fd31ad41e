//! A daemon that is killed again and again under many clients: every acknowledged action has exactly one receipt.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use effectd::contracts::{ActionId, ActionRequest, SystemClock};
use effectd_bus::{ReceiptQuery, Store, embedded};
use effectd_gateway::client::{ActionReply, Client};
use effectd_gateway::views::State;
use serde_json::Value;

use crate::harness::{LONG, Place, Serving, write_note};

const CLIENTS: usize = 64;
/// How many of them are the real command in another process; the others are the same client code in this process, each
/// with a connection of its own.
const COMMANDS: usize = 8;
const KILLS: usize = 3;
/// How long all of it may take, on a machine with a slow disk.
const PATIENCE: Duration = Duration::from_secs(1_200);
/// The pause before a client asks again, when the daemon is gone or overloaded.
const PAUSE: Duration = Duration::from_millis(20);

const SUBMISSIONS: usize = 10_000;

/// One user sends all of it, as fast as possible.
const UNLIMITED: &[&str] = &[
    "--set",
    "log.level=error",
    "--set",
    "control.principal_rate_max=0",
    "--set",
    "control.subject_rate_max=0",
    "--set",
    "control.space_rate_max=0",
    "--set",
    "control.tool_rate_max=0",
];

#[test]
fn every_acknowledged_submission_has_exactly_one_receipt() {
    let place = Arc::new(Place::seeded());
    let begun = Instant::now();
    let mut daemon = Some(place.serve(UNLIMITED));
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let runtime = Arc::new(runtime);
    let clients = {
        let (runtime, place, acknowledged) = (runtime.clone(), place.clone(), acknowledged.clone());
        std::thread::spawn(move || runtime.block_on(everybody(&place, &acknowledged)))
    };
    for kill in 1..=KILLS {
        // Kills in the middle: this share is acknowledged, and others are in flight.
        let enough = SUBMISSIONS * kill / (KILLS + 1);
        while acknowledged.load(Ordering::Relaxed) < enough {
            assert!(begun.elapsed() < PATIENCE, "the clients do not get on");
            assert!(!clients.is_finished(), "the clients have given up");
            std::thread::park_timeout(Duration::from_millis(1));
        }
        daemon.take().unwrap().kill();
        daemon = Some(place.serve(UNLIMITED));
    }
    let told = clients.join().unwrap();
    let handed_over = begun.elapsed();
    assert_eq!(told.len(), SUBMISSIONS, "every client got every answer in the end");
    let daemon = daemon.unwrap();
    runtime.block_on(all_end(&place, &told));
    let ended = begun.elapsed();
    assert_eq!(daemon.stop(), 0);
    let stopped = begun.elapsed();
    let counted = receipts(&place);
    for action in &told {
        assert_eq!(counted.get(action), Some(&1), "{action}");
        assert!(place.note(action).is_file(), "{action}");
    }
    assert_eq!(counted.len(), told.len(), "there are receipts that nobody asked for");
    eprintln!(
        "{} submissions from {CLIENTS} clients, {KILLS} kills: handed over in {handed_over:.1?}, all ended after {ended:.1?}, \
         stopped after {stopped:.1?}, counted after {:.1?}",
        told.len(),
        begun.elapsed()
    );
}

/// The remainder of equal shares goes to the first clients.
fn share(client: usize) -> usize {
    SUBMISSIONS / CLIENTS + usize::from(client < SUBMISSIONS % CLIENTS)
}

fn decisions(client: usize) -> impl Iterator<Item = Value> {
    (0..share(client)).map(move |number| {
        let name = format!("c{client}-{number}");
        write_note(&name, &name, "once")
    })
}

/// Runs all clients, and returns the acknowledged actions.
async fn everybody(place: &Arc<Place>, acknowledged: &Arc<AtomicUsize>) -> BTreeSet<String> {
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let (place, acknowledged) = (place.clone(), acknowledged.clone());
        if client < COMMANDS {
            clients.spawn_blocking(move || by_command(&place, client, &acknowledged));
        } else {
            clients.spawn(async move { by_client(&place, client, &acknowledged).await });
        }
    }
    clients.join_all().await.into_iter().flatten().collect()
}

/// One client: the real command, with a stream of decisions.
fn by_command(place: &Place, client: usize, acknowledged: &AtomicUsize) -> Vec<String> {
    let arguments = ["submit", "--jsonl", "--in-flight", "2", "--patience", "1200", "-o", "jsonl", "-"];
    let mut child = place.command(&arguments).stderr(std::process::Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines: String = decisions(client).map(|request| format!("{request}\n")).collect();
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

/// One client, which reconnects whenever the daemon dies.
async fn by_client(place: &Place, client: usize, acknowledged: &AtomicUsize) -> Vec<String> {
    let begun = Instant::now();
    let mut connection = Client::new(place.socket());
    let mut told = Vec::new();
    for request in decisions(client) {
        let request: ActionRequest = serde_json::from_value(request).unwrap();
        loop {
            match connection.submit(&request, None).await {
                Ok(ActionReply::View(view)) => break told.push(view.action_id.to_string()),
                Ok(ActionReply::Problem(problem)) => assert!(problem.retryable, "{problem:?}"),
                Err(error) => assert!(error.may_retry(), "{error}"),
            }
            assert!(begun.elapsed() < PATIENCE, "the daemon does not come back");
            tokio::time::sleep(PAUSE).await;
        }
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
    told
}

async fn all_end(place: &Place, actions: &BTreeSet<String>) {
    let mut connection = Client::new(place.socket());
    for action in actions {
        let id = ActionId::new(action.clone()).unwrap();
        match connection.wait(&id, LONG * 5).await {
            Ok(ActionReply::View(view)) => {
                assert_eq!(view.state, State::Done, "{action}");
                let outcome = view.outcome.map(|outcome| serde_json::to_value(outcome).unwrap());
                assert_eq!(outcome, Some("executed".into()), "{action}");
            }
            other => panic!("{action}: {other:?}"),
        }
    }
}

/// How many receipts each action has in the store.
fn receipts(place: &Place) -> BTreeMap<String, usize> {
    let config = embedded::EmbeddedConfig::new(place.state());
    let store = embedded::open(config, Arc::new(SystemClock)).unwrap();
    let mut query = ReceiptQuery { limit: 500, ..ReceiptQuery::default() };
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
