//! Live events: each is heard in its case, by those who may, and nothing is missed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use effectd_gateway::limits::STREAMS_PER_ACCOUNT_MAX;
use serde_json::{Value, json};

use crate::approvals::{asking, decide, held};
use crate::harness::{Daemon, LONG, Place, Reply, Serving, from_stranger, is_root, until, write_note};
use crate::many_users::{as_user, ask};
use crate::tcp::{ask_by, listening, resident, token};

const PATH: &str = "/v1/stream";

#[derive(Debug, Clone, PartialEq)]
struct Event {
    name: String,
    cursor: Option<String>,
    data: Value,
}

impl Event {
    /// Its name, its action and the action's status.
    fn brief(&self) -> (&str, &str, &str) {
        let text = |name: &str| self.data[name].as_str().unwrap();
        (self.name.strip_prefix("action_").unwrap(), text("id"), text("status"))
    }

    fn cursor(&self) -> &str {
        self.cursor.as_deref().unwrap()
    }
}

/// The next event. The sizes of chunks and comments between the lines are skipped.
fn next(lines: &mut impl Iterator<Item = String>) -> Option<Event> {
    let (mut name, mut cursor) = (None, None);
    for line in lines {
        if let Some(text) = line.strip_prefix("event: ") {
            name = Some(text.to_owned());
        } else if let Some(text) = line.strip_prefix("id: ") {
            cursor = Some(text.to_owned());
        } else if let Some(text) = line.strip_prefix("data: ") {
            let data = serde_json::from_str(text).unwrap();
            return Some(Event { name: name.expect("data follows its event"), cursor, data });
        }
    }
    None
}

/// An open stream.
struct Listening(Box<dyn Iterator<Item = String>>);

impl Listening {
    /// Opens a stream, from the event with this cursor on, and waits until it is open.
    fn to(daemon: &Daemon, cursor: Option<&str>) -> Self {
        let headers: Vec<_> = cursor.map(|cursor| ("last-event-id", cursor)).into_iter().collect();
        Self::on(daemon.send("GET", PATH, &headers, ""))
    }

    /// Opens a stream over TCP with a token.
    fn by(address: &str, token: &str) -> Self {
        Self::on(request_by(address, token))
    }

    fn on(stream: impl Read + 'static) -> Self {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        assert_eq!(head.first().map(String::as_str), Some("HTTP/1.1 200 OK"), "{head:?}");
        assert!(head.iter().any(|line| line == "content-type: text/event-stream"), "{head:?}");
        // The first comment.
        assert!(lines.any(|line| line == ":"));
        Self(Box::new(lines))
    }

    #[track_caller]
    fn next(&mut self) -> Event {
        next(&mut self.0).expect("another event comes")
    }

    fn take(&mut self, count: usize) -> Vec<Event> {
        (0..count).map(|_| self.next()).collect()
    }

    /// Waits for the end of the stream; no event comes before it.
    fn ended(mut self) {
        assert_eq!(next(&mut self.0), None);
    }
}

fn request_by(address: &str, token: &str) -> TcpStream {
    get_by(address, PATH, token)
}

fn get_by(address: &str, path: &str, token: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close");
    stream.write_all(format!("{head}\r\nauthorization: Bearer {token}\r\n\r\n").as_bytes()).unwrap();
    stream
}

fn streams(daemon: &Daemon) -> usize {
    let figures = daemon.get("/metrics").body;
    let line = figures.lines().find_map(|line| line.strip_prefix("effectd_http_streams "));
    line.unwrap().parse().unwrap()
}

fn read_note(action: &str, name: &str) -> Value {
    let mut request = write_note(action, name, "");
    request["tool_id"] = "files.read_text".into();
    request["params"] = json!({ "path": format!("workspace/{name}"), "space_id": "shared:household" });
    request
}

