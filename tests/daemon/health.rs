//! Health and metrics, as supervisors and dashboards read them.

use crate::harness::{Place, Serving, from_stranger, root, write_note};

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
    daemon.post("/v1/actions?wait", &write_note("m-1", "m.txt", "m")).json(200);
    daemon.post("/v1/actions?wait", &write_note("m-1", "m.txt", "m")).json(200);
    daemon.post("/v1/actions?wait", &from_stranger("m-2"));
    let page = daemon.get("/metrics");
    assert!(page.head.contains("content-type: text/plain"), "{page:?}");
    for line in [
        "effectd_actions_total{outcome=\"executed\",tool_id=\"files.write_text\"} 1",
        "effectd_actions_total{outcome=\"denied_policy\",tool_id=\"files.write_text\"} 1",
        "effectd_action_failures_total{code=\"policy_denied\",tool_id=\"files.write_text\"} 1",
        "effectd_action_duration_seconds_count{tool_id=\"files.write_text\"} 2",
        "effectd_action_queued_seconds_count{tool_id=\"files.write_text\"} 2",
        "effectd_action_exec_seconds_count{tool_id=\"files.write_text\"} 1",
        "effectd_action_duration_seconds_bucket{tool_id=\"files.write_text\",le=\"+Inf\"} 2",
        "effectd_http_requests_total{route=\"/v1/actions\",status=\"200\"} 2",
        "effectd_http_requests_total{route=\"/v1/actions\",status=\"403\"} 1",
        "effectd_backlog_decisions ",
        "effectd_store_syncs_total ",
    ] {
        assert!(page.body.contains(line), "{line} is not in\n{}", page.body);
    }
    // The cost equals that of the receipt, in base units.
    let receipts = place.effectd(&["receipts", "list", "status:ok", "-o", "json"], None).json(0);
    let cost = |name: &str| receipts[0]["cost"][name].as_f64().unwrap();
    for (name, told) in [
        ("effectd_action_cpu_seconds_total", cost("cpu_ms") / 1_000.0),
        ("effectd_action_energy_joules_total", cost("energy_mwh") * 3.6),
        ("effectd_action_written_bytes_total", cost("bytes_written")),
    ] {
        let series = format!("{name}{{tool_id=\"files.write_text\"}} ");
        let line = page.body.lines().find_map(|line| line.strip_prefix(&series));
        let value: f64 = line.unwrap_or_else(|| panic!("no {series}")).parse().unwrap();
        assert!((value - told).abs() < 1e-9, "{name}: {value} and {told}");
    }
    // Every metric is documented.
    let told = std::fs::read_to_string(root().join("docs/telemetry.md")).unwrap()
        + &std::fs::read_to_string(root().join("docs/store.md")).unwrap();
    let names = page.body.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    for name in names {
        assert!(told.contains(&format!("`{name}`")), "{name} is in no table");
    }
    let stats = place.effectd(&["receipts", "stats", "-o", "json"], None).json(0);
    let stats = &stats[0];
    assert_eq!(
        (&stats["count"], &stats["ok"], &stats["success_rate"], &stats["codes"]["policy_denied"]),
        (&2.into(), &1.into(), &0.5.into(), &1.into()),
        "{stats}"
    );
    assert!(stats["total_ms"]["p95"].as_f64() >= stats["total_ms"]["p50"].as_f64(), "{stats}");
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
    let daemon = place.serve(&["--socket", other.to_str().unwrap(), "--set", "gateway.socket_mode=0660"]);
    assert_eq!(mode(other.clone()), 0o660);
    let status = place.effectd(&["status", "--socket", other.to_str().unwrap(), "nobody"], None);
    assert_eq!((status.code(), status.stderr().contains("action_unknown")), (2, true), "{}", status.stderr());
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn the_tree_has_every_stage_with_its_workers() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let tree = daemon.get("/v1/tree").json(200);
    for stage in ["validator", "gate", "hold", "idempotency", "executor", "recorder"] {
        let mut actors = tree.as_array().unwrap().iter();
        let actor = actors.find(|actor| actor["name"] == stage);
        let actor = actor.unwrap_or_else(|| panic!("no {stage}: {tree}"));
        assert!(actor["workers"].as_u64().unwrap() > 0, "{actor}");
        assert_eq!(actor["restarts"], 0, "{actor}");
    }
}
