//! Sessions, connections and secrets: who may use them, and what is left when they are gone.

use effectd::contracts::Timestamp;
use effectd_gateway::client::percent_encoded;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::approvals::{asking, decide, killed_at};
use crate::backups::find;
use crate::erasure::blobs;
use crate::harness::{Daemon, Place, Serving, Stall, from_stranger, until, write_note};
use crate::operator::acts;
use crate::shared::Terminal;
use crate::tcp::{ask_by, listening};

fn body() -> Value {
    json!({ "space_id": "shared:household", "subject_id": "agent://planner@deviceA", "title": "week" })
}

/// Creates a session, and returns its id.
#[track_caller]
fn created(daemon: &Daemon, body: &Value) -> String {
    daemon.post("/v1/sessions", body).json(200)["id"].as_str().unwrap().to_owned()
}

/// Asks for a note in a session, and returns the approval.
#[track_caller]
fn held(daemon: &Daemon, session: &str, action: &str) -> Value {
    let path = format!("/v1/actions?wait&session={session}");
    let view = daemon.post(&path, &write_note(action, &action[..3], "s")).json(202);
    let id = view["approval"]["approval_id"].as_str().unwrap();
    daemon.get(&format!("/v1/approvals/{id}")).json(200)
}

#[test]
fn a_session_takes_actions_of_its_subject_space_and_org() {
    let place = asking();
    let (daemon, address) = listening(&place, &[]);
    let made = daemon.post("/v1/sessions", &body()).json(200);
    let token = made["token"].as_str().unwrap();
    let asks = |method: &str, path: &str, body: &str| ask_by(&address, token, method, path, body);
    let params = json!({ "path": "workspace/own", "text": "o" });
    let write = json!({ "integration": "files", "action": "write_text", "params": params }).to_string();
    let path = format!("/{}/actions/invoke", made["id"].as_str().unwrap());
    let own = asks("POST", &path, &write).json(202)["invocation"]["id"].clone();
    let attended = created(&daemon, &body());
    let mut alone = body();
    alone["unattended"] = true.into();
    let alone = created(&daemon, &alone);
    // The session says whether anybody waits. Equal requests of two sessions are two questions.
    for (session, action, minutes) in [(&attended, "one-1", 5), (&alone, "one-2", 24 * 60)] {
        let approval = held(&daemon, session, action);
        let at = |name: &str| approval[name].as_str().unwrap().parse::<Timestamp>().unwrap().as_second();
        assert_eq!(at("expires_at") - at("asked_at"), minutes * 60, "{approval}");
        assert_eq!(approval["action_ids"], json!([action]), "{approval}");
    }
    // A repeat joins the question of its own session, whoever asked last.
    assert_eq!(held(&daemon, &attended, "one-3")["action_ids"], json!(["one-1", "one-3"]));
    let preview =
        |session: &str, request: &Value| daemon.post(&format!("/v1/preview?session={session}"), request);
    assert_eq!(preview(&attended, &write_note("o-1", "o", "o")).json(200)["verdict"], "needs_approval");
    let refused = |session: &str, request: &Value| {
        preview(session, request).problem(404, "session_unknown");
        let path = format!("/v1/actions?wait&session={session}");
        daemon.post(&path, request).problem(404, "session_unknown");
        daemon.post(&path.replace("wait&", ""), request).problem(404, "session_unknown");
    };
    refused("nobody", &write_note("o-3", "o", "o"));
    refused("agent:agent://planner@deviceA", &write_note("o-4", "o", "o"));
    refused(&attended, &from_stranger("o-5"));
    let mut elsewhere = write_note("o-6", "o", "o");
    elsewhere["space_id"] = "private:alice".into();
    refused(&attended, &elsewhere);
    daemon.post(&format!("/v1/sessions/{alone}/end"), &json!({})).json(200);
    refused(&alone, &write_note("o-7", "o", "o"));
    assert!(daemon.get(&format!("/v1/sessions/{alone}")).json(200)["ended_at"].is_string());
    // The space belongs to another organisation now.
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let text = text.split("[example_tools").next().unwrap();
    let moved =
        text.replace("org = \"home\"", "org = \"work\"").replace("[orgs.home]", "[orgs.work]\n\n[orgs.home]");
    assert_ne!(text, moved);
    std::fs::write(&policy, moved).unwrap();
    assert_eq!(place.effectd(&["policy", "reload", "--yes"], None).code(), 0);
    refused(&attended, &write_note("o-8", "o", "o"));
    // Its own question is still there for who asked.
    let path = format!("/v1/actions/{}", percent_encoded(own.as_str().unwrap()));
    assert_eq!(asks("GET", &path, "").json(200)["state"], "held");
    asks("GET", &format!("{path}/wait?timeout_ms=1"), "").json(202);
    daemon.ask("DELETE", "/v1/sessions/nobody", &[], "").problem(404, "not_found");
    assert_eq!(place.effectd(&["sessions", "show", "nobody"], None).code(), 1);
    let events = daemon.get("/v1/store/topics/SESSIONS").json(200);
    let what: Vec<_> =
        events["events"].as_array().unwrap().iter().map(|event| &event["data"]["what"]).collect();
    assert_eq!(what, ["created", "created", "created", "ended"], "{events}");
    assert_eq!(daemon.stop(), 0);
}