#[test]
fn each_event_is_heard_in_its_case_and_not_otherwise() {
    let place = asking();
    let daemon = place.serve(&[]);
    let mut live = Listening::to(&daemon, None);
    // Denied by the policy, invalid, and of an unknown tool: nobody hears of it.
    assert_eq!(daemon.post("/v1/actions?wait", &from_stranger("l-0")).status, 403);
    let mut invalid = write_note("l-1", "l", "l");
    invalid["params"]["path"] = 7.into();
    assert_eq!(daemon.post("/v1/actions?wait", &invalid).status, 400);
    invalid["tool_id"] = "files.nothing".into();
    invalid["action_id"] = "l-2".into();
    assert_eq!(daemon.post("/v1/actions?wait", &invalid).status, 404);
    // Approved, with an equal request that waits for the same approval.
    let approved = held(&daemon, "l-3", "l-3.txt", "hello");
    assert_eq!(held(&daemon, "l-4", "l-3.txt", "hello"), approved);
    decide(&daemon, &approved, "approve", &json!({})).json(200);
    // Denied by a person.
    let denied = held(&daemon, "l-5", "l-5.txt", "x");
    decide(&daemon, &denied, "deny", &json!({ "reason": "not now" })).json(200);
    // Withdrawn.
    held(&daemon, "l-6", "l-6.txt", "x");
    daemon.ask("DELETE", "/v1/actions/l-6", &[], "").json(200);
    // Without an approval: done, and failed.
    daemon.post("/v1/actions?wait", &read_note("l-7", "l-3.txt")).json(200);
    daemon.post("/v1/actions?wait", &read_note("l-8", "none.txt")).problem(404, "file_not_found");
    // An operation is no action.
    daemon.post("/v1/operations", &json!({ "do": "pause" })).json(200);
    daemon.post("/v1/operations", &json!({ "do": "resume" })).json(200);
    let seen = live.take(8);
    let briefs: Vec<_> = seen.iter().map(Event::brief).collect();
    let (asks, done) = ("approval_request", "completed");
    // An event shows its invocation as it is when the event is sent.
    let [first, equal, refused, withdrawn] = [0, 1, 4, 6].map(|at: usize| briefs.get(at).unwrap().2);
    assert_eq!(
        briefs[..6],
        [
            (asks, "l-3", first),
            (asks, "l-4", equal),
            (done, "l-3", "completed"),
            (done, "l-4", "completed"),
            (asks, "l-5", refused),
            ("approval_result", "l-5", "denied"),
        ],
        "{seen:?}"
    );
    assert_eq!(briefs[6..], [(asks, "l-6", withdrawn), (done, "l-7", "completed")], "{seen:?}");
    let failed = live.next();
    assert_eq!(failed.brief(), (done, "l-8", "failed"));
    let asked = &seen[0].data;
    assert_eq!(
        (&asked["organization_id"], &asked["session_id"], &asked["params"]["path"], &asked["integration"]),
        (
            &json!("home"),
            &json!("agent:agent://planner@deviceA"),
            &json!("workspace/l-3.txt"),
            &json!("files")
        ),
        "{asked}"
    );
    let denial = &seen[5].data;
    assert_eq!(denial["denied_reason"], "human", "{denial}");
    assert!(denial["approved_by"].as_str().unwrap().starts_with("user://"), "{denial}");
    // Only the last of two events for one approval moves the cursor.
    assert_eq!((seen[2].cursor.as_ref(), seen[3].cursor.is_some()), (None, true));
    // A client that was away from the first event on gets the same events, once and in order.
    let told = |events: &[Event]| -> Vec<_> {
        events
            .iter()
            .map(|event| (event.name.clone(), event.cursor.clone(), event.data["id"].clone()))
            .collect()
    };
    let mut again = Listening::to(&daemon, Some(seen[0].cursor()));
    assert_eq!(told(&again.take(7)), told(&seen[1..]));
    assert_eq!(again.next(), failed);
    // From between the two, both come again.
    assert_eq!(told(&Listening::to(&daemon, Some(seen[1].cursor())).take(2)), told(&seen[2..4]));
    // Both go on with what happens.
    held(&daemon, "l-9", "l-9.txt", "x");
    assert_eq!(live.next(), again.next());
    assert_eq!(daemon.stop(), 0);
    live.ended();
    again.ended();
}

