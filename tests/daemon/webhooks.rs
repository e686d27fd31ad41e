//! Webhooks: events of an organisation that a real daemon and its broker send to a server on this machine.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::harness::{Daemon, Place, Serving, until, write_note};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A request as the service got it.
#[derive(Debug, Clone)]
struct Posted {
    path: String,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Posted {
    fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }

    fn action(&self) -> String {
        let event: Value = serde_json::from_str(&self.body).unwrap();
        event["subject"].as_str().unwrap().to_owned()
    }
}

/// What a service says to the n-th request to a path; 0 for nothing at all.
type Script = fn(&str, usize) -> u16;

struct Service {
    port: u16,
    posted: Arc<Mutex<Vec<Posted>>>,
    /// Says that a request is there that gets no answer.
    hangs: Receiver<()>,
}

impl Service {
    fn new(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (posted, (hang, hangs)) = (Arc::<Mutex<Vec<Posted>>>::default(), channel());
        let all = posted.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (all, hang) = (all.clone(), hang.clone());
                std::thread::spawn(move || serve(&stream.unwrap(), &all, &hang, script));
            }
        });
        Self { port, posted, hangs }
    }

    fn at(&self, path: &str) -> Vec<Posted> {
        self.posted.lock().iter().filter(|posted| posted.path == path).cloned().collect()
    }

    fn actions(&self, path: &str) -> Vec<String> {
        self.at(path).iter().map(Posted::action).collect()
    }

    #[track_caller]
    fn gets(&self, path: &str, actions: &[&str]) {
        until("the events are sent", || self.at(path).len() >= actions.len());
        assert_eq!(self.actions(path), actions, "{path}");
    }
}

fn serve(mut stream: &TcpStream, all: &Mutex<Vec<Posted>>, hang: &Sender<()>, script: Script) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut first, mut headers) = (String::new(), BTreeMap::new());
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        let path = first.split(' ').nth(1).unwrap().to_owned();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let mut body = vec![0; headers["content-length"].parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        let nth = {
            let mut all = all.lock();
            let nth = all.iter().filter(|posted| posted.path == path).count();
            all.push(Posted { path: path.clone(), headers, body: String::from_utf8(body).unwrap() });
            nth
        };
        let status = script(&path, nth);
        if status == 0 {
            hang.send(()).unwrap();
            // Until the broker is gone.
            let _ended = reader.read_line(&mut String::new());
            return;
        }
        // Who asks to be asked again at once is: so no test waits for the daemon's own pauses.
        let head = format!("HTTP/1.1 {status} X\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
    }
}

/// A place with a second organisation, whose policy lists the host.
fn place() -> Place {
    let place = Place::seeded();
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let with = text.replacen("hosts = []", "hosts = [\"127.0.0.1\"]", 1);
    assert_ne!(text, with);
    std::fs::write(&policy, with.replacen("[orgs.home]", "[orgs.office]\n\n[orgs.home]", 1)).unwrap();
    place
}

fn connect(daemon: &Daemon, service: &Service, org: &str) {
    daemon
        .ask("PUT", &format!("/v1/secrets/{org}/sign"), &[], &json!({ "value": SECRET }).to_string())
        .json(200);
    let body = json!({
        "org": org, "source": format!("http.{org}"), "name": "Hooks", "hosts": ["127.0.0.1"],
        "access": {
            "scheme": "http", "port": service.port, "allow": ["127.0.0.0/8"],
            "routes": ["POST /a", "POST /b", "POST /x/{id}", "GET /g"],
        },
    });
    daemon.post("/v1/connections", &body).json(200);
}

fn hook(org: &str, path: &str) -> Value {
    json!({ "org": org, "source": format!("http.{org}"), "path": path, "topics": ["ACTION_EXECUTED"], "signed_by": "sign" })
}

fn add(daemon: &Daemon, org: &str, path: &str) -> String {
    daemon.post("/v1/webhooks", &hook(org, path)).json(200)["id"].as_str().unwrap().to_owned()
}

fn act(daemon: &Daemon, action: &str) {
    daemon.post("/v1/actions?wait", &write_note(action, action, "x")).json(200);
}

fn groups(daemon: &Daemon, topic: &str) -> Vec<Value> {
    daemon.get(&format!("/v1/store/topics/{topic}/groups")).json(200).as_array().unwrap().clone()
}

