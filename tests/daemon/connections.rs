//! Requests to a service over a connection: by a real daemon, its broker, a confined child and a server on this machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::approvals::decide;
use crate::backups::find;
use crate::harness::{Daemon, Place, Serving, until};

const SECRET: &str = "canary-7-of-the-crm";

/// A request as the service got it: its head, and its body.
type Asked = (String, String);

/// A service that writes down what it gets. What it answers depends on the path.
struct Service {
    port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
    /// Says that a request to `/v1/hang` is there.
    hangs: Receiver<()>,
}

impl Service {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (asked, (hang, hangs)) = (Arc::<Mutex<Vec<Asked>>>::default(), channel());
        let all = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (all, hang) = (all.clone(), hang.clone());
                std::thread::spawn(move || serve(stream.unwrap(), &all, &hang));
            }
        });
        Self { port, asked, hangs }
    }

    fn asked(&self, path: &str) -> Vec<Asked> {
        let all = self.asked.lock();
        all.iter().filter(|(head, _)| head.split(' ').nth(1) == Some(path)).cloned().collect()
    }
}

fn serve(stream: TcpStream, all: &Mutex<Vec<Asked>>, hang: &Sender<()>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = bytes.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
            head += &line;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let (path, is_first) = {
            let mut all = all.lock();
            let path = head.split(' ').nth(1).unwrap().to_owned();
            let is_first = !all.iter().any(|(head, _)| head.split(' ').nth(1) == Some(path.as_str()));
            all.push((head.clone(), String::from_utf8(body).unwrap()));
            (path, is_first)
        };
        let (status, more, answer) = match path.as_str() {
            "/v1/broken" => return,
            "/v1/hang" => {
                hang.send(()).unwrap();
                // Until the broker is gone.
                let _ended = reader.read_line(&mut String::new());
                return;
            }
            "/v1/fails" => ("500 Internal Server Error", "", "{}".to_owned()),
            "/v1/missing" => ("404 Not Found", "", json!({ "error": "no such item" }).to_string()),
            "/v1/later" if is_first => ("429 Too Many Requests", "retry-after: 1\r\n", "{}".to_owned()),
            "/v1/elsewhere" => ("302 Found", "location: http://169.254.169.254/\r\n", String::new()),
            _ => ("200 OK", "set-cookie: a=b\r\n", json!({ "you": head, "n": 7 }).to_string()),
        };
        let length = answer.len();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{more}content-length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{answer}").as_bytes()).unwrap();
    }
}

/// A place whose planner may ask services, and whose policy lists the host.
fn place() -> Place {
    let place = Place::seeded();
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let with = text.replacen("\"diagnose\"]", "\"diagnose\", \"http.read\", \"http.request\"]", 1);
    let with = with.replacen("hosts = []", "hosts = [\"127.0.0.1\"]", 1);
    // Otherwise tools of the higher safety classes are denied at night.
    let with = with.replacen("night_from = \"22:00\"", "night_from = \"06:00\"", 1);
    assert_ne!(text, with);
    std::fs::write(&policy, with).unwrap();
    place
}

/// Connects `http.crm` with the service, and returns the connection's id.
fn connect(daemon: &Daemon, service: &Service) -> String {
    daemon
        .ask("PUT", concat!("/v1/secrets/", "home/crm"), &[], &json!({ "value": SECRET }).to_string())
        .json(200);
    let routes =
        ["GET /v1/items/{id}", "GET /v1/missing", "GET /v1/broken", "GET /v1/elsewhere", "POST /v1/items"];
    let more =
        ["POST /v1/broken", "POST /v1/fails", "POST /v1/later", "POST /v1/hang", "DELETE /v1/items/{id}"];
    let body = json!({
        "org": "home", "source": "http.crm", "name": "CRM", "hosts": ["127.0.0.1"], "secrets": ["crm"],
        "access": {
            "scheme": "http", "port": service.port, "allow": ["127.0.0.0/8"],
            "credential": { "header": "authorization", "prefix": "Bearer ", "secret": "crm" },
            "routes": routes.into_iter().chain(more).collect::<Vec<_>>(),
        },
    });
    daemon.post("/v1/connections", &body).json(200)["id"].as_str().unwrap().to_owned()
}