/// How many dead letters, pre-images and artifacts there are.
fn left(daemon: &Daemon, place: &Place) -> (usize, usize, usize) {
    let letters = daemon.get("/v1/dlq").json(200)["letters"].as_array().unwrap().len();
    let blobs = |kind: &str| blobs(&place.state(), kind);
    (letters, blobs("preimages"), blobs("artifacts"))
}

#[test]
fn at_the_socket_people_use_the_routes_of_a_session() {
    let place = asking();
    let daemon = place.serve(&[]);
    let session = created(&daemon, &body());
    held(&daemon, &session, "one-1");
    let at = |path: &str| format!("/{session}/actions/{path}");
    let guide = daemon.get(&at("guide/files"));
    assert!(guide.status == 200 && guide.head.contains("content-type: text/markdown"), "{guide:?}");
    daemon.get(&at("guide/none")).problem(404, "not_found");
    let read = json!({ "integration": "files", "action": "list", "params": { "path": "workspace" } });
    let refused = daemon.post(&at("invoke"), &read).problem(403, "agent_only");
    assert_eq!(refused["error"], refused["detail"]);
    let inbox = daemon.get("/v1/inbox?org=home").json(200);
    assert_eq!((&inbox["total"], &inbox["invocations"][0]["id"]), (&json!(1), &json!("one-1")), "{inbox}");
    let done = daemon.post(&at("invocations/one-1/approve"), &json!({})).json(200);
    assert_eq!(done["invocation"]["status"], "completed", "{done}");
    assert!(done["result"].is_object() && place.note("one").exists(), "{done}");
    daemon.post(&at("invocations/one-1/approve"), &json!({})).problem(409, "already_decided");
    let receipt = &daemon.get("/v1/actions/one-1").json(200)["receipt"];
    assert_eq!(receipt["approval"]["digest"], "unseen", "{receipt}");
    daemon.get("/nobody/actions/available").problem(404, "not_found");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_deleted_session_is_wholly_gone_whatever_is_killed() {
    for point in [
        "operation.begun",
        "session.marked",
        "session.holds",
        "session.grants",
        "session.letters",
        "session.blobs",
        "session.done",
        "operation.done",
    ] {
        let place = asking();
        std::fs::create_dir_all(place.path("workspace")).unwrap();
        for (name, text) in [("d-1", "own"), ("d-5", "shared"), ("d-6", "shared")] {
            std::fs::write(place.note(name), text).unwrap();
        }
        let daemon = place.serve(&[]);
        let session = created(&daemon, &body());
        // Another session of the same subject is untouched.
        let other = created(&daemon, &body());
        let ask = |session: &str, request: &Value| {
            daemon.post(&format!("/v1/actions?wait&session={session}"), request)
        };
        let mut receipts = Vec::new();
        for (session, action) in [(&session, "d-1"), (&session, "d-5"), (&other, "d-6")] {
            let id = held(&daemon, session, action)["approval_id"].as_str().unwrap().to_owned();
            let done = decide(&daemon, &id, "approve", &json!({})).json(200);
            assert!(done["action"]["result"].is_object(), "{done}");
            receipts.push(done["action"]["receipt"]["receipt_id"].as_str().unwrap().to_owned());
        }
        held(&daemon, &session, "d-2");
        let kept = held(&daemon, &other, "d-3");
        let mut put = write_note("d-7", "d-7", "");
        put["tool_id"] = "artifact.put".into();
        put["params"] = json!({ "text": "kept", "space_id": "shared:household" });
        ask(&session, &put).json(200);
        for (session, action) in [(&session, "d-8"), (&other, "d-9")] {
            let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n";
            ask(session, &write_note(action, action, key));
        }
        assert_eq!(left(&daemon, &place), (2, 2, 1), "dead letters, pre-images and artifacts");
        let grant = json!({ "org": "home", "session": session, "tool": "files.copy" });
        daemon.post("/v1/grants", &grant).json(200);
        daemon.kill();
        let path = format!("/v1/sessions/{session}");
        let delete = |daemon: &Daemon| daemon.ask("DELETE", &path, &[], "");
        let daemon = killed_at(&place, point, |daemon| drop(delete(daemon)));
        if point == "operation.begun" {
            daemon.get(&path).json(200);
            delete(&daemon).json(200);
        }
        delete(&daemon).problem(404, "not_found");
        daemon.post("/v1/grants", &grant).problem(400, "malformed");
        until(&format!("{point}: nothing is left"), || {
            let approvals = daemon.get("/v1/approvals").json(200);
            let waiting: Vec<_> = approvals["approvals"].as_array().unwrap().iter().collect();
            let grants = daemon.get("/v1/grants").json(200);
            let active = |grant: &Value| grant["state"] == "active";
            let shown = daemon.get("/v1/actions/d-1").json(200);
            // The letter of the other session, and the content that its undo needs, stay.
            waiting.len() == 1
                && left(&daemon, &place) == (1, 1, 0)
                && waiting[0]["approval_id"] == kept["approval_id"]
                && !grants["grants"].as_array().unwrap().iter().any(active)
                && shown["result_error"]["code"] == "result_gone"
        });
        let listed = daemon.get("/v1/sessions").json(200);
        assert_eq!(listed["sessions"].as_array().unwrap().len(), 1, "{point}: {listed}");
        assert_eq!(listed["sessions"][0]["session_id"], other.as_str(), "{point}");
        // The receipts stay.
        for (action, outcome) in [("d-1", "executed"), ("d-2", "denied_human")] {
            let shown = daemon.get(&format!("/v1/actions/{action}")).json(200);
            assert_eq!(shown["receipt"]["outcome"], outcome, "{point}: {shown}");
        }
        // What two sessions needed goes with the second.
        daemon.ask("DELETE", &format!("/v1/sessions/{other}"), &[], "").json(200);
        assert_eq!(left(&daemon, &place), (0, 0, 0), "{point}");
        let undone = place.effectd(&["undo", &receipts[0]], None);
        assert!(undone.stdout().contains("its session was deleted"), "{point}: {}", undone.stdout());
        daemon
            .post(&format!("/v1/actions?wait&session={session}"), &write_note("d-4", "d", "d"))
            .problem(404, "session_unknown");
        let deletions = 2 + usize::from(point == "operation.begun");
        until("the deletion is on record", || acts(&place, "tool:effectd.delete_session").len() == deletions);
        assert_eq!(place.effectd(&["receipts", "verify"], None).code(), 0, "{point}");
        assert_eq!(daemon.stop(), 0);
    }
}

#[test]
fn the_sweeper_goes_on_while_a_deleted_session_is_cleared() {
    let place = asking();
    let daemon = place.serve_stalling(Stall("session.holds"), &["--set", "pipeline.sweep_every_ms=50"]);
    let path = format!("/v1/sessions/{}", created(&daemon, &body()));
    let count = |text: &str| place.log().matches(text).count();
    std::thread::scope(|scope| {
        let daemon = &daemon;
        scope.spawn(move || drop(daemon.ask("DELETE", &path, &[], "")));
        until("the deletion stands there, and the sweeper's too", || {
            count("\"failpoint\":\"session.holds\"") == 2
        });
        let before = count("holds were swept");
        until("the sweeper goes on", || count("holds were swept") > before + 1);
        daemon.signal(Signal::SIGKILL);
    });
    assert_eq!(daemon.wait(), -1);
}

#[test]
fn no_output_file_or_log_has_the_value_of_a_secret() {
    const CANARY: &str = "canary-5e3c1a90b7d2";
    let place = Place::seeded();
    let daemon = place.serve(&["--set", "log.level=debug"]);
    let mut said = String::new();
    let mut run = |arguments: &[&str], stdin: &str, code: i32| {
        let ran = place.effectd(arguments, Some(stdin));
        assert_eq!(ran.code(), code, "{arguments:?}: {}{}", ran.stdout(), ran.stderr());
        said += &(ran.stdout() + &ran.stderr());
        ran.stdout() + &ran.stderr()
    };
    run(&["secrets", "set", "home", "token", "--yes"], &format!("{CANARY}\n"), 0);
    run(&["secrets", "set", "home", "token", "--yes", "-o", "json"], CANARY, 0);
    run(&["secrets", "set", "home", "long", "--yes"], &CANARY.repeat(1_000), 2);
    run(&["secrets", "set", "home", "a name", "--yes"], CANARY, 2);
    run(&["secrets", "set", "nobody", "token", "--yes"], CANARY, 1);
    run(&["secrets", "set", "home", "empty", "--yes"], "\n", 2);
    let create =
        ["connections", "create", "--org", "home", "--source", "linear", "--name", "Tracker", "--yes"];
    let with = |host: &'static str, secret: &'static str| {
        [&create[..], &["--host", host, "--secret", secret]].concat()
    };
    assert!(run(&with("api.linear.app", "missing"), "", 1).contains("has no secret \"missing\""));
    run(&with("https://api.linear.app", "token"), "", 2);
    run(&with("api.linear.app", "token"), "", 0);
    assert!(run(&with("api.linear.app", "token"), "", 1).contains("already has the connection"));
    assert!(run(&["secrets", "delete", "home", "token", "--yes"], "", 2).contains("needs this secret"));
    for shown in [
        &["secrets", "list", "-o", "json"][..],
        &["connections", "list", "-o", "json"],
        &["receipts", "list", "-o", "json"],
        &["bus", "export", "CONNECTORS"],
        &["config", "show"],
        &["support-bundle", "-"],
        &["backup", "copy", "--keys", "copy-keys"],
    ] {
        assert!(!run(shown, "", 0).is_empty(), "{shown:?}");
    }
    for wrong in [
        format!(r#"{{"value": "{CANARY}", "shown": true}}"#),
        format!(r#"{{"{CANARY}": 1}}"#),
        format!(r#"{{"value": "x", "{CANARY}": 1, "{CANARY}": 1}}"#),
        CANARY.to_owned(),
    ] {
        let answer = daemon.ask("PUT", &["/v1/secrets", "home", "token"].join("/"), &[], &wrong);
        answer.problem(400, "query_invalid");
        said += &answer.body;
    }
    // A terminal would show what is typed.
    let typed = Terminal::effectd(&place, &["secrets", "set", "home", "typed", "--yes"], 160, 20);
    assert_eq!(typed.ended(), "2");
    assert!(typed.screen().contains("--file"), "{}", typed.screen());
    for receipt in acts(&place, "tool:effectd.set_secret") {
        assert_eq!((&receipt["inputs"]["name"], &receipt["status"]), (&json!("token"), &json!("ok")));
        said += &receipt.to_string();
    }
    assert_eq!(daemon.stop(), 0);
    assert!(!said.contains(CANARY), "{said}");
    assert!(place.log().contains("effectd.set_secret") && !place.log().contains(CANARY));
    for folder in [place.state(), place.path("copy")] {
        assert_eq!(find(&folder, CANARY.as_bytes()), Vec::<std::path::PathBuf>::new());
    }
    // The search finds what is there.
    std::fs::write(place.path("copy/in-clear"), CANARY).unwrap();
    assert_eq!(find(&place.path("copy"), CANARY.as_bytes()), [place.path("copy/in-clear")]);
}
