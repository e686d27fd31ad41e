//! What supervisors and dashboards look at.

use crate::harness::{Place, Serving, from_stranger, write_note};

#[test]
fn ready_is_said_when_work_can_be_taken_and_the_watchdog_is_fed() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    assert_eq!(daemon.get("/readyz").json(200)["status"], "ok");
    assert_eq!(daemon.get("/healthz").json(200)["status"], "ok");
    daemon.until_told("WATCHDOG=1");
    daemon.until_told("WATCHDOG=1");
    assert_eq!(daemon.stop(), 0);
    assert!(!place.socket().exists(), "the socket goes with its daemon");
}

#[test]
fn the_figures_of_pipeline_store_and_door_are_on_one_page() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    daemon
        .post("/v1/actions?wait", &write_note("m-1", "m.txt", "m"))
        .json(200);
    daemon
        .post("/v1/actions?wait", &write_note("m-1", "m.txt", "m"))
        .json(200);
    daemon.post("/v1/actions?wait", &from_stranger("m-2"));
    let page = daemon.get("/metrics");
    assert!(page.head.contains("content-type: text/plain"), "{page:?}");
    for line in [
        "effectd_actions_total{outcome=\"executed\",tool_id=\"files.write_text\"} 1",
        "effectd_actions_total{outcome=\"denied_policy\",tool_id=\"files.write_text\"} 1",
        "effectd_action_failures_total{code=\"policy_denied\",tool_id=\"files.write_text\"} 1",
        "effectd_action_duration_seconds_count{tool_id=\"files.write_text\"} 2",
        "effectd_http_requests_total{route=\"/v1/actions\",status=\"200\"} 2",
        "effectd_http_requests_total{route=\"/v1/actions\",status=\"403\"} 1",
        "effectd_backlog_decisions ",
        "effectd_store_syncs_total ",
    ] {
        assert!(page.body.contains(line), "{line} is not in\n{}", page.body);
    }
}

#[test]
fn state_and_socket_are_private() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let mode = |path: std::path::PathBuf| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(place.socket()), 0o600);
    assert_eq!(mode(place.state().join("run")), 0o700);
    assert_eq!(daemon.stop(), 0);
    let other = place.path("shared.sock");
    let daemon = place.serve(&[
        "--socket",
        other.to_str().unwrap(),
        "--set",
        "gateway.socket_mode=0660",
    ]);
    assert_eq!(mode(other.clone()), 0o660);
    let status = place.effectd(&["status", "--socket", other.to_str().unwrap(), "nobody"], None);
    assert_eq!(
        (status.code(), status.stderr().contains("action_unknown")),
        (2, true),
        "{}",
        status.stderr()
    );
    assert_eq!(daemon.stop(), 0);
}
