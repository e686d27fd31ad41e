//! Tools of MCP servers that are programs: by a real daemon, which starts them in the sandbox beside the calls.

use std::path::Path;

use serde_json::{Value, json};

use crate::connectors::place;
use crate::harness::{Daemon, Place, Serving, until};
use crate::shared::mcp_server::STDIO_SERVER;
use crate::tcp::{ask_by, listening, token};

/// A folder for programs: one beneath `/tmp` would be hidden by a call's own.
struct Programs(tempfile::TempDir);

impl Programs {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("effectd-programs").tempdir_in("/var/tmp").unwrap();
        std::fs::write(folder.path().join("server.py"), STDIO_SERVER).unwrap();
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// A connector whose tools a person has reviewed as ones that read, so that calls ask nobody.
    fn connect(&self, daemon: &Daemon, mode: &str, folder: Option<&str>) -> String {
        let id = self.add(daemon, mode, folder);
        daemon.post(&format!("/v1/connectors/{id}/harvest"), &json!({})).json(200);
        for tool in ["echo", "write", "crash", "hang", "count", "reach"] {
            let says = json!({ "risk": "read" }).to_string();
            daemon.ask("PUT", &format!("/v1/connectors/{id}/tools/{tool}"), &[], &says).json(200);
        }
        let digest = daemon.get(&format!("/v1/connectors/{id}")).json(200)["digest"].clone();
        daemon.post(&format!("/v1/connectors/{id}/review"), &json!({ "digest": digest })).json(200);
        id
    }

    fn add(&self, daemon: &Daemon, mode: &str, folder: Option<&str>) -> String {
        let server = self.path().join("server.py");
        let argv = json!(["/usr/bin/env", format!("EFFECTD_STUB={mode}"), "/usr/bin/python3", "-I", server]);
        let mut transport = json!({ "kind": "stdio", "argv": argv, "programs": [self.path()] });
        if let Some(folder) = folder {
            transport["folder"] = folder.into();
        }
        let body = json!({
            "org": "home", "source": "connector", "name": "Local", "hosts": [], "connector": { "transport": transport },
        });
        daemon.post("/v1/connections", &body).json(200)["id"].as_str().unwrap().to_owned()
    }
}

fn call(daemon: &Daemon, id: &str, action: &str, (tool, text): (&str, &str)) -> Value {
    // No two calls are the same work.
    let text = if text.is_empty() { action } else { text };
    let body = json!({
        "action_id": action, "tool_id": format!("connector:{id}.{tool}"), "space_id": "shared:household",
        "subject_id": "agent://planner@deviceA", "params": { "text": text },
        "policy_ctx": { "actor": "alice", "device": "phone1" },
    });
    let reply = daemon.post("/v1/actions?wait", &body);
    serde_json::from_str(&reply.body).unwrap()
}

fn said(view: &Value) -> &str {
    view["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{view}"))
}

fn shared(view: &Value) -> bool {
    let program = view["receipt"]["isolation"]["mechanisms"]["program"].as_str();
    program.unwrap_or_else(|| panic!("{view}")).contains("shared_process: true")
}

#[test]
fn a_program_answers_in_both_dialects_and_stays_for_the_next() {
    let (place, programs) = (place(), Programs::new());
    let daemon = place.serve(&[]);
    for (mode, version) in [("", "2026-07-28"), ("older", "2025-11-25"), ("noise", "2026-07-28")] {
        let id = programs.connect(&daemon, mode, None);
        assert_eq!(daemon.get(&format!("/v1/connectors/{id}")).json(200)["protocol"], version);
        let first = call(&daemon, &id, &format!("a{mode}"), ("count", ""));
        assert_eq!((said(&first), shared(&first)), ("1", false), "a harvest shares no process");
        let second = call(&daemon, &id, &format!("b{mode}"), ("count", ""));
        assert_eq!((said(&second), shared(&second)), ("2", true));
        // Another connector has a process of its own, and so has a changed one.
        daemon.post(&format!("/v1/connections/{id}/disable"), &json!({})).json(200);
        daemon.post(&format!("/v1/connections/{id}/enable"), &json!({})).json(200);
        let third = call(&daemon, &id, &format!("c{mode}"), ("count", ""));
        assert_eq!((said(&third), shared(&third)), ("1", false));
    }
}

