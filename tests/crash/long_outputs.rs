//! Long outputs of tools: stored sealed and found by their receipt, with and without a daemon.

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};

use effectd::contracts::ToolId;
use effectd_actors::control::switches::{Off, Switches};
use serde_json::Value;

use crate::Test;
use crate::harness::{asynchronously, until_blocking};
use crate::place::{Order, PATIENCE, Place, request_how};
use crate::tools::{AT_LENGTH, NEVER, SAFE};

pub(crate) const TESTS: &[Test] = &[
    ("what_a_tool_says_at_length_is_found_by_its_receipt", found_by_its_receipt),
    ("a_kill_during_long_output_leaves_only_drafts_to_sweep", killed_while_it_speaks),
];

/// How many long outputs are stored, and how many are drafts.
fn kept(place: &Place) -> (usize, usize) {
    let mut found = (0, 0);
    let spaces = fs::read_dir(place.state().join("blobs/artifacts"));
    for space in spaces.into_iter().flatten().flatten() {
        for file in fs::read_dir(space.path()).unwrap().flatten() {
            if file.file_name().to_string_lossy().starts_with("draft-") {
                found.1 += 1;
            } else {
                found.0 += 1;
            }
        }
    }
    found
}

fn killed_while_it_speaks() {
    let place = Place::new();
    place.stop_tools(Some("at_length"));
    let request = request_how("a", SAFE, "at length");
    let marker = place.marker();
    let process = place.start(&Order { mode: "exec", requests: vec![request.clone()], stop_at: None });
    assert_eq!(marker.recv_timeout(PATIENCE).unwrap(), "stopped");
    until_blocking("the draft is written", || kept(&place) == (0, 1));
    process.kill();
    assert_eq!(kept(&place), (0, 1), "nothing has a name");
    place.stop_tools(None);
    let ended = place.run("wait", &[request]);
    assert_eq!(ended.report.receipts.len(), 1, "it is taken up again: {ended:?}");
    let place_now = kept(&place);
    assert_eq!(place_now, (1, 0), "kept once, and the draft is gone");
}

fn effectd(place: &Place, arguments: &[&str]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let command = command.args(arguments).arg("--state").arg(place.state());
    command.stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A daemon with the tools of these tests; killed when it is dropped.
struct Daemon(std::process::Child);

impl Daemon {
    fn start(place: &Place) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let command = command.arg("serve").arg("--state").arg(place.state());
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let socket = place.state().join("run/effectd.sock");
        until_blocking("the daemon listens", || {
            assert!(child.try_wait().unwrap().is_none(), "the daemon ended");
            UnixStream::connect(&socket).is_ok()
        });
        Self(child)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn found_by_its_receipt() {
    let place = Place::new();
    asynchronously(async {
        let runtime = place.runtime(|_| ()).await;
        let off: ToolId = NEVER.parse().unwrap();
        let switches = Switches::new(&**runtime.store());
        switches.disable_tool(&off, Off(None)).unwrap().await.unwrap();
        assert!(runtime.stop().await);
    });
    let daemon = Daemon::start(&place);
    let file = place.path().join("request.json");
    fs::write(&file, request_how("a", SAFE, "at length").to_string()).unwrap();
    let ran = effectd(&place, &["run", "-o", "json", file.to_str().unwrap()]);
    let answer: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{}", said(&ran)));
    let receipt = answer["receipt"].as_object().map_or(&answer, |_| &answer["receipt"]);
    let (id, names) = (receipt["receipt_id"].as_str().unwrap(), &receipt["outputs"]["artifact_ids"]);
    let name = names[0].as_str().unwrap();
    let whole = AT_LENGTH.repeat(10_000);

    // The daemon has the store open, so every answer comes from it.
    let tools = effectd(&place, &["tools", "list", "-o", "json"]);
    let tools: Value = serde_json::from_slice(&tools.stdout).unwrap();
    let disabled = |id: &str| {
        tools.as_array().unwrap().iter().find(|tool| tool["tool_id"] == id).unwrap()["disabled"].clone()
    };
    assert_eq!((disabled(SAFE), disabled(NEVER)), (Value::from(false), Value::from(true)));
    let shown = effectd(&place, &["tools", "show", NEVER]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("disabled it"), "{}", said(&shown));
    let none = effectd(&place, &["tools", "show", "test.nothing"]);
    assert_eq!(none.status.code(), Some(2), "{}", said(&none));
    for arguments in [&["artifacts", "get", id][..], &["artifacts", "get", id, name]] {
        let got = effectd(&place, arguments);
        assert!(got.stdout == whole.as_bytes(), "{}", said(&got));
        assert!(got.status.success() && !said(&got).contains("no daemon answers"), "{}", said(&got));
    }
    let other = effectd(&place, &["artifacts", "get", id, &"0".repeat(64)]);
    assert!(!other.status.success() && said(&other).contains("artifact_unknown"), "{}", said(&other));
    drop(daemon);

    let listed = effectd(&place, &["artifacts", "list", id, "-o", "json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed[0]["artifact_id"], name);
    let copy = place.path().join("copy");
    let into = ["artifacts", "get", id, "--file", copy.to_str().unwrap()];
    let got = effectd(&place, &into);
    assert!(got.status.success() && said(&got).contains("no daemon answers"), "{}", said(&got));
    assert!(fs::read(&copy).unwrap() == whole.as_bytes());
    assert!(!effectd(&place, &into).status.success(), "another file is not overwritten");
    assert!(!effectd(&place, &["artifacts", "get", id, "../x"]).status.success());
}