fn request(action: &str, tool: &str, params: Value) -> Value {
    let mut params = params;
    params["space_id"] = "shared:household".into();
    json!({
        "action_id": action, "tool_id": tool, "space_id": "shared:household", "subject_id": "agent://planner@deviceA",
        "params": params, "policy_ctx": { "actor": "alice", "device": "phone1" },
    })
}

fn read(action: &str, path: &str) -> Value {
    request(action, "http.crm.read", json!({ "path": path }))
}

fn write(action: &str, path: &str) -> Value {
    request(
        action,
        "http.crm.request",
        json!({ "method": "POST", "path": path, "json": { "title": "Milk" } }),
    )
}

fn approve(daemon: &Daemon, view: &Value) {
    let id = view["approval"]["approval_id"].as_str().unwrap();
    decide(daemon, id, "approve", &json!({})).json(200);
}

/// Asks for a write, approves it, and returns the view of the action once it has ended.
fn approved(daemon: &Daemon, action: &str, path: &str) -> Value {
    let mut write = write(action, path);
    write["qos"] = json!({ "max_retries": 2 });
    let view = daemon.post("/v1/actions?wait", &write).json(202);
    approve(daemon, &view);
    let done = || {
        let view = daemon.get(&format!("/v1/actions/{action}"));
        (view.status == 200).then(|| view.json(200)).filter(|view| view["receipt"].is_object())
    };
    until("the action ends", || done().is_some());
    done().unwrap()
}

#[test]
fn a_read_has_the_credential_and_the_child_never() {
    let (place, service) = (place(), Service::new());
    let daemon = place.serve(&[]);
    connect(&daemon, &service);
    let view = daemon.post("/v1/actions?wait", &read("get-1", "/v1/items/7")).json(200);
    let [(head, _)] = &service.asked("/v1/items/7")[..] else { panic!("asked once") };
    assert!(head.contains(&format!("authorization: Bearer {SECRET}\r\n")), "{head}");
    assert!(head.contains("host: 127.0.0.1:") && head.contains("user-agent: effectd\r\n"), "{head}");
    let result = &view["result"];
    assert_eq!((&result["status"], &result["json"]["n"]), (&json!(200), &json!(7)), "{view}");
    // The service has repeated the whole request.
    assert!(result["json"]["you"].as_str().unwrap().contains("authorization: [redacted:secret]"), "{result}");
    assert!(result["headers"].get("set-cookie").is_none(), "{result}");
    let egress = &view["receipt"]["egress"];
    assert_eq!(egress.as_array().unwrap().len(), 1, "{view}");
    for (name, expected) in [
        ("host", json!("127.0.0.1")),
        ("method", json!("GET")),
        ("status", json!(200)),
        ("allowed_range", json!(true)),
    ] {
        assert_eq!(egress[0][name], expected, "{egress}");
    }
    assert!(
        egress[0]["bytes_out"].as_u64() > Some(50) && egress[0]["bytes_in"].as_u64() > Some(50),
        "{egress}"
    );
    let missing = daemon.post("/v1/actions?wait", &read("get-2", "/v1/missing")).json(200);
    assert_eq!(
        (&missing["result"]["status"], &missing["receipt"]["reward"]["components"]["quality"]),
        (&json!(404), &json!(0.0)),
        "{missing}"
    );
    // A redirect is an answer like any other, and nobody follows it.
    let elsewhere = daemon.post("/v1/actions?wait", &read("get-3", "/v1/elsewhere")).json(200);
    assert_eq!(elsewhere["result"]["status"], 302, "{elsewhere}");
    assert!(elsewhere["result"]["headers"].get("location").is_none(), "{elsewhere}");
    daemon.stop();
    nobody_has_the_secret(&place);
}

