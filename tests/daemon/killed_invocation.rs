//! A daemon that is killed between an agent's 202 and the end of its action: the question stays, and the action runs once.

use std::net::TcpStream;

use effectd_gateway::client::percent_encoded;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::approvals::receipts_of;
use crate::harness::{Daemon, Place, Reply, Serving, Stall, until};
use crate::tcp::{address, ask_by, listening, reads_to_the_end, send_by, token};

/// A place where every line that is added to a note needs an approval, which Ada gives.
fn place() -> Place {
    let place = Place::seeded();
    let mode = ["policy", "set-mode", "--org", "home", "--tool", "files.append_text", "require_approval"];
    assert_eq!(place.effectd(&[&mode[..], &["--yes"]].concat(), None).code(), 0);
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let ada = "[principals.\"account://home/ada\"]\nsubjects = []\norgs = { home = \"admin\" }";
    std::fs::write(&policy, text.replacen("[principals.", &format!("{ada}\n\n[principals."), 1)).unwrap();
    place
}

/// What is added. Twice, it would be there twice.
const LINE: &str = "once\n";

/// A session's agent and the person who decides, at a daemon that is killed meanwhile.
struct People {
    session: String,
    agent: String,
    ada: String,
}

impl People {
    fn of(daemon: &Daemon) -> Self {
        let body = json!({
            "space_id": "shared:household", "subject_id": "agent://planner@deviceA", "title": "week",
            "unattended": true,
        });
        let made = daemon.post("/v1/sessions", &body).json(200);
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        Self { session: text("id"), agent: text("token"), ada: token(daemon, "ada") }
    }

    /// The agent asks for a line in a note, and gets the path of the invocation that waits, and its id.
    fn invoke(&self, address: &str, name: &str) -> (String, String) {
        let params = json!({ "path": format!("workspace/{name}"), "text": LINE });
        let body = json!({ "integration": "files", "action": "append_text", "params": params });
        let path = format!("/{}/actions/invoke", self.session);
        let waits = ask_by(address, &self.agent, "POST", &path, &body.to_string()).json(202);
        let id = waits["invocation"]["id"].as_str().unwrap().to_owned();
        (format!("/{}/actions/invocations/{}", self.session, percent_encoded(&id)), id)
    }

    fn approve(&self, address: &str, path: &str) -> Reply {
        Reply::of(&reads_to_the_end(self.ask_to_approve(address, path)))
    }

    /// The same, by a client that has not read the answer.
    fn ask_to_approve(&self, address: &str, path: &str) -> TcpStream {
        send_by(address, &self.ada, "POST", &format!("{path}/approve"), "")
    }

    /// The invocation, as its agent sees it.
    fn look(&self, address: &str, path: &str) -> Value {
        ask_by(address, &self.agent, "GET", path, "").json(200)["invocation"].clone()
    }

    fn until_completed(&self, address: &str, path: &str) -> Value {
        let mut seen = Value::Null;
        until("the invocation is completed", || {
            seen = self.look(address, path);
            seen["status"] == "completed"
        });
        seen
    }
}

/// Checks that the action had its effect once, and has one receipt.
#[track_caller]
fn ran_once(place: &Place, name: &str, id: &str) {
    assert_eq!(std::fs::read_to_string(place.note(name)).unwrap(), LINE);
    assert_eq!(receipts_of(place, id), 1);
}

#[test]
fn of_twenty_who_approve_over_tcp_one_succeeds() {
    let place = place();
    let (daemon, address) = listening(&place, &[]);
    let people = People::of(&daemon);
    let (path, id) = people.invoke(&address, "once.txt");
    let mut statuses: Vec<u16> = std::thread::scope(|scope| {
        let approves: Vec<_> =
            (0..20).map(|_| scope.spawn(|| people.approve(&address, &path).status)).collect();
        approves.into_iter().map(|approve| approve.join().unwrap()).collect()
    });
    statuses.sort_unstable();
    assert_eq!(statuses, [vec![200], vec![409; 19]].concat());
    let done = people.look(&address, &path);
    assert_eq!((&done["status"], &done["approved_by"]), (&json!("completed"), &json!("account://home/ada")));
    ran_once(&place, "once.txt", &id);
}

#[test]
fn an_invocation_waits_for_its_person_across_a_kill() {
    let place = place();
    let (daemon, address) = listening(&place, &[]);
    let people = People::of(&daemon);
    let (path, id) = people.invoke(&address, "waits.txt");
    daemon.kill();
    let (_daemon, address) = listening(&place, &[]);
    assert_eq!(people.look(&address, &path)["status"], "pending");
    assert!(!place.note("waits.txt").exists());
    let done = people.approve(&address, &path).json(200);
    assert_eq!(done["invocation"]["status"], "completed", "{done}");
    assert!(done["result"].is_object(), "{done}");
    // Who asks again is told, and nothing runs again.
    people.approve(&address, &path).problem(409, "already_decided");
    assert_eq!(people.look(&address, &path)["result"], done["result"]);
    ran_once(&place, "waits.txt", &id);
}

#[test]
fn an_approval_whose_answer_is_lost_by_a_kill_counts_once() {
    let place = place();
    let (daemon, address) = listening(&place, &[]);
    let people = People::of(&daemon);
    // The answer is written, and nobody reads it.
    let (path, id) = people.invoke(&address, "unread.txt");
    let unread = people.ask_to_approve(&address, &path);
    people.until_completed(&address, &path);
    daemon.kill();
    drop(unread);
    let (daemon, address) = listening(&place, &[]);
    people.approve(&address, &path).problem(409, "already_decided");
    let seen = people.until_completed(&address, &path);
    assert!(seen["result"].is_object(), "{seen}");
    ran_once(&place, "unread.txt", &id);
    // The decision is on disk, and its answer is not sent.
    let (path, id) = people.invoke(&address, "cut-off.txt");
    daemon.kill();
    let point = Stall("held.after_decide");
    let daemon = place.serve_stalling(point, &["--listen", "127.0.0.1:0"]);
    let unanswered = people.ask_to_approve(&self::address(&place), &path);
    until("the daemon stands after the decision", || {
        place.log().contains("\"failpoint\":\"held.after_decide\"")
    });
    daemon.signal(Signal::SIGKILL);
    assert_eq!(daemon.wait(), -1);
    assert!(reads_to_the_end(unanswered).is_empty(), "the answer is lost");
    let (_daemon, address) = listening(&place, &[]);
    people.until_completed(&address, &path);
    people.approve(&address, &path).problem(409, "already_decided");
    ran_once(&place, "cut-off.txt", &id);
}
