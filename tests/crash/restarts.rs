//! Restarts of the actors under the supervisor: one that dies is started again; if it keeps dying, the process stops with an exit code.

use std::process::Command;

use effectd::Exit;
use effectd::contracts::Outcome;
use effectd::internal::Runtime;
use effectd_actors::Answer;
use effectd_actors::failpoint::{Fault, Trap, arm};
use effectd_actors::limits::RESTARTS_MAX;

use crate::Test;
use crate::child::Report;
use crate::harness::{asynchronously, until};
use crate::place::{PATIENCE, Place, Process, SHORT_LEASE, parsed, request, request_how};
use crate::tools::SAFE;

pub(crate) const TESTS: &[Test] = &[
    ("intake_and_sweeper_are_restarted_and_lose_nothing", restarted),
    ("a_stage_that_dies_is_restarted_and_loses_nothing", stages),
    ("a_stage_that_keeps_dying_stops_the_pipeline", stages_give_up),
    ("an_actor_that_keeps_dying_stops_the_process", gives_up),
];

fn trap(point: &str, action: Option<&str>) {
    arm(Trap {
        point: point.to_owned(),
        action: action.map(|action| action.parse().unwrap()),
        nth: 1,
        times: 1,
        fault: Fault::Panic,
    });
}

fn restarted() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|config| config.lease_ttl = SHORT_LEASE).await;
        trap("intake.after_lease", Some("intake-victim"));
        let ticket = runtime.submit(parsed(&request("intake-victim", SAFE))).await.unwrap();
        let answer = tokio::time::timeout(PATIENCE, ticket.receipt()).await.unwrap().unwrap();
        assert!(matches!(answer, Answer::Done(done) if done.receipt.outcome == Outcome::Executed));

        // After the sweeper died, its successor sends the answer that the recorder could not send.
        trap("sweeper.begin", None);
        trap("recorder.after_commit", Some("sweeper-victim"));
        let asked = runtime.exec(parsed(&request("sweeper-victim", SAFE)));
        let answer = tokio::time::timeout(PATIENCE, asked).await.unwrap();
        assert!(matches!(answer, Answer::Done(done) if done.receipt.outcome == Outcome::Executed));
        assert_eq!(names(&runtime).await, ACTORS);
        let report = Report::of(&runtime).await;
        report.all_settled();
        assert_eq!(report.receipts.len(), 2);
        assert!(runtime.stop().await);
    });
}

const ACTORS: [&str; 8] =
    ["validator", "gate", "hold", "idempotency", "executor", "recorder", "intake", "sweeper"];

async fn names(runtime: &Runtime) -> Vec<&'static str> {
    let tree = runtime.pipeline().tree().await;
    tree.iter().map(|node| node.name).collect()
}

/// Each stage is killed while an action is inside of it, and again while nothing is.
fn stages() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|config| config.lease_ttl = SHORT_LEASE).await;
        let points = [
            ("validator", "validator.begin"),
            ("gate", "gate.begin"),
            ("idempotency", "idempotency.begin"),
            ("executor", "executor.begin"),
            ("recorder", "recorder.begin"),
        ];
        for (stage, point) in points {
            arm(Trap {
                point: point.to_owned(),
                action: Some(stage.parse().unwrap()),
                nth: 1,
                times: 1,
                fault: Fault::Stall,
            });
            let ticket = runtime.submit(parsed(&request(stage, SAFE))).await.unwrap();
            let busy = &runtime.pipeline().services().metrics.stage_busy;
            until("the stage works on it", || busy.with_label_values(&[stage]).get() == 1).await;
            runtime.pipeline().kill(stage);
            let answer = tokio::time::timeout(PATIENCE, ticket.receipt()).await.unwrap().unwrap();
            assert!(
                matches!(answer, Answer::Done(done) if done.receipt.outcome == Outcome::Executed),
                "{stage}"
            );
            let tree = runtime.pipeline().tree().await;
            let node = tree.iter().find(|node| node.name == stage).unwrap();
            assert_eq!(node.restarts, 1, "{tree:?}");
            assert!(node.workers > 0, "{tree:?}");
        }
        runtime.pipeline().kill("hold");
        assert_eq!(names(&runtime).await, ACTORS);
        let report = Report::of(&runtime).await;
        report.all_settled();
        assert_eq!(report.receipts.len(), points.len());
        assert!(runtime.stop().await);
    });
}

fn stages_give_up() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|_| {}).await;
        for times in 1..=RESTARTS_MAX {
            runtime.pipeline().kill("gate");
            restarts(&runtime, "gate", times).await;
        }
        assert_eq!(runtime.pipeline().broken(), None);
        runtime.pipeline().kill("gate");
        let why = tokio::time::timeout(PATIENCE, runtime.pipeline().fatal()).await.unwrap();
        assert!(why.starts_with("gate died 6 times"), "{why}");
    });
}

async fn restarts(runtime: &Runtime, name: &str, times: usize) {
    let restarted = async {
        loop {
            let tree = runtime.pipeline().tree().await;
            if tree.iter().any(|node| node.name == name && node.restarts == times) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, restarted).await.unwrap();
}

fn gives_up() {
    let place = Place::new();
    let asked = request_how("a", SAFE, "wait");
    let file = place.path().join("request.json");
    std::fs::write(&file, asked.to_string()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["run", "-o", "json", "--state"])
        .arg(place.state())
        .arg(&file)
        .env("EFFECTD_FAILPOINT", "intake.before_lease:1")
        .env("EFFECTD_FAILPOINT_FAULT", "panic");
    let (code, said) = Process::spawn(command).wait();
    assert_eq!(code, i32::from(Exit::Broken.code()), "{said:?}");

    // The next start carries on with the action, if it was accepted.
    let gate = place.workspace().join(crate::tools::GATE);
    std::fs::remove_file(&gate).unwrap();
    std::fs::write(&gate, "open").unwrap();
    let marker = place.marker();
    let ended = place.run("exec", &[asked]);
    ended.report.all_settled();
    assert_eq!(ended.report.the_receipt("a").outcome, Outcome::Executed);
    drop(marker);
}