#[track_caller]
fn nobody_has_the_secret(place: &Place) {
    for copy in [&["backup", "copy", "--keys", "copy-keys"][..], &["support-bundle", "bundle.json"]] {
        let copied = place.effectd(copy, None);
        assert_eq!(copied.code(), 0, "{}", copied.stderr());
    }
    let found: Vec<_> = find(&place.path(""), SECRET.as_bytes());
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn what_the_connection_does_not_allow_does_not_leave() {
    let (place, service) = (place(), Service::new());
    let daemon = place.serve(&[]);
    let id = connect(&daemon, &service);
    let refused = daemon.post("/v1/actions?wait", &read("out-1", "/v1/secrets"));
    let problem = refused.problem(403, "egress_refused");
    assert!(problem.to_string().contains("GET /v1/items/{id}"), "{problem}");
    // Another host is nothing that a planner can say.
    let mut elsewhere = read("out-2", "/v1/items/7");
    elsewhere["params"]["host"] = "evil.example".into();
    daemon.post("/v1/actions?wait", &elsewhere).problem(400, "params_invalid");
    for (nth, path) in [
        "//evil.example/",
        "/v1/items/../../admin",
        "/v1/items/%2e%2e",
        "http://evil.example/",
        "/v1/items/7?x=1",
    ]
    .into_iter()
    .enumerate()
    {
        daemon.post("/v1/actions?wait", &read(&format!("path-{nth}"), path)).problem(400, "params_invalid");
    }
    let mut header = read("out-3", "/v1/items/7");
    header["params"]["headers"] = json!({ "authorization": "Bearer mine" });
    daemon.post("/v1/actions?wait", &header).problem(400, "params_invalid");
    assert!(service.asked.lock().is_empty());
    // A list of the policy is stronger than the connection.
    let strike = ["policy", "set-entry", "hosts", "127.0.0.1", "deny", "--yes"];
    assert_eq!(place.effectd(&strike, None).code(), 0);
    daemon.post("/v1/actions?wait", &read("out-4", "/v1/items/7")).problem(403, "network_not_whitelisted");
    let tested = place.effectd(&["connections", "test", &id], None);
    assert!(tested.code() != 0 && tested.stderr().contains("allow.hosts"), "{}", tested.stderr());
    let allow = ["policy", "set-entry", "hosts", "127.0.0.1", "allow", "--yes"];
    assert_eq!(place.effectd(&allow, None).code(), 0);
    daemon.post("/v1/actions?wait", &read("out-5", "/v1/items/7")).json(200);
    daemon.post(&format!("/v1/connections/{id}/disable"), &json!({})).json(200);
    daemon.post("/v1/actions?wait", &read("out-6", "/v1/items/7")).problem(404, "unknown_tool");
}

#[test]
fn a_person_sees_the_request_and_it_leaves_once() {
    let (place, service) = (place(), Service::new());
    let daemon = place.serve(&[]);
    connect(&daemon, &service);
    let view = daemon.post("/v1/actions?wait", &write("post-1", "/v1/items")).json(202);
    let approval = view["approval"]["approval_id"].as_str().unwrap();
    let asked = daemon.get(&format!("/v1/approvals/{approval}")).json(200);
    let shown = &asked["prompt"]["preview"]["request"];
    assert_eq!(shown["method"], "POST", "{asked}");
    assert_eq!(shown["url"], format!("http://127.0.0.1:{}/v1/items", service.port), "{asked}");
    assert!(shown["body"]["text"].as_str().unwrap().contains("Milk"), "{asked}");
    assert!(service.asked.lock().is_empty(), "nothing leaves before the yes");
    approve(&daemon, &view);
    until("it is sent", || service.asked("/v1/items").len() == 1);
    until("there is a receipt", || daemon.get("/v1/actions/post-1").json(200)["receipt"].is_object());
    let done = daemon.get("/v1/actions/post-1").json(200);
    assert_eq!(done["receipt"]["outcome"], "executed", "{done}");
    assert_eq!(done["receipt"]["preview"]["verdict"], "matched", "{done}");
    let [(head, body)] = &service.asked("/v1/items")[..] else { panic!("sent once") };
    assert!(
        head.starts_with("POST /v1/items HTTP/1.1\r\n")
            && head.contains("content-type: application/json\r\n"),
        "{head}"
    );
    assert_eq!(body, r#"{"title":"Milk"}"#);
}

#[test]
fn what_may_have_happened_is_never_sent_again() {
    let (place, service) = (place(), Service::new());
    let daemon = place.serve(&[]);
    connect(&daemon, &service);
    for (action, path) in [("lost-1", "/v1/broken"), ("lost-2", "/v1/fails")] {
        let view = approved(&daemon, action, path);
        assert_eq!(view["receipt"]["outcome"], "indeterminate", "{view}");
        assert_eq!(view["receipt"]["error"]["code"], "outcome_unknown", "{view}");
        assert_eq!(service.asked(path).len(), 1, "{path}");
    }
    // A service that asks to be asked later has done nothing.
    let later = approved(&daemon, "later-1", "/v1/later");
    assert_eq!(later["receipt"]["outcome"], "executed", "{later}");
    assert_eq!(service.asked("/v1/later").len(), 2);
    assert_eq!(later["receipt"]["egress"].as_array().unwrap().len(), 2, "{later}");
    // A read may be repeated, and is.
    let mut again = read("read-1", "/v1/broken");
    again["qos"] = json!({ "max_retries": 2 });
    daemon.post("/v1/actions?wait", &again).problem(502, "egress_failed");
    assert_eq!(service.asked("/v1/broken").iter().filter(|(head, _)| head.starts_with("GET")).count(), 3);
}

#[test]
fn a_kill_while_a_service_thinks_leaves_the_outcome_open() {
    let (place, service) = (place(), Service::new());
    let lease = ["--set", "pipeline.lease_ttl_ms=2000"];
    let daemon = place.serve(&lease);
    connect(&daemon, &service);
    let mut hangs = write("hang-1", "/v1/hang");
    hangs["qos"] = json!({ "timeout_ms": 5_000 });
    let view = daemon.post("/v1/actions?wait", &hangs).json(202);
    approve(&daemon, &view);
    service.hangs.recv().unwrap();
    daemon.kill();
    let daemon = place.serve(&lease);
    until("it is settled", || daemon.get("/v1/actions/hang-1").json(200)["receipt"].is_object());
    let view = daemon.get("/v1/actions/hang-1").json(200);
    assert_eq!(view["receipt"]["error"]["code"], "outcome_unknown", "{view}");
    assert_eq!(service.asked("/v1/hang").len(), 1);
    // The broker that died with its daemon is another one now.
    daemon.post("/v1/actions?wait", &read("after-1", "/v1/items/7")).json(200);
}

#[test]
fn the_command_line_adds_tests_and_lists_a_connection() {
    let (place, service) = (place(), Service::new());
    let daemon = place.serve(&[]);
    let set = ["secrets", "set", "home", "crm", "--yes"];
    assert_eq!(place.effectd(&set, Some(SECRET)).code(), 0);
    let port = service.port.to_string();
    let add = [
        "connections",
        "add",
        "--org",
        "home",
        "--source",
        "http.crm",
        "--name",
        "CRM",
        "--host",
        "127.0.0.1",
        "--secret",
        "crm",
        "--route",
        "GET /v1/items",
        "--route",
        "POST /v1/items",
        "--no-tls",
        "--allow",
        "127.0.0.0/8",
        "--port",
        &port,
        "--yes",
    ];
    let added = place.effectd(&add, None);
    assert_eq!(added.code(), 0, "{}", added.stderr());
    let id = daemon.get("/v1/connections").json(200)[0]["connection_id"].as_str().unwrap().to_owned();
    let tested = place.effectd(&["connections", "test", &id, "-o", "json"], None);
    let found = tested.json(0);
    assert_eq!(
        (&found["address"], &found["address_class"]),
        (&json!("127.0.0.1"), &json!("loopback")),
        "{found}"
    );
    assert_eq!((&found["asked"], &found["status"]), (&json!("GET /v1/items"), &json!(200)), "{found}");
    let wrong = [&add[..12], &["--route", "GET /v1/../x", "--yes"]].concat();
    let refused = place.effectd(&wrong, None);
    assert_eq!(refused.code(), 2, "{}", refused.stderr());
    assert!(refused.stderr().contains("GET /v1/items/{id}"), "{}", refused.stderr());
    for wrong in [&add[..12], &[&add[..12], &["--route", "GET /v1", "--no-tls"]].concat()[..]] {
        let refused = place.effectd(&[wrong, &["--yes"]].concat(), None);
        assert_eq!(refused.code(), 2, "{}", refused.stderr());
    }
    daemon.stop();
    nobody_has_the_secret(&place);
}
