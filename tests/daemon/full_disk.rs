//! A full disk: callers get an error, health reports it, and the daemon recovers by itself.

use serde_json::{Value, json};

use crate::harness::{Daemon, Place, Serving, is_root, until, write_note};
use crate::mounts::{Ballast, Mount};

fn on_a_small_disk(place: &Place) -> (Mount, Daemon) {
    let disk = Mount::tmpfs(place.state(), 128);
    assert_eq!(place.effectd(&["init"], None).code(), 0);
    place.for_every_machine();
    // The journal allocates its files in advance.
    (disk, place.serve(&["--set", "store.segment_bytes=1048576"]))
}

/// How full the disk is does not matter to this check, only whether new work is refused.
fn check(place: &Place, code: i32) -> Value {
    let check = ["check", "disk", "--warn", "1", "--critical", "0", "--format", "json"];
    place.effectd(&check, None).json(code)
}

fn refuses(place: &Place, daemon: &Daemon, why: &str) {
    until("the daemon is not ready", || daemon.get("/readyz").status == 503);
    let problem = daemon.get("/readyz").problem(503, "not_ready");
    assert!(problem["detail"].as_str().unwrap().contains(why), "{problem}");
    assert_eq!(daemon.get("/healthz").status, 200);
    let refused = daemon.post("/v1/actions?wait", &write_note("refused", "r.txt", "r"));
    let refused = refused.problem(503, "store_unavailable");
    assert!(refused["detail"].as_str().unwrap().contains(why), "{refused}");
    let checked = check(place, 2);
    assert!(checked["says"].as_str().unwrap().contains(why), "{checked}");
    // A restart would not help.
    daemon.until_told("WATCHDOG=1");
    daemon.until_told("WATCHDOG=1");
}

fn takes_work(place: &Place, daemon: &Daemon, name: &str) {
    until("the daemon is ready", || daemon.get("/readyz").status == 200);
    let done = daemon.post("/v1/actions?wait", &write_note(name, name, "done"));
    assert_eq!(done.json(200)["outcome"], "executed");
    check(place, 0);
}

#[test]
fn readiness_follows_what_the_disk_takes() {
    if !is_root("readiness_follows_what_the_disk_takes") {
        return;
    }
    let place = Place::new();
    let (disk, daemon) = on_a_small_disk(&place);
    takes_work(&place, &daemon, "before");
    let ballast = Ballast::all_but(disk.path(), 40 << 20);
    refuses(&place, &daemon, "full");
    drop(ballast);
    takes_work(&place, &daemon, "between");
    let read_only = Mount::read_only(place.state());
    refuses(&place, &daemon, "read-only");
    drop(read_only);
    takes_work(&place, &daemon, "after");
    let log = place.log();
    assert_eq!(log.matches("new work is refused").count(), 2, "{log}");
    assert_eq!(log.matches("new work is accepted again").count(), 2, "{log}");
    drop(daemon);
}

#[test]
fn no_problem_says_where_the_state_lies() {
    if !is_root("no_problem_says_where_the_state_lies") {
        return;
    }
    let place = Place::new();
    let (_disk, daemon) = on_a_small_disk(&place);
    let state = place.state();
    // Nothing was sealed in this run, so the key would have to be created.
    let read_only = Mount::read_only(state.clone());
    let note = write_note("n-1", "n.txt", "n");
    let asked = [
        ("POST", "/v1/actions", note.clone()),
        ("POST", "/v1/actions?wait", note.clone()),
        ("DELETE", "/v1/actions/n-1", Value::Null),
        ("POST", "/v1/preview", note),
        ("POST", "/v1/log/head", Value::Null),
        ("POST", "/v1/log/keys", Value::Null),
        (
            "POST",
            "/v1/policy/changes",
            json!({ "change": "set_org_mode", "org": "home", "tool": "files.copy", "mode": "deny" }),
        ),
        ("POST", "/v1/operations", json!({ "operation": "pause" })),
        ("POST", "/v1/breakers/files.copy/trip", Value::Null),
        ("POST", "/v1/store/retain", json!({})),
        ("POST", "/v1/store/erase", json!({ "subjects": ["agent://planner@deviceA"] })),
        ("POST", "/v1/grants", json!({ "org": "home", "tool": "files.copy" })),
        ("GET", "/readyz", Value::Null),
    ];
    let mut unavailable = 0;
    for (method, path, body) in asked {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let reply = daemon.ask(method, path, &[], &body);
        assert_ne!(reply.status, 0, "{method} {path}");
        assert!(!reply.body.contains(state.to_str().unwrap()), "{method} {path}: {reply:?}");
        unavailable += usize::from(reply.status >= 500);
    }
    assert!(unavailable >= 4, "only {unavailable} were refused by the disk");
    // The same for a policy that cannot be read; the operator finds the path in the log.
    drop(read_only);
    std::fs::rename(state.join("policy/policy.toml"), state.join("policy/away")).unwrap();
    let reply = daemon.ask("POST", "/v1/policy/reload", &[], "");
    let problem = reply.problem(422, "policy_invalid");
    assert!(!reply.body.contains(state.to_str().unwrap()), "{problem}");
    assert!(place.log().contains(state.to_str().unwrap()));
    drop(daemon);
}