#[test]
fn a_client_gets_exactly_what_it_missed_over_a_restart() {
    // More than is read at once.
    const MISSED: usize = 150;
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let note = |daemon: &Daemon, n: usize| {
        let name = format!("m-{n}");
        daemon.post("/v1/actions?wait", &write_note(&name, &name, "m")).json(200);
    };
    // What was before a stream is not in it.
    note(&daemon, 0);
    let mut live = Listening::to(&daemon, None);
    note(&daemon, 1);
    let first = live.next();
    assert_eq!(first.brief(), ("completed", "m-1", "completed"));
    drop(live);
    (2..MISSED / 2).for_each(|n| note(&daemon, n));
    assert_eq!(daemon.stop(), 0);
    let daemon = place.serve(&[]);
    (MISSED / 2..MISSED).for_each(|n| note(&daemon, n));
    let mut back = Listening::to(&daemon, Some(first.cursor()));
    note(&daemon, MISSED);
    let missed = back.take(MISSED - 1);
    let ids: Vec<_> = missed.iter().map(|event| event.brief().1.to_owned()).collect();
    let expected: Vec<_> = (2..=MISSED).map(|n| format!("m-{n}")).collect();
    assert_eq!(ids, expected);
    // From the middle, and from the end.
    let mut rest = Listening::to(&daemon, Some(missed[99].cursor()));
    let mut end = Listening::to(&daemon, Some(missed[MISSED - 2].cursor()));
    assert_eq!(rest.take(MISSED - 101), missed[100..]);
    note(&daemon, MISSED + 1);
    let last = end.next();
    assert_eq!(last.brief().1, format!("m-{}", MISSED + 1));
    assert_eq!((rest.next(), back.next()), (last.clone(), last));
    drop((rest, end, back));
    until("all streams are closed", || streams(&daemon) == 0);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_cursor_that_leads_nowhere_is_refused() {
    let place = Place::seeded();
    let daemon = place.serve(&["--set", "store.retention.executed_bytes_max=1"]);
    let mut live = Listening::to(&daemon, None);
    let note = |name: &str| daemon.post("/v1/actions?wait", &write_note(name, name, "n")).json(200);
    note("n-0");
    let cursor = live.next().cursor().to_owned();
    for name in ["n-1", "n-2", "n-3"] {
        note(name);
    }
    let from = |cursor: &str| daemon.ask("GET", PATH, &[("last-event-id", cursor)], "");
    for wrong in ["x", "0.1", &cursor[1..], &format!("0{cursor}")] {
        from(wrong).problem(400, "header_invalid");
    }
    let twice = [("last-event-id", cursor.as_str()), ("last-event-id", cursor.as_str())];
    daemon.ask("GET", PATH, &twice, "").problem(400, "header_invalid");
    // One of another or a later state, and one that is too old.
    let elsewhere = from("0-1000").problem(410, "dropped");
    assert!(elsewhere["detail"].as_str().unwrap().contains("without it"), "{elsewhere}");
    let ids = |live: &mut Listening, count: usize| -> Vec<String> {
        live.take(count).iter().map(|event| event.brief().1.to_owned()).collect()
    };
    assert_eq!(ids(&mut live, 3), ["n-1", "n-2", "n-3"]);
    assert_eq!(place.effectd(&["store", "retain", "--yes"], None).code(), 0);
    assert_eq!(from(&cursor).problem(410, "dropped"), elsewhere);
    // The open stream does not mind.
    note("n-4");
    assert_eq!(ids(&mut live, 1), ["n-4"]);
    until("the refused ones take no slot", || streams(&daemon) == 1);
}

#[test]
fn a_stream_that_nobody_reads_is_cut() {
    let place = Place::seeded();
    let daemon = place.serve(&["--set", "gateway.write_time_ms_max=2000"]);
    let deaf: Vec<UnixStream> = (0..20).map(|_| daemon.send("GET", PATH, &[], "")).collect();
    until("the streams are open", || streams(&daemon) == deaf.len());
    let before = resident(&daemon);
    // More than the socket and the queue hold.
    let mut sent = 0;
    until("all are cut", || {
        let name = format!("d-{sent}-{}", "x".repeat(200));
        daemon.post("/v1/actions?wait", &write_note(&format!("d-{sent}"), &name, "d")).json(200);
        sent += 1;
        streams(&daemon) == 0
    });
    assert!(sent > 10, "a stream is not cut at once");
    let grown = resident(&daemon).saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
    // The part that it was sent is whole events, with which it can come back.
    let seen: Vec<Event> = {
        let mut lines = BufReader::new(&deaf[0]).lines().map_while(Result::ok);
        std::iter::from_fn(|| next(&mut lines)).take(5).collect()
    };
    let mut back = Listening::to(&daemon, Some(seen[4].cursor()));
    assert_eq!(back.next().brief().1, "d-5");
}

#[test]
fn users_hear_of_their_organisations_by_their_roles() {
    if !is_root("users_hear_of_their_organisations_by_their_roles") {
        return;
    }
    const MEMBER: u32 = 4_001;
    const OTHER: u32 = 4_002;
    const LOOKS: u32 = 4_003;
    const STRANGER: u32 = 4_004;
    let place = asking();
    std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let (text, _) = text.split_once("[example_tools").unwrap();
    let person = |uid: u32, more: &str| format!("[principals.\"user://{uid}\"]\nsubjects = []\n{more}\n\n");
    let people = |role: &str| {
        let member = person(MEMBER, role);
        let other = person(OTHER, "orgs = { office = \"owner\" }");
        let looks = person(LOOKS, "roles = [\"look\"]");
        let all = format!("[orgs.office]\n\n{member}{other}{looks}[orgs.home]");
        let named = text.replacen("[orgs.home]", &all, 1);
        assert_ne!(named, text);
        std::fs::write(&policy, named).unwrap();
    };
    people("orgs = { home = \"member\" }");
    let socket = place.path("shared.sock");
    let daemon = place.serve(&["--socket", socket.to_str().unwrap(), "--set", "gateway.socket_mode=0660"]);
    let request = format!("GET {PATH} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    ask(&daemon, STRANGER, "GET", PATH, "").problem(403, "operators_only");
    let [member, other, looks] = [MEMBER, OTHER, LOOKS].map(|uid| as_user(&daemon, uid, 1, &request));
    let mut own = Listening::to(&daemon, None);
    until("all of them listen", || streams(&daemon) == 4);
    let ended = |(mut child, mut out): (std::process::Child, BufReader<std::process::ChildStdout>)| {
        let mut text = String::new();
        out.read_to_string(&mut text).unwrap();
        child.wait().unwrap();
        let reply = text.lines().find_map(|line| serde_json::from_str::<String>(line).ok()).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
        let mut lines = reply.lines().map(str::to_owned);
        std::iter::from_fn(|| next(&mut lines)).collect::<Vec<_>>()
    };
    let first = held(&daemon, "u-1", "u-1.txt", "x");
    decide(&daemon, &first, "deny", &json!({})).json(200);
    // Who is no longer a member hears no more.
    people("");
    daemon.ask("POST", "/v1/policy/reload", &[], "").json(200);
    held(&daemon, "u-2", "u-2.txt", "x");
    let member = ended(member);
    assert_eq!(own.take(3)[2].brief().1, "u-2");
    assert_eq!(streams(&daemon), 3);
    assert_eq!(daemon.stop(), 0);
    let told = |events: &[Event]| -> Vec<(String, String)> {
        events.iter().map(|event| (event.brief().0.to_owned(), event.brief().1.to_owned())).collect()
    };
    let both =
        [("approval_request", "u-1"), ("approval_result", "u-1")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(told(&member), both);
    assert_eq!(ended(other), Vec::new(), "it is of another organisation");
    let looks = ended(looks);
    let third = ("approval_request".to_owned(), "u-2".to_owned());
    assert_eq!(told(&looks), [&both[..], &[third]].concat());
    // Who only looks sees no contents, and a member none of a planner without a session.
    for heard in [&looks, &member] {
        assert_eq!((&heard[0].data["params"], &heard[1].data["error"]), (&json!({}), &Value::Null));
    }
}

#[test]
fn tokens_hear_of_their_own_and_streams_end_with_them() {
    let place = asking();
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let people = "[orgs.office]\n\n[principals.\"account://home/*\"]\nsubjects = []\norgs = { home = \"member\" }\n\n\
        [principals.\"account://office/*\"]\nsubjects = []\norgs = { office = \"owner\" }\n";
    std::fs::write(&policy, format!("{}{people}", text.split("[example_tools").next().unwrap())).unwrap();
    let daemon = place.serve(&["--listen", "127.0.0.1:0", "--set", "gateway.token_rate_max=0"]);
    let log = place.log();
    let line = log.lines().rfind(|line| line.contains("listening on http")).unwrap();
    let address = serde_json::from_str::<Value>(line).unwrap()["address"].as_str().unwrap().to_owned();
    let text = |made: &Value, name: &str| made[name].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    let session = || {
        let body =
            json!({ "space_id": "shared:household", "subject_id": "agent://planner@deviceA", "title": "s" });
        let made = daemon.post("/v1/sessions", &body).json(200);
        (text(&made, "id"), text(&made, "token"))
    };
    let account = |org: &str| {
        let body = json!({ "kind": "user", "org": org, "name": "user" });
        text(&daemon.post("/v1/tokens", &body).json(200), "token")
    };
    let held_in = |session: &str, action: &str| {
        let path = format!("/v1/actions?wait&session={session}");
        daemon.post(&path, &write_note(action, action, "s")).json(202);
    };
    let (first, second) = (session(), session());
    let brief = json!({ "kind": "user", "org": "home", "name": "user", "lasts": "5s" });
    let mut short = Listening::by(&address, &text(&daemon.post("/v1/tokens", &brief).json(200), "token"));
    let (member, revoked) = (account("home"), account("home"));
    let tokens = [&first.1, &second.1, &member, &revoked, &account("office")];
    let [mut sandbox, mut other, mut live, mut cut, stranger] =
        tokens.map(|token| Listening::by(&address, token));
    held_in(&first.0, "t-1");
    held_in(&second.0, "t-2");
    held(&daemon, "t-3", "t-3", "s");
    let ids = |live: &mut Listening, count: usize| -> Vec<String> {
        live.take(count).iter().map(|event| event.brief().1.to_owned()).collect()
    };
    assert_eq!((ids(&mut sandbox, 1), ids(&mut other, 1)), (vec!["t-1".to_owned()], vec!["t-2".to_owned()]));
    assert_eq!(ids(&mut cut, 3), ["t-1", "t-2", "t-3"]);
    // A member reads what is in the actions of sessions.
    let read = |one: &Value| (one["id"].as_str().unwrap().to_owned(), one["params"] != json!({}));
    let all_read = |events: &[Event]| -> Vec<_> { events.iter().map(|event| read(&event.data)).collect() };
    let expected = |all: &[(&str, bool)]| -> Vec<_> {
        all.iter().map(|(action, reads)| ((*action).to_owned(), *reads)).collect()
    };
    let seen = live.take(3);
    assert_eq!(all_read(&seen), expected(&[("t-1", true), ("t-2", true), ("t-3", false)]));
    // A revoked token hears no more.
    let id = revoked.split('_').nth(2).unwrap();
    daemon.post(&format!("/v1/tokens/{id}/revoke"), &json!({})).json(200);
    held_in(&second.0, "t-4");
    assert_eq!((ids(&mut other, 1), ids(&mut live, 1)), (vec!["t-4".to_owned()], vec!["t-4".to_owned()]));
    cut.ended();
    assert_eq!(Reply::of(&rest(request_by(&address, &revoked))).status, 401);
    // Nor does one that has expired.
    until("it expires", || daemon.get("/v1/tokens").body.contains("\"expired\""));
    held_in(&second.0, "t-5");
    assert_eq!((ids(&mut other, 1), ids(&mut live, 1)), (vec!["t-5".to_owned()], vec!["t-5".to_owned()]));
    while let Some(event) = next(&mut short.0) {
        assert_ne!(event.brief().1, "t-5");
    }
    // With its session, the token of a sandbox ends. Others hear that its question was denied.
    daemon.ask("DELETE", &format!("/v1/sessions/{}", first.0), &[], "").json(200);
    while next(&mut sandbox.0).is_some() {}
    assert_eq!(live.next().brief(), ("approval_result", "t-1", "denied"));
    // What was in the actions of the deleted session is no longer for members: in what they missed, and in the inbox.
    let from = format!("{member}\r\nlast-event-id: {}", seen[0].cursor());
    let mut back = Listening::by(&address, &from);
    let missed = back.take(5);
    assert_eq!(
        all_read(&missed),
        expected(&[("t-2", true), ("t-3", false), ("t-4", true), ("t-5", true), ("t-1", false)]),
        "{missed:?}"
    );
    let inbox = Reply::of(&rest(get_by(&address, "/v1/inbox", &member))).json(200);
    let listed: Vec<_> = inbox["invocations"].as_array().unwrap().iter().map(read).collect();
    let now = [("t-5", true), ("t-4", true), ("t-3", false), ("t-2", true), ("t-1", false)];
    assert_eq!(listed, expected(&now), "{inbox}");
    // One account has a bounded number of streams.
    let _open: Vec<_> = (2..STREAMS_PER_ACCOUNT_MAX).map(|_| Listening::by(&address, &member)).collect();
    Reply::of(&rest(request_by(&address, &member))).problem(429, "rate_limited");
    assert_eq!(daemon.stop(), 0);
    stranger.ended();
    live.ended();
}

#[test]
fn sessions_count_for_the_account_that_made_them() {
    let place = Place::seeded();
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let people = "[principals.\"account://home/*\"]\nsubjects = [\"agent://planner@deviceA\"]\norgs = { home = \"member\" }";
    std::fs::write(&policy, text.replacen("[principals.", &format!("{people}\n\n[principals."), 1)).unwrap();
    let (daemon, address) = listening(&place, &[]);
    let [maker, other] = ["maker", "other"].map(|name| token(&daemon, name));
    let body =
        json!({ "space_id": "shared:household", "subject_id": "agent://planner@deviceA", "title": "s" });
    let text = |made: &Value| made["token"].as_str().unwrap().to_owned();
    let made = || text(&ask_by(&address, &maker, "POST", "/v1/sessions", &body.to_string()).json(200));
    let sessions = [made(), made()];
    let half = |token: &String| -> Vec<_> {
        (0..STREAMS_PER_ACCOUNT_MAX / 2).map(|_| Listening::by(&address, token)).collect()
    };
    let open = sessions.each_ref().map(half);
    for token in [&sessions[0], &sessions[1], &made(), &maker] {
        Reply::of(&rest(request_by(&address, token))).problem(429, "rate_limited");
    }
    // Another account, and a session that nobody over the network has made, have their own.
    for token in [&other, &text(&daemon.post("/v1/sessions", &body).json(200))] {
        Listening::by(&address, token);
    }
    drop(open);
}

fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}
