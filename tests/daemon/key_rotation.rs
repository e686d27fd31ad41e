//! Key rotation while the daemon runs: every earlier signature still verifies.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::approvals::{asking, held};
use crate::harness::{Daemon, Place, Serving, write_note};

fn verified(place: &Place) -> Value {
    let report = place.effectd(&["receipts", "verify", "-o", "json"], None);
    let report = report.json(0);
    assert_eq!(report["ok"], true, "{report}");
    report
}

/// Every change of the key has a receipt, too.
fn rotations(place: &Place) -> usize {
    let listed = ["receipts", "list", "tool:effectd.rotate_key", "--limit", "1000", "-o", "jsonl"];
    place.effectd(&listed, None).stdout().lines().count()
}

fn rotate(daemon: &Daemon) -> Value {
    daemon.ask("POST", "/v1/log/keys", &[], "").json(200)
}

#[test]
fn the_signing_key_is_replaced_while_actions_run() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let first = daemon.get("/v1/log/keys").json(200)[0]["key_id"].clone();
    let over = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let (daemon, over) = (&daemon, &over);
                scope.spawn(move || {
                    let mut done = 0;
                    while !over.load(Ordering::Relaxed) {
                        let name = format!("k-{worker}-{done}");
                        daemon.post("/v1/actions?wait", &write_note(&name, &name, "k")).json(200);
                        done += 1;
                    }
                    done
                })
            })
            .collect();
        let mut last = first.clone();
        for _ in 0..8 {
            let entry = rotate(&daemon);
            assert_eq!(entry["previous"], last, "{entry}");
            assert_eq!(entry["signatures"].as_array().map(Vec::len), Some(2), "{entry}");
            last = entry["key_id"].clone();
            // Heads and amendments are signed meanwhile, too.
            daemon.ask("POST", "/v1/log/head", &[], "").json(200);
        }
        let ran = place.effectd(&["keys", "rotate", "--yes"], None);
        assert_eq!(ran.code(), 0, "{}", ran.stderr());
        assert!(!ran.stderr().contains("no daemon answers"), "{}", ran.stderr());
        assert!(ran.stdout().contains(last.as_str().unwrap()), "{}", ran.stdout());
        over.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap()).sum::<u64>()
    });
    assert!(done > 0);
    let after = daemon.post("/v1/actions?wait", &write_note("after", "after", "k")).json(200);
    let keys = place.effectd(&["keys", "list", "-o", "json"], None).json(0);
    let keys: Vec<&str> =
        keys.as_array().unwrap().iter().map(|key| key["key_id"].as_str().unwrap()).collect();
    assert_eq!(keys.len(), 10);
    assert_eq!(after["receipt"]["signature"]["key_id"], **keys.last().unwrap());
    // Verified by the daemon and, after it stopped, without it.
    assert_eq!(rotations(&place), 9);
    assert_eq!(verified(&place)["receipts"], done + 10);
    assert_eq!(daemon.stop(), 0);
    assert!(place.log().contains("another key signs from now on"), "{}", place.log());
    assert_eq!(verified(&place)["receipts"], done + 10);
    let export = place.effectd(&["receipts", "export"], None).stdout();
    let by: BTreeSet<String> = export
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["signature"]["key_id"].to_string())
        .collect();
    assert!(by.len() >= 2, "{by:?}");
    assert!(!place.state().join("keys/receipt-signing.next").exists());
}

#[test]
fn a_kill_during_key_rotation_keeps_the_key_named_in_the_log() {
    let place = Place::seeded();
    for round in 0..6_u32 {
        let daemon = place.serve(&[]);
        let name = format!("c-{round}");
        daemon.post("/v1/actions?wait", &write_note(&name, &name, "c")).json(200);
        std::thread::scope(|scope| {
            let rotating = scope.spawn(|| {
                // Until it is killed: then there is no answer, or no connection.
                while daemon.answers("POST", "/v1/log/keys") {}
            });
            let wanted = u64::from(round) + 2;
            crate::harness::until("keys change", || {
                let keys = daemon.get("/v1/log/keys");
                keys.status == 200 && keys.json(200).as_array().map_or(0, Vec::len) as u64 >= wanted
            });
            daemon.signal(nix::sys::signal::Signal::SIGKILL);
            rotating.join().unwrap();
        });
        daemon.kill();
    }
    let daemon = place.serve(&[]);
    let after = daemon.post("/v1/actions?wait", &write_note("after", "after", "c")).json(200);
    let keys = daemon.get("/v1/log/keys").json(200);
    let last = &keys.as_array().unwrap().last().unwrap()["key_id"];
    assert_eq!(&after["receipt"]["signature"]["key_id"], last);
    // The killed rotation has a receipt with an unknown outcome, once it was looked for.
    crate::harness::until("all receipts are those of actions and of changes of the key", || {
        verified(&place)["receipts"] == 7 + rotations(&place)
    });
    assert_eq!(daemon.stop(), 0);
    verified(&place);
}

#[test]
fn the_device_key_is_replaced_and_what_is_sealed_stays_readable() {
    let place = asking();
    let key = || std::fs::read(place.state().join("keys/device.key")).unwrap();
    let (first, operation) = (key(), r#"{"do":"rotate_device_key"}"#);
    for round in 0..4 {
        let daemon = place.serve(&[]);
        let name = format!("d-{round}");
        held(&daemon, &name, &name, "d");
        let before = key();
        std::thread::scope(|scope| {
            // Until it is killed: then there is no answer, or no connection.
            let rotating = scope.spawn(|| while daemon.answers_to("POST", "/v1/operations", operation) {});
            crate::harness::until("the key changes", || {
                std::fs::read(place.state().join("keys/device.key")).is_ok_and(|now| now != before)
            });
            daemon.signal(nix::sys::signal::Signal::SIGKILL);
            rotating.join().unwrap();
        });
        daemon.kill();
    }
    assert_ne!(key(), first);
    let daemon = place.serve(&[]);
    assert!(!place.state().join("keys/device.key.next").exists());
    let ran = place.effectd(&["keys", "rotate-device", "--reason", "a disk was lost", "--yes"], None);
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
    let listed =
        ["receipts", "list", "tool:effectd.rotate_device_key status:ok", "--limit", "1", "-o", "json"];
    let receipt = &place.effectd(&listed, None).json(0)[0];
    assert_ne!(receipt["outputs"]["device_key"], receipt["outputs"]["previous"], "{receipt}");
    // What was sealed before each change is opened and carried out.
    let approve = ["approvals", "approve", "--tool", "files.write_text", "--yes"];
    let approved = place.effectd(&approve, None);
    assert_eq!(approved.code(), 0, "{}{}", approved.stdout(), approved.stderr());
    for round in 0..4 {
        assert_eq!(std::fs::read_to_string(place.note(&format!("d-{round}"))).unwrap(), "d");
    }
    assert_eq!(daemon.stop(), 0);
    verified(&place);
}