#[test]
fn a_program_sees_one_folder_and_reaches_nothing() {
    let (place, programs) = (place(), Programs::new());
    let daemon = place.serve(&[]);
    let write = json!({
        "action_id": "w", "tool_id": "files.write_text", "space_id": "shared:household",
        "subject_id": "agent://planner@deviceA", "policy_ctx": { "actor": "alice", "device": "phone1" },
        "params": { "path": "workspace/notes/plain.txt", "text": "x", "space_id": "shared:household" },
    });
    daemon.post("/v1/actions?wait", &write).json(200);
    let notes = place.path("workspace/notes");
    std::fs::write(notes.parent().unwrap().join("secret"), "x").unwrap();
    let id = programs.connect(&daemon, "", Some("workspace/notes"));
    let reached = call(&daemon, &id, "r", ("reach", ""));
    assert_eq!(said(&reached), "", "neither the host, nor the rest of the space, nor a socket");
    let written = call(&daemon, &id, "t", ("write", "by a program"));
    assert_eq!(std::fs::read_to_string(notes.join("written.txt")).unwrap(), "by a program\n");
    assert_eq!(written["receipt"]["effects"], "unobserved", "{written}");
    // Without a folder it has its scratch alone, and that ends with it.
    let bare = programs.connect(&daemon, "", None);
    said(&call(&daemon, &bare, "u", ("write", "nowhere")));
    assert_eq!(std::fs::read_to_string(notes.join("written.txt")).unwrap(), "by a program\n");
    // What an agent may write is not executed.
    std::fs::write(notes.join("server.py"), STDIO_SERVER).unwrap();
    let argv = json!(["/usr/bin/python3", "-I", notes.join("server.py")]);
    let transport =
        json!({ "kind": "stdio", "argv": argv, "programs": [notes], "folder": "workspace/notes" });
    let body = json!({
        "org": "home", "source": "connector", "name": "Own", "hosts": [], "connector": { "transport": transport },
    });
    let own = daemon.post("/v1/connections", &body).json(200)["id"].as_str().unwrap().to_owned();
    let check = daemon.post(&format!("/v1/connectors/{own}/validate"), &json!({})).json(200);
    assert!(check["fault"].as_str().unwrap().contains("shares files"), "{check}");
}

#[test]
fn a_program_that_ends_or_hangs_is_told_and_replaced() {
    let (place, programs) = (place(), Programs::new());
    let daemon = place.serve(&[]);
    let id = programs.connect(&daemon, "", None);
    assert_eq!(said(&call(&daemon, &id, "a", ("count", ""))), "1");
    let crashed = call(&daemon, &id, "b", ("crash", ""));
    let failure = crashed["receipt"]["error"].to_string();
    assert!(failure.contains("the stub has crashed") && failure.contains("3"), "{crashed}");
    let next = call(&daemon, &id, "c", ("count", ""));
    assert_eq!((said(&next), shared(&next)), ("1", false), "a new process");
    // A program that cannot be started says why.
    let argv = json!(["/usr/bin/python3", "-I", "/nowhere/server.py"]);
    let body = json!({
        "org": "home", "source": "connector", "name": "None", "hosts": [],
        "connector": { "transport": { "kind": "stdio", "argv": argv } },
    });
    let none = daemon.post("/v1/connections", &body).json(200)["id"].as_str().unwrap().to_owned();
    let check = daemon.post(&format!("/v1/connectors/{none}/validate"), &json!({})).json(200);
    assert!(check["fault"].as_str().unwrap().contains("No such file"), "{check}");
}

#[test]
fn a_program_that_never_answers_is_ended() {
    let (place, programs) = (place(), Programs::new());
    let daemon = place.serve(&[]);
    let id = programs.connect(&daemon, "", None);
    assert_eq!(said(&call(&daemon, &id, "a", ("count", ""))), "1");
    let hangs = json!({
        "action_id": "b", "tool_id": format!("connector:{id}.hang"), "space_id": "shared:household",
        "subject_id": "agent://planner@deviceA", "params": { "text": "x" }, "qos": { "timeout_ms": 1_000 },
        "policy_ctx": { "actor": "alice", "device": "phone1" },
    });
    let reply = daemon.post("/v1/actions?wait", &hangs);
    let view: Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(view["receipt"]["error"]["code"], "timed_out", "{view}");
    let next = call(&daemon, &id, "c", ("count", ""));
    assert_eq!((said(&next), shared(&next)), ("1", false), "a new process");
}

/// A second organisation with a space, and an admin of each by a token.
fn with_office(place: &Place) {
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let office = "[orgs.office]\n\n[spaces.\"shared:office\"]\nroot = \"./office\"\nband = \"GREEN\"\n\
        visible_to = [\"role:planner\"]\norg = \"office\"\n\n";
    let with =
        text.replacen("[spaces.\"shared:household\"]", &format!("{office}[spaces.\"shared:household\"]"), 1);
    let ada =
        "[principals.\"account://home/ada\"]\nsubjects = []\norgs = { home = \"admin\" }\n\n[principals.";
    let with = with.replacen("[principals.", ada, 1);
    std::fs::write(&policy, with).unwrap();
    std::fs::create_dir(place.path("office")).unwrap();
}

