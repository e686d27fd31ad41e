//! Signals: stop, and reload.

use nix::sys::signal::Signal;

use crate::harness::{Place, Reply, Serving, Stall, from_stranger, until, write_note};

#[test]
fn sighup_loads_a_changed_policy_and_refuses_a_faulty_one() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    daemon.post("/v1/actions?wait", &from_stranger("p-1")).problem(403, "policy_denied");
    let file = place.state().join("policy/policy.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, "this is no policy").unwrap();
    daemon.signal(Signal::SIGHUP);
    until("the faulty policy is refused", || place.log().contains("the current one stays"));
    daemon.post("/v1/actions?wait", &write_note("p-2", "p.txt", "p")).json(200);
    std::fs::write(&file, good).unwrap();
    std::fs::write(place.state().join("config.toml"), "[gateway]\nbacklog_max = 0\n").unwrap();
    daemon.signal(Signal::SIGHUP);
    until("faulty settings are refused", || place.log().contains("the current ones stay"));
    std::fs::write(
        place.state().join("config.toml"),
        "[gateway]\nbacklog_max = 7\nconnections_max = 9\nconnections_per_user_max = 2\n[pipeline]\nin_flight_max = 3\n",
    )
    .unwrap();
    daemon.signal(Signal::SIGHUP);
    let told = |words: &str, keys: &str| {
        let line = |line: &str| line.contains(words) && line.contains(&format!("\"keys\":\"{keys}\""));
        until(words, || place.log().lines().any(line));
    };
    told(
        "these settings are in force now",
        "gateway.backlog_max, gateway.connections_max, gateway.connections_per_user_max",
    );
    told("they need a restart to take effect", "pipeline.in_flight_max");
    let held = [daemon.connect(), daemon.connect()];
    daemon.get("/healthz").problem(503, "overloaded");
    drop(held);
    until("the places are free again", || daemon.get("/healthz").status == 200);
    daemon.post("/v1/actions?wait", &write_note("p-3", "p3.txt", "p")).json(200);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn two_daemons_do_not_share_a_state_or_a_socket() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let second = place.effectd(&["serve", "--state", ".effectd"], None);
    assert_eq!(second.code(), 75, "{}", second.stderr());
    assert!(second.stderr().contains("in use by another process"), "{}", second.stderr());
    let other = Place::seeded();
    let socket = place.socket();
    let arguments = ["serve", "--state", ".effectd", "--socket", socket.to_str().unwrap()];
    let third = other.effectd(&arguments, None);
    assert_eq!(third.code(), 75, "{}", third.stderr());
    assert!(third.stderr().contains("already listens"), "{}", third.stderr());
    daemon.post("/v1/actions?wait", &write_note("t-1", "t.txt", "t")).json(200);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn what_was_submitted_before_a_stop_runs_after_the_next_start() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    for number in 0..50 {
        let reply =
            daemon.post("/v1/actions", &write_note(&format!("w-{number}"), &format!("w-{number}"), "w"));
        assert!([200, 202].contains(&reply.status), "{reply:?}");
    }
    daemon.signal(Signal::SIGINT);
    assert_eq!(daemon.wait(), 0);
    let daemon = place.serve(&[]);
    for number in 0..50 {
        let view = daemon.get(&format!("/v1/actions/w-{number}/wait?timeout_ms=60000")).json(200);
        assert_eq!(view["outcome"], "executed");
    }
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn an_orderly_stop_warns_of_nothing() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    daemon.post("/v1/actions?wait", &write_note("o-1", "o.txt", "o")).json(200);
    assert_eq!(daemon.stop(), 0);
    let log = place.log();
    assert!(log.contains("\"stopped\""), "{log}");
    for level in ["WARN", "ERROR"] {
        assert!(!log.contains(&format!("\"level\":\"{level}\"")), "{log}");
    }
}

#[test]
fn who_waits_is_answered_when_the_daemon_stops() {
    let place = Place::seeded();
    let daemon = place.serve_stalling(Stall("executor.begin"), &["--set", "runtime.stop_grace_ms=200"]);
    daemon.post("/v1/actions", &write_note("z-1", "z1.txt", "z"));
    // The one that is seen to begin is asked for last: a connection that has said nothing yet would only be closed.
    let waits = daemon.send("GET", "/v1/actions/z-1/wait", &[], "");
    let follows = daemon.send("GET", "/v1/receipts?wait_ms=60000", &[], "");
    let note = write_note("z-2", "z2.txt", "z").to_string();
    let asks = daemon.send("POST", "/v1/actions?wait", &[], &note);
    until("both have begun, and all three wait", || {
        place.log().matches("\"stage\":\"executor\"").count() >= 2
            && daemon.get("/metrics").body.contains("effectd_http_connections 4")
    });
    daemon.signal(Signal::SIGTERM);
    for reply in [waits, asks].map(Reply::read) {
        let told = reply.problem(503, "shutting_down");
        assert!(reply.head.contains("retry-after: 1"), "{reply:?}");
        assert_eq!(told["retryable"], true);
    }
    let followed = Reply::read(follows).json(200);
    assert_eq!(followed["receipts"], serde_json::json!([]));
    assert_eq!(daemon.wait(), 0);
    // Nothing is lost.
    let daemon = place.serve(&[]);
    for action in ["z-1", "z-2"] {
        let view = daemon.get(&format!("/v1/actions/{action}/wait?timeout_ms=60000")).json(200);
        assert_eq!(view["outcome"], "executed");
    }
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_state_without_a_policy_is_not_served() {
    let place = Place::seeded();
    let refused = place.effectd(&["serve", "--state", "elsewhere"], None);
    assert_eq!(refused.code(), 2, "{}", refused.stderr());
    assert!(refused.stderr().contains("create it with `effectd init"), "{}", refused.stderr());
    assert!(!place.path("elsewhere").exists());
}
