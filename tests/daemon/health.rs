//! Health and metrics, as supervisors and dashboards read them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;

use crate::approvals::{asking, held};
use crate::harness::{LONG, Place, Reply, Serving, from_stranger, root, until, write_note};

/// The value of a series without labels.
fn figure(page: &Reply, name: &str) -> f64 {
    let line = page.body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{}", page.body)).parse().unwrap()
}

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
        "effectd_action_refusals_total{code=\"policy_denied\",tool_id=\"files.write_text\"} 1",
        "effectd_worker_panics_total{stage=\"gate\"} 0",
        "effectd_store_damaged 0",
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
    assert!(!page.body.contains("effectd_action_failures_total{"), "a refusal is no failure: {}", page.body);
    let (free, size) = (figure(&page, "effectd_disk_free_bytes"), figure(&page, "effectd_disk_size_bytes"));
    assert!(0.0 < free && free < size, "{free} of {size}");
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

#[test]
fn a_pause_and_a_question_are_shown_with_their_times() {
    let place = asking();
    let daemon = place.serve(&["--set", "pipeline.sweep_every_ms=50"]);
    let paused = || figure(&daemon.get("/metrics"), "effectd_paused_since_timestamp_seconds");
    let ends = || figure(&daemon.get("/metrics"), "effectd_approvals_next_expiry_timestamp_seconds");
    assert_eq!((paused(), ends()), (0.0, 0.0));
    held(&daemon, "q-1", "q.txt", "q");
    until("the end of the question is shown", || ends() > 0.0);
    let open = &daemon.get("/v1/approvals").json(200)["approvals"][0];
    let end: effectd_contracts::Timestamp = open["expires_at"].as_str().unwrap().parse().unwrap();
    assert_eq!(ends().to_string(), end.as_second().to_string());
    assert_eq!(place.effectd(&["pause", "--yes"], None).code(), 0);
    until("the pause is shown", || paused() > 0.0);
    let since = paused();
    assert_eq!(daemon.stop(), 0);
    let daemon = place.serve(&[]);
    let paused = || figure(&daemon.get("/metrics"), "effectd_paused_since_timestamp_seconds");
    until("the pause is shown again", || paused() == since);
    assert_eq!(place.effectd(&["resume", "--yes"], None).code(), 0);
    until("there is no pause", || paused() == 0.0);
}

/// One request to an address, with everything as it is given.
fn ask(address: &str, head: &str) -> Reply {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    // The daemon may close before it has read everything.
    let _ = stream.write_all(format!("{head}\r\n\r\n").as_bytes());
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    Reply::of(&bytes)
}

#[test]
fn figures_and_health_are_shown_at_an_address_and_nothing_else() {
    let place = Place::seeded();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("telemetry.listen={}", other.local_addr().unwrap());
    let refused = place.effectd(&["serve", "--state", ".effectd", "--set", &taken], None);
    assert!(refused.code() == 75 && refused.stderr().contains("telemetry.listen"), "{}", refused.stderr());
    let daemon = place.serve(&["--set", "telemetry.listen=127.0.0.1:0"]);
    let log = place.log();
    let line = log.lines().find(|line| line.contains("figures and health are shown")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    let address = line["address"].as_str().unwrap();
    let page = ask(address, "GET /metrics HTTP/1.1\r\nhost: x");
    assert_eq!(page.status, 200, "{page:?}");
    assert!(figure(&page, "effectd_disk_size_bytes") > 0.0);
    for path in ["/healthz", "/readyz"] {
        let health = ask(address, &format!("GET {path} HTTP/1.1\r\nhost: x")).json(200);
        assert_eq!(health["status"], "ok");
    }
    for path in ["/v1/receipts", "/v1/store", "/openapi.json", "/"] {
        ask(address, &format!("GET {path} HTTP/1.1\r\nhost: x")).problem(404, "no_such_path");
    }
    ask(address, "POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0").problem(405, "method_not_allowed");
    let long = format!("GET /metrics HTTP/1.1\r\nhost: x\r\nlong: {}", "x".repeat(40_000));
    // A connection that closes unread may lose its answer.
    assert!(matches!(ask(address, &long).status, 431 | 0));
    // Those who say nothing keep others out for a short time only, and nobody from the socket.
    let status = || ask(address, "GET /metrics HTTP/1.1\r\nhost: x").status;
    let mut silent = Vec::new();
    until("a connection is closed unread", || {
        silent.extend((0..4).map(|_| TcpStream::connect(address).unwrap()));
        status() == 0
    });
    assert!(silent.len() > 8, "{}", silent.len());
    assert_eq!(daemon.get("/readyz").status, 200);
    until("there is room again", || status() == 200);
    drop(silent);
    assert_eq!(daemon.stop(), 0);
}