#[test]
fn only_operators_connect_a_program() {
    let (place, programs) = (place(), Programs::new());
    with_office(&place);
    let (daemon, address) = listening(&place, &[]);
    let ada = token(&daemon, "ada");
    let by_ada = |path: &str, body: &Value| ask_by(&address, &ada, "POST", path, &body.to_string());
    let body = json!({
        "org": "home", "source": "connector", "name": "Mine", "hosts": [],
        "connector": { "transport": { "kind": "stdio", "argv": ["/usr/bin/env"], "programs": ["/etc"] } },
    });
    by_ada("/v1/connections", &body).problem(403, "token_forbidden");
    by_ada("/v1/connections?preview=true", &body).problem(403, "token_forbidden");
    // What an operator has connected, an admin may stop, and not start again.
    let id = programs.connect(&daemon, "", None);
    by_ada(&format!("/v1/connections/{id}/disable"), &json!({})).json(200);
    by_ada(&format!("/v1/connections/{id}/enable"), &json!({})).problem(403, "token_forbidden");
    daemon.post(&format!("/v1/connections/{id}/enable"), &json!({})).json(200);
    assert_eq!(said(&call(&daemon, &id, "a", ("count", ""))), "1");
}

#[test]
fn a_program_has_no_folder_of_any_space_or_of_effectd() {
    let place = place();
    with_office(&place);
    let daemon = place.serve(&[]);
    for (nth, folder) in
        [place.path("office"), place.state(), place.state().join("policy"), place.path("office/bin")]
            .into_iter()
            .enumerate()
    {
        let transport = json!({ "kind": "stdio", "argv": ["/usr/bin/env"], "programs": [folder] });
        let body = json!({
            "org": "home", "source": "connector", "name": format!("P{nth}"), "hosts": [],
            "connector": { "transport": transport },
        });
        let id = daemon.post("/v1/connections", &body).json(200)["id"].as_str().unwrap().to_owned();
        let check = daemon.post(&format!("/v1/connectors/{id}/validate"), &json!({})).json(200);
        assert!(check["fault"].as_str().unwrap().contains("shares files"), "{check}");
    }
}

#[test]
fn a_program_serves_no_other_organisation() {
    let (place, programs) = (place(), Programs::new());
    with_office(&place);
    let daemon = place.serve(&[]);
    let id = programs.connect(&daemon, "", None);
    let body = json!({
        "org": "office", "source": format!("connector:{id}"), "name": "Theirs", "hosts": ["127.0.0.1"],
    });
    let refused = daemon.post("/v1/connections", &body).problem(400, "query_invalid");
    assert!(refused.to_string().contains("source of a connector"), "{refused}");
    let theirs = json!({
        "action_id": "theirs", "tool_id": format!("connector:{id}.count"), "space_id": "shared:office",
        "subject_id": "agent://planner@deviceA", "params": { "text": "x" },
        "policy_ctx": { "actor": "alice", "device": "phone1" },
    });
    let reply = daemon.post("/v1/actions?wait", &theirs);
    assert_ne!(reply.status, 200, "{reply:?}");
    assert_eq!(said(&call(&daemon, &id, "ours", ("count", ""))), "1", "the first call of any");
}

#[test]
fn a_program_that_describes_a_tool_otherwise_is_not_called() {
    let (place, programs) = (place(), Programs::new());
    let daemon = place.serve(&[]);
    let id = programs.connect(&daemon, "changes", None);
    // A new process lists its tools as before; from its second list on, it says otherwise.
    assert_eq!(said(&call(&daemon, &id, "a", ("count", ""))), "1");
    let drifted = call(&daemon, &id, "b", ("count", ""));
    assert_eq!(drifted["receipt"]["error"]["code"], "tool_drifted", "{drifted}");
    // The process is gone with what it says.
    until("a new process is called", || {
        said_or_none(&call_fresh(&daemon, &id)).is_some_and(|said| said == "1")
    });
}

fn said_or_none(view: &Value) -> Option<String> {
    view["result"]["content"][0]["text"].as_str().map(str::to_owned)
}

/// Calls by an action of its own.
fn call_fresh(daemon: &Daemon, id: &str) -> Value {
    use std::sync::atomic::{AtomicU32, Ordering};
    static CALLS: AtomicU32 = AtomicU32::new(0);
    call(daemon, id, &format!("fresh-{}", CALLS.fetch_add(1, Ordering::Relaxed)), ("count", ""))
}
