//! Orderly shutdown: the real command, a slow tool, and signals.

use std::fs;
use std::path::Path;
use std::process::Command;

use effectd::Exit;
use effectd::contracts::{Outcome, Receipt};
use effectd::internal::Config;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::Test;
use crate::harness::{asynchronously, until_blocking};
use crate::place::{PATIENCE, Place, Process, SHORT_LEASE, parsed, request, request_how};
use crate::tools::{NEVER, SAFE};

pub(crate) const TESTS: &[Test] = &[
    ("a_signal_lets_the_running_action_finish", finishes),
    ("a_second_signal_hands_the_action_back_and_leaves_no_child", hastened),
    ("stopping_hands_back_what_does_not_finish_in_its_grace", handed_back),
];

/// `effectd run` on an action whose tool waits; when this returns, the tool is running.
fn waiting(place: &Place, tool: &str) -> Process {
    // A copy of the program, so that its processes differ from those of other tests.
    let program = place.path().join("effectd-under-test");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let file = place.path().join("request.json");
    fs::write(&file, request_how("a", tool, "wait").to_string()).unwrap();
    let marker = place.marker();
    let mut command = Command::new(program);
    command.args(["run", "-o", "json", "--state"]).arg(place.state()).arg(file);
    let process = Process::spawn(command);
    assert_eq!(marker.recv_timeout(PATIENCE).as_deref(), Ok("waiting"));
    assert!(processes_of(place.path()) > 1, "the runtime and its sandbox");
    process
}

/// Processes that run a program below this folder.
fn processes_of(folder: &Path) -> usize {
    let all = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    all.filter(|entry| {
        let program = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        program.starts_with(folder.as_os_str().as_encoded_bytes())
    })
    .count()
}

fn finishes() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let place = Place::new();
        let process = waiting(&place, NEVER);
        process.signal(signal);
        place.open_gate();
        let (code, said) = process.wait();
        assert_eq!(code, i32::from(Exit::Done.code()), "{said:?}");
        let mut answer: Value = serde_json::from_str(&said.join("\n")).unwrap();
        answer.as_object_mut().unwrap().remove("result");
        let receipt: Receipt = serde_json::from_value(answer).unwrap();
        assert_eq!(receipt.outcome, Outcome::Executed);
        assert_eq!(processes_of(place.path()), 0, "a child is left");
    }
}

fn hastened() {
    for (tool, outcome) in [(NEVER, Outcome::Indeterminate), (SAFE, Outcome::Executed)] {
        let place = Place::new();
        let process = waiting(&place, tool);
        // Two signals at once may arrive as one, so more of them are sent until the process has ended.
        let alive = format!("/proc/{}/fd/0", process.id());
        until_blocking("the process ends", || {
            process.signal(Signal::SIGTERM);
            !Path::new(&alive).exists()
        });
        let (code, said) = process.wait();
        assert_eq!(code, i32::from(Exit::TryAgain.code()), "{said:?}");
        assert_eq!(processes_of(place.path()), 0, "a child is left");

        // The next start settles it.
        let gate = place.workspace().join(crate::tools::GATE);
        fs::remove_file(&gate).unwrap();
        fs::write(&gate, "open").unwrap();
        let marker = place.marker();
        let ended = place.run("wait", &[request_how("a", tool, "wait")]);
        drop(marker);
        ended.report.all_settled();
        assert_eq!(ended.report.the_receipt("a").outcome, outcome);
    }
}

/// `Runtime::stop` with more in flight than can finish.
fn handed_back() {
    let place = Place::new();
    let names: Vec<String> = (0..20).map(|n| format!("a-{n}")).collect();
    asynchronously(async {
        let change = |config: &mut Config| {
            config.stop_grace = std::time::Duration::ZERO;
            config.lease_ttl = SHORT_LEASE;
        };
        let runtime = place.runtime(change).await;
        let marker = place.marker();
        for name in &names {
            runtime.submit(parsed(&request_how(name, SAFE, "wait"))).await.unwrap();
        }
        assert_eq!(marker.recv_timeout(PATIENCE).as_deref(), Ok("waiting"));
        assert!(!runtime.stop().await, "nothing could finish");
        // The pipe is open in this process, too: any other process that has it open is a child that survived.
    });
    let gate = place.workspace().join(crate::tools::GATE);
    fs::remove_file(&gate).unwrap();
    fs::write(&gate, "open").unwrap();
    let requests: Vec<_> = names.iter().map(|name| request_how(name, SAFE, "wait")).collect();
    let marker = place.marker();
    let ended = place.run("wait", &requests);
    drop(marker);
    ended.report.all_settled();
    assert_eq!(ended.report.receipts.len(), names.len());
    for name in &names {
        assert_eq!(ended.report.the_receipt(name).outcome, Outcome::Executed);
    }
    let after = place.run("exec", &[request("after", NEVER)]);
    assert_eq!(after.report.the_receipt("after").outcome, Outcome::Executed);
}
