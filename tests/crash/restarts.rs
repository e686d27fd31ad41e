//! The two plain actors are restarted when they die; when one keeps dying, the process stops with its own exit code.

use std::process::Command;

use effectd::contracts::Outcome;
use effectd::{Answer, Exit};
use effectd_actors::failpoint::{Fault, Trap, arm};

use crate::Test;
use crate::child::Report;
use crate::harness::asynchronously;
use crate::place::{PATIENCE, Place, Process, SHORT_LEASE, parsed, request, request_how};
use crate::tools::SAFE;

pub(crate) const TESTS: &[Test] = &[
    ("intake_and_sweeper_are_restarted_and_lose_nothing", restarted),
    (
        "an_actor_that_keeps_dying_stops_the_process_with_its_own_code",
        gives_up,
    ),
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
        let ticket = runtime
            .submit(parsed(&request("intake-victim", SAFE)))
            .await
            .unwrap();
        let answer = tokio::time::timeout(PATIENCE, ticket.receipt())
            .await
            .unwrap()
            .unwrap();
        assert!(matches!(answer, Answer::Done(done) if done.receipt.outcome == Outcome::Executed));

        // Once the sweeper has died, an answer that the recorder could not give is given by its successor.
        trap("sweeper.begin", None);
        trap("recorder.after_commit", Some("sweeper-victim"));
        let asked = runtime.exec(parsed(&request("sweeper-victim", SAFE)));
        let answer = tokio::time::timeout(PATIENCE, asked).await.unwrap();
        assert!(matches!(answer, Answer::Done(done) if done.receipt.outcome == Outcome::Executed));
        assert_eq!(
            runtime.pipeline().tree().await,
            [
                "validator",
                "gate",
                "hold",
                "idempotency",
                "executor",
                "recorder",
                "intake",
                "sweeper"
            ]
        );
        let report = Report::of(&runtime).await;
        report.all_settled();
        assert_eq!(report.receipts.len(), 2);
        assert!(runtime.stop().await);
    });
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

    // The next start goes on with what was accepted, if it was.
    let gate = place.workspace().join(crate::tools::GATE);
    std::fs::remove_file(&gate).unwrap();
    std::fs::write(&gate, "open").unwrap();
    let marker = place.marker();
    let ended = place.run("exec", &[asked]);
    ended.report.all_settled();
    assert_eq!(ended.report.the_receipt("a").outcome, Outcome::Executed);
    drop(marker);
}
