//! Connections whose access tokens effectd gets itself: by a real daemon, its broker, a token endpoint and a service on this machine.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::backups::find;
use crate::harness::{Daemon, Place, Service, Serving, until};

const CLIENT: &str = "canary-client";

/// What the token endpoint does next.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    Gives,
    /// Answers with this status and an error in words of its own.
    Refuses(u16),
    /// Takes the request, and closes the connection.
    Breaks,
    /// Tells the test, and waits for it.
    Waits,
}

/// A token endpoint that replaces the refresh token each time, and the service that its access tokens are for.
struct Idp {
    tokens: Service,
    api: Service,
    state: Arc<Mutex<State>>,
}

struct State {
    next: Next,
    /// How many access tokens it has given.
    given: u32,
    expires_in: u32,
    /// Whether the service refuses the access token.
    refuses: bool,
    waits: Option<(Sender<()>, std::sync::mpsc::Receiver<()>)>,
}

impl Idp {
    fn new(expires_in: u32) -> Self {
        let state = State { next: Next::Gives, given: 0, expires_in, refuses: false, waits: None };
        let state = Arc::new(Mutex::new(state));
        let (of_tokens, of_api) = (state.clone(), state.clone());
        let tokens = Service::new(move |_, _, body| {
            let mut state = of_tokens.lock().unwrap();
            match state.next {
                Next::Refuses(status) => {
                    let (error, words) = ("invalid_grant", format!("canary-words {body}"));
                    return Some((status, json!({ "error": error, "error_description": words }).to_string()));
                }
                Next::Breaks => return None,
                Next::Waits => {
                    let (here, go) = state.waits.take().expect("asked once");
                    here.send(()).unwrap();
                    go.recv().unwrap();
                }
                Next::Gives => {}
            }
            state.given += 1;
            let (given, expires_in) = (state.given, state.expires_in);
            let (access, refresh) = (format!("canary-access-{given}"), format!("canary-refresh-{given}"));
            let answer = json!({
                "access_token": access, "refresh_token": refresh, "token_type": "Bearer", "expires_in": expires_in,
            });
            Some((200, answer.to_string()))
        });
        let api = Service::new(move |_, head, _| {
            let status = if of_api.lock().unwrap().refuses { 401 } else { 200 };
            Some((status, json!({ "you": head }).to_string()))
        });
        Self { tokens, api, state }
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// The refresh tokens that the endpoint got, in order.
    fn spent(&self) -> Vec<String> {
        let bodies = self.tokens.asked("POST /token").into_iter().map(|(_, body)| body);
        let spent = bodies.map(|body| {
            let token = body.split('&').find_map(|pair| pair.strip_prefix("refresh_token="));
            token.unwrap_or("none").to_owned()
        });
        spent.collect()
    }

    /// The access tokens that the service got, in order.
    fn used(&self) -> Vec<String> {
        let heads = self.api.asked("GET /v1/items").into_iter().map(|(head, _)| head);
        let used = heads.map(|head| {
            let token = head.lines().find_map(|line| line.strip_prefix("authorization: Bearer "));
            token.unwrap_or("none").to_owned()
        });
        used.collect()
    }

    fn connect_tokens(&self, daemon: &Daemon) -> String {
        connect(
            daemon,
            "http.idp",
            json!([]),
            &json!({
                "scheme": "http", "port": self.tokens.port, "allow": ["127.0.0.0/8"], "routes": ["GET /keys", "POST /token"],
            }),
        )
    }

    fn connect_api(&self, daemon: &Daemon) -> String {
        connect(
            daemon,
            "http.mail",
            json!(["client", "refresh"]),
            &json!({
                "scheme": "http", "port": self.api.port, "allow": ["127.0.0.0/8"], "routes": ["GET /v1/items"],
                "credential": {
                    "header": "authorization", "prefix": "Bearer ", "secret": "client",
                    "oauth": { "token_source": "http.idp", "client_id": "effectd", "refresh_token": "refresh" },
                },
            }),
        )
    }
}

fn connect(daemon: &Daemon, source: &str, secrets: Value, access: &Value) -> String {
    let body = json!({
        "org": "home", "source": source, "name": source, "hosts": ["127.0.0.1"], "secrets": secrets, "access": access,
    });
    daemon.post("/v1/connections", &body).json(200)["id"].as_str().unwrap().to_owned()
}

fn set_secret(daemon: &Daemon, name: &str, value: &str) {
    daemon
        .ask("PUT", &format!("/v1/secrets/{}/{name}", "home"), &[], &json!({ "value": value }).to_string())
        .json(200);
}

fn place() -> Place {
    let place = Place::seeded();
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let with = text.replacen("\"diagnose\"]", "\"diagnose\", \"http.read\", \"http.request\"]", 1);
    let with = with.replacen("hosts = []", "hosts = [\"127.0.0.1\"]", 1);
    assert_ne!(text, with);
    std::fs::write(&policy, with).unwrap();
    place
}

/// A daemon with both connections, whose access tokens end after so many seconds.
fn served(expires_in: u32) -> (Place, Daemon, Idp) {
    let (place, idp) = (place(), Idp::new(expires_in));
    let daemon = place.serve(&[]);
    set_secret(&daemon, "client", CLIENT);
    set_secret(&daemon, "refresh", "canary-refresh-0");
    idp.connect_tokens(&daemon);
    idp.connect_api(&daemon);
    (place, daemon, idp)
}

fn read(action: &str) -> Value {
    json!({
        "action_id": action, "tool_id": "http.mail.read", "space_id": "shared:household", "subject_id": "agent://planner@deviceA",
        "params": { "path": "/v1/items", "space_id": "shared:household" },
        "policy_ctx": { "actor": "alice", "device": "phone1" },
    })
}

fn ask(daemon: &Daemon, action: &str) -> Value {
    daemon.post("/v1/actions?wait", &read(action)).json(200)
}

/// Nothing of what the daemon keeps, says or logs has one of the secrets.
#[track_caller]
fn nobody_has_the_secrets(place: &Place) {
    assert_eq!(place.effectd(&["backup", "copy", "--keys", "copy-keys"], None).code(), 0);
    assert_eq!(place.effectd(&["support-bundle", "bundle.json", "--log-file", "log.jsonl"], None).code(), 0);
    let receipts = place.effectd(&["receipts", "export"], None);
    assert_eq!(receipts.code(), 0, "{}", receipts.stderr());
    assert!(!receipts.stdout().contains("canary-"));
    // With the state, the copy of it, the bundle and the log.
    let found = find(&place.path("."), b"canary-");
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn ten_calls_at_once_get_one_access_token() {
    let (place, daemon, idp) = served(3_600);
    let ((here, is_here), (go, may_go)) = (channel(), channel());
    idp.set(|state| (state.next, state.waits) = (Next::Waits, Some((here, may_go))));
    let views: Vec<Value> = std::thread::scope(|scope| {
        let daemon = &daemon;
        let asking: Vec<_> = (0..10).map(|n| scope.spawn(move || ask(daemon, &format!("ten-{n}")))).collect();
        is_here.recv().unwrap();
        let waiting = || {
            let page = daemon.get("/metrics").body;
            page.lines().any(|line| line == "effectd_actions_in_flight 10")
        };
        until("all of them wait", waiting);
        go.send(()).unwrap();
        asking.into_iter().map(|asking| asking.join().unwrap()).collect()
    });
    assert_eq!(idp.spent(), ["canary-refresh-0"]);
    assert_eq!(idp.used(), ["canary-access-1"; 10]);
    for view in views {
        // The service has repeated the whole request.
        let you = view["result"]["json"]["you"].as_str().unwrap();
        assert!(you.contains("authorization: [redacted:secret]"), "{view}");
        assert_eq!(view["receipt"]["egress"].as_array().unwrap().len(), 1, "{view}");
    }
    let [(head, body)] = &idp.tokens.asked("POST /token")[..] else { panic!("asked once") };
    // effectd:canary-client
    assert!(head.contains("authorization: Basic ZWZmZWN0ZDpjYW5hcnktY2xpZW50\r\n"), "{head}");
    assert!(head.contains("content-type: application/x-www-form-urlencoded\r\n"), "{head}");
    assert_eq!(body, "grant_type=refresh_token&refresh_token=canary-refresh-0");
    daemon.stop();
    nobody_has_the_secrets(&place);
}

#[test]
fn a_replaced_refresh_token_outlives_a_kill() {
    // Each token ends at once.
    let (place, daemon, idp) = served(30);
    ask(&daemon, "one");
    daemon.kill();
    let daemon = place.serve(&[]);
    ask(&daemon, "two");
    ask(&daemon, "three");
    assert_eq!(idp.spent(), ["canary-refresh-0", "canary-refresh-1", "canary-refresh-2"]);
    assert_eq!(idp.used(), ["canary-access-1", "canary-access-2", "canary-access-3"]);
    // A new value of the secret is a new beginning.
    set_secret(&daemon, "refresh", "canary-refresh-new");
    ask(&daemon, "four");
    assert_eq!(idp.spent()[3], "canary-refresh-new");
    daemon.stop();
    nobody_has_the_secrets(&place);
}

#[test]
fn without_an_access_token_nothing_is_sent() {
    let (place, daemon, idp) = served(3_600);
    let failed = |action: &str, retries: u32| {
        let mut request = read(action);
        request["qos"] = json!({ "max_retries": retries });
        let problem = daemon.post("/v1/actions?wait", &request).problem(502, "egress_failed");
        assert!(!problem.to_string().contains("canary-"), "{problem}");
        problem.to_string()
    };
    idp.set(|state| state.next = Next::Refuses(400));
    let problem = failed("refused", 2);
    assert!(problem.contains("http.idp") && problem.contains("invalid_grant"), "{problem}");
    assert_eq!(idp.spent().len(), 1, "a refusal stays one");
    // Whether the refresh token was replaced is unknown: one action spends it once.
    idp.set(|state| state.next = Next::Breaks);
    failed("broken", 2);
    assert_eq!(idp.spent().len(), 2);
    idp.set(|state| state.next = Next::Refuses(400));
    let problem = failed("lost", 0);
    assert!(problem.contains("may be lost") && problem.contains("refresh"), "{problem}");
    assert!(idp.used().is_empty(), "nothing reached the service");
    assert!(place.log().contains("an earlier refresh was interrupted"));
    // It was not lost.
    idp.set(|state| state.next = Next::Gives);
    ask(&daemon, "found");
    assert_eq!(idp.used(), ["canary-access-1"]);
    let strike = ["policy", "set-entry", "hosts", "127.0.0.1", "deny", "--yes"];
    assert_eq!(place.effectd(&strike, None).code(), 0);
    daemon.post("/v1/actions?wait", &read("struck")).problem(403, "network_not_whitelisted");
    daemon.stop();
    nobody_has_the_secrets(&place);
}

#[test]
fn an_access_token_that_is_refused_is_not_used_again() {
    let (_place, daemon, idp) = served(3_600);
    ask(&daemon, "known");
    idp.set(|state| state.refuses = true);
    let view = ask(&daemon, "refused");
    assert_eq!(view["result"]["status"], 401, "{view}");
    idp.set(|state| state.refuses = false);
    ask(&daemon, "again");
    ask(&daemon, "and-again");
    let [first, second] = ["canary-access-1", "canary-access-2"];
    assert_eq!(idp.used(), [first, first, second, second], "nothing was sent twice");
    assert_eq!(idp.spent(), ["canary-refresh-0", "canary-refresh-1"]);
}

#[test]
fn a_connection_takes_its_tokens_with_it() {
    let (_place, daemon, idp) = served(3_600);
    let id = |source: &str| {
        let all = daemon.get("/v1/connections").json(200);
        let all = all.as_array().unwrap().clone();
        let found = all.into_iter().find(|known| known["source"] == source).unwrap();
        found["connection_id"].as_str().unwrap().to_owned()
    };
    ask(&daemon, "one");
    let mail = id("http.mail");
    // Disabled and enabled, it needs another access token, and has the refresh token that only it knows.
    for verb in ["disable", "enable"] {
        daemon.post(&format!("/v1/connections/{mail}/{verb}"), &json!({})).json(200);
    }
    ask(&daemon, "two");
    assert_eq!(idp.spent(), ["canary-refresh-0", "canary-refresh-1"]);
    // Another connection begins anew.
    daemon.ask("DELETE", &format!("/v1/connections/{mail}"), &[], "{}").json(200);
    idp.connect_api(&daemon);
    ask(&daemon, "three");
    assert_eq!(idp.spent()[2], "canary-refresh-0");
    // Without the connection to the token endpoint there is no way.
    let path = format!("/v1/connections/{}/disable", id("http.idp"));
    daemon.post(&path, &json!({})).json(200);
    daemon.post("/v1/actions?wait", &read("four")).problem(422, "connection_missing");
}

#[test]
fn the_command_line_connects_a_client_by_its_secret() {
    let (place, idp) = (place(), Idp::new(3_600));
    let daemon = place.serve(&[]);
    assert_eq!(place.effectd(&["secrets", "set", "home", "client", "--yes"], Some(CLIENT)).code(), 0);
    let port = idp.api.port.to_string();
    let add = [
        "connections",
        "add",
        "--org",
        "home",
        "--source",
        "http.mail",
        "--name",
        "Mail",
        "--host",
        "127.0.0.1",
        "--secret",
        "client",
        "--oauth-source",
        "http.idp",
        "--client-id",
        "effectd",
        "--scope",
        "read write",
        "--route",
        "GET /v1/items",
        "--no-tls",
        "--allow",
        "127.0.0.0/8",
        "--port",
        &port,
        "--yes",
    ];
    let early = place.effectd(&add, None);
    assert!(early.code() != 0 && early.stderr().contains("add it first"), "{}", early.stderr());
    idp.connect_tokens(&daemon);
    let added = place.effectd(&add, None);
    assert_eq!(added.code(), 0, "{}", added.stderr());
    let id = daemon.get("/v1/connections").json(200)[1]["connection_id"].as_str().unwrap().to_owned();
    let tested = place.effectd(&["connections", "test", &id, "-o", "json"], None);
    assert_eq!(tested.json(0)["status"], 200);
    let [(_, body)] = &idp.tokens.asked("POST /token")[..] else { panic!("asked once") };
    assert_eq!(body, "grant_type=client_credentials&scope=read%20write");
    ask(&daemon, "one");
    assert_eq!(idp.used(), ["canary-access-1"; 2], "the token of the test is good for the action");
    daemon.stop();
    nobody_has_the_secrets(&place);
}