/// How many events a webhook has not passed yet.
fn behind(daemon: &Daemon, id: &str) -> Option<u64> {
    let groups = groups(daemon, "ACTION_EXECUTED");
    let own = groups.iter().find(|group| group["group"] == format!("webhook.{id}"))?;
    own["behind"].as_u64()
}

/// The check that the page on the network shows, by Python's standard library.
fn is_signed(posted: &Posted) -> bool {
    let check = "import base64, hashlib, hmac, sys\n\
        secret, id, timestamp, signature = sys.argv[1:]\n\
        key = base64.b64decode(secret.removeprefix('whsec_'))\n\
        signed = f'{id}.{timestamp}.'.encode() + sys.stdin.buffer.read()\n\
        expected = 'v1,' + base64.b64encode(hmac.digest(key, signed, 'sha256')).decode()\n\
        sys.exit(not any(hmac.compare_digest(expected, given) for given in signature.split()))";
    let header = |name: &str| posted.headers[name].clone();
    let mut python = Command::new("python3")
        .args(["-c", check, SECRET])
        .args(["webhook-id", "webhook-timestamp", "webhook-signature"].map(header))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(posted.body.as_bytes()).unwrap();
    python.wait().unwrap().success()
}

#[test]
fn an_event_is_sent_signed_until_it_is_taken() {
    let (place, service) = (place(), Service::new(|_, nth| if nth < 2 { 500 } else { 204 }));
    let daemon = place.serve(&[]);
    connect(&daemon, &service, "home");
    act(&daemon, "before");
    let words =
        "webhooks add --org home --source http.home --path /a --topic ACTION_EXECUTED --secret sign --yes";
    let added = place.effectd(&words.split(' ').collect::<Vec<_>>(), None);
    assert_eq!(added.code(), 0, "{}", added.stderr());
    let listed = place.effectd(&["webhooks", "list", "-o", "json"], None).json(0);
    let id = listed[0]["webhook_id"].as_str().unwrap();
    act(&daemon, "one");
    until("it is acknowledged", || behind(&daemon, id) == Some(0) && service.at("/a").len() >= 3);
    service.gets("/a", &["one"; 3]);
    let tries = service.at("/a");
    assert!(tries.iter().all(|posted| posted.id() == tries[0].id()), "{tries:?}");
    assert!(tries.iter().all(is_signed), "{tries:?}");
    let changed = Posted { body: tries[0].body.replacen("one", "two", 1), ..tries[0].clone() };
    assert!(!is_signed(&changed));
    let all = daemon.get("/v1/store/topics/ACTION_EXECUTED").json(200);
    let sent: Value = serde_json::from_str(&tries[0].body).unwrap();
    assert!(all["events"].as_array().unwrap().contains(&sent), "{sent}\n{all}");
    assert_eq!(tries[0].headers["content-type"], "application/json");
    // What the service may be told, and what no tool may say.
    for (path, code) in [("/x/{id}", 400), ("/g", 400), ("/none", 400)] {
        daemon.post("/v1/webhooks", &hook("home", path)).json(code);
    }
    let mut topics = hook("home", "/a");
    topics["topics"] = json!(["ACTION_DECISION"]);
    daemon.post("/v1/webhooks", &topics).json(400);
    daemon.ask("DELETE", concat!("/v1/secrets/", "home/sign"), &[], "").json(400);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn what_is_never_taken_is_a_dead_letter_to_requeue() {
    let (place, service) = (place(), Service::new(|_, nth| if nth < 10 { 500 } else { 200 }));
    let daemon = place.serve(&[]);
    connect(&daemon, &service, "home");
    let id = add(&daemon, "home", "/a");
    act(&daemon, "one");
    let letters = || daemon.get("/v1/dlq").json(200)["letters"].as_array().unwrap().clone();
    until("it is a dead letter", || letters().len() == 1);
    let letter = letters().remove(0);
    assert_eq!(
        (letter["code"].as_str(), letter["attempts"].as_u64()),
        (Some("deliveries_exhausted"), Some(10)),
        "{letter}"
    );
    assert_eq!(
        (&letter["webhook_id"], &letter["space_id"]),
        (&json!(id), &json!("shared:household")),
        "{letter}"
    );
    let shown = place.effectd(&["dlq", "show", "0"], None).stdout();
    assert!(shown.contains(&id) && shown.contains("the service answered 500"), "{shown}");
    // The event after it is sent, and a disabled webhook gets nothing again.
    act(&daemon, "two");
    service.gets("/a", &[["one"; 10].as_slice(), &["two"]].concat());
    daemon.post(&format!("/v1/webhooks/{id}/disable"), &json!({})).json(200);
    let left = daemon.post("/v1/dlq/0/requeue", &json!({})).json(200);
    assert!(left["now"].as_str().unwrap().contains("disabled"), "{left}");
    daemon.post(&format!("/v1/webhooks/{id}/enable"), &json!({})).json(200);
    let events = || daemon.get("/v1/store/topics/ACTION_EXECUTED").json(200)["end"].clone();
    let before = events();
    assert_eq!(daemon.post("/v1/dlq/0/requeue", &json!({})).json(200)["now"], "requeued");
    until("it is sent again", || service.at("/a").len() == 12);
    let all = service.at("/a");
    assert_eq!((all[11].id(), &all[11].body), (all[0].id(), &all[0].body));
    assert!(is_signed(&all[11]));
    assert!(letters().is_empty());
    // Readers of the topic get it once. The requeue itself has a receipt, and so an event.
    assert_eq!(events().as_u64().unwrap() - before.as_u64().unwrap(), 1);
    assert_eq!(daemon.post("/v1/dlq/0/requeue", &json!({})).json(200)["now"], "gone");
}

#[test]
fn what_was_being_sent_at_a_kill_is_sent_again() {
    let (place, service) = (place(), Service::new(|_, nth| if nth == 0 { 0 } else { 200 }));
    let daemon = place.serve(&[]);
    connect(&daemon, &service, "home");
    let id = add(&daemon, "home", "/a");
    act(&daemon, "one");
    service.hangs.recv().unwrap();
    act(&daemon, "two");
    daemon.kill();
    let daemon = place.serve(&[]);
    service.gets("/a", &["one", "one", "two"]);
    let posted = service.at("/a");
    assert_eq!((posted[0].id(), &posted[0].body), (posted[1].id(), &posted[1].body));
    until("all is acknowledged", || behind(&daemon, &id) == Some(0));
}

#[test]
fn a_dead_service_and_another_organisation_get_nothing() {
    let (place, service) = (place(), Service::new(|path, _| if path == "/b" { 0 } else { 200 }));
    let daemon = place.serve(&[]);
    connect(&daemon, &service, "home");
    connect(&daemon, &service, "office");
    let dead = add(&daemon, "home", "/b");
    add(&daemon, "home", "/a");
    let office = add(&daemon, "office", "/a");
    let actions = ["a0", "a1", "a2", "a3", "a4"];
    act(&daemon, actions[0]);
    service.hangs.recv().unwrap();
    actions[1..].iter().for_each(|action| act(&daemon, action));
    service.gets("/a", &actions);
    until("the office has passed over all", || behind(&daemon, &office) == Some(0));
    service.gets("/a", &actions);
    service.gets("/b", &actions[..1]);
    assert!(behind(&daemon, &dead) >= Some(5), "{:?}", behind(&daemon, &dead));
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_disabled_webhook_leaves_no_group_and_can_go_on() {
    let (place, service) = (place(), Service::new(|_, _| 200));
    let daemon = place.serve(&[]);
    connect(&daemon, &service, "home");
    let id = add(&daemon, "home", "/a");
    act(&daemon, "one");
    service.gets("/a", &["one"]);
    daemon.post(&format!("/v1/webhooks/{id}/disable"), &json!({})).json(200);
    assert_eq!(behind(&daemon, &id), None);
    act(&daemon, "two");
    daemon.post(&format!("/v1/webhooks/{id}/enable"), &json!({})).json(200);
    act(&daemon, "three");
    service.gets("/a", &["one", "three"]);
    // It is also there after a restart.
    assert_eq!(daemon.stop(), 0);
    let daemon = place.serve(&[]);
    act(&daemon, "four");
    service.gets("/a", &["one", "three", "four"]);
    daemon.ask("DELETE", &format!("/v1/webhooks/{id}"), &[], "").json(200);
    assert_eq!(groups(&daemon, "ACTION_EXECUTED"), [] as [Value; 0]);
    assert_eq!(daemon.get("/v1/webhooks").json(200), json!([]));
    daemon.ask("DELETE", concat!("/v1/secrets/", "home/sign"), &[], "").json(200);
}
