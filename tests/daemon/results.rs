//! Results of tools: the asker gets them again, byte for byte, by every route and after a kill.

use std::io::Read;

use effectd_gateway::limits::RESULTS_BYTES_MAX;
use serde_json::{Value, json};

use crate::harness::{Daemon, Place, Serving, Stall, until, write_note};

/// A place with a file of about 60 KB in which no line occurs twice, and its text.
pub fn with_long_file() -> (Place, String) {
    let place = Place::seeded();
    let text: String = (0..3_000).map(|line| format!("line {line}: \"ä\" \\ € 𝄞\n")).collect();
    assert!((60_000..100_000).contains(&text.len()), "{}", text.len());
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    std::fs::write(place.note("long.txt"), &text).unwrap();
    (place, text)
}

/// A request to read this file.
pub fn read(action: &str) -> Value {
    let mut request = write_note(action, "long.txt", "");
    request["tool_id"] = "files.read_text".into();
    request["params"] = json!({ "path": "workspace/long.txt", "space_id": "shared:household" });
    request
}

fn submit(daemon: &Daemon, action: &str) {
    let accepted = daemon.post("/v1/actions", &read(action));
    assert!(accepted.status < 300, "{accepted:?}");
}

fn shown(daemon: &Daemon, action: &str) -> Value {
    daemon.get(&format!("/v1/actions/{action}")).json(200)
}

#[test]
fn a_result_comes_back_by_every_route_and_after_a_kill() {
    let (place, text) = with_long_file();
    let daemon = place.serve(&[]);
    let keyed = |action: &str| {
        let mut request = read(action);
        request["idempotency_key"] = "long".into();
        request
    };
    assert!(daemon.post("/v1/actions", &keyed("r-1")).status < 300);
    let first = daemon.get("/v1/actions/r-1/wait?timeout_ms=60000").json(200);
    assert_eq!(first["result"]["text"], text);
    assert_eq!(first["receipt"]["kept_result"]["bytes"], first["result"].to_string().len());
    assert!(!first["receipt"].to_string().contains("line 7"), "a receipt has no content");
    let repeats = [
        daemon.post("/v1/actions?wait", &keyed("r-1")).json(200),
        daemon.post("/v1/actions", &keyed("r-1")).json(200),
        // The same key under another id is answered with the earlier receipt.
        daemon.post("/v1/actions?wait", &keyed("r-2")).json(200),
        shown(&daemon, "r-1"),
    ];
    for repeat in repeats {
        assert_eq!((&repeat["already_done"], &repeat["result"]), (&json!(true), &first["result"]));
    }
    daemon.kill();
    let daemon = place.serve(&[]);
    assert_eq!(shown(&daemon, "r-1")["result"], first["result"]);
    let request = keyed("r-1").to_string();
    let by_command = || {
        for arguments in [
            &["status", "r-1"][..],
            &["wait", "r-1"],
            &["submit", "--wait", "-"],
            &["run", "-"],
            &["receipts", "show", "r-1"],
        ] {
            let told = place.effectd(&[arguments, &["-o", "json"]].concat(), Some(&request)).json(0);
            assert_eq!(told["result"], first["result"], "{arguments:?}");
        }
        for arguments in [&["run", "-"][..], &["receipts", "show", "r-1"], &["status", "r-1"]] {
            let told = place.effectd(arguments, Some(&request)).stdout();
            let result = told.lines().find_map(|line| line.strip_prefix("  result    ")).unwrap();
            let result: Value = serde_json::from_str(result).unwrap();
            assert_eq!(result["_truncated"], true, "a terminal gets the beginning: {arguments:?}");
            assert!(text.starts_with(result["text"].as_str().unwrap().split('…').next().unwrap()));
            assert!(told.contains("\n  whole     effectd status r-1 -o json\n"), "{told}");
        }
    };
    by_command();
    assert_eq!(daemon.stop(), 0);
    by_command();
    assert_eq!(place.effectd(&["store", "check"], None).code(), 0);
}

#[test]
fn a_kill_right_after_the_receipt_loses_no_result() {
    let (place, text) = with_long_file();
    let daemon = place.serve_stalling(Stall("recorder.after_commit"), &[]);
    submit(&daemon, "k-1");
    until("the receipt is on disk", || shown(&daemon, "k-1")["state"] == "done");
    daemon.kill();
    let daemon = place.serve(&[]);
    assert_eq!(shown(&daemon, "k-1")["result"]["text"], text);
}

#[test]
fn unread_results_take_a_bounded_part_of_memory() {
    let place = Place::seeded();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    // Each of these bytes is six bytes of JSON.
    std::fs::write(place.note("long.txt"), "\u{1}".repeat(262_144)).unwrap();
    // No client is cut off during this test.
    let daemon = place.serve(&["--set", "gateway.write_time_ms_max=600000"]);
    let first = daemon.post("/v1/actions?wait", &read("m-1")).json(200);
    let bytes = first["receipt"]["kept_result"]["bytes"].as_u64().unwrap();
    assert!(bytes > 1_500_000, "{bytes}");
    let mut unread: Vec<_> = (0..60).map(|_| daemon.send("GET", "/v1/actions/m-1", &[], "")).collect();
    let mut answered = 0;
    for stream in &mut unread {
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        answered += u64::from(&head == b"HTTP/1.1 200");
    }
    assert_eq!(answered, RESULTS_BYTES_MAX as u64 / bytes);
    let full = daemon.get("/v1/actions/m-1");
    full.problem(503, "overloaded");
    assert!(full.head.contains("retry-after: 1"), "{full:?}");
    daemon.post("/v1/actions?wait", &read("m-1")).problem(503, "overloaded");
    // Short results need no share.
    let note = daemon.post("/v1/actions?wait", &write_note("m-2", "m.txt", "m")).json(200);
    assert_eq!(note["result"]["bytes_written"], 1, "{note}");
    drop(unread);
    until("the memory is free again", || daemon.get("/v1/actions/m-1").status == 200);
    assert_eq!(shown(&daemon, "m-1")["result"], first["result"]);
}

#[test]
fn a_tool_that_fails_leaves_no_result() {
    let (place, _) = with_long_file();
    let daemon = place.serve(&[]);
    let mut missing = read("n-1");
    missing["params"]["path"] = "workspace/missing.txt".into();
    let problem: Value = serde_json::from_str(&daemon.post("/v1/actions?wait", &missing).body).unwrap();
    assert_eq!(problem["code"], "file_not_found");
    let view = shown(&daemon, "n-1");
    assert!(view["receipt"].get("kept_result").is_none(), "{view}");
    assert!(view.get("result").is_none() && view.get("result_error").is_none(), "{view}");
    let results = place.state().join("blobs/results");
    assert!(!results.exists(), "nothing is written for nothing");
}
