//! Cancelling an action: before its claim it ends as `cancelled`, once; after that it cannot be cancelled.

use serde_json::Value;

use crate::harness::{Place, Serving, Stall, until, write_note};

/// How many receipts of this action the list has.
fn receipts_of(place: &Place, action: &str) -> usize {
    let all = place.effectd(&["receipts", "list", "--limit", "1000", "-o", "json"], None).json(0);
    let own = all.as_array().unwrap().iter();
    own.filter(|receipt| receipt["action_id"] == action).count()
}

#[test]
fn what_has_not_started_is_withdrawn_once_and_never_runs() {
    let place = Place::seeded();
    let daemon = place.serve_stalling(Stall("idempotency.before_claim"), &[]);
    let accepted = daemon.post("/v1/actions", &write_note("c-1", "c.txt", "c"));
    assert_eq!(accepted.json(202)["state"], "accepted");
    let view = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| daemon.get("/v1/actions/c-1/wait?timeout_ms=60000"));
        let withdrawn = daemon.ask("DELETE", "/v1/actions/c-1", &[], "").json(200);
        assert_eq!((&withdrawn["outcome"], &withdrawn["already_done"]), (&"cancelled".into(), &false.into()));
        assert_eq!(withdrawn["state"], "ended");
        let told = waiter.join().unwrap().problem(409, "cancelled");
        assert_eq!(told["receipt"], withdrawn["receipt"]);
        withdrawn
    });
    let receipt = &view["receipt"];
    assert_eq!(
        (&receipt["status"], &receipt["error"]["code"], &receipt["error"]["phase"], &receipt["effects"]),
        (&"skipped".into(), &"cancelled".into(), &"accept".into(), &"none".into())
    );
    // Again, after an answer that was lost: the same receipt.
    let again = daemon.ask("DELETE", "/v1/actions/c-1", &[], "").json(200);
    assert_eq!((&again["receipt"], &again["already_done"]), (receipt, &false.into()));
    assert_eq!(again["state"], "ended");
    let command = place.effectd(&["cancel", "c-1", "-o", "json"], None);
    assert_eq!(&command.json(0)["receipt"], receipt);
    daemon.kill();

    // It stays cancelled: the decision is still on the bus, and its next delivery finds the receipt.
    let daemon = place.serve(&[]);
    daemon.post("/v1/actions?wait", &write_note("after", "after.txt", "a")).json(200);
    assert_eq!(&daemon.get("/v1/actions/c-1").json(200)["receipt"], receipt);
    until("the bus is empty", || daemon.get("/healthz").json(200)["backlog"] == 0);
    assert_eq!(receipts_of(&place, "c-1"), 1);
    assert!(!place.note("c.txt").exists());
    let asked_again = daemon.post("/v1/actions?wait", &write_note("c-1", "c.txt", "c"));
    assert_eq!(&asked_again.problem(409, "cancelled")["receipt"], receipt);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn who_waits_at_the_door_is_told_that_it_was_withdrawn() {
    let place = Place::seeded();
    let daemon = place.serve_stalling(Stall("idempotency.before_claim"), &[]);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| daemon.post("/v1/actions?wait", &write_note("d-1", "d.txt", "d")));
        until("the action is on its way", || place.log().contains("\"stage\":\"idempotency\""));
        let withdrawn = daemon.ask("DELETE", "/v1/actions/d-1", &[], "").json(200);
        let told = waiter.join().unwrap().problem(409, "cancelled");
        assert_eq!(told["receipt"], withdrawn["receipt"]);
    });
    daemon.kill();
    assert_eq!(receipts_of(&place, "d-1"), 1);
    assert!(!place.note("d.txt").exists());
}

#[test]
fn what_has_begun_cannot_be_withdrawn() {
    let place = Place::seeded();
    let daemon = place.serve_stalling(Stall("executor.begin"), &[]);
    daemon.post("/v1/actions", &write_note("b-1", "b.txt", "b"));
    until("the action has begun", || place.log().contains("\"stage\":\"executor\""));
    daemon.ask("DELETE", "/v1/actions/b-1", &[], "").problem(409, "cannot_cancel");
    let command = place.effectd(&["cancel", "b-1", "-o", "json"], None);
    assert_eq!(command.json(1)["code"], "cannot_cancel");
    daemon.kill();
    // Nor by a command without a daemon; its own receipt has the outcome.
    let command = place.effectd(&["cancel", "b-1", "-o", "json"], None);
    assert_eq!(command.json(1)["code"], "cannot_cancel");
    let daemon = place.serve(&[]);
    let view = daemon.get("/v1/actions/b-1/wait?timeout_ms=60000").json(200);
    assert_eq!(view["outcome"], "executed");
    let ended = daemon.ask("DELETE", "/v1/actions/b-1", &[], "").problem(409, "already_finished");
    assert_eq!(ended["receipt"], view["receipt"]);
    assert_eq!(receipts_of(&place, "b-1"), 1);
}

#[test]
fn without_a_daemon_the_command_withdraws_by_itself() {
    let place = Place::seeded();
    let daemon = place.serve_stalling(Stall("validator.begin"), &[]);
    daemon.post("/v1/actions", &write_note("e-1", "e.txt", "e"));
    daemon.kill();
    let withdrawn = place.effectd(&["cancel", "e-1", "-o", "json"], None);
    assert!(withdrawn.stderr().contains("no daemon answers on"), "{}", withdrawn.stderr());
    let view: Value = withdrawn.json(0);
    assert_eq!(view["outcome"], "cancelled");
    let status = place.effectd(&["status", "e-1", "-o", "json"], None);
    assert_eq!(status.json(3)["receipt"], view["receipt"]);
    let waited = place.effectd(&["wait", "e-1", "-o", "json"], None);
    assert_eq!(waited.json(3)["receipt"], view["receipt"]);
    assert_eq!(receipts_of(&place, "e-1"), 1);
    assert!(!place.note("e.txt").exists());
}

#[test]
fn a_withdrawal_that_is_killed_has_happened_whole_or_not_at_all() {
    let not_begun = "idempotency.before_claim:1";
    for (point, outcome) in
        [("recorder.before_commit:1", "executed"), ("recorder.after_commit:1", "cancelled")]
    {
        let place = Place::seeded();
        let points: &'static str = format!("{not_begun},{point}").leak();
        let daemon = place.serve_stalling(Stall(points), &[]);
        daemon.post("/v1/actions", &write_note("k-1", "k.txt", "k"));
        std::thread::scope(|scope| {
            // It is never answered: the daemon dies with it.
            let asked = scope.spawn(|| daemon.ask("DELETE", "/v1/actions/k-1", &[], ""));
            until("the withdrawal is where it is to be killed", || {
                let written = daemon.get("/v1/actions/k-1").json(200)["state"] == "ended";
                let about_to = place.log().contains("\"stage\":\"recorder\"");
                if outcome == "cancelled" { written } else { about_to }
            });
            daemon.signal(nix::sys::signal::Signal::SIGKILL);
            assert_eq!(asked.join().unwrap().status, 0);
        });
        assert_eq!(daemon.wait(), -1);
        let daemon = place.serve(&[]);
        let ended = daemon.get("/v1/actions/k-1/wait?timeout_ms=60000");
        let ended: Value = serde_json::from_str(&ended.body).unwrap();
        assert_eq!(ended["receipt"]["outcome"], outcome, "{point}");
        assert_eq!(place.note("k.txt").exists(), outcome == "executed", "{point}");
        assert_eq!(receipts_of(&place, "k-1"), 1, "{point}");
    }
}
