//! How the daemon is told to stop, and to look again.

use nix::sys::signal::Signal;

use crate::harness::{Place, from_stranger, until, write_note};

#[test]
fn a_changed_policy_is_taken_over_on_sighup_and_a_faulty_one_is_not() {
    let place = Place::new();
    let daemon = place.serve(&[]);
    daemon
        .post("/v1/actions?wait", &from_stranger("p-1"))
        .problem(403, "policy_denied");
    let file = place.state().join("policy/policy.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, "this is no policy").unwrap();
    daemon.signal(Signal::SIGHUP);
    until("the faulty policy is refused", || {
        place.log().contains("the one in force stays")
    });
    daemon
        .post("/v1/actions?wait", &write_note("p-2", "p.txt", "p"))
        .json(200);
    std::fs::write(&file, good).unwrap();
    std::fs::write(place.state().join("config.toml"), "[gateway]\nbacklog_max = 7\n").unwrap();
    daemon.signal(Signal::SIGHUP);
    until("a setting that needs a restart is named", || {
        place.log().contains("\"keys\":\"gateway.backlog_max\"")
    });
    daemon
        .post("/v1/actions?wait", &write_note("p-3", "p3.txt", "p"))
        .json(200);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn two_daemons_do_not_share_a_state_or_a_socket() {
    let place = Place::new();
    let daemon = place.serve(&[]);
    let second = place.effectd(&["serve", "--state", ".effectd"], None);
    assert_eq!(second.code(), 75, "{}", second.stderr());
    assert!(
        second.stderr().contains("in use by another process"),
        "{}",
        second.stderr()
    );
    let other = Place::new();
    let socket = place.socket();
    let arguments = [
        "serve",
        "--state",
        ".effectd",
        "--socket",
        socket.to_str().unwrap(),
    ];
    let third = other.effectd(&arguments, None);
    assert_eq!(third.code(), 75, "{}", third.stderr());
    assert!(third.stderr().contains("already listens"), "{}", third.stderr());
    daemon
        .post("/v1/actions?wait", &write_note("t-1", "t.txt", "t"))
        .json(200);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn what_was_submitted_before_a_stop_is_done_after_the_next_start() {
    let place = Place::new();
    let daemon = place.serve(&[]);
    for number in 0..50 {
        let reply = daemon.post(
            "/v1/actions",
            &write_note(&format!("w-{number}"), &format!("w-{number}"), "w"),
        );
        assert!([200, 202].contains(&reply.status), "{reply:?}");
    }
    daemon.signal(Signal::SIGINT);
    assert_eq!(daemon.wait(), 0);
    let daemon = place.serve(&[]);
    for number in 0..50 {
        let view = daemon
            .get(&format!("/v1/actions/w-{number}/wait?timeout_ms=60000"))
            .json(200);
        assert_eq!(view["outcome"], "executed");
    }
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_state_without_a_policy_is_not_served() {
    let place = Place::new();
    let refused = place.effectd(&["serve", "--state", "elsewhere"], None);
    assert_eq!(refused.code(), 2, "{}", refused.stderr());
    assert!(
        refused.stderr().contains("`effectd init` makes one"),
        "{}",
        refused.stderr()
    );
    assert!(!place.path("elsewhere").exists());
}
